"""Sites that count resources and keep a plan: saved states, copies, and quotes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typing_extensions import override

from gridweave.site.job import Job
from gridweave.site.messages import (
    AcceptReservation,
    JobFinished,
    JobSubmitted,
    OpenReservation,
    RefuseReservation,
    ReservationRequested,
    StartJob,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state, read_state
from reference.model import Reservation
from reference.ordering import ORDERS
from support.builders import Case, reservation_lists
from support.counted import CountedCase, counted_cases
from support.stepping import do, site_job, step

RULES = [
    {"discipline": "queue", "backfill": "conservative"},
    {"discipline": "planning", "backfill": "easy"},
    {"discipline": "planning", "backfill": "none"},
]

every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(rule.values()))


def core_of(case: CountedCase, **rule: Any) -> SiteCore:
    return SiteCore(len(case.nodes), SitePolicy(kinds=case.kinds, **rule))


def requests_for(case: CountedCase) -> st.SearchStrategy[list[Reservation]]:
    return reservation_lists(Case(len(case.nodes), case.jobs))


class Restoring(SiteCore):
    """A core that is replaced by one with its saved state after every step."""

    def __init__(self, nodes: int, policy: SitePolicy) -> None:
        super().__init__(nodes, policy)
        self.policy = policy

    @override
    def handle(self, now_ms: int, *events: Any) -> list[Any]:
        commands = super().handle(now_ms, *events)
        saved = dump_state(self)
        new = Restoring(self.nodes, self.policy)
        new.restore(read_state(new, saved))
        assert dump_state(new) == saved
        self.__dict__ |= new.__dict__
        return commands


@every_rule
@settings(deadline=None)
@given(data=st.data())
def test_a_restored_site_continues_with_the_same_commands(rule: dict[str, Any], data: st.DataObject) -> None:
    case = data.draw(counted_cases(max_jobs=10))
    requests = [] if rule["discipline"] == "queue" else data.draw(requests_for(case))
    want = step(core_of(case, **rule), case.jobs, chunks=case.chunks, reservations=requests)
    restoring = Restoring(len(case.nodes), SitePolicy(kinds=case.kinds, **rule))
    got = step(restoring, case.jobs, chunks=case.chunks, reservations=requests)
    assert got.commands == want.commands


@every_rule
@settings(deadline=None)
@given(case=counted_cases(max_jobs=10), order=st.sampled_from(ORDERS))
def test_questions_to_a_copy_leave_no_trace(rule: dict[str, Any], case: CountedCase, order: str) -> None:
    want = step(core_of(case, order=order, **rule), case.jobs, chunks=case.chunks)
    core = core_of(case, order=order, **rule)
    plain = case.jobs[0]

    def ask(now: int) -> None:
        copy = core.copy()
        copy.expected_run(now, site_job(replace(plain, id=98), case.chunks[plain.id]))
        copy.startable(now, 5)
        copy.handle(now, JobSubmitted(site_job(replace(plain, id=99), case.chunks[plain.id])))

    assert step(core, case.jobs, chunks=case.chunks, after=ask).commands == want.commands


@every_rule
@settings(deadline=None)
@given(case=counted_cases(max_jobs=10, perfect=True))
def test_the_last_job_starts_when_its_quote_says(rule: dict[str, Any], case: CountedCase) -> None:
    *others, last = case.jobs
    assume(others)
    last = replace(last, id=1_000, submit=max(job.submit for job in others))
    chunks = {**case.chunks, last.id: case.chunks[case.jobs[-1].id]}
    core = core_of(case, **rule)
    quotes: dict[int, int] = {}

    def ask(now: int) -> None:
        run = core.copy().expected_run(now, site_job(last, chunks[last.id]))
        assert run is not None
        quotes[now] = run.start_ms

    step(core, others, chunks=chunks, after=ask)
    starts = step(core_of(case, **rule), [*others, last], chunks=chunks).start
    assert starts[last.id] == quotes[last.submit]


@settings(deadline=None)
@given(case=counted_cases(max_jobs=10), width=st.integers(1, 6), length=st.integers(1, 12), later=st.integers(0, 10))
def test_a_reservation_is_accepted_at_the_start_that_a_refusal_names(
    case: CountedCase, width: int, length: int, later: int
) -> None:
    core = core_of(case, discipline="planning")

    def ask(now: int) -> None:
        copy = core.copy()
        answer, *_ = copy.handle(now, ReservationRequested(1, now + later, length, width))
        if isinstance(answer, RefuseReservation) and answer.earliest_start_ms is not None:
            again = copy.handle(now, ReservationRequested(2, answer.earliest_start_ms, length, width))
            assert AcceptReservation(2) in again

    step(core, case.jobs, chunks=case.chunks, after=ask)


def test_a_reservation_begins_on_its_planned_nodes_although_a_later_one_has_them_next() -> None:
    policy = SitePolicy(discipline="planning", kinds=(NodeKind(name="node", count=3),))
    core = SiteCore(3, policy)
    jobs = [Job(job_id=1, width=2, estimate_ms=1), Job(job_id=2, width=2, estimate_ms=1)]
    part = Job(job_id=3, width=3, estimate_ms=1, chunk=Chunk(cores=1))
    requests = [ReservationRequested(0, 1, 1, 1), ReservationRequested(1, 0, 1, 1)]
    commands = do(core, 0, *(JobSubmitted(job) for job in (*jobs, part)), *requests)
    assert OpenReservation(1, ((2, 3),)) in commands
    assert StartJob(1, ((0, 2),)) in commands


def test_a_planning_site_chooses_nodes_again_when_a_job_ends_as_estimated() -> None:
    """Job 3 starts behind job 2 in the order, but before it: then its node is the best fit for job 2."""
    kinds = (NodeKind(name="one", count=1), NodeKind(name="four", count=2, cores=4))
    core = SiteCore(3, SitePolicy(discipline="planning", order="laf", kinds=kinds))
    core.handle(0, *map(JobSubmitted, (Job(job_id=1, width=2, estimate_ms=10), Job(job_id=4, width=1, estimate_ms=9))))
    chunks = {2: Chunk(per_node=1), 3: Chunk(cores=3)}
    jobs = [
        Job(job_id=2, width=2, estimate_ms=8, chunk=chunks[2]),
        Job(job_id=3, width=1, estimate_ms=9, chunk=chunks[3]),
    ]
    core.handle(1, *map(JobSubmitted, jobs))
    starts = core.handle(9, JobFinished(4))
    assert [command for command in starts if isinstance(command, StartJob)] == [StartJob(3, ((2, 3),))]
    starts = core.handle(10, JobFinished(1))
    assert [command for command in starts if isinstance(command, StartJob)] == [StartJob(2, ((0, 1), (2, 3)))]
