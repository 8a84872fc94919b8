"""Short builders of random workloads for one site: hypothesis strategies, and a quicker one from a numpy generator.

Numbers are small and coarse so that ties, jobs that fit exactly and ends at one instant come up all the time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from reference.grid import SELECTIONS
from reference.model import DAY, Job, Limit, Reservation, Window
from reference.ordering import ORDERS

if TYPE_CHECKING:
    from gridweave.scenarios.results.schedule import SimulationResult
    from gridweave.scenarios.workload.table import Workload

HOUR = DAY // 24
WEIGHTS = (0.5, 1.0, 1.0, 2.0, 3.0)
USERS = (None, 1, 2)


class Case(NamedTuple):
    """A machine and jobs for it, none wider than the machine unless asked for."""

    nodes: int
    jobs: list[Job]


def assert_alike(got: SimulationResult, want: Any) -> None:
    """Assert that a schedule over several sites is that of a reference, job by job."""
    ran = {job_id: row for row, job_id in enumerate(got.workload.job_id.tolist()) if got.n_fragments[row]}
    assert {job_id: int(got.start_ms[row]) for job_id, row in ran.items()} == want.start
    assert {job_id: int(got.end_ms[row]) for job_id, row in ran.items()} == want.end
    assert {job_id: tuple(got.fragments_of(row)) for job_id, row in ran.items()} == want.fragments
    assert {job_id for job_id, _ in got.refused} == set(want.refused)


@st.composite
def cases(
    draw: st.DrawFn, *, max_jobs: int = 20, max_nodes: int = 8, perfect: bool = False, tick: int = 1, too_wide: int = 0
) -> Case:
    """Draw a machine and jobs in random order of submission, with ids that do not follow it.

    Parameters
    ----------
    draw : callable
        Given by hypothesis.
    max_jobs, max_nodes : int
        Upper bounds.
    perfect : bool
        Whether every job runs for exactly its estimate.
    tick : int
        All times are multiples of this many milliseconds.
    too_wide : int
        Jobs may be wider than the machine by up to this many nodes.

    Returns
    -------
    Case
    """
    nodes = draw(st.integers(1, max_nodes))
    count = draw(st.integers(1, max_jobs))
    ids = draw(st.permutations(range(1, count + 1)))
    jobs = []
    submit = 0
    for job_id in ids:
        submit += draw(st.integers(0, 4)) * tick
        estimate = draw(st.integers(1, 12))
        run = estimate if perfect else draw(st.one_of(st.just(estimate), st.integers(1, estimate + 2)))
        jobs.append(
            Job(
                job_id,
                submit,
                width=draw(st.integers(1, nodes + too_wide)),
                estimate=estimate * tick,
                run=run * tick,
                weight=draw(st.sampled_from(WEIGHTS)),
                priority=draw(st.integers(-1, 2)),
                user=draw(st.sampled_from(USERS)),
            )
        )
    return Case(nodes, jobs)


@st.composite
def queue_options(
    draw: st.DrawFn, backfills: Sequence[str] = ("none", "easy", "conservative", "slack")
) -> dict[str, Any]:
    """Draw keyword arguments of `reference.simulation.simulate` for a queue with one of the backfillings given."""
    return {
        "discipline": "queue",
        "order": draw(st.sampled_from(ORDERS)),
        "backfill": draw(st.sampled_from(backfills)),
        "choice": draw(st.sampled_from(("first-fit", "best-fit"))),
        "slack": draw(st.sampled_from((0.0, 0.1, 0.29, 0.5, 1.0, 2.5))),
        "aging_ms": draw(st.sampled_from((0.0, 1.0, 3.0, math.inf))),
    }


@st.composite
def planning_options(draw: st.DrawFn, backfills: Sequence[str] = ("none", "easy")) -> dict[str, Any]:
    """Draw keyword arguments of `reference.simulation.simulate` for a planning site, without reservations or limits."""
    return {
        "discipline": "planning",
        "order": draw(st.sampled_from(ORDERS)),
        "backfill": draw(st.sampled_from(backfills)),
        "aging_ms": draw(st.sampled_from((0.0, 1.0, 3.0, math.inf))),
    }


def cancellation_lists(jobs: Sequence[Job], *, tick: int = 1) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Return a strategy for cancellations: before, at and after submissions, of jobs waiting, running and gone."""
    last = max(job.submit for job in jobs) // tick + 15
    instants = st.integers(0, last).map(lambda instant: instant * tick)
    return st.lists(st.tuples(instants, st.sampled_from([job.id for job in jobs])), max_size=5)


