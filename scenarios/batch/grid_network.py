"""The network between a simulated grid's sites: the traffic that jobs cause, and how it slows the jobs down.

The compiled loop runs once for each period between two link changes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError, check_known
from gridweave.grid.control.links import GridNetwork, check_max_split_factor, new_links, with_paths
from gridweave.grid.kernels.links import (
    BLOCKING,
    JOB_DATA,
    MAX_OVERHEAD,
    MAX_SPLIT_FACTOR,
    NO_DATA,
    PREFETCH,
    GridLinks,
)
from gridweave.grid.kernels.links_placement import find_possible, find_splittable
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.reservations import empty_grid_plan, enlarged
from gridweave.grid.kernels.state import FRAGMENT, GridState, is_full
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import MAX_BYTES
from gridweave.jit import prepared
from gridweave.netmodel.changes import Timetable
from gridweave.netmodel.communication import PATTERNS, Communication
from gridweave.netmodel.kernels.state import COMMUNICATION, more_flows, new_filling, new_flows
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.tables import CONTENTIONS, EXACT_UP_TO
from gridweave.scenarios.batch.kernels.contention import Contention
from gridweave.scenarios.batch.kernels.loop import (
    DONE,
    LINKS_CHANGE,
    NO_CAPACITY_FOR_MOVES,
    OnGrid,
    leave_queue,
    run_batch,
)
from gridweave.scenarios.batch.kernels.moves import more_moves, new_moves
from gridweave.scenarios.batch.one_site import cancellations
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.scenarios.results.uses import NetworkUse
from gridweave.scenarios.workload.table import BoolArray, IntArray, Workload
from gridweave.site.kernels.state import NEVER_MS, REPLAN
from gridweave.site.kernels.work import NOT_RUNNING, new_run, no_work

SPLITS = ("fewest", "earliest-end")
ANY_SPLIT_FACTOR = 1.0 + MAX_OVERHEAD
"""Value of `GridNet.max_split_factor` that allows every split, however much it lengthens the job."""

STAGINGS = {"none": NO_DATA, "blocking": BLOCKING, "prefetch": PREFETCH}


@dataclass(frozen=True, eq=False, slots=True)
class GridNet:
    """The network between the sites of a grid, and how jobs use it (docs/grid.md, "With a network").

    Parameters
    ----------
    model : NetworkModel
        The network; its sites must be the grid's sites, in the same order.
    timetable : Timetable, optional
        Link changes over time; the first period is the model's topology.
    contention : str
        How jobs on the same links slow each other down: ``none``, ``static`` or ``dynamic``.
    split : str
        How to split a job: over the ``fewest`` sites, as in the thesis, or so that it ends earliest (``earliest-end``).
    data : str
        Whether and when jobs' data is transferred: ``none``, ``blocking`` or ``prefetch``.
    exact_up_to : int
        For ``earliest-end``: try all possible placements of a job if there are at most this many.
    max_split_factor : float
        Maximum factor by which a split may lengthen a job; from 1 to 10,001.

    Raises
    ------
    OptionError
        If a name is unknown, a number is out of range, or the timetable's topology differs from the model's.
    """

    model: NetworkModel
    timetable: Timetable | None = None
    contention: str = "none"
    split: str = "earliest-end"
    data: str = "none"
    exact_up_to: int = EXACT_UP_TO
    max_split_factor: float = MAX_SPLIT_FACTOR

    def __post_init__(self) -> None:
        for option, allowed in (("contention", CONTENTIONS), ("split", SPLITS), ("data", tuple(STAGINGS))):
            check_known(option, getattr(self, option), allowed)
        if self.exact_up_to < 0:
            raise OptionError("exact_up_to", f"is {self.exact_up_to}; expected a number of placements, at least 0")
        check_max_split_factor(self.max_split_factor)
        if self.timetable is not None and self.timetable.topology is not self.model.topology:
            raise OptionError("timetable", "has another topology than the model")

    def periods(self) -> Iterator[tuple[int, NetworkModel]]:
        """Yield each period between link changes as (start in ms, network); the first starts at 0."""
        if self.timetable is None:
            yield 0, self.model
            return
        for period, at_ms in enumerate([0, *self.timetable.instants_ms.tolist()]):
            yield int(at_ms), self.model.with_cables(self.timetable.factors[period])

    def check(self, nodes: IntArray, policy: GridPolicy) -> None:
        """Check that the network matches a grid and its policy.

        Parameters
        ----------
        nodes : numpy.ndarray of int64, shape (sites,)

        Raises
        ------
        OptionError
            If the numbers of sites differ, or the policy does not support the network's options.
        """
        sites = self.model.topology.sites
        if len(sites) != len(nodes):
            raise OptionError("net", f"has {len(sites)} sites and the grid has {len(nodes)}")
        if self.data != "none" and policy.backfill == "conservative":
            raise OptionError("data", "cannot be moved for reserved starts; use backfill easy or none, or data none")
        if self.data != "none" and policy.mode == "local":
            raise OptionError("data", "cannot be moved in mode local, where sites are separate")


def communication_of(workload: Workload) -> npt.NDArray[np.void]:
    """Return a `COMMUNICATION` record for each job of a workload.

    If any of the columns ``pattern`` (indices into `gridweave.netmodel.communication.PATTERNS`),
    ``communication_fraction`` or ``message_bytes`` is missing, no job communicates. Raise InputError if a pattern or
    a message size is invalid.
    """
    records = np.zeros(len(workload), COMMUNICATION)
    records["width"] = records["columns"] = workload.width
    records["planes"] = records["rows"] = 1
    columns = workload.columns
    if not {"pattern", "communication_fraction", "message_bytes"} <= set(columns):
        return records
    pattern = np.asarray(columns["pattern"], np.int64)
    n_bytes = np.asarray(columns["message_bytes"], np.int64)
    workload.refuse("pattern", (pattern < 0) | (pattern >= len(PATTERNS)), f"is not one of {', '.join(PATTERNS)}")
    workload.refuse("message_bytes", (n_bytes < 0) | (n_bytes > MAX_BYTES), f"is not within 0 to {MAX_BYTES}")
    for code, name in enumerate(PATTERNS):
        rows = np.flatnonzero(pattern == code)
        if len(rows):
            widths, index = np.unique(workload.width[rows], return_inverse=True)
            records[rows] = Communication(pattern=name).records(widths)[index]
    records["fraction"] = columns["communication_fraction"]
    records["bits"] = 8.0 * n_bytes
    return records


def data_of(workload: Workload, sites: int) -> npt.NDArray[np.void]:
    """Return a `JOB_DATA` record for each job of a workload.

    Jobs have no input unless the columns ``input_bytes`` and ``input_site`` both exist; the same holds for output.
    Raise InputError if a site or a size is invalid.
    """
    records = np.zeros(len(workload), JOB_DATA)
    for what in ("input", "output"):
        if f"{what}_bytes" not in workload.columns or f"{what}_site" not in workload.columns:
            continue
        n_bytes = np.asarray(workload.columns[f"{what}_bytes"], np.int64)
        site = np.asarray(workload.columns[f"{what}_site"], np.int64)
        workload.refuse(f"{what}_bytes", (n_bytes < 0) | (n_bytes > MAX_BYTES), f"is not within 0 to {MAX_BYTES}")
        workload.refuse(f"{what}_site", (site < 0) | (site >= sites), f"is not one of the sites 0 to {sites - 1}")
        records[f"{what}_bytes"], records[f"{what}_site"] = n_bytes, site
    return records


def network_of(net: GridNet) -> GridNetwork:
    """Convert the network to the form that the grid queue uses."""
    earliest_end = net.split == "earliest-end"
    return GridNetwork(net.model, earliest_end, STAGINGS[net.data], net.exact_up_to, net.max_split_factor)


def links_of(net: GridNet, workload: Workload, rows: IntArray) -> GridLinks:
    """Return the grid queue's view of the links in the first period.

    Parameters
    ----------
    rows : numpy.ndarray of int64
        Rows of the jobs that have a slot, in slot order.
    """
    widest = int(workload.width[rows].max(initial=1))
    links = new_links(network_of(net), slots=len(rows), widest=widest)._replace(
        communication=communication_of(workload)[rows],
        data=data_of(workload, len(net.model.topology.sites))[rows],
    )
    return with_paths(links, net.model.arrays)


_FEW_JOBS = 256
"""Initial capacity of a plan; it grows with the queue."""

_FIRST_MOVES = 1024
"""Initial capacity for transfers of input and output."""

WHY_UNPLACEABLE = (
    "it cannot be placed: there is no path between the sites for its messages or its data, or every split would "
    "exceed grid.max_split_factor"
)


def why_stuck(job_id: int, since_ms: int, *, of_data: bool) -> str:
    """Return the error message for a simulation in which a job is paused forever.

    Parameters
    ----------
    job_id, since_ms : int
        The paused job, and the time at which its pause began.
    of_data : bool
        Whether the job is waiting for its data, rather than for messages between its parts.
    """
    if of_data:
        what, contentions = "waits for its input or output, which", "contention none"
    else:
        what, contentions = "runs on several sites and", "contention none or static"
    return f"job {job_id} {what} has no bandwidth from {since_ms} ms on; restore the links, or choose {contentions}"


class GridOutcome(NamedTuple):
    """The outcome of a grid simulation.

    Attributes
    ----------
    state : GridState
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        `NEVER` for jobs that were not placed.
    factor : numpy.ndarray of float64, shape (n,)
        Factor by which communication lengthens each job's run time on idle links.
    slowdown : numpy.ndarray of float64, shape (n,)
        Average factor by which other traffic slowed each job down.
    transfer_ms : numpy.ndarray of int64, shape (n,)
        How long each job held nodes while its data was being transferred.
    unplaceable : numpy.ndarray of bool, shape (n,)
        Jobs that cannot be placed because of the links.
    """

    state: GridState
    start_ms: IntArray
    end_ms: IntArray
    factor: npt.NDArray[np.float64]
    slowdown: npt.NDArray[np.float64]
    transfer_ms: IntArray
    unplaceable: BoolArray


class GridLoop:
    """One grid simulation: its arrays, which are enlarged when full, and the loop that runs on them.

    Parameters
    ----------
    state : GridState
        The idle grid; its job table holds the jobs of ``rows``.
    rows : numpy.ndarray of int64
    net : GridNet, optional
    """

    def __init__(
        self, state: GridState, workload: Workload, rows: IntArray, policy: GridPolicy, net: GridNet | None
    ) -> None:
        codes = policy.codes()
        unplaceable_ms = np.full(len(rows), NEVER_MS)
        if net is not None:
            codes = codes._replace(net=links_of(net, workload, rows))
            unplaceable_ms = unplaceable_from(state, codes, net)
        plan = empty_grid_plan(state, codes, capacity=_FEW_JOBS) if policy.backfill == "conservative" else None
        self._net = net
        self._state = state
        self._grid = OnGrid(codes, plan, unplaceable_ms, np.zeros(len(rows), np.int64))
        self._cancels = cancellations(workload, rows)
        self._run = new_run(workload.run_ms[rows], capacity=len(state.started))
        contends = net is not None and net.contention != "none"
        self._work = no_work(len(rows)) if contends else None
        self._links = _new_contention(state, codes, net, len(rows)) if net is not None and contends else None

    def run(self) -> GridOutcome:
        """Run the simulation to its end, one period between link changes at a time.

        Raises
        ------
        InputError
            If a job depends on links that fail and never recover.
        """
        changes = iter(()) if self._net is None else itertools.islice(self._net.periods(), 1, None)
        for at_ms, model in changes:
            if self._run_until(at_ms) or self._is_over():
                break
            self._change_links(at_ms, model)
        else:
            self._run_until(int(NEVER_MS))
        self._check_all_ended()
        return self._outcome()

    def _run_until(self, change_ms: int) -> bool:
        """Run the simulation up to a link change; return True if no events are left."""
        while True:
            own = self._state, self._work, None, None, self._grid, self._links, self._cancels, None, None
            arguments = *own, self._run, np.int64(len(self._run.run_ms)), np.int64(change_ms)
            why = prepared(run_batch, *arguments)(*arguments)
            if why in (DONE, LINKS_CHANGE):
                return why == DONE
            plan = self._grid.plan
            if why == NO_CAPACITY_FOR_MOVES:
                self._grow_moves()
            elif plan is not None and not is_full(self._state):
                self._grid = self._grid._replace(plan=enlarged(plan))
            else:
                larger = np.zeros(2 * len(self._state.fragments), FRAGMENT)
                larger[: len(self._state.fragments)] = self._state.fragments
                self._state = self._state._replace(fragments=larger)

    def _is_over(self) -> bool:
        counters = self._state.counters[0]
        all_submitted = self._run.clock[0]["submitted"] == len(self._run.run_ms)
        return bool(all_submitted and not counters["n_waiting"] and not counters["n_running"])

    def _change_links(self, at_ms: int, model: NetworkModel) -> None:
        """Switch to the links of the next period; drop waiting jobs that can no longer be placed."""
        grid = self._grid
        assert grid.codes.net is not None
        self._grid = grid = grid._replace(codes=grid.codes._replace(net=with_paths(grid.codes.net, model.arrays)))
        self._run.clock["woken_ms"] = at_ms
        for index in range(int(self._state.counters[0]["n_waiting"]) - 1, -1, -1):
            row = self._state.waiting[index]
            if grid.unplaceable_ms[row] <= at_ms:
                leave_queue(self._state, None, grid, self._links, row, np.int64(index))
        if grid.plan is not None:
            grid.plan.counters["stale"] = REPLAN

    def _grow_moves(self) -> None:
        """Double the capacity for transfers."""
        links = self._links
        assert links is not None
        more = len(links.moves.row)
        flows = more_flows(links.flows, len(links.flows.owner) + more)
        self._links = links._replace(
            flows=flows,
            filling=new_filling(len(links.filling.left), len(flows.owner)),
            slowdown=np.append(links.slowdown, np.ones(more)),
            moves=more_moves(links.moves, 2 * more),
        )

    def _check_all_ended(self) -> None:
        if self._work is not None and self._links is not None:
            stuck = np.flatnonzero(self._work["rate"] != NOT_RUNNING)
            if len(stuck):
                row = int(stuck[0])
                of_data = self._links.moves_data and bool(self._links.moves.under_way[row])
                since_ms = int(self._work[row]["since_ms"])
                raise InputError(why_stuck(int(self._state.jobs[row]["job_id"]), since_ms, of_data=of_data))
        assert not self._state.counters[0]["n_waiting"], "the grid loop ended with jobs that wait"

    def _outcome(self) -> GridOutcome:
        run, net, ones = self._run, self._grid.codes.net, np.ones(len(self._run.run_ms))
        lasted = (run.end_ms - run.start_ms) / np.maximum(self._grid.length_ms, 1)
        transfer_ms = np.zeros(len(ones), np.int64) if net is None else net.data_ms
        if self._links is not None and self._links.moves_data:
            transfer_ms = self._links.moved_ms
        return GridOutcome(
            state=self._state,
            start_ms=run.start_ms,
            end_ms=run.end_ms,
            factor=ones if net is None else net.factor,
            slowdown=ones if net is None else np.where(run.start_ms != NEVER, lasted, ones),
            transfer_ms=transfer_ms,
            unplaceable=self._unplaceable(),
        )

    def _unplaceable(self) -> BoolArray:
        """Return a mask of the jobs that became unplaceable before they were started or cancelled."""
        unplaceable: BoolArray = self._run.start_ms == NEVER
        if self._cancels is not None:
            at_ms, rows = self._cancels
            unplaceable[rows[at_ms < self._grid.unplaceable_ms[rows]]] = False
        return unplaceable


def _new_contention(state: GridState, codes: GridCodes, net: GridNet, jobs: int) -> Contention:
    """Allocate the contention state, with no traffic on the links."""
    # Running jobs have at most one fragment per node, and each fragment has a flow to every other fragment of its job.
    most = min(len(state.nodes), int(state.jobs["width"].max(initial=1)))
    capacity = int(state.nodes.sum()) * max(most - 1, 1)
    moves_data = net.data != "none"
    splittable = np.zeros(jobs, np.bool_)
    find_splittable(state, codes._replace(net=None), splittable)
    moving = _FIRST_MOVES if moves_data else 0
    surplus_ms, moved_ms = np.zeros((2, jobs), np.int64)
    return Contention(
        dynamic=net.contention == "dynamic",
        flows=new_flows(capacity + moving),
        filling=new_filling(len(net.model.arrays.capacity), capacity + moving),
        slowdown=np.ones(jobs + moving),
        moves=new_moves(jobs if moves_data else 0, moving),
        moves_data=moves_data,
        anywhere=splittable,
        spare_ms=surplus_ms,
        moved_ms=moved_ms,
    )


def unplaceable_from(state: GridState, codes: GridCodes, net: GridNet) -> IntArray:
    """Return, for each slot, the time from which its job can no longer be placed, even on an idle grid.

    All later link changes are considered. The time is 0 if the job can never be placed, and `NEVER_MS` if it
    can still be placed in the last period. ``state`` is the idle grid with the jobs in its table; ``codes`` contain
    the links of the first period.
    """
    unplaceable_ms = np.zeros(len(state.jobs), np.int64)
    possible, ever = np.zeros((2, len(state.jobs)), np.bool_)
    until_ms, seen = int(NEVER_MS), set()
    for at_ms, model in reversed(list(net.periods())):
        if id(model.paths) not in seen:
            seen.add(id(model.paths))
            assert codes.net is not None
            find_possible(state, codes._replace(net=with_paths(codes.net, model.arrays)), possible)
            unplaceable_ms[possible & ~ever] = until_ms
            ever |= possible
            if ever.all():
                break
        until_ms = at_ms
    return unplaceable_ms


COLUMNS = ("factor", "slowdown", "transfer_ms")
"""Columns of ``jobs.csv`` for runs with a network."""


def network_use(result: SimulationResult, net: GridNet) -> NetworkUse:
    """Summarize the effect of the network on the jobs of a run."""
    topology, several = net.model.topology, result.multi_site
    factor, slowdown, transfer_ms = (result.columns[name] for name in COLUMNS)
    width = result.workload.width.astype(np.float64)
    took = width * (result.end_ms - result.start_ms)
    return NetworkUse(
        name=Path(topology.name).name,
        nodes=len(topology.nodes),
        cables=len(np.unique(topology.cable)),
        changes=0 if net.timetable is None else len(net.timetable.instants_ms),
        split=net.split,
        contention=net.contention,
        data=net.data,
        mean_factor=_mean(factor[several]),
        mean_factor_by_area=_mean(factor[several], (width * result.workload.run_ms)[several]),
        mean_slowdown=_mean(slowdown[several | (transfer_ms > 0)]),
        jobs_with_transfers=int(np.count_nonzero(transfer_ms)),
        transfer_ms=int(transfer_ms.sum()),
        transfer_share=_mean(transfer_ms / np.maximum(result.end_ms - result.start_ms, 1), took),
    )


def policy_label(policy: GridPolicy, net: GridNet | None) -> str:
    """Return a policy's label for tables and plots; with a network, the label omits the overhead p."""
    if net is None:
        return policy.label
    parts = [msgspec.structs.replace(policy, overhead=0.0).label.replace(" p=0%", " over the network")]
    if policy.splits:
        parts += ["to the fewest sites"] * (net.split == "fewest")
        parts += [f"up to factor {net.max_split_factor:g}"] * (net.max_split_factor != MAX_SPLIT_FACTOR)
    parts += [f"{net.contention} contention"] * (net.contention != "none")
    parts += [f"{net.data} data"] * (net.data != "none")
    return " ".join(parts)


def _mean(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64] | None = None) -> float | None:
    """Return the mean; None if there are no values, the weights sum to 0, or the mean is not finite."""
    if not len(values) or (weights is not None and not weights.sum() > 0):
        return None
    mean = float(np.average(values, weights=weights))
    return mean if math.isfinite(mean) else None
