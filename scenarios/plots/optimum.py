"""Plot of how a solver closes in on the best plan."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from gridweave.scenarios.optimum.table import OptimumLine
from gridweave.scenarios.plots.parts import SERIES, legend_below, new_figure, percent_axis, tidy

_MOST_LINES = 12


def plot_gaps(lines: Sequence[OptimumLine]) -> Figure:
    """Draw the proven gap over time, a line for each instant; of many instants the first are drawn."""
    figure = new_figure(8, 4.4)
    axes = figure.subplots()
    for number, line in enumerate([line for line in lines if line.course][:_MOST_LINES]):
        gaps = [min(point.gap_pct, 100.0) for point in line.course]
        label = f"{line.jobs} jobs at {line.at_ms / 1000:,.0f} s"
        seconds = [point.seconds for point in line.course]
        axes.step(seconds, gaps, where="post", color=SERIES[number % len(SERIES)], label=label)
    percent_axis(axes, "Gap")
    axes.set_xlabel("Time [s]")
    tidy(axes)
    if axes.lines:
        legend_below(figure, axes)
    return figure
