"""The tutorials, word for word, against real grids."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.slurm import running_cluster

DOCS = Path(__file__).parents[2] / "docs"
_COMMAND = re.compile(r"^    \$ (.+)$", re.MULTILINE)
_SCRIPT = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMES = {"sh": "hello.sh", "python": "by_hand.py"}


@pytest.fixture
def typed(tmp_path: Path) -> Callable[[str], str]:
    """Return what types a command in a folder of its own, and returns what it prints; it must end well."""
    environment = os.environ | {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "configuration"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
    }

    def typed(command: str) -> str:
        done = subprocess.run(  # noqa: PLW1510 - a status of its own is what is looked for
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    return typed


def all_typed(typed: Callable[[str], str], commands: list[str], unsettled: str) -> dict[str, str]:
    """Return what each command shows, typed in their order; again where it shows what does not last."""
    shown = {}
    assert commands[-1] == "gridweave down"
    try:
        for command in commands[:-1]:
            shown[command] = typed(command)
            # People type more slowly than sites agree on a start, or Slurm says why a job waits.
            while re.search(unsettled, shown[command]):
                shown[command] = typed(command)
    finally:
        typed(commands[-1])
    return shown


@pytest.mark.ray
@pytest.mark.slow
def test_every_command_of_the_tutorial_works(tmp_path: Path, typed: Callable[[str], str]) -> None:
    """Each command ends well when they are typed in their order, and shows what the tutorial says that it shows."""
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    for kind, script in _SCRIPT.findall(text):
        (tmp_path / _NAMES[kind]).write_text(script)
    # Job 4 waits for the wide one, however slow the machine is.
    longer = text.replace("-t 2m --name wide", "-t 2h --name wide").replace("sleep 60", "sleep 6000")
    commands = _COMMAND.findall(longer)
    assert commands[0] == "gridweave up"
    shown = all_typed(typed, commands, "Job 3: (starting|waiting)")
    assert "rank 3 of 4 at gamma" in shown["gridweave logs 1 --rank 3"]
    assert "with 1 rank" in shown["gridweave logs 2"]
    assert "6 nodes at alpha and 6 nodes at beta" in shown["gridweave show 3"]
    assert "factor 1.10: 5 ms, 10 Gbps between them" in shown["gridweave show 3"]
    assert "split over alpha (6) and beta (6): 11 min 1 s instead of 10 min" in shown["gridweave quote -n 12 -t 10m"]
    assert "job 4 waits" in shown["gridweave explain 4"] or "held by its user" in shown["gridweave explain 4"]
    assert shown["python by_hand.py"].split("\n")[0] == "hello from python"


@pytest.mark.ray
@pytest.mark.slow
def test_two_real_clusters_are_joined_as_the_page_says(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, typed: Callable[[str], str]
) -> None:
    """Each command of "Join two clusters" works, and shows what is said there; the files lie elsewhere."""
    text = (DOCS / "join-clusters.md").read_text(encoding="utf-8").partition("## Join two clusters")[2]
    # Not below the folder of this test: Slurm's sockets take paths of 107 bytes.
    with (
        running_cluster(tmp_path_factory.mktemp("north"), "north", 4) as north,
        running_cluster(tmp_path_factory.mktemp("south"), "south", 3) as south,
    ):
        for written, real in (("/etc/slurm/north.conf", north.conf), ("/etc/slurm/south.conf", south.conf)):
            text = text.replace(written, str(real))
        text = text.replace("/shared/gridweave", str(tmp_path / "shared"))
        (found,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        (tmp_path / "GRID.toml").write_text(found)
        shown = all_typed(
            typed,
            _COMMAND.findall(text),
            r"then it is placed|nodes are being requested|not (been )?(looked at|considered|queried)|north +4 +4 +now",
        )
    assert "rank 3 at north is on north" in shown["gridweave logs 1 --rank 3"]
    assert "it would start at once on south" in shown["gridweave quote -n 2 -t 10m"]
    assert shown["gridweave logs 2"] == "at south\n"
    assert "Slurm has no nodes free for it now (Resources)" in shown["gridweave explain 3"]
