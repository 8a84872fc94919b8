"""The demonstration: what it plays, on a grid that is up, and what became of the jobs.

They are some jobs of a trace, or of the model that ships, shortened to seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.api import Forecast
from gridweave.grid.client.client import Client
from gridweave.grid.service.local import begin_anew, take_down
from gridweave.grid.service.signals import ended_in_order, run_in_order, signals_held, uninterrupted
from gridweave.grid.service.state import LocalGridState, make_private, state_folder
from gridweave.scenarios.live.compare import LiveRun, live_run_of
from gridweave.scenarios.live.play import Player, as_live, live_remarks
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.build import Built, build_scenario
from gridweave.scenarios.scenario.run import Progress, run_built
from gridweave.scenarios.traces.load import find_trace
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.scenarios.world.connections import LiveTimes
from gridweave.site.job import JobRecord

TRACE, MODEL = "KTH-SP2-1996", "ctc-sp2"
"""Whose jobs are played: those of the trace, if it is at hand."""

SITES = (("alpha", 8), ("beta", 6), ("gamma", 4))
WIDE = 12
"""Nodes of the job that no site has room for."""

JOBS = 40
SPAN_MS = 12_000
"""In which all jobs are handed in."""

LOAD = 1.5
"""Their work is so much more than the nodes could do in that time."""

RUN_MS = 400, 7_000
"""The shortest and the longest job."""

SLACK_MS = 2_000
"""What a limit leaves at least beyond the run time, for processes to start on a busy machine."""

SEED, FIRST = 113, 13_609
"""Which jobs of the model or of the trace: some of which none is placed elsewhere if processes take a bit longer."""

_WIDE_ROW = 12

PATIENCE_S = 180.0
_PLAYED = "played-by"

Tell = Callable[[str], None]
"""Hears what is going on."""

GRID = """\
# The grid of the demonstration. A job on several sites takes a quarter longer. Whose jobs they are is in the trace.
name = "demo"

{sites}
[grid]
mode = "adaptive"
overhead = 0.25

[gateway]
port = 0
"""

_SCENARIO = """\
[scenario]
name = "demo"
seed = {seed}

{sites}
[workload]
{source}
nodes = {largest}
{jobs}

