"""SiteCore: one site as a state machine, events in, commands out.

No clock, no I/O: the time is an argument, and whoever drives the core carries out what it commands.
"""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from gridweave.errors import InputError
from gridweave.site.allocation import NodePool, bits_of, intervals_of
from gridweave.site.disciplines.dictionary import deciding, entry_of
from gridweave.site.disciplines.protocol import (
    AsksBatchSystem,
    ChangesRates,
    ChoosesForms,
    ChoosesNodes,
    CountsWork,
    Discipline,
    Eviction,
    EvictsJobs,
    ExpectedRun,
    ExpectsEnds,
    ExpectsRuns,
    KeepsFigures,
    KeepsReservations,
    LearnsTimes,
    MovesJobs,
    MovesStarts,
    Policy,
    SharedOffer,
    TellsAtEnd,
    TellsSwitches,
)
from gridweave.site.explain import SiteReason, free_text, nodes_text, offer_text
from gridweave.site.job import Job, JobForm, NodeIntervals, Running, check_job, why_impossible
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.messages import (
    AcceptReservation,
    BatchSeen,
    Cause,
    ChangeRate,
    CloseReservation,
    Command,
    Event,
    EvictJob,
    ExperienceEdited,
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
from gridweave.site.state import CoreState, with_parts

D = TypeVar("D")


class SiteCoreState(CoreState, Generic[D], frozen=True, kw_only=True, tag="SiteCore 1"):
    """What a site knows: its jobs by number, and the state of its discipline."""

    now_ms: int
    waiting: list[int]
    nodes_of: dict[int, NodeIntervals]
    killed: list[int]
    reservations: list[ReservationRequested]
    reserved_nodes: dict[int, NodeIntervals]
    discipline: D


class SiteCore:
    """The nodes, the queue and the plan of one site.

    Parameters
    ----------
    nodes : int
        Nodes of the site, >= 1.
    week : WeekClock
        The local time of the week; counts for limits with windows.

    Notes
    -----
    An event that repeats what is known already, or speaks of a job that is not here, changes nothing: messages may come
    twice. The ids of jobs that have left are not kept, so whoever drives a core must not tell it of their submission
    again; nor of a cancellation before the submission.

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
        self._pool = NodePool(nodes)
        decides, entry = deciding(policy)
        may_pause = entry.may_pause(decides)
        self.slices_time, self.shares_nodes = entry.slices_time or may_pause, entry.shares_nodes or may_pause
        self.gives_fractions, self.has_forms = entry.gives_fractions, entry.has_forms
        self._use(entry_of(policy).make(nodes, policy, week))
        # Whether nodes are here to be held; a batch system gives them to each job when it likes.
        self.starts_jobs = self._asks is None or self._places is not None
        self.takes_parts = self.starts_jobs and entry.takes_parts
        self._now_ms = 0
        self._waiting: set[int] = set()
        # The nodes of each running job, as the bits of a number (allocation.py).
        self._nodes_of: dict[int, int] = {}
        self._killed: set[int] = set()
        self._reservations: dict[int, ReservationRequested] = {}
        self._reserved_nodes: dict[int, NodeIntervals] = {}

    def _use(self, discipline: Discipline) -> None:
        self._discipline = discipline
        self._asks = discipline if isinstance(discipline, AsksBatchSystem) else None
        self._decides = decides = discipline if self._asks is None else self._asks.inside
        # The same again if it chooses the nodes, so that the pool has nothing to say, or if jobs change their rates.
        self._places = discipline if isinstance(discipline, ChoosesNodes) else None
        self._rates = decides if isinstance(decides, ChangesRates) else None
        self._moves = decides if isinstance(decides, MovesJobs) else None
        self._evicts = decides if isinstance(decides, EvictsJobs) else None
        # To ask what an object can do takes longer than to quote.
        self._expects_runs = discipline if isinstance(discipline, ExpectsRuns) else None
        self._expects_ends = discipline if isinstance(discipline, ExpectsEnds) else None
        self._learns = decides if isinstance(decides, LearnsTimes) else None

    @property
    def nodes(self) -> int:
        """Nodes of the site."""
        return self._pool.nodes

    @property
    def lanes(self) -> tuple[int, int]:
        """Cores of a node and hardware threads of a core that are given out one by one; 1 each for whole nodes."""
        return (1, 1) if self._places is None else self._places.lanes

    @property
    def threads_per_node(self) -> int:
        """Hardware threads of a node that are given out one by one; 1 where a node is given out whole."""
        return math.prod(self.lanes)

    @property
    def figures(self) -> KeepsFigures | None:
        """The discipline, where it tells more of its jobs than when they ran."""
        return self._decides if isinstance(self._decides, KeepsFigures) else None

    @property
    def switches(self) -> TellsSwitches | None:
        """The discipline, where it switches from one of its policies to another."""
        return self._decides if isinstance(self._decides, TellsSwitches) else None

    @property
    def own_at_end(self) -> object:
        """What the discipline tells of a run that is over; None if nothing."""
        return self._decides.own_at_end() if isinstance(self._decides, TellsAtEnd) else None

    def form_of(self, job_id: int) -> JobForm | None:
        """Return in which of its forms a job runs, where it has forms of its own."""
        return self._decides.form_of(job_id) if isinstance(self._decides, ChoosesForms) else None

    def rate_of(self, job_id: int) -> int:
        """Return at which rate a job starts where it was put: above 1 on fast machines, where these differ."""
        return self._decides.rate_of(job_id) if isinstance(self._decides, ChoosesForms) else RATE_ONE

    @property
    def learns(self) -> LearnsTimes | None:
        """The discipline, where it learns how long jobs take."""
        return self._learns

    @property
    def asks(self) -> AsksBatchSystem | None:
        """The discipline, where a batch system is asked for the nodes of each job."""
        return self._asks

    @property
    def free(self) -> int:
        """Nodes that no job and no open reservation holds."""
        return self._pool.free if self._places is None else self._places.free

    @property
    def idle(self) -> int:
        """Free nodes that nobody else has: those of a batch system have users of their own."""
        return self.free if self._asks is None else self._asks.idle

    @property
    def longest_job_ms(self) -> int | None:
        """The longest estimate of a job that can ever run here; None: any, as far as is known."""
        return None if self._asks is None else self._asks.longest_job_ms

    def take_delays(self, now_ms: int) -> list[tuple[int, int | None]]:
        """Return the jobs that a batch system puts off, and when they start, as far as is known (`AsksBatchSystem`)."""
        return [] if self._asks is None else self._asks.take_delays(now_ms)

    def handle(self, now_ms: int, *events: Event) -> list[Command]:
        """Take in what has happened and return what is to be done.

        Parameters
        ----------
        now_ms : int
            The instant; never earlier than in the call before.
        *events
            What happened at this instant. They are taken in the order completions (by job id), cancellations,
            submissions and requests (as given; a tie in the queue goes by job id), whatever their order here. None is a
            wakeup.

        Returns
        -------
        list of Command
            In the order in which they are to be carried out.

        Raises
        ------
        InputError
            If time went backwards, or a job or a request has impossible numbers; nothing has changed then.
        """
        self.check(now_ms, *events)
        return self.act(now_ms, events)

    def act(self, now_ms: int, events: Sequence[Event]) -> list[Command]:
        """Do as `handle`, for a caller that has called `check`."""
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
        self._run_pass(commands)
        if or_never and self._waiting:
            self._refuse_what_waits(or_never, commands)
        if self._moves is not None:
            commands += [self._moved(job_id) for job_id in self._moves.take_moves()]
        if self._rates is not None:
            commands += [ChangeRate(job_id, rate) for job_id, rate in self._rates.take_rates()]
        if self._asks is not None:
            commands += self._leave_overdue(self._asks.overdue(now_ms))
        return commands

    def _asked(self, event: Event) -> list[Command]:
        """Take in a cancellation, or what is asked of reservations."""
        if isinstance(event, JobCancelled):
            return self._cancel(event.job_id)
        if isinstance(event, ReservationRequested):
            return self._reserve(event)
        if isinstance(event, BatchSeen):
            return self._batch_seen(event)
        if isinstance(event, ExperienceEdited):
            if self._learns is not None:
                self._learns.edit_times(event.times)
            return []
        return self._unreserve(event.reservation_id) if isinstance(event, ReservationCancelled) else []

    def _batch_seen(self, event: BatchSeen) -> list[Command]:
        """Take in how the batch system is, and refuse the jobs that it will not have."""
        if self._asks is None:
            return []
        refused = self._asks.batch_seen(self._now_ms, event)
        for job_id, _ in refused:
            self._waiting.discard(job_id)
            self._discipline.withdraw(self._now_ms, job_id)
        return [RefuseJob(job_id, reason) for job_id, reason in refused]

    def check(self, now_ms: int, *events: object) -> None:
        """Raise InputError if `handle` would: time went backwards, or a job or a request has impossible numbers.

        What is no event of a site is passed over.
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
        """Move the limit of a running job that shares its nodes with none: what slows it is not its doing.

        Parameters
        ----------
        now_ms : int
            The instant of the next call of `handle`.
        end_ms : int
            After now.
        """
        if job_id in self._nodes_of and job_id not in self._killed:
            self._discipline.expect_end(now_ms, job_id, end_ms)

    def _run_pass(self, commands: list[Command]) -> None:
        started = self._discipline.run_pass(self._now_ms)
        if self._evicts is not None:
            commands += [self._evicted(eviction) for eviction in self._evicts.take_evictions()]
        for job in started:
            job_id = job.job_id
            self._waiting.discard(job_id)
            if self._places is None:
                nodes, self._nodes_of[job_id] = self._pool.take(job.width)
                commands.append(StartJob(job_id, nodes))
            else:
                nodes, threads = self._places.place_of(job_id)
                self._nodes_of[job_id] = bits_of(nodes)
                commands.append(StartJob(job_id, nodes, threads))

    def _moved(self, job_id: int) -> MoveJob:
        """Take in that a running job has other nodes."""
        assert self._places is not None, "a discipline that moves jobs chooses their nodes"
        nodes, threads = self._places.place_of(job_id)
        self._nodes_of[job_id] = bits_of(nodes)
        return MoveJob(job_id, nodes, threads)

    def _evicted(self, eviction: Eviction) -> EvictJob:
        """Take in that a running job waits again."""
        nodes = self._nodes_of.pop(eviction.job_id)
        if self._places is None:
            self._pool.give_back(nodes)
        self._killed.discard(eviction.job_id)
        self._waiting.add(eviction.job_id)
        return EvictJob(*eviction)

    def _refuse_what_waits(self, or_never: list[Job], commands: list[Command]) -> None:
        """Take out what was to start in this pass or never, and has not; others may start in its stead."""
        late = [job for job in or_never if job.job_id in self._waiting]
        for job in late:
            self._waiting.discard(job.job_id)
            self._discipline.withdraw(self._now_ms, job.job_id)
            reason = f"it needs {nodes_text(job.width)} now; {self.free} are free, and others may go first"
            commands.append(RefuseJob(job.job_id, reason))
        if late:
            self._run_pass(commands)

    def next_wakeup_ms(self) -> int | None:
        """Return when `handle` is to be called though no event comes: planned starts, limits of jobs, reservations."""
        discipline = self._discipline
        next_ms = self._next_limit_ms() if self._killed else discipline.next_end_ms()
        planned_ms = discipline.next_wakeup_ms()
        if next_ms is None or (planned_ms is not None and planned_ms < next_ms):
            next_ms = planned_ms
        for reservation in self._reservations.values():
            # One that is due but not open waits for a job past its limit, whose end will be told.
            begun = reservation.start_ms <= self._now_ms
            change_ms = reservation.start_ms + (reservation.length_ms if begun else 0)
            next_ms = change_ms if next_ms is None else min(next_ms, change_ms)
        return next_ms if next_ms is None or next_ms > self._now_ms else self._now_ms + 1

    def why_paused(self, now_ms: int, job_id: int) -> str:
        """Return for which job a running one stands still as it was evicted; empty if it does not."""
        if self._evicts is None or job_id not in self._nodes_of or not self._evicts.is_paused(job_id):
            return ""
        return self._evicts.why_paused(now_ms, job_id)

    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start, and why not earlier.

        Raises
        ------
        InputError
            If no such job waits here.
        """
        if job_id not in self._waiting:
            state = "runs" if job_id in self._nodes_of else "is not known here"
            raise InputError(f"job {job_id} {state}; only a waiting job has a start to explain")
        # The discipline does not see the nodes that open reservations hold.
        said = self._discipline.explain(now_ms, job_id)
        reason = self._with_rule(said.reason)
        return msgspec.structs.replace(said, reason=reason, nodes=self.nodes, free=self.idle)

    def _with_rule(self, reason: str) -> str:
        """Return a reason, with the rule by which the start may move if the discipline has one."""
        return f"{reason}; {self._decides.why_starts_move()}" if isinstance(self._decides, MovesStarts) else reason

    def quote(self, now_ms: int, job: Job) -> tuple[SiteReason, ExpectedRun | None]:
        """Return how a job that is not here would run if it were submitted now, and why it would not start sooner."""
        ahead = sum(1 for _ in self._discipline.waiting())
        reason, run = why_impossible(job) or self._discipline.why_never(job), None
        if reason is None:
            run = self.expected_run(now_ms, job)
            ahead = ahead if run is None or run.ahead is None else run.ahead
            reason = f"the site has {nodes_text(self.nodes)}" if run is None else self._why_then(now_ms, run, ahead)
        start_ms = None if run is None else run.start_ms
        ends = (running for running in self._discipline.running() if running.end_by_estimate_ms <= (start_ms or 0))
        said = SiteReason(
            nodes=self.nodes,
            free=self.idle,
            start_ms=start_ms,
            ahead=ahead,
            waits_for=() if start_ms in (None, now_ms) else tuple(running.job.job_id for running in ends),
            reason=reason,
        )
        offer = self.sharing_offered(now_ms, job) if run is not None and run.start_ms != now_ms else None
        if offer is not None:
            said = msgspec.structs.replace(said, offer=offer_text(offer.slowdown, offer.beside))
        return said, run

    def _why_then(self, now_ms: int, run: ExpectedRun, ahead: int) -> str:
        """Return why a job that is not here would start then, with so many jobs before it in the queue."""
        free = free_text(self.idle, self.nodes)
        if run.start_ms == now_ms:
            evicting = ", on nodes of jobs that it may evict" if run.evicts else ""
            return f"{free}, and it could start at once{evicting}"
        # Whether others wait in the queue of a batch system the site does not know.
        whose = "" if self.starts_jobs else " of this site"
        jobs = f"{ahead or 'no'} job{'s' * (ahead > 1)}{whose} wait{'s' * (ahead < 2)}"
        reason = f"it needs {nodes_text(run.nodes)}, {free}, and {jobs}"
        return self._with_rule(f"{reason} before it" if run.ahead is not None else reason)

    def aside(self) -> SiteCore:
        """Return what can be asked anything, and leaves no trace of that here; nothing may happen to it.

        Questions use room in the arrays of a core; what is kept of those must not depend on who has asked.
        """
        twin = copy.copy(self)
        twin._use(self._discipline.aside())
        return twin

    @property
    def evicts_jobs(self) -> bool:
        """Whether running jobs may be taken off their nodes for others, and run again later."""
        return self._evicts is not None

    def limit_left_ms(self, now_ms: int, job_id: int) -> int:
        """Return how long a running job may run from now on, at least 1 ms; 0 if it does not run."""
        limits = (one.end_by_estimate_ms for one in self._discipline.running() if one.job.job_id == job_id)
        limit_ms = next(limits, None)
        return 0 if limit_ms is None else max(1, limit_ms - now_ms)

    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return how many nodes a job of this length could have at once, without harm to what has been promised.

        Parameters
        ----------
        now_ms : int
            The instant of the last call of `handle`.
        """
        return min(self.free, self._discipline.startable(now_ms, length_ms))

    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        """Return how a job could start now on nodes shared with running jobs, or None if it could not.

        Parameters
        ----------
        now_ms : int
            The instant of the last call of `handle`.
        job : Job
            A job that is not at this site; its resource needs decide.
        """
        return None if self._places is None else self._places.sharing_offered(now_ms, job)

    def why_never(self, job: Job) -> str | None:
        """Return why a job could not run on the idle site, in one line, or None."""
        return self._discipline.why_never(job)

    def why_no_start(self, job: Job) -> tuple[str, Cause, bool]:
        """Return why a job has no start here, ``never`` if it can never have one, and whether a part of it could."""
        why_never = why_impossible(job) or self.why_never(job)
        if why_never is None:
            return f"the site has {nodes_text(self.nodes)}", "", self.takes_parts
        has_parts = self.takes_parts and job.width > 1 and not job.forms
        part = msgspec.structs.replace(job, width=1, forms=self.as_wide(1), in_step=True)
        return why_never, "never", has_parts and self.why_never(part) is None

    def as_wide(self, width: int) -> tuple[JobForm, ...]:
        """Return the form in which a part of a job on several sites runs that is so wide, where jobs have forms."""
        return (JobForm(width=width),) if self.has_forms else ()

    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job submitted now would start, if estimates held and nothing else came; None: never.

        In a queue that gives no promises it is worked out as if all that wait were planned in the order of the queue.
        """
        return self._discipline.earliest_start_ms(now_ms, width, length_ms)

    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        """Return how a job would run that were submitted now, if all went as expected; None if it never could."""
        if self._expects_runs is not None:
            return self._expects_runs.expected_run(now_ms, job)
        discipline = self._discipline
        if discipline.why_never(job) is not None:
            return None
        start_ms = discipline.earliest_start_ms(now_ms, job.width, job.estimate_ms)
        return None if start_ms is None else ExpectedRun(max(start_ms, now_ms), job.width, job.estimate_ms)

    def nodes_ready(self, now_ms: int) -> list[tuple[int, int]]:
        """Return from when on how many nodes have nothing to run, by the instant; of what waits nothing counts."""
        if self._expects_ends is not None:
            ends = self._expects_ends.expected_ends(now_ms)
            return sorted(Counter(max(end_ms, now_ms) for end_ms in ends).items())
        ready = Counter({now_ms: self.free})
        left = self.nodes - self.free
        for one in self._discipline.running():
            # Jobs that share nodes are wider than these, and so the last of them do not count.
            nodes = min(one.job.width, left)
            ready[max(one.end_by_estimate_ms, now_ms + 1)] += nodes
            left -= nodes
        return sorted((instant, nodes) for instant, nodes in ready.items() if nodes)

    def running(self) -> Iterator[Running]:
        """Yield the running jobs, by their end by estimate."""
        return self._discipline.running()

    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in the order of the queue, with the start that each has been promised, if any.

        For a planning site this is its plan; for a queue only the head has a promise, its shadow time.
        """
        return self._discipline.waiting()

    def occupied(self) -> list[tuple[int, NodeIntervals]]:
        """Return which nodes the running jobs have, by job."""
        return [(job_id, intervals_of(nodes)) for job_id, nodes in sorted(self._nodes_of.items())]

    def progress(self, now_ms: int) -> Iterator[tuple[int, float, int]]:
        """Yield each running job, its speed as a part of full, and its work in ms; none but where limits count work."""
        if isinstance(self._decides, CountsWork):
            for running in self._discipline.running():
                yield running.job.job_id, *self._decides.progress_of(now_ms, running.job.job_id)

    def reservations(self) -> list[ReservationRequested]:
        """Return the accepted reservations that are not over, by start and id."""
        return sorted(self._reservations.values(), key=lambda r: (r.start_ms, r.reservation_id))

    @property
    def state_type(self) -> Any:
        """The type of the state; it goes with the discipline."""
        return with_parts(SiteCoreState, self._discipline)

    def state(self) -> SiteCoreState[Any]:
        """Return all that is known."""
        return SiteCoreState(
            now_ms=self._now_ms,
            waiting=sorted(self._waiting),
            nodes_of={job_id: intervals_of(nodes) for job_id, nodes in self._nodes_of.items()},
            killed=sorted(self._killed),
            reservations=list(self._reservations.values()),
            reserved_nodes=self._reserved_nodes,
            discipline=self._discipline.state(),
        )

    def restore(self, state: SiteCoreState[Any]) -> None:
        """Take in all that another site of the same settings knew; this one is fresh."""
        self._now_ms = state.now_ms
        self._waiting, self._killed = set(state.waiting), set(state.killed)
        self._nodes_of = {job_id: bits_of(nodes) for job_id, nodes in state.nodes_of.items()}
        self._reservations = {each.reservation_id: each for each in state.reservations}
        self._reserved_nodes = state.reserved_nodes
        self._discipline.restore(state.discipline)
        if self._places is None:
            for nodes in (*self._nodes_of.values(), *map(bits_of, self._reserved_nodes.values())):
                self._pool.occupy(nodes)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself: a node held twice, or a job lost."""
        self._pool.check_invariants()
        self._discipline.check_invariants()
        held = [*self._nodes_of.values(), *map(bits_of, self._reserved_nodes.values())]
        n_held = functools.reduce(operator.or_, held, 0).bit_count()
        absent = 0 if self._asks is None else self._asks.absent
        assert n_held == self.nodes - self.free - absent, "a node is lost"
        assert n_held == sum(map(int.bit_count, held)) or self._places is not None, "a node is held twice"
        running = {running.job.job_id for running in self._discipline.running()}
        assert running == set(self._nodes_of), "running jobs and held nodes differ"
        assert {job.job_id for job, _ in self._discipline.waiting()} == self._waiting, "waiting jobs differ"

    def _submit(self, job: Job, commands: list[Command]) -> None:
        job_id, discipline = job.job_id, self._discipline
        if job_id in self._waiting or job_id in self._nodes_of:
            return
        reason = discipline.why_never(job)
        if reason is not None:
            commands.append(RefuseJob(job_id, reason, is_final=True))
            return
        self._waiting.add(job_id)
        discipline.submit(self._now_ms, job)

    def _release(self, event: JobFinished) -> None:
        job_id = event.job_id
        nodes = self._nodes_of.pop(job_id, None)
        if nodes is not None:
            if self._learns is not None and event.succeeded and job_id not in self._killed:
                ended_ms = self._now_ms if event.ended_ms is None else event.ended_ms
                self._learns.learn(min(ended_ms, self._now_ms), job_id)
            self._discipline.ended(self._now_ms, job_id)
            if self._places is None:
                self._pool.give_back(nodes)
            self._killed.discard(job_id)

    def _cancel(self, job_id: int) -> list[Command]:
        if job_id in self._waiting:
            self._waiting.discard(job_id)
            self._discipline.withdraw(self._now_ms, job_id)
        elif job_id in self._nodes_of and job_id not in self._killed:
            self._killed.add(job_id)
            return [KillJob(job_id, "cancelled")]
        return []

    def _next_limit_ms(self) -> int | None:
        """Return the first limit of a job that has not been told to end, where some have been."""
        # By their end by estimate, so the first that has not been told to end is the next that will be.
        limits = (running.end_by_estimate_ms for running in self._discipline.running() if self._may_be_killed(running))
        return next(limits, None)

    def _may_be_killed(self, running: Running) -> bool:
        job_id = running.job.job_id
        return job_id not in self._killed and not (self._evicts is not None and self._evicts.is_paused(job_id))

    def _kill_overdue(self) -> list[Command]:
        """Command the end of the jobs that have reached their limit; a driver that simulates has ended them itself."""
        overdue = []
        for running in self._discipline.running():
            if running.end_by_estimate_ms > self._now_ms:
                break
            if self._may_be_killed(running):
                overdue.append(running.job.job_id)
        self._killed.update(overdue)
        return [KillJob(job_id, "reached its limit") for job_id in overdue]

    def _leave_overdue(self, job_ids: Sequence[int]) -> list[Command]:
        """Command jobs to leave nodes that a batch system is about to take; they run again."""
        leaving = [job_id for job_id in job_ids if job_id not in self._killed]
        self._killed.update(leaving)
        return [RequeueJob(job_id, "the time of its pilot is up") for job_id in leaving]

    def _reserve(self, request: ReservationRequested) -> list[Command]:
        if request.reservation_id in self._reservations:
            return [AcceptReservation(request.reservation_id)]
        if request.width > self.nodes:
            return [RefuseReservation(request.reservation_id, f"the site has {nodes_text(self.nodes)}")]
        fits_ms = None
        if isinstance(self._discipline, KeepsReservations):
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
        assert isinstance(self._discipline, KeepsReservations), "a reservation that no discipline keeps"
        self._discipline.unreserve(self._now_ms, reservation_id)
        self._pool.release(self._reserved_nodes.pop(reservation_id, ()))
        return [CloseReservation(reservation_id)]

    def _close_reservations(self) -> list[Command]:
        over = [r for r in self.reservations() if r.start_ms + r.length_ms <= self._now_ms]
        return [command for reservation in over for command in self._unreserve(reservation.reservation_id)]

    def _open_reservations(self) -> list[Command]:
        commands: list[Command] = []
        for reservation in self.reservations():
            # A job past its limit may still sit on the nodes; then the reservation opens when it has left.
            due = reservation.start_ms <= self._now_ms and reservation.reservation_id not in self._reserved_nodes
            if due and reservation.width <= self._pool.free:
                nodes = self._pool.allocate(reservation.width)
                self._reserved_nodes[reservation.reservation_id] = nodes
                commands.append(OpenReservation(reservation.reservation_id, nodes))
        return commands


def _instant_order(event: Event) -> tuple[int, int]:
    """Return where an event stands among those of one instant; those that are alike keep their order."""
    if isinstance(event, JobFinished):
        return 0, event.job_id
    return (1, 0) if isinstance(event, (JobCancelled, ReservationCancelled)) else (2, 0)
