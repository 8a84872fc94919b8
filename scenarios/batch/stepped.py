"""Simulate a site event by event with a `SiteCore`, for cases that the compiled loop does not support.

Jobs become messages to the core, and their work progresses in virtual time (`RunningWork`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError
from gridweave.grid.sends import QUIET, JobData, Sends
from gridweave.jit import prepared
from gridweave.netmodel.communication import PATTERNS, Communication
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.workload.columns import RESOURCE_COLUMNS
from gridweave.scenarios.workload.needs import needs_of
from gridweave.scenarios.workload.site_events import Request, ReservationAnswer
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.site.disciplines.dictionary import traits_of
from gridweave.site.disciplines.entry import Policy
from gridweave.site.job import Job, Resources, TaskGroup, needs_of_groups
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.work import RATE_ONE, Ends, begin_work, change_rate, no_ends, no_work, stop_work
from gridweave.site.messages import (
    AcceptReservation,
    ChangeRate,
    Command,
    Event,
    EvictJob,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    RefuseJob,
    RefuseReservation,
    ReservationRequested,
    StartJob,
)
from gridweave.site.scheduler.core import SiteCore

_Struct = TypeVar("_Struct")


def job_messages(workload: Workload) -> list[Job]:
    """Convert a workload's jobs to the messages that a user would submit.

    Returns
    -------
    list of Job
        The jobs, with `Resources` if the workload has the columns of
        `gridweave.scenarios.workload.columns.assign_resources` or of `gridweave.scenarios.workload.needs.with_needs`.
    """
    columns = {name: values.tolist() for name, values in workload.columns.items()}
    fields = {name: getattr(workload, name).tolist() for name in ("job_id", "width", "estimate_ms")}
    fields |= {name: columns[name] for name in ("user", "job_class", "weight") if name in columns}
    if "priority" in columns:
        fields["priority"] = [float(priority) for priority in columns["priority"]]
    if "chunk" in columns:
        chunks = (*workload.chunks, msgspec.UNSET)  # -1: whole nodes
        fields["chunk"] = [chunks[number] for number in columns["chunk"]]
    resources = _resources(workload, columns)
    return _structs(Job, fields if resources is None else {**fields, "resources": resources})


def sends_of(workload: Workload) -> list[Sends]:
    """Return each job's messages and transfers between sites, from the columns of `communication_of` and `data_of`.

    Missing columns mean no messages or no data. Raise OptionError if a value is invalid.
    """
    columns = {name: values.tolist() for name, values in workload.columns.items()}
    communications, data_of_jobs = [QUIET] * len(workload), [JobData()] * len(workload)
    if {"pattern", "communication_fraction", "message_bytes"} <= columns.keys():
        names = list(PATTERNS)
        fields = {
            "fraction": columns["communication_fraction"],
            "message_bytes": [float(n_bytes) for n_bytes in columns["message_bytes"]],
            "pattern": [names[pattern] for pattern in columns["pattern"]],
        }
        communications = _structs(Communication, fields)
    pairs = ((f"{what}_bytes", f"{what}_site") for what in ("input", "output"))
    names_present = [name for pair in pairs if columns.keys() >= set(pair) for name in pair]
    if names_present:
        data_of_jobs = _structs(JobData, {name: columns[name] for name in names_present})
    return [Sends(communication, data) for communication, data in zip(communications, data_of_jobs, strict=True)]


def _structs(kind: Callable[..., _Struct], fields: Mapping[str, Sequence[object]]) -> list[_Struct]:
    """Build a struct for each job from columns that are named after the struct's fields."""
    return [kind(**dict(zip(fields, values, strict=True))) for values in zip(*fields.values(), strict=True)]


def _resources(workload: Workload, columns: dict[str, list[Any]]) -> list[Resources] | None:
    if "cpu_need" in columns:
        return _needs(workload)
    if not all(name in columns for name in RESOURCE_COLUMNS[:4]):
        return None
    fields = ("cpu", "network", "disk", "memory", "cpu_kind", "cache_bytes", "message_bytes")
    names = zip(fields, (*RESOURCE_COLUMNS, "message_bytes"), strict=True)
    return _structs(Resources, {field: columns[name] for field, name in names if name in columns})


