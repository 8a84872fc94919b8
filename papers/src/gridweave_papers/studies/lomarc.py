"""The evaluation of LOMARC recomputed: Tables 4 and 5, Figures 6 to 9, and the conclusions drawn from them.

Sodan and Lan, *LOMARC: Lookahead Matchmaking for Multi-Resource Coscheduling* (below: *LOMARC*), section 6: 8,000 jobs
of the Lublin model on 128 nodes, by workload and mix. docs/sharing.md has the rules, and the points that the paper
leaves open.

Each conclusion of section 6.2 is checked on the means over the seeds. Constants quantify the paper's wording.
"Improvement" is the reduction relative to PSS (EASY without sharing) in per cent, computed for each seed separately.
Figures 6 to 9 are bars without numbers; the text states their ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.common import Scaling
from gridweave.scenarios.generators.lublin import generate_lublin, lublin_model, with_alpha
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.sweep.tables import mean_interval
from gridweave.scenarios.traces.text import FloatArray
from gridweave.scenarios.workload.columns import assign_resources
from gridweave.scenarios.workload.table import MS_PER_S, Workload
from gridweave.site.disciplines.sharing.entry import SharedUse
from gridweave.site.disciplines.sharing.policy import VARIANTS
from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownModel
from gridweave_papers.studies.report import (
    EACH,
    OURS,
    Findings,
    Record,
    Row,
    Section,
    Value,
    Verdict,
    all_hold,
    our_values,
)
from gridweave_papers.studies.study import MS_PER_WEEK, Study, judge, printed, seeds_of

NODES, JOBS, DEFAULT_SEEDS = 128, 8_000, 5

ALPHAS = {row["workload"]: float(row["alpha"]) for row in printed("lomarc-4")}
"""Shape parameter of the interarrival times, by workload (Table 4)."""

LOADS = {row["workload"]: float(row["load"]) for row in printed("lomarc-4")}
"""Load of each workload (Table 4)."""

TABLE_5 = {
    (row.pop("variant"), row.pop("workload")): {name: float(text) for name, text in row.items()}
    for row in printed("lomarc-5")
}
"""Averages of Table 5 by variant and workload, keyed by column."""

CHANGES = {
    (row["quantity"], row["variant"], row["workload"], row["mix"]): float(row["change_pct"])
    for row in printed("lomarc-changes")
}
"""Change relative to PSS as stated in the text, in per cent, by quantity, variant, workload and mix."""

WORKLOADS = tuple(ALPHAS)
MIXES = ("M1", "M2", "M3")


OFFERED = {
    "ratios": {name: load / LOADS["W1"] for name, load in LOADS.items()},
    "tenths": {name: load / 10 for name, load in LOADS.items()},
}
"""Offered load of each workload from Table 4, relative to W1 (1.00) or divided by ten. Interarrival times are
scaled to this load."""

PUBLISHED_WEEKS = 10.0
"""Makespan of workload 1 in weeks (LOMARC, section 6.2); without scaling, the model's jobs arrive over 12 weeks."""


class Reading(NamedTuple):
    """An interpretation of the points that the paper leaves open.

    ``formula`` is the slowdown formula. ``load`` is a key of `OFFERED`, "weeks" (all interarrival times are scaled by
    the factor with which W1 arrives in `PUBLISHED_WEEKS`) or "alphas" (no scaling). ``joins_behind`` is the policy's
    setting: the paper backfills jobs "onto free nodes (applying same matching as above)". Only the first of ``parts``
    equal parts of the workload is simulated, because the queue grows as long as jobs arrive.
    """

    formula: str
    load: str
    joins_behind: bool = True
    parts: int = 1

    @property
    def jobs(self) -> tuple[str, int]:
        """The fields that determine which jobs are simulated."""
        return self.load, self.parts


READINGS = {
    "as printed, loads from 1.00": Reading("printed", "ratios"),
    "as printed, loads in tenths": Reading("printed", "tenths"),
    "as printed, in 10 weeks": Reading("printed", "weeks"),
    "as printed, alphas alone": Reading("printed", "alphas"),
    "as printed, loads from 1.00, free nodes": Reading("printed", "ratios", joins_behind=False),
    "as printed, in 10 weeks, free nodes": Reading("printed", "weeks", joins_behind=False),
    "as printed, loads from 1.00, a third": Reading("printed", "ratios", parts=3),
    "with unshared time, loads from 1.00": Reading("whole", "ratios"),
    "with unshared time, loads in tenths": Reading("whole", "tenths"),
    "with unshared time, alphas alone": Reading("whole", "alphas"),
}
"""Readings by name."""

