"""A journal in memory with the steps, codecs and digests of the real one; flushed steps survive their process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import UnavailableError
from gridweave.settings import plain
from gridweave.site.job import JobRecord
from gridweave.site.journal.journal import Snap
from gridweave.site.journal.records import Codec, KeptAnswer, Note, NumberedNote, digest
from gridweave.site.journal.replay import Replayed
from gridweave.site.journal.step import Counts, Step, StepRows
from gridweave.site.state import HasState, kind_of, read_state, state_bytes


class Disk:
    """The durable content of a journal.

    Attributes
    ----------
    on_sent : callable
        Called with the recipient and the message for every message that becomes durable.
    fails : callable
        Called before each flush and read; True lets it fail.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[dict[str, Any]] = []
        self.snapshot: tuple[int, bytes] | None = None
        self.submissions: dict[str, dict[str, Any]] = {}
        self.channels: dict[str, Counts] = {}
        self.outbox: dict[str, dict[int, bytes]] = {}
        self.notes: list[dict[str, Any]] = []
        self.usage: list[dict[str, Any]] = []
        self.ended: dict[int, dict[str, Any]] = {}
        self.settings: Any = None  # the settings at the first start
        self.writer: object = None
        self.flushes = 0
        self.on_sent: Callable[[str, Any], None] = lambda peer, message: None
        self.fails: Callable[[], bool] = lambda: False

    def write(self, rows: StepRows, messages: Codec) -> None:
        """Apply the rows of a step."""
        self.inputs += rows.inputs
        for row in rows.submissions:
            assert row["key"] not in self.submissions, "a key is used twice"
            self.submissions[row["key"]] = row
        for row in rows.outbox:
            self.outbox.setdefault(row["peer"], {})[row["number"]] = row["message"]
            self.on_sent(row["peer"], messages.decode(row["message"], self.name))
        for peer, counts in rows.channels.items():
            self.channels[peer] = counts
            kept = self.outbox.get(peer, {})
            self.outbox[peer] = {number: kept[number] for number in kept if number >= counts.first}
        for row in rows.snapshots:
            self.snapshot = row["sequence"], row["state"]
        self.notes += rows.notes
        self.usage += rows.usage
        self.ended |= {row["job_id"]: row for row in rows.ended}


class _Known:
    """The state of a channel, as `Journal.channel` returns it."""

    def __init__(self, first: int, unacknowledged: tuple[Any, ...], received: int, other: str) -> None:
        self.first, self.unacknowledged, self.received, self.other = first, unacknowledged, received, other


