"""Workloads of the Lublin and Feitelson model, and their similarity to output of the authors' program."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp, spearmanr

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.generators.common import measure
from gridweave.scenarios.generators.lublin import (
    BATCH_JOBS,
    DAY_S,
    INTERACTIVE_JOBS,
    WHOLE_SAMPLE,
    LublinJobs,
    LublinModel,
    daily_cycle,
    draw_gaps,
    generate_lublin,
    lublin_model,
    with_alpha,
)
from gridweave.scenarios.generators.registry import load_model, save_model
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.table import Workload

COLUMNS = ("job_id", "submit_ms", "width", "estimate_ms", "run_ms")
TYPES = {"whole": WHOLE_SAMPLE, "batch": BATCH_JOBS, "interactive": INTERACTIVE_JOBS}
KINDS = (*TYPES, "types")


def generated(kind: str = "whole", jobs: int = 2000, seed: int = 1, **options: float) -> Workload:
    """Return a generated workload."""
    return generate_lublin(lublin_model(kind), jobs, np.random.default_rng(seed), **options)  # type: ignore[arg-type]


def same(one: Workload, other: Workload) -> bool:
    """Return whether two workloads have the same jobs."""
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in COLUMNS)


@pytest.mark.parametrize(("kind", "jobs"), TYPES.items())
def test_parameters_are_the_published_ones(kind: str, jobs: LublinJobs) -> None:
    rows = {
        "whole": "0.244 0.576 0.86 4.2 0.94 312 0.03 -0.0054 0.78 10.2303 0.4871 8.1737 3.9631 1.0225",
        "batch": "0.2927 0.6686 0.875 6.57 0.823 639.1 0.0156 -0.003 0.6986 6.0415 0.8531 6.1271 5.2740 1.0519",
        "interactive": "0.1541 0.625 0.705 3.8351 0.6605 7.073 0.6856 -0.0118 0.9156 6.551 0.6621 8.9186 3.668 0.9797",
    }
    names = ["serial", "pow2", "prob", "a1", "b1", "a2", "b2", "pa", "pb", "aarr", "barr", "anum", "bnum", "arar"]
    assert [getattr(jobs, name) for name in names] == [float(text) for text in rows[kind].split()]
    ranges = {"whole": (0.8, 4.5, 7.0), "batch": (1.2, 5.0, 7.0), "interactive": (1.0, 3.0, 5.5)}
    assert jobs.size_range(128) == ranges[kind]
    assert lublin_model(kind) == LublinModel(lublin_model(kind).name, 128, (jobs,))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    jobs=st.integers(1, 300),
    nodes=st.integers(1, 5000),
    kind=st.sampled_from(KINDS),
    load=st.none() | st.floats(0.05, 5),
    run_factor=st.floats(0.1, 4),
    interarrival_factor=st.floats(0.1, 4),
)
def test_generated_jobs_are_valid(
    seed: int,
    jobs: int,
    nodes: int,
    kind: str,
    load: float | None,
    run_factor: float,
    interarrival_factor: float,
) -> None:
    try:
        workload = generate_lublin(
            lublin_model(kind),
            jobs,
            np.random.default_rng(seed),
            nodes=nodes,
            load=load if jobs > 1 else None,
            run_factor=run_factor,
            interarrival_factor=interarrival_factor,
        )
    except OptionError as error:
        # A few short jobs on a large machine have too little work for any load.
        if error.option != "load":
            raise
        reject()
    assert workload.job_id.tolist() == list(range(1, jobs + 1))
    assert workload.nodes == nodes
    assert workload.width.max() <= nodes
    assert np.array_equal(workload.estimate_ms, workload.run_ms)
    for column in ("submit_ms", "run_ms"):
        assert not (getattr(workload, column) % 1000).any()
    classes = {"whole": None, "batch": {1}, "interactive": {0}, "types": {0, 1}}[kind]
    assert ("job_class" in workload.columns) == (classes is not None)
    assert classes is None or set(workload.columns["job_class"].tolist()) <= classes


@pytest.mark.parametrize("kind", KINDS)
def test_a_shorter_workload_is_a_prefix_of_a_longer_one(kind: str) -> None:
    long = generated(kind, 9000)
    for jobs in (1, 4096, 5000):
        short = generated(kind, jobs)
        assert same(short, long.take(np.arange(jobs)))


def test_time_zero_is_midnight() -> None:
    """The first job arrives after the first gap, not at zero."""
    cycle = daily_cycle(WHOLE_SAMPLE.anum, WHOLE_SAMPLE.bnum)
    for seed in range(20):
        for_gaps = np.random.default_rng(seed).spawn(1)[0].spawn(2)[1]
        gaps = draw_gaps(WHOLE_SAMPLE.aarr * WHOLE_SAMPLE.arar, WHOLE_SAMPLE.barr, 50, for_gaps)
        submit_s = np.floor(cycle.time_s(np.cumsum(gaps)))
        assert submit_s[0] > 0
        assert generated(jobs=50, seed=seed).submit_ms.tolist() == (submit_s * 1000).tolist()


def test_jobs_depend_only_on_the_seed() -> None:
    assert same(generated("types", seed=5), generated("types", seed=5))
    assert not same(generated("types", seed=5), generated("types", seed=6))


@pytest.mark.parametrize("kind", KINDS)
def test_each_factor_changes_only_its_times(kind: str) -> None:
    plain, longer = generated(kind), generated(kind, run_factor=2.0)
    assert np.array_equal(longer.run_ms, plain.run_ms * 2)
    assert np.array_equal(longer.submit_ms, plain.submit_ms)
    faster = generated(kind, interarrival_factor=0.5)
    jobs = [sorted(zip(w.width.tolist(), w.run_ms.tolist(), strict=True)) for w in (plain, faster)]
    assert jobs[0] == jobs[1]
    assert faster.submit_ms[-1] < plain.submit_ms[-1]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(KINDS),
    load=st.floats(0.01, 3),
    interarrival_factor=st.floats(0.3, 3),
    run_factor=st.sampled_from([1.0, 2.0]),
)
def test_a_target_load_is_reached(
    seed: int, kind: str, load: float, interarrival_factor: float, run_factor: float
) -> None:
    """It holds before the two factors apply, up to the rounding of submit times to seconds."""
    workload = generated(kind, 300, seed, load=load, interarrival_factor=interarrival_factor, run_factor=run_factor)
    span_s = (workload.submit_ms[-1] - workload.submit_ms[0]) / 1000
    expected = load * run_factor / interarrival_factor
    assert measure(workload).offered_load == pytest.approx(expected, rel=1.1 / span_s)


def test_interarrival_factors_do_not_stretch_the_day() -> None:
    for factor in (0.05, 0.5):
        hour = generated(jobs=100_000, interarrival_factor=factor).submit_ms // 3_600_000 % 24
        expected = daily_cycle(WHOLE_SAMPLE.anum, WHOLE_SAMPLE.bnum).weights.reshape(24, 2).sum(axis=1) / 48
        assert np.abs(np.bincount(hour, minlength=24) / 100_000 - expected).max() < 0.02


def test_a_lower_alpha_shortens_the_gaps_between_the_same_jobs() -> None:
    workloads = [
        generate_lublin(with_alpha(lublin_model(), alpha), 8000, np.random.default_rng(1))
        for alpha in (10.23, 9.83, 8.83)
    ]
    for other in workloads[1:]:
        assert np.array_equal(other.width, workloads[0].width)
        assert np.array_equal(other.run_ms, workloads[0].run_ms)
    spans = [int(workload.submit_ms[-1]) for workload in workloads]
    assert spans == sorted(spans, reverse=True)
    assert with_alpha(lublin_model(), 10.2303) == lublin_model()


def test_types_are_merged_by_arrival() -> None:
    workload = generated("types", 20_000)
    assert (np.diff(workload.submit_ms) >= 0).all()
    classes = workload.columns["job_class"]
    for number, jobs in ((0, INTERACTIVE_JOBS), (1, BATCH_JOBS)):
        rows = workload.take(classes == number)
        assert np.mean(rows.width == 1) == pytest.approx(jobs.serial, abs=0.03)
        assert rows.width.max() <= 2 ** jobs.size_range(128)[2]
        own = generate_lublin(LublinModel("own", 128, (jobs,)), len(rows), np.random.default_rng(number))
        assert ks_2samp(rows.run_ms, own.run_ms).pvalue > 1e-3
        assert ks_2samp(np.diff(rows.submit_ms), np.diff(own.submit_ms)).pvalue > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_models_survive_a_file(tmp_path: Path, kind: str) -> None:
    model = lublin_model(kind, nodes=300)
    save_model(model, tmp_path / "m.json.gz")
    assert load_model(tmp_path / "m.json.gz") == model
    assert load_model(model.name) == lublin_model(kind)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("serial", -0.1, "serial"),
        ("pow2", 0.8, "sum to more than 1"),
        ("prob", math.nan, "prob"),
        ("low", 30.0, "low"),
        ("hi_offset", -1.0, "hi_offset"),
        ("pb", math.inf, "pb"),
        ("a1", 0.0, "a1"),
        ("a2", 500.0, "drawn again"),
        ("aarr", 40.0, "drawn again"),
        ("bnum", math.nan, "bnum"),
        ("bnum", 0.01, "half hour"),
    ],
)
def test_parameters_out_of_range_are_refused(tmp_path: Path, name: str, value: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        msgspec.structs.replace(WHOLE_SAMPLE, **{name: value})
    if math.isfinite(value):
        save_model(lublin_model(), tmp_path / "m.json")
        text = (tmp_path / "m.json").read_text()
        old = msgspec.json.encode(getattr(WHOLE_SAMPLE, name)).decode()
        assert f'"{name}":{old}' in text
        (tmp_path / "m.json").write_text(text.replace(f'"{name}":{old}', f'"{name}":{value}'))
        with pytest.raises(InputError, match=r"m\.json.*damaged"):
            load_model(tmp_path / "m.json")


def test_the_name_of_a_model_is_one_line(tmp_path: Path) -> None:
    save_model(lublin_model(), tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text()
    name = lublin_model().name
    (tmp_path / "m.json").write_text(text.replace(f'"name":"{name}"', f'"name":"{name}\\n"'))
    with pytest.raises(InputError, match=r"m\.json.*name"):
        load_model(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"jobs": 0}, "jobs"),
        ({"nodes": 0}, "nodes"),
        ({"load": 0.0}, "load"),
        ({"load": math.nan}, "load"),
        ({"load": 1e200}, "load"),
        ({"load": 1e-200}, "load"),
        ({"jobs": 1, "load": 0.5}, "load"),
        ({"run_factor": -1.0}, "run_factor"),
        ({"run_factor": 1e12}, "run_factor"),
        ({"interarrival_factor": 0.0}, "interarrival_factor"),
        ({"interarrival_factor": 1e12}, "interarrival_factor"),
    ],
)
def test_invalid_requests_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        generated(**options)  # type: ignore[arg-type]
    assert caught.value.option == words


def test_invalid_alpha_and_unknown_kinds_are_refused() -> None:
    """Alpha also needs a model with a single type."""
    with pytest.raises(OptionError, match="2 types"):
        with_alpha(lublin_model("types"), 9.0)
    for alpha in (0.0, math.nan, 30.0):
        with pytest.raises(OptionError, match="alpha"):
            with_alpha(lublin_model(), alpha)
    with pytest.raises(OptionError, match="interactive"):
        lublin_model("night")
    with pytest.raises(InputError, match="at least one type"):
        LublinModel("none", 128, ())


@pytest.fixture(scope="module")
def theirs(trace_path: Callable[[str], Path]) -> Workload:
    """Return 10,000 jobs on 256 nodes from the authors' program."""
    return load_workload(trace_path("lublin_256"))[0]


