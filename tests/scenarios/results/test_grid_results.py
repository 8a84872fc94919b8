"""Results of grids: tables, files, plots."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from gridweave.errors import InputError, OptionError
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.results.tables import SITE_HEADINGS, metric_rows, site_rows
from gridweave.scenarios.workload.table import Workload
from support.builders import GridCase, grid_cases, to_workload

HEADER = "job_id,submit_ms,start_ms,end_ms,width,estimate_ms,run_ms,site,fragments,killed"


def small_run(**changes: object) -> SimulationResult:
    """Run three jobs on two sites: one at each, then one on both, which takes 20% longer."""
    jobs = Workload(
        job_id=np.array([3, 5, 7]),
        submit_ms=np.array([0, 0, 1000]),
        width=np.array([3, 4, 6]),
        estimate_ms=np.array([10_000, 20_000, 5000]),
        run_ms=np.array([10_000, 20_000, 5000]),
        overran=np.array([False, True, False]),
        name="small",
    )
    result = simulate(jobs, [4, 6], GridPolicy(mode="multi-site", overhead=0.2, lower_bound=4))
    fields = {"site_names": ("alpha", "beta"), "home": np.array([0, 0, 1]), "name": "tiny"}
    return dataclasses.replace(result, **{**fields, **changes})  # type: ignore[arg-type]


def run_of(case: GridCase, mode: str = "multi-site") -> SimulationResult:
    """Run a random case."""
    jobs = to_workload(case.jobs)
    home = np.array([case.home[int(job_id)] for job_id in jobs.job_id], np.int64)
    result = simulate(jobs, case.nodes, GridPolicy(mode=mode, overhead=0.5), home=home)
    return dataclasses.replace(result, site_names=tuple(f"s{n}" for n in range(len(case.nodes))), home=home)


def test_site_texts_of_jobs() -> None:
    """A split job lists each site with its nodes, in the order of placement."""
    run = small_run()
    assert run.start_ms.tolist() == [0, 0, 10_000]
    assert run.sites_of_jobs() == ["alpha", "beta", "alpha:4+beta:2"]
    assert run.sites_of_jobs(slice(2, 3)) == ["alpha:4+beta:2"]


def test_use_of_sites() -> None:
    """Each site counts its users' jobs, the jobs that ran there, those from elsewhere, and the node time in use."""
    alpha, beta = small_run().site_uses()
    assert (alpha.submitted, alpha.jobs, alpha.multi_site_jobs, alpha.from_elsewhere) == (2, 2, 1, 1)
    assert (beta.submitted, beta.jobs, beta.multi_site_jobs, beta.from_elsewhere) == (1, 2, 1, 1)
    assert alpha.util == (3 * 10_000 + 4 * 6000) / (4 * 20_000)
    assert beta.util == (4 * 20_000 + 2 * 6000) / (6 * 20_000)


@given(grid_cases(too_wide=1))
def test_results_of_sites_add_up_to_the_grid(case: GridCase) -> None:
    """The fragments at the sites add up to the widths of jobs, and their use to the grid's."""
    run = run_of(case)
    ran = np.flatnonzero(run.n_fragments)
    width = dict.fromkeys(run.workload.job_id[ran].tolist(), 0)
    for site in range(len(case.nodes)):
        here = run.site_result(site)
        assert here.metrics().jobs == len(here.workload)
        for job_id, nodes in zip(here.workload.job_id.tolist(), here.workload.width.tolist(), strict=True):
            width[job_id] += nodes
    assert list(width.values()) == run.workload.width[ran].tolist()
    if len(ran):
        used = sum(use.util * use.nodes for use in run.site_uses())
        assert used / sum(case.nodes) == pytest.approx(run.metrics().util)


def test_table_rows_of_a_grid() -> None:
    """Every row has a cell per heading, the last row is the whole grid, and the requested metrics are shown."""
    run = small_run(shown=("awrt_area_ms", "util", "jobs", "area_node_ms", "sldwa"))
    rows = list(site_rows(run))
    assert {len(row) for row in rows} == {len(SITE_HEADINGS)}
    assert rows[0] == ("alpha", "4", "2", "2", "1", "1", "67.50%")
    assert rows[-1] == ("whole grid", "10", "3", "3", "1", "1", "73.00%")
    shown = {name: (value, unit) for name, value, unit in metric_rows(run)}
    assert shown["multi-site jobs"] == ("1", "")
    assert shown["multi-site jobs, of all jobs"] == ("33.33", "%")
    assert shown["multi-site jobs, of the squashed area"] == ("24.66", "%")
    assert shown["UTIL"] == ("73.00", "%")
    assert shown["jobs"] == ("3", "")
    assert shown["area"] == ("146", "node s")
    assert set(shown) >= {"AWRT by resource consumption", "SLDwA"}


