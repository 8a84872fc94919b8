"""Metrics compared with values computed by hand and with plain loops over their formulas."""

from __future__ import annotations

import datetime
import math
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError
from gridweave.scenarios.results import steps as step_module
from gridweave.scenarios.results.metrics import Metrics, compute_by_class, compute_metrics
from gridweave.scenarios.results.steps import queue_length_seen, step_functions
from gridweave.scenarios.workload.columns import JobClasses, classes_by_length, classes_by_month, classes_by_width

S = 1000
Job = tuple[int, int, int, int]  # submit, start, end, width


def columns(jobs: list[Job]) -> tuple[np.ndarray, ...]:
    """Convert a list of jobs to four arrays."""
    return tuple(np.array(jobs, np.int64).reshape(-1, 4).T)


def metrics_of(jobs: list[Job], nodes: int) -> Metrics:
    """Compute the metrics of a list of jobs."""
    return compute_metrics(*columns(jobs), nodes)


def slow_metrics(jobs: list[Job], nodes: int, chosen: list[bool] | None = None) -> dict[str, Fraction | float]:
    """Compute all metrics of the chosen jobs from the formulas, one by one, in fractions."""
    every, m = jobs, len(jobs)
    chosen = [True] * m if chosen is None else chosen
    jobs = [job for job, keep in zip(jobs, chosen, strict=True) if keep]
    m = len(jobs)
    wait = [Fraction(s - a) for a, s, e, w in jobs]
    run = [Fraction(e - s) for a, s, e, w in jobs]
    resp = [t + length for t, length in zip(wait, run, strict=True)]
    width = [w for a, s, e, w in jobs]
    area = [w * length for w, length in zip(width, run, strict=True)]
    sld = [r / length for r, length in zip(resp, run, strict=True)]

    def mean(values: list[Fraction]) -> Fraction:
        return Fraction(sum(values)) / m

    def std(values: list[Fraction]) -> float:
        return math.sqrt(sum((value - mean(values)) ** 2 for value in values) / m)

    def weighted(values: list[Fraction], weights: list[Fraction] | list[int]) -> Fraction:
        return Fraction(sum(v * g for v, g in zip(values, weights, strict=True))) / sum(weights)

    def bounded(g: int) -> list[Fraction]:
        return [max(r, Fraction(g)) / max(length, Fraction(g)) for r, length in zip(resp, run, strict=True)]

    pp = [max(r / (w * max(length, 60 * S)), Fraction(1)) for r, length, w in zip(resp, run, width, strict=True)]
    first, last = min(a for a, *_ in every), max(e for _, _, e, _ in every)
    idle_with_queue, unmet = slow_idle(every, nodes)
    seen = [
        sum(other[1] > a for other in every[:row])
        for row, ((a, *_), keep) in enumerate(zip(every, chosen, strict=True))
        if keep
    ]
    met = [length for length in seen if length]
    final = jobs[-1]
    return {
        "jobs": m,
        "jobs_waited": sum(t > 0 for t in wait),
        "awt_ms": mean(wait),
        "wait_std_ms": std(wait),
        "wait_median_ms": quantile(wait, Fraction(1, 2)),
        "wait_p95_ms": quantile(wait, Fraction(19, 20)),
        "wait_max_ms": max(wait),
        "art_ms": mean(resp),
        "artww_ms": weighted(resp, width),
        "awrt_width_ms": weighted(resp, width),
        "awrt_area_ms": weighted(resp, area),
        "awwt_width_ms": weighted(wait, width),
        "awwt_area_ms": weighted(wait, area),
        "slowdown": mean(sld),
        "slowdown_std": std(sld),
        "sldww": weighted(sld, width),
        "sldwa": weighted(sld, area),
        "bounded_slowdown_10s": mean(bounded(10 * S)),
        "bounded_slowdown_10s_std": std(bounded(10 * S)),
        "bounded_slowdown_60s": mean(bounded(60 * S)),
        "pp_slowdown_60s": mean(pp),
        "max_stretch": max(bounded(10 * S)),
        "mean_run_ms": mean(run),
        "mean_width": Fraction(sum(width), m),
        "area_node_ms": sum(area),
        "makespan_ms": max(e for a, s, e, w in jobs),
        "span_ms": max(e for a, s, e, w in jobs) - min(a for a, s, e, w in jobs),
        "virtual_end_ms": final[0] + final[2] - final[1],
        "util": sum(area) / (nodes * (last - first)),
        "rho": sum(area) / (nodes * last),
        "loss_of_capacity": Fraction(idle_with_queue, nodes * (last - first)) if all(chosen) else math.nan,
        "kappa": Fraction(idle_with_queue, nodes * last) if all(chosen) else math.nan,
        "underutilization_node_ms": unmet if all(chosen) else math.nan,
        "underutilization_normalized": unmet / sum(area) if all(chosen) else math.nan,
        "throughput_per_h": Fraction(m * 3600 * S, last - first),
        "queued_submissions": len(met),
        "queue_length_seen": Fraction(sum(met), len(met)) if met else math.nan,
    }


