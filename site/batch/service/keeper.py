"""Keeps a batch system asked for what a site wants of it, and the site told of what has become of that.

It holds nothing that must not be lost. What is wanted follows from the state of the site, which is in its journal; what
there is, from the names in the batch system's queue. What is wanted and is not there is asked for; what is there and is
not wanted is given back.
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
from gridweave.site.batch.outlook import Steps, free_steps
from gridweave.site.batch.policy import BatchPolicy
from gridweave.site.batch.service.folder import Owner, SharedFolder, end_of
from gridweave.site.batch.service.hub import Hub
from gridweave.site.batch.service.retention import KeptOutput
from gridweave.site.batch.system import (
    Allocation,
    AllocationEnd,
    AllocationRequest,
    BatchPlan,
    BatchSystem,
    BatchUser,
    BatchView,
    LimitError,
    NotTakenError,
    size_problem,
)
from gridweave.site.machine.folders import Key
from gridweave.site.messages import AskSeen, AskState, BatchSeen, MachineJoined, Report
from gridweave.site.nodes.source import PILOT, NodeRequest
from gridweave.site.service.site_driver import SiteDriver

logger = logging.getLogger("gridweave.live")

LONGEST_PAUSE_S = 60.0
"""A batch system that does not answer is asked at least so often."""

IDLE = 5
"""While nobody waits, and all that runs was seen to run, it is looked at so many times less often."""

TELL_S = 30.0
"""When nodes will be free later is told so often at most, if nothing else has changed."""

LEAVE_S = 10.0
"""Nodes that were told to give themselves back have so long for it; then they are taken back."""

TIDY_EVERY = 100
"""After so many looks output that exceeds the limits is removed."""

MOST_SHORT = 3
"""A job that was in so many pilots that ended for want of memory fails: it may be the one that uses it (a guess)."""

GONE = "it is gone from the queue of the batch system"
PUT_BACK = "the batch system has put it back into its queue"


class BatchKeeper:
    """Looks at a batch system again and again, and does what follows for a site.

    Parameters
    ----------
    driver : SiteDriver
        Of a site whose discipline asks a batch system.
    system : BatchSystem
    hub : Hub
    folder : SharedFolder
    plan : BatchPlan
        How the batch system is kept asked.

    Attributes
    ----------
    output : KeptOutput
        Of the site's jobs; to be closed when the site ends.
    """

    def __init__(
        self, driver: SiteDriver, system: BatchSystem, hub: Hub, folder: SharedFolder, plan: BatchPlan
    ) -> None:
        self.output = KeptOutput(folder, plan.rules.output)
        self._driver, self._system, self._hub = driver, system, hub
        self._folder, self._plan = folder, plan
        policy = driver.settings.policy
        assert isinstance(policy, BatchPolicy), "a site that asks no batch system"
        self._policy = policy
        self._prefix = folder.prefix
        self._view: BatchView | None = None
        self._steps: Steps = ()
        # What was asked for since the last look began, and of which of these it is not known whether that was heard.
        self._asked: dict[str, str] = {}
        self._unsure: dict[str, str] = {}
        # As whom, and with which options, no more may be asked for until the next look.
        self._limited: dict[str, tuple[BatchUser, tuple[str, ...]]] = {}
        # The accounts whose allocations could not be given back since then: nothing of theirs is, until the next look.
        self._deaf: set[str] = set()
        # Jobs that were not taken when there was none like them; what was not taken, never or not so named, and why.
        self._at_fault: set[int] = set()
        self._refused: dict[str, tuple[Literal["refused", "over"], str]] = {}
        self._told: dict[str, AskSeen] = {}
        self._told_seen: BatchSeen | None = None
        self._problem = ""
        self._told_s = 0.0
        # In how many pilots each job was that ended for want of memory; a site that is started anew counts anew. It is
        # not known which of them are gone for good: those of a grid come back.
        self._short: Counter[int] = Counter()
        self._looks = 0
        self._unwanted: dict[str, float] = {}
        # Since when a node of an allocation has not been heard; and why what was given back for that is lost.
        self._silent: dict[str, float] = {}
        # What had nodes, and waits again in the queue of the batch system.
        self._put_back: set[str] = set()
        self._given_up: dict[str, str] = {}

    async def run(self) -> None:
        """Look and act, without end."""
        pause_s = self._plan.poll_s
        self._want()
        while True:
            pause_s = self._plan.poll_s if await self.has_looked() else min(2 * pause_s, LONGEST_PAUSE_S)
            await self._act_for(pause_s)

    async def has_looked(self) -> bool:
        """Look; return whether the batch system has answered. If not the site is told why."""
        try:
            await self.look()
        except (UnavailableError, InputError) as error:
            await self._away(str(error))
            return False
        return True

    async def _act_for(self, pause_s: float) -> None:
        """Ask and give back as the site changes, until it is time for the next look."""
        begin_s = time.monotonic()
        while True:
            # What changes meanwhile is seen to in the next round.
            self._hub.news.clear()
            await self.follow()
            left_s = begin_s + pause_s * (IDLE if self._is_quiet() else 1) - time.monotonic()
            if left_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._hub.news.wait()

    async def follow(self) -> None:
        """Ask for what the site wants now, and give back what it does not, by what was seen last."""
        self._want()
        if self._view is not None:
            await self.act()
            await self._tell(self._view)

    def _want(self) -> None:
        """Tell the hub which allocations are wanted, and which of their nodes are which machines."""
        wanted = self._wanted()
        machines = self._driver.settings.machines
        pilots = {
            machines[place].name: (self.name_of(each), number)
            for each in wanted
            for number, place in enumerate(each.places)
        }
        own = [each for each in wanted if each.job.job_id != PILOT]
        runs = {machine: (self.name_of(each), node) for each in own for machine, _, node in self._unfinished(each)}
        self._hub.want({self.name_of(each): each.job.width for each in wanted}, pilots, runs, known=self._there())

    def _there(self) -> set[str]:
        """Return the names of the allocations that the batch system may have, by the last look and what was asked."""
        view = () if self._view is None else self._view.allocations
        return {*self._asked, *(one.name for one in view if one.state != "ended")}

    def _is_quiet(self) -> bool:
        """Return whether nothing is expected of the batch system."""
        view = self._view
        if view is None or self._unsure or self._unwanted or self._given_up:
            return False
        seen = {allocation.name: allocation.state for allocation in view.allocations}
        return all(each.has_started and seen.get(self.name_of(each)) == "running" for each in self._wanted())

    def name_of(self, asked: NodeRequest) -> str:
        """Return the name of an allocation: it ends with the job, or 0, and a number that is never used again."""
        return f"{self._prefix}{asked.job.job_id}-{asked.ask}"

    def _wanted(self) -> list[NodeRequest]:
        return self._driver.site.core.site.source.requests(self._driver.clock.now_ms())

    # -- looking ------------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Look at the batch system once, and tell the site what has changed."""
        begun = {name for name in self._there() if self._hub.number_of(name) is not None}
        view = await self._system.view(self._prefix)
        ours = self._ours(view.allocations)
        ours += await self._past({one.name for one in ours})
        view = msgspec.structs.replace(view, allocations=tuple(map(self._as_given_up, ours)))
        there = {allocation.name for allocation in view.allocations}
        # What was there, or was asked for, and is not there, never came or has been forgotten: its name is used up.
        wanted = {self.name_of(each): each.was_seen for each in self._wanted()}
        seen = {name: "" for name in wanted if wanted[name]}
        if self._view is not None:
            seen = {one.name: one.number for one in self._view.allocations}
        lost = [
            msgspec.structs.replace(_gone(name), number=number)
            for name, number in (self._asked | seen).items()
            if name in wanted and name not in there and name not in self._unsure
        ]
        if self._view is None:
            self._note_size(view)
        self._asked, self._problem = {}, ""
        self._put_back = {one.name for one in view.allocations if one.state == "waiting" and one.name in begun}
        self._view = msgspec.structs.replace(view, allocations=(*view.allocations, *lost))
        self._steps = free_steps(view, self._driver.clock.now_ms())
        self._unsure.clear()
        self._limited.clear()
        self._deaf.clear()
        # Jobs that are gone; and pilots, of which the next need not be as the last.
        self._at_fault = {job_id for job_id in self._at_fault if self._driver.site.request_of(job_id) is not None}
        self._looks += 1
        if self._looks % TIDY_EVERY == 0:
            await self._tidy()
        # In one turn, so that nothing starts on nodes that are gone.
        over = self._over(self._view)
        # Of a job that has started the site hears when it ends.
        pilots = [(each, one) for each, one in over if each.job.job_id == PILOT]
        seen_over = [AskSeen(PILOT, each.ask, "over", None, one.reason) for each, one in pilots]
        await self._tell(self._view, self._ends(over), seen_over)

    def _note_size(self, view: BatchView) -> None:
        """Warn, at the first look, of a site that counts more nodes than the batch system has for it."""
        problem = size_problem(self._driver.site.core.nodes, view)
        if problem is not None:
            logger.warning("site %s: %s", self._driver.settings.name, problem)

    def _ours(self, allocations: Iterable[Allocation]) -> tuple[Allocation, ...]:
        """Return those of the accounts by which they were asked for: anybody may give a job any name."""
        return tuple(one for one in allocations if one.runs_as == self._folder.owner(one.name).runs_as)

    async def _past(self, there: Collection[str]) -> tuple[Allocation, ...]:
        """Return how allocations ended in which jobs ran, or may have, and that a look shows no more.

        A batch system shows them for some minutes; only when the site was away for longer it has to be asked.
        """
        names = [self.name_of(each) for each in self._wanted() if each.has_started]
        names = [name for name in names if name not in there]
        if not names:
            return ()
        try:
            return self._ours(await self._system.ended(names))
        except UnavailableError as error:
            logger.warning("%s: how nodes that are gone came to an end is not known: %s", ", ".join(names), error)
            return ()

    async def _tidy(self) -> None:
        """Remove output that exceeds the limits; what cannot be removed stays until the next time."""
        try:
            left = await asyncio.to_thread(self._folder.left)
            wanted = {*map(self.name_of, self._wanted()), *self._there()}
            now_ms = time.time_ns() // 1_000_000
            self._hub.gone = await asyncio.to_thread(self.output.tidy, left, wanted, now_ms)
        except OSError as error:
            logger.warning("%s: old output cannot be removed: %s", self._folder.path, error)

    async def _away(self, problem: str) -> None:
        """Tell the site that the batch system does not answer; so it is until a look succeeds."""
        self._problem = problem
        logger.warning("%s: %s", self._driver.settings.name, problem)
        last = self._told_seen or BatchSeen(0, None, ())
        if last.problem != problem:
            self._told_seen = msgspec.structs.replace(last, problem=problem, asks=())
            await self._driver.told(self._told_seen)

    def _as_given_up(self, allocation: Allocation) -> Allocation:
        """Return an allocation as it is to be told: one that the site itself gave up was not cancelled by somebody."""
        why = self._given_up.get(allocation.name)
        if why is None or allocation.state != "ended":
            return allocation
        return msgspec.structs.replace(allocation, end="lost", reason=why)

    def _over(self, view: BatchView) -> list[tuple[NodeRequest, Allocation]]:
        """Return what had started and is over, and how: it has ended, or the batch system has put it back."""
        found = self._by_name(view)
        started = [each for each in self._wanted() if each.has_started]
        known = [(each, found.get(name, _gone(name))) for each in started for name in [self.name_of(each)]]
        # It is taken out of the queue there as soon as it is not wanted any more: it must not run again.
        back = [(each, _put_back(one) if one.state == "waiting" else one) for each, one in known]
        return [(each, one) for each, one in back if one.state == "ended"]

    def _ends(self, over: Sequence[tuple[NodeRequest, Allocation]]) -> list[Report]:
        """Return how parts of jobs ended whose nodes are gone."""
        reports: list[Report] = []
        for each, allocation in over:
            name = self.name_of(each)
            told = allocation.end, allocation.reason
            if allocation.end == "failed":
                told = self._system.end_told(self._folder.printed(name)) or told
            unfinished = self._unfinished(each)
            jobs = {key[0] for _, key, _ in unfinished}
            ends = self._ends_with_pilot(jobs, *told) if each.job.job_id == PILOT else dict.fromkeys(jobs, told)
            for machine, key, number in unfinished:
                reports.append(end_of(self._folder.piece(name, number, key), machine, key, *ends[key[0]]))
        return reports

    def _ends_with_pilot(
        self, jobs: Collection[int], end: AllocationEnd, reason: str
    ) -> dict[int, tuple[AllocationEnd, str]]:
        """Return how jobs end with their pilot: that is no fault of theirs, but for want of memory again and again."""
        ends: dict[int, tuple[AllocationEnd, str]] = dict.fromkeys(jobs, ("lost", reason))
        for job_id in jobs if end == "memory" else ():
            self._short[job_id] += 1
            if self._short[job_id] >= MOST_SHORT:
                del self._short[job_id]
                why = (
                    f"out of memory: it was in {MOST_SHORT} pilots that ended for want of memory; of the last: {reason}"
                )
                ends[job_id] = end, why
        return ends

    def _unfinished(self, asked: NodeRequest) -> list[tuple[str, Key, int]]:
        """Return what may still run on nodes that were given: machine, attempt of a job, and number of the node."""
        site = self._driver.site
        if asked.job.job_id != PILOT:
            job_id = asked.job.job_id
            return [(machine, (job_id, attempt), node) for machine, attempt, node in site.runs.unfinished(job_id)]
        numbers = {self._driver.settings.machines[place].name: number for number, place in enumerate(asked.places)}
        return [
            (machine, (job_id, attempt), numbers[machine])
            for job_id, _ in site.core.site.occupied()
            for machine, attempt, _ in site.runs.unfinished(job_id)
            if machine in numbers
        ]

    async def _tell(self, view: BatchView, ends: Sequence[Report] = (), over: Sequence[AskSeen] = ()) -> None:
        """Tell the site what it does not know yet, and how parts of jobs have ended, and pilots."""
        found = self._by_name(view)
        asks = list(over)
        joined: list[Report] = []
        for each in self._wanted():
            name = self.name_of(each)
            seen = None if each.has_started else self._seen(each, found)
            if seen is not None and self._told.get(name) != seen:
                self._told[name] = seen
                asks.append(seen)
                joined += self._joined(each) if seen.state == "ready" else []
        seen_all = BatchSeen(view.nodes, view.longest_ms, self._steps, tuple(asks), self._problem)
        is_new = self._told_seen is None or _gist(self._told_seen) != _gist(seen_all)
        if asks or ends or is_new or time.monotonic() - self._told_s > TELL_S:
            self._told_seen, self._told_s = seen_all, time.monotonic()
            await self._driver.told(*ends, *joined, seen_all)
            waiting = {self.name_of(each) for each in self._wanted() if not each.has_started}
            self._told = {name: seen for name, seen in self._told.items() if name in waiting}

    def _joined(self, asked: NodeRequest) -> list[Report]:
        """Return that the machines are there which the nodes of a pilot are: jobs meet there before their agents do."""
        machines = [self._driver.settings.machines[place].name for place in asked.places]
        hosts = self._hub.hosts(self.name_of(asked), len(machines))
        users = self._driver.site.runs.users
        return [MachineJoined(machine, host, users) for machine, host in zip(machines, hosts, strict=True)]

    def _seen(self, asked: NodeRequest, found: Mapping[str, Allocation]) -> AskSeen | None:
        """Return what has become of the nodes of a job that waits; None if nothing is known yet."""
        job, name = asked.job, self.name_of(asked)
        if name in self._refused:
            state, why = self._refused[name]
            return AskSeen(job.job_id, asked.ask, state, None, why)
        allocation = found.get(name)
        if allocation is not None and allocation.runs_as != self._submitted_as(asked).runs_as:
            return AskSeen(job.job_id, asked.ask, "over", None, "it was asked for as another account")
        if self._hub.is_ready(name, job.width) and (allocation is None or allocation.state != "ended"):
            return AskSeen(job.job_id, asked.ask, "ready", None if allocation is None else allocation.start_ms)
        if allocation is None:
            why_not = self._unsure.get(name)
            return None if why_not is None else AskSeen(job.job_id, asked.ask, "waiting", None, why_not, True)
        if allocation.state == "ended":
            how: AskState = "cancelled" if allocation.end == "cancelled" else "over"
            return AskSeen(job.job_id, asked.ask, how, None, allocation.reason)
        reason = allocation.reason or "its nodes are there, and are being prepared"
        number = f"as {allocation.number} there: " if allocation.state == "waiting" else ""
        told = f"{number}{reason}", allocation.is_put_off
        return AskSeen(job.job_id, asked.ask, "waiting", allocation.start_ms, *told)

    def _by_name(self, view: BatchView) -> dict[str, Allocation]:
        """Return what counts of each name: what runs, else what waits, else what has ended; of two the one heard."""

        def rank(one: Allocation) -> tuple[int, bool]:
            return _RANK[one.state], one.number != self._hub.number_of(one.name)

        found: dict[str, Allocation] = {}
        for allocation in view.allocations:
            known = found.get(allocation.name)
            if known is None or rank(allocation) < rank(known):
                found[allocation.name] = allocation
        return found

    # -- acting -------------------------------------------------------------------------------------------------------

    async def act(self) -> None:
        """Ask for what is wanted and not there, and give back what is there and not wanted."""
        view = self._view
        assert view is not None, "nothing is asked for before the first look"
        wanted = {self.name_of(each): each for each in self._wanted()}
        counts = self._by_name(view)
        mistakes = [one for one in view.allocations if one.state != "ended" and counts[one.name] is not one]
        gone = [one for name, one in counts.items() if name not in wanted and one.state != "ended"]
        # Nodes that hear the site give themselves back, and the batch system's accounting says that they finished. What
        # waited at the last look may have its nodes by now.
        now_s = time.monotonic()
        self._unwanted = {one.number: self._unwanted.get(one.number, now_s) for one in gone}
        gone = [one for one in gone if not self._has_nodes(one) or now_s - self._unwanted[one.number] > LEAVE_S]
        accounts = {"", *(each.runs_as for each in self._plan.users.values())}
        given_back = [one for one in (*mistakes, *gone) if one.runs_as in accounts]
        if given_back:
            await self._give_back(given_back)
        await self._give_up(wanted, counts)
        for name, each in wanted.items():
            known = name in counts or name in self._asked or name in self._unsure or name in self._refused
            # What does not answer one does not answer the next of that account: it is asked again after the next look.
            if not each.has_started and not known and not self._is_stuck(each):
                await self._ask(name, each)
        self._refused = {name: why for name, why in self._refused.items() if name in wanted}

    def _has_nodes(self, one: Allocation) -> bool:
        """Return whether an allocation has nodes: at the last look, or, as they have called since, now."""
        has_called = self._hub.number_of(one.name) is not None
        return one.state == "running" or (has_called and one.name not in self._put_back)

    def _is_stuck(self, asked: NodeRequest) -> bool:
        """Return whether something was asked for of which it is not known whether it was heard, or a limit is reached.

        The one counts for all of the Unix account, the other for those that are like it to the batch system.
        """
        runs_as = self._submitted_as(asked).runs_as
        unheard = self._unsure.keys() - self._limited.keys()
        if any(self._folder.owner(name).runs_as == runs_as for name in unheard):
            return True
        return self._kind(asked) in self._limited.values()

    def _is_at_fault(self, asked: NodeRequest) -> bool:
        """Return whether a job was not taken though the batch system had no other that is like it, now or before."""
        assert self._view is not None, "asked for before anything was seen"
        there = self._there()
        if not any(self.name_of(each) in there and self._kind(each) == self._kind(asked) for each in self._wanted()):
            self._at_fault.add(asked.job.job_id)
        return asked.job.job_id in self._at_fault

    def _kind(self, asked: NodeRequest) -> tuple[BatchUser, tuple[str, ...]]:
        """Return as what the nodes of a job are asked for, and with which options of the batch system's own."""
        wish = self._driver.site.request_of(asked.job.job_id)
        return self._submitted_as(asked), () if wish is None else wish.batch_options

    def _submitted_as(self, asked: NodeRequest) -> BatchUser:
        """Return as what the job of nodes that are asked for is submitted."""
        wish = self._driver.site.request_of(asked.job.job_id)
        return self._plan.users.get("" if wish is None else wish.user, _OF_SITE)

    async def _give_back(self, allocations: Sequence[Allocation]) -> None:
        """Give allocations back, those of each account by themselves: what keeps one of them keeps no other."""
        for runs_as in sorted({one.runs_as for one in allocations}):
            given_back = [one for one in allocations if one.runs_as == runs_as]
            if await self._has_cancelled(given_back):
                assert self._view is not None, "given back before it was seen"
                left = tuple(one for one in self._view.allocations if one not in given_back)
                self._view = msgspec.structs.replace(self._view, allocations=left)

    async def _has_cancelled(self, allocations: Sequence[Allocation]) -> bool:
        """Give allocations of one account back; return whether the batch system has heard that."""
        runs_as = allocations[0].runs_as
        if runs_as in self._deaf:
            return False
        try:
            await self._system.cancel(allocations)
        except (UnavailableError, InputError) as error:
            self._deaf.add(runs_as)
            numbers = ", ".join(one.number for one in allocations)
            logger.warning("%s cannot be given back yet: %s", numbers, error)
            return False
        return True

    async def _give_up(self, wanted: Mapping[str, NodeRequest], counts: Mapping[str, Allocation]) -> None:
        """Give back what runs of which a node is not heard any more: its jobs would keep all its nodes for nothing.

        They are told as lost when the batch system says that nothing of it runs.
        """
        runs = [name for name in wanted if name in counts and counts[name].state == "running"]
        found = {name: self._hub.silent_node(name, wanted[name].job.width) for name in runs}
        now_s = self._hub.clock()
        self._silent = {name: self._silent.get(name, now_s) for name in runs if found[name] is not None}
        self._given_up = {name: why for name, why in self._given_up.items() if name in wanted}
        for name, since_s in self._silent.items():
            is_lost = now_s - since_s >= self._plan.lease_s and name not in self._given_up
            if is_lost and await self._has_cancelled([counts[name]]):
                self._given_up[name] = f"its node {found[name]} no longer answers"

    async def _ask(self, name: str, asked: NodeRequest) -> None:
        """Ask for the nodes of a job; if it is not known whether that was heard, the next look tells."""
        try:
            self._asked[name] = await self._system.submit(self._request(name, asked))
        except UnavailableError as error:
            logger.warning("%s: %s", name, error)
            if isinstance(error, NotTakenError) and self._is_at_fault(asked):
                self._refused[name] = "over", str(error)
                return
            self._unsure[name] = str(error)
            if isinstance(error, LimitError | NotTakenError):
                self._limited[name] = self._kind(asked)
        except InputError as error:
            self._refused[name] = "refused", str(error)
        except OSError as error:
            # The folder is full, or away: it is tried again after the next look.
            self._unsure[name] = f"{error.filename or self._folder.path}: {error.strerror}"
            logger.warning("%s: %s", name, self._unsure[name])

    def _request(self, name: str, asked: NodeRequest) -> AllocationRequest:
        """Return as what the nodes of a job are asked for; InputError if they can never be, OSError if not now."""
        assert self._view is not None, "asked for before anything was seen"
        job, wish = asked.job, self._driver.site.request_of(asked.job.job_id)
        user = "" if wish is None else wish.user
        refusal = None if wish is None else self._driver.site.runs.users.refusal(user, wish.batch_options)
        if refusal is not None:
            # Its operator has taken the user, or an option, out of the table since the job came.
            raise InputError(refusal)
        as_whom = self._submitted_as(asked)
        if as_whom.runs_as:
            # What is wrong with the account or its folder is wrong for this user alone.
            problem = self._folder.problem_of(as_whom.runs_as)
            if problem is not None:
                raise InputError(problem)
            self._folder.note(name, Owner(user, as_whom.runs_as))
        length_ms, longest_ms = job.estimate_ms + self._policy.margin_ms, self._view.longest_ms
        module = ("-P", "-m", "gridweave.site.batch.service.node", str(self._folder.path), name)
        command = (self._plan.python or sys.executable, *module, f"{self._plan.lease_s:g}")
        ticket = msgspec.json.encode(self._folder.ticket(name)).decode()
        return AllocationRequest(
            name=name,
            nodes=job.width,
            length_ms=length_ms if longest_ms is None else min(length_ms, longest_ms),
            script=self._system.script(command, ticket),
            folder=str(self._folder.base(as_whom.runs_as)),
            output=str(self._folder.log(name)),
            comment=self._comment(job.job_id, user),
            account=as_whom.account,
            runs_as=as_whom.runs_as,
            options=self._kind(asked)[1],
        )

    @staticmethod
    def _comment(job_id: int, user: str) -> str:
        """Return whose job it is, for people who look at the queue of the batch system."""
        return "gridweave pilot" if job_id == PILOT else f"gridweave job {job_id}" + (f" of {user}" if user else "")


def _gist(seen: BatchSeen) -> tuple[int, int | None, int, str]:
    """Return what a site hears of at once when it changes: the nodes, those free now, and what is wrong."""
    free = seen.free_from[0][1] if seen.free_from else 0
    return seen.nodes, seen.longest_ms, free, seen.problem


def _gone(name: str) -> Allocation:
    """Return what is known of an allocation that the batch system does not know."""
    return Allocation(name=name, number="", state="ended", reason=GONE, end="lost")


def _put_back(allocation: Allocation) -> Allocation:
    """Return as an end that the batch system has put what ran back into its queue."""
    return msgspec.structs.replace(allocation, state="ended", end="lost", reason=f"{PUT_BACK}: {allocation.reason}")


_OF_SITE = BatchUser()

_RANK = {"running": 0, "waiting": 1, "ended": 2}
