"""A journal when things fail: the process, the disk, the file, and a second writer."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from sqlalchemy import text

from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError
from gridweave.site.job import Job
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.reader import JournalReader
from gridweave.site.journal.tables import MIGRATIONS, OLDEST, VERSION
from gridweave.site.messages import Event, JobFinished, JobSubmitted

# Forks a writer for every line that it reads, so that each is there at once; prints its number, and when it is dead.
WRITERS = """
import os, sys
from gridweave.site.journal.journal import Journal
from gridweave.site.messages import Event, Job, JobFinished, JobSubmitted

def write(place, batch):
    with Journal(place, event_type=Event, message_type=Event, batch=0) as journal:
        number = journal.sequence
        while True:
            keys = [f"key {number + i}" for i in range(1, batch + 1)]
            journal.submissions(keys)
            for key in keys:
                number += 1
                with journal.step() as step:
                    step.input(number, (JobSubmitted(Job(job_id=number, width=1, estimate_ms=5)),))
                    step.submission(key, number, number, f"answer {number}")
                    step.sent("grid", JobFinished(number))
                    step.received("grid")
                    step.acknowledged("grid", max(0, number - 10))
                    step.note(number, number, "submitted")
            journal.flush()
            os.write(1, f"{number}\\n".encode())

for line in sys.stdin:
    place, _, batch = line.strip().rpartition(" ")
    child = os.fork()
    if not child:
        write(place, int(batch))
    os.write(1, f"pid {child}\\n".encode())
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


@pytest.fixture(scope="module")
def writers() -> Iterator[tuple[IO[str], IO[str]]]:
    """Return where to ask for a writer, and where it is heard."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as done:
        assert done.stdin is not None
        assert done.stdout is not None
        yield done.stdin, done.stdout
        done.stdin.close()


def kill_writer(writers: tuple[IO[str], IO[str]], place: Path, batch: int, after: int, spin: int) -> int:
    """Let a writer write, kill it, and return the last number that it has acknowledged."""
    ask, hear = writers
    ask.write(f"{place} {batch}\n")
    ask.flush()
    child, last, heard = 0, -1, 0
    for line in hear:
        if line.startswith("pid"):
            child = int(line.split()[1])
        elif line.startswith("dead"):
            return last
        else:
            last = int(line)
            heard += 1
        if child and heard == after:
            for _ in range(spin):
                pass
            os.kill(child, signal.SIGKILL)
    raise AssertionError("the writers are gone")


@pytest.mark.parametrize("part", range(4))
def test_what_was_acknowledged_outlasts_a_kill(tmp_path: Path, writers: tuple[IO[str], IO[str]], part: int) -> None:
    """A writer is killed at random instants, again and again: the journal opens, with all that was acknowledged."""
    rng = np.random.default_rng(part)
    place = tmp_path / "site.journal"
    known = 0
    for _ in range(12):
        batch = int(rng.choice([1, 7, 50, 500]))
        acknowledged = kill_writer(writers, place, batch, int(rng.integers(0, 8)), int(rng.integers(0, 300_000)))
        if not place.exists():
            continue
        with Journal(place, event_type=Event, message_type=Event) as journal:
            last = journal.sequence
            assert last >= max(known, acknowledged), "an acknowledged step is lost"
            kept = list(journal.inputs(after=known))
            assert [entry.sequence for entry in kept] == list(range(known + 1, last + 1))
            for entry in kept:
                number = entry.sequence
                assert entry.events == (JobSubmitted(Job(job_id=number, width=1, estimate_ms=5)),)
            answers = journal.submissions([f"key {number}" for number in range(known + 1, last + 2)])
            assert [found.answer for found in answers.values()] == [f"answer {n}" for n in range(known + 1, last + 1)]
            state = journal.channel("grid")
            assert state.received == last
            assert state.first == max(0, last - 10)
            assert state.unacknowledged == tuple(JobFinished(n + 1) for n in range(state.first, last))
            assert [len(journal.history(number)) for number in (last, last + 1)] == [int(last > 0), 0]
            known = last
    assert known > 500


def fill(place: Path | str, count: int = 20, **options: Any) -> None:
    """Write a small journal."""
    with Journal(place, event_type=Event, **options) as journal:
        for number in range(count):
            with journal.step() as step:
                step.input(number, (JobFinished(number),))
                step.note(number, number, "ended", "x" * 1000)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return where the journal of this test lies."""
    return tmp_path / "site.journal"


def one_line(error: GridweaveError) -> bool:
    """Whether an error says all in one line."""
    return len(str(error).splitlines()) == 1


