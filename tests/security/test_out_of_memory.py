"""When memory runs out, jobs go first, and the grid and other programs stay."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gridweave.site.launch import Limits
from gridweave.site.machine.cgroups import Cgroups, memory_problem, open_cgroups

if TYPE_CHECKING:
    from conftest import Place

TRIES = 20

AGENT = """
import asyncio, ctypes, os, sys
from pathlib import Path
from gridweave.site.launch import Launch, Rank
from gridweave.site.machine.agent import AgentDriver
from gridweave.site.machine.processes import protect_ray_worker
from gridweave.site.messages import ENCODER, REPORTS, RunEnded, StartRun

# As a worker of Ray on a cluster that somebody else has started, and larger than each process of the job.
Path("/proc/self/oom_score_adj").write_text("1000")
os.environ["RAY_JOB_ID"] = "01000000"
protect_ray_worker()
ballast = bytearray(os.urandom(1 << 20) * 120)
ended = asyncio.Queue()

async def hear(data):
    for report in REPORTS.decode(data):
        if isinstance(report, RunEnded):
            ended.put_nowait(report)

EATS = '''
import os
for _ in range(7): os.fork()
held = []
while True: held.append(bytearray(os.urandom(1 << 16)))
'''

async def main():
    agent = AgentDriver("m0", Path(sys.argv[1]), hear, environment=dict(os.environ))
    await agent.open()
    running = asyncio.ensure_future(agent.run())
    for job_id in range(1, int(sys.argv[2]) + 1):
        launch = Launch(job_id=job_id, attempt=1, ranks=(Rank(0),), argv=(sys.executable, "-c", EATS), grace_ms=0)
        await agent.order(ENCODER.encode([StartRun("m0", launch, (0,))]))
        report = await ended.get()
        print(report.job_id, report.outcome, report.reason, flush=True)
    running.cancel()
    await agent.close()

asyncio.run(main())
"""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """Return a memory control group with room for 400 MiB."""
    parent = open_cgroups("gridweave-test-memory")
    if "memory" not in parent.paths:
        pytest.skip("no control group for memory may be used here")
    group = Cgroups(parent.parent).make("room", Limits(memory_bytes=400 << 20))
    group._write("memory", "memory.oom.group", "0", optional=True)
    yield group.folders["memory"]
    group.kill()
    group.remove()
    parent.parent.remove()


@pytest.mark.slow
def test_the_job_is_the_first_to_go(room: Path, tmp_path: Path) -> None:
    """The kernel kills the job in all 20 tries, although its processes use less memory than the agent."""
    command = [sys.executable, "-c", textwrap.dedent(AGENT), str(tmp_path / "live"), str(TRIES)]
    inside = f'echo $$ > {room}/cgroup.procs; exec "$@"'
    done = subprocess.run(["sh", "-c", inside, "sh", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [[str(job), "failed"] for job in range(1, TRIES + 1)]
    assert all("out of memory" in line for line in lines), lines


def may_lower_scores() -> bool:
    """Whether this process has CAP_SYS_RESOURCE, which some containers take even from root."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    return bool(int(line.split()[1], 16) >> 24 & 1)


def test_ranks_of_users_go_first(place: Place) -> None:
    """They cannot take it back where root may fix it; supervisors and the launcher go last."""
    score = "/proc/self/oom_score_adj"
    _, _, said = place.run("alice", "sh", "-c", f"cat {score}; echo 0 > {score} && echo GOT")
    assert said.split()[0] == "1000"
    assert ("GOT" in said) == (not may_lower_scores())
    state = place.runner.state(1, 0)
    assert state is not None
    for pid in (state.shim_pid, place.launcher.pid):
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) <= 0


def test_limits_that_a_machine_cannot_hold_are_told() -> None:
    """The limits of all sites on it count together."""
    machine_bytes = 8 << 30
    assert memory_problem({"a": (4, 1 << 30), "b": (4, 1 << 30)}, machine_bytes) is None
    problem = memory_problem({"a": (4, 1 << 30), "b": (5, 1 << 30), "c": (9, None)}, machine_bytes)
    assert problem is not None
    assert problem.startswith("the limits of a, b allow jobs 9,216 MiB, but this machine has 8,192 MiB")
    assert memory_problem({"a": (1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + 1)}) is not None
