"""The links of a network in the simulated world, and what jobs send over them (docs/grid.md, "With a network").

How that slows the jobs; and when links change, who feels it, who is told, and which jobs are without hope then.
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
from gridweave.grid.messages import GridEvent, GridJobHopeless, LinksChanged
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.changes import Timetable
from gridweave.netmodel.kernels.contention import add_job_flows, all_slowdowns, drop_flows, share_links
from gridweave.netmodel.kernels.overhead import split_factor
from gridweave.netmodel.kernels.state import PART, more_flows, new_filling, new_flows
from gridweave.netmodel.model import NetworkModel
from gridweave.scenarios.batch.grid_network import (
    WHY_HOPELESS,
    GridNet,
    communication_of,
    data_of,
    hopeless_from,
    links_of,
    network_of,
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

_FIRST_ROOM = 64


class JobRate(NamedTuple):
    """How a job goes on from now: its work, or (``works`` is false) its data.

    ``left`` is, by its estimate in units of work, all that it has still to do; None if that is what was left so far.
    """

    job_id: int
    attempt: int
    rate: int
    left: int | None = None
    works: bool = True


class Served(NamedTuple):
    """A job whose data has come, and how long it works now at rate 1; or whose output is where it is wanted (None)."""

    job_rate: JobRate
    run_ms: int | None


@dataclass(slots=True)
class _Sender:
    """A job that has begun, the links by which it was placed, and the move that its sites were told of last."""

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
    told: tuple[int, ...] = ()


class LinkTraffic:
    """The truth about the jobs of a workload on a network, where the grid may have so many nodes of each site.

    A job has the factor, and its data takes the time, of the links as they were when the grid placed it. Under static
    and dynamic contention its data has flows (docs/grid.md, "Transfers under contention"). Of each job ``factor`` is
    how it grew on idle links, ``length_ms`` how long it takes on them with its data, ``transfer_ms`` how long that
    moved while it held its nodes. ``stirred`` says that something has happened at this instant that may change the
    rates of jobs.
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
        self._asked: dict[int, tuple[int, GridLinks, int]] = {}
        self._n_asked = 0
        self._senders: dict[int, _Sender] = {}
        # Those that have begun to work at this instant, whose flows are not there yet.
        self._begun: dict[int, _Sender] = {}
        self._job_rates: list[JobRate] = []
        self._moves = new_moves(len(workload), _FIRST_ROOM)
        self._flows = new_flows(2 * _FIRST_ROOM)
        self._filling = new_filling(len(network.model.arrays.capacity), 2 * _FIRST_ROOM)
        self.stirred = False
        self.next_ms = int(NEVER_MS)
        count = len(workload)
        self.factor = np.ones(count)
        self._slowdown = np.ones(count + _FIRST_ROOM)
        self.length_ms, self.transfer_ms = np.zeros((2, count), np.int64)

    def links_changed(self, model: NetworkModel) -> None:
        """Let flows go by the links as they are now."""
        self._links = self._links._replace(paths=model.arrays)
        self.stirred = self._contention != "none"

    def handed_in(self, now_ms: int, job_id: int) -> None:
        """Let the input of a job set out while it waits, if it does."""
        if self._fetches_ahead:
            row = self._rows[job_id]
            self._make_room(len(self._nodes))
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
            self._look_at_moves()

    def given_up(self, job_id: int) -> None:
        """Take what is on its way to a job off the links that waits no more."""
        if self._fetches_ahead and job_id in self._rows:
            drop_moves(self._moves, self._flows, np.int64(self._rows[job_id]))
            self._look_at_moves()

    def asked(self, job_id: int, attempt: int) -> None:
        """Keep the links as they are now for a job that is placed by them."""
        if job_id not in self._asked or self._asked[job_id][0] != attempt:
            self._asked[job_id] = attempt, self._links, self._n_asked
            self._n_asked += 1

    def begins(self, now_ms: int, job_id: int, attempt: int, fragments: Fragments, run_ms: int) -> int | None:
        """Return how long a job takes at rate 1, from now on, on these nodes; None if its data has to come first."""
        row = self._rows[job_id]
        asked, links, number = self._asked[job_id]
        assert asked == attempt, "an attempt begins that is over"
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
            # Input that has been on its way goes on as it did, but the sites of the job do not know that it does.
            self.stirred = True
            return None
        self._job_rates.append(self._begin_work(now_ms, job_id, sender))
        return run_ms

    def _data_delay_ms(self, now_ms: int, row: int, links: GridLinks, fragments: Fragments) -> int:
        """Return how long the data of a job keeps its sites, by the links by which it was placed."""
        if links.staging == NO_DATA:
            return 0
        links.data[0] = self._data[row]
        times = np.int64(self._submit_ms[row]), np.int64(now_ms)
        return int(max(data_delay_ms(links, np.int64(0), times[0], np.int64(site), times[1]) for site, _ in fragments))

    def _grown_ms(self, row: int, time_ms: int) -> int:
        return int(grown_ms(np.int64(time_ms), self.factor[row]))

    def _begin_work(self, now_ms: int, job_id: int, sender: _Sender) -> JobRate:
        """Let a job work, at rate 1 so far; return what its sites are told, which matters if it moves data."""
        sender.works, sender.changed_ms, sender.rate = True, now_ms, RATE_ONE
        self._senders.pop(job_id, None)
        self._begun[job_id] = sender
        self.stirred = True
        left = int(work_of(sender.estimate_ms))
        if self._moves_data:
            left = int(added_work(left, output_work(self._moves, np.int64(sender.row))))
        return JobRate(job_id, sender.attempt, RATE_ONE, left)

    def _fetch(self, now_ms: int, sender: _Sender) -> bool:
        """Let the input of a job set out that has none ahead; return whether there is any to wait for."""
        self._make_room(2 * len(sender.fragments))
        parts, row = np.array(list(sender.fragments), PART), np.int64(sender.row)
        paths, data = sender.links.paths, self._data[row]
        waits = fetch(paths, self._moves, self._flows, data, row, parts, len(parts), np.int64(now_ms))
        self._look_at_moves()
        return bool(waits)

    def served(self, now_ms: int) -> Iterator[Served]:
        """Yield the jobs whose data has come, or been sent, by now."""
        while (row := int(next_job_served(self._moves, self._flows, np.int64(now_ms)))) != NO_MOVE:
            job_id = self._job_id[row]
            sender = self._senders[job_id]
            self.transfer_ms[row] += now_ms - sender.changed_ms
            if sender.works:
                yield Served(JobRate(job_id, sender.attempt, RATE_ONE, 0), None)
            else:
                yield Served(self._begin_work(now_ms, job_id, sender), sender.work_ms)
        self._look_at_moves()

    def delivers(self, now_ms: int, job_id: int) -> JobRate | None:
        """Return how a job goes on that has done its work; None if it has no output to send."""
        if not self._moves_data:
            return None
        sender = self._senders.get(job_id) or self._begun[job_id]
        row = np.int64(sender.row)
        self._stop_sending(row)
        if not deliver(self._moves, self._flows, row, np.int64(now_ms)):
            return None
        sender.changed_ms = now_ms
        self._look_at_moves()
        job_rate = self._rate_of_data(now_ms, job_id, sender)
        assert job_rate is not None, "output was told of that has just set out"
        return job_rate

    def _rate_of_data(self, now_ms: int, job_id: int, sender: _Sender) -> JobRate | None:
        """Return how the data of a job moves that waits for it; None if that has been told."""
        moves, row = self._moves, np.int64(sender.row)
        move = int(last_move(moves, row))
        assert move != NO_MOVE, "a job waits for no data"
        data = moves.work[move]
        told = move, *(int(data[name]) for name in ("left", "rate", "since_ms"))
        if told == sender.told:
            return None
        sender.told = told
        left = work_left(data["left"], data["rate"], data["since_ms"], np.int64(now_ms))
        if not sender.works:
            rest = added_work(work_of(np.int64(sender.estimate_ms)), output_work(moves, row))
            left = added_work(left, rest)
        return JobRate(job_id, sender.attempt, told[2], int(left), works=False)

    def ends(self, job_id: int) -> None:
        """Take a job's flows off the links."""
        self._begun.pop(job_id, None)
        if self._job_rates:
            self._job_rates = [job_rate for job_rate in self._job_rates if job_rate.job_id != job_id]
        sender = self._senders.pop(job_id, None)
        if sender is not None:
            self._stop_sending(np.int64(sender.row))
        if self._moves_data and job_id in self._rows:
            drop_moves(self._moves, self._flows, np.int64(self._rows[job_id]))
            self._look_at_moves()

    def _stop_sending(self, row: np.int64) -> None:
        if drop_flows(self._flows, row) > 0:
            # Those that run are not slowed less under static contention.
            self.stirred = self.stirred or self._contention == "dynamic"

    def rates(self, now_ms: int) -> list[JobRate]:
        """Share the links anew; return how those jobs go on whose rates are other ones then."""
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
            # What is found at the start counts, or, where a link has failed since a job was placed, when it is back.
            counts = self._contention == "dynamic" or job_id in first or sender.rate == 0
            if counts and sender.row in owners:
                slowdown = self._slowdown[sender.row]
                rate = 0 if slowdown == np.inf else int(rate_of(slowdown))
                if rate != sender.rate:
                    sender.rate = rate
                    job_rates.append(JobRate(job_id, sender.attempt, rate))
        return job_rates

    def slowdowns(self, start_ms: IntArray, end_ms: IntArray) -> npt.NDArray[np.float64]:
        """Return by what jobs took longer than on idle links; 1 for jobs of which no length is known here."""
        known = (self.length_ms > 0) & (start_ms != NEVER)
        slowdown: npt.NDArray[np.float64] = np.where(known, (end_ms - start_ms) / np.maximum(self.length_ms, 1), 1.0)
        return slowdown

    def check_all_move(self, now_ms: int) -> None:
        """Refuse a run in which a job stands still, to be called when the links change no more."""
        for job_id, sender in self._senders.items():
            rate, of_data = sender.rate, False
            if self._moves_data and (move := int(last_move(self._moves, np.int64(sender.row)))) != NO_MOVE:
                rate, of_data = int(self._moves.work[move]["rate"]), True
            if rate == 0:
                raise InputError(why_stuck(job_id, now_ms, of_data=of_data))

    def _add_flows(self, sender: _Sender) -> None:
        parts = np.array(list(sender.fragments), PART)
        self._make_flow_room(2 * len(parts) * len(parts))
        # By the links by which it was placed: where there is no way now its flows get nothing.
        paths, row = sender.links.paths, np.int64(sender.row)
        add_job_flows(paths, self._flows, row, self._communication[row], parts, len(parts), self.factor[row])

    def _make_flow_room(self, more: int) -> None:
        room = int(self._flows.n_flows[0]) + more
        if room > len(self._flows.owner):
            self._flows = more_flows(self._flows, 2 * room)
            self._filling = new_filling(len(self._filling.left), 2 * room)

    def _make_room(self, more: int) -> None:
        """Make room for so many more moves."""
        self._make_flow_room(more)
        room = int(self._moves.counts[IN_USE]) + more
        if room > len(self._moves.row):
            self._moves = more_moves(self._moves, 2 * room)
            self._slowdown = np.append(self._slowdown, np.ones(2 * room))

    def _look_at_moves(self) -> None:
        """Have the links shared anew if data has set out, has come or was given up."""
        self.stirred = self.stirred or bool(self._moves.counts[STIRRED])


