"""Placement: the exact choice against a search in Python, and the heuristic against the exact choice."""

from __future__ import annotations

import math
from itertools import product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError
from gridweave.netmodel.communication import PATTERNS, Communication
from gridweave.netmodel.kernels.choice import choose_sites, count_placements
from gridweave.netmodel.kernels.overhead import is_more_than, split_factor
from gridweave.netmodel.kernels.state import MASTER_WORKERS, PART
from gridweave.netmodel.model import ROUNDS, STARTS, ChosenPlacement, NetworkModel, new_choice
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths

communications = st.builds(
    Communication,
    fraction=st.floats(0.0, 0.6),
    message_bytes=st.sampled_from([100.0, 1e4, 1e6]),
    pattern=st.sampled_from(sorted(PATTERNS)),
)


@st.composite
def models(draw: st.DrawFn, sites: int) -> NetworkModel:
    """Draw clusters of sites around a router, so that some sites are near each other and others far."""
    graph = nx.complete_graph([chr(ord("a") + site) for site in range(sites)])
    clusters = [draw(st.integers(0, 1)) for _ in range(sites)]
    names = list(graph)
    for one, other, attributes in graph.edges(data=True):
        is_near = clusters[names.index(one)] == clusters[names.index(other)]
        attributes["latency_ms"] = draw(st.sampled_from([0.1, 0.5]) if is_near else st.sampled_from([10.0, 30.0]))
        attributes["bandwidth_bps"] = draw(st.sampled_from([1e9, 1e10]))
    topology = topology_of_graph(graph)
    return NetworkModel(topology, find_paths(topology), draw(st.sampled_from(["synchronous", "overlapped"])))


def every_placement(free: list[int], width: int) -> list[dict[int, int]]:
    """Return every way to distribute the nodes."""
    return [
        {site: nodes for site, nodes in enumerate(taken) if nodes}
        for taken in product(*(range(nodes + 1) for nodes in free))
        if sum(taken) == width
    ]


def end_ms(
    model: NetworkModel, some: Communication, placement: dict[int, int], length_ms: float, delay_ms: list[float]
) -> float:
    """Return when a job ends with a placement."""
    named = {model.topology.sites[site]: nodes for site, nodes in placement.items()}
    return max(delay_ms[site] for site in placement) + length_ms * model.split_factor(some, named)


frees = st.lists(st.integers(0, 6), min_size=4, max_size=4)


@settings(max_examples=60)
@given(
    models(4),
    communications,
    frees,
    st.integers(1, 14),
    st.lists(st.sampled_from([0.0, 5.0, 500.0]), min_size=4, max_size=4),
)
def test_the_exact_choice_is_the_best_placement(
    model: NetworkModel, some: Communication, free: list[int], width: int, delay_ms: list[float]
) -> None:
    """No placement ends earlier, and none with the same end has fewer parts."""
    placements = every_placement(free, width)
    chosen = model.choose_sites(some, width, free, length_ms=100.0, delay_ms=delay_ms)
    if not placements:
        assert chosen is None
        return
    assert isinstance(chosen, ChosenPlacement)
    assert chosen.exact
    ends = [end_ms(model, some, placement, 100.0, delay_ms) for placement in placements]
    assert chosen.end_ms == pytest.approx(min(ends), rel=1e-12)
    fewest = min(len(placement) for placement, end in zip(placements, ends, strict=True) if end == chosen.end_ms)
    assert len(chosen.nodes) == fewest
    numbered = {model.topology.site_number(site): nodes for site, nodes in chosen.nodes.items()}
    assert chosen.end_ms == pytest.approx(end_ms(model, some, numbered, 100.0, delay_ms), rel=1e-12)
    assert chosen.factor == pytest.approx(model.split_factor(some, chosen.nodes), rel=1e-12)


@settings(max_examples=100)
@given(models(4), communications, st.lists(frees, min_size=2, max_size=4), st.integers(2, 14))
def test_an_earlier_result_does_not_change_the_choice(
    model: NetworkModel, some: Communication, others: list[list[int]], width: int
) -> None:
    """A search that starts from the best placement on other free nodes finds the same as one without."""
    choice = new_choice(4, width)
    record, waits = some.records([width])[0], np.zeros(4)
    for free in others:
        available = np.array(free)
        search = model.arrays, record, available, 100.0, waits, 1e7, np.int64(STARTS), np.int64(ROUNDS)
        alone = new_choice(4, width)
        assert choose_sites(*search, choice) == choose_sites(*search, alone)
        assert choice.n_best == alone.n_best
        assert choice.tried <= alone.tried
        assert (choice.end_ms, choice.factor) == (alone.end_ms, alone.factor)
        assert choice.best[: choice.n_best[0]].tolist() == alone.best[: alone.n_best[0]].tolist()
        choice.earlier.n_parts[:], choice.earlier.factor[:] = choice.n_best, choice.factor
        choice.earlier.parts[:], choice.earlier.free[:] = choice.best, available


