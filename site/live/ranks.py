"""One rank: its command, its environment, and the fork that waits at a gate until all ranks are ready."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from gridweave.site.live.affinity import format_cpu_list
from gridweave.site.live.launch import Launch, Rank
from gridweave.site.live.processes import PR_SET_NAME, TOKEN_VARIABLE, control_process, die_with_parent

READY = b"+"
"""What a rank reports when it is ready; a longer report is why it is not; the end of the pipe is that it has begun."""

NOT_STARTED = 127
GO = b"g"

HANDLED = frozenset({signal.SIGTERM, signal.SIGCHLD})
"""The signals that a shim has handlers for."""

_RESET = tuple(
    int(getattr(signal, name))
    for name in (
        *("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2"),
        *("SIGCHLD", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGXFSZ"),
    )
)


def rank_command(launch: Launch, folder: Path, rank: Rank) -> tuple[str, ...]:
    """Return what a rank executes: the command, or the Python that calls the callable."""
    if launch.call is None:
        return launch.argv
    return (sys.executable, "-m", "gridweave.site.live.call", str(folder), str(rank.rank))


def rank_environment(
    launch: Launch, folder: Path, rank: Rank, local_rank: int, token: str, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a rank.

    Parameters
    ----------
    launch : Launch
    folder : pathlib.Path
        Folder of the fragment.
    rank : Rank
    local_rank : int
        Its place among the ranks of this machine.
    token : str
        What all processes of the fragment are known by.
    base : mapping from str to str
        What every job of this machine gets.

    Returns
    -------
    dict from str to str
        The base, then the names that PyTorch and others look for, then the job's own, then those of gridweave, which
        nothing replaces.
    """
    size = launch.size if launch.size is not None else len(launch.ranks)
    host, _, port = launch.rendezvous.rpartition(":")
    common = {"RANK": str(rank.rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local_rank)}
    common["LOCAL_WORLD_SIZE"] = str(len(launch.ranks))
    if host:
        common |= {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port}
    own = {
        "GRIDWEAVE_JOB_ID": str(launch.job_id),
        "GRIDWEAVE_ATTEMPT": str(launch.attempt),
        "GRIDWEAVE_RANK": str(rank.rank),
        "GRIDWEAVE_LOCAL_RANK": str(local_rank),
        "GRIDWEAVE_NODE": str(rank.node),
        "GRIDWEAVE_SIZE": str(size),
        "GRIDWEAVE_SITE": launch.site,
        "GRIDWEAVE_SITES": ",".join(launch.sites),
        "GRIDWEAVE_RENDEZVOUS": launch.rendezvous,
        "GRIDWEAVE_FOLDER": str(folder),
        TOKEN_VARIABLE: token,
    }
    return {**base, **common, **launch.environment, "PWD": working_directory(launch, folder), **own}


def working_directory(launch: Launch, folder: Path) -> str:
    """Return where the ranks run."""
    return launch.working_directory if launch.working_directory is not None else str(folder / "work")


def fork_rank(
    launch: Launch,
    folder: Path,
    rank: Rank,
    environment: Mapping[str, str],
    gate: tuple[int, int],
    output: tuple[int, int],
) -> tuple[int, int]:
    """Fork a rank that makes itself ready, says so, and waits at the gate.

    Parameters
    ----------
    launch : Launch
    folder : pathlib.Path
    rank : Rank
    environment : mapping from str to str
    gate : tuple of int
        Both ends of the pipe that all ranks wait at; each takes one byte. Its end means: do not start.
    output : tuple of int
        Where standard output and error go.

    Returns
    -------
    pid : int
    report : int
        The pipe on which the rank says `READY`, or why it cannot start, and which ends when its command has begun.

    Raises
    ------
    OSError
        If no process or pipe is to be had.
    """
    command = rank_command(launch, folder, rank)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    shim = os.getpid()
    # The rank must not take a signal with the shim's handlers in place.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    finally:
        if os.getpid() == shim:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if pid == 0:
        try:
            os.close(gate[1])
            _become_rank(launch, folder, rank, shim, output)
            program = _program(command[0], environment.get("PATH", os.defpath))
            os.write(writer, READY)
            if os.read(gate[0], 1) == GO:
                _execute(program, command, environment)
        except OSError as error:
            _report(writer, f"rank {rank.rank}: {os.strerror(error.errno or 0)}")
        except _CannotStartError as error:
            _report(writer, str(error))
        finally:
            os._exit(NOT_STARTED)
    os.close(writer)
    os.set_blocking(reader, False)
    return pid, reader


class _CannotStartError(Exception):
    """Why a rank cannot start, in one line."""


def _report(writer: int, problem: str) -> None:
    """Tell the shim."""
    os.write(writer, " ".join(problem.split()).encode(errors="replace")[:4000])


def _become_rank(launch: Launch, folder: Path, rank: Rank, shim: int, output: tuple[int, int]) -> None:
    """Make the forked process what the rank's command is to find."""
    os.setsid()
    die_with_parent(shim)
    signal.set_wakeup_fd(-1)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    control_process(PR_SET_NAME, f"gridweave-{rank.rank}".encode()[:15])
    if rank.threads is not None:
        _pin(rank, rank.threads)
    directory = working_directory(launch, folder)
    try:
        os.chdir(directory)
    except OSError as error:
        right = "it must be a directory on this machine that the job may enter"
        raise _CannotStartError(f"working directory {directory!r}: {os.strerror(error.errno or 0)}; {right}") from error
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, *output)):
        os.dup2(source, target)


def _pin(rank: Rank, threads: tuple[int, ...]) -> None:
    """Keep the rank on its hardware threads."""
    may = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, threads)
    except (OSError, OverflowError, ValueError) as error:
        what = f"rank {rank.rank} cannot be pinned to hardware threads {format_cpu_list(threads)}"
        raise _CannotStartError(f"{what}: this machine lets it run on {format_cpu_list(may)}") from error


def _program(name: str, path: str) -> str:
    """Return the file to execute, or say why there is none."""
    found = shutil.which(name, path=path)
    if found is not None:
        return found
    if "/" in name:
        if not os.path.exists(name):
            raise _CannotStartError(f"command {name!r}: there is no such file; give a program that is on this machine")
        if os.path.isdir(name):
            raise _CannotStartError(f"command {name!r}: is a directory; give a program")
        raise _CannotStartError(f"command {name!r}: is not executable; give it the x permission (chmod +x)")
    where = f"the directories of PATH ({path})"
    for folder in path.split(os.pathsep):
        if os.path.isfile(os.path.join(folder, name)):
            there = os.path.join(folder, name)
            raise _CannotStartError(f"command {name!r}: {there} is not executable; give it the x permission (chmod +x)")
    raise _CannotStartError(f"command {name!r}: not found in {where}; install it on this machine or give its full path")


def _execute(program: str, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Turn into the command."""
    try:
        os.execve(program, list(command), dict(environment))
    except OSError as error:
        right = "a script must begin with a line like #!/bin/sh, a program must be built for this machine"
        raise _CannotStartError(f"command {program!r}: {os.strerror(error.errno or 0)}; {right}") from error
