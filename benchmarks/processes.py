"""Measure the speed of real processes; print it and write benchmarks/results/processes.json.

    python benchmarks/processes.py

Node tasks of one rank that runs `true`, from the call of `Runner.start` to the event of their end. For comparison: a
plain fork and exec from the runner's process, the same through asyncio, and a new Python for each shim.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil
from measuring import write_results

from gridweave.site.launch import Launch, NodeTaskEnded, NodeTaskStarted, Rank
from gridweave.site.machine.folders import LAUNCH, task_folder
from gridweave.site.machine.runner import Runner

PIECES = 500
TARGET = 100


def launch(job_id: int, *argv: str) -> Launch:
    """Return the launch of one rank."""
    return Launch(job_id=job_id, attempt=0, ranks=(Rank(0),), argv=argv, working_directory="/")


async def ends(runner: Runner, count: int) -> None:
    """Wait for `count` ends, which must all be good."""
    async for event in runner.events():
        if isinstance(event, NodeTaskEnded):
            assert event.outcome == "finished", event
            count -= 1
        if not count:
            return


async def node_tasks_per_s(at_once: int) -> tuple[float, float, float]:
    """Return the rate of node tasks [1/s], and the CPU time per task below the fork server and in the runner [ms]."""
    with tempfile.TemporaryDirectory() as folder:
        async with Runner(Path(folder)) as runner:
            await runner.start(launch(0, "sleep", "0.2"))
            while (state := runner.state(0, 0)) is None:
                await asyncio.sleep(0.01)
            server = psutil.Process(psutil.Process(state.shim_pid).ppid())
            await ends(runner, 1)
            began, before, own = time.perf_counter(), server.cpu_times(), time.process_time()
            for first in range(1, PIECES + 1, at_once):
                batch = range(first, min(first + at_once, PIECES + 1))
                for job_id in batch:
                    await runner.start(launch(job_id, "true"))
                await ends(runner, len(batch))
            took_s, own_s = time.perf_counter() - began, time.process_time() - own
            # The server has waited for every shim, and each shim for its rank: the children's times include all.
            below_s = sum(server.cpu_times()[:4]) - sum(before[:4])
    return PIECES / took_s, below_s / PIECES * 1000, own_s / PIECES * 1000


async def start_delay_ms() -> float:
    """Return the time from the call of start to the event that the ranks run [ms], the median of 50."""
    delays = []
    with tempfile.TemporaryDirectory() as folder:
        async with Runner(Path(folder)) as runner:
            for job_id in range(50):
                began = time.perf_counter()
                await runner.start(launch(job_id, "sleep", "0.05"))
                async for event in runner.events():
                    if isinstance(event, NodeTaskStarted):
                        delays.append(time.perf_counter() - began)
                    if isinstance(event, NodeTaskEnded):
                        break
    return sorted(delays)[len(delays) // 2] * 1000


async def running(count: int) -> tuple[float, float, float]:
    """Return the memory of a waiting shim [MB] (proportional, unique), and the CPU load of all shims [% of a core]."""
    with tempfile.TemporaryDirectory() as folder:
        async with Runner(Path(folder)) as runner:
            for job_id in range(count):
                await runner.start(launch(job_id, "sleep", "1000"))
            started = 0
            async for event in runner.events():
                started += isinstance(event, NodeTaskStarted)
                if started == count:
                    break
            states = [runner.state(job_id, 0) for job_id in range(count)]
            shims = [psutil.Process(state.shim_pid) for state in states if state is not None]
            memory = [shim.memory_full_info() for shim in shims]
            before = sum(sum(shim.cpu_times()[:2]) for shim in shims)
            began = time.perf_counter()
            await asyncio.sleep(20)
            cpu = (sum(sum(shim.cpu_times()[:2]) for shim in shims) - before) / (time.perf_counter() - began)
            for job_id in range(count):
                await runner.cancel(job_id, 0, "measured")
            left = count
            async for event in runner.events():
                left -= isinstance(event, NodeTaskEnded)
                if not left:
                    break
    return sum(m.pss for m in memory) / count / 1e6, sum(m.uss for m in memory) / count / 1e6, cpu * 100


def plain_per_s() -> float:
    """Return the rate of processes by subprocess alone [1/s]."""
    began = time.perf_counter()
    for _ in range(PIECES):
        subprocess.run(["true"], check=True)
    return PIECES / (time.perf_counter() - began)


async def asyncio_per_s() -> float:
    """Return the rate of processes by asyncio's subprocesses, ten at once [1/s]."""

    async def one() -> None:
        await (await asyncio.create_subprocess_exec("true")).wait()

    began = time.perf_counter()
    for _ in range(PIECES // 10):
        await asyncio.gather(*(one() for _ in range(10)))
    return PIECES // 10 * 10 / (time.perf_counter() - began)


def fresh_shims_per_s(count: int = 40) -> tuple[float, float]:
    """Return the rate of node tasks [1/s] and the CPU time of each [ms], with a new Python per shim, two at once."""
    with tempfile.TemporaryDirectory() as root:
        folders = [task_folder(Path(root), (job_id, 0)) for job_id in range(count)]
        for job_id, folder in enumerate(folders):
            folder.mkdir(parents=True)
            (folder / LAUNCH).write_bytes(msgspec.msgpack.encode(launch(job_id, "true")))
        command = [sys.executable, "-P", "-m", "gridweave.site.machine.forkserver"]
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        for pair in zip(folders[::2], folders[1::2], strict=True):
            for shim in [subprocess.Popen([*command, str(folder)]) for folder in pair]:
                shim.wait()
        took_s, now = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
    return count / took_s, cpu_s / count * 1000


def main() -> None:
    """Run all measurements, print them, and save them."""
    load = os.getloadavg()[0]
    rate, below_ms, own_ms = asyncio.run(node_tasks_per_s(100))
    fresh, fresh_ms = fresh_shims_per_s()
    pss, uss, cpu = asyncio.run(running(100))
    figures = {
        "node tasks of `true`, 100 at once [1/s]": rate,
        "  CPU per node task, fork, shim and rank [ms]": below_ms,
        "  CPU per node task, the runner [ms]": own_ms,
        "node tasks of `true`, one at a time [1/s]": asyncio.run(node_tasks_per_s(1))[0],
        "start to event of running, median [ms]": asyncio.run(start_delay_ms()),
        "a Python started for each shim [1/s]": fresh,
        "  CPU per node task [ms]": fresh_ms,
        "subprocess.run alone [1/s]": plain_per_s(),
        "asyncio subprocesses, 10 at once [1/s]": asyncio.run(asyncio_per_s()),
        "memory of a shim, proportional [MB]": pss,
        "memory of a shim, unique [MB]": uss,
        "CPU of 100 waiting shims [% of a core]": cpu,
        "load of the machine before": load,
    }
    for label, figure in figures.items():
        target = (
            (f"   target: {TARGET}: {'met' if figure >= TARGET else 'NOT MET'}")
            if label.startswith("node tasks")
            else ""
        )
        print(f"{label:50}{figure:>10,.1f}{target if '100 at once' in label else ''}")
    write_results("processes", figures)


if __name__ == "__main__":
    main()
