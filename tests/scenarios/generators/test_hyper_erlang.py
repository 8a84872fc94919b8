"""The hyper-Erlang workload model: learning, and generating jobs."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.generators.common import measure
from gridweave.scenarios.generators.hyper_erlang import (
    HyperErlang,
    HyperErlangModel,
    SizeClass,
    Stream,
    generate_hyper_erlang,
    interarrival_factor_for,
    learn_hyper_erlang,
    rescale,
)
from gridweave.scenarios.generators.registry import load_model, save_model
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.table import MAX_TIME_MS, Workload

CTC = "CTC-SP2-1996-3.1-cln"
COLUMNS = ("job_id", "submit_ms", "width", "estimate_ms", "run_ms")


def moments_of(values: list[int]) -> tuple[Fraction, Fraction, Fraction]:
    """Return the first three raw moments of whole numbers, exactly."""
    first, second, third = (Fraction(sum(value**k for value in values), len(values)) for k in (1, 2, 3))
    return first, second, third


def workload_of(submit_s: list[int], width: list[int], run_s: list[int], *, nodes: int = 16) -> Workload:
    """Return jobs with estimates of twice their run time."""
    return Workload(
        job_id=np.arange(len(submit_s)),
        submit_ms=np.array(submit_s) * 1000,
        width=np.array(width),
        estimate_ms=np.array(run_s) * 2000,
        run_ms=np.array(run_s) * 1000,
        nodes=nodes,
        name="small",
    )


def random_workload(seed: int, n: int = 400, nodes: int = 20) -> Workload:
    """Return bursty jobs whose run times do not depend on their width."""
    rng = np.random.default_rng(seed)
    submit_s = np.cumsum(np.ceil(rng.weibull(0.5, n) * 100)).astype(int)
    run_s = np.maximum(rng.lognormal(5, 2, n).astype(int), 1)
    return workload_of(submit_s.tolist(), rng.integers(1, nodes + 1, n).tolist(), run_s.tolist(), nodes=nodes)


def test_classes_end_at_powers_of_two() -> None:
    """The last class ends at the size of the machine."""
    widths = [1, 2, 3, 4, 4, 5, 8, 9, 16, 17, 20]
    model = learn_hyper_erlang(workload_of(list(range(11)), widths, [10] * 11, nodes=20))
    found = {group.max_width: dict(zip(group.widths, group.counts, strict=True)) for group in model.classes}
    assert found == {1: {1: 1}, 2: {2: 1}, 4: {3: 1, 4: 2}, 8: {5: 1, 8: 1}, 16: {9: 1, 16: 1}, 20: {17: 1, 20: 1}}


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_classes_have_the_rates_and_moments_of_the_trace(seed: int) -> None:
    workload = random_workload(seed)
    model = learn_hyper_erlang(workload)
    span_ms = int(workload.submit_ms[-1] - workload.submit_ms[0])
    ring = Fraction(span_ms * len(workload), len(workload) - 1)
    lower = 0
    busy_nodes = 0.0
    for group in model.classes:
        rows = (workload.width > lower) & (workload.width <= group.max_width)
        lower = group.max_width
        assert group.jobs == rows.sum()
        assert group.interarrival.moment(1) == pytest.approx(float(ring / group.jobs), rel=1e-9)
        runs = [int(run) for run in workload.run_ms[rows]]
        for k, moment in enumerate(moments_of(runs), start=1):
            assert group.run.moment(k) == pytest.approx(float(moment), rel=1e-9)
        if group.jobs > 2:
            submits = [Fraction(int(submit)) for submit in workload.submit_ms[rows]]
            gaps = np.array([float(gap) for gap in np.diff([*submits, submits[0] + ring])])
            for k in (2, 3):
                assert group.interarrival.moment(k) == pytest.approx(np.mean(gaps**k), rel=1e-9)
        busy_nodes += group.jobs * float(workload.width[rows].mean()) * float(workload.run_ms[rows].mean())
    assert model.offered_load() == pytest.approx(busy_nodes / float(ring) / workload.nodes, rel=1e-9)


def test_one_or_two_jobs_are_a_poisson_process() -> None:
    """Their rate is that on the ring."""
    model = learn_hyper_erlang(workload_of([0, 10, 20, 1000], [1, 1, 4, 2], [5, 6, 7, 8]))
    ring_ms = 1000_000 * 4 / 3
    for group, jobs in zip(model.classes, (2, 1, 1), strict=True):
        law = group.interarrival
        assert (group.jobs, law.order, law.probabilities) == (jobs, 1, (1.0,))
        assert law.means_ms[0] == pytest.approx(ring_ms / jobs)


def test_learning_needs_arrivals_and_a_machine() -> None:
    with pytest.raises(InputError, match="takes at least two"):
        learn_hyper_erlang(workload_of([0], [1], [5]))
    with pytest.raises(InputError, match="at the same time"):
        learn_hyper_erlang(workload_of([3, 3], [1, 1], [5, 5]))
    with pytest.raises(OptionError, match="nodes"):
        learn_hyper_erlang(random_workload(1).replace(nodes=None))
    with pytest.raises(OptionError, match="nodes"):
        learn_hyper_erlang(random_workload(1), nodes=4)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), n=st.integers(2, 60))
def test_generated_jobs_are_valid(seed: int, n: int) -> None:
    """Widths occur in the model, estimates are perfect, ids start at 1, and the first job is at time zero."""
    workload = random_workload(seed, n)
    made = generate_hyper_erlang(learn_hyper_erlang(workload), 300, np.random.default_rng(seed))
    assert len(made) == 300
    assert set(made.width.tolist()) <= set(workload.width.tolist())
    assert np.array_equal(made.estimate_ms, made.run_ms)
    assert made.run_ms.min() >= 1000
    assert made.submit_ms[0] == 0
    assert not np.any(made.submit_ms % 1000)
    assert made.job_id.tolist() == list(range(1, 301))
    assert not made.overran.any()
    assert made.nodes == workload.nodes


def test_shares_and_rates_converge_to_the_model() -> None:
    workload = random_workload(3)
    model = learn_hyper_erlang(workload)
    made = generate_hyper_erlang(model, 200_000, np.random.default_rng(1))
    shares = np.bincount(workload.width, minlength=21) / len(workload)
    assert np.abs(np.bincount(made.width, minlength=21) / len(made) - shares).max() < 0.003
    assert measure(made).mean_interarrival_ms == pytest.approx(measure(workload).mean_interarrival_ms, rel=0.02)
    assert measure(made).offered_load == pytest.approx(model.offered_load(), rel=0.03)


def test_short_workloads_have_the_same_rate_as_long_ones() -> None:
    law = HyperErlang(order=1, probabilities=(0.98, 0.02), means_ms=(1000.0, 500_000.0))
    group = SizeClass(max_width=1, widths=[1], counts=[1], interarrival=law, run=law)
    window_ms = 100_000
    counts = [Stream(group, 4, np.random.default_rng(seed)).jobs_until(window_ms) for seed in range(2000)]
    expected = window_ms / law.moment(1)
    assert np.mean(counts) == pytest.approx(expected, abs=4 * np.std(counts) / math.sqrt(len(counts)))
    # The comparison can tell: with a full gap first, a process of so varied gaps has far more jobs at its start.
    gaps_ms = law.sample_ms(np.random.default_rng(1), 2000 * 500).reshape(2000, 500)
    assert np.mean((np.cumsum(gaps_ms, axis=1) <= window_ms).sum(axis=1)) > 2 * expected


def test_a_shorter_workload_is_a_prefix_of_a_longer_one() -> None:
    model = learn_hyper_erlang(random_workload(4))
    short, long = (generate_hyper_erlang(model, jobs, np.random.default_rng(6)) for jobs in (700, 9000))
    assert all(np.array_equal(getattr(short, name), getattr(long, name)[:700]) for name in COLUMNS)


def test_each_factor_changes_only_its_times() -> None:
    """The nine workloads of the paper differ only in their run times."""
    model = learn_hyper_erlang(random_workload(5))
    plain, other = (generate_hyper_erlang(model, 1000, np.random.default_rng(seed)) for seed in (1, 2))
    longer = generate_hyper_erlang(model, 1000, np.random.default_rng(1), run_factor=1.8)
    slower = generate_hyper_erlang(model, 1000, np.random.default_rng(1), interarrival_factor=3.0)
    assert np.abs(longer.run_ms - plain.run_ms * 1.8).max() <= 500
    assert np.abs(slower.submit_ms - plain.submit_ms * 3.0).max() <= 1500
    for name in ("submit_ms", "width"):
        assert np.array_equal(getattr(longer, name), getattr(plain, name))
    for name in ("width", "run_ms"):
        assert np.array_equal(getattr(slower, name), getattr(plain, name))
    assert not np.array_equal(other.submit_ms, plain.submit_ms)


def test_a_load_is_reached_exactly_or_on_average() -> None:
    """``load`` is exact for the generated jobs; `interarrival_factor_for` holds for the model's means."""
    model = learn_hyper_erlang(random_workload(6))
    made = generate_hyper_erlang(model, 2000, np.random.default_rng(1), load=0.55)
    assert measure(made).offered_load == pytest.approx(0.55, rel=1e-3)
    factor = interarrival_factor_for(model, 0.55)
    assert model.offered_load() / factor == pytest.approx(0.55, rel=1e-12)
    long = generate_hyper_erlang(model, 200_000, np.random.default_rng(1), interarrival_factor=factor)
    assert measure(long).offered_load == pytest.approx(0.55, rel=0.05)


