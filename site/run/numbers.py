"""Choose which cores and GPUs of a node each rank gets, at sites that count resources (docs/resources.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from gridweave.site.allocation import NodePool
from gridweave.site.array_tasks import indexes_of
from gridweave.site.launch import Launch, RankResources
from gridweave.site.messages import Machine
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk, NodeKind


class RankNeed(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of cores and GPUs that a rank gets on its node, and its memory in MB (0: not counted)."""

    cores: int
    gpus: int
    memory_mb: int


class NumberedTask(Protocol):
    """A node task whose ranks get cores and GPUs."""

    launch: Launch
    slots: tuple[int, ...]  # each rank's node, numbered from 0 on the machine
    needs: tuple[RankNeed, ...]  # what each rank gets; empty if the site does not count resources


def needs_on(kind: NodeKind, chunk: Chunk | msgspec.UnsetType, count: int) -> list[RankNeed]:
    """Return the resources of each chunk of a job on a node; chunks of an exclusive job divide the node evenly.

    Examples
    --------
    >>> node = NodeKind(name="gpu", count=1, cores=8, gpus=2, memory_mb=1000)
    >>> needs_on(node, Chunk(cores=2, gpus=1), 1)
    [RankNeed(cores=2, gpus=1, memory_mb=0)]
    >>> needs_on(node, Chunk(cores=2, exclusive=True), 3)[0]
    RankNeed(cores=2, gpus=0, memory_mb=333)
    """
    chunk = chunk or WHOLE_NODE
    if not chunk.exclusive:
        return [RankNeed(chunk.cores, chunk.gpus, chunk.memory_mb)] * count
    whole = (kind.cores, kind.gpus, kind.memory_mb or 0)
    return [RankNeed(*(_nth_part(amount, number, count) for amount in whole)) for number in range(count)]


def _nth_part(amount: int, number: int, count: int) -> int:
    return amount * (number + 1) // count - amount * number // count


def total_need(needs: Iterable[RankNeed]) -> RankNeed:
    """Return the sum of the needs, for one rank that replaces several."""
    cores, gpus, memory_mb = map(sum, zip(*(msgspec.structs.astuple(need) for need in needs), strict=True))
    return RankNeed(cores, gpus, memory_mb)


class _Node:
    """The free cores and GPUs of a node."""

    def __init__(self, kind: NodeKind) -> None:
        self.cores = NodePool(kind.cores)
        self.gpus = NodePool(kind.gpus) if kind.gpus else None

    def has(self, cores: int, gpus: int) -> bool:
        return cores <= self.cores.free and gpus <= (0 if self.gpus is None else self.gpus.free)

    def take(self, need: RankNeed) -> RankResources:
        assert self.has(need.cores, need.gpus), f"{need} is more than is free"
        cores = indexes_of(self.cores.allocate(need.cores))
        gpus = indexes_of(self.gpus.allocate(need.gpus)) if self.gpus is not None and need.gpus else ()
        return RankResources(cores=tuple(cores), gpus=tuple(gpus), memory_mb=need.memory_mb)

    def give(self, resources: RankResources) -> None:
        self.cores.give_back(_bits(resources.cores))
        if self.gpus is not None:
            self.gpus.give_back(_bits(resources.gpus))

    def occupy(self, resources: RankResources) -> None:
        self.cores.occupy(_bits(resources.cores))
        if self.gpus is not None:
            self.gpus.occupy(_bits(resources.gpus))

    def check_invariants(self, held: Sequence[RankResources]) -> None:
        for pool, of_ranks in (
            (self.cores, [resources.cores for resources in held]),
            (self.gpus, [resources.gpus for resources in held]),
        ):
            numbers = [number for numbers in of_ranks for number in numbers]
            assert len(numbers) == len(set(numbers)), f"two ranks have the same core or GPU: {sorted(numbers)}"
            assert pool is None or pool.nodes - pool.free == len(numbers), "a core or GPU is lost"


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)


def kinds_by_machine(machines: Iterable[Machine], kinds: Sequence[NodeKind]) -> list[tuple[NodeKind, ...]]:
    """Return the kind of each node of each machine; empty tuples if the site does not count resources.

    The nodes of a site are numbered machine by machine, and kind by kind.
    """
    nodes = iter([kind for kind in kinds for _ in range(kind.count)])
    return [tuple(islice(nodes, machine.nodes)) for machine in machines]


class NodeNumbers:
    """The cores and GPUs of a site's nodes, each held by at most one rank.

    A rank gets the free cores and GPUs with the lowest numbers, in the order of the ranks. The numbers that a rank
    holds are in its launch, so the journal has them with the site's runs, and `restore` finds them there.

    Parameters
    ----------
    machines : collection of Machine
    kinds : sequence of NodeKind
        The kinds of the site's nodes; empty if the site does not count resources.
    """

    def __init__(self, machines: Collection[Machine], kinds: Sequence[NodeKind]) -> None:
        self._nodes = {
            (machine.name, slot): _Node(kind)
            for machine, nodes in zip(machines, kinds_by_machine(machines, kinds), strict=True)
            for slot, kind in enumerate(nodes)
        }

    def has_free(self, tasks: Mapping[str, NumberedTask]) -> bool:
        """Whether the ranks' cores and GPUs are free; False if the site does not count resources."""
        totals: dict[tuple[str, int], list[RankNeed]] = {}
        for machine, task in tasks.items():
            for slot, need in zip(task.slots, task.needs, strict=bool(self._nodes)):
                totals.setdefault((machine, slot), []).append(need)
        sums = {place: total_need(needs) for place, needs in totals.items()}
        return bool(self._nodes) and all(self._nodes[place].has(need.cores, need.gpus) for place, need in sums.items())

    def take(self, tasks: Mapping[str, NumberedTask]) -> None:
        """Give the ranks of a run their cores and GPUs, which must be free."""
        for machine, task in tasks.items():
            if task.needs:
                ranks = [
                    msgspec.structs.replace(rank, resources=self._nodes[machine, slot].take(need))
                    for rank, slot, need in zip(task.launch.ranks, task.slots, task.needs, strict=True)
                ]
                task.launch = msgspec.structs.replace(task.launch, ranks=tuple(ranks))

    def give(self, machine: str, task: NumberedTask) -> None:
        """Take back the cores and GPUs of a node task that has ended; a task that never began has none."""
        for node, resources in self._held(machine, task):
            node.give(resources)

    def restore(self, tasks: Iterable[tuple[str, NumberedTask]]) -> None:
        """Mark the cores and GPUs of unfinished node tasks as held; all must be free before the call."""
        for machine, task in tasks:
            for node, resources in self._held(machine, task):
                node.occupy(resources)

    def _held(self, machine: str, task: NumberedTask) -> Iterator[tuple[_Node, RankResources]]:
        for rank, slot in zip(task.launch.ranks, task.slots, strict=True):
            if rank.resources:
                yield self._nodes[machine, slot], rank.resources

    def check_invariants(self, tasks: Iterable[tuple[str, NumberedTask]]) -> None:
        """Raise AssertionError unless exactly these node tasks hold cores and GPUs, and none is held by two of them."""
        held: dict[tuple[str, int], list[RankResources]] = {place: [] for place in self._nodes}
        for machine, task in tasks:
            for rank, slot in zip(task.launch.ranks, task.slots, strict=True):
                if rank.resources:
                    held[machine, slot].append(rank.resources)
        for place, node in self._nodes.items():
            node.check_invariants(held[place])
