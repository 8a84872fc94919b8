"""Streit's thesis, section 5.2: basic policies and the self-tuning scheduler as the load grows.

Tables 5.10 to 5.13 and A.13 to A.20, Figures 5.1 to 5.4; and Figure 4.2, of the scheduler with bounds. The workloads
are synthetic: 10,000 jobs of the histogram model of a trace (section 3.6), with the arrivals of Table 3.7, whose submit
times are multiplied by a shrinking factor. Of several workloads the largest and the smallest result are left out, and
the others averaged. The sets themselves are not public, so ours are others of the same model. All eight sets are
transcribed; the traces of PC2-2001, PC2-2002, CHPC and MHPCC are not public, and theirs are left out. In Table 5.13 the
line of KTH under the advanced decider is that of CTC under the preferred one, a slip of print that is not mended.

Figure 4.2 is of two extracts of an unknown trace, which Table 4.1 describes by averages alone. Here it is of the same
four sets; what the text says of jobs with long and with short estimates can be checked on them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gridweave.scenarios.generators.histogram import HistogramModel, generate_histogram, learn_histogram
from gridweave.scenarios.published.report import EACH, OURS, Findings, Row, Section, Value, Verdict, our_values
from gridweave.scenarios.published.streit import TRACES, ThesisRuns
from gridweave.scenarios.published.streit_dynp import SLACKNESS, Made, PrintedNumber, Rows, both_readings, policy_of
from gridweave.scenarios.published.study import KeptResults, Study, judge, kept_file, printed, seeds_of
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.workload.transform import shrink
from gridweave.site.disciplines.dynp.figures import TuningUse
from gridweave.site.disciplines.dynp.policy import READINGS, THREE, DynPPolicy
from gridweave.site.policy import SitePolicy

SEEDS, FULL_SEEDS = 3, 10
"""Workloads of a set: if nothing else is asked for, and in the thesis."""

JOBS = 10_000
DECIDERS = ("advanced", "sjf-preferred")
USED = ("sjf", "fcfs", "ljf")
"""In the order of the bounds (Figure 4.2)."""

LONG, SHORT = "CTC", "LANL"
"""The sets with about the average estimates of the two of Table 4.1: 21,634 s and 6,554 s."""

BOUNDED = "bounds"
_NUMBERS = "numbers"
_LEAST_TO_TRIM = 3
_SMALL_SLACKNESS = 2
_HALF_PCT = 50


_Numbers = dict[tuple[str, ...], float]


class Way(NamedTuple):
    """How the site schedules: in one order, by the thesis's bounds, or by a decider.

    Parameters
    ----------
    name : str
        One of `THREE`, `BOUNDED`, or a decider of `DECIDERS`.
    reading : {"true", "thesis"}
        Of a decider.
    slackness_pct : float
        Of a decider.
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
    """A simulation: whose jobs, the shrinking factor, seed and size of the workload, and the fields of its `Way`."""

    trace: str
    factor: float
    seed: int
    jobs: int
    name: str
    reading: str
    slackness_pct: float


class Figures(NamedTuple):
    """What the tables and figures tell of a schedule; the last three: the part of the time each policy was in force."""

    sldwa: float
    util_pct: float
    fcfs_pct: float
    sjf_pct: float
    ljf_pct: float


class LoadRuns:
    """The simulations of section 5.2, each made once.

    Parameters
    ----------
    runs : ThesisRuns
        The traces that are at hand.
    seeds : int
        Workloads of each set.
    full : bool
        As many as the thesis has.
    jobs : int
        Of each workload.
    kept : bool
        Whether results are kept in the user's cache folder, for this state of gridweave, so that a run that was
        interrupted goes on from them.
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
        """Return the rows of a printed table whose traces are at hand."""
        return [line for line in printed(table) if line["set"] in TRACES and self.runs.jobs(line["set"]) is not None]

    def prepare(self, trace: str, factors: Iterable[float], ways: Sequence[Way]) -> None:
        """Make simulations of a trace's sets, many at a time."""
        self._models[trace]
        self._results.results(
            self._setting(trace, factor, seed, way) for factor in factors for way in ways for seed in self.seeds
        )

    def figures(self, trace: str, factor: float, way: Way) -> Figures:
        """Return the figures of a set, averaged as in the thesis; the parts of the time are plain averages."""
        found = [self._results[self._setting(trace, factor, seed, way)] for seed in self.seeds]
        sldwa, util_pct, *parts_pct = zip(*found, strict=True)
        return Figures(trimmed_mean(sldwa), trimmed_mean(util_pct), *(float(np.mean(part)) for part in parts_pct))

    def _setting(self, trace: str, factor: float, seed: int, way: Way) -> LoadSetting:
        return LoadSetting(trace, factor, seed, self._jobs, *way)

    def _learn(self, trace: str) -> HistogramModel:
        jobs = self.runs.at_hand(trace)
        return learn_histogram(jobs.scheduled, nodes=jobs.trace.nodes, weibull=f"table:{trace}")

    def _simulate(self, setting: LoadSetting) -> Figures:
        from gridweave.scenarios.batch.simulate import simulate

        model = self._models[setting.trace]
        way = Way(setting.name, setting.reading, setting.slackness_pct)
        workload = generate_histogram(model, setting.jobs, np.random.default_rng(setting.seed))
        result = simulate(shrink(workload, setting.factor), model.nodes, way.policy)
        metrics = result.metrics()
        return Figures(metrics.sldwa, 100 * metrics.util, *_in_force(result, way))


