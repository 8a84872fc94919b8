"""Plots of a schedule: jobs as rectangles over time and nodes (Streit, Figure 3.1), or slice by slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gridweave.errors import OptionError
from gridweave.scenarios.plots.parts import NICE_MS, VERMILLION, FloatArray, TimeAxis, count_axis, new_figure, tidy
from gridweave.scenarios.plots.results import over_bins, span, title, window
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.results.steps import Steps, step_functions
from gridweave.scenarios.workload.table import IntArray
from gridweave.site.allocation import Interval, NodePool

STARTS_AT_MOST = 100
"""Maximum number of job starts in a window at which jobs are still distinguishable."""

STARTS_AT_LEAST = 60
"""A window is widened until this many jobs start in it, if possible."""

# Paul Tol's light scheme: distinguishable with colour vision deficiencies, and black text on it is legible.
FILLS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#AAAA00")
WIDTH_IN, HEIGHT_IN = 11.0, 7.5
_CHAR_PT, _LINE_PT, _FONT_PT, _SLIVER_PT = 4.2, 8.0, 6.5, 2.5

_ROWS_AT_ONCE = 1 << 16
_COMPARED_AT_MOST = 2000  # with more jobs, colours ignore neighbours
_SHOWN_SLICES = 60

_Placed = tuple[int, tuple[Interval, ...]]


def plot_schedule(result: SimulationResult, *, start_ms: int | None = None, end_ms: int | None = None) -> Figure:
    """Draw the jobs as rectangles over time and nodes, with their ids where there is space, and the waiting jobs below.

    If one end of the window is missing, the window is as long as the `busiest_window`; if both are missing, it is the
    `busiest_window`. A job on separate ranges of nodes is drawn as several rectangles of one colour.

    Notes
    -----
    Node numbers come from replaying the schedule with a `NodePool`: at each time, jobs that end release their nodes,
    then jobs that start take the lowest free nodes, in workload order.
    """
    steps = step_functions(*result.schedule())
    begin_ms, until_ms = _chosen_window(result, steps, start_ms, end_ms)
    figure = new_figure(WIDTH_IN, HEIGHT_IN)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(6, 1))
    time = TimeAxis.of(result.workload, begin_ms, until_ms)
    placed = list(place_jobs(result, steps, begin_ms, until_ms))
    _draw_jobs(upper, result, placed, time, begin_ms, until_ms)
    draw_queue(lower, steps, time, begin_ms, until_ms)
    upper.set_title(
        f"{len(placed):,} jobs; a job on scattered nodes is several rectangles of one colour", fontsize="small"
    )
    figure.suptitle(title(result))
    return figure


def busiest_window(result: SimulationResult, steps: Steps) -> tuple[int, int]:
    """Choose the window to show: the whole schedule if that is readable, otherwise a busy window.

    Notes
    -----
    The window is narrowed from one round duration to the next, from years to a second. Each step chooses the part of
    the previous window with the most node time requested by running and waiting jobs, until at most `STARTS_AT_MOST`
    jobs start. If fewer than `STARTS_AT_LEAST` jobs start, the window is widened again within the previous window.
    """
    begin_ms, until_ms = span(result)
    requested = np.zeros(len(steps.time_ms))  # node time requested up to each row; computed in place to save memory
    requested[1:] = steps.time_ms[1:]
    requested[1:] -= steps.time_ms[:-1]
    requested[1:] *= steps.demand[:-1]
    np.cumsum(requested, out=requested)

    def requested_until(instants_ms: IntArray) -> FloatArray:
        row = np.searchsorted(steps.time_ms, instants_ms, side="right") - 1
        return requested[row] + steps.demand[row] * (instants_ms - steps.time_ms[row]).astype(np.float64)

    starts = np.sort(result.start_ms[result.ran])
    around_ms = begin_ms, until_ms
    for length_ms in sorted(NICE_MS, reverse=True):
        if np.diff(np.searchsorted(starts, (begin_ms, until_ms)))[0] <= STARTS_AT_MOST:
            break
        if length_ms < until_ms - begin_ms:
            around_ms = begin_ms, until_ms
            begins = np.append(np.arange(begin_ms, until_ms - length_ms, length_ms // 4), until_ms - length_ms)
            begin_ms = int(begins[np.argmax(requested_until(begins + length_ms) - requested_until(begins))])
            until_ms = begin_ms + length_ms
    return _widened(starts, (begin_ms, until_ms), around_ms)


def _widened(starts: IntArray, window_ms: tuple[int, int], around_ms: tuple[int, int]) -> tuple[int, int]:
    """Widen a window within ``around_ms``, first towards later times, until `STARTS_AT_LEAST` jobs start in it.

    If more than `STARTS_AT_MOST` jobs would start in the wider window, keep the window unchanged.
    """
    first, last = np.searchsorted(starts, window_ms).tolist()
    low, high = np.searchsorted(starts, around_ms).tolist()
    until = min(high, max(last, first + STARTS_AT_LEAST))
    begin = max(low, min(first, until - STARTS_AT_LEAST))
    begin_ms = min(window_ms[0], int(starts[begin])) if begin < first else window_ms[0]
    until_ms = window_ms[1] if until <= last else int(starts[until]) if until < high else around_ms[1]
    wider = max(begin_ms, around_ms[0]), min(max(until_ms, window_ms[1]), around_ms[1])
    return wider if np.diff(np.searchsorted(starts, wider))[0] <= STARTS_AT_MOST else window_ms


class Boxes:
    """Draws jobs as rectangles in a window of time and nodes; a node is ``node_pt`` points high."""

    def __init__(self, axes: Axes, time: TimeAxis, window_ms: tuple[int, int], node_pt: float, border: str) -> None:
        self._axes, self._time, self._window_ms, self._node_pt, self._border = axes, time, window_ms, node_pt, border
        self._corners: list[list[tuple[float, float]]] = []
        self._styles: list[tuple[str, str]] = []

    def add(
        self, job_id: int, span_ms: tuple[int, int], intervals: Iterable[Interval], fill: str, floor: int = 0
    ) -> None:
        """Add a job on intervals of nodes, numbered from ``floor``, with the job's id where there is space."""
        begin_ms, until_ms = self._window_ms
        ends_ms = np.clip(span_ms, begin_ms, until_ms)
        left, right = self._time.place(ends_ms).tolist()
        wide_pt = float(ends_ms[1] - ends_ms[0]) / (until_ms - begin_ms) * WIDTH_IN * 72 * 0.9
        for low, high in intervals:
            bottom, top, high_pt = floor + low, floor + high, (high - low) * self._node_pt
            self._corners.append([(left, bottom), (right, bottom), (right, top), (left, top)])
            # A border would hide the colour of a narrow rectangle.
            self._styles.append((fill, fill if min(wide_pt, high_pt) < _SLIVER_PT else self._border))
            if wide_pt > len(str(job_id)) * _CHAR_PT and high_pt > _LINE_PT:
                where = (left + right) / 2, (bottom + top) / 2
                self._axes.text(*where, str(job_id), ha="center", va="center", fontsize=_FONT_PT)

    def draw(self, line: float) -> None:
        """Draw all rectangles, with borders ``line`` points wide."""
        fills, borders = zip(*self._styles, strict=True) if self._styles else ((), ())
        self._axes.add_collection(PolyCollection(self._corners, facecolors=fills, edgecolors=borders, linewidths=line))


