"""The conclusions of the evaluation of LOMARC (section 6.2), each as a check of the means over the seeds.

What words are taken to mean stands here as constants. "Improvement" is the cut against PSS in per cent, worked out for
each seed on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gridweave.scenarios.published.lomarc_data import M2_CUTS, MAKESPAN_CUT, RELATIVE_CUT, RESPONSE_CUT
from gridweave.scenarios.published.lomarc_runs import WORKLOADS, Point, Setting
from gridweave.scenarios.published.report import Conclusion, Verdict
from gridweave.scenarios.sweep.tables import mean_interval

FloatArray = npt.NDArray[np.float64]
Points = Mapping[Setting, tuple[Point, ...]]

LOMARC_VARIANTS = ("L-U1", "L-U2", "L-R", "L-FM", "L-N")
HYPERTHREADED = ("L-U1", "L-U2", "L-R")
OTHERS = ("PSS", "AC", "AM")

NEAR_POINTS = 5.0
"""A published percentage is met by one that is no further from it than this, in points."""

SAME_PCT = 10.0
""""Almost the same": within 10%."""

SAME_UTIL = 0.05
""""Almost the same utilisation": within 5 points."""

SAME_GAIN_POINTS = 3.0
""""No relevant differences" between gains of efficiency, which are whole per cent in the paper."""

_QUANTITIES = {"response_s": "response time", "relative": "relative bounded response time"}


class View:
    """The points of one reading, read as the paper reads its figures.

    Parameters
    ----------
    points : mapping from Setting to tuple of Point
    reading : str
    """

    def __init__(self, points: Points, reading: str) -> None:
        self._points, self._reading = points, reading

    def values(self, quantity: str, variant: str, workload: str, mix: str = "M1") -> list[float]:
        """Return a quantity for each seed."""
        return [getattr(one, quantity) for one in self._points[Setting(self._reading, workload, mix, variant)]]

    def mean(self, quantity: str, variant: str, workload: str, mix: str = "M1") -> float:
        """Return the mean of a quantity over the seeds."""
        return float(np.mean(self.values(quantity, variant, workload, mix)))

    def candidates(self, variant: str, workload: str) -> FloatArray:
        """Return the means of what is counted of a search, in the order of Table 5."""
        counts = [one.candidates for one in self._points[Setting(self._reading, workload, "M1", variant)]]
        return np.array([_mean_defined(column) for column in zip(*counts, strict=True)], np.float64)

    def selected(self, variant: str, workload: str) -> float:
        """Return the mean place of the chosen among the candidates left."""
        return _mean_defined(self.values("selected", variant, workload))

    def cuts(self, quantity: str, variant: str, workload: str, mix: str = "M1", base: str = "PSS") -> list[float]:
        """Return by how many per cent a quantity is below that of another variant, for each seed."""
        pairs = zip(
            self.values(quantity, variant, workload, mix), self.values(quantity, base, workload, mix), strict=True
        )
        return [100 * (1 - own / other) for own, other in pairs]

    def cut(self, quantity: str, variant: str, workload: str, mix: str = "M1", base: str = "PSS") -> float:
        """Return the mean of `cuts`."""
        return float(np.mean(self.cuts(quantity, variant, workload, mix, base)))


def _mean_defined(values: Sequence[float]) -> float:
    """Return the mean of the seeds in which there was something to count; NaN if there was none."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")


def _spread(values: Sequence[float]) -> str:
    """Return a mean with half of its confidence interval, in per cent."""
    mean, low, _ = mean_interval(list(values))
    return f"{mean:.0f}%" if np.isnan(low) else f"{mean:.0f} ± {mean - low:.0f}%"


def _beat_all(quantity: str) -> Callable[[View], Verdict]:
    """Check "all LOMARC variants perform clearly better than all other approaches"."""

    def check(view: View) -> Verdict:
        losses, texts = [], []
        for workload in WORKLOADS:
            best = min(OTHERS, key=lambda name: view.mean(quantity, name, workload))
            worst = max(LOMARC_VARIANTS, key=lambda name: view.mean(quantity, name, workload))
            ratio = view.mean(quantity, worst, workload) / view.mean(quantity, best, workload)
            losses.append(ratio)
            texts.append(f"{workload} the worst, {worst}, has {ratio:.2f} of {best}, the best other")
        return Verdict(max(losses) < 1, "; ".join(texts))

    return check


