"""Pieces from start to end: what ranks find, how they end, and what is recorded."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest

from gridweave.errors import InputError, UnavailableError
from gridweave.site.launch import LimitSignal, NodeTaskEnded, NodeTaskReady, NodeTaskStarted, Rank, UsageCurve
from gridweave.site.machine.processes import open_process
from gridweave.site.machine.runner import Runner
from support.machine import PATIENCE_S

if TYPE_CHECKING:
    from conftest import Machine, Post

ALONE_MS = 1_000
"""Time within which the start of ranks behind a gate must be recorded."""

GRACE_MS = 3_600_000
"""A grace period that is never used up."""

STUBBORN = (
    "import os,signal; signal.signal(15, signal.SIG_IGN); open(os.environ['POST'],'w').write(f'{os.getpid()}\\n')"
)


@pytest.mark.asyncio
async def test_ranks_find_their_place_and_their_output_is_kept(machine: Machine) -> None:
    """Every rank knows the job, itself, the others and where to meet them."""
    names = ["JOB_ID", "ATTEMPT", "TRY", "RANK", "LOCAL_RANK", "NODE", "SIZE", "SITE", "SITES", "RENDEZVOUS"]
    code = f"from os import environ as e; print([e['GRIDWEAVE_' + n] for n in {names}], e['MASTER_PORT'], e['X'])"
    ended = await machine.run(
        machine.launch(
            *machine.python(code),
            ranks=2,
            size=5,
            site="east",
            sites=("east", "west"),
            starts=2,
            rendezvous="[::1]:4000",
            environment={"X": "=y", "GRIDWEAVE_RANK": "99"},
        )
    )
    assert (ended.outcome, ended.reason) == ("finished", "")
    for rank in (0, 1):
        place = ["1", "3", "0", str(rank), str(rank), "0", "5", "east", "east,west", "[::1]:4000"]
        assert machine.output(rank=rank) == f"{place} 4000 =y\n"
    assert [(report.rank, report.exit_code, report.signal) for report in ended.ranks] == [(0, 0, None), (1, 0, None)]


@pytest.mark.asyncio
async def test_what_ranks_used_is_recorded(machine: Machine) -> None:
    """Processor time, memory and written bytes of a rank and of the children that it waited for are counted."""
    child = "b=bytearray(200<<20); f=open('big','wb'); f.write(b[:8<<20]); f.flush(); import os; os.fsync(f.fileno())"
    burn = "import os,subprocess,sys\nwhile sum(os.times()[:2])<0.3: pass\n"
    ended = await machine.run(
        machine.launch(*machine.python(f"{burn}subprocess.run([sys.executable,'-c',{child!r}],check=True)"))
    )
    assert ended.outcome == "finished"
    usage = ended.ranks[0].usage
    assert usage.cpu_s >= 0.3
    assert usage.peak_memory_bytes >= 200 << 20
    assert usage.written_bytes >= 8 << 20
    assert usage.wall_s >= 0.3
    assert ended.usage == usage


@pytest.mark.asyncio
async def test_what_a_piece_uses_over_time_is_kept_beside_it(machine: Machine) -> None:
    """Each look at it is a point, and its end: processor time grows up to what it used, memory is what it had then."""
    code = "import os\nblock=bytearray(64<<20)\nwhile sum(os.times()[:2])<0.8: pass\n"
    ended = await machine.run(machine.launch(*machine.python(code), size=3, site="east"))
    assert ended.outcome == "finished"
    curve = msgspec.json.decode((machine.root / "jobs" / "1.0" / "usage.json").read_bytes(), type=UsageCurve)
    assert (curve.site, curve.host) == ("east", os.uname().nodename)
    assert (curve.first_rank, curve.last_rank, curve.size) == (0, 0, 3)
    assert len(curve.points) >= 2
    assert [point.at_ms for point in curve.points] == sorted(point.at_ms for point in curve.points)
    assert curve.points[0].at_ms - curve.start_ms >= 500
    used_s = [point.cpu_s for point in curve.points]
    assert used_s == sorted(used_s)
    assert used_s[-1] == ended.usage.cpu_s >= 0.8
    assert max(point.memory_bytes for point in curve.points) >= 64 << 20


@pytest.mark.asyncio
async def test_ranks_wait_at_their_gate_until_it_is_opened(machine: Machine) -> None:
    """Ranks do nothing at their gate, even if their runner is replaced; once their start is recorded, they finish."""
    launch = machine.launch("sh", "-c", "echo ran >> ran; sleep 2", ranks=2, alone_ms=ALONE_MS)
    async with machine.runner() as runner:
        await runner.start(launch)
        await machine.event(runner, NodeTaskReady)
        assert runner.is_at_gate(1, 0)
    async with machine.runner() as runner:
        await runner.adopt()
        await machine.event(runner, NodeTaskReady)
        assert not (machine.scratch / "ran").exists()
        await runner.open_gate(1, 0)
        started = await machine.event(runner, NodeTaskStarted)
        assert isinstance(started, NodeTaskStarted)
        runner.heard(1, 0)
        heard_ms = time.time() * 1000
        ended = await machine.ended(runner)
    if heard_ms < started.started_ms + ALONE_MS / 2:  # in time; a busy machine may be too slow for that
        assert ended.outcome == "finished"
        assert (machine.scratch / "ran").read_text() == "ran\nran\n"


@pytest.mark.asyncio
async def test_ranks_that_nobody_knows_to_run_are_ended(machine: Machine) -> None:
    """The gate was opened, and whoever did so hangs: within the time that the launch says nothing of it is left."""
    async with machine.runner() as runner:
        await runner.start(machine.launch("sleep", "60", alone_ms=300, grace_ms=60_000))
        await machine.event(runner, NodeTaskReady)
        await runner.open_gate(1, 0)
        ended = await machine.ended(runner)
        assert (ended.outcome, ended.reason) == ("lost", "no runner recorded its start in time")


@pytest.mark.asyncio
async def test_ranks_whose_gate_nobody_opens_are_ended_even_without_a_runner(machine: Machine) -> None:
    """Ranks of a dead grid would otherwise wait forever; the next runner, if there is one, hears of their end."""
    launch = machine.launch("sh", "-c", "echo ran >> ran", ranks=2, alone_ms=300, gate_ms=3_000)
    async with machine.runner() as runner:
        await runner.start(launch)
        await machine.event(runner, NodeTaskReady)
        state = runner.state(1, 0)
        assert state is not None
        handle = open_process(state.shim_pid, state.shim_start_ticks)
    if handle is not None:  # on a slow machine the ranks may have ended already
        try:
            assert select.select([handle], [], [], PATIENCE_S)[0], "the ranks wait at their gate forever"
        finally:
            os.close(handle)
    async with machine.runner() as runner:
        await runner.adopt()
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.reason) == ("lost", "its gate was not opened within 3 s")
    assert ended.started_ms is None
    assert not (machine.scratch / "ran").exists()


@pytest.mark.asyncio
async def test_ranks_that_have_passed_their_gate_are_not_ended_by_its_limit(machine: Machine) -> None:
    """The ranks run on after the instant at which their gate would have been given up."""
    async with machine.runner() as runner:
        await runner.start(machine.launch("sleep", "1.5", alone_ms=60_000, gate_ms=1_000))
        await machine.event(runner, NodeTaskReady)
        await runner.open_gate(1, 0)
        ended = await machine.ended(runner)
    # A machine that is too slow to open the gate in time gives it up before the ranks run.
    assert ended.outcome == ("lost" if ended.started_ms is None else "finished")


@pytest.mark.asyncio
async def test_a_piece_is_ended_at_once_though_it_was_given_time(machine: Machine, post: Post) -> None:
    """Whoever was told to end, and takes its time, gets no more of it when somebody says so."""
    async with machine.runner() as runner:
        stubborn = machine.python(f"{STUBBORN}; signal.pause()")
        await runner.start(machine.launch(*stubborn, grace_ms=GRACE_MS, environment={"POST": str(post.path)}))
        os.close(await post.pid())
        await runner.cancel(1, 0, "please")
        await runner.cancel(1, 0, "now", at_once=True)
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.reason, ended.ranks[0].signal) == ("cancelled", "please", 9)
    assert ended.usage.wall_s < GRACE_MS / 1000


@pytest.mark.asyncio
async def test_a_signal_waits_until_it_is_known_who_is_to_pass_it_on(
    machine: Machine, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks run, but the runner has not heard yet which process has them in hand."""
    heard: list[Any] = []
    monkeypatch.setattr(Runner, "_on_shim", lambda runner, *told: heard.append((runner, told)))
    code = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
