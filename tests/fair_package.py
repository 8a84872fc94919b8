"""Build and install the package of docs/write-a-discipline.md from the files in that page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "write-a-discipline.md"


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
