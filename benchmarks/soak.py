"""Run small jobs for as long as a day's work, and check for growing memory, and for jobs lost to killed processes.

    python benchmarks/soak.py [--jobs 100000] [--real]
    python benchmarks/soak.py --minutes 20 [--kill-every 20] [--seed 1]

With ``--minutes``, four users submit single jobs, arrays and jobs on two sites to a grid of `gridweave up`, through its
gateway, while its processes are killed one after the other. Each job writes down when its ranks began and ended. At the
end these records are compared with the accepted jobs; the exit status is 1 if a job was lost, or run twice to its end.

Without it, jobs are submitted through the gateway, up to some thousand ahead of those that have ended. After each fifth
of the jobs, the memory of the gateway, the meta-scheduler, the sites and the machines is measured; at the end each may
have at most a tenth more than after the first fifth. Without ``--real`` the machines end jobs at once; with it each job
is a process that runs `true`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import ray
from gateway import gateway_process
from instant_machine import InstantMachine
from live import ended, grid_of
from live_figures import COMMAND, own_folder
from rich.console import Console
from rich.table import Table
from weight import SITES, pids_of, pss_mb, what_is

from gridweave.errors import GridweaveError
from gridweave.grid.client.client import Client, JobHandle
from gridweave.grid.client.transport import Patience
from gridweave.grid.config.local_state import (
    DEFAULT_NAME,
    GATEWAY,
    MARKER_VARIABLE,
    LocalGridState,
    read_grid_state,
    state_folder,
)
from gridweave.grid.service.cluster import RunningGrid
from gridweave.grid.service.status import look
from gridweave.site.job import ArrayPlace, JobRequest, Program
from gridweave.site.machine.processes import strays
from gridweave.site.service.agent_actor import AgentActor

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.checks import WRITES_ITS_OWN_STORY, ViolationError, check_stories, read_stories

AHEAD = 2_000
BATCH = 500
FIFTHS = 5
MOST_GROWTH = 1.10


def processes(grid: RunningGrid) -> dict[str, psutil.Process]:
    """Return the processes of the actors, of the gateway and of Ray itself, by name."""
    found = {}
    for name in sorted(grid.actors):
        found[name] = psutil.Process(grid.call(name, "process"))
    for process in psutil.Process().children(recursive=True):
        words = " ".join(process.cmdline())
        if process.name() in ("raylet", "gcs_server"):
            found[process.name()] = process
        elif "spawn_main" in words:
            found["gateway"] = process
    return found


def memory_mb(found: dict[str, psutil.Process]) -> dict[str, float]:
    """Return the memory that each process has for itself alone (USS)."""
    return {name: process.memory_full_info().uss / 1e6 for name, process in found.items()}


async def soak(grid: RunningGrid, url: str, jobs: int) -> list[dict[str, float]]:
    """Submit and run jobs; return the memory after each fifth of them."""
    request = JobRequest(program=Program(argv=("true",)), limit_ms=60_000, user="soak")
    seen: list[dict[str, float]] = []
    found = processes(grid)
    async with Client(url) as client:
        submitted = 0
        while len(seen) < FIFTHS:
            over = await asyncio.to_thread(ended, grid)
            if submitted < jobs and submitted - over < AHEAD:
                await client.submit_many([request] * BATCH)
                submitted += BATCH
            else:
                await asyncio.sleep(0.1)
            if over >= (len(seen) + 1) * jobs // FIFTHS:
                seen.append(memory_mb(found))
    return seen


def is_grown(jobs: int, is_real: bool) -> bool:
    """Print the memory after each fifth of the jobs; return whether a process has grown."""
    machine = AgentActor if is_real else InstantMachine
    with grid_of(3, 64, machine) as grid, gateway_process(ray.get_runtime_context().gcs_address) as url:
        begin_s = time.perf_counter()
        seen = asyncio.run(soak(grid, url, jobs))
        rate = jobs / (time.perf_counter() - begin_s)
    headings = [f"{(number + 1) * jobs // FIFTHS:,}" for number in range(FIFTHS)]
    title = f"{jobs:,} jobs, {rate:,.0f} a second, {os.cpu_count()} cores: memory [MB] after this many"
    table = Table("process", *headings, "grown", title=title)
    grown = False
    for name in seen[0]:
        factor = seen[-1][name] / seen[0][name]
        grown |= factor > MOST_GROWTH
        table.add_row(name, *(f"{memory[name]:.1f}" for memory in seen), f"{factor - 1:+.1%}")
    Console(width=120).print(table)
    return grown


# -- with kills --------------------------------------------------------------------------------------------------------

USERS = ("anna", "bert", "carl", "dora")
WIDEST, ARRAY, SLEEP_S = max(SITES.values()), 5, (0.1, 2.0)
AGENT, NODE, RAYLET = "ray::AgentActor", "Ray node of ", "raylet"
VICTIMS = {GATEWAY: 4, "meta-scheduler": 4, "site ": 4, AGENT: 4, RAYLET: 1}
"""The processes to kill, by the start of their name, and their relative frequency."""
PATIENT = Patience(total_s=600.0, connect_s=600.0)
SETTLE_S = 180.0
"""Longest time from the submission of a job to its end; jobs sleep for at most 2 s."""


def grid_file() -> str:
    """Return a GRID.toml of sites with a Ray node each, which accept the jobs of all users."""
    each = "[[sites]]\nname = {!r}\nnodes = {}\nlauncher = {{ kind = 'self', trust = 'all' }}\n\n"
    sites = "".join(each.format(name, nodes) for name, nodes in SITES.items())
    return f"{sites}[grid]\nmode = 'adaptive'\noverhead = 0.1\n\n[gateway]\nport = 0\n\n[ray]\nnodes = 'machine'\n"


class Work:
    """The jobs that users have submitted, and the outcome of each as the gateway reports it."""

    def __init__(self, history: Path, until_s: float) -> None:
        self.history, self.until_s = history, until_s
        self.accepted: set[int] = set()
        self.outcomes: dict[int, str] = {}

    async def submit_as(self, user: str, client: Client, rng: np.random.Generator) -> None:
        """Submit jobs as a user, each after the end of the one before."""
        number = 0
        while time.monotonic() < self.until_s:
            number += 1
            jobs = await client.submit_many(self._drawn(rng, user, number))
            self.accepted.update(job.id for job in jobs)
            await asyncio.gather(*map(self._end, jobs))

    def _drawn(self, rng: np.random.Generator, user: str, number: int) -> list[JobRequest]:
        """Return a single job, an array, or a job that needs two sites."""
        kind = rng.choice(["single", "array", "wide"], p=[0.5, 0.3, 0.2])
        nodes = {"single": rng.integers(1, 5), "array": 1, "wide": rng.integers(WIDEST + 1, WIDEST + 7)}[kind]
        array = [ArrayPlace(name=f"{user}-{number}", index=k) for k in range(ARRAY)] if kind == "array" else [None]
        return [
            JobRequest(
                program=Program(
                    argv=(*WRITES_ITS_OWN_STORY, str(self.history), f"{rng.uniform(*SLEEP_S):.2f}"), grace_ms=500
                ),
                nodes=int(nodes),
                limit_ms=300_000,
                user=user,
                array=place,
            )
            for place in array
        ]

    async def _end(self, job: JobHandle) -> None:
        with contextlib.suppress(GridweaveError, TimeoutError):
            self.outcomes[job.id] = (await job.done(SETTLE_S)).outcome


def processes_of(state: LocalGridState) -> dict[str, list[int]]:
    """Return the processes of a local grid by name; those without a name of their own are grouped by kind."""
    names = {part.pid: part.name for part in look(state.name).parts}
    found: dict[str, list[int]] = defaultdict(list)
    for pid in pids_of(state):
        with contextlib.suppress(OSError, IndexError):  # the process has ended
            found[names.get(pid) or what_is(pid)].append(pid)
    return found


def memory_of(state: LocalGridState) -> dict[str, float]:
    """Return the memory of the processes of a local grid, by name [MB]."""
    found: dict[str, float] = defaultdict(float)
    for name, pids in processes_of(state).items():
        for pid in pids:
            with contextlib.suppress(OSError):
                found[name] += pss_mb(pid)
    return found


def victims(state: LocalGridState, kind: str) -> list[tuple[str, int]]:
    """Return the processes of a kind, with their names; for raylets, only those of the sites."""
    found = processes_of(state)
    if kind != RAYLET:
        return [(name, pid) for name, pids in found.items() if name.startswith(kind) for pid in pids]
    nodes = [psutil.Process(pid) for name, pids in found.items() if name.startswith(NODE) for pid in pids]
    return [(RAYLET, each.pid) for node in nodes for each in node.children(recursive=True) if each.name() == RAYLET]


async def kill_some(rng: np.random.Generator, every_s: float, until_s: float) -> Counter[str]:
    """Kill random processes at regular intervals; return how often each was killed."""
    killed: Counter[str] = Counter()
    weights = np.array(list(VICTIMS.values()))
    while time.monotonic() + every_s < until_s:
        await asyncio.sleep(every_s)
        kind = str(rng.choice(list(VICTIMS), p=weights / weights.sum()))
        try:
            found = await asyncio.to_thread(victims, local_grid(), kind)
        except (GridweaveError, psutil.Error):
            found = []
        name, pid = found[rng.integers(len(found))] if found else (f"{kind.strip()}: not found", 0)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        print(f"    {time.strftime('%X')}  {name} {pid or ''}", flush=True)
        killed[name] += 1
    return killed


def local_grid() -> LocalGridState:
    """Return the grid that is up."""
    state = read_grid_state(DEFAULT_NAME)
    assert state is not None, "the grid is up"
    return state


@contextlib.contextmanager
def up() -> Iterator[LocalGridState]:
    """Bring up a grid in this folder, and take it down at the end."""
    Path("GRID.toml").write_text(grid_file())
    try:
        subprocess.run([*COMMAND, "up", "GRID.toml"], check=True, stdout=subprocess.DEVNULL)
        yield local_grid()
    finally:
        subprocess.run([*COMMAND, "down"], check=False, stdout=subprocess.DEVNULL)


async def work_under_kills(work: Work, rng: np.random.Generator, every_s: float) -> Counter[str]:
    """Have all users submit while processes are killed, until all jobs have ended; return what was killed."""
    async with Client(patience=PATIENT) as client:
        users = [work.submit_as(user, client, own) for user, own in zip(USERS, rng.spawn(len(USERS)), strict=True)]
        killed, *_ = await asyncio.gather(kill_some(rng, every_s, work.until_s), *users)
    return killed


class FilesLeft(NamedTuple):
    """The number of files, and their size."""

    files: int
    size_bytes: int


def files_left(folder: Path) -> dict[str, FilesLeft]:
    """Return the files that a grid has left: those of jobs as one group, all others by suffix."""
    found: dict[str, FilesLeft] = defaultdict(lambda: FilesLeft(0, 0))
    for path in folder.rglob("*"):
        if path.is_file():
            what = "jobs" if "jobs" in path.relative_to(folder).parts else path.suffix or path.name
            before = found[what]
            found[what] = FilesLeft(before.files + 1, before.size_bytes + path.lstat().st_size)
    return dict(sorted(found.items()))


def print_work(work: Work, killed: Counter[str]) -> bool:
    """Print the results of the jobs; return whether none was lost and none was run twice to its end."""
    stories = read_stories(work.history)
    whole = {job: stories.whole_attempts(job) for job in work.accepted | set(stories.ranks)}
    lost = [job for job in work.accepted if job not in work.outcomes or not whole[job]]
    doubled = [job for job, attempts in whole.items() if len(attempts) > 1]
    again = sum(len({attempt for attempt, _ in places}) > 1 for places in stories.ranks.values())
    wide = sum(len({site for _, site in places}) > 1 for places in stories.ranks.values())
    table = Table("jobs", "", title="Jobs")
    table.add_row("accepted", f"{len(work.accepted):,}")
    table.add_row("... ran on several sites", f"{wide:,}")
    table.add_row("... begun more than once", f"{again:,}")
    for outcome, count in Counter(work.outcomes.values()).items():
        table.add_row(f"... {outcome}", f"{count:,}")
    for what, jobs in (
        ("lost", lost),
        ("run twice to the end", doubled),
        ("run without being accepted", sorted(set(stories.ranks) - work.accepted)),
    ):
        table.add_row(what, " ".join([f"{len(jobs)}", *(f"(job {job})" for job in sorted(jobs)[:10])]))
    table.add_row(f"kills: {killed.total()}", ", ".join(f"{name} {count}" for name, count in sorted(killed.items())))
    Console(width=120).print(table)
    try:
        check_stories(work.history, work.outcomes, SITES)
    except ViolationError as error:
        print(f"the jobs' own history: {error}")
        return False
    return not lost and not doubled and set(stories.ranks) <= work.accepted


def under_kills(minutes: float, every_s: float, rng: np.random.Generator) -> bool:
    """Submit jobs while processes are killed, and print the results; return whether nothing was lost or run twice."""
    with own_folder(is_first=False):
        with up() as state:
            before = memory_of(state)
            work = Work(Path("story").absolute(), time.monotonic() + 60 * minutes)
            killed = asyncio.run(work_under_kills(work, rng, every_s))
            last = local_grid()
            after = memory_of(last)
        memory = Table("process", "before", "after", title="Memory (PSS, MB)")
        for name in sorted({*before, *after}):
            memory.add_row(name, f"{before.get(name, 0):.1f}", f"{after.get(name, 0):.1f}")
        left = Table("files", "number", "MB", title="Files left")
        for what, (files, size_bytes) in files_left(state_folder(last.name)).items():
            left.add_row(what, f"{files:,}", f"{size_bytes / 1e6:.1f}")
        is_well = print_work(work, killed)
        Console(width=120).print(memory, left)
        alive = len(strays(last.marker, (), variable=MARKER_VARIABLE))
        is_there = bool(last.temp) and Path(last.temp).exists()
        print(
            f"after `down`: {alive} processes are alive; the folder of Ray is {'still there' if is_there else 'gone'}"
        )
    return is_well


def main() -> None:
    """Print the results; the exit status is 1 if a process has grown, or a job was lost or run twice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--minutes", type=float, help="Kill processes for this many minutes")
    parser.add_argument("--kill-every", type=float, default=20.0, metavar="S", help="Seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.minutes is None:
        sys.exit(1 if is_grown(options.jobs, options.real) else 0)
    sys.exit(0 if under_kills(options.minutes, options.kill_every, np.random.default_rng(options.seed)) else 1)


if __name__ == "__main__":
    main()
