"""Grids that `gridweave up` starts on this machine for a test, isolated from others and removed afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from gridweave.grid.config.local_state import kill
from gridweave.site.machine.processes import strays

PATIENCE_S = 300

FILE = """
[[sites]]
name = "north"
nodes = 3

[[sites]]
name = "south"
nodes = 2

[gateway]
port = 0

[ray]
nodes = "machine"
"""

LEFT = "GRIDWEAVE_TEST_OF_UP"
"""Environment variable that marks all processes that these tests start."""


class World:
    """A folder for the state of grids, and a mark in the environment of all processes started for them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        # Paths of Ray's sockets have at most 107 bytes, and other users' grids are directly in /tmp.
        self.temp = Path("/tmp") / self.mark[:5]
        self.temp.mkdir()
        (folder / "GRID.toml").write_text(FILE)
        own = {"XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(self.temp), LEFT: self.mark}
        self.environment = os.environ | own

    def begin(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a command and return its process."""
        return subprocess.Popen(
            [sys.executable, "-m", "gridweave.cli", *map(str, arguments)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            start_new_session=True,
        )

    def run(self, *arguments: object) -> tuple[int, str]:
        """Run a command to its end; return its exit status and its output."""
        child = self.begin(*arguments)
        printed, _ = child.communicate(timeout=PATIENCE_S)
        return child.returncode, printed

    def left(self) -> list[Any]:
        """Return the processes of this world that are still alive."""
        return strays(self.mark, (), variable=LEFT)

    def folders_left(self) -> list[Path]:
        """Return Ray's folders that still exist."""
        return sorted(self.temp.glob("gridweave-*"))

    def close(self) -> None:
        """Kill the remaining processes and remove Ray's folders."""
        kill(self.left())
        shutil.rmtree(self.temp, ignore_errors=True)
