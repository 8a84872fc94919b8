"""Network links in the simulated world, and the jobs' traffic on them (docs/grid.md, "With a network").

Covers how traffic slows jobs down, how links change, and which jobs can no longer be placed after a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.control.links import GridNetwork, new_links
from gridweave.grid.kernels.links import MAX_OVERHEAD, NO_DATA, PREFETCH, GridLinks, data_delay_ms, grown_ms
from gridweave.grid.kernels.links_placement import find_splittable
from gridweave.grid.kernels.state import empty_grid
from gridweave.grid.messages import GridEvent, GridJobUnplaceable, LinksChanged
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.changes import Timetable
from gridweave.netmodel.kernels.contention import add_job_flows, all_slowdowns, drop_flows, share_links
from gridweave.netmodel.kernels.overhead import split_factor
from gridweave.netmodel.kernels.state import PART, more_flows, new_filling, new_flows
from gridweave.netmodel.model import NetworkModel
from gridweave.scenarios.batch.grid_network import (
    WHY_UNPLACEABLE,
    GridNet,
    communication_of,
    data_of,
    links_of,
    network_of,
    unplaceable_from,
    why_stuck,
)
from gridweave.scenarios.batch.kernels.moves import (
    IN_USE,
    NO_MOVE,
    STIRRED,
    added_work,
    deliver,
    drop_moves,
    fetch,
    fetch_ahead,
    last_move,
    more_moves,
    new_moves,
    next_job_served,
    output_work,
    set_move_rates,
)
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.scenarios.world.connections import Routes
from gridweave.site.disciplines.compiled import fill_jobs
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RATE_ONE, first_end_ms, rate_of, work_left, work_of

_FIRST_CAPACITY = 64


class JobRate(NamedTuple):
    """The new rate of a job's work, or of its data transfer if ``works`` is false.

    ``left`` is the remaining work according to the job's estimate, or None if the last report implies it.
    """

    job_id: int
    attempt: int
    rate: int
    left: int | None = None
    works: bool = True


class Served(NamedTuple):
    """A job whose input or output has arrived; ``run_ms`` is its run time at rate 1, or None if output has arrived."""

    job_rate: JobRate
    run_ms: int | None


@dataclass(slots=True)
class _Sender:
    """A running job, the links used to place it, and the last report to its sites about its transfer."""

    row: int
    attempt: int
    number: int
    fragments: Fragments
    links: GridLinks
    work_ms: int
    estimate_ms: int
    rate: int = RATE_ONE
    works: bool = False
    changed_ms: int = 0
    reported: tuple[int, ...] = ()


class LinkTraffic:
    """The actual state of a workload's jobs and data on a network; the grid may use ``nodes`` nodes of each site.

    A job's factor and, without contention, its transfer time depend on the state of the links when the grid placed the
    job. With static or dynamic contention, its data moves in flows (docs/grid.md, "Transfers under contention").

    For each job, ``factor`` is its run time on idle links divided by its run time on one site, ``length_ms`` its run
    plus transfer time on idle links, and ``transfer_ms`` the time for which its data moved while it held nodes.
    ``stirred`` says whether an event at this instant may change the rates of jobs.
    """

    def __init__(
        self,
        workload: Workload,
        network: GridNetwork,
        contention: str,
        nodes: Sequence[int],
        splittable: npt.NDArray[np.bool_],
    ) -> None:
        sites = len(network.model.topology.sites)
        self._rows = {job_id: row for row, job_id in enumerate(workload.job_id.tolist())}
        self._job_id = workload.job_id.tolist()
        self._communication = communication_of(workload)
        self._data = data_of(workload, sites)
        self._submit_ms, self._width, self._estimate_ms = workload.submit_ms, workload.width, workload.estimate_ms
        self._nodes = np.array(nodes, np.int64)
        self._splittable = splittable
        self._links = new_links(
            GridNetwork(network.model, False, network.staging, network.exact_up_to, 1.0 + MAX_OVERHEAD),
            slots=1,
            widest=1,
        )
        self._contention = contention
        self._moves_data = contention != "none" and network.staging != NO_DATA
        self._fetches_ahead = self._moves_data and network.staging == PREFETCH
        self._placed_by: dict[int, tuple[int, GridLinks, int]] = {}
        self._n_placed = 0
        self._senders: dict[int, _Sender] = {}
        # Jobs that began to work at this instant and do not have flows yet.
        self._begun: dict[int, _Sender] = {}
        self._job_rates: list[JobRate] = []
        self._moves = new_moves(len(workload), _FIRST_CAPACITY)
        self._flows = new_flows(2 * _FIRST_CAPACITY)
        self._filling = new_filling(len(network.model.arrays.capacity), 2 * _FIRST_CAPACITY)
        self.stirred = False
        self.next_ms = int(NEVER_MS)
        count = len(workload)
        self.factor = np.ones(count)
        self._slowdown = np.ones(count + _FIRST_CAPACITY)
        self.length_ms, self.transfer_ms = np.zeros((2, count), np.int64)

    def links_changed(self, model: NetworkModel) -> None:
        """Update the paths of flows after the links have changed."""
        self._links = self._links._replace(paths=model.arrays)
        self.stirred = self._contention != "none"

    def handed_in(self, now_ms: int, job_id: int) -> None:
        """Start to move a waiting job's input if the staging mode is prefetch."""
        if self._fetches_ahead:
            row = self._rows[job_id]
            self._ensure_capacity(len(self._nodes))
            fetch_ahead(
                self._links.paths,
                self._moves,
                self._flows,
                self._data[row],
                np.int64(row),
                self._width[row],
                self._nodes,
                self._splittable[row],
                np.int64(now_ms),
            )
            self._check_moves()

    def given_up(self, job_id: int) -> None:
        """Drop the transfers of a job that is no longer waiting."""
        if self._fetches_ahead and job_id in self._rows:
            drop_moves(self._moves, self._flows, np.int64(self._rows[job_id]))
            self._check_moves()

    def asked(self, job_id: int, attempt: int) -> None:
        """Save the current state of the links for an attempt, because the grid used this state to place the job."""
        if job_id not in self._placed_by or self._placed_by[job_id][0] != attempt:
            self._placed_by[job_id] = attempt, self._links, self._n_placed
            self._n_placed += 1

    def begins(self, now_ms: int, job_id: int, attempt: int, fragments: Fragments, run_ms: int) -> int | None:
        """Return the time that a job now needs on these nodes at rate 1; None if the job has to wait for data first."""
        row = self._rows[job_id]
        placed_attempt, links, number = self._placed_by[job_id]
        assert placed_attempt == attempt, "the attempt is over"
        data_ms = self._data_delay_ms(now_ms, row, links, fragments)
        self.factor[row] = 1.0
        if len(fragments) > 1:
            parts = np.array(list(fragments), PART)
            self.factor[row] = split_factor(links.paths, self._communication[row], parts, len(parts))
        run_ms = self._grown_ms(row, run_ms)
        self.length_ms[row] = data_ms + run_ms
        estimate_ms = self._grown_ms(row, int(self._estimate_ms[row]))
        sender = _Sender(row, attempt, number, fragments, links, run_ms, estimate_ms)
        if not self._moves_data:
            self.transfer_ms[row] = data_ms
            if len(fragments) > 1 and self._contention != "none":
                self._begin_work(now_ms, job_id, sender)
            return data_ms + run_ms
        self.transfer_ms[row] = 0
        if self._fetch(now_ms, sender):
            sender.changed_ms = now_ms
            self._senders[job_id] = sender
            # Prefetched input keeps its old rate, which has not been reported to the job's sites yet.
            self.stirred = True
            return None
        self._job_rates.append(self._begin_work(now_ms, job_id, sender))
        return run_ms

    def _data_delay_ms(self, now_ms: int, row: int, links: GridLinks, fragments: Fragments) -> int:
        """Return how long a job waits for its data, given the state of the links when the job was placed."""
        if links.staging == NO_DATA:
            return 0
        links.data[0] = self._data[row]
        times = np.int64(self._submit_ms[row]), np.int64(now_ms)
        return int(max(data_delay_ms(links, np.int64(0), times[0], np.int64(site), times[1]) for site, _ in fragments))

    def _grown_ms(self, row: int, time_ms: int) -> int:
        return int(grown_ms(np.int64(time_ms), self.factor[row]))

    def _begin_work(self, now_ms: int, job_id: int, sender: _Sender) -> JobRate:
        """Begin a job's work, at rate 1 for now; return the rate to report to its sites if data moves."""
        sender.works, sender.changed_ms, sender.rate = True, now_ms, RATE_ONE
        self._senders.pop(job_id, None)
        self._begun[job_id] = sender
        self.stirred = True
        left = int(work_of(sender.estimate_ms))
        if self._moves_data:
            left = int(added_work(left, output_work(self._moves, np.int64(sender.row))))
        return JobRate(job_id, sender.attempt, RATE_ONE, left)

    def _fetch(self, now_ms: int, sender: _Sender) -> bool:
        """Start to move the rest of a job's input; return whether the job has to wait for the input."""
        self._ensure_capacity(2 * len(sender.fragments))
        parts, row = np.array(list(sender.fragments), PART), np.int64(sender.row)
        paths, data = sender.links.paths, self._data[row]
        waits = fetch(paths, self._moves, self._flows, data, row, parts, len(parts), np.int64(now_ms))
        self._check_moves()
        return bool(waits)

    def served(self, now_ms: int) -> Iterator[Served]:
        """Yield the jobs whose input or output has arrived by now."""
        while (row := int(next_job_served(self._moves, self._flows, np.int64(now_ms)))) != NO_MOVE:
            job_id = self._job_id[row]
            sender = self._senders[job_id]
            self.transfer_ms[row] += now_ms - sender.changed_ms
            if sender.works:
                yield Served(JobRate(job_id, sender.attempt, RATE_ONE, 0), None)
            else:
                yield Served(self._begin_work(now_ms, job_id, sender), sender.work_ms)
        self._check_moves()

    def delivers(self, now_ms: int, job_id: int) -> JobRate | None:
        """Start to move a job's output after its work; return the rate to report to its sites; None without output."""
        if not self._moves_data:
            return None
        sender = self._senders.get(job_id) or self._begun[job_id]
        row = np.int64(sender.row)
        self._stop_sending(row)
        if not deliver(self._moves, self._flows, row, np.int64(now_ms)):
            return None
        sender.changed_ms = now_ms
        self._check_moves()
        job_rate = self._rate_of_data(now_ms, job_id, sender)
        assert job_rate is not None, "new output was reported before"
        return job_rate

    def _rate_of_data(self, now_ms: int, job_id: int, sender: _Sender) -> JobRate | None:
        """Return the rate of the transfer that a job is waiting for, or None if this rate was already reported."""
        moves, row = self._moves, np.int64(sender.row)
        move = int(last_move(moves, row))
        assert move != NO_MOVE, "the job has no data on its way"
        data = moves.work[move]
        reported = move, *(int(data[name]) for name in ("left", "rate", "since_ms"))
        if reported == sender.reported:
            return None
        sender.reported = reported
        left = work_left(data["left"], data["rate"], data["since_ms"], np.int64(now_ms))
        if not sender.works:
            rest = added_work(work_of(np.int64(sender.estimate_ms)), output_work(moves, row))
            left = added_work(left, rest)
        return JobRate(job_id, sender.attempt, reported[2], int(left), works=False)

    def ends(self, job_id: int) -> None:
        """Drop a job's flows and transfers."""
        self._begun.pop(job_id, None)
        if self._job_rates:
            self._job_rates = [job_rate for job_rate in self._job_rates if job_rate.job_id != job_id]
        sender = self._senders.pop(job_id, None)
        if sender is not None:
            self._stop_sending(np.int64(sender.row))
        if self._moves_data and job_id in self._rows:
            drop_moves(self._moves, self._flows, np.int64(self._rows[job_id]))
            self._check_moves()

    def _stop_sending(self, row: np.int64) -> None:
        if drop_flows(self._flows, row) > 0:
            # With static contention, a job's rate is fixed at its start; dropping flows does not speed up other jobs.
            self.stirred = self.stirred or self._contention == "dynamic"

    def rates(self, now_ms: int) -> list[JobRate]:
        """Divide the bandwidth of the links among the flows again; return the jobs whose rates have changed."""
        self.stirred = False
        begun = sorted(self._begun.items(), key=lambda item: item[1].number)
        self._begun = {}
        for job_id, sender in begun:
            self._add_flows(sender)
            self._senders[job_id] = sender
        share_links(self._links.paths, self._flows, self._filling)
        all_slowdowns(self._flows, self._slowdown)
        if self._moves_data:
            dynamic = self._contention == "dynamic"
            set_move_rates(self._moves, self._flows, self._slowdown, dynamic, np.int64(now_ms))
            self.next_ms = int(first_end_ms(self._moves.ends))
        owners = set(self._flows.owner[: int(self._flows.n_flows[0])].tolist())
        job_rates, self._job_rates = self._job_rates, []
        first = {job_id for job_id, _ in begun}
        for job_id, sender in self._senders.items():
            if self._moves_data and self._moves.under_way[sender.row] > 0:
                job_rate = self._rate_of_data(now_ms, job_id, sender)
                job_rates += [] if job_rate is None else [job_rate]
                continue
            # Static contention fixes a job's rate when it starts, or when a failed link that stopped it recovers.
            counts = self._contention == "dynamic" or job_id in first or sender.rate == 0
            if counts and sender.row in owners:
                slowdown = self._slowdown[sender.row]
                rate = 0 if slowdown == np.inf else int(rate_of(slowdown))
                if rate != sender.rate:
                    sender.rate = rate
                    job_rates.append(JobRate(job_id, sender.attempt, rate))
        return job_rates

    def slowdowns(self, start_ms: IntArray, end_ms: IntArray) -> npt.NDArray[np.float64]:
        """Return each job's time from start to end, relative to its time on idle links; 1 if the latter is unknown."""
        has_length = (self.length_ms > 0) & (start_ms != NEVER)
        slowdown: npt.NDArray[np.float64] = np.where(
            has_length, (end_ms - start_ms) / np.maximum(self.length_ms, 1), 1.0
        )
        return slowdown

    def check_all_move(self, now_ms: int) -> None:
        """Raise InputError if a job has rate 0; to be called only after the last link change."""
        for job_id, sender in self._senders.items():
            rate, of_data = sender.rate, False
            if self._moves_data and (move := int(last_move(self._moves, np.int64(sender.row)))) != NO_MOVE:
                rate, of_data = int(self._moves.work[move]["rate"]), True
            if rate == 0:
                raise InputError(why_stuck(job_id, now_ms, of_data=of_data))

    def _add_flows(self, sender: _Sender) -> None:
        parts = np.array(list(sender.fragments), PART)
        self._ensure_flow_capacity(2 * len(parts) * len(parts))
        # Flows use the paths on which the job was placed; a flow whose path no longer exists has rate 0.
        paths, row = sender.links.paths, np.int64(sender.row)
        add_job_flows(paths, self._flows, row, self._communication[row], parts, len(parts), self.factor[row])

    def _ensure_flow_capacity(self, more: int) -> None:
        capacity = int(self._flows.n_flows[0]) + more
        if capacity > len(self._flows.owner):
            self._flows = more_flows(self._flows, 2 * capacity)
            self._filling = new_filling(len(self._filling.left), 2 * capacity)

    def _ensure_capacity(self, more: int) -> None:
        """Grow the arrays to hold ``more`` additional transfers."""
        self._ensure_flow_capacity(more)
        capacity = int(self._moves.counts[IN_USE]) + more
        if capacity > len(self._moves.row):
            self._moves = more_moves(self._moves, 2 * capacity)
            self._slowdown = np.append(self._slowdown, np.ones(2 * capacity))

    def _check_moves(self) -> None:
        """Set ``stirred`` if transfers have started, ended or been dropped."""
        self.stirred = self.stirred or bool(self._moves.counts[STIRRED])


