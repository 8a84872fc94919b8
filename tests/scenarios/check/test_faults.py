"""Faults of schedules: each kind is found and described, and correct schedules have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gridweave.errors import InputError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.check.faults import faults, match
from gridweave.scenarios.check.reading import NEVER, Schedule
from gridweave.scenarios.workload.table import Workload
from support.builders import random_jobs, to_workload

NODES = 4
JOBS = Workload(
    job_id=[7, 8, 9],
    submit_ms=[0, 1_000, 2_000],
    width=[2, 4, 2],
    estimate_ms=[60_000, 50_000, 90_000],
    run_ms=[50_000, 50_000, 80_000],
)


def right() -> Schedule:
    """Return a schedule of `JOBS` without faults that lists the nodes."""
    start_ms = np.array([0, 82_000, 2_000])
    nodes = [frozenset({0, 1}), frozenset(range(4)), frozenset({2, 3})]
    return Schedule("x", "test", JOBS.job_id, JOBS.submit_ms, JOBS.width, start_ms, start_ms + JOBS.run_ms, nodes)


def with_value(name: str, line: int, value: int) -> Callable[[Schedule], Schedule]:
    """Return a function that changes one number of a schedule."""

    def change(schedule: Schedule) -> Schedule:
        values = getattr(schedule, name).copy()
        values[line] = value
        return replace(schedule, **{name: values})

    return change


def never(line: int) -> Callable[[Schedule], Schedule]:
    """Return a function that removes a job's start and end."""
    return lambda schedule: with_value("end_ms", line, NEVER)(with_value("start_ms", line, NEVER)(schedule))


FAULTS: dict[str, tuple[Callable[[Schedule], Schedule], str]] = {
    "listed again": (with_value("job_id", 2, 7), "job 7 is listed again"),
    "not in the trace": (with_value("job_id", 2, 5), "job 5 is not in the trace"),
    "never ran": (never(1), "job 8 never ran"),
    "another width": (with_value("width", 0, 1), "job 7 has 1 nodes; the trace says 2"),
    "on another number of nodes": (with_value("width", 2, 1), "job 9 has 1 nodes but runs on 2"),
    "submitted at another time": (
        with_value("submit_ms", 2, 2_500),
        "job 9 is submitted at 2.5 s; the trace says 2 s",
    ),
    "ran early": (with_value("start_ms", 2, 1_000), "job 9 starts at 1 s, 1 s before it is submitted"),
    "ran too long": (with_value("end_ms", 0, 55_000), "job 7 runs for 55 s, 5 s longer than it should"),
    "ran too short": (with_value("end_ms", 1, 130_000), "job 8 runs for 48 s, 2 s shorter than it should"),
    "machine over-used": (with_value("start_ms", 1, 81_000), "6 nodes are in use from 81 s; the machine has 4"),
    "unknown node": (
        lambda schedule: replace(schedule, nodes=[frozenset({0, 4}), *list(schedule.nodes or ())[1:]]),
        "job 7 runs on node 4; the machine has nodes 0 to 3",
    ),
    "node of another job": (
        with_value("start_ms", 1, 81_000),
        "job 8 starts at 81 s on node 2, which job 9 has until 82 s",
    ),
}


def test_a_correct_schedule_has_no_fault() -> None:
    """Simulated schedules and schedules with a shifted clock have none either."""
    assert faults(match(right(), JOBS), NODES) == []
    schedule = right()
    moved = {name: getattr(schedule, name) + 1_000_000 for name in ("submit_ms", "start_ms", "end_ms")}
    matched = match(replace(schedule, **moved), JOBS)
    assert matched.shift_ms == -1_000_000
    assert faults(matched, NODES) == []
    workload = to_workload(random_jobs(np.random.default_rng(3), 300, nodes=16, load=0.9))
    result = simulate(workload, 16)
    columns = (workload.job_id, workload.submit_ms, workload.width, result.start_ms, result.end_ms)
    assert faults(match(Schedule("x", "test", *columns), workload), 16) == []


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_is_described(kind: str) -> None:
    """The report has the first fault of the kind, with its numbers."""
    change, said = FAULTS[kind]
    found = {fault.kind: fault for fault in faults(match(change(right()), JOBS), NODES)}
    assert (found[kind].count, found[kind].first) == (1, said)


def test_faults_are_counted() -> None:
    """All faults are counted, the first is described, and times may differ by the tolerance."""
    schedule = right()
    late = replace(schedule, end_ms=schedule.end_ms + np.array([500, 900, 0]))
    [fault] = faults(match(late, JOBS), NODES)
    assert (fault.kind, fault.count) == ("ran too long", 2)
    [fault] = faults(match(late, JOBS), NODES, tolerance_ms=500)
    assert (fault.count, fault.first) == (1, "job 8 runs for 50.9 s, 0.9 s longer than it should")
    assert faults(match(late, JOBS), NODES, tolerance_ms=900) == []


def test_each_span_of_over_use_counts_once() -> None:
    """Ends precede starts at one instant, and jobs that start within a span do not add to the count."""
    jobs = Workload(job_id=range(6), submit_ms=[0] * 6, width=[2] * 6, estimate_ms=[10] * 6, run_ms=[10] * 6)
    start_ms = np.array([0, 5, 5, 10, 30, 30])
    schedule = Schedule("x", "test", jobs.job_id, jobs.submit_ms, jobs.width, start_ms, start_ms + 10)
    [fault] = faults(match(schedule, jobs), 3)
    assert (fault.count, fault.first) == (2, "6 nodes are in use from 0.005 s; the machine has 3")


def test_the_latest_end_on_a_node_counts() -> None:
    """A short job on another job's node does not hide that the next job starts there too."""
    jobs = Workload(job_id=range(3), submit_ms=[0] * 3, width=[1] * 3, estimate_ms=[100] * 3, run_ms=[100, 10, 10])
    start_ms = np.array([0, 10, 50])
    columns = (jobs.job_id, jobs.submit_ms, jobs.width, start_ms, start_ms + jobs.run_ms)
    [fault] = faults(match(Schedule("x", "test", *columns, [frozenset({0})] * 3), jobs), 3)
    assert (fault.kind, fault.count) == ("node of another job", 2)


def test_cancelled_jobs_need_not_run() -> None:
    """A cancelled job may be missing, and must not start from its cancellation on."""
    jobs = JOBS.replace(columns={"cancel_ms": [-1, 40_000, -1]})
    assert faults(match(never(1)(right()), jobs), NODES) == []
    [fault] = faults(match(right(), jobs), NODES)
    assert (fault.kind, fault.first) == ("ran although cancelled", "job 8 starts at 82 s; it was cancelled at 40 s")


def test_a_schedule_of_another_trace_is_refused() -> None:
    with pytest.raises(InputError, match="x: has no job of workload; give the trace that was scheduled"):
        match(replace(right(), job_id=np.array([1, 2, 3])), JOBS)
    with pytest.raises(InputError, match="x: has no job of workload"):
        match(right(), JOBS.take(np.zeros(0, np.int64)))
