"""What a node that is gone has left in its folder: how its part of a job ended, and the output of that."""

from __future__ import annotations

from pathlib import Path

from gridweave.site.batch.service.folder import SharedFolder
from gridweave.site.batch.system import AllocationEnd
from gridweave.site.launch import Outcome
from gridweave.site.machine.agent import OutputRead, written_path
from gridweave.site.machine.folders import Key, piece_folder, read_launch, read_regular, read_state
from gridweave.site.messages import RunEnded

_OUTCOMES: dict[AllocationEnd, Outcome] = {"cancelled": "failed", "limit": "limit", "memory": "failed"}
"""How a job counts whose nodes were taken; it is lost, and may be run again, if nobody in it is to blame."""


def end_of(root: Path, machine: str, key: Key, end: AllocationEnd, reason: str) -> RunEnded:
    """Return how a part of a job ended on a node that was given back or taken.

    Parameters
    ----------
    root : pathlib.Path
        The folder of the node.
    end : AllocationEnd
        How its allocation ended, which counts if the part had not ended by itself.
    reason : str
        That in plain words.
    """
    state = read_state(piece_folder(root, key))
    if state is None:
        return RunEnded(machine, *key, _OUTCOMES.get(end, "lost"), reason, has_run=False)
    if state.phase == "ended" and state.outcome in ("finished", "failed", "limit"):
        return RunEnded(machine, *key, state.outcome, state.reason, state.ranks, state.usage)
    has_run = state.started_ms is not None
    return RunEnded(machine, *key, _OUTCOMES.get(end, "lost"), reason, state.ranks, state.usage, has_run)


def output_of(
    folder: SharedFolder, job_id: int, attempt: int, rank: int, stream: str, offset: int, limit: int
) -> OutputRead:
    """Return a part of the output of a rank, as `AgentDriver.part`, of whichever node has it."""
    for root in folder.nodes_with((job_id, attempt)):
        piece = piece_folder(root, (job_id, attempt))
        launch = read_launch(piece)
        if launch is None or all(each.rank != rank for each in launch.ranks):
            continue
        path = written_path(piece, piece, rank, stream)
        try:
            size = path.lstat().st_size
        except OSError:
            size = 0
        return OutputRead(is_here=True, data=read_regular(path, offset, limit), size=size)
    return OutputRead(is_here=False, data=b"", size=0)
