"""The overhead of a split: by hand, in limiting cases, and against a slow version of docs/netmodel.md."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError
from gridweave.netmodel.communication import GRIDS_BY_NAME, PATTERNS, Communication, rank_grid
from gridweave.netmodel.kernels.overhead import split_factor
from gridweave.netmodel.kernels.state import PART, with_own_scratch
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths
from support.builders import drawn_model

SENDING = [pattern for pattern in PATTERNS if pattern != "none"]
LOCAL = {"local_latency_ms": 0.01, "local_bandwidth_bps": 1e10}


def line(
    latency_ms: float = 10.0, bandwidth_bps: float = 1e9, sites: int = 3, exchange: str = "synchronous", **more: float
) -> NetworkModel:
    """Return sites a, b, c, ... in a row, with equal links between neighbours."""
    graph = nx.path_graph(["a", "b", "c", "d", "e"][:sites])
    for key, value in {"latency_ms": latency_ms, "bandwidth_bps": bandwidth_bps, **more}.items():
        nx.set_edge_attributes(graph, value, key)
    topology = topology_of_graph(graph)
    return NetworkModel(topology, find_paths(topology), exchange, **LOCAL)


# -- by hand


def test_a_ring_over_one_link_by_hand() -> None:
    """Two messages cross each way; a message takes 10.01 + 0.016 ms instead of 0.01 + 0.0016 ms."""
    some = Communication(fraction=0.25, message_bytes=1000, pattern="ring")
    local_ms = 0.01 + 2 * 8000 / 1e7
    crossing_ms = 0.01 + 10 + max(2 * 8000 / 1e7, 2 * 8000 / 1e6)
    expected = 1 + 0.25 * (crossing_ms / local_ms - 1)
    assert line().split_factor(some, {"a": 8, "b": 8}) == pytest.approx(expected, rel=1e-14)
    # Four of 32 messages cross.
    expected = 1 + 0.25 * (4 / 32) * (crossing_ms / local_ms - 1)
    assert line(exchange="overlapped").split_factor(some, {"a": 8, "b": 8}) == pytest.approx(expected, rel=1e-14)


def test_all_to_all_messages_share_links_by_hand() -> None:
    """Link a-b carries 4 x 8 messages each to b and to c, because the path from a to c uses a-b and b-c."""
    some = Communication(fraction=1.0, message_bytes=1e6, pattern="all-to-all")
    local_ms = 0.01 + 11 * 8e6 / 1e7
    to_far_end_ms = 0.01 + 20 + 32 * 8e6 / 1e6
    assert line().split_factor(some, {"a": 4, "b": 4, "c": 4}) == pytest.approx(to_far_end_ms / local_ms, rel=1e-14)


def test_a_master_and_its_workers_by_hand() -> None:
    """Both exchanges count: messages to six remote workers, and their replies."""
    some = Communication(fraction=0.5, message_bytes=1e5, pattern="master-workers")
    local_ms = 0.01 + 7 * 8e5 / 1e7
    crossing_ms = 0.01 + 10 + 6 * 8e5 / 1e6
    expected = 1 + 0.5 * (crossing_ms / local_ms - 1)
    assert line().split_factor(some, {"a": 2, "b": 6}) == pytest.approx(expected, rel=1e-14)


def test_jitter_and_loss_count() -> None:
    """A synchronous exchange waits for all of the jitter; a lost packet costs a round trip and slows streams."""
    some = Communication(fraction=1.0, message_bytes=1e5, pattern="ring")
    mean_ms = 10 + 0.5 * 4
    lag_ms = mean_ms + 0.02 / 0.98 * 2 * mean_ms
    stream_bits_per_ms = 1460 * 8 / (2 * mean_ms) * math.sqrt(1.5 / 0.02)
    local_ms = 0.01 + 2 * 8e5 / 1e7
    carried_ms = 8e5 / stream_bits_per_ms
    factor = line(jitter_ms=4.0, loss=0.02).split_factor(some, {"a": 8, "b": 8})
    assert factor == pytest.approx((0.01 + lag_ms + 2.0 + carried_ms) / local_ms, rel=1e-12)
    # Overlapped the average of the 32 messages is less than what one stream takes to carry its message in each step.
    factor = line(jitter_ms=4.0, loss=0.02, exchange="overlapped").split_factor(some, {"a": 8, "b": 8})
    assert 1 + 4 / 32 * ((0.01 + lag_ms + carried_ms) / local_ms - 1) < carried_ms / local_ms
    assert factor == pytest.approx(carried_ms / local_ms, rel=1e-12)


# -- limits

communications = st.builds(
    Communication,
    fraction=st.floats(0.01, 1.0),
    message_bytes=st.floats(0, 1e7),
    pattern=st.sampled_from(SENDING),
)
placements = st.lists(st.integers(1, 12), min_size=2, max_size=5).map(
    lambda nodes: dict(zip("abcde", nodes, strict=False))
)
exchanges = st.sampled_from(["synchronous", "overlapped"])


@given(communications, st.integers(1, 400))
def test_a_job_on_one_site_has_factor_one(some: Communication, nodes: int) -> None:
    assert line().split_factor(some, {"b": nodes}) == 1.0


@given(placements, st.floats(0, 1e7))
def test_a_job_without_communication_has_factor_one(nodes: dict[str, int], message_bytes: float) -> None:
    model = line(sites=5)
    assert model.split_factor(Communication(fraction=0.0, message_bytes=message_bytes, pattern="ring"), nodes) == 1.0
    assert model.split_factor(Communication(fraction=1.0, message_bytes=message_bytes, pattern="none"), nodes) == 1.0


@given(communications, placements, exchanges)
def test_an_infinitely_fast_network_gives_factor_one(some: Communication, nodes: dict[str, int], exchange: str) -> None:
    assert line(0.0, 1e30, 5, exchange).split_factor(some, nodes) == 1.0


@given(communications, placements, exchanges, st.floats(0, 100), st.floats(0, 100))
def test_more_latency_never_lowers_the_factor(
    some: Communication, nodes: dict[str, int], exchange: str, latency_ms: float, more_ms: float
) -> None:
    near, far = (line(ms, 1e9, 5, exchange) for ms in (latency_ms, latency_ms + more_ms))
    assert 1.0 <= near.split_factor(some, nodes) <= far.split_factor(some, nodes)


@given(communications, placements, exchanges, st.floats(1.0, 50.0))
def test_more_bandwidth_never_raises_the_factor(
    some: Communication, nodes: dict[str, int], exchange: str, times: float
) -> None:
    narrow, wide = (line(5.0, bps, 5, exchange) for bps in (1e8, 1e8 * times))
    assert wide.split_factor(some, nodes) <= narrow.split_factor(some, nodes)


@given(communications, placements, exchanges, st.floats(1.0, 100.0))
def test_larger_messages_never_lower_the_time(
    some: Communication, nodes: dict[str, int], exchange: str, times: float
) -> None:
    """The number of messages is fixed, so the communication time on one site grows with their size."""
    model = line(sites=5, exchange=exchange)
    width = sum(nodes.values())
    larger_bytes = some.message_bytes * times
    before_ms, after_ms = (_local_exchange_ms(some.pattern, width, size) for size in (some.message_bytes, larger_bytes))
    assume(before_ms > 0)
    # In units of the run time on one site with the smaller messages.
    after = some.fraction * after_ms / before_ms
    length = 1 - some.fraction + after
    larger = Communication(fraction=min(1.0, after / length), message_bytes=larger_bytes, pattern=some.pattern)
    lost_before = model.split_factor(some, nodes) - 1
    lost_after = length * (model.split_factor(larger, nodes) - 1)
    assert lost_before <= lost_after * (1 + 1e-9) + 1e-9


@given(communications, placements)
def test_message_size_at_a_fixed_fraction_approaches_the_ratio_of_bandwidths(
    some: Communication, nodes: dict[str, int]
) -> None:
    pair = dict(list(nodes.items())[:2])
    sizes = [some.message_bytes * 3.0**power for power in range(12)]
    factors = [
        line().split_factor(Communication(fraction=some.fraction, message_bytes=size, pattern=some.pattern), pair)
        for size in sizes
    ]
    steps = np.diff(factors)
    assert (steps <= 1e-9 * factors[0]).all() or (steps >= -1e-9 * factors[0]).all()


@given(st.floats(0.01, 1.0), st.floats(0, 1e7), st.integers(1, 31), exchanges)
def test_a_more_even_split_of_an_all_to_all_job_costs_more(
    fraction: float, message_bytes: float, nodes: int, exchange: str
) -> None:
    some = Communication(fraction=fraction, message_bytes=message_bytes, pattern="all-to-all")
    model = line(exchange=exchange)
    one, more = (model.split_factor(some, {"a": part, "b": 64 - part}) for part in (nodes, nodes + 1))
    assert one <= more * (1 + 1e-12)


@given(communications, placements)
def test_overlapped_exchanges_never_cost_more(some: Communication, nodes: dict[str, int]) -> None:
    overlapped = line(sites=5, exchange="overlapped").split_factor(some, nodes)
    assert overlapped <= line(sites=5).split_factor(some, nodes) * (1 + 1e-12)


def test_a_job_without_a_path_never_ends_if_it_communicates() -> None:
    model = line()
    topology = model.topology.with_figures(up=np.zeros(4, np.bool_))
    cut = NetworkModel(topology, find_paths(topology), "overlapped")
    assert cut.split_factor(Communication(fraction=0.1, message_bytes=1, pattern="ring"), {"a": 1, "b": 1}) == math.inf
    assert cut.split_factor(Communication(), {"a": 1, "b": 1}) == 1.0


# -- a second writing


def _local_exchange_ms(pattern: str, width: int, message_bytes: float) -> float:
    record = Communication(fraction=1.0, message_bytes=message_bytes, pattern=pattern).records([width])[0]
    return LOCAL["local_latency_ms"] + float(record["messages"]) * 8000 * message_bytes / LOCAL["local_bandwidth_bps"]


def slow_factor(model: NetworkModel, some: Communication, nodes: dict[str, int]) -> Fraction:
    """Compute the factor as in docs/netmodel.md, message by message, in fractions."""
    places = [model.topology.site_number(site) for site, count in nodes.items() for _ in range(count)]
    exchanges = _messages(some.pattern, len(places))
    bits = Fraction(8 * some.message_bytes)
    node_ms = 1000 / Fraction(model.local_bandwidth_bps)
    ratios, busiest_ms = [], Fraction(0)
    for sent in exchanges:
        loads: dict[int, int] = {}
        for one, other in sent:
            for link in model.paths.between(places[one], places[other]):
                loads[link] = loads.get(link, 0) + 1
        sends, hears = Counter(one for one, _ in sent), Counter(other for _, other in sent)
        busiest = max(*sends.values(), *hears.values())
        local_ms = Fraction(model.local_latency_ms) + busiest * bits * node_ms
        costs, carried = [], [Fraction(0)]
        for one, other in sent:
            cost_ms = local_ms
            if places[one] != places[other]:
                links = model.paths.between(places[one], places[other])
                speed = max(
                    [Fraction(0)]
                    + [loads[link] * 1000 / Fraction(model.topology.bandwidth_bps[link]) for link in links]
                )
                carried.append(bits * speed)
                lag_ms = Fraction(model.arrays.lag_ms[places[one], places[other]])
                cost_ms = Fraction(model.local_latency_ms) + lag_ms + max(busiest * bits * node_ms, bits * speed)
            costs.append(cost_ms)
        whole = max(costs) if model.exchange == "synchronous" else sum(costs, Fraction(0)) / len(costs)
        ratios.append(whole / local_ms)
        busiest_ms = max(busiest_ms, *carried)
    step_ms = len(exchanges) * local_ms / Fraction(some.fraction)
    return max(1 + Fraction(some.fraction) * (sum(ratios, Fraction(0)) / len(ratios) - 1), busiest_ms / step_ms)


def _messages(pattern: str, width: int) -> list[list[tuple[int, int]]]:
    """Return the messages of each exchange, from rank to rank."""
    if pattern == "master-workers":
        return [[(0, rank) for rank in range(1, width)], [(rank, 0) for rank in range(1, width)]]
    if pattern == "all-to-all":
        return [[(one, other) for one in range(width) for other in range(width) if one != other]]
    sides = rank_grid(width, GRIDS_BY_NAME[pattern])
    sent = []
    for rank in range(width):
        stride = width
        for side in sides:
            stride //= side
            place = rank // stride % side
            for step in (-1, 1):
                sent += [(rank, rank + ((place + step) % side - place) * stride)] if side > 1 else []
    return [sent]


@settings(max_examples=150)
@given(communications, placements, exchanges, st.randoms(use_true_random=False))
def test_the_kernel_agrees_with_the_docs_page(
    some: Communication, nodes: dict[str, int], exchange: str, random: object
) -> None:
    graph = nx.cycle_graph(["a", "b", "c", "d", "e"])
    for _, _, attributes in graph.edges(data=True):
        attributes["latency_ms"] = random.uniform(0, 30)  # type: ignore[attr-defined]
        attributes["bandwidth_bps"] = random.choice([1e8, 1e9, 1e10])  # type: ignore[attr-defined]
    topology = topology_of_graph(graph)
    model = NetworkModel(topology, find_paths(topology), exchange, **LOCAL)
    assert model.split_factor(some, nodes) == pytest.approx(float(slow_factor(model, some, nodes)), rel=1e-11)


# -- bad input


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pattern": "gossip"}, "pattern: 'gossip' is not known; one of none, all-to-all, ring"),
        ({"fraction": 1.5}, "fraction: is 1.5; expected a fraction of the run time, from 0 to 1"),
        ({"fraction": math.nan}, "fraction: is nan"),
        ({"message_bytes": -1.0}, "message_bytes: is -1; expected at least 0 bytes"),
    ],
)
def test_invalid_communication_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("(", r"\(")):
        Communication(**values)  # type: ignore[arg-type]


def test_invalid_placements_are_refused() -> None:
    with pytest.raises(InputError, match="there is no site 'z'; there are a, b, c"):
        line().split_factor(Communication(), {"a": 1, "z": 1})
    for nodes in ({}, {"a": 1, "b": 0}):
        with pytest.raises(InputError, match="at least one node"):
            line().split_factor(Communication(), nodes)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"exchange": "lazy"}, "exchange: 'lazy' is not known"),
        ({"local_latency_ms": -1.0}, "local_latency_ms: is -1"),
        ({"local_bandwidth_bps": 0.0}, "local_bandwidth_bps: is 0"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, object], message: str) -> None:
    model = line()
    with pytest.raises(OptionError, match=message):
        NetworkModel(model.topology, model.paths, **values)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), communications, exchanges)
def test_counting_mirrored_links_once_gives_the_same_factor(seed: int, some: Communication, exchange: str) -> None:
    """Results are equal to the last bit."""
    rng = np.random.default_rng(seed)
    graph: nx.DiGraph[int] = nx.path_graph(6).to_directed()
    graph.add_edges_from([(0, 5), (5, 0), (1, 4), (4, 1)] if rng.random() < 0.7 else [(0, 5), (5, 0), (1, 4)])
    crooked = rng.random() < 0.3
    for one, other in sorted(graph.edges):
        back = graph.edges.get((other, one), {})
        same = back and not crooked
        for key, values in (("latency_ms", (0.1, 1.5, 9.0)), ("bandwidth_bps", (1e8, 1e9, 7e9))):
            graph.edges[one, other][key] = back[key] if same and key in back else float(rng.choice(values))
    topology = topology_of_graph(graph)
    model = NetworkModel(topology, find_paths(topology), exchange, **LOCAL)
    parts = np.zeros(int(rng.integers(2, 7)), PART)
    parts["site"] = rng.permutation(6)[: len(parts)]
    parts["width"] = rng.integers(1, 20, len(parts))
    record = some.records([int(parts["width"].sum())])[0]
    plain = model.arrays._replace(mirrored=False)
    assert split_factor(model.arrays, record, parts, len(parts)) == split_factor(plain, record, parts, len(parts))


def test_mirrored_paths_are_detected() -> None:
    """Sites in a row are mirrored; a different or slower return path is not."""
    assert line().arrays.mirrored
    triangle = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a")])
    nx.set_edge_attributes(triangle, 1.0, "latency_ms")
    there_and_back = nx.DiGraph()
    there_and_back.add_edge("a", "b", latency_ms=1.0, bandwidth_bps=1e9)
    there_and_back.add_edge("b", "a", latency_ms=1.0, bandwidth_bps=2e9)
    for graph in (triangle, there_and_back):
        topology = topology_of_graph(graph, bandwidth_bps=1e9)
        assert not NetworkModel(topology, find_paths(topology)).arrays.mirrored


def test_scratch_space_can_be_separate_while_paths_are_shared() -> None:
    first = drawn_model(np.random.default_rng(1), 4).arrays
    second = with_own_scratch(first)
    record = Communication(pattern="all-to-all", fraction=0.5, message_bytes=1e6).records([9])[0]
    parts = np.array([(0, 3), (1, 3), (3, 3)], PART)
    before = [np.copy(each) for each in first]
    assert split_factor(second, record, parts, 3) > 1.0
    for each, was in zip(first, before, strict=True):
        assert np.array_equal(each, was)
    assert second.messages.any()
    assert second.links is first.links
