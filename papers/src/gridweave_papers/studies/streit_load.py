"""Streit's thesis, section 5.2: basic policies and the self-tuning scheduler as the load grows.

Recomputes Tables 5.10 to 5.13 and A.13 to A.20, Figures 5.1 to 5.4, and Figure 4.2 for the decider bounds. The
workloads are synthetic: 10,000 jobs from the histogram model of a trace (section 3.6), with the arrivals of Table 3.7,
and submit times multiplied by a shrinking factor. Results are averaged over several workloads, without the largest and
the smallest result. The thesis's workloads are not public, so ours are new samples from the same model. All eight sets
are transcribed, but the sets of PC2-2001, PC2-2002, CHPC and MHPCC are left out, because these traces are not public.
In Table 5.13 the row of KTH with the advanced decider repeats CTC with the preferred decider; the misprint is kept.

Figure 4.2 shows two extracts of an unknown trace, for which Table 4.1 has only averages. Our figure shows the four
available sets, which suffice to check the statements about jobs with long and with short estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gridweave.scenarios.generators.histogram import HistogramModel, generate_histogram, learn_histogram
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.workload.transform import shrink
from gridweave.site.disciplines.dynp.figures import TuningUse
from gridweave.site.disciplines.dynp.policy import READINGS, THREE, DynPPolicy
from gridweave.site.policy import SitePolicy
from gridweave_papers.studies.report import EACH, OURS, Findings, Row, Section, Value, Verdict, our_values
from gridweave_papers.studies.streit import TRACES, ThesisRuns
from gridweave_papers.studies.streit_dynp import (
    SLACKNESS,
    Made,
    PrintedNumber,
    both_readings,
    by_line,
    policy_of,
)
from gridweave_papers.studies.study import KeptResults, Study, judge, kept_file, printed, seeds_of

SEEDS, FULL_SEEDS = 3, 10
"""Number of workloads per set: by default, and in the thesis."""

JOBS = 10_000
DECIDERS = ("advanced", "sjf-preferred")
USED = ("sjf", "fcfs", "ljf")
"""The basic policies; the bounds select them in this order as average estimates grow (Figure 4.2)."""

LONG, SHORT = "CTC", "LANL"
"""The sets whose average estimates are closest to the two averages in Table 4.1: 21,634 s and 6,554 s."""

BOUNDED = "bounds"
_NUMBERS = "numbers"
_SLDWA, _UTIL = "SLDwA [%]", "utilisation [points]"
"""The quantities of Table 5.12."""

_LEAST_TO_TRIM = 3
_SMALL_SLACKNESS = 2
_HALF_PCT = 50


_Numbers = dict[tuple[str, ...], float]


class Way(NamedTuple):
    """How the site schedules: in one order, by the bounds of the thesis, or with a decider.

    Parameters
    ----------
    name : str
        One of `THREE`, `BOUNDED`, or a decider of `DECIDERS`.
    reading : {"true", "thesis"}
        Reading of a decider's rules.
    slackness_pct : float
        Slackness of a decider.
    """

    name: str
    reading: str = "true"
    slackness_pct: float = 0.0

    @property
    def policy(self) -> SitePolicy | DynPPolicy:
        """The policy of the site."""
        if self.name in THREE:
            return SitePolicy(discipline="planning", order=self.name)
        if self.name == BOUNDED:
            return DynPPolicy(decider="bounds")
        return policy_of(self.name, self.reading, slackness=self.slackness_pct)


class LoadSetting(NamedTuple):
    """A simulation: trace, shrinking factor, seed and number of jobs of the workload, and the way of scheduling."""

    trace: str
    factor: float
    seed: int
    jobs: int
    way: Way


class Figures(NamedTuple):
    """Metrics of a schedule; the last three are the shares of time under each policy."""

    sldwa: float
    util_pct: float
    fcfs_pct: float
    sjf_pct: float
    ljf_pct: float


class LoadRuns:
    """The simulations of section 5.2, each run once.

    Parameters
    ----------
    runs : ThesisRuns
        The available traces.
    seeds : int
        Number of workloads per set.
    full : bool
        Whether to simulate as many workloads as the thesis.
    jobs : int
        Number of jobs per workload.
    kept : bool
        Whether to store results in the user's cache folder, separately for each version of the sources, so that an
        interrupted run can be resumed.
    progress : callable, optional
    """

    def __init__(
        self,
        runs: ThesisRuns,
        *,
        seeds: int = SEEDS,
        full: bool = False,
        jobs: int = JOBS,
        kept: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.runs = runs
        self.seeds = seeds_of(FULL_SEEDS if full else seeds)
        self._jobs = jobs
        self._models: Study[str, HistogramModel] = Study(self._learn)
        self._results: Study[LoadSetting, Figures] = Study(
            self._simulate,
            title="Streit, section 5.2",
            progress=progress,
            kept=KeptResults(kept_file("streit-load"), LoadSetting, Figures) if kept else None,
        )

    def at_hand(self, table: str) -> list[dict[str, str]]:
        """Return the rows of a published table whose traces are available."""
        return [line for line in printed(table) if line["set"] in TRACES and self.runs.jobs(line["set"]) is not None]

    def prepare(self, trace: str, factors: Iterable[float], ways: Sequence[Way]) -> None:
        """Run the simulations of a trace with these factors and ways of scheduling in parallel."""
        self._models[trace]
        self._results.results(
            self._setting(trace, factor, seed, way) for factor in factors for way in ways for seed in self.seeds
        )

    def figures(self, trace: str, factor: float, way: Way) -> Figures:
        """Return the metrics of a set: trimmed means as in the thesis, but plain means for shares of time."""
        outcomes = [self._results[self._setting(trace, factor, seed, way)] for seed in self.seeds]
        sldwa, util_pct, *parts_pct = zip(*outcomes, strict=True)
        return Figures(trimmed_mean(sldwa), trimmed_mean(util_pct), *(float(np.mean(part)) for part in parts_pct))

    def _setting(self, trace: str, factor: float, seed: int, way: Way) -> LoadSetting:
        return LoadSetting(trace, factor, seed, self._jobs, way)

    def _learn(self, trace: str) -> HistogramModel:
        jobs = self.runs.at_hand(trace)
        return learn_histogram(jobs.scheduled, nodes=jobs.trace.nodes, weibull=f"table:{trace}")

    def _simulate(self, setting: LoadSetting) -> Figures:
        from gridweave.scenarios.batch.simulate import simulate

        model = self._models[setting.trace]
        workload = generate_histogram(model, setting.jobs, np.random.default_rng(setting.seed))
        result = simulate(shrink(workload, setting.factor), model.nodes, setting.way.policy)
        metrics = result.metrics()
        return Figures(metrics.sldwa, 100 * metrics.util, *_in_force(result, setting.way))


def _in_force(result: SimulationResult, way: Way) -> list[float]:
    """Return the share of time for which each policy of `THREE` is in force, in per cent."""
    if not isinstance(result.own, TuningUse):
        return [100.0 * (way.name == order) for order in THREE]
    uses = result.own.uses(int(result.workload.submit_ms.min()), int(result.end_ms.max()))
    whole_ms = sum(use.active_ms for use in uses)
    return [100 * use.active_ms / whole_ms for use in uses]


def trimmed_mean(values: Iterable[float]) -> float:
    """Return the average without the largest and the smallest value; with fewer than three values, the plain average.

    Examples
    --------
    >>> trimmed_mean([1.0, 2.0, 3.0, 90.0]), trimmed_mean([1.0, 2.0])
    (2.5, 1.5)
    """
    ordered = sorted(values)
    return float(np.mean(ordered[1:-1] if len(ordered) >= _LEAST_TO_TRIM else ordered))


def report(table: str, study: LoadRuns) -> Findings:
    """Recompute a table of `TABLES`."""
    sections, numbers = TABLES[table](study)
    present = study.runs.present()
    seeds = len(study.seeds)
    other = (
        ("The published figure is for two other sets, of which Table 4.1 has averages.",)
        if table == "streit-4.2"
        else ()
    )
    mean = "without the largest and the smallest" if seeds >= _LEAST_TO_TRIM else "averaged"
    return Findings(
        sections=tuple(sections) if present else (),
        conclusions=judge(table, CHECKS[table], numbers) if len(present) == len(TRACES) else (),
        missing=study.runs.missing(),
        notes=(
            f"{seeds} workloads of {JOBS:,} jobs each, {mean}; the thesis has ten.",
            "The sets of PC2-2001, PC2-2002, CHPC and MHPCC are left out: their traces are not public.",
            *other,
        ),
    )


def figure_4_2(study: LoadRuns) -> Made:
    """Recompute Figure 4.2: the share of time under each policy as the load grows, with the decider bounds."""
    rows: list[Row] = []
    numbers: _Numbers = {}
    for trace, factors in factors_of(study.at_hand("streit-A.13")).items():
        study.prepare(trace, factors, [Way(BOUNDED)])
        for factor in factors:
            figures = study.figures(trace, factor, Way(BOUNDED))
            parts = (figures.sjf_pct, figures.fcfs_pct, figures.ljf_pct)
            rows.append(Row((trace, str(factor)), our_values(*parts, decimals=1)))
            numbers |= {(trace, str(factor), order): part for order, part in zip(USED, parts, strict=True)}
    title = "Part of the time in force [%], bounds of 7200 and 9000 s"
    return [Section(title, ("based on", "factor"), USED, tuple(rows), OURS)], {_NUMBERS: numbers}


def table_5_11(study: LoadRuns) -> Made:
    """Recompute Table 5.11: the basic policies on the traces, and on synthetic jobs with shrinking factor 1."""
    rows: list[Row] = []
    numbers: _Numbers = {}
    for line in study.at_hand("streit-5.11"):
        trace = line["set"]
        study.prepare(trace, [1.0], [Way(order) for order in THREE])
        for order in THREE:
            original = study.runs.result(trace, "planning", order).metrics().sldwa
            synthetic = study.figures(trace, 1.0, Way(order)).sldwa
            numbers[trace, order] = synthetic
            for jobs, column, ours in (("original", order, original), ("synthetic", f"{order} synthetic", synthetic)):
                rows.append(Row((trace, jobs, order), (Value.of(line[column], ours),)))
    return [Section("SLDwA", ("based on", "jobs", "policy"), ("ours",), tuple(rows))], {_NUMBERS: numbers}


def tables_a_13(study: LoadRuns) -> Made:
    """Recompute Tables A.13 and A.14: the basic policies by shrinking factor (Table 5.10), and their averages."""
    lines = study.at_hand("streit-A.13")
    for trace, factors in factors_of(lines).items():
        study.prepare(trace, factors, [Way(order) for order in THREE])
    sldwa: list[Row] = []
    util: list[Row] = []
    numbers: _Numbers = {}
    for line in lines:
        trace, factor = line["set"], line["factor"]
        ours = {order: study.figures(trace, float(factor), Way(order)) for order in THREE}
        for order in THREE:
            numbers[trace, factor, order, "sldwa"] = ours[order].sldwa
            numbers[trace, factor, order, "util"] = ours[order].util_pct
        sldwa.append(Row((trace, factor), tuple(Value.of(line[policy], ours[policy].sldwa) for policy in THREE)))
        util.append(
            Row((trace, factor), tuple(Value.of(line[f"{policy} util"], ours[policy].util_pct) for policy in THREE))
        )
    headings = ("based on", "factor")
    return [
        Section("SLDwA", headings, THREE, tuple(sldwa), EACH),
        Section("Utilisation [%]", headings, THREE, tuple(util), EACH),
        _averages(lines, numbers),
    ], {_NUMBERS: numbers}


def _averages(lines: list[dict[str, str]], numbers: _Numbers) -> Section:
    """Return the "average" rows of Tables A.13 and A.14: the differences of SJF and LJF from FCFS."""
    rows = []
    for trace in factors_of(lines):
        of_trace = [line for line in lines if line["set"] == trace]
        theirs = {entry: [(float(line[entry]), float(line[f"{entry} util"])) for line in of_trace] for entry in THREE}
        for order in THREE[1:]:
            pairs = zip(_gain(theirs[order], theirs["fcfs"]), _over_fcfs(numbers, trace, order), strict=True)
            values = tuple(Value(published=entry, ours=two, decimals=2) for entry, two in pairs)
            rows.append(Row((trace, order), values))
    title = "Difference to FCFS, averaged over the factors; below 0 is worse"
    return Section(title, ("based on", "policy"), (_SLDWA, _UTIL), tuple(rows), EACH)


def _gain(own: Iterable[tuple[float, float]], base: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean gains in SLDwA, in per cent, and in utilisation, in points."""
    gains = [(100 * (1 - sample[0] / other[0]), sample[1] - other[1]) for sample, other in zip(own, base, strict=True)]
    sldwa_pct, points = zip(*gains, strict=True)
    return float(np.mean(sldwa_pct)), float(np.mean(points))


