"""A grid whose sites are linked over HTTP: what cuts and restarts lead to; real processes over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.api import JobQuery
from gridweave.grid.backend import Backend
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import OWN_IDS, Accepted, JobRecord, JobRequest, Program
from gridweave.site.service import link as link_module
from gridweave.site.service.link import Link, LinkEnd
from support.live_grids import linked_grid, write_secret
from support.machine import PATIENCE_S

LIMITED = GridPolicy(mode="multi-site", control="limited")


def shell(line: str, **more: Any) -> JobRequest:
    """Return a job that runs a line of shell."""
    options: dict[str, Any] = {"limit_ms": 3_600_000, "user": "anna"} | more
    return JobRequest(program=Program(argv=("sh", "-c", line), grace_ms=200), **options)


async def submit(backend: Backend, *requests: JobRequest, site: str | None = None) -> list[int]:
    """Hand in jobs that are taken in; return their numbers."""
    jobs = [(f"{number} {request}"[:900], request) for number, request in enumerate(requests)]
    answers = await backend.submit(jobs, site=site, origin="a test")
    accepted = [answer for answer in answers if isinstance(answer, Accepted)]
    assert len(accepted) == len(requests), answers
    return [answer.job_id for answer in accepted]


async def until(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until there is something, which comes by itself."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if found := await ask():
                    return found
            except UnavailableError:
                pass
            await asyncio.sleep(0.02)


async def in_state(backend: Backend, job_id: int, *states: str) -> JobRecord:
    """Wait until a job is in one of some states."""

    async def look() -> list[JobRecord]:
        return [record for record in await backend.records([job_id]) if record.state in states]

    record: JobRecord = (await until(look))[0]
    return record


def ran(folder: Path, name: str) -> list[str]:
    """Return what the ranks of a job have written into a file of its own."""
    path = folder / name
    return path.read_text().split() if path.exists() else []


@pytest.mark.asyncio
async def test_a_job_over_two_sites_runs_over_links(tmp_path: Path) -> None:
    """Sites, output, story, drain and jobs of own users are to be had through the grid's gateway, over HTTP."""
    async with linked_grid(tmp_path) as grid:
        (job_id,) = await submit(grid.backend, shell("echo $GRIDWEAVE_RANK", nodes=6))
        record = await in_state(grid.backend, job_id, "ended")
        assert (record.outcome, record.places) == ("finished", (("alpha", 4), ("beta", 2)))
        part = await grid.backend.output(job_id, 5, "out", 0, 100)
        assert part is not None
        assert part.data == b"5\n"
        kinds = {entry.kind for entry in await grid.backend.history(job_id)}
        assert {"submitted", "reserved", "starting", "runs", "ended"} <= kinds
        (own,) = await submit(grid.backend, shell("true"), site="beta")
        assert own // OWN_IDS == 2
        await in_state(grid.backend, own, "ended")
        await grid.backend.drain("beta", True)

        async def is_drained() -> bool:
            sites = {site.name: (site.answers, site.draining) for site in await grid.backend.sites()}
            return sites == {"alpha": (True, False), "beta": (True, True)}

        await until(is_drained)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_a_site_that_is_cut_off_goes_on(tmp_path: Path, how: str) -> None:
    """Its own users hand in jobs, and what runs runs on; when the link is back the grid hears of the end, once."""
    async with linked_grid(tmp_path) as grid:
        alpha = grid.sites["alpha"].backend
        wait = f"echo x >> {tmp_path}/ran; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
        (job_id,) = await submit(grid.backend, shell(wait, nodes=3))
        assert (await in_state(grid.backend, job_id, "running")).places == (("alpha", 3),)
        grid.cut("alpha", how)
        (own,) = await submit(alpha, shell("echo here"))
        await in_state(alpha, own, "ended")

        async def only_beta_answers() -> bool:
            return {site.name: site.answers for site in await grid.backend.sites()} == {"alpha": False, "beta": True}

        await until(only_beta_answers)
        (tmp_path / "go").touch()

        async def is_free() -> bool:
            return (await alpha.sites())[0].free == 4

        await until(is_free)
        assert (await grid.backend.records([job_id]))[0].state == "running"
        grid.cut("alpha", "")
        assert (await in_state(grid.backend, job_id, "ended")).outcome == "finished"
        assert ran(tmp_path, "ran") == ["x"] * 3


