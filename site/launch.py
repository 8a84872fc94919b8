"""Define messages between a site's service and a machine's node task runner, and the contents of the runner's files.

A node task consists of a job's ranks on one machine. `SplitCost` and `NodeSharing` describe the cost of running a job
on several sites or on shared nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from gridweave.site.array_tasks import ArrayTask, Ranges, ranges_problem

DEFAULT_GRACE_MS = 5_000
DEFAULT_OUTPUT_LIMIT_BYTES = 16 << 20

Outcome = Literal["finished", "failed", "limit", "cancelled", "lost"]
"""How a node task ended.

``finished``: every rank exited with code 0; ``failed``: a rank failed, or the node task could not start; ``limit``: the
task reached its time limit; ``cancelled``: it was cancelled; ``lost``: the machine failed or had no capacity for it.
"""

Phase = Literal["waiting", "running", "ending", "ended"]


class Call(msgspec.Struct, frozen=True):
    """A Python callable to run instead of a command.

    Attributes
    ----------
    function : str
        ``module:function``; the function may be nested, as in ``module:Class.method``.
    args, kwargs
        Arguments of the function; any JSON values.
    per_item : bool
        Whether to call the function once for each item of `args`, in order; if so, the result is a line of JSON with
        one `ItemEnd` per item.
    """

    function: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    per_item: bool = msgspec.field(default=False, name="each")


class ItemEnd(msgspec.Struct, frozen=True, array_like=True):
    """The result of one call of a function that is called once per item.

    Attributes
    ----------
    value : object
        The return value; any JSON value.
    error, trace : str
        The exception in one line, and its traceback; both empty if the function returned.
    """

    value: Any = None
    error: str = ""
    trace: str = ""


class LimitSignal(msgspec.Struct, frozen=True):
    """A signal sent before a job reaches its time limit, like Slurm's ``--signal``.

    Attributes
    ----------
    name : str
        A signal name of `gridweave.site.job.SignalName`.
    ahead_ms : int
        Time before the limit; a job with a shorter limit gets the signal at its start.
    to : str
        The receiving processes. ``all``: all processes; ``rank``: only the ranks (a script, but not its children);
        ``steps``: the processes that the ranks started with ``srun``; ``below``: all processes except the ranks.
    """

    name: str
    ahead_ms: int = 60_000
    to: Literal["all", "rank", "below", "steps"] = "all"


class RankResources(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's share of its node, at a site that counts cores, memory and GPUs.

    Attributes
    ----------
    cores, gpus : tuple of int
        Numbers of its cores and GPUs on the node, each from 0, ascending.
    memory_mb : int
        Memory in MB (10**6 bytes); 0: not counted.
    devices : tuple of int, optional
        Numbers of its GPUs on the machine, as its processes see them; added by the machine.
    """

    cores: tuple[int, ...]
    gpus: tuple[int, ...] = ()
    memory_mb: int = 0
    devices: tuple[int, ...] | None = None