@settings(max_examples=100)
@given(models(4), communications, st.lists(st.integers(1, 8), min_size=2, max_size=4), st.integers(0, 6))
def test_is_more_than_never_overstates_the_factor(
    model: NetworkModel, some: Communication, widths: list[int], behind: int
) -> None:
    """It also holds for placements with further parts; clear cases are always detected."""
    parts = np.array(list(enumerate([*widths, behind])), PART)
    record = some.records([int(parts["width"].sum())])[0]
    whole = len(widths) + (behind > 0 and len(widths) < 4)
    record = some.records([int(parts["width"][:whole].sum())])[0]
    factor = float(split_factor(model.arrays, record, parts, whole))
    assert not is_more_than(model.arrays, record, parts, len(widths), factor)
    assert not is_more_than(model.arrays, record, parts, whole, factor)
    assert is_more_than(model.arrays, record, parts, whole, 0.999)
    if whole == 2 and record["pattern"] != MASTER_WORKERS and model.arrays.mirrored:
        assert is_more_than(model.arrays, record, parts, whole, factor * 0.999) == (factor > 1.0 or factor * 0.999 < 1)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(1, 20))
def test_placements_are_counted_correctly(free: list[int], width: int) -> None:
    ways = np.zeros(width + 1)
    assert count_placements(np.array(free), np.int64(width), ways, np.inf) == len(every_placement(free, width))


@settings(max_examples=60)
@given(models(6), communications, st.lists(st.integers(0, 9), min_size=6, max_size=6), st.integers(2, 24))
def test_the_heuristic_is_no_worse_than_fewest_fragments(
    model: NetworkModel, some: Communication, free: list[int], width: int
) -> None:
    """It finds a placement if there is one, and never a better one than the exact choice."""
    exact = model.choose_sites(some, width, free, exact_up_to=10**7)
    found = model.choose_sites(some, width, free, exact_up_to=0)
    if exact is None:
        assert found is None
        return
    assert found is not None
    assert sum(found.nodes.values()) == width
    assert all(nodes <= free[model.topology.site_number(site)] for site, nodes in found.nodes.items())
    assert exact.end_ms <= found.end_ms * (1 + 1e-12)
    assert found.factor == pytest.approx(model.split_factor(some, found.nodes), rel=1e-12)
    assert found.end_ms <= model.split_factor(some, fewest_fragments(model, free, width)) * (1 + 1e-12)


def fewest_fragments(model: NetworkModel, free: list[int], width: int) -> dict[str, int]:
    """Return the placement of the thesis, which takes the sites with the most free nodes first."""
    taken = {}
    for site in sorted(range(len(free)), key=lambda site: (-free[site], site)):
        nodes = min(free[site], width)
        width -= nodes
        if nodes:
            taken[site] = nodes
    return {model.topology.sites[site]: taken[site] for site in sorted(taken)}


def test_the_heuristic_is_within_one_percent_on_average() -> None:
    """On 200 random grids, it is exact in nine of ten cases."""
    rng = np.random.default_rng(5)
    ratios = []
    for _ in range(200):
        model, some = _drawn_model(rng), _drawn_communication(rng)
        free = rng.integers(1, 13, 6)
        width = int(rng.integers(free.max() + 1, max(free.max() + 2, min(free.sum(), 30))))
        exact = model.choose_sites(some, width, free, exact_up_to=10**7)
        found = model.choose_sites(some, width, free, exact_up_to=0)
        if exact is not None and found is not None:
            assert exact.exact
            assert not found.exact
            ratios.append(found.end_ms / exact.end_ms)
    assert len(ratios) > 150
    assert np.mean(np.array(ratios) < 1 + 1e-9) > 0.9
    assert np.mean(ratios) < 1.01


def _drawn_model(rng: np.random.Generator) -> NetworkModel:
    places = rng.uniform(0, 3000, (6, 2))
    graph = nx.complete_graph(6)
    for one, other, attributes in graph.edges(data=True):
        attributes["latency_ms"] = math.dist(places[one], places[other]) / 130
        attributes["bandwidth_bps"] = float(rng.choice([1e9, 2.5e9, 1e10]))
    topology = topology_of_graph(graph)
    return NetworkModel(topology, find_paths(topology), str(rng.choice(["synchronous", "overlapped"])))


def _drawn_communication(rng: np.random.Generator) -> Communication:
    pattern = str(rng.choice([pattern for pattern in sorted(PATTERNS) if pattern != "none"]))
    return Communication(fraction=float(rng.uniform(0.05, 0.5)), message_bytes=10 ** rng.uniform(2, 7), pattern=pattern)


