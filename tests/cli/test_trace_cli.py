"""The command `gridweave trace`, through its own application."""

from __future__ import annotations

import gzip
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
from typer.testing import CliRunner

from gridweave.cli.trace import app
from gridweave.errors import InputError, TraceError, UnavailableError
from gridweave.scenarios.traces.fetch import KNOWN_TRACES
from gridweave.scenarios.traces.load import load_workload
from support.commands import failure_of, run_well

# Five records: two to be dropped, one to be cut, and users to be kept.
SWF = """\
; Computer: test
; UnixStartTime: 843480031
; TimeZoneString: Europe/Stockholm
; MaxNodes: 8
1 0 -1 30 8 -1 -1 -1 20 -1 1 5 6 -1 7 8 -1 -1
2 10 -1 0 1 -1 -1 -1 20 -1 1 5 6 -1 7 8 -1 -1
3 86400 -1 10 3 -1 -1 -1 20 -1 1 5 6 -1 7 8 -1 -1
4 86400 -1 10 9 -1 -1 -1 20 -1 1 5 6 -1 7 8 -1 -1
5 172800 -1 10 2 -1 -1 -1 20 -1 1 5 6 -1 7 8 -1 -1
"""
run, failure = partial(run_well, app), partial(failure_of, app)

COLUMNS = ("user", "group", "job_class", "partition")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Write a small trace."""
    path = tmp_path / "small.swf"
    path.write_text(SWF)
    return path


# -- info


def test_info_shows_the_figures(trace: Path) -> None:
    """The table is on standard output, what was dropped and why on standard error."""
    result = run("info", trace)
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "jobs 3" in lines
    assert "machine [nodes] 8" in lines
    assert "first submission 1996-09-23 14:00:31 CEST" in lines
    assert "estimate [s] 20 20 20" in lines
    assert "killed at the estimate 1" in lines
    assert result.stderr.splitlines() == [
        "small: 3 of 5 records kept, on 8 nodes",
        "  dropped 1: wider than the machine",
        "  dropped 1: zero run time",
        "  changed 1: run time cut at the estimate",
    ]


def test_info_prints_json(trace: Path) -> None:
    """With --json the output is one JSON object with the figures and the conversion."""
    result = run("info", trace, "--nodes", 16, "--json")
    values = json.loads(result.stdout)
    assert (values["jobs"], values["nodes"], values["conversion"]["dropped"]["zero_run_time"]) == (4, 16, 1)
    assert result.stderr == ""


@pytest.mark.parametrize(("name", "magic"), [("p.png", b"\x89PNG"), ("p.PDF", b"%PDF"), ("p.svg", b"<?xml")])
def test_info_draws_the_distributions(trace: Path, tmp_path: Path, name: str, magic: bytes) -> None:
    """The picture is written in the format of its suffix."""
    result = run("info", trace, "--plot", tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(magic)
    assert name in result.stderr


def test_info_takes_the_name_of_a_trace(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FILE that is no file is looked for by its name."""
    monkeypatch.setenv("GRIDWEAVE_TRACES", str(trace.parent))
    assert json.loads(run("info", "small", "--json").stdout)["name"] == "small"


