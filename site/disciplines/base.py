"""The base class of all disciplines, the traits that a discipline declares, and the decisions of a pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.site.explain import SiteReason, free_text, nodes_text
from gridweave.site.job import ASKED_ID, Job, JobForm, NodeIntervals, Running
from gridweave.site.kernels.work import RATE_ONE

MOST_PASSES = 10_000
"""Passes of a copy after which `Discipline.expected_run` gives up on a job that never starts."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The capabilities of a discipline.

    Traits are declared once, in the `Entry` of the discipline. The core, scenarios, the gateway and the docs read only
    the traits of a discipline. `gridweave.testing.check_discipline` compares them with its behaviour.

    Attributes
    ----------
    chooses_nodes : bool
        Each start and move names its nodes. Without it the site gives each job the free nodes with the lowest numbers.
    shares_nodes : bool
        Several jobs may have the same node.
    fractions : bool
        Jobs get parts of nodes, and several tasks of a job may be on a node. A `StartJob` or `MoveJob` then lists a
        node once for each task on it.
    slices_time : bool
        A running job may pause while other jobs have its nodes.
    shares_time : bool
        Started jobs pause or run at a fraction of their speed; metrics count the lost time as waiting.
    pauses : bool
        An evicted job may pause on its nodes while the job that evicted it has them.
    moves : bool
        Running jobs may move to other nodes.
    evicts : bool
        Running jobs may be put back into the queue.
    saves_work : bool
        A job that has to leave its nodes saves its work and resumes from there.
    forms : bool
        Machines differ in speed, and jobs may have several forms: a job may have more or fewer nodes than its width.
    reserves : bool
        Nodes can be reserved in advance.
    learns : bool
        The discipline learns from jobs that end well. Operators may query and edit what it has learned; only the
        discipline knows the format.
    counts_work : bool
        Limits count work done, not time on the clock (`Discipline.progress`).
    elastic : bool
        Nodes may come and go while the discipline runs, so it can decide in the pilots of a Slurm cluster.
    week : bool
        Decisions depend on the local time of the week.
    uses_resources : bool
        Decisions use `Job.resources`: CPU, network, disk and memory.
    needs : tuple of str
        Workload columns that must be present, with numbers above 0 and up to 1.
    columns : tuple of str
        Names, with units, of the figures that `Discipline.figures` returns for each job.
    threads : tuple of (int, int)
        Cores of the largest node, and hardware threads per core, if they are assigned one by one; (1, 1) if jobs get
        whole nodes.
    """

    chooses_nodes: bool = False
    shares_nodes: bool = False
    fractions: bool = False
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
        """The traits, by name, that are the same under every policy of a discipline."""
        names = ("shares_nodes", "fractions", "slices_time", "forms", "elastic", "uses_resources")
        return {name: getattr(self, name) for name in names}

    @property
    def takes_parts(self) -> bool:
        """Whether a site can run a part of a job on several sites: if it is slow or paused, the other parts wait."""
        return not (self.slices_time or self.fractions)

    @property
    def overlaps(self) -> bool:
        """Whether several started jobs may have the same node, even if only one of them works."""
        return self.shares_nodes or self.pauses

    @property
    def varies_rates(self) -> bool:
        """Whether a job may run at another rate than a job alone on a node of speed 1."""
        return self.overlaps or self.forms

    @property
    def assigns_threads(self) -> bool:
        """Whether jobs get single hardware threads, so that jobs on the same node slow each other."""
        return self.threads != (1, 1)


class Start(msgspec.Struct, frozen=True, gc=False):
    """A job that starts now, with its nodes; None means the free nodes with the lowest numbers."""

    job: Job
    nodes: NodeIntervals | None = None
    threads: NodeIntervals = ()


class Eviction(NamedTuple):
    """A running job that goes back into the queue."""

    job_id: int
    keeps_work: bool
    by: int  # id of the job that gets its nodes
    reason: str  # one line


class Move(NamedTuple):
    """A running job that moves to other nodes; a paused job may move to none."""

    job_id: int
    nodes: NodeIntervals
    threads: NodeIntervals = ()


class Rate(NamedTuple):
    """The new rate of a running job, in units of 1 / `RATE_ONE`; 0 pauses it."""

    job_id: int
    rate: int


class Decisions(msgspec.Struct, frozen=True, gc=False):
    """The decisions of one pass.

    Attributes
    ----------
    starts : sequence of Start
        In the order in which the jobs start.
    evictions : sequence of Eviction
        Carried out before the starts. An evicted job may be among the starts again.
    moves : sequence of Move
        Sorted by job id.
    rates : sequence of Rate
        Sorted by job id. A job starts at `RATE_ONE`, so a job that starts at another rate is listed too.
    """

    starts: Sequence[Start] = ()
    evictions: Sequence[Eviction] = ()
    moves: Sequence[Move] = ()
    rates: Sequence[Rate] = ()

    def __bool__(self) -> bool:
        return bool(self.starts or self.evictions or self.moves or self.rates)


NOTHING = Decisions()
"""The decisions of a pass that changes nothing."""


class SharedOffer(NamedTuple):
    """An offer to start a job on nodes of running jobs."""

    slowdown: float  # the time from now until the job ends, in multiples of its estimate
    beside: tuple[int, ...] = ()  # the ids of the running jobs, if known
    start_ms: int | None = None  # when the job would start; None: now


class ExpectedRun(NamedTuple):
    """How a job would run if it were submitted now.

    Attributes
    ----------
    start_ms, nodes, length_ms : int
    ahead : int, optional
        Number of jobs before it in the queue; None: all waiting jobs.
    evicts : bool
        Whether running jobs would be evicted or paused for it so that it can start now.
    """

    start_ms: int
    nodes: int
    length_ms: int
    ahead: int | None = None
    evicts: bool = False


def run_from(start_ms: int | None, now_ms: int, job: Job) -> ExpectedRun | None:
    """Return the run of a rigid job at full speed from its earliest start; None if it can never start."""
    return None if start_ms is None else ExpectedRun(max(start_ms, now_ms), job.width, job.estimate_ms)


class Discipline(ABC):
    """Decides which job of a site starts next.

    Time never goes backwards. At one instant the calls come in this order: ``ended`` and ``withdraw``, then ``submit``
    and ``reserve``, then one ``run_pass``. A discipline must implement the abstract methods; all others have a
    default, and `Traits` declare which of these it overrides. Queries, such as ``explain`` and ``expected_run``, may
    use scratch space of the discipline but never change its decisions; a live site runs them on a copy.

    Decisions must be pure: no clock, no I/O, and randomness only from a seeded generator.

    Attributes
    ----------
    nodes : int
        Nodes of the site.
    state_type : type
        The `CoreState` that `state` returns.
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
        """Move the limit of a running job that shares its nodes with no other job; `end_ms` is after now."""

    @abstractmethod
    def run_pass(self, now_ms: int) -> Decisions:
        """Decide which jobs start now, and what else changes. A second pass at the same instant changes nothing."""

    @abstractmethod
    def running(self) -> Iterator[Running]:
        """Yield the running jobs by their end by estimate, ties by job id."""

    @abstractmethod
    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in the order of the queue, each with its promised start, if any."""

    @abstractmethod
    def copy(self) -> Self:
        """Return a copy in the same state; changes to one never affect the other."""

    @abstractmethod
    def state(self) -> Any:
        """Return the state as plain typed data; the caller encodes it before the discipline changes again."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Continue from the state of another discipline with the same settings; this one has had no calls yet."""

    # Methods with a default.

    def why_never(self, job: Job) -> str | None:
        """Return why a job could never start here, or None."""
        if job.width > self.nodes:
            return f"it needs {job.width} nodes and the site has {self.nodes}"
        return None

    @property
    def free(self) -> int:
        """Nodes without a running job."""
        return self.nodes - sum(run.job.width for run in self.running())

    def next_wakeup_ms(self) -> int | None:
        """Return the next instant at which a pass is due even without an event; None if no pass is due."""
        return None

    def replan(self) -> None:  # noqa: B027
        """Make the next pass plan all waiting jobs from scratch, because the windows of the week have moved."""

    def next_end_ms(self) -> int | None:
        """Return the earliest end by estimate of a running job; None if no job runs."""
        return next((run.end_by_estimate_ms for run in self.running()), None)

    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        """Return how a job would run if it were submitted now and no other job came later; None if never.

        The default submits it to a copy and runs the copy until the job starts; each running job ends by its estimate.
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
        """Return when a job behind all waiting jobs would start if it were submitted now; None: never."""
        run = self.expected_run(now_ms, Job(job_id=ASKED_ID, width=width, estimate_ms=length_ms, behind=True))
        return None if run is None else run.start_ms

    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return the width of the widest job of this length that would start at once if it were submitted now.

        The default assumes that a job would start now if a wider one would.
        """
        widths = range(1, self.free + 1)
        return bisect_left(widths, 1, key=lambda width: self.earliest_start_ms(now_ms, width, length_ms) != now_ms)

    def nodes_ready(self, now_ms: int, free: int) -> list[tuple[int, int]]:
        """Return (instant, nodes) pairs: the number of nodes that become free at each instant, without waiting jobs.

        Parameters
        ----------
        free : int
            Number of free nodes of the site.
        """
        ready, left = Counter({now_ms: free}), self.nodes - free
        for run in self.running():
            # The widths of jobs that share nodes may add up to more than `left`; stop counting there.
            nodes = min(run.job.width, left)
            ready[max(run.end_by_estimate_ms, now_ms + 1)] += nodes
            left -= nodes
        return sorted((instant, nodes) for instant, nodes in ready.items() if nodes)

    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start, and why not earlier; the site adds the nodes."""
        ahead, job, start_ms = next(
            (place, job, start_ms) for place, (job, start_ms) in enumerate(self.waiting()) if job.job_id == job_id
        )
        reason = f"it needs {nodes_text(job.width)}, and {free_text(self.free)}"
        return SiteReason(start_ms=start_ms, ahead=ahead, reason=reason)

    def rule_in_force(self) -> str:
        """Return the rule by which a reported start may still move, as half a sentence; empty if it cannot move."""
        return ""

    def check_invariants(self) -> None:  # noqa: B027
        """Raise AssertionError if the state contradicts itself."""

    # Traits.chooses_nodes, shares_nodes

    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        """Return how a job could start on nodes of running jobs when it is next placed; None if it could not."""
        return None

    # Traits.reserves

    def reserve(self, now_ms: int, reservation_id: int, start_ms: int, length_ms: int, width: int) -> int | None:
        """Return the earliest possible start of a reservation; make the reservation only if that is `start_ms`.

        Return None if the discipline has no reservations, or the site never has enough nodes.
        """
        return None

    def unreserve(self, now_ms: int, reservation_id: int) -> None:  # noqa: B027
        """Cancel a reservation, or the rest of it."""

    # Traits.counts_work, pauses, forms

    def progress(self, now_ms: int, job_id: int) -> tuple[float, int] | None:
        """Return the speed of a running job as a fraction of full speed, and its work so far, in ms at full speed.

        Return None if limits count time on the clock.
        """
        return None

    def is_paused(self, job_id: int) -> bool:
        """Whether a started job is paused on its nodes because another job has them."""
        return False

    def pause_reason(self, now_ms: int, job_id: int) -> str:
        """Return for which job a job is paused, since when, and until when; empty if it is not paused."""
        return ""

    def form_of(self, job_id: int) -> JobForm | None:
        """Return the form of a running job; None if the job has no forms of its own."""
        return None

    def rate_of(self, job_id: int) -> int:
        """Return the rate of a running job on its nodes; for a paused job, its rate when it works."""
        return RATE_ONE

    # Traits.learns

    def learn(self, now_ms: int, job_id: int) -> None:  # noqa: B027
        """Learn from a running job that has succeeded; ``ended`` follows."""

    def answer(self, question: str) -> Any:
        """Return what has been learned about `question`, as plain data; None if the question is unknown."""
        return None

    def edit_problem(self, changes: Any) -> str | None:
        """Return why ``edit`` cannot read some changes, in one line, or None."""
        return "this discipline learns nothing that can be edited"

    def edit(self, changes: Any) -> None:  # noqa: B027
        """Change what has been learned; `changes` is plain data for which ``edit_problem`` returns None."""

    # Traits.elastic

    @property
    def in_use(self) -> int:
        """Nodes of jobs that are placed and have not started, as a bit mask; may include the nodes of running jobs."""
        return 0

    def serve(self, now_ms: int, nodes: int) -> None:  # noqa: B027
        """Use only these nodes, given as a bit mask; for disciplines that choose nodes.

        No job starts on other nodes; jobs that run there stay until they end.
        """

    def resize(self, by: int) -> None:  # noqa: B027
        """Add this many free nodes, or remove some if negative; for disciplines that only count nodes."""

    def protect(self, job_id: int) -> None:  # noqa: B027
        """Never evict a running job from now on: some of its nodes are about to leave."""

    # Results of simulations.

    def figures(self, now_ms: int, job_id: int) -> tuple[float, ...]:
        """Return the figures of a job that ends now, before ``ended``: one for each of `Traits.columns`."""
        return ()

    def totals(self) -> Mapping[str, float]:
        """Return the totals so far by name, for `Entry.metrics`."""
        return {}

    def switches_after(self, count: int) -> Sequence[tuple[int, int]]:
        """Return the switches of policy after the first `count`, as (instant, number of the policy).

        A simulation of a discipline with `Traits.columns` calls this after every step; older switches may be dropped.
        """
        return ()

    def report(
        self,
        switches: Sequence[tuple[int, int]],
        columns: Mapping[str, npt.NDArray[np.float64]],
        has_started: npt.NDArray[np.bool_],
    ) -> object:
        """Return the value of ``result.own`` for users, at the end of a simulation.

        Parameters
        ----------
        switches : sequence of (int, int)
            All switches of the run, as from `switches_after`.
        columns : mapping from str to numpy.ndarray of float64, shape (n,)
            The figures of each job of the workload, by `Traits.columns`.
        has_started : numpy.ndarray of bool, shape (n,)
        """
        return None
