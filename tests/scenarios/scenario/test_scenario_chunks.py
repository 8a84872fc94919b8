"""Scenarios with kinds of nodes: what jobs ask for, the jobs that can never run, and the scenario `gpu-clusters`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gridweave.errors import ScenarioError
from gridweave.scenarios.live.submissions import compressed
from gridweave.scenarios.scenario.build import build_scenario, draws_at_random
from gridweave.scenarios.scenario.read import read_scenario
from gridweave.scenarios.scenario.run import run_scenario
from gridweave.scenarios.workload.homes import home_of
from gridweave.site.resources.chunks import Chunk

PAGE = Path(__file__).parents[3] / "docs" / "scenarios.md"
TABLE = re.compile(r"\| .+\| \d+% \| \d+% \| \d+ \| \d+ \|$")

SCENARIO = """\
[[sites]]
name = "gpu"
kinds = [{ name = "gpu", count = 4, cores = 8, gpus = "a100:4" }]
[[sites]]
name = "cpu"
kinds = [{ name = "cpu", count = 4, cores = 16 }]
[workload]
trace = "jobs.swf"
chunks = "cores"
[grid]
mode = "local"
"""
SWF = "".join(f"{job} {job} -1 100 {job} -1 -1 {job} 100 {job}000 1 -1 -1 -1 -1 -1 -1 -1\n" for job in range(1, 5))


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "jobs.swf").write_text(f"; MaxProcs: 64\n{SWF}")
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    return path


def problems(path: Path, *overrides: str, text: str | None = None) -> list[str]:
    if text is not None:
        path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        build_scenario(path, overrides)
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def test_each_processor_of_the_trace_is_a_chunk(scenario: Path) -> None:
    built = build_scenario(scenario)
    assert [chunk.memory_mb for chunk in built.workload.chunks] == [2, 3, 4, 5]
    assert run_scenario(scenario).ran.all()


def test_chunks_are_read_from_a_file_next_to_the_scenario(scenario: Path) -> None:
    (scenario.parent / "c.csv").write_text("job_id,cores,gpus\n1,2,1\n2,2,\n3,1,1\n4,0,\n")
    built = build_scenario(scenario, ["workload.chunks=c.csv", "workload.home={gpu = 1}"])
    assert built.workload.chunks == (Chunk(cores=2, gpus=1), Chunk(cores=2), Chunk(gpus=1))


def test_jobs_that_can_never_run_at_home_are_reported_or_left_out(scenario: Path) -> None:
    (scenario.parent / "c.csv").write_text("job_id,cores,gpus\n1,1,8\n2,2,\n3,1,\n4,0,\n")
    (problem,) = problems(scenario, "workload.chunks=c.csv")
    assert "1 job can never run; the widest, job 1: in mode local at gpu a chunk needs 8 GPUs" in problem
    run = run_scenario(scenario, overrides=["workload.chunks=c.csv", "workload.drop_wide=true"])
    assert run.workload.job_id.tolist() == [2, 3, 4]
    assert "left out because of drop_wide" in run.remarks[-1]


def test_drawn_chunks_follow_their_ranges_and_homes(scenario: Path) -> None:
    chunks = [
        {"share": 1, "cores": 2, "memory": ["1GB", "2GB"], "homes": ["cpu"]},
        {"share": 3, "cores": [1, 2], "gpus": [1, 2], "gpu_type": "a100", "max_chunks": 2, "homes": ["gpu"]},
    ]
    built = build_scenario(scenario, {"workload.chunks": chunks})
    with_gpus = np.array([chunk.gpus > 0 for chunk in built.workload.chunks])[built.workload.columns["chunk"]]
    assert np.array_equal(with_gpus, home_of(built.workload) == 0)
    assert built.workload.width.tolist() == [1, 2, 2, 4]
    assert {chunk.gpu_type for chunk in built.workload.chunks if chunk.gpus} == {"a100"}
    assert draws_at_random(built.scenario)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("workload.chunks=[{ cores = 0 }]", "workload.chunks.cores: is 0 to 0; expected a range within 1"),
        ("workload.chunks=[{ gpus = 0.5 }]", "a whole number or a list is needed"),
        ('workload.chunks=[{ memory = "-8GB" }]', "workload.chunks.memory: '-8GB' is not an amount of data"),
        ('workload.chunks=[{ memory = ["8GB", "1GB"] }]', "workload.chunks.memory_mb: is 8000 to 1000"),
        ("workload.chunks=[{ share = -1 }]", "workload.chunks.share: is -1"),
        ("workload.chunks=[{ share = 0 }]", "has no share above 0"),
        (
            'workload.chunks=[{ homes = ["x"] }]',
            "workload.chunks.homes: there is no site 'x'; expected some of gpu, cpu",
        ),
        ("workload.chunks=nodes", "'nodes' is not known; give cores, or a .csv file"),
        ("workload.chunks=missing.csv", "missing.csv: there is no such file"),
    ],
)
def test_wrong_chunks_are_reported(scenario: Path, override: str, problem: str) -> None:
    assert any(problem in line for line in problems(scenario, override))


def test_chunks_need_a_site_that_counts_resources(scenario: Path) -> None:
    (line,) = problems(scenario, "sites.gpu.nodes=4", "sites.cpu.nodes=4")
    assert "workload.chunks: needs a site with kinds of nodes" in line


def with_traces(chunks: str) -> str:
    """Return a scenario in which both sites' users have the same trace."""
    traces = '[workload.traces]\ngpu = "jobs.swf"\ncpu = "jobs.swf"'
    return SCENARIO.replace('trace = "jobs.swf"\nchunks = "cores"', f"chunks = {chunks}\n{traces}")


