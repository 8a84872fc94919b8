"""Split jobs and transfers on shared links."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.netmodel.changes import CableChange, Timetable
from gridweave.netmodel.communication import PATTERNS, Communication
from gridweave.netmodel.kernels.contention import (
    add_job_flows,
    all_slowdowns,
    drop_flows,
    share_links,
)
from gridweave.netmodel.kernels.overhead import split_factor
from gridweave.netmodel.kernels.state import Flows, new_filling, new_flows
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths

HALF = Communication(fraction=0.5, message_bytes=1e6, pattern="all-to-all")


def line(bandwidth_bps: float = 1e9, exchange: str = "synchronous") -> NetworkModel:
    """Return four sites in a row."""
    graph = nx.path_graph(["a", "b", "c", "d"])
    nx.set_edge_attributes(graph, 5.0, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=bandwidth_bps)
    return NetworkModel(topology, find_paths(topology), exchange)


class Traffic:
    """Running jobs on a network, as a driver manages them."""

    def __init__(self, model: NetworkModel) -> None:
        self.model = model
        self.flows: Flows = new_flows(500)
        self.filling = new_filling(len(model.topology.source), 500)

    def start(self, owner: int, some: Communication, nodes: dict[str, int]) -> float:
        """Add a job and share the links; return its factor on idle links."""
        parts = self.model.parts_of(nodes)
        record = some.records([sum(nodes.values())])[0]
        factor = split_factor(self.model.arrays, record, parts, len(parts))
        add_job_flows(self.model.arrays, self.flows, np.int64(owner), record, parts, len(parts), factor)
        share_links(self.model.arrays, self.flows, self.filling)
        return float(factor)

    def end(self, owner: int) -> None:
        """Remove a job and share the links."""
        drop_flows(self.flows, np.int64(owner))
        share_links(self.model.arrays, self.flows, self.filling)

    def slowdown(self, owner: int) -> float:
        """Return a job's slowdown relative to idle links."""
        slowdown = np.ones(64)
        all_slowdowns(self.flows, slowdown)
        return float(slowdown[owner])


def test_the_demand_of_a_ring_by_hand() -> None:
    """A job sends its messages once per step, which lasts as long as on one site times the factor."""
    traffic = Traffic(line())
    some = Communication(fraction=0.25, message_bytes=1000, pattern="ring")
    factor = traffic.start(0, some, {"a": 8, "b": 8})
    step_ms = (0.01 + 2 * 8000 / 1e7) / 0.25 * factor
    assert traffic.flows.n_flows[0] == 2
    assert traffic.flows.demand[:2] == pytest.approx([2 * 8000 / step_ms] * 2, rel=1e-12)
    assert traffic.slowdown(0) == 1.0


def test_two_demanding_jobs_share_a_link_equally() -> None:
    """When one ends, the other recovers its rate."""
    traffic = Traffic(line())
    some = Communication(fraction=1.0, message_bytes=1e9, pattern="all-to-all")
    for owner in (3, 7):
        traffic.start(owner, some, {"a": 4, "b": 4})
    assert traffic.slowdown(3) == traffic.slowdown(7) == pytest.approx(2.0, rel=1e-3)
    slowdown = np.full(8, np.nan)
    all_slowdowns(traffic.flows, slowdown)
    assert slowdown[[3, 7]].tolist() == [traffic.slowdown(3), traffic.slowdown(7)]
    assert np.isnan(slowdown[:3]).all()
    traffic.end(3)
    assert traffic.slowdown(7) == 1.0


def test_jobs_on_different_links_do_not_slow_each_other() -> None:
    traffic = Traffic(line())
    traffic.start(0, HALF, {"a": 4, "b": 4})
    traffic.start(1, HALF, {"c": 4, "d": 4})
    assert traffic.slowdown(0) == traffic.slowdown(1) == 1.0
    traffic.start(2, Communication(fraction=1.0, message_bytes=1e9, pattern="all-to-all"), {"a": 8, "d": 8})
    assert min(traffic.slowdown(0), traffic.slowdown(2)) > 1.0


