"""What dies around a piece: its shim, the fork server, the runner, the machine, the disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from gridweave.errors import UnavailableError
from gridweave.site.launch import Launch, NodeTaskState, RankReport
from gridweave.site.machine import folders, node_tasks
from gridweave.site.machine import runner as runner_module
from gridweave.site.machine.folders import STATE, read_state, task_folder, write_state
from gridweave.site.machine.processes import boot_id, process_stat
from support.machine import PATIENCE_S

if TYPE_CHECKING:
    from conftest import Machine, Post

pytestmark = pytest.mark.asyncio

SHIM = (sys.executable, "-m", "gridweave.site.machine.forkserver")
"""Runs the piece of a folder by hand."""

# A process that says who it is, and its child that left group, session, parent and environment behind it.
FAMILY = f"""
import os, signal
pipe = os.open(os.environ['POST'], os.O_WRONLY)
signal.signal(15, signal.SIG_IGN)
os.write(pipe, b'%d\\n' % os.getpid())
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.set_inheritable(pipe, True)
        code = 'import os,signal,sys; os.write(int(sys.argv[1]), b"%d\\\\n" % os.getpid()); signal.pause()'
        os.execve({sys.executable!r}, ['python', '-c', code, str(pipe)], {{}})
    os._exit(0)
while True: signal.pause()
"""

RUNNER = """
import asyncio, sys
from pathlib import Path
import msgspec
from gridweave.site.launch import Launch
from gridweave.site.machine.runner import Runner

async def main():
    async with Runner(Path(sys.argv[1])) as runner:
        for path in sys.argv[2:]:
            await runner.start(msgspec.json.decode(Path(path).read_bytes(), type=Launch))
        async for event in runner.events():
            print(type(event).__name__, event.job_id, flush=True)

