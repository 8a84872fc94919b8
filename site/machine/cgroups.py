"""Use Linux control groups to enforce a job's limits, detect out-of-memory kills, and pause or kill all its processes.

A controller is used in version 2 if it is available there, otherwise in version 1 if that is mounted. The kernel's
file names are documented in Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path

from gridweave.errors import InputError
from gridweave.site.launch import Launch, Limits
from gridweave.site.machine.processes import descendants, process_stat, send_signal

CONTROLLERS = ("memory", "cpu", "pids")
"""The controllers needed to enforce limits; any of them may be missing on a machine."""

CONFINING = ("cpuset", "devices")
"""Controllers that confine a job to its cores and keep it from the GPUs of other jobs; ``devices`` is in version 1."""

UNIFIED = "unified"
"""Pseudo-controller that stands for the version 2 hierarchy, which can kill and pause a group."""

FREEZER = "freezer"
"""The version 1 controller that pauses a group."""

_PERIOD_US = 100_000
_ROUNDS = 1_000
_FREEZE_S = 1.0
_REMOVE_S = 2.0
_LOOK_S = 0.0005
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class ControlGroup:
    """A control group.

    Parameters
    ----------
    folders : mapping from str to str or Path
        The group's folder for each controller.
    """

    def __init__(self, folders: Mapping[str, str | Path]) -> None:
        self.folders = {controller: Path(folder) for controller, folder in folders.items()}

    def _is_2(self, controller: str) -> bool:
        return (self.folders[controller] / "cgroup.controllers").exists()

    @property
    def can_pause(self) -> bool:
        """Whether the group's processes can be paused."""
        return UNIFIED in self.folders or FREEZER in self.folders

    def add(self, pid: int) -> None:
        """Move a process into the group; its future children will also be in the group."""
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def limit(self, limits: Limits) -> None:
        """Set the limits that the kernel enforces; None removes a limit."""
        if "memory" in self.folders:
            self._limit_memory(limits.memory_bytes)
        if "cpu" in self.folders:
            self.limit_cpus(limits.cpus)
        if "pids" in self.folders:
            self._write("pids", "pids.max", "max" if limits.processes is None else str(limits.processes))

    def limit_cpus(self, cpus: float | None) -> None:
        """Limit the group's CPU time [CPUs]; this also works while its processes are running."""
        quota = None if cpus is None else max(1_000, round(cpus * _PERIOD_US))
        if self._is_2("cpu"):
            self._write("cpu", "cpu.max", f"{'max' if quota is None else quota} {_PERIOD_US}")
        else:
            self._write("cpu", "cpu.cfs_period_us", str(_PERIOD_US))
            self._write("cpu", "cpu.cfs_quota_us", str(-1 if quota is None else quota))

    def confine(self, threads: Collection[int], denied: Collection[tuple[int, int]]) -> None:
        """Restrict the group to ``threads``, if any, and deny it access to devices; skip what the machine cannot do.

        Parameters
        ----------
        threads : collection of int
            Hardware threads, as numbered by the operating system.
        denied : collection of tuple of int
            Major and minor numbers of character devices.
        """
        if threads and "cpuset" in self.folders:
            self._write("cpuset", "cpuset.cpus", ",".join(map(str, sorted(threads))), optional=True)
        if "devices" in self.folders:
            for major, minor in denied:
                self._write("devices", "devices.deny", f"c {major}:{minor} rwm", optional=True)

    def _limit_memory(self, limit_bytes: int | None) -> None:
        if self._is_2("memory"):
            self._write("memory", "memory.max", "max" if limit_bytes is None else str(limit_bytes))
            self._write("memory", "memory.swap.max", "max" if limit_bytes is None else "0", optional=True)
            self._write("memory", "memory.oom.group", "1", optional=True)
            return
        text = str(-1 if limit_bytes is None else limit_bytes)
        # The kernel rejects a limit for memory plus swap below the limit for memory alone.
        self._write("memory", "memory.memsw.limit_in_bytes", "-1", optional=True)
        self._write("memory", "memory.limit_in_bytes", text)
        self._write("memory", "memory.memsw.limit_in_bytes", text, optional=True)

    def oom_kills(self) -> int:
        """Return how many of the group's processes the kernel has killed because the memory limit was reached."""
        folder = self.folders.get("memory")
        if folder is None:
            return 0
        name = "memory.events" if self._is_2("memory") else "memory.oom_control"
        try:
            lines = (folder / name).read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def pids(self) -> list[int]:
        """Return the sorted ids of the group's processes."""
        pids: set[int] = set()
        for folder in self.folders.values():
            with contextlib.suppress(FileNotFoundError):
                pids |= set(map(int, (folder / "cgroup.procs").read_text(encoding="ascii").split()))
        return sorted(pids)

    def gather(self, root: int) -> None:
        """Move all descendants of a process into the group, including those forked in the meantime."""
        for _ in range(_ROUNDS):
            inside = set(self.pids())
            outside = [stat.pid for stat in descendants(root) if stat.pid not in inside and stat.state not in "ZX"]
            if not outside:
                return
            for pid in outside:
                with contextlib.suppress(ProcessLookupError):
                    self.add(pid)

    def freeze(self, *, frozen: bool) -> None:
        """Request that all processes be paused or resumed, which takes the kernel a moment."""
        if UNIFIED in self.folders:
            self._write(UNIFIED, "cgroup.freeze", str(int(frozen)))
        elif FREEZER in self.folders:
            self._write(FREEZER, "freezer.state", "FROZEN" if frozen else "THAWED")

    def is_frozen(self) -> bool:
        """Whether all processes are paused."""
        if UNIFIED in self.folders:
            return "frozen 1" in (self.folders[UNIFIED] / "cgroup.events").read_text(encoding="ascii")
        return (self.folders[FREEZER] / "freezer.state").read_text(encoding="ascii").strip() == "FROZEN"

    def stop(self) -> bool:
        """Pause all processes; if that takes too long, resume them all and return False."""
        self.freeze(frozen=True)
        until_s = time.monotonic() + _FREEZE_S
        while not self.is_frozen():
            if time.monotonic() >= until_s:
                self.freeze(frozen=False)
                return False
            time.sleep(_LOOK_S)
        return True

    def kill(self) -> None:
        """Kill all processes, including paused ones and those forked in the meantime."""
        unified = self.folders.get(UNIFIED)
        if unified is not None and (unified / "cgroup.kill").exists():
            self._write(UNIFIED, "cgroup.kill", "1")
            return
        self.freeze(frozen=False)
        # A job that forks faster than this loop kills is stopped by its limit on processes.
        for _ in range(_ROUNDS):
            stats = [stat for stat in map(process_stat, self.pids()) if stat is not None and stat.state not in "ZX"]
            if not stats:
                return
            for stat in stats:
                send_signal(stat, signal.SIGKILL)

    def remove(self) -> bool:
        """Remove the group; return False if it still has processes after a short wait."""
        until_s = time.monotonic() + _REMOVE_S
        for folder in dict.fromkeys(self.folders.values()):
            while True:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    # The kernel takes a moment to clean up killed processes.
                    if time.monotonic() >= until_s:
                        return False
                    time.sleep(0.002)
                else:
                    break
        return True

    def _write(self, controller: str, name: str, text: str, *, optional: bool = False) -> None:
        try:
            (self.folders[controller] / name).write_text(text, encoding="ascii")
        except OSError:
            # Without swap accounting, or on an older kernel, the file is missing or read-only.
            if not optional:
                raise


