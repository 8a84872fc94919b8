"""The journal of a site or meta-scheduler, from which inputs, promises and answers are restored after failures.

docs/journal.md explains the rules.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError
from gridweave.site.journal import tables
from gridweave.site.journal.reader import JournalReader, last_of
from gridweave.site.journal.records import KeptAnswer, identity_bytes, identity_changes, kept_settings, refused_changes
from gridweave.site.journal.step import Counts, Step, StepRows, write
from gridweave.site.journal.store import JournalStore, execute_plain
from gridweave.site.journal.tidy import AGING, Sweep, Tidy, needed_from, tidy_of
from gridweave.site.state import HasState, compressed, kind_of, state_bytes

BATCH = 500
"""Number of steps to collect before writing them."""

QUICK_S, QUICK_ROWS = 0.005, 100
"""If the last write took at most this long, up to this many rows are written directly instead of in a thread."""

_MOST_UNUSED_KEYS = 100_000
"""Maximum number of idempotency keys remembered as unused; if there are more, all are forgotten and looked up again."""

_NEXT_BATCH = (
    update(tables.head)
    .where(tables.head.c.writer_id == bindparam("mine"), tables.head.c.batch == bindparam("last"))
    .values(batch=bindparam("batch"))
)


class Snap(msgspec.Struct, frozen=True):
    """A core's uncompressed state after an input."""

    sequence: int
    now_ms: int
    kind: str
    state: bytes


