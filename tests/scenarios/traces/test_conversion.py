"""The conversion rules, one by one, and all together against a plain implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import TraceError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.traces.convert import (
    DROP_REASONS,
    ConversionReport,
    Records,
    convert,
    known_zone,
    local_datetime,
)
from gridweave.scenarios.traces.load import load_workload, save_workload
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.workload.transform import cut, shrink

NODES = 8
GOOD = {"job": 1, "submit": 0.0, "run": 10.0, "estimate": 20.0, "width": 2, "requested": -1}


def converted(*jobs: dict[str, Any], nodes: int = NODES) -> tuple[Workload, ConversionReport]:
    """Convert records that differ from a valid one in the given values."""
    rows = [GOOD | job for job in jobs]

    def column(name: str, kind: type) -> Any:
        return np.array([row[name] for row in rows], kind)

    records = Records(
        job_id=column("job", np.int64),
        submit_s=column("submit", np.float64),
        run_s=column("run", np.float64),
        estimate_s=column("estimate", np.float64),
        width=column("width", np.int64),
        requested_width=column("requested", np.int64),
        columns={"user": column("job", np.int64) * 10},
    )
    return convert("some/trace.swf.gz", records, nodes=nodes)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"width": 0}, "width_not_positive"),
        ({"width": 0, "requested": 4}, "width_not_positive"),
        ({"width": -1}, "width_not_positive"),
        ({"width": -2, "requested": 4}, "width_not_positive"),
        ({"width": -1, "requested": 0}, "width_not_positive"),
        ({"width": NODES + 1}, "wider_than_machine"),
        ({"width": -1, "requested": NODES + 1}, "wider_than_machine"),
        ({"run": 0}, "zero_run_time"),
        ({"run": 0.0004}, "zero_run_time"),
        ({"run": -1}, "negative_run_time"),
        ({"run": -1, "estimate": -1}, "negative_run_time"),
        ({"submit": -1}, "negative_submit_time"),
        ({"estimate": -2}, "negative_estimate"),
        ({"job": 100}, "duplicate_job_id"),
    ],
)
def test_a_dropped_record_counts_under_exactly_one_reason(job: dict[str, Any], reason: str) -> None:
    workload, report = converted({"job": 100, "submit": 5.0}, {"submit": 5.0} | job, {"job": 3, "submit": 6.0})
    assert workload.job_id.tolist() == [100, 3]
    assert report.dropped == dict.fromkeys(DROP_REASONS, 0) | {reason: 1}
    assert (report.records, report.kept) == (3, 2)
    assert DROP_REASONS[reason] in str(report)


def test_requested_width_replaces_a_missing_allocated_width() -> None:
    workload, report = converted({"width": -1, "requested": 5}, {"job": 2, "width": 3, "requested": 7})
    assert workload.width.tolist() == [5, 3]
    assert report.widths_filled == 1


@pytest.mark.parametrize("estimate", [-1, 0, 0.0004])
def test_a_missing_estimate_is_replaced_by_the_run_time(estimate: float) -> None:
    """An estimate is missing if it is -1, or 0 after rounding. The job is not marked as killed."""
    workload, report = converted({"estimate": estimate})
    assert workload.estimate_ms.tolist() == [10_000]
    assert report.estimates_filled == 1
    assert report.cut == 0
    assert not workload.overran.any()


def test_the_run_time_is_cut_at_the_estimate() -> None:
    """An equal run time is neither cut nor marked."""
    workload, report = converted({"run": 30}, {"job": 2, "run": 20}, {"job": 3})
    assert workload.run_ms.tolist() == [20_000, 20_000, 10_000]
    assert workload.overran.tolist() == [True, False, False]
    assert report.cut == 1


def test_simultaneous_jobs_are_sorted_by_id() -> None:
    """The report does not count this as reordering."""
    workload, report = converted({"job": 9}, {"job": 2}, {"job": 5})
    assert workload.job_id.tolist() == [2, 5, 9]
    assert workload.columns["user"].tolist() == [20, 50, 90]
    assert (report.kept, report.reordered) == (3, 0)


def test_jobs_that_are_not_listed_by_submit_time_are_sorted_and_counted() -> None:
    late = {"job": 2, "submit": 1_000_000, "run": 7}
    workload, report = converted({"job": 1}, late, *({"job": 3 + i, "submit": 10 * (i + 1)} for i in range(3)))
    assert workload.job_id.tolist() == [1, 3, 4, 5, 2]
    assert workload.submit_ms.tolist() == [0, 10_000, 20_000, 30_000, 1_000_000_000]
    assert workload.run_ms.tolist() == [10_000, 10_000, 10_000, 10_000, 7_000]
    assert workload.columns["user"].tolist() == [10, 30, 40, 50, 20]
    assert (report.kept, report.reordered) == (5, 3)
    assert "changed 3: listed after a job submitted later; the trace was sorted by submit time" in str(report)


def test_dropped_records_do_not_count_as_reordering() -> None:
    workload, report = converted({"job": 1, "submit": 10}, {"job": 2, "submit": 99, "run": 0}, {"job": 3, "submit": 11})
    assert workload.job_id.tolist() == [1, 3]
    assert report.reordered == 0


def test_a_dropped_record_does_not_claim_its_job_id() -> None:
    """The first valid record with an id is kept, and later ones are dropped."""
    workload, report = converted(
        {"job": 1, "submit": 10}, {"job": 2, "run": 0}, {"job": 2, "submit": 12}, {"job": 2, "submit": 5}
    )
    assert workload.job_id.tolist() == [1, 2]
    assert workload.submit_ms.tolist() == [10_000, 12_000]
    assert (report.reordered, report.dropped["duplicate_job_id"]) == (0, 1)


@given(st.permutations(range(6)))
def test_the_order_of_the_lines_does_not_matter(order: list[int]) -> None:
    jobs = [{"job": job, "submit": 5.0 * (job // 2), "width": 1 + job % 3} for job in range(6)]
    sorted_jobs, _ = converted(*jobs)
    shuffled, report = converted(*(jobs[job] for job in order))
    assert report.kept == 6
    for name in ("job_id", "submit_ms", "width"):
        np.testing.assert_array_equal(getattr(shuffled, name), getattr(sorted_jobs, name))


def test_no_job_left_is_an_error_with_the_reasons() -> None:
    with pytest.raises(TraceError, match="no job is left of 2 records: 1 wider than the machine, 1 zero run time"):
        converted({"width": 9}, {"run": 0})


def test_the_report_has_a_line_per_kind_of_change() -> None:
    """Its dictionary includes all counts."""
    _, report = converted({"run": 30}, {"job": 2, "width": 99}, {"job": 3, "estimate": -1}, nodes=16)
    assert report.lines() == [
        "trace: 2 of 3 records kept, on 16 nodes",
        "  dropped 1: wider than the machine",
        "  changed 1: run time cut at the estimate",
        "  changed 1: estimate missing, run time used",
    ]
    assert report.to_dict() == {
        "name": "trace",
        "nodes": 16,
        "records": 3,
        "kept": 2,
        "dropped": dict.fromkeys(DROP_REASONS, 0) | {"wider_than_machine": 1},
        "cut": 1,
        "estimates_filled": 1,
        "widths_filled": 0,
        "cancelled": 0,
        "reordered": 0,
        "left_out": {},
        "rounded": 0,
    }


SMALL = st.fixed_dictionaries(
    {
        "job": st.integers(0, 6),
        "submit": st.integers(-1, 6).map(float),
        "run": st.integers(-1, 4).map(float),
        "estimate": st.integers(-2, 4).map(float),
        "width": st.integers(-2, NODES + 1),
        "requested": st.integers(-1, NODES + 1),
    }
)


def converted_one_by_one(jobs: list[dict[str, Any]]) -> list[tuple[int, int, int, int, int, bool]]:
    """Convert records one by one, following the rules literally."""
    taken: list[tuple[int, int, int, int, int, bool]] = []
    for job in jobs:
        width = job["requested"] if job["width"] == -1 else job["width"]
        estimate = job["run"] if job["estimate"] in (-1, 0) else job["estimate"]
        good = 0 < width <= NODES and job["run"] > 0 and job["submit"] >= 0 and estimate > 0
        if good and job["job"] not in {one[0] for one in taken}:
            run = min(job["run"], estimate)
            times = (int(1000 * job["submit"]), int(1000 * estimate), int(1000 * run))
            taken.append((job["job"], times[0], width, times[1], times[2], job["run"] > estimate))
    return sorted(taken, key=lambda one: (one[1], one[0]))


@given(st.lists(SMALL, min_size=1, max_size=12))
def test_conversion_equals_a_loop_over_the_rules(jobs: list[dict[str, Any]]) -> None:
    """Every record is accounted for."""
    expected = converted_one_by_one(jobs)
    if not expected:
        with pytest.raises(TraceError, match="no job is left"):
            converted(*jobs)
        return
    workload, report = converted(*jobs)
    columns = (
        workload.job_id,
        workload.submit_ms,
        workload.width,
        workload.estimate_ms,
        workload.run_ms,
        workload.overran,
    )
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert report.kept + sum(report.dropped.values()) == report.records == len(jobs)
    assert report.cut == workload.overran.sum()


@pytest.mark.parametrize(
    ("name", "offset_s", "zone"),
    [
        ("Europe/Stockholm", None, "Europe/Stockholm"),
        (" UTC ", 3600, "UTC"),
        (None, 0, "Etc/GMT+0"),
        ("no such zone", -18_000, "Etc/GMT+5"),
        ("x\0", None, None),
        ("", None, None),
        (None, 20_700, None),
    ],
)
def test_time_zones_come_from_names_or_whole_hour_offsets(
    name: str | None, offset_s: int | None, zone: str | None
) -> None:
    assert known_zone(name, offset_s) == zone


def test_local_dates_use_the_zone_or_utc() -> None:
    """There is none beyond the calendar."""
    summer = local_datetime(843_480_031, "Europe/Stockholm")
    assert f"{summer:%F %T %Z}" == "1996-09-23 14:00:31 CEST"
    assert f"{local_datetime(843_480_031, 'Atlantis'):%F %T %Z}" == "1996-09-23 12:00:31 UTC"
    assert local_datetime(10**15, None) is None


CANCELLED = """\
; MaxProcs: 8
1 0 -1 50 4 -1 -1 4 60 -1 1 -1 -1 -1 -1 -1 -1 -1
2 10 20 -1 -1 -1 -1 3 90 -1 5 -1 -1 -1 -1 -1 -1 -1
3 20 5 0 -1 -1 -1 2 30 -1 5 -1 -1 -1 -1 -1 -1 -1
4 30 -1 -1 -1 -1 -1 2 30 -1 5 -1 -1 -1 -1 -1 -1 -1
5 40 7 -1 -1 -1 -1 2 -1 -1 5 -1 -1 -1 -1 -1 -1 -1
6 50 9 15 2 -1 -1 2 30 -1 5 -1 -1 -1 -1 -1 -1 -1
"""


def test_cancelled_jobs_are_kept_on_request(tmp_path: Path) -> None:
    """They need a wait time and an estimate, and they are written as they are read."""
    path = tmp_path / "trace.swf"
    path.write_text(CANCELLED)
    assert load_workload(path)[0].job_id.tolist() == [1, 6]
    assert "cancel_ms" not in load_workload(path)[0].columns
    workload, report = load_workload(path, cancelled=True)
    assert workload.job_id.tolist() == [1, 2, 3, 6]
    assert workload.columns["cancel_ms"].tolist() == [-1, 30_000, 25_000, -1]
    assert workload.run_ms.tolist() == [50_000, 90_000, 30_000, 15_000]
    assert (report.cancelled, report.dropped["negative_run_time"]) == (2, 2)
    save_workload(workload, tmp_path / "again.swf")
    again, _ = load_workload(tmp_path / "again.swf", cancelled=True)
    for name in ("job_id", "submit_ms", "width", "estimate_ms", "run_ms"):
        assert getattr(again, name).tolist() == getattr(workload, name).tolist()
    assert again.columns["cancel_ms"].tolist() == workload.columns["cancel_ms"].tolist()


def test_cancellations_move_with_the_submission(tmp_path: Path) -> None:
    path = tmp_path / "trace.swf"
    path.write_text(CANCELLED)
    workload, _ = load_workload(path, cancelled=True)
    assert shrink(workload, 0.5).columns["cancel_ms"].tolist() == [-1, 25_000, 15_000, -1]
    assert cut(workload, first=2).columns["cancel_ms"].tolist() == [20_000, 15_000, -1]


def test_a_cancelled_job_leaves_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "trace.swf"
    path.write_text(CANCELLED)
    result = simulate(load_workload(path, cancelled=True)[0], 4)
    assert result.cancelled.tolist() == [False, True, True, False]
    assert result.start_ms.tolist() == [0, -1, -1, 50_000]