class Cgroups:
    """A runner's control groups: a parent group with a subgroup for each node task.

    Parameters
    ----------
    parent : ControlGroup
        The parent group, in which this process must be able to create folders.
    """

    def __init__(self, parent: ControlGroup) -> None:
        self.parent = parent

    @property
    def paths(self) -> dict[str, str]:
        """The parent group's folder for each controller, as expected by `ControlGroup`."""
        return {controller: str(folder) for controller, folder in self.parent.folders.items()}

    def make(self, name: str, limits: Limits) -> ControlGroup:
        """Create a job's group and set its limits; if the group exists, only set the limits."""
        group = self.group(name)
        for folder in dict.fromkeys(group.folders.values()):
            folder.mkdir(mode=0o755, exist_ok=True)
        _fill_cpuset(group.folders.get("cpuset"))
        group.limit(limits)
        return group

    def make_freezer(self, name: str) -> ControlGroup | None:
        """Create a group without limits, used only to pause a job; return None if that is impossible."""
        folders = {name: self.parent.folders[name] for name in (UNIFIED, FREEZER) if name in self.parent.folders}
        try:
            return Cgroups(ControlGroup(folders)).make(name, Limits()) if folders else None
        except OSError:
            return None

    def group(self, name: str) -> ControlGroup:
        """Return a job's group, which may not exist yet; raise InputError for an invalid name."""
        if not _NAME.fullmatch(name):
            raise InputError(f"control group is {name!r}; expected letters, digits, '-', '_' and '.'")
        return ControlGroup({controller: folder / name for controller, folder in self.parent.folders.items()})


