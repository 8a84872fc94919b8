"""What a job tries against the grid, against other users and against the machine; none of it may succeed."""

from __future__ import annotations

import ast
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gridweave.errors import UnavailableError
from gridweave.site.machine import launcher
from gridweave.site.machine.cgroups import Cgroups, ControlGroup, group_name
from gridweave.site.machine.folders import error_path, read_regular, result_path, task_folder
from gridweave.site.machine.node_tasks import objects_of, task_bytes
from gridweave.site.machine.output import output_path
from gridweave.site.machine.processes import process_stat
from gridweave.site.machine.starter import LauncherStarter, ask_launcher, bytes_as_user, clear_as_user
from support.machine import PATIENCE_S

if TYPE_CHECKING:
    from conftest import Place

PYTHON = "/usr/bin/python3 -c"
PTRACE = "import ctypes; c=ctypes.CDLL(None); print('GOT' if c.ptrace(16, {0}, 0, 0) == 0 else 'held')"
READ_MEMORY = (
    "import ctypes as c; b=c.create_string_buffer(8); V=c.c_size_t*2; m=[int(l.split('-')[0],16) for l in "
    "open('/proc/self/maps')][0]; r=c.CDLL(None).process_vm_readv({0}, V(c.addressof(b),8), 1, V(m,8), 1, 0); "
    "print('GOT' if r > 0 else 'held')"
)

