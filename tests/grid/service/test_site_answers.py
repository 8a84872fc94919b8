"""What the gateway adds of sites to what the grid knows, with actors that a test makes up."""

from __future__ import annotations

from typing import Any

import pytest

from gridweave.errors import UnavailableError
from gridweave.grid.api import PlannedStarts, ScheduledJob
from gridweave.grid.service.backend import LiveBackend
from gridweave.site.explain import Forecast, SiteReason
from gridweave.site.job import JobRequest, Program
from gridweave.site.query_messages import Queue, QueuedJob
from gridweave.site.service.calls import GRID_ACTOR, site_actor


class MadeUp(LiveBackend):
    """A backend whose actors answer what a test says, by actor and method; all others are away."""

    def __init__(self, answers: dict[tuple[str, str], Any]) -> None:
        self._by_question = answers

    async def _ask(self, actor: str, method: str, _kind: Any, *_arguments: object, timeout_s: float = 0) -> Any:
        if (actor, method) not in self._by_question:
            raise UnavailableError(f"{actor} does not answer within {timeout_s} s")
        return self._by_question[actor, method]


@pytest.mark.asyncio
async def test_a_queue_shows_the_start_that_the_site_of_a_job_expects() -> None:
    """As explain does; of a site that does not answer what the grid knows stays."""
    size = {"nodes": 1, "limit_ms": 10, "submit_ms": 0}
    jobs = [QueuedJob(job_id=number, waits_at=site, reason="r", **size) for number, site in enumerate("aab", start=1)]
    queue = Queue(waiting=3, held=0, starting=0, running=0, jobs=jobs)
    said = [Forecast(job_id=2, now_ms=0, start_ms=70, reason="as 4711 there: others go first")]
    found = await MadeUp({(GRID_ACTOR, "queue"): queue, (site_actor("a"), "forecasts"): said}).queue(20, explain=True)
    assert [(job.start_ms, job.reason) for job in found.jobs] == [
        (None, "r"),
        (70, "it waits in the queue of a: as 4711 there: others go first"),
        (None, "r"),
    ]


@pytest.mark.asyncio
async def test_the_schedule_shows_the_start_that_the_site_of_a_job_expects() -> None:
    """Never one that is past, none of a job that runs by now or has no known start; all by their starts."""

    def planned(job_id: int, start_ms: int | None) -> ScheduledJob:
        end_ms = None if start_ms is None else start_ms + 10
        return ScheduledJob(job_id, "anna", "", "waiting", 0, start_ms, end_ms, (("a", 2),))

    sites = {1: "a", 2: "a", 3: "a", 4: "a", 5: "b", 6: "b"}
    jobs = [planned(job_id, start_ms) for job_id, start_ms in enumerate((90, None, 60, 60, 70, None, 80), start=1)]
    plan = PlannedStarts(now_ms=50, jobs=jobs, waits_at=sites)
    known = {"places": (("a", 1),), "length_ms": 30}
    said = [
        Forecast(job_id=1, now_ms=50, start_ms=120, **known),
        Forecast(job_id=2, now_ms=49, start_ms=49, **known),
        Forecast(job_id=3, now_ms=50, reason="others go first"),
        Forecast(job_id=4, now_ms=50, state="running", start_ms=40),
    ]
    found = await MadeUp({(GRID_ACTOR, "plan"): plan, (site_actor("a"), "forecasts"): said}).plan(500)
    drawn = [(job.job_id, job.start_ms, job.end_ms, job.places) for job in found.jobs]
    # Of site b, which does not answer, what the grid knows stays; job 7 waits in no site's queue.
    assert drawn == [
        (2, 50, 80, (("a", 1),)),
        (5, 70, 80, (("a", 2),)),
        (7, 80, 90, (("a", 2),)),
        (1, 120, 150, (("a", 1),)),
    ]


@pytest.mark.asyncio
async def test_a_site_that_is_away_says_neither_a_start_nor_that_others_use_it() -> None:
    """Neither where a job waits in its queue, nor of a job that is not submitted yet."""
    rows = tuple(SiteReason(site=name, nodes=4, start_ms=5, reason="says: a start at once") for name in "ab")
    known = Forecast(job_id=1, now_ms=0, reason="it waits in the queue of a", sites=rows, queues=("a",))
    found = await MadeUp({(GRID_ACTOR, "forecast"): known}).forecast(1)
    assert found is not None
    assert found.reason == "it waits in the queue of a; a does not answer now"
    assert [(row.start_ms, row.reason) for row in found.sites] == [
        (None, "does not answer now; says: a start at once"),
        (5, "says: a start at once"),
    ]


@pytest.mark.asyncio
async def test_a_quote_shows_beside_whom_a_job_could_start() -> None:
    """The start stays the grid's, which has the queue; a site that does not answer offers nothing."""
    rows = SiteReason(site="a", reason="full"), SiteReason(site="b", reason="full")
    known = Forecast(now_ms=0, start_ms=900, reason="r", sites=rows, offers=("a", "b"))
    offer = "or it could start now beside job 12, and take 1.28 times as long"
    said = Forecast(now_ms=0, start_ms=5, sites=(SiteReason(start_ms=5, reason="other", offer=offer),))
    answers = {(GRID_ACTOR, "quote"): known, (site_actor("a"), "quote"): said}
    found = await MadeUp(answers).quote(JobRequest(program=Program(argv=("true",)), limit_ms=1))
    assert (found.start_ms, found.reason) == (900, "r")
    assert [row.reason for row in found.sites] == [f"full; {offer}", "full"]
