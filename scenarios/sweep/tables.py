"""Tables of a sweep: one row per run, and one row per combination with means and confidence intervals.

The module also provides the labels, units and number formats of metrics for a sweep's tables and plots.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gridweave.scenarios.results.metrics import PARTS_OF_ONE
from gridweave.scenarios.sweep.plan import SweepPlan
from gridweave.scenarios.sweep.work import METRICS, Values
from gridweave.scenarios.workload.table import MS_PER_S, data_frame

if TYPE_CHECKING:
    import pandas


CONFIDENCE = 0.95
SUFFIXES = ("mean", "low", "high")
"""Suffixes of a metric's name for its mean and for the ends of the mean's confidence interval."""


def mean_interval(values: Sequence[float | None]) -> tuple[float, float, float]:
    """Return a sample's mean, and the ends of the mean's 95% confidence interval (Student's t).

    The interval is NaN for fewer than two values; all three numbers are NaN if there is no value, or if one is None.

    Examples
    --------
    >>> [round(end, 2) for end in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.48, 4.48]
    """
    sample = np.array([np.nan if value is None else value for value in values], np.float64)
    if not len(sample):
        return np.nan, np.nan, np.nan
    mean = float(sample.mean())
    if len(sample) < 2:
        return mean, np.nan, np.nan
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(sample) - 1, 0.5 + CONFIDENCE / 2))
    half = quantile * float(sample.std(ddof=1)) / float(np.sqrt(len(sample)))
    return mean, mean - half, mean + half


def samples_of(plan: SweepPlan, values: Sequence[Values | None]) -> dict[int, list[Values]]:
    """Group the finished runs by combination, in plan order; leave out combinations without finished runs."""
    samples: dict[int, list[Values]] = {}
    for run, metrics in zip(plan.runs, values, strict=True):
        if metrics is not None:
            samples.setdefault(run.combination, []).append(metrics)
    return samples


def run_columns(plan: SweepPlan, values: Sequence[Values | None]) -> dict[str, list[Any]]:
    """Return the columns of the table with one row per finished run: the varied keys, ``seed``, and all metrics."""
    done = [(run, metrics) for run, metrics in zip(plan.runs, values, strict=True) if metrics is not None]
    columns = _settings(plan, [run.combination for run, _ in done])
    columns["seed"] = [run.seed for run, _ in done]
    return columns | {name: [metrics[name] for _, metrics in done] for name in METRICS}


def summary_columns(plan: SweepPlan, values: Sequence[Values | None]) -> dict[str, list[Any]]:
    """Return the columns of the table with one row per combination that has finished runs.

    The columns are the varied keys, ``n`` (number of finished runs), and each metric's mean and confidence limits.
    """
    samples = samples_of(plan, values)
    columns = _settings(plan, list(samples))
    columns["n"] = [len(sample) for sample in samples.values()]
    for name in METRICS:
        ends = [mean_interval([metrics[name] for metrics in sample]) for sample in samples.values()]
        columns |= {f"{name}_{suffix}": [end[place] for end in ends] for place, suffix in enumerate(SUFFIXES)}
    return columns


def same_for_all_seeds(plan: SweepPlan, values: Sequence[Values | None]) -> tuple[int, ...]:
    """Return the combinations for which several seeds gave the same result."""
    samples = samples_of(plan, values).items()
    return tuple(
        number for number, sample in samples if len(sample) > 1 and all(result == sample[0] for result in sample[1:])
    )


def without_effect(plan: SweepPlan, values: Sequence[Values | None]) -> tuple[str, ...]:
    """Return the names of the varied keys without effect: all values gave the same results, all else being equal."""
    names = []
    for number, axis in enumerate(plan.axes):
        groups: dict[tuple[object, ...], list[Values]] = {}
        for run, metrics in zip(plan.runs, values, strict=True):
            indices = plan.combinations[run.combination]
            if metrics is not None:
                groups.setdefault((*indices[:number], *indices[number + 1 :], run.seed), []).append(metrics)
        alike = all(result == group[0] for group in groups.values() for result in group)
        if alike and any(len(group) > 1 for group in groups.values()):
            names.append(axis.name)
    return tuple(names)


def to_frame(columns: dict[str, list[Any]]) -> pandas.DataFrame:
    """Convert columns to a pandas table."""
    return data_frame({name: _typed(name, column) for name, column in columns.items()}, extra="sweep")


def _typed(name: str, column: list[Any]) -> Any:
    """Convert a metric's column to an array with NaN for None; return other columns unchanged."""
    if any(value is None for value in column) or name.rpartition("_")[2] in SUFFIXES:
        return np.array([np.nan if value is None else value for value in column], np.float64)
    return column


def _settings(plan: SweepPlan, combinations: Sequence[int]) -> dict[str, list[Any]]:
    return {
        axis.name: [axis.column[plan.combinations[number][place]] for number in combinations]
        for place, axis in enumerate(plan.axes)
    }


_ACRONYMS = {
    "awt": "AWT",
    "art": "ART",
    "artww": "ARTwW",
    "awrt": "AWRT",
    "awwt": "AWWT",
    "sldwa": "SLDwA",
    "sldww": "SLDwW",
    "util": "UTIL",
    "pp": "per-processor",
}
_PARTS_OF_ONE = (*PARTS_OF_ONE, "multi_site_share_of_jobs", "multi_site_share_of_area")


@dataclass(frozen=True, slots=True)
class Naming:
    """How to show a metric: label, unit, conversion factor to this unit, and number of decimals."""

    label: str
    unit: str
    factor: float
    decimals: int

    @property
    def heading(self) -> str:
        """Label and unit, for a column or an axis."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    def write(self, mean: float, low: float, high: float, *, interval: bool = True) -> str:
        """Format a mean and, unless the interval is NaN or ``interval`` is false, half the interval's width.

        Examples
        --------
        >>> naming_of("awrt_area_ms").write(61_000_500.0, 60_000_000.0, 62_001_000.0)
        '61,000 ± 1,000'
        """
        if math.isnan(mean):
            return "–"
        text = f"{mean * self.factor:,.{self.decimals}f}"
        if math.isnan(low) or not interval:
            return text
        return f"{text} ± {(high - low) / 2 * self.factor:,.{self.decimals}f}"


def naming_of(metric: str) -> Naming:
    """Return how to show a metric of `gridweave.scenarios.sweep.work.METRICS`.

    Examples
    --------
    >>> naming_of("awrt_area_ms").heading, naming_of("util").heading, naming_of("bounded_slowdown_10s").heading
    ('AWRT by area [s]', 'UTIL [%]', 'bounded slowdown 10 s')
    """
    in_ms = metric.endswith("_ms")
    words = metric.removesuffix("_ms").removesuffix("_node").split("_")
    words = [re.sub(r"^(\d+)(s)$", r"\1 \2", _ACRONYMS.get(word, word)) for word in words]
    label = " ".join(words).replace("multi site", "multi-site").replace("throughput per h", "throughput")
    for weight in ("area", "width"):
        if words[0] in ("AWRT", "AWWT"):
            label = label.replace(f" {weight}", f" by {weight}")
    if in_ms:
        return Naming(label, "node s" if metric.endswith("_node_ms") else "s", 1 / MS_PER_S, 0)
    if metric in _PARTS_OF_ONE:
        return Naming(label, "%", 100.0, 2)
    if metric in ("jobs", "jobs_waited", "queued_submissions", "multi_site_jobs"):
        return Naming(label, "", 1.0, 1 if metric != "jobs" else 0)
    return Naming(label, "jobs/h" if metric.endswith("_per_h") else "", 1.0, 3)
