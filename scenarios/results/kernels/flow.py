"""Decide whether jobs can meet their deadlines, by computing a maximum flow from jobs through time intervals.

The network follows Stillwell, section 3, Theorem 1: a job sends its work to the intervals between its release and its
deadline, and no interval receives more than the job can do in that time or than all nodes can do together. All numbers
are integers. Dinic's algorithm finds the flow: it repeatedly saturates all paths with the fewest arcs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, Ints, kernel, kernel_part

_UNSEEN = -1


class WorkFlow(NamedTuple):
    """A flow network with an arc from each job to each interval in which the job may run.

    Attributes
    ----------
    weight, lacking : numpy.ndarray of int64, shape (n,)
        Work that each job can do per millisecond, and work that is not yet placed in an interval.
    first, arcs : numpy.ndarray of int64, shape (n,) and (n + 1,)
        Each job's first interval, and the index of its first arc; a job's arcs lead to consecutive intervals.
    length_ms, spare : numpy.ndarray of int64, shape (m,)
        Length and remaining capacity of each interval.
    sent : numpy.ndarray of int64, shape (k,)
        Flow on each arc.
    owner : numpy.ndarray of int32, shape (k,)
        The job from which each arc starts.
    into, into_from : numpy.ndarray of int32, shape (k,), and of int64, shape (m + 1,)
        The arcs into each interval, and the index in ``into`` of its first arc.
    job_level, interval_level : numpy.ndarray of int64, shape (n,) and (m,)
        Distance, in arcs, from the nearest job with unplaced work.
    job_next, interval_next : numpy.ndarray of int64, shape (n,) and (m,)
        The next arc to try from each job and into each interval.
    line, taken, back : numpy.ndarray of int64, shape (n,)
        Scratch: the search queue of jobs, later the jobs on a path; the forward and the backward arcs of that path.
    """

    weight: Ints
    lacking: Ints
    first: Ints
    arcs: Ints
    length_ms: Ints
    spare: Ints
    sent: Ints
    owner: npt.NDArray[np.int32]
    into: npt.NDArray[np.int32]
    into_from: Ints
    job_level: Ints
    interval_level: Ints
    job_next: Ints
    interval_next: Ints
    line: Ints
    taken: Ints
    back: Ints


@kernel
def is_feasible(flow: WorkFlow) -> bool:
    """Place the jobs' work in the intervals; return whether all work could be placed.

    Parameters
    ----------
    flow : WorkFlow
        A network without flow. Jobs may be in any order, but the initial flow is best if they are sorted by deadline.

    Notes
    -----
    Source: Stillwell, section 3, Theorem 1 (1a to 1e are the arcs and their capacities).
    """
    _connect(flow)
    _guess(flow)
    while _find_levels(flow):
        for job in range(len(flow.weight)):
            while flow.lacking[job] > 0 and _send(flow, job):
                pass
    lacking = np.int64(0)
    for job in range(len(flow.weight)):
        lacking += flow.lacking[job]
    return lacking == 0


@kernel
def _connect(flow: WorkFlow) -> None:
    """List the arcs into each interval, and temporarily store the end of each interval as its level."""
    for job in range(len(flow.weight)):
        for arc in range(flow.arcs[job], flow.arcs[job + 1]):
            flow.owner[arc] = job
            flow.into_from[flow.first[job] + arc - flow.arcs[job] + 1] += 1
    for interval in range(len(flow.length_ms)):
        flow.into_from[interval + 1] += flow.into_from[interval]
        flow.interval_next[interval] = flow.into_from[interval]
    for job in range(len(flow.weight)):
        for arc in range(flow.arcs[job], flow.arcs[job + 1]):
            interval = flow.first[job] + arc - flow.arcs[job]
            flow.into[flow.interval_next[interval]] = arc
            flow.interval_next[interval] += 1
    elapsed_ms = np.int64(0)
    for interval in range(len(flow.length_ms)):
        elapsed_ms += flow.length_ms[interval]
        flow.interval_level[interval] = elapsed_ms


@kernel
def _guess(flow: WorkFlow) -> None:
    """Find an initial flow, interval by interval: place work that cannot be done later, then more work in job order."""
    for interval in range(len(flow.length_ms)):
        begin, end = flow.into_from[interval], flow.into_from[interval + 1]
        for entry in range(begin, end):
            arc = flow.into[entry]
            job = flow.owner[arc]
            _put(flow, arc, interval, flow.lacking[job] - _later(flow, job, interval))
        for entry in range(begin, end):
            arc = flow.into[entry]
            _put(flow, arc, interval, flow.lacking[flow.owner[arc]])


@kernel_part
def _later(flow: WorkFlow, job: Int, interval: Int) -> Int:
    """Return the work that a job can do after an interval."""
    last = flow.first[job] + flow.arcs[job + 1] - flow.arcs[job] - 1
    return flow.weight[job] * (flow.interval_level[last] - flow.interval_level[interval])


@kernel_part
def _capacity(flow: WorkFlow, arc: Int, interval: Int) -> Int:
    return flow.weight[flow.owner[arc]] * flow.length_ms[interval] - flow.sent[arc]


@kernel_part
def _put(flow: WorkFlow, arc: Int, interval: Int, amount: Int) -> None:
    """Place up to ``amount`` of a job's work in an interval, as far as capacity allows."""
    job = flow.owner[arc]
    amount = max(0, min(amount, flow.lacking[job], _capacity(flow, arc, interval), flow.spare[interval]))
    flow.sent[arc] += amount
    flow.spare[interval] -= amount
    flow.lacking[job] -= amount


