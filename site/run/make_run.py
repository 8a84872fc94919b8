"""Build each machine's node task from the nodes that a job gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from gridweave.site.allocation import nodes_of_groups
from gridweave.site.array_tasks import count_of, share_of
from gridweave.site.disciplines.dictionary import counted_kinds
from gridweave.site.job import DescribeJob, NodeIntervals, part_of_nodes, task_groups
from gridweave.site.launch import Launch, NodePart, Rank
from gridweave.site.messages import StartJob
from gridweave.site.needs.beside import SharedTime
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.run.numbers import RankNeed, needs_on, total_need
from gridweave.site.run.runs import NodeTask, Run, SiteSettings

GATE_FACTOR = 2
"""The longest time that ranks wait at their gate, in multiples of `SiteSettings.rendezvous_ms`.

The ranks become ready after the agreed start, so the site gives up before they do, and ranks never leave a gate that
the site may still open.
"""


def make_run(
    settings: SiteSettings,
    start: StartJob,
    described: DescribeJob,
    lanes: tuple[int, int],
    now_ms: int,
    *,
    gives_parts: bool = False,
) -> Run:
    """Build a job's run; the site's nodes are numbered machine by machine.

    Within each group of identical tasks, ranks are numbered in the order of the nodes. If nodes are shared, each rank
    has hardware threads, numbered from 0 on its node, core by core; `lanes` is the number of cores per node and of
    threads per core. If jobs get fractions of nodes, a node can have several ranks, and no rank is bound to threads.
    If the site counts resources, each chunk has a rank; a single rank on the first node has all chunks there.
    The machine with the lowest rank comes first.
    """
    width = count_of(start.nodes)
    groups = task_groups(described.request.resources if gives_parts else None, width)
    placed = nodes_of_groups(start.nodes, [group.tasks for group in groups])
    nodes = [node for group in placed for node in group]
    threads = _threads_by_node(start.threads, lanes[0] * lanes[1])
    program = described.request.program
    chosen = nodes[:1] if program.ranks == "first-node" else nodes
    needs = _needs(counted_kinds(settings.policy), described, nodes)
    ordinals = {node: ordinal for ordinal, node in enumerate(dict.fromkeys(nodes))} if needs else {}
    node_tasks: dict[str, NodeTask] = {}
    first = 0
    for machine in settings.machines:
        here = [(number, node) for number, node in enumerate(chosen) if first <= node < first + machine.nodes]
        if here:
            ranks = tuple(
                Rank(described.first_rank + number, ordinals.get(node, number), threads.get(node))
                for number, node in here
            )
            part = part_of_nodes(groups, [number for number, _ in here]) if gives_parts else None
            launch = _launch(settings, described, ranks, part)
            if threads:
                launch = msgspec.structs.replace(launch, lanes=lanes)
            of_ranks = tuple(needs[number] for number, _ in here) if needs else ()
            node_tasks[machine.name] = NodeTask(launch, tuple(node - first for _, node in here), of_ranks)
        first += machine.nodes
    node_tasks = dict(sorted(node_tasks.items(), key=lambda item: item[1].launch.ranks[0].rank))
    shared = SharedTime(now_ms, now_ms) if threads else None
    return Run(described.job_id, described.attempt, described.request, width, now_ms, node_tasks, shared=shared)


def _needs(kinds: Sequence[NodeKind], described: DescribeJob, nodes: Sequence[int]) -> list[RankNeed]:
    """Return each rank's share of its node; empty if the site does not count resources."""
    if not kinds:
        return []
    request, kind_of = described.request, [kind for kind in kinds for _ in range(kind.count)]
    by_node = [needs_on(kind_of[node], request.chunk, count) for node, count in Counter(nodes).items()]
    if request.program.ranks == "first-node":
        return [total_need(by_node[0])]
    return [need for needs in by_node for need in needs]


def _threads_by_node(threads: NodeIntervals, threads_per_node: int) -> dict[int, tuple[int, ...]]:
    """Return the job's hardware threads on each node, numbered from 0 on the node."""
    by_node: dict[int, list[int]] = {}
    for low, high in threads:
        for thread in range(low, high):
            by_node.setdefault(thread // threads_per_node, []).append(thread % threads_per_node)
    return {node: tuple(lanes) for node, lanes in by_node.items()}


def _launch(settings: SiteSettings, described: DescribeJob, ranks: tuple[Rank, ...], part: NodePart | None) -> Launch:
    program, array = described.request.program, described.request.array
    environment = program.environment
    array_tasks = described.array_tasks
    if array_tasks is not None:
        array_tasks = share_of(array_tasks, ranks[0].rank, len(ranks), described.size)
    if array is not None:
        environment = environment | {"GRIDWEAVE_ARRAY": array.name, "GRIDWEAVE_ARRAY_INDEX": str(array.index)}
    return Launch(
        job_id=described.job_id,
        attempt=described.attempt,
        starts=described.starts,
        ranks=ranks,
        size=described.size,
        argv=program.argv,
        call=program.call,
        environment=environment,
        working_directory=program.working_directory,
        site=settings.name,
        sites=described.sites,
        limit_ms=described.limit_ms,
        grace_ms=program.grace_ms,
        checkpoint_signal=program.checkpoint_signal or "TERM",
        output_limit_bytes=program.output_limit_bytes,
        limit_signal=program.limit_signal,
        # In a packed array, the ranks run independent tasks, so a failing rank must not end the other ranks.
        end_on_failure=program.end_on_failure and array_tasks is None,
        array_tasks=array_tasks,
        alone_ms=settings.alone_ms if len(described.sites) > 1 else None,
        gate_ms=GATE_FACTOR * settings.rendezvous_ms if len(described.sites) > 1 else None,
        user=described.request.user,
        part=part,
        rate=described.request.limit_ms / described.limit_ms if len(described.sites) > 1 else 1.0,
    )