def _over_fcfs(ours: _Numbers, trace: str, order: str) -> tuple[float, float]:
    """Return the gains of an order over FCFS as in `_gain`, averaged over the factors of a set."""
    factors = [str(factor) for factor in _factors_in(ours, trace)]
    own, base = (
        [(ours[trace, factor, policy, "sldwa"], ours[trace, factor, policy, "util"]) for factor in factors]
        for policy in (order, "fcfs")
    )
    return _gain(own, base)


def table_5_12(study: LoadRuns) -> Made:
    """Recompute Tables 5.12, A.15 and A.16: the self-tuning scheduler by shrinking factor."""
    lines = study.at_hand("streit-A.15")
    for trace, factors in factors_of(lines).items():
        study.prepare(trace, factors, [Way("sjf"), *(Way(key, way) for key in DECIDERS for way in READINGS)])

    def figures(line: dict[str, str], decider: str, reading: str) -> Figures:
        return study.figures(line["set"], float(line["factor"]), Way(decider, reading))

    names, headings = ("set", "factor"), ("based on", "factor", "decider")
    sldwa = by_line(lines, names, DECIDERS, lambda *key: figures(*key).sldwa)
    util = by_line(lines, names, DECIDERS, lambda *key: figures(*key).util_pct, suffix=" util")
    title = "Table 5.12: gain over SJF, averaged over the factors"
    averages, numbers = both_readings(title, ("based on", "decider", "of"), list(_gains(study, lines)))
    details = (
        both_readings(name, headings, rows)[0][0] for name, rows in (("SLDwA", sldwa), ("Utilisation [%]", util))
    )
    return [*averages, *details], numbers


