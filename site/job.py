"""Jobs: what runs, what it needs, who asks for it, and what has become of it.

`Job` is what a core knows; `JobRequest` is what a user asks for, and `JobRecord` what becomes of that. What no job and
no request may be is said here too, wherever it comes from: numbers that no machine has and no calendar reaches.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import inf, isfinite
from typing import Literal, get_args

import msgspec

from gridweave.errors import InputError
from gridweave.site.elements import Element, Ranges, elements_problem, ranges_problem, without
from gridweave.site.launch import (
    DEFAULT_GRACE_MS,
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Call,
    Launch,
    LimitSignal,
    NodePart,
    NodeSharing,
    Ran,
    Rank,
    SplitCost,
    Used,
    launch_problem,
)
from gridweave.site.lifecycle import JobState

# Messages hold no cycles, so the garbage collector need not look at them (``gc=False``).

MAX_WIDTH = 10**7
MAX_TIME_MS = 10**14
"""A value beyond these (ten million nodes, three thousand years) is a broken record, not a big machine."""

NodeIntervals = tuple[tuple[int, int], ...]
"""Nodes as half-open intervals of their numbers, ascending; where tasks share nodes, group of tasks by group."""


class TaskGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tasks of a job that are alike, for sites that give fractions of nodes (docs/fractional.md, "Needs").

    Attributes
    ----------
    tasks : int
        How many.
    cpu_need, memory : float
        What one of them needs, as in `Resources`.
    """

    tasks: int
    cpu_need: float = 1.0
    memory: float = 1.0


