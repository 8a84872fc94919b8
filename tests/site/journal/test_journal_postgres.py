"""A journal in PostgreSQL: the same as in SQLite, and a server that goes away and comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.config.journals import JournalSpec, check_journals
from gridweave.site.job import Job, JobRecord, JobRequest, Program
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.reader import JournalReader
from gridweave.site.journal.records import ChannelState, JobUsage
from gridweave.site.journal.replay import replay
from gridweave.site.journal.tables import MIGRATIONS, VERSION, metadata
from gridweave.site.messages import Event, JobFinished, JobSubmitted
from gridweave.site.query_messages import JobQuery
from gridweave.site.quotas import NO_QUOTAS, QuotasChanged
from gridweave.site.state import CoreState
from support.machine import Server, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Return a server, or skip where PostgreSQL is not installed."""
    with running_server() as running:
        yield running


@pytest.fixture
def url(server: Server, request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database."""
    return server.new_database(request.node.name[:60])


def count(journal: JournalReader) -> int:
    """Return how many inputs there are."""
    return len(list(journal.inputs()))


class CounterState(CoreState, frozen=True, kw_only=True, tag="Counter 1"):
    """What a counter knows."""

    counts: dict[str, int]


class Counter:
    """A core that counts."""

    state_type = CounterState

    def state(self) -> CounterState:
        """Return what is known."""
        return CounterState(counts=self.counts)

    def restore(self, state: CounterState) -> None:
        """Take in what another one knew."""
        self.counts = state.counts

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def handle(self, now_ms: int, *events: Any) -> list[str]:
        """Count events by their kind."""
        for event in events:
            name = type(event).__name__
            self.counts[name] = self.counts.get(name, 0) + 1
        return [f"{name} {number}" for name, number in self.counts.items()]


def test_all_that_is_kept_comes_back(url: str) -> None:
    """Inputs, snapshots, answers, channels, stories and usage are the same after a restart as in SQLite."""
    options: dict[str, Any] = {"event_type": Event, "message_type": Event, "batch": 50}
    core = Counter()
    for start in (0, 300):
        with Journal(url, **options) as journal:
            fresh = Counter()
            assert replay(journal, fresh).now_ms == max(0, start - 1)
            assert fresh.counts == core.counts
            for number in range(start, start + 300):
                with journal.step() as step:
                    job = Job(job_id=number, width=1, estimate_ms=10**14)
                    step.handle(core, number, JobSubmitted(job), JobFinished(2**63 - 1))
                    step.submission(f"key {number}", number, number, {"a": [1, None, "\u00e9"]})
                    step.sent("grid", JobFinished(number))
                    step.received("grid", 2)
                    step.acknowledged("grid", max(0, number - 1))
                    step.note(number % 7, number, "waits", "nul \0 and half \ud800 and '%s' :x")
                    step.usage(JobUsage(job_id=number, user="anna", at_ms=1, width=1, estimate_ms=9, run_ms=3, cpu=0.5))
                if number == 150:
                    journal.snapshot(core)
    with Journal(url, **options) as journal:
        fresh = Counter()
        assert (replay(journal, fresh).snapshot, fresh.counts) == (151, core.counts)
        assert [entry.sequence for entry in journal.inputs()] == list(range(1, 601))
        assert journal.channel("grid") == ChannelState(598, (JobFinished(598), JobFinished(599)), 1200)
        found = journal.submissions(f"key {number}" for number in (599, 3, 600))
        assert [(key, value.answer) for key, value in found.items()] == [
            (key, {"a": [1, None, "\u00e9"]}) for key in ("key 599", "key 3")
        ]
        with pytest.raises(InputError, match="'key 5' was already used"), journal.step() as step:
            step.submission("key 5", 1, 1, None)
        assert [note.at_ms for note in journal.history(3)] == list(range(3, 600, 7))
        assert journal.history(3)[0].detail == "nul  and half ? and '%s' :x"
        spread = journal.experience(user="anna").part_of_estimate
        assert spread is not None
        assert (spread.count, round(spread.mean, 9)) == (600, round(1 / 3, 9))
        assert [(group.user, group.count) for group in journal.groups()] == [("anna", 600)]
        assert journal.compact() == 151
        assert journal.forget(300) == 300 + 300 + 600


def test_a_server_that_goes_away_and_comes_back(server: Server, url: str) -> None:
    """While the server is away nothing is durable and nothing is lost; afterwards all is written, once."""
    with Journal(url, event_type=Event, batch=0) as journal:
        for number in range(1, 6):
            with journal.step() as step:
                step.input(number, (JobFinished(number),))
            if number == 3:
                server.stop()
            if number > 2:
                for _ in range(2):
                    with pytest.raises(UnavailableError) as caught:
                        journal.flush()
                    assert len(str(caught.value).splitlines()) == 1
                    assert journal.durable == 2
            else:
                assert journal.flush() == number
        with pytest.raises(UnavailableError):
            list(journal.inputs())
        with pytest.raises(UnavailableError):
            JournalReader(url)
        server.start()
        assert journal.flush() == 5
        assert [entry.now_ms for entry in journal.inputs()] == [1, 2, 3, 4, 5]
        with pytest.raises(UnavailableError, match="another process writes this journal"):
            Journal(url, event_type=Event, wait_ms=1)


def test_a_connection_that_breaks_in_a_batch_leaves_nothing_of_it(url: str) -> None:
    """A session that is ended in the middle of a transaction has written nothing; the batch is written by the next."""
    other = create_engine(url)
    with Journal(url, event_type=Event, batch=0) as journal:

        def break_off() -> None:
            with journal._store.transaction() as connection:
                journal._fence(connection)
                process = connection.scalar(text("SELECT pg_backend_pid()"))
                with other.begin() as killer:
                    killer.execute(text(f"SELECT pg_terminate_backend({process}, 5000)"))
                connection.execute(text("SELECT 1"))

        for number in (1, 2):
            with journal.step() as step:
                step.input(number, ())
                step.note(1, number, "waits")
            with pytest.raises(UnavailableError):
                break_off()
            assert journal.flush() == number
        assert [note.at_ms for note in journal.history(1)] == [1, 2]
        assert count(journal) == 2
    other.dispose()


def test_one_writer_and_any_readers(url: str) -> None:
    """A second writer is refused while the first lives; a reader sees what is durable."""
    with Journal(url, event_type=Event) as first:
        with first.step() as step:
            step.input(1, ())
        with JournalReader(url, event_type=Event) as reader:
            assert count(reader) == 0
            first.flush()
            assert count(reader) == 1
        with pytest.raises(UnavailableError, match=r"another process writes this journal.*end that"):
            Journal(url, event_type=Event, wait_ms=1)
    with Journal(url, event_type=Event) as second:
        assert count(second) == 1


def test_a_writer_that_was_replaced_writes_no_more(url: str) -> None:
    """A writer whose session the server ended, and which another has replaced, is refused, and writes nothing."""
    other = create_engine(url)
    first = Journal(url, event_type=Event, wait_ms=1)
    with other.begin() as killer:
        killer.execute(text("SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'"))
    with first.step() as step:
        step.input(1, ())
    with Journal(url, event_type=Event) as second:
        with pytest.raises(UnavailableError):
            first.flush()
        with second.step() as step:
            step.input(2, ())
    for _ in range(2):
        with pytest.raises(UnavailableError):
            first.flush()
    with pytest.raises(UnavailableError, match="another process writes it now"):
        first.close()
    with JournalReader(url, event_type=Event) as reader:
        assert [entry.now_ms for entry in reader.inputs()] == [2]
    other.dispose()


def test_several_journals_in_one_database(url: str) -> None:
    """Each schema of a database holds a journal of its own, with a writer of its own."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA north"))
        connection.execute(text("CREATE SCHEMA south"))
        connection.execute(text("CREATE TABLE public.recipes (name TEXT)"))
    engine.dispose()
    north, south = (f"{url}&options=-csearch_path%3D{name}" for name in ("north", "south"))
    with Journal(north, event_type=Event) as first, Journal(south, event_type=Event) as second:
        with first.step() as step:
            step.input(1, ())
        first.flush()
        assert (count(first), count(second)) == (1, 0)
        assert first.journal_id != second.journal_id


