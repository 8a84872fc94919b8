"""The result of a simulation and its files."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.scenarios.plots import results as plots
from gridweave.scenarios.results import files as result_files
from gridweave.scenarios.results.files import folder_name
from gridweave.scenarios.results.metrics import compute_metrics
from gridweave.scenarios.results.schedule import JOBS_HEADER, SimulationResult
from gridweave.scenarios.results.tables import write_comparison
from gridweave.scenarios.workload.table import Workload

HEADER_LINE = "job_id,submit_ms,start_ms,end_ms,width,estimate_ms,run_ms,site,fragments,killed"
PLOTS = ("utilisation.png", "waits.png", "schedule.png")


def make_result(**changes: object) -> SimulationResult:
    """Build a small result: four jobs, the third killed, the fourth refused."""
    workload = Workload(
        job_id=[3, 5, 7, 8],
        submit_ms=[0, 2000, 4000, 4000],
        width=[3, 40, 1, 2],
        estimate_ms=[10_000, 9000, 3000, 1000],
        run_ms=[10_000, 5000, 3000, 1000],
        overran=[False, False, True, False],
        columns={"user": [1, 1, 2, 3]},
        name="small",
    )
    fields = {
        "workload": workload,
        "nodes": 42,
        "start_ms": [0, 10_000, 4000, -1],
        "end_ms": [10_000, 15_000, 7000, -1],
        "killed": [False, False, True, False],
        "refused": [(8, "no start between 8 and 18 h")],
        "label": "fcfs easy",
        "options": {"order": "fcfs", "backfill": "easy", "slack": None},
    }
    return SimulationResult(**{**fields, **changes})  # type: ignore[arg-type]


def dated(result: SimulationResult) -> SimulationResult:
    """Set the start date of a result's workload to two seconds before October 1996 begins in Stockholm."""
    workload = result.workload.replace(start_unix_s=844120798, timezone="Europe/Stockholm")
    return dataclasses.replace(result, workload=workload)


def write_jobs(result: SimulationResult, path: Path) -> None:
    """Write only the jobs.csv of a result."""
    result.files()["jobs.csv"](path)


def read(path: Path) -> list[dict[str, str]]:
    """Read a CSV file into one dictionary per line."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_jobs_csv_has_the_header_and_one_line_per_job(tmp_path: Path) -> None:
    """Jobs that never started have -1 and no fragments."""
    write_jobs(make_result(), tmp_path / "jobs.csv")
    assert (tmp_path / "jobs.csv").read_bytes().decode() == (
        HEADER_LINE + "\n"
        "3,0,0,10000,3,10000,10000,site,1,0\n"
        "5,2000,10000,15000,40,9000,5000,site,1,0\n"
        "7,4000,4000,7000,1,3000,3000,site,1,1\n"
        "8,4000,-1,-1,2,1000,0,site,0,0\n"
    )


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=8))
def test_site_names_survive_csv(tmp_path_factory: pytest.TempPathFactory, site: str) -> None:
    """A CSV reader restores commas, quotes, percent signs and ends of line in site names."""
    path = tmp_path_factory.mktemp("csv") / "jobs.csv"
    write_jobs(make_result(name=site), path)
    rows = read(path)
    assert [row["site"] for row in rows] == [site] * 4
    assert [row["killed"] for row in rows] == ["0", "0", "1", "0"]


def test_jobs_csv_is_written_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the borders of blocks no line is lost or duplicated."""
    write_jobs(make_result(), tmp_path / "whole.csv")
    for rows in (1, 2, 3):
        monkeypatch.setattr(result_files, "ROWS_AT_ONCE", rows)
        write_jobs(make_result(), tmp_path / "blocks.csv")
        assert (tmp_path / "blocks.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_metrics_ignore_jobs_that_never_ran() -> None:
    result = make_result()
    assert result.ran.tolist() == [True, True, True, False]
    expected = compute_metrics([0, 2000, 4000], [0, 10_000, 4000], [10_000, 15_000, 7000], [3, 40, 1], 42)
    assert result.metrics() == expected


def test_metrics_by_class() -> None:
    """Classes cover the jobs that ran; borders can be changed; months follow the trace's calendar."""
    result = dated(make_result())
    assert {name: part.jobs for name, part in result.metrics_by("width").items()} == {"narrow": 2, "wide": 1}
    assert {name: part.jobs for name, part in result.metrics_by("width", border=1).items()} == {"narrow": 1, "wide": 2}
    assert {name: part.jobs for name, part in result.metrics_by("length").items()} == {"short": 2, "long": 1}
    assert {name: part.jobs for name, part in result.metrics_by("length", border=2).items()} == {"short": 0, "long": 3}
    assert {name: part.jobs for name, part in result.metrics_by("month").items()} == {"1996-09": 1, "1996-10": 2}


def test_unknown_class_and_plot_are_refused() -> None:
    """The errors list the known names; months need a date; distributions take no window."""
    result = make_result()
    with pytest.raises(OptionError, match="give one of width, length, month"):
        result.metrics_by("user")
    with pytest.raises(InputError, match="months need a date"):
        result.metrics_by("month")
    with pytest.raises(OptionError, match="give one of utilisation, waits, schedule, slices, policies"):
        result.plot("pie")
    with pytest.raises(OptionError, match="leave out the window"):
        result.plot("waits", start_ms=0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"start_ms": [0, 1]}, r"start_ms has shape \(2,\); the workload has 4 jobs"),
        ({"killed": [True]}, r"killed has shape \(1,\)"),
        ({"start_ms": [0, 1999, 4000, -1]}, "job 5: submitted 2000, start 1999, end 15000 ms are not in this order"),
        ({"end_ms": [10_000, 10_000, 7000, -1]}, "job 5"),
        ({"end_ms": [10_000, 15_000, 7000, 5000]}, "job 8"),
        ({"end_ms": [10_000, 15_000, -1, -1]}, "job 7"),
    ],
)
def test_impossible_schedules_are_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make_result(**changes)


