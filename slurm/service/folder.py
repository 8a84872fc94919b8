"""The folder that a site shares with the nodes of its batch system: its layout, and the owners of its parts.

A user of the cluster may have written to the folder of an account. So the site reads jobs and their output there only
from files that belong to the account, and follows no links.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pwd
import secrets
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from gridweave.errors import InputError
from gridweave.site.launch import Launch, NodeTaskState, Outcome
from gridweave.site.machine.accounts import DeniedError, ordinary_account
from gridweave.site.machine.agent import OutputRead, written_path
from gridweave.site.machine.folders import (
    JOBS,
    LAUNCH,
    STATE,
    Key,
    check_way,
    remove_folder,
    task_folder,
    task_key,
    write_whole,
)
from gridweave.site.messages import RunEnded
from gridweave.site.nodes.source import PILOT
from gridweave.slurm.system import AllocationEnd

PRINTED_BYTES = 1 << 16
"""Number of bytes that are read from the end of a script's output."""

SECRET_BYTES = 32
"""Length of the secret of a site."""

MOST_ATTEMPTS = 1_000
"""The most attempts of a job that are read on a node of a user's account: the user may have created more folders."""

NODES = "nodes"
"""Subfolder of an account's folder, with a folder for each of its nodes."""

REGISTERS = "kept"
"""Subfolder of a site's folder, with a register of kept output for each of its journals."""

_USERS, _OWNERS, _ADDRESS = "users", "owners", "address"


class SiteAddress(msgspec.Struct, frozen=True):
    """Where the site listens for its nodes."""

    host: str
    port: int


class Owner(msgspec.Struct, frozen=True):
    """The user of an allocation's job, and the Unix account that requested it; empty: the site's."""

    user: str = ""
    runs_as: str = ""


class Ticket(msgspec.Struct, frozen=True):
    """The secrets of an allocation, with its folder and its account.

    Attributes
    ----------
    base : str
        The folder of the account, below which the nodes work.
    door, key : bytes
        ``door`` admits a process to the site; ``key`` proves that it belongs to the allocation.
    runs_as : str
        The Unix account that must run it; empty: the site's.
    """

    base: str
    door: bytes
    key: bytes
    runs_as: str = ""


class NodeLeft(NamedTuple):
    """The folder of a node: its account, its name, and when it last changed (Unix time)."""

    runs_as: str
    name: str
    changed_ms: int

    @property
    def allocation(self) -> str:
        """The name of the node's allocation."""
        return self.name.rpartition(".")[0]

    @property
    def number(self) -> int:
        """The number of the node in its allocation."""
        return int(self.name.rpartition(".")[2])

    @property
    def folder(self) -> Path:
        """The folder, relative to that of the account."""
        return Path(NODES, self.name)


class Left(NamedTuple):
    """What allocations have left: the folders of their nodes, and the names of the notes on their owners."""

    nodes: tuple[NodeLeft, ...]
    notes: tuple[str, ...]


