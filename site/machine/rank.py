"""Turn a forked process into a rank: prepare, report, wait at the gate, and execute the command.

The process already runs as the job's user. A rank of a packed array executes its command once per array task.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import msgspec

from gridweave.errors import GridweaveError
from gridweave.ranges import ranges_text
from gridweave.site.machine.array_tasks import Packed, run_array_tasks
from gridweave.site.machine.processes import PR_SET_NAME, control_process

READY = b"+"
"""The report of a rank that is ready; any other report is an error message. The pipe closes when the command starts."""

NOT_STARTED = 127
GO = b"g"

HANDLED = frozenset({signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1})
"""The signals handled by the parent of the ranks."""

_RESET = tuple(
    int(getattr(signal, name))
    for name in (
        *("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2"),
        *("SIGCHLD", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGXFSZ"),
    )
)


_FIRST_FREE = 10


class RankStart(NamedTuple):
    """A rank's command and the environment to run it in."""

    rank: int
    command: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    threads: tuple[int, ...] | None  # hardware threads to run on; None: inherited from the parent
    packed: Packed | None = None  # for a packed array: the array tasks to draw from


class _CannotStartError(GridweaveError):
    """A rank cannot start; the message is one line."""


def forget_parent() -> None:
    """Leave the parent's session, and reset all signal handlers."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def become_rank_of(account: pwd.struct_passwd, what: int, gate: int, report: int, output: Sequence[int]) -> NoReturn:
    """Turn this process, which already runs as the user, into the rank described in a file; see `become_rank`."""
    start = msgspec.json.decode(os.pread(what, os.fstat(what).st_size, 0), type=RankStart)
    names = {"HOME": account.pw_dir, "SHELL": account.pw_shell or "/bin/sh"}
    names |= {"USER": account.pw_name, "LOGNAME": account.pw_name}
    become_rank(start._replace(environment=names | start.environment), gate, report, output)


def become_rank(start: RankStart, gate: int, report: int, output: Sequence[int]) -> NoReturn:
    """Turn this process into the rank, and execute its command when the gate opens.

    The gate is a pipe from which each rank reads one byte; if the pipe is closed instead, the rank does not start. The
    rank writes `READY` or the reason why it cannot start to the report pipe, which closes when the command starts.
    """
    try:
        gate, report, output = (_out_of_the_way(gate), _out_of_the_way(report), [*map(_out_of_the_way, output)])
        _take_place(start, output)
        program = _program(start.command[0], start.environment.get("PATH", os.defpath))
        os.write(report, READY)
        if os.read(gate, 1) == GO:
            if start.packed is not None:
                os._exit(run_array_tasks(start.packed, start.rank, program, start.command, start.environment))
            _execute(program, start.command, start.environment)
    except OSError as error:
        report_problem(report, f"rank {start.rank}: {os.strerror(error.errno or 0)}")
    except _CannotStartError as error:
        report_problem(report, str(error))
    finally:
        os._exit(NOT_STARTED)


def _out_of_the_way(handle: int) -> int:
    """Duplicate a descriptor to a number that the rank does not use; the copy is closed when the command starts."""
    return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)


def report_problem(report: int, problem: str) -> None:
    """Report why the rank cannot start."""
    os.write(report, " ".join(problem.split()).encode(errors="replace")[:4000])


def _take_place(start: RankStart, output: Sequence[int]) -> None:
    control_process(PR_SET_NAME, f"gridweave-{start.rank}".encode()[:15])
    if start.threads is not None:
        _pin(start.rank, start.threads)
    try:
        os.chdir(start.directory)
    except OSError as error:
        advice = "expected a directory on this machine that the job may enter"
        problem = f"working directory {start.directory!r}: {os.strerror(error.errno or 0)}; {advice}"
        raise _CannotStartError(problem) from error
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, *output)):
        os.dup2(source, target)


def _pin(rank: int, threads: Sequence[int]) -> None:
    may = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, threads)
    except (OSError, OverflowError, ValueError) as error:
        what = f"rank {rank} cannot be pinned to hardware threads {ranges_text(threads, ',')}"
        raise _CannotStartError(f"{what}; this machine allows {ranges_text(may, ',')}") from error


def _program(name: str, path: str) -> str:
    """Return the program file to execute; raise `_CannotStartError` if there is none."""
    program = shutil.which(name, path=path)
    if program is not None:
        return program
    if "/" in name:
        if not os.path.exists(name):
            raise _CannotStartError(f"command {name!r}: no such file on this machine")
        if os.path.isdir(name):
            raise _CannotStartError(f"command {name!r}: is a directory; expected a program")
        raise _CannotStartError(f"command {name!r}: is not executable; give it the x permission (chmod +x)")
    where = f"the directories of PATH ({path})"
    for folder in path.split(os.pathsep):
        there = os.path.join(folder, name)
        if os.path.isfile(there):
            raise _CannotStartError(f"command {name!r}: {there} is not executable; give it the x permission (chmod +x)")
    raise _CannotStartError(f"command {name!r}: not found in {where}; install it on this machine or give its full path")


def _execute(program: str, command: Sequence[str], environment: dict[str, str]) -> None:
    try:
        os.execve(program, list(command), environment)
    except OSError as error:
        advice = "expected a script that begins with a line like #!/bin/sh, or a program built for this machine"
        raise _CannotStartError(f"command {program!r}: {os.strerror(error.errno or 0)}; {advice}") from error