def test_rescaling_caps_the_widths() -> None:
    """Arrivals and run times stay the same."""
    model = learn_hyper_erlang(random_workload(7))
    small = rescale(model, nodes=14, max_width=10)
    assert (small.nodes, max(max(group.widths) for group in small.classes)) == (14, 10)
    assert [group.jobs for group in small.classes] == [group.jobs for group in model.classes]
    assert [group.run for group in small.classes] == [group.run for group in model.classes]
    assert [group.interarrival for group in small.classes] == [group.interarrival for group in model.classes]
    one, other = (generate_hyper_erlang(m, 3000, np.random.default_rng(1)) for m in (model, small))
    assert np.array_equal(other.width, np.minimum(one.width, 10))
    assert np.array_equal(other.submit_ms, one.submit_ms)
    assert other.nodes == 14


def test_a_smaller_machine_leaves_out_wide_jobs() -> None:
    """The load counts only the other jobs."""
    workload = random_workload(8)
    model = learn_hyper_erlang(workload)
    made = generate_hyper_erlang(model, 50_000, np.random.default_rng(1), nodes=6)
    assert made.width.max() == 6
    narrow = workload.width <= 6
    assert measure(made).mean_interarrival_ms == pytest.approx(
        measure(workload).mean_interarrival_ms / narrow.mean(), rel=0.03
    )
    assert measure(made).offered_load == pytest.approx(model.offered_load(6), rel=0.06)


