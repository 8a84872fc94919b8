"""The figures of a grid as rows of a table for people."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gridweave.scenarios.grid_results import GridRun
from gridweave.scenarios.metrics import PARTS_OF_ONE
from gridweave.scenarios.network_use import NetworkUse
from gridweave.scenarios.workload import MS_PER_S
from gridweave.scenarios.world.simulate import WorldResult

SITE_HEADINGS = ("site", "nodes", "submitted", "jobs run", "from elsewhere", "multi-site", "use")
"""Of the columns of `site_rows`."""

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


def site_rows(run: GridRun) -> Iterator[tuple[str, ...]]:
    """Yield what became of the sites.

    Parameters
    ----------
    run : GridRun

    Yields
    ------
    tuple of str
        One for each site and one for the whole grid, with the columns `SITE_HEADINGS`. A job on several sites runs at
        each of them, and is from elsewhere at all but its home; in the last row it is only a multi-site job.
    """
    for use in run.site_uses():
        counts = (use.nodes, use.submitted, use.jobs, use.from_elsewhere, use.multi_site_jobs)
        yield (use.name, *(f"{count:,}" for count in counts), _percent(use.util))
    result = run.result
    single = np.flatnonzero(result.n_fragments == 1)
    elsewhere = int(np.count_nonzero(result.fragments["site"][result.first_fragment[single]] != run.home[single]))
    ran = int(np.count_nonzero(result.n_fragments))
    counts = (int(result.nodes.sum()), len(result.workload), ran, elsewhere, int(result.multi_site.sum()))
    yield ("whole grid", *(f"{count:,}" for count in counts), _percent(run.as_one().metrics().util))


def metric_rows(run: GridRun) -> Iterator[tuple[str, str, str]]:
    """Yield the figures of the whole grid: those of multi-site jobs, then the metrics that the run is to show.

    Parameters
    ----------
    run : GridRun

    Yields
    ------
    tuple of str
        Name, value, unit.
    """
    result = run.result
    count, ran = int(result.multi_site.sum()), int(np.count_nonzero(result.n_fragments))
    yield "multi-site jobs", f"{count:,}", ""
    yield "multi-site jobs, of all jobs", f"{count / ran * 100:.2f}" if ran else "–", "%"
    yield "multi-site jobs, of the squashed area", _percent(run.multi_site_area()).removesuffix("%"), "%"
    if isinstance(result, WorldResult):
        yield "messages between sites and grid", f"{result.messages:,}", ""
        yield "jobs begun anew after a failure", f"{result.restarts:,}", ""
    values = run.as_one().metrics().to_dict()
    for name in run.shown:
        yield _shown(name, values[name])


def network_rows(use: NetworkUse) -> Iterator[tuple[str, str, str]]:
    """Yield what the network did to the jobs.

    Parameters
    ----------
    use : NetworkUse

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
    """Return a metric as people read it."""
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
