"""A network between the sites of a simulated grid: what it is, and what the jobs of a workload send over it.

A simulation of a grid with a network: the compiled loop, period after period of the links.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.grid.control.links import GridNetwork, new_links, with_paths
from gridweave.grid.kernels.candidates import withdraw
from gridweave.grid.kernels.grid_plan import planned_job_withdrawn
from gridweave.grid.kernels.links import (
    BLOCKING,
    JOB_DATA,
    MAX_OVERHEAD,
    NO_DATA,
    PREFETCH,
    GridLinks,
)
from gridweave.grid.kernels.links_placement import find_possible, find_splittable
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.reservations import ReservedStarts, empty_grid_plan, enlarged
from gridweave.grid.kernels.state import FRAGMENT, GridState, is_full
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import MAX_BYTES
from gridweave.netmodel.changes import Timetable
from gridweave.netmodel.communication import PATTERNS, Communication
from gridweave.netmodel.kernels.state import COMMUNICATION, more_flows, new_filling, new_flows
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.tables import CONTENTIONS, EXACT_UP_TO
from gridweave.scenarios.batch.kernels.grid_net_batch import (
    APART,
    DONE,
    NO_ROOM,
    NO_ROOM_FOR_MOVES,
    NOT_RUNNING,
    NetRun,
    run_net_batch,
)
from gridweave.scenarios.batch.kernels.moves import drop_moves, more_moves, new_moves
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.site.kernels.state import NEVER_MS, REPLAN

SPLITS = ("fewest", "earliest-end")
STAGINGS = {"none": NO_DATA, "blocking": BLOCKING, "prefetch": PREFETCH}


@dataclass(frozen=True, eq=False, slots=True)
class GridNet:
    """A network between the sites of a grid (docs/grid.md, "With a network").

    Parameters
    ----------
    model : NetworkModel
        Its sites are those of the grid, in their order.
    timetable : Timetable, optional
        How its links change in time; its first period is the topology of the model.
    contention : str
        What jobs do to each other on the same links: ``none``, ``static`` or ``dynamic``.
    split : str
        Where a job is split: over the ``fewest`` sites, as in the thesis, or for the ``earliest-end``.
    data : str
        Whether jobs have data to move, and when: ``none``, ``blocking`` or ``prefetch``.
    exact_up_to : int
        For ``earliest-end``: if a job can be placed in no more ways than this, all are looked at.

    Raises
    ------
    OptionError
        If a name is unknown, a number makes no sense, or the timetable is of another topology.
    """

    model: NetworkModel
    timetable: Timetable | None = None
    contention: str = "none"
    split: str = "fewest"
    data: str = "none"
    exact_up_to: int = EXACT_UP_TO

    def __post_init__(self) -> None:
        for option, known in (("contention", CONTENTIONS), ("split", SPLITS), ("data", tuple(STAGINGS))):
            if getattr(self, option) not in known:
                raise OptionError(option, f"{getattr(self, option)!r} is not known; one of {', '.join(known)}")
        if self.exact_up_to < 0:
            raise OptionError("exact_up_to", f"is {self.exact_up_to}; placements, from 0 up")
        if self.timetable is not None and self.timetable.topology is not self.model.topology:
            raise OptionError("timetable", "is of another topology than the model")

    def periods(self) -> Iterator[tuple[int, NetworkModel]]:
        """Yield the instants at which links change, and the network from then on; first that of the beginning, at 0."""
        if self.timetable is None:
            yield 0, self.model
            return
        for period, at_ms in enumerate([0, *self.timetable.instants_ms.tolist()]):
            yield int(at_ms), self._model_in(period)

    def _model_in(self, period: int) -> NetworkModel:
        timetable = self.timetable
        assert timetable is not None
        if (timetable.factors[period] == 1).all():
            return self.model
        found = self.model.paths
        paths = timetable.paths_in(period, found.routes, k=found.k, segment_bytes=found.segment_bytes)
        return replace(self.model, topology=timetable.topology_in(period), paths=paths)

    def check(self, nodes: IntArray, policy: GridPolicy) -> None:
        """Check that the network goes with a grid and its policy.

        Parameters
        ----------
        nodes : numpy.ndarray of int64, shape (sites,)

        Raises
        ------
        OptionError
            If it is of other sites, or the policy cannot have what it asks for.
        """
        sites = self.model.topology.sites
        if len(sites) != len(nodes):
            raise OptionError("net", f"has {len(sites)} sites and the grid has {len(nodes)}")
        if self.data != "none" and policy.backfill == "conservative":
            raise OptionError("data", "is not moved for reserved starts; backfill 'easy' or 'none', or data 'none'")
        if self.data != "none" and policy.mode == "local":
            raise OptionError("data", "is not moved in mode local, where each site is by itself")


def communication_of(workload: Workload) -> npt.NDArray[np.void]:
    """Return how the jobs of a workload communicate, as kernels read it.

    Parameters
    ----------
    workload : Workload
        Its columns ``pattern`` (places in `gridweave.netmodel.communication.PATTERNS`), ``communication_fraction`` and
        ``message_bytes``; where one is missing, no job communicates.

    Returns
    -------
    numpy.ndarray of COMMUNICATION, shape (n,)

    Raises
    ------
    InputError
        If there is no such pattern, or the size of a message makes no sense.
    """
    records = np.zeros(len(workload), COMMUNICATION)
    records["width"] = records["columns"] = workload.width
    records["planes"] = records["rows"] = 1
    columns = workload.columns
    if not {"pattern", "communication_fraction", "message_bytes"} <= set(columns):
        return records
    pattern = np.asarray(columns["pattern"], np.int64)
    n_bytes = np.asarray(columns["message_bytes"], np.int64)
    _refuse(workload, "pattern", (pattern < 0) | (pattern >= len(PATTERNS)), f"is none of {', '.join(PATTERNS)}")
    _refuse(workload, "message_bytes", (n_bytes < 0) | (n_bytes > MAX_BYTES), f"is not within 0 to {MAX_BYTES}")
    for code, name in enumerate(PATTERNS):
        rows = np.flatnonzero(pattern == code)
        if len(rows):
            widths, place = np.unique(workload.width[rows], return_inverse=True)
            records[rows] = Communication(pattern=name).records(widths)[place]
    records["fraction"] = columns["communication_fraction"]
    records["bits"] = 8.0 * n_bytes
    return records


def data_of(workload: Workload, sites: int) -> npt.NDArray[np.void]:
    """Return what the jobs of a workload read and write, as kernels read it.

    Parameters
    ----------
    workload : Workload
        Its columns ``input_bytes`` and ``input_site``, ``output_bytes`` and ``output_site``; where one is missing,
        there is no input, or no output.

    Returns
    -------
    numpy.ndarray of JOB_DATA, shape (n,)

    Raises
    ------
    InputError
        If there is no such site, or a size makes no sense.
    """
    records = np.zeros(len(workload), JOB_DATA)
    for what in ("input", "output"):
        if f"{what}_bytes" not in workload.columns or f"{what}_site" not in workload.columns:
            continue
        n_bytes = np.asarray(workload.columns[f"{what}_bytes"], np.int64)
        site = np.asarray(workload.columns[f"{what}_site"], np.int64)
        _refuse(workload, f"{what}_bytes", (n_bytes < 0) | (n_bytes > MAX_BYTES), f"is not within 0 to {MAX_BYTES}")
        _refuse(workload, f"{what}_site", (site < 0) | (site >= sites), f"is none of the sites 0 to {sites - 1}")
        records[f"{what}_bytes"], records[f"{what}_site"] = n_bytes, site
    return records


def _refuse(workload: Workload, name: str, wrong: npt.NDArray[np.bool_], problem: str) -> None:
    """Refuse a workload in which a column makes no sense, by the first such job."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{workload.name}: job {workload.job_id[row]}: {name} {workload.columns[name][row]} {problem}")