[grid]
mode = "adaptive"
overhead = 0.25
"""


@dataclass(frozen=True, slots=True)
class Demo:
    """Jobs in real time, and the grid that they are for; ``source`` says where they are from."""

    built: Built
    source: str

    def simulated(self) -> SimulationResult:
        """Return what the simulation says."""
        return run_built(self.built)

    def on(self, live: LiveTimes) -> Demo:
        """Return the same on a grid with these times."""
        return replace(self, built=as_live(self.built, live, 1.0))

    def compared(self, simulated: SimulationResult, shown: Shown) -> LiveRun:
        """Return what became of the jobs, in the order of the workload, beside the simulation."""
        remarks = live_remarks(self.built, shown.live)
        return live_run_of(self.built, simulated, shown.records, speed=1.0, remarks=remarks)


def grid_text() -> str:
    """Return the GRID.toml of the demonstration."""
    return GRID.format(sites=_sites('launcher = { trust = "all" }\n'))


def make_demo(folder: Path) -> Demo:
    """Write the scenario of the demonstration to ``demo.toml`` in a folder, and return its jobs."""
    largest = max(nodes for _, nodes in SITES)
    try:
        trace: Path | None = find_trace(TRACE)
    except InputError:
        trace = None
    if trace is None:
        source, cut = f'generator = "{MODEL}"', f"jobs = {JOBS}"
        words = f"the model {MODEL} that ships with gridweave"
    else:
        source = f"trace = {str(trace)!r}"
        cut = f"transform = [{{ cut = {{ first = {FIRST}, last = {FIRST + JOBS - 1} }} }}]"
        words = f"the trace {trace.name}, from its job {FIRST} on"
    path = folder / "demo.toml"
    text = _SCENARIO.format(seed=SEED, sites=_sites(), source=source, largest=largest, jobs=cut)
    path.write_text(text, encoding="utf-8")
    built = build_scenario(path)
    return Demo(replace(built, workload=shortened(built.workload)), words)


def shortened(workload: Workload) -> Workload:
    """Return jobs of the same widths that take seconds, one of them wider than any site.

    Times between submissions and run times are shortened by their square roots: the longest of a trace is ten thousand
    times the shortest, of which nothing would be left to see.
    """
    gaps = np.sqrt(np.diff(workload.submit_ms, prepend=workload.submit_ms[0]).astype(np.float64))
    submit_ms = np.floor(np.cumsum(gaps) * SPAN_MS / max(float(gaps.sum()), 1.0)).astype(np.int64)
    width = workload.width.copy()
    wide = min(_WIDE_ROW, len(width) - 1)
    width[wide] = WIDE
    wanted = LOAD * SPAN_MS * sum(nodes for _, nodes in SITES)
    run_ms = _scaled(np.sqrt(workload.run_ms.astype(np.float64)), width, wanted)
    run_ms[wide] = RUN_MS[1] // 2
    estimate_ms = np.maximum(run_ms + SLACK_MS, np.minimum(workload.estimate_ms * run_ms // workload.run_ms, 20_000))
    overran = np.zeros(len(width), np.bool_)
    return workload.replace(submit_ms=submit_ms, run_ms=run_ms, estimate_ms=estimate_ms, width=width, overran=overran)


def _scaled(run_ms: npt.NDArray[np.float64], width: IntArray, wanted: float) -> IntArray:
    """Return run times between the bounds, in proportion as far as these allow, that come to so much work together."""
    low, high = 1e-9, 1e6
    for _ in range(60):
        factor = (low * high) ** 0.5
        area = float((np.clip(run_ms * factor, *RUN_MS) * width).sum())
        low, high = (factor, high) if area < wanted else (low, factor)
    scaled: IntArray = np.clip(run_ms * high, *RUN_MS).astype(np.int64)
    return scaled


@contextlib.contextmanager
def simulator() -> Iterator[subprocess.Popen[bytes]]:
    """Have another process that is ready to simulate; it is ended after the block."""
    child = None
    try:
        with uninterrupted():
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "gridweave.scenarios.live.demo"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        yield child
    finally:
        if child is not None:
            child.kill()
            child.wait()


def simulated_by(child: subprocess.Popen[bytes], demo: Demo) -> SimulationResult:
    """Return what the process of `simulator` says of the demonstration."""
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin as orders:
        orders.write(pickle.dumps(demo))
    answer = child.stdout.read()
    if child.wait():
        raise UnavailableError("the simulation of the demonstration failed; see above")
    run: SimulationResult = pickle.loads(answer)
    return run


def _sites(more: str = "") -> str:
    return "\n".join(f'[[sites]]\nname = "{name}"\nnodes = {nodes}\n{more}' for name, nodes in SITES)


@dataclass(kw_only=True)
class Shown:
    """What was seen of the jobs: all at the end, and why one waited and what ran while the widest did.

    ``live`` is what they took besides their work.
    """

    records: list[JobRecord] = field(default_factory=list)
    waiting: Forecast | None = None
    running: list[JobRecord] = field(default_factory=list)
    live: LiveTimes = field(default_factory=LiveTimes)

    @property
    def split(self) -> list[JobRecord]:
        """The jobs that ran on several sites."""
        return [record for record in self.records if len(record.places) > 1]

    async def look(self, grid: Client, there: list[JobRecord]) -> None:
        """Ask once why a job waits, while the widest runs."""
        running = [record for record in there if record.state == "running"]
        if self.waiting is not None or not any(record.request.nodes == WIDE for record in running):
            return
        queue = await grid.queue(1)
        if queue.jobs:
            self.waiting, self.running = await grid.explain(queue.jobs[0].job_id), running


@contextlib.contextmanager
def grid_of_its_own(name: str, tell: Tell) -> Iterator[None]:
    """Have a name for a grid to oneself; whatever happens, and whoever interrupts, nothing of that grid is left."""
    folder = make_private(state_folder(name))
    handle = os.open(folder / _PLAYED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with ended_in_order():
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UnavailableError("another process is running the demonstration; wait for it") from None
            try:
                _remove(name, tell)  # what one that was killed has left
                yield
            finally:
                with signals_held():
                    _remove(name, tell)
                    shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


def _remove(name: str, tell: Tell) -> None:
    take_down(name, keep_jobs=False, tell=tell)
    begin_anew(name)


def play(state: LocalGridState, demo: Demo, report: Progress) -> Shown:
    """Play the jobs of the demonstration to their ends."""
    shown = Shown()
    player = Player(Client(state.url, token=state.token), demo.built, 1.0, PATIENCE_S, report, shown.look)
    run_in_order(player.run())
    shown.records, shown.live = player.records, player.live
    return shown


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer).simulated()))
