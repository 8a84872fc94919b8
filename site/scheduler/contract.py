"""ContractCore: a site as seen by its own users and the grid; it turns events and requests into commands and answers.

It contains a `SiteCore`, which decides when jobs start, and keeps the site's promises to the grid: reserved nodes with
their leases, delegated jobs, late ends, and the grid's share of the nodes, which the owner sets. The rules are in
docs/contract.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from gridweave.site.disciplines.entry import Policy
from gridweave.site.explain import Forecast, SiteReason, forecast_at
from gridweave.site.job import Job, why_impossible
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.work import RATE_ONE, work_of
from gridweave.site.lifecycle import COMMITTED, EVICTED, PART, RESERVED, RUNNING, WAITING, Lifecycle, PartCause
from gridweave.site.messages import (
    Answer,
    CancelJob,
    Cause,
    ChangeRate,
    Command,
    CommitNodes,
    DirectEvent,
    DrainSite,
    Ended,
    Enqueued,
    EnqueueJob,
    Event,
    EvictJob,
    FragmentsMet,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    KillJob,
    LeaseEnded,
    MoveJob,
    OpenFragment,
    OpenGate,
    Quoted,
    RateMeasured,
    Refused,
    RefuseJob,
    ReleaseNodes,
    RenewLeases,
    Request,
    RequestQuote,
    RequeueJob,
    ReservationCancelled,
    ReservationRequested,
    Reserved,
    ReserveNodes,
    ResumeSite,
    SiteChanged,
    SiteOpened,
    SiteRestarted,
    SiteShut,
    Started,
    StartJob,
    ToGrid,
    WithdrawJob,
    Withdrawn,
)
from gridweave.site.scheduler.amounts import capacity_report, counted_nodes
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.scheduler.offers import new_rate, share_at, untold_job, why_not_placed, with_chunks, with_offer
from gridweave.site.state import CoreState, with_parts
from gridweave.site.times import span_text
from gridweave.site.users.owner import GridJob, OwnerPolicy, ShareState, SlowedFragment

RENDEZVOUS_MS = 30_000
"""How long a job's fragments wait for each other after the agreed start before they are ended."""

ALONE_MS = 1_500
"""How long a fragment runs after its gate has opened without confirmation that all other fragments are running.

Including the time needed to end it, no fragment runs alone for more than 2 s.
"""

OWN = 0
"""The attempt number of jobs of the site's own users."""

PartRequest = CommitNodes | ReleaseNodes | CancelJob | WithdrawJob | OpenGate | FragmentsMet | RateMeasured
"""The grid's requests about a part of a grid job that is already at this site."""

ContractEvent = Event | Request | OpenGate | FragmentsMet | RateMeasured | SiteRestarted | SiteShut | SiteOpened


D = TypeVar("D")


class ContractCoreState(CoreState, Generic[D], frozen=True, kw_only=True, tag="ContractCore 1"):
    """The state of a `ContractCore`; the type of `site` depends on the discipline."""

    now_ms: int
    site: D
    parts: dict[int, GridJob]
    timed: list[int]
    slowed: list[int]
    share: ShareState
    own_running: dict[int, Job]
    own_jobs: dict[int, Job]
    reported: SiteChanged = msgspec.field(name="told")