# What is tried, as a shell script that says GOT if it comes about.
ATTACKS: dict[str, str] = {
    "reads the token of the grid": "cat {token}",
    "writes the token of the grid": "echo x >> {token} && echo GOT",
    "lists the folder of the service": "ls {token}/.. && echo GOT",
    "moves the folder of the service": "mv {token}/.. {token}-moved && echo GOT",
    "reads the token through a link in its own folder": "ln -s {token} link; cat link",
    "takes a second name of the token": "ln {token} name && echo GOT",
    "reads the launcher's file": "cat {file} && echo GOT",
    "writes the launcher's file": "echo 'alice = \"root\"' >> {file} && echo GOT",
    "replaces the launcher's file": "mv {file} {file}.old && echo GOT",
    "asks the launcher": PYTHON + " \"import socket; s=socket.socket(1,5); s.connect('{socket}'); print('GOT')\"",
    "removes the launcher's socket": "rm -f {socket} && echo GOT",
    "lists the jobs of the machine": "ls {runner}/jobs && echo GOT",
    "reads the log of the fork server": "cat {runner}/forkserver.log && echo GOT",
    "takes the lock of the runner": "exec 9<>{runner}/runner.lock && echo GOT",
    "says that another job has started": "echo 1.0 7 > {runner}/notices && echo GOT",
    "reads what another job runs": "cat {bob}/launch.msgpack && echo GOT",
    "reads the state of another job": "cat {bob}/state.msgpack && echo GOT",
    "changes the state of its own job": "echo > $GRIDWEAVE_FOLDER/../state.msgpack && echo GOT",
    "reads the file of its own launch": "cat $GRIDWEAVE_FOLDER/../launch.msgpack && echo GOT",
    "removes the folder of its own piece": "mv $GRIDWEAVE_FOLDER $GRIDWEAVE_FOLDER-moved && echo GOT",
    "cancels another job": "echo > {bob}/cancel && echo GOT",
    "puts a link in place of its output": "ln -sf {token} $GRIDWEAVE_FOLDER/../rank-0.out && echo GOT",
    "reads the output of another job": "cat {bob}/rank-0.out && echo GOT",
    "lists the files of another job": "ls {bob}/own && echo GOT",
    "reads a file of another job": "cat {bob}/own/work/secret",
    "writes into the folder of another job": "echo > {bob}/own/work/new && echo GOT",
    "reads what another job left in /tmp": "cat /tmp/left && echo GOT",
    "reads /tmp of another job by its root": "cat /proc/{victim}/root/tmp/left && echo GOT",
    "reads the environment of another job": "cat /proc/{victim}/environ && echo GOT",
    "reads the arguments of another job": "cat /proc/{victim}/cmdline && echo GOT",
    "finds another job in the list of processes": "ls -d /proc/{victim} && echo GOT",
    "finds the arguments of others": "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep '[l]auncher.toml' && echo GOT",
    "reads the memory of another job": "head -c 1 /proc/{victim}/mem && echo GOT",
    "enters the folder of another job": "cd /proc/{victim}/cwd && echo GOT",
    "opens what another job has open": "cat /proc/{victim}/fd/1 && echo GOT",
    "reads the environment of its supervisor": "cat /proc/{shim}/environ && echo GOT",
    "reads the environment of the launcher": "cat /proc/{launcher}/environ && echo GOT",
    "reads the environment of the service": "cat /proc/{test}/environ && echo GOT",
    "traces another job": PYTHON + ' "' + PTRACE.format("{victim}") + '"',
    "traces its supervisor": PYTHON + ' "' + PTRACE.format("{shim}") + '"',
    "traces the parent of the ranks": PYTHON + ' "' + PTRACE.format("{parent}") + '"',
    "reads across processes": PYTHON + ' "' + READ_MEMORY.format("{victim}") + '"',
    "kills another job": "kill -9 {victim} && echo GOT",
    "stops another job": "kill -STOP {victim} && echo GOT",
    "kills the supervisor of another job": "kill -9 {shim} && echo GOT",
    "kills the parent of the ranks of another job": "kill -9 {parent} && echo GOT",
    "kills the launcher": "kill -9 {launcher} && echo GOT",
    "kills its own parent": "exec " + PYTHON + " \"import os; os.kill(os.getppid(), 9); print('GOT')\"",
    "slows another job down": "renice 19 {victim} && echo GOT",
    "becomes root": PYTHON + " \"import os; os.setuid(0); print('GOT')\"",
    "becomes another user": PYTHON + " \"import os, pwd; os.setuid(pwd.getpwnam('gw-test-bob')[2]); print('GOT')\"",
    "joins the group of root": PYTHON + " \"import os; os.setgroups([0]); print('GOT')\"",
    "makes a device": "mknod disk b 8 0 && echo GOT",
    "mounts": "mount -t tmpfs none /mnt && echo GOT",
    "undoes its own /tmp": "umount /tmp && echo GOT",
    "is root in a namespace of its own": "unshare -Ur cat {token}",
    "changes the root of files": "chroot / echo GOT",
    "leaves its control group": "echo $$ > {memory}/../cgroup.procs && echo GOT",
    "raises the limit of memory": "echo -1 > $(echo {memory}/*-$GRIDWEAVE_JOB_ID.0/memory.*limit*) && echo GOT",
    "makes a control group": "mkdir {memory}/mine && echo GOT",
    "raises a limit of its own": "ulimit -Hc unlimited && echo GOT",
    "names a program for core dumps": "echo '|/bin/sh' > /proc/sys/kernel/core_pattern && echo GOT",
    "sees the environment of the service": "env | grep SECRET_OF_SERVICE && echo GOT",
    "gives a file the group of the service": "cp /usr/bin/id . && chmod g+s id && test -g id && echo GOT",
    "gives a file to root": "echo > mine; chown root mine && echo GOT",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_comes_to_nothing(place: Place, attack: str) -> None:
    """The attack fails, and the job that was attacked still runs."""
    script = ATTACKS[attack].replace("{", "{{").replace("}", "}}")
    for name, value in place.names().items():
        script = script.replace("{{" + name + "}}", str(value))
    said = place.attack(script.replace("{{", "{").replace("}}", "}"))
    assert "GOT" not in said
    assert place.launcher.poll() is None
    stat = process_stat(place.victim)
    assert stat is not None
    assert stat.state in ("R", "S", "D")  # it may have just begun
    assert os.getpriority(os.PRIO_PROCESS, place.victim) == os.getpriority(os.PRIO_PROCESS, 0)


def test_every_process_that_a_job_may_signal_is_its_own(place: Place) -> None:
    """`kill -9 -1` ends that job alone."""
    place.attack("kill -9 -1")
    assert process_stat(place.victim) is not None
    assert place.launcher.poll() is None


def test_a_job_is_its_user_and_nothing_else(place: Place) -> None:
    """User, groups, home and limits are those of the Unix user, without any capability or way to one."""
    _, _, said = place.run("alice", "sh", "-c", "id -un; id -G | wc -w; echo $HOME $USER; cat /proc/self/status; env")
    assert said.splitlines()[:3] == ["gw-test-alice", "1", "/ gw-test-alice"]
    for line in ("CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"):
        assert line in said
    known = {"HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TZ", "USER", "RANK", "WORLD_SIZE", "OLDPWD", "_"}
    names = {line.partition("=")[0] for line in said.splitlines() if "=" in line}
    assert not {name for name in names - known if not name.startswith(("GRIDWEAVE_", "LOCAL_", "LC_"))}


def test_a_setuid_program_gives_no_rights(place: Place) -> None:
    """A program of root's with the setuid bit, in the job's own folder, runs as the job's user."""
    trap = place.folder / "trap"
    shutil.copyfile("/usr/bin/id", trap)
    trap.chmod(0o4755)
    _, _, said = place.run("alice", str(trap), "-un")
    assert said.strip() == "gw-test-alice"


def test_files_belong_to_the_user(place: Place) -> None:
    """Output and the folders of a job are the user's, what the grid keeps of it is not."""
    _, folder, _ = place.run("alice", "sh", "-c", "echo said; echo > made; echo > /tmp/made")
    uid = pwd.getpwnam("gw-test-alice").pw_uid
    for path in ("rank-0.out", "own", "own/work", "own/work/made", "own/tmp", "own/tmp/made"):
        assert (folder / path).stat().st_uid == uid, path
    for path in ("launch.msgpack", "state.msgpack"):
        assert (folder / path).stat().st_uid == 0
        assert (folder / path).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "put",
    [
        "ln -s {token} {result}",
        "ln -s /dev/zero {result}",
        "mkfifo {result}",
        "mkdir {result}",
        "echo GOT > real; ln real {result}",
        "ln -s /proc/self/environ {result}",
    ],
)
def test_results_are_read_without_following(place: Place, put: str) -> None:
    """A link, a pipe, a folder or a second name in place of a result is no result, and holds nobody up."""
    script = put.replace("{token}", str(place.token)).replace("{result}", "$GRIDWEAVE_FOLDER/result-0.json")
    _, folder, _ = place.run("alice", "sh", "-c", script)
    assert os.path.lexists(result_path(folder / "own", 0))
    assert read_regular(result_path(folder / "own", 0)) == b""