def test_each_trace_has_chunks_of_its_own(scenario: Path) -> None:
    (scenario.parent / "c.csv").write_text("job_id,cores,gpus\n1,2,1\n2,2,\n3,1,1\n4,0,\n")
    scenario.write_text(with_traces('{ gpu = "c.csv", cpu = "cores" }'))
    jobs = build_scenario(scenario).workload
    chunks = [*jobs.chunks, None]
    asked = [chunks[number] for number in jobs.columns["chunk"].tolist()]
    home = home_of(jobs)
    assert [chunk for chunk, site in zip(asked, home, strict=True) if site == 0] == [
        *(Chunk(cores=2, gpus=1), Chunk(cores=2), Chunk(gpus=1), None)
    ]
    assert [chunk.memory_mb for chunk, site in zip(asked, home, strict=True) if site == 1 and chunk] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("chunks", "problem"),
    [
        ('"c.csv"', "workload.chunks: is one file for several traces; give one for each"),
        ('{ disk = "cores" }', "workload.chunks.disk: there is no trace of 'disk'; expected some of gpu, cpu"),
        ('{ gpu = "missing.csv" }', "workload.chunks.gpu: missing.csv: there is no such file"),
    ],
)
def test_wrong_chunks_of_traces_are_reported(scenario: Path, chunks: str, problem: str) -> None:
    assert any(problem in line for line in problems(scenario.parent / "s.toml", text=with_traces(chunks)))


def test_chunks_of_sites_need_traces(scenario: Path) -> None:
    (line,) = problems(scenario, 'workload.chunks={ gpu = "cores" }')
    assert "names sites, which requires traces" in line


def test_merged_traces_keep_their_memory(scenario: Path) -> None:
    scenario.write_text(with_traces('"cores"'))
    assert [chunk.memory_mb for chunk in build_scenario(scenario).workload.chunks] == [2, 3, 4, 5]


def test_live_runs_submit_the_chunks(scenario: Path) -> None:
    requests = [job.request for job in compressed(build_scenario(scenario), 1000, "run")]
    assert [(request.nodes, request.chunk) for request in requests] == [
        (width, Chunk(memory_mb=memory_mb)) for width, memory_mb in zip((1, 2, 3, 4), (2, 3, 4, 5), strict=True)
    ]


def test_gpu_clusters_runs_each_site_by_itself() -> None:
    run = run_scenario("gpu-clusters", overrides={"grid.mode": "local", "workload.jobs": 300})
    assert run.ran.all()
    uses = {(run.site_names[use.site], use.resource): use.total for use in run.resource_uses()}
    assert (uses["vision", "gpus"], uses["language", "gpus"]) == (48, 32)
    assert ("physics", "gpus") not in uses
    assert [site.kinds is not None for site in read_scenario("gpu-clusters").sites if not isinstance(site, str)] == [
        True
    ] * 3


def test_the_page_has_the_figures_of_gpu_clusters() -> None:
    """Every figure in the table of docs/scenarios.md is that of a run."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    printed = [re.findall(r"\d+", line.partition("|")[2].partition("|")[2]) for line in lines if TABLE.match(line)]
    for row, mode in zip(printed, ("local", "sharing"), strict=True):
        run = run_scenario("gpu-clusters", overrides={"grid.mode": mode})
        gpus = [use.util for use in run.resource_uses() if use.resource == "gpus"]
        waits = {name: metrics.awt_ms / 60_000 for name, metrics in run.metrics_by("gpus").items()}
        figures = [*(100 * util for util in gpus), waits["with GPUs"], waits["without GPUs"]]
        assert row == [f"{figure:.0f}" for figure in figures]
