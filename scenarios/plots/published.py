"""The figures of a reproduction, drawn like those of the papers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter

from gridweave.scenarios.plots.parts import BLACK, GREY, SERIES, new_figure, tidy
from gridweave.scenarios.published.streit import monthly_sldwa
from gridweave.scenarios.published.streit_data import POLICIES, TABLES_A, TRACES
from gridweave.scenarios.published.thesis_runs import ThesisRuns
from gridweave.scenarios.published.zhang import FIGURES, QUANTITIES, Curves, Panel, curves_of, panels_of, values_of
from gridweave.scenarios.published.zhang_runs import ZhangRuns

_MARKERS = ("o", "s", "^", "D", "v", "P")


def plot_figure(figure: str, runs: ZhangRuns) -> dict[str, Figure]:
    """Draw a figure of Zhang et al., once for each reading of backfilling.

    Parameters
    ----------
    figure : str
        A key of `gridweave.scenarios.published.zhang.FIGURES`.

    Returns
    -------
    dict from str to matplotlib.figure.Figure
        By name, such as "zhang-5-easy".
    """
    title, _ = FIGURES[figure]
    figures = {}
    for reading, curves in curves_of(figure, runs).items():
        panels = panels_of(figure, reading)
        drawn = new_figure(10, 4.2 * (len(panels) // 2) + 0.5)
        for axes, panel in zip(drawn.subplots(len(panels) // 2, 2, squeeze=False).flat, panels, strict=True):
            _draw_panel(axes, panel, curves)
        drawn.suptitle(f"{title}: {reading}", fontsize="medium")
        figures["-".join([figure, *re.findall("[a-z0-9]+", reading.lower())])] = drawn
    return figures


def _draw_panel(axes: Axes, panel: Panel, curves: Curves) -> None:
    for number, line in enumerate(panel.lines):
        curve = curves[line.setting]
        axes.plot(
            curve.rho,
            values_of(line, panel.quantity, curve),
            color=SERIES[number],
            marker=_MARKERS[number],
            markersize=4.5,
            linewidth=1.4,
            label=line.label,
        )
    if panel.quantity == "loss":
        ends = np.array([0.5, 1.0])
        axes.plot(ends, 1 - ends, color=BLACK, linewidth=1, linestyle=(0, (5, 3)), label="κ = 1 − ρ")
    axes.set_xlim(0.5, 1.0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.set_xlabel("Utilisation ρ")
    axes.set_ylabel(QUANTITIES[panel.quantity][0])
    axes.set_title(panel.title, fontsize="medium", loc="left")
    axes.legend(frameon=False, fontsize="small", loc="upper left" if panel.quantity != "loss" else "upper right")
    tidy(axes)


def plot_months(runs: ThesisRuns) -> dict[str, Figure]:
    """Draw the monthly SLDwA of Tables A.1 to A.4, published and ours, for the traces at hand.

    Returns
    -------
    dict from str to matplotlib.figure.Figure
        "streit-A"; empty if there is no trace.
    """
    keys = runs.present(TRACES)
    if not keys:
        return {}
    figure = new_figure(11, 2.9 * len(keys) + 0.6)
    for axes, key in zip(figure.subplots(len(keys), 1, squeeze=False).flat, keys, strict=True):
        _draw_months(axes, key, monthly_sldwa(runs, key))
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2 * len(POLICIES), frameon=False, fontsize="small")
    figure.suptitle("SLDwA by month of submission (Streit, Tables A.1 to A.4)", fontsize="medium")
    return {"streit-A": figure}


def _draw_months(axes: Axes, key: str, ours: Mapping[str, Sequence[float]]) -> None:
    """Draw the published values as lines and ours as marks upon them."""
    months = [line.month for line in TABLES_A[key]]
    places = np.arange(len(months))
    for number, policy in enumerate(POLICIES):
        published = [line.sldwa[number] for line in TABLES_A[key]]
        own = [ours[month][number] if month in ours else np.nan for month in months]
        colour = SERIES[number]
        axes.plot(places, published, color=colour, linewidth=1.4, label=f"{policy}, published")
        axes.plot(
            places,
            own,
            color=colour,
            linestyle="none",
            marker=_MARKERS[number],
            markersize=5,
            markerfacecolor="none",
            label=f"{policy}, ours",
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(places, months, rotation=45, ha="right", fontsize="small")
    axes.set_ylabel("SLDwA")
    axes.set_title(key, fontsize="medium", loc="left", color=GREY)
    tidy(axes)