open(os.environ["POST"], "w").write(f"{os.getpid()}\\n")
print(signal.sigwait([signal.SIGUSR1]).name)
"""
    async with machine.runner() as runner:
        await runner.start(machine.launch(*machine.python(code), environment={"POST": str(post.path)}))
        os.close(await post.pid())
        async with asyncio.timeout(PATIENCE_S):
            while not heard:
                await asyncio.sleep(0.01)
        runner.signal(1, 0, "USR1")
        monkeypatch.undo()
        for known, told in heard:
            known._on_shim(*told)
        assert (await machine.ended(runner)).outcome == "finished"
    assert machine.output() == "SIGUSR1\n"


@pytest.mark.asyncio
async def test_a_job_saves_what_it_has_done_at_its_checkpoint_signal(machine: Machine, post: Post) -> None:
    """A piece that is to save gets its signal in place of TERM, and its time; the next one finds what it saved."""
    code = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
done = int(open("saved").read()) if os.path.exists("saved") else 0
open(os.environ["POST"], "w").write(f"{os.getpid()}\\n")
signal.sigwait([signal.SIGUSR1])
open("saved", "w").write(str(done + 1))
"""
    async with machine.runner() as runner:
        for attempt in (0, 1):
            more = {"attempt": attempt, "checkpoint_signal": "USR1", "grace_ms": 60_000}
            await runner.start(machine.launch(*machine.python(code), **more, environment={"POST": str(post.path)}))
            os.close(await post.pid())
            await runner.cancel(1, attempt, "moved", saves=True)
            ended = await machine.ended(runner)
            assert (ended.outcome, ended.reason, ended.ranks[0].exit_code) == ("cancelled", "moved", 0)
    assert (machine.scratch / "saved").read_text() == "2"