def slow_idle(jobs: list[Job], nodes: int) -> tuple[int, int]:
    """Sum the idle node time with a queue, and the unmet demand, between all instants of change."""
    instants = sorted({instant for job in jobs for instant in job[:3]})
    idle_with_queue = unmet = 0
    for now, then in pairwise(instants):
        busy = sum(w for a, s, e, w in jobs if s <= now < e)
        waiting = [w for a, s, e, w in jobs if a <= now < s]
        if waiting:
            idle_with_queue += (nodes - busy) * (then - now)
        unmet += (min(nodes, busy + sum(waiting)) - busy) * (then - now)
    return idle_with_queue, unmet


def loss_by_events(jobs: list[Job], nodes: int) -> Fraction:
    """Compute the loss of capacity by Streit's eq. 3.7: over the 2m submissions and completions."""
    tau = sorted([a for a, *_ in jobs] + [e for _, _, e, _ in jobs])
    lost = 0
    for k in range(len(tau) - 1):
        f = nodes - sum(w for a, s, e, w in jobs if s <= tau[k] < e)
        delta = any(a <= tau[k] < s for a, s, e, w in jobs)
        lost += f * (tau[k + 1] - tau[k]) * delta
    return Fraction(lost, nodes * (max(e for _, _, e, _ in jobs) - min(a for a, *_ in jobs)))


def quantile(values: list[Fraction], share: Fraction) -> Fraction:
    """Return a quantile, interpolated linearly between the two values around it."""
    values = sorted(values)
    place = share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


@st.composite
def schedules(draw: st.DrawFn, *, timers: bool = True, unit: int = 2 * S) -> tuple[list[Job], int]:
    """Draw jobs, and place them first come first served as early as they fit, or later if timers are allowed."""
    nodes = draw(st.integers(1, 8))
    drawn = st.tuples(st.integers(0, 3), st.integers(1, nodes), st.integers(1, 20), st.integers(0, 5 if timers else 0))
    jobs: list[Job] = []
    submit = draw(st.integers(0, 3)) * unit
    for gap, width, run, delay in draw(st.lists(drawn, min_size=1, max_size=12)):
        submit += gap * unit
        candidates = sorted({submit + delay * unit, *(e for _, _, e, _ in jobs if e > submit + delay * unit)})
        start = next(begin for begin in candidates if fits(jobs, nodes, begin, begin + run * unit, width))
        jobs.append((submit, start, start + run * unit, width))
    return jobs, nodes


def fits(jobs: list[Job], nodes: int, start: int, end: int, width: int) -> bool:
    """Whether ``width`` nodes are free from start to end."""
    instants = {start} | {s for _, s, _, _ in jobs if start < s < end}
    return all(sum(w for _, s, e, w in jobs if s <= now < e) + width <= nodes for now in instants)


def assert_same(metrics: Metrics, expected: dict[str, Fraction | float]) -> None:
    """Compare all metrics, to twelve digits."""
    assert list(expected) == list(Metrics.__struct_fields__)
    for name, value in expected.items():
        assert getattr(metrics, name) == pytest.approx(float(value), rel=1e-12, nan_ok=True), name


