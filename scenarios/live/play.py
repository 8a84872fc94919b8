"""A scenario, played against real actors on Ray and real processes, with time compressed (docs/live-runs.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import UnavailableError
from gridweave.grid.service.cluster import Answer, GridPlan, RunningGrid, find_actors, start_grid, stop_actors
from gridweave.grid.service.signals import run_in_order
from gridweave.scenarios.batch.grid import GridResult
from gridweave.scenarios.live.compare import LiveRun, live_run_of
from gridweave.scenarios.live.plan import (
    PlannedJob,
    check_playable,
    check_speed,
    first_jobs,
    grid_plan,
    submissions,
    warming,
)
from gridweave.scenarios.live.ray import ground_for
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.read import Overrides
from gridweave.scenarios.scenario.run import Progress, run_built
from gridweave.scenarios.scenario.tables import Scenario
from gridweave.site.job import Accepted, JobRecord, JobRequest
from gridweave.site.service.calls import GRID_ACTOR, encode, site_actor

LEAD_REAL_MS = 300
"""From when all is ready to the first job."""

_WARM_S = 300.0
_ANSWER_S = 60.0
_TRIES = 5
_LOOK_EVERY_S = 0.5
_ASKED_AT_ONCE = 500
_PATIENCE, _LEAST_PATIENCE_S = 3.0, 120.0


def run_on_ray(
    source: str | Path | Scenario,
    *,
    overrides: Overrides = (),
    speed: float = 1000.0,
    address: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> LiveRun:
    """Run a scenario in simulation, and play it on Ray.

    Parameters
    ----------
    source, overrides
        As for `gridweave.scenarios.scenario.run.run_scenario`.
    speed : float
        How many ms of the scenario pass in one: 0.001 to 1,000,000.
    address : str, optional
        Of a Ray cluster: ``auto``, ``host:6379``; a site is on the nodes with its name as the label
        ``gridweave.io/site``. Without it a cluster is started on this machine, with a node for each site, and taken
        down afterwards.
    jobs : int, optional
        The first so many jobs only; all, if left out.
    progress : callable, optional
        Told now and then how far it is.

    Raises
    ------
    ScenarioError
        With all that is wrong with the scenario, or cannot be played live.
    OptionError
        If the speed, the address or the number of jobs makes no sense.
    UnavailableError
        If Ray is not installed, the cluster is not to be had, or the jobs do not come to an end.
    """
    check_speed(speed)
    built = first_jobs(build_scenario(source, overrides), jobs)
    remarks = [*built.remarks, *check_playable(built)]
    count = len(built.workload)
    tell = progress or (lambda done, total, what: None)
    tell(0, count, "Simulating")
    simulated = run_built(built)
    with ground_for(built.site_names, address, lambda what: tell(0, count, what)) as ground:
        plan = grid_plan(
            built,
            speed,
            folder=ground.folder,
            namespace=ground.namespace,
            labelled=ground.labelled,
            epoch_ms=int(time.time() * 1000),
        )
        tell(0, count, "Starting sites")
        grid = _started(plan)
        try:
            play = _Play(grid, submissions(built, speed), tell)
            run_in_order(play.run(patience_s(simulated.result, speed)))
        finally:
            grid.stop()
    records = [play.records[row] for row in range(count)]
    return live_run_of(
        built, simulated, records, origin_ms=play.origin_ms, speed=speed, remarks=(*remarks, *ground.remarks)
    )


def patience_s(simulated: GridResult, speed: float) -> float:
    """Return how long to wait for the end of all jobs.

    Parameters
    ----------
    simulated : GridResult
        What is played.
    """
    span_ms = int(simulated.end_ms.max()) - int(simulated.workload.submit_ms.min())
    return _LEAST_PATIENCE_S + _PATIENCE * span_ms / speed / 1000


class _Play:
    """Hands in jobs when their time has come, and sees how they end."""

    def __init__(self, grid: RunningGrid, jobs: Sequence[PlannedJob], tell: Progress) -> None:
        self._grid, self._jobs, self._tell = grid, jobs, tell
        self._clock = grid.plan.clock
        self._open: dict[str | None, dict[int, int]] = {}
        self.origin_ms = 0
        self.records: dict[int, JobRecord] = {}

    async def run(self, patience_s: float) -> None:
        """Play all jobs to their ends."""
        targets: dict[str | None, list[PlannedJob]] = {}
        for job in self._jobs:
            targets.setdefault(job.site, []).append(job)
        await self._warm_up(set(targets))
        lead_ms = round(LEAD_REAL_MS * self._clock.speed)
        self.origin_ms = self._clock.now_ms() + lead_ms - self._jobs[0].submit_ms
        self._open = {target: {} for target in targets}
        works = [self._hand_in(target, jobs) for target, jobs in targets.items()]
        try:
            async with asyncio.timeout(patience_s):
                await _all_of(*works, self._watch())
        except TimeoutError:
            left = len(self._jobs) - len(self.records)
            raise UnavailableError(
                f"{left:,} of {len(self._jobs):,} jobs have not ended after {patience_s:,.0f} s; give a lower --speed"
            ) from None

    async def _warm_up(self, targets: set[str | None]) -> None:
        """Have all cores load or compile what they use, before it counts."""
        self._tell(0, len(self._jobs), "Warming up")
        wanted = warming(self._grid.plan, targets)
        left: dict[str | None, list[int]] = {}
        for target in targets:
            requests = [(f"warm-{n}", request) for n, (to, request) in enumerate(wanted) if to == target]
            answers = await self._submit(target, requests, _WARM_S)
            left[target] = [answer.job_id for answer in answers if isinstance(answer, Accepted)]
        for target, job_ids in left.items():
            until = time.monotonic() + _WARM_S
            while any(record.state != "ended" for record in await self._records(target, job_ids, _WARM_S)):
                if time.monotonic() > until:
                    raise UnavailableError(f"{_called(target)} does not run the first jobs within {_WARM_S:.0f} s")
                await asyncio.sleep(0.1)

    async def _hand_in(self, target: str | None, jobs: Sequence[PlannedJob]) -> None:
        """Hand in jobs to the grid or to a site: all whose time has come, in their order, one call after the other."""
        done = 0
        while done < len(jobs):
            wait_ms = self._clock.real_ms(self.origin_ms + jobs[done].submit_ms - self._clock.now_ms())
            await asyncio.sleep(max(0, wait_ms) / 1000)
            now_ms = self._clock.now_ms() - self.origin_ms
            batch = [jobs[done]]
            while done + len(batch) < len(jobs) and jobs[done + len(batch)].submit_ms <= now_ms:
                batch.append(jobs[done + len(batch)])
            answers = await self._submit(target, [(job.key, job.request) for job in batch], _ANSWER_S)
            for job, answer in zip(batch, answers, strict=True):
                if isinstance(answer, Accepted):
                    self._open[target][answer.job_id] = job.row
                else:
                    refused = JobRecord(job_id=-1, request=job.request, state="refused", submit_ms=now_ms)
                    self.records[job.row] = msgspec.structs.replace(refused, reason=answer.reason)
            done += len(batch)

    async def _watch(self) -> None:
        """Take note of ends until there are none to come."""
        while len(self.records) < len(self._jobs):
            await asyncio.sleep(_LOOK_EVERY_S)
            for target, known in self._open.items():
                asked = list(known)[:_ASKED_AT_ONCE]
                for record in await self._records(target, asked, _ANSWER_S) if asked else ():
                    row = known.pop(record.job_id)
                    if record.state in ("ended", "refused"):
                        self.records[row] = record
                    else:
                        known[record.job_id] = row  # behind those that were not asked for
            self._tell(len(self.records), len(self._jobs), "Playing on Ray")

    async def _submit(
        self, target: str | None, requests: list[tuple[str, JobRequest]], timeout_s: float
    ) -> list[Answer]:
        data = await self._call(target, "submit", encode(requests), timeout_s)
        return msgspec.msgpack.decode(data, type=list[Answer])

    async def _records(self, target: str | None, job_ids: list[int], timeout_s: float) -> list[JobRecord]:
        data = await self._call(target, "records", job_ids, timeout_s)
        return msgspec.msgpack.decode(data, type=list[JobRecord])

    async def _call(self, target: str | None, method: str, argument: object, timeout_s: float) -> bytes:
        """Call an actor; one that does not answer is asked again: both calls may be repeated."""
        import ray

        actor = self._grid.actors[GRID_ACTOR if target is None else site_actor(target)]
        for attempt in range(1, _TRIES + 1):
            try:
                async with asyncio.timeout(timeout_s):
                    answer: bytes = await _result(getattr(actor, method).remote(argument))
            except (ray.exceptions.RayError, TimeoutError) as error:
                if attempt == _TRIES:
                    told = str(error).splitlines()[0] if str(error) else type(error).__name__
                    raise UnavailableError(f"{_called(target)} does not answer: {told}") from None
                await asyncio.sleep(0.2 * attempt)
            else:
                return answer
        raise AssertionError("the last try returns or raises")


async def _result(reference: Any) -> Any:
    return await reference


async def _all_of(*works: Any) -> None:
    """Do several things at once; if one fails, end the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _called(target: str | None) -> str:
    return "the grid" if target is None else f"site {target}"


def _started(plan: GridPlan) -> RunningGrid:
    """Start the grid; leave nothing of it if that fails, or is interrupted: actors outlive who made them."""
    try:
        return start_grid(plan)
    except BaseException:
        stop_actors(find_actors(plan.namespace, [(site.name, site.machines) for site in plan.sites]))
        raise
