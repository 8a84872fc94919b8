"""What a test needs of this machine: waits for other processes, ports, users, certificates, and PostgreSQL.

Use it in tests that start real processes. `until` waits for a condition, never for a fixed time; `unused_port` returns
ports that no other test takes; `read_turns` reads when a time-sliced job worked. If the machine lacks something (root,
openssl, PostgreSQL), the test is skipped with a reason.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gridweave.site.job import JobRecord

# -- waits ------------------------------------------------------------------------------------------------------------

PATIENCE_S = 300.0
"""Longest wait for a condition; more than the busiest machine needs, as speed is not tested."""

_LOOK_AGAIN_S = 0.05


def until(happened: Callable[[], Any], patience_s: float = PATIENCE_S, *, every_s: float = _LOOK_AGAIN_S) -> Any:
    """Wait until `happened` returns a true value, and return it; raise `every_s` if a check is expensive."""
    until_s = time.monotonic() + patience_s
    while not (found := happened()):
        assert time.monotonic() < until_s, f"it does not happen within {patience_s:g} s"
        time.sleep(every_s)
    return found


def the_end(grid: Any, job_id: int) -> JobRecord:
    """Wait until a job of a grid on Ray has ended, and return its record."""
    return until(lambda: next((record for record in grid.records([job_id]) if record.state == "ended"), None))


# -- turns of time-sliced jobs ----------------------------------------------------------------------------------------

Spans = list[tuple[float, float]]


class Turns(NamedTuple):
    """The time spans in which a job worked on a machine and was paused there, in ms since 1970."""

    works: Spans
    pauses: Spans


def read_turns(rates: Path) -> Turns:
    """Read the turns of a job on a machine from its log; the last span of work is open-ended.

    Assert that the rates alternate between 1 and 0.
    """
    lines = [line.split() for line in rates.read_text(encoding="ascii").splitlines()]
    changes = [(float(at_ms), float(rate)) for at_ms, rate in lines]
    assert [rate for _, rate in changes] == [float(number % 2 == 0) for number in range(len(changes))]
    spans = list(pairwise(at_ms for at_ms, _ in changes))
    return Turns([*spans[::2], (changes[-1][0], float("inf"))], spans[1::2])


def one_works_while_the_other_is_paused(one: Turns, other: Turns) -> bool:
    """Whether each of two jobs works at some instant of every pause of the other."""
    return all(
        any(begin < end_ms and begin_ms < end for begin, end in works)
        for works, pauses in ((one.works, other.pauses), (other.works, one.pauses))
        for begin_ms, end_ms in pauses
    )


# -- ports ------------------------------------------------------------------------------------------------------------

_FIRST, _EACH = 32_000, 150
"""First port, and number of ports per test worker.

The range is clear of the kernel's free ports (from 32,768), of Ray's workers and of the jobs of a grid.
"""

_NUMBERS = itertools.count(os.getpid())


def unused_port() -> int:
    """Return a free port of this machine, a different one at each call and in each test process."""
    worker = _worker()
    for number in itertools.islice(_NUMBERS, _EACH):
        port = _FIRST + _EACH * worker + number % _EACH
        with contextlib.suppress(OSError), socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"all ports of worker {worker} are taken")


def meeting_ports(machine: int) -> tuple[int, int]:
    """Return the port range at which ranks meet on a machine; other machines and test processes have other ranges."""
    low = 26_000 + 1_000 * _worker() + 20 * (machine % 50)
    return low, low + 20


def _worker() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 5


# -- users ------------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def have_users(*names: str) -> Iterator[None]:
    """Create Unix users for the duration of the block; skip the test if this is not root."""
    if os.getuid() != 0:
        pytest.skip("attacks by jobs are skipped: only root can run jobs as other users")
    made = []
    try:
        for name in names:
            with contextlib.suppress(KeyError):
                pwd.getpwnam(name)
                continue
            subprocess.run(["useradd", "--no-create-home", "--home-dir", "/", name], check=True)
            made.append(name)
        yield
    finally:
        for name in made:
            subprocess.run(["userdel", name], check=False, capture_output=True)


def reachable(command: list[str]) -> list[str]:
    """Wrap a command so that all users can read this Python and these sources, even in folders closed to them."""
    lines = ["set -e", "mount --make-rprivate /", "spare=$(mktemp -d)"]
    wanted = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    closed: dict[Path, list[Path]] = {}
    for path in sorted(wanted):
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(parent, []).append(path)
                break
    for parent, paths in closed.items():
        for number, path in enumerate(paths):
            lines.append(f"mkdir $spare/{number}; mount --bind {shlex.quote(str(path))} $spare/{number}")
        lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(parent))}")
        for number, path in enumerate(paths):
            place = shlex.quote(str(path))
            lines.append(f"mkdir -p {place}; mount --move $spare/{number} {place}; rmdir $spare/{number}")
    return ["unshare", "--mount", "sh", "-c", "; ".join([*lines, "rmdir $spare", 'exec "$@"']), "sh", *command]


# -- certificates -----------------------------------------------------------------------------------------------------


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    """Make a self-signed certificate for this machine and its key; return the paths of both."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "1",
    ]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return str(cert), str(key)


# -- PostgreSQL -------------------------------------------------------------------------------------------------------


class Server:
    """A separate PostgreSQL server on a socket in a temporary folder.

    Parameters
    ----------
    folder : pathlib.Path
        Must have a short path, as the name of a socket has at most 107 bytes.
    programs : pathlib.Path
        Folder of ``initdb`` and ``pg_ctl``.
    user : str
        User of the server's processes; PostgreSQL does not run as root.
    """

    def __init__(self, folder: Path, programs: Path, user: str) -> None:
        self.folder, self._programs, self.user = folder, programs, user
        self._run("initdb", "--auth=trust", "--no-sync", "--username", user, "--pgdata", str(folder / "data"))
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        account = pwd.getpwnam(self.user)
        as_user: dict[str, Any] = {} if os.geteuid() else {"user": account.pw_uid, "group": account.pw_gid}
        with (self.folder / "output").open("a") as output:
            done = subprocess.run(command, cwd=self.folder, stdout=output, stderr=output, check=False, **as_user)
        assert not done.returncode, (self.folder / "output").read_text()

    def start(self) -> None:
        """Start the server and wait until it accepts connections.

        It runs without fsync: tests kill the server but not the machine, so written data survives anyway.
        """
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c shared_buffers=16MB -c fsync=off"
        log = str(self.folder / "log")
        self._run(
            "pg_ctl", "--wait", "--pgdata", str(self.folder / "data"), "--log", log, "--options", options, "start"
        )

    def stop(self) -> None:
        """Stop the server at once, like a crash."""
        self._run("pg_ctl", "--wait", "--pgdata", str(self.folder / "data"), "--mode", "immediate", "stop")

    def new_database(self, name: str) -> str:
        """Create a database and return its URL."""
        from sqlalchemy import create_engine, text

        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f'CREATE DATABASE "{name}"'))
        engine.dispose()
        return self.url(name)

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        return f"postgresql+psycopg://{self.user}@/{name}?host={self.folder}"


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """Yield a running server; skip the test if PostgreSQL is not installed."""
    found = [Path(path).parent for path in [shutil.which("initdb")] if path is not None]
    found += [path.parent for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)]
    if not found:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    folder = Path(tempfile.mkdtemp(prefix="gw-pg-"))
    os.chown(folder, account.pw_uid, account.pw_gid)
    try:
        running = Server(folder, found[0], user)
        yield running
        running.stop()
    finally:
        shutil.rmtree(folder)
