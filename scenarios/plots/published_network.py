"""The plots of what the links between sites cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from gridweave.netmodel.tables import CONTENTIONS
from gridweave.scenarios.plots.parts import BLACK, GREY, SERIES, new_figure, tidy
from gridweave.scenarios.published.grid_runs import GridRuns
from gridweave.scenarios.published.network import (
    CUTS,
    FRACTIONS,
    MODES,
    OVERHEADS,
    SENDING,
    SIZES,
    Case,
    NetworkRuns,
    cases_by_fraction,
    cases_by_size,
    contended,
    cut_case,
    overheads_of,
    runs_of,
    weighted_overhead,
)

_MARKERS = ("o", "s", "^", "D", "v", "P")
_DAY_MS = 86_400_000


def plot_network(grid: GridRuns) -> dict[str, Figure]:
    """Draw the study.

    Returns
    -------
    dict from str to matplotlib.figure.Figure
        By name: the gain over sharing, which p it amounts to, where jobs are split, contention, and the cut.
    """
    runs = runs_of(grid)
    return {
        "network-gain": plot_gain(runs),
        "network-overhead": plot_overhead(runs),
        "network-split": plot_split(runs),
        "network-contention": plot_contention(runs),
        "network-cut": plot_cut(runs),
    }


def plot_gain(runs: NetworkRuns) -> Figure:
    """Draw AWRT against sharing over the fraction of communication and over the size of messages."""
    figure = new_figure(11, 8)
    panels: tuple[tuple[str, tuple[float, ...], Callable[[str, str], dict[str, Case]]], ...] = (
        ("Part of the time in communication", FRACTIONS, cases_by_fraction),
        ("Size of messages [byte]", SIZES, cases_by_size),
    )
    for row, mode in zip(figure.subplots(2, 2, squeeze=False), MODES, strict=True):
        for axes, (label, values, cases) in zip(row, panels, strict=True):
            for number, pattern in enumerate(SENDING):
                changes = [runs.change_pct(case) for case in cases(mode, pattern).values()]
                _line(axes, values, changes, number, pattern)
            axes.axhline(0, color=BLACK, linewidth=1, linestyle=(0, (5, 3)), label="sharing")
            axes.set_xscale("log")
            if values is FRACTIONS:
                axes.set_xticks(FRACTIONS, [f"{one:.0%}" for one in FRACTIONS])
                axes.minorticks_off()
            if mode == "multi-site":  # beyond this the grid is overloaded, and queues grow without end
                axes.set_ylim(-25, 75)
            axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
            axes.set_xlabel(label)
            axes.set_ylabel("AWRT against sharing")
            axes.set_title(f"mode {mode}", fontsize="medium", loc="left")
            tidy(axes)
    _legend_below(figure)
    return figure


def plot_overhead(runs: NetworkRuns) -> Figure:
    """Draw the p of all multi-site jobs by pattern, and AWRT under the model beside that of a constant p."""
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    results = {pattern: runs.result(Case("multi-site", pattern)) for pattern in SENDING}
    for number, (pattern, result) in enumerate(results.items()):
        ordered = np.sort(overheads_of(result))
        left.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), color=SERIES[number], where="post")
        _line(right, [weighted_overhead(result)], [runs.awrt_s(result)], number, pattern)
    left.set_xscale("log")
    left.set_xlabel("p = factor − 1")
    left.set_ylabel("Part of the multi-site jobs with at most so much")
    left.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    highest = max(weighted_overhead(result) for result in results.values())
    upto = [p for p in OVERHEADS if p <= 1.3 * highest]
    constant = [runs.awrt_s(runs.constant(p)) for p in upto]
    right.plot(upto, constant, color=GREY, linewidth=1.4, label="constant p", zorder=1)
    _sharing_line(right, runs)
    right.set_xlabel("p, or its mean by area")
    right.set_ylabel("AWRT [s]")
    right.set_ylim(bottom=0)
    right.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for axes in (left, right):
        tidy(axes)
    _legend_below(figure, right)
    return figure


def plot_split(runs: NetworkRuns) -> Figure:
    """Draw AWRT and p with the fewest fragments and with the earliest end, by pattern."""
    figure = new_figure(11, 4.4)
    for axes, mode in zip(figure.subplots(1, 2), MODES, strict=True):
        _bars(
            axes,
            {
                name: [runs.awrt_s(runs.result(Case(mode, pattern, split=split))) for pattern in SENDING]
                for name, split in (("fewest fragments", "fewest"), ("earliest end", "earliest-end"))
            },
        )
        _sharing_line(axes, runs)
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.05 * runs.awrt_s(runs.result(Case("sharing")))))
        axes.set_ylabel("AWRT [s]")
        axes.set_title(f"mode {mode}", fontsize="medium", loc="left")
    _legend_below(figure)
    return figure


def plot_contention(runs: NetworkRuns) -> Figure:
    """Draw AWRT and p without, with static and with dynamic contention, by pattern."""
    figure = new_figure(11, 8)
    for row, mode in zip(figure.subplots(2, 2), MODES, strict=True):
        results = {one: [runs.result(contended(mode, pattern, one)) for pattern in SENDING] for one in CONTENTIONS}
        _bars(row[0], {name: [runs.awrt_s(result) for result in each] for name, each in results.items()})
        _bars(row[1], {name: [weighted_overhead(result) for result in each] for name, each in results.items()})
        row[0].set_ylabel("AWRT [s]")
        row[1].set_ylabel("p, mean by area")
        for axes in row:
            axes.set_title(f"mode {mode}", fontsize="medium", loc="left")
        if mode == "multi-site":  # queues that grow without end beside others
            row[0].set_ylim(bottom=5_000)
            row[0].set_yscale("log")
    _legend_below(figure)
    return figure


def plot_cut(runs: NetworkRuns) -> Figure:
    """Draw the p of multi-site jobs by the day on which they began, for a link that stays, slows and fails."""
    figure = new_figure(11, 2.4 * len(SENDING) + 0.6)
    first_ms = int(runs.result(cut_case(SENDING[0], "none")).workload.submit_ms[0])
    for axes, pattern in zip(figure.subplots(len(SENDING), 1, sharex=True), SENDING, strict=True):
        for number, cut in enumerate(CUTS):
            result = runs.result(cut_case(pattern, cut))
            days = (result.start_ms[result.multi_site] - first_ms) / _DAY_MS
            edges = _edges(runs, first_ms, float(days.max()))
            period = np.digitize(days, edges) - 1
            overheads = overheads_of(result)
            places = range(len(edges) - 1)
            means = [overheads[period == one].mean() if (period == one).any() else np.nan for one in places]
            axes.stairs(means, edges, color=SERIES[number], linewidth=1.6, label={"none": "whole"}.get(cut, cut))
        axes.axvspan(*((one - first_ms) / _DAY_MS for one in runs.cut_ms), color="#EEEEEE", zorder=0)
        axes.set_ylabel("mean p")
        axes.set_yscale("log")
        axes.set_title(pattern, fontsize="medium", loc="left")
        tidy(axes)
    axes.set_xlabel("Start of the job [days since the first submission]")
    _legend_below(figure)
    return figure


def _edges(runs: NetworkRuns, first_ms: int, last_day: float) -> npt.NDArray[np.float64]:
    """Return periods of a third of the cut, of which one begins when the link is cut, in days."""
    begin, end = ((one - first_ms) / _DAY_MS for one in runs.cut_ms)
    third = (end - begin) / 3
    return begin + third * np.arange(-np.ceil(begin / third), np.ceil((last_day - begin) / third) + 1)


def _sharing_line(axes: Axes, runs: NetworkRuns) -> None:
    sharing_s = runs.awrt_s(runs.result(Case("sharing")))
    axes.axhline(sharing_s, color=BLACK, linewidth=1, linestyle=(0, (5, 3)), label="sharing")


def _line(axes: Axes, x: object, y: object, number: int, label: str) -> None:
    axes.plot(x, y, color=SERIES[number], marker=_MARKERS[number], markersize=5, linewidth=1.4, label=label)  # type: ignore[arg-type]


def _bars(axes: Axes, groups: dict[str, list[float]]) -> None:
    """Draw a group of bars for each pattern."""
    wide = 0.8 / len(groups)
    for number, (name, values) in enumerate(groups.items()):
        places = np.arange(len(SENDING)) + (number - (len(groups) - 1) / 2) * wide
        axes.bar(places, values, wide, color=SERIES[number], label=name)
    axes.set_xticks(np.arange(len(SENDING)), [one.replace("-", "-\n", 1) for one in SENDING], fontsize="small")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.set_ylim(bottom=0)
    tidy(axes)


def _legend_below(figure: Figure, axes: Axes | None = None) -> None:
    handles = (axes or figure.axes[0]).get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(handles[1]), frameon=False, fontsize="small")
