"""The folder that a site shares with its batch system's nodes: the layout and the ownership of files.

A user can write anything to the folder of the user's account. The site therefore reads jobs and output there only from
files that belong to that account, and follows no links.
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
"""Number of bytes to read from the end of a script's output."""

SECRET_BYTES = 32
"""Length of a site's secret, in bytes."""

MOST_ATTEMPTS = 1_000
"""Maximum number of job attempts read per node of a user's account, since the user may have created extra folders."""

NODES = "nodes"
"""Subfolder of an account's folder, with a folder per node."""

REGISTERS = "kept"
"""Subfolder of a site's folder, with a register of kept output per journal."""

_USERS, _OWNERS, _ADDRESS = "users", "owners", "address"


class SiteAddress(msgspec.Struct, frozen=True):
    """The address at which the site accepts connections from its nodes."""

    host: str
    port: int


class Owner(msgspec.Struct, frozen=True):
    """The user whose job has an allocation, and the Unix account that requested the allocation; empty: the site's."""

    user: str = ""
    runs_as: str = ""


class Ticket(msgspec.Struct, frozen=True):
    """What the nodes of an allocation need to know: secrets, folder and account.

    Attributes
    ----------
    base : str
        The account's folder, in which the nodes work.
    door, key : bytes
        Secrets: ``door`` lets a process call the site; ``key`` proves that the process belongs to the allocation.
    runs_as : str
        The Unix account that must run the nodes' processes; empty: the site's account.
    """

    base: str
    door: bytes
    key: bytes
    runs_as: str = ""


class NodeLeft(NamedTuple):
    """A node's folder: the account, the folder's name, and when it was last changed (Unix time)."""

    runs_as: str
    name: str
    changed_ms: int

    @property
    def allocation(self) -> str:
        """Name of the node's allocation."""
        return self.name.rpartition(".")[0]

    @property
    def number(self) -> int:
        """The node's index in its allocation, counting from 0."""
        return int(self.name.rpartition(".")[2])

    @property
    def folder(self) -> Path:
        """Path of the folder, relative to the account's folder."""
        return Path(NODES, self.name)


class Left(NamedTuple):
    """Files left behind by allocations: node folders, and the names of the notes that record allocations' owners."""

    nodes: tuple[NodeLeft, ...]
    notes: tuple[str, ...]


class SharedFolder:
    """A folder that every node sees under the same path, and that only the site's account can write.

    Other accounts can read only the site's address in it. Users whose jobs run under their own accounts have
    subfolders, which an operator creates, and which the site's group can read.

    Parameters
    ----------
    path : pathlib.Path
    token : str
        Distinguishes the site's allocations from all others. Each journal has its own token, because a new journal
        numbers its jobs from the start again. May be empty if no allocations are involved.
    others : bool
        Whether jobs run under their users' accounts.

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
        """Return the site's secret, from which its keys are derived; the first call creates the secret."""
        place = self.path / "secret"
        if not place.exists():
            write_whole(place, secrets.token_bytes(SECRET_BYTES))
        return place.read_bytes()

    @property
    def door(self) -> bytes:
        """The secret that a process on a node must present, or else the site does not answer it."""
        return hmac.digest(self.secret(), b"door", "sha256")

    def key(self, name: str) -> bytes:
        """Return the key of an allocation; the key is valid only for the account that requested the allocation."""
        return hmac.digest(self.secret(), f"key {name} {self.owner(name).runs_as}".encode(), "sha256")

    def ticket(self, name: str) -> Ticket:
        """Return the ticket for an allocation."""
        runs_as = self.owner(name).runs_as
        return Ticket(str(self.base(runs_as)), self.door, self.key(name), runs_as)

    # -- owners -------------------------------------------------------------------------------------------------------

    def note(self, name: str, owner: Owner) -> None:
        """Record the owner of an allocation; called before the allocation is requested."""
        write_whole(self.path / _OWNERS / name, msgspec.json.encode(owner))
        self._known[name] = owner

    def owner(self, name: str) -> Owner:
        """Return the owner of an allocation; the site itself if no valid owner is recorded."""
        if name not in self._known:
            owner = Owner()
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                owner = _read_owner(self.path / _OWNERS / name)
            self._known[name] = owner
        return self._known[name]

    def job_of(self, name: str) -> int:
        """Return the job id in the name of an allocation; 0 for a pilot."""
        return int(name.removeprefix(self.prefix).partition("-")[0])

    def base(self, runs_as: str) -> Path:
        """Return the folder in which an account's nodes work; for an empty `runs_as`, the site's folder."""
        return self.path / _USERS / runs_as if runs_as else self.path

    def problem_of(self, runs_as: str) -> str | None:
        """Return the one-line reason why no job can run as an account, or None; as root, create a missing folder."""
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
        """Publish the address at which nodes can reach the site."""
        write_whole(self.path / _ADDRESS, msgspec.json.encode(address), mode=0o644)

    def node(self, name: str, number: int) -> Path:
        """Return the folder of a node in an allocation."""
        return node_folder(self.base(self.owner(name).runs_as), name, number)

    def node_task(self, name: str, number: int, key: Key) -> OwnedNodeTask:
        """Return the node task of a job attempt on a node in an allocation."""
        runs_as = self.owner(name).runs_as
        base = self.base(runs_as)
        way = task_folder(node_folder(base, name, number), key).relative_to(base).parts
        return OwnedNodeTask(base, way, _uid(runs_as))

    def log(self, name: str) -> Path:
        """Return the path of the file for the output of an allocation's script."""
        return _log(self.base(self.owner(name).runs_as), name)

    def printed(self, name: str) -> str:
        """Return up to `PRINTED_BYTES` from the end of the output of an allocation's script; empty if unreadable."""
        runs_as, path = self.owner(name).runs_as, self.log(name)
        files = OwnedNodeTask(self.base(runs_as), (), _uid(runs_as))
        _, size = files.read(path, 0, 0) or (b"", 0)
        data, _ = files.read(path, max(0, size - PRINTED_BYTES), PRINTED_BYTES) or (b"", 0)
        return data.decode(errors="replace")

    def tasks_of(self, key: Key) -> list[OwnedNodeTask]:
        """Return the node tasks of a job attempt whose folders still exist."""
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
        """Return the names of node folders of a job in an account's folder; skip folders that a user created."""
        there = sorted(entry.name for entry in (base / NODES).glob(f"{self.prefix}{job_id}-*.*"))
        return [entry for entry in there if entry.rpartition(".")[2].isdecimal()]

    # -- what is left --------------------------------------------------------------------------------------------------

    def left(self) -> Left:
        """Return the node folders and owner notes that exist, including those from earlier journals.

        Unreadable notes are omitted, and so are all notes and nodes of an account whose folder cannot be read.
        """
        self._known.clear()  # owners are read again when they are needed
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
        """Return the folders of nodes requested by an account; skip folders that a user created."""
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
        """Return the job attempts on a node, ignoring links; under a user's account, only those of the node's job."""
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
        """Remove the owner notes of allocations that are not needed and have no node folders left."""
        with_nodes = {node.allocation for node in left.nodes}
        for name in left.notes:
            if name not in needed and name not in with_nodes:
                (self.path / _OWNERS / name).unlink(missing_ok=True)
        self._known.clear()


