"""Jobs as sites and the grid see them (`Job`), users' requests (`JobRequest`), their results, and their limits."""

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
from gridweave.site.array_tasks import ArrayTask, Ranges, ranges_problem, tasks_problem, without
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
from gridweave.site.resources.chunks import Chunk
from gridweave.site.resources.problems import chunk_problem

# No message contains a reference cycle, so the garbage collector can skip them (``gc=False``).

MAX_WIDTH = 10**7
MAX_TIME_MS = 10**14
"""Limits of ten million nodes and three thousand years in ms; larger values must be input errors."""

NodeIntervals = tuple[tuple[int, int], ...]
"""Half-open intervals of node numbers, ascending; if tasks share nodes, one task group after another."""


class TaskGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tasks of a job with equal needs, for sites that allocate fractions of nodes (docs/fractional.md, "Needs").

    Attributes
    ----------
    tasks : int
        Number of tasks.
    cpu_need, memory : float
        Resource needs of one task, as in `Resources`.
    """

    tasks: int
    cpu_need: float = 1.0
    memory: float = 1.0


class Resources(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job's resource needs on its nodes, for sites with shared nodes (docs/sharing.md, "The fractions of a job").

    Attributes
    ----------
    cpu, network, disk : float
        Fractions of the run time; they sum to 1.
    memory : float
        Fraction of a node's memory, above 0 and at most 1.
    cpu_kind : int
        Kind of CPU work: 0 integer, 1 floating-point, or a number from the site's table.
    cores : int
        Number of cores that the job uses on each of its nodes.
    cache_bytes : int
        Amount of data that the job keeps in the cache; for measured slowdowns.
    message_bytes : int, optional
        Size of the job's messages; for measured slowdowns. None: unknown, assumed to be large.
    cpu_need : float
        Fraction of a node's CPU that one task needs to run at full speed, above 0 and at most 1. Only for sites that
        allocate fractions of nodes; at these sites, ``memory`` also refers to one task.
    groups : tuple of TaskGroup
        The job's tasks, lowest ranks first, if their needs differ. In this case, ``cpu_need`` and ``memory`` are the
        maximum over all tasks, which is used by sites that treat all tasks alike.
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
    """Return the resources of a job whose tasks have different needs."""
    cpu_need, memory = max(group.cpu_need for group in groups), max(group.memory for group in groups)
    return Resources(cpu_need=cpu_need, memory=memory, groups=tuple(groups))


def task_groups(needs: Resources | None, width: int) -> tuple[TaskGroup, ...]:
    """Return a job's task groups, lowest ranks first; without ``needs``, each task needs a whole node.

    If the groups do not add up to ``width`` tasks, as in a fragment of a job, every task gets the maximum needs.

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
    """Return the total CPU and memory, in nodes, that the tasks with these numbers (from 0) need.

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
    """One way to run a job, for sites with different machines (docs/heterogeneous.md, "Forms").

    Attributes
    ----------
    on : tuple of str
        Names or labels of suitable machine classes; empty: all classes.
    width : int
        Number of machines, all in one cluster; 1: any single machine.
    speed : float
        Speed of the job on machines of speed 1; at 2.0 it needs only half of its time limit.
    cores, memory_mb : int
        Minimum cores and memory of each machine.
    argv : tuple of str
        Command and arguments that replace the job's own; empty: use the job's own.
    """

    on: tuple[str, ...] = ()
    width: int = 1
    speed: float = 1.0
    cores: int = 1
    memory_mb: int = 0
    argv: tuple[str, ...] = ()


IfEvicted = Literal["", "never", "restart", "checkpoint"]
"""What happens to a running job on eviction: see `Job.if_evicted`."""


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job as a site's scheduler sees it; the real run time is unknown until the job ends.

    Attributes
    ----------
    job_id : int
        Unique, >= 0.
    width : int
        Number of chunks; without a ``chunk``, the number of nodes.
    estimate_ms : int
        Wall time limit; the job is killed when it reaches it.
    priority : float
        Sort key for the order ``priority``.
    weight : float
        Sort key for the orders ``weight`` and ``smith``; above 0.
    behind : bool
        Whether the job queues behind all jobs without this flag, whatever the order of the queue. Jobs with the flag
        are sorted by submission.
    resources, assumed : Resources, optional
        The needs that the user stated, and the defaults for jobs of this kind, which apply if the user stated none (for
        nodes shared by hardware threads).
    user_name, class_name : str
        Names of the user and of the job class; empty if there is no name.
    forms : tuple of JobForm
        Forms in which the job can run at sites that use forms; empty: the site's forms for the job's class.
    in_step : bool
        Whether this is a fragment of a multi-site job. All fragments progress at the same rate, so the site must not
        choose a slower machine.
    if_evicted : str
        ``never``: do not evict the job; ``restart``: it starts over; ``checkpoint``: it resumes from its checkpoint;
        empty: the site decides.
    evictions : int
        Number of evictions before the job came to this site, which continues the count when raising the job's level.
    chunk : Chunk, optional
        What each chunk needs; unset: a whole node.
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
    chunk: Chunk | msgspec.UnsetType = msgspec.UNSET  # left out of messages, as in releases without chunks

    @property
    def needs_telling(self) -> bool:
        """Whether a quote needs the whole job, not only its width and limit (docs/control.md, "Quotes").

        A priority of 0 is not sent, so a site with levels below 0 quotes a job of priority 0 at its lowest level.
        """
        has_class = self.job_class is not None or bool(self.class_name)
        return bool(self.forms or self.evictions or self.chunk) or has_class or self.priority != 0


class Running(msgspec.Struct, frozen=True, gc=False):
    """A running job with its start and estimated end."""

    job: Job
    start_ms: int
    end_by_estimate_ms: int


ASKED_ID = MAX_ID = 2**63 - 1
"""Id of the hypothetical job in a quote; it sorts after all jobs submitted at the same time."""

SUM_TOLERANCE = 1e-6
"""Largest accepted deviation of cpu + network + disk from 1 (docs/sharing.md)."""


def why_impossible(job: Job) -> str | None:
    """Return why a job is invalid, or None."""
    if not 0 <= job.job_id <= MAX_ID:
        return f"job_id is not within 0 to {MAX_ID}"
    if not 1 <= job.width <= MAX_WIDTH:
        return f"width {job.width} is not within 1 to {MAX_WIDTH}"
    if not 1 <= job.estimate_ms <= MAX_TIME_MS:
        return f"estimate_ms {job.estimate_ms} is not within 1 to {MAX_TIME_MS}"
    if not (0 < job.weight < inf and isfinite(job.priority)):
        return f"weight {job.weight} is not above 0, or priority {job.priority} is not a number"
    if job.resources is not None and (problem := why_impossible_needs(job.resources)):
        return problem
    return chunk_problem(job.chunk, job.width)


def why_impossible_needs(needs: Resources) -> str | None:
    """Return why a job's resources are invalid, or None (docs/sharing.md)."""
    fractions = needs.cpu, needs.network, needs.disk
    if not all(0 <= fraction <= 1 for fraction in fractions) or not abs(sum(fractions) - 1) <= SUM_TOLERANCE:
        return f"cpu, network and disk are {fractions}; expected fractions of the run time that sum to 1"
    parts: list[Resources | TaskGroup] = [needs, *needs.groups]
    for part in parts:
        if not 0 < part.cpu_need <= 1:
            return f"the CPU need of a task is {part.cpu_need}; expected a fraction of a node, above 0 and at most 1"
        if not 0 < part.memory <= 1:
            return f"memory is {part.memory}; expected a fraction of a node, above 0 and at most 1"
        if not part.memory <= needs.memory:
            return f"memory is {needs.memory}; expected at least {part.memory}, the memory of its largest task"
    if not all(1 <= group.tasks <= MAX_WIDTH for group in needs.groups):
        return f"a group of tasks is empty or too large; expected 1 to {MAX_WIDTH} tasks"
    if not (1 <= needs.cores <= MAX_WIDTH and 0 <= needs.cpu_kind <= MAX_WIDTH and needs.cache_bytes >= 0):
        return f"cores {needs.cores}, CPU kind {needs.cpu_kind} or cache of {needs.cache_bytes} bytes is out of range"
    if needs.message_bytes is not None and needs.message_bytes < 0:
        return f"the message size is {needs.message_bytes} bytes; expected at least 0"
    return None


