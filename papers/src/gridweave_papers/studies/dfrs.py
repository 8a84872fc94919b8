"""The evaluation of dynamic fractional resource scheduling recomputed: Figures 1 to 3, sections 5.1 to 5.3.

Stillwell, Vivien and Casanova (below: *the paper*): jobs of the Lublin model on 128 nodes with four cores,
unscaled and scaled to loads of 0.1 to 0.9, and the weeks of HPC2N on 120 nodes with two cores. docs/fractional.md has
the rules, and the points that the paper leaves open. The paper's figures are curves without numbers; its text has some.

The paper's traces have 1,000 jobs "submitted over a period of 4-6 days". The Lublin model with separate batch and
interactive jobs, the default of its authors' program, takes 3 to 10 days for 1,000 jobs; with a single type of jobs it
takes 7 to 18 days. So our traces have both types of jobs and take 4 to 6 days.

The period is 600 s and the penalty 300 s, as printed. (The paper also calls 600 s "equal to the penalty", and 900 s
1.5 times it.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.lublin import generate_lublin, lublin_model
from gridweave.scenarios.results.bound import stretch_bound
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.needs import with_load, with_needs
from gridweave.scenarios.workload.table import MS_PER_S, Workload
from gridweave.site.disciplines.fractional.policy import ALGORITHMS, FractionalPolicy, algorithm_named
from gridweave.site.policy import SitePolicy
from gridweave_papers.studies.report import OURS, Findings, Row, Section, Value, Verdict, all_hold, our_values
from gridweave_papers.studies.study import (
    MS_PER_DAY,
    MS_PER_WEEK,
    KeptResults,
    Study,
    judge,
    kept_file,
    printed,
    seeds_of,
)

NODES, HPC2N_NODES = 128, 120
JOBS, FULL_TRACES = 1_000, 100
DAYS = (4, 6)
"""Shortest and longest span of submissions of a synthetic trace, in days (section 5)."""

LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
HEAVY = 0.7
"""Traces with at least this load count as heavy (section 5.2)."""

MIN_JOBS_OF_WEEK = 20

NODE_GB = 4.0
"""Assumed memory per node: the paper reports a bandwidth, but not the memory of a task."""

PENALTY_S = 300
PERIOD_S = 600
PERIODS_S = (600, 900, 1_200, 3_000, 6_000, 12_000)

EASY, FCFS = "EASY", "FCFS"
BEST = "GreedyPM*/per/OPT=MIN/MINVT=600"
SECOND = "GreedyP*/per/OPT=MIN/MINVT=600"
SHOWN = (
    *(EASY, FCFS, "Greedy*/OPT=MIN", "GreedyP*/OPT=MIN", "GreedyPM*/OPT=MIN", "MCB8*/OPT=MIN/MINVT=600"),
    *("/per/OPT=MIN/MINVT=600", "/stretch-per/OPT=MAX/MINVT=600", SECOND, BEST),
)
"""The algorithms of Figure 1 that the text of the paper names."""

SHORT_JOBS = 100
"""Jobs per trace for comparing OPT=AVG with OPT=MIN; few, because every event solves a linear program."""


class DfrsSetting(NamedTuple):
    """One simulation: set and number of the trace, its load (0: unscaled), the discipline and its period."""

    traces: str
    number: int
    load: float
    discipline: str
    period_s: int = PERIOD_S


class DfrsPoint(NamedTuple):
    """The metrics of one simulation."""

    degradation: float
    underutilization: float
    preemptions_per_h: float
    migrations_per_h: float
    preemptions_per_job: float
    migrations_per_job: float
    gb_per_s: float


class DfrsRuns:
    """The simulations behind all figures, each run once.

    Parameters
    ----------
    seeds : int
        Number of synthetic traces (`synthetic_seeds`); also the number of HPC2N weeks, spread evenly over the trace.
    full : bool
        Whether to simulate all weeks and 100 synthetic traces. Results are stored in the user's cache folder,
        separately for each version of the sources, so that an interrupted run can be resumed.
    hpc2n : pathlib.Path or None
        Path of the HPC2N trace, or None if the trace is not on this machine.
    """

    def __init__(
        self, *, seeds: int = 10, full: bool = False, hpc2n: Path | None = None, progress: Progress | None = None
    ) -> None:
        self.seeds = synthetic_seeds(FULL_TRACES if full else seeds)
        self._hpc2n, self._full = hpc2n, full
        self.bound = lru_cache(maxsize=None)(self._bound)
        self.workload = lru_cache(maxsize=64)(self._workload)
        kept = KeptResults(kept_file("dfrs"), DfrsSetting, DfrsPoint) if full else None
        self._points = Study(self._point, title="DFRS", progress=progress, same=_same, kept=kept)

    @property
    def weeks(self) -> tuple[int, ...]:
        """The simulated HPC2N weeks; empty without the trace."""
        if self._hpc2n is None:
            return ()
        count = len(_weeks(self._hpc2n))
        chosen = count if self._full else min(count, len(self.seeds))
        return tuple(int(place) for place in np.linspace(0, count - 1, chosen))

    def points(self, settings: Iterable[DfrsSetting]) -> dict[DfrsSetting, DfrsPoint]:
        """Return the metrics of each simulation."""
        return self._points.results(settings)

    def mean(self, settings: Iterable[DfrsSetting]) -> DfrsPoint:
        """Return the mean metrics of simulations; NaN without any simulation."""
        points = list(self.points(settings).values())
        return (
            DfrsPoint(*np.mean(points, axis=0).tolist()) if points else DfrsPoint(*[math.nan] * len(DfrsPoint._fields))
        )

    def settings(self, traces: str, discipline: str, period_s: int = PERIOD_S) -> list[DfrsSetting]:
        """Return the simulations of a discipline on a whole set of traces."""
        numbers = self.weeks if traces == "HPC2N" else self.seeds
        loads = LOADS if traces == "scaled" else (0.0,)
        return [DfrsSetting(traces, number, load, discipline, period_s) for load in loads for number in numbers]

    def _workload(self, traces: str, number: int, load: float) -> Workload:
        if traces == "HPC2N":
            assert self._hpc2n is not None, "without the trace, none of its weeks is simulated"
            return _weeks(self._hpc2n)[number]
        rng = np.random.default_rng(number)
        jobs = _lublin_jobs(rng)
        if traces == "short":
            jobs = jobs.take(np.arange(SHORT_JOBS))
        jobs = with_needs(jobs, "lublin", rng)
        return with_load(jobs, NODES, load) if load else jobs

    def _bound(self, traces: str, number: int, load: float) -> float:
        return stretch_bound(self.workload(traces, number, load), nodes_of(traces))

    def _point(self, setting: DfrsSetting) -> DfrsPoint:
        workload = self.workload(setting.traces, setting.number, setting.load)
        result = simulate(workload, nodes_of(setting.traces), policy_of(setting))
        metrics = result.own_metrics
        return DfrsPoint(
            degradation=metrics["need_max_stretch"] / self.bound(setting.traces, setting.number, setting.load),
            underutilization=metrics["need_underutilization_normalized"],
            gb_per_s=metrics.get("moved_nodes_per_h", 0.0) * NODE_GB / 3600,
            **{name: metrics.get(name, 0.0) for name in DfrsPoint._fields[2:-1]},  # EASY has none
        )


def synthetic_seeds(count: int) -> tuple[int, ...]:
    """Return the first `count` seeds whose jobs are submitted within `DAYS`."""
    seeds_of(count)
    return tuple(itertools.islice(filter(_takes_the_days, itertools.count(1)), count))


def _takes_the_days(seed: int) -> bool:
    submit_ms = _lublin_jobs(np.random.default_rng(seed)).submit_ms
    return DAYS[0] <= float(submit_ms[-1] - submit_ms[0]) / MS_PER_DAY <= DAYS[1]


def _lublin_jobs(rng: np.random.Generator) -> Workload:
    return generate_lublin(lublin_model("types", nodes=NODES), JOBS, rng)


def nodes_of(traces: str) -> int:
    """Return the number of nodes for a set of traces."""
    return HPC2N_NODES if traces == "HPC2N" else NODES


def policy_of(setting: DfrsSetting) -> SitePolicy | FractionalPolicy:
    """Return the policy of a simulation."""
    if setting.discipline in (EASY, FCFS):
        return SitePolicy(backfill="easy" if setting.discipline == EASY else "none")
    return FractionalPolicy(
        algorithm=setting.discipline, period_ms=setting.period_s * MS_PER_S, penalty_ms=PENALTY_S * MS_PER_S
    )


def _same(setting: DfrsSetting) -> DfrsSetting:
    """Return an equivalent setting, with the default period if the discipline is not periodic."""
    periodic = setting.discipline not in (EASY, FCFS) and algorithm_named(setting.discipline).periodic
    return setting if periodic else setting._replace(period_s=PERIOD_S)


@lru_cache(maxsize=1)
def _weeks(path: Path) -> tuple[Workload, ...]:
    """Return the HPC2N weeks that have enough jobs, without jobs that have more tasks than there are nodes."""
    trace = load_workload(path, columns=("memory_kb", "requested_memory_kb"))[0]
    jobs = with_needs(trace, "hpc2n", np.random.default_rng(0))
    jobs = jobs.take(np.flatnonzero(jobs.width <= HPC2N_NODES))
    week = (jobs.submit_ms - jobs.submit_ms[0]) // MS_PER_WEEK
    parts = (jobs.take(np.flatnonzero(week == number)) for number in np.unique(week).tolist())
    enough = (part for part in parts if len(part) >= MIN_JOBS_OF_WEEK)
    return tuple(part.replace(submit_ms=part.submit_ms - part.submit_ms[0]) for part in enough)


# Checks of the paper's conclusions.


def _beats_easy(runs: DfrsRuns) -> Verdict:
    """Check the claim "improves over batch scheduling by orders of magnitude in terms of job stretch"."""
    ratios = _over_best(runs, EASY)
    texts = ", ".join(f"{ratio:,.0f} at {load:g}" for load, ratio in ratios.items())
    text = f"ratio of EASY's degradation to the best algorithm's: {texts}; at least 10 times"
    return Verdict(min(ratios.values()) >= 10, text)


def _over_best(runs: DfrsRuns, name: str) -> dict[float, float]:
    """Return an algorithm's degradation relative to the best algorithm's, by load."""
    return {load: degradation_at(runs, name, load) / degradation_at(runs, BEST, load) for load in LOADS}


def _is_best(runs: DfrsRuns) -> Verdict:
    """Check the claim "the best DFRS algorithm regardless of the load level is GreedyPM*/per/OPT=MIN/MINVT=600"."""
    best = {load: min(SHOWN, key=lambda name: degradation_at(runs, name, load)) for load in LOADS}
    return all_hold(((name == BEST, f"{name} at {load:g}") for load, name in best.items()), between=", ")


def _greedy_is_poor(runs: DfrsRuns) -> Verdict:
    """Check the claim "the only DFRS algorithm that shows poor performance is Greedy*/OPT=MIN"."""
    means = {name: runs.mean(runs.settings("scaled", name)).degradation for name in SHOWN[2:]}
    others = max(value for name, value in means.items() if name != "Greedy*/OPT=MIN")
    own = means["Greedy*/OPT=MIN"]
    return Verdict(own > 10 * others, f"mean degradation {own:,.0f}; of all others at most {others:,.0f}")


def _low_load(runs: DfrsRuns) -> Verdict:
    """Check that GreedyPM*/OPT=MIN performs well at loads below 0.3 and poorly above 0.3."""
    ratios = _over_best(runs, "GreedyPM*/OPT=MIN")
    texts = ", ".join(f"{ratio:.1f} at {load:g}" for load, ratio in ratios.items())
    holds = all((ratio <= 1.5) if load < 0.3 else (ratio > 1) for load, ratio in ratios.items() if load != 0.3)
    return Verdict(
        holds, f"ratio of its degradation to that of the best: {texts}; below 0.3 up to 1.5, above more than 1"
    )


def _within_seven(runs: DfrsRuns) -> Verdict:
    """Check the claim "our best algorithms are on average at most a factor 7 away from this loose bound"."""
    means = {load: degradation_at(runs, BEST, load) for load in LOADS}
    texts = ", ".join(f"{mean:.1f} at {load:g}" for load, mean in means.items())
    whole = float(np.mean(list(means.values())))
    return Verdict(whole <= 7, f"mean {whole:.1f}: {texts}")


def degradation_at(runs: DfrsRuns, name: str, load: float) -> float:
    """Return an algorithm's mean degradation from bound over the traces scaled to a load."""
    return runs.mean([DfrsSetting("scaled", seed, load, name) for seed in runs.seeds]).degradation


