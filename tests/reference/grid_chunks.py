"""The grid under full control whose sites count resources (docs/resources.md, "Rules", and docs/grid.md).

Everything is computed node by node from the running jobs whenever it is needed; nothing is shared with the package. A
site that does not count resources has plain nodes, of which a job gets whole ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from reference.grid import NEVER_PLACED, Fragments, Rules
from reference.model import Job
from reference.ordering import key_of

Amounts = Mapping[str, int]
"""How much there is of each resource, by name."""

Units = tuple[tuple[int, int], ...]
"""A job's units on the nodes of a site: (node, units), in the order in which the job fills the nodes."""


@dataclass(frozen=True)
class Need:
    """What a job asks for; ``amounts`` are per chunk, with at least one core."""

    amounts: tuple[tuple[str, int], ...]
    per_node: int = 0
    exclusive: bool = False
    labels: frozenset[str] = frozenset()
    gpu_type: str = ""


@dataclass(frozen=True)
class ChunkJob(Job):
    """A job of ``width`` chunks; without a need, of whole nodes."""

    need: Need | None = None

    @property
    def chunks(self) -> int:
        """Number of chunks in a unit."""
        return (self.need.per_node or 1) if self.need else 1

    @property
    def unit(self) -> dict[str, int]:
        """What a unit asks for; nothing for a whole node."""
        return {name: number * self.chunks for name, number in self.need.amounts} if self.need else {}

    @property
    def units(self) -> int:
        """Number of units."""
        return self.width // self.chunks

    @property
    def is_exclusive(self) -> bool:
        """Whether the job's nodes run no other job."""
        return self.need is None or self.need.exclusive


@dataclass(frozen=True)
class Node:
    """A node: what it has, and its names and labels; a plain node is given out whole."""

    amounts: tuple[tuple[str, int], ...] = (("cores", 1),)
    labels: frozenset[str] = frozenset()
    gpu_type: str = ""
    is_plain: bool = False

    def suits(self, job: ChunkJob) -> bool:
        """Whether a job may use this node (rule 1)."""
        need = job.need
        if need is None:
            return True
        return not self.is_plain and need.labels <= self.labels and need.gpu_type in ("", self.gpu_type)


@dataclass(frozen=True)
class Site:
    """The nodes of a site, and the order in which jobs fill them."""

    nodes: tuple[Node, ...]
    placement: str = "best-fit"


@dataclass(frozen=True)
class ChunkRules(Rules):
    """The options of a simulation; ``nodes`` is unused."""

    sites: tuple[Site, ...] = ()

    def largest(self, job: Job) -> int:
        """Return how many chunks of a job fit on one idle site."""
        assert isinstance(job, ChunkJob)
        idle = free_at(self, (), 0)
        return max(chunks_that_fit(self, idle, job))

    def may_be_split(self, job: Job) -> bool:
        """Return whether a job may be split at all."""
        splits = self.mode in ("multi-site", "adaptive")
        return splits and (job.width > self.lower_bound or job.width > self.largest(job))


@dataclass(frozen=True)
class ChunkRunning:
    """A job that has started and not ended; ``held`` are its units on the nodes of each of its fragments' sites."""

    job: ChunkJob
    fragments: Fragments
    held: tuple[Units, ...]
    end_by_estimate: float
    end: float


