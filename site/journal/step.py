"""One step of a journal: a group of entries that is written as a whole or not at all."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import msgspec
from sqlalchemy import ARRAY, Connection, Insert, Table, bindparam, delete, func, insert, literal, select, update

from gridweave.errors import InputError
from gridweave.site.job import JobRecord
from gridweave.site.journal import tables
from gridweave.site.journal.records import Codec, JobUsage, digest
from gridweave.site.journal.store import execute_plain
from gridweave.site.state import HasState
from gridweave.version import __version__

KEEP_SNAPSHOTS = 2
"""Number of snapshots to keep: the newest, and one more in case the newest is damaged."""

_MOST_TEXT = 10_000
_PAGE = 1_000


class Core(HasState, Protocol):
    """A state machine whose state changes only in `handle`."""

    def handle(self, now_ms: int, *events: Any) -> Sequence[object]:
        """Apply events and return commands."""


class Counts(msgspec.Struct, frozen=True):
    """The message counts of a channel."""

    first: int = 0  # number of the first unacknowledged message
    next: int = 0  # number of the next message to send
    received: int = 0  # number of messages received from the other end
    other: str = ""  # id of the other end's journal; empty until it is known


class StepRows(msgspec.Struct):
    """The rows that a step adds to the tables."""

    inputs: list[dict[str, Any]] = []
    snapshots: list[dict[str, Any]] = []
    submissions: list[dict[str, Any]] = []
    channels: dict[str, Counts] = {}
    outbox: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    usage: list[dict[str, Any]] = []
    ended: list[dict[str, Any]] = []

    @property
    def count(self) -> int:
        """Total number of rows."""
        return sum(len(getattr(self, name)) for name in self.__struct_fields__)


class Step:
    """A group of entries that is written as a whole; created by `Journal.step` and filled in its ``with`` block.

    Steps are numbered from 1 since the opening of the journal. A step is durable once ``journal.durable`` has reached
    its number. ``last_note`` is the number of the newest history event up to and including this step.
    """

    def __init__(
        self,
        number: int,
        sequence: int,
        now_ms: int,
        counts: dict[str, Counts],
        events: Codec,
        messages: Codec,
        answers: Codec,
        is_used: Callable[[str], bool],
        last_note: int,
    ) -> None:
        self.number = number
        self.sequence = sequence
        self.now_ms = now_ms
        self.has_acted = False
        self.last_note = last_note
        self._counts = counts
        self._events, self._messages, self._answers = events, messages, answers
        self._is_used = is_used
        self.rows = StepRows()
        self._keys: set[str] = set()

    def input(self, now_ms: int, events: Iterable[Any]) -> None:
        """Record the events of one call of ``handle`` without the commands; an empty list of events is a wakeup."""
        self._add(now_ms, self._events.encode_all(tuple(events)), None)

    def _add(self, now_ms: int, encoded: bytes, decided: bytes | None) -> None:
        self.now_ms = _whole("now_ms", now_ms)
        self.sequence += 1
        row = {"sequence": self.sequence, "now_ms": self.now_ms, "events": encoded, "decided": decided}
        self.rows.inputs.append(row)

    def handle(self, core: Core, now_ms: int, *events: Any) -> Sequence[Any]:
        """Pass events to a core and record them; return the core's commands.

        Execute the commands only once the step is durable. A digest of the commands is recorded, so that a replay
        detects different decisions. Events that cannot be encoded are refused before they reach the core. If the step's
        block fails after this call, the core is ahead of its journal. The journal then accepts no more steps, and the
        core must be restored from the journal.
        """
        # Pass the decoded events to the core, as in a replay, so that its commands are the same byte for byte.
        encoded, events = self._events.keep_all(events)
        _whole("now_ms", now_ms)
        commands = core.handle(now_ms, *events)
        self.has_acted = True
        self._add(now_ms, encoded, digest(commands))
        return commands

    def sent(self, peer: str, *messages: Any) -> None:
        """Record messages sent through the channel to ``peer``."""
        encoded = [self._messages.encode(message) for message in messages]
        counts = self._counts_of(peer)
        self._count(peer, msgspec.structs.replace(counts, next=counts.next + len(encoded)))
        for number, message in enumerate(encoded, counts.next):
            self.rows.outbox.append({"peer": peer, "number": number, "message": message})

    def received(self, peer: str, count: int = 1) -> None:
        """Record that ``count`` messages from ``peer`` were applied; their events must be recorded in the same step."""
        if _whole("count", count) < 0:
            raise InputError(f"count of messages from {peer} is {count}; expected at least 0")
        counts = self._counts_of(peer)
        self._count(peer, msgspec.structs.replace(counts, received=counts.received + count))

    def acknowledged(self, peer: str, received: int) -> None:
        """Record how many of our messages ``peer`` has received, according to its ``Packet.received``."""
        counts = self._counts_of(peer)
        if _whole("received", received) > counts.next:
            raise InputError(
                f"{peer} has received {received} messages, but this journal has sent {counts.next}; "
                "one of the two ends lost its journal: restore it, or start over at both ends"
            )
        self._count(peer, msgspec.structs.replace(counts, first=max(counts.first, received)))

    def met(self, peer: str, journal_id: str) -> None:
        """Record the id of the journal that ``peer`` uses."""
        self._count(peer, msgspec.structs.replace(self._counts_of(peer), other=plain(journal_id)))

    def _counts_of(self, peer: str) -> Counts:
        return self.rows.channels.get(peer) or self._counts.get(peer) or Counts()

    def _count(self, peer: str, counts: Counts) -> None:
        if not peer or peer != plain(peer):
            raise InputError(f"the peer {peer!r:.100} is empty or contains a NUL character; expected a site's name")
        self.rows.channels[peer] = counts

    def note(self, job_id: int, at_ms: int, kind: str, detail: str = "") -> None:
        """Add an event to a job's history; the detail is truncated to 10,000 characters.

        The event gets the next number, which becomes `last_note`. Numbers increase over all jobs and are never reused.
        """
        row = {"number": self.last_note + 1, "job_id": _whole("job_id", job_id), "at_ms": _whole("at_ms", at_ms)}
        self.rows.notes.append(row | {"kind": plain(kind), "detail": plain(detail)[:_MOST_TEXT]})
        self.last_note += 1

    def ended(self, record: JobRecord) -> None:
        """Record an ended job, replacing any earlier record with the same job id."""
        request, array = record.request, record.request.array
        row: dict[str, Any] = {"job_id": _whole("job_id", record.job_id), "user": plain(request.user)}
        row |= {"name": plain(request.name), "array": "" if array is None else plain(array.name)}
        row |= {"state": record.state, "outcome": record.outcome}
        row |= {"submit_ms": _whole("submit_ms", record.submit_ms), "end_ms": _whole("end_ms", record.end_ms)}
        row |= {"sites": plain(sites_text(site for site, _ in record.places)), "record": _ENCODER.encode(record)}
        self.rows.ended.append(row)

    def submission(self, key: str, job_id: int, at_ms: int, answer: Any) -> None:
        """Record the answer to a submission, so that a repeated submission gets the same answer; keys are unique."""
        if not key or key != plain(key):
            raise InputError(f"the idempotency key {key!r:.100} is empty or contains a NUL character")
        if self._is_used(key) or key in self._keys:
            raise InputError(f"the idempotency key {key!r:.100} was already used; return its first answer")
        row = {"key": key, "job_id": _whole("job_id", job_id), "at_ms": _whole("at_ms", at_ms)}
        self.rows.submissions.append(row | {"answer": self._answers.encode(answer)})
        self._keys.add(key)

    def usage(self, used: JobUsage) -> None:
        """Record a job's resource use."""
        row: dict[str, Any] = {}
        for name, value in msgspec.structs.asdict(used).items():
            if value is None:
                row[name] = None
            elif name in ("user", "job_class"):
                row[name] = plain(str(value))
            else:
                row[name] = _number(name, value) if name == "cpu" else _whole(name, value)
        self.rows.usage.append(row)

    def snapshot(self, kind: str, state: bytes, *, sequence: int, now_ms: int) -> None:
        """Record the state of the core after input ``sequence``, as returned by `Journal.snap`."""
        row = {"sequence": sequence, "now_ms": now_ms, "kind": kind, "release": __version__, "state": state}
        self.rows.snapshots.append(row | {"digest": state_digest(state)})


