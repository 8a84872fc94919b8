"""Compare waits and node use of the current grid and of a changed grid by simulating both queues.

Both simulations start with the current jobs, and the jobs submitted in the last hours arrive again (docs/what-if.md).
`GridQueue` makes the decisions, as on the live grid.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.random import PCG64, Generator

from gridweave.errors import InputError, OptionError
from gridweave.grid.api import Outlook, Outlooks, UsedSite, WhatIf, WhatIfAnswer
from gridweave.grid.control.forecasts import expect_ends
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.control.queue import GridQueue, PlacedJob
from gridweave.grid.messages import GridJobSubmitted, LinksChanged
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import MAX_WIDTH
from gridweave.site.times import span_text

MOST_JOBS = 20_000
"""Maximum number of waiting and arriving jobs; simulating more would take minutes."""

MOST_STEPS = 100_000
"""Maximum number of scheduling passes; a pass with conservative backfilling counts as ten passes per waiting job."""

ENOUGH_ENDED = 10
"""Number of ended jobs needed to estimate what fraction of their limits jobs use."""

HOUR_MS = 3_600_000


class PastJob(NamedTuple):
    """A job that was submitted to the grid."""

    submit_ms: int
    submitted: GridJobSubmitted
    part: float | None  # fraction of its limit that it used; None if unknown


class GridNow(NamedTuple):
    """The current state of a grid; ``queue`` must be a copy, because `what_if` modifies it."""

    now_ms: int
    names: tuple[str, ...]  # names of the sites
    queue: GridQueue
    policy: GridPolicy
    network: GridNetwork | None
    margin_ms: int  # how far in advance sites agree on the start of a split job
    end_ms: int  # delay until the grid learns that a job has ended
    seed: int  # for random site selection
    waiting: tuple[PastJob, ...]  # in queue order, without the jobs that not all sites accept
    past: tuple[PastJob, ...]  # jobs of the requested hours, by submission
    n_apart: int  # number of waiting jobs that not all sites accept


class _Stage(NamedTuple):
    """The grid to simulate: nodes by site, drained sites, cut links, policy, and load factor."""

    nodes: dict[str, int]
    drain: tuple[str, ...]
    cut: tuple[tuple[str, str], ...]
    policy: GridPolicy
    load: float


def what_if(grid: GridNow, asked: WhatIf) -> WhatIfAnswer:
    """Simulate the current and the changed grid and compare the results; this modifies ``grid``.

    Raise InputError if a site or link is unknown, the policy is invalid, or there are too many jobs to simulate.
    """
    before = _Stage(dict(zip(grid.names, grid.queue.nodes, strict=True)), (), (), grid.policy, 1.0)
    after = _changed(grid, before, asked)
    span_ms = max(1, int(asked.hours * HOUR_MS))
    past = grid.past if asked.again else ()
    n_jobs = len(grid.waiting) + int(len(past) * max(1.0, asked.load))
    if n_jobs > MOST_JOBS:
        problem = (
            f"{n_jobs:,} jobs wait or would be submitted in {span_text(span_ms)}; at most {MOST_JOBS:,} are simulated"
        )
        raise InputError(f"hours: {problem}; ask for fewer hours")
    expect_ends(grid.queue, grid.now_ms, grid.end_ms)
    parts = [job.part for job in grid.past if job.part is not None]
    lengths = [1.0] + ([sum(parts) / len(parts)] if len(parts) >= ENOUGH_ENDED else [])
    comparisons = []
    for length in lengths:
        seen = [_Simulation(grid, stage, past, span_ms, length).outlook() for stage in (before, after)]
        comparisons.append(Outlooks(length=length, now=seen[0], then=seen[1]))
    sure, assumed = _how_sure(comparisons), _assumed(grid, asked, len(past))
    return WhatIfAnswer(now_ms=grid.now_ms, plays=tuple(comparisons), sure=sure, assumed=assumed)


def _changed(grid: GridNow, stage: _Stage, asked: WhatIf) -> _Stage:
    """Apply the requested changes, or raise InputError."""
    nodes = stage.nodes | asked.nodes
    new = [name for name in asked.nodes if name not in stage.nodes]
    if new and grid.network is not None:
        problem = "the model of this grid's links has none to a new site; add nodes to another site instead"
        raise InputError(f"nodes: {new[0]!r:.100} would be a new site; {problem}")
    if sum(nodes.values()) < 1:
        raise InputError("nodes: no site would have any left; keep some")
    if sum(nodes.values()) > MAX_WIDTH:
        raise InputError(f"nodes: the sites would have {sum(nodes.values()):,} together; at most {MAX_WIDTH:,}")
    for name in asked.drain:
        if name not in nodes:
            raise InputError(f"drain: there is no site {name!r:.100}; the grid has {', '.join(nodes)}")
    if asked.cut and grid.network is None:
        raise InputError("cut: this grid has no model of the links between its sites; leave cut out")
    if asked.policy.mode == "local":
        raise InputError("policy: mode is 'local', where there is no grid; give sharing, multi-site or adaptive")
    other = {name: value for name, value in msgspec.structs.asdict(asked.policy).items() if value is not None}
    try:
        policy = msgspec.structs.replace(grid.policy, **other)
        policy.__post_init__()
    except OptionError as error:
        raise InputError(f"policy: {error}") from None
    return _Stage(nodes, asked.drain, asked.cut, policy, asked.load)


def _queue_of(grid: GridNow, stage: _Stage) -> GridQueue:
    """Return a stage's queue with the current running jobs and no waiting jobs."""
    had = dict(zip(grid.names, grid.queue.nodes, strict=True))
    # Jobs on removed nodes run to their ends, so those nodes stay in the queue and count as used by others.
    sizes = {name: max(nodes, had.get(name, 0)) for name, nodes in stage.nodes.items()}
    queue = GridQueue(list(sizes.values()), stage.policy, grid.network)
    for news in grid.queue.links_news:
        queue.links_changed(news)
    if stage.cut and grid.network is not None:
        queue.links_changed(_without(grid.network, grid.queue, stage.cut))
    for job, fragments, end_ms in grid.queue.running:
        queue.submit(grid.now_ms, job, draw=0.0, sensitivity=1.0)
        queue.take_over(job.job_id, fragments, end_ms)
    for site, (name, size) in enumerate(sizes.items()):
        others = grid.queue.others(site) if name in had else 0
        queue.set_others(site, others + size - stage.nodes[name])
        queue.set_shut(site, name in stage.drain or site in grid.queue.shut)
    return queue