class SharedFolder:
    """A folder that every node sees under the same path, and that only the account of the site can write.

    Other accounts can read only the address in it. Users whose jobs run under their own accounts have folders of their
    own below it, which an operator creates, and which the group of the site may read.

    Parameters
    ----------
    path : pathlib.Path
    token : str
        Distinguishes the site's allocations from all others. Each journal has another token, since a new journal
        numbers its jobs from the start. May be empty if no allocations are involved.
    others : bool
        Whether jobs run under the accounts of their users.

    Raises
    ------
    InputError
        If the folder cannot be created or written.
    """

    def __init__(self, path: Path, token: str = "", *, others: bool = False) -> None:
        self.path, self.prefix = path, f"gw-{token}-"
        self._known: dict[str, Owner] = {}
        try:
            for name, mode in ((NODES, 0o700), (_OWNERS, 0o700), (REGISTERS, 0o700), (_USERS, 0o711)):
                (path / name).mkdir(parents=True, exist_ok=True)
                (path / name).chmod(mode)
            path.chmod(0o711 if others else 0o700)
            if others:
                check_way(path)
        except OSError as error:
            right = "name a folder that you can write to, and that every node of the cluster sees"
            raise InputError(f"{path}: {error.strerror}; {right}") from error

    # -- secrets ------------------------------------------------------------------------------------------------------

    def secret(self) -> bytes:
        """Return the secret of the site, from which its keys are derived; the first call creates it."""
        place = self.path / "secret"
        if not place.exists():
            write_whole(place, secrets.token_bytes(SECRET_BYTES))
        return place.read_bytes()

    @property
    def door(self) -> bytes:
        """The secret that a process on a node must present to be answered at all."""
        return hmac.digest(self.secret(), b"door", "sha256")

    def key(self, name: str) -> bytes:
        """Return the key of an allocation, valid only under the account that requested it."""
        return hmac.digest(self.secret(), f"key {name} {self.owner(name).runs_as}".encode(), "sha256")

    def ticket(self, name: str) -> Ticket:
        """Return the ticket of an allocation."""
        runs_as = self.owner(name).runs_as
        return Ticket(str(self.base(runs_as)), self.door, self.key(name), runs_as)

    # -- owners -------------------------------------------------------------------------------------------------------

    def note(self, name: str, owner: Owner) -> None:
        """Record the owner of an allocation, before it is requested."""
        write_whole(self.path / _OWNERS / name, msgspec.json.encode(owner))
        self._known[name] = owner

    def owner(self, name: str) -> Owner:
        """Return the owner of an allocation; the site itself if there is no valid note."""
        if name not in self._known:
            owner = Owner()
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                owner = _read_owner(self.path / _OWNERS / name)
            self._known[name] = owner
        return self._known[name]

    def job_of(self, name: str) -> int:
        """Return the job of an allocation, or 0 for a pilot; both are part of the name."""
        return int(name.removeprefix(self.prefix).partition("-")[0])

    def base(self, runs_as: str) -> Path:
        """Return the folder of an account, below which its nodes work; empty: the site's."""
        return self.path / _USERS / runs_as if runs_as else self.path

    def problem_of(self, runs_as: str) -> str | None:
        """Return why no job can run as an account, in one line, or None; root creates a missing folder."""
        try:
            account = ordinary_account(runs_as, f"runs_as {runs_as}", os.geteuid())
        except DeniedError as error:
            return str(error)
        if account.pw_name != runs_as:
            return f"runs_as {runs_as}: is another name of {account.pw_name}; use {account.pw_name}"
        base, group = self.base(runs_as), os.getegid()
        if group in os.getgrouplist(runs_as, account.pw_gid):
            right = "run the site with a group of its own"
            return f"runs_as {runs_as}: is in group {group} of the site, so it could read jobs of other users; {right}"
        if os.geteuid() == 0 and not base.exists():
            base.mkdir()
            os.chown(base, account.pw_uid, group)
            base.chmod(0o2750)
        problem = _base_problem(base, account.pw_uid, group)
        right = f"as root: install -d -o {runs_as} -g {group} -m 2750 {base}"
        return f"runs_as {runs_as}: {base}{problem}; {right}" if problem else None

    # -- nodes --------------------------------------------------------------------------------------------------------

    def set_address(self, address: SiteAddress) -> None:
        """Publish the address where the site listens for its nodes."""
        write_whole(self.path / _ADDRESS, msgspec.json.encode(address), mode=0o644)

    def node(self, name: str, number: int) -> Path:
        """Return the folder of a node of an allocation."""
        return node_folder(self.base(self.owner(name).runs_as), name, number)

    def node_task(self, name: str, number: int, key: Key) -> OwnedNodeTask:
        """Return a node task: an attempt of a job on a node of an allocation."""
        runs_as = self.owner(name).runs_as
        base = self.base(runs_as)
        way = task_folder(node_folder(base, name, number), key).relative_to(base).parts
        return OwnedNodeTask(base, way, _uid(runs_as))

    def log(self, name: str) -> Path:
        """Return the file for the output of an allocation's script."""
        return _log(self.base(self.owner(name).runs_as), name)

    def printed(self, name: str) -> str:
        """Return the last `PRINTED_BYTES` of the output of an allocation's script; empty if unreadable."""
        runs_as, path = self.owner(name).runs_as, self.log(name)
        files = OwnedNodeTask(self.base(runs_as), (), _uid(runs_as))
        _, size = files.read(path, 0, 0) or (b"", 0)
        data, _ = files.read(path, max(0, size - PRINTED_BYTES), PRINTED_BYTES) or (b"", 0)
        return data.decode(errors="replace")

    def tasks_of(self, key: Key) -> list[OwnedNodeTask]:
        """Return the node tasks of an attempt of a job that still have a folder."""
        folder_names = [*self._nodes_of(self.path, key[0]), *self._nodes_of(self.path, PILOT)]
        owned = (self.path / _OWNERS).glob(f"{self.prefix}{key[0]}-*")
        for account in sorted({self.owner(entry.name).runs_as for entry in owned}):
            folder_names += self._nodes_of(self.base(account), key[0])
        node_tasks = [
            self.node_task(name, int(number), key)
            for name, _, number in (entry.rpartition(".") for entry in folder_names)
        ]
        return [node_task for node_task in node_tasks if node_task.folder.exists()]

    def _nodes_of(self, base: Path, job_id: int) -> list[str]:
        """Return the folder names of a job's nodes in an account's folder; skip others that a user may have made."""
        there = sorted(entry.name for entry in (base / NODES).glob(f"{self.prefix}{job_id}-*.*"))
        return [entry for entry in there if entry.rpartition(".")[2].isdecimal()]

    # -- what is left --------------------------------------------------------------------------------------------------

    def left(self) -> Left:
        """Return what allocations have left, including those of earlier journals.

        Unreadable notes are left out, and so are all notes and nodes of an account whose folder cannot be read.
        """
        self._known.clear()  # owners are read again when needed
        owners: dict[str, list[str]] = defaultdict(list, {"": []})
        for note in sorted((self.path / _OWNERS).iterdir()):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                owners[_read_owner(note).runs_as].append(note.name)
        nodes, notes = self._nodes_left(""), owners.pop("")
        for account, names in sorted(owners.items()):
            with contextlib.suppress(OSError):
                nodes += self._nodes_left(account)
                notes += names
        return Left(tuple(nodes), tuple(notes))

    def _nodes_left(self, runs_as: str) -> list[NodeLeft]:
        """Return the nodes requested as this account; skip other folders that a user may have made."""
        nodes: list[NodeLeft] = []
        try:
            entries = os.scandir(self.base(runs_as) / NODES)
        except FileNotFoundError:
            return nodes
        with entries:
            for entry in entries:
                allocation, _, number = entry.name.rpartition(".")
                is_own = number.isdecimal() and self.owner(allocation).runs_as == runs_as
                if is_own and entry.is_dir(follow_symlinks=False):
                    changed_s = entry.stat(follow_symlinks=False).st_mtime
                    nodes.append(NodeLeft(runs_as, entry.name, int(changed_s * 1000)))
        return nodes

    def keys_of(self, node: NodeLeft) -> tuple[Key, ...]:
        """Return the job attempts on a node, without links; on a node of a user's account only those of its own job."""
        jobs = self.base(node.runs_as) / node.folder / JOBS
        if jobs.is_symlink():
            return ()
        keys = []
        with contextlib.suppress(OSError), os.scandir(jobs) as entries:
            for entry in islice(entries, MOST_ATTEMPTS if node.runs_as else None):
                key = task_key(Path(entry.path))
                is_its_own = key is not None and (not node.runs_as or key[0] == self.job_of(node.allocation))
                if key is not None and is_its_own and entry.is_dir(follow_symlinks=False):
                    keys.append(key)
        return tuple(sorted(keys))

    def forget_owners(self, left: Left, needed: Collection[str]) -> None:
        """Remove the notes of allocations that are not needed and have no folder of a node left."""
        with_nodes = {node.allocation for node in left.nodes}
        for name in left.notes:
            if name not in needed and name not in with_nodes:
                (self.path / _OWNERS / name).unlink(missing_ok=True)
        self._known.clear()


