"""Plots of simulation results: over time, as distributions, and side by side.

The plots show utilisation and queue length, a self-tuning site's policies (as in Streit, Figure 4.2), waits and
slowdowns, comparisons of several results, and a solver's gap over time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.plots.parts import (
    BLACK,
    BLUE,
    DASHED,
    SERIES,
    VERMILLION,
    FloatArray,
    TimeAxis,
    count_axis,
    legend_below,
    log_time_axis,
    new_figure,
    nice_bins,
    percent_axis,
    tidy,
)
from gridweave.scenarios.results.resources import classes_by_gpus
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.results.steps import Steps, step_functions
from gridweave.scenarios.results.uses import Switches
from gridweave.scenarios.workload.columns import NARROW_UP_TO, classes_by_width
from gridweave.scenarios.workload.table import MS_PER_S, BoolArray, IntArray

if TYPE_CHECKING:
    from gridweave.scenarios.optimum.table import OptimumLine

_STEPS_AT_MOST = 1500  # if there are more changes, values are averaged over bins
_BINS_AT_MOST = 200
_ROWS_AT_ONCE = 1 << 18
_POINTS_AT_MOST = 3000  # per curve of a distribution
_BINS = 60  # in the plot of policies
_MOST_LINES = 12


def plot_utilisation(result: SimulationResult, *, start_ms: int | None = None, end_ms: int | None = None) -> Figure:
    """Draw the numbers of busy nodes and waiting jobs over time, by default for the whole schedule.

    If there are too many changes, draw the mean over each time bin, and behind it the range within the bin: the whole
    range for waiting jobs, the range of the middle 80% of the time for busy nodes.
    """
    begin_ms, until_ms = window(start_ms, end_ms, span(result))
    steps = step_functions(*result.schedule())
    bins = _Bins.of(steps, begin_ms, until_ms)
    time = TimeAxis.of(result.workload, begin_ms, until_ms)
    figure = new_figure(10, 6.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    percent = 100 / result.capacity
    place = time.place(bins.edges_ms)
    mean, _ = _draw_steps(upper, bins, place, (steps.time_ms, steps.busy), BLUE, scale=percent, share=0.8)
    upper.axhline(mean, color=BLACK, linewidth=1, linestyle=DASHED, label=f"mean of the time shown: {mean:.1f}%")
    percent_axis(upper, f"Busy {result.unit} [% of {result.capacity:,}]")
    _, most = _draw_steps(lower, bins, place, (steps.time_ms, steps.waiting), VERMILLION, scale=1.0, share=1.0)
    count_axis(lower, "Waiting jobs", most, 5)
    for axes in (upper, lower):
        tidy(axes)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderpad=0.1, frameon=False, fontsize="small", ncols=3)
    time.show(lower, begin_ms, until_ms)
    figure.suptitle(title(result))
    return figure


def span(result: SimulationResult) -> tuple[int, int]:
    """Return the times of the first submission and the last end, or 0 and one second if no job ran."""
    submit_ms, _, end_ms, _ = result.schedule()
    return (int(submit_ms[0]), int(end_ms.max())) if len(submit_ms) else (0, MS_PER_S)


def title(result: SimulationResult) -> str:
    """Return the title for a plot of one result."""
    return f"{result.workload.name} on {result.nodes:,} nodes: {result.title}"


def window(start_ms: int | None, end_ms: int | None, default: tuple[int, int]) -> tuple[int, int]:
    """Return the window to show, with missing ends taken from ``default``; raise OptionError if it is empty."""
    begin_ms = default[0] if start_ms is None else start_ms
    until_ms = default[1] if end_ms is None else end_ms
    if not begin_ms < until_ms:
        raise OptionError("end_ms", f"{until_ms} is not after start_ms {begin_ms}; the window to draw is empty")
    return begin_ms, until_ms


@dataclass(frozen=True, eq=False, slots=True)
class _Bins:
    """The bins of a window: the intervals between changes, or bins of a round duration if changes are too many."""

    edges_ms: IntArray  # (k + 1,)
    name: str  # name of the round duration; empty if the bins lie between changes

    @classmethod
    def of(cls, steps: Steps, begin_ms: int, until_ms: int) -> _Bins:
        inside = steps.time_ms[slice(*np.searchsorted(steps.time_ms, (begin_ms + 1, until_ms)))]
        if len(inside) <= _STEPS_AT_MOST:
            return cls(np.concatenate(([begin_ms], inside, [until_ms])), "")
        return cls(*nice_bins(begin_ms, until_ms, _BINS_AT_MOST))


def over_bins(
    time_ms: IntArray, values: IntArray, edges_ms: IntArray, share: float = 1.0
) -> tuple[FloatArray, IntArray, IntArray]:
    """Return the exact mean and the range (low, high) of a step function in each time bin.

    Each value holds until the next time; the function is zero before the first time and from the last time on. The
    range covers the middle ``share`` of the time in each bin.
    """
    # Process the bins in blocks, so that temporary arrays stay smaller than the input.
    blocks = np.searchsorted(time_ms, edges_ms[:-1]) // _ROWS_AT_ONCE
    borders = [*np.flatnonzero(np.diff(blocks, prepend=-1)).tolist(), len(edges_ms) - 1]
    parts = [
        _over_few_bins(time_ms, values, edges_ms[first : last + 1], share)
        for first, last in itertools.pairwise(borders)
    ]
    mean, low, high = (np.concatenate(part) for part in zip(*parts, strict=True))
    return mean, low, high


def _over_few_bins(
    time_ms: IntArray, values: IntArray, edges_ms: IntArray, share: float
) -> tuple[FloatArray, IntArray, IntArray]:
    first, last = np.searchsorted(time_ms, (edges_ms[0] + 1, edges_ms[-1]))
    begins = np.concatenate((time_ms[first:last], edges_ms[:-1]))
    begins.sort()  # the interval between two equal times has length zero
    durations = np.diff(begins, append=edges_ms[-1])
    in_range = slice(max(first - 1, 0), last)
    values_held = np.concatenate(([0], values[in_range]))[np.searchsorted(time_ms[in_range], begins, side="right")]
    bins = np.searchsorted(edges_ms, begins, side="right") - 1
    mean = np.bincount(bins, values_held * durations.astype(np.float64)) / np.diff(edges_ms)
    order = np.argsort(bins * (np.max(values_held) + 1) + values_held)
    passed = np.cumsum(durations[order]) + edges_ms[0]  # cumulative time, with each bin's time sorted by value
    margin = np.diff(edges_ms) * ((1 - share) / 2)
    low = values_held[order[np.searchsorted(passed, edges_ms[:-1] + margin, side="right")]]
    high = values_held[order[np.searchsorted(passed, edges_ms[1:] - margin, side="left")]]
    return mean, low, high


def _draw_steps(
    axes: Axes,
    bins: _Bins,
    place: FloatArray,
    course: tuple[IntArray, IntArray],
    colour: str,
    *,
    scale: float,
    share: float,
) -> tuple[float, float]:
    """Draw a step function, with ranges if it is binned; return the mean and the highest value drawn."""
    mean, low, high = (values * scale for values in over_bins(*course, bins.edges_ms, share))
    if bins.name:
        label = f"range within {bins.name}" if share == 1 else f"{share:.0%} of the time within {bins.name}"
        axes.stairs(high, place, baseline=low, fill=True, color=colour, alpha=0.25, linewidth=0, label=label)
        axes.stairs(mean, place, color=colour, linewidth=1.4, label=f"mean of {bins.name}")
    else:
        axes.stairs(mean, place, fill=True, color=colour, alpha=0.35, linewidth=0)
        axes.stairs(mean, place, color=colour, linewidth=1.0, label="at every instant")
    return float(np.average(mean, weights=np.diff(bins.edges_ms))), float(high.max())


def plot_waits(result: SimulationResult) -> Figure:
    """Draw the distributions of waits and slowdowns, for all jobs and separately for narrow and wide jobs.

    At sites that count resources, the jobs are divided into those without and those with GPUs instead.

    Jobs that did not wait are outside the logarithmic axis: each curve starts at the share of these jobs, which the
    legend shows.
    """
    submit_ms, start_ms, end_ms, width = result.schedule()
    wait_s = (start_ms - submit_ms) / MS_PER_S
    slowdown = np.maximum((end_ms - submit_ms) / MS_PER_S, 10) / np.maximum((end_ms - start_ms) / MS_PER_S, 10)
    classes: dict[str, BoolArray] = {"all": np.ones(len(width), np.bool_)}
    if result.site_kinds:
        by_gpus = classes_by_gpus(result.workload.take(result.ran))
        classes |= {name: by_gpus.of_job == number for number, name in enumerate(by_gpus.names)}
    else:
        wide = classes_by_width(width).of_job.astype(np.bool_)
        classes |= {f"up to {NARROW_UP_TO} nodes": ~wide, f"wider than {NARROW_UP_TO} nodes": wide}
    if not all(rows.any() for rows in classes.values()):
        classes = dict([*classes.items()][:1])
    figure = new_figure(10, 5)
    left, right = figure.subplots(1, 2, sharey=True)
    for (name, rows), colour in zip(classes.items(), (BLACK, BLUE, VERMILLION), strict=False):
        _draw_shares(left, wait_s[rows], 0.0, colour, _waited(name, wait_s[rows]))
        _draw_shares(right, slowdown[rows], 1.0, colour, name)
    log_time_axis(left, *_limits(wait_s))
    left.set_xlabel("Wait")
    right.set_xscale("log")
    right.set_xlim(1, max(10.0, float(slowdown.max(initial=1)) * 1.5))
    right.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    right.set_xlabel("Slowdown, bounded by 10 s")
    _finish_shares((left, right))
    legend_below(figure, left)
    figure.suptitle(title(result))
    return figure


def _waited(name: str, wait_s: FloatArray) -> str:
    """Return a curve's label: the number of jobs, and the share of jobs that did not wait."""
    if not len(wait_s):
        return f"{name}: none"
    jobs = "1 job" if len(wait_s) == 1 else f"{len(wait_s):,} jobs"
    return f"{name}: {jobs}, {np.mean(wait_s == 0):.1%} did not wait"


