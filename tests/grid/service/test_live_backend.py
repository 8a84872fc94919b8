"""A live grid as the gateway sees it: real cores, desks, agents and processes in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gridweave.errors import InputError, SiteAwayError, UnavailableError
from gridweave.grid.api import Forecast, JobQuery, OutputPart, Queue, SiteInfo
from gridweave.grid.backend import Backend
from gridweave.grid.service.backend import LiveBackend
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.explain import SiteReason
from gridweave.site.job import OWN_IDS, Accepted, After, ArrayPlace, JobRecord, JobRequest, Program
from gridweave.site.known_times import EXPERIENCE, KnownTimes, read_times
from gridweave.site.launch import MachineRules, OutputLimits
from gridweave.site.messages import Quoted, RequestQuote
from gridweave.site.query_messages import SiteNames
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.service.calls import CALL_S, Answered
from support.live_grids import LocalGrid
from support.machine import PATIENCE_S
from support.stepping import VirtualLoop

ANNA = "anna, request 7"


def shell(line: str, **more: Any) -> JobRequest:
    """Return a job that runs a line of shell."""
    options: dict[str, Any] = {"limit_ms": 3_600_000, "user": "anna"} | more
    return JobRequest(program=Program(argv=("sh", "-c", line), grace_ms=200), **options)


async def submit(backend: Backend, *requests: JobRequest, site: str | None = None) -> list[int]:
    """Hand in jobs that are taken in; return their numbers."""
    jobs = [(f"{site} {number} {request}"[:900], request) for number, request in enumerate(requests)]
    answers = await backend.submit(jobs, site=site, origin=ANNA)
    accepted = [answer for answer in answers if isinstance(answer, Accepted)]
    assert len(accepted) == len(requests), answers
    return [answer.job_id for answer in accepted]


async def until(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until there is something, which comes by itself."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await ask()):
            await asyncio.sleep(0.01)
    return found


async def in_state(backend: Backend, job_id: int, *states: str) -> JobRecord:
    """Wait until a job is in one of some states."""

    async def look() -> list[JobRecord]:
        return [record for record in await backend.records([job_id]) if record.state in states]

    record: JobRecord = (await until(look))[0]
    return record


@pytest.mark.asyncio
async def test_it_is_what_the_gateway_asks_for(tmp_path: Path) -> None:
    """The backend has all that the gateway calls."""
    async with LocalGrid(tmp_path) as grid:
        backend: Backend = grid.backend
        assert isinstance(backend, LiveBackend)
        health = await backend.health()
    assert (health.status, health.sites) == ("ok", {"north": True, "south": True})


@pytest.mark.asyncio
async def test_a_split_job_is_seen_from_submission_to_output(tmp_path: Path) -> None:
    """Its record, its story at the grid and at both sites by time, who asked for it, and the output of every rank."""
    async with LocalGrid(tmp_path) as grid:
        backend = grid.backend
        (job_id,) = await submit(backend, shell("echo I am $GRIDWEAVE_RANK", nodes=6))
        record = await in_state(backend, job_id, "ended")
        assert (record.outcome, record.places) == ("finished", (("north", 4), ("south", 2)))
        history = await backend.history(job_id)
        assert history[0].detail == f"6 nodes, by {ANNA}"
        assert {"starting", "runs", "ended"} <= {entry.kind for entry in history}
        assert [entry.at_ms for entry in history] == sorted(entry.at_ms for entry in history)
        for rank in range(6):
            part = await backend.output(job_id, rank, "out", 0, 1000)
            assert part is not None
            assert (part.data, part.is_last) == (f"I am {rank}\n".encode(), True)
        rest = await backend.output(job_id, 3, "out", 5, 2)
        assert rest is not None
        assert (rest.data, rest.offset, rest.is_last) == (b"3\n", 5, True)
        with pytest.raises(InputError, match="has no rank 6; it has 0 to 5"):
            await backend.output(job_id, 6, "out", 0, 1000)
        assert await backend.output(77, 0, "out", 0, 1000) is None
        assert await backend.history(77) == []
        assert await backend.forecast(77) is None


@pytest.mark.asyncio
async def test_output_is_followed_while_it_is_written(tmp_path: Path) -> None:
    """What is there is given while the job runs, and only what reaches the end of one that is over is the last."""
    async with LocalGrid(tmp_path) as grid:
        backend, go = grid.backend, tmp_path / "go"
        line = f"echo first; while [ ! -e {go} ]; do sleep 0.02; done; echo second"
        job_ids = await submit(backend, shell(line, nodes=3)) + await submit(backend, shell(line), site="south")

        async def first(job_id: int) -> bytes:
            part = await backend.output(job_id, 0, "out", 0, 1000)
            assert part is not None
            assert not part.is_last
            return part.data

        for job_id in job_ids:
            assert await until(lambda job_id=job_id: first(job_id)) == b"first\n"
        go.touch()
        for job_id in job_ids:
            await in_state(backend, job_id, "ended")
            part = await backend.output(job_id, 0, "out", 0, 8)
            assert part is not None
            assert (part.data, part.is_last) == (b"first\nse", False)
            part = await backend.output(job_id, 0, "out", 8, 100)
            assert part is not None
            assert (part.data, part.is_last) == (b"cond\n", True)


@pytest.mark.asyncio
async def test_jobs_wait_for_a_wish_for_others_and_in_arrays(tmp_path: Path) -> None:
    """What is held says why, goes when it may, and knows its place in its array."""
    async with LocalGrid(tmp_path) as grid:
        backend = grid.backend
        (first,) = await submit(backend, shell("exit 1", hold=True, name="first"))
        place, ended = ArrayPlace(name="sweep", index=5, at_once=1), After(job_id=first, has="ended")
        second, third, fourth = await submit(
            backend,
            shell("true", after=(After(job_id=first, has="failed"),)),
            shell("true", after=(After(job_id=first),)),
            shell("echo $GRIDWEAVE_ARRAY $GRIDWEAVE_ARRAY_INDEX", after=(ended,), array=place),
        )
        queue = await backend.queue(10)
        assert (queue.held, queue.waiting, queue.jobs) == (4, 0, [])
        reasons = [record.reason for record in await backend.records([first, second])]
        assert reasons == ["is held by its user", f"waits until job {first} has failed"]
        forecast = await backend.forecast(second)
        assert forecast is not None
        assert (forecast.state, forecast.reason) == ("held", f"waits until job {first} has failed")
        assert await backend.apply_action("release", [first, second], origin=ANNA) == [first]
        ends = [(await in_state(backend, job_id, "ended")).outcome for job_id in (first, second, third, fourth)]
        assert ends == ["failed", "finished", "cancelled", "finished"]
        part = await backend.output(fourth, 0, "out", 0, 100)
        assert part is not None
        assert part.data == b"sweep 5\n"
        assert await backend.apply_action("hold", [first, 77], origin=ANNA) == []
        page = await backend.jobs(JobQuery(array="sweep"))
        assert [record.job_id for record in page.jobs] == [fourth]


@pytest.mark.asyncio
async def test_running_and_waiting_jobs_are_cancelled(tmp_path: Path) -> None:
    """Those that had not ended are named, of the grid and of a site's own users; the queue shows who waits."""
    async with LocalGrid(tmp_path) as grid:
        backend = grid.backend
        (own,) = await submit(backend, shell("sleep 100000", nodes=2), site="south")
        runs, waits = await submit(backend, shell("sleep 100000", nodes=4), shell("sleep 100000", nodes=4))
        await in_state(backend, runs, "running")
        queue = await backend.queue(10)
        assert ([job.job_id for job in queue.jobs], queue.running) == ([waits], 1)
        cancelled = await backend.apply_action("cancel", [own, runs, waits, 77, 9 * OWN_IDS], origin=ANNA)
        assert sorted(cancelled) == [runs, waits, own]
        for job_id in (own, runs, waits):
            assert (await in_state(backend, job_id, "ended")).outcome == "cancelled"
        assert await backend.apply_action("cancel", [own, runs, waits], origin=ANNA) == []
        assert f"on request, by {ANNA}" in [entry.detail for entry in await backend.history(waits)]


