"""Drive a core with a journal. Each turn receives input, decides, writes to the journal, and only then acts.

Only one turn runs at a time. Input that arrives while the journal is being written waits for the next turn, so a busy
driver handles more input per transaction. No decision becomes visible before it is durable (docs/live.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice, zip_longest
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from gridweave.errors import GridweaveError, InputError, UnavailableError
from gridweave.settings import Changeable, SettingsChanged, plain, settings_as, settings_changes
from gridweave.site.channel import Channel, Packet
from gridweave.site.eligibility import Past, past_of
from gridweave.site.job import (
    Accepted,
    ActionKind,
    Declined,
    JobRecord,
    JobRequest,
    Noted,
    RecordEnded,
    RecordUsage,
    SignalName,
)
from gridweave.site.journal.journal import Journal, Snap
from gridweave.site.journal.records import JobUsage, NumberedNote
from gridweave.site.journal.replay import Replayed, replay
from gridweave.site.journal.step import Core, Step
from gridweave.site.messages import JobAction, UserSubmitted
from gridweave.site.quotas import NO_QUOTAS, Quotas, QuotasChanged
from gridweave.site.service.clock import HISTORY_DAYS, Clock
from gridweave.site.state import compressed
from gridweave.site.users.registry import JobRegistry

logger = logging.getLogger("gridweave.live")

Incoming = TypeVar("Incoming")
"""Type of the messages that peers send."""

Answer = Accepted | Declined

T = TypeVar("T")


class HasChangeable(Protocol):
    """Settings of which some can change while a journal is in use."""

    @property
    def changeable(self) -> Changeable:
        """The settings that can change."""


S = TypeVar("S", bound=HasChangeable)


class _Submission:
    """A submitted job, and the futures on which its submitters are waiting."""

    def __init__(self, request: JobRequest, origin: str) -> None:
        self.request, self.origin = request, origin
        self.waiting: list[asyncio.Future[Answer]] = []


_Submissions = dict[str, _Submission]

OnNotes = Callable[[list[NumberedNote], dict[int, JobRecord]], None]
"""Called after a turn with the new history notes, and the records of the jobs that ended in that turn, by job id."""

Send = Callable[[str, bytes], Awaitable[str | None]]
"""Sends a packet to a peer; returns why it was refused, or None. Can fail, and can lose or duplicate packets."""

RESEND_MS = 1_000
SNAPSHOT_EVERY = 1_000
"""Minimum number of inputs between two snapshots, or the number of open jobs if that is larger."""

_DAY_MS = 86_400_000

MOST_PACKET_BYTES = 1 << 20
"""Maximum size of a packet with several messages; a packet with one message may be larger."""

MOST_KEY = 1_000
"""Maximum length of an idempotency key, in characters."""

_MOST_BYTES = 2**63 - 1
MOST_IN_SNAPSHOT = 100_000
"""Maximum number of open jobs for a snapshot; with more jobs, leases would expire while it is being taken."""

REST, LEAST_REST_S, LONGEST_REST_S = 2.0, 0.02, 0.1
"""Pause after a turn: `REST` times (its duration - `LEAST_REST_S`), clamped to the two bounds [s]."""

_MOST_EVENTS = 2_000
MOST_SUBMISSIONS = 1_000
"""Maximum number of submissions per turn, divided about equally among users; further submissions wait."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_STUCK_PAUSE_S = 0.8
"""Queries report a journal failure once the retry pause has grown to this, i.e. after 0.75 s of failures [s]."""


class _Peers:
    """The state of the connections to the peers."""

    def __init__(self) -> None:
        # Reasons why no messages are exchanged with a peer: this end has an old copy of its journal (lost), one of the
        # two ends has a different journal than before (strangers), or the peer refuses the messages (refusals).
        self.lost, self.strangers, self.refusals = dict[str, str](), dict[str, str](), dict[str, str]()
        self.linked = set[str]()  # peers that have sent a valid packet
        self.met: dict[str, str] = {}  # journal ids of peers that are not recorded yet


