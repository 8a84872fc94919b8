"""What the levels of control share: what each is asked, the jobs that wait at sites, and what users want of these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.random import Generator

from gridweave.grid.control.links import GridNetwork
from gridweave.grid.control.mapping import PlannedPlace
from gridweave.grid.control.past import SiteRefusals, another, once_more_evicted
from gridweave.grid.control.placing import Awaited, why_too_dear
from gridweave.grid.control.queue import GridQueue
from gridweave.grid.control.tuning import QueueTuning
from gridweave.grid.lifecycle import ASKING, BACKLOG, DELEGATION, QUEUED, UNPLACED, WAITING, DelegationCause
from gridweave.grid.messages import (
    GridCommand,
    GridJobSubmitted,
    LinksChanged,
    PathsMeasured,
    ReportDone,
    ReportHeld,
    ReportRefusal,
    ReportRefused,
    ToSite,
)
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import Sends
from gridweave.netmodel.model import NetworkModel
from gridweave.site.explain import Forecaster, Planner
from gridweave.site.job import Job
from gridweave.site.lifecycle import Lifecycle
from gridweave.site.messages import Answer, CancelJob, Quoted, Refused, SiteChanged, WithdrawJob
from gridweave.site.state import CoreState, GeneratorState, generator_state, restore_generator
from gridweave.site.times import span_text


class ControlOptions(NamedTuple):
    """What a level of control is made for, beside the nodes and the policy."""

    rng: Generator | None  # for the selection ``random``, one draw per submitted job
    margin_ms: int  # how far ahead the start of a job on several sites is agreed
    retry_ms: int  # after how long a site that refused, or was silent, is asked again though nothing was heard of it
    lease_ms: int  # how long a delegated job may wait at a site that hears nothing of the grid
    network: GridNetwork | None  # the links between the sites
    names: tuple[str, ...]  # of the sites, for forecasts
    shared: tuple[int, ...] = ()  # the sites whose nodes jobs share by hardware threads


class ControlState(CoreState, frozen=True, kw_only=True):
    """What every level of control knows."""

    draws: GeneratorState | None
    shut: dict[int, str] = msgspec.field(default_factory=dict)
    longest_ms: dict[int, int] = msgspec.field(default_factory=dict)
    cut_off: dict[int, str] = msgspec.field(default_factory=dict)


Barred = tuple[int, ...]
"""The sites that do not take the user of a job."""

Never = Mapping[int, str]
"""The sites that can never run a job, and what each has said of that."""

NOWHERE: Never = MappingProxyType({})


class Control(ABC):
    """How much the grid has to say: one of the levels of control (Streit, section 2.5; Gehring and Preiss 1999).

    `state_type` is the type of its state.
    """

    state_type: Any

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, options: ControlOptions) -> None:
        self.policy = policy
        self._nodes = list(nodes)
        self._rng = options.rng if policy.selection == "random" else None
        self._retry_ms = options.retry_ms
        self._largest = max(nodes)
        self._names = options.names
        self._network = options.network
        # The sites that take in nothing new for the grid, by their own word, and why.
        self._shut: dict[int, str] = {}
        # The sites with which no messages are exchanged, and why; they are shut, too.
        self.cut_off_sites: dict[int, str] = {}
        # Of the sites that say so, the longest estimate of a job that they can ever run.
        self._longest_ms: dict[int, int] = {}

    def _links_news(self) -> Sequence[LinksChanged | PathsMeasured]:
        """Return what has been heard of the links."""
        return ()

    def why_never(
        self, job: Job, barred: Barred = (), never: Never = NOWHERE, sends: Sends | None = None
    ) -> str | None:
        """Return why a job could not be placed on an idle grid without the excluded sites, or None if it could.

        What it sends matters if it is wider than all that are left: a split may cost more than one may.
        """
        never = {**self._too_long(job), **never} if self._longest_ms else never
        if job.width <= self._largest and not (barred or never):
            return None
        left = [0 if site in barred or site in never else nodes for site, nodes in enumerate(self._nodes)]
        reason = self.policy.why_never(np.array(left, np.int64), job.width) if any(left) else "no site takes it"
        if reason is None and self._network is not None and sends is not None and job.width > max(left):
            asked = job, sends
            reason = why_too_dear(left, self.policy, self._network, self._links_news(), asked, self._names)
        if reason is None or not (barred or never):
            return reason
        reason = f"{reason}; sites that do not take it do not count" if any(left) else reason
        if not never:
            return reason
        said = "; ".join(f"{self._names[site]}: {why}" for site, why in sorted(never.items()))
        return f"no site can run it: {said}" + (f"; {reason}" if any(left) else "")

    def submit(self, now_ms: int, asked: GridJobSubmitted, never: Never = NOWHERE) -> list[GridCommand]:
        """Take in a job, of which some sites have said already that they can never run it."""
        draw = 0.0 if self._rng is None else float(self._rng.random())
        job_id = asked.job.job_id
        if self.knows(job_id):
            return []
        reason = self.why_never(asked.job, asked.barred, never, asked.sends)
        never = {**self._too_long(asked.job), **never} if self._longest_ms else never
        return [ReportRefused(job_id, reason)] if reason is not None else self._admit(now_ms, asked, draw, never)

    def cut_off(self, now_ms: int, site: int, why: str) -> None:
        """Record that no messages are exchanged with a site, and why; or that they are again, if nothing is why.

        What such a site has said of being closed itself stays.
        """
        before = self.cut_off_sites.pop(site, None)
        if before is not None and self._shut.get(site) == before:
            del self._shut[site]
        if why:
            self.cut_off_sites[site] = why
            self._shut.setdefault(site, why)

    def site_changed(self, site: int, change: SiteChanged) -> None:
        """Record whether a site takes in anything new; what else has changed is an answer like others."""
        self._shut.pop(site, None)
        if change.closed:
            self._shut[site] = change.closed
        self._longest_ms.pop(site, None)
        if change.longest_ms is not None:
            self._longest_ms[site] = change.longest_ms

    @abstractmethod
    def site_shares(self, site: int) -> None:
        """Note that jobs share the nodes of a site by hardware threads."""

    def _too_long(self, job: Job) -> dict[int, str]:
        """Return the sites that can never run a job for its estimate, and why."""
        sites = sorted(site for site, longest_ms in self._longest_ms.items() if job.estimate_ms > longest_ms)
        asked = f"the job may take {span_text(job.estimate_ms)}; give it a lower limit"
        return {site: f"it runs jobs of at most {span_text(self._longest_ms[site])}, and {asked}" for site in sites}

    @abstractmethod
    def knows(self, job_id: int) -> bool:
        """Return whether a job is here."""

    @abstractmethod
    def _admit(self, now_ms: int, asked: GridJobSubmitted, draw: float, never: Never) -> list[GridCommand]:
        """Take in a job that is new, and can be placed."""

    @abstractmethod
    def bar(self, now_ms: int, event: GridJobSubmitted) -> list[GridCommand]:
        """Place a job that is in the grid at other sites from now on; some of them no longer take its user."""

    @abstractmethod
    def hold(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """Take a job out of the queue, or have it taken out when it comes back there."""

    @abstractmethod
    def release(self, job_id: int) -> None:
        """Do not take a job out of the queue any more."""

    @abstractmethod
    def cancel(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """End a job, or take it out."""

    @abstractmethod
    def answered(self, now_ms: int, site: int, answer: Answer) -> list[GridCommand]:
        """Take in what a site says."""

    @abstractmethod
    def evicted(self, job_id: int) -> int:
        """Count that a site has evicted a job, ahead of what else it says; return how often it has been; 0: not known.

        The count goes to the sites with each attempt from now on.
        """

    @abstractmethod
    def links_changed(self, now_ms: int, news: LinksChanged | PathsMeasured) -> list[GridCommand]:
        """Take in how the links are now."""

    def reconsider(self, now_ms: int) -> None:
        """Have the next pass think anew of all that waits: the policy or the options of the links are others."""
        return

    @abstractmethod
    def hopeless(self, now_ms: int, job_id: int, reason: str) -> list[GridCommand]:
        """Refuse a job that can be placed no more; one that is under way, when it is to be tried again."""

    @abstractmethod
    def run(self, now_ms: int) -> list[GridCommand]:
        """Decide, after all that happened at an instant has been taken in."""

    @property
    def model(self) -> NetworkModel | None:
        """The links between the sites as they are known now; None: none are."""
        return None

    @property
    def tuning(self) -> QueueTuning | None:
        """What the queue knows of its orders, where it tunes itself."""
        return None

    def queue_copy(self) -> GridQueue | None:
        """Return a copy of the queue over all sites; None where there is none."""
        return None

    @abstractmethod
    def waiting(self) -> Iterator[int]:
        """Yield the jobs that wait, in the order in which they are thought of."""

    @abstractmethod
    def next_wakeup_ms(self) -> int | None:
        """Return when `run` is to be called though nothing is heard."""

    @abstractmethod
    def forecaster(self, now_ms: int, job_id: int, end_ms: int = 0) -> Forecaster | None:
        """Return what works out when a job starts, and why not sooner; None if it is not known.

        The grid hears of ends so much later. What sites said counts as they said it.
        """

    def forecasters(self, now_ms: int, job_ids: Sequence[int], end_ms: int = 0) -> list[Forecaster | None]:
        """Return the `forecaster` of each job, all of them of the present state."""
        return [self.forecaster(now_ms, job_id, end_ms) for job_id in job_ids]

    @abstractmethod
    def quoter(self, now_ms: int, asked: GridJobSubmitted, end_ms: int = 0, without: int | None = None) -> Forecaster:
        """Return what works out when a job would start that were submitted now, and another one that waits were not."""

    def planner(self, now_ms: int, most_jobs: int, end_ms: int = 0) -> Planner:
        """Return what works out when jobs start that wait, for so many of them at most.

        Those in the queue of a site may have no start: the site knows more of them.
        """
        found = [self.forecaster(now_ms, job_id, end_ms) for job_id in islice(self.waiting(), most_jobs)]
        told = [forecast() for forecast in found if forecast is not None]
        return lambda: [forecast for forecast in told if forecast.start_ms is not None or forecast.queues]

    @abstractmethod
    def state(self) -> Any:
        """Return all that is known between two instants."""

    def _draws(self) -> GeneratorState | None:
        return None if self._rng is None else generator_state(self._rng)

    def restore(self, state: Any) -> None:
        """Take in all that another of the same settings knew; this one is fresh."""
        if self._rng is not None and state.draws is not None:
            restore_generator(self._rng, state.draws)
        self._shut, self._longest_ms, self.cut_off_sites = state.shut, state.longest_ms, state.cut_off

    @abstractmethod
    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""


class PutOff(msgspec.Struct, frozen=True):
    """How often a site had a job wait longer than it was to, and when it is asked again even if it has not changed."""

    times: int
    again_ms: int


@dataclass(slots=True)
class Delegation:
    """A job of the grid that was given to a site, or is about to be, and where it stands."""

    job: Job
    draw: float
    number: int = 0
    sensitivity: float = 1.0
    sends: Sends = field(default_factory=Sends)
    submit_ms: int = 0
    state: str = ASKING
    site: int = -1
    next_site: int = -1
    # Whether it was sent where it would start at once, as was quoted: to other jobs as well, or by an old look.
    hurried: bool = False
    # The sites that have put it off since all were asked last.
    put_off: dict[int, PutOff] = field(default_factory=dict)
    cancelled: bool = False
    # Whether it is to be taken out when it comes back.
    held: bool = False
    # When it is to end where it waits, and why it is not to be asked for again, if that is so.
    end_ms: int = 0
    hopeless: str = ""
    asked: set[int] = field(default_factory=set)
    # Which have changed since they quoted, while others are still awaited.
    changed: set[int] = field(default_factory=set)
    quotes: dict[int, Quoted] = field(default_factory=dict)
    # When each of the quotes came.
    quoted_ms: dict[int, int] = field(default_factory=dict)
    refused_by: set[int] = field(default_factory=set)
    # Of the sites that had taken it since it last ran, and would not have it then.
    refusals: dict[int, SiteRefusals] = field(default_factory=dict)
    barred: Barred = ()
    # The sites that can never run it, and what each has said of that.
    never: dict[int, str] = field(default_factory=dict)
    # Nodes of several sites that are on their way, for which it waits.
    awaited: Awaited | None = None
    # Where and when it is to run by the last mapping over the sites, if it had a place in that.
    mapped: PlannedPlace | None = None
    # Since when it has no place at all.
    waits_since_ms: int | None = None

    def avoids(self, site: int, now_ms: int) -> bool:
        """Return whether it is not to be offered to a site now."""
        refusals = self.refusals.get(site)
        return site in self.barred or site in self.never or (refusals is not None and refusals.is_left_alone(now_ms))

    def leaves_alone(self, site: int, now_ms: int) -> bool:
        """Return whether it is not to be moved to a site now, though that has changed: it has put it off repeatedly."""
        known = self.put_off.get(site)
        return known is not None and known.times > 1 and now_ms < known.again_ms


class DelegatingState(ControlState, frozen=True, kw_only=True):
    """What every level knows at which jobs wait in the queues of sites."""

    jobs: list[Delegation]
    retry_at_ms: int | None


class DelegatingControl(Control):
    """A level at which jobs wait in the queues of sites: where each stands, and what its user wants of it."""

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, options: ControlOptions) -> None:
        super().__init__(nodes, policy, options)
        self._jobs: dict[int, Delegation] = {}
        self._life = Lifecycle(DELEGATION)
        # When the sites are asked again for the jobs that none of them takes.
        self._retry_at_ms: int | None = None

    def site_shares(self, site: int) -> None:
        """Do nothing: at these levels a site says what it offers with each quote."""

    def restore(self, state: Any) -> None:
        """Take in all that another of the same settings knew; this one is fresh."""
        super().restore(state)
        self._jobs = {delegation.job.job_id: delegation for delegation in state.jobs}
        self._retry_at_ms = state.retry_at_ms

    def knows(self, job_id: int) -> bool:
        """Return whether a job is here."""
        return job_id in self._jobs

    def attempt_of(self, job_id: int) -> int:
        """Return the number of the present attempt of a job that is here."""
        return self._jobs[job_id].number

    def _begin_delegation(self, delegation: Delegation) -> None:
        """Record a job that comes to this level of control."""
        job_id = delegation.job.job_id
        self._jobs[job_id] = delegation
        self._life.begin(job_id, "submit")

    def _change(self, delegation: Delegation, cause: DelegationCause) -> None:
        """Change the state of a job as `gridweave.grid.lifecycle.DELEGATION` has it."""
        self._life.change(delegation.job.job_id, delegation, cause)

    def cancel(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """End a job, wherever it stands."""
        delegation = self._jobs.get(job_id)
        if delegation is None or delegation.cancelled:
            return []
        delegation.cancelled = True
        if delegation.state in UNPLACED:
            return self._done(delegation, "cancelled")
        return self._end(delegation)

    def _end(self, delegation: Delegation) -> list[GridCommand]:
        return [ToSite(delegation.site, CancelJob(delegation.job.job_id, delegation.number))]

    def hold(self, now_ms: int, job_id: int) -> list[GridCommand]:
        """Take a job out; one that waits at a site is asked for, and one that is under way when it comes back."""
        delegation = self._jobs.get(job_id)
        if delegation is None or delegation.cancelled:
            return []
        if delegation.state in UNPLACED:
            return self._take_out(delegation)
        delegation.held = True
        if delegation.state == WAITING:
            return [ToSite(delegation.site, WithdrawJob(job_id, delegation.number))]
        return []

    def evicted(self, job_id: int) -> int:
        """Count that a site has evicted a job; return how often it has been; 0: it is not known."""
        delegation = self._jobs.get(job_id)
        if delegation is None:
            return 0
        delegation.job = once_more_evicted(delegation.job)
        return delegation.job.evictions

    def bar(self, now_ms: int, event: GridJobSubmitted) -> list[GridCommand]:
        """Place a job at other sites from now on; it is taken back from one that it may not be at any more.

        A site that says anew whom it takes may have other machines: those that could never run the job are asked anew.
        One that no site can have any more is refused; if it stands somewhere, when it is to be asked for again.
        """
        delegation = self._jobs.get(event.job.job_id)
        if delegation is None:
            return []
        delegation.barred, delegation.never, delegation.hopeless = event.barred, {}, ""
        self._count_those_left(delegation)
        if delegation.hopeless and delegation.state in UNPLACED:
            return self._refuse(delegation)
        if delegation.state != WAITING or delegation.site not in event.barred:
            return []
        return [ToSite(delegation.site, WithdrawJob(delegation.job.job_id, delegation.number))]

    def release(self, job_id: int) -> None:
        """Do not take a job out any more; one that a site gives back is placed anew."""
        if job_id in self._jobs:
            self._jobs[job_id].held = False

    def hopeless(self, now_ms: int, job_id: int, reason: str) -> list[GridCommand]:
        """Refuse a job that has no place; one that stands somewhere, when it is to be asked for again."""
        delegation = self._jobs.get(job_id)
        if delegation is None:
            return []
        delegation.hopeless = reason
        return self._refuse(delegation) if delegation.state in UNPLACED else []

    def _wanted(self, delegation: Delegation) -> list[GridCommand] | None:
        """Return what becomes of a job that is in nobody's hands, if it is not to be placed again; otherwise None."""
        if delegation.cancelled:
            return self._done(delegation, "cancelled")
        if delegation.held:
            return self._take_out(delegation)
        if delegation.hopeless:
            return self._refuse(delegation)
        return None

    def _note_refusal(self, now_ms: int, delegation: Delegation, answer: Refused) -> list[GridCommand]:
        """Leave a site alone that can never run a job, and for a while one that took it and will not have it.

        A site that refuses at its door, as it is drained, is asked again as ever.
        """
        site, known = delegation.site, delegation.refusals
        if answer.cause == "never":
            self._note_never(delegation, site, answer.reason)
        if answer.cause != "job":
            return []
        known[site] = another(known.get(site), now_ms, answer.reason, self._retry_ms)
        self._count_those_left(delegation)
        return [ReportRefusal(delegation.job.job_id, site, known[site].text(now_ms))]

    def _note_never(self, delegation: Delegation, site: int, reason: str) -> None:
        """Ask a site no more for a job that it can never run."""
        delegation.never[site] = reason
        self._count_those_left(delegation)

    def _count_those_left(self, delegation: Delegation) -> None:
        """Have a job refused if only sites could have it that do not take its user, or are asked for it no more."""
        if delegation.hopeless:
            return
        out = {
            site: f"it took it {refusals.times} times and refused it then: {refusals.reason}"
            for site, refusals in delegation.refusals.items()
            if refusals.again_ms is None
        }
        never = delegation.never | out
        delegation.hopeless = self.why_never(delegation.job, delegation.barred, never, delegation.sends) or ""

    def _put_back(self, now_ms: int, delegation: Delegation) -> list[GridCommand]:
        """Keep a job that no site takes now; it is thought of again when one has changed, or after some time."""
        wanted = self._wanted(delegation)
        if wanted is not None:
            return wanted
        self._change(delegation, "put back")
        if delegation.waits_since_ms is None:
            delegation.waits_since_ms = now_ms
        if self._retry_at_ms is None:
            self._retry_at_ms = now_ms + self._retry_ms
        return []

    def _done(self, delegation: Delegation, outcome: str) -> list[GridCommand]:
        self._forget(delegation)
        return [ReportDone(delegation.job.job_id, outcome)]

    def _take_out(self, delegation: Delegation) -> list[GridCommand]:
        self._forget(delegation)
        return [ReportHeld(delegation.job.job_id, delegation.number)]

    def _refuse(self, delegation: Delegation) -> list[GridCommand]:
        self._forget(delegation)
        return [ReportRefused(delegation.job.job_id, delegation.hopeless)]

    def _forget(self, delegation: Delegation) -> None:
        """Drop a job that leaves this level of control."""
        self._change(delegation, "leave")
        del self._jobs[delegation.job.job_id]

    def waiting(self) -> Iterator[int]:
        """Yield the jobs that wait, in the order in which they came."""
        waits = (*UNPLACED, *QUEUED)
        return (job_id for job_id, delegation in self._jobs.items() if delegation.state in waits)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        assert self._retry_at_ms is not None or not any(d.state == BACKLOG for d in self._jobs.values()), "no retry"