DEAF = "trap '' TERM; trap 'echo heard' USR1; echo up; while true; do sleep 0.05; done"
"""Does not end when it is told to, and says when it gets USR1."""


@pytest.mark.asyncio
async def test_a_job_that_does_not_end_is_ending_until_it_is_killed_at_once(tmp_path: Path) -> None:
    """One that ignores TERM has its long grace and is told as ending; to be killed at once is heard all the same."""
    async with LocalGrid(tmp_path) as grid:
        backend = grid.backend
        program = Program(argv=("sh", "-c", DEAF), grace_ms=300_000)
        request = JobRequest(program=program, limit_ms=7_200_000, user="anna")
        own, deaf = [(await submit(backend, request, site=site))[0] for site in ("south", None)]
        for job_id in (own, deaf):
            await in_state(backend, job_id, "running")
            await until(lambda job_id=job_id: _written(backend, job_id, b"up"))
        assert sorted(await backend.apply_action("cancel", [own, deaf], origin=ANNA)) == [deaf, own]
        for job_id in (own, deaf):
            record = await in_state(backend, job_id, "ending")
            assert record.end_ms is None
        assert (await backend.queue(10)).ending == 1
        assert sorted(await backend.apply_action("kill", [own, deaf], origin=ANNA)) == [deaf, own]
        for job_id in (own, deaf):
            assert (await in_state(backend, job_id, "ended")).outcome == "cancelled"


