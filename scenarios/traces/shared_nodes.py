"""Whether the jobs of a log shared nodes: by whole nodes such a log is another workload than the cluster ran. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gridweave.site.batch.slurm.parse import read_names

_FAILED = ("NODE_FAIL", "BOOT_FAIL")
"""Jobs that end so are recorded to end when Slurm noticed, and may seem to overlap with the next."""


class LoggedJob(Protocol):
    """A job of a log, as far as it is looked at here; ``cores`` is 0, and ``node_list`` empty, if that is not known."""

    @property
    def job_id(self) -> int:
        """Its number."""

    @property
    def start_s(self) -> float:
        """When it started; -1 if it never did."""

    @property
    def end_s(self) -> float:
        """When it ended."""

    @property
    def nodes(self) -> int:
        """On how many nodes it ran."""

    @property
    def cores(self) -> int:
        """How many cores it had on all of them."""

    @property
    def node_list(self) -> str:
        """Which nodes, as Slurm writes them."""

    @property
    def state(self) -> str:
        """How it ended."""


def sharing_problem(jobs: Sequence[LoggedJob], nodes: int | None) -> str | None:
    """Return what shows that jobs shared nodes, or may have, in one line; None if nothing does.

    By the names of the nodes if the log has them; else by whether all jobs had equally many cores of a node; else by
    whether more nodes were in use at an instant than the machine has, where ``nodes`` says how many that are.
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
    """Return which two jobs were on one node at one time, and how many jobs shared nodes at least."""
    numbers: dict[str, int] = {}
    lists = [[numbers.setdefault(name, len(numbers)) for name in read_names(job.node_list)] for job in jobs]
    row = np.repeat(np.arange(len(jobs)), [len(each) for each in lists])
    node = np.array([number for each in lists for number in each], np.int64)
    start_s, end_s = (np.array([getattr(job, name) for job in jobs])[row] for name in ("start_s", "end_s"))
    order = np.lexsort((end_s, start_s, node))
    row, node, start_s, end_s = (values[order] for values in (row, node, start_s, end_s))
    # Two neighbours by start overlap if any two jobs of a node do.
    meets = np.flatnonzero((node[1:] == node[:-1]) & (start_s[1:] < end_s[:-1]))
    if not len(meets):
        return None
    first, second = jobs[row[meets[0]]].job_id, jobs[row[meets[0] + 1]].job_id
    name = next(name for name, number in numbers.items() if number == node[meets[0]])
    count = len(np.unique(np.concatenate((row[meets], row[meets + 1]))))
    return f"at least {count:,} jobs shared nodes (jobs {first} and {second} ran on {name} at one time)"


def _unlike(jobs: Sequence[LoggedJob]) -> str | None:
    """Return that jobs had different numbers of cores on a node."""
    per_node = [job.cores / job.nodes for job in jobs]
    if min(per_node) == max(per_node):
        return None
    spread = f"{min(per_node):g} to {max(per_node):g}"
    return f"jobs had {spread} cores of a node, so they may have shared nodes; the column NodeList would tell"


def _too_many(jobs: Sequence[LoggedJob], nodes: int) -> str | None:
    """Return that more nodes were in use at an instant than there are."""
    instants = np.array([*(job.start_s for job in jobs), *(job.end_s for job in jobs)])
    change = np.array([*(job.nodes for job in jobs), *(-job.nodes for job in jobs)], np.int64)
    used = np.cumsum(change[np.lexsort((change, instants))])
    most = int(used.max(initial=0))
    return f"its jobs had {most:,} nodes at one time, and the machine has {nodes:,}" if most > nodes else None
