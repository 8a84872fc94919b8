"""Measure speed and memory of one site in simulation; print the figures and write benchmarks/results/site.json.

    make bench, or: python benchmarks/run.py

The trace is CTC-SP2 if it is available (see README), otherwise a workload of the same length from the shipped model;
the output says which one. Times are the best of several runs on one core.
"""

from __future__ import annotations

import logging
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measuring import write_results
from plain_easy import plain_easy

from gridweave.errors import TraceError
from gridweave.scenarios.batch.one_site import SiteRun
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.registry import generate, load_model
from gridweave.scenarios.sweep.plan import PlannedRun, make_plan
from gridweave.scenarios.sweep.runner import carry_out
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.traces.swf import write_swf
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.workload.transform import shrink
from gridweave.site.policy import SitePolicy

TRACE, NODES = "CTC-SP2-1996-3.1-cln", 430


# Targets of figures: a minimum or a maximum.
AT_LEAST = {"loop fcfs easy [jobs/s]": 3_000_000, "loop planning fcfs [jobs/s]": 100_000}
AT_MOST = {
    "1,000,000 jobs / 100,000 jobs, fcfs easy [ratio]": 15,
    "1,000,000 jobs / 100,000 jobs, planning fcfs [ratio]": 15,
    "reading 300,000 jobs [s]": 1,
    "gridweave --help [s]": 0.5,
    "shell, first run [s]": 20,
    "shell, first run, planning [s]": 20,
    "shell, compiled [s]": 2,
    "a million jobs, peak memory [MB]": 500,
}


def judged(label: str, value: float) -> dict[str, Any]:
    """Return a figure with its target, if it has one, and whether the target is met."""
    if label in AT_LEAST:
        return {"value": value, "at least": AT_LEAST[label], "met": value >= AT_LEAST[label]}
    if label in AT_MOST:
        return {"value": value, "at most": AT_MOST[label], "met": value <= AT_MOST[label]}
    return {"value": value}


def line_of(label: str, figure: dict[str, Any]) -> str:
    """Return a judged figure as a line of text."""
    value = figure["value"]
    line = f"{label:60} {value:14,.2f}" if value < 1000 else f"{label:60} {value:14,.0f}"
    if "met" not in figure:
        return line
    bound = "at least" if "at least" in figure else "at most"
    return f"{line}   {bound} {figure[bound]:,}: {'met' if figure['met'] else 'NOT MET'}"


def best_s(run: Callable[[], float], times: int) -> float:
    """Return the shortest of several runs; each run returns its own time [s]."""
    return min(run() for _ in range(times))


def loop_s(workload: Workload, policy: SitePolicy) -> float:
    """Return the time of the compiled loop for a workload [s], without preparing its arrays."""
    run = SiteRun(workload, NODES, policy)
    began = time.perf_counter()
    run.run(len(workload))
    return time.perf_counter() - began


def loops(workload: Workload) -> dict[str, float]:
    """Return the rate of the warm loop for several policies [jobs/s]."""
    figures = {}
    for times, policy in (
        (50, SitePolicy()),
        (50, SitePolicy(order="sjf")),
        (10, SitePolicy(choice="best-fit")),
        (10, SitePolicy(backfill="slack")),
        (3, SitePolicy(backfill="conservative")),
        (3, SitePolicy(discipline="planning")),
        (3, SitePolicy(discipline="planning", order="sjf")),
    ):
        loop_s(workload, policy)
        figures[f"loop {policy.label} [jobs/s]"] = len(workload) / best_s(
            lambda policy=policy: loop_s(workload, policy),  # type: ignore[misc]
            times,
        )
    return figures


def overload(workload: Workload) -> dict[str, float]:
    """Return the rate of the loop with thousands of waiting jobs: the same jobs, submitted in half the time."""
    crowded = shrink(workload, 0.5)
    figures = {}
    for policy in (SitePolicy(), SitePolicy(order="sjf"), SitePolicy(choice="best-fit")):
        seconds = best_s(lambda policy=policy: loop_s(crowded, policy), 2)  # type: ignore[misc]
        figures[f"loop {policy.label}, submitted in half the time [jobs/s]"] = len(workload) / seconds
    return figures


def against_plain_python(workload: Workload) -> dict[str, float]:
    """Return the time of the bare Python simulator [s], and its ratio to the loop; the schedules are equal."""
    policy = SitePolicy()
    began = time.perf_counter()
    starts = plain_easy(workload, NODES)
    plain_s = time.perf_counter() - began
    assert starts == simulate(workload, NODES, policy).start_ms.tolist(), "the two simulators disagree"
    ours_s = best_s(lambda: loop_s(workload, policy), 20)
    return {"plain Python [s]": plain_s, "plain Python / loop [ratio]": plain_s / ours_s}


def core(workload: Workload) -> dict[str, float]:
    """Return the rate of a SiteCore stepped event by event, warm, on the first 10,000 jobs [jobs/s]."""
    part = workload.take(np.arange(10_000))
    simulate(part.take(np.arange(100)), NODES, SitePolicy(), driver="core")
    began = time.perf_counter()
    simulate(part, NODES, SitePolicy(), driver="core")
    return {"SiteCore fcfs easy [jobs/s]": len(part) / (time.perf_counter() - began)}