_RIGHT = "restore the newest copy, or start over at both ends (`gridweave up --fresh`; `serve --fresh` at each)"


class LiveCore(Core, Protocol):
    """The interface of a core that `Driver` can drive."""

    registry: JobRegistry

    def next_wakeup_ms(self) -> int | None:
        """Return when `handle` must be called even without an event, or None."""

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent."""


class Driver(ABC, Generic[Incoming]):
    """Drives a core: passes it events and packets, journals its decisions, and executes its commands.

    The core must be new; the driver restores it by replaying the journal. The journal must have ``batch=0``, because
    the driver decides when to write. ``peers`` names the other ends of the channels, and ``send`` sends a packet to a
    peer. ``quotas`` replaces the quotas in the journal, and ``history_days`` says how long job histories are kept.
    """

    def __init__(
        self,
        core: LiveCore,
        journal: Journal,
        clock: Clock,
        *,
        peers: Sequence[str],
        incoming: Any,
        send: Send,
        quotas: Quotas = NO_QUOTAS,
        history_days: int = HISTORY_DAYS,
    ) -> None:
        self.replayed = _replayed(journal, core)
        self._core, self._journal, self._send = core, journal, send
        self._history_ms = history_days * _DAY_MS
        self.clock = clock
        self._decoder: msgspec.msgpack.Decoder[Packet[Incoming]] = msgspec.msgpack.Decoder(Packet[incoming])
        self._channels = {peer: _restored(journal, peer) for peer in peers}
        self._now_ms = self.replayed.now_ms
        self._events: list[Any] = []
        self._packets: list[tuple[str, Packet[Incoming]]] = []
        self._submissions: _Submissions = {}
        self._durable: list[asyncio.Future[None]] = []
        self._news = asyncio.Event()
        self._asked = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        # Counted from the start of the replay, so that a driver that restarts often also takes snapshots.
        self._snapshot_at = (self.replayed.snapshot or journal.base) + SNAPSHOT_EVERY
        self._received: dict[str, int] = {}
        # Cleared while a turn is being written; set again if the write keeps failing, with the reason in `_stuck`.
        self._settled, self._stuck = asyncio.Event(), ""
        self._settled.set()
        self._peers = _Peers()
        self._failed: UnavailableError | None = None
        self._notes: list[NumberedNote] = []
        self.on_notes: OnNotes = lambda notes, ended: None
        # Quotas are not part of the journal's settings, because they change while jobs wait.
        self._events += [QuotasChanged(quotas)] * (core.registry.eligibility.admission.quotas != quotas)

    def use_settings(self, before: msgspec.Struct, now: msgspec.Struct) -> None:
        """If settings have changed from `before` to `now`, apply the new ones to the core in the first turn."""
        changes = list(settings_changes(plain(before), now))
        if changes:
            logger.info("settings change: %s", "; ".join(change.text for change in changes))
            self._events.append(SettingsChanged(plain(now)))

    # -- input --------------------------------------------------------------------------------------------------------

    def post(self, *events: Any) -> None:
        """Pass events to the core in the next turn."""
        self._events += events
        self._news.set()

    async def apply(self, *events: Any) -> None:
        """Pass events to the core; return once they are durable. Even if this raises, the events may be durable."""
        self._check_alive()
        self.post(*events)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._durable.append(future)
        await future

    async def durable(self) -> None:
        """Wait until the core's whole state is durable, so that it can be shown to users.

        Raise UnavailableError if the journal cannot be written.
        """
        while not self._settled.is_set():
            await self._settled.wait()
        if self._stuck:
            raise UnavailableError(self._stuck)

    @property
    @abstractmethod
    def name(self) -> str:
        """How error messages name this end, e.g. ``site north``."""

    @property
    def problem(self) -> str:
        """Why the driver is accepting no jobs; empty if it is accepting them."""
        return str(self._failed or "") or self._stuck

    def peer_problem(self, peer: str) -> str:
        """Return why no messages are exchanged with a peer; empty if there is no problem."""
        return (
            self._peers.lost.get(peer, "") or self._peers.strangers.get(peer, "") or self._peers.refusals.get(peer, "")
        )

    def _check_alive(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def submit(self, requests: Sequence[tuple[str, JobRequest]], *, origin: str = "") -> list[Answer]:
        """Submit jobs, each with an idempotency key; return their answers, in order, once they are durable.

        A repeated key gets its original answer again. Invalid keys and requests that cannot be stored are declined. If
        the driver fails, the outcome is unknown: submit the jobs again with the same keys. Job histories show the
        ``origin``, i.e. the user and the request id. Raise UnavailableError if there is a `problem`.
        """
        self._check_alive()
        if self.problem:
            raise UnavailableError(self.problem)
        waiting: list[asyncio.Future[Answer]] = []
        for key, request in requests:
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            waiting.append(future)
            problem = _key_problem(key)
            if problem is None:
                self._submissions.setdefault(key, _Submission(request, origin)).waiting.append(future)
            else:
                future.set_result(Declined(key, problem))
        self._news.set()
        self._asked.set()
        return list(await asyncio.gather(*waiting))

    async def apply_action(
        self, kind: ActionKind, job_ids: Sequence[int], *, origin: str = "", signal: SignalName | None = None
    ) -> None:
        """Apply a user's action to jobs; return once the action is durable."""
        await self.apply(JobAction(kind, tuple(job_ids), origin, signal))

    def packet(self, peer: str, data: bytes) -> str | None:
        """Receive a packet from a peer; return why it was dropped, or None. A dropped packet counts as lost."""
        if peer not in self._channels:
            expected = ", ".join(sorted(self._channels))
            raise UnavailableError(f"no connection to {peer!r:.100}; expected one of {expected}")
        try:
            packet = self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            return self._dropped(peer, f"cannot be read: {error}")
        if packet.first < 0 or packet.received < 0:
            return self._dropped(peer, "has numbers below 0")
        if stranger := self._channels[peer].is_stranger(packet):
            return self._strange(peer, self._other_journal(peer, stranger))
        self._strange(peer, "")
        if packet.received > self._channels[peer].sent:
            self._peers.lost[peer] = self._dropped(peer, self._old_copy(peer, packet.received))
        if peer in self._peers.lost:
            return self._peers.lost[peer]
        self._peers.linked.add(peer)
        self._packets.append((peer, packet))
        self._news.set()
        return None

    def _strange(self, peer: str, problem: str) -> str:
        """Record or clear the problem that one end's journal has been replaced; return the problem, or ''."""
        previous = self._peers.strangers.pop(peer, "")
        if problem:
            message = f"the packet {problem}"
            self._peers.strangers[peer] = previous if previous == message else self._dropped(peer, problem)
        if self._peers.strangers.get(peer, "") != previous:
            self._news.set()
        return self._peers.strangers.get(peer, "")

    def peer_name(self, peer: str) -> str:
        """Return how error messages name a peer."""
        return f"the {peer}"

    def _other_journal(self, peer: str, whose: str) -> str:
        """Return an error message that says which end's journal has been replaced, and how to repair that."""
        if whose == "mine":
            return f"is for another journal of {self.name}: {self.name} lost its journal, or was started over; {_RIGHT}"
        return (
            f"is of another journal than before: {self.peer_name(peer)} lost its journal, or was started over; {_RIGHT}"
        )

    def _old_copy(self, peer: str, received: int) -> str:
        """Return an error message for a peer that acknowledges more messages than this journal has."""
        cause = f"{self.name} has sent {self._channels[peer].sent:,}: it lost its journal, or has an old copy of it"
        return f"acknowledges {received:,} messages, but {cause}; {_RIGHT}"

    @staticmethod
    def _dropped(peer: str, problem: str) -> str:
        """Log why a packet was dropped; return the reason."""
        logger.warning("a packet from %s %s", peer, problem)
        return f"the packet {problem}"

    # -- hooks of subclasses ------------------------------------------------------------------------------------------

    @abstractmethod
    def heard(self, peer: str, message: Incoming) -> Any:
        """Convert a peer's message to an event for the core."""

    @abstractmethod
    def outgoing(self, command: Any) -> tuple[str, Any] | None:
        """Return the peer and the message that a command sends; None if the command sends no message."""

    def news_of_links(self) -> list[Any]:
        """Return events that inform the core of changed connections to peers."""
        return []

    def act(self, commands: Sequence[Any]) -> None:
        """Execute the turn's other commands, e.g. orders to machines; all commands are durable by now."""

    # -- turns --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take turns until a turn fails, e.g. because another process has taken over the journal."""
        loop = asyncio.get_running_loop()
        while True:
            begin_s = loop.time()
            await self.turn()
            end_s = loop.time()
            await self._wait()
            await self._rest(end_s + max(LEAST_REST_S, REST * (end_s - begin_s - LEAST_REST_S)))

    async def turn(self) -> None:
        """Take one turn: receive input, let the core decide, write the journal, and act.

        If the turn fails, all waiting callers get the error, and the driver accepts no more input.
        """
        self._check_alive()
        self._news.clear()
        self._asked.clear()
        submissions = self._next_submissions()
        waiters, self._durable = self._durable, []
        try:
            await self._take_turn(submissions, waiters)
        except BaseException as error:
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self._failed = UnavailableError(f"{self._journal.where}: its driver has stopped ({why}); restart it")
            waiting: list[asyncio.Future[Any]] = [*waiters, *self._durable]
            for submission in [*submissions.values(), *self._submissions.values()]:
                waiting += submission.waiting
            for future in waiting:
                if not future.done():
                    future.set_exception(self._failed)
            raise

    def _next_submissions(self) -> _Submissions:
        """Return a turn's submissions, round-robin by user, so that a user with many jobs does not delay others."""
        waiting, self._submissions = self._submissions, {}
        if len(waiting) <= MOST_SUBMISSIONS:
            return waiting
        by_user: dict[str, list[str]] = {}
        for key, submission in waiting.items():
            by_user.setdefault(submission.request.user, []).append(key)
        rounds = zip_longest(*by_user.values())
        taken = set(islice((key for keys in rounds for key in keys if key is not None), MOST_SUBMISSIONS))
        self._submissions = {key: submission for key, submission in waiting.items() if key not in taken}
        self._news.set()
        self._asked.set()
        return {key: submission for key, submission in waiting.items() if key in taken}

    async def _take_turn(self, submissions: _Submissions, waiters: list[asyncio.Future[None]]) -> None:
        answered = await self._answered(submissions)
        past = await self._past([submission.request for key, submission in submissions.items() if key not in answered])
        packets, self._packets = self._packets, []
        events, self._events = [*self.news_of_links(), *self._events], []
        for key, submission in submissions.items():
            if key not in answered:
                mine = {after.job_id for after in submission.request.after}
                past_jobs = tuple(past[job_id] for job_id in sorted(mine) if job_id in past)
                events.append(UserSubmitted(key, submission.request, submission.origin, past_jobs))
        self._settled.clear()
        commands = self._decide(events, packets)
        await self._flush()
        self._settled.set()
        if self._notes:
            notes, self._notes = self._notes, []
            self.on_notes(
                notes,
                {
                    submission.record.job_id: submission.record
                    for submission in commands
                    if type(submission) is RecordEnded
                },
            )
        answers: dict[str, Answer] = {key: past_jobs.answer for key, past_jobs in answered.items()}
        answers |= {command.key: command for command in commands if isinstance(command, (Accepted, Declined))}
        _resolve(submissions, answers)
        for done in waiters:
            if not done.done():
                done.set_result(None)
        self.act(commands)
        self._send_packets()
        self._keep_state()

    async def _answered(self, submissions: _Submissions) -> dict[str, Any]:
        if not submissions:
            return {}
        with contextlib.suppress(UnavailableError):
            stored = self._journal.submissions_at_once(submissions)
            if stored is not None:
                return stored
        return await self._read(lambda: self._journal.submissions(submissions))

    async def _past(self, requests: Sequence[JobRequest]) -> dict[int, Past]:
        """Return the ended jobs on which new submissions depend, by job id, from the journal."""
        next_id = self._core.registry.next_id
        job_ids = {after.job_id for request in requests for after in request.after if after.job_id < next_id}
        if not job_ids:
            return {}
        ended = await self._read(lambda: self._journal.ended(sorted(job_ids)))
        return {job_id: past_of(record) for job_id, record in ended.items()}

    async def _read(self, read: Callable[[], T]) -> T:
        return await self._insist("read", lambda: asyncio.to_thread(read))

    async def _insist(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run a journal operation; retry until it succeeds or another process has taken over the journal."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                done = await work()
            except UnavailableError as error:
                if self._journal.is_replaced:
                    raise
                logger.error("the journal cannot be %s, trying again: %s", what, error)
                if pause_s >= _STUCK_PAUSE_S:
                    self._stuck = f"{self.name} is stuck: its journal cannot be {what}: {error}"
                    self._settled.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                self._stuck = ""
                return done

    def _decide(self, events: list[Any], packets: list[tuple[str, Packet[Incoming]]]) -> list[Any]:
        """Let the core handle the input in one journal step, if there is input or a wakeup is due."""
        commands: list[Any] = []
        self._now_ms = max(self._now_ms, self.clock.now_ms())
        wakeup_ms = self._core.next_wakeup_ms()
        is_due = wakeup_ms is not None and wakeup_ms <= self._now_ms
        heard, counts = self._unpacked(packets)
        # The order of messages in a channel is kept; a user's action takes effect when it arrives.
        everything = heard + events
        if not everything and not is_due and not self._peers.met:
            return commands
        with self._journal.step() as step:
            for peer, received in self._received.items():
                step.acknowledged(peer, received)
            for peer, count in counts.items():
                step.received(peer, count)
            for peer, journal_id in self._peers.met.items():
                step.met(peer, journal_id)
            for start in range(0, max(1, len(everything)), _MOST_EVENTS):
                commands += self._handle(step, everything[start : start + _MOST_EVENTS])
            self._record(step, commands)
        self._received, self._peers.met = {}, {}
        return commands

    def _unpacked(self, packets: list[tuple[str, Packet[Incoming]]]) -> tuple[list[Any], dict[str, int]]:
        """Return the events for new messages in the packets, in order, and the number of new messages per peer."""
        real_ms = self._real_ms()
        heard: list[Any] = []
        counts: dict[str, int] = {}
        for peer, packet in packets:
            is_met = bool(self._channels[peer].other)
            new = self._channels[peer].receive(real_ms, packet)
            if packet.journal and not is_met:
                self._peers.met[peer] = packet.journal
            # Acknowledgements alone cause no write; they are written with the next input.
            self._received[peer] = max(packet.received, self._received.get(peer, 0))
            counts[peer] = counts.get(peer, 0) + len(new)
            heard += [self.heard(peer, message) for message in new]
        return heard, counts

    def _handle(self, step: Step, events: list[Any]) -> list[Any]:
        """Pass events to the core; if one is invalid, pass them one by one and refuse the invalid events."""
        has_acted, step.has_acted = step.has_acted, False
        try:
            return [*step.handle(self._core, self._now_ms, *events)]
        except InputError as error:
            if step.has_acted or not events:
                raise
            if len(events) == 1:
                return self._refused(events[0], error)
        finally:
            step.has_acted |= has_acted
        return [command for event in events for command in self._handle(step, [event])]

    def _refused(self, event: Any, error: InputError) -> list[Any]:
        """Return the answer to an invalid event, so that its sender does not keep retrying."""
        logger.error("input refused: %s", error)
        key = getattr(event, "key", None)
        return [Declined(key, str(error))] if isinstance(key, str) else []

    def _record(self, step: Step, commands: Sequence[Any]) -> None:
        messages: dict[str, list[Any]] = {}
        for command in commands:
            if isinstance(command, Noted):
                at_ms = self._now_ms if command.at_ms is None else command.at_ms
                note = command.job_id, at_ms, command.kind, command.detail
                step.note(*note)
                self._notes.append(NumberedNote(step.last_note, *note))
            elif isinstance(command, (Accepted, Declined)):
                job_id = command.job_id if isinstance(command, Accepted) else -1
                step.submission(command.key, job_id, self._now_ms, command)
            elif isinstance(command, RecordUsage):
                step.usage(_usage(command, self._now_ms))
            elif isinstance(command, RecordEnded):
                step.ended(command.record)
            elif (to := self.outgoing(command)) is not None:
                messages.setdefault(to[0], []).append(to[1])
        for peer, sent in messages.items():
            step.sent(peer, *sent)
            for message in sent:
                self._channels[peer].send(message)

    async def _flush(self) -> None:
        """Write the pending decisions, with retries; decisions must not become visible before they are durable."""
        while self._journal.pending:
            await self._insist("written", self._write)

    async def _write(self) -> None:
        if not self._journal.flush_at_once():
            await asyncio.to_thread(self._journal.flush)

    def _send_packets(self) -> None:
        real_ms = self._real_ms()
        for peer, channel in self._channels.items():
            if peer in self._peers.lost:
                continue
            packet = channel.packet(real_ms)
            if packet is not None:
                self.spawn(self._carry(peer, _encoded(channel, packet)))

    async def _carry(self, peer: str, data: bytes) -> None:
        """Send a packet; if the peer refuses it, record the reason."""
        refusal = await self._send(peer, data)
        before, self._peers.refusals[peer] = self._peers.refusals.get(peer, ""), refusal or ""
        if self._peers.refusals[peer] != before:
            self._news.set()
            if refusal:
                logger.error("%s refuses messages: %s", peer, refusal)

    def spawn(self, work: Awaitable[object]) -> None:
        """Run a send operation in the background; a failure is harmless."""
        task = asyncio.ensure_future(_harmless(work))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def _keep_state(self) -> None:
        if self._journal.sequence >= self._snapshot_at and self._core.registry.n_open <= MOST_IN_SNAPSHOT:
            self._snapshot_at = self._journal.sequence + max(SNAPSHOT_EVERY, self._core.registry.n_open)
            open_jobs = frozenset(self._core.registry.open_jobs())
            self._journal.forget_by_and_by(self._now_ms - self._history_ms, open_jobs)
            try:
                snap = self._journal.snap(self._core)
            except InputError as error:
                logger.error("no snapshot was taken: %s", error)
            else:
                self.spawn(self._keep(snap))

    async def _keep(self, snap: Snap) -> None:
        """Compress and store a snapshot. Turns continue meanwhile, because compressing many jobs takes a while."""
        state = await asyncio.to_thread(compressed, snap.state)
        self._journal.keep(snap, state)

    async def _wait(self) -> None:
        if self._news.is_set():
            # Let the other tasks of this loop run.
            await asyncio.sleep(0)
            return
        waits_ms: list[float] = []
        wakeup_ms = self._core.next_wakeup_ms()
        if wakeup_ms is not None:
            waits_ms.append(self.clock.real_ms(max(0, wakeup_ms - self.clock.now_ms())))
        heard = [channel for peer, channel in self._channels.items() if peer not in self._peers.lost]
        channel_ms = [channel.next_wakeup_ms() for channel in heard]
        waits_ms += [max(0, due_ms - self._real_ms()) for due_ms in channel_ms if due_ms is not None]
        try:
            # Wake up every minute to notice clock changes. Do not use wait_for: in Python 3.11 it can swallow a
            # cancellation, and this loop would never end.
            async with asyncio.timeout(min([*waits_ms, 60_000]) / 1000):
                await self._news.wait()
        except TimeoutError:
            return

    async def _rest(self, until_s: float) -> None:
        """Wait for more input after a turn, because one large turn is cheaper than several small ones.

        A submission ends the pause, because its user is waiting for the answer, often before submitting more jobs.
        """
        rest_s = min(until_s - asyncio.get_running_loop().time(), LONGEST_REST_S)
        wakeup_ms = self._core.next_wakeup_ms()
        if wakeup_ms is not None:
            rest_s = min(rest_s, self.clock.real_ms(wakeup_ms - self.clock.now_ms()) / 1000)
        if rest_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._asked.wait()

    @staticmethod
    def _real_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def close(self) -> None:
        """Stop sending, and close the journal."""
        for task in self._sending:
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending)
        self._journal.close()