def _read_owner(note: Path) -> Owner:
    return msgspec.json.decode(note.read_bytes(), type=Owner)


def _base_problem(base: Path, uid: int, group: int) -> str:
    """Return what is wrong with the folder of an account, as text that follows its path; empty if nothing is."""
    try:
        status = base.lstat()
    except OSError as error:
        return f": {error.strerror}"
    mode = stat.S_IMODE(status.st_mode) & 0o7777
    whose = (stat.S_ISDIR(status.st_mode), status.st_uid, status.st_gid)
    if whose != (True, uid, group) or mode & 0o2057 != 0o2050 or mode & 0o700 != 0o700:
        return " must be a folder of this account that the group of the site can read"
    return ""


def node_folder(base: Path, name: str, number: int) -> Path:
    """Return the folder of a node of an allocation, below the folder of its account."""
    return base / NODES / f"{name}.{number}"


def _log(base: Path, name: str) -> Path:
    return base / f"{name}.log"


def read_address(path: Path) -> SiteAddress:
    """Return the address where the site of a folder listens; OSError if the site has never listened."""
    return msgspec.json.decode((path / _ADDRESS).read_bytes(), type=SiteAddress)


def remove_left(base: Path, paths: Iterable[str]) -> None:
    """Remove folders of nodes or of single jobs there, and the output of scripts whose last node is removed."""
    for path in paths:
        remove_folder(base / path)
        name = Path(path).relative_to(NODES).parts[0].rpartition(".")[0]
        if not any((base / NODES).glob(f"{name}.*")):
            _log(base, name).unlink(missing_ok=True)


