"""A site that requests nodes for each of its jobs, and starts a job once the batch system has allocated its nodes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Self

import msgspec
from typing_extensions import override

from gridweave.site.allocation import intervals_of
from gridweave.site.array_tasks import indexes_of
from gridweave.site.disciplines.base import NOTHING, Decisions, Discipline, ExpectedRun, Start, Traits, run_from
from gridweave.site.explain import SiteReason, nodes_text
from gridweave.site.job import Job, NodeIntervals, Running
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.messages import BatchSnapshot
from gridweave.site.nodes.source import NodeRequest, NodeSource
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk, NodeKind
from gridweave.site.resources.groups import NodeGroup, chunks_at, earliest_fit, without_chunks
from gridweave.site.resources.shares import NODE
from gridweave.site.state import CoreState
from gridweave.site.times import growing_pause_ms, span_text, when_text
from gridweave.slurm.chunks import cluster_share_of, labels_of, most_chunks_of, parts_of, why_no_chunks
from gridweave.slurm.outlook import Steps, earliest_start, free_throughout, occupied
from gridweave.slurm.policy import BatchPolicy

FIRST_PAUSE_MS = 10_000
"""Pause before the next request for a job whose nodes were lost before it began [ms]; the pause doubles each time."""

LATER_MS = 60_000
"""A new expected start is reported only if it is more than this much later [ms], because forecasts change often."""

MOST_LOST = 10
"""A job that loses its nodes this often before it begins is rejected, after about 40 min (a guess)."""


class AskedJob(msgspec.Struct):
    """One of the site's jobs, and the state of the request for its nodes."""

    job: Job
    ask: int  # the number of the request, unique at this site
    lost: int = 0  # how often its nodes were lost before it began
    why_lost: str = ""  # why its nodes were lost the last time
    is_ready: bool = False  # whether all its nodes are available
    start_ms: int | None = None  # its expected or actual start
    end_ms: int | None = None  # its expected end, once it has started
    not_before_ms: int = 0
    reason: str = ""
    is_put_off: bool = False  # whether the batch system has considered the request and made it wait
    was_reported: bool = False  # whether it was reported as waiting
    reported_ms: int | None = None  # the last reported start
    is_counted: bool = False  # whether the snapshot of the batch system counts its nodes as taken
    chunks: tuple[int, ...] = ()  # number of its chunks on each of its nodes, once these are available
    # Once it has started, at sites where jobs may ask for chunks: its share (`share_of`), and the numbers of its nodes.
    share: int = 0
    nodes: NodeIntervals = ()

    def lose(self, now_ms: int, reason: str) -> None:
        """Record that the job's nodes were lost before it began; they are requested again after a pause."""
        self.not_before_ms = now_ms + growing_pause_ms(FIRST_PAUSE_MS, self.lost)
        self.lost, self.why_lost, self.start_ms, self.reason = self.lost + 1, reason, None, ""
        self.is_put_off = True

    def delay(self, start_ms: int | None) -> bool:
        """Record the expected start; return whether to report it, as the first one or as later than the last report."""
        is_later = start_ms is not None and (self.reported_ms is None or start_ms > self.reported_ms + LATER_MS)
        is_news = is_later or not self.was_reported
        if is_news:
            self.was_reported, self.reported_ms = True, start_ms
        return is_news

    @property
    def loss(self) -> str:
        """A description of how often the job's nodes were lost, and why; empty if never."""
        if self.lost > 1:
            return f"its nodes were lost {self.lost} times before it began, the last time: {self.why_lost}"
        return f"its nodes were lost before it began: {self.why_lost}" if self.lost else ""


class BatchDisciplineState(CoreState, frozen=True, kw_only=True, tag="BatchDiscipline 1"):
    """The jobs in order of submission, the number of requests so far, and the last snapshot of the batch system."""

    jobs: list[AskedJob]
    asks: int
    seen: BatchSnapshot | None


