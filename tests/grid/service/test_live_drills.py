"""A job on two sites of a live grid on Ray: each who agrees on its start is stopped, killed or cut off after each step.

The same drills as in `test_gate_drills`, which plays all of them in virtual time and measures how long a part runs
alone. Here processes are real. GRIDWEAVE_DRILLS says how many are played, mixed; `all`: every one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from gridweave.errors import UnavailableError
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Accepted, JobRecord, JobRequest, Program
from gridweave.site.service.calls import encode
from support.actors import DrilledMeta, DrilledSite, Fault, cut_off, taken, wanted
from support.checks import DRILLS, STEPS
from support.machine import PATIENCE_S, until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

AWAY_S = 6.0
SITES = ("north", "south")
ACTORS = {
    "grid": "grid",
    "first site": "site:north",
    "last site": "site:south",
    "first machine": "agent:north/m0",
    "last machine": "agent:south/m0",
}
RANK = """
name="$0/$GRIDWEAVE_JOB_ID.$GRIDWEAVE_TRY.$GRIDWEAVE_RANK"
: > "$name.begun"
while [ $(ls "$0/$GRIDWEAVE_JOB_ID.$GRIDWEAVE_TRY".*.begun | wc -l) -lt 2 ]; do sleep 0.05; done
sleep 2.5
: > "$name.ended"
"""
"""A rank works on by itself only once the other one has begun: alone it never ends, and somebody has to end it."""


_STRIDE = 69
"""Has no factor in common with the number of drills: by it they are chosen mixed, and each comes once."""


def chosen() -> list[tuple[str, str, str]]:
    """Return which drills are played."""
    action = os.environ.get("GRIDWEAVE_DRILLS", "4")
    count = len(DRILLS) if action == "all" else int(action)
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


def whole_tries(folder: Path, job_id: int) -> list[int]:
    """Return the tries in which both ranks of a job worked to their end."""
    ended = Counter(int(path.stem.split(".")[1]) for path in folder.glob(f"{job_id}.*.ended"))
    return [attempt for attempt, ranks in ended.items() if ranks == len(SITES)]


def ranks_left(folder: Path, job_id: int) -> list[int]:
    """Return the processes of a job's ranks that still run."""
    found = psutil.process_iter(["pid", "cmdline", "environ"])
    ours = [one.info for one in found if str(folder) in (one.info["cmdline"] or ())]
    return [one["pid"] for one in ours if (one["environ"] or {}).get("GRIDWEAVE_JOB_ID") == str(job_id)]


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


def repair(folder: Path, how: str, pid: int) -> None:
    """Have a fault be over."""
    if how == "stop":
        os.kill(pid, signal.SIGCONT)
    for site in SITES:
        cut_off(folder, site).unlink(missing_ok=True)


@pytest.mark.timeout(PATIENCE_S * 4)
@pytest.mark.parametrize(("step", "who", "how"), chosen())
def test_no_part_of_a_job_runs_alone_live(grid: Any, step: str, who: str, how: str) -> None:
    """Whoever fails, however, after whichever step: parts that run alone are ended, and the job runs whole."""
    folder = Path(grid.plan.folder)
    ranks = folder / "ranks"
    ranks.mkdir(exist_ok=True)
    taken(folder).unlink(missing_ok=True)
    fault, pid = fault_of(grid, step, who, how)
    wanted(folder).with_suffix(".new").write_bytes(msgspec.json.encode(fault))
    wanted(folder).with_suffix(".new").rename(wanted(folder))
    program = Program(argv=("sh", "-c", RANK, str(ranks)), grace_ms=200)
    request = JobRequest(program=program, nodes=len(SITES), limit_ms=3_600_000)
    # The process that fails may be the one that has the answer.
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(until, lambda: submitted(grid, f"{step} {who} {how}", request))
        until(taken(folder).exists)
        over = threading.Timer(AWAY_S, repair, (folder, how, pid))
        over.start()
        if how == "kill":
            until(lambda: process_of(grid, ACTORS[who]) not in (None, pid))
        else:
            over.join()
        job_id = answered.result()
    record = until(lambda: the_end(grid, job_id))
    over.join()
    assert record.outcome == "finished", record.reason
    assert whole_tries(ranks, job_id)
    until(lambda: not ranks_left(ranks, job_id))
