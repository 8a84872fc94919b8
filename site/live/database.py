"""Databases: SQLite and PostgreSQL by a path or a URL, and what goes wrong with them in plain words."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError

_FORMS = "a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE"

_Kinds = tuple[tuple[str, type[GridweaveError], str], ...]

# How the names of SQLite's codes begin, and what would be right.
_SQLITE: _Kinds = (
    ("SQLITE_FULL", UnavailableError, "make room on its disk"),
    ("SQLITE_BUSY", UnavailableError, "another process has it locked: end that"),
    ("SQLITE_LOCKED", UnavailableError, "another process has it locked: end that"),
    ("SQLITE_NOTADB", InputError, "name an SQLite database, or a file that is not there yet"),
    ("SQLITE_CORRUPT", InputError, "the file is damaged: restore it from a copy"),
    ("SQLITE_CANTOPEN", InputError, "name a place in a folder that can be written"),
    ("SQLITE_READONLY", InputError, "name a file and a folder that can be written"),
    ("SQLITE_PERM", InputError, "name a file that can be written"),
    ("SQLITE_IOERR", UnavailableError, "see to its disk"),
)

# How the codes of PostgreSQL begin (its manual, appendix A).
_POSTGRES: _Kinds = (
    ("53100", UnavailableError, "make room on the server's disk"),
    ("28", InputError, "name a user and a password that the server takes"),
    ("3D", InputError, "create the database, or name another"),
    ("42501", InputError, "let this user create tables there"),
    ("55P03", UnavailableError, "another process writes this journal, or has its tables locked: end that"),
    ("XX001", InputError, "the database is damaged: restore it from a copy"),
)

# The driver has no code for a connection that the server refuses, only the server's words.
_REFUSALS = ((" role ", "28"), ("authentication failed", "28"), ("pg_hba.conf", "28"), ("does not exist", "3D"))


def checked_url(option: str, place: str | Path) -> URL:
    """Return the URL of a place, with the driver that we use.

    Parameters
    ----------
    option : str
        What the user calls the place.
    place : str or pathlib.Path

    Raises
    ------
    OptionError
        If it makes no sense.

    Examples
    --------
    >>> checked_url("journal", "postgresql://anna@north/jobs").drivername
    'postgresql+psycopg'
    """
    given = str(place)
    if "://" not in given:
        if not given:
            raise OptionError(option, f"is empty; {_FORMS}")
        return URL.create("sqlite", database=given)
    try:
        url = make_url(given)
        backend = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError) as error:
        raise OptionError(option, f"cannot be read as a URL; {_FORMS}") from error
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise OptionError(option, f"is a URL of {backend}; {_FORMS}")
    if not url.database or url.database == ":memory:" or url.query:
        raise OptionError(option, f"names no plain file, and memory outlasts nothing; {_FORMS}")
    return url.set(drivername="sqlite")


def explained(error: Exception, where: str) -> GridweaveError:
    """Return what went wrong with a database, in one line, and what would be right.

    Parameters
    ----------
    error : Exception
        Of SQLAlchemy or of a driver.
    where : str
        The database, without secrets.
    """
    cause = getattr(error, "orig", None) or error
    line = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    if isinstance(cause, sqlite3.Error):
        name = getattr(cause, "sqlite_errorname", "")
        for start, kind, advice in _SQLITE:
            if name.startswith(start):
                return kind(f"{where}: {line}; {advice}")
        return UnavailableError(f"{where}: {line}")
    state = getattr(cause, "sqlstate", None) or ""
    for start, kind, advice in _POSTGRES:
        if state.startswith(start):
            return kind(f"{where}: {line}; {advice}")
    for words, code in _REFUSALS:
        if not state and "FATAL:" in line and words in line:
            advice = next(advice for start, _, advice in _POSTGRES if start == code)
            return InputError(f"{where}: {line}; {advice}")
    return UnavailableError(f"{where}: {line}; see that the server runs and can be reached")
