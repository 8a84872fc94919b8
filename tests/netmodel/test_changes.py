"""Links that slow down, fail and recover."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import OptionError, ScenarioError
from gridweave.netmodel.changes import CableChange, Timetable, all_changes, random_changes, written_changes
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths
from gridweave.netmodel.tables import ChangeTable, FailureTable, NetTable, Problems
from gridweave.netmodel.topology import Topology


def ring() -> Topology:
    """Return four sites in a ring; the path from a to b via c and d is longer."""
    graph = nx.cycle_graph(["a", "b", "c", "d"])
    nx.set_edge_attributes(graph, 5.0, "latency_ms")
    return topology_of_graph(graph, bandwidth_bps=1e9)


def timetable(*tables: ChangeTable) -> Timetable:
    """Return the timetable of valid listed changes."""
    problems = Problems("changes")
    topology = ring()
    changes = written_changes(tables, topology, problems)
    problems.raise_if_any()
    return Timetable.of(topology, changes)


def link(at_ms: int, action: str, *ends: str, factor: float = 1.0) -> ChangeTable:
    """Return a change of a single cable."""
    return ChangeTable(at_ms=at_ms, action=action, link=list(ends), factor=factor)


def model_in(table: Timetable, period: int, routes: str = "latency") -> NetworkModel:
    """Return the network in a period."""
    return NetworkModel(table.topology, find_paths(table.topology, routes)).with_cables(table.factors[period])


def test_paths_avoid_a_failed_cable_until_it_recovers() -> None:
    table = timetable(link(100, "fail", "b", "a"), link(300, "restore", "a", "b"))
    assert table.instants_ms.tolist() == [100, 300]
    assert [table.period_of(now_ms) for now_ms in (0, 99, 100, 299, 300, 10**9)] == [0, 0, 1, 1, 2, 2]
    latencies = [model_in(table, period).paths.latency_ms[[0, 1], [1, 0]].tolist() for period in range(3)]
    assert latencies == [[5, 5], [15, 15], [5, 5]]
    assert not model_in(table, 1).topology.up[ring().cable == 0].any()


def test_equal_states_of_the_links_share_one_network_object() -> None:
    table = timetable(link(1, "fail", "a", "b"), link(2, "restore", "a", "b"), link(3, "fail", "a", "b"))
    model = NetworkModel(table.topology, find_paths(table.topology))
    models = [model.with_cables(factors) for factors in table.factors]
    assert models[0] is models[2] is model
    assert models[1] is models[3] is not model


def test_a_slow_link_keeps_part_of_its_bandwidth() -> None:
    """It is slow until it is restored, and the widest route avoids it."""
    table = timetable(link(10, "slow", "a", "b", factor=0.25), link(20, "restore", "a", "b"))
    assert [model_in(table, period).paths.bandwidth_bps[0, 1] for period in range(3)] == [1e9, 2.5e8, 1e9]
    assert model_in(table, 1, "bandwidth").paths.latency_ms[0, 1] == 15


def test_a_partition_has_no_paths_across_until_it_heals() -> None:
    table = timetable(
        ChangeTable(at_ms=5, action="partition", nodes=["a", "b"]),
        ChangeTable(at_ms=9, action="heal", nodes=["b", "a"]),
    )
    paths = model_in(table, 1).paths
    inf = math.inf
    assert paths.latency_ms.tolist() == [[0, 5, inf, inf], [5, 0, inf, inf], [inf, inf, 0, 5], [inf, inf, 5, 0]]
    assert paths.bandwidth_bps[0].tolist() == [inf, 1e9, 0, 0]
    assert paths.between(0, 2) == []
    assert np.isfinite(model_in(table, 2).paths.latency_ms).all()


def test_the_worst_of_several_causes_applies() -> None:
    """A cable in a partition stays down when the cable itself is restored."""
    table = timetable(
        link(1, "fail", "b", "c"),
        ChangeTable(at_ms=2, action="partition", nodes=["a", "b"]),
        link(3, "restore", "b", "c"),
        ChangeTable(at_ms=4, action="heal", nodes=["a", "b"]),
    )
    (cable,) = table.topology.cables_between("b", "c")
    assert table.factors[:, cable].tolist() == [1, 0, 0, 0, 1]


def test_simultaneous_changes_form_one_period() -> None:
    """They apply in listed order."""
    table = timetable(link(7, "fail", "a", "b"), link(7, "fail", "c", "d"), link(7, "restore", "a", "b"))
    assert table.instants_ms.tolist() == [7]
    assert table.factors.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert model_in(table, 1).paths.latency_ms[0, 1] == 5
    assert model_in(table, 1).paths.latency_ms[2, 3] == 15


def test_a_network_without_changes_has_one_period() -> None:
    table = timetable()
    assert table.period_of(10**12) == 0
    assert table.factors.tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (link(1, "explode", "a", "b"), "changes.action: 'explode' is not known; one of slow, fail, restore"),
        (link(-1, "fail", "a", "b"), "changes.at_ms: is -1"),
        (link(10**23, "fail", "a", "b"), f"changes.at_ms: is {10**23}; milliseconds, at most 100,000,000,000,000"),
        (link(1, "fail", "a"), "changes.link: is needed to fail: give its two ends"),
        (link(1, "fail", "a", "c"), "changes: graph: there is no link between a and c"),
        (link(1, "fail", "a", "z"), "changes: graph: there is no node 'z'; there are a, b, c, d"),
        (link(1, "fail", "a", "b", "second"), "changes: graph: there is no link between a and b named 'second'"),
        (link(1, "slow", "a", "b"), "changes.factor: is 1; expected the fraction"),
        (link(1, "slow", "a", "b", factor=math.nan), "changes.factor: is nan"),
        (ChangeTable(at_ms=1, action="partition"), "changes.nodes: are needed to partition"),
        (ChangeTable(at_ms=1, action="partition", nodes=list("abcd")), "have no link to any other node"),
        (
            ChangeTable(at_ms=1, action="heal", nodes=["a"]),
            "heals the partition of a, which does not exist at that time",
        ),
        (ChangeTable(at_ms=1, action="fail", nodes=["a"]), "changes.link: is needed to fail"),
    ],
)
def test_invalid_changes_are_refused(change: ChangeTable, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        timetable(change)
    assert message in str(caught.value)


def test_all_invalid_changes_are_reported_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        timetable(link(1, "fail", "a"), link(2, "fail", "a", "b"), link(3, "slow", "a", "b", factor=2.0))
    assert len(caught.value.problems) == 2


def test_random_failures_depend_on_the_seed_and_always_end() -> None:
    drawn = [
        random_changes(ring(), mean_up_ms=1000, mean_down_ms=100, until_ms=50_000, rng=np.random.default_rng(3))
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    for cable in range(4):
        factors = [change.factor for change in drawn[0] if change.cables == (cable,)]
        assert factors == [0.0, 1.0] * (len(factors) // 2)
        assert len(factors) > 20
        times = [change.at_ms for change in drawn[0] if change.cables == (cable,)]
        assert times == sorted(set(times))
    assert Timetable.of(ring(), drawn[0]).factors[-1].tolist() == [1, 1, 1, 1]


def test_random_failures_have_the_requested_means() -> None:
    until_ms = 4_000_000
    rng = np.random.default_rng(1)
    changes = random_changes(ring(), mean_up_ms=900, mean_down_ms=100, until_ms=until_ms, rng=rng, cables=[2])
    down_ms = sum(later.at_ms - change.at_ms for change, later in zip(changes[::2], changes[1::2], strict=True))
    assert {change.cables for change in changes} == {(2,)}
    assert down_ms / until_ms == pytest.approx(0.1, rel=0.1)


def test_listed_changes_and_random_failures_are_merged_by_time() -> None:
    problems = Problems("net")
    changes = [link(700, "fail", "a", "b"), link(500, "slow", "c", "d", factor=0.5)]
    table = NetTable(changes=changes, failures=FailureTable(mean_up_ms=100, mean_down_ms=10, factor=0.5))
    both = all_changes(table, ring(), until_ms=2000, rng=np.random.default_rng(1), report=problems)
    assert [change.at_ms for change in both] == sorted(change.at_ms for change in both)
    assert {change.cause for change in both} == {"link", "chance"}
    assert {change.factor for change in both if change.cause == "chance"} == {0.5, 1.0}
    rng = np.random.default_rng(1)
    written = all_changes(NetTable(changes=changes), ring(), until_ms=2000, rng=rng, report=problems)
    assert [change.at_ms for change in written] == [500, 700]
    assert rng.random() == np.random.default_rng(1).random()
    assert not problems.problems


@pytest.mark.parametrize(
    ("values", "option"),
    [({"mean_up_ms": 0.0}, "mean_up_ms"), ({"mean_down_ms": math.inf}, "mean_down_ms"), ({"factor": 1.0}, "factor")],
)
def test_invalid_failure_parameters_are_refused(values: dict[str, float], option: str) -> None:
    settings = {"mean_up_ms": 10.0, "mean_down_ms": 10.0, **values}
    with pytest.raises(OptionError, match=f"^{option}: is"):
        random_changes(ring(), until_ms=10, rng=np.random.default_rng(1), **settings)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), max_size=15))
def test_a_later_change_replaces_an_earlier_one_with_the_same_cause(drawn: list[tuple[int, int, float]]) -> None:
    changes = [CableChange(at_ms, "link", (cable,), factor) for at_ms, cable, factor in drawn]
    table = Timetable.of(ring(), changes)
    ordered = sorted(changes, key=lambda change: change.at_ms)
    for now_ms in range(22):
        for cable in range(4):
            said = [change.factor for change in ordered if change.cables == (cable,) and change.at_ms <= now_ms]
            assert table.factors[table.period_of(now_ms), cable] == (said[-1] if said else 1.0)
