"""A journal in memory, with the steps, codecs and digests of the real one: what is flushed outlasts its process."""

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
    """What is durable.

    Attributes
    ----------
    on_sent : callable
        Is told of every message that is durable: to whom it is, and what it is.
    fails : callable
        Says before every flush whether it is to fail.
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
        self.settings: Any = None  # those of the first life
        self.writer: object = None
        self.flushes = 0
        self.on_sent: Callable[[str, Any], None] = lambda peer, message: None
        self.fails: Callable[[], bool] = lambda: False

    def write(self, rows: StepRows, messages: Codec) -> None:
        """Write a step."""
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
    """As `Journal.channel` tells it."""

    def __init__(self, first: int, unacknowledged: tuple[Any, ...], received: int, other: str) -> None:
        self.first, self.unacknowledged, self.received, self.other = first, unacknowledged, received, other


class MemoryJournal:
    """Stands for `gridweave.site.journal.journal.Journal`; its place is a `Disk`."""

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
        """From what a core is to be made before it is replayed."""
        return self.disk.settings

    @property
    def pending(self) -> int:
        """Steps that are not durable."""
        return len(self._pending)

    @contextlib.contextmanager
    def step(self) -> Iterator[Step]:
        """Gather what belongs together."""
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
        """Make durable what was gathered, or fail."""
        self.is_replaced = self.disk.writer is not self
        if self.is_replaced or self.disk.fails():
            raise UnavailableError(f"{self.where} cannot be written")
        self.disk.flushes += 1
        for rows in self._pending:
            self.disk.write(rows, self._messages)
        self._pending = []
        return self._made

    def flush_at_once(self) -> bool:
        """Flush, or leave every other time to a thread, as if the disk had been slow."""
        if self.disk.flushes % 2:
            return False
        self.flush()
        return True

    def submissions_at_once(self, keys: Iterable[str]) -> dict[str, KeptAnswer] | None:
        """Return what was answered, or nothing, as if somebody else read."""
        return None if self.disk.fails() else self.submissions(keys)

    def submissions(self, keys: Iterable[str]) -> dict[str, KeptAnswer]:
        """Return what was answered."""
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
        """Return where a connection stands."""
        counts, kept = self.disk.channels.get(peer, Counts()), self.disk.outbox.get(peer, {})
        assert sorted(kept) == list(range(counts.first, counts.next)), "the outbox has gaps"
        messages = tuple(self._messages.decode(kept[number], self.where) for number in sorted(kept))
        return _Known(counts.first, messages, counts.received, counts.other)

    def snap(self, core: HasState) -> Snap:
        """Return the state of a core."""
        return Snap(self.sequence, self.now_ms, kind_of(core), state_bytes(core))

    def keep(self, snap: Snap, state: bytes) -> None:
        """Keep the state of a core."""
        with self.step() as step:
            step.snapshot(snap.kind, state, sequence=snap.sequence, now_ms=snap.now_ms)

    def forget_by_and_by(self, before_ms: int, open_jobs: Set[int]) -> None:
        """Forget nothing: it does not live so long."""

    def story(self, job_id: int) -> list[Note]:
        """Return what happened to a job."""
        mine = [row for row in self.disk.notes if row["job_id"] == job_id]
        return [Note(row["job_id"], row["at_ms"], row["kind"], row["detail"]) for row in mine]

    def notes(self, *, after: int, limit: int = 1_000) -> list[NumberedNote]:
        """Return what happened to jobs."""
        return [NumberedNote(**row) for row in self.disk.notes if row["number"] > after][:limit]

    def ended(self, job_ids: Iterable[int]) -> dict[int, JobRecord]:
        """Return what is kept of jobs that are over."""
        if self.disk.fails():
            raise UnavailableError(f"{self.where} cannot be read")
        kept = self.disk.ended
        return {each: msgspec.msgpack.decode(kept[each]["record"], type=JobRecord) for each in job_ids if each in kept}

    def close(self) -> None:
        """Let go."""

    def replay(self, core: Any) -> Replayed:
        """Bring a fresh core to where this ends."""
        begin = None
        if self.disk.snapshot is not None:
            begin, state = self.disk.snapshot
            core.restore(read_state(core, state))
        for row in self.disk.inputs[begin or 0 :]:
            commands = core.handle(row["now_ms"], *self._events.decode_all(row["events"], self.where))
            assert digest(commands) == row["decided"], f"input {row['sequence']} is decided otherwise"
        return Replayed(begin, len(self.disk.inputs) - (begin or 0), self.now_ms)


def replay(journal: MemoryJournal, core: Any) -> Replayed:
    """Stands for `gridweave.site.journal.replay.replay`."""
    return journal.replay(core)
