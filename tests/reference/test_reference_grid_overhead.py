"""Schedules of the slow reference of the grid queue where the overhead is not a constant, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from reference.grid import Fragments, GridOutcome, simulate_grid
from reference.grid_validation import validate_grid
from reference.model import Job


def job(job_id: int, width: int, estimate: int, *, at: int = 0, run: int | None = None) -> Job:
    """Return a job; it runs for its estimate unless told otherwise."""
    return Job(job_id, at, width, estimate, estimate if run is None else run)


def run(jobs: list[Job], *nodes: int, **options: Any) -> GridOutcome:
    """Simulate, check what must always hold, and return the outcome."""
    outcome = simulate_grid(jobs, nodes, **options)
    assert validate_grid(outcome, jobs, nodes, **options) == []
    return outcome


@pytest.mark.parametrize(
    ("overhead", "sensitivity", "ends"),
    [
        ((0.1, 0.2), 1.0, {1: 100, 2: 110, 3: 120, 4: 120}),
        ((0.5, 0.2), 0.5, {1: 100, 2: 125, 3: 110, 4: 110}),
        (0.3, 2.0, {1: 100, 2: 160, 3: 160, 4: 160}),
        ((0.1, 0.2, 0.35), 0.0, {1: 100, 2: 100, 3: 100, 4: 100}),
        ((0.1, 0.2, 0.35), 1.0, {1: 100, 2: 110, 3: 120, 4: 135}),
    ],
)
def test_a_split_takes_longer_by_its_fragments_and_the_job(
    overhead: float | tuple[float, ...], sensitivity: float, ends: dict[int, int]
) -> None:
    """The overhead for 2, 3, ... fragments, the last one for more, times what the job makes of it."""
    for parts, end in ends.items():
        outcome = run(
            [job(1, parts, 100)], 1, 1, 1, 1, mode="multi-site", overhead=overhead, sensitivity={1: sensitivity}
        )
        assert (len(outcome.fragments[1]), outcome.end[1]) == (parts, end)


@pytest.mark.parametrize(("overhead", "start"), [((0.2, 9.0), 0), ((2.0, 9.0), 8)])
def test_an_adaptive_split_is_weighed_in_the_fragments_that_it_has(overhead: tuple[float, float], start: int) -> None:
    """A job of 10 on 4 and 2 nodes ends at 12, before a single site at 18; not if two fragments take 30."""
    outcome = run([job(1, 1, 8), job(2, 6, 10)], 6, 4, mode="adaptive", selection="biggest-free", overhead=overhead)
    assert (outcome.start[2], len(outcome.fragments[2])) == (start, 2 if start == 0 else 1)


@pytest.mark.parametrize(
    ("overhead", "fragments"),
    [((0.0, 0.5), ((0, 3), (1, 1))), ((1.0, 0.0), ((1, 2), (0, 1), (2, 1))), ((0.2, 0.1), ((1, 2), (0, 1), (2, 1)))],
)
def test_a_split_that_is_not_in_time_for_the_head_is_made_of_what_can_be_spared(
    overhead: tuple[float, float], fragments: Fragments
) -> None:
    """The head waits for 5 of 6 nodes of site 0 at 10; job 3 of 4 finds free (3, 2, 1, 1), beside it (1, 2, 1, 1)."""
    jobs = [job(1, 3, 10), job(2, 5, 10), job(3, 4, 10)]
    options: dict[str, Any] = {"selection": "biggest-free", "max_fragments": [(4, 4), (5, 1)]}
    outcome = run(jobs, 6, 2, 1, 1, mode="multi-site", overhead=overhead, **options)
    assert (outcome.start[3], outcome.fragments[3]) == (0, fragments)