@pytest.mark.asyncio
async def test_the_processes_of_a_job_get_a_signal_and_go_on(tmp_path: Path) -> None:
    """All ranks of running jobs get it, of the grid and of a site's own users; of waiting ones nobody does."""
    async with LocalGrid(tmp_path) as grid:
        backend = grid.backend
        (own,) = await submit(backend, shell(DEAF, nodes=2), site="south")
        runs, waits = await submit(backend, shell(DEAF, nodes=4), shell("true", nodes=4))
        for job_id in (own, runs):
            await in_state(backend, job_id, "running")
            for rank in range(2):
                await until(lambda job_id=job_id, rank=rank: _written(backend, job_id, b"up", rank))
        asked = await backend.apply_action("signal", [own, runs, waits, 77], origin=ANNA, signal="USR1")
        assert sorted(asked) == [runs, own]
        for job_id in (own, runs):
            for rank in range(2):
                await until(lambda job_id=job_id, rank=rank: _written(backend, job_id, b"heard", rank))
            assert [record.state for record in await backend.records([job_id])] == ["running"]
        assert f"USR1 on request, by {ANNA}" in [entry.detail for entry in await backend.history(runs)]
        await backend.apply_action("kill", [own, runs, waits], origin=ANNA)


@pytest.mark.asyncio
async def test_a_signal_reaches_ranks_of_whose_start_the_site_has_not_heard(tmp_path: Path) -> None:
    """The machine knows that they run, even if what it tells its site is on its way still."""
    async with LocalGrid(tmp_path) as grid:
        backend, site, heard = grid.backend, grid.sites["north"], asyncio.Event()
        (first,) = await submit(backend, shell("true", nodes=4))
        await in_state(backend, first, "ended")
        report = site.report

        async def report_late(data: bytes) -> None:
            await heard.wait()
            await report(data)

        site.report = report_late  # type: ignore[method-assign]
        (job_id,) = await submit(backend, shell(DEAF, nodes=4, name="deaf"))
        await in_state(backend, job_id, "running")
        for rank in range(4):
            await until(lambda rank=rank: _written(backend, job_id, b"up", rank))
        assert await backend.apply_action("signal", [job_id], origin=ANNA, signal="USR1") == [job_id]
        for rank in range(4):
            await until(lambda rank=rank: _written(backend, job_id, b"heard", rank))
        heard.set()
        await backend.apply_action("kill", [job_id], origin=ANNA)
        assert (await in_state(backend, job_id, "ended")).outcome == "cancelled"


