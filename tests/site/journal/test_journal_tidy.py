"""A journal that compacts itself: it stays small, and a kill at any step of that loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from gridweave.site.job import JobRecord, JobRequest, Program
from gridweave.site.journal import tables
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.reader import JournalReader
from gridweave.site.journal.records import JobUsage
from gridweave.site.journal.replay import replay
from gridweave.site.messages import Job, JobFinished, JobSubmitted
from gridweave.site.policy import SitePolicy
from gridweave.site.scheduler.contract import ContractCore, ContractEvent
from support.checks import differences
from support.machine import running_server

JOBS, EVERY = 60, 10
REQUEST = JobRequest(program=Program(argv=("true",)), limit_ms=1000)


@pytest.fixture(scope="module")
def databases() -> Iterator[Any]:
    """Return a function that makes an empty database, or skips where PostgreSQL is not installed."""
    with running_server() as server:
        yield server.new_database


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where a journal can be, in both kinds of database."""
    if request.param == "sqlite":
        return str(tmp_path / "site.journal")
    url: str = request.getfixturevalue("databases")(request.node.name[:60])
    return url


def opened(place: str) -> Journal:
    """Open a journal that compacts itself."""
    return Journal(place, event_type=ContractEvent, batch=0, compacts=True)


def core_after(jobs: int) -> ContractCore:
    """Return a core that was told of so many jobs, one after the other."""
    core = ContractCore(2, SitePolicy())
    for number in range(jobs):
        tell(core, number)
    return core


def events_of(number: int) -> tuple[Any, ...]:
    """Return what the core is told with a job: each third stays in the queue, or runs on."""
    submitted = JobSubmitted(Job(job_id=number, width=1, estimate_ms=10**12))
    return (submitted,) if number % 30 == 0 else (submitted, JobFinished(number))


def tell(core: ContractCore, number: int) -> None:
    """Tell a core of a job."""
    core.handle(number, *events_of(number))


def play(journal: Journal, core: ContractCore, first: int) -> None:
    """Play jobs, each in a transaction of its own, as a driver does: with snapshots, and what is old going."""
    for number in range(first, JOBS):
        with journal.step() as step:
            step.submission(f"key {number}", number, number, None)
            step.handle(core, number, *events_of(number))
            step.note(number, number, "submitted", "by anna")
            step.usage(JobUsage(job_id=number, user="anna", at_ms=number, width=1, estimate_ms=9, run_ms=3))
            if number % 30:
                step.ended(JobRecord(job_id=number, request=REQUEST, submit_ms=number, end_ms=number, state="ended"))
        journal.flush()
        if number % EVERY == EVERY - 1:
            journal.snapshot(core)
            journal.forget_by_and_by(number - 20, frozenset({0, 30}))
            journal.flush()


def settle(journal: Journal) -> None:
    """Write what leaves no rows, until what was begun to be removed is gone."""
    for _ in range(20):
        with journal.step() as step:
            step.received("grid")
        journal.flush()


def counted(place: str) -> dict[str, int]:
    """Return how many rows the tables of a journal have."""
    with JournalReader(place) as reader, reader.reading() as connection:
        each = (tables.inputs, tables.submissions, tables.notes, tables.usage, tables.ended, tables.snapshots)
        return {
            table.name.removeprefix("gridweave_"): connection.scalar(select(func.count()).select_from(table)) or 0
            for table in each
        }


def test_it_stays_as_small_as_its_history(place: str) -> None:
    """What is left are the inputs since the older snapshot, the history, and all of the jobs that are open."""
    with opened(place) as journal:
        play(journal, ContractCore(2, SitePolicy()), 0)
        settle(journal)
    rows = counted(place)
    assert rows["inputs"] == EVERY
    # What is from before 39 went, but for the jobs 0 and 30, which are open.
    assert rows["ended"] == JOBS - 39
    assert rows["notes"] == rows["usage"] == rows["submissions"] == JOBS - 39 + 2
    assert rows["snapshots"] == 2
    with opened(place) as journal:
        assert journal.submissions(["key 0", "key 1", "key 30"]).keys() == {"key 0", "key 30"}
        again = ContractCore(2, SitePolicy())
        assert replay(journal, again).passed_over == ()
        assert list(differences(again, core_after(JOBS))) == []
        with journal.step() as step:
            step.note(1, JOBS, "ended")
        assert step.last_note == JOBS + 1, "numbers of notes go on"


CHILD = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from gridweave.site.journal import journal as module, tidy
from test_journal_tidy import *
place, at, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
remove_some, written = tidy.Tidy.remove_some, module.Journal._written
def removed(self, connection, count):
    global at
    at -= 1
    done = remove_some(self, connection, count)
    if at == 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    return done
def after(self, count):
    if at == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    written(self, count)
tidy.Tidy.remove_some, module.Journal._written = removed, after
with opened(place) as journal:
    play(journal, ContractCore(2, SitePolicy()), 0)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_in_the_middle_loses_nothing(place: str, when: str) -> None:
    """A journal killed before or after a commit of a few removals keeps its data and continues to compact."""
    at = 13 if when == "before" else 17  # while inputs and history go
    code = CHILD.format(tests=str(Path(__file__).parent))
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    killed = subprocess.run(
        [sys.executable, "-c", code, place, str(at), when],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with opened(place) as journal:
        core = ContractCore(2, SitePolicy())
        found = replay(journal, core)
        jobs = journal.sequence
        assert EVERY * 2 < jobs < JOBS
        assert found.passed_over == ()
        assert list(differences(core, core_after(jobs))) == []
        play(journal, core, jobs)
        settle(journal)
    rows = counted(place)
    assert (rows["inputs"], rows["ended"], rows["snapshots"]) == (EVERY, JOBS - 39, 2)
