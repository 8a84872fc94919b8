"""What jobs leave of System V and POSIX IPC goes with them, and nothing else does."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.site.launch import NodeTaskState
from gridweave.site.machine.folders import write_state
from gridweave.site.machine.node_tasks import IpcObject, JobSpan, left_objects, objects_of, remove_object
from support.machine import PATIENCE_S

if TYPE_CHECKING:
    from conftest import Machine

times = st.integers(0, 20)
jobs_ = st.lists(st.tuples(times, st.one_of(st.none(), times)).map(lambda ran: JobSpan(ran[0], ran[1])), max_size=5)


@given(st.lists(st.tuples(times, st.booleans()), max_size=6), jobs_)
def test_what_a_job_that_runs_may_have_made_stays(made: list[tuple[int, bool]], jobs: list[JobSpan]) -> None:
    """So does what was there before all jobs or came after them, and what is used; everything else goes."""
    objects = [IpcObject("sem", number, made_s, is_used) for number, (made_s, is_used) in enumerate(made)]
    left = left_objects(objects, jobs)
    for each in objects:
        running = any(job.end_s is None and job.start_s <= each.made_s for job in jobs)
        over = any(job.end_s is not None and job.start_s <= each.made_s <= job.end_s for job in jobs)
        assert (each in left) == (over and not running and not each.is_used)


MAKE = """
import ctypes, os
c = ctypes.CDLL(None)
print(c.shmget(0, 4096, 0o1600), c.semget(0, 1, 0o1600), c.msgget(0, 0o1600))
"""


@pytest.fixture
def made() -> Iterator[list[IpcObject]]:
    """Return a segment, a set of semaphores and a queue that a process made that has ended."""
    said = subprocess.run([sys.executable, "-c", MAKE], check=True, capture_output=True, text=True).stdout
    numbers = dict(zip(("shm", "sem", "msg"), map(int, said.split()), strict=True))
    yield [each for each in objects_of(os.geteuid()) if numbers.get(each.kind) == each.name]
    for kind, number in numbers.items():
        remove_object(IpcObject(kind, number, 0, False))


def test_objects_are_found_and_removed(made: list[IpcObject]) -> None:
    """All three kinds; what a process is attached to counts as used."""
    assert sorted(each.kind for each in made) == ["msg", "sem", "shm"]
    assert not any(each.is_used for each in made)
    library = ctypes.CDLL(None)
    library.shmat.restype = ctypes.c_void_p
    [segment] = [each for each in made if each.kind == "shm"]
    address = library.shmat(segment.name, None, 0)
    assert [each.is_used for each in objects_of(os.geteuid()) if each[:2] == segment[:2]] == [True]
    library.shmdt(ctypes.c_void_p(address))
    for each in made:
        remove_object(each)
    assert not {each[:2] for each in made} & {each[:2] for each in objects_of(os.geteuid())}


def test_posix_queues_are_those_of_the_user(tmp_path: Path) -> None:
    """They are files of their own file system."""
    (tmp_path / "queue").touch()
    [found] = objects_of(os.geteuid(), tmp_path / "none", tmp_path)
    assert (found.kind, found.name, found.is_used) == ("mqueue", "queue", False)
    remove_object(found, tmp_path)
    assert objects_of(os.geteuid(), tmp_path / "none", tmp_path) == []


@pytest.mark.asyncio
async def test_a_runner_removes_what_is_left_when_nobody_can_use_it(machine: Machine, made: list[IpcObject]) -> None:
    """As soon as no piece runs that may have made it."""

    def there() -> int:
        return len({each[:2] for each in made} & {each[:2] for each in objects_of(os.geteuid())})

    over = NodeTaskState(
        job_id=1,
        attempt=0,
        phase="ended",
        boot_id="",
        outcome="finished",
        started_ms=(made[0].made_s - 1) * 1000,
        ended_ms=(made[0].made_s + 2) * 1000,
    )
    folder = machine.root / "jobs" / "1.0"
    folder.mkdir(parents=True)
    write_state(folder, over)
    async with machine.runner() as runner:
        await runner.adopt()
        assert (await machine.ended(runner)).outcome == "finished"
        async with asyncio.timeout(PATIENCE_S):
            while there():
                await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_piece_as_root_has_ipc_of_its_own(machine: Machine) -> None:
    """What it leaves goes with it, whatever else runs."""
    if os.geteuid() != 0:
        pytest.skip("only root can make namespaces")
    before = objects_of(0)
    await machine.run(machine.launch(*machine.python(MAKE)))
    assert len(machine.output().split()) == 3
    assert objects_of(0) == before
