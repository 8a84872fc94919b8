"""Plots of a sweep, as in Streit's thesis: lines over numbers (Figures 7.8, 7.16), bars over names (Figure 7.1)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, StrMethodFormatter

from gridweave.errors import UnavailableError
from gridweave.scenarios.plots.parts import BLACK, MARKERS, SERIES, FloatArray, new_figure, tidy
from gridweave.scenarios.sweep.plan import Axis, SweepPlan
from gridweave.scenarios.sweep.tables import Naming, naming_of

if TYPE_CHECKING:
    import pandas

Places = tuple[int, ...]
"""Indices into the values of several axes, one index per axis."""

_DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_LINES_AT_MOST, _PANELS_AT_MOST = len(SERIES), 12
_BAND_MARGIN, _NEAR_ZERO = 0.6, 0.6
_LOG_FROM = 50  # ratio of the largest to the smallest value from which the axis is logarithmic


@dataclass(frozen=True, slots=True)
class _Layout:
    """The keys of a sweep that become the x axis, the lines and the panels."""

    over: Axis | None
    lines: tuple[Axis, ...]
    panels: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class _Values:
    """One metric's means and confidence limits, by the combination's indices on the varied axes."""

    varied: tuple[Axis, ...]
    points: Mapping[Places, tuple[float, float, float]]

    def along(self, over: Axis | None, at: Mapping[str, int]) -> FloatArray:
        """Return (mean, low, high) for each value of one key, with other keys fixed; NaN where no run has finished."""
        rows = []
        for place in range(len(over.values) if over is not None else 1):
            where = {**at, over.name: place} if over is not None else at
            rows.append(self.points.get(tuple(where[axis.name] for axis in self.varied), (np.nan, np.nan, np.nan)))
        return np.array(rows, np.float64)


def plot_sweep(plan: SweepPlan, summary: pandas.DataFrame, metric: str, *, over: str | None = None) -> Figure:
    """Draw a metric over the varied keys; ``over`` names the key on the x axis."""
    if not len(summary):
        raise UnavailableError("there is nothing to draw: no run has finished")
    layout = _layout(plan, over)
    naming = naming_of(metric)
    values = _values(plan, summary, metric, naming)
    lines = layout.over is not None and over_numbers(layout.over)
    draw = _draw_lines if lines else _draw_bars
    panels = list(itertools.product(*(range(len(axis.values)) for axis in layout.panels)))
    columns = min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(8.5 if columns == 1 else 4.6 * columns, (4.8 if columns == 1 else 3.6) * rows + 0.6)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True, sharex=True)
    for axes, panel in itertools.zip_longest(grid.flat, panels):
        if panel is None:
            axes.set_visible(False)
            continue
        at = dict(zip((axis.name for axis in layout.panels), panel, strict=True))
        draw(axes, layout, values, at)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
        if layout.panels:
            axes.set_title(_label(layout.panels, panel, names=True), fontsize="medium", loc="left")
        axes.set_ylabel(naming.heading)
    for number, axes in enumerate(grid.flat[: len(panels)]):
        axes.label_outer()
        if number + columns >= len(panels):  # no panel below this one
            axes.xaxis.set_tick_params(labelbottom=True)
            axes.xaxis.label.set_visible(True)
    _set_limits(grid[0][0], values, bars=not lines)
    _legend(figure, grid[0][0], layout)
    figure.suptitle(f"{plan.name}: {naming.label}\n{_sample(plan, summary, metric)}".strip())
    return figure


def over_numbers(axis: Axis) -> bool:
    """Whether a key's values can be drawn on a numeric axis: at least two numbers, all finite."""
    return axis.is_numeric and len(axis.values) > 1 and all(math.isfinite(value) for value in axis.values)


