"""Measure the benefit of adaptive splitting live: 200 jobs of mixed communication on the shipped grid, at high load.

    python benchmarks/adaptive_live.py [--speed 2000]

runs the same jobs on a Ray of its own in mode adaptive and in mode sharing, and compares each with its simulation. The
grid has the sites, the links and the hyperthreaded nodes of `gridweave up`; a split job works longer by the factor that
the links cause. Prints how many jobs were split, and how long they waited and took, by communication pattern.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import msgspec
import numpy as np
from measuring import write_results
from rich.console import Console
from rich.table import Table

from gridweave.scenarios.live.demo import shipped_scenario
from gridweave.scenarios.live.runner import run_on_ray
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.tables import Scenario, WorkloadTable
from gridweave.scenarios.workload.columns import PATTERN_NAMES

SPEED, JOBS = 2000.0, 200
MODES = "adaptive", "sharing"


def scenario(mode: str) -> Scenario:
    """Return the shipped grid in a mode, with jobs of mixed communication."""
    sent = {
        "pattern": {"none": 1.0, "ring": 1.0, "3d-neighbours": 1.0, "all-to-all": 1.0},
        "fraction": [0.01, 0.15],
        "message_bytes": [1e6, 1e8],
    }
    workload = {"generator": "ctc-sp2", "jobs": JOBS, "nodes": 8, "load": 1.3, "communication": sent}
    shipped = shipped_scenario(msgspec.convert(workload, WorkloadTable))
    return msgspec.structs.replace(shipped, grid=msgspec.structs.replace(shipped.grid, mode=mode))


def outcome(run: SimulationResult, rows: np.ndarray[Any, Any]) -> dict[str, float]:
    """Return how many of the jobs in `rows` were split, and their mean wait and response time [s]."""
    submit_ms = run.workload.submit_ms[rows]
    return {
        "split": int((run.n_fragments[rows] > 1).sum()),
        "wait_s": float((run.start_ms[rows] - submit_ms).mean()) / 1000,
        "response_s": float((run.end_ms[rows] - submit_ms).mean()) / 1000,
    }


def groups(run: SimulationResult) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return the row numbers of the jobs by communication pattern, and of all jobs as ``all``."""
    pattern = run.workload.columns["pattern"]
    by_pattern = {name: np.flatnonzero(pattern == code) for code, name in enumerate(PATTERN_NAMES)}
    return {name: rows for name, rows in by_pattern.items() if len(rows)} | {"all": np.arange(len(pattern))}


def run_jobs(mode: str, speed: float) -> list[dict[str, Any]]:
    """Run the jobs in a mode; return a row for each group of them, live and simulated."""
    done = run_on_ray(scenario(mode), speed=speed)
    print(mode, done.verdict(), *done.warnings(), sep="\n", file=sys.stderr)
    found = []
    for name, rows in groups(done.simulated).items():
        there = {"live": outcome(done.live, rows), "simulated": outcome(done.simulated, rows)}
        found.append({"mode": mode, "jobs": f"{name} ({len(rows)})"} | there)
    return found


def main() -> None:
    """Run the jobs in both modes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", type=float, default=SPEED)
    speed = parser.parse_args().speed
    table = Table("mode", "jobs", "", "split", "wait, s", "response, s", title=f"at {speed:,.0f} times real time")
    found = []
    for mode in MODES:
        # A process per run: it can be a client of only one Ray with a token, and each run has its own Ray.
        with ProcessPoolExecutor(1, get_context("spawn")) as apart:
            found += apart.submit(run_jobs, mode, speed).result()
    for row in found:
        for way in ("live", "simulated"):
            values = row[way]
            cells = (str(values["split"]), f"{values['wait_s']:,.0f}", f"{values['response_s']:,.0f}")
            table.add_row(row["mode"], row["jobs"], way, *cells)
    Console(width=100).print(table)
    write_results("adaptive_live", found)


if __name__ == "__main__":
    main()