def _min_against_avg(runs: DfrsRuns) -> Verdict:
    """Check the claim "on average OPT=MIN is never worse and often slightly better than OPT=AVG"."""
    worse, ratios = [], []
    for plain in _mechanisms():
        pair = [_short(runs, f"{plain}/OPT={optimise}") for optimise in ("AVG", _fair(plain))]
        ratios.append(pair[0] / pair[1])
        worse += [plain] if pair[1] > pair[0] * 1.001 else []
    text = f"AVG over MIN from {min(ratios):.2f} to {max(ratios):.2f}, on average {np.mean(ratios):.2f}"
    return Verdict(not worse, f"{text}; OPT=MIN is worse with {', '.join(worse) or 'none'}")


def _minvt_is_best(runs: DfrsRuns) -> Verdict:
    """Check the claim "MINVT is always better than MINFT, and slightly better with the larger 600 s bound"."""
    means = {limit: _limited(runs, limit) for limit in LIMITS}
    texts = ", ".join(f"{limit or 'none'} {mean:.1f}" for limit, mean in means.items())
    better = all(means[f"/MINVT={bound}"] < means[f"/MINFT={bound}"] for bound in (300, 600))
    holds = better and min(means, key=lambda limit: means[limit]) == "/MINVT=600"
    return Verdict(holds, f"mean degradation at load {HEAVY:g} over all mechanisms with MCB8: {texts}")


