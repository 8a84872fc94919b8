"""What Slurm's commands print, as structs. Pure: each function takes a text, and `tests/site/batch` has recorded ones.

The formats are those with single letters (``squeue -o``, ``sinfo -o``): they have been the same for years, where the
JSON of the same commands has a new shape with most versions. What does differ between versions is handled here alone.
"""

from __future__ import annotations

import re

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.site.batch.slurm.reasons import UNDECIDED, how_ended, why_waiting
from gridweave.site.batch.system import Allocation, BatchView

OLDEST = (22, 5)
"""The oldest version that this was tried with."""

SQUEUE_FORMAT = "%i|%T|%S|%e|%D|%u|%r|%j"
"""Number, state, start, end, nodes, user, reason, name: what may hold a bar comes last but one, and the name of a job
of ours holds none."""

SINFO_FORMAT = "%D|%T|%l"
"""Nodes, their state, the time limit of the partition."""

_DOWN = ("down", "drained", "draining", "drain", "fail", "failing", "maint", "inval", "future", "unknown", "reboot")
_IDLE = ("idle", "planned")
_RUNNING = (
    "RUNNING", "COMPLETING", "CONFIGURING", "POWER_UP_NODE", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT",
    "RESIZING",
)  # fmt: skip


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: its nodes that run jobs or could, those that nobody has, and its time limit; None: there is none."""

    nodes: int
    idle: int
    longest_ms: int | None


def read_version(text: str) -> tuple[int, int]:
    """Return the version that ``sinfo --version`` prints.

    Examples
    --------
    >>> read_version("slurm-wlm 22.05.8"), read_version("slurm 24.11.1-1")
    ((22, 5), (24, 11))
    """
    found = re.search(r"\b(\d+)\.(\d+)", text)
    if found is None:
        raise InputError(f"sinfo --version prints {text.strip()!r:.100}, which is not a version of Slurm")
    return int(found[1]), int(found[2])


def read_span_ms(text: str) -> int | None:
    """Return a time limit in ms; None: there is none, or none is known.

    Examples
    --------
    >>> read_span_ms("1-00:00:00"), read_span_ms("2:30"), read_span_ms("infinite")
    (86400000, 150000, None)
    """
    days, dash, rest = text.strip().rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in [*parts, *([days] if dash else [])]):
        return None
    # Without days what stands alone is minutes, and two are minutes and seconds; behind days they begin with hours.
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
    """Return an instant in ms; None if Slurm knows none. It is told in Unix seconds (``SLURM_TIME_FORMAT``).

    Examples
    --------
    >>> read_instant_ms("1795436613"), read_instant_ms("N/A")
    (1795436613000, None)
    """
    return int(text) * 1000 if text.isdecimal() and int(text) > 0 else None


def read_sinfo(text: str, partition: str) -> Partition:
    """Return what ``sinfo`` prints of a partition in `SINFO_FORMAT`.

    Raises
    ------
    InputError
        If there is no such partition: nothing is printed.
    UnavailableError
        If a line is none of that format.
    """
    nodes = idle = 0
    longest_ms: int | None = None
    lines = [line.split("|") for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"partition {partition!r}: this cluster has none of that name; sinfo lists those that it has")
    for line in lines:
        if len(line) != 3 or not line[0].isdecimal():
            raise UnavailableError(f"sinfo printed what is not understood: {'|'.join(line)!r:.100}")
        # Behind the state may stand a mark: not answering (*), powered down (~), rebooting (@), and others.
        state, mark = line[1].rstrip("*~#!%$@^-+").lower(), line[1][-1:]
        longest_ms = read_span_ms(line[2])
        if state.startswith(_DOWN) or mark in "*$@^":
            continue
        nodes += int(line[0])
        # A node that is being powered down (%), or is to be (!), can be had again, but not now.
        idle += int(line[0]) if state in _IDLE and mark not in "%!" else 0
    return Partition(nodes=nodes, idle=idle, longest_ms=longest_ms)


class QueuedInSlurm(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``squeue``: a job of anybody."""

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
        """Whether it has nodes."""
        return self.state in _RUNNING

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for nodes."""
        return not self.is_running and how_ended(self.state) is None


def read_squeue(text: str) -> list[QueuedInSlurm]:
    """Return the jobs that ``squeue`` prints in `SQUEUE_FORMAT`.

    Raises
    ------
    UnavailableError
        If a line is none of that format.
    """
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = line.split("|", 7)
        if len(fields) != 8 or not re.match(r"\d", fields[0]):
            raise UnavailableError(f"squeue printed what is not understood: {line!r:.100}")
        number, state, start, end, nodes, user, reason, name = fields
        found.append(
            QueuedInSlurm(
                number=number,
                state=state,
                start_ms=read_instant_ms(start),
                end_ms=read_instant_ms(end),
                # A pending job may be shown with a range of nodes, of which the first number is the least.
                nodes=int(re.match(r"\d*", nodes)[0] or 1),  # type: ignore[index]
                user=user,
                reason=reason,
                name=name,
            )
        )
    return found


def view_of(partition: Partition, queue: list[QueuedInSlurm], prefix: str, own: str = "") -> BatchView:
    """Return what is seen of the cluster, with the allocations whose names begin with ``prefix``.

    Those of the account ``own`` are the site's own.
    """
    busy = [
        (job.start_ms, job.end_ms, job.nodes)
        for job in queue
        if job.start_ms is not None and job.end_ms is not None and (job.is_running or job.is_waiting)
    ]
    ours = [_allocation(job, own) for job in queue if job.name.startswith(prefix)]
    return BatchView(
        nodes=partition.nodes,
        idle=partition.idle,
        longest_ms=partition.longest_ms,
        allocations=tuple(sorted(ours, key=lambda each: (each.name, int(each.number)))),
        busy=tuple(sorted(busy)),
    )


def _allocation(job: QueuedInSlurm, own: str) -> Allocation:
    runs_as = "" if job.user == own else job.user
    known = Allocation(name=job.name, number=job.number, state="running", start_ms=job.start_ms, runs_as=runs_as)
    ended = how_ended(job.state)
    if ended is not None:
        reason = _with_word(ended[1], job.state)
        return msgspec.structs.replace(known, state="ended", reason=reason, end=ended[0])
    if job.is_running:
        return known
    reason = _with_word(why_waiting(job.reason), job.reason)
    return msgspec.structs.replace(known, state="waiting", reason=reason, is_put_off=job.reason not in UNDECIDED)


def _with_word(plain: str, word: str) -> str:
    """Return plain words with Slurm's own behind them, for those who look it up."""
    word = word.split(",", maxsplit=1)[0].split(" ", maxsplit=1)[0]
    return plain if word in plain or word in ("None", "") else f"{plain} ({word})"
