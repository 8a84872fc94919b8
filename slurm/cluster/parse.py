"""Parse the output of Slurm's commands. Pure: each function parses a text; `tests/slurm` has recorded outputs.

The formats use single letters (``squeue -o``, ``sinfo -o``), which have not changed for years, whereas the commands'
JSON output changes with most versions. The columns of ``sacct`` are selected by name; it lists ended jobs if the
cluster has an accounting database (slurmdbd). All differences between versions in these outputs are handled here.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.slurm.cluster.nodes import BUSY, NodeDetails, groups_of, kinds_of, state_words
from gridweave.slurm.cluster.reasons import UNDECIDED, how_ended, why_waiting, word_of
from gridweave.slurm.system import Allocation, BatchView

OLDEST = (22, 5)
"""The oldest tested version of Slurm."""

SQUEUE_FORMAT = "|%P|%N|%i|%T|%S|%e|%D|%u|%r|%j"
"""A job's partition, node names, number, state, start, end, node count, user, reason and name; follows a random mark.
Fields that may contain a bar come last; the names of the site's own jobs contain no bar.
"""

SINFO_FORMAT = "%D|%T|%l|%N"
"""A group of nodes: their number, their state, the partition's time limit, and their names."""

_DOWN = ("down", "drain", "fail", "maint", "inval", "future", "unknown", "reboot", "not_responding")
_IDLE = ("idle", "planned")
_RUNNING = (
    "RUNNING", "COMPLETING", "CONFIGURING", "POWER_UP_NODE", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT",
    "RESIZING",
)  # fmt: skip


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """The usable nodes of a partition, and its time limit (None: no limit).

    ``nodes`` is the number of nodes that are up, and ``idle`` is the number of free nodes among them; ``taken`` has
    the names of the nodes that are up but not free. ``details`` describes every node, up or not, if the site asks for
    that.
    """

    nodes: int
    idle: int
    longest_ms: int | None
    taken: frozenset[str] = frozenset()
    details: tuple[NodeDetails, ...] = ()


def read_version(text: str) -> tuple[int, int]:
    """Parse the Slurm version from ``sinfo --version`` or slurmrestd; raise InputError if the text has no version.

    Examples
    --------
    >>> read_version("slurm-wlm 22.05.8"), read_version("slurm 24.11.1-1")
    ((22, 5), (24, 11))
    """
    match = re.search(r"\b(\d+)\.(\d+)", text)
    if match is None:
        raise InputError(f"{text.strip()!r:.100} is not a version of Slurm")
    return int(match[1]), int(match[2])


def read_number(text: str) -> str:
    r"""Parse the job number in the output of ``sbatch --parsable``.

    A site's wrapper may also print a banner, so a line counts only if it is a number, or a number and a cluster.

    Raises
    ------
    UnavailableError
        If no line is a job number, or several lines are different numbers. It is then unknown whether Slurm has
        accepted the job, and under which number.

    Examples
    --------
    >>> read_number("Welcome to north\n71;north")
    '71'
    """
    lines = (re.fullmatch(r"(\d+)(;[\w.-]+)?", line.strip()) for line in text.splitlines())
    numbers = {match[1] for match in lines if match}
    if len(numbers) != 1:
        raise UnavailableError(f"sbatch printed {text.strip()!r:.100}; expected a job number")
    return numbers.pop()


def read_span_ms(text: str) -> int | None:
    """Parse a time limit; return it in ms, or None if it is infinite or unknown.

    Examples
    --------
    >>> read_span_ms("1-00:00:00"), read_span_ms("2:30"), read_span_ms("infinite")
    (86400000, 150000, None)
    """
    days, dash, rest = text.strip().rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in [*parts, *([days] if dash else [])]):
        return None
    # Slurm's forms: M, M:S, H:M:S, D-H, D-H:M and D-H:M:S.
    numbers = [int(part) for part in parts]
    if dash:
        numbers += [0] * (3 - len(numbers))
    elif len(numbers) == 1:
        numbers += [0]
    seconds = 0
    for number in numbers:
        seconds = 60 * seconds + number
    return (seconds + (int(days) * 86_400 if dash else 0)) * 1000


def read_instant_ms(text: str) -> int | None:
    """Parse an instant in Unix seconds (``SLURM_TIME_FORMAT``); return it in ms, or None if Slurm does not know it.

    Examples
    --------
    >>> read_instant_ms("1795436613"), read_instant_ms("N/A")
    (1795436613000, None)
    """
    return int(text) * 1000 if text.isdecimal() and int(text) > 0 else None


def read_sinfo(text: str, partition: str) -> Partition:
    """Parse the output of ``sinfo`` in `SINFO_FORMAT` for one partition.

    Raises
    ------
    InputError
        If the output is empty, because there is no such partition.
    UnavailableError
        If a line has another format.
    """
    lines = [line.split("|") for line in text.split("\n") if line.strip()]
    if not lines:
        raise InputError(f"partition {partition!r} does not exist on this cluster; sinfo lists its partitions")
    nodes = []
    for line in lines:
        if len(line) != 4 or not line[0].isdecimal():
            raise UnavailableError(f"a line of sinfo cannot be parsed: {'|'.join(line)!r:.100}")
        nodes.append((int(line[0]), state_words(line[1]), line[3]))
    return partition_of(nodes, read_span_ms(lines[-1][2]))


