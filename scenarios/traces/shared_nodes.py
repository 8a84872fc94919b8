"""Detect whether the jobs in a log shared nodes; no I/O.

Simulating such a log with whole nodes would change the workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gridweave.slurm.cluster.parse import read_names

_FAILED = ("NODE_FAIL", "BOOT_FAIL")
"""States whose end time is when Slurm noticed the failure, so that the job seems to overlap the next job."""


class LoggedJob(Protocol):
    """A job in a log; ``cores`` is 0 and ``node_list`` is empty if unknown."""

    @property
    def job_id(self) -> int:
        """Job id."""

    @property
    def start_s(self) -> float:
        """Start time; -1 if the job never started."""

    @property
    def end_s(self) -> float:
        """End time."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    @property
    def cores(self) -> int:
        """Total number of cores on all nodes."""

    @property
    def node_list(self) -> str:
        """Names of the nodes, in Slurm's notation."""

    @property
    def state(self) -> str:
        """Final state."""


def sharing_problem(jobs: Sequence[LoggedJob], nodes: int | None) -> str | None:
    """Return one line of evidence that jobs shared or may have shared nodes; None if there is no evidence.

    Uses node names if the log has them. Otherwise, jobs may have shared nodes if they had different numbers of cores
    per node; without core counts, if more nodes were in use at the same time than the machine has (``nodes``).
    """
    ran = [job for job in jobs if 0 <= job.start_s < job.end_s and job.state not in _FAILED]
    named = [job for job in ran if job.node_list]
    if named:
        return _overlap(named)
    counted = [job for job in ran if job.cores and job.nodes]
    if counted:
        return _unlike(counted)
    return None if nodes is None else _too_many(ran, nodes)


def _overlap(jobs: Sequence[LoggedJob]) -> str | None:
    """Return a message with two jobs that overlapped on a node and a lower bound on how many jobs did, or None."""
    numbers: dict[str, int] = {}
    lists = [[numbers.setdefault(name, len(numbers)) for name in read_names(job.node_list)] for job in jobs]
    row = np.repeat(np.arange(len(jobs)), [len(node_numbers) for node_numbers in lists])
    node = np.array([number for node_numbers in lists for number in node_numbers], np.int64)
    start_s, end_s = (np.array([getattr(job, name) for job in jobs])[row] for name in ("start_s", "end_s"))
    order = np.lexsort((end_s, start_s, node))
    row, node, start_s, end_s = (values[order] for values in (row, node, start_s, end_s))
    # If any two jobs on a node overlap, so do two jobs that are adjacent in start order.
    meets = np.flatnonzero((node[1:] == node[:-1]) & (start_s[1:] < end_s[:-1]))
    if not len(meets):
        return None
    first, second = jobs[row[meets[0]]].job_id, jobs[row[meets[0] + 1]].job_id
    name = next(name for name, number in numbers.items() if number == node[meets[0]])
    count = len(np.unique(np.concatenate((row[meets], row[meets + 1]))))
    return f"at least {count:,} jobs shared nodes (jobs {first} and {second} ran on {name} at the same time)"


def _unlike(jobs: Sequence[LoggedJob]) -> str | None:
    """Return a message if jobs had different numbers of cores per node."""
    per_node = [job.cores / job.nodes for job in jobs]
    if min(per_node) == max(per_node):
        return None
    spread = f"{min(per_node):g} to {max(per_node):g}"
    return f"jobs had {spread} cores per node, so they may have shared nodes; export the column NodeList to find out"


def _too_many(jobs: Sequence[LoggedJob], nodes: int) -> str | None:
    """Return a message if, at some time, more nodes were in use than the machine has."""
    instants = np.array([*(job.start_s for job in jobs), *(job.end_s for job in jobs)])
    change = np.array([*(job.nodes for job in jobs), *(-job.nodes for job in jobs)], np.int64)
    used = np.cumsum(change[np.lexsort((change, instants))])
    most = int(used.max(initial=0))
    return f"its jobs used {most:,} nodes at the same time, but the machine has {nodes:,}" if most > nodes else None
