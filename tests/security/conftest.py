"""A machine with a launcher, two Unix users who do not trust each other, and a job of one that the other attacks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridweave.site.launch import Launch, Limits, NodeTaskEnded, NodeTaskStarted, Rank
from gridweave.site.machine.cgroups import open_cgroups
from gridweave.site.machine.folders import task_folder
from gridweave.site.machine.runner import Runner
from gridweave.site.machine.starter import ask_launcher
from support.machine import PATIENCE_S, have_users

UNIX = {"alice": "gw-test-alice", "bob": "gw-test-bob"}
LIMITS = Limits(memory_bytes=128 << 20, processes=64)
SECRET = "a-secret-of-bob"


class Place:
    """The machine: its launcher, a runner, and a job of bob that runs all the time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.socket, self.file = folder, folder / "socket", folder / "launcher.toml"
        self.loop = asyncio.Runner()
        self.number = 100
        self.token = folder / "service" / "token"
        self.token.parent.mkdir(mode=0o700)
        self.token.write_text("GOT the token of the grid")
        self.token.chmod(0o600)
        users = "\n".join(f'{user} = "{name}"' for user, name in UNIX.items())
        self.file.write_text(
            f'service = "root"\nsocket = "{self.socket}"\ncgroup = "gridweave-test"\n[users]\n{users}\n'
        )
        self.file.chmod(0o600)
        with (folder / "log").open("wb") as log:
            command = [sys.executable, "-P", "-m", "gridweave.site.machine.launcher", str(self.file)]
            self.launcher = subprocess.Popen(command, stderr=log)
        self.loop.run(self._listens())
        self.groups: dict[str, str] = ask_launcher(str(self.socket), {"do": "hello"})["groups"]
        self.runner = Runner(folder / "runner", {**os.environ, "SECRET_OF_SERVICE": "GOT"}, others=True)
        self.loop.run(self.runner.open())
        # Attacks as root would succeed and could damage this machine.
        _, _, said = self.run("alice", "id", "-un")
        assert said.strip() == UNIX["alice"], f"jobs do not run as their users: {said!r}"
        self.loop.run(self._begin())

    async def _listens(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.socket.exists():
                assert self.launcher.poll() is None, (self.folder / "log").read_text()
                await asyncio.sleep(0.02)

    async def _begin(self) -> None:
        script = f"echo {SECRET} > /tmp/left; echo {SECRET}; echo GOT > secret; exec sleep 1000000 # {SECRET}"
        await self.runner.start(self.launch("bob", 1, "sh", "-c", script, environment={"SECRET": SECRET}))
        async with asyncio.timeout(PATIENCE_S):
            event = await anext(self.runner.events())
        assert isinstance(event, NodeTaskStarted), event

    def launch(self, user: str, job_id: int, *argv: str, **more: object) -> Launch:
        """Return the launch of a user's node task with one rank."""
        options: dict[str, object] = {"limits": LIMITS, "groups": self.groups, "grace_ms": 0, **more}
        places = (Rank(0),)
        return Launch(
            job_id=job_id,
            attempt=0,
            ranks=places,
            argv=argv,
            user=user,
            launcher=str(self.socket),
            **options,  # type: ignore[arg-type]
        )

    @property
    def victim(self) -> int:
        """The process of bob's job."""
        state = self.runner.state(1, 0)
        assert state is not None
        return state.ranks[0].pid

    def names(self) -> dict[str, object]:
        """Return what attackers know: paths and process numbers."""
        state = self.runner.state(1, 0)
        assert state is not None
        parent = int(Path(f"/proc/{self.victim}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent > 1
        return {
            "token": self.token,
            "file": self.file,
            "socket": self.socket,
            "runner": self.runner.root,
            "bob": task_folder(self.runner.root, (1, 0)),
            "victim": self.victim,
            "shim": state.shim_pid,
            "parent": parent,
            "launcher": self.launcher.pid,
            "memory": self.groups.get("memory", "/nowhere"),
            "test": os.getpid(),
        }

    def attack(self, script: str) -> str:
        """Run a shell script as alice, never as root, and return its output."""
        return self.run("alice", "sh", "-c", f'test "$(id -un)" = {UNIX["alice"]} || exit 99; {script}')[2]

    def run(self, user: str, *argv: str, **more: object) -> tuple[NodeTaskEnded, Path, str]:
        """Run a job to its end; return the end, the job's folder and its output."""
        self.number += 1
        number = self.number

        async def to_the_end() -> NodeTaskEnded:
            await self.runner.start(self.launch(user, number, *argv, **more))
            return await self.end_of(number)

        ended = self.loop.run(to_the_end())
        folder = task_folder(self.runner.root, (number, 0))
        said = "".join(path.read_text(errors="replace") for path in sorted(folder.glob("rank-*")))
        return ended, folder, said

    async def end_of(self, job_id: int) -> NodeTaskEnded:
        """Wait for the end of a job and return it."""
        async with asyncio.timeout(PATIENCE_S):
            async for event in self.runner.events():
                if isinstance(event, NodeTaskEnded) and event.job_id == job_id:
                    return event
        raise AssertionError

    def close(self) -> None:
        """Stop the launcher, the runner and all jobs."""
        self.loop.run(self._end())
        self.loop.close()
        self.launcher.terminate()
        self.launcher.wait()
        open_cgroups("gridweave-test").parent.remove()

    async def _end(self) -> None:
        await self.runner.cancel(1, 0, "over")
        await self.end_of(1)
        for key in self.runner.task_keys():
            await self.runner.forget(*key)
        await self.runner.close()


UnixUsers = Callable[..., contextlib.AbstractContextManager[None]]


@pytest.fixture(scope="session")
def unix_users() -> UnixUsers:
    """Return `have_users`, which creates Unix users for the duration of a block."""
    return have_users


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    """Yield a machine with two users; only root can create one."""
    with have_users(*UNIX.values()):
        # Not below /tmp, which is hidden from jobs.
        folder = Path(tempfile.mkdtemp(prefix="gridweave-test-", dir="/run"))
        folder.chmod(0o711)
        try:
            place = Place(folder)
            try:
                yield place
            finally:
                place.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
