"""Real processes for tests: a runner's folder, a pipe from jobs to the test, and a check that no process is left."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridweave.site.launch import Launch, NodeTaskEnded, NodeTaskEvent, Rank
from gridweave.site.machine.processes import all_pids, process_stat
from gridweave.site.machine.runner import Runner
from support.machine import PATIENCE_S

MARK = "GRIDWEAVE_TEST"


class Machine:
    """The machine of one test: its folder, and helpers to run jobs."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.root = root
        self.scratch = scratch
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self.mark}
        self.pending: list[NodeTaskEvent] = []
        self.seen: list[NodeTaskEvent] = []

    def runner(self) -> Runner:
        """Return a runner of this machine's folder."""
        return Runner(self.root, self.environment)

    def python(self, code: str) -> tuple[str, ...]:
        """Return a command that runs Python code."""
        return (sys.executable, "-c", code)

    def launch(self, *argv: str, job_id: int = 1, ranks: int = 1, **more: object) -> Launch:
        """Return a launch of a command in the scratch folder."""
        places = tuple(Rank(number) for number in range(ranks))
        options: dict[str, object] = {"working_directory": str(self.scratch), "grace_ms": 60_000, **more}
        return Launch(**{"job_id": job_id, "attempt": 0, "ranks": places, "argv": argv, **options})  # type: ignore[arg-type]

    async def event(self, runner: Runner, kind: type[NodeTaskEvent], job_id: int = 1) -> NodeTaskEvent:
        """Wait for an event of a job; keep other jobs' events for later."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for event in self.pending:
                    if isinstance(event, kind) and event.job_id == job_id:
                        self.pending.remove(event)
                        return event
                self.pending.append(await anext(runner.events()))
                self.seen.append(self.pending[-1])

    async def ended(self, runner: Runner, job_id: int = 1) -> NodeTaskEnded:
        """Wait for the end of a job."""
        event = await self.event(runner, NodeTaskEnded, job_id)
        assert isinstance(event, NodeTaskEnded)
        return event

    async def run(self, launch: Launch) -> NodeTaskEnded:
        """Run one node task to its end."""
        async with self.runner() as runner:
            await runner.start(launch)
            return await self.ended(runner, launch.job_id)

    def output(self, job_id: int = 1, rank: int = 0, stream: str = "out") -> str:
        """Return the output of a rank."""
        path = self.root / "jobs" / f"{job_id}.0" / f"rank-{rank}.{stream}"
        return path.read_text(errors="replace") if path.exists() else ""

    def is_gone(self, handle: int) -> bool:
        """Whether the process of a pidfd has ended already; closes the pidfd."""
        return is_over(handle, patience_s=0)

    def is_over(self, handle: int) -> bool:
        """Wait for the end of the process of a pidfd; return whether it ended, and close the pidfd."""
        return is_over(handle)

    def marked(self) -> list[int]:
        """Return the live processes whose environment shows that this test's runner started them."""
        found = []
        for pid in all_pids():
            stat = process_stat(pid)
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    ours = f"{MARK}={self.mark}".encode() in file.read().split(b"\0")
            except OSError:
                continue
            if ours and stat is not None and stat.state not in "ZX":
                found.append(pid)
        return found


class Post:
    """A named pipe through which jobs send lines to the test."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.unread = b""

    async def line(self) -> str:
        """Wait for a line and return it."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            while b"\n" not in self.unread:
                ready = loop.create_future()
                loop.add_reader(self.handle, ready.set_result, None)
                try:
                    await ready
                finally:
                    loop.remove_reader(self.handle)
                self.unread += os.read(self.handle, 4096)
        line, _, self.unread = self.unread.partition(b"\n")
        return line.decode()

    async def pid(self) -> int:
        """Wait for a process number and return a pidfd of the process."""
        return os.pidfd_open(int(await self.line()))


def is_over(handle: int, patience_s: float = PATIENCE_S) -> bool:
    """Wait up to `patience_s` for the end of the process of a pidfd; return whether it ended, and close the pidfd."""
    ended, _, _ = select.select([handle], [], [], patience_s)
    os.close(handle)
    return bool(ended)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Yield a machine with a folder for a runner, and check that no process is left when the runner is closed."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = Machine(tmp_path / "live", scratch)
    yield found
    left = []
    for pid in found.marked():
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        if not is_over(handle):
            left.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "))
            os.kill(pid, signal.SIGKILL)
    assert left == [], "the test left processes"


@pytest.fixture
def post(machine: Machine) -> Iterator[Post]:
    """Yield a pipe from jobs to the test; its path is in the jobs' environment variable POST."""
    found = Post(machine.scratch / "post")
    machine.environment["POST"] = str(found.path)
    yield found
    os.close(found.handle)