def _without(network: GridNetwork, queue: GridQueue, cuts: Sequence[tuple[str, str]]) -> LinksChanged:
    """Return an event that cuts the given links and keeps earlier link changes."""
    topology = network.model.topology
    earlier = [news.factors for news in queue.links_news if isinstance(news, LinksChanged)]
    factors = list(earlier[0]) if earlier else [1.0] * topology.n_cables
    nodes = dict(zip(topology.sites, (topology.nodes[node] for node in topology.node_of_site), strict=True))
    for end, other in cuts:
        for cable in topology.cables_between(nodes.get(end, end), nodes.get(other, other)):
            factors[cable] = 0.0
    return LinksChanged(tuple(factors))


class _Simulation:
    """Simulates one stage and records when jobs start and how much node time they use."""

    def __init__(self, grid: GridNow, stage: _Stage, past: Sequence[PastJob], span_ms: int, length: float) -> None:
        self._grid, self._stage, self._length = grid, stage, length
        self._until_ms = grid.now_ms + span_ms
        self._rng = Generator(PCG64(grid.seed))
        self._queue = _queue_of(grid, stage)
        # By job: fraction of its limit that the job uses, arrival (or now for a waiting job), and start.
        self._parts: dict[int, float] = {}
        self._from_ms: dict[int, int] = {}
        self._starts_ms: dict[int, int] = {}
        self._never = 0
        self._used_ms = np.zeros(len(stage.nodes), np.int64)
        # A heap of the running jobs: (end, job).
        self._ends: list[tuple[int, int]] = []
        for job, fragments, end_ms in grid.queue.running:
            self._runs(job.job_id, fragments, grid.now_ms, grid.now_ms + round((end_ms - grid.now_ms) * length))
        first_id = 1 + max((job.submitted.job.job_id for job in chain(grid.waiting, past)), default=0)
        first_id = max(first_id, 1 + max((job.job.job_id for job in grid.queue.running), default=0))
        self._coming = _again(past, span_ms, stage.load, first_id)

    def outlook(self) -> Outlook:
        """Run the simulation and return its results."""
        grid = self._grid
        for job in grid.waiting:
            self._submit(grid.now_ms, job._replace(part=None))
        self._simulate()
        waits = [self._starts_ms.get(job, self._until_ms) - from_ms for job, from_ms in self._from_ms.items()]
        span_ms, sizes = self._until_ms - grid.now_ms, self._stage.nodes
        used = dict(zip(sizes, self._used_ms.tolist(), strict=True))
        return Outlook(
            jobs=len(waits) + self._never,
            started=len(self._starts_ms),
            never=self._never,
            wait_ms=sum(waits) // max(1, len(waits)),
            longest_ms=max(waits, default=0),
            used=sum(used.values()) / (sum(sizes.values()) * span_ms),
            sites=tuple(UsedSite(name, nodes, used[name] / max(1, nodes * span_ms)) for name, nodes in sizes.items()),
        )

    def _simulate(self) -> None:
        """At each event time, end jobs by id, submit arrivals, and run one scheduling pass, in the cores' order."""
        queue, now_ms, place, steps = self._queue, self._grid.now_ms, 0, 0
        while now_ms < self._until_ms:
            while self._ends and self._ends[0][0] <= now_ms:
                queue.ended(now_ms, heapq.heappop(self._ends)[1])
            while place < len(self._coming) and self._coming[place].submit_ms <= now_ms:
                self._submit(now_ms, self._coming[place])
                place += 1
            for placed in queue.run_pass(now_ms):
                self._start(now_ms, placed)
            steps += 10 * queue.n_waiting if queue.reserves_starts else 1
            if steps > MOST_STEPS:
                raise InputError("hours: the simulation would take too long; ask for fewer hours, or a smaller load")
            instants = [self._ends[0][0] if self._ends else None, queue.next_start_ms()]
            instants.append(self._coming[place].submit_ms if place < len(self._coming) else None)
            now_ms = max(now_ms + 1, min((time for time in instants if time is not None), default=self._until_ms))

    def _submit(self, now_ms: int, job: PastJob) -> None:
        submitted = job.submitted
        left = np.array([0 if name in self._stage.drain else n for name, n in self._stage.nodes.items()], np.int64)
        if self._stage.policy.why_never(left, submitted.job.width) is not None:
            self._never += 1
            return
        draw, sensitivity = float(self._rng.random()), submitted.sensitivity
        self._queue.submit(job.submit_ms, submitted.job, draw=draw, sensitivity=sensitivity, sends=submitted.sends)
        self._from_ms[submitted.job.job_id] = now_ms
        part = job.part if self._length < 1 else None
        self._parts[submitted.job.job_id] = self._length if part is None else part

    def _start(self, now_ms: int, placed: PlacedJob) -> None:
        job_id, margin_ms = placed.job.job_id, self._grid.margin_ms if len(placed.fragments) > 1 else 0
        start_ms = self._starts_ms[job_id] = now_ms + margin_ms
        later_ms = margin_ms + self._grid.end_ms
        if later_ms:
            self._queue.expect_end(now_ms, job_id, now_ms + placed.length_ms + later_ms)
        length_ms = max(1, round(placed.length_ms * self._parts[job_id]))
        self._runs(job_id, placed.fragments, start_ms, start_ms + length_ms + self._grid.end_ms)

    def _runs(self, job_id: int, fragments: Sequence[tuple[int, int]], start_ms: int, end_ms: int) -> None:
        end_ms = max(end_ms, self._grid.now_ms + 1)
        heapq.heappush(self._ends, (end_ms, job_id))
        for site, nodes in fragments:
            self._used_ms[site] += nodes * max(0, min(end_ms, self._until_ms) - start_ms)