def growth() -> dict[str, float]:
    """Return how the time grows from 100,000 to 1,000,000 jobs at one load."""
    model = load_model("ctc-sp2")
    figures = {}
    for policy in (SitePolicy(), SitePolicy(discipline="planning")):
        seconds = []
        for jobs in (100_000, 1_000_000):
            workload = generate(model, jobs, np.random.default_rng(1), nodes=NODES, load=0.66)
            seconds.append(best_s(lambda workload=workload, policy=policy: loop_s(workload, policy), 2))  # type: ignore[misc]
        figures[f"1,000,000 jobs / 100,000 jobs, {policy.label} [ratio]"] = seconds[1] / seconds[0]
    return figures


def shell(trace: str, folder: Path) -> dict[str, float]:
    """Return the time from the shell to the table [s]: with nothing compiled yet, and with everything compiled."""
    command = [sys.executable, "-m", "gridweave.cli", "simulate", trace, "--nodes", str(NODES)]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "compiled")}
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - began)
    planning = [*command, "--discipline", "planning"]
    began = time.perf_counter()
    subprocess.run(planning, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    planning_s = time.perf_counter() - began
    return {
        "shell, first run [s]": seconds[0],
        "shell, first run, planning [s]": planning_s,
        "shell, compiled [s]": min(seconds[1:]),
    }


def help_s() -> dict[str, float]:
    """Return the time of `gridweave --help` [s]."""

    def once() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "gridweave.cli", "--help"], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    return {"gridweave --help [s]": best_s(once, 5)}


def memory(folder: Path) -> dict[str, float]:
    """Return the peak memory and the time of `gridweave simulate` on a trace of a million jobs."""
    path = folder / "million.swf"
    write_swf(generate(load_model("ctc-sp2"), 1_000_000, np.random.default_rng(1), nodes=NODES, load=0.66), path)
    command = [sys.executable, "-m", "gridweave.cli", "simulate", str(path), "--nodes", str(NODES), "--out"]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, str(folder / "million")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, "gridweave simulate failed on a million jobs"
    return {
        "a million jobs, peak memory [MB]": usage.ru_maxrss * 1024 / 1e6,
        "a million jobs, read, simulated, plotted, written [s]": time.perf_counter() - began,
    }


def reading() -> dict[str, float]:
    """Return the time to read the longest available trace, scaled to 300,000 jobs."""
    try:
        began = time.perf_counter()
        _, report = load_workload("HPC2N-2002-2.2-cln", columns=())
    except TraceError:
        return {}
    return {"reading 300,000 jobs [s]": (time.perf_counter() - began) * 300_000 / report.records}


def sweep_speedup() -> dict[str, float]:
    """Return the speedup of a sweep on two workers over one process, after the start of Ray.

    Each of the 60 runs builds a workload of 40,000 jobs and schedules it. Both ways are warm: everything is compiled
    and loaded. The start of Ray, which does not grow with the sweep, is reported separately.
    """
    try:
        import ray
    except ImportError:
        return {}
    vary, jobs = {"grid.mode": ["multi-site", "adaptive"]}, {"workload.jobs": 40_000}
    warm = make_plan("two-sites", vary, seeds=10, overrides={"workload.jobs": 500})
    runs = make_plan("two-sites", vary, seeds=30, overrides=jobs).runs

    def sweep_s(some: Sequence[PlannedRun], workers: int | None) -> tuple[float, float]:
        began = time.perf_counter()
        outcomes = [outcome for _, outcome in carry_out(some, workers=workers)]
        assert all(outcome.metrics for outcome in outcomes), [outcome.problem for outcome in outcomes]
        return time.perf_counter() - began, sum(outcome.seconds for outcome in outcomes)

    sweep_s(warm.runs, 1)
    one_s, _ = sweep_s(runs, 1)
    began = time.perf_counter()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        start_s = time.perf_counter() - began + sweep_s(warm.runs, None)[0]
        two_s, at_work_s = sweep_s(runs, None)
    finally:
        ray.shutdown()
    return {
        "sweep, start of Ray and of two workers [s]": start_s,
        "sweep of 60 runs, one process [s]": one_s,
        "sweep of 60 runs, two workers [s]": two_s,
        "sweep, time in which two workers were at work [%]": at_work_s / two_s / 2 * 100,
        "sweep, one process / two workers [ratio], at least 1.8": one_s / two_s,
    }


def main() -> None:
    """Run all measurements, print them, and write them down."""
    figures: dict[str, Any] = {}
    try:
        workload, _ = load_workload(TRACE, nodes=NODES, columns=())
        trace = TRACE
    except TraceError:
        workload = generate(load_model("ctc-sp2"), 77_205, np.random.default_rng(1), nodes=NODES)
        trace = "model ctc-sp2"
    print(f"{trace}, {len(workload):,} jobs, {NODES} nodes; Python {platform.python_version()}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if trace != TRACE:
            write_swf(workload, folder / "model.swf")
        file = trace if trace == TRACE else str(folder / "model.swf")
        for part in (
            lambda: loops(workload),
            lambda: overload(workload),
            lambda: against_plain_python(workload),
            lambda: core(workload),
            growth,
            reading,
            help_s,
            sweep_speedup,
            lambda: shell(file, folder),
            lambda: memory(folder),
        ):
            measured = part()
            for label, value in measured.items():
                figures[label] = judged(label, value)
                print(line_of(label, figures[label]), flush=True)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    write_results("site", {"trace": trace, "own peak memory [MB]": own, **figures})


if __name__ == "__main__":
    main()