class Rank(msgspec.Struct, frozen=True):
    """One process of a job on this machine."""

    rank: int  # number within the whole job, from 0
    node: int = 0  # number of its node within the job, from 0; a machine can provide several nodes of a job
    # Allowed hardware threads, as numbered by the operating system; ``None``: inherited from the parent process.
    threads: tuple[int, ...] | None = None
    # Left out of messages at sites that give out whole nodes, as in releases that did not count resources.
    resources: RankResources | msgspec.UnsetType = msgspec.UNSET
    # Environment variables of this rank alone, e.g. the GPUs of its chunk; added by the machine.
    variables: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the total resource use of a job's processes on a machine; ``None``: no limit.

    Attributes
    ----------
    memory_bytes : int, optional
        Memory, including the page cache of the job's files; swap is not allowed.
    cpus : float, optional
        CPU time per unit of wall time, above 0.
    processes : int, optional
        Number of processes and threads at any one time.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    processes: int | None = None

    def times(self, nodes: int) -> Limits:
        """Return the total limits for this number of nodes."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return Limits(**{name: None if value is None else value * nodes for name, value in values.items()})

    @property
    def controllers(self) -> tuple[str, ...]:
        """The control group controllers that enforce these limits."""
        values = {"memory": self.memory_bytes, "cpu": self.cpus, "pids": self.processes}
        return tuple(name for name, value in values.items() if value is not None)


class Meeting(NamedTuple):
    """The rendezvous address of a job's ranks, and the key with which they authenticate each other (empty: no key)."""

    key: str
    host: str
    port: int

    @property
    def place(self) -> str:
        """The address without the key, as ``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def text(self) -> str:
        """The value of `Launch.rendezvous`."""
        return f"{self.key}@{self.place}" if self.key else self.place


def meeting_of(rendezvous: str) -> Meeting | None:
    """Parse `Launch.rendezvous`; return None if the job has no rendezvous.

    Examples
    --------
    >>> meeting_of("6b65@[::1]:2000"), meeting_of("north:2000"), meeting_of("")
    (Meeting(key='6b65', host='[::1]', port=2000), Meeting(key='', host='north', port=2000), None)
    """
    key, _, place = rendezvous.rpartition("@")
    host, _, port = place.rpartition(":")
    return Meeting(key, host, int(port)) if host and port.isdecimal() else None


class NodePart(msgspec.Struct, frozen=True):
    """The CPU time and memory that all ranks of a node task get together, in units of one node."""

    cpu: float  # at full speed
    memory: float


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A node task: everything that a machine needs to run its ranks of a job."""

    # The job and attempt identify the node task on its machine; both >= 0. A node task is started at most once.
    job_id: int
    attempt: int
    ranks: tuple[Rank, ...]  # the ranks on this machine; either all of them start, or none
    size: int | None = None  # number of ranks of the whole job; ``None``: all ranks are on this machine
    argv: tuple[str, ...] = ()  # the command and its arguments; empty if `call` is given
    call: Call | None = None  # the Python callable to run instead of a command, in a separate process per rank
    environment: dict[str, str] = {}  # added to the runner's environment
    # The absolute path of an existing directory; ``None``: ``work`` in the node task's folder, which is deleted with
    # that folder.
    working_directory: str | None = None
    site: str = ""  # the name of this site
    sites: tuple[str, ...] = ()  # the names of all sites of the job
    # ``KEY@host:port`` (`Meeting`): the rendezvous address of the ranks, and the key with which they authenticate.
    rendezvous: str = ""
    # Limit of the node task's work, in ms at full speed: its wall time if it is never paused or slowed.
    limit_ms: int | None = None
    grace_ms: int = DEFAULT_GRACE_MS  # time between TERM and KILL
    # Largest stored output of a rank, standard output and error together.
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    # Common start time of all ranks, by this machine's clock; ``None``: as soon as possible.
    start_at_unix_ms: int | None = None
    # If not ``None``, the ranks wait at their gate until it is opened. Once started, they are ended after this time
    # unless the site confirms that the whole job is running.
    alone_ms: int | None = None
    checkpoint_signal: str = "TERM"  # name without ``SIG``; asks the ranks to write a checkpoint
    # Whether a failing rank ends the other ranks of this node task, as with ``mpirun``.
    end_on_failure: bool = True
    # The tasks of a packed array that the ranks run; ``None``: each rank runs the command once.
    array_tasks: Ranges | None = msgspec.field(default=None, name="elements")
    starts: int = 0  # number of earlier starts of the job
    part: NodePart | None = None  # ``None``: whole nodes
    user: str = ""  # the job's user
    # Added by the machine: the socket of the launcher that starts the ranks as the Unix user of the job's user (empty:
    # they run as the service's user), their total limits, and the control groups that enforce the limits, by
    # controller.
    launcher: str = ""
    limits: Limits | None = None
    groups: dict[str, str] = {}
    limit_signal: LimitSignal | None = None
    # Work per ms when no other job slows this one down: below 1 if it is split over sites, above 1 on fast machines.
    rate: float = 1.0
    # If jobs share nodes: cores per node and hardware threads per core.
    lanes: tuple[int, int] | None = None
    # How long the ranks may wait for their gate to be opened once all are ready; ``None``: no limit.
    gate_ms: int | None = None
    # Added by the machine, if the site counts resources: device numbers (major, minor) of GPUs that the ranks must not
    # open.
    denied: tuple[tuple[int, int], ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def memory_mb(self) -> int:
        """The memory that the node task's ranks have together, in MB (10**6 bytes); 0: not counted."""
        return sum(rank.resources.memory_mb for rank in self.ranks if rank.resources)

    @property
    def bound_threads(self) -> frozenset[int]:
        """The hardware threads of the cores that the ranks have; empty if they are not bound to cores."""
        return frozenset(thread for rank in self.ranks if rank.resources for thread in rank.threads or ())


class OutputLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a machine keeps the folders of ended jobs, which contain their output.

    Attributes
    ----------
    days : int
        Days after a job has ended.
    bytes_per_user : int
        Disk space for each user's folders on the machine; if it is exceeded, the user's oldest folders are removed.
    """

    days: int = 90
    bytes_per_user: int = 10 << 30


KEEP_OUTPUT = OutputLimits()


class Removal(msgspec.Struct, frozen=True):
    """The Unix time at which a machine removed a job's output, and the reason as a phrase to put after a colon."""

    at_ms: int
    reason: str


_NAMED = 5


class AcceptedUsers(msgspec.Struct, frozen=True, kw_only=True):
    """The users whose jobs a machine or site accepts; a site accepts the users that all of its machines accept.

    Attributes
    ----------
    anyone : bool
    names : tuple of str
        The accepted users, unless `anyone` is true.
    is_mapped : bool
        Whether the names come from a launcher's or batch system's map of users to accounts; otherwise the only name is
        the owner's.
    options : tuple of str
        Names of the batch system options that jobs may set; the site passes them on.
    forms : bool
        Whether jobs may have forms because the site's machines differ.
    shares : bool
        Whether jobs share nodes by hardware threads.
    """

    anyone: bool = True
    names: tuple[str, ...] = ()
    is_mapped: bool = False
    options: tuple[str, ...] = ()
    forms: bool = False
    shares: bool = False

    def refusal(self, user: str, options: Iterable[str] = (), *, has_forms: bool = False) -> str | None:
        """Return the one-line reason why a user's job with these options (``name=value``) is not accepted, or None.

        Examples
        --------
        >>> AcceptedUsers(anyone=False, names=("anna",)).refusal("bert")
        "it only runs jobs of 'anna', and this job is of 'bert'; docs/launchers.md says how to run jobs of other users"
        >>> AcceptedUsers(anyone=False, names=("anna",), is_mapped=True).refusal("bert")
        "it has no account for 'bert'; ask its operator to add one"
        >>> AcceptedUsers(options=("constraint", "gres")).refusal("anna", ["nodelist=n1"])
        'it does not pass the option nodelist to a batch system; expected one of constraint, gres'
        """
        if has_forms and not self.forms:
            return "its machines are all alike, and the job has forms; submit it with --nodes instead of --form"
        for name in (option.partition("=")[0] for option in options):
            if name not in self.options:
                others = f"; expected one of {', '.join(self.options)}" if self.options else ""
                return f"it does not pass the option {name} to a batch system{others}"
        if self.anyone or user in self.names:
            return None
        if self.is_mapped:
            return f"it has no account for {user!r}; ask its operator to add one"
        if not user:
            return None
        owner = " and ".join(map(repr, self.names)) or "nobody"
        how = "docs/launchers.md says how to run jobs of other users"
        return f"it only runs jobs of {owner}, and this job is of {user!r}; {how}"

    @property
    def words(self) -> str:
        """The accepted users in words; names at most the first five.

        Examples
        --------
        >>> AcceptedUsers().words, AcceptedUsers(anyone=False, names=("anna", "bert")).words
        ('accepts jobs of anyone', 'accepts jobs of anna, bert')
        >>> AcceptedUsers(anyone=False, names=tuple("abcdefg")).words
        'accepts jobs of a, b, c, d, e and 2 others'
        """
        if self.anyone:
            return "accepts jobs of anyone"
        first, more = ", ".join(self.names[:_NAMED]) or "nobody", len(self.names) - _NAMED
        return f"accepts jobs of {first}" + (f" and {more} other{'s' * (more > 1)}" if more > 0 else "")

    def both(self, other: AcceptedUsers) -> AcceptedUsers:
        """Return the users and options accepted by both machines."""
        options = tuple(name for name in self.options if name in other.options)
        if self.anyone or other.anyone:
            return msgspec.structs.replace(other if self.anyone else self, options=options)
        names = tuple(name for name in self.names if name in other.names)
        return AcceptedUsers(anyone=False, names=names, is_mapped=self.is_mapped or other.is_mapped, options=options)


ANYONE = AcceptedUsers()


class MachineRules(msgspec.Struct, frozen=True, kw_only=True):
    """The users whose jobs a machine starts, how it starts them, and the jobs' limits.

    Attributes
    ----------
    owner : str
        The only user whose jobs the machine starts; empty: any user.
    launcher : str
        Socket of the launcher that starts ranks as the Unix users of their jobs' users; empty: they run as the
        service's user.
    limits : Limits, optional
        A job's limits for each of its nodes on the machine.
    gives_parts : bool
        Whether jobs get fractions of the machine's nodes, enforced by control groups.
    counts_parts : bool
        Whether fractions of the machine's nodes are only counted, not enforced.
    options : tuple of str
        See `AcceptedUsers.options`.
    mapped : tuple of str, optional
        The only users whose jobs the machine starts, from a batch system's map of users to accounts; None: no map.
    output : OutputLimits
        How long the machine keeps the output of ended jobs.
    """

    owner: str = ""
    launcher: str = ""
    limits: Limits | None = None
    gives_parts: bool = False
    options: tuple[str, ...] = ()
    mapped: tuple[str, ...] | None = None
    output: OutputLimits = KEEP_OUTPUT
    counts_parts: bool = False

    def refusal(self, user: str) -> str | None:
        """Return the one-line reason why a user's jobs are not started, or None.

        Examples
        --------
        >>> MachineRules(owner="anna").refusal("anna")
        >>> MachineRules(owner="anna").refusal("bert")
        "it only runs jobs of 'anna', and this job is of 'bert'; docs/launchers.md says how to run jobs of other users"
        """
        return self.users.refusal(user)

    @property
    def users(self) -> AcceptedUsers:
        """The users accepted by these rules; a launcher's own map is not included."""
        if self.mapped is not None:
            return AcceptedUsers(anyone=False, names=self.mapped, is_mapped=True, options=self.options)
        return AcceptedUsers(anyone=not self.owner, names=(self.owner,) if self.owner else (), options=self.options)


ANY_JOBS = MachineRules()


class Used(msgspec.Struct, frozen=True):
    """Resource use of processes.

    Attributes
    ----------
    cpu_s : float
        CPU time, user and system.
    peak_memory_bytes : int
        Peak memory. For a rank: the peak of its largest process, or the largest sampled sum over its processes (which
        counts shared pages once per process), whichever is larger; for a node task: the sum over its ranks.
    read_bytes, written_bytes : int
        Bytes read from and written to storage, excluding reads from the page cache.
    wall_s : float
        Wall time from start to end; for a node task: that of its longest rank.
    """

    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    wall_s: float = 0.0


class RankReport(msgspec.Struct, frozen=True):
    """The state and result of a rank."""

    rank: int
    pid: int  # also the id of the rank's session and process group
    # Start time of the process in clock ticks since boot; together with `pid` it identifies the process.
    start_ticks: int
    exit_code: int | None = None  # if the rank exited by itself
    signal: int | None = None  # if a signal ended the rank
    # Bytes of output in files, and bytes dropped because the limit was reached or the disk was full.
    kept_bytes: int = 0
    dropped_bytes: int = 0
    output_problem: str = ""  # why output is missing; empty if it is complete
    usage: Used = Used()


class NodeTaskState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node task, as stored in its folder (``state.msgpack``)."""

    job_id: int
    attempt: int
    phase: Phase  # ``waiting`` for its start, ``running``, ``ending`` (told to exit), ``ended``
    boot_id: str  # id of the boot for which the process ids are valid
    token: str = ""  # the value of ``GRIDWEAVE_PIECE`` in the environment of its processes
    # The supervisor process; 0 if there never was one.
    shim_pid: int = 0
    shim_start_ticks: int = 0
    # Unix time in ms.
    started_ms: int | None = None
    ended_ms: int | None = None
    outcome: Outcome | None = None  # ``None`` until it has ended
    reason: str = ""  # why it ended, in one line
    ranks: tuple[RankReport, ...] = ()
    at_gate: bool = False  # whether all ranks are waiting at their gate
    usage: Used = Used()  # of the whole node task, including processes of unknown ranks
    is_paused: bool = False
    paused_ms: int = 0  # total time paused, excluding the current pause
    has_own_ipc: bool = False  # whether System V and POSIX IPC objects are removed with its last process
    kill_due_ms: int | None = None  # latest time of the kill, at its current pace


class NodeTaskReady(msgspec.Struct, frozen=True, tag="PieceReady"):
    """All ranks of a node task are waiting at their gate."""

    job_id: int
    attempt: int


class NodeTaskStarted(msgspec.Struct, frozen=True, tag="PieceStarted"):
    """All ranks of a node task are running."""

    job_id: int
    attempt: int
    started_ms: int
    alone_ms: int | None = None  # see `Launch`


class NodeTaskEnded(msgspec.Struct, frozen=True, tag="PieceEnded"):
    """All processes of a node task have ended; `started_ms` is ``None`` if no rank ever ran."""

    job_id: int
    attempt: int
    outcome: Outcome
    reason: str
    ranks: tuple[RankReport, ...]
    usage: Used
    started_ms: int | None
    ended_ms: int
    # For a packed array: the ended tasks, and the tasks that started but did not end.
    array_tasks: tuple[ArrayTask, ...] = msgspec.field(default=(), name="elements")
    interrupted: tuple[int, ...] = ()


NodeTaskEvent = NodeTaskReady | NodeTaskStarted | NodeTaskEnded


Ran = tuple[int, int] | None
"""Start and end time of a set of processes, according to their machines' clocks."""


def both_ran(span: Ran, other: Ran) -> Ran:
    """Merge the spans of two sets of processes into the latest start and the latest end.

    Examples
    --------
    >>> both_ran((10, 30), (20, 25)), both_ran(None, (20, 25))
    ((20, 30), (20, 25))
    """
    if span is None or other is None:
        return span or other
    return max(span[0], other[0]), max(span[1], other[1])


_UnixMs = Annotated[int, Meta(ge=0, le=8_640_000_000_000_000)]
"""Unix time in ms, within the range of a JavaScript date."""

_Rank = Annotated[int, Meta(ge=0, le=10**7)]


class UsagePoint(msgspec.Struct, frozen=True, array_like=True):
    """Resource use of a node task at one point in time.

    Attributes
    ----------
    at_ms : int
        Unix time, according to the machine's clock.
    cpu_s : float
        CPU time of all processes since their start.
    memory_bytes : int
        Peak of the processes' total sampled memory since the previous point.
    """

    at_ms: _UnixMs
    cpu_s: Annotated[float, Meta(ge=0)]
    memory_bytes: Annotated[int, Meta(ge=0)]


class UsageCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Resource use of a node task over time; lengths are limited because the job's user can write the file.

    Attributes
    ----------
    site, host : str
        Names of the site and of the host.
    first_rank, last_rank, size : int
        First and last rank of the node task, and number of ranks of the whole job.
    start_ms : int
        Start of the processes, with zero use, in Unix time according to the machine's clock.
    points : tuple of UsagePoint
        In ascending order of time; at most 120 points, plus the newest sample.
    """

    site: Annotated[str, Meta(max_length=200)]
    host: Annotated[str, Meta(max_length=200)]
    first_rank: _Rank
    last_rank: _Rank
    size: _Rank
    start_ms: _UnixMs
    points: Annotated[tuple[UsagePoint, ...], Meta(max_length=1000)]


def total_usage(parts: tuple[Used, ...]) -> Used:
    """Return the total resource use of several processes: sums, except for the wall time, which is the longest.

    Examples
    --------
    >>> total_usage((Used(cpu_s=1.5, wall_s=2.0), Used(cpu_s=0.5, wall_s=3.0)))
    Used(cpu_s=2.0, peak_memory_bytes=0, read_bytes=0, written_bytes=0, wall_s=3.0)
    """
    return Used(
        cpu_s=sum(part.cpu_s for part in parts),
        peak_memory_bytes=sum(part.peak_memory_bytes for part in parts),
        read_bytes=sum(part.read_bytes for part in parts),
        written_bytes=sum(part.written_bytes for part in parts),
        wall_s=max((part.wall_s for part in parts), default=0.0),
    )


def python_scalar(value: Any) -> Any:
    """Convert a numpy scalar to its Python type; return any other value unchanged."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def json_problem(value: object, *, most_depth: int = 32) -> str | None:
    """Describe the part of a value that does not survive a JSON round trip or is nested too deeply; None if valid.

    Tuples are allowed, although they come back as lists.

    Examples
    --------
    >>> json_problem([1, "a", {"b": (None, 2.5)}]), json_problem([{1: 2}]), json_problem({3})
    (None, 'an object with a key that is not text', 'a value of type set')
    """
    for nested, depth in nested_values(value):
        if depth > most_depth:
            return f"lists or objects more than {most_depth} deep"
        if isinstance(nested, bool) or nested is None or isinstance(nested, (str, list, tuple)):
            continue
        if isinstance(nested, dict):
            if not all(isinstance(key, str) for key in nested):
                return "an object with a key that is not text"
        elif isinstance(nested, int):
            if not -(2**63) <= nested < 2**64:
                return "a number of more than 64 bits"
        elif not isinstance(nested, float) or not math.isfinite(nested):
            return f"a value of type {type(nested).__name__}"
    return None


def nested_values(values: Any) -> Iterator[tuple[Any, int]]:
    """Yield a value and all values nested in it, each with its depth, without recursion."""
    waiting = [(values, 0)]
    while waiting:
        value, depth = waiting.pop()
        value = python_scalar(value)
        yield value, depth
        if isinstance(value, (list, tuple)):
            waiting += [(inner, depth + 1) for inner in value]
        elif isinstance(value, dict):
            waiting += [(inner, depth + 1) for inner in value.values()]


def launch_problem(launch: Launch) -> str | None:
    """Return the one-line reason why no machine could run a launch, or ``None``.

    Examples
    --------
    >>> launch_problem(Launch(job_id=1, attempt=0, ranks=(Rank(0),), argv=("true",), environment={"A=B": "c"}))
    "environment: the name 'A=B' contains '='; expected a non-empty text without '=' and NUL"
    """
    return (
        _command_problem(launch)
        or _environment_problem(launch)
        or _number_problem(launch)
        or ranges_problem(launch.array_tasks or ())
    )


def _command_problem(launch: Launch) -> str | None:
    if launch.call is not None:
        if launch.argv:
            return "both a command and a callable are given; give one of the two"
        module, _, name = launch.call.function.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            return f"callable is {launch.call.function!r}; expected module:function, e.g. 'package.module:main'"
    elif not launch.argv or not launch.argv[0]:
        return "the command is empty; expected a list that starts with the name of a program"
    for what, text in [("command", text) for text in launch.argv] + [
        ("working directory", launch.working_directory or "")
    ]:
        if "\0" in text:
            return f"{what}: {text!r} contains a NUL character, which the operating system does not accept"
    if launch.working_directory is not None and not launch.working_directory.startswith("/"):
        return f"working directory is {launch.working_directory!r}; expected an absolute path"
    return None


def _environment_problem(launch: Launch) -> str | None:
    for name, value in launch.environment.items():
        wrong = "is empty" if not name else "contains '='" if "=" in name else "contains NUL" if "\0" in name else ""
        if wrong:
            return f"environment: the name {name!r} {wrong}; expected a non-empty text without '=' and NUL"
        if "\0" in value:
            return f"environment: the value of {name} contains NUL; expected a text without NUL"
    return None


def _number_problem(launch: Launch) -> str | None:
    size = launch.size if launch.size is not None else len(launch.ranks)
    numbers = [rank.rank for rank in launch.ranks]
    if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0 or max(numbers) >= size:
        return f"ranks are {numbers} of {size}; expected one or more different numbers from 0 to {size - 1}"
    if any(rank.threads is not None and not rank.threads for rank in launch.ranks):
        return "threads of a rank is empty; expected at least one hardware thread, or None for any"
    for name in ("limit_ms", "grace_ms", "output_limit_bytes", "start_at_unix_ms", "alone_ms", "gate_ms"):
        value = getattr(launch, name)
        if value is not None and value < 0:
            return f"{name} is {value}; expected at least 0"
    return None


class SplitCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of splitting a job over several sites, according to the network model when the job was placed.

    Attributes
    ----------
    whole_ms, length_ms : int
        The job's wall time limit on a single site, and on the chosen sites.
    factor : float
        Slowdown factor of the job's work.
    latency_ms : float, optional
        Largest one-way latency between two of the job's sites; None: the grid has no network model.
    bandwidth_bps : float, optional
        Smallest bandwidth between two of the job's sites; None: the grid has no network model.
    communication : str
        The job's assumed communication, and the source of the assumption; empty if the grid has no network model.
    text : str
        The whole cost as one readable line.
    """

    whole_ms: int
    length_ms: int
    factor: float
    latency_ms: float | None = None
    bandwidth_bps: float | None = None
    communication: str = ""
    text: str = ""


class NodeSharing(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs with which a job shares its nodes, and the resulting slowdown (docs/sharing.md, "On machines").

    Attributes
    ----------
    beside : tuple of int
        The jobs that have shared nodes with the job so far, ordered by when they first did so.
    now : tuple of int
        The jobs that currently share nodes with the job; empty once the job has ended.
    slowdown : float
        Slowdown factor according to the site's table: the current factor, or the whole run's once the job has ended.
    real : float, optional
        Measured slowdown factor, relative to similar jobs that ran alone. None until the job has ended, or if no
        similar job has run alone.
    alone_ms, alone_runs : int
        Geometric mean of the run times of similar jobs that ran alone, and the number of these runs.
    text : str
        The expected slowdown as one readable line.
    """

    beside: tuple[int, ...]
    now: tuple[int, ...] = ()
    slowdown: float
    real: float | None = None
    alone_ms: int = 0
    alone_runs: int = 0
    text: str = ""
