"""What `make test` does when a worker of pytest dies."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.machine import PATIENCE_S

MAKEFILE = Path(__file__).parents[1] / "Makefile"


@pytest.mark.slow
def test_a_run_ends_and_names_the_test_in_which_a_worker_died(tmp_path: Path) -> None:
    (line,) = (line for line in MAKEFILE.read_text().splitlines() if "pytest -n 4" in line)
    options = shlex.split(line.partition("pytest ")[2].replace("-n 4", "-n 2"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (tmp_path / "test_dies.py").write_text("import os\n\ndef test_dies():\n    os.kill(os.getpid(), 9)\n")
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(f"def test_{name}():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED test_dies.py::test_dies - worker" in done.stdout
