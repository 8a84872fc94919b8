"""Grids that the command brings up on this machine, each in a world of its own, of which nothing is ever left."""

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
"""In the environment of all that these tests start."""


class World:
    """A folder for the state of grids, and a mark by which all that is started for them is found."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        # The paths of Ray's sockets have 107 bytes at most, and others have their grids in /tmp itself.
        self.temp = Path("/tmp") / self.mark[:5]
        self.temp.mkdir()
        (folder / "GRID.toml").write_text(FILE)
        own = {"XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(self.temp), LEFT: self.mark}
        self.environment = os.environ | own

    def begin(self, *arguments: object) -> subprocess.Popen[str]:
        """Begin a command."""
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
        """Run a command to its end; return its status and what it has printed."""
        child = self.begin(*arguments)
        printed, _ = child.communicate(timeout=PATIENCE_S)
        return child.returncode, printed

    def left(self) -> list[Any]:
        """Return the processes that were started here and live."""
        return strays(self.mark, (), variable=LEFT)

    def folders_left(self) -> list[Path]:
        """Return the folders of Ray that are there."""
        return sorted(self.temp.glob("gridweave-*"))

    def close(self) -> None:
        """End what is left, and remove the folders of Ray."""
        kill(self.left())
        shutil.rmtree(self.temp, ignore_errors=True)