def _limits(wait_s: FloatArray) -> tuple[float, float]:
    """Return the axis limits for these waits, in seconds."""
    waits = wait_s[wait_s > 0]
    if not len(waits):
        return 1.0, 60.0
    low = 1.0 if waits.min() >= 1 else 0.001
    return low, max(float(waits.max()) * 1.5, low * 60)


def _draw_shares(axes: Axes, values: FloatArray, floor: float, colour: str, label: str, dash: str = "-") -> None:
    """Draw the share of jobs up to each value; jobs at the floor are counted at the left end."""
    ordered = np.sort(values)
    rows = np.arange(len(ordered))
    if len(ordered) > _POINTS_AT_MOST:
        rows = np.unique(np.linspace(0, len(ordered) - 1, _POINTS_AT_MOST).round().astype(np.int64))
    at_floor = int(np.count_nonzero(ordered <= floor))
    rows = rows[rows >= at_floor]
    # A tiny and a huge value extend the curve to both ends of the axis.
    x_values = np.concatenate(([1e-9], ordered[rows], [1e30]))
    shares = np.concatenate(([at_floor], rows + 1, [len(ordered)])) * (100 / len(ordered) if len(ordered) else np.nan)
    axes.plot(x_values, shares, drawstyle="steps-post", color=colour, linestyle=dash, linewidth=1.6, label=label)