def _always_is_worse(view: View) -> Verdict:
    """Check "AC is significantly worse than space sharing PSS"."""
    holds, texts = True, []
    for quantity, words in _QUANTITIES.items():
        for workload in WORKLOADS:
            values = [-cut for cut in view.cuts(quantity, "AC", workload)]
            mean, low, _ = mean_interval(values)
            holds = holds and (low > 0 if not np.isnan(low) else mean > 0)
            texts.append(f"{workload} {words} {_spread(values)}")
    return Verdict(holds, ", ".join(texts) + " longer; significant: the interval is above 0")


def _cuts(quantity: str, variant: str, published: Mapping[str, float]) -> Callable[[View], Verdict]:
    """Check published cuts against PSS, by workload."""

    def check(view: View) -> Verdict:
        holds = all(abs(view.cut(quantity, variant, one) - value) <= NEAR_POINTS for one, value in published.items())
        texts = [f"{one} {_spread(view.cuts(quantity, variant, one))} ({value:g}%)" for one, value in published.items()]
        return Verdict(holds, ", ".join(texts) + f"; published in brackets, met within {NEAR_POINTS:g} points")

    return check


def _at_least_half(view: View) -> Verdict:
    """Check "response time and relative bounded response time are approximately reduced to half"."""
    cuts = {
        f"{one} {words}": view.cut(quantity, "L-R", one) for one in WORKLOADS for quantity, words in _QUANTITIES.items()
    }
    texts = ", ".join(f"{name} {cut:.0f}%" for name, cut in cuts.items())
    return Verdict(min(cuts.values()) >= 50 - NEAR_POINTS, f"{texts}; half: 45% or more")


def _grows(view: View) -> Verdict:
    """Check "with the workload becoming heavier, our approaches show more obvious improvement"."""
    holds, texts = True, []
    for quantity, words in _QUANTITIES.items():
        cuts = [view.cut(quantity, "L-R", one) for one in WORKLOADS]
        holds = holds and cuts[0] < cuts[-1]
        texts.append(f"{words} {cuts[0]:.0f}, {cuts[1]:.0f}, {cuts[2]:.0f}%")
    return Verdict(holds, "; ".join(texts) + "; W3 against W1")


def _near_each_other(view: View) -> Verdict:
    """Check "L-U1 provides almost the same results as L-R for all workloads" (response times)."""
    gaps = [view.cut("response_s", "L-U1", one, base="L-R") for one in WORKLOADS]
    texts = [f"{one} {-gap:+.0f}%" for one, gap in zip(WORKLOADS, gaps, strict=True)]
    return Verdict(max(map(abs, gaps)) <= SAME_PCT, f"L-U1 against L-R {', '.join(texts)}; same: within {SAME_PCT:g}%")


def _u1_beats_u2(view: View) -> Verdict:
    """Check "L-U1 performs slightly better than L-U2", and "L-U2 is again worse" in relative response times."""
    gaps = {
        f"{one} {words}": view.cut(quantity, "L-U1", one, base="L-U2")
        for quantity, words in _QUANTITIES.items()
        for one in WORKLOADS
    }
    texts = ", ".join(f"{name} {-gap:+.0f}%" for name, gap in gaps.items())
    return Verdict(float(np.mean(list(gaps.values()))) > 0, f"L-U1 against L-U2: {texts}; judged by the mean")


def _response_is_best(view: View) -> Verdict:
    """Check "L-R is better than L-U1" in relative bounded response times, and the best of all."""
    holds, texts = True, []
    for one in WORKLOADS:
        best = min(LOMARC_VARIANTS, key=lambda name: view.mean("relative", name, one))
        holds = holds and best == "L-R"
        texts.append(f"{one} best {best}, L-R below L-U1 by {_spread(view.cuts('relative', 'L-R', one, base='L-U1'))}")
    return Verdict(holds, "; ".join(texts))


def _first_match_is_worse(view: View) -> Verdict:
    """Check "L-FM is not too much worse if the workload is lighter but becomes worse than the workload is heavier"."""
    gaps = [-view.cut("response_s", "L-FM", one, base="L-R") for one in WORKLOADS]
    relative = -view.cut("relative", "L-FM", "W3", base="L-R")
    text = f"response times above L-R's by {gaps[0]:.0f}, {gaps[1]:.0f}, {gaps[2]:.0f}% (W3: 17%)"
    return Verdict(gaps[2] > 0 and relative > 0, f"{text}, relative under W3 by {relative:.0f}% (24%); judged under W3")


