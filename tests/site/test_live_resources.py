"""A live site that counts cores, memory and GPUs: no two ranks ever have the same."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import Accepted, DescribeJob, JobRequest, Program
from gridweave.site.launch import RankResources
from gridweave.site.lifecycle import WITHOUT_NODES
from gridweave.site.machine.hardware.find import Hardware
from gridweave.site.messages import EndRun, Machine, RunEnded, StartJob, StartRun, UserSubmitted
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind
from gridweave.site.run.make_run import make_run
from gridweave.site.run.runs import Run, Runs, RunsState, SiteSettings
from gridweave.site.scheduler.live import LiveSite
from gridweave.site.state import dump_state, read_state
from gridweave.site.users.registry import JobRegistry
from support.live_grids import LocalGrid
from support.machine import PATIENCE_S

OWN = 1_000_000_000_001
NODE = NodeKind(name="node", count=1, cores=4, memory_mb=1000, gpus=2)
SETTINGS = SiteSettings(
    name="north", number=0, machines=(Machine(name="m0", nodes=1),), policy=SitePolicy(kinds=(NODE,))
)


def submitted(key: str, chunk: Chunk, width: int = 1) -> UserSubmitted:
    request = JobRequest(program=Program(argv=("true",)), nodes=width, limit_ms=100_000, chunk=chunk)
    return UserSubmitted(key, request)


def begun(commands: Iterable[Any]) -> dict[int, list[RankResources | msgspec.UnsetType]]:
    """Return what the ranks of each job have, from the orders to start them."""
    return {
        order.launch.job_id: [rank.resources for rank in order.launch.ranks]
        for order in commands
        if isinstance(order, StartRun)
    }


def copied(north: LiveSite) -> LiveSite:
    """Return the site as it continues after a crash."""
    other = LiveSite(north.settings)
    other.restore(read_state(other, dump_state(north)))
    other.check_invariants()
    return other


def test_jobs_on_one_node_have_different_cores_and_gpus() -> None:
    north = LiveSite(SETTINGS)
    commands = north.handle(0, submitted("a", Chunk(cores=1, gpus=1, memory_mb=100), 2), submitted("b", Chunk(cores=2)))
    assert begun(commands) == {
        OWN: [
            RankResources(cores=(0,), gpus=(0,), memory_mb=100),
            RankResources(cores=(1,), gpus=(1,), memory_mb=100),
        ],
        OWN + 1: [RankResources(cores=(2, 3))],
    }
    north.check_invariants()
    # The third job waits for a GPU, and gets what the first has left.
    assert begun(north.handle(1, submitted("c", Chunk(cores=2, gpus=1)))) == {}
    assert begun(copied(north).handle(2, RunEnded("m0", OWN, 1, "finished", has_run=True))) == {
        OWN + 2: [RankResources(cores=(0, 1), gpus=(0,))]
    }


def run_of(job_id: int, chunk: Chunk) -> Run:
    """Return a run of one chunk on the only node."""
    request = JobRequest(program=Program(argv=("true",)), limit_ms=1000, chunk=chunk)
    described = DescribeJob(job_id, 1, request, 1000, 0, 1, ("north",))
    return make_run(SETTINGS, StartJob(job_id, ((0, 1),)), described, (1, 1), 0)


def started(runs: Runs, registry: JobRegistry, run: Run) -> dict[int, list[RankResources | msgspec.UnsetType]]:
    """Start a run, and return what the ranks have if it begins at once."""
    registry.out.clear()
    runs.start(run)
    runs.numbers.check_invariants(item for run in runs.state().runs for item in run.node_tasks.items())
    return begun(registry.out)


def test_an_evicted_rank_keeps_its_numbers_until_it_has_ended() -> None:
    """A job that needs them waits; another one begins at once on numbers that nobody has."""
    registry = JobRegistry(OWN, site="north", can_hold=WITHOUT_NODES)
    runs = Runs(SETTINGS, registry)
    assert started(runs, registry, run_of(1, Chunk(cores=1))) == {1: [RankResources(cores=(0,))]}
    assert started(runs, registry, run_of(2, Chunk(cores=2))) == {2: [RankResources(cores=(1, 2))]}
    runs.evict(2, "evicted")
    high = run_of(3, Chunk(cores=2, gpus=1))
    assert runs.in_way(high) == [2]
    assert started(runs, registry, high) == {}
    assert started(runs, registry, run_of(4, Chunk(cores=1))) == {4: [RankResources(cores=(3,))]}
    # The site is killed and continues from its journal.
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(runs.state()), type=RunsState)
    runs = Runs(SETTINGS, registry)
    runs.restore(stored)
    registry.out.clear()
    runs.take_in(RunEnded("m0", 2, 1, "cancelled", has_run=True))
    assert begun(registry.out) == {3: [RankResources(cores=(1, 2), gpus=(0,))]}


def test_a_job_that_evicts_another_begins_when_its_cores_are_free() -> None:
    """The site decides at once; the ranks of both jobs never have the same cores."""
    levels = (Level(name="high", priority=2, evicts=("low",)), Level(name="low", priority=0))
    policy = LevelsPolicy(under=SitePolicy(kinds=(NODE,)), levels=levels)
    north = LiveSite(msgspec.structs.replace(SETTINGS, policy=policy))
    assert begun(north.handle(0, submitted("low", Chunk(cores=3)))) == {OWN: [RankResources(cores=(0, 1, 2))]}
    high = submitted("high", Chunk(cores=2))
    high = msgspec.structs.replace(high, request=msgspec.structs.replace(high.request, priority=2))
    commands = north.handle(10, high)
    assert [order.job_id for order in commands if isinstance(order, EndRun)] == [OWN]
    assert begun(commands) == {}
    north.check_invariants()
    for again in (copied(north), north):
        ended = RunEnded("m0", OWN, 1, "cancelled", has_run=True)
        assert begun(again.handle(20, ended))[OWN + 1] == [RankResources(cores=(0, 1))]
        again.check_invariants()


# -- real processes ---------------------------------------------------------------------------------------------------

KINDS = (
    NodeKind(name="bound", count=2, cores=1, memory_mb=2000),
    NodeKind(name="cpu", count=2, cores=8, memory_mb=4000),
    NodeKind(name="gpu", count=2, cores=4, memory_mb=4000, gpus=4, gpu_type="a100"),
)
MACHINES = (2, 1, 1, 1, 1)
"""Nodes of each machine: the first has two real cores, one for each of its nodes; all others are simulated."""

VIEW = """
import json, os, sys, time
seen = {name: os.environ[name] for name in os.environ if name.startswith(("GRIDWEAVE_", "CUDA_", "OMP_"))}
seen |= {"start": time.time(), "affinity": sorted(os.sched_getaffinity(0))}
time.sleep(float(sys.argv[2]))
seen["end"] = time.time()
path = f"{sys.argv[1]}/{os.environ['GRIDWEAVE_JOB_ID']}-{os.environ['GRIDWEAVE_RANK']}"
json.dump(seen, open(path, "w"))
"""


class Seen(NamedTuple):
    """A rank's own view: its machine, its numbers, and the time in which it had them."""

    machine: str
    cores: tuple[int, ...]
    devices: tuple[int, ...]
    affinity: tuple[int, ...]
    threads: int
    start: float
    end: float


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))