@given(schedules())
def test_metrics_equal_their_formulas(drawn: tuple[list[Job], int]) -> None:
    """Every metric equals a plain loop over its formula, even if jobs start between events."""
    jobs, nodes = drawn
    assert_same(metrics_of(jobs, nodes), slow_metrics(jobs, nodes))


@given(schedules(), st.data())
def test_selections_share_the_span_of_the_whole_schedule(drawn: tuple[list[Job], int], data: st.DataObject) -> None:
    """A selection averages over its own jobs; queue, span and node time are those of the whole schedule."""
    jobs, nodes = drawn
    chosen = data.draw(st.lists(st.booleans(), min_size=len(jobs), max_size=len(jobs)))
    metrics = compute_metrics(*columns(jobs), nodes, select=chosen)
    if any(chosen) and not all(chosen):
        assert_same(metrics, slow_metrics(jobs, nodes, chosen))
    assert metrics.jobs == sum(chosen)
    assert math.isnan(metrics.loss_of_capacity)


@given(schedules(), st.integers(1, 5))
def test_idle_time_is_added_up_in_blocks(drawn: tuple[list[Job], int], rows: int) -> None:
    """At the borders of blocks no time is lost or counted twice."""
    jobs, nodes = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "_ROWS_AT_ONCE", rows)
        assert_same(metrics_of(jobs, nodes), slow_metrics(jobs, nodes))


@given(schedules(timers=False))
def test_loss_of_capacity_is_equation_3_7(drawn: tuple[list[Job], int]) -> None:
    """If jobs start only at submissions and completions, the integral is the sum over the 2m events."""
    jobs, nodes = drawn
    assert metrics_of(jobs, nodes).loss_of_capacity == pytest.approx(float(loss_by_events(jobs, nodes)), rel=1e-12)


@given(schedules(), st.data())
def test_metrics_do_not_depend_on_the_order_of_rows(drawn: tuple[list[Job], int], data: st.DataObject) -> None:
    """Jobs with equal submit times must keep their order; a selection follows the rows."""
    jobs, nodes = drawn
    jobs = [job for row, job in enumerate(jobs) if job[0] not in {other[0] for other in jobs[:row]}]
    shuffled = data.draw(st.permutations(jobs))
    assert_same(metrics_of(shuffled, nodes), msgspec.structs.asdict(metrics_of(jobs, nodes)))
    later = [job[0] > jobs[0][0] for job in shuffled]
    if any(later):
        metrics = compute_metrics(*columns(shuffled), nodes, select=later)
        assert_same(metrics, slow_metrics(jobs, nodes, [False] + [True] * (len(jobs) - 1)))


@given(schedules(), st.integers(0, 9))
def test_classes_are_selections(drawn: tuple[list[Job], int], border: int) -> None:
    """An empty class has no metrics."""
    jobs, nodes = drawn
    arrays = columns(jobs)
    parts = compute_by_class(*arrays, nodes, classes_by_width(arrays[3], narrow_up_to=border))
    assert list(parts) == ["narrow", "wide"]
    for name, rows in (("narrow", arrays[3] <= border), ("wide", arrays[3] > border)):
        selected = compute_metrics(*arrays, nodes, select=rows)
        assert_same(parts[name], msgspec.structs.asdict(selected))


@given(schedules())
def test_metrics_of_classes_add_up(drawn: tuple[list[Job], int]) -> None:
    """Jobs, area, throughput and utilisation of narrow and wide jobs add up to those of all jobs."""
    jobs, nodes = drawn
    arrays = columns(jobs)
    whole = compute_metrics(*arrays, nodes)
    parts = compute_by_class(*arrays, nodes, classes_by_width(arrays[3], narrow_up_to=2))
    for name in ("jobs", "jobs_waited", "area_node_ms", "throughput_per_h", "util", "rho", "queued_submissions"):
        total = sum(getattr(part, name) for part in parts.values() if part.jobs)
        assert total == pytest.approx(getattr(whole, name), rel=1e-12), name