@dataclass
class ChunkOutcome:
    """What became of the jobs, by job id; ``held`` has the chunks on each node: (site, node, chunks), ascending.

    ``shadows`` are the head and its shadow time for each pass that left a head waiting.
    """

    start: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    fragments: dict[int, Fragments] = field(default_factory=dict)
    held: dict[int, tuple[tuple[int, int, int], ...]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    shadows: list[tuple[int, int, int]] = field(default_factory=list)


Free = list[list[dict[str, int]]]
"""The free amounts of each node of each site."""


def taken_by(job: ChunkJob, node: Node, units: int) -> dict[str, int]:
    """Return what a job's units take on a node."""
    return dict(node.amounts) if job.is_exclusive else {name: units * number for name, number in job.unit.items()}


def free_at(rules: ChunkRules, running: Iterable[ChunkRunning], instant: float) -> Free:
    """Return what is free on each node at an instant, by the estimates of the running jobs."""
    free: Free = [[dict(node.amounts) for node in site.nodes] for site in rules.sites]
    for one in running:
        if one.end_by_estimate > instant:
            for (site, _), held in zip(one.fragments, one.held, strict=True):
                for number, units in held:
                    for name, amount in taken_by(one.job, rules.sites[site].nodes[number], units).items():
                        free[site][number][name] -= amount
                        assert free[site][number][name] >= 0, "more is in use than there is"
    return free


def units_on(node: Node, free: Amounts, job: ChunkJob) -> int:
    """Return how many units of a job fit on a node (rules 1 and 2)."""
    if not node.suits(job) or (job.is_exclusive and free["cores"] < dict(node.amounts)["cores"]):
        return 0
    if job.need is None:
        return 1
    units = min(free.get(name, 0) // amount for name, amount in job.unit.items() if amount)
    return min(units, 1) if job.need.per_node else units


def units_at(site: Site, free: Sequence[Amounts], job: ChunkJob) -> int:
    """Return how many units of a job fit on a site (rule 3)."""
    return sum(units_on(node, there, job) for node, there in zip(site.nodes, free, strict=True))


def chunks_that_fit(rules: ChunkRules, free: Free, job: ChunkJob) -> list[int]:
    """Return how many chunks of a job fit on each site."""
    return [job.chunks * units_at(site, there, job) for site, there in zip(rules.sites, free, strict=True)]


def scarcest(job: ChunkJob, nodes: Iterable[Node]) -> str:
    """Return the resource of which a unit asks for the largest share of what all these nodes have."""
    total: dict[str, int] = {}
    for node in nodes:
        for name, amount in node.amounts:
            total[name] = total.get(name, 0) + amount
    unit = job.unit
    names = ["cores", "memory", "gpus", *sorted(unit.keys() - {"cores", "memory", "gpus"})]

    def share(name: str) -> Fraction:
        return Fraction(unit.get(name, 0), total[name]) if total.get(name) else Fraction(0)

    return max(names, key=lambda name: (share(name), -names.index(name)))


def fill(site: Site, free: Sequence[Amounts], job: ChunkJob, units: int) -> Units:
    """Return the nodes that a job's units get on a site (rule 4)."""
    name = scarcest(job, site.nodes)

    def rank(number: int) -> int:
        if job.need is None or site.placement == "first-fit":
            return 0
        return free[number].get(name, 0) * (-1 if site.placement == "worst-fit" else 1)

    held = []
    for number in sorted(range(len(site.nodes)), key=lambda number: (rank(number), number)):
        there = min(units, units_on(site.nodes[number], free[number], job))
        if there:
            held.append((number, there))
            units -= there
    assert units == 0, "the units do not fit"
    return tuple(held)


def measured(rules: ChunkRules, job: ChunkJob, site: int, free: Sequence[Amounts]) -> tuple[int, int]:
    """Return how much of the resource by which sites are compared is free on the nodes that suit a job, and in all."""
    nodes = rules.sites[site].nodes
    name = scarcest(job, [node for each in rules.sites for node in each.nodes if not node.is_plain])
    suitable = [number for number, node in enumerate(nodes) if node.suits(job)]
    if job.need is None:  # the nodes themselves
        return sum(units_on(nodes[number], free[number], job) for number in suitable), len(suitable)
    return sum(free[number].get(name, 0) for number in suitable), sum(
        dict(nodes[number].amounts).get(name, 0) for number in suitable
    )


def left_free(rules: ChunkRules, job: ChunkJob, site: int, free: Sequence[Amounts]) -> int:
    """Return how much of that resource the job would leave free on a site."""
    there, _ = measured(rules, job, site, free)
    if job.need is None:
        return there - job.width
    name = scarcest(job, [node for each in rules.sites for node in each.nodes if not node.is_plain])
    nodes = rules.sites[site].nodes
    held = fill(rules.sites[site], free, job, job.units)
    return there - sum(taken_by(job, nodes[number], units).get(name, 0) for number, units in held)


def select(rules: ChunkRules, job: ChunkJob, fitting: Sequence[int], free: Free) -> int:
    """Return the site that is chosen among those on which a job fits, given in site order."""
    if rules.selection == "earliest-end":
        return fitting[0]
    if rules.selection == "random":
        assert rules.draws is not None
        return fitting[math.floor(rules.draws[job.id] * len(fitting))]

    def rank(site: int) -> Fraction:
        if rules.selection == "equal-util":
            there, total = measured(rules, job, site, free[site])
            return Fraction(total - there, total) if total else Fraction(0)
        left = left_free(rules, job, site, free[site])
        return Fraction(left if rules.selection == "best-fit" else -left)

    return min(fitting, key=lambda site: (rank(site), site))


def place_whole(rules: ChunkRules, job: ChunkJob, available: Sequence[int], free: Free) -> Fragments | None:
    """Return on which one site a job is placed, None if on none; sites are compared by what is ``free``."""
    fitting = [site for site in range(len(rules.sites)) if available[site] >= job.width]
    return ((select(rules, job, fitting, free), job.width),) if fitting else None


def split(rules: ChunkRules, job: ChunkJob, available: Sequence[int]) -> Fragments | None:
    """Return the fragments of a job on the sites with the most chunks, None if too many or if they do not suffice."""
    fragments: list[tuple[int, int]] = []
    missing = job.width
    for site in sorted(range(len(rules.sites)), key=lambda site: (-available[site], site)):
        part = min(available[site], missing)
        if part > 0:
            fragments.append((site, part))
            missing -= part
    return None if missing > 0 or len(fragments) > rules.allowed_fragments(job.width) else tuple(fragments)


def place_split(
    rules: ChunkRules, job: ChunkJob, instant: float, running: Sequence[ChunkRunning], available: Sequence[int]
) -> Fragments | None:
    """Return how a job is split at an instant, None if it cannot be, may not be, or is not to be."""
    fragments = split(rules, job, available) if rules.may_be_split(job) else None
    if fragments is not None and rules.mode == "adaptive":
        alternative = earliest_end_on_one_site(rules, job, instant, running)
        if alternative is not None and not instant + rules.takes(job, job.estimate, fragments) < alternative:
            return None
    return fragments


def place(rules: ChunkRules, job: ChunkJob, instant: float, running: Sequence[ChunkRunning]) -> Fragments | None:
    """Return where a job is placed at an instant if nothing is reserved, None if nowhere."""
    free = free_at(rules, running, instant)
    available = chunks_that_fit(rules, free, job)
    return place_whole(rules, job, available, free) or place_split(rules, job, instant, running, available)


def earliest_end_on_one_site(
    rules: ChunkRules, job: ChunkJob, instant: float, running: Sequence[ChunkRunning]
) -> float | None:
    """Return the earliest end on a single site from an instant on, None for a job wider than every site."""
    for start in sorted({instant, *(one.end_by_estimate for one in running)}):
        if start >= instant and max(chunks_that_fit(rules, free_at(rules, running, start), job)) >= job.width:
            return start + job.estimate
    return None


def shadow_of(rules: ChunkRules, head: ChunkJob, running: Sequence[ChunkRunning]) -> tuple[float, Fragments]:
    """Return the first end by estimate of a running job at which the head can be placed, and where."""
    for instant in sorted({one.end_by_estimate for one in running}):
        if rules.head_reservation == "single-site" and head.width <= rules.largest(head):
            free = free_at(rules, running, instant)
            fragments = place_whole(rules, head, chunks_that_fit(rules, free, head), free)
        else:
            fragments = place(rules, head, instant, running)
        if fragments:
            return instant, fragments
    raise AssertionError("a job that was not refused can be placed on the idle grid")


def spare_chunks(
    rules: ChunkRules,
    job: ChunkJob,
    now: float,
    running: Sequence[ChunkRunning],
    promise: tuple[ChunkJob, float, Fragments] | None,
) -> list[int]:
    """Return how many chunks of a job each site can take now and forever without delaying the head."""
    free = free_at(rules, running, now)
    spare = chunks_that_fit(rules, free, job)
    for site, width in promise[2] if promise else ():
        head, shadow, _ = promise  # type: ignore[misc]
        for units in range(spare[site] // job.chunks, -1, -1):
            fragments = ((site, units * job.chunks),)
            held = (fill(rules.sites[site], free[site], job, units),)
            beside = [*running, ChunkRunning(job, fragments, held, math.inf, math.inf)]
            if chunks_that_fit(rules, free_at(rules, beside, shadow), head)[site] >= width:
                break
        spare[site] = units * job.chunks
    return spare


def run_pass(
    rules: ChunkRules, now: int, running: Sequence[ChunkRunning], queue: Sequence[ChunkJob]
) -> tuple[list[ChunkRunning], tuple[int, int, int] | None]:
    """Return the jobs that start now, in the order in which they are chosen, and (now, head, shadow) if one waits."""
    taken = list(running)
    started: list[ChunkRunning] = []

    def start(job: ChunkJob, fragments: Fragments) -> None:
        free = free_at(rules, taken, now)
        held = tuple(fill(rules.sites[site], free[site], job, width // job.chunks) for site, width in fragments)
        by_estimate, actual = (now + rules.takes(job, time, fragments) for time in (job.estimate, job.length))
        taken.append(ChunkRunning(job, fragments, held, by_estimate, actual))
        started.append(taken[-1])

    left = list(queue)
    while left and (fragments := place(rules, left[0], now, taken)):
        start(left.pop(0), fragments)
    if not left or rules.backfill == "none":
        return started, None

    head = left.pop(0)
    promise = None
    shadow = math.inf
    if rules.head_reservation != "nothing":
        shadow, reserved = shadow_of(rules, head, taken)
        promise = head, shadow, reserved
    for job in left:
        free = free_at(rules, taken, now)
        fitting = chunks_that_fit(rules, free, job)
        spare = spare_chunks(rules, job, now, taken, promise)
        fragments = place_whole(rules, job, fitting if now + job.estimate <= shadow else spare, free)
        if not fragments:
            fragments = place_split(rules, job, now, taken, fitting)
            if not fragments or now + rules.takes(job, job.estimate, fragments) > shadow:
                fragments = place_split(rules, job, now, taken, spare)
        if fragments:
            start(job, fragments)
    return started, None if promise is None else (now, head.id, int(shadow))


def simulate_chunks(jobs: Iterable[ChunkJob], sites: Sequence[Site], **options: object) -> ChunkOutcome:
    """Run jobs on sites that count resources; the options are those of `reference.grid.simulate_grid`."""
    rules = ChunkRules((), sites=tuple(sites), **options)  # type: ignore[arg-type]
    outcome = ChunkOutcome()
    jobs = list(jobs)
    for job in jobs:
        if place(rules, job, 0, []) is None:
            outcome.refused[job.id] = NEVER_PLACED
    jobs = [job for job in jobs if job.id not in outcome.refused]
    running: list[ChunkRunning] = []
    waiting: list[ChunkJob] = []
    now = -1
    while upcoming := [at for at in [*(job.submit for job in jobs), *(int(one.end) for one in running)] if at > now]:
        now = min(upcoming)
        running = [one for one in running if one.end > now]
        waiting += [job for job in jobs if job.submit == now]
        queue = sorted(waiting, key=lambda job: (key_of(job, rules.order, math.inf), job.submit, job.id))
        started, shadow = run_pass(rules, now, running, queue)
        outcome.shadows += [shadow] if shadow else []
        for one in started:
            waiting.remove(one.job)
            running.append(one)
            outcome.start[one.job.id], outcome.end[one.job.id] = now, int(one.end)
            outcome.fragments[one.job.id] = one.fragments
            held = zip(one.fragments, one.held, strict=True)
            nodes = [(site, node, units * one.job.chunks) for (site, _), there in held for node, units in there]
            outcome.held[one.job.id] = tuple(sorted(nodes))
    assert not waiting, "the simulation stopped with jobs that wait"
    return outcome