async def _written(backend: Backend, job_id: int, what: bytes, rank: int = 0) -> bool:
    """Return whether a rank has written something."""
    part = await backend.output(job_id, rank, "out", 0, 1000)
    return part is not None and what in part.data


@pytest.mark.asyncio
async def test_events_are_told_once_and_in_order(tmp_path: Path) -> None:
    """Whoever asks for what came after an event gets all of it; nobody waits when there is something."""
    async with LocalGrid(tmp_path) as grid:
        backend = grid.backend
        assert (await backend.events(-1, 60.0)).last == 0
        (job_id,) = await submit(backend, shell("true", name="tiny"))
        seen, after = [], 0
        while not seen or seen[-1].kind != "ended":
            page = await backend.events(after, 60.0)
            assert page.events
            seen, after = seen + page.events, page.last
        assert [event.number for event in seen] == list(range(1, len(seen) + 1))
        assert {(event.job_id, event.user, event.name) for event in seen} == {(job_id, "anna", "tiny")}
        assert seen[0].kind == "submitted"
        assert (await backend.events(after, 0.0)).events == []
        assert (await backend.events(10**6, 60.0)).last == after
    async with LocalGrid(tmp_path) as grid:
        # After a restart they come from the journal.
        again = await grid.backend.events(0, 60.0)
        assert again.events == seen


@pytest.mark.asyncio
async def test_what_is_away_is_said_and_does_no_harm(tmp_path: Path) -> None:
    """A site that does not answer is shown as last known; what is asked of it alone is unavailable."""
    async with LocalGrid(tmp_path) as grid:
        backend = grid.backend
        (job_id,) = await submit(backend, shell("echo here", nodes=6))
        await in_state(backend, job_id, "ended")
        before = await backend.sites()
        assert [(site.name, site.nodes, len(site.machines)) for site in before] == [("north", 4, 2), ("south", 2, 1)]
        grid.away = {"site:south", "agent:north/m0"}
        north, south = await backend.sites()
        assert (north.answers, south.answers, south.nodes) == (True, False, 2)
        assert [entry for entry in await backend.history(job_id) if "south" in entry.detail]
        with pytest.raises(UnavailableError, match="agent:north/m0 does not answer"):
            await backend.output(job_id, 0, "out", 0, 100)
        with pytest.raises(UnavailableError):
            await backend.submit([("key", shell("true"))], site="south", origin=ANNA)
        with pytest.raises(InputError, match="there is no site 'west'; the grid has north, south"):
            await backend.submit([("key", shell("true"))], site="west", origin=ANNA)
        grid.away = {"grid"}
        assert (await backend.health()).status == "unavailable"
        with pytest.raises(UnavailableError):
            await backend.records([job_id])


@pytest.mark.asyncio
async def test_a_site_is_drained_and_taken_into_use_again(tmp_path: Path) -> None:
    """While it is drained it says so, and the grid has nothing of it."""
    async with LocalGrid(tmp_path) as grid:
        backend = grid.backend
        await backend.drain("south", True)
        assert [site.draining for site in await backend.sites()] == [False, True]
        (wide,) = await submit(backend, shell("true", nodes=6))
        (small,) = await submit(backend, shell("true", nodes=2))
        assert (await backend.records([wide]))[0].state == "waiting"
        assert (await in_state(backend, small, "ended", "waiting")).outcome in ("", "finished")
        await backend.drain("south", False)
        assert (await in_state(backend, wide, "ended")).outcome == "finished"


