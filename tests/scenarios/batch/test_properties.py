"""Properties of every schedule, for the compiled loop and for a SiteCore."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.site.messages import CloseReservation, JobFinished, JobSubmitted, OpenReservation, StartJob
from gridweave.site.scheduler.core import SiteCore
from reference.model import Job
from reference.ordering import ORDERS
from support.builders import Case, cases, planning_options, queue_options, reservation_lists, to_workload
from support.stepping import site_job, site_policy, step

EXAMPLES = settings(max_examples=120, deadline=None)
AGING = st.sampled_from([1.0, 3.0, float("inf")])
OPTIONS = st.builds(
    lambda options, aging_ms: options | {"aging_ms": aging_ms}, st.one_of(queue_options(), planning_options()), AGING
)
SLACKS = st.sampled_from([0.0, 0.5, 1.0, 2.5])


def simulated(case: Case, options: dict[str, Any]) -> SimulationResult:
    """Return the result of the compiled loop."""
    return simulate(to_workload(case.jobs), case.nodes, site_policy(options))


def steps(core: SiteCore, jobs: list[Job]) -> Iterator[tuple[int, set[int]]]:
    """Drive a core through a workload; yield each time and the jobs started then."""
    length = {job.id: job.length for job in jobs}
    arriving = sorted(jobs, key=lambda job: (job.submit, job.id), reverse=True)
    ends: dict[int, int] = {}
    while arriving or ends:
        now = min([*ends.values(), *(job.submit for job in arriving[-1:])])
        finished = [job_id for job_id, end in ends.items() if end == now]
        for job_id in finished:
            del ends[job_id]
        events: list[JobFinished | JobSubmitted] = [JobFinished(job_id) for job_id in finished]
        while arriving and arriving[-1].submit == now:
            events.append(JobSubmitted(site_job(arriving.pop())))
        started = {command.job_id for command in core.handle(now, *events) if isinstance(command, StartJob)}
        ends |= {job_id: now + length[job_id] for job_id in started}
        yield now, started


@EXAMPLES
@given(cases(max_jobs=30), OPTIONS)
def test_every_job_runs_once_and_no_node_is_used_twice(case: Case, options: dict[str, Any]) -> None:
    result = simulated(case, options)
    assert result.ran.all()
    assert (result.start_ms >= result.workload.submit_ms).all()
    assert (result.end_ms - result.start_ms == result.workload.run_ms).all()
    for instant in result.start_ms:
        runs = (result.start_ms <= instant) & (instant < result.end_ms)
        assert result.workload.width[runs].sum() <= case.nodes


@EXAMPLES
@given(cases(max_jobs=30))
def test_fcfs_without_backfilling_starts_in_order(case: Case) -> None:
    result = simulated(case, {"discipline": "queue", "order": "fcfs", "backfill": "none"})
    assert (np.diff(result.start_ms) >= 0).all()


@EXAMPLES
@given(cases(max_jobs=25), st.sampled_from(["first-fit", "best-fit"]))
def test_the_head_of_easy_starts_when_promised(case: Case, choice: str) -> None:
    """No promise to the waiting head is later than an earlier one, and the head starts by all of them."""
    core = SiteCore(case.nodes, site_policy({"discipline": "queue", "backfill": "easy", "choice": choice}))
    shown: dict[int, int] = {}
    for now, started in steps(core, case.jobs):
        assert all(now <= shown.get(job_id, now) for job_id in started)
        for place, (job, promise_ms) in enumerate(core.waiting()):
            explained_ms = core.explain(now, job.job_id).start_ms
            if place > 0:
                assert promise_ms is explained_ms is None
                continue
            assert explained_ms is not None
            assert now < explained_ms <= shown.get(job.job_id, explained_ms)
            assert promise_ms is None or promise_ms >= explained_ms
            shown[job.job_id] = explained_ms


@EXAMPLES
@given(cases(max_jobs=25), st.sampled_from(ORDERS))
def test_conservative_promises_are_kept(case: Case, order: str) -> None:
    """Every waiting job has a promise from its submission on, and it never moves later."""
    core = SiteCore(case.nodes, site_policy({"discipline": "queue", "order": order, "backfill": "conservative"}))
    promised: dict[int, int] = {}
    for now, started in steps(core, case.jobs):
        assert all(now <= promised.get(job_id, now) for job_id in started)
        for job, promise_ms in core.waiting():
            assert promise_ms is not None
            assert now < promise_ms <= promised.get(job.job_id, promise_ms)
            promised[job.job_id] = promise_ms


@EXAMPLES
@given(cases(max_jobs=25), SLACKS)
def test_slack_bounds_the_delay_of_the_head(case: Case, slack: float) -> None:
    """A head starts no later than the slack fraction of its estimate after any promise."""
    core = SiteCore(case.nodes, site_policy({"discipline": "queue", "backfill": "slack", "slack": slack}))
    latest: dict[int, int] = {}
    for now, started in steps(core, case.jobs):
        assert all(now <= latest.get(job_id, now) for job_id in started)
        for head, _ in list(core.waiting())[:1]:
            shown_ms = core.explain(now, head.job_id).start_ms
            assert shown_ms is not None
            bound_ms = shown_ms + int(slack * head.estimate_ms)
            latest[head.job_id] = min(bound_ms, latest.get(head.job_id, bound_ms))


@EXAMPLES
@given(cases(max_jobs=25), queue_options(backfills=("none", "easy")))
def test_a_head_that_fits_does_not_wait(case: Case, options: dict[str, Any]) -> None:
    """The order of the queue does not matter."""
    core = SiteCore(case.nodes, site_policy(options | {"aging_ms": 3.0}))
    for _ in steps(core, case.jobs):
        for head, _ in list(core.waiting())[:1]:
            assert head.width > core.free


@EXAMPLES
@given(cases(max_jobs=25, tick=2), OPTIONS, SLACKS, st.integers(2, 10**6))
def test_scaling_all_times_scales_the_schedule(case: Case, options: dict[str, Any], slack: float, factor: int) -> None:
    # Half of an even estimate is whole, so no slack is rounded.
    want = simulated(case, options | {"slack": slack}).start_ms * factor
    scaled = [
        replace(job, submit=job.submit * factor, estimate=job.estimate * factor, run=job.run * factor)
        for job in case.jobs
    ]
    got = simulated(
        Case(case.nodes, scaled), options | {"slack": slack, "aging_ms": options["aging_ms"] * factor}
    ).start_ms
    assert got.tolist() == want.tolist()


@EXAMPLES
@given(cases(max_jobs=25), OPTIONS, st.integers(1, 10**9))
def test_shifting_all_submissions_shifts_the_schedule(case: Case, options: dict[str, Any], by_ms: int) -> None:
    later = [replace(job, submit=job.submit + by_ms) for job in case.jobs]
    want = simulated(case, options).start_ms + by_ms
    assert simulated(Case(case.nodes, later), options).start_ms.tolist() == want.tolist()


@EXAMPLES
@given(cases(max_jobs=25), OPTIONS, st.data())
def test_a_job_after_all_others_does_not_change_them(case: Case, options: dict[str, Any], data: st.DataObject) -> None:
    before = simulated(case, options)
    submit = int(before.end_ms.max()) + data.draw(st.integers(0, 5))
    width = data.draw(st.integers(1, case.nodes))
    last = Job(0, submit, width, estimate=5, run=3, priority=5, weight=7.0)
    after = simulated(Case(case.nodes, [*case.jobs, last]), options)
    assert after.start_ms.tolist() == [*before.start_ms.tolist(), submit]


@EXAMPLES
@given(st.data())
def test_accepted_reservations_open_and_close_on_time(data: st.DataObject) -> None:
    case = data.draw(cases(max_jobs=25))
    requests = {request.id: request for request in data.draw(reservation_lists(case, max_size=6))}
    policy = site_policy(data.draw(planning_options()) | {"aging_ms": 3.0})
    did = step(SiteCore(case.nodes, policy), case.jobs, reservations=requests.values())
    accepted = sorted(request_id for request_id, (is_accepted, _) in did.answers.items() if is_accepted)
    opened = {
        command.reservation_id: (now, sum(stop - start for start, stop in command.nodes))
        for now, command in did.commands
        if isinstance(command, OpenReservation)
    }
    closed = {command.reservation_id: now for now, command in did.commands if isinstance(command, CloseReservation)}
    assert sorted(did.answers) == sorted(requests)
    assert opened == {rid: (requests[rid].start, requests[rid].width) for rid in accepted}
    assert closed == {rid: requests[rid].start + requests[rid].length for rid in accepted}
