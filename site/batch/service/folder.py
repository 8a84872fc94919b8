"""The folder that a site shares with the nodes of its batch system: what lies where in it, and whose that is.

A user of the cluster may have written in the folder of an account. So what the nodes have left there, of a job and of
its output, is read from files of that account alone, by no link.
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
from gridweave.site.batch.system import AllocationEnd
from gridweave.site.launch import Launch, Outcome, PieceState
from gridweave.site.machine.accounts import DeniedError, ordinary_account
from gridweave.site.machine.agent import OutputRead, written_path
from gridweave.site.machine.folders import (
    JOBS,
    LAUNCH,
    STATE,
    Key,
    check_way,
    piece_folder,
    piece_key,
    remove_folder,
    write_whole,
)
from gridweave.site.messages import RunEnded
from gridweave.site.nodes.source import PILOT

PRINTED_BYTES = 1 << 16
"""So much is read of what the script of an allocation has printed last."""

SECRET_BYTES = 32
"""Length of the secret of a site."""

MOST_ATTEMPTS = 1_000
"""So many attempts of a job are looked for on a node of a user's account, where the user may have made more folders."""

NODES = "nodes"
"""In the folder of an account: the folders of its nodes."""

REGISTERS = "kept"
"""In the folder of a site: for each of its journals a register of what jobs have left."""

_USERS, _OWNERS, _ADDRESS = "users", "owners", "address"


class SiteAddress(msgspec.Struct, frozen=True):
    """Where the site hears the processes on its nodes."""

    host: str
    port: int


class Owner(msgspec.Struct, frozen=True):
    """For whose job an allocation is, and as which account it was asked for; empty: as that of the site."""

    user: str = ""
    runs_as: str = ""


class Ticket(msgspec.Struct, frozen=True):
    """What an allocation is given, and nobody else sees.

    Attributes
    ----------
    base : str
        The folder below which its nodes work.
    door, key : bytes
        By the one the site hears a process at all, by the other it knows the allocation.
    runs_as : str
        As which account it is to run; empty: that of the site.
    """

    base: str
    door: bytes
    key: bytes
    runs_as: str = ""


class NodeLeft(NamedTuple):
    """The folder of a node: whose account it is of, its name there, and when it last changed (Unix time)."""

    runs_as: str
    name: str
    changed_ms: int

    @property
    def allocation(self) -> str:
        """The name of its allocation."""
        return self.name.rpartition(".")[0]

    @property
    def number(self) -> int:
        """Its number there."""
        return int(self.name.rpartition(".")[2])

    @property
    def folder(self) -> Path:
        """The folder, below that of the account."""
        return Path(NODES, self.name)


class Left(NamedTuple):
    """What allocations have left: the folders of their nodes, and the notes whose they are."""

    nodes: tuple[NodeLeft, ...]
    notes: tuple[str, ...]


