"""Real Slurm clusters of virtual nodes on this machine, for tests; several can run at the same time.

They use the first Slurm on the path; its daemons may be in /usr/sbin.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridweave.slurm.cluster.parse import read_version
from ports import unused_port
from unix_users import reachable
from waiting import PATIENCE_S

MISSING = "a real Slurm is not at hand (Debian, as root: apt-get install slurm-wlm munge)"
NOT_ROOT = "Slurm is at hand, but these tests start its daemons as root, and run as another user: run them as root"

_CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=2,sched_min_interval=0
ReturnToService=2
SlurmdTimeout=10
KillWait=2
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime={longest} State=UP
{more}
"""

URGENT = """\
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL PriorityTier=10 State=UP
"""
"""Settings for a partition ``urgent`` whose jobs preempt those of other partitions."""


JWT = """\
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={key}
"""
"""Settings for authentication with tokens."""


def with_tokens(folder: Path) -> str:
    """Return settings for authentication with tokens; create the key in a folder."""
    key = folder / "jwt.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    return JWT.format(key=key)


def daemon(name: str) -> str | None:
    """Return the path of a daemon, or None."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")))


class SlurmCluster:
    """A cluster whose nodes are all on this machine, with the partition main."""

    def __init__(
        self, folder: Path, name: str, nodes: int, longest: str = "INFINITE", more: str = "", memory_mb: int = 1
    ) -> None:
        self.folder, self.name, self.nodes = folder, name, nodes
        self.conf = folder / "slurm.conf"
        port, *ports = [unused_port() for _ in range(nodes + 1)]
        host = socket.gethostname().partition(".")[0]
        same = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory={memory_mb}"
        lines = [f"NodeName={name}{number + 1} {same} Port={each}" for number, each in enumerate(ports)]
        for each in ("state", "spool"):
            (folder / each).mkdir(parents=True)
        told = {"name": name, "host": host, "port": port, "folder": folder, "longest": longest, "more": more}
        self.conf.write_text(_CONF.format(nodes="\n".join(lines), **told))

    def run(self, *command: str) -> str:
        """Run a Slurm command and return its output."""
        environment = os.environ | {"SLURM_CONF": str(self.conf)}
        done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def version(self) -> tuple[int, int]:
        """Return the version of Slurm."""
        return read_version(self.run("sinfo", "--version"))

    def up(self) -> None:
        """Start the controller and the nodes, and wait until every node is idle."""
        self.start_controller()
        for number in range(self.nodes):
            self.start_node(number)
        idle = ("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D")
        self.wait(lambda: self.run(*idle).strip() == str(self.nodes), "idle nodes")

    def start_controller(self) -> None:
        """Start or restart the controller, and wait until it answers."""
        self.run(daemon("slurmctld") or "", "-f", str(self.conf))
        self.wait(lambda: "is UP" in self.run("scontrol", "ping"), "the controller")

    def start_node(self, number: int) -> None:
        """Start the daemon of a node, counted from 0; jobs of all users can run this Python there."""
        self.run(*reachable([daemon("slurmd") or "", "-f", str(self.conf), "-N", f"{self.name}{number + 1}"]))

    def kill_controller(self) -> None:
        """Kill the controller as if its machine had failed, after it has saved all earlier cancellations.

        The controller saves its state every few seconds. Restarted from an older state, it would treat a cancelled job
        as running, and withhold the job's nodes from others for minutes.
        """
        changed = self.run("sbatch", "--parsable", "--hold", "--wrap", "true").strip()
        self.run("scancel", changed)
        at_s = time.time()
        self.wait(lambda: (self.folder / "state" / "job_state").stat().st_mtime > at_s, "the state of the jobs")
        self._kill("slurmctld", signal.SIGKILL)

    def stop_controller(self) -> None:
        """Shut the controller down, and wait for its end."""
        number = int((self.folder / "slurmctld.pid").read_text())
        self.run("scontrol", "shutdown", "slurmctld")
        self.wait(lambda: not Path(f"/proc/{number}").exists(), "the end of the controller")

    def hold_controller(self) -> None:
        """Stop the controller like an overloaded one: it accepts requests but does not answer."""
        self._kill("slurmctld", signal.SIGSTOP)

    def release_controller(self) -> None:
        """Continue the controller, which then answers the requests that arrived meanwhile."""
        self._kill("slurmctld", signal.SIGCONT)

    def kill_node(self, number: int) -> None:
        """Kill the daemon of a node."""
        self._kill(f"slurmd-{self.name}{number + 1}", signal.SIGKILL)

    def down(self) -> None:
        """Cancel all jobs and stop all daemons."""
        with contextlib.suppress(subprocess.SubprocessError, AssertionError):
            self.run("scancel", "--partition=main")
            # A slurmd that must exit during a job step waits for the step, which nothing would end any more.
            self.wait(lambda: not self.run("squeue", "--noheader").strip(), "an empty queue", within_s=10)
        for path in self.folder.glob("*.pid"):
            self._kill(path.stem, signal.SIGTERM)

    def wait(self, what: Callable[[], bool], called: str, within_s: float = PATIENCE_S) -> None:
        """Wait until a condition holds; AssertionError names it if it does not."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            with contextlib.suppress(subprocess.SubprocessError):
                if what():
                    return
            time.sleep(0.1)
        raise AssertionError(f"{called}: not there within {within_s:.0f} s")

    def _kill(self, daemon: str, number: signal.Signals) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.folder / f"{daemon}.pid").read_text()), number)


@contextlib.contextmanager
def running_cluster(
    folder: Path, name: str, nodes: int, longest: str = "INFINITE", more: str = "", memory_mb: int = 1
) -> Iterator[SlurmCluster]:
    """Yield a running cluster; skip the test if Slurm is missing or the user is not root."""
    if None in map(daemon, ("slurmctld", "slurmd", "sbatch", "munged")):
        pytest.skip(MISSING)
    if os.geteuid() != 0:
        pytest.skip(NOT_ROOT)
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode != 0:
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge", "munge")
        subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged"], check=True)
    cluster = SlurmCluster(folder, name, nodes, longest, more, memory_mb)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@contextlib.contextmanager
def running_slurmrestd(cluster: SlurmCluster, account: str) -> Iterator[Path]:
    """Yield the socket of a slurmrestd that runs as `account`, which is neither root nor Slurm's own user."""
    program = daemon("slurmrestd")
    if program is None:
        pytest.skip("slurmrestd is not at hand (Debian, as root: apt-get install slurmrestd)")
    place = cluster.folder.parent / "rest"
    place.mkdir(exist_ok=True)
    shutil.chown(place, account)
    socket = place / "socket"
    as_account = ["setpriv", f"--reuid={account}", "--regid=nogroup", "--clear-groups", "--"]
    # Before Slurm 23.02 each version of the interface was a plugin.
    openapi = "openapi/v0.0.38" if cluster.version() < (23, 2) else "openapi/slurmctld"
    command = [*as_account, program, "-a", "rest_auth/jwt", "-s", openapi, f"unix:{socket}"]
    with (cluster.folder.parent / "rest.log").open("wb") as log:
        names = {"PATH": "/usr/bin", "SLURM_CONF": str(cluster.conf), "SLURM_JWT": "daemon"}
        process = subprocess.Popen(command, env=names, stdout=log, stderr=log)
    try:
        cluster.wait(socket.exists, "slurmrestd")
        yield socket
    finally:
        process.terminate()
        process.wait()
        socket.unlink(missing_ok=True)
