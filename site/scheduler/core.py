"""SiteCore: a site's scheduler as a state machine that turns events into commands.

It uses no clock and no I/O: the time is an argument, and the caller executes the commands.
"""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import msgspec

from gridweave.errors import InputError
from gridweave.site.allocation import bits_of, intervals_of
from gridweave.site.disciplines.base import NOTHING, Decisions, Eviction, ExpectedRun, SharedOffer
from gridweave.site.disciplines.entry import Policy, must_end_by
from gridweave.site.explain import SiteReason, free_text, nodes_text, offer_text
from gridweave.site.job import Job, JobForm, NodeIntervals, Running, check_job, why_impossible
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.messages import (
    AcceptReservation,
    BatchSnapshot,
    Cause,
    ChangeRate,
    CloseReservation,
    Command,
    DisciplineEdited,
    Event,
    EvictJob,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    KillJob,
    MoveJob,
    OpenReservation,
    RefuseJob,
    RefuseReservation,
    RequeueJob,
    ReservationCancelled,
    ReservationRequested,
    StartJob,
    check_reservation,
)
from gridweave.site.nodes.dictionary import nodes_for
from gridweave.site.nodes.source import NodeSource
from gridweave.site.state import CoreState, with_parts

D = TypeVar("D")


class SiteCoreState(CoreState, Generic[D], frozen=True, kw_only=True, tag="SiteCore 1"):
    """The state of a `SiteCore`: its jobs, nodes and reservations, and the state of its discipline."""

    now_ms: int
    waiting: list[int]
    nodes_of: dict[int, NodeIntervals]
    killed: list[int]
    reservations: list[ReservationRequested]
    reserved_nodes: dict[int, NodeIntervals]
    discipline: D


