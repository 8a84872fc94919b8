"""What a machine is told of its piece of a job, and what it tells back; its files hold the same.

What a run on several sites costs stands here, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from gridweave.site.elements import Element, Ranges, ranges_problem

DEFAULT_GRACE_MS = 5_000
DEFAULT_OUTPUT_LIMIT_BYTES = 16 << 20

Outcome = Literal["finished", "failed", "limit", "cancelled", "lost"]
"""How a piece ended: every rank with exit code 0; a rank otherwise, or a start that was not possible; at its limit;
at somebody's wish; or by the fault of the machine, which failed under it, or had no room for it."""

Phase = Literal["waiting", "running", "ending", "ended"]


class Call(msgspec.Struct, frozen=True):
    """A Python callable in place of a command.

    Attributes
    ----------
    function : str
        ``module:function``; the function may be an attribute of an attribute (``module:Class.method``).
    args, kwargs
        Its arguments: whatever JSON can say.
    each : bool
        Whether it is called with each of `args` by itself, one after the other; the result is a line of JSON with an
        `ItemEnd` for each of them.
    """

    function: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    each: bool = False


class ItemEnd(msgspec.Struct, frozen=True, array_like=True):
    """What became of the call of a callable with one of many items.

    Attributes
    ----------
    value : object
        What it returned; what JSON can say.
    error, trace : str
        What it raised, in one line, and with its traceback; empty if it returned.
    """

    value: Any = None
    error: str = ""
    trace: str = ""


class LimitSignal(msgspec.Struct, frozen=True):
    """A signal ahead of the limit of a job, as ``--signal`` of Slurm.

    Attributes
    ----------
    name : str
        One of `gridweave.site.job.SignalName`.
    ahead_ms : int
        How long before the limit; at the start if the limit is shorter.
    to : str
        Which processes get it: ``all``; ``rank``: the ranks alone (a script, but not what it runs); ``steps``: what the
        ranks have started with ``srun``; ``below``: all but the ranks.
    """

    name: str
    ahead_ms: int = 60_000
    to: Literal["all", "rank", "below", "steps"] = "all"


class Rank(msgspec.Struct, frozen=True):
    """One process of a job on this machine."""

    rank: int  # its number in the whole job, from 0
    node: int = 0  # the node of the job that it runs on, from 0; several nodes of a job may be on one machine
    # The hardware threads that it may run on, by the numbers of the operating system; ``None``: those of whoever
    # started it.
    threads: tuple[int, ...] | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of a job on a machine may use at most; ``None``: as much as there is.

    Attributes
    ----------
    memory_bytes : int, optional
        Memory, the page cache of its files among it; swap is not had.
    cpus : float, optional
        Processors' time for each unit of time, above 0.
    processes : int, optional
        Processes and threads at one time.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    processes: int | None = None

    def times(self, nodes: int) -> Limits:
        """Return what so many nodes may use."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return Limits(**{name: None if value is None else value * nodes for name, value in values.items()})

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers of control groups that hold them."""
        values = {"memory": self.memory_bytes, "cpu": self.cpus, "pids": self.processes}
        return tuple(name for name, value in values.items() if value is not None)