_ENCODER = msgspec.msgpack.Encoder()


def sites_text(sites: Iterable[str]) -> str:
    """Join the names of a job's sites into one text that can be searched for a site."""
    return "".join(f"\n{site}\n" for site in sites)


def state_digest(state: bytes) -> bytes:
    """Return the digest that detects a damaged snapshot."""
    return hashlib.blake2b(state, digest_size=16).digest()


def _whole(name: str, value: Any) -> int:
    """Return a 64-bit integer or raise InputError, because a step that cannot be written would block later steps."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r:.100}; expected a whole number") from None
    if not -(2**63) <= number < 2**63:
        raise InputError(f"{name} is {number}; expected a number of at most 64 bits")
    return number


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} is {value!r:.100}; expected a number") from None


def plain(text: str) -> str:
    """Remove NUL characters and replace lone surrogates, neither of which PostgreSQL can store."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


# Built once: a turn writes only a few rows, and building a statement takes longer than writing them.
_NEW_CHANNEL = insert(tables.channels)
_CHANNEL_MOVED = (
    update(tables.channels)
    .where(tables.channels.c.peer == bindparam("of_peer"))
    .values({name: bindparam(name) for name in Counts.__struct_fields__})
)
_ACKNOWLEDGED = delete(tables.outbox).where(
    tables.outbox.c.peer == bindparam("of_peer"), tables.outbox.c.number < bindparam("first")
)
_ENDED_ONCE = delete(tables.ended).where(tables.ended.c.job_id == bindparam("again"))
_ENDED_BEFORE = delete(tables.ended).where(tables.ended.c.job_id.in_(bindparam("again", expanding=True)))