class WorldLinks:
    """The links between the sites, as far as the grid may have these, and their timetable, carried out.

    ``network`` is what the grid knows, ``traffic`` what jobs send.
    """

    def __init__(self, workload: Workload, nodes: Sequence[int], policy: GridPolicy, net: GridNet) -> None:
        net.check(np.array(nodes, np.int64), policy)
        if net.data != "none" and policy.control == "none":
            raise OptionError("data", "is not moved under control 'none', which knows no links")
        self.network = network_of(net)
        splittable = splittable_jobs(workload, nodes, policy)
        self.traffic = LinkTraffic(workload, self.network, net.contention, nodes, splittable)
        self._changes = list(_changes_of(net))
        self._hopeless_ms = hopeless_jobs(workload, nodes, policy, net)
        by_time = ((at_ms, job_id) for job_id, at_ms in self._hopeless_ms.items() if 0 < at_ms < NEVER_MS)
        self._by_time = sorted(by_time, reverse=True)
        self._period = -1

    @property
    def instants_ms(self) -> list[int]:
        """When links change."""
        return [at_ms for at_ms, *_ in self._changes]

    @property
    def is_failing(self) -> bool:
        """Whether some link is slow or down now, and links are still to change."""
        return 0 <= self._period < len(self._changes) - 1 and min(self._changes[self._period][1]) < 1

    def change(self, period: int, routes: Routes) -> tuple[list[GridEvent], int]:
        """Let the links be as from this change on; return what the grid is told, and how many sites were cut off."""
        self._period = period
        at_ms, factors, model = self._changes[period]
        self.traffic.links_changed(model)
        events: list[GridEvent] = [LinksChanged(factors)]
        while self._by_time and self._by_time[-1][0] <= at_ms:
            # The grid passes over those that it does not have.
            events.append(GridJobHopeless(self._by_time.pop()[1], WHY_HOPELESS))
        return events, routes.change(model)

    def handed_in(self, now_ms: int, job_id: int) -> list[GridEvent]:
        """Let the input of a job that has hope set out; return what the grid is told of one that has none."""
        if self._hopeless_ms.get(job_id, int(NEVER_MS)) <= now_ms:
            return [GridJobHopeless(job_id, WHY_HOPELESS)]
        self.traffic.handed_in(now_ms, job_id)
        return []

    def check_all_move(self, now_ms: int) -> None:
        """Refuse a run in which a job stands still for ever."""
        if self._period == len(self._changes) - 1:
            self.traffic.check_all_move(now_ms)