def _needs(workload: Workload) -> list[Resources]:
    """Return each job's resource needs, by groups of tasks."""
    groups: list[list[TaskGroup]] = [[] for _ in range(len(workload))]
    for row, tasks, cpu, memory in zip(*(column.tolist() for column in needs_of(workload)), strict=True):
        groups[row].append(TaskGroup(tasks=tasks, cpu_need=cpu, memory=memory))
    return [
        needs_of_groups(task_groups)
        if len(task_groups) > 1
        else Resources(cpu_need=task_groups[0].cpu_need, memory=task_groups[0].memory)
        for task_groups in groups
    ]


# Jobs to simulate between progress reports: about a tenth of a second of work.
_SLICE = 1_000


class Stepped(NamedTuple):
    """The outcome of a workload's jobs.

    Attributes
    ----------
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        `NEVER` for jobs that did not start.
    refused : mapping from int to str
        Reasons why jobs could never start, by job id.
    answers : tuple of ReservationAnswer
        Answers to the reservation requests, in the order of the requests.
    columns : mapping from str to numpy.ndarray, shape (n,)
        Additional results of the discipline per job; 0 for jobs that did not start.
    totals : mapping from str to float
        Counters of the discipline.
    own : object
        Other results of the discipline.
    """

    start_ms: IntArray
    end_ms: IntArray
    refused: Mapping[int, str]
    answers: tuple[ReservationAnswer, ...]
    columns: Mapping[str, npt.NDArray[Any]]
    totals: Mapping[str, float]
    own: Any = None


def run_core(
    workload: Workload,
    nodes: int,
    policy: Policy,
    week: WeekClock = FROM_MONDAY,
    reservations: Sequence[Request] = (),
    *,
    report: Callable[[int, int], None] | None = None,
    check: bool = False,
) -> Stepped:
    """Simulate a workload by passing every event to a `SiteCore`.

    Parameters
    ----------
    nodes : int
        Nodes of the site.
    week : WeekClock
        The site's local time of the week.
    report : callable, optional
        Called from time to time, and at the end, with the number of jobs submitted so far and the number of jobs that
        are not refused.
    check : bool
        Whether to check the core's invariants after every step.

    Raises
    ------
    InputError
        If the discipline leaves jobs waiting forever.
    """
    site = _SteppedSite(SiteCore(nodes, policy, week=week), workload, policy, reservations)
    reported = 0
    while (now_ms := site.next_instant_ms()) is not None:
        site.step(now_ms)
        if check:
            site.core.check_invariants()
        if report is not None and site.n_submitted >= reported + _SLICE:
            reported = site.n_submitted
            report(reported, site.to_simulate)
    left = [job.job_id for job, _ in site.core.waiting()]
    if left:
        waiting = f"{len(left)} jobs waiting on an idle site, the first job {left[0]}"
        raise InputError(f"the discipline {policy.discipline} leaves {waiting}")
    if report is not None:
        report(site.n_submitted, site.to_simulate)
    return site.outcome()


