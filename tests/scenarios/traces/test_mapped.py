"""Tables of jobs whose columns are named by a map, shaped like the traces of Philly, Helios and PAI."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from gridweave.errors import ProblemsError, TraceError
from gridweave.scenarios.traces.convert import ConversionReport
from gridweave.scenarios.traces.mapped import parse_map, read_table_of_jobs
from gridweave.scenarios.workload.table import Workload
from gridweave.site.resources.chunks import Chunk

TABLES = Path(__file__).parents[2] / "data" / "tables"
PHILLY = (
    "job_id=jobid,user=user,queue=vc,submit=submitted_time,start=start_time,end=end_time",
    "chunks=gpu_num,cores=4,gpus=1",
)
HELIOS = "job_id=job_id,user=user,submit=submit_time,run=duration,nodes=node_num,cores=cpu_num,gpus=gpu_num,queue=queue"
PAI = "job_id=#1,chunks=#3,submit=#5,start=#5,end=#6,cores=#7:%,memory=#8:GB,gpus=#9:%,gpu_type=#10"


def read(name: str, *texts: str, nodes: int | None = 100) -> tuple[Workload, ConversionReport]:
    return read_table_of_jobs(TABLES / name, parse_map(texts), nodes=nodes)


def read_text(tmp_path: Path, text: str, *texts: str, **more: Any) -> tuple[Workload, ConversionReport]:
    path = tmp_path / "jobs.csv"
    path.write_text(text, encoding="utf-8")
    return read_table_of_jobs(path, parse_map(texts), nodes=10, **more)


def chunks_of(workload: Workload) -> list[Chunk | None]:
    chunks: list[Chunk | None] = [*workload.chunks, None]
    return [chunks[number] for number in workload.columns["chunk"].tolist()]


def problems_of(error: ProblemsError) -> list[str]:
    return [str(problem) for problem in error.problems]


def test_a_table_with_a_gpu_per_chunk_is_read_like_philly() -> None:
    workload, report = read("philly.csv", *PHILLY)
    assert workload.job_id.tolist() == [2, 1, 5]  # the ids are texts, so jobs are numbered as they are listed
    assert workload.submit_ms.tolist() == [0, 60_000, 307_000]
    assert workload.run_ms.tolist() == [1_800_000, 3_540_000, 7_200_000]
    assert workload.width.tolist() == [1, 8, 16]
    assert chunks_of(workload) == [Chunk(cores=4, gpus=1)] * 3
    assert workload.columns["user"].tolist() == [1, 1, -1]
    assert workload.columns["job_class"].tolist() == [1, 1, 2]
    start = dt.datetime.fromtimestamp(workload.start_unix_s or 0, dt.UTC)
    assert start == dt.datetime(2017, 10, 9, 7, 0, 53, tzinfo=dt.UTC)
    assert (report.kept, report.reordered, report.dropped["zero_run_time"]) == (3, 1, 1)
    assert report.dropped["negative_run_time"] == 1


def test_amounts_of_a_whole_job_are_shared_among_its_nodes_like_in_helios() -> None:
    workload, report = read("helios.csv", HELIOS)
    assert workload.width.tolist() == [1, 4, 1]
    assert chunks_of(workload) == [Chunk(cores=64, gpus=8), Chunk(cores=63, gpus=8), Chunk(cores=4)]
    assert (report.rounded, report.dropped["wrong_amount"]) == (1, 1)
    assert "  dropped 1: cores, memory or GPUs negative or too large" in report.lines()
    assert "  changed 1: cores, memory or GPUs of a chunk rounded up" in report.lines()
    assert workload.start_unix_s == dt.datetime.fromisoformat("2020-04-01T00:08:01+08:00").timestamp()


def test_percentages_and_columns_by_position_are_read_like_pai() -> None:
    workload, report = read("pai.csv", PAI)
    assert chunks_of(workload) == [
        Chunk(cores=6, memory_mb=29_297, gpus=1, gpu_type="T4"),
        Chunk(cores=5),
        Chunk(cores=12, memory_mb=59_000, gpus=8, gpu_type="V100M32"),
    ]
    assert workload.width.tolist() == [2, 1, 20]
    assert workload.submit_ms.tolist() == [0, 11_500, 81_000]
    assert workload.start_unix_s is None
    assert report.rounded == 1  # a quarter of a GPU


def test_units_convert_times_and_memory(tmp_path: Path) -> None:
    table = "a,b,c,d\n1500,2,0.5,2048\n2500,3,1.5,-1\n"
    workload, _ = read_text(tmp_path, table, "submit=a:ms,run=b:min,limit=c:h,memory=d:MiB")
    assert workload.submit_ms.tolist() == [500, 1500]
    assert (workload.run_ms.tolist(), workload.estimate_ms.tolist()) == ([120_000, 180_000], [1_800_000, 5_400_000])
    assert chunks_of(workload) == [Chunk(memory_mb=2148), Chunk()]


def test_no_memory_is_not_counted(tmp_path: Path) -> None:
    workload, _ = read_text(tmp_path, "a,b,c\n1,2,0GB\n2,2,0\n3,2,16G\n", "submit=a,run=b,memory=c")
    assert chunks_of(workload) == [Chunk(), Chunk(), Chunk(memory_mb=16_000)]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_delimiters_are_recognised(tmp_path: Path, delimiter: str) -> None:
    table = "when,length\n0,1-00:00:00\n5,1h30m\n".replace(",", delimiter)
    workload, _ = read_text(tmp_path, table, "submit=when,run=length")
    assert workload.run_ms.tolist() == [86_400_000, 5_400_000]
    assert "chunk" not in workload.columns


def test_a_column_whose_name_ends_like_a_unit_keeps_its_name(tmp_path: Path) -> None:
    workload, _ = read_text(tmp_path, "when:ms,run\n7,1\n9,1\n", "submit=when:ms,run=run")
    assert workload.submit_ms.tolist() == [0, 2000]


def test_wrong_maps_are_refused_with_all_their_problems() -> None:
    with pytest.raises(ProblemsError) as error:
        parse_map(["sumbit=a,run=b,run=c,nodes=d,chunks=e,gpu_type=f,cores"])
    problems = problems_of(error.value)
    assert problems[0].startswith("--map: 'sumbit=a' is not KEY=COLUMN with a key of job_id, submit")
    assert [problem.partition(";")[0] for problem in problems[1:]] == [
        "--map: run appears twice",
        "--map: 'cores' is not KEY=COLUMN with a key of " + problems[0].rpartition("key of ")[2],
        "--map: has no submit",
        "--map: has nodes and chunks",
        "--map: has gpu_type but no gpus",
    ]


def test_unknown_columns_are_refused_together_with_the_names_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError) as error:
        read_text(tmp_path, "when,length\n1,2\n", "submit=time,run=length,gpus=gpu")
    assert problems_of(error.value) == [
        f"{tmp_path}/jobs.csv: there is no column 'time' for submit; it has when, length",
        f"{tmp_path}/jobs.csv: there is no column 'gpu' for gpus; it has when, length",
    ]


def test_values_that_cannot_be_read_are_listed_with_their_lines(tmp_path: Path) -> None:
    table = "when,length,n,gpus,mem\nyesterday,2,1,1,8GB\n1,soon,1.5,two,8 bytes of it\n1,2,1,1,\n"
    with pytest.raises(ProblemsError) as error:
        read_text(tmp_path, table, "submit=when,run=length,nodes=n,gpus=gpus,memory=mem")
    assert [text.removeprefix(f"{tmp_path}/jobs.csv:").partition(";")[0] for text in problems_of(error.value)] == [
        "2: when: 'yesterday' is not a time",
        "3: gpus: 'two' is not a number",
        "3: length: 'soon' is not a time",
        "3: mem: '8 bytes of it' is not an amount of memory",
        "3: n: '1.5' is not a whole number up to 10000000",
    ]


def test_a_long_list_of_problems_is_cut(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError) as error:
        read_text(tmp_path, "a,b\n" + "x,1\n" * 30, "submit=a,run=b")
    assert len(error.value.problems) == 21
    assert str(error.value.problems[-1]).endswith("10 more values cannot be read")


def test_lines_of_another_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match=":3: has 1 fields; the first line has 2"):
        read_text(tmp_path, "a,b\n1,2\n1\n", "submit=a,run=b")


@pytest.mark.parametrize(("table", "problem"), [("", "is empty"), ("a,b\n", "contains no jobs")])
def test_a_table_without_jobs_is_refused(tmp_path: Path, table: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_text(tmp_path, table, "submit=a,run=b")


def test_the_size_of_the_machine_must_be_given() -> None:
    with pytest.raises(TraceError, match="give it with --nodes"):
        read("helios.csv", HELIOS, nodes=None)


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = {
        "id": [7, 8],
        "submit": [dt.datetime(2020, 5, 1, tzinfo=dt.UTC), dt.datetime(2020, 5, 1, 0, 1, tzinfo=dt.UTC)],
        "run": [dt.timedelta(minutes=2), dt.timedelta(seconds=1)],
        "gpus": [2.0, None],
        "type": ["Tesla V100", None],
    }
    parquet.write_table(pyarrow.table(table), tmp_path / "jobs.parquet")
    entries = parse_map(["job_id=id,submit=submit,run=run,gpus=gpus,gpu_type=type"])
    workload, _ = read_table_of_jobs(tmp_path / "jobs.parquet", entries, nodes=10, file_format="parquet")
    assert (workload.job_id.tolist(), workload.submit_ms.tolist()) == ([7, 8], [0, 60_000])
    assert workload.run_ms.tolist() == [120_000, 1000]
    assert chunks_of(workload) == [Chunk(gpus=2, gpu_type="Tesla-V100"), Chunk()]


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(TraceError, match="is not a Parquet file"):
        read_text(tmp_path, "a,b\n1,2\n", "submit=a,run=b", file_format="parquet")
