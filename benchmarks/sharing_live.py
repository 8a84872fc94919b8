"""Measure the benefit of shared nodes live: 100 jobs that really use CPU, disk and loopback, on a site of two nodes.

    python benchmarks/sharing_live.py [--jobs 100]

runs the same jobs on two grids of its own: one with whole nodes, and one with nodes that two jobs may share. Before
that, each kind of program runs alone several times, so that the grid knows its time alone. Prints how long the jobs
waited and took and how much of the nodes was used; then, for each pair of kinds, the slowdown that the site's table
expects, and the measured one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measuring import write_results
from rich.console import Console
from rich.table import Table

from gridweave.grid.client.sync import SyncClient
from gridweave.site.job import JobRecord

SEED, NODES, ALONE_RUNS = 7, 2, 3

CPU = """
import hashlib
digest = b""
for _ in range(4_500_000):
    digest = hashlib.sha256(digest).digest()
"""

DISK = """
import os, tempfile
with tempfile.NamedTemporaryFile(dir=".") as file:
    for _ in range(2_000):
        file.write(bytes(1 << 18))
        file.flush()
        os.fsync(file.fileno())
"""

NETWORK = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
def echo():
    peer, _ = server.accept()
    while data := peer.recv(1024):
        peer.sendall(data)
threading.Thread(target=echo, daemon=True).start()
client = socket.create_connection(server.getsockname())
for _ in range(60_000):
    client.sendall(bytes(1024))
    client.recv(1024, socket.MSG_WAITALL)
"""

PROGRAMS = {
    "cpu": ("cpu=1", CPU),
    "disk": ("cpu=0.2,disk=0.8", DISK),
    "network": ("cpu=0.3,network=0.7", NETWORK),
}
"""Needs and program of each kind of job: about a second alone. Only jobs with limits above a minute share nodes."""

SITES = {
    "whole nodes": 'discipline = "queue"',
    "shared nodes": 'discipline = "lomarc"\nsharing = { variant = "L-R" }',
}


def command(*words: str) -> None:
    """Run a gridweave command; print its output if it fails."""
    done = subprocess.run([sys.executable, "-m", "gridweave.cli", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


@contextlib.contextmanager
def grid_of(site: str) -> Iterator[None]:
    """In this context, run a grid of one site in a temporary folder."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="gw-sharing-", ignore_cleanup_errors=True) as folder:
        os.environ["XDG_STATE_HOME"] = folder
        file = Path(folder) / "GRID.toml"
        file.write_text(f'[[sites]]\nname = "here"\nnodes = {NODES}\n{site}\n\n[gateway]\nport = 0\n')
        os.chdir(folder)
        try:
            command("up", str(file))
            yield
        finally:
            command("down")
            os.chdir(here)


def submit(grid: SyncClient, kind: str) -> Any:
    """Submit a job of a kind."""
    needs, program = PROGRAMS[kind]
    return grid.submit([sys.executable, "-c", program], name=kind, limit="2m", resources=needs)


def run(jobs: int) -> list[JobRecord]:
    """Run some jobs of each kind alone, then all jobs at once; return the records of the latter."""
    kinds = np.random.default_rng(SEED).choice(sorted(PROGRAMS), jobs)
    with SyncClient() as grid:
        for kind in sorted(PROGRAMS) * ALONE_RUNS:
            submit(grid, kind).check()
        return [job.check() for job in [submit(grid, kind) for kind in kinds]]


def ran_s(record: JobRecord) -> float:
    """Return how long the processes of a job ran, in seconds."""
    assert record.ran_ms is not None
    return (record.ran_ms[1] - record.ran_ms[0]) / 1000


def outcome(records: list[JobRecord], alone_s: dict[str, float]) -> dict[str, float]:
    """Return the figures of the jobs; ``use`` is the node time that they need alone, as a fraction of all node time."""
    begin_ms, end_ms = min(r.submit_ms for r in records), max(r.end_ms or 0 for r in records)
    makespan_s = (end_ms - begin_ms) / 1000
    return {
        "makespan_s": makespan_s,
        "wait_s": statistics.mean(((r.start_ms or 0) - r.submit_ms) / 1000 for r in records),
        "response_s": statistics.mean(((r.end_ms or 0) - r.submit_ms) / 1000 for r in records),
        "use": sum(alone_s[r.request.name] for r in records) / (NODES * makespan_s),
    }


def slowdowns(records: list[JobRecord]) -> dict[str, dict[str, float]]:
    """Return the expected and the measured slowdown of jobs that had a single partner, by the kinds of both."""
    kinds = {record.job_id: record.request.name for record in records}
    found = defaultdict(list)
    for record in records:
        sharing = record.sharing
        if sharing is not None and sharing.real is not None and len(sharing.beside) == 1:
            partner = kinds.get(sharing.beside[0])
            found[f"{record.request.name} with {partner}"].append((sharing.slowdown, sharing.real))
    return {
        pair: {"jobs": len(some), "expected": float(np.mean(some, 0)[0]), "real": float(np.mean(some, 0)[1])}
        for pair, some in sorted(found.items())
    }


def main() -> None:
    """Run the jobs on both sites."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100)
    jobs, load = parser.parse_args().jobs, os.getloadavg()[0]
    runs = {}
    for name, site in SITES.items():
        with grid_of(site):
            runs[name] = run(jobs)
    alone_s = {
        kind: statistics.mean(ran_s(r) for r in runs["whole nodes"] if r.request.name == kind) for kind in PROGRAMS
    }
    outcomes = {name: outcome(records, alone_s) for name, records in runs.items()}
    pairs = slowdowns(runs["shared nodes"])
    table = Table("", *next(iter(outcomes.values())), title=f"{jobs} jobs, load {load:.1f} before")
    for name, figures in outcomes.items():
        table.add_row(name, *(f"{value:.2f}" for value in figures.values()))
    beside = Table("pair", "jobs", "expected", "real", title=f"alone: {alone_s}")
    for pair, figures in pairs.items():
        beside.add_row(pair, str(figures["jobs"]), f"{figures['expected']:.2f}", f"{figures['real']:.2f}")
    Console(width=120).print(table, beside)
    write_results("sharing_live", {"load": load, "outcomes": outcomes, "slowdowns": pairs, "alone_s": alone_s})


if __name__ == "__main__":
    main()