def check_job(job: Job) -> None:
    """Raise InputError if a job is invalid."""
    problem = why_impossible(job)
    if problem is not None:
        raise InputError(f"job {job.job_id}: {problem}")


Where = Literal["each-node", "first-node"]
"""Where ranks run: one for each chunk of a fragment, or only one, on its first node, as for a batch script."""

OWN_IDS = 10**12
"""Job ids of a site's own users start at this number times the site's index (from 1); grid job ids are lower."""

MOST_GRACE_MS = 300_000
"""Longest grace period between the request to end a job and killing it."""

MOST_OUTPUT_BYTES = 1 << 30
"""Largest possible limit on the stored output of one rank."""

MOST_PRIORITY = 1_000_000_000
"""Highest priority of a job in a live grid; the lowest priority is the negative of this value."""

MOST_TEXT_BYTES = (128 << 10) - 1
"""Longest argument or ``NAME=value`` that Linux can pass to a program (execve(2), MAX_ARG_STRLEN)."""

MOST_TEXTS_BYTES = 1 << 20
"""Maximum total size of command and environment; Linux accepts 2 MiB, including variables added by the machine."""

MOST_AFTER = 1_000  # jobs that one job can depend on

MOST_NAME = 200
"""Maximum number of characters in an array's name and in a batch system option."""