@pytest.fixture(scope="module")
def ours() -> Workload:
    """Return 200,000 jobs on 256 nodes from our generator."""
    return generated(jobs=200_000, nodes=256)


# Two samples of 10,000 and 200,000 from one distribution are farther apart than this once in a thousand times.
KS_BOUND = 1.95 * math.sqrt(1 / 10_000 + 1 / 200_000)


@pytest.mark.trace
def test_sizes_run_times_and_gaps_resemble_those_of_the_authors(theirs: Workload, ours: Workload) -> None:
    """Kolmogorov-Smirnov distances to the authors' output are below 0.02, as between samples of one distribution."""
    assert len(theirs) == 10_000
    assert pytest.approx(0.01998, abs=1e-5) == KS_BOUND
    assert ks_2samp(theirs.width, ours.width).statistic < KS_BOUND
    assert ks_2samp(theirs.run_ms, ours.run_ms).statistic < KS_BOUND
    assert ks_2samp(np.diff(theirs.submit_ms), np.diff(ours.submit_ms)).statistic < KS_BOUND


@pytest.mark.trace
def test_the_bound_distinguishes_other_parameters(theirs: Workload) -> None:
    """Another med, gaps without arar, or the run times of a single type exceed it."""

    def distances(jobs: LublinJobs) -> list[float]:
        other = generate_lublin(LublinModel("other", 256, (jobs,)), 200_000, np.random.default_rng(1))
        pairs = ((theirs.width, other.width), (theirs.run_ms, other.run_ms))
        gaps = np.diff(theirs.submit_ms), np.diff(other.submit_ms)
        return [float(ks_2samp(*pair).statistic) for pair in (*pairs, gaps)]

    for offset in (1.5, 3.5):
        assert distances(msgspec.structs.replace(WHOLE_SAMPLE, med_offset=offset))[0] > KS_BOUND
    assert distances(BATCH_JOBS)[1] > KS_BOUND
    assert distances(msgspec.structs.replace(WHOLE_SAMPLE, arar=1.0))[2] > KS_BOUND


