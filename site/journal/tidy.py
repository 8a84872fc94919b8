"""Compact a journal: each flush removes a few rows that neither a replay nor the history needs.

Rows are removed in the same transaction in which new rows are written. So a failure never leaves the journal half
compacted, and a flush takes only a few deletions longer. A journal without writes does not grow.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, Connection, Table, bindparam, delete, func, select

from gridweave.site.journal import tables
from gridweave.site.journal.store import execute_plain

LEAST, MOST = 32, 1_000
"""Minimum and maximum number of rows that a flush examines, which is twice the number of rows that it writes."""

SNAPSHOTS = 2
"""Number of snapshots that must cover an input before it is removed; the older one is a spare."""


class Aging(NamedTuple):
    """A table from which old rows are removed, with its key column and its time column."""

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
    """A pass over the tables in `AGING` that removes rows older than ``before_ms``, except rows of open jobs."""

    before_ms: int
    open_jobs: Set[int]
    last_note: int  # number of an event to keep, because the next event continues the numbering
    place: int = 0  # index into `AGING`
    after: Any = None  # the last key examined in this table


class Tidy(msgspec.Struct, frozen=True):
    """The progress of compaction; the result of `remove_some` becomes valid once its transaction is committed."""

    first: int  # the first remaining input
    needed: int  # the first input that a replay may need
    sweep: Sweep | None = None

    @property
    def is_done(self) -> bool:
        """Whether all removable rows have been removed."""
        return self.first >= self.needed and self.sweep is None

    def remove_some(self, connection: Connection, written: int) -> Tidy:
        """Remove a few rows, about twice the number of rows written."""
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
    """Read the progress of compaction from the tables."""
    first = connection.scalar(select(func.min(tables.inputs.c.sequence)))
    needed = needed_from(connection, base)
    return Tidy(needed if first is None else first, needed)


def needed_from(connection: Connection, base: int) -> int:
    """Return the first input that a replay may need."""
    kept = sorted(connection.scalars(select(tables.snapshots.c.sequence)))
    oldest = kept[-SNAPSHOTS] if len(kept) >= SNAPSHOTS else 0
    return max(oldest, base) + 1


def _swept(connection: Connection, sweep: Sweep, count: int) -> Sweep | None:
    """Examine the next rows of a table and remove old rows; return the rest of the sweep, or None at its end."""
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
