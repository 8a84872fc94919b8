"""The driver of the live grid, with a journal on disk: what it has promised outlasts its death."""

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
from gridweave.grid.service.queries import GridQueries
from gridweave.site.channel import Packet
from gridweave.site.job import Accepted, After, Declined, JobRecord, JobRequest, Program
from gridweave.site.journal.records import NumberedNote
from gridweave.site.messages import Reserved
from gridweave.site.service.clock import Clock

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

    async def submit(self, key: str, nodes: int, **more: Any) -> list[Any]:
        """Hand in a job."""
        request = JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=1000, **more)
        waiting = asyncio.ensure_future(self.driver.submit([(key, request)], origin="anna, request 7"))
        await asyncio.sleep(0)
        await self.turn()
        return await waiting

    def kinds(self, site: str) -> list[str]:
        """Return the kinds of messages that a site was sent."""
        return [message["type"] for packet in self.sent[site] for message in packet["messages"]]

    def kill(self) -> None:
        """Let it die."""
        self.driver.journal._store.close()


def request(nodes: int) -> JobRequest:
    """Return a job of so many nodes."""
    return JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=1_000)


@pytest.mark.asyncio
async def test_a_grid_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    """Jobs, keys, and what sites have not acknowledged are there again; an answer that was taken in counts once."""
    place = tmp_path / "grid.journal"
    life = Life(place)
    assert await life.submit("key", 6) == [Accepted("key", 1)]
    asked = ["DescribeJob", "ReserveNodes"]
    assert (life.kinds("north"), life.kinds("south")) == (asked, asked)
    held = msgspec.msgpack.encode(Packet(0, (Reserved(1, 1, "n1:2000"),), 2))
    life.driver.packet("north", held)
    await life.turn()
    life.kill()
    life = Life(place)
    assert life.driver.grid.registry.records[1].state == "starting"
    life.driver.packet("north", held)
    assert await life.submit("key", 1) == [Accepted("key", 1)]
    assert (life.kinds("north"), life.kinds("south")) == ([], asked)
    life.driver.packet("south", msgspec.msgpack.encode(Packet(0, (Reserved(1, 1),), 2)))
    await life.turn()
    assert life.kinds("north") == ["CommitNodes"]
    assert life.sent["north"][-1]["messages"][0]["rendezvous"] == "n1:2000"
    assert life.kinds("south")[2:] == ["CommitNodes"]
    await life.driver.close()


@pytest.mark.asyncio
async def test_an_old_copy_of_the_journal_cuts_off_the_sites_that_know_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is exchanged with such a site, and who needs it hears why; jobs that do not need it go on."""
    life = Life(tmp_path / "grid.journal")
    await life.submit("key", 6)
    life.driver.packet("north", msgspec.msgpack.encode(Packet(0, (Reserved(1, 1),), 99)))
    await life.turn()
    assert "lost its journal" in caplog.text
    assert life.driver.journal.channel("north").received == 0
    sent = len(life.sent["north"])
    life.driver.packet("north", msgspec.msgpack.encode(Packet(0, (Reserved(1, 1),), 0)))
    with pytest.raises(UnavailableError, match=r"site north: .* the grid has sent 2: it lost its journal, .* --fresh"):
        await life.driver.submit([("wide", request(5))])
    assert await life.submit("other", 1) == [Accepted("other", 2)]
    assert (len(life.sent["north"]), life.driver.journal.channel("north").received) == (sent, 0)
    assert life.kinds("south")[-2:] == ["DescribeJob", "ReserveNodes"]
    problems = {site.name: site.problem for site in await GridQueries(life.driver).about()}
    assert ("lost its journal" in problems["north"], problems["south"]) == (True, "")
    assert (await GridQueries(life.driver).queue(1)).problem == ""
    life.driver.packet("south", msgspec.msgpack.encode(Packet(0, (), 99)))
    with pytest.raises(UnavailableError, match=r"site north: .*; site south: "):
        await life.driver.submit([("third", request(1))])
    assert "site south" in (await GridQueries(life.driver).queue(1)).problem
    await life.driver.close()


@pytest.mark.asyncio
async def test_a_wish_to_end_is_durable_when_it_was_heard(tmp_path: Path) -> None:
    """Who has cancelled a job, and was told so, need not do it again."""
    place = tmp_path / "grid.journal"
    life = Life(place)
    for key in ("runs", "waits"):
        await life.submit(key, 8)
    heard = asyncio.ensure_future(life.driver.apply_action("cancel", [2]))
    await asyncio.sleep(0)
    await life.turn()
    await heard
    life.kill()
    life = Life(place)
    assert [record.outcome for record in life.driver.grid.registry.records.values()] == ["", "cancelled"]
    await life.driver.close()


@pytest.mark.asyncio
async def test_a_job_that_ended_long_ago_can_be_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the core has forgotten is judged by what the journal keeps; and after a restart it is decided the same."""
    monkeypatch.setattr("gridweave.site.users.registry.KEEP_ENDED", 10)
    place = tmp_path / "grid.journal"
    life = Life(place)
    for number in range(15):
        await life.submit(f"key {number}", 1, hold=True)
    waiting = asyncio.ensure_future(life.driver.apply_action("cancel", list(range(1, 16))))
    await asyncio.sleep(0)
    await life.turn()
    await waiting
    assert 1 not in life.driver.grid.registry.records
    after = {"after": (After(job_id=1, has="ended"), After(job_id=2, has="failed"))}
    assert await life.submit("good", 6, **after) == [Accepted("good", 16)]
    assert await life.submit("vain", 6, after=(After(job_id=1),)) == [Accepted("vain", 17)]
    (declined,) = await life.submit("unknown", 6, after=(After(job_id=99),))
    assert isinstance(declined, Declined)
    for _ in range(2):
        records = life.driver.grid.registry.records
        assert [(records[job_id].state, records[job_id].outcome) for job_id in (16, 17)] == [
            ("starting", ""),
            ("ended", "cancelled"),
        ]
        life.kill()
        life = Life(place)
    await life.driver.close()


@pytest.mark.asyncio
async def test_what_happens_is_told_once_it_is_durable(tmp_path: Path) -> None:
    """Each note of a story, with its number, and with the records of jobs that ended with it."""
    life = Life(tmp_path / "grid.journal")
    heard: list[tuple[list[NumberedNote], dict[int, JobRecord]]] = []

    def on_notes(notes: list[NumberedNote], ended: dict[int, JobRecord]) -> None:
        assert not life.driver.journal.pending
        heard.append((notes, ended))

    life.driver.on_notes = on_notes
    await life.submit("key", 6, hold=True, user="anna")
    waiting = asyncio.ensure_future(life.driver.apply_action("cancel", [1], origin="bert, request 8"))
    await asyncio.sleep(0)
    await life.turn()
    await waiting
    assert [(note.number, note.kind, note.detail) for notes, _ in heard for note in notes] == [
        (1, "submitted", "6 nodes, by anna, request 7"),
        (2, "kept", "is held by its user"),
        (3, "cancelled", "on request, by bert, request 8"),
        (4, "ended", "cancelled"),
    ]
    assert [[record.outcome for record in ended.values()] for _, ended in heard] == [[], ["cancelled"]]
    assert life.driver.journal.ended([1]) == life.driver.grid.registry.records
    await life.driver.close()
