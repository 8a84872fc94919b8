"""Track which jobs share nodes, and their expected and measured slowdowns.

How long a job would have run alone is unknown. So its run is compared with runs of jobs of the same user, class, name
and width that did not share their nodes (docs/sharing.md, "On machines").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gridweave.site.explain import listed
from gridweave.site.job import JobRecord, JobRequest
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.launch import NodeSharing
from gridweave.site.times import span_text

_MOST_KINDS = 10_000


class SharedTime(msgspec.Struct):
    """A running job's node sharing so far; its partners are the jobs that share its nodes; work is in ms at rate 1."""

    start_ms: int
    since_ms: int  # when the job got its current partners and rate
    rate: int = RATE_ONE
    now: tuple[int, ...] = ()
    ever: tuple[int, ...] = ()
    worked: float = 0.0  # work done until ``since_ms``

    def change(self, now_ms: int, rate: int, partners: tuple[int, ...]) -> bool:
        """Record a new rate and new partners; return whether either of them changed."""
        if (rate, partners) == (self.rate, self.now):
            return False
        self.worked, self.since_ms = self._worked_at(now_ms), now_ms
        self.ever += tuple(job_id for job_id in partners if job_id not in self.ever)
        self.rate, self.now = rate, partners
        return True

    def _worked_at(self, now_ms: int) -> float:
        return self.worked + max(0, now_ms - self.since_ms) * self.rate / RATE_ONE

    def at_end(self, now_ms: int) -> NodeSharing:
        """Return all partners so far and the expected slowdown of the whole run."""
        worked = self._worked_at(now_ms)
        slowdown = max(1.0, (now_ms - self.start_ms) / worked) if worked > 0 else RATE_ONE / self.rate
        text = f"on nodes shared with {_jobs(self.ever)}: expected to take {slowdown:.2f} times as long as alone"
        return NodeSharing(beside=self.ever, slowdown=slowdown, text=text)

    def so_far(self, limit_ms: int) -> NodeSharing:
        """Return the current partners and the current slowdown."""
        slowdown = RATE_ONE / self.rate
        alone_text = f"alone again, after sharing nodes with {_jobs(self.ever)}"
        text = beside_text(self.now, limit_ms, slowdown) if self.now else alone_text
        return NodeSharing(beside=self.ever, now=self.now, slowdown=slowdown, text=text)


def beside_text(jobs: Sequence[int], length_ms: int, slowdown: float) -> str:
    """Describe in words a job's partners, its run time with and without sharing, and the slowdown.

    Examples
    --------
    >>> beside_text([12], 600_000, 1.3)
    'on nodes shared with job 12: 13 min instead of 10 min (factor 1.30)'
    """
    lengths = f"{span_text(math.ceil(slowdown * length_ms))} instead of {span_text(length_ms)}"
    return f"on nodes shared with {_jobs(jobs)}: {lengths} (factor {slowdown:.2f})"


def _jobs(jobs: Sequence[int]) -> str:
    if not jobs:
        return "other jobs"
    return f"job {jobs[0]}" if len(jobs) == 1 else f"jobs {listed([str(job_id) for job_id in jobs])}"


def partners_of(nodes: Mapping[int, Iterable[object]]) -> dict[int, tuple[int, ...]]:
    """Return, for each job, the ids of the other jobs on any of its nodes, in ascending order.

    Examples
    --------
    >>> partners_of({1: ["a", "b"], 2: ["b"], 3: ["c"]})
    {1: (2,), 2: (1,), 3: ()}
    """
    on: dict[object, list[int]] = {}
    for job_id, own in nodes.items():
        for node in own:
            on.setdefault(node, []).append(job_id)
    return {
        job_id: tuple(sorted({other for node in own for other in on[node]} - {job_id})) for job_id, own in nodes.items()
    }


class AloneRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Run times of one kind of job that ran alone: number of runs, and mean of the logarithms of the run times [ms]."""

    user: str
    job_class: str
    name: str
    nodes: int
    runs: int = 0
    mean: float = 0.0


class KnownAlone:
    """Run times of jobs that ran alone, by kind of job: the baseline for measured slowdowns."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str, int], AloneRuns] = {}

    def state(self) -> list[AloneRuns]:
        """Return the recorded run times."""
        return list(self._kinds.values())

    def restore(self, state: Sequence[AloneRuns]) -> None:
        """Restore the recorded run times."""
        self._kinds = {(kind.user, kind.job_class, kind.name, kind.nodes): kind for kind in state}

    def ended(self, record: JobRecord, run_ms: int) -> NodeSharing | None:
        """Record an ended job; return its node sharing with the measured slowdown if known, or None if it ran alone."""
        if record.outcome != "finished" or len(record.places) != 1 or run_ms <= 0:
            return record.sharing
        key = _key(record.request)
        kind = self._kinds.get(key)
        if record.sharing is not None:
            if kind is None:
                return record.sharing
            alone_ms = math.exp(kind.mean)
            measured = {"real": run_ms / alone_ms, "alone_ms": round(alone_ms), "alone_runs": kind.runs}
            return msgspec.structs.replace(record.sharing, **measured)
        if kind is None:
            kind = AloneRuns(user=key[0], job_class=key[1], name=key[2], nodes=key[3])
        mean = kind.mean + (math.log(run_ms) - kind.mean) / (kind.runs + 1)
        self._kinds[key] = msgspec.structs.replace(kind, runs=kind.runs + 1, mean=mean)
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return None


def _key(request: JobRequest) -> tuple[str, str, str, int]:
    return request.user, request.job_class, request.name, request.nodes
