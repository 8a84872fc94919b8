"""The tables of a journal, their version, and how an older journal is brought up to it."""

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
"""Of the tables below, and the oldest that can be read. Who changes them counts up, and adds to `MIGRATIONS`."""

metadata = MetaData()

# SQLite gives ascending numbers by itself to what it calls INTEGER, and to nothing else; these hold 64 bits there too.
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
"""One row. ``writer_id`` and ``batch`` fence off a writer that was replaced; the present core begins after ``base``.

``identity``: from what the core was made, as MessagePack."""

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
"""``other``: id of the journal of the other end; empty: not heard of yet."""

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
"""Jobs that are over. ``sites``: each with a line feed before and behind it; ``record``: all that is known of it."""


def _with_others(connection: Connection) -> None:
    """Keep of each channel which journal the other end has."""
    connection.execute(text("ALTER TABLE gridweave_channels ADD COLUMN other TEXT NOT NULL DEFAULT ''"))


MIGRATIONS: dict[int, Callable[[Connection], None]] = {4: _with_others}
"""From which version, and what is to be done to reach the next. Never changed once released, and none is taken out."""


def bring_up(connection: Connection, where: str, *, read_only: bool = False) -> bool:
    """Make the tables, or migrate those of an older version, in the caller's transaction; return whether all is new."""
    names = inspect(connection).get_table_names()
    if schema.name not in names:
        ours = [table.name for table in metadata.sorted_tables if table.name in names]
        if ours or (names and connection.dialect.name == "sqlite"):
            raise InputError(
                f"{where} is not a journal of gridweave: it has no table {schema.name}; name another place"
            )
        if read_only:
            raise UnavailableError(f"{where} has no journal yet: its writer makes one when it opens it")
        metadata.create_all(connection)
        connection.execute(insert(schema), {"version": VERSION})
        return True
    found = connection.scalar(select(func.max(schema.c.version)))
    if found is None or not OLDEST <= found <= VERSION:
        raise InputError(
            f"{where} has schema version {found}, and this gridweave knows versions {OLDEST} to {VERSION}; "
            "use the release of gridweave that wrote it, or a later one"
        )
    if found < VERSION and read_only:
        right = "its writer migrates it when it opens it"
        raise UnavailableError(f"{where} has schema version {found}, not {VERSION}; {right}")
    for version in range(found, VERSION):
        MIGRATIONS[version](connection)
    if found < VERSION:
        connection.execute(update(schema).values(version=VERSION))
    return False
