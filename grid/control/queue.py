"""Maintain the grid queue's arrays: assign jobs to slots and grow the arrays. The kernels make the decisions."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.control.holdings import Holdings, HoldingsState
from gridweave.grid.control.links import GridNetwork, KnownLinks, LinksState, unbounded
from gridweave.grid.control.past import once_more_evicted
from gridweave.grid.control.placing import split_over
from gridweave.grid.control.tuning import QueueTuning, QueueTuningState, awrt_ms
from gridweave.grid.kernels.candidates import MOST, withdraw
from gridweave.grid.kernels.grid_plan import (
    grid_plan_pass,
    planned_end_moved,
    planned_job_ended,
    planned_job_withdrawn,
)
from gridweave.grid.kernels.grid_queue import (
    change_free,
    grid_job_ended,
    job_arrived,
    kept_for_head,
    move_end,
    pass_and_placement,
    placement_of,
)
from gridweave.grid.kernels.placement import GridCodes, fragments_allowed, may_split
from gridweave.grid.kernels.reservations import ReservedStarts, empty_grid_plan, enlarged, has_capacity, occupy_reserved
from gridweave.grid.kernels.resource_placement import hold_taken, let_go_of_site
from gridweave.grid.kernels.resources import CountedSite, checked_free_cores, count_fitting, fill_grid_request
from gridweave.grid.kernels.running import join_blocks, running_slots
from gridweave.grid.kernels.sharing import is_first, shares_now
from gridweave.grid.kernels.state import BLOCK, FRAGMENT, UNKNOWN, GridState, empty_counted_grid, empty_grid
from gridweave.grid.messages import LinksChanged, PathsMeasured
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import NOTHING, Sends
from gridweave.jit import prepared
from gridweave.netmodel.model import NetworkModel
from gridweave.site.disciplines.slots import FIRST_SLOTS, JobSlots, SlotsState, copied, copy_into
from gridweave.site.job import Job, NodeIntervals
from gridweave.site.kernels.order import ORDERS, order_keys
from gridweave.site.kernels.profile import earliest_fit
from gridweave.site.kernels.state import FRESH, GIVE_BACK, HEAD, NEVER_MS, REPLAN, TAKE, UNPLACED_MS, enqueue
from gridweave.site.kernels.work import late_end_ms, work_left
from gridweave.site.messages import NodeAmounts, RunsLate
from gridweave.site.resources.chunks import Chunk
from gridweave.site.state import Arrays, arrays_state, restored_arrays


class PlacedJob(msgspec.Struct, frozen=True, gc=False):
    """A job that starts now or has a reserved start, with its fragments and its time limit on them."""

    job: Job
    fragments: Fragments
    length_ms: int


class RunningJob(NamedTuple):
    """A placed job and its expected end."""

    job: Job
    fragments: Fragments
    end_ms: int


class QueueState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The grid's jobs in arrays; ``plan`` is empty unless starts are reserved."""

    slots: SlotsState
    arrays: Arrays
    plan: Arrays
    others: list[int]
    late: list[RunsLate]
    links: LinksState | None
    tuning: QueueTuningState | None = None
    holdings: HoldingsState | None = None


