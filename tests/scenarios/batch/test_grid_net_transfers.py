"""Transfers of input and output as flows on links, by hand (docs/grid.md, "Transfers under contention")."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from gridweave.errors import InputError
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.changes import CableChange, Timetable
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.simulate import simulate_world
from support.builders import as_in_thesis

POLICY = GridPolicy(mode="sharing")
SIZE = 2_000_000
"""Bytes that take two seconds."""


def two_sites() -> NetworkModel:
    """Return two sites joined by a link of a thousand bytes per millisecond."""
    graph: nx.Graph[int] = nx.path_graph(2)
    nx.set_edge_attributes(graph, 0.0, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=8e6)
    return NetworkModel(topology, find_paths(topology))


def jobs_of(rows: list[tuple[int, int, int, int, int]]) -> Workload:
    """Return jobs of (submit, width, run, input bytes, output bytes) with data at site 1 and perfect estimates."""
    submit, width, run, fetched, sent = (np.array(column) for column in zip(*rows, strict=True))
    home = np.ones(len(rows), np.int64)
    return Workload(
        job_id=np.arange(len(rows)),
        submit_ms=submit,
        width=width,
        estimate_ms=run,
        run_ms=run,
        columns={"input_bytes": fetched, "input_site": home, "output_bytes": sent, "output_site": home},
    )


def simulated(jobs: Workload, nodes: list[int], net: GridNet) -> SimulationResult:
    """Return the result of the batch driver, after checking that the simulated world agrees."""
    result = simulate(jobs, nodes, POLICY, net=net)
    world = simulate_world(jobs, nodes, POLICY, rng=np.random.default_rng(1), net=net, check=True)
    assert world.start_ms.tolist() == result.start_ms.tolist()
    assert world.end_ms.tolist() == result.end_ms.tolist()
    assert world.columns["transfer_ms"].tolist() == result.columns["transfer_ms"].tolist()
    return result


@pytest.mark.parametrize(
    ("contention", "end_ms", "moved_ms"),
    [
        ("none", [12_000, 13_000], [2_000, 2_000]),
        # The second sets out when the first is halfway, and has half of the link for good.
        ("static", [12_000, 15_000], [2_000, 4_000]),
        # From 1,000 ms on both have half of it; the first is there at 3,000 ms, the second at 4,000 ms.
        ("dynamic", [13_000, 14_000], [3_000, 3_000]),
    ],
)
def test_simultaneous_inputs_share_a_link(contention: str, end_ms: list[int], moved_ms: list[int]) -> None:
    """Work begins when the input has arrived."""
    jobs = jobs_of([(0, 4, 10_000, SIZE, 0), (1_000, 4, 10_000, SIZE, 0)])
    result = simulated(jobs, [8, 1], as_in_thesis(two_sites(), data="blocking", contention=contention))
    assert result.start_ms.tolist() == [0, 1_000]
    assert result.end_ms.tolist() == end_ms
    assert result.columns["transfer_ms"].tolist() == moved_ms


@pytest.mark.parametrize(
    ("contention", "end_ms"),
    [("none", [4_000, 4_500]), ("static", [4_000, 5_500]), ("dynamic", [4_500, 5_000])],
)
def test_simultaneous_outputs_share_a_link(contention: str, end_ms: list[int]) -> None:
    """Output is sent after the work and holds the nodes until it arrives."""
    jobs = jobs_of([(0, 4, 3_000, 0, SIZE // 2), (0, 4, 3_500, 0, SIZE // 2), (3_600, 8, 1_000, 0, 0)])
    result = simulated(jobs, [8, 1], as_in_thesis(two_sites(), data="blocking", contention=contention))
    assert result.end_ms.tolist() == [*end_ms, max(end_ms) + 1_000]


@pytest.mark.parametrize(
    ("contention", "start_ms", "end_ms"),
    [
        # On idle links: at 1,500 ms half a second of the input is left, and of the other nothing when it starts.
        ("none", [1_500, 3_000], [3_000, 4_000]),
        # The second has half of the link for good: four seconds from 500 ms on.
        ("static", [1_500, 3_000], [3_000, 5_500]),
        # From 500 ms on each has half; the first is there at 3,500 ms, the second at 4,000 ms, before it starts.
        ("dynamic", [1_500, 4_500], [4_500, 5_500]),
    ],
)
def test_prefetched_inputs_of_waiting_jobs_share_the_links(
    contention: str, start_ms: list[int], end_ms: list[int]
) -> None:
    jobs = jobs_of([(0, 4, 1_500, 0, 0), (0, 4, 90_000, 0, 0), (0, 4, 1_000, SIZE, 0), (500, 4, 1_000, SIZE, 0)])
    result = simulated(jobs, [4, 4], as_in_thesis(two_sites(), data="prefetch", contention=contention))
    assert [result.fragments_of(row)[0][0] for row in range(4)] == [0, 1, 0, 0]
    assert result.start_ms.tolist()[2:] == start_ms
    assert result.end_ms.tolist()[2:] == end_ms


def test_input_for_unused_sites_stops_at_the_start() -> None:
    """Its share of the link is free for other transfers."""
    jobs = jobs_of([(0, 4, 1_000, 0, 0), (0, 4, 1_000, 0, 0), (0, 4, 9_000, SIZE, 0), (0, 4, 9_000, SIZE, 0)])
    jobs = jobs.replace(run_ms=np.array([1_000, 500, 9_000, 9_000]))
    result = simulated(jobs, [4, 4], as_in_thesis(two_sites(), data="prefetch", contention="dynamic"))
    assert [result.fragments_of(row)[0][0] for row in range(4)] == [0, 1, 1, 0]
    # Until 500 ms both went to site 0, each at half the rate; then one has 1,750 ms left, of which 500 pass waiting.
    assert result.start_ms.tolist()[2:] == [500, 1_000]
    assert result.columns["transfer_ms"].tolist()[2:] == [0, 1_250]


@pytest.mark.parametrize("contention", ["static", "dynamic"])
def test_output_waits_for_a_failed_link(contention: str) -> None:
    """If the link never recovers, the simulation is refused."""
    jobs, model = jobs_of([(0, 4, 3_000, 0, SIZE // 4)]), two_sites()
    down, up = CableChange(1_000, "link", (0,), 0.0), CableChange(5_000, "link", (0,), 1.0)
    for changes, end_ms in (([down, up], 5_500), ([], 3_500)):
        timetable = Timetable.of(model.topology, changes)
        net = as_in_thesis(model, timetable, data="blocking", contention=contention)
        assert simulated(jobs, [4, 1], net).end_ms.tolist() == [end_ms]
    for_ever = as_in_thesis(model, Timetable.of(model.topology, [down]), data="blocking", contention=contention)
    with pytest.raises(InputError, match="job 0 waits for its input or output, which has no bandwidth"):
        simulate(jobs, [4, 1], POLICY, net=for_ever)
