"""The sifting of the grid's queue, against a plain look at every job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.grid.control.queue import GridQueue
from gridweave.grid.kernels.candidates import (
    MOST,
    STRETCH,
    drop_started,
    limits_now,
    next_candidate,
    note_wants,
    withdraw,
)
from gridweave.grid.kernels.state import GridState, empty_grid
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Job
from gridweave.site.kernels.state import GONE, HEAD, NEVER_MS, enqueue


def queue_of(rng: np.random.Generator, jobs: int) -> GridState:
    """Return a grid on which so many jobs wait, in an order that is not that of their slots."""
    state = empty_grid(np.array([64, 64]), slots=max(jobs, 1))
    state.jobs["job_id"] = np.arange(len(state.jobs))
    for name, values in (("key", 5), ("width", 50), ("estimate_ms", 50)):
        state.jobs[name] = rng.integers(1, values, len(state.jobs))
    for slot in range(jobs):
        enqueue(state, np.int64(slot))
    return state


def assert_noted(state: GridState) -> None:
    """Hold what is noted of the queue, up to the first new job, to the jobs that wait."""
    counters = state.counters[0]
    jobs = state.jobs[state.waiting[: min(int(counters["n_noted"]), int(counters["first_new"]))]]
    assert state.queue_width[: len(jobs)].tolist() == jobs["width"].tolist()
    assert state.queue_ms[: len(jobs)].tolist() == jobs["estimate_ms"].tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((0, 1, STRETCH, STRETCH + 1, 5 * STRETCH + 3)))
def test_candidates_are_all_that_might_start(seed: int, jobs: int) -> None:
    """From any place on, the next candidate and the widths passed over are those of a look at each job in turn."""
    rng = np.random.default_rng(seed)
    state = queue_of(rng, jobs)
    note_wants(state)
    wants = [(int(job["width"]), int(job["estimate_ms"])) for job in state.jobs[state.waiting[:jobs]]]
    for _ in range(20):
        widest, fitting, in_time_ms, spare, spare_in_all = limits = tuple(rng.integers(0, 60, 5).astype(np.int32))
        first = int(rng.integers(0, jobs + 1))
        might = [
            place
            for place, (width, estimate_ms) in enumerate(wants)
            if place >= first
            and width <= widest
            and (estimate_ms <= in_time_ms or width <= (max(spare, spare_in_all) if width > fitting else spare))
        ]
        place, narrowest = next_candidate(state, limits, np.int64(first))
        assert place == min(might, default=jobs)
        passed, others = range(first, place), [wants[k][0] for k in range(first, jobs) if k not in might]
        assert min((wants[k][0] for k in passed), default=MOST) >= narrowest >= min(others, default=MOST)


@pytest.mark.parametrize("in_time_ms", [2**31 - 2, 2**31 - 1, 2**40])
def test_a_job_longer_than_can_be_noted_is_no_shorter(in_time_ms: int) -> None:
    """An estimate of 25 days and more is in time if the longest that can be noted is, so that none is passed over."""
    state = queue_of(np.random.default_rng(1), 3)
    state.jobs["estimate_ms"], state.jobs["width"] = 2**31 + 5, 10
    note_wants(state)
    state.counters["shadow_ms"] = in_time_ms
    state.extra[:] = 0
    limits = limits_now(state, GridPolicy().codes(), np.int64(0))
    place, narrowest = next_candidate(state, tuple(map(np.int32, limits)), HEAD)
    assert (place, narrowest) == ((3, 10) if in_time_ms < MOST else (0, MOST))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_what_jobs_want_stays_in_step_with_the_queue(seed: int) -> None:
    """Whatever is submitted, withdrawn and started, in any order of the queue, what is noted is that of its jobs."""
    rng = np.random.default_rng(seed)
    state = queue_of(rng, 2 * STRETCH)
    later: list[int] = []
    for _ in range(60):
        counters = state.counters[0]
        waiting = int(counters["n_waiting"])
        if rng.random() < 0.3 and waiting:
            place = int(rng.integers(0, waiting))
            later.append(int(state.waiting[place]))
            withdraw(state, np.int64(place))
        elif rng.random() < 0.5 and later:
            slot = later.pop(int(rng.integers(0, len(later))))
            state.jobs[slot]["width"] = rng.integers(1, 50)
            enqueue(state, np.int64(slot))
        elif waiting:
            note_wants(state)
            assert counters["n_noted"] == waiting
            gone = np.sort(rng.choice(waiting, min(waiting, int(rng.integers(1, 4))), replace=False))
            left = np.delete(state.waiting[:waiting], gone).tolist()
            later += state.waiting[gone].tolist()
            state.waiting[gone] = GONE
            counters["n_started"], counters["first_new"] = len(gone), NEVER_MS
            counters["first_gap"], counters["last_gap"] = gone[0], gone[-1]
            drop_started(state)
            assert state.waiting[: int(counters["n_waiting"])].tolist() == left
        assert_noted(state)


@pytest.mark.parametrize("place", [HEAD, np.int64(1)])
def test_a_withdrawn_job_is_not_noted(place: np.int64) -> None:
    """What is noted ends where a job was withdrawn, until the next pass."""
    state = queue_of(np.random.default_rng(1), 5)
    note_wants(state)
    withdraw(state, place)
    assert state.counters[0]["n_noted"] == place


@pytest.mark.parametrize("mode", ["sharing", "multi-site", "adaptive"])
def test_a_head_has_no_reservation_of_one_that_was_withdrawn(mode: str) -> None:
    """A job that takes the slot of a head that was withdrawn gets a reservation of its own: nothing may delay it."""

    def submit(queue: GridQueue, job_id: int, width: int, estimate_ms: int) -> None:
        queue.submit(0, Job(job_id=job_id, width=width, estimate_ms=estimate_ms), draw=0.0, sensitivity=1.0)

    queue = GridQueue([4], GridPolicy(mode=mode))
    submit(queue, 1, 3, 100)
    assert [placed.job.job_id for placed in queue.run_pass(0)] == [1]
    # With the narrow one the pass is made in which the head's reservation is found: it leaves one node to spare.
    submit(queue, 2, 1, 1000)
    submit(queue, 3, 3, 10)
    queue.withdraw(2)
    assert queue.run_pass(0) == []
    queue.withdraw(3)
    submit(queue, 4, 4, 10)
    assert queue.run_pass(0) == []
    submit(queue, 5, 1, 1000)
    assert queue.run_pass(0) == [], "a job was started on a node that the head is to have at 100 ms"
