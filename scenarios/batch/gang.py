"""A site that shares its nodes in time, in simulation (docs/gang.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.batch.cancellations import cancellations
from gridweave.scenarios.batch.kernels.loop import run_batch
from gridweave.scenarios.batch.kernels.paced import Paced
from gridweave.scenarios.batch.kernels.run import new_run
from gridweave.scenarios.batch.pieces import in_pieces, times_of
from gridweave.scenarios.batch.stepped import Stepped
from gridweave.scenarios.workload.table import IntArray, Workload, fill_jobs
from gridweave.site.disciplines.gang.kernels.state import GangSite, empty_matrix
from gridweave.site.disciplines.gang.matrix import (
    columns_of,
    gang_totals,
    intervals_of_columns,
    matrix_of,
    placed_slots,
)
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import no_work

# Jobs that are played before progress is reported: about a tenth of a second.
_SLICE = 2_000


class GangRun:
    """A workload on a site that shares its nodes in time, in the compiled loop, played in pieces.

    Parameters
    ----------
    rows : numpy.ndarray of int64
        The rows of the jobs to play; none is wider than the site.

    Attributes
    ----------
    state : GangSite
    start_ms, end_ms : numpy.ndarray of int64, shape (rows,)
        `NEVER` for jobs that have not ended.

    Raises
    ------
    InputError
        If estimates, times the rows of the matrix, leave the range of times.
    """

    def __init__(self, workload: Workload, rows: IntArray, nodes: int, policy: GangPolicy) -> None:
        longest_ms = float(workload.estimate_ms.sum(dtype=np.float64)) * policy.mpl
        if longest_ms > NEVER_MS:
            total = f"its estimates, times the {policy.mpl} rows of the matrix, add up to {longest_ms:.3g} ms"
            raise InputError(f"{workload.name}: {total}; there is room for {NEVER_MS:.3g}")
        self.state = empty_matrix(nodes, policy.mpl, slots=len(rows))
        fill_jobs(self.state.jobs, workload, rows, policy.order)
        self._work, self._paced = no_work(len(rows)), Paced(gang=policy.codes())
        self._cancels = cancellations(workload, rows)
        self._run = new_run(workload.run_ms[rows], room=len(self.state.placed))
        self.start_ms, self.end_ms = self._run.start_ms, self._run.end_ms

    def play(self, until: int, stop_ms: int = int(NEVER_MS)) -> None:
        """Play on until this many jobs have been submitted, or up to an instant; if all are, until nothing is left."""
        numbers = np.int64(until), np.int64(stop_ms)
        run_batch(self.state, self._work, None, self._paced, None, None, self._cancels, None, self._run, *numbers)

    def next_instant_ms(self) -> int:
        """Return the next instant at which anything happens, a decision that is due among it; `NEVER_MS` for none."""
        jobs, clock, ends = self.state.jobs, self._run.clock[0], self._run.ends
        instants = [int(self.state.counters["due_ms"][0])]
        instants += [int(jobs["submit_ms"][clock["submitted"]])] if clock["submitted"] < len(jobs) else []
        instants += [int(ends.heap["end_ms"][0])] if ends.size[0] else []
        if self._cancels is not None and clock["cancelled"] < len(self._cancels.row):
            instants.append(int(self._cancels.at_ms[clock["cancelled"]]))
        return min(instants)


class Slice(NamedTuple):
    """A job in a time slice, or a part of one.

    Attributes
    ----------
    start_ms, end_ms : int
    row : int
        Of the matrix.
    job_id : int
    nodes : tuple of (int, int)
        Half-open intervals.
    """

    start_ms: int
    end_ms: int
    row: int
    job_id: int
    nodes: tuple[tuple[int, int], ...]


def _played_to(workload: Workload, nodes: int, policy: GangPolicy, until_ms: int) -> GangRun:
    """Return a workload played up to an instant and with it; jobs that are too wide are left out."""
    run = GangRun(workload, np.flatnonzero(workload.width <= nodes), nodes, policy)
    run.play(len(run.start_ms), until_ms + 1)
    return run


def matrix_at(
    workload: Workload, nodes: int, policy: GangPolicy, at_ms: int
) -> tuple[list[list[int | None]], int | None]:
    """Return the matrix at an instant, after its decisions, and the row whose slice goes on then.

    Parameters
    ----------
    at_ms : int
        Of the clock of the workload.

    Returns
    -------
    matrix : list of list of int or None, shape (rows, nodes)
        The id of the job that has each node in each row, None where nobody has it.
    row : int or None
        None if nobody is there.
    """
    state = _played_to(workload, nodes, policy, at_ms).state
    counters = state.counters[0]
    if not counters["n_turns"]:
        return matrix_of(state), None
    turn = (at_ms - int(counters["since_ms"])) // policy.slice_ms % int(counters["n_turns"])
    return matrix_of(state), int(state.turn_row[turn])


def slices_between(
    workload: Workload, nodes: int, policy: GangPolicy, from_ms: int, to_ms: int, *, at_most: int = 20_000
) -> list[Slice]:
    """Return who works when and where in a window of time, in the order of time.

    Raises
    ------
    InputError
        If there are more of them than ``at_most``.
    """
    run = _played_to(workload, nodes, policy, from_ms)
    found: list[Slice] = []
    now_ms = from_ms
    while now_ms < to_ms:
        until_ms = min(to_ms, run.next_instant_ms())
        found += _slices_of(run.state, policy, now_ms, until_ms)
        if len(found) > at_most:
            raise InputError(f"there are more than {at_most:,} slices of jobs in that time; show a shorter one")
        now_ms = until_ms
        run.play(len(run.start_ms), now_ms + 1)
    return found


def _slices_of(state: GangSite, policy: GangPolicy, from_ms: int, to_ms: int) -> Iterator[Slice]:
    """Yield the slices of a time in which nothing is decided."""
    since_ms, n_turns = (int(state.counters[name][0]) for name in ("since_ms", "n_turns"))
    if not n_turns:
        return
    jobs = [(state.jobs[slot], intervals_of_columns(columns_of(state, slot))) for slot in placed_slots(state)]
    number = (from_ms - since_ms) // policy.slice_ms
    while (begin_ms := since_ms + number * policy.slice_ms) < to_ms:
        row = int(state.turn_row[number % n_turns])
        span = max(begin_ms, from_ms), min(begin_ms + policy.slice_ms, to_ms)
        for job, nodes in jobs:
            if int(job["rows"]) >> row & 1:
                yield Slice(*span, row, int(job["job_id"]), nodes)
        number += 1


def played_gang(
    workload: Workload, nodes: int, policy: GangPolicy, progress: Callable[[int, int], None] | None
) -> Stepped:
    """Return what becomes of the jobs of a workload, played in the compiled loop."""
    wide = np.flatnonzero(workload.width > nodes)
    refused = {
        int(workload.job_id[row]): f"it needs {workload.width[row]} nodes and the site has {nodes}" for row in wide
    }
    rows = np.flatnonzero(workload.width <= nodes)
    run = GangRun(workload, rows, nodes, policy)
    for until in in_pieces(len(rows), _SLICE, progress):
        run.play(until)
    start_ms, end_ms = times_of(run.start_ms, run.end_ms, rows, len(workload))
    return Stepped(start_ms, end_ms, refused, (), {}, gang_totals(run.state))
