"""The demonstration on a grid that is up: jobs handed in when their time has come, and what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gridweave.errors import UnavailableError
from gridweave.grid.api import Forecast
from gridweave.grid.client.client import Client
from gridweave.grid.service.down import begin_anew, take_down
from gridweave.grid.service.signals import ended_in_order, run_in_order, signals_held
from gridweave.grid.service.state import LocalGridState, make_private, state_folder
from gridweave.scenarios.demo import WIDE, Demo
from gridweave.scenarios.scenario.run import Progress
from gridweave.site.job import JobRecord

LEAD_MS = 300
"""From when all is ready to the first job."""

PATIENCE_S = 180.0
_LOOK_EVERY_S = 0.5
_PLAYED = "played-by"

Tell = Callable[[str], None]
"""Hears what is going on."""


@dataclass(kw_only=True)
class Played:
    """What was seen of the jobs.

    Attributes
    ----------
    origin_ms : int
        What the clock of the grid showed at time 0 of the demonstration.
    records : list of JobRecord
        Of all jobs in the order in which they were handed in, at the end.
    waiting : Forecast or None
        Why one of them waited, while the widest ran.
    running : list of JobRecord
        What ran at that time.
    """

    origin_ms: int
    records: list[JobRecord] = field(default_factory=list)
    waiting: Forecast | None = None
    running: list[JobRecord] = field(default_factory=list)

    @property
    def split(self) -> list[JobRecord]:
        """The jobs that ran on several sites."""
        return [record for record in self.records if len(record.places) > 1]


@contextlib.contextmanager
def grid_of_its_own(name: str, tell: Tell) -> Iterator[None]:
    """Have a name for a grid to oneself; whatever happens, and whoever interrupts, nothing of that grid is left.

    Parameters
    ----------
    name : str
    tell : callable

    Raises
    ------
    UnavailableError
        If another process has it.
    """
    folder = make_private(state_folder(name))
    handle = os.open(folder / _PLAYED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with ended_in_order():
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UnavailableError("the demonstration is shown by another process just now; wait for it") from None
            try:
                _remove(name, tell)  # what one that was killed has left
                yield
            finally:
                with signals_held():
                    _remove(name, tell)
                    shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


def _remove(name: str, tell: Tell) -> None:
    take_down(name, keep_jobs=False, tell=tell)
    begin_anew(name)


def play(state: LocalGridState, demo: Demo, report: Progress) -> Played:
    """Play the jobs of the demonstration to their ends.

    Parameters
    ----------
    state : LocalGridState
        Of the grid.
    demo : Demo
    report : callable
        Told now and then how far it is.

    Returns
    -------
    Played

    Raises
    ------
    UnavailableError
        If they do not come to an end.
    """
    return run_in_order(_play(state, demo, report))


async def _play(state: LocalGridState, demo: Demo, report: Progress) -> Played:
    jobs = demo.submissions
    played = Played(origin_ms=_now_ms() + LEAD_MS - jobs[0].submit_ms)
    ids: list[int] = []

    async with Client(state.url, token=state.token) as grid:

        async def hand_in() -> None:
            while len(ids) < len(jobs):
                wait_ms = played.origin_ms + jobs[len(ids)].submit_ms - _now_ms()
                await asyncio.sleep(max(0, wait_ms) / 1000)
                now_ms = _now_ms() - played.origin_ms
                due = [job for job in jobs[len(ids) :] if job.submit_ms <= now_ms] or [jobs[len(ids)]]
                taken = await grid.submit_many([job.request for job in due], keys=[job.key for job in due])
                ids.extend(job.id for job in taken)

        handing_in = asyncio.ensure_future(hand_in())
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    await asyncio.sleep(_LOOK_EVERY_S)
                    if handing_in.done():
                        handing_in.result()
                    records = {record.job_id: record async for record in grid.jobs()}
                    over = sum(record.state in ("ended", "refused") for record in records.values())
                    running = sum(record.state == "running" for record in records.values())
                    report(over, len(jobs), f"{running} jobs run, {len(records) - over - running} wait, are over:")
                    if played.waiting is None:
                        await _ask_why(grid, records, played)
                    if over == len(jobs):
                        break
        except TimeoutError:
            raise UnavailableError(f"the jobs are not over after {PATIENCE_S:.0f} s") from None
        finally:
            handing_in.cancel()
    played.records = [records[job_id] for job_id in ids]
    return played


async def _ask_why(grid: Client, records: dict[int, JobRecord], played: Played) -> None:
    """Ask why a job waits, while the widest runs."""
    if not any(record.request.nodes == WIDE and record.state == "running" for record in records.values()):
        return
    queue = await grid.queue(1)
    if queue.jobs:
        played.waiting = await grid.explain(queue.jobs[0].job_id)
        played.running = [record for record in records.values() if record.state == "running"]


def _now_ms() -> int:
    return int(time.time() * 1000)