def test_what_the_server_refuses_is_said_in_one_line(server: Server) -> None:
    """A database that is not there is an error with what would be right, and a password is not in it."""
    url = server.url("nowhere").replace(f"{server.user}@", f"{server.user}:secret@")
    with pytest.raises(InputError, match='database "nowhere" does not exist; create the database') as caught:
        Journal(url, event_type=Event)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(UnavailableError, match="has no journal yet"):
        JournalReader(server.url("postgres"))


def test_a_database_in_which_nothing_is_yet_is_left_to_the_writer(url: str) -> None:
    """A service that begins with an empty database starts: its settings are compared with no others."""
    check_journals([JournalSpec(url, QuotasChanged(NO_QUOTAS))])
    with Journal(url, event_type=Event):
        pass
    check_journals([JournalSpec(url, QuotasChanged(NO_QUOTAS))])


def test_a_reader_sees_what_is_durable_while_it_is_written(url: str) -> None:
    """User queries run on their own connection, opened with the same URL and password."""
    request = JobRequest(program=Program(argv=("true",)), limit_ms=1)
    over = JobRecord(job_id=7, request=request, submit_ms=1, end_ms=5, state="ended")
    with Journal(url, event_type=Event) as journal:
        reader = journal.reader()
        with journal.step() as step:
            step.ended(over)
        assert reader.ended_numbers() == range(0)
        with reader.reading():
            journal.flush()
        assert reader.ended([7]) == {7: over}