def test_classes_follow_rows_in_any_order() -> None:
    """Classes follow rows that are not in order of submission."""
    submit, start, end, width = [9, 0, 5], [9, 0, 6], [10, 4, 8], [3, 1, 2]
    parts = compute_by_class(submit, start, end, width, 3, JobClasses(("a", "b", "none"), np.array([0, 1, 0])))
    assert [(name, part.jobs) for name, part in parts.items()] == [("a", 2), ("b", 1), ("none", 0)]
    assert (parts["a"].mean_width, parts["b"].mean_width) == (2.5, 1.0)


def test_classes_need_one_class_per_job() -> None:
    with pytest.raises(InputError, match="the class is int64 of shape"):
        compute_by_class([0], [0], [1], [1], 1, JobClasses(("a",), np.array([0, 0])))


def test_metrics_of_a_schedule_computed_by_hand() -> None:
    """Three jobs on four nodes, one of them backfilled."""
    jobs = [(0, 0, 10 * S, 3), (2 * S, 10 * S, 15 * S, 2), (4 * S, 4 * S, 7 * S, 1)]
    metrics = metrics_of(jobs, 4)
    expected = {
        "jobs": 3,
        "jobs_waited": 1,
        "awt_ms": 8000 / 3,
        "wait_max_ms": 8000,
        "wait_median_ms": 0,
        "art_ms": 26000 / 3,
        "artww_ms": 59000 / 6,
        "awrt_width_ms": 59000 / 6,
        "awrt_area_ms": 439000 / 43,
        "awwt_width_ms": 16000 / 6,
        "awwt_area_ms": 80000 / 43,
        "slowdown": 4.6 / 3,
        "sldwa": 59 / 43,
        "bounded_slowdown_10s": 1.1,
        "bounded_slowdown_60s": 1.0,
        "pp_slowdown_60s": 1.0,
        "max_stretch": 1.3,
        "mean_run_ms": 6000,
        "area_node_ms": 43000,
        "makespan_ms": 15000,
        "virtual_end_ms": 7000,
        "util": 43 / 60,
        "rho": 43 / 60,
        "loss_of_capacity": 5 / 60,
        "underutilization_node_ms": 5000,
        "underutilization_normalized": 5 / 43,
        "throughput_per_h": 720,
        "queued_submissions": 1,
        "queue_length_seen": 1.0,
    }
    assert {name: getattr(metrics, name) for name in expected} == pytest.approx(expected, rel=1e-12)


def test_slowdowns_of_the_thesis() -> None:
    """The examples of Streit's section 3.4: ten minutes of wait before run times of 0.5 s and 20 s."""
    jobs = [(0, 600 * S, 600 * S + 500, 1), (0, 600 * S, 620 * S, 1)]
    metrics = metrics_of(jobs, 2)
    assert metrics.slowdown == (1201 + 31) / 2
    assert metrics.sldwa == pytest.approx((600.5 + 620) / 20.5)
    assert metrics.max_stretch == pytest.approx(600.5 / 10)


def test_per_processor_slowdown_divides_by_the_width() -> None:
    """Ten nodes, a response time of 1200 s and a run time of 60 s give 1200 / (10 * 60); the minimum is 1."""
    assert metrics_of([(0, 1140 * S, 1200 * S, 10)], 10).pp_slowdown_60s == 2.0
    assert metrics_of([(0, 0, 1 * S, 10)], 10).pp_slowdown_60s == 1.0


def test_loss_of_capacity_and_kappa_have_different_denominators() -> None:
    """Streit divides by the time since the first submission, Zhang by the time since zero."""
    jobs = [(5 * S, 5 * S, 10 * S, 1), (5 * S, 10 * S, 15 * S, 2)]
    metrics = metrics_of(jobs, 2)
    assert (metrics.util, metrics.rho) == pytest.approx((15 / 20, 15 / 30))
    assert (metrics.loss_of_capacity, metrics.kappa) == pytest.approx((5 / 20, 5 / 30))
    assert (metrics.makespan_ms, metrics.span_ms) == (15 * S, 10 * S)


