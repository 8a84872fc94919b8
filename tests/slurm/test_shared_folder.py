"""The folder that a site shares with the nodes of its batch system."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridweave.errors import InputError
from gridweave.site.launch import Launch, NodeTaskState, Rank
from gridweave.site.machine.folders import LAUNCH, write_state, write_whole
from gridweave.site.messages import ENCODER
from gridweave.slurm.service.folder import SharedFolder, end_of, output_of
from gridweave.slurm.system import AllocationEnd


def test_the_secret_stays_and_nobody_else_reads_the_folder(tmp_path: Path) -> None:
    """Whoever opens the folder later has the same secret."""
    shared = SharedFolder(tmp_path / "shared")
    assert shared.secret() == SharedFolder(shared.path).secret()
    assert shared.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("end", "outcome"), [
    ("cancelled", "failed"), ("memory", "failed"), ("limit", "limit"), ("lost", "lost"), ("failed", "lost"),
    ("given back", "lost"),
])  # fmt: skip
def test_how_a_part_counts_whose_node_was_taken(tmp_path: Path, end: AllocationEnd, outcome: str) -> None:
    """By how its allocation ended, unless it had ended by itself; what never began has not run."""
    shared = SharedFolder(tmp_path, "x")
    node_task, key = shared.node_task("gw-x-7-1", 0, (7, 1)), (7, 1)
    told = end_of(node_task, "n0", key, end, "why")
    assert (told.outcome, told.reason, told.has_run) == (outcome, "why", False)
    folder = node_task.folder
    folder.mkdir(parents=True)
    launch = Launch(job_id=7, attempt=1, ranks=(Rank(0),), argv=("true",))
    write_whole(folder / LAUNCH, ENCODER.encode(launch))
    state = NodeTaskState(job_id=7, attempt=1, phase="running", boot_id="", started_ms=5)
    write_state(folder, state)
    told = end_of(node_task, "n0", key, end, "why")
    assert (told.outcome, told.has_run) == (outcome, True)
    ended = NodeTaskState(job_id=7, attempt=1, phase="ended", boot_id="", started_ms=5, outcome="finished")
    write_state(folder, ended)
    assert end_of(node_task, "n0", key, end, "why").outcome == "finished"
    assert output_of(shared, 7, 1, 0, "out", 0, 10).is_here
    assert not output_of(shared, 7, 1, 1, "out", 0, 10).is_here
    assert not output_of(SharedFolder(tmp_path, "y"), 7, 1, 0, "out", 0, 10).is_here, "of another journal"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """One line says what would be right."""
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match=r"file/x: Not a directory; name a folder that you can write to, and that every"
    ):
        SharedFolder(tmp_path / "file" / "x")