LIMITS = ("", "/MINFT=300", "/MINFT=600", "/MINVT=300", "/MINVT=600")


def _mechanisms() -> list[str]:
    """Return the names of the 14 mechanisms for placing tasks."""
    plain = [algorithm for algorithm in ALGORITHMS.values() if not algorithm.min_flow_s and not algorithm.min_virtual_s]
    return [algorithm.name.removesuffix("/OPT=AVG") for algorithm in plain if algorithm.optimise == "AVG"]


def _fair(plain: str) -> str:
    return "MAX" if plain == "/stretch-per" else "MIN"


def _short(runs: DfrsRuns, name: str) -> float:
    return runs.mean([DfrsSetting("short", seed, HEAVY, name) for seed in runs.seeds]).degradation


def _limited(runs: DfrsRuns, limit: str) -> float:
    names = [f"{plain}/OPT={_fair(plain)}{limit}" for plain in _mechanisms()]
    with_mcb8 = [name for name in names if name in ALGORITHMS and ALGORITHMS[name].uses_mcb8]
    settings = [DfrsSetting("scaled", seed, HEAVY, name) for seed in runs.seeds for name in with_mcb8]
    return runs.mean(settings).degradation


def _heavy(runs: DfrsRuns) -> list[DfrsSetting]:
    return [setting for setting in runs.settings("scaled", BEST) if setting.load >= HEAVY]