def place_jobs(result: SimulationResult, steps: Steps, begin_ms: int, until_ms: int) -> Iterator[_Placed]:
    """Replay a schedule; yield the row and the node intervals of each job that runs in the window."""
    idle_ms = steps.time_ms[(steps.busy == 0) & (steps.time_ms <= begin_ms)]
    since_ms = int(idle_ms[-1]) if len(idle_ms) else 0  # all nodes are free at this time, so earlier jobs do not matter
    rows = np.flatnonzero((result.start_ms >= since_ms) & (result.start_ms < until_ms))
    start_ms, end_ms, width = result.start_ms[rows], result.end_ms[rows], result.workload.width[rows]
    starts, ends = np.argsort(start_ms, kind="stable"), np.argsort(end_ms, kind="stable")
    pool = NodePool(result.nodes)
    held: dict[int, int] = {}
    ending = _row_by_row(ends, end_ms[ends])
    next_place, next_end_ms = next(ending, (0, 0))
    for place, now_ms, until, wide in _row_by_row(starts, start_ms[starts], end_ms[starts], width[starts]):
        while next_end_ms <= now_ms:
            pool.give_back(held.pop(next_place))
            next_place, next_end_ms = next(ending)
        intervals, held[place] = pool.take(wide)
        if until > begin_ms:
            yield int(rows[place]), intervals


def _row_by_row(*columns: IntArray) -> Iterator[tuple[int, ...]]:
    """Yield the rows of a table as Python numbers, converted block by block to save memory."""
    for first in range(0, len(columns[0]), _ROWS_AT_ONCE):
        yield from zip(*(column[first : first + _ROWS_AT_ONCE].tolist() for column in columns), strict=True)


def _chosen_window(result: SimulationResult, steps: Steps, start_ms: int | None, end_ms: int | None) -> tuple[int, int]:
    if start_ms is not None and end_ms is not None:
        return window(start_ms, end_ms, span(result))
    begin_ms, until_ms = busiest_window(result, steps)
    if start_ms is not None:
        return start_ms, start_ms + until_ms - begin_ms
    if end_ms is not None:
        return end_ms - (until_ms - begin_ms), end_ms
    return begin_ms, until_ms


