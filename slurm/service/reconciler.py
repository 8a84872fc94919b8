"""Reconcile a batch system with a site: request needed nodes, cancel unneeded allocations, and report changes.

The reconciler has no state that must survive a restart. It derives the needed allocations from the site's state, which
is in the journal, and the existing allocations from the names in the batch system's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.site.job import Job
from gridweave.site.machine.folders import Key
from gridweave.site.messages import AskState, BatchSnapshot, MachineJoined, Report, RequestStatus
from gridweave.site.nodes.source import PILOT, NodeRequest
from gridweave.site.resources.groups import NodeGroup
from gridweave.site.service.site_driver import SiteDriver
from gridweave.slurm.chunks import groups_now, parts_of
from gridweave.slurm.outlook import Steps, free_steps
from gridweave.slurm.policy import BatchPolicy
from gridweave.slurm.service.folder import Owner, SharedFolder, end_of
from gridweave.slurm.service.hub import Hub
from gridweave.slurm.service.retention import KeptOutput
from gridweave.slurm.system import (
    Allocation,
    AllocationEnd,
    AllocationRequest,
    BatchPlan,
    BatchSystem,
    BatchUser,
    BatchView,
    LimitError,
    RequestRejectedError,
    size_problem,
)

logger = logging.getLogger("gridweave.live")

LONGEST_PAUSE_S = 60.0
"""Maximum time between two queries of a batch system that is not responding [s]."""

IDLE = 5
"""Factor by which the time between two queries is multiplied while no change is expected."""

REPORT_S = 30.0
"""Minimum time between two reports in which only the forecast of free nodes has changed [s]."""

LEAVE_S = 10.0
"""Time in which unneeded nodes can give themselves back before their allocation is cancelled [s]."""

TIDY_EVERY = 100
"""Number of queries after which output that exceeds the limits is removed."""

MOST_SHORT = 3
"""A job fails once this many of its pilots have run out of memory, because the job may be the cause (a guess)."""

GONE = "it is no longer in the queue of the batch system"
PUT_BACK = "the batch system has requeued it"


class BatchReconciler:
    """Queries a batch system regularly, and requests and cancels allocations as the site needs them.

    Parameters
    ----------
    driver : SiteDriver
        Its discipline must request nodes from a batch system.
    system : BatchSystem
    hub : Hub
    folder : SharedFolder
    plan : BatchPlan

    Attributes
    ----------
    output : KeptOutput
        The kept output of the site's jobs; must be closed when the site stops.
    """

    def __init__(
        self, driver: SiteDriver, system: BatchSystem, hub: Hub, folder: SharedFolder, plan: BatchPlan
    ) -> None:
        self.output = KeptOutput(folder, plan.rules.output)
        self._driver, self._system, self._hub = driver, system, hub
        self._folder, self._plan = folder, plan
        policy = driver.settings.policy
        assert isinstance(policy, BatchPolicy), "a site without a batch system"
        self._policy = policy
        self._prefix = folder.prefix
        self._view: BatchView | None = None
        self._steps: Steps = ()
        self._groups: tuple[NodeGroup, ...] = ()
        # Numbers of the allocations requested since the last query began, and errors of unanswered requests, by name.
        self._asked: dict[str, str] = {}
        self._unsure: dict[str, str] = {}
        # Accounts and options that have reached a limit, by name of the rejected request; cleared by the next query.
        self._limited: dict[str, tuple[BatchUser, tuple[str, ...]]] = {}
        # Accounts for which a cancellation has failed; no other cancellation is tried until the next query.
        self._deaf: set[str] = set()
        # Jobs that were rejected while no similar request had an allocation; rejected requests' statuses and reasons.
        self._at_fault: set[int] = set()
        self._refused: dict[str, tuple[Literal["refused", "over"], str]] = {}
        self._reported: dict[str, RequestStatus] = {}
        self._reported_snapshot: BatchSnapshot | None = None
        self._problem = ""
        self._reported_s = 0.0
        # How many of a job's pilots have run out of memory since the site started. Jobs that leave the site are kept,
        # because the grid may send them back.
        self._short: Counter[int] = Counter()
        self._looks = 0
        self._unwanted: dict[str, float] = {}
        # Since when an allocation has had a silent node; `_given_up` has the allocations cancelled because of that.
        self._silent: dict[str, float] = {}
        # Allocations that have had nodes and are waiting in the batch system's queue again.
        self._put_back: set[str] = set()
        self._given_up: dict[str, str] = {}

    async def run(self) -> None:
        """Query the batch system and act on its answers, forever."""
        pause_s = self._plan.poll_s
        self._want()
        while True:
            pause_s = self._plan.poll_s if await self.has_looked() else min(2 * pause_s, LONGEST_PAUSE_S)
            await self._act_for(pause_s)

    async def has_looked(self) -> bool:
        """Query the batch system; return whether it answered. If it did not, report the reason to the site."""
        try:
            await self.look()
        except (UnavailableError, InputError) as error:
            await self._away(str(error))
            return False
        return True

    async def _act_for(self, pause_s: float) -> None:
        """Request and cancel allocations whenever the site changes, until the next query is due."""
        begin_s = time.monotonic()
        while True:
            # The next iteration handles any changes from this point on.
            self._hub.news.clear()
            await self.follow()
            left_s = begin_s + pause_s * (IDLE if self._is_quiet() else 1) - time.monotonic()
            if left_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._hub.news.wait()

    async def follow(self) -> None:
        """Request missing allocations and cancel unneeded ones, according to the last snapshot; report the changes."""
        self._want()
        if self._view is not None:
            await self.act()
            await self._report(self._view)

    def _want(self) -> None:
        """Set the needed allocations in the hub, and the machines that their nodes act as."""
        requests = self._requests()
        machines = self._driver.settings.machines
        pilots = {
            machines[place].name: (self.name_of(request), number)
            for request in requests
            for number, place in enumerate(request.node_indices)
        }
        own = [request for request in requests if request.job.job_id != PILOT]
        runs = {
            (machine, (self.name_of(request), node))
            for request in own
            for machine, _, node in self._unfinished(request)
        }
        self._hub.want(
            {self.name_of(request): request.job.width for request in requests}, pilots, runs, present=self._there()
        )

    def _there(self) -> set[str]:
        """Return the names of allocations that had not ended at the last snapshot, or were requested since then."""
        view = () if self._view is None else self._view.allocations
        return {*self._asked, *(allocation.name for allocation in view if allocation.state != "ended")}

    def _is_quiet(self) -> bool:
        """Whether no change is expected in the batch system."""
        view = self._view
        if view is None or self._unsure or self._unwanted or self._given_up:
            return False
        seen = {allocation.name: allocation.state for allocation in view.allocations}
        return all(request.has_started and seen.get(self.name_of(request)) == "running" for request in self._requests())

    def name_of(self, asked: NodeRequest) -> str:
        """Return an allocation's name, which contains the job id (0 for a pilot) and a number that is never reused."""
        return f"{self._prefix}{asked.job.job_id}-{asked.ask}"

    def _requests(self) -> list[NodeRequest]:
        return self._driver.site.core.site.source.requests(self._driver.clock.now_ms())

    # -- looking ------------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Query the batch system once, and report changes to the site."""
        begun = {name for name in self._there() if self._hub.number_of(name) is not None}
        view = await self._system.view(self._prefix)
        ours = self._ours(view.allocations)
        ours += await self._past({batch_job.name for batch_job in ours})
        view = msgspec.structs.replace(view, allocations=tuple(map(self._as_given_up, ours)))
        there = {allocation.name for allocation in view.allocations}
        # Allocations that are missing now never arrived or were forgotten; their names must not be reused.
        reported = {self.name_of(request): request.was_reported for request in self._requests()}
        seen = {name: "" for name in reported if reported[name]}
        if self._view is not None:
            seen = {batch_job.name: batch_job.number for batch_job in self._view.allocations}
        lost = [
            msgspec.structs.replace(_gone(name), number=number)
            for name, number in (self._asked | seen).items()
            if name in reported and name not in there and name not in self._unsure
        ]
        if self._view is None:
            self._note_size(view)
        self._asked, self._problem = {}, ""
        self._put_back = begun & {batch_job.name for batch_job in view.allocations if batch_job.state == "waiting"}
        self._view = msgspec.structs.replace(view, allocations=(*view.allocations, *lost))
        now_ms = self._driver.clock.now_ms()
        self._steps, self._groups = free_steps(view, now_ms), groups_now(view, now_ms)
        self._unsure.clear()
        self._limited.clear()
        self._deaf.clear()
        # Drop jobs that are gone. Also drop pilots, because the next pilot may differ from the rejected pilot.
        self._at_fault = {job_id for job_id in self._at_fault if self._driver.site.request_of(job_id) is not None}
        self._looks += 1
        if self._looks % TIDY_EVERY == 0:
            await self._tidy()
        # Report everything in one turn of the site, so that nothing starts on nodes that are gone.
        over = self._over(self._view)
        # Report only pilots as over; if a job has started, the site gets a report of the job's end instead.
        pilots = [(request, batch_job) for request, batch_job in over if request.job.job_id == PILOT]
        ended = [RequestStatus(PILOT, request.ask, "over", None, batch_job.reason) for request, batch_job in pilots]
        await self._report(self._view, self._ends(over), ended)

    def _note_size(self, view: BatchView) -> None:
        """Log a warning if the site is configured with more nodes than are up in its batch system."""
        problem = size_problem(self._driver.site.core.nodes, view)
        if problem is not None:
            logger.warning("site %s: %s", self._driver.settings.name, problem)

    def _ours(self, allocations: Iterable[Allocation]) -> tuple[Allocation, ...]:
        """Return the allocations that belong to the account that requested them; other users may use the same names."""
        return tuple(
            allocation
            for allocation in allocations
            if allocation.runs_as == self._folder.owner(allocation.name).runs_as
        )

    async def _past(self, there: Collection[str]) -> tuple[Allocation, ...]:
        """Return how the allocations of started requests ended if they are not in the snapshot (`there`).

        The batch system lists ended allocations for some minutes; its records are needed if the site was down longer.
        """
        names = [self.name_of(request) for request in self._requests() if request.has_started]
        names = [name for name in names if name not in there]
        if not names:
            return ()
        try:
            return self._ours(await self._system.ended(names))
        except UnavailableError as error:
            logger.warning("%s: how these allocations ended is unknown: %s", ", ".join(names), error)
            return ()

    async def _tidy(self) -> None:
        """Remove output that exceeds the limits; if that fails, the output stays until the next attempt."""
        try:
            left = await asyncio.to_thread(self._folder.left)
            needed = {*map(self.name_of, self._requests()), *self._there()}
            now_ms = time.time_ns() // 1_000_000
            self._hub.gone = await asyncio.to_thread(self.output.tidy, left, needed, now_ms)
        except OSError as error:
            logger.warning("%s: old output cannot be removed: %s", self._folder.path, error)

    async def _away(self, problem: str) -> None:
        """Report to the site that the batch system is not answering; the report applies until a query succeeds."""
        self._problem = problem
        logger.warning("%s: %s", self._driver.settings.name, problem)
        last = self._reported_snapshot or BatchSnapshot(0, None, ())
        if last.problem != problem:
            self._reported_snapshot = msgspec.structs.replace(last, problem=problem, asks=())
            await self._driver.apply(self._reported_snapshot)

    def _as_given_up(self, allocation: Allocation) -> Allocation:
        """Mark an ended allocation as lost if the site itself cancelled the allocation because of a silent node."""
        why = self._given_up.get(allocation.name)
        if why is None or allocation.state != "ended":
            return allocation
        return msgspec.structs.replace(allocation, end="lost", reason=why)

    def _over(self, view: BatchView) -> list[tuple[NodeRequest, Allocation]]:
        """Return the started requests whose allocations have ended or were requeued, each with its allocation."""
        by_name = self._by_name(view)
        started = [request for request in self._requests() if request.has_started]
        pairs = [(request, by_name.get(name, _gone(name))) for request in started for name in [self.name_of(request)]]
        # A requeued allocation must not run again, so count it as ended; it is cancelled once it is no longer needed.
        back = [
            (request, _put_back(allocation) if allocation.state == "waiting" else allocation)
            for request, allocation in pairs
        ]
        return [(request, allocation) for request, allocation in back if allocation.state == "ended"]

    def _ends(self, over: Sequence[tuple[NodeRequest, Allocation]]) -> list[Report]:
        """Return reports that node tasks have ended because their nodes are gone."""
        reports: list[Report] = []
        for request, allocation in over:
            name = self.name_of(request)
            outcome = allocation.end, allocation.reason
            if allocation.end == "failed":
                outcome = self._system.end_from_output(self._folder.printed(name)) or outcome
            unfinished = self._unfinished(request)
            jobs = {key[0] for _, key, _ in unfinished}
            ends = (
                self._ends_with_pilot(jobs, *outcome) if request.job.job_id == PILOT else dict.fromkeys(jobs, outcome)
            )
            for machine, key, number in unfinished:
                reports.append(end_of(self._folder.node_task(name, number, key), machine, key, *ends[key[0]]))
        return reports

    def _ends_with_pilot(
        self, jobs: Collection[int], end: AllocationEnd, reason: str
    ) -> dict[int, tuple[AllocationEnd, str]]:
        """Return how jobs in an ended pilot end: as lost, or out of memory after `MOST_SHORT` such pilots of a job."""
        ends: dict[int, tuple[AllocationEnd, str]] = dict.fromkeys(jobs, ("lost", reason))
        for job_id in jobs if end == "memory" else ():
            self._short[job_id] += 1
            if self._short[job_id] >= MOST_SHORT:
                del self._short[job_id]
                why = f"out of memory: it was in {MOST_SHORT} pilots that ran out of memory; the last one: {reason}"
                ends[job_id] = end, why
        return ends

    def _unfinished(self, asked: NodeRequest) -> list[tuple[str, Key, int]]:
        """Return the node tasks that may be running in an allocation, as (machine, job attempt, node number)."""
        site = self._driver.site
        if asked.job.job_id != PILOT:
            job_id = asked.job.job_id
            return [(machine, (job_id, attempt), node) for machine, attempt, node in site.runs.unfinished(job_id)]
        numbers = {
            self._driver.settings.machines[place].name: number for number, place in enumerate(asked.node_indices)
        }
        return [
            (machine, (job_id, attempt), numbers[machine])
            for job_id, _ in site.core.site.occupied()
            for machine, attempt, _ in site.runs.unfinished(job_id)
            if machine in numbers
        ]

    async def _report(self, view: BatchView, ends: Sequence[Report] = (), over: Sequence[RequestStatus] = ()) -> None:
        """Report all changes to the site, including ended node tasks (`ends`) and pilots (`over`)."""
        by_name = self._by_name(view)
        asks = list(over)
        joined: list[Report] = []
        for request in self._requests():
            name = self.name_of(request)
            seen = None if request.has_started else self._status_of(request, by_name)
            if seen is not None and self._reported.get(name) != seen:
                self._reported[name] = seen
                asks.append(seen)
                joined += self._joined(request) if seen.state == "ready" else []
        nodes = view.kinds, self._groups
        snapshot = BatchSnapshot(view.nodes, view.longest_ms, self._steps, tuple(asks), self._problem, *nodes)
        is_new = self._reported_snapshot is None or _gist(self._reported_snapshot) != _gist(snapshot)
        if asks or ends or is_new or time.monotonic() - self._reported_s > REPORT_S:
            self._reported_snapshot, self._reported_s = snapshot, time.monotonic()
            await self._driver.apply(*ends, *joined, snapshot)
            waiting = {self.name_of(request) for request in self._requests() if not request.has_started}
            self._reported = {name: seen for name, seen in self._reported.items() if name in waiting}

    def _joined(self, asked: NodeRequest) -> list[Report]:
        """Return reports that a pilot's machines have joined, because jobs need the hosts before the agents report."""
        machines = [self._driver.settings.machines[place].name for place in asked.node_indices]
        hosts = self._hub.hosts(self.name_of(asked), len(machines))
        users = self._driver.site.runs.users
        return [MachineJoined(machine, host, users) for machine, host in zip(machines, hosts, strict=True)]

    def _status_of(self, asked: NodeRequest, by_name: Mapping[str, Allocation]) -> RequestStatus | None:
        """Return the status of a request that has not started; None if nothing is known yet."""
        job, name = asked.job, self.name_of(asked)
        if name in self._refused:
            state, why = self._refused[name]
            return RequestStatus(job.job_id, asked.ask, state, None, why)
        allocation = by_name.get(name)
        if allocation is not None and allocation.runs_as != self._submitted_as(asked).runs_as:
            return RequestStatus(job.job_id, asked.ask, "over", None, "it was requested as another account")
        layout = self._layout(name, job)
        if layout is not None and (allocation is None or allocation.state != "ended"):
            start_ms = None if allocation is None else allocation.start_ms
            return RequestStatus(job.job_id, asked.ask, "ready", start_ms, chunks=layout)
        if allocation is None:
            why_not = self._unsure.get(name)
            return None if why_not is None else RequestStatus(job.job_id, asked.ask, "waiting", None, why_not, True)
        if allocation.state == "ended":
            how: AskState = "cancelled" if allocation.end == "cancelled" else "over"
            return RequestStatus(job.job_id, asked.ask, how, None, allocation.reason)
        reason = allocation.reason or "its nodes have started, and are being prepared"
        number = f"as {allocation.number} there: " if allocation.state == "waiting" else ""
        details = f"{number}{reason}", allocation.is_put_off
        return RequestStatus(job.job_id, asked.ask, "waiting", allocation.start_ms, *details)

    def _layout(self, name: str, job: Job) -> tuple[int, ...] | None:
        """Return the number of a job's chunks on each of its nodes, or None while these are not all connected.

        The result is empty if the job has whole nodes.
        """
        layout = self._hub.layout(name, job.width)
        if parts_of(job) is None:
            return None if layout is None or len(layout) < job.width else ()
        # The site has as many machines as it may have nodes; the request has asked for no more nodes.
        return layout if layout is not None and len(layout) <= self._driver.site.core.nodes else None

    def _by_name(self, view: BatchView) -> dict[str, Allocation]:
        """Return one allocation per name: running if possible, otherwise waiting, otherwise ended.

        Of two allocations in the same state, prefer the allocation whose nodes have called.
        """

        def rank(candidate: Allocation) -> tuple[int, bool]:
            return _RANK[candidate.state], candidate.number != self._hub.number_of(candidate.name)

        by_name: dict[str, Allocation] = {}
        for allocation in view.allocations:
            current = by_name.get(allocation.name)
            if current is None or rank(allocation) < rank(current):
                by_name[allocation.name] = allocation
        return by_name

    # -- acting -------------------------------------------------------------------------------------------------------

    async def act(self) -> None:
        """Request needed allocations that are missing, and cancel allocations that are not needed."""
        view = self._view
        assert view is not None, "acting before the first query"
        requests = {self.name_of(request): request for request in self._requests()}
        counts = self._by_name(view)
        mistakes = [
            allocation
            for allocation in view.allocations
            if allocation.state != "ended" and counts[allocation.name] is not allocation
        ]
        gone = [
            allocation for name, allocation in counts.items() if name not in requests and allocation.state != "ended"
        ]
        # Let connected nodes give themselves back, so that the batch system's accounting does not show a cancellation.
        # An allocation that was waiting at the last query may have its nodes by now.
        now_s = time.monotonic()
        self._unwanted = {allocation.number: self._unwanted.get(allocation.number, now_s) for allocation in gone}
        gone = [
            allocation
            for allocation in gone
            if not self._has_nodes(allocation) or now_s - self._unwanted[allocation.number] > LEAVE_S
        ]
        accounts = {"", *(request.runs_as for request in self._plan.users.values())}
        given_back = [allocation for allocation in (*mistakes, *gone) if allocation.runs_as in accounts]
        if given_back:
            await self._give_back(given_back)
        await self._give_up(requests, counts)
        for name, request in requests.items():
            is_requested = name in counts or name in self._asked or name in self._unsure or name in self._refused
            # After an unanswered request, the other requests of the same account wait for the next query.
            if not request.has_started and not is_requested and not self._is_stuck(request):
                await self._ask(name, request)
        self._refused = {name: why for name, why in self._refused.items() if name in requests}

    def _has_nodes(self, allocation: Allocation) -> bool:
        """Whether an allocation has nodes: it was running at the last query, or its nodes have called since."""
        has_called = self._hub.number_of(allocation.name) is not None
        return allocation.state == "running" or (has_called and allocation.name not in self._put_back)

    def _is_stuck(self, asked: NodeRequest) -> bool:
        """Whether a request must wait for the next query, because an earlier request got no answer or hit a limit.

        An unanswered request delays all requests of its Unix account; a limit delays only requests with equal `_kind`.
        """
        runs_as = self._submitted_as(asked).runs_as
        unheard = self._unsure.keys() - self._limited.keys()
        if any(self._folder.owner(name).runs_as == runs_as for name in unheard):
            return True
        return self._kind(asked) in self._limited.values()

    def _is_at_fault(self, asked: NodeRequest) -> bool:
        """Whether a job itself caused its rejection, i.e. was rejected while no similar request had an allocation."""
        assert self._view is not None, "acting before the first query"
        there = self._there()
        if not any(
            self.name_of(request) in there and self._kind(request) == self._kind(asked) for request in self._requests()
        ):
            self._at_fault.add(asked.job.job_id)
        return asked.job.job_id in self._at_fault

    def _kind(self, asked: NodeRequest) -> tuple[BatchUser, tuple[str, ...]]:
        """Return a request's accounts and batch system options, on which limits depend."""
        action = self._driver.site.request_of(asked.job.job_id)
        return self._submitted_as(asked), () if action is None else action.batch_options

    def _submitted_as(self, asked: NodeRequest) -> BatchUser:
        """Return the accounts for a request."""
        action = self._driver.site.request_of(asked.job.job_id)
        return self._plan.users.get("" if action is None else action.user, _OF_SITE)

    async def _give_back(self, allocations: Sequence[Allocation]) -> None:
        """Cancel allocations, account by account, so that a failure does not affect other accounts."""
        for runs_as in sorted({allocation.runs_as for allocation in allocations}):
            given_back = [allocation for allocation in allocations if allocation.runs_as == runs_as]
            if await self._has_cancelled(given_back):
                assert self._view is not None, "given back before it was seen"
                left = tuple(allocation for allocation in self._view.allocations if allocation not in given_back)
                self._view = msgspec.structs.replace(self._view, allocations=left)

    async def _has_cancelled(self, allocations: Sequence[Allocation]) -> bool:
        """Cancel allocations of one account; return whether that succeeded."""
        runs_as = allocations[0].runs_as
        if runs_as in self._deaf:
            return False
        try:
            await self._system.cancel(allocations)
        except (UnavailableError, InputError) as error:
            self._deaf.add(runs_as)
            numbers = ", ".join(allocation.number for allocation in allocations)
            logger.warning("%s cannot be given back yet: %s", numbers, error)
            return False
        return True

    async def _give_up(self, requests: Mapping[str, NodeRequest], counts: Mapping[str, Allocation]) -> None:
        """Cancel running allocations with a node silent for `lease_s`, because their jobs would block the other nodes.

        The allocations are reported as lost once the batch system reports that they have ended.
        """
        runs = [name for name in requests if name in counts and counts[name].state == "running"]
        silent_nodes = {name: self._hub.silent_node(name, requests[name].job.width) for name in runs}
        now_s = self._hub.clock()
        self._silent = {name: self._silent.get(name, now_s) for name in runs if silent_nodes[name] is not None}
        self._given_up = {name: why for name, why in self._given_up.items() if name in requests}
        for name, since_s in self._silent.items():
            is_lost = now_s - since_s >= self._plan.lease_s and name not in self._given_up
            if is_lost and await self._has_cancelled([counts[name]]):
                self._given_up[name] = f"its node {silent_nodes[name]} no longer answers"

    async def _ask(self, name: str, asked: NodeRequest) -> None:
        """Request nodes; if there is no answer, the next query shows whether the request arrived."""
        try:
            self._asked[name] = await self._system.submit(self._request(name, asked))
        except UnavailableError as error:
            logger.warning("%s: %s", name, error)
            if isinstance(error, RequestRejectedError) and self._is_at_fault(asked):
                self._refused[name] = "over", str(error)
                return
            self._unsure[name] = str(error)
            if isinstance(error, LimitError | RequestRejectedError):
                self._limited[name] = self._kind(asked)
        except InputError as error:
            self._refused[name] = "refused", str(error)
        except OSError as error:
            # The folder is full or missing; retry after the next query.
            self._unsure[name] = f"{error.filename or self._folder.path}: {error.strerror}"
            logger.warning("%s: %s", name, self._unsure[name])

    def _request(self, name: str, asked: NodeRequest) -> AllocationRequest:
        """Create a request for nodes; raise InputError if that is impossible, OSError if it may work later."""
        assert self._view is not None, "acting before the first query"
        job, action = asked.job, self._driver.site.request_of(asked.job.job_id)
        user = "" if action is None else action.user
        refusal = None if action is None else self._driver.site.runs.users.refusal(user, action.batch_options)
        if refusal is not None:
            # Since the job was submitted, the operator has removed the user or the option from the table.
            raise InputError(refusal)
        as_whom = self._submitted_as(asked)
        if as_whom.runs_as:
            # A problem with the account or its folder affects only this user.
            problem = self._folder.problem_of(as_whom.runs_as)
            if problem is not None:
                raise InputError(problem)
            self._folder.note(name, Owner(user, as_whom.runs_as))
        length_ms, longest_ms = job.estimate_ms + self._policy.margin_ms, self._view.longest_ms
        module = ("-P", "-m", "gridweave.slurm.service.node", str(self._folder.path), name)
        command = (self._plan.python or sys.executable, *module, f"{self._plan.lease_s:g}")
        ticket = msgspec.json.encode(self._folder.ticket(name)).decode()
        parts = parts_of(job)
        return AllocationRequest(
            name=name,
            nodes=job.width if parts is None else min(job.width, self._driver.site.core.nodes),
            chunk=job.chunk or None,
            width=0 if parts is None else job.width,
            length_ms=length_ms if longest_ms is None else min(length_ms, longest_ms),
            script=self._system.script(command, ticket, parts, job.width),
            folder=str(self._folder.base(as_whom.runs_as)),
            output=str(self._folder.log(name)),
            comment=self._comment(job.job_id, user),
            account=as_whom.account,
            runs_as=as_whom.runs_as,
            options=self._kind(asked)[1],
        )

    @staticmethod
    def _comment(job_id: int, user: str) -> str:
        """Return a comment with the job and its user, for people who look at the batch system's queue."""
        return "gridweave pilot" if job_id == PILOT else f"gridweave job {job_id}" + (f" of {user}" if user else "")


def _gist(seen: BatchSnapshot) -> tuple[object, ...]:
    """Return the values whose changes are reported at once: nodes, time limit, free resources, and the problem."""
    free = seen.free_from[0][1] if seen.free_from else 0
    groups = Counter((group.kind, group.free) for group in seen.groups for _ in range(group.count))
    return seen.nodes, seen.longest_ms, free, seen.problem, seen.kinds, groups


def _gone(name: str) -> Allocation:
    """Create a lost allocation for a name that the batch system does not know."""
    return Allocation(name=name, number="", state="ended", reason=GONE, end="lost")


def _put_back(allocation: Allocation) -> Allocation:
    """Mark an allocation that the batch system has requeued as lost."""
    return msgspec.structs.replace(allocation, state="ended", end="lost", reason=f"{PUT_BACK}: {allocation.reason}")


_OF_SITE = BatchUser()

_RANK = {"running": 0, "waiting": 1, "ended": 2}