def test_more_near_sites_beat_fewer_far_ones() -> None:
    graph = nx.Graph()
    for site, latency_ms in (("a", 0.1), ("near", 0.1), ("next", 0.1), ("far", 40.0)):
        graph.add_edge("hub", site, latency_ms=latency_ms)
    topology = topology_of_graph(graph, sites=["a", "far", "near", "next"], bandwidth_bps=1e10)
    model = NetworkModel(topology, find_paths(topology))
    some = Communication(fraction=0.1, message_bytes=1e4, pattern="2d-neighbours")
    chosen = model.choose_sites(some, 100, [64, 60, 20, 20])
    assert chosen is not None
    assert chosen.nodes.keys() == {"a", "near", "next"}
    assert chosen.factor < model.split_factor(some, {"a": 64, "far": 36})


def test_a_single_site_that_fits_is_preferred() -> None:
    """It is the site that leaves the fewest nodes free; ties go to the first."""
    graph = nx.complete_graph(["a", "b", "c", "d"])
    nx.set_edge_attributes(graph, 5.0, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=1e9)
    model = NetworkModel(topology, find_paths(topology))
    for exact_up_to in (0, 10**6):
        chosen = model.choose_sites(Communication(), 8, [20, 9, 9, 7], exact_up_to=exact_up_to)
        assert chosen is not None
        assert chosen.nodes == {"b": 8}


def test_a_delay_can_make_a_split_better() -> None:
    """A split can end earlier than waiting for the data of a single site."""
    graph = nx.complete_graph(["a", "b", "c"])
    nx.set_edge_attributes(graph, 1.0, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=1e9)
    model = NetworkModel(topology, find_paths(topology))
    for exact_up_to in (0, 10**6):
        chosen = model.choose_sites(
            Communication(), 8, [8, 4, 4], length_ms=100.0, delay_ms=[50.0, 0.0, 0.0], exact_up_to=exact_up_to
        )
        assert chosen is not None
        assert chosen.nodes == {"b": 4, "c": 4}
        assert chosen.end_ms == 100.0


def test_the_pattern_determines_the_best_shape() -> None:
    """A ring pays per crossing; an all-to-all job pays per message, so it puts few nodes on other sites."""
    graph = nx.complete_graph(["a", "b"])
    nx.set_edge_attributes(graph, 0.01, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=1e9)
    model = NetworkModel(topology, find_paths(topology))
    chosen = model.choose_sites(Communication(fraction=0.3, message_bytes=1e6, pattern="all-to-all"), 40, [30, 30])
    assert chosen is not None
    assert chosen.nodes == {"a": 30, "b": 10}
    assert chosen.exact


@pytest.mark.parametrize(
    ("width", "free", "delay_ms", "problem"),
    [
        (4, [2, 2, 2], None, r"free has shape \(3,\); expected one number for each of the 2 sites"),
        (4, [4], None, r"free has shape \(1,\); expected one number for each of the 2 sites"),
        (4, [2, 2], [1.0], r"delay_ms has shape \(1,\); expected one number for each of the 2 sites"),
        (4, [-5, 9], None, r"width is 4, free \[-5, 9\]; a job has at least 1 node, a site 0 or more"),
        (0, [2, 2], None, r"width is 0, free \[2, 2\]; a job has at least 1 node"),
    ],
)
def test_arrays_of_the_wrong_length_are_refused(
    width: int, free: list[int], delay_ms: list[float] | None, problem: str
) -> None:
    """Compiled code would read beyond their end."""
    graph = nx.complete_graph(["a", "b"])
    nx.set_edge_attributes(graph, 1.0, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=1e9)
    model = NetworkModel(topology, find_paths(topology))
    with pytest.raises(InputError, match=problem):
        model.choose_sites(Communication(), width, free, delay_ms=delay_ms)


def test_a_wide_job_on_300_sites_stays_near_its_start() -> None:
    rng = np.random.default_rng(1)
    graph = nx.random_geometric_graph(300, 0.15, seed=2)
    for one, other, attributes in graph.edges(data=True):
        attributes["latency_ms"] = 20 * math.dist(graph.nodes[one]["pos"], graph.nodes[other]["pos"])
    topology = topology_of_graph(graph, bandwidth_bps=1e10)
    model = NetworkModel(topology, find_paths(topology))
    free = rng.integers(0, 33, 300)
    some = Communication(fraction=0.2, message_bytes=1e5, pattern="2d-neighbours")
    chosen = model.choose_sites(some, 150, free)
    assert chosen is not None
    assert not chosen.exact
    assert chosen.factor < 0.5 * model.split_factor(some, fewest_fragments(model, free.tolist(), 150))
