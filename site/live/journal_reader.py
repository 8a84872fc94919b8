"""What can be asked of a journal, also while another process writes it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, select

from gridweave.errors import InputError, OptionError
from gridweave.site.live import journal_tables as tables
from gridweave.site.live.journal_records import (
    ChannelState,
    Codec,
    Experience,
    Group,
    Input,
    JobFilter,
    Note,
    NumberedNote,
    Submission,
    Usage,
)
from gridweave.site.live.journal_store import Store
from gridweave.site.live.journal_views import (
    find_ended,
    read_channel,
    read_ended,
    read_experience,
    read_groups,
    read_inputs,
    read_notes,
    read_story,
    read_submissions,
    read_usage,
)
from gridweave.site.program import JobRecord


class JournalReader:
    """A journal to look into; it takes no lock and changes nothing.

    Parameters
    ----------
    place : str or pathlib.Path
        A path of an SQLite file, or a URL: ``sqlite:///PATH``, ``postgresql://USER@HOST/DATABASE``.
    event_type, message_type, answer_type : type, optional
        As for `gridweave.site.live.journal.Journal`; without them what was kept comes back as builtins.
    wait_ms : int
        How long to wait for another process that has the database locked.

    Raises
    ------
    OptionError
        If an option makes no sense.
    InputError
        If there is no journal at that place, or one of another schema version.
    UnavailableError
        If the place cannot be reached.

    Notes
    -----
    Every method may be called from any thread; each waits for its turn at the database. All raise InputError if what is
    kept is damaged or of other types, and UnavailableError if the database cannot be read now.
    """

    def __init__(
        self,
        place: str | Path,
        *,
        event_type: Any = Any,
        message_type: Any = Any,
        answer_type: Any = Any,
        wait_ms: int = 5000,
    ) -> None:
        self._set_types(event_type, message_type, answer_type)
        self._begin(Store(place, wait_ms=wait_ms, synchronous="full", read_only=True))

    def _set_types(self, event_type: Any, message_type: Any, answer_type: Any) -> None:
        self._events = Codec(event_type, "event")
        self._messages = Codec(message_type, "message")
        self._answers = Codec(answer_type, "answer")

    def _begin(self, store: Store) -> None:
        self._store = store
        self._io_lock = threading.RLock()
        try:
            with self._store.transaction() as connection:
                self._open(connection)
        except BaseException:
            self._store.close()
            raise

    def _open(self, connection: Connection) -> None:
        """Look at what is there, in the first transaction."""
        tables.bring_up(connection, self.where, read_only=True)
        self._read_head(connection)

    def _read_head(self, connection: Connection) -> None:
        found = connection.execute(select(tables.head)).one_or_none()
        if found is None:
            raise InputError(f"{self.where}: table {tables.head.name} is empty: restore the journal from a copy")
        self.journal_id: str = found.journal_id
        self._batch: int = found.batch
        self._base: int = found.base
        self.kept_configuration: str = found.configuration

    @property
    def where(self) -> str:
        """Path or URL of the journal, without a password."""
        return self._store.where

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection in a transaction that sees all that was recorded."""
        with self._io_lock, self._store.transaction() as connection:
            yield connection

    def inputs(self, *, after: int = 0) -> Iterator[Input]:
        """Yield what the core was told after an input, in order; see `gridweave.site.live.journal_replay.replay`.

        Raises
        ------
        InputError
            If one is missing, or is not of these events.
        """
        yield from read_inputs(self.reading, self._events, self.where, after)

    def channel(self, peer: str) -> ChannelState:
        """Return what the end of a connection must know to go on where it stood."""
        with self.reading() as connection:
            return read_channel(connection, self._messages, self.where, peer)

    def peers(self) -> list[str]:
        """Return the other ends of all connections that were ever used, sorted."""
        with self.reading() as connection:
            return sorted(connection.scalars(select(tables.channels.c.peer)))

    def submissions(self, keys: Iterable[str]) -> dict[str, Submission]:
        """Return what was answered to submissions with these idempotency keys; a key without one is left out."""
        with self.reading() as connection:
            return read_submissions(connection, self._answers, self.where, list(dict.fromkeys(keys)))

    def story(self, job_id: int) -> list[Note]:
        """Return what happened to a job, in the order in which it was noted."""
        with self.reading() as connection:
            return read_story(connection, job_id)

    def notes(self, *, after: int, limit: int = 1_000) -> list[NumberedNote]:
        """Return what happened to jobs after an event of that number, in ascending order, so many at most."""
        with self.reading() as connection:
            return read_notes(connection, after, limit)

    def ended(self, job_ids: Iterable[int]) -> dict[int, JobRecord]:
        """Return what is kept of jobs that are over, by their numbers; others are left out."""
        with self.reading() as connection:
            return read_ended(connection, self.where, list(dict.fromkeys(job_ids)))

    def find_ended(self, query: JobFilter) -> list[JobRecord]:
        """Return jobs that are over, those with the highest numbers first."""
        with self.reading() as connection:
            return find_ended(connection, self.where, query)

    def experience(
        self, *, user: str | int | None = None, job_class: str | int | None = None, last: int = 10_000
    ) -> Experience:
        """Return what jobs have used.

        Parameters
        ----------
        user, job_class : str or int, optional
            Only jobs of these; None: of all.
        last : int
            Only the newest of them, at most so many.

        Raises
        ------
        OptionError
            If ``last`` is below 1.
        """
        if last < 1:
            raise OptionError("last", f"is {last}; a number of jobs from 1 up")
        with self.reading() as connection:
            return read_experience(connection, user, job_class, last)

    def usage(self, group: Group, *, last: int = 10_000) -> list[Usage]:
        """Return what the newest jobs of a user and job class have used, one by one, in the order of their ends.

        Parameters
        ----------
        group : Group
            As `groups` gives it: None is a job without a user, or without a class.
        last : int
            At most so many.

        Raises
        ------
        OptionError
            If ``last`` is below 1.
        """
        if last < 1:
            raise OptionError("last", f"is {last}; a number of jobs from 1 up")
        with self.reading() as connection:
            return read_usage(connection, group, last)

    def groups(self) -> list[Group]:
        """Return of which users and job classes there is experience, sorted."""
        with self.reading() as connection:
            return read_groups(connection)

    def close(self) -> None:
        """Let go of the journal."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
