"""What jobs need of their nodes that do not say it: by their class from experience, or as the grid's file has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gridweave.site.job import JobRecord, JobRequest, Resources
from gridweave.site.launch import Used
from gridweave.site.needs.text import MEMORY

LEAST_RUNS = 5
"""So many runs of a user and a class are needed before what they used counts."""

DISK_BPS = 200e6
"""What the disk of a node reads or writes, if nothing else is said [bytes/s]: about that of a hard disk."""

_MOST_KINDS = 10_000


class UsualNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs are taken to need of their nodes that do not say it (docs/sharing.md, "What a job needs").

    Attributes
    ----------
    default : Resources, optional
        None: nothing is known of them, and they share their nodes with none.
    by_class, by_user : dict from str to Resources
        In place of the default for jobs of a class, or of a user; the class goes before the user.
    disk_bps : float
        What the disk of a node reads or writes [bytes/s]; by that it is learnt which part of a run was spent on it.
    """

    default: Resources | None = None
    by_class: dict[str, Resources] = {}
    by_user: dict[str, Resources] = {}
    disk_bps: float = DISK_BPS

    def of(self, user: str, job_class: str) -> tuple[Resources | None, str]:
        """Return what a job is taken to need, and who says so, in words."""
        if job_class in self.by_class:
            return self.by_class[job_class], f"as the grid has it for class {job_class}"
        if user in self.by_user:
            return self.by_user[user], f"as the grid has it for user {user}"
        return self.default, "the default of the grid"


class NeedsExperience(msgspec.Struct, frozen=True, kw_only=True):
    """In which parts of their run times the jobs of a user and a class used CPU, network and disk: means of runs."""

    user: str
    job_class: str
    runs: int = 0
    cpu: float = 0.0
    network: float = 0.0
    disk: float = 0.0

    def with_run(self, parts: tuple[float, float, float]) -> NeedsExperience:
        """Return these and one more run."""
        runs = self.runs + 1
        cpu, network, disk = (
            mean + (part - mean) / runs for mean, part in zip((self.cpu, self.network, self.disk), parts, strict=True)
        )
        return msgspec.structs.replace(self, runs=runs, cpu=cpu, network=network, disk=disk)

    @property
    def needs(self) -> Resources:
        """What such a job needs, in thousandths that sum to 1; how much memory is not learnt."""
        cpu, disk = round(self.cpu, 3), round(self.disk, 3)
        disk = min(disk, round(1.0 - cpu, 3))
        return Resources(cpu=cpu, network=round(1.0 - cpu - disk, 3), disk=disk, memory=MEMORY)


class TakenNeeds(NamedTuple):
    """What a job is taken to need of its nodes, and who says so; empty: the job itself, or nobody."""

    needs: Resources | None
    why: str


class KnownNeeds:
    """What the jobs of a grid, or of the own users of a site, need."""

    def __init__(self, usual: UsualNeeds) -> None:
        self._usual = usual
        self._kinds: dict[tuple[str, str], NeedsExperience] = {}

    def change(self, usual: UsualNeeds) -> None:
        """Go by another table from now on; what was learned stays."""
        self._usual = usual

    def state(self) -> list[NeedsExperience]:
        """Return what is known of past runs."""
        return list(self._kinds.values())

    def restore(self, state: Sequence[NeedsExperience]) -> None:
        """Take in what was known of past runs."""
        self._kinds = {(kind.user, kind.job_class): kind for kind in state}

    def of(self, request: JobRequest) -> TakenNeeds:
        """Return what a job is taken to need.

        What a job says goes first, then what runs of its user and class have used, then what the grid's file says.
        """
        if request.resources is not None:
            return TakenNeeds(request.resources, "")
        kind = self._kinds.get((request.user, request.job_class))
        if kind is not None and kind.runs >= LEAST_RUNS:
            return TakenNeeds(kind.needs, f"learnt from {kind.runs} runs of class {request.job_class}")
        needs, why = self._usual.of(request.user, request.job_class)
        return TakenNeeds(needs, "" if needs is None else why)

    def ended(self, record: JobRecord, run_ms: int) -> None:
        """Learn from a job of a class that has run to its own end with its nodes alone."""
        request, used = record.request, record.used
        is_alone = record.sharing is None and len(record.places) == 1
        if not (request.job_class and is_alone and record.outcome == "finished" and used.wall_s > 0):
            return
        parts = parts_of_run(run_ms, request.nodes, used, self._usual.disk_bps)
        if parts is None:
            return
        key = request.user, request.job_class
        kind = self._kinds.get(key) or NeedsExperience(user=key[0], job_class=key[1])
        self._kinds[key] = kind.with_run(parts)
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]


def parts_of_run(run_ms: int, width: int, used: Used, disk_bps: float) -> tuple[float, float, float] | None:
    """Return in which parts of its run time a job used CPU, network and disk; None if that cannot be known."""
    if run_ms <= 0 or not math.isfinite(used.cpu_s):
        return None
    cpu = 1000.0 * used.cpu_s / (run_ms * width)
    return time_parts(run_ms, width, cpu, used.read_bytes + used.written_bytes, disk_bps)


def time_parts(
    run_ms: int, width: int, cpu: float, disk_bytes: int, disk_bps: float
) -> tuple[float, float, float] | None:
    """Return in which parts of its run time a job used CPU, network and disk; None if it used neither CPU nor disk.

    CPU: the part of its run time that it computed. Disk: how long what it read and wrote takes at the full bandwidth of
    the disks of all its nodes, but no longer than it did not compute. A job on several nodes spent the rest on
    messages, as far as is known; of one on a single node the two parts are stretched to the whole.

    Examples
    --------
    >>> time_parts(10_000, 2, 0.5, 800_000_000, 200e6)
    (0.5, 0.3, 0.2)
    >>> time_parts(10_000, 1, 0.25, 500_000_000, 200e6)
    (0.5, 0.0, 0.5)
    """
    cpu = min(max(cpu, 0.0), 1.0)
    disk_s = disk_bytes / (disk_bps * max(width, 1))
    disk = min(1000.0 * disk_s / run_ms, 1.0 - cpu)
    if width > 1:
        return cpu, 1.0 - cpu - disk, disk
    return (cpu / (cpu + disk), 0.0, disk / (cpu + disk)) if cpu + disk > 0 else None
