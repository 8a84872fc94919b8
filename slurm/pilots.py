"""A site that requests nodes from its batch system ahead of its jobs, in pilots (docs/slurm.md, "Pilots").

A pilot is a group of nodes that a batch system lends for a limited time. The site has a fixed number of nodes. Each
node is out of service until a pilot provides it, and again once that pilot accepts no more jobs. A discipline schedules
jobs on the nodes in service as if the site owned them; it treats the nodes of a pilot near its end as drained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Self, TypeVar

import msgspec
from typing_extensions import override

from gridweave.site.allocation import intervals_of
from gridweave.site.disciplines.base import ExpectedRun, SharedOffer, run_from
from gridweave.site.disciplines.dictionary import entry_of
from gridweave.site.explain import SiteReason, nodes_text
from gridweave.site.job import Job, NodeIntervals
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.messages import BatchSnapshot
from gridweave.site.nodes.source import PILOT, NodeRequest, NodeSource
from gridweave.site.state import CoreState, with_parts
from gridweave.site.times import LONGEST_PAUSE_MS, growing_pause_ms, span_text, when_text
from gridweave.slurm.outlook import earliest_start
from gridweave.slurm.policy import BatchPolicy

FIRST_PAUSE_MS = 10_000
"""Pause before the next request after a pilot has failed [ms]; doubles with each consecutive failure.

The count restarts once a pilot has lasted as long as the longest pause, or was given back when idle or at its end.
"""

D = TypeVar("D")


class Pilot(msgspec.Struct):
    """A request for nodes ahead of jobs, and the nodes themselves once they are allocated."""

    number: int  # unique among all pilots that the site ever requests
    node_indices: tuple[int, ...]  # the site's nodes that it provides
    length_ms: int
    until_ms: int | None = None  # when all its jobs must have ended; None if its nodes are not allocated yet
    last_start_ms: int = 0  # the last instant at which a job may start in it
    start_ms: int | None = None  # when its nodes are expected to be allocated, or were allocated
    reason: str = ""  # why its nodes are not allocated yet

    @property
    def bits(self) -> int:
        """The pilot's nodes as a bit set."""
        return sum(1 << place for place in self.node_indices)

    def takes_jobs(self, now_ms: int) -> bool:
        """Whether a job may start in the pilot."""
        return self.until_ms is not None and now_ms <= self.last_start_ms


