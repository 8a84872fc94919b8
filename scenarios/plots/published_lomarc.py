"""Figures 6 to 9 of the evaluation of LOMARC, drawn like those of the paper: groups of bars."""

from __future__ import annotations

import re

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from gridweave.scenarios.plots.parts import BLACK, SERIES, new_figure, tidy
from gridweave.scenarios.published.lomarc import QUANTITIES, SHOWN, TITLES, View, settings_of
from gridweave.scenarios.published.lomarc_runs import READINGS, WORKLOADS, LomarcRuns
from gridweave.scenarios.sweep.tables import mean_interval
from gridweave.site.disciplines.sharing.policy import VARIANTS


def plot_lomarc(entry: str, runs: LomarcRuns) -> dict[str, Figure]:
    """Draw a figure, once for each reading of the slowdown formula.

    Parameters
    ----------
    entry : str
        A key of `gridweave.scenarios.published.lomarc.SHOWN`.

    Returns
    -------
    dict from str to matplotlib.figure.Figure
        By name, such as "lomarc-6-as-printed".
    """
    points = runs.points(settings_of(entry))
    figures = {}
    for reading in READINGS:
        view = View(points, reading)
        panels = [(quantity, mix) for mix in _mixes(entry) for quantity in SHOWN[entry]]
        drawn = new_figure(5.6 * len(SHOWN[entry]), 4.0 * len(_mixes(entry)) + 0.5)
        grid = drawn.subplots(len(_mixes(entry)), len(SHOWN[entry]), squeeze=False)
        for axes, (quantity, mix) in zip(grid.flat, panels, strict=True):
            _draw(axes, view, quantity, mix, WORKLOADS if entry != "lomarc-9" else ("W1",))
        handles = drawn.axes[0].get_legend_handles_labels()
        drawn.legend(*handles, loc="outside lower center", ncols=len(VARIANTS), frameon=False, fontsize="small")
        drawn.suptitle(f"{TITLES[entry][0]}: {reading}", fontsize="medium")
        figures["-".join([entry, *re.findall("[a-z0-9]+", reading.lower())])] = drawn
    return figures


def _mixes(entry: str) -> tuple[str, ...]:
    return ("M2", "M3") if entry == "lomarc-9" else ("M1",)


def _draw(axes: Axes, view: View, quantity: str, mix: str, workloads: tuple[str, ...]) -> None:
    """Draw a group of bars for each workload, with the confidence intervals as whiskers."""
    wide = 0.8 / len(VARIANTS)
    for number, variant in enumerate(VARIANTS):
        ends = np.array([mean_interval(view.values(quantity, variant, one, mix)) for one in workloads])
        places = np.arange(len(workloads)) + (number - (len(VARIANTS) - 1) / 2) * wide
        axes.bar(places, ends[:, 0], wide, color=SERIES[number], label=variant)
        axes.errorbar(places, ends[:, 0], ends[:, 2] - ends[:, 0], fmt="none", ecolor=BLACK, elinewidth=0.8, capsize=2)
    axes.set_xticks(np.arange(len(workloads)), [f"{one} {mix}" for one in workloads])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.8g}"))
    axes.set_ylabel(QUANTITIES[quantity][0])
    tidy(axes)
