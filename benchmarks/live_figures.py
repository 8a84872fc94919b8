"""Measure all figures of a live grid on this machine; print them and write them to results/live_figures.json.

    python benchmarks/live_figures.py [--first] [--without NAME ...] [--minutes 6]

It starts its own grid of three sites and 18 nodes, measures it, and stops it. Each line also has an earlier value of
the figure, and the target. With ``--first`` everything is compiled first, as at the first `up` on a machine; this takes
a minute or two longer. A measurement that fails, or has no time left, reports that in its line, and the others
continue. `HyperQueue` is measured with the same number of slots when the grid is down. How long a node task runs on
when its site stops is measured step by step in virtual time, by `tests/grid/service/test_gate_drills.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import journal
import live_baselines
import numpy as np
from gateway import FLOOD, IN_FLIGHT, flood_drained
from measuring import write_results
from weight import SITES, pids_of, weigh, what_is

from gridweave.errors import GridweaveError
from gridweave.grid.client.sync import SyncClient
from gridweave.grid.config.local_state import DEFAULT_NAME, LocalGridState, read_grid_state
from gridweave.grid.service.status import look
from gridweave.site.job import JobRequest, Program
from gridweave.site.times import span_text

COMMAND = (sys.executable, "-m", "gridweave.cli")
PATIENCE_S = 120.0
QUESTIONS = ("sites", "jobs", "queue", "status", "show 1", "explain 1", "usage", "whoami", "submit -- true")
"""Commands that send the grid a single request."""
BESIDE = ("sites", "status", "queue", "submit --site beta -- true", "submit --site alpha -- true")
"""Commands that are measured while the site beta is stopped."""
STOPPED = "site beta"
KILLED = {"meta-scheduler": "5 s", "site alpha": "4 s", "gateway": "4 s", "gcs_server": "20 s"}
"""The processes to kill, each with the target for the time until the grid has recovered."""
ROUNDS = 7
SINGLES, ELEMENTS, GROWTH, WIDE_JOBS, WAITING = 3_000, (3_000, 10_000), 4_000, 5, 30_000
_LOOK_AGAIN_S = 0.05
_QUIET_PERCENT, _QUIET_S = 15.0, 20.0


class Figures:
    """The results so far, and the grid that is measured; each figure is printed at once."""

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.rows: list[tuple[str, str, str, str]] = []
        self.grid: LocalGridState | None = None

    def add(self, what: str, now: str, before: str = "", target: str = "") -> None:
        """Print and keep a figure."""
        self.rows.append((what, before, now, target))
        print(f"{what:<62}{before:>18}{now:>42}   {target}", flush=True)

    def measure(self, name: str, work: Callable[[Figures], None]) -> None:
        """Run one measurement; report in its line if it fails or has no time left."""
        if time.monotonic() > self.until_s:
            self.add(name, "no time left")
            return
        try:
            work(self)
        except (GridweaveError, subprocess.SubprocessError, OSError, AssertionError, TimeoutError) as error:
            self.add(name, f"failed: {error}")

    @property
    def folder(self) -> Path:
        """The folder of the grid's journals."""
        assert self.grid is not None, "the grid is up"
        return Path(self.grid.folder)