@pytest.mark.asyncio
async def test_a_second_start_changes_nothing(machine: Machine) -> None:
    """However often a start is asked for, before, while and after it runs, and forgotten, the command runs once."""
    launch = machine.launch("sh", "-c", "echo ran >> ran")
    async with machine.runner() as runner:
        for _ in range(3):
            await runner.start(launch)
        await machine.ended(runner)
        await runner.start(launch)
        await runner.forget(1, 0)
        await runner.start(launch)
        await runner.start(machine.launch("true", job_id=2))
        await machine.ended(runner, 2)
    assert (machine.scratch / "ran").read_text() == "ran\n"
    assert [event.job_id for event in machine.seen] == [1, 1, 2, 2]


@pytest.mark.asyncio
async def test_started_is_told_while_it_runs(machine: Machine, post: Post) -> None:
    """The start is an event of its own, with the instant, before the end."""
    async with machine.runner() as runner:
        before = int(time.time() * 1000)
        await runner.start(machine.launch("sh", "-c", "read line < go"))
        os.mkfifo(machine.scratch / "go")
        started = await machine.event(runner, NodeTaskStarted)
        assert before <= started.started_ms <= time.time() * 1000  # type: ignore[union-attr]
        state = runner.state(1, 0)
        assert state is not None
        assert state.phase == "running"
        await runner.cancel(1, 0, "enough")
        assert (await machine.ended(runner)).started_ms == started.started_ms  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "how", ["setsid {python} -c '{code}' &", "({python} -c '{code}' &) &", "trap '' HUP; nohup {python} -c '{code}' &"]
)
@pytest.mark.asyncio
async def test_what_a_job_leaves_running_is_ended(machine: Machine, post: Post, how: str) -> None:
    """A job that forks, in a session of its own or not, has no process left when its first one has ended."""
    code = 'import os,signal; open(os.environ["POST"],"w").write(f"{os.getpid()}\\n"); signal.pause()'
    script = how.format(python=sys.executable, code=code) + "\nread line < go"
    os.mkfifo(machine.scratch / "go")
    async with machine.runner() as runner:
        await runner.start(machine.launch("sh", "-c", script))
        left = await post.pid()
        (machine.scratch / "go").write_text("go\n")
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.reason) == ("finished", "its remaining processes were ended")
    assert machine.is_gone(left)


