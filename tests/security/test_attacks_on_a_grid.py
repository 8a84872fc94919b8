"""A grid on a real Ray that an ordinary Unix user runs, a launcher as root beside it: what jobs of others can reach."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import platformdirs
import psutil
import pytest

from gridweave import jit
from gridweave.errors import RefusedError
from gridweave.grid.client.sync import SyncClient
from gridweave.grid.config.local_state import STATE, LocalGridState
from gridweave.site.job import JobRecord
from gridweave.site.launch import Call
from gridweave.site.machine.cgroups import open_cgroups
from gridweave.site.machine.folders import RATE
from support.machine import PATIENCE_S, ROOT, reachable

if TYPE_CHECKING:
    from conftest import UnixUsers

pytestmark = [pytest.mark.ray, pytest.mark.slow]

needs_this_python = pytest.mark.skipif(
    Path(sys.prefix).resolve().is_relative_to("/tmp"),
    reason="jobs have a /tmp of their own, so the Python of this environment is not there for them: clone elsewhere",
)

GROUP = "gridweave-test-grid"
SERVICE = "gw-grid-service"
# Others than in tests that may run at the same time: there alice's jobs try to kill all that is hers.
USERS = {"alice": "gw-grid-alice", "bob": "gw-grid-bob"}
PYTHON = "/usr/bin/python3"

GRID = """
folder = "{folder}/grid"

[[sites]]
name = "north"
nodes = 2
launcher = {{ kind = "user", socket = "{folder}/socket", memory_mb = 1024, processes = 200 }}

[[sites]]
name = "south"
nodes = 2
launcher = {{ kind = "user", socket = "{folder}/socket", memory_mb = 1024, processes = 200 }}

[gateway]
port = 0
"""

JOIN_RAY = """
import ray, sys
try:
    ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
except BaseException as error:
    print("held", type(error).__name__, "auth" in str(error).lower())
else:
    print("GOT", [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)])
"""

# Ray's interface for jobs runs any command as its own user, if it is there and asks for no token.
ASK_PORTS = """
import http.client, json, sys
for port in map(int, sys.argv[2:]):
    for method, path in (("POST", "/api/jobs/"), ("GET", "/api/version"), ("GET", "/nodes?view=summary"), ("GET", "/")):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request(method, path, json.dumps({"entrypoint": "touch " + sys.argv[1]}),
                               {"Content-Type": "application/json"})
            status = connection.getresponse().status
        except Exception:
            continue
        print("GOT" if status < 300 else "held", method, path, port, status)
