"""A journal's database, SQLite or PostgreSQL: the connection, the writer's lock and the errors."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    ClauseElement,
    Connection,
    CursorResult,
    Dialect,
    Engine,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError

_FORMS = "a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE"

_Kinds = tuple[tuple[str, type[GridweaveError], str], ...]

# Prefixes of SQLite's error names, and the advice for each.
_SQLITE: _Kinds = (
    ("SQLITE_FULL", UnavailableError, "free space on its disk"),
    ("SQLITE_BUSY", UnavailableError, "another process has locked it: end that process"),
    ("SQLITE_LOCKED", UnavailableError, "another process has locked it: end that process"),
    ("SQLITE_NOTADB", InputError, "name an SQLite database, or a file that does not exist yet"),
    ("SQLITE_CORRUPT", InputError, "the file is damaged: restore it from a copy"),
    ("SQLITE_CANTOPEN", InputError, "name a file in a folder that you can write to"),
    ("SQLITE_READONLY", InputError, "name a file and a folder that you can write to"),
    ("SQLITE_PERM", InputError, "name a file that you can write to"),
    ("SQLITE_IOERR", UnavailableError, "check its disk"),
)

# Prefixes of PostgreSQL's error codes (its manual, appendix A), and the advice for each.
_POSTGRES: _Kinds = (
    ("53100", UnavailableError, "free space on the server's disk"),
    ("28", InputError, "name a user and a password that the server accepts"),
    ("3D", InputError, "create the database, or name another"),
    ("42501", InputError, "let this user create tables there"),
    ("55P03", UnavailableError, "another process writes this journal, or has locked its tables: end that process"),
    ("XX001", InputError, "the database is damaged: restore it from a copy"),
)

# The driver has no code for a refused connection, only the server's message.
_REFUSALS = ((" role ", "28"), ("authentication failed", "28"), ("pg_hba.conf", "28"), ("does not exist", "3D"))


def checked_url(option: str, place: str | Path) -> URL:
    """Parse a database location into a URL that uses our driver; ``option`` names the setting in error messages.

    Examples
    --------
    >>> checked_url("journal", "postgresql://anna@north/jobs").drivername
    'postgresql+psycopg'
    """
    location = str(place)
    if "://" not in location:
        if not location:
            raise OptionError(option, f"is empty; expected {_FORMS}")
        return URL.create("sqlite", database=location)
    try:
        url = make_url(location)
        backend = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError) as error:
        raise OptionError(option, f"is not a valid URL; expected {_FORMS}") from error
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise OptionError(option, f"is a URL of {backend}; expected {_FORMS}")
    if not url.database or url.database == ":memory:" or url.query:
        raise OptionError(option, f"is in memory, which is lost when the process ends; expected {_FORMS}")
    return url.set(drivername="sqlite")


def explained(error: Exception, where: str) -> GridweaveError:
    """Convert a database error to one line that says what went wrong and what to do."""
    cause = getattr(error, "orig", None) or error
    line = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    if isinstance(cause, sqlite3.Error):
        kinds, code, other = _SQLITE, getattr(cause, "sqlite_errorname", ""), ""
    else:
        kinds, code = _POSTGRES, getattr(cause, "sqlstate", None) or ""
        other = "; check that the server runs and can be reached"
        if not code and "FATAL:" in line:
            code = next((code for words, code in _REFUSALS if words in line), "")
    for start, kind, advice in kinds:
        if code.startswith(start):
            return kind(f"{where}: {line}; {advice}")
    return UnavailableError(f"{where}: {line}{other}")


# With these keepalives, the server releases a writer's lock within half a minute of losing its machine.
_POSTGRES_SETTINGS = (
    "SET synchronous_commit = on",
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
)


def keep_private(path: Path) -> None:
    """Create a file that only this user can read, or restrict an existing file, with SQLite's side files if any."""
    for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        with contextlib.suppress(OSError):  # opening the database reports the problem
            if name == path or name.exists():
                os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                name.chmod(0o600)


