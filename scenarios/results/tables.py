"""Tables of metrics for one or several results, and comparisons of results as files.

The rows of a grid's tables are texts that the command line prints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from gridweave.errors import InputError
from gridweave.scenarios.results.files import Writer, folder_name, plain_numbers, save_figure, write_all, write_json
from gridweave.scenarios.results.metrics import PARTS_OF_ONE, Metrics
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.results.uses import NetworkUse
from gridweave.scenarios.workload.table import MS_PER_S

ACROSS_AT_MOST = 4
"""Maximum number of results that are shown as columns, so that the table fits in 80 characters."""

_BEST = "bold green"


@dataclass(frozen=True, slots=True)
class _Row:
    """One metric in a table: its name, its format, and whether higher or lower values are better."""

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
    """Return a table of results' metrics, with metrics as rows and results as columns.

    If all results have the same workload and machine, the best value in each row is green with an asterisk, unless all
    values are equal. More than `ACROSS_AT_MOST` results are shown as rows, with the main metrics as columns. Raise
    InputError if there is no result.
    """
    if not results:
        raise InputError("there is no result to show; give at least one")
    setups = list(dict.fromkeys(f"{result.workload.name} on {result.nodes} nodes" for result in results))
    compare = len(results) > 1 and len(setups) == 1
    metrics = [result.metrics() for result in results]
    table = Table(
        title=Text(", ".join(setups)), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    if len(results) > ACROSS_AT_MOST:
        _results_down(table, [result.label for result in results], metrics, compare=compare)
    else:
        _results_across(table, results, metrics, compare=compare)
    if compare:
        table.caption = Text("\n* best", _BEST, justify="left")
    return table


def _results_across(
    table: Table, results: Sequence[SimulationResult], metrics: Sequence[Metrics], *, compare: bool
) -> None:
    table.add_column("", no_wrap=True)
    for result in results:
        table.add_column(Text(result.label), justify="right", overflow="fold")
    for section in _SECTIONS:
        for row in section:
            table.add_row(_named(row.name, row.unit), *_cells(row, metrics, compare=compare))
        if section is not _SECTIONS[-1]:
            table.add_row()
    own = [{name: (value, unit) for name, value, unit in own_rows(result)} for result in results]
    names = dict.fromkeys(name for rows in own for name in rows)
    if names:
        table.add_row()
    for name in names:
        unit = next(rows[name][1] for rows in own if name in rows)
        table.add_row(_named(name, unit), *(Text(rows[name][0] if name in rows else "–") for rows in own))


def _named(name: str, unit: str, *, between: str = " ") -> Text:
    return Text(name) + Text(f"{between}[{unit}]" if unit else "", "dim")


def _results_down(table: Table, labels: Sequence[str], metrics: Sequence[Metrics], *, compare: bool) -> None:
    table.add_column("", overflow="fold")
    for name, row in _MAIN_ROWS.items():
        table.add_column(_named(name, row.unit, between="\n"), justify="right")
    columns = [_cells(row, metrics, compare=compare) for row in _MAIN_ROWS.values()]
    for label, *cells in zip(labels, *columns, strict=True):
        table.add_row(Text(label), *cells)


def _cells(row: _Row, metrics: Sequence[Metrics], *, compare: bool) -> list[Text]:
    """Return one metric's cells for all results, with the best marked; values with equal texts are equally good."""
    values = [row.value(metric) for metric in metrics]
    texts = ["–" if math.isnan(value) else f"{value:,.{row.decimals}f}" for value in values]
    if not compare:
        return [Text(text) for text in texts]
    finite = [value for value in values if not math.isnan(value)]
    best = f"{row.better(finite):,.{row.decimals}f}" if row.better and finite and len(set(texts)) > 1 else None
    return [Text(f"{text}*", _BEST) if text == best else Text(f"{text} ") for text in texts]


SITE_HEADINGS = ("site", "nodes", "submitted", "jobs run", "from elsewhere", "multi-site", "use")
"""Headings of `site_rows`."""

