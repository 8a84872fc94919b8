"""The shim: the small process of which the ranks of one piece stem, and which outlives whoever started it.

It is forked by the fork server, or run by hand: ``python -m gridweave.site.machine.shim FOLDER``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource  # noqa: F401 -- os.wait4 imports it when it is called first, which each fork would do anew
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gridweave.site.launch import Launch, PieceState, Rank, RankReport, launch_problem
from gridweave.site.machine.folders import SHIM_LOG, STATE, piece_key, read_launch
from gridweave.site.machine.processes import PR_SET_NAME, boot_id, control_process, descendants, process_stat
from gridweave.site.machine.supervisor import Supervisor, rank_environment
from gridweave.site.machine.usage import process_io


def warm_up() -> None:
    """Do once what is slow only the first time, so that no fork of this process has to."""
    boot_id()
    rank = Rank(0)
    launch = Launch(job_id=0, attempt=0, ranks=(rank,))
    state = PieceState(job_id=0, attempt=0, phase="ended", boot_id="", ranks=(RankReport(0, 0, 0),))
    for message in (launch, state):
        msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
    launch_problem(launch)
    rank_environment(launch, Path(), rank, 0, "", {})
    own = process_stat(os.getpid())
    assert own is not None
    descendants(own.pid)
    process_io(own.pid)


def supervise(folder: Path, base: Mapping[str, str]) -> None:
    """Run the piece of a folder, unless somebody else does or has.

    Whoever holds the lock of the folder decides, and a state that is there is final: so a piece runs at most once,
    however often and by whomever its start is asked for. The lock goes with the process that holds it.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if (folder / STATE).exists():
        return
    supervisor = _supervisor_of(folder, base)
    with contextlib.suppress(OSError):
        control_process(PR_SET_NAME, b"gridweave-shim")
    supervisor.run()


def _supervisor_of(folder: Path, base: Mapping[str, str]) -> Supervisor:
    """Return who runs the piece of a folder, or says of one that cannot be read that it has failed."""
    launch = read_launch(folder)
    if launch is not None and (launch.job_id, launch.attempt) == piece_key(folder):
        return Supervisor(folder, launch, base)
    job_id, attempt = piece_key(folder) or (0, 0)
    supervisor = Supervisor(folder, Launch(job_id=job_id, attempt=attempt, ranks=()), base)
    supervisor.outcome = "failed"
    supervisor.reason = "launch.msgpack is missing, damaged or of another piece; start it again"
    return supervisor


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def supervise_and_exit(folder: Path, base: Mapping[str, str]) -> None:
    """Supervise in a process of its own, which ends here; a fault of the shim itself goes into ``shim.log``."""
    status = 1
    try:
        supervise(folder, base)
        status = 0
    except BaseException:
        with contextlib.suppress(OSError), open(folder / SHIM_LOG, "a", encoding="utf-8", opener=_privately) as log:
            traceback.print_exc(file=log)
    finally:
        os._exit(status)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m gridweave.site.machine.shim FOLDER (a folder that holds launch.msgpack)")
    supervise_and_exit(Path(sys.argv[1]).resolve(), dict(os.environ))
