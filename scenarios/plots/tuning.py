"""Plot of a self-tuning site: for which part of the time each policy was in force (as Streit, Figure 4.2)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from gridweave.errors import OptionError
from gridweave.scenarios.plots.parts import SERIES, FloatArray, TimeAxis, legend_below, new_figure, percent_axis, tidy
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.results.uses import Switches

_BINS = 60


def plot_policies(result: SimulationResult) -> Figure:
    """Draw for which part of the time each policy of a self-tuning site was in force, over the run.

    OptionError if the result is of another site, or no job ran.
    """
    ran = result.ran
    if not isinstance(result.own, Switches) or not ran.any():
        raise OptionError("kind", "'policies' is of a run of dynP in the compiled loop, in which jobs ran")
    begin_ms, until_ms = int(result.workload.submit_ms[ran].min()), int(result.end_ms.max())
    edges_ms = np.linspace(begin_ms, until_ms, _BINS + 1)
    time = TimeAxis.of(result.workload, begin_ms, until_ms)
    figure = new_figure(10, 4.4)
    axes = figure.subplots()
    parts = shares(result.own, edges_ms)
    place = time.place(edges_ms)
    below = np.zeros(_BINS)
    for number, policy in enumerate(result.own.policies):
        above = below + 100 * parts[number]
        axes.stairs(above, place, baseline=below, fill=True, color=SERIES[number % len(SERIES)], label=policy)
        below = above
    percent_axis(axes, "Time in force")
    time.show(axes, begin_ms, until_ms)
    tidy(axes)
    legend_below(figure, axes)
    return figure


def shares(switches: Switches, edges_ms: FloatArray) -> FloatArray:
    """Return for which part of each bin each policy was in force, float64, shape (policies, bins)."""
    bounds_ms = np.concatenate([[edges_ms[0]], switches.switched_ms, [edges_ms[-1]]]).astype(np.float64)
    in_force = np.concatenate([[0], switches.switched_to])
    found = np.zeros((len(switches.policies), len(edges_ms) - 1))
    for number in range(len(switches.policies)):
        lasted = np.where(in_force == number, np.maximum(np.diff(bounds_ms), 0.0), 0.0)
        until = np.interp(edges_ms, bounds_ms, np.concatenate([[0.0], np.cumsum(lasted)]))
        found[number] = np.diff(until) / np.diff(edges_ms)
    return found