_LABELS = {
    "awrt_area_ms": "AWRT by resource consumption",
    "awwt_area_ms": "AWWT by resource consumption",
    "awrt_width_ms": "AWRT by width",
    "awwt_width_ms": "AWWT by width",
    "awt_ms": "AWT",
    "art_ms": "ART",
    "artww_ms": "ARTwW",
    "sldwa": "SLDwA",
    "sldww": "SLDwW",
    "bounded_slowdown_10s": "bounded slowdown 10 s",
    "bounded_slowdown_60s": "bounded slowdown 60 s",
    "pp_slowdown_60s": "per-processor slowdown 60 s",
    "util": "UTIL",
}


def site_rows(result: SimulationResult) -> Iterator[tuple[str, ...]]:
    """Yield table rows on the use of each site and of the whole grid.

    Yields
    ------
    tuple of str
        One row for each site and one for the whole grid, with the columns `SITE_HEADINGS`. A job on several sites is
        counted at each of its sites, and counts as coming from elsewhere at all sites except its home. In the last row,
        such a job counts only as a multi-site job.
    """
    for use in result.site_uses():
        counts = (use.nodes, use.submitted, use.jobs, use.from_elsewhere, use.multi_site_jobs)
        yield (use.name, *(f"{count:,}" for count in counts), _percent(use.util))
    single = np.flatnonzero(result.n_fragments == 1)
    elsewhere = int(np.count_nonzero(result.fragments["site"][result.first_fragment[single]] != result.home[single]))
    ran = int(np.count_nonzero(result.n_fragments))
    counts = (result.nodes, len(result.workload), ran, elsewhere, int(result.multi_site.sum()))
    yield ("whole grid", *(f"{count:,}" for count in counts), _percent(result.metrics().util))


def metric_rows(result: SimulationResult) -> Iterator[tuple[str, str, str]]:
    """Yield metrics of the whole grid: multi-site jobs, messages, and the metrics in ``result.shown``.

    Yields
    ------
    tuple of str
        Name, value, unit.
    """
    count, ran = int(result.multi_site.sum()), int(np.count_nonzero(result.n_fragments))
    yield "multi-site jobs", f"{count:,}", ""
    yield "multi-site jobs, of all jobs", f"{count / ran * 100:.2f}" if ran else "–", "%"
    yield "multi-site jobs, of the squashed area", _percent(result.multi_site_area()).removesuffix("%"), "%"
    if result.world is not None:
        yield "messages between sites and grid", f"{result.world.messages:,}", ""
        yield "jobs started again after a failure", f"{result.world.restarts:,}", ""
    values = result.metrics().to_dict()
    for name in result.shown:
        yield _shown(name, values[name])
    yield from own_rows(result)


def own_rows(result: SimulationResult) -> Iterator[tuple[str, str, str]]:
    """Yield the metrics that a result's disciplines define.

    Yields
    ------
    tuple of str
        Name, value, unit.
    """
    for name, value in plain_numbers(result.own_metrics).items():
        yield _shown(name, value)


RESOURCE_HEADINGS = ("site", "resource", "total", "use")
"""Headings of `resource_rows`."""

GPU_HEADINGS = ("jobs", "number", "AWT [s]", "median wait [s]", "bounded slowdown 10 s")
"""Headings of `gpu_rows`."""


def resource_rows(result: SimulationResult) -> Iterator[tuple[str, ...]]:
    """Yield table rows on the use of the cores, memory and GPUs of each site, with the columns `RESOURCE_HEADINGS`."""
    names = result.site_names or (result.name,)
    for use in result.resource_uses():
        is_memory = use.resource == "memory_mb"
        total = f"{use.total / 1000:,.0f} GB" if is_memory else f"{use.total:,}"
        name = {"memory_mb": "memory", "gpus": "GPUs"}.get(use.resource, use.resource)
        yield names[use.site], name, total, _percent(use.util)