def _under(quantities: dict[str, float]) -> Callable[[DfrsRuns], Verdict]:
    """Return the check that quantities stay below the published numbers for heavy traces."""

    def check(runs: DfrsRuns) -> Verdict:
        mean = runs.mean(_heavy(runs))._asdict()
        return all_hold(
            (mean[name] < most, f"{name.replace('_', ' ')} {mean[name]:.2f} ({most:g})")
            for name, most in quantities.items()
        )

    return check


def _bandwidth(runs: DfrsRuns) -> Verdict:
    """Check that migrations cause less than 0.80 GB/s on average, and less than 2.0 GB/s for the worst trace."""
    gb_per_s = [point.gb_per_s for point in runs.points(_heavy(runs)).values()]
    text = f"{np.mean(gb_per_s):.2f} GB/s on average, at most {max(gb_per_s):.2f}, with {NODE_GB:g} GB in a node"
    return Verdict(float(np.mean(gb_per_s)) < 0.8 and max(gb_per_s) < 2.0, text)


def _easy_is_lower_at_first(runs: DfrsRuns) -> Verdict:
    """Check that EASY has the lower underutilization on all sets if the period is 600 s."""
    parts = []
    for name in sets_of(runs):
        easy, own = (underutilization_of(runs, name, discipline, PERIOD_S) for discipline in (EASY, BEST))
        parts.append((easy < own, f"{name} {easy:.1%} against {own:.1%}"))
    return all_hold(parts, between=", ")


