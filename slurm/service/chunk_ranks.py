"""Give each rank on a node one chunk of the resources that the batch system has allocated to the job there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gridweave.site.machine.agent import SYSFS, Cores, node_cores
from gridweave.site.messages import ENCODER, ORDERS, Order, StartRun

DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL")
"""Variables with the GPUs of all chunks of the job on the node, in the order of the chunks."""


def place_in(layout: str, node: int) -> tuple[int, int]:
    """Return the number of a node's first chunk, and how many chunks the node has.

    ``layout`` has the chunks on each node, e.g. ``2(x3),1`` for three nodes with two chunks and one node with one.
    Raise ValueError if it has another form, and IndexError if the allocation has no such node.

    Examples
    --------
    >>> place_in("2(x3),1", 3), place_in("4", 0)
    ((6, 1), (0, 4))
    """
    chunks: list[int] = []
    for run in layout.split(","):
        match = re.fullmatch(r"([1-9]\d*)(?:\(x([1-9]\d*)\))?", run.strip(), re.ASCII)
        if match is None:
            raise ValueError(f"{layout!r:.100} is not a number of chunks for each node; expected e.g. 2(x3),1")
        chunks += [int(match[1])] * int(match[2] or 1)
    return sum(chunks[:node]), chunks[node]


def chunk_cores(chunks: int, environment: Mapping[str, str], sysfs: Path = SYSFS) -> tuple[Cores, ...]:
    """Return the hardware threads of each chunk on a node, followed by those of all chunks together.

    The result is empty, and ranks are not bound, unless the batch system confines the job to exactly as many threads as
    it has allocated. Otherwise, it is unknown which threads belong to other jobs.
    """
    (whole, *_) = node_cores(1, sysfs) or ((),)
    threads = sum(map(len, whole))
    if not threads or str(threads) != environment.get("SLURM_CPUS_ON_NODE"):
        return ()
    shares = node_cores(chunks, sysfs)
    return (*shares, whole) if shares else (whole,) * (chunks + 1)


def in_chunks(data: bytes, first: int, chunks: int, environment: Mapping[str, str]) -> bytes:
    """Return the orders with a chunk of the node assigned to each rank that they start.

    A job that runs a single rank, like a batch script, has all chunks of the node in this rank.

    Parameters
    ----------
    data : bytes
        The encoded orders for the node.
    first, chunks : int
        Number of the node's first chunk, and how many chunks the node has.
    environment : mapping from str to str
        The variables that the batch system has set on the node.
    """
    return ENCODER.encode([_in_chunks(order, first, chunks, environment) for order in ORDERS.decode(data)])


def _in_chunks(order: Order, first: int, chunks: int, environment: Mapping[str, str]) -> Order:
    if not isinstance(order, StartRun):
        return order
    launch, cores = order.launch, environment.get("SLURM_CPUS_PER_TASK", "")
    if len(launch.ranks) < chunks:
        return msgspec.structs.replace(order, slots=(chunks,) * len(launch.ranks))
    slots = tuple(rank.node - first for rank in launch.ranks)
    own = {"OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", cores)} if cores else {}
    ranks = tuple(
        msgspec.structs.replace(rank, variables=own | rank_variables(rank.node, slot, chunks, environment))
        for rank, slot in zip(launch.ranks, slots, strict=True)
    )
    return msgspec.structs.replace(order, slots=slots, launch=msgspec.structs.replace(launch, ranks=ranks))


def rank_variables(number: int, slot: int, chunks: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a rank that differ from those of its node: its GPUs, and Slurm's numbers for tasks.

    ``number`` is the chunk's number in the job, and ``slot`` its number on the node, which has ``chunks`` chunks.
    GPUs that cannot be divided evenly stay as the batch system has set them.

    Examples
    --------
    >>> rank_variables(5, 1, 2, {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_PROCID": "2", "PATH": "/bin"})
    {'CUDA_VISIBLE_DEVICES': '2,3', 'SLURM_PROCID': '5'}
    """
    variables = {}
    for name in DEVICES:
        devices = environment[name].split(",") if environment.get(name) else []
        share, rest = divmod(len(devices), chunks)
        if share and not rest:
            variables[name] = ",".join(devices[slot * share : (slot + 1) * share])
    numbers = {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(slot)}
    return variables | {name: value for name, value in numbers.items() if name in environment}