@pytest.mark.asyncio
async def test_a_job_that_ignores_term_is_killed_after_the_grace(machine: Machine, post: Post) -> None:
    """Who ignores TERM is killed when the grace is over, also in a session of its own and without parent."""
    code = f"""
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = {STUBBORN + ";signal.pause()"!r}
        os.execve({sys.executable!r}, ['python', '-c', code], {{'POST': os.environ['POST']}})
    os._exit(0)
{STUBBORN}
while True: signal.pause()
"""
    async with machine.runner() as runner:
        await runner.start(machine.launch(*machine.python(code), grace_ms=200))
        handles = [await post.pid(), await post.pid()]
        await runner.cancel(1, 0, "no longer wanted")
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.reason, ended.ranks[0].signal) == ("cancelled", "no longer wanted", 9)
    assert [machine.is_gone(handle) for handle in handles] == [True, True]


@pytest.mark.asyncio
async def test_a_job_may_use_its_grace(machine: Machine, post: Post) -> None:
    """TERM reaches all processes of the job, which may then end in order."""
    code = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [15])
open(os.environ['POST'], 'w').write(f'{os.getpid()}\\n')
signal.sigwait([15])
print('saved')
"""
    async with machine.runner() as runner:
        await runner.start(machine.launch(*machine.python(code), ranks=2))
        for handle in (await post.pid(), await post.pid()):
            os.close(handle)
        await runner.cancel(1, 0, "enough")
        ended = await machine.ended(runner)
    assert [(report.exit_code, report.signal) for report in ended.ranks] == [(0, None)] * 2
    assert [machine.output(rank=rank) for rank in (0, 1)] == ["saved\n"] * 2


@pytest.mark.asyncio
async def test_a_job_is_ended_at_its_limit(machine: Machine) -> None:
    """A job ends at its limit, and not before."""
    ended = await machine.run(machine.launch("sleep", "1000", limit_ms=150))
    assert (ended.outcome, ended.reason) == ("limit", "ended at its limit of 150 ms")
    assert ended.ranks[0].signal == 15
    assert ended.started_ms is not None
    assert ended.ended_ms - ended.started_ms >= 149


async def signalled(machine: Machine, command: str, to: Literal["rank", "all", "steps", "below"]) -> NodeTaskEnded:
    """Run a job that gets USR1 ahead of its limit.

    The job creates the file ``ready`` once it can be signalled. If it was too slow for that, run it again, later.
    """
    for number, signal_at_ms in enumerate((3_000, 30_000, 300_000)):
        folder = machine.scratch / str(number)
        folder.mkdir()
        limits = {"limit_ms": signal_at_ms + 60_000, "limit_signal": LimitSignal("USR1", 60_000, to)}
        launch = machine.launch("bash", "-c", command, job_id=number, working_directory=str(folder), **limits)
        ended = await machine.run(launch)
        if (folder / "ready").exists():
            break
    return ended


WARNED = """
trap 'echo warned; warned=1' USR1
(trap 'echo below; exit 0' USR1; touch below; while :; do sleep 0.01; done) &
child=$!
while [ ! -e below ] && [ -z "$warned" ]; do sleep 0.01; done
[ -z "$warned" ] && touch ready
while [ -z "$warned" ]; do wait $child; done
"""


@pytest.mark.parametrize(
    ("to", "end", "said"),
    [("rank", "kill $child; exit 0", {"warned"}), ("all", "wait $child; exit 0", {"warned", "below"})],
)
@pytest.mark.asyncio
async def test_a_signal_comes_ahead_of_the_limit(
    machine: Machine, to: Literal["rank", "all"], end: str, said: set[str]
) -> None:
    """A job that ends at it has not reached its limit; if only the script is to get it, nothing else does."""
    ended = await signalled(machine, WARNED + end, to)
    assert ended.outcome == "finished"
    assert set(machine.output(ended.job_id).split()) == said


STEP = """#!/bin/bash
# Passes the signal on, as srun does, to a task that is none of its children.
trap 'kill -USR1 $(cat task.pid); exit 0' USR1
while [ ! -e begun ]; do sleep 0.01; done
touch ready
while :; do sleep 0.01; done
"""
OF_STEPS = """
trap 'echo script' USR1
(trap 'echo child' USR1; while [ ! -e over ]; do sleep 0.01; done) & child=$!
(trap 'echo task; touch over; exit 0' USR1; touch begun; while :; do sleep 0.01; done) & echo $! > task.pid
../srun & step=$!
while [ ! -e over ]; do wait $step; done
wait $child
"""


@pytest.mark.asyncio
async def test_steps_get_the_signal_and_nothing_else_does(machine: Machine) -> None:
    """Neither the script nor what it runs without srun; each srun passes it on to its tasks."""
    (machine.scratch / "srun").write_text(STEP)
    (machine.scratch / "srun").chmod(0o755)
    ended = await signalled(machine, OF_STEPS, "steps")
    assert (ended.outcome, machine.output(ended.job_id)) == ("finished", "task\n")


@pytest.mark.asyncio
async def test_without_steps_nothing_gets_the_signal(machine: Machine) -> None:
    """The script goes on to its end."""
    ahead = LimitSignal("USR1", 120_000, "steps")
    command = "sleep 0.3 & wait $!; echo $?"
    ended = await machine.run(machine.launch("bash", "-c", command, limit_ms=120_000, limit_signal=ahead))
    assert (ended.outcome, machine.output()) == ("finished", "0\n")


@pytest.mark.asyncio
async def test_a_script_is_spared_the_signal_for_what_it_runs(machine: Machine) -> None:
    """Without a trap the script would end by it."""
    command = "bash -c 'trap \"echo below; exit 0\" USR1; touch ready; while :; do sleep 0.01; done'; echo after"
    ended = await signalled(machine, command, "below")
    assert (ended.outcome, machine.output(ended.job_id)) == ("finished", "below\nafter\n")


@pytest.mark.parametrize(("command", "code", "number", "reason"), [
    ("exit 7", 7, None, "rank 0 ended with exit code 7"),
    ("kill -SEGV $$", None, 11, "rank 0 was ended by SIGSEGV"),
    ("kill -40 $$", None, 40, "rank 0 was ended by signal 40"),
])  # fmt: skip
@pytest.mark.asyncio
async def test_how_a_rank_ended_is_recorded(
    machine: Machine, command: str, code: int | None, number: int | None, reason: str
) -> None:
    """Exit codes and signals are told apart."""
    ended = await machine.run(machine.launch("bash", "-c", command))
    assert (ended.outcome, ended.ranks[0].exit_code, ended.ranks[0].signal) == ("failed", code, number)
    assert ended.reason == reason


@pytest.mark.asyncio
async def test_a_failed_rank_ends_the_others(machine: Machine, post: Post) -> None:
    """When one rank fails, those that wait for it do not wait forever."""
    script = "echo $$ > $POST; [ $GRIDWEAVE_RANK = 0 ] || exec sleep 1000; read line < go; exit 3"
    os.mkfifo(machine.scratch / "go")
    async with machine.runner() as runner:
        await runner.start(machine.launch("sh", "-c", script, ranks=2))
        for handle in (await post.pid(), await post.pid()):
            os.close(handle)
        (machine.scratch / "go").write_text("go\n")
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.reason) == ("failed", "rank 0 ended with exit code 3; the other ranks were ended")
    assert ended.ranks[1].signal == 15


@pytest.mark.asyncio
async def test_ranks_that_do_not_need_each_other_go_on(machine: Machine) -> None:
    """With end_on_failure off, a rank that fails ends no other."""
    script = "[ $GRIDWEAVE_RANK = 0 ] && { echo > fifo; exit 3; }; read line < fifo; echo done"
    os.mkfifo(machine.scratch / "fifo")
    ended = await machine.run(machine.launch("sh", "-c", script, ranks=2, end_on_failure=False))
    assert (ended.outcome, ended.reason) == ("failed", "rank 0 ended with exit code 3")
    assert machine.output(rank=1) == "done\n"


@pytest.mark.asyncio
async def test_a_flood_of_output_is_cut_and_does_not_block(machine: Machine) -> None:
    """Beyond the limit output is dropped and counted, the file says so, and the job runs to its end."""
    ended = await machine.run(
        machine.launch("sh", "-c", "head -c 50000000 /dev/zero; echo end >&2", output_limit_bytes=1000)
    )
    report = ended.ranks[0]
    assert ended.outcome == "finished"
    assert (report.kept_bytes, report.dropped_bytes) == (1000, 50_000_000 + 4 - 1000)
    assert report.output_problem == "output limit of 1000 bytes reached"
    note = "\n[gridweave: output limit of 1000 bytes reached; the rest is dropped]\n"
    assert machine.output() == "\0" * 1000 + note
    assert machine.output(stream="err") == note


@pytest.mark.asyncio
async def test_cancel_may_be_repeated(machine: Machine, post: Post) -> None:
    """A piece that is cancelled again and again ends once, for the first reason."""
    async with machine.runner() as runner:
        await runner.start(machine.launch(*machine.python(f"{STUBBORN}; signal.pause()"), grace_ms=100))
        os.close(await post.pid())
        for reason in ("first\nline", "second", "third"):
            await runner.cancel(1, 0, reason)
        ended = await machine.ended(runner)
        await runner.cancel(1, 0, "late")
    assert (ended.outcome, ended.reason) == ("cancelled", "first line")
    assert len(machine.seen) == 2


@pytest.mark.asyncio
async def test_cancel_right_behind_start(machine: Machine) -> None:
    """A wish to end that overtakes the start of the shim is not lost."""
    async with machine.runner() as runner:
        for job_id in range(5):
            await runner.start(machine.launch("sleep", "1000", job_id=job_id))
            await runner.cancel(job_id, 0, "changed my mind")
        ends = [await machine.ended(runner, job_id) for job_id in range(5)]
    assert {(end.outcome, end.reason) for end in ends} == {("cancelled", "changed my mind")}


@pytest.mark.asyncio
async def test_cancel_before_start(machine: Machine) -> None:
    """Calls may change places: a piece that was cancelled before its start came never starts."""
    async with machine.runner() as runner:
        await runner.cancel(1, 0, "never mind")
        ended = await machine.ended(runner)
        await runner.start(machine.launch("touch", "ran"))
    async with machine.runner() as runner:
        await runner.start(machine.launch("touch", "ran"))
        again = await machine.ended(runner)
    assert ended == again
    assert (ended.outcome, ended.started_ms) == ("cancelled", None)
    assert not (machine.scratch / "ran").exists()


@pytest.mark.asyncio
async def test_agreed_start(machine: Machine) -> None:
    """All ranks start at the agreed instant, not before."""
    instant = int(time.time() * 1000) + 700
    code = "import time; print(time.time())"
    ended = await machine.run(machine.launch(*machine.python(code), ranks=2, start_at_unix_ms=instant))
    assert ended.outcome == "finished"
    assert ended.started_ms is not None
    assert ended.started_ms >= instant
    assert min(float(machine.output(rank=rank)) for rank in (0, 1)) * 1000 >= instant


@pytest.mark.asyncio
async def test_cancel_before_the_agreed_start(machine: Machine) -> None:
    """Until the agreed instant a piece can be cancelled without any of it having run."""
    async with machine.runner() as runner:
        await runner.start(machine.launch("touch", "ran", start_at_unix_ms=int(time.time() * 1000) + 10**8))
        async with asyncio.timeout(PATIENCE_S):
            while (state := runner.state(1, 0)) is None or state.phase != "waiting":
                await asyncio.sleep(0)
        await runner.cancel(1, 0, "the other site refused")
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.started_ms, ended.ranks) == ("cancelled", None, ())
    assert not (machine.scratch / "ran").exists()


@pytest.mark.asyncio
async def test_ranks_are_pinned(machine: Machine) -> None:
    """A rank runs on the hardware threads that were chosen for it, and so does all that it starts."""
    thread = max(os.sched_getaffinity(0))
    ranks = (Rank(0, threads=(thread,)), Rank(1))
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    ended = await machine.run(msgspec.structs.replace(machine.launch(*machine.python(code)), ranks=ranks))
    assert ended.outcome == "finished"
    assert machine.output(rank=0) == f"[{thread}]\n"
    assert machine.output(rank=1) == f"{sorted(os.sched_getaffinity(0))}\n"


@pytest.mark.asyncio
async def test_all_ranks_start_or_none(machine: Machine) -> None:
    """If one rank cannot start, the others have not run at all, and the reason says why."""
    ranks = (Rank(0), Rank(1, threads=(10**6,)), Rank(2))
    ended = await machine.run(msgspec.structs.replace(machine.launch("sh", "-c", "touch $RANK"), ranks=ranks))
    assert (ended.outcome, ended.started_ms, ended.ranks) == ("failed", None, ())
    assert ended.reason.startswith("rank 1 cannot be pinned to hardware threads 1000000; this machine allows 0")
    assert list(machine.scratch.iterdir()) == []


@pytest.mark.asyncio
async def test_without_a_working_directory_a_job_has_its_own(machine: Machine) -> None:
    """The default is an empty directory in the piece's folder."""
    ended = await machine.run(machine.launch("sh", "-c", "pwd; echo $PWD; ls", working_directory=None))
    work = machine.root / "jobs" / "1.0" / "work"
    assert ended.outcome == "finished"
    assert machine.output() == f"{work}\n{work}\n"