def test_a_grid_writes_jobs_summary_and_plots(tmp_path: Path) -> None:
    run = small_run()
    written = run.write(tmp_path / "out")
    names = ["jobs.csv", "summary.json", "utilisation.png", "waits.png", "schedule.png"]
    assert [path.name for path in written] == names
    lines = (tmp_path / "out" / "jobs.csv").read_text().splitlines()
    assert lines[0] == HEADER
    assert lines[2] == "5,0,0,20000,4,20000,20000,beta,1,1"
    assert lines[3] == "7,1000,10000,16000,6,5000,6000,alpha:4+beta:2,2,0"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [site["name"] for site in summary["sites"]] == ["alpha", "beta"]
    assert summary["multi_site"] == {
        "jobs": 1,
        "share_of_jobs": 1 / 3,
        "share_of_squashed_area": 36 / 146,
        "jobs_by_fragments": {"1": 2, "2": 1},
    }
    assert summary["metrics"]["util"] == 0.73
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written[2:])
    assert len(run.write(tmp_path / "bare", plots=False)) == 2


@settings(max_examples=30)
@given(grid_cases(too_wide=1))
def test_jobs_csv_and_pandas_agree(tmp_path_factory: pytest.TempPathFactory, case: GridCase) -> None:
    """Jobs that never started have no site and no fragments."""
    run = run_of(case)
    folder = tmp_path_factory.getbasetemp() / "grid-csv"
    run.write(folder, plots=False)
    with (folder / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    table = run.to_pandas()
    assert len(rows) == len(table)
    for name in rows[0]:
        values = table[name].astype(int).astype(str) if name == "killed" else table[name].astype(str)
        assert [row[name] for row in rows] == values.tolist()
    for row in rows:
        parts = row["site"].split("+") if row["site"] else []
        assert len(parts) == int(row["fragments"])
        if len(parts) > 1:
            assert sum(int(part.partition(":")[2]) for part in parts) == int(row["width"])
    assert table["home"].tolist() == [f"s{site}" for site in run.home]


@pytest.mark.parametrize("mode", ["local", "adaptive"])
def test_plots_of_a_grid(mode: str) -> None:
    """Plots name the sites with their nodes, the scenario and the policy, even without jobs."""
    jobs = Workload([1, 2, 3], [0, 0, 5], [2, 3, 5], [60_000] * 3, [60_000] * 3)  # type: ignore[arg-type]
    for workload in (jobs, jobs.take(np.zeros(3, np.bool_))):
        home = np.zeros(len(workload), np.int64)
        result = simulate(workload, [5, 3], GridPolicy(mode=mode), home=home)
        run = dataclasses.replace(result, site_names=("alpha", "beta"), home=home, name="tiny")
        for kind in ("utilisation", "schedule"):
            figure = run.plot(kind)
            figure.canvas.draw()  # type: ignore[no-untyped-call]
            names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
            assert names == ["alpha (5)", "beta (3)"]
            assert figure.get_suptitle().startswith(f"tiny: {result.policy.label}")
        assert run.plot("waits").axes


def test_all_fragments_of_a_job_have_one_colour() -> None:
    """Jobs on a single site do not have this colour."""
    figure = small_run().plot("schedule")
    (jobs,) = figure.axes[0].collections
    heights = [(path.vertices[:, 1].min(), path.vertices[:, 1].max()) for path in jobs.get_paths()]
    colours = [tuple(colour) for colour in jobs.get_facecolor()]
    assert heights == [(0, 3), (0, 4), (4, 8), (8, 10)]
    assert colours[1] == colours[3] != colours[0] == colours[2]


def test_labels_of_narrow_sites_do_not_overlap() -> None:
    nodes = [200] + [1] * 40
    jobs = Workload([1], [0], [2], [60_000], [60_000])  # type: ignore[arg-type]
    result = simulate(jobs, nodes, GridPolicy(mode="sharing"))
    names = tuple(f"s{number}" for number in range(41))
    run = dataclasses.replace(result, site_names=names, home=np.zeros(1, np.int64))
    axes = run.plot("schedule").axes[0]
    assert np.diff(axes.get_yticks()).min() >= 240 / 40
    assert axes.get_yticklabels()[0].get_text() == "s0 (200)"


def test_invalid_results_are_refused() -> None:
    """Sites need one name each, jobs one home each, and plots a known kind."""
    with pytest.raises(InputError, match="1 names for 2 sites"):
        small_run(site_names=("alpha",))
    with pytest.raises(InputError, match="one site per job"):
        small_run(home=np.array([0]))
    with pytest.raises(OptionError, match=r"'pie' is not a plot; give one of utilisation, waits, schedule$"):
        small_run().plot("pie")