def gpu_rows(result: SimulationResult) -> Iterator[tuple[str, ...]]:
    """Yield a table row each for the jobs without and with GPUs, with the columns `GPU_HEADINGS`."""
    for name, metrics in result.metrics_by("gpus").items():
        values = (metrics.awt_ms / MS_PER_S, metrics.wait_median_ms / MS_PER_S, metrics.bounded_slowdown_10s)
        formats = (",.0f", ",.0f", ",.2f")
        texts = (
            "–" if math.isnan(value) else format(value, shape) for value, shape in zip(values, formats, strict=True)
        )
        yield name, f"{metrics.jobs:,}", *texts


def network_rows(use: NetworkUse) -> Iterator[tuple[str, str, str]]:
    """Yield statistics on how the network affected the jobs.

    Yields
    ------
    tuple of str
        Name, value, unit.
    """
    yield "topology", f"{use.name}: {use.nodes:,} nodes, {use.cables:,} links", ""
    if use.changes:
        yield "changes of links", f"{use.changes:,}", ""
    yield "factor of multi-site jobs on idle links, mean", _factor(use.mean_factor), ""
    yield "the same by width x run time", _factor(use.mean_factor_by_area), ""
    yield f"slowdown by contention ({use.contention}), mean", _factor(use.mean_slowdown), ""
    if use.data != "none":
        yield "jobs that held nodes for transfers", f"{use.jobs_with_transfers:,}", ""
        yield "time of jobs in transfers", f"{use.transfer_ms / MS_PER_S:,.0f}", "s"
        yield "the same, of all node time", _percent(math.nan if use.transfer_share is None else use.transfer_share), ""


def _factor(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3f}"


def _shown(name: str, value: float | None) -> tuple[str, str, str]:
    """Format a metric as (label, value, unit)."""
    label = _LABELS.get(name, name.removesuffix("_ms").replace("_", " "))
    if value is None:
        return label, "–", ""
    if name.endswith("_ms"):
        unit = "node s" if name.endswith("_node_ms") else "s"
        return label.removesuffix(" node"), f"{value / MS_PER_S:,.0f}", unit
    if name in PARTS_OF_ONE:
        return label, f"{value * 100:.2f}", "%"
    return label, f"{value:,}" if isinstance(value, int) else f"{value:,.3f}", ""


def _percent(part: float) -> str:
    return "–" if math.isnan(part) else f"{part * 100:.2f}%"


def write_comparison(
    results: Sequence[SimulationResult], folder: str | Path, *, plots: bool = True
) -> tuple[Path, ...]:
    """Write several results, each to its own folder, and a comparison of the results.

    Parameters
    ----------
    results : sequence of SimulationResult
        At least one result; the labels name the folders and must be distinct.
    folder : str or pathlib.Path
        Target folder, created if necessary.
    plots : bool, optional
        Whether to draw the plots of each result and ``comparison.png``.

    Returns
    -------
    tuple of pathlib.Path
        The files of each result, ``comparison.json`` (label, folder, options and metrics of each result, in the order
        of ``results``) and ``comparison.png``. No file gets its final name before all files are complete.

    Raises
    ------
    InputError
        If there is no result, if two labels give the same folder, or in the same cases as `SimulationResult.write`.
    """
    if not results:
        raise InputError("there is no result to compare; give at least one")
    names = [folder_name(result.label) for result in results]
    for row, name in enumerate(names):
        if name.casefold() in (other.casefold() for other in names[:row]):
            raise InputError(f"two results would be written to the folder {name!r}; give them distinct labels")
    files: dict[str, Writer] = {}
    for name, result in zip(names, results, strict=True):
        files |= {f"{name}/{file}": writer for file, writer in result.files(plots=plots).items()}
    entries = [
        {
            "label": result.label,
            "folder": name,
            "site": result.name,
            "nodes": result.nodes,
            "workload": result.workload.name,
            "options": dict(result.options),
            "metrics": result.metrics().to_dict(),
        }
        for name, result in zip(names, results, strict=True)
    ]
    files["comparison.json"] = lambda path: write_json(path, {"results": entries})
    if plots:
        from gridweave.scenarios.plots.results import plot_comparison

        files["comparison.png"] = lambda path: save_figure(path, plot_comparison(results))
    return write_all(Path(folder), files)
