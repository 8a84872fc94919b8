"""Run a scenario live: in real processes, on a grid with a gateway, in compressed time (docs/live-runs.md).

The grid is either already running, or started on Ray for the run, with a gateway in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gridweave.errors import (
    GridweaveError,
    NotFoundError,
    OptionError,
    RefusedError,
    SiteAwayError,
    UnavailableError,
)
from gridweave.grid.api import Scheduling
from gridweave.grid.client.client import Client
from gridweave.grid.client.transport import Patience
from gridweave.grid.config.local_state import end_jobs
from gridweave.grid.service.ray import MOST_NODES, OwnRay, RayMachine, check_ray, connected, make_temp, probe
from gridweave.grid.service.signals import ended_in_order, run_in_order, signals_held
from gridweave.scenarios.live.compare import MAKESPAN_TOLERANCE, LiveRun, live_run_of
from gridweave.scenarios.live.faults import FaultPlayer, failing_kinds, fails, with_planned_faults
from gridweave.scenarios.live.plan import (
    LIMIT_SLACK_REAL_MS,
    check_grid,
    check_playable,
    check_speed,
    expanded,
    first_jobs,
    grid_plan,
    short_limits,
    suitable_speed,
)
from gridweave.scenarios.live.submissions import PlannedJob, compressed
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.build import Built, build_scenario
from gridweave.scenarios.scenario.read import Overrides
from gridweave.scenarios.scenario.run import Progress, run_built
from gridweave.scenarios.scenario.tables import Scenario
from gridweave.scenarios.world.connections import LiveTimes
from gridweave.site.explain import nodes_text
from gridweave.site.job import OWN_IDS, JobRecord
from gridweave.site.lifecycle import OPEN, PENDING, JobState
from gridweave.site.service.calls import SITE_LABEL
from gridweave.site.service.clock import Clock
from gridweave.site.times import span_text

if TYPE_CHECKING:
    from gridweave.grid.service.cluster import GridPlan, Kinds, RunningGrid

LEAD_REAL_MS = 300
"""Real time between the end of the preparations and the first submission."""

TOLERANCE = 0.05
"""Maximum relative difference in makespan at which a live run on a running grid still matches its simulation."""

PLAYING = "Running on the grid"

_LOOK_EVERY_S, _LOOK_AGAIN_S = 0.5, 0.02
_SILENCE_S = 30.0
_PATIENCE = Patience(total_s=30.0, connect_s=5.0)
_CANCEL_TRIES = 5
_PATIENCE_FACTOR, _LEAST_PATIENCE_S = 3.0, 120.0
_END_S = 15.0

_OUTAGES = 3.0
"""Clients extend their timeout by this many times the longest fault, in case a site is down."""

T = TypeVar("T")

Look = Callable[[Client, list[JobRecord]], Awaitable[None]]
"""Called at intervals with the run's jobs that have not ended."""


# -- on a running grid, and on Ray ------------------------------------------------------------------------------------