def _draw_jobs(
    axes: Axes, result: SimulationResult, placed: list[_Placed], time: TimeAxis, begin_ms: int, until_ms: int
) -> None:
    """Draw the jobs that run in the window."""
    boxes = Boxes(axes, time, (begin_ms, until_ms), HEIGHT_IN * 72 * 0.7 / result.nodes, "#333333")
    for (row, intervals), fill in zip(placed, _fills(result, placed), strict=True):
        span_ms = int(result.start_ms[row]), int(result.end_ms[row])
        boxes.add(int(result.workload.job_id[row]), span_ms, intervals, fill)
    boxes.draw(0.5)
    _node_axis(axes, result.nodes)


def _node_axis(axes: Axes, nodes: int) -> None:
    """Scale the y axis for a machine's nodes."""
    axes.set_ylim(0, nodes)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("Node")
    tidy(axes)


def _fills(result: SimulationResult, placed: list[_Placed]) -> list[str]:
    """Choose a colour for each job: one that no neighbouring job has and that the fewest running jobs have."""
    if len(placed) > _COMPARED_AT_MOST:
        return [FILLS[number % len(FILLS)] for number in range(len(placed))]
    chosen: list[int] = []
    running: list[int] = []
    for number, (row, intervals) in enumerate(placed):
        running = [other for other in running if result.end_ms[placed[other][0]] >= result.start_ms[row]]
        cost = [0] * len(FILLS)
        for other in running:
            cost[chosen[other]] += 1000 if _touch(intervals, placed[other][1]) else 1
        fill = min(range(len(FILLS)), key=lambda colour: (cost[colour], (colour - number) % len(FILLS)))
        chosen.append(fill)
        running.append(number)
    return [FILLS[fill] for fill in chosen]


def _touch(some: tuple[Interval, ...], others: tuple[Interval, ...]) -> bool:
    return any(low <= up and down <= high for low, high in some for down, up in others)


def draw_queue(axes: Axes, steps: Steps, time: TimeAxis, begin_ms: int, until_ms: int) -> None:
    """Draw the number of waiting jobs over time, and label the time axis."""
    time.show(axes, begin_ms, until_ms)
    inside = (steps.time_ms > begin_ms) & (steps.time_ms < until_ms)
    edges_ms = np.concatenate(([begin_ms], steps.time_ms[inside], [until_ms]))
    waiting = over_bins(steps.time_ms, steps.waiting, edges_ms)[2]
    axes.stairs(waiting, time.place(edges_ms), fill=True, color=VERMILLION, alpha=0.6)
    count_axis(axes, "Waiting\njobs", float(waiting.max()), 3)
    tidy(axes)


def plot_slices(result: SimulationResult, *, start_ms: int | None = None, end_ms: int | None = None) -> Figure:
    """Draw the jobs' slices over time and nodes, with the jobs' ids where there is space.

    Parameters
    ----------
    result : SimulationResult
        Result of a gang-scheduled site; the site is simulated again up to the end of the window.
    start_ms, end_ms : int, optional
        The window; by default, 60 slices that begin at the median job start or at ``start_ms``, or end at ``end_ms``.

    Raises
    ------
    OptionError
        If the site is not gang-scheduled, or the window is empty.
    InputError
        If there are too many slices to draw.
    """
    from gridweave.scenarios.batch.slices import slices_between
    from gridweave.site.disciplines.gang.policy import NAME, GangPolicy

    if result.options.get("discipline") != NAME:
        raise OptionError("kind", f"'slices' needs a site with the discipline {NAME}; give utilisation or waits")
    policy = GangPolicy(**{name: result.options[name] for name in GangPolicy.__struct_fields__})
    length_ms = _SHOWN_SLICES * policy.slice_ms
    if start_ms is None:
        middle_ms = int(np.median(result.start_ms[result.ran])) if result.ran.any() else 0
        start_ms = middle_ms if end_ms is None else end_ms - length_ms
    end_ms = start_ms + length_ms if end_ms is None else end_ms
    if end_ms <= start_ms:
        raise OptionError("end_ms", f"is {end_ms}, not after start_ms {start_ms}; the window is empty")
    figure = new_figure(WIDTH_IN, HEIGHT_IN)
    axes = figure.subplots()
    time = TimeAxis.of(result.workload, start_ms, end_ms)
    time.show(axes, start_ms, end_ms)
    boxes = Boxes(axes, time, (start_ms, end_ms), HEIGHT_IN * 72 * 0.7 / result.nodes, "#333333")
    for part in slices_between(result.workload, result.nodes, policy, start_ms, end_ms):
        boxes.add(part.job_id, (part.start_ms, part.end_ms), part.nodes, FILLS[part.job_id % len(FILLS)])
    boxes.draw(0.3)
    _node_axis(axes, result.nodes)
    axes.set_title("Jobs in the slices in which they work", fontsize="small")
    figure.suptitle(title(result))
    return figure
