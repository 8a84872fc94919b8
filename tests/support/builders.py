"""Random input: jobs and machines, links between sites, and jobs that share nodes.

Use it for tests of schedules: either hypothesis strategies, or faster functions that draw from a numpy generator. The
numbers are small and coarse, so that ties, exact fits and simultaneous ends are frequent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from gridweave.errors import InputError
from gridweave.netmodel.changes import CableChange, Timetable
from gridweave.netmodel.communication import PATTERNS
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import Workload
from gridweave.site.kernels.limits import WeekClock
from reference.grid import SELECTIONS
from reference.model import DAY, Job, Limit, Reservation, Window
from reference.ordering import ORDERS

T = TypeVar("T")

HOUR = DAY // 24
MINUTE = HOUR // 60
WEIGHTS = (0.5, 1.0, 1.0, 2.0, 3.0)
USERS = (None, 1, 2)


# -- jobs for a site --------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A machine and jobs for it; by default no job is wider than the machine."""

    nodes: int
    jobs: list[Job]


def assert_alike(got: SimulationResult, want: Any) -> None:
    """Assert that a schedule over several sites equals that of a reference, job by job."""
    ran = {job_id: row for row, job_id in enumerate(got.workload.job_id.tolist()) if got.n_fragments[row]}
    assert {job_id: int(got.start_ms[row]) for job_id, row in ran.items()} == want.start
    assert {job_id: int(got.end_ms[row]) for job_id, row in ran.items()} == want.end
    assert {job_id: tuple(got.fragments_of(row)) for job_id, row in ran.items()} == want.fragments
    assert {job_id for job_id, _ in got.refused} == set(want.refused)


class Dice:
    """Small numbers from the bytes of one hypothesis draw, one byte per number.

    Hypothesis needs more time for one number than for a hundred bytes, and shrinks bytes like numbers. The number from
    a byte does not depend on the other draws, so hypothesis can shorten a workload.
    """

    def __init__(self, draw: st.DrawFn, count: int) -> None:
        self._bytes = iter(draw(st.binary(min_size=count, max_size=count)))

    def number(self, first: int, last: int) -> int:
        """Return a number from `first` to `last`, inclusive; the range has at most 256 numbers."""
        assert 0 <= last - first < 256
        return first + next(self._bytes) % (last - first + 1)

    def pick(self, values: Sequence[T]) -> T:
        """Return one of the values."""
        return values[self.number(0, len(values) - 1)]

    def chance(self) -> bool:
        """Return True or False."""
        return self.pick((False, True))

    def ids(self, count: int, among: int) -> list[int]:
        """Return the numbers from 1 to `count` in random order; always read `among` bytes, at least `count`."""
        keys = [self.number(0, 255) for _ in range(among)]
        return sorted(range(1, count + 1), key=lambda job_id: keys[job_id - 1])

    def times(self, *, perfect: bool) -> tuple[int, int]:
        """Return an estimate and a run time; the run time often equals the estimate, and may exceed it."""
        estimate, exact = self.number(1, 12), self.chance()
        run = self.number(1, estimate + 2)
        return estimate, estimate if perfect or not exact else run