class SiteCore:
    """A site's nodes, queue and plan.

    Parameters
    ----------
    nodes : int
        Number of nodes of the site, >= 1.
    week : WeekClock
        Local time of the week; used only by limits with windows.

    Notes
    -----
    Messages can arrive twice, so repeated events and events about unknown jobs are ignored. The core does not remember
    jobs that have left, so the caller must not submit a job again after its end, or cancel a job before submitting it.

    Examples
    --------
    >>> from gridweave.site.policy import SitePolicy
    >>> core = SiteCore(4, SitePolicy())
    >>> core.handle(0, JobSubmitted(Job(job_id=1, width=3, estimate_ms=100)))
    [StartJob(job_id=1, nodes=((0, 3),))]
    >>> core.handle(10, JobSubmitted(Job(job_id=2, width=4, estimate_ms=100)))
    []
    >>> core.explain(10, 2).start_ms
    100
    >>> core.handle(60, JobFinished(1))
    [StartJob(job_id=2, nodes=((0, 4),))]
    """

    def __init__(self, nodes: int, policy: Policy, *, week: WeekClock = FROM_MONDAY) -> None:
        self._use(nodes_for(nodes, policy, week))
        self._now_ms = 0
        self._waiting: set[int] = set()
        self._killed: set[int] = set()
        self._reservations: dict[int, ReservationRequested] = {}
        self._reserved_nodes: dict[int, NodeIntervals] = {}

    def _use(self, source: NodeSource) -> None:
        self.source, self._discipline, self.traits = source, source.discipline, source.traits
        self._nodes_of = source.nodes_of
        # These are called at every step, so a site with its own nodes calls the discipline directly.
        asked = source.discipline if source.is_own else source
        self._why_never, self._next_pass_ms = asked.why_never, asked.next_wakeup_ms

    def copy(self) -> Self:
        """Return an independent copy.

        Quotes are computed on a copy, because they use space in the discipline's arrays, and the state in the journal
        must not depend on quotes.
        """
        new = copy.copy(self)
        new._use(self.source.copy())
        new._waiting, new._killed = self._waiting.copy(), self._killed.copy()
        new._reservations, new._reserved_nodes = self._reservations.copy(), self._reserved_nodes.copy()
        return new

    @property
    def nodes(self) -> int:
        """The site's number of nodes."""
        return self.source.nodes

    @property
    def takes_parts(self) -> bool:
        """Whether a fragment of a multi-site job can run at this site."""
        return self.source.can_hold_nodes and self.traits.takes_parts

    @property
    def threads_per_node(self) -> int:
        """The number of separately assigned hardware threads per node; 1 if jobs get whole nodes."""
        return math.prod(self.traits.threads)

    @property
    def free(self) -> int:
        """The number of nodes that are held by neither a job nor an open reservation."""
        return self.source.free

    def figures(self, now_ms: int, job_id: int) -> tuple[float, ...]:
        """Return the values of `Traits.columns` for a job that ends now; call it before reporting the job's end."""
        return self._discipline.figures(now_ms, job_id)

    def totals(self) -> Mapping[str, float]:
        """Return the discipline's counters by name."""
        return self._discipline.totals()

    def switches_after(self, count: int) -> Sequence[tuple[int, int]]:
        """Return the policy switches after the first `count` (see `Discipline.switches_after`)."""
        return self._discipline.switches_after(count)

    def report(self, switches: Sequence[tuple[int, int]], columns: Mapping[str, Any], has_started: Any) -> object:
        """Return the value of ``result.own`` for a simulation (see `Discipline.report`)."""
        return self._discipline.report(switches, columns, has_started)

    def form_of(self, job_id: int) -> JobForm | None:
        """Return the form in which a job is running; None if the job does not define forms."""
        return self._discipline.form_of(job_id)

    def rate_of(self, job_id: int) -> int:
        """Return the rate at which a job starts; it exceeds 1 on the faster machines of a heterogeneous site."""
        return self._discipline.rate_of(job_id)

    def answer(self, question: str) -> Any:
        """Return the discipline's answer to `question` as plain data; None if the question is unknown."""
        return self._discipline.answer(question) if self.traits.learns else None

    def edit_problem(self, changes: Any) -> str | None:
        """Return the one-line reason why the discipline cannot apply these changes (`DisciplineEdited`), or None."""
        return self._discipline.edit_problem(changes)

    def handle(self, now_ms: int, *events: Event) -> list[Command]:
        """Apply the events of one point in time and return the resulting commands.

        Parameters
        ----------
        now_ms : int
            The current time; never earlier than in the previous call.
        *events
            The events at this time, in any order. Completions are applied first (by job id), then cancellations, then
            submissions and requests in the given order (equal jobs in the queue are ordered by job id). A call without
            events is a wakeup.

        Returns
        -------
        list of Command
            The caller must execute the commands in this order.

        Raises
        ------
        InputError
            If time goes backwards, or a job or request has invalid numbers; the state is then unchanged.
        """
        self.check(now_ms, *events)
        return self.act(now_ms, events)

    def act(self, now_ms: int, events: Sequence[Event]) -> list[Command]:
        """Do the same as `handle`, but without the checks; the caller must have called `check`."""
        self._now_ms = now_ms
        if len(events) > 1:
            events = sorted(events, key=_instant_order)
        commands: list[Command] = []
        for event in events:
            if type(event) is JobFinished:
                self._release(event)
        if self._reservations:
            commands += self._close_reservations()
        or_never: list[Job] = []
        for event in events:
            if type(event) is JobSubmitted:
                self._submit(event.job, commands)
                if event.now_or_never:
                    or_never.append(event.job)
            elif type(event) is not JobFinished:
                commands += self._asked(event)
        end_ms = self._discipline.next_end_ms()
        if end_ms is not None and end_ms <= now_ms:
            commands += self._kill_overdue()
        if self._reservations:
            commands += self._open_reservations()
        decided = self._run_pass(commands)
        if or_never and self._waiting:
            decided = self._refuse_what_waits(or_never, commands, decided)
        if decided is not NOTHING:
            commands += [MoveJob(*move) for move in decided.moves]
            commands += [ChangeRate(*rate) for rate in decided.rates]
        if not self.source.is_own:
            commands += self._leave_overdue(self.source.overdue(now_ms))
        return commands

    def _asked(self, event: Event) -> list[Command]:
        """Apply a cancellation, a reservation request, or another event that is neither a submission nor an end."""
        if isinstance(event, JobCancelled):
            return self._cancel(event.job_id)
        if isinstance(event, ReservationRequested):
            return self._reserve(event)
        if isinstance(event, BatchSnapshot):
            return self._apply_snapshot(event)
        if isinstance(event, DisciplineEdited):
            self._discipline.edit(event.changes)
            return []
        return self._unreserve(event.reservation_id) if isinstance(event, ReservationCancelled) else []

    def _apply_snapshot(self, event: BatchSnapshot) -> list[Command]:
        """Apply the batch system's report, and refuse the jobs that the batch system rejects."""
        refused = self.source.seen(self._now_ms, event)
        for job_id, _ in refused:
            self._withdraw(job_id)
        return [RefuseJob(job_id, reason) for job_id, reason in refused]

    def check(self, now_ms: int, *events: object) -> None:
        """Raise InputError, as `handle` would, if time goes backwards, or a job or request has invalid numbers.

        Objects that are not site events are ignored.
        """
        if now_ms < self._now_ms:
            raise InputError(
                f"now_ms is {now_ms}, earlier than {self._now_ms} in the call before; time never goes back"
            )
        for event in events:
            if type(event) is JobSubmitted:
                check_job(event.job)
            elif type(event) is ReservationRequested:
                check_reservation(event)

    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        """Set the limit of a running job that does not share its nodes and was delayed by other jobs or sites.

        Parameters
        ----------
        now_ms : int
            The time of the next call of `handle`.
        end_ms : int
            The time of the new limit, later than `now_ms`.
        """
        if job_id in self._nodes_of and job_id not in self._killed:
            self._discipline.expect_end(now_ms, job_id, end_ms)

    def _run_pass(self, commands: list[Command]) -> Decisions:
        """Run a scheduling pass, record its decisions, and add the commands for evictions and starts."""
        source = self.source
        if not source.is_own:
            source.before_pass(self._now_ms)
        decided = self._discipline.run_pass(self._now_ms)
        if decided is not NOTHING:
            commands += [self._evicted(eviction) for eviction in decided.evictions]
            for start in decided.starts:
                job_id = start.job.job_id
                self._waiting.discard(job_id)
                commands.append(StartJob(job_id, source.start(start), start.threads))
            for move in decided.moves:
                source.move(move.job_id, move.nodes)
        if not source.is_own:
            source.after_pass(self._now_ms)
        return decided

    def _evicted(self, eviction: Eviction) -> EvictJob:
        """Put an evicted job back into the queue; return the command to evict it."""
        self.source.end(eviction.job_id)
        self._killed.discard(eviction.job_id)
        self._waiting.add(eviction.job_id)
        return EvictJob(*eviction)

    def _refuse_what_waits(self, or_never: list[Job], commands: list[Command], decided: Decisions) -> Decisions:
        """Refuse the jobs that had to start in this pass but did not, and run another pass for the other jobs."""
        late = [job for job in or_never if job.job_id in self._waiting]
        for job in late:
            self._withdraw(job.job_id)
            reason = f"it needs {nodes_text(job.width)} now; {self.free} are free, and others may go first"
            if job.chunk:
                fitting = self.source.chunks_now(self._now_ms, job)
                reason = f"it needs {job.width} chunks now; {fitting} fit, and others may go first"
            commands.append(RefuseJob(job.job_id, reason))
        return _both(decided, self._run_pass(commands)) if late else decided

    def next_wakeup_ms(self) -> int | None:
        """Return when to call `handle` even without an event, for planned starts, limits of jobs, and reservations."""
        discipline = self._discipline
        next_ms = self._next_limit_ms() if self._killed else discipline.next_end_ms()
        planned_ms = self._next_pass_ms()
        if next_ms is None or (planned_ms is not None and planned_ms < next_ms):
            next_ms = planned_ms
        for reservation in self._reservations.values():
            # A due reservation that is not open waits for a job past its limit, whose end will be an event.
            begun = reservation.start_ms <= self._now_ms
            change_ms = reservation.start_ms + (reservation.length_ms if begun else 0)
            next_ms = change_ms if next_ms is None else min(next_ms, change_ms)
        return next_ms if next_ms is None or next_ms > self._now_ms else self._now_ms + 1

    def why_paused(self, now_ms: int, job_id: int) -> str:
        """Return in words for which other job a job is paused, and until when; empty if the job is not paused."""
        return self._discipline.pause_reason(now_ms, job_id) if job_id in self._nodes_of else ""

    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start, and why not earlier.

        Raises
        ------
        InputError
            If the job is not waiting at this site.
        """
        if job_id not in self._waiting:
            state = "runs" if job_id in self._nodes_of else "is not known here"
            raise InputError(f"job {job_id} {state}; only a waiting job has a start to explain")
        # The discipline does not know the nodes held by open reservations.
        site_reason = self.source.explain(now_ms, job_id)
        reason = self._with_rule(site_reason.reason)
        return msgspec.structs.replace(site_reason, reason=reason, nodes=self.nodes, free=self.source.idle)

    def _with_rule(self, reason: str) -> str:
        """Append the discipline's rule by which the start can still change, if any, to a reason."""
        rule = self._discipline.rule_in_force()
        return f"{reason}; {rule}" if rule else reason

    def quote(self, now_ms: int, job: Job) -> tuple[SiteReason, ExpectedRun | None]:
        """Return how a job would run if it were submitted now, and why it would not start earlier."""
        ahead = sum(1 for _ in self._discipline.waiting())
        reason, run = why_impossible(job) or self.why_never(job), None
        if reason is None:
            run = self.expected_run(now_ms, job)
            ahead = ahead if run is None or run.ahead is None else run.ahead
            reason = (
                f"the site has {nodes_text(self.nodes)}" if run is None else self._why_then(now_ms, job, run, ahead)
            )
        start_ms = None if run is None else run.start_ms
        site_reason = SiteReason(
            nodes=self.nodes,
            free=self.source.idle,
            start_ms=start_ms,
            ahead=ahead,
            waits_for=() if start_ms == now_ms else must_end_by(self._discipline.running(), start_ms),
            reason=reason,
        )
        offer = self.sharing_offered(now_ms, job) if run is not None and run.start_ms != now_ms else None
        if offer is not None:
            wait_ms = 0 if offer.start_ms is None else offer.start_ms - now_ms
            site_reason = msgspec.structs.replace(site_reason, offer=offer_text(offer.slowdown, offer.beside, wait_ms))
        return site_reason, run

    def _why_then(self, now_ms: int, job: Job, run: ExpectedRun, ahead: int) -> str:
        """Return why a new job would start at the time in `run`, with `ahead` jobs before it in the queue."""
        if outlook := self.source.outlook(now_ms, job, run):
            return outlook
        free = free_text(self.source.idle, self.nodes)
        if run.start_ms == now_ms:
            evicting = ", on nodes of jobs that it may evict" if run.evicts else ""
            return f"{free}, and it could start at once{evicting}"
        # The site does not know whether other jobs are waiting in its batch system's queue.
        whose = "" if self.source.can_hold_nodes else " of this site"
        jobs = f"{ahead or 'no'} job{'s' * (ahead > 1)}{whose} wait{'s' * (ahead < 2)}"
        reason = f"it needs {nodes_text(run.nodes)}, {free}, and {jobs}"
        return self._with_rule(f"{reason} before it" if run.ahead is not None else reason)

    def limit_left_ms(self, now_ms: int, job_id: int) -> int:
        """Return a running job's remaining wall time, at least 1 ms; 0 if the job is not running."""
        limits = (run.end_by_estimate_ms for run in self._discipline.running() if run.job.job_id == job_id)
        limit_ms = next(limits, None)
        return 0 if limit_ms is None else max(1, limit_ms - now_ms)

    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return how many nodes a job of this length could get now without delaying a promised start.

        Parameters
        ----------
        now_ms : int
            The time of the last call of `handle`.
        """
        return min(self.free, self.source.startable(now_ms, length_ms))

    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        """Return how a job could start now on nodes shared with running jobs, or None if it could not.

        Parameters
        ----------
        now_ms : int
            The time of the last call of `handle`.
        job : Job
            A job that is not at this site; the result depends on its resource needs.
        """
        return self.source.sharing_offered(now_ms, job)

    def why_never(self, job: Job) -> str | None:
        """Return the one-line reason why a job could not run even if the site were idle, or None."""
        return self.source.why_never(job)

    def why_no_start(self, job: Job) -> tuple[str, Cause, bool]:
        """Return why a job cannot start at this site, the refusal's cause, and whether a fragment of the job could.

        The cause is ``never`` if the job can never run at this site.
        """
        why_never = why_impossible(job) or self.why_never(job)
        if why_never is None:
            return f"the site has {nodes_text(self.nodes)}", "", self.takes_parts
        least = (job.chunk.per_node if job.chunk else 0) or 1
        has_parts = self.takes_parts and job.width > least and not job.forms
        part = msgspec.structs.replace(job, width=least, forms=self.as_wide(least), in_step=True)
        return why_never, "never", has_parts and self.why_never(part) is None

    def as_wide(self, width: int) -> tuple[JobForm, ...]:
        """Return the form of a fragment with this width if jobs have forms at this site; otherwise, no forms."""
        return (JobForm(width=width),) if self.traits.forms else ()

    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job submitted now would start if estimates are exact and no jobs follow; None: never.

        A queue without promised starts computes this time as if all waiting jobs were planned in queue order.
        """
        return self.source.earliest_start_ms(now_ms, width, length_ms)

    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        """Return how a job submitted now would run if all estimates are exact; None if it could never run."""
        return self.source.expected_run(now_ms, job)

    def nodes_ready(self, now_ms: int) -> list[tuple[int, int]]:
        """Return (time, number of nodes idle from that time) pairs, in ascending order, ignoring waiting jobs."""
        return self._discipline.nodes_ready(now_ms, self.free)

    def running(self) -> Iterator[Running]:
        """Yield the running jobs in the order of their estimated ends."""
        return self._discipline.running()

    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in queue order, each with its promised start, if any.

        At a planning site, the result is the plan. In a queue, only the first job has a promised start (shadow time).
        """
        return self._discipline.waiting()

    def occupied(self) -> list[tuple[int, NodeIntervals]]:
        """Return each running job's nodes, sorted by job id."""
        return [(job_id, intervals_of(nodes)) for job_id, nodes in sorted(self._nodes_of.items())]

    def progress(self, now_ms: int) -> Iterator[tuple[int, float, int]]:
        """Yield each running job with its fraction of full speed and its work done [ms], if limits count work."""
        for running in self._discipline.running():
            done = self._discipline.progress(now_ms, running.job.job_id)
            if done is not None:
                yield running.job.job_id, *done

    @property
    def reserved_nodes(self) -> Mapping[int, NodeIntervals]:
        """The nodes of each reservation that has begun, by reservation id."""
        return self._reserved_nodes

    def reservations(self) -> list[ReservationRequested]:
        """Return the accepted reservations that have not ended, sorted by start and id."""
        return sorted(self._reservations.values(), key=lambda r: (r.start_ms, r.reservation_id))

    @property
    def state_type(self) -> Any:
        """The type of the state, which depends on the discipline."""
        return with_parts(SiteCoreState, self.source)

    def state(self) -> SiteCoreState[Any]:
        """Return the state; call it only between two calls of `handle`."""
        return SiteCoreState(
            now_ms=self._now_ms,
            waiting=sorted(self._waiting),
            nodes_of={job_id: intervals_of(nodes) for job_id, nodes in self._nodes_of.items()},
            killed=sorted(self._killed),
            reservations=list(self._reservations.values()),
            reserved_nodes=self._reserved_nodes,
            discipline=self.source.state(),
        )

    def restore(self, state: SiteCoreState[Any]) -> None:
        """Restore the state of another instance with the same settings into this new instance."""
        self._now_ms = state.now_ms
        self._waiting, self._killed = set(state.waiting), set(state.killed)
        self._reservations = {reservation.reservation_id: reservation for reservation in state.reservations}
        self._reserved_nodes = state.reserved_nodes
        self._nodes_of.update((job_id, bits_of(nodes)) for job_id, nodes in state.nodes_of.items())
        self.source.restore(state.discipline)
        for nodes in self._reserved_nodes.values():
            self.source.pool.occupy(bits_of(nodes))

    def replan(self) -> None:
        """Make the next call of `handle` plan all waiting jobs from scratch."""
        self._discipline.replan()

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent, e.g. a node is held twice or a job is lost."""
        self.source.check_invariants()
        reserved = [bits_of(nodes) for nodes in self._reserved_nodes.values()]
        held = [*self._nodes_of.values(), *reserved]
        n_held = functools.reduce(operator.or_, reserved, self.source.held()).bit_count()
        # With chunks, a batch system may use more nodes for small jobs than the site counts for them.
        is_exact = self.source.is_own or not self.traits.counts_resources
        assert n_held == self.nodes - self.free - self.source.absent or not is_exact, "a node is lost"
        assert n_held == sum(map(int.bit_count, held)) or self.traits.chooses_nodes, "a node is held twice"
        running = {running.job.job_id for running in self._discipline.running()}
        assert running == set(self._nodes_of), "running jobs and held nodes differ"
        assert {job.job_id for job, _ in self._discipline.waiting()} == self._waiting, "waiting jobs differ"

    def _submit(self, job: Job, commands: list[Command]) -> None:
        job_id = job.job_id
        if job_id in self._waiting or job_id in self._nodes_of:
            return
        reason = self._why_never(job)
        if reason is not None:
            commands.append(RefuseJob(job_id, reason, is_final=True))
            return
        self._waiting.add(job_id)
        self._discipline.submit(self._now_ms, job)

    def _withdraw(self, job_id: int) -> None:
        """Remove a waiting job."""
        self._waiting.discard(job_id)
        self._discipline.withdraw(self._now_ms, job_id)

    def _release(self, event: JobFinished) -> None:
        job_id = event.job_id
        if job_id in self._nodes_of:
            if self.traits.learns and event.succeeded and job_id not in self._killed:
                ended_ms = self._now_ms if event.ended_ms is None else event.ended_ms
                self._discipline.learn(min(ended_ms, self._now_ms), job_id)
            self._discipline.ended(self._now_ms, job_id)
            self.source.end(job_id)
            if self._killed:
                self._killed.discard(job_id)

    def _cancel(self, job_id: int) -> list[Command]:
        if job_id in self._waiting:
            self._withdraw(job_id)
        elif job_id in self._nodes_of and job_id not in self._killed:
            self._killed.add(job_id)
            return [KillJob(job_id, "cancelled")]
        return []

    def _next_limit_ms(self) -> int | None:
        """Return the earliest limit of a running job that is not already being killed or paused."""
        # The jobs are ordered by estimated end, so the first job that may be killed has the earliest limit.
        limits = (running.end_by_estimate_ms for running in self._discipline.running() if self._may_be_killed(running))
        return next(limits, None)

    def _may_be_killed(self, running: Running) -> bool:
        job_id = running.job.job_id
        return job_id not in self._killed and not (self.traits.pauses and self._discipline.is_paused(job_id))

    def _kill_overdue(self) -> list[Command]:
        """Kill the jobs that have reached their limit; in a simulation, the caller has already ended them."""
        overdue = []
        for running in self._discipline.running():
            if running.end_by_estimate_ms > self._now_ms:
                break
            if self._may_be_killed(running):
                overdue.append(running.job.job_id)
        self._killed.update(overdue)
        return [KillJob(job_id, "reached its limit") for job_id in overdue]

    def _leave_overdue(self, job_ids: Sequence[int]) -> list[Command]:
        """Requeue jobs whose nodes a batch system is about to take back."""
        leaving = [job_id for job_id in job_ids if job_id not in self._killed]
        self._killed.update(leaving)
        return [RequeueJob(job_id, "the time of its pilot is up") for job_id in leaving]

    def _reserve(self, request: ReservationRequested) -> list[Command]:
        if request.reservation_id in self._reservations:
            return [AcceptReservation(request.reservation_id)]
        if request.width > self.nodes:
            return [RefuseReservation(request.reservation_id, f"the site has {nodes_text(self.nodes)}")]
        fits_ms = None
        if self.source.is_own:
            span = request.start_ms, request.length_ms
            fits_ms = self._discipline.reserve(self._now_ms, request.reservation_id, *span, request.width)
        if fits_ms is None:
            return [RefuseReservation(request.reservation_id, "this site makes no reservations; a planning site does")]
        if fits_ms != request.start_ms:
            reason = "its start has passed" if request.start_ms < self._now_ms else "its nodes are not all free then"
            return [RefuseReservation(request.reservation_id, reason, fits_ms)]
        self._reservations[request.reservation_id] = request
        return [AcceptReservation(request.reservation_id)]

    def _unreserve(self, reservation_id: int) -> list[Command]:
        if self._reservations.pop(reservation_id, None) is None:
            return []
        self._discipline.unreserve(self._now_ms, reservation_id)
        self.source.pool.release(self._reserved_nodes.pop(reservation_id, ()))
        return [CloseReservation(reservation_id)]

    def _close_reservations(self) -> list[Command]:
        over = [r for r in self.reservations() if r.start_ms + r.length_ms <= self._now_ms]
        return [command for reservation in over for command in self._unreserve(reservation.reservation_id)]

    def _open_reservations(self) -> list[Command]:
        commands: list[Command] = []
        for reservation in self.reservations():
            # A job past its limit may still hold the nodes; the reservation then opens once the job has left.
            due = reservation.start_ms <= self._now_ms and reservation.reservation_id not in self._reserved_nodes
            nodes = self._nodes_for(reservation) if due else None
            if nodes is not None:
                self._reserved_nodes[reservation.reservation_id] = nodes
                commands.append(OpenReservation(reservation.reservation_id, nodes))
        return commands

    def _nodes_for(self, reservation: ReservationRequested) -> NodeIntervals | None:
        """Allocate the nodes of a due reservation and return them; None if too few are free."""
        pool = self.source.pool
        if not self.traits.counts_resources:
            return pool.allocate(reservation.width) if reservation.width <= pool.free else None
        nodes = self._discipline.begin_reservation(self._now_ms, reservation.reservation_id)
        if nodes is not None:
            pool.occupy(bits_of(nodes))
        return nodes


def _instant_order(event: Event) -> tuple[int, int]:
    """Return the key that orders simultaneous events; events with equal keys keep their order."""
    if isinstance(event, JobFinished):
        return 0, event.job_id
    return (1, 0) if isinstance(event, (JobCancelled, ReservationCancelled)) else (2, 0)


def _both(first: Decisions, second: Decisions) -> Decisions:
    """Merge the moves and rates of two passes at the same time; those of the second pass take precedence."""
    evicted = {eviction.job_id for eviction in second.evictions}
    moves = {move.job_id: move for move in (*first.moves, *second.moves)}
    rates = {rate.job_id: rate for rate in first.rates if rate.job_id not in evicted}
    rates |= {rate.job_id: rate for rate in second.rates}
    return Decisions(moves=sorted(moves.values()), rates=sorted(rates.values()))
