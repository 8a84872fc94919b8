"""Suggest an estimate, memory and resource needs for the next job from past jobs (docs/experience.md)."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Callable, Sequence

import msgspec

from gridweave.errors import OptionError
from gridweave.site.job import MAX_TIME_MS, Resources
from gridweave.site.journal.records import JobUsage
from gridweave.site.needs.estimates import time_parts

KILL_CHANCE = 0.05
"""Default probability that the next job is killed at the suggested limit."""

MARGIN = 0.1
"""Default margin of a suggested limit above the run time on which it is based, as a fraction."""

_ROUND_MS = 1000
_PARTS = 1000  # fractions are given in thousandths
_ENDS, _STARTS, _ENDS_AT_ONCE = range(3)


class Trial(msgspec.Struct, frozen=True):
    """The result of applying a rule to each past job, using only the jobs that had ended before its start."""

    jobs: int  # jobs with a suggestion
    killed: int  # jobs longer than the suggested limit, including jobs killed at their own limit
    used: float | None  # median fraction of the suggested limit used by the other jobs; None if there are none


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """Values to request for the next job; a value without a suggestion is None, with a reason in ``reasons``."""

    estimate_ms: int | None = None  # a wall time limit, in whole seconds
    estimate_tested: Trial | None = None
    # Factor to apply to the user's own estimates, for jobs whose run time the user can estimate.
    part_of_asked: float | None = None
    part_tested: Trial | None = None
    memory_bytes: int | None = None  # on each node
    # ``memory`` is 1, a whole node's memory, if the node's memory or the jobs' memory use is unknown.
    resources: Resources | None = None
    reasons: tuple[str, ...] = ()  # why values are None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a suggestion.

    Attributes
    ----------
    kill_chance : float
        Accepted probability that the next job is killed at its time limit; above 0, at most 0.5.
    margin : float
        Margin above past use, as a fraction; at least 0.
    disk_bps : float, optional
        Bandwidth of one node's disk [bytes/s].
    node_memory_bytes : float, optional
        Memory of one node [bytes].

    Raises
    ------
    OptionError
        If a value is out of range.

    Examples
    --------
    >>> Rule().least_jobs, Rule(kill_chance=0.01).least_jobs
    (19, 99)
    """

    kill_chance: float = KILL_CHANCE
    margin: float = MARGIN
    disk_bps: float | None = None
    node_memory_bytes: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.kill_chance <= 0.5:
            raise OptionError("kill_chance", f"is {self.kill_chance:g}; expected above 0 and at most 0.5")
        if not 0 <= self.margin < math.inf:
            raise OptionError("margin", f"is {self.margin:g}; expected at least 0, e.g. 0.1")
        for option in ("disk_bps", "node_memory_bytes"):
            value = getattr(self, option)
            if value is not None and not 0 < value < math.inf:
                raise OptionError(option, f"is {value:g}; expected above 0")

    @property
    def least_jobs(self) -> int:
        """The smallest number of past jobs with which `kill_chance` can be achieved."""
        return math.ceil(1 / self.kill_chance - 1e-9) - 1

    def bound(self, ascending: Sequence[float]) -> float | None:
        """Return a bound that the next value exceeds with probability at most `kill_chance`; None with too few values.

        The margin is not included. If all orders of the n values and the next value are equally likely, the next value
        exceeds the k-th smallest with probability 1 - k / (n + 1), whatever the distribution (Wilks, 1941; conformal
        prediction: Vovk, Gammerman and Shafer, 2005). So k is the smallest number with
        (n + 1 - k) / (n + 1) <= kill_chance. Pass infinity for a value if only a lower bound is known.
        """
        rank = math.ceil((len(ascending) + 1) * (1 - self.kill_chance) - 1e-9)
        return ascending[rank - 1] if rank <= len(ascending) else None


def was_killed(used: JobUsage) -> bool:
    """Whether a job ran until its time limit, so that its full run time is unknown."""
    return 0 < used.estimate_ms <= used.run_ms


def suggest(jobs: Sequence[JobUsage], rule: Rule | None = None) -> Suggestion:
    """Suggest values to request for the next job of the same kind.

    Examples
    --------
    >>> jobs = [JobUsage(job_id=n, at_ms=n, width=1, estimate_ms=60_000, run_ms=1000 * n) for n in range(1, 20)]
    >>> suggest(jobs, Rule(margin=0)).estimate_ms
    19000
    >>> suggest(jobs[:5]).reasons
    ('too few jobs: 5; 19 are needed for a chance of 5%',)
    """
    rule = rule if rule is not None else Rule()
    if len(jobs) < rule.least_jobs:
        return Suggestion(reasons=(_too_few(len(jobs), "jobs", rule),))
    reasons: list[str] = []
    estimate_ms = _estimate(jobs, rule, reasons)
    part = _part(jobs, rule, reasons)
    memory_bytes = _memory(jobs, rule, reasons)
    return Suggestion(
        estimate_ms=estimate_ms,
        estimate_tested=None if estimate_ms is None else _tested(jobs, rule, _run_ms, lambda _, b: _limit_ms(b, rule)),
        part_of_asked=part,
        part_tested=None if part is None else _tested(_with_limit(jobs), rule, _run_part, _limit_by_part(rule)),
        memory_bytes=memory_bytes,
        resources=_resources(jobs, memory_bytes, rule, reasons),
        reasons=tuple(reasons),
    )


def _too_few(count: int, what: str, rule: Rule) -> str:
    chance = f"{100 * rule.kill_chance:.3g}%"
    return f"too few {what}: {count:,}; {rule.least_jobs:,} are needed for a chance of {chance}"


def _run_ms(used: JobUsage) -> float:
    return math.inf if was_killed(used) else float(used.run_ms)


