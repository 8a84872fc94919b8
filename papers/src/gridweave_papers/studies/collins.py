"""The four case studies of Collins and George recomputed: Figures 3 to 9 and Table 1, with our real scheduling code.

Collins and George, *Parallel and Sequential Job Scheduling in Heterogeneous Clusters: A Simulation Study using Software
in the Loop* (2001; *the paper*), section 5. SJS maps sequential jobs, PJS also parallel jobs (docs/heterogeneous.md).

The paper measured the run times of its five programs on its machines, but does not print them. The times here are
assumed, not measured: `REFERENCE_S` on a machine of the third class, `FACTORS` for the other classes, `SPEEDUPS` on a
cluster. They have the properties stated in the paper: strong heterogeneity, one strictly sequential program, one with a
modest speedup.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.workload.table import MS_PER_S, IntArray, Workload
from gridweave.site.disciplines.heterogeneous.machines import Cluster, Form
from gridweave.site.disciplines.heterogeneous.mapping import NEVER_MS, MachineArrays, Mapped, machine_arrays, map_to
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.rights import EVERYBODY, Level
from gridweave.site.resources.chunks import NodeKind
from gridweave_papers.studies.report import OURS, Findings, Row, Section, Verdict, our_values
from gridweave_papers.studies.study import Study, judge, seeds_of

CLUSTER_SIZES = (8,) * 17 + (6,)
"""142 machines in 18 clusters (section 5.2)."""

CLASSES = ("sparc-20", "ultra-1", "ultra-2", "pentium-200", "pentium-ii", "pentium-iii")
CLUSTERS_EACH = 3
"""Clusters per machine class; the last cluster has six machines."""

REFERENCE_S = (180, 200, 100, 150, 250)
"""Assumed run times of vector-matrix, numerical integration, integer sort, statistics and conjugate gradient."""

FACTORS = (
    (2.0, 1.4, 1.0, 1.8, 1.2, 0.8),
    (2.2, 1.5, 1.0, 1.9, 1.3, 0.9),
    (1.8, 1.3, 1.1, 1.3, 0.9, 0.6),
    (2.0, 1.4, 1.0, 1.6, 1.1, 0.7),
    (2.4, 1.5, 1.0, 2.2, 1.5, 1.0),
)
SPEEDUPS = (5.5, 6.5, 2.0, None, 4.5)
"""Speedup on eight machines; None for a strictly sequential program."""

DISTRIBUTIONS = {
    "10/10/80": (0.10, 0.10, 0.80),
    "25/25/50": (0.25, 0.25, 0.50),
    "50/25/25": (0.50, 0.25, 0.25),
    "no priority": (0.0, 0.0, 1.0),
}
LEVELS = ("high", "medium", "low")
RATES = (1, 2, 4, 8, 16, 32)
"""Mean number of arrivals per quantum."""

QUANTUM_MS, ARRIVING = 10 * MS_PER_S, 500
LOADS = (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
PRIORITY_JOBS = (*range(5, 50, 5), *range(50, 501, 50))
SHARES = (0, 10, 50, 75, 90, 100)
OVERHEAD_JOBS = (5, 10, 20, 50, 100, 200, 500, 1_000)
OVERHEAD_REPEATS = 5
SIZES = (5, 25, 50, 75, 100)


class Arrival(NamedTuple):
    """One simulation of case study 4."""

    distribution: str
    rate: int
    seed: int


class CollinsRuns:
    """The simulations of case study 4, each run once; the other case studies only map jobs, on request.

    Parameters
    ----------
    seeds : int
        Number of seeds for the arrivals.
    jobs : int
        Jobs that arrive in each simulation.
    """

    def __init__(self, *, seeds: int = 3, jobs: int = ARRIVING, progress: Progress | None = None) -> None:
        self.seeds, self.jobs = seeds_of(seeds), jobs
        self._points = Study(self._point, title="Collins", progress=progress)
        self.priority_total = lru_cache(maxsize=None)(priority_total)

    def _point(self, arrival: Arrival) -> dict[str, float]:
        rng = np.random.default_rng(arrival.seed)
        gaps = rng.exponential(QUANTUM_MS / arrival.rate, self.jobs).cumsum()
        kind, drawn = rng.integers(0, len(REFERENCE_S), self.jobs), rng.random(self.jobs)
        level = np.searchsorted(np.cumsum(DISTRIBUTIONS[arrival.distribution])[:2], drawn, side="right")
        run_ms = np.array(REFERENCE_S)[kind] * MS_PER_S
        jobs = Workload(
            job_id=np.arange(self.jobs),
            # Jobs that arrive within a quantum are scheduled together at its end.
            submit_ms=np.ceil(gaps / QUANTUM_MS).astype(np.int64) * QUANTUM_MS,
            width=np.ones(self.jobs, np.int64),
            estimate_ms=run_ms,
            run_ms=run_ms,
            columns={"priority": 2 - level, "job_class": kind},
        )
        return dict(simulate(jobs, sum(CLUSTER_SIZES), site_policy(arrival.distribution != "no priority")).own_metrics)

    def mean(self, distribution: str, rate: int, metric: str) -> float:
        """Return a metric of case study 4, averaged over the seeds."""
        settings = [Arrival(distribution, rate, seed) for seed in self.seeds]
        return float(np.mean([point.get(metric, np.nan) for point in self._points.results(settings).values()]))

    def run_all(self) -> None:
        """Run all simulations of case study 4 in parallel."""
        self._points.results(
            Arrival(name, rate, seed) for name in DISTRIBUTIONS for rate in RATES for seed in self.seeds
        )


def class_counts() -> list[int]:
    """Return the number of machines in each class; the cluster of six machines is a class of its own."""
    return [CLUSTERS_EACH * 8] * 5 + [2 * 8, 6]


def times_ms() -> tuple[IntArray, IntArray]:
    """Return the run times of the five programs on each machine class and on each cluster, in ms."""
    factors = np.array([[*row, row[-1]] for row in FACTORS])
    alone = np.rint(factors * np.array(REFERENCE_S)[:, None] * MS_PER_S).astype(np.int64)
    class_of_cluster = [*np.repeat(np.arange(6), CLUSTERS_EACH)[:-1].tolist(), 6]
    team = np.full((len(REFERENCE_S), len(CLUSTER_SIZES)), NEVER_MS)
    for kind, speedup in enumerate(SPEEDUPS):
        if speedup is not None:
            for cluster, number in enumerate(class_of_cluster):
                team[kind, cluster] = round(alone[kind, number] / speedup * 8 / CLUSTER_SIZES[cluster])
    return alone, team


def site_policy(with_levels: bool) -> HeterogeneousPolicy:
    """Return the paper's site policy; with levels, high-priority jobs can evict low-priority but not medium jobs."""
    alone, _ = times_ms()
    names = [*CLASSES, "pentium-iii-6"]
    forms = []
    for kind, reference_s in enumerate(REFERENCE_S):
        for number, name in enumerate(names):
            speed, speedup = reference_s * MS_PER_S / float(alone[kind, number]), SPEEDUPS[kind]
            forms.append(Form(job_class=kind, on=(name,), speed=speed))
            if speedup is not None:
                part = speedup * (6 / 8 if name == names[-1] else 1)
                forms.append(Form(job_class=kind, on=(name,), width="all", speed=speed * part))
    first = np.concatenate([[0], np.cumsum(CLUSTER_SIZES)])
    levels = (Level(name="high", priority=2, evicts=("low",)), Level(name="medium", priority=1))
    return HeterogeneousPolicy(
        nodes=sum(CLUSTER_SIZES),
        classes=tuple(NodeKind(name=name, count=n) for name, n in zip(names, class_counts(), strict=True)),
        clusters=tuple(
            Cluster(name=f"cluster-{number + 1}", nodes=f"{first[number]}-{first[number + 1] - 1}")
            for number in range(len(CLUSTER_SIZES))
        ),
        forms=tuple(forms),
        predict="estimate",
        levels=(*levels, Level(name="low", priority=0)) if with_levels else (EVERYBODY,),
    )


