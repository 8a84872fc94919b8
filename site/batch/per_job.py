"""A site whose batch system decides when jobs start: it is asked for nodes for each, and the job starts on them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Self

import msgspec
from typing_extensions import override

from gridweave.site.batch.outlook import Steps, earliest_start, free_throughout, occupied
from gridweave.site.batch.policy import BatchPolicy
from gridweave.site.disciplines.base import NOTHING, Decisions, Discipline, ExpectedRun, Start, Traits, run_from
from gridweave.site.explain import SiteReason, nodes_text
from gridweave.site.job import Job, Running
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.messages import BatchSeen
from gridweave.site.nodes.source import NodeRequest, NodeSource
from gridweave.site.state import CoreState
from gridweave.site.times import growing_pause_ms, span_text, when_text

FIRST_PAUSE_MS = 10_000
"""When nodes were lost before their job began, they are asked for again after so long; twice as long each time."""

LATER_MS = 60_000
"""A start that is expected so much later than was told last is told again: what batch systems expect changes often."""

MOST_LOST = 10
"""A job whose nodes were lost so often before it began is refused: after some forty minutes (a guess)."""


class AskedJob(msgspec.Struct):
    """A job of the site, and what is known of the nodes that were asked for it."""

    job: Job
    ask: int  # its number, which no other of the site ever has
    lost: int = 0  # how often nodes were lost before it began
    why_lost: str = ""  # the last time
    is_ready: bool = False
    start_ms: int | None = None  # when nodes are expected; when it has started
    end_ms: int | None = None  # when it ends by estimate, once it has started
    not_before_ms: int = 0
    reason: str = ""
    is_put_off: bool = False  # whether the batch system has it wait
    was_told: bool = False  # that it waits
    told_ms: int | None = None  # the latest start that was told with that
    is_counted: bool = False  # whether what is seen of the batch system counts its nodes as taken

    def lose(self, now_ms: int, reason: str) -> None:
        """Take note that its nodes are lost; it is asked for again later."""
        self.not_before_ms = now_ms + growing_pause_ms(FIRST_PAUSE_MS, self.lost)
        self.lost, self.why_lost, self.start_ms, self.reason = self.lost + 1, reason, None, ""
        self.is_put_off = True

    def delay(self, start_ms: int | None) -> bool:
        """Take note when it is expected to start, now that it waits; return whether that is later than was told."""
        is_later = start_ms is not None and (self.told_ms is None or start_ms > self.told_ms + LATER_MS)
        is_news = is_later or not self.was_told
        if is_news:
            self.was_told, self.told_ms = True, start_ms
        return is_news

    @property
    def loss(self) -> str:
        """How often its nodes were lost, and why; empty if they never were."""
        if self.lost > 1:
            return f"its nodes were lost {self.lost} times before it began, the last time: {self.why_lost}"
        return f"its nodes were lost before it began: {self.why_lost}" if self.lost else ""


class BatchDisciplineState(CoreState, frozen=True, kw_only=True, tag="BatchDiscipline 1"):
    """The jobs in the order in which they came, how often nodes were asked for, and what was seen last."""

    jobs: list[AskedJob]
    asks: int
    seen: BatchSeen | None


class AskedJobs(Discipline):
    """Starts each job when the batch system has given its nodes, which are asked for in the order of submission.

    Parameters
    ----------
    nodes : int
        The most nodes that jobs have at one time.
    policy : BatchPolicy
    week : WeekClock
        Counts for nothing here.
    """

    state_type: Any = BatchDisciplineState

    def __init__(self, nodes: int, policy: BatchPolicy, week: WeekClock = FROM_MONDAY) -> None:
        super().__init__(nodes)
        self._policy = policy
        self._jobs: dict[int, AskedJob] = {}
        self._seen: BatchSeen | None = None
        self._asks = 0

    @override
    def copy(self) -> Self:
        twin = copy.copy(self)
        twin._jobs = {job_id: msgspec.structs.replace(each) for job_id, each in self._jobs.items()}
        return twin

    # -- jobs ---------------------------------------------------------------------------------------------------------

    @override
    def why_never(self, job: Job) -> str | None:
        if job.width > self.nodes:
            return f"the site has {nodes_text(self.nodes)}"
        longest_ms = None if self._seen is None else self._seen.longest_ms
        if longest_ms is not None and job.estimate_ms > longest_ms:
            longest, asked = span_text(longest_ms), span_text(job.estimate_ms)
            given = f"its batch system gives nodes for at most {longest}"
            return f"{given}, and the job may take {asked}; give it a lower limit"
        return None

    @override
    def submit(self, now_ms: int, job: Job) -> None:
        self._jobs[job.job_id] = AskedJob(job, self._next_ask())

    def _next_ask(self) -> int:
        self._asks += 1
        return self._asks

    @override
    def ended(self, now_ms: int, job_id: int) -> None:
        del self._jobs[job_id]

    @override
    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        self._jobs[job_id].end_ms = end_ms

    @override
    def withdraw(self, now_ms: int, job_id: int) -> None:
        del self._jobs[job_id]

    # -- the batch system ---------------------------------------------------------------------------------------------

    @property
    def longest_job_ms(self) -> int | None:
        """The longest time for which the batch system gives nodes; None: any, as far as is known."""
        return None if self._seen is None else self._seen.longest_ms

    def requests(self, now_ms: int) -> list[NodeRequest]:
        """Return what is to be asked for or kept: for the jobs that have started, and for the first that wait."""
        found = [NodeRequest(each.job, each.ask, True) for each in self._started()]
        room = self._room
        # Where the cluster is larger than what jobs of the site may have, no more is asked for than they may have.
        is_capped = self._seen is not None and self._seen.nodes > self.nodes
        for each in self._in_order()[: self._policy.most_asked]:
            if is_capped and each.job.width > room:
                break
            room -= each.job.width
            if each.not_before_ms <= now_ms:
                found.append(NodeRequest(each.job, each.ask, False, was_seen=bool(each.reason)))
        return found

    def seen(self, now_ms: int, view: BatchSeen) -> list[tuple[int, str]]:
        """Take in how the batch system is; return the waiting jobs that it will not have, and why."""
        is_other = self._seen is None or self._seen.longest_ms != view.longest_ms
        self._seen = msgspec.structs.replace(view, asks=())
        refused = {}
        if is_other:
            # Some were taken before it was known how long nodes are given, or when that was longer.
            refused = {each.job.job_id: why for each in self._in_order() if (why := self.why_never(each.job))}
        for ask in view.asks:
            each = self._jobs.get(ask.job_id)
            if each is None or each.end_ms is not None or each.ask != ask.ask:
                continue
            each.is_ready, each.start_ms, each.reason = ask.state == "ready", ask.start_ms, ask.reason
            each.is_put_off = ask.is_put_off
            # What runs there, or is to start at a known instant, is among what takes nodes.
            each.is_counted = ask.start_ms is not None
            if ask.state in ("refused", "cancelled"):
                refused[ask.job_id] = ask.reason
            elif ask.state == "over":
                each.lose(now_ms, ask.reason)
                each.ask = self._next_ask()
                if each.lost >= MOST_LOST:
                    refused[ask.job_id] = each.loss
        return list(refused.items())

    @property
    def idle(self) -> int:
        """Nodes that nobody has; none before the batch system is seen, nor while it does not answer."""
        if self._seen is None or self._seen.problem or not self._seen.free_from:
            return 0
        return min(self._room, self._seen.free_from[0][1])

    def delays(self, now_ms: int) -> list[tuple[int, int | None]]:
        """Return the jobs that the batch system has wait, or that it is not asked for now, and when they start."""
        is_away = self._seen is None or bool(self._seen.problem)
        asked = {found.job.job_id for found in self.requests(now_ms)}
        waits = [each for each in self._in_order() if is_away or each.is_put_off or each.job.job_id not in asked]
        starts = [(each, each.start_ms if each.is_put_off and not is_away else None) for each in waits]
        return [(each.job.job_id, start_ms) for each, start_ms in starts if not each.is_ready and each.delay(start_ms)]

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        """Start the jobs whose nodes are there, in the order of the queue."""
        free, starts = self._room, []
        for each in self._in_order():
            if each.is_ready and each.job.width <= free:
                free -= each.job.width
                each.start_ms, each.end_ms, each.reason = now_ms, now_ms + each.job.estimate_ms, ""
                starts.append(Start(each.job))
        return Decisions(starts) if starts else NOTHING

    # -- what is asked of it ------------------------------------------------------------------------------------------

    @override
    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return how many nodes a job of this length could have at once, as far as can be seen."""
        if self._seen is None or self._seen.problem or self._in_order():
            return 0
        return min(self.nodes, max(0, free_throughout(self._free_steps(now_ms), now_ms, now_ms + length_ms)))

    @override
    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job would start, as far as can be seen; None: never, or nothing is seen."""
        if width > self.nodes or self._seen is None:
            return None
        start_ms = earliest_start(self._free_steps(now_ms), now_ms, width, length_ms)
        expected = [each.start_ms for each in self._in_order() if each.start_ms is not None]
        # Behind those of the site that wait; a batch system that backfills may be quicker.
        return None if start_ms is None else max([start_ms, *expected])

    def _free_steps(self, now_ms: int) -> Steps:
        """Return how many nodes are free from now on, without those promised to jobs of the site since the last look.

        These are the jobs that have started since then, and those that wait without an expected start, each as soon as
        it fits behind those before it.
        """
        assert self._seen is not None, "asked before anything was seen"
        steps = self._seen.free_from
        if not steps:
            return steps
        looked_ms = steps[0][0]
        for each in self._started():
            if not each.is_counted and (each.start_ms or 0) >= looked_ms and (each.end_ms or 0) > now_ms:
                steps = occupied(steps, looked_ms, each.end_ms or now_ms, each.job.width)
        for each in self._in_order():
            width, length_ms = each.job.width, each.job.estimate_ms
            start_ms = None if each.is_counted else earliest_start(steps, now_ms, width, length_ms)
            if start_ms is not None:
                steps = occupied(steps, max(start_ms, looked_ms), start_ms + length_ms, width)
        return steps

    @override
    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        if self.why_never(job) is not None:
            return None
        return run_from(self.earliest_start_ms(now_ms, job.width, job.estimate_ms), now_ms, job)

    @override
    def next_end_ms(self) -> int | None:
        return min((each.end_ms for each in self._jobs.values() if each.end_ms is not None), default=None)

    @override
    def running(self) -> Iterator[Running]:
        found = [
            (each.end_ms, job_id, each.start_ms or 0) for job_id, each in self._jobs.items() if each.end_ms is not None
        ]
        for end_ms, job_id, start_ms in sorted(found):
            yield Running(self._jobs[job_id].job, start_ms, end_ms)

    @override
    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in the order in which nodes are asked for; no start is promised."""
        for each in self._in_order():
            yield each.job, None

    @override
    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job is expected to start, and why not earlier, as the batch system sees it."""
        each = self._jobs[job_id]
        ahead = [other.job.job_id for other in self._in_order()].index(job_id)
        problem = "" if self._seen is None else self._seen.problem
        asked = any(found.job.job_id == job_id for found in self.requests(now_ms))
        if self._seen is None or problem:
            reason = problem or "the batch system has not been looked at yet"
        elif each.not_before_ms > now_ms:
            reason = f"{each.loss}; they are asked for again {when_text(each.not_before_ms, now_ms)}"
        elif not asked:
            reason = "nodes are asked for on behalf of those ahead of it, and of no more at one time"
        else:
            reason = each.reason or "the batch system is being asked for its nodes"
            reason += f"; {each.loss}" if each.lost else ""
        # What was expected a moment ago, and has not come yet, is expected now.
        start_ms = None if each.start_ms is None else max(each.start_ms, now_ms)
        return SiteReason(start_ms=start_ms, ahead=ahead, reason=reason)

    def _started(self) -> list[AskedJob]:
        return [each for each in self._jobs.values() if each.end_ms is not None]

    @property
    def _room(self) -> int:
        """Nodes that jobs of the site may have, and none has."""
        return self.nodes - sum(each.job.width for each in self._started())

    def _in_order(self) -> list[AskedJob]:
        """Return the waiting jobs, those that go behind all others last."""
        return sorted((each for each in self._jobs.values() if each.end_ms is None), key=lambda each: each.job.behind)

    # -- state --------------------------------------------------------------------------------------------------------

    @override
    def state(self) -> BatchDisciplineState:
        return BatchDisciplineState(jobs=list(self._jobs.values()), asks=self._asks, seen=self._seen)

    @override
    def restore(self, state: BatchDisciplineState) -> None:
        self._jobs = {each.job.job_id: each for each in state.jobs}
        self._asks, self._seen = state.asks, state.seen

    @override
    def check_invariants(self) -> None:
        assert self._room >= 0, "jobs have more nodes than there are"
        assert all(each.is_ready for each in self._started()), "started without nodes"
        assert len({each.ask for each in self._jobs.values()}) == len(self._jobs), "one ask for two jobs"


class OneAllocationPerJob(NodeSource):
    """The nodes of a batch system, which is asked for an allocation for each job and starts it when it likes.

    Parameters
    ----------
    nodes : int
        The most nodes that jobs have at one time.
    policy : BatchPolicy
    week : WeekClock
        Not used.
    """

    can_hold_nodes = False
    is_own = False
    discipline: AskedJobs

    def __init__(self, nodes: int, policy: BatchPolicy, week: WeekClock = FROM_MONDAY) -> None:
        super().__init__(nodes, AskedJobs(nodes, policy), Traits())

    @property
    @override
    def absent(self) -> int:
        return 0

    @override
    def requests(self, now_ms: int) -> list[NodeRequest]:
        return self.discipline.requests(now_ms)

    @override
    def seen(self, now_ms: int, view: BatchSeen) -> list[tuple[int, str]]:
        return self.discipline.seen(now_ms, view)

    @override
    def delays(self, now_ms: int) -> list[tuple[int, int | None]]:
        return self.discipline.delays(now_ms)

    @property
    @override
    def idle(self) -> int:
        return self.discipline.idle

    @property
    @override
    def longest_job_ms(self) -> int | None:
        return self.discipline.longest_job_ms
