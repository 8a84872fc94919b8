"""Nodes that fail, drain and recover in the compiled loop: against the slow reference, and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridweave.errors import InputError, OptionError, TraceError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.traces.outages import read_node_events
from gridweave.scenarios.workload.site_events import KINDS, NodeEvent
from gridweave.scenarios.workload.table import Workload
from gridweave.site.policy import Limit, SitePolicy
from reference import model
from reference.simulation import simulate as simulate_reference
from support.builders import cancelling, random_jobs, to_workload
from support.stepping import site_policy

POLICIES = [
    *({"discipline": "queue", "backfill": backfill} for backfill in ("none", "easy", "conservative")),
    {"discipline": "queue", "backfill": "slack", "slack": 0.5},
    {"discipline": "queue", "backfill": "easy", "choice": "best-fit"},
    *({"discipline": "planning", "backfill": backfill} for backfill in ("none", "easy")),
]
ORDERS = ["fcfs", "sjf", "wfit", "priority"]


def random_events(rng: np.random.Generator, nodes: int, until: int) -> list[NodeEvent]:
    """Return events at coarse times, mostly with all nodes back at the end."""
    events = []
    for _ in range(int(rng.integers(3, 16))):
        first = int(rng.integers(nodes))
        count = int(rng.integers(1, nodes - first + 1))
        kind = KINDS[int(rng.integers(3))]
        events.append(NodeEvent(at_ms=int(rng.integers(until + 1)), kind=kind, first_node=first, nodes=count))
    events.sort(key=lambda event: event.at_ms)
    if rng.random() < 0.9:
        events.append(NodeEvent(at_ms=until + 5, kind="up", first_node=0, nodes=nodes))
    return events


def as_reference(events: list[NodeEvent]) -> list[model.NodeEvent]:
    """Convert the events for the reference."""
    return [
        model.NodeEvent(one.at_ms, one.kind, frozenset(range(one.first_node, one.first_node + one.nodes)))
        for one in events
    ]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("options", POLICIES, ids=lambda options: " ".join(str(v) for v in options.values()))
def test_random_workloads_give_the_same_schedule(options: dict[str, Any], order: str) -> None:
    """20 workloads per policy and order, 560 in all, with lost jobs."""
    rng = np.random.default_rng([POLICIES.index(options), ORDERS.index(order)])
    options = options | {"order": order, "aging_ms": 7.0}
    lost = 0
    for _ in range(20):
        nodes = int(rng.integers(1, 16))
        jobs = random_jobs(rng, int(rng.integers(2, 40)), nodes, load=float(rng.uniform(0.5, 1.6)))
        events = random_events(rng, nodes, max(job.submit for job in jobs) + 20)
        want = simulate_reference(jobs, nodes, node_events=as_reference(events), **options)
        result = simulate(to_workload(jobs), nodes, site_policy(options), node_events=events)
        ids, ran = result.workload.job_id, result.ran
        assert dict(zip(ids[ran].tolist(), result.start_ms[ran].tolist(), strict=True)) == want.start
        assert dict(zip(ids[ran].tolist(), result.end_ms[ran].tolist(), strict=True)) == want.end
        restarts = dict(zip(ids.tolist(), result.columns["restarts"].tolist(), strict=True))
        assert {job_id: count for job_id, count in restarts.items() if count} == want.restarts
        lost += sum(want.restarts.values())
        assert [job_id for job_id, _ in result.refused] == sorted(ids[~ran].tolist())
    assert lost > 5


@pytest.mark.parametrize("options", POLICIES, ids=lambda options: " ".join(str(v) for v in options.values()))
def test_a_lost_job_can_be_cancelled_while_it_waits_again(options: dict[str, Any]) -> None:
    rng = np.random.default_rng([POLICIES.index(options), 9])
    met = 0
    for _ in range(30):
        nodes = int(rng.integers(1, 16))
        jobs = random_jobs(rng, 30, nodes, load=1.4)
        workload = cancelling(rng, to_workload(jobs))
        events = random_events(rng, nodes, max(job.submit for job in jobs) + 20)
        events.append(NodeEvent(at_ms=10**6, kind="up", first_node=0, nodes=nodes))
        result = simulate(workload, nodes, site_policy(options), node_events=events)
        times = np.asarray(workload.columns["cancel_ms"])
        cancels = np.stack((times, workload.job_id), axis=1)[result.cancelled].tolist()
        want = simulate_reference(
            jobs, nodes, cancellations=list(map(tuple, cancels)), node_events=as_reference(events), **options
        )
        ran = result.ran
        assert dict(zip(workload.job_id[ran].tolist(), result.start_ms[ran].tolist(), strict=True)) == want.start
        assert not result.refused
        met += int(result.columns["restarts"][result.cancelled].sum())
    assert met > 0


def three(**changes: Any) -> Workload:
    """Return three jobs of 100 ms, each on two of four nodes."""
    fields = {"submit_ms": [0, 0, 1], "width": [2, 2, 2], "estimate_ms": [100] * 3, "run_ms": [100] * 3} | changes
    return Workload(job_id=[1, 2, 3], **fields)


def test_a_lost_job_restarts_behind_waiting_jobs() -> None:
    """Jobs on other nodes are unaffected."""
    events = [
        NodeEvent(at_ms=50, kind="down", first_node=1),
        NodeEvent(at_ms=400, kind="up", first_node=1),
    ]
    result = simulate(three(), 4, node_events=events)
    assert result.start_ms.tolist() == [200, 0, 100]
    assert result.end_ms.tolist() == [300, 100, 200]
    assert result.columns["restarts"].tolist() == [1, 0, 0]
    assert result.own_metrics == {"restarts": 1}


def test_a_draining_node_leaves_once_its_job_has_ended() -> None:
    events = [
        NodeEvent(at_ms=50, kind="drain", first_node=0, nodes=2),
        NodeEvent(at_ms=150, kind="up", first_node=0, nodes=2),
    ]
    result = simulate(three(width=[2, 2, 4]), 4, node_events=events)
    assert result.start_ms.tolist() == [0, 0, 150]
    assert result.columns["restarts"].tolist() == [0, 0, 0]


def test_simultaneous_ends_precede_failures_submissions_and_the_pass() -> None:
    events = [
        NodeEvent(at_ms=100, kind="down", first_node=0, nodes=3),
        NodeEvent(at_ms=130, kind="up", first_node=0, nodes=3),
    ]
    result = simulate(three(submit_ms=[0, 0, 100]), 4, node_events=events)
    assert result.start_ms.tolist() == [0, 0, 130]
    assert result.columns["restarts"].tolist() == [0, 0, 0]


def test_a_job_wider_than_the_remaining_nodes_is_refused() -> None:
    result = simulate(three(width=[2, 4, 1]), 4, node_events=[NodeEvent(at_ms=0, kind="drain", first_node=3)])
    assert result.refused == ((2, "it needs 4 nodes, but too many of the 4 nodes did not return"),)
    assert result.start_ms.tolist() == [0, -1, 1]


def test_invalid_events_and_combinations_are_refused() -> None:
    down = NodeEvent(at_ms=5, kind="down", first_node=2, nodes=3)
    with pytest.raises(InputError, match="node 4 goes down at 5 ms, but the site has nodes 0 to 3"):
        simulate(three(), 4, node_events=[down])
    with pytest.raises(InputError, match="kind 'broken' is not known; one of up, drain, down"):
        NodeEvent(at_ms=5, kind="broken", first_node=0)
    limited = SitePolicy(discipline="planning", limits=(Limit(max_jobs=1),))
    for more in ({"driver": "core"}, {"policy": limited}, {"policy": "L-U1"}):
        with pytest.raises(OptionError) as caught:
            simulate(three(), nodes=8, node_events=[down], **more)
        assert caught.value.option == "node_events"


def test_node_events_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("at_ms,kind,first_node,nodes\n50,down,1,2\n400,up,1,2\n")
    assert read_node_events(path) == [
        NodeEvent(at_ms=50, kind="down", first_node=1, nodes=2),
        NodeEvent(at_ms=400, kind="up", first_node=1, nodes=2),
    ]
    for text, problem in (
        ("", "begins with ''; expected at_ms,kind,first_node,nodes"),
        ("at_ms,kind,first_node,nodes\n50,down,1\n", "line 2: has 3 values; it needs 4"),
        ("at_ms,kind,first_node,nodes\n50,down,1,none\n", "line 2: Expected `int`"),
        ("at_ms,kind,first_node,nodes\n50,up,1,1\n-1,up,1,1\n", "line 3: at_ms is -1; expected 0 to"),
        (f"at_ms,kind,first_node,nodes\n{'5' * 200_000},up,1,1\n", "2: is not a line of CSV: field larger than"),
    ):
        path.write_text(text)
        with pytest.raises(TraceError, match=problem.partition("`")[0]):
            read_node_events(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_node_events(tmp_path / "none.csv")