def _changes_of(net: GridNet) -> Iterator[tuple[int, tuple[float, ...], NetworkModel]]:
    """Yield each instant at which links change, each cable's part of its bandwidth from then on, and the network."""
    if net.timetable is not None:
        for period, (at_ms, model) in enumerate(net.periods()):
            if period:
                yield at_ms, tuple(net.timetable.factors[period].tolist()), model


def merged(one: Timetable, other: Timetable) -> Timetable:
    """Return the timetable of two causes of change in a topology: of each cable the worse of both counts."""
    instants_ms = np.union1d(one.instants_ms, other.instants_ms)
    starts_ms = [-1, *instants_ms.tolist()]
    factors = [np.minimum(*(each.factors[each.period_of(at_ms)] for each in (one, other))) for at_ms in starts_ms]
    return Timetable(one.topology, instants_ms, np.array(factors))


def splittable_jobs(workload: Workload, nodes: Sequence[int], policy: GridPolicy) -> npt.NDArray[np.bool_]:
    """Return for each job whether it might be split, on the nodes that the grid may have."""
    found = np.zeros(len(workload), np.bool_)
    if len(workload):
        state = empty_grid(np.array(nodes, np.int64), slots=len(workload))
        fill_jobs(state.jobs, workload, np.arange(len(workload)), policy.order)
        find_splittable(state, policy.codes(), found)
    return found


def hopeless_jobs(workload: Workload, nodes: Sequence[int], policy: GridPolicy, net: GridNet) -> dict[int, int]:
    """Return for each job from when on it can be placed no more on the idle grid, whatever the links become.

    Jobs that are too wide for any links are not among them: the grid refuses these by itself.
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
    found_ms = hopeless_from(state, policy.codes()._replace(net=links_of(net, workload, rows)), net)
    return dict(zip(workload.job_id[rows].tolist(), found_ms.tolist(), strict=True))