def test_a_journal_has_one_writer(place: Path) -> None:
    """A second writer is refused, and told who the first is, until that has let go; readers are let in."""
    with Journal(place, event_type=Event) as first:
        with first.step() as step:
            step.note(1, 0, "submitted")
        first.flush()
        with pytest.raises(UnavailableError, match=f"process {os.getpid()} writes this journal") as caught:
            Journal(place, event_type=Event)
        assert one_line(caught.value)
        with JournalReader(place) as reader:
            assert [note.kind for note in reader.history(1)] == ["submitted"]
    fill(place)


def test_a_lock_of_another_process_is_waited_for_and_told(place: Path) -> None:
    """While another process has the database locked nothing is written; what was recorded is written afterwards."""
    with Journal(place, event_type=Event, wait_ms=1) as journal:
        other = sqlite3.connect(place, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with journal.step() as step:
            step.input(1, ())
        for _ in range(2):
            with pytest.raises(UnavailableError, match="database is locked; another process has locked it") as caught:
                journal.flush()
            assert one_line(caught.value)
            assert (journal.pending, journal.durable) == (1, 0)
        other.execute("ROLLBACK")
        other.close()
        assert journal.flush() == 1
        assert [entry.sequence for entry in journal.inputs()] == [1]


def test_a_full_disk_loses_nothing(place: Path) -> None:
    """When the disk is full the batch is not there, not even in part; with room again it is written, once."""
    fill(place)
    with Journal(place, event_type=Event, batch=0) as journal:
        with journal.reading() as connection:
            pages = connection.scalar(text("PRAGMA page_count"))
            connection.execute(text(f"PRAGMA max_page_count = {pages}"))
        for number in range(20, 220):
            with journal.step() as step:
                step.input(number, ())
                step.note(number, number, "waits", "x" * 1000)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="database or disk is full; free space on its disk") as caught:
                journal.flush()
            assert one_line(caught.value)
        with JournalReader(place, event_type=Event) as reader:
            assert len(list(reader.inputs())) == 20
            assert reader.history(20) == []
        with journal._store.transaction() as connection:
            connection.execute(text("PRAGMA max_page_count = 1000000"))
        assert journal.flush() == 200
        assert len(list(journal.inputs())) == 220
        assert len(journal.history(100)) == 1


