"""The demonstration: run seven jobs on the grid that ships with gridweave, and record what happens to them.

The jobs show the grid's decisions: a split that pays off, a split that does not, a job that starts on hyperthreaded
nodes that another job is using, and a job that is wider than any site.
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
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from gridweave.errors import UnavailableError
from gridweave.grid.client.client import Client
from gridweave.grid.config.local_state import LocalGridState, make_private, state_folder
from gridweave.grid.config.reading import read_grid
from gridweave.grid.config.tables import GridFile, PolicyTable, Site
from gridweave.grid.service.local import begin_anew, take_down
from gridweave.grid.service.signals import ended_in_order, run_in_order, signals_held, uninterrupted
from gridweave.netmodel.communication import PROFILES
from gridweave.scenarios.live.compare import LiveRun, live_run_of
from gridweave.scenarios.live.runner import Player, as_live, live_remarks
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.build import Built, build_scenario
from gridweave.scenarios.scenario.run import Progress, run_built
from gridweave.scenarios.scenario.tables import GridTable, Header, Scenario, WorkloadTable
from gridweave.scenarios.workload.columns import PATTERN_NAMES, RESOURCE_COLUMNS
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.scenarios.world.connections import LiveTimes
from gridweave.site.explain import Forecast
from gridweave.site.job import JobRecord

T = TypeVar("T", bound=msgspec.Struct)


class DemoJob(NamedTuple):
    """A job of the demonstration; times are in seconds."""

    name: str
    submit_s: float
    nodes: int
    run_s: float
    limit_s: float
    communication: str = "none"  # name of a profile
    # Fractions of run time spent on CPU, network and disk, and the fraction of a node's memory.
    resources: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 1.0)
    site: str = ""  # the site whose own user submits the job; empty for a job of the grid


SPLIT, STAYS, WIDE = "neighbours", "tight", "wide"
PAIR = "computes", "sends"

JOBS = (
    DemoJob("long", 0.0, 5, 16.0, 17.0),
    DemoJob("longer", 0.4, 5, 20.0, 22.0),
    DemoJob("computes", 0.8, 4, 15.5, 100.0, resources=(0.85, 0.1, 0.05, 0.4), site="gamma"),
    DemoJob("sends", 1.6, 4, 12.0, 61.0, communication="all-to-all", resources=(0.1, 0.85, 0.05, 0.4)),
    DemoJob("neighbours", 2.4, 4, 6.0, 8.0, communication="light"),
    DemoJob("tight", 11.0, 4, 6.0, 10.0, communication="nearest-neighbour"),
    DemoJob("wide", 13.0, 12, 5.0, 7.0, communication="light"),
)
"""The times are chosen so that delays of up to half a second change no decision.

Only jobs whose limit is above 60 s share nodes (docs/sharing.md, "Who may share"). According to the limits, `sends`
ends 3.8 s earlier on shared nodes than if it waited for a site.
"""

PATIENCE_S = 180.0
_LOCK = "played-by"

Report = Callable[[str], None]
"""Receives progress messages."""


def shipped_scenario(workload: WorkloadTable) -> Scenario:
    """Return the scenario of the grid that `gridweave up` starts by default, with another workload."""
    file = read_grid(None).file
    assert isinstance(file, GridFile), "the shipped file describes a grid"
    return Scenario(
        header=Header(name="demo"),
        sites=[_as(Site, site) for site in file.sites],
        workload=workload,
        grid=_as(GridTable, file.grid, PolicyTable),
        net=file.net,
    )


def _as(kind: type[T], table: msgspec.Struct, common: type[msgspec.Struct] | None = None) -> T:
    """Convert a table to another type by copying the fields of `common`, by default all fields of the new type."""
    return kind(**{name: getattr(table, name) for name in (common or kind).__struct_fields__})


@dataclass(frozen=True, slots=True)
class Demo:
    """The jobs of the demonstration, with submit times and lengths in real time, and the grid that runs them."""

    built: Built

    def simulated(self) -> SimulationResult:
        """Simulate the demonstration."""
        return run_built(self.built)

    def on(self, live: LiveTimes) -> Demo:
        """Return the demonstration with the delays of a live grid."""
        return Demo(as_live(self.built, live, 1.0))

    def compared(self, simulated: SimulationResult, shown: Shown) -> LiveRun:
        """Compare the jobs' records, given in workload order, with the simulation."""
        remarks = live_remarks(self.built, shown.live)
        return live_run_of(self.built, simulated, shown.records, speed=1.0, remarks=remarks)