def read_views(folder: Path) -> Iterator[Seen]:
    for path in folder.iterdir():
        seen = json.loads(path.read_text())
        yield Seen(
            Path(seen["GRIDWEAVE_FOLDER"]).parts[-3],
            numbers(seen["GRIDWEAVE_CORES"]),
            numbers(seen["CUDA_VISIBLE_DEVICES"]),
            tuple(seen["affinity"]),
            int(seen["OMP_NUM_THREADS"]),
            seen["start"],
            seen["end"],
        )


def never_shared(holders: dict[Any, list[tuple[float, float]]]) -> bool:
    """Whether the spans in which a core or GPU was held never overlap."""
    return all(before[1] <= after[0] for spans in holders.values() for before, after in pairwise(sorted(spans)))


def drawn_chunk(rng: np.random.Generator) -> Chunk | None:
    kind = rng.integers(10)
    if kind == 0:
        return None  # a whole node
    if kind < 5:
        return Chunk(cores=int(rng.integers(1, 5)), memory_mb=int(rng.integers(200, 900)))
    if kind == 5:
        return Chunk(labels=("bound",))
    return Chunk(cores=int(rng.integers(1, 3)), gpus=int(rng.integers(1, 4)), gpu_type="a100")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_no_core_and_no_gpu_ever_has_two_ranks(tmp_path: Path) -> None:
    """200 mixed jobs on three kinds of node, in the view of the ranks."""
    threads = tuple((thread,) for thread in sorted(os.sched_getaffinity(0))[:2])
    if len(threads) < 2:
        pytest.skip("cores are not tested: this process may only use one processor")
    views = tmp_path / "views"
    views.mkdir()
    rng = np.random.default_rng(39)
    requests = []
    for number in range(200):
        chunk, spans = drawn_chunk(rng), f"{rng.uniform(0.0, 0.1):.3f}"
        program = Program(argv=(sys.executable, "-S", "-c", VIEW, str(views), spans))
        asked: dict[str, Any] = {} if chunk is None else {"chunk": chunk}
        request = JobRequest(program=program, nodes=int(rng.integers(1, 3)), limit_ms=600_000, **asked)
        requests.append((str(number), request))
    hardware = {"north/m0": Hardware(cores=2, memory_mb=4000, threads=threads)}
    async with LocalGrid(
        tmp_path / "grid",
        (("north", MACHINES),),
        policies={"north": SitePolicy(kinds=KINDS)},
        hardware=hardware,
    ) as grid:
        answers = await grid.backend.submit(requests, site="north", origin="a test")
        assert all(isinstance(answer, Accepted) for answer in answers), answers
        await all_ended(grid, [answer.job_id for answer in answers if isinstance(answer, Accepted)])
    seen = list(read_views(views))
    assert len(seen) == sum(request.nodes for _, request in requests)
    check_views(seen, threads)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_grid_queue_places_chunks_that_share_nodes(tmp_path: Path) -> None:
    """More chunks than nodes run in a grid under full control, and none is too large for its node."""
    program = Program(argv=(sys.executable, "-S", "-c", "pass"))
    chunk = Chunk(cores=1, gpus=1, gpu_type="a100")
    requests = [
        (str(number), JobRequest(program=program, nodes=3, limit_ms=600_000, chunk=chunk)) for number in range(8)
    ]
    async with LocalGrid(
        tmp_path / "grid", (("north", MACHINES),), policies={"north": SitePolicy(kinds=KINDS)}
    ) as grid:
        answers = await grid.backend.submit(requests, site=None, origin="a test")
        assert all(isinstance(answer, Accepted) for answer in answers), answers
        job_ids = [answer.job_id for answer in answers if isinstance(answer, Accepted)]
        registry = grid.driver.grid.registry
        async with asyncio.timeout(PATIENCE_S):
            while not all(registry.records[job_id].state == "ended" for job_id in job_ids):
                grid.sites["north"].site.check_invariants()
                await asyncio.sleep(0.1)
        assert {registry.records[job_id].outcome for job_id in job_ids} == {"finished"}