def test_result_is_frozen_and_short_to_print() -> None:
    result = make_result()
    assert repr(result) == "SimulationResult('fcfs easy': 4 jobs of small on 42 nodes)"
    with pytest.raises(ValueError, match="read-only"):
        result.start_ms[0] = 7
    with pytest.raises(TypeError):
        result.options["order"] = "sjf"  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.nodes = 7  # type: ignore[misc]


def test_a_result_copies_its_arrays() -> None:
    """Changing the original arrays does not change the result."""
    start_ms = np.array([0, 10_000, 4000, -1])
    result = make_result(start_ms=start_ms)
    start_ms[0] = 5
    assert result.start_ms[0] == 0


def test_to_pandas_has_the_columns_of_the_csv(tmp_path: Path) -> None:
    """The optional columns of the workload follow."""
    result = make_result(name="north")
    frame = result.to_pandas()
    assert list(frame.columns) == [*JOBS_HEADER, "user"]
    assert frame["killed"].dtype == np.bool_
    write_jobs(result, tmp_path / "jobs.csv")
    from_csv = pd.read_csv(tmp_path / "jobs.csv", dtype={"killed": bool})
    pd.testing.assert_frame_equal(frame[list(JOBS_HEADER)], from_csv)


def test_missing_pandas_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The UnavailableError names the extra to install."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnavailableError, match=r"pip install '\.\[pandas\]'"):
        make_result().to_pandas()


def test_write_makes_all_files(tmp_path: Path) -> None:
    """Writing again gives the same bytes."""
    folder = tmp_path / "new" / "out"
    paths = make_result().write(folder)
    assert [path.name for path in paths] == ["jobs.csv", "summary.json", *PLOTS]
    assert sorted(folder.iterdir()) == sorted(paths)
    first = {path: path.read_bytes() for path in paths}
    assert all(first[folder / name].startswith(b"\x89PNG") for name in PLOTS)
    make_result().write(folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == first


def test_write_without_plots_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "jobs.csv").write_text("old")
    make_result().write(tmp_path, plots=False)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "jobs.csv", "summary.json"}
    assert (tmp_path / "jobs.csv").read_text().startswith(HEADER_LINE)


