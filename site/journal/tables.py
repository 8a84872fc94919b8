"""The tables of a journal, their schema version, and migrations from older versions."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)

from gridweave.errors import InputError, UnavailableError

OLDEST, VERSION = 4, 5
"""The oldest readable and the current schema version. To change a table, increment `VERSION` and add a migration."""

metadata = MetaData()

# SQLite assigns ascending numbers only to columns of type INTEGER, which also hold 64 bits.
_Number = BigInteger().with_variant(Integer, "sqlite")

schema = Table("gridweave_schema", metadata, Column("version", Integer, nullable=False))

head = Table(
    "gridweave_head",
    metadata,
    Column("journal_id", Text, nullable=False),
    Column("writer_id", Text, nullable=False),
    Column("batch", _Number, nullable=False),
    Column("base", _Number, nullable=False),
    Column("identity", LargeBinary, nullable=False),
)
"""A single row. ``writer_id`` and ``batch`` fence off a replaced writer; the current core starts after input ``base``.

``identity`` holds the settings from which the core was created, as MessagePack."""

inputs = Table(
    "gridweave_inputs",
    metadata,
    Column("sequence", _Number, primary_key=True, autoincrement=False),
    Column("now_ms", _Number, nullable=False),
    Column("events", LargeBinary, nullable=False),
    Column("decided", LargeBinary),
)

snapshots = Table(
    "gridweave_snapshots",
    metadata,
    Column("sequence", _Number, primary_key=True, autoincrement=False),
    Column("now_ms", _Number, nullable=False),
    Column("kind", Text, nullable=False),
    Column("release", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("state", LargeBinary, nullable=False),
)

submissions = Table(
    "gridweave_submissions",
    metadata,
    Column("key", Text, primary_key=True),
    Column("job_id", _Number, nullable=False),
    Column("at_ms", _Number, nullable=False),
    Column("answer", LargeBinary, nullable=False),
)

channels = Table(
    "gridweave_channels",
    metadata,
    Column("peer", Text, primary_key=True),
    Column("first", _Number, nullable=False),
    Column("next", _Number, nullable=False),
    Column("received", _Number, nullable=False),
    Column("other", Text, nullable=False, server_default=""),
)
"""``other`` is the id of the other end's journal; empty until it is known."""

outbox = Table(
    "gridweave_outbox",
    metadata,
    Column("peer", Text, primary_key=True),
    Column("number", _Number, primary_key=True, autoincrement=False),
    Column("message", LargeBinary, nullable=False),
)

notes = Table(
    "gridweave_notes",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("job_id", _Number, nullable=False),
    Column("at_ms", _Number, nullable=False),
    Column("kind", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Index("gridweave_notes_by_job", "job_id", "number"),
)

usage = Table(
    "gridweave_usage",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("job_id", _Number, nullable=False),
    Column("user", Text),
    Column("job_class", Text),
    Column("at_ms", _Number, nullable=False),
    Column("width", _Number, nullable=False),
    Column("estimate_ms", _Number, nullable=False),
    Column("run_ms", _Number, nullable=False),
    Column("cpu", Float(53)),
    Column("memory_bytes", _Number),
    Column("read_bytes", _Number),
    Column("write_bytes", _Number),
    Index("gridweave_usage_by_user", "user", "job_class", "number"),
)


ended = Table(
    "gridweave_ended",
    metadata,
    Column("job_id", _Number, primary_key=True, autoincrement=False),
    Column("user", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("array", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("submit_ms", _Number, nullable=False),
    Column("end_ms", _Number, nullable=False),
    Column("sites", Text, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Index("gridweave_ended_by_user", "user", "job_id"),
)
"""Ended jobs. ``sites`` holds the site names, each between two line feeds, and ``record`` the whole job record."""


def _with_others(connection: Connection) -> None:
    """Add a column with the id of the other end's journal to the table of channels."""
    connection.execute(text("ALTER TABLE gridweave_channels ADD COLUMN other TEXT NOT NULL DEFAULT ''"))


MIGRATIONS: dict[int, Callable[[Connection], None]] = {4: _with_others}
"""The migration from each version to the next. Never change or remove a released migration."""


def bring_up(connection: Connection, where: str, *, read_only: bool = False) -> bool:
    """Create the tables, or migrate older tables, in the caller's transaction; return whether they were created."""
    names = inspect(connection).get_table_names()
    if schema.name not in names:
        ours = [table.name for table in metadata.sorted_tables if table.name in names]
        if ours or (names and connection.dialect.name == "sqlite"):
            raise InputError(
                f"{where} is not a journal of gridweave: it has no table {schema.name}; name another file or database"
            )
        if read_only:
            raise UnavailableError(f"{where} has no journal yet; its writer creates the journal")
        metadata.create_all(connection)
        connection.execute(insert(schema), {"version": VERSION})
        return True
    current = connection.scalar(select(func.max(schema.c.version)))
    if current is None or not OLDEST <= current <= VERSION:
        raise InputError(
            f"{where} has schema version {current}, but this gridweave knows versions {OLDEST} to {VERSION}; "
            "use the release of gridweave that wrote it, or a later one"
        )
    if current < VERSION and read_only:
        advice = "its writer migrates it at the next start"
        raise UnavailableError(f"{where} has schema version {current}, not {VERSION}; {advice}")
    for version in range(current, VERSION):
        MIGRATIONS[version](connection)
    if current < VERSION:
        connection.execute(update(schema).values(version=VERSION))
    return False
