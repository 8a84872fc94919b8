"""Settings that an operator changes while jobs wait: journals go on with them, in any later life as well."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import update

from gridweave.errors import InputError
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.driver import GridDriver, identity_of
from gridweave.settings import plain
from gridweave.site.job import Accepted, JobRequest, Program
from gridweave.site.journal.reader import JournalReader
from gridweave.site.journal.tables import head
from gridweave.site.messages import Machine, RunEnded, RunStarted, StartRun
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import Runs, SiteSettings
from gridweave.site.service import driver as driver_module
from gridweave.site.service.clock import Clock
from gridweave.site.service.driver import Driver
from gridweave.site.service.site_driver import SiteDriver
from gridweave.site.users.owner import OwnerPolicy
from gridweave.site.users.registry import JobRegistry

GRID = GridSettings(sites=(("north", 4), ("south", 4)), policy=GridPolicy(mode="multi-site"))
N0 = Machine(name="n0", nodes=4, ports=(2000, 2010))
SITE = SiteSettings(name="north", number=0, machines=(N0,), policy=SitePolicy())
FIRST = 1_000_000_000_001


async def _nowhere(*_: object) -> None:
    """Lose what is sent."""


def driver(settings: GridSettings | SiteSettings, place: Path) -> Driver[Any]:
    """Return a driver, in a new life, of a grid or of a site."""
    if isinstance(settings, GridSettings):
        return GridDriver(settings, place, Clock(), to_site=_nowhere)
    return SiteDriver(settings, place, Clock(), to_grid=_nowhere, to_machine=_nowhere)


def core_of(life: Driver[Any]) -> Any:
    """Return the core of a driver."""
    return life.grid if isinstance(life, GridDriver) else life.site  # type: ignore[attr-defined]


async def submit(life: Driver[Any], key: str, nodes: int = 1, limit_ms: int = 1_000) -> list[Any]:
    """Hand in a job."""
    request = JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=limit_ms)
    waiting = asyncio.ensure_future(life.submit([(key, request)]))
    await asyncio.sleep(0)
    await life.turn()
    return await waiting


def kill(life: Driver[Any]) -> None:
    """Let it die."""
    life._journal._store.close()


OTHER_GRID = msgspec.structs.replace(
    GRID, margin_ms=2_000, alone_ms=4_000, policy=GridPolicy(mode="multi-site", order="sjf")
)
OTHER_SITE = msgspec.structs.replace(
    SITE,
    alone_ms=4_000,
    machines=(Machine(name="n0", nodes=4, ports=(3000, 3010)),),
    owner=OwnerPolicy(own_users_first=True),
    policy=SitePolicy(order="sjf"),
)


@pytest.mark.asyncio
@pytest.mark.parametrize(("before", "now"), [(GRID, OTHER_GRID), (SITE, OTHER_SITE)], ids=["grid", "site"])
@pytest.mark.parametrize("every", [1_000, 1])
async def test_changed_settings_hold_in_every_later_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Any, now: Any, every: int
) -> None:
    """From inputs and from snapshots; settings that are as they were make no event; and they may change back."""
    monkeypatch.setattr(driver_module, "SNAPSHOT_EVERY", every)
    place = tmp_path / "a.journal"
    life = driver(before, place)
    answer = await submit(life, "first", 4)
    assert isinstance(answer[0], Accepted)
    await submit(life, "second", 4)
    kill(life)
    lives = [now, now, before, now]
    for number, settings in enumerate(lives):
        life = driver(settings, place)
        told = life._journal.sequence
        await life.turn()
        assert core_of(life).settings == settings
        is_other = settings != ([before, *lives])[number]
        assert life._journal.sequence - told == int(is_other)
        assert await submit(life, "first") == answer
        await submit(life, f"more {number}", 4)
        core_of(life).check_invariants()
        await asyncio.sleep(0)
        kill(life)


@pytest.mark.asyncio
async def test_a_reader_says_what_changes_and_what_may_not(tmp_path: Path) -> None:
    """Compared is what the core knows now, not what it began with."""
    place = tmp_path / "grid.journal"
    for settings in (GRID, OTHER_GRID):
        life = driver(settings, place)
        await submit(life, f"key {settings.margin_ms}")
        kill(life)
    third = msgspec.structs.replace(OTHER_GRID, margin_ms=500, sites=(("north", 4), ("south", 5)))
    with JournalReader(place) as reader:
        assert reader.changed_settings(identity_of(OTHER_GRID)) == []
        assert reader.changed_settings(identity_of(third)) == ["margin_ms is 500, and was 2000"]
        assert reader.other_settings(identity_of(third)) == ["sites[1][1] is 5, and was 4"]
        back = "policy.order is 'fcfs', and was 'sjf'"
        assert back in reader.changed_settings(identity_of(GRID))
    with pytest.raises(InputError, match=r"for other settings: sites\[1\]\[1\] is 5, and was 4; use those again"):
        driver(third, place)


@pytest.mark.asyncio
async def test_ports_and_orders_of_a_site_change_under_jobs(tmp_path: Path) -> None:
    """A running job keeps its port; the next gets one of the new range; and the queue is in the new order."""
    place = tmp_path / "site.journal"
    life = driver(SITE, place)
    for key, limit_ms in (("runs", 1_000), ("long", 9_000), ("short", 50)):
        await submit(life, key, 4, limit_ms)
    kill(life)
    life = driver(OTHER_SITE, place)
    assert [job.job_id for job, _ in core_of(life).core.site.waiting()] == [FIRST + 1, FIRST + 2]
    await life.turn()
    assert [job.job_id for job, _ in core_of(life).core.site.waiting()] == [FIRST + 2, FIRST + 1]
    acted: list[Any] = []
    life.act = acted.extend  # type: ignore[method-assign]
    life.post(RunStarted("n0", FIRST, 1), RunEnded("n0", FIRST, 1, "finished"))
    await life.turn()
    assert [command.launch.job_id for command in acted if isinstance(command, StartRun)] == [FIRST + 2]
    core_of(life).check_invariants()
    kill(life)


def test_a_port_is_kept_while_its_range_changes() -> None:
    """It comes back to nobody when it is of no range any more."""
    runs = Runs(SITE, JobRegistry(1, can_hold=()))
    port = runs.ports.take("n0", 1, 1)
    runs.use_ports(OTHER_SITE.machines)
    assert list(runs.ports.taken()) == [("n0", 2000)]
    assert runs.ports.take("n0", 2, 1).number == 3000
    runs.ports.give(port)
    assert list(runs.ports.taken()) == [("n0", 3000)]


@pytest.mark.asyncio
@pytest.mark.parametrize("policy", [{"backfill": "conservative"}, {"backfill": "slack"}, {"discipline": "planning"}])
async def test_promised_starts_are_made_anew_in_another_order(tmp_path: Path, policy: dict[str, Any]) -> None:
    """Under every kind of queue the waiting jobs stand in the new order, and the site goes on."""
    before = msgspec.structs.replace(SITE, policy=SitePolicy(**policy))
    now = msgspec.structs.replace(SITE, policy=SitePolicy(order="sjf", **policy))
    place = tmp_path / "site.journal"
    life = driver(before, place)
    for key, limit_ms in (("runs", 1_000), ("long", 9_000), ("short", 50)):
        await submit(life, key, 4, limit_ms)
    kill(life)
    life = driver(now, place)
    await life.turn()
    assert [job.job_id for job, _ in core_of(life).core.site.waiting()] == [FIRST + 2, FIRST + 1]
    life.post(RunStarted("n0", FIRST, 1), RunEnded("n0", FIRST, 1, "finished"))
    await life.turn()
    core_of(life).check_invariants()
    assert [job.job_id for job, _ in core_of(life).core.site.waiting()] == [FIRST + 1]
    kill(life)


@pytest.mark.asyncio
async def test_a_journal_that_does_not_say_how_long_a_part_may_be_alone_goes_on(tmp_path: Path) -> None:
    """Older releases did not write it down: their inputs were for what the file says, and are decided alike again."""
    settings = msgspec.structs.replace(GRID, alone_ms=7_000)
    place = tmp_path / "grid.journal"
    life = driver(settings, place)
    await submit(life, "first")
    kept = {name: value for name, value in plain(identity_of(settings)).items() if name != "alone_ms"}
    with life._journal._store.transaction() as connection:
        connection.execute(update(head).values(identity=msgspec.msgpack.encode(kept)))
    kill(life)
    life = driver(settings, place)
    assert core_of(life).settings == settings
    told = life._journal.sequence
    await life.turn()
    assert life._journal.sequence == told
    kill(life)