def _adjacent_is_between(view: View) -> Verdict:
    """Check "AM is still doing significantly better than PSS but significantly worse than L-R and than L-FM"."""
    holds, texts = True, []
    for one in WORKLOADS:
        own = view.mean("response_s", "AM", one)
        below, above = (
            view.mean("response_s", "PSS", one),
            max(view.mean("response_s", name, one) for name in ("L-R", "L-FM")),
        )
        holds = holds and above < own < below
        texts.append(f"{one} {view.cut('response_s', 'AM', one):+.0f}%")
    return Verdict(holds, f"cut against PSS {', '.join(texts)}; response times, strictly between")


def _utilisation_is_alike(view: View) -> Verdict:
    """Check "utilization is almost the same for all approaches and improves if the workload becomes heavier"."""
    holds, texts, before = True, [], 0.0
    for one in WORKLOADS:
        values = {name: view.mean("util", name, one) for name in (*OTHERS, *LOMARC_VARIANTS)}
        low, high = min(values, key=lambda name: values[name]), max(values, key=lambda name: values[name])
        holds = holds and values[high] - values[low] <= SAME_UTIL and values[low] > before
        before = values[low]
        texts.append(f"{one} {values[low]:.0%} ({low}) to {values[high]:.0%} ({high})")
    return Verdict(holds, "; ".join(texts) + f"; almost the same: within {SAME_UTIL:.0%}")


def _gains(variants: Sequence[str], published: Sequence[float]) -> Callable[[View], Verdict]:
    """Check published gains of utilisation efficiency over PSS."""

    def check(view: View) -> Verdict:
        holds, texts = True, []
        for one, value in zip(WORKLOADS, published, strict=True):
            gains = [-view.cut("efficiency", name, one) for name in variants]
            holds = holds and all(abs(gain - value) <= NEAR_POINTS for gain in gains)
            texts.append(f"{one} {', '.join(f'{gain:.0f}' for gain in gains)}% ({value:g}%)")
        return Verdict(holds, "; ".join(texts) + f"; published in brackets, met within {NEAR_POINTS:g} points")

    return check


def _gains_are_alike(view: View) -> Verdict:
    """Check "there are no relevant differences between L-U1, L-U2, and L-R" (utilisation efficiency)."""
    spreads = []
    for one in WORKLOADS:
        gains = [-view.cut("efficiency", name, one) for name in HYPERTHREADED]
        spreads.append(max(gains) - min(gains))
    text = ", ".join(f"{one} {spread:.1f}" for one, spread in zip(WORKLOADS, spreads, strict=True))
    return Verdict(
        max(spreads) <= SAME_GAIN_POINTS, f"largest difference of gains {text} points; at most {SAME_GAIN_POINTS:g}"
    )


def _mixes_are_alike(view: View) -> Verdict:
    """Check "for M2 and M3, the relative improvements of L-U1, L-U2, and L-R vs. PSS are similar to M1"."""
    worst, texts = 0.0, []
    for name in HYPERTHREADED:
        cuts = [view.cut("response_s", name, "W1", mix) for mix in ("M1", "M2", "M3")]
        worst = max(worst, *(abs(cut - cuts[0]) for cut in cuts))
        texts.append(f"{name} {', '.join(f'{cut:.0f}' for cut in cuts)}%")
    return Verdict(
        worst <= SAME_PCT,
        f"cut of response times with M1, M2, M3: {'; '.join(texts)}; similar: within {SAME_PCT:g} points",
    )


def _standard_by_mix(view: View) -> Verdict:
    """Check "for M2, L-N now improves upon PSS by 34% and 38% and for M3 it is closer to PSS than under M1"."""
    holds, texts = True, []
    for quantity, words in _QUANTITIES.items():
        by_mix = [view.cut(quantity, "L-N", "W1", mix) for mix in ("M1", "M2", "M3")]
        holds = holds and by_mix[2] < by_mix[0] < by_mix[1]
        texts.append(f"{words} {by_mix[0]:.0f}, {by_mix[1]:.0f} ({M2_CUTS[quantity]:g}), {by_mix[2]:.0f}%")
    return Verdict(holds, f"cut with M1, M2, M3: {'; '.join(texts)}; judged by the order")