@st.composite
def cases(
    draw: st.DrawFn, *, max_jobs: int = 20, max_nodes: int = 8, perfect: bool = False, tick: int = 1, too_wide: int = 0
) -> Case:
    """Draw a machine and jobs in random order of submission; their ids do not follow that order.

    Parameters
    ----------
    draw : callable
        Passed by hypothesis.
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
    dice = Dice(draw, 2 + 9 * max_jobs)
    nodes = dice.number(1, max_nodes)
    jobs = []
    submit = 0
    for job_id in dice.ids(dice.number(1, max_jobs), max_jobs):
        submit += dice.number(0, 4) * tick
        estimate, run = dice.times(perfect=perfect)
        jobs.append(
            Job(
                job_id,
                submit,
                width=dice.number(1, nodes + too_wide),
                estimate=estimate * tick,
                run=run * tick,
                weight=dice.pick(WEIGHTS),
                priority=dice.number(-1, 2),
                user=dice.pick(USERS),
            )
        )
    return Case(nodes, jobs)


@st.composite
def queue_options(
    draw: st.DrawFn, backfills: Sequence[str] = ("none", "easy", "conservative", "slack")
) -> dict[str, Any]:
    """Draw keyword arguments of `reference.simulation.simulate` for a queue with one of the given backfillings."""
    dice = Dice(draw, 5)
    return {
        "discipline": "queue",
        "order": dice.pick(ORDERS),
        "backfill": dice.pick(backfills),
        "choice": dice.pick(("first-fit", "best-fit")),
        "slack": dice.pick((0.0, 0.1, 0.29, 0.5, 1.0, 2.5)),
        "aging_ms": dice.pick((0.0, 1.0, 3.0, math.inf)),
    }


@st.composite
def planning_options(draw: st.DrawFn, backfills: Sequence[str] = ("none", "easy")) -> dict[str, Any]:
    """Draw keyword arguments of `reference.simulation.simulate` for a planning site, without reservations or limits."""
    dice = Dice(draw, 3)
    return {
        "discipline": "planning",
        "order": dice.pick(ORDERS),
        "backfill": dice.pick(backfills),
        "aging_ms": dice.pick((0.0, 1.0, 3.0, math.inf)),
    }


@st.composite
def cancellation_lists(draw: st.DrawFn, jobs: Sequence[Job], *, tick: int = 1) -> list[tuple[int, int]]:
    """Draw cancellations before, at and after submissions, of waiting, running and ended jobs."""
    dice = Dice(draw, 11)
    last = max(job.submit for job in jobs) // tick + 15
    return [(dice.number(0, last) * tick, dice.pick(jobs).id) for _ in range(dice.number(0, 5))]


@st.composite
def reservation_lists(draw: st.DrawFn, case: Case, *, tick: int = 1, max_size: int = 4) -> list[Reservation]:
    """Draw requests for reservations; some are in the past, and some are wider than the machine."""
    dice = Dice(draw, 1 + 6 * max_size)
    last = max(job.submit for job in case.jobs) // tick + 10
    requests = []
    for number in range(dice.number(0, max_size)):
        request = dice.number(0, last) if dice.chance() else dice.pick(case.jobs).submit // tick
        start = max(0, request + dice.number(-2, 20))
        length, width = dice.number(1, 10), dice.number(1, case.nodes + 1)
        place = dice.pick((None, None, None, None, 0, 1, 2, 3))
        requests.append(Reservation(number, request * tick, start * tick, length * tick, width, place))
    return requests


@st.composite
def limit_lists(draw: st.DrawFn, nodes: int, *, tick: int = HOUR, max_size: int = 3) -> list[Limit]:
    """Draw limits of both kinds; the windows begin and end on full hours."""
    dice = Dice(draw, 1 + 7 * max_size)
    limits = []
    for _ in range(dice.number(0, max_size)):
        whom: dict[str, Any] = {
            "wider_than": dice.number(0, nodes - 1),
            "longer_than_ms": dice.number(0, 8) * tick,
            "user": dice.pick(USERS),
        }
        kind = dice.pick(("window", "max_nodes", "max_jobs"))
        if kind == "window":
            picked = dice.number(0, 127)
            days = frozenset(day for day in range(7) if picked >> day & 1)
            limits.append(Limit(**whom, window=Window(days, dice.number(0, 23) * HOUR, dice.number(0, 24) * HOUR)))
        elif kind == "max_nodes":
            limits.append(Limit(**whom, max_nodes=dice.number(0, nodes)))
        else:
            limits.append(Limit(**whom, max_jobs=dice.number(0, 3)))
    return limits


def random_jobs(
    rng: np.random.Generator, count: int, nodes: int, *, load: float = 0.9, tick: int = 1, perfect: bool = False
) -> list[Job]:
    """Return jobs in order of submission, many of them at the same instant; for long comparisons.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of all randomness.
    count, nodes : int
        Number of jobs, nodes of the machine. Widths are 1 to ``nodes``, narrow ones more often.
    load : float
        Mean load, as a fraction of the machine's capacity.
    tick : int
        All times are multiples of this many milliseconds.
    perfect : bool
        Whether every job runs for exactly its estimate. Otherwise 30% do, and 10% are killed at their estimates.

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
    """Return the jobs as a `Workload`, in its order; an unknown user becomes -1."""
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
    """Return jobs from rows of gap, width, estimate and run time, in ticks; run times are cut at the estimates."""
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


