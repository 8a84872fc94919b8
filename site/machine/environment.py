"""Determine a rank's command and environment, and reserve its job's rendezvous port."""

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
from gridweave.site.launch import Launch, Rank, RankResources, meeting_of
from gridweave.site.machine.folders import CALL, rate_path, user_folder
from gridweave.site.machine.processes import TOKEN_VARIABLE

SOCKET_VARIABLE = "GRIDWEAVE_RENDEZVOUS_FD"
"""If a job sets this variable, rank 0 inherits the rendezvous socket, and the variable contains its descriptor."""

FIRST_DESCRIPTOR = 3
"""The first file descriptor after standard input, output and error."""

_SO_ATTACH_FILTER, _BACKLOG = 26, 1024
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
"""A packet filter with one instruction (BPF_RET) that drops everything."""

_PORT_AGAIN_S, _PORT_S = 0.05, 10.0
"""Interval and total time of retries while a port is in use; a job that has just ended may have used it."""

OF_ALLOCATION = ("SLURM_JOB_ID", "SLURM_JOBID")
"""The id of the Slurm allocation in which the service runs. Scripts must see this id: if it were gridweave's job id,
``scancel $SLURM_JOB_ID`` would cancel another user's Slurm job."""

PASSED = frozenset(
    (
        *OF_ALLOCATION,
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LANGUAGE", "TZ"),
        *("LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"),
        *("MODULEPATH", "MODULESHOME", "LOADEDMODULES", "_LMFILES_"),
        *("CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR"),
        "GRIDWEAVE_LOCAL_GRID",  # `gridweave down` uses it to find all processes of a grid
    )
)
PASSED_FROM = ("LC_", "XDG_", "LMOD_")
"""Prefixes of variables that, like `PASSED`, jobs running as the service's user inherit: search paths and locale.

Other variables are withheld, because the service's environment may contain keys and passwords."""

ALLOWED = ("LANG", "LC_", "TZ", *OF_ALLOCATION)
"""Prefixes of the variables that jobs running as other users inherit from the service."""

PATH = "/usr/local/bin:/usr/bin:/bin"
"""The search path of jobs running as other users."""


def rank_command(launch: Launch, folder: Path, rank: Rank) -> tuple[str, ...]:
    """Return the command that a rank executes: the job's command, or one that runs Python to call the callable."""
    if launch.call is None:
        return launch.argv
    own = user_folder(folder, launcher=launch.launcher)
    return (sys.executable, "-m", "gridweave.site.machine.call", str(folder / CALL), str(own), str(rank.rank))


def rank_environment(
    launch: Launch, folder: Path, rank: Rank, local_rank: int, token: str, base: Mapping[str, str]
) -> dict[str, str]:
    """Return a rank's environment.

    In ascending precedence: the machine's variables (only the `ALLOWED` ones if the job runs as another user), the
    rank's variables, the variables for PyTorch and similar libraries, the job's variables, and gridweave's variables,
    which include the selection of GPUs.
    """
    size = launch.size if launch.size is not None else len(launch.ranks)
    meeting = meeting_of(launch.rendezvous)
    common = {"RANK": str(rank.rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local_rank)}
    common["LOCAL_WORLD_SIZE"] = str(len(launch.ranks))
    if rank.resources:
        common["OMP_NUM_THREADS"] = str(len(rank.resources.cores))
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
        **(_resource_variables(rank.resources) if rank.resources else {}),
    }
    base = {**base, **(rank.variables or {})}
    merged = {**base, **common, **launch.environment, "PWD": working_directory(launch, folder), **own}
    merged.pop(SOCKET_VARIABLE, None)
    return merged | ({SOCKET_VARIABLE: str(FIRST_DESCRIPTOR)} if takes_socket(launch, rank) else {})


def _resource_variables(resources: RankResources) -> dict[str, str]:
    """Return the variables that name a rank's cores, memory and GPUs, and restrict libraries to these GPUs."""
    devices = resources.gpus if resources.devices is None else resources.devices
    visible = ",".join(map(str, devices))
    return {
        "GRIDWEAVE_CORES": ",".join(map(str, resources.cores)),
        "GRIDWEAVE_GPUS": ",".join(map(str, resources.gpus)),
        "GRIDWEAVE_MEMORY_MB": str(resources.memory_mb or ""),
        "CUDA_VISIBLE_DEVICES": visible,
        # With CUDA's own order, the numbers would mean other GPUs.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "ROCR_VISIBLE_DEVICES": visible,
        "NVIDIA_VISIBLE_DEVICES": visible or "void",
    }


def working_directory(launch: Launch, folder: Path) -> str:
    """Return the ranks' working directory."""
    return launch.working_directory if launch.working_directory is not None else str(folder / "work")


def takes_socket(launch: Launch, rank: Rank) -> bool:
    """Whether a rank inherits the rendezvous socket: only rank 0 does, and only if its job requests the socket."""
    is_requested = SOCKET_VARIABLE in launch.environment and launch.array_tasks is None
    return is_requested and rank.rank == 0 and meeting_of(launch.rendezvous) is not None


def hold_meeting(launch: Launch) -> tuple[socket.socket | None, Launch]:
    """Listen on the job's rendezvous port if rank 0 is on this machine, so that no other program can take the port.

    If the port is in use, a job with all its ranks on this machine gets another port.

    Returns
    -------
    tuple
        The socket (None if no socket is needed) and the launch with the final rendezvous address.

    Raises
    ------
    UnavailableError
        If the port stays in use by another program, and the job has ranks on other machines, which would connect to it.
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
            listener = _listening(0, is_handed=is_handed)
            address = meeting._replace(port=listener.getsockname()[1])
            return listener, msgspec.structs.replace(launch, rendezvous=address.text)
        if time.monotonic() >= until_s:
            raise UnavailableError(f"another program listens on port {meeting.port}, the rendezvous of its ranks")
        time.sleep(_PORT_AGAIN_S)


def _listening(port: int, *, is_handed: bool) -> socket.socket:
    """Return a socket that listens on all of this machine's addresses, including IPv6 if available.

    Unless rank 0 inherits the socket, the socket drops all packets, so that TCP retries after 1 s if a rank connects
    too early.
    """
    if socket.has_dualstack_ipv6():
        try:
            return _listening_of(socket.AF_INET6, port, is_handed=is_handed)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return _listening_of(socket.AF_INET, port, is_handed=is_handed)


def _listening_of(family: socket.AddressFamily, port: int, *, is_handed: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("", port))
        if not is_handed:
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(_DROP_ALL)))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
