"""A live grid under limited control whose sites count cores and GPUs, with real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.site.job import JobRequest, Program
from gridweave.site.resources.chunks import Chunk, NodeKind
from support.live_grids import LocalGrid
from support.machine import PATIENCE_S

HOUR_MS = 3_600_000
SITES = (("north", (2,)), ("south", (1,)))
KINDS = {
    "north": (NodeKind(name="gpu", count=2, cores=8, gpus=4),),
    "south": (NodeKind(name="cpu", count=1, cores=8),),
}
ONE_GPU = Chunk(cores=1, gpus=1)


def limited_grid(folder: Path) -> LocalGrid:
    return LocalGrid(folder, SITES, kinds=KINDS, policy=GridPolicy(mode="multi-site", control="limited"))


def sleeper(chunks: int, chunk: Chunk) -> JobRequest:
    """Return a job that runs until it is cancelled."""
    return JobRequest(program=Program(argv=("sleep", "100000")), nodes=chunks, limit_ms=HOUR_MS, chunk=chunk)


async def submit(grid: LocalGrid, key: str, request: JobRequest, site: str | None = None) -> int:
    (answer,) = await grid.backend.submit([(key, request)], site=site, origin="a test")
    return answer.job_id  # type: ignore[union-attr]


async def in_state(grid: LocalGrid, job_id: int, state: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await grid.backend.records([job_id]))[0].state != state:
            await asyncio.sleep(0.02)


def nodes_at(grid: LocalGrid, site: str, job_id: int) -> list[tuple[str, int]]:
    """Return a running job's nodes at a site, each once for each chunk on it, as a machine and a number there."""
    (run,) = [run for run in grid.sites[site].site.runs.state().runs if run.job_id == job_id]
    return list(run.nodes)


@pytest.mark.asyncio
async def test_delegated_jobs_and_own_jobs_run_side_by_side_on_a_node(tmp_path: Path) -> None:
    async with limited_grid(tmp_path) as grid:
        first = await submit(grid, "first", sleeper(2, ONE_GPU))
        await in_state(grid, first, "running")
        second = await submit(grid, "second", sleeper(1, ONE_GPU))
        await in_state(grid, second, "running")
        own = await submit(grid, "own", sleeper(1, ONE_GPU), site="north")
        await in_state(grid, own, "running")
        assert nodes_at(grid, "north", first) == [("m0", 0)] * 2
        assert nodes_at(grid, "north", second) == nodes_at(grid, "north", own) == [("m0", 0)]
        quote = await grid.backend.quote(sleeper(6, ONE_GPU))
        assert quote.reason == "it would wait in the queue of north"
        (north, south) = quote.sites
        assert "it needs 6 GPUs, and on the nodes that suit it 4 of 8 are free" in north.reason
        assert "a chunk needs 1 GPU and the largest node that suits has 0" in south.reason
        waits = await submit(grid, "waits", sleeper(6, ONE_GPU))
        await in_state(grid, waits, "waiting")
        assert await grid.backend.apply_action("cancel", [first, second, own, waits], origin="a test")
        for job_id in (first, second, own, waits):
            await in_state(grid, job_id, "ended")


@pytest.mark.asyncio
async def test_a_job_with_more_chunks_than_a_site_holds_runs_on_two_sites(tmp_path: Path) -> None:
    async with limited_grid(tmp_path) as grid:
        wide = await submit(grid, "wide", sleeper(18, Chunk(cores=1)))
        await in_state(grid, wide, "running")
        assert (len(nodes_at(grid, "north", wide)), len(nodes_at(grid, "south", wide))) == (16, 2)
        beside = await submit(grid, "beside", sleeper(6, Chunk(cores=1)))
        await in_state(grid, beside, "running")
        assert nodes_at(grid, "south", beside) == [("m0", 0)] * 6
        assert await grid.backend.apply_action("cancel", [wide, beside], origin="a test")
        for job_id in (wide, beside):
            await in_state(grid, job_id, "ended")