@pytest.mark.trace
def test_run_times_depend_on_sizes_as_with_the_authors(theirs: Workload, ours: Workload) -> None:
    """Rank correlation agrees, and so do the run times of serial, narrow, medium and wide jobs."""
    found, expected = (spearmanr(w.width, w.run_ms).statistic for w in (theirs, ours))
    assert found == pytest.approx(expected, abs=0.034)  # 3.3 standard deviations of 10,000 pairs
    for low, high in ((1, 1), (2, 8), (9, 64), (65, 256)):
        rows = [(w.width >= low) & (w.width <= high) for w in (theirs, ours)]
        bound = 1.95 * math.sqrt(1 / rows[0].sum() + 1 / rows[1].sum())
        assert ks_2samp(theirs.run_ms[rows[0]], ours.run_ms[rows[1]]).statistic < bound


@pytest.mark.trace
def test_shares_of_serial_jobs_and_powers_of_two_agree(theirs: Workload, ours: Workload) -> None:
    """They differ by less than 3.3 standard deviations."""
    for part in (lambda w: w == 1, lambda w: (w & (w - 1)) == 0, lambda w: w > 64):
        share = float(np.mean(part(ours.width)))
        assert np.mean(part(theirs.width)) == pytest.approx(share, abs=3.3 * math.sqrt(share * (1 - share) / 10_000))


@pytest.mark.trace
def test_the_day_of_the_authors_drifts_by_half_a_second_per_job(theirs: Workload) -> None:
    """Our cycle fits their times of day best if each job arrived half a second later than stated.

    Their program truncates every submit time to whole seconds and continues from there, so its clock loses half a
    second per job, 1.4 hours in all, while its cycle does not.
    """
    weights = daily_cycle(WHOLE_SAMPLE.anum, WHOLE_SAMPLE.bnum).weights
    number = np.arange(1, len(theirs) + 1)

    def likelihood(drift_s: float, by_buckets: int = 0) -> float:
        bucket = ((theirs.submit_ms / 1000 + drift_s * number) % DAY_S // 1800).astype(int)
        return float(np.log(weights[(bucket + by_buckets) % 48]).sum())

    drifts = [0.0, 0.25, 0.5, 0.75, 1.0]
    assert max(drifts, key=likelihood) == 0.5
    assert max((-1, 0, 1), key=lambda by: likelihood(0.5, by)) == 0
