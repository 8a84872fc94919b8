"""Forecasts and quotes of a live grid, with real cores, desks and journals, and what its sites say of their queues."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from gridweave.errors import InputError
from gridweave.grid.api import JobQuery, WhatIf
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import After, JobRequest, Program
from support.live_grids import LocalGrid
from support.machine import PATIENCE_S

HOUR_MS = 3_600_000


def sleeper(nodes: int, hours: float) -> JobRequest:
    """Return a job that works for a minute and may take longer."""
    return JobRequest(program=Program(argv=("sleep", "100000")), nodes=nodes, limit_ms=round(hours * HOUR_MS))


async def submit(grid: LocalGrid, *requests: JobRequest, site: str | None = None) -> list[int]:
    """Hand in jobs; return their numbers."""
    job_ids = []
    for request in requests:
        (answer,) = await grid.backend.submit([(f"{site} {request}", request)], site=site, origin="a test")
        job_ids.append(answer.job_id)  # type: ignore[union-attr]
    return job_ids


async def in_state(grid: LocalGrid, job_id: int, *states: str) -> None:
    """Wait until a job is in one of these states."""
    async with asyncio.timeout(PATIENCE_S):
        while (await grid.backend.records([job_id]))[0].state not in states:
            await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_full_control_forecasts_what_waits(tmp_path: Path) -> None:
    """A job that waits hears when it starts and where, a quote stands behind it, and an own user hears the site."""
    async with LocalGrid(tmp_path, policy=GridPolicy(mode="sharing")) as grid:
        runs, waits = await submit(grid, sleeper(4, 2), sleeper(3, 1))
        await in_state(grid, runs, "running")
        forecast = await grid.backend.forecast(waits)
        assert forecast is not None
        assert (forecast.state, forecast.places, forecast.ahead) == ("waiting", (("north", 3),), 0)
        assert forecast.start_ms is not None
        assert HOUR_MS < forecast.start_ms - forecast.now_ms <= 2 * HOUR_MS
        assert [site.reason for site in forecast.sites] == [
            f"needs 3 nodes, 0 of 4 nodes are free; 4 more come free in 2 h when job {runs} ends",
            "offers the grid 2 nodes in total, too few for the whole job",
        ]
        quote = await grid.backend.quote(sleeper(4, 1))
        assert (quote.job_id, quote.ahead, quote.places) == (None, 1, (("north", 4),))
        assert quote.start_ms is not None
        assert quote.start_ms - quote.now_ms > 2 * HOUR_MS
        outlook = (await grid.backend.what_if(WhatIf(drain=("north",), again=False, hours=6))).plays[0]
        assert (outlook.now.started, outlook.now.never, outlook.then.started, outlook.then.never) == (1, 0, 0, 1)
        first, second = await submit(grid, sleeper(2, 1), sleeper(1, 1), site="south")
        await in_state(grid, first, "running")
        own = await grid.backend.forecast(second)
        assert own is not None
        assert (own.state, own.places, own.ahead) == ("waiting", (("south", 1),), 0)
        assert own.reason == "it is first in the queue; it needs 1 node, and none is free"
        running = await grid.backend.forecast(first)
        assert running is not None
        assert (running.state, running.places, running.reason) == ("running", (("south", 2),), "")
        behind = msgspec.structs.replace(sleeper(1, 1), after=(After(job_id=waits, has="started"),))
        (follower,) = await submit(grid, behind)
        assert [record.job_id for record in (await grid.backend.jobs(JobQuery(follows=waits))).jobs] == [follower]
        assert (await grid.backend.queue(10, explain=True)).jobs[0].places == (("north", 3),)
        assert await grid.backend.apply_action("cancel", [runs, waits, first, second], origin="a test")


@pytest.mark.asyncio
async def test_reasons_that_changed_are_in_the_story(tmp_path: Path) -> None:
    """Why a job waited is told over time, once for each cause, however often somebody asked."""
    async with LocalGrid(tmp_path, policy=GridPolicy(mode="sharing")) as grid:
        runs, first, second = await submit(grid, sleeper(4, 2), sleeper(3, 1), sleeper(4, 1))
        await in_state(grid, runs, "running")
        for _ in range(3):
            await grid.backend.forecast(second)
        await grid.backend.apply_action("cancel", [first], origin="a test")
        await in_state(grid, first, "ended")
        await grid.backend.forecast(second)
        history = [entry.detail for entry in await grid.backend.history(second) if entry.kind == "waits"]
        assert [detail.split(";")[0] for detail in history] == [
            "no nodes for it now, or others go first",
            "it needs 4 nodes, and 2 are free at one site at most",
            "it is first in the queue",
        ]
        assert await grid.backend.apply_action("cancel", [runs, second], origin="a test")


@pytest.mark.asyncio
async def test_limited_control_asks_the_sites(tmp_path: Path) -> None:
    """Where jobs wait at sites these say when they start; for a quote all are asked, but for one that is away."""
    async with LocalGrid(tmp_path, policy=GridPolicy(mode="sharing", control="limited")) as grid:
        runs, waits = await submit(grid, sleeper(4, 2), sleeper(3, 1))
        await in_state(grid, runs, "running")
        async with asyncio.timeout(PATIENCE_S):
            # The grid may know that the job is to wait there before the site has it.
            while True:
                forecast = await grid.backend.forecast(waits)
                if forecast is not None and forecast.start_ms and "meant to" not in forecast.reason:
                    break
                await asyncio.sleep(0.02)
        assert forecast.reason == (
            "it waits in the queue of north: it is first in the queue; it needs 3 nodes, and none is free"
        )
        assert HOUR_MS < forecast.start_ms - forecast.now_ms <= 2 * HOUR_MS
        history = [entry.detail for entry in await grid.backend.history(waits) if entry.kind == "waits"]
        assert [detail.split(";")[0] for detail in history if detail.startswith("at ")] == [
            "at north: it is first in the queue"
        ]
        with pytest.raises(InputError, match="under control limited sites decide what starts when"):
            await grid.backend.what_if(WhatIf(load=2))
        quote = await grid.backend.quote(sleeper(2, 1))
        assert quote.places == (("south", 2),)
        assert quote.reason == "it would start at once on south"
        grid.away.add("site:south")
        quote = await grid.backend.quote(sleeper(2, 1))
        assert quote.places == (("north", 2),)
        assert quote.reason == "it would wait in the queue of north"
        assert [site.reason for site in quote.sites] == [
            "it needs 2 nodes, 0 of 4 nodes are free, and 1 job waits",
            "does not answer now; has not sent a quote",
        ]
        grid.away.clear()
        assert await grid.backend.apply_action("cancel", [runs, waits], origin="a test")


@pytest.mark.asyncio
async def test_without_control_a_quote_is_where_the_job_then_goes(tmp_path: Path) -> None:
    """With its start there and each site's own answer, though the grid itself looks only at what it has sent."""
    async with LocalGrid(tmp_path, policy=GridPolicy(mode="sharing", control="none")) as grid:
        own, sent = await submit(grid, sleeper(2, 2), site="south"), await submit(grid, sleeper(2, 1))
        await in_state(grid, own[0], "running")
        await in_state(grid, sent[0], "running")
        request = sleeper(1, 1)
        quote = await grid.backend.quote(request)
        assert quote.places == (("south", 1),)
        assert quote.reason == (
            "it would be sent to south, which has the least work of the grid per node, and would start there "
            "in 2 h; north could start it at once (--site north)"
        )
        north, south = quote.sites
        assert north.start_ms is not None
        assert abs(north.start_ms - quote.now_ms) < PATIENCE_S * 1000
        assert south.start_ms == quote.start_ms
        (job_id,) = await submit(grid, request)
        async with asyncio.timeout(PATIENCE_S):
            while not (record := (await grid.backend.records([job_id]))[0]).places:
                await asyncio.sleep(0.02)
        assert record.places == quote.places
        assert await grid.backend.apply_action("cancel", [*own, *sent, job_id], origin="a test")