asyncio.run(main())
"""


def shim_of(machine: Machine, job_id: int = 1) -> NodeTaskState:
    """Return the state of a piece that is being watched."""
    state = read_state(task_folder(machine.root, (job_id, 0)))
    assert state is not None
    return state


def fork_server_of(machine: Machine) -> int:
    """Return the process that the shim of job 1 was forked by."""
    stat = process_stat(shim_of(machine).shim_pid)
    assert stat is not None
    return stat.parent


async def test_a_killed_shim_takes_its_ranks_with_it(machine: Machine, post: Post) -> None:
    """When the shim is killed, so is all that stems from it, even what hid from its session and environment."""
    async with machine.runner() as runner:
        await runner.start(machine.launch(*machine.python(FAMILY)))
        rank, hidden = await post.pid(), await post.pid()
        os.kill(shim_of(machine).shim_pid, signal.SIGKILL)
        ended = await machine.ended(runner)
        assert (ended.outcome, ended.reason) == ("lost", "its supervisor was killed")
        assert ended.started_ms is not None
        assert machine.is_gone(rank)
        assert machine.is_over(hidden)
        await runner.start(machine.launch("touch", "ran"))
        assert (await runner.adopt()) == ()
    assert not (machine.scratch / "ran").exists()


async def test_a_stopped_shim_is_not_lost(machine: Machine, post: Post) -> None:
    """A shim that does not move is still there: nothing is reported until it moves on."""
    os.mkfifo(machine.scratch / "go")
    async with machine.runner() as runner:
        await runner.start(machine.launch("sh", "-c", "echo $$ > $POST; read line < go"))
        rank = await post.pid()
        shim = shim_of(machine).shim_pid
        os.kill(shim, signal.SIGSTOP)
        (machine.scratch / "go").write_text("go\n")
        assert machine.is_over(rank)
        assert all(type(event).__name__ == "NodeTaskStarted" for event in machine.seen)
        os.kill(shim, signal.SIGCONT)
        assert (await machine.ended(runner)).outcome == "finished"


async def test_a_killed_fork_server_ends_nothing(machine: Machine, post: Post) -> None:
    """Pieces outlive the fork server, and a new one is there for the next start."""
    os.mkfifo(machine.scratch / "go")
    async with machine.runner() as runner:
        await runner.start(machine.launch("sh", "-c", "echo $$ > $POST; read line < go"))
        os.close(await post.pid())
        server = fork_server_of(machine)
        handle = os.pidfd_open(server)
        os.kill(server, signal.SIGKILL)
        assert machine.is_over(handle)
        await runner.start(machine.launch("true", job_id=2))
        assert (await machine.ended(runner, 2)).outcome == "finished"
        (machine.scratch / "go").write_text("go\n")
        assert (await machine.ended(runner, 1)).outcome == "finished"


async def test_starts_outlive_a_fork_server(machine: Machine, post: Post) -> None:
    """Whenever the fork server is killed while starts are asked for, each piece runs exactly once."""
    async with machine.runner() as runner:
        await runner.start(machine.launch("sh", "-c", "echo $$ > $POST; exec sleep 1000"))
        os.close(await post.pid())
        server = fork_server_of(machine)
        for job_id in range(2, 32):
            await runner.start(machine.launch("sh", "-c", f"echo {job_id} >> ran", job_id=job_id))
            if job_id == 16:
                os.kill(server, signal.SIGKILL)
        ends = [await machine.ended(runner, job_id) for job_id in range(2, 32)]
        await runner.cancel(1, 0, "enough")
        await machine.ended(runner)
    assert {end.outcome for end in ends} == {"finished"}
    assert sorted(map(int, (machine.scratch / "ran").read_text().split())) == list(range(2, 32))


async def test_shim_and_fork_server_killed_together(machine: Machine, post: Post) -> None:
    """Without shim and fork server the runner ends what is known by its environment, whatever session it is in."""
    code = FAMILY.replace("{})\n", "dict(os.environ))\n")
    assert code != FAMILY
    async with machine.runner() as runner:
        await runner.start(machine.launch(*machine.python(code)))
        rank, child = await post.pid(), await post.pid()
        server, shim = fork_server_of(machine), shim_of(machine).shim_pid
        os.kill(server, signal.SIGSTOP)  # it cannot act as guard any more
        os.kill(shim, signal.SIGKILL)
        os.kill(server, signal.SIGKILL)
        ended = await machine.ended(runner)
        assert ended.outcome == "lost"
        assert machine.is_gone(rank)
        assert machine.is_gone(child)


async def test_a_killed_runner_is_followed_by_one_that_adopts(machine: Machine, post: Post, tmp_path: Path) -> None:
    """What ran goes on, what ended meanwhile is reported, and what runs is watched and can be cancelled."""
    os.mkfifo(machine.scratch / "go")
    script = "echo $$ > $POST; [ $GRIDWEAVE_JOB_ID = 2 ] || exec sleep 1000; read line < go; exit 5"
    files = []
    for job_id in (1, 2):
        path = tmp_path / f"{job_id}.json"
        path.write_bytes(msgspec.json.encode(machine.launch("sh", "-c", script, job_id=job_id)))
        files.append(str(path))
    first = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUNNER, str(machine.root), *files), env=machine.environment, stdout=subprocess.PIPE
    )
    assert first.stdout is not None
    handles = [await post.pid(), await post.pid()]
    assert [await first.stdout.readline() for _ in files] != []
    first.kill()
    await first.wait()
    shims = [os.pidfd_open(shim_of(machine, job_id).shim_pid) for job_id in (1, 2)]
    (machine.scratch / "go").write_text("go\n")
    assert machine.is_over(shims[1])
    assert not machine.is_gone(shims[0])
    async with machine.runner() as runner:
        assert await runner.adopt() == ((1, 0),)
        assert await runner.adopt() == ((1, 0),)
        ended = await machine.ended(runner, 2)
        assert (ended.outcome, ended.ranks[0].exit_code) == ("failed", 5)
        await runner.start(machine.launch("touch", "ran", job_id=1))
        await runner.cancel(1, 0, "enough")
        ended = await machine.ended(runner, 1)
        assert (ended.outcome, ended.reason) == ("cancelled", "enough")
    assert sorted((type(event).__name__, event.job_id) for event in machine.seen) == [
        *(("NodeTaskEnded", 1), ("NodeTaskEnded", 2), ("NodeTaskStarted", 1), ("NodeTaskStarted", 2))
    ]
    assert not (machine.scratch / "ran").exists()
    for handle in handles:
        assert machine.is_gone(handle)


async def test_a_shim_killed_while_no_runner_is_there(machine: Machine, post: Post) -> None:
    """Each next runner finds the shim gone and reports the piece as lost, until it is forgotten."""
    async with machine.runner() as runner:
        await runner.start(machine.launch(*machine.python(FAMILY)))
        rank, hidden = await post.pid(), await post.pid()
    shim = shim_of(machine).shim_pid
    handle = os.pidfd_open(shim)
    os.kill(shim, signal.SIGKILL)
    assert machine.is_over(handle)
    assert machine.is_over(rank)
    assert machine.is_over(hidden)
    for _ in range(2):
        async with machine.runner() as runner:
            assert await runner.adopt() == ()
            assert (await machine.ended(runner)).outcome == "lost"
    async with machine.runner() as runner:
        await runner.adopt()
        await runner.forget(1, 0)
        assert list((machine.root / "jobs").iterdir()) == []


def prepared(machine: Machine, launch: Launch, **state: object) -> Path:
    """Make the folder of a piece as a runner, and its shim if a state is given, would have left it."""
    folder = task_folder(machine.root, (launch.job_id, launch.attempt))
    folder.mkdir(parents=True)
    (folder / "launch.msgpack").write_bytes(msgspec.msgpack.encode(launch))
    if state:
        known: dict[str, object] = {"job_id": launch.job_id, "attempt": launch.attempt, "phase": "running"}
        write_state(folder, NodeTaskState(**{**known, "boot_id": boot_id(), **state}))  # type: ignore[arg-type]
    return folder


async def test_a_start_that_was_never_carried_out_stays_so(machine: Machine) -> None:
    """A piece that its runner wrote down and did not start is lost, and a shim that comes late does not run it."""
    folder = prepared(machine, machine.launch("touch", "ran"))
    async with machine.runner() as runner:
        assert await runner.adopt() == ()
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.started_ms) == ("lost", None)
    assert "it never ran" in ended.reason
    subprocess.run([*SHIM, folder], env=machine.environment, check=True)
    assert not (machine.scratch / "ran").exists()


async def test_two_shims_run_a_piece_once(machine: Machine) -> None:
    """Of any number of shims of one folder, at one time or one after another, one runs the piece."""
    folder = prepared(machine, machine.launch("sh", "-c", "echo ran >> ran"))
    command = [*SHIM, str(folder)]
    shims = [subprocess.Popen(command, env=machine.environment) for _ in range(3)]
    assert [shim.wait() for shim in shims] == [0, 0, 0]
    assert (machine.scratch / "ran").read_text() == "ran\n"
    assert shim_of(machine).outcome == "finished"


@pytest.mark.parametrize("stranger", ["shim", "rank"])
async def test_a_number_that_was_given_anew_is_not_taken_for_ours(machine: Machine, stranger: str) -> None:
    """A process with the number of a shim or rank, but another start, is neither watched nor ended."""
    other = subprocess.Popen(["sleep", "1000"], env=machine.environment, start_new_session=True)
    stat = process_stat(other.pid)
    assert stat is not None
    rank = RankReport(rank=0, pid=other.pid, start_ticks=stat.start_ticks - 1)
    shim = {"shim_pid": other.pid if stranger == "shim" else 2**22, "shim_start_ticks": stat.start_ticks + 1}
    prepared(machine, machine.launch("true"), **shim, ranks=(rank,), started_ms=5, token="1.0-x")
    async with machine.runner() as runner:
        assert await runner.adopt() == ()
        assert (await machine.ended(runner)).outcome == "lost"
    assert other.poll() is None
    other.kill()
    other.wait()


async def test_after_a_new_start_of_the_machine(machine: Machine) -> None:
    """What ran before the machine was started again is lost, whatever has its numbers now."""
    stat = process_stat(os.getpid())
    assert stat is not None
    prepared(
        machine,
        machine.launch("true"),
        boot_id="another",
        shim_pid=stat.pid,
        shim_start_ticks=stat.start_ticks,
        started_ms=5,
    )
    async with machine.runner() as runner:
        assert await runner.adopt() == ()
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.started_ms) == ("lost", 5)
    assert ended.reason == "the machine was restarted while it ran"


async def test_a_damaged_state_is_lost(machine: Machine) -> None:
    """A state that a power failure cut off is reported, not stumbled over; other files in the folder are left alone."""
    folder = prepared(machine, machine.launch("true"), shim_pid=2**22)
    (folder / STATE).write_bytes(b"\x8d\xa6job")
    (machine.root / "jobs" / "notes.txt").write_text("not ours")
    async with machine.runner() as runner:
        assert await runner.adopt() == ()
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.reason) == ("lost", "its state is damaged; it may have run")


@pytest.mark.parametrize("content", [b"", b"\x80", b"garbage"])
async def test_a_damaged_launch_fails(machine: Machine, content: bytes) -> None:
    """A launch that cannot be read fails in one line."""
    folder = prepared(machine, machine.launch("true"))
    (folder / "launch.msgpack").write_bytes(content)
    subprocess.run([*SHIM, folder], env=machine.environment, check=True)
    state = shim_of(machine)
    assert (state.outcome, state.started_ms) == ("failed", None)
    assert "launch.msgpack is missing, damaged" in state.reason


async def test_a_fork_server_that_cannot_start(machine: Machine) -> None:
    """If there can be no fork server, starts fail with where to look, and the runner goes on."""
    machine.environment["PYTHONHOME"] = "/no/such/python"
    async with machine.runner() as runner:
        await runner.start(machine.launch("true"))
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.started_ms) == ("failed", None)
    assert "the fork server ended 3 times; see" in ended.reason


FILES = 100


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of 2 MiB and so many files."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size=2m,nr_inodes={FILES}", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
    yield folder
    # Lazily: the fork server, whose log is here, may still be ending.
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("command", ["head -c 4000000 /dev/zero", "cat /dev/zero > fill; echo $?"])
async def test_a_full_disk_ends_neither_shim_nor_record(small_disk: Path, machine: Machine, command: str) -> None:
    """A job that fills the disk of its folder, by its output or otherwise, runs to its end, which is written down."""
    machine.root = small_disk / "live"
    ended = await machine.run(machine.launch("sh", "-c", f"{command}; exit 4", working_directory=str(small_disk)))
    assert (ended.outcome, ended.ranks[0].exit_code) == ("failed", 4)
    report = ended.ranks[0]
    assert report.output_problem == "output could not be written: No space left on device"
    assert report.dropped_bytes > 0
    async with machine.runner() as runner:
        await runner.adopt()
        assert await machine.ended(runner) == ended


async def test_a_full_disk_puts_off_a_start(
    small_disk: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no room for a piece its start is refused and leaves nothing; with room again it runs."""
    machine.root = small_disk / "live"
    async with machine.runner() as runner:
        filled = subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/fill"], capture_output=True, check=False)
        assert b"No space left" in filled.stderr
        with pytest.raises(UnavailableError, match="its disk has 0 bytes free; expected at least 1,048,576"):
            await runner.start(machine.launch("touch", "ran"))
        with monkeypatch.context() as unseen:
            # As under a quota, of which the file system tells nothing.
            unseen.setattr(folders, "MIN_FREE_BYTES", 0)
            assert runner.disk_problem() is None
            assert runner.disk_problem(trial=True) == "its folder cannot be written: No space left on device"
            with pytest.raises(UnavailableError, match="its folder cannot be written: No space left on device"):
                await runner.start(machine.launch("touch", "ran"))
        assert list((machine.root / "jobs").iterdir()) == []
        (small_disk / "fill").unlink()
        assert runner.disk_problem(trial=True) is None
        await runner.start(machine.launch("touch", "ran"))
        ended = await machine.ended(runner)
    assert ended.outcome == "finished"
    assert (machine.scratch / "ran").exists()


