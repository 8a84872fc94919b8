"""SiteCore, stepped event by event with all kinds of events, against the slow reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.site.scheduler.core import SiteCore
from reference.simulation import simulate as simulate_reference
from support.builders import (
    HOUR,
    cancellation_lists,
    cases,
    limit_lists,
    planning_options,
    queue_options,
    random_jobs,
    reservation_lists,
    week_beginning,
)
from support.stepping import is_expressible, site_limit, site_policy, step


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_queue_with_cancellations(data: st.DataObject) -> None:
    """A queue site starts every job when the reference does, though jobs are cancelled while they wait or run."""
    case = data.draw(cases(too_wide=2))
    options = data.draw(queue_options()) | {"aging_ms": 3.0}
    cancellations = data.draw(cancellation_lists(case.jobs))
    want = simulate_reference(case.jobs, case.nodes, cancellations=cancellations, **options)
    got = step(SiteCore(case.nodes, site_policy(options)), case.jobs, cancellations=cancellations)
    assert got.start == want.start


@pytest.mark.parametrize("order", ["fcfs", "sjf", "wfit"])
@pytest.mark.parametrize("choice", ["first-fit", "best-fit"])
def test_long_queue_with_cancellations(choice: str, order: str) -> None:
    """Where hundreds wait and dozens of them are cancelled, the index over the queue hides no job that may start."""
    rng = np.random.default_rng([len(choice), *order.encode()])
    jobs = random_jobs(rng, 450, 12, load=1e9)
    instants = rng.integers(0, 600, 60).tolist()
    cancellations = list(zip(instants, rng.choice([job.id for job in jobs], 60).tolist(), strict=True))
    options = {"discipline": "queue", "backfill": "easy", "choice": choice, "order": order}
    want = simulate_reference(jobs, 12, cancellations=cancellations, **options)
    assert step(SiteCore(12, site_policy(options)), jobs, cancellations=cancellations).start == want.start


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_planning_with_reservations(data: st.DataObject) -> None:
    """A planning site answers every request for a reservation as the reference does, and starts every job with it."""
    case = data.draw(cases(too_wide=1))
    options = data.draw(planning_options()) | {"aging_ms": 3.0}
    requests = data.draw(reservation_lists(case))
    cancellations = data.draw(cancellation_lists(case.jobs))
    want = simulate_reference(case.jobs, case.nodes, reservations=requests, cancellations=cancellations, **options)
    core = SiteCore(case.nodes, site_policy(options))
    got = step(core, case.jobs, cancellations=cancellations, reservations=requests)
    assert got.start == want.start
    for request_id, (_, answer) in want.reservations.items():
        assert got.answers[request_id] == (answer.accepted, None if answer.accepted else answer.start)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_planning_with_limits(data: st.DataObject) -> None:
    """A planning site keeps windows and caps as the reference does, and refuses the same jobs."""
    case = data.draw(cases(tick=HOUR, too_wide=1))
    options = data.draw(planning_options()) | {"aging_ms": 3.0 * HOUR}
    limits = [limit for limit in data.draw(limit_lists(case.nodes)) if is_expressible(limit)]
    offset = data.draw(st.integers(0, 7 * 24 - 1)) * HOUR
    want = simulate_reference(case.jobs, case.nodes, limits=limits, week_offset_ms=offset, **options)
    policy = site_policy(options | {"limits": tuple(site_limit(limit) for limit in limits)})
    got = step(SiteCore(case.nodes, policy, week=week_beginning(offset)), case.jobs)
    assert got.start == want.start


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_arrays_grow(data: st.DataObject) -> None:
    """A site that more jobs wait on than it had room for at first moves into larger arrays and loses none."""
    case = data.draw(cases(max_jobs=20, max_nodes=3))
    jobs = [type(job)(job.id + 100 * k, 0, job.width, job.estimate, job.run) for k in range(5) for job in case.jobs]
    options = {"discipline": data.draw(st.sampled_from(["queue", "planning"])), "order": "sjf", "backfill": "easy"}
    want = simulate_reference(jobs, case.nodes, **options)
    assert step(SiteCore(case.nodes, site_policy(options)), jobs).start == want.start
