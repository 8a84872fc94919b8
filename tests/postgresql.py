"""A PostgreSQL server from Debian's package, which the tests start and stop."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text


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