class Journal(JournalReader):
    """A journal that is open for writing, in SQLite or PostgreSQL.

    Parameters
    ----------
    place : str or pathlib.Path
        The path of an SQLite file, or a URL: ``sqlite:///PATH``, ``postgresql://USER@HOST/DATABASE``.
    event_type : type
        Type of the core's events: a union of tagged structs, such as ``ContractEvent``.
    message_type : type, optional
        Type of the messages sent through channels, such as ``Answer`` for a site.
    answer_type : type, optional
        Type of the answers to submissions.
    identity : msgspec.Struct, optional
        Settings from which the core is created (nodes, policy). Inputs are replayed only into an equal core.
    batch : int
        Number of steps after which the journal writes; 0: only `flush` writes.
    wait_ms : int
        How long to wait for a database locked by another process, and for a server to respond (at least 2 s).
    synchronous : str
        SQLite only. With ``full``, flushed steps survive a power failure; with ``normal``, only a process crash.
    compacts : bool
        Whether each flush also removes some inputs that no replay needs, and some of the records that
        `forget_by_and_by` has marked.

    Raises
    ------
    OptionError
        If an option is invalid.
    InputError
        If the location contains other data, or a journal from a later release.
    UnavailableError
        If the location cannot be reached, or if another process is writing to this journal.

    Notes
    -----
    Only one thread at a time may record steps. Other threads may flush and read at the same time; they take turns in
    using the database. Reading flushes first, so that the result includes every recorded step.

    Examples
    --------
    >>> from gridweave.site.messages import Event, Job, JobSubmitted
    >>> from gridweave.site.scheduler.core import SiteCore
    >>> from gridweave.site.policy import SitePolicy
    >>> import tempfile, pathlib
    >>> folder = tempfile.TemporaryDirectory()
    >>> core = SiteCore(4, SitePolicy())
    >>> with Journal(pathlib.Path(folder.name) / "site.journal", event_type=Event) as journal:
    ...     with journal.step() as step:
    ...         commands = step.handle(core, 0, JobSubmitted(Job(job_id=1, width=3, estimate_ms=100)))
    ...         step.note(1, 0, "submitted")
    ...     journal.flush()
    1
    >>> folder.cleanup()
    """

    def __init__(
        self,
        place: str | Path,
        *,
        event_type: Any,
        message_type: Any = Any,
        answer_type: Any = Any,
        identity: msgspec.Struct | None = None,
        batch: int = BATCH,
        wait_ms: int = 5000,
        synchronous: str = "full",
        compacts: bool = False,
    ) -> None:
        if batch < 0:
            raise OptionError("batch", f"is {batch}; expected a number of steps, or 0 to write only in flush")
        self._set_types(event_type, message_type, answer_type)
        self._identity = identity
        self._limit = batch
        self._writer_id = uuid.uuid4().hex
        self._batch = 0
        # Steps not written yet, and how many of them are in a transaction whose outcome is unknown.
        self._pending: list[StepRows] = []
        self._unsure: int | None = None
        self._refused, self._is_replaced = "", False
        self._step_lock = threading.Lock()
        self._pending_lock = threading.Lock()
        # Idempotency keys known to be unused, and keys recorded but not written yet.
        self._unused_keys: set[str] = set()
        self._unwritten_keys: dict[str, dict[str, Any]] = {}
        self._made = self._durable = 0
        self._flush_s = math.inf
        self.compacts = compacts
        self._readers: list[JournalReader] = []
        self._sweep_asked: Sweep | None = None
        self._begin(JournalStore(place, wait_ms=wait_ms, synchronous=synchronous, read_only=False))
        self._store.name_writer(self.journal_id)

    def _open(self, connection: Connection) -> None:
        is_new = tables.bring_up(connection, self.where)
        if is_new:
            row = {"journal_id": uuid.uuid4().hex, "writer_id": "", "batch": 0, "base": 0}
            connection.execute(insert(tables.head), row | {"identity": identity_bytes(self._identity)})
        self._read_head(connection)
        connection.execute(update(tables.head).values(writer_id=self._writer_id))
        last = max(last_of(connection, tables.inputs), last_of(connection, tables.snapshots))
        self._sequence, self._now_ms = max(last[0], self._base), last[1]
        if self._sequence == self._base or self._is_unchanged():
            # Either nothing has been decided yet, or the only new settings are defaults unknown to an older release.
            self._keep_identity(connection)
        rows = connection.execute(select(tables.channels))
        self._counts = {row.peer: Counts(row.first, row.next, row.received, row.other) for row in rows}
        self._last_note = connection.scalar(select(func.max(tables.notes.c.number))) or 0
        self._tidy = tidy_of(connection, self._base)

    def _keep_identity(self, connection: Connection) -> None:
        self._kept_identity = identity_bytes(self._identity)
        connection.execute(update(tables.head).values(identity=self._kept_identity))

    def _is_unchanged(self) -> bool:
        try:
            return not identity_changes(self._kept_identity, self._identity)
        except InputError:
            return False

    @property
    def kept_settings(self) -> Any:
        """The settings for creating the core before a replay, as builtin types; raises InputError if damaged."""
        return kept_settings(self._kept_identity)

    @property
    def identity_changes(self) -> list[str]:
        """The forbidden changes from the recorded settings, one line each; empty if a replay is allowed."""
        return refused_changes(self._kept_identity, self._identity)

    @property
    def pending(self) -> int:
        """Number of recorded steps that are not durable yet."""
        return len(self._pending)

    @property
    def is_replaced(self) -> bool:
        """Whether another process has become the writer, so that this journal can no longer write."""
        return self._is_replaced

    @property
    def _has_unwritten(self) -> bool:
        return bool(self._pending) or self._unsure is not None

    @property
    def durable(self) -> int:
        """Number of durable steps since the journal was opened, for comparison with ``Step.number``."""
        return self._durable

    @property
    def sequence(self) -> int:
        """Number of the last recorded input, durable or not; 0 if there are no inputs."""
        return self._sequence

    @property
    def now_ms(self) -> int:
        """Time of the last recorded input; a replayed core accepts no earlier time."""
        return self._now_ms

    @property
    def last_note(self) -> int:
        """Number of the last recorded history event, durable or not; 0 if there are no events."""
        return self._last_note

    @property
    def base(self) -> int:
        """Number of the last input before the current core started; 0 if the journal has never started over."""
        return self._base

    @contextlib.contextmanager
    def step(self) -> Iterator[Step]:
        """Record a group of entries atomically: after a failure, either all or none of them are kept.

        Fill the step inside the ``with`` block; if the block raises, nothing is recorded. The step is durable once
        `flush` has returned. Execute its commands and send its messages only then.

        Raises
        ------
        InputError
            If another step is open.
        UnavailableError
            If the journal cannot be written. If only the automatic flush of a full batch fails, the step is kept.
        """
        self._check_usable()
        if not self._step_lock.acquire(blocking=False):
            raise InputError("a step of this journal is still open; end it before the next")
        try:
            codecs = self._events, self._messages, self._answers
            state = self._made + 1, self._sequence, self._now_ms, self._counts
            step = Step(*state, *codecs, self._is_used, self._last_note)
            try:
                yield step
            except BaseException:
                if step.has_acted:
                    self._refused = "a step failed after the core had acted; reopen the journal and replay it"
                raise
            self._apply(step)
        finally:
            self._step_lock.release()
        if self._limit and len(self._pending) >= self._limit:
            self.flush()

    def _apply(self, step: Step) -> None:
        rows = step.rows
        with self._pending_lock:
            self._made += 1
            self._sequence = step.sequence
            self._now_ms = step.now_ms
            self._last_note = step.last_note
            self._counts.update(rows.channels)
            for row in rows.submissions:
                self._unused_keys.discard(row["key"])
                self._unwritten_keys[row["key"]] = row
            self._pending.append(rows)

    def flush(self) -> int:
        """Make all recorded steps durable in one transaction; return the number of durable steps.

        If writing fails, the steps are kept and the next `flush` retries, unless another writer has taken over.
        """
        with self._io_lock:
            self._check_usable(for_steps=False)
            self._settle_unsure()
            with self._pending_lock:
                taken = list(self._pending)
            if taken:
                self._unsure = len(taken)
                begin_s, self._flush_s = time.perf_counter(), math.inf
                with self._store.transaction() as connection:
                    self._fence(connection)
                    write(connection, taken)
                    tidy = self._tidied(connection, taken) if self.compacts else self._tidy
                self._tidy = tidy
                self._flush_s = time.perf_counter() - begin_s
                self._written(len(taken))
            return self._durable

    def _tidied(self, connection: Connection, written: list[StepRows]) -> Tidy:
        """Remove some obsolete rows; return the progress, which is valid once the transaction is committed."""
        tidy = self._tidy
        if any(rows.snapshots for rows in written):
            tidy = msgspec.structs.replace(tidy, needed=needed_from(connection, self._base))
        sweep, self._sweep_asked = self._sweep_asked, None
        if sweep is not None and tidy.sweep is None:
            tidy = msgspec.structs.replace(tidy, sweep=sweep)
        return tidy if tidy.is_done else tidy.remove_some(connection, sum(rows.count for rows in written))

    def forget_by_and_by(self, before_ms: int, open_jobs: Set[int]) -> None:
        """Spread the work of `forget` over the next flushes, a few rows each, but keep the records of open jobs.

        A later call has no effect while the work of an earlier call is in progress.
        """
        self._sweep_asked = Sweep(before_ms, open_jobs, self._last_note)

    def flush_at_once(self) -> bool:
        """Flush if that is quick (few rows, SQLite, and a fast last write); return whether the journal was flushed.

        Starting a thread for such a flush would take longer than the write.
        """
        if not self._store.is_sqlite or self._flush_s > QUICK_S or not self._io_lock.acquire(blocking=False):
            return False
        try:
            with self._pending_lock:
                if sum(rows.count for rows in self._pending) > QUICK_ROWS:
                    return False
            self.flush()
            return True
        finally:
            self._io_lock.release()

    def _fence(self, connection: Connection) -> None:
        """Increment the batch number; raise UnavailableError if another process has become the writer."""
        mine = {"mine": self._writer_id, "last": self._batch, "batch": self._batch + 1}
        if execute_plain(connection, _NEXT_BATCH, mine).rowcount != 1:
            self._refused = "another process writes it now; end that process, reopen the journal and replay it"
            self._is_replaced = True
            self._check_usable()

    def _settle_unsure(self) -> None:
        """If the outcome of the last transaction is unknown, find out whether it was committed."""
        if self._unsure is None:
            return
        with self._store.transaction() as connection:
            head = connection.execute(select(tables.head)).one()
        if head.writer_id == self._writer_id and head.batch == self._batch + 1:
            self._written(self._unsure)
        self._unsure = None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Connection]:
        """Flush, then yield a connection in a write transaction."""
        with self._io_lock:
            self.flush()
            self._unsure = 0
            with self._store.transaction() as connection:
                self._fence(connection)
                yield connection
            self._written(0)

    def _written(self, count: int) -> None:
        with self._pending_lock:
            for rows in self._pending[:count]:
                for row in rows.submissions:
                    self._unwritten_keys.pop(row["key"], None)
            del self._pending[:count]
            self._durable = self._made - len(self._pending)
        self._batch += 1
        self._unsure = None

    def _check_usable(self, *, for_steps: bool = True) -> None:
        if self._refused and (for_steps or self._is_replaced):
            raise UnavailableError(f"{self.where}: {self._refused}")

    def snapshot(self, core: HasState) -> Step:
        """Record a core's state, from which the next replay will start; only the newest two snapshots are kept.

        The core must have handled exactly the recorded inputs. The snapshot is a step, so it becomes durable with the
        next flush.
        """
        return self.keep(self.snap(core))

    def snap(self, core: HasState) -> Snap:
        """Return a core's current state, to be compressed, possibly in another thread, and passed to `keep`."""
        return Snap(self._sequence, self._now_ms, kind_of(core), state_bytes(core))

    def keep(self, snap: Snap, state: bytes | None = None) -> Step:
        """Record a state from `snap`; ``state`` is its compressed form if the caller has already compressed it."""
        with self.step() as step:
            kept = compressed(snap.state) if state is None else state
            step.snapshot(snap.kind, kept, sequence=snap.sequence, now_ms=snap.now_ms)
        return step

    def begin_anew(self) -> None:
        """Start over with a new core created from ``identity``.

        Earlier inputs and snapshots will never be replayed. Submissions, channels, histories and usage are kept.
        """
        with self._io_lock:
            with self._changing() as connection:
                connection.execute(update(tables.head).values(base=self._sequence))
                self._keep_identity(connection)
                connection.execute(delete(tables.snapshots))
            self._base = self._sequence
            self._tidy = msgspec.structs.replace(self._tidy, needed=self._base + 1)

    def reader(self) -> JournalReader:
        """Return a reader for durable steps with its own connection; closing this journal closes the reader.

        Reading through the journal itself would block its writer.
        """
        reader = JournalReader(self._store.place)
        self._readers.append(reader)
        return reader

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Flush, then yield a connection in a read transaction."""
        with self._io_lock:
            if self._has_unwritten:
                self.flush()
            with super().reading() as connection:
                yield connection

    def submissions(self, keys: Iterable[str]) -> dict[str, KeptAnswer]:
        """Return the first answers to submissions by idempotency key; keys that were never used are omitted.

        Look up all keys of a batch in one call before recording their submissions.
        """
        unique_keys = list(dict.fromkeys(keys))
        with self._pending_lock:
            rows = {key: self._unwritten_keys[key] for key in unique_keys if key in self._unwritten_keys}
        with super().reading() as connection:
            rest = [key for key in unique_keys if key not in rows]
            answers = self._read_submissions(connection, rest)
        for key, row in rows.items():
            answer = self._answers.decode(row["answer"], self.where)
            answers[key] = KeptAnswer(key, row["job_id"], row["at_ms"], answer)
        if len(self._unused_keys) > _MOST_UNUSED_KEYS:
            self._unused_keys.clear()
        self._unused_keys.update(key for key in rest if key not in answers)
        return {key: answers[key] for key in unique_keys if key in answers}

    def submissions_at_once(self, keys: Iterable[str]) -> dict[str, KeptAnswer] | None:
        """Return `submissions` if that is possible without waiting; None with PostgreSQL or while another thread reads.

        Starting a thread for such a lookup would take longer than the lookup.
        """
        if not self._store.is_sqlite or not self._io_lock.acquire(blocking=False):
            return None
        try:
            return self.submissions(keys)
        finally:
            self._io_lock.release()

    def _is_used(self, key: str) -> bool:
        if key in self._unused_keys:
            return False
        return key in self.submissions([key])

    def compact(self) -> int:
        """Remove the inputs before the older snapshot, which no replay needs; return the number of inputs removed.

        A journal with ``compacts`` does this automatically, a few inputs at a time, once it has two snapshots.
        """
        with self._changing() as connection:
            oldest = connection.scalar(select(func.min(tables.snapshots.c.sequence)))
            limit = self._base if oldest is None else max(oldest, self._base)
            return connection.execute(delete(tables.inputs).where(tables.inputs.c.sequence <= limit)).rowcount

    def forget(self, before_ms: int) -> int:
        """Remove submissions, history events, usage and ended jobs older than ``before_ms``; return the number of rows.

        Removed idempotency keys may be used again. The last history event is kept, because later events continue its
        numbering.
        """
        with self._changing() as connection:
            count = 0
            for table, _, at_ms in AGING:
                old = delete(table).where(at_ms < before_ms)
                if table is tables.notes:
                    old = old.where(tables.notes.c.number < self._last_note)
                count += connection.execute(old).rowcount
            return count

    def close(self) -> None:
        """Flush and close the journal; the journal is closed even if the flush fails."""
        with self._io_lock:
            try:
                if self._has_unwritten:
                    self.flush()
            finally:
                self._pending, self._unsure = [], None
                for reader in self._readers:
                    reader.close()
                self._store.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            # Report the original error, not an error from closing.
            with contextlib.suppress(GridweaveError):
                self.close()
