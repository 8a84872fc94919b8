"""The grid under full control (docs/grid.md).

Everything is computed from the running jobs whenever it is asked for: no table of free nodes is kept up to date.
Jobs, times and orders are those of `reference.model`; nothing is shared with the package.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from reference.model import Job
from reference.ordering import ORDERS, key_of
from reference.simulation import simulate

MODES = ("local", "sharing", "multi-site", "adaptive")
BACKFILLS = ("easy", "none")
HEAD_RESERVATIONS = ("anywhere", "single-site", "nothing")
SELECTIONS = ("best-fit", "biggest-free", "equal-util", "random", "earliest-end")
NEVER_PLACED = "could not be placed on the idle grid"

# The parts of a job: (site, nodes there), in the order in which they were taken.
Fragments = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GridMoment:
    """What one scheduling pass did and promised.

    ``head`` to ``extra`` are what the head was shown before candidates were looked for (None where no head was left
    waiting, and without backfilling). ``extra`` has an entry for each site. In mode ``local`` a moment is one of a
    single ``site``, and ``extra`` has its entry alone.
    """

    now: int
    started: tuple[int, ...] = ()
    head: int | None = None
    shadow: int | None = None
    reserved: Fragments | None = None
    extra: tuple[int, ...] | None = None
    site: int | None = None


@dataclass
class GridOutcome:
    """The whole story of one simulation, by job id."""

    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    fragments: dict[int, Fragments] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    log: list[GridMoment] = field(default_factory=list)


@dataclass(frozen=True)
class Rules:
    """What `simulate_grid` was asked for, and what follows from it for one job."""

    nodes: tuple[int, ...]
    mode: str = "sharing"
    order: str = "fcfs"
    backfill: str = "easy"
    selection: str = "best-fit"
    overhead: float | Sequence[float] = 0.0
    lower_bound: int = 0
    max_fragments: Sequence[tuple[int, int]] | None = None
    draws: Mapping[int, float] | None = None
    sensitivity: Mapping[int, float] | None = None
    head_reservation: str = "anywhere"

    @property
    def overheads(self) -> Sequence[float]:
        """The overhead by the number of fragments, from 2 on."""
        return [self.overhead] if isinstance(self.overhead, (int, float)) else self.overhead

    def takes(self, job: Job, time: int, fragments: Fragments) -> int:
        """Return how long a job takes, placed like that, for what takes ``time`` on one site."""
        if len(fragments) == 1:
            return time
        by_number = dict(enumerate(self.overheads, start=2))
        part = by_number.get(len(fragments), self.overheads[-1])
        return time + math.floor(float(time) * (float(part) * float((self.sensitivity or {}).get(job.id, 1))))

    def allowed_fragments(self, width: int) -> float:
        """Return the number of fragments that a width may have, infinity if there is no limit."""
        return next((fragments for bound, fragments in self.max_fragments or () if width <= bound), math.inf)

    def may_be_split(self, job: Job) -> bool:
        """Return whether a job may be split at all."""
        splits = self.mode in ("multi-site", "adaptive")
        return splits and (job.width > self.lower_bound or job.width > max(self.nodes))


@dataclass(frozen=True)
class GridRunning:
    """A job that has started and not ended."""

    job: Job
    fragments: Fragments
    end_by_estimate: int
    end: int


def simulate_grid(
    jobs: Iterable[Job],
    nodes: Sequence[int],
    *,
    mode: str = "sharing",
    order: str = "fcfs",
    backfill: str = "easy",
    selection: str = "best-fit",
    overhead: float | Sequence[float] = 0.0,
    lower_bound: int = 0,
    max_fragments: Sequence[tuple[int, int]] | None = None,
    home: Mapping[int, int] | None = None,
    draws: Mapping[int, float] | None = None,
    sensitivity: Mapping[int, float] | None = None,
    head_reservation: str = "anywhere",
) -> GridOutcome:
    """Run jobs on several sites under full control and return the whole story.

    Parameters
    ----------
    jobs : iterable of Job
        In any order. Jobs of one instant are submitted in ascending order of their id.
    nodes : sequence of int
        Nodes of each site.
    mode : {"local", "sharing", "multi-site", "adaptive"}
    order, backfill, selection : str
        Names in `reference.ordering.ORDERS` (``priority`` is without aging), `BACKFILLS` and `SELECTIONS`.
    overhead : float or sequence of float
        By which part of it the time of a split job grows; several numbers: in 2, 3, ... fragments, and as the last one
        in more.
    lower_bound : int
        Only wider jobs are split.
    max_fragments : sequence of (int, int), optional
        Rows of (width up to, fragments allowed).
    home, draws : mapping of int to int, and of int to float, optional
        Of each job id its site, for mode ``local``, and its number in [0, 1), for selection ``random``.
    sensitivity : mapping of int to float, optional
        Of each job id by what its overhead is multiplied; 1 if it is not there.
    head_reservation : str
        One of `HEAD_RESERVATIONS`.

    Returns
    -------
    GridOutcome

    Raises
    ------
    ValueError
        If the arguments make no sense.
    """
    jobs = list(jobs)
    rules = Rules(
        tuple(nodes),
        mode,
        order,
        backfill,
        selection,
        overhead,
        lower_bound,
        max_fragments,
        draws,
        sensitivity,
        head_reservation,
    )
    _check(rules, jobs, home)
    if mode == "local":
        return _simulate_locally(jobs, rules, home or {})
    outcome = GridOutcome()
    for job in jobs:
        if place(rules, job, 0, [], rules.nodes) is None:
            outcome.refused[job.id] = NEVER_PLACED
    jobs = [job for job in jobs if job.id not in outcome.refused]
    running: list[GridRunning] = []
    waiting: list[Job] = []
    now = -1
    submits = [job.submit for job in jobs]
    while upcoming := [instant for instant in [*submits, *(one.end for one in running)] if instant > now]:
        now = min(upcoming)
        running = [one for one in running if one.end > now]
        waiting += [job for job in jobs if job.submit == now]
        queue = sorted(waiting, key=lambda job: (key_of(job, order, math.inf), job.submit, job.id))
        started, moment = run_pass(rules, now, running, queue)
        for one in started:
            waiting.remove(one.job)
            running.append(one)
            outcome.start[one.job.id] = now
            outcome.end[one.job.id] = one.end
            outcome.fragments[one.job.id] = one.fragments
        outcome.log.append(moment)
    assert not waiting, "the simulation stopped with jobs that wait"
    return outcome


def _simulate_locally(jobs: Sequence[Job], rules: Rules, home: Mapping[int, int]) -> GridOutcome:
    """Run each site by itself; its queue is the one of docs/disciplines.md."""
    outcome = GridOutcome()
    widths = {job.id: job.width for job in jobs}
    for site, nodes in enumerate(rules.nodes):
        mine = [job for job in jobs if home[job.id] == site]
        alone = simulate(mine, nodes, order=rules.order, backfill=rules.backfill)
        outcome.start |= alone.start
        outcome.end |= alone.end
        outcome.refused |= alone.refused
        outcome.fragments |= {job_id: ((site, widths[job_id]),) for job_id in alone.start}
        for one in alone.log:
            reserved = None if one.head is None else ((site, widths[one.head]),)
            extra = None if one.extra is None else (one.extra,)
            outcome.log.append(GridMoment(one.now, one.started, one.head, one.shadow, reserved, extra, site))
    outcome.log.sort(key=lambda moment: (moment.now, moment.site))
    return outcome


def free_at(rules: Rules, running: Sequence[GridRunning], instant: int) -> tuple[int, ...]:
    """Return the free nodes of each site at an instant, by the estimates of the running jobs."""
    free = list(rules.nodes)
    for one in running:
        if one.end_by_estimate > instant:
            for site, width in one.fragments:
                free[site] -= width
    return tuple(free)


def place(
    rules: Rules,
    job: Job,
    instant: int,
    running: Sequence[GridRunning],
    available: Sequence[int],
) -> Fragments | None:
    """Return where a job is placed at an instant with these nodes available on each site, None if nowhere."""
    return place_whole(rules, job, instant, running, available) or place_split(rules, job, instant, running, available)


def place_whole(
    rules: Rules, job: Job, instant: int, running: Sequence[GridRunning], available: Sequence[int]
) -> Fragments | None:
    """Return on which one site a job is placed at an instant, None if on none."""
    fitting = [site for site in range(len(rules.nodes)) if available[site] >= job.width]
    if not fitting:
        return None
    return ((select(rules, job, fitting, free_at(rules, running, instant)), job.width),)


def place_split(
    rules: Rules, job: Job, instant: int, running: Sequence[GridRunning], available: Sequence[int]
) -> Fragments | None:
    """Return how a job is split at an instant, None if it cannot be, may not be, or is not to be."""
    fragments = split(rules, job, available) if rules.may_be_split(job) else None
    if fragments is not None and rules.mode == "adaptive":
        alternative = earliest_end_on_one_site(rules, job, instant, running)
        if alternative is not None and not instant + rules.takes(job, job.estimate, fragments) < alternative:
            return None
    return fragments


def select(rules: Rules, job: Job, fitting: Sequence[int], free: Sequence[int]) -> int:
    """Return the site that is chosen among those on which a job fits, given in site order."""
    if rules.selection == "earliest-end":
        return fitting[0]  # from now on, for its estimate, wherever it is
    if rules.selection == "random":
        assert rules.draws is not None
        return fitting[math.floor(rules.draws[job.id] * len(fitting))]

    def rank(site: int) -> Fraction:
        if rules.selection == "best-fit":
            return Fraction(free[site])
        if rules.selection == "biggest-free":
            return Fraction(-free[site])
        return Fraction(rules.nodes[site] - free[site], rules.nodes[site])

    return min(fitting, key=lambda site: (rank(site), site))


def split(rules: Rules, job: Job, available: Sequence[int]) -> Fragments | None:
    """Return the fragments of a job on the sites with the most nodes, None if they are too many or do not suffice."""
    fragments: list[tuple[int, int]] = []
    missing = job.width
    for site in sorted(range(len(rules.nodes)), key=lambda site: (-available[site], site)):
        part = min(available[site], missing)
        if part > 0:
            fragments.append((site, part))
            missing -= part
    if missing > 0 or len(fragments) > rules.allowed_fragments(job.width):
        return None
    return tuple(fragments)


def earliest_end_on_one_site(rules: Rules, job: Job, instant: int, running: Sequence[GridRunning]) -> int | None:
    """Return the earliest end on a single site from an instant on, None for a job wider than every site."""
    for start in sorted({instant, *(one.end_by_estimate for one in running)}):
        if start >= instant and max(free_at(rules, running, start)) >= job.width:
            return start + job.estimate
    return None


def run_pass(
    rules: Rules, now: int, running: Sequence[GridRunning], queue: Sequence[Job]
) -> tuple[list[GridRunning], GridMoment]:
    """Return the jobs that start now, in the order in which they are chosen, and what was promised to the head."""
    taken = list(running)
    started: list[GridRunning] = []

    def start(job: Job, fragments: Fragments) -> GridRunning:
        by_estimate, actual = (now + rules.takes(job, time, fragments) for time in (job.estimate, job.length))
        one = GridRunning(job, fragments, by_estimate, actual)
        taken.append(one)
        started.append(one)
        return one

    left = list(queue)
    free = free_at(rules, taken, now)
    while left and (fragments := place(rules, left[0], now, taken, free)):
        start(left.pop(0), fragments)
        free = free_at(rules, taken, now)
    if not left or rules.backfill == "none":
        return started, GridMoment(now, tuple(one.job.id for one in started))

    head = left.pop(0)
    shown: tuple[object, ...] = ()
    shadow: float = math.inf
    extra = list(free_at(rules, taken, now))
    if rules.head_reservation != "nothing":
        shadow, reserved = shadow_of(rules, head, taken)
        extra = list(free_at(rules, taken, shadow))
        for site, width in reserved:
            extra[site] -= width
        shown = (head.id, shadow, reserved, tuple(extra))

    for job in left:
        free = free_at(rules, taken, now)
        both = tuple(min(free[site], extra[site]) for site in range(len(free)))
        fragments = place_whole(rules, job, now, taken, free if now + job.estimate <= shadow else both)
        if not fragments:
            fragments = place_split(rules, job, now, taken, free)
            if not fragments or now + rules.takes(job, job.estimate, fragments) > shadow:
                fragments = place_split(rules, job, now, taken, both)
        if fragments and start(job, fragments).end_by_estimate > shadow:
            for site, width in fragments:
                extra[site] -= width
    return started, GridMoment(now, tuple(one.job.id for one in started), *shown)


def shadow_of(rules: Rules, head: Job, running: Sequence[GridRunning]) -> tuple[int, Fragments]:
    """Return the first end by estimate of a running job at which the head can be placed, and where."""
    for instant in sorted({one.end_by_estimate for one in running}):
        free = free_at(rules, running, instant)
        alone = rules.head_reservation == "single-site" and head.width <= max(rules.nodes)
        if fragments := (place_whole if alone else place)(rules, head, instant, running, free):
            return instant, fragments
    raise AssertionError("a job that was not refused can be placed on the idle grid")


def _check(rules: Rules, jobs: Sequence[Job], home: Mapping[int, int] | None) -> None:
    ids = {job.id for job in jobs}
    homeless = not all((home or {}).get(one, -1) in range(len(rules.nodes)) for one in ids)
    undrawn = not all(0 <= (rules.draws or {}).get(one, -1) < 1 for one in ids)
    wrong = [
        (not rules.nodes or min(rules.nodes) < 1, "there is at least one site, each with at least one node"),
        (rules.mode not in MODES, f"unknown mode {rules.mode!r}"),
        (rules.head_reservation not in HEAD_RESERVATIONS, f"unknown head reservation {rules.head_reservation!r}"),
        (rules.order not in ORDERS, f"unknown order {rules.order!r}"),
        (rules.backfill not in BACKFILLS, f"unknown backfilling {rules.backfill!r}"),
        (rules.selection not in SELECTIONS, f"unknown selection {rules.selection!r}"),
        (not rules.overheads, "there is an overhead"),
        (not all(0 <= part < math.inf for part in rules.overheads), "the overhead is zero or more, and finite"),
        (
            not all(0 <= factor < math.inf for factor in (rules.sensitivity or {}).values()),
            "a sensitivity is zero or more, and finite",
        ),
        (rules.lower_bound < 0, "the lower bound is zero or more"),
        (any(fragments < 1 for _, fragments in rules.max_fragments or ()), "a job has at least one fragment"),
        (len(ids) != len(jobs), "a job id stands twice"),
        (any(job.submit < 0 or min(job.width, job.estimate, job.run) < 1 for job in jobs), "a job is none"),
        (rules.mode == "local" and homeless, "every job needs a home"),
        (rules.mode != "local" and rules.selection == "random" and undrawn, "every job needs a draw in [0, 1)"),
    ]
    if problems := [problem for is_wrong, problem in wrong if is_wrong]:
        raise ValueError(problems[0])
