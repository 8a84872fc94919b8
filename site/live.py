"""LiveSite: a site with the programs of its jobs and the machines that run them, as a state machine.

Around a `ContractCore`, which decides, it keeps what is run where: it makes out of the start of a job what each machine
has to run, and out of what the machines tell the end of a job. No clock, no I/O: the rules are in docs/live.md.

What a live site and the live grid have in common: jobs that are kept from the queue, and what follows for them.

What a live site has its machines do: orders to them, what they tell, and what is not to be had of them now.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import msgspec

from gridweave.site.contract import ContractCore, ContractEvent
from gridweave.site.eligibility import Eligibility, after_problem, past_of, pasts_of
from gridweave.site.explain import Forecast, record_forecast
from gridweave.site.job import (
    OWN_IDS,
    Accepted,
    Declined,
    DescribeJob,
    EndedJobs,
    FragmentReport,
    Job,
    JobRecord,
    JobRequest,
    Noted,
    RecordEnded,
    RecordUsage,
    by_whom,
    job_of,
    request_problem,
    why_impossible,
)
from gridweave.site.messages import (
    AgentForgotten,
    AgentJoined,
    Answer,
    CommitHold,
    Ended,
    EndRun,
    EnqueueJob,
    Held,
    HoldEnded,
    HoldNodes,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    KillJob,
    LiveSiteCommand,
    LiveSiteEvent,
    LookForRoom,
    MachineReady,
    Order,
    OwnCancelled,
    OwnHeld,
    OwnReleased,
    OwnSubmitted,
    Refused,
    RefuseJob,
    RunDelayed,
    RunEnded,
    RunStarted,
    SiteOpened,
    SiteShut,
    StartJob,
    StartRun,
    TellGrid,
    ToGrid,
    Withdrawn,
)
from gridweave.site.runs import NO_PORT, Expected, Ports, Run, SiteSettings, exit_codes_of, make_run, repeated_orders


class KeepsJobs(ABC):
    """A core with users' jobs, some of which are kept from its queue (docs/live.md, "Held").

    Attributes
    ----------
    records : dict from int to JobRecord
        By number, ascending: of the jobs that have not ended, and of those that ended last.
    eligibility : Eligibility
        Which of them are kept from the queue.
    """

    def __init__(self) -> None:
        self.records: dict[int, JobRecord] = {}
        self.eligibility = Eligibility()
        self._ended = EndedJobs()
        # What is decided at this instant, and the keys of the jobs that were handed in at it.
        self._out: list[Any] = []
        self._fresh: dict[int, str] = {}

    @property
    def n_open(self) -> int:
        """Jobs of users that have not ended."""
        return len(self.records) - len(self._ended.job_ids)

    @abstractmethod
    def _let_in(self, record: JobRecord, attempt: int) -> None:
        """Have the core told of a job that goes into the queue; its last attempt had this number."""

    @abstractmethod
    def _end_in_vain(self, record: JobRecord, reason: str) -> None:
        """End a job that waits for what can happen no more."""

    def _wished(self, job_id: int) -> JobRecord | None:
        """Return what is known of a job that a user wants something of, if anything can become of it."""
        record = self.records.get(job_id)
        # Of one that was handed in at this very instant nobody knows the number: it was guessed.
        over = record is None or job_id in self._fresh or record.state in ("ended", "refused")
        return None if over else record

    def _wish_held(self, job_id: int, origin: str) -> None:
        """Take note that a user wants a job held."""
        self._out.append(Noted(job_id, "hold", f"by wish{by_whom(origin)}"))
        self.eligibility.hold(job_id)

    def _release(self, job_id: int, origin: str) -> bool:
        """Take note that a user does not want a job held any more; return whether it was to be."""
        if self._wished(job_id) is None or not self.eligibility.is_wished(job_id):
            return False
        self._out.append(Noted(job_id, "release", f"by wish{by_whom(origin)}"))
        self.eligibility.release(job_id)
        return True

    def _settle_kept(self) -> None:
        """Do what follows for the jobs that are kept from the queue."""
        while True:
            settled = self.eligibility.settle()
            for job_id, reason in settled.hopeless:
                self._end_in_vain(self.records[job_id], reason)
            for job_id, reason in settled.kept:
                record = self.records[job_id]
                if record.reason != reason:
                    record.reason = reason
                    self._out.append(Noted(job_id, "kept", reason))
            for job_id, attempt in settled.let_in:
                record = self.records[job_id]
                record.state, record.reason = "waiting", ""
                self._out.append(Noted(job_id, "queued"))
                self._let_in(record, attempt)
            if not settled.hopeless:
                return

    def _keep_ended(self, record: JobRecord) -> None:
        """Keep what is known of a job that is over, and have others go on that wait for it."""
        self.eligibility.over(past_of(record), record.request)
        self._out.append(RecordEnded(record))
        self._ended.add(record.job_id, self.records)

    def _check_kept(self) -> None:
        """Raise AssertionError if what is held is not what is kept from the queue."""
        self.eligibility.check_invariants()
        held = {job_id for job_id, record in self.records.items() if record.state == "held"}
        assert held == {job_id for job_id in self.records if job_id in self.eligibility}, "what is held is not kept"
        assert len(held) == len(self.eligibility), "a job is kept that is over"


class RunsOnMachines(KeepsJobs):
    """A core with machines that run the parts of jobs (docs/live.md, "Machines")."""

    def __init__(self, settings: SiteSettings) -> None:
        super().__init__()
        self.settings = settings
        self._runs: dict[int, Run] = {}
        self._ports = Ports(settings)
        # Machines that cannot start anything, and why.
        self._full: dict[str, str] = {}
        # What is over at this instant, and what the core is to be told.
        self._over: dict[int, Run] = {}
        self._inner: list[ContractEvent] = []

    def orders(self, *agents: str) -> Iterator[Order]:
        """Yield what machines should do now and have not said that they have: safe to repeat."""
        yield from repeated_orders(self._runs.values(), set(agents))
        yield from (LookForRoom(agent) for agent in self._full if agent in agents)

    def expects(self, agent: str, job_id: int, attempt: int) -> bool:
        """Return whether a machine is thought to run a part of this attempt."""
        run = self._runs.get(job_id)
        piece = None if run is None or run.attempt != attempt else run.pieces.get(agent)
        return piece is not None and not piece.is_over

    def machine_of(self, job_id: int, attempt: int, rank: int) -> str:
        """Return which machine runs a rank of an attempt; empty if none does now."""
        run = self._runs.get(job_id)
        if run is None or run.attempt != attempt:
            return ""
        ranks = {each.rank: agent for agent, piece in run.pieces.items() for each in piece.launch.ranks}
        return ranks.get(rank, "")

    def host_of(self, agent: str) -> str:
        """Return by which name a machine is reached; empty if it was never there."""
        return self._ports.host_of(agent)

    def problem_of(self, agent: str) -> str:
        """Return why a machine can start nothing now; empty if it can, as far as it has said."""
        return self._full.get(agent, "")

    # -- what machines tell -------------------------------------------------------------------------------------------

    def _told(self, event: RunStarted | RunEnded) -> None:
        """Take note of what a machine says; what it says of anything but the present attempt is passed over."""
        if not self.expects(event.agent, event.job_id, event.attempt):
            return
        run = self._runs[event.job_id]
        piece = run.pieces[event.agent]
        record = self.records.get(event.job_id)
        if isinstance(event, RunStarted):
            piece.has_started, piece.has_run, piece.in_doubt, piece.delayed = True, True, False, ""
            if record is not None and record.state == "starting" and run.has_started:
                # Its start stays the instant at which it was given its nodes, as for the jobs of the grid.
                record.state = "running"
                self._out.append(Noted(event.job_id, "runs", f"on {run.where}"))
            return
        if event.outcome == "cancelled" and not run.ending:
            # Nobody here wanted that: the machine was shut down, or had lost what it knew.
            event = msgspec.structs.replace(event, outcome="lost")
        piece.has_started, piece.has_run = True, piece.has_run or event.has_run
        piece.end = event
        program = run.request.program
        again = event.outcome == "lost" and program.if_lost == "requeue"
        if again or (event.outcome != "finished" and program.end_on_failure):
            self._end_pieces(run, f"its part on {event.agent} has ended: {event.outcome}")
        if all(other.is_over for other in run.pieces.values()):
            del self._runs[event.job_id]
            self._ports.give(run.port)
            self._over[event.job_id] = run
            self._inner.append(JobFinished(event.job_id))

    def _delay(self, event: RunDelayed) -> None:
        """Take note that a machine has no room; a site with no other starts nothing for the grid until one has."""
        was_full = self._is_full
        self._full[event.agent] = event.reason
        if self._is_full and not was_full:
            self._inner.append(SiteShut(event.reason))
        if not self.expects(event.agent, event.job_id, event.attempt):
            return
        piece = self._runs[event.job_id].pieces[event.agent]
        if not piece.has_started:
            piece.delayed = event.reason
            self._out.append(Noted(event.job_id, "delayed", event.reason))

    def _ready(self, agent: str) -> None:
        """Take note that a machine can start what it is asked for."""
        was_full = self._is_full
        self._full.pop(agent, None)
        if was_full and not self._is_full:
            self._inner.append(SiteOpened())

    def _hand_back(self) -> None:
        """Give the grid what cannot start here for now; the site's own users have nowhere else to go, and wait."""
        if not self._is_full:
            return
        for run in self._runs.values():
            if run.why_delayed and not run.killed and run.job_id not in self.records:
                run.killed, run.why_killed = "lost", run.why_delayed
                self._end_pieces(run, run.why_delayed)

    def _lose(self, agent: str, reason: str) -> None:
        """Give up what a machine ran."""
        for run in [run for run in self._runs.values() if agent in run.pieces]:
            self._told(RunEnded(agent, run.job_id, run.attempt, "lost", reason))

    def _end_pieces(self, run: Run, reason: str) -> None:
        """Have all machines end what they run of a job."""
        if not run.ending:
            run.ending = reason
            for agent, piece in run.pieces.items():
                if not piece.is_over:
                    self._out.append(EndRun(agent, run.job_id, run.attempt, reason))

    def _joined(self, event: AgentJoined) -> None:
        """Take note that a machine is there, for the first time or again."""
        self._ports.reached_by(event.agent, event.host)
        # If it still is full, it finds that out anew.
        self._ready(event.agent)
        for run in self._runs.values():
            if event.agent in run.pieces:
                run.pieces[event.agent].in_doubt = True

    @property
    def _is_full(self) -> bool:
        """Whether no machine can start anything."""
        return len(self._full) == len(self.settings.agents)

    def _check_runs(self) -> None:
        """Raise AssertionError if something is run that is over."""
        for run in self._runs.values():
            assert not all(piece.is_over for piece in run.pieces.values()), f"job {run.job_id} is over and still here"