def mapped_at_once(n_jobs: int, algorithm: str, ready_ms: npt.ArrayLike = 0) -> Mapped:
    """Return an equal mix of the five programs, mapped to the paper's machines."""
    alone, team = times_ms()
    first = np.concatenate([[0], np.cumsum(CLUSTER_SIZES)])
    clusters = [list(range(first[number], first[number + 1])) for number in range(len(CLUSTER_SIZES))]
    machines = machine_arrays(np.repeat(np.arange(7), class_counts()).tolist(), clusters)
    ready = np.broadcast_to(ready_ms, sum(CLUSTER_SIZES))
    return map_to(machines, ready, np.arange(n_jobs) % len(REFERENCE_S), alone, team, algorithm=algorithm)


def priority_total(n_jobs: int, distribution: str, algorithm: str) -> tuple[float, float, float]:
    """Return the sum of job times in s for each level; levels are mapped one after another (case study 3)."""
    ready: npt.ArrayLike = 0
    totals = []
    shares = np.cumsum((0.0, *DISTRIBUTIONS[distribution]))
    for above, below in zip(np.rint(shares * n_jobs)[:-1], np.rint(shares * n_jobs)[1:], strict=True):
        mapped = mapped_at_once(int(below - above), algorithm, ready)
        totals.append(mapped.total_ms(0) / MS_PER_S)
        ready = mapped.ready_ms
    return totals[0], totals[1], totals[2]