def partition_of(nodes: Iterable[tuple[int, Sequence[str], str]], longest_ms: int | None) -> Partition:
    """Build a partition from groups of nodes, each given as its size, its state, and its node names.

    A state is a sequence of words: the base state, followed by any flags.

    Examples
    --------
    >>> partition_of([(2, ["IDLE"], "n[1-2]"), (1, ["IDLE", "DRAIN"], "n3"), (1, ["ALLOCATED"], "n4")], None)
    Partition(nodes=3, idle=2, longest_ms=None, taken=frozenset({'n4'}), details=())
    """
    up = idle = 0
    taken: list[str] = []
    for count, words, names in nodes:
        if not is_up(words):
            continue
        state, *others = (word.lower() for word in words)
        up += count
        # A node that is powering down will be free again, but is not free now.
        if state in _IDLE and not BUSY.intersection(others):
            idle += count
        else:
            taken += read_names(names)
    return Partition(nodes=up, idle=idle, longest_ms=longest_ms, taken=frozenset(taken))


def is_up(words: Sequence[str]) -> bool:
    """Whether a node in this state runs jobs or could run jobs."""
    return bool(words) and not any(word.lower().startswith(_DOWN) for word in words)


@functools.lru_cache(maxsize=4096)
def read_names(text: str) -> tuple[str, ...]:
    """Expand a compressed list of node names.

    Examples
    --------
    >>> read_names("n[08-10],gpu1,r[1-2]n[1,3]")
    ('n08', 'n09', 'n10', 'gpu1', 'r1n1', 'r1n3', 'r2n1', 'r2n3')
    """
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        sections = re.split(r"\[([^\]]*)\]", part)
        choices = [_numbers(section) if place % 2 else [section] for place, section in enumerate(sections)]
        names += map("".join, itertools.product(*choices))
    return tuple(names)


def _numbers(text: str) -> list[str]:
    """Expand the ranges in a pair of brackets; the numbers keep their leading zeros.

    Text that is not a range of numbers is returned unchanged.
    """
    numbers: list[str] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        high = high or low
        if low.isdecimal() and high.isdecimal():
            numbers += [f"{number:0{len(low)}}" for number in range(int(low), int(high) + 1)]
        else:
            numbers.append(part)
    return numbers


class QueuedInSlurm(msgspec.Struct, frozen=True, kw_only=True):
    """A job of any user, as in a line of ``squeue``; `partition` can be several names separated by commas."""

    partition: str
    names: str
    number: str
    state: str
    start_ms: int | None
    end_ms: int | None
    nodes: int
    user: str
    reason: str
    name: str

    @property
    def is_running(self) -> bool:
        """Whether the job has nodes."""
        return self.state in _RUNNING

    @property
    def is_waiting(self) -> bool:
        """Whether the job is waiting for nodes."""
        return not self.is_running and how_ended(self.state) is None


def read_squeue(text: str, mark: str = "") -> tuple[list[QueuedInSlurm], list[str]]:
    """Parse the output of ``squeue`` in `SQUEUE_FORMAT`; return the jobs, and the lines that cannot be parsed.

    Parameters
    ----------
    text : str
    mark : str
        Random text that starts every job in the output, so that a line of a job name with several lines is not mistaken
        for another job.

    Raises
    ------
    UnavailableError
        If there is output, but none of it can be parsed.
    """
    first, *lines = f"\n{text}".split(f"\n{mark}|")
    parsed = [_queued(line) for line in lines]
    strange = [line for line, job in zip(lines, parsed, strict=True) if job is None]
    jobs = [job for job in parsed if job is not None]
    strange += [first.strip()] if first.strip() else []
    if strange and not jobs:
        raise UnavailableError(f"a line of squeue cannot be parsed: {strange[0]!r:.100}")
    return jobs, strange


def _queued(line: str) -> QueuedInSlurm | None:
    """Parse a line in `SQUEUE_FORMAT` whose random prefix has been removed; return None if the line is malformed."""
    fields = line.rstrip("\n").split("|", 9)
    if len(fields) != 10 or not re.match(r"\d", fields[2]):
        return None
    partition, names, number, state, start, end, nodes, user, reason, name = fields
    return QueuedInSlurm(
        partition=partition,
        names=names,
        number=number,
        state=state,
        start_ms=read_instant_ms(start),
        end_ms=read_instant_ms(end),
        # A pending job may have a range of node counts, e.g. 2-4; use the minimum.
        nodes=_first_number(nodes) or 1,
        user=user,
        reason=reason,
        name=name,
    )


