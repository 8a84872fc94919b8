"""The journal of a site or of a meta-scheduler: what it was told, promised and answered, so that it outlasts a failure.

The rules are in docs/journal.md.
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
"""So many steps are gathered before they are written."""

QUICK_S, QUICK_ROWS = 0.005, 100
"""Writing that takes so long at most, and so many rows at most, is quicker done at once than given to a thread."""

_MOST_ASKED = 100_000
"""So many keys are remembered as not used yet; beyond that they are asked for again."""

_NEXT_BATCH = (
    update(tables.head)
    .where(tables.head.c.writer_id == bindparam("mine"), tables.head.c.batch == bindparam("last"))
    .values(batch=bindparam("batch"))
)


class Snap(msgspec.Struct, frozen=True):
    """The state of a core after an input, as it is before it is compressed."""

    sequence: int
    now_ms: int
    kind: str
    state: bytes


class Journal(JournalReader):
    """What outlasts a failure, in SQLite or PostgreSQL.

    Parameters
    ----------
    place : str or pathlib.Path
        A path of an SQLite file, or a URL: ``sqlite:///PATH``, ``postgresql://USER@HOST/DATABASE``.
    event_type : type
        What the core is told: a union of tagged structs, as ``ContractEvent``.
    message_type : type, optional
        What is sent through channels, as ``Answer`` for a site.
    answer_type : type, optional
        What is answered to submissions.
    identity : msgspec.Struct, optional
        What the core was made from (nodes, policy); inputs are replayed only into the same.
    batch : int
        After so many steps they are written without being asked; 0: only `flush` writes.
    wait_ms : int
        How long to wait for another process that has the database locked; and for a server to answer, from 2 s up.
    synchronous : str
        Of SQLite: with ``full`` what was flushed outlasts a loss of power; with ``normal`` a failure of this process.
    compacts : bool
        Whether each flush removes a few of the inputs that no replay needs, and of what `forget_by_and_by` names.

    Raises
    ------
    OptionError
        If an option makes no sense.
    InputError
        If there is something else at that place, or a journal of a later release.
    UnavailableError
        If the place cannot be reached, or another process writes this journal.

    Notes
    -----
    One thread at a time makes steps; any thread may flush and ask meanwhile, and waits for its turn at the database.
    What is asked for is flushed first, so that an answer holds all that was recorded.

    Examples
    --------
    >>> from gridweave.site.messages import Event, Job, JobSubmitted
    >>> from gridweave.site.core import SiteCore
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
            raise OptionError("batch", f"is {batch}; a number of steps from 0 up, 0 to write only when asked")
        self._set_types(event_type, message_type, answer_type)
        self._identity = identity
        self._limit = batch
        self._writer_id = uuid.uuid4().hex
        self._batch = 0
        # Steps that are not written; how many of them are in a transaction whose end was not heard of.
        self._pending: list[StepRows] = []
        self._unsure: int | None = None
        self._refused, self._is_replaced = "", False
        self._step_lock = threading.Lock()
        self._pending_lock = threading.Lock()
        # Idempotency keys that are known not to be used, and those that are recorded and not written.
        self._asked: set[str] = set()
        self._unwritten_keys: dict[str, dict[str, Any]] = {}
        self._made = self._durable = 0
        self._flush_s = math.inf
        self.compacts = compacts
        self._readers: list[JournalReader] = []
        self._wanted_sweep: Sweep | None = None
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
            # Nothing was decided yet; or an older release had fewer settings, and what is new has its default.
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
        """From what the core is to be made before its inputs are replayed, as plain values; InputError if damaged."""
        return kept_settings(self._kept_identity)

    @property
    def identity_changes(self) -> list[str]:
        """In what the settings of the recorded inputs were others, and may not change; empty: they go with these."""
        return refused_changes(self._kept_identity, self._identity)

    @property
    def pending(self) -> int:
        """Steps that are not durable yet."""
        return len(self._pending)

    @property
    def is_replaced(self) -> bool:
        """Whether another process has become its writer; nothing can be written any more."""
        return self._is_replaced

    @property
    def _has_unwritten(self) -> bool:
        return bool(self._pending) or self._unsure is not None

    @property
    def durable(self) -> int:
        """How many of the steps made since the journal was opened are durable; a `Step` has its ``number``."""
        return self._durable

    @property
    def sequence(self) -> int:
        """Number of the last input that was recorded, durable or not; 0 if there is none."""
        return self._sequence

    @property
    def now_ms(self) -> int:
        """Instant of the last input that was recorded: a core that was replayed must not be told of an earlier one."""
        return self._now_ms

    @property
    def last_note(self) -> int:
        """Number of the last event of a story that was recorded, durable or not; 0 if there is none."""
        return self._last_note

    @property
    def base(self) -> int:
        """After which input the present core began; 0 if it was never begun anew."""
        return self._base

    @contextlib.contextmanager
    def step(self) -> Iterator[Step]:
        """Record what belongs together: all of it will be there after a failure, or nothing.

        The step is to be filled while the ``with`` block lasts; if that raises, nothing of it is recorded. It is
        durable when `flush` has returned, and only then may its commands take effect and its messages be sent.
        InputError if a step is open already; UnavailableError if the journal cannot be written; if only the batch could
        not be written now, the step is kept.
        """
        self._check_usable()
        if not self._step_lock.acquire(blocking=False):
            raise InputError("a step of this journal is open; end it before the next")
        try:
            codecs = self._events, self._messages, self._answers
            known = self._made + 1, self._sequence, self._now_ms, self._counts
            step = Step(*known, *codecs, self._is_used, self._last_note)
            try:
                yield step
            except BaseException:
                if step.has_acted:
                    self._refused = "a step failed after its core had acted; open the journal again and replay it"
                raise
            self._take_in(step)
        finally:
            self._step_lock.release()
        if self._limit and len(self._pending) >= self._limit:
            self.flush()

    def _take_in(self, step: Step) -> None:
        rows = step.rows
        with self._pending_lock:
            self._made += 1
            self._sequence = step.sequence
            self._now_ms = step.now_ms
            self._last_note = step.last_note
            self._counts.update(rows.channels)
            for row in rows.submissions:
                self._asked.discard(row["key"])
                self._unwritten_keys[row["key"]] = row
            self._pending.append(rows)

    def flush(self) -> int:
        """Make durable what was recorded, in one transaction; return how many steps are, as `durable`.

        If that fails nothing of it is lost: the steps are kept, and the next `flush` tries again, unless another writer
        has taken over.
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
        """Remove some of what is no longer needed; return how far that has come if the transaction is committed."""
        tidy = self._tidy
        if any(rows.snapshots for rows in written):
            tidy = msgspec.structs.replace(tidy, needed=needed_from(connection, self._base))
        sweep, self._wanted_sweep = self._wanted_sweep, None
        if sweep is not None and tidy.sweep is None:
            tidy = msgspec.structs.replace(tidy, sweep=sweep)
        return tidy if tidy.is_done else tidy.piece(connection, sum(rows.count for rows in written))

    def forget_by_and_by(self, before_ms: int, open_jobs: Set[int]) -> None:
        """Have the flushes to come remove what `forget` does, a few rows each, but for what belongs to open jobs.

        While that goes on another call does nothing.
        """
        self._wanted_sweep = Sweep(before_ms, open_jobs, self._last_note)

    def flush_at_once(self) -> bool:
        """Flush, if that needs little waiting: few rows for SQLite on a disk that was quick; return whether it did.

        A thread of its own for it costs more than the writing.
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
        """Take the next number of a batch, if nobody else has become the writer since the last."""
        mine = {"mine": self._writer_id, "last": self._batch, "batch": self._batch + 1}
        if execute_plain(connection, _NEXT_BATCH, mine).rowcount != 1:
            self._refused = "another process has become its writer; end that, open the journal again and replay it"
            self._is_replaced = True
            self._check_usable()

    def _settle_unsure(self) -> None:
        """Find out whether the last transaction was committed, if its end was not heard of."""
        if self._unsure is None:
            return
        with self._store.transaction() as connection:
            found = connection.execute(select(tables.head)).one()
        if found.writer_id == self._writer_id and found.batch == self._batch + 1:
            self._written(self._unsure)
        self._unsure = None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Connection]:
        """Yield a connection in a transaction that writes, after all that was recorded."""
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
        """Keep the state of a core, so that a replay begins here; the newest two are kept.

        The core has handled all inputs that were recorded, and nothing else. As any other step, this is durable when it
        has been flushed.
        """
        return self.keep(self.snap(core))

    def snap(self, core: HasState) -> Snap:
        """Return the state of a core as of now, for `keep`; what is left to do then may be done by another thread."""
        return Snap(self._sequence, self._now_ms, kind_of(core), state_bytes(core))

    def keep(self, snap: Snap, state: bytes | None = None) -> Step:
        """Record a state that was taken before, if need be: compressed already, as `compressed` does."""
        with self.step() as step:
            kept = compressed(snap.state) if state is None else state
            step.snapshot(snap.kind, kept, sequence=snap.sequence, now_ms=snap.now_ms)
        return step

    def begin_anew(self) -> None:
        """Have the next replay begin with a fresh core after what was recorded so far, made as ``identity`` says.

        Inputs and snapshots until now are not replayed any more. Submissions, channels, stories and usage stay.
        """
        with self._io_lock:
            with self._changing() as connection:
                connection.execute(update(tables.head).values(base=self._sequence))
                self._keep_identity(connection)
                connection.execute(delete(tables.snapshots))
            self._base = self._sequence
            self._tidy = msgspec.structs.replace(self._tidy, needed=self._base + 1)

    def reader(self) -> JournalReader:
        """Return a reader with a connection of its own, which sees what is durable; it is closed with this journal.

        Whoever reads through the journal itself keeps its writer waiting.
        """
        found = JournalReader(self._store.place)
        self._readers.append(found)
        return found

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection in a transaction that sees all that was recorded."""
        with self._io_lock:
            if self._has_unwritten:
                self.flush()
            with super().reading() as connection:
                yield connection

    def submissions(self, keys: Iterable[str]) -> dict[str, KeptAnswer]:
        """Return what was answered to submissions with these idempotency keys; a key without one is left out.

        Ask for all keys of a batch at once: each is asked for before its first submission is recorded.
        """
        wanted = list(dict.fromkeys(keys))
        with self._pending_lock:
            rows = {key: self._unwritten_keys[key] for key in wanted if key in self._unwritten_keys}
        with super().reading() as connection:
            rest = [key for key in wanted if key not in rows]
            found = self._read_submissions(connection, rest)
        for key, row in rows.items():
            answer = self._answers.decode(row["answer"], self.where)
            found[key] = KeptAnswer(key, row["job_id"], row["at_ms"], answer)
        if len(self._asked) > _MOST_ASKED:
            self._asked.clear()
        self._asked.update(key for key in rest if key not in found)
        return {key: found[key] for key in wanted if key in found}

    def submissions_at_once(self, keys: Iterable[str]) -> dict[str, KeptAnswer] | None:
        """Return the same, if that needs no waiting; None: the database is a server, or another thread reads it now.

        A thread of its own for it costs more than the reading.
        """
        if not self._store.is_sqlite or not self._io_lock.acquire(blocking=False):
            return None
        try:
            return self.submissions(keys)
        finally:
            self._io_lock.release()

    def _is_used(self, key: str) -> bool:
        if key in self._asked:
            return False
        return key in self.submissions([key])

    def compact(self) -> int:
        """Remove the inputs that no replay needs: those before the older of the kept snapshots; return how many.

        A journal that ``compacts`` does so by itself, a few at a time, once there are two snapshots.
        """
        with self._changing() as connection:
            oldest = connection.scalar(select(func.min(tables.snapshots.c.sequence)))
            limit = self._base if oldest is None else max(oldest, self._base)
            return connection.execute(delete(tables.inputs).where(tables.inputs.c.sequence <= limit)).rowcount

    def forget(self, before_ms: int) -> int:
        """Remove submissions, stories, usage and jobs that ended from before an instant; return how many records.

        An idempotency key that is forgotten is new again. The last event of all stories stays: those to come are
        numbered from it.
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
        """Flush, and let go of the journal; it is let go of even if it could not be flushed."""
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
            # The first error is the one to be told of.
            with contextlib.suppress(GridweaveError):
                self.close()
