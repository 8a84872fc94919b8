"""Find faults in any schedule: overused nodes, and jobs that ran too early, too long or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.check.reading import NEVER, Schedule
from gridweave.scenarios.traces.text import seconds_text
from gridweave.scenarios.workload.table import BoolArray, IntArray, Workload


class Fault(msgspec.Struct, frozen=True):
    """A kind of fault.

    Attributes
    ----------
    kind : str
    count : int
        Number of jobs or time spans with this fault; at least 1.
    first : str
        A sentence that describes the first occurrence.
    """

    kind: str
    count: int
    first: str


@dataclass(frozen=True, eq=False)
class Matched:
    """A schedule matched with its workload, on the workload's clock.

    Parameters
    ----------
    schedule : Schedule
        The schedule with shifted times.
    workload : Workload
    shift_ms : int
        The time shift, chosen so that the first common job has the same submit time in both.
    row : numpy.ndarray of int64, shape (lines,)
        The workload's row for each line of the schedule; -1 if the workload lacks the job.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        Start and end of each job of the workload, from its first line in the schedule; `NEVER` if it did not run.
    """

    schedule: Schedule
    workload: Workload
    shift_ms: int
    row: IntArray
    start_ms: IntArray
    end_ms: IntArray


def match(schedule: Schedule, workload: Workload) -> Matched:
    """Match a schedule's lines with a workload's jobs.

    Raises
    ------
    InputError
        If the schedule and the workload have no job in common.
    """
    indices = np.flatnonzero(np.isin(schedule.job_id, workload.job_id))
    if not len(indices):
        raise InputError(f"{schedule.path}: has no job of {workload.name}; give the trace that was scheduled")
    order = np.argsort(workload.job_id, kind="stable")
    row = np.full(len(schedule), -1)
    row[indices] = order[np.searchsorted(workload.job_id, schedule.job_id[indices], sorter=order)]
    shift_ms = int(workload.submit_ms[row[indices[0]]] - schedule.submit_ms[indices[0]])
    start_ms, end_ms = (
        np.where(times == NEVER, NEVER, times + shift_ms) for times in (schedule.start_ms, schedule.end_ms)
    )
    moved = replace(schedule, submit_ms=schedule.submit_ms + shift_ms, start_ms=start_ms, end_ms=end_ms)
    start_ms, end_ms = np.full((2, len(workload)), NEVER)
    start_ms[row[indices[::-1]]] = moved.start_ms[indices[::-1]]
    end_ms[row[indices[::-1]]] = moved.end_ms[indices[::-1]]
    return Matched(moved, workload, shift_ms, row, start_ms, end_ms)


def faults(matched: Matched, nodes: int, *, tolerance_ms: int = 0) -> list[Fault]:
    """Return the faults of a schedule.

    Parameters
    ----------
    matched : Matched
    nodes : int
        Nodes of the machine.
    tolerance_ms : int, optional
        Time differences up to this value are not faults.

    Returns
    -------
    list of Fault
        One for each kind that occurs.
    """
    candidates = [*_of_lines(matched), *_of_times(matched, tolerance_ms), *_of_nodes(matched, nodes)]
    return [fault for fault in candidates if fault.count]


def _fault(kind: str, wrong: BoolArray, sentence: Callable[[int], str]) -> Fault:
    """Build a fault that covers all wrong rows, with a sentence about the first one."""
    count = int(np.count_nonzero(wrong))
    return Fault(kind, count, sentence(int(np.argmax(wrong))) if count else "")


def _of_lines(matched: Matched) -> Iterator[Fault]:
    """Yield repeated, unknown and missing jobs, and faults in the jobs' widths."""
    schedule, workload, row = matched.schedule, matched.workload, matched.row
    ids = schedule.job_id
    _, first_line = np.unique(ids, return_index=True)
    again = np.ones(len(ids), np.bool_)
    again[first_line] = False
    yield _fault("listed again", again, lambda i: f"job {ids[i]} is listed again")
    unknown = row < 0
    yield _fault("not in the trace", unknown, lambda i: f"job {ids[i]} is not in the trace")
    idle = matched.start_ms == NEVER
    if "cancel_ms" in workload.columns:
        idle &= np.asarray(workload.columns["cancel_ms"], np.int64) < 0
    listed = np.isin(workload.job_id, ids)
    yield _fault(
        "never ran", idle, lambda i: f"job {workload.job_id[i]} {'never ran' if listed[i] else 'is not in it'}"
    )
    yield from _of_widths(matched, unknown)


def _of_widths(matched: Matched, unknown: BoolArray) -> Iterator[Fault]:
    """Yield faults in the widths of jobs and the lengths of their node lists."""
    schedule, workload, row = matched.schedule, matched.workload, matched.row
    ids = schedule.job_id
    other = ~unknown & (workload.width[row] != schedule.width)
    yield _fault(
        "another width",
        other,
        lambda i: f"job {ids[i]} has {schedule.width[i]} nodes; the trace says {workload.width[row[i]]}",
    )
    listed_nodes = schedule.nodes or ()
    lengths = [None if numbers is None else len(numbers) for numbers in listed_nodes]
    odd = np.array(
        [length not in (None, width) for length, width in zip(lengths, schedule.width, strict=False)], np.bool_
    )
    yield _fault(
        "on another number of nodes",
        odd,
        lambda i: f"job {ids[i]} has {schedule.width[i]} nodes but runs on {lengths[i]}",
    )


