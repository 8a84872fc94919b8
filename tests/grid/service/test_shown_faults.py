"""What is wrong with a part of a grid is said where people look: `status`, `sites`, `queue`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gridweave.cli.grid_commands import site_state
from gridweave.errors import UnavailableError
from gridweave.grid.api import Queue, SiteInfo
from gridweave.grid.config.local_state import (
    HEAD,
    LOGS,
    LocalGridState,
    LocalProcess,
    LocalSite,
    state_folder,
    write_state,
)
from gridweave.grid.service import status as status_module
from gridweave.grid.service.backend import LiveBackend
from gridweave.grid.service.status import LocalStatus, look
from gridweave.site.job import JobRecord, JobRequest, Program
from gridweave.site.journal.records import Note
from gridweave.site.machine.processes import boot_id
from gridweave.site.query_messages import SiteNames
from gridweave.site.service.calls import CALL_S, Answered, encode


class Desks:
    """Calls to desks that answer what a test says; an error is raised."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    async def ask(
        self, actor: str, method: str, data: bytes, *, timeout_s: float = CALL_S, alone: bool = False
    ) -> bytes:
        """Answer a question."""
        answer = self.answers[f"{actor.removeprefix('site:')}_{method}"]
        if isinstance(answer, Exception):
            raise answer
        return encode(Answered(msgspec.Raw(encode(answer))))

    async def call(self, actor: str, method: str, *arguments: object, timeout_s: float = CALL_S) -> Any:
        """Never used."""
        raise AssertionError("not asked at a desk")


@pytest.mark.asyncio
async def test_sites_say_why_one_does_not_work() -> None:
    """A site says why it does not answer, and the grid why it exchanges nothing with one that does."""
    desks = Desks(
        grid_about=[SiteNames("north", 4), SiteNames("south", 2, (), "the grid lost its journal")],
        north_status=UnavailableError("site north cannot go on: the disk is full"),
        south_status=SiteInfo(name="south", nodes=2),
    )
    backend = LiveBackend(desks)
    north, south = await backend.sites()
    assert (north.answers, north.problem) == (False, "site north cannot go on: the disk is full")
    assert (south.answers, south.problem) == (True, "the grid lost its journal")
    assert (site_state(north), site_state(south)) == ("does not answer", "cut off from the grid")
    desks.answers |= {
        "grid_about": [SiteNames("north", 4), SiteNames("south", 2)],
        "north_status": SiteInfo(name="north", nodes=4),
    }
    assert [(site.answers, site.problem) for site in await backend.sites()] == [(True, ""), (True, "")]
    desks.answers["grid_about"] = UnavailableError("the grid is away")
    assert [site.answers for site in await backend.sites()] == [True, True]


@pytest.mark.asyncio
async def test_a_history_says_which_site_is_missing_in_it() -> None:
    """Of a site that has a part of the job and does not answer, the last entry says so; of others none does."""
    request = JobRequest(program=Program(argv=("true",)), nodes=2, limit_ms=1000)
    desks = Desks(
        grid_about=[SiteNames("north", 4), SiteNames("south", 2), SiteNames("west", 2)],
        grid_history=[Note(1, 10, "submitted"), Note(1, 500, "left", "north: finished")],
        grid_records=[JobRecord(job_id=1, request=request, submit_ms=10, places=(("north", 1), ("south", 1)))],
        north_history=[Note(1, 490, "ended", "at north: finished")],
        south_history=UnavailableError("cut off"),
        west_history=UnavailableError("cut off"),
    )
    backend = LiveBackend(desks)
    kinds = [(entry.at_ms, entry.kind) for entry in await backend.history(1)]
    assert kinds == [(10, "submitted"), (490, "ended"), (500, "unheard")]
    assert (await backend.history(1))[-1].detail.startswith("site south does not answer; ")
    desks.answers["south_history"] = [Note(1, 495, "ended", "at south: finished")]
    assert [entry.kind for entry in await backend.history(1)] == ["submitted", "ended", "ended"]


def looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **said: Any) -> dict[str, tuple[bool, str]]:
    """Return how the parts of a grid of one site are, with what its gateway says."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    head = LocalProcess.of_pid(HEAD, os.getpid())
    assert head is not None
    write_state(
        LocalGridState(
            name="test",
            marker="m",
            boot=boot_id(),
            since_ms=0,
            folder=str(tmp_path / "live"),
            namespace="n",
            sites=(LocalSite("north", 4, 1),),
            processes=(head,),
            url="http://127.0.0.1:1",
        )
    )
    monkeypatch.setattr(status_module, "_ask", lambda state: status_module._GatewayAnswers(**said))
    found: LocalStatus = look("test")
    return {part.name: (part.well, part.detail) for part in found.parts}


def test_status_says_what_keeps_a_part_from_working(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A part that does not answer says why, and one that takes no jobs is not well."""
    sites = [SiteInfo(name="north", answers=False, problem="the disk is full")]
    parts = looked(monkeypatch, tmp_path, sites=sites, queue_problem="grid: the disk is full")
    assert not parts["site north"][0]
    assert "does not answer: the disk is full; " in parts["site north"][1]
    assert parts["meta-scheduler"] == (False, "does not answer: grid: the disk is full")
    queue = Queue(starting=3, problem="site north: the grid lost its journal")
    parts = looked(monkeypatch, tmp_path, sites=[SiteInfo(name="north", problem="lost")], queue=queue)
    assert parts["site north"][0] is parts["meta-scheduler"][0] is False
    assert parts["site north"][1].startswith("lost; 0 of 0 nodes free")
    assert "takes no jobs: site north: the grid lost its journal; 0 jobs run, 3 starting" in parts["meta-scheduler"][1]


def test_status_shows_the_last_fault_of_each_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is read from the logs of the actors, of a site also from those of its machines, when nothing else answers."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    logs = state_folder("test") / LOGS
    logs.mkdir(parents=True)
    at = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - ago_s)) for ago_s in (60, 30, 200_000)]
    (logs / "site-north.log").write_text(f"{at[0]},000 ERROR gridweave.live: an older one\n")
    (logs / "agent-north-m0.log").write_text(f"{at[1]},000 WARNING gridweave.live: its folder cannot be written\n")
    (logs / "grid.log").write_text(f"{at[2]},000 ERROR gridweave.live: last week\n")
    parts = looked(monkeypatch, tmp_path, problem="it does not run")
    assert parts["site north"][1].endswith(f"; last fault {at[1]}: its folder cannot be written")
    assert "last week" not in parts["meta-scheduler"][1]
    assert "last fault" not in parts["gateway"][1]