# -- jobs for a grid --------------------------------------------------------------------------------------------------


class GridCase(NamedTuple):
    """Sites and jobs, with each job's home site, its draw for the selection ``random``, and its sensitivity."""

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
    """Draw sites, often equal ones, and jobs in random order of submission; their ids do not follow that order.

    Parameters
    ----------
    draw : callable
        Passed by hypothesis.
    max_sites, max_jobs, max_nodes : int
        Upper bounds; `max_nodes` is per site.
    perfect : bool
        Whether every job runs for exactly its estimate.
    tick : int
        All times are multiples of this many milliseconds.
    for_one_site : bool
        Whether no job is wider than the largest site. Otherwise jobs may be as wide as all sites together.
    too_wide : int
        Jobs may exceed that width by up to this many nodes.

    Returns
    -------
    GridCase
    """
    dice = Dice(draw, 2 + max_sites + 10 * max_jobs)
    places = dice.number(1, max_sites)
    nodes = tuple([dice.number(1, max_nodes) for _ in range(max_sites)][:places])
    widest = (max(nodes) if for_one_site else sum(nodes)) + too_wide
    ids = dice.ids(dice.number(1, max_jobs), max_jobs)
    jobs, home, draws, sensitivity = [], {}, {}, {}
    submit = 0
    for job_id in ids:
        submit += dice.number(0, 3) * tick
        estimate, run = dice.times(perfect=perfect)
        width = dice.number(1, min(max(nodes), widest) if dice.chance() else widest)
        jobs.append(Job(job_id, submit, width, estimate * tick, run * tick))
        home[job_id] = dice.number(0, places - 1)
        draws[job_id] = dice.number(0, 63) / 64
        sensitivity[job_id] = dice.pick((1.0, 1.0, 0.0, 0.5, 2.0))
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
    """Draw keyword arguments of `reference.grid.simulate_grid`, except those per job, which a case has.

    Without ``limited``, there is no lower bound and no table of fragments. ``heads`` lists the head reservations.
    """
    dice = Dice(draw, 24)
    options: dict[str, Any] = {
        "mode": dice.pick(modes),
        "order": dice.pick(orders),
        "backfill": dice.pick(backfills),
        "selection": dice.pick(SELECTIONS),
        "overhead": _overhead(dice),
        "lower_bound": dice.pick((0, 0, 2, 5)) if limited else 0,
        "max_fragments": _max_fragments(dice) if limited else None,
    }
    return options | ({"head_reservation": dice.pick(heads)} if heads else {})


def _overhead(dice: Dice) -> float | tuple[float, ...]:
    """Draw one overhead for all numbers of fragments, or one for each small number of fragments."""
    overheads = (0.0, 0.1, 0.29, 0.3, 0.5, 1.0, 3.0)
    each = dice.chance()
    drawn = tuple(dice.pick(overheads) for _ in range(dice.number(1, 4)))
    return drawn if each else drawn[0]