@pytest.mark.asyncio
async def test_what_ran_on_a_machine_that_is_given_up_runs_again(tmp_path: Path) -> None:
    """Not while it answers; once it is away its job begins again, and the same job elsewhere goes on."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    line = f"echo $GRIDWEAVE_JOB_ID >> {begun}; while [ ! -e {go} ]; do sleep 0.05; done"
    async with LocalGrid(tmp_path, sites=(("north", (1, 1)), ("south", (1,)))) as grid:
        backend = grid.backend
        lost, other = await submit(backend, shell(line), shell(line), site="north")
        for job_id in (lost, other):
            await in_state(backend, job_id, "running")
        assert await grid.desks["north"].machine_of(lost, 1, 0) == "m0"
        assert (await backend.give_up("north", "m0")).refused == "machine-answers"
        assert (await backend.give_up("north", "m7")).reason == "site north has no machine 'm7'; it has m0, m1"
        with pytest.raises(InputError, match="there is no site 'west'"):
            await backend.give_up("west", "m0")
        assert (await backend.records([lost]))[0].starts == 1

        grid.away, grid.desks["north"].away = {"agent:north/m0"}, {"m0"}
        assert (await backend.give_up("north", "m0")).refused == ""
        grid.away = set()
        assert (await in_state(backend, lost, "running")).starts == 2
        go.touch()
        ends = [await in_state(backend, job_id, "ended") for job_id in (lost, other)]
    assert [(record.outcome, record.starts) for record in ends] == [("finished", 2), ("finished", 1)]
    assert sorted(begun.read_text().split()) == sorted([str(lost)] * 2 + [str(other)])


@pytest.mark.asyncio
async def test_what_a_site_has_learned_is_shown_and_edited(tmp_path: Path) -> None:
    """A site of machines that differ applies edits that it can read; other sites and questions have no answer."""
    grid = LocalGrid(tmp_path)
    differ = HeterogeneousPolicy(nodes=2, classes=(NodeKind(name="old", count=2),))
    grid.settings[1] = msgspec.structs.replace(grid.settings[1], policy=differ)
    async with grid:
        backend = grid.backend
        (job_id,) = await submit(backend, shell("true", nodes=1, job_class="cfd"), site="south")
        assert (await in_state(backend, job_id, "ended")).outcome == "finished"
        before = read_times(await backend.ask_discipline("south", EXPERIENCE))
        assert [(times.job_class, times.user, times.resource, times.runs) for times in before] == [
            (None, "anna", "", 1),
            ("cfd", None, "", 1),
            ("cfd", None, "old", 1),
        ]
        better = KnownTimes(job_class="cfd", resource="old", runs=4, mean_ms=9_000)
        changes = msgspec.to_builtins([better, msgspec.structs.replace(before[0], runs=0)])
        with pytest.raises(InputError, match=r"cannot be read: Expected `array`, got `int`"):
            await backend.ask_discipline("south", EXPERIENCE, 7)
        wrong = [{"job_class": "mesh", "runs": 3, "mean_ms": -1.0}]
        with pytest.raises(InputError, match="is out of range"):
            await backend.ask_discipline("south", EXPERIENCE, wrong)
        after = await backend.ask_discipline("south", EXPERIENCE, changes)
        assert read_times(after) == [before[1], better]
        assert await backend.ask_discipline("south", "weather", changes) is None
        assert await backend.ask_discipline("north", EXPERIENCE, changes) is None
        assert await backend.ask_discipline("south", EXPERIENCE) == after
        with pytest.raises(InputError, match="there is no site 'nowhere'"):
            await backend.ask_discipline("nowhere", EXPERIENCE)


@pytest.mark.asyncio
@pytest.mark.parametrize("site", ["south", None])
async def test_an_evicted_job_stands_still_and_goes_on_where_the_site_pauses(tmp_path: Path, site: str | None) -> None:
    """Its process is stopped while the other runs, is not started again, and ends well; so does a job of the grid."""
    grid, go = LocalGrid(tmp_path), tmp_path / "go"
    levels = (Level(name="high", priority=2, evicts=("low",)), Level(name="low", priority=0))
    one = HeterogeneousPolicy(
        nodes=2, classes=(NodeKind(name="old", count=2),), out_of_service="1", levels=levels, evicted="pause"
    )
    grid.settings[1] = msgspec.structs.replace(grid.settings[1], policy=one)
    async with grid:
        backend = grid.backend
        lines = {name: f"while [ ! -e {go}-{name} ]; do sleep 0.05; done" for name in ("low", "high")}
        await backend.drain("north", True)
        (low,) = await submit(backend, shell(lines["low"]), site=site)
        assert (await in_state(backend, low, "running")).starts == 1
        (high,) = await submit(backend, shell(lines["high"], priority=2), site="south")
        await in_state(backend, high, "running")
        assert (await backend.sites())[1].paused == (low,)
        why = f"job {high} of level 'high' takes machines of level 'low'"
        told = await backend.forecast(low)
        assert told is not None
        assert why in told.reason
        Path(f"{go}-low").touch()
        Path(f"{go}-high").touch()
        above, below = await in_state(backend, high, "ended"), await in_state(backend, low, "ended")
        assert (above.outcome, below.outcome, below.starts, below.attempt) == ("finished", "finished", 1, 1)
        assert above.end_ms is not None
        assert below.end_ms is not None
        # It could have ended before, had it not stood still.
        assert below.end_ms >= above.end_ms


@pytest.mark.asyncio
async def test_jobs_are_listed_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest first, those that ended long ago as well, and each once; filters narrow them."""
    monkeypatch.setattr("gridweave.site.users.registry.KEEP_ENDED", 10)
    async with LocalGrid(tmp_path) as grid:
        backend = grid.backend
        held = [shell("true", hold=True, name=f"job {number % 3}", user=f"user {number % 2}") for number in range(30)]
        job_ids = await submit(backend, *held)
        await backend.apply_action("cancel", [job_id for job_id in job_ids if job_id % 5], origin=ANNA)
        assert len(grid.driver.grid.registry.records) < 20

        async def listed(**query: Any) -> list[int]:
            found: list[int] = []
            below = None
            while True:
                page = await backend.jobs(JobQuery(limit=4, below=below, **query))
                assert len(page.jobs) <= 4
                found += [record.job_id for record in page.jobs]
                if page.below is None:
                    return found
                below = page.below

        assert await listed() == job_ids[::-1]
        assert await listed(state=("held",)) == [30, 25, 20, 15, 10, 5]
        assert await listed(outcome=("cancelled",)) == [job_id for job_id in job_ids[::-1] if job_id % 5]
        assert await listed(user="user 0", name="job 0") == [25, 19, 13, 7, 1]
        assert await listed(site="north") == []
        assert await listed(own="north") == []
        assert [record.state for record in await backend.records([1, 30])] == ["ended", "held"]