class SharedFolder:
    """A folder that every node sees under the same path, and in which the account of the site alone can write.

    Nobody else can read what is in it but the address; users whose jobs run as themselves have folders of their own
    below it, which an operator makes, and which the group of the site may read.

    Parameters
    ----------
    path : pathlib.Path
    token : str
        By which the site knows its own allocations; another for each journal, as one that is begun anew counts its jobs
        from the start. Left out by who needs none of them.
    others : bool
        Whether jobs run as their users.

    Raises
    ------
    InputError
        If it cannot be made or written.
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
        """Return the secret of the site, of which those of its allocations are made; it is made the first time."""
        place = self.path / "secret"
        if not place.exists():
            write_whole(place, secrets.token_bytes(SECRET_BYTES))
        return place.read_bytes()

    @property
    def door(self) -> bytes:
        """What a process on a node has to know to be heard at all."""
        return hmac.digest(self.secret(), b"door", "sha256")

    def key(self, name: str) -> bytes:
        """Return by what the site knows an allocation, as the account for which it was asked for."""
        return hmac.digest(self.secret(), f"key {name} {self.owner(name).runs_as}".encode(), "sha256")

    def ticket(self, name: str) -> Ticket:
        """Return what an allocation is given."""
        runs_as = self.owner(name).runs_as
        return Ticket(str(self.base(runs_as)), self.door, self.key(name), runs_as)

    # -- whose is what ------------------------------------------------------------------------------------------------

    def note(self, name: str, owner: Owner) -> None:
        """Write down whose an allocation is that is asked for now."""
        write_whole(self.path / _OWNERS / name, msgspec.json.encode(owner))
        self._known[name] = owner

    def owner(self, name: str) -> Owner:
        """Return whose an allocation is; the site's own, if nothing else was written down."""
        if name not in self._known:
            found = Owner()
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                found = _read_owner(self.path / _OWNERS / name)
            self._known[name] = found
        return self._known[name]

    def job_of(self, name: str) -> int:
        """Return for which job an allocation is: its name ends with that, or 0 for a pilot, and a number of its own."""
        return int(name.removeprefix(self.prefix).partition("-")[0])

    def base(self, runs_as: str) -> Path:
        """Return the folder of an account, below which its nodes work."""
        return self.path / _USERS / runs_as if runs_as else self.path

    def problem_of(self, runs_as: str) -> str | None:
        """Return why no job can run as an account, in one line, or None; root makes the folder of one that has none."""
        try:
            account = ordinary_account(runs_as, f"runs_as {runs_as}", os.geteuid())
        except DeniedError as error:
            return str(error)
        if account.pw_name != runs_as:
            return f"runs_as {runs_as}: is another name of {account.pw_name}; write that"
        base, group = self.base(runs_as), os.getegid()
        if group in os.getgrouplist(runs_as, account.pw_gid):
            right = "have the site run with a group that is nobody else's"
            return f"runs_as {runs_as}: is in group {group} of the site, and could read the jobs of others; {right}"
        if os.geteuid() == 0 and not base.exists():
            base.mkdir()
            os.chown(base, account.pw_uid, group)
            base.chmod(0o2750)
        problem = _base_problem(base, account.pw_uid, group)
        right = f"as root: install -d -o {runs_as} -g {group} -m 2750 {base}"
        return f"runs_as {runs_as}: {base}{problem}; {right}" if problem else None

    # -- nodes --------------------------------------------------------------------------------------------------------

    def set_address(self, address: SiteAddress) -> None:
        """Tell the nodes where the site hears them now."""
        write_whole(self.path / _ADDRESS, msgspec.json.encode(address), mode=0o644)

    def node(self, name: str, number: int) -> Path:
        """Return the folder of a node of an allocation, for what it runs."""
        return node_folder(self.base(self.owner(name).runs_as), name, number)

    def piece(self, name: str, number: int, key: Key) -> OwnedPiece:
        """Return what a node of an allocation has of an attempt of a job."""
        runs_as = self.owner(name).runs_as
        base = self.base(runs_as)
        way = piece_folder(node_folder(base, name, number), key).relative_to(base).parts
        return OwnedPiece(base, way, _uid(runs_as))

    def log(self, name: str) -> Path:
        """Return the file for what the script of an allocation prints."""
        return _log(self.base(self.owner(name).runs_as), name)

    def printed(self, name: str) -> str:
        """Return the end of what the script of an allocation has printed; empty if that cannot be read."""
        runs_as, path = self.owner(name).runs_as, self.log(name)
        files = OwnedPiece(self.base(runs_as), (), _uid(runs_as))
        _, size = files.read(path, 0, 0) or (b"", 0)
        data, _ = files.read(path, max(0, size - PRINTED_BYTES), PRINTED_BYTES) or (b"", 0)
        return data.decode(errors="replace")

    def pieces_of(self, key: Key) -> list[OwnedPiece]:
        """Return what nodes have, or had, of an attempt of a job."""
        found = [*self._nodes_of(self.path, key[0]), *self._nodes_of(self.path, PILOT)]
        owned = (self.path / _OWNERS).glob(f"{self.prefix}{key[0]}-*")
        for account in sorted({self.owner(each.name).runs_as for each in owned}):
            found += self._nodes_of(self.base(account), key[0])
        pieces = [self.piece(name, int(number), key) for name, _, number in (each.rpartition(".") for each in found)]
        return [piece for piece in pieces if piece.folder.exists()]

    def _nodes_of(self, base: Path, job_id: int) -> list[str]:
        """Return the names of the folders of a job's nodes in that of an account, as it is; a user may leave others."""
        there = sorted(each.name for each in (base / NODES).glob(f"{self.prefix}{job_id}-*.*"))
        return [each for each in there if each.rpartition(".")[2].isdecimal()]

    # -- what is left --------------------------------------------------------------------------------------------------

    def left(self) -> Left:
        """Return what allocations have left, also those of earlier journals.

        A note that cannot be read is not among them, nor are those of an account whose folder cannot be looked into.
        """
        self._known.clear()  # whatever is asked for is read again
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
        """Return the nodes of an account that were asked for as that; a user may have made other folders there."""
        found: list[NodeLeft] = []
        try:
            entries = os.scandir(self.base(runs_as) / NODES)
        except FileNotFoundError:
            return found
        with entries:
            for entry in entries:
                allocation, _, number = entry.name.rpartition(".")
                is_own = number.isdecimal() and self.owner(allocation).runs_as == runs_as
                if is_own and entry.is_dir(follow_symlinks=False):
                    changed_s = entry.stat(follow_symlinks=False).st_mtime
                    found.append(NodeLeft(runs_as, entry.name, int(changed_s * 1000)))
        return found

    def keys_of(self, node: NodeLeft) -> tuple[Key, ...]:
        """Return the parts of jobs that a node has, by no link; a node of a user's account has one job's alone."""
        jobs = self.base(node.runs_as) / node.folder / JOBS
        if jobs.is_symlink():
            return ()
        found = []
        with contextlib.suppress(OSError), os.scandir(jobs) as entries:
            for entry in islice(entries, MOST_ATTEMPTS if node.runs_as else None):
                key = piece_key(Path(entry.path))
                is_its_own = key is not None and (not node.runs_as or key[0] == self.job_of(node.allocation))
                if key is not None and is_its_own and entry.is_dir(follow_symlinks=False):
                    found.append(key)
        return tuple(sorted(found))

    def forget_owners(self, left: Left, wanted: Collection[str]) -> None:
        """Remove the notes of allocations that are not wanted and had no node left."""
        with_nodes = {node.allocation for node in left.nodes}
        for name in left.notes:
            if name not in wanted and name not in with_nodes:
                (self.path / _OWNERS / name).unlink(missing_ok=True)
        self._known.clear()


