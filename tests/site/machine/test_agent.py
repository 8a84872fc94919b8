"""The agent of a machine: what it tells is told until it was heard, and what it is asked it answers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gridweave.errors import OptionError, UnavailableError
from gridweave.site.launch import Launch, MachineRules, NodeTaskEnded, NodeTaskStarted, Rank, Removal, Used
from gridweave.site.machine import agent as agent_module
from gridweave.site.machine.agent import AgentDriver, OutputRead, own_environment
from gridweave.site.messages import (
    ENCODER,
    REPORTS,
    CheckCapacity,
    ConfirmRun,
    EndRun,
    MachineJoined,
    MachineReady,
    PaceRun,
    RunDelayed,
    RunEnded,
    RunStarted,
    StartRun,
)


class NoProcesses:
    """Stands for the agent's runner: keeps what it was told, and has nothing running."""

    def __init__(self, root: Path, environment: object = None, **options: object) -> None:
        self.root, self.started, self.cancelled, self.released = root, [], [], []  # type: ignore[var-annotated]
        self.removals: dict[tuple[int, int], Removal] = {}
        self.told_again: list[tuple[int, int]] = []
        self.here: set[tuple[int, int]] = set()
        self.at_gate: set[tuple[int, int]] = set()
        self.opened: list[tuple[int, int]] = []
        self.paced: list[tuple[int, bool]] = []
        self.known_there: list[tuple[int, int]] = []
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.problem: str | None = None

    async def open(self) -> None:
        """Take the folder."""

    async def adopt(self) -> None:
        """Find nothing."""

    async def start(self, launch: Launch) -> None:
        """Keep a launch, if there is room."""
        if self.problem is not None:
            raise UnavailableError(self.problem)
        self.started.append(launch)
        self.here.add((launch.job_id, launch.attempt))

    async def pace(self, job_id: int, attempt: int, *, runs: bool, at_unix_ms: int = 0, speed: float = 1.0) -> None:
        """Keep the pace of what is here."""
        if self.knows(job_id, attempt):
            self.paced.append((job_id, runs))

    def disk_problem(self, *, trial: bool) -> str | None:
        """Return why there is no room, as a machine that tries sees it."""
        return self.problem if trial else None

    async def open_gate(self, job_id: int, attempt: int) -> None:
        """Keep whose gate was opened."""
        self.opened.append((job_id, attempt))

    def heard(self, job_id: int, attempt: int) -> None:
        """Keep of whose start the site knows."""
        self.known_there.append((job_id, attempt))

    def is_at_gate(self, job_id: int, attempt: int) -> bool:
        """Return whether a piece waits at its gate."""
        return (job_id, attempt) in self.at_gate

    async def cancel(
        self, job_id: int, attempt: int, reason: str, *, at_once: bool = False, saves: bool = False
    ) -> None:
        """Keep a wish to end."""
        self.cancelled.append((job_id, attempt, reason))

    def release(self, job_id: int, attempt: int) -> None:
        """Keep what was released."""
        self.released.append((job_id, attempt))

    def removal(self, job_id: int, attempt: int) -> Removal | None:
        """Return when the output was removed, as the test says."""
        return self.removals.get((job_id, attempt))

    async def report_again(self, job_id: int, attempt: int) -> None:
        """Keep whose end was asked for again."""
        self.told_again.append((job_id, attempt))

    def knows(self, job_id: int, attempt: int) -> bool:
        """Return whether a piece is here."""
        return (job_id, attempt) in self.here

    async def events(self) -> Any:
        """Yield what the test says."""
        while True:
            yield await self.queue.get()