def timed_command(words: str, *, is_well: bool = True) -> tuple[float, float]:
    """Run a command; return its elapsed time and its processor time [s]."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [*COMMAND, *words.split()],
        check=is_well,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def until(happened: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
    """Wait until a condition holds, at most `patience_s`; return whether it holds."""
    until_s = time.monotonic() + patience_s
    while not happened():
        if time.monotonic() > until_s:
            return False
        time.sleep(_LOOK_AGAIN_S)
    return True


# -- the grid


def first_up(figures: Figures) -> None:
    """Bring up the grid; measure the longest time without output."""
    began_s = last_s = time.perf_counter()
    silent_s, lines = 0.0, 0
    with subprocess.Popen(
        [*COMMAND, "up", "GRID.toml"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as up:
        assert up.stdout is not None
        timer = threading.Timer(max(1.0, figures.until_s - time.monotonic()), up.terminate)
        timer.start()
        for line in up.stdout:
            now_s = time.perf_counter()
            silent_s, last_s, lines = max(silent_s, now_s - last_s), now_s, lines + 1
            print(f"    {now_s - began_s:6.1f} s  {line}", end="")
        timer.cancel()
    took_s = time.perf_counter() - began_s
    assert up.returncode == 0, f"`up` has ended with {up.returncode}"
    figures.grid = read_grid_state(DEFAULT_NAME)
    figures.add("up, as a whole", f"{took_s:.1f} s")
    figures.add("... the longest silence", f"{silent_s:.1f} s", "58 s", "progress every 10 s")


def idle(figures: Figures) -> None:
    """Measure the memory and the processor time of the idle grid, once it is quiet."""
    assert figures.grid is not None
    state = figures.grid
    until(lambda: sum(row[3] for row in weigh(state, 1.0)) < _QUIET_PERCENT, _QUIET_S)
    rows = weigh(state, 20.0)
    figures.add("idle grid, memory (PSS)", f"{sum(row[2] for row in rows):,.0f} MB", "1,440 MB", "under 1,300 MB")
    figures.add("idle grid, of a core", f"{sum(row[3] for row in rows):.2f}%", "10%", "under 6%")


def commands(figures: Figures) -> None:
    """Measure commands that send a single request: medians of elapsed and processor time over several rounds."""
    timed_command("submit --wait -- true")  # becomes job 1
    for words in ("--version", *QUESTIONS):
        timed_command(words)  # not measured: the first call reads files from the disk
        took = [timed_command(words) for _ in range(ROUNDS)]
        wall_s, cpu_s = (statistics.median(each) for each in zip(*took, strict=True))
        figure = f"{wall_s:.2f} s, processor {cpu_s:.2f} s"
        figures.add(f"gridweave {words}", figure, "0.5 to 0.7 s", "" if words == "--version" else "under 0.25 s")


def in_flight(figures: Figures) -> None:
    """Measure single submissions with many in flight; the sites are drained, and no job remains."""
    rate, taken_s = asyncio.run(flood_drained())
    figure = f"{FLOOD:,} single submissions, {IN_FLIGHT} in flight"
    figures.add(figure, f"{rate:,.0f} jobs/s")
    p50_s, p99_s = np.percentile(taken_s, (50, 99))
    figures.add("... each, 50% and 99%", f"{1000 * p50_s:.0f} and {1000 * p99_s:.0f} ms", "99%: 3 s")


def singly(figures: Figures) -> None:
    """Measure single jobs that run `true`, end to end with the command, and how the journals grow."""
    before = _journal_bytes(figures.folder)
    took_s, _ = timed_command(f"submit --array 1-{SINGLES} --wait -- true")
    figures.add(f"{SINGLES:,} times true as single jobs", f"{SINGLES / took_s:,.0f}/s", "79 to 107/s")
    grown, goes = (_journal_bytes(figures.folder) - before) / SINGLES
    figure = f"{grown:,.0f} bytes a job, {goes:,.0f} of them inputs"
    figures.add("... journals of grid and sites", figure, "2,500 bytes a job", "compaction removes the inputs")


def packed(figures: Figures) -> None:
    """Measure packed arrays, end to end with the command."""
    timed_command(f"submit --array 1-{2 * sum(SITES.values())} --pack --wait -- true")
    for count in ELEMENTS:
        took_s, _ = timed_command(f"submit --array 1-{count} --pack --wait -- true")
        figures.add(f"{count:,} times true as a packed array", f"{count / took_s:,.0f}/s", "", "beats HyperQueue")


def wide(figures: Figures) -> None:
    """Measure jobs on two sites: the number of tries until their start is agreed, and the time until they run."""
    with SyncClient() as grid:
        records = [grid.submit(["true"], nodes=14, limit="1m").done(PATIENCE_S) for _ in range(WIDE_JOBS)]
    waits = sorted((record.start_ms or 0) - record.submit_ms for record in records)
    tries = ", ".join(str(record.attempt) for record in records)
    figures.add(f"{WIDE_JOBS} jobs of 14 nodes on two sites, tries each", tries, "up to 5")
    figures.add("... from submission to start, median", f"{waits[len(waits) // 2] / 1000:.2f} s")


def deaf(figures: Figures) -> None:
    """Measure how long a job that ignores TERM keeps running: at its limit, and when it is cancelled at once."""
    program = Program(argv=("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"), grace_ms=2_000)
    patient = Program(argv=program.argv, grace_ms=300_000)
    with SyncClient() as grid:
        record = grid.submit(program, limit="2s").done(PATIENCE_S)
        figure = span_text((record.end_ms or 0) - (record.start_ms or 0))
        figures.add("a job that ignores TERM, limit 2 s, grace 2 s: it ran", figure, "3 min 46 s")
        job = grid.submit(patient, limit="10m")
        assert until(lambda: job.record().state == "running"), "it does not run"
        began_s = time.perf_counter()
        job.cancel()
        assert until(lambda: job.record().state == "ending"), "it does not end"
        job.cancel(at_once=True)
        job.done(PATIENCE_S)
    figures.add("... grace 5 min, cancelled, then `cancel --now`: over after", f"{time.perf_counter() - began_s:.2f} s")


def stopped(figures: Figures) -> None:
    """Measure commands while a site hangs."""
    pid = next((part.pid for part in look(DEFAULT_NAME).parts if part.name == STOPPED), None)
    assert pid is not None, f"{STOPPED} has no process"
    os.kill(pid, signal.SIGSTOP)
    try:
        for words in BESIDE:
            took_s = statistics.median(timed_command(words, is_well=False)[0] for _ in range(3))
            figures.add(f"with a stopped site: gridweave {words}", f"{took_s:.2f} s", "3.2 to 4.0 s", "under 2 s")
    finally:
        os.kill(pid, signal.SIGCONT)
    began_s = time.perf_counter()
    assert until(lambda: look(DEFAULT_NAME).well), "the grid has not recovered"
    figures.add("... resumed: `status` reports a healthy grid after", f"{time.perf_counter() - began_s:.1f} s")


def recovery(figures: Figures) -> None:
    """Measure the time until the grid has recovered from kills, with many jobs waiting."""
    assert figures.grid is not None
    with SyncClient() as grid:
        for site in SITES:
            grid.drain(site)
        request = JobRequest(program=Program(argv=("true",)), limit_ms=60_000)
        jobs = [job.id for job in grid.submit_many([request] * WAITING)]
        for name, bound in KILLED.items():
            took_s = _recovered_s(figures.grid, name)
            figures.add(f"{name} killed, {len(jobs):,} jobs wait: recovered after", f"{took_s:.1f} s", "", bound)
        grid.cancel(jobs)
        for site in SITES:
            grid.resume(site)


def _recovered_s(state: LocalGridState, name: str) -> float:
    """Kill a process of the grid; return the time until its successor runs and `status` finds no fault."""

    def pid_now() -> int | None:
        named = {part.name: part.pid for part in look(state.name).parts}
        return named[name] if name in named else next((pid for pid in pids_of(state) if name in _words(pid)), None)

    pid = pid_now()
    assert pid is not None, f"{name} has no process"
    os.kill(pid, signal.SIGKILL)
    began_s = time.perf_counter()
    assert until(lambda: pid_now() not in (None, pid) and look(state.name).well), f"{name} is not restarted"
    return time.perf_counter() - began_s


def _words(pid: int) -> str:
    try:
        return what_is(pid)
    except (OSError, IndexError):  # it has ended
        return ""


def _journals(folder: Path) -> Iterator[Path]:
    yield folder / "grid.journal"
    yield from (folder / site / "site.journal" for site in SITES)


def _first_row(path: Path, question: str) -> tuple[int, ...]:
    """Return the first row of an SQL query to a journal."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return tuple(value or 0 for value in database.execute(question).fetchone())


