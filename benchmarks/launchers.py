"""Measure the cost of running jobs as other Unix users; print it and write benchmarks/results/launchers.json.

    python benchmarks/launchers.py [ROUNDS]

Must be run as root. Node tasks of one rank that runs `true`, from the call of `Runner.start` to the event of their end:
in each round some as the service itself, then as many as the user `nobody` by a launcher. Each way has its own runner,
which exists all the time. Target: a rate less than 20% lower. Then the same while ended tasks are being forgotten, as
on a machine that keeps no more of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
from measuring import write_results

from gridweave.site.launch import Launch, NodeTaskEnded, Rank
from gridweave.site.machine.processes import become_subreaper
from gridweave.site.machine.runner import Runner

PIECES, AT_ONCE, ROUNDS = 200, 100, 5
TARGET_PERCENT = 20.0
PATIENCE_S = 60.0


@contextlib.asynccontextmanager
async def launcher_socket(folder: Path) -> AsyncIterator[str]:
    """Start a launcher for this process's user; yield the path of its socket."""
    file, place = folder / "launcher.toml", folder / "socket"
    file.write_text(f'service = "root"\nsocket = "{place}"\n[users]\nanna = "nobody"\n')
    with subprocess.Popen([sys.executable, "-P", "-m", "gridweave.site.machine.launcher", str(file)]) as launcher:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not place.exists():
                    await asyncio.sleep(0.02)
            yield str(place)
        finally:
            launcher.terminate()


def worked_s() -> float:
    """Return the processor time of this process and all its descendants [s], including those that have ended."""
    total_s, own = 0.0, psutil.Process()
    for each in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total_s += sum(each.cpu_times()[:4])
    return total_s


async def run_node_tasks(
    runner: Runner, numbers: Callable[[], int], launcher: str, *, forget: bool
) -> tuple[float, float]:
    """Run node tasks to their end; return their rate [1/s], and the processor time of each [ms]."""
    began, before_s = time.perf_counter(), worked_s()
    for _ in range(PIECES // AT_ONCE):
        for _ in range(AT_ONCE):
            rank = (Rank(0),)
            launch = Launch(job_id=numbers(), attempt=0, ranks=rank, argv=("true",), user="anna", launcher=launcher)
            await runner.start(launch)
        ended = 0
        async for event in runner.events():
            if isinstance(event, NodeTaskEnded):
                assert event.outcome == "finished", event
                ended += 1
                if forget and event.job_id >= AT_ONCE:
                    await runner.forget(event.job_id - AT_ONCE, 0)
            if ended == AT_ONCE:
                break
    return PIECES / (time.perf_counter() - began), (worked_s() - before_s) / PIECES * 1000


async def side_by_side(rounds: int, *, forget: bool) -> dict[str, float]:
    """Return the medians over all rounds, and the median of how much slower the launcher is in a round."""
    rates: dict[str, list[float]] = {"self": [], "user": []}
    cpu: dict[str, list[float]] = {"self": [], "user": []}
    with tempfile.TemporaryDirectory(dir="/run") as root:
        os.chmod(root, 0o711)
        async with (
            launcher_socket(Path(root)) as socket,
            Runner(Path(root, "self")) as plain,
            Runner(Path(root, "user"), others=True) as other,
        ):
            ways = {"self": (plain, ""), "user": (other, socket)}
            numbers = iter(range(1 << 30)).__next__
            for each in range(rounds + 1):
                for way, (runner, launcher) in ways.items():
                    rate, cpu_ms = await run_node_tasks(runner, numbers, launcher, forget=forget)
                    if each:  # the first round warms up
                        rates[way].append(rate)
                        cpu[way].append(cpu_ms)
    slower = [1 - user / own for own, user in zip(rates["self"], rates["user"], strict=True)]
    with_end = ", others forgotten" if forget else ""
    return {
        f"node tasks of `true` as self{with_end} [1/s]": statistics.median(rates["self"]),
        f"node tasks of `true` as user{with_end} [1/s]": statistics.median(rates["user"]),
        f"user is slower{with_end} [%]": statistics.median(slower) * 100,
        "  CPU per node task, self [ms]" + with_end: statistics.median(cpu["self"]),
        "  CPU per node task, user [ms]" + with_end: statistics.median(cpu["user"]),
    }


def main(rounds: int) -> None:
    """Run all measurements, print them, and save them."""
    if os.getuid() != 0:
        sys.exit("benchmarks/launchers.py must be run as root: only root can start processes as others")
    become_subreaper()  # so that fork servers are found among the descendants too
    figures = {"load of the machine before": os.getloadavg()[0]}
    for forget in (False, True):
        figures |= asyncio.run(side_by_side(rounds, forget=forget))
    for label, figure in figures.items():
        target = f"   target: {TARGET_PERCENT:.0f}: {'met' if figure < TARGET_PERCENT else 'NOT MET'}"
        print(f"{label:70}{figure:>10,.1f}{target if 'slower' in label else ''}", flush=True)
    write_results("launchers", figures)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
