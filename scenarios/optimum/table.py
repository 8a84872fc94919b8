"""Compare the policies with the best plans at many instants of a run, as in Streit's Table 4.4."""

from __future__ import annotations

import csv
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gridweave.errors import OptionError
from gridweave.scenarios.optimum.time_indexed import longest_ms, solve, time_scale_s
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.site.disciplines.optimal.instance import Instance, IntArray
from gridweave.site.disciplines.optimal.intervals import Solution


class GapPoint(msgspec.Struct, frozen=True):
    """The state of a search for the best plan, at one moment.

    Attributes
    ----------
    seconds : float
        Time since the start of the search.
    worth, bound : float
        Objective value of the best plan so far (lower is better), and a lower bound on the value of any plan.
    """

    seconds: float
    worth: float
    bound: float

    @property
    def gap_pct(self) -> float:
        """Percentage by which another plan may still be better than the best plan so far."""
        return 100.0 * max(0.0, 1.0 - self.bound / self.worth)


class OptimumLine(msgspec.Struct, frozen=True, kw_only=True):
    """The size of an instant's planning problem, and the solution.

    Attributes
    ----------
    at_ms : int
    jobs : int
        Number of waiting jobs.
    makespan_s : float
        The longest makespan of the three policies of the thesis.
    run_s : float
        Sum of the jobs' estimates.
    scale_s : int
        The time scale according to equation 4.7.
    policy : str
        The best policy.
    quality, loss_pct : float
        The solution's quality, and the best policy's loss, according to equation 4.8.
    gap_pct : float, optional
        Percentage by which another plan may still be better; None without a bound.
    seconds : float
        Run time of the solver.
    course : tuple of GapPoint
        Progress of the search; only with CP-SAT.
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
    course: tuple[GapPoint, ...] = ()


class SizeLine(msgspec.Struct, frozen=True, kw_only=True):
    """The loss at instants when about ``jobs`` jobs are waiting.

    Attributes
    ----------
    jobs : int
        Requested number of waiting jobs.
    instants, proven : int
        Number of instants solved, and number solved to proven optimality.
    mean_jobs, loss_pct, most_loss_pct, gap_pct, seconds : float
        Averages over the instants, except that ``most_loss_pct`` is the maximum loss.
    """

    jobs: int
    instants: int
    proven: int
    mean_jobs: float
    loss_pct: float
    most_loss_pct: float
    gap_pct: float
    seconds: float


_PROVEN_PCT = 1e-6


def line_of(instance: Instance, solution: Solution, course: Sequence[GapPoint] = ()) -> OptimumLine:
    """Build an instant's table line from its solution."""
    if course:
        course = [*course, GapPoint(solution.seconds, solution.worth, solution.bound)]
    return OptimumLine(
        at_ms=instance.now_ms,
        jobs=len(instance),
        makespan_s=longest_ms(instance) / 1000,
        run_s=float(instance.estimate_ms.sum()) / 1000,
        scale_s=time_scale_s(instance),
        policy=solution.policy,
        quality=solution.quality,
        loss_pct=solution.loss_pct,
        gap_pct=solution.gap_pct if np.isfinite(solution.bound) else None,
        seconds=solution.seconds,
        course=tuple(course),
    )


def instants_of(result: SimulationResult, every: int, *, most: int = 1_000) -> list[int]:
    """Return the time of every ``every``-th submission, if 2 to ``most`` jobs are waiting at that time."""
    if every < 1:
        raise OptionError("every", f"is {every}; expected at least 1")
    chosen, waiting = _waiting(result, every)
    return [int(when_ms) for when_ms in chosen[(waiting >= 2) & (waiting <= most)]]