def _read_owner(note: Path) -> Owner:
    return msgspec.json.decode(note.read_bytes(), type=Owner)


def _base_problem(base: Path, uid: int, group: int) -> str:
    """Return what is wrong with the folder of an account, to be read after its path; nothing if all is well."""
    try:
        found = base.lstat()
    except OSError as error:
        return f": {error.strerror}"
    mode = stat.S_IMODE(found.st_mode) & 0o7777
    whose = (stat.S_ISDIR(found.st_mode), found.st_uid, found.st_gid)
    if whose != (True, uid, group) or mode & 0o2057 != 0o2050 or mode & 0o700 != 0o700:
        return " must be a folder of theirs that the group of the site reads"
    return ""


def node_folder(base: Path, name: str, number: int) -> Path:
    """Return the folder of a node of an allocation in that of its account."""
    return base / NODES / f"{name}.{number}"


def _log(base: Path, name: str) -> Path:
    return base / f"{name}.log"


def read_address(path: Path) -> SiteAddress:
    """Return where the site of a folder hears its nodes; OSError if it was never there."""
    return msgspec.json.decode((path / _ADDRESS).read_bytes(), type=SiteAddress)


def remove_left(base: Path, paths: Iterable[str]) -> None:
    """Remove folders of an account's nodes, or of parts of jobs there, and what the scripts of the nodes printed."""
    for path in paths:
        remove_folder(base / path)
        name = Path(path).relative_to(NODES).parts[0].rpartition(".")[0]
        if not any((base / NODES).glob(f"{name}.*")):
            _log(base, name).unlink(missing_ok=True)