class Site:
    """Hears reports, or fails as often as it is told to."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.failures = 0
        self.news = asyncio.Event()

    async def report(self, data: bytes) -> None:
        """Hear of something."""
        if self.failures:
            self.failures -= 1
            raise UnavailableError("the site is away")
        self.heard += REPORTS.decode(data)
        self.news.set()

    async def until(self, count: int) -> list[Any]:
        """Return what was heard, when there is so much."""
        while len(self.heard) < count:
            self.news.clear()
            await self.news.wait()
        return self.heard


def made(site: Site, monkeypatch: pytest.MonkeyPatch, root: Path, **more: Any) -> tuple[AgentDriver, NoProcesses]:
    """Return an agent without processes, and what stands for its runner."""
    monkeypatch.setattr(agent_module, "Runner", NoProcesses)
    monkeypatch.setattr(agent_module, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(agent_module, "_LONGEST_PAUSE_S", 0.0)
    agent = AgentDriver("n0", root, site.report, environment={}, **more)
    runner: Any = agent.runner
    return agent, runner


def start(
    job_id: int = 1, *threads: tuple[int, ...] | None, machine: str = "n0", lanes: tuple[int, int] | None = None
) -> StartRun:
    """Return an order to start ranks, each on a node of its own and with these threads of it."""
    ranks = tuple(Rank(number, number, own) for number, own in enumerate(threads or (None,)))
    return StartRun(machine, Launch(job_id=job_id, attempt=1, ranks=ranks, lanes=lanes), tuple(range(len(ranks))))


@pytest.mark.asyncio
async def test_reports_are_repeated_until_they_were_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens while the site is away is told when it is back, in order; what has ended is released then."""
    site = Site()
    site.failures = 3
    agent, runner = made(site, monkeypatch, tmp_path, host="here")
    await agent.open()
    running = asyncio.ensure_future(agent.run())
    for job_id in (1, 2):
        runner.queue.put_nowait(NodeTaskStarted(job_id, 1, 5))
        runner.queue.put_nowait(NodeTaskEnded(job_id, 1, "finished", "", (), Used(cpu_s=2.0), 5, 9))
    heard = await site.until(5)
    assert heard[0] == MachineJoined("n0", "here")
    assert heard[1:] == [
        report
        for job_id in (1, 2)
        for report in (
            RunStarted("n0", job_id, 1),
            RunEnded("n0", job_id, 1, "finished", used=Used(cpu_s=2.0), ran_ms=(5, 9)),
        )
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    assert runner.released == [(1, 1), (2, 1)]
    running.cancel()


@pytest.mark.asyncio
async def test_a_launcher_that_is_started_again_may_have_other_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is started from then on is in these; and no question to a launcher keeps the agent from anything else."""
    loop, asked, again = asyncio.get_running_loop(), [0], asyncio.Event()

    def hello(path: str, what: dict[str, Any]) -> dict[str, Any]:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        asked[0] += 1
        if asked[0] == 3:
            loop.call_soon_threadsafe(again.set)
        return {"groups": {"memory": f"/cgroup/{min(asked[0], 2)}"}, "users": [], "anyone": True}

    monkeypatch.setattr(agent_module, "ask_launcher", hello)
    monkeypatch.setattr(agent_module, "LOOK_AT_USERS_S", 0.0)
    agent, runner = made(Site(), monkeypatch, tmp_path, rules=MachineRules(launcher="/run/launcher"))
    await agent.open()
    await agent.order(ENCODER.encode([start(1)]))
    running = asyncio.ensure_future(agent.run())
    await again.wait()
    await agent.order(ENCODER.encode([start(2)]))
    running.cancel()
    assert [launch.groups["memory"] for launch in runner.started] == ["/cgroup/1", "/cgroup/2"]


@pytest.mark.asyncio
async def test_orders_are_carried_out_and_those_for_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks have the hardware threads that the system knows; an order that cannot be read is an error of the caller."""
    agent, runner = made(Site(), monkeypatch, tmp_path, cores=(((0, 4),), ((1, 5),)))
    await agent.order(
        ENCODER.encode([start(1, (1,), None, lanes=(1, 2)), EndRun("n0", 2, 1, "why"), start(3, machine="n1")])
    )
    assert [[rank.threads for rank in launch.ranks] for launch in runner.started] == [[(4,), (1, 5)]]
    assert runner.cancelled == [(2, 1, "why")]
    with pytest.raises(msgspec.MsgspecError):
        await agent.order(b"garbage")
    free, runner = made(Site(), monkeypatch, tmp_path)
    await free.order(ENCODER.encode([start(1, (1,), None)]))
    assert [rank.threads for rank in runner.started[0].ranks] == [None, None]


@pytest.mark.asyncio
async def test_a_pace_that_comes_before_the_start_is_kept_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is to stand still for another does not work beside it because its start was the later message."""
    agent, runner = made(Site(), monkeypatch, tmp_path)
    await agent.order(ENCODER.encode([PaceRun("n0", 1, 1, False), PaceRun("n0", 2, 1, False), EndRun("n0", 2, 1, "")]))
    assert runner.paced == []
    await agent.order(ENCODER.encode([start(1), start(2)]))
    assert runner.paced == [(1, False)]


@pytest.mark.asyncio
async def test_a_machine_says_what_it_still_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is here runs; what is not was lost, and no order that comes late starts it any more."""
    site = Site()
    agent, runner = made(site, monkeypatch, tmp_path)
    runner.here = {(1, 1)}
    running = asyncio.ensure_future(agent.run())
    await agent.order(ENCODER.encode([ConfirmRun("n0", 1, 1), ConfirmRun("n0", 2, 3)]))
    reason = "machine n0 no longer knows it"
    assert await site.until(2) == [RunStarted("n0", 1, 1), RunEnded("n0", 2, 3, "lost", reason)]
    assert runner.cancelled == [(2, 3, reason)]
    assert runner.told_again == [(1, 1)]
    running.cancel()


def test_output_is_that_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a file, nothing where there is none, and an error for a stream that no rank has."""
    agent, runner = made(Site(), monkeypatch, tmp_path)
    folder = tmp_path / "jobs" / "7.1"
    folder.mkdir(parents=True)
    (folder / "rank-0.out").write_bytes(b"0123456789")
    assert agent.output(7, 1, 0, "out", 3, 4) == b"3456"
    assert agent.output(7, 1, 0, "err", 0, 4) == b""
    (folder / "result-0.json").write_bytes(b'{"answer": 42}')
    assert agent.output(7, 1, 0, "result", 1, 8) == b'"answer"'
    (folder / "usage.json").write_bytes(b'{"points": []}')
    assert agent.part(7, 1, 5, "usage", 0, 8).data == b'{"points'
    assert agent.part(8, 1, 0, "out", 0, 8) == OutputRead(is_here=False, data=b"", size=0)
    runner.removals[8, 1] = Removal(5, "it was too old")
    assert agent.part(8, 1, 0, "out", 0, 8).removal == Removal(5, "it was too old")
    for wrong in ((7, 1, 0, "../x", 0, 4), (7, 1, -1, "out", 0, 4), (7, 1, 0, "out", -1, 4)):
        with pytest.raises(OptionError):
            agent.output(*wrong)


@pytest.mark.asyncio
async def test_a_machine_without_room_says_so_and_when_it_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What there is no room for is told once, however often it is asked for; that there is some, at each question."""
    site = Site()
    agent, runner = made(site, monkeypatch, tmp_path)
    runner.problem = "its disk is full"
    await agent.open()
    running = asyncio.ensure_future(agent.run())
    for _ in range(3):
        await agent.order(ENCODER.encode([start(1), start(2)]))
    why = "machine n0 cannot start it now: its disk is full"
    assert (await site.until(3))[1:] == [RunDelayed("n0", 1, 1, why), RunDelayed("n0", 2, 1, why)]
    await agent.order(ENCODER.encode([CheckCapacity("n0")]))
    runner.problem = None
    for _ in range(2):
        await agent.order(ENCODER.encode([CheckCapacity("n0")]))
    assert (await site.until(5))[3:] == [MachineReady("n0"), MachineReady("n0")]
    await agent.order(ENCODER.encode([start(1)]))
    assert [launch.job_id for launch in runner.started] == [1]
    runner.problem = "full again"
    await agent.order(ENCODER.encode([start(2)]))
    assert (await site.until(6))[5:] == [RunDelayed("n0", 2, 1, "machine n0 cannot start it now: full again")]
    running.cancel()


def test_secrets_of_the_service_are_not_for_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that runs as the service gets what it needs to find programs, and nothing that is not known."""
    for name in (
        "AWS_SECRET_ACCESS_KEY",
        "GRIDWEAVE_TOKEN",
        "OLDPWD",
        "PYTHONBREAKPOINT",
        "SSH_AUTH_SOCK",
        "RAY_JOB_ID",
    ):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LC_TIME", "C")
    given = own_environment()
    assert "secret" not in given.values()
    assert (given["PATH"], given["LC_TIME"]) == (os.environ["PATH"], "C")
