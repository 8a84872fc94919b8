"""Whether jobs can be done between release dates and deadlines: a flow from jobs through intervals of time.

The network of Stillwell, Theorem 1: a job sends its work to the intervals between its release and its deadline, at most
as much to each as it can do in that time; an interval passes on what all nodes can do in it. All numbers are whole. The
largest flow is found as Dinic does: paths of the fewest arcs, as many at once as there are, then longer ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, Ints, kernel, kernel_part

_UNSEEN = -1


class WorkFlow(NamedTuple):
    """Jobs, intervals, and an arc from each job to each interval in which it may work.

    Attributes
    ----------
    weight, lacking : numpy.ndarray of int64, shape (n,)
        Work that a job can do in a millisecond, and what of its work is not placed yet.
    first, arcs : numpy.ndarray of int64, shape (n,) and (n + 1,)
        The first interval of each job, and where its arcs begin: one to each of its intervals in turn.
    length_ms, spare : numpy.ndarray of int64, shape (m,)
        Of each interval: its length, and what it can still take.
    sent : numpy.ndarray of int64, shape (k,)
        What each arc carries.
    owner : numpy.ndarray of int32, shape (k,)
        The job of each arc.
    into, into_from : numpy.ndarray of int32, shape (k,), and of int64, shape (m + 1,)
        The arcs that lead into each interval, and where those of each begin.
    job_level, interval_level : numpy.ndarray of int64, shape (n,) and (m,)
    job_next, interval_next : numpy.ndarray of int64, shape (n,) and (m,)
        Up to where the arcs have been tried.
    line, taken, back : numpy.ndarray of int64, shape (n,)
        Scratch: jobs in the order in which they are found, and the arcs of a path.
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
    """Place all work, and return whether that can be done.

    Parameters
    ----------
    flow : WorkFlow
        Nothing is sent yet. The jobs may be in any order; what it begins with is best if they are by deadline.

    Notes
    -----
    Source: Stillwell, section 3, Theorem 1 (1a to 1e are the arcs and what they can carry).
    """
    _connect(flow)
    _place_in_turn(flow)
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
    """Fill in which arcs lead into each interval, and in the place of its level when it ends."""
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
def _place_in_turn(flow: WorkFlow) -> None:
    """Begin with a good guess: interval by interval, first what must be done in it, then by deadline."""
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
    """Return what a job can do after an interval."""
    last = flow.first[job] + flow.arcs[job + 1] - flow.arcs[job] - 1
    return flow.weight[job] * (flow.interval_level[last] - flow.interval_level[interval])


@kernel_part
def _room(flow: WorkFlow, arc: Int, interval: Int) -> Int:
    return flow.weight[flow.owner[arc]] * flow.length_ms[interval] - flow.sent[arc]


@kernel_part
def _put(flow: WorkFlow, arc: Int, interval: Int, amount: Int) -> None:
    """Place so much of a job's work in an interval, as far as there is room."""
    job = flow.owner[arc]
    amount = max(0, min(amount, flow.lacking[job], _room(flow, arc, interval), flow.spare[interval]))
    flow.sent[arc] += amount
    flow.spare[interval] -= amount
    flow.lacking[job] -= amount


@kernel
def _find_levels(flow: WorkFlow) -> bool:
    """Count how many arcs each job and interval is from a job that lacks something.

    Return whether an interval can be reached that has something to spare.
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
    found_at = len(flow.weight) * 2
    place = 0
    while place < n_line:
        job = flow.line[place]
        place += 1
        if flow.job_level[job] >= found_at:
            break
        for arc in range(flow.arcs[job], flow.arcs[job + 1]):
            interval = flow.first[job] + arc - flow.arcs[job]
            if flow.interval_level[interval] == _UNSEEN and _room(flow, arc, interval) > 0:
                flow.interval_level[interval] = flow.job_level[job] + 1
                if flow.spare[interval] > 0:
                    found_at = flow.job_level[job] + 1
                n_line = _see_jobs(flow, interval, n_line)
    return found_at < len(flow.weight) * 2


@kernel_part
def _see_jobs(flow: WorkFlow, interval: Int, n_line: Int) -> Int:
    """Put the jobs into the line that could take work out of an interval; return how long it is then."""
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
    """Send what one path can carry from a job that lacks something; return whether there was a path."""
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
    """Return the next arc of a job that leads on and can carry more; -1 if there is none."""
    while flow.job_next[job] < flow.arcs[job + 1]:
        arc = flow.job_next[job]
        interval = flow.first[job] + arc - flow.arcs[job]
        if flow.interval_level[interval] == flow.job_level[job] + 1 and _room(flow, arc, interval) > 0:
            return arc
        flow.job_next[job] += 1
    return -1


@kernel_part
def _next_back(flow: WorkFlow, interval: Int) -> Int:
    """Return the next arc into an interval whose job is further on and can take work out; -1 if there is none."""
    while flow.interval_next[interval] < flow.into_from[interval + 1]:
        arc = flow.into[flow.interval_next[interval]]
        if flow.job_level[flow.owner[arc]] == flow.interval_level[interval] + 1 and flow.sent[arc] > 0:
            return arc
        flow.interval_next[interval] += 1
    return -1


@kernel_part
def _carry(flow: WorkFlow, start: Int, depth: Int, interval: Int) -> None:
    """Send along the path that was found as much as it carries."""
    amount = min(flow.lacking[start], flow.spare[interval])
    for i in range(depth + 1):
        arc = flow.taken[i]
        job = flow.line[i]
        amount = min(amount, _room(flow, arc, flow.first[job] + arc - flow.arcs[job]))
        if i < depth:
            amount = min(amount, flow.sent[flow.back[i]])
    for i in range(depth + 1):
        flow.sent[flow.taken[i]] += amount
        if i < depth:
            flow.sent[flow.back[i]] -= amount
    flow.lacking[start] -= amount
    flow.spare[interval] -= amount
