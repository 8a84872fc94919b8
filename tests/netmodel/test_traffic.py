"""The closed forms of message counts, compared with a count of every message."""

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
    """Yield the exchanges of a pattern, each as a list of messages between ranks."""
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
    """Return the number of messages between parts in each exchange, counted rank by rank."""
    part_of = np.repeat(np.arange(len(widths)), widths)
    return [
        Counter((int(part_of[one]), int(part_of[other])) for one, other in sent if part_of[one] != part_of[other])
        for sent in messages(pattern, sum(widths))
    ]


def from_kernel(pattern: str, widths: Sequence[int], exchange: int) -> dict[tuple[int, int], int]:
    """Return the counts from the kernel."""
    parts = np.array([(site, width) for site, width in enumerate(widths)], PART)
    record = Communication(fraction=0.5, message_bytes=1, pattern=pattern).records([sum(widths)])[0]
    count_messages(MODEL.arrays, record, parts, len(parts), exchange)
    table = MODEL.arrays.messages[: len(parts) ** 2].reshape(len(parts), len(parts))
    return {(int(one), int(other)): int(table[one, other]) for one, other in zip(*np.nonzero(table), strict=True)}


widths_of_parts = st.lists(st.integers(1, 20), min_size=2, max_size=SITES)


@given(st.sampled_from(ONE_EXCHANGE), widths_of_parts)
def test_closed_forms_equal_a_count_of_messages(pattern: str, widths: list[int]) -> None:
    assert [from_kernel(pattern, widths, OUT)] == counted(pattern, widths)


@given(widths_of_parts)
def test_the_two_exchanges_of_a_master_are_counted_separately(widths: list[int]) -> None:
    kernel = [from_kernel("master-workers", widths, exchange) for exchange in (OUT, BACK)]
    assert kernel == counted("master-workers", widths)


@pytest.mark.parametrize("width", range(1, 65))
@pytest.mark.parametrize("pattern", ONE_EXCHANGE)
def test_the_record_has_the_messages_of_the_busiest_rank(pattern: str, width: int) -> None:
    record = Communication(fraction=0.5, message_bytes=1, pattern=pattern).records([width])[0]
    sent = Counter(one for exchange in messages(pattern, width) for one, _ in exchange)
    assert record["messages"] == max(sent.values(), default=0)


@given(st.integers(1, 3000), st.integers(1, 3))
def test_the_sides_of_a_rank_grid_ascend_and_multiply_to_the_width(width: int, dimensions: int) -> None:
    sides = rank_grid(width, dimensions)
    assert len(sides) == dimensions
    assert list(sides) == sorted(sides)
    assert int(np.prod(sides)) == width
    assert max(side for side in range(1, width + 1) if width % side == 0 and side**dimensions <= width) in sides