def _max_fragments(dice: Dice) -> list[tuple[int, int]] | None:
    """Draw None, or a table of up to three widths with the number of fragments each allows."""
    table = {dice.number(1, 16): dice.number(1, 4) for _ in range(dice.number(0, 3))}
    return sorted(table.items()) if dice.chance() else None


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
    """Return sites with the jobs of `random_jobs` for a machine as large as all sites; for long comparisons.

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
        Wider jobs are cut down to this width. Without it jobs may be as wide as all sites together.

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


def week_beginning(offset_ms: int) -> WeekClock:
    """Return a clock that shows this time of the week at instant zero; it has no daylight-saving changes."""
    return WeekClock(np.zeros(1, np.int64), np.array([offset_ms], np.int64))


# -- links between sites ----------------------------------------------------------------------------------------------

PATTERN_NAMES = tuple(PATTERNS)
AT_ANY_COST = 10_001.0
"""A bound on the factor of a split that is so large that it has no effect."""

ZOO = """\
graph [
  label "Zoo"
  node [ id 0 label "AMS" Longitude 4.88969 Latitude 52.37403 ]
  node [ id 1 label "BRU" Longitude 4.34878 Latitude 50.85045 ]
  node [ id 2 label "FRA" Longitude 8.68333 Latitude 50.11667 ]
  node [ id 3 label "Kiev" ]
  node [ id 4 label "FRA" Longitude 8.6 Latitude 50.2 ]
  edge [ source 0 target 1 LinkSpeedRaw 10000000000.0 LinkLabel "10 Gbps" ]
  edge [ source 1 target 2 LinkSpeed "2.5" LinkSpeedUnits "G" ]
  edge [ source 2 target 0 LinkLabel "Lit Fibre" LinkLabel "155 Mbps" ]
  edge [ source 2 target 3 LinkLabel "Lit Fibre" ]
  edge [ source 0 target 1 LinkSpeedRaw 10000000000.0 ]
  edge [ source 2 target 4 LinkSpeed "1" LinkSpeedUnits "G" latency_ms 0.25 jitter_ms 0.5 loss 0.001 ]
]
"""


def as_in_thesis(model: NetworkModel, timetable: Timetable | None = None, **options: Any) -> GridNet:
    """Return a network that by default splits jobs over the fewest sites, at any cost."""
    return GridNet(model, timetable, **{"split": "fewest", "max_split_factor": AT_ANY_COST, **options})


def no_file(name: str) -> str:
    """Raise InputError in place of reading another file."""
    raise InputError(f"{name}: there is no such file")


def drawn_model(rng: np.random.Generator, sites: int) -> NetworkModel:
    """Draw a connected network between sites, with latencies and bandwidths that slow down some jobs."""
    graph: nx.Graph[int] = nx.path_graph(sites)
    for one in range(sites):
        for other in range(one + 2, sites):
            if rng.random() < 0.1:
                graph.add_edge(one, other)
    for _, _, cable in graph.edges(data=True):
        cable["latency_ms"] = float(rng.choice((0.01, 0.1, 7.0)))
        cable["bandwidth_bps"] = float(rng.choice((1e8, 2e9, 5e9)))
    topology = topology_of_graph(graph)
    return NetworkModel(topology, find_paths(topology), str(rng.choice(("synchronous", "overlapped"))))


def drawn_timetable(rng: np.random.Generator, model: NetworkModel, until_ms: int) -> Timetable:
    """Draw times at which cables fail or slow down; all cables work again at `3 * until_ms`."""
    cables = int(model.topology.cable.max(initial=-1)) + 1
    changes = []
    for _ in range(4):
        at_ms, cable = int(rng.integers(0, until_ms)), int(rng.integers(0, cables))
        changes.append(CableChange(at_ms, "link", (cable,), float(rng.choice((0.0, 0.2)))))
        changes.append(CableChange(at_ms + int(rng.integers(1, until_ms + 1)), "link", (cable,), 1.0))
    changes += [CableChange(3 * until_ms, "link", (cable,), 1.0) for cable in range(cables)]
    return Timetable.of(model.topology, changes)


def with_columns(rng: np.random.Generator, workload: Workload, sites: int) -> Workload:
    """Return the jobs with random communication, and with random amounts of input and output data."""
    jobs = len(workload)
    columns = {
        "pattern": rng.integers(0, len(PATTERN_NAMES), jobs),
        "communication_fraction": rng.choice((0.0, 0.02, 0.3, 0.8), jobs),
        "message_bytes": rng.choice((0, 100, 200_000, 5_000_000), jobs),
        **{f"{what}_bytes": rng.choice((0, 10**6, 10**8), jobs) for what in ("input", "output")},
        **{f"{what}_site": rng.integers(0, sites, jobs) for what in ("input", "output")},
    }
    return workload.replace(columns=dict(workload.columns) | columns)


# -- jobs on shared nodes ---------------------------------------------------------------------------------------------


def workload_of(jobs: Sequence[dict[str, Any]]) -> Workload:
    """Return jobs as a workload; defaults: ids in order, submit 0, width 1, one hour, half of the memory.

    Parameters
    ----------
    jobs : sequence of dict
        Keys ``submit``, ``width``, ``estimate``, ``run``, ``cpu``, ``network``, ``disk``, ``memory``, ``kind``.
    """
    full = [{"submit": 0, "width": 1, "estimate": HOUR, "memory": 0.5, "kind": 0, "network": 0.0} | job for job in jobs]
    return Workload(
        job_id=np.arange(1, len(full) + 1),
        submit_ms=np.array([job["submit"] for job in full], np.int64),
        width=np.array([job["width"] for job in full], np.int64),
        estimate_ms=np.array([job["estimate"] for job in full], np.int64),
        run_ms=np.array([job.get("run", job["estimate"]) for job in full], np.int64),
        columns={
            "cpu_fraction": np.array([job["cpu"] for job in full], np.float64),
            "network_fraction": np.array([job["network"] for job in full], np.float64),
            "disk_fraction": np.array([job["disk"] for job in full], np.float64),
            "memory_fraction": np.array([job["memory"] for job in full], np.float64),
            "cpu_kind": np.array([job["kind"] for job in full], np.int64),
        },
    )


def random_workload(rng: np.random.Generator, nodes: int, *, coarse: bool) -> Workload:
    """Draw a small workload of any load; with `coarse`, ties and simultaneous events are frequent."""
    n = int(rng.integers(5, 60))
    parts = rng.dirichlet([1, 1, 1], n)
    memory = rng.uniform(0.05, 1, n)
    if coarse:
        parts = np.round(parts * 4)
        parts[:, 2] = 4 - parts[:, 0] - parts[:, 1]
        parts = np.clip(parts, 0, 4)
        parts /= parts.sum(1, keepdims=True)
        memory = np.round(memory, 1)
    spans = np.array([(1, MINUTE), (MINUTE + 1, HOUR), (HOUR + 1, 6 * HOUR)])
    low, high = spans[rng.choice(3, n, p=[0.2, 0.4, 0.4])].T
    estimate = rng.integers(low, high + 1)
    if coarse:
        estimate = np.maximum(MINUTE // 2, estimate // (10 * MINUTE) * (10 * MINUTE))
    run = np.where(rng.random(n) < 0.6, estimate, (estimate * rng.uniform(0.1, 1, n)).astype(np.int64))
    width = np.minimum(nodes, rng.integers(1, nodes + 1, n) // rng.integers(1, 4, n) + 1)
    lasts = int(n * float(np.mean(estimate * width)) / nodes / rng.uniform(0.5, 2.5)) + 1
    submit = np.sort(rng.integers(0, lasts, n))
    if coarse:
        submit = submit // (10 * MINUTE) * (10 * MINUTE)
    return Workload(
        job_id=np.arange(1, n + 1),
        submit_ms=submit,
        width=width,
        estimate_ms=estimate,
        run_ms=np.maximum(1, run),
        columns={
            "cpu_fraction": parts[:, 0],
            "network_fraction": parts[:, 1],
            "disk_fraction": parts[:, 2],
            "memory_fraction": memory,
            "cpu_kind": rng.integers(0, 2, n),
        },
    )
