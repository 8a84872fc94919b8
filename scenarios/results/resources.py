"""How the cores, memory and GPUs of sites were used (docs/metrics.md, "Cores, GPUs and memory").

A job uses the resources that it requested, from its start to its end. A whole node counts as the average of the site's
suitable nodes, because results do not record on which nodes a job ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.scenarios.traces.text import FloatArray
from gridweave.scenarios.workload.columns import JobClasses
from gridweave.scenarios.workload.table import BoolArray, IntArray, Workload
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk, NodeKind, columns_of, request_of

SiteKinds = Sequence[NodeKind]
"""The kinds of nodes of a site; empty if the site gives out whole nodes that are all alike."""

WITH_GPUS = ("without GPUs", "with GPUs")
"""The classes of `classes_by_gpus`."""


class HasFragments(Protocol):
    """A result whose sites may count resources."""

    @property
    def workload(self) -> Workload:
        """The jobs."""

    @property
    def site_kinds(self) -> Sequence[SiteKinds]:
        """The kinds of each site; empty if no site counts resources."""

    @property
    def site_nodes(self) -> IntArray:
        """Number of nodes of each site."""

    @property
    def fragments(self) -> npt.NDArray[np.void]:
        """Site and width of each fragment."""

    @property
    def start_ms(self) -> IntArray:
        """Start of each job."""

    @property
    def end_ms(self) -> IntArray:
        """End of each job."""

    @property
    def ran(self) -> BoolArray:
        """Which jobs ran."""

    def job_of_fragments(self) -> IntArray:
        """Return the row of the job of each fragment."""


class ResourceUse(msgspec.Struct, frozen=True, kw_only=True):
    """How a resource of a site was used.

    Attributes
    ----------
    site : int
        Index of the site.
    resource : str
        ``cores``, ``memory_mb``, ``gpus``, or the name of another countable resource.
    total : int
        Total amount on all nodes of the site.
    util : float
        Used share of the total, from the first submission to the last end of the whole result; NaN if no job ran.
    """

    site: int
    resource: str
    total: int
    util: float


@dataclass(frozen=True, eq=False, slots=True)
class UsedResources:
    """The resources that each fragment of a result used.

    Attributes
    ----------
    columns : tuple of str
        Names of the resources.
    total : numpy.ndarray of int64, shape (sites, resources)
        Total amounts of each site; 0 for memory unless all nodes of the site count memory.
    amount : numpy.ndarray of float64, shape (all fragments, resources)
        Amounts that each fragment used.
    job, site : numpy.ndarray of int64, shape (all fragments,)
        Row of the job, and index of the site.
    """

    columns: tuple[str, ...]
    total: IntArray
    amount: FloatArray
    job: IntArray
    site: IntArray

    @classmethod
    def of(cls, result: HasFragments) -> UsedResources:
        """Return what a result's fragments used; a node of a site without kinds counts as one core."""
        kinds = [kinds or _plain(int(nodes)) for kinds, nodes in zip(result.site_kinds, result.site_nodes, strict=True)]
        columns = columns_of(kind for site in kinds for kind in site)
        job, site = result.job_of_fragments(), result.fragments["site"].astype(np.int64)
        table = np.array([[_each(chunk, on, columns) for chunk in _chunks(result.workload)] for on in kinds])
        amount = table[site, _chunk_of(result.workload)[job]] * result.fragments["width"][:, None]
        return cls(columns, np.array([_total(site, columns) for site in kinds], np.int64), amount, job, site)

    def column(self, resource: str) -> int:
        """Return the index of a resource."""
        return self.columns.index(resource)

    def of_jobs(self, jobs: int) -> FloatArray:
        """Return what each job used on all its sites, as an array of shape (jobs, resources)."""
        amounts = np.zeros((jobs, len(self.columns)))
        np.add.at(amounts, self.job, self.amount)
        return amounts


def _plain(nodes: int) -> list[NodeKind]:
    return [NodeKind(name="node", count=nodes)]


def _chunks(workload: Workload) -> tuple[Chunk, ...]:
    """Return a workload's chunks, followed by a whole node (-1 in the column ``chunk``)."""
    return (*workload.chunks, WHOLE_NODE)


def _chunk_of(workload: Workload) -> IntArray:
    """Return the index of each job's chunk in `_chunks`."""
    whole = len(workload.chunks)
    if "chunk" not in workload.columns:
        return np.full(len(workload), whole)
    chunk = np.asarray(workload.columns["chunk"], np.int64)
    return np.where(chunk < 0, whole, chunk)


def _each(chunk: Chunk, kinds: SiteKinds, columns: Sequence[str]) -> list[float]:
    """Return how much of each resource a chunk uses at a site."""
    if not chunk.is_whole:
        return [float(amount) for amount in request_of(chunk, columns)]
    suitable = [kind for kind in kinds if chunk.suits(kind)]
    nodes = sum(kind.count for kind in suitable)
    return [total / nodes for total in _total(suitable, columns)] if nodes else [0.0] * len(columns)


def _total(kinds: SiteKinds, columns: Sequence[str]) -> list[int]:
    """Return how much of each resource the nodes of these kinds have together."""
    counts_memory = all(kind.memory_mb is not None for kind in kinds)
    total = [0] * len(columns)
    for kind in kinds:
        has = {"cores": kind.cores, "memory_mb": (kind.memory_mb or 0) if counts_memory else 0, "gpus": kind.gpus}
        has |= dict(kind.others)
        for index, name in enumerate(columns):
            total[index] += kind.count * has.get(name, 0)
    return total


def resource_uses(result: HasFragments) -> list[ResourceUse]:
    """Return how each site's resources were used, for resources that the site has."""
    used, ran = UsedResources.of(result), result.ran
    span_ms = float(result.end_ms[ran].max() - result.workload.submit_ms[ran].min()) if ran.any() else math.nan
    length_ms = (result.end_ms - result.start_ms).astype(np.float64)[used.job]
    uses = []
    for index, name in enumerate(used.columns):
        area = np.bincount(used.site, length_ms * used.amount[:, index], len(used.total))
        uses += [
            ResourceUse(site=site, resource=name, total=int(total), util=float(area[site] / (total * span_ms)))
            for site, total in enumerate(used.total[:, index].tolist())
            if total
        ]
    return sorted(uses, key=lambda use: use.site)


def classes_by_gpus(workload: Workload) -> JobClasses:
    """Divide a workload's jobs into those without and those with GPUs."""
    asks = np.array([chunk.gpus > 0 for chunk in _chunks(workload)])
    return JobClasses(WITH_GPUS, asks[_chunk_of(workload)].astype(np.int64))
