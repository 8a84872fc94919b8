"""Questions about many jobs: they keep neither the writer of a journal nor other questions waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from gridweave.grid.api import JobQuery
from gridweave.site.job import Accepted, Declined, JobRecord, JobRequest, Program
from gridweave.site.journal.reader import JournalReader
from gridweave.site.messages import JobAction
from gridweave.site.service import history, queries
from support.live_grids import LocalGrid
from support.machine import PATIENCE_S


def held(**more: object) -> JobRequest:
    """Return a job that is held."""
    options: dict[str, object] = {"limit_ms": 60_000, "hold": True, "user": "anna"} | more
    return JobRequest(program=Program(argv=("true",)), **options)  # type: ignore[arg-type]


async def submit(grid: LocalGrid, *requests: JobRequest) -> list[int]:
    """Submit jobs; return their numbers."""
    answers = await grid.backend.submit(
        [(f"key {number} {request}", request) for number, request in enumerate(requests)], site=None, origin="a test"
    )
    return [answer.job_id for answer in answers]  # type: ignore[union-attr]


@pytest.mark.asyncio
async def test_a_question_that_takes_long_keeps_nobody_from_submitting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a user's question reads the journal, jobs are submitted, and are durable."""
    gate, reads = threading.Event(), asyncio.Event()
    async with LocalGrid(tmp_path) as grid:
        (first,) = await submit(grid, held())
        loop, find_ended = asyncio.get_running_loop(), JournalReader.ended

        def slow(self: JournalReader, job_ids: Sequence[int]) -> dict[int, JobRecord]:
            with self.reading():
                loop.call_soon_threadsafe(reads.set)
                gate.wait(PATIENCE_S)
            return find_ended(self, job_ids)

        assert await grid.backend.apply_action("cancel", [first], origin="a test") == [first]
        monkeypatch.setattr(JournalReader, "ended", slow)
        asked = asyncio.create_task(grid.grid_desk._history.ended([first]))
        async with asyncio.timeout(PATIENCE_S):
            await reads.wait()
            (second,) = await submit(grid, held(name="second"))
        assert not asked.done()
        gate.set()
        assert list(await asked) == [first]
        assert second == first + 1


@pytest.mark.asyncio
async def test_numbers_that_no_job_has_are_looked_up_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand numbers that were never given to jobs cost no look into the journal."""
    async with LocalGrid(tmp_path) as grid:
        job_ids = await submit(grid, held(), held(name="b"))
        looked: list[int] = []

        async def ended(job_ids: Sequence[int]) -> dict[int, JobRecord]:
            looked.extend(job_ids)
            return {}

        monkeypatch.setattr(grid.grid_desk._history, "ended", ended)
        assert await grid.backend.records(range(1_000, 11_000)) == []
        assert await grid.backend.apply_action("cancel", range(1_000, 11_000), origin="a test") == []
        assert [record.job_id for record in await grid.backend.records([*range(1_000, 11_000), *job_ids])] == job_ids
        assert looked == []


@pytest.mark.asyncio
async def test_ten_cancels_of_unknown_numbers_keep_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand numbers that no job has: others are served in between, and the driver hears of none."""
    async with LocalGrid(tmp_path) as grid:
        await submit(grid, held())
        served = 0
        monkeypatch.setattr(grid.driver, "apply_action", None)

        async def serve() -> None:
            nonlocal served
            while True:
                await asyncio.sleep(0)
                served += 1

        others = asyncio.create_task(serve())
        unknown = range(1_000, 11_000)
        cancels = (grid.grid_desk.apply_action("cancel", list(unknown), f"request {number}") for number in range(10))
        assert await asyncio.gather(*cancels) == [[]] * 10
        others.cancel()
        assert served >= len(unknown) // queries.ACTIONS_AT_ONCE
        (job_id,) = await submit(grid, held(name="another"))
        assert job_id == 2


