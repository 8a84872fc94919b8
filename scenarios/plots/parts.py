"""Shared parts of plots: figures, colours, and axes for dates and durations.

Figures use matplotlib's objects directly, without windows or pyplot state. Import the plotting modules only where a
plot is drawn.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.dates as mdates
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator, PercentFormatter

from gridweave.errors import InputError
from gridweave.scenarios.workload.table import MS_PER_S, IntArray, Workload
from gridweave.site.service.zones import load_zone

FloatArray = npt.NDArray[np.float64]

# Palette of Okabe and Ito, distinguishable for people with colour vision deficiencies.
BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
GREY = "#6B6B6B"
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHED = (0, (5, 3))

_MINUTE, _HOUR, _DAY = 60 * MS_PER_S, 3600 * MS_PER_S, 86400 * MS_PER_S

NICE_MS = {
    MS_PER_S: "1 s",
    10 * MS_PER_S: "10 s",
    _MINUTE: "1 min",
    10 * _MINUTE: "10 min",
    _HOUR: "1 h",
    3 * _HOUR: "3 h",
    6 * _HOUR: "6 h",
    12 * _HOUR: "12 h",
    _DAY: "1 day",
    2 * _DAY: "2 days",
    7 * _DAY: "1 week",
    14 * _DAY: "2 weeks",
    28 * _DAY: "4 weeks",
    91 * _DAY: "91 days",
    365 * _DAY: "365 days",
    3650 * _DAY: "3650 days",
}
"""Round durations for bins and windows, with their names."""

_TICKS_S = {
    0.001: "1 ms",
    0.01: "10 ms",
    0.1: "0.1 s",
    1: "1 s",
    10: "10 s",
    60: "1 min",
    600: "10 min",
    3600: "1 h",
    6 * 3600: "6 h",
    86400: "1 d",
    7 * 86400: "1 wk",
    30 * 86400: "30 d",
    365 * 86400: "1 yr",
    3650 * 86400: "10 yr",
}


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure with its own canvas; width and height are in inches."""
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Axes) -> None:
    """Remove the frame at the top and right, and draw a pale grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)


def percent_axis(axes: Axes, label: str) -> None:
    """Scale the y axis from 0 to 100 per cent."""
    axes.set_ylim(0, 102)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.set_ylabel(label)


def count_axis(axes: Axes, label: str, most: float, ticks: int) -> None:
    """Scale the y axis for counts, from 0 to the highest value drawn."""
    axes.set_ylim(0, max(1.0, most * 1.08))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=ticks, integer=True))
    axes.set_ylabel(label)


def nice_bins(begin_ms: int, until_ms: int, most: int) -> tuple[IntArray, str]:
    """Return the edges of at most ``most`` bins whose width is a round duration, and the name of that duration."""
    length_ms = next((n for n in NICE_MS if (until_ms - begin_ms) / n <= most), max(NICE_MS))
    return np.append(np.arange(begin_ms, until_ms, length_ms), until_ms), NICE_MS[length_ms]


def legend_below(figure: Figure, axes: Axes | None = None, *, columns: int | None = None) -> None:
    """Draw the legend of ``axes``, by default the figure's first axes, below the figure, in ``columns`` columns."""
    handles, labels = (axes or figure.axes[0]).get_legend_handles_labels()
    ncols = columns or len(labels)
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols, frameon=False, fontsize="small")


def draw_groups(axes: Axes, groups: Mapping[str, Sequence[tuple[float, float, float]]], names: Sequence[str]) -> None:
    """Draw the groups' bars side by side at each name; a bar is (mean, low, high), all equal if it has no interval."""
    width = 0.8 / len(groups)
    for number, (series, values) in enumerate(groups.items()):
        mean, low, high = np.array(values, np.float64).T
        positions = np.arange(len(names)) + (number - (len(groups) - 1) / 2) * width
        axes.bar(positions, mean, width, color=SERIES[number], label=series)
        has_interval = high > low
        if has_interval.any():
            reach = np.array([mean - low, high - mean])[:, has_interval]
            axes.errorbar(
                positions[has_interval], mean[has_interval], reach, fmt="none", ecolor=BLACK, elinewidth=0.8, capsize=2
            )
    axes.set_xticks(np.arange(len(names)), names)
    axes.set_ylim(bottom=0)
    tidy(axes)


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """A time axis that shows dates if the workload has a start date, otherwise the time since the workload's start."""

    label: str
    unit_ms: float
    offset: float
    zone: datetime.tzinfo | None

    @classmethod
    def of(cls, workload: Workload, begin_ms: int, end_ms: int) -> TimeAxis:
        """Choose the axis for a time window; an unknown time zone is replaced with UTC."""
        start = workload.start_unix_s
        if start is not None:
            try:
                zone = load_zone(workload.timezone)
            except InputError:
                zone = load_zone(None)
            try:
                for instant_ms in (begin_ms, end_ms):
                    datetime.datetime.fromtimestamp(start + instant_ms // MS_PER_S, zone)
                return cls(f"Date ({zone.key})", _DAY, _date_number(start), zone)
            except (OverflowError, ValueError, OSError):
                pass  # outside the range of dates
        name, unit_ms = next(
            (name, unit_ms)
            for name, unit_ms, at_least in (
                ("days", _DAY, 3 * _DAY),
                ("hours", _HOUR, 3 * _HOUR),
                ("minutes", _MINUTE, 3 * _MINUTE),
                ("seconds", MS_PER_S, 0),
            )
            if end_ms - begin_ms >= at_least
        )
        return cls(f"Time since the start of the workload [{name}]", unit_ms, 0.0, None)

    def place(self, time_ms: npt.ArrayLike) -> FloatArray:
        """Convert times in ms to axis units."""
        return self.offset + np.asarray(time_ms, np.float64) / self.unit_ms

    def show(self, axes: Axes, begin_ms: int, end_ms: int) -> None:
        """Set the ticks, label and limits of the x axis."""
        axes.set_xlim(*self.place([begin_ms, end_ms]).tolist())
        if self.zone is not None:
            locator = mdates.AutoDateLocator(tz=self.zone, minticks=4, maxticks=9)  # type: ignore[no-untyped-call]
            dates = mdates.ConciseDateFormatter(locator, tz=self.zone)  # type: ignore[no-untyped-call]
            # Compute the ticks once: matplotlib would repeat slow calendar arithmetic at every draw.
            locator.set_axis(axes.xaxis)
            ticks = locator()
            labels = FixedFormatter(dates.format_ticks(ticks))  # type: ignore[no-untyped-call]
            labels.set_offset_string(dates.get_offset())  # type: ignore[no-untyped-call]
            axes.xaxis.set_major_locator(FixedLocator(ticks))
            axes.xaxis.set_major_formatter(labels)
        axes.set_xlabel(self.label)


def _date_number(unix_s: int) -> float:
    """Convert a Unix time to matplotlib's date number, in days."""
    return float(mdates.date2num(np.datetime64(unix_s, "s")))  # type: ignore[no-untyped-call]


def log_time_axis(axes: Axes, low_s: float, high_s: float) -> None:
    """Make the x axis logarithmic, with ticks at round durations; the limits are in seconds."""
    axes.set_xscale("log")
    axes.set_xlim(low_s, high_s)
    ticks = [tick for tick in _TICKS_S if low_s <= tick <= high_s]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([_TICKS_S[tick] for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