@pytest.mark.asyncio
@pytest.mark.parametrize(("down", "up"), [(True, True), (True, False), (False, True)])
async def test_both_ends_know_of_the_cut_of_an_idle_link(tmp_path: Path, down: bool, up: bool) -> None:
    """With no job anywhere the grid and the site both report a cut by themselves, and afterwards that all is well."""
    async with linked_grid(tmp_path) as grid:
        site = grid.sites["alpha"].backend

        async def told() -> tuple[bool, bool]:
            own, seen = (await site.sites())[0], (await grid.backend.sites())[0]
            assert own.uplink is not None
            return bool(own.uplink.problem), not seen.answers or bool(seen.uplink is None or seen.uplink.problem)

        async def are(said: tuple[bool, bool]) -> bool:
            return await told() == said

        await until(lambda: are((False, False)))
        grid.cut("alpha", "silent", down=down, up=up)
        await until(lambda: are((True, True)))
        grid.cut("alpha", "")
        await until(lambda: are((False, False)))


def test_a_cut_of_an_idle_link_is_noticed_within_5_s() -> None:
    """The next beat comes in time, and so does the time at which its answer is given up."""
    assert link_module.BEAT_S + link_module._BEAT_ANSWER_S < 5.0


@pytest.mark.asyncio
@pytest.mark.parametrize("direction", ["down", "up"])
async def test_a_cut_in_one_direction_neither_loses_nor_doubles_a_job(tmp_path: Path, direction: str) -> None:
    """While one direction is cut a job that needs the site waits, or runs elsewhere; each runs once in the end."""
    async with linked_grid(tmp_path) as grid:
        grid.cut("alpha", "silent", down=direction == "down", up=direction == "up")
        jobs = [shell(f"echo {nodes} >> {tmp_path}/ran-{nodes}", nodes=nodes) for nodes in (6, 1, 2)]
        job_ids = await submit(grid.backend, *jobs)
        assert (await grid.backend.records(job_ids[:1]))[0].state != "running"
        grid.cut("alpha", "", down=direction == "down", up=direction == "up")
        for job_id in job_ids:
            assert (await in_state(grid.backend, job_id, "ended")).outcome == "finished"
        assert [len(ran(tmp_path, f"ran-{nodes}")) for nodes in (6, 1, 2)] == [6, 1, 2]
        grid.grid.meta.queries_now().driver.grid.check_invariants()


@pytest.mark.asyncio
async def test_either_side_may_be_started_anew_in_the_middle(tmp_path: Path) -> None:
    """With a job running, and others waiting, the grid's side and then a site are ended and started again."""
    async with linked_grid(tmp_path) as grid:
        wait = f"echo x >> {tmp_path}/ran; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
        first, second = await submit(grid.backend, shell(wait, nodes=6), shell(f"echo y >> {tmp_path}/after", nodes=6))
        await in_state(grid.backend, first, "running")
        await grid.stop_grid()
        (own,) = await submit(grid.sites["beta"].backend, shell("true"))
        await grid.restart_site("alpha")
        (tmp_path / "go").touch()
        await in_state(grid.sites["beta"].backend, own, "ended")
        await grid.start_grid()
        for job_id in (first, second):
            assert (await in_state(grid.backend, job_id, "ended")).outcome == "finished"
        assert (ran(tmp_path, "ran"), ran(tmp_path, "after")) == (["x"] * 6, ["y"] * 6)


@pytest.mark.asyncio
async def test_what_has_come_together_during_a_cut_arrives(tmp_path: Path) -> None:
    """Hundreds of jobs with long programs, handed in while no site can be reached, run when they are back."""
    async with linked_grid(tmp_path, policy=LIMITED) as grid:
        for name in grid.sites:
            grid.cut(name, "refused")
        padding = {f"PADDING_{number}": "p" * 30_000 for number in range(3)}
        program = Program(argv=("true",), environment=padding)
        requests = [JobRequest(program=program, nodes=1, limit_ms=600_000, user="anna") for _ in range(60)]
        answers = await grid.backend.submit([(str(n), r) for n, r in enumerate(requests)], site=None, origin="a test")
        assert all(isinstance(answer, Accepted) for answer in answers)
        for name in grid.sites:
            grid.cut(name, "")

        async def all_over() -> bool:
            return len((await grid.backend.jobs(JobQuery(state=("ended",), limit=100))).jobs) == len(requests)

        await until(all_over)


