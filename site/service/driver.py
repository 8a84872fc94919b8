"""What drives a core with a journal: it takes turns of hearing, deciding, writing down, and only then acting.

There is one turn at a time. What comes in while one is written down waits for the next, so the busier it is, the more
goes into one transaction. Nothing that a turn has decided is seen by anybody before it is durable (docs/live.md).
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
    Declined,
    JobRecord,
    JobRequest,
    Noted,
    RecordEnded,
    RecordUsage,
    SignalName,
    WishKind,
)
from gridweave.site.journal.journal import Journal, Snap
from gridweave.site.journal.records import JobUsage, NumberedNote
from gridweave.site.journal.replay import Replayed, replay
from gridweave.site.journal.step import Core, Step
from gridweave.site.maxima import NO_MAXIMA, Maxima, MaximaSet
from gridweave.site.messages import UserSubmitted, Wish
from gridweave.site.service.clock import HISTORY_DAYS, Clock
from gridweave.site.state import compressed
from gridweave.site.users.book import JobBook

logger = logging.getLogger("gridweave.live")

Incoming = TypeVar("Incoming")
"""What the other ends of the channels send."""

Answer = Accepted | Declined

T = TypeVar("T")


class HasChangeable(Protocol):
    """Settings, some of which may change while a journal is in use."""

    @property
    def changeable(self) -> Changeable:
        """The settings that may change."""


S = TypeVar("S", bound=HasChangeable)


class _Submission:
    """A job that is handed in, and those who wait for the answer."""

    def __init__(self, request: JobRequest, origin: str) -> None:
        self.request, self.origin = request, origin
        self.waiting: list[asyncio.Future[Answer]] = []


_Submissions = dict[str, _Submission]

OnNotes = Callable[[list[NumberedNote], dict[int, JobRecord]], None]
"""Is told what has been written into the stories of jobs, with the records of those that ended at that instant."""

Send = Callable[[str, bytes], Awaitable[str | None]]
"""Carries bytes to another end, by its name, and returns why that refuses them; it may fail, lose or repeat them."""

RESEND_MS = 1_000
SNAPSHOT_EVERY = 1_000
"""After so many inputs, or as many as there are open jobs, the state of the core is kept: a replay is short."""

_DAY_MS = 86_400_000

MOST_PACKET_BYTES = 1 << 20
"""What a packet has more messages than one for; a single one may be longer."""

MOST_KEY = 1_000
"""Characters of an idempotency key at most."""

_MOST_BYTES = 2**63 - 1
MOST_IN_SNAPSHOT = 100_000
"""With more open jobs a snapshot would take so long that leases run out meanwhile: it waits until there are fewer."""

REST, LEAST_REST_S, LONGEST_REST_S = 2.0, 0.02, 0.1
"""After a turn no other is taken for so many times as long as it took beyond the least rest; for at least that."""

_MOST_EVENTS = 2_000
MOST_SUBMISSIONS = 1_000
"""So many jobs are taken in by one turn, of each user who has handed in some about as many; the others wait."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_STUCK_PAUSE_S = 0.8
"""With this pause a journal has failed for 0.75 s: whoever asks hears so from then on."""


class _Peers:
    """How the other ends of channels stand to this one."""

    def __init__(self) -> None:
        # Why no messages are exchanged with a peer: because this end has an old copy of its journal, or one of the two
        # has another journal than before, or by the peer's own word.
        self.lost, self.strangers, self.refusals = dict[str, str](), dict[str, str](), dict[str, str]()
        self.linked = set[str]()  # those that were heard, and were none of that
        self.met: dict[str, str] = {}  # journals of peers that are to be written down


_RIGHT = "restore the newest copy, or start over at both ends (`gridweave up --fresh`; `serve --fresh` at each)"


class LiveCore(Core, Protocol):
    """A core with a live driver."""

    book: JobBook

    def next_wakeup_ms(self) -> int | None:
        """Return when `handle` is to be called though no event comes."""

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""


