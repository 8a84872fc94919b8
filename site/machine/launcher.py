"""The launcher: the one part that runs as root. It starts ranks as other Unix users.

``python -P -m gridweave.site.machine.launcher FILE`` listens at a socket for the service of this machine; what may be
in FILE is in docs/launchers.md. It reads that file, the kernel's, and those of the system that say which users there
are; nothing that a user can write. What is to be executed it passes on unread, to the process that has become the user.

It keeps some keepers waiting that it has made ahead. Each serves one piece after the other: the fork of a Python costs
several times what is left to do for a piece.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import pwd
import re
import resource
import selectors
import signal
import socket
import stat
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from gridweave.site.machine.accounts import DeniedError, Settings, read_settings
from gridweave.site.machine.cgroups import ControlGroup
from gridweave.site.machine.processes import (
    CLONE_NEWIPC,
    PR_SET_PDEATHSIG,
    be_first_to_go,
    be_last_to_go,
    become_subreaper,
    call_kernel,
    continue_descendants,
    control_process,
    die_with_parent,
    process_stat,
    signal_descendants,
    signal_pipe,
    stop_descendants,
    unshare,
)
from gridweave.site.machine.rank import NOT_STARTED, become_rank_of, forget_parent, tell_problem
from gridweave.site.machine.usage import reap

_KILL_AGAIN_S = 0.05
_WAITING = 4
_WAIT_S = 60
"""So many keepers wait at least; one that has waited for so long ends, so that there are not many more."""

_NUMBER = struct.Struct("i")
_GROUP = re.compile(r"[0-9a-f]{8}-\d+\.\d+")
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNS, _MS_BIND, _MS_REC_PRIVATE, _MS_NOSUID_NODEV = 0x20000, 4096, 0x44000, 2 | 4
_INSIDE = (("mnt", _CLONE_NEWNS), ("ipc", CLONE_NEWIPC))
"""The namespaces that a piece has for itself."""


# -- for one piece: the keeper ----------------------------------------------------------------------------------------


class Keeper:
    """The parent of the ranks of one piece: it starts them, tells who has ended, and ends all when nobody listens.

    `news` is where it writes its number when it begins to wait for a piece, and the negative of that when it has one.
    """

    def __init__(self, listener: socket.socket, settings: Settings, news: int) -> None:
        self.listener, self.settings, self.news = listener, settings, news
        self.launcher = os.getppid()
        # The namespaces of the machine, to which it comes back from those of a piece.
        self.outside = [(os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), flag) for name, flag in _INSIDE]
        become_subreaper()
        self.reader = signal_pipe({signal.SIGCHLD})
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.reader, selectors.EVENT_READ)
        self.connection: socket.socket
        self.account: pwd.struct_passwd | None = None
        self.group, self.own, self.is_inside, self.is_limited, self.listening = "", -1, False, False, False

    def run(self) -> None:
        """Serve one piece after the other, until none comes for a while or the launcher is gone."""
        while True:
            die_with_parent(self.launcher)  # while it waits
            try:
                self.connection, _ = self.listener.accept()
            except BlockingIOError:
                return
            control_process(PR_SET_PDEATHSIG, 0)
            with self.connection:
                _, uid, _ = struct.unpack("3i", self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if uid == self.settings.service.pw_uid:
                    os.write(self.news, _NUMBER.pack(-os.getpid()))
                    self.serve_piece()
                    self.leave()
                    os.write(self.news, _NUMBER.pack(os.getpid()))

    def serve_piece(self) -> None:
        """Serve one connection, and stay until nothing is left of what was started."""
        self.listening = True
        self.selector.register(self.connection, selectors.EVENT_READ)
        while not self.collect() or self.listening:
            ready = [key.fd for key, _ in self.selector.select(None if self.listening else _KILL_AGAIN_S)]
            if self.reader in ready:
                os.read(self.reader, 4096)
            if not self.listening:
                signal_descendants(signal.SIGKILL)
            elif self.connection.fileno() in ready and not self.serve():
                self.listening = False
                self.selector.unregister(self.connection)
                signal_descendants(signal.SIGKILL)
                with contextlib.suppress(OSError):
                    self.job_group().freeze(frozen=False)  # what is frozen by version 1 does not end

    def leave(self) -> None:
        """Have nothing more to do with the piece: remove its folders that are empty, and come back from its mounts."""
        if self.own >= 0:
            for folder in ("work", "tmp"):
                with contextlib.suppress(OSError):
                    os.rmdir(folder, dir_fd=self.own)
            os.close(self.own)
        if self.is_inside:
            for handle, flag in self.outside:
                call_kernel("setns", handle, flag)
        self.account, self.group, self.own, self.is_inside, self.is_limited = None, "", -1, False, False

    def serve(self) -> bool:
        """Do one thing that is asked for; return whether anybody is there to ask."""
        try:
            packet, handles, _, _ = socket.recv_fds(self.connection, 1 << 14, 8)
        except ConnectionError:
            return False
        for handle in handles:
            os.set_inheritable(handle, False)
        if not packet:
            return False
        try:
            asked = json.loads(packet)
            match asked["do"]:
                case "hello":
                    self.say({"groups": self.settings.groups, **self.settings.told})
                case "keep":
                    self.is_limited = bool(asked["limited"])
                    self.keep(str(asked["user"]), str(asked["group"]), handles)
                case "start":
                    self.start(handles)
                case "give":
                    self.give(handles[0])
                case "signal":
                    some = {name: list(map(int, asked.get(name, ()))) for name in ("only", "but")}
                    signal_descendants(int(asked["number"]), **some)
                case "pause":
                    stop_descendants()
                case "resume":
                    continue_descendants()
                case "gather":
                    self.job_group().gather(os.getpid())
                    self.say({"gathered": True})
        except (DeniedError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
            problem = str(error) if isinstance(error, DeniedError) else f"the launcher cannot do that: {error!r}"
            self.say({"problem": problem})
        finally:
            for handle in handles:
                os.close(handle)
        return True

    def say(self, what: dict[str, Any]) -> None:
        """Tell the shim; one that is gone is noticed by the end of the connection."""
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps(what).encode())

    def keep(self, user: str, group: str, folders: list[int]) -> None:
        """Keep a piece: whose it is, its control group, its folders (own, work and tmp, or own alone)."""
        if group and not _GROUP.fullmatch(group):
            raise DeniedError(f"control group {group!r} is not that of a job")
        self.account, self.group = self.settings.account(user), group
        for folder in folders:
            self.give(folder)
        if self.own < 0:
            self.own = os.dup(folders[0])
        if len(folders) == 3:
            self.is_inside = True
            # What is left of System V and POSIX IPC goes with the last process of the piece.
            self.separate(user, lambda: unshare(CLONE_NEWIPC))
            if self.settings.file.private_tmp:
                self.separate(user, lambda: self.hide_others(folders[2]))
        self.say({"keeper": os.getpid()})

    def separate(self, user: str, how: Callable[[], None]) -> None:
        """Give this process, and all below it, something of its own; where the kernel does not allow it, say so."""
        try:
            how()
        except OSError as error:
            print(f"jobs of {user!r} are not wholly separated: {error}", file=sys.stderr, flush=True)

    def hide_others(self, folder: int) -> None:
        """Give this process, and all below it, a /tmp of its own, and hide the processes of other users."""
        place = os.readlink(f"/proc/self/fd/{folder}")
        unshare(_CLONE_NEWNS)
        # The same folder as it is seen here: what was opened outside cannot be mounted.
        inside = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not os.path.sameopenfile(inside, folder):
            raise OSError(errno.ESTALE, f"{place} was replaced")
        call_kernel("mount", None, b"/", None, _MS_REC_PRIVATE, None)
        call_kernel("mount", b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV | 8, b"hidepid=2")
        for hidden in ("/tmp", "/var/tmp"):
            if not place.startswith(hidden + "/"):
                call_kernel("mount", f"/proc/self/fd/{inside}".encode(), hidden.encode(), None, _MS_BIND, None)
        call_kernel("mount", b"tmpfs", b"/dev/shm", b"tmpfs", _MS_NOSUID_NODEV, b"mode=1777")
        if os.path.isdir("/dev/mqueue"):
            call_kernel("mount", b"mqueue", b"/dev/mqueue", b"mqueue", _MS_NOSUID_NODEV, None)
        os.close(inside)

    def job_group(self) -> ControlGroup:
        """Return the control group of the piece: what of it there is, but all of it if that holds its limits."""
        parents = self.settings.groups if self.group else {}
        folders = {each: f"{parent}/{self.group}" for each, parent in parents.items()}
        return ControlGroup({each: one for each, one in folders.items() if self.is_limited or os.path.isdir(one)})

    def give(self, handle: int) -> None:
        """Make a file or folder of the service's the user's; never anybody else's, nor one that has other names."""
        assert self.account is not None
        found = os.fstat(handle)
        is_folder = stat.S_ISDIR(found.st_mode)
        one_file = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if not (is_folder or one_file) or found.st_uid not in (self.settings.service.pw_uid, self.account.pw_uid):
            raise DeniedError("only files and folders of the service are given to users")
        os.fchown(handle, self.account.pw_uid, self.settings.service.pw_gid)
        os.fchmod(handle, 0o2750 if is_folder else 0o640)

    def start(self, handles: list[int]) -> None:
        """Start a rank up to the gate: what it is to execute, the gate, its report, its output."""
        if self.account is None:
            raise DeniedError("whose rank it is must be told first")
        what, gate, report, *output = handles
        keeper, pid = os.getpid(), os.fork()
        if pid == 0:
            self._be_rank(keeper, what, gate, report, output)
        status = process_stat(pid)
        self.say({"pid": pid, "ticks": status.start_ticks if status else 0})

    def _be_rank(self, keeper: int, what: int, gate: int, report: int, output: list[int]) -> NoReturn:
        try:
            assert self.account is not None
            forget_parent()
            if self.is_limited:
                self.job_group().add(os.getpid())
            _become(self.account, self.settings.file.limits)
            die_with_parent(keeper)
            become_rank_of(self.account, what, gate, report, output)  # all of that as the user
        except OSError as error:
            tell_problem(report, f"it cannot become the user of its job: {os.strerror(error.errno or 0)}")
        finally:
            os._exit(NOT_STARTED)

    def collect(self) -> bool:
        """Tell what has ended, and return whether nothing is left."""
        ended, nothing_left = reap()
        if ended:
            self.say({"ended": ended, "nothing_left": nothing_left})
        return nothing_left


