"""Conservative backfilling and planning with kinds of nodes: all drivers and the slow reference agree, job by job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import TracePath
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.table import Workload
from gridweave.site.array_tasks import indexes_of
from gridweave.site.messages import CloseReservation, OpenReservation, StartJob
from gridweave.site.policy import PLACEMENTS, SitePolicy
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.scheduler.core import SiteCore
from reference.counted import Site
from reference.model import Limit
from reference.node_planning import PlannedQueue, PlannedSite, Planner, simulate_planned
from reference.ordering import ORDERS
from support.builders import (
    HOUR,
    Case,
    cancellation_lists,
    limit_lists,
    random_jobs,
    reservation_lists,
    to_workload,
    week_beginning,
)
from support.counted import CountedCase, counted_cases, placements, starts_of
from support.stepping import Stepped, is_expressible, site_limit, step

RULES = [
    {"discipline": "queue", "backfill": "conservative"},
    {"discipline": "planning", "backfill": "easy"},
    {"discipline": "planning", "backfill": "none"},
]

orders = st.sampled_from(ORDERS)
placement_names = st.sampled_from(PLACEMENTS)
patching = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(rule.values()))


@st.composite
def mixed_cases(draw: st.DrawFn) -> CountedCase:
    """Draw a case in which all, half or a quarter of the jobs may ask for chunks, so that the plan often changes."""
    case, share = draw(counted_cases()), draw(st.sampled_from([1, 2, 4]))
    chunks = {job.id: case.chunks[job.id] if job.id % share == 0 else msgspec.UNSET for job in case.jobs}
    widths = [job.width if chunks[job.id] else min(job.width, len(case.nodes)) for job in case.jobs]
    jobs = [replace(job, width=width) for job, width in zip(case.jobs, widths, strict=True)]
    return case._replace(jobs=jobs, chunks=chunks)


def planner_of(case: CountedCase, rule: dict[str, Any], placement: str, *limits: Limit, offset: int = 0) -> Planner:
    site = Site(case.nodes, case.asks, placement)
    if rule["discipline"] == "queue":
        return PlannedQueue(site)
    return PlannedSite(site, rule["backfill"], limits, offset)


def placed_by(stepped: Stepped) -> list[tuple[int, int, dict[int, int]]]:
    """Return (time, job, number of chunks by node) of each start, in order."""
    starts = [(now, command) for now, command in stepped.commands if isinstance(command, StartJob)]
    return [(now, start.job_id, dict(Counter(indexes_of(start.nodes)))) for now, start in starts]


@every_rule
@patching
@given(case=mixed_cases(), order=orders, placement=placement_names)
def test_batch_core_and_reference_agree(
    monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any], case: CountedCase, order: str, placement: str
) -> None:
    want = simulate_planned(case.jobs, planner_of(case, rule, placement), order=order)
    policy = SitePolicy(order=order, placement=placement, **rule)
    assert starts_of(simulate(case.workload, case.kinds, policy)) == want.start
    stepped, placed = placements(case.workload, case.kinds, policy, monkeypatch)
    assert starts_of(stepped) == want.start
    assert placed == want.placed


@every_rule
@settings(deadline=None)
@given(data=st.data(), order=orders, placement=placement_names)
def test_core_and_reference_agree_with_cancellations(
    rule: dict[str, Any], data: st.DataObject, order: str, placement: str
) -> None:
    case = data.draw(mixed_cases())
    cancellations = data.draw(cancellation_lists(case.jobs))
    planner = planner_of(case, rule, placement)
    want = simulate_planned(case.jobs, planner, order=order, cancellations=cancellations)
    core = SiteCore(len(case.nodes), SitePolicy(order=order, placement=placement, kinds=case.kinds, **rule))
    got = step(core, case.jobs, cancellations=cancellations, chunks=case.chunks)
    assert placed_by(got) == want.placed


@settings(deadline=None)
@given(data=st.data(), order=orders, backfill=st.sampled_from(["easy", "none"]))
def test_reservations_get_whole_nodes_and_keep_them(data: st.DataObject, order: str, backfill: str) -> None:
    case = data.draw(mixed_cases())
    requests = data.draw(reservation_lists(Case(len(case.nodes), case.jobs)))
    cancellations = data.draw(cancellation_lists(case.jobs))
    planner = planner_of(case, {"discipline": "planning", "backfill": backfill}, "best-fit")
    options = {"order": order, "reservations": requests, "cancellations": cancellations}
    want = simulate_planned(case.jobs, planner, **options)
    policy = SitePolicy(discipline="planning", backfill=backfill, order=order, kinds=case.kinds)
    got = step(
        SiteCore(len(case.nodes), policy),
        case.jobs,
        cancellations=cancellations,
        reservations=requests,
        chunks=case.chunks,
    )
    for request_id, (_, answer) in want.reservations.items():
        assert got.answers[request_id] == (answer.accepted, None if answer.accepted else answer.start)
    assert placed_by(got) == want.placed
    assert_reserved_nodes_are_unused(got, want.end)


def assert_reserved_nodes_are_unused(stepped: Stepped, ends: Mapping[int, int]) -> None:
    """Assert that no job and no other reservation uses the nodes of a reservation while it is open."""
    busy = [(now, ends[job_id], {*units}) for now, job_id, units in placed_by(stepped)]
    closed = {c.reservation_id: now for now, c in stepped.commands if isinstance(c, CloseReservation)}
    for now, command in stepped.commands:
        if isinstance(command, OpenReservation):
            nodes, end = {*indexes_of(command.nodes)}, closed[command.reservation_id]
            assert not any(start < end and stop > now and nodes & taken for start, stop, taken in busy)
            busy.append((now, end, nodes))


@settings(deadline=None)
@given(data=st.data(), order=orders, backfill=st.sampled_from(["easy", "none"]))
def test_limits_hold(data: st.DataObject, order: str, backfill: str) -> None:
    case = in_hours(data.draw(mixed_cases()))
    limits = [limit for limit in data.draw(limit_lists(len(case.nodes))) if is_expressible(limit)]
    offset = data.draw(st.integers(0, 7 * 24 - 1)) * HOUR
    rule = {"discipline": "planning", "backfill": backfill}
    planner = planner_of(case, rule, "best-fit", *limits, offset=offset)
    want = simulate_planned(case.jobs, planner, order=order)
    policy = SitePolicy(order=order, kinds=case.kinds, limits=tuple(map(site_limit, limits)), **rule)
    core = SiteCore(len(case.nodes), policy, week=week_beginning(offset))
    assert placed_by(step(core, case.jobs, chunks=case.chunks)) == want.placed


def in_hours(case: CountedCase) -> CountedCase:
    """Return the same jobs with hours in the place of milliseconds."""
    times = [{name: getattr(job, name) * HOUR for name in ("submit", "estimate", "run")} for job in case.jobs]
    return case._replace(jobs=[replace(job, **by) for job, by in zip(case.jobs, times, strict=True)])


@settings(deadline=None)
@given(data=st.data(), order=orders, placement=placement_names)
def test_a_promised_start_is_never_delayed(data: st.DataObject, order: str, placement: str) -> None:
    case = data.draw(mixed_cases())
    promised: dict[int, int] = {}
    core = SiteCore(
        len(case.nodes), SitePolicy(backfill="conservative", order=order, placement=placement, kinds=case.kinds)
    )

    def check(now: int) -> None:
        for job, start_ms in core.waiting():
            assert start_ms is not None
            assert start_ms <= promised.get(job.job_id, start_ms)
            promised[job.job_id] = start_ms

    cancellations = data.draw(cancellation_lists(case.jobs))
    stepped = step(core, case.jobs, cancellations=cancellations, chunks=case.chunks, after=check)
    assert all(start <= promised.get(job_id, start) for job_id, start in stepped.start.items())


def whole_nodes_agree(workload: Workload, nodes: int, policy: SitePolicy, kind: NodeKind) -> None:
    plain, counted = simulate(workload, nodes, policy), simulate(workload, [kind], policy)
    assert counted.start_ms.tolist() == plain.start_ms.tolist()


@every_rule
def test_whole_nodes_of_one_kind_give_the_schedule_of_a_number_of_nodes(rule: dict[str, Any]) -> None:
    rng = np.random.default_rng(RULES.index(rule))
    for order in ORDERS:
        nodes = int(rng.integers(1, 40))
        jobs = random_jobs(rng, 120, nodes, load=float(rng.uniform(0.8, 1.6)))
        kind = NodeKind(name="node", count=nodes, cores=8, gpus=2)
        whole_nodes_agree(to_workload(jobs), nodes, SitePolicy(order=order, **rule), kind)


@every_rule
def test_whole_nodes_of_one_kind_give_a_real_traces_schedule(trace_path: TracePath, rule: dict[str, Any]) -> None:
    workload, _ = load_workload(trace_path("CTC-SP2-1996-3.1-cln"), nodes=430)
    kind = NodeKind(name="node", count=430, cores=16)
    whole_nodes_agree(workload.take(np.arange(3_000)), 430, SitePolicy(**rule), kind)