class _SteppedSite:
    """A site core, its future events, and the outcome of the jobs so far."""

    def __init__(self, core: SiteCore, workload: Workload, policy: Policy, reservations: Sequence[Request]) -> None:
        self.core = core
        self._submitted = 0
        self._start_ms, self._end_ms = np.full((2, len(workload)), NEVER, np.int64)
        self._refused: dict[int, str] = {}
        jobs = job_messages(workload)
        self.to_simulate = sum(core.why_never(job) is None for job in jobs)
        self._arrivals = deque(_arrivals(workload, jobs, reservations))
        self._row_of = {job_id: row for row, job_id in enumerate(workload.job_id.tolist())}
        self._run_ms = workload.run_ms.tolist()
        self._running = RunningWork()
        self._asked = {request.reservation_id: (when_ms, request) for when_ms, request in reservations}
        self._answers: dict[int, ReservationAnswer] = {}
        self._columns = {name: np.zeros(len(workload)) for name in traits_of(policy).columns}
        self._switches: list[tuple[int, int]] = []

    @property
    def n_submitted(self) -> int:
        """Number of jobs submitted and not refused."""
        return self._submitted - len(self._refused)

    def next_instant_ms(self) -> int | None:
        """Return the time of the next event, or None."""
        self._pass_over_cancelled()
        instants = [self._running.next_end_ms(), self.core.next_wakeup_ms()]
        instants += [when_ms for when_ms, _ in itertools.islice(self._arrivals, 1)]
        return min((when_ms for when_ms in instants if when_ms is not None), default=None)

    def step(self, now_ms: int) -> None:
        """Pass the events due now to the core, and carry out its commands."""
        events: list[Event] = []
        for job_id in self._running.ended(now_ms):
            row = self._row_of[job_id]
            self._end_ms[row] = now_ms
            if self._columns:
                for column, value in zip(self._columns.values(), self.core.figures(now_ms, job_id), strict=True):
                    column[row] = value
            events.append(JobFinished(job_id))
        while self._arrivals and self._arrivals[0][0] == now_ms:
            event = self._arrivals.popleft()[1]
            if not self._is_too_late(event):
                events.append(event)
            self._submitted += isinstance(event, JobSubmitted)
            self._pass_over_cancelled()
        for command in self.core.handle(now_ms, *events):
            self._carry_out(now_ms, command)
        if self._columns:
            self._switches += self.core.switches_after(len(self._switches))

    def outcome(self) -> Stepped:
        """Return the outcome of the jobs and the answers to requests."""
        answers = tuple(self._answers[reservation_id] for reservation_id in self._asked)
        own = self.core.report(self._switches, self._columns, self._start_ms != NEVER)
        totals = dict(self.core.totals())
        return Stepped(self._start_ms, self._end_ms, self._refused, answers, self._columns, totals, own)

    def _pass_over_cancelled(self) -> None:
        """Skip cancellations of jobs that were refused, or that have started and cannot return to the queue."""
        while self._arrivals and self._is_too_late(event := self._arrivals[0][1]):
            assert isinstance(event, JobCancelled), "only cancellations can be too late"
            if self.core.traits.evicts and self._end_ms[self._row_of[event.job_id]] == NEVER:
                return  # it may wait again by then
            self._arrivals.popleft()

    def _is_too_late(self, event: Event) -> bool:
        """Whether an event is the cancellation of a job that has started or was refused."""
        if not isinstance(event, JobCancelled):
            return False
        return self._start_ms[self._row_of[event.job_id]] != NEVER or event.job_id in self._refused

    def _carry_out(self, now_ms: int, command: Command) -> None:
        if isinstance(command, StartJob):
            row = self._row_of[command.job_id]
            self._start_ms[row] = now_ms
            self._running.begin(now_ms, command.job_id, self._run_ms[row])
        elif isinstance(command, EvictJob):
            if command.keeps_work:
                self._run_ms[self._row_of[command.job_id]] = self._running.left_ms(now_ms, command.job_id)
            self._running.leave(command.job_id)
            self._start_ms[self._row_of[command.job_id]] = NEVER
        elif isinstance(command, ChangeRate):
            self._running.change_rate(now_ms, command.job_id, command.rate)
        elif isinstance(command, RefuseJob):
            self._refused[command.job_id] = command.reason
        elif isinstance(command, AcceptReservation | RefuseReservation):
            request = self._asked[command.reservation_id]
            self._answers[command.reservation_id] = _answer(*request, command)


