"""Loading a workload from any format, and saving it."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from gridweave.errors import InputError, OptionError, TraceError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.traces.load import (
    FOLDER_VARIABLE,
    columns_of,
    find_trace,
    format_of,
    load_workload,
    save_workload,
    trace_folders,
)
from gridweave.site.policy import Limit

RECORD = "1 0 -1 10 2 -1 -1 -1 20 -1 1 7 -1 -1 -1 -1 -1 -1\n"
SWF = f"; MaxNodes: 8\n{RECORD}"
MUPSIE = "# Machine Size: 8\n1 0 2 10 20\n"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Set up a folder of traces and a separate cache."""
    mine, cache = tmp_path / "mine", tmp_path / "cache"
    mine.mkdir()
    (cache / "traces").mkdir(parents=True)
    monkeypatch.setenv(FOLDER_VARIABLE, str(mine))
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_: cache)
    return mine, cache / "traces"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (SWF, 6),
        (f"\n\n  {SWF}", 6),
        (RECORD, 6),
        (MUPSIE, 0),
        (f"\n{MUPSIE}", 0),
        ("1 0 2 10 20\n", 0),
    ],
)
def test_the_format_is_detected_from_the_content(tmp_path: Path, text: str, columns: int, pack: Any) -> None:
    path = tmp_path / "data"
    path.write_bytes(pack(text.encode()))
    workload, report = load_workload(path, nodes=8)
    assert (workload.width.tolist(), workload.run_ms.tolist(), report.kept) == ([2], [10_000], 1)
    assert len(columns_of(path)) == columns


@pytest.mark.parametrize("text", [SWF, MUPSIE, RECORD])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_byte_order_mark_is_skipped(tmp_path: Path, text: str, pack: Any) -> None:
    (tmp_path / "plain").write_bytes(pack(text.encode()))
    (tmp_path / "marked").write_bytes(pack(text.encode("utf-8-sig")))
    plain, marked = (load_workload(tmp_path / name, nodes=8)[0] for name in ("plain", "marked"))
    assert marked.job_id.tolist() == plain.job_id.tolist() == [1]