def _in_force(result: SimulationResult, way: Way) -> list[float]:
    """Return for which part of the run each of `THREE` was in force, in per cent."""
    if not isinstance(result.own, TuningUse):
        return [100.0 * (way.name == order) for order in THREE]
    uses = result.own.uses(int(result.workload.submit_ms.min()), int(result.end_ms.max()))
    whole_ms = sum(use.active_ms for use in uses)
    return [100 * use.active_ms / whole_ms for use in uses]


def trimmed_mean(values: Iterable[float]) -> float:
    """Return the average without the largest and the smallest value; of fewer than three, the average.

    Examples
    --------
    >>> trimmed_mean([1.0, 2.0, 3.0, 90.0]), trimmed_mean([1.0, 2.0])
    (2.5, 1.5)
    """
    ordered = sorted(values)
    return float(np.mean(ordered[1:-1] if len(ordered) >= _LEAST_TO_TRIM else ordered))


def report(table: str, study: LoadRuns) -> Findings:
    """Recompute a table of `TABLES`."""
    sections, found = TABLES[table](study)
    present = study.runs.present()
    seeds = len(study.seeds)
    other = ("The figure is of two other sets, of which Table 4.1 tells averages.",) if table == "streit-4.2" else ()
    mean = "without the largest and the smallest" if seeds >= _LEAST_TO_TRIM else "averaged"
    return Findings(
        sections=tuple(sections) if present else (),
        conclusions=judge(table, CHECKS[table], found) if len(present) == len(TRACES) else (),
        missing=study.runs.missing(),
        notes=(
            f"{seeds} workloads of {JOBS:,} jobs each, {mean}; the thesis has ten.",
            "The sets of PC2-2001, PC2-2002, CHPC and MHPCC are left out: their traces are not public.",
            *other,
        ),
    )


def figure_4_2(study: LoadRuns) -> Made:
    """Recompute Figure 4.2: for which part of the time bounds have each policy in force, as the load grows."""
    rows: list[Row] = []
    found: _Numbers = {}
    for trace, factors in factors_of(study.at_hand("streit-A.13")).items():
        study.prepare(trace, factors, [Way(BOUNDED)])
        for factor in factors:
            figures = study.figures(trace, factor, Way(BOUNDED))
            parts = (figures.sjf_pct, figures.fcfs_pct, figures.ljf_pct)
            rows.append(Row((trace, str(factor)), our_values(*parts, decimals=1)))
            found |= {(trace, str(factor), order): part for order, part in zip(USED, parts, strict=True)}
    title = "Part of the time in force [%], bounds of 7200 and 9000 s"
    return [Section(title, ("based on", "factor"), USED, tuple(rows), OURS)], {_NUMBERS: found}


def table_5_11(study: LoadRuns) -> Made:
    """Recompute Table 5.11: the basic policies on the traces, and on synthetic jobs with a factor of 1."""
    rows: list[Row] = []
    found: _Numbers = {}
    for line in study.at_hand("streit-5.11"):
        trace = line["set"]
        study.prepare(trace, [1.0], [Way(order) for order in THREE])
        for order in THREE:
            original = study.runs.result(trace, "planning", order).metrics().sldwa
            synthetic = study.figures(trace, 1.0, Way(order)).sldwa
            found[trace, order] = synthetic
            for jobs, column, ours in (("original", order, original), ("synthetic", f"{order} synthetic", synthetic)):
                value = Value(published=float(line[column]), ours=ours, decimals=4)
                rows.append(Row((trace, jobs, order), (value,)))
    return [Section("SLDwA", ("based on", "jobs", "policy"), ("ours",), tuple(rows))], {_NUMBERS: found}


