"""Experience from journals: each user and class, several journals together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gridweave.errors import InputError, OptionError
from gridweave.site.journal.experience import learn, read_usage
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.reader import JournalReader
from gridweave.site.journal.records import Group, JobUsage
from gridweave.site.journal.suggest import Rule, suggest
from gridweave.site.scheduler.contract import ContractEvent


def used(number: int, user: str | int | None, job_class: str | None = None, at_ms: int | None = None) -> JobUsage:
    """Return what a job has used."""
    at_ms = 1000 * number if at_ms is None else at_ms
    return JobUsage(
        job_id=number, user=user, job_class=job_class, at_ms=at_ms, width=1, estimate_ms=9000, run_ms=100 + number
    )


def written(path: Path, jobs: Iterable[JobUsage]) -> Path:
    """Write a journal."""
    with Journal(path, event_type=ContractEvent) as journal:
        for one in jobs:
            with journal.step() as step:
                step.usage(one)
    return path


def test_usage_of_exactly_one_group_comes_back(tmp_path: Path) -> None:
    """A group without a user or class is one of its own; its newest jobs come in the order in which they ended."""
    jobs = [used(number, (None, "anna")[number % 2], (None, "render")[number // 2 % 2]) for number in range(40)]
    path = written(tmp_path / "a.journal", jobs)
    with JournalReader(path) as reader:
        for number, (user, job_class) in enumerate([(None, None), ("anna", None), (None, "render")]):
            assert reader.usage(Group(user, job_class, 0)) == jobs[number::4]
        assert reader.usage(Group("anna", "render", 0), last=2) == jobs[3::4][-2:]
        assert reader.usage(Group("nobody", None, 0)) == []
        with pytest.raises(OptionError, match="last"):
            reader.usage(Group(None, None, 0), last=0)


def test_experience_is_that_of_the_journal(tmp_path: Path) -> None:
    """What is learnt from one journal is what the journal itself says of each user and class, and the suggestion."""
    jobs = [used(number, ("anna", "bert")[number % 2], "render") for number in range(60)]
    path = written(tmp_path / "a.journal", jobs)
    rule = Rule(kill_chance=0.1)
    found = learn([path], rule)
    assert [(one.user, one.job_class) for one in found] == [("anna", "render"), ("bert", "render")]
    with JournalReader(path) as reader:
        for one in found:
            assert one.experience == reader.experience(user=one.user, job_class="render")
    assert found[0].suggestion == suggest(jobs[::2], rule)
    assert [one.user for one in learn([path], user="bert")] == ["bert"]
    assert learn([path], user="bert", job_class="render", last=7)[0].experience.count == 7


def test_journals_are_merged_by_time(tmp_path: Path) -> None:
    """Jobs of all journals stand in the order of their ends, so that the newest are the newest of all."""
    first = written(tmp_path / "a.journal", [used(number, 7) for number in (1, 4, 5)])
    other = written(tmp_path / "b.journal", [used(number, "7") for number in (2, 3, 6)] + [used(9, None)])
    merged = read_usage([first, other])
    assert list(merged) == [Group(None, None, 1), Group("7", None, 6)]
    assert [one.job_id for one in merged[Group("7", None, 6)]] == [1, 2, 3, 4, 5, 6]
    newest = read_usage([str(first), str(other)], user=7, last=2)
    assert [[one.job_id for one in jobs] for jobs in newest.values()] == [[5, 6]]


def test_a_journal_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    """The same journal by another name of its place is the same journal."""
    path = written(tmp_path / "a.journal", [used(1, "anna")])
    assert [one.experience.count for one in learn([path, f"sqlite:///{path}"])] == [1]


def test_a_journal_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    """Reading takes no lock from the writer, and sees what was flushed."""
    with Journal(tmp_path / "a.journal", event_type=ContractEvent) as journal:
        for number in range(3):
            with journal.step() as step:
                step.usage(used(number, "anna"))
            journal.flush()
            assert learn([tmp_path / "a.journal"])[0].experience.count == number + 1


def test_nobody_and_nothing(tmp_path: Path) -> None:
    """A journal of a site where no job has ended teaches nothing; a user or class that nobody has is an error."""
    assert learn([written(tmp_path / "empty.journal", [])]) == []
    path = written(tmp_path / "a.journal", [used(1, "anna", "render"), used(2, "bert"), used(3, None, "mesh")])
    with pytest.raises(OptionError, match=r"user: 'carl' has no jobs in .*a.journal; it has anna, bert"):
        learn([path], user="carl")
    with pytest.raises(OptionError, match=r"job_class: 'x' has no jobs in .*; it has mesh, render"):
        learn([path], job_class="x")
    with pytest.raises(OptionError, match=r"'mesh' has no jobs of user anna in .*; it has render$"):
        learn([path], user="anna", job_class="mesh")
    with pytest.raises(OptionError, match="it has none"):
        learn([path], user="bert", job_class="mesh")
    with pytest.raises(OptionError, match="last"):
        learn([path], last=0)
    with pytest.raises(OptionError, match="journals"):
        learn([])
    with pytest.raises(InputError, match="this journal does not exist"):
        learn([path, tmp_path / "absent.journal"])
    assert not (tmp_path / "absent.journal").exists()
