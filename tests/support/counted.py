"""Random sites with kinds of nodes, and jobs that ask for chunks, for the package and for the slow reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

from gridweave.scenarios.batch import stepped
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import Workload
from gridweave.site.array_tasks import indexes_of
from gridweave.site.disciplines.entry import Policy
from gridweave.site.messages import Command, StartJob
from gridweave.site.resources.chunks import MAX_AMOUNT, WHOLE_NODE, Chunk, NodeKind
from gridweave.site.scheduler.core import SiteCore
from reference.counted import Ask, Node, Units
from reference.model import Job
from support.builders import USERS, WEIGHTS, Dice, to_workload

_BYTES, _BYTES_PER_JOB = 64, 24

LABELS = ("big", "fast")
GPU_TYPES = ("", "a100", "v100")


class CountedCase(NamedTuple):
    """Kinds of nodes and jobs with their chunks; each job fits on the idle site."""

    kinds: tuple[NodeKind, ...]
    jobs: list[Job]
    chunks: dict[int, Chunk | msgspec.UnsetType]

    @property
    def nodes(self) -> list[Node]:
        """The nodes for the reference."""
        nodes: list[Node] = []
        for kind in self.kinds:
            memory = MAX_AMOUNT if kind.memory_mb is None else kind.memory_mb
            has = {"cores": kind.cores, "memory": memory, "gpus": kind.gpus, **dict(kind.others)}
            first = len(nodes)
            labels = frozenset({kind.name, *kind.labels})
            nodes += [Node(first + number, has, labels, kind.gpu_type) for number in range(kind.count)]
        return nodes

    @property
    def asks(self) -> dict[int, Ask]:
        """What each job asks for, for the reference."""
        return {job_id: _ask(chunk) for job_id, chunk in self.chunks.items()}

    @property
    def workload(self) -> Workload:
        """The jobs for the package."""
        table = sorted({chunk for chunk in self.chunks.values() if chunk}, key=repr)
        workload = to_workload(self.jobs)
        chunks = [self.chunks[job_id] for job_id in workload.job_id.tolist()]
        numbers = np.array([table.index(chunk) if chunk else -1 for chunk in chunks])
        return workload.replace(columns={**workload.columns, "chunk": numbers}, chunks=tuple(table))


def _ask(chunk: Chunk | msgspec.UnsetType) -> Ask:
    chunk = chunk or WHOLE_NODE
    needs = {"cores": chunk.cores, "memory": chunk.memory_mb, "gpus": chunk.gpus, **dict(chunk.others)}
    return Ask(
        {} if chunk.is_whole else {name: amount for name, amount in needs.items() if amount},
        frozenset(chunk.labels),
        chunk.gpu_type,
        chunk.exclusive,
        chunk.per_node,
    )


@st.composite
def counted_cases(draw: st.DrawFn, *, max_jobs: int = 15, perfect: bool = False) -> CountedCase:
    """Draw one to three kinds of nodes, and jobs, most of which ask for chunks."""
    return _case(Dice(draw, _BYTES + _BYTES_PER_JOB * max_jobs), max_jobs, perfect=perfect)


def random_case(rng: np.random.Generator, *, max_jobs: int = 40, perfect: bool = False) -> CountedCase:
    """Return a case like `counted_cases`, faster and without shrinking."""
    count = _BYTES + _BYTES_PER_JOB * max_jobs
    return _case(Dice(lambda _: rng.bytes(count), count), max_jobs, perfect=perfect)  # type: ignore[arg-type]


def _case(dice: Dice, max_jobs: int, *, perfect: bool) -> CountedCase:
    kinds = tuple(_kind(dice, number) for number in range(dice.number(1, 3)))
    count = dice.number(1, max_jobs)
    jobs, chunks, submit = [], {}, 0
    for job_id in dice.ids(count, max_jobs):
        submit += dice.number(0, 4)
        estimate, run = dice.times(perfect=perfect)
        chunk = _chunk(dice, kinds)
        most = sum(kind.count * chunks_of(chunk or WHOLE_NODE, kind) for kind in kinds)
        unit = (chunk.per_node or 1) if chunk else 1
        width = unit * dice.number(1, min(max(1, most // unit), 12))
        weight, priority, user = dice.pick(WEIGHTS), dice.number(-1, 2), dice.pick(USERS)
        if most:
            jobs.append(Job(job_id, submit, width, estimate, run, weight, priority, user))
            chunks[job_id] = chunk
    if not jobs:
        jobs, chunks = [Job(1, 0, 1, 5, 5)], {1: msgspec.UNSET}
    return CountedCase(kinds, jobs, chunks)


def chunks_of(chunk: Chunk, kind: NodeKind) -> int:
    """Return how many chunks of one job an idle node can hold."""
    if not {*chunk.labels} <= {kind.name, *kind.labels} or chunk.gpu_type not in ("", kind.gpu_type):
        return 0
    if chunk.is_whole:
        return 1
    memory = MAX_AMOUNT if kind.memory_mb is None else kind.memory_mb
    pairs = [(kind.cores, chunk.cores), (memory, chunk.memory_mb), (kind.gpus, chunk.gpus)]
    pairs += [(dict(kind.others).get(name, 0), amount) for name, amount in chunk.others]
    most = min(there // needed for there, needed in pairs if needed)
    if chunk.per_node:
        return chunk.per_node if most >= chunk.per_node else 0
    return most


def _kind(dice: Dice, number: int) -> NodeKind:
    gpus = dice.pick((0, 0, 1, 2, 4))
    return NodeKind(
        name=f"kind{number}",
        count=dice.number(1, 3),
        cores=dice.pick((1, 2, 4, 6)),
        memory_mb=dice.pick((None, 4, 8)),
        gpus=gpus,
        gpu_type=dice.pick(GPU_TYPES) if gpus else "",
        others=dice.pick(((), (("fpga", 2),))),
        labels=dice.pick(((), ("big",), LABELS)),
    )


def _chunk(dice: Dice, kinds: Sequence[NodeKind]) -> Chunk | msgspec.UnsetType:
    whole, exclusive = dice.number(0, 5), dice.number(0, 7) == 0
    labels = dice.pick(((), (), (), ("big",), (kinds[0].name,)))
    gpus = dice.pick((0, 0, 0, 1, 2))
    chunk = Chunk(
        cores=dice.pick((1, 1, 2, 3)),
        memory_mb=dice.pick((0, 1, 3)),
        gpus=gpus,
        gpu_type=dice.pick(("", "", "a100")) if gpus else "",
        others=dice.pick(((), (), (("fpga", 1),))),
        labels=labels,
        exclusive=exclusive,
        per_node=dice.pick((0, 0, 0, 1, 2)),
    )
    if whole == 0:
        return msgspec.UNSET
    return Chunk(cores=0, exclusive=True, labels=labels) if whole == 1 else chunk


def placements(
    workload: Workload, nodes: Sequence[NodeKind] | int, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> tuple[SimulationResult, list[tuple[int, int, Units]]]:
    """Simulate with a `SiteCore`; also return (time, job, number of chunks by node) of each start, in order."""
    seen: list[tuple[int, int, Units]] = []

    class Recording(SiteCore):
        def handle(self, now_ms: int, *events: object) -> list[Command]:
            commands = super().handle(now_ms, *events)  # type: ignore[arg-type]
            starts = [command for command in commands if isinstance(command, StartJob)]
            seen.extend((now_ms, start.job_id, dict(Counter(indexes_of(start.nodes)))) for start in starts)
            return commands

    with monkeypatch.context() as patched:
        patched.setattr(stepped, "SiteCore", Recording)
        result = simulate(workload, nodes, policy, driver="core", check=True)
    return result, seen


def starts_of(result: SimulationResult) -> Mapping[int, int]:
    """Return the start of every job that started, by job id."""
    return dict(zip(result.workload.job_id[result.ran].tolist(), result.start_ms[result.ran].tolist(), strict=True))