def check_views(seen: list[Seen], threads: tuple[tuple[int], ...]) -> None:
    cores: dict[Any, list[tuple[float, float]]] = {}
    gpus: dict[Any, list[tuple[float, float]]] = {}
    for view in seen:
        # On the first machine, the numbers of both nodes begin at 0, but each node has its own processor.
        held = view.affinity if view.machine == "m0" else view.cores
        for core in held:
            cores.setdefault((view.machine, core), []).append((view.start, view.end))
        for gpu in view.devices:
            gpus.setdefault((view.machine, gpu), []).append((view.start, view.end))
        assert view.threads == len(view.cores)
        assert len(view.affinity) == (1 if view.machine == "m0" else len(os.sched_getaffinity(0)))
    assert {key for key in cores if key[0] == "m0"} == {("m0", thread) for (thread,) in threads}
    assert len(gpus) == 8, "every GPU was used"
    assert never_shared(cores)
    assert never_shared(gpus)


async def all_ended(grid: LocalGrid, job_ids: list[int]) -> None:
    """Wait until all jobs have finished, and check the site meanwhile."""
    core = grid.sites["north"].site
    async with asyncio.timeout(PATIENCE_S):
        while not all(core.registry.records[job_id].state == "ended" for job_id in job_ids):
            core.check_invariants()
            await asyncio.sleep(0.1)
    assert {core.registry.records[job_id].outcome for job_id in job_ids} == {"finished"}