def test_an_error_text_is_read_without_following(place: Place) -> None:
    """What stands in place of the text of an error is not told to the user."""
    ended, folder, _ = place.run("alice", "sh", "-c", f"ln -s {place.token} $GRIDWEAVE_FOLDER/error-0.txt; exit 3")
    assert os.path.lexists(error_path(folder / "own", 0))
    assert ended.reason == "rank 0 ended with exit code 3"


def test_output_is_read_though_it_is_the_users(place: Place) -> None:
    """A user may empty the output, which is theirs; the service reads what is there."""
    file = "$GRIDWEAVE_FOLDER/../rank-0.out"
    script = f"echo mine; until grep -q mine {file}; do :; done 2> /dev/null; : > {file}"
    _, folder, _ = place.run("alice", "sh", "-c", script)
    assert read_regular(output_path(folder, 0, "out")) == b""


def test_a_fork_bomb_ends_with_its_job(place: Place) -> None:
    """A job that forks without end has no more processes than its limit, and none after its end."""
    bomb = (
        "import os, time\nfor _ in range(500):\n  try:\n    if os.fork() == 0: time.sleep(1000)\n"
        "  except OSError as error:\n    print(error.errno)\n    break"
    )
    ended, _, said = place.run("alice", "/usr/bin/python3", "-c", bomb)
    assert said.split() == ["11"]
    assert ended.reason == "its remaining processes were ended"
    assert _processes_of("gw-test-alice") == []


