"""The launcher starts ranks as other Unix users; it is the only component that runs as root.

``python -P -m gridweave.site.machine.launcher FILE`` listens on a socket for this machine's service; docs/launchers.md
describes FILE. The launcher reads only FILE, kernel files and the system's user database, never a file that a user can
write to. It does not read a rank's command, but passes it to the process that has already become the user.

The launcher forks idle rank parents in advance. Each of them serves one node task after another, because forking a
Python process takes several times as long as the rest of the work for a task.
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
from gridweave.site.machine.rank import NOT_STARTED, become_rank_of, forget_parent, report_problem
from gridweave.site.machine.usage import reap

_KILL_AGAIN_S = 0.05
_WAITING = 4
_WAIT_S = 60
"""The minimum number of idle rank parents, and the time after which an idle rank parent exits [s]."""

_NUMBER = struct.Struct("i")
_GROUP = re.compile(r"[0-9a-f]{8}-\d+\.\d+")
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNS, _MS_BIND, _MS_REC_PRIVATE, _MS_NOSUID_NODEV = 0x20000, 4096, 0x44000, 2 | 4
_INSIDE = (("mnt", _CLONE_NEWNS), ("ipc", CLONE_NEWIPC))
"""The namespaces that are private to a node task."""


# -- the parent of the ranks of one node task -------------------------------------------------------------------------


class RankParent:
    """The parent of a node task's ranks: starts them, reports when they end, and kills them if the shim disconnects.

    ``news`` is a pipe to the launcher. The rank parent writes its pid when it starts waiting for a task, and its
    negative pid when it gets one.
    """

    def __init__(self, listener: socket.socket, settings: Settings, news: int) -> None:
        self.listener, self.settings, self.news = listener, settings, news
        self.launcher = os.getppid()
        # The machine's namespaces, to which the process returns after a task.
        self.outside = [(os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), flag) for name, flag in _INSIDE]
        become_subreaper()
        self.reader = signal_pipe({signal.SIGCHLD})
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.reader, selectors.EVENT_READ)
        self.connection: socket.socket
        self.account: pwd.struct_passwd | None = None
        self.group, self.own, self.is_inside, self.is_limited, self.listening = "", -1, False, False, False

    def run(self) -> None:
        """Serve one node task after another, until no task arrives for a while or the launcher has ended."""
        while True:
            die_with_parent(self.launcher)  # only while idle
            try:
                self.connection, _ = self.listener.accept()
            except BlockingIOError:
                return
            control_process(PR_SET_PDEATHSIG, 0)
            with self.connection:
                _, uid, _ = struct.unpack("3i", self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if uid == self.settings.service.pw_uid:
                    os.write(self.news, _NUMBER.pack(-os.getpid()))
                    self.serve_task()
                    self.leave()
                    os.write(self.news, _NUMBER.pack(os.getpid()))

    def serve_task(self) -> None:
        """Serve one connection until the shim has disconnected and all processes of the task have ended."""
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
                    self.job_group().freeze(frozen=False)  # processes frozen by version 1 cannot be killed

    def leave(self) -> None:
        """Clean up after a task: remove its empty folders, and return to the machine's namespaces."""
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
        """Execute one request; return False if the shim has disconnected."""
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
                    self.say({"groups": self.settings.groups, **self.settings.visible_settings})
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
        """Send a message to the shim; ignore errors, because a lost shim is detected when the connection ends."""
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps(what).encode())

    def keep(self, user: str, group: str, folders: list[int]) -> None:
        """Accept a task with its user, its control group, and its folders (own, work and tmp, or only own)."""
        if group and not _GROUP.fullmatch(group):
            raise DeniedError(f"control group {group!r} is not a job's")
        self.account, self.group = self.settings.account(user), group
        for folder in folders:
            self.give(folder)
        if self.own < 0:
            self.own = os.dup(folders[0])
        if len(folders) == 3:
            self.is_inside = True
            # In a private namespace, System V and POSIX IPC objects are removed with the task's last process.
            self.separate(user, lambda: unshare(CLONE_NEWIPC))
            if self.settings.file.private_tmp:
                self.separate(user, lambda: self.hide_others(folders[2]))
        self.say({"parent": os.getpid()})

    def separate(self, user: str, how: Callable[[], None]) -> None:
        """Isolate this process and its descendants by calling ``how``; log an error if the kernel does not allow it."""
        try:
            how()
        except OSError as error:
            print(f"jobs of {user!r} are not fully isolated: {error}", file=sys.stderr, flush=True)

    def hide_others(self, folder: int) -> None:
        """Give this process and its descendants a private /tmp, and hide other users' processes from them."""
        place = os.readlink(f"/proc/self/fd/{folder}")
        unshare(_CLONE_NEWNS)
        # Reopen the folder inside the namespace, because a descriptor from outside cannot be mounted.
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
        """Return the task's control group: in all hierarchies if the task has limits, else only where it exists."""
        parents = self.settings.groups if self.group else {}
        folders = {controller: f"{parent}/{self.group}" for controller, parent in parents.items()}
        return ControlGroup({name: path for name, path in folders.items() if self.is_limited or os.path.isdir(path)})

    def give(self, handle: int) -> None:
        """Transfer a file or folder of the service to the user; reject other users' files and files with hard links."""
        assert self.account is not None
        status = os.fstat(handle)
        is_folder = stat.S_ISDIR(status.st_mode)
        one_file = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if not (is_folder or one_file) or status.st_uid not in (self.settings.service.pw_uid, self.account.pw_uid):
            raise DeniedError("only files and folders of the service can be given to users")
        os.fchown(handle, self.account.pw_uid, self.settings.service.pw_gid)
        os.fchmod(handle, 0o2750 if is_folder else 0o640)

    def start(self, handles: list[int]) -> None:
        """Start a rank, which waits at its gate; ``handles`` are its `RankStart`, gate, report pipe and output."""
        if self.account is None:
            raise DeniedError("the request for a rank came before the request with its user")
        what, gate, report, *output = handles
        rank_parent, pid = os.getpid(), os.fork()
        if pid == 0:
            self._be_rank(rank_parent, what, gate, report, output)
        status = process_stat(pid)
        self.say({"pid": pid, "ticks": status.start_ticks if status else 0})

    def _be_rank(self, rank_parent: int, what: int, gate: int, report: int, output: list[int]) -> NoReturn:
        try:
            assert self.account is not None
            forget_parent()
            if self.is_limited:
                self.job_group().add(os.getpid())
            _become(self.account, self.settings.file.limits)
            die_with_parent(rank_parent)
            become_rank_of(self.account, what, gate, report, output)  # runs as the user
        except OSError as error:
            report_problem(report, f"it cannot become the user of its job: {os.strerror(error.errno or 0)}")
        finally:
            os._exit(NOT_STARTED)

    def collect(self) -> bool:
        """Report ended processes; return whether no process is left."""
        ended, nothing_left = reap()
        if ended:
            self.say({"ended": ended, "nothing_left": nothing_left})
        return nothing_left