def missing_groups(launch: Launch) -> str | None:
    """Return the reason why a launch's limits cannot be enforced, or None."""
    needed = () if launch.limits is None else launch.limits.controllers
    lacking = [controller for controller in needed if controller not in launch.groups]
    if not lacking:
        return None
    missing = f"this machine has no usable control group for {', '.join(lacking)}"
    return f"its limits cannot be enforced: {missing}; see docs/launchers.md"


def parts_problem(groups: Mapping[str, str]) -> str | None:
    """Return why these control groups, one per controller, cannot enforce fractions of nodes, or None."""
    lacking = [controller for controller in ("cpu", "memory") if controller not in groups]
    lacking += [] if ControlGroup(groups).can_pause else [FREEZER]
    if not lacking:
        return None
    missing = f"there is no usable control group for {', '.join(lacking)}"
    advice = "start the service where it may create them (docs/launchers.md), or give the site another discipline"
    return f"jobs cannot get fractions of its nodes: {missing}; {advice}"


def unconfined(groups: Mapping[str, str], *, cores: bool, gpus: bool) -> str | None:
    """Return a warning if the kernel does not enforce all of the cores, memory and GPUs that a job gets, or None.

    Parameters
    ----------
    groups : mapping from str to str
        The control groups, one per controller.
    cores, gpus : bool
        Whether jobs are bound to cores, and whether the machine has device files of GPUs.

    Examples
    --------
    >>> unconfined({"memory": "/m"}, cores=True, gpus=False)
    'what jobs get is only advisory without a usable control group for cpuset; see docs/security.md'
    """
    needed = ["memory", *["cpuset"] * cores, *["devices"] * gpus]
    # Only root may deny devices.
    lacking = [name for name in needed if name not in groups or (name == "devices" and os.geteuid() != 0)]
    if not lacking:
        return None
    return (
        f"what jobs get is only advisory without a usable control group for {', '.join(lacking)}; see docs/security.md"
    )


def group_name(folder: Path) -> str:
    """Return the name of a node task's group, which differs between the runners on a machine."""
    return f"{zlib.crc32(os.fsencode(folder.parent)):08x}-{folder.name}"


def mounted(root: str = "/proc/self") -> dict[str, tuple[Path, bool]]:
    """Return the folder of a process's group for each controller, and whether version 2 provides the controller.

    ``root`` is the process's folder in /proc.
    """
    own: dict[str, str] = {}
    for line in map(os.fsdecode, Path(root, "cgroup").read_bytes().splitlines()):
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(",") if controllers else [UNIFIED], path)
    groups: dict[str, tuple[Path, bool]] = {}
    for line in map(os.fsdecode, Path(root, "mountinfo").read_bytes().splitlines()):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        inside, mount = before.split(" ")[3:5]
        if kind == "cgroup2" and UNIFIED in own:
            folder = _below(mount, inside, own[UNIFIED])
            groups[UNIFIED] = folder, True
            with contextlib.suppress(OSError):
                names = (folder / "cgroup.controllers").read_text(encoding="ascii").split()
                groups |= {name: (folder, True) for name in names if name in (*CONTROLLERS, *CONFINING)}
        elif kind == "cgroup":
            for name in options.split(" ")[-1].split(","):
                if name in (*CONTROLLERS, *CONFINING, FREEZER) and name in own:
                    groups.setdefault(name, (_below(mount, inside, own[name]), False))
    return groups


def around_of(controller: str, root: str = "/proc/self") -> dict[str, Path]:
    """Return the folder of a process's group for a controller, as expected by `ControlGroup`; empty if unknown."""
    with contextlib.suppress(OSError, ValueError):
        group = mounted(root).get(controller)
        return {} if group is None else {controller: group[0]}
    return {}


def memory_problem(nodes: Mapping[str, tuple[int, int | None]], machine_bytes: int | None = None) -> str | None:
    """Return an error message if the memory limits of a machine's nodes add up to more than its memory, or None.

    Parameters
    ----------
    nodes : mapping from str to tuple of int
        For each site or machine name, the number of nodes and a job's memory limit per node [bytes] (None: no limit).
    machine_bytes : int, optional
        The machine's memory; by default that of this machine.

    Examples
    --------
    >>> memory_problem({"north": (16, 4 << 30), "south": (4, None)}, 24 << 30)
    'the limits of north allow jobs 65,536 MiB, but this machine has 24,576 MiB; lower memory_mb or nodes'
    >>> memory_problem({"north": (4, 4 << 30)}, 24 << 30)
    """
    limited = {name: count * limit_bytes for name, (count, limit_bytes) in nodes.items() if limit_bytes is not None}
    machine_bytes = machine_memory_bytes() if machine_bytes is None else machine_bytes
    if sum(limited.values()) <= machine_bytes:
        return None
    what = f"the limits of {', '.join(limited)} allow jobs {sum(limited.values()) >> 20:,} MiB"
    return f"{what}, but this machine has {machine_bytes >> 20:,} MiB; lower memory_mb or nodes"


