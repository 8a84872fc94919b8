"""A job on two sites of a live grid on Ray: each who agrees on its start is stopped, killed or cut off after each step.

The same drills as in `test_gate_drills`, which plays all of them in virtual time. Here processes are real, and the
ranks write down when they worked. GRIDWEAVE_DRILLS says how many are played, mixed; `all`: every one.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drilled_actors import DrilledMeta, DrilledSite, Fault, cut_off, taken, wanted
from gate_steps import DRILLS, STEPS, most_alone_ms
from gridweave.errors import UnavailableError
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Accepted, JobRecord, JobRequest, Program
from gridweave.site.service.calls import encode
from waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PATIENCE_S = 150.0
AWAY_S = 6.0
SITES = ("north", "south")
ACTORS = {
    "grid": "grid",
    "first site": "site:north",
    "last site": "site:south",
    "first machine": "agent:north/m0",
    "last machine": "agent:south/m0",
}
TICK_MS = 50
RANK = """
name="$0/$GRIDWEAVE_JOB_ID.$GRIDWEAVE_TRY.$GRIDWEAVE_RANK"
: > "$name.begun"
exec python3 -S -c "$1" "$name"
"""
"""Leaves a file when it begins, which is long before a Python is loaded on a busy machine."""
TICKS = f"""
import sys, time
name = sys.argv[1]
with open(f"{{name}}.ticks", "a", buffering=1) as ticks:
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        print(time.time_ns() // 1_000_000, file=ticks)
        time.sleep({TICK_MS / 1000})
open(f"{{name}}.ended", "w").close()
"""


_STRIDE = 69
"""Has no factor in common with the number of drills: by it they are chosen mixed, and each comes once."""


def chosen() -> list[tuple[str, str, str]]:
    """Return which drills are played."""
    wish = os.environ.get("GRIDWEAVE_DRILLS", "4")
    count = len(DRILLS) if wish == "all" else int(wish)
    return [DRILLS[number * _STRIDE % len(DRILLS)] for number in range(count)]


@pytest.fixture(scope="module")
def grid(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a grid of two sites with a node each, whose packets may meet a fault."""
    from gridweave.grid.service.cluster import GridPlan, Kinds, SitePlan, start_grid

    folder = tmp_path_factory.mktemp("live-drills")
    plan = GridPlan(
        folder=str(folder),
        sites=tuple(SitePlan(name=name, nodes=1) for name in SITES),
        policy=GridPolicy(mode="multi-site"),
        namespace=folder.name,
        labelled=False,
        retry_ms=1_000,
    )
    running = start_grid(plan, timeout_s=PATIENCE_S, kinds=Kinds(grid=DrilledMeta, site=DrilledSite))
    yield running
    running.stop()


def process_of(grid: Any, actor: str) -> int | None:
    """Return the process of an actor; None: it does not answer."""
    try:
        return int(grid.call(actor, "process", timeout_s=2.0))
    except UnavailableError:
        return None


def the_end(grid: Any, job_id: int) -> JobRecord | None:
    """Return a job that has ended; None: it has not, or nobody says so."""
    try:
        data = grid.call("grid", "records", [job_id], timeout_s=2.0)
    except UnavailableError:
        return None
    records = msgspec.msgpack.decode(data, type=list[JobRecord])
    return next((record for record in records if record.state == "ended"), None)


class Ticks:
    """When the ranks of a job worked: of each try and rank from when to when [Unix ms]."""

    def __init__(self, folder: Path, job_id: int) -> None:
        self.spans: dict[int, dict[int, tuple[int, int]]] = {}
        self.latest_ms = 0  # so late a rank came to run at most
        self._ended = {path.stem for path in folder.glob(f"{job_id}.*.ended")}
        for begun in folder.glob(f"{job_id}.*.begun"):
            _, attempt, rank = map(int, begun.stem.split("."))
            ticks = begun.with_suffix(".ticks")
            lines = ticks.read_text().split() if ticks.exists() else []
            times = [begun.stat().st_mtime_ns // 1_000_000, *map(int, lines)]
            self.spans.setdefault(attempt, {})[rank] = times[0], times[-1]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            self.latest_ms = max([self.latest_ms, *gaps])
        self._job_id = job_id

    def alone_ms(self) -> int:
        """Return for how long at most a rank worked while the other did not, before it or after it, in one try."""
        longest = 0
        for spans in self.spans.values():
            for rank, (begin, end) in spans.items():
                other = spans.get(1 - rank)
                before, after = (end - begin, 0) if other is None else (other[0] - begin, end - other[1])
                longest = max(longest, min(before, end - begin), min(after, end - begin))
        return longest

    def whole(self) -> int:
        """Return in how many tries both ranks worked to their end."""
        names = [[f"{self._job_id}.{attempt}.{rank}" for rank in range(len(SITES))] for attempt in self.spans]
        return sum(self._ended.issuperset(each) for each in names)


def fault_of(grid: Any, step: str, who: str, how: str) -> tuple[Fault, int]:
    """Return a fault, and the process that it is done to, if any."""
    if how == "cut":
        return Fault(STEPS[step], cut=list(SITES) if who == "grid" else [ACTORS[who].partition(":")[2]]), 0
    pid = until(lambda: process_of(grid, ACTORS[who]))
    return Fault(STEPS[step], pid, int(signal.SIGSTOP if how == "stop" else signal.SIGKILL)), pid


def submitted(grid: Any, key: str, request: JobRequest) -> int | None:
    """Submit a job and return its number; None if there was no answer: the same may be submitted again."""
    try:
        data = grid.call("grid", "submit", encode([(key, request)]), timeout_s=5.0)
    except UnavailableError:
        return None
    return int(msgspec.msgpack.decode(data, type=list[Accepted])[0].job_id)


def mend(folder: Path, how: str, pid: int) -> None:
    """Have a fault be over."""
    if how == "stop":
        os.kill(pid, signal.SIGCONT)
    for site in SITES:
        cut_off(folder, site).unlink(missing_ok=True)


@pytest.mark.timeout(PATIENCE_S * 4)
@pytest.mark.parametrize(("step", "who", "how"), chosen())
def test_no_part_of_a_job_runs_alone_live(grid: Any, step: str, who: str, how: str) -> None:
    """Whoever fails, however, after whichever step: no part runs alone for long, and the job runs whole."""
    folder = Path(grid.plan.folder)
    ticks = folder / "ticks"
    ticks.mkdir(exist_ok=True)
    taken(folder).unlink(missing_ok=True)
    fault, pid = fault_of(grid, step, who, how)
    wanted(folder).with_suffix(".new").write_bytes(msgspec.json.encode(fault))
    wanted(folder).with_suffix(".new").rename(wanted(folder))
    program = Program(argv=("sh", "-c", RANK, str(ticks), TICKS), grace_ms=200)
    request = JobRequest(program=program, nodes=len(SITES), limit_ms=60_000)
    # The process that fails may be the one that has the answer.
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(until, lambda: submitted(grid, f"{step} {who} {how}", request))
        until(taken(folder).exists)
        began_s = time.monotonic()
        over = threading.Timer(AWAY_S, mend, (folder, how, pid))
        over.start()
        if how == "kill":
            until(lambda: process_of(grid, ACTORS[who]) not in (None, pid))
            away_ms = 1000 * (time.monotonic() - began_s)
        else:
            over.join()
            away_ms = 1000 * AWAY_S
        job_id = answered.result()
    record = until(lambda: the_end(grid, job_id))
    over.join()
    assert record.outcome == "finished", record.reason
    seen = Ticks(ticks, job_id)
    print(f"{step}, {who}, {how}: alone for {seen.alone_ms()} ms, away for {away_ms:.0f} ms, tries {record.attempt}")
    most_ms = most_alone_ms(step, who, how, away_ms) + seen.latest_ms + TICK_MS
    assert seen.alone_ms() <= most_ms, seen.spans
    assert seen.whole() >= 1, seen.spans
