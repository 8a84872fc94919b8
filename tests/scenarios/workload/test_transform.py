"""Shrinking, stretching, cutting and splitting workloads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.workload.needs import with_load
from gridweave.scenarios.workload.table import MAX_TIME_MS, MAX_WIDTH, Workload
from gridweave.scenarios.workload.transform import cut, shrink, split, split_stride, stretch


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw a small workload with tied submit times, killed jobs and optional columns."""
    ids = draw(st.lists(st.integers(0, 99), min_size=1, max_size=10, unique=True))
    n = len(ids)

    def column(low: int, high: int) -> Any:
        return np.array(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))

    submit, estimate = np.sort(column(0, 5000)), column(1, 9000)
    order = np.lexsort((ids, submit))
    run = np.minimum(column(1, 9000), estimate)
    return Workload(
        job_id=np.array(ids)[order],
        submit_ms=submit[order],
        width=column(1, 40),
        estimate_ms=estimate,
        run_ms=run,
        overran=(run == estimate) & (column(0, 1) == 1),
        columns={"user": column(1, 3), "weight": column(1, 3)},
        nodes=64,
        start_unix_s=draw(st.none() | st.just(843_480_031)),
        timezone="Europe/Stockholm",
    )


def rows(workload: Workload, *names: str) -> dict[int, tuple[object, ...]]:
    """Return the named columns of each job, by id."""
    columns = [workload.columns[name] if name in workload.columns else getattr(workload, name) for name in names]
    return {
        job: tuple(values)
        for job, *values in zip(workload.job_id.tolist(), *map(np.ndarray.tolist, columns), strict=True)
    }


FACTORS = st.floats(0.01, 20)


@given(workloads(), FACTORS)
def test_shrink_changes_only_submit_times(workload: Workload, factor: float) -> None:
    shrunk = shrink(workload, factor)
    before, after = rows(workload, "submit_ms"), rows(shrunk, "submit_ms")
    assert sorted(before) == sorted(after)
    assert all(abs(after[job][0] - before[job][0] * factor) <= 0.5 + 1e-6 for job in before)
    names = ("width", "estimate_ms", "run_ms", "overran", "user", "weight")
    assert rows(workload, *names) == rows(shrunk, *names)
    assert (shrunk.nodes, shrunk.start_unix_s, shrunk.timezone) == (64, workload.start_unix_s, "Europe/Stockholm")


def test_shrink_sorts_tied_jobs_by_id() -> None:
    one = np.array([1, 1])
    workload = Workload(np.array([7, 3]), np.array([10, 11]), one, one, one, columns={"user": np.array([70, 30])})
    shrunk = shrink(workload, 0.1)
    assert shrunk.submit_ms.tolist() == [1, 1]
    assert shrunk.job_id.tolist() == [3, 7]
    assert shrunk.columns["user"].tolist() == [30, 70]


@given(workloads(), FACTORS)
def test_stretch_changes_only_run_times_and_estimates(workload: Workload, factor: float) -> None:
    """Both stay above zero, and the run time stays within the estimate."""
    longer = stretch(workload, factor)
    for name in ("run_ms", "estimate_ms"):
        expected = np.maximum(np.rint(getattr(workload, name) * factor), 1)
        np.testing.assert_array_equal(getattr(longer, name), expected)
    names = ("submit_ms", "width", "overran", "user", "weight")
    assert rows(workload, *names) == rows(longer, *names)


@pytest.mark.parametrize("change", [shrink, stretch])
@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf, -math.inf, 1e300])
def test_invalid_factors_are_refused(change: Any, factor: float) -> None:
    one = np.array([1])
    with pytest.raises(OptionError, match=r"^factor: "):
        change(Workload(one, one, one, one, one), factor)


def test_halves_are_rounded_to_the_even_millisecond() -> None:
    times = np.array([1, 3, 5])
    ids = np.array([1, 2, 3])
    workload = Workload(ids, times, ids, times, times)
    assert shrink(workload, 0.5).submit_ms.tolist() == [0, 2, 2]
    assert stretch(workload, 0.5).run_ms.tolist() == [1, 2, 2]


# -- cut


@given(workloads(), st.data())
def test_cut_by_number_includes_both_limits(workload: Workload, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, len(workload)))
    last = data.draw(st.integers(first, len(workload) + 2))
    piece = cut(workload, first=first, last=last)
    assert piece.job_id.tolist() == workload.job_id[first - 1 : last].tolist()
    names = ("width", "estimate_ms", "run_ms", "overran", "user", "weight")
    whole = rows(workload, *names)
    assert rows(piece, *names) == {job: whole[job] for job in piece.job_id.tolist()}


@given(workloads(), st.data())
def test_cut_keeps_the_date_of_every_job(workload: Workload, data: st.DataObject) -> None:
    """Submit times begin within the first second."""
    piece = cut(workload, first=data.draw(st.integers(1, len(workload))))
    assert 0 <= piece.submit_ms[0] < 1000
    shift = set((workload.submit_ms[-len(piece) :] - piece.submit_ms).tolist())
    assert len(shift) == 1
    if workload.start_unix_s is None:
        assert piece.start_unix_s is None
    else:
        assert piece.start_unix_s is not None
        assert shift == {1000 * (piece.start_unix_s - workload.start_unix_s)}


