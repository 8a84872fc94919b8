"""Figures 5 to 8 of Zhang et al., recomputed: curves over utilisation, and the conclusions drawn from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from gridweave.scenarios.published.report import OURS, Record, Report, Row, Section, Value
from gridweave.scenarios.published.zhang_claims import (
    FCFS,
    GREAT_OMEGAS,
    GRID,
    OMEGA_3,
    OMEGAS,
    PHI_02,
    PHIS,
    POLICIES,
    POLICIES_PHI,
    Curves,
    judge,
)
from gridweave.scenarios.published.zhang_runs import (
    CLASSES,
    LARGE_SHARE,
    NODES,
    READINGS,
    RUN_FACTORS,
    TRACE,
    Curve,
    FloatArray,
    Setting,
    ZhangRuns,
)


class Line(NamedTuple):
    """One line of a panel.

    Parameters
    ----------
    label : str
    setting : Setting
    estimators : int or None
        Only the jobs of this class of estimators; None for all jobs.
    """

    label: str
    setting: Setting
    estimators: int | None = None


class Panel(NamedTuple):
    """One panel of a figure: a quantity over utilisation.

    Parameters
    ----------
    title : str
    quantity : {"wait_s", "slowdown", "loss"}
        The array of a curve.
    lines : tuple of Line
    judged : bool
        Whether the paper draws a conclusion from it. If not, it is made for the first reading alone.
    """

    title: str
    quantity: str
    lines: tuple[Line, ...]
    judged: bool = True


QUANTITIES = {
    "wait_s": ("Average wait [s]", 0),
    "slowdown": ("Average slowdown, bounded by 10 s", 1),
    "loss": ("Loss of capacity", 3),
}
"""What a panel shows: its name and the digits behind the point."""

_NAMES = ("FCFS", "SJF", "BFit", "WFit")
_PERFECT = tuple(Line(name, one) for name, one in zip(_NAMES, POLICIES, strict=True))
_PHI = tuple(Line(name, one) for name, one in zip(_NAMES, POLICIES_PHI, strict=True))
_OMEGA_LINES = (
    Line("Ω = 0", FCFS),
    *(Line(f"Ω = {one.estimates.partition(':')[2]}", one) for one in (*OMEGAS, *GREAT_OMEGAS)),
)
_PHI_LINES = (
    Line("Φ = 1", FCFS),
    *(Line(f"Φ = {one.estimates.partition(':')[2]}", one) for one in PHIS),
)
_LAST = CLASSES - 1

FIGURES: Mapping[str, tuple[str, tuple[Panel, ...]]] = {
    "zhang-5": (
        "Queueing policies with backfilling",
        (
            Panel("(a) perfect estimates", "wait_s", _PERFECT),
            Panel("(b) perfect estimates", "loss", _PERFECT),
            Panel("(c) Φ = 0.2", "wait_s", _PHI, judged=False),
            Panel("(d) Φ = 0.2", "loss", _PHI, judged=False),
        ),
    ),
    "zhang-6": (
        "FCFS with backfilling under the Ω model of over-estimation",
        (Panel("(a) Ω model", "slowdown", _OMEGA_LINES), Panel("(b) Ω model", "wait_s", _OMEGA_LINES)),
    ),
    "zhang-7": (
        "FCFS with backfilling under the Φ model of over-estimation",
        (Panel("(a) Φ model", "slowdown", _PHI_LINES), Panel("(b) Φ model", "wait_s", _PHI_LINES)),
    ),
    "zhang-8": (
        "The impact of good estimation from a user's perspective",
        (
            Panel(
                "(a) Ω = 3",
                "wait_s",
                (
                    Line("all jobs", OMEGA_3),
                    Line("class 0 (best estimators)", OMEGA_3, 0),
                    Line(f"class {_LAST} (worst estimators)", OMEGA_3, _LAST),
                ),
            ),
            Panel(
                "(b) Φ = 0.2",
                "wait_s",
                (
                    Line("all jobs", PHI_02),
                    Line("class 0 (worst estimators)", PHI_02, 0),
                    Line(f"class {_LAST} (best estimators)", PHI_02, _LAST),
                ),
            ),
        ),
    ),
}
"""Figure to its title and panels."""


def values_of(line: Line, quantity: str, curve: Curve) -> FloatArray:
    """Return what a line shows.

    Parameters
    ----------
    line : Line
    quantity : str
        As of a panel.
    curve : Curve
        Of the line's setting.

    Returns
    -------
    numpy.ndarray of float64, shape (9,)
    """
    if line.estimators is not None:
        return curve.class_wait_s[:, line.estimators]
    values: FloatArray = getattr(curve, quantity)
    return values


def panels_of(figure: str, reading: str) -> list[Panel]:
    """Return the panels of a figure that are made for a reading.

    Parameters
    ----------
    figure : str
        A key of `FIGURES`.
    reading : str
        A key of `gridweave.scenarios.published.zhang_runs.READINGS`.

    Returns
    -------
    list of Panel
    """
    first = reading == next(iter(READINGS))
    return [panel for panel in FIGURES[figure][1] if first or panel.judged]


def curves_of(figure: str, runs: ZhangRuns) -> dict[str, Curves]:
    """Return the curves of a figure, for each reading.

    Parameters
    ----------
    figure : str
        A key of `FIGURES`.
    runs : ZhangRuns

    Returns
    -------
    dict from str to dict from Setting to Curve
    """
    curves: dict[str, Curves] = {}
    for reading in READINGS:
        lines = [line for panel in panels_of(figure, reading) for line in panel.lines]
        curves[reading] = runs.curves(reading, [FCFS, *(line.setting for line in lines)])
    return curves


def report_figure(figure: str, runs: ZhangRuns) -> Report:
    """Recompute a figure.

    Parameters
    ----------
    figure : str
        A key of `FIGURES`.
    runs : ZhangRuns

    Returns
    -------
    Report
    """
    title, panels = FIGURES[figure]
    source = f"Zhang et al., section {3 if figure == 'zhang-5' else 4}, Figure {figure.removeprefix('zhang-')}"
    curves = curves_of(figure, runs)
    return Report(
        id=figure,
        title=title,
        source=source,
        sections=tuple(_section(figure, panel, curves) for panel in panels),
        conclusions=judge(figure, curves),
        data={"curves": [record for reading, one in curves.items() for record in _records(reading, one)]},
        notes=_notes(runs),
    )


def _notes(runs: ZhangRuns) -> tuple[str, ...]:
    """Say what the workloads are."""
    fitted, changed = (runs.large_jobs(share) for share in (None, LARGE_SHARE))
    baselines = f"mean of {runs.seeds} baseline workload{'s' if runs.seeds > 1 else ''}"
    shares = f"{fitted[0]:.0%} and {fitted[1]:.0%} as fitted, {changed[0]:.0%} and {changed[1]:.0%} when more frequent"
    return (
        f"The trace of the paper is not public: its model is fitted to {TRACE}",
        f"{NODES} nodes, {runs.jobs:,} jobs, {baselines}",
        f"Jobs of more than 32 nodes, share in jobs and in work: {shares}; in the paper 30% and more than 80%",
    )


def _section(figure: str, panel: Panel, curves: Mapping[str, Curves]) -> Section:
    """Return a panel as a table: lines down, utilisations across."""
    name, decimals = QUANTITIES[panel.quantity]
    rows = []
    for reading, settings in curves.items():
        for line in panel.lines if panel in panels_of(figure, reading) else ():
            curve = settings[line.setting]
            values = values_of(line, panel.quantity, curve)
            cells = [Value(ours=curve.at(values, rho), decimals=decimals) for rho in GRID]
            rows.append(Row((reading, line.label), (*cells, Value(ours=100 * curve.highest, decimals=1))))
    columns = (*(f"{rho:.0%}" for rho in GRID), "highest [%]")
    return Section(
        title=f"{panel.title}: {name[0].lower()}{name[1:]} at a utilisation",
        headings=("reading", ""),
        columns=columns,
        rows=tuple(rows),
        layout=OURS,
    )


def _records(reading: str, curves: Curves) -> list[Record]:
    """Return all points of all curves, for a file."""
    records: list[Record] = []
    for setting, curve in curves.items():
        for place, factor in enumerate(RUN_FACTORS):
            point: Record = {
                "reading": reading,
                "order": setting.order,
                "estimates": setting.estimates,
                "run_factor": factor,
                "utilisation": float(curve.rho[place]),
                "wait_s": float(curve.wait_s[place]),
                "slowdown": float(curve.slowdown[place]),
                "loss_of_capacity": float(curve.loss[place]),
            }
            for number, wait in enumerate(curve.class_wait_s[place].tolist()):
                point[f"class_{number}_wait_s"] = None if math.isnan(wait) else wait
            records.append(point)
    return records
