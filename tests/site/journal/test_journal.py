"""The journal: what was recorded comes back, whole steps at a time, in the order in which they were made."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.grid.messages import GridJobCancelled
from gridweave.site.job import Job
from gridweave.site.journal import journal as journal_module
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.reader import JournalReader
from gridweave.site.journal.records import ChannelState, Experience, JobUsage, Note, quantiles
from gridweave.site.messages import Answer, JobCancelled, JobFinished, JobSubmitted, Reserved, Started
from gridweave.site.scheduler.contract import ContractEvent

Open = Callable[..., Journal]


@pytest.fixture
def open_journal(tmp_path: Path) -> Iterator[Open]:
    """Return what opens the journal of this test, again and again; at most one is open at a time."""
    opened: list[Journal] = []

    def opens(**options: Any) -> Journal:
        for journal in opened:
            journal.close()
        kinds = {"event_type": ContractEvent, "message_type": Answer}
        opened.append(Journal(tmp_path / "site.journal", **kinds | options))
        return opened[-1]

    yield opens
    for journal in opened:
        journal.close()


@contextlib.contextmanager
def another_reading(journal: Journal) -> Iterator[None]:
    """Have another thread read the journal meanwhile."""
    reads, may_end = threading.Event(), threading.Event()

    def read() -> None:
        with journal.reading():
            reads.set()
            may_end.wait()

    reader = threading.Thread(target=read)
    reader.start()
    reads.wait()
    try:
        yield
    finally:
        may_end.set()
        reader.join()


def submitted(job_id: int) -> JobSubmitted:
    """Return a submission."""
    return JobSubmitted(Job(job_id=job_id, width=1, estimate_ms=1000))


@pytest.mark.parametrize(
    "wrong",
    [
        GridJobCancelled(1),
        Job(job_id=1, width=1, estimate_ms=1),
        "text",
        JobFinished(np.int64(3)),
        JobFinished("three"),  # type: ignore[arg-type]
        JobFinished(2**70),
    ],
)
def test_what_could_not_be_read_back_is_not_written(open_journal: Open, wrong: Any) -> None:
    """An event of another kind, or one that holds what is no such value, is refused, and its step is not there."""
    journal = open_journal()

    def record() -> None:
        with journal.step() as step:
            step.note(1, 0, "submitted")
            step.input(0, (wrong,))

    with pytest.raises(InputError, match="event"):
        record()
    assert list(journal.inputs()) == []
    assert journal.history(1) == []


def test_inputs_come_back_in_order(open_journal: Open) -> None:
    """Inputs have ascending numbers over restarts, and are given in the order of the calls, page by page."""
    for start in (0, 1500):
        journal = open_journal(batch=400)
        for number in range(start, start + 1500):
            with journal.step() as step:
                step.input(number // 2, (submitted(number), JobCancelled(number)) if number % 3 else ())
    journal = open_journal()
    kept = list(journal.inputs(after=10))
    assert [entry.sequence for entry in kept] == list(range(11, 3001))
    assert [entry.now_ms for entry in kept] == [(number - 1) // 2 for number in range(11, 3001)]
    assert kept[1].events == (submitted(11), JobCancelled(11))
    assert kept[2].events == ()
    assert (journal.sequence, journal.now_ms) == (3000, 1499)


def test_a_batch_is_one_transaction(open_journal: Open, tmp_path: Path) -> None:
    """Steps are gathered until there are as many as the batch, or until they are flushed; then others see them."""
    journal = open_journal(batch=3)
    numbers = []
    with JournalReader(tmp_path / "site.journal", event_type=ContractEvent) as reader:
        for number in range(5):
            with journal.step() as step:
                step.input(number, ())
            numbers.append((step.number, journal.durable, journal.pending, len(list(reader.inputs()))))
        assert numbers == [(1, 0, 1, 0), (2, 0, 2, 0), (3, 3, 0, 3), (4, 3, 1, 3), (5, 3, 2, 3)]
        assert journal.flush() == 5
        assert journal.flush() == 5
        assert len(list(reader.inputs())) == 5


def test_a_step_that_fails_leaves_nothing(open_journal: Open) -> None:
    """After an error in the middle of a step nothing of it is there, and the next step is as if it had never been."""
    journal = open_journal()
    with journal.step() as step:
        step.sent("grid", Reserved(1, 1))

    def fail() -> None:
        with journal.step() as step:
            step.input(5, (submitted(1),))
            step.sent("grid", Reserved(2, 1))
            step.received("grid", 3)
            step.acknowledged("grid", 2)
            step.submission("key", 1, 0, "answer")
            step.usage(JobUsage(job_id=1, at_ms=1, width=1, estimate_ms=1, run_ms=1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with journal.step() as step:
        step.input(6, ())
        step.submission("key", 2, 0, "another")
    journal = open_journal()
    assert [(entry.sequence, entry.now_ms) for entry in journal.inputs()] == [(1, 6)]
    assert journal.channel("grid") == ChannelState(0, (Reserved(1, 1),), 0)
    assert journal.submissions(["key"])["key"].job_id == 2
    assert journal.experience() == Experience(0)


def test_steps_do_not_overlap(open_journal: Open) -> None:
    """The inputs of two steps could not be told in the order of the calls, so one step is open at a time."""
    journal = open_journal()
    with journal.step(), pytest.raises(InputError, match="a step of this journal is still open"), journal.step():
        pass
    with journal.step() as step:
        step.input(0, ())
    assert journal.flush() == 2


class Failing:
    """A core that acts, or refuses."""

    def handle(self, now_ms: int, *events: Any) -> list[Any]:
        """Refuse what comes before instant 0."""
        if now_ms < 0:
            raise InputError("time never goes back")
        return []


def test_a_core_that_is_ahead_of_its_journal_is_found_out(open_journal: Open) -> None:
    """A core that refuses has not changed; one that has acted in a step that failed must be made again."""
    journal = open_journal()
    with pytest.raises(InputError, match="time never goes back"), journal.step() as step:
        step.handle(Failing(), -1)
    with journal.step() as step:
        step.handle(Failing(), 1)

    def fail() -> None:
        with journal.step() as step:
            step.handle(Failing(), 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(UnavailableError, match="reopen the journal and replay it"), journal.step():
        pass
    assert journal.flush() == 1
    assert [entry.now_ms for entry in open_journal().inputs()] == [1]


def test_the_first_answer_is_kept(open_journal: Open) -> None:
    """A repeated key gets the first answer: while the step is gathered, when it is written, and after a restart."""
    journal = open_journal()
    assert journal.submissions(["a", "b", "a"]) == {}
    with journal.step() as step:
        step.submission("a", 1, 10, {"job_id": 1, "site": "north"})
    assert (list(journal.submissions(["a"])), journal.pending) == (["a"], 1)
    for again in range(3):
        with pytest.raises(InputError, match="'a' was already used"), journal.step() as step:
            step.submission("a", 2, 20, {"job_id": 2})
        found = journal.submissions(["a", "b"])
        assert list(found) == ["a"]
        assert (found["a"].job_id, found["a"].at_ms, found["a"].answer) == (1, 10, {"job_id": 1, "site": "north"})
        if again:
            journal = open_journal()

    def submit_twice() -> None:
        with journal.step() as step:
            step.submission("b", 1, 10, None)
            step.submission("b", 1, 10, None)

    with pytest.raises(InputError, match="'b' was already used"):
        submit_twice()
    with pytest.raises(InputError, match="empty"), journal.step() as step:
        step.submission("", 1, 10, None)
    assert journal.submissions(["b"]) == {}
    many = [f"key {number}" for number in range(2500)]
    journal.submissions(many)
    with journal.step() as step:
        for number, key in enumerate(many):
            step.submission(key, number, 10, None)
    assert [found.job_id for found in open_journal().submissions(many).values()] == list(range(2500))


def test_answers_are_had_at_once_unless_somebody_else_reads(open_journal: Open) -> None:
    """What was answered is found without a wait, written or not; not while another thread has the file."""
    journal = open_journal(batch=0)
    with journal.step() as step:
        step.submission("a", 1, 5, Started(1, 2, 3))
    for _ in range(2):
        found = journal.submissions_at_once(["a", "b"])
        assert found is not None
        assert {key: one.job_id for key, one in found.items()} == {"a": 1}
        journal.flush()
    with another_reading(journal):
        assert journal.submissions_at_once(["a"]) is None
    assert journal.submissions_at_once(["a"]) is not None


def test_few_rows_are_written_at_once_where_the_disk_was_quick(
    open_journal: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing is left to a thread before one was quick, and with many rows, while another reads and after a failure."""
    monkeypatch.setattr(journal_module, "QUICK_S", 3600.0)
    journal = open_journal(batch=0)

    def note(count: int) -> None:
        with journal.step() as step:
            for number in range(count):
                step.note(1, number, "waits")

    note(1)
    assert (journal.flush_at_once(), journal.pending) == (False, 1)
    journal.flush()
    note(journal_module.QUICK_ROWS)
    assert (journal.flush_at_once(), journal.pending) == (True, 0)
    note(journal_module.QUICK_ROWS + 1)
    assert (journal.flush_at_once(), journal.pending) == (False, 1)
    journal.flush()

    with another_reading(journal):
        note(1)
        assert (journal.flush_at_once(), journal.pending) == (False, 1)
    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "write", fails)
        with pytest.raises(ZeroDivisionError):
            journal.flush_at_once()
    assert (journal.flush_at_once(), journal.pending) == (False, 1)
    journal.flush()
    monkeypatch.setattr(journal_module, "QUICK_S", 0.0)
    note(1)
    assert (journal.flush_at_once(), journal.pending) == (False, 1)