class LiveSite(RunsOnMachines):
    """A site that runs real programs.

    Examples
    --------
    >>> from gridweave.site.policy import SitePolicy
    >>> from gridweave.site.messages import Agent
    >>> from gridweave.site.job import JobRequest, Program
    >>> settings = SiteSettings(name="north", number=0, agents=(Agent(name="n0", nodes=4),), policy=SitePolicy())
    >>> site = LiveSite(settings)
    >>> request = JobRequest(program=Program(argv=("true",)), nodes=2, limit_ms=1000)
    >>> for command in site.handle(0, OwnSubmitted("key", request)):
    ...     print(type(command).__name__)
    Noted
    TellGrid
    Noted
    StartRun
    Accepted
    >>> site.records[1_000_000_000_001].state
    'starting'
    """

    def __init__(self, settings: SiteSettings) -> None:
        super().__init__(settings)
        self.core = ContractCore(
            settings.nodes, settings.policy, owner=settings.owner, rendezvous_ms=settings.rendezvous_ms
        )
        self._next_id = OWN_IDS * (settings.number + 1) + 1
        self._users: dict[str, int] = {}
        self._expected: dict[tuple[int, int], Expected] = {}
        self._now_ms = 0

    def handle(self, now_ms: int, *events: LiveSiteEvent) -> list[LiveSiteCommand]:
        """Take in what has happened and return what is to be done.

        Parameters
        ----------
        now_ms : int
            The instant; never earlier than in the call before.
        *events
            None is a wakeup.

        Returns
        -------
        list of LiveSiteCommand
            In the order in which they are to be carried out.

        Raises
        ------
        InputError
            If time went backwards; nothing has changed then.
        """
        self.core.site.check(now_ms)
        self._now_ms, self._out, self._inner, self._over, self._fresh = now_ms, [], [], {}, {}
        for event in events:
            self._take_in(event)
        self._hand_back()
        self._settle()
        self._run_core()
        self._inner += [JobSubmitted(job) for job in self._settle_over()]
        while self._settle():
            self._run_core()
        self._out += [Accepted(key, job_id) for job_id, key in self._fresh.items()]
        return self._out

    def next_wakeup_ms(self) -> int | None:
        """Return when `handle` is to be called though no event comes."""
        return self.core.next_wakeup_ms()

    def forecast(self, now_ms: int, job_id: int) -> Forecast | None:
        """Return when a job starts here, the grid's or an own user's; None if it is not known.

        Nothing changes by that.
        """
        now_ms = max(now_ms, self._now_ms)
        found = self.core.forecast(now_ms, job_id, self.settings.name)
        record = self.records.get(job_id)
        if found is None and record is not None:
            return record_forecast(record, now_ms, self.eligibility.reason(job_id))
        return found

    def quote(self, now_ms: int, request: JobRequest, *, for_grid: bool = False) -> Forecast:
        """Return when a job would start that were handed in now; nothing changes by that.

        Parameters
        ----------
        for_grid : bool
            Whether the grid would delegate it here, which may have no more than the owner gives.
        """
        now_ms = max(now_ms, self._now_ms)
        reason = request_problem(request)
        if reason is not None:
            return Forecast(now_ms=now_ms, state="refused", length_ms=request.limit_ms, reason=reason)
        job = job_of(self._next_id, request, dict(self._users))
        return self.core.quote(now_ms, job, self.settings.name, for_grid=for_grid)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself: a running job without a run, or a run without a job."""
        self.core.check_invariants()
        running = {running.job.job_id for running in self.core.site.running()}
        held = {job_id for job_id in running if self.core.part_state(job_id) in ("held", "committed")}
        assert running - held == set(self._runs), "what runs is not what is run"
        assert bool(self.core.shut) == self._is_full, "shut, and not full"
        self._check_runs()
        given = [expected.port for expected in self._expected.values()] + [run.port for run in self._runs.values()]
        ports = [(port.agent, port.number) for port in given if port.number]
        assert len(ports) == len(set(ports)), "a port is given twice"
        assert sorted(ports) == sorted(self._ports.taken()), "a port is lost"
        parts = {(job_id, self.core.attempt_of(job_id)) for job_id, _ in self._expected}
        asked = {key for key, expected in self._expected.items() if expected.is_asked}
        assert asked <= parts, "an attempt is expected that is not here"
        self._check_kept()

    # -- what comes in ------------------------------------------------------------------------------------------------

    def _take_in(self, event: LiveSiteEvent) -> None:
        match event:
            case OwnSubmitted():
                self._submit(event)
            case OwnCancelled(job_id=job_id, origin=origin):
                self._cancel(job_id, origin)
            case OwnHeld(job_ids=job_ids, origin=origin):
                for job_id in job_ids:
                    self._hold(job_id, origin)
            case OwnReleased(job_ids=job_ids, origin=origin):
                for job_id in job_ids:
                    self._release(job_id, origin)
            case DescribeJob():
                self._expected.setdefault((event.job_id, event.attempt), Expected(event))
            case HoldNodes(job_id=job_id) | EnqueueJob(job=Job(job_id=job_id)):
                expected = self._expected.get((job_id, event.attempt))
                if expected is None:
                    self._out.append(TellGrid(Refused(job_id, event.attempt, "the site was not told what it runs")))
                elif not expected.is_asked:
                    expected.is_asked = True
                    self._inner.append(event)
            case CommitHold(job_id=job_id, attempt=attempt):
                if (job_id, attempt) in self._expected:
                    self._expected[job_id, attempt].meeting = event.rendezvous
                self._inner.append(event)
            case RunStarted() | RunEnded():
                self._told(event)
            case RunDelayed():
                self._delay(event)
            case MachineReady(agent=agent):
                self._ready(agent)
            case AgentForgotten(agent=agent):
                self._lose(agent, f"machine {agent} is gone for good")
            case AgentJoined():
                self._joined(event)
            case _:
                self._inner.append(event)

    def _submit(self, event: OwnSubmitted) -> None:
        request = event.request
        past = pasts_of(request, self.records, event.past)
        reason = request_problem(request) or after_problem(request, past)
        job_id = self._next_id
        if reason is None:
            job = job_of(job_id, request, self._users)
            # What is kept from the queue shall not wait for what can never be.
            reason = why_impossible(job) or self.core.site.why_never(job)
        if reason is not None:
            self._out.append(Declined(event.key, reason))
            return
        self._next_id += 1
        self.records[job_id] = JobRecord(job_id=job_id, request=request, submit_ms=self._now_ms)
        self._fresh[job_id] = event.key
        asked = f"to {self.settings.name}, {request.nodes} nodes{by_whom(event.origin)}"
        self._out.append(Noted(job_id, "submitted", asked))
        if self.eligibility.add(job_id, request, past):
            self._inner.append(JobSubmitted(job))
        else:
            self.records[job_id].state = "held"

    def _hold(self, job_id: int, origin: str) -> None:
        """Keep a job from the queue that has not been given nodes."""
        record = self._wished(job_id)
        if record is None or record.state not in ("held", "waiting") or self.eligibility.is_wished(job_id):
            return
        if record.state == "waiting":
            self._inner.append(JobCancelled(job_id))
            self.eligibility.taken_out(job_id, record.request, record.attempt)
            record.state = "held"
        self._wish_held(job_id, origin)

    def _cancel(self, job_id: int, origin: str) -> None:
        """Take note that a user wants a job no more."""
        record = self._wished(job_id)
        if record is None:
            return
        self._out.append(Noted(job_id, "cancelled", f"at {self.settings.name}{by_whom(origin)}"))
        if job_id not in self.eligibility:
            self._inner.append(JobCancelled(job_id))
        run = self._runs.get(job_id) or self._over.get(job_id)
        if run is None:
            self._out.append(Noted(job_id, "ended", f"at {self.settings.name}: cancelled"))
            self._end_record(record, "cancelled", "")
        else:
            run.killed, run.why_killed = "cancelled", "cancelled"

    # -- what the core decides ----------------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """Do what follows for jobs that are kept from the queue; return whether the core is to be told something."""
        self._settle_kept()
        return bool(self._inner)

    def _let_in(self, record: JobRecord, attempt: int) -> None:
        # The record counts the attempts of a site's own jobs.
        self._inner.append(JobSubmitted(job_of(record.job_id, record.request, self._users)))

    def _end_in_vain(self, record: JobRecord, reason: str) -> None:
        self._out.append(Noted(record.job_id, "ended", f"at {self.settings.name}: cancelled: {reason}"))
        self._end_record(record, "cancelled", reason)

    def _run_core(self) -> None:
        events, self._inner = self._inner, []
        for command in self.core.handle(self._now_ms, *events):
            if isinstance(command, StartJob):
                self._start(command)
            elif isinstance(command, KillJob):
                run = self._runs.get(command.job_id)
                if run is not None:
                    if not run.killed:
                        run.killed = "limit" if command.reason == "reached its limit" else "cancelled"
                        run.why_killed = command.reason
                    self._end_pieces(run, command.reason)
            elif isinstance(command, RefuseJob):
                self._refuse(command)
            elif isinstance(command, ToGrid):
                self._answer(command.answer)

    def _start(self, command: StartJob) -> None:
        job_id = command.job_id
        record = self.records.get(job_id)
        meeting, port = "", NO_PORT
        if record is not None:
            record.attempt += 1
            record.state, record.start_ms = "starting", self._now_ms
            self.eligibility.started(job_id)
            record.places = ((self.settings.name, record.request.nodes),)
            size = 1 if record.request.program.ranks == "first-node" else record.request.nodes
            sites = (self.settings.name,)
            described = DescribeJob(job_id, record.attempt, record.request, record.request.limit_ms, 0, size, sites)
        else:
            expected = self._expected[job_id, self.core.attempt_of(job_id)]
            described, meeting, port = expected.described, expected.meeting, expected.port
            expected.port = NO_PORT
        run = make_run(self.settings, command, described, self.core.site.threads_per_node, self._now_ms)
        run.port = port
        if len(described.sites) == 1:
            # It has one already if its start was agreed on, which a job on one site need not be.
            run.port = port if port.number else self._ports.take(next(iter(run.pieces)))
            meeting = run.port.meeting
        run.meet(meeting)
        self._runs[job_id] = run
        self._out.append(Noted(job_id, "starting", f"on {run.where} of {self.settings.name}"))
        self._out += [StartRun(agent, piece.launch, piece.slots) for agent, piece in run.pieces.items()]

    def _refuse(self, command: RefuseJob) -> None:
        record = self.records.get(command.job_id)
        key = self._fresh.pop(command.job_id, None)
        if record is None:
            return
        if key is None:
            self._out.append(Noted(command.job_id, "ended", f"at {self.settings.name}: failed: {command.reason}"))
            self._end_record(record, "failed", command.reason)
        else:
            del self.records[command.job_id]
            record.state = "refused"
            self.eligibility.over(past_of(record), record.request)
            self._out.append(Declined(key, command.reason))

    def _answer(self, answer: Answer) -> None:
        if isinstance(answer, Held):
            answer = msgspec.structs.replace(answer, rendezvous=self._meeting_for(answer.job_id, answer.attempt))
        elif isinstance(answer, Ended):
            answer = self._ended_answer(answer)
        if isinstance(answer, (Ended, Refused, HoldEnded, Withdrawn)):
            expected = self._expected.pop((answer.job_id, answer.attempt), None)
            if expected is not None:
                self._ports.give(expected.port)
        self._out.append(TellGrid(answer))

    def _meeting_for(self, job_id: int, attempt: int) -> str:
        """Return where the ranks of a job on several sites can meet, if its first rank is here."""
        expected, grant = self._expected[job_id, attempt], self.core.grant_of(job_id)
        if grant is None or expected.described.first_rank != 0:
            return ""
        run = make_run(self.settings, grant, expected.described, self.core.site.threads_per_node, self._now_ms)
        expected.port = self._ports.take(next(iter(run.pieces)))
        return expected.port.meeting

    def _ended_answer(self, answer: Ended) -> Ended:
        """Say how a job of the grid ended, and send ahead what is known of it."""
        run = self._over.get(answer.job_id)
        if run is None:
            return answer
        outcome, reason = run.outcome()
        # Only this knows how it ended; but what the grid wanted ended, and so did, is not to be begun anew.
        if answer.outcome in ("finished", "limit") or outcome == "finished":
            answer = msgspec.structs.replace(answer, outcome=outcome)
        self._out.append(
            TellGrid(
                FragmentReport(answer.job_id, answer.attempt, reason, exit_codes_of(run), run.used, tuple(run.pieces))
            )
        )
        self._note_end(run, answer.outcome, reason)
        return answer

    # -- how jobs end -------------------------------------------------------------------------------------------------

    def _settle_over(self) -> list[Job]:
        """Enter the ends of the jobs of the site's own users; return those that are to be run again."""
        again: list[Job] = []
        for job_id, run in self._over.items():
            record = self.records.get(job_id)
            if record is None:
                continue
            outcome, reason = run.outcome()
            record.used, record.exit_codes, record.agents = run.used, exit_codes_of(run), tuple(run.pieces)
            if outcome == "lost":
                record.state, record.start_ms = "waiting", None
                self._out.append(Noted(job_id, "retried", reason))
                again.append(job_of(job_id, record.request, self._users))
                continue
            self._note_end(run, outcome, reason)
            self._end_record(record, outcome, reason)
        return again

    def _note_end(self, run: Run, outcome: str, reason: str) -> None:
        self._out.append(
            Noted(run.job_id, "ended", f"at {self.settings.name}: {outcome}" + (f": {reason}" * bool(reason)))
        )
        if outcome in ("finished", "limit"):
            run_ms = self._now_ms - run.start_ms
            self._out.append(RecordUsage(run.job_id, run.request, run.width, run_ms, run.used))

    def _end_record(self, record: JobRecord, outcome: str, reason: str) -> None:
        record.state, record.outcome, record.reason, record.end_ms = "ended", outcome, reason, self._now_ms
        self._keep_ended(record)
