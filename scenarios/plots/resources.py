"""Plots of the GPUs, cores and memory in use over time, site by site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from gridweave.scenarios.plots.grid import grid_title
from gridweave.scenarios.plots.parts import (
    BLUE,
    GREY,
    SERIES,
    VERMILLION,
    FloatArray,
    TimeAxis,
    count_axis,
    new_figure,
    nice_bins,
    tidy,
)
from gridweave.scenarios.plots.results import over_bins, span, title
from gridweave.scenarios.results.resources import UsedResources, classes_by_gpus
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.results.steps import step_functions
from gridweave.scenarios.workload.table import IntArray

_BINS_AT_MOST = 300
_NAMES = {"gpus": "GPUs", "cores": "Cores", "memory_mb": "Memory [GB]"}
_SCALES = {"memory_mb": 1e-3}
_FIRST = ("gpus", "cores", "memory_mb")
_HIDDEN = 0.18  # opacity of what a site has


@dataclass(frozen=True, eq=False, slots=True)
class _Band:
    """A site's part of a panel: the site's total amount extends from ``floor`` to ``floor + total``."""

    name: str
    colour: str
    floor: float
    total: float
    used: FloatArray


def plot_resources(result: SimulationResult) -> Figure:
    """Draw the GPUs, cores and memory in use over time, and the waiting jobs, averaged over time bins.

    The sites are stacked. A site's pale area is its total amount, and the dark area is the amount that its jobs use.
    """
    begin_ms, until_ms = span(result)
    edges_ms, bin_name = nice_bins(begin_ms, until_ms, _BINS_AT_MOST)
    time = TimeAxis.of(result.workload, begin_ms, until_ms)
    place = time.place(edges_ms)
    used = UsedResources.of(result)
    first = [name for name in _FIRST if name in used.columns]
    shown = [name for name in (*first, *used.columns[len(_FIRST) :]) if used.total[:, used.column(name)].any()]
    figure = new_figure(10, 1.6 + 2.1 * len(shown))
    panels = figure.subplots(len(shown) + 1, 1, sharex=True, height_ratios=[*[3] * len(shown), 2])
    for axes, name in zip(panels[:-1], shown, strict=True):
        _draw_bands(axes, name, _bands(result, used, name, edges_ms), place)
    _draw_waiting(panels[-1], result, edges_ms, place)
    time.show(panels[-1], begin_ms, until_ms)
    figure.suptitle(f"{grid_title(result) if result.site_names else title(result)}; means of {bin_name}")
    return figure


def _bands(result: SimulationResult, used: UsedResources, name: str, edges_ms: IntArray) -> list[_Band]:
    """Return the bands of all sites that have a resource."""
    column, scale = used.column(name), _SCALES.get(name, 1.0)
    names = result.site_names or (result.name,)
    bands, floor = [], 0.0
    for site, total in enumerate((used.total[:, column] * scale).tolist()):
        if not total:
            continue
        rows = used.site == site
        amount = np.rint(used.amount[rows, column]).astype(np.int64)
        start_ms, end_ms = result.start_ms[used.job[rows]], result.end_ms[used.job[rows]]
        mean = np.zeros(len(edges_ms) - 1)
        if len(amount):
            steps = step_functions(start_ms, start_ms, end_ms, amount)
            mean = over_bins(steps.time_ms, steps.busy, edges_ms)[0] * scale
        bands.append(_Band(names[site], SERIES[site % len(SERIES)], floor, total, mean))
        floor += total
    return bands


def _draw_bands(axes: Axes, name: str, bands: Sequence[_Band], place: FloatArray) -> None:
    for band in bands:
        top = band.floor + band.total
        axes.axhspan(band.floor, top, color=band.colour, alpha=_HIDDEN, linewidth=0)
        drawn = np.minimum(band.used, band.total) + band.floor
        share = float(np.average(band.used, weights=np.diff(place))) / band.total
        label = f"{band.name}: {band.total:,.0f}, {share:.0%} in use"
        axes.stairs(drawn, place, baseline=band.floor, fill=True, color=band.colour, linewidth=0, label=label)
        axes.axhline(top, color=GREY, linewidth=0.8)
    axes.set_ylim(0, bands[-1].floor + bands[-1].total)
    axes.set_ylabel(_NAMES.get(name, name))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _finish(axes)
    axes.grid(visible=False)


def _draw_waiting(axes: Axes, result: SimulationResult, edges_ms: IntArray, place: FloatArray) -> None:
    """Draw the numbers of waiting jobs without and with GPUs."""
    submit_ms, start_ms, end_ms, _ = result.schedule()
    classes = classes_by_gpus(result.workload.take(result.ran))
    most = 0.0
    for number, colour in enumerate((BLUE, VERMILLION)):
        rows = classes.of_job == number
        if not rows.any():
            continue
        steps = step_functions(submit_ms[rows], start_ms[rows], end_ms[rows], np.ones(int(rows.sum()), np.int64))
        mean = over_bins(steps.time_ms, steps.waiting, edges_ms)[0]
        axes.stairs(mean, place, color=colour, linewidth=1.3, label=f"jobs {classes.names[number]}")
        most = max(most, float(mean.max()))
    count_axis(axes, "Waiting jobs", most, 4)
    _finish(axes)


def _finish(axes: Axes) -> None:
    tidy(axes)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderpad=0.1, frameon=False, fontsize="small", ncols=4)
