"""The grid with a network: limiting cases, changes over time, and errors."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest

from gridweave.errors import InputError, OptionError
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.changes import CableChange, Timetable
from gridweave.netmodel.communication import PATTERNS
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import Workload
from support.builders import as_in_thesis, random_jobs, to_workload

RING = tuple(PATTERNS).index("ring")
ALL_TO_ALL = tuple(PATTERNS).index("all-to-all")


def row_of_sites(sites: int, latency_ms: float = 1.0, bandwidth_bps: float = 1e8) -> NetworkModel:
    """Return sites in a row."""
    graph = nx.path_graph(sites)
    nx.set_edge_attributes(graph, latency_ms, "latency_ms")
    topology = topology_of_graph(graph, bandwidth_bps=bandwidth_bps)
    return NetworkModel(topology, find_paths(topology))


def jobs_of(rows: list[tuple[int, int, int]], **columns: Any) -> Workload:
    """Return jobs of (submit, width, estimate) with perfect estimates and the same columns."""
    submit, width, estimate = (list(column) for column in zip(*rows, strict=True))
    return Workload(
        job_id=np.arange(len(rows)),
        submit_ms=submit,
        width=width,
        estimate_ms=estimate,
        run_ms=estimate,
        columns={name: np.full(len(rows), value) for name, value in columns.items()},
    )


TALK = {"pattern": ALL_TO_ALL, "communication_fraction": 0.5, "message_bytes": 100_000}


def same(one: SimulationResult, other: SimulationResult) -> bool:
    """Whether two schedules are equal, job by job."""
    return (
        one.start_ms.tolist() == other.start_ms.tolist()
        and one.end_ms.tolist() == other.end_ms.tolist()
        and one.fragments.tolist() == other.fragments.tolist()
    )


@pytest.mark.parametrize("backfill", ["none", "easy", "conservative"])
@pytest.mark.parametrize("mode", ["sharing", "multi-site", "adaptive"])
def test_a_network_without_cost_gives_the_schedule_of_overhead_zero(mode: str, backfill: str) -> None:
    """Links are infinitely fast, or jobs send nothing; contention does not matter."""
    rng = np.random.default_rng(5)
    policy = GridPolicy(mode=mode, backfill=backfill)
    fast, slow = row_of_sites(3, 0.0, 1e30), row_of_sites(3, 50.0, 1e6)
    for contention in ("none", "static", "dynamic"):
        workload = to_workload(random_jobs(rng, 60, 24, load=1.1, tick=100))
        columns = dict(workload.columns) | {name: np.full(60, value) for name, value in TALK.items()}
        talking = workload.replace(columns=columns)
        silent = workload.replace(columns=columns | {"pattern": np.zeros(60, np.int64)})
        want = simulate(workload, [8, 8, 8], policy)
        assert same(want, simulate(talking, [8, 8, 8], policy, net=as_in_thesis(fast, contention=contention)))
        for jobs in (workload, silent):
            assert same(want, simulate(jobs, [8, 8, 8], policy, net=as_in_thesis(slow, contention=contention)))


@pytest.mark.parametrize("contention", ["none", "static", "dynamic"])
@pytest.mark.parametrize("split", ["fewest", "earliest-end"])
def test_conservative_backfilling_with_a_network_is_valid(split: str, contention: str) -> None:
    """No node is used twice, and every job runs at least for its length."""
    rng = np.random.default_rng(6)
    model, nodes = row_of_sites(3, 0.5, 5e7), [8, 6, 4]
    cut = Timetable.of(model.topology, [CableChange(5_000, "link", (0,), 0.0), CableChange(30_000, "link", (0,), 1.0)])
    slowest = 1.0
    for _ in range(5):
        workload = to_workload(random_jobs(rng, 60, 18, load=1.1, tick=100))
        columns = dict(workload.columns) | {name: np.full(60, value) for name, value in TALK.items()}
        net = as_in_thesis(model, cut, contention=contention, split=split)
        policy = GridPolicy(mode="multi-site", backfill="conservative")
        result = simulate(workload.replace(columns=columns), nodes, policy, net=net)
        assert not result.refused
        assert (result.start_ms >= workload.submit_ms).all()
        length_ms = np.ceil(workload.run_ms * result.columns["factor"])
        assert ((result.end_ms - result.start_ms) >= length_ms).all()
        slowest = max(slowest, float(result.columns["slowdown"].max()))
        for now_ms in result.start_ms.tolist():
            used = np.zeros(3, np.int64)
            for row in np.flatnonzero((result.start_ms <= now_ms) & (now_ms < result.end_ms)):
                for site, width in result.fragments_of(int(row)):
                    used[site] += width
            assert (used <= nodes).all()
    assert (slowest > 1) == (contention != "none")


def test_static_contention_slows_the_second_job_and_dynamic_both() -> None:
    jobs = jobs_of([(0, 9, 10_000), (2_000, 7, 10_000)], **TALK)
    took_ms = {}
    for contention in ("none", "static", "dynamic"):
        net = as_in_thesis(row_of_sites(4), contention=contention)
        result = simulate(jobs, [5, 3, 4, 4], GridPolicy(mode="multi-site"), net=net)
        # Their paths have the link in the middle in common.
        assert [[site for site, _ in result.fragments_of(row)] for row in (0, 1)] == [[0, 2], [3, 1]]
        assert result.start_ms.tolist() == [0, 2_000]
        took_ms[contention] = (result.end_ms - result.start_ms).tolist()
    none, static, dynamic = took_ms["none"], took_ms["static"], took_ms["dynamic"]
    assert static[0] == none[0]
    assert none[1] < dynamic[1] <= static[1]
    assert none[0] < dynamic[0]


def test_a_failed_link_delays_a_split_job_by_its_downtime() -> None:
    model = row_of_sites(2)
    cut = Timetable.of(model.topology, [CableChange(3_000, "link", (0,), 0.0), CableChange(50_000, "link", (0,), 1.0)])
    jobs = jobs_of([(0, 8, 10_000), (4_000, 8, 1_000)], **TALK)
    policy = GridPolicy(mode="multi-site")
    before = simulate(jobs, [4, 4], policy, net=as_in_thesis(model))
    for contention, later_ms in (("none", 0), ("static", 0), ("dynamic", 47_000)):
        result = simulate(jobs, [4, 4], policy, net=as_in_thesis(model, cut, contention=contention))
        assert result.end_ms[0] - before.end_ms[0] == later_ms
        # The second job cannot be split while the link is down.
        assert result.start_ms[1] == max(50_000, int(result.end_ms[0]))
    for_ever = Timetable.of(model.topology, [CableChange(3_000, "link", (0,), 0.0)])
    with pytest.raises(InputError, match="job 0 runs on several sites and has no bandwidth"):
        simulate(jobs, [4, 4], policy, net=as_in_thesis(model, for_ever, contention="dynamic"))


def test_a_job_that_links_make_unplaceable_is_refused() -> None:
    model = row_of_sites(2)
    cut = Timetable.of(model.topology, [CableChange(3_000, "link", (0,), 0.0)])
    jobs = jobs_of([(0, 8, 9_000), (1_000, 8, 1_000), (4_000, 8, 10), (4_000, 2, 10)], **TALK)
    for backfill in ("none", "easy", "conservative"):
        policy = GridPolicy(mode="multi-site", backfill=backfill)
        result = simulate(jobs, [4, 4], policy, net=as_in_thesis(model, cut))
        assert [job_id for job_id, _ in result.refused] == [1, 2]
        assert all("no path between the sites" in reason for _, reason in result.refused)
        assert result.start_ms[0] == 0
        assert result.start_ms[3] == result.end_ms[0]


def test_blocking_transfers_hold_nodes_before_and_after_the_work() -> None:
    """Prefetched input arrives while the job waits."""
    model = row_of_sites(2, 0.0, 8e6)  # a thousand bytes a millisecond
    columns = {"input_bytes": 2_000_000, "input_site": 1, "output_bytes": 500_000, "output_site": 1}
    jobs = jobs_of([(0, 4, 10_000), (0, 4, 10_000), (0, 4, 10_000)], **columns)
    policy = GridPolicy(mode="sharing")
    blocking = simulate(jobs, [4, 4], policy, net=as_in_thesis(model, data="blocking"))
    # The first is placed where its data is.
    assert [blocking.fragments_of(row)[0][0] for row in range(3)] == [1, 0, 1]
    assert blocking.start_ms.tolist() == [0, 0, 10_000]
    assert blocking.end_ms.tolist() == [10_000, 12_500, 20_000]
    assert blocking.columns["transfer_ms"].tolist() == [0, 2_500, 0]


def test_prefetched_input_shortens_the_wait() -> None:
    """After 1.5 seconds in the queue, an input of two seconds takes half a second more; if blocking, all of it."""
    model = row_of_sites(2, 0.0, 8e6)
    jobs = jobs_of([(0, 4, 1_500), (0, 4, 9_000), (0, 4, 1_000)], input_site=1)
    jobs = jobs.replace(columns=dict(jobs.columns) | {"input_bytes": np.array([0, 0, 2_000_000])})
    for data, end_ms in (("none", 2_500), ("blocking", 4_500), ("prefetch", 3_000)):
        result = simulate(jobs, [4, 4], GridPolicy(mode="sharing"), net=as_in_thesis(model, data=data))
        assert result.start_ms.tolist() == [0, 0, 1_500]
        assert result.end_ms.tolist() == [1_500, 9_000, end_ms]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contention": "some"}, "contention: 'some' is not known"),
        ({"split": "many"}, "split: 'many' is not known"),
        ({"data": "later"}, "data: 'later' is not known"),
        ({"exact_up_to": -1}, "exact_up_to: is -1"),
        ({"timetable": Timetable.of(row_of_sites(2).topology, [])}, "timetable: has another topology"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        GridNet(row_of_sites(2), **options)
    assert message in str(caught.value)


def test_incompatible_options_are_refused() -> None:
    jobs = jobs_of([(0, 1, 10)])
    with pytest.raises(OptionError, match="3 sites and the grid has 2"):
        simulate(jobs, [4, 4], GridPolicy(), net=as_in_thesis(row_of_sites(3)))
    for policy in (GridPolicy(backfill="conservative"), GridPolicy(mode="local")):
        with pytest.raises(OptionError, match="cannot be moved"):
            simulate(jobs, [4, 4], policy, net=as_in_thesis(row_of_sites(2), data="prefetch"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({**TALK, "pattern": 6}, "job 0: pattern 6 is not one of none, all-to-all"),
        ({**TALK, "message_bytes": -1}, "job 0: message_bytes -1 is not within"),
        ({"input_bytes": -5, "input_site": 0}, "job 0: input_bytes -5 is not within"),
        ({"output_bytes": 5, "output_site": 2}, "job 0: output_site 2 is not one of the sites 0 to 1"),
    ],
)
def test_invalid_columns_are_refused_with_their_job(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(jobs_of([(0, 1, 10)], **columns), [4, 4], GridPolicy(), net=as_in_thesis(row_of_sites(2)))
    assert message in str(caught.value)