def _of_times(matched: Matched, tolerance_ms: int) -> Iterator[Fault]:
    """Yield faults in submit times, start times and run times."""
    schedule, workload, row = matched.schedule, matched.workload, matched.row
    ids, in_workload = schedule.job_id, row >= 0
    submit_ms = workload.submit_ms[row]
    off = in_workload & (np.abs(schedule.submit_ms - submit_ms) > tolerance_ms)
    yield _fault(
        "submitted at another time",
        off,
        lambda i: f"job {ids[i]} is submitted at {_s(schedule.submit_ms[i])}; the trace says {_s(submit_ms[i])}",
    )
    ran = in_workload & (schedule.start_ms != NEVER)
    yield from _of_starts(matched, ran, tolerance_ms)
    yield from _of_lengths(matched, ran, tolerance_ms)


def _of_starts(matched: Matched, ran: BoolArray, tolerance_ms: int) -> Iterator[Fault]:
    """Yield faults in start times."""
    schedule, workload, row = matched.schedule, matched.workload, matched.row
    ids, submit_ms = schedule.job_id, workload.submit_ms[row]
    early = ran & (schedule.start_ms < submit_ms - tolerance_ms)
    yield _fault(
        "ran early",
        early,
        lambda i: (
            f"job {ids[i]} starts at {_s(schedule.start_ms[i])}, {_s(submit_ms[i] - schedule.start_ms[i])} before it "
            "is submitted"
        ),
    )
    if "cancel_ms" in workload.columns:
        cancel_ms = np.asarray(workload.columns["cancel_ms"], np.int64)[row]
        late = ran & (cancel_ms >= 0) & (schedule.start_ms >= cancel_ms + tolerance_ms)
        yield _fault(
            "ran although cancelled",
            late,
            lambda i: f"job {ids[i]} starts at {_s(schedule.start_ms[i])}; it was cancelled at {_s(cancel_ms[i])}",
        )


def _of_lengths(matched: Matched, ran: BoolArray, tolerance_ms: int) -> Iterator[Fault]:
    """Yield faults in run times; the workload's run times are already limited to the estimates."""
    schedule = matched.schedule
    expected_ms = matched.workload.run_ms[matched.row]
    excess_ms = schedule.end_ms - schedule.start_ms - expected_ms

    def sentence_of(word: str) -> Callable[[int], str]:
        return lambda i: (
            f"job {schedule.job_id[i]} runs for {_s(excess_ms[i] + expected_ms[i])}, {_s(abs(excess_ms[i]))} {word} "
            "than it should"
        )

    yield _fault("ran too long", ran & (excess_ms > tolerance_ms), sentence_of("longer"))
    yield _fault("ran too short", ran & (excess_ms < -tolerance_ms), sentence_of("shorter"))


def _of_nodes(matched: Matched, nodes: int) -> Iterator[Fault]:
    """Yield faults in the use of nodes: too many in use, unknown nodes, and nodes used by two jobs at once."""
    schedule = matched.schedule
    ran = (schedule.start_ms != NEVER) & (schedule.end_ms > schedule.start_ms)
    when = np.concatenate([schedule.start_ms[ran], schedule.end_ms[ran]])
    change = np.concatenate([schedule.width[ran], -schedule.width[ran]])
    at_ms, index = np.unique(when, return_inverse=True)
    used = np.cumsum(np.bincount(index, change, len(at_ms)).astype(np.int64))
    over = used > nodes
    begins = over & ~np.concatenate([[False], over[:-1]])
    yield _fault(
        "machine over-used",
        begins,
        lambda i: f"{used[i]} nodes are in use from {_s(at_ms[i])}; the machine has {nodes}",
    )
    beyond = [max(numbers or (0,)) for numbers in schedule.nodes or ()]
    yield _fault(
        "unknown node",
        np.array(beyond, np.int64) >= nodes,
        lambda i: f"job {schedule.job_id[i]} runs on node {beyond[i]}; the machine has nodes 0 to {nodes - 1}",
    )
    doubled = list(_doubly_used(schedule))
    yield Fault("node of another job", len(doubled), doubled[0] if doubled else "")


def _doubly_used(schedule: Schedule) -> Iterator[str]:
    """Yield a sentence about each job that starts on another job's node, if the schedule lists nodes."""
    listed_nodes = schedule.nodes
    if listed_nodes is None:
        return
    holder: dict[int, int] = {}
    for i in np.argsort(schedule.start_ms, kind="stable").tolist():
        start_ms = schedule.start_ms[i]
        if start_ms == NEVER:
            continue
        taken = sorted(
            node for node in listed_nodes[i] or () if node in holder and schedule.end_ms[holder[node]] > start_ms
        )
        if taken:
            other = holder[taken[0]]
            yield (
                f"job {schedule.job_id[i]} starts at {_s(start_ms)} on node {taken[0]}, which job "
                f"{schedule.job_id[other]} has until {_s(schedule.end_ms[other])}"
            )
        for node in listed_nodes[i] or ():
            if node not in holder or schedule.end_ms[holder[node]] < schedule.end_ms[i]:
                holder[node] = i


def _s(ms: int) -> str:
    return f"{'-' if ms < 0 else ''}{seconds_text(abs(int(ms)))} s"
