"""What the tasks of jobs need of a node, in a file beside the trace (docs/fractional.md, "Needs")."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from gridweave.errors import TraceError
from gridweave.scenarios.traces.resources import JOB_ID, PART_OF_NODE, CsvColumn, check_all_told, read_csv, row_of_job
from gridweave.scenarios.workload.needs import with_groups, with_needs
from gridweave.scenarios.workload.table import MAX_WIDTH, Workload
from gridweave.site.kernels.parts import MOST_GROUPS, NeedsOfTasks

_COLUMNS = {
    "job_id": JOB_ID,
    "tasks": CsvColumn(
        whole=True, high=MAX_WIDTH, needed=False, right="a whole number of tasks, from 1", above_zero=True
    ),
    "cpu_need": PART_OF_NODE,
    "memory_fraction": PART_OF_NODE,
}


def read_needs(path: str | Path, workload: Workload) -> Workload:
    """Give the tasks of jobs the needs that a file says.

    Parameters
    ----------
    path : str or pathlib.Path
        CSV in UTF-8 (.gz and .xz, too) whose first line names its columns, in any order: ``job_id``, ``cpu_need``,
        ``memory_fraction``, and where tasks of a job differ ``tasks``. Then a job has a line for each group of tasks
        that are alike, and ``tasks`` says how many those are; else it has one.
    workload : Workload
        The jobs.

    Returns
    -------
    Workload
        Its widths are the sums of ``tasks``, if the file has that column.

    Raises
    ------
    TraceError
        If the file cannot be read, a column is missing, unknown or there twice, a value is none, a job is unknown or
        missing, is there twice without ``tasks``, or has more than `MOST_GROUPS` groups of tasks that differ.
    """
    row_of = {job: row for row, job in enumerate(workload.job_id.tolist())}
    told: list[Counter[tuple[float, float]]] = [Counter() for _ in range(len(workload))]

    def take(line: int, values: dict[str, float]) -> None:
        row = row_of_job(path, line, values["job_id"], row_of, workload)
        if told[row] and "tasks" not in values:
            problem = f"{workload.job_id[row]} is there twice; groups of tasks that differ need the column tasks"
            raise TraceError(path, problem, line=line, field="job_id")
        told[row][values["memory_fraction"], values["cpu_need"]] += int(values.get("tasks", workload.width[row]))
        if len(told[row]) > MOST_GROUPS:
            problem = f"job {workload.job_id[row]} has more than {MOST_GROUPS} groups of tasks that differ"
            raise TraceError(path, problem, line=line)

    read_csv(path, _COLUMNS, take)
    check_all_told(path, told, workload)
    rows = [
        (row, count, cpu, memory)
        for row, groups in enumerate(told)
        for (memory, cpu), count in sorted(groups.items(), reverse=True)
    ]
    columns = (np.array(column) for column in zip(*rows, strict=True)) if rows else [np.zeros(0, np.int64)] * 4
    return with_groups(workload, NeedsOfTasks(*columns))


def with_needs_said(workload: Workload, needs: str | Path, rng: np.random.Generator) -> Workload:
    """Give the tasks of jobs the needs that are said: an annotation of `with_needs`, or a file of `read_needs`.

    A name with a suffix is that of a file.
    """
    if Path(needs).suffix:
        return read_needs(needs, workload)
    return with_needs(workload, str(needs), rng)