def _uid(runs_as: str) -> int:
    """Return the number of an account, -1 if there is none of that name any more."""
    try:
        return pwd.getpwnam(runs_as).pw_uid if runs_as else os.geteuid()
    except KeyError:
        return -1


MOST_BYTES = 16 << 20
"""So much of a record is read at most: what a job was to run, and how that ended."""

T = TypeVar("T")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OwnedPiece(msgspec.Struct, frozen=True):
    """A part of a job in the folder of an account.

    Attributes
    ----------
    base : pathlib.Path
        The folder of the account; the way to it is the site's own.
    way : tuple of str
        The folders from there to that of the part, which the account may have put there.
    uid : int
        The account; what belongs to anybody else is not read.
    """

    base: Path
    way: tuple[str, ...]
    uid: int

    @property
    def folder(self) -> Path:
        """Where the part is."""
        return self.base.joinpath(*self.way)

    def read(self, path: Path, offset: int = 0, limit: int = MOST_BYTES) -> tuple[bytes, int] | None:
        """Return a part of a file of the part, and how long it is; None if there is none that may be read."""
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
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid != self.uid:
                return None
            return os.pread(file, limit, offset), found.st_size
        finally:
            os.close(file)

    def launch(self) -> Launch | None:
        """Return what was to run; None if that cannot be read."""
        return self._record(LAUNCH, Launch)

    def state(self) -> PieceState | None:
        """Return what is known of how it runs; None if that cannot be read."""
        return self._record(STATE, PieceState)

    def _record(self, name: str, kind: type[T]) -> T | None:
        found = self.read(self.folder / name)
        try:
            return None if found is None else msgspec.msgpack.decode(found[0], type=kind)
        except msgspec.MsgspecError:
            return None


_OUTCOMES: dict[AllocationEnd, Outcome] = {"cancelled": "failed", "limit": "limit", "memory": "failed"}
"""How a job counts whose nodes were taken; it is lost, and may be run again, if nobody in it is to blame."""


def end_of(piece: OwnedPiece, machine: str, key: Key, end: AllocationEnd, reason: str) -> RunEnded:
    """Return how a part of a job ended on a node that was given back or taken.

    Parameters
    ----------
    piece : OwnedPiece
        What the node has left of it.
    end : AllocationEnd
        How its allocation ended, which counts if the part had not ended by itself.
    reason : str
        That in plain words.
    """
    state = piece.state()
    if state is None:
        return RunEnded(machine, *key, _OUTCOMES.get(end, "lost"), reason, has_run=False)
    if state.phase == "ended" and state.outcome in ("finished", "failed", "limit"):
        return RunEnded(machine, *key, state.outcome, state.reason, state.ranks, state.usage)
    has_run = state.started_ms is not None
    return RunEnded(machine, *key, _OUTCOMES.get(end, "lost"), reason, state.ranks, state.usage, has_run)


def output_of(
    folder: SharedFolder, job_id: int, attempt: int, rank: int, stream: str, offset: int, limit: int
) -> OutputRead:
    """Return a part of the output of a rank, as `AgentDriver.part`, of whichever node has it."""
    for piece in folder.pieces_of((job_id, attempt)):
        launch = piece.launch()
        if launch is None or all(each.rank != rank for each in launch.ranks):
            continue
        data, size = piece.read(written_path(piece.folder, piece.folder, rank, stream), offset, limit) or (b"", 0)
        return OutputRead(is_here=True, data=data, size=size)
    return OutputRead(is_here=False, data=b"", size=0)
