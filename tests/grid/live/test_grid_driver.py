"""The driver of the live grid, with a journal on disk: what it has promised outlasts its death."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gridweave.grid.live.grid_driver import GridDriver
from gridweave.grid.live_messages import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.site.channel import Packet
from gridweave.site.contract import Held
from gridweave.site.live.clock import Clock
from gridweave.site.program import Accepted, JobRequest, Program

SETTINGS = GridSettings(sites=(("north", 4), ("south", 4)), policy=GridPolicy(mode="multi-site"), margin_ms=10**9)


class Life:
    """A driver of the grid, and the packets that it has sent to each site."""

    def __init__(self, place: Path) -> None:
        self.sent: dict[str, list[Any]] = {"north": [], "south": []}
        self.driver = GridDriver(SETTINGS, place, Clock(), to_site=self.to_site)

    async def to_site(self, site: str, data: bytes) -> None:
        """Keep a packet."""
        self.sent[site].append(msgspec.msgpack.decode(data))

    async def turn(self) -> None:
        """Take a turn, and let what it sends go out."""
        await self.driver.turn()
        for _ in range(3):
            await asyncio.sleep(0)

    async def submit(self, key: str, nodes: int) -> list[Any]:
        """Hand in a job."""
        request = JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=1000)
        waiting = asyncio.ensure_future(self.driver.submit([(key, request)]))
        await asyncio.sleep(0)
        await self.turn()
        return await waiting

    def kinds(self, site: str) -> list[str]:
        """Return the kinds of messages that a site was sent."""
        return [message["type"] for packet in self.sent[site] for message in packet["messages"]]

    def kill(self) -> None:
        """Let it die."""
        self.driver.journal._store.close()


@pytest.mark.asyncio
async def test_a_grid_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    """Jobs, keys, and what sites have not acknowledged are there again; an answer that was taken in counts once."""
    place = tmp_path / "grid.journal"
    life = Life(place)
    assert await life.submit("key", 6) == [Accepted("key", 1)]
    asked = ["DescribeJob", "HoldNodes"]
    assert (life.kinds("north"), life.kinds("south")) == (asked, asked)
    held = msgspec.msgpack.encode(Packet(0, (Held(1, 1, "n1:2000"),), 2))
    life.driver.packet("north", held)
    await life.turn()
    life.kill()
    life = Life(place)
    assert life.driver.grid.records[1].state == "starting"
    life.driver.packet("north", held)
    assert await life.submit("key", 1) == [Accepted("key", 1)]
    assert (life.kinds("north"), life.kinds("south")) == ([], asked)
    life.driver.packet("south", msgspec.msgpack.encode(Packet(0, (Held(1, 1),), 2)))
    await life.turn()
    assert life.kinds("north") == ["CommitHold"]
    assert life.sent["north"][-1]["messages"][0]["rendezvous"] == "n1:2000"
    assert life.kinds("south")[2:] == ["CommitHold"]
    await life.driver.close()


@pytest.mark.asyncio
async def test_a_site_that_lost_its_journal_is_not_heard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An end that has received more than was sent is not the one that it says it is; the grid takes nothing from it."""
    life = Life(tmp_path / "grid.journal")
    await life.submit("key", 6)
    life.driver.packet("north", msgspec.msgpack.encode(Packet(0, (Held(1, 1),), 99)))
    await life.turn()
    assert "lost its journal" in caplog.text
    assert life.driver.journal.channel("north").received == 0
    await life.driver.close()


@pytest.mark.asyncio
async def test_a_wish_to_end_is_durable_when_it_was_heard(tmp_path: Path) -> None:
    """Who has cancelled a job, and was told so, need not do it again."""
    place = tmp_path / "grid.journal"
    life = Life(place)
    for key in ("runs", "waits"):
        await life.submit(key, 8)
    heard = asyncio.ensure_future(life.driver.cancel([2]))
    await asyncio.sleep(0)
    await life.turn()
    await heard
    life.kill()
    life = Life(place)
    assert [record.outcome for record in life.driver.grid.records.values()] == ["", "cancelled"]
    await life.driver.close()
