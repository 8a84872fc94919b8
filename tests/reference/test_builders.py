"""The builders of random workloads, and `validate`, which must not be blind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from reference.model import Answer, Job, Limit, Outcome, Reservation, Window
from reference.simulation import simulate
from reference.validation import validate
from support.builders import Case, cases, random_jobs, to_workload


def test_random_jobs_are_the_same_for_the_same_seed() -> None:
    """The generator passed in is the only source of randomness."""
    jobs, again, other = (random_jobs(np.random.default_rng(seed), 40, 16) for seed in (1, 1, 2))
    assert jobs == again != other


def test_random_jobs_bring_about_the_load_asked_for() -> None:
    """Work divided by nodes and by the time of the last submission is near the load."""
    jobs = random_jobs(np.random.default_rng(3), 5000, 32, load=0.7, tick=1000)
    work = sum(job.width * job.length for job in jobs)
    assert work / (32 * jobs[-1].submit) == pytest.approx(0.7, rel=0.1)


def test_random_jobs_run_for_their_estimate_when_estimates_are_perfect() -> None:
    """Otherwise some end early and some are killed."""
    assert all(job.run == job.estimate for job in random_jobs(np.random.default_rng(4), 200, 8, perfect=True))
    jobs = random_jobs(np.random.default_rng(4), 200, 8)
    assert {(job.run > job.estimate) - (job.run < job.estimate) for job in jobs} == {-1, 0, 1}


def test_drawn_workloads_reach_their_bounds() -> None:
    """Among two hundred are the largest and the smallest, with jobs that end early, in time and are killed."""
    met: set[tuple[str, object]] = set()

    @settings(max_examples=200, database=None, derandomize=True)
    @given(cases(max_jobs=6, max_nodes=3, too_wide=1))
    def draw(case: Case) -> None:
        met.update(
            {
                ("nodes", case.nodes),
                ("jobs", len(case.jobs)),
                ("in order", [job.id for job in case.jobs] == sorted(job.id for job in case.jobs)),
            }
        )
        for job in case.jobs:
            met.update({("id", job.id), ("width", job.width - case.nodes), ("estimate", job.estimate)})
            met.add(("ends", (job.run > job.estimate) - (job.run < job.estimate)))

    draw()
    want = {"nodes": range(1, 4), "jobs": range(1, 7), "id": range(1, 7), "width": range(-2, 2), "ends": (-1, 0, 1)}
    want |= {"estimate": range(1, 13), "in order": (False, True)}
    assert met == {(name, value) for name, values in want.items() for value in values}


@settings(deadline=None)
@given(cases())
def test_a_job_table_holds_the_same_jobs(case: Case) -> None:
    """Row by row, in order of submit time and id, with run times cut at the estimate."""
    table = to_workload(case.jobs, nodes=case.nodes)
    by_id = {job.id: job for job in case.jobs}
    assert sorted(by_id) == sorted(table.job_id.tolist())
    for row, job_id in enumerate(table.job_id.tolist()):
        job = by_id[job_id]
        numbers = [int(column[row]) for column in (table.submit_ms, table.width, table.estimate_ms, table.run_ms)]
        assert numbers == [job.submit, job.width, job.estimate, job.length]
        assert bool(table.overran[row]) == (job.run > job.estimate)
        assert table.columns["weight"][row] == job.weight


JOBS = [Job(1, 0, 2, 10, 10), Job(2, 0, 3, 5, 4), Job(3, 5, 9, 5, 5)]


def _drop_start(outcome: Outcome) -> None:
    del outcome.start[2], outcome.end[2]


def _start_before_submission(outcome: Outcome) -> None:
    del outcome.refused[3]
    outcome.start[3], outcome.end[3] = 4, 9


def _end_late(outcome: Outcome) -> None:
    outcome.end[2] += 1


def _overlap(outcome: Outcome) -> None:
    outcome.start[2], outcome.end[2] = 9, 13


def _start_a_refused_job(outcome: Outcome) -> None:
    outcome.start[3], outcome.end[3] = 14, 19


def _invent_a_job(outcome: Outcome) -> None:
    outcome.start[4] = 0


def _cancel_after_the_end(outcome: Outcome) -> None:
    outcome.cancelled[2] = 20


def _accept_a_reservation(outcome: Outcome) -> None:
    outcome.reservations["R"] = Reservation("R", 0, 12, 5, 2), Answer(accepted=True, start=12)


@pytest.mark.parametrize(
    "spoil",
    [
        _drop_start,
        _start_before_submission,
        _end_late,
        _overlap,
        _start_a_refused_job,
        _invent_a_job,
        _cancel_after_the_end,
        _accept_a_reservation,
    ],
)
def test_validate_sees_a_spoilt_outcome(spoil: Callable[[Outcome], None]) -> None:
    """A right outcome has no problem; after each of these changes it has one."""
    outcome = simulate(JOBS, 4)
    assert validate(outcome, JOBS, 4) == []
    spoil(outcome)
    assert validate(outcome, JOBS, 4) != []


@pytest.mark.parametrize(
    "limit",
    [
        Limit(max_nodes=2),
        Limit(max_jobs=1),
        Limit(wider_than=1, window=Window(frozenset(range(7)), 0, 1)),
    ],
)
def test_validate_sees_a_broken_limit(limit: Limit) -> None:
    """Two jobs start at instant zero, and each of these limits forbids one or both of them."""
    jobs = [dataclasses.replace(job, width=2) for job in JOBS[:2]]
    outcome = simulate(jobs, 4)
    assert validate(outcome, jobs, 4) == []
    assert validate(outcome, jobs, 4, limits=[limit]) != []
    assert validate(outcome, jobs, 4, limits=[dataclasses.replace(limit, wider_than=2)]) == []
