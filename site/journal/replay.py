"""Restore a core after a failure from its newest snapshot and the inputs recorded since."""

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
    """The result of a replay."""

    # Number of the last input covered by the snapshot used; None if the replay started from the first input.
    snapshot: int | None
    inputs: int  # number of inputs that were replayed
    # Time of the last recorded input; 0 if there are no inputs. The core accepts no earlier time.
    now_ms: int
    passed_over: tuple[str, ...] = ()  # why newer snapshots were skipped


def replay(journal: Journal, core: Core) -> Replayed:
    """Bring a new core into the state after the journal's last input.

    Parameters
    ----------
    core : Core
        A new core, created from the same settings (nodes, policy, seed). Discard the core if this function raises.

    Raises
    ------
    InputError
        If the core has other settings, makes decisions that differ from the recorded ones, or refuses an input, or
        if required inputs are missing.
    UnavailableError
        If the journal cannot be read.

    Notes
    -----
    The commands that followed from the replayed inputs may or may not have been executed before the failure. The
    caller must find out by asking which jobs are running.
    """
    if changes := journal.identity_changes:
        raise InputError(
            f"{journal.where}: its inputs need other settings: {'; '.join(changes)}; restore these settings, or start "
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
                raise InputError(f"{where} is refused: {error}; replay it with its own configuration") from error
            if entry.decided is not None and digest(commands) != entry.decided:
                raise InputError(
                    f"{where}: the core no longer makes the same decisions; replay it with the release and the "
                    "configuration that wrote it, or start over (docs/journal.md)"
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
    """Load the newest readable snapshot; return the number of its last input, and why newer snapshots were skipped."""
    passed_over: list[str] = []
    query = select(snapshots).where(snapshots.c.sequence >= journal.base).order_by(snapshots.c.sequence.desc())
    with journal.reading() as connection:
        rows = connection.execute(query).all()
    for row in rows:
        problem = _load(journal, core, row)
        if problem is None:
            return row.sequence, passed_over
        passed_over.append(problem)
    return None, passed_over


def _load(journal: Journal, core: Core, row: Row[tuple[object, ...]]) -> str | None:
    """Load a snapshot into the core; return None, or why the snapshot cannot be read."""
    name = f"the snapshot after input {row.sequence}"
    if state_digest(row.state) != row.digest:
        return f"{name} is damaged"
    try:
        state = read_state(core, row.state)
    except InputError as error:
        return f"{name}, a {row.kind} of gridweave {row.release}, cannot be read: {error}"
    # Up to here, the core is unchanged.
    try:
        core.restore(state)
    except InputError as error:
        raise InputError(f"{journal.where}: {name} does not fit the core: {error}") from error
    return None
