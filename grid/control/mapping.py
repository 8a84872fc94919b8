"""Map all waiting jobs over the sites at once, by their lengths on each site (docs/control.md, "Mapped over sites").

The algorithms are those of a site with heterogeneous machines. Here the nodes of a site are identical machines, and a
job may use several of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gridweave.grid.control.coallocation import Fragments
from gridweave.site.disciplines.heterogeneous.mapping import machine_arrays, map_to
from gridweave.site.kernels.state import NEVER_MS

SEVERAL = -1
"""The site number that stands for several sites."""


class SiteOffer(NamedTuple):
    """A site's offer for a job, ignoring the grid's other jobs there: earliest start, number of nodes, and length."""

    from_ms: int
    nodes: int
    length_ms: int


class JobToMap(NamedTuple):
    """A waiting job, with the sites' offers for it.

    Attributes
    ----------
    width : int
        The total number of nodes if the job is split.
    offers : mapping from int to SiteOffer
        The offer of each site for the whole job.
    split_ms : int, optional
        The job's length if it is split; None if it cannot be split.
    """

    width: int
    offers: Mapping[int, SiteOffer]
    split_ms: int | None = None


class PlannedPlace(msgspec.Struct, frozen=True, gc=False):
    """The planned site of a job, or `SEVERAL`, with its start and end."""

    site: int
    start_ms: int
    end_ms: int


class MappingDecision(NamedTuple):
    """The planned placement of a job in a mapping, and whether the job is sent there now.

    Attributes
    ----------
    place : PlannedPlace, optional
        The planned site and times; None if the job cannot run anywhere now.
    goes : bool
        Whether the job is sent to its site's queue now.
    split : tuple of (Fragments, int), optional
        The job's fragments and length, if it is split now.
    """

    place: PlannedPlace | None
    goes: bool = False
    split: tuple[Fragments, int] | None = None


def map_over_sites(
    jobs: Sequence[JobToMap], ready_ms: Sequence[Sequence[int]], takes_parts: Sequence[bool], algorithm: str
) -> list[PlannedPlace | None]:
    """Map jobs over sites.

    Parameters
    ----------
    jobs : sequence of JobToMap
        The jobs in order of submission.
    ready_ms : sequence of sequence of int
        For each site, when each of its nodes is free; never before now.
    takes_parts : sequence of bool
        For each site, whether it runs fragments of split jobs.
    algorithm : str
        One of `gridweave.grid.policy.MAPPINGS`.

    Returns
    -------
    list of PlannedPlace or None
        The plan of each job; None for a job that cannot run anywhere now.

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
    offers = np.zeros((len(jobs), 3, len(sites)), np.int64)
    offers[:, 0] = NEVER_MS
    split_ms = np.full((len(jobs), len(widths)), NEVER_MS)
    for row, job in enumerate(jobs):
        for site, offer in job.offers.items():
            if 1 <= offer.nodes <= len(ready_ms[site]):
                offers[row, :, column[site]] = offer.length_ms, offer.nodes, offer.from_ms
        if job.split_ms is not None and job.width in widths:
            split_ms[row, widths.index(job.width)] = job.split_ms
    kinds, kind = np.unique(np.hstack([offers.reshape(len(jobs), -1), split_ms]), axis=0, return_inverse=True)
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
    plans: list[PlannedPlace | None] = []
    for row, nodes in enumerate(mapped.machines):
        if not nodes:
            plans.append(None)
            continue
        site = SEVERAL if mapped.team[row] >= 0 else sites[node_of[nodes[0]]]
        plans.append(PlannedPlace(site, int(mapped.start_ms[row]), int(mapped.end_ms[row])))
    return plans
