"""A batch system in memory, and a site on it whose reconciler a test runs step by step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.site.job import Accepted, JobRecord, JobRequest, Program
from gridweave.site.launch import ANY_JOBS, MachineRules
from gridweave.site.messages import Machine, RunStarted
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service.clock import Clock
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.policy import BatchPolicy
from gridweave.slurm.service.folder import SharedFolder
from gridweave.slurm.service.hub import Hub
from gridweave.slurm.service.keeper import BatchKeeper
from gridweave.slurm.service.site import BatchSiteDriver, make_keeper, shared_folder
from gridweave.slurm.system import Allocation, AllocationEnd, AllocationRequest, BatchPlan, BatchUser, BatchView

NODES = 4


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
        The end that `end_told` reads from the output of an allocation's script.
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
        self.told: tuple[AllocationEnd, str] | None = None

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

    def end_told(self, printed: str) -> tuple[AllocationEnd, str] | None:
        """Return the end that the test has set."""
        return self.told

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
        self.keeper: BatchKeeper
        self.hub, self.keeper = make_keeper(self.driver, self.shared, plan, self.batch)

    async def _to_grid(self, _peer: str, _data: bytes) -> None:
        raise UnavailableError("there is no grid")

    async def _to_machine(self, machine: str, data: bytes) -> None:
        with contextlib.suppress(UnavailableError):
            self.hub.order(machine, data)

    async def round(self) -> None:
        """Run one round of the reconciler: take a snapshot of the batch system, and act on it."""
        await self.keeper.has_looked()
        await self.keeper.follow()

    async def submit(
        self, user: str = "anna", nodes: int = 1, limit_ms: int = 60_000, options: tuple[str, ...] = ()
    ) -> int:
        """Submit a job and return its number."""
        program = Program(argv=("true",))
        request = JobRequest(program=program, nodes=nodes, limit_ms=limit_ms, user=user, batch_options=options)
        (answer,) = await self.driver.submit([(f"{len(self.driver.site.book.records)} {user}", request)])
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
            await self.driver.told(RunStarted(machine, job_id, attempt))

    async def wait(self, span_ms: int) -> None:
        """Advance the clock by a time span, and let the site do what is due."""
        self.driver.clock = Clock(epoch_ms=self.driver.clock.epoch_ms - span_ms)
        await self.driver.told()

    async def heard(self, number: str, node: int) -> None:
        """Let a node of an allocation ask for its orders once, without waiting for any."""
        name = self.batch.queue[number].name
        asking = asyncio.ensure_future(self.hub.ask(self.shared.key(name), name, node))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    def record(self, job_id: int) -> JobRecord:
        """Return the record of a job."""
        records = self.driver.site.book.records
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