def _answer(
    when_ms: int, request: ReservationRequested, command: AcceptReservation | RefuseReservation
) -> ReservationAnswer:
    refused = command if isinstance(command, RefuseReservation) else None
    return ReservationAnswer(
        reservation_id=request.reservation_id,
        requested_ms=when_ms,
        start_ms=request.start_ms,
        length_ms=request.length_ms,
        width=request.width,
        accepted=refused is None,
        earliest_ms=refused.earliest_start_ms if refused else None,
        reason=refused.reason if refused else None,
    )


def _arrivals(workload: Workload, jobs: list[Job], reservations: Sequence[Request]) -> list[tuple[int, Event]]:
    """Return submissions, reservation requests and cancellations, sorted by time; ties: in this order."""
    arrivals: list[tuple[int, Event]] = [
        (when_ms, JobSubmitted(job)) for when_ms, job in zip(workload.submit_ms.tolist(), jobs, strict=True)
    ]
    arrivals.extend(reservations)
    if "cancel_ms" in workload.columns:
        cancelled = zip(workload.columns["cancel_ms"].tolist(), workload.job_id.tolist(), strict=True)
        arrivals += [(when_ms, JobCancelled(job_id)) for when_ms, job_id in cancelled if when_ms >= 0]
    return sorted(arrivals, key=lambda arrival: arrival[0])


_FIRST_CAPACITY = 64


class RunningWork:
    """Running jobs in virtual time, each with a rate that may change.

    Examples
    --------
    >>> running = RunningWork()
    >>> running.begin(0, 7, 100)
    >>> running.change_rate(50, 7, RATE_ONE // 2)
    >>> running.next_end_ms(), running.ended(150)
    (150, [7])
    """

    def __init__(self) -> None:
        self._work, self._ends = no_work(_FIRST_CAPACITY), no_ends(_FIRST_CAPACITY)
        self._rows: dict[int, int] = {}
        self._unused = list(range(_FIRST_CAPACITY))
        self._begin = prepared(begin_work, self._ends, self._work, 0, 0, 0, 0, 0)
        self._change = prepared(change_rate, self._ends, self._work, 0, 0, 0)
        self._stop = prepared(stop_work, self._ends, self._work, 0)

    def begin(self, now_ms: int, job_id: int, length_ms: int, rate: int = RATE_ONE) -> None:
        """Start a job whose work takes ``length_ms`` at rate 1."""
        if not self._unused:
            self._grow()
        self._rows[job_id] = row = self._unused.pop()
        self._begin(self._ends, self._work, row, job_id, length_ms * RATE_ONE, rate, now_ms)

    def change_rate(self, now_ms: int, job_id: int, rate: int) -> None:
        """Change the rate of a running job; 0 pauses it."""
        self._change(self._ends, self._work, self._rows[job_id], rate, now_ms)

    def left_ms(self, now_ms: int, job_id: int) -> int:
        """Return the remaining work of a job in milliseconds at rate 1, rounded up."""
        row = self._work[self._rows[job_id]]
        left = int(row["left"]) - int(row["rate"]) * (now_ms - int(row["since_ms"]))
        return max(0, -(-left // RATE_ONE))

    def leave(self, job_id: int) -> None:
        """Remove a job before it ends."""
        row = self._rows.pop(job_id)
        self._stop(self._ends, self._work, row)
        self._unused.append(row)

    def next_end_ms(self) -> int | None:
        """Return the time at which the next job ends, or None."""
        return int(self._ends.heap[0]["end_ms"]) if self._ends.size[0] else None

    def ended(self, now_ms: int) -> list[int]:
        """Remove the jobs that end at ``now_ms``; return their ids in ascending order."""
        ended = []
        while self.next_end_ms() == now_ms:
            ended.append(int(self._ends.heap[0]["job_id"]))
            self.leave(ended[-1])
        return ended

    def _grow(self) -> None:
        """Double the capacity."""
        capacity = len(self._work)
        self._unused = list(range(capacity, 2 * capacity))
        self._work = np.append(self._work, no_work(capacity))
        self._ends = Ends(np.append(self._ends.heap, no_ends(capacity).heap), self._ends.size)
