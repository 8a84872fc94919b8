"""The state of a site over time: busy nodes, waiting jobs and demand as step functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gridweave.scenarios.workload.table import IntArray

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False, slots=True)
class Steps:
    """The state of a site over time, as step functions.

    Attributes
    ----------
    time_ms : numpy.ndarray of int64, shape (k,)
        The times of changes, in ascending order. Each row holds until the next time; the last row is all zero.
    busy : numpy.ndarray of int64, shape (k,)
        Number of nodes that are running jobs.
    waiting : numpy.ndarray of int64, shape (k,)
        Number of waiting jobs.
        demand : numpy.ndarray of int64, shape (k,)
        Number of nodes requested by running and waiting jobs.
    """

    time_ms: IntArray
    busy: IntArray
    waiting: IntArray
    demand: IntArray


def step_functions(submit_ms: IntArray, start_ms: IntArray, end_ms: IntArray, width: IntArray) -> Steps:
    """Return the state of a site over time.

    Parameters
    ----------
    submit_ms, start_ms, end_ms, width : numpy.ndarray of int64, shape (n,)
        The jobs that ran, in any order.
    """
    time_ms = _instants(submit_ms, start_ms, end_ms)
    whole = Steps(time_ms, *(np.empty_like(time_ms) for _ in range(3)))
    for number, part in enumerate(_parts(time_ms, submit_ms, start_ms, end_ms, width)):
        first = number * _ROWS_AT_ONCE
        rows = slice(first, first + len(part.time_ms))
        whole.busy[rows], whole.waiting[rows], whole.demand[rows] = part.busy, part.waiting, part.demand
    return whole


def step_parts(submit_ms: IntArray, start_ms: IntArray, end_ms: IntArray, width: IntArray) -> Iterator[Steps]:
    """Yield the state of a site over time in parts, so that it need not fit in memory as a whole.

    Parameters
    ----------
    submit_ms, start_ms, end_ms, width : numpy.ndarray of int64, shape (n,)
        The jobs that ran, in any order.

    Yields
    ------
    Steps
        The rows of `step_functions`, 65,536 at a time; nothing if there are no jobs. A part begins with the last row
        of the previous part.
    """
    yield from _parts(_instants(submit_ms, start_ms, end_ms), submit_ms, start_ms, end_ms, width)


def _instants(submit_ms: IntArray, start_ms: IntArray, end_ms: IntArray) -> IntArray:
    """Return the distinct times of changes, in ascending order."""
    time_ms = np.concatenate((submit_ms, start_ms, end_ms))
    time_ms.sort()
    first = np.ones(len(time_ms), np.bool_)
    first[1:] = time_ms[1:] != time_ms[:-1]
    return time_ms[first]


def _parts(
    time_ms: IntArray, submit_ms: IntArray, start_ms: IntArray, end_ms: IntArray, width: IntArray
) -> Iterator[Steps]:
    submits, starts, ends = (_Tally.of(events_ms, width) for events_ms in (submit_ms, start_ms, end_ms))
    for first in range(0, len(time_ms), _ROWS_AT_ONCE):
        part = time_ms[first : first + _ROWS_AT_ONCE + 1]
        (submitted, requested), (started, occupied), (_, freed) = (
            tally.up_to(part) for tally in (submits, starts, ends)
        )
        yield Steps(part, occupied - freed, submitted - started, requested - freed)


@dataclass(frozen=True, eq=False, slots=True)
class _Tally:
    """The events of one kind in time order, and the cumulative sum of their nodes."""

    event_ms: IntArray  # (n,), ascending
    nodes: IntArray  # (n + 1,): entry k is the sum over the first k events

    @classmethod
    def of(cls, event_ms: IntArray, width: IntArray) -> _Tally:
        if (event_ms[1:] < event_ms[:-1]).any():  # submissions are usually sorted already
            order = np.argsort(event_ms)
            event_ms, width = event_ms[order], width[order]
        nodes = np.zeros(len(width) + 1, np.int64)
        np.cumsum(width, out=nodes[1:])
        return cls(event_ms, nodes)

    def up_to(self, time_ms: IntArray) -> tuple[IntArray, IntArray]:
        """Return the number of events up to each time, and the sum of these events' nodes.

        Every event between the first and the last time must be at one of the given times.
        """
        low, high = np.searchsorted(self.event_ms, (time_ms[0] - 1, time_ms[-1]), side="right")
        at = np.searchsorted(time_ms, self.event_ms[low:high])
        events = low + np.cumsum(np.bincount(at, minlength=len(time_ms)))
        return events, self.nodes[events]


def queue_length_seen(submit_ms: IntArray, start_ms: IntArray) -> IntArray:
    """Count, for each job, the earlier jobs that are still waiting when the job is submitted.

    Parameters
    ----------
    submit_ms, start_ms : numpy.ndarray of int64, shape (n,)
        Submit and start times, in order of submit time.

    Returns
    -------
    numpy.ndarray of int64, shape (n,)
        Number of earlier rows that start later than the job's submit time.

    Notes
    -----
    Streit, Table 3.6, reports "the number of job submissions at which previously submitted jobs are still waiting" and
    the "average queue length new jobs see". Of the possible interpretations, this one, averaged over the submissions
    that find a queue, comes closest to Streit's results (docs/metrics.md has the numbers).
    """
    started = np.searchsorted(np.sort(start_ms), submit_ms, side="right")
    at_once = start_ms == submit_ms  # only these jobs may be counted in `started` without preceding the row
    before = np.concatenate(([0], np.cumsum(at_once)))
    rows = np.arange(len(submit_ms))
    started -= before[np.searchsorted(submit_ms, submit_ms, side="right")] - before[rows]
    return (rows - started).astype(np.int64)
