"""Ending what was started for a local grid: exactly that, and all of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from gridweave.errors import GridweaveError
from gridweave.grid.service.state import LocalProcess
from gridweave.site.launch import FragmentEnded
from gridweave.site.machine.folders import JOBS, fragment_key, read_state
from gridweave.site.machine.processes import ProcessStat, process_stat, send_signal, strays
from gridweave.site.machine.runner import Runner

MARKER_VARIABLE = "GRIDWEAVE_LOCAL_GRID"
"""In the environment of every process that was started for a grid: its ``marker``."""

TERM_S, KILL_S = 10.0, 10.0
"""How long processes have to end by themselves, and to be gone when they are killed."""

JOBS_S = 30.0


def end_processes(processes: Sequence[LocalProcess], *, patience_s: float = TERM_S) -> None:
    """Have processes end by themselves, and kill those that do not in time, with all of their sessions.

    Parameters
    ----------
    processes : sequence of LocalProcess
        One whose number was given to another process since is left alone.
    """
    leaders = [(process.pid, process.start_ticks) for process in processes]
    # Looked for as long as the leaders live: then it is certain whose the sessions are.
    members = strays("", leaders)
    for process in processes:
        stat = process_stat(process.pid)
        if stat is not None and stat.start_ticks == process.start_ticks:
            send_signal(stat, signal.SIGTERM)
    wait_for_end(leaders, patience_s)
    members += strays("", leaders)
    kill(members)


def end_marked(marker: str, *, within: Iterable[int] | None = None) -> int:
    """Kill what has the marker of a grid in its environment, until nothing has; return how many processes it was.

    Parameters
    ----------
    within : iterable of int, optional
        Only what is in these sessions: the processes of jobs are in sessions of their own.
    """
    sessions = None if within is None else set(within)
    count = 0
    until = time.monotonic() + KILL_S
    while time.monotonic() < until:
        found = [
            stat
            for stat in strays(marker, (), variable=MARKER_VARIABLE)
            if sessions is None or stat.session in sessions
        ]
        if not found:
            break
        count += len(found)
        kill(found)
    return count


def kill(found: Sequence[ProcessStat]) -> None:
    """Kill processes and wait until they are gone."""
    for stat in found:
        send_signal(stat, signal.SIGKILL)
    wait_for_end([(stat.pid, stat.start_ticks) for stat in found], KILL_S)


def wait_for_end(processes: Iterable[tuple[int, int]], patience_s: float) -> bool:
    """Wait until processes are gone; return whether they are."""
    until = time.monotonic() + patience_s
    for pid, ticks in processes:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # The first thread of a process may be over while others still hold its files, and so its locks.
            stat = process_stat(pid)
            if stat is None or stat.start_ticks != ticks:
                continue
            if not select.select([handle], [], [], max(0.0, until - time.monotonic()))[0]:
                return False
        finally:
            os.close(handle)
    return True


def end_jobs(folder: Path, reason: str, *, patience_s: float = JOBS_S) -> None:
    """End what the agents of machines have left running on this one, and wait for the ends.

    Parameters
    ----------
    folder : pathlib.Path
        Of the grid: each machine of a site has a folder there. Their agents must be gone.
    reason : str
        Why, in one line: the next agents tell it to their sites.
    patience_s : float
        For the jobs of each machine.
    """
    asyncio.run(_end_left(folder, reason, patience_s))


async def _end_left(folder: Path, reason: str, patience_s: float) -> None:
    for jobs in sorted(folder.glob(f"*/*/{JOBS}")):
        states = [read_state(fragment) for fragment in jobs.iterdir() if fragment_key(fragment) is not None]
        if all(state is not None and state.phase == "ended" for state in states):
            continue
        with contextlib.suppress(GridweaveError, TimeoutError):
            async with Runner(jobs.parent) as runner, asyncio.timeout(patience_s):
                await _end_all(runner, reason)


async def _end_all(runner: Runner, reason: str) -> None:
    left = set(await runner.adopt())
    for key in left:
        await runner.cancel(*key, reason)
    events = runner.events()
    while left:
        event = await anext(events)
        if isinstance(event, FragmentEnded):
            left.discard((event.job_id, event.attempt))


def count_running(folder: Path) -> int:
    """Return how many parts of jobs run on this machine, by their folders."""
    states = (
        read_state(fragment)
        for jobs in folder.glob(f"*/*/{JOBS}")
        for fragment in jobs.iterdir()
        if fragment_key(fragment) is not None
    )
    return sum(state is not None and state.phase != "ended" for state in states)