class Resources(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a job needs beside nodes, for sites whose nodes are shared (docs/sharing.md, "The fractions of a job").

    Attributes
    ----------
    cpu, network, disk : float
        Parts of its run time; they sum to 1.
    memory : float
        Part of a node's, above 0 and at most 1.
    cpu_kind : int
        Of its work on the CPU: 0 integer, 1 floating point, or as the site's table numbers them.
    cores : int
        On how many cores of each of its nodes it runs.
    cache_bytes : int
        Data that it uses in the cache; for measured slowdowns.
    message_bytes : int, optional
        Size of its messages; for measured slowdowns. Large ones, if it is not known.
    cpu_need : float
        Part of a node's CPU with which one of its tasks runs at full speed, above 0 and at most 1; for sites that give
        fractions of nodes, where ``memory`` is that of a task, too.
    groups : tuple of TaskGroup
        Where its tasks differ: all of them, the lowest ranks first. ``cpu_need`` and ``memory`` are then those of the
        largest, which is what a site takes that makes no difference between tasks.
    """

    cpu: float = 1.0
    network: float = 0.0
    disk: float = 0.0
    memory: float = 1.0
    cpu_kind: int = 0
    cores: int = 1
    cache_bytes: int = 0
    message_bytes: int | None = None
    cpu_need: float = 1.0
    groups: tuple[TaskGroup, ...] = ()


def needs_of_groups(groups: Sequence[TaskGroup]) -> Resources:
    """Return what a job needs whose tasks differ."""
    cpu_need, memory = max(group.cpu_need for group in groups), max(group.memory for group in groups)
    return Resources(cpu_need=cpu_need, memory=memory, groups=tuple(groups))


def task_groups(needs: Resources | None, width: int) -> tuple[TaskGroup, ...]:
    """Return the groups of the tasks of a job, the lowest ranks first; all of a node where nothing is known.

    Of a part of a job it is not known which tasks it has: all are as large as the largest.

    Examples
    --------
    >>> needs = needs_of_groups([TaskGroup(tasks=1, memory=0.5), TaskGroup(tasks=3, memory=0.1)])
    >>> [(group.tasks, group.memory) for group in task_groups(needs, 4)], task_groups(needs, 2)[0].memory
    ([(1, 0.5), (3, 0.1)], 0.5)
    """
    needs = needs or Resources()
    if sum(group.tasks for group in needs.groups) == width:
        return needs.groups
    return (TaskGroup(tasks=width, cpu_need=needs.cpu_need, memory=needs.memory),)


def part_of_nodes(groups: Sequence[TaskGroup], numbers: Sequence[int]) -> NodePart:
    """Return what the tasks of these numbers, from 0 on, need together, in nodes.

    Examples
    --------
    >>> part_of_nodes([TaskGroup(tasks=1, memory=0.5), TaskGroup(tasks=3, cpu_need=0.5, memory=0.1)], [0, 2])
    NodePart(cpu=1.5, memory=0.6)
    """
    ends = list(accumulate(group.tasks for group in groups))
    counts = Counter(bisect_right(ends, number) for number in numbers)
    cpu = sum(group.cpu_need * counts[place] for place, group in enumerate(groups))
    return NodePart(cpu, sum(group.memory * counts[place] for place, group in enumerate(groups)))


class JobForm(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One way in which a job can run, for sites whose machines differ (docs/heterogeneous.md, "Forms").

    Attributes
    ----------
    on : tuple of str
        Names or labels of classes of machines, any of which will do; all classes, if there are none.
    width : int
        On how many machines of one cluster; 1: on a machine alone.
    speed : float
        How many times as fast as its limit says the work is done, on machines of speed 1.
    cores, memory_mb : int
        What each of its machines must have.
    argv : tuple of str
        Its command and the arguments of that, in place of those of the job; empty: those of the job.
    """

    on: tuple[str, ...] = ()
    width: int = 1
    speed: float = 1.0
    cores: int = 1
    memory_mb: int = 0
    argv: tuple[str, ...] = ()


IfEvicted = Literal["", "never", "restart", "checkpoint"]
"""What becomes of a job where running jobs are evicted."""


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a site knows of a job; its run time is known to nobody before it has ended.

    Attributes
    ----------
    job_id : int
        Unique, >= 0.
    width : int
        Nodes.
    estimate_ms : int
        The limit at which it is killed.
    priority : float
        For the order ``priority``.
    weight : float
        For the orders ``weight`` and ``smith``; above 0.
    behind : bool
        Whether it stands behind all jobs of which this is not said, whatever the order of the queue; among themselves
        such jobs stand in the order of submission.
    resources, assumed : Resources, optional
        What it says that it needs; what such jobs need, if it says nothing (for nodes shared by hardware threads).
    user_name, class_name : str
        Of the user and the class, where these have names; empty otherwise.
    forms : tuple of JobForm
        In which it can run where jobs have forms; if there are none, in those that the site has for its class.
    in_step : bool
        Whether it is a part of a job on several sites: then it works at their common rate, and on no slower machine.
    if_evicted : str
        What becomes of it where running jobs are evicted: it never is (``never``), begins again from zero
        (``restart``), or goes on from where it was (``checkpoint``); as the site says, if it is empty.
    evictions : int
        How often it has been evicted before it came here: the count that raises its level goes on from there.
    """

    job_id: int
    width: int
    estimate_ms: int
    user: int | None = None
    job_class: int | None = None
    priority: float = 0.0
    weight: float = 1.0
    behind: bool = False
    resources: Resources | None = None
    user_name: str = ""
    class_name: str = ""
    forms: tuple[JobForm, ...] = ()
    in_step: bool = False
    if_evicted: IfEvicted = ""
    evictions: int = 0
    assumed: Resources | None = None

    @property
    def needs_telling(self) -> bool:
        """Whether a site is told more of it for a quote than its width and its limit (docs/control.md, "Quotes").

        Of priority 0 it is not: where that is above the lowest level, it is quoted as of the lowest all the same.
        """
        has_class = self.job_class is not None or bool(self.class_name)
        return bool(self.forms or self.evictions) or has_class or self.priority != 0


class Running(msgspec.Struct, frozen=True, gc=False):
    """A running job, when it started, and when it ends by estimate."""

    job: Job
    start_ms: int
    end_by_estimate_ms: int


MAX_ID = 2**63 - 1

ASKED_ID = MAX_ID
"""The id of a job that is thought of to answer a question: of those of an instant it is the last."""

SUM_TOLERANCE = 1e-6
"""How far the fractions of CPU, network and disk of a job may be from summing to 1 (docs/sharing.md)."""


def why_impossible(job: Job) -> str | None:
    """Return why a job can be none, or None if it can."""
    if not 0 <= job.job_id <= MAX_ID:
        return f"job_id is not within 0 to {MAX_ID}"
    if not 1 <= job.width <= MAX_WIDTH:
        return f"width {job.width} is not within 1 to {MAX_WIDTH}"
    if not 1 <= job.estimate_ms <= MAX_TIME_MS:
        return f"estimate_ms {job.estimate_ms} is not within 1 to {MAX_TIME_MS}"
    if not (0 < job.weight < inf and isfinite(job.priority)):
        return f"weight {job.weight} is not above 0, or priority {job.priority} no number"
    return why_impossible_needs(job.resources) if job.resources is not None else None


def why_impossible_needs(needs: Resources) -> str | None:
    """Return why no job can need that beside its nodes, or None if one can (docs/sharing.md)."""
    fractions = needs.cpu, needs.network, needs.disk
    if not all(0 <= fraction <= 1 for fraction in fractions) or not abs(sum(fractions) - 1) <= SUM_TOLERANCE:
        return f"fractions {fractions} of CPU, network and disk are not parts of its run time that sum to 1"
    parts: list[Resources | TaskGroup] = [needs, *needs.groups]
    for each in parts:
        if not 0 < each.cpu_need <= 1:
            return f"CPU need {each.cpu_need} is not above 0 and up to 1, a node's"
        if not 0 < each.memory <= 1:
            return f"memory {each.memory} is not above 0 and up to 1, a node's"
        if not each.memory <= needs.memory:
            return f"memory {needs.memory} is less than the {each.memory} of one of its tasks"
    if not all(1 <= group.tasks <= MAX_WIDTH for group in needs.groups):
        return f"a group of tasks has none, or more than {MAX_WIDTH}"
    if not (1 <= needs.cores <= MAX_WIDTH and 0 <= needs.cpu_kind <= MAX_WIDTH and needs.cache_bytes >= 0):
        return f"cores {needs.cores}, CPU kind {needs.cpu_kind} or cache of {needs.cache_bytes} bytes is not possible"
    if needs.message_bytes is not None and needs.message_bytes < 0:
        return f"messages of {needs.message_bytes} bytes are not possible"
    return None


def check_job(job: Job) -> None:
    """Raise InputError if a job can be none."""
    problem = why_impossible(job)
    if problem is not None:
        raise InputError(f"job {job.job_id}: {problem}")


Where = Literal["each-node", "first-node"]
"""One rank on each node of a fragment, or one on its first node, as a batch script has it."""

OWN_IDS = 10**12
"""A site numbers the jobs of its own users from so much times its place, counted from 1; the grid's stay below."""

MOST_GRACE_MS = 300_000
"""So long may a job take at most to end by itself once it was told to."""

MOST_OUTPUT_BYTES = 1 << 30
"""So much may be kept of the output of a rank at most."""

MOST_PRIORITY = 1_000_000_000
"""The highest priority of a job of a live grid; the lowest is as far below 0."""

MOST_TEXT_BYTES = (128 << 10) - 1
"""The longest argument or ``NAME=value`` that Linux hands to a program (execve(2), MAX_ARG_STRLEN)."""

MOST_TEXTS_BYTES = 1 << 20
"""Command and environment of a job together; Linux takes 2 MiB, with what the machine adds."""

MOST_AFTER = 1_000
"""A job waits for so many others at most."""

MOST_NAME = 200
"""Characters of the name of an array at most, and of an option for a batch system."""

MOST_BATCH_OPTIONS = 20
"""So many options for a batch system may a job have."""

_BATCH_OPTION = re.compile(r"[a-z][a-z-]*=.")

MOST_FORMS = 20
"""A job has so many forms at most."""

MOST_SPEED = 10_000.0
"""So many times as fast as another may a machine be, or a job in one of its forms."""

JobOutcome = Literal["finished", "failed", "limit", "cancelled"]
"""How a job has ended: all its ranks well, one of them not, at its limit, or by a wish."""

OUTCOMES: tuple[JobOutcome, ...] = get_args(JobOutcome)

WishKind = Literal["cancel", "kill", "signal", "requeue", "hold", "release"]
"""What a user wants of a job: that it ends or does not start, that it ends at once, that its processes get a signal,
that it saves what it has done, ends, and runs again, that it does not start for now, or that it may again."""


SignalName = Literal["HUP", "INT", "QUIT", "ABRT", "KILL", "USR1", "USR2", "ALRM", "TERM", "CONT", "WINCH"]
"""The signals that the processes of a job may be sent: those of signal(7) that end a program or tell it something."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What a job runs.

    Attributes
    ----------
    argv : tuple of str
        The command and its arguments, if `call` is not given.
    call : Call, optional
        The Python callable to run instead.
    working_directory : str, optional
        As for `gridweave.site.launch.Launch`.
    ranks : str
        See `Where`.
    if_lost : str
        What becomes of the job when a machine failed under it: ``requeue`` or ``fail``.
    checkpoint_signal : str
        At which signal its processes save what they have done and end, to go on from there when it runs again; None: it
        does not say that it can.
    end_on_failure : bool
        Whether all ranks are ended when one has failed.
    limit_signal : LimitSignal, optional
        What its processes are sent ahead of its limit.
    """

    argv: tuple[str, ...] = ()
    call: Call | None = None
    environment: dict[str, str] = {}
    working_directory: str | None = None
    ranks: Where = "each-node"
    if_lost: Literal["requeue", "fail"] = "requeue"
    checkpoint_signal: SignalName | None = None
    end_on_failure: bool = True
    grace_ms: int = DEFAULT_GRACE_MS
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    limit_signal: LimitSignal | None = None

    @property
    def can_be_moved(self) -> bool:
        """Whether it says that it saves what it has done, and goes on from there elsewhere."""
        return self.checkpoint_signal is not None and self.if_lost == "requeue"

    @property
    def if_evicted(self) -> IfEvicted:
        """What becomes of it where running jobs are evicted: what must not begin again never is."""
        if self.if_lost == "fail":
            return "never"
        return "checkpoint" if self.can_be_moved else "restart"


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What a job sends over the links between sites, as its user says it (docs/netmodel.md, "What a job sends").

    Attributes
    ----------
    pattern : str
        Who sends to whom: ``none``, ``all-to-all``, ``ring``, ``2d-neighbours``, ``3d-neighbours``, ``master-workers``.
    fraction : float
        Part of its run time on one site that it spends sending and waiting for messages.
    communication : str
        In place of pattern and numbers: a profile such as ``light``, or ``fraction=0.2,pattern=ring,message=1MB``.
        Without it and a pattern, the job sends what the grid takes such jobs to send.
    """

    pattern: str = ""
    fraction: float = 0.0
    message_bytes: float = 0.0
    input_bytes: int = 0
    input_site: str = ""  # where that lies
    output_bytes: int = 0
    output_site: str = ""
    communication: str = ""


class After(msgspec.Struct, frozen=True, kw_only=True):
    """What a job waits for before it goes into the queue: another job of the same grid, or of the same site.

    Attributes
    ----------
    has : str
        ``started``: has its nodes; ``ended``, however; ``finished``; or ``failed``: ended otherwise. If that can happen
        no more, the job is cancelled.
    group : int
        Above 0: the conditions ``failed`` of this number are one, true when all jobs have ended and one has failed.
    """

    job_id: int
    has: Literal["started", "ended", "finished", "failed"] = "finished"
    group: int = 0


class ArrayPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of an array of alike jobs a job is; its ranks get the index as ``GRIDWEAVE_ARRAY_INDEX``.

    Attributes
    ----------
    name : str
        Of the array, unique among those of its user.
    at_once : int
        So many jobs of the array may be out of ``held`` and not over at one time; 0: all.
    elements : tuple of (int, int)
        Of a packed array: the elements that run inside this job, one after the other on each of its nodes. Their first
        is the index of the job.
    """

    name: str
    index: int
    at_once: int = 0
    elements: Ranges = ()


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asks for.

    Attributes
    ----------
    limit_ms : int
        How long it may run; by which it is planned.
    priority, weight : float
        As for `gridweave.site.messages.Job`.
    sensitivity : float
        To the overhead of a split, >= 0, where the grid knows of no links.
    traffic : Traffic, optional
        Counts where it knows of some.
    hold : bool
        Whether it is kept from the queue until it is released.
    after : tuple of After
        All of these must have come true before it goes into the queue.
    account : str
        Whose node-hours it uses; the maxima of an account count for all its users together.
    batch_options : tuple of str
        Options for the batch system that its nodes belong to, each ``name=value``; only a site that passes all of them
        on takes the job.
    forms : tuple of JobForm
        Of which the site chooses one; then `nodes` is the width of the widest. Only a site whose machines differ takes
        such a job.
    """

    program: Program
    nodes: int = 1
    limit_ms: int
    name: str = ""
    user: str = ""
    job_class: str = ""
    priority: float = 0.0
    weight: float = 1.0
    resources: Resources | None = None
    sensitivity: float = 1.0
    traffic: Traffic | None = None
    hold: bool = False
    after: tuple[After, ...] = ()
    array: ArrayPlace | None = None
    account: str = ""
    batch_options: tuple[str, ...] = ()
    forms: tuple[JobForm, ...] = ()


class DescribeJob(msgspec.Struct, frozen=True, tag="DescribeJob"):
    """Tell a site what a job of the grid runs, ahead of the request for its nodes."""

    job_id: int
    attempt: int
    request: JobRequest
    limit_ms: int  # how long it may run as it was placed
    # The number of this site's first rank, and how many ranks the whole job has.
    first_rank: int
    size: int
    sites: tuple[str, ...]  # all its sites; rank 0 is on the first
    elements: Ranges | None = None  # of a packed array: those of the whole job that have not ended
    starts: int = 0  # how often it has started before


class FragmentReport(msgspec.Struct, frozen=True, tag="FragmentReport"):
    """Tell the grid how a fragment ended, ahead of the message that it has."""

    job_id: int
    attempt: int
    reason: str  # why it ended as it did, in one line
    # Of each rank that did not end well: its number, its exit code and the signal that ended it; 20 at most.
    exit_codes: tuple[tuple[int, int | None, int | None], ...]
    used: Used
    machines: tuple[str, ...]  # the machines that have its output
    elements: tuple[Element, ...] = ()  # of a packed array: those that ended
    interrupted: tuple[int, ...] = ()  # ... and those that were begun, and did not end
    ran_ms: Ran = None  # when the last of its processes began, and when the last ended


class JobRecord(msgspec.Struct, kw_only=True):
    """What is known of a job of a user.

    Attributes
    ----------
    state : str
        See `JobState`.
    start_ms, end_ms : int, optional
        Of the last attempt.
    attempt : int
        The number of its last try: tries that a site refused, or that not all of its sites began, count.
    starts : int
        How often it has started, on all its sites.
    places : tuple of (str, int)
        Sites and nodes of its last attempt.
    outcome : str
        Once it has ended: ``finished``, ``failed``, ``limit`` or ``cancelled``.
    exit_codes : tuple
        As in `FragmentReport`.
    elements : tuple of Element
        Of a packed array: those that have ended, of all attempts; known when an attempt has.
    interrupted : tuple of int
        The elements that a failed machine interrupted, or may have, once for each time; they run again.
    placed_ms : int, optional
        When the grid placed its last attempt.
    ran_ms : (int, int), optional
        Of its last attempt: when the last of its processes began, and when the last ended, by the clocks of machines.
    split, sharing : optional
        What its last attempt costs: on several sites, or on nodes that it shares with others.
    """

    job_id: int
    request: JobRequest
    state: JobState = "waiting"
    submit_ms: int
    start_ms: int | None = None
    end_ms: int | None = None
    attempt: int = 0
    starts: int = 0
    places: tuple[tuple[str, int], ...] = ()
    outcome: str = ""
    reason: str = ""
    exit_codes: tuple[tuple[int, int | None, int | None], ...] = ()
    used: Used = Used()
    machines: tuple[str, ...] = ()
    elements: tuple[Element, ...] = ()
    interrupted: tuple[int, ...] = ()
    placed_ms: int | None = None
    ran_ms: Ran = None
    split: SplitCost | None = None
    sharing: NodeSharing | None = None

    def judged(self, outcome: str, reason: str) -> tuple[str, str]:
        """Return how the whole ended, and why: elements of earlier attempts that failed count as well."""
        problem = elements_problem(self.elements)
        return ("failed", problem) if problem and outcome in ("finished", "failed") else (outcome, reason)

    @property
    def can_be_requeued(self) -> bool:
        """Whether it runs, and may be begun anew."""
        return self.state == "running" and self.request.program.if_lost == "requeue"

    def left(self) -> Ranges | None:
        """Return the elements of a packed array that have not ended, None if it is none."""
        array = self.request.array
        if array is None or not array.elements:
            return None
        return without(array.elements, {element.index for element in self.elements})


class Accepted(msgspec.Struct, frozen=True, tag="Accepted"):
    """Tell the user that the job was taken in, under which number."""

    key: str
    job_id: int


class Declined(msgspec.Struct, frozen=True, tag="Declined"):
    """Tell the user that the job was not taken in, and why."""

    key: str
    reason: str


class Noted(msgspec.Struct, frozen=True, tag="Noted"):
    """Write an event into the story of a job."""

    job_id: int
    kind: str
    detail: str = ""
    at_ms: int | None = None  # when it happened; None: now


class RecordUsage(msgspec.Struct, frozen=True, tag="RecordUsage"):
    """Write down what a job has used, as experience with its user and class."""

    job_id: int
    request: JobRequest
    width: int
    run_ms: int
    used: Used


class RecordEnded(msgspec.Struct, frozen=True, tag="RecordEnded"):
    """Keep what is known of a job that is over, for as long as the journal lasts."""

    record: JobRecord


def request_problem(request: JobRequest) -> str | None:
    """Return what is wrong with a request that no site could run, in one line, or None.

    Examples
    --------
    >>> request_problem(JobRequest(program=Program(argv=("true",)), nodes=0, limit_ms=1000))
    'nodes is 0; a whole number from 1 to 10000000'
    """
    if not 1 <= request.nodes <= MAX_WIDTH:
        return f"nodes is {request.nodes}; a whole number from 1 to {MAX_WIDTH}"
    if not 1 <= request.limit_ms <= MAX_TIME_MS:
        return f"limit_ms is {request.limit_ms}; a time from 1 to {MAX_TIME_MS} ms"
    if not 0 <= request.sensitivity <= 1e6:
        return f"sensitivity is {request.sensitivity}; a number from 0 to 1e6"
    return (
        _bound_problem(request)
        or _order_problem(request)
        or _batch_problem(request)
        or forms_problem(request.nodes, request.forms)
        or _needs_problem(request)
        or next((problem for form in (None, *request.forms) if (problem := _command_problem(request, form))), None)
    )


def _command_problem(request: JobRequest, form: JobForm | None) -> str | None:
    """Return what is wrong with the program of a job, or with the command of one of its forms, if that has one."""
    program = in_form(request, form).program
    if form is not None and form.argv and program.call is not None:
        return "the job runs a function, and a form of it has a command; give one of the two"
    return launch_problem(
        Launch(
            job_id=0,
            attempt=0,
            ranks=(Rank(0),),
            argv=program.argv,
            call=program.call,
            environment=program.environment,
            working_directory=program.working_directory,
            grace_ms=program.grace_ms,
            output_limit_bytes=program.output_limit_bytes,
        )
    )


def in_form(request: JobRequest, form: JobForm | None) -> JobRequest:
    """Return what runs of a job in one of its forms: with the command of that, if it has one.

    Examples
    --------
    >>> job = JobRequest(program=Program(argv=("serial",)), limit_ms=1000)
    >>> in_form(job, JobForm(argv=("parallel", "-v"))).program.argv, in_form(job, JobForm()) is job
    (('parallel', '-v'), True)
    """
    if form is None or not form.argv:
        return request
    return msgspec.structs.replace(request, program=msgspec.structs.replace(request.program, argv=form.argv))


def _bound_problem(request: JobRequest) -> str | None:
    """Return which number or text of a request is beyond what a machine takes or an operator can wait for."""
    program = request.program
    if program.grace_ms > MOST_GRACE_MS:
        return f"grace_ms is {program.grace_ms}; at most {MOST_GRACE_MS}: so long may a job go on that is to end"
    if program.output_limit_bytes > MOST_OUTPUT_BYTES:
        return f"output_limit_bytes is {program.output_limit_bytes}; at most {MOST_OUTPUT_BYTES} for each rank"
    if not abs(request.priority) <= MOST_PRIORITY:  # nor is what is no number
        return f"priority is {request.priority}; a number from -{MOST_PRIORITY} to {MOST_PRIORITY}"
    ahead = program.limit_signal
    if ahead is not None and (ahead.name not in get_args(SignalName) or ahead.ahead_ms < 0):
        known = ", ".join(get_args(SignalName))
        return f"limit_signal is {ahead.name!r}, {ahead.ahead_ms} ms ahead; one of {known}, from 0 ms up"
    texts = {f"environment: {name[:100]}": f"{name}={value}" for name, value in program.environment.items()}
    texts |= {f"argument {number} of the command": text for number, text in enumerate(program.argv)}
    for place, form in enumerate(request.forms, start=1):
        texts |= {f"argument {number} of the command of form {place}": text for number, text in enumerate(form.argv)}
    total = 0
    for what, text in texts.items():
        size = len(text.encode(errors="surrogatepass"))
        total += size
        if size > MOST_TEXT_BYTES:
            return f"{what} has {size} bytes; Linux starts no program with more than {MOST_TEXT_BYTES} in one string"
    if total > MOST_TEXTS_BYTES:
        return f"command and environment have {total} bytes; at most {MOST_TEXTS_BYTES}: hand large data over in a file"
    return None


def forms_problem(nodes: int, forms: Sequence[JobForm]) -> str | None:
    """Return what is wrong with the forms of a job that asks for so many nodes, whichever machines there are.

    Examples
    --------
    >>> forms_problem(4, [JobForm(width=4), JobForm(speed=0.0)])
    'form 2 has the speed 0; above 0 and up to 10000'
    >>> forms_problem(2, [JobForm(width=4)])
    'nodes is 2, and the widest form has the width 4; say the same, or leave nodes out'
    """
    if len(forms) > MOST_FORMS:
        return f"forms are {len(forms)}; at most {MOST_FORMS}"
    for number, form in enumerate(forms, start=1):
        if not 1 <= form.width <= MAX_WIDTH:
            return f"form {number} has the width {form.width}; a whole number from 1 to {MAX_WIDTH}"
        if not 0 < form.speed <= MOST_SPEED:
            return f"form {number} has the speed {form.speed:g}; above 0 and up to {MOST_SPEED:g}"
        if not (1 <= form.cores <= MAX_WIDTH and 0 <= form.memory_mb <= MAX_TIME_MS):
            return f"form {number} asks for {form.cores} cores and {form.memory_mb} MB; at least 1 core and 0 MB"
        if not all(0 < len(name) <= MOST_NAME and name.isprintable() for name in form.on):
            return f"form {number} names no class or label in 'on'; give 1 to {MOST_NAME} characters in one line"
    widest = max((form.width for form in forms), default=nodes)
    if nodes != widest:
        return f"nodes is {nodes}, and the widest form has the width {widest}; say the same, or leave nodes out"
    return None


def _needs_problem(request: JobRequest) -> str | None:
    """Return what is wrong with what a job needs beside its nodes, or with the groups of its tasks."""
    if request.resources is None:
        return None
    if problem := why_impossible_needs(request.resources):
        return f"resources: {problem}"
    groups = request.resources.groups
    tasks = sum(group.tasks for group in groups)
    if groups and tasks != request.nodes:
        return f"nodes is {request.nodes}, and the groups have {tasks} tasks; say the same, or leave nodes out"
    if groups and request.array is not None and request.array.elements:
        return "groups of tasks are not for a packed array: each of its ranks draws elements, whichever they are"
    return None


def _batch_problem(request: JobRequest) -> str | None:
    """Return what is wrong with the options for a batch system, whichever that is."""
    if len(request.batch_options) > MOST_BATCH_OPTIONS:
        return f"batch_options are {len(request.batch_options)}; at most {MOST_BATCH_OPTIONS}"
    for option in request.batch_options:
        if not (option.isprintable() and len(option) <= MOST_NAME and _BATCH_OPTION.match(option)):
            return f"batch_options: {option!r:.100} is not an option; write name=value, for example constraint=fast"
    return None


def _order_problem(request: JobRequest) -> str | None:
    """Return what is wrong with what a job waits for, or with its place in an array."""
    if len(request.after) > MOST_AFTER:
        return f"after names {len(request.after)} jobs; at most {MOST_AFTER}"
    for after in request.after:
        if not 1 <= after.job_id < 2**63:
            return f"after: {after.job_id} is not a job number; a whole number from 1 up"
        if after.group and (after.has != "failed" or not 0 < after.group <= MOST_AFTER):
            return f"after: group is {after.group} with {after.has!r}; 0, or with 'failed' 1 to {MOST_AFTER}"
    array = request.array
    if array is None:
        return None
    if not (0 < len(array.name) <= MOST_NAME and array.name.isprintable()):
        return f"array: the name {array.name!r:.100} cannot be used; give 1 to {MOST_NAME} characters in one line"
    if not 0 <= array.index < 2**31:
        return f"array: index is {array.index}; a whole number from 0 to {2**31 - 1}"
    if problem := ranges_problem(array.elements):
        return f"array: {problem}"
    if not 0 <= array.at_once <= MAX_WIDTH:
        return f"array: at_once is {array.at_once}; a whole number from 0 (all of them) to {MAX_WIDTH}"
    return None