def test_an_older_journal_is_migrated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal gets the columns that it lacks, in one transaction, and a newer one is refused."""
    with Journal(url, event_type=Event) as journal:
        with journal.step() as step:
            step.input(1, (JobFinished(7),))
        journal.flush()
    engine = create_engine(url)
    request = JobRequest(program=Program(argv=("true",)), limit_ms=1, user="an\0na")
    over = JobRecord(job_id=7, request=request, submit_ms=1, end_ms=5, state="ended", places=(("north", 1),))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE gridweave_usage DROP COLUMN read_bytes"))

    def migrate(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE gridweave_usage ADD COLUMN read_bytes BIGINT"))

    monkeypatch.setattr("gridweave.site.journal.tables.VERSION", VERSION + 1)
    monkeypatch.setitem(MIGRATIONS, VERSION, migrate)
    with Journal(url, event_type=Event) as journal:
        assert [entry.events for entry in journal.inputs()] == [(JobFinished(7),)]
        with journal.step() as step:
            step.usage(JobUsage(job_id=1, at_ms=1, width=1, estimate_ms=9, run_ms=3, read_bytes=2**62))
            step.handle(Counter(), 2)
            step.ended(over)
        assert journal.experience().read_bytes is not None
        assert journal.ended([7]) == {7: over}
        assert journal.find_ended(JobQuery(user="a\0nna", site="north")) == [over]
        with journal.step() as step:
            step.ended(over)
        assert journal.find_ended(JobQuery(site="nort_", state=("ended",))) == []
    with engine.begin() as connection:
        found = connection.execute(text("SELECT table_name, column_name FROM information_schema.columns")).all()
        ours = {(table.name, column.name) for table in metadata.sorted_tables for column in table.columns}
        assert {tuple(row) for row in found if row[0].startswith("gridweave_")} == ours
        connection.execute(text("UPDATE gridweave_schema SET version = 99"))
    engine.dispose()
    with pytest.raises(InputError, match="schema version 99"):
        Journal(url, event_type=Event)


def test_a_writer_that_is_killed_loses_nothing_acknowledged(url: str) -> None:
    """After a kill all that was acknowledged is there, and the next writer is let in."""
    script = (
        "import sys, os\n"
        "from gridweave.site.journal.journal import Journal\n"
        "from gridweave.site.messages import Event\n"
        f"with Journal({url!r}, event_type=Event, batch=0) as journal:\n"
        "    while True:\n"
        "        for _ in range(20):\n"
        "            with journal.step() as step:\n"
        "                step.input(journal.sequence, ())\n"
        "        journal.flush()\n"
        "        os.write(1, f'{journal.sequence}\\n'.encode())\n"
    )
    acknowledged = 0
    for round_number in range(4):
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for heard, line in enumerate(writer.stdout):
                acknowledged = int(line)
                if heard == 5 * round_number:
                    writer.send_signal(signal.SIGKILL)
        with Journal(url, event_type=Event, wait_ms=5000) as journal:
            assert journal.sequence >= acknowledged
            assert journal.sequence % 20 == 0
            assert count(journal) == journal.sequence