def make_demo() -> Demo:
    """Return the demonstration's jobs on the shipped grid."""
    built = build_scenario(shipped_scenario(WorkloadTable(generator="ctc-sp2", jobs=len(JOBS), nodes=8)))
    home = np.array([built.site_names.index(job.site or built.site_names[0]) for job in JOBS])
    to_grid = np.array([not job.site for job in JOBS])
    return Demo(replace(built, workload=demo_jobs(), home=home, to_grid=to_grid))


def demo_jobs() -> Workload:
    """Return the demonstration's jobs, with their network traffic and their use of a node's resources."""
    profiles = [PROFILES[job.communication] for job in JOBS]
    used = dict(zip(RESOURCE_COLUMNS, np.array([job.resources for job in JOBS]).T, strict=False))
    patterns = list(PATTERN_NAMES)

    def ms(seconds: list[float]) -> IntArray:
        return np.array([round(second * 1000) for second in seconds], np.int64)

    return Workload(
        job_id=np.arange(1, len(JOBS) + 1),
        submit_ms=ms([job.submit_s for job in JOBS]),
        width=np.array([job.nodes for job in JOBS]),
        run_ms=ms([job.run_s for job in JOBS]),
        estimate_ms=ms([job.limit_s for job in JOBS]),
        columns={
            "pattern": np.array([patterns.index(profile.pattern) for profile in profiles]),
            "communication_fraction": np.array([profile.fraction for profile in profiles]),
            "message_bytes": np.array([int(profile.message_bytes) for profile in profiles]),
            "cpu_kind": np.zeros(len(JOBS), np.int64),
            **used,
        },
    )


@contextlib.contextmanager
def simulator() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that is ready to simulate; kill the process at the end of the block."""
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
    """Simulate the demonstration in a process started by `simulator`."""
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin as stdin:
        stdin.write(pickle.dumps(demo))
    answer = child.stdout.read()
    if child.wait():
        raise UnavailableError("the simulation of the demonstration failed; see above")
    run: SimulationResult = pickle.loads(answer)
    return run


@dataclass(kw_only=True)
class Shown:
    """The final records of all jobs, and the reason why each job waited, by job name.

    ``live`` holds the delays that the live grid added to the jobs' run times.
    """

    records: list[JobRecord] = field(default_factory=list)
    waiting: dict[str, Forecast] = field(default_factory=dict)
    live: LiveTimes = field(default_factory=LiveTimes)

    def record(self, name: str) -> JobRecord:
        """Return the record of a job, by the job's name."""
        return self.records[[job.name for job in JOBS].index(name)]

    async def look(self, grid: Client, records: list[JobRecord]) -> None:
        """Ask the grid once, for each waiting job, why the job is waiting."""
        for record in records:
            if record.state == "waiting" and record.request.array is not None:
                name = JOBS[record.request.array.index].name
                if name not in self.waiting:
                    self.waiting[name] = await grid.explain(record.job_id)


@contextlib.contextmanager
def grid_of_its_own(name: str, say: Report) -> Iterator[None]:
    """Reserve a grid's name for exclusive use during the block.

    Remove the grid before and after the block, even if the block is interrupted.
    """
    folder = make_private(state_folder(name))
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with ended_in_order():
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UnavailableError("another process is running the demonstration; wait for it") from None
            try:
                _remove(name, say)  # left by a demonstration that was killed
                yield
            finally:
                with signals_held():
                    _remove(name, say)
                    shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


def _remove(name: str, say: Report) -> None:
    take_down(name, keep_jobs=False, report=say)
    begin_anew(name)


def run_demo(state: LocalGridState, demo: Demo, report: Progress) -> Shown:
    """Run the demonstration live until all jobs have ended."""
    shown = Shown()
    client = Client(state.url, token=state.token, plain_http=state.plain_http)
    player = Player(client, demo.built, 1.0, PATIENCE_S, report, shown.look)
    run_in_order(player.run())
    shown.records, shown.live = player.records, player.live
    return shown


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer).simulated()))