@pytest.mark.asyncio
async def test_forget(machine: Machine, post: Post) -> None:
    """Only what has ended can be forgotten; then nothing of it is left, and forgetting it again does nothing."""
    async with machine.runner() as runner:
        await runner.start(machine.launch(*machine.python(f"{STUBBORN}; signal.pause()"), grace_ms=0))
        os.close(await post.pid())
        with pytest.raises(UnavailableError, match=r"1\.0 has not ended; cancel it"):
            await runner.forget(1, 0)
        await runner.cancel(1, 0, "enough")
        await machine.ended(runner)
        await runner.forget(1, 0)
        await runner.forget(1, 0)
        assert list((machine.root / "jobs").iterdir()) == []
        assert await runner.adopt() == ()


@pytest.mark.asyncio
async def test_one_runner_per_folder(machine: Machine) -> None:
    """A second runner of a folder is told so, and a folder that cannot be one as well."""
    async with machine.runner():
        with pytest.raises(UnavailableError, match="another runner uses this folder"):
            await machine.runner().open()
    (machine.scratch / "file").write_text("")
    with pytest.raises(InputError, match="expected a folder on a local disk"):
        await Runner(machine.scratch / "file" / "below").open()


@pytest.mark.asyncio
async def test_many_at_once(machine: Machine) -> None:
    """More pieces than are asked for at one time all run, each once."""
    async with machine.runner() as runner:
        for job_id in range(100):
            await runner.start(machine.launch("sh", "-c", f"echo {job_id}", job_id=job_id))
        ends = [await machine.ended(runner, job_id) for job_id in range(100)]
    assert {end.outcome for end in ends} == {"finished"}
    assert [machine.output(job_id) for job_id in range(100)] == [f"{job_id}\n" for job_id in range(100)]


def test_folder_names_are_the_pieces(tmp_path: Path) -> None:
    """Names that are no piece's are left alone."""
    from gridweave.site.machine.folders import task_folder, task_key

    assert task_key(task_folder(tmp_path, (12, 3))) == (12, 3)
    assert [task_key(tmp_path / name) for name in ("12", "a.b", ".gone-1.2-3", "1.2.3", "-1.2")] == [None] * 5