def test_artww_and_sldwa_differ_by_a_constant_factor() -> None:
    """Streit's eq. 3.8: the factor is the sum of widths over the sum of areas, for any schedule."""
    jobs = [(0, 3, 10, 3), (1, 20, 50, 2), (4, 11, 12, 1)]
    metrics = metrics_of(jobs, 6)
    assert metrics.sldwa / metrics.artww_ms == pytest.approx(6 / (21 + 60 + 1))


def test_metrics_without_jobs() -> None:
    """Counts are zero, and all other metrics are undefined, which JSON shows as null."""
    metrics = metrics_of([], 5)
    plain = metrics.to_dict()
    counts = {name: plain.pop(name) for name in ("jobs", "jobs_waited", "queued_submissions")}
    assert counts == {"jobs": 0, "jobs_waited": 0, "queued_submissions": 0}
    assert set(plain.values()) == {None}
    assert b'"awt_ms":null' in msgspec.json.encode(metrics.to_dict())


def test_metrics_of_one_job() -> None:
    """A job that does not wait has slowdown 1, no deviation, and meets no queue."""
    metrics = metrics_of([(7, 7, 9, 2)], 4)
    assert (metrics.sldwa, metrics.slowdown_std, metrics.util, metrics.loss_of_capacity) == (1.0, 0.0, 0.5, 0.0)
    assert metrics.queued_submissions == 0
    assert metrics.to_dict()["queue_length_seen"] is None


def test_largest_times_and_widths_do_not_overflow() -> None:
    """Ten million nodes for three thousand years do not overflow."""
    year = 10**14
    metrics = metrics_of([(0, 0, year, 10**7), (0, year, 2 * year, 10**7)], 10**7)
    assert metrics.area_node_ms == pytest.approx(2e21)
    assert (metrics.util, metrics.sldwa) == pytest.approx((1.0, 1.5))


@pytest.mark.parametrize(
    ("jobs", "problem"),
    [
        ([(0, 0, 1, 1), (5, 4, 6, 1)], "row 1 starts before its submission"),
        ([(0, 3, 3, 1)], "row 0 does not end after its start"),
        ([(-1, 0, 1, 1)], "before time zero"),
        ([(0, 0, 1, 0)], "width below 1"),
        ([(0, 0, 9, 3), (1, 8, 12, 2)], "5 nodes are busy at 8 ms; the site has 4"),
    ],
)
def test_invalid_schedules_are_refused(jobs: list[Job], problem: str) -> None:
    """Times in the wrong order and more nodes than exist are errors that name the job or the instant."""
    with pytest.raises(InputError, match=problem):
        metrics_of(jobs, 4)


