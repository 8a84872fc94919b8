"""Find the jobs in each time slice and on each node of a gang-scheduled site, for printing and drawing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gridweave.errors import InputError
from gridweave.ranges import ranges_of
from gridweave.scenarios.batch.one_site import SiteRun
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.gang.kernels.state import GangSite
from gridweave.site.disciplines.gang.matrix import columns_of, matrix_of, placed_slots
from gridweave.site.disciplines.gang.policy import GangPolicy


class Slice(NamedTuple):
    """A job that runs during a time slice, or during a part of the slice.

    Attributes
    ----------
    start_ms, end_ms : int
    row : int
        Row of the gang matrix.
    job_id : int
    nodes : tuple of (int, int)
        Half-open intervals of nodes.
    """

    start_ms: int
    end_ms: int
    row: int
    job_id: int
    nodes: tuple[tuple[int, int], ...]


def _simulated_to(workload: Workload, nodes: int, policy: GangPolicy, until_ms: int) -> SiteRun:
    """Simulate a workload up to and including ``until_ms``; jobs that are too wide are left out."""
    run = SiteRun(workload, nodes, policy)
    run.run(len(run.start_ms), until_ms + 1)
    return run


def matrix_at(
    workload: Workload, nodes: int, policy: GangPolicy, at_ms: int
) -> tuple[list[list[int | None]], int | None]:
    """Return the gang matrix after the decisions at ``at_ms``, and the row that is running at that time.

    Parameters
    ----------
    at_ms : int
        Time on the workload's clock.

    Returns
    -------
    matrix : list of list of int or None, shape (rows, nodes)
        Id of the job on each node in each row; None if the node is free.
    row : int or None
        None if there are no jobs.
    """
    state = _simulated_to(workload, nodes, policy, at_ms).site.state
    counters = state.counters[0]
    if not counters["n_turns"]:
        return matrix_of(state), None
    turn = (at_ms - int(counters["since_ms"])) // policy.slice_ms % int(counters["n_turns"])
    return matrix_of(state), int(state.turn_row[turn])


def slices_between(
    workload: Workload, nodes: int, policy: GangPolicy, from_ms: int, to_ms: int, *, at_most: int = 20_000
) -> list[Slice]:
    """Return the jobs' time slices in a period, in time order.

    Raises
    ------
    InputError
        If there are more than ``at_most`` slices.
    """
    run = _simulated_to(workload, nodes, policy, from_ms)
    slices: list[Slice] = []
    now_ms = from_ms
    while now_ms < to_ms:
        until_ms = min(to_ms, run.next_instant_ms())
        slices += _slices_of(run.site.state, policy, now_ms, until_ms)
        if len(slices) > at_most:
            raise InputError(f"there are more than {at_most:,} slices in this period; choose a shorter one")
        now_ms = until_ms
        run.run(len(run.start_ms), now_ms + 1)
    return slices


def _slices_of(state: GangSite, policy: GangPolicy, from_ms: int, to_ms: int) -> Iterator[Slice]:
    """Yield the slices of a period in which no scheduling decision is made."""
    since_ms, n_turns = (int(state.counters[name][0]) for name in ("since_ms", "n_turns"))
    if not n_turns:
        return
    jobs = [(state.jobs[slot], ranges_of(columns_of(state, slot))) for slot in placed_slots(state)]
    number = (from_ms - since_ms) // policy.slice_ms
    while (begin_ms := since_ms + number * policy.slice_ms) < to_ms:
        row = int(state.turn_row[number % n_turns])
        span = max(begin_ms, from_ms), min(begin_ms + policy.slice_ms, to_ms)
        for job, nodes in jobs:
            if int(job["rows"]) >> row & 1:
                yield Slice(*span, row, int(job["job_id"]), nodes)
        number += 1
