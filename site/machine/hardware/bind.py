"""Assign the cores and GPUs of a machine to the nodes of a site that counts resources.

A machine may provide several nodes, of one or several sites. Each node gets consecutive cores and GPUs, in the order of
the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gridweave.site.machine.agent import Cores
from gridweave.site.machine.hardware.find import Gpu, Hardware, types_text


class NodeSize(Protocol):
    """The size of a node of a site: a `gridweave.site.resources.chunks.NodeKind`."""

    @property
    def name(self) -> str:
        """The name of its kind."""

    @property
    def cores(self) -> int:
        """Number of cores."""

    @property
    def memory_mb(self) -> int | None:
        """Memory in MB (10**6 bytes); None: not counted."""

    @property
    def gpus(self) -> int:
        """Number of GPUs."""

    @property
    def gpu_type(self) -> str:
        """Type of the GPUs; empty: any."""


class HostShare(msgspec.Struct, frozen=True, kw_only=True):
    """The share of a host's cores and GPUs for the nodes of one machine, if the host has several machines.

    Attributes
    ----------
    first_core, first_gpu : int
        Cores and GPUs of the nodes of earlier machines on the host.
    cores, gpus, memory_mb : int
        Cores, GPUs and memory of the nodes of all machines on the host.
    """

    first_core: int = 0
    first_gpu: int = 0
    cores: int = 0
    gpus: int = 0
    memory_mb: int = 0


def share_of(nodes: Iterable[NodeSize], before: Iterable[NodeSize] = (), after: Iterable[NodeSize] = ()) -> HostShare:
    """Return the share of a machine with these nodes on a host; `before` and `after` are nodes of other machines."""
    earlier = [*before]
    every = [*earlier, *nodes, *after]
    return HostShare(
        first_core=sum(kind.cores for kind in earlier),
        first_gpu=sum(kind.gpus for kind in earlier),
        cores=sum(kind.cores for kind in every),
        gpus=sum(kind.gpus for kind in every),
        memory_mb=sum(kind.memory_mb or 0 for kind in every),
    )


class Binding(NamedTuple):
    """The real cores and GPUs of a machine's nodes.

    Attributes
    ----------
    cores : tuple of Cores
        The hardware threads of each core of each node; empty if the ranks of jobs are not bound to cores.
    gpus : tuple of tuple of int
        For each node, the machine's numbers of its GPUs; no two nodes of a host have a GPU in common.
    notes : tuple of str
        Differences between the machine and the kinds of its nodes, one line each.
    """

    cores: tuple[Cores, ...]
    gpus: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]


def bind(hardware: Hardware, nodes: Sequence[NodeSize], share: HostShare | None = None) -> Binding:
    """Assign a machine's cores and GPUs to its nodes.

    If the machine has fewer cores than its nodes have together, no rank is bound to cores. If it has fewer GPUs, they
    are only numbered. So nodes of any size can be simulated on a small machine.

    Examples
    --------
    >>> from gridweave.site.resources.chunks import NodeKind
    >>> machine = Hardware(cores=4, memory_mb=1000, threads=((0,), (1,), (2,), (3,)))
    >>> bind(machine, [NodeKind(name="x", count=2, cores=2)] * 2).cores
    (((0,), (1,)), ((2,), (3,)))
    >>> bind(machine, [NodeKind(name="x", count=1, cores=64)]).notes
    ('jobs are not bound to cores: the nodes on this machine have 64 cores together, and the machine has 4',)
    """
    share = share_of(nodes) if share is None else share
    notes = []
    cores: tuple[Cores, ...] = ()
    if share.cores <= len(hardware.threads):
        cores = tuple(hardware.threads[low:high] for low, high in _spans(share.first_core, [n.cores for n in nodes]))
    else:
        notes.append(_too_few("jobs are not bound to cores", "cores", share.cores, hardware.cores))
        if share.cores <= hardware.cores:
            notes[-1] = "jobs are not bound to cores: this machine limits the processor time of the grid, not its cores"
    spans = _spans(share.first_gpu, [node.gpus for node in nodes])
    gpus = [tuple(range(low, high)) for low, high in spans]
    if share.gpus <= len(hardware.gpus):
        gpus = [tuple(gpu.number for gpu in hardware.gpus[low:high]) for low, high in spans]
        for node, (low, high) in zip(nodes, spans, strict=True):
            notes += _type_problem(node, hardware.gpus[low:high])
    else:
        notes.append(_too_few("GPUs are only numbered", "GPUs", share.gpus, len(hardware.gpus)))
        notes += [hardware.problem] * bool(hardware.problem)
    if share.memory_mb > hardware.memory_mb:
        notes.append(_too_few("jobs may run out of memory", "MB of memory", share.memory_mb, hardware.memory_mb))
    return Binding(cores, tuple(gpus), tuple(dict.fromkeys(notes)))


def _spans(first: int, counts: Iterable[int]) -> list[tuple[int, int]]:
    spans = []
    for count in counts:
        spans.append((first, first + count))
        first += count
    return spans


def _too_few(what: str, unit: str, needed: int, there: int) -> str:
    has = f"{there:,}" if there else "none"
    return f"{what}: the nodes on this machine have {needed:,} {unit} together, and the machine has {has}"


def _type_problem(node: NodeSize, gpus: Sequence[Gpu]) -> list[str]:
    if not node.gpu_type or all(gpu.type == node.gpu_type for gpu in gpus):
        return []
    return [f"kind {node.name!r} has GPUs {node.gpu_type}:{node.gpus}, but this machine has {types_text(gpus)} there"]