class PilotDisciplineState(CoreState, Generic[D], frozen=True, kw_only=True, tag="PilotDiscipline 1"):
    """The pilots, the nodes in service, and the state of the discipline that schedules jobs on these nodes.

    ``nodes_of`` has each job's nodes if the discipline does not choose them; otherwise it is empty.
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
    seen: BatchSnapshot | None


class Pilots(NodeSource):
    """The node source of a site that requests nodes from a batch system ahead of its jobs.

    If a job is running on a node whose pilot stops accepting jobs, the node stays in service until that job ends. A
    discipline that only counts nodes never evicts such a job, because no other job could use the node.

    Parameters
    ----------
    nodes : int
        Maximum number of nodes that pilots have at one time.
    policy : BatchPolicy
        Must have rules for pilots.
    week : WeekClock
        The local time of the week.
    """

    is_own = False

    def __init__(self, nodes: int, policy: BatchPolicy, week: WeekClock = FROM_MONDAY) -> None:
        assert policy.pilots is not None, "a site without pilots"
        inside = policy.pilots.policy
        entry = entry_of(inside)
        super().__init__(nodes, entry.make(nodes, inside, week), entry.traits_of(inside))
        self._rules, self._margin_ms = policy.pilots, policy.margin_ms
        # The nodes whose pilots accept jobs, as a bit set (allocation.py).
        self._open = 0
        self.pool.take(nodes)
        if self._is_counted:
            self.discipline.resize(-nodes)
        else:
            self.discipline.serve(0, 0)
        self._free_since_ms: dict[int, int] = {}
        self._pilots: dict[int, Pilot] = {}
        self._asks = self._lost = self._not_before_ms = 0
        self._why_lost = ""
        self._wished = 0, -1  # number of nodes that the grid has asked for, and until when to keep them
        self._now_ms = 0
        self._snapshot: BatchSnapshot | None = None

    @override
    def copy(self) -> Self:
        new = super().copy()
        new._pilots = {number: msgspec.structs.replace(pilot) for number, pilot in self._pilots.items()}
        new._free_since_ms = self._free_since_ms.copy()
        return new

    # -- nodes --------------------------------------------------------------------------------------------------------

    @override
    def end(self, job_id: int) -> None:
        if not self._is_counted:
            super().end(job_id)
            return
        nodes = self.nodes_of.pop(job_id)
        self.pool.give_back(nodes & self._open)
        if gone := nodes & ~self._open:
            self.discipline.resize(-gone.bit_count())

    def _serve(self, now_ms: int) -> None:
        """Put nodes in service if their pilots accept jobs; remove other nodes, once no job is using them."""
        accepting = self._accepting(now_ms)
        if accepting == self._open:
            return
        coming, leaving, self._open = accepting & ~self._open, self._open & ~accepting, accepting
        if not self._is_counted:
            self.discipline.serve(now_ms, accepting)
            return
        unused = leaving & ~self._in_use
        self.pool.give_back(coming)
        self.pool.occupy(unused)
        self.discipline.resize(coming.bit_count() - unused.bit_count())
        for job_id, nodes in self.nodes_of.items():
            if nodes & leaving:
                self.discipline.protect(job_id)

    @property
    def _in_use(self) -> int:
        """The nodes on which jobs are running or about to start, as a bit set."""
        return self.held() | self.discipline.in_use

    @property
    def _in_service(self) -> int:
        """The nodes that accept jobs or are still running jobs, as a bit set."""
        return self._open | self._in_use

    @property
    @override
    def free(self) -> int:
        return (self._in_service & ~self.held()).bit_count()

    @property
    @override
    def absent(self) -> int:
        return self.nodes - self._in_service.bit_count()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    @override
    def why_never(self, job: Job) -> str | None:
        if job.chunk:
            return "the site requests whole nodes in pilots, and the job asks for parts of nodes or for labels"
        # `longest_job_ms` includes half the margin, as a fragment of a multi-site job is reserved ahead of its start.
        if job.estimate_ms > self.longest_job_ms:
            longest, asked = span_text(self._job_ms), span_text(job.estimate_ms)
            return f"its pilots accept jobs of up to {longest}, but the job may take {asked}; give it a lower limit"
        return self.discipline.why_never(job)

    @property
    @override
    def longest_job_ms(self) -> int:
        return self._job_ms + self._margin_ms // 2

    @property
    def _longest_ms(self) -> int:
        """Maximum time limit of a new pilot [ms]."""
        longest_ms = None if self._snapshot is None else self._snapshot.longest_ms
        if longest_ms is None:
            return self._rules.length_ms
        return max(1, min(self._rules.length_ms, longest_ms - self._margin_ms))

    @property
    def _job_ms(self) -> int:
        """Maximum estimate of a job [ms]; scaled down if a pilot's time limit is below twice `stay_ms`."""
        stay_ms, most_ms = self._rules.stay_ms, self._longest_ms // 2
        return self._rules.job_ms if stay_ms <= most_ms else self._rules.job_ms * most_ms // stay_ms

    @property
    def _stay_ms(self) -> int:
        """The longest time that a job usually has its nodes [ms], at most half of a pilot's time limit."""
        return min(self._rules.stay_ms, self._longest_ms // 2)

    # -- the batch system ---------------------------------------------------------------------------------------------

    @override
    def overdue(self, now_ms: int) -> list[int]:
        """Return the jobs that took longer than usual and are still running in pilots whose end has passed."""
        over = sum(pilot.bits for pilot in self._pilots.values() if self._is_up(pilot, now_ms))
        if not over:
            return []
        return [run.job.job_id for run in self.discipline.running() if self.nodes_of[run.job.job_id] & over]

    def _is_up(self, pilot: Pilot, now_ms: int) -> bool:
        """Whether jobs in a pilot must save their work now, while half of the margin remains."""
        return pilot.until_ms is not None and now_ms >= pilot.until_ms + self._margin_ms // 2

    @override
    def request_nodes(self, now_ms: int, width: int) -> None:
        """Request up to `width` nodes for a multi-site job's fragment; keep them for `idle_ms` if no fragment comes."""
        self._wished = min(width, self.nodes), now_ms + self._rules.idle_ms

    @override
    def coming(self, now_ms: int, length_ms: int) -> tuple[int, int | None]:
        awaited = self._awaited()
        if not awaited or self._snapshot is None or self._snapshot.problem or length_ms > self._job_ms:
            return 0, None
        spare = _nodes_of(awaited) + len(self._free_since_ms) - self._waiting_width()
        expected = [pilot.start_ms for pilot in awaited if pilot.start_ms is not None]
        unknown = _nodes_of(pilot for pilot in awaited if pilot.start_ms is None)
        start_ms: int | None = now_ms
        if unknown:
            start_ms = earliest_start(self._snapshot.free_from, now_ms, unknown, awaited[-1].length_ms)
        return (0, None) if start_ms is None or spare <= 0 else (spare, max([start_ms, *expected]))

    @override
    def note(self, now_ms: int) -> str:
        """Describe how many nodes are in service and requested, and how many node-seconds the free nodes were idle."""
        there = self._in_service.bit_count()
        text = f"{there} of the {self.nodes} nodes of the site {_are(there)} in service"
        if coming := _nodes_of(self._awaited()):
            text = f"{text}, {coming} {_are(coming)} requested"
        return f"{text}; {self._idle_text(now_ms)}" if there else text

    def _awaited(self) -> list[Pilot]:
        """Return the pilots whose nodes are not allocated yet, in the order of their requests."""
        return [pilot for pilot in self._pilots.values() if pilot.until_ms is None]

    def _waiting_width(self) -> int:
        return sum(job.width for job, _ in self.discipline.waiting())

    def _idle_text(self, now_ms: int) -> str:
        node_ms = sum(now_ms - since_ms for since_ms in self._free_since_ms.values())
        return f"{len(self._free_since_ms)} of them free, which has cost {node_ms / 1000:.0f} node-seconds"

    @override
    def requests(self, now_ms: int) -> list[NodeRequest]:
        """Return a request for each pilot, whether or not its nodes are allocated yet."""
        return [
            NodeRequest(
                Job(job_id=PILOT, width=len(pilot.node_indices), estimate_ms=pilot.length_ms),
                pilot.number,
                pilot.until_ms is not None,
                pilot.node_indices,
                bool(pilot.reason),
            )
            for pilot in self._pilots.values()
        ]

    @override
    def seen(self, now_ms: int, view: BatchSnapshot) -> list[tuple[int, str]]:
        """Apply the snapshot's reports on pilots; return the waiting jobs that can never run any more, and why."""
        is_other = self._snapshot is None or self._snapshot.longest_ms != view.longest_ms
        self._snapshot = msgspec.structs.replace(view, asks=())
        nothing: list[Pilot] = []
        for ask in view.asks:
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
        waiting = [job for job, _ in self.discipline.waiting()] if is_other else []
        return [(job.job_id, why) for job in waiting if (why := self.why_never(job))]

    def _put_off(self, now_ms: int, nothing: list[Pilot]) -> None:
        """Delay the next request after pilots failed; one report's failures count once, as they often share a cause."""
        lasted_ms = [0 if pilot.until_ms is None else now_ms - (pilot.start_ms or 0) for pilot in nothing]
        if max(lasted_ms) >= LONGEST_PAUSE_MS:
            self._lost = 0
        pause_ms = growing_pause_ms(FIRST_PAUSE_MS, self._lost)
        self._not_before_ms, self._lost = now_ms + pause_ms, self._lost + 1

    @override
    def before_pass(self, now_ms: int) -> None:
        """Give back idle pilots, and update which nodes are in service."""
        self._now_ms = now_ms
        self._give_back(now_ms)
        self._serve(now_ms)

    @override
    def after_pass(self, now_ms: int) -> None:
        """Request missing pilots, and withdraw requests that are no longer needed."""
        self._note_free(now_ms)
        self._ask(now_ms)

    def _note_free(self, now_ms: int) -> None:
        """Record when each free node in service became free."""
        free = _places(self._open & ~self._in_use)
        self._free_since_ms = {place: self._free_since_ms.get(place, now_ms) for place in free}

    def _accepting(self, now_ms: int) -> int:
        """Return the nodes whose pilots accept jobs, as a bit set."""
        return sum(pilot.bits for pilot in self._pilots.values() if pilot.takes_jobs(now_ms))

    def _give_back(self, now_ms: int) -> None:
        """Give back pilots that no longer accept or run jobs, and idle pilots that no job needs."""
        spare = self._accepting(now_ms).bit_count() - self._needed(now_ms)
        given_back, in_use = [], self._in_use
        for pilot in self._pilots.values():
            if not pilot.takes_jobs(now_ms):
                is_over = pilot.until_ms is not None and not pilot.bits & in_use
            else:
                idle_ms = self._idle_at(pilot)
                is_over = idle_ms is not None and idle_ms <= now_ms and len(pilot.node_indices) <= spare
                spare -= len(pilot.node_indices) * is_over
            if is_over:
                given_back.append(pilot.number)
                self._lost = 0
        for number in given_back:
            del self._pilots[number]

    def _idle_at(self, pilot: Pilot) -> int | None:
        """Return when a pilot reaches its idle limit; None if the pilot is running a job or has no nodes yet.

        `_free_since_ms` has entries only for free nodes.
        """
        since_ms = [self._free_since_ms.get(place) for place in pilot.node_indices]
        return None if None in since_ms else max(instant_ms or 0 for instant_ms in since_ms) + self._rules.idle_ms

    def _needed(self, now_ms: int) -> int:
        """Return how many nodes the site needs now, assuming that jobs do not share nodes."""
        wished, until_ms = self._wished
        accepting = self._accepting(now_ms)
        running = sum((nodes & accepting).bit_count() for nodes in self.nodes_of.values())
        least = max(self._rules.keep, wished if now_ms < until_ms else 0)
        return min(self.nodes, max(running + self._waiting_width(), least))

    def _ask(self, now_ms: int) -> None:
        """Request missing pilots, or withdraw requests that are no longer needed, the latest first."""
        coming = self._awaited()
        missing = self._needed(now_ms) - self._accepting(now_ms).bit_count() - _nodes_of(coming)
        for pilot in reversed(coming):
            if missing + len(pilot.node_indices) <= 0:
                missing += len(pilot.node_indices)
                del self._pilots[pilot.number]
        if missing <= 0 or now_ms < self._not_before_ms:
            return
        taken = self._in_service | sum(pilot.bits for pilot in self._pilots.values())
        indices = _places((1 << self.nodes) - 1 & ~taken)[:missing]
        length_ms = self._length_ms()
        for first in range(0, len(indices), self._rules.size):
            self._asks += 1
            of_pilot = tuple(indices[first : first + self._rules.size])
            self._pilots[self._asks] = Pilot(self._asks, of_pilot, length_ms)

    def _length_ms(self) -> int:
        """Return the time limit for new pilots [ms], enough for the waiting work on all nodes plus one more job."""
        work_ms = sum(job.width * job.estimate_ms for job, _ in self.discipline.waiting()) // self.nodes
        return min(self._longest_ms, self._stay_ms + max(work_ms, self._stay_ms))

    # -- queries ------------------------------------------------------------------------------------------------------

    @override
    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        return None if job.estimate_ms > self._job_ms else self.discipline.sharing_offered(now_ms, job)

    @override
    def startable(self, now_ms: int, length_ms: int) -> int:
        return 0 if length_ms > self._job_ms else self.discipline.startable(now_ms, length_ms)

    @override
    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        if width > self.nodes or length_ms > self._job_ms:
            return None
        there = self._in_service.bit_count()
        if width <= there and all(job.width <= there for job, _ in self.discipline.waiting()):
            return self.discipline.earliest_start_ms(now_ms, width, length_ms)
        if self._snapshot is None:
            return None
        coming = [pilot.start_ms for pilot in self._awaited() if pilot.start_ms]
        start_ms = earliest_start(self._snapshot.free_from, now_ms, max(1, width - there), self._length_ms())
        return None if start_ms is None else max([start_ms, *coming])

    @override
    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        if self.why_never(job) is not None:
            return None
        return run_from(self.earliest_start_ms(now_ms, job.width, job.estimate_ms), now_ms, job)

    @override
    def next_wakeup_ms(self) -> int | None:
        """Return the next time at which pilots must be updated or the discipline must be called."""
        instants = [self.discipline.next_wakeup_ms(), self._wished[1], self._not_before_ms]
        for pilot in self._pilots.values():
            instants += [self._idle_at(pilot), pilot.last_start_ms + 1]
            instants.append(None if pilot.until_ms is None else pilot.until_ms + self._margin_ms // 2)
        # The last pass has handled everything that was due then.
        return min((instant for instant in instants if instant is not None and instant > self._now_ms), default=None)

    @override
    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start, and whether it is waiting for other jobs or for pilots."""
        # No promised start is binding, because pilots and their nodes may be gone by then.
        answer = msgspec.structs.replace(self.discipline.explain(now_ms, job_id), is_bound=False)
        width = next(job.width for job, _ in self.discipline.waiting() if job.job_id == job_id)
        lacks = width > self._in_service.bit_count()
        if lacks:
            answer = SiteReason(ahead=answer.ahead, reason=f"it needs {nodes_text(width)} in pilots")
        coming = self._awaited()
        reasons = [answer.reason]
        if lacks or coming:
            reasons.append(self.note(now_ms))
        if self._snapshot is not None and self._snapshot.problem:
            reasons.append(self._snapshot.problem)
        elif coming:
            reasons.append(f"the last: {coming[-1].reason or 'it is being requested from the batch system'}")
        if now_ms < self._not_before_ms:
            again = when_text(self._not_before_ms, now_ms)
            what = "a pilot" if self._lost == 1 else f"{self._lost} times in a row a pilot"
            reasons.append(f"{what} failed: {self._why_lost}; another is requested {again}")
        starts = [pilot.start_ms for pilot in coming]
        if lacks and starts and None not in starts:
            answer = msgspec.structs.replace(answer, start_ms=max(start for start in starts if start is not None))
        return msgspec.structs.replace(answer, reason="; ".join(reasons))

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    @override
    def state_type(self) -> Any:
        return with_parts(PilotDisciplineState, self.discipline)

    @override
    def state(self) -> PilotDisciplineState[Any]:
        return PilotDisciplineState(
            queue=self.discipline.state(),
            pilots=list(self._pilots.values()),
            in_service=intervals_of(self._in_service),
            nodes_of=self._intervals() if self._is_counted else {},
            free_since_ms=self._free_since_ms,
            asks=self._asks,
            lost=self._lost,
            not_before_ms=self._not_before_ms,
            why_lost=self._why_lost,
            wished=self._wished,
            now_ms=self._now_ms,
            seen=self._snapshot,
        )

    @override
    def restore(self, state: PilotDisciplineState[Any]) -> None:
        self.discipline.restore(state.queue)
        self._pilots = {pilot.number: pilot for pilot in state.pilots}
        self._free_since_ms, self._snapshot = state.free_since_ms, state.seen
        self._asks, self._lost, self._not_before_ms = state.asks, state.lost, state.not_before_ms
        self._why_lost, self._wished, self._now_ms = state.why_lost, state.wished, state.now_ms
        self._open = self._accepting(self._now_ms)
        if self._is_counted:
            self.pool.give_back(self._open & ~self.held())

    def _intervals(self) -> dict[int, NodeIntervals]:
        return {job_id: intervals_of(nodes) for job_id, nodes in self.nodes_of.items()}

    @override
    def check_invariants(self) -> None:
        super().check_invariants()
        if self._is_counted:
            assert self.pool.free == (self._open & ~self._in_use).bit_count(), "free nodes and those in service differ"
        free = set(_places(self._open & ~self._in_use))
        assert free == set(self._free_since_ms), "the time since which a node is free is unknown"
        indices = [place for pilot in self._pilots.values() for place in pilot.node_indices]
        assert len(indices) == len(set(indices)) <= self.nodes, "two pilots have the same node"


def _nodes_of(pilots: Iterable[Pilot]) -> int:
    return sum(len(pilot.node_indices) for pilot in pilots)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _places(bits: int) -> list[int]:
    """Return the node numbers of a bit set, ascending."""
    return [place for low, high in intervals_of(bits) for place in range(low, high)]
