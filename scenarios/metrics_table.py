"""The metrics of one or several results as a table for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from gridweave.errors import InputError
from gridweave.scenarios.metrics import Metrics
from gridweave.scenarios.workload import MS_PER_S

if TYPE_CHECKING:
    from gridweave.scenarios.results import SimulationResult

ACROSS_AT_MOST = 4
"""More results than this stand below each other, so that the table still fits into 80 columns."""

_BEST = "bold green"


@dataclass(frozen=True, slots=True)
class _Row:
    """One metric: what people call it, how it is written, and which way is better."""

    name: str
    unit: str
    value: Callable[[Metrics], float]
    decimals: int = 0
    better: Callable[[Sequence[float]], float] | None = None


_S = 1 / MS_PER_S
_SLDWA = _Row("SLDwA", "", lambda m: m.sldwa, 3, min)
_BOUNDED = _Row("bounded slowdown 10 s", "", lambda m: m.bounded_slowdown_10s, 2, min)
_AWT = _Row("AWT", "s", lambda m: m.awt_ms * _S, 0, min)
_ART = _Row("ART", "s", lambda m: m.art_ms * _S, 0, min)
_UTIL = _Row("UTIL", "%", lambda m: m.util * 100, 2, max)
_LOSS = _Row("loss of capacity", "%", lambda m: m.loss_of_capacity * 100, 2, min)
_SECTIONS = (
    (
        _Row("jobs", "", lambda m: m.jobs),
        _Row("jobs that waited", "%", lambda m: m.jobs_waited / m.jobs * 100 if m.jobs else math.nan, 1, min),
        _Row("queue met, mean length", "", lambda m: m.queue_length_seen, 2, min),
    ),
    (
        _AWT,
        _Row("AWWT by area", "s", lambda m: m.awwt_area_ms * _S, 0, min),
        _Row("median wait", "s", lambda m: m.wait_median_ms * _S, 0, min),
        _Row("95th percentile wait", "s", lambda m: m.wait_p95_ms * _S, 0, min),
    ),
    (
        _ART,
        _Row("ARTwW", "s", lambda m: m.artww_ms * _S, 0, min),
        _Row("AWRT by area", "s", lambda m: m.awrt_area_ms * _S, 0, min),
    ),
    (
        _SLDWA,
        _BOUNDED,
        _Row("bounded slowdown 60 s", "", lambda m: m.bounded_slowdown_60s, 2, min),
        _Row("per-processor 60 s", "", lambda m: m.pp_slowdown_60s, 2, min),
        _Row("max stretch", "", lambda m: m.max_stretch, 0, min),
    ),
    (
        _UTIL,
        _LOSS,
        _Row("underutilization", "%", lambda m: m.underutilization_normalized * 100, 2, min),
        _Row("throughput", "jobs/h", lambda m: m.throughput_per_h, 2, max),
        _Row("makespan", "s", lambda m: m.makespan_ms * _S, 0, min),
    ),
)
_MAIN_ROWS = {
    "SLDwA": _SLDWA,
    "bounded\nslowdown\n10 s": _BOUNDED,
    "AWT": _AWT,
    "ART": _ART,
    "UTIL": _UTIL,
    "loss of\ncapacity": _LOSS,
}


def metrics_table(results: Sequence[SimulationResult]) -> Table:
    """Return the metrics of results side by side.

    Parameters
    ----------
    results : sequence of SimulationResult
        At least one.

    Returns
    -------
    rich.table.Table
        Metrics down and results across. Of several results of one workload on one machine, the best of each row is
        green and has an asterisk, unless all agree. More than `ACROSS_AT_MOST` results stand below each other, with the
        main metrics across.

    Raises
    ------
    InputError
        If there is no result.
    """
    if not results:
        raise InputError("there is no result to show; give at least one")
    grounds = list(dict.fromkeys(f"{result.workload.name} on {result.nodes} nodes" for result in results))
    compare = len(results) > 1 and len(grounds) == 1
    labels = [result.label for result in results]
    metrics = [result.metrics() for result in results]
    table = Table(
        title=Text(", ".join(grounds)), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    if len(results) > ACROSS_AT_MOST:
        _results_down(table, labels, metrics, compare=compare)
    else:
        _results_across(table, labels, metrics, compare=compare)
    if compare:
        table.caption = Text("\n* best", _BEST, justify="left")
    return table


def _results_across(table: Table, labels: Sequence[str], metrics: Sequence[Metrics], *, compare: bool) -> None:
    table.add_column("", no_wrap=True)
    for label in labels:
        table.add_column(Text(label), justify="right", overflow="fold")
    for section in _SECTIONS:
        for row in section:
            table.add_row(
                Text(row.name) + Text(f" [{row.unit}]" if row.unit else "", "dim"),
                *_cells(row, metrics, compare=compare),
            )
        if section is not _SECTIONS[-1]:
            table.add_row()


def _results_down(table: Table, labels: Sequence[str], metrics: Sequence[Metrics], *, compare: bool) -> None:
    table.add_column("", overflow="fold")
    for name, row in _MAIN_ROWS.items():
        table.add_column(Text(name) + Text(f"\n[{row.unit}]" if row.unit else "", "dim"), justify="right")
    columns = [_cells(row, metrics, compare=compare) for row in _MAIN_ROWS.values()]
    for label, *cells in zip(labels, *columns, strict=True):
        table.add_row(Text(label), *cells)


def _cells(row: _Row, metrics: Sequence[Metrics], *, compare: bool) -> list[Text]:
    """Return one metric of all results, the best marked; what is written alike is equally good."""
    values = [row.value(one) for one in metrics]
    texts = ["–" if math.isnan(value) else f"{value:,.{row.decimals}f}" for value in values]
    if not compare:
        return [Text(text) for text in texts]
    known = [value for value in values if not math.isnan(value)]
    best = f"{row.better(known):,.{row.decimals}f}" if row.better and known and len(set(texts)) > 1 else None
    return [Text(f"{text}*", _BEST) if text == best else Text(f"{text} ") for text in texts]