def _gains(study: LoadRuns, lines: list[dict[str, str]]) -> Iterator[PrintedNumber]:
    """Yield the numbers of Table 5.12, published and ours."""
    for line in study.at_hand("streit-5.12"):
        trace = line["set"]
        factors = factors_of(lines)[trace]
        for decider in DECIDERS:
            gains = {way: _over_sjf(study, trace, factors, Way(decider, way)) for way in READINGS}
            for place, (what, column) in enumerate(((_SLDWA, decider), (_UTIL, f"{decider} util"))):
                yield (trace, decider, what), line[column], {way: gain[place] for way, gain in gains.items()}


def _over_sjf(study: LoadRuns, trace: str, factors: Sequence[float], way: Way) -> tuple[float, float]:
    """Return the gain over SJF, averaged over the factors: SLDwA in per cent, utilisation in points."""
    own, base = ([study.figures(trace, factor, variant)[:2] for factor in factors] for variant in (way, Way("sjf")))
    return _gain(own, base)


def table_5_13(study: LoadRuns) -> Made:
    """Recompute Tables 5.13 and A.17 to A.20: the effect of slackness by shrinking factor."""
    lines = study.at_hand("streit-A.17")
    factors_by_set, slacks = factors_of(lines), tuple(map(str, SLACKNESS))
    ways = [Way(decider, reading, slack) for decider in DECIDERS for reading in READINGS for slack in SLACKNESS]
    for trace, factors in factors_by_set.items():
        study.prepare(trace, factors, [Way("sjf"), *ways])

    def sldwa(line: dict[str, str], slack: str, reading: str) -> float:
        return study.figures(line["set"], float(line["factor"]), Way(line["decider"], reading, float(slack))).sldwa

    def gain(line: dict[str, str], slack: str, reading: str) -> float:
        way = Way(line["decider"], reading, float(slack))
        return _over_sjf(study, line["set"], factors_by_set[line["set"]], way)[0]

    means = by_line(study.at_hand("streit-5.13"), ("set", "decider"), slacks, gain)
    details = by_line(lines, ("set", "decider", "factor"), slacks, sldwa)
    sections, numbers = both_readings(
        "Table 5.13: gain in SLDwA over SJF, in %", ("based on", "decider", "slackness"), means
    )
    return [*sections, *both_readings("SLDwA", ("based on", "decider", "factor", "slackness"), details)[0]], numbers


