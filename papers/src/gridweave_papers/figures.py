"""Draw the figures of the papers with our numbers, and the figures of the network study."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter

from gridweave.netmodel.tables import CONTENTIONS
from gridweave.scenarios.plots.parts import (
    BLACK,
    DASHED,
    GREY,
    MARKERS,
    SERIES,
    draw_groups,
    legend_below,
    new_figure,
    percent_axis,
    tidy,
)
from gridweave.scenarios.sweep.tables import mean_interval
from gridweave.site.disciplines.sharing.policy import VARIANTS
from gridweave_papers.studies import dfrs, lomarc, streit_dynp, zhang_gang_curves
from gridweave_papers.studies.dfrs import BEST, EASY, DfrsRuns
from gridweave_papers.studies.lomarc import LomarcRuns
from gridweave_papers.studies.network import (
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
    weighted_overhead,
)
from gridweave_papers.studies.report import Row
from gridweave_papers.studies.streit import POLICIES, TABLES_A, ThesisRuns, monthly_sldwa
from gridweave_papers.studies.streit_dynp import TuningRuns
from gridweave_papers.studies.streit_load import BOUNDED, USED, Drawn, Figures, LoadRuns, Way, drawn_of, factors_of
from gridweave_papers.studies.study import awrt_s
from gridweave_papers.studies.zhang import QUANTITIES, Curves, Panel, ZhangRuns, curves_of, panels_of, values_of
from gridweave_papers.studies.zhang_gang_curves import GangRuns

_DAY_MS = 86_400_000
_NUMBER = StrMethodFormatter("{x:,.6g}")


def _slug(table: str, reading: str) -> str:
    return "-".join([table, *re.findall("[a-z0-9]+", reading.lower())])


def _name(axes: Axes, x_label: str, y_label: str, title: str = "") -> None:
    """Set the title and axis labels of a panel."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, fontsize="medium", loc="left")
    tidy(axes)


