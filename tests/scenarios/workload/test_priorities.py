"""Priorities assigned to jobs, by a column or by shares."""

from __future__ import annotations

import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.scenarios.workload.priorities import with_priorities
from gridweave.scenarios.workload.table import Workload


def workload_of(jobs: int) -> Workload:
    """Return jobs of queues 0 to 6 in turn, all of user 1."""
    each = np.arange(1, jobs + 1)
    queues = np.arange(jobs) % 7
    return Workload(each, each, each, each, each, columns={"job_class": queues, "user": np.ones(jobs, np.int64)})


def assigned(model: str, jobs: int = 70) -> list[int]:
    """Return the priorities that a model assigns."""
    priorities = with_priorities(workload_of(jobs), model, np.random.default_rng(5)).columns["priority"]
    return [int(each) for each in priorities]


def test_jobs_get_the_priority_of_their_queue() -> None:
    """Queues that are not listed get 0. Other columns work the same way, and existing columns are kept."""
    assert assigned("job_class:3=2, 1=-4", 7) == [0, -4, 0, 2, 0, 0, 0]
    assert assigned("user:1=9", 2) == [9, 9]
    kept = with_priorities(workload_of(3), "user:1=9", np.random.default_rng(0)).columns
    assert kept["job_class"].tolist() == [0, 1, 2]
    assert "priority" not in with_priorities(workload_of(3), "keep", np.random.default_rng(0)).columns


def test_priorities_are_drawn_by_their_shares() -> None:
    """The shares need not sum to 1, and the same seed gives the same priorities."""
    drawn = assigned("shares:2=1,1=3,0=4", 8_000)
    assert drawn == assigned("shares:2=1,1=3,0=4", 8_000)
    assert [drawn.count(level) / 8_000 for level in (2, 1, 0)] == pytest.approx([1 / 8, 3 / 8, 1 / 2], abs=0.02)
    assert set(assigned("shares:4=1,1=0")) == {4}
    assert assigned("shares:2=1e308,1=1e308", 8_000).count(2) / 8_000 == pytest.approx(1 / 2, abs=0.02)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("high", "'high' is not known; one of keep, COLUMN:VALUE=PRIORITY"),
        ("weight:1=2", "'weight:1=2' is not known; one of keep"),
        ("job_class:", "is not written as VALUE=PRIORITY"),
        ("job_class:1", "is not written as VALUE=PRIORITY"),
        ("job_class:1=2,1=3", "lists 1 twice"),
        ("job_class:a=2", "'a' is not a job_class; a whole number"),
        ("job_class:1=b", "'b' is not a priority; a whole number"),
        ("job_class:1=9999999999", "9999999999 is not a priority; from -1000000000 to 1000000000"),
        ("job_class:8=1", "no job of .* has one of the listed values of job_class; its values are 0, 1, 2, 3, 4, 5, 6"),
        ("group:1=2", "has no column group"),
        ("shares:1=-1", "has a share of -1 for 1; a number from 0 up"),
        ("shares:1=x", "'x' is not a share"),
        ("shares:1=0,2=0", "has no share above 0"),
    ],
)
def test_invalid_models_are_refused(model: str, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        assigned(model)