def test_a_daemon_ends_with_its_job(place: Place) -> None:
    """What leaves its session and its parent is ended all the same."""
    place.run("alice", "sh", "-c", "setsid sh -c 'trap \"\" TERM HUP; (sleep 1000 &) ; sleep 1000' & sleep 0.1")
    assert _processes_of("gw-test-alice") == []


def test_a_job_of_a_user_is_paused_and_resumed(place: Place) -> None:
    """All processes of a user's job stand still when the service wants it, go on, and end though they are paused."""
    script = "setsid sh -c 'while :; do :; done' & while :; do :; done"
    place.loop.run(place.runner.start(place.launch("alice", 6, "sh", "-c", script)))
    _until(lambda: len(_processes_of("gw-test-alice")) == 2 and _states("gw-test-alice") <= {"R"})
    folder = task_folder(place.runner.root, (6, 0))
    group = Cgroups(ControlGroup(place.groups)).group(group_name(folder))
    for runs in (False, True, False):
        place.loop.run(place.runner.pace(6, 0, runs=runs))
        _until(lambda runs=runs: _is_paused(place, 6) != runs)
        if runs:
            _until(lambda: _states("gw-test-alice") == {"R"})
        elif group.can_pause:
            assert group.is_frozen()
        else:
            assert _states("gw-test-alice") == {"T"}
    assert len(_processes_of("gw-test-alice")) == 2
    place.loop.run(place.runner.cancel(6, 0, "enough"))
    assert place.loop.run(place.end_of(6)).outcome == "cancelled"
    assert _processes_of("gw-test-alice") == []


def test_memory_ends_the_job_alone(place: Place) -> None:
    """A job that takes more memory than it may ends for that reason; all others go on."""
    ended, _, _ = place.run("alice", "/usr/bin/python3", "-c", "b = bytearray(400 << 20)")
    assert ended.outcome == "failed"
    assert ended.reason.startswith("out of memory: it used all of its 128 MiB on this machine")
    assert process_stat(place.victim) is not None


def test_memory_in_a_shared_file_counts(place: Place) -> None:
    """Shared memory is the job's own, counts as its memory, and is gone afterwards."""
    ended, _, _ = place.run("alice", "sh", "-c", "head -c 400M /dev/zero > /dev/shm/big; echo $?")
    assert ended.reason.startswith("out of memory")
    assert not os.path.exists("/dev/shm/big")


SYSTEM_V = (
    "import ctypes; c=ctypes.CDLL(None); shm=c.shmget(77777, {size}, 0o{flags}); "
    "sem=c.semget(77777, 1, 0o{flags}); msg=c.msgget(77777, 0o{flags}); "
    "queue=ctypes.CDLL('librt.so.1').mq_open(b'/gridweave-test', {queue}, 0o666, None); "
    "print('GOT' if max(shm, sem, msg, queue) >= 0 else 'held')"
)
CREATES = SYSTEM_V.format(size=1 << 20, flags="3666", queue=os.O_CREAT | os.O_RDWR)
ATTACHES = SYSTEM_V.format(size=0, flags="666", queue=os.O_RDWR)


def test_ipc_is_private_and_goes(place: Place) -> None:
    """Shared memory, semaphores and queues are of one job: neither another job nor the machine sees them."""
    before = objects_of(pwd.getpwnam("gw-test-alice").pw_uid)
    for user in ("alice", "bob"):
        # Made and found by the job itself, and by nobody after it.
        assert place.run(user, "/usr/bin/python3", "-c", CREATES + "\n" + ATTACHES)[2].split() == ["GOT", "GOT"]
        assert place.run(user, "/usr/bin/python3", "-c", ATTACHES)[2].split() == ["held"]
    assert objects_of(pwd.getpwnam("gw-test-alice").pw_uid) == before == []
    script = f"{CREATES}\nimport time; time.sleep(1000)"
    place.loop.run(place.runner.start(place.launch("bob", 7, "/usr/bin/python3", "-uc", script)))
    _until(lambda: b"GOT" in read_regular(output_path(task_folder(place.runner.root, (7, 0)), 0, "out")))
    assert place.run("alice", "/usr/bin/python3", "-c", ATTACHES)[2].split() == ["held"]
    place.loop.run(place.runner.cancel(7, 0, "enough"))
    place.loop.run(place.end_of(7))


