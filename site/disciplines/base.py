"""The base class of all disciplines, the traits that disciplines declare, and the decisions of a scheduling pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.site.explain import SiteReason, free_text, nodes_text
from gridweave.site.job import ASKED_ID, Job, JobForm, NodeIntervals, Running
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.resources.refusals import most_chunks, why_whole_only
from gridweave.site.resources.shares import share_of

MOST_PASSES = 10_000
"""Number of passes after which `Discipline.expected_run` assumes that a job never starts."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The capabilities of a discipline.

    A discipline declares its traits once, in its `Entry`. The core, scenarios, the gateway and the docs rely only on
    these traits. `gridweave.testing.check_discipline` checks them against the discipline's behaviour.

    Attributes
    ----------
    chooses_nodes : bool
        Each start and move lists its nodes. Otherwise, the site assigns the free nodes with the lowest numbers.
    shares_nodes : bool
        Several jobs may run on the same node.
    fractions : bool
        Jobs get fractions of nodes, and several tasks of a job may run on the same node. A `StartJob` or `MoveJob` then
        lists a node once for each task on the node.
    counts_resources : bool
        The site counts cores, memory and GPUs of its nodes, and jobs may ask for chunks (docs/resources.md). A
        `StartJob` lists a node once for each of the job's chunks on it.
    slices_time : bool
        A running job may pause while other jobs use its nodes.
    shares_time : bool
        Started jobs may pause or run at a fraction of their speed; metrics count the lost time as waiting time.
    pauses : bool
        An evicted job may be paused on its nodes while the job that evicted it uses them.
    moves : bool
        Running jobs may move to other nodes.
    evicts : bool
        Running jobs may be put back into the queue.
    saves_work : bool
        A job that has to leave its nodes saves its work and later resumes from it.
    forms : bool
        Machines differ in speed, and jobs may have several forms, with more or fewer nodes than the job's width.
    reserves : bool
        Nodes can be reserved in advance.
    learns : bool
        The discipline learns from jobs that succeed. Operators may query and edit the learned data, whose format only
        the discipline knows.
    counts_work : bool
        Limits apply to the work done rather than to elapsed time (`Discipline.progress`).
    elastic : bool
        Nodes may be added and removed at any time, so the discipline can schedule jobs in a Slurm cluster's pilots.
    week : bool
        Decisions depend on the local time of the week.
    uses_resources : bool
        Decisions use `Job.resources`: CPU, network, disk and memory.
    needs : tuple of str
        Required workload columns, with values above 0 and up to 1.
    columns : tuple of str
        Names, including units, of the figures that `Discipline.figures` returns for each job.
    threads : tuple of (int, int)
        Number of cores of the largest node and of hardware threads per core, if jobs get single threads; (1, 1) if jobs
        get whole nodes.
    """

    chooses_nodes: bool = False
    shares_nodes: bool = False
    fractions: bool = False
    counts_resources: bool = False
    slices_time: bool = False
    shares_time: bool = False
    pauses: bool = False
    moves: bool = False
    evicts: bool = False
    saves_work: bool = False
    forms: bool = False
    reserves: bool = False
    learns: bool = False
    counts_work: bool = False
    elastic: bool = False
    week: bool = False
    uses_resources: bool = False
    needs: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    threads: tuple[int, int] = (1, 1)

    @property
    def of_any_policy(self) -> Mapping[str, bool]:
        """The traits, by name, that do not depend on the discipline's policy."""
        names = ("shares_nodes", "fractions", "slices_time", "forms", "elastic", "uses_resources")
        return {name: getattr(self, name) for name in names}

    @property
    def takes_parts(self) -> bool:
        """Whether a site can run part of a multi-site job; if this part is slow or paused, the other parts wait."""
        return not (self.slices_time or self.fractions)

    @property
    def overlaps(self) -> bool:
        """Whether several started jobs can hold the same node, even if only one of these jobs is working."""
        return self.shares_nodes or self.pauses or self.counts_resources

    @property
    def varies_rates(self) -> bool:
        """Whether a job's rate can differ from the rate at which it would run alone on nodes of speed 1."""
        return self.shares_nodes or self.pauses or self.forms

    @property
    def assigns_threads(self) -> bool:
        """Whether jobs get single hardware threads, in which case jobs on the same node slow each other down."""
        return self.threads != (1, 1)


class Start(msgspec.Struct, frozen=True, gc=False):
    """A job that starts now, and its nodes; None means the free nodes with the lowest numbers."""

    job: Job
    nodes: NodeIntervals | None = None
    threads: NodeIntervals = ()


class Eviction(NamedTuple):
    """A running job that goes back into the queue."""

    job_id: int
    keeps_work: bool
    by: int  # id of the job that gets the nodes
    reason: str  # one line