class Meeting(NamedTuple):
    """Where the ranks of a job meet, and the key by which they know each other; empty: they have none."""

    key: str
    host: str
    port: int

    @property
    def place(self) -> str:
        """The address alone, as ``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def text(self) -> str:
        """All of it, as `Launch.rendezvous` has it."""
        return f"{self.key}@{self.place}" if self.key else self.place


def meeting_of(rendezvous: str) -> Meeting | None:
    """Return where ranks meet, by `Launch.rendezvous`; None if nowhere.

    Examples
    --------
    >>> meeting_of("6b65@[::1]:2000"), meeting_of("north:2000"), meeting_of("")
    (Meeting(key='6b65', host='[::1]', port=2000), Meeting(key='', host='north', port=2000), None)
    """
    key, _, place = rendezvous.rpartition("@")
    host, _, port = place.rpartition(":")
    return Meeting(key, host, int(port)) if host and port.isdecimal() else None


class NodePart(msgspec.Struct, frozen=True):
    """What all ranks of a piece together have of the nodes of their machine where jobs get parts of them, in nodes."""

    cpu: float  # at full speed
    memory: float


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a job: all that one machine must know to run its ranks."""

    # Together the name of the piece on its machine, both >= 0. A piece is started at most once.
    job_id: int
    attempt: int
    ranks: tuple[Rank, ...]  # the ranks on this machine; they start all or none
    size: int | None = None  # ranks of the whole job; ``None``: those of this machine are all
    argv: tuple[str, ...] = ()  # the command and its arguments, if `call` is not given
    call: Call | None = None  # the Python callable to run instead, in a process of its own per rank
    environment: dict[str, str] = {}  # added to the environment that the runner was given
    # The absolute path of an existing directory; ``None``: ``work`` in the piece's own folder, which goes when the
    # piece is forgotten.
    working_directory: str | None = None
    site: str = ""  # the name of this site
    sites: tuple[str, ...] = ()  # the names of all sites of the job
    # ``KEY@host:port`` (`Meeting`): where the ranks find each other, and by which key they know each other.
    rendezvous: str = ""
    # Work after which the piece is ended, in ms at full speed: wall time, if it is neither paused nor slowed.
    limit_ms: int | None = None
    grace_ms: int = DEFAULT_GRACE_MS  # time between TERM and KILL
    # What is kept of the output of a rank, standard output and error together.
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    # The instant at which the ranks start, all at once, by the clock of this machine; ``None``: as soon as they can.
    start_at_unix_ms: int | None = None
    # If not ``None``, the ranks wait at their gate until somebody opens it, and are ended if nobody has taken note that
    # they run within so long.
    alone_ms: int | None = None
    checkpoint_signal: str = "TERM"  # by its name, without ``SIG``: what its ranks are sent to save what they have done
    # Whether the other ranks of this piece are ended when one has failed, as with ``mpirun``.
    end_on_failure: bool = True
    # Of a packed array: the elements that its ranks draw; ``None``: each rank runs the command once.
    elements: Ranges | None = None
    starts: int = 0  # how often the job has started before
    part: NodePart | None = None  # ``None``: the nodes of its ranks, whole
    user: str = ""  # whose job it is
    # What the machine adds: the socket of the launcher that starts the ranks as the Unix user of that user (empty: they
    # run as the service does), what they may use together, and the control groups in which that is held, by controller.
    launcher: str = ""
    limits: Limits | None = None
    groups: dict[str, str] = {}
    limit_signal: LimitSignal | None = None
    # Work per ms while no other job slows this one: below 1 where a split slows it, above 1 on fast machines.
    rate: float = 1.0
    # Where nodes are shared: how many cores the site counts on a node, and how many hardware threads on a core.
    lanes: tuple[int, int] | None = None


class OutputLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a machine keeps the folders of ended jobs, with their output.

    Attributes
    ----------
    days : int
        Days after the end of the job.
    bytes_per_user : int
        Disk space on the machine for the folders of each user; beyond it the user's oldest are removed.
    """

    days: int = 90
    bytes_per_user: int = 10 << 30


KEEP_OUTPUT = OutputLimits()


class Removal(msgspec.Struct, frozen=True):
    """When a machine removed the output of a job (Unix time), and why, in words that follow a colon."""

    at_ms: int
    reason: str


_NAMED = 5


class TakenUsers(msgspec.Struct, frozen=True, kw_only=True):
    """Whose jobs a machine takes, or a site, which takes whom all of its machines take.

    Attributes
    ----------
    anyone : bool
    names : tuple of str
        Who is taken, if not anyone.
    is_mapped : bool
        Whether that is a map of users to accounts, a launcher's or a batch system's; otherwise it is the owner alone.
    options : tuple of str
        The names of the options for a batch system that jobs may have, as they are passed on to it.
    forms : bool
        Whether jobs may have forms, as the machines of the site differ.
    shares : bool
        Whether jobs share its nodes by hardware threads.
    """

    anyone: bool = True
    names: tuple[str, ...] = ()
    is_mapped: bool = False
    options: tuple[str, ...] = ()
    forms: bool = False
    shares: bool = False

    def refusal(self, user: str, options: Iterable[str] = (), *, has_forms: bool = False) -> str | None:
        """Return why a job of a user with such options (``name=value``) is not taken, in one line, or None.

        Examples
        --------
        >>> TakenUsers(anyone=False, names=("anna",)).refusal("bert")
        "it runs jobs of 'anna' alone, and this is one of 'bert'; see docs/launchers.md for jobs of others"
        >>> TakenUsers(anyone=False, names=("anna",), is_mapped=True).refusal("bert")
        "it maps 'bert' to no account; have its operator add one"
        >>> TakenUsers(options=("constraint", "gres")).refusal("anna", ["nodelist=n1"])
        'it passes on no option nodelist to a batch system; those that it does are constraint, gres'
        """
        if has_forms and not self.forms:
            return "its machines are all alike, and the job has forms; hand it in with --nodes in place of --form"
        for name in (option.partition("=")[0] for option in options):
            if name not in self.options:
                others = f"; those that it does are {', '.join(self.options)}" if self.options else ""
                return f"it passes on no option {name} to a batch system{others}"
        if self.anyone or user in self.names:
            return None
        if self.is_mapped:
            return f"it maps {user!r} to no account; have its operator add one"
        if not user:
            return None
        owner = " and ".join(map(repr, self.names)) or "nobody"
        return f"it runs jobs of {owner} alone, and this is one of {user!r}; see docs/launchers.md for jobs of others"

    @property
    def words(self) -> str:
        """Whom it takes, as far as it has said; of many the first five.

        Examples
        --------
        >>> TakenUsers().words, TakenUsers(anyone=False, names=("anna", "bert")).words
        ('takes jobs of anyone', 'takes jobs of anna, bert')
        >>> TakenUsers(anyone=False, names=tuple("abcdefg")).words
        'takes jobs of a, b, c, d, e and 2 others'
        """
        if self.anyone:
            return "takes jobs of anyone"
        first, more = ", ".join(self.names[:_NAMED]) or "nobody", len(self.names) - _NAMED
        return f"takes jobs of {first}" + (f" and {more} other{'s' * (more > 1)}" if more > 0 else "")

    def both(self, other: TakenUsers) -> TakenUsers:
        """Return whom both take, with which options."""
        options = tuple(name for name in self.options if name in other.options)
        if self.anyone or other.anyone:
            return msgspec.structs.replace(other if self.anyone else self, options=options)
        names = tuple(name for name in self.names if name in other.names)
        return TakenUsers(anyone=False, names=names, is_mapped=self.is_mapped or other.is_mapped, options=options)


ANYONE = TakenUsers()


class MachineRules(msgspec.Struct, frozen=True, kw_only=True):
    """Whose jobs a machine of a site starts, as whom, and what they may use.

    Attributes
    ----------
    owner : str
        Whose jobs alone it starts; empty: anybody's.
    launcher : str
        The socket of the launcher that starts ranks as the Unix users of their jobs' users; empty: they run as the
        service does.
    limits : Limits, optional
        What a job may use for each of its nodes on the machine.
    gives_parts : bool
        Whether jobs get parts of its nodes, which control groups have to hold.
    counts_parts : bool
        Whether parts of its nodes are only counted, as its nodes are: then nothing holds jobs to them.
    options : tuple of str
        As `TakenUsers.options`.
    mapped : tuple of str, optional
        Whose jobs alone it starts, as users are mapped to accounts of a batch system; None: that is not said.
    output : OutputLimits
        How long it keeps the output of jobs that have ended.
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
        """Return why a job of a user is not started, in one line, or None.

        Examples
        --------
        >>> MachineRules(owner="anna").refusal("anna")
        >>> MachineRules(owner="anna").refusal("bert")
        "it runs jobs of 'anna' alone, and this is one of 'bert'; see docs/launchers.md for jobs of others"
        """
        return self.users.refusal(user)

    @property
    def users(self) -> TakenUsers:
        """Whose jobs it starts, as far as these rules say; a launcher has a map of its own."""
        if self.mapped is not None:
            return TakenUsers(anyone=False, names=self.mapped, is_mapped=True, options=self.options)
        return TakenUsers(anyone=not self.owner, names=(self.owner,) if self.owner else (), options=self.options)


