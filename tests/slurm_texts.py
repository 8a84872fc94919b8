"""Parse recorded outputs of ``squeue`` and ``sinfo`` from before their formats had node names and the partition."""

from __future__ import annotations

from gridweave.slurm.cluster.parse import Partition, QueuedInSlurm, read_sinfo, read_squeue, view_of
from gridweave.slurm.system import BatchView


def partition_in(sinfo: str) -> Partition:
    """Return the partition in an output of sinfo; its nodes have no names."""
    return read_sinfo("".join(f"{line}|\n" for line in sinfo.splitlines()), "main")


def queue_in(squeue: str) -> list[QueuedInSlurm]:
    """Return the jobs in an output of squeue, all in one partition, on nodes without names."""
    return read_squeue("".join(f"|main||{line}\n" for line in squeue.splitlines()))[0]


def view_in(sinfo: str, squeue: str, prefix: str, own: str = "") -> BatchView:
    """Return the snapshot of a cluster from both outputs."""
    return view_of(partition_in(sinfo), queue_in(squeue), "main", prefix, own)
