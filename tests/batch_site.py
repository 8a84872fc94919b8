"""A live site on a real Slurm cluster, in the event loop of a test, that can be killed and restarted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gridweave.errors import UnavailableError
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.driver import GridDriver
from gridweave.site.job import Accepted, JobRecord, JobRequest, Program, Resources
from gridweave.site.lifecycle import OVER
from gridweave.site.messages import Machine
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service.clock import Clock
from gridweave.site.service.site_driver import GRID
from gridweave.slurm.cluster.commands import Slurm
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.policy import BatchPolicy
from gridweave.slurm.service.folder import SharedFolder, output_of
from gridweave.slurm.service.site import BatchSiteDriver, make_keeper, shared_folder
from gridweave.slurm.system import AllocationRequest, BatchPlan
from slurm_cluster import SlurmCluster
from waiting import PATIENCE_S

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
        self.hub, self.keeper = make_keeper(self.driver, self.shared, self.plan, self.slurm)
        await self.hub.open("127.0.0.1")
        works = (self.driver.run(), self.driver.repeat_orders(), self.keeper.run())
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
        self.keeper.output.close()
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
        records = self.driver.site.book.records
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
        records = self.driver.grid.book.records
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