def run_on_gateway(
    source: str | Path | Scenario,
    url: str | None,
    *,
    overrides: Overrides = (),
    speed: float | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> LiveRun:
    """Simulate a scenario, and run it live on a grid that is already running.

    Parameters
    ----------
    source, overrides
        As for `gridweave.scenarios.scenario.run.run_scenario`.
    url : str or None
        Address of the grid's gateway. By default, the grid in the configuration, or the grid that `gridweave up` has
        started on this machine.
    speed : float, optional
        Milliseconds of scenario time per real millisecond. By default, a speed at which starting a process takes
        little time compared to its work.
    jobs : int, optional
        Run only the first ``jobs`` jobs; by default, run all jobs.
    progress : callable, optional
        Called with the progress at intervals.

    Raises
    ------
    ScenarioError
        If the scenario is invalid or cannot run live, or the grid differs from it; the error lists all problems.
    OptionError
        If the address, the speed or the number of jobs is invalid.
    UnavailableError
        If the grid does not answer, or the jobs do not end.
    """
    if speed is not None:
        check_speed(speed)
    client = Client(url, patience=_PATIENCE)
    task = _Task.of(source, overrides, jobs, speed, "the grid" if url is None else url, progress)
    task.remarks[:0] = client.connection.warnings
    player = task.player(client, task.patience_s())
    run_in_order(player.run())
    return task.compared(player, where=client.connection.url, tolerance=TOLERANCE)


def run_on_ray(
    source: str | Path | Scenario,
    *,
    overrides: Overrides = (),
    speed: float = 1000.0,
    address: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> LiveRun:
    """Simulate a scenario, and run it live on a new grid on Ray.

    Parameters
    ----------
    source, overrides, jobs, progress
        As for `run_on_gateway`.
    speed : float
        Milliseconds of scenario time per real millisecond: 0.001 to 1,000,000.
    address : str, optional
        Address of a Ray cluster: ``auto``, ``host:6379``. A site runs on the nodes whose label ``gridweave.io/site`` is
        the site's name. By default, Ray is started on this machine, with a node for each site, and stopped afterwards.
        If this process is already connected to Ray, it uses that connection.

    Raises
    ------
    ScenarioError
        If the scenario is invalid or cannot run live; the error lists all problems.
    OptionError
        If the speed, the address or the number of jobs is invalid.
    UnavailableError
        If Ray is not installed, the cluster is unavailable, or the jobs do not end.
    """
    check_speed(speed)
    if address is not None and not address.strip():
        raise OptionError("address", "is empty; write auto, host:6379, or leave it out for this machine")
    task = _Task.of(source, overrides, jobs, speed, "ray", progress)
    patience_s = task.patience_s()
    with ended_in_order(), _ray_base(task.built.site_names, address, task.say) as base:
        task.remarks.extend(base.remarks)
        clock = Clock(epoch_ms=int(time.time() * 1000), speed=speed)
        plan = grid_plan(task.built, folder=base.folder, namespace=base.namespace, labelled=base.labelled, clock=clock)
        task.say("Starting sites")
        with _grid_of(plan, failing_kinds() if fails(task.built) else None) as grid:
            faults = FaultPlayer(grid, task.built, speed)
            if fails(task.built):
                faults.make_unsteady()

            def player_of(client: Client) -> Player:
                return task.player(client, patience_s, clock, faults)

            patience = msgspec.structs.replace(_PATIENCE, total_s=_PATIENCE.total_s + _OUTAGES * faults.longest_s)
            player = run_in_order(_behind_own_gateway(plan.namespace, patience, player_of))
        task.remarks.extend(faults.remarks)
    return task.compared(player, where="Ray", tolerance=MAKESPAN_TOLERANCE)


@dataclass(frozen=True, slots=True)
class _Task:
    """A scenario to run live, with the speed and the remarks for the user."""

    built: Built
    speed: float
    report: Progress
    remarks: list[str]

    @classmethod
    def of(
        cls,
        source: str | Path | Scenario,
        overrides: Overrides,
        jobs: int | None,
        speed: float | None,
        on: str,
        progress: Progress | None,
    ) -> _Task:
        """Build a scenario and check that it can run live on ``on``; error messages name the grid by this text."""
        built = first_jobs(build_scenario(source, overrides), jobs)
        if on == "ray":
            built = with_planned_faults(built)
        speed = suitable_speed(built.workload) if speed is None else speed
        remarks = [*built.remarks, *check_playable(built, on, speed)]
        if count := short_limits(built.workload, speed):
            remarks.append(
                f"at {speed:g} times real time the limits of {count:,} jobs leave less than "
                f"{span_text(LIMIT_SLACK_REAL_MS)} beyond their work, and may end them; give a lower --speed"
            )
        return cls(built, speed, progress or (lambda done, total, what: None), remarks)

    def say(self, what: str) -> None:
        """Report the current startup phase to the user; call this only before the first job is submitted."""
        self.report(0, len(self.built.workload), what)

    def patience_s(self) -> float:
        """Simulate the scenario; return the time in seconds to wait for all jobs to end."""
        self.say("Simulating")
        return patience_s(run_built(self.built), self.speed)

    def player(
        self, client: Client, patience_s: float, clock: Clock | None = None, faults: FaultPlayer | None = None
    ) -> Player:
        """Return a `Player` for a grid with this clock; by default, the grid's clock shows real time."""
        return Player(client, self.built, self.speed, patience_s, self.report, clock=clock, faults=faults)

    def compared(self, player: Player, *, where: str, tolerance: float) -> LiveRun:
        """Compare the live run with a simulation that uses the grid's measured delays."""
        jobs = len(self.built.workload)
        self.report(jobs, jobs, "Simulating")
        built = as_live(self.built, player.live, self.speed)
        remarks = (*self.remarks, *player.remarks, *live_remarks(self.built, player.live))
        return live_run_of(
            built, run_built(built), player.records,
            speed=self.speed, remarks=remarks, where=where, tolerance=tolerance, replay=True,
        )  # fmt: skip


def live_times(scheduling: Scheduling) -> LiveTimes:
    """Return the measured delays that a grid adds to the jobs' run times."""
    start_ms, end_ms = scheduling.start_ms or 0, scheduling.end_ms or 0
    return LiveTimes(start_ms=start_ms, end_ms=end_ms, margin_ms=scheduling.margin_ms)


def as_live(built: Built, live: LiveTimes, speed: float) -> Built:
    """Return a scenario with these delays; delays that the scenario sets itself take precedence.

    A job holds its nodes longer than it works, so a job that works almost up to its limit is marked as killed.
    """
    times = live.at_speed(speed) if built.live == LiveTimes() else built.live
    workload = built.workload
    at_limit = workload.overran | (workload.run_ms + times.around_ms > workload.estimate_ms)
    return replace(built, live=times, workload=workload.replace(overran=at_limit))


def live_remarks(built: Built, live: LiveTimes) -> list[str]:
    """Return remarks on the live delays that the simulation uses."""
    if built.live != LiveTimes():
        return ["simulated with the times of the table [live]"]
    start, end, margin = (span_text(ms) for ms in (live.start_ms, live.end_ms, live.margin_ms))
    took = f"processes took {start} to start, and the grid learned of their ends after {end}"
    return [f"simulated with measured times: {took}; starts on several sites were agreed {margin} ahead"]


def patience_s(simulated: SimulationResult, speed: float) -> float:
    """Return the time, in real seconds, to wait for all jobs to end."""
    span_ms = int(simulated.end_ms.max()) - int(simulated.workload.submit_ms.min())
    return _LEAST_PATIENCE_S + _PATIENCE_FACTOR * span_ms / speed / 1000


# -- the run ----------------------------------------------------------------------------------------------------------


class Player:
    """Submits jobs at their submit times and waits up to ``patience_s`` until all jobs have ended.

    ``look`` is called at intervals with the jobs that have not ended. ``clock`` is the clock of a grid that was started
    for this run; the clock of any other grid shows real time, and its offset is measured.

    At the end, ``records`` holds all jobs in workload order and scenario time, ``origin_ms`` is the grid's clock at the
    scenario's time 0, and ``live`` holds the delays that the grid added to the jobs' run times.
    """

    def __init__(
        self,
        client: Client,
        built: Built,
        speed: float,
        patience_s: float,
        report: Progress,
        look: Look | None = None,
        clock: Clock | None = None,
        faults: FaultPlayer | None = None,
    ) -> None:
        self._faults = faults
        self._grid, self._built, self._speed, self._patience_s, self._report = client, built, speed, patience_s, report
        self._look = look
        self.name = f"run-{built.scenario.header.name or 'scenario'}-{uuid.uuid4().hex[:12]}"
        self._clock = clock
        self._clock_speed = 1.0 if clock is None else clock.speed
        self._jobs = compressed(built, speed, self.name, Clock() if clock is None else clock)
        self._ids: dict[int, int] = {}
        # Rows of the jobs that were accepted or refused.
        self._settled: set[int] = set()
        # The newest job of the grid (with an empty name) and of each site before the run.
        self._newest = dict.fromkeys(("", *built.site_names), 0)
        self.origin_ms = 0
        self.records: list[JobRecord] = []
        self.live = LiveTimes()
        self.remarks: list[str] = []

    async def run(self) -> None:
        """Run all jobs until they end; cancel the jobs if the run fails or is interrupted."""
        async with self._grid:
            await self._check_grid()
            ahead_ms = await self._clock_ahead_ms() if self._clock is None else 0
            began_ms = _now_ms() + LEAD_REAL_MS - self._jobs[0].submit_ms
            self.origin_ms = began_ms + ahead_ms if self._clock is None else self._clock.at(began_ms)
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._run_jobs(began_ms)
            except TimeoutError:
                raise UnavailableError(
                    f"the jobs have not ended after {span_text(1000 * self._patience_s)}; give a lower --speed, or "
                    "check whether others use the grid"
                ) from None
            finally:
                if not self.records:
                    await self._cancel()
            self.remarks += await self._despite_faults(self._foreign_jobs)
            self.live = live_times(await self._grid.scheduling()).at_speed(1 / self._clock_speed)

    async def _run_jobs(self, began_ms: int) -> None:
        """Submit the jobs, wait until they have ended, and collect their records."""
        targets: dict[str | None, list[PlannedJob]] = {}
        for job in self._jobs:
            targets.setdefault(job.site, []).append(job)
        async with _together() as group, _together() as fault_tasks:
            if self._faults is not None:
                fault_tasks.append(asyncio.ensure_future(self._faults.run(began_ms)))
            for site, jobs in targets.items():
                group.append(asyncio.ensure_future(self._submit_when_due(site, jobs, began_ms)))
            group += [
                asyncio.ensure_future(self._cancel_when_due(job, began_ms)) for job in self._jobs if job.cancel_ms
            ]
            await self._watch(targets, group)
        records = {record.job_id: record for record in await self._records(targets)}
        missing = sorted(set(self._ids.values()) - records.keys())
        if missing:
            raise UnavailableError(f"the grid no longer knows job {missing[0]}; was it restarted with an empty state?")
        ended = [self._record(job, records) for job in self._jobs]
        self.records = [expanded(record, self.origin_ms, self._speed / self._clock_speed) for record in ended]

    def _record(self, job: PlannedJob, records: Mapping[int, JobRecord]) -> JobRecord:
        """Return a job's record; a refused job gets its planned submit time."""
        if job.row in self._ids:
            return records[self._ids[job.row]]
        submit_ms = self.origin_ms + round(job.submit_ms * self._clock_speed)
        return JobRecord(job_id=0, request=job.request, state="refused", submit_ms=submit_ms)

    async def _watch(self, sites: Iterable[str | None], group: Sequence[asyncio.Future[None]]) -> None:
        """Poll the jobs until all are submitted and have ended; raise the errors of the tasks in ``group``."""
        while True:
            for task in group:
                if task.done():
                    task.result()
            submitted = all(task.done() for task in group)
            open_jobs = await self._records(sites, OPEN)
            left = {record.job_id for record in open_jobs}
            self._report(len(set(self._ids.values()) - left), len(self._jobs), PLAYING)
            if self._look is not None:
                await self._look(self._grid, open_jobs)
            if submitted and not left:
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _submit_when_due(self, site: str | None, jobs: Sequence[PlannedJob], began_ms: int) -> None:
        """Submit jobs, in order, to the grid or to a site; submit all jobs that are due in one call."""
        done = 0
        while done < len(jobs):
            await asyncio.sleep(max(0, began_ms + jobs[done].submit_ms - _now_ms()) / 1000)
            now_ms = _now_ms() - began_ms
            due = [job for job in jobs[done:] if job.submit_ms <= now_ms] or [jobs[done]]
            try:
                await self._despite_faults(self._submit, site, due)
            except RefusedError:
                for job in due:
                    with contextlib.suppress(RefusedError):  # the simulation may refuse the job as well
                        await self._despite_faults(self._submit, site, [job])
            self._settled.update(job.row for job in due)
            done += len(due)

    async def _submit(self, site: str | None, jobs: Sequence[PlannedJob]) -> None:
        """Submit jobs; raise RefusedError if any job is refused, after submitting the remaining jobs."""
        # The keys make submissions idempotent: a retry after a lost answer submits no job twice.
        keys = [f"{self.name}-{job.row}" for job in jobs]
        handles = await self._grid.submit_many([job.request for job in jobs], site=site, keys=keys)
        self._ids |= {job.row: handle.id for job, handle in zip(jobs, handles, strict=True)}

    async def _cancel_when_due(self, job: PlannedJob, began_ms: int) -> None:
        """Cancel a job at its cancel time if it is still waiting; a started job keeps running, as in the simulation."""
        await asyncio.sleep(max(0, began_ms + (job.cancel_ms or 0) - _now_ms()) / 1000)
        while job.row not in self._settled:
            await asyncio.sleep(_LOOK_AGAIN_S)
        # A held job cannot start between the check and the cancellation.
        if job.row not in self._ids or not await self._despite_faults(self._grid.hold, [self._ids[job.row]]):
            return
        while (record := await self._despite_faults(self._grid.record, self._ids[job.row])).state in PENDING:
            await asyncio.sleep(_LOOK_AGAIN_S)
        if record.state == "held":
            await self._despite_faults(self._grid.cancel, [self._ids[job.row]])

    async def _records(self, sites: Iterable[str | None], states: Sequence[JobState] = ()) -> list[JobRecord]:
        """Return the records of this run's jobs that were submitted to the grid (None) or to the given sites."""
        return [record for site in sites for record in await self._despite_faults(self._listed, site or "", states)]

    async def _listed(self, own: str, states: Sequence[JobState]) -> list[JobRecord]:
        return [record async for record in self._grid.jobs(own=own, array=self.name, state=states)]

    async def _despite_faults(self, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Return the result of a call; repeat the call while a site is not responding.

        A site that the scenario makes fail may not respond until it is back. On a busy machine, a working site may not
        respond for up to ``_SILENCE_S``.
        """
        began_s = time.monotonic()
        while True:
            try:
                return await call(*arguments)
            except UnavailableError as error:
                fails_by_plan = self._faults is not None and self._built.faults.any
                is_silent = isinstance(error, SiteAwayError) and time.monotonic() - began_s < _SILENCE_S
                if not (fails_by_plan or is_silent):
                    raise
                await asyncio.sleep(_LOOK_EVERY_S)

    # -- the grid before and after ------------------------------------------------------------------------------------

    async def _check_grid(self) -> None:
        """Raise ScenarioError unless the grid matches the scenario; add a warning if the grid has other jobs."""
        self._report(0, len(self._jobs), "Asking the grid")
        sites = await self._grid.sites()
        try:
            scheduling = await self._grid.scheduling()
        except NotFoundError:
            raise UnavailableError(
                f"{self._grid.connection.url} does not report how it schedules: it is the gateway of a site, or of an "
                "earlier release"
            ) from None
        self.remarks += check_grid(self._built, sites, scheduling)
        for name in ("", *self._built.site_names):
            async for record in self._grid.jobs(own=name, limit=1):
                self._newest[name] = record.job_id
        queue = await self._grid.queue(0)
        busy = [f"{nodes_text(site.nodes - site.free)} of {site.name}" for site in sites if site.free < site.nodes]
        waiting = queue.waiting + sum(site.waiting for site in sites)
        if busy or waiting:
            what = [*busy, *([f"{waiting} jobs wait"] if waiting else [])]
            self.remarks.append(f"warning: others used the grid at the start: {', '.join(what)}")

    async def _foreign_jobs(self) -> list[str]:
        """Return a warning if other users submitted jobs during the run.

        Other users' jobs may be invisible, but they leave gaps between the ids of this run's jobs.
        """
        own = set(self._ids.values())
        strangers: set[int] = set()
        for site in self._newest:
            async for record in self._grid.jobs(own=site):
                if record.job_id <= self._newest[site]:
                    break
                strangers.add(record.job_id)
        for counter in {job_id // OWN_IDS for job_id in own}:
            numbers = [job_id for job_id in own if job_id // OWN_IDS == counter]
            strangers.update(range(min(numbers), max(numbers)))
        strangers -= own
        sites, queue = await self._grid.sites(), await self._grid.queue(0)
        left = queue.waiting + queue.starting + queue.running + sum(site.waiting + site.running for site in sites)
        if not strangers and not left:
            return []
        seen = [f"{len(strangers)} submitted during it"] * bool(strangers) + [f"{left} at its end"] * bool(left)
        return [f"warning: the grid had jobs of others during the run ({', '.join(seen)}); they affect the schedule"]

    async def _clock_ahead_ms(self) -> int:
        """Return how far the grid's clock is ahead of this machine's clock; 0 if within the measurement error."""
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
            side = "ahead of" if ahead_ms > 0 else "behind"
            self.remarks.append(f"the grid's clock is {span_text(abs(ahead_ms))} {side} that of this machine")
        return round(ahead_ms)

    async def _cancel(self) -> None:
        """Cancel all jobs of this run, including jobs whose submission was not confirmed."""
        self._report(0, len(self._jobs), "Cancelling the jobs")
        sites = sorted({job.site or "" for job in self._jobs})  # an empty name means the grid
        with contextlib.suppress(GridweaveError):
            for _ in range(_CANCEL_TRIES):
                left = await self._records(sites, OPEN)
                if not left:
                    break
                await self._grid.cancel(record.job_id for record in left)
                await asyncio.sleep(_LOOK_EVERY_S)


@contextlib.asynccontextmanager
async def _together() -> AsyncIterator[list[asyncio.Future[None]]]:
    """Yield a list for the block to add tasks to; cancel and await these tasks at the end of the block."""
    tasks: list[asyncio.Future[None]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _now_ms() -> int:
    return int(time.time() * 1000)


# -- a grid on Ray for one run ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RayBase:
    """The Ray cluster of a run: whether sites have labelled nodes, and a folder with the same path on all machines."""

    labelled: bool
    folder: str
    remarks: Sequence[str] = ()

    @property
    def namespace(self) -> str:
        """Ray namespace of this run's actors."""
        return Path(self.folder).name


@contextlib.contextmanager
def _ray_base(sites: Sequence[str], address: str | None, say: Callable[[str], None]) -> Iterator[_RayBase]:
    """Connect this process to Ray during the block; afterwards, stop Ray if this function started it."""
    check_ray()
    # Ray decides at import time whether to use a token, so import it only after the token of a new Ray is set.
    imported = sys.modules.get("ray")
    if imported is not None and imported.is_initialized():
        with _guest(imported, sites) as base:
            yield base
    elif address is not None:
        say("Joining Ray")
        probe(address)
        with connected(address) as ray, _guest(ray, sites) as base:
            yield base
    else:
        say("Starting Ray")
        with _own_ray(sites) as base:
            yield base


@contextlib.contextmanager
def _guest(ray: Any, sites: Sequence[str]) -> Iterator[_RayBase]:
    """Use an existing cluster; at the end, remove the run's folder on all machines of the cluster."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    labelled = {node["Labels"].get(SITE_LABEL) for node in nodes} - {None}
    missing = [site for site in sites if site not in labelled]
    if labelled and missing:
        raise UnavailableError(f"no node of the Ray cluster has the label {SITE_LABEL}={missing[0]}; add such a node")
    folder = str(Path(tempfile.gettempdir()) / f"gridweave-run-{uuid.uuid4().hex[:12]}")
    remarks = [] if labelled else [f"no node has the label {SITE_LABEL}: sites run on any nodes"]
    try:
        yield _RayBase(bool(labelled), folder, remarks)
    finally:
        remove = ray.remote(num_cpus=0, max_retries=0)(_remove)
        by_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        strategies = [by_node(node["NodeID"], soft=False) for node in nodes]
        with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
            ray.get(
                [remove.options(scheduling_strategy=strategy).remote(folder) for strategy in strategies], timeout=_END_S
            )


def _remove(folder: str) -> None:
    """End a run's processes on this machine, then remove its folder."""
    end_jobs(Path(folder), "the run is over")
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _own_ray(sites: Sequence[str]) -> Iterator[_RayBase]:
    """Start Ray with a labelled node for each site; stop Ray at the end, even if this process is killed."""
    root = Path(make_temp())
    labelled = len(sites) <= MOST_NODES
    remarks = (
        [] if labelled else [f"{len(sites)} sites share one Ray node; gridweave starts at most {MOST_NODES} nodes"]
    )
    machines = [RayMachine(site, "m0") for site in sites] if labelled else []
    own = OwnRay(root, machines, marker=secrets.token_hex(16), end_with=os.getpid())
    try:
        own.start()
        with own.connected():
            own.wait()
            yield _RayBase(labelled, str(root / f"run-{root.name}"), remarks)
    finally:
        with signals_held():
            own.end(root / f"run-{root.name}", "the run is over")
            shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def _grid_of(plan: GridPlan, kinds: Kinds | None) -> Iterator[RunningGrid]:
    """Start a grid; at the end, stop all its actors, which would otherwise outlive this process."""
    from gridweave.grid.service.actors import actor_names, find_actors, stop_actors
    from gridweave.grid.service.cluster import USUAL, start_grid

    try:
        yield start_grid(plan, kinds=kinds or USUAL)
    finally:
        with signals_held():
            names = actor_names([(site.name, site.machines) for site in plan.sites])
            stop_actors(find_actors(plan.namespace, names))


async def _behind_own_gateway(namespace: str, patience: Patience, player_of: Callable[[Client], Player]) -> Player:
    """Run the player through a private gateway in this process."""
    from gridweave.grid.config.gateway import GatewaySettings
    from gridweave.grid.gateway.server import Gateway
    from gridweave.grid.service.backend import RayBackend

    gateway = Gateway(RayBackend(namespace), GatewaySettings(port=0, requests_per_s=1e6, burst=1e6))
    await gateway.start()
    try:
        player = player_of(Client(gateway.url, patience=patience))
        await player.run()
        return player
    finally:
        await gateway.stop()