def _again(past: Sequence[PastJob], span_ms: int, load: float, first_id: int) -> list[PastJob]:
    """Return ``load`` times as many jobs as ``past``: evenly chosen copies with new ids, ``span_ms`` later."""
    coming: list[PastJob] = []
    for number, job in enumerate(past):
        for _ in range(int((number + 1) * load) - int(number * load)):
            again = msgspec.structs.replace(job.submitted.job, job_id=first_id + len(coming))
            submitted = msgspec.structs.replace(job.submitted, job=again)
            coming.append(job._replace(submit_ms=job.submit_ms + span_ms, submitted=submitted))
    return coming


def _how_sure(comparisons: Sequence[Outlooks]) -> str:
    """Describe in words whether the simulations agree on how the waiting times change."""
    if len(comparisons) == 1:
        return "too few jobs have ended to know how much of their limits jobs use; shorter jobs mean shorter waits"
    later_ms = [comparison.then.wait_ms - comparison.now.wait_ms for comparison in comparisons]
    gains = " and ".join(span_text(abs(span_ms)) for span_ms in later_ms)
    signs = {int(sign) for sign in np.sign(later_ms)}
    if len(signs) > 1:
        return f"the simulations disagree on whether waits get longer or shorter (by {gains}), so neither is certain"
    words = {0: "the same waits", 1: "longer waits", -1: "shorter waits"}[signs.pop()]
    return f"both simulations yield {words}" + (f", by {gains} on average" if any(later_ms) else "")


def _assumed(grid: GridNow, asked: WhatIf, n_past: int) -> tuple[str, ...]:
    """List the assumptions of the simulation."""
    span = span_text(int(asked.hours * HOUR_MS))
    coming = (
        f"the {n_past:,} jobs submitted in the last {span} are submitted again in the next {span}, at the same times"
    )
    if asked.load != 1:
        coming += f"; the changed grid gets {asked.load:g} times as many"
    coming = coming if asked.again else "no other jobs arrive"
    assumptions = [
        coming,
        "running jobs continue where they are, even at sites that are drained or lose nodes",
        "sites grant every request, and their own users keep their present nodes",
        "held jobs and jobs that wait for other jobs are left out",
    ]
    if grid.n_apart:
        assumptions.append(f"{grid.n_apart:,} waiting jobs that not all sites accept are left out")
    return tuple(assumptions)
