"""Texts of ``squeue`` and ``sinfo`` that were recorded before the formats had the names of nodes, and the partition."""

from __future__ import annotations

from gridweave.site.batch.slurm.parse import Partition, QueuedInSlurm, read_sinfo, read_squeue, view_of
from gridweave.site.batch.system import BatchView


def partition_in(sinfo: str) -> Partition:
    """Return the partition of such a text, whose nodes have no names."""
    return read_sinfo("".join(f"{line}|\n" for line in sinfo.splitlines()), "main")


def queue_in(squeue: str) -> list[QueuedInSlurm]:
    """Return the jobs of such a text, all of them in one partition, on nodes without names."""
    return read_squeue("".join(f"|main||{line}\n" for line in squeue.splitlines()))[0]


def view_in(sinfo: str, squeue: str, prefix: str, own: str = "") -> BatchView:
    """Return what is seen of a cluster by both."""
    return view_of(partition_in(sinfo), queue_in(squeue), "main", prefix, own)
