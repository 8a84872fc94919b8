"""Jobs that are over, and the numbers of what happened to all jobs: kept in the journal, and found there again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridweave.errors import InputError
from gridweave.site.job import ArrayPlace, JobRecord, JobRequest, Program
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.reader import JournalReader
from gridweave.site.journal.records import NumberedNote
from gridweave.site.launch import Used
from gridweave.site.messages import Event
from gridweave.site.query_messages import JobQuery


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Return an empty journal."""
    with Journal(tmp_path / "site.journal", event_type=Event, batch=0) as opened:
        yield opened


def over(job_id: int, outcome: str = "finished", *, site: str = "north", **more: Any) -> JobRecord:
    """Return what is known of a job that is over."""
    request = JobRequest(program=Program(argv=("true",)), limit_ms=1000, **more)
    return JobRecord(
        job_id=job_id,
        request=request,
        state="ended" if outcome else "refused",
        outcome=outcome,
        submit_ms=job_id,
        start_ms=job_id + 1,
        end_ms=job_id + 2,
        attempt=1,
        places=((site, 2), ("west", 1)),
        exit_codes=((0, 3, None),),
        used=Used(cpu_s=1.5),
        machines=("north/m0",),
    )


def record(journal: Journal, *records: JobRecord) -> None:
    """Record that jobs are over."""
    with journal.step() as step:
        for each in records:
            step.ended(each)


def found(journal: JournalReader, **query: Any) -> list[int]:
    """Return the numbers of the jobs that are found."""
    return [each.job_id for each in journal.find_ended(JobQuery(**query))]


def test_what_is_known_of_a_job_comes_back_whole(journal: Journal, tmp_path: Path) -> None:
    """By its number, in the order in which it is asked for, also by a reader, and after more than a page of others."""
    record(journal, *(over(number, user="anna") for number in range(1, 2501)))
    assert journal.ended([7, 99_999, 2]) == {7: over(7, user="anna"), 2: over(2, user="anna")}
    assert len(journal.ended(range(1, 2501))) == 2500
    with JournalReader(tmp_path / "site.journal") as reader:
        assert reader.ended([2500]) == {2500: over(2500, user="anna")}


def test_a_reader_of_a_journal_keeps_its_writer_waiting_for_nothing(journal: Journal) -> None:
    """It has a connection of its own, sees what is durable and nothing else, and is closed with the journal."""
    reader = journal.reader()
    assert reader.ended_numbers() == range(0)
    record(journal, over(3), over(7))
    assert reader.ended([3, 7]) == {}, "what is not durable is not shown"
    with reader.reading():
        journal.flush()
    assert reader.ended([3, 7]) == {3: over(3), 7: over(7)}
    assert reader.ended_numbers() == range(3, 8)
    assert [each.job_id for each in reader.find_ended(JobQuery(), 4)] == [7]
    journal.close()
    assert reader._store._connection is None


def test_jobs_are_found_by_what_is_asked_for(journal: Journal) -> None:
    """Each filter narrows; the newest come first, below a number, so many at most."""
    record(
        journal,
        over(1, user="anna", name="a"),
        over(2, "failed", user="anna", array=ArrayPlace(name="sweep", index=1)),
        over(3, "", user="bert", name="a", site="no_th"),
        over(4, user="anna", name="a"),
    )
    assert found(journal) == [4, 3, 2, 1]
    assert found(journal, below=4, limit=2) == [3, 2]
    assert found(journal, user="anna", name="a") == [4, 1]
    assert found(journal, array="sweep") == [2]
    assert found(journal, site="north") == [4, 2, 1]
    assert found(journal, site="no_th") == [3]
    assert found(journal, site="nort") == found(journal, site="n%") == []
    assert found(journal, state=("refused",)) == [3]
    assert found(journal, state=("ended",), outcome=("failed", "limit")) == [2]


def test_a_number_that_is_given_again_takes_the_place_of_the_last(journal: Journal) -> None:
    """A core that was begun again counts from 1 again; that must not hold up the journal."""
    record(journal, over(1, user="anna"))
    journal.flush()
    record(journal, over(1, "failed", user="bert"))
    record(journal, over(1, "limit", user="carl"))
    journal.flush()
    assert journal.ended([1]) == {1: over(1, "limit", user="carl")}


def test_names_that_no_database_takes_are_kept_without_what_it_does_not(journal: Journal) -> None:
    """A NUL in a name is left out where it is looked for, on both sides."""
    record(journal, over(1, user="an\0na", name="n\0"))
    assert found(journal, user="an\0na", name="n") == [1]
    assert journal.ended([1])[1].request.user == "an\0na"


def test_a_job_without_an_end_is_refused_at_once(journal: Journal) -> None:
    """A step that could never be written would hold up all that come after it."""
    running = over(1)
    running.end_ms = None
    with pytest.raises(InputError, match="end_ms"):
        record(journal, running)
    assert journal.ended([1]) == {}


def test_what_happened_is_numbered_through_over_restarts(tmp_path: Path) -> None:
    """Numbers go up by one from step to step, and are not given again, even if all stories were forgotten."""
    kept: list[NumberedNote] = []
    for life in range(3):
        with Journal(tmp_path / "site.journal", event_type=Event, batch=0) as journal:
            assert journal.last_note == len(kept)
            for number in range(2):
                with journal.step() as step:
                    step.note(number, life, "waits", "for room")
                    assert step.last_note == len(kept) + 1
                    kept.append(NumberedNote(step.last_note, number, life, "waits", "for room"))
            assert journal.notes(after=0) == kept
            assert journal.notes(after=1, limit=2) == kept[1:3]
    with Journal(tmp_path / "site.journal", event_type=Event, batch=0) as journal:
        journal.forget(1_000)
        assert journal.notes(after=0) == kept[-1:]
    with Journal(tmp_path / "site.journal", event_type=Event, batch=0) as journal:
        assert journal.last_note == len(kept)


def test_a_step_that_fails_uses_no_number(journal: Journal) -> None:
    """What was noted in a step that is not there is not missed."""

    def fail() -> None:
        with journal.step() as step:
            step.note(1, 0, "submitted")
            step.note(2**70, 0, "submitted")

    with pytest.raises(InputError):
        fail()
    with journal.step() as step:
        step.note(1, 0, "submitted")
        assert step.last_note == 1


def test_old_jobs_can_be_forgotten(journal: Journal) -> None:
    """With the stories and all else from before an instant."""
    record(journal, over(1), over(50))
    assert journal.forget(50) == 1
    assert found(journal) == [50]
