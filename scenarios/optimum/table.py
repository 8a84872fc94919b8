"""How far the policies of a run are from the best plans, instant by instant, as Streit's Table 4.4 has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from gridweave.errors import OptionError
from gridweave.scenarios.optimum.time_indexed import solve, time_scale_s
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.site.disciplines.optimal.instance import Instance
from gridweave.site.disciplines.optimal.intervals import THREE, Solution


class OptimumLine(msgspec.Struct, frozen=True, kw_only=True):
    """One instant: the size of the problem, and what became of it.

    Attributes
    ----------
    at_ms : int
    jobs : int
        That wait.
    makespan_s : float
        The longest of the plans of the three policies of the thesis.
    run_s : float
        Sum of the estimates.
    scale_s : int
        The time scale by equation 4.7.
    policy : str
        The best policy.
    quality, loss_pct : float
        Of the plan found, by equation 4.8.
    gap_pct : float, optional
        By how much another plan may still be better; None if nothing was proven.
    seconds : float
        That the solver took.
    """

    at_ms: int
    jobs: int
    makespan_s: float
    run_s: float
    scale_s: int
    policy: str
    quality: float
    loss_pct: float
    gap_pct: float | None
    seconds: float


def line_of(instance: Instance, solution: Solution) -> OptimumLine:
    """Return an instant and its solution as a line of the table."""
    ends = (instance.planned(policy) + instance.estimate_ms for policy in THREE)
    return OptimumLine(
        at_ms=instance.now_ms,
        jobs=len(instance),
        makespan_s=(max(int(end.max()) for end in ends) - instance.now_ms) / 1000,
        run_s=float(instance.estimate_ms.sum()) / 1000,
        scale_s=time_scale_s(instance),
        policy=solution.policy,
        quality=solution.quality,
        loss_pct=solution.loss_pct,
        gap_pct=solution.gap_pct if np.isfinite(solution.bound) else None,
        seconds=solution.seconds,
    )


def instants_of(result: SimulationResult, every: int, *, least: int = 2, most: int = 1_000) -> list[int]:
    """Return the instant of every so manyth submission at which from ``least`` to ``most`` jobs wait."""
    if every < 1:
        raise OptionError("every", f"is {every}; at least 1")
    submit_ms, start_ms = result.workload.submit_ms, np.sort(result.start_ms[result.start_ms != NEVER])
    chosen = np.unique(submit_ms[every - 1 :: every])
    waiting = np.searchsorted(submit_ms, chosen, side="right") - np.searchsorted(start_ms, chosen, side="left")
    return [int(when_ms) for when_ms in chosen[(waiting >= least) & (waiting <= most)]]


def lines_of(
    result: SimulationResult, instants_ms: list[int], report: Callable[[int, int], None] | None = None, **options: Any
) -> Iterator[OptimumLine]:
    """Yield a line for each instant of a schedule; the options are those of the solver, and ``solver``."""
    for number, when_ms in enumerate(instants_ms):
        if report is not None:
            report(number, len(instants_ms))
        instance = instance_at(result, when_ms)
        yield line_of(instance, solve(instance, **options))


def instance_at(result: SimulationResult, now_ms: int) -> Instance:
    """Return what a site had to plan at an instant of a schedule: after its events, before anything started.

    Parameters
    ----------
    result : SimulationResult
        Of one site.
    now_ms : int

    Raises
    ------
    OptionError
        If the instant lies outside of the schedule, or nobody waits then.
    """
    jobs = result.workload
    begin_ms, until_ms = int(jobs.submit_ms.min(initial=0)), int(result.end_ms.max(initial=0))
    if not begin_ms <= now_ms <= until_ms:
        span = f"from {begin_ms / 1000:,.15g} to {until_ms / 1000:,.15g} s"
        raise OptionError("at", f"{now_ms / 1000:,.15g} s is outside of the schedule, which is {span}")
    ran = result.start_ms != NEVER
    waits = np.flatnonzero(ran & (jobs.submit_ms <= now_ms) & (result.start_ms >= now_ms))
    runs = np.flatnonzero(ran & (result.start_ms < now_ms) & (result.end_ms > now_ms))
    if not len(waits):
        raise OptionError("at", f"{now_ms / 1000:,.15g} s: no job waits then; choose an instant of a submission")
    ends_ms = result.start_ms[runs] + jobs.estimate_ms[runs]
    step_ms = np.unique(np.concatenate([[now_ms], ends_ms]))
    taken = (jobs.width[runs][None, :] * (ends_ms[None, :] > step_ms[:, None])).sum(axis=1)
    columns = {name: getattr(jobs, name)[waits] for name in ("job_id", "submit_ms", "width", "estimate_ms")}
    return Instance(now_ms=now_ms, **columns, step_ms=step_ms, step_free=result.nodes - taken)