def factors_of(lines: Iterable[dict[str, str]]) -> dict[str, list[float]]:
    """Return the shrinking factors of each set (Table 5.10)."""
    factors: dict[str, list[float]] = {}
    for line in lines:
        set_factors = factors.setdefault(line["set"], [])
        if float(line["factor"]) not in set_factors:
            set_factors.append(float(line["factor"]))
    return factors


class Drawn(NamedTuple):
    """The lines in the figure of each set, named after columns of the published table ``printed``."""

    source: str
    printed: str
    lines: dict[str, Way]


def drawn_of(table: str) -> dict[str, Drawn]:
    """Return a table's pairs of figures (SLDwA and utilisation by shrinking factor), by reading, if any."""
    if table == "streit-A.13":
        return {"": Drawn("Figures 5.1 and 5.2", "streit-A.13", {order: Way(order) for order in THREE})}
    return {
        reading: Drawn(
            "Figures 5.3 and 5.4",
            "streit-A.15",
            {"sjf": Way("sjf"), **{decider: Way(decider, reading) for decider in DECIDERS}},
        )
        for reading in READINGS
    }


def _best_at_one(ours: _Numbers) -> Verdict:
    best = {trace: min(THREE, key=lambda order: ours[trace, order]) for trace in TRACES}
    theirs = {"CTC": "fcfs", "KTH": "sjf", "LANL": "sjf", "SDSC": "sjf"}
    return Verdict(best == theirs, ", ".join(f"{order} on {trace}" for trace, order in best.items()))


