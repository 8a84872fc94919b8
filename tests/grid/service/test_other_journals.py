"""One end of a link that begins with another journal: both ends notice at once, and only that site is cut off."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gridweave.errors import UnavailableError
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.driver import GridDriver
from gridweave.site.channel import Packet
from gridweave.site.job import Accepted, JobRequest, Program
from gridweave.site.messages import Machine
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service.clock import Clock
from gridweave.site.service.driver import Driver
from gridweave.site.service.site_driver import GRID, SiteDriver

NAMES = ("north", "south")


class Linked:
    """A grid of two sites in one process; what is killed comes back, with its journal or with a new one."""

    def __init__(self, folder: Path, control: str = "full") -> None:
        self._folder, self._control = folder, control
        self.ends: dict[str, Driver[Any]] = {}
        self.made = 0
        for name in (GRID, *NAMES):
            self.begin(name)

    def begin(self, name: str, *, fresh: bool = False) -> None:
        """Begin a life of an end; with a new journal, if it starts over."""
        if name in self.ends:
            self.ends.pop(name)._journal._store.close()
        if fresh:
            (self._folder / f"{name}.journal").unlink()
        place = self._folder / f"{name}.journal"
        if name == GRID:
            policy = GridPolicy(mode="multi-site" if self._control != "none" else "sharing", control=self._control)
            settings = GridSettings(sites=tuple((site, 4) for site in NAMES), policy=policy, retry_ms=50)
            self.ends[name] = GridDriver(settings, place, Clock(), to_site=self._to_site)
            return

        async def to_grid(_peer: str, data: bytes) -> str | None:
            return self.ends[GRID].packet(name, data)

        site = SiteSettings(
            name=name, number=NAMES.index(name), machines=(Machine(name="m0", nodes=4),), policy=SitePolicy()
        )
        self.ends[name] = SiteDriver(site, place, Clock(), to_grid=to_grid, to_machine=self._nowhere)

    async def _to_site(self, site: str, data: bytes) -> str | None:
        return self.ends[site].packet(GRID, data)

    async def _nowhere(self, *_: object) -> None:
        """Lose what is sent."""

    async def turns(self, count: int = 4) -> None:
        """Let all ends take turns."""
        for _ in range(count):
            for end in list(self.ends.values()):
                await end.turn()
                for _ in range(3):
                    await asyncio.sleep(0)

    async def submit(self, nodes: int) -> int:
        """Hand in a job at the grid; return its number."""
        self.made += 1
        request = JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=60_000)
        waiting = asyncio.ensure_future(self.ends[GRID].submit([(f"job {self.made}", request)]))
        await asyncio.sleep(0)
        if not waiting.done():
            await self.turns()
        (answer,) = await waiting
        assert isinstance(answer, Accepted)
        return answer.job_id

    @property
    def problems(self) -> dict[str, str]:
        """Why the grid exchanges nothing with each site."""
        return {name: self.ends[GRID].peer_problem(name) for name in NAMES}

    def places(self, job_id: int) -> tuple[tuple[str, int], ...]:
        """Return where the grid has placed a job."""
        grid: Any = self.ends[GRID]
        return tuple(grid.grid.registry.records[job_id].places)

    def close(self) -> None:
        """End all."""
        for end in self.ends.values():
            end._journal.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("control", ["full", "limited", "none"])
async def test_a_site_that_starts_over_is_the_only_one_cut_off(tmp_path: Path, control: str) -> None:
    """Its first packet is refused; jobs go to the other site; one that needs both is refused with the reason."""
    linked = Linked(tmp_path, control)
    await linked.turns()
    assert await linked.submit(4) == 1
    linked.begin("north", fresh=True)
    await linked.turns()
    assert "site north lost its journal, or was started over; restore" in linked.problems["north"]
    assert linked.problems["south"] == ""
    assert "site north lost its journal" in linked.ends["north"].peer_problem(GRID)
    for nodes in (3, 1):
        job_id = await linked.submit(nodes)
        assert [site for site, _ in linked.places(job_id)] in ([["south"]] if control != "full" else [["south"], []])
    if control != "none":
        with pytest.raises(UnavailableError, match=r"site north: .* start over at both ends"):
            await linked.submit(6)
    linked.close()


@pytest.mark.asyncio
async def test_the_grid_that_starts_over_is_refused_by_its_sites(tmp_path: Path) -> None:
    """It is told that it has lost its journal, by each site, and takes no jobs until one of them knows it."""
    linked = Linked(tmp_path)
    await linked.turns()
    linked.begin(GRID, fresh=True)
    for name in NAMES:
        linked.begin(name)
    await linked.turns()
    for name in NAMES:
        assert "the grid lost its journal, or was started over" in linked.problems[name]
        assert "the grid lost its journal" in linked.ends[name].peer_problem(GRID)
    with pytest.raises(UnavailableError, match=r"site north: .*; site south: "):
        await linked.submit(1)
    # The other end starts over as well, whenever that is: the two go on, and take jobs.
    linked.begin("south", fresh=True)
    await linked.turns()
    assert (linked.problems["south"], linked.ends["south"].peer_problem(GRID)) == ("", "")
    assert linked.places(await linked.submit(2)) == (("south", 2),)
    linked.begin("north", fresh=True)
    await linked.turns()
    assert linked.places(await linked.submit(4)) == (("north", 4),)
    linked.close()


@pytest.mark.asyncio
async def test_what_is_cut_off_stays_so_over_a_restart_of_the_grid(tmp_path: Path) -> None:
    """Until the site is heard again nothing is placed there, though nobody has said anything yet."""
    linked = Linked(tmp_path)
    await linked.turns()
    linked.begin("north", fresh=True)
    await linked.turns()
    linked.begin(GRID)
    grid: Any = linked.ends[GRID]
    assert list(grid.grid.cut_off) == [0]
    waiting = asyncio.ensure_future(
        grid.submit([("one", JobRequest(program=Program(argv=("x",)), nodes=4, limit_ms=9))])
    )
    await asyncio.sleep(0)
    await grid.turn()
    await waiting
    assert linked.places(1) == (("south", 4),)
    linked.close()


@pytest.mark.asyncio
async def test_an_end_of_an_older_release_is_told_by_its_numbers(tmp_path: Path) -> None:
    """Its packets say no journal: they are taken in, and counts show that one was lost."""
    linked = Linked(tmp_path)
    await linked.turns()
    grid = linked.ends[GRID]
    sent = grid._channels["north"].sent
    plain = msgspec.msgpack.encode({"first": 99, "messages": (), "received": sent})
    assert grid.packet("north", plain) is None
    assert "lost its journal" in str(grid.packet("north", msgspec.msgpack.encode(Packet(99, (), sent + 7))))
    linked.close()