def test_machines_on_which_nothing_fits_are_refused() -> None:
    model = learn_hyper_erlang(workload_of([0, 5, 9, 20], [8, 8, 8, 8], [5, 6, 7, 8]))
    with pytest.raises(OptionError, match="nodes"):
        generate_hyper_erlang(model, 10, np.random.default_rng(1), nodes=7)
    with pytest.raises(OptionError, match="nodes"):
        interarrival_factor_for(model, 0.5, nodes=7)
    with pytest.raises(OptionError, match="load"):
        interarrival_factor_for(model, 0.0)
    for cap in (0, 20):
        with pytest.raises(OptionError, match="max_width"):
            rescale(model, nodes=16, max_width=cap)


def test_run_times_are_cut_at_the_maximum_time() -> None:
    law = HyperErlang(order=1, probabilities=(1.0,), means_ms=(1e20,))
    gaps = HyperErlang(order=1, probabilities=(1.0,), means_ms=(1e5,))
    group = SizeClass(max_width=1, widths=[1], counts=[1], interarrival=gaps, run=law)
    model = HyperErlangModel("w", 4, 1, [group], measure(random_workload(1)))
    made = generate_hyper_erlang(model, 100, np.random.default_rng(1))
    assert np.all(made.run_ms == MAX_TIME_MS)


def test_models_survive_a_file(tmp_path: Path) -> None:
    for seed, n in ((1, 400), (2, 2), (3, 5)):
        model = learn_hyper_erlang(random_workload(seed, n))
        save_model(model, tmp_path / "m.json.gz")
        assert load_model(tmp_path / "m.json.gz") == model


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"widths":[1]', b'"widths":[]'),
        (b'"widths":[1]', b'"widths":[99]'),
        (b'"nodes":16', b'"nodes":1'),
        (b'"order":1', b'"order":0'),
        (b'"order":1', b'"order":"x"'),
        (b'"probabilities":[1.0]', b'"probabilities":[0.5]'),
        (b'"counts":[2]', b'"counts":[-2]'),
    ],
)
def test_damaged_model_files_are_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "m.json"
    save_model(learn_hyper_erlang(workload_of([0, 10, 20, 1000], [1, 1, 4, 2], [5, 6, 7, 8])), path)
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    with pytest.raises(InputError, match=r"m\.json: the hyper-erlang model in it is damaged"):
        load_model(path)


@pytest.mark.trace
def test_the_model_of_ctc_has_its_moments_and_load(trace_path) -> None:  # type: ignore[no-untyped-def]
    """Capped and slowed down, it is the baseline workload of the paper."""
    trace, _ = load_workload(trace_path(CTC), nodes=430)
    model = learn_hyper_erlang(trace)
    assert [group.max_width for group in model.classes] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 430]
    assert model.offered_load() == pytest.approx(measure(trace).offered_load, rel=0.05)
    for group in model.classes:
        rows = (trace.width > group.max_width // 2) & (trace.width <= group.max_width)
        if group.max_width not in (1, 430):
            assert group.run.moment(3) == pytest.approx(np.mean(trace.run_ms[rows].astype(float) ** 3), rel=1e-9)
    baseline = rescale(model, nodes=320, max_width=256)
    factor = interarrival_factor_for(baseline, 0.55)
    made = generate_hyper_erlang(baseline, 10_000, np.random.default_rng(1), interarrival_factor=factor)
    assert measure(made).offered_load == pytest.approx(0.55, rel=0.1)
    assert made.width.max() == 256
