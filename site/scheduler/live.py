"""LiveSite: a site with its jobs' programs and the machines that run them, as a state machine without clock and I/O.

It contains a `ContractCore`, which makes the decisions, the users' jobs (`JobRegistry`) and the runs (`Runs`). It turns
a job's start into orders for machines, and the machines' reports into the job's end (docs/live.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from gridweave.settings import SettingsChanged, settings_as
from gridweave.site.allocation import NO_PORT, Port
from gridweave.site.array_tasks import count_of, of_attempt
from gridweave.site.explain import Forecast, listed, record_forecast
from gridweave.site.job import (
    OWN_IDS,
    DescribeJob,
    FragmentReport,
    Job,
    JobRecord,
    JobRequest,
    in_form,
    request_problem,
    why_impossible,
)
from gridweave.site.kernels.limits import week_of
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.launch import NodeSharing
from gridweave.site.lifecycle import GRANTED, WITHOUT_NODES
from gridweave.site.messages import (
    Answer,
    BatchSnapshot,
    ChangeRate,
    CommitNodes,
    Ended,
    EnqueueJob,
    EvictJob,
    FragmentsMet,
    JobAction,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    KillFragment,
    KillJob,
    LeaseEnded,
    LiveSiteCommand,
    LiveSiteEvent,
    MachineForgotten,
    MoveJob,
    NodesShared,
    OpenFragment,
    Quoted,
    Refused,
    RefuseJob,
    Report,
    RequestQuote,
    RequeueFragment,
    RequeueJob,
    Reserved,
    ReserveNodes,
    SendToGrid,
    SignalFragment,
    StartJob,
    ToGrid,
    UserSubmitted,
    Withdrawn,
)
from gridweave.site.quotas import QuotasChanged
from gridweave.site.run.make_run import make_run
from gridweave.site.run.runs import Run, Runs, RunsState, SiteSettings
from gridweave.site.scheduler.contract import ContractCore, ContractEvent
from gridweave.site.state import CoreState, hand_over, with_parts
from gridweave.site.times import end_of_processes_ms
from gridweave.site.users.registry import JobRegistry, RegistryState


class Expected(msgspec.Struct):
    """An attempt of a grid job, from the arrival of its description until it leaves the site."""

    described: DescribeJob
    is_asked: bool = False  # whether the grid has requested nodes for the attempt
    # Rendezvous address of the ranks, known once the nodes are committed; empty for a job at one site.
    meeting: str = ""
    port: Port = NO_PORT  # rendezvous port for the ranks at all sites, from the request until the start


D = TypeVar("D")


class LiveSiteState(CoreState, Generic[D], frozen=True, kw_only=True, tag="LiveSite 1"):
    """The state of a live site; the type of `core` depends on the discipline."""

    now_ms: int
    core: D
    registry: RegistryState = msgspec.field(name="book")
    runs: RunsState
    expected: list[Expected]
    # The settings of the last `SettingsChanged` event; empty if there was none.
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


def _core_of(settings: SiteSettings) -> ContractCore:
    return ContractCore(
        settings.nodes,
        settings.policy,
        owner=settings.owner,
        rendezvous_ms=settings.rendezvous_ms,
        alone_ms=settings.alone_ms,
        is_gated=True,
        week=week_of(settings.week),
    )


class LiveSite:
    """A site that runs real programs.

    Examples
    --------
    >>> from gridweave.site.policy import SitePolicy
    >>> from gridweave.site.messages import Machine
    >>> from gridweave.site.job import JobRequest, Program
    >>> settings = SiteSettings(name="north", number=0, machines=(Machine(name="n0", nodes=4),), policy=SitePolicy())
    >>> site = LiveSite(settings)
    >>> request = JobRequest(program=Program(argv=("true",)), nodes=2, limit_ms=1000)
    >>> for command in site.handle(0, UserSubmitted("key", request)):
    ...     print(type(command).__name__)
    Noted
    SendToGrid
    Noted
    StartRun
    Accepted
    >>> site.registry.records[1_000_000_000_001].state
    'starting'
    """

    def __init__(self, settings: SiteSettings) -> None:
        self.settings = settings
        self.core = _core_of(settings)
        # Whether jobs get fractions of nodes, so that they are not bound to particular nodes of their machine.
        self._gives_parts = self.core.site.traits.fractions
        # Whether jobs share nodes by hardware threads, and therefore slow each other down.
        self._by_threads = self.core.site.threads_per_node > 1
        self._moves_jobs = self.core.site.traits.moves and not (self._gives_parts and len(settings.machines) == 1)
        first_id = OWN_IDS * (settings.number + 1) + 1
        self.registry = JobRegistry(first_id, site=settings.name, can_hold=WITHOUT_NODES, needs=settings.needs)
        self.runs = Runs(settings, self.registry)
        self._expected: dict[tuple[int, int], Expected] = {}
        self._now_ms = 0
        self._changed: dict[str, Any] = {}
        # The events for the core.
        self._inner: list[ContractEvent] = []

    def handle(self, now_ms: int, *events: LiveSiteEvent) -> list[LiveSiteCommand]:
        """Apply the events of one point in time; return the commands, which must be executed in this order.

        A call without events is a wakeup. If time goes backwards, InputError is raised and the state is unchanged.
        """
        self.core.site.check(now_ms)
        self._now_ms, self._inner = now_ms, []
        self.registry.begin(now_ms)
        self.runs.begin()
        # A job that cannot start yet keeps its whole limit, so that it loses no time to jobs that leave its nodes late.
        for job_id, limit_ms in self.runs.not_begun():
            self.core.site.expect_end(now_ms, job_id, now_ms + limit_ms)
        for event in events:
            self._take_in(event)
        self._begin_late()
        self._settle_evicted()
        self.runs.hand_back()
        self._settle()
        self._run_core()
        self._inner += [JobSubmitted(job) for job in self._settle_over()]
        while self._settle():
            self._run_core()
        if self._by_threads:
            self._report_sharing()
        self.registry.accept()
        return self.registry.out

    def request_of(self, job_id: int) -> JobRequest | None:
        """Return the request of a job of the site's own users or the grid; None if this site does not know the job."""
        record = self.registry.records.get(job_id)
        if record is not None:
            return record.request
        expected = self._expected.get((job_id, self.core.attempt_of(job_id)))
        return None if expected is None else expected.described.request

    def next_wakeup_ms(self) -> int | None:
        """Return when to call `handle` even without an event, or None."""
        return self.registry.next_wakeup_ms(self.core.next_wakeup_ms())

    def forecast(self, now_ms: int, job_id: int) -> Forecast | None:
        """Return the forecast for a job of the site's own users or the grid; None if there is no forecast."""
        now_ms = max(now_ms, self._now_ms)
        forecast = self.core.forecast(now_ms, job_id, self.settings.name)
        record = self.registry.records.get(job_id)
        paused = self.core.site.why_paused(now_ms, job_id)
        if forecast is None and record is not None:
            return record_forecast(record, now_ms, paused or self.registry.why_kept(job_id, now_ms))
        if forecast is None and paused:
            return Forecast(job_id=job_id, now_ms=now_ms, state="running", reason=paused)
        return forecast

    def quote(self, now_ms: int, request: JobRequest, *, for_grid: bool = False) -> Forecast:
        """Forecast the start of a job as if a user submitted it or the grid delegated it now, without submitting it."""
        now_ms = max(now_ms, self._now_ms)
        reason = request_problem(request) if for_grid else self.registry.refusal(request)
        reason = reason or self._why_stuck(request) or self._why_rejected(request)
        if reason is not None:
            return Forecast(now_ms=now_ms, state="refused", length_ms=request.limit_ms, reason=reason)
        if not for_grid and (waits := self.registry.why_it_would_wait(request, now_ms)):
            reason = f"it would wait: {waits}"
            return Forecast(now_ms=now_ms, state="held", length_ms=request.limit_ms, reason=reason)
        return self.core.quote(now_ms, self.registry.next_job(request), self.settings.name, for_grid=for_grid)

    def offer(self, now_ms: int, request: JobRequest, question: RequestQuote) -> Quoted:
        """Return the answer to a quote request for a job that is not submitted yet, without changing the state."""
        reason = request_problem(request) or self._why_stuck(request) or self._why_rejected(request)
        if reason is not None:
            return Quoted(question.quote_id, 0, None, reason, cause="never")
        return self.core.offer(max(now_ms, self._now_ms), question)

    @property
    def state_type(self) -> Any:
        """The type of the state, which depends on the discipline."""
        return with_parts(LiveSiteState, self.core)

    def state(self) -> LiveSiteState[Any]:
        """Return the state; call it only between two calls of `handle`."""
        return LiveSiteState(
            now_ms=self._now_ms,
            core=self.core.state(),
            registry=self.registry.state(),
            runs=self.runs.state(),
            expected=list(self._expected.values()),
            settings=self._changed,
        )

    def restore(self, state: LiveSiteState[Any]) -> None:
        """Restore the state of another instance with the same settings into this new instance."""
        self._now_ms = state.now_ms
        if state.settings:
            self._use(state.settings)
        self.core.restore(state.core)
        self.registry.restore(state.registry)
        self.runs.restore(state.runs)
        self._expected = {
            (expected.described.job_id, expected.described.attempt): expected for expected in state.expected
        }

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent, e.g. if a running job has no run or a run has no job."""
        self.core.check_invariants()
        running = {running.job.job_id for running in self.core.site.running()}
        reserved = {job_id for job_id in running if self.core.part_state(job_id) in GRANTED}
        assert bool(self.core.shut) == self.runs.is_full, "the site is shut but not full, or full but not shut"
        self.runs.check_invariants(running - reserved, [expected.port for expected in self._expected.values()])
        parts = {(job_id, self.core.attempt_of(job_id)) for job_id, _ in self._expected}
        asked = {key for key, expected in self._expected.items() if expected.is_asked}
        assert asked <= parts, "an attempt that is not here is expected"
        self.registry.check_invariants()

    # -- events -------------------------------------------------------------------------------------------------------

    def _take_in(self, event: LiveSiteEvent) -> None:
        match event:
            case UserSubmitted():
                request = event.request
                why_not = self._why_rejected(request) or self._why_stuck(request)
                why_never = self.core.site.why_never
                job = self.registry.submit(event, lambda job: why_not or why_impossible(job) or why_never(job))
                if job is not None:
                    self._inner.append(JobSubmitted(job))
            case JobAction():
                for record in self.registry.apply_action(event):
                    self._apply_action(event, record)
            case DescribeJob():
                self._expected.setdefault((event.job_id, event.attempt), Expected(event))
            case ReserveNodes(job_id=job_id) | EnqueueJob(job=Job(job_id=job_id)):
                self._asked_for_nodes(event, job_id)
            case RequestQuote(user=user) if user and (why := self.runs.users.refusal(user)):
                self.registry.out.append(SendToGrid(Quoted(event.quote_id, 0, None, why, cause="user")))
            case CommitNodes(job_id=job_id, attempt=attempt):
                if (job_id, attempt) in self._expected:
                    self._expected[job_id, attempt].meeting = event.rendezvous
                self._inner.append(event)
            case FragmentsMet(job_id=job_id, attempt=attempt):
                self.runs.met(job_id, attempt)
                self._inner.append(event)
            case KillFragment(job_id=job_id, attempt=attempt):
                if self.runs.has(job_id, attempt):
                    self.runs.kill(job_id, "cancelled", at_once=True)
            case SignalFragment(job_id=job_id, attempt=attempt, signal=signal):
                self.runs.signal(job_id, attempt, signal)
            case RequeueFragment(job_id=job_id, attempt=attempt, reason=reason):
                self.runs.requeue(job_id, attempt, reason)
            case QuotasChanged(quotas=quotas):
                self.registry.eligibility.set_quotas(quotas)
            case SettingsChanged(settings=settings):
                self._settings_changed(settings)
            case _ if isinstance(event, Report | MachineForgotten):
                self._inner += self.runs.take_in(event)
            case _:
                self._inner.append(event)

    def _use(self, settings: dict[str, Any]) -> None:
        """Switch to new settings, and create a new core without the old core's state."""
        self._changed = settings
        self.settings = settings_as(self.settings, settings, self.settings.changeable)
        self.core = _core_of(self.settings)
        self.runs.use_ports(self.settings.machines)

    def _settings_changed(self, settings: dict[str, Any]) -> None:
        """Switch to new settings and keep the state."""
        core, week = self.core, self.settings.week
        self._use(settings)
        hand_over(core, self.core)
        if self.settings.week != week:
            self.core.site.replan()

    def _begin_late(self) -> None:
        """Record the start of jobs whose nodes have now been left by evicted jobs."""
        for run in self.runs.begun:
            run.start_ms = self._now_ms
            record = self.registry.records.get(run.job_id)
            if record is not None:
                record.start_ms = self._now_ms
            self.registry.note(run.job_id, "starting", f"on {run.where}, now that earlier jobs have left it")

    def _asked_for_nodes(self, event: ReserveNodes | EnqueueJob, job_id: int) -> None:
        """Pass a request for nodes to the core if the job has been described and is accepted; otherwise, refuse it."""
        expected = self._expected.get((job_id, event.attempt))
        if expected is None:
            self._answer(Refused(job_id, event.attempt, "the site has no description of this job"))
        elif not expected.is_asked:
            request = expected.described.request
            if why := self.runs.users.refusal(request.user):
                self._answer(Refused(job_id, event.attempt, why, "user"))
            elif why := self._why_rejected(request) or self._why_stuck(request):
                self._answer(Refused(job_id, event.attempt, why, "never"))
            else:
                expected.is_asked = True
                if isinstance(event, ReserveNodes) and self.core.site.traits.evicts:
                    # Evictions depend on more than the width.
                    event = msgspec.structs.replace(event, job=self.registry.next_job(request))
                elif isinstance(event, ReserveNodes) and self._by_threads and event.job is None:
                    # A grid that does not know yet that this site shares nodes sends only the width. Other jobs may
                    # still share this job's nodes, unless the job runs at several sites.
                    job = self.registry.next_job(request) if event.start_ms is None else None
                    event = msgspec.structs.replace(event, job=job)
                self._inner.append(event)

    def _why_rejected(self, request: JobRequest) -> str | None:
        """Return the one-line reason why the site does not accept a job's user, options or forms, or None."""
        return self.runs.users.refusal(request.user, request.batch_options, has_forms=bool(request.forms))

    def _why_stuck(self, request: JobRequest) -> str | None:
        """Return why a job cannot run at a site that moves running jobs, or None."""
        if not self._moves_jobs or request.program.can_be_moved:
            return None
        right = "submit it with the signal at which it saves what it has done (--checkpoint-signal USR1)"
        return (
            f"the site moves running jobs to other nodes, but this job does not declare that it can be moved: {right}"
        )

    def _apply_action(self, action: JobAction, record: JobRecord) -> None:
        """Apply a user's action to a queued or running job."""
        if action.kind == "hold":
            self._inner.append(JobCancelled(record.job_id))
            self.registry.take_out(record, record.attempt)
        elif action.kind == "signal" and action.signal is not None:
            self.runs.signal(record.job_id, record.attempt, action.signal)
        elif action.kind == "requeue":
            self.runs.requeue(record.job_id, record.attempt, action.why_requeued)
        elif action.kind in ("cancel", "kill"):
            self._inner.append(JobCancelled(record.job_id))
            if not self.runs.cancel(record.job_id):
                self.registry.end(record, "cancelled", "")
            elif action.kind == "kill":
                self.runs.kill(record.job_id, "cancelled", at_once=True)

    # -- decisions of the core ----------------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """Admit held jobs that are now allowed into the queue; return whether there are events for the core."""
        # For jobs of the site's own users, the record counts the attempts.
        self._inner += [JobSubmitted(job) for job, _ in self.registry.settle()]
        return bool(self._inner)

    def _run_core(self) -> None:
        events, self._inner = self._inner, []
        commands = self.core.handle(self._now_ms, *events)
        self._note_lost(events)
        for command in commands:
            match command:
                case StartJob():
                    self._start(command)
                case ChangeRate(job_id=job_id, rate=rate):
                    self.runs.note_rate(job_id, rate)
                    # If machines differ, the limit and launch already use the machine's rate; only pauses change it.
                    speed = 1.0 if self.core.site.traits.forms else rate / RATE_ONE
                    if self.runs.pace(self._now_ms, job_id, runs=rate > 0, speed=speed):
                        self._note_pause(job_id, rate)
                case MoveJob():
                    self._move(command)
                case EvictJob():
                    self._evict(command)
                case KillJob(job_id=job_id, reason=reason, at_once=at_once):
                    self.runs.kill(job_id, reason, at_once=at_once)
                case RequeueJob(job_id=job_id, reason=reason):
                    record = self.registry.records.get(job_id)
                    attempt = self.core.attempt_of(job_id) if record is None else record.attempt
                    self.runs.requeue(job_id, attempt, f"{reason} at {self.settings.name}")
                case OpenFragment(job_id=job_id):
                    self.runs.open(job_id)
                case RefuseJob(job_id=job_id, reason=reason):
                    record = self.registry.records.get(job_id)
                    if record is not None and not self.registry.decline(job_id, reason):
                        self.registry.end(record, "failed", reason)
                case ToGrid(answer=answer):
                    self._answer(answer)

    def _report_sharing(self) -> None:
        """Record and report changes in which jobs share nodes, and their slowdowns."""
        for run in self.runs.change_sharing(self._now_ms):
            limit_ms = next(iter(run.node_tasks.values())).launch.limit_ms or run.request.limit_ms
            self._shares(run, run.shared.so_far(limit_ms) if run.shared is not None else None)

    def _shares(self, run: Run, sharing: NodeSharing | None) -> None:
        """Record a job's node sharing, or report it to the grid if the job is a grid job."""
        if sharing is None or not sharing.beside:
            return
        record = self.registry.records.get(run.job_id)
        if record is None:
            self.registry.out.append(SendToGrid(NodesShared(run.job_id, run.attempt, sharing)))
        else:
            record.sharing = sharing
            self.registry.note(run.job_id, "shares", f"its nodes at {self.settings.name}: {sharing.text}")

    def _note_pause(self, job_id: int, rate: int) -> None:
        """Record in a job's history that the job is paused for another job on its machines, or resumed."""
        if rate == 0 and (why := self.core.site.why_paused(self._now_ms, job_id)):
            self.registry.note(job_id, "paused", f"at {self.settings.name}: {why}")
        elif rate > 0 and self.core.site.traits.evicts:
            self.registry.note(job_id, "resumed", f"at {self.settings.name}")

    def _note_lost(self, events: Iterable[ContractEvent]) -> None:
        """Record the delay of jobs whose nodes a batch system took back before their start, with the new forecast."""
        asks = [
            ask for event in events if isinstance(event, BatchSnapshot) for ask in event.asks if ask.state == "over"
        ]
        for ask in asks:
            forecast = self.core.forecast(self._now_ms, ask.job_id)
            if forecast is not None:
                self.registry.note(ask.job_id, "delayed", forecast.reason)

    def _start(self, command: StartJob, last: Run | None = None) -> None:
        """Start a job of the site's own users or the grid on the nodes that the core has given it.

        At sites that evict jobs, the core provides the remaining wall time, because machines can differ, and the job
        can have run before. If the job has just left its previous nodes, `last` is its run on those nodes, which has
        the last ordered pace.
        """
        evicts = self.core.site.traits.evicts
        limit_ms = self.core.site.limit_left_ms(self._now_ms, command.job_id) if evicts else 0
        limit_ms = limit_ms if last is None else last.next_limit_ms
        if self.runs.put_off(command, limit_ms):
            return
        record = self.registry.records.get(command.job_id)
        width = count_of(command.nodes)
        meeting, port = "", NO_PORT
        if record is not None:
            record.attempt, record.sharing = record.attempt + 1, None
            self.registry.change(record, "place")
            record.start_ms = self._now_ms
            record.places = ((self.settings.name, width),)
            self.registry.eligibility.started(record.job_id, record.request)
            described = self._describe(record, record.attempt)
        else:
            expected = self._expected[command.job_id, self.core.attempt_of(command.job_id)]
            described, meeting, port = expected.described, expected.meeting, expected.port
            expected.port = NO_PORT
        if evicts and len(described.sites) == 1:
            # The form may have a different width and command than the job.
            request = in_form(described.request, self.core.site.form_of(command.job_id))
            size = 1 if request.program.ranks == "first-node" else width
            described = msgspec.structs.replace(described, request=request, limit_ms=limit_ms, size=size)
        run = self._made(command, described)
        run.port = port
        if last is not None:
            run.is_paused, run.speed = last.is_paused, last.speed
        if len(described.sites) == 1:
            # A job with an agreed start may already have a port.
            taken = next(iter(run.node_tasks)), run.job_id, run.attempt
            run.port = port if port.number else self.runs.ports.take(*taken)
            meeting = run.port.meeting
        run.meet(meeting)
        others = [f"job {job_id}" for job_id in self.runs.in_way(run)]
        left = f", when {listed(others)} {'has' if len(others) == 1 else 'have'} left" if others else ""
        self.registry.note(command.job_id, "starting", f"on {run.where} of {self.settings.name}{left}")
        self.runs.start(run)

    def _evict(self, command: EvictJob) -> None:
        """Evict a job in favor of another job; it writes a checkpoint and ends within its grace period."""
        reason = f"evicted at {self.settings.name}: {command.reason}"
        self.registry.note(command.job_id, "evicted", reason)
        self.registry.note(command.by, "evicts", f"job {command.job_id}")
        self.runs.evict(command.job_id, reason)

    def _move(self, command: MoveJob) -> None:
        """Move a job of the site's own users to other nodes; hand a grid job back to the grid for a new placement."""
        job_id, record = command.job_id, self.registry.records.get(command.job_id)
        attempt = self.core.attempt_of(job_id)
        if record is not None:
            described = self._describe(record, record.attempt + 1)
        else:
            described = self._expected[job_id, attempt].described
        run = self._made(StartJob(job_id, command.nodes, command.threads), described)
        if not command.nodes or (self._gives_parts and self.runs.has_as_many(run)):
            return  # the job is paused, or can stay on its machines
        if record is None:
            self.runs.requeue(job_id, attempt, f"its nodes at {self.settings.name} now belong to other jobs")
        else:
            self.runs.move(run)

    def _made(self, start: StartJob, described: DescribeJob) -> Run:
        """Return a job's run on these nodes, with each machine's node task."""
        args = self.settings, start, described, self.core.site.traits.threads, self._now_ms
        run = make_run(*args, gives_parts=self._gives_parts)
        if self.core.site.traits.forms:
            run.speed_up(self.core.site.rate_of(start.job_id) / RATE_ONE)
        return run

    def _describe(self, record: JobRecord, attempt: int) -> DescribeJob:
        """Describe an attempt of a job of the site's own users, in the form of the message that the grid sends."""
        request = record.request
        size = 1 if request.program.ranks == "first-node" else request.nodes
        args = attempt, request, request.limit_ms, 0, size, (self.settings.name,), record.left(), record.starts
        return DescribeJob(record.job_id, *args)

    def _answer(self, answer: Answer) -> None:
        """Send an answer from the core to the grid, after adding the fields that only the live site knows."""
        if isinstance(answer, Reserved):
            answer = msgspec.structs.replace(answer, rendezvous=self._meeting_for(answer.job_id, answer.attempt))
        elif isinstance(answer, Ended):
            answer = self._ended_answer(answer)
        if isinstance(answer, (Ended, Refused, LeaseEnded, Withdrawn)):
            expected = self._expected.pop((answer.job_id, answer.attempt), None)
            if expected is not None:
                self.runs.ports.give(expected.port)
        self.registry.out.append(SendToGrid(answer))

    def _meeting_for(self, job_id: int, attempt: int) -> str:
        """Return the rendezvous address of a multi-site job if this site has its first rank; otherwise, return ""."""
        expected, grant = self._expected[job_id, attempt], self.core.grant_of(job_id)
        if grant is None or expected.described.first_rank != 0:
            return ""
        run = self._made(grant, expected.described)
        expected.port = self.runs.ports.take(next(iter(run.node_tasks)), job_id, attempt)
        return expected.port.meeting

    def _ended_answer(self, answer: Ended) -> Ended:
        """Send the report of a grid job's run; return the answer with the run's outcome."""
        run = self.runs.over.get(answer.job_id)
        if run is None:
            return answer
        outcome, reason = run.outcome()
        # Use the outcome of the run, but a job that the grid has ended must not run again, whatever that outcome is.
        was_evicted = run.is_evicted and answer.outcome == "lost"
        if answer.outcome in ("finished", "limit") or outcome == "finished" or was_evicted:
            answer = msgspec.structs.replace(answer, outcome=outcome)
        elif answer.outcome == "cancelled" and run.is_gated and not run.is_open:
            # The fragment never started, so the job has not run, even if other fragments have started.
            answer = msgspec.structs.replace(answer, outcome="unmet")
        key = answer.job_id, answer.attempt
        report = FragmentReport(
            *key, reason, run.exit_codes, run.used, tuple(run.node_tasks), run.array_tasks, run.interrupted, run.ran_ms
        )
        self.registry.out.append(SendToGrid(report))
        if (shared := run.sharing_at_end(self._now_ms)) is not None:
            self.registry.out.append(SendToGrid(NodesShared(*key, shared)))
        run_ms = end_of_processes_ms(run.start_ms, run.ran_ms, self._now_ms) - run.start_ms
        self.registry.note_end(run.job_id, run.request, answer.outcome, reason, run_ms, run.width, run.used)
        return answer

    def _settle_evicted(self) -> None:
        """Record that evicted jobs have left their nodes; start the jobs that have new nodes, and requeue the rest.

        A job that ended by itself or was cancelled leaves the queue or its new nodes. A grid job goes back to the grid.
        """
        for job_id, run in list(self.runs.over.items()):
            record = self.registry.records.get(job_id)
            if not run.is_evicted:
                continue
            outcome, reason = run.outcome()
            if record is None or outcome != "lost":
                is_here = record is None or run.next_start is not None
                self._inner.append(JobFinished(job_id, succeeded=False) if is_here else JobCancelled(job_id))
                continue
            del self.runs.over[job_id]
            _enter(record, run)
            self.registry.end_attempt(record)
            self.registry.note(job_id, "retried", reason)
            if run.next_start is not None:
                self._start(run.next_start, run)

    def _settle_over(self) -> list[Job]:
        """Record which jobs of the site's own users have ended; return the jobs that must run again."""
        again: list[Job] = []
        for job_id, run in self.runs.over.items():
            record = self.registry.records.get(job_id)
            if record is None:
                continue
            outcome, reason = run.outcome()
            _enter(record, run)
            if outcome == "lost":
                self.registry.end_attempt(record)
                self.registry.note(job_id, "retried", reason)
                again.append(self.registry.job(record))
            else:
                record.sharing = run.sharing_at_end(self._now_ms)
                self.registry.end(record, *record.judged(outcome, reason))
        return again


def _enter(record: JobRecord, run: Run) -> None:
    """Copy the result of a run into its job's record."""
    record.used, record.exit_codes, record.machines = run.used, run.exit_codes, tuple(run.node_tasks)
    record.ran_ms = run.ran_ms
    record.array_tasks += of_attempt(run.array_tasks, run.attempt)
    record.interrupted += run.interrupted