def _become(account: pwd.struct_passwd, limits: dict[str, int]) -> None:
    """Become a user for good: groups, ids, limits, and no way to more rights by files that are setuid."""
    for name, value in {"core": 0, **limits}.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (value, value))
    be_first_to_go()  # set with CAP_SYS_RESOURCE, it cannot be taken back by the user
    os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    control_process(_PR_SET_NO_NEW_PRIVS, 1)
    os.umask(0o027)
    if 0 in (*os.getresuid(), *os.getresgid()):
        os._exit(NOT_STARTED)


# -- for a machine ----------------------------------------------------------------------------------------------------


def serve(settings: Settings) -> NoReturn:
    """Listen for the service, and see to it that keepers wait for it; end what a killed keeper leaves."""
    listener = _listen(settings)
    become_subreaper()
    reader = signal_pipe({signal.SIGCHLD})
    told, tells = os.pipe2(os.O_CLOEXEC)
    selector = selectors.DefaultSelector()
    selector.register(reader, selectors.EVENT_READ)
    selector.register(told, selectors.EVENT_READ)
    keepers: set[int] = set()
    waiting: set[int] = set()
    gc.freeze()
    while True:
        while len(waiting) < _WAITING and (pid := _make_keeper(listener, settings, tells)):
            keepers.add(pid)
            waiting.add(pid)
        for key, _ in selector.select(_KILL_AGAIN_S if len(waiting) < _WAITING else None):
            if key.fd == reader:
                os.read(reader, 4096)
                _collect(keepers)
            else:
                for (number,) in _NUMBER.iter_unpack(os.read(told, 4096)):
                    (waiting.add if number > 0 else waiting.discard)(abs(number))
        waiting &= keepers