@pytest.mark.asyncio
async def test_a_quote_of_a_mapping_grid_is_what_the_mapping_decides(tmp_path: Path) -> None:
    """The site on which the job ends first, and not before the jobs that are mapped there already."""
    policy = GridPolicy(mode="sharing", control="limited", selection="sjs")
    async with LocalGrid(tmp_path, policy=policy) as grid:
        (runs,) = await submit(grid, sleeper(4, 2))
        await in_state(grid, runs, "running")
        (waits,) = await submit(grid, sleeper(3, 1))
        async with asyncio.timeout(PATIENCE_S):
            while (forecast := await grid.backend.forecast(waits)) is None or not forecast.places:
                await asyncio.sleep(0.02)
        quote = await grid.backend.quote(sleeper(2, 1))
        assert (quote.places, quote.reason) == ((("south", 2),), "it would start at once on south")
        quote = await grid.backend.quote(sleeper(4, 1.5))
        assert quote.places == (("north", 4),)
        assert quote.start_ms is not None
        assert 2 * HOUR_MS < quote.start_ms - quote.now_ms <= 3 * HOUR_MS, "the job that waits goes first"
        assert quote.reason.startswith("mapped over the sites with all waiting jobs, it would start in ")
        (job_id,) = await submit(grid, sleeper(4, 1.5))
        async with asyncio.timeout(PATIENCE_S):
            while (forecast := await grid.backend.forecast(job_id)) is None or not forecast.places:
                await asyncio.sleep(0.02)
        assert forecast.places == quote.places
        assert forecast.start_ms is not None
        assert abs(forecast.start_ms - quote.start_ms) < PATIENCE_S * 1000
        assert await grid.backend.apply_action("cancel", [runs, waits, job_id], origin="a test")


@pytest.mark.asyncio
@pytest.mark.parametrize(("busy", "split"), [(3, True), (1, False)])
async def test_a_quote_under_limited_control_is_what_the_grid_does(tmp_path: Path, busy: int, *, split: bool) -> None:
    """A job that fits one site is quoted, and placed, over two where its nodes are free only there together."""
    policy = GridPolicy(mode="multi-site", control="limited", overhead=0.25)
    async with LocalGrid(tmp_path, policy=policy) as grid:
        (runs,) = await submit(grid, sleeper(busy, 2))
        await in_state(grid, runs, "running")
        request = sleeper(3, 1)
        quote = await grid.backend.quote(request)
        assert sorted(quote.places) == ([("north", 1), ("south", 2)] if split else [("north", 3)])
        assert quote.start_ms == quote.now_ms
        assert (quote.split is not None) == split
        assert ("it would be split over" in quote.reason) == split
        (job_id,) = await submit(grid, request)
        await in_state(grid, job_id, "running")
        (record,) = await grid.backend.records([job_id])
        assert sorted(record.places) == sorted(quote.places)
        assert await grid.backend.apply_action("cancel", [runs, job_id], origin="a test")
