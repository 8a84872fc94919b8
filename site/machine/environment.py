"""What a rank gets from its machine: its command, its environment, and the port at which the ranks of its job meet."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gridweave.errors import UnavailableError
from gridweave.site.launch import Launch, Rank, meeting_of
from gridweave.site.machine.folders import CALL, rate_path, user_folder
from gridweave.site.machine.processes import TOKEN_VARIABLE

SOCKET_VARIABLE = "GRIDWEAVE_RENDEZVOUS_FD"
"""A job that sets it takes the socket at which its ranks meet: rank 0 has it open, as the descriptor of this number."""

FIRST_DESCRIPTOR = 3
"""The descriptor that comes after standard input, output and error."""

_SO_ATTACH_FILTER, _BACKLOG = 26, 1024
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
"""A filter of packets of one instruction (BPF_RET): nothing passes."""

_PORT_AGAIN_S, _PORT_S = 0.05, 10.0
"""A port that is taken is tried again for so long: a job that has just ended may have had it."""

OF_ALLOCATION = ("SLURM_JOB_ID", "SLURM_JOBID")
"""The number of the Slurm allocation that the service runs in: a script that does not see it would take gridweave's
number of its job for it, and cancel somebody else's job."""

PASSED = frozenset(
    (
        *OF_ALLOCATION,
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LANGUAGE", "TZ"),
        *("LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"),
        *("MODULEPATH", "MODULESHOME", "LOADEDMODULES", "_LMFILES_"),
        *("CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR"),
        "GRIDWEAVE_LOCAL_GRID",  # by which `gridweave down` knows all that is of a grid
    )
)
PASSED_FROM = ("LC_", "XDG_", "LMOD_")
"""What a job that runs as the service gets of its environment: where programs are found, and how they speak.

Whoever has started the service has keys and passwords in it that are not for jobs."""

ALLOWED = ("LANG", "LC_", "TZ", *OF_ALLOCATION)
"""What a job of another user gets of the environment of the service: variables that begin so."""

PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where its commands are looked for."""


def rank_command(launch: Launch, folder: Path, rank: Rank) -> tuple[str, ...]:
    """Return what a rank executes: the command, or the Python that calls the callable."""
    if launch.call is None:
        return launch.argv
    own = user_folder(folder, launcher=launch.launcher)
    return (sys.executable, "-m", "gridweave.site.machine.call", str(folder / CALL), str(own), str(rank.rank))


def rank_environment(
    launch: Launch, folder: Path, rank: Rank, local_rank: int, token: str, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a rank.

    That which every job of this machine gets, of which a job of another user gets what is `ALLOWED`; then the names
    that PyTorch and others look for, then the job's own, then those of gridweave, which nothing replaces.
    """
    size = launch.size if launch.size is not None else len(launch.ranks)
    meeting = meeting_of(launch.rendezvous)
    common = {"RANK": str(rank.rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local_rank)}
    common["LOCAL_WORLD_SIZE"] = str(len(launch.ranks))
    if meeting is not None:
        common |= {"MASTER_ADDR": meeting.host.strip("[]"), "MASTER_PORT": str(meeting.port)}
    if launch.launcher:
        base = {"PATH": PATH} | {name: value for name, value in base.items() if name.startswith(ALLOWED)}
    own = {
        "GRIDWEAVE_JOB_ID": str(launch.job_id),
        "GRIDWEAVE_ATTEMPT": str(launch.starts + 1),
        "GRIDWEAVE_TRY": str(launch.attempt),
        "GRIDWEAVE_RANK": str(rank.rank),
        "GRIDWEAVE_LOCAL_RANK": str(local_rank),
        "GRIDWEAVE_NODE": str(rank.node),
        "GRIDWEAVE_SIZE": str(size),
        "GRIDWEAVE_SITE": launch.site,
        "GRIDWEAVE_SITES": ",".join(launch.sites),
        "GRIDWEAVE_RENDEZVOUS": "" if meeting is None else meeting.place,
        "GRIDWEAVE_RENDEZVOUS_KEY": "" if meeting is None else meeting.key,
        "GRIDWEAVE_FOLDER": str(folder),
        "GRIDWEAVE_RATE": str(rate_path(folder, launcher=launch.launcher)),
        TOKEN_VARIABLE: token,
    }
    found = {**base, **common, **launch.environment, "PWD": working_directory(launch, folder), **own}
    found.pop(SOCKET_VARIABLE, None)
    return found | ({SOCKET_VARIABLE: str(FIRST_DESCRIPTOR)} if takes_socket(launch, rank) else {})


def working_directory(launch: Launch, folder: Path) -> str:
    """Return where the ranks run."""
    return launch.working_directory if launch.working_directory is not None else str(folder / "work")


def takes_socket(launch: Launch, rank: Rank) -> bool:
    """Whether a rank gets the socket at which the ranks of its job meet: rank 0 of a job that wants it."""
    wanted = SOCKET_VARIABLE in launch.environment and launch.elements is None
    return wanted and rank.rank == 0 and meeting_of(launch.rendezvous) is not None


def hold_meeting(launch: Launch) -> tuple[socket.socket | None, Launch]:
    """Listen on the job's rendezvous port on the machine of rank 0, so that no other program can take it.

    If the port is taken, a job that is on this machine alone gets another one.

    Returns
    -------
    tuple
        The socket, or None if there is nothing to hold; and the launch, with where its ranks meet.

    Raises
    ------
    UnavailableError
        If another program listens there, which ranks on other machines would take for rank 0.
    """
    meeting = meeting_of(launch.rendezvous)
    rank = next((rank for rank in launch.ranks if rank.rank == 0), None)
    if meeting is None or rank is None:
        return None, launch
    is_handed, is_whole = takes_socket(launch, rank), launch.size in (None, len(launch.ranks))
    until_s = time.monotonic() + _PORT_S
    while True:
        try:
            return _listening(meeting.port, is_handed=is_handed), launch
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return None, launch
        if is_whole:
            held = _listening(0, is_handed=is_handed)
            there = meeting._replace(port=held.getsockname()[1])
            return held, msgspec.structs.replace(launch, rendezvous=there.text)
        if time.monotonic() >= until_s:
            raise UnavailableError(f"port {meeting.port}, at which its ranks meet, is taken by another program")
        time.sleep(_PORT_AGAIN_S)


def _listening(port: int, *, is_handed: bool) -> socket.socket:
    """Return a socket that listens at all addresses of this machine, of IPv6 as well if it has that.

    Unless rank 0 gets it, nobody is let in: ranks elsewhere that come too early try again, as TCP does after 1 s.
    """
    if socket.has_dualstack_ipv6():
        try:
            return _listening_of(socket.AF_INET6, port, is_handed=is_handed)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return _listening_of(socket.AF_INET, port, is_handed=is_handed)


def _listening_of(family: socket.AddressFamily, port: int, *, is_handed: bool) -> socket.socket:
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(("", port))
        if not is_handed:
            found.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(_DROP_ALL)))
        found.listen(_BACKLOG)
    except OSError:
        found.close()
        raise
    return found
