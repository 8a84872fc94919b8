"""The closed forms of what goes from part to part, against a count message by message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.netmodel.communication import GRIDS_BY_NAME, Communication, rank_grid
from gridweave.netmodel.kernels.overhead import BACK, OUT, count_messages
from gridweave.netmodel.kernels.state import PART
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths

ONE_EXCHANGE = ["all-to-all", *GRIDS_BY_NAME]
SITES = 6


def star_model() -> NetworkModel:
    """Return six sites around a router."""
    graph = nx.star_graph(SITES)
    nx.set_edge_attributes(graph, 5.0, "latency_ms")
    sites = [str(site) for site in range(1, SITES + 1)]
    topology = topology_of_graph(graph, sites=sites, bandwidth_bps=1e9)
    return NetworkModel(topology, find_paths(topology))


MODEL = star_model()


def messages(pattern: str, width: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the exchanges of a pattern, each as all its messages, from rank to rank."""
    if pattern == "all-to-all":
        yield [(one, other) for one in range(width) for other in range(width) if one != other]
    elif pattern == "master-workers":
        yield [(0, worker) for worker in range(1, width)]
        yield [(worker, 0) for worker in range(1, width)]
    else:
        sides = rank_grid(width, GRIDS_BY_NAME[pattern])
        sent = []
        for rank in range(width):
            place = np.unravel_index(rank, sides)
            for axis, side in enumerate(sides):
                for step in (-1, 1):
                    partner = list(place)
                    partner[axis] = (partner[axis] + step) % side
                    sent += [(rank, int(np.ravel_multi_index(partner, sides)))] if side > 1 else []
        yield sent


def counted(pattern: str, widths: Sequence[int]) -> list[dict[tuple[int, int], int]]:
    """Return, for each exchange, how many messages go from part to part, rank by rank."""
    part_of = np.repeat(np.arange(len(widths)), widths)
    return [
        Counter((int(part_of[one]), int(part_of[other])) for one, other in sent if part_of[one] != part_of[other])
        for sent in messages(pattern, sum(widths))
    ]


def from_kernel(pattern: str, widths: Sequence[int], exchange: int) -> dict[tuple[int, int], int]:
    """Return what the kernel counts."""
    parts = np.array([(site, width) for site, width in enumerate(widths)], PART)
    record = Communication(fraction=0.5, message_bytes=1, pattern=pattern).records([sum(widths)])[0]
    count_messages(MODEL.arrays, record, parts, len(parts), exchange)
    table = MODEL.arrays.messages[: len(parts) ** 2].reshape(len(parts), len(parts))
    return {(int(one), int(other)): int(table[one, other]) for one, other in zip(*np.nonzero(table), strict=True)}


widths_of_parts = st.lists(st.integers(1, 20), min_size=2, max_size=SITES)


@given(st.sampled_from(ONE_EXCHANGE), widths_of_parts)
def test_closed_forms_count_what_ranks_send(pattern: str, widths: list[int]) -> None:
    """For every pattern the kernel counts as many messages from part to part as there are, rank by rank."""
    assert [from_kernel(pattern, widths, OUT)] == counted(pattern, widths)


@given(widths_of_parts)
def test_a_master_sends_out_and_hears_back(widths: list[int]) -> None:
    """The two exchanges of a master and its workers are counted apart."""
    kernel = [from_kernel("master-workers", widths, exchange) for exchange in (OUT, BACK)]
    assert kernel == counted("master-workers", widths)


@pytest.mark.parametrize("width", range(1, 65))
@pytest.mark.parametrize("pattern", ONE_EXCHANGE)
def test_busiest_rank_sends_what_the_record_says(pattern: str, width: int) -> None:
    """The messages of a record are those that one rank sends in an exchange."""
    record = Communication(fraction=0.5, message_bytes=1, pattern=pattern).records([width])[0]
    sent = Counter(one for exchange in messages(pattern, width) for one, _ in exchange)
    assert record["messages"] == max(sent.values(), default=0)


@given(st.integers(1, 3000), st.integers(1, 3))
def test_grid_of_ranks(width: int, dimensions: int) -> None:
    """The sides of the grid of ranks ascend and multiply to the width; the first that is chosen is the longest."""
    sides = rank_grid(width, dimensions)
    assert len(sides) == dimensions
    assert list(sides) == sorted(sides)
    assert int(np.prod(sides)) == width
    assert max(side for side in range(1, width + 1) if width % side == 0 and side**dimensions <= width) in sides
