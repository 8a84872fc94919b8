"""Measure a grid of two real Slurm clusters with users of their own; print it and write results/slurm_clusters.json.

    python benchmarks/slurm_clusters.py [JOBS]

Must be run as root, with slurm-wlm and munge installed. Two clusters of six nodes on this machine, each with the same
jobs of its own users, in three ways: alone on all nodes; alone on the two nodes that the cap leaves them (the other
four are drained); and together with jobs of the grid, which may have four nodes of each cluster in pilots. A tenth of
the grid's jobs are wider than either site. Prints how they ended, a histogram of how far apart the ranks of each wide
job began, and how long the own users waited each way. Targets: all jobs end well, ranks begin within 100 ms of each
other, and own users wait no longer together with the grid than alone on the nodes that the cap leaves them.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measuring import write_results

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from gridweave.site.lifecycle import OVER  # noqa: E402
from gridweave.slurm.policy import BatchPolicy, PilotRules  # noqa: E402
from support.slurm import NODES as OF_GRID  # noqa: E402
from support.slurm import GridOfClusters, SlurmCluster, running_cluster  # noqa: E402

JOBS, NODES, OWN_JOBS, PATIENCE_S = 200, 6, 20, 1_800.0
PILOTS = BatchPolicy(pilots=PilotRules(length_ms=1_200_000, job_ms=600_000, idle_ms=10_000))
LEFT = NODES - OF_GRID
"""Nodes of each cluster that the cap leaves its own users."""

STEPS_MS = (10, 30, 100, 300, 1_000, 3_000)


async def own_users(cluster: SlurmCluster, folder: Path) -> list[float]:
    """Submit the jobs of a cluster's own users, the same ones every time, and return the wait of each [s]."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for number in range(OWN_JOBS):
        script = f"echo {time.time()} $(date +%s.%N) > {folder}/{number}; sleep {rng.uniform(0.5, 2.0):.2f}"
        command = ("sbatch", f"-N{rng.integers(1, 3)}", "--exclusive", "-t1", "-o/dev/null", "--wrap", script)
        await asyncio.to_thread(cluster.run, *command)
        await asyncio.sleep(rng.exponential(1.5))
    async with asyncio.timeout(PATIENCE_S):
        while len(list(folder.iterdir())) < OWN_JOBS or not all(each.stat().st_size for each in folder.iterdir()):
            await asyncio.sleep(0.2)
    times = [list(map(float, each.read_text().split())) for each in folder.iterdir()]
    return [start_s - submit_s for submit_s, start_s in times]


async def both_alone(clusters: tuple[SlurmCluster, ...], folder: Path, nodes: int) -> list[list[float]]:
    """Return the waits of each cluster's own users without a grid, on `nodes` of the nodes."""
    others = [f"{each.name}[{nodes + 1}-{NODES}]" for each in clusters] if nodes < NODES else []
    for cluster, names in zip(clusters, others, strict=False):
        cluster.run("scontrol", "update", f"NodeName={names}", "State=DRAIN", "Reason=benchmark")
    waits_s = await asyncio.gather(*(own_users(each, folder / each.name) for each in clusters))
    for cluster, names in zip(clusters, others, strict=False):
        cluster.run("scontrol", "update", f"NodeName={names}", "State=RESUME")
    return waits_s


def waits_text(what: str, waits_s: list[list[float]]) -> str:
    """Return the waits of own users as text: mean, median and maximum over both clusters."""
    every = sorted(wait for each in waits_s for wait in each)
    wait_s = statistics.mean(every), statistics.median(every), every[-1]
    return f"own users wait {wait_s[0]:6.2f} s (median {wait_s[1]:5.2f}, longest {wait_s[2]:6.2f}) {what}"


async def with_grid(clusters: tuple[SlurmCluster, ...], folder: Path, jobs: int) -> dict[str, Any]:
    """Run the grid's jobs together with those of the own users; return the results of both."""
    rng = np.random.default_rng(2)
    begun = folder / "begun"
    begun.mkdir(parents=True)
    async with GridOfClusters(clusters, folder, PILOTS) as grid:
        begin_s = time.monotonic()
        own = [asyncio.ensure_future(own_users(each, folder / "own" / each.name)) for each in clusters]
        wide, numbers = {}, []
        for number in range(jobs):
            nodes = int(rng.integers(5, 8)) if number % 10 == 9 else int(rng.integers(1, 5))
            script = f"date +%s.%N > {begun}/{number}.$GRIDWEAVE_RANK; sleep {rng.uniform(0.1, 0.5):.2f}"
            numbers.append(await grid.submit("sh", "-c", script, nodes=nodes))
            if nodes > 4:
                wide[number] = nodes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while not all(grid.record(job_id).state in OVER for job_id in numbers):
                    await asyncio.sleep(1.0)
        waits_s = await asyncio.gather(*own)
        records = [grid.record(job_id) for job_id in numbers]
        spreads_ms = []
        for number, nodes in wide.items():
            instants_s = [float((begun / f"{number}.{rank}").read_text()) for rank in range(nodes)]
            spreads_ms.append(1_000 * (max(instants_s) - min(instants_s)))
        outcomes = [record.outcome for record in records]
        return {
            "s": round(time.monotonic() - begin_s, 1),
            "outcomes": {outcome or "not over": outcomes.count(outcome) for outcome in sorted(set(outcomes), key=str)},
            "spreads_ms": sorted(round(spread, 1) for spread in spreads_ms),
            "own_waits_s": waits_s,
        }


def main(jobs: int) -> None:
    """Run the measurement without a grid and with one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        clusters = tuple(
            stack.enter_context(running_cluster(folder / each, each, NODES, "120")) for each in ("north", "south")
        )
        waits_s = {f"alone on {n} nodes": asyncio.run(both_alone(clusters, folder / f"{n}", n)) for n in (NODES, LEFT)}
        found = asyncio.run(with_grid(clusters, folder / "grid", jobs))
    waits_s[f"with a grid that may use {NODES - LEFT} of {NODES}"] = found.pop("own_waits_s")
    found["own_waits_s"] = waits_s
    print(f"{jobs} jobs of the grid, {found['outcomes']}, in {found['s']} s")
    for what, each_s in waits_s.items():
        print(waits_text(what, each_s))
    spreads_ms = np.array(found["spreads_ms"])
    for low, high in zip((0, *STEPS_MS), (*STEPS_MS, np.inf), strict=True):
        count = int(((spreads_ms >= low) & (spreads_ms < high)).sum())
        print(f"  ranks on two clusters begin {low:5} to {high:5} ms apart: {count:3} {'#' * count}")
    write_results("slurm_clusters", found)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS)
