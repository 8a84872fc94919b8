"""Measure an idle grid of three sites: memory and processor time, by process.

    python benchmarks/weight.py [--nodes one|machine] [--seconds 30] [--grid NAME]

It starts its own grid, leaves it idle, prints the use of each process, and stops it. With ``--grid`` it measures a
running grid of that name. Memory is PSS: shared memory counts once. The first grid on a machine compiles, and uses
more: run it twice.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import write_results
from rich.console import Console
from rich.table import Table

from gridweave.grid.config.local_state import MARKER_VARIABLE, LocalGridState, read_grid_state
from gridweave.site.machine.processes import PROC, process_stat, strays

SITES = {"alpha": 8, "beta": 6, "gamma": 4}
MOST_MB, MOST_PERCENT = 1_000.0, 3.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def pids_of(state: LocalGridState) -> list[int]:
    """Return the processes of a grid, including its watchdog."""
    marked = [stat.pid for stat in strays(state.marker, (), variable=MARKER_VARIABLE)]
    return sorted({*marked, *(process.pid for process in state.alive)})


def what_is(pid: int) -> str:
    """Return the kind of a process, in a few words."""
    command = Path(f"{PROC}/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    if command.startswith("ray::"):
        return command.split()[0]
    words = [word.rpartition("/")[2].removeprefix("gridweave.") for word in command.split() if not word.startswith("-")]
    return words[1] if words[0].startswith("python") and len(words) > 1 else words[0]


def pss_mb(pid: int) -> float:
    """Return the memory of a process [MB], with its part of shared memory."""
    lines = Path(f"{PROC}/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def ticks(pid: int) -> int:
    """Return the processor time of a process without its children, in clock ticks."""
    data = Path(f"{PROC}/{pid}/stat").read_bytes()
    fields = data[data.rindex(b")") + 2 :].split()
    return int(fields[11]) + int(fields[12])


def weigh(state: LocalGridState, seconds: float) -> list[tuple[str, int, float, float]]:
    """Return a row for each process: its kind, its number, its memory [MB], and its load [% of a core]."""
    before = {pid: ticks(pid) for pid in pids_of(state)}
    time.sleep(seconds)
    rows = []
    for pid, spent in before.items():
        if process_stat(pid) is not None:
            percent = 100 * (ticks(pid) - spent) / TICKS_PER_S / seconds
            rows.append((what_is(pid), pid, pss_mb(pid), percent))
    return sorted(rows, key=lambda row: -row[2])


@contextlib.contextmanager
def a_grid(nodes: str) -> Iterator[LocalGridState]:
    """Bring up a grid of three sites, with its state in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        sites = "".join(f'[[sites]]\nname = "{name}"\nnodes = {count}\n\n' for name, count in SITES.items())
        file = Path(folder) / "GRID.toml"
        file.write_text(f'{sites}[gateway]\nport = 0\n\n[ray]\nnodes = "{nodes}"\n')
        os.environ["XDG_STATE_HOME"] = folder
        command = [sys.executable, "-m", "gridweave.cli"]
        try:
            subprocess.run([*command, "up", str(file)], check=True, stdout=subprocess.DEVNULL)
            state = read_grid_state()
            assert state is not None, "the started grid has recorded its state"
            yield state
        finally:
            subprocess.run([*command, "down"], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Measure a grid, print the figures, and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", choices=("one", "machine"), default="one")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--grid", default="")
    options = parser.parse_args()
    here = read_grid_state(options.grid) if options.grid else None
    if options.grid and here is None:
        parser.error(f"there is no grid {options.grid}")
    with contextlib.nullcontext(here) if here is not None else a_grid(options.nodes) as state:
        time.sleep(0 if options.grid else 10)  # wait for the work that follows a start
        load, rows = os.getloadavg()[0], weigh(state, options.seconds)
    table = Table("", "process", "PSS [MB]", "of a core [%]", title=f"An idle grid, load of the machine {load:.1f}")
    for what, pid, memory, percent in rows:
        table.add_row(what, str(pid), f"{memory:.1f}", f"{percent:.2f}")
    memory, percent = sum(row[2] for row in rows), sum(row[3] for row in rows)
    table.add_row("all", str(len(rows)), f"{memory:.0f}", f"{percent:.2f}")
    Console().print(table)
    for figure, most, unit in ((memory, MOST_MB, "MB"), (percent, MOST_PERCENT, "% of a core")):
        print(f"target: under {most:,.0f} {unit}: {'met' if figure < most else 'NOT MET'}")
    write_results("weight", {"load": load, "MB": memory, "percent": percent, "processes": rows})


if __name__ == "__main__":
    main()