def _first_number(text: str) -> int:
    """Return the number at the start of a text, e.g. 71 for the job array ``71_[1-9]``, or 0 if there is none."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def view_of(seen: Partition, queue: list[QueuedInSlurm], name: str, prefix: str, own: str = "") -> BatchView:
    """Return a snapshot of the partition ``name``, with the allocations whose names start with ``prefix``.

    Allocations of the Unix account ``own`` are marked as the site's own.
    """
    ours = [_allocation(job, own) for job in queue if job.name.startswith(prefix)]
    kinds = kinds_of(seen.details)
    up = frozenset(node.name for node in seen.details if is_up(node.words))
    ends = {node: span and span[0] for node, span in _last_spans(up, queue).items()}
    return BatchView(
        nodes=seen.nodes,
        idle=seen.idle,
        longest_ms=seen.longest_ms,
        allocations=tuple(sorted(ours, key=lambda allocation: (allocation.name, _first_number(allocation.number)))),
        busy=tuple(sorted([*_busy_nodes(seen, queue), *_busy_jobs(queue, name)])),
        kinds=kinds,
        groups=groups_of(seen.details, kinds, ends, up),
    )


def _busy_nodes(seen: Partition, queue: Iterable[QueuedInSlurm]) -> list[tuple[int, int, int]]:
    """Return when running jobs of any partition occupy this partition's nodes, as (start, end, number of nodes).

    For each node, only the job that ends last counts. Nodes with a job whose end is unknown are omitted.
    """
    last = Counter(filter(None, _last_spans(seen.taken, queue).values()))
    return [(start_ms, end_ms, nodes) for (end_ms, start_ms), nodes in last.items()]


def _last_spans(names: frozenset[str], queue: Iterable[QueuedInSlurm]) -> dict[str, tuple[int, int] | None]:
    """Return the end and start of the job that ends last on each of these nodes; None if a job's end is unknown.

    Nodes without jobs are missing.
    """
    spans: dict[str, list[tuple[int, int] | None]] = {}
    for job in queue:
        span = None if job.start_ms is None or job.end_ms is None else (job.end_ms, job.start_ms)
        for node in names.intersection(read_names(job.names)) if job.is_running else ():
            spans.setdefault(node, []).append(span)
    return {node: None if None in of_node else max(filter(None, of_node)) for node, of_node in spans.items()}


def _busy_jobs(queue: Iterable[QueuedInSlurm], partition: str) -> list[tuple[int, int, int]]:
    """Return (start, end, width) of a partition's jobs that are waiting, or are running on nodes with unknown names."""
    return [
        (job.start_ms, job.end_ms, job.nodes)
        for job in queue
        if not (job.is_running and job.names) and partition in job.partition.split(",")
        if job.start_ms is not None and job.end_ms is not None and (job.is_running or job.is_waiting)
    ]


def _allocation(job: QueuedInSlurm, own: str) -> Allocation:
    runs_as = "" if job.user == own else job.user
    allocation = Allocation(name=job.name, number=job.number, state="running", start_ms=job.start_ms, runs_as=runs_as)
    ended = how_ended(job.state)
    if ended is not None:
        reason = with_word(ended[1], job.state)
        return msgspec.structs.replace(allocation, state="ended", reason=reason, end=ended[0])
    if job.is_running:
        return allocation
    reason = with_word(why_waiting(job.reason), job.reason)
    return msgspec.structs.replace(allocation, state="waiting", reason=reason, is_put_off=job.reason not in UNDECIDED)


def with_word(plain: str, word: str) -> str:
    """Append Slurm's own word to an explanation, in parentheses, so that people can look it up."""
    word = word_of(word)
    return plain if word in plain or word in ("None", "") else f"{plain} ({word})"


SACCT = ("--noheader", "--parsable2", "--allocations", "--allusers", "--format=JobIDRaw,User,JobName,State")
"""Options of ``sacct`` that print one line per job, with its number, user, name and state."""

SINCE = "--starttime=now-31days"
"""Option that skips jobs that ended more than 31 days ago; no site is expected to be down for longer."""


def read_sacct(text: str, own: str) -> list[Allocation]:
    """Parse the output of ``sacct``; return the jobs that have ended, sorted by number.

    Raises
    ------
    UnavailableError
        If a line has another format.

    Examples
    --------
    >>> [(job.name, job.end) for job in read_sacct("71|anna|gw-1|CANCELLED by 0", "anna")]
    [('gw-1', 'cancelled')]
    """
    allocations = []
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = line.split("|")
        if len(fields) != 4 or not fields[0].isdecimal():
            raise UnavailableError(f"a line of sacct cannot be parsed: {line!r:.100}")
        number, user, name, state = fields
        ended = how_ended(state)
        if ended is not None:
            whose = "" if user == own else user
            reason = with_word(ended[1], state.partition(" ")[0])
            allocations.append(
                Allocation(name=name, number=number, state="ended", end=ended[0], reason=reason, runs_as=whose)
            )
    return sorted(allocations, key=lambda allocation: int(allocation.number))