MOST_BATCH_OPTIONS = 20  # per job
_BATCH_OPTION = re.compile(r"[a-z][a-z-]*=.")

MOST_FORMS = 20  # per job
MOST_SPEED = 10_000.0  # relative speed of a machine or form

JobOutcome = Literal["finished", "failed", "limit", "cancelled"]
"""How a job ended: all ranks succeeded, a rank failed, the time limit was reached, or a user or operator ended it."""

OUTCOMES: tuple[JobOutcome, ...] = get_args(JobOutcome)

ActionKind = Literal["cancel", "kill", "signal", "requeue", "hold", "release"]
"""A user's action on a job.

``cancel``: end the job, or remove it from the queue; ``kill``: end it without a grace period; ``signal``: send a signal
to its processes; ``requeue``: make it write a checkpoint, end, and run again later; ``hold``: do not start it for now;
``release``: lift the hold.
"""


SignalName = Literal["HUP", "INT", "QUIT", "ABRT", "KILL", "USR1", "USR2", "ALRM", "TERM", "CONT", "WINCH"]
"""Signals that users can send to a job's processes: the signals in signal(7) that end or notify a program."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A job's command or callable, and how to run it.

    Attributes
    ----------
    argv : tuple of str
        The command and its arguments; empty if `call` is given.
    call : Call, optional
        The Python callable to run instead.
    working_directory : str, optional
        As for `gridweave.site.launch.Launch`.
    ranks : str
        See `Where`.
    if_lost : str
        What happens to the job when one of its machines fails: ``requeue`` or ``fail``.
    checkpoint_signal : str
        Signal to write a checkpoint and exit; the next start resumes from it. None: the job writes no checkpoints.
    end_on_failure : bool
        Whether all ranks are ended as soon as one rank has failed.
    limit_signal : LimitSignal, optional
        Signal sent to the processes before the job reaches its time limit.
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
        """Whether the job can write a checkpoint on demand and resume from it elsewhere."""
        return self.checkpoint_signal is not None and self.if_lost == "requeue"

    @property
    def if_evicted(self) -> IfEvicted:
        """What happens to the job on eviction; ``never`` if it must not run twice."""
        if self.if_lost == "fail":
            return "never"
        return "checkpoint" if self.can_be_moved else "restart"


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of a job on the links between sites, as stated by its user (docs/netmodel.md, "What a job sends").

    Attributes
    ----------
    pattern : str
        Communication pattern: ``none``, ``all-to-all``, ``ring``, ``2d-neighbours``, ``3d-neighbours``,
        ``master-workers``.
    fraction : float
        Fraction of the run time on a single site that the job spends sending messages and waiting for messages.
    communication : str
        A profile such as ``light`` or ``fraction=0.2,pattern=ring,message=1MB``, which replaces the pattern and the
        numbers. If neither profile nor pattern is given, the grid assumes the traffic of similar jobs.
    """

    pattern: str = ""
    fraction: float = 0.0
    message_bytes: float = 0.0
    input_bytes: int = 0
    input_site: str = ""  # the site that stores the input
    output_bytes: int = 0
    output_site: str = ""
    communication: str = ""