def tables_a_13(study: LoadRuns) -> Made:
    """Recompute Tables A.13 and A.14: the basic policies by shrinking factor (Table 5.10), and their averages."""
    lines = study.at_hand("streit-A.13")
    for trace, factors in factors_of(lines).items():
        study.prepare(trace, factors, [Way(order) for order in THREE])
    sldwa: list[Row] = []
    util: list[Row] = []
    found: _Numbers = {}
    for line in lines:
        trace, factor = line["set"], line["factor"]
        ours = {order: study.figures(trace, float(factor), Way(order)) for order in THREE}
        for order in THREE:
            found[trace, factor, order, "sldwa"] = ours[order].sldwa
            found[trace, factor, order, "util"] = ours[order].util_pct
        sldwa.append(Row((trace, factor), tuple(_value(line[order], ours[order].sldwa) for order in THREE)))
        util.append(Row((trace, factor), tuple(_value(line[f"{order} util"], ours[order].util_pct) for order in THREE)))
    headings = ("based on", "factor")
    return [
        Section("SLDwA", headings, THREE, tuple(sldwa), EACH),
        Section("Utilisation [%]", headings, THREE, tuple(util), EACH),
        _averages(lines, found),
    ], {_NUMBERS: found}


def _averages(lines: list[dict[str, str]], found: _Numbers) -> Section:
    """Return the lines "average" of Tables A.13 and A.14: how SJF and LJF differ from FCFS."""
    rows = []
    for trace, factors in factors_of(lines).items():
        theirs: _Numbers = {
            (trace, line["factor"], order, what): float(line[column])
            for line in lines
            if line["set"] == trace
            for order in THREE
            for what, column in (("sldwa", order), ("util", f"{order} util"))
        }
        for order in THREE[1:]:
            pairs = [
                Value(published=one, ours=two, decimals=2)
                for one, two in zip(
                    _gain(theirs, trace, factors, order), _gain(found, trace, factors, order), strict=True
                )
            ]
            rows.append(Row((trace, order), tuple(pairs)))
    title = "Difference to FCFS, averaged over the factors; below 0 is worse"
    return Section(title, ("based on", "policy"), ("SLDwA [%]", "utilisation [points]"), tuple(rows), EACH)


def _gain(
    numbers: _Numbers, trace: str, factors: Sequence[float], order: str, base: str = "fcfs"
) -> tuple[float, float]:
    """Return by how much an order is better than another, averaged: SLDwA in per cent, utilisation in points."""

    def of(one: str, what: str) -> list[float]:
        return [numbers[trace, str(factor), one, what] for factor in factors]

    sldwa = [100 * (1 - own / other) for own, other in zip(of(order, "sldwa"), of(base, "sldwa"), strict=True)]
    util = [own - other for own, other in zip(of(order, "util"), of(base, "util"), strict=True)]
    return float(np.mean(sldwa)), float(np.mean(util))


def table_5_12(study: LoadRuns) -> Made:
    """Recompute Tables 5.12, A.15 and A.16: the self-tuning scheduler by shrinking factor."""
    lines = study.at_hand("streit-A.15")
    for trace, factors in factors_of(lines).items():
        study.prepare(trace, factors, [Way("sjf"), *(Way(one, way) for one in DECIDERS for way in READINGS)])
    sldwa: Rows = []
    util: Rows = []
    for line in lines:
        trace, factor = line["set"], line["factor"]
        for decider in DECIDERS:
            ours = {way: study.figures(trace, float(factor), Way(decider, way)) for way in READINGS}
            labels = (trace, factor, decider)
            sldwa.append((labels, line[decider], {way: one.sldwa for way, one in ours.items()}))
            util.append((labels, line[f"{decider} util"], {way: one.util_pct for way, one in ours.items()}))
    averages, found = both_readings(
        "Table 5.12: gain over SJF, averaged over the factors",
        ("based on", "decider", "of"),
        list(_gains(study, lines)),
    )
    headings = ("based on", "factor", "decider")
    details = (
        both_readings(name, headings, rows)[0][0] for name, rows in (("SLDwA", sldwa), ("Utilisation [%]", util))
    )
    return [*averages, *details], found


def _gains(study: LoadRuns, lines: list[dict[str, str]]) -> Iterator[PrintedNumber]:
    """Yield the numbers of Table 5.12 with ours."""
    for line in study.at_hand("streit-5.12"):
        trace = line["set"]
        factors = factors_of(lines)[trace]
        for decider in DECIDERS:
            gains = {way: _over_sjf(study, trace, factors, Way(decider, way)) for way in READINGS}
            yield (trace, decider, "SLDwA [%]"), line[decider], {way: gain[0] for way, gain in gains.items()}
            yield (
                (trace, decider, "utilisation [points]"),
                line[f"{decider} util"],
                {way: gain[1] for way, gain in gains.items()},
            )