@st.composite
def reservation_lists(draw: st.DrawFn, case: Case, *, tick: int = 1, max_size: int = 4) -> list[Reservation]:
    """Draw requests for reservations, some in the past, some wider than the machine."""
    last = max(job.submit for job in case.jobs) // tick + 10
    requests = []
    for number in range(draw(st.integers(0, max_size))):
        request = draw(st.one_of(st.integers(0, last), st.sampled_from([job.submit // tick for job in case.jobs])))
        start = max(0, request + draw(st.integers(-2, 20)))
        length, width = draw(st.integers(1, 10)), draw(st.integers(1, case.nodes + 1))
        place = draw(st.one_of(st.none(), st.integers(0, 3)))
        requests.append(Reservation(number, request * tick, start * tick, length * tick, width, place))
    return requests


@st.composite
def limit_lists(draw: st.DrawFn, nodes: int, *, tick: int = HOUR, max_size: int = 3) -> list[Limit]:
    """Draw limits of both kinds; the windows begin and end on full hours."""
    limits = []
    for _ in range(draw(st.integers(0, max_size))):
        whom: dict[str, Any] = {
            "wider_than": draw(st.integers(0, nodes - 1)),
            "longer_than_ms": draw(st.integers(0, 8)) * tick,
            "user": draw(st.sampled_from(USERS)),
        }
        kind = draw(st.sampled_from(("window", "max_nodes", "max_jobs")))
        if kind == "window":
            days = frozenset(draw(st.sets(st.integers(0, 6), max_size=7)))
            limits.append(
                Limit(**whom, window=Window(days, draw(st.integers(0, 23)) * HOUR, draw(st.integers(0, 24)) * HOUR))
            )
        elif kind == "max_nodes":
            limits.append(Limit(**whom, max_nodes=draw(st.integers(0, nodes))))
        else:
            limits.append(Limit(**whom, max_jobs=draw(st.integers(0, 3))))
    return limits


def random_jobs(
    rng: np.random.Generator, count: int, nodes: int, *, load: float = 0.9, tick: int = 1, perfect: bool = False
) -> list[Job]:
    """Return jobs in order of submission, many of them at one instant; for long runs of comparisons.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of all randomness.
    count, nodes : int
        Number of jobs, nodes of the machine. Widths are 1 to ``nodes``, narrow ones more often.
    load : float
        Work that arrives per unit of time, in parts of what the machine can do, on average.
    tick : int
        All times are multiples of this many milliseconds.
    perfect : bool
        Whether every job runs for exactly its estimate. Otherwise 3 of 10 do, 1 of 10 is killed at it.

    Returns
    -------
    list of Job
    """
    widths = np.minimum(np.ceil(nodes ** rng.random(count)).astype(int), nodes)
    estimates = rng.integers(1, 31, count)
    fate = rng.random(count)
    runs = np.maximum(np.ceil(estimates * rng.random(count)).astype(int), 1)
    runs = np.where(fate < 0.3, estimates, np.where(fate < 0.4, estimates + 1, runs))
    if perfect:
        runs = estimates
    work = float(np.mean(widths * np.minimum(runs, estimates)))
    submits = np.floor(np.cumsum(rng.exponential(work / (nodes * load), count))).astype(int)
    ids = rng.permutation(count) + 1
    weights = rng.choice(WEIGHTS, count)
    priorities = rng.integers(-1, 3, count)
    users = rng.integers(0, len(USERS), count)
    jobs = [
        Job(
            int(ids[i]),
            int(submits[i]) * tick,
            int(widths[i]),
            int(estimates[i]) * tick,
            int(runs[i]) * tick,
            float(weights[i]),
            int(priorities[i]),
            USERS[users[i]],
        )
        for i in range(count)
    ]
    return sorted(jobs, key=lambda job: (job.submit, job.id))


def to_workload(jobs: Sequence[Job], *, nodes: int | None = None) -> Workload:
    """Return the same jobs as the package's job table, in the table's order; an unknown user is -1 there."""
    from gridweave.scenarios.workload.table import Workload

    ordered = sorted(jobs, key=lambda job: (job.submit, job.id))
    return Workload(
        np.array([job.id for job in ordered], np.int64),
        np.array([job.submit for job in ordered], np.int64),
        np.array([job.width for job in ordered], np.int64),
        np.array([job.estimate for job in ordered], np.int64),
        np.array([job.length for job in ordered], np.int64),
        overran=np.array([job.run > job.estimate for job in ordered], np.bool_),
        columns={
            "weight": np.array([job.weight for job in ordered], np.float64),
            "priority": np.array([job.priority for job in ordered], np.int64),
            "user": np.array([-1 if job.user is None else job.user for job in ordered], np.int64),
        },
        nodes=nodes,
    )


def workload_of_gaps(
    rows: list[tuple[int, int, int, int]], *, nodes: int = 16, tick_ms: int = 1000, overran: list[bool] | None = None
) -> Workload:
    """Return the jobs with these gaps, widths, estimates and run times in ticks (the run time cut at the estimate)."""
    from gridweave.scenarios.workload.table import Workload

    gap, width, estimate, run = np.array(rows, np.int64).T
    run = np.minimum(run, estimate)
    return Workload(
        job_id=np.arange(len(rows)),
        submit_ms=np.cumsum(gap) * tick_ms,
        width=width,
        estimate_ms=estimate * tick_ms,
        run_ms=run * tick_ms,
        overran=np.zeros(len(rows), np.bool_) if overran is None else np.array(overran) & (run == estimate),
        nodes=nodes,
        name="small",
    )


def cancelling(rng: np.random.Generator, workload: Workload) -> Workload:
    """Let users cancel half of the jobs, at any time after their submission."""
    count, span_ms = len(workload), int(workload.submit_ms[-1] - workload.submit_ms[0])
    cancel_ms = workload.submit_ms + 1 + rng.exponential(span_ms / 10 + 1, count).astype(np.int64)
    cancel_ms[rng.random(count) < 0.5] = -1
    return workload.replace(columns=dict(workload.columns) | {"cancel_ms": cancel_ms})


class GridCase(NamedTuple):
    """Sites and jobs for them; of each job its home, its draw for the selection ``random``, and its sensitivity."""

    nodes: tuple[int, ...]
    jobs: list[Job]
    home: dict[int, int]
    draws: dict[int, float]
    sensitivity: dict[int, float]


@st.composite
def grid_cases(
    draw: st.DrawFn,
    *,
    max_sites: int = 4,
    max_jobs: int = 16,
    max_nodes: int = 6,
    perfect: bool = False,
    tick: int = 1,
    for_one_site: bool = False,
    too_wide: int = 0,
) -> GridCase:
    """Draw sites, often alike, and jobs in random order of submission, with ids that do not follow it.

    Parameters
    ----------
    draw : callable
        Given by hypothesis.
    max_sites, max_jobs, max_nodes : int
        Upper bounds; the last is of one site.
    perfect : bool
        Whether every job runs for exactly its estimate.
    tick : int
        All times are multiples of this many milliseconds.
    for_one_site : bool
        Whether no job is wider than the largest site. Otherwise jobs may be as wide as all sites together.
    too_wide : int
        Jobs may be wider than that by up to this many nodes.

    Returns
    -------
    GridCase
    """
    nodes = tuple(draw(st.lists(st.integers(1, max_nodes), min_size=1, max_size=max_sites)))
    widest = (max(nodes) if for_one_site else sum(nodes)) + too_wide
    ids = draw(st.permutations(range(1, draw(st.integers(1, max_jobs)) + 1)))
    jobs = []
    submit = 0
    for job_id in ids:
        submit += draw(st.integers(0, 3)) * tick
        estimate = draw(st.integers(1, 12))
        run = estimate if perfect else draw(st.one_of(st.just(estimate), st.integers(1, estimate + 2)))
        width = draw(st.one_of(st.integers(1, min(max(nodes), widest)), st.integers(1, widest)))
        jobs.append(Job(job_id, submit, width, estimate * tick, run * tick))
    home = {job_id: draw(st.integers(0, len(nodes) - 1)) for job_id in ids}
    draws = {job_id: draw(st.integers(0, 63)) / 64 for job_id in ids}
    sensitivity = {job_id: draw(st.sampled_from((1.0, 1.0, 0.0, 0.5, 2.0))) for job_id in ids}
    return GridCase(nodes, jobs, home, draws, sensitivity)


@st.composite
def grid_options(
    draw: st.DrawFn,
    modes: Sequence[str] = ("local", "sharing", "multi-site", "adaptive"),
    *,
    backfills: Sequence[str] = ("easy", "none"),
    orders: Sequence[str] = ("fcfs",),
    limited: bool = True,
    heads: Sequence[str] = (),
) -> dict[str, Any]:
    """Draw keyword arguments of `reference.grid.simulate_grid` but for those by job, which a case has.

    With ``limited`` there may be a lower bound and a table of fragments. ``heads``: what the head may reserve.
    """
    overheads = st.sampled_from((0.0, 0.1, 0.29, 0.3, 0.5, 1.0, 3.0))
    tables = st.lists(st.tuples(st.integers(1, 16), st.integers(1, 4)), max_size=3, unique_by=lambda row: row[0])
    return {
        "mode": draw(st.sampled_from(modes)),
        "order": draw(st.sampled_from(orders)),
        "backfill": draw(st.sampled_from(backfills)),
        "selection": draw(st.sampled_from(SELECTIONS)),
        "overhead": draw(overheads | st.lists(overheads, min_size=1, max_size=4).map(tuple)),
        "lower_bound": draw(st.sampled_from((0, 0, 2, 5))) if limited else 0,
        "max_fragments": draw(st.one_of(st.none(), tables.map(sorted))) if limited else None,
        **({"head_reservation": draw(st.sampled_from(heads))} if heads else {}),
    }


def random_grid_jobs(
    rng: np.random.Generator,
    count: int,
    nodes: Sequence[int],
    *,
    load: float = 0.9,
    tick: int = 1,
    perfect: bool = False,
    widest: int | None = None,
) -> GridCase:
    """Return sites with the jobs of `random_jobs` on a machine as large as all of them; for long runs of comparisons.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of all randomness.
    count : int
        Number of jobs.
    nodes : sequence of int
        Nodes of each site.
    load, tick, perfect
        As for `random_jobs`.
    widest : int, optional
        Wider jobs are cut down to this width. Without it jobs are up to as wide as all sites together.

    Returns
    -------
    GridCase
    """
    jobs = random_jobs(rng, count, sum(nodes), load=load, tick=tick, perfect=perfect)
    if widest is not None:
        jobs = [dataclasses.replace(job, width=min(job.width, widest)) for job in jobs]
    home = {job.id: int(site) for job, site in zip(jobs, rng.integers(0, len(nodes), count), strict=True)}
    draws = {job.id: float(drawn) for job, drawn in zip(jobs, rng.random(count), strict=True)}
    sensitivity = {job.id: float(rng.choice((1.0, 0.0, 0.5, 2.0))) for job in jobs}
    return GridCase(tuple(nodes), jobs, home, draws, sensitivity)