def test_tmp_is_private_and_goes(place: Place) -> None:
    """A file in /tmp or /dev/shm is neither seen by the next job nor kept on the machine."""
    place.run("alice", "sh", "-c", "for at in /tmp /var/tmp /dev/shm; do echo > $at/left-by-alice; done")
    _, _, said = place.run("alice", "sh", "-c", "ls /tmp /var/tmp /dev/shm | grep left")
    assert said == ""
    assert not os.path.exists("/tmp/left-by-alice")
    assert not os.path.exists("/var/tmp/left-by-alice")
    assert not os.path.exists("/dev/shm/left-by-alice")


def test_output_without_end_is_cut(place: Place) -> None:
    """Output fills no disk: what is beyond the limit is dropped."""
    ended, folder, _ = place.run("alice", "sh", "-c", "head -c 20M /dev/zero", output_limit_bytes=1000)
    assert output_path(folder, 0, "out").stat().st_size < 2000
    assert ended.ranks[0].dropped_bytes == (20 << 20) - 1000


def test_a_packed_array_runs_as_its_user(place: Place) -> None:
    """Each element runs once, as the user; what became of it is known, and what the user writes in between is not."""
    script = 'id -un; test $GRIDWEAVE_ARRAY_INDEX = 3 && echo "[9, 0]" >> ../elements.json && exit 4; exit 0'
    ended, _, said = place.run("alice", "sh", "-c", script, array_tasks=((1, 6),))
    assert said.split() == ["gw-test-alice"] * 5
    assert [(one.index, one.exit_code) for one in ended.array_tasks] == [(1, 0), (2, 0), (3, 4), (4, 0), (5, 0)]
    assert (ended.outcome, ended.interrupted) == ("failed", ())


@pytest.mark.parametrize("put", ["ln -s {token} {0}", "mkfifo {0}", "head -c 9 /dev/zero | tr '\\0' '\\377' > {0}"])
@pytest.mark.parametrize("name", ["elements.json", "elements.next"])
def test_records_of_elements_are_read_without_following(place: Place, put: str, name: str) -> None:
    """What a user puts in place of the records of a packed array harms nobody but that array."""
    script = f"rm -f ../{name}; {put.replace('{0}', f'../{name}').replace('{token}', str(place.token))}; exit 0"
    ended, folder, said = place.run("alice", "sh", "-c", script, array_tasks=((1, 3),))
    assert os.path.lexists(folder / "own" / name)
    assert {one.index for one in ended.array_tasks} <= {1, 2}
    assert set(ended.interrupted) <= {1, 2}
    assert "GOT" not in said


def test_parents_of_ranks_serve_one_user_after_the_other(place: Place) -> None:
    """A process is the parent of ranks again, of another user too, and keeps nothing of the task before."""
    parents = []
    for user in ("alice", "bob") * 6:
        _, _, said = place.run(user, "sh", "-c", "id -un; echo $PPID; ls /tmp; echo > /tmp/left")
        assert said.split()[0] == f"gw-test-{user}"
        assert len(said.split()) == 2, "what the user before has left in /tmp is seen"
        parents.append(said.split()[1])
    assert len(set(parents)) < len(parents)
    outside = os.readlink(f"/proc/{place.launcher.pid}/ns/mnt")
    for parent in set(parents):
        _until(lambda parent=parent: os.readlink(f"/proc/{parent}/ns/mnt") == outside)