def _finish_shares(panels: Sequence[Axes]) -> None:
    for axes in panels:
        percent_axis(axes, "Jobs up to this value [%]" if axes is panels[0] else "")
        tidy(axes)


def plot_comparison(results: Sequence[SimulationResult]) -> Figure:
    """Draw one or more results side by side: SLDwA, AWT, UTIL, and the distributions of waits."""
    if not results:
        raise InputError("there is no result to draw; give at least one")
    colours = [SERIES[row % len(SERIES)] for row in range(len(results))]
    figure = new_figure(10, 5.4 + 0.4 * len(results))
    heights = (1.0 + 0.36 * len(results), 4.4 + 0.04 * len(results))
    upper, lower = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
    metrics = [result.metrics() for result in results]
    panels = upper.subplots(1, 3, sharey=True)
    _draw_bars(panels[0], "SLDwA", [values.sldwa for values in metrics], "{:,.3f}", colours)
    _draw_bars(panels[1], "AWT [s]", [values.awt_ms / MS_PER_S for values in metrics], "{:,.0f}", colours)
    _draw_bars(panels[2], "UTIL [%]", [values.util * 100 for values in metrics], "{:.2f}", colours)
    panels[0].set_yticks(range(len(results)), [result.label for result in results])
    panels[0].invert_yaxis()
    _draw_waits(lower.subplots(), results, colours)
    lower.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    setups = dict.fromkeys(f"{result.workload.name} on {result.nodes:,} nodes" for result in results)
    figure.suptitle(", ".join(setups))
    return figure