def machine_memory_bytes(root: str = "/proc/self") -> int:
    """Return this machine's memory [bytes], or the memory limit of this process's container if that is smaller."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in _groups_around("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # the file may contain "max"
                memory_bytes = min(memory_bytes, int((folder / name).read_text(encoding="ascii")))
    return memory_bytes


def machine_cpus(root: str = "/proc/self") -> float | None:
    """Return the limit of this process's container on CPU time [CPUs], or None."""
    limits = []
    for folder in _groups_around("cpu", root):
        with contextlib.suppress(OSError, ValueError):  # the file may contain "max"
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            limits.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")
            )
            limits += [int(quota) / int(period)] * (int(quota) > 0)
    return min(limits, default=None)


def _groups_around(controller: str, root: str) -> list[Path]:
    """Return the folder of a process's group for a controller, and the folders of the groups that contain the group."""
    folders = list(around_of(controller, root).values())
    while folders and (folders[-1].parent / "cgroup.procs").exists():
        folders.append(folders[-1].parent)
    return folders


def _below(mount: str, inside: str, path: str) -> Path:
    """Return the folder of the group ``path`` if the hierarchy's folder ``inside`` is mounted at ``mount``."""
    relative = os.path.relpath(path, inside)
    return Path(mount) if relative.startswith("..") else Path(mount, relative)


def open_cgroups(
    name: str,
    *,
    owner: tuple[int, int] | None = None,
    controllers: Collection[str] = CONTROLLERS,
) -> Cgroups:
    """Create a runner's parent group as a subgroup of this process's group, with the available controllers.

    Parameters
    ----------
    name : str
        Name of the group; if it exists, it is reused.
    owner : tuple of int, optional
        The uid and gid of another user who may create groups in it.
    controllers : collection of str
        The controllers needed. If empty, jobs can still be paused and killed.

    Returns
    -------
    Cgroups
        Excludes controllers that this process may not use.
    """
    folders: dict[str, Path] = {}
    for controller, (own, is_2) in mounted().items():
        if controller not in (*controllers, UNIFIED, FREEZER):
            continue
        folder = own / name
        with contextlib.suppress(OSError):
            if is_2 and controller != UNIFIED:
                _pass_on(own, controller)
            folder.mkdir(mode=0o755, exist_ok=True)
            if controller == "cpuset":
                _fill_cpuset(folder)
            if is_2 and controller != UNIFIED:
                _pass_on(folder, controller)
            if owner is not None:
                _hand_over(folder, owner)
            if os.access(folder, os.W_OK):
                folders[controller] = folder
    if UNIFIED in folders and FREEZER in folders:
        # Version 2 can pause, too. The folder cannot be removed if an earlier run without version 2 left groups in it.
        with contextlib.suppress(OSError):
            folders.pop(FREEZER).rmdir()
    return Cgroups(ControlGroup(folders))


def _fill_cpuset(folder: Path | None) -> None:
    """Give a new version 1 group the processors and memory nodes of its parent; until then it can have no processes."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if folder is not None and (folder / name).exists() and not (folder / name).read_text(encoding="ascii").strip():
            with contextlib.suppress(OSError):  # version 2 inherits them
                (folder / name).write_text((folder.parent / name).read_text(encoding="ascii"), encoding="ascii")


def _pass_on(folder: Path, controller: str) -> None:
    """Enable a version 2 controller for a group's subgroups; if necessary, move its processes into a subgroup first."""
    control = folder / "cgroup.subtree_control"
    if controller in control.read_text(encoding="ascii").split():
        return
    try:
        control.write_text(f"+{controller}", encoding="ascii")
    except OSError:
        subgroup = folder / "service"
        subgroup.mkdir(exist_ok=True)
        for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split():
            with contextlib.suppress(ProcessLookupError):
                (subgroup / "cgroup.procs").write_text(pid, encoding="ascii")
        control.write_text(f"+{controller}", encoding="ascii")


def _hand_over(folder: Path, owner: tuple[int, int]) -> None:
    for path in (folder, folder / "cgroup.procs", folder / "cgroup.subtree_control"):
        with contextlib.suppress(FileNotFoundError):
            os.chown(path, *owner)


if __name__ == "__main__":
    # The launcher runs this to create the group with a given name, owned by a uid and gid.
    every = (*CONTROLLERS, *CONFINING)
    groups = open_cgroups(sys.argv[1], owner=(int(sys.argv[2]), int(sys.argv[3])), controllers=every)
    print(json.dumps(groups.paths))