def _journal_bytes(folder: Path) -> np.ndarray:
    """Return the size of a grid's journals without free pages, and the part of it that compaction removes."""
    whole = "select (page_count - freelist_count) * page_size"
    whole += " from pragma_page_count, pragma_freelist_count, pragma_page_size"
    goes = "select sum(length(events) + coalesce(length(decided), 0)) from gridweave_inputs"
    return np.sum([[_first_row(path, what)[0] for what in (whole, goes)] for path in _journals(folder)], axis=0)


def kept(figures: Figures) -> None:
    """Count the inputs that the journals still have; compaction removed the others."""
    for path in _journals(figures.folder):
        rows, written = _first_row(path, "select count(*), max(sequence) from gridweave_inputs")
        what = f"journal {path.relative_to(figures.folder)} keeps, of all its inputs"
        figures.add(what, f"{rows:,} of {written:,}", "all", "those since the last but one snapshot")


# -- without the grid


def growth(figures: Figures) -> None:
    """Measure the growth of a journal with compaction, and of one without."""
    with tempfile.TemporaryDirectory() as folder:
        for compacts in (False, True):
            place = Path(folder) / f"{compacts}.journal"
            found = asyncio.run(journal.growth(place, compacts=compacts, jobs=GROWTH))
            for what, figure in found.items():
                if "bytes" in what:
                    figures.add(f"journal of a site alone, {what}", f"{figure:,.0f}")


