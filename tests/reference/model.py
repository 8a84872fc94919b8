"""The records of the slow reference: jobs, reservations, limits, and what a simulation says about them.

The reference follows docs/disciplines.md sentence by sentence. It is slow and plain on purpose: no arrays, no caches,
no profile that is kept up to date. It shares no code with the package, so that the two can be compared.

All times are whole milliseconds. The names carry no unit because these records know no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

DAY = 24 * 60 * 60 * 1000
WEEK = 7 * DAY
NEVER = 2**62
"""The start of a job that needs more nodes than are left."""


@dataclass(frozen=True)
class Job:
    """One rigid job."""

    id: int
    submit: int
    width: int
    estimate: int
    run: int
    weight: float = 1.0
    priority: int = 0
    user: int | str | None = None

    @property
    def length(self) -> int:
        """Time for which the job runs when nobody cancels it: it is killed at its estimate."""
        return min(self.run, self.estimate)


@dataclass(frozen=True)
class Reservation:
    """A request for nodes from a given start on (planning only).

    ``request`` is the instant at which it is asked for. ``place`` is the number of jobs submitted at that very instant
    that stand before the request; None means all of them. Requests with the same place stand in the order given.
    """

    id: int | str
    request: int
    start: int
    length: int
    width: int
    place: int | None = None


@dataclass(frozen=True)
class Answer:
    """What a request for a reservation was told.

    ``start`` is the start that was accepted; for a refusal the earliest start, not before the one asked for, at which
    the same request would be accepted, or None if there is none (it is wider than the machine).
    """

    accepted: bool
    start: int | None


@dataclass(frozen=True)
class Window:
    """Times of the week, from ``from_ms_of_day`` up to and not including ``to_ms_of_day`` on the days given.

    Days are 0 (Monday) to 6. Where ``to`` is not after ``from``, the window ends on the day after the one named.
    """

    days: frozenset[int]
    from_ms_of_day: int
    to_ms_of_day: int


@dataclass(frozen=True)
class Limit:
    """A rule for some of the jobs: either no start within ``window``, or at most so many nodes or jobs at one time."""

    wider_than: int = 0
    longer_than_ms: int = 0
    user: int | str | None = None
    window: Window | None = None
    max_nodes: int | None = None
    max_jobs: int | None = None


@dataclass(frozen=True)
class NodeEvent:
    """What happens to some nodes at an instant: they go down, drain, or are up again."""

    at: int
    kind: str
    nodes: frozenset[int]


@dataclass(frozen=True)
class Running:
    """A job that has started and not ended; ``nodes`` are its nodes that are not out (where nodes fail)."""

    job: Job
    start: int
    nodes: frozenset[int] | None = None

    @property
    def width(self) -> int:
        """What is free for others when it ends."""
        return self.job.width if self.nodes is None else len(self.nodes)

    @property
    def end_by_estimate(self) -> int:
        """The end that the site reckons with."""
        return self.start + self.job.estimate

    @property
    def end(self) -> int:
        """The end that only the simulation knows."""
        return self.start + self.job.length


@dataclass(frozen=True)
class Moment:
    """What one scheduling pass did and promised.

    ``head`` to ``extra`` are what a queue showed its head before it looked for candidates (None where no head was left
    waiting, and without backfilling). ``plan`` is, for conservative backfilling and planning, the start of every job
    that waited when the pass began, those that it started included.
    """

    now: int
    started: tuple[int, ...] = ()
    head: int | None = None
    shadow: int | None = None
    promise: int | None = None
    limit: int | None = None
    extra: int | None = None
    plan: dict[int, int] = field(default_factory=dict)


@dataclass
class Outcome:
    """The whole story of one simulation.

    ``cancelled`` holds the jobs that a cancellation met while they waited (then they have no start) or while they ran
    (then they end at that instant). ``reservations`` holds the requests with their answers, by id. ``evictions`` are
    (instant, evicted job, the job for which) in their order.
    """

    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    cancelled: dict[int, int] = field(default_factory=dict)
    restarts: dict[int, int] = field(default_factory=dict)
    evictions: list[tuple[int, int, int]] = field(default_factory=list)
    reservations: dict[int | str, tuple[Reservation, Answer]] = field(default_factory=dict)
    log: list[Moment] = field(default_factory=list)


@dataclass
class State:
    """What a discipline may look at: the machine, the jobs on it, the jobs that wait, and the time.

    ``rank`` orders the queue before all else; ``whole`` has jobs as they were submitted, by id, which now are shorter.
    """

    nodes: int
    order: str
    aging: float
    now: int = -1
    running: list[Running] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    rank: Callable[[Job], tuple[float, ...]] = lambda job: ()
    whole: dict[int, Job] = field(default_factory=dict)
