"""A day's work in small jobs, and whether the memory of any process grows.

    python benchmarks/soak.py [--jobs 100000] [--real]

Jobs are handed in through the gateway, some thousand ahead of those that have ended. After each fifth of them the
memory of the gateway, the meta-scheduler, the sites and the machines is looked at; in the end each may have at most a
tenth more than after the first fifth. Without ``--real`` the machines end jobs at once; with it each job is a process
that runs `true`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import ray
from gateway import gateway_process
from instant_machine import InstantMachine
from live import ended, grid_of
from rich.console import Console
from rich.table import Table

from gridweave.grid.client.client import Client
from gridweave.grid.service.cluster import RunningGrid
from gridweave.site.job import JobRequest, Program
from gridweave.site.service.agent_actor import AgentActor

AHEAD = 2_000
BATCH = 500
FIFTHS = 5
MOST_GROWTH = 1.10


def processes(grid: RunningGrid) -> dict[str, psutil.Process]:
    """Return the processes of the actors and of the gateway, and what else Ray runs for them, by what they are."""
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
    """Return what each has for itself alone."""
    return {name: process.memory_full_info().uss / 1e6 for name, process in found.items()}


async def soak(grid: RunningGrid, url: str, jobs: int) -> list[dict[str, float]]:
    """Hand in and run so many jobs; return the memory after each fifth."""
    request = JobRequest(program=Program(argv=("true",)), limit_ms=60_000, user="soak")
    seen: list[dict[str, float]] = []
    found = processes(grid)
    async with Client(url) as client:
        handed_in = 0
        while len(seen) < FIFTHS:
            over = await asyncio.to_thread(ended, grid)
            if handed_in < jobs and handed_in - over < AHEAD:
                await client.submit_many([request] * BATCH)
                handed_in += BATCH
            else:
                await asyncio.sleep(0.1)
            if over >= (len(seen) + 1) * jobs // FIFTHS:
                seen.append(memory_mb(found))
    return seen


def main() -> None:
    """Print what was measured; end with 1 if a process has grown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--real", action="store_true")
    asked = parser.parse_args()
    machine = AgentActor if asked.real else InstantMachine
    with grid_of(3, 64, machine) as grid, gateway_process(ray.get_runtime_context().gcs_address) as url:
        begin_s = time.perf_counter()
        seen = asyncio.run(soak(grid, url, asked.jobs))
        rate = asked.jobs / (time.perf_counter() - begin_s)
    headings = [f"{(number + 1) * asked.jobs // FIFTHS:,}" for number in range(FIFTHS)]
    title = f"{asked.jobs:,} jobs, {rate:,.0f} a second, {os.cpu_count()} cores: memory [MB] after so many"
    table = Table("process", *headings, "grown", title=title)
    grown = False
    for name in seen[0]:
        factor = seen[-1][name] / seen[0][name]
        grown |= factor > MOST_GROWTH
        table.add_row(name, *(f"{memory[name]:.1f}" for memory in seen), f"{factor - 1:+.1%}")
    Console(width=120).print(table)
    sys.exit(1 if grown else 0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