class JournalStore:
    """The connection to a journal's database, opened on first use and reopened after a loss.

    Parameters
    ----------
    wait_ms : int
        How long to wait for another process that has locked the database, or holds the writer's lock in PostgreSQL.
    synchronous : str
        SQLite's setting of this name: ``full`` or ``normal``.
    read_only : bool
        Whether to open an existing journal without the writer's lock.
    """

    def __init__(self, place: str | Path, *, wait_ms: int, synchronous: str, read_only: bool) -> None:
        self.place = place
        self._url = checked_url("journal", place)
        if wait_ms < 0:
            raise OptionError("wait_ms", f"is {wait_ms}; expected at least 0 ms")
        if synchronous not in ("full", "normal"):
            raise OptionError("synchronous", f"is {synchronous!r}; expected full or normal")
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        self.where = str(self._url.database) if self.is_sqlite else self._url.render_as_string(hide_password=True)
        self._wait_ms = wait_ms
        self._synchronous = synchronous
        self._read_only = read_only
        self._connection: Connection | None = None
        self._lock_fd: int | None = None
        self._engine = self._make_engine()

    def _make_engine(self) -> Engine:
        try:
            if not self.is_sqlite:
                wait_s = max(2, self._wait_ms // 1000)
                return create_engine(self._url, poolclass=NullPool, connect_args={"connect_timeout": wait_s})
            # The journal ensures that only one thread at a time uses the connection.
            arguments: dict[str, Any] = {"check_same_thread": False, "timeout": self._wait_ms / 1000}
            engine = create_engine(self._url, poolclass=NullPool, connect_args=arguments)
        except ModuleNotFoundError as error:
            raise UnavailableError(f"{self.where}: the package {error.name} is not installed; install it") from error
        event.listen(engine, "begin", self._begin_sqlite)
        return engine

    def _begin_sqlite(self, connection: Connection) -> None:
        """Begin a transaction, because Python's sqlite3 begins none before DDL or reads; writers lock immediately."""
        connection.exec_driver_sql("BEGIN" if self._read_only else "BEGIN IMMEDIATE")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection in a transaction, which is committed at the end, or rolled back on an error.

        After an UnavailableError, the outcome may be unknown: the server may have committed the transaction.
        """
        try:
            connection = self._connection if self._connection is not None else self._connect()
            with connection.begin():
                yield connection
        except (DBAPIError, DisconnectionError, sqlite3.Error) as error:
            if not self.is_sqlite and getattr(error, "connection_invalidated", True):
                self._drop()
            raise explained(error, self.where) from error

    def _connect(self) -> Connection:
        if self.is_sqlite:
            self._take_file(Path(self.where))
        connection = self._engine.connect()
        try:
            if self.is_sqlite:
                self._set_up_sqlite(connection)
            else:
                self._set_up_postgres(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _set_up_postgres(self, connection: Connection) -> None:
        with connection.begin():
            for setting in _POSTGRES_SETTINGS:
                connection.execute(text(setting))
            connection.execute(text(f"SET lock_timeout = {max(1, self._wait_ms)}"))
            if not self._read_only:
                # This may take a moment, until the session of a killed process has ended.
                connection.execute(_TAKE_LOCK)

    def _take_file(self, path: Path) -> None:
        """Check that the journal exists if this is a reader; otherwise become the journal's only writer."""
        if self._read_only:
            if not path.is_file():
                raise InputError(f"{path}: this journal does not exist")
            return
        self._lock(path)
        if path.is_file() and not path.stat().st_size and self.known_id():
            raise InputError(f"{path} is empty, but was a journal before; restore it from a copy, or remove it")
        keep_private(path)

    def _set_up_sqlite(self, connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection), "the driver is not Python's own"
        driver.isolation_level = None
        mode = driver.execute("PRAGMA journal_mode" + ("" if self._read_only else "=WAL")).fetchone()[0]
        if mode != "wal" and not self._read_only:
            where = Path(self.where)
            raise InputError(f"{where}: SQLite cannot keep a write-ahead log there; name a file on a local disk")
        driver.execute(f"PRAGMA synchronous={self._synchronous}")

    def _lock(self, path: Path) -> None:
        """Become the only writer until this process ends; the operating system releases the lock even after a crash."""
        if self._lock_fd is not None:
            return
        try:
            # Mode 0600, because any user who can open the lock file could take the lock.
            lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            os.fchmod(lock, 0o600)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; name a file in a folder that you can write to") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(lock, 100, 0).decode(errors="replace").partition("\n")[0] or "of unknown id"
            os.close(lock)
            raise UnavailableError(f"{path}: process {holder} writes this journal; stop it first") from error
        self._lock_fd = lock
        self.name_writer(self.known_id())

    def known_id(self) -> str:
        """Return the id of the last journal at this location, from the lock file; empty if unknown."""
        if self._lock_fd is None:
            return ""
        lines = os.pread(self._lock_fd, 100, 0).decode(errors="replace").splitlines()
        return lines[1] if len(lines) > 1 else ""

    def name_writer(self, journal_id: str) -> None:
        """Write this process's id and the journal's id into the lock file."""
        if self._lock_fd is not None:
            text = f"{os.getpid()}\n{journal_id}\n".encode()
            os.ftruncate(self._lock_fd, os.pwrite(self._lock_fd, text, 0))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(DBAPIError):
                connection.invalidate()
                connection.close()

    def close(self) -> None:
        """Close the connection and release the lock."""
        if self._connection is not None:
            with contextlib.suppress(DBAPIError, sqlite3.Error):
                self._connection.close()
            self._connection = None
        self._engine.dispose()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


_TAKE_LOCK = text("SELECT pg_advisory_lock(hashtextextended('gridweave.journal ' || current_schema(), 0))")


@cache
def _plain(dialect: Dialect, statement: ClauseElement) -> tuple[str, tuple[str, ...]]:
    """Compile a statement for the driver; return the text, and the order of the values if these are positional."""
    compiled: Any = statement.compile(dialect=dialect)
    return str(compiled), tuple(compiled.positiontup or ())


def execute_plain(
    connection: Connection, statement: ClauseElement, values: dict[str, Any] | list[dict[str, Any]]
) -> CursorResult[Any]:
    """Execute a statement whose values need no conversion, three times as fast as SQLAlchemy does.

    Compiled statements are cached by identity, so pass the same statement object each time.
    """
    compiled, order = _plain(connection.dialect, statement)
    if not order:
        return connection.exec_driver_sql(compiled, values)
    if isinstance(values, dict):
        return connection.exec_driver_sql(compiled, tuple([values[name] for name in order]))
    return connection.exec_driver_sql(compiled, [tuple([row[name] for name in order]) for row in values])
