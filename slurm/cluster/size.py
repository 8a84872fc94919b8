"""How large a job is in Slurm: whole nodes or chunks, as options of ``sbatch`` and as fields of slurmrestd. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gridweave.errors import InputError
from gridweave.site.resources.chunks import Chunk
from gridweave.slurm.system import AllocationRequest

FLAT = ("v0.0.37", "v0.0.38")
"""Interface versions whose job fields have plain values, like ``sbatch`` options; later versions follow slurmctld."""

_MB, _MIB = 10**6, 1 << 20


class JobSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a job in Slurm. A chunk is one of Slurm's tasks.

    Attributes
    ----------
    nodes : (int, int), optional
        Smallest and largest number of nodes; Slurm starts the job on as few of them as possible. None: any.
    exclusive : bool
        Whether no other job may run on the nodes.
    tasks, cpus_per_task, memory_mib : int
        Number of chunks, and CPUs and memory per CPU [MiB]; 0: not given to Slurm.
    per_node : int
        Number of chunks on each node; 0: any.
    gpus_per_task : str
        GPUs of each chunk, as ``TYPE:NUMBER`` or ``NUMBER``; empty: none, or in ``gres``.
    gres : tuple of str
        Generic resources on each node, as ``NAME:NUMBER``.
    labels : tuple of str
        Features that every node must have.
    """

    nodes: tuple[int, int] | None
    exclusive: bool = False
    tasks: int = 0
    cpus_per_task: int = 0
    memory_mib: int = 0
    per_node: int = 0
    gpus_per_task: str = ""
    gres: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