def test_a_launcher_that_could_import_anything_does_not_start(place: Place) -> None:
    """Without -P it would import, as root, from the folder that it is started in."""
    command = [sys.executable, "-m", "gridweave.site.machine.launcher", str(place.file)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "the launcher must run with -P: otherwise it would import from the working directory\n"


def test_what_runs_as_root_is_short() -> None:
    """The launcher has fewer than 300 lines, without blank lines, comments and docstrings."""
    assert 0 < _lines_of_code(Path(launcher.__file__)) < 300


def test_control_groups_go_with_their_jobs(place: Place) -> None:
    """After its end no group of a job is left, in any hierarchy."""
    place.run("alice", "true")
    for parent in place.groups.values():
        assert [name for name in os.listdir(parent) if name.endswith(f"-{place.number}.0")] == []


def test_what_a_user_locks_up_is_removed(place: Place) -> None:
    """A folder is forgotten whatever rights its user took from themselves."""
    _, folder, _ = place.run("alice", "sh", "-c", "mkdir -p a/b; echo > a/b/c; chmod 0 a/b a .. .")
    own = folder / "own"
    clear_as_user(folder, place.launch("alice", place.number, "true"))
    assert list(own.iterdir()) == [], "as the user alone: the service here is root, whom no mode stops"
    place.loop.run(place.runner.forget(place.number, 0))
    assert not folder.exists()


def test_what_a_user_locks_up_is_counted(place: Place) -> None:
    """The user counts what nobody else can read: a million bytes behind two closed doors."""
    script = "mkdir -p a/b; head -c 1000000 /dev/zero > a/b/c; chmod 0 a/b a .. ."
    _, folder, _ = place.run("alice", "sh", "-c", script)
    assert 1_000_000 <= bytes_as_user(folder, place.launch("alice", place.number, "true")) < 1_100_000
    assert task_bytes(folder) >= 1_000_000


@pytest.mark.parametrize("user", ["mallory", "root", "", "gw-test-bob", "nobody", "alice\n", "../alice"])
def test_nobody_runs_without_a_mapping(place: Place, user: str) -> None:
    """A user who is not in the table starts nothing, and is told so in one line."""
    ended, _, said = place.run(user, "id")
    assert (ended.outcome, said) == ("failed", "")
    assert "has no Unix account on this machine; add one to [users] in" in ended.reason
    assert "\n" not in ended.reason


def test_the_launcher_gives_away_nothing_that_is_not_the_services(place: Place) -> None:
    """Even the service cannot have a file of another user given to its job's."""
    folder = place.folder / "5.0"
    folder.mkdir(mode=0o711)
    starter: Any = LauncherStarter(place.launch("alice", 5, "true"), folder)
    _, other, _ = place.run("bob", "sh", "-c", "echo > kept")
    with (other / "own" / "work" / "kept").open("rb") as file:
        starter.give(file.fileno())
    with pytest.raises(UnavailableError, match="only files and folders of the service can be given"):
        starter._answer("never")
    starter.close()


@pytest.mark.parametrize("asked", [{"do": "keep"}, {"do": "start"}, {"do": "keep", "user": "alice", "group": "../.."}])
def test_the_launcher_refuses_what_makes_no_sense(place: Place, asked: dict[str, str]) -> None:
    """A request that is none is answered in one line, and the launcher serves on."""
    with pytest.raises(UnavailableError):
        ask_launcher(str(place.socket), asked)
    assert ask_launcher(str(place.socket), {"do": "hello"})["groups"] == place.groups


def test_the_launcher_serves_on_after_noise(place: Place) -> None:
    """A malformed message ends at most the parent of ranks of its connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as noise:
        noise.connect(str(place.socket))
        noise.send(b"\xff\x00 no message")
    assert place.run("alice", "true")[0].outcome == "finished"


def _lines_of_code(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    lines = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def _until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come about"


def _is_paused(place: Place, job_id: int) -> bool:
    state = place.runner.state(job_id, 0)
    assert state is not None
    return state.is_paused


def _states(name: str) -> set[str]:
    return {stat.state for stat in map(process_stat, _processes_of(name)) if stat is not None}


def _processes_of(name: str) -> list[int]:
    uid = pwd.getpwnam(name).pw_uid
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid:
                found.append(int(pid))
        except FileNotFoundError:
            continue
    return found