ROWS = (SiteReason(site="north", nodes=4), SiteReason(site="south", nodes=2))


class HungCalls:
    """Calls to a grid of two sites, of which some actors never answer."""

    def __init__(self, *hung: str) -> None:
        self.hung = set(hung)
        self.asked: list[tuple[str, str]] = []

    async def call(self, actor: str, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
        """Refuse: the backend only asks at desks."""
        raise AssertionError(f"{method} of {actor} is called")

    async def ask(
        self, actor: str, method: str, data: bytes, *, timeout_s: float = CALL_S, alone: bool = False
    ) -> bytes:
        """Answer, or be silent until the time is over."""
        self.asked.append((actor, method))
        if actor in self.hung:
            await asyncio.sleep(timeout_s)
            raise UnavailableError(f"actor {actor} does not answer")
        answers: dict[str, Any] = {
            "about": [SiteNames("north", 4, ("m0",)), SiteNames("south", 2, ("m0",))],
            "status": SiteInfo(name=actor.removeprefix("site:"), nodes=4, free=4),
            "queue": Queue(),
            "quote": Forecast(now_ms=0, sites=ROWS, queues=("north", "south")),
            "offer": Quoted(0, 2, 5),
            "questions": {"north": RequestQuote(1, 1, 1_000), "south": RequestQuote(2, 1, 1_000)},
            "submit": [Accepted("key", 7)],
        }
        return msgspec.msgpack.encode(Answered(msgspec.Raw(msgspec.msgpack.encode(answers[method]))))


@pytest.mark.parametrize("hung", ["site:north", "site:south"])
def test_a_site_that_hangs_costs_others_nothing(hung: str) -> None:
    """Whoever asks for the sites, as `status` does, or hands in a job there or elsewhere, waits for 1.5 s at most.

    So a command has half a second of its own, and answers within two.
    """

    async def ask() -> list[float]:
        calls = HungCalls()
        backend, loop = LiveBackend(calls), asyncio.get_running_loop()
        assert all(site.answers for site in await backend.sites())
        calls.hung.add(hung)
        spent = []
        for questions in ((backend.sites(), backend.queue(1)), (backend.health(),)):
            before = loop.time()
            for question in questions:
                await question
            spent.append(loop.time() - before)
        for site in ("north", "south", None):
            before = loop.time()
            with contextlib.ExitStack() as stack:
                if site is not None and hung == f"site:{site}":
                    told = rf"site {site} does not answer; when it last did, it had 4 of 4 nodes free"
                    stack.enter_context(pytest.raises(SiteAwayError, match=told))
                await backend.submit([("key", shell("true"))], site=site, origin=ANNA)
            spent.append(loop.time() - before)
        known = {site.name: (site.answers, site.free) for site in await backend.sites()}
        assert known[hung.removeprefix("site:")] == (False, 4)
        return spent

    loop = VirtualLoop(np.random.default_rng(1))
    try:
        spent = loop.run_until_complete(ask())
    finally:
        loop.close()
    assert max(spent) <= 1.5


def test_a_quote_asks_a_site_that_hangs_only_once() -> None:
    """The second question, for the choice of the grid, goes only to the sites that answered the first."""
    calls = HungCalls("site:south")
    loop = VirtualLoop(np.random.default_rng(1))
    try:
        began_s = loop.time()
        quote = loop.run_until_complete(LiveBackend(calls).quote(shell("true")))
        spent_s = loop.time() - began_s
    finally:
        loop.close()
    assert [row.site for row in quote.sites] == ["north", "south"]
    assert calls.asked.count(("site:south", "quote")) == 1
    assert ("site:north", "offer") in calls.asked
    assert ("site:south", "offer") not in calls.asked
    assert spent_s <= 1.5


def test_health_asks_the_grid_once() -> None:
    calls = HungCalls()
    backend = LiveBackend(calls)
    for _ in range(2):
        calls.asked.clear()
        assert asyncio.run(backend.health()).status == "ok"
        assert calls.asked.count(("grid", "about")) == 1


@pytest.mark.asyncio
async def test_the_output_of_each_element_is_that_of_the_attempt_in_which_it_ended(tmp_path: Path) -> None:
    """A packed array that runs again has the elements that had ended in one attempt, and the others in the next."""
    line = f"""
    echo $GRIDWEAVE_ARRAY_INDEX at start $GRIDWEAVE_ATTEMPT
    [ $GRIDWEAVE_ARRAY_INDEX$GRIDWEAVE_ATTEMPT = 31 ] && touch {tmp_path}/third && exec sleep 100000
    exit 0
    """
    async with LocalGrid(tmp_path / "grid") as grid:
        array = ArrayPlace(name="array", index=1, array_tasks=((1, 6),))
        (job_id,) = await submit(grid.backend, shell(line, array=array))
        await until(lambda: asyncio.to_thread((tmp_path / "third").exists))
        await in_state(grid.backend, job_id, "running")  # the grid hears of the start after the program has begun
        assert await grid.backend.apply_action("requeue", [job_id], origin=ANNA) == [job_id]
        record = await in_state(grid.backend, job_id, "ended")
        assert (record.outcome, record.interrupted) == ("finished", (3,))
        assert [(one.index, one.attempt) for one in record.array_tasks] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
        for one in record.array_tasks:
            part = await grid.backend.output(job_id, one.rank, "out", *one.out, attempt=one.attempt)
            assert part is not None
            assert part.data.decode() == f"{one.index} at start {one.attempt}\n"


@pytest.mark.asyncio
async def test_a_requeued_job_goes_on_from_what_it_has_saved(tmp_path: Path) -> None:
    """All its ranks on both sites save at its signal and end; then it starts once more, finds that, and finishes."""
    line = """
    done=$(cat saved-$GRIDWEAVE_RANK 2>/dev/null) && exit $((done - 1))
    trap 'echo 1 > saved-$GRIDWEAVE_RANK; exit 0' USR1
    touch ready-$GRIDWEAVE_RANK
    while :; do sleep 0.05; done
    """
    program = Program(
        argv=("sh", "-c", line), working_directory=str(tmp_path), checkpoint_signal="USR1", grace_ms=60_000
    )
    request = JobRequest(program=program, nodes=6, limit_ms=7_200_000, user="anna")
    async with LocalGrid(tmp_path / "grid") as grid:
        (job_id,) = await submit(grid.backend, request)
        await in_state(grid.backend, job_id, "running")
        await until(lambda: asyncio.to_thread(lambda: len(list(tmp_path.glob("ready-*"))) == 6))
        assert await grid.backend.apply_action("requeue", [job_id], origin=ANNA) == [job_id]
        record = await in_state(grid.backend, job_id, "ended")
        history = [entry.kind for entry in await grid.backend.history(job_id)]
    assert (record.outcome, record.starts, len(record.places)) == ("finished", 2, 2)
    assert len(list(tmp_path.glob("saved-*"))) == 6
    assert history.count("requeue") == 1
    assert history.index("requeue") < history.index("retried") < len(history) - history[::-1].index("runs")


@pytest.mark.asyncio
async def test_output_that_was_removed_is_never_an_empty_output(tmp_path: Path) -> None:
    """Beyond a user's share the oldest goes, and it is said when and why; what others have written stays."""
    rules = {site: MachineRules(output=OutputLimits(bytes_per_user=1)) for site in ("north", "south")}
    async with LocalGrid(tmp_path, (("north", (1,)),), rules=rules) as grid:
        backend = grid.backend
        numbers = []
        for user, word in (("bert", "theirs"), ("anna", "first"), ("anna", "second")):
            numbers += await submit(backend, shell(f"echo {word}", user=user))
            await in_state(backend, numbers[-1], "ended")

        async def first() -> OutputPart | None:
            part = await backend.output(numbers[1], 0, "out", 0, 100)
            return part if part is not None and part.removed else None

        part = await until(first)
        assert part.data == b""
        assert part.is_last
        assert re.fullmatch(
            rf"the output of job {numbers[1]} was removed at \S+ \S+ UTC: the output of this user exceeded 1 bytes on "
            r"the machine \(output_bytes\)",
            part.removed,
        )
        for number, word in ((numbers[0], b"theirs\n"), (numbers[2], b"second\n")):
            kept = await backend.output(number, 0, "out", 0, 100)
            assert kept is not None
            assert (kept.data, kept.removed) == (word, "")


@pytest.mark.asyncio
async def test_output_that_no_machine_has_is_never_an_empty_output(tmp_path: Path) -> None:
    """A machine that has lost its folder says so; a job that never ran has written nothing."""
    async with LocalGrid(tmp_path, (("north", (1,)),)) as grid:
        backend = grid.backend
        [job_id] = await submit(backend, shell("echo said"))
        await in_state(backend, job_id, "ended")
        shutil.rmtree(tmp_path / "north" / "m0" / "jobs")
        part = await backend.output(job_id, 0, "out", 0, 100)
        assert part is not None
        assert part.removed == f"the output of job {job_id} is no longer on any of its machines"
        (tmp_path / "north" / "m0" / "jobs").mkdir()