def _run_part(used: JobUsage) -> float:
    return math.inf if was_killed(used) else used.run_ms / used.estimate_ms


def _with_limit(jobs: Sequence[JobUsage]) -> list[JobUsage]:
    return [used for used in jobs if used.estimate_ms > 0]


def _limit_ms(bound: float, rule: Rule) -> float:
    """Convert a bound to a limit in ms: add the margin and round up to whole seconds, at least one second."""
    seconds = math.ceil(bound * (1 + rule.margin) / _ROUND_MS - 1e-9)
    return float(min(max(seconds, 1) * _ROUND_MS, MAX_TIME_MS))


def _part_of(bound: float, rule: Rule) -> float:
    """Convert a bound to a fraction: add the margin and round up to thousandths, at most 1."""
    return min(max(math.ceil(bound * (1 + rule.margin) * _PARTS - 1e-9), 1) / _PARTS, 1.0)


def _limit_by_part(rule: Rule) -> Callable[[JobUsage, float], float]:
    return lambda used, bound: used.estimate_ms * _part_of(bound, rule)


def _estimate(jobs: Sequence[JobUsage], rule: Rule, reasons: list[str]) -> int | None:
    bound = rule.bound(sorted(map(_run_ms, jobs)))
    if bound is None or bound == math.inf:
        killed = sum(map(was_killed, jobs))
        reasons.append(
            f"no estimate: {killed:,} of {len(jobs):,} jobs reached their limits and would have run longer; "
            "request more than they had"
        )
        return None
    return int(_limit_ms(bound, rule))


def _part(jobs: Sequence[JobUsage], rule: Rule, reasons: list[str]) -> float | None:
    limited_jobs = _with_limit(jobs)
    bound = rule.bound(sorted(map(_run_part, limited_jobs)))
    if bound is None:
        reasons.append("no factor for the estimates: " + _too_few(len(limited_jobs), "jobs with an estimate", rule))
        return None
    return None if bound == math.inf else _part_of(bound, rule)  # `_estimate` has added the reason


def _memory(jobs: Sequence[JobUsage], rule: Rule, reasons: list[str]) -> int | None:
    used_bytes = sorted(float(used.memory_bytes) for used in jobs if used.memory_bytes is not None)
    bound = rule.bound(used_bytes)
    if bound is None:
        reasons.append("no memory: " + _too_few(len(used_bytes), "jobs with known memory", rule))
        return None
    return math.ceil(bound * (1 + rule.margin))


def _tested(
    jobs: Sequence[JobUsage], rule: Rule, value: Callable[[JobUsage], float], limit: Callable[[JobUsage, float], float]
) -> Trial:
    """Apply a rule to each past job, using only the jobs that had ended when it started."""
    # Order of events at equal times: ends, then starts, then the ends of jobs with zero run time.
    happened = sorted(
        [(used.at_ms, _ENDS if used.run_ms > 0 else _ENDS_AT_ONCE, number) for number, used in enumerate(jobs)]
        + [(used.at_ms - used.run_ms, _STARTS, number) for number, used in enumerate(jobs)]
    )
    past_values: list[float] = []
    parts: list[float] = []
    tested = 0
    for _, kind, number in happened:
        used = jobs[number]
        bound = rule.bound(past_values) if kind == _STARTS else None
        if kind != _STARTS:
            bisect.insort(past_values, value(used))
        elif bound is not None and bound < math.inf:
            tested += 1
            limit_ms = limit(used, bound)
            if not was_killed(used) and used.run_ms <= limit_ms:
                parts.append(used.run_ms / limit_ms)
    return Trial(tested, tested - len(parts), statistics.median(parts) if parts else None)


def _resources(jobs: Sequence[JobUsage], memory_bytes: int | None, rule: Rule, reasons: list[str]) -> Resources | None:
    """Return the mean fractions of CPU, network and disk, rounded to thousandths and adding up to 1."""
    if rule.disk_bps is None:
        reasons.append("no resource fractions: the bandwidth of a node's disk is unknown")
        return None
    rows = [fractions for used in jobs if (fractions := job_fractions(used, rule.disk_bps)) is not None]
    if len(rows) < rule.least_jobs:
        reasons.append("no resource fractions: " + _too_few(len(rows), "jobs with known CPU and I/O", rule))
        return None
    cpu, disk = (round(_PARTS * math.fsum(row[column] for row in rows) / len(rows)) for column in (0, 2))
    disk = min(disk, _PARTS - cpu)
    return Resources(
        cpu=cpu / _PARTS,
        network=(_PARTS - cpu - disk) / _PARTS,
        disk=disk / _PARTS,
        memory=_memory_part(memory_bytes, rule, reasons),
    )


def _memory_part(memory_bytes: int | None, rule: Rule, reasons: list[str]) -> float:
    if rule.node_memory_bytes is None:
        reasons.append("memory is a whole node's: the memory of a node is unknown")
    if memory_bytes is None or rule.node_memory_bytes is None:
        return 1.0
    if memory_bytes > rule.node_memory_bytes:
        reasons.append("memory is a whole node's: past jobs used at least that much")
        return 1.0
    return max(math.ceil(_PARTS * memory_bytes / rule.node_memory_bytes), 1) / _PARTS


def job_fractions(used: JobUsage, disk_bps: float) -> tuple[float, float, float] | None:
    """Return the fractions of a job's run time spent on CPU, network and disk; None if they were not measured."""
    if used.cpu is None or used.read_bytes is None or used.write_bytes is None or used.run_ms <= 0:
        return None
    return time_parts(used.run_ms, used.width, used.cpu, used.read_bytes + used.write_bytes, disk_bps)
