"""Real Slurm clusters of virtual nodes on this machine, for tests; several side by side.

Of the Slurm whose commands come first on the path; its daemons may stand in /usr/sbin.
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

from gridweave.site.batch.slurm.parse import read_version
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
"""What makes a cluster take nodes away for jobs of its partition urgent."""


JWT = """\
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={key}
"""
"""What makes a cluster take tokens."""


def with_tokens(folder: Path) -> str:
    """Return what makes a cluster take tokens, by a key that is made in a folder."""
    key = folder / "jwt.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    return JWT.format(key=key)


def daemon(name: str) -> str | None:
    """Return where a daemon is."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")))


class SlurmCluster:
    """A cluster of nodes that are all this machine; its partition is called main."""

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
        """Run a command of Slurm, and return what it prints."""
        environment = os.environ | {"SLURM_CONF": str(self.conf)}
        done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def version(self) -> tuple[int, int]:
        """Return which Slurm it is."""
        return read_version(self.run("sinfo", "--version"))

    def up(self) -> None:
        """Start all of it, and wait until every node is idle."""
        self.start_controller()
        for number in range(self.nodes):
            self.start_node(number)
        idle = ("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D")
        self.wait(lambda: self.run(*idle).strip() == str(self.nodes), "idle nodes")

    def start_controller(self) -> None:
        """Start the controller, or start it anew, and wait until it answers."""
        self.run(daemon("slurmctld") or "", "-f", str(self.conf))
        self.wait(lambda: "is UP" in self.run("scontrol", "ping"), "the controller")

    def start_node(self, number: int) -> None:
        """Start the daemon of a node, counted from 0; jobs of all users find this Python there."""
        self.run(*reachable([daemon("slurmd") or "", "-f", str(self.conf), "-N", f"{self.name}{number + 1}"]))

    def kill_controller(self) -> None:
        """Kill the controller as if its machine had failed, once what was cancelled before is written down as that.

        It writes every few seconds. By an older state it would take such a job for one that runs, on nodes that others
        then do not get for minutes.
        """
        changed = self.run("sbatch", "--parsable", "--hold", "--wrap", "true").strip()
        self.run("scancel", changed)
        at_s = time.time()
        self.wait(lambda: (self.folder / "state" / "job_state").stat().st_mtime > at_s, "the state of the jobs")
        self._kill("slurmctld", signal.SIGKILL)

    def stop_controller(self) -> None:
        """Have the controller end, and wait until it has."""
        number = int((self.folder / "slurmctld.pid").read_text())
        self.run("scontrol", "shutdown", "slurmctld")
        self.wait(lambda: not Path(f"/proc/{number}").exists(), "the end of the controller")

    def hold_controller(self) -> None:
        """Have the controller stand still, as one that has too much to do: it takes questions, and answers none."""
        self._kill("slurmctld", signal.SIGSTOP)

    def release_controller(self) -> None:
        """Have the controller go on, with the questions that have come meanwhile."""
        self._kill("slurmctld", signal.SIGCONT)

    def kill_node(self, number: int) -> None:
        """Kill the daemon of a node."""
        self._kill(f"slurmd-{self.name}{number + 1}", signal.SIGKILL)

    def down(self) -> None:
        """End all of it."""
        with contextlib.suppress(subprocess.SubprocessError, AssertionError):
            self.run("scancel", "--partition=main")
            # A slurmd that is told to end beside a step of a job waits for that, and nobody ends it any more.
            self.wait(lambda: not self.run("squeue", "--noheader").strip(), "an empty queue", within_s=10)
        for path in self.folder.glob("*.pid"):
            self._kill(path.stem, signal.SIGTERM)

    def wait(self, what: Callable[[], bool], called: str, within_s: float = PATIENCE_S) -> None:
        """Wait until something holds."""
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
    """Yield a cluster that runs; skip where there is no Slurm."""
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
    """Yield the socket of a slurmrestd that an account runs, neither root nor that of Slurm; it can be read by all."""
    program = daemon("slurmrestd")
    if program is None:
        pytest.skip("slurmrestd is not at hand (Debian, as root: apt-get install slurmrestd)")
    place = cluster.folder.parent / "rest"
    place.mkdir(exist_ok=True)
    shutil.chown(place, account)
    socket = place / "socket"
    as_account = ["setpriv", f"--reuid={account}", "--regid=nogroup", "--clear-groups", "--"]
    # Before 23.02 each version of the interface was a plugin.
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
