"""All that waits mapped over the sites at once, by what they expect of each (docs/control.md, "Mapped over sites").

The rules are those by which a site of machines that differ maps its jobs, with the nodes of a site as machines that are
alike, of which a job takes several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gridweave.site.disciplines.heterogeneous.mapping import machine_arrays, map_to
from gridweave.site.kernels.state import NEVER_MS

SEVERAL = -1
"""Stands in the place of a site for a job on several of them."""


class SiteOffer(NamedTuple):
    """What a job would have at a site that had nothing else of the grid's: from when, how many nodes, for how long."""

    from_ms: int
    nodes: int
    length_ms: int


class JobToMap(NamedTuple):
    """A job that waits, and where it could run.

    Attributes
    ----------
    width : int
        Nodes on several sites together.
    offers : mapping from int to SiteOffer
        By site.
    split_ms : int, optional
        How long it takes on several sites; None if it is not split.
    """

    width: int
    offers: Mapping[int, SiteOffer]
    split_ms: int | None = None


class PlannedPlace(msgspec.Struct, frozen=True, gc=False):
    """Where a job is to run, a site or `SEVERAL`, and when."""

    site: int
    start_ms: int
    end_ms: int


def map_over_sites(
    jobs: Sequence[JobToMap], ready_ms: Sequence[Sequence[int]], takes_parts: Sequence[bool], algorithm: str
) -> list[PlannedPlace | None]:
    """Map jobs over sites.

    Parameters
    ----------
    jobs : sequence of JobToMap
        In the order of submission.
    ready_ms : sequence of sequence of int
        Of each site, when each of its nodes has nothing to run; at the earliest the present.
    takes_parts : sequence of bool
        Of each site, whether it takes parts of jobs on several.
    algorithm : str
        One of `gridweave.grid.policy.MAPPINGS`.

    Returns
    -------
    list of PlannedPlace or None
        None for a job that can run nowhere now.

    Examples
    --------
    >>> slow, fast = SiteOffer(0, 1, 100), SiteOffer(0, 1, 40)
    >>> jobs = [JobToMap(1, {0: slow, 1: fast})] * 2
    >>> [job.site for job in map_over_sites(jobs, [[0], [0]], [True, True], "sjs") if job]
    [1, 1]
    >>> [job.site for job in map_over_sites(jobs, [[0], [0]], [True, True], "olb") if job]
    [0, 1]
    """
    sites = [site for site, nodes in enumerate(ready_ms) if nodes]
    column = {site: number for number, site in enumerate(sites)}
    node_of = [column[site] for site in sites for _ in ready_ms[site]]
    parts = [node for node, number in enumerate(node_of) if takes_parts[sites[number]]]
    widths = sorted({job.width for job in jobs if job.split_ms is not None and job.width <= len(parts)})
    if not jobs or not sites:
        return [None] * len(jobs)
    told = np.zeros((len(jobs), 3, len(sites)), np.int64)
    told[:, 0] = NEVER_MS
    split_ms = np.full((len(jobs), len(widths)), NEVER_MS)
    for row, job in enumerate(jobs):
        for site, offer in job.offers.items():
            if 1 <= offer.nodes <= len(ready_ms[site]):
                told[row, :, column[site]] = offer.length_ms, offer.nodes, offer.from_ms
        if job.split_ms is not None and job.width in widths:
            split_ms[row, widths.index(job.width)] = job.split_ms
    kinds, kind = np.unique(np.hstack([told.reshape(len(jobs), -1), split_ms]), axis=0, return_inverse=True)
    alone_ms, taken, from_ms = (kinds[:, at * len(sites) : (at + 1) * len(sites)] for at in range(3))
    mapped = map_to(
        machine_arrays(node_of, [parts] if parts else [], [(0, width) for width in widths]),
        np.concatenate([np.asarray(ready_ms[site], np.int64) for site in sites]),
        kind.reshape(-1),
        alone_ms,
        kinds[:, 3 * len(sites) :],
        algorithm=algorithm,
        taken=taken,
        from_ms=from_ms,
    )
    found: list[PlannedPlace | None] = []
    for row, nodes in enumerate(mapped.machines):
        if not nodes:
            found.append(None)
            continue
        site = SEVERAL if mapped.team[row] >= 0 else sites[node_of[nodes[0]]]
        found.append(PlannedPlace(site, int(mapped.start_ms[row]), int(mapped.end_ms[row])))
    return found