def _layout(plan: SweepPlan, over: str | None) -> _Layout:
    """Choose the layout: a numeric key on the x axis, other keys as lines, or as panels if there are too many lines."""
    varied = [axis for axis in plan.axes if len(axis.values) > 1]
    chosen = None if over is None else plan.axis(over)
    if chosen is None and varied:
        numeric = [axis for axis in varied if over_numbers(axis)]
        chosen = max(numeric, key=lambda axis: len(axis.values)) if numeric else varied[0]
    lines = [axis for axis in varied if axis is not chosen]
    panels: list[Axis] = []
    while len(lines) > 1 and math.prod(len(axis.values) for axis in lines) > _LINES_AT_MOST:
        panels.append(min(lines, key=lambda axis: len(axis.values)))
        lines.remove(panels[-1])
    counts = math.prod(len(axis.values) for axis in lines), math.prod(len(axis.values) for axis in panels)
    if counts[0] > _LINES_AT_MOST * len(_DASHES) or counts[1] > _PANELS_AT_MOST:
        raise UnavailableError(f"{plan.name}: {counts[0] * counts[1]} lines are too many for one plot; see the tables")
    return _Layout(chosen, tuple(lines), tuple(panels))


def _values(plan: SweepPlan, summary: pandas.DataFrame, metric: str, naming: Naming) -> _Values:
    numbers = summary[[f"{metric}_mean", f"{metric}_low", f"{metric}_high"]].to_numpy(np.float64) * naming.factor
    finished = {tuple(key): row for key, row in zip(_keys(summary, plan.axes), numbers.tolist(), strict=True)}
    points = {}
    for indices in plan.combinations:
        key = tuple(axis.column[place] for axis, place in zip(plan.axes, indices, strict=True))
        if key in finished:
            points[indices] = finished[key]
    return _Values(plan.axes, points)


def _keys(summary: pandas.DataFrame, axes: Sequence[Axis]) -> list[tuple[object, ...]]:
    columns = [summary[axis.name].tolist() for axis in axes]
    return list(zip(*columns, strict=True)) if columns else [()] * len(summary)


def _fixed(layout: _Layout, values: _Values, at: Mapping[str, int]) -> dict[str, int]:
    """Return an index for each axis: the given index, or 0 for axes with a single value."""
    return {axis.name: 0 for axis in values.varied} | dict(at)


def _draw_lines(axes: Axes, layout: _Layout, values: _Values, at: Mapping[str, int]) -> None:
    """Draw one line per combination, with the confidence interval as a band."""
    over = layout.over
    assert over is not None
    numbers = np.array(over.values, np.float64)
    order = np.argsort(numbers, kind="stable")
    count = math.prod(len(axis.values) for axis in layout.lines)
    for number, combination in enumerate(_combinations(layout.lines)):
        indices = _fixed(layout, values, at) | dict(zip((axis.name for axis in layout.lines), combination, strict=True))
        mean, low, high = values.along(over, indices)[order].T
        colour, dash, marker = _style(number)
        axes.fill_between(numbers[order], low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(
            numbers[order],
            mean,
            color=colour,
            linestyle=dash,
            marker=marker,
            # Lines drawn first are wider, so that they stay visible below the lines drawn later.
            markersize=7.5 - 3 * number / count,
            linewidth=3.2 - 2 * number / count,
            label=_label(layout.lines, combination),
        )
    _scale(axes, over, numbers)
    tidy(axes)


def _scale(axes: Axes, over: Axis, numbers: FloatArray) -> None:
    """Scale and label a numeric x axis."""
    if numbers.min() > 0 and numbers.max() / numbers.min() >= _LOG_FROM:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    if over.key == "grid.overhead":
        axes.xaxis.set_major_formatter(FuncFormatter(_percent))
    elif axes.get_xscale() != "log":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.6g}"))
    axes.set_xlabel("Overhead p" if over.key == "grid.overhead" else over.name)