def fails(*arguments: Any) -> None:
    """Fail."""
    raise ZeroDivisionError


def test_answers_have_the_type_that_was_asked_for(open_journal: Open) -> None:
    """With a type for answers they come back as that, and an answer of another type is refused."""
    journal = open_journal(answer_type=Started)
    with journal.step() as step:
        step.submission("a", 1, 10, Started(1, 2, 3))
    assert journal.submissions(["a"])["a"].answer == Started(1, 2, 3)
    with pytest.raises(InputError, match="answer type"), journal.step() as step:
        step.submission("b", 1, 10, Reserved(1, 2))


def test_the_story_of_a_job(open_journal: Open) -> None:
    """What happened to a job comes back in the order in which it was noted; other jobs have their own stories."""
    journal = open_journal()
    told = [
        Note(1, 5, "submitted"),
        Note(1, 5, "waits", "2 nodes are free\nnot 3"),
        Note(1, 4, "started", "\u00fc" * 20000),
    ]
    with journal.step() as step:
        for note in told:
            step.note(note.job_id, note.at_ms, note.kind, note.detail)
            step.note(2, 0, "submitted", "a\0b")
    journal = open_journal()
    assert journal.history(1) == [*told[:2], msgspec.structs.replace(told[2], detail="\u00fc" * 10000)]
    assert [note.detail for note in journal.history(2)] == ["ab"] * 3
    assert journal.history(3) == []