async def test_a_disk_that_is_full_before_the_ranks_start_loses_the_piece(small_disk: Path, machine: Machine) -> None:
    """What the shim finds no room for is lost rather than failed: it is the fault of the machine."""
    machine.root = small_disk / "live"
    async with machine.runner() as runner:
        # Room for the folder, the launch, and the reserve for the last state, and not for the folder that it works in.
        for number in range(os.statvfs(small_disk).f_favail - 3):
            (small_disk / f"{number}").touch()
        await runner.start(machine.launch("touch", str(machine.scratch / "ran"), working_directory=None))
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.started_ms) == ("lost", None)
    assert ended.reason == "the machine cannot start 1 processes: No space left on device"
    assert not (machine.scratch / "ran").exists()


async def test_a_pace_that_finds_no_room_keeps_nothing_else_from_being_done(
    machine: Machine, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk a job does not stand still, and no error leaves undone what is ordered together with that."""

    def no_room(folder: Path, pace: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runner_module, "write_pace", no_room)
    async with machine.runner() as runner:
        await runner.start(machine.launch("sh", "-c", "echo $$ > $POST; exec sleep 1000"))
        await post.pid()
        await runner.pace(1, 0, runs=False)
        await runner.cancel(1, 0, "enough")
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.reason) == ("cancelled", "enough")


async def test_a_piece_that_waits_for_its_instant_is_adopted(machine: Machine) -> None:
    """A new runner adopts a task that waits for its agreed start, and reports its start and its end."""
    instant = int(time.time() * 1000) + 1500
    async with machine.runner() as runner:
        # The job outlives its first runner, however long that takes to stop.
        script = "while [ ! -e go ]; do sleep 0.05; done; echo ran"
        await runner.start(machine.launch("sh", "-c", script, start_at_unix_ms=instant))
        async with asyncio.timeout(PATIENCE_S):
            while runner.state(1, 0) is None:
                await asyncio.sleep(0)
    async with machine.runner() as runner:
        assert await runner.adopt() == ((1, 0),)
        (machine.scratch / "go").touch()
        ended = await machine.ended(runner)
    assert ended.outcome == "finished"
    assert ended.started_ms is not None
    assert ended.started_ms >= instant
    assert [type(event).__name__ for event in machine.seen] == ["NodeTaskStarted", "NodeTaskEnded"]
    assert machine.output() == "ran\n"


async def test_ranks_end_with_a_shim_that_is_killed_before_the_start(machine: Machine) -> None:
    """A shim that is killed while its ranks wait for their instant leaves none of them; nothing of the job ran."""
    async with machine.runner() as runner:
        await runner.start(machine.launch("touch", "ran", ranks=2, start_at_unix_ms=int(time.time() * 1000) + 10**8))
        async with asyncio.timeout(PATIENCE_S):
            while (state := runner.state(1, 0)) is None:
                await asyncio.sleep(0)
        ranks = [handle for rank in state.ranks if (handle := os.pidfd_open(rank.pid))]
        os.kill(state.shim_pid, signal.SIGKILL)
        ended = await machine.ended(runner)
    assert (ended.outcome, ended.started_ms) == ("lost", None)
    assert [machine.is_over(handle) for handle in ranks] == [True, True]
    assert not (machine.scratch / "ran").exists()


async def test_the_kernel_ends_the_ranks_of_a_killed_shim(machine: Machine, post: Post) -> None:
    """Without runner and fork server the ranks of a shim that is killed still end with it."""
    folder = prepared(machine, machine.launch("sh", "-c", "echo $$ > $POST; exec sleep 1000"))
    command = [*SHIM, str(folder)]
    with subprocess.Popen(command, env=machine.environment) as shim:
        rank = await post.pid()
        shim.kill()
    assert machine.is_over(rank)


HELLO = r"""
import os, signal
pipe = os.open(os.environ['POST'], os.O_WRONLY)
os.write(pipe, b'%d\n' % os.getpid())
"""
LIMIT_MS = 5_000
"""Wall time limit of jobs that have to do something before they reach it."""

STOPS_ITS_SUPERVISOR = "import os, signal\nfor _ in range(1 + forever * 10**9): os.kill(os.getppid(), signal.SIGSTOP)\n"


@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("by", ["limit", "cancel", "cancel at once"])
async def test_a_job_that_stops_its_supervisor_ends(
    machine: Machine, post: Post, monkeypatch: pytest.MonkeyPatch, by: str, forever: bool
) -> None:
    """Whether its supervisor goes on when it is woken or is stopped forever, the piece ends, and is not lost."""
    monkeypatch.setattr(node_tasks, "SILENT_S", 0.2)
    limit_ms = 1_000 if by == "limit" else None
    script = f"{HELLO}forever = {forever}\n{STOPS_ITS_SUPERVISOR}signal.pause()"
    async with machine.runner() as runner:
        await runner.start(machine.launch(*machine.python(script), limit_ms=limit_ms, grace_ms=100))
        if limit_ms is None:
            rank = await post.pid()
            await runner.cancel(1, 0, "enough", at_once=by == "cancel at once")
            ended = await machine.ended(runner)
            assert machine.is_over(rank)
        else:
            ended = await machine.ended(runner)
    for left in machine.marked():  # the last act of the rank may have been to stop the fork server, its new parent
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGCONT)
    assert ended.outcome == ("limit" if limit_ms else "cancelled")
    assert ended.reason.startswith("ended at its limit of 1 s" if limit_ms else "enough")


async def test_a_supervisor_that_never_answers_is_killed_with_its_piece(
    machine: Machine, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a later runner, and what has left its session: nothing of the piece is left, and how it ended is told."""
    monkeypatch.setattr(node_tasks, "SILENT_S", 0.2)
    # A shell has said where it is long before its limit, on a busy machine too.
    script = "echo $$ > $POST; setsid sh -c 'echo $$ > $POST; exec sleep 1000' & exec sleep 1000"
    launch = machine.launch("sh", "-c", script, limit_ms=LIMIT_MS, grace_ms=100)
    async with machine.runner() as runner:
        await runner.start(launch)
        processes = [await post.pid(), await post.pid()]
        state = runner.state(1, 0)
        assert state is not None
        os.kill(state.shim_pid, signal.SIGSTOP)
        monkeypatch.setattr(signal, "SIGCONT", signal.SIGSTOP)  # as if a job stopped it faster than it answers
    async with machine.runner() as runner:
        assert await runner.adopt() == ((1, 0),)
        ended = await machine.ended(runner)
    assert all(machine.is_over(process) for process in processes)
    why = "its supervisor did not answer and was killed"
    assert (ended.outcome, ended.reason) == ("limit", f"ended at its limit of 5 s; {why}")


async def test_a_fork_server_that_is_stopped_is_replaced(machine: Machine, post: Post) -> None:
    """A job that stops the fork server of its machine keeps nothing from starting; each piece runs once."""
    async with machine.runner() as runner:
        await runner.start(machine.launch("sh", "-c", "echo $$ > $POST; exec sleep 1000"))
        os.close(await post.pid())
        server = fork_server_of(machine)
        os.kill(server, signal.SIGSTOP)
        await runner.start(machine.launch("sh", "-c", "echo 2 >> ran", job_id=2))
        runner._forks._waited_in_vain()  # as ANSWER_S later: a new server may need longer than a short one
        assert (await machine.ended(runner, 2)).outcome == "finished"
        os.kill(server, signal.SIGCONT)
        await runner.cancel(1, 0, "enough")
        await machine.ended(runner)
    assert (machine.scratch / "ran").read_text() == "2\n"


async def test_what_ended_as_its_supervisor_was_killed_is_lost(machine: Machine, post: Post) -> None:
    """Its rank has done all of its work, and nobody can know: the end that was not written down does not count."""
    os.mkfifo(machine.scratch / "go")
    async with machine.runner() as runner:
        await runner.start(machine.launch("sh", "-c", "echo $$ > $POST; read line < go; echo all > work"))
        rank = await post.pid()
        shim = shim_of(machine).shim_pid
        os.kill(shim, signal.SIGSTOP)
        (machine.scratch / "go").write_text("go\n")
        assert machine.is_over(rank)
        os.kill(shim, signal.SIGKILL)
        ended = await machine.ended(runner)
    assert (machine.scratch / "work").read_text() == "all\n"
    assert ended.outcome == "lost"


async def test_a_job_that_stops_its_supervisor_after_a_pause_ends_at_its_limit(
    machine: Machine, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it stands still no end is due; once it goes on, one is again, by whoever stops its supervisor then."""
    monkeypatch.setattr(node_tasks, "SILENT_S", 0.2)
    monkeypatch.setattr(runner_module, "SILENT_S", 0.2)
    async with machine.runner() as runner:
        await runner.start(
            machine.launch("sh", "-c", "echo $$ > $POST; exec sleep 1000", limit_ms=LIMIT_MS, grace_ms=100)
        )
        rank = await post.pid()
        for runs in (False, True):
            await runner.pace(1, 0, runs=runs)
            async with asyncio.timeout(PATIENCE_S):
                while (state := runner.state(1, 0)) is None or state.is_paused == runs:
                    await asyncio.sleep(0.01)
        os.kill(shim_of(machine).shim_pid, signal.SIGSTOP)
        ended = await machine.ended(runner)
    assert machine.is_over(rank)
    assert ended.outcome == "limit"
