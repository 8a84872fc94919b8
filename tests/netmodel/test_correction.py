"""Models corrected by measurements, only where they differ."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError
from gridweave.netmodel.communication import Communication
from gridweave.netmodel.correction import Measurements, PairMeasured, correct, measured_model
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths

RING = Communication(fraction=0.25, message_bytes=1e6, pattern="ring")
MESH = Communication(fraction=0.5, message_bytes=1e4, pattern="all-to-all")


def line(latency_ms: float = 10.0, bandwidth_bps: float = 1e9, *, sites: str = "abc", **more: float) -> NetworkModel:
    """Return sites in a row, with equal links between neighbours."""
    graph = nx.path_graph(list(sites))
    for key, value in {"latency_ms": latency_ms, "bandwidth_bps": bandwidth_bps, **more}.items():
        nx.set_edge_attributes(graph, value, key)
    topology = topology_of_graph(graph)
    return NetworkModel(topology, find_paths(topology))


def measured(
    origin: str,
    target: str,
    round_trip_ms: float | None = None,
    bandwidth_bps: float | None = None,
    least_ms: float | None = None,
) -> PairMeasured:
    """Return measurements of a pair, by default without jitter."""
    return PairMeasured(
        origin=origin,
        target=target,
        round_trip_ms=round_trip_ms,
        least_ms=round_trip_ms if least_ms is None else least_ms,
        bandwidth_bps=bandwidth_bps,
        round_trips=2,
        bandwidths=2,
        newest_ms=0,
    )


def both_ways(
    round_trip_ms: float | None,
    bandwidth_bps: float | None,
    ends: str | tuple[str, str] = "ab",
    least_ms: float | None = None,
) -> list[PairMeasured]:
    """Return the same measurements for both directions."""
    return [
        measured(*pair, round_trip_ms, bandwidth_bps, least_ms) for pair in ((ends[0], ends[1]), (ends[1], ends[0]))
    ]


def test_a_model_within_the_tolerance_is_returned_unchanged() -> None:
    model = line()
    near = [*both_ways(21.5, 0.95e9), *both_ways(40.0, None, "ac"), measured("a", "elsewhere", 1.0, 1.0)]
    found = correct(model, near)
    assert found.model is model
    assert found.corrections == ()
    assert correct(model, near, tolerance=0.01).model is not model


def test_a_single_measurement_corrects_nothing() -> None:
    model = line(sites="ab")
    measurements = Measurements()
    for at_ms, corrects in ((0, False), (60_000, True)):
        measurements.add_round_trip("a", "b", at_ms, [100.0])
        for ends in ("ab", "ba"):
            measurements.add_bandwidth(*ends, at_ms, 1e8)
        found = correct(model, measurements.pairs(at_ms, "ab"))
        assert bool(found.corrections) is corrects
    assert found.model.paths.latency_ms[0, 1] == 50.0
    assert found.model.paths.bandwidth_bps[0, 1] == 1e8


@settings(max_examples=50, deadline=None)
@given(
    st.floats(0.1, 200),
    st.floats(0, 50),
    st.floats(1e6, 1e11),
    st.floats(0.1, 200),
    st.floats(1e6, 1e11),
    st.sampled_from(["synchronous", "overlapped"]),
)
def test_correcting_by_the_truth_gives_the_costs_of_the_true_model(
    latency_ms: float, jitter_ms: float, speed: float, wrong_ms: float, wrong: float, exchange: str
) -> None:
    assume(abs(2 * latency_ms + jitter_ms - 2 * wrong_ms) > 0.1)  # smaller differences are left
    truth = line(latency_ms, speed, sites="ab", jitter_ms=jitter_ms)
    truth = NetworkModel(truth.topology, truth.paths, exchange)
    assumed = line(wrong_ms, wrong, sites="ab")
    assumed = NetworkModel(assumed.topology, assumed.paths, exchange)
    rows = both_ways(2 * latency_ms + jitter_ms, speed, "ab", 2 * latency_ms)
    corrected = correct(assumed, rows, tolerance=0.0).model
    alone = measured_model("ab", rows, exchange=exchange)
    for communication in (RING, MESH):
        nodes = {"a": 3, "b": 5}
        expected = truth.split_factor(communication, nodes)
        assert corrected.split_factor(communication, nodes) == pytest.approx(expected, rel=1e-9)
        assert alone.split_factor(communication, nodes) == pytest.approx(expected, rel=1e-9)
    assert corrected.transfer_ms("a", "b", 1e7) == pytest.approx(truth.transfer_ms("a", "b", 1e7), abs=1)


def test_a_correction_affects_only_the_measured_path() -> None:
    model = line()
    found = correct(model, [measured("a", "c", 100.0, 1e8), measured("c", "a", 100.0)])
    assert [(one.what, one.modelled, one.measured) for one in found.corrections] == [
        ("bandwidth", 1e9, 1e8),
        ("round trip", 40.0, 100.0),
        ("round trip", 40.0, 100.0),
    ]
    new, old = found.model.paths, model.paths
    changed = np.zeros((3, 3), bool)
    changed[0, 2] = changed[2, 0] = True
    assert new.latency_ms[0, 2] == new.latency_ms[2, 0] == 50.0
    assert (new.latency_ms == old.latency_ms)[~changed].all()
    assert new.bandwidth_bps[0, 2] == 1e8
    assert (new.bandwidth_bps == old.bandwidth_bps).sum() == 8
    assert new.between(0, 2) == [*old.between(0, 2), len(model.topology.source)]
    assert [new.between(one, other) for one in range(3) for other in range(3) if (one, other) != (0, 2)] == [
        old.between(one, other) for one in range(3) for other in range(3) if (one, other) != (0, 2)
    ]
    assert found.model.split_factor(RING, {"a": 2, "b": 2}) == model.split_factor(RING, {"a": 2, "b": 2})
    assert found.model.transfer_ms("a", "c", 1e8) == pytest.approx(50 + 8000, abs=1)
    assert found.model.transfer_ms("c", "a", 1e8) == pytest.approx(50 + 800, abs=1)


def test_all_messages_of_a_pair_share_its_gate() -> None:
    """A measured bandwidth is the total for all messages of the pair."""
    narrow = correct(line(), [measured("a", "b", None, 1e8), measured("b", "a", None, 1e8)]).model
    truth = line(bandwidth_bps=1e8, sites="ab")
    assert narrow.split_factor(MESH, {"a": 4, "b": 6}) == pytest.approx(truth.split_factor(MESH, {"a": 4, "b": 6}))


def test_links_are_widened_to_the_bandwidth_that_crossed_them() -> None:
    """Other pairs that use these links benefit as well."""
    found = correct(line(), [measured("a", "c", None, 5e9), measured("b", "c", None, 2e9)])
    paths = found.model.paths
    assert paths.bandwidth_bps[0, 2] == paths.bandwidth_bps[0, 1] == 5e9
    assert paths.bandwidth_bps[2, 0] == paths.bandwidth_bps[2, 1] == 1e9
    # Nothing wider than 2 Gbit/s was seen from b to c alone, though the link has carried more.
    assert paths.bandwidth_bps[1, 2] == 2e9
    assert found.model.arrays.capacity[paths.between(0, 1)] == pytest.approx([5e6])
    assert found.model.topology.bandwidth_bps.max() == 5e9


def test_a_measured_stream_overrides_the_loss_limit() -> None:
    lossy = line(loss=0.01)
    assert lossy.paths.stream_bps[0, 1] < 1e7
    found = correct(lossy, [measured("a", "b", None, 5e8)]).model
    assert found.paths.stream_bps[0, 1] == 5e8
    assert found.paths.stream_bps[1, 0] == lossy.paths.stream_bps[1, 0]


def test_a_round_trip_is_split_in_the_proportions_of_the_model() -> None:
    graph = nx.DiGraph()
    graph.add_edge("a", "b", latency_ms=10.0, bandwidth_bps=1e9)
    graph.add_edge("b", "a", latency_ms=30.0, bandwidth_bps=1e9)
    topology = topology_of_graph(graph)
    found = correct(NetworkModel(topology, find_paths(topology)), both_ways(80.0, None)).model
    assert (found.paths.latency_ms[0, 1], found.paths.latency_ms[1, 0]) == (20.0, 60.0)


def test_jitter_follows_from_the_typical_and_the_minimum_round_trip() -> None:
    """The typical round trip exceeds the minimum by half of the jitter in each direction."""
    found = correct(line(sites="ab"), both_ways(60.0, None, least_ms=50.0)).model
    assert found.paths.latency_ms[0, 1] == 30.0
    assert found.paths.jitter_ms[0, 1] == 10.0
    assert found.arrays.lag_ms[0, 1] == 35.0
    # Where the round trip is as modelled, and all of it above 40 ms is jitter, that alone is corrected.
    steady = line(30.0, sites="ab")
    again = correct(steady, both_ways(60.0, None, least_ms=40.0))
    assert [(one.what, one.modelled, one.measured) for one in again.corrections] == [("jitter", 0.0, 20.0)] * 2
    assert again.model.arrays.lag_ms[0, 1] == 40.0
    assert correct(steady, both_ways(60.0, None, least_ms=55.0)).model is steady


def test_gates_do_not_change_routes() -> None:
    model = line()
    narrow = correct(model, [measured("a", "c", None, 1e8), measured("b", "a", None, 1e7)]).model
    for routes in ("latency", "bandwidth", "k-shortest"):
        again, before = find_paths(narrow.topology, routes), find_paths(model.topology, routes)
        assert np.array_equal(again.links, before.links)
        assert np.array_equal(again.latency_ms, before.latency_ms)
    assert len(set(narrow.topology.cable.tolist())) == 4
    assert narrow.topology.nodes == ("a", "b", "c")


def test_measurements_separate_sites_at_one_node() -> None:
    graph = nx.path_graph(["x", "y"])
    nx.set_edge_attributes(graph, 10.0, "latency_ms")
    nx.set_edge_attributes(graph, 1e9, "bandwidth_bps")
    topology = topology_of_graph(graph, attach={"one": "x", "two": "x", "far": "y"})
    model = NetworkModel(topology, find_paths(topology))
    found = correct(model, both_ways(2.0, 1e8, ("one", "two")))
    assert [one.modelled for one in found.corrections] == [math.inf, 0.0, math.inf, 0.0]
    assert found.model.transfer_ms("one", "two", 1e6) == pytest.approx(1 + 80, abs=1)
    assert found.model.transfer_ms("one", "far", 1e6) == model.transfer_ms("one", "far", 1e6)


def test_measurements_restore_a_path_that_the_model_lacks() -> None:
    """The path needs a measured bandwidth."""
    cut = line()
    cut.topology.up[:] = False
    cut = NetworkModel(cut.topology, find_paths(cut.topology))
    assert cut.transfer_ms("a", "b", 1e6) is None
    assert correct(cut, both_ways(20.0, None)).model is cut
    assert correct(cut, both_ways(None, 1e8)).model is cut
    found = correct(cut, both_ways(20.0, 1e8)).model
    assert found.transfer_ms("a", "b", 1e6) == pytest.approx(10 + 80, abs=1)
    assert found.transfer_ms("a", "c", 1e6) is None
    assert found.split_factor(RING, {"a": 4, "c": 4}) == math.inf


def test_a_measured_model_has_direct_links_only() -> None:
    """A pair without measurements has no path."""
    rows = [
        *both_ways(100.0, 1e8),
        *both_ways(10.0, 1e9, "bc"),
        *both_ways(10.0, None, "ac"),
        *both_ways(None, 1e9, "ad"),
    ]
    model = measured_model("abcd", [*rows, *both_ways(1.0, 1e9, "xa")])
    assert model.topology.sites == ("a", "b", "c", "d")
    assert model.transfer_ms("a", "b", 1e6) == pytest.approx(50 + 80, abs=1)
    assert model.transfer_ms("b", "c", 1e6) == pytest.approx(5 + 8, abs=1)
    assert model.transfer_ms("a", "c", 1e6) is None
    assert model.transfer_ms("a", "d", 1e6) is None
    assert model.transfer_ms("a", "a", 0) == 0
    guessed = measured_model("abcd", rows, bandwidth_bps=1e7)
    assert guessed.transfer_ms("a", "c", 1e6) == pytest.approx(5 + 800, abs=1)
    assert guessed.transfer_ms("a", "d", 1e6) is None
    nothing = measured_model("ab", [])
    assert nothing.split_factor(RING, {"a": 1, "b": 1}) == math.inf
    assert nothing.split_factor(RING, {"a": 2}) == 1.0


def test_duplicate_sites_and_invalid_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="without repetition"):
        measured_model("aa", [])
    with pytest.raises(InputError, match="at least one"):
        measured_model([], [])
    with pytest.raises(OptionError, match="bandwidth_bps"):
        measured_model("ab", [], bandwidth_bps=0.0)
    with pytest.raises(OptionError, match="tolerance"):
        correct(line(), [], tolerance=-0.1)
    with pytest.raises(OptionError, match="exchange"):
        measured_model("ab", [], exchange="none")
