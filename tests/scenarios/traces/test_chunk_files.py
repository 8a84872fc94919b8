"""Chunks of a trace's jobs: a file with a line per job, and a chunk for each processor of an SWF trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError, ProblemsError, TraceError
from gridweave.scenarios.traces.chunk_files import (
    chunks_of_processors,
    read_chunks,
    with_chunks_from,
    write_chunks,
)
from gridweave.scenarios.workload.chunks import with_chunks
from gridweave.scenarios.workload.table import Workload
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk


def jobs_of(count: int, **more: np.ndarray) -> Workload:
    each = np.arange(1, count + 1)
    return Workload(each, each, np.full(count, 6), each, each, columns=more)


def chunks_of(workload: Workload) -> list[Chunk | None]:
    chunks: list[Chunk | None] = [*workload.chunks, None]
    return [chunks[number] for number in workload.columns["chunk"].tolist()]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(text, encoding="utf-8")
    return path


CHUNKS = st.builds(
    Chunk,
    cores=st.integers(1, 9),
    memory_mb=st.integers(0, 9999),
    gpus=st.just(2),
    gpu_type=st.sampled_from(["", "a100"]),
    others=st.sampled_from([(), (("fpga", 2), ("lic", 1))]),
    labels=st.sampled_from([(), ("fast-disk", "ib")]),
    exclusive=st.booleans(),
    per_node=st.sampled_from([0, 2, 3]),
)
WHOLE_WITH_LABEL = Chunk(cores=0, exclusive=True, labels=("ib",))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunks=st.lists(st.one_of(st.none(), st.just(WHOLE_WITH_LABEL), CHUNKS), min_size=1, max_size=6))
def test_every_chunk_survives_a_file(tmp_path: Path, chunks: list[Chunk | None]) -> None:
    if not any(chunks):
        chunks = [*chunks, Chunk()]
    jobs = with_chunks(jobs_of(len(chunks)), chunks)
    write_chunks(jobs, tmp_path / "out.csv.gz")
    assert chunks_of(read_chunks(tmp_path / "out.csv.gz", jobs_of(len(chunks)))) == chunks


def test_a_file_is_written_as_people_type_it(tmp_path: Path) -> None:
    jobs = with_chunks(jobs_of(3), [Chunk(cores=4, memory_mb=8000, gpus=1, gpu_type="a100"), None, WHOLE_NODE])
    write_chunks(jobs, tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines == ["job_id,cores,memory,gpus", "1,4,8000MB,a100:1", "2,0,,", "3,0,,"]


def test_a_resource_without_cores_gets_one_core(tmp_path: Path) -> None:
    path = written(tmp_path, "gpus,job_id\nv100:2,1\n,2\n")
    assert chunks_of(read_chunks(path, jobs_of(2))) == [Chunk(cores=1, gpus=2, gpu_type="v100"), None]


def test_lines_of_other_jobs_are_ignored(tmp_path: Path) -> None:
    path = written(tmp_path, "job_id,cores\n7,3\n1,2\n")
    assert chunks_of(read_chunks(path, jobs_of(1))) == [Chunk(cores=2)]


def test_all_wrong_values_are_listed_with_their_lines(tmp_path: Path) -> None:
    text = """\
job_id,cores,memory,gpus,exclusive,per_node
1,2,-8GB,0.5,,
2,1.5,9000PB,,maybe,
3,2,8GB,,,4
3,2,8GB,,,
x,1,,,,
4,-1,8,,,
"""
    path = written(tmp_path, text)
    with pytest.raises(ProblemsError) as error:
        read_chunks(path, jobs_of(4))
    problems = [str(problem).removeprefix(f"{path}:") for problem in error.value.problems]
    assert [problem.partition(";")[0] for problem in problems] == [
        "2: memory: '-8GB' is not an amount of data",
        "2: gpus: '0.5' is not a number of GPUs",
        "3: cores: '1.5' is not a whole number within 0 to 1000000000",
        "3: memory: '9000PB' is too much",
        "3: exclusive: 'maybe' is neither 0 nor 1",
        "4: per_node: is 4",
        "5: job_id: 3 appears twice",
        "6: job_id: 'x' is not the whole number of a job",
        "7: cores: '-1' is not a whole number within 0 to 1000000000",
        "7: memory: '8' has no unit",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("job_id,gpu\n1,1\n", "'gpu' is not the name of a column; expected one of job_id, cores"),
        ("cores\n1\n", "job_id: this column is missing"),
        ("job_id,cores,cores\n1,1,1\n", "cores: this column appears twice"),
        ("job_id,cores\n1\n", ":2: has 1 fields; the header has 2"),
        ("job_id,cores\n1,1\n", "has no line for job 2 and 1 more of workload"),
        ("", "job_id: this column is missing"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_chunks(written(tmp_path, text), jobs_of(3))


def test_whole_nodes_make_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no chunks to write"):
        write_chunks(jobs_of(2), tmp_path / "out.csv")


def test_each_processor_becomes_a_chunk_with_the_memory_requested_for_it() -> None:
    jobs = jobs_of(4, requested_memory_kb=np.array([2048, -1, 0, -1]), memory_kb=np.array([9, 1024**2, 1, -1]))
    chunks = [chunk and (chunk.cores, chunk.memory_mb) for chunk in chunks_of(chunks_of_processors(jobs))]
    assert chunks == [(1, 3), (1, 1074), (1, 1), (1, 0)]


def test_absurd_memory_is_refused_with_its_job() -> None:
    jobs = jobs_of(2, requested_memory_kb=np.array([10, 10**15]))
    with pytest.raises(InputError, match="job 2: memory_mb 1024000000000 is not within"):
        chunks_of_processors(jobs)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(OptionError, match="'sockets' is not known; give cores, or a"):
        with_chunks_from(jobs_of(1), "sockets")
