"""Define quotas: the operator's limits on what the jobs of a user or account may request and use.

A job that exceeds a limit per job (time limit, priority, nodes) or a limit on waiting jobs is refused. A job that
exceeds a limit on admitted jobs or on node-hours in a window has to wait. docs/quotas.md has the rules.
"""

from __future__ import annotations

import math

import msgspec

from gridweave.errors import OptionError
from gridweave.site.job import MAX_TIME_MS, MAX_WIDTH, MOST_PRIORITY, JobRequest
from gridweave.site.resources.chunks import FIRST_COLUMNS, WHOLE_NODE, most_nodes
from gridweave.site.resources.text import memory_text, parse_memory
from gridweave.site.times import span_text, typed_time
from gridweave.values import counted

HOUR_MS = 3_600_000

USUAL_WINDOW_HOURS = 720.0

MOST_NODE_S = 10**12
"""Cap on the node-seconds counted for a job (30,000 node-years), so that sums fit into 64-bit integers."""

MOST_HOURS = MAX_TIME_MS / HOUR_MS

MOST_PARTS = 10**12
"""Largest limit on cores or GPUs."""

PARTS = FIRST_COLUMNS
"""The parts of nodes that quotas limit."""


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The quota of a user or account; None: no limit.

    Attributes
    ----------
    limit_hours : float, optional
        Longest wall time limit of a job.
    priority : float, optional
        Highest priority of a job.
    nodes : int, optional
        Largest number of nodes of a job.
    waiting_jobs : int, optional
        Largest number of jobs that have not started, wherever they are waiting.
    running_jobs, running_nodes : int, optional
        Largest number of jobs that are queued or running, and of the nodes of all these jobs.
    max_cores, max_gpus : int, optional
        Largest numbers of cores and of GPUs that all these jobs ask for; jobs of whole nodes ask for none.
    max_memory : str, optional
        Largest size of memory that all these jobs ask for, e.g. ``512GB``.
    node_hours : float, optional
        Node-hours in the window: actual use of ended jobs, plus the most that queued and running jobs can use.
    window_hours : float, optional
        Length of the window; None: 720 hours.

    Raises
    ------
    OptionError
        If a number is out of range.
    """

    limit_hours: float | None = None
    priority: float | None = None
    nodes: int | None = None
    waiting_jobs: int | None = None
    running_jobs: int | None = None
    running_nodes: int | None = None
    node_hours: float | None = None
    window_hours: float | None = None
    max_cores: int | None = None
    max_gpus: int | None = None
    max_memory: str | None = None

    def __post_init__(self) -> None:
        for name, most in (("limit_hours", MOST_HOURS), ("node_hours", 1e12), ("window_hours", MOST_HOURS)):
            value = getattr(self, name)
            if value is not None and not 0 < value <= most:
                raise OptionError(name, f"is {value}; expected hours, above 0 and at most {most:g}")
        for name in ("nodes", "waiting_jobs", "running_jobs", "running_nodes"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_WIDTH:
                raise OptionError(name, f"is {value}; expected a whole number from 1 to {MAX_WIDTH}")
        for name in ("max_cores", "max_gpus"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MOST_PARTS:
                raise OptionError(name, f"is {value}; expected a whole number from 0 to {MOST_PARTS}")
        if self.max_memory is not None:
            parse_memory("max_memory", self.max_memory)
        if self.priority is not None and not abs(self.priority) <= MOST_PRIORITY:
            expected = f"a number from -{MOST_PRIORITY} to {MOST_PRIORITY}"
            raise OptionError("priority", f"is {self.priority}; expected {expected}")

    def over(self, usual: Quota) -> Quota:
        """Return this quota with the values of ``usual`` in the fields that are None.

        Examples
        --------
        >>> both = Quota(nodes=8).over(Quota(nodes=4, priority=5.0))
        >>> both.nodes, both.priority
        (8, 5.0)
        """
        own_values = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}
        return msgspec.structs.replace(usual, **own_values)

    @property
    def lets_wait(self) -> bool:
        """Whether this quota can make a job wait for other jobs."""
        return bool(self.parts) or not (self.running_jobs is self.running_nodes is self.node_hours is None)

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """The limits on the total cores, memory and GPUs that jobs request, by the names in `PARTS`."""
        memory_mb = None if self.max_memory is None else parse_memory("max_memory", self.max_memory)
        limits = zip(PARTS, (self.max_cores, memory_mb, self.max_gpus), strict=True)
        return tuple((name, most) for name, most in limits if most is not None)

    @property
    def limit_ms(self) -> int:
        """`limit_hours` in ms; meaningful only if `limit_hours` is set."""
        return math.floor((self.limit_hours or 0.0) * HOUR_MS)

    @property
    def node_s(self) -> int:
        """`node_hours` in node-seconds; meaningful only if `node_hours` is set."""
        return math.floor((self.node_hours or 0.0) * 3600)

    @property
    def window_ms(self) -> int:
        """`window_hours` in ms, or the default."""
        return math.floor((self.window_hours or USUAL_WINDOW_HOURS) * HOUR_MS)


NO_QUOTA = Quota()


class Quotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Quotas of a grid, or of a site for its own users: defaults for each user and account, and exceptions by name."""

    each_user: Quota = NO_QUOTA
    each_account: Quota = NO_QUOTA
    users: dict[str, Quota] = {}
    accounts: dict[str, Quota] = {}

    def of(self, kind: str, name: str) -> Quota:
        """Return the quota of the ``user`` or ``account`` with this name.

        Examples
        --------
        >>> quotas = Quotas(each_user=Quota(nodes=4), users={"anna": Quota(nodes=8)})
        >>> quotas.of("user", "anna").nodes, quotas.of("user", "bert").nodes, quotas.of("account", "physics").nodes
        (8, 4, None)
        """
        named, usual = (self.users, self.each_user) if kind == "user" else (self.accounts, self.each_account)
        own = named.get(name)
        return usual if own is None else own.over(usual)


