"""Simulate a grid whose sites count cores, memory and GPUs: its sites, and the requests of a workload's jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from gridweave.errors import OptionError
from gridweave.grid.kernels.resources import CountedSite, fill_grid_request, whole_nodes
from gridweave.grid.kernels.state import GridState
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.site.policy import PLACEMENTS, SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind

GridSite = int | Sequence[NodeKind] | SitePolicy
"""A site of a grid: the number or the kinds of its nodes, or a policy with kinds."""


def counted_sites(sites: Sequence[GridSite]) -> list[CountedSite] | None:
    """Return the nodes of each site; None if no site counts resources."""
    try:
        counted = [_of_site(site) for site in sites]
    except TypeError:  # not a sequence of sites; `checked_sites` names the problem
        return None
    return counted if any(site.counts for site in counted) else None


def _of_site(site: GridSite) -> CountedSite:
    kinds, placement = (site.kinds, site.placement) if isinstance(site, SitePolicy) else (site, PLACEMENTS[0])
    if isinstance(kinds, Sequence) and all(isinstance(kind, NodeKind) for kind in kinds):
        if not kinds:
            raise OptionError("kinds", "is empty; expected at least one kind of node")
        return CountedSite(tuple(kinds), PLACEMENTS.index(placement), counts=True)
    return whole_nodes(kinds)  # type: ignore[arg-type]


def check_counts(policy: GridPolicy, net: GridNet | None) -> None:
    """Raise OptionError if an option does not work with sites that count resources."""
    if policy.backfill == "conservative":
        raise OptionError("backfill", "conservative plans whole nodes; sites with kinds of nodes need easy or none")
    if policy.mode == "local":
        raise OptionError("mode", "local does not work with kinds of nodes; simulate each site by itself")
    if net is not None and net.data != "none":
        raise OptionError("data", f"{net.data} does not work with kinds of nodes; expected none")


def rows_by_chunk(workload: Workload, rows: IntArray) -> Iterator[tuple[Chunk | None, IntArray]]:
    """Yield each chunk that jobs in these rows ask for (None: whole nodes) with the rows of these jobs."""
    if "chunk" not in workload.columns:
        yield None, rows
        return
    chunk_of = np.asarray(workload.columns["chunk"], np.int64)[rows]
    for number in np.unique(chunk_of).tolist():
        yield None if number < 0 else workload.chunks[number], rows[chunk_of == number]


def most_chunks(sites: Sequence[CountedSite] | None, chunk: Chunk, n_sites: int) -> IntArray:
    """Return how many chunks fit on each idle site; none where resources are not counted."""
    return np.array([0] * n_sites if sites is None else [site.most_chunks(chunk) for site in sites], np.int64)


def fill_requests(state: GridState, workload: Workload, rows: IntArray, sites: Sequence[CountedSite]) -> None:
    """Store the requests of the jobs in these rows, one slot per job."""
    assert state.resources is not None, "no site counts resources"
    for chunk, some in rows_by_chunk(workload, rows):
        fill_grid_request(state.resources, np.searchsorted(rows, some), chunk or msgspec.UNSET, sites)