def hyperqueue(figures: Figures) -> None:
    """Measure HyperQueue with as many slots as the grid has nodes."""
    before = "372 to 496/s"
    for count in ELEMENTS:
        rate = live_baselines.rate_of("hyperqueue", count)
        figures.add(f"{count:,} times true, HyperQueue, {live_baselines.SLOTS} slots", f"{rate:,.0f}/s", before)
        before = ""


_ON_GRID = (idle, commands, wide, deaf, in_flight, singly, packed, kept, stopped, recovery)
ON_GRID = {work.__name__: work for work in _ON_GRID}
ALONE = {work.__name__: work for work in (growth, hyperqueue)}
"""The measurements while the grid is up (`ON_GRID`, in this order), and those after it is down."""


@contextlib.contextmanager
def own_folder(is_first: bool) -> Iterator[None]:
    """Work in a temporary folder where no grid is known; with `is_first`, everything is compiled again."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="gw-figures-", ignore_cleanup_errors=True) as folder:
        os.environ["XDG_STATE_HOME"] = folder
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        if "PYTHONPATH" in os.environ:
            paths = os.environ["PYTHONPATH"].split(os.pathsep)
            os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
        if is_first:
            os.environ["NUMBA_CACHE_DIR"] = f"{folder}/kernels"
        sites = "".join(f'[[sites]]\nname = "{name}"\nnodes = {count}\n\n' for name, count in SITES.items())
        (Path(folder) / "GRID.toml").write_text(f"{sites}[gateway]\nport = 0\n")
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def main(arguments: Sequence[str]) -> None:
    """Run all measurements, print them, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", action="store_true", help="compile all, as the first `up` does")
    parser.add_argument("--without", nargs="*", default=[], choices=[*ON_GRID, *ALONE], metavar="NAME")
    parser.add_argument("--minutes", type=float, default=6.0, help="start no measurement after this many minutes")
    options = parser.parse_args(arguments)
    began_s, load = time.monotonic(), os.getloadavg()[0]
    figures = Figures(began_s + 60 * options.minutes)
    print(f"load {load:.1f}, {os.cpu_count()} cores")
    print(f"{'':<62}{'before':>18}{'now':>42}   target")
    with own_folder(options.first):
        try:
            figures.measure("up", first_up)
            for name, work in ON_GRID.items():
                if figures.grid is not None and name not in options.without:
                    figures.measure(name, work)
        finally:
            timed_command("down", is_well=False)
        for name, work in ALONE.items():
            if name not in options.without:
                figures.measure(name, work)
    print(f"{time.monotonic() - began_s:.0f} s in all, load {load:.1f} before and {os.getloadavg()[0]:.1f} after")
    write_results("live_figures", {"load": load, "figures": figures.rows})


if __name__ == "__main__":
    main(sys.argv[1:])