def test_a_job_may_start_when_another_releases_its_nodes() -> None:
    assert metrics_of([(0, 0, 5, 4), (0, 5, 8, 4)], 4).util == 1.0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (([0], [0, 1], [1], [1], 4), "start_ms is int64 of shape"),
        (([0.5], [1], [2], [1], 4), "submit_ms is float64"),
        (([[0]], [[0]], [[1]], [[1]], 4), "submit_ms is int64 of shape"),
        ((["a"], [1], [2], [1], 4), "one whole number per job"),
        (([0], [0], [1], [1], 0), "nodes is 0"),
    ],
)
def test_arrays_of_wrong_shape_or_type_are_refused(arguments: tuple[object, ...], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        compute_metrics(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("select", [[1, 0], [True], [[True, False]]])
def test_selection_is_one_bool_per_job(select: object) -> None:
    """Row numbers and masks of another length would silently select the wrong jobs."""
    with pytest.raises(InputError, match="one bool per job"):
        compute_metrics([0, 0], [0, 0], [1, 1], [1, 1], 2, select=select)  # type: ignore[arg-type]


@given(schedules(), st.integers(1, 5) | st.just(1 << 19))
def test_steps_equal_counts_by_loops(drawn: tuple[list[Job], int], rows: int) -> None:
    """Busy nodes, waiting jobs and demand equal a count at each instant, in parts or as a whole."""
    jobs, _ = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "_ROWS_AT_ONCE", rows)
        steps = step_functions(*columns(jobs))
    assert steps.time_ms.tolist() == sorted({instant for job in jobs for instant in job[:3]})
    for row, now in enumerate(steps.time_ms.tolist()):
        assert steps.busy[row] == sum(w for a, s, e, w in jobs if s <= now < e)
        assert steps.waiting[row] == sum(a <= now < s for a, s, e, w in jobs)
        assert steps.demand[row] == sum(w for a, s, e, w in jobs if a <= now < e)


def test_queue_seen_counts_earlier_rows_after_the_pass() -> None:
    """A job meets the earlier rows that start after the instant of its submission."""
    submit = np.array([0, 1, 1, 1, 2, 9])
    start = np.array([0, 5, 1, 7, 2, 9])
    assert queue_length_seen(submit, start).tolist() == [0, 0, 1, 1, 2, 0]


def test_borders_belong_to_the_lower_class() -> None:
    """32 nodes are narrow, and the job of median length is short."""
    assert classes_by_width([1, 32, 33]).names == ("narrow", "wide")
    assert classes_by_width([1, 32, 33]).of_job.tolist() == [0, 0, 1]
    assert classes_by_width([1, 32, 33], narrow_up_to=1).of_job.tolist() == [0, 1, 1]
    assert classes_by_length([5, 1, 9]).names == ("short", "long")
    assert classes_by_length([5, 1, 9]).of_job.tolist() == [0, 0, 1]
    assert classes_by_length([5, 1, 9], short_up_to_ms=4).of_job.tolist() == [1, 0, 1]
    assert classes_by_length(np.zeros(0, np.int64)).of_job.tolist() == []


@given(
    st.lists(st.integers(0, 10**11), min_size=1, max_size=30),
    st.integers(-(10**9), 3 * 10**9),
    st.sampled_from(["Europe/Stockholm", "US/Eastern", "Asia/Kolkata", "Pacific/Apia", None]),
)
def test_months_follow_the_local_calendar(submit: list[int], start_unix_s: int, timezone: str | None) -> None:
    """Months follow the local time of the workload's zone, and every month has a job."""
    months = classes_by_month(submit, start_unix_s, timezone)
    assert list(months.names) == sorted(set(months.names))
    assert set(months.of_job.tolist()) == set(range(len(months.names)))
    for row, submit_ms in enumerate(submit):
        local = datetime.datetime.fromtimestamp(start_unix_s + submit_ms // S, ZoneInfo(timezone or "UTC"))
        assert months.names[months.of_job[row]] == f"{local:%Y-%m}"


def test_month_ends_at_local_midnight() -> None:
    """In Stockholm the first of October 1996 begins at 22:00 UTC on 30 September."""
    edge = int(datetime.datetime(1996, 9, 30, 22, tzinfo=datetime.UTC).timestamp())
    months = classes_by_month([0, 999, 1000], edge - 1, "Europe/Stockholm")
    assert months.names == ("1996-09", "1996-10")
    assert months.of_job.tolist() == [0, 0, 1]


def test_no_jobs_have_no_months() -> None:
    assert classes_by_month([], 0).names == ()


@pytest.mark.parametrize(
    ("start_unix_s", "timezone", "problem"),
    [
        (None, "UTC", "need a date for time zero"),
        (0, "Middle/Earth", "'Middle/Earth' is unknown"),
        (0, "../etc/passwd", "is unknown"),
        (10**15, "UTC", "beyond the calendar"),
    ],
)
def test_months_without_a_calendar_are_refused(start_unix_s: int | None, timezone: str, problem: str) -> None:
    """A missing start date, an unknown zone, and dates beyond the calendar are refused with the reason."""
    with pytest.raises(InputError, match=problem):
        classes_by_month([0, 5], start_unix_s, timezone)