class Driver(ABC, Generic[Incoming]):
    """Drives a core: events and packets in, what it decides out, a journal between.

    The core is fresh, and is brought to where its journal ends. That is made with ``batch=0``: this sees to it when it
    is written. The ``peers`` are the other ends of its channels; ``send`` carries a packet to one of them. From now on
    the ``maxima`` count for its users, and so many days of history are kept.
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
        maxima: Maxima = NO_MAXIMA,
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
        self._told: list[asyncio.Future[None]] = []
        self._news = asyncio.Event()
        self._asked = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        # Counted from where a replay begins, so that one that is started anew again and again makes snapshots as well.
        self._snapshot_at = (self.replayed.snapshot or journal.base) + SNAPSHOT_EVERY
        self._seen: dict[str, int] = {}
        # Set unless a turn is being written down; where that takes long, `_stuck` says why.
        self._settled, self._stuck = asyncio.Event(), ""
        self._settled.set()
        self._peers = _Peers()
        self._failed: UnavailableError | None = None
        self._notes: list[NumberedNote] = []
        self.on_notes: OnNotes = lambda notes, ended: None
        # They are no setting that a journal is known by: they change while jobs wait.
        self._events += [MaximaSet(maxima)] * (core.book.eligibility.lines.maxima != maxima)

    def use_settings(self, before: msgspec.Struct, now: msgspec.Struct) -> None:
        """Switch the core to the settings `now` in its first turn if they differ from `before`."""
        changes = list(settings_changes(plain(before), now))
        if changes:
            logger.info("settings change: %s", "; ".join(change.text for change in changes))
            self._events.append(SettingsChanged(plain(now)))

    # -- the doors ----------------------------------------------------------------------------------------------------

    def tell(self, *events: Any) -> None:
        """Tell the core something, in the next turn."""
        self._events += events
        self._news.set()

    async def told(self, *events: Any) -> None:
        """Tell the core something; return when it is durable. If the driver fails it is not known whether it is."""
        self._check_alive()
        self.tell(*events)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told.append(future)
        await future

    async def durable(self) -> None:
        """Return when all that the core knows is durable: what is read from it then may be shown.

        UnavailableError if the journal cannot be written.
        """
        while not self._settled.is_set():
            await self._settled.wait()
        if self._stuck:
            raise UnavailableError(self._stuck)

    @property
    @abstractmethod
    def name(self) -> str:
        """What people call this end."""

    @property
    def problem(self) -> str:
        """Why it takes no jobs now; empty if it does."""
        return str(self._failed or "") or self._stuck

    def peer_problem(self, peer: str) -> str:
        """Return why no messages are exchanged with a peer; empty if they are."""
        return (
            self._peers.lost.get(peer, "") or self._peers.strangers.get(peer, "") or self._peers.refusals.get(peer, "")
        )

    def _check_alive(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def submit(self, requests: Sequence[tuple[str, JobRequest]], *, origin: str = "") -> list[Answer]:
        """Hand in jobs, each with its idempotency key; return what became of each when that is durable.

        A key that was used before gets its first answer again. A key that is none, or a request that cannot be written
        down, is declined. If the driver fails it is not known what becomes of them: hand them in again with the same
        keys. The stories of the jobs tell the ``origin``: who asks, and with which request. UnavailableError with the
        `problem` if there is one.
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

    async def wish(
        self, kind: WishKind, job_ids: Sequence[int], *, origin: str = "", signal: SignalName | None = None
    ) -> None:
        """Tell what a user wants of jobs; return when that is durable."""
        await self.told(Wish(kind, tuple(job_ids), origin, signal))

    def packet(self, peer: str, data: bytes) -> str | None:
        """Take in a packet from another end; one that cannot be read is dropped, as if it had been lost: return why."""
        if peer not in self._channels:
            raise UnavailableError(f"no connection to {peer!r:.100}; known are {', '.join(sorted(self._channels))}")
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
        """Note that one of two ends has another journal than before, or that both have the right one again."""
        known = self._peers.strangers.pop(peer, "")
        if problem:
            found = f"the packet {problem}"
            self._peers.strangers[peer] = known if known == found else self._dropped(peer, problem)
        if self._peers.strangers.get(peer, "") != known:
            self._news.set()
        return self._peers.strangers.get(peer, "")

    def peer_name(self, peer: str) -> str:
        """Return what people call another end."""
        return f"the {peer}"

    def _other_journal(self, peer: str, whose: str) -> str:
        """Return which of two ends has another journal than before, and how to go on."""
        if whose == "mine":
            return f"is for another journal of {self.name}: {self.name} lost its journal, or was started over; {_RIGHT}"
        return (
            f"is of another journal than before: {self.peer_name(peer)} lost its journal, or was started over; {_RIGHT}"
        )

    def _old_copy(self, peer: str, received: int) -> str:
        """Return that a peer has more of this end's messages than its journal knows of, and how to go on."""
        known = f"{self.name} knows of {self._channels[peer].sent:,}: it lost its journal, or has an old copy of it"
        return f"acknowledges {received:,} messages, and {known}; {_RIGHT}"

    @staticmethod
    def _dropped(peer: str, problem: str) -> str:
        """Return why a packet is not taken in; it is told as well."""
        logger.warning("a packet from %s %s", peer, problem)
        return f"the packet {problem}"

    # -- what a kind of driver adds -----------------------------------------------------------------------------------

    @abstractmethod
    def heard(self, peer: str, message: Incoming) -> Any:
        """Return the event that a message is for the core."""

    @abstractmethod
    def outgoing(self, command: Any) -> tuple[str, Any] | None:
        """Return to which peer which message goes, if a command is to send one."""

    def news_of_links(self) -> list[Any]:
        """Return what the core is to be told of whether peers exchange messages with it."""
        return []

    def act(self, commands: Sequence[Any]) -> None:
        """Do what else the core has decided; it is durable."""

    # -- turns --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take turns, until another process has become the writer of the journal."""
        loop = asyncio.get_running_loop()
        while True:
            begin_s = loop.time()
            await self.turn()
            end_s = loop.time()
            await self._wait()
            await self._rest(end_s + max(LEAST_REST_S, REST * (end_s - begin_s - LEAST_REST_S)))

    async def turn(self) -> None:
        """Hear what has come, have the core decide, write it down, and act.

        Whoever waits for an answer gets what this fails with as well; nothing more is taken in then.
        """
        self._check_alive()
        self._news.clear()
        self._asked.clear()
        submissions = self._next_submissions()
        told, self._told = self._told, []
        try:
            await self._take_turn(submissions, told)
        except BaseException as error:
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self._failed = UnavailableError(f"{self._journal.where}: its driver has stopped ({why}); start it again")
            waiting: list[asyncio.Future[Any]] = [*told, *self._told]
            for submission in [*submissions.values(), *self._submissions.values()]:
                waiting += submission.waiting
            for future in waiting:
                if not future.done():
                    future.set_exception(self._failed)
            raise

    def _next_submissions(self) -> _Submissions:
        """Take a turn's submissions, round-robin by user, so that one user's many jobs do not hold up the others."""
        waiting, self._submissions = self._submissions, {}
        if len(waiting) <= MOST_SUBMISSIONS:
            return waiting
        by_user: dict[str, list[str]] = {}
        for key, each in waiting.items():
            by_user.setdefault(each.request.user, []).append(key)
        rounds = zip_longest(*by_user.values())
        taken = set(islice((key for keys in rounds for key in keys if key is not None), MOST_SUBMISSIONS))
        self._submissions = {key: each for key, each in waiting.items() if key not in taken}
        self._news.set()
        self._asked.set()
        return {key: each for key, each in waiting.items() if key in taken}

    async def _take_turn(self, submissions: _Submissions, told: list[asyncio.Future[None]]) -> None:
        known = await self._answered(submissions)
        past = await self._past([each.request for key, each in submissions.items() if key not in known])
        packets, self._packets = self._packets, []
        events, self._events = [*self.news_of_links(), *self._events], []
        for key, each in submissions.items():
            if key not in known:
                mine = {after.job_id for after in each.request.after}
                found = tuple(past[job_id] for job_id in sorted(mine) if job_id in past)
                events.append(UserSubmitted(key, each.request, each.origin, found))
        self._settled.clear()
        commands = self._decide(events, packets)
        await self._flush()
        self._settled.set()
        if self._notes:
            notes, self._notes = self._notes, []
            self.on_notes(notes, {each.record.job_id: each.record for each in commands if type(each) is RecordEnded})
        answers: dict[str, Answer] = {key: found.answer for key, found in known.items()}
        answers |= {command.key: command for command in commands if isinstance(command, (Accepted, Declined))}
        _tell(submissions, answers)
        for done in told:
            if not done.done():
                done.set_result(None)
        self.act(commands)
        self._send_packets()
        self._keep_state()

    async def _answered(self, submissions: _Submissions) -> dict[str, Any]:
        if not submissions:
            return {}
        with contextlib.suppress(UnavailableError):
            found = self._journal.submissions_at_once(submissions)
            if found is not None:
                return found
        return await self._read(lambda: self._journal.submissions(submissions))

    async def _past(self, requests: Sequence[JobRequest]) -> dict[int, Past]:
        """Return what the journal knows of jobs that others are to wait for; those that are not over are left out."""
        next_id = self._core.book.next_id
        wanted = {after.job_id for request in requests for after in request.after if after.job_id < next_id}
        if not wanted:
            return {}
        ended = await self._read(lambda: self._journal.ended(sorted(wanted)))
        return {job_id: past_of(record) for job_id, record in ended.items()}

    async def _read(self, read: Callable[[], T]) -> T:
        return await self._insist("read", lambda: asyncio.to_thread(read))

    async def _insist(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do something with the journal, again and again until it is done, unless another is its writer now."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                done = await work()
            except UnavailableError as error:
                if self._journal.is_replaced:
                    raise
                logger.error("the journal cannot be %s, trying again: %s", what, error)
                if pause_s >= _STUCK_PAUSE_S:
                    self._stuck = f"{self.name} cannot go on: its journal cannot be {what}: {error}"
                    self._settled.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                self._stuck = ""
                return done

    def _decide(self, events: list[Any], packets: list[tuple[str, Packet[Incoming]]]) -> list[Any]:
        """Take the step of this turn, if there is anything to do."""
        commands: list[Any] = []
        self._now_ms = max(self._now_ms, self.clock.now_ms())
        wakeup_ms = self._core.next_wakeup_ms()
        is_due = wakeup_ms is not None and wakeup_ms <= self._now_ms
        heard, counts = self._unpacked(packets)
        # The channel keeps the order of messages; a user's wish counts from when it is heard.
        everything = heard + events
        if not everything and not is_due and not self._peers.met:
            return commands
        with self._journal.step() as step:
            for peer, received in self._seen.items():
                step.acknowledged(peer, received)
            for peer, count in counts.items():
                step.received(peer, count)
            for peer, journal_id in self._peers.met.items():
                step.met(peer, journal_id)
            for start in range(0, max(1, len(everything)), _MOST_EVENTS):
                commands += self._handle(step, everything[start : start + _MOST_EVENTS])
            self._record(step, commands)
        self._seen, self._peers.met = {}, {}
        return commands

    def _unpacked(self, packets: list[tuple[str, Packet[Incoming]]]) -> tuple[list[Any], dict[str, int]]:
        """Return what the other ends say that is new, in order, and how many messages that is of each."""
        real_ms = self._real_ms()
        heard: list[Any] = []
        counts: dict[str, int] = {}
        for peer, packet in packets:
            is_met = bool(self._channels[peer].other)
            new = self._channels[peer].receive(real_ms, packet)
            if packet.journal and not is_met:
                self._peers.met[peer] = packet.journal
            # What the other end has received need not be written down before there is something else to write.
            self._seen[peer] = max(packet.received, self._seen.get(peer, 0))
            counts[peer] = counts.get(peer, 0) + len(new)
            heard += [self.heard(peer, message) for message in new]
        return heard, counts

    def _handle(self, step: Step, events: list[Any]) -> list[Any]:
        """Have the core take in what has happened; what cannot be taken in is left out, and harms nothing else."""
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
        """Return what is to be said of an event that cannot be taken in; whoever sent it would only send it again."""
        logger.error("not taken in: %s", error)
        key = getattr(event, "key", None)
        return [Declined(key, str(error))] if isinstance(key, str) else []

    def _record(self, step: Step, commands: Sequence[Any]) -> None:
        messages: dict[str, list[Any]] = {}
        for command in commands:
            if isinstance(command, Noted):
                at_ms = self._now_ms if command.at_ms is None else command.at_ms
                told = command.job_id, at_ms, command.kind, command.detail
                step.note(*told)
                self._notes.append(NumberedNote(step.last_note, *told))
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
        """Write down what was decided, however long that takes: until then nothing of it may be seen."""
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
        """Send a packet, and note whether the other end takes it."""
        refusal = await self._send(peer, data)
        before, self._peers.refusals[peer] = self._peers.refusals.get(peer, ""), refusal or ""
        if self._peers.refusals[peer] != before:
            self._news.set()
            if refusal:
                logger.error("%s refuses messages: %s", peer, refusal)

    def spawn(self, work: Awaitable[object]) -> None:
        """Do something that may fail without harm, besides."""
        task = asyncio.ensure_future(_harmless(work))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def _keep_state(self) -> None:
        if self._journal.sequence >= self._snapshot_at and self._core.book.n_open <= MOST_IN_SNAPSHOT:
            self._snapshot_at = self._journal.sequence + max(SNAPSHOT_EVERY, self._core.book.n_open)
            open_jobs = frozenset(self._core.book.open_jobs())
            self._journal.forget_by_and_by(self._now_ms - self._history_ms, open_jobs)
            try:
                snap = self._journal.snap(self._core)
            except InputError as error:
                logger.error("no snapshot: %s", error)
            else:
                self.spawn(self._keep(snap))

    async def _keep(self, snap: Snap) -> None:
        """Record a snapshot; meanwhile, as that takes a while for many jobs, turns are taken."""
        state = await asyncio.to_thread(compressed, snap.state)
        self._journal.keep(snap, state)

    async def _wait(self) -> None:
        if self._news.is_set():
            # Others of this loop get their turn as well.
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
            # A clock that was set is noticed within a minute.
            # Not wait_for: that of Python 3.11 may swallow a cancellation, and this would go on for ever.
            async with asyncio.timeout(min([*waits_ms, 60_000]) / 1000):
                await self._news.wait()
        except TimeoutError:
            return

    async def _rest(self, until_s: float) -> None:
        """Let more come in after a turn, which costs more than most of what it is about, above all on a busy machine.

        Who hands in jobs waits for the answer, and often with the next ones: that ends the rest.
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
        """Stop, and let go of the journal."""
        for task in self._sending:
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending)
        self._journal.close()


def as_begun(settings: S, journal: Journal, unsaid: Mapping[str, Any] = MappingProxyType({})) -> S:
    """Return the settings at the start of a journal's inputs: the current ones, with changeable settings as recorded.

    `unsaid` supplies settings that older releases did not record. If the journal does not fit, its replay reports why.
    """
    with contextlib.suppress(InputError, msgspec.ValidationError):
        return settings_as(settings, {**unsaid, **journal.kept_settings}, settings.changeable)
    return settings


def _tell(submissions: _Submissions, answers: Mapping[str, Answer]) -> None:
    """Give those who wait for one what became of their submissions."""
    for key, each in submissions.items():
        for future in each.waiting:
            if not future.done():
                future.set_result(answers[key])


def _restored(journal: Journal, peer: str) -> Channel:
    """Return the channel to a peer as the journal has it."""
    known = journal.channel(peer)
    return Channel.restored(
        RESEND_MS,
        first=known.first,
        unacknowledged=known.unacknowledged,
        received=known.received,
        journal=journal.journal_id,
        other=known.other,
    )


def _replayed(journal: Journal, core: LiveCore) -> Replayed:
    try:
        return replay(journal, core)
    except BaseException:
        # Whoever tries again is to find it free.
        with contextlib.suppress(GridweaveError):
            journal.close()
        raise


def _encoded(channel: Channel, packet: Packet[Any]) -> bytes:
    """Return a packet as it is sent: with fewer messages if these are too long for one."""
    data = msgspec.msgpack.encode(packet)
    while len(data) > MOST_PACKET_BYTES and len(packet.messages) > 1:
        fitting = len(packet.messages) * MOST_PACKET_BYTES // (2 * len(data))
        packet = channel.shortened(packet, max(1, fitting))
        data = msgspec.msgpack.encode(packet)
    return data


async def _harmless(work: Awaitable[object]) -> None:
    """Await something whose failure is nothing but a message that was lost."""
    try:
        await work
    except GridweaveError as error:
        logger.debug("not sent: %s", error)
    except Exception as error:
        # Whatever the transport raises (an actor that is away, a connection that broke) means the same.
        logger.debug("not sent: %s: %s", type(error).__name__, error)


def _key_problem(key: str) -> str | None:
    try:
        if key and len(key) <= MOST_KEY and "\0" not in key and key.encode():
            return None
    except (TypeError, AttributeError, UnicodeEncodeError):
        pass
    return f"the idempotency key {key!r:.100} cannot be used; give 1 to {MOST_KEY} characters, none of them NUL"


def _usage(command: RecordUsage, now_ms: int) -> JobUsage:
    """Return what the journal keeps of what a job used; a number that none can have used is kept as the most it can."""
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