@kernel
def _find_levels(flow: WorkFlow) -> bool:
    """Compute the distance, in arcs, of each job and interval from the nearest job with unplaced work.

    Return whether an interval with spare capacity can be reached.
    """
    n_line = 0
    flow.interval_level[:] = _UNSEEN
    for job in range(len(flow.weight)):
        flow.job_level[job] = 0 if flow.lacking[job] > 0 else _UNSEEN
        flow.job_next[job] = flow.arcs[job]
        if flow.lacking[job] > 0:
            flow.line[n_line] = job
            n_line += 1
    for interval in range(len(flow.length_ms)):
        flow.interval_next[interval] = flow.into_from[interval]
    end_level = len(flow.weight) * 2
    head = 0
    while head < n_line:
        job = flow.line[head]
        head += 1
        if flow.job_level[job] >= end_level:
            break
        for arc in range(flow.arcs[job], flow.arcs[job + 1]):
            interval = flow.first[job] + arc - flow.arcs[job]
            if flow.interval_level[interval] == _UNSEEN and _capacity(flow, arc, interval) > 0:
                flow.interval_level[interval] = flow.job_level[job] + 1
                if flow.spare[interval] > 0:
                    end_level = flow.job_level[job] + 1
                n_line = _append_jobs(flow, interval, n_line)
    return end_level < len(flow.weight) * 2


@kernel_part
def _append_jobs(flow: WorkFlow, interval: Int, n_line: Int) -> Int:
    """Append the jobs that could withdraw work from an interval to the search queue; return the queue's new length."""
    for entry in range(flow.into_from[interval], flow.into_from[interval + 1]):
        arc = flow.into[entry]
        job = flow.owner[arc]
        if flow.job_level[job] == _UNSEEN and flow.sent[arc] > 0:
            flow.job_level[job] = flow.interval_level[interval] + 1
            flow.line[n_line] = job
            n_line += 1
    return n_line


@kernel
def _send(flow: WorkFlow, start: Int) -> bool:
    """Send flow along one path from a job with unplaced work; return whether there was a path."""
    flow.line[0] = start
    depth = 0
    while depth >= 0:
        job = flow.line[depth]
        arc = _next_arc(flow, job)
        if arc < 0:
            flow.job_level[job] = _UNSEEN
            depth -= 1
            continue
        interval = flow.first[job] + arc - flow.arcs[job]
        flow.taken[depth] = arc
        if flow.spare[interval] > 0:
            _carry(flow, start, depth, interval)
            return True
        back = _next_back(flow, interval)
        if back < 0:
            flow.interval_level[interval] = _UNSEEN
        else:
            flow.back[depth] = back
            depth += 1
            flow.line[depth] = flow.owner[back]
    return False


@kernel_part
def _next_arc(flow: WorkFlow, job: Int) -> Int:
    """Return a job's next arc that leads one level further and can carry more flow, or -1."""
    while flow.job_next[job] < flow.arcs[job + 1]:
        arc = flow.job_next[job]
        interval = flow.first[job] + arc - flow.arcs[job]
        if flow.interval_level[interval] == flow.job_level[job] + 1 and _capacity(flow, arc, interval) > 0:
            return arc
        flow.job_next[job] += 1
    return -1


@kernel_part
def _next_back(flow: WorkFlow, interval: Int) -> Int:
    """Return the next arc through which a job one level further can withdraw work from an interval, or -1."""
    while flow.interval_next[interval] < flow.into_from[interval + 1]:
        arc = flow.into[flow.interval_next[interval]]
        if flow.job_level[flow.owner[arc]] == flow.interval_level[interval] + 1 and flow.sent[arc] > 0:
            return arc
        flow.interval_next[interval] += 1
    return -1


@kernel_part
def _carry(flow: WorkFlow, start: Int, depth: Int, interval: Int) -> None:
    """Send as much flow as possible along the path in ``line``, ``taken`` and ``back``."""
    amount = min(flow.lacking[start], flow.spare[interval])
    for i in range(depth + 1):
        arc = flow.taken[i]
        job = flow.line[i]
        amount = min(amount, _capacity(flow, arc, flow.first[job] + arc - flow.arcs[job]))
        if i < depth:
            amount = min(amount, flow.sent[flow.back[i]])
    for i in range(depth + 1):
        flow.sent[flow.taken[i]] += amount
        if i < depth:
            flow.sent[flow.back[i]] -= amount
    flow.lacking[start] -= amount
    flow.spare[interval] -= amount