def _listen(settings: Settings) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(settings.file.socket)
    before = os.umask(0o177)
    listener.bind(settings.file.socket)
    os.umask(before)
    os.chown(settings.file.socket, settings.service.pw_uid, settings.service.pw_gid)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _WAIT_S, 0))
    listener.listen(1024)
    return listener


def _make_keeper(listener: socket.socket, settings: Settings, news: int) -> int:
    """Fork a keeper and return its number, or 0 if this machine has no room for one now."""
    try:
        pid = os.fork()
    except OSError as error:
        print(f"no keeper can be made: {error}", file=sys.stderr, flush=True)
        return 0
    if pid == 0:
        status = 1
        try:
            Keeper(listener, settings, news).run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def _collect(keepers: set[int]) -> None:
    killed = False
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            killed |= found[0] not in keepers or found[1] != 0
            keepers.discard(found[0])
    if killed:
        signal_descendants(signal.SIGKILL, spare=keepers)


def main(arguments: list[str]) -> None:
    """Serve as a file says; one line of what is wrong, if it cannot."""
    try:
        if os.getuid() != 0:
            raise DeniedError("the launcher must be started as root: only root can start processes as others")
        if len(arguments) != 1:
            raise DeniedError("usage: python -P -m gridweave.site.machine.launcher FILE")
        if not sys.flags.safe_path:
            raise DeniedError("the launcher must be started with -P: else it would import from where it is started")
        settings = read_settings(arguments[0])
        be_last_to_go()
        serve(settings)
    except (DeniedError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