def size_of(request: AllocationRequest, *, gpus_per_task: bool = True) -> JobSize:
    """Return the size of a request; ``gpus_per_task`` says whether Slurm counts GPUs per task, or only per node.

    Raises
    ------
    InputError
        If Slurm counts a resource of the chunks only per node, and the number of chunks per node is not fixed.
    """
    chunk = request.parts
    if chunk is None:
        labels = () if request.chunk is None else request.chunk.labels
        return JobSize(nodes=(request.nodes, request.nodes), exclusive=True, labels=labels)
    per_node, gres = chunk.per_node, [*chunk.others]
    gpus = f"{chunk.gpu_type}:{chunk.gpus}" if chunk.gpu_type else str(chunk.gpus)
    if chunk.gpus and not gpus_per_task:
        gres.append((f"gpu:{chunk.gpu_type}" if chunk.gpu_type else "gpu", chunk.gpus))
    if gres and not per_node:
        if request.width > request.nodes:
            names = ", ".join(name for name, _ in gres)
            problem = f"Slurm counts {names} per node, and the job has {request.width} chunks on unknown nodes"
            raise InputError(f"{problem}; submit it with --per-node, so that the number on each node is known")
        per_node = 1
    nodes = (1, request.nodes) if request.nodes < request.width else None
    return JobSize(
        nodes=(request.width // per_node, request.width // per_node) if per_node else nodes,
        exclusive=chunk.exclusive,
        tasks=request.width,
        cpus_per_task=chunk.cores,
        memory_mib=memory_per_cpu_mib(chunk),
        per_node=per_node,
        gpus_per_task=gpus if chunk.gpus and gpus_per_task else "",
        gres=tuple(f"{name}:{per_node * amount}" for name, amount in gres),
        labels=chunk.labels,
    )


def memory_per_cpu_mib(chunk: Chunk) -> int:
    """Return the memory of a chunk per core in MiB, Slurm's unit, rounded up; 0 if the chunk does not count memory.

    Examples
    --------
    >>> memory_per_cpu_mib(Chunk(cores=4, memory_mb=8000))
    1908
    """
    return -(-chunk.memory_mb * _MB // (_MIB * chunk.cores))


def sbatch_options(size: JobSize, further: Iterable[str]) -> list[str]:
    """Return the options of ``sbatch`` for a size, and the further options of the job, as ``name=value``.

    The job requests the features and generic resources of both the size and the further options. Memory per chunk
    replaces memory in the further options.
    """
    options = []
    if size.nodes is not None:
        low, high = size.nodes
        options += [f"--nodes={low}"] if low == high else [f"--nodes={low}-{high}", "--use-min-nodes"]
    options += ["--exclusive"] if size.exclusive else []
    if size.tasks:
        options += [f"--ntasks={size.tasks}", f"--cpus-per-task={size.cpus_per_task}"]
        options += [f"--mem-per-cpu={size.memory_mib}M"] if size.memory_mib else []
        options += [f"--ntasks-per-node={size.per_node}"] if size.per_node else []
        options += [f"--gpus-per-task={size.gpus_per_task}"] if size.gpus_per_task else []
    named = _named(further)
    kept = [(name, value) for name, value in named if not (size.memory_mib and name in ("mem", "mem-per-cpu"))]
    if size.labels:
        kept = _with(kept, "constraint", features(_last(kept, "constraint"), size.labels))
    if size.gres:
        kept = _with(kept, "gres", ",".join(filter(None, (_last(kept, "gres"), *size.gres))))
    return options + [f"--{name}={value}" if value else f"--{name}" for name, value in kept]


def rest_fields(size: JobSize, version: str) -> dict[str, Any]:
    """Return the fields of a job for slurmrestd; the caller adds the features (`features`)."""
    is_flat = version in FLAT
    fields: dict[str, Any] = {}
    if size.nodes is not None:
        low, high = size.nodes
        if is_flat:
            fields = {"nodes": low} if low == high else {"nodes": [low, high], "minimum_nodes": True}
        else:
            fields = {"minimum_nodes": low, "maximum_nodes": high}
            fields |= {"flags": ["USE_MIN_NODES"]} if low < high else {}
    if size.exclusive:
        fields |= {"exclusive": "exclusive"} if is_flat else {"shared": ["none"]}
    if not size.tasks:
        return fields
    fields |= {"tasks": size.tasks, "cpus_per_task": size.cpus_per_task}
    if size.memory_mib:
        number = {"set": True, "infinite": False, "number": size.memory_mib}
        fields["memory_per_cpu"] = size.memory_mib if is_flat else number
    if size.per_node:
        fields["tasks_per_node"] = size.per_node
    separator = ":" if version == "v0.0.39" else "/"  # slurmctld writes generic resources differently since 23.11
    if size.gpus_per_task:
        gpus = size.gpus_per_task
        fields |= {"gpus_per_task": gpus} if is_flat else {"tres_per_task": f"gres{separator}gpu:{gpus}"}
    if size.gres:
        per_node = ",".join(gres if is_flat else f"gres{separator}{gres}" for gres in size.gres)
        fields["gres" if is_flat else "tres_per_node"] = per_node
    return fields


def features(constraint: str, labels: tuple[str, ...]) -> str:
    """Return a constraint in Slurm's syntax that requires the given constraint and all labels.

    Examples
    --------
    >>> features("", ("ib", "milan")), features("a|b", ("ib",))
    ('ib&milan', '(a|b)&ib')
    """
    if constraint and labels and not constraint.replace("_", "").replace("-", "").isalnum():
        constraint = f"({constraint})"
    return "&".join(filter(None, (constraint, *labels)))


def _named(options: Iterable[str]) -> list[tuple[str, str]]:
    named = (option.removeprefix("--").partition("=") for option in options)
    return [(name, value) for name, _, value in named]


def _last(named: list[tuple[str, str]], name: str) -> str:
    """Return the last value of an option, which is the one that counts for ``sbatch``; empty if there is none."""
    return next((value for other, value in reversed(named) if other == name), "")


def _with(named: list[tuple[str, str]], name: str, value: str) -> list[tuple[str, str]]:
    return [*((other, old) for other, old in named if other != name), (name, value)]
