"""How cores, memory and GPUs were used: metrics, files and plots of sites that count them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.grid.kernels.state import FRAGMENT
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import Placement, SimulationResult
from gridweave.scenarios.results.tables import gpu_rows, resource_rows
from gridweave.scenarios.workload.chunks import with_chunks
from gridweave.scenarios.workload.table import Workload
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk, NodeKind

GPU = NodeKind(name="gpu", count=2, cores=8, memory_mb=1000, gpus=4, gpu_type="a100", others=(("fpga", 1),))
CPU = NodeKind(name="cpu", count=2, cores=16, memory_mb=3000)
MIXED = (GPU, CPU)


def jobs_of(*jobs: tuple[int, int, Chunk | None]) -> Workload:
    """Return jobs, each with its width, its run time in seconds, and its chunk, all submitted at time zero."""
    n = len(jobs)
    run_ms = np.array([run_s * 1000 for _, run_s, _ in jobs])
    workload = Workload(np.arange(1, n + 1), np.zeros(n, np.int64), np.array([job[0] for job in jobs]), run_ms, run_ms)
    return with_chunks(workload, [job[2] for job in jobs])


def on_one_site(workload: Workload, kinds: tuple[NodeKind, ...] = MIXED) -> SimulationResult:
    """Return a result in which all jobs ran from their submission on."""
    start_ms = workload.submit_ms
    nodes = sum(kind.count for kind in kinds)
    return SimulationResult(
        workload=workload, nodes=nodes, start_ms=start_ms, end_ms=start_ms + workload.run_ms, site_kinds=(kinds,)
    )


def utils(result: SimulationResult) -> dict[tuple[int, str], tuple[int, float]]:
    return {(use.site, use.resource): (use.total, use.util) for use in result.resource_uses()}


def test_utilisation_is_what_jobs_asked_for_of_what_the_nodes_have() -> None:
    jobs = jobs_of((2, 10, Chunk(cores=4, memory_mb=500, gpus=2, others=(("fpga", 1),))), (1, 5, Chunk(cores=16)))
    assert utils(on_one_site(jobs)) == {
        (0, "cores"): (48, pytest.approx((2 * 4 * 10 + 16 * 5) / 480)),
        (0, "memory_mb"): (8000, pytest.approx(1000 / 8000)),
        (0, "gpus"): (8, pytest.approx(4 / 8)),
        (0, "fpga"): (2, pytest.approx(1.0)),
    }


def test_a_whole_node_counts_as_the_average_of_the_nodes_that_suit_the_job() -> None:
    any_node, gpu_node = jobs_of((1, 10, None)), jobs_of((1, 10, Chunk(cores=0, exclusive=True, labels=("gpu",))))
    assert [utils(on_one_site(jobs))[0, "cores"][1] for jobs in (any_node, gpu_node)] == [12 / 48, 8 / 48]
    assert on_one_site(gpu_node).workload.chunks[0] != WHOLE_NODE
    assert [utils(on_one_site(jobs))[0, "gpus"][1] for jobs in (any_node, gpu_node)] == [2 / 8, 4 / 8]


def test_memory_that_some_nodes_do_not_count_has_no_utilisation() -> None:
    kinds = (GPU, NodeKind(name="plain", count=1))
    assert (0, "memory_mb") not in utils(on_one_site(jobs_of((1, 10, Chunk(memory_mb=10))), kinds))


def test_metrics_count_cores() -> None:
    result = on_one_site(jobs_of((2, 10, Chunk(cores=4)), (1, 5, Chunk(cores=16))))
    assert (result.capacity, result.unit) == (48, "cores")
    metrics = result.metrics()
    assert metrics.util == pytest.approx(160 / 480)
    assert metrics.mean_width == pytest.approx((8 + 16) / 2)
    assert metrics.area_node_ms == 160_000


def test_more_chunks_than_nodes_are_no_error() -> None:
    assert on_one_site(jobs_of((40, 10, Chunk()))).metrics().util == pytest.approx(40 / 48)


def test_sites_are_measured_one_by_one() -> None:
    """The first job is split across both sites; the third site counts nodes, each as one core."""
    jobs = jobs_of((5, 10, Chunk(cores=2, gpus=1)), (3, 10, None))
    fragments = np.array([(0, 2), (1, 3), (2, 3)], FRAGMENT)
    result = SimulationResult(
        workload=jobs,
        nodes=8,
        start_ms=np.zeros(2, np.int64),
        end_ms=jobs.run_ms,
        site_nodes=np.array([2, 2, 4]),
        site_kinds=((GPU,), (GPU,), ()),
        placement=Placement(fragments, np.array([0, 2]), np.array([2, 1])),
        site_names=("a", "b", "c"),
        home=np.zeros(2, np.int64),
    )
    use = {key: util for key, (_, util) in utils(result).items()}
    assert (use[0, "gpus"], use[1, "gpus"], use[2, "cores"]) == (2 / 8, 3 / 8, 3 / 4)
    assert [site.util for site in result.site_uses()] == [4 / 16, 6 / 16, 3 / 4]
    assert result.site_result(1).resource_uses()[2].util == 3 / 8
    assert result.site_result(2).site_kinds == ()
    assert [row[:3] for row in resource_rows(result) if row[1] == "GPUs"] == [("a", "GPUs", "8"), ("b", "GPUs", "8")]


def test_jobs_with_gpus_are_a_class_of_their_own() -> None:
    result = on_one_site(jobs_of((1, 10, Chunk(gpus=1)), (1, 10, Chunk()), (1, 10, None)))
    assert {name: metrics.jobs for name, metrics in result.metrics_by("gpus").items()} == {
        "without GPUs": 2,
        "with GPUs": 1,
    }
    assert [row[:3] for row in gpu_rows(result)] == [("without GPUs", "2", "0"), ("with GPUs", "1", "0")]


def test_a_result_without_jobs_has_no_utilisation() -> None:
    result = on_one_site(jobs_of())
    assert all(math.isnan(util) for _, util in utils(result).values())
    assert [row[2:] for row in gpu_rows(result)] == [("–", "–", "–")] * 2
    result.plot("resources")


def test_files_have_what_jobs_used_and_a_plot(tmp_path: Path) -> None:
    jobs = jobs_of((2, 10, Chunk(cores=4, memory_mb=100, gpus=2)), (1, 10, None))
    result = simulate(jobs, nodes=list(MIXED))
    files = {path.name for path in result.write(tmp_path)}
    assert files == {"jobs.csv", "summary.json", "utilisation.png", "waits.png", "resources.png"}
    lines = (tmp_path / "jobs.csv").read_text().splitlines()
    assert lines[0].endswith("killed,cores,memory_mb,gpus,fpga")
    assert lines[1].endswith(",0,8,200,4,0")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["resources"][2] == {"site": "site", "resource": "gpus", "total": 8, "util": 0.75}
    assert set(summary["metrics_by"]["gpus"]) == {"with GPUs", "without GPUs"}


def test_jobs_on_shared_nodes_are_not_drawn_as_rectangles() -> None:
    with pytest.raises(OptionError, match="cannot be drawn where jobs share nodes"):
        on_one_site(jobs_of((1, 10, Chunk()))).plot("schedule")


def test_sites_of_whole_nodes_have_no_resources() -> None:
    jobs = Workload([1], [0], [2], [9], [9])
    result = simulate(jobs, nodes=4)
    assert (result.resource_uses(), result.capacity, result.unit) == ([], 4, "nodes")
    assert "resources" not in result.summary()
    with pytest.raises(OptionError, match="'resources' is not a plot"):
        result.plot("resources")
