"""Duration of transfers between sites."""

from __future__ import annotations

import math

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths


def star(loss: float = 0.0) -> NetworkModel:
    """Return sites a to d around a hub, with 1 Gbps (2 Gbps for a) and 5 ms per link."""
    graph = nx.Graph()
    for site, bandwidth_bps in (("a", 2e9), ("b", 1e9), ("c", 1e9), ("d", 1e9)):
        graph.add_edge("hub", site, latency_ms=5.0, bandwidth_bps=bandwidth_bps, loss=loss)
    topology = topology_of_graph(graph, sites=list("abcd"))
    return NetworkModel(topology, find_paths(topology))


def test_a_transfer_by_hand() -> None:
    """125 MB at 1 Gbps take a second plus 10 ms of latency; times are rounded up."""
    assert star().transfer_ms("b", "c", 125e6) == 1010
    assert star().transfer_ms("b", "c", 125e6 + 1) == 1011


def test_local_and_empty_transfers_take_no_time() -> None:
    assert star().transfer_ms("b", "b", 1e12) == 0
    assert star().transfer_ms("a", "b", 0) == 0


def test_lost_packets_slow_a_transfer() -> None:
    loss = 1 - 0.99**2
    lag_ms = 10 + loss / (1 - loss) * 20
    bits_per_ms = 1460 * 8 / 20 * math.sqrt(1.5 / loss)
    assert star(0.01).transfer_ms("b", "c", 1e6) == math.ceil(lag_ms + 8e6 / bits_per_ms)


def test_a_transfer_without_a_path_never_ends() -> None:
    model = star()
    topology = model.topology.with_figures(up=model.topology.up & False)
    cut = NetworkModel(topology, find_paths(topology))
    assert cut.transfer_ms("a", "b", 1) is None
    assert cut.transfer_ms("a", "a", 1) == 0


@given(st.floats(0, 1e15), st.floats(0, 1e15))
def test_more_data_takes_no_less_time(one: float, other: float) -> None:
    model = star()
    assert (model.transfer_ms("a", "b", min(one, other)) or 0) <= (model.transfer_ms("a", "b", max(one, other)) or 0)


@pytest.mark.parametrize("target", ["hub", "z"])
def test_unknown_sites_are_refused(target: str) -> None:
    from gridweave.errors import InputError

    with pytest.raises(InputError, match=f"there is no site '{target}'; there are a, b, c, d"):
        star().transfer_ms("a", target, 1)