@pytest.mark.asyncio
async def test_a_wish_about_many_jobs_is_carried_out_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No turn is about more than a few jobs of one request; all are done, and others' wishes go in between."""
    monkeypatch.setattr(queries, "ACTIONS_AT_ONCE", 4)
    async with LocalGrid(tmp_path) as grid:
        job_ids = await submit(grid, *(held(name=f"job {number}") for number in range(12)))
        turns: list[tuple[int, ...]] = []
        report = grid.driver.apply

        async def apply(*events: object) -> None:
            turns.extend(event.job_ids for event in events if isinstance(event, JobAction))
            await report(*events)

        monkeypatch.setattr(grid.driver, "apply", apply)
        bulk = asyncio.create_task(grid.backend.apply_action("cancel", job_ids[:11], origin="a test"))
        single = asyncio.create_task(grid.backend.apply_action("cancel", job_ids[11:], origin="a test"))
        assert await single == job_ids[11:]
        assert sorted(await bulk) == job_ids[:11]
    assert sorted(map(len, turns)) == [1, 3, 4, 4]
    assert len(turns[-1]) > 1, "the single job waited for all of the others"


@pytest.mark.asyncio
async def test_a_turn_takes_in_few_jobs_of_large_submissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of large submissions a few pieces are under way at once; a small one waits for none of them; all get answers."""
    monkeypatch.setattr(queries, "FEW_JOBS", 1)
    monkeypatch.setattr(queries, "JOBS_AT_ONCE", 3)
    async with LocalGrid(tmp_path) as grid:
        under_way, most, ended, submit_now = 0, 0, list[str](), grid.driver.submit

        async def counted(jobs: Sequence[tuple[str, JobRequest]], *, origin: str = "") -> list[Accepted | Declined]:
            nonlocal under_way, most
            size = len(jobs) if len(jobs) > 1 or jobs[0][0] != "single" else 0
            under_way += size
            most = max(most, under_way)
            answers = await submit_now(jobs, origin=origin)
            under_way -= size
            ended.append(jobs[0][0])
            return answers

        monkeypatch.setattr(grid.driver, "submit", counted)
        batches = [[(f"{name} {number}", held()) for number in range(10)] for name in "abcdef"] + [[("single", held())]]
        found = await asyncio.gather(*(grid.backend.submit(jobs, site=None, origin="a test") for jobs in batches))
        assert [[answer.key for answer in answers] for answers in found] == [
            [key for key, _ in jobs] for jobs in batches
        ]
        assert len({answer.job_id for answers in found for answer in answers if isinstance(answer, Accepted)}) == 61
        assert most == 4 * 3
        assert ended.index("single") <= 4


@pytest.mark.asyncio
@pytest.mark.parametrize("at_once", [1, 2, 5])
async def test_jobs_are_found_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Looking through few numbers at a time finds the same jobs, in the same order, up to the same limit."""
    monkeypatch.setattr(history, "NUMBERS_AT_ONCE", at_once)
    monkeypatch.setattr(history, "IDS_AT_ONCE", at_once)
    monkeypatch.setattr(queries, "RECORDS_AT_ONCE", at_once)
    async with LocalGrid(tmp_path) as grid:
        of_jobs = await submit(grid, *(held(name=f"job {number % 3}") for number in range(9)))
        open_ids = of_jobs[4:6]
        await grid.backend.apply_action("cancel", sorted(set(of_jobs) - set(open_ids)), origin="a test")
        kept = grid.grid_desk._history
        ended = sorted(set(of_jobs) - set(open_ids), reverse=True)
        assert list(await kept.ended(of_jobs)) == ended[::-1]
        job_queries = {
            JobQuery(): ended,
            JobQuery(limit=2): ended[:2],
            JobQuery(below=of_jobs[3]): of_jobs[2::-1],
            JobQuery(below=1): [],
            JobQuery(name="job 1"): [job_id for job_id in ended if (job_id - of_jobs[0]) % 3 == 1],
            JobQuery(name="none"): [],
        }
        for query, wanted in job_queries.items():
            assert [record.job_id for record in await kept.find_ended(query)] == wanted, query
        assert [record.job_id for record in (await grid.backend.jobs(JobQuery())).jobs] == of_jobs[::-1]