def as_begun(settings: S, journal: Journal, unsaid: Mapping[str, Any] = MappingProxyType({})) -> S:
    """Return the current settings, with the changeable settings as recorded at the start of the journal.

    `unsaid` supplies settings that older releases did not record. If settings do not match, the replay reports why.
    """
    with contextlib.suppress(InputError, msgspec.ValidationError):
        return settings_as(settings, {**unsaid, **journal.kept_settings}, settings.changeable)
    return settings


def _resolve(submissions: _Submissions, answers: Mapping[str, Answer]) -> None:
    """Resolve the submitters' futures with their answers."""
    for key, submission in submissions.items():
        for future in submission.waiting:
            if not future.done():
                future.set_result(answers[key])


def _restored(journal: Journal, peer: str) -> Channel:
    """Restore the channel to a peer from the journal."""
    state = journal.channel(peer)
    return Channel.restored(
        RESEND_MS,
        first=state.first,
        unacknowledged=state.unacknowledged,
        received=state.received,
        journal=journal.journal_id,
        other=state.other,
    )


def _replayed(journal: Journal, core: LiveCore) -> Replayed:
    try:
        return replay(journal, core)
    except BaseException:
        # Release the journal, so that a retry can open it.
        with contextlib.suppress(GridweaveError):
            journal.close()
        raise