def _over_sjf(study: LoadRuns, trace: str, factors: Sequence[float], way: Way) -> tuple[float, float]:
    """Return what a way gains over SJF, averaged over the factors: SLDwA in per cent, utilisation in points."""
    numbers: _Numbers = {}
    for factor in factors:
        for name, one in (("sjf", Way("sjf")), ("dynp", way)):
            figures = study.figures(trace, factor, one)
            numbers[trace, str(factor), name, "sldwa"] = figures.sldwa
            numbers[trace, str(factor), name, "util"] = figures.util_pct
    return _gain(numbers, trace, factors, "dynp", "sjf")


def table_5_13(study: LoadRuns) -> Made:
    """Recompute Tables 5.13 and A.17 to A.20: slackness by shrinking factor."""
    lines = study.at_hand("streit-A.17")
    of = {(decider, way, slack): Way(decider, way, slack)
          for decider in DECIDERS for way in READINGS for slack in SLACKNESS}  # fmt: skip
    for trace, factors in factors_of(lines).items():
        study.prepare(trace, factors, [Way("sjf"), *of.values()])
    details: Rows = []
    for line in lines:
        for slack in SLACKNESS:
            labels = (line["set"], line["decider"], line["factor"], str(slack))
            own = {
                way: study.figures(line["set"], float(line["factor"]), of[line["decider"], way, slack]).sldwa
                for way in READINGS
            }
            details.append((labels, line[str(slack)], dict(own)))
    means: Rows = []
    for line in study.at_hand("streit-5.13"):
        factors = factors_of(lines)[line["set"]]
        for slack in SLACKNESS:
            own = {way: _over_sjf(study, line["set"], factors, of[line["decider"], way, slack])[0] for way in READINGS}
            means.append(((line["set"], line["decider"], str(slack)), line[str(slack)], dict(own)))
    sections, found = both_readings(
        "Table 5.13: gain in SLDwA over SJF, in %", ("based on", "decider", "slackness"), means
    )
    return [*sections, *both_readings("SLDwA", ("based on", "decider", "factor", "slackness"), details)[0]], found


def factors_of(lines: Iterable[dict[str, str]]) -> dict[str, list[float]]:
    """Return the shrinking factors of each set (Table 5.10)."""
    factors: dict[str, list[float]] = {}
    for line in lines:
        known = factors.setdefault(line["set"], [])
        if float(line["factor"]) not in known:
            known.append(float(line["factor"]))
    return factors


def _value(text: str, ours: float) -> Value:
    return Value(published=float(text), ours=ours, decimals=len(text.partition(".")[2]))


class Drawn(NamedTuple):
    """What a figure shows of each set: lines by name, which is their column of the printed table."""

    source: str
    printed: str
    lines: dict[str, Way]


def drawn_of(table: str) -> dict[str, Drawn]:
    """Return the pairs of figures of a table (SLDwA and utilisation by shrinking factor), by a name for each pair."""
    if table == "streit-A.13":
        return {"": Drawn("Figures 5.1 and 5.2", "streit-A.13", {order: Way(order) for order in THREE})}
    return {
        reading: Drawn(
            "Figures 5.3 and 5.4", "streit-A.15", {"sjf": Way("sjf"), **{one: Way(one, reading) for one in DECIDERS}}
        )
        for reading in READINGS
    }


def _best_at_one(ours: _Numbers) -> Verdict:
    best = {trace: min(THREE, key=lambda order: ours[trace, order]) for trace in TRACES}
    theirs = {"CTC": "fcfs", "KTH": "sjf", "LANL": "sjf", "SDSC": "sjf"}
    return Verdict(best == theirs, ", ".join(f"{order} on {trace}" for trace, order in best.items()))


def _ljf_fills(ours: _Numbers) -> Verdict:
    places = [key[:2] for key in ours if key[2:] == ("ljf", "util")]
    fullest = sum(ours[*one, "ljf", "util"] >= max(ours[*one, order, "util"] for order in THREE) for one in places)
    slowest = sum(ours[*one, "ljf", "sldwa"] >= max(ours[*one, order, "sldwa"] for order in THREE) for one in places)
    return Verdict(
        fullest == slowest == len(places),
        f"the highest utilisation at {fullest} of {len(places)} loads, the worst SLDwA at {slowest}",
    )