class AskedJobs(Discipline):
    """Starts each job once the batch system has allocated its nodes, which are requested in order of submission.

    Parameters
    ----------
    nodes : int
        Maximum number of nodes that jobs have at one time.
    policy : BatchPolicy
    week : WeekClock
        Not used.
    """

    state_type: Any = BatchDisciplineState

    def __init__(self, nodes: int, policy: BatchPolicy, week: WeekClock = FROM_MONDAY) -> None:
        super().__init__(nodes)
        self._policy = policy
        self._jobs: dict[int, AskedJob] = {}
        self._snapshot: BatchSnapshot | None = None
        self._asks = 0

    @override
    def copy(self) -> Self:
        new = copy.copy(self)
        new._jobs = {job_id: msgspec.structs.replace(asked_job) for job_id, asked_job in self._jobs.items()}
        return new

    # -- jobs ---------------------------------------------------------------------------------------------------------

    @override
    def why_never(self, job: Job) -> str | None:
        is_parts = parts_of(job) is not None
        if is_parts and not self._policy.chunks:
            return "the site gives out whole nodes, and the job asks for parts of nodes"
        if job.width > self.nodes and not is_parts:
            return f"the site has {nodes_text(self.nodes)}"
        if (problem := why_no_chunks(job, self._kinds, self.nodes)) is not None:
            return problem
        longest_ms = self.longest_job_ms
        if longest_ms is not None and job.estimate_ms > longest_ms:
            longest, asked = span_text(longest_ms), span_text(job.estimate_ms)
            reason = f"its batch system lends nodes for at most {longest}"
            return f"{reason}, but the job may take {asked}; give it a lower limit"
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
    def _kinds(self) -> tuple[NodeKind, ...]:
        """The kinds of the batch system's nodes; empty if unknown."""
        return () if self._snapshot is None else self._snapshot.kinds

    def _share(self, asked_job: AskedJob) -> int:
        """Return how much of the site's maximum a job has or will take, in millionths of a node."""
        return asked_job.share or self.share_of(asked_job.job)

    @override
    def share_of(self, job: Job) -> int:
        return cluster_share_of(job, self._kinds, self.nodes)

    @override
    def most_chunks(self, job: Job) -> int | None:
        if not isinstance(job.chunk, Chunk) or not self._kinds:
            return None
        return most_chunks_of(job.chunk, self._kinds, self.nodes)

    @property
    def _left(self) -> int:
        """How much of the site's maximum is left, in millionths of a node; negative if it is exceeded."""
        return self.nodes * NODE - sum(map(self._share, self._started()))

    @property
    def longest_job_ms(self) -> int | None:
        """The longest time limit that the batch system accepts; None if unlimited or unknown."""
        return None if self._snapshot is None else self._snapshot.longest_ms

    def requests(self, now_ms: int) -> list[NodeRequest]:
        """Return the requests to make or keep, for all running jobs and for the first waiting jobs."""
        requests = [NodeRequest(asked_job.job, asked_job.ask, True) for asked_job in self._started()]
        capacity = self._left
        # If the cluster is larger than the site, stop at the number of nodes that the site may have.
        is_capped = self._snapshot is not None and self._snapshot.nodes > self.nodes
        for asked_job in self._in_order()[: self._policy.most_asked]:
            share = self._share(asked_job)
            if is_capped and share > capacity:
                break
            capacity -= share
            if asked_job.not_before_ms <= now_ms:
                requests.append(NodeRequest(asked_job.job, asked_job.ask, False, was_reported=bool(asked_job.reason)))
        return requests

    def seen(self, now_ms: int, view: BatchSnapshot) -> list[tuple[int, str]]:
        """Apply a snapshot of the batch system; return the waiting jobs to reject, each with a reason."""
        last = self._snapshot
        is_other = last is None or (last.longest_ms, last.kinds) != (view.longest_ms, view.kinds)
        self._snapshot = msgspec.structs.replace(view, asks=())
        refused = {}
        if is_other:
            # Jobs may have been accepted before the time limit and the nodes were known, or while there were others.
            refused = {asked.job.job_id: why for asked in self._in_order() if (why := self.why_never(asked.job))}
        for ask in view.asks:
            asked = self._jobs.get(ask.job_id)
            if asked is None or asked.end_ms is not None or asked.ask != ask.ask:
                continue
            asked.is_ready, asked.start_ms, asked.reason = ask.state == "ready", ask.start_ms, ask.reason
            asked.is_put_off, asked.chunks = ask.is_put_off, ask.chunks
            # The snapshot counts the nodes of all jobs that are running or have an expected start.
            asked.is_counted = ask.start_ms is not None
            if ask.state in ("refused", "cancelled"):
                refused[ask.job_id] = ask.reason
            elif ask.state == "over":
                asked.lose(now_ms, ask.reason)
                asked.ask = self._next_ask()
                if asked.lost >= MOST_LOST:
                    refused[ask.job_id] = asked.loss
        return list(refused.items())

    @property
    def idle(self) -> int:
        """Number of the batch system's free nodes that the site may use; 0 if the batch system has not answered."""
        if self._snapshot is None or self._snapshot.problem or not self._snapshot.free_from:
            return 0
        return min(self.free, self._snapshot.free_from[0][1])

    def delays(self, now_ms: int) -> list[tuple[int, int | None]]:
        """Return the delays to report, i.e. new or longer delays, each as a job id and the expected start or None."""
        is_away = self._snapshot is None or bool(self._snapshot.problem)
        asked = {request.job.job_id for request in self.requests(now_ms)}
        waits = [
            asked_job
            for asked_job in self._in_order()
            if is_away or asked_job.is_put_off or asked_job.job.job_id not in asked
        ]
        starts = [
            (asked_job, asked_job.start_ms if asked_job.is_put_off and not is_away else None) for asked_job in waits
        ]
        return [
            (asked_job.job.job_id, start_ms)
            for asked_job, start_ms in starts
            if not asked_job.is_ready and asked_job.delay(start_ms)
        ]

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        """Start the jobs whose nodes are available, in queue order."""
        left, starts = self._left, []
        for asked_job in self._in_order():
            share = self._share(asked_job)
            if asked_job.is_ready and share <= left:
                left -= share
                nodes = self._take_nodes(asked_job, share) if self._policy.chunks else None
                asked_job.start_ms, asked_job.end_ms, asked_job.reason = now_ms, now_ms + asked_job.job.estimate_ms, ""
                starts.append(Start(asked_job.job, nodes))
        return Decisions(starts) if starts else NOTHING

    def _take_nodes(self, asked_job: AskedJob, share: int) -> NodeIntervals:
        """Record the share of a job that starts and the numbers of its nodes; return the numbers."""
        used = [list(indexes_of(started.nodes)) for started in self._started()]
        parts = asked_job.chunks or (1,) * asked_job.job.width
        asked_job.share, asked_job.nodes = share, labels_of(parts, used, self.nodes)
        return asked_job.nodes

    def number_nodes(self, nodes_of: Mapping[int, int]) -> None:
        """Set the nodes of running jobs, given as bit masks, if a release without chunks has not stored them."""
        for asked_job in self._started():
            asked_job.nodes = asked_job.nodes or intervals_of(nodes_of[asked_job.job.job_id])

    # -- queries ------------------------------------------------------------------------------------------------------

    @override
    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return how many nodes a job of this length is forecast to get at once; 0 if any job is waiting."""
        if self._snapshot is None or self._snapshot.problem or self._in_order():
            return 0
        return min(self.nodes, max(0, free_throughout(self._free_steps(now_ms), now_ms, now_ms + length_ms)))

    @override
    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job submitted now is forecast to start; None if never or unknown."""
        if width > self.nodes or self._snapshot is None:
            return None
        start_ms = earliest_start(self._free_steps(now_ms), now_ms, width, length_ms)
        expected = [asked_job.start_ms for asked_job in self._in_order() if asked_job.start_ms is not None]
        # Assume that the job starts after all of the site's waiting jobs; with backfilling, it may start earlier.
        return None if start_ms is None else max([start_ms, *expected])

    def _free_steps(self, now_ms: int) -> Steps:
        """Return how many nodes are free from now on, minus the nodes of site jobs that the last snapshot misses.

        The snapshot misses jobs that have started since it was taken, and waiting jobs without an expected start. Each
        such waiting job is assumed to start as soon as it fits after the jobs ahead of it.
        """
        assert self._snapshot is not None, "asked before the first snapshot"
        steps = self._snapshot.free_from
        if not steps:
            return steps
        looked_ms = steps[0][0]
        for asked_job in self._started():
            if not asked_job.is_counted and (asked_job.start_ms or 0) >= looked_ms and (asked_job.end_ms or 0) > now_ms:
                steps = occupied(steps, looked_ms, asked_job.end_ms or now_ms, self._nodes_of(asked_job))
        for asked_job in self._in_order():
            width, length_ms = self._nodes_of(asked_job), asked_job.job.estimate_ms
            start_ms = None if asked_job.is_counted else earliest_start(steps, now_ms, width, length_ms)
            if start_ms is not None:
                steps = occupied(steps, max(start_ms, looked_ms), start_ms + length_ms, width)
        return steps

    def _nodes_of(self, asked_job: AskedJob) -> int:
        """Return how many nodes a job counts as in a forecast for whole nodes."""
        return -(-self._share(asked_job) // NODE)

    @override
    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        if self.why_never(job) is not None:
            return None
        if self._counts(job):
            return run_from(self._earliest_chunks_ms(now_ms, job), now_ms, job)
        return run_from(self.earliest_start_ms(now_ms, job.width, job.estimate_ms), now_ms, job)

    def _counts(self, job: Job) -> bool:
        """Whether a job's forecast considers the kinds of nodes, because the job asks for chunks or labels."""
        return isinstance(job.chunk, Chunk) and bool(self._kinds)

    @override
    def chunks_now(self, now_ms: int, job: Job) -> int:
        """Return how many chunks of a job are forecast to fit now; 0 if any job is waiting, or nothing is known."""
        snapshot = self._snapshot
        if snapshot is None or snapshot.problem or self._in_order() or not isinstance(job.chunk, Chunk):
            return 0
        return chunks_at(job.chunk, snapshot.kinds, self._groups(now_ms), now_ms)

    @override
    def outlook(self, now_ms: int, job: Job, run: ExpectedRun) -> str:
        """Return a text on how many of a job's chunks fit now and that the batch system decides; "" without chunks."""
        if not self._counts(job):
            return ""
        fitting = self.chunks_now(now_ms, job)
        if run.start_ms == now_ms:
            return f"{fitting} such chunks fit now, and it could start at once if the batch system agrees"
        waiting = f", after {len(self._in_order())} waiting jobs of this site" if self._in_order() else ""
        now = f"{min(fitting, job.width)} of its {job.width} chunks fit now{waiting}"
        return f"{now}; the batch system decides when the others do, and promises nothing"

    def _earliest_chunks_ms(self, now_ms: int, job: Job) -> int | None:
        """Return when a job's chunks are forecast to fit, after those of all waiting jobs; None if never or unknown."""
        assert isinstance(job.chunk, Chunk), "asked for a job without chunks"
        start_ms = earliest_fit(job.chunk, job.width, self._kinds, self._groups(now_ms), now_ms)
        expected = [asked_job.start_ms for asked_job in self._in_order() if asked_job.start_ms is not None]
        return None if start_ms is None else max([start_ms, *expected])

    def _groups(self, now_ms: int) -> tuple[NodeGroup, ...]:
        """Return what is free on the batch system's nodes, without the chunks of site jobs that the snapshot misses."""
        assert self._snapshot is not None, "asked before the first snapshot"
        groups, kinds = self._snapshot.groups, self._snapshot.kinds
        for asked_job in (*self._started(), *self._in_order()):
            if not asked_job.is_counted and (asked_job.end_ms is None or asked_job.end_ms > now_ms):
                chunk = asked_job.job.chunk or WHOLE_NODE
                end_ms = asked_job.end_ms or now_ms + asked_job.job.estimate_ms
                groups = without_chunks(chunk, asked_job.job.width, kinds, groups, now_ms, end_ms)
        return groups

    @override
    def next_end_ms(self) -> int | None:
        return min(
            (asked_job.end_ms for asked_job in self._jobs.values() if asked_job.end_ms is not None), default=None
        )

    @override
    def running(self) -> Iterator[Running]:
        runs = [
            (asked_job.end_ms, job_id, asked_job.start_ms or 0)
            for job_id, asked_job in self._jobs.items()
            if asked_job.end_ms is not None
        ]
        for end_ms, job_id, start_ms in sorted(runs):
            yield Running(self._jobs[job_id].job, start_ms, end_ms)

    @override
    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in the order in which their nodes are requested; no job has a promised start."""
        for asked_job in self._in_order():
            yield asked_job.job, None

    @override
    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when the batch system expects a waiting job to start, and why the job is waiting."""
        asked_job = self._jobs[job_id]
        ahead = [other.job.job_id for other in self._in_order()].index(job_id)
        problem = "" if self._snapshot is None else self._snapshot.problem
        asked = any(request.job.job_id == job_id for request in self.requests(now_ms))
        if self._snapshot is None or problem:
            reason = problem or "the batch system was not queried yet"
        elif asked_job.not_before_ms > now_ms:
            reason = f"{asked_job.loss}; they are requested again {when_text(asked_job.not_before_ms, now_ms)}"
        elif not asked:
            reason = "nodes are requested for the jobs ahead of it, and for no more jobs at one time"
        else:
            reason = asked_job.reason or "its nodes are being requested from the batch system"
            reason += f"; {asked_job.loss}" if asked_job.lost else ""
        # If the expected start has passed, the job is expected to start now.
        start_ms = None if asked_job.start_ms is None else max(asked_job.start_ms, now_ms)
        return SiteReason(start_ms=start_ms, ahead=ahead, reason=reason)

    def _started(self) -> list[AskedJob]:
        return [asked_job for asked_job in self._jobs.values() if asked_job.end_ms is not None]

    @property
    @override
    def free(self) -> int:
        """Number of whole nodes that the site's jobs can still get within the site's maximum."""
        return max(0, self._left // NODE)

    def _in_order(self) -> list[AskedJob]:
        """Return the waiting jobs in order of submission, with the `behind` jobs last."""
        return sorted(
            (asked_job for asked_job in self._jobs.values() if asked_job.end_ms is None),
            key=lambda asked_job: asked_job.job.behind,
        )

    # -- state --------------------------------------------------------------------------------------------------------

    @override
    def state(self) -> BatchDisciplineState:
        return BatchDisciplineState(jobs=list(self._jobs.values()), asks=self._asks, seen=self._snapshot)

    @override
    def restore(self, state: BatchDisciplineState) -> None:
        self._jobs = {asked_job.job.job_id: asked_job for asked_job in state.jobs}
        self._asks, self._snapshot = state.asks, state.seen

    @override
    def check_invariants(self) -> None:
        assert self._left >= 0, "jobs have more nodes than the site"
        assert all(asked_job.is_ready for asked_job in self._started()), "a job started without nodes"
        assert len({asked_job.ask for asked_job in self._jobs.values()}) == len(self._jobs), "two jobs share a request"


def traits_of(policy: BatchPolicy) -> Traits:
    """Return the traits of a site that requests an allocation for each job."""
    return Traits(chooses_nodes=True, counts_resources=True) if policy.chunks else Traits()


class OneAllocationPerJob(NodeSource):
    """The node source of a site that requests an allocation for each job; the batch system decides when jobs start.

    Parameters
    ----------
    nodes : int
        Maximum number of nodes that jobs have at one time.
    policy : BatchPolicy
    week : WeekClock
        Not used.
    """

    can_hold_nodes = False
    is_own = False
    discipline: AskedJobs

    def __init__(self, nodes: int, policy: BatchPolicy, week: WeekClock = FROM_MONDAY) -> None:
        super().__init__(nodes, AskedJobs(nodes, policy), traits_of(policy))

    @override
    def requests(self, now_ms: int) -> list[NodeRequest]:
        return self.discipline.requests(now_ms)

    @override
    def seen(self, now_ms: int, view: BatchSnapshot) -> list[tuple[int, str]]:
        return self.discipline.seen(now_ms, view)

    @override
    def delays(self, now_ms: int) -> list[tuple[int, int | None]]:
        return self.discipline.delays(now_ms)

    @override
    def restore(self, state: BatchDisciplineState) -> None:
        super().restore(state)
        if self.traits.counts_resources:
            self.discipline.number_nodes(self.nodes_of)

    @property
    @override
    def idle(self) -> int:
        return self.discipline.idle

    @property
    @override
    def longest_job_ms(self) -> int | None:
        return self.discipline.longest_job_ms
