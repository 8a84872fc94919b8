"""The figures of Streit's chapters 4 and 5: what is switched to, and SLDwA, utilisation and use of policies by load."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from gridweave.scenarios.plots.parts import (
    DASHED,
    MARKERS,
    SERIES,
    draw_groups,
    legend_below,
    new_figure,
    percent_axis,
    tidy,
)
from gridweave.scenarios.published import streit_dynp
from gridweave.scenarios.published.report import Row
from gridweave.scenarios.published.streit_dynp import TuningRuns
from gridweave.scenarios.published.streit_load import BOUNDED, USED, Drawn, Figures, LoadRuns, Way, drawn_of, factors_of


def draw_switches(table: str, title: str, runs: TuningRuns) -> dict[str, Figure]:
    """Draw Table 5.3 (a panel for each decider) or 5.4 (one for each column) as bars: printed, and both readings."""
    (section,), _ = streit_dynp.TABLES[table](runs)
    label = 0 if table == "streit-5.3" else -1
    panels: dict[str, list[Row]] = {}
    for row in section.rows:
        if all(value.ours is not None for value in row.values):
            panels.setdefault(row.labels[label], []).append(row)
    if not panels:
        return {}
    columns = min(len(panels), 3)
    figure = new_figure(11, 3.4 * (len(panels) // columns) + 0.6)
    places = figure.subplots(len(panels) // columns, columns, squeeze=False).flat
    for axes, (name, rows) in zip(places, panels.items(), strict=True):
        bars = {"printed": [row.values[0].published or 0.0 for row in rows]}
        bars |= {one: [row.values[place].ours or 0.0 for row in rows] for place, one in enumerate(section.columns)}
        names = [_place(dict(zip(section.headings, row.labels, strict=True)), name) for row in rows]
        draw_groups(axes, {series: [(one, one, one) for one in each] for series, each in bars.items()}, names)
        axes.tick_params(axis="x", labelsize="x-small")
        axes.set_ylabel("%")
        axes.set_title(name, fontsize="medium", loc="left")
    legend_below(figure)
    figure.suptitle(section.title, fontsize="medium")
    return {table: figure}


def _place(labels: dict[str, str], panel: str) -> str:
    """Return what stands below the bars of a row: what the panel does not say already."""
    slack = labels.pop("slackness", "0")
    parts = [part for part in labels.values() if part != panel]
    return "\n".join([*parts, f"slackness {slack}%"] if slack != "0" else parts)


def draw_load(table: str, title: str, runs: LoadRuns) -> dict[str, Figure]:
    """Draw the figures of a table of section 5.2, a panel for each set at hand; without any set there are none."""
    if not runs.at_hand("streit-A.13"):
        return {}
    if table == "streit-4.2":
        return {table: _draw_use(title, runs)}
    figures = {}
    for reading, drawn in drawn_of(table).items():
        slug = f"{table}-{reading}" if reading else table
        about = f"{title} ({drawn.source}): {reading or 'planning'}"
        figures[f"{slug}-sldwa"] = _draw_lines(about, drawn, runs, "", "SLDwA", lambda one: one.sldwa)
        figures[f"{slug}-util"] = _draw_lines(about, drawn, runs, " util", "Utilisation [%]", lambda one: one.util_pct)
    return figures


def _draw_use(title: str, runs: LoadRuns) -> Figure:
    """Draw for which part of the time each policy was in force, one upon the other."""
    sets = factors_of(runs.at_hand("streit-A.13"))
    figure, panels = _panels(len(sets))
    for axes, (trace, factors) in zip(panels, sets.items(), strict=True):
        found = [runs.figures(trace, factor, Way(BOUNDED)) for factor in factors]
        parts = ([one.sjf_pct for one in found], [one.fcfs_pct for one in found], [one.ljf_pct for one in found])
        axes.stackplot(factors, *parts, labels=USED, colors=SERIES[: len(USED)])
        percent_axis(axes, "Time in force")
        _by_factor(axes, trace, factors)
    legend_below(figure, panels[0])
    figure.suptitle(title, fontsize="medium")
    return figure


def _draw_lines(
    title: str, drawn: Drawn, runs: LoadRuns, column: str, label: str, value: Callable[[Figures], float]
) -> Figure:
    """Draw ours as whole lines with marks, and what is printed as dashed ones."""
    rows = runs.at_hand(drawn.printed)
    sets = factors_of(rows)
    figure, panels = _panels(len(sets))
    for axes, (trace, factors) in zip(panels, sets.items(), strict=True):
        own_rows = [row for row in rows if row["set"] == trace]
        for number, (name, way) in enumerate(drawn.lines.items()):
            ours = [value(runs.figures(trace, factor, way)) for factor in factors]
            printed = [float(row[f"{name}{column}"]) for row in own_rows]
            colour = SERIES[number]
            axes.plot(factors, ours, color=colour, marker=MARKERS[number], markersize=5, linewidth=1.4, label=name)
            axes.plot(factors, printed, color=colour, linestyle=DASHED, linewidth=1.2, label=f"{name}, printed")
        if not column:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
            axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylabel(label)
        _by_factor(axes, trace, factors)
    legend_below(figure, panels[0])
    figure.suptitle(title, fontsize="medium")
    return figure


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    columns = min(count, 2)
    lines = -(-count // columns)
    figure = new_figure(5.2 * columns, 3.6 * lines + 0.6)
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for unused in panels[count:]:
        unused.remove()
    return figure, panels[:count]


def _by_factor(axes: Axes, trace: str, factors: list[float]) -> None:
    """Name the set, and have the load grow to the right."""
    axes.set_xlim(max(factors), min(factors))
    axes.set_xticks(factors)
    axes.set_xlabel("Shrinking factor")
    axes.set_title(trace, fontsize="medium", loc="left")
    tidy(axes)
