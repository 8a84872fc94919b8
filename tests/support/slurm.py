"""Slurm for tests: real clusters on this machine, sites on them, a fake batch system, and recorded outputs.

Use `FakeBatch` and `kept_site` for decisions of the reconciler, `view_in` for outputs of Slurm's commands as text, and
`SlurmCluster` with `BatchSite` or `GridOfClusters` for everything else. Clusters use the first Slurm on the path; its
daemons may be in /usr/sbin. Several clusters can run at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.driver import GridDriver
from gridweave.site.job import Accepted, JobRecord, JobRequest, Program, Resources
from gridweave.site.launch import ANY_JOBS, MachineRules
from gridweave.site.lifecycle import OVER
from gridweave.site.messages import Machine, RunStarted
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service.clock import Clock
from gridweave.site.service.site_driver import GRID
from gridweave.slurm.cluster.commands import Slurm
from gridweave.slurm.cluster.parse import Partition, QueuedInSlurm, read_sinfo, read_squeue, read_version, view_of
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.policy import BatchPolicy
from gridweave.slurm.service.folder import SharedFolder, output_of
from gridweave.slurm.service.hub import Hub
from gridweave.slurm.service.reconciler import BatchReconciler
from gridweave.slurm.service.site import BatchSiteDriver, make_reconciler, shared_folder
from gridweave.slurm.system import Allocation, AllocationEnd, AllocationRequest, BatchPlan, BatchUser, BatchView
from support.machine import PATIENCE_S, reachable, unused_port

# -- clusters ---------------------------------------------------------------------------------------------------------

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
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
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


# -- sites on clusters ------------------------------------------------------------------------------------------------

NODES = 4

BY_JOBS = BatchPolicy()


class DeafSlurm(Slurm):
    """A Slurm client that loses the answers to the next `lost` submissions, which Slurm has accepted."""

    lost = 0

    async def submit(self, request: AllocationRequest) -> str:
        """Submit a request; UnavailableError if its answer is to be lost."""
        number = await super().submit(request)
        if self.lost:
            self.lost -= 1
            raise UnavailableError("sbatch has not answered for 30 s")
        return number


class BatchSite:
    """A site on a cluster, in this event loop, that can be killed and restarted."""

    def __init__(
        self, cluster: SlurmCluster, folder: Path, policy: BatchPolicy = BY_JOBS, name: str = "two", number: int = 0
    ) -> None:
        self.cluster, self.folder, self.policy, self.name, self.number = cluster, folder, policy, name, number
        slurm = SlurmSettings(partition="main", conf=str(cluster.conf))
        self.plan = BatchPlan(settings=slurm, folder=str(folder / "shared"), host="127.0.0.1", poll_s=0.3, lease_s=20)
        self.slurm = DeafSlurm(slurm)
        self.driver: BatchSiteDriver
        self.shared: SharedFolder
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the site from its journal."""
        lows = [25_000 + 100 * self.number + 4 * place for place in range(NODES)]
        machines = tuple(Machine(name=f"n{k}", nodes=1, ports=(low, low + 4)) for k, low in enumerate(lows))
        settings = SiteSettings(name=self.name, number=self.number, machines=machines, policy=self.policy)

        async def to_machine(machine: str, data: bytes) -> None:
            with contextlib.suppress(UnavailableError):
                self.hub.order(machine, data)

        self.driver = BatchSiteDriver(
            settings, self.folder / "journal", Clock(), to_grid=self.to_grid, to_machine=to_machine
        )
        self.shared = shared_folder(self.driver, self.plan)
        self.hub, self.reconciler = make_reconciler(self.driver, self.shared, self.plan, self.slurm)
        await self.hub.open("127.0.0.1")
        works = (self.driver.run(), self.driver.repeat_orders(), self.reconciler.run())
        self.tasks = [asyncio.ensure_future(work) for work in works]

    async def to_grid(self, _peer: str, _data: bytes) -> None:
        """Raise UnavailableError: there is no grid."""
        raise UnavailableError("there is no grid")

    async def kill(self) -> None:
        """Stop the site as if its process had been killed, without a last write or message."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []
        await self.hub.close()
        self.reconciler.output.close()
        await self.driver.close()

    async def submit(
        self,
        *argv: str,
        nodes: int = 1,
        limit_ms: int = 60_000,
        key: str = "",
        resources: Resources | None = None,
        **program: object,
    ) -> int:
        """Submit a job of one of the site's own users and return its number."""
        made = Program(argv=argv, **program)  # type: ignore[arg-type]
        request = JobRequest(program=made, nodes=nodes, limit_ms=limit_ms, user="anna", resources=resources)
        (answer,) = await self.driver.submit([(key or f"{argv}{nodes}{self.driver.clock.now_ms()}", request)])
        assert isinstance(answer, Accepted), answer
        return answer.job_id

    def record(self, job_id: int) -> JobRecord:
        """Return the record of a job."""
        records = self.driver.site.registry.records
        return records[job_id] if job_id in records else self.driver.journal.ended([job_id])[job_id]

    async def over(self, job_id: int) -> JobRecord:
        """Wait for the end of a job and return its record."""
        await self.until(lambda: self.record(job_id).state in OVER, f"the end of job {job_id}")
        return self.record(job_id)

    async def until(self, holds: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
        """Wait until a condition holds; raise the error of a task that fails meanwhile."""
        try:
            async with asyncio.timeout(within_s):
                while not holds():
                    for task in self.tasks:
                        if task.done():
                            task.result()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            queue = self.cluster.run("squeue", "-a", "-t", "all")
            raise AssertionError(f"{what}: not within {within_s:.0f} s\n{queue}") from None

    def running(self, job_id: int) -> Callable[[], bool]:
        """Return a function that checks whether a job runs."""
        return lambda: self.record(job_id).state == "running"

    def output(self, record: JobRecord, rank: int = 0) -> str:
        """Return the standard output of a rank."""
        return output_of(self.shared, record.job_id, record.attempt, rank, "out", 0, 1 << 16).data.decode()

    def queue(self) -> list[str]:
        """Return the names of the jobs in Slurm that have not ended."""
        return self.cluster.run("squeue", "-h", "-a", "-o", "%j").split()


class SiteOfGrid(BatchSite):
    """A site whose grid is in the same event loop."""

    grid: GridDriver

    async def to_grid(self, _peer: str, data: bytes) -> None:
        """Pass a packet to the grid."""
        self.grid.packet(self.name, data)


class GridOfClusters:
    """A grid under limited control of sites on real clusters, in this event loop."""

    def __init__(self, clusters: Sequence[SlurmCluster], folder: Path, policy: BatchPolicy) -> None:
        self.sites = [
            SiteOfGrid(each, folder / each.name, policy, each.name, number) for number, each in enumerate(clusters)
        ]
        settings = GridSettings(
            sites=tuple((site.name, NODES) for site in self.sites),
            policy=GridPolicy(mode="multi-site", control="limited"),
            retry_ms=1_000,
        )
        self.driver = GridDriver(settings, folder / "grid.journal", Clock(), to_site=self._to_site)

    async def _to_site(self, name: str, data: bytes) -> None:
        next(site for site in self.sites if site.name == name).driver.packet(GRID, data)

    async def __aenter__(self) -> GridOfClusters:
        """Start the sites and the grid."""
        for site in self.sites:
            site.folder.mkdir(exist_ok=True)
            site.grid = self.driver
            await site.start()
        self._works = asyncio.ensure_future(self.driver.run())
        return self

    async def submit(self, *argv: str, nodes: int, limit_ms: int = 60_000) -> int:
        """Submit a job and return its number."""
        request = JobRequest(program=Program(argv=argv), nodes=nodes, limit_ms=limit_ms, user="anna")
        (answer,) = await self.driver.submit([(f"{argv} {nodes}", request)])
        assert isinstance(answer, Accepted), answer
        return answer.job_id

    def record(self, job_id: int) -> JobRecord:
        """Return the record of a job."""
        records = self.driver.grid.registry.records
        return records[job_id] if job_id in records else self.driver.journal.ended([job_id])[job_id]

    async def __aexit__(self, *_: object) -> None:
        """Stop the grid and the sites, and cancel all of their jobs in Slurm."""
        self._works.cancel()
        await asyncio.gather(self._works, return_exceptions=True)
        await self.driver.close()
        for site in self.sites:
            await site.kill()
            site.cluster.run("scancel", "--partition=main")
            site.cluster.wait(partial(_is_empty, site), "an empty queue")


def _is_empty(site: BatchSite) -> bool:
    return not site.queue()


# -- a fake batch system ----------------------------------------------------------------------------------------------


class FakeBatch:
    """A batch system of four nodes that accepts all requests; a test decides how its allocations proceed.

    Attributes
    ----------
    queue : dict of str to Allocation
        The allocations that the batch system knows, by number.
    past : list of Allocation
        Ended allocations in its accounting.
    asked, cancelled : list of str
        The names of all requests, including failed ones, and the numbers of the cancelled allocations.
    told : tuple of str, optional
        The end that `end_from_output` reads from the output of an allocation's script.
    fails : dict of str to GridweaveError
        Errors by the name of the method that raises them. `submit` also raises errors under the account, or under the
        size of the request, such as ``2 nodes``.
    """

    def __init__(self) -> None:
        self.queue: dict[str, Allocation] = {}
        self.asked: list[str] = []
        self.requests: list[AllocationRequest] = []
        self.cancelled: list[str] = []
        self.fails: dict[str, GridweaveError] = {}
        self.past: list[Allocation] = []
        self.longest_ms: int | None = None
        self.apply: tuple[AllocationEnd, str] | None = None

    async def check(self, users: Iterable[BatchUser] = ()) -> tuple[str, ...]:
        """Return no problems."""
        return ()

    async def view(self, prefix: str) -> BatchView:
        """Return the allocations whose names begin with a prefix; all nodes are idle."""
        self._fail("view")
        found = tuple(each for each in self.queue.values() if each.name.startswith(prefix))
        return BatchView(nodes=NODES, idle=NODES, longest_ms=self.longest_ms, allocations=found)

    async def submit(self, request: AllocationRequest) -> str:
        """Accept a request, which then waits, and return its number."""
        self.asked.append(request.name)
        self._fail("submit")
        self._fail(request.runs_as or request.account)
        self._fail(f"{request.nodes} nodes")
        number = str(len(self.asked))
        self.requests.append(request)
        self.queue[number] = Allocation(
            name=request.name, number=number, state="waiting", reason="others go first", runs_as=request.runs_as
        )
        return number

    def script(self, command: tuple[str, ...], given: str = "") -> str:
        """Return a text that is never run as a script."""
        return f"{command} {given}"

    async def ended(self, names: Collection[str]) -> Sequence[Allocation]:
        """Return the ended allocations of these names from the accounting."""
        self._fail("ended")
        return [each for each in self.past if each.name in names]

    def end_from_output(self, printed: str) -> tuple[AllocationEnd, str] | None:
        """Return the end that the test has set."""
        return self.apply

    async def cancel(self, allocations: Sequence[Allocation]) -> None:
        """Remove allocations from the queue."""
        self._fail("cancel")
        for each in allocations:
            self._fail(f"cancel {each.runs_as}")
            self.cancelled.append(each.number)
            self.queue.pop(each.number, None)

    def _fail(self, what: str) -> None:
        if what in self.fails:
            raise self.fails[what]

    def change(self, number: str, **fields: object) -> None:
        """Change fields of an allocation."""
        self.queue[number] = msgspec.structs.replace(self.queue[number], **fields)


class KeptSite:
    """A site on a `FakeBatch`; its reconciler acts only when a test calls `round`."""

    def __init__(
        self,
        folder: Path,
        policy: BatchPolicy | None = None,
        users: dict[str, BatchUser] | None = None,
        batch: FakeBatch | None = None,
        rules: MachineRules = ANY_JOBS,
    ) -> None:
        slurm = SlurmSettings(partition="main")
        plan = BatchPlan(settings=slurm, folder=str(folder / "shared"), rules=rules)
        self.batch = batch or FakeBatch()
        machines = tuple(Machine(name=f"n{k}", nodes=1, ports=(25_000 + 4 * k, 25_004 + 4 * k)) for k in range(NODES))
        settings = SiteSettings(name="two", number=0, machines=machines, policy=policy or BatchPolicy())
        self.driver = BatchSiteDriver(
            settings, folder / "journal", Clock(), to_grid=self._to_grid, to_machine=self._to_machine
        )
        self.shared: SharedFolder = shared_folder(self.driver, plan)
        # Users are added after the folder is made: they could not reach a test's folder, and nothing runs in it.
        plan = msgspec.structs.replace(plan, users=users or {})
        self.hub: Hub
        self.reconciler: BatchReconciler
        self.hub, self.reconciler = make_reconciler(self.driver, self.shared, plan, self.batch)

    async def _to_grid(self, _peer: str, _data: bytes) -> None:
        raise UnavailableError("there is no grid")

    async def _to_machine(self, machine: str, data: bytes) -> None:
        with contextlib.suppress(UnavailableError):
            self.hub.order(machine, data)

    async def round(self) -> None:
        """Run one round of the reconciler: take a snapshot of the batch system, and act on it."""
        await self.reconciler.has_looked()
        await self.reconciler.follow()

    async def submit(
        self, user: str = "anna", nodes: int = 1, limit_ms: int = 60_000, options: tuple[str, ...] = ()
    ) -> int:
        """Submit a job and return its number."""
        program = Program(argv=("true",))
        request = JobRequest(program=program, nodes=nodes, limit_ms=limit_ms, user=user, batch_options=options)
        (answer,) = await self.driver.submit([(f"{len(self.driver.site.registry.records)} {user}", request)])
        assert isinstance(answer, Accepted), answer
        return answer.job_id

    async def starts(self, job_id: int) -> None:
        """Let the last allocation start and its nodes report, and the job run on them."""
        number, last = list(self.batch.queue.items())[-1]
        self.batch.change(number, state="running", reason="")
        for node in range(self.batch.requests[-1].nodes):
            await self.hub.hello(self.shared.key(last.name), last.name, node, number, "host", "")
        await self.round()
        for machine, attempt, _ in self.driver.site.runs.unfinished(job_id):
            await self.driver.apply(RunStarted(machine, job_id, attempt))

    async def wait(self, span_ms: int) -> None:
        """Advance the clock by a time span, and let the site do what is due."""
        self.driver.clock = Clock(epoch_ms=self.driver.clock.epoch_ms - span_ms)
        await self.driver.apply()

    async def heard(self, number: str, node: int) -> None:
        """Let a node of an allocation ask for its orders once, without waiting for any."""
        name = self.batch.queue[number].name
        asking = asyncio.ensure_future(self.hub.ask(self.shared.key(name), name, node))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    def record(self, job_id: int) -> JobRecord:
        """Return the record of a job."""
        records = self.driver.site.registry.records
        return records[job_id] if job_id in records else self.driver.journal.ended([job_id])[job_id]

    def why(self, job_id: int) -> str:
        """Return the reason in a job's forecast; empty without a forecast."""
        forecast = self.driver.site.forecast(self.driver.clock.now_ms(), job_id)
        return "" if forecast is None else forecast.reason


@contextlib.asynccontextmanager
async def kept_site(
    folder: Path,
    policy: BatchPolicy | None = None,
    users: dict[str, BatchUser] | None = None,
    batch: FakeBatch | None = None,
    rules: MachineRules = ANY_JOBS,
) -> AsyncIterator[KeptSite]:
    """Yield a site with a running driver, on the given batch system or on a new one."""
    site = KeptSite(folder, policy, users, batch, rules)
    running = asyncio.ensure_future(site.driver.run())
    try:
        yield site
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await site.driver.close()


# -- recorded outputs -------------------------------------------------------------------------------------------------


def partition_in(sinfo: str) -> Partition:
    """Return the partition in an output of sinfo; its nodes have no names."""
    return read_sinfo("".join(f"{line}|\n" for line in sinfo.splitlines()), "main")


def queue_in(squeue: str) -> list[QueuedInSlurm]:
    """Return the jobs in an output of squeue, all in one partition, on nodes without names."""
    return read_squeue("".join(f"|main||{line}\n" for line in squeue.splitlines()))[0]


def view_in(sinfo: str, squeue: str, prefix: str, own: str = "") -> BatchView:
    """Return the snapshot of a cluster from both outputs."""
    return view_of(partition_in(sinfo), queue_in(squeue), "main", prefix, own)