def draw_zhang(table: str, title: str, runs: ZhangRuns) -> dict[str, Figure]:
    """Draw a figure of Zhang et al. once for each reading of backfilling; returned by name, e.g. "zhang-5-easy"."""
    figures = {}
    for reading, curves in curves_of(table, runs).items():
        panels = panels_of(table, reading)
        drawn = new_figure(10, 4.2 * (len(panels) // 2) + 0.5)
        for axes, panel in zip(drawn.subplots(len(panels) // 2, 2, squeeze=False).flat, panels, strict=True):
            _draw_panel(axes, panel, curves)
        drawn.suptitle(f"{title}: {reading}", fontsize="medium")
        figures[_slug(table, reading)] = drawn
    return figures


def _draw_panel(axes: Axes, panel: Panel, curves: Curves) -> None:
    for number, line in enumerate(panel.lines):
        curve = curves[line.setting]
        _line(axes, curve.rho, values_of(line, panel.quantity, curve), number, line.label)
    if panel.quantity == "loss":
        ends = np.array([0.5, 1.0])
        axes.plot(ends, 1 - ends, color=BLACK, linewidth=1, linestyle=DASHED, label="κ = 1 − ρ")
    axes.set_xlim(0.5, 1.0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.yaxis.set_major_formatter(_NUMBER)
    axes.legend(frameon=False, fontsize="small", loc="upper left" if panel.quantity != "loss" else "upper right")
    _name(axes, "Utilisation ρ", QUANTITIES[panel.quantity][0], panel.title)


def draw_gang(table: str, title: str, runs: GangRuns) -> dict[str, Figure]:
    """Draw a figure of Zhang et al. on time sharing, once for each reading of backfilling."""
    figures = {}
    for reading, curves in zhang_gang_curves.curves_of(table, runs).items():
        panels = zhang_gang_curves.panels_of(table)
        drawn = new_figure(5 * len(panels) + 1, 4.7)
        for axes, panel in zip(drawn.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
            for number, (label, line) in enumerate(panel.lines.items()):
                _line(axes, curves[line].rho, curves[line].mean(panel.quantity), number, label)
            if panel.quantity != "loss":
                axes.set_yscale("log")
            axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
            axes.legend(frameon=False, fontsize="x-small")
            _name(axes, "Utilisation ρ", zhang_gang_curves.QUANTITIES[panel.quantity][0], panel.title)
        drawn.suptitle(f"{title}: {reading}", fontsize="medium")
        figures[_slug(table, reading)] = drawn
    return figures


def draw_months(table: str, title: str, runs: ThesisRuns) -> dict[str, Figure]:
    """Draw our and the published monthly SLDwA of Tables A.1 to A.4, for the available traces."""
    keys = list(runs.present())
    if not keys:
        return {}
    figure = new_figure(11, 2.9 * len(keys) + 0.6)
    for axes, key in zip(figure.subplots(len(keys), 1, squeeze=False).flat, keys, strict=True):
        _draw_months(axes, key, monthly_sldwa(runs, key))
    legend_below(figure)
    figure.suptitle("SLDwA by month of submission (Streit, Tables A.1 to A.4)", fontsize="medium")
    return {table: figure}


def _draw_months(axes: Axes, key: str, ours: Mapping[str, Sequence[float]]) -> None:
    """Draw published values as lines and our values as markers."""
    months = [line.month for line in TABLES_A[key]]
    positions = np.arange(len(months))
    for number, policy in enumerate(POLICIES):
        published = [line.sldwa[number] for line in TABLES_A[key]]
        own = [ours[month][number] if month in ours else np.nan for month in months]
        colour = SERIES[number]
        axes.plot(positions, published, color=colour, linewidth=1.4, label=f"{policy}, published")
        axes.plot(
            positions,
            own,
            color=colour,
            linestyle="none",
            marker=MARKERS[number],
            markersize=5,
            markerfacecolor="none",
            label=f"{policy}, ours",
        )
    _dress_months(axes, key, months)


def _dress_months(axes: Axes, key: str, months: Sequence[str]) -> None:
    _log_sldwa(axes)
    axes.set_xticks(range(len(months)), months, rotation=45, ha="right", fontsize="small")
    axes.set_ylabel("SLDwA")
    axes.set_title(key, fontsize="medium", loc="left", color=GREY)
    tidy(axes)


def _log_sldwa(axes: Axes) -> None:
    """Make the y axis logarithmic, with ticks at 1, 2, 5 and 10 of each decade."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(_NUMBER)
    axes.yaxis.set_minor_locator(NullLocator())


def draw_lomarc(table: str, title: str, runs: LomarcRuns) -> dict[str, Figure]:
    """Draw a figure of LOMARC as groups of bars, under the default reading."""
    mixes, workloads = (("M2", "M3"), ("W1",)) if table == "lomarc-9" else (("M1",), lomarc.WORKLOADS)
    quantities = lomarc.SHOWN[table]
    view = lomarc.View(runs.points(lomarc.bars_of(table)), lomarc.DEFAULT_READING)
    drawn = new_figure(5.6 * len(quantities), 4.0 * len(mixes) + 0.5)
    for row, mix in zip(drawn.subplots(len(mixes), len(quantities), squeeze=False), mixes, strict=True):
        for axes, quantity in zip(row, quantities, strict=True):
            groups = {
                variant: [mean_interval(view.values(quantity, variant, workload, mix)) for workload in workloads]
                for variant in VARIANTS
            }
            draw_groups(axes, groups, [f"{workload} {mix}" for workload in workloads])
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.8g}"))
            axes.set_ylabel(lomarc.QUANTITIES[quantity][0])
    legend_below(drawn)
    drawn.suptitle(f"{title}: {lomarc.DEFAULT_READING}", fontsize="medium")
    return {table: drawn}


def draw_dfrs(table: str, title: str, runs: DfrsRuns) -> dict[str, Figure]:
    """Draw Figure 1, 2 or 3 of Stillwell et al."""
    draw = {"dfrs-1": _draw_by_load, "dfrs-2": _draw_underutilization, "dfrs-3": _draw_stretch}[table]
    figure = draw(runs)
    figure.suptitle(title, fontsize="medium")
    return {table: figure}


def _draw_by_load(runs: DfrsRuns) -> Figure:
    """Plot the degradation of each algorithm against the load."""
    figure = new_figure(8, 5.6)
    axes = figure.subplots()
    for number, name in enumerate(dfrs.SHOWN):
        curve = [dfrs.degradation_at(runs, name, load) for load in dfrs.LOADS]
        axes.plot(dfrs.LOADS, curve, label=name, linewidth=1.4, markersize=5, **_style(number))
    axes.set_yscale("log")
    _name(axes, "Load", "Mean degradation from bound")
    legend_below(figure, columns=2)
    return figure


def _style(number: int) -> dict[str, Any]:
    """Return the colour, marker and style of a line; colours repeat with dashes once all of them are used."""
    turn, place = divmod(number, len(SERIES))
    return {"color": SERIES[place], "marker": MARKERS[number % len(MARKERS)], "linestyle": ("-", "--", ":")[turn % 3]}


def _draw_underutilization(runs: DfrsRuns) -> Figure:
    """Plot normalized underutilization against the period, with EASY for comparison, one panel per set of traces."""
    sets = dfrs.sets_of(runs)
    figure = new_figure(3.8 * len(sets), 4.2)
    for axes, traces in zip(figure.subplots(1, len(sets)), sets, strict=True):
        curve = [dfrs.underutilization_of(runs, traces, BEST, period_s) for period_s in dfrs.PERIODS_S]
        _line(axes, dfrs.PERIODS_S, curve, 0, BEST)
        easy = dfrs.underutilization_of(runs, traces, EASY, dfrs.PERIODS_S[0])
        axes.axhline(easy, color=BLACK, linewidth=1, linestyle=DASHED, label=EASY)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
        _name(axes, "Period [s]", "Mean normalized underutilization", traces)
    legend_below(figure)
    return figure


def _draw_stretch(runs: DfrsRuns) -> Figure:
    """Plot the best algorithm's degradation against the period, one line per set of traces."""
    figure = new_figure(7, 4.6)
    axes = figure.subplots()
    for number, traces in enumerate(dfrs.sets_of(runs)):
        curve = [dfrs.degradation_of(runs, traces, BEST, period_s) for period_s in dfrs.PERIODS_S]
        _line(axes, dfrs.PERIODS_S, curve, number, traces)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small")
    _name(axes, "Period [s]", f"Mean degradation from bound, {BEST}")
    return figure


def draw_network(table: str, title: str, runs: NetworkRuns) -> dict[str, Figure]:
    """Draw all figures of the network study: gain over sharing, equivalent p, splits, contention, link failure."""
    return {
        "network-gain": plot_gain(runs),
        "network-overhead": plot_overhead(runs),
        "network-split": plot_split(runs),
        "network-contention": plot_contention(runs),
        "network-cut": plot_cut(runs),
    }


def plot_gain(runs: NetworkRuns) -> Figure:
    """Plot AWRT relative to sharing against the communication fraction and the message size."""
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
            axes.set_xscale("log")
            if values is FRACTIONS:
                axes.set_xticks(FRACTIONS, [f"{fraction:.0%}" for fraction in FRACTIONS])
                axes.minorticks_off()
            _dress_gain(axes, mode, label)
    legend_below(figure)
    return figure


def _dress_gain(axes: Axes, mode: str, label: str) -> None:
    axes.axhline(0, color=BLACK, linewidth=1, linestyle=DASHED, label="sharing")
    if mode == "multi-site":  # beyond this range the grid is overloaded, and queues grow without limit
        axes.set_ylim(-25, 75)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    _name(axes, label, "AWRT against sharing", f"mode {mode}")


def plot_overhead(runs: NetworkRuns) -> Figure:
    """Draw the distribution of p by pattern, and AWRT under the network model and under a constant p."""
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    results = {pattern: runs.result(Case("multi-site", pattern)) for pattern in SENDING}
    for number, (pattern, result) in enumerate(results.items()):
        ordered = np.sort(overheads_of(result))
        left.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), color=SERIES[number], where="post")
        _line(right, [weighted_overhead(result)], [awrt_s(result)], number, pattern)
    left.set_xscale("log")
    left.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    _name(left, "p = factor − 1", "Part of the multi-site jobs up to this value")
    highest = max(weighted_overhead(result) for result in results.values())
    upto = [p for p in OVERHEADS if p <= 1.3 * highest]
    constant = [awrt_s(runs.constant(p)) for p in upto]
    right.plot(upto, constant, color=GREY, linewidth=1.4, label="constant p", zorder=1)
    _sharing_line(right, runs)
    right.set_ylim(bottom=0)
    right.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _name(right, "p, or its mean by area", "AWRT [s]")
    legend_below(figure, right)
    return figure


def plot_split(runs: NetworkRuns) -> Figure:
    """Draw AWRT by pattern, for splits with the fewest fragments and for splits with the earliest end."""
    figure = new_figure(11, 4.4)
    for axes, mode in zip(figure.subplots(1, 2), MODES, strict=True):
        _draw_patterns(
            axes,
            {
                name: [awrt_s(runs.result(Case(mode, pattern, split=split))) for pattern in SENDING]
                for name, split in (("fewest fragments", "fewest"), ("earliest end", "earliest-end"))
            },
        )
        _sharing_line(axes, runs)
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.05 * awrt_s(runs.result(Case("sharing")))))
        _name(axes, "", "AWRT [s]", f"mode {mode}")
    legend_below(figure)
    return figure


def plot_contention(runs: NetworkRuns) -> Figure:
    """Draw AWRT and p by pattern, without contention, with static and with dynamic contention."""
    figure = new_figure(11, 8)
    for row, mode in zip(figure.subplots(2, 2), MODES, strict=True):
        results = {
            contention: [runs.result(contended(mode, pattern, contention)) for pattern in SENDING]
            for contention in CONTENTIONS
        }
        _draw_patterns(row[0], {name: [awrt_s(result) for result in group] for name, group in results.items()})
        _draw_patterns(
            row[1], {name: [weighted_overhead(result) for result in group] for name, group in results.items()}
        )
        for axes, label in zip(row, ("AWRT [s]", "p, mean by area"), strict=True):
            _name(axes, "", label, f"mode {mode}")
        if mode == "multi-site":  # some queues grow without limit
            row[0].set_ylim(bottom=5_000)
            row[0].set_yscale("log")
    legend_below(figure)
    return figure


def plot_cut(runs: NetworkRuns) -> Figure:
    """Plot the mean p of multi-site jobs by the day they start, for a link that stays up, slows down, or fails."""
    figure = new_figure(11, 2.4 * len(SENDING) + 0.6)
    first_ms = int(runs.result(cut_case(SENDING[0], "none")).workload.submit_ms[0])
    for axes, pattern in zip(figure.subplots(len(SENDING), 1, sharex=True), SENDING, strict=True):
        for number, cut in enumerate(CUTS):
            result = runs.result(cut_case(pattern, cut))
            days = (result.start_ms[result.multi_site] - first_ms) / _DAY_MS
            edges = _edges(runs, first_ms, float(days.max()))
            period = np.digitize(days, edges) - 1
            overheads = overheads_of(result)
            indices = range(len(edges) - 1)
            means = [overheads[period == edge].mean() if (period == edge).any() else np.nan for edge in indices]
            axes.stairs(means, edges, color=SERIES[number], linewidth=1.6, label={"none": "whole"}.get(cut, cut))
        axes.axvspan(*((edge - first_ms) / _DAY_MS for edge in runs.cut_ms), color="#EEEEEE", zorder=0)
        axes.set_yscale("log")
        _name(axes, "", "mean p", pattern)
    axes.set_xlabel("Start of the job [days since the first submission]")
    legend_below(figure)
    return figure


def _edges(runs: NetworkRuns, first_ms: int, last_day: float) -> npt.NDArray[np.float64]:
    """Return bin edges in days, a third of the failure's duration apart, aligned with its start and its end."""
    begin, end = ((instant_ms - first_ms) / _DAY_MS for instant_ms in runs.cut_ms)
    third = (end - begin) / 3
    return begin + third * np.arange(-np.ceil(begin / third), np.ceil((last_day - begin) / third) + 1)


def _sharing_line(axes: Axes, runs: NetworkRuns) -> None:
    sharing_s = awrt_s(runs.result(Case("sharing")))
    axes.axhline(sharing_s, color=BLACK, linewidth=1, linestyle=DASHED, label="sharing")


def _line(axes: Axes, x: object, y: object, number: int, label: str) -> None:
    axes.plot(x, y, color=SERIES[number], marker=MARKERS[number], markersize=5, linewidth=1.4, label=label)  # type: ignore[arg-type]


def _draw_patterns(axes: Axes, groups: Mapping[str, list[float]]) -> None:
    """Draw one group of bars per pattern."""
    names = [value.replace("-", "-\n", 1) for value in SENDING]
    draw_groups(axes, {name: [(value, value, value) for value in values] for name, values in groups.items()}, names)
    axes.tick_params(axis="x", labelsize="small")
    axes.yaxis.set_major_formatter(_NUMBER)


def draw_switches(table: str, title: str, runs: TuningRuns) -> dict[str, Figure]:
    """Draw the published numbers and both readings of Table 5.3 (a panel per decider) or 5.4 (a panel per column)."""
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
    panel_axes = figure.subplots(len(panels) // columns, columns, squeeze=False).flat
    for axes, (name, rows) in zip(panel_axes, panels.items(), strict=True):
        bars = {"printed": [row.values[0].published or 0.0 for row in rows]}
        bars |= {entry: [row.values[place].ours or 0.0 for row in rows] for place, entry in enumerate(section.columns)}
        names = [_place(dict(zip(section.headings, row.labels, strict=True)), name) for row in rows]
        draw_groups(
            axes, {series: [(entry, entry, entry) for entry in heights] for series, heights in bars.items()}, names
        )
        axes.tick_params(axis="x", labelsize="x-small")
        _name(axes, "", "%", name)
    legend_below(figure)
    figure.suptitle(section.title, fontsize="medium")
    return {table: figure}


def _place(labels: dict[str, str], panel: str) -> str:
    """Return the label below a row's bars, leaving out the part that the panel's title already shows."""
    slack = labels.pop("slackness", "0")
    parts = [part for part in labels.values() if part != panel]
    return "\n".join([*parts, f"slackness {slack}%"] if slack != "0" else parts)


def draw_load(table: str, title: str, runs: LoadRuns) -> dict[str, Figure]:
    """Draw the figures for a table of section 5.2, with a panel per available set; none if no set is available."""
    if not runs.at_hand("streit-A.13"):
        return {}
    if table == "streit-4.2":
        return {table: _draw_use(title, runs)}
    figures = {}
    for reading, drawn in drawn_of(table).items():
        slug = f"{table}-{reading}" if reading else table
        about = f"{title} ({drawn.source}): {reading or 'planning'}"
        figures[f"{slug}-sldwa"] = _draw_lines(about, drawn, runs, "", "SLDwA", lambda point: point.sldwa)
        figures[f"{slug}-util"] = _draw_lines(
            about, drawn, runs, " util", "Utilisation [%]", lambda point: point.util_pct
        )
    return figures


def _draw_use(title: str, runs: LoadRuns) -> Figure:
    """Draw the share of time that each policy is in force as stacked areas."""
    sets = factors_of(runs.at_hand("streit-A.13"))
    figure, panels = _panels(len(sets))
    for axes, (trace, factors) in zip(panels, sets.items(), strict=True):
        shares = [runs.figures(trace, factor, Way(BOUNDED)) for factor in factors]
        parts = (
            [share.sjf_pct for share in shares],
            [share.fcfs_pct for share in shares],
            [share.ljf_pct for share in shares],
        )
        axes.stackplot(factors, *parts, labels=USED, colors=SERIES[: len(USED)])
        percent_axis(axes, "")
        _by_factor(axes, trace, factors, "Time in force")
    legend_below(figure, panels[0])
    figure.suptitle(title, fontsize="medium")
    return figure


def _draw_lines(
    title: str, drawn: Drawn, runs: LoadRuns, column: str, label: str, value: Callable[[Figures], float]
) -> Figure:
    """Draw our values as solid lines with markers, and published values as dashed lines."""
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
            _log_sldwa(axes)
        _by_factor(axes, trace, factors, label)
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


def _by_factor(axes: Axes, trace: str, factors: list[float], label: str) -> None:
    """Label the axes, with the set's name as the title and the load increasing to the right."""
    axes.set_xlim(max(factors), min(factors))
    axes.set_xticks(factors)
    _name(axes, "Shrinking factor", label, trace)


DRAWN: dict[str, Callable[[str, str, Any], dict[str, Figure]]] = {
    "streit": draw_months,
    "streit_dynp": draw_switches,
    "streit_load": draw_load,
    "zhang": draw_zhang,
    "zhang_gang": draw_gang,
    "lomarc": draw_lomarc,
    "network": draw_network,
    "dfrs": draw_dfrs,
}
"""Function ``draw(id, title, runs)`` that draws the tables of a module, by module name."""