@pytest.mark.asyncio
async def test_the_grid_tells_who_does_not_answer(tmp_path: Path) -> None:
    """A site that speaks another secret is as good as away: the reason is in the status of its link."""
    async with linked_grid(tmp_path) as grid:
        other = LinkEnd(site="beta", url=grid.down["beta"].url, token_file=write_secret(tmp_path, "wrong"))
        link = Link(other)
        with pytest.raises(UnavailableError, match="the secret do not fit"):
            await link.ask("", "status", b"\x90")
        assert (link.status.answered, link.status.failed) == (0, 1)
        await link.close()


@pytest.mark.asyncio
async def test_what_was_delegated_is_placed_anew_after_its_lease_and_not_before(tmp_path: Path) -> None:
    """A job that waits at a site that is cut off stays; its lease over, the site gives it back when heard."""
    options = {"policy": GridPolicy(mode="sharing", control="limited"), "lease_ms": 8_000}
    async with linked_grid(tmp_path, **options) as grid:
        alpha = grid.sites["alpha"].backend
        wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
        (own,) = await submit(alpha, shell(wait, nodes=4))
        await in_state(alpha, own, "running")
        # Only alpha is large enough, and has no room: the job waits there.
        (job_id,) = await submit(grid.backend, shell(f"echo x >> {tmp_path}/ran", nodes=3))

        async def is_there() -> bool:
            return (await alpha.queue(1)).waiting == 1

        await until(is_there)
        grid.cut("alpha", "silent")
        attempt = (await grid.backend.records([job_id]))[0].attempt

        async def is_given_back() -> bool:
            return (await alpha.queue(1)).waiting == 0

        await until(is_given_back)
        (record,) = await grid.backend.records([job_id])
        assert record.attempt == attempt, await grid.backend.history(job_id)
        (tmp_path / "go").touch()
        grid.cut("alpha", "")
        ended = await in_state(grid.backend, job_id, "ended")
        assert (ended.outcome, ended.attempt > attempt) == ("finished", True)
        assert ran(tmp_path, "ran") == ["x"] * 3


@pytest.mark.asyncio
async def test_the_backend_of_a_site_alone(tmp_path: Path) -> None:
    """What its users ask is answered by the site, with the grid away: forecasts, quotes, queue, events, output."""
    async with linked_grid(tmp_path) as grid:
        beta = grid.sites["beta"].backend
        await grid.stop_grid()
        begun = (await beta.events(-1, 0.0)).last
        first, second = await submit(
            beta, shell("echo here; sleep 100000", nodes=2), shell("true", user="bob"), site="beta"
        )
        await in_state(beta, first, "running")
        forecast = await beta.forecast(second)
        assert forecast is not None
        assert (forecast.state, [site.site for site in forecast.sites]) == ("waiting", ["beta"])
        assert (await beta.quote(shell("true", nodes=3))).state == "refused"
        queue = await beta.queue(10)
        assert (queue.running, queue.waiting, [job.job_id for job in queue.jobs]) == (1, 1, [second])
        assert [record.job_id for record in (await beta.jobs(JobQuery(user="bob"))).jobs] == [second]

        async def has_written() -> bool:
            part = await beta.output(first, 0, "out", 0, 100)
            return part is not None and part.data == b"here\n"

        await until(has_written)
        assert await beta.apply_action("cancel", [first], origin="a test") == [first]
        assert (await in_state(beta, second, "ended")).outcome == "finished"
        events = (await beta.events(begun, 0.0)).events
        assert [event.user for event in events if event.kind == "submitted"] == ["anna", "bob"]
        assert {(event.job_id, event.kind) for event in events} >= {(first, "ended"), (second, "ended")}
        with pytest.raises(InputError, match="serves only site beta"):
            await submit(beta, shell("true"), site="alpha")
        with pytest.raises(InputError, match="serves only site beta"):
            await beta.jobs(JobQuery(own="alpha"))
        (status,) = await beta.sites()
        assert status.uplink is not None
        assert status.uplink.site == "beta"
        await grid.start_grid()