def _longer_periods_help(runs: DfrsRuns) -> Verdict:
    """Check that the best algorithm has less underutilization than EASY on synthetic traces for periods above 900 s."""
    parts = []
    for name in ("unscaled", "scaled"):
        easy = underutilization_of(runs, name, EASY, PERIOD_S)
        curve = {period: underutilization_of(runs, name, BEST, period) for period in PERIODS_S}
        shown = ", ".join(f"{own:.0%} at {period:,}" for period, own in curve.items())
        below = all(own < easy for period, own in curve.items() if period > 900)
        parts.append((below, f"{name}: EASY {easy:.0%}, {shown}"))
    return all_hold(parts)


def _falls_steadily(runs: DfrsRuns) -> Verdict:
    """Check the claim "normalized underutilization is shown to decrease steadily" with the period."""
    curves = {name: [underutilization_of(runs, name, BEST, period) for period in PERIODS_S] for name in sets_of(runs)}
    texts = "; ".join(f"{name} {', '.join(f'{own:.1%}' for own in curve)}" for name, curve in curves.items())
    return Verdict(all(np.all(np.diff(curve) <= 0.01) for curve in curves.values()), f"{texts}; by at most a point up")


def _stretch_stays(runs: DfrsRuns) -> Verdict:
    """Check that a 20 times longer period less than triples the degradation, which stays far below that of EASY."""
    parts = []
    for name in sets_of(runs):
        first, last = (degradation_of(runs, name, BEST, period) for period in (PERIODS_S[0], PERIODS_S[-1]))
        easy = degradation_of(runs, name, EASY, PERIOD_S)
        text = f"{name} {first:.1f}, {last:.1f} at 12,000 s, EASY {easy:,.0f}"
        parts.append((last < 3 * first and easy >= 100 * last, text))
    return all_hold(parts, "; EASY at least 100 times")


def _good_compromise(runs: DfrsRuns) -> Verdict:
    """Check that periods of 5 to 20 times the penalty are a good compromise between stretch and underutilization."""
    parts = []
    for name in sets_of(runs):
        idle = {period: underutilization_of(runs, name, BEST, period) for period in PERIODS_S}
        far = {period: degradation_of(runs, name, BEST, period) for period in PERIODS_S}
        inside = [period for period in PERIODS_S if 5 <= period / PENALTY_S <= 20]
        holds = all(far[period_s] <= 3 * min(far.values()) and idle[period_s] < idle[PERIOD_S] for period_s in inside)
        shown = ", ".join(f"{period_s:,} s: {far[period_s]:.1f} and {idle[period_s]:.0%}" for period_s in inside)
        parts.append((holds, f"{name} {shown}"))
    return all_hold(parts, "; within 3 times the least, less idle than with 600 s")


def sets_of(runs: DfrsRuns) -> tuple[str, ...]:
    """Return the available sets of traces."""
    return ("unscaled", "scaled", "HPC2N") if runs.weeks else ("unscaled", "scaled")


def underutilization_of(runs: DfrsRuns, traces: str, name: str, period_s: int) -> float:
    """Return an algorithm's mean normalized underutilization over a set of traces."""
    return runs.mean(runs.settings(traces, name, period_s)).underutilization


def degradation_of(runs: DfrsRuns, traces: str, name: str, period_s: int) -> float:
    """Return an algorithm's mean degradation from bound over a set of traces."""
    return runs.mean(runs.settings(traces, name, period_s)).degradation


CHECKS: dict[str, tuple[Callable[[DfrsRuns], Verdict], ...]] = {
    "dfrs-1": (_beats_easy, _is_best, _greedy_is_poor, _low_load, _within_seven),
    "dfrs-names": (_min_against_avg, _minvt_is_best),
    "dfrs-moves": (
        _under({"preemptions_per_h": 38, "migrations_per_h": 53}),
        _under({"preemptions_per_job": 6, "migrations_per_job": 7}),
        _bandwidth,
    ),
    "dfrs-2": (_easy_is_lower_at_first, _longer_periods_help, _falls_steadily),
    "dfrs-3": (_stretch_stays, _good_compromise),
}
"""Checks of the paper's conclusions, by table or figure."""


