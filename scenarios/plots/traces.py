"""Draw a workload as one figure with a panel per distribution, after Figures 3.4 to 3.6 of Streit's thesis."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator, NullLocator, PercentFormatter

from gridweave.scenarios.plots.parts import BLUE, GREY, ORANGE, log_time_axis, new_figure, tidy
from gridweave.scenarios.traces.info import TraceInfo, describe
from gridweave.scenarios.traces.text import FloatArray
from gridweave.scenarios.workload.table import MS_PER_S, IntArray, Workload

_S_PER_DAY = 86400


def plot_trace(workload: Workload) -> Figure:
    """Draw a workload's distributions: widths, estimates and run times, over-estimation, and arrivals."""
    info = describe(workload)
    figure = new_figure(13, 8)
    axes = figure.subplots(2, 3)
    figure.suptitle(workload.name, fontsize=14, fontweight="bold")
    _plot_widths(axes[0, 0], workload)
    _plot_durations(axes[0, 1], workload)
    _plot_over_estimation(axes[0, 2], workload)
    _plot_arrivals(axes[1, 0], workload)
    _plot_interarrivals(axes[1, 1], workload)
    _write_figures(axes[1, 2], info)
    return figure


def _plot_widths(axes: Axes, workload: Workload) -> None:
    """Draw the shares of jobs and of area by width class; each class ends at a power of two."""
    label = np.ceil(np.log2(workload.width)).astype(np.int64)
    classes = np.arange(int(label.max()) + 1)
    area = workload.width.astype(np.float64) * workload.run_ms
    jobs, areas = (np.bincount(label, weights, len(classes)) for weights in (None, area))
    jobs, areas = jobs / jobs.sum(), areas / areas.sum()
    axes.bar(classes - 0.2, jobs, 0.4, color=BLUE, label="jobs")
    axes.bar(classes + 0.2, areas, 0.4, color=ORANGE, label="area (width × run time)")
    axes.plot(classes, np.cumsum(jobs), "o-", color=GREY, markersize=3, linewidth=1, label="jobs, cumulative")
    names = [_class_name(int(power)) for power in classes]
    axes.set_xticks(classes, names, fontsize=8)
    axes.set_xlim(-0.7, max(len(names), 6) - 0.3)
    if len(names) > 6:
        axes.tick_params(axis="x", labelrotation=40)
    _finish(axes, "Width", "nodes", "share")
    axes.legend(fontsize=8, loc="center right")


def _class_name(power: int) -> str:
    low, high = 2 ** (power - 1) + 1, 2**power
    return str(high) if power < 2 else f"{low}–{high}"


def _plot_durations(axes: Axes, workload: Workload) -> None:
    """Draw the cumulative distributions of estimates and run times (Figures 3.5 and 3.6)."""
    for values_ms, color, name in (
        (workload.run_ms, BLUE, "run time"),
        (workload.estimate_ms, ORANGE, "estimate"),
    ):
        times, share = _cumulative(values_ms / MS_PER_S)
        axes.step(np.append(times[0], times), np.append(0.0, share), where="post", color=color, label=name)
    _time_axis(axes, workload.run_ms, workload.estimate_ms)
    _finish(axes, "Run time and estimate", "at most", "share of jobs")
    axes.legend(fontsize=8, loc="upper left")


def _plot_over_estimation(axes: Axes, workload: Workload) -> None:
    """Draw the cumulative distribution of the jobs' estimates divided by their run times."""
    ratio, share = _cumulative(workload.estimate_ms / workload.run_ms)
    axes.step(np.append(1.0, ratio), np.append(0.0, share), where="post", color=BLUE)
    axes.set_xscale("log")
    axes.set_xlim(0.9, max(float(ratio[-1]) * 1.2, 10.0))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value < 1e6 else f"{value:.0e}"))
    _finish(axes, "Over-estimation", "estimate ÷ run time at most", "share of jobs")


def _plot_arrivals(axes: Axes, workload: Workload) -> None:
    """Draw the share of jobs submitted up to each time (Figure 3.4) and, for comparison, a constant rate."""
    since_s = (workload.submit_ms - workload.submit_ms[0]) / MS_PER_S
    unit, name = (_S_PER_DAY, "days") if since_s[-1] >= 2 * _S_PER_DAY else (3600, "hours")
    times, share = _cumulative(since_s / unit)
    axes.step(times, share, where="post", color=BLUE, label="submitted")
    axes.plot([0, times[-1]], [0, 1], "--", color=GREY, linewidth=1, label="constant rate")
    _finish(axes, "Arrival process", f"{name} since the first submission", "share of jobs")
    axes.legend(fontsize=8, loc="upper left")


def _plot_interarrivals(axes: Axes, workload: Workload) -> None:
    """Draw the cumulative distribution of the times between submissions; the curve starts at the share of zeros."""
    gaps_ms = np.diff(workload.submit_ms)
    positive = gaps_ms[gaps_ms > 0]
    if len(positive):
        zero = 1.0 - len(positive) / len(gaps_ms)
        times, share = _cumulative(positive / MS_PER_S)
        share = zero + share * (1.0 - zero)
        axes.step(np.append(times[0], times), np.append(zero, share), where="post", color=BLUE)
        _time_axis(axes, positive)
        _finish(axes, "Interarrival time", f"at most ({zero:.1%} are zero)", "share of gaps")
    else:
        _finish(axes, "Interarrival time", "all are zero", "share of gaps")
        axes.xaxis.set_major_locator(NullLocator())


def _write_figures(axes: Axes, info: TraceInfo) -> None:
    """Write the workload's main statistics as text."""
    axes.set_axis_off()
    spreads = [(name, " / ".join(values)) for name, *values in info.spread_rows()]
    rows = [*info.figure_rows(), ("", "min / avg / max"), *spreads]
    for place, (name, value) in enumerate(rows):
        height = 1.0 - (place + 0.5) / len(rows)
        axes.text(0.0, height, name, fontsize=9, color="#50555c", va="center", transform=axes.transAxes)
        axes.text(1.0, height, value, fontsize=9, va="center", ha="right", transform=axes.transAxes)


def _cumulative(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the distinct values in ascending order, and the share of values up to each of them."""
    distinct, counts = np.unique(values, return_counts=True)
    return distinct, np.cumsum(counts) / len(values)


def _time_axis(axes: Axes, *times_ms: IntArray) -> None:
    """Make the x-axis logarithmic over these times, with ticks at round durations."""
    low = min(float(times.min()) for times in times_ms) / MS_PER_S
    high = max(float(times.max()) for times in times_ms) / MS_PER_S
    log_time_axis(axes, low / 1.3, high * 1.3)
    axes.tick_params(axis="x", labelsize=8)


def _finish(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    """Set the panel's title and labels, and scale its y-axis from 0 to 100%."""
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_locator(MultipleLocator(0.2))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    tidy(axes)