def _read_owner(note: Path) -> Owner:
    return msgspec.json.decode(note.read_bytes(), type=Owner)


def _base_problem(base: Path, uid: int, group: int) -> str:
    """Return what is wrong with an account's folder, as text to print after the path; empty if the folder is valid."""
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
    """Return the folder of a node in an allocation, within the account's folder `base`."""
    return base / NODES / f"{name}.{number}"


def _log(base: Path, name: str) -> Path:
    return base / f"{name}.log"


def read_address(path: Path) -> SiteAddress:
    """Read a site's address from its folder; raise OSError if the site has never published it."""
    return msgspec.json.decode((path / _ADDRESS).read_bytes(), type=SiteAddress)


def remove_left(base: Path, paths: Iterable[str]) -> None:
    """Remove folders of nodes or of jobs on nodes, and the script output of allocations with no node folder left."""
    for path in paths:
        remove_folder(base / path)
        name = Path(path).relative_to(NODES).parts[0].rpartition(".")[0]
        if not any((base / NODES).glob(f"{name}.*")):
            _log(base, name).unlink(missing_ok=True)


def _uid(runs_as: str) -> int:
    """Return an account's user id; -1 if the account no longer exists."""
    try:
        return pwd.getpwnam(runs_as).pw_uid if runs_as else os.geteuid()
    except KeyError:
        return -1


MOST_BYTES = 16 << 20
"""Maximum number of bytes read from a record, i.e. the launch or the state of a node task."""

T = TypeVar("T")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OwnedNodeTask(msgspec.Struct, frozen=True):
    """A node task in an account's folder.

    Attributes
    ----------
    base : pathlib.Path
        The account's folder. The folders above it belong to the site.
    way : tuple of str
        The path from `base` to the node task, as folder names; the account may have created these folders.
    uid : int
        The account's user id; files of other accounts are not read.
    """

    base: Path
    way: tuple[str, ...]
    uid: int

    @property
    def folder(self) -> Path:
        """Path of the node task's folder."""
        return self.base.joinpath(*self.way)

    def read(self, path: Path, offset: int = 0, limit: int = MOST_BYTES) -> tuple[bytes, int] | None:
        """Return a range of a file's bytes, and the file's size; None if the file cannot or must not be read."""
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
        """Return the node task's launch record; None if it cannot be read."""
        return self._record(LAUNCH, Launch)

    def state(self) -> NodeTaskState | None:
        """Return the node task's recorded state; None if it cannot be read."""
        return self._record(STATE, NodeTaskState)

    def _record(self, name: str, kind: type[T]) -> T | None:
        content = self.read(self.folder / name)
        try:
            return None if content is None else msgspec.msgpack.decode(content[0], type=kind)
        except msgspec.MsgspecError:
            return None


_OUTCOMES: dict[AllocationEnd, Outcome] = {"cancelled": "failed", "limit": "limit", "memory": "failed"}
"""Outcomes of jobs, by how their allocation ended; after any other end, a job is lost and may run again."""


def end_of(node_task: OwnedNodeTask, machine: str, key: Key, end: AllocationEnd, reason: str) -> RunEnded:
    """Return a report of how a node task ended, for a node that was given back or taken away.

    Parameters
    ----------
    node_task : OwnedNodeTask
        The node task.
    end : AllocationEnd
        How the allocation ended; determines the outcome if the node task had not ended by itself.
    reason : str
        Why the allocation ended, for people to read.
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
    """Return a range of a rank's output, like `AgentDriver.part`, from the folder of the node that ran the rank."""
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