@pytest.mark.parametrize("width", ["20", "400"])
def test_tables_are_whole_at_any_width_of_the_window(trace: Path, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    """No cell is cut, however narrow the window."""
    monkeypatch.setenv("COLUMNS", width)
    assert "1996-09-23 14:00:31 CEST" in run("info", trace).stdout
    assert "SDSC-SP2-1998-4.2-cln.swf.gz" in run("fetch", "--list").stdout


# -- convert and transform


@pytest.mark.parametrize(("out", "arguments"), [("o.swf.gz", []), ("o", ["--to", "swf"]), ("o.mupsie", [])])
def test_convert_writes_what_can_be_simulated(trace: Path, tmp_path: Path, out: str, arguments: list[str]) -> None:
    """The new file has the jobs that were kept, and needs no further conversion."""
    result = run("convert", trace, tmp_path / out, *arguments)
    assert result.stdout.startswith(f"3 jobs written to {tmp_path / out} (")
    assert "dropped 1: wider than the machine" in result.stderr
    workload, report = load_workload(tmp_path / out)
    assert workload.job_id.tolist() == [1, 3, 5]
    assert (workload.nodes, workload.start_unix_s, workload.timezone) == (8, 843_480_031, "Europe/Stockholm")
    assert report.records == report.kept == 3


def test_convert_keeps_the_optional_columns(trace: Path, tmp_path: Path) -> None:
    """User, group, queue and partition go from SWF to SWF, and killed jobs stay killed."""
    run("convert", trace, tmp_path / "o.swf")
    workload, _ = load_workload(tmp_path / "o.swf", columns=COLUMNS)
    assert {name: set(values.tolist()) for name, values in workload.columns.items()} == {
        "user": {5},
        "group": {6},
        "job_class": {7},
        "partition": {8},
    }
    assert workload.overran.tolist() == [True, False, False]


def test_convert_may_replace_its_own_input(trace: Path) -> None:
    """Reading ends before writing begins."""
    run("convert", trace, trace)
    assert len(load_workload(trace)[0]) == 3


def test_shrink_and_stretch(trace: Path, tmp_path: Path) -> None:
    """The factor is applied to submit times, or to run times and estimates."""
    run("shrink", trace, tmp_path / "o.swf", "--factor", 0.5)
    assert load_workload(tmp_path / "o.swf")[0].submit_ms.tolist() == [0, 43_200_000, 86_400_000]
    run("stretch", trace, tmp_path / "o.swf", "--factor", 1.1)
    workload, _ = load_workload(tmp_path / "o.swf")
    assert workload.run_ms.tolist() == [22_000, 11_000, 11_000]
    assert workload.estimate_ms.tolist() == [22_000, 22_000, 22_000]


@pytest.mark.parametrize(
    ("arguments", "jobs"),
    [
        (["--first", 2], [3, 5]),
        (["--last", 2], [1, 3]),
        (["--first", 2, "--last", 2], [3]),
        (["--from", "1d"], [3, 5]),
        (["--from", "23h59m59s", "--to", "2d"], [3]),
        (["--to", "86400"], [1]),
        (["--to", "0.5w"], [1, 3, 5]),
        (["--from", "1440.5m"], [5]),
    ],
)
def test_cut(trace: Path, tmp_path: Path, arguments: list[object], jobs: list[int]) -> None:
    """The piece has the jobs asked for, by their place in the workload or by time."""
    result = run("cut", trace, tmp_path / "o.swf", *arguments)
    workload, _ = load_workload(tmp_path / "o.swf")
    assert workload.job_id.tolist() == jobs
    assert workload.submit_ms[0] == 0
    assert result.stdout.startswith("1 job written" if len(jobs) == 1 else f"{len(jobs)} jobs written")


def test_split(trace: Path, tmp_path: Path) -> None:
    """Wide jobs come in parts, and the way back to their ids is told."""
    result = run("split", trace, tmp_path / "o.swf", "--max-width", 3)
    workload, _ = load_workload(tmp_path / "o.swf")
    assert workload.job_id.tolist() == [10, 11, 12, 30, 50]
    assert workload.width.tolist() == [3, 3, 2, 3, 2]
    assert "part k of job i has the id 10 i + k" in result.stderr
    values = json.loads(run("split", trace, tmp_path / "o.swf", "--max-width", 8, "--json").stdout)
    assert (values["id_stride"], values["jobs"]) == (1, 3)


@pytest.mark.parametrize(
    "command",
    [
        ["convert"],
        ["shrink", "--factor", "0.7"],
        ["stretch", "--factor", "2"],
        ["cut", "--first", "2"],
        ["split", "--max-width", "2"],
    ],
)
def test_json_says_what_was_written(trace: Path, tmp_path: Path, command: list[str]) -> None:
    """Every command that writes says with --json what, where and what was dropped."""
    name, *options = command
    result = run(name, trace, tmp_path / "o.swf", *options, "--json")
    values = json.loads(result.stdout)
    assert result.stderr == ""
    assert (values["out"], values["format"]) == (str(tmp_path / "o.swf"), "swf")
    assert values["jobs"] == len(load_workload(tmp_path / "o.swf")[0])
    assert values["conversion"]["records"] == 5


# -- fetch


def test_fetch_lists_the_known_traces() -> None:
    """The list has names, addresses and machines."""
    text = run("fetch", "--list").stdout
    assert all(name in text and trace.url in text for name, trace in KNOWN_TRACES.items())
    values = json.loads(run("fetch", "--list", "--json").stdout)
    assert values["CTC-SP2-1996-3.1-cln"]["nodes"] == 430


def test_fetch_says_when_a_trace_is_there(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the cache, and right, is not fetched again."""
    import hashlib

    known = KNOWN_TRACES["KTH-SP2-1996-2"]
    digest = hashlib.sha256(trace.read_bytes()).hexdigest()
    monkeypatch.setitem(KNOWN_TRACES, "KTH-SP2-1996-2", type(known)(known.url, digest, 100))
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_: tmp_path / "cache")
    path = tmp_path / "cache" / "traces" / "KTH-SP2-1996-2.swf.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(trace.read_bytes()))
    assert f"KTH-SP2-1996-2: already there, checksum correct: {path}" in run("fetch", "kth").stdout
    values = json.loads(run("fetch", "kth", "--json").stdout)
    assert values == {"name": "KTH-SP2-1996-2", "path": str(path), "downloaded": False, "nodes": 100}


def test_fetch_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is an error with exit status 3."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    known = KNOWN_TRACES["KTH-SP2-1996-2"]
    monkeypatch.setitem(KNOWN_TRACES, "KTH-SP2-1996-2", type(known)("http://127.0.0.1:9/none", known.sha256, 100))
    error = failure("fetch", "KTH-SP2-1996-2", "--folder", tmp_path)
    assert isinstance(error, UnavailableError)
    assert error.exit_status == 3


# -- errors


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["info", "{in}", "--nodes", 0], r"^--nodes: 0 is not the size of a machine"),
        (
            ["info", "{in}", "--plot", "{dir}/p.xyz"],
            r"^--plot: .*p\.xyz is not the name of a picture; end it in \.png",
        ),
        (
            ["outages", "{in}", "{dir}/o.csv", "--start", "2005-06-01T00:00+02:00"],
            r"^--start: '2005-06-01T00:00\+02:00' is not a date on the clock of LOG; write .*, without a time zone",
        ),
        (["info", "{in}", "--plot", "{dir}/none/p.png"], r"p\.png: cannot be written"),
        (["info", "{dir}/none.swf"], r"none\.swf: there is no such file"),
        (["convert", "{in}", "{dir}/o.csv"], r"o\.csv: the suffix names no format"),
        (["convert", "{in}", "{dir}/o.swf", "--to", "xml"], r"^--to: 'xml' is not a format"),
        (["convert", "{in}", "{dir}/none/o.swf"], r"o\.swf: cannot be written"),
        (["convert", "{in}", "{dir}"], r"suffix names no format"),
        (["shrink", "{in}", "{dir}/o.swf", "--factor", 0], r"^--factor: 0\.0 cannot be used"),
        (["stretch", "{in}", "{dir}/o.swf", "--factor", "nan"], r"^--factor: nan cannot be used"),
        (["cut", "{in}", "{dir}/o.swf", "--first", 9], r"^--first: 9 is beyond the last job"),
        (["cut", "{in}", "{dir}/o.swf", "--last", 0], r"^--last: 0 is before"),
        (["cut", "{in}", "{dir}/o.swf", "--from", "9d"], r"^--from: no job is submitted"),
        (["cut", "{in}", "{dir}/o.swf", "--from", "2d", "--to", "1d"], r"^--to: "),
        (["cut", "{in}", "{dir}/o.swf", "--from", "soon"], r"^--from: 'soon' is not a time"),
        (["cut", "{in}", "{dir}/o.swf", "--to", "-5"], r"^--to: '-5' is not a time"),
        (["cut", "{in}", "{dir}/o.swf", "--to", ""], r"^--to: '' is not a time"),
        (["cut", "{in}", "{dir}/o.swf", "--first", 1, "--to", "1d"], r"cannot be given together"),
        (["split", "{in}", "{dir}/o.swf", "--max-width", 0], r"^--max-width: 0 is not a width"),
        (["fetch"], r"NAME is missing; .*--list"),
        (["fetch", "nowhere"], r"nowhere: there is no trace with this name"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(
    trace: Path, tmp_path: Path, arguments: list[object], problem: str
) -> None:
    """An error speaks of the option as the user knows it, has exit status 2, and no new file is left."""
    error = failure(*(str(word).replace("{in}", str(trace)).replace("{dir}", str(tmp_path)) for word in arguments))
    assert isinstance(error, InputError)
    assert error.exit_status == 2
    with pytest.raises(InputError, match=problem):
        raise error
    assert [file.name for file in tmp_path.iterdir()] == ["small.swf"]


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff" * 99, b"1 2 3\n", SWF.encode().replace(b" 8 -1", b" 1000000000000 -1")]
)
@pytest.mark.parametrize("command", ["info", "convert"])
def test_bad_files_are_named(tmp_path: Path, content: bytes, command: str) -> None:
    """A file that cannot be used is an error that names it, and nothing is written."""
    (tmp_path / "bad.swf").write_bytes(content)
    out = [tmp_path / "o.swf"] if command == "convert" else []
    error = failure(command, tmp_path / "bad.swf", *out)
    assert isinstance(error, TraceError)
    assert str(tmp_path / "bad.swf") in str(error)
    assert [file.name for file in tmp_path.iterdir()] == ["bad.swf"]


def test_the_command_line_itself_is_checked(trace: Path) -> None:
    """Unknown options and missing arguments end with exit status 2, as every command of the kind does."""
    for arguments in (["info"], ["info", str(trace), "--color"], ["shrink", str(trace), "o.swf"], ["nothing"]):
        assert CliRunner().invoke(app, arguments).exit_code == 2


def test_help_is_there_for_every_command() -> None:
    """Each command says what it does."""
    for name in ("info", "convert", "shrink", "stretch", "cut", "split", "fetch"):
        assert "Usage" in run(name, "--help").stdout


def test_help_needs_no_heavy_import() -> None:
    """Building the application imports neither numpy nor matplotlib nor numba."""
    import subprocess

    code = "import sys, gridweave.cli.trace as t; sys.exit(bool({'numpy', 'matplotlib', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.trace
def test_a_real_trace_goes_through_every_command(trace_path: Any, tmp_path: Path) -> None:
    """KTH-SP2: a piece of it, shrunk, stretched and split, keeps its jobs and grows its load as it should."""
    path, load = tmp_path / "k.swf.xz", []
    run("cut", trace_path("KTH-SP2-1996-2"), path, "--first", 10_001, "--last", 20_000)
    load.append(json.loads(run("info", path, "--json").stdout)["offered_load"])
    for command in (["shrink", "--factor", "0.8"], ["stretch", "--factor", "1.25"], ["split", "--max-width", "64"]):
        run(command[0], path, path, *command[1:])
        load.append(json.loads(run("info", path, "--json").stdout)["offered_load"])
    np.testing.assert_allclose(np.array(load[1:]) / load[:-1], [1.25, 1.25, 1.0], rtol=1e-4)


# -- chunks and tables of jobs


def test_a_table_of_jobs_becomes_a_trace_and_a_file_of_chunks(tmp_path: Path) -> None:
    """What is dropped and why is on standard error."""
    table, out = tmp_path / "jobs.csv", tmp_path / "jobs.swf"
    table.write_text("queued,ran,gpu\n10,60,2\n0,60,1\n5,0,1\n")
    result = run(
        *("convert", table, out, "--from", "csv", "--nodes", 4, "--map", "submit=queued,run=ran", "--map"), "gpus=gpu"
    )
    assert result.stdout == f"2 jobs written to {out} (swf)\n"
    assert "  dropped 1: zero run time" in result.stderr.splitlines()
    assert f"2 different chunks written to {out}.chunks.csv" in result.stderr
    assert Path(f"{out}.chunks.csv").read_text().splitlines() == ["job_id,cores,gpus", "2,1,1", "1,1,2"]
    assert load_workload(out)[0].job_id.tolist() == [2, 1]


def test_the_processors_of_a_trace_become_chunks_with_their_memory(tmp_path: Path) -> None:
    file, out = tmp_path / "small.swf", tmp_path / "out.swf"
    file.write_text(
        "1 0 -1 30 8 -1 500000 -1 20 -1 1 5 6 -1 7 8 -1 -1\n2 0 -1 30 8 -1 5 -1 20 1000000 1 5 6 -1 7 8 -1 -1\n"
    )
    run("convert", file, out, "--nodes", 8, "--chunks")
    assert Path(f"{out}.chunks.csv").read_text().splitlines() == ["job_id,cores,memory", "1,1,512MB", "2,1,1024MB"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--from", "json"), "--from: 'json' is not known; write sacct, csv or parquet"),
        (("--from", "csv"), "--map: is missing; it names the columns"),
        (("--map", "run=b"), "--map: names the columns of a table; add --from csv"),
        (("--from", "csv", "--map", "submit=a,run=b", "--chunks"), "--chunks: follows from --map"),
        (("--from", "sacct", "--chunks", "--by-cores"), "--chunks: counts cores, memory and GPUs of each node"),
        (("--from", "csv", "--map", "submit=a"), "--map: has no run times; give run, or start and end"),
    ],
)
def test_options_of_convert_that_do_not_go_together_are_refused(
    trace: Path, tmp_path: Path, options: tuple[str, ...], problem: str
) -> None:
    assert str(failure("convert", trace, tmp_path / "out.swf", *options)).startswith(problem)
