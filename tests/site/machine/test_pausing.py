"""Paused jobs stand still with all their processes, go on where they were, and stay paused without a runner."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridweave.site.launch import Launch, NodeTaskEnded, Rank
from gridweave.site.machine.cgroups import FREEZER, UNIFIED, Cgroups, ControlGroup, group_name, mounted
from gridweave.site.machine.folders import task_folder
from gridweave.site.machine.processes import descendants, process_stat
from gridweave.site.machine.runner import Runner

CYCLES = 200
DAY_MS = 86_400_000
LOOK_AGAIN_S = 0.001

# Each rank counts in a file of its own, and so does a child that it has: some thousand times a second. As fast as they
# can, they would have the processors that those who pause them need.
COUNT = """
import mmap, os, sys, time
def count(name):
    with open(os.path.join(sys.argv[1], name), "w+b") as file:
        file.truncate(8)
        memory = mmap.mmap(file.fileno(), 8)
        number = 0
        while True:
            number += 1
            memory[:8] = number.to_bytes(8, "little")
            time.sleep(1e-4)
rank = os.environ["GRIDWEAVE_RANK"]
count(f"child-{rank}" if os.fork() == 0 else f"rank-{rank}")
"""


class Counting:
    """A job of two ranks with a child each, all of which count."""

    def __init__(self, folder: Path, *, again: bool = False) -> None:
        self.counts = folder / "counts"
        self.counts.mkdir(exist_ok=again)
        self.root = folder / "runner"

    def launch(self, limit_ms: int | None = None, groups: dict[str, str] | None = None) -> Launch:
        """Return what is started."""
        command = ("python3", "-c", COUNT, str(self.counts))
        more = {"limit_ms": limit_ms, "grace_ms": 0, "groups": groups or {}}
        return Launch(job_id=7, attempt=0, ranks=(Rank(0), Rank(1)), argv=command, **more)  # type: ignore[arg-type]

    def numbers(self) -> list[int]:
        """Return how far each process has counted."""
        found = []
        for path in sorted(self.counts.iterdir()):
            with path.open("rb") as file, mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ) as memory:
                found.append(int.from_bytes(memory[:8], "little"))
        return found

    async def counting(self, above: list[int]) -> None:
        """Return when all four count, each beyond a number."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            paths = [path for path in self.counts.iterdir() if path.stat().st_size == 8]
            if len(paths) == 4 and all(new > old for new, old in zip(self.numbers(), above, strict=True)):
                return

    async def paused(self, runner: Runner, *, wanted: bool = True) -> None:
        """Return when the state of the piece says that it stands still, or that it goes on."""
        while (state := runner.state(7, 0)) is None or state.is_paused != wanted:
            await asyncio.sleep(LOOK_AGAIN_S)


def states_below(pid: int) -> set[str]:
    """Return the states of all processes that stem from one."""
    return {stat.state for stat in descendants(pid)}


async def ended(runner: Runner) -> NodeTaskEnded:
    """Return the end of the piece."""
    async for event in runner.events():
        if isinstance(event, NodeTaskEnded):
            return event
    raise AssertionError("events have no end")


@pytest.mark.asyncio
async def test_nothing_runs_while_paused(tmp_path: Path) -> None:
    """In 200 cycles no process of a job counts on while it is paused, and each counts on afterwards."""
    job = Counting(tmp_path)
    async with Runner(job.root) as runner:
        await runner.start(job.launch())
        await job.counting([0] * 4)
        for cycle in range(CYCLES):
            await runner.pace(7, 0, runs=False)
            await job.paused(runner)
            state = runner.state(7, 0)
            assert state is not None
            before = job.numbers()
            assert states_below(state.shim_pid) == {"T"}, f"cycle {cycle}"
            for _ in range(20):
                await asyncio.sleep(0)
            assert job.numbers() == before, f"a process counted on in cycle {cycle}"
            await runner.pace(7, 0, runs=True)
            await job.paused(runner, wanted=False)
            await job.counting(before)
        await runner.cancel(7, 0, "enough")
        assert (await ended(runner)).outcome == "cancelled"