def _draw_waits(axes: Axes, results: Sequence[SimulationResult], colours: Sequence[str]) -> None:
    """Draw the distribution of waits for each result."""
    waits = [(start_ms - submit_ms) / MS_PER_S for submit_ms, start_ms, *_ in (result.schedule() for result in results)]
    for row, (result, wait_s) in enumerate(zip(results, waits, strict=True)):
        dash = ("-", "--", ":", "-.")[row // len(SERIES) % 4]
        _draw_shares(axes, wait_s, 0.0, colours[row], _waited(result.label, wait_s), dash)
    log_time_axis(axes, *_limits(np.concatenate(waits)))
    axes.set_xlabel("Wait")
    _finish_shares((axes,))


def _draw_bars(axes: Axes, name: str, values: Sequence[float], form: str, colours: Sequence[str]) -> None:
    """Draw one metric as bars that start at zero, with the value at the end of each bar."""
    lengths = [0.0 if np.isnan(value) else value for value in values]
    bars = axes.barh(range(len(values)), lengths, color=colours, height=0.7)
    axes.bar_label(
        bars, ["–" if np.isnan(value) else form.format(value) for value in values], padding=3, fontsize="small"
    )
    axes.set_xlim(0, max(lengths) * 1.3 or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.set_title(name, fontsize="medium", loc="left")
    tidy(axes)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def plot_policies(result: SimulationResult) -> Figure:
    """Draw, over the run, the share of time for which each policy of a self-tuning site was in force.

    Raise OptionError if the result is not from a self-tuning site, or no job ran.
    """
    ran = result.ran
    if not isinstance(result.own, Switches) or not ran.any():
        raise OptionError("kind", "'policies' needs a run of dynP in the compiled loop in which jobs ran")
    begin_ms, until_ms = int(result.workload.submit_ms[ran].min()), int(result.end_ms.max())
    edges_ms = np.linspace(begin_ms, until_ms, _BINS + 1)
    time = TimeAxis.of(result.workload, begin_ms, until_ms)
    figure = new_figure(10, 4.4)
    axes = figure.subplots()
    parts = shares(result.own, edges_ms)
    place = time.place(edges_ms)
    below = np.zeros(_BINS)
    for number, policy in enumerate(result.own.policies):
        above = below + 100 * parts[number]
        axes.stairs(above, place, baseline=below, fill=True, color=SERIES[number % len(SERIES)], label=policy)
        below = above
    percent_axis(axes, "Time in force")
    time.show(axes, begin_ms, until_ms)
    tidy(axes)
    legend_below(figure, axes)
    return figure


def shares(switches: Switches, edges_ms: FloatArray) -> FloatArray:
    """Return the fraction of each bin for which each policy was in force: float64, shape (policies, bins)."""
    bounds_ms = np.concatenate([[edges_ms[0]], switches.switched_ms, [edges_ms[-1]]]).astype(np.float64)
    in_force = np.concatenate([[0], switches.switched_to])
    shares_of_bins = np.zeros((len(switches.policies), len(edges_ms) - 1))
    for number in range(len(switches.policies)):
        lasted = np.where(in_force == number, np.maximum(np.diff(bounds_ms), 0.0), 0.0)
        until = np.interp(edges_ms, bounds_ms, np.concatenate([[0.0], np.cumsum(lasted)]))
        shares_of_bins[number] = np.diff(until) / np.diff(edges_ms)
    return shares_of_bins


def plot_gaps(lines: Sequence[OptimumLine]) -> Figure:
    """Draw the proven gap over the solver's time, with one line for each of the first instants."""
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