def test_a_batch_whose_end_was_not_heard_of_is_written_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a commit succeeds and its answer is lost, the next flush finds that out."""
    with Journal(place, event_type=Event, batch=0) as journal:
        with journal.step() as step:
            step.input(1, ())
            step.note(1, 1, "submitted")
        with monkeypatch.context() as patch:
            patch.setattr(journal, "_written", lambda _: (_ for _ in ()).throw(UnavailableError("gone")))
            with pytest.raises(UnavailableError, match="gone"):
                journal.flush()
        with journal.step() as step:
            step.input(2, ())
        assert journal.flush() == 2
        assert len(journal.history(1)) == 1
        assert [entry.now_ms for entry in journal.inputs()] == [1, 2]


def test_a_writer_that_was_replaced_writes_no_more(place: Path) -> None:
    """Whoever opened the journal last is its writer, even if the lock of the one before did not hold."""
    first = Journal(place, event_type=Event)
    with first.step() as step:
        step.input(1, ())
    Path(f"{place}.lock").unlink()
    fill(place, 3)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="another process writes it now"):
            first.flush()
    with pytest.raises(UnavailableError, match="another process writes it now"), first.step():
        pass
    with pytest.raises(UnavailableError, match="another process"):
        first.close()
    with JournalReader(place, event_type=Event) as reader:
        assert len(list(reader.inputs())) == 3


def test_a_file_that_is_no_database_is_left_alone(place: Path) -> None:
    """A file of something else is refused in one line, and not changed."""
    place.write_bytes(b"[site]\nnodes = 4\n" * 100)
    before = place.read_bytes()
    for kind in (Journal, JournalReader):
        with pytest.raises(InputError, match="file is not a database") as caught:
            kind(place, event_type=Event)
        assert one_line(caught.value)
    assert place.read_bytes() == before


def test_a_database_of_something_else_is_left_alone(place: Path) -> None:
    """An SQLite database with tables of something else is refused, and gets none of ours."""
    other = sqlite3.connect(place)
    other.execute("CREATE TABLE recipes (name TEXT)")
    other.commit()
    for kind in (Journal, JournalReader):
        with pytest.raises(InputError, match="is not a journal of gridweave"):
            kind(place, event_type=Event)
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("recipes",)]
    other.close()


@pytest.mark.parametrize("left", [0, 100, 5000, 20000])
def test_a_file_that_was_cut_off_is_found(place: Path, left: int) -> None:
    """A journal whose file lost its end is refused when it is opened, also if nothing is left of it."""
    fill(place, 200)
    assert place.stat().st_size > 20000
    os.truncate(place, left)
    with pytest.raises(InputError) as caught:
        Journal(place, event_type=Event)
    assert one_line(caught.value)
    assert place.stat().st_size == left


def test_places_where_nothing_can_be_kept(tmp_path: Path) -> None:
    """A folder that is not there, a folder in place of a file, and a journal to read that is not there are refused."""
    with pytest.raises(InputError, match="No such file or directory; name a file in a folder"):
        Journal(tmp_path / "missing" / "site.journal", event_type=Event)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="unable to open database file"):
        Journal(tmp_path / "folder", event_type=Event)
    with pytest.raises(InputError, match="this journal does not exist"):
        JournalReader(tmp_path / "missing.journal")
    assert not (tmp_path / "missing.journal").exists()


@pytest.mark.parametrize(
    "place", ["", "mysql://host/x", "nonsense://x", "sqlite://", "sqlite:///:memory:", "sqlite:///a?b=c", "://"]
)
def test_places_that_are_none(place: str) -> None:
    """A URL of another database, of memory, or that cannot be read is refused with what would be right."""
    with pytest.raises(OptionError, match=r"journal: .*postgresql://USER@HOST/DATABASE") as caught:
        Journal(place, event_type=Event)
    assert one_line(caught.value)


@pytest.mark.parametrize("wrong", [{"batch": -1}, {"wait_ms": -1}, {"synchronous": "off"}])
def test_options_that_make_no_sense(place: Path, wrong: dict[str, Any]) -> None:
    """An option with an impossible value is refused by its name, and nothing is made."""
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Journal(place, event_type=Event, **wrong)
    assert not place.exists()


def test_durability_is_what_was_asked_for(place: Path) -> None:
    """A commit waits for the disk unless that was given up; in either case there is a write-ahead log."""
    for synchronous, level in (("full", 2), ("normal", 1)):
        with Journal(place, event_type=Event, synchronous=synchronous) as journal, journal.reading() as connection:
            assert connection.scalar(text("PRAGMA synchronous")) == level
            assert connection.scalar(text("PRAGMA journal_mode")) == "wal"


def shape(place: Path) -> dict[str, Any]:
    """Return the tables of a database, their columns and indexes."""
    with sqlite3.connect(place) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master ORDER BY name")]
        shapes = {name: [row[1] for row in database.execute(f"PRAGMA table_info({name})")] for name in names}
    database.close()
    return shapes


def comes_later(patch: pytest.MonkeyPatch, *statements: str) -> None:
    """Have a release come whose journals need these statements."""

    def migrate(connection: Any) -> None:
        for statement in statements:
            connection.execute(text(statement))

    patch.setattr("gridweave.site.journal.tables.VERSION", VERSION + 1)
    patch.setitem(MIGRATIONS, VERSION, migrate)


def test_an_older_journal_is_migrated(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer of a later release migrates a journal, once, with all that is in it; a reader does not change it."""
    fill(place)
    comes_later(monkeypatch, "CREATE TABLE later (number INTEGER)", "INSERT INTO later VALUES (7)")
    with pytest.raises(UnavailableError, match=f"schema version {VERSION}, not {VERSION + 1}; its writer migrates it"):
        JournalReader(place)
    for _ in range(2):
        with Journal(place, event_type=Event) as journal:
            assert len(list(journal.inputs())) == 20
            with journal.reading() as connection:
                assert list(connection.scalars(text("SELECT number FROM later"))) == [7]
    with JournalReader(place, event_type=Event) as reader:
        assert len(list(reader.inputs())) == 20


def test_a_migration_that_fails_leaves_the_older_journal(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration is one transaction: if it fails at its end the journal is as it was."""
    fill(place)
    before = shape(place)
    with monkeypatch.context() as patch:
        comes_later(
            patch, "ALTER TABLE gridweave_inputs ADD COLUMN more TEXT", "UPDATE gridweave_inputs SET nonsense = 1"
        )
        with pytest.raises(UnavailableError, match="no such column: nonsense"):
            Journal(place, event_type=Event)
    assert shape(place) == before
    with Journal(place, event_type=Event) as journal:
        assert journal.sequence == 20


def test_a_newer_journal_is_refused(place: Path) -> None:
    """A journal of a later release is left alone, and the error says which release can use it."""
    fill(place)
    with sqlite3.connect(place) as database:
        database.execute("UPDATE gridweave_schema SET version = 99")
    database.close()
    for kind in (Journal, JournalReader):
        with pytest.raises(
            InputError, match=f"schema version 99.*versions {OLDEST} to {VERSION}; use the release"
        ) as caught:
            kind(place, event_type=Event)
        assert one_line(caught.value)