@given(workloads(), st.integers(0, 5000), st.integers(1, 5000))
def test_cut_by_time_excludes_the_end(workload: Workload, start: int, length: int) -> None:
    inside = (workload.submit_ms >= start) & (workload.submit_ms < start + length)
    if inside.any():
        piece = cut(workload, start_ms=start, end_ms=start + length)
        assert piece.job_id.tolist() == workload.job_id[inside].tolist()
    else:
        with pytest.raises(OptionError, match="no job is submitted"):
            cut(workload, start_ms=start, end_ms=start + length)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"first": 0}, "^first: 0 is not a job number"),
        ({"first": 4}, "^first: 4 is beyond the last job, which is number 3"),
        ({"first": 2, "last": 1}, "^last: 1 is before the first job"),
        ({"last": 0}, "^last: 0 is before the first job"),
        ({"first": 1, "start_ms": 0}, "cannot be given together"),
        ({"start_ms": 5, "end_ms": 5}, "^end_ms: 0.005 s is not after"),
        ({"start_ms": 31}, "^start_ms: no job"),
        ({"start_ms": 10**40}, "^start_ms: no job"),
        ({"end_ms": 5}, "^start_ms: no job"),
    ],
)
def test_contradictory_and_empty_cuts_are_refused(limits: dict[str, int], problem: str) -> None:
    ids = np.array([1, 2, 3])
    with pytest.raises(OptionError, match=problem):
        cut(Workload(ids, ids * 10, ids, ids, ids), **limits)


def test_cut_without_effective_limits_keeps_all_jobs() -> None:
    ids = np.array([1, 2, 3])
    workload = Workload(ids, ids * 10, ids, ids, ids)
    for limits in ({}, {"end_ms": 10**40}, {"start_ms": -5}, {"last": 10**40}):
        assert cut(workload, **limits).job_id.tolist() == [1, 2, 3]


# -- split


@given(workloads(), st.integers(1, 45))
def test_split_keeps_the_area_and_the_original_id(workload: Workload, max_width: int) -> None:
    """All parts but the last have the maximum width."""
    parts = split(workload, max_width)
    stride = split_stride(workload, max_width)
    assert int(parts.width.max()) <= max_width
    origin, number = parts.job_id // stride, parts.job_id % stride
    names = ("submit_ms", "estimate_ms", "run_ms", "overran", "user", "weight")
    whole, part = rows(workload, *names), rows(parts, *names)
    assert all(part[job] == whole[source] for job, source in zip(parts.job_id.tolist(), origin.tolist(), strict=True))
    for job, width in zip(workload.job_id.tolist(), workload.width.tolist(), strict=True):
        mine = origin == job
        assert number[mine].tolist() == list(range(math.ceil(width / max_width)))
        assert int(parts.width[mine].sum()) == width
        assert (parts.width[mine][:-1] == max_width).all()
    if int(workload.width.max()) <= max_width:
        assert parts is workload


@pytest.mark.parametrize(("width", "stride"), [(8, 1), (9, 10), (80, 10), (81, 100), (801, 1000)])
def test_the_stride_is_the_smallest_sufficient_power_of_ten(width: int, stride: int) -> None:
    one = np.array([1])
    workload = Workload(np.array([12]), one, np.array([width]), one, one)
    assert split_stride(workload, 8) == stride
    assert split(workload, 8).job_id[-1] == 12 * stride + math.ceil(width / 8) - 1 if stride > 1 else 12


def test_invalid_splits_are_refused() -> None:
    one = np.array([1])
    wide = Workload(np.array([1, 2]), np.array([1, 1]), np.full(2, MAX_WIDTH), np.array([1, 1]), np.array([1, 1]))
    with pytest.raises(OptionError, match=r"^max_width: 0 is not a width"):
        split(wide, 0)
    with pytest.raises(OptionError, match=r"^max_width: 1 makes 20000000 jobs"):
        split(wide, 1)
    with pytest.raises(InputError, match="beyond 64 bits"):
        split(Workload(np.array([2**62]), one, np.array([9]), one, one), 8)
    assert split(wide, 10**30) is wide


def test_each_job_can_have_its_own_maximum_width() -> None:
    """All ids use the stride of the job with the most parts."""
    workload = Workload([1, 2, 3], [5, 5, 9], [7, 3, 12], [9] * 3, [9] * 3, columns={"cancel_ms": [-1, 8, -1]})
    parts = split(workload, np.array([4, 4, 1]))
    assert parts.width.tolist() == [4, 3, 3] + [1] * 12
    assert parts.job_id.tolist() == [100, 101, 200, *range(300, 312)]
    assert parts.columns["cancel_ms"].tolist() == [-1, -1, 8] + [-1] * 12


def test_a_load_moves_cancel_times_with_submit_times() -> None:
    """Jobs that become simultaneous are ordered by id."""
    workload = Workload(
        [2, 1, 3], [500, 501, 1500], [1] * 3, [100] * 3, [100] * 3, columns={"cancel_ms": [-1, 600, -1]}
    )
    loaded = with_load(workload, 1, 0.75)  # it was 0.3
    assert loaded.job_id.tolist() == [1, 2, 3]
    assert loaded.submit_ms.tolist() == [0, 0, 400]
    assert loaded.columns["cancel_ms"].tolist() == [99, -1, -1]
    with pytest.raises(OptionError, match=r"^load: is 1e-20, so submit times would exceed"):
        with_load(workload, 1, 1e-20)


def test_the_maximum_time_can_be_kept_but_not_exceeded() -> None:
    one = np.array([1])
    workload = Workload(one, np.array([MAX_TIME_MS]), one, one, one)
    assert shrink(workload, 1.0).submit_ms.tolist() == [MAX_TIME_MS]
    with pytest.raises(OptionError, match="give a smaller factor"):
        shrink(workload, 1.01)