NO_QUOTAS = Quotas()


class QuotasChanged(msgspec.Struct, frozen=True, tag="MaximaSet"):
    """The operator has changed the quotas, which apply to new jobs and to jobs that are waiting because of a quota."""

    quotas: Quotas = msgspec.field(name="maxima")


def node_s_of(nodes: int, span_ms: int) -> int:
    """Return a job's node-seconds, rounded up; at most `MOST_NODE_S`.

    Examples
    --------
    >>> node_s_of(4, 1_500)
    6
    """
    return min(-(-nodes * span_ms // 1000), MOST_NODE_S)


def beyond(maximum: Quota, whose: str, request: JobRequest, unstarted: int) -> str | None:
    """Describe which limit a submitted job exceeds, by how much, and what would be accepted; None if it exceeds none.

    ``whose`` is the quota's user or account in words; ``unstarted`` is the number of jobs that have not started.

    Examples
    --------
    >>> from gridweave.site.job import Program
    >>> request = JobRequest(program=Program(argv=("true",)), nodes=12, limit_ms=1000)
    >>> beyond(Quota(nodes=8), "user 'anna'", request, 0)
    "nodes is 12, 4 more than the quota of user 'anna'; request at most 8"
    """
    nodes = most_nodes(request.nodes, request.chunk)
    if maximum.nodes is not None and nodes > maximum.nodes:
        more = str(nodes - maximum.nodes)
        return f"nodes is {nodes}, {more} more than the quota of {whose}; request at most {maximum.nodes}"
    if maximum.running_nodes is not None and nodes > maximum.running_nodes:
        more = f"{nodes - maximum.running_nodes} more than the quota of all jobs of {whose} together"
        return f"nodes is {nodes}, {more}; request at most {maximum.running_nodes}"
    if (problem := _beyond_parts(maximum, whose, request)) is not None:
        return problem
    if maximum.limit_hours is not None and request.limit_ms > maximum.limit_ms:
        more = f"{span_text(request.limit_ms - maximum.limit_ms)} more than the quota of {whose}"
        right = f"request at most {typed_time(maximum.limit_ms)}"
        return f"the time limit is {span_text(request.limit_ms)}, {more}; {right}"
    if maximum.priority is not None and request.priority > maximum.priority:
        more = f"{request.priority - maximum.priority:g} more than the quota of {whose}"
        return f"priority is {request.priority:g}, {more}; request at most {maximum.priority:g}"
    asked_s = node_s_of(nodes, request.limit_ms)
    if maximum.node_hours is not None and asked_s > maximum.node_s:
        more = f"{hours_text(asked_s - maximum.node_s)} more than {whose} may use in {span_text(maximum.window_ms)}"
        right = f"request at most {hours_text(maximum.node_s)}, with fewer nodes or a shorter time limit"
        return f"it could use {hours_text(asked_s)} node-hours, {more}; {right}"
    if maximum.waiting_jobs is not None and unstarted >= maximum.waiting_jobs:
        more = f"with this job {unstarted + 1 - maximum.waiting_jobs} more than the quota"
        return f"{whose} has {unstarted} jobs that have not started, {more}; wait until one starts, or cancel one"
    return None


def parts_of(request: JobRequest) -> tuple[int, int, int]:
    """Return how many cores, how much memory [MB] and how many GPUs a job asks for; 0 for whole nodes.

    Examples
    --------
    >>> from gridweave.site.job import Program
    >>> from gridweave.site.resources.chunks import Chunk
    >>> parts_of(JobRequest(program=Program(argv=("true",)), nodes=2, limit_ms=1, chunk=Chunk(cores=4, gpus=1)))
    (8, 0, 2)
    """
    chunk = request.chunk or WHOLE_NODE
    return request.nodes * chunk.cores, request.nodes * chunk.memory_mb, request.nodes * chunk.gpus


def part_text(name: str, amount: int) -> str:
    """Return an amount of a part of nodes in words, such as ``8 cores`` or ``64 GB of memory``."""
    if name == "memory_mb":
        return f"{memory_text(amount)} of memory"
    return counted(amount, "core" if name == "cores" else "GPU")


def _beyond_parts(maximum: Quota, whose: str, request: JobRequest) -> str | None:
    asked = dict(zip(PARTS, parts_of(request), strict=True))
    for name, most in maximum.parts:
        if asked[name] > most:
            more = f"{part_text(name, asked[name] - most)} more than the quota of all jobs of {whose} together"
            return f"it asks for {part_text(name, asked[name])}, {more}; request at most {part_text(name, most)}"
    return None


def hours_text(node_s: int) -> str:
    """Format node-seconds as node-hours, with three significant digits below 1,000 hours.

    Examples
    --------
    >>> hours_text(3600), hours_text(5400), hours_text(1)
    ('1', '1.5', '0.000278')
    """
    return f"{node_s / 3600:.3g}" if node_s < 3_600_000 else f"{node_s / 3600:.0f}"
