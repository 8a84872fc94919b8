"""With kinds of nodes, the compiled loop, the slow reference and SiteCore give the same schedule, job by job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import TracePath
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.policy import PLACEMENTS, SitePolicy
from gridweave.site.resources.chunks import NodeKind
from reference.counted import CountedQueue, Site, simulate_counted
from reference.levels import Levels
from reference.ordering import ORDERS
from support.builders import cancelling, random_jobs, to_workload
from support.counted import CountedCase, counted_cases, placements, starts_of

RULES = [
    {"backfill": "none"},
    {"backfill": "easy"},
    {"backfill": "easy", "choice": "best-fit"},
    *({"backfill": "slack", "slack": slack} for slack in (0.0, 0.5, 2.0)),
    {"backfill": "slack", "slack": 0.5, "choice": "best-fit"},
]

patching = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(map(str, rule.values())))
@patching
@given(data=st.data())
def test_batch_core_and_reference_agree(
    monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any], data: st.DataObject
) -> None:
    case = data.draw(counted_cases())
    placement, order = data.draw(st.sampled_from(PLACEMENTS)), data.draw(st.sampled_from(ORDERS))
    want = simulate_counted(case.jobs, CountedQueue(Site(case.nodes, case.asks, placement), **rule), order=order)
    policy = SitePolicy(order=order, placement=placement, **rule)
    result = simulate(case.workload, case.kinds, policy)
    assert not result.refused
    assert starts_of(result) == want.start
    stepped, placed = placements(case.workload, case.kinds, policy, monkeypatch)
    assert starts_of(stepped) == want.start
    assert sorted(placed) == sorted(want.placed)


@given(counted_cases(), st.sampled_from(RULES), st.integers(0, 2**32))
def test_cancelled_jobs_leave_the_queue(case: CountedCase, rule: dict[str, Any], seed: int) -> None:
    workload = cancelling(np.random.default_rng(seed), case.workload)
    result = simulate(workload, case.kinds, SitePolicy(order="sjf", **rule))
    stepped = simulate(workload, case.kinds, SitePolicy(order="sjf", **rule), driver="core", check=True)
    assert starts_of(result) == starts_of(stepped)
    at_ms = np.asarray(workload.columns["cancel_ms"])
    cancels = [(int(at_ms[row]), int(workload.job_id[row])) for row in np.flatnonzero(at_ms >= 0)]
    queue = CountedQueue(Site(case.nodes, case.asks, "best-fit"), **rule)
    assert starts_of(result) == simulate_counted(case.jobs, queue, order="sjf", cancellations=cancels).start


@patching
@given(case=counted_cases(), rule=st.sampled_from(RULES), placement=st.sampled_from(PLACEMENTS))
def test_no_node_is_ever_overbooked(
    monkeypatch: pytest.MonkeyPatch, case: CountedCase, rule: dict[str, Any], placement: str
) -> None:
    policy = SitePolicy(placement=placement, **rule)
    result, placed = placements(case.workload, case.kinds, policy, monkeypatch)
    site = Site(case.nodes, case.asks, placement)
    jobs, ends = {job.id: job for job in case.jobs}, dict(zip(result.workload.job_id, result.end_ms, strict=True))
    for now_ms, _, _ in placed:
        free = site.idle()
        for start_ms, job_id, chunks in placed:
            if start_ms <= now_ms < ends[job_id]:
                per_unit = case.asks[job_id].per_node or 1
                units = {node: count // per_unit for node, count in chunks.items()}
                free = site.take(free, jobs[job_id], units)
        assert min(amount for amounts in free.values() for amount in amounts.values()) >= 0


@given(counted_cases(), st.sampled_from(PLACEMENTS))
def test_easy_never_delays_the_head_past_its_first_shadow_time(case: CountedCase, placement: str) -> None:
    queue = CountedQueue(Site(case.nodes, case.asks, placement), backfill="easy")
    shadows = simulate_counted(case.jobs, queue).shadows
    starts = starts_of(simulate(case.workload, case.kinds, SitePolicy(placement=placement)))
    for head, shown in shadows.items():
        assert starts[head] <= shown[0]


def whole_nodes_agree(workload: Workload, nodes: int, policy: SitePolicy) -> None:
    kind = NodeKind(name="node", count=nodes, cores=8, gpus=2)
    plain, counted = simulate(workload, nodes, policy), simulate(workload, [kind], policy)
    assert counted.start_ms.tolist() == plain.start_ms.tolist()
    assert [job_id for job_id, _ in counted.refused] == [job_id for job_id, _ in plain.refused]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(map(str, rule.values())))
def test_whole_nodes_of_one_kind_give_the_schedule_of_a_number_of_nodes(rule: dict[str, Any]) -> None:
    rng = np.random.default_rng(RULES.index(rule))
    for order in ORDERS:
        nodes = int(rng.integers(1, 40))
        jobs = random_jobs(rng, 120, nodes, load=float(rng.uniform(0.8, 1.6)))
        whole_nodes_agree(to_workload(jobs), nodes, SitePolicy(order=order, **rule))


def test_whole_nodes_of_one_kind_give_a_real_traces_schedule(trace_path: TracePath) -> None:
    workload, _ = load_workload(trace_path("CTC-SP2-1996-3.1-cln"), nodes=430)
    workload = workload.take(np.arange(3_000))
    for backfill in ("easy", "slack"):
        whole_nodes_agree(workload, 430, SitePolicy(backfill=backfill))


LEVELS = (
    Level(name="high", priority=2, evicts=("medium", "low")),
    Level(name="medium", priority=1, evicts=("low",)),
    Level(name="low", priority=0),
)


@given(
    counted_cases(max_jobs=25),
    st.sampled_from(RULES),
    st.sampled_from(PLACEMENTS),
    st.booleans(),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([0, 3]),
)
def test_levels_evict_like_the_reference(
    case: CountedCase, rule: dict[str, Any], placement: str, keeps_work: bool, raise_after: int | None, gain: int
) -> None:
    evicts = Levels([2, 1, 0], {(0, 1), (0, 2), (1, 2)}, keeps_work, raise_after, gain)
    queue = CountedQueue(Site(case.nodes, case.asks, placement), levels=evicts, **rule)
    want = simulate_counted(case.jobs, queue, order="sjf")
    policy = LevelsPolicy(
        levels=LEVELS,
        under=SitePolicy(order="sjf", placement=placement, **rule),
        evicted="checkpoint" if keeps_work else "restart",
        raise_after=raise_after,
        least_gain_ms=gain,
    )
    result = simulate(case.workload, case.kinds, policy)
    assert starts_of(result) == want.start
    assert result.own_metrics["evictions"] == len(want.evictions)
    stepped = simulate(case.workload, case.kinds, policy, driver="core", check=True)
    assert starts_of(stepped) == want.start
