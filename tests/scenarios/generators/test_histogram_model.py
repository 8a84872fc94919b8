"""The histogram model of Streit's thesis: learning, generating, and the model that ships with gridweave."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.generators import registry
from gridweave.scenarios.generators.common import measure
from gridweave.scenarios.generators.histogram import (
    MAX_EXACT_ESTIMATES,
    RUN_IS_ESTIMATE,
    RUN_OVERRAN,
    WEIBULL_TABLE,
    HistogramModel,
    Weibull,
    bin_edges,
    bin_of,
    generate_histogram,
    learn_histogram,
)
from gridweave.scenarios.generators.registry import generate, load_model, save_model
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.table import MAX_TIME_MS, Workload
from support.builders import workload_of_gaps

CTC = "CTC-SP2-1996-3.1-cln"
COLUMNS = ("submit_ms", "width", "estimate_ms", "run_ms", "overran")


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw small workloads with ties, killed jobs and times of any size, not all submitted at the same time."""
    job = st.tuples(st.integers(0, 5000), st.integers(1, 16), st.integers(1, 10**7), st.integers(1, 10**7))
    rows = draw(st.lists(job, min_size=2, max_size=40))
    rows[-1] = (rows[-1][0] + 1, *rows[-1][1:])
    killed = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    return workload_of_gaps(rows, tick_ms=draw(st.sampled_from([1, 1000])), overran=killed)


def shipped() -> HistogramModel:
    """Return the model that ships with gridweave."""
    model = load_model("ctc-sp2")
    assert isinstance(model, HistogramModel)
    return model


@given(st.integers(1, MAX_TIME_MS))
def test_every_time_lies_in_its_bin(ticks: int) -> None:
    """Bin edges differ by at most a ninth, or by one tick."""
    edges = bin_edges()
    box = int(bin_of(np.array([ticks]))[0])
    low, high = int(edges[box]), int(edges[box + 1])
    assert low <= ticks < high
    assert high - low == 1 or high - low <= low * (2 ** (1 / 8) - 1) + 1


def test_powers_of_two_are_edges() -> None:
    """The shortest times have a bin each."""
    edges = set(bin_edges().tolist())
    assert edges >= {2**k for k in range(46)}
    assert bin_of(np.arange(1, 10)).tolist() == list(range(9))


def test_the_histogram_counts_every_job_once() -> None:
    """Jobs with equal width, estimate and run time bin share a cell; jobs at their limit have separate cells."""
    rows = [(0, 2, 600, 100), (5, 2, 600, 100), (5, 2, 600, 600), (5, 2, 600, 900), (5, 4, 600, 100), (5, 2, 900, 100)]
    model = learn_histogram(workload_of_gaps(rows, overran=[False, False, False, True, False, False]))
    assert model.estimate_values == [600, 900]
    assert model.resolution_ms == 1000
    hundred = int(bin_of(np.array([100]))[0])
    cells = dict(zip(zip(model.widths, model.estimates, model.runs, strict=True), model.counts, strict=True))
    assert cells == {
        (2, 0, hundred): 2,
        (2, 0, RUN_IS_ESTIMATE): 1,
        (2, 0, RUN_OVERRAN): 1,
        (4, 0, hundred): 1,
        (2, 1, hundred): 1,
    }