@lru_cache(maxsize=1)
def overheads() -> dict[int, tuple[float, float]]:
    """Return the computing time of SJS and PJS in ms, by the percentage of jobs that can run in parallel.

    Of the 40 machines, 20 form five clusters of four. Run times are random, and a third as long on clusters. Times are
    means over `OVERHEAD_JOBS` (section 5.1).
    """
    machines = machine_arrays(list(range(40)), [list(range(at, at + 4)) for at in range(0, 20, 4)])
    code_ms: dict[int, tuple[float, float]] = {}
    map_to(machines, [0] * 40, [0], [[1] * 40])  # not measured: the first call compiles
    for share in SHARES:
        taken = [[_seconds(machines, n_jobs, share, name) for name in ("sjs", "pjs")] for n_jobs in OVERHEAD_JOBS]
        sjs, pjs = (np.mean(taken, axis=0) * 1000).tolist()
        code_ms[share] = (sjs, pjs)
    return code_ms


@lru_cache(maxsize=1)
def sjs_overheads() -> dict[tuple[int, int], float]:
    """Return the computing time of SJS in ms, by number of jobs and number of different machines (Figure 3)."""
    code_ms = {}
    for n_machines in SIZES:
        machines = machine_arrays(list(range(n_machines)))
        for n_jobs in SIZES:
            alone = np.random.default_rng(n_jobs).integers(100, 1_000, (n_jobs, n_machines)) * MS_PER_S
            none = np.zeros((n_jobs, 0), np.int64)
            _least_seconds(machines, alone, none, "sjs")  # not measured: the first call loads modules
            code_ms[n_jobs, n_machines] = 1000 * _least_seconds(machines, alone, none, "sjs")
    return code_ms


def _seconds(machines: MachineArrays, n_jobs: int, share: int, algorithm: str) -> float:
    rng = np.random.default_rng(n_jobs)
    alone = rng.integers(100, 1_000, (n_jobs, 40)) * MS_PER_S
    team = rng.integers(33, 333, (n_jobs, 5)) * MS_PER_S
    team[rng.permutation(n_jobs)[round(n_jobs * share / 100) :]] = NEVER_MS
    return _least_seconds(machines, alone, team, algorithm)


def _least_seconds(machines: MachineArrays, alone_ms: IntArray, team_ms: IntArray, algorithm: str) -> float:
    taken = []
    for _ in range(OVERHEAD_REPEATS):
        begun = time.thread_time()
        ready_ms = np.zeros(len(machines.by_class))
        map_to(machines, ready_ms, np.arange(len(alone_ms)), alone_ms, team_ms, algorithm=algorithm)
        taken.append(time.thread_time() - begun)
    return min(taken)


# Checks of the paper's conclusions.


def _ratio(runs: CollinsRuns) -> Verdict:
    """Check that PJS "typically" takes two to three times as long as SJS."""
    ratios = {share: pjs / sjs for share, (sjs, pjs) in overheads().items() if share}
    texts = ", ".join(f"{ratio:.1f} at {share}%" for share, ratio in ratios.items())
    mean = float(np.mean(list(ratios.values())))
    return Verdict(2 <= mean <= 3, f"PJS over SJS, on average from 2 to 3: {mean:.1f}; {texts}")


def _share_is_no_matter(runs: CollinsRuns) -> Verdict:
    """Check that the overhead of PJS hardly depends on the share of parallel jobs (at most a factor of 1.5)."""
    times = [pjs for share, (_, pjs) in overheads().items() if share]
    spread = max(times) / min(times)
    return Verdict(
        spread <= 1.5, f"the ratio of the longest to the shortest mean from 10% to 100% is {spread:.2f}; at most 1.5"
    )


def _is_short(runs: CollinsRuns) -> Verdict:
    """Check that SJS takes less than 0.2 s for 100 jobs on 100 machines."""
    taken = sjs_overheads()[100, 100]
    return Verdict(taken < 200, f"{taken:.2f} ms")


@lru_cache(maxsize=1)
def savings() -> dict[int, tuple[float, float, float]]:
    """Return the sums of job times in s under SJS and PJS, and the savings in %, by number of jobs (Figure 5)."""
    results = {}
    for n_jobs in LOADS:
        sjs, pjs = (mapped_at_once(n_jobs, name).total_ms(0) / MS_PER_S for name in ("sjs", "pjs"))
        results[n_jobs] = (sjs, pjs, 100 * (1 - pjs / sjs))
    return results