def _sjf_against_fcfs(ours: _Numbers) -> Verdict:
    gains = {trace: _gain(ours, trace, _factors_in(ours, trace), "sjf")[0] for trace in TRACES}
    figures = ", ".join(f"{gain:+.1f}% on {trace}" for trace, gain in gains.items())
    return Verdict(gains["KTH"] > 0 > max(gains[one] for one in TRACES if one != "KTH"), figures)


def _sjf_wastes(ours: _Numbers) -> Verdict:
    lost = {trace: ours[trace, "0.6", "ljf", "util"] - ours[trace, "0.6", "sjf", "util"] for trace in TRACES}
    figures = ", ".join(f"{points:.1f} points on {trace}" for trace, points in lost.items())
    return Verdict(min(lost.values()) >= 10, f"{figures}, at a factor of 0.6; 10 are asked for")


def _factors_in(ours: _Numbers, trace: str) -> list[float]:
    return list(dict.fromkeys(float(key[1]) for key in ours if key[0] == trace))


def _slowdown_under_load(ours: _Numbers) -> Verdict:
    wanted = {"CTC": 9.0, "SDSC": 6.0}
    gains = {(one, decider): ours[one, decider, "SLDwA [%]"] for one in wanted for decider in DECIDERS}
    figures = ", ".join(f"{gain:+.1f}% on {one} ({decider})" for (one, decider), gain in gains.items())
    met = all(gain >= wanted[key[0]] - 1 for key, gain in gains.items())
    return Verdict(met, f"{figures}; 8% and 5% are asked for")


def _utilisation_under_load(ours: _Numbers) -> Verdict:
    wanted = {"CTC": 1.2, "SDSC": 0.9}
    gains = {(one, decider): ours[one, decider, "utilisation [points]"] for one in wanted for decider in DECIDERS}
    figures = ", ".join(f"{gain:+.2f} on {one} ({decider})" for (one, decider), gain in gains.items())
    met = all(gain >= wanted[key[0]] - 0.2 for key, gain in gains.items())
    return Verdict(met, f"{figures}; 1.0 and 0.7 points are asked for")


def _fuller_everywhere(ours: _Numbers) -> Verdict:
    gains = [value for key, value in ours.items() if key[2] == "utilisation [points]"]
    return Verdict(min(gains) >= 0, f"from {min(gains):+.2f} to {max(gains):+.2f} points")


def _small_slackness(ours: _Numbers) -> Verdict:
    kinds = dict.fromkeys(key[:2] for key in ours)
    best = {kind: max(SLACKNESS, key=lambda slack: ours[*kind, str(slack)]) for kind in kinds}
    figures = ", ".join(f"best at {slack}% on {trace} ({decider})" for (trace, decider), slack in best.items())
    return Verdict(max(best.values()) <= _SMALL_SLACKNESS, figures)


def _long_estimates(ours: _Numbers) -> Verdict:
    parts = [ours[LONG, str(factor), "ljf"] for factor in _factors_in(ours, LONG)]
    rises = all(after >= before for before, after in itertools.pairwise(parts))
    return Verdict(
        rises and min(parts) > _HALF_PCT, f"LJF {_listed(parts)} of the time on {LONG}, from the lowest load"
    )


def _short_estimates(ours: _Numbers) -> Verdict:
    parts = [ours[SHORT, str(factor), "ljf"] for factor in _factors_in(ours, SHORT)]
    falls = all(after <= before for before, after in itertools.pairwise(parts))
    return Verdict(
        falls and max(parts) < _HALF_PCT, f"LJF {_listed(parts)} of the time on {SHORT}, from the lowest load"
    )


def _listed(parts_pct: Iterable[float]) -> str:
    return ", ".join(f"{part:.0f}%" for part in parts_pct)


TABLES: dict[str, Callable[[LoadRuns], Made]] = {
    "streit-4.2": figure_4_2,
    "streit-5.11": table_5_11,
    "streit-A.13": tables_a_13,
    "streit-5.12": table_5_12,
    "streit-5.13": table_5_13,
}
"""Id to the function that makes the table."""

CHECKS: dict[str, tuple[Callable[[_Numbers], Verdict], ...]] = {
    "streit-4.2": (_long_estimates, _short_estimates),
    "streit-5.11": (_best_at_one,),
    "streit-A.13": (_ljf_fills, _sjf_wastes, _sjf_against_fcfs),
    "streit-5.12": (_slowdown_under_load, _utilisation_under_load, _fuller_everywhere),
    "streit-5.13": (_small_slackness,),
}
"""Id to what is concluded from it, in the order of ``data/claims.csv``."""