@settings(deadline=None)
@given(workload=workloads(), seed=st.integers(0, 100))
def test_generated_jobs_are_combinations_that_occurred(workload: Workload, seed: int) -> None:
    model = learn_histogram(workload)
    made = generate_histogram(model, 200, np.random.default_rng(seed))

    def combinations(jobs: Workload) -> set[tuple[int, ...]]:
        estimate, run = jobs.estimate_ms // model.resolution_ms, jobs.run_ms // model.resolution_ms
        kind = np.where(run < estimate, bin_of(run), -1 - jobs.overran)
        return set(zip(jobs.width.tolist(), estimate.tolist(), kind.tolist(), strict=True))

    assert combinations(made) <= combinations(workload)
    assert np.all(made.run_ms <= made.estimate_ms)
    assert not np.any(made.submit_ms % model.resolution_ms)
    assert made.nodes == workload.nodes
    assert made.job_id.tolist() == list(range(1, 201))
    assert made.submit_ms[0] == 0


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), killed=st.booleans())
def test_rare_estimates_are_binned_if_there_are_many(seed: int, killed: bool) -> None:
    """Common estimates stay exact, and run times stay within them."""
    rng = np.random.default_rng(seed)
    estimate = np.concatenate([np.full(200, 7777), rng.choice(10**6, MAX_EXACT_ESTIMATES + 500, replace=False) + 1])
    run = np.where(rng.random(len(estimate)) < 0.3, estimate, rng.integers(1, estimate + 1))
    rows = [(1, 1, int(e), int(r)) for e, r in zip(estimate, run, strict=True)]
    workload = workload_of_gaps(rows, overran=[killed] * len(rows))
    model = learn_histogram(workload)
    assert model.estimate_values == [7777]
    made = generate_histogram(model, 5000, np.random.default_rng(seed))
    assert np.all(made.run_ms <= made.estimate_ms)
    assert set(bin_of(made.estimate_ms // 1000)) <= set(bin_of(workload.estimate_ms // 1000))
    assert np.mean(made.estimate_ms == 7_777_000) == pytest.approx(200 / len(rows), abs=0.02)
    assert np.mean(made.run_ms == made.estimate_ms) == pytest.approx(
        np.mean(workload.run_ms == workload.estimate_ms), abs=0.03
    )
    assert made.overran.any() == killed


def test_a_workload_depends_only_on_model_and_seed() -> None:
    model = shipped()
    one, again, other = (generate_histogram(model, 500, np.random.default_rng(seed)) for seed in (4, 4, 5))
    assert all(np.array_equal(getattr(one, name), getattr(again, name)) for name in COLUMNS)
    assert not np.array_equal(one.submit_ms, other.submit_ms)
    assert not np.array_equal(one.run_ms, other.run_ms)


@pytest.mark.parametrize("load", [0.2, 0.75, 3.0])
def test_the_requested_load_is_reached(load: float) -> None:
    """Apart from submit times, the jobs do not change."""
    plain = generate_histogram(shipped(), 3000, np.random.default_rng(1))
    loaded = generate_histogram(shipped(), 3000, np.random.default_rng(1), load=load)
    assert measure(loaded).offered_load == pytest.approx(load, rel=1e-5)
    assert all(np.array_equal(getattr(plain, name), getattr(loaded, name)) for name in COLUMNS[1:])


def test_factors_scale_only_their_times() -> None:
    model = shipped()
    plain = generate_histogram(model, 2000, np.random.default_rng(1))
    faster = generate_histogram(model, 2000, np.random.default_rng(1), interarrival_factor=0.5)
    longer = generate_histogram(model, 2000, np.random.default_rng(1), run_factor=1.5)
    assert np.abs(faster.submit_ms - plain.submit_ms * 0.5).max() <= 1000
    assert np.abs(longer.run_ms - plain.run_ms * 1.5).max() <= 500
    assert np.abs(longer.estimate_ms - plain.estimate_ms * 1.5).max() <= 500
    assert np.array_equal(longer.submit_ms, plain.submit_ms)
    assert np.array_equal(faster.run_ms, plain.run_ms)
    assert np.array_equal(longer.overran, plain.overran)


def test_a_smaller_machine_leaves_out_wide_jobs() -> None:
    """The other jobs keep their proportions."""
    model = shipped()
    made = generate_histogram(model, 20_000, np.random.default_rng(1), nodes=8)
    assert made.nodes == 8
    widths, counts = np.array(model.widths), np.array(model.counts)
    expected = [counts[widths == width].sum() / counts[widths <= 8].sum() for width in range(1, 9)]
    assert np.abs(np.bincount(made.width, minlength=9)[1:] / 20_000 - expected).max() < 0.01


def test_published_interarrival_parameters_can_be_used() -> None:
    workload = workload_of_gaps([(1, 1, 10, 5)] * 5)
    assert learn_histogram(workload, weibull="table:KTH").weibull == WEIBULL_TABLE["KTH"]
    law = Weibull(alpha=1.0, beta_ms=5.0)
    assert learn_histogram(workload, weibull=law).weibull == law


@pytest.mark.parametrize("weibull", ["table", "table:", "table:ctc", "mle", ""])
def test_unknown_interarrival_parameters_are_refused(weibull: str) -> None:
    with pytest.raises(OptionError, match="PC2-2001"):
        learn_histogram(workload_of_gaps([(1, 1, 10, 5)] * 5), weibull=weibull)


def test_learning_needs_arrivals_and_a_machine() -> None:
    with pytest.raises(InputError, match="takes at least two"):
        learn_histogram(workload_of_gaps([(1, 1, 10, 5)]))
    with pytest.raises(InputError, match="at the same time"):
        learn_histogram(workload_of_gaps([(0, 1, 10, 5)] * 3))
    workload = workload_of_gaps([(1, 9, 10, 5)] * 3)
    with pytest.raises(OptionError, match="nodes"):
        learn_histogram(workload.replace(nodes=None))
    with pytest.raises(OptionError, match="9 nodes"):
        learn_histogram(workload, nodes=8)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"jobs": 0}, "jobs"),
        ({"jobs": 10**9}, "jobs"),
        ({"nodes": 0}, "nodes"),
        ({"load": 0.0}, "load"),
        ({"load": math.nan}, "load"),
        ({"load": 0.5, "jobs": 1}, "load"),
        ({"load": 1e300}, "load"),
        ({"load": 1e-300}, "load"),
        ({"run_factor": 0.0}, "run_factor"),
        ({"run_factor": 1e30}, "run_factor"),
        ({"interarrival_factor": math.inf}, "interarrival_factor"),
        ({"interarrival_factor": 1e30}, "interarrival_factor"),
    ],
)
def test_invalid_requests_are_refused(arguments: dict[str, float], option: str) -> None:
    wanted = {"jobs": 100, **arguments}
    with pytest.raises(OptionError) as error:
        generate(shipped(), rng=np.random.default_rng(1), **wanted)  # type: ignore[arg-type]
    assert error.value.option == option