class GridQueue:
    """The waiting and running jobs of the grid in arrays, with the kernels that schedule them.

    `reserves_starts` is true if every waiting job has a reserved start (conservative backfilling), not only the head.
    If a site counts resources, `counted` has the nodes of all sites.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        policy: GridPolicy,
        network: GridNetwork | None = None,
        counted: Sequence[CountedSite] = (),
    ) -> None:
        self.reserves_starts = policy.backfill == "conservative"
        if counted and self.reserves_starts:
            raise OptionError("backfill", "conservative plans whole nodes; sites with kinds of nodes need easy or none")
        self._nodes = np.array(nodes, np.int64)
        self._counted = tuple(counted)
        self._state = self._empty(FIRST_SLOTS)
        # Cores if resources are counted.
        self._total = int(self._state.nodes.sum())
        self._codes = policy.codes()
        self._links: KnownLinks | None = None
        if network is not None:
            self._links = KnownLinks(network, slots=FIRST_SLOTS, widest=max(1, self._total))
            self._codes = self._codes._replace(net=self._links.arrays)
        self._weighs = self._codes.adaptive
        self._no_offers(FIRST_SLOTS)
        # The remaining work of the jobs that are running past their estimate, by job.
        self._late: dict[int, RunsLate] = {}
        self._others = [0] * len(self._nodes)
        self._shut: set[int] = set()
        self.holdings = Holdings(self._counted) if self._counted else None
        self._slots = JobSlots()
        self.n_waiting = 0
        # The fragments of all jobs that have started since the last `_compact`.
        self._n_fragments = 0
        self._plan: ReservedStarts | None = None
        if self.reserves_starts:
            self._plan = empty_grid_plan(self._state, self._codes, capacity=FIRST_SLOTS)
        self._order, self._order_name = ORDERS[policy.order], policy.order
        self.tuning = None if policy.tuning is None else QueueTuning(policy.tuning)
        if self.tuning is not None:
            self._order = ORDERS[self.tuning.order]
        self._name_numbers()
        self._prepare()

    def _prepare(self) -> None:
        """Compile the kernels that every step calls."""
        state, number = self._state, 0
        self._arrive = prepared(job_arrived, state, number, 0.0, *(number,) * 4, 0.0, 0.0)
        self._decide = prepared(pass_and_placement, state, self._codes, number)
        self._placed = prepared(placement_of, state, number)
        self._depart = prepared(grid_job_ended, state, number)

    def _empty(self, slots: int) -> GridState:
        """Return the arrays of an idle grid."""
        if self._counted:
            return empty_counted_grid(self._counted, slots=slots)
        return empty_grid(self._nodes, slots=slots)

    def _name_numbers(self) -> None:
        """Cache views of the counters that every step reads, because looking up a record's field is slow."""
        counters = self._state.counters
        self._n_running, self._n_started = counters["n_running"], counters["n_started"]
        # A pass starts at most as many fragments as there are nodes.
        self._most_fragments = len(self._state.fragments) - self._total

    def state(self) -> QueueState:
        """Return the state of the queue."""
        return QueueState(
            slots=self._slots.state(),
            arrays=arrays_state(self._state),
            plan={} if self._plan is None else arrays_state(self._plan),
            others=self._others,
            late=list(self._late.values()),
            links=None if self._links is None else self._links.state(),
            tuning=None if self.tuning is None else self.tuning.state(),
            holdings=None if self.holdings is None else self.holdings.state(),
        )

    def restore(self, state: QueueState) -> None:
        """Restore the state of a queue with the same settings; this queue must be new."""
        self._slots.restore(state.slots)
        self._state = restored_arrays(self._empty(self._slots.count), state.arrays)
        if self._plan is not None:
            self._plan = restored_arrays(self._plan, state.plan)
        self._others = state.others
        if self.holdings is not None and state.holdings is not None:
            self.holdings.restore(state.holdings)
        self._shut = set(np.flatnonzero(self._state.shut).tolist())
        self._late = {late.job_id: late for late in state.late}
        if self._links is not None and state.links is not None:
            self._links.restore(state.links)
            self._codes = self._codes._replace(net=self._links.arrays)
        if self.tuning is not None and state.tuning is not None:
            self.tuning.restore(state.tuning)
            self._order = ORDERS[self.tuning.order]
        counters = self._state.counters[0]
        self.n_waiting, self._n_fragments = int(counters["n_waiting"]), int(counters["n_fragments"])
        self._name_numbers()

    def copy(self) -> Self:
        """Return an independent copy that uses the same kernels."""
        new = copy.copy(self)
        new._state = copied(self._state)
        new._plan = None if self._plan is None else copied(self._plan)
        new._others, new._slots, new._late = self._others.copy(), self._slots.copy(), self._late.copy()
        new._shut = self._shut.copy()
        new.holdings = None if self.holdings is None else self.holdings.copy()
        new.tuning = None if self.tuning is None else self.tuning.copy()
        new._no_offers(self._slots.count)
        if self._links is not None:
            new._links = self._links.copy()
            new._codes = new._codes._replace(net=new._links.arrays)
        new._name_numbers()
        return new

    @property
    def nodes(self) -> list[int]:
        """The number of nodes of each site."""
        sizes: list[int] = self._nodes.tolist()
        return sizes

    @property
    def links_news(self) -> list[LinksChanged | PathsMeasured]:
        """The messages that bring the links of a new queue to the state of this queue's links."""
        return [] if self._links is None else self._links.news

    @property
    def model(self) -> NetworkModel | None:
        """The current model of the links, or None."""
        return None if self._links is None else self._links.model

    @property
    def max_split_factor(self) -> float:
        """The largest factor by which a split may lengthen a job; infinite without links."""
        return math.inf if self._links is None else self._links.arrays.max_factor

    @property
    def waiting(self) -> Iterator[Job]:
        """The waiting jobs, in the order of the queue."""
        for slot in self._state.waiting[: self.n_waiting].tolist():
            yield self._slots.jobs[slot]

    @property
    def running(self) -> Iterator[RunningJob]:
        """The running jobs in order of expected end, each with its unfinished parts."""
        for slot in running_slots(self._state).tolist():
            parts = tuple(part for part in self._fragments_of(slot) if part[1])
            yield RunningJob(self._slots.jobs[slot], parts, int(self._state.end_ms[slot]))

    def next_end_ms(self) -> int | None:
        """Return the first expected end of a running job; None if no job is running."""
        return self._first_running()[0] if self._n_running[0] else None

    def ending(self, now_ms: int) -> Iterator[int]:
        """Yield the running jobs that are expected to end by now; the caller must remove each job before continuing."""
        while self._n_running[0]:
            end_ms, slot = self._first_running()
            if end_ms > now_ms:
                return
            yield self._slots.jobs[slot].job_id

    def _first_running(self) -> tuple[int, int]:
        """Return the expected end and the slot of the running job that is expected to end first."""
        end_ms, slot = self._state.running[self._state.block_order.item(0) * BLOCK].item()
        return end_ms, slot

    def kept_for_head(self) -> tuple[int | None, Fragments, list[int]]:
        """Return the head job's start, its reserved fragments, and the free nodes kept for it on each site.

        An unknown start gives None. Use only for queues that do not reserve a start for every job.
        """
        kept = np.zeros_like(self._nodes)
        shadow_ms, n_reserved = kept_for_head(self._state, self._codes, kept)
        fragments = tuple(self._state.reserved[: int(n_reserved)].tolist())
        return None if shadow_ms == NEVER_MS else int(shadow_ms), fragments, kept.tolist()

    def reserved(self, job_id: int) -> tuple[int, PlacedJob] | None:
        """Return a waiting job's reserved start and fragments; None if the job has no reservation."""
        slot = self._slots.of[job_id]
        start_ms = int(self._state.jobs["promised_ms"][slot])
        if self._plan is None or start_ms in (UNPLACED_MS, NEVER_MS):
            return None
        row = self._plan.row[slot]
        length_ms, n_fragments = self._plan.reserved[row].item()
        fragments = tuple(self._plan.fragments[row, :n_fragments].tolist())
        return start_ms, PlacedJob(self._slots.jobs[slot], fragments, length_ms)

    def gaps_ms(self, job_id: int, now_ms: int) -> list[int | None]:
        """Return the earliest start of a waiting job on each site alone, given the other jobs' reservations.

        None marks a site that never has enough nodes. Use only for queues that reserve a start for every job.
        """
        assert self._plan is not None, "nothing is reserved"
        slot, plan = np.int64(self._slots.of[job_id]), self._plan
        job = self._slots.jobs[int(slot)]
        is_placed = self._state.jobs["promised_ms"][slot] != UNPLACED_MS
        if is_placed:
            occupy_reserved(self._state, plan, slot, GIVE_BACK)
        needs = np.int64(now_ms), np.int64(job.width), np.int64(job.estimate_ms)
        profiles = zip(plan.step_ms, plan.step_free, plan.n_steps, strict=True)
        starts_ms = [int(earliest_fit(*profile, *needs)) for profile in profiles][: len(self._nodes)]
        if is_placed:
            occupy_reserved(self._state, plan, slot, TAKE)
        return [None if start_ms == NEVER_MS else start_ms for start_ms in starts_ms]

    def firmly_reserved(self, job_id: int, *, moves_splits: bool) -> tuple[int, PlacedJob] | None:
        """Return a waiting job's reservation if it is certain to hold while all jobs end when expected, or None.

        With `moves_splits`, a split job ends later than reserved because the sites agree on its start in advance; no
        reservation after the start of a waiting split job is then firm.
        """
        reserved = self.reserved(job_id)
        if self._plan is None or reserved is None or self._plan.counters["stale"][0] != FRESH:
            return None
        if moves_splits:
            slots = self._state.waiting[: self.n_waiting]
            is_split = self._plan.reserved["n_fragments"][self._plan.row[slots]] > 1
            if (self._state.jobs["promised_ms"][slots][is_split] < reserved[0]).any():
                return None
        return reserved

    def may_split(self, job_id: int) -> bool:
        """Whether the policy's mode and lower bound permit splitting a waiting job."""
        return bool(may_split(self._state, self._codes, np.int64(self._slots.of[job_id])))

    def fragments_allowed(self, width: int) -> int:
        """Return the largest number of fragments that a job of this width can have."""
        return int(fragments_allowed(self._codes, np.int64(width)))

    def split(self, job_id: int, free: Sequence[int], when_ms: int) -> tuple[Fragments, int] | None:
        """Return a split of a waiting job over these free nodes at `when_ms`, and its length; None if impossible."""
        return self._split(self._codes, job_id, free, when_ms)

    def split_at_any_cost(self, job_id: int, free: Sequence[int], when_ms: int) -> tuple[Fragments, int] | None:
        """Return the result of `split` without a limit on the split factor; None if impossible or without links."""
        if self._links is None:
            return None
        return self._split(self._codes._replace(net=unbounded(self._links.arrays)), job_id, free, when_ms)

    def _split(self, codes: GridCodes, job_id: int, free: Sequence[int], when_ms: int) -> tuple[Fragments, int] | None:
        return split_over(self._state, codes, np.int64(self._slots.of[job_id]), np.array(free, np.int64), when_ms)

    def delay_ms(self, job_id: int, site: int, when_ms: int) -> int | None:
        """Return how long a job that starts at `when_ms` waits at a site for its data; None if the data has no path."""
        slot = self._slots.of[job_id]
        if self._links is None:
            return 0
        return self._links.data_delay_ms(slot, int(self._state.jobs["submit_ms"][slot]), site, when_ms)

    def free(self, site: int) -> int:
        """Return the free nodes of a site (cores if resources are counted); negative if more are in use than it has."""
        return 0 if self._counted and site in self._shut else int(self._state.free[site])

    def fitting(self, job_id: int) -> list[int]:
        """Return how many chunks of a job, or whole nodes, are free on each site now."""
        if self._state.resources is None:
            return [max(0, self.free(site)) for site in range(len(self._nodes))]
        chunks, resources = np.zeros_like(self._nodes), self._state.resources
        count_fitting(resources, resources.nodes.free, np.int64(self._slots.of[job_id]), chunks)
        fitting: list[int] = chunks.tolist()
        return fitting

    def most_chunks(self, job_id: int) -> list[int]:
        """Return how many chunks of a job in the queue fit on each idle site that counts resources, or its nodes."""
        chunk = self._slots.jobs[self._slots.of[job_id]].chunk
        return [site.most_chunks(chunk) for site in self._counted] or self.nodes

    def fits(self, job_id: int, site: int, width: int) -> bool:
        """Whether a fragment of a job fits on a site now; false for a job that has left a queue that counts chunks."""
        if self.holdings is None:
            return self.free(site) >= width
        return job_id in self._slots.of and self.fitting(job_id)[site] >= width

    def submit(self, now_ms: int, job: Job, *, draw: float, sensitivity: float, sends: Sends | None = None) -> None:
        """Add a job to the queue; `sends` matters only with links."""
        if self._slots.is_full:
            self._grow()
        slot = self._slots.enter(job)
        job_id, width, estimate_ms = job.job_id, job.width, job.estimate_ms
        key = float(self._order(now_ms, width, estimate_ms, job.weight, job.priority, math.inf))
        arrive = self._arrive
        arrive(self._state, slot, key, now_ms, job_id, width, estimate_ms, sensitivity, draw)
        if self._state.resources is not None:
            fill_grid_request(self._state.resources, slot, job.chunk, self._counted)
        if self._links is not None:
            self._links.enter(slot, width, sends or NOTHING)
        self.n_waiting += 1
        if self.tuning is not None:
            self.tuning.submitted()

    def _no_offers(self, slots: int) -> None:
        """Clear the offers of shared nodes."""
        if self._weighs:
            self._codes = self._codes._replace(offers=np.full(slots, NEVER_MS))

    def offer(self, ends: Mapping[int, int]) -> None:
        """Set the times at which waiting jobs would end if they started now on shared nodes; 0 if not known yet."""
        if self._weighs:
            offers = self._codes.offers
            assert offers is not None, "there are no offers"
            offers.fill(NEVER_MS)
            for job_id, end_ms in ends.items():
                offers[self._slots.of[job_id]] = end_ms
            # Earlier results on splits are no longer valid.
            self._state.counters["first_new"] = HEAD
            self._state.counters["settled"] = UNKNOWN

    def kept_sites(self) -> dict[int, set[int]]:
        """Return, by waiting job, the sites on which nodes are reserved for the job."""
        if not self.n_waiting:
            return {}
        if self._plan is None:
            _, fragments, _ = self.kept_for_head()
            return {next(self.waiting).job_id: {site for site, _ in fragments}}
        reservations = {job.job_id: self.reserved(job.job_id) for job in self.waiting}
        return {
            job_id: {site for site, _ in reserved[1].fragments} for job_id, reserved in reservations.items() if reserved
        }

    def shares_now(self, job_id: int, now_ms: int, end_ms: int) -> bool:
        """Whether a waiting job should start now on shared nodes, where it would end at `end_ms`."""
        reserved = None if self._plan is None else self.reserved(job_id)
        if reserved is not None:
            start_ms, placed = reserved
            return bool(is_first(np.int64(end_ms), np.int64(start_ms + placed.length_ms)))
        slot = np.int64(self._slots.of[job_id])
        return bool(shares_now(self._state, self._codes, slot, np.int64(now_ms), np.int64(end_ms)))

    def take_over(self, job_id: int, fragments: Fragments, end_ms: int) -> None:
        """Start a waiting job on these nodes, although no pass of this queue has placed it."""
        if self._n_fragments > self._most_fragments:
            self._compact()
        state, slot, first = self._state, self._slots.of[job_id], self._n_fragments
        if self._plan is None:
            withdraw(state, self._place_of(job_id))
        else:
            planned_job_withdrawn(state, self._plan, self._place_of(job_id))
        self.n_waiting -= 1
        state.end_ms[slot], state.first_fragment[slot], state.n_fragments[slot] = end_ms, first, len(fragments)
        state.fragments[first : first + len(fragments)] = list(fragments)
        self._n_fragments += len(fragments)
        state.counters[0]["n_fragments"] = self._n_fragments
        if state.resources is None:
            for site, width in fragments:
                change_free(state, np.int64(site), np.int64(-width))
        else:
            state.taken[: len(fragments)] = list(fragments)
            state.counters[0]["n_taken"] = len(fragments)
            hold_taken(state, state.resources, np.int64(slot))
            change_free(state, np.int64(0), np.int64(0))
        join_blocks(state, np.int64(slot), np.int64(end_ms))
        self._replan()

    def withdraw(self, job_id: int) -> None:
        """Remove a waiting job."""
        place = self._place_of(job_id)
        if self._plan is None:
            withdraw(self._state, place)
        else:
            planned_job_withdrawn(self._state, self._plan, place)
        self.n_waiting -= 1
        self._slots.leave(job_id)
        if self.tuning is not None:
            self.tuning.left()

    def _place_of(self, job_id: int) -> np.int64:
        """Return the index of a waiting job in the queue."""
        return np.int64(np.flatnonzero(self._state.waiting[: self.n_waiting] == self._slots.of[job_id])[0])

    def next_start_ms(self) -> int | None:
        """Return the next reserved start, or None."""
        if self._plan is None or not self.n_waiting:
            return None
        next_ms = int(self._plan.counters["next_start_ms"][0])
        return None if next_ms == NEVER_MS else next_ms

    def run_pass(self, now_ms: int) -> list[PlacedJob]:
        """Postpone the expected ends of late jobs, then start all jobs that can start now; return them in order."""
        if self._late:
            self.expect_late(now_ms)
        if not self.n_waiting:
            return []
        if self._n_fragments > self._most_fragments:
            self._compact()
        if self.tuning is not None and self.tuning.is_due(self.n_waiting):
            self._tune(self.tuning, now_ms)
        state, decide = self._state, self._decide
        if self._plan is None:
            n_started, first = decide(state, self._codes, now_ms)
        else:
            while not has_capacity(state, self._plan, 0):
                self._plan = enlarged(self._plan)
            grid_plan_pass(state, self._codes, self._plan, np.int64(now_ms))
            n_started, first = self._n_started.item(0), self._placed(state, 0)
        if not n_started:
            return []
        self.n_waiting -= n_started
        placements: list[PlacedJob] = []
        while True:
            slot, end_ms, count, site, width = first
            self._n_fragments += count
            fragments: Fragments = ((site, width),) if count == 1 else self._fragments_of(slot)
            placements.append(PlacedJob(self._slots.jobs[slot], fragments, end_ms - now_ms))
            if len(placements) == n_started:
                return placements
            first = self._placed(state, len(placements))

    def _tune(self, tuning: QueueTuning, now_ms: int) -> None:
        """Choose the order whose plan has the lowest average weighted response time, and sort the queue by it."""
        values = np.array([self._worth(order, now_ms) for order in tuning.orders])
        if tuning.choose(values):
            self._order = ORDERS[tuning.order]
            self._sort(tuning.order)

    def _worth(self, order: str, now_ms: int) -> float:
        """Return the waiting jobs' AWRT (`awrt_ms`) in a conservative plan for this order, assuming no new jobs.

        The plan is computed on a copy of the queue.
        """
        trial = self.copy()
        trial._sort(order)
        state = trial._state
        slots = state.waiting[: self.n_waiting].copy()
        plan = empty_grid_plan(state, trial._codes, capacity=self.n_waiting + int(self._n_running[0]))
        plan.counters["stale"] = REPLAN
        grid_plan_pass(state, trial._codes, plan, np.int64(now_ms))
        jobs = state.jobs[slots]
        return awrt_ms(jobs, jobs["promised_ms"], plan.reserved["length_ms"][plan.row[slots]])

    def _sort(self, order: str) -> None:
        """Sort the queue by this order, and discard cached results about the head job."""
        waiting, jobs = self._state.waiting[: self.n_waiting], self._state.jobs
        keys = self._keys(order, waiting)
        jobs["key"][waiting] = keys
        waiting[:] = waiting[np.lexsort((jobs["job_id"][waiting], jobs["submit_ms"][waiting], keys))]
        counters = self._state.counters
        counters["first_new"] = HEAD
        counters["settled"] = counters["reserved_for"] = UNKNOWN

    def reconsider(self) -> None:
        """Make the next pass reconsider all waiting jobs, in the policy's current order."""
        order = self._order_name if self.tuning is None else self.tuning.order
        # Running jobs need keys, too: they may return to the queue.
        slots = np.array(sorted(self._slots.of.values()), np.int64)
        self._state.jobs["key"][slots] = self._keys(order, slots)
        self._sort(order)
        self._replan()

    def _keys(self, order: str, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the sort keys, under this order, of the jobs in these slots."""
        jobs = self._state.jobs[slots]
        queued_jobs = [self._slots.jobs[slot] for slot in slots.tolist()]
        return order_keys(
            order,
            submit_ms=jobs["submit_ms"],
            width=jobs["width"],
            estimate_ms=jobs["estimate_ms"],
            weight=np.array([job.weight for job in queued_jobs]),
            priority=np.array([job.priority for job in queued_jobs]),
        )

    def _fragments_of(self, slot: int) -> Fragments:
        first = int(self._state.first_fragment[slot])
        return tuple(self._state.fragments[first : first + int(self._state.n_fragments[slot])].tolist())

    def links_changed(self, news: LinksChanged | PathsMeasured) -> None:
        """Apply a change or a measurement of the links, for all later placements."""
        if self._links is not None:
            self._links.change(news)
            self._codes = self._codes._replace(net=self._links.arrays)
            self._replan()

    def runs_late(self, answer: RunsLate) -> None:
        """Record the remaining work of a job that is running past its estimate."""
        self._late[answer.job_id] = answer

    def expect_late(self, now_ms: int) -> None:
        """Postpone the expected ends of jobs that are still running past them, according to their remaining work."""
        for job_id, late in self._late.items():
            if int(self._state.end_ms[self._slots.of[job_id]]) <= now_ms:
                left = work_left(late.left, late.rate, late.since_ms, now_ms)
                self.expect_end(now_ms, job_id, max(now_ms + 1, int(late_end_ms(left, late.rate, now_ms))))

    def ended(self, now_ms: int, job_id: int) -> None:
        """Remove a running job that does not return to the queue."""
        self._leave(now_ms, job_id)
        if self.tuning is not None:
            self.tuning.left()
        self._slots.leave(job_id)

    def part_ended(self, job_id: int, site: int) -> None:
        """Free the nodes of a running job's fragment that has ended on a site."""
        slot = self._slots.of[job_id]
        first = int(self._state.first_fragment[slot])
        part = self._state.fragments[first : first + int(self._state.n_fragments[slot])]
        freed = 0
        if self._state.resources is None:
            freed = int(part["width"][part["site"] == site].sum())
        else:
            let_go_of_site(self._state, self._state.resources, np.int64(slot), np.int64(site))
        part["width"][part["site"] == site] = 0
        change_free(self._state, np.int64(site), np.int64(freed))
        self._replan()
        self._keep_shut()
        self._nodes_left(job_id)

    def described(self, job_id: int) -> tuple[Job, float, Sends]:
        """Return a waiting or running job, its sensitivity to splits, and its transfers."""
        slot = self._slots.of[job_id]
        sends = NOTHING if self._links is None else self._links.sends(slot)
        return self._slots.jobs[slot], float(self._state.sensitivity[slot]), sends

    def evicted(self, job_id: int) -> int:
        """Count an eviction of a job; return the new count."""
        slot = self._slots.of[job_id]
        job = self._slots.jobs[slot] = once_more_evicted(self._slots.jobs[slot])
        return job.evictions

    def requeue(self, now_ms: int, job_id: int) -> None:
        """Return a running job to the queue, at the position that its original submission gives it."""
        slot = self._leave(now_ms, job_id)
        if self.tuning is not None:
            self._state.jobs["key"][slot] = self._keys(self.tuning.order, np.array([slot]))[0]
        enqueue(self._state, np.int64(slot))
        self.n_waiting += 1
        self._replan()

    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        """Set the expected end of a running job."""
        slot = np.int64(self._slots.of[job_id])
        if int(self._state.end_ms[slot]) == end_ms:
            return
        if self._plan is None:
            move_end(self._state, slot, np.int64(end_ms))
        else:
            planned_end_moved(self._state, self._plan, slot, np.int64(end_ms), np.int64(now_ms))

    def set_others(self, site: int, nodes: int) -> None:
        """Set how many nodes of a site are not available to the grid; `set_held` is for sites that count resources."""
        if self.holdings is not None:
            self._others[site] = nodes
            self.holdings.spread(self._state, self._others)
        elif nodes != self._others[site]:
            change_free(self._state, np.int64(site), np.int64(self._others[site] - nodes))
            self._others[site] = nodes
            self._replan()
            self._keep_shut()

    def set_shut(self, site: int, is_shut: bool) -> None:
        """Set whether a site is shut to new jobs; a shut site counts as full, and jobs that end there free no nodes."""
        if is_shut == (site in self._shut):
            return
        self._state.shut[site] = is_shut
        self._shut ^= {site}
        if self.holdings is not None:
            self.holdings.set_shut(self._state, site, is_shut=is_shut)
        # Discard cached results about the head and about later ends.
        change_free(self._state, np.int64(site), np.int64(0))
        self._replan()
        self._keep_shut()

    @property
    def shut(self) -> frozenset[int]:
        """The sites that accept no new jobs."""
        return frozenset(self._shut)

    def _keep_shut(self) -> None:
        """Mark the free nodes of shut sites as unavailable to the grid."""
        for site in self._shut if self.holdings is None else ():
            if (free := self.free(site)) > 0:
                self.set_others(site, self._others[site] + free)

    def pause(self, site: int) -> int:
        """Make what is free on a site unavailable; return the number of nodes, which `resume` needs."""
        if self.holdings is not None:
            self.holdings.pause(self._state, site)
            return 0
        taken = max(0, self.free(site))
        self.set_others(site, self._others[site] + taken)
        return taken

    def resume(self, site: int, taken: int) -> None:
        """Undo `pause`."""
        if self.holdings is not None:
            self.holdings.resume(self._state, site)
        else:
            self.set_others(site, self._others[site] - taken)

    def set_held(self, site: int, held: NodeAmounts) -> None:
        """Set what the own users of a site that counts resources hold on each node."""
        if self.holdings is not None and self.holdings.counts(site):
            self.holdings.set_own_jobs(self._state, site, held)

    def set_apart(self, site: int, job_id: int, nodes: NodeIntervals, chunk: Chunk | msgspec.UnsetType) -> None:
        """Set the nodes of a job that is not in this queue, at a site that counts resources; empty if it has none."""
        if self.holdings is not None and self.holdings.counts(site):
            self.holdings.set_job(self._state, site, job_id, nodes, chunk)

    def move(self, job_id: int, site: int, nodes: NodeIntervals) -> bool:
        """Record the nodes that a site has given to a running job; return whether the queue had chosen others."""
        if self.holdings is None or not self.holdings.counts(site):
            return False
        return self.holdings.move(self._state, job_id, self._slots.of[job_id], site, nodes)

    def _nodes_left(self, job_id: int) -> None:
        """Update what others hold after a job has left nodes."""
        if self.holdings is not None:
            self.holdings.job_left(self._state, job_id, self._slots.of, self._others)

    def others(self, site: int) -> int:
        """Return how many nodes of a site are not available to the grid."""
        return self._others[site]

    def _replan(self) -> None:
        """Make the next pass replace all reservations."""
        if self._plan is not None:
            self._plan.counters["stale"] = REPLAN

    def _leave(self, now_ms: int, job_id: int) -> int:
        """Remove a running job from the running set; return its slot, which stays assigned."""
        self._late.pop(job_id, None)
        slot, depart = self._slots.of[job_id], self._depart
        if self._plan is None:
            left = depart(self._state, slot)
        else:
            left = planned_job_ended(self._state, self._plan, np.int64(slot), np.int64(now_ms))
        assert left, f"job {job_id} is not among the running jobs"
        if self._shut:
            self._keep_shut()
            self._replan()
        self._nodes_left(job_id)
        return slot

    def _compact(self) -> None:
        """Drop the fragments of ended jobs and, if needed, grow the array; afterwards at least half of it is free."""
        state = self._state
        slots = running_slots(state)
        counts = state.n_fragments[slots]
        n_kept = int(counts.sum())
        larger = np.zeros(max(len(state.fragments), 2 * (n_kept + int(state.counters[0]["nodes"]))), FRAGMENT)
        kept = 0
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            first = int(state.first_fragment[slot])
            larger[kept : kept + count] = state.fragments[first : first + count]
            state.first_fragment[slot] = kept
            kept += count
        state.counters[0]["n_fragments"] = self._n_fragments = kept
        self._state = state._replace(fragments=larger)
        self._name_numbers()

    def _grow(self) -> None:
        old = self._state
        slots = self._slots.double()
        # `_compact` grows the array of fragments separately.
        self._state = self._empty(slots)._replace(fragments=old.fragments)
        copy_into(self._state, old)
        if self._plan is not None:
            rows = np.zeros(slots, np.int64)
            rows[: len(self._plan.row)] = self._plan.row
            self._plan = self._plan._replace(row=rows)
        self._no_offers(slots)
        if self._links is not None:
            self._links.grow(slots)
            self._codes = self._codes._replace(net=self._links.arrays)
        self._name_numbers()

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent."""
        counters = self._state.counters[0]
        slots = running_slots(self._state).tolist()
        held = np.zeros(len(self._nodes), np.int64)
        for slot in slots:
            first = int(self._state.first_fragment[slot])
            taken = self._state.fragments[first : first + int(self._state.n_fragments[slot])]
            whole = taken["width"].sum() == self._state.jobs["width"][slot]
            assert whole or not taken["width"].all(), "fragments do not make up the job"
            np.add.at(held, taken["site"], taken["width"])
        free = self._nodes - held - np.array(self._others)
        if self._state.resources is not None:
            assert self.holdings is not None, "nobody knows what others hold"
            free = checked_free_cores(self._state.resources, slots, self.holdings.on_all())
        assert (free == self._state.free).all(), "free nodes and running jobs do not add up"
        assert free.sum() == counters["free"], "the sum of free nodes is wrong"
        waiting = self._state.waiting[: counters["n_waiting"]].tolist()
        assert len(waiting) == self.n_waiting, "waiting jobs differ"
        assert counters["n_fragments"] == self._n_fragments, "fragments differ"
        assert sorted([*waiting, *slots]) == sorted(self._slots.of.values()), "a slot is lost or doubled"
        noted = self._state.jobs[waiting[: min(counters["n_noted"], counters["first_new"])]]
        for name, wants in (("width", self._state.queue_width), ("estimate_ms", self._state.queue_ms)):
            assert (np.minimum(noted[name], MOST) == wants[: len(noted)]).all(), f"the {name} is not that of the job"
        if self._plan is not None:
            self._check_plan(self._plan, waiting)
        ranks = [tuple(self._state.jobs[slot][["key", "submit_ms", "job_id"]]) for slot in waiting]
        assert ranks == sorted(ranks), "the queue is out of order"
        assert set(self._late) <= set(self._slots.of), "a late job is unknown"

    def _check_plan(self, plan: ReservedStarts, waiting: list[int]) -> None:
        reserved = [slot for slot in waiting if self._state.jobs["promised_ms"][slot] != UNPLACED_MS]
        rows = plan.row[reserved].tolist()
        spare = plan.spare[: int(plan.counters["n_spare"][0])].tolist()
        assert sorted([*rows, *spare]) == list(range(len(plan.reserved))), "a row of the plan is lost or doubled"
        for site, n_steps in enumerate(plan.n_steps.tolist()):
            assert (np.diff(plan.step_ms[site, :n_steps]) > 0).all(), "a profile is out of order"
            # A pass brings the profiles up to date, but no pass runs while no job is waiting.
            if waiting and plan.counters["stale"][0] != REPLAN and site < len(self._nodes):
                least = min(0, int(self._state.free[site]))
                assert (plan.step_free[site, :n_steps] >= least).all(), "a site is overbooked"
