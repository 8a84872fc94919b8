"""Run gridweave's commands in this process or as a machine would, and install packages for a single test.

`run_well` and `failure_of` run any command. `script`, `handed_in` and `run_rank` are for `gridweave submit`.
`write_metadata` makes gridweave-papers visible to entry points, like pip; `install_fair` installs the discipline from
docs/write-a-discipline.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gridweave.errors import GridweaveError
from gridweave.site.job import JobRequest
from support.gateway import Elsewhere

# -- any command ------------------------------------------------------------------------------------------------------


def run_well(app: typer.Typer, *arguments: object) -> Result:
    """Run a command; assert that it succeeds."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None, result.output
    assert result.exit_code == 0
    return result


def failure_of(app: typer.Typer, *arguments: object) -> GridweaveError:
    """Run a command; assert that it raises a one-line GridweaveError and prints no result; return the error."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(result.exception, GridweaveError), result.output
    assert len(str(result.exception).splitlines()) == 1
    assert result.stdout == ""
    return result.exception


# -- submit -----------------------------------------------------------------------------------------------------------

OF_ITS_OWN = "job runs in a folder of its own: the machines cannot see this folder; choose one on them with --chdir\n"


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


# -- packages ---------------------------------------------------------------------------------------------------------

PAPERS = Path(__file__).parents[2] / "papers"
PAPERS_SOURCES = PAPERS / "src"


def papers_entry_points() -> str:
    """Return the entry points of gridweave-papers in the format of installed metadata."""
    groups = tomllib.loads((PAPERS / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    return "\n".join(lines) + "\n"


def write_metadata(folder: Path, name: str, entry_points: str | None = None) -> None:
    """Write the metadata of a package; the default entry points are those of gridweave-papers."""
    metadata = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n", encoding="utf-8")
    text = papers_entry_points() if entry_points is None else entry_points
    (metadata / "entry_points.txt").write_text(text, encoding="utf-8")


PAGE = Path(__file__).parents[2] / "docs" / "write-a-discipline.md"


def blocks() -> dict[str, str]:
    """Return the texts of the files in the page, by file name."""
    found = re.findall(r"^```\w+ (\S+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return dict(found)


def install_fair(folder: Path) -> Path:
    """Build the package offline and install it below a folder; return the path to add to PYTHONPATH."""
    if int(metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("this environment builds no packages: its setuptools is older than 77 (make environment)")
    for name in ("pyproject.toml", "gridweave_fair.py"):
        (folder / name).write_text(blocks()[name], encoding="utf-8")
    quiet = ("--quiet", "--disable-pip-version-check", "--no-build-isolation", "--no-deps", "--no-index")
    run_python("-m", "pip", "install", *quiet, "--target", folder / "installed", folder)
    return folder / "installed"


def with_path(path: Path | None) -> str:
    """Return the present PYTHONPATH with a folder in front."""
    paths = ["" if path is None else str(path), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))


def run_python(*arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder of additional packages; assert that it succeeds."""
    words = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": with_path(path)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done