def test_a_machine_narrower_than_every_job_is_refused() -> None:
    model = learn_histogram(workload_of_gaps([(1, 4, 10, 5)] * 5))
    with pytest.raises(OptionError, match="narrowest has 4"):
        generate_histogram(model, 10, np.random.default_rng(1), nodes=3)


@settings(deadline=None)
@given(workload=workloads())
def test_every_learnt_model_can_be_loaded(tmp_path_factory: pytest.TempPathFactory, workload: Workload) -> None:
    path = tmp_path_factory.mktemp("model") / "m.json"
    model = learn_histogram(workload.replace(name="odd \n name \x7f"))
    save_model(model, path)
    assert load_model(path) == model


def test_the_shipped_model_reproduces_its_statistics() -> None:
    model = shipped()
    recorded = model.moments
    drawn = [measure(generate_histogram(model, 40_000, np.random.default_rng(seed))) for seed in range(5)]
    for figure, tolerance in {
        "mean_interarrival_ms": 0.02,
        "mean_width": 0.02,
        "mean_estimate_ms": 0.01,
        "mean_run_ms": 0.02,
        "mean_area_node_ms": 0.05,
        "offered_load": 0.05,
        "at_limit": 0.03,
        "overran": 0.03,
    }.items():
        mean = np.mean([getattr(one, figure) for one in drawn])
        assert mean == pytest.approx(getattr(recorded, figure), rel=tolerance), figure


def test_the_shipped_model_is_small_and_of_the_published_machine() -> None:
    """It takes tens of kilobytes and has the 430 nodes of the publications."""
    path = Path(registry.__file__).parent.parent / "data" / "ctc-sp2.json.gz"
    assert path.stat().st_size < 40_000
    assert shipped().nodes == 430
    assert shipped().moments.jobs > 77_000


@pytest.mark.trace
def test_learning_from_the_trace_gives_the_shipped_model(trace_path) -> None:  # type: ignore[no-untyped-def]
    workload, _ = load_workload(trace_path(CTC), nodes=430)
    learnt = learn_histogram(workload)
    model = shipped()
    assert learnt.weibull.alpha == pytest.approx(model.weibull.alpha, rel=1e-6)
    assert learnt.weibull.beta_ms == pytest.approx(model.weibull.beta_ms, rel=1e-6)
    for column in ("name", "nodes", "resolution_ms", "estimate_values", "widths", "estimates", "runs", "counts"):
        assert getattr(learnt, column) == getattr(model, column), column


@pytest.mark.trace
def test_generated_jobs_resemble_the_trace(trace_path) -> None:  # type: ignore[no-untyped-def]
    """A workload as long as CTC-SP2 has its distributions, mean area, load and share of killed jobs."""
    trace, _ = load_workload(trace_path(CTC), nodes=430)
    made = generate_histogram(shipped(), len(trace), np.random.default_rng(1))
    for column, distance in {"width": 0.01, "estimate_ms": 0.01, "run_ms": 0.01}.items():
        assert stats.ks_2samp(getattr(trace, column), getattr(made, column)).statistic < distance, column
    # A Weibull law is an approximation; the fit is as near as this, the published parameters only 0.21.
    assert stats.ks_2samp(np.diff(trace.submit_ms), np.diff(made.submit_ms)).statistic < 0.05
    given_figures, made_figures = measure(trace), measure(made)
    assert made_figures.mean_area_node_ms == pytest.approx(given_figures.mean_area_node_ms, rel=0.05)
    assert made_figures.offered_load == pytest.approx(given_figures.offered_load, rel=0.05)
    assert made_figures.overran == pytest.approx(given_figures.overran, rel=0.03)
    # The three properties of a job belong together: their rank correlations are kept, too.
    for one, other in (("width", "run_ms"), ("width", "estimate_ms"), ("estimate_ms", "run_ms")):
        kept = [stats.spearmanr(getattr(jobs, one), getattr(jobs, other)).statistic for jobs in (trace, made)]
        assert kept[1] == pytest.approx(kept[0], abs=0.02)
