"""What a discipline is: what a `SiteCore` asks of one, and what everybody else has to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.site.disciplines.compiled import Compiled
from gridweave.site.disciplines.known_times import KnownTimes
from gridweave.site.explain import SiteReason
from gridweave.site.job import Job, JobForm, NodeIntervals, Running
from gridweave.site.kernels.limits import WeekClock
from gridweave.site.messages import BatchSeen
from gridweave.site.state import HasState


class Discipline(HasState, Protocol):
    """Which job starts when, on a number of nodes: what `SiteCore` asks of a discipline.

    Time never goes backwards from call to call. Of one instant the calls come in this order: ``ended`` and
    ``withdraw``, then ``submit`` and ``reserve``, then one ``run_pass``. A discipline may also be one that
    `KeepsReservations`, `ChoosesNodes`, `ChangesRates`, `MovesJobs`, `EvictsJobs`, `KeepsFigures` or `TellsSwitches`.
    """

    def why_never(self, job: Job) -> str | None:
        """Return why a job could never start here, or None."""

    def submit(self, now_ms: int, job: Job) -> None:
        """Take in a job."""

    def ended(self, now_ms: int, job_id: int) -> None:
        """Take out a running job."""

    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        """Expect a running job that shares its nodes with none to end at another instant, after now."""

    def withdraw(self, now_ms: int, job_id: int) -> None:
        """Take out a waiting job."""

    def run_pass(self, now_ms: int) -> list[Job]:
        """Start what may start now; return these jobs, in the order in which they were started."""

    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return how many nodes a job of this length, submitted now, could have at once."""

    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job submitted now would start, if estimates held and nothing else came; None: never."""

    def next_wakeup_ms(self) -> int | None:
        """Return the next instant at which there is to be a pass though nothing happens; None: there is none."""

    def next_end_ms(self) -> int | None:
        """Return the first end by estimate of a running job."""

    def running(self) -> Iterator[Running]:
        """Yield the running jobs, by their end by estimate."""

    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in the order of the queue, with the start that each has been promised, if any."""

    def aside(self) -> Self:
        """Return what can be asked anything, and leaves no trace of that here; nothing may happen to it."""

    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start, and why not earlier; nodes of the site and free ones are filled in."""

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""


@runtime_checkable
class KeepsReservations(Protocol):
    """What `SiteCore` asks besides of a discipline by which nodes can be reserved in advance."""

    def reserve(self, now_ms: int, reservation_id: int, start_ms: int, length_ms: int, width: int) -> int | None:
        """Reserve nodes; return the earliest start at which they could be had: ``start_ms`` if they now are.

        None if this site makes no reservations, or these never fit.
        """

    def unreserve(self, now_ms: int, reservation_id: int) -> None:
        """Give back a reservation, or what is left of it."""


class SharedOffer(NamedTuple):
    """How many times as long as alone a job would take that starts now on nodes of others, and which jobs these are."""

    slowdown: float
    beside: tuple[int, ...] = ()  # none: the discipline does not say


@runtime_checkable
class ChoosesNodes(Protocol):
    """What `SiteCore` asks besides of a discipline that says on which nodes a job runs.

    Its jobs may share nodes. To the jobs of all other disciplines the site gives nodes of their own, the lowest first.
    """

    @property
    def lanes(self) -> tuple[int, int]:
        """Cores of the largest node, and hardware threads of the core with most: as ``place_of`` counts them."""

    @property
    def free(self) -> int:
        """Nodes on which no job is."""

    def place_of(self, job_id: int) -> tuple[NodeIntervals, NodeIntervals]:
        """Return the nodes and the hardware threads of a running job."""

    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        """Return how a job could start now on nodes shared with running jobs, or None if it could not."""


@runtime_checkable
class ServesNodes(Discipline, ChoosesNodes, Protocol):
    """What a site with pilots asks besides of a discipline that `ChoosesNodes`: it stands that nodes come and go."""

    @property
    def in_use(self) -> int:
        """Nodes on which a job is, or is to begin, as the bits of a number."""

    def serve(self, now_ms: int, nodes: int) -> None:
        """Have these nodes in service, the bits of a number, and no others.

        No job is put on others; those that are there stay until they end. Nodes that come have no job on them.
        """


@runtime_checkable
class ChangesRates(Protocol):
    """What `SiteCore` asks besides of a discipline under which a job may run slower, pause and go on."""

    def take_rates(self) -> list[tuple[int, int]]:
        """Return (job id, rate) of the running jobs whose rate is another than was told, by job id.

        A job starts at `gridweave.site.kernels.work.RATE_ONE`; at rate 0 it pauses.
        """


@runtime_checkable
class CountsWork(Protocol):
    """What `SiteCore` asks besides of a discipline under which limits count work, and not time on the clock."""

    def progress_of(self, now_ms: int, job_id: int) -> tuple[float, int]:
        """Return at which part of full speed a running job works now, and how much it has done, in ms at full speed."""


@runtime_checkable
class MovesStarts(Protocol):
    """What `SiteCore` asks besides of a discipline that may move a start that it has told, by a rule of its own."""

    def why_starts_move(self) -> str:
        """Say what is in force now and by which rule that changes, in half a sentence for explanations and quotes."""


@runtime_checkable
class MovesJobs(Protocol):
    """What `SiteCore` asks besides of a discipline that moves running jobs to other nodes; it `ChoosesNodes` too."""

    def take_moves(self) -> list[int]:
        """Return the running jobs that have other nodes than was told, by job id."""


PILOT = 0
"""Stands where jobs have their number, of nodes that a batch system is asked for ahead of any job."""


class NodesAsked(NamedTuple):
    """Nodes that a batch system is to be asked for, or that it has given: those of a job, or of a pilot."""

    job: Job  # of a pilot one that says how many nodes for how long, with the number `PILOT`
    ask: int  # a number that no other of the site ever has
    has_started: bool
    places: tuple[int, ...] = ()  # of a pilot: which nodes of the site its own are
    was_seen: bool = False  # whether the batch system has told of it


@runtime_checkable
class AsksBatchSystem(Protocol):
    """What `SiteCore` asks besides of a discipline whose nodes belong to a batch system.

    The batch system is asked for nodes for each job, and when they are there the job starts on them; or for pilots,
    nodes ahead of any job, in which the site decides what starts.
    """

    @property
    def inside(self) -> Discipline:
        """What decides on the nodes that are there, and may change rates, move or evict jobs: this or another."""

    @property
    def longest_job_ms(self) -> int | None:
        """The longest estimate of a job that can ever run here, as far as is known; None: any."""

    def overdue(self, now_ms: int) -> list[int]:
        """Return the jobs that run on nodes whose time is up, by number."""

    @property
    def absent(self) -> int:
        """Nodes of the site that no job can have now, as the batch system has not given them."""

    def wished(self, now_ms: int, width: int) -> None:
        """Take note that the grid looks for nodes for a job that is wider than the site."""

    def coming(self, now_ms: int, length_ms: int) -> tuple[int, int | None]:
        """Return how many nodes nobody needs, for a job of this length, once all have come that are on their way; when.

        None: it is not known, or none are on their way.
        """

    def note(self, now_ms: int) -> str:
        """Say what a grid should know that cannot place such a job: half a sentence, or nothing."""

    def nodes_asked(self, now_ms: int) -> list[NodesAsked]:
        """Return all that the batch system should have been asked for by now, and what it has given and is in use."""

    def batch_seen(self, now_ms: int, seen: BatchSeen) -> list[tuple[int, str]]:
        """Take in how the batch system is; return the waiting jobs that it will not have, and why."""

    @property
    def idle(self) -> int:
        """Nodes of the site that nobody has, as far as is seen: neither its jobs nor others."""

    def take_delays(self, now_ms: int) -> list[tuple[int, int | None]]:
        """Return the jobs that turn out to wait, or to start later still, and when they start; None: it is not known.

        Each is told once for each time that it is put off.
        """


class ExpectedRun(NamedTuple):
    """How a job would run that were submitted now, as is expected."""

    start_ms: int
    nodes: int
    length_ms: int
    ahead: int | None = None  # how many jobs would stand before it in the queue; None: all that wait
    evicts: bool = False  # whether it would start now on nodes of jobs that are evicted, or paused, for it


@runtime_checkable
class ExpectsRuns(Protocol):
    """What `SiteCore` asks besides of a discipline in which width and limit do not tell how a job would run.

    As it has levels, or forms, or runs for other times than it says.
    """

    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        """Return how a job would run that were submitted now; None if it never could."""


@runtime_checkable
class ExpectsEnds(Protocol):
    """What `SiteCore` asks besides of a discipline whose jobs end at other times than by their limits."""

    def expected_ends(self, now_ms: int) -> list[int]:
        """Return when each node in service is expected to have nothing to run; an instant that has passed: now."""


class Eviction(NamedTuple):
    """A running job that was put back into the queue: what `gridweave.site.messages.EvictJob` says of it."""

    job_id: int
    keeps_work: bool  # whether it keeps what it has done
    by: int  # the job that has its nodes
    reason: str  # in one line


@runtime_checkable
class EvictsJobs(Protocol):
    """What `SiteCore` asks besides of a discipline that takes running jobs off their nodes, to run again later."""

    def is_paused(self, job_id: int) -> bool:
        """Return whether a running job stands still on its nodes, as others have them."""

    def why_paused(self, now_ms: int, job_id: int) -> str:
        """Return for which job one stands still that does, since when, and until when."""

    def take_evictions(self) -> list[Eviction]:
        """Return the jobs that the last pass has put back into the queue, in the order in which it did."""


@runtime_checkable
class KeepsFigures(Protocol):
    """What a simulation asks besides of a discipline that tells more of its jobs, or of itself, than when they ran."""

    def figures_of(self, now_ms: int, job_id: int) -> tuple[float, ...]:
        """Return the figures of a job that ends now, before that is told: one for each of `Entry.columns`."""

    def totals(self) -> Mapping[str, float]:
        """Return what has been counted so far, by name, for `Entry.metrics`."""


@runtime_checkable
class TellsSwitches(Protocol):
    """What a simulation asks besides of a discipline that switches from one of its policies to another."""

    def switches_after(self, count: int) -> list[tuple[int, int]]:
        """Return (instant, number of the policy) of the switches behind the first so many; not all, if they are many.

        A simulation asks after every step.
        """

    def own(self, switches: Sequence[tuple[int, int]], started_by: npt.NDArray[np.int64]) -> object:
        """Return what a simulation tells as ``result.own``.

        Parameters
        ----------
        switches : sequence of (int, int)
            All of the run, as (instant, number of the policy).
        started_by : numpy.ndarray of int64, shape (n,)
            The policy in force when each job started, the first of `Entry.columns`; -1 if it did not.
        """


@runtime_checkable
class TellsAtEnd(Protocol):
    """What a simulation asks besides of a discipline that tells of a run, once that is over, what it has learned."""

    def own_at_end(self) -> object:
        """Return what a simulation tells as ``result.own``."""


@runtime_checkable
class ChoosesForms(Protocol):
    """What `SiteCore` asks besides of a discipline whose jobs may have several forms (`Entry.has_forms`)."""

    def form_of(self, job_id: int) -> JobForm | None:
        """Return in which of the forms that it has of its own a running job runs; None if it has none."""

    def rate_of(self, job_id: int) -> int:
        """Return at which rate a running job works where it is, unless it is paused."""


@runtime_checkable
class LearnsTimes(Protocol):
    """What `SiteCore` asks besides of a discipline that learns how long jobs take."""

    def learn(self, now_ms: int, job_id: int) -> None:
        """Learn from a running job that has come to a good end of its own; ``ended`` follows."""

    def known_times(self) -> tuple[KnownTimes, ...]:
        """Return what is known of run times now."""

    def edit_times(self, changes: Sequence[KnownTimes]) -> None:
        """Put other times in the place of those of the same kind; those of 0 runs are forgotten."""


class Played(NamedTuple):
    """What a simulation of one site came to, for the metrics of its discipline.

    Attributes
    ----------
    nodes : int
        Of the site.
    submit_ms, start_ms, end_ms, width, run_ms : numpy.ndarray of int64, shape (m,)
        Of every job that ran, at least one, in the order of submission; ``run_ms`` is its run time alone at full rate.
    columns : mapping from str to numpy.ndarray, shape (m,)
        The figures of each, under the names `Entry.columns`.
    totals : mapping from str to float
        As from `KeepsFigures.totals` at the end.
    """

    nodes: int
    submit_ms: npt.NDArray[np.int64]
    start_ms: npt.NDArray[np.int64]
    end_ms: npt.NDArray[np.int64]
    width: npt.NDArray[np.int64]
    run_ms: npt.NDArray[np.int64]
    columns: Mapping[str, npt.NDArray[Any]]
    totals: Mapping[str, float]


class Policy(Protocol):
    """How a site schedules: of any discipline, a frozen struct."""

    @property
    def discipline(self) -> str:
        """The name of the discipline, a key of `gridweave.site.disciplines.dictionary.DISCIPLINES`."""

    @property
    def label(self) -> str:
        """What tables and plots call it; it tells apart any two that schedule differently."""


@runtime_checkable
class TakesKinds(Protocol):
    """What `gridweave.simulate` asks besides of a policy of nodes that are not all alike."""

    def on(self, nodes: Any) -> tuple[int | None, Policy]:
        """Return how many nodes there are, and the policy for them; ``nodes`` may be kinds of nodes, or None."""


Options = Mapping[str, Any]
"""Options of a site by name; one that is None was left out."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A discipline, as the dictionary has it.

    Attributes
    ----------
    name : str
        What policies, scenario files and commands call it.
    about : str
        What it does, in one line.
    make : callable
        Takes the nodes, the policy, and the local time of instant zero from Monday 00:00 in ms; returns a `Discipline`.
    read : callable
        Takes the nodes, the options that were given for the site, and those that hold where nothing else was said;
        returns the `Policy`. Of the first it refuses what it does not know (`refuse_unknown`); the others it passes
        over.
    backfills : tuple of str
        The backfillings that it knows, the default first.
    table : type of msgspec.Struct, optional
        Its own options: the keys of a table at the site in a scenario and in GRID.toml, called ``table_key``, and the
        ``--option`` of the command. It is handed to ``read`` under the name ``table_key``.
    shares_nodes : bool
        Whether several jobs may be on a node.
    gives_fractions : bool
        Whether jobs have parts of nodes, so that several tasks of one may be on a node: that stands then in as many
        intervals of a `StartJob` or `MoveJob` as there are. Such a site takes no part of a job on several sites
        (`takes_parts`).
    has_forms : bool
        Whether its machines differ in speed, and jobs may have several forms, of which it chooses: a job may have other
        nodes than it is wide.
    live_only : bool
        Whether only a live site can have it, and no simulation.
    asks_week : callable
        Takes a policy; returns whether it has windows: parts of the week, in the site's local time.
    decides : callable
        Takes a policy; returns that by which jobs are given nodes: of a site with pilots that of these, else the same.
    inside : callable, optional
        Takes the table of a site, if it has one; returns the discipline whose options the site may have, too: that of
        its pilots.
    longest_stay_ms : callable, optional
        Takes a policy and an estimate in ms; returns how long a job may have its nodes by that, as a rule. None: no
        such time can be told, or which nodes there are must be known, so its jobs cannot run in pilots. Its discipline
        is one that `ServesNodes`, or is stepped by `gridweave.site.disciplines.queue.ArrayDiscipline`.
    is_in_control : callable
        Takes the table of a site, if it has one; returns whether the site itself decides what starts when, so that a
        grid may have full control.
    shares_time : bool
        Whether jobs that have started also pause or run at a fraction of their speed, which metrics count as waiting.
    uses_resources : bool
        Whether it counts what jobs need of CPU, network, disk and memory: the columns of a workload
        `gridweave.scenarios.workload.columns.RESOURCE_COLUMNS`, the field ``resources`` of a `Job`.
    needs : tuple of str
        Columns that a workload must have for it, each of numbers above 0 and up to 1.
    keeps_reservations : bool
        Whether nodes can be reserved in advance.
    slices_time : bool
        Whether a running job may stand still while others have its nodes. Such a site takes no part of a job on several
        sites (`takes_parts`): that would wait for itself.
    may_pause : callable
        Takes a policy; returns whether a job may stand still while those that evicted it have its nodes. Others of its
        jobs are on nodes that nobody else has, so it takes parts of jobs on several sites, and these are not paused.
    saves_work : callable
        Takes a policy; returns whether a job that has to leave its nodes saves its work, and goes on from there.
    columns : tuple of str
        What a simulation tells of each job besides, in ``jobs.csv`` and as ``result.columns``; names with units. The
        discipline is one that `KeepsFigures`.
    labels : callable, optional
        Takes a policy and returns, for each column whose numbers stand for names, the names of 0, 1, ...
    remarks : callable, optional
        Takes a policy and the width of the widest job; returns what a user should know of the two, a line each.
    metrics : callable, optional
        Takes what was `Played`; returns metrics of its own by name, with units, for tables, ``summary.json`` and
        ``result.own_metrics``.
    compiled : Compiled, optional
        How simulations play it in the compiled loop, if its decisions are kernels; else they step it event by event.
    variants : mapping from str to policy
        Policies with names of their own, which `gridweave.simulate` takes in their place.
    """

    name: str
    about: str
    make: Callable[[int, Any, WeekClock], Discipline]
    read: Callable[[int, Options, Options], Policy]
    backfills: tuple[str, ...] = ("easy", "none")
    table: type[msgspec.Struct] | None = None
    table_key: str = ""
    shares_nodes: bool = False
    gives_fractions: bool = False
    has_forms: bool = False
    live_only: bool = False
    asks_week: Callable[[Any], bool] = lambda _policy: False
    decides: Callable[[Any], Policy] = lambda policy: policy
    inside: Callable[[Any], str] | None = None
    longest_stay_ms: Callable[[Any, int], int] | None = None
    is_in_control: Callable[[Any], bool] = lambda _table: True
    shares_time: bool = False
    uses_resources: bool = False
    needs: tuple[str, ...] = ()
    keeps_reservations: bool = False
    slices_time: bool = False
    may_pause: Callable[[Any], bool] = lambda _policy: False
    saves_work: Callable[[Any], bool] = lambda _policy: False
    columns: tuple[str, ...] = ()
    labels: Callable[[Any], Mapping[str, Sequence[str]]] | None = None
    remarks: Callable[[Any, int], Sequence[str]] | None = None
    metrics: Callable[[Played], Mapping[str, float]] | None = None
    compiled: Compiled | None = None
    variants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def takes_parts(self) -> bool:
        """Whether a site takes parts of jobs on several sites: one that is slow, or pauses, has the others wait."""
        return not (self.slices_time or self.gives_fractions)


def one_of(names: Sequence[str], description: str) -> msgspec.Meta:
    """Return what the schema of scenarios says of an option that is one of some names."""
    return msgspec.Meta(description=description, extra_json_schema={"enum": list(names)})


def until_its_limit(_policy: Policy, estimate_ms: int) -> int:
    """Return how long a job has its nodes that runs at full speed: as ``longest_stay_ms`` of an `Entry`."""
    return estimate_ms


def must_end_by(running: Iterable[Running], start_ms: int | None) -> tuple[int, ...]:
    """Return the running jobs that end by a start, by their estimates: ``waits_for`` of a `SiteReason`."""
    return tuple(run.job.job_id for run in running if start_ms is not None and run.end_by_estimate_ms <= start_ms)


def refuse_unknown(given: Options, known: tuple[str, ...], why: str) -> None:
    """Refuse options that a discipline does not know.

    Parameters
    ----------
    why : str
        What is said of such an option, behind its value.

    Raises
    ------
    OptionError
        For the first of them.
    """
    for name, value in given.items():
        if value is not None and name not in known:
            raise OptionError(name, f"{value!r} {why}")
