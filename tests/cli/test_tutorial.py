"""The tutorial, word for word, against a real grid."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
_COMMAND = re.compile(r"^    \$ (.+)$", re.MULTILINE)
_SCRIPT = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMES = {"sh": "hello.sh", "python": "by_hand.py"}


@pytest.mark.ray
@pytest.mark.slow
def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    """Each command ends well when they are typed in their order, and shows what the tutorial says that it shows."""
    text = TUTORIAL.read_text(encoding="utf-8")
    for kind, script in _SCRIPT.findall(text):
        (tmp_path / _NAMES[kind]).write_text(script)
    environment = os.environ | {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "configuration"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
    }

    def typed(command: str) -> str:
        done = subprocess.run(  # noqa: PLW1510 - a status of its own is what is looked for
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    shown = {}
    commands = _COMMAND.findall(text)
    assert commands[0] == "gridweave up"
    assert commands[-1] == "gridweave down"
    try:
        for command in commands:
            shown[command] = typed(command)
            # People type more slowly than sites agree on a start.
            while "Job 3: starting" in shown[command] or "Job 3: waiting" in shown[command]:
                shown[command] = typed(command)
    finally:
        down = subprocess.run(
            ["gridweave", "down"], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    assert down.returncode == 0, down.stderr
    assert "rank 3 of 4 at gamma" in shown["gridweave logs 1 --rank 3"]
    assert "with 1 rank" in shown["gridweave logs 2"]
    assert "8 nodes at alpha and 4 nodes at beta" in shown["gridweave show 3"]
    assert "job 4 waits" in shown["gridweave explain 4"] or "held by its user" in shown["gridweave explain 4"]
    assert shown["python by_hand.py"].split("\n")[0] == "hello from python"