def _uid(runs_as: str) -> int:
    """Return the number of an account, -1 if the account no longer exists."""
    try:
        return pwd.getpwnam(runs_as).pw_uid if runs_as else os.geteuid()
    except KeyError:
        return -1


MOST_BYTES = 16 << 20
"""The most that is read of a record: the launch of a node task, or its state."""

T = TypeVar("T")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OwnedNodeTask(msgspec.Struct, frozen=True):
    """A node task in the folder of an account.

    Attributes
    ----------
    base : pathlib.Path
        The folder of the account. The path to it belongs to the site.
    way : tuple of str
        The folders from there to the node task, which the account may have created.
    uid : int
        Number of the account; files of any other account are not read.
    """

    base: Path
    way: tuple[str, ...]
    uid: int

    @property
    def folder(self) -> Path:
        """The folder of the node task."""
        return self.base.joinpath(*self.way)

    def read(self, path: Path, offset: int = 0, limit: int = MOST_BYTES) -> tuple[bytes, int] | None:
        """Return a part of a file of the node task, and the size of the file; None if it may not be read."""
        try:
            handle = os.open(self.base, _FOLDER)
            for name in path.relative_to(self.base).parts[:-1]:
                inner = handle
                try:
                    handle = os.open(name, _FOLDER, dir_fd=inner)
                finally:
                    os.close(inner)
        except OSError:
            return None
        try:
            file = os.open(path.name, _FILE, dir_fd=handle)
        except OSError:
            return None
        finally:
            os.close(handle)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid != self.uid:
                return None
            return os.pread(file, limit, offset), status.st_size
        finally:
            os.close(file)

    def launch(self) -> Launch | None:
        """Return the launch of the node task; None if it cannot be read."""
        return self._record(LAUNCH, Launch)

    def state(self) -> NodeTaskState | None:
        """Return the recorded state of the node task; None if it cannot be read."""
        return self._record(STATE, NodeTaskState)

    def _record(self, name: str, kind: type[T]) -> T | None:
        content = self.read(self.folder / name)
        try:
            return None if content is None else msgspec.msgpack.decode(content[0], type=kind)
        except msgspec.MsgspecError:
            return None


_OUTCOMES: dict[AllocationEnd, Outcome] = {"cancelled": "failed", "limit": "limit", "memory": "failed"}
"""Outcomes of jobs whose nodes were taken; all others are lost and may run again, as the job is not to blame."""


def end_of(node_task: OwnedNodeTask, machine: str, key: Key, end: AllocationEnd, reason: str) -> RunEnded:
    """Return the report of how a node task ended on a node that was given back or taken.

    Parameters
    ----------
    node_task : OwnedNodeTask
        The node task.
    end : AllocationEnd
        How the allocation ended; it decides if the node task had not ended by itself.
    reason : str
        Why the allocation ended, in plain words.
    """
    state = node_task.state()
    if state is None:
        return RunEnded(machine, *key, _OUTCOMES.get(end, "lost"), reason, has_run=False)
    if state.phase == "ended" and state.outcome in ("finished", "failed", "limit"):
        return RunEnded(machine, *key, state.outcome, state.reason, state.ranks, state.usage)
    has_run = state.started_ms is not None
    return RunEnded(machine, *key, _OUTCOMES.get(end, "lost"), reason, state.ranks, state.usage, has_run)


def output_of(
    folder: SharedFolder, job_id: int, attempt: int, rank: int, stream: str, offset: int, limit: int
) -> OutputRead:
    """Return a part of a rank's output, like `AgentDriver.part`, from the node that has it."""
    for node_task in folder.tasks_of((job_id, attempt)):
        launch = node_task.launch()
        if launch is None or all(launch_rank.rank != rank for launch_rank in launch.ranks):
            continue
        data, size = node_task.read(written_path(node_task.folder, node_task.folder, rank, stream), offset, limit) or (
            b"",
            0,
        )
        return OutputRead(is_here=True, data=data, size=size)
    return OutputRead(is_here=False, data=b"", size=0)