ANY_JOBS = MachineRules()


class Used(msgspec.Struct, frozen=True):
    """What processes used.

    Attributes
    ----------
    cpu_s : float
        Time on the processors, user and system.
    peak_memory_bytes : int
        The most memory at one time: of a rank, the larger of its largest process and of all its processes together at
        any sample (shared pages counted for each); of a piece, the sum over its ranks.
    read_bytes, written_bytes : int
        What went from and to storage; what the page cache gave is not in it.
    wall_s : float
        Time from start to end; of a piece, of its longest rank.
    """

    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    wall_s: float = 0.0


class RankReport(msgspec.Struct, frozen=True):
    """What became of a rank."""

    rank: int
    pid: int  # also the number of its session and process group
    # When its process started, in clock ticks since the machine did; with `pid` it names one process for good.
    start_ticks: int
    exit_code: int | None = None  # if it has exited
    signal: int | None = None  # if a signal ended it
    # Output that is in its files, and output that is not because the limit was reached or the disk was full.
    kept_bytes: int = 0
    dropped_bytes: int = 0
    output_problem: str = ""  # why output is missing; empty if none is
    usage: Used = Used()


class PieceState(msgspec.Struct, frozen=True, kw_only=True):
    """What the folder of a piece says of it (``state.msgpack``)."""

    job_id: int
    attempt: int
    phase: Phase  # ``waiting`` for the agreed instant, ``running``, ``ending`` (told to end), ``ended``
    boot_id: str  # the start of the machine in which the numbers of processes below mean something
    token: str = ""  # the value of ``GRIDWEAVE_PIECE`` in the environment of its processes
    # The process that supervises it; 0 if there never was one.
    shim_pid: int = 0
    shim_start_ticks: int = 0
    # Unix time in ms.
    started_ms: int | None = None
    ended_ms: int | None = None
    outcome: Outcome | None = None  # see `Outcome`; ``None`` until it has ended
    reason: str = ""  # why it ended as it did, in one line
    ranks: tuple[RankReport, ...] = ()
    at_gate: bool = False  # whether all ranks wait until somebody opens their gate
    usage: Used = Used()  # of the whole piece, also of processes that no rank can be found for
    is_paused: bool = False
    paused_ms: int = 0  # how long it has stood still, up to the last time that it went on
    has_own_ipc: bool = False  # whether what it leaves of System V and POSIX IPC goes with its last process
    kill_due_ms: int | None = None  # when its processes are killed at the latest, at the pace that it has now


class PieceReady(msgspec.Struct, frozen=True, tag="PieceReady"):
    """All ranks of a piece wait at their gate."""

    job_id: int
    attempt: int


class PieceStarted(msgspec.Struct, frozen=True, tag="PieceStarted"):
    """All ranks of a piece run."""

    job_id: int
    attempt: int
    started_ms: int
    alone_ms: int | None = None  # as in `Launch`


class PieceEnded(msgspec.Struct, frozen=True, tag="PieceEnded"):
    """No process of a piece is left; `started_ms` is ``None`` if none of its ranks ever ran."""

    job_id: int
    attempt: int
    outcome: Outcome
    reason: str
    ranks: tuple[RankReport, ...]
    usage: Used
    started_ms: int | None
    ended_ms: int
    # Of a packed array: what became of its elements, and which were drawn and did not end.
    elements: tuple[Element, ...] = ()
    interrupted: tuple[int, ...] = ()


