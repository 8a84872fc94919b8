"""The process on a node of an allocation, from its first orders on."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from gridweave.errors import InputError, UnavailableError
from gridweave.site.launch import ANY_JOBS
from gridweave.slurm.service import node as node_module
from gridweave.slurm.service.folder import Ticket
from gridweave.slurm.service.hub import Orders, Welcome
from gridweave.slurm.service.node import Node, main


class SlowAgent:
    """Stands for the agent of a machine: the first time another still has its folder."""

    tries = closed = 0
    heard: ClassVar[list[bytes]] = []

    def __init__(self, *told: object, **options: object) -> None:
        self.is_open = False

    async def open(self) -> None:
        """Take the folder, but not the first time."""
        SlowAgent.tries += 1
        if SlowAgent.tries == 1:
            raise UnavailableError("another runner uses this folder")
        self.is_open = True

    async def close(self) -> None:
        """Leave the folder to others."""
        SlowAgent.closed += 1

    async def run(self) -> None:
        """Tell nothing."""
        await asyncio.Event().wait()

    async def order(self, data: bytes) -> None:
        """Hear an order."""
        assert self.is_open, "an order before the folder was had"
        SlowAgent.heard.append(data)


@pytest.mark.asyncio
async def test_an_agent_that_cannot_have_its_folder_yet_hears_no_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another is made when the orders come again."""
    monkeypatch.setattr(node_module, "AgentDriver", SlowAgent)
    node = Node(tmp_path, Ticket(str(tmp_path), b"", b""), "gw-x-7-1", 0, "71", 600.0)
    orders = Orders("m0", (b"start",))
    with pytest.raises(UnavailableError, match="another runner"):
        await node._do(orders)
    assert SlowAgent.closed == 1, "it would keep the folder, if it had it, from the next"
    await node._do(orders)
    assert (SlowAgent.tries, SlowAgent.closed, SlowAgent.heard) == (2, 1, [b"start"])
    assert node._works is not None
    node._works.cancel()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("runs_as", "number", "left"), [("anna", 0, ["b.0"]), ("anna", 1, ["a.0", "b.0"]), ("", 0, ["a.0", "b.0"])]
)
async def test_the_first_node_of_a_users_job_removes_what_the_site_names(
    tmp_path: Path, runs_as: str, number: int, left: list[str]
) -> None:
    """Nobody else can; nodes of the site's own account are removed by the site."""
    for name in ("a.0", "b.0"):
        (tmp_path / "nodes" / name).mkdir(parents=True)
    node = Node(tmp_path, Ticket(str(tmp_path), b"", b"", runs_as), "gw-x-7-1", number, "71", 600.0)
    await node._enter(Welcome(ANY_JOBS, ("nodes/a.0",)))
    assert sorted(path.name for path in (tmp_path / "nodes").iterdir()) == left


def test_what_a_node_cannot_go_on_with_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in what the script of the allocation prints."""

    async def run(node: Node) -> None:
        raise InputError("/scratch: Permission denied; expected a folder on a local disk that you can write to")

    monkeypatch.setattr(Node, "run", run)
    monkeypatch.setenv("GRIDWEAVE_NODE", "0")
    monkeypatch.setenv("GRIDWEAVE_ALLOCATION", "71")
    ticket = msgspec.json.encode(Ticket(str(tmp_path), b"door", b"key"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ticket + b"\n")))
    with pytest.raises(SystemExit, match=r"^/scratch: Permission denied"):
        main([str(tmp_path), "gw-x-7-1", "600"])
