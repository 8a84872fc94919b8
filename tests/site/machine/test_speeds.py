"""Jobs that get parts of their machine's CPU: their processor time follows, and limits count their work."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gridweave.site.launch import Launch, Limits, MachineRules, NodePart, NodeTaskEnded, NodeTaskStarted, Rank
from gridweave.site.machine import agent as agent_module
from gridweave.site.machine.agent import AgentDriver
from gridweave.site.machine.cgroups import Cgroups, ControlGroup, group_name, open_cgroups, parts_problem
from gridweave.site.machine.folders import task_folder
from gridweave.site.messages import ENCODER, REPORTS, Report, RunEnded, StartRun

if TYPE_CHECKING:
    from conftest import Machine

BUSY = "while True: pass"
WORK_S = 0.2
LOOK_AGAIN_S = 0.001
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def groups() -> Iterator[Cgroups]:
    """Return control groups of this machine by which CPU and memory can be given in parts, or skip."""
    found = open_cgroups(f"gridweave-test-{uuid.uuid4().hex[:8]}")
    if problem := parts_problem(found.paths):
        found.parent.remove()
        pytest.skip(problem)
    yield found
    assert found.parent.remove()


def cpu_s(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def quota_of(group: ControlGroup) -> float:
    """Return how many processors a group may use, as the kernel has it."""
    folder = group.folders["cpu"]
    if (folder / "cpu.max").exists():
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
    else:
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period"))
    return int(quota) / int(period)


async def until_used(pid: int, used_s: float) -> float:
    """Wait until a process has used so much more processor time; return how long that took."""
    begin_s, until_s = time.monotonic(), cpu_s(pid) + used_s
    while cpu_s(pid) < until_s:
        await asyncio.sleep(LOOK_AGAIN_S)
    return time.monotonic() - begin_s


@pytest.mark.asyncio
async def test_processor_time_follows_the_speed(machine: Machine, groups: Cgroups) -> None:
    """A job at an eighth of the speed takes eight times as long at least; the kernel is told every change of it."""
    limits = {"limits": Limits(cpus=1.0), "groups": groups.paths, "part": NodePart(1.0, 1.0)}
    launch = machine.launch(*machine.python(BUSY), **limits, grace_ms=0)
    quotas = []
    async with machine.runner() as runner:
        await runner.start(launch)
        await machine.event(runner, NodeTaskStarted)
        state = runner.state(1, 0)
        assert state is not None
        group = groups.group(group_name(task_folder(runner.root, (1, 0))))
        for speed in (0.125, 1.0, 0.125):
            await runner.pace(1, 0, runs=True, speed=speed)
            while (quota := quota_of(group)) != speed:
                await asyncio.sleep(LOOK_AGAIN_S)
            quotas.append(quota)
            if speed < 1:
                # However idle the machine is; the processors that it has for others are no matter.
                assert await until_used(state.ranks[0].pid, WORK_S) > 0.8 * WORK_S / speed
        await runner.cancel(1, 0, "enough")
        await machine.ended(runner)
    assert quotas == [0.125, 1.0, 0.125]


@pytest.mark.asyncio
async def test_a_limit_counts_work_at_the_speed_of_the_moment(machine: Machine, groups: Cgroups) -> None:
    """At half the speed a job may run twice as long, also if it was told its speed before it began."""
    limits = {"limits": Limits(cpus=1.0), "groups": groups.paths, "part": NodePart(1.0, 1.0)}
    limits |= {"limit_ms": 1_000, "grace_ms": 0}
    async with machine.runner() as runner:
        await runner.start(machine.launch(*machine.python(BUSY), **limits))
        await runner.pace(1, 0, runs=True, speed=0.5)
        ended = await machine.ended(runner)
        folder = task_folder(runner.root, (1, 0))
    assert (ended.outcome, ended.reason) == ("limit", "ended at its limit of 1 s")
    fast_ms, slow_ms = (times_of(folder, ended).get(speed, 0.0) for speed in (1.0, 0.5))
    assert fast_ms + 0.5 * slow_ms > 900
    assert 1000 * ended.usage.cpu_s < fast_ms + 0.7 * slow_ms + 100


@pytest.mark.asyncio
async def test_a_job_on_whole_nodes_keeps_its_processors_when_it_is_slowed(machine: Machine, groups: Cgroups) -> None:
    """What slows it are others on its nodes; its limit counts its work all the same."""
    limits = {"limits": Limits(cpus=1.0), "groups": groups.paths, "limit_ms": 2_000, "grace_ms": 0}
    async with machine.runner() as runner:
        await runner.start(machine.launch("sleep", "1000", **limits))
        await runner.pace(1, 0, runs=True, speed=0.001)
        await machine.event(runner, NodeTaskStarted)
        folder = task_folder(runner.root, (1, 0))
        while len(rates_of(folder)) < 2:
            await asyncio.sleep(LOOK_AGAIN_S)
        assert quota_of(groups.group(group_name(folder))) == 1.0
        await runner.pace(1, 0, runs=True, speed=1.0)
        ended = await machine.ended(runner)
    assert ended.outcome == "limit"
    times = times_of(folder, ended)
    assert times[1.0] + 0.001 * times[0.001] > 1_900


def times_of(folder: Path, ended: NodeTaskEnded) -> dict[float, float]:
    """Return for how many ms a task that has ended worked at each rate, by the log of its rates."""
    lines = [line.split() for line in (folder / "rate").read_text(encoding="ascii").splitlines()]
    assert ended.started_ms is not None
    instants = [ended.started_ms, *(float(at_ms) for at_ms, _ in lines[1:]), ended.ended_ms]
    times: dict[float, float] = {}
    for (_, rate), (begin_ms, end_ms) in zip(lines, itertools.pairwise(instants), strict=True):
        times[float(rate)] = times.get(float(rate), 0.0) + end_ms - begin_ms
    return times


def rates_of(folder: Path) -> list[float]:
    """Return the rates at which a piece has worked, one after the other, and check that their times ascend."""
    changes = [line.split() for line in (folder / "rate").read_text(encoding="ascii").splitlines()]
    times = [float(at_ms) for at_ms, _ in changes]
    assert times == sorted(times)
    return [float(rate) for _, rate in changes]


@pytest.mark.asyncio
async def test_a_job_can_read_how_fast_it_works(machine: Machine) -> None:
    """Its file of rates has what its launch says, times its speed, and 0 while it is paused."""
    script = 'import os, time\nwhile len(open(os.environ["GRIDWEAVE_RATE"]).readlines()) < 4: time.sleep(0.001)'
    async with machine.runner() as runner:
        await runner.start(machine.launch(*machine.python(script), rate=0.8))
        await machine.event(runner, NodeTaskStarted)
        folder = task_folder(runner.root, (1, 0))
        for count, pace in enumerate(({"runs": True, "speed": 0.5}, {"runs": False}, {"runs": True, "speed": 1.0}), 2):
            await runner.pace(1, 0, **pace)
            while len(rates_of(folder)) < count:
                await asyncio.sleep(LOOK_AGAIN_S)
        ended = await machine.ended(runner)
        assert ended.outcome == "finished"
        assert rates_of(folder) == [0.8, 0.4, 0.0, 0.8]


@pytest.mark.asyncio
async def test_what_a_job_puts_in_place_of_its_rates_harms_nobody(machine: Machine) -> None:
    """A pipe that nobody reads keeps no job from being paced, and ended."""
    script = "rm $GRIDWEAVE_RATE; mkfifo $GRIDWEAVE_RATE; echo ready; sleep 60"
    async with machine.runner() as runner:
        await runner.start(machine.launch("sh", "-c", script, limit_ms=2_000, grace_ms=0))
        await machine.event(runner, NodeTaskStarted)
        folder = task_folder(runner.root, (1, 0))
        while not (folder / "rank-0.out").exists():
            await asyncio.sleep(LOOK_AGAIN_S)
        await runner.pace(1, 0, runs=True, speed=0.5)
        await runner.pace(1, 0, runs=True, speed=1.0)
        ended = await machine.ended(runner)
    assert ended.outcome == "limit"


@pytest.mark.asyncio
async def test_a_machine_makes_limits_of_parts_of_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is as large as all others of its machine; a rank with a part of one is bound to no processor."""
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 20}
    monkeypatch.setattr(os, "sysconf", lambda name: pages[name])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    agent = AgentDriver("m0", tmp_path, _heard, cores=(((0,),), ((1,),)), nodes=2)
    agent._groups = {}
    launch = Launch(job_id=1, attempt=1, ranks=(Rank(0), Rank(1)), argv=("true",), part=NodePart(0.5, 0.25))
    made = agent._ruled(agent._pinned(StartRun("m0", launch, (0, 0))))
    assert made.limits == Limits(memory_bytes=512 << 20, cpus=2.0)
    assert [rank.threads for rank in made.ranks] == [None, None]


@pytest.mark.asyncio
async def test_without_control_groups_it_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that may make none says so in one line when it starts, and refuses each such job with it."""
    monkeypatch.setattr(agent_module, "open_cgroups", lambda *args, **more: Cgroups(ControlGroup({})))
    heard = asyncio.Queue[Report]()

    async def hear(data: bytes) -> None:
        for report in REPORTS.decode(data):
            heard.put_nowait(report)

    agent = AgentDriver("m0", tmp_path, hear, rules=MachineRules(gives_parts=True))
    await agent.open()
    why = "jobs cannot get fractions of its nodes: there is no usable control group for cpu, memory, freezer"
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [f"machine m0: {why}"]
    running = asyncio.ensure_future(agent.run())
    launch = Launch(job_id=1, attempt=1, ranks=(Rank(0),), argv=("true",), part=NodePart(0.5, 0.25))
    await agent.order(ENCODER.encode([StartRun("m0", launch, (0,))]))
    while not isinstance(report := await heard.get(), RunEnded):
        pass
    assert (report.outcome, report.has_run) == ("failed", False)
    assert "no usable control group for memory, cpu" in report.reason
    running.cancel()
    await agent.close()


async def _heard(data: bytes) -> None:
    """Hear what a machine tells."""
