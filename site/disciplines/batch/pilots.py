"""A site that asks its batch system for nodes ahead of work, and runs its jobs in them (docs/slurm.md, "Pilots").

A pilot is some nodes that a batch system gives for a time. The nodes of the site are places: each is out of service
until a node of a pilot takes it, and again when the pilot takes no more jobs. On those in service a discipline decides
as on nodes of a site of our own; to it a pilot that ends is as nodes that are drained.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

import msgspec

from gridweave.site.allocation import NodePool, bits_of, intervals_of
from gridweave.site.batch.outlook import earliest_start
from gridweave.site.disciplines.batch.policy import BatchPolicy
from gridweave.site.disciplines.dictionary import entry_of
from gridweave.site.disciplines.protocol import PILOT, Discipline, NodesAsked, ServesNodes, SharedOffer
from gridweave.site.disciplines.queue import ArrayDiscipline
from gridweave.site.explain import SiteReason, nodes_text
from gridweave.site.job import Job, NodeIntervals, Running
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.messages import BatchSeen
from gridweave.site.state import CoreState, with_parts
from gridweave.site.times import LONGEST_PAUSE_MS, growing_pause_ms, span_text, when_text

FIRST_PAUSE_MS = 10_000
"""When a pilot came to nothing, another is asked for after so long; twice as long each time in a row.