class ContractCore:
    """A site that implements the site contract.

    Parameters
    ----------
    nodes : int
        Number of nodes of the site, >= 1.
    owner : OwnerPolicy, optional
        By default, the grid can use all nodes and shares one queue with the site's own users.
    rendezvous_ms, alone_ms : int
        How long started fragments wait for the job's other fragments, and run unconfirmed after `OpenGate`.
    is_gated : bool
        Whether ranks with an agreed start wait for `OpenGate`, from which the job's limit then counts.
    week : WeekClock
        The site's local time of the week, for windows.

    Notes
    -----
    Job ids must be unique among all jobs. A request about an attempt that is not at this site is ignored and gets no
    answer, except for `ReserveNodes` and `EnqueueJob`, which create an attempt.
    """

    def __init__(
        self,
        nodes: int,
        policy: Policy,
        *,
        owner: OwnerPolicy | None = None,
        rendezvous_ms: int = RENDEZVOUS_MS,
        alone_ms: int = ALONE_MS,
        is_gated: bool = False,
        week: WeekClock = FROM_MONDAY,
    ) -> None:
        self.site = SiteCore(nodes, policy, week=week)
        self.nodes = nodes
        self._owner = owner or OwnerPolicy()
        self._share = share_at(self.site, self._owner)
        self.rendezvous_ms, self.alone_ms, self._is_gated = rendezvous_ms, alone_ms, is_gated
        self._now_ms = 0
        self._parts: dict[int, GridJob] = {}
        self._life = Lifecycle(PART)
        # Parts with a timeout, and slowed parts; other parts need no checks.
        self._timed: set[int] = set()
        self._slowed: set[int] = set()
        self._own_running: dict[int, Job] = {}
        self._own_jobs: dict[int, Job] = {}
        self._reported = SiteChanged(0, self._share.cap, held=capacity_report(self.site, self._share, ()).held)
        self._out: list[Command | ToGrid] = []
        # The events for `site` at the current time.
        self._inner: list[Event] = []

    def handle(self, now_ms: int, *events: ContractEvent) -> list[Command | ToGrid]:
        """Apply the events and grid requests of one point in time; return the commands and answers.

        Parameters
        ----------
        now_ms : int
            The current time; never earlier than in the previous call.
        *events
            Events of the site as for `SiteCore.handle`, and requests in the order in which they were sent. A call
            without events is a wakeup.

        Returns
        -------
        list of Command or ToGrid
            The caller must execute the commands and send the answers in this order. A fragment with reserved nodes gets
            its `StartJob` at the agreed start.

        Raises
        ------
        InputError
            As in `SiteCore.handle`, for events of the site's own users; the state is then unchanged. A grid request
            with invalid numbers is refused instead.
        """
        return self.take_in(now_ms, events)

    def take_in(self, now_ms: int, events: Sequence[ContractEvent]) -> list[Command | ToGrid]:
        """Do the same as `handle`, but with a sequence of events, which is faster for many events."""
        self.site.check(now_ms, *events)
        self._now_ms = now_ms
        self._out, self._inner = [], []
        for event in sorted(events, key=_ends_first):
            self._inner += self._requested(event)
        self._inner += self._end_leases()
        self._inner += [JobSubmitted(job) for job in self._share.let_in()]
        self._put_off_limits()
        self._run_site(self._inner)
        self._start_due()
        for event in events:
            if isinstance(event, RequestQuote):
                self._answer(self._quote(now_ms, self.site, event))
            elif isinstance(event, EnqueueJob) and (
                self.site.source.can_hold_nodes or event.job.job_id in self._share.outside
            ):
                self._report_enqueued(event.job.job_id, event.attempt)
        for job_id, start_ms in self.site.source.delays(now_ms):
            self._report_enqueued(job_id, self.attempt_of(job_id), start_ms)
        self._report_change()
        return self._out

    def next_wakeup_ms(self) -> int | None:
        """Return when to call `handle` even without an event, or None."""
        site_ms = self.site.next_wakeup_ms()
        if not self._timed:
            return site_ms
        due_ms = min(self._due_ms(self._parts[job_id]) for job_id in self._timed)
        return max(due_ms if site_ms is None else min(due_ms, site_ms), self._now_ms + 1)

    @property
    def draining(self) -> bool:
        """Whether the site accepts no new grid jobs because an operator is draining it."""
        return self._share.draining

    @property
    def shut(self) -> str:
        """Why the site cannot start jobs and therefore accepts no new grid jobs; empty if it can start jobs."""
        return self._share.shut

    def forecast(self, now_ms: int, job_id: int, name: str = "") -> Forecast | None:
        """Return the forecast for a job that is waiting or has reserved nodes, or None; the state does not change."""
        part, site = self._parts.get(job_id), self.site.copy()
        job = next((job for job, _ in site.waiting() if job.job_id == job_id), None)
        if job is not None:
            return forecast_at(name, site.explain(now_ms, job_id), now_ms, job_id, job.width, job.estimate_ms)
        if part is None or part.has_started:
            return None
        site_reason = SiteReason(nodes=self.nodes, free=site.source.idle)
        if part.state == WAITING:
            ahead, job = list(self._share.outside).index(job_id), self._share.outside[job_id]
            why = self._share.why_outside
            site_reason = msgspec.structs.replace(site_reason, ahead=ahead, reason=why, cause=why)
            return forecast_at(name, site_reason, now_ms, job_id, job.width, job.estimate_ms)
        reason = "its nodes are reserved until the agreed start"
        if part.ahead:
            reason = "its nodes are reserved ahead, until the other sites have theirs"
        site_reason = msgspec.structs.replace(
            site_reason, start_ms=None if part.ahead else part.start_ms, reason=reason
        )
        return forecast_at(name, site_reason, now_ms, job_id, part.width, part.length_ms, "starting")

    def quote(self, now_ms: int, job: Job, name: str = "", *, for_grid: bool = False) -> Forecast:
        """Forecast the start of a job as if it were submitted now by a user or the grid; the state does not change."""
        site_reason, run = self.site.copy().quote(now_ms, self._owner.as_delegated(job) if for_grid else job)
        reason = self._share.why_not(job) if for_grid else None
        if reason is not None:
            site_reason, run = msgspec.structs.replace(site_reason, start_ms=None, waits_for=(), reason=reason), None
        if run is None:
            return forecast_at(name, site_reason, now_ms, None, job.width, job.estimate_ms, "refused")
        return forecast_at(name, site_reason, now_ms, None, run.nodes, run.length_ms)

    def part_state(self, job_id: int) -> str | None:
        """Return the state of a grid job's part (see `PART`); None if the job is not at this site."""
        part = self._parts.get(job_id)
        return None if part is None else part.state

    def attempt_of(self, job_id: int) -> int:
        """Return the attempt of a grid job at this site; `OWN` for other jobs."""
        part = self._parts.get(job_id)
        return OWN if part is None else part.attempt

    def grant_of(self, job_id: int) -> StartJob | None:
        """Return a grid job's reserved or used nodes at this site; None if it has no nodes."""
        part = self._parts.get(job_id)
        return None if part is None else part.grant

    @property
    def state_type(self) -> Any:
        """The type of the state, which depends on the discipline."""
        return with_parts(ContractCoreState, self.site)

    def state(self) -> ContractCoreState[Any]:
        """Return the state; call it only between two calls of `handle`."""
        return ContractCoreState(
            now_ms=self._now_ms,
            site=self.site.state(),
            parts=self._parts,
            timed=sorted(self._timed),
            slowed=sorted(self._slowed),
            share=self._share.state(),
            own_running=self._own_running,
            own_jobs=self._own_jobs,
            reported=self._reported,
        )

    def restore(self, state: ContractCoreState[Any]) -> None:
        """Restore the state of another instance with the same settings into this new instance."""
        self._now_ms, self._reported = state.now_ms, state.reported
        self.site.restore(state.site)
        self._parts, self._timed, self._slowed = state.parts, set(state.timed), set(state.slowed)
        self._share.restore(state.share, state.parts)
        self._own_running, self._own_jobs = state.own_running, state.own_jobs

    def kept_nodes(self) -> Iterator[tuple[Literal["reservation", "lease"], int, int, int, int]]:
        """Yield each reservation and lease: kind, id, number of nodes, start and end [ms]."""
        for kept in self.site.reservations():
            yield "reservation", kept.reservation_id, kept.width, kept.start_ms, kept.start_ms + kept.length_ms
        for job_id, part in self._parts.items():
            if part.shared and part.is_granted:
                yield "lease", job_id, part.width, part.start_ms, part.start_ms + part.length_ms

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent, or the grid exceeds its share of the nodes."""
        self.site.check_invariants()
        share = self._share
        assert share.waiting == sum(part.counts_as for part in self._parts.values() if part.state == WAITING)
        having = [part.counts_as for part in self._parts.values() if part.state != EVICTED]
        assert share.used == sum(having), "the nodes of the grid's jobs do not add up"
        assert not share.is_bounded or share.held <= share.cap, "the owner's share is exceeded"
        running = {running.job.job_id for running in self.site.running()}
        waiting = {job.job_id for job, _ in self.site.waiting()}
        for job_id, part in self._parts.items():
            place = share.outside if job_id in share.outside else waiting if part.state == WAITING else running
            assert (job_id in place) != (part.state == EVICTED), f"job {job_id} is {part.state}, but the site disagrees"
            assert not part.has_lease or job_id in self._timed, f"job {job_id} has no lease"
        grid = set(self._parts)
        assert running - grid == set(self._own_running), "the own users' running jobs differ"
        assert waiting - grid == set(self._own_jobs), "the own users' waiting jobs differ"

    def _requested(self, event: ContractEvent) -> Iterable[Event]:
        """Return the events for `site` that result from an event or request; none for an unknown attempt."""
        match event:
            case JobFinished():
                return self._finished(event)
            case ReserveNodes():
                return self._reserve(event)
            case EnqueueJob():
                return self._enqueue(event)
            case _ if isinstance(event, PartRequest):
                part = self._part(event.job_id, event.attempt)
                return () if part is None else self._requested_of(part, event)
            case JobSubmitted() | JobCancelled() | ReservationRequested() | ReservationCancelled():
                return self._asked_by_own_user(event)
            case _ if isinstance(event, DirectEvent):
                return (event,)
            case RequestQuote(width=width) if self.site.takes_parts and width > self.nodes:
                self.site.source.request_nodes(self._now_ms, width)
            case SiteRestarted():
                return self._restarted()
            case RenewLeases(until_ms=until_ms):
                for job_id, part in self._parts.items():
                    part.lease_until_ms = max(part.lease_until_ms, until_ms)
                    if part.ahead and part.state == RESERVED:
                        self._hold(job_id, part)
            case DrainSite() | ResumeSite():
                self._share.draining = isinstance(event, DrainSite)
            case SiteShut(reason=reason):
                self._share.shut = reason
            case SiteOpened():
                self._share.shut = ""
        return ()

    def _requested_of(self, part: GridJob, event: PartRequest) -> Iterable[Event]:
        """Return the events for `site` that result from a request about a part at this site."""
        job_id = event.job_id
        match event:
            # The lease ends at the agreed start, even if its end has not been processed yet.
            case CommitNodes() if part.state == RESERVED and self._now_ms <= part.start_ms:
                return self._commit(event, part)
            case CancelJob() if part.state == EVICTED:
                part.outcome = "cancelled"
            case ReleaseNodes() | CancelJob() if part.state != EVICTED:
                return self._cancel(job_id, part)
            case WithdrawJob() if part.state == WAITING:
                return self._withdraw(job_id)
            case OpenGate() if part.state == RUNNING and part.outcome == "finished":
                self._open(event, part)
            case FragmentsMet() if part.state == RUNNING:
                self._timed.discard(job_id)
            case RateMeasured() if part.state == RUNNING:
                self._measured(event, part)
        return ()

    def _asked_by_own_user(
        self, event: JobSubmitted | JobCancelled | ReservationRequested | ReservationCancelled
    ) -> Iterable[Event]:
        if isinstance(event, JobSubmitted):
            job = event.job
            if job.job_id in self._parts or job.job_id in self._own_running or job.job_id in self._own_jobs:
                return ()
            self._own_jobs[job.job_id] = job
        elif isinstance(event, JobCancelled):
            if event.job_id in self._parts:
                return ()
            self._own_jobs.pop(event.job_id, None)
            if self._unsubmit(event.job_id):
                return ()
        return (event,)

    def _finished(self, event: JobFinished) -> Iterable[Event]:
        """Record that a job has left its nodes; if it is a grid job, report its end to the grid."""
        job_id = event.job_id
        part = self._parts.get(job_id)
        if part is None:
            self._own_running.pop(job_id, None)
        elif part.state == EVICTED:
            self._forget(job_id, "end")
            outcome = "lost" if part.outcome == "finished" else part.outcome
            self._answer(Ended(job_id, part.attempt, self._now_ms, outcome, part.evicted))
            return ()
        elif part.state == RUNNING:
            self._forget(job_id, "end")
            self._answer(Ended(job_id, part.attempt, self._now_ms, part.outcome))
            is_well = event.succeeded and part.outcome == "finished"
            event = msgspec.structs.replace(event, succeeded=is_well)
        else:
            return ()
        return (event,)

    def _why_refused(self, job: Job, start_ms: int, *, ahead: bool) -> str | None:
        """Return why the site refuses to reserve nodes, or None; `ahead` means that the fragment may wait for nodes."""
        if job.in_step and not self.site.takes_parts:
            if self.site.source.can_hold_nodes:
                return "the site slows and pauses jobs, and a job on several sites would wait for its part here"
            return "a batch system starts the jobs of the site, and nodes cannot be held there without pilots"
        if job.job_id in self._parts:
            return "the site has another attempt of this job"
        if start_ms < self._now_ms:
            return f"the agreed start has passed, {span_text(self._now_ms - start_ms)} ago"
        why_not = self._share.why_not_ever if ahead else self._share.why_not
        return why_impossible(job) or why_not(job)

    def _reserve(self, request: ReserveNodes) -> Iterable[Event]:
        job_id, width, start_ms, length_ms = request.job_id, request.width, request.start_ms, request.length_ms
        is_shared = start_ms is not None
        if start_ms is None:
            start_ms = self._now_ms
        job = msgspec.structs.replace(
            request.job or Job(job_id=job_id, width=width, estimate_ms=1),
            job_id=job_id,
            width=width,
            estimate_ms=length_ms if request.ahead else start_ms - self._now_ms + length_ms,
            # The grid has chosen the width or an upper bound on it; a job with forms can start in any of its forms.
            forms=(not is_shared and request.job and request.job.forms) or self.site.as_wide(width),
            in_step=is_shared,
            evictions=request.evictions,
        )
        reason = self._why_refused(job, start_ms, ahead=request.ahead)
        assigns_threads = request.job is not None and self.site.traits.assigns_threads
        if reason is None and (assigns_threads or self.site.traits.counts_resources):
            before, self._inner[:] = self._inner.copy(), []
            self._run_site(before)
            reason = why_not_placed(self.site, self._now_ms, job, request.beside) if assigns_threads else None
        if reason is not None:
            is_never = is_shared and not self.site.takes_parts
            self._answer(Refused(job_id, request.attempt, reason, "never" if is_never else ""))
            return ()
        state = self._life.begin(job_id, "reserve ahead" if request.ahead else "reserve")
        part = GridJob(request.attempt, width, state, start_ms, is_shared, length_ms=length_ms)
        part.share = self.site.source.share_of(job) if job.chunk else 0
        self._parts[job_id] = part
        if request.ahead:
            # The fragment waits like a delegated job, but once it has nodes, it holds them until all sites are ready.
            part.ahead, part.lease_until_ms = True, start_ms
            self._timed.add(job_id)
            self._share.wait(job, part.counts_as)
            return ()
        self._share.used += part.counts_as
        return (JobSubmitted(job, True),)

    def _enqueue(self, request: EnqueueJob) -> Iterable[Event]:
        job = request.job
        reason = why_impossible(job)
        if job.job_id in self._parts:
            reason = "the site has another attempt of this job"
        elif reason is None:
            reason = self._share.why_not_ever(job)
        if reason is not None:
            self._answer(Refused(job.job_id, request.attempt, reason))
            return ()
        state = self._life.begin(job.job_id, "enqueue")
        share, lease_ms = self.site.source.share_of(job) if job.chunk else 0, request.lease_until_ms
        part = GridJob(request.attempt, job.width, state, lease_until_ms=lease_ms, start_ms=-1, share=share)
        self._parts[job.job_id] = part
        self._timed.add(job.job_id)
        self._share.wait(self._owner.as_delegated(job), part.counts_as)
        return ()

    def _commit(self, event: CommitNodes, part: GridJob) -> Iterable[Event]:
        """Commit a fragment to the agreed start; end its lease if this start has already passed."""
        if event.start_ms is not None:
            if event.start_ms < self._now_ms:
                return self._end_lease(event.job_id, part)
            part.start_ms, part.ahead = event.start_ms, False
            self.site.expect_end(self._now_ms, event.job_id, part.start_ms + part.length_ms)
        self._life.change(event.job_id, part, "commit")
        return ()

    def _hold(self, job_id: int, part: GridJob) -> None:
        """Hold the nodes reserved ahead for a fragment until its lease ends."""
        part.start_ms = part.lease_until_ms
        self.site.expect_end(self._now_ms, job_id, part.start_ms + part.length_ms)

    def _open(self, event: OpenGate, part: GridJob) -> None:
        """Open a fragment's gate; if the order's deadline has passed, end the fragment instead."""
        if self._now_ms > event.by_ms:
            self._kill(event.job_id, part, "unmet")
        elif part.opened_ms is None:
            part.opened_ms = self._now_ms
            self.site.expect_end(self._now_ms, event.job_id, self._now_ms + part.length_ms)
            self._out.append(OpenFragment(event.job_id))

    def _cancel(self, job_id: int, part: GridJob) -> Iterable[Event]:
        if part.state == WAITING:
            return self._withdraw(job_id)
        if part.state == RUNNING:
            self._kill(job_id, part, "cancelled")
            return ()
        return self._end_lease(job_id, part)

    def _withdraw(self, job_id: int) -> Iterable[Event]:
        part = self._parts[job_id]
        self._forget(job_id, "withdraw")
        self._answer(LeaseEnded(job_id, part.attempt) if part.shared else Withdrawn(job_id, part.attempt))
        return () if self._share.leave_outside(job_id) or self._unsubmit(job_id) else (JobCancelled(job_id),)

    def _end_lease(self, job_id: int, part: GridJob) -> Iterable[Event]:
        self._forget(job_id, "release")
        self._answer(LeaseEnded(job_id, part.attempt))
        return () if self._unsubmit(job_id) else (JobFinished(job_id, succeeded=False),)

    def _unsubmit(self, job_id: int) -> bool:
        """Remove a job's submission from the events collected for `site`; return whether there was one.

        After a lost message, a request and its withdrawal may arrive together. `site` would apply the withdrawal first,
        to a job that it does not know yet.
        """
        for place, event in enumerate(self._inner):
            if isinstance(event, JobSubmitted) and event.job.job_id == job_id:
                del self._inner[place]
                return True
        return False

    def _kill(self, job_id: int, part: GridJob, outcome: str) -> None:
        """Order the machines to end a running fragment; `JobFinished` will report its end."""
        if part.outcome == "finished":
            part.outcome = outcome
            # A fragment that is waiting for the others may be running alone; its work is not worth a grace period.
            is_alone = job_id in self._timed
            self._timed.discard(job_id)
            reason = "cancelled" if outcome == "cancelled" else "its other fragments did not start in time"
            self._out.append(KillJob(job_id, reason, is_alone))

    def _end_leases(self) -> list[Event]:
        """End the parts that timed out because they were not committed, renewed, or joined by the other fragments."""
        ended: list[Event] = []
        for job_id in sorted(self._timed):
            part = self._parts[job_id]
            if part.state == COMMITTED or self._due_ms(part) > self._now_ms:
                continue
            if part.state == RESERVED:
                ended += self._end_lease(job_id, part)
            elif part.state == WAITING:
                ended += self._withdraw(job_id)
            else:
                self._kill(job_id, part, "unmet")
        return ended

    def _due_ms(self, part: GridJob) -> int:
        """Return when a part times out or, if it is committed, when it starts."""
        if part.state == COMMITTED:
            return part.start_ms
        if part.state == RESERVED:
            return part.start_ms + 1
        if part.state == RUNNING:
            return part.start_ms + self.rendezvous_ms if part.opened_ms is None else part.opened_ms + self.alone_ms
        return part.lease_until_ms + 1

    def _measured(self, event: RateMeasured, part: GridJob) -> None:
        """Record a running fragment's rate; report it to the grid if the fragment is late."""
        slowed = part.slowed
        if slowed is None:
            limit_ms = part.start_ms + part.length_ms
            left = int(work_of(limit_ms - self._now_ms)) if event.left is None else event.left
            part.slowed = SlowedFragment(left, event.rate, self._now_ms, limit_ms)
            self._slowed.add(event.job_id)
            return
        slowed.measured(self._now_ms, event.rate, event.left)
        if slowed.is_late:
            self._answer(slowed.late_report(event.job_id, part.attempt))

    def _put_off_limits(self) -> None:
        """Extend slowed fragments' limits until their work is done, so that other jobs' traffic cannot kill them.

        Also extend the limit of a fragment that is waiting at its gate, because it has not started working.
        """
        for job_id in sorted(self._timed) if self._is_gated else ():
            part = self._parts[job_id]
            waits = part.state == RUNNING and part.opened_ms is None
            if waits and part.start_ms + part.length_ms <= self._now_ms:
                self.site.expect_end(self._now_ms, job_id, self._due_ms(part) + 1)
        for job_id in sorted(self._slowed):
            part = self._parts[job_id]
            slowed = part.slowed
            assert slowed is not None, "the progress of a slowed fragment is unknown"
            if slowed.put_off(self._now_ms):
                self.site.expect_end(self._now_ms, job_id, slowed.limit_ms)
                if not slowed.is_late:
                    slowed.is_late = True
                    self._answer(slowed.late_report(job_id, part.attempt))

    def _run_site(self, events: list[Event]) -> None:
        """Pass events to `site` and apply its decisions; report decisions about grid jobs to the grid."""
        evicted: dict[int, Event] = {}
        for command in self.site.act(self._now_ms, events):
            job_id = getattr(command, "job_id", -1)
            part = self._parts.get(job_id)
            if type(command) is EvictJob:
                evicted |= self._evicted(command, part)
                continue
            if job_id in evicted:
                if type(command) is StartJob:  # the job got other nodes in the same pass
                    evicted[job_id] = JobFinished(job_id, succeeded=False)
                continue
            if part is not None and type(command) is StartJob:
                self._granted(command, part)
                continue
            if part is None:
                if isinstance(command, StartJob):
                    self._own_running[job_id] = self._own_jobs.pop(job_id)
                elif isinstance(command, RefuseJob):
                    self._own_jobs.pop(job_id, None)
                self._out.append(command)
            elif isinstance(command, (MoveJob, RequeueJob)):
                if part.state == RUNNING:
                    self._out.append(command)
            elif isinstance(command, ChangeRate):
                part.rate = command.rate
                if part.state == RUNNING:
                    self._out.append(command)
                    self._out += new_rate(self.site, self._now_ms, job_id, part)
            elif isinstance(command, RefuseJob):
                # The whole job, or a fragment of another width, may still be possible.
                is_never = command.is_final and not part.shared
                cause: Cause = "never" if is_never else "job" if part.state == WAITING else ""
                self._forget(job_id, "refuse")
                self._answer(Refused(job_id, part.attempt, command.reason, cause))
            elif isinstance(command, KillJob) and part.outcome == "finished":
                part.outcome = "limit" if part.state == RUNNING else part.outcome
                self._out.append(command)
        if evicted:
            self._run_site(list(evicted.values()))

    def _evicted(self, command: EvictJob, part: GridJob | None) -> dict[int, Event]:
        """Apply an eviction; return the resulting event for `site` if the job is a grid job.

        A job of the site's own users waits again. A grid job leaves the site; once its processes have ended, the grid
        ends its other fragments and places the whole job again.
        """
        job_id = command.job_id
        if part is None:
            self._own_jobs[job_id] = self._own_running.pop(job_id)
            self._out.append(command)
            return {}
        if part.state == RUNNING:
            self._life.change(job_id, part, "evict")
            part.evicted = command.reason
            # The part no longer counts against the share, because the job that gets its nodes may also be a grid job.
            self._share.used -= part.counts_as
            self._timed.discard(job_id)
            self._slowed.discard(job_id)
            self._out.append(command)
        else:
            self._forget(job_id, "evict")
            self._answer(LeaseEnded(job_id, part.attempt, command.reason))
        return {job_id: JobCancelled(job_id)}

    def _granted(self, command: StartJob, part: GridJob) -> None:
        """Record that a part has received its nodes: hold them until the agreed start, or start the part now."""
        job_id = command.job_id
        part.grant = command
        if part.state == WAITING:
            self._share.waiting -= part.counts_as
        if part.shared:
            if part.ahead:
                self._life.change(job_id, part, "grant")
                self._hold(job_id, part)
            self._timed.add(job_id)
            self._answer(Reserved(job_id, part.attempt, nodes=counted_nodes(self.site, command)))
            return
        self._timed.discard(job_id)
        self._life.change(job_id, part, "start")
        part.start_ms = self._now_ms
        nodes = counted_nodes(self.site, command)
        self._out += (command, ToGrid(Started(job_id, part.attempt, self._now_ms, nodes)))

    def _start_due(self) -> None:
        """Start the committed fragments whose agreed start time has been reached."""
        for job_id in sorted(self._timed):
            part = self._parts[job_id]
            if part.state == COMMITTED and part.start_ms <= self._now_ms:
                assert part.grant is not None, "a committed fragment has no reserved nodes"
                self._life.change(job_id, part, "start")
                self._out.append(part.grant)
                if part.rate != RATE_ONE:
                    self._out.append(ChangeRate(job_id, part.rate))
                self._answer(Started(job_id, part.attempt, self._now_ms))

    def _restarted(self) -> list[Event]:
        """Drop all running and reserved parts after a restart.

        Jobs of the site's own users run again; grid jobs are reported to the grid as lost.
        """
        gone: list[Event] = []
        for job_id, part in sorted(self._parts.items()):
            if part.state == WAITING:
                continue
            has_started = part.has_started
            self._forget(job_id, "end" if has_started else "release")
            if has_started:
                self._answer(Ended(job_id, part.attempt, self._now_ms, "lost", part.evicted))
            else:
                self._answer(LeaseEnded(job_id, part.attempt))
            gone.append(JobFinished(job_id, succeeded=False))
        again = sorted(self._own_running.items())
        self._own_running = {}
        self._own_jobs.update(again)
        gone += [JobFinished(job_id, succeeded=False) for job_id, _ in again]
        return [*gone, *(JobSubmitted(job) for _, job in again)]

    def _answer(self, answer: Answer) -> None:
        self._out.append(ToGrid(answer))

    def offer(self, now_ms: int, request: RequestQuote) -> Quoted:
        """Return the current answer to a quote request without changing the state."""
        return self._quote(now_ms, self.site.copy(), request)

    def _quote(self, now_ms: int, site: SiteCore, request: RequestQuote) -> Quoted:
        width, length_ms, capacity = request.width, request.length_ms, self._share.further_nodes
        is_counted = request.job is not None and bool(request.job.chunk)
        free = 0 if is_counted else min(capacity, site.startable(now_ms, length_ms))
        untold = untold_job(request)
        why_not, start_ms, expected = self._share.why_not(request.job or untold), None, None
        if why_not is None and request.job is not None:
            expected = site.expected_run(now_ms, self._owner.as_delegated(request.job))
            start_ms = expected and expected.start_ms
        elif why_not is None:
            start_ms = site.earliest_start_ms(now_ms, width, length_ms)
        cause: Cause = ""
        reason, takes_parts = why_not or "", site.takes_parts
        if why_not is None and start_ms is None:
            reason, cause, takes_parts = site.why_no_start(request.job or untold)
        if start_ms is None and (note := site.source.note(now_ms)):
            reason = f"{reason}; {note}"
        quoted = Quoted(request.quote_id, free, start_ms, reason, None, cause, takes_parts)
        quoted = with_offer(quoted, site, now_ms, untold, capacity)
        coming, coming_ms = site.source.coming(now_ms, length_ms)
        if coming_ms is not None and min(coming, capacity) > free:
            quoted = msgspec.structs.replace(quoted, coming=min(coming, capacity) - free, coming_ms=coming_ms)
        if request.job is not None and is_counted:
            quoted = with_chunks(quoted, site, self._share, now_ms, request.job, expected)
        if request.job is not None and request.wants_ready:
            ready = tuple(site.nodes_ready(now_ms))
            quoted = msgspec.structs.replace(quoted, ready=ready, queued=len(self._own_jobs))
        if expected is None:
            return quoted
        nodes, evicts = expected.nodes, expected.evicts
        return msgspec.structs.replace(quoted, length_ms=expected.length_ms, nodes=nodes, evicts=evicts)

    def _report_enqueued(self, job_id: int, attempt: int, start_ms: int | None = None) -> None:
        """Report to the grid that a delegated job is waiting, unless it has just left this state."""
        part = self._part(job_id, attempt)
        if part is not None and part.state == WAITING:
            self._answer(Enqueued(job_id, attempt, start_ms))

    def _report_change(self) -> None:
        """Report to the grid if its capacity at this site has changed for a reason other than the grid's own jobs."""
        report = capacity_report(self.site, self._share, self._own_running)
        if report != msgspec.structs.replace(self._reported, free=report.free):
            self._reported = report
            self._out.insert(0, ToGrid(report))

    def _part(self, job_id: int, attempt: int) -> GridJob | None:
        part = self._parts.get(job_id)
        return part if part is not None and part.attempt == attempt else None

    def _forget(self, job_id: int, cause: PartCause) -> None:
        part = self._parts.pop(job_id)
        self._timed.discard(job_id)
        self._slowed.discard(job_id)
        self._share.used -= part.counts_as if part.state != EVICTED else 0
        if part.state == WAITING:
            self._share.waiting -= part.counts_as
        self._life.change(job_id, part, cause)


def _ends_first(event: ContractEvent) -> int:
    """Return a sort key that puts events that free nodes first; other events keep their order."""
    if isinstance(event, (JobFinished, SiteRestarted)):
        return 0
    return 1 if isinstance(event, (JobCancelled, ReservationCancelled)) else 2
