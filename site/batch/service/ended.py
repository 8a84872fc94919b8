"""What a node that is gone has left in its folder: how its part of a job ended, and the output of that."""

from __future__ import annotations

from gridweave.site.batch.service.folder import SharedFolder
from gridweave.site.batch.service.owned import OwnedPiece
from gridweave.site.batch.system import AllocationEnd
from gridweave.site.launch import Outcome
from gridweave.site.machine.agent import OutputRead, written_path
from gridweave.site.machine.folders import Key
from gridweave.site.messages import RunEnded

_OUTCOMES: dict[AllocationEnd, Outcome] = {"cancelled": "failed", "limit": "limit", "memory": "failed"}
"""How a job counts whose nodes were taken; it is lost, and may be run again, if nobody in it is to blame."""


def end_of(piece: OwnedPiece, machine: str, key: Key, end: AllocationEnd, reason: str) -> RunEnded:
    """Return how a part of a job ended on a node that was given back or taken.

    Parameters
    ----------
    piece : OwnedPiece
        What the node has left of it.
    end : AllocationEnd
        How its allocation ended, which counts if the part had not ended by itself.
    reason : str
        That in plain words.
    """
    state = piece.state()
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
    for piece in folder.pieces_of((job_id, attempt)):
        launch = piece.launch()
        if launch is None or all(each.rank != rank for each in launch.ranks):
            continue
        data, size = piece.read(written_path(piece.folder, piece.folder, rank, stream), offset, limit) or (b"", 0)
        return OutputRead(is_here=True, data=data, size=size)
    return OutputRead(is_here=False, data=b"", size=0)
