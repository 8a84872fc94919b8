"""Chunks at a site that requests an allocation per job: the nodes they count as, and whether and when they fit.

Jobs share the site's maximum number of nodes. A chunk counts as 1/n of a node if the best node of the cluster can hold
n such chunks: the site cannot know the actual nodes, because the batch system chooses them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gridweave.site.allocation import intervals_of_sorted
from gridweave.site.job import Job, NodeIntervals
from gridweave.site.resources.chunks import Chunk, NodeKind, chunks_on
from gridweave.site.resources.groups import NodeGroup, merged
from gridweave.site.resources.refusals import why_no_node
from gridweave.site.resources.shares import NODE, nodes_for, share_of
from gridweave.slurm.outlook import SOON_MS, UNKNOWN_MS
from gridweave.slurm.system import BatchView

MOST_GROUPS = 64
"""Maximum number of groups of nodes, to bound the journal's size."""


def parts_of(job: Job) -> Chunk | None:
    """Return the job's chunk if it asks for parts of nodes; None if it asks for whole nodes."""
    return job.chunk if isinstance(job.chunk, Chunk) and not job.chunk.is_whole else None


def cluster_share_of(job: Job, kinds: Sequence[NodeKind], nodes: int) -> int:
    """Return how much of the site's maximum a job takes, in millionths of a node.

    Unlike at a site with its own nodes (`gridweave.site.resources.shares.share_of`), the maximum is a number of any
    nodes of a larger cluster, so a job does not count by its share of the cluster's resources. ``nodes`` is the site's
    maximum number of nodes. If the kinds are unknown, each chunk counts as a node.
    """
    chunk = parts_of(job)
    if chunk is None:
        return share_of(job.width, job.chunk, kinds)
    most = max((chunks_on(chunk, kind) for kind in kinds), default=0)
    if not most:
        return min(job.width, nodes) * NODE
    if chunk.exclusive:
        return nodes_for(job.width, most) * NODE
    return job.width * NODE // most


def why_no_chunks(job: Job, kinds: Sequence[NodeKind], nodes: int) -> str | None:
    """Return why a job can never run on nodes of these kinds, even if all are idle and up; None if it can.

    Also return None if the kinds are unknown (empty), or the chunk is unset.
    """
    if not isinstance(job.chunk, Chunk) or not kinds:
        return None
    problem = why_no_node(kinds, job.chunk)
    if problem is not None:
        return problem
    fitting = most_chunks_of(job.chunk, kinds, nodes)
    if fitting < job.width:
        return f"it needs {job.width} chunks, and the {nodes} largest nodes that the site may have hold {fitting}"
    return None


def most_chunks_of(chunk: Chunk, kinds: Sequence[NodeKind], nodes: int) -> int:
    """Return how many chunks fit on the ``nodes`` idle nodes of a cluster that hold most of them."""
    left, fitting = nodes, 0
    for most, count in sorted(((chunks_on(chunk, kind), kind.count) for kind in kinds), reverse=True):
        fitting += most * min(count, left)
        left -= min(count, left)
    return fitting


def labels_of(parts: Sequence[int], used: Iterable[Sequence[int]], nodes: int) -> NodeIntervals:
    """Choose numbers for a job's nodes from the site's ``nodes`` numbers: the ones that the fewest running jobs use.

    ``parts`` has the chunks on each of the job's nodes, and ``used`` the numbers of each running job. The numbers only
    name the parts of a job: two jobs with the same number may be on different nodes of the batch system.

    Examples
    --------
    >>> labels_of([2, 1], [[0, 1], [1]], 4)
    ((2, 3), (2, 4))
    >>> labels_of([1, 1], [], 4)
    ((0, 2),)
    """
    jobs = [0] * nodes
    for numbers in used:
        for number in numbers:
            jobs[number] += 1
    chosen = sorted(sorted(range(nodes), key=lambda number: (jobs[number], number))[: len(parts)])
    return intervals_of_sorted(number for number, chunks in zip(chosen, parts, strict=True) for _ in range(chunks))


def groups_now(view: BatchView, now_ms: int) -> tuple[NodeGroup, ...]:
    """Return what is free on the batch system's nodes, assuming that every job runs until its time limit.

    As for whole nodes, a node whose end is unknown counts as in use for the longest time limit.
    """
    unknown_ms = now_ms + (view.longest_ms or UNKNOWN_MS)

    def end_of(idle_from_ms: int) -> int:
        if idle_from_ms < 0:
            return unknown_ms
        return idle_from_ms if not idle_from_ms or idle_from_ms > now_ms else now_ms + SOON_MS

    ended = (msgspec.structs.replace(group, idle_from_ms=end_of(group.idle_from_ms)) for group in view.groups)
    return merged(ended, MOST_GROUPS)