def _become(account: pwd.struct_passwd, limits: dict[str, int]) -> None:
    """Irrevocably adopt a user's limits, groups and ids, and disable the privileges of setuid files."""
    for name, value in {"core": 0, **limits}.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (value, value))
    be_first_to_go()  # the user cannot lower the score again, because it was set with CAP_SYS_RESOURCE
    os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    control_process(_PR_SET_NO_NEW_PRIVS, 1)
    os.umask(0o027)
    if 0 in (*os.getresuid(), *os.getresgid()):
        os._exit(NOT_STARTED)


# -- the launcher of a machine ----------------------------------------------------------------------------------------


def serve(settings: Settings) -> NoReturn:
    """Listen for the service, keep idle rank parents ready, and kill the orphans of killed rank parents."""
    listener = _listen(settings)
    become_subreaper()
    reader = signal_pipe({signal.SIGCHLD})
    news, parent_end = os.pipe2(os.O_CLOEXEC)
    selector = selectors.DefaultSelector()
    selector.register(reader, selectors.EVENT_READ)
    selector.register(news, selectors.EVENT_READ)
    keepers: set[int] = set()
    waiting: set[int] = set()
    gc.freeze()
    while True:
        while len(waiting) < _WAITING and (pid := _fork_parent(listener, settings, parent_end)):
            keepers.add(pid)
            waiting.add(pid)
        for key, _ in selector.select(_KILL_AGAIN_S if len(waiting) < _WAITING else None):
            if key.fd == reader:
                os.read(reader, 4096)
                _collect(keepers)
            else:
                for (number,) in _NUMBER.iter_unpack(os.read(news, 4096)):
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


def _fork_parent(listener: socket.socket, settings: Settings, news: int) -> int:
    """Fork a rank parent and return its pid, or 0 if the fork failed."""
    try:
        pid = os.fork()
    except OSError as error:
        print(f"no rank parent can be forked: {error}", file=sys.stderr, flush=True)
        return 0
    if pid == 0:
        status = 1
        try:
            RankParent(listener, settings, news).run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def _collect(keepers: set[int]) -> None:
    killed = False
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            killed |= ended[0] not in keepers or ended[1] != 0
            keepers.discard(ended[0])
    if killed:
        signal_descendants(signal.SIGKILL, spare=keepers)


def main(arguments: list[str]) -> None:
    """Run the launcher with the settings in a file; exit with a one-line message on an error."""
    try:
        if os.getuid() != 0:
            raise DeniedError("the launcher must run as root: only root can start processes as other users")
        if len(arguments) != 1:
            raise DeniedError("usage: python -P -m gridweave.site.machine.launcher FILE")
        if not sys.flags.safe_path:
            raise DeniedError("the launcher must run with -P: otherwise it would import from the working directory")
        settings = read_settings(arguments[0])
        be_last_to_go()
        serve(settings)
    except (DeniedError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