def _ljf_fills(ours: _Numbers) -> Verdict:
    loads = [key[:2] for key in ours if key[2:] == ("ljf", "util")]
    fullest = sum(ours[*load, "ljf", "util"] >= max(ours[*load, order, "util"] for order in THREE) for load in loads)
    slowest = sum(ours[*load, "ljf", "sldwa"] >= max(ours[*load, order, "sldwa"] for order in THREE) for load in loads)
    return Verdict(
        fullest == slowest == len(loads),
        f"the highest utilisation at {fullest} of {len(loads)} loads, the worst SLDwA at {slowest}",
    )


def _sjf_against_fcfs(ours: _Numbers) -> Verdict:
    gains = {trace: _over_fcfs(ours, trace, "sjf")[0] for trace in TRACES}
    figures = ", ".join(f"{gain:+.1f}% on {trace}" for trace, gain in gains.items())
    return Verdict(gains["KTH"] > 0 > max(gains[key] for key in TRACES if key != "KTH"), figures)


def _sjf_wastes(ours: _Numbers) -> Verdict:
    lost = {trace: ours[trace, "0.6", "ljf", "util"] - ours[trace, "0.6", "sjf", "util"] for trace in TRACES}
    figures = ", ".join(f"{points:.1f} points on {trace}" for trace, points in lost.items())
    return Verdict(min(lost.values()) >= 10, f"{figures}, at a factor of 0.6; 10 are required")