@pytest.mark.asyncio
async def test_a_paused_job_outlives_its_runner(tmp_path: Path) -> None:
    """A runner that is gone while a job is paused finds it paused again; another resumes it, or ends it."""
    job = Counting(tmp_path)
    async with Runner(job.root) as runner:
        await runner.start(job.launch())
        await job.counting([0] * 4)
        await runner.pace(7, 0, runs=False)
        await job.paused(runner)
        before = job.numbers()
    async with Runner(job.root) as runner:
        assert await runner.adopt() == ((7, 0),)
        state = runner.state(7, 0)
        assert state is not None
        assert state.is_paused
        assert states_below(state.shim_pid) == {"T"}
        assert job.numbers() == before
        await runner.pace(7, 0, runs=True)
        await job.paused(runner, wanted=False)
        await job.counting(before)
        await runner.pace(7, 0, runs=False)
        await job.paused(runner)
        await runner.cancel(7, 0, "enough")
        assert (await ended(runner)).outcome == "cancelled"
    assert not any(Path(f"/proc/{report.pid}").exists() for report in state.ranks)


@pytest.mark.asyncio
async def test_limits_count_work(tmp_path: Path) -> None:
    """A paused job does not reach its limit; after the pause it has the rest of its limit left."""
    job = Counting(tmp_path)
    async with Runner(job.root) as runner:
        await runner.start(job.launch(limit_ms=3_000))
        await runner.pace(7, 0, runs=False)
        await job.paused(runner)
        began_s = os.times().elapsed
        while os.times().elapsed < began_s + 3.2:
            await asyncio.sleep(LOOK_AGAIN_S)
        state = runner.state(7, 0)
        assert state is not None
        assert state.phase == "running"
        await runner.pace(7, 0, runs=True)
        assert (await ended(runner)).outcome == "limit"
        state = runner.state(7, 0)
        assert state is not None
        assert state.started_ms is not None
        assert state.ended_ms is not None
        assert state.paused_ms >= 3_190
        assert state.ended_ms - state.started_ms >= state.paused_ms + 2_990


@pytest.mark.asyncio
async def test_a_wish_may_come_before_the_start(tmp_path: Path) -> None:
    """A piece that is told to stand still before its ranks run does so as soon as they have begun."""
    job = Counting(tmp_path)
    async with Runner(job.root) as runner:
        await runner.start(job.launch())
        await runner.pace(7, 0, runs=False)
        await job.paused(runner)
        await runner.pace(7, 0, runs=True)
        await job.counting([0] * 4)
        await runner.cancel(7, 0, "enough")
        assert (await ended(runner)).outcome == "cancelled"


@pytest.mark.asyncio
async def test_a_wish_for_later_is_obeyed_then(tmp_path: Path) -> None:
    """Two machines that are told an instant ahead go on until then, and both stand still from then on."""
    jobs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        jobs.append(Counting(tmp_path / name))
    async with Runner(jobs[0].root) as first, Runner(jobs[1].root) as second:
        for runner, job in zip((first, second), jobs, strict=True):
            await runner.start(job.launch())
            await job.counting([0] * 4)
        now_ms = int(time.time() * 1000)
        for runner, job in zip((first, second), jobs, strict=True):
            await runner.pace(7, 0, runs=False, at_unix_ms=now_ms + DAY_MS)
            await job.counting(job.numbers())
        at_ms = now_ms + 300
        for runner in (first, second):
            await runner.pace(7, 0, runs=False, at_unix_ms=at_ms)
        for runner, job in zip((first, second), jobs, strict=True):
            await job.paused(runner)
            assert time.time() * 1000 >= at_ms
            await runner.cancel(7, 0, "enough")
            assert (await ended(runner)).outcome == "cancelled"


# Starts the counting job on the folder that it is given, pauses it, says so, and waits to be killed.
RUNNER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_pausing import Counting
from gridweave.site.machine.runner import Runner

