"""Plots of a grid: the utilisation of its sites over time, and the schedule of each site."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from gridweave.scenarios.plots.parts import (
    BLACK,
    BLUE,
    VERMILLION,
    FloatArray,
    TimeAxis,
    count_axis,
    new_figure,
    nice_bins,
    percent_axis,
    tidy,
)
from gridweave.scenarios.plots.results import over_bins, span
from gridweave.scenarios.plots.schedule import HEIGHT_IN, WIDTH_IN, Boxes, busiest_window, draw_queue, place_jobs
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.results.steps import step_functions
from gridweave.scenarios.workload.table import IntArray

_BINS_AT_MOST = 240
_NAMED_AT_MOST = 40  # site names that fit legibly on the axis
_LOCAL = "#C9D7E6"  # single-site jobs: pale, so that multi-site jobs stand out
# Paul Tol's bright scheme without its blue and grey.
_SPLIT = ("#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#EE7733", "#009988")
_BORDER = "#5F7286"


def _busy_pct(run: SimulationResult, edges_ms: IntArray) -> FloatArray:
    """Return each site's percentage of busy nodes, averaged over each time bin."""
    rows = np.zeros((len(run.site_names), len(edges_ms) - 1))
    for site in range(len(rows)):
        site_run = run.site_result(site)
        if len(site_run.workload):
            steps = step_functions(*site_run.schedule())
            rows[site] = over_bins(steps.time_ms, steps.busy, edges_ms)[0] * (100 / site_run.capacity)
    return rows


def plot_utilisation(run: SimulationResult) -> Figure:
    """Draw the busy nodes of each site and of the grid, and the number of waiting jobs, averaged over time bins."""
    begin_ms, until_ms = span(run)
    edges_ms, bin_name = nice_bins(begin_ms, until_ms, _BINS_AT_MOST)
    time = TimeAxis.of(run.workload, begin_ms, until_ms)
    place = time.place(edges_ms)
    sites = len(run.site_names)
    figure = new_figure(10, 5.2 + 0.22 * min(sites, 24))
    upper, middle, lower = figure.subplots(3, 1, sharex=True, height_ratios=(1.0 + 0.22 * min(sites, 24), 1.3, 1.3))
    rows = _busy_pct(run, edges_ms)
    mesh = upper.pcolormesh(place, np.arange(sites + 1) - 0.5, rows, cmap="cividis", vmin=0, vmax=100, rasterized=True)
    figure.colorbar(mesh, ax=upper, label=f"Busy {run.unit}", format=PercentFormatter(decimals=0), pad=0.01)
    _name_sites(upper, run, np.arange(sites, dtype=np.float64))
    upper.invert_yaxis()
    steps = step_functions(*run.schedule())
    _draw_mean(middle, steps.time_ms, steps.busy, edges_ms, place, BLUE, scale=100 / run.capacity)
    percent_axis(middle, f"Busy {run.unit},\nwhole grid")
    most = _draw_mean(lower, steps.time_ms, steps.waiting, edges_ms, place, VERMILLION, scale=1.0)
    count_axis(lower, "Waiting jobs", most, 4)
    time.show(lower, begin_ms, until_ms)
    upper.set_title(f"means of {bin_name}", fontsize="small", loc="left")
    figure.suptitle(grid_title(run))
    return figure


def plot_schedule(run: SimulationResult) -> Figure:
    """Draw the busiest window: jobs as rectangles over time and each site's nodes, with multi-site jobs in colour.

    All fragments of a job have the same colour; different jobs may share a colour. Node numbers come from replaying
    each site's schedule, as in `gridweave.scenarios.plots.schedule`.
    """
    steps = step_functions(*run.schedule())
    begin_ms, until_ms = busiest_window(run, steps)
    time = TimeAxis.of(run.workload, begin_ms, until_ms)
    figure = new_figure(WIDTH_IN, HEIGHT_IN)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(7, 1))
    floors = np.concatenate(([0], np.cumsum(run.site_nodes)))
    several = _draw_jobs(upper, run, floors, time, begin_ms, until_ms)
    for floor in floors[1:-1]:
        upper.axhline(float(floor), color=BLACK, linewidth=1.0)
    upper.set_ylim(float(floors[-1]), 0)
    _name_sites(upper, run, (floors[:-1] + floors[1:]) / 2)
    shown = {"on one site": _LOCAL}
    if several:
        shown[f"multi-site: one colour for all fragments of a job ({several:,} shown)"] = _SPLIT[0]
    handles = [Patch(color=colour, label=label) for label, colour in shown.items()]
    upper.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize="small", ncols=2)
    draw_queue(lower, steps, time, begin_ms, until_ms)
    figure.suptitle(grid_title(run))
    return figure