def _few_candidates(view: View) -> Verdict:
    """Check "the number of jobs left as candidates is relatively small: for W1 between 5 and 7"."""
    left = {name: float(view.candidates(name, "W1")[-1]) for name in HYPERTHREADED}
    texts = ", ".join(f"{name} {value:.1f}" for name, value in left.items())
    return Verdict(max(left.values()) <= 7, f"W1: {texts}; at most 7")


def _reluctant(view: View) -> Verdict:
    """Check "L-U1 selects the 6th job and L-R the 4th": response times should be reluctant to look far down."""
    own, other = (view.selected(name, "W3") for name in ("L-R", "L-U1"))
    return Verdict(own < other, f"W3: the {own:.1f}th with L-R (4th), the {other:.1f}th with L-U1 (6th)")


def _of(variant: str, published: Mapping[tuple[str, str], float]) -> dict[str, float]:
    return {workload: value for (name, workload), value in published.items() if name == variant}


Claim = tuple[str, Callable[[View], Verdict]]

_RESPONSES: tuple[Claim, ...] = (
    ("All LOMARC variants have shorter response times than PSS, AC and AM", _beat_all("response_s")),
    ("Coscheduling without a match (AC) is significantly worse than space sharing", _always_is_worse),
    ("L-R cuts response times by 48 to 56%", _cuts("response_s", "L-R", _of("L-R", RESPONSE_CUT))),
    ("L-R about halves response times and relative bounded response times", _at_least_half),
    ("The heavier the workload, the larger the improvement of L-R", _grows),
    ("L-U1 has almost the response times of L-R", _near_each_other),
    ("L-U1 is slightly better than L-U2", _u1_beats_u2),
    ("L-FM is worse than L-R under heavy workloads", _first_match_is_worse),
    ("AM is better than PSS and worse than L-R and L-FM", _adjacent_is_between),
    ("L-N cuts response times by 23 to 31%", _cuts("response_s", "L-N", _of("L-N", RESPONSE_CUT))),
    ("L-R shortens the makespan by 5, 20 and 33%", _cuts("makespan_s", "L-R", _of("L-R", MAKESPAN_CUT))),
)

_RELATIVE: tuple[Claim, ...] = (
    ("All LOMARC variants have lower relative bounded response times than the others", _beat_all("relative")),
    ("L-R cuts relative bounded response times by 50 to 66%", _cuts("relative", "L-R", _of("L-R", RELATIVE_CUT))),
    ("L-R has the lowest relative bounded response times", _response_is_best),
    ("L-N cuts them by 7, 17 and 40%", _cuts("relative", "L-N", _of("L-N", RELATIVE_CUT))),
)

_UTILISATION: tuple[Claim, ...] = (
    ("Utilisation is almost the same for all, and grows with the workload", _utilisation_is_alike),
    ("L-U1, L-U2 and L-R gain 8.5, 19 and 38% of utilisation efficiency", _gains(HYPERTHREADED, (8.5, 19, 38))),
    ("L-U1, L-U2 and L-R do not differ in utilisation efficiency", _gains_are_alike),
    ("L-FM gains 6, 15 and 31%", _gains(("L-FM",), (6, 15, 31))),
    ("L-N gains 2, 9 and 18%", _gains(("L-N",), (2, 9, 18))),
)

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "lomarc-5": (
        ("Few candidates are left to choose from", _few_candidates),
        ("L-R selects less far down in the queue than L-U1 under W3", _reluctant),
    ),
    "lomarc-6": _RESPONSES,
    "lomarc-7": _RELATIVE,
    "lomarc-8": _UTILISATION,
    "lomarc-9": (
        ("With M2 and M3 L-U1, L-U2 and L-R improve as much as with M1", _mixes_are_alike),
        ("L-N improves more with M2 (many disk-bound jobs) and less with M3", _standard_by_mix),
    ),
}
"""Table or figure to its conclusions: what the paper says, and the check."""


def judge(entry: str, points: Points, readings: Sequence[str]) -> tuple[Conclusion, ...]:
    """Return the conclusions of a table or figure, judged for each reading.

    Parameters
    ----------
    entry : str
        A key of `CLAIMS`.
    points : mapping from Setting to tuple of Point
        All that the figure shows.
    readings : sequence of str

    Returns
    -------
    tuple of Conclusion
    """
    views = {reading: View(points, reading) for reading in readings}
    return tuple(
        Conclusion(
            source="LOMARC, section 6.2", claim=claim, verdicts={name: check(view) for name, view in views.items()}
        )
        for claim, check in CLAIMS.get(entry, ())
    )
