"""What is read of the histories that jobs of a live grid write down."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridweave.scenarios.world.history import ViolationError
from support.checks import check_stories, read_stories


def written(folder: Path, *lines: str) -> Path:
    """Return a file with the lines of ranks at the site `north`: what, job, attempt, rank, size and time."""
    file = folder / "story"
    for what, job, attempt, *rest in map(str.split, lines):
        with file.open("a") as history:
            history.write(" ".join([what, job, attempt, "north", *rest]) + "\n")
    return file


def test_an_attempt_is_whole_if_all_ranks_came_to_their_end(tmp_path: Path) -> None:
    """A job whose only attempt is not whole was lost; one with two whole attempts was run twice."""
    file = written(
        tmp_path,
        "begin 1 1 0 2 10", "begin 1 1 1 2 10", "end 1 1 0 2 20",
        "begin 2 1 0 1 30", "end 2 1 0 1 40", "begin 2 2 0 1 50", "end 2 2 0 1 60",
    )  # fmt: skip
    stories = read_stories(file)
    assert [stories.whole_attempts(job) for job in (1, 2, 3)] == [[], [1, 2], []]
    with pytest.raises(ViolationError, match="job 1 finished, and attempts"):
        check_stories(file, {1: "finished"}, {"north": 2})
    with pytest.raises(ViolationError, match="job 2 finished, and attempts"):
        check_stories(file, {2: "finished"}, {"north": 2})


def test_a_rank_that_begins_twice_in_an_attempt_is_a_violation(tmp_path: Path) -> None:
    """Each attempt starts each rank once."""
    with pytest.raises(ViolationError, match="rank 0 of job 1 began twice in attempt 1"):
        read_stories(written(tmp_path, "begin 1 1 0 1 10", "begin 1 1 0 1 20"))


@pytest.mark.parametrize(
    "first",
    [
        ["begin 1 1 0 1 10", "end 1 1 0 1 21"],
        ["begin 1 1 0 1 21"],
        ["begin 1 1 0 2 10", "end 1 1 0 2 21", "begin 1 1 1 2 10"],
    ],
)
def test_an_attempt_that_begins_before_the_last_one_is_over_is_a_violation(tmp_path: Path, first: list[str]) -> None:
    """An attempt lasts until its last rank is known to have run; one that was killed may have no end."""
    size = first[0].split()[4]
    with pytest.raises(ViolationError, match="job 1: attempt 2 began 1 ms before 1 was over"):
        check_stories(written(tmp_path, *first, f"begin 1 2 0 {size} 20"), {1: "cancelled"}, {"north": 4})


def test_an_attempt_may_begin_when_the_last_one_is_over(tmp_path: Path) -> None:
    lines = ["begin 1 1 0 1 10", "end 1 1 0 1 20", "begin 1 2 0 1 20"]
    check_stories(written(tmp_path, *lines), {1: "finished"}, {"north": 1})