def grid_title(run: SimulationResult) -> str:
    """Return the title of a plot of several sites."""
    nodes, sites = run.nodes, len(run.site_names)
    where = f"{nodes:,} nodes at {sites:,} sites" if sites > 1 else f"{nodes:,} nodes at 1 site"
    return f"{run.name}: {run.label}, {where}"


def _name_sites(axes: Axes, run: SimulationResult, heights: FloatArray) -> None:
    """Label the sites at the left, leaving out labels that would overlap the label above."""
    min_distance = abs(float(np.diff(axes.get_ylim())[0])) / _NAMED_AT_MOST
    named: list[int] = []
    for site, height in enumerate(heights):
        if not named or height - heights[named[-1]] >= min_distance:
            named.append(site)
    names = [f"{run.site_names[site]} ({run.site_nodes[site]:,})" for site in named]
    axes.set_yticks(heights[named], names, fontsize="small")
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("Site (nodes)")


def _draw_mean(
    axes: Axes,
    time_ms: IntArray,
    values: IntArray,
    edges_ms: IntArray,
    place: FloatArray,
    colour: str,
    *,
    scale: float,
) -> float:
    """Draw a step function's mean in each bin; return the highest mean."""
    mean = over_bins(time_ms, values, edges_ms)[0] * scale if len(time_ms) else np.zeros(len(edges_ms) - 1)
    axes.stairs(mean, place, fill=True, color=colour, alpha=0.3, linewidth=0)
    axes.stairs(mean, place, color=colour, linewidth=1.2)
    tidy(axes)
    return float(mean.max())


def _draw_jobs(
    axes: Axes, run: SimulationResult, floors: IntArray, time: TimeAxis, begin_ms: int, until_ms: int
) -> int:
    """Draw each site's jobs in the window; return the number of multi-site jobs."""
    boxes = Boxes(axes, time, (begin_ms, until_ms), HEIGHT_IN * 72 * 0.75 / float(floors[-1]), _BORDER)
    colours = _colours(run, begin_ms, until_ms)
    for site, floor in enumerate(floors[:-1].tolist()):
        site_run = run.site_result(site)
        if not len(site_run.workload):
            continue
        for row, intervals in place_jobs(site_run, step_functions(*site_run.schedule()), begin_ms, until_ms):
            job_id, span_ms = (
                int(site_run.workload.job_id[row]),
                (int(site_run.start_ms[row]), int(site_run.end_ms[row])),
            )
            boxes.add(job_id, span_ms, intervals, colours.get(job_id, _LOCAL), floor)
    boxes.draw(0.4)
    axes.spines[["top", "right"]].set_visible(False)
    return len(colours)


def _colours(run: SimulationResult, begin_ms: int, until_ms: int) -> dict[int, str]:
    """Choose a colour for each multi-site job in the window: the colour that the fewest overlapping jobs use."""
    rows = np.flatnonzero(run.multi_site & (run.start_ms < until_ms) & (run.end_ms > begin_ms))
    rows = rows[np.argsort(run.start_ms[rows], kind="stable")]
    chosen = np.zeros(len(rows), np.int64)
    for number, row in enumerate(rows):
        overlapping = chosen[:number][run.end_ms[rows[:number]] >= run.start_ms[row]]
        # Break ties by rotation, so that all colours are used.
        uses = np.roll(np.bincount(overlapping, minlength=len(_SPLIT)), -number)
        chosen[number] = (int(np.argmin(uses)) + number) % len(_SPLIT)
    ids = run.workload.job_id[rows].tolist()
    return {job_id: _SPLIT[colour] for job_id, colour in zip(ids, chosen.tolist(), strict=True)}