class After(msgspec.Struct, frozen=True, kw_only=True):
    """A dependency: a condition on another job of the same grid or site that must hold before a job enters the queue.

    Attributes
    ----------
    has : str
        ``started``: the other job has got its nodes; ``ended``: with any outcome; ``finished``: successfully;
        ``failed``: with any other outcome. If the condition can no longer become true, the waiting job is cancelled.
    group : int
        Above 0: all ``failed`` conditions with the same number count as one condition, which is true when all their
        jobs have ended and at least one of them has failed.
    """

    job_id: int
    has: Literal["started", "ended", "finished", "failed"] = "finished"
    group: int = 0


class ArrayPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a job in a job array; its ranks find the index in ``GRIDWEAVE_ARRAY_INDEX``.

    Attributes
    ----------
    name : str
        Name of the array, unique among its user's arrays.
    at_once : int
        Maximum number of the array's jobs that may be queued or running at any time; 0: no limit.
    array_tasks : tuple of (int, int)
        Task indexes of a packed array, run by this job one after another on each node; the job's own index is first.
    """

    name: str
    index: int
    at_once: int = 0
    array_tasks: Ranges = msgspec.field(default=(), name="elements")


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A user's request to run a job.

    Attributes
    ----------
    nodes : int
        Width: the number of nodes or, with a ``chunk``, of chunks.
    limit_ms : int
        Wall time limit, also used as the run time estimate for planning.
    priority, weight : float
        As for `gridweave.site.messages.Job`.
    sensitivity : float
        Sensitivity to the overhead of a split, at least 0; only used if the grid has no network model.
    traffic : Traffic, optional
        Only used if the grid has a network model.
    hold : bool
        Whether the job stays out of the queue until its user releases it.
    after : tuple of After
        Conditions that must all be true before the job may enter the queue.
    account : str
        Account charged for the node-hours; an account's quotas apply to all its users together.
    batch_options : tuple of str
        Options for the site's batch system, each ``name=value``; the job is accepted only by sites that pass on all
        of them.
    forms : tuple of JobForm
        Forms from which the site chooses one; `nodes` must then be the width of the widest form. Only sites with
        different machines accept such a job.
    chunk : Chunk, optional
        What each chunk needs; unset: a whole node.
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
    chunk: Chunk | msgspec.UnsetType = msgspec.UNSET  # left out of messages, as in releases without chunks


class DescribeJob(msgspec.Struct, frozen=True, tag="DescribeJob"):
    """Send the program of a grid job to a site, before requesting nodes for the job."""

    job_id: int
    attempt: int
    request: JobRequest
    limit_ms: int  # the wall time limit for this placement
    # Number of this site's first rank, and total number of ranks in the job.
    first_rank: int
    size: int
    sites: tuple[str, ...]  # all sites of the job; rank 0 is at the first site
    # For a packed array: the tasks of the whole job that have not ended.
    array_tasks: Ranges | None = msgspec.field(default=None, name="elements")
    starts: int = 0  # number of earlier starts


class FragmentReport(msgspec.Struct, frozen=True, tag="FragmentReport"):
    """Report to the grid how a fragment ended, before the message `Ended`."""

    job_id: int
    attempt: int
    reason: str  # why the fragment ended, in one line
    # Number, exit code and signal of each rank that failed; at most 20.
    exit_codes: tuple[tuple[int, int | None, int | None], ...]
    used: Used
    machines: tuple[str, ...]  # the machines that store the output
    # For a packed array: the tasks that ended.
    array_tasks: tuple[ArrayTask, ...] = msgspec.field(default=(), name="elements")
    interrupted: tuple[int, ...] = ()  # ... and the tasks that started but did not end
    ran_ms: Ran = None  # when the last process started, and when the last process ended


class JobRecord(msgspec.Struct, kw_only=True):
    """The state and result of a user's job.

    Attributes
    ----------
    state : str
        See `JobState`.
    start_ms, end_ms : int, optional
        Start and end of the last attempt.
    attempt : int
        Number of the last attempt, including attempts that a site refused or that did not start on all sites.
    starts : int
        Number of times the job has started on all its sites.
    places : tuple of (str, int)
        Sites of the last attempt, with the number of nodes at each.
    outcome : str
        ``finished``, ``failed``, ``limit`` or ``cancelled``; empty until the job has ended.
    exit_codes : tuple
        As in `FragmentReport`.
    array_tasks : tuple of ArrayTask
        Ended tasks of a packed array in all attempts; updated when an attempt ends.
    interrupted : tuple of int
        Tasks of a packed array that were, or might have been, interrupted by a failed machine, listed once per
        interruption; they run again.
    placed_ms : int, optional
        When the grid placed the last attempt.
    ran_ms : (int, int), optional
        When the last attempt's last process started, and when its last process ended, by the machines' clocks.
    split, sharing : optional
        Cost of the last attempt due to a split over several sites, or due to sharing nodes with other jobs.
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
    array_tasks: tuple[ArrayTask, ...] = msgspec.field(default=(), name="elements")
    interrupted: tuple[int, ...] = ()
    placed_ms: int | None = None
    ran_ms: Ran = None
    split: SplitCost | None = None
    sharing: NodeSharing | None = None

    def judged(self, outcome: str, reason: str) -> tuple[str, str]:
        """Return the whole job's outcome and reason; a failed task in any attempt makes the job ``failed``."""
        problem = tasks_problem(self.array_tasks)
        return ("failed", problem) if problem and outcome in ("finished", "failed") else (outcome, reason)

    @property
    def can_be_requeued(self) -> bool:
        """Whether the job is running and can be started again."""
        return self.state == "running" and self.request.program.if_lost == "requeue"

    def left(self) -> Ranges | None:
        """Return the tasks of a packed array that have not ended; None for any other job."""
        array = self.request.array
        if array is None or not array.array_tasks:
            return None
        return without(array.array_tasks, {element.index for element in self.array_tasks})