def instants_by_size(result: SimulationResult, sizes: Sequence[int], count: int) -> dict[int, list[int]]:
    """Return, for each size, ``count`` submit times spread over the run when that many jobs (within 10%) are waiting.

    Parameters
    ----------
    result : SimulationResult
        Result of one site.
    sizes : sequence of int
        Numbers of waiting jobs, each at least 2.
    count : int
        Number of instants per size; fewer are returned if the run has fewer.
    """
    for size in sizes:
        if size < 2:
            raise OptionError("sizes", f"has {size}; expected at least 2 jobs")
    if count < 1:
        raise OptionError("per_size", f"is {count}; expected at least 1")
    chosen, waiting = _waiting(result, 1)
    instants = {}
    for size in sizes:
        near = chosen[np.abs(waiting - size) <= size // 10]
        indices = np.linspace(0, max(len(near) - 1, 0), count + 2)[1:-1].round().astype(np.int64)
        instants[size] = [int(near[index]) for index in np.unique(indices) if index < len(near)]
    return instants


def _waiting(result: SimulationResult, every: int) -> tuple[IntArray, IntArray]:
    """Return the time of every ``every``-th submission, and the number of jobs waiting at each of these times."""
    submit_ms, start_ms = result.workload.submit_ms, np.sort(result.start_ms[result.start_ms != NEVER])
    chosen = np.unique(submit_ms[every - 1 :: every])
    waiting = np.searchsorted(submit_ms, chosen, side="right") - np.searchsorted(start_ms, chosen, side="left")
    return chosen, waiting


def lines_of(
    result: SimulationResult,
    instants_ms: list[int],
    report: Callable[[int, int, GapPoint | None], None] | None = None,
    **options: Any,
) -> Iterator[OptimumLine]:
    """Yield a line for each instant of a schedule; ``options`` are passed to `solve`.

    ``report`` receives the number of finished instants, their total, and the latest progress of the current instant.
    """
    report_progress = report or (lambda done, total, point: None)
    for number, when_ms in enumerate(instants_ms):
        report_point = functools.partial(report_progress, number, len(instants_ms))
        report_point(None)
        yield _solved(instance_at(result, when_ms), report_point, options)


def _solved(
    instance: Instance, report_point: Callable[[GapPoint | None], None], options: dict[str, Any]
) -> OptimumLine:
    """Solve an instance; record and report the progress of CP-SAT."""
    course: list[GapPoint] = []
    began_s = time.perf_counter()

    def record(worth: float, bound: float) -> None:
        course.append(GapPoint(time.perf_counter() - began_s, worth, bound))
        report_point(course[-1])

    watched: dict[str, Any] = {"progress": record} if options.get("solver", "cp-sat") == "cp-sat" else {}
    return line_of(instance, solve(instance, **options, **watched), course)


def by_size(lines: dict[int, list[OptimumLine]]) -> list[SizeLine]:
    """Average the losses for each requested number of waiting jobs; leave out sizes that have no instants."""
    return [
        SizeLine(
            jobs=size,
            instants=len(of_size),
            proven=sum(line.gap_pct is not None and line.gap_pct < _PROVEN_PCT for line in of_size),
            mean_jobs=float(np.mean([line.jobs for line in of_size])),
            loss_pct=float(np.mean([line.loss_pct for line in of_size])),
            most_loss_pct=max(line.loss_pct for line in of_size),
            gap_pct=float(np.mean([100.0 if line.gap_pct is None else line.gap_pct for line in of_size])),
            seconds=float(np.mean([line.seconds for line in of_size])),
        )
        for size, of_size in lines.items()
        if of_size
    ]


def write_lines(lines: Sequence[OptimumLine], path: Path) -> None:
    """Write a CSV file with a row for each instant."""
    names = [name for name in OptimumLine.__struct_fields__ if name != "course"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([getattr(line, name) for name in names] for line in lines)


def write_gaps(lines: Sequence[OptimumLine], path: Path) -> None:
    """Write a CSV file with the progress of the search at each instant."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("at_ms", "jobs", "seconds", "worth", "bound", "gap_pct"))
        for line in lines:
            for point in line.course:
                bound = point.bound if np.isfinite(point.bound) else ""
                writer.writerow((line.at_ms, line.jobs, point.seconds, point.worth, bound, min(point.gap_pct, 100.0)))


def instance_at(result: SimulationResult, now_ms: int) -> Instance:
    """Return a site's planning problem at a time in its schedule, after that time's events but before any start.

    Raise OptionError if the time is outside the schedule, or no job is waiting at that time.
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
