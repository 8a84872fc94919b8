"""Nodes that run as users whom nobody trusts: what they may tell and hear, and what is read of their folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gridweave.errors import InputError
from gridweave.site.launch import ANYONE, MachineRules
from gridweave.site.messages import (
    ENCODER,
    REPORTS,
    MachineJoined,
    MachineTakes,
    Report,
    RunDelayed,
    RunEnded,
    RunStarted,
)
from gridweave.slurm.service.folder import OwnedNodeTask, Owner, SharedFolder
from gridweave.slurm.service.hub import Hub, Welcome

ANNA, BERT = "gw-x-7-1", "gw-x-8-2"
RULES = MachineRules(mapped=("anna", "bert", "carl"))


class Heard:
    """A hub with the allocations of two users, and what it has passed on."""

    def __init__(self, folder: Path) -> None:
        self.shared = SharedFolder(folder, "x")
        self.reports: list[Report] = []
        self.hub = Hub(self.shared, self._take, RULES)
        self.shared.note(ANNA, Owner("anna", "unix-anna"))
        self.shared.note(BERT, Owner("bert", "unix-bert"))
        self.hub.want({ANNA: 1, BERT: 2}, {}, {("n0", (BERT, 0)), ("n3", (ANNA, 0))})

    async def _take(self, data: bytes) -> None:
        self.reports += REPORTS.decode(data)

    async def tell(self, name: str, *reports: Report) -> None:
        """Tell something as a node of an allocation."""
        await self.hub.report(self.shared.key(name), name, ENCODER.encode(reports))


@pytest.mark.asyncio
async def test_a_node_is_heard_as_its_own_allocation_alone(tmp_path: Path) -> None:
    """By its key; and that is another for an allocation of the same name that was asked for as somebody else."""
    heard = Heard(tmp_path)
    key = heard.shared.key(BERT)
    for call in (
        heard.hub.hello(key, ANNA, 0, "1", "host", ""),
        heard.hub.ask(key, ANNA, 0),
        heard.hub.report(key, ANNA, ENCODER.encode([RunStarted("n0", 7, 1)])),
    ):
        with pytest.raises(InputError, match="this is not the key of the allocation"):
            await call
    before = heard.shared.key(ANNA)
    heard.shared.note(ANNA, Owner("anna"))
    assert heard.shared.key(ANNA) != before
    assert heard.shared.door not in (before, key, heard.shared.secret())
    assert await heard.hub.hello(key, "gw-x-9-1", 0, "1", "host", "") is None


@pytest.mark.asyncio
async def test_a_node_tells_of_its_own_job_alone(tmp_path: Path) -> None:
    """Not of others' jobs, nor whose jobs are taken; and it hears of no other user."""
    heard = Heard(tmp_path)
    heard.hub.gone = {"unix-bert": ("nodes/old.0",), "unix-anna": ("nodes/hers.0",)}
    welcome = await heard.hub.hello(heard.shared.key(BERT), BERT, 0, "2", "host", "n0")
    assert welcome == Welcome(MachineRules(mapped=("bert",)), ("nodes/old.0",))
    with pytest.raises(InputError, match="a node of job 8 reports about job 7"):
        await heard.tell(BERT, RunStarted("n0", 8, 1), RunEnded("n0", 7, 1, "finished"))
    with pytest.raises(InputError, match="a node cannot set the accepted users"):
        await heard.tell(BERT, MachineTakes("n0", ANYONE))
    assert heard.reports == []
    await heard.tell(BERT, MachineJoined("n0", "host", ANYONE), RunStarted("n0", 8, 1))
    assert heard.reports == [MachineJoined("n0", "host", RULES.users), RunStarted("n0", 8, 1)]
    heard.hub.want({ANNA: 1}, {}, ())
    await heard.tell(BERT, RunEnded("n0", 8, 1, "finished"))
    assert len(heard.reports) == 2, "what is over tells nothing"


@pytest.mark.asyncio
async def test_a_node_tells_of_the_machine_alone_that_it_is(tmp_path: Path) -> None:
    """Or one user could say of every machine that it is full, and the site would take in nothing more for the grid."""
    heard = Heard(tmp_path)
    key = heard.shared.key(BERT)
    for number in (-1, 2):
        assert await heard.hub.hello(key, BERT, number, "2", "host", "n5") is None
    for machine in ("n0", "n1"):
        assert await heard.hub.hello(key, BERT, 0, "2", "host", machine) is not None
    await heard.tell(BERT, RunDelayed("n0", 8, 1, "full"))
    for machine in ("n1", "n5"):
        with pytest.raises(InputError, match=f"a node of job 8 reports as machine {machine}, which it is not"):
            await heard.tell(BERT, RunDelayed(machine, 8, 1, "full"))
    assert heard.reports == [RunDelayed("n0", 8, 1, "full")]


@pytest.mark.asyncio
async def test_a_node_is_the_machine_alone_that_the_site_has_there(tmp_path: Path) -> None:
    """Or one user could say first, when the site was started again, that they are the machine of another."""
    heard = Heard(tmp_path)
    await heard.hub.hello(heard.shared.key(BERT), BERT, 0, "2", "host", "n3")
    await heard.hub.hello(heard.shared.key(BERT), BERT, 1, "2", "host", "n0")
    await heard.hub.hello(heard.shared.key(ANNA), ANNA, 0, "1", "host", "n3")
    for machine in ("n0", "n3"):
        with pytest.raises(InputError, match=f"a node of job 8 reports as machine {machine}, which it is not"):
            await heard.tell(BERT, RunDelayed(machine, 8, 1, "full"))
    await heard.tell(ANNA, RunEnded("n3", 7, 1, "finished"))
    assert heard.reports == [RunEnded("n3", 7, 1, "finished")]


@pytest.mark.parametrize("trick", ["", "link", "folder", "pipe", "second name", "other's", "directory"])
def test_what_is_read_of_a_user_is_a_file_of_theirs(tmp_path: Path, trick: str) -> None:
    """No link is followed on the whole way, no pipe waited for, and a file of anybody else's is not read."""
    base, secret = tmp_path / "anna", tmp_path / "secret"
    (base / "nodes").mkdir(parents=True)
    secret.write_text("secret")
    node_task = OwnedNodeTask(base, ("nodes", "gw-x-7-1.0"), os.geteuid() + (trick == "other's"))
    path = node_task.folder / "rank-0.out"
    if trick == "folder":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / path.name).write_text("secret")
        node_task.folder.symlink_to(tmp_path / "elsewhere")
    else:
        node_task.folder.mkdir()
    if trick == "link":
        path.symlink_to(secret)
    elif trick == "pipe":
        os.mkfifo(path)
    elif trick == "second name":
        path.hardlink_to(secret)
    elif trick == "directory":
        path.mkdir()
    elif trick != "folder":
        path.write_text("said")
    assert node_task.read(path, 1, 2) == (None if trick else (b"ai", 4))
    assert node_task.read(base / "none") is None