class WorldLinks:
    """The links between the sites, and the timetable of their changes.

    ``network`` is the grid's model of the links, and ``traffic`` the jobs' traffic on them.
    """

    def __init__(self, workload: Workload, nodes: Sequence[int], policy: GridPolicy, net: GridNet) -> None:
        net.check(np.array(nodes, np.int64), policy)
        if net.data != "none" and policy.control == "none":
            raise OptionError("data", "is not moved under control 'none', which knows no links")
        self.network = network_of(net)
        splittable = splittable_jobs(workload, nodes, policy)
        self.traffic = LinkTraffic(workload, self.network, net.contention, nodes, splittable)
        self._changes = list(_changes_of(net))
        self._unplaceable_ms = unplaceable_jobs(workload, nodes, policy, net)
        by_time = ((at_ms, job_id) for job_id, at_ms in self._unplaceable_ms.items() if 0 < at_ms < NEVER_MS)
        self._by_time = sorted(by_time, reverse=True)
        self._period = -1

    @property
    def instants_ms(self) -> list[int]:
        """The times at which links change."""
        return [at_ms for at_ms, *_ in self._changes]

    @property
    def is_failing(self) -> bool:
        """Whether a link is degraded or down now, and a later link change might repair it."""
        return 0 <= self._period < len(self._changes) - 1 and min(self._changes[self._period][1]) < 1

    def change(self, period: int, routes: Routes) -> tuple[list[GridEvent], int]:
        """Apply a link change; return the events for the grid, and the number of sites that the change cut off."""
        self._period = period
        at_ms, factors, model = self._changes[period]
        self.traffic.links_changed(model)
        events: list[GridEvent] = [LinksChanged(factors)]
        while self._by_time and self._by_time[-1][0] <= at_ms:
            # The grid ignores jobs that are not in its queue.
            events.append(GridJobUnplaceable(self._by_time.pop()[1], WHY_UNPLACEABLE))
        return events, routes.change(model)

    def handed_in(self, now_ms: int, job_id: int) -> list[GridEvent]:
        """Start to move a submitted job's input, or return the event for the grid if the job can never be placed."""
        if self._unplaceable_ms.get(job_id, int(NEVER_MS)) <= now_ms:
            return [GridJobUnplaceable(job_id, WHY_UNPLACEABLE)]
        self.traffic.handed_in(now_ms, job_id)
        return []

    def check_all_move(self, now_ms: int) -> None:
        """Raise InputError if a job is stuck forever, i.e. has rate 0 after the last link change."""
        if self._period == len(self._changes) - 1:
            self.traffic.check_all_move(now_ms)