PieceEvent = PieceReady | PieceStarted | PieceEnded


Ran = tuple[int, int] | None
"""From when to when all processes of something ran, by the clocks of machines."""


def both_ran(one: Ran, other: Ran) -> Ran:
    """Return when the last processes of two began, and when the last ended.

    Examples
    --------
    >>> both_ran((10, 30), (20, 25)), both_ran(None, (20, 25))
    ((20, 30), (20, 25))
    """
    if one is None or other is None:
        return one or other
    return max(one[0], other[0]), max(one[1], other[1])


_UnixMs = Annotated[int, Meta(ge=0, le=8_640_000_000_000_000)]
"""Unix time in ms, as far as browsers know it."""

_Rank = Annotated[int, Meta(ge=0, le=10**7)]


class UsagePoint(msgspec.Struct, frozen=True, array_like=True):
    """What a piece of a job had used up to an instant.

    Attributes
    ----------
    at_ms : int
        By the clock of its machine, Unix time.
    cpu_s : float
        Processor time of all its processes since they began.
    memory_bytes : int
        The most that they had together at a look since the point before.
    """

    at_ms: _UnixMs
    cpu_s: Annotated[float, Meta(ge=0)]
    memory_bytes: Annotated[int, Meta(ge=0)]


class UsageCurve(msgspec.Struct, frozen=True, kw_only=True):
    """What a piece of a job used over time; as it lies where its user may write, it is bounded.

    Attributes
    ----------
    site, host : str
        Where it runs; the host as its operating system calls itself.
    first_rank, last_rank, size : int
        The ranks of the piece, of so many of the whole job.
    start_ms : int
        When its processes began, by the clock of its machine, Unix time; they had used nothing then.
    points : tuple of UsagePoint
        In order of time; at most 120 and the newest.
    """

    site: Annotated[str, Meta(max_length=200)]
    host: Annotated[str, Meta(max_length=200)]
    first_rank: _Rank
    last_rank: _Rank
    size: _Rank
    start_ms: _UnixMs
    points: Annotated[tuple[UsagePoint, ...], Meta(max_length=1000)]


def total_usage(parts: tuple[Used, ...]) -> Used:
    """Return what several processes used together: sums, and the wall time of the longest.

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
    """Return a number, truth value or text of numpy as Python's own; any other value as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def json_problem(value: object, *, most_depth: int = 32) -> str | None:
    """Return what in a value does not come back from JSON equal, or is too deep; a tuple may come back as a list.

    Examples
    --------
    >>> json_problem([1, "a", {"b": (None, 2.5)}]), json_problem([{1: 2}]), json_problem({3})
    (None, 'an object with a name that is not text', 'a set that JSON cannot say')
    """
    for one, depth in nested_values(value):
        if depth > most_depth:
            return f"lists or objects more than {most_depth} deep"
        if isinstance(one, bool) or one is None or isinstance(one, (str, list, tuple)):
            continue
        if isinstance(one, dict):
            if not all(isinstance(key, str) for key in one):
                return "an object with a name that is not text"
        elif isinstance(one, int):
            if not -(2**63) <= one < 2**64:
                return "a number that is too large; at most 64 bits"
        elif not isinstance(one, float) or not math.isfinite(one):
            return f"a {type(one).__name__} that JSON cannot say"
    return None


def nested_values(values: Any) -> Iterator[tuple[Any, int]]:
    """Yield all values within a value, with how deep they are; nothing here is recursive."""
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
    """Return what is wrong with a launch that no machine could run, in one line, or ``None``.

    Examples
    --------
    >>> launch_problem(Launch(job_id=1, attempt=0, ranks=(Rank(0),), argv=("true",), environment={"A=B": "c"}))
    "environment: the name 'A=B' holds '='; a name is any text but empty, without '=' and NUL"
    """
    return (
        _command_problem(launch)
        or _environment_problem(launch)
        or _number_problem(launch)
        or ranges_problem(launch.elements or ())
    )


