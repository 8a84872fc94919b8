"""The command `gridweave reproduce`, through an application of its own."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import typer

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave_papers.command import reproduce
from support.commands import failure_of, run_well

TracePath = Callable[[str], Path]

app = typer.Typer()
app.command()(reproduce)
run, failure = partial(run_well, app), partial(failure_of, app)

SMALL_KTH = """\
; UnixStartTime: 844084831
; TimeZoneString: Europe/Stockholm
; MaxNodes: 100
1 0 -1 100 60 -1 -1 60 200 -1 1 1 1 1 1 1 -1 -1
2 10 -1 50 60 -1 -1 60 100 -1 1 1 1 1 1 1 -1 -1
3 86400 -1 100 10 -1 -1 10 100 -1 1 1 1 1 1 1 -1 -1
"""


@pytest.fixture
def small_kth(no_traces: Path) -> Path:
    """Provide a small trace under the name of KTH's."""
    path = no_traces / "KTH-SP2-1996-2.swf"
    path.write_text(SMALL_KTH)
    return path


def test_without_a_name_the_tables_are_listed(small_kth: Path) -> None:
    """Every table stands with where it was published and which traces are missing, and how to get them is said."""
    result = run()
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    for name in ("streit-3.4", "streit-3.6", "streit-5.1", "streit-A", "zhang-5", "zhang-8"):
        assert "missing: CTC-SP2-1996-3.1-cln" in lines[name]
        assert "KTH-SP2-1996-2" not in lines[name]
    assert "Table 5.1" in lines["streit-5.1"]
    assert "gridweave trace fetch CTC-SP2-1996-3.1-cln" in result.stderr


def test_the_list_for_machines(small_kth: Path) -> None:
    """JSON says of each trace whether it is available."""
    listed = json.loads(run("--json").stdout)
    assert listed["streit-5.1"]["traces"]["KTH-SP2-1996-2"] is True
    assert listed["zhang-7"]["traces"] == {"CTC-SP2-1996-3.1-cln": False}


def test_what_can_be_computed_is_printed_and_the_rest_is_named(small_kth: Path) -> None:
    """With one trace of four its rows are printed, with the missing ones below and no row for them."""
    shown = run("streit-5.1", "zhang-8").stdout
    rows = [line.split()[:2] for line in shown.splitlines() if line.split()[:1] in (["KTH"], ["CTC"])]
    assert rows == [["KTH", "FCFS"], ["KTH", "SJF"], ["KTH", "LJF"]]
    assert "3.1015" in shown
    assert "beyond 1%" in shown  # three jobs are not the trace
    for name in ("CTC-SP2-1996-3.1-cln", "LANL-CM5-1994-4.1-cln", "SDSC-SP2-1998-4.2-cln"):
        assert f"gridweave trace fetch {name}" in shown


def test_tables_for_machines(small_kth: Path) -> None:
    """JSON has the published number, ours, the difference and whether it keeps the tolerance."""
    (report,) = json.loads(run("streit-5.1", "--json").stdout)["reports"]
    assert report["id"] == "streit-5.1"
    value = report["sections"][0]["rows"][0]["values"][0]
    assert value["published"] == 3.1015
    assert value["tolerance_pct"] == 1.0
    assert value["within"] is False
    assert value["difference_pct"] == pytest.approx(100 * (value["ours"] / 3.1015 - 1))
    assert len(report["missing"]) == 3


def test_files_are_written(small_kth: Path, tmp_path: Path) -> None:
    """Each table becomes a CSV file, and what has a figure a PNG."""
    folder = tmp_path / "new" / "out"
    result = run("streit-3.6", "streit-A", "--out", folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "streit-3.6.csv",
        "streit-3.6-conclusions.csv",
        "streit-A.csv",
        "streit-A-conclusions.csv",
        "streit-A.png",
    }
    assert "wrote 5 files" in result.stderr
    assert (folder / "streit-A.png").read_bytes().startswith(b"\x89PNG")
    with (folder / "streit-3.6.csv").open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    jobs = [line for line in lines if line["row"] == "scheduled jobs"]
    assert [(line["column"], float(line["published"]), float(line["ours"])) for line in jobs] == [
        ("planned FCFS", 28479.0, 3.0),
        ("FCFS queue, EASY", 28479.0, 3.0),
    ]