def network_of(net: GridNet) -> GridNetwork:
    """Return the network as a grid queue knows it."""
    return GridNetwork(net.model, net.split == "earliest-end", STAGINGS[net.data], net.exact_up_to)


def links_of(net: GridNet, workload: Workload, rows: IntArray) -> GridLinks:
    """Return what the grid queue knows of a network, at the beginning.

    Parameters
    ----------
    rows : numpy.ndarray of int64
        The jobs that have a slot, one after the other.
    """
    widest = int(workload.width[rows].max(initial=1))
    links = new_links(network_of(net), slots=len(rows), widest=widest)._replace(
        communication=communication_of(workload)[rows],
        data=data_of(workload, len(net.model.topology.sites))[rows],
    )
    return with_paths(links, net.model.arrays)


_FEW_JOBS = 256
"""Room in a plan at first: it is made larger as the queue needs it."""

_FIRST_MOVES = 1024
"""Room for input and output on their way, at first."""

WHY_HOPELESS = (
    "it could be placed on no sites: the links between them leave its parts, or its data, without a path, or would "
    f"make it take more than {MAX_OVERHEAD:,} times as long"
)


def why_stuck(job_id: int, since_ms: int, *, of_data: bool) -> str:
    """Return why a simulation is refused in which a job stands still for ever.

    Parameters
    ----------
    job_id, since_ms : int
        The job, and from when on.
    of_data : bool
        Whether it waits for its data; otherwise for what its parts send each other.
    """
    if of_data:
        what, contentions = "waits for its input or output, which", "contention none"
    else:
        what, contentions = "runs on several sites and", "contention none or static"
    return (
        f"job {job_id} {what} gets nothing over the links from {since_ms} ms on, for ever; "
        f"let them come back, or choose the {contentions}"
    )