class Move(NamedTuple):
    """A running job that moves to other nodes; ``nodes`` may be empty for a paused job."""

    job_id: int
    nodes: NodeIntervals
    threads: NodeIntervals = ()


class Rate(NamedTuple):
    """The new rate of a running job, in units of 1 / `RATE_ONE`; 0 pauses the job."""

    job_id: int
    rate: int


class Decisions(msgspec.Struct, frozen=True, gc=False):
    """The decisions of a scheduling pass.

    Attributes
    ----------
    starts : sequence of Start
        In the order in which the jobs start.
    evictions : sequence of Eviction
        Carried out before the starts. An evicted job may also be among the starts.
    moves : sequence of Move
        Sorted by job id.
    rates : sequence of Rate
        Sorted by job id. Includes jobs that start now at a rate other than `RATE_ONE`.
    """

    starts: Sequence[Start] = ()
    evictions: Sequence[Eviction] = ()
    moves: Sequence[Move] = ()
    rates: Sequence[Rate] = ()

    def __bool__(self) -> bool:
        return bool(self.starts or self.evictions or self.moves or self.rates)


NOTHING = Decisions()
"""The decisions of a pass that does not change anything."""


class SharedOffer(NamedTuple):
    """An offer to start a job on nodes used by running jobs."""

    slowdown: float  # the time from now until the job ends, in multiples of its estimate
    beside: tuple[int, ...] = ()  # the ids of these running jobs, if known
    start_ms: int | None = None  # when the job would start; None: now


class ExpectedRun(NamedTuple):
    """How a job would run if it were submitted now.

    Attributes
    ----------
    start_ms, nodes, length_ms : int
    ahead : int, optional
        Number of jobs ahead of this job in the queue; None: all waiting jobs.
    evicts : bool
        Whether running jobs would be evicted or paused so that this job can start now.
    """

    start_ms: int
    nodes: int
    length_ms: int
    ahead: int | None = None
    evicts: bool = False


def run_from(start_ms: int | None, now_ms: int, job: Job) -> ExpectedRun | None:
    """Return the expected run of a rigid job at full speed; None if ``start_ms``, its earliest start, is None."""
    return None if start_ms is None else ExpectedRun(max(start_ms, now_ms), job.width, job.estimate_ms)