def _draw_bars(axes: Axes, layout: _Layout, values: _Values, at: Mapping[str, int]) -> None:
    """Draw one group of bars per value, with the confidence interval as a whisker."""
    over, series = layout.over, list(_combinations(layout.lines))
    groups = np.arange(len(over.values) if over is not None else 1, dtype=np.float64)
    width = 0.8 / len(series)
    for number, combination in enumerate(series):
        indices = _fixed(layout, values, at) | dict(zip((axis.name for axis in layout.lines), combination, strict=True))
        mean, low, high = values.along(over, indices).T
        where = groups + (number - (len(series) - 1) / 2) * width
        colour, _, _ = _style(number)
        hatch = ("", "////", "....", "xxxx")[number // len(SERIES)]
        axes.bar(
            where,
            mean,
            width * 0.92,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
            label=_label(layout.lines, combination),
        )
        has_interval = np.isfinite(low) & (high > low)
        if has_interval.any():
            error = np.array([mean - low, high - mean])[:, has_interval]
            axes.errorbar(
                where[has_interval], mean[has_interval], error, fmt="none", ecolor=BLACK, elinewidth=1, capsize=2
            )
    labels = over.labels if over is not None else ("",)
    long = sum(map(len, labels)) > (40 if layout.panels else 70)
    axes.set_xticks(groups, labels, rotation=30 if long else 0, ha="right" if long else "center")
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel(over.name if over is not None else "")
    tidy(axes)
    axes.grid(visible=False, axis="x")


def _set_limits(axes: Axes, values: _Values, *, bars: bool) -> None:
    """Show all means, and intervals as far as means stay distinguishable; start the axis at zero if zero is near."""
    ends = np.array(list(values.points.values()), np.float64)
    ends = ends[np.isfinite(ends[:, 0])]
    if not len(ends):
        return
    least, most = float(ends[:, 0].min()), float(ends[:, 0].max())
    band = _BAND_MARGIN * max(abs(least), abs(most))
    low, high = max(np.nanmin(ends), least - band), min(np.nanmax(ends), most + band)
    if least >= 0 and (bars or low < _NEAR_ZERO * high):
        low = 0.0
    elif bars:
        low, high = min(low, 0.0), max(high, 0.0)
    if low < high:
        margin = 0.05 * (high - low)
        axes.set_ylim(low - (margin if low else 0), high + margin)


def _combinations(axes: Sequence[Axis]) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(len(axis.values)) for axis in axes))


def _style(number: int) -> tuple[str, object, str]:
    return SERIES[number % len(SERIES)], _DASHES[number // len(SERIES)], MARKERS[number % len(MARKERS)]


def _label(axes: Sequence[Axis], indices: Sequence[int], *, names: bool = False) -> str:
    texts = [
        f"{axis.name}={axis.labels[place]}" if names else _value_label(axis, place)
        for axis, place in zip(axes, indices, strict=True)
    ]
    return ", ".join(texts)


def _value_label(axis: Axis, place: int) -> str:
    return _percent(axis.values[place]) if axis.key == "grid.overhead" and axis.is_numeric else axis.labels[place]


def _percent(part: float, _: object = None) -> str:
    return f"{part * 100:.6g}%"


def _legend(figure: Figure, axes: Axes, layout: _Layout) -> None:
    """Draw the legend to the right of the panels."""
    if not layout.lines:
        return
    handles, labels = axes.get_legend_handles_labels()
    title = ", ".join(axis.name for axis in layout.lines)
    figure.legend(handles, labels, title=title, loc="outside right upper", frameon=False, fontsize="small")


def _sample(plan: SweepPlan, summary: pandas.DataFrame, metric: str) -> str:
    """Return a text on how many seeds the means are based on; empty for a single seed."""
    if len(plan.seeds) < 2:
        return ""
    if bool((summary[f"{metric}_low"] == summary[f"{metric}_high"]).all()):
        return f"the same for all {len(plan.seeds)} seeds"
    return f"means of {len(plan.seeds)} seeds, with 95% confidence intervals"