def test_experience_is_what_numpy_says(open_journal: Open) -> None:
    """Means and quantiles are those of the newest jobs of a user and class; what is not known does not count."""
    rng = np.random.default_rng(3)
    journal = open_journal()
    rows = []
    for number in range(300):
        used = JobUsage(
            job_id=number,
            user=("anna", "bert", 7, None)[number % 4],
            job_class=None if number % 3 else "render",
            at_ms=number,
            width=1,
            estimate_ms=int(rng.integers(0, 3)) * 1000,
            run_ms=int(rng.integers(1, 1000)),
            cpu=float(rng.random()) if number % 5 else None,
            memory_bytes=int(rng.integers(2**40)),
        )
        rows.append(used)
        with journal.step() as step:
            step.usage(used)
    found = journal.experience(user="anna", last=50)
    chosen = [used for used in rows if used.user == "anna"][-50:]
    run_ms = np.array([used.run_ms for used in chosen])
    assert found.count == 50
    assert found.run_ms is not None
    assert found.run_ms.mean == run_ms.mean()
    assert (found.run_ms.p10, found.run_ms.p99) == (np.quantile(run_ms, 0.1), np.quantile(run_ms, 0.99))
    assert found.part_of_estimate == quantiles(used.run_ms / used.estimate_ms for used in chosen if used.estimate_ms)
    assert found.cpu == quantiles(used.cpu for used in chosen)
    assert found.read_bytes is None
    assert journal.experience(user=7) == journal.experience(user="7")
    assert journal.experience(user=7, job_class="render").count == 25
    assert journal.experience(user="nobody") == Experience(0)
    assert sum(group.count for group in journal.groups()) == journal.experience().count == 300
    assert [(group.user, group.job_class) for group in journal.groups()][:2] == [(None, None), (None, "render")]
    with pytest.raises(OptionError, match="last"):
        journal.experience(last=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("run_ms", "long"), ("run_ms", 1.5), ("width", "one"), ("memory_bytes", 2**63), ("cpu", "half"), ("at_ms", 2**64)],
)
def test_numbers_that_no_database_holds_are_refused_at_once(open_journal: Open, name: str, value: Any) -> None:
    """A step that could never be written would hold up all that come after it, so it is refused when it is made."""
    journal = open_journal()
    used = msgspec.structs.replace(JobUsage(job_id=1, at_ms=1, width=1, estimate_ms=1, run_ms=1), **{name: value})
    with pytest.raises(InputError, match=name), journal.step() as step:
        step.usage(used)
    with journal.step() as step:
        step.usage(JobUsage(job_id=np.int64(1), at_ms=1, width=1, estimate_ms=1, run_ms=1, cpu=np.float32(0.5)))  # type: ignore[arg-type]
    assert journal.experience().count == 1