DEFAULT_READING = "as printed, in 10 weeks"
"""The reading with all 8,000 jobs that comes closest to the published numbers overall (``lomarc-readings``)."""

COLUMNS = ("waiting", "long_enough", "narrow_enough", "fitting", "matchable", "bearable")
"""Counts of a search for a job to share nodes with the host job, in the order of Table 5."""


class Bar(NamedTuple):
    """One bar of a figure, identified by keys of `READINGS`, `ALPHAS`, `MIXES` and `VARIANTS`."""

    reading: str
    workload: str
    mix: str
    variant: str


class Point(NamedTuple):
    """Averages over the jobs of one simulation, and counts per match (`COLUMNS`), which are NaN without a match."""

    response_s: float
    relative: float
    util: float
    efficiency: float
    makespan_s: float
    candidates: tuple[float, ...]
    selected: float


class Load(NamedTuple):
    """A workload's load from mean run time, width and gap; from mean node time; and with the geometric mean gap."""

    formula: float
    offered: float
    geometric: float


def load_of(workload: Workload, nodes: int) -> Load:
    """Compute a workload's load in three ways; the geometric mean counts a gap below one second as one second."""
    gaps_s = np.diff(workload.submit_ms) / MS_PER_S
    run_s, width = workload.run_ms / MS_PER_S, workload.width.astype(np.float64)
    product = float(run_s.mean() * width.mean()) / nodes
    geometric_s = float(np.exp(np.log(np.maximum(gaps_s, 1.0)).mean()))
    return Load(
        product / float(gaps_s.mean()),
        float((run_s * width).mean()) / nodes / float(gaps_s.mean()),
        product / geometric_s,
    )