def _encoded(channel: Channel, packet: Packet[Any]) -> bytes:
    """Encode a packet; leave out its last messages if it would exceed `MOST_PACKET_BYTES`."""
    data = msgspec.msgpack.encode(packet)
    while len(data) > MOST_PACKET_BYTES and len(packet.messages) > 1:
        fitting = len(packet.messages) * MOST_PACKET_BYTES // (2 * len(data))
        packet = channel.shortened(packet, max(1, fitting))
        data = msgspec.msgpack.encode(packet)
    return data


async def _harmless(work: Awaitable[object]) -> None:
    """Await a send operation; log any failure, which only means a lost message."""
    try:
        await work
    except GridweaveError as error:
        logger.debug("not sent: %s", error)
    except Exception as error:
        # Any other transport error, e.g. a broken connection, also means a lost message.
        logger.debug("not sent: %s: %s", type(error).__name__, error)


def _key_problem(key: str) -> str | None:
    try:
        if key and len(key) <= MOST_KEY and "\0" not in key and key.encode():
            return None
    except (TypeError, AttributeError, UnicodeEncodeError):
        pass
    return f"the idempotency key is {key!r:.100}; expected 1 to {MOST_KEY} characters without NUL"


def _usage(command: RecordUsage, now_ms: int) -> JobUsage:
    """Convert a job's resource use to a journal record; impossible values are clamped or dropped."""
    request, used = command.request, command.used
    cpu_ms = max(1, command.run_ms) * command.width
    return JobUsage(
        job_id=command.job_id,
        user=request.user,
        job_class=request.job_class,
        at_ms=now_ms,
        width=command.width,
        estimate_ms=request.limit_ms,
        run_ms=command.run_ms,
        cpu=used.cpu_s * 1000 / cpu_ms if math.isfinite(used.cpu_s) else None,
        memory_bytes=min(used.peak_memory_bytes // command.width, _MOST_BYTES),
        read_bytes=min(used.read_bytes, _MOST_BYTES),
        write_bytes=min(used.written_bytes, _MOST_BYTES),
    )