def test_summary_holds_options_counts_and_metrics(tmp_path: Path) -> None:
    """The summary is JSON with sorted keys."""
    result = dated(make_result(options={"order": "fcfs", "slack": np.float64(0.5), "depth": np.int64(3)}))
    result.write(tmp_path, plots=False)
    text = (tmp_path / "summary.json").read_text()
    summary = json.loads(text)
    assert text == json.dumps(summary, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert summary["options"] == {"order": "fcfs", "slack": 0.5, "depth": 3}
    assert summary["refused"] == [{"job_id": 8, "reason": "no start between 8 and 18 h"}]
    assert (summary["killed"], summary["never_started"], summary["nodes"]) == (1, 1, 42)
    assert summary["metrics"] == result.metrics().to_dict()
    assert summary["metrics_by"]["month"]["1996-10"]["jobs"] == 2
    assert (summary["narrow_up_to_nodes"], summary["short_up_to_ms"], summary["notes"]) == (32, 5000.0, [])


def test_summary_without_dates_says_why_there_are_no_months() -> None:
    """The reasons are a missing start date and an unknown zone."""
    summary = make_result().summary()
    assert set(summary["metrics_by"]) == {"width", "length"}
    assert "months need a date" in summary["notes"][0]
    workload = make_result().workload.replace(start_unix_s=0, timezone="Middle/Earth")
    assert "'Middle/Earth' is unknown" in make_result(workload=workload).summary()["notes"][0]


def test_result_without_jobs_can_be_written(tmp_path: Path) -> None:
    """It has a header, metrics of null, and empty plots."""
    none = np.zeros(0, np.int64)
    result = SimulationResult(workload=Workload(none, none, none, none, none), nodes=4, start_ms=none, end_ms=none)
    result.write(tmp_path)
    assert (tmp_path / "jobs.csv").read_text() == HEADER_LINE + "\n"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["metrics"]["awt_ms"] is None
    assert summary["metrics"]["jobs"] == 0
    assert result.to_pandas().shape == (0, len(JOBS_HEADER))


@pytest.mark.parametrize("there_before", [False, True])
def test_an_error_leaves_no_partial_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there_before: bool) -> None:
    """If the last plot fails, no new file exists, old files are unchanged, and a new folder is removed."""

    def fail(result: SimulationResult, **window: int) -> Figure:
        raise RuntimeError("no ink")

    monkeypatch.setattr("gridweave.scenarios.plots.schedule.plot_schedule", fail)
    folder = tmp_path / "a" / "b"
    if there_before:
        folder.mkdir(parents=True)
        (folder / "jobs.csv").write_text("old")
    with pytest.raises(RuntimeError, match="no ink"):
        make_result().write(folder)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == ({"a", "a/b", "a/b/jobs.csv"} if there_before else set())


def test_a_folder_that_cannot_be_created_is_an_input_error(tmp_path: Path) -> None:
    """A file with the folder's name is reported in one line."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: cannot be written: File exists"):
        make_result().write(tmp_path / "file", plots=False)
    (tmp_path / "jobs.csv").mkdir()
    with pytest.raises(InputError, match=r"jobs\.csv: cannot be written"):
        make_result().write(tmp_path, plots=False)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "jobs.csv"}


def test_options_must_be_plain_values(tmp_path: Path) -> None:
    """Options that JSON cannot represent are refused before anything is written."""
    with pytest.raises(InputError, match=r"summary\.json: an option is not a plain value"):
        make_result(options={"policy": object()}).write(tmp_path, plots=False)
    assert list(tmp_path.iterdir()) == []


def test_comparison_puts_results_side_by_side(tmp_path: Path) -> None:
    """Each result has a folder named after its label; one file and one plot compare them in the given order."""
    results = [
        make_result(),
        make_result(label="sjf none", start_ms=[0, 10_000, 5000, -1], end_ms=[10_000, 15_000, 8000, -1]),
    ]
    paths = write_comparison(results, tmp_path / "out")
    names = {str(path.relative_to(tmp_path / "out")) for path in paths}
    files = {"jobs.csv", "summary.json", *PLOTS}
    assert names == {f"{label}/{file}" for label in ("fcfs-easy", "sjf-none") for file in files} | {
        "comparison.json",
        "comparison.png",
    }
    assert all(path.stat().st_size for path in paths)
    compared = json.loads((tmp_path / "out" / "comparison.json").read_text())["results"]
    assert [(one["label"], one["folder"]) for one in compared] == [("fcfs easy", "fcfs-easy"), ("sjf none", "sjf-none")]
    assert [one["metrics"] for one in compared] == [result.metrics().to_dict() for result in results]
    assert read(tmp_path / "out" / "sjf-none" / "jobs.csv")[2]["start_ms"] == "5000"


def test_comparison_needs_distinct_labels(tmp_path: Path) -> None:
    """Two results with one folder, or no result, are refused, and nothing is written."""
    with pytest.raises(InputError, match="two results would be written to the folder 'FCFS-easy'"):
        write_comparison([make_result(), make_result(label="FCFS/easy")], tmp_path / "out")
    with pytest.raises(InputError, match="give at least one"):
        write_comparison([], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@given(st.text(max_size=12))
def test_folder_names_stay_inside(label: str) -> None:
    """Any label gives one visible folder name without a separator."""
    name = folder_name(label)
    assert name
    assert not name.startswith(".")
    assert Path(name).name == name


def test_plots_do_not_use_pyplot() -> None:
    result = make_result()
    figures = [result.plot(kind) for kind in ("utilisation", "waits", "schedule")]
    assert all(isinstance(figure, Figure) for figure in figures)
    assert all(figure.canvas.manager is None for figure in figures)
    assert {figure.get_suptitle() for figure in figures} == {plots.title(result)}