class Accepted(msgspec.Struct, frozen=True, tag="Accepted"):
    """Notify the user that the job was accepted, with the job id."""

    key: str
    job_id: int


class Declined(msgspec.Struct, frozen=True, tag="Declined"):
    """Notify the user that the job was not accepted, with the reason."""

    key: str
    reason: str


class Noted(msgspec.Struct, frozen=True, tag="Noted"):
    """Add an event to a job's history."""

    job_id: int
    kind: str
    detail: str = ""
    at_ms: int | None = None  # time of the event; None: now


class RecordUsage(msgspec.Struct, frozen=True, tag="RecordUsage"):
    """Record a job's resource use in the experience for its user and class."""

    job_id: int
    request: JobRequest
    width: int
    run_ms: int
    used: Used


class RecordEnded(msgspec.Struct, frozen=True, tag="RecordEnded"):
    """Store the record of an ended job for the lifetime of the journal."""

    record: JobRecord


def request_problem(request: JobRequest) -> str | None:
    """Return why no site could ever run a request, in one line, or None.

    Examples
    --------
    >>> request_problem(JobRequest(program=Program(argv=("true",)), nodes=0, limit_ms=1000))
    'nodes is 0; expected a whole number from 1 to 10000000'
    """
    if not 1 <= request.nodes <= MAX_WIDTH:
        return f"nodes is {request.nodes}; expected a whole number from 1 to {MAX_WIDTH}"
    if not 1 <= request.limit_ms <= MAX_TIME_MS:
        return f"limit_ms is {request.limit_ms}; expected 1 to {MAX_TIME_MS} ms"
    if not 0 <= request.sensitivity <= 1e6:
        return f"sensitivity is {request.sensitivity}; expected a number from 0 to 1e6"
    return (
        _bound_problem(request)
        or _order_problem(request)
        or _batch_problem(request)
        or forms_problem(request.nodes, request.forms)
        or _needs_problem(request)
        or chunk_problem(request.chunk, request.nodes, with_forms=bool(request.forms))
        or next((problem for form in (None, *request.forms) if (problem := _command_problem(request, form))), None)
    )