def _factors_in(ours: _Numbers, trace: str) -> list[float]:
    return list(dict.fromkeys(float(key[1]) for key in ours if key[0] == trace))


def _under_load(what: str, least: Mapping[str, float], form: str, asked: str) -> Callable[[_Numbers], Verdict]:
    """Return the check that the gain over SJF reaches the minimum that ``least`` requires on each trace."""

    def check(ours: _Numbers) -> Verdict:
        gains = {(trace, decider): ours[trace, decider, what] for trace in least for decider in DECIDERS}
        figures = ", ".join(f"{form.format(gain)} on {trace} ({decider})" for (trace, decider), gain in gains.items())
        return Verdict(all(gain >= least[key[0]] for key, gain in gains.items()), f"{figures}; {asked} are required")

    return check


def _fuller_everywhere(ours: _Numbers) -> Verdict:
    gains = [value for key, value in ours.items() if key[2] == _UTIL]
    return Verdict(min(gains) >= 0, f"from {min(gains):+.2f} to {max(gains):+.2f} points")


def _small_slackness(ours: _Numbers) -> Verdict:
    kinds = dict.fromkeys(key[:2] for key in ours)
    best = {kind: max(SLACKNESS, key=lambda slack: ours[*kind, str(slack)]) for kind in kinds}
    figures = ", ".join(f"best at {slack}% on {trace} ({decider})" for (trace, decider), slack in best.items())
    return Verdict(max(best.values()) <= _SMALL_SLACKNESS, figures)


def _ljf_use(trace: str, sign: int) -> Callable[[_Numbers], Verdict]:
    """Return the check that LJF is used more (sign 1) or less (-1) than half the time, more so at higher loads."""

    def check(ours: _Numbers) -> Verdict:
        parts_pct = np.array([ours[trace, str(factor), "ljf"] for factor in _factors_in(ours, trace)])
        holds = (sign * np.diff(parts_pct) >= 0).all() and (sign * (parts_pct - _HALF_PCT) > 0).all()
        figures = ", ".join(f"{part:.0f}%" for part in parts_pct)
        return Verdict(bool(holds), f"LJF {figures} of the time on {trace}, from the lowest load")

    return check


TABLES: dict[str, Callable[[LoadRuns], Made]] = {
    "streit-4.2": figure_4_2,
    "streit-5.11": table_5_11,
    "streit-A.13": tables_a_13,
    "streit-5.12": table_5_12,
    "streit-5.13": table_5_13,
}
"""Function that recomputes each table."""

CHECKS: dict[str, tuple[Callable[[_Numbers], Verdict], ...]] = {
    "streit-4.2": (_ljf_use(LONG, 1), _ljf_use(SHORT, -1)),
    "streit-5.11": (_best_at_one,),
    "streit-A.13": (_ljf_fills, _sjf_wastes, _sjf_against_fcfs),
    "streit-5.12": (
        _under_load(_SLDWA, {"CTC": 8.0, "SDSC": 5.0}, "{:+.1f}%", "8% and 5%"),
        _under_load(_UTIL, {"CTC": 1.0, "SDSC": 0.7}, "{:+.2f}", "1.0 and 0.7 points"),
        _fuller_everywhere,
    ),
    "streit-5.13": (_small_slackness,),
}
"""Checks of the conclusions from each table, in the order of the rows of ``data/claims.csv``."""
