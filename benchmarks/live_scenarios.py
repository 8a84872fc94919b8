"""Run the scenarios of the catalogue on real Ray, and print how each job differs from the simulation.

    python benchmarks/live_scenarios.py [--only NAME ...] [--jobs 20] [--seconds 40] [--each]

Each scenario runs with its first jobs, at a speed at which they take about the given number of seconds. Features that a
live run does not support are removed from it (`CHANGES`); a scenario whose trace or network is missing is skipped. One
Ray on this machine serves all runs. With ``--each``, every job that was placed elsewhere or started at another time has
a line of its own. The table goes to ``results/live_scenarios.json``, and `jobs.csv` of each scenario to
``results/live_scenarios/NAME/``.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measuring import RESULTS, write_results

from gridweave.errors import GridweaveError
from gridweave.scenarios.live.compare import LiveRun
from gridweave.scenarios.live.plan import first_jobs
from gridweave.scenarios.live.runner import run_on_ray
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.read import scenario_names
from gridweave.scenarios.scenario.run import run_built

CHANGES: dict[str, dict[str, Any]] = {
    "data-grid": {"grid.data": "none"},
    "link-cut": {"net.changes": [], "grid.contention": "none"},
}
"""Changes that make a scenario runnable: workers move no data and send no messages, and links stay as they are."""

HEADINGS = (
    "scenario",
    "jobs",
    "speed",
    "elsewhere",
    "as replayed",
    "start, median",
    "start, most",
    "makespan",
    "ended",
)

HIGHEST_SPEED = 2_000.0


def run_jobs(name: str, jobs: int, seconds: float) -> LiveRun:
    """Run the first jobs of a scenario in about `seconds`."""
    changes = CHANGES.get(name, {})
    simulated = run_built(first_jobs(build_scenario(name, changes), jobs))
    span_ms = int(simulated.end_ms.max()) - int(simulated.workload.submit_ms[0])
    speed = max(1.0, min(HIGHEST_SPEED, float(np.round(span_ms / 1000 / seconds, -1))))
    return run_on_ray(name, overrides=changes, jobs=jobs, speed=speed)


def row_of(name: str, done: LiveRun) -> tuple[str, ...]:
    """Return a row of the table; starts are in seconds of real time."""
    later_s = np.abs(done.start_differences_ms) / done.speed / 1000
    same, both = done.same_decisions or (0, 0)
    outcomes = ", ".join(f"{done.outcomes.count(each)} {each}" for each in sorted(set(done.outcomes)))
    starts = (f"{np.median(later_s):.2f} s", f"{later_s.max():.2f} s") if len(later_s) else ("-", "-")
    counts = (f"{len(done.outcomes)}", f"{done.speed:g}", f"{int(done.elsewhere.sum())}", f"{same} of {both}")
    return (name, *counts, *starts, f"{done.makespan_difference:+.2%}", outcomes)


def lines_of(done: LiveRun) -> Iterator[str]:
    """Yield a line for each job unlike its simulation: whether it ran, where, or when, by over 1 s of real time."""
    one, other = done.simulated, done.live
    sites, live_sites, moved = one.sites_of_jobs(), other.sites_of_jobs(), done.elsewhere
    for row, job_id in enumerate(one.workload.job_id.tolist()):
        if NEVER in (one.start_ms[row], other.start_ms[row]):
            if one.start_ms[row] != other.start_ms[row]:
                yield f"job {job_id}: {done.outcomes[row]} live, {'never ran' if one.start_ms[row] == NEVER else 'ran'}"
            continue
        later_s = (other.start_ms[row] - one.start_ms[row]) / done.speed / 1000
        if moved[row] or abs(later_s) >= 1:
            where = live_sites[row] if not moved[row] else f"{live_sites[row]}, simulated on {sites[row]}"
            yield f"job {job_id}: on {where}; started {later_s:+.2f} s of real time later"


def main(arguments: Sequence[str]) -> None:
    """Run the selected scenarios, print a table, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="run this scenario; repeatable")
    parser.add_argument("--jobs", type=int, default=20, help="number of jobs to run of each scenario [20]")
    parser.add_argument("--seconds", type=float, default=40.0, help="real time of each run, roughly [40]")
    parser.add_argument("--each", action="store_true", help="print a line for each job that differs")
    options = parser.parse_args(arguments)
    rows = []
    _start_ray()
    print(" | ".join(HEADINGS), flush=True)
    for name in options.only or scenario_names():
        try:
            done = run_jobs(name, options.jobs, options.seconds)
        except GridweaveError as error:
            print(f"{name}: skipped: {str(error).splitlines()[0]}", flush=True)
            continue
        rows.append(row_of(name, done))
        print(" | ".join(rows[-1]), flush=True)
        done.write(RESULTS / "live_scenarios" / name, plots=False)
        for line in lines_of(done) if options.each else ():
            print(f"    {line}", flush=True)
    write_results("live_scenarios", [dict(zip(HEADINGS, row, strict=True)) for row in rows])


def _start_ray() -> None:
    """Start a Ray on this machine for all runs; it ends with this process."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    warnings.simplefilter("ignore")
    import ray

    paths = os.pathsep.join([str(Path(__file__).resolve().parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=128 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )


if __name__ == "__main__":
    main(sys.argv[1:])