def test_names_may_be_groups_and_in_any_case(small_kth: Path) -> None:
    """A group stands for its tables, and a table is not printed twice."""
    reports = json.loads(run("Streit", "STREIT-a", "--json").stdout)["reports"]
    tables = [
        "streit-3.4",
        "streit-3.6",
        "streit-5.1",
        *(f"streit-5.{number}" for number in (2, 3, 4, 5, 6, 7, 8)),
        "streit-A",
        "streit-A.9",
        "streit-7",
        "streit-7.3",
        "streit-7.4",
        "streit-7.6",
    ]
    assert [report["id"] for report in reports] == tables


@pytest.mark.parametrize("name", ["streit-9.9", "zhang-4", "", "thesis"])
def test_an_unknown_name_is_refused(name: str, no_traces: Path) -> None:
    """The error lists the known names, and comes before the traces are looked for."""
    error = failure("streit-5.1", name)
    assert isinstance(error, OptionError)
    assert error.exit_status == 2
    assert "streit-3.6" in str(error)
    assert "zhang" in str(error)


def test_without_any_trace_nothing_can_be_had(no_traces: Path, tmp_path: Path) -> None:
    """The error names the commands that get the traces, and nothing is written."""
    error = failure("streit-5.1", "zhang", "--out", tmp_path / "out")
    assert isinstance(error, UnavailableError)
    assert error.exit_status == 3
    for name in ("CTC-SP2-1996-3.1-cln", "KTH-SP2-1996-2"):
        assert f"gridweave trace fetch {name}" in str(error)
    assert not (tmp_path / "out").exists()


def test_zhang_needs_ctc(small_kth: Path) -> None:
    """The model is fitted to CTC-SP2; KTH's trace does not help."""
    error = failure("zhang-5")
    assert isinstance(error, UnavailableError)
    assert "gridweave trace fetch CTC-SP2-1996-3.1-cln" in str(error)
    assert "KTH" not in str(error)


@pytest.mark.parametrize("seeds", [0, -1, 1001])
def test_an_absurd_number_of_seeds_is_refused(seeds: int, small_kth: Path) -> None:
    """At least one workload is needed."""
    error = failure("streit-5.1", "--seeds", seeds)
    assert isinstance(error, OptionError)
    assert "--seeds" in str(error)


def test_a_file_is_no_folder(small_kth: Path, tmp_path: Path) -> None:
    """That the files cannot be written is found out before the work."""
    (tmp_path / "taken").write_text("mine")
    error = failure("streit-5.1", "--out", tmp_path / "taken")
    assert isinstance(error, OptionError)
    assert "--out" in str(error)
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_broken_trace_is_named_with_its_line(small_kth: Path) -> None:
    """An available trace that cannot be read is an error, not a missing trace."""
    small_kth.write_text(SMALL_KTH + "4 86401 -1 100\n")
    error = failure("streit-5.1")
    assert isinstance(error, InputError)
    assert "KTH-SP2-1996-2.swf:7" in str(error)


@pytest.mark.trace
@pytest.mark.slow
def test_good_estimators_are_rewarded(trace_path: TracePath) -> None:
    """Figure 8 of Zhang et al., with the model fitted to CTC-SP2: both conclusions hold in every reading."""
    trace_path("CTC-SP2-1996-3.1-cln")
    shown = json.loads(run("zhang-8", "--seeds", "1", "--json").stdout)
    verdicts = [one["verdicts"] for one in shown["reports"][0]["conclusions"]]
    assert len(verdicts) == 2
    assert all(verdict["holds"] for one in verdicts for verdict in one.values())
    assert shown["conclusions_that_hold"]["EASY"] == {"hold": 2, "of": 2}