class NetOutcome(NamedTuple):
    """What a simulation with a network comes to.

    Attributes
    ----------
    state : GridState
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        `NEVER` for jobs that the links keep from being placed.
    factor : numpy.ndarray of float64, shape (n,)
        By which each job grew on idle links.
    slowdown : numpy.ndarray of float64, shape (n,)
        By what else was on them, on average over its time.
    transfer_ms : numpy.ndarray of int64, shape (n,)
        How long its data moved while it held its nodes.
    """

    state: GridState
    start_ms: IntArray
    end_ms: IntArray
    factor: npt.NDArray[np.float64]
    slowdown: npt.NDArray[np.float64]
    transfer_ms: IntArray


def play_with_net(state: GridState, workload: Workload, rows: IntArray, policy: GridPolicy, net: GridNet) -> NetOutcome:
    """Simulate jobs on an idle grid with a network.

    Parameters
    ----------
    state : GridState
        Its table of jobs holds those of the rows.
    rows : numpy.ndarray of int64

    Raises
    ------
    InputError
        If a job runs over links that fail and never come back.
    """
    codes = policy.codes()._replace(net=links_of(net, workload, rows))
    run = _new_run(state, codes, net, workload.run_ms[rows], hopeless_from(state, codes, net))
    plan = empty_grid_plan(state, codes, room=_FEW_JOBS) if policy.backfill == "conservative" else None
    instants_ms = [] if net.timetable is None else net.timetable.instants_ms.tolist()
    for number, (at_ms, model) in enumerate(net.periods()):
        assert codes.net is not None
        if number > 0:
            codes = codes._replace(net=with_paths(codes.net, model.arrays))
            run.clock[2] = at_ms
            _refuse_hopeless(state, plan, run, at_ms)
            if plan is not None:
                plan.counters["stale"] = REPLAN
        change_ms = np.int64(instants_ms[number] if number < len(instants_ms) else NEVER_MS)
        while (why := run_net_batch(state, codes, plan, run, change_ms)) in (NO_ROOM, NO_ROOM_FOR_MOVES):
            if why == NO_ROOM_FOR_MOVES:
                run = _with_more_moves(run)
            elif plan is not None and not is_full(state):
                plan = enlarged(plan)
            else:
                state = _with_more_fragments(state)
        counters = state.counters[0]
        if why == DONE or (run.clock[0] == len(rows) and not counters["n_waiting"] and not counters["n_running"]):
            break
    _check_all_ended(state, run)
    return _outcome(state, codes, run)