class MemoryJournal:
    """Replaces `gridweave.site.journal.journal.Journal`; stores its rows in a `Disk`."""

    def __init__(
        self,
        place: Disk | Path,
        *,
        event_type: Any,
        message_type: Any,
        answer_type: Any,
        identity: Any,
        **_options: Any,
    ) -> None:
        assert isinstance(place, Disk)
        self.disk = place
        if not place.inputs:
            place.settings = plain(identity)
        self.where = self.journal_id = place.name
        self._events = Codec(event_type, "event")
        self._messages = Codec(message_type, "message")
        self._answers = Codec(answer_type, "answer")
        self._pending: list[StepRows] = []
        self._made = 0
        self.base = 0
        self.sequence = len(place.inputs)
        self.now_ms = place.inputs[-1]["now_ms"] if place.inputs else 0
        self._counts = dict(place.channels)
        self.last_note = place.notes[-1]["number"] if place.notes else 0
        self.is_replaced = False
        self._is_spoilt = False
        place.writer = self

    @property
    def kept_settings(self) -> Any:
        """The settings with which to create the core for a replay."""
        return self.disk.settings

    @property
    def pending(self) -> int:
        """Number of steps that are not durable yet."""
        return len(self._pending)

    @contextlib.contextmanager
    def step(self) -> Iterator[Step]:
        """Collect the rows of one step."""
        assert not self._is_spoilt, "a step had failed after its core had acted"
        self._made += 1
        codecs = self._events, self._messages, self._answers
        step = Step(self._made, self.sequence, self.now_ms, self._counts, *codecs, self._is_used, self.last_note)
        try:
            yield step
        except BaseException:
            self._is_spoilt = step.has_acted
            raise
        self.sequence, self.now_ms, self.last_note = step.sequence, step.now_ms, step.last_note
        self._counts.update(step.rows.channels)
        self._pending.append(step.rows)

    def _is_used(self, key: str) -> bool:
        return key in self.disk.submissions or any(row["key"] == key for r in self._pending for row in r.submissions)

    def flush(self) -> int:
        """Make all collected steps durable; UnavailableError if the disk fails or has another writer."""
        self.is_replaced = self.disk.writer is not self
        if self.is_replaced or self.disk.fails():
            raise UnavailableError(f"{self.where} cannot be written")
        self.disk.flushes += 1
        for rows in self._pending:
            self.disk.write(rows, self._messages)
        self._pending = []
        return self._made

    def flush_at_once(self) -> bool:
        """Flush, but return False every second time, as if the disk were slow; the caller then uses a thread."""
        if self.disk.flushes % 2:
            return False
        self.flush()
        return True

    def submissions_at_once(self, keys: Iterable[str]) -> dict[str, KeptAnswer] | None:
        """Return the answers to submissions, or None if the disk fails, as if another thread were reading."""
        return None if self.disk.fails() else self.submissions(keys)

    def submissions(self, keys: Iterable[str]) -> dict[str, KeptAnswer]:
        """Return the answers to submissions by key, for the keys that are known."""
        if self.disk.fails():
            raise UnavailableError(f"{self.where} cannot be read")
        rows = {row["key"]: row for rows in self._pending for row in rows.submissions} | self.disk.submissions
        return {
            key: KeptAnswer(
                key, rows[key]["job_id"], rows[key]["at_ms"], self._answers.decode(rows[key]["answer"], self.where)
            )
            for key in keys
            if key in rows
        }

    def channel(self, peer: str) -> _Known:
        """Return the durable state of the channel to a peer."""
        counts, kept = self.disk.channels.get(peer, Counts()), self.disk.outbox.get(peer, {})
        assert sorted(kept) == list(range(counts.first, counts.next)), "the outbox has gaps"
        messages = tuple(self._messages.decode(kept[number], self.where) for number in sorted(kept))
        return _Known(counts.first, messages, counts.received, counts.other)

    def snap(self, core: HasState) -> Snap:
        """Return a snapshot of a core."""
        return Snap(self.sequence, self.now_ms, kind_of(core), state_bytes(core))

    def keep(self, snap: Snap, state: bytes) -> None:
        """Store a snapshot in a step of its own."""
        with self.step() as step:
            step.snapshot(snap.kind, state, sequence=snap.sequence, now_ms=snap.now_ms)

    def forget_by_and_by(self, before_ms: int, open_jobs: Set[int]) -> None:
        """Do nothing: no test runs long enough to need it."""

    def story(self, job_id: int) -> list[Note]:
        """Return the history of a job."""
        mine = [row for row in self.disk.notes if row["job_id"] == job_id]
        return [Note(row["job_id"], row["at_ms"], row["kind"], row["detail"]) for row in mine]

    def notes(self, *, after: int, limit: int = 1_000) -> list[NumberedNote]:
        """Return up to `limit` notes whose numbers are greater than `after`."""
        return [NumberedNote(**row) for row in self.disk.notes if row["number"] > after][:limit]

    def ended(self, job_ids: Iterable[int]) -> dict[int, JobRecord]:
        """Return the stored records of ended jobs."""
        if self.disk.fails():
            raise UnavailableError(f"{self.where} cannot be read")
        kept = self.disk.ended
        return {each: msgspec.msgpack.decode(kept[each]["record"], type=JobRecord) for each in job_ids if each in kept}

    def close(self) -> None:
        """Do nothing."""

    def replay(self, core: Any) -> Replayed:
        """Bring a new core to the last durable state; fail if it decides otherwise than recorded."""
        begin = None
        if self.disk.snapshot is not None:
            begin, state = self.disk.snapshot
            core.restore(read_state(core, state))
        for row in self.disk.inputs[begin or 0 :]:
            commands = core.handle(row["now_ms"], *self._events.decode_all(row["events"], self.where))
            assert digest(commands) == row["decided"], f"input {row['sequence']} is decided otherwise"
        return Replayed(begin, len(self.disk.inputs) - (begin or 0), self.now_ms)


def replay(journal: MemoryJournal, core: Any) -> Replayed:
    """Replay a journal; replaces `gridweave.site.journal.replay.replay`."""
    return journal.replay(core)