class Discipline(ABC):
    """Decides which of a site's jobs start, and when.

    Time never goes backwards. At a given instant, ``ended`` and ``withdraw`` are called first, then ``submit`` and
    ``reserve``, and then ``run_pass`` once. A discipline must implement the abstract methods. All other methods have a
    default; the discipline's `Traits` say which of them it overrides. Queries, such as ``explain`` and
    ``expected_run``, may use scratch space but must never change decisions; a live site calls them on a copy.

    Decisions must be pure: no clock, no I/O, and randomness only from a seeded generator.

    Attributes
    ----------
    nodes : int
        Number of nodes of the site.
    state_type : type
        The type that `state` returns, a `CoreState`.
    """

    state_type: Any

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    # Required methods.

    @abstractmethod
    def submit(self, now_ms: int, job: Job) -> None:
        """Add a job to the queue."""

    @abstractmethod
    def withdraw(self, now_ms: int, job_id: int) -> None:
        """Remove a waiting job."""

    @abstractmethod
    def ended(self, now_ms: int, job_id: int) -> None:
        """Remove a running job."""

    @abstractmethod
    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        """Change the limit of a running job that does not share its nodes; `end_ms` is after now."""

    @abstractmethod
    def run_pass(self, now_ms: int) -> Decisions:
        """Decide which jobs start or change now. A second pass at the same instant makes no decisions."""

    @abstractmethod
    def running(self) -> Iterator[Running]:
        """Yield the running jobs in the order of their estimated ends; ties are broken by job id."""

    @abstractmethod
    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in queue order, each with its promised start, if any."""

    @abstractmethod
    def copy(self) -> Self:
        """Return an independent copy with the same state."""

    @abstractmethod
    def state(self) -> Any:
        """Return the state as plain typed data; the caller encodes it before the discipline changes again."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Restore the state of a discipline with the same settings; must be the first call to a new instance."""

    # Methods with a default.

    def why_never(self, job: Job) -> str | None:
        """Return the reason why a job could never start at this site, or None."""
        if job.width > self.nodes:
            return f"it needs {job.width} nodes and the site has {self.nodes}"
        return None

    @property
    def free(self) -> int:
        """Number of nodes without a running job."""
        return self.nodes - sum(run.job.width for run in self.running())

    def next_wakeup_ms(self) -> int | None:
        """Return the time of the next pass if there is no event before it, or None."""
        return None

    def replan(self) -> None:  # noqa: B027
        """Plan all waiting jobs from scratch in the next pass; called when the times of weekly windows have shifted."""

    def next_end_ms(self) -> int | None:
        """Return the earliest estimated end of a running job; None if no job is running."""
        return next((run.end_by_estimate_ms for run in self.running()), None)

    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        """Return how a job would run if it were submitted now and no job came after it; None if it would never start.

        The default submits the job to a copy and runs the copy until the job starts; jobs end at their estimates.
        """
        if self.why_never(job) is not None:
            return None
        copy = self.copy()
        copy.submit(now_ms, msgspec.structs.replace(job, job_id=ASKED_ID))
        for _ in range(MOST_PASSES):
            decided = copy.run_pass(now_ms)
            if any(start.job.job_id == ASKED_ID for start in decided.starts):
                return ExpectedRun(now_ms, job.width, job.estimate_ms, evicts=bool(decided.evictions))
            instants = [instant for instant in (copy.next_end_ms(), copy.next_wakeup_ms()) if instant is not None]
            if not instants:
                return None
            now_ms = max(now_ms + 1, min(instants))
            for run in list(copy.running()):
                if run.end_by_estimate_ms <= now_ms:
                    copy.ended(now_ms, run.job.job_id)
        return None

    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job submitted now, behind all waiting jobs, would start; None if it would never start."""
        run = self.expected_run(now_ms, Job(job_id=ASKED_ID, width=width, estimate_ms=length_ms, behind=True))
        return None if run is None else run.start_ms

    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return the width of the widest job of this length that would start immediately if it were submitted now.

        The default assumes that if a job would start now, so would a narrower job.
        """
        widths = range(1, self.free + 1)
        return bisect_left(widths, 1, key=lambda width: self.earliest_start_ms(now_ms, width, length_ms) != now_ms)

    @property
    def kinds(self) -> tuple[NodeKind, ...]:
        """The kinds of the site's nodes; empty at a site that gives out whole nodes."""
        return ()

    def share_of(self, job: Job) -> int:
        """Return the share of the site that a job counts as, in millionths of a node (`site.resources.shares`)."""
        return share_of(job.width, job.chunk, self.kinds)

    def most_chunks(self, job: Job) -> int | None:
        """Return how many chunks of a job that asks for chunks the idle site could hold; None if that is unknown."""
        if self.kinds and job.chunk:
            return most_chunks(self.kinds, job.chunk)
        return self.nodes if why_whole_only(job.chunk) is None else 0

    def chunks_now(self, now_ms: int, job: Job) -> int:
        """Return how many chunks of a job that asks for chunks could start now, as one job behind all waiting jobs.

        The default assumes that if a job would start now, so would one with fewer chunks.
        """
        per_unit = (job.chunk.per_node if job.chunk else 0) or 1
        widths = range(per_unit, (self.most_chunks(job) or 0) + 1, per_unit)

        def waits(width: int) -> bool:
            run = self.expected_run(now_ms, msgspec.structs.replace(job, width=width))
            return run is None or run.start_ms != now_ms

        return per_unit * bisect_left(widths, True, key=waits)

    def outlook(self, now_ms: int, job: Job, run: ExpectedRun) -> str:
        """Return why a new job would start at the time in `run`; "" if its number of nodes explains that."""
        return ""

    def nodes_ready(self, now_ms: int, free: int) -> list[tuple[int, int]]:
        """Return (time in ms, nodes) pairs that say how many nodes become free at each time, ignoring waiting jobs.

        Parameters
        ----------
        free : int
            Number of nodes that are free now.
        """
        ready, left = Counter({now_ms: free}), self.nodes - free
        for run in self.running():
            # The widths of jobs that share nodes may add up to more than `left`.
            nodes = min(run.job.width, left)
            ready[max(run.end_by_estimate_ms, now_ms + 1)] += nodes
            left -= nodes
        return sorted((instant, nodes) for instant, nodes in ready.items() if nodes)

    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start and why it has not yet; the site fills in `nodes` and `free`."""
        ahead, job, start_ms = next(
            (place, job, start_ms) for place, (job, start_ms) in enumerate(self.waiting()) if job.job_id == job_id
        )
        reason = f"it needs {nodes_text(job.width)}, and {free_text(self.free)}"
        return SiteReason(start_ms=start_ms, ahead=ahead, reason=reason)

    def rule_in_force(self) -> str:
        """Return, as part of a sentence, the rule that can still change a reported start; "" if the start is final."""
        return ""

    def check_invariants(self) -> None:  # noqa: B027
        """Raise AssertionError if the state is inconsistent."""

    # Traits.chooses_nodes, shares_nodes

    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        """Return how a job could start in the next pass on nodes that running jobs use; None if this is impossible."""
        return None

    # Traits.reserves

    def reserve(self, now_ms: int, reservation_id: int, start_ms: int, length_ms: int, width: int) -> int | None:
        """Return a reservation's earliest possible start; if this is `start_ms`, also make the reservation.

        Return None if the discipline does not support reservations, or the site never has enough nodes.
        """
        return None

    def begin_reservation(self, now_ms: int, reservation_id: int) -> NodeIntervals | None:
        """Give a due reservation its nodes and return them; None if too few are idle.

        Called only if the discipline counts resources; otherwise, a reservation gets the free nodes with the lowest
        numbers.
        """
        return None

    def unreserve(self, now_ms: int, reservation_id: int) -> None:  # noqa: B027
        """Cancel a reservation; if the reservation has begun, cancel its remaining time."""

    # Traits.counts_work, pauses, forms

    def progress(self, now_ms: int, job_id: int) -> tuple[float, int] | None:
        """Return a running job's speed, as a fraction of full speed, and its work so far, in ms at full speed.

        Return None if limits apply to elapsed time.
        """
        return None

    def is_paused(self, job_id: int) -> bool:
        """Whether a started job is paused on its nodes while another job uses them."""
        return False

    def pause_reason(self, now_ms: int, job_id: int) -> str:
        """Return a text that says for which job this job is paused, and for which period; "" if it is not paused."""
        return ""

    def form_of(self, job_id: int) -> JobForm | None:
        """Return the form of a running job, or None if the job did not request any forms."""
        return None

    def rate_of(self, job_id: int) -> int:
        """Return the rate of a running job on its nodes; for a paused job, its rate when it is not paused."""
        return RATE_ONE

    # Traits.learns

    def learn(self, now_ms: int, job_id: int) -> None:  # noqa: B027
        """Learn from a running job that has succeeded; called before ``ended``."""

    def answer(self, question: str) -> Any:
        """Return, as plain data, the learned data that `question` asks for; None if the question is unknown."""
        return None

    def edit_problem(self, changes: Any) -> str | None:
        """Return the one-line reason why ``edit`` cannot apply these changes, or None."""
        return "this discipline learns nothing that can be edited"

    def edit(self, changes: Any) -> None:  # noqa: B027
        """Edit the learned data; `changes` is plain data for which ``edit_problem`` returns None."""

    # Traits.elastic

    @property
    def in_use(self) -> int:
        """Bit mask with all nodes assigned to jobs that have not started, and perhaps nodes of running jobs."""
        return 0

    def serve(self, now_ms: int, nodes: int) -> None:  # noqa: B027
        """Start jobs only on these nodes, given as a bit mask; for disciplines that choose nodes.

        Jobs that are running on other nodes stay until they end.
        """

    def resize(self, by: int) -> None:  # noqa: B027
        """Add ``by`` free nodes, or remove nodes if it is negative; for disciplines that only count nodes."""

    def protect(self, job_id: int) -> None:  # noqa: B027
        """Stop evicting this running job from now on, because some of its nodes are about to be removed."""

    # Traits.counts_resources

    @property
    def node_amounts(self) -> npt.NDArray[np.int64] | None:
        """How much of each resource each node has; None if the site does not count resources."""
        return None

    def held_amounts(self, job_ids: Collection[int]) -> npt.NDArray[np.int64]:
        """Return how much of each resource on each node these running jobs hold; all of a node out of service."""
        raise NotImplementedError

    # Results of simulations.

    def figures(self, now_ms: int, job_id: int) -> tuple[float, ...]:
        """Return the figures of a job that ends now, one for each name in `Traits.columns`; called before ``ended``."""
        return ()

    def totals(self) -> Mapping[str, float]:
        """Return the totals so far, by name, for `Entry.metrics`."""
        return {}

    def switches_after(self, count: int) -> Sequence[tuple[int, int]]:
        """Return the policy switches after the first `count`, as (time in ms, index of the policy) pairs.

        A simulation of a discipline with `Traits.columns` calls this after every step, so old switches may be dropped.
        """
        return ()

    def report(
        self,
        switches: Sequence[tuple[int, int]],
        columns: Mapping[str, npt.NDArray[np.float64]],
        has_started: npt.NDArray[np.bool_],
    ) -> object:
        """Return the discipline's own results, available as ``result.own``, at the end of a simulation.

        Parameters
        ----------
        switches : sequence of (int, int)
            All switches of the run, as returned by `switches_after`.
        columns : mapping from str to numpy.ndarray of float64, shape (n,)
            The figures of all jobs of the workload, by column (`Traits.columns`).
        has_started : numpy.ndarray of bool, shape (n,)
        """
        return None
