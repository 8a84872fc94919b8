"""What a run against a grid that is up plays of a scenario: whether that grid is the scenario's, and at which speed.

A scenario, played against a grid that is up, through its gateway (docs/live-runs.md, "On a grid that is up").
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from gridweave.errors import GridweaveError, NotFoundError, ScenarioError, UnavailableError
from gridweave.grid.api import Scheduling, SiteInfo
from gridweave.grid.client.client import Client
from gridweave.grid.client.transport import Patience
from gridweave.grid.service.signals import run_in_order
from gridweave.scenarios.live.compare import LiveRun, live_run_of
from gridweave.scenarios.live.plan import PlannedJob, check_playable, check_speed, first_jobs, submissions
from gridweave.scenarios.live.play import LEAD_REAL_MS, patience_s
from gridweave.scenarios.scenario.build import Built, build_scenario
from gridweave.scenarios.scenario.read import Overrides
from gridweave.scenarios.scenario.run import Progress, run_built
from gridweave.scenarios.scenario.tables import Scenario
from gridweave.scenarios.workload.table import Workload
from gridweave.site.job import OPEN, OWN_IDS, ArrayPlace, JobRecord, State
from gridweave.site.owner import policy_label

START_REAL_MS = 100
"""What it takes a job, roughly, to start its processes when it has its nodes, and to have their end heard."""

SHARE_OF_STARTS = 0.01
"""The chosen speed leaves jobs so long that this is no more than such a part of their work."""

LIMIT_SLACK_REAL_MS = 1_000
"""A limit that leaves less than this beyond the run time may end its job, if the machine is busy."""

_STEPS = 5, 2, 1


def suitable_speed(workload: Workload) -> float:
    """Return a speed at which starts of processes take little beside the work of jobs.

    Returns
    -------
    float
        1, 2 or 5 times a power of ten; never below 1.

    Examples
    --------
    >>> times = {"run_ms": [7_200_000, 3_600_000], "estimate_ms": [9_000_000, 9_000_000]}
    >>> suitable_speed(Workload(job_id=[1, 2], submit_ms=[0, 0], width=[1, 3], **times))
    200.0
    """
    work = float((workload.width * workload.run_ms).sum()) / float(workload.width.sum())
    most = SHARE_OF_STARTS * work / START_REAL_MS
    if most < 1:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(most))
    return next(step * unit for step in _STEPS if step * unit <= most)


def check_grid(built: Built, sites: Sequence[SiteInfo], scheduling: Scheduling) -> list[str]:
    """Check that a grid is that of a scenario; return what is to be said of it.

    Parameters
    ----------
    scheduling : Scheduling
        As its gateway says them.

    Returns
    -------
    list of str
        Remarks for people.

    Raises
    ------
    ScenarioError
        With all that differs.
    """
    there = [(site.name, site.nodes) for site in sites]
    wanted = list(zip(built.site_names, built.nodes.tolist(), strict=True))
    problems = []
    if there != wanted:
        problems.append(f"its sites are {_sites_text(there)}; the scenario has {_sites_text(wanted)}")
    else:
        problems += _site_differences(built, sites)
    if built.policy.mode != "local":
        problems += _policy_differences(built, scheduling)
    problems += [f"its site {site.name} does not answer" for site in sites if not site.answers]
    problems += [
        f"its site {site.name} is drained; run: gridweave resume {site.name}" for site in sites if site.draining
    ]
    if problems:
        name = built.scenario.header.name or "scenario"
        raise ScenarioError([f"{name}: this grid is another: {problem}" for problem in problems])
    if scheduling.links and built.policy.splits:
        return ["the grid goes by the links between its sites: jobs that sleep send nothing, so a split costs nothing"]
    return []


def _sites_text(sites: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {nodes}" for name, nodes in sites) or "none"


def _site_differences(built: Built, sites: Sequence[SiteInfo]) -> list[str]:
    """Return what the sites would do otherwise than in the scenario, as far as it matters there."""
    problems = []
    own_queues = built.policy.control != "full" or not built.to_grid.all()
    for site, policy, owner in zip(sites, built.site_policies, built.owners, strict=True):
        for_grid = owner.nodes_for_grid(site.nodes)
        if site.for_grid != for_grid and built.to_grid.any():
            problems.append(f"its site {site.name} leaves the grid {site.for_grid} nodes, the scenario {for_grid}")
        label = policy_label(policy, owner)
        if own_queues and site.policy and site.policy != label:
            problems.append(f"its site {site.name} schedules by {site.policy!r}, the scenario by {label!r}")
    return problems


def _policy_differences(built: Built, scheduling: Scheduling) -> list[str]:
    policy = built.policy
    wanted: dict[str, object] = {
        "mode": policy.mode,
        "control": policy.control,
        "order": policy.order,
        "backfill": policy.backfill,
        "selection": policy.selection,
    }
    if policy.splits:
        wanted |= {
            "overhead": policy.overheads,
            "lower_bound": policy.lower_bound,
            "max_fragments": policy.max_fragments,
        }
    found = {name: getattr(scheduling, name) for name in wanted}
    found["max_fragments"] = tuple((limit.width, limit.fragments) for limit in scheduling.max_fragments)
    return [
        f"its grid.{name} is {_value_text(found[name])}, the scenario has {_value_text(value)}"
        for name, value in wanted.items()
        if found[name] != value
    ]


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{part:g}" if isinstance(part, float) else f"{part}" for part in value) or "unlimited"
    return str(value)


def compressed(built: Built, speed: float, name: str) -> list[PlannedJob]:
    """Return the jobs of a scenario as they are handed in to a grid whose clock shows real time.

    Parameters
    ----------
    speed : float
        How many ms of the scenario pass in one.
    name : str
        Of this run: the jobs are an array of that name.

    Returns
    -------
    list of PlannedJob
        In the order of submission, whose times are real: ms from the time 0 of the scenario.
    """
    found = []
    for job in submissions(built, speed):
        request = msgspec.structs.replace(
            job.request,
            limit_ms=max(1, round(job.request.limit_ms / speed)),
            array=ArrayPlace(name=name, index=job.row),
        )
        found.append(PlannedJob(job.row, round(job.submit_ms / speed), job.site, request))
    return found


def short_limits(workload: Workload, speed: float) -> int:
    """Return how many jobs have so little time between their work and their limit that a busy machine may end them."""
    slack_ms = (workload.estimate_ms - workload.run_ms) / speed
    return int(np.count_nonzero((slack_ms < LIMIT_SLACK_REAL_MS) & ~workload.overran))


def expanded(record: JobRecord, origin_ms: int, speed: float) -> JobRecord:
    """Return the record of a job with its times as those of the scenario.

    Parameters
    ----------
    origin_ms : int
        What the grid's clock showed at time 0 of the scenario.
    """

    def at(time_ms: int | None) -> int | None:
        return None if time_ms is None else round((time_ms - origin_ms) * speed)

    return msgspec.structs.replace(
        record,
        submit_ms=round((record.submit_ms - origin_ms) * speed),
        start_ms=at(record.start_ms),
        end_ms=at(record.end_ms),
    )


TOLERANCE = 0.05
"""The schedule of a grid over a network is as simulated if its makespan is no further off."""

_LOOK_EVERY_S = 0.5
_PATIENCE = Patience(total_s=30.0, connect_s=5.0)
_CANCEL_TRIES = 5


def run_on_gateway(
    source: str | Path | Scenario,
    url: str | None,
    *,
    overrides: Overrides = (),
    speed: float | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> LiveRun:
    """Run a scenario in simulation, and play it on a grid that is up.

    Parameters
    ----------
    source, overrides
        As for `gridweave.scenarios.scenario.run.run_scenario`.
    url : str or None
        Of the grid's gateway; None: the grid that the configuration names, or that `gridweave up` has started here.
    speed : float, optional
        How many ms of the scenario pass in one. Left out: one at which starting processes takes little beside the work.
    jobs : int, optional
        The first so many jobs only; all, if left out.
    progress : callable, optional
        Told now and then how far it is.

    Raises
    ------
    ScenarioError
        With all that is wrong with the scenario, or cannot be played live, or in which the grid is another.
    OptionError
        If the address, the speed or the number of jobs makes no sense.
    UnavailableError
        If the grid does not answer, or the jobs do not come to an end.
    """
    if speed is not None:
        check_speed(speed)
    where = "the grid" if url is None else url
    client = Client(url, patience=_PATIENCE)
    built = first_jobs(build_scenario(source, overrides), jobs)
    remarks = [*built.remarks, *client.connection.warnings, *check_playable(built, where)]
    speed = suitable_speed(built.workload) if speed is None else speed
    if count := short_limits(built.workload, speed):
        remarks.append(
            f"at {speed:g} times real time the limits of {count:,} jobs leave less than "
            f"{LIMIT_SLACK_REAL_MS / 1000:g} s beyond their work, and may end them; give a lower --speed"
        )
    tell = progress or (lambda done, total, what: None)
    tell(0, len(built.workload), "Simulating")
    simulated = run_built(built)
    play = _Play(client, built, speed, patience_s(simulated.result, speed), tell)
    run_in_order(play.run())
    records = [expanded(record, play.origin_ms, speed) for record in play.records]
    return live_run_of(
        built,
        simulated,
        records,
        origin_ms=0,
        speed=speed,
        remarks=(*remarks, *play.remarks),
        where=client.connection.url,
        tolerance=TOLERANCE,
    )


class _Play:
    """Hands in jobs when their time has come, and sees how they end.

    Attributes
    ----------
    origin_ms : int
        What the clock of the grid showed at time 0 of the scenario.
    records : list of JobRecord
        Of all jobs, in the order of the workload, at the end.
    remarks : list of str
        What was seen on the way, for people.
    """

    def __init__(self, client: Client, built: Built, speed: float, patience_s: float, tell: Progress) -> None:
        self._grid, self._built, self._patience_s, self._tell = client, built, patience_s, tell
        self.name = f"run-{built.scenario.header.name or 'scenario'}-{uuid.uuid4().hex[:12]}"
        self._jobs = compressed(built, speed, self.name)
        self._ids: dict[int, int] = {}
        # The newest job that was there before: of the grid (by an empty name) and of each site.
        self._newest = dict.fromkeys(("", *built.site_names), 0)
        self.origin_ms = 0
        self.records: list[JobRecord] = []
        self.remarks: list[str] = []

    async def run(self) -> None:
        """Play all jobs to their ends; if that is interrupted, or fails, none of them is left."""
        async with self._grid:
            await self._look_around()
            ahead_ms = await self._clock_ahead_ms()
            began_ms = _now_ms() + LEAD_REAL_MS - self._jobs[0].submit_ms
            self.origin_ms = began_ms + ahead_ms
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._play(began_ms)
            except TimeoutError:
                raise UnavailableError(
                    f"the jobs have not ended after {self._patience_s:,.0f} s; give a lower --speed, or see whether "
                    "others use the grid"
                ) from None
            finally:
                if not self.records:
                    await self._cancel()
            self.remarks += await self._others()

    async def _play(self, began_ms: int) -> None:
        """Hand in and watch."""
        targets: dict[str | None, list[PlannedJob]] = {}
        for job in self._jobs:
            targets.setdefault(job.site, []).append(job)
        async with _together() as group:
            for site, jobs in targets.items():
                group.append(asyncio.ensure_future(self._hand_in(site, jobs, began_ms)))
            while True:
                for task in group:
                    if task.done():
                        task.result()
                handed_in = all(task.done() for task in group)
                left = {record.job_id for record in await self._found(targets, OPEN)}
                self._tell(len(set(self._ids.values()) - left), len(self._jobs), "Playing on the grid")
                if handed_in and not left:
                    break
                await asyncio.sleep(_LOOK_EVERY_S)
        found = {record.job_id: record for record in await self._found(targets)}
        missing = sorted(set(self._ids.values()) - found.keys())
        if missing:
            raise UnavailableError(f"the grid does not know job {missing[0]} any more; was it begun anew meanwhile?")
        self.records = [found[self._ids[job.row]] for job in self._jobs]

    async def _hand_in(self, site: str | None, jobs: Sequence[PlannedJob], began_ms: int) -> None:
        """Hand in jobs to the grid or to a site: all whose time has come, in their order, one call after the other."""
        done = 0
        while done < len(jobs):
            await asyncio.sleep(max(0, began_ms + jobs[done].submit_ms - _now_ms()) / 1000)
            now_ms = _now_ms() - began_ms
            due = [job for job in jobs[done:] if job.submit_ms <= now_ms] or [jobs[done]]
            # The keys are this run's own: a try whose answer was lost hands nothing in twice.
            taken = await self._grid.submit_many(
                [job.request for job in due], site=site, keys=[f"{self.name}-{job.row}" for job in due]
            )
            self._ids |= {job.row: handle.id for job, handle in zip(due, taken, strict=True)}
            done += len(due)

    async def _found(self, sites: Iterable[str | None], states: Sequence[State] = ()) -> list[JobRecord]:
        """Return the jobs of this run, at the grid (None) and at sites."""
        found: list[JobRecord] = []
        for site in sites:
            found += [record async for record in self._grid.jobs(own=site or "", array=self.name, state=states)]
        return found

    # -- the grid before and after ------------------------------------------------------------------------------------

    async def _look_around(self) -> None:
        """Check that this grid is the scenario's, and see whether others use it."""
        self._tell(0, len(self._jobs), "Asking the grid")
        sites = await self._grid.sites()
        try:
            scheduling = await self._grid.scheduling()
        except NotFoundError:
            raise UnavailableError(
                f"{self._grid.connection.url} does not say how it schedules: it is the gateway of a site, or of an "
                "earlier release"
            ) from None
        self.remarks += check_grid(self._built, sites, scheduling)
        for name in ("", *self._built.site_names):
            async for record in self._grid.jobs(own=name, limit=1):
                self._newest[name] = record.job_id
        queue = await self._grid.queue(0)
        busy = [f"{site.nodes - site.free} nodes of {site.name}" for site in sites if site.free < site.nodes]
        waiting = queue.waiting + sum(site.waiting for site in sites)
        if busy or waiting:
            what = [*busy, *([f"{waiting} jobs wait"] if waiting else [])]
            self.remarks.append(f"warning: others used the grid at the start: {', '.join(what)}")

    async def _others(self) -> list[str]:
        """Return whether others have handed in jobs meanwhile: those that may be seen, and numbers between our own."""
        own = set(self._ids.values())
        strangers: set[int] = set()
        for site in self._newest:
            async for record in self._grid.jobs(own=site):
                if record.job_id <= self._newest[site]:
                    break
                strangers.add(record.job_id)
        for giver in {job_id // OWN_IDS for job_id in own}:
            numbers = [job_id for job_id in own if job_id // OWN_IDS == giver]
            strangers.update(range(min(numbers), max(numbers)))
        strangers -= own
        sites, queue = await self._grid.sites(), await self._grid.queue(0)
        left = queue.waiting + queue.starting + queue.running + sum(site.waiting + site.running for site in sites)
        if not strangers and not left:
            return []
        seen = [f"{len(strangers)} handed in meanwhile"] * bool(strangers) + [f"{left} there at the end"] * bool(left)
        return [f"warning: jobs of others were on the grid ({', '.join(seen)}); the schedule is theirs as well"]

    async def _clock_ahead_ms(self) -> int:
        """Return how far the grid's clock is ahead of this machine's, if that can be told at all."""
        best_ms, ahead_ms = float("inf"), 0.0
        for _ in range(3):
            began, began_ms = time.monotonic(), time.time() * 1000
            now_ms = (await self._grid.scheduling()).now_ms
            took_ms = (time.monotonic() - began) * 1000
            if took_ms < best_ms:
                best_ms, ahead_ms = took_ms, now_ms - (began_ms + took_ms / 2)
        if abs(ahead_ms) <= best_ms / 2 + 1:
            return 0
        if abs(ahead_ms) > LEAD_REAL_MS:
            self.remarks.append(f"the grid's clock is {ahead_ms / 1000:+,.1f} s from that of this machine")
        return round(ahead_ms)

    async def _cancel(self) -> None:
        """End all jobs of this run, also those whose answer has not come."""
        self._tell(0, len(self._jobs), "Cancelling the jobs")
        sites = sorted({job.site or "" for job in self._jobs})  # that of the grid is empty
        with contextlib.suppress(GridweaveError):
            for _ in range(_CANCEL_TRIES):
                left = await self._found(sites, OPEN)
                if not left:
                    break
                await self._grid.cancel(record.job_id for record in left)
                await asyncio.sleep(_LOOK_EVERY_S)


@contextlib.asynccontextmanager
async def _together() -> AsyncIterator[list[asyncio.Future[None]]]:
    """Yield a list for tasks, which are ended, and awaited, at the end."""
    tasks: list[asyncio.Future[None]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _now_ms() -> int:
    return int(time.time() * 1000)
