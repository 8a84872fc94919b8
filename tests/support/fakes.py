"""Fakes of everything below the drivers: machines that run no processes, and journals in memory.

Use them for drivers in virtual time, as `live_world` does. The journals have the steps, codecs and digests of the real
ones, and flushed steps survive their process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gridweave.errors import UnavailableError
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.settings import plain
from gridweave.site.job import JobRecord
from gridweave.site.journal.journal import Snap
from gridweave.site.journal.records import Codec, KeptAnswer, Note, NumberedNote, digest
from gridweave.site.journal.replay import Replayed
from gridweave.site.journal.step import Counts, Step, StepRows
from gridweave.site.launch import Launch, NodeTaskEnded, NodeTaskEvent, NodeTaskReady, NodeTaskStarted, Used
from gridweave.site.state import HasState, kind_of, read_state, state_bytes
from support.stepping import VirtualLoop

# -- machines ---------------------------------------------------------------------------------------------------------

Key = tuple[int, int]


class Countdown:
    """A timer that can be paused; it calls `due` after running for `span_ms`."""

    def __init__(self, loop: VirtualLoop, span_ms: int, due: Callable[[], None]) -> None:
        self._loop, self._left_s, self._due = loop, span_ms / 1000, due
        self._since_s: float | None = None
        self._round = 0

    def go_on(self, *, rests: bool) -> None:
        """Pause the timer if `rests`, or else let it run."""
        now_s = self._loop.time()
        if rests and self._since_s is not None:
            self._left_s -= now_s - self._since_s
            self._since_s = None
            self._round += 1
        elif not rests and self._since_s is None:
            self._since_s = now_s
            self._loop.outside(self._left_s, self._over, self._round)

    def _over(self, number: int) -> None:
        if number == self._round:
            self._due()


class NodeTask(msgspec.Struct):
    """A node task: the part of an attempt that one machine runs or has run; it may be paused, or about to end."""

    launch: Launch
    at_gate: bool = False
    pace: tuple[bool, int] = (True, 0)
    stands: bool = False
    is_ending: bool = False
    limits: list[Countdown] = []
    work: Countdown | None = None
    begun_ms: int | None = None
    is_heard: bool = False
    outcome: str = ""
    reason: str = ""
    is_told: bool = False


class Machine:
    """A machine with its folder and its processes, both of which outlive its agent."""

    def __init__(self, works: Works, number: int, site: int, name: str, nodes: int, *, pauses: bool = False) -> None:
        self.works, self.number, self.site, self.name, self.nodes = works, number, site, name, nodes
        self.pauses = pauses
        # The site's last order for each job, True to run and False to pause; and the jobs that it ordered to end.
        self.apply: dict[Key, bool] = {}
        self.told_to_end: set[Key] = set()
        self.folder: dict[Key, NodeTask] = {}
        self.slots: dict[Key, tuple[int, ...]] = {}
        self.runner: FakeRunner | None = None
        self.is_up = True
        self.is_full = False

    @property
    def running(self) -> list[Key]:
        """The node tasks that have processes."""
        return [key for key, piece in self.folder.items() if piece.begun_ms is not None and not piece.outcome]

    def beside(self, key: Key) -> Iterator[Key]:
        """Yield the other running node tasks that share a node with this one."""
        slots = set(self.slots[key])
        yield from (other for other in self.running if other != key and not slots.isdisjoint(self.slots[other]))

    def end(self, key: Key, outcome: str, reason: str) -> None:
        """End a node task with an outcome, unless it has ended already."""
        piece = self.folder[key]
        if piece.outcome:
            return
        piece.outcome, piece.reason = outcome, reason
        if outcome == "lost":
            self.works.lost.add(key[0])
        if piece.begun_ms is not None:
            self.works.left(self, key, outcome)
        if self.runner is not None:
            self.runner.tell(key)

    def crash(self, *, wiped: bool) -> None:
        """Lose all processes, and with `wiped` also the folder."""
        self.is_up = False
        self.runner = None
        for key in self.running:
            self.end(key, "lost", "the machine was restarted while it ran")
        if wiped:
            self.works.lost |= {job_id for job_id, _ in self.folder}
            self.folder = {}


class Works:
    """The true state of the jobs on all machines, whatever the sites know.

    Parameters
    ----------
    loop : VirtualLoop
    rng : numpy.random.Generator
    history : History
    grace_s : float
        Mean time that a node task takes to save its work.
    """

    def __init__(self, loop: VirtualLoop, rng: np.random.Generator, history: History, *, grace_s: float = 0.02) -> None:
        self.loop, self.rng, self.history, self.grace_s = loop, rng, history, grace_s
        self._here: dict[Key, dict[Machine, tuple[int, int]]] = {}
        self._since: dict[Key, int] = {}
        self._works: set[Key] = set()
        # Since when two jobs work on a node of a machine that should pause one of them.
        self._shared: dict[tuple[Machine, int], int] = {}
        # Since when an attempt runs with only some of its parts, and the longest time for which it did so.
        self._alone: dict[Key, int] = {}
        self.alone_ms: dict[Key, int] = {}
        self.finished: set[int] = set()
        self.failed: set[int] = set()
        self.limited: set[int] = set()
        self.lost: set[int] = set()
        self.stops = 0

    def began(self, machine: Machine, key: Key, launch: Launch) -> None:
        """Record that a machine runs its part of a job; all parts begin to work when the last one has started."""
        now_ms = self.loop.now_ms()
        slots = tuple((slot, slot + 1) for slot in machine.slots[key])
        self.history.occupied(now_ms, machine.number, *key, slots, len(slots))
        here = self._here.setdefault(key, {})
        here[machine] = len(slots), len(launch.ranks)
        self._since.setdefault(key, now_ms)
        if sum(ranks for _, ranks in here.values()) < (launch.size or 0):
            self._alone.setdefault(key, now_ms)
            self._limit(launch, machine, key)
            self._keep_pace(key)
            return
        self.history.began(now_ms, *key, tuple((each.number, width) for each, (width, _) in here.items()))
        self._works.add(key)
        self._end_alone(key)
        run_ms = int(launch.environment["RUN_MS"])
        for number, each in enumerate(sorted(here, key=lambda each: each.number)):
            # Only one part fails by itself; the others just get no more answers from it.
            outcome = launch.environment["OUTCOME"]
            if number == 0 or outcome == "finished":
                each.folder[key].work = self._countdown(run_ms, each, key, outcome)
            self._limit(launch, each, key)
        self._keep_pace(key)

    def _limit(self, launch: Launch, machine: Machine, key: Key) -> None:
        piece = machine.folder[key]
        piece.limits = [*piece.limits, self._countdown(launch.limit_ms or 0, machine, key, "limit")]

    def _keep_pace(self, key: Key) -> None:
        """Run or pause the timers of an attempt: limits of parts are independent, but a paused part stops all work."""
        machines = sorted(self._here.get(key, ()), key=lambda machine: machine.number)
        here = [(machine, machine.folder[key]) for machine in machines if key in machine.folder]
        stands = any(piece.stands for _, piece in here)
        for machine, piece in here:
            if piece.work is not None:
                piece.work.go_on(rests=stands)
            for limit in piece.limits:
                limit.go_on(rests=piece.stands)
            self._look_who_works(machine)

    def set_pace(self, machine: Machine, key: Key, *, stands: bool) -> None:
        """Pause a running part, or resume it."""
        piece = machine.folder[key]
        if piece.begun_ms is not None and not piece.outcome and piece.stands != stands:
            piece.stands = stands
            self.stops += stands
            self._keep_pace(key)

    def _look_who_works(self, machine: Machine) -> None:
        """Record since when two jobs work on a node; paused and ending jobs do not count."""
        if not machine.pauses:
            return
        count: dict[int, int] = defaultdict(int)
        for key in machine.running:
            piece = machine.folder[key]
            for slot in machine.slots[key]:
                count[slot] += not (piece.stands or piece.is_ending)
        now_ms = self.loop.now_ms()
        for slot in range(machine.nodes):
            if count[slot] > 1:
                self._shared.setdefault((machine, slot), now_ms)
            else:
                self._shared.pop((machine, slot), None)

    def _countdown(self, span_ms: int, machine: Machine, key: Key, outcome: str) -> Countdown:
        piece = machine.folder[key]

        def due() -> None:
            is_here = machine.folder.get(key) is piece and not piece.outcome
            # A part finishes only while all parts work, or at the instant at which another part has finished.
            if is_here and (outcome != "finished" or key in self._works or key[0] in self.finished):
                machine.end(key, outcome, "")

        return Countdown(self.loop, span_ms, due)

    def left(self, machine: Machine, key: Key, outcome: str) -> None:
        """Record that a part has ended."""
        now_ms = self.loop.now_ms()
        if key in self._works:
            self._works.discard(key)
            self.history.stopped(now_ms, key[0], completed=outcome == "finished")
            if outcome == "finished":
                self.finished.add(key[0])
        {"failed": self.failed, "limit": self.limited}.get(outcome, set()).add(key[0])
        self.history.left(now_ms, machine.number, key[0])
        del self._here[key][machine]
        self._look_who_works(machine)
        if self._here[key] and outcome != "finished":
            self._alone.setdefault(key, now_ms)
        if not self._here[key]:
            self._end_alone(key)
            del self._here[key]
            del self._since[key]

    def _end_alone(self, key: Key) -> None:
        """Update the longest time for which an attempt ran with only some of its parts."""
        since_ms = self._alone.pop(key, None)
        if since_ms is not None:
            self.alone_ms[key] = max(self.alone_ms.get(key, 0), self.loop.now_ms() - since_ms)

    def check_alone(self, since_ms: int, patience_ms: int) -> None:
        """Check that no part has waited longer than `patience_ms` for others; time before `since_ms` does not count."""
        now_ms = self.loop.now_ms()
        for key, begun_ms in self._since.items():
            if key not in self._works and now_ms - max(begun_ms, since_ms) > patience_ms:
                raise ViolationError(f"{now_ms} ms: a part of job {key} is alone since {begun_ms} ms")

    def check_shared(self, since_ms: int, patience_ms: int) -> None:
        """Check that no two jobs have worked on a node longer than `patience_ms`, counted from `since_ms`."""
        now_ms = self.loop.now_ms()
        for (machine, slot), begun_ms in self._shared.items():
            if now_ms - max(begun_ms, since_ms) > patience_ms:
                raise ViolationError(f"{now_ms} ms: two jobs work on node {slot} of {machine.name} since {begun_ms} ms")


class FakeRunner:
    """Replaces the agent's `Runner`: starts, ends and recovers the node tasks of a `Machine` of this file."""

    def __init__(self, root: Machine, environment: Mapping[str, str] | None = None, **options: object) -> None:
        self.machine = root
        self.root = root
        self._events: asyncio.Queue[NodeTaskEvent] = asyncio.Queue()
        self._forgotten: set[Key] = set()
        self._told: set[Key] = set()
        self._released: list[Key] = []

    async def open(self) -> None:
        """Become the runner of the machine; UnavailableError if the machine is down."""
        if not self.machine.is_up:
            raise UnavailableError("the machine is down")
        self.machine.runner = self

    async def adopt(self) -> None:
        """Report the node tasks that an earlier runner left behind."""
        for key, piece in self.machine.folder.items():
            if piece.at_gate and not piece.outcome:
                self._events.put_nowait(NodeTaskReady(*key))
            elif piece.begun_ms is None and not piece.outcome:
                self.machine.end(key, "lost", "it was written down and never started")
            elif piece.begun_ms is not None:
                self._report_started(key)
            if piece.outcome:
                self.tell(key)
        await asyncio.sleep(0)

    def knows(self, job_id: int, attempt: int) -> bool:
        """Whether the machine has or had this node task."""
        return (job_id, attempt) in self.machine.folder or (job_id, attempt) in self._forgotten

    async def start(self, launch: Launch) -> None:
        """Start a node task after a random delay."""
        key = launch.job_id, launch.attempt
        if self.knows(*key):
            return
        if self.machine.is_full:
            raise UnavailableError("its disk is full")
        machine, works = self.machine, self.machine.works
        piece = machine.folder[key] = NodeTask(launch)
        by = self

        def begin() -> None:
            # If the runner has died meanwhile, the fork server starts the task with probability 1/2.
            gone = machine.runner is not by and works.rng.random() < 0.5
            if machine.folder.get(key) is not piece or piece.outcome or not machine.is_up or gone:
                return
            if launch.alone_ms is None:
                self._begin(piece, key)
                return
            piece.at_gate = True
            if machine.runner is not None:
                machine.runner.ready(key)

        works.loop.outside(works.rng.exponential(0.02), begin)
        await asyncio.sleep(0)

    def _begin(self, piece: NodeTask, key: Key) -> None:
        """Start the ranks of a node task; they end by themselves unless the site confirms their start in time."""
        machine, works = self.machine, self.machine.works
        piece.at_gate, piece.begun_ms = False, works.loop.now_ms()
        piece.stands = not piece.pace[0]
        works.began(machine, key, piece.launch)
        if machine.runner is not None:
            machine.runner.started(key)
        if piece.launch.alone_ms is not None:

            def heard_by() -> None:
                if machine.folder.get(key) is piece and not piece.is_heard:
                    machine.end(key, "lost", "no runner recorded its start in time")

            works.loop.outside(piece.launch.alone_ms / 1000, heard_by)

    async def open_gate(self, job_id: int, attempt: int) -> None:
        """Open the gate of a node task after a random delay, so that its ranks start."""
        key, machine = (job_id, attempt), self.machine
        piece = machine.folder.get(key)

        def opened() -> None:
            if piece is not None and machine.folder.get(key) is piece and piece.at_gate and not piece.outcome:
                self._begin(piece, key)

        machine.works.loop.outside(machine.works.rng.exponential(0.02), opened)
        await asyncio.sleep(0)

    def heard(self, job_id: int, attempt: int) -> None:
        """Record that the site has confirmed the start of a node task."""
        if (job_id, attempt) in self.machine.folder:
            self.machine.folder[job_id, attempt].is_heard = True

    def is_at_gate(self, job_id: int, attempt: int) -> bool:
        """Whether the ranks of a node task wait at their gate."""
        piece = self.machine.folder.get((job_id, attempt))
        return piece is not None and piece.at_gate and not piece.outcome

    def disk_problem(self, *, trial: bool) -> str | None:
        """Return why the machine cannot hold another node task, or None."""
        return "its disk is full" if self.machine.is_full and trial else None

    async def cancel(
        self, job_id: int, attempt: int, reason: str, *, at_once: bool = False, saves: bool = False
    ) -> None:
        """End a node task, or keep it from starting; it ends after a random delay."""
        key = job_id, attempt
        if key in self._forgotten:
            return
        if key not in self.machine.folder:
            self.machine.folder[key] = NodeTask(Launch(job_id=job_id, attempt=attempt, ranks=()))
        if reason == "reached its limit":
            self.machine.works.limited.add(job_id)
        machine = self.machine
        piece = machine.folder[key]
        if piece.begun_ms is None:
            machine.end(key, "cancelled", reason)
        else:
            # A paused task is resumed so that it can react to the signal.
            piece.is_ending = True
            machine.works.set_pace(machine, key, stands=False)
            machine.works.loop.outside(
                machine.works.rng.exponential(machine.works.grace_s if saves else 0.02),
                lambda: machine.end(key, "cancelled", reason) if machine.folder.get(key) is piece else None,
            )
        await asyncio.sleep(0)

    async def pace(self, job_id: int, attempt: int, *, runs: bool, at_unix_ms: int = 0, speed: float = 1.0) -> None:
        """Pause or resume a node task at an instant; only the last order counts."""
        key, machine = (job_id, attempt), self.machine
        piece, action = machine.folder.get(key), (runs, at_unix_ms)
        if piece is None or piece.outcome:
            return
        piece.pace = action

        def due() -> None:
            if machine.folder.get(key) is piece and piece.pace == action and not piece.is_ending:
                machine.works.set_pace(machine, key, stands=not runs)

        works = machine.works
        works.loop.outside(max(0, at_unix_ms - works.loop.now_ms()) / 1000 + works.rng.exponential(0.005), due)
        await asyncio.sleep(0)

    def release(self, job_id: int, attempt: int) -> None:
        """Release a node task whose end the site knows; the last three released tasks are kept."""
        self._released.append((job_id, attempt))
        while len(self._released) > 3:
            key = self._released.pop(0)
            piece = self.machine.folder.pop(key, None)
            assert piece is None or piece.outcome, "it has not ended"
            self._forgotten.add(key)

    async def report_again(self, job_id: int, attempt: int) -> None:
        """Report the end of a node task again, after the site has lost the report."""
        piece = self.machine.folder.get((job_id, attempt))
        if piece is not None and piece.outcome:
            self._told.discard((job_id, attempt))
            self.tell((job_id, attempt))

    async def events(self) -> AsyncIterator[NodeTaskEvent]:
        """Yield the events of the node tasks, without end."""
        while True:
            yield await self._events.get()

    def ready(self, key: Key) -> None:
        """Report that the ranks wait at their gate."""
        self._events.put_nowait(NodeTaskReady(*key))

    def started(self, key: Key) -> None:
        """Report a start."""
        self._report_started(key)

    def _report_started(self, key: Key) -> None:
        piece = self.machine.folder[key]
        self._events.put_nowait(NodeTaskStarted(*key, piece.begun_ms or 0, piece.launch.alone_ms))

    def tell(self, key: Key) -> None:
        """Report an end, unless it was reported already."""
        if key not in self._told:
            self._told.add(key)
            piece = self.machine.folder[key]
            end: Any = NodeTaskEnded(
                *key,
                piece.outcome,
                piece.reason,
                (),
                Used(cpu_s=1.0),
                piece.begun_ms,
                self.machine.works.loop.now_ms(),
            )
            self._events.put_nowait(end)


# -- journals ---------------------------------------------------------------------------------------------------------


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

    def history(self, job_id: int) -> list[Note]:
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