async def main():
    job = Counting(Path(sys.argv[2]))
    async with Runner(job.root) as runner:
        await runner.start(job.launch())
        await job.counting([0] * 4)
        await runner.pace(7, 0, runs=False)
        await job.paused(runner)
        print("paused", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.asyncio
async def test_a_runner_that_is_killed_leaves_its_jobs_paused(tmp_path: Path) -> None:
    """Kill -9 of the runner while a job is paused: it stays so, the next runner finds it so and resumes it."""
    arguments = (sys.executable, "-c", RUNNER, str(Path(__file__).parent), str(tmp_path))
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"paused\n"
        process.kill()
    job = Counting(tmp_path, again=True)
    before = job.numbers()
    async with Runner(job.root) as runner:
        assert await runner.adopt() == ((7, 0),)
        state = runner.state(7, 0)
        assert state is not None
        assert state.is_paused
        assert states_below(state.shim_pid) == {"T"}
        assert job.numbers() == before
        await runner.pace(7, 0, runs=True)
        await job.paused(runner, wanted=False)
        await job.counting(before)
        await runner.cancel(7, 0, "enough")
        assert (await ended(runner)).outcome == "cancelled"


@pytest.mark.asyncio
async def test_nothing_is_left_of_a_paused_job_whose_shim_is_killed(tmp_path: Path) -> None:
    """Kill -9 of the supervising process while the job is paused: it is lost, and none of its processes is left."""
    job = Counting(tmp_path)
    async with Runner(job.root) as runner:
        await runner.start(job.launch())
        await job.counting([0] * 4)
        await runner.pace(7, 0, runs=False)
        await job.paused(runner)
        state = runner.state(7, 0)
        assert state is not None
        below = descendants(state.shim_pid)
        os.kill(state.shim_pid, signal.SIGKILL)
        assert (await ended(runner)).outcome == "lost"
    assert len(below) == 4
    assert not [stat.pid for stat in below if (now := process_stat(stat.pid)) is not None and now.state not in "ZX"]


@pytest.fixture(params=[UNIFIED, FREEZER])
def freezer(request: pytest.FixtureRequest) -> Iterator[Cgroups]:
    """Return control groups that can pause, of either version, or skip."""
    own, _ = mounted().get(request.param, (None, False))
    folder = own / f"gridweave-test-{uuid.uuid4().hex[:8]}" if own is not None else None
    try:
        assert folder is not None
        folder.mkdir()
    except (AssertionError, OSError):
        pytest.skip(f"pausing by a control group is not tested: none of {request.param} may be made here")
    found = Cgroups(ControlGroup({request.param: folder}))
    yield found
    assert found.parent.remove()


@pytest.mark.asyncio
async def test_a_control_group_pauses_a_job(tmp_path: Path, freezer: Cgroups) -> None:
    """Where there is one, it is used: nothing that a job's processes could hear lets them go on before it is time."""
    job = Counting(tmp_path)
    group = freezer.group(group_name(task_folder(job.root, (7, 0))))
    async with Runner(job.root) as runner:
        await runner.start(job.launch(groups=freezer.paths))
        await job.counting([0] * 4)
        for _ in range(CYCLES // 10):
            await runner.pace(7, 0, runs=False)
            await job.paused(runner)
            assert group.is_frozen()
            state = runner.state(7, 0)
            assert state is not None
            pids = {stat.pid for stat in descendants(state.shim_pid)}
            assert pids == set(group.pids())
            before = job.numbers()
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            for _ in range(20):
                await asyncio.sleep(0)
            assert job.numbers() == before
            await runner.pace(7, 0, runs=True)
            await job.paused(runner, wanted=False)
            await job.counting(before)
        await runner.pace(7, 0, runs=False)
        await job.paused(runner)
        await runner.cancel(7, 0, "enough")
        assert (await ended(runner)).outcome == "cancelled"
    assert not any(folder.exists() for folder in group.folders.values())


@pytest.mark.asyncio
async def test_what_a_killed_shim_leaves_frozen_is_ended(tmp_path: Path, freezer: Cgroups) -> None:
    """Processes that no signal reaches are let go to be ended."""
    job = Counting(tmp_path)
    async with Runner(job.root) as runner:
        await runner.start(job.launch(groups=freezer.paths))
        await job.counting([0] * 4)
        await runner.pace(7, 0, runs=False)
        await job.paused(runner)
        state = runner.state(7, 0)
        assert state is not None
        pids = [stat.pid for stat in descendants(state.shim_pid)]
        assert len(pids) == 4
        os.kill(state.shim_pid, signal.SIGKILL)
        assert (await ended(runner)).outcome == "lost"
        assert not [pid for pid in pids if (stat := process_stat(pid)) is not None and stat.state not in "ZX"]