def test_a_job_on_one_site_or_without_messages_has_no_flows() -> None:
    traffic = Traffic(line())
    traffic.start(0, HALF, {"a": 8})
    traffic.start(1, Communication(), {"a": 8, "b": 8})
    traffic.start(2, Communication(fraction=0.3, message_bytes=0, pattern="ring"), {"a": 8, "b": 8})
    assert traffic.flows.n_flows[0] == 0
    assert traffic.slowdown(0) == 1.0


def test_a_failed_link_pauses_a_job_until_it_recovers() -> None:
    traffic = Traffic(line())
    traffic.start(0, HALF, {"a": 4, "b": 4})
    capacity = traffic.model.arrays.capacity.copy()
    traffic.model.arrays.capacity[:] = 0.0
    share_links(traffic.model.arrays, traffic.flows, traffic.filling)
    assert traffic.slowdown(0) == math.inf
    traffic.model.arrays.capacity[:] = capacity
    share_links(traffic.model.arrays, traffic.flows, traffic.filling)
    assert traffic.slowdown(0) == 1.0


def test_a_partition_pauses_only_jobs_across_it() -> None:
    traffic = Traffic(line())
    traffic.start(0, HALF, {"a": 4, "d": 4})
    traffic.start(1, HALF, {"a": 4, "b": 4})
    whole = traffic.model
    table = Timetable.of(whole.topology, [CableChange(1, "link", tuple(whole.topology.cables_between("b", "c")), 0.0)])
    parted = whole.with_cables(table.factors[1])
    share_links(parted.arrays, traffic.flows, traffic.filling)
    assert traffic.slowdown(0) == math.inf
    assert traffic.slowdown(1) == 1.0
    share_links(whole.arrays, traffic.flows, traffic.filling)
    assert traffic.slowdown(0) < math.inf


jobs = st.lists(
    st.tuples(
        st.sampled_from(sorted(PATTERNS)),
        st.floats(0, 1),
        st.floats(0, 1e7),
        st.dictionaries(st.sampled_from("abcd"), st.integers(1, 8), min_size=1),
    ),
    max_size=12,
)


@given(jobs, st.randoms(use_true_random=False))
def test_ended_jobs_leave_no_trace(started: list[tuple[str, float, float, dict[str, int]]], random: object) -> None:
    """After any starts and ends, running jobs are slowed as if the others had never existed."""
    traffic = Traffic(line(1e8))
    specs = [(Communication(fraction=f, message_bytes=m, pattern=p), nodes) for p, f, m, nodes in started]
    for owner, (some, nodes) in enumerate(specs):
        traffic.start(owner, some, nodes)
    ended = [owner for owner in range(len(specs)) if random.random() < 0.5]  # type: ignore[attr-defined]
    for owner in ended:
        traffic.end(owner)
    fresh = Traffic(line(1e8))
    left = [owner for owner in range(len(specs)) if owner not in ended]
    for owner in left:
        fresh.start(owner, *specs[owner])
    for owner in left:
        assert traffic.slowdown(owner) == pytest.approx(fresh.slowdown(owner), rel=1e-12)
        assert traffic.slowdown(owner) >= 1.0


@given(jobs, st.sampled_from(["synchronous", "overlapped"]))
def test_a_single_job_is_never_slowed(started: list[tuple[str, float, float, dict[str, int]]], exchange: str) -> None:
    """Its factor already includes its own traffic."""
    for pattern, fraction, message_bytes, nodes in started:
        traffic = Traffic(line(1e8, exchange))
        traffic.start(0, Communication(fraction=fraction, message_bytes=message_bytes, pattern=pattern), nodes)
        assert traffic.slowdown(0) == pytest.approx(1.0, rel=1e-9)