def _command_problem(request: JobRequest, form: JobForm | None) -> str | None:
    """Return the problem with a job's program, or with the command of one of its forms, or None."""
    program = in_form(request, form).program
    if form is not None and form.argv and program.call is not None:
        return "the job runs a function, and one of its forms has a command; give one of the two"
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
    """Return a request in which a form's command, if it has one, replaces the job's.

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
    """Return which number or text in a request exceeds the limits of machines or operators, or None."""
    program = request.program
    if program.grace_ms > MOST_GRACE_MS:
        return f"grace_ms is {program.grace_ms}; expected at most {MOST_GRACE_MS}"
    if program.output_limit_bytes > MOST_OUTPUT_BYTES:
        return f"output_limit_bytes is {program.output_limit_bytes}; expected at most {MOST_OUTPUT_BYTES} per rank"
    if not abs(request.priority) <= MOST_PRIORITY:  # also rejects NaN
        return f"priority is {request.priority}; expected a number from -{MOST_PRIORITY} to {MOST_PRIORITY}"
    ahead = program.limit_signal
    if ahead is not None and (ahead.name not in get_args(SignalName) or ahead.ahead_ms < 0):
        valid_names = f"one of {', '.join(get_args(SignalName))}"
        return f"limit_signal is {ahead.name!r}, {ahead.ahead_ms} ms ahead; expected {valid_names}, at least 0 ms"
    texts = {f"environment: {name[:100]}": f"{name}={value}" for name, value in program.environment.items()}
    texts |= {f"argument {number} of the command": text for number, text in enumerate(program.argv)}
    for place, form in enumerate(request.forms, start=1):
        texts |= {f"argument {number} of the command of form {place}": text for number, text in enumerate(form.argv)}
    total = 0
    for what, text in texts.items():
        size = len(text.encode(errors="surrogatepass"))
        total += size
        if size > MOST_TEXT_BYTES:
            return f"{what} has {size} bytes; Linux accepts at most {MOST_TEXT_BYTES} in one string"
    if total > MOST_TEXTS_BYTES:
        return f"command and environment have {total} bytes; expected at most {MOST_TEXTS_BYTES}: pass data in a file"
    return None


def forms_problem(nodes: int, forms: Sequence[JobForm]) -> str | None:
    """Return the problem with a job's forms that no choice of machines could solve, or None.

    Examples
    --------
    >>> forms_problem(4, [JobForm(width=4), JobForm(speed=0.0)])
    'form 2 has speed 0; expected above 0 and at most 10000'
    >>> forms_problem(2, [JobForm(width=4)])
    'nodes is 2, but the widest form has width 4; give the same number, or omit nodes'
    """
    if len(forms) > MOST_FORMS:
        return f"the job has {len(forms)} forms; expected at most {MOST_FORMS}"
    for number, form in enumerate(forms, start=1):
        if not 1 <= form.width <= MAX_WIDTH:
            return f"form {number} has width {form.width}; expected a whole number from 1 to {MAX_WIDTH}"
        if not 0 < form.speed <= MOST_SPEED:
            return f"form {number} has speed {form.speed:g}; expected above 0 and at most {MOST_SPEED:g}"
        if not (1 <= form.cores <= MAX_WIDTH and 0 <= form.memory_mb <= MAX_TIME_MS):
            return f"form {number} has cores {form.cores} and memory_mb {form.memory_mb}; expected at least 1 and 0"
        if not all(0 < len(name) <= MOST_NAME and name.isprintable() for name in form.on):
            return f"form {number} has an invalid name in 'on'; expected 1 to {MOST_NAME} printable characters"
    widest = max((form.width for form in forms), default=nodes)
    if nodes != widest:
        return f"nodes is {nodes}, but the widest form has width {widest}; give the same number, or omit nodes"
    return None


def _needs_problem(request: JobRequest) -> str | None:
    """Return the problem with a job's resources or task groups, or None."""
    if request.resources is None:
        return None
    if problem := why_impossible_needs(request.resources):
        return f"resources: {problem}"
    groups = request.resources.groups
    tasks = sum(group.tasks for group in groups)
    if groups and tasks != request.nodes:
        return f"nodes is {request.nodes}, but the groups have {tasks} tasks; give the same number, or omit nodes"
    if groups and request.array is not None and request.array.array_tasks:
        return "a packed array cannot have groups of tasks, because each rank can run any array task"
    return None


