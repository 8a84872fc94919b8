"""Estimate the needs of jobs that do not state them, from earlier runs of their class or the grid's settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gridweave.site.job import JobRecord, JobRequest, Resources
from gridweave.site.launch import Used
from gridweave.site.needs.text import MEMORY

LEAST_RUNS = 5
"""Minimum number of recorded runs of a user and job class for the mean of these runs to be used."""

DISK_BPS = 200e6
"""Default bandwidth of a node's disk, about that of a hard disk [bytes/s]."""

_MOST_KINDS = 10_000


class UsualNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Default needs of jobs that do not state their needs (docs/sharing.md, "What a job needs").

    Attributes
    ----------
    default : Resources, optional
        Needs of all other jobs; None: unknown, so these jobs do not share nodes.
    by_class, by_user : dict from str to Resources
        Needs by job class and by user, which replace the default; the class takes precedence.
    disk_bps : float
        Bandwidth of a node's disk, used to estimate the disk time of a run [bytes/s].
    """

    default: Resources | None = None
    by_class: dict[str, Resources] = {}
    by_user: dict[str, Resources] = {}
    disk_bps: float = DISK_BPS

    def of(self, user: str, job_class: str) -> tuple[Resources | None, str]:
        """Return a job's default needs, and their source in words."""
        if job_class in self.by_class:
            return self.by_class[job_class], f"as the grid has it for class {job_class}"
        if user in self.by_user:
            return self.by_user[user], f"as the grid has it for user {user}"
        return self.default, "the default of the grid"


class NeedsExperience(msgspec.Struct, frozen=True, kw_only=True):
    """Mean fractions of run time that one user's jobs of one job class spent on CPU, network and disk."""

    user: str
    job_class: str
    runs: int = 0
    cpu: float = 0.0
    network: float = 0.0
    disk: float = 0.0

    def with_run(self, parts: tuple[float, float, float]) -> NeedsExperience:
        """Return the means after adding a run."""
        runs = self.runs + 1
        cpu, network, disk = (
            mean + (part - mean) / runs for mean, part in zip((self.cpu, self.network, self.disk), parts, strict=True)
        )
        return msgspec.structs.replace(self, runs=runs, cpu=cpu, network=network, disk=disk)

    @property
    def needs(self) -> Resources:
        """The needs of a job of this user and class; fractions are rounded to 0.001, and memory is a constant."""
        cpu, disk = round(self.cpu, 3), round(self.disk, 3)
        disk = min(disk, round(1.0 - cpu, 3))
        return Resources(cpu=cpu, network=round(1.0 - cpu - disk, 3), disk=disk, memory=MEMORY)


class AssumedNeeds(NamedTuple):
    """A job's assumed needs and their source in words; empty if the job states its needs or they are unknown."""

    needs: Resources | None
    why: str


class KnownNeeds:
    """Estimates the needs of jobs submitted to a grid, or to a site by its own users."""

    def __init__(self, usual: UsualNeeds) -> None:
        self._usual = usual
        self._kinds: dict[tuple[str, str], NeedsExperience] = {}

    def change(self, usual: UsualNeeds) -> None:
        """Replace the defaults; keep the recorded runs."""
        self._usual = usual

    def state(self) -> list[NeedsExperience]:
        """Return the recorded runs."""
        return list(self._kinds.values())

    def restore(self, state: Sequence[NeedsExperience]) -> None:
        """Restore the recorded runs."""
        self._kinds = {(kind.user, kind.job_class): kind for kind in state}

    def of(self, request: JobRequest) -> AssumedNeeds:
        """Return a job's assumed needs.

        The needs stated by the job take precedence, then earlier runs of its user and class, then the defaults.
        """
        if request.resources is not None:
            return AssumedNeeds(request.resources, "")
        kind = self._kinds.get((request.user, request.job_class))
        if kind is not None and kind.runs >= LEAST_RUNS:
            return AssumedNeeds(kind.needs, f"learnt from {kind.runs} runs of class {request.job_class}")
        needs, why = self._usual.of(request.user, request.job_class)
        return AssumedNeeds(needs, "" if needs is None else why)

    def ended(self, record: JobRecord, run_ms: int) -> None:
        """Record an ended job if it has a job class, has finished, and did not share its nodes."""
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
    """Return the fractions of a job's run time spent on CPU, network and disk; None if they cannot be computed."""
    if run_ms <= 0 or not math.isfinite(used.cpu_s):
        return None
    cpu = 1000.0 * used.cpu_s / (run_ms * width)
    return time_parts(run_ms, width, cpu, used.read_bytes + used.written_bytes, disk_bps)


def time_parts(
    run_ms: int, width: int, cpu: float, disk_bytes: int, disk_bps: float
) -> tuple[float, float, float] | None:
    """Return the fractions of a job's run time spent on CPU, network and disk.

    The disk time is the time to transfer `disk_bytes` at the full bandwidth of all nodes' disks, but at most the time
    not spent on CPU. On several nodes, the remaining time counts as network time. On one node, CPU and disk time are
    scaled to sum to 1; the result is None if both are 0.

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