def _never_worse(runs: CollinsRuns) -> Verdict:
    least = min(saved for _, _, saved in savings().values())
    return Verdict(least >= 0, f"it saves at least {least:.2f}%")


def _up_to_half(runs: CollinsRuns) -> Verdict:
    """Check that PJS saves "nearly 50%" (40% to 60%) for few jobs, and less than half as much for the most jobs."""
    saved = {n_jobs: value for n_jobs, (_, _, value) in savings().items()}
    most = max(saved, key=lambda n_jobs: saved[n_jobs])
    most_text, last_text = f"{saved[most]:.0f}% at {most} jobs", f"{saved[LOADS[-1]]:.0f}% at {LOADS[-1]}"
    text = f"at most {most_text}, {last_text}; the most from 40% to 60%, for 20 jobs or fewer"
    return Verdict(40 <= saved[most] <= 60 and most <= 20 and saved[LOADS[-1]] < saved[most] / 2, text)


def _favours_high(runs: CollinsRuns) -> Verdict:
    """Check that PJS shortens the times of high-priority jobs, and more so if there are fewer such jobs."""
    gains = {}
    for name in list(DISTRIBUTIONS)[:3]:
        sums = [[runs.priority_total(n, name, way)[0] for n in PRIORITY_JOBS] for way in ("sjs", "pjs")]
        gains[name] = 100 * (1 - sum(sums[1]) / sum(sums[0]))
    texts = ", ".join(f"{gain:.0f}% with {name}" for name, gain in gains.items())
    ordered = list(gains.values()) == sorted(gains.values(), reverse=True)
    return Verdict(min(gains.values()) > 0 and ordered, f"PJS saves them {texts}")


def _low_cost(runs: CollinsRuns) -> Verdict:
    """Check that priority levels increase the total job time by less than 10%."""
    costs = {
        f"{way} {name}": 100 * (mean_total(runs, name, way) / mean_total(runs, "no priority", way) - 1)
        for way in ("sjs", "pjs")
        for name in list(DISTRIBUTIONS)[:3]
    }
    texts = ", ".join(f"{cost:+.1f}% {name}" for name, cost in costs.items())
    return Verdict(max(costs.values()) < 10, f"{texts}; below 10%")


def mean_total(runs: CollinsRuns, distribution: str, algorithm: str) -> float:
    """Return the sum of all job times in s, averaged over `PRIORITY_JOBS` (Figure 7)."""
    return float(np.mean([sum(runs.priority_total(n, distribution, algorithm)) for n in PRIORITY_JOBS]))


def _keeps_high_down(runs: CollinsRuns) -> Verdict:
    """Check that high-priority jobs take less time than low-priority jobs, in each mix and at each rate."""
    ratios = {
        name: [
            runs.mean(name, rate, "job_time_level_1_ms") / runs.mean(name, rate, "job_time_level_3_ms")
            for rate in RATES
        ]
        for name in list(DISTRIBUTIONS)[:3]
    }
    texts = ", ".join(f"{min(values):.2f} to {max(values):.2f} with {name}" for name, values in ratios.items())
    return Verdict(max(map(max, ratios.values())) < 1, f"mean job time of high over that of low: {texts}; below 1")


def _parallelism_falls(runs: CollinsRuns) -> Verdict:
    """Check that the share of parallel jobs falls as more jobs arrive; rises of up to 2 points count as chance."""
    parts = {name: [runs.mean(name, rate, "parallel_pct") for rate in RATES] for name in DISTRIBUTIONS}
    rises = max(b - a for values in parts.values() for a, b in itertools.pairwise(values))
    texts = ", ".join(f"{values[0]:.0f}% to {values[-1]:.0f}% {name}" for name, values in parts.items())
    return Verdict(
        rises <= 2, f"{texts}; it rises by at most {rises:.1f} points from one rate to the next; 2 are allowed"
    )


def _preemption_costs_little(runs: CollinsRuns) -> Verdict:
    """Check that there is only "a slight degradation in overall performance": job times at most 10% longer."""
    base = {rate: runs.mean("no priority", rate, "job_time_ms") for rate in RATES}
    costs = {
        name: 100 * float(np.mean([runs.mean(name, rate, "job_time_ms") / base[rate] - 1 for rate in RATES]))
        for name in list(DISTRIBUTIONS)[:3]
    }
    texts = ", ".join(f"{cost:+.1f}% {name}" for name, cost in costs.items())
    return Verdict(0 <= max(costs.values()) <= 10, f"{texts}; the most from 0% to 10%")


