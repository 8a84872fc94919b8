"""The backend of the gateway over a grid of actors on Ray: made from the namespace alone, and never kept waiting."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.api import JobQuery, OutputPart
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import OWN_IDS, Accepted, After, Declined, JobRecord, JobRequest, Program
from support.live_grids import PATIENT_LOOK_S
from support.machine import PATIENCE_S

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def grid(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a grid of two sites that runs, and take it down after the tests."""
    from gridweave.grid.service.cluster import GridPlan, SitePlan, start_grid

    folder = tmp_path_factory.mktemp("ray-backend")
    plan = GridPlan(
        folder=str(folder),
        sites=(SitePlan(name="north", nodes=4, machines=2), SitePlan(name="south", nodes=2)),
        policy=GridPolicy(mode="multi-site"),
        namespace=folder.name,
        labelled=False,
    )
    running = start_grid(plan, timeout_s=PATIENCE_S)
    yield running
    running.stop()


@pytest.fixture
def backend(grid: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a backend that knows nothing but the namespace, and has patience with sites on a busy machine."""
    from gridweave.grid.service.backend import RayBackend

    monkeypatch.setattr("gridweave.grid.service.backend.LOOK_S", PATIENT_LOOK_S)
    return RayBackend(grid.plan.namespace)


def shell(line: str, **more: Any) -> JobRequest:
    """Return a job that runs a line of shell."""
    options: dict[str, Any] = {"limit_ms": 3_600_000, "user": "anna"} | more
    return JobRequest(program=Program(argv=("sh", "-c", line), grace_ms=200), **options)


async def until(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until there is something, which comes by itself."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await ask()):
            await asyncio.sleep(0.05)
    return found


async def ended(backend: Any, job_id: int) -> JobRecord:
    """Wait until a job has ended; a grid that is away for a moment is asked again."""

    async def look() -> list[JobRecord]:
        try:
            return [record for record in await backend.records([job_id]) if record.state == "ended"]
        except UnavailableError:
            return []

    record: JobRecord = (await until(look))[0]
    return record


@pytest.mark.asyncio
async def test_jobs_of_the_grid_and_of_a_site_are_seen_alike(backend: Any) -> None:
    """Handed in, waited for, read and told of: a job over both sites, and one of a site's own user."""
    requests = [("wide", shell("echo $GRIDWEAVE_RANK", nodes=6)), ("wrong", shell("true", nodes=7))]
    wide, wrong = await backend.submit(requests, site=None, origin="anna, request 1")
    assert isinstance(wrong, Declined)
    assert (await backend.submit(requests, site=None, origin="again"))[0] == wide
    (own,) = await backend.submit([("own", shell("echo own"))], site="south", origin="anna, request 2")
    assert own.job_id == 2 * OWN_IDS + 1
    for job_id, rank, said in ((wide.job_id, 0, b"0\n"), (wide.job_id, 5, b"5\n"), (own.job_id, 0, b"own\n")):
        assert (await ended(backend, job_id)).outcome == "finished"
        assert await backend.output(job_id, rank, "out", 0, 100) == OutputPart(data=said, offset=0, is_last=True)
    history = await backend.history(wide.job_id)
    assert {"submitted", "reserved", "starting", "runs", "ended"} <= {entry.kind for entry in history}
    assert [record.job_id for record in (await backend.jobs(JobQuery())).jobs] == [wide.job_id]
    assert [record.job_id for record in (await backend.jobs(JobQuery(own="south"))).jobs] == [own.job_id]
    with pytest.raises(InputError, match="is 'log'; expected out, err, result or usage"):
        await backend.output(own.job_id, 0, "log", 0, 100)


@pytest.mark.asyncio
async def test_wishes_reach_the_cores(backend: Any) -> None:
    """Held, released, waiting for another, cancelled; and whoever watches is told of it at once."""
    last = (await backend.events(-1, 0.0)).last
    watching = asyncio.ensure_future(backend.events(last, PATIENCE_S))
    answers = await backend.submit([("h", shell("true", hold=True))], site=None, origin="anna")
    (first,) = [answer.job_id for answer in answers if isinstance(answer, Accepted)]
    assert (await watching).events[0].kind == "submitted"
    after = (After(job_id=first),)
    (second,) = await backend.submit([("w", shell("sleep 100000", after=after))], site=None, origin="anna")
    assert (await backend.queue(10)).held == 2
    assert await backend.apply_action("release", [first], origin="anna") == [first]
    await ended(backend, first)

    async def runs() -> bool:
        return (await backend.records([second.job_id]))[0].state == "running"

    await until(runs)
    assert await backend.apply_action("hold", [second.job_id], origin="anna") == []
    assert await backend.apply_action("cancel", [second.job_id], origin="anna") == [second.job_id]
    assert (await ended(backend, second.job_id)).outcome == "cancelled"


@pytest.mark.asyncio
async def test_a_site_that_is_killed_is_shown_as_last_known(grid: Any, backend: Any) -> None:
    """Its numbers stay while it is away, and when it is back it answers again."""

    async def both_answer() -> Any:
        sites = await backend.sites()
        return sites if all(site.answers for site in sites) else None

    before = await until(both_answer)
    assert [(site.name, len(site.machines)) for site in before] == [("north", 2), ("south", 1)]
    assert all(machine.here and machine.host for site in before for machine in site.machines)
    first = grid.call("site:south", "process")
    os.kill(first, signal.SIGKILL)
    _, south = await backend.sites()
    assert (south.name, south.nodes, south.machines[0].name) == ("south", 2, "m0")

    async def is_another() -> bool:
        try:
            return bool(await asyncio.to_thread(grid.call, "site:south", "process") != first)
        except UnavailableError:
            return False

    async def answers() -> bool:
        return bool((await backend.health()).sites == {"north": True, "south": True})

    # The process that was killed may answer until it is gone.
    await until(is_another)
    await until(answers)


@pytest.mark.asyncio
async def test_a_grid_that_is_away_is_said_to_be(grid: Any, backend: Any) -> None:
    """With the meta-scheduler gone, health says so and the rest is unavailable; and without any grid."""
    from gridweave.grid.service.actors import stop_actors
    from gridweave.grid.service.backend import RayBackend

    async def is_well() -> bool:
        return bool((await backend.health()).status == "ok")

    await until(is_well)
    stop_actors({"grid": grid.actors["grid"]}, timeout_s=PATIENCE_S)

    async def is_away() -> bool:
        return bool((await backend.health()).status == "unavailable")

    # Its process may answer until it is gone.
    await until(is_away)
    with pytest.raises(UnavailableError, match="actor grid does not answer"):
        await backend.queue(10)
    assert (await RayBackend("nowhere").health()).status == "unavailable"