def _new_run(state: GridState, codes: GridCodes, net: GridNet, run_ms: IntArray, hopeless_ms: IntArray) -> NetRun:
    jobs, running = len(run_ms), len(state.started)
    links = len(net.model.arrays.capacity)
    contention = CONTENTIONS.index(net.contention)
    # All fragments of running jobs are no more than the nodes, and each has a flow to each other of its job, and back.
    most = min(len(state.nodes), int(state.jobs["width"].max(initial=1)))
    room = 1 if contention == APART else int(state.nodes.sum()) * max(most - 1, 1)
    start_ms, end_ms = np.full((2, jobs), NEVER, np.int64)
    length_ms, spare_ms, left, since_ms, moved_ms = np.zeros((5, jobs), np.int64)
    ends, ends_row = np.zeros((2, 2 * running + 1), np.int64)
    moves_data = contention != APART and net.data != "none"
    anywhere = np.zeros(jobs, np.bool_)
    find_splittable(state, codes._replace(net=None), anywhere)
    moving = _FIRST_MOVES if moves_data else 0
    return NetRun(
        contention=contention,
        flows=new_flows(room + moving),
        filling=new_filling(links, room + moving),
        slowdown=np.ones(jobs + moving),
        moves=new_moves(jobs if moves_data else 0, moving),
        moves_data=moves_data,
        anywhere=anywhere,
        run_ms=np.ascontiguousarray(run_ms),
        hopeless_ms=hopeless_ms,
        start_ms=start_ms,
        end_ms=end_ms,
        length_ms=length_ms,
        spare_ms=spare_ms,
        left=left,
        rate=np.full(jobs, NOT_RUNNING),
        since_ms=since_ms,
        moved_ms=moved_ms,
        ends=ends,
        ends_row=ends_row,
        clock=np.array([0, 0, NEVER_MS, 0], np.int64),
    )


def hopeless_from(state: GridState, codes: GridCodes, net: GridNet) -> IntArray:
    """Return for each job from when on it could not be placed on the idle grid any more, whatever the links become.

    Parameters
    ----------
    state : GridState
        Of the idle grid, with the jobs in its table.
    codes : GridCodes
        With the links at the beginning.

    Returns
    -------
    numpy.ndarray of int64, shape (slots,)
        0 if it never could be, `NEVER_MS` if it always can be again.
    """
    hopeless_ms = np.zeros(len(state.jobs), np.int64)
    possible, ever = np.zeros((2, len(state.jobs)), np.bool_)
    until_ms, seen = int(NEVER_MS), set()
    for at_ms, model in reversed(list(net.periods())):
        if id(model.paths) not in seen:
            seen.add(id(model.paths))
            assert codes.net is not None
            find_possible(state, codes._replace(net=with_paths(codes.net, model.arrays)), possible)
            hopeless_ms[possible & ~ever] = until_ms
            ever |= possible
            if ever.all():
                break
        until_ms = at_ms
    return hopeless_ms


def _refuse_hopeless(state: GridState, plan: ReservedStarts | None, run: NetRun, now_ms: int) -> None:
    """Take jobs out of the queue that cannot be placed from now on."""
    for place in range(int(state.counters[0]["n_waiting"]) - 1, -1, -1):
        slot = state.waiting[place]
        if run.hopeless_ms[slot] <= now_ms:
            if plan is None:
                withdraw(state, np.int64(place))
            else:
                planned_job_withdrawn(state, plan, np.int64(place))
            if run.moves_data:
                drop_moves(run.moves, run.flows, slot)


def _with_more_fragments(state: GridState) -> GridState:
    larger = np.zeros(2 * len(state.fragments), FRAGMENT)
    larger[: len(state.fragments)] = state.fragments
    return state._replace(fragments=larger)


def _with_more_moves(run: NetRun) -> NetRun:
    """Return a run with room for twice as many moves."""
    more = len(run.moves.row)
    flows = more_flows(run.flows, len(run.flows.owner) + more)
    return run._replace(
        flows=flows,
        filling=new_filling(len(run.filling.left), len(flows.owner)),
        slowdown=np.append(run.slowdown, np.ones(more)),
        moves=more_moves(run.moves, 2 * more),
    )


def _check_all_ended(state: GridState, run: NetRun) -> None:
    stuck = np.flatnonzero(run.rate != NOT_RUNNING)
    if len(stuck):
        row = int(stuck[0])
        of_data = run.moves_data and bool(run.moves.under_way[row])
        raise InputError(why_stuck(int(state.jobs[row]["job_id"]), int(run.since_ms[row]), of_data=of_data))
    assert not state.counters[0]["n_waiting"], "the grid loop ended with jobs that wait"


def _outcome(state: GridState, codes: GridCodes, run: NetRun) -> NetOutcome:
    assert codes.net is not None
    ran = run.start_ms != NEVER
    return NetOutcome(
        state=state,
        start_ms=run.start_ms,
        end_ms=run.end_ms,
        factor=codes.net.factor,
        slowdown=np.where(ran, (run.end_ms - run.start_ms) / np.maximum(run.length_ms, 1), 1.0),
        transfer_ms=run.moved_ms if run.moves_data else codes.net.data_ms,
    )