def _command_problem(launch: Launch) -> str | None:
    if launch.call is not None:
        if launch.argv:
            return "both a command and a callable are given; a job is one of them"
        module, _, name = launch.call.function.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            return f"callable {launch.call.function!r}: must be module:function, for example 'package.module:main'"
    elif not launch.argv or not launch.argv[0]:
        return "the command is empty; it must be a list of at least a program's name"
    for what, text in [("command", text) for text in launch.argv] + [
        ("working directory", launch.working_directory or "")
    ]:
        if "\0" in text:
            return f"{what}: {text!r} contains a NUL character, which the operating system does not accept"
    if launch.working_directory is not None and not launch.working_directory.startswith("/"):
        return f"working directory {launch.working_directory!r}: must be an absolute path"
    return None


def _environment_problem(launch: Launch) -> str | None:
    for name, value in launch.environment.items():
        wrong = "is empty" if not name else "holds '='" if "=" in name else "holds NUL" if "\0" in name else ""
        if wrong:
            return f"environment: the name {name!r} {wrong}; a name is any text but empty, without '=' and NUL"
        if "\0" in value:
            return f"environment: the value of {name} contains NUL; a value is any text without it"
    return None


def _number_problem(launch: Launch) -> str | None:
    size = launch.size if launch.size is not None else len(launch.ranks)
    numbers = [rank.rank for rank in launch.ranks]
    if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0 or max(numbers) >= size:
        return f"ranks {numbers} of {size}: must be at least one, each once, from 0 to {size - 1}"
    if any(rank.threads is not None and not rank.threads for rank in launch.ranks):
        return "a rank is to be pinned to no hardware thread at all; give at least one, or None for any"
    for name in ("limit_ms", "grace_ms", "output_limit_bytes", "start_at_unix_ms", "alone_ms"):
        value = getattr(launch, name)
        if value is not None and value < 0:
            return f"{name} {value}: must be at least 0"
    return None


class SplitCost(msgspec.Struct, frozen=True, kw_only=True):
    """What it costs a job to be split over several sites, by what was known when it was placed.

    Attributes
    ----------
    whole_ms, length_ms : int
        How long it takes at most on one site, and on these.
    factor : float
        By which its work takes longer.
    latency_ms : float, optional
        The longest between two of its sites, one way; None: the grid knows of no links.
    bandwidth_bps : float, optional
        The least between two of its sites; None: the grid knows of no links.
    communication : str
        What it is taken to send, and who says so; empty if the grid knows of no links.
    text : str
        All of that in one line, for people.
    """

    whole_ms: int
    length_ms: int
    factor: float
    latency_ms: float | None = None
    bandwidth_bps: float | None = None
    communication: str = ""
    text: str = ""


class NodeSharing(msgspec.Struct, frozen=True, kw_only=True):
    """With whom a job shares its nodes, and what that costs (docs/sharing.md, "On machines").

    Attributes
    ----------
    beside : tuple of int
        The jobs with which it has shared nodes so far, in the order in which they met.
    now : tuple of int
        Those of them that are on its nodes now; none once it has ended.
    slowdown : float
        How many times as long as alone its work takes by the table of its site: now, and once it has ended over its
        whole run.
    real : float, optional
        How many times as long as such jobs take alone it really took; None before its end, and if none has run alone.
    alone_ms, alone_runs : int
        How long such jobs take alone (their geometric mean), and how many have.
    text : str
        What is expected in one line, for people.
    """

    beside: tuple[int, ...]
    now: tuple[int, ...] = ()
    slowdown: float
    real: float | None = None
    alone_ms: int = 0
    alone_runs: int = 0
    text: str = ""