print("asked")
"""


class OthersGrid:
    """The grid, and what is needed to use it as somebody."""

    def __init__(self, folder: Path) -> None:
        self.tokens: dict[str, str] = {}
        self.folder, self.home, self.temp = folder, folder / "home", Path(tempfile.mkdtemp(dir="/tmp"))
        for own, mode in ((self.home, 0o700), (self.temp, 0o700), (folder / "grid", 0o711)):
            own.mkdir(exist_ok=True)
            own.chmod(mode)
        (folder / "GRID.toml").write_text(GRID.format(folder=folder))
        users = "\n".join(f'{user} = "{name}"' for user, name in USERS.items())
        text = f'service = "{SERVICE}"\nsocket = "{folder}/socket"\ncgroup = "{GROUP}"\n[users]\n{users}\n'
        (folder / "launcher.toml").write_text(text)
        self._bring_kernels()
        for own in (self.home, self.temp, folder / "grid"):
            subprocess.run(["chown", "-R", f"{SERVICE}:", str(own)], check=True)
        command = [sys.executable, "-P", "-m", "gridweave.site.machine.launcher", str(folder / "launcher.toml")]
        with (folder / "log").open("wb") as log:
            self.launcher = subprocess.Popen(reachable(command), stderr=log)

    def _bring_kernels(self) -> None:
        """Give the service what is compiled already."""
        compiled = Path("gridweave", "kernels", jit._STAMP)
        if (platformdirs.user_cache_path() / compiled).exists():
            shutil.copytree(platformdirs.user_cache_path() / compiled, self.home / ".cache" / compiled)

    def service(self, *arguments: str) -> str:
        """Run the command as the service's user, and return what it printed."""
        names = {"HOME": str(self.home), "TMPDIR": str(self.temp), "USER": SERVICE, "LOGNAME": SERVICE}
        names |= {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
        as_service = ["setpriv", f"--reuid={SERVICE}", f"--regid={SERVICE}", "--clear-groups", "--"]
        command = reachable([*as_service, sys.executable, "-m", "gridweave.cli", *arguments])
        done = subprocess.run(command, env=names, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def begin(self) -> None:
        """Bring the grid up, with a token for each user."""
        _until(lambda: (self.folder / "socket").exists() or self.launcher.poll() is not None)
        self.service("up", str(self.folder / "GRID.toml"))
        self.tokens |= {user: self.service("token", "create", user).split()[-1] for user in (*USERS, "carol")}

    @property
    def state(self) -> LocalGridState:
        """What the service has written down of the grid."""
        (path,) = self.home.glob(f".local/state/gridweave/*/{STATE}")
        return msgspec.json.decode(path.read_bytes(), type=LocalGridState)

    def run(self, user: str, *argv: str, site: str = "north") -> tuple[JobRecord, str]:
        """Run a job of a user; return its record and its output."""
        with SyncClient(self.state.url, token=self.tokens[user]) as grid:
            job = grid.submit(list(argv), nodes=1, limit="1h", site=site)
            record = job.done(timeout_s=PATIENCE_S)
            return record, (job.output() + job.output(stream="err")).decode(errors="replace")

    def close(self) -> None:
        """End all of it."""
        try:
            if self.tokens:
                self.service("down")
        finally:
            self.launcher.terminate()
            self.launcher.wait()
            open_cgroups(GROUP).parent.remove()
            shutil.rmtree(self.temp, ignore_errors=True)


def _until(holds: object) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline_s, "it did not come about"


@pytest.fixture(scope="module")
def grid(unix_users: UnixUsers) -> Iterator[OthersGrid]:
    """Return a grid that an ordinary user runs; only root can make such users."""
    pytest.importorskip("ray")
    with unix_users(SERVICE, *USERS.values()):
        folder = Path(tempfile.mkdtemp(prefix="gridweave-grid-", dir="/run"))
        folder.chmod(0o711)
        there = OthersGrid(folder)
        try:
            there.begin()
            for user, name in USERS.items():
                said = there.run(user, "id", "-un")[1]
                assert said.strip() == name, f"jobs do not run as their users: {said!r}"
            yield there
        finally:
            there.close()
            shutil.rmtree(folder, ignore_errors=True)


def test_jobs_of_two_users_run_as_two_others(grid: OthersGrid) -> None:
    """At each site each job is its own user, its files are theirs, and only the launcher is root's."""
    for site in ("north", "south"):
        for user, name in USERS.items():
            record, said = grid.run(user, "sh", "-c", "id -un; id -gn; echo > kept; stat -c %U kept", site=site)
            assert (record.outcome, said.split()) == ("finished", [name, name, name])
    uid = pwd.getpwnam(SERVICE).pw_uid
    assert {psutil.Process(process.pid).uids().effective for process in grid.state.processes} == {uid}


@needs_this_python
def test_a_python_callable_runs_as_its_user(grid: OthersGrid) -> None:
    """What is called runs in the service's Python, as the user, and what it returns comes back."""
    with SyncClient(grid.state.url, token=grid.tokens["alice"]) as client:
        job = client.submit(Call("os:getuid"), nodes=1, limit="1h", site="south")
        assert job.result(timeout_s=PATIENCE_S) == pwd.getpwnam(USERS["alice"]).pw_uid


def test_who_is_not_mapped_starts_nothing(grid: OthersGrid) -> None:
    """A user of the grid without a Unix user is told so in one line, when the job is handed in."""
    with pytest.raises(RefusedError, match="it has no account for 'carol'; ask its operator to add one"):
        grid.run("carol", "id")


def test_what_the_grid_keeps_is_closed_to_jobs(grid: OthersGrid) -> None:
    """Tokens, Ray's token, journals, logs, and Ray's own folder: a job reads none of them, nor what is beside it."""
    kept = [path for place in (grid.home, grid.temp) for path in place.rglob("*")]
    kept += [path for path in (grid.folder / "grid").rglob("*") if path.is_file() and "own" not in path.parts]
    # What is given to alice, as her output, is hers; that of bob's is not.
    uid = pwd.getpwnam(USERS["alice"]).pw_uid
    kept = [path for path in kept if (path.is_file() or path.is_socket()) and path.stat().st_uid != uid]
    # How fast a piece works is no secret: its own user, who is not the service's, has to read it.
    kept = [path for path in kept if path.name != RATE]
    names = {path.name for path in kept}
    assert {"token", "ray-token", "tokens.db", "site.journal", "grid.journal", "requests.log", "gateway.json"} <= names
    paths = grid.folder / "paths"
    paths.write_text("\n".join(map(str, kept)))
    paths.chmod(0o644)
    look = "test -r $path && echo GOT $path; test -w $path && echo GOT $path"
    assert grid.run("alice", "sh", "-c", f"while read path; do {look}; done < {paths}; echo all")[1] == "all\n"


def test_nothing_secret_is_in_the_list_of_processes(grid: OthersGrid) -> None:
    """Whoever sees all arguments of the service's processes has no token by that."""
    (token,) = grid.home.rglob("ray-token")
    secrets = [token.read_text().strip(), *grid.tokens.values()]
    seen = "".join(" ".join(each.cmdline()) for each in psutil.process_iter() if each.username() == SERVICE)
    assert "ray::GatewayActor" in seen
    assert not [secret for secret in secrets if secret in seen]


@needs_this_python
def test_a_job_cannot_join_ray(grid: OthersGrid) -> None:
    """Without Ray's token, or with a wrong one, a job that knows the address gets nowhere."""
    join = f"{sys.executable} -c {shlex.quote(JOIN_RAY)} {grid.state.address}"
    # At one time: Ray tries for a while before it gives up.
    command = f"RAY_AUTH_MODE=disabled {join} & RAY_AUTH_MODE=token RAY_AUTH_TOKEN={'ab' * 32} {join}; wait"
    record, said = grid.run("alice", "sh", "-c", command)
    assert record.outcome == "finished", (record.reason, said)
    assert said.count("held ") == 2, said
    assert "GOT" not in said


def test_no_port_of_the_service_does_what_a_job_asks(grid: OthersGrid) -> None:
    """Each port on which a process of the service listens is asked to run a command; none does, none tells anything."""
    uid = pwd.getpwnam(SERVICE).pw_uid
    own = {each.pid for each in psutil.process_iter() if each.uids().effective == uid}
    listening = [one for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.pid in own]
    ports = {str(one.laddr.port) for one in listening}
    assert len(ports) > 2
    proof = grid.folder / "grid" / "proof"
    _, said = grid.run("alice", PYTHON, "-c", ASK_PORTS, str(proof), *sorted(ports))
    assert "asked" in said
    # Its first page the gateway gives to anybody, who has to log in there.
    page = f"GOT GET / {grid.state.url.rpartition(':')[2]} 200"
    assert [line for line in said.splitlines() if "GOT" in line] in ([], [page])
    assert not proof.exists()


def test_a_job_cannot_reach_into_another_users_job(grid: OthersGrid) -> None:
    """What bob's job has written is not read by alice's, at either site; bob reads it through the gateway."""
    record, said = grid.run("bob", "sh", "-c", "echo private; echo GOT > kept")
    assert (record.outcome, said) == ("finished", "private\n")
    folders = sorted((grid.folder / "grid").glob(f"*/*/jobs/{record.job_id}.*"))
    assert folders
    script = "; ".join(f"cat {folder}/rank-0.out {folder}/own/work/kept; ls {folder}" for folder in folders)
    _, said = grid.run("alice", "sh", "-c", f"{script}; echo tried")
    assert "tried" in said
    assert "GOT" not in said
    assert "private" not in said.replace("/private", "")


def test_memory_of_one_job_is_its_own(grid: OthersGrid) -> None:
    """A job over its memory ends with that reason; one beside it, and the service, go on."""
    pids = {process.pid for process in grid.state.processes}
    with SyncClient(grid.state.url, token=grid.tokens["bob"]) as client:
        beside = client.submit(["sleep", "100000"], nodes=1, limit="10h", site="north")
        record, _ = grid.run("alice", PYTHON, "-c", "b = bytearray(3 << 30)")
        assert (record.outcome, record.reason.partition("out of memory")[1]) == ("failed", "out of memory")
        _until(lambda: beside.record().state == "running")
        beside.cancel()
        assert beside.done(timeout_s=PATIENCE_S).outcome == "cancelled"
    assert pids <= set(psutil.pids())
