"""Files with the needs of tasks, with a line per group of tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gridweave.errors import TraceError
from gridweave.scenarios.traces.resources import read_needs, with_needs_from
from gridweave.scenarios.workload.needs import check_needs, needs_of
from gridweave.scenarios.workload.table import Workload

JOBS = Workload(job_id=[3, 7, 8], submit_ms=[0, 1, 2], width=[4, 2, 8], estimate_ms=[9] * 3, run_ms=[9] * 3)


def read(folder: Path, text: str, jobs: Workload = JOBS) -> Workload:
    """Return jobs with the needs in a file with this text."""
    file = folder / "needs.csv"
    file.write_text(text)
    return read_needs(file, jobs)


def test_equal_groups_are_merged_and_sorted_by_memory(tmp_path: Path) -> None:
    """The order of lines does not matter, and widths are sums of tasks."""
    lines = ["8,6,0.5,0.25", "3,3,1,0.1", "7,1,0.25,0.3", "8,2,0.5,0.25", "3,1,0.5,0.4", "8,1,0.25,0.25"]
    found = read(tmp_path, "\n".join(["job_id,tasks,cpu_need,memory_fraction", *lines]))
    check_needs(found)
    assert found.width.tolist() == [4, 1, 9]
    groups = list(zip(*(column.tolist() for column in needs_of(found)), strict=True))
    assert groups[:3] == [(0, 1, 0.5, 0.4), (0, 3, 1.0, 0.1), (1, 1, 0.25, 0.3)]
    assert groups[3:] == [(2, 8, 0.5, 0.25), (2, 1, 0.25, 0.25)]


def test_without_the_column_tasks_a_job_has_one_line(tmp_path: Path) -> None:
    """Widths stay the same, and existing group columns are dropped."""
    text = "memory_fraction,cpu_need,job_id\n0.5,1,7\n0.25,0.5,3\n0.1,0.5,8\n"
    found = read(tmp_path, text)
    assert found.width.tolist() == JOBS.width.tolist()
    assert {name: values.tolist() for name, values in found.columns.items()} == {
        "cpu_need": [0.5, 1.0, 0.5],
        "memory_fraction": [0.25, 0.5, 0.1],
    }
    others = {"tasks_2": [1] * 3, "cpu_need_2": [1] * 3, "memory_fraction_2": [0.1] * 3}
    grouped = found.replace(columns={**found.columns, **others})
    assert "tasks_2" not in with_needs_from(grouped, tmp_path / "needs.csv", np.random.default_rng(0)).columns


def test_a_file_for_no_jobs_is_just_a_header(tmp_path: Path) -> None:
    none = JOBS.take(np.arange(0))
    assert len(read(tmp_path, "job_id,tasks,cpu_need,memory_fraction\n", none)) == 0


HEADER = "job_id,tasks,cpu_need,memory_fraction\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("job_id,cpu_need,memory_fraction\n3,1,1\n3,1,0.5\n", "3 appears twice; groups of tasks that differ need"),
        (HEADER + "3,0,1,1\n", "'0' is not a whole number of tasks, from 1"),
        (HEADER + "3,1,0,1\n", "'0' is not a number above 0 and up to 1"),
        (HEADER + "5,1,1,1\n", "5 is not a job of workload"),
        (HEADER + "3,1,1,1\n", "has no line for job 7 and 1 more of workload"),
        (HEADER + "".join(f"3,1,1,0.{n}\n" for n in range(1, 6)), "job 3 has more than 4 groups of tasks that differ"),
        ("job_id,tasks,memory_fraction\n", "this column is missing"),
    ],
)
def test_invalid_files_are_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