ALEA = "id\tsubmit\twait\truntime\tcpus\tcputimeused\tusedmem\tcpusreq\twalltime\tmemreq\tstatus\tuser\tgroup\t"
ALEA += "application\tqueue\tpartition\tprecjob\tthinktime\tDAG\ttask\n1" + "\t1" * 19 + "\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"nb_res": 4, "jobs": []}', "is JSON, as workloads of Batsim are"),
        ("\n[1, 2]\n", "is JSON, as workloads of Batsim are"),
        (ALEA, "is Alea's variant of SWF with 20 fields"),
        (ALEA.partition("\n")[2], "is Alea's variant of SWF with 20 fields"),
        ("# JobID SubmitTime\n" + "1 " * 29 + "\n", "is GWF, the Grid Workload Format with 29 fields"),
        ("<platform/>", "is XML"),
        ("JobID|JobIDRaw|Submit\n1|1|2023-03-01T08:00:00\n", "is output of sacct; use trace convert --from sacct"),
        ("job_id,submit_ms,start_ms\n1,2,3\n", "is CSV; use trace convert --from csv"),
        ("PAR1\x15\x04\n", "is Parquet; use trace convert --from parquet"),
    ],
)
def test_errors_name_other_known_formats(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    for use in (load_workload, columns_of):
        with pytest.raises(TraceError) as caught:
            use(path)
        assert f"log: {says}" in str(caught.value)
        assert "traces are read in SWF (18 fields) and MuPSiE (5 fields)" in str(caught.value)


def test_nodes_and_columns_reach_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "t.swf"
    path.write_text(SWF)
    workload, _ = load_workload(path, nodes=5, columns=("user",))
    assert (workload.nodes, workload.columns["user"].tolist()) == (5, [7])


def test_simulate_loads_all_columns_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.swf"
    jobs = [(1, 7), (2, 7), (3, 8)]
    path.write_text("".join(f"{job} 0 -1 10 1 -1 -1 1 10 -1 1 {user} -1 -1 -1 -1 -1 -1\n" for job, user in jobs))
    loaded, _ = load_workload(path, nodes=4)
    assert sorted(loaded.columns) == sorted(columns_of(path))
    limits = (Limit(user=7, max_jobs=1),)
    starts = [simulate(jobs, 4, discipline="planning", limits=limits).start_ms.tolist() for jobs in (loaded, path)]
    assert starts == [[0, 10_000, 0]] * 2
    assert not load_workload(path, nodes=4, columns=())[0].columns


@pytest.mark.parametrize("text", ["", "\n\n", "\x00\x01\x02", "a b c d e f\n", "1 2 3\n"])
def test_files_of_unknown_formats_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data"
    path.write_text(text)
    with pytest.raises(TraceError, match="data"):
        load_workload(path, nodes=8)


def test_a_trace_is_found_by_its_name(folders: tuple[Path, Path]) -> None:
    """$GRIDWEAVE_TRACES is searched first, then the cache; suffixes and case do not matter."""
    mine, cache = folders
    (cache / "KTH-SP2-1996-2.swf.gz").write_bytes(gzip.compress(SWF.encode()))
    (cache / "notes.txt").mkdir()
    for name in ("KTH-SP2-1996-2", "kth-sp2", "KTH", "KTH-SP2-1996-2.swf", "KTH-SP2-1996-2.swf.xz"):
        assert find_trace(name) == cache / "KTH-SP2-1996-2.swf.gz"
    assert load_workload("kth")[0].name == "KTH-SP2-1996-2"
    (mine / "KTH-SP2-1996-2.swf").write_text(SWF)
    (mine / "my own.mupsie").write_text(MUPSIE)
    assert find_trace("KTH") == mine / "KTH-SP2-1996-2.swf"
    assert find_trace("my own") == mine / "my own.mupsie"
    assert trace_folders() == [mine, cache]


def test_a_file_takes_precedence_over_a_trace_name(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders[0] / "mine.swf").write_text(SWF)
    monkeypatch.chdir(tmp_path)
    assert find_trace("mine.swf") == folders[0] / "mine.swf"
    Path("mine.swf").write_text(SWF)
    assert find_trace("mine.swf") == Path("mine.swf")


def test_a_missing_trace_error_says_how_to_get_it(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown name is reported with the known names, a path with neither."""
    with pytest.raises(TraceError, match=r"kth: .*get it with `gridweave trace fetch KTH-SP2-1996-2`"):
        load_workload("kth")
    with pytest.raises(TraceError, match=r"nothing: there is no such file; .* are CTC-SP2-1996-3\.1-cln, HPC2N"):
        load_workload("nothing")
    (folders[0] / "t.swf").write_text(SWF)
    with pytest.raises(TraceError, match=r"some/t\.swf: there is no such file$"):
        load_workload("some/t.swf")
    for strange in ("", "a\0b", "x" * 5000):
        with pytest.raises(TraceError):
            load_workload(strange)
    monkeypatch.delenv(FOLDER_VARIABLE)
    with pytest.raises(TraceError):
        load_workload("t")


@pytest.mark.parametrize(
    ("name", "file_format", "written"),
    [
        ("a.swf", None, "swf"),
        ("a.SWF.gz", None, "swf"),
        ("a.mupsie.xz", None, "mupsie"),
        ("a.txt", None, "mupsie"),
        ("a.txt", "swf", "swf"),
        ("a", "mupsie", "mupsie"),
    ],
)
def test_the_output_format_follows_the_suffix_or_the_option(
    tmp_path: Path, name: str, file_format: str | None, written: str
) -> None:
    (tmp_path / "in.swf").write_text(SWF)
    workload, _ = load_workload(tmp_path / "in.swf")
    assert save_workload(workload, tmp_path / name, file_format=file_format) == written
    again, _ = load_workload(tmp_path / name)
    assert again.run_ms.tolist() == workload.run_ms.tolist()
    assert bool(columns_of(tmp_path / name)) == (written == "swf")


def test_unknown_output_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in.swf").write_text(SWF)
    workload, _ = load_workload(tmp_path / "in.swf")
    with pytest.raises(InputError, match=r"a\.csv: the suffix names no format"):
        save_workload(workload, tmp_path / "a.csv")
    with pytest.raises(OptionError, match=r"^file_format: 'csv' is not a format; one of swf, mupsie"):
        save_workload(workload, tmp_path / "a.swf", file_format="csv")
    assert [file.name for file in tmp_path.iterdir()] == ["in.swf"]
    assert format_of("archive.gz") is None
