"""What a schedule does to a site over time: busy nodes and waiting jobs as step functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gridweave.scenarios.workload import IntArray


@dataclass(frozen=True, eq=False, slots=True)
class Steps:
    """The state of a site over time, as step functions.

    Attributes
    ----------
    time_ms : numpy.ndarray of int64, shape (k,)
        The instants at which something changes, ascending; each row holds until the next, and the last is all zero.
    busy : numpy.ndarray of int64, shape (k,)
        Nodes that run jobs.
    waiting : numpy.ndarray of int64, shape (k,)
        Jobs that wait.
    demand : numpy.ndarray of int64, shape (k,)
        Nodes that running and waiting jobs ask for.
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

    Returns
    -------
    Steps
    """
    time_ms = np.concatenate((submit_ms, start_ms, end_ms))
    order = np.argsort(time_ms)
    time_ms = time_ms[order]
    last = np.ones(len(time_ms), np.bool_)  # of each instant: the state after all that happens there
    last[:-1] = time_ms[1:] != time_ms[:-1]
    time_ms = time_ms[last]
    none, one = np.broadcast_to(np.int64(0), width.shape), np.broadcast_to(np.int64(1), width.shape)

    def total(at_submit: IntArray, at_start: IntArray, at_end: IntArray) -> IntArray:
        change = np.concatenate((at_submit, at_start, at_end))[order]
        state: IntArray = np.cumsum(change, out=change)[last]
        return state

    return Steps(time_ms, total(none, width, -width), total(one, -one, none), total(width, none, -width))


def queue_length_seen(submit_ms: IntArray, start_ms: IntArray) -> IntArray:
    """Count the waiting jobs that each new job meets.

    Parameters
    ----------
    submit_ms, start_ms : numpy.ndarray of int64, shape (n,)
        Submit times, ascending, and start times.

    Returns
    -------
    numpy.ndarray of int64, shape (n,)
        For each job, how many of the rows before it still wait after the scheduling pass at its submission, that is,
        start later than that instant.

    Notes
    -----
    Streit, Table 3.6, gives "the number of job submissions at which previously submitted jobs are still waiting" and
    the "average queue length new jobs see". Of the possible readings this one, averaged over the submissions that meet
    a queue, comes closest (docs/metrics.md has the figures).
    """
    started = np.searchsorted(np.sort(start_ms), submit_ms, side="right")
    at_once = start_ms == submit_ms  # of the started, only such rows of the same instant can be at or after a row
    before = np.concatenate(([0], np.cumsum(at_once)))
    rows = np.arange(len(submit_ms))
    started -= before[np.searchsorted(submit_ms, submit_ms, side="right")] - before[rows]
    return (rows - started).astype(np.int64)