def _batch_problem(request: JobRequest) -> str | None:
    """Return the problem with a job's batch system options, or None; the check is the same for all batch systems."""
    if len(request.batch_options) > MOST_BATCH_OPTIONS:
        return f"the job has {len(request.batch_options)} batch_options; expected at most {MOST_BATCH_OPTIONS}"
    for option in request.batch_options:
        if not (option.isprintable() and len(option) <= MOST_NAME and _BATCH_OPTION.match(option)):
            return f"batch_options: {option!r:.100} is not an option; expected name=value, e.g. constraint=fast"
    return None


def _order_problem(request: JobRequest) -> str | None:
    """Return the problem with a job's dependencies or array position, or None."""
    if len(request.after) > MOST_AFTER:
        return f"after names {len(request.after)} jobs; expected at most {MOST_AFTER}"
    for after in request.after:
        if not 1 <= after.job_id < 2**63:
            return f"after: {after.job_id} is not a job number; expected at least 1"
        if after.group and (after.has != "failed" or not 0 < after.group <= MOST_AFTER):
            return f"after: group is {after.group} with {after.has!r}; expected 0, or 'failed' and 1 to {MOST_AFTER}"
    array = request.array
    if array is None:
        return None
    if not (0 < len(array.name) <= MOST_NAME and array.name.isprintable()):
        return f"array: the name is {array.name!r:.100}; expected 1 to {MOST_NAME} printable characters"
    if not 0 <= array.index < 2**31:
        return f"array: index is {array.index}; expected a whole number from 0 to {2**31 - 1}"
    if problem := ranges_problem(array.array_tasks):
        return f"array: {problem}"
    if not 0 <= array.at_once <= MAX_WIDTH:
        return f"array: at_once is {array.at_once}; expected a whole number from 0 (no limit) to {MAX_WIDTH}"
    return None
