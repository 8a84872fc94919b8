"""Chunks, which jobs request, and kinds of nodes, on which chunks are placed (docs/resources.md).

A job requests ``width`` identical chunks. A chunk fits on one node, and several chunks, of one or several jobs, may
share a node. A job without a chunk gets whole nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

MAX_AMOUNT = 10**9
"""Largest amount of a resource on one node; a larger value must be an input error."""

MAX_KINDS = 62
"""Largest number of kinds of nodes at a site, because a set of kinds is a bit mask."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The resources that a job needs for each of its ``width`` chunks.

    Attributes
    ----------
    cores : int
        Cores, at least 1; 0: the whole node, in which case ``exclusive`` is true and nothing else is counted.
    memory_mb : int
        Memory in MB (10**6 bytes); 0: not counted.
    gpus : int
        Number of GPUs.
    gpu_type : str
        Required type of the GPUs and, therefore, of the node; empty: any type.
    others : tuple of (str, int)
        Amounts of other countable resources, by name, ascending.
    labels : tuple of str
        Labels that the node must have, ascending. The name of a kind also counts as a label.
    exclusive : bool
        Whether the job's nodes run no other job.
    per_node : int
        Exact number of the job's chunks on each of its nodes, a divisor of the job's width; 0: any number.
    """

    cores: int = 1
    memory_mb: int = 0
    gpus: int = 0
    gpu_type: str = ""
    others: tuple[tuple[str, int], ...] = ()
    labels: tuple[str, ...] = ()
    exclusive: bool = False
    per_node: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether each chunk is a whole node."""
        return self.cores == 0

    def suits(self, kind: NodeKind) -> bool:
        """Whether a node of this kind has the right labels and type of GPU, whatever its size."""
        return {*self.labels} <= {kind.name, *kind.labels} and self.gpu_type in ("", kind.gpu_type)


WHOLE_NODE = Chunk(cores=0, exclusive=True)
"""The chunk of a job that asks for nothing but its width."""


class NodeKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Nodes that are alike. The nodes of a site are numbered consecutively, in the order of its kinds.

    Attributes
    ----------
    name : str
        Name of the kind; empty only where no job can ask for a kind: on shared nodes, and on a Slurm cluster.
    count : int
        Number of nodes, at least 1.
    cores : int
        Cores of each node, at least 1.
    memory_mb : int, optional
        Memory of each node in MB (10**6 bytes); None: not counted.
    gpus : int
        GPUs of each node.
    gpu_type : str
        Type of the GPUs, e.g. ``a100``; empty if unknown, or without GPUs.
    others : tuple of (str, int)
        Amounts of other countable resources on each node, by name, ascending.
    labels : tuple of str
        Names that a job can require.
    speed : float
        Speed relative to the machine on which run times were measured; only for sites whose discipline uses speeds.
    threads : int
        Hardware threads of each core, for shared nodes; on a standard CPU, the multiprogramming level.
    memory : float
        Memory of each node, for shared nodes, relative to the memory to which the jobs' memory fractions refer.
    cpu : str
        CPU of shared nodes, ``hyperthreaded`` or ``standard``.
    """

    name: str = ""
    count: int
    cores: int = 1
    memory_mb: int | None = None
    gpus: int = 0
    gpu_type: str = ""
    others: tuple[tuple[str, int], ...] = ()
    labels: tuple[str, ...] = ()
    speed: float = 1.0
    threads: int = 2
    memory: float = 1.0
    cpu: str = "hyperthreaded"


def fields_set(kind: NodeKind, ignore: Iterable[str]) -> list[str]:
    """Return the fields that differ from their defaults, without the fields in `ignore`, in the order of the fields.

    Examples
    --------
    >>> fields_set(NodeKind(name="gpu", count=2, gpus=4, speed=2.0), ignore=("name", "count", "speed"))
    ['gpus']
    """
    plain = NodeKind(count=1)
    others = [name for name in kind.__struct_fields__ if name not in ignore]
    return [name for name in others if getattr(kind, name) != getattr(plain, name)]


FIRST_COLUMNS = ("cores", "memory_mb", "gpus")
"""The resources that every site counts; a kind without a memory size gets `MAX_AMOUNT`."""


def columns_of(kinds: Iterable[NodeKind]) -> tuple[str, ...]:
    """Return the names of the resources that a site counts, in the order of the columns in its arrays."""
    return (*FIRST_COLUMNS, *sorted({name for kind in kinds for name, _ in kind.others}))


def capacity_of(kind: NodeKind, columns: Sequence[str]) -> tuple[int, ...]:
    """Return how much of each resource a node of this kind has."""
    memory_mb = MAX_AMOUNT if kind.memory_mb is None else kind.memory_mb
    others = dict(kind.others)
    return (kind.cores, memory_mb, kind.gpus, *(others.get(name, 0) for name in columns[len(FIRST_COLUMNS) :]))


def request_of(chunk: Chunk, columns: Sequence[str]) -> tuple[int, ...]:
    """Return how much of each resource a chunk needs; all 0 for a whole node."""
    others = dict(chunk.others)
    return (chunk.cores, chunk.memory_mb, chunk.gpus, *(others.get(name, 0) for name in columns[len(FIRST_COLUMNS) :]))


def most_nodes(width: int, chunk: Chunk | msgspec.UnsetType) -> int:
    """Return the maximum number of nodes that a job's chunks can occupy; quotas and usage count this number.

    Examples
    --------
    >>> most_nodes(8, msgspec.UNSET), most_nodes(8, Chunk(cores=2)), most_nodes(8, Chunk(cores=2, per_node=4))
    (8, 8, 2)
    """
    return -(-width // (chunk.per_node or 1)) if chunk else width


def chunks_on(chunk: Chunk, kind: NodeKind) -> int:
    """Return how many chunks of one job an idle node of this kind can hold.

    Examples
    --------
    >>> gpu = NodeKind(name="gpu", count=2, cores=64, gpus=4, gpu_type="a100")
    >>> [chunks_on(chunk, gpu) for chunk in (Chunk(cores=8, gpus=1), Chunk(cores=8, per_node=2), WHOLE_NODE)]
    [4, 2, 1]
    """
    columns = columns_of([kind])
    return chunks_within(chunk, kind, columns, capacity_of(kind, columns))


def chunks_within(chunk: Chunk, kind: NodeKind, columns: Sequence[str], free: Sequence[int]) -> int:
    """Return how many chunks of one job fit on a node of this kind with these free amounts.

    With ``per_node``, this is either that number or 0.
    """
    if not chunk.suits(kind) or not {name for name, _ in chunk.others} <= {*columns}:
        return 0
    if (chunk.is_whole or chunk.exclusive) and free[0] < kind.cores:
        return 0
    if chunk.is_whole:
        return 1
    fitting = min(there // need for there, need in zip(free, request_of(chunk, columns), strict=True) if need)
    if not chunk.per_node:
        return fitting
    return chunk.per_node if fitting >= chunk.per_node else 0