def test_old_records_can_be_forgotten(open_journal: Open) -> None:
    """Submissions, stories and usage from before an instant go; inputs and channels stay."""
    journal = open_journal()
    for at_ms in (10, 20):
        with journal.step() as step:
            step.input(at_ms, ())
            step.sent("grid", Reserved(1, 1))
            step.submission(f"key {at_ms}", 1, at_ms, None)
            step.note(1, at_ms, "submitted")
            step.usage(JobUsage(job_id=1, at_ms=at_ms, width=1, estimate_ms=1, run_ms=1))
    assert journal.forget(20) == 3
    assert list(journal.submissions(["key 10", "key 20"])) == ["key 20"]
    assert [note.at_ms for note in journal.history(1)] == [20]
    assert journal.experience().count == 1
    assert len(list(journal.inputs())) == 2
    assert len(journal.channel("grid").unacknowledged) == 2
    with journal.step() as step:
        step.submission("key 10", 5, 30, None)
    assert journal.submissions(["key 10"])["key 10"].job_id == 5


def test_any_thread_may_flush_and_ask(open_journal: Open) -> None:
    """While one thread makes steps others flush and ask; all steps are there in the end, once."""
    journal = open_journal(batch=0)
    made = threading.Event()
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            while not made.is_set():
                journal.flush()
                assert len(journal.history(1)) >= 0
        except BaseException as error:  # the main thread tells of it
            failures.append(error)

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(2000):
        with journal.step() as step:
            step.input(number, ())
            step.note(1, number, "waits")
    made.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert journal.flush() == 2000
    assert [note.at_ms for note in journal.history(1)] == list(range(2000))
    assert [entry.now_ms for entry in journal.inputs()] == list(range(2000))
