"""Read a journal, even while another process is writing to it."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from sqlalchemy import Connection, Select, Table, bindparam, func, select

from gridweave.errors import InputError, OptionError
from gridweave.settings import Changeable, SettingsChanged, settings_changes
from gridweave.site.job import JobRecord
from gridweave.site.journal import tables
from gridweave.site.journal.records import (
    ChannelState,
    Codec,
    Experience,
    Group,
    Input,
    JobUsage,
    KeptAnswer,
    Note,
    NumberedNote,
    experience_of,
    kept_settings,
    refused_changes,
)
from gridweave.site.journal.step import plain, sites_text
from gridweave.site.journal.store import JournalStore, execute_plain
from gridweave.site.journal.tables import channels, ended, inputs, notes, outbox, snapshots, submissions, usage
from gridweave.site.query_messages import JobQuery

LAST = 10_000
"""Default number of newest jobs to read."""

_PAGE = 1000

# Built once: it runs for every job that is submitted individually, and building it takes longer than running it.
_SUBMISSION = select(submissions).where(submissions.c.key == bindparam("asked"))
_ENDED = select(ended.c.job_id, ended.c.record).where(ended.c.job_id.in_(bindparam("asked", expanding=True)))
_SUBMISSIONS = select(submissions).where(submissions.c.key.in_(bindparam("asked", expanding=True)))


_CHANGED = str(SettingsChanged.__struct_config__.tag).encode()

_WAIT_MS = 5000  # how long to wait while another process has locked the database
_RECORDS = msgspec.msgpack.Decoder(JobRecord)


class JournalReader:
    """A journal that is open for reading; it takes no lock and changes nothing.

    Parameters
    ----------
    place : str or pathlib.Path
        The path of an SQLite file, or a URL: ``sqlite:///PATH``, ``postgresql://USER@HOST/DATABASE``.
    event_type, message_type, answer_type : type, optional
        As for `gridweave.site.journal.journal.Journal`; without them, values are returned as builtins.

    Raises
    ------
    OptionError
        If an option is invalid.
    InputError
        If the location contains other data, or a journal with another schema version.
    UnavailableError
        If the location cannot be reached, or if its database is empty.

    Notes
    -----
    All methods may be called from any thread; threads take turns in using the database. The methods raise InputError
    if the stored data is damaged or has other types, and UnavailableError if the database cannot be read now.
    """

    def __init__(
        self,
        place: str | Path,
        *,
        event_type: Any = Any,
        message_type: Any = Any,
        answer_type: Any = Any,
    ) -> None:
        self._set_types(event_type, message_type, answer_type)
        self._begin(JournalStore(place, wait_ms=_WAIT_MS, synchronous="full", read_only=True))

    def _set_types(self, event_type: Any, message_type: Any, answer_type: Any) -> None:
        self._events = Codec(event_type, "event")
        self._messages = Codec(message_type, "message")
        self._answers = Codec(answer_type, "answer")

    def _begin(self, store: JournalStore) -> None:
        self._store = store
        self._io_lock = threading.RLock()
        try:
            with self._store.transaction() as connection:
                self._open(connection)
        except BaseException:
            self._store.close()
            raise

    def _open(self, connection: Connection) -> None:
        tables.bring_up(connection, self.where, read_only=True)
        self._read_head(connection)

    def _read_head(self, connection: Connection) -> None:
        head = connection.execute(select(tables.head)).one_or_none()
        if head is None:
            raise InputError(f"{self.where}: table {tables.head.name} is empty: restore the journal from a copy")
        self.journal_id: str = head.journal_id
        self._batch: int = head.batch
        self._base: int = head.base
        self._kept_identity: bytes = head.identity

    @property
    def where(self) -> str:
        """Path or URL of the journal, without the password."""
        return self._store.where

    def other_settings(self, identity: msgspec.Struct | None) -> list[str]:
        """Return the changed settings in ``identity`` that prevent a replay of the inputs; empty without inputs."""
        return refused_changes(self._kept_identity, identity) if self._has_inputs() else []

    def changed_settings(self, identity: msgspec.Struct | None) -> list[str]:
        """Return the changed settings in ``identity`` that the core can adopt; empty if there are no inputs."""
        if not self._has_inputs():
            return []
        changeable: Changeable = getattr(identity, "changeable", {})
        changes = settings_changes(self._settings(), identity)
        return [change.text for change in changes if change.is_allowed(changeable)]

    def _has_inputs(self) -> bool:
        with self.reading() as connection:
            return max(last_of(connection, inputs)[0], last_of(connection, snapshots)[0]) > self._base

    def _settings(self) -> Any:
        """Return the core's current settings: from the last change event, or else those from which it was created."""
        with self.reading() as connection:
            query = select(snapshots).where(snapshots.c.sequence >= self._base).order_by(snapshots.c.sequence.desc())
            newest = connection.execute(query.limit(1)).one_or_none()
            after = self._base if newest is None else newest.sequence
            query_inputs = select(inputs.c.events).where(inputs.c.sequence > after).order_by(inputs.c.sequence.desc())
            changes = (data for (data,) in connection.execute(query_inputs) if _CHANGED in data)
            for data in changes:
                events = [event for event in msgspec.msgpack.decode(data) if event["type"] == _CHANGED.decode()]
                if events:
                    return events[-1]["settings"]
        state: dict[str, Any] = {}
        # Replay skips damaged snapshots, too.
        with contextlib.suppress(zlib.error, msgspec.DecodeError):
            state = {} if newest is None else msgspec.msgpack.decode(zlib.decompress(newest.state))
        return state.get("settings") or kept_settings(self._kept_identity)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection in a read transaction."""
        with self._io_lock, self._store.transaction() as connection:
            yield connection

    def inputs(self, *, after: int = 0) -> Iterator[Input]:
        """Yield the inputs after number ``after`` in order; see `gridweave.site.journal.replay.replay`."""
        while True:
            query = select(inputs).where(inputs.c.sequence > after).order_by(inputs.c.sequence).limit(_PAGE)
            with self.reading() as connection:
                page = connection.execute(query).all()
            for row in page:
                if row.sequence != after + 1:
                    gap = f"inputs {after + 1} to {row.sequence - 1} are missing"
                    raise InputError(f"{self.where}: {gap}; restore the journal from a copy")
                after = row.sequence
                events = self._events.decode_all(row.events, f"{self.where}: input {after}")
                yield Input(after, row.now_ms, events, row.decided)
            if len(page) < _PAGE:
                return

    def channel(self, peer: str) -> ChannelState:
        """Return the state from which this end of the channel to ``peer`` continues."""
        with self.reading() as connection:
            row = connection.execute(select(channels).where(channels.c.peer == peer)).one_or_none()
            if row is None:
                return ChannelState()
            rows = connection.execute(select(outbox).where(outbox.c.peer == peer).order_by(outbox.c.number)).all()
        if [sent.number for sent in rows] != list(range(row.first, row.next)):
            raise InputError(f"{self.where}: messages to {peer} are missing; restore the journal from a copy")
        messages = (
            self._messages.decode(sent.message, f"{self.where}: message {sent.number} to {peer}") for sent in rows
        )
        return ChannelState(row.first, tuple(messages), row.received, row.other)

    def peers(self) -> list[str]:
        """Return the names of all peers with which a channel was ever used, sorted."""
        with self.reading() as connection:
            return sorted(connection.scalars(select(channels.c.peer)))

    def submissions(self, keys: Iterable[str]) -> dict[str, KeptAnswer]:
        """Return the first answers to submissions by idempotency key; keys that were never used are omitted."""
        with self.reading() as connection:
            return self._read_submissions(connection, list(dict.fromkeys(keys)))

    def _read_submissions(self, connection: Connection, keys: Sequence[str]) -> dict[str, KeptAnswer]:
        if len(keys) == 1:
            rows = list(execute_plain(connection, _SUBMISSION, {"asked": keys[0]}))
        else:
            rows = [row for page in _pages(keys) for row in connection.execute(_SUBMISSIONS, {"asked": page})]
        answers: dict[str, KeptAnswer] = {}
        for row in rows:
            answer = self._answers.decode(row.answer, f"{self.where}: submission {row.key!r:.100}")
            answers[row.key] = KeptAnswer(row.key, row.job_id, row.at_ms, answer)
        return {key: answers[key] for key in keys if key in answers}

    def history(self, job_id: int) -> list[Note]:
        """Return a job's history in order."""
        query = select(notes).where(notes.c.job_id == job_id).order_by(notes.c.number)
        with self.reading() as connection:
            return [Note(row.job_id, row.at_ms, row.kind, row.detail) for row in connection.execute(query)]

    def notes(self, *, after: int, limit: int = 1_000) -> list[NumberedNote]:
        """Return up to ``limit`` history events with numbers above ``after``, of all jobs, in ascending order."""
        query = select(notes).where(notes.c.number > after).order_by(notes.c.number).limit(limit)
        with self.reading() as connection:
            return [NumberedNote(*row) for row in connection.execute(query)]

    def ended(self, job_ids: Iterable[int]) -> dict[int, JobRecord]:
        """Return the records of ended jobs by job id; jobs that have not ended are omitted."""
        unique_ids, records = list(dict.fromkeys(job_ids)), dict[int, JobRecord]()
        with self.reading() as connection:
            for page in _pages(unique_ids):
                rows = connection.execute(_ENDED, {"asked": page})
                records |= {job_id: self._record(data, job_id) for job_id, data in rows}
        return {job_id: records[job_id] for job_id in unique_ids if job_id in records}

    def ended_numbers(self) -> range:
        """Return the range of the ended jobs' ids; the range may include ids of open jobs."""
        with self.reading() as connection:
            first, last = connection.execute(select(func.min(ended.c.job_id), func.max(ended.c.job_id))).one()
        return range(0) if last is None else range(first, last + 1)

    def find_ended(self, query: JobQuery, first: int = 0) -> list[JobRecord]:
        """Return the ended jobs that match a query and have ids of at least ``first``, highest id first."""
        columns = ended.c
        chosen = select(columns.job_id, columns.record).order_by(columns.job_id.desc()).limit(query.limit)
        if first:
            chosen = chosen.where(columns.job_id >= first)
        for column, value in ((columns.user, query.user), (columns.name, query.name), (columns.array, query.array)):
            if value is not None:
                chosen = chosen.where(column == plain(value))
        if query.site is not None:
            chosen = chosen.where(columns.sites.contains(sites_text([plain(query.site)]), autoescape=True))
        if query.state:
            chosen = chosen.where(columns.state.in_(query.state))
        if query.outcome:
            chosen = chosen.where(columns.outcome.in_(query.outcome))
        if query.since_ms is not None:
            chosen = chosen.where(columns.end_ms >= query.since_ms)
        if query.until_ms is not None:
            chosen = chosen.where(columns.submit_ms < query.until_ms)
        if query.below is not None:
            chosen = chosen.where(columns.job_id < query.below)
        with self.reading() as connection:
            return [self._record(data, job_id) for job_id, data in connection.execute(chosen)]

    def _record(self, data: bytes, job_id: int) -> JobRecord:
        try:
            return _RECORDS.decode(data)
        except msgspec.MsgspecError as error:
            raise InputError(f"{self.where}: the record of job {job_id} cannot be read: {error}") from error

    def experience(
        self, *, user: str | int | None = None, job_class: str | int | None = None, last: int = LAST
    ) -> Experience:
        """Summarize the resource use of the ``last`` newest jobs, restricted to one user or class if given."""
        query = select(usage)
        if user is not None:
            query = query.where(usage.c.user == str(user))
        if job_class is not None:
            query = query.where(usage.c.job_class == str(job_class))
        return experience_of(self._newest(query, last))

    def usage(self, group: Group, *, last: int = LAST) -> list[JobUsage]:
        """Return the resource use of each of the ``last`` newest jobs of a user and class, sorted by end time."""
        user, job_class = usage.c.user, usage.c.job_class
        mine = user.is_not_distinct_from(group.user), job_class.is_not_distinct_from(group.job_class)
        return self._newest(select(usage).where(*mine), last)[::-1]

    def _newest(self, query: Select[Any], last: int) -> list[JobUsage]:
        if last < 1:
            raise OptionError("last", f"is {last}; expected at least 1 job")
        with self.reading() as connection:
            rows = connection.execute(query.order_by(usage.c.number.desc()).limit(last)).mappings()
            return [JobUsage(**{name: row[name] for name in JobUsage.__struct_fields__}) for row in rows]

    def groups(self) -> list[Group]:
        """Return the users and job classes with recorded resource use, sorted."""
        names = usage.c.user, usage.c.job_class
        with self.reading() as connection:
            rows = connection.execute(select(*names, func.count()).group_by(*names))
            groups = [Group(user, job_class, count) for user, job_class, count in rows]
        return sorted(groups, key=lambda group: (group.user or "", group.job_class or ""))

    def close(self) -> None:
        """Close the connection."""
        with self._io_lock:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


T = TypeVar("T")


def _pages(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split values into pages, one page per statement."""
    return (values[start : start + _PAGE] for start in range(0, len(values), _PAGE))


def last_of(connection: Connection, table: Table) -> tuple[int, int]:
    """Return the number and time (ms) of the last row of ``inputs`` or ``snapshots``; zeros if the table is empty."""
    query = select(table.c.sequence, table.c.now_ms).order_by(table.c.sequence.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return (0, 0) if row is None else (row.sequence, row.now_ms)