def _changes_of(net: GridNet) -> Iterator[tuple[int, tuple[float, ...], NetworkModel]]:
    """Yield, for each link change, its time, and the cables' bandwidth factors and the network from that time on."""
    if net.timetable is not None:
        for period, (at_ms, model) in enumerate(net.periods()):
            if period:
                yield at_ms, tuple(net.timetable.factors[period].tolist()), model


def merged(timetable: Timetable, other: Timetable) -> Timetable:
    """Merge two timetables of the same topology; at any time, each cable has the lower of its two factors."""
    instants_ms = np.union1d(timetable.instants_ms, other.instants_ms)
    starts_ms = [-1, *instants_ms.tolist()]
    factors = [
        np.minimum(*(table.factors[table.period_of(at_ms)] for table in (timetable, other))) for at_ms in starts_ms
    ]
    return Timetable(timetable.topology, instants_ms, np.array(factors))


def splittable_jobs(workload: Workload, nodes: Sequence[int], policy: GridPolicy) -> npt.NDArray[np.bool_]:
    """Return a mask of the jobs that the grid might split over several sites, given the nodes it may use."""
    splittable = np.zeros(len(workload), np.bool_)
    if len(workload):
        state = empty_grid(np.array(nodes, np.int64), slots=len(workload))
        fill_jobs(state.jobs, workload, np.arange(len(workload)), policy.order)
        find_splittable(state, policy.codes(), splittable)
    return splittable


def unplaceable_jobs(workload: Workload, nodes: Sequence[int], policy: GridPolicy, net: GridNet) -> dict[int, int]:
    """Map each job that will become unplaceable to the time from which even an idle grid can no longer place the job.

    Jobs that are too wide for any state of the links are left out, since the grid itself refuses them.
    """
    if policy.control == "none":
        return {}
    sites = np.array(nodes, np.int64)
    fits = {int(width): policy.why_never(sites, int(width)) is None for width in np.unique(workload.width)}
    rows = np.flatnonzero([fits[width] for width in workload.width.tolist()])
    if not len(rows):
        return {}
    state = empty_grid(sites, slots=len(rows))
    fill_jobs(state.jobs, workload, rows, policy.order)
    unplaceable_ms = unplaceable_from(state, policy.codes()._replace(net=links_of(net, workload, rows)), net)
    return dict(zip(workload.job_id[rows].tolist(), unplaceable_ms.tolist(), strict=True))