CHECKS: dict[str, tuple[Callable[[CollinsRuns], Verdict], ...]] = {
    "collins-1": (_is_short, _ratio, _share_is_no_matter),
    "collins-2": (_up_to_half, _never_worse),
    "collins-3": (_favours_high, _low_cost),
    "collins-4": (_keeps_high_down, _preemption_costs_little, _parallelism_falls),
}


def report(table: str, runs: CollinsRuns) -> Findings:
    """Recompute a case study, and check its conclusions."""
    notes = ["The times of the five programs are set, not measured; the paper does not print its own."]
    if table == "collins-4":
        runs.run_all()
        notes.append(f"{runs.jobs} jobs, means over {len(runs.seeds)} seeds; Table 1 is illegible in our copy")
    sections = {"collins-1": _overhead, "collins-2": _performance, "collins-3": _priority, "collins-4": _preemption}
    conclusions = judge(table, CHECKS[table], {"as set": runs})
    return Findings(sections=tuple(sections[table](runs)), conclusions=conclusions, notes=tuple(notes))


def _section(title: str, headings: tuple[str, ...], columns: Iterable[str], rows: Iterable[Row]) -> Section:
    return Section(title, headings, tuple(columns), tuple(rows), OURS)


def _overhead(runs: CollinsRuns) -> list[Section]:
    figure_3 = (
        Row((f"{n_jobs}",), our_values(*(sjs_overheads()[n_jobs, n_machines] for n_machines in SIZES), decimals=2))
        for n_jobs in SIZES
    )
    rows = (Row((f"{share}%",), our_values(*taken, decimals=2)) for share, taken in overheads().items())
    columns = (f"{n_machines} machines" for n_machines in SIZES)
    return [
        _section("SJS in ms (Figure 3)", ("jobs",), columns, figure_3),
        _section("By share of possibly parallel jobs (Figure 4)", ("parallel",), ("SJS ms", "PJS ms"), rows),
    ]


def _performance(runs: CollinsRuns) -> list[Section]:
    rows = (Row((f"{n_jobs}",), our_values(*sums)) for n_jobs, sums in savings().items())
    return [_section("Sum of job times (Figure 5)", ("jobs",), ("SJS s", "PJS s", "saved %"), rows)]


def _priority(runs: CollinsRuns) -> list[Section]:
    columns = [f"{way} {level} s" for level in LEVELS for way in ("SJS", "PJS")]
    by_level = []
    for name in list(DISTRIBUTIONS)[:3]:
        for n_jobs in PRIORITY_JOBS:
            sjs, pjs = (runs.priority_total(n_jobs, name, way) for way in ("sjs", "pjs"))
            pairs = [value for pair in zip(sjs, pjs, strict=True) for value in pair]
            by_level.append(Row((name, f"{n_jobs}"), our_values(*pairs)))
    totals = (
        Row((name,), our_values(*(mean_total(runs, name, way) for way in ("sjs", "pjs")))) for name in DISTRIBUTIONS
    )
    return [
        _section("Sum of job times by level (Figure 6)", ("priorities", "jobs"), columns, by_level),
        _section("Mean sum of all job times (Figure 7)", ("priorities",), ("SJS s", "PJS s"), totals),
    ]


def _preemption(runs: CollinsRuns) -> list[Section]:
    rates = [f"{rate}" for rate in RATES]
    rows: dict[str, list[Row]] = {"job_time": [], "parallel": []}
    for what, unit, factor in (("job_time", "ms", 1 / MS_PER_S), ("parallel", "pct", 1.0)):
        for name in DISTRIBUTIONS:
            metrics = {"all": f"{what}_{unit}"}
            if name != "no priority":
                metrics |= {level: f"{what}_level_{number}_{unit}" for number, level in enumerate(LEVELS, start=1)}
            for level, metric in metrics.items():
                rows[what].append(
                    Row((name, level), our_values(*(runs.mean(name, rate, metric) * factor for rate in RATES)))
                )
    evicted = (
        Row((name, "all"), our_values(*(runs.mean(name, rate, "evictions") for rate in RATES)))
        for name in DISTRIBUTIONS
    )
    headings = ("priorities", "level")
    return [
        _section("Mean job time in s by jobs in a quantum (Figures 8 and 9a)", headings, rates, rows["job_time"]),
        _section("Jobs that ran in parallel, % (Figure 9b, Table 1)", headings, rates, rows["parallel"]),
        _section("Evictions", headings, rates, evicted),
    ]
