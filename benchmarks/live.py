"""Measure the live grid on one machine: placement, real processes, and the rates of Ray and HyperQueue for comparison.

    python benchmarks/live.py [placement] [processes] [baselines]

Placement is measured from the instant at which the drained sites accept jobs again. The machines report every node task
as ended as soon as it is ordered. So the measured time is that of the grid, its journals (SQLite, durable) and the
messages between the actors, without any process of a job.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
from instant_machine import InstantMachine
from rich.console import Console
from rich.table import Table

from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.cluster import GridPlan, Kinds, RunningGrid, SitePlan, start_grid
from gridweave.site.job import JobRequest, Program
from gridweave.site.service.agent_actor import AgentActor
from gridweave.site.service.calls import GRID_ACTOR, question, site_actor

BATCH = 500
SITES, NODES = 20, 256
MEASURED = 10_000


@contextlib.contextmanager
def grid_of(sites: int, nodes: int, machine: type = AgentActor) -> Iterator[RunningGrid]:
    """Yield a grid on a Ray of this machine, whose workers have the same niceness as with ``gridweave up``."""
    own: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    own |= {"_system_config": {"worker_niceness": 0}}
    # Workers import the machine of these measurements from the same folder as this process.
    own |= {"runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}}
    with tempfile.TemporaryDirectory() as folder:
        ray.init(address="local", num_cpus=2, namespace="benchmark", **own)
        try:
            plan = GridPlan(
                folder=folder,
                sites=tuple(SitePlan(name=f"s{number:02}", nodes=nodes) for number in range(sites)),
                policy=GridPolicy(mode="adaptive", overhead=0.25),
                labelled=False,
            )
            grid = start_grid(plan, kinds=Kinds(machine=machine), timeout_s=300)
            yield grid
            grid.stop()
        finally:
            ray.shutdown()


def ended(grid: RunningGrid) -> int:
    """Return how many jobs have ended."""
    return int(grid.call(GRID_ACTOR, "ended_count"))


def submit_all(grid: RunningGrid, requests: list[JobRequest], name: str) -> float:
    """Submit jobs in batches; return the rate at which they are acknowledged [jobs/s]."""
    begin_s = time.perf_counter()
    for start in range(0, len(requests), BATCH):
        part = requests[start : start + BATCH]
        grid.submit([(f"{name} {start + number}", request) for number, request in enumerate(part)])
    return len(requests) / (time.perf_counter() - begin_s)


def wait_for(grid: RunningGrid, count: int) -> None:
    """Wait until this many jobs have ended."""
    while ended(grid) < count:
        time.sleep(0.2)


def memory_of(grid: RunningGrid, name: str) -> float:
    """Return the memory of an actor [MB]."""
    process = psutil.Process(grid.call(name, "process"))
    return float(process.memory_info().rss) / 1e6


def placement(table: Table) -> None:
    """Measure the rate of placement with few and with many waiting jobs."""
    rng = np.random.default_rng(1)
    with grid_of(SITES, NODES, InstantMachine) as grid:
        submit_all(grid, requests(rng, 500), "warm")
        wait_for(grid, 500)
        for waiting in (1_000, 100_000):
            before = ended(grid)
            drain(grid, True)
            acknowledged = submit_all(grid, requests(rng, waiting + MEASURED), f"{waiting}")
            assert ended(grid) == before, "a site accepted jobs while it was drained"
            drain(grid, False)
            begin_s = time.perf_counter()
            wait_for(grid, before + MEASURED)
            rate = (ended(grid) - before) / (time.perf_counter() - begin_s)
            table.add_row(f"placed with {waiting:,} waiting behind", f"{rate:,.0f} jobs/s", "1,000")
            table.add_row(f"... acknowledged in batches of {BATCH}", f"{acknowledged:,.0f} jobs/s", "")
            table.add_row("... memory of the meta-scheduler", f"{memory_of(grid, GRID_ACTOR):,.0f} MB", "1,000")
            if waiting < 10_000:
                wait_for(grid, before + waiting + MEASURED)


def drain(grid: RunningGrid, draining: bool) -> None:
    """Drain all sites, so that jobs queue up, or resume all of them."""
    for site in grid.plan.sites:
        grid.call(site_actor(site.name), "ask", "drain", question(draining))


def requests(rng: np.random.Generator, count: int) -> list[JobRequest]:
    """Return jobs of 1 to 4 nodes."""
    program = Program(argv=("true",))
    return [
        JobRequest(program=program, nodes=int(nodes), limit_ms=60_000, user=f"user{nodes}")
        for nodes in rng.integers(1, 5, count)
    ]


def processes(table: Table) -> None:
    """Measure jobs with real processes, end to end."""
    with grid_of(3, 64) as grid:
        one = [JobRequest(program=Program(argv=("true",)), nodes=1, limit_ms=60_000)]
        submit_all(grid, one * 50, "warm")
        wait_for(grid, 50)
        begin_s = time.perf_counter()
        submit_all(grid, one * 1_000, "processes")
        wait_for(grid, 1_050)
        rate = 1_000 / (time.perf_counter() - begin_s)
        table.add_row("`true`, end to end", f"{rate:,.0f} jobs/s", "100")


def main(wanted: list[str]) -> None:
    """Run the selected measurements, and print them."""
    table = Table("what", "figure", "target", title=f"The live grid, {os.cpu_count()} cores")
    parts = {"placement": placement, "processes": processes}
    for name in wanted or list(parts):
        if name not in parts:
            sys.exit(f"{name!r} is not one of {', '.join(parts)}")
        parts[name](table)
    Console().print(table)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(sys.argv[1:])
