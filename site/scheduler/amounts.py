"""The cores, memory and GPUs of a site that grid jobs cannot get, because others hold them (docs/grid.md)."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np

from gridweave.site.allocation import bits_of
from gridweave.site.job import NodeIntervals
from gridweave.site.messages import NodeAmounts, SiteChanged, StartJob
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.users.owner import GridShare


def counted_nodes(site: SiteCore, command: StartJob) -> NodeIntervals | msgspec.UnsetType:
    """Return the nodes of a start for the grid, which keeps account of them; unset if resources are not counted."""
    return msgspec.UNSET if site.source.discipline.node_amounts is None else command.nodes


def capacity_report(site: SiteCore, share: GridShare, own_jobs: Collection[int]) -> SiteChanged:
    """Return what the grid cannot use now for a reason other than its own jobs."""
    free, held = site.source.idle, amounts_of_others(site, own_jobs)
    others = share.others(free) if held is msgspec.UNSET else len(held)
    closed, longest_ms = share.closed or "", site.source.longest_job_ms
    return SiteChanged(others, min(free, share.further_nodes), closed, longest_ms, held)


def amounts_of_others(site: SiteCore, own_jobs: Collection[int]) -> NodeAmounts | msgspec.UnsetType:
    """Return what the site's own running jobs and reservations hold on each node; unset if resources are not counted.

    Nodes that are out of service count as held. Nodes of which others hold nothing are left out.
    """
    total = site.source.discipline.node_amounts
    if total is None:
        return msgspec.UNSET
    held = site.source.discipline.held_amounts(own_jobs)
    reserved = bits_of(interval for nodes in site.reserved_nodes.values() for interval in nodes)
    for node in range(len(held)) if reserved else ():
        if reserved >> node & 1:
            held[node] = total[node]
    return tuple((node, tuple(held[node].tolist())) for node in np.flatnonzero(held.any(axis=1)).tolist())
