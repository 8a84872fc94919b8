"""The tables and plots of a sweep."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import OptionError, UnavailableError
from gridweave.scenarios.sweep.api import SweepResult
from gridweave.scenarios.sweep.plan import make_plan
from gridweave.scenarios.sweep.tables import mean_interval, naming_of
from gridweave.scenarios.sweep.work import METRICS, Values

VARY = {"p": [0.3, 0, 0.1], "grid.mode": ["multi-site", "adaptive"]}


def made(vary: dict[str, list[object]] | None = None, seeds: int = 3, rng_seed: int = 0) -> SweepResult:
    """Return a sweep with random metrics."""
    plan = make_plan("two-sites", VARY if vary is None else vary, seeds=seeds)
    rng = np.random.default_rng(rng_seed)
    values: list[Values | None] = [
        dict(zip(METRICS, rng.uniform(1, 9, len(METRICS)).tolist(), strict=True)) for _ in plan.runs
    ]
    return SweepResult(plan, tuple(values))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30).filter(lambda sample: np.ptp(sample) > 1e-3))
def test_confidence_intervals(sample: list[float]) -> None:
    """Intervals are Student's, as computed by scipy."""
    mean, low, high = mean_interval(sample)
    standard_error = scipy.stats.sem(sample)
    expected = scipy.stats.t.interval(0.95, len(sample) - 1, loc=np.mean(sample), scale=standard_error)
    assert mean == pytest.approx(np.mean(sample), rel=1e-9, abs=1e-6)
    assert (low, high) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_intervals_that_are_empty() -> None:
    """One value has a mean and no interval; an undefined value makes all undefined."""
    mean, low, high = mean_interval([3.0])
    assert mean == 3.0
    assert math.isnan(low)
    assert math.isnan(high)
    assert all(map(math.isnan, mean_interval([1.0, None])))
    assert all(map(math.isnan, mean_interval([])))


def test_summary_rows_equal_the_runs() -> None:
    """Each row has the mean, the interval and the number of the combination's finished runs."""
    whole = made()
    values = list(whole.values)
    values[1] = None
    values[6] = values[7] = values[8] = None
    result = SweepResult(whole.plan, tuple(values))
    assert len(result.runs) == 14
    assert result.summary["n"].tolist() == [2, 3, 3, 3, 3]
    assert len(result.finished_combinations) == 5
    for _, row in result.summary.iterrows():
        runs = result.runs[(result.runs["p"] == row["p"]) & (result.runs["grid.mode"] == row["grid.mode"])]
        assert len(runs) == row["n"]
        for metric in ("util", "awt_ms", "multi_site_jobs"):
            half = scipy.stats.t.ppf(0.975, len(runs) - 1) * runs[metric].std() / math.sqrt(len(runs))
            assert row[f"{metric}_mean"] == pytest.approx(runs[metric].mean())
            assert row[f"{metric}_high"] - row[f"{metric}_mean"] == pytest.approx(half)
            assert row[f"{metric}_mean"] - row[f"{metric}_low"] == pytest.approx(half)


def test_seeds_with_equal_results_are_remarked() -> None:
    """Combinations whose seeds gave equal results are counted in a remark."""
    result = made()
    assert result.remarks == ()
    values = [
        result.values[3 * (run.combination)] if run.combination < 2 else result.values[run.number]
        for run in result.plan.runs
    ]
    part = SweepResult(result.plan, tuple(values))
    assert part.same_for_all_seeds == (0, 1)
    assert "in 2 of 6 combinations" in part.remarks[0]


def test_lines_over_a_number() -> None:
    """Over a numeric key, each combination of the others is a line of means, in ascending order, with its band."""
    result = made()
    axes = result.plot("awt_ms").axes[0]
    table = result.summary.sort_values("p")
    for line, mode in zip(axes.get_lines(), ("multi-site", "adaptive"), strict=True):
        assert line.get_label() == mode
        assert np.asarray(line.get_xdata()).tolist() == [0, 0.1, 0.3]
        means = table[table["grid.mode"] == mode]["awt_ms_mean"].to_numpy() / 1000
        assert np.asarray(line.get_ydata()) == pytest.approx(means)
    assert len(axes.collections) == 2


def test_bars_over_names() -> None:
    """Without a numeric key, or over a chosen key, each value has a group of bars as high as the means."""
    result = made({"grid.mode": ["multi-site", "adaptive"], "p": [0, 0.3, 0.6]})
    axes = result.plot("util", over="grid.mode").axes[0]
    bars = [container for container in axes.containers if hasattr(container, "patches")]
    for bar, overhead in zip(bars, (0, 0.3, 0.6), strict=True):
        rows = result.summary[result.summary["p"] == overhead]
        assert [patch.get_height() for patch in bar.patches] == pytest.approx((rows["util_mean"] * 100).tolist())
    assert [text.get_text() for text in axes.get_xticklabels()] == ["multi-site", "adaptive"]


@pytest.mark.parametrize(
    ("vary", "panels", "lines"),
    [
        ({}, 1, 1),
        ({"p": [0.3]}, 1, 1),
        (
            {"p": [0, 1], "grid.selection": ["best-fit", "random", "equal-util"], "grid.order": ["fcfs", "sjf", "ljf"]},
            3,
            3,
        ),
        ({"p": [0, 1], "grid.lower_bound": list(range(20))}, 1, 2),
    ],
)
def test_layouts(vary: dict[str, list[object]], panels: int, lines: int) -> None:
    """Too many lines are spread over panels; the numeric key with the most values is on the x axis."""
    figure = made(vary, seeds=2).plot("util")
    seen = [axes for axes in figure.axes if axes.get_visible()]
    assert len(seen) == panels
    assert all(len(axes.get_legend_handles_labels()[1]) <= lines for axes in seen)
    figure.canvas.draw()


def test_invalid_plots_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown metrics and keys, plots without data, and plots with too many lines are refused."""
    result = made()
    with pytest.raises(OptionError, match="is not a metric"):
        result.plot("utilisation")
    with pytest.raises(OptionError, match="not varied"):
        result.plot("util", over="grid.order")
    with pytest.raises(UnavailableError, match="nothing to draw"):
        SweepResult(result.plan, (None,) * len(result.values)).plot("util")
    with pytest.raises(UnavailableError, match="40 lines"):
        made({"workload.load": [0.5, 0.6, 0.7], "grid.overhead": list(range(40))}, seeds=1).plot(
            "util", over="workload.load"
        )


def test_every_metric_has_a_distinct_label() -> None:
    """Names are distinct, and times are shown in seconds."""
    names = [naming_of(metric).heading for metric in METRICS]
    assert len(set(names)) == len(METRICS)
    assert naming_of("awt_ms").write(61_500.0, 60_500.0, 62_500.0) == "62 ± 1"
    assert naming_of("util").write(0.5, math.nan, math.nan) == "50.00"
    assert naming_of("sldwa").write(math.nan, math.nan, math.nan) == "–"