def write(connection: Connection, steps: Sequence[StepRows]) -> None:
    """Write steps to the tables, in order."""
    channels: dict[str, Counts] = {}
    for step in steps:
        channels.update(step.channels)
    ended = {row["job_id"]: row for step in steps for row in step.ended}
    _forget(connection, list(ended))
    for table, rows in (
        (tables.inputs, [row for step in steps for row in step.inputs]),
        (tables.submissions, [row for step in steps for row in step.submissions]),
        (tables.notes, [row for step in steps for row in step.notes]),
        (tables.usage, [row for step in steps for row in step.usage]),
        (tables.ended, list(ended.values())),
        (tables.outbox, [row for step in steps for row in step.outbox if row["number"] >= channels[row["peer"]].first]),
    ):
        if rows:
            _insert(connection, table, rows)
    _move_channels(connection, channels)
    _keep_snapshots(connection, [row for step in steps for row in step.snapshots])


def _move_channels(connection: Connection, channels: Mapping[str, Counts]) -> None:
    """Write the channels' counts, and remove acknowledged messages."""
    for peer, counts in sorted(channels.items()):
        row = {"of_peer": peer, **msgspec.structs.asdict(counts)}
        if not execute_plain(connection, _CHANNEL_MOVED, row).rowcount:
            connection.execute(_NEW_CHANNEL, {"peer": peer, **msgspec.structs.asdict(counts)})
        execute_plain(connection, _ACKNOWLEDGED, row)


def _keep_snapshots(connection: Connection, snapshots: Sequence[Mapping[str, Any]]) -> None:
    """Write snapshots, and delete all but the newest `KEEP_SNAPSHOTS`."""
    for row in snapshots:
        connection.execute(delete(tables.snapshots).where(tables.snapshots.c.sequence == row["sequence"]))
        connection.execute(insert(tables.snapshots), row)
    if snapshots:
        newest = select(tables.snapshots.c.sequence).order_by(tables.snapshots.c.sequence.desc()).limit(KEEP_SNAPSHOTS)
        kept = list(connection.scalars(newest))
        connection.execute(delete(tables.snapshots).where(tables.snapshots.c.sequence.not_in(kept)))


@cache
def _new_rows(table: Table, names: tuple[str, ...]) -> Insert:
    return insert(table).values({name: bindparam(name) for name in names})


def _forget(connection: Connection, job_ids: list[int]) -> None:
    """Remove older records with these job ids, because a core that has started over reuses job ids."""
    if len(job_ids) == 1:
        execute_plain(connection, _ENDED_ONCE, {"again": job_ids[0]})
        return
    for start in range(0, len(job_ids), _PAGE):
        connection.execute(_ENDED_BEFORE, {"again": job_ids[start : start + _PAGE]})


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if connection.dialect.name != "postgresql":
        execute_plain(connection, _new_rows(table, tuple(rows[0])), rows)
        return
    # Send each column as one array: row by row, the server would take several times as long.
    names = list(rows[0])
    columns = [func.unnest(literal([row[name] for row in rows], ARRAY(table.c[name].type))) for name in names]
    connection.execute(insert(table).from_select(names, select(*columns), include_defaults=False))
