"""Journals of released versions: short runs of a site and of a grid, as SQL, with the expected state as JSON.

Run as a script, it writes the journals of the present version into `tests/data/journals`. This is done once per
release, and the files never change afterwards (CONTRIBUTING.md). Every release reads the journals of earlier releases.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.driver import GridDriver
from gridweave.site.channel import Packet
from gridweave.site.job import After, DescribeJob, JobRequest, Program
from gridweave.site.launch import Used
from gridweave.site.messages import Ended, Machine, ReserveNodes, RunEnded, RunStarted, SiteChanged, Started
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service.site_driver import GRID, SiteDriver
from gridweave.version import __version__

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "journals"

SITE = SiteSettings(
    name="north",
    number=0,
    machines=(Machine(name="n0", nodes=4, ports=(2000, 2100)),),
    policy=SitePolicy(order="sjf", backfill="conservative"),
)
GRID_OF_TWO = GridSettings(
    sites=(("north", 4), ("south", 4)), policy=GridPolicy(mode="adaptive", selection="random", overhead=0.25), seed=3
)


class StoppedClock:
    """A clock that tests advance by hand."""

    def __init__(self) -> None:
        self.ms = 1000

    def now_ms(self) -> int:
        """Return the time of the clock, in ms."""
        return self.ms

    def real_ms(self, span_ms: float) -> int:
        """Return a time span in whole ms."""
        return int(span_ms)


async def nowhere(_to: str, _data: bytes) -> None:
    """Lose a message."""


def open_site(place: Path, clock: Any) -> SiteDriver:
    """Return the driver of the site."""
    return SiteDriver(SITE, place, clock, to_grid=nowhere, to_machine=nowhere)


def open_grid(place: Path, clock: Any) -> GridDriver:
    """Return the driver of the grid."""
    return GridDriver(GRID_OF_TWO, place, clock, to_site=nowhere)


async def submit(driver: Any, key: str, nodes: int, **more: Any) -> Any:
    """Submit a job and return the answer."""
    request = JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=60_000, user="anna", **more)
    waiting = asyncio.ensure_future(driver.submit([(key, request)], origin="anna, request 7"))
    await asyncio.sleep(0)
    await turn(driver)
    return (await waiting)[0]


async def turn(driver: Any, *events: Any, peer: str = "", first: int = 0, received: int = 0) -> None:
    """Take a turn with events, which come in a packet from `peer` if that is given."""
    driver.clock.ms += 1000
    if peer:
        problem = driver.packet(peer, msgspec.msgpack.encode(Packet(first, events, received)))
        assert problem is None, problem
    else:
        driver.post(*events)
    await driver.turn()
    for _ in range(3):
        # Let the driver send its messages.
        await asyncio.sleep(0)


def compact(driver: Any, core: Any) -> None:
    """Replace the journal's inputs by a snapshot."""
    driver.journal.snapshot(core)
    assert driver.journal.compact() > 0


async def live_at_site(place: Path) -> dict[str, Any]:
    """Run a site with ended, running, waiting and held jobs, before and after a snapshot; return its final state."""
    driver = open_site(place, StoppedClock())
    own = 1_000_000_000_001
    await submit(driver, "ends", 2)
    await submit(driver, "runs", 2, name="long")
    await turn(driver, RunStarted("n0", own, 0), RunStarted("n0", own + 1, 0))
    await submit(driver, "waits", 3, after=(After(job_id=own, has="ended"),))
    await submit(driver, "held", 1, hold=True)
    grids = JobRequest(program=Program(argv=("true",)), nodes=1, limit_ms=5000)
    asked = DescribeJob(7, 1, grids, 5000, 0, 1, ("north",)), ReserveNodes(7, 1, 1, 5000)
    await turn(driver, *asked, peer=GRID)
    compact(driver, driver.site)
    await turn(driver, RunEnded("n0", own, 0, "finished", used=Used(cpu_s=1.5, peak_memory_bytes=1000)))
    await turn(
        driver, DescribeJob(8, 1, grids, 5000, 0, 1, ("north",)), ReserveNodes(8, 1, 1, 5000), peer=GRID, first=2
    )
    found = known(driver, [GRID])
    await driver.close()
    return found


async def live_at_grid(place: Path) -> dict[str, Any]:
    """Run a grid with ended, running, waiting and held jobs, before and after a snapshot; return its final state."""
    driver = open_grid(place, StoppedClock())
    await submit(driver, "ends", 4)
    await submit(driver, "runs", 3)
    site = driver.grid.registry.records[1].places[0][0]
    await turn(driver, Started(1, 1, 3000), peer=site, received=2)
    await submit(driver, "split", 5, after=(After(job_id=1, has="finished"),))
    await submit(driver, "held", 1, hold=True)
    compact(driver, driver.grid)
    await turn(driver, Ended(1, 1, 9000, "finished"), SiteChanged(1, 3), peer=site, first=1)
    await submit(driver, "waits", 8)
    found = known(driver, ["north", "south"])
    await driver.close()
    return found


def known(driver: Any, peers: list[str]) -> dict[str, Any]:
    """Return the observable state of a driver's core and of its journal, as builtins."""
    core = driver.site if isinstance(driver, SiteDriver) else driver.grid
    core.check_invariants()
    job_ids = sorted(core.registry.records)
    found = {
        "records": core.registry.records,
        "next_wakeup_ms": core.next_wakeup_ms(),
        "stories": {job_id: driver.journal.history(job_id) for job_id in job_ids},
        "ended": driver.journal.ended(job_ids),
        "answers": driver.journal.submissions(["ends", "runs", "waits", "split", "held"]),
        "usage": [used for group in driver.journal.groups() for used in driver.journal.usage(group)],
        "channels": {peer: driver.journal.channel(peer) for peer in peers},
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    return plain


def write(kind: str, life: Any) -> None:
    """Write the journal of a run as SQL, and its final state as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "journal"
        found = asyncio.run(life(place))
        database = sqlite3.connect(place)
        text = "\n".join(database.iterdump())
        database.close()
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{kind}-{__version__}.sql").write_text(text + "\n", encoding="utf-8")
    (FOLDER / f"{kind}-{__version__}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write("site", live_at_site)
    write("grid", live_at_grid)
