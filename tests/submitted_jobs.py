"""Helpers for tests of `gridweave submit`: write scripts, and read the submitted requests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from client_helpers import Elsewhere
from gridweave.site.job import JobRequest

OF_ITS_OWN = (
    "job works in a folder of its own: the machines cannot see this folder; use --chdir to name one of theirs\n"
)


def handed_in(here: Elsewhere) -> list[JobRequest]:
    """Return the submitted requests."""
    return [record.request for record in here.grid.records_by_id.values()]


def script(text: str, name: str = "job.sh") -> str:
    """Write a script and return its name."""
    Path(name).write_text(text)
    return name


def run_rank(request: JobRequest, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program of a job as a machine would, as rank 0 of job 7."""
    program = request.program
    folder.mkdir(exist_ok=True)
    variables = {"GRIDWEAVE_FOLDER": str(folder), "GRIDWEAVE_RANK": "0", "GRIDWEAVE_JOB_ID": "7", "GRIDWEAVE_NODE": "0"}
    if request.array is not None:
        variables |= {"GRIDWEAVE_ARRAY": request.array.name, "GRIDWEAVE_ARRAY_INDEX": str(request.array.index)}
    env = {"PATH": os.environ["PATH"]} | program.environment | variables | environment
    return subprocess.run(
        program.argv, env=env, capture_output=True, text=True, check=False, cwd=program.working_directory or folder
    )
