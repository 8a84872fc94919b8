"""Nodes shared in time: who works when and where, slice by slice."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gridweave.errors import OptionError
from gridweave.scenarios.batch.slices import slices_between
from gridweave.scenarios.plots.parts import TimeAxis, new_figure, tidy
from gridweave.scenarios.plots.results import title
from gridweave.scenarios.plots.schedule import FILLS, HEIGHT_IN, WIDTH_IN, Boxes
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.site.disciplines.gang.policy import NAME, GangPolicy

_SHOWN_SLICES = 60


def plot_slices(result: SimulationResult, *, start_ms: int | None = None, end_ms: int | None = None) -> Figure:
    """Draw the slices of the jobs over time and nodes, with their ids where there is room.

    Parameters
    ----------
    result : SimulationResult
        Of a site that shares its nodes in time; it is simulated again up to the end of the window.
    start_ms, end_ms : int, optional
        The window. If left out, 60 slices from the middle of the schedule, or from ``start_ms``, or up to ``end_ms``.

    Raises
    ------
    OptionError
        If the result is not of such a site, or the window is empty.
    InputError
        If there are too many slices to be drawn.
    """
    if result.options.get("discipline") != NAME:
        raise OptionError("kind", f"'slices' are of a site with the discipline {NAME}; give utilisation or waits")
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
    for one in slices_between(result.workload, result.nodes, policy, start_ms, end_ms):
        boxes.add(one.job_id, (one.start_ms, one.end_ms), one.nodes, FILLS[one.job_id % len(FILLS)])
    boxes.draw(0.3)
    axes.set_ylim(0, result.nodes)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("Node")
    tidy(axes)
    axes.set_title("Each job in the slices in which it works", fontsize="small")
    figure.suptitle(title(result))
    return figure
