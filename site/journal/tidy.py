"""How a journal compacts itself: each flush removes a few rows that neither a replay nor the history needs any more.

The rows go in the transaction that writes others, so that there is no step in which a failure could find the journal
half compacted, and nobody waits for more than the removal of a few rows. Where nothing is written, nothing grows.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, Connection, Table, bindparam, delete, func, select

from gridweave.site.journal import tables
from gridweave.site.journal.store import execute_plain

LEAST, MOST = 32, 1_000
"""So many rows of a table are looked at in one flush; twice as many as it writes, within these bounds."""

SNAPSHOTS = 2
"""Inputs go when so many snapshots begin after them: should the newest be damaged, there is one more."""


class Aging(NamedTuple):
    """A table whose rows grow old: what they are numbered by, and when they were written."""

    table: Table
    key: Column[Any]
    at_ms: Column[Any]


AGING = (
    Aging(tables.ended, tables.ended.c.job_id, tables.ended.c.end_ms),
    Aging(tables.notes, tables.notes.c.number, tables.notes.c.at_ms),
    Aging(tables.usage, tables.usage.c.number, tables.usage.c.at_ms),
    Aging(tables.submissions, tables.submissions.c.key, tables.submissions.c.at_ms),
)

_INPUTS_GONE = delete(tables.inputs).where(tables.inputs.c.sequence <= bindparam("upto"))


class Sweep(NamedTuple):
    """A walk through all tables that age: what is older than an instant goes, unless its job is open."""

    before_ms: int
    open_jobs: Set[int]
    last_note: int  # stays, so that numbers go on from it
    place: int = 0  # in `AGING`
    after: Any = None  # the last key that was looked at there


class Tidy(msgspec.Struct, frozen=True):
    """How far a journal has been tidied; a piece of work returns what is true when its transaction was committed."""

    first: int  # no input before this one is there
    needed: int  # no replay needs inputs before this one
    sweep: Sweep | None = None

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to remove."""
        return self.first >= self.needed and self.sweep is None

    def piece(self, connection: Connection, written: int) -> Tidy:
        """Remove a few rows, about twice as many as were written."""
        count = min(MOST, max(LEAST, 2 * written))
        first, sweep = self.first, self.sweep
        if first < self.needed:
            upto = min(first + count, self.needed) - 1
            execute_plain(connection, _INPUTS_GONE, {"upto": upto})
            first = upto + 1
        if sweep is not None:
            sweep = _swept(connection, sweep, count)
        return Tidy(first, self.needed, sweep)


def tidy_of(connection: Connection, base: int) -> Tidy:
    """Return how far a journal has been tidied."""
    first = connection.scalar(select(func.min(tables.inputs.c.sequence)))
    needed = needed_from(connection, base)
    return Tidy(needed if first is None else first, needed)


def needed_from(connection: Connection, base: int) -> int:
    """Return the first input that a replay may need."""
    kept = sorted(connection.scalars(select(tables.snapshots.c.sequence)))
    oldest = kept[-SNAPSHOTS] if len(kept) >= SNAPSHOTS else 0
    return max(oldest, base) + 1


def _swept(connection: Connection, sweep: Sweep, count: int) -> Sweep | None:
    """Look at the next rows of a table, and remove the old ones; return where to go on, None at the end of all."""
    table, key, at_ms = AGING[sweep.place]
    query = select(key, table.c.job_id, at_ms).order_by(key).limit(count)
    rows = connection.execute(query if sweep.after is None else query.where(key > sweep.after)).all()
    old = [
        name
        for name, job_id, written_ms in rows
        if written_ms < sweep.before_ms
        and job_id not in sweep.open_jobs
        and not (table is tables.notes and name == sweep.last_note)
    ]
    if old:
        connection.execute(delete(table).where(key.in_(old)))
    if len(rows) == count:
        return sweep._replace(after=rows[-1][0])
    return sweep._replace(place=sweep.place + 1, after=None) if sweep.place + 1 < len(AGING) else None
