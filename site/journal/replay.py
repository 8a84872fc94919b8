"""A core as it was when it failed: its newest snapshot, and what it was told since."""

from __future__ import annotations

import msgspec
from sqlalchemy import Row, select

from gridweave.errors import InputError
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.records import digest
from gridweave.site.journal.step import Core, state_digest
from gridweave.site.journal.tables import snapshots
from gridweave.site.state import read_state


class Replayed(msgspec.Struct, frozen=True):
    """What a replay has done."""

    # Number of the input after which the snapshot was made from which it began; None if it began with the first.
    snapshot: int | None
    inputs: int  # how many were handled anew
    # Instant of the last input, handled anew or not; 0 if there was none. The core is told of no earlier one.
    now_ms: int
    passed_over: tuple[str, ...] = ()  # why newer snapshots were not used


def replay(journal: Journal, core: Core) -> Replayed:
    """Bring a fresh core into the state of the one that has handled the journal's inputs.

    Parameters
    ----------
    core : Core
        Fresh, and made exactly as that one (nodes, policy, seed). If an error is raised it is to be thrown away.

    Raises
    ------
    InputError
        If the core comes from other settings, decides otherwise than was decided, refuses an input, or if inputs
        are missing that no snapshot makes up for.
    UnavailableError
        If the journal cannot be read.

    Notes
    -----
    The commands that the core answers with were carried out before the failure, or not: that is for the caller to find
    out, who knows what runs.
    """
    if changes := journal.identity_changes:
        raise InputError(
            f"{journal.where}: its inputs were for other settings: {'; '.join(changes)}; use those again, or start "
            "over (docs/journal.md)"
        )
    begin, passed_over = _load_newest(journal, core)
    reached = journal.base if begin is None else begin
    count = 0
    try:
        for entry in journal.inputs(after=reached):
            where = f"{journal.where}: input {entry.sequence} of {entry.now_ms} ms"
            try:
                commands = core.handle(entry.now_ms, *entry.events)
            except InputError as error:
                raise InputError(f"{where} is refused: {error}; replay it with the configuration it was for") from error
            if entry.decided is not None and digest(commands) != entry.decided:
                raise InputError(
                    f"{where}: the core no longer makes the same decisions; replay it with the release and the "
                    "configuration that it was for, or start over (docs/journal.md)"
                )
            count, reached = count + 1, entry.sequence
        if reached != journal.sequence:
            missing = f"inputs {reached + 1} to {journal.sequence} are missing"
            raise InputError(f"{journal.where}: {missing}; restore the journal from a copy")
    except InputError as error:
        if begin is None and passed_over:
            raise InputError(f"{error}; no snapshot could be used: {'; '.join(passed_over)}") from error
        raise
    return Replayed(begin, count, journal.now_ms, tuple(passed_over))


def _load_newest(journal: Journal, core: Core) -> tuple[int | None, list[str]]:
    """Load the newest snapshot that fits; return after which input it was made, and why others do not."""
    passed_over: list[str] = []
    query = select(snapshots).where(snapshots.c.sequence >= journal.base).order_by(snapshots.c.sequence.desc())
    with journal.reading() as connection:
        found = connection.execute(query).all()
    for row in found:
        problem = _load(journal, core, row)
        if problem is None:
            return row.sequence, passed_over
        passed_over.append(problem)
    return None, passed_over


def _load(journal: Journal, core: Core, row: Row[tuple[object, ...]]) -> str | None:
    """Load a snapshot; return why it cannot be read, if so."""
    name = f"the snapshot after input {row.sequence}"
    if state_digest(row.state) != row.digest:
        return f"{name} is damaged"
    try:
        state = read_state(core, row.state)
    except InputError as error:
        return f"{name} is of {row.kind}, by gridweave {row.release}, and cannot be read: {error}"
    # Until here nothing of the core has changed.
    try:
        core.restore(state)
    except InputError as error:
        raise InputError(f"{journal.where}: {name} does not fit: {error}") from error
    return None
