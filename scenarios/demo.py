"""What the demonstration plays: some jobs of a trace, or of the model that ships, shortened to seconds."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.service.signals import uninterrupted
from gridweave.scenarios.grid_results import GridRun
from gridweave.scenarios.live_comparison import LiveRun
from gridweave.scenarios.live_plan import Submission, submissions
from gridweave.scenarios.live_schedule import live_run_of
from gridweave.scenarios.load import find_trace
from gridweave.scenarios.scenario.build import Built, build_scenario
from gridweave.scenarios.scenario.run import run_built
from gridweave.scenarios.workload import IntArray, Workload
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

_FIRST, _WIDE_ROW = 200, 12

GRID = """\
# The grid of the demonstration. A job on several sites takes a quarter longer.
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
    """Jobs, and the grid that they are for.

    Attributes
    ----------
    built : Built
        In real time.
    source : str
        Where the jobs are from, in words.
    """

    built: Built
    source: str

    @property
    def submissions(self) -> list[Submission]:
        """The jobs as they are handed in."""
        return submissions(self.built, 1.0)

    def simulated(self) -> GridRun:
        """Return what the simulation forecasts."""
        return run_built(self.built)

    def compared(self, simulated: GridRun, records: Sequence[JobRecord], origin_ms: int) -> LiveRun:
        """Return what became of the jobs beside the forecast.

        Parameters
        ----------
        simulated : GridRun
        records : sequence of JobRecord
            In the order of the workload.
        origin_ms : int
            What the clock showed at its time 0.
        """
        return live_run_of(self.built, simulated, records, origin_ms=origin_ms, speed=1.0)


def grid_text() -> str:
    """Return the GRID.toml of the demonstration."""
    return GRID.format(sites=_sites())


def make_demo(folder: Path, jobs: int = JOBS) -> Demo:
    """Return the jobs of the demonstration.

    Parameters
    ----------
    folder : pathlib.Path
        Where the scenario is written to, as ``demo.toml``.
    jobs : int

    Returns
    -------
    Demo
    """
    largest = max(nodes for _, nodes in SITES)
    try:
        trace: Path | None = find_trace(TRACE)
    except InputError:
        trace = None
    if trace is None:
        source, cut = f'generator = "{MODEL}"', f"jobs = {jobs}"
        words = f"the model {MODEL} that ships with gridweave"
    else:
        source = f"trace = {str(trace)!r}"
        cut = f"transform = [{{ cut = {{ first = {_FIRST}, last = {_FIRST + jobs - 1} }} }}]"
        words = f"the trace {trace.name}, from its job {_FIRST} on"
    path = folder / "demo.toml"
    path.write_text(_SCENARIO.format(sites=_sites(), source=source, largest=largest, jobs=cut), encoding="utf-8")
    built = build_scenario(path)
    return Demo(replace(built, workload=shortened(built.workload)), words)


def shortened(workload: Workload) -> Workload:
    """Return jobs of the same widths that take seconds, one of them wider than any site.

    Times between submissions and run times are shortened by their square roots: the longest of a trace is ten thousand
    times the shortest, of which nothing would be left to see.

    Parameters
    ----------
    workload : Workload

    Returns
    -------
    Workload
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
def forecast_begun(demo: Demo) -> Iterator[subprocess.Popen[bytes]]:
    """Have another process work out what the simulation forecasts; the first time it compiles for half a minute.

    Parameters
    ----------
    demo : Demo

    Yields
    ------
    subprocess.Popen
        For `end_forecast`; it is ended after the block.
    """
    child = None
    try:
        with uninterrupted():
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "gridweave.scenarios.demo"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        assert child.stdin is not None
        with child.stdin as orders:
            orders.write(pickle.dumps(demo))
        yield child
    finally:
        if child is not None:
            child.kill()
            child.wait()


def end_forecast(child: subprocess.Popen[bytes]) -> GridRun:
    """Return what `forecast_begun` has begun.

    Raises
    ------
    UnavailableError
        If that process has ended without it.
    """
    assert child.stdout is not None
    answer = child.stdout.read()
    if child.wait():
        raise UnavailableError("the simulation of the demonstration has failed; see above")
    run: GridRun = pickle.loads(answer)
    return run


def _sites() -> str:
    return "\n".join(f'[[sites]]\nname = "{name}"\nnodes = {nodes}\n' for name, nodes in SITES)


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer).simulated()))