class LomarcRuns:
    """The data points of all figures, each simulated once, with ``seeds`` workloads per bar.

    Bars with the same seed have the same jobs for every alpha and mix, and bars with the same mix also have the same
    resource needs, so differences between two bars are not due to chance.
    """

    def __init__(self, *, seeds: int = DEFAULT_SEEDS, jobs: int = JOBS, progress: Progress | None = None) -> None:
        self.seeds = seeds_of(seeds)
        self.jobs = jobs
        self.workload = lru_cache(maxsize=16)(self._workload)  # bars of one workload are simulated together
        self._points = Study(self._point, title="LOMARC", progress=progress, same=_same)

    def points(self, bars: Iterable[Bar]) -> dict[Bar, tuple[Point, ...]]:
        """Return the data points of each bar, one per seed."""
        unique_bars = list(dict.fromkeys(bars))
        order = sorted(unique_bars, key=lambda bar: (bar.workload, bar.mix, READINGS[bar.reading].load))
        points = self._points.results((bar, seed) for seed in self.seeds for bar in order)
        return {bar: tuple(points[bar, seed] for seed in self.seeds) for bar in unique_bars}

    def _workload(self, seed: int, workload: str, mix: str, load: str = "alphas") -> Workload:
        """Return the workload generated with this seed; `Reading` describes ``load``."""
        scaling: Scaling = {}
        if load in OFFERED:
            scaling = {"load": OFFERED[load][workload]}
        elif load == "weeks":
            last_ms = _jobs(seed, "W1", self.jobs, {}).submit_ms[-1]
            scaling = {"interarrival_factor": PUBLISHED_WEEKS * MS_PER_WEEK / last_ms}
        return assign_resources(_jobs(seed, workload, self.jobs, scaling), mix, np.random.default_rng([seed, 1]))

    def _point(self, run: tuple[Bar, int]) -> Point:
        bar, seed = run
        reading = READINGS[bar.reading]
        workload = self.workload(seed, bar.workload, bar.mix, reading.load)
        workload = workload.take(np.arange(len(workload) // reading.parts))
        policy = msgspec.structs.replace(VARIANTS[bar.variant], joins_behind=reading.joins_behind)
        result = simulate(workload, NODES, policy, model=SlowdownModel(formula=reading.formula))
        assert isinstance(result.own, SharedUse), "nodes are shared"
        metrics, searches = result.sharing_metrics(), result.own.searches
        matches = searches["matches"]
        return Point(
            response_s=metrics.art_ms / MS_PER_S,
            relative=metrics.relative_response,
            util=metrics.util,
            efficiency=metrics.efficiency,
            makespan_s=metrics.makespan_ms / MS_PER_S,
            candidates=tuple(searches[name] / matches if matches else float("nan") for name in COLUMNS),
            selected=searches["selected"] / matches if matches else float("nan"),
        )


def _jobs(seed: int, workload: str, jobs: int, scaling: Scaling) -> Workload:
    model = with_alpha(lublin_model("whole", nodes=NODES), ALPHAS[workload])
    return generate_lublin(model, jobs, np.random.default_rng(seed), **scaling)


def _same(run: tuple[Bar, int]) -> tuple[Bar, int]:
    """Return a run with the same result: under PSS, neither the slowdown formula nor the mix matters."""
    bar, seed = run
    if bar.variant != "PSS":
        return run
    jobs = READINGS[bar.reading].jobs
    return bar._replace(
        reading=next(name for name, reading in READINGS.items() if reading.jobs == jobs), mix="M1"
    ), seed


Points = Mapping[Bar, tuple[Point, ...]]

LOMARC_VARIANTS = ("L-U1", "L-U2", "L-R", "L-FM", "L-N")
HYPERTHREADED = ("L-U1", "L-U2", "L-R")
OTHERS = ("PSS", "AC", "AM")

NEAR_POINTS = 5.0
"""Largest difference from a published percentage that still counts as equal, in points."""

NEAR_PLACES = 1.0
"""Largest difference from the published index of the selected candidate that still counts as equal."""

SAME_PCT = 10.0
"""Largest difference that counts as "almost the same", in per cent."""

SAME_UTIL = 0.05
"""Largest difference that counts as "almost the same utilisation": 5 points."""

SAME_GAIN_POINTS = 3.0
"""Largest difference between efficiency gains that does not count as relevant; the paper gives whole per cents."""

_QUANTITIES = {"response_s": "response time", "relative": "relative bounded response time"}


class View:
    """The data points under one reading, with the comparisons made in the paper."""

    def __init__(self, points: Points, reading: str) -> None:
        self._points, self._reading = points, reading

    def values(self, quantity: str, variant: str, workload: str, mix: str = "M1") -> list[float]:
        """Return a quantity for each seed."""
        return [getattr(point, quantity) for point in self._points[Bar(self._reading, workload, mix, variant)]]

    def mean(self, quantity: str, variant: str, workload: str) -> float:
        """Return the mean of a quantity over the seeds, with mix M1."""
        return float(np.mean(self.values(quantity, variant, workload)))

    def candidates(self, variant: str, workload: str) -> FloatArray:
        """Return the mean counts of the searches, in the order of Table 5."""
        counts = [point.candidates for point in self._points[Bar(self._reading, workload, "M1", variant)]]
        return np.array([_mean_defined(column) for column in zip(*counts, strict=True)], np.float64)

    def selected(self, variant: str, workload: str) -> float:
        """Return the mean position of the selected job among the remaining candidates."""
        return _mean_defined(self.values("selected", variant, workload))

    def cuts(self, quantity: str, variant: str, workload: str, mix: str = "M1", base: str = "PSS") -> list[float]:
        """Return the reduction of a quantity relative to another variant in per cent, for each seed."""
        pairs = zip(
            self.values(quantity, variant, workload, mix), self.values(quantity, base, workload, mix), strict=True
        )
        return [100 * (1 - own / other) for own, other in pairs]

    def cut(self, quantity: str, variant: str, workload: str, mix: str = "M1", base: str = "PSS") -> float:
        """Return the mean over the seeds of the reductions from `cuts`."""
        return float(np.mean(self.cuts(quantity, variant, workload, mix, base)))

    def log_ratio(self, quantity: str, variant: str, workload: str) -> tuple[float, float, float]:
        """Return the mean logarithm of a quantity's ratio to PSS, paired by seed, and the ends of its 95% interval."""
        own, base = (self.values(quantity, name, workload) for name in (variant, "PSS"))
        return mean_interval(np.log(np.divide(own, base)).tolist())

    def distances(self) -> dict[str, list[float]]:
        """Return the differences between our and the published changes for mix M1, in points, by quantity."""
        distances: dict[str, list[float]] = {}
        for (quantity, variant, workload, mix), published in CHANGES.items():
            if mix == "M1":
                own = -self.cut(quantity, variant, workload)
                distances.setdefault(quantity, []).append(abs(own - published))
        return distances


def _mean_defined(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN, or NaN if there are none."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")


def _spread(values: Sequence[float]) -> str:
    """Format a mean and the half width of its confidence interval, in per cent."""
    mean, low, _ = mean_interval(list(values))
    return f"{mean:.0f}%" if np.isnan(low) else f"{mean:.0f} ± {mean - low:.0f}%"


def _beat_all(quantity: str) -> Callable[[View], Verdict]:
    """Check the claim "all LOMARC variants perform clearly better than all other approaches"."""

    def check(view: View) -> Verdict:
        parts = []
        for workload in WORKLOADS:
            best = min(OTHERS, key=lambda name: view.mean(quantity, name, workload))
            worst = max(LOMARC_VARIANTS, key=lambda name: view.mean(quantity, name, workload))
            ratio = view.mean(quantity, worst, workload) / view.mean(quantity, best, workload)
            parts.append((ratio < 1, f"{workload} the worst, {worst}, has {ratio:.2f} of {best}, the best other"))
        return all_hold(parts)

    return check


def _always_is_worse(view: View) -> Verdict:
    """Check the claim "AC is significantly worse than space sharing PSS" with a paired test on logarithms."""
    parts = []
    for quantity, words in _QUANTITIES.items():
        for workload in WORKLOADS:
            mean, low, _ = view.log_ratio(quantity, "AC", workload)
            least = "" if np.isnan(low) else f" (at least {np.expm1(low):+.0%})"
            text = f"{workload} {words} {np.expm1(mean):+.0%}{least}"
            parts.append(((mean if np.isnan(low) else low) > 0, text))
    return all_hold(parts, "; geometric means with the low end of their 95% interval, above 0", between=", ")


def _cuts(quantity: str, variant: str) -> Callable[[View], Verdict]:
    """Return the check that reductions relative to PSS are close to the published reductions, by workload."""
    published = {
        workload: -CHANGES[quantity, variant, workload, "M1"]
        for workload in WORKLOADS
        if (quantity, variant, workload, "M1") in CHANGES
    }

    def check(view: View) -> Verdict:
        parts = []
        for workload, value in published.items():
            cuts = view.cuts(quantity, variant, workload)
            parts.append((abs(float(np.mean(cuts)) - value) <= NEAR_POINTS, f"{workload} {_spread(cuts)} ({value:g}%)"))
        return all_hold(parts, f"; published values in brackets, tolerance {NEAR_POINTS:g} points", between=", ")

    return check


def _at_least_half(view: View) -> Verdict:
    """Check the claim "response time and relative bounded response time are approximately reduced to half"."""
    cuts = {
        f"{workload} {words}": view.cut(quantity, "L-R", workload)
        for workload in WORKLOADS
        for quantity, words in _QUANTITIES.items()
    }
    texts = ", ".join(f"{name} {cut:.0f}%" for name, cut in cuts.items())
    return Verdict(min(cuts.values()) >= 50 - NEAR_POINTS, f"{texts}; half: 45% or more")


def _grows(view: View) -> Verdict:
    """Check the claim "with the workload becoming heavier, our approaches show more obvious improvement"."""
    parts = []
    for quantity, words in _QUANTITIES.items():
        cuts = [view.cut(quantity, "L-R", workload) for workload in WORKLOADS]
        parts.append((cuts[0] < cuts[-1], f"{words} {cuts[0]:.0f}, {cuts[1]:.0f}, {cuts[2]:.0f}%"))
    return all_hold(parts, "; W3 against W1")


def _near_each_other(view: View) -> Verdict:
    """Check the claim "L-U1 provides almost the same results as L-R for all workloads" (response times)."""
    gaps = [view.cut("response_s", "L-U1", workload, base="L-R") for workload in WORKLOADS]
    texts = [f"{workload} {-gap:+.0f}%" for workload, gap in zip(WORKLOADS, gaps, strict=True)]
    return Verdict(max(map(abs, gaps)) <= SAME_PCT, f"L-U1 against L-R {', '.join(texts)}; same: within {SAME_PCT:g}%")


def _u1_beats_u2(view: View) -> Verdict:
    """Check that "L-U1 performs slightly better than L-U2", and "L-U2 is again worse" in relative response times."""
    gaps = {
        f"{workload} {words}": view.cut(quantity, "L-U1", workload, base="L-U2")
        for quantity, words in _QUANTITIES.items()
        for workload in WORKLOADS
    }
    texts = ", ".join(f"{name} {-gap:+.0f}%" for name, gap in gaps.items())
    return Verdict(float(np.mean(list(gaps.values()))) > 0, f"L-U1 against L-U2: {texts}; judged by the mean")


def _response_is_best(view: View) -> Verdict:
    """Check the claim "L-R is better than L-U1" in relative bounded response times, and the best of all."""
    parts = []
    for workload in WORKLOADS:
        best = min(LOMARC_VARIANTS, key=lambda name: view.mean("relative", name, workload))
        cuts = view.cuts("relative", "L-R", workload, base="L-U1")
        parts.append((best == "L-R", f"{workload} best {best}, L-R below L-U1 by {_spread(cuts)}"))
    return all_hold(parts)


def _first_match_is_worse(view: View) -> Verdict:
    """Check that L-FM is "not too much worse if the workload is lighter" but becomes worse as the load grows."""
    gaps = [-view.cut("response_s", "L-FM", workload, base="L-R") for workload in WORKLOADS]
    relative = -view.cut("relative", "L-FM", "W3", base="L-R")
    text = f"response times above L-R's by {gaps[0]:.0f}, {gaps[1]:.0f}, {gaps[2]:.0f}% (W3: 17%)"
    return Verdict(gaps[2] > 0 and relative > 0, f"{text}, relative under W3 by {relative:.0f}% (24%); judged under W3")


def _adjacent_is_between(view: View) -> Verdict:
    """Check that "AM is still doing significantly better than PSS but significantly worse than L-R and than L-FM"."""
    parts = []
    for workload in WORKLOADS:
        own, most, *least = (view.mean("response_s", name, workload) for name in ("AM", "PSS", "L-R", "L-FM"))
        parts.append((max(least) < own < most, f"{workload} {view.cut('response_s', 'AM', workload):+.0f}%"))
    return all_hold(parts, "; response times, strictly between", before="cut against PSS ", between=", ")


def _utilisation_is_alike(view: View) -> Verdict:
    """Check that "utilization is almost the same for all approaches and improves if the workload becomes heavier"."""
    parts, before = [], 0.0
    for workload in WORKLOADS:
        values = {name: view.mean("util", name, workload) for name in (*OTHERS, *LOMARC_VARIANTS)}
        low, high = min(values, key=lambda name: values[name]), max(values, key=lambda name: values[name])
        holds = values[high] - values[low] <= SAME_UTIL and values[low] > before
        parts.append((holds, f"{workload} {values[low]:.0%} ({low}) to {values[high]:.0%} ({high})"))
        before = values[low]
    return all_hold(parts, f"; almost the same: within {SAME_UTIL:.0%}")


def _gains(variants: Sequence[str], published: Sequence[float]) -> Callable[[View], Verdict]:
    """Return the check that gains of utilisation efficiency over PSS are close to the published gains."""

    def check(view: View) -> Verdict:
        parts = []
        for workload, value in zip(WORKLOADS, published, strict=True):
            gains = [-view.cut("efficiency", name, workload) for name in variants]
            text = f"{workload} {', '.join(f'{gain:.0f}' for gain in gains)}% ({value:g}%)"
            parts.append((all(abs(gain - value) <= NEAR_POINTS for gain in gains), text))
        return all_hold(parts, f"; published values in brackets, tolerance {NEAR_POINTS:g} points")

    return check


def _gains_are_alike(view: View) -> Verdict:
    """Check the claim "there are no relevant differences between L-U1, L-U2, and L-R" (utilisation efficiency)."""
    spreads = []
    for workload in WORKLOADS:
        gains = [-view.cut("efficiency", name, workload) for name in HYPERTHREADED]
        spreads.append(max(gains) - min(gains))
    text = ", ".join(f"{workload} {spread:.1f}" for workload, spread in zip(WORKLOADS, spreads, strict=True))
    return Verdict(
        max(spreads) <= SAME_GAIN_POINTS, f"largest difference of gains {text} points; at most {SAME_GAIN_POINTS:g}"
    )


def _mixes_are_alike(view: View) -> Verdict:
    """Check the claim "for M2 and M3, the relative improvements of L-U1, L-U2, and L-R vs. PSS are similar to M1"."""
    worst, texts = 0.0, []
    for name in HYPERTHREADED:
        cuts = [view.cut("response_s", name, "W1", mix) for mix in MIXES]
        worst = max(worst, *(abs(cut - cuts[0]) for cut in cuts))
        texts.append(f"{name} {', '.join(f'{cut:.0f}' for cut in cuts)}%")
    return Verdict(
        worst <= SAME_PCT,
        f"cut of response times with M1, M2, M3: {'; '.join(texts)}; similar: within {SAME_PCT:g} points",
    )


def _standard_by_mix(view: View) -> Verdict:
    """Check that "for M2, L-N now improves upon PSS by 34% and 38% and for M3 it is closer to PSS than under M1"."""
    parts = []
    for quantity, words in _QUANTITIES.items():
        first, second, third = (view.cut(quantity, "L-N", "W1", mix) for mix in MIXES)
        published = -CHANGES[quantity, "L-N", "W1", "M2"]
        parts.append((third < first < second, f"{words} {first:.0f}, {second:.0f} ({published:g}), {third:.0f}%"))
    return all_hold(parts, "; judged by the order", before="cut with M1, M2, M3: ")


def _few_candidates(view: View) -> Verdict:
    """Check the claim "the number of jobs left as candidates is relatively small: for W1 between 5 and 7"."""
    left = {name: float(view.candidates(name, "W1")[-1]) for name in HYPERTHREADED}
    texts = ", ".join(f"{name} {value:.1f}" for name, value in left.items())
    near = all(5 - NEAR_PLACES <= value <= 7 + NEAR_PLACES for value in left.values())
    return Verdict(near, f"W1: {texts}; published 5 to 7, tolerance {NEAR_PLACES:g}")


def _selected(workloads: Sequence[str]) -> Callable[[View], Verdict]:
    """Return the check that the mean index of the selected candidate is close to the index in Table 5."""

    def check(view: View) -> Verdict:
        parts = []
        for (variant, workload), published in TABLE_5.items():
            if workload in workloads:
                own, other = view.selected(variant, workload), published["number selected"]
                parts.append((abs(own - other) <= NEAR_PLACES, f"{workload} {variant} {own:.1f} ({other:g})"))
        return all_hold(parts, f"; published values in brackets, tolerance {NEAR_PLACES:g}", between=", ")

    return check


def _reluctant(view: View) -> Verdict:
    """Check that L-R selects jobs nearer to the head than L-U1 under W3, by about the published ratio of 4 to 6."""
    own, other = (view.selected(name, "W3") for name in ("L-R", "L-U1"))
    published = TABLE_5["L-R", "W3"]["number selected"] / TABLE_5["L-U1", "W3"]["number selected"]
    holds = own / other <= (1 + published) / 2
    return Verdict(holds, f"{own:.1f} with L-R over {other:.1f} with L-U1 is {own / other:.2f} ({published:.2f})")


CHECKS: dict[str, tuple[Callable[[View], Verdict], ...]] = {
    "lomarc-readings": (),
    "lomarc-4": (),
    "lomarc-5": (_few_candidates, _selected(("W1", "W2")), _selected(("W3",)), _reluctant),
    "lomarc-6": (
        _beat_all("response_s"),
        _always_is_worse,
        _cuts("response_s", "L-R"),
        _at_least_half,
        _grows,
        _near_each_other,
        _u1_beats_u2,
        _first_match_is_worse,
        _adjacent_is_between,
        _cuts("response_s", "L-N"),
        _cuts("makespan_s", "L-R"),
    ),
    "lomarc-7": (_beat_all("relative"), _cuts("relative", "L-R"), _response_is_best, _cuts("relative", "L-N")),
    "lomarc-8": (
        _utilisation_is_alike,
        _gains(HYPERTHREADED, (8.5, 19, 38)),
        _gains_are_alike,
        _gains(("L-FM",), (6, 15, 31)),
        _gains(("L-N",), (2, 9, 18)),
    ),
    "lomarc-9": (_mixes_are_alike, _standard_by_mix),
}
"""Checks of the paper's conclusions, by table or figure."""


QUANTITIES = {
    "response_s": ("Average response time [s]", 0),
    "relative": ("Average relative bounded response time", 1),
    "util": ("Utilisation", 3),
    "efficiency": ("Utilisation efficiency", 3),
    "makespan_s": ("Makespan [s]", 0),
}
"""Name and decimals of each quantity in the figures."""

SHOWN = {
    "lomarc-6": ("response_s", "makespan_s"),
    "lomarc-7": ("relative",),
    "lomarc-8": ("util", "efficiency"),
    "lomarc-9": ("response_s", "relative"),
}
"""Quantities of each figure."""


def bars_of(entry: str) -> list[Bar]:
    """Return the bars of a table or figure such as "lomarc-6"."""
    if entry == "lomarc-4":
        return []
    if entry == "lomarc-readings":
        return [*bars_of("lomarc-6"), *bars_of("lomarc-9")]
    if entry == "lomarc-5":
        bars = [(workload, "M1", variant) for variant in HYPERTHREADED for workload in WORKLOADS]
    elif entry == "lomarc-9":
        bars = [("W1", mix, variant) for mix in MIXES for variant in VARIANTS]
    else:
        bars = [(workload, "M1", variant) for workload in WORKLOADS for variant in VARIANTS]
    return [Bar(reading, *bar) for reading in READINGS for bar in bars]


def report(table: str, runs: LomarcRuns) -> Findings:
    """Recompute a table or figure, and check the published conclusions."""
    points = runs.points(bars_of(table))
    views = {reading: View(points, reading) for reading in READINGS}
    view = views[DEFAULT_READING]
    notes = [f"{runs.jobs:,} jobs on {NODES} nodes; means over the seeds 1 to {len(runs.seeds)}"]
    if table == "lomarc-readings":
        sections = [_side_by_side(views), _needed_loads(view)]
        notes.append(_NEEDED)
    elif table == "lomarc-4":
        sections = _loads(runs)
        notes += [_GROWTH_OF_LOADS, _SIZE_OF_LOADS]
    else:
        sections = [_table_5(view)] if table == "lomarc-5" else _bars(table, view)
        notes.append(f"numbers: {DEFAULT_READING}; `gridweave reproduce lomarc-readings` compares the readings")
    return Findings(
        sections=tuple(sections),
        conclusions=judge(table, CHECKS[table], views),
        data={"runs": _records(runs, table)} if table in SHOWN else {},
        notes=tuple(notes),
    )


def _side_by_side(views: dict[str, View]) -> Section:
    """Compare the readings by how many conclusions hold, and by the mean difference from the published changes."""
    checks = [check for group in CHECKS.values() for check in group]
    rows = []
    for reading, view in views.items():
        held = sum(check(view).holds for check in checks)
        distances = view.distances()
        means = [float(np.mean(group)) for group in distances.values()]
        overall = float(np.mean([distance for group in distances.values() for distance in group]))
        rows.append(Row((reading,), (*our_values(held), *our_values(overall, *means, decimals=1))))
    count = sum(mix == "M1" for *_, mix in CHANGES)
    title = f"Readings: how many of {len(checks)} conclusions hold, and how many points our {count} changes are off"
    return Section(title, ("reading",), ("hold", "all", *_QUANTITY_HEADINGS), tuple(rows), OURS)


def _needed_loads(view: View) -> Section:
    """Compare the load that each published reduction of the makespan requires with the loads under the readings."""
    rows = []
    for workload in WORKLOADS:
        kept = 1 + CHANGES["makespan_s", "L-R", workload, "M1"] / 100
        efficiency = view.mean("efficiency", "PSS", workload)
        offered = [loads[workload] for loads in OFFERED.values()]
        rows.append(Row((workload, f"{kept - 1:.0%}"), our_values(efficiency, efficiency / kept, *offered, decimals=2)))
    columns = ("efficiency of PSS", "least load", "loads from 1.00", "loads in tenths")
    return Section("Loads that the published makespans require", ("workload", "published"), columns, tuple(rows), OURS)


_QUANTITY_HEADINGS = ("response", "relative", "makespan", "efficiency")

_NEEDED = (
    "no schedule ends before the last arrival, so a makespan can be cut by c against PSS only at a load of E / "
    "(1 - c) or more, where E is the efficiency of PSS; the load is all work relative to the capacity of the "
    "nodes until the last arrival"
)


def _loads(runs: LomarcRuns) -> list[Section]:
    """Recompute Table 4: the published load, and the load under each reading of its formula."""
    headings, columns = ("workload", "α"), ("r n / (P a)", "all work offered", "with the geometric mean gap")
    sections = []
    for load in dict.fromkeys(reading.load for reading in READINGS.values()):
        loads = {name: _mean_load(runs, name, load) for name in WORKLOADS}
        for title, base in (("Load", None), ("Load as a multiple of that of W1", "W1")):
            unit, own = (LOADS[base], loads[base]) if base else (1.0, np.ones(len(columns)))
            rows = [
                Row(
                    (name, f"{ALPHAS[name]:g}"),
                    tuple(
                        Value(published=LOADS[name] / unit, ours=float(value), decimals=2)
                        for value in loads[name] / own
                    ),
                )
                for name in WORKLOADS
            ]
            sections.append(Section(f"{title}, {_LOAD_WORDS[load]}", headings, columns, tuple(rows)))
    return sections


_LOAD_WORDS = {
    "ratios": "loads from 1.00",
    "tenths": "loads in tenths",
    "weeks": f"W1 in {PUBLISHED_WEEKS:g} weeks",
    "alphas": "alphas alone",
}


def _mean_load(runs: LomarcRuns, name: str, load: str) -> FloatArray:
    loads = [load_of(runs.workload(seed, name, "M1", load), NODES) for seed in runs.seeds]
    return np.asarray(np.mean(loads, axis=0), np.float64)


_GROWTH_OF_LOADS = (
    "the published loads grow as exp(b Δα), b = 0.4871 of the model (1 : 1.22 : 1.98): a is the "
    "geometric mean of the gaps, and the alphas alone determine the three workloads"
)
_SIZE_OF_LOADS = (
    "no meaning of r, n and P gives 10.6 itself; the loads in tenths, or scaled from 1.00, allow "
    "the published cuts of the makespan, but the alphas alone and the ten weeks do not (lomarc-readings)"
)


def _table_5(view: View) -> Section:
    rows = []
    for (variant, workload), published in TABLE_5.items():
        own = [*view.candidates(variant, workload).tolist(), view.selected(variant, workload)]
        pairs = zip(published.values(), own, strict=True)
        rows.append(Row((variant, workload), tuple(Value(published=a, ours=b, decimals=1) for a, b in pairs)))
    return Section(
        "Averages over the searches that select a waiting job, of the jobs behind the one that it joins",
        ("variant", "workload"),
        tuple(next(iter(TABLE_5.values()))),
        tuple(rows),
        EACH,
    )


def _bars(entry: str, view: View) -> list[Section]:
    """Return the bars of a figure with confidence intervals, and the changes relative to PSS, published and ours."""
    cases = [("W1", "M2"), ("W1", "M3")] if entry == "lomarc-9" else [(workload, "M1") for workload in WORKLOADS]
    headings, columns = ("workload", "variant"), ("mean", "low", "high", "against PSS [%]")
    sections = []
    for quantity in SHOWN[entry]:
        name, decimals = QUANTITIES[quantity]
        rows = [_bar(view, quantity, decimals, place, variant) for place in cases for variant in VARIANTS]
        sections.append(Section(f"{name}; 95% interval of the mean", headings, columns, tuple(rows), OURS))
        published = _published(entry, quantity, view)
        if published:
            title = f"{name}, change against PSS in per cent"
            sections.append(Section(title, headings, ("ours",), tuple(published)))
    return sections


def _bar(view: View, quantity: str, decimals: int, place: tuple[str, str], variant: str) -> Row:
    workload, mix = place
    ends = mean_interval(view.values(quantity, variant, workload, mix))
    change = -view.cut(quantity, variant, workload, mix)
    return Row(
        (_place(workload, mix), variant), (*our_values(*ends, decimals=decimals), *our_values(change, decimals=1))
    )


def _published(entry: str, quantity: str, view: View) -> list[Row]:
    """Return the changes relative to PSS, published and ours."""
    rows = []
    for (name, variant, workload, mix), published in CHANGES.items():
        if name == quantity and (mix != "M1") == (entry == "lomarc-9"):
            own = -view.cut(quantity, variant, workload, mix)
            labels = (_place(workload, mix), variant)
            rows.append(Row(labels, (Value(published=published, ours=own, decimals=1),)))
    return rows


def _place(workload: str, mix: str) -> str:
    return workload if mix == "M1" else f"{workload} {mix}"


def _records(runs: LomarcRuns, entry: str) -> list[Record]:
    """Return one record per simulation of a figure."""
    return [
        {**bar._asdict(), "seed": seed, **{name: getattr(point, name) for name in QUANTITIES}}
        for bar, points in runs.points(bars_of(entry)).items()
        for seed, point in zip(runs.seeds, points, strict=True)
    ]