def report(table: str, runs: DfrsRuns) -> Findings:
    """Recompute a figure or section, and check the published conclusions."""
    model = f"{JOBS:,} jobs of the Lublin model (lublin-types) on {NODES} nodes, over {DAYS[0]} to {DAYS[1]} days"
    seeds = f"means over {len(runs.seeds)} traces (seeds up to {runs.seeds[-1]})"
    notes = [f"{model}; {seeds}; penalty {PENALTY_S} s"]
    sections = {
        "dfrs-1": _figure_1,
        "dfrs-names": _names,
        "dfrs-moves": _moves,
        "dfrs-2": _figure_2,
        "dfrs-3": _figure_3,
    }[table](runs)
    if table in ("dfrs-2", "dfrs-3"):
        weeks = (
            f"{len(runs.weeks)} weeks of HPC2N"
            if runs.weeks
            else "the trace HPC2N is not on this machine, so its weeks are left out"
        )
        notes.append(f"{weeks} on {HPC2N_NODES} nodes")
        readings = {"all periods": runs}
    else:
        readings = {f"period {PERIOD_S} s": runs}
    return Findings(sections=tuple(sections), conclusions=judge(table, CHECKS[table], readings), notes=tuple(notes))


def _figure_1(runs: DfrsRuns) -> list[Section]:
    runs.points(setting for name in SHOWN for setting in runs.settings("scaled", name))
    rows = [
        Row((name,), our_values(*(degradation_at(runs, name, load) for load in LOADS), decimals=1)) for name in SHOWN
    ]
    columns = tuple(f"{load:g}" for load in LOADS)
    title = f"Average degradation from bound by load, period {PERIOD_S} s"
    return [Section(title, ("algorithm",), columns, tuple(rows), OURS)]


def _names(runs: DfrsRuns) -> list[Section]:
    rows = []
    for plain in _mechanisms():
        both = [_short(runs, f"{plain}/OPT={optimise}") for optimise in ("AVG", _fair(plain))]
        rows.append(Row((plain,), our_values(*both, decimals=2)))
    title = f"Average degradation at load {HEAVY:g}, {SHORT_JOBS} jobs, period {PERIOD_S} s"
    return [Section(title, ("mechanism",), ("OPT=AVG", "OPT=MIN (or MAX)"), tuple(rows), OURS)]


def _moves(runs: DfrsRuns) -> list[Section]:
    mean = runs.mean(_heavy(runs))
    rows = []
    for row in printed("dfrs-moves"):
        value = Value(published=float(row["below"]), ours=getattr(mean, row["quantity"]), decimals=2)
        rows.append(Row((row["quantity"].replace("_", " "),), (value,)))
    title = f"{BEST} at loads of {HEAVY:g} and above, period {PERIOD_S} s; the published numbers are upper ends"
    return [Section(title, ("quantity",), ("ours",), tuple(rows))]


def _figure_2(runs: DfrsRuns) -> list[Section]:
    values = {(row["traces"], row["discipline"]): float(row["percent"]) for row in printed("dfrs-idle")}
    first_rows = [
        Row(
            (traces, name),
            (Value(published=published, ours=100 * underutilization_of(runs, traces, name, PERIOD_S), decimals=1),),
        )
        for (traces, name), published in values.items()
        if traces in sets_of(runs)
    ]
    title = f"Average normalized underutilization [%], period {PERIOD_S} s"
    first = Section(title, ("traces", "algorithm"), ("ours",), tuple(first_rows))
    return [first, _by_period(runs, underutilization_of, "Average normalized underutilization [%] by period [s]", 100)]


def _figure_3(runs: DfrsRuns) -> list[Section]:
    return [_by_period(runs, degradation_of, "Average degradation from bound by period [s]", 1)]


def _by_period(
    runs: DfrsRuns, quantity: Callable[[DfrsRuns, str, str, int], float], title: str, factor: float
) -> Section:
    rows = []
    for traces in sets_of(runs):
        runs.points(setting for period in PERIODS_S for setting in runs.settings(traces, BEST, period))
        own = [factor * quantity(runs, traces, BEST, period) for period in PERIODS_S]
        rows.append(Row((traces, BEST), our_values(*own, decimals=1)))
        easy = factor * quantity(runs, traces, EASY, PERIOD_S)
        rows.append(Row((traces, EASY), our_values(*[easy] * len(PERIODS_S), decimals=1)))
    return Section(title, ("traces", "algorithm"), tuple(f"{period:,}" for period in PERIODS_S), tuple(rows), OURS)