A row ends when a pilot has lasted for the longest pause, or was given back as it was idle or its time had come.
"""

D = TypeVar("D")


class Pilot(msgspec.Struct):
    """Nodes that were asked for ahead of work."""

    number: int  # which no other pilot of the site ever has
    places: tuple[int, ...]
    length_ms: int
    until_ms: int | None = None  # when all its jobs must have ended; None while its nodes are not there
    last_start_ms: int = 0  # no job starts in it later
    start_ms: int | None = None  # when its nodes are expected, as the batch system says
    reason: str = ""  # why they are not there yet

    @property
    def bits(self) -> int:
        """Its places as the bits of a number."""
        return sum(1 << place for place in self.places)

    def takes_jobs(self, now_ms: int) -> bool:
        """Return whether a job may start in it."""
        return self.until_ms is not None and now_ms <= self.last_start_ms


class CountedPlaces:
    """Gives the jobs of a discipline that only counts nodes their own, the lowest first; one that `ServesNodes`.

    A node that leaves while a job has it leaves when that has ended. Until then the discipline counts it, and evicts
    nobody from it: who came after would have to leave at once.

    Parameters
    ----------
    nodes : int
        Nodes of the site; none is in service yet.
    discipline : ArrayDiscipline
    """

    lanes = (1, 1)
    """A job has its nodes whole."""

    def __init__(self, nodes: int, discipline: ArrayDiscipline) -> None:
        self._discipline = discipline
        self._pool = NodePool(nodes)
        self._pool.take(nodes)
        discipline.resize(-nodes)
        # As the bits of numbers (allocation.py): the nodes that take jobs, and those of each job.
        self._open = 0
        self._nodes_of: dict[int, int] = {}

    def aside(self, discipline: ArrayDiscipline) -> Self:
        """Return what can be asked anything, and leaves no trace of that here."""
        twin = copy.copy(self)
        twin._discipline = discipline
        return twin

    @property
    def free(self) -> int:
        """Nodes in service that no job has."""
        return self._pool.free

    @property
    def in_use(self) -> int:
        """The nodes that jobs have, as the bits of a number."""
        return functools.reduce(operator.or_, self._nodes_of.values(), 0)

    def place_of(self, job_id: int) -> tuple[NodeIntervals, NodeIntervals]:
        """Return the nodes of a running job."""
        return intervals_of(self._nodes_of[job_id]), ()

    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        """Return None: no node is shared."""
        return None

    def serve(self, now_ms: int, nodes: int) -> None:
        """Have these nodes in service, and no others; of those that leave the ones in use when they are free."""
        in_use = self.in_use
        coming, leaving = nodes & ~self._open, self._open & ~nodes
        self._pool.give_back(coming)
        self._pool.occupy(leaving & ~in_use)
        self._open = nodes
        self._discipline.resize(coming.bit_count() - (leaving & ~in_use).bit_count())
        for job_id, bits in self._nodes_of.items():
            if bits & leaving:
                self._discipline.spare(job_id)

    def ended(self, now_ms: int, job_id: int) -> None:
        """Take out a running job."""
        self._discipline.ended(now_ms, job_id)
        self._leave(job_id)

    def _leave(self, job_id: int) -> None:
        """Give back the nodes of a job; those that only waited for that leave."""
        bits = self._nodes_of.pop(job_id)
        self._pool.give_back(bits & self._open)
        if gone := bits & ~self._open:
            self._discipline.resize(-gone.bit_count())

    def run_pass(self, now_ms: int) -> list[Job]:
        """Start what may start now, on nodes of its own; return these jobs, in the order in which they were started."""
        started = self._discipline.run_pass(now_ms)
        # What ran and does not, or starts once more, was evicted.
        again = {job.job_id for job in started}
        runs = {running.job.job_id for running in self._discipline.running()} - again
        for job_id in self._nodes_of.keys() - runs:
            self._leave(job_id)
        for job in started:
            self._nodes_of[job.job_id] = self._pool.take(job.width)[1]
        return started

    def nodes_of(self) -> dict[int, NodeIntervals]:
        """Return the nodes of each job."""
        return {job_id: intervals_of(bits) for job_id, bits in self._nodes_of.items()}

    def restore(self, nodes: int, nodes_of: Mapping[int, NodeIntervals]) -> None:
        """Take in which nodes take jobs, and which each job has; the discipline has taken in its own state."""
        self._nodes_of = {job_id: bits_of(nodes) for job_id, nodes in nodes_of.items()}
        self._open = nodes
        self._pool.give_back(nodes & ~self.in_use)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        self._pool.check_invariants()
        assert self._pool.free == (self._open & ~self.in_use).bit_count(), "free nodes and those in service differ"
        runs = {running.job.job_id for running in self._discipline.running()}
        assert runs == self._nodes_of.keys(), "a job runs that has no nodes"


class PilotDisciplineState(CoreState, Generic[D], frozen=True, kw_only=True, tag="PilotDiscipline 1"):
    """The pilots, which places are in service, and the state of the discipline inside.

    ``nodes_of`` has the nodes of each job, where the discipline inside does not choose them.
    """

    queue: D
    pilots: list[Pilot]
    in_service: NodeIntervals
    nodes_of: dict[int, NodeIntervals]
    free_since_ms: dict[int, int]
    asks: int
    lost: int
    not_before_ms: int
    why_lost: str
    wished: tuple[int, int]
    now_ms: int
    seen: BatchSeen | None


class PilotDiscipline:
    """The jobs of a site that runs them in pilots.

    Parameters
    ----------
    nodes : int
        The most nodes that pilots have at one time.
    policy : BatchPolicy
        With rules for pilots.
    week : WeekClock
        As for `ArrayDiscipline`.
    """

    def __init__(self, nodes: int, policy: BatchPolicy, week: WeekClock = FROM_MONDAY) -> None:
        assert policy.pilots is not None, "a site without pilots"
        self._nodes, self._rules, self._margin_ms = nodes, policy.pilots, policy.margin_ms
        self.inside: Discipline = entry_of(policy.pilots.policy).make(nodes, policy.pilots.policy, week)
        self._places = self._places_for(self.inside)
        # The places whose pilots take jobs, as the bits of a number (allocation.py).
        self._open = 0
        self._places.serve(0, 0)
        self._free_since_ms: dict[int, int] = {}
        self._pilots: dict[int, Pilot] = {}
        self._asks = self._lost = self._not_before_ms = 0
        self._why_lost = ""
        self._wished = 0, -1  # nodes that the grid has looked for, and until when that counts
        self._now_ms = 0
        self._seen: BatchSeen | None = None

    def aside(self) -> Self:
        """Return what can be asked anything; asking changes nothing here."""
        twin = copy.copy(self)
        twin.inside = self.inside.aside()
        if isinstance(self._places, CountedPlaces):
            assert isinstance(twin.inside, ArrayDiscipline), "it counts no nodes"
            twin._places = self._places.aside(twin.inside)
        else:
            twin._places = twin._places_for(twin.inside)
        return twin

    def _places_for(self, inside: Discipline) -> CountedPlaces | ServesNodes:
        """Return what gives jobs their nodes: the discipline itself, if it chooses them."""
        if isinstance(inside, ArrayDiscipline):
            return CountedPlaces(self._nodes, inside)
        assert isinstance(inside, ServesNodes), "a discipline for which nodes cannot come and go"
        return inside

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def why_never(self, job: Job) -> str | None:
        """Return why a job could never start here, or None."""
        # A part of a job on several sites is reserved ahead of its start, for which there is the margin.
        if job.estimate_ms > self.longest_job_ms:
            longest, asked = span_text(self._job_ms), span_text(job.estimate_ms)
            return f"its pilots take jobs of up to {longest}, and the job may take {asked}; give it a lower limit"
        return self.inside.why_never(job)

    @property
    def longest_job_ms(self) -> int:
        """See `AsksBatchSystem`."""
        return self._job_ms + self._margin_ms // 2

    @property
    def _longest_ms(self) -> int:
        """The longest time for which a pilot is asked for."""
        longest_ms = None if self._seen is None else self._seen.longest_ms
        if longest_ms is None:
            return self._rules.length_ms
        return max(1, min(self._rules.length_ms, longest_ms - self._margin_ms))

    @property
    def _job_ms(self) -> int:
        """The longest that a job may take; what half of the time that the partition gives is enough for, if less."""
        stay_ms, most_ms = self._rules.stay_ms, self._longest_ms // 2
        return self._rules.job_ms if stay_ms <= most_ms else self._rules.job_ms * most_ms // stay_ms

    @property
    def _stay_ms(self) -> int:
        """So long a job may have its nodes."""
        return min(self._rules.stay_ms, self._longest_ms // 2)

    def submit(self, now_ms: int, job: Job) -> None:
        """Take in a job."""
        self.inside.submit(now_ms, job)

    def ended(self, now_ms: int, job_id: int) -> None:
        """Take out a running job."""
        self._places.ended(now_ms, job_id)

    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        """Expect a running job to end at another instant."""
        self.inside.expect_end(now_ms, job_id, end_ms)

    def withdraw(self, now_ms: int, job_id: int) -> None:
        """Take out a waiting job."""
        self.inside.withdraw(now_ms, job_id)

    # -- the batch system ---------------------------------------------------------------------------------------------

    @property
    def absent(self) -> int:
        """Places that are out of service."""
        return self._nodes - self._in_service.bit_count()

    @property
    def _in_service(self) -> int:
        """The places that take jobs or have some, as bits."""
        return self._open | self._places.in_use

    def overdue(self, now_ms: int) -> list[int]:
        """Return the jobs that run in pilots whose time is up: they took longer there than they do as a rule."""
        over = sum(pilot.bits for pilot in self._pilots.values() if self._is_up(pilot, now_ms))
        return [job_id for job_id in self._running_ids() if self._bits_of(job_id) & over] if over else []

    def _is_up(self, pilot: Pilot, now_ms: int) -> bool:
        """Return whether what still runs in a pilot has to save what it has done: half of the margin is for that."""
        return pilot.until_ms is not None and now_ms >= pilot.until_ms + self._margin_ms // 2

    def wished(self, now_ms: int, width: int) -> None:
        """Have nodes for a part of a job that only several sites together are wide enough for."""
        self._wished = min(width, self._nodes), now_ms + self._rules.idle_ms

    def coming(self, now_ms: int, length_ms: int) -> tuple[int, int | None]:
        """Return how many nodes nobody needs, for a job of this length, once all pilots are there, and when that is.

        Where the batch system says nothing of a pilot yet, what it says of its nodes counts.
        """
        awaited = self._awaited()
        if not awaited or self._seen is None or self._seen.problem or length_ms > self._job_ms:
            return 0, None
        spare = _nodes_of(awaited) + len(self._free_since_ms) - self._waiting_width()
        expected = [pilot.start_ms for pilot in awaited if pilot.start_ms is not None]
        unknown = _nodes_of(pilot for pilot in awaited if pilot.start_ms is None)
        start_ms: int | None = now_ms
        if unknown:
            start_ms = earliest_start(self._seen.free_from, now_ms, unknown, awaited[-1].length_ms)
        return (0, None) if start_ms is None or spare <= 0 else (spare, max([start_ms, *expected]))

    def note(self, now_ms: int) -> str:
        """Say how many nodes wait for the rest, and what that has cost."""
        there = self._in_service.bit_count()
        said = f"{there} of the {self._nodes} nodes of the site {_are(there)} there"
        if coming := _nodes_of(self._awaited()):
            said = f"{said}, {coming} {_are(coming)} asked for"
        return f"{said}; {self._idle_text(now_ms)}" if there else said

    def _awaited(self) -> list[Pilot]:
        """Return the pilots whose nodes are not there yet, in the order in which they were asked for."""
        return [pilot for pilot in self._pilots.values() if pilot.until_ms is None]

    def _waiting_width(self) -> int:
        return sum(job.width for job, _ in self.inside.waiting())

    def _idle_text(self, now_ms: int) -> str:
        node_ms = sum(now_ms - since_ms for since_ms in self._free_since_ms.values())
        return f"{len(self._free_since_ms)} of them free, which has cost {node_ms / 1000:.0f} node-seconds"

    def nodes_asked(self, now_ms: int) -> list[NodesAsked]:
        """Return the pilots that are to be asked for, and those that are there."""
        return [
            NodesAsked(
                Job(job_id=PILOT, width=len(pilot.places), estimate_ms=pilot.length_ms),
                pilot.number,
                pilot.until_ms is not None,
                pilot.places,
                bool(pilot.reason),
            )
            for pilot in self._pilots.values()
        ]

    def batch_seen(self, now_ms: int, seen: BatchSeen) -> list[tuple[int, str]]:
        """Take in how the batch system is, and what has become of the pilots; return the jobs that are too long now."""
        is_other = self._seen is None or self._seen.longest_ms != seen.longest_ms
        self._seen = msgspec.structs.replace(seen, asks=())
        nothing: list[Pilot] = []
        for ask in seen.asks:
            pilot = self._pilots.get(ask.ask)
            if pilot is None:
                continue
            if ask.state == "waiting":
                pilot.start_ms, pilot.reason = ask.start_ms, ask.reason
            elif ask.state != "ready":
                nothing.append(self._pilots.pop(pilot.number))
                self._why_lost = ask.reason
            elif pilot.until_ms is None:
                began_ms = now_ms if ask.start_ms is None else min(ask.start_ms, now_ms)
                pilot.start_ms, pilot.until_ms = began_ms, began_ms + pilot.length_ms
                pilot.last_start_ms = max(now_ms, pilot.until_ms - self._stay_ms)
        if nothing:
            self._put_off(now_ms, nothing)
        waiting = [job for job, _ in self.inside.waiting()] if is_other else []
        return [(job.job_id, why) for job in waiting if (why := self.why_never(job))]

    @property
    def idle(self) -> int:
        """Nodes in pilots that no job has."""
        return self.free

    def take_delays(self, now_ms: int) -> list[tuple[int, int | None]]:
        """Return nothing: in pilots the site itself starts jobs at once, or has them wait."""
        return []

    def _put_off(self, now_ms: int, nothing: list[Pilot]) -> None:
        """Ask for the next pilot later, as some came to nothing: those of one look mostly did for one reason."""
        lasted_ms = [0 if pilot.until_ms is None else now_ms - (pilot.start_ms or 0) for pilot in nothing]
        if max(lasted_ms) >= LONGEST_PAUSE_MS:
            self._lost = 0
        pause_ms = growing_pause_ms(FIRST_PAUSE_MS, self._lost)
        self._not_before_ms, self._lost = now_ms + pause_ms, self._lost + 1

    def run_pass(self, now_ms: int) -> list[Job]:
        """Start what may start in the pilots that are there, and settle which of them there should be."""
        self._now_ms = now_ms
        self._give_back(now_ms)
        self._serve(now_ms)
        started = self._places.run_pass(now_ms)
        self._note_free(now_ms)
        self._ask(now_ms)
        return started

    def _serve(self, now_ms: int) -> None:
        """Have the places in service whose pilots take jobs; of the others those in use leave when they are free."""
        wanted = self._wanted(now_ms)
        if wanted != self._open:
            self._open = wanted
            self._places.serve(now_ms, wanted)

    def _note_free(self, now_ms: int) -> None:
        """Note since when places in service have been free."""
        free = _places(self._open & ~self._places.in_use)
        self._free_since_ms = {place: self._free_since_ms.get(place, now_ms) for place in free}

    def _wanted(self, now_ms: int) -> int:
        """Return the places whose pilots take jobs, as bits."""
        return sum(pilot.bits for pilot in self._pilots.values() if pilot.takes_jobs(now_ms))

    def _running_ids(self) -> list[int]:
        return [running.job.job_id for running in self.inside.running()]

    def _bits_of(self, job_id: int) -> int:
        """Return the places of a running job as bits."""
        return bits_of(self._places.place_of(job_id)[0])

    def _give_back(self, now_ms: int) -> None:
        """Let go of pilots that take no more jobs and run none, and of idle ones that nothing waits for."""
        spare = self._wanted(now_ms).bit_count() - self._needed(now_ms)
        given_back = []
        for pilot in self._pilots.values():
            if not pilot.takes_jobs(now_ms):
                is_over = pilot.until_ms is not None and not pilot.bits & self._places.in_use
            else:
                idle_ms = self._idle_at(pilot)
                is_over = idle_ms is not None and idle_ms <= now_ms and len(pilot.places) <= spare
                spare -= len(pilot.places) * is_over
            if is_over:
                given_back.append(pilot.number)
                self._lost = 0
        for number in given_back:
            del self._pilots[number]

    def _idle_at(self, pilot: Pilot) -> int | None:
        """Return when a pilot has been idle for as long as it may; None if a job is in it, or its nodes are not there.

        Only a place that is free has an instant since when it is.
        """
        since_ms = [self._free_since_ms.get(place) for place in pilot.places]
        return None if None in since_ms else max(each or 0 for each in since_ms) + self._rules.idle_ms

    def _needed(self, now_ms: int) -> int:
        """Return how many nodes there should be: as many as jobs that run or wait would have, each for itself."""
        wished, until_ms = self._wished
        wanted = self._wanted(now_ms)
        running = sum((self._bits_of(job_id) & wanted).bit_count() for job_id in self._running_ids())
        least = max(self._rules.keep, wished if now_ms < until_ms else 0)
        return min(self._nodes, max(running + self._waiting_width(), least))

    def _ask(self, now_ms: int) -> None:
        """Ask for as many pilots as are missing, or ask no more for those that are not needed."""
        coming = self._awaited()
        missing = self._needed(now_ms) - self._wanted(now_ms).bit_count() - _nodes_of(coming)
        for pilot in reversed(coming):
            if missing + len(pilot.places) <= 0:
                missing += len(pilot.places)
                del self._pilots[pilot.number]
        if missing <= 0 or now_ms < self._not_before_ms:
            return
        taken = self._in_service | sum(pilot.bits for pilot in self._pilots.values())
        places = [place for place in range(self._nodes) if not taken >> place & 1][:missing]
        length_ms = self._length_ms()
        for first in range(0, len(places), self._rules.size):
            self._asks += 1
            of_pilot = tuple(places[first : first + self._rules.size])
            self._pilots[self._asks] = Pilot(self._asks, of_pilot, length_ms)

    def _length_ms(self) -> int:
        """Return for how long a pilot is asked: the work that waits over all nodes, and the longest job behind it."""
        work_ms = sum(job.width * job.estimate_ms for job, _ in self.inside.waiting()) // self._nodes
        return min(self._longest_ms, self._stay_ms + max(work_ms, self._stay_ms))

    # -- nodes --------------------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> tuple[int, int]:
        """Cores of the largest node and threads of a core that are given out one by one; 1 each for whole nodes."""
        return self._places.lanes

    @property
    def free(self) -> int:
        """Nodes that are there, and that no running job has."""
        return (self._in_service & ~self._held()).bit_count()

    def _held(self) -> int:
        """Return the places of all running jobs, as bits."""
        return functools.reduce(operator.or_, map(self._bits_of, self._running_ids()), 0)

    def place_of(self, job_id: int) -> tuple[NodeIntervals, NodeIntervals]:
        """Return the nodes and the hardware threads of a running job."""
        return self._places.place_of(job_id)

    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        """Return at which slowdown a job could start now on nodes that others use; None if there are none for it."""
        return None if job.estimate_ms > self._job_ms else self._places.sharing_offered(now_ms, job)

    # -- what is asked of it ------------------------------------------------------------------------------------------

    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return how many nodes a job of this length could have at once."""
        return 0 if length_ms > self._job_ms else self.inside.startable(now_ms, length_ms)

    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job submitted now would start, as far as can be seen; None: never, or nothing is seen."""
        if width > self._nodes or length_ms > self._job_ms:
            return None
        there = self._in_service.bit_count()
        if width <= there and all(job.width <= there for job, _ in self.inside.waiting()):
            return self.inside.earliest_start_ms(now_ms, width, length_ms)
        if self._seen is None:
            return None
        coming = [pilot.start_ms for pilot in self._awaited() if pilot.start_ms]
        start_ms = earliest_start(self._seen.free_from, now_ms, max(1, width - there), self._length_ms())
        return None if start_ms is None else max([start_ms, *coming])

    def next_wakeup_ms(self) -> int | None:
        """Return when a pilot takes no more jobs, has been idle for too long, or may be asked for again."""
        found = [self.inside.next_wakeup_ms(), self._wished[1], self._not_before_ms]
        for pilot in self._pilots.values():
            found += [self._idle_at(pilot), pilot.last_start_ms + 1]
            found.append(None if pilot.until_ms is None else pilot.until_ms + self._margin_ms // 2)
        # What was due at the last pass was seen to then.
        return min((instant for instant in found if instant is not None and instant > self._now_ms), default=None)

    def next_end_ms(self) -> int | None:
        """Return the first end by estimate of a running job."""
        return self.inside.next_end_ms()

    def running(self) -> Iterator[Running]:
        """Yield the running jobs, by their end by estimate."""
        return self.inside.running()

    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in the order of the queue, the first with its shadow time if its nodes are there."""
        for job, start_ms in self.inside.waiting():
            yield job, None if start_ms == NEVER_MS else start_ms

    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start, and why not earlier: for the others, or for pilots that are to come."""
        # What is promised holds for the nodes that are there, of which pilots may take some with them.
        said = msgspec.structs.replace(self.inside.explain(now_ms, job_id), is_bound=False)
        width = next(job.width for job, _ in self.inside.waiting() if job.job_id == job_id)
        lacks = width > self._in_service.bit_count()
        if lacks:
            said = SiteReason(ahead=said.ahead, reason=f"it needs {nodes_text(width)} in pilots")
        coming = self._awaited()
        reasons = [said.reason]
        if lacks or coming:
            reasons.append(self.note(now_ms))
        if self._seen is not None and self._seen.problem:
            reasons.append(self._seen.problem)
        elif coming:
            reasons.append(f"the last: {coming[-1].reason or 'the batch system is being asked for it'}")
        if now_ms < self._not_before_ms:
            again = when_text(self._not_before_ms, now_ms)
            what = "a pilot" if self._lost == 1 else f"{self._lost} times in a row a pilot"
            reasons.append(f"{what} came to nothing: {self._why_lost}; another is asked for {again}")
        starts = [pilot.start_ms for pilot in coming]
        if lacks and starts and None not in starts:
            said = msgspec.structs.replace(said, start_ms=max(start for start in starts if start is not None))
        return msgspec.structs.replace(said, reason="; ".join(reasons))

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def state_type(self) -> Any:
        """The type of the state, which has that of the discipline inside."""
        return with_parts(PilotDisciplineState, self.inside)

    def state(self) -> PilotDisciplineState[Any]:
        """Return what is known of the jobs, the pilots and the batch system."""
        return PilotDisciplineState(
            queue=self.inside.state(),
            pilots=list(self._pilots.values()),
            in_service=intervals_of(self._in_service),
            nodes_of=self._places.nodes_of() if isinstance(self._places, CountedPlaces) else {},
            free_since_ms=self._free_since_ms,
            asks=self._asks,
            lost=self._lost,
            not_before_ms=self._not_before_ms,
            why_lost=self._why_lost,
            wished=self._wished,
            now_ms=self._now_ms,
            seen=self._seen,
        )

    def restore(self, state: PilotDisciplineState[Any]) -> None:
        """Take in what was known."""
        self.inside.restore(state.queue)
        self._pilots = {pilot.number: pilot for pilot in state.pilots}
        self._free_since_ms, self._seen = state.free_since_ms, state.seen
        self._asks, self._lost, self._not_before_ms = state.asks, state.lost, state.not_before_ms
        self._why_lost, self._wished, self._now_ms = state.why_lost, state.wished, state.now_ms
        self._open = self._wanted(self._now_ms)
        if isinstance(self._places, CountedPlaces):
            self._places.restore(self._open, state.nodes_of)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        self.inside.check_invariants()
        if isinstance(self._places, CountedPlaces):
            self._places.check_invariants()
        free = set(_places(self._open & ~self._places.in_use))
        assert free == set(self._free_since_ms), "it is not known since when a node is free"
        assert not self._held() & ~self._places.in_use, "a job runs on a node that is not in use"
        places = [place for pilot in self._pilots.values() for place in pilot.places]
        assert len(places) == len(set(places)) <= self._nodes, "two pilots have one place"


def _nodes_of(pilots: Iterable[Pilot]) -> int:
    return sum(len(pilot.places) for pilot in pilots)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _places(bits: int) -> list[int]:
    """Return places that are the bits of a number."""
    return [place for low, high in intervals_of(bits) for place in range(low, high)]
