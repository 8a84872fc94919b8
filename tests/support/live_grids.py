"""Live grids with real processes: in one event loop, linked over HTTP, behind a gateway, or started by a command.

`LocalGrid` has all drivers in the event loop of the test; `GridBehindGateway` runs it with a gateway in another thread.
`linked_grid` connects sites by the services of `gridweave serve`. None of these needs Ray. `UpWorld` isolates the grids
that `gridweave up` starts, and removes them afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from unittest import mock

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.config.local_state import kill
from gridweave.grid.config.tables import GatewayTable
from gridweave.grid.gateway.server import Gateway
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service import backend as backend_module
from gridweave.grid.service.actor import MetaActor
from gridweave.grid.service.backend import LiveBackend, SiteBackend
from gridweave.grid.service.cluster import SitePlan, machines_with_kinds
from gridweave.grid.service.doors import CallsOverLinks, FarSite, LinksDoor, SiteDoor, carry, close_links, serve_door
from gridweave.grid.service.driver import GridDriver
from gridweave.grid.service.queries import GridQueries
from gridweave.grid.service.serve import GridService, SiteService
from gridweave.site.disciplines.dictionary import counted_kinds, counted_placement
from gridweave.site.disciplines.entry import Policy
from gridweave.site.launch import ANY_JOBS, MachineRules
from gridweave.site.machine.agent import AgentDriver
from gridweave.site.machine.hardware.bind import bind
from gridweave.site.machine.hardware.find import Hardware
from gridweave.site.machine.processes import strays
from gridweave.site.messages import Machine
from gridweave.site.policy import SitePolicy
from gridweave.site.quotas import NO_QUOTAS, Quotas
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service import calls as ray_names
from gridweave.site.service.actor import SiteActor
from gridweave.site.service.calls import CALL_S, GRID_ACTOR, Door, agent_actor, site_actor
from gridweave.site.service.clock import Clock
from gridweave.site.service.link import LinkEnd
from gridweave.site.service.prober import ProbePlan
from gridweave.site.service.queries import SiteQueries
from gridweave.site.service.site_driver import GRID, SiteDriver
from gridweave.site.users.owner import OwnerPolicy
from support.machine import PATIENCE_S, meeting_ports, unused_port
from support.web import Wire

# -- in one event loop ------------------------------------------------------------------------------------------------

SITES = (("north", (2, 2)), ("south", (2,)))
"""The default sites, each with the nodes of its machines."""

PATIENT_LOOK_S = 0.9 * CALL_S
"""Replaces `backend.LOOK_S`, the short wait for each site's answer, which a busy machine may exceed."""


class LocalGrid:
    """A grid of drivers in one event loop, behind the same `Backend` as a grid on Ray.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of journals and jobs. A new grid in the same folder continues where the last one ended.
    sites : tuple of (str, tuple of int)
        Name of each site, and the nodes of each of its machines (``m0``, ``m1``, ...).
    rules : dict from str to MachineRules, optional
        Per site, which users' jobs its machines start and under which accounts. By default the machines start all
        users' jobs, as the user of this process.
    policies : dict from str to Policy, optional
        Policies of sites; by default a queue of whole nodes.
    hardware : dict from str to Hardware, optional
        What machines have (``north/m0``), at sites that count resources; by default no core that could be bound.
    maxima : Quotas
        Quotas of the grid's users.
    kinds : dict from str to tuple of NodeKind, optional
        The kinds of nodes of sites that count resources.
    **options
        Fields of `GridSettings`.

    Attributes
    ----------
    backend : LiveBackend
    away : set of str
        Actors that do not answer (``grid``, ``site:north``, ``agent:north/m0``); tests may change it.
    desks : dict from str to SiteQueries
        The queries of each site; a test can set which machines do not answer.

    Examples
    --------
    ::

        async with LocalGrid(tmp_path) as grid:
            answers = await grid.backend.submit([("key", request)], site=None, origin="a test")
    """

    def __init__(
        self,
        folder: Path,
        sites: tuple[tuple[str, tuple[int, ...]], ...] = SITES,
        *,
        rules: Mapping[str, MachineRules] | None = None,
        policies: Mapping[str, Policy] | None = None,
        hardware: Mapping[str, Hardware] | None = None,
        quotas: Quotas = NO_QUOTAS,
        kinds: Mapping[str, tuple[NodeKind, ...]] | None = None,
        **options: Any,
    ) -> None:
        self.folder, self.away = folder, set[str]()
        self._hardware = hardware or {}
        self._rules, self._quotas = rules or {}, quotas
        self.settings = [
            SiteSettings(
                name=name,
                number=number,
                machines=tuple(
                    Machine(name=f"m{place}", nodes=count, ports=meeting_ports(10 * number + place))
                    for place, count in enumerate(nodes)
                ),
                policy=(policies or {}).get(name, SitePolicy(kinds=(kinds or {}).get(name, ()))),
                owner=OwnerPolicy(),
            )
            for number, (name, nodes) in enumerate(sites)
        ]
        each = tuple((settings.name, settings.nodes) for settings in self.settings)
        options = {"policy": GridPolicy(mode="multi-site"), "margin_ms": 500, "retry_ms": 2_000} | options
        options |= {"kinds": tuple(counted_kinds(settings.policy) for settings in self.settings)}
        options |= {"placements": tuple(counted_placement(settings.policy) for settings in self.settings)}
        self.grid_settings = GridSettings(sites=each, **options)
        self.backend = LiveBackend(self)
        self.sites: dict[str, SiteDriver] = {}
        self.desks: dict[str, SiteQueries] = {}
        self.agents: dict[str, AgentDriver] = {}
        self._doors: dict[str, Door] = {}
        self._patience = mock.patch.object(backend_module, "LOOK_S", PATIENT_LOOK_S)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> LocalGrid:
        """Start the grid."""
        self._patience.start()
        for settings in self.settings:
            for agent, kinds in machines_with_kinds(settings):
                await self._start_agent(settings.name, agent.name, kinds)
        for settings in self.settings:
            self._start_site(settings)
        machines = tuple(tuple(agent.name for agent in settings.machines) for settings in self.settings)
        place, doors = self.folder / "grid.journal", {"to_site": self._to_site}
        self.driver = GridDriver(self.grid_settings, place, Clock(), quotas=self._quotas, **doors)
        self.grid_desk = GridQueries(self.driver, machines)
        self._doors[GRID_ACTOR] = Door(self.grid_desk, GridQueries.methods)
        self._spawn(self.driver.run())
        return self

    async def _start_agent(self, site: str, name: str, kinds: tuple[NodeKind, ...]) -> None:
        async def report(data: bytes) -> None:
            await self._carried(site_actor(site), self.sites[site].report(data))

        root = self.folder / site / name
        root.mkdir(parents=True, exist_ok=True)
        own: dict[str, Any] = {}
        if kinds:
            hardware = self._hardware.get(f"{site}/{name}", Hardware(cores=0, memory_mb=0))
            binding = bind(hardware, kinds)
            own = {"cores": binding.cores, "gpus": binding.gpus}
        driver = AgentDriver(name, root, report, rules=self._rules.get(site, ANY_JOBS), **own)
        await driver.open()
        self.agents[f"{site}/{name}"] = driver
        self._doors[agent_actor(site, name)] = Door(driver, ("part",))
        self._spawn(driver.run())

    def _start_site(self, settings: SiteSettings) -> None:
        name = settings.name

        async def to_grid(_peer: str, data: bytes) -> None:
            self._reach(GRID_ACTOR)
            self.driver.packet(name, data)
            await asyncio.sleep(0)

        async def to_machine(agent: str, data: bytes) -> None:
            await self._carried(agent_actor(name, agent), self.agents[f"{name}/{agent}"].order(data))

        place = self.folder / f"{name}.journal"
        driver = SiteDriver(settings, place, Clock(), to_grid=to_grid, to_machine=to_machine)
        self.sites[name] = driver
        self.desks[name] = SiteQueries(driver)
        self._doors[site_actor(name)] = Door(self.desks[name], SiteQueries.methods)
        self._spawn(driver.run())
        self._spawn(driver.repeat_orders())

    async def _to_site(self, name: str, data: bytes) -> None:
        self._reach(site_actor(name))
        self.sites[name].packet(GRID, data)
        await asyncio.sleep(0)

    def _reach(self, actor: str) -> None:
        if actor in self.away:
            raise UnavailableError(f"actor {actor} does not answer: it is away")

    async def _carried(self, actor: str, work: Any) -> None:
        try:
            self._reach(actor)
        except UnavailableError:
            work.close()
            raise
        await work

    def _spawn(self, work: Any) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    async def call(self, actor: str, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
        """Fail: the backend sends only queries."""
        raise AssertionError(f"{method} of {actor} is called")

    async def ask(
        self, actor: str, method: str, data: bytes, *, timeout_s: float = CALL_S, alone: bool = False
    ) -> bytes:
        """Send a query to an actor, as `ActorCalls` does on Ray."""
        self._reach(actor)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._doors[actor].ask(method, data)
        except TimeoutError as error:
            raise UnavailableError(f"actor {actor} does not answer: TimeoutError") from error

    async def __aexit__(self, *_: object) -> None:
        """End the running jobs and stop the grid."""
        self._patience.stop()
        for agent in self.agents.values():
            await agent.end_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            # Errors of background tasks fail the test.
            with contextlib.suppress(asyncio.CancelledError):
                task.result()
        for agent in self.agents.values():
            await agent.close()
        for driver in (self.driver, *self.sites.values()):
            with contextlib.suppress(GridweaveError):
                await driver.close()


# -- linked over HTTP -------------------------------------------------------------------------------------------------

LINKED_SITES = (("alpha", 4), ("beta", 2))


def write_secret(folder: Path, name: str) -> str:
    """Write a secret into a file and return its path."""
    path = folder / name
    path.write_text(f"  {name}-{'s' * 40}\n")
    return str(path)


class LinkedSite:
    """A site with its gateway and one machine, which runs real processes.

    Parameters
    ----------
    service : SiteService
    """

    def __init__(self, service: SiteService) -> None:
        self.service, self.name = service, service.settings.name
        self.backend = SiteBackend(self, self.name)

    async def start(self) -> None:
        """Start the site; it recovers jobs that still run."""
        root = Path(self.service.folder) / "m0"
        root.mkdir(parents=True, exist_ok=True)
        self.agent = AgentDriver("m0", root, self._report)
        await self.agent.open()
        self._door = Door(self.agent, ("part",))
        self._watching = asyncio.create_task(self.agent.run())
        journal = str(Path(self.service.folder) / "site.journal")
        self.actor = SiteActor(self.service.settings, journal, Clock(), self.service.uplink, calls=self)
        door = SiteDoor(self.name, ("m0",), self.service.accepts_file)
        self.gateway: Gateway = serve_door(door, self.service.gateway.settings(""), self).gateway
        await self.gateway.start()

    async def call(self, actor: str, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
        """Call a method of an actor of the site."""
        kind = actor.partition(":")[0]
        try:
            async with asyncio.timeout(timeout_s):
                if kind == "site":
                    return await getattr(self.actor, method)(*arguments)
                assert kind == "agent", f"{actor} is not of this site"
                if method == "order":
                    return await self.agent.order(*arguments)
                return 0 if method == "process" else await self._door.ask(*arguments)
        except TimeoutError as error:
            raise UnavailableError(f"actor {actor} does not answer") from error

    async def ask(
        self, actor: str, method: str, data: bytes, *, timeout_s: float = CALL_S, alone: bool = False
    ) -> bytes:
        """Send a query to an actor of the site."""
        answer: bytes = await self.call(actor, "ask", method, data, timeout_s=timeout_s)
        return answer

    async def _report(self, data: bytes) -> None:
        await self.actor.report(data)

    async def stop(self, *, end_jobs: bool = True) -> None:
        """Stop the site's services, and end its jobs unless `end_jobs` is False."""
        await self.gateway.stop()
        await self.actor.stop()
        if end_jobs:
            await self.agent.end_all()
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self.agent.close()


class GridSide:
    """The meta-scheduler and its gateway with the links; they run in the event loop that creates this object."""

    def __init__(self, service: GridService) -> None:
        settings, machines = service.gateway.settings(""), tuple(site.machines for site in service.sites)
        self.meta = MetaActor(service.settings, service.journal, Clock(), machines, calls=self, far=True)
        self.served = serve_door(LinksDoor(service.sites, service.probes), settings, self)
        self.gateway, self.links = self.served.gateway, self.served.links
        self.backend = LiveBackend(CallsOverLinks(self, self.links))
        self._works = [asyncio.create_task(work) for work in self.served.works()]

    async def call(self, actor: str, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
        """Call a method of the meta-scheduler, or let the gateway carry a packet."""
        if method == "carry":
            return await carry(self.links, *arguments)
        assert actor == GRID_ACTOR, f"{actor} is not of this side"
        try:
            async with asyncio.timeout(timeout_s):
                return await getattr(self.meta, method)(*arguments)
        except TimeoutError as error:
            raise UnavailableError(f"actor {actor} does not answer") from error

    async def ask(
        self, actor: str, method: str, data: bytes, *, timeout_s: float = CALL_S, alone: bool = False
    ) -> bytes:
        """Send a query to the meta-scheduler."""
        answer: bytes = await self.call(actor, "ask", method, data, timeout_s=timeout_s)
        return answer

    async def stop(self) -> None:
        """Close the journal and all connections."""
        for work in self._works:
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        await self.meta.stop()
        await close_links(self.links)


class LinkedGrid:
    """A meta-scheduler and its sites, with a `Wire` for each direction of each link.

    Parameters
    ----------
    folder : pathlib.Path
    probes : ProbePlan, optional
        When to measure the paths between the sites.
    **options
        Fields of `GridSettings`.

    Attributes
    ----------
    down, up : dict from str to Wire
        The wires to each site and from each site.
    grid : GridSide
    sites : dict from str to LinkedSite
    """

    def __init__(self, folder: Path, probes: ProbePlan | None = None, **options: Any) -> None:
        self.folder, self.probes = folder, probes
        options = {"policy": GridPolicy(mode="multi-site"), "margin_ms": 500, "retry_ms": 1_000} | options
        self.settings = GridSettings(sites=LINKED_SITES, **options)
        self.port = unused_port()
        self.down: dict[str, Wire] = {}
        self.up: dict[str, Wire] = {}
        self.sites: dict[str, LinkedSite] = {}
        self.errors: list[BaseException] = []

    @property
    def backend(self) -> LiveBackend:
        """The backend of the grid's gateway."""
        return self.grid.backend

    def _site_service(self, number: int, port: int) -> SiteService:
        name, nodes = LINKED_SITES[number]
        ports = (24_000 + 100 * number, 24_100 + 100 * number)
        agents = (Machine(name="m0", nodes=nodes, ports=ports),)
        return SiteService(
            folder=str(self.folder / name),
            plan=SitePlan(name=name, nodes=nodes),
            settings=SiteSettings(name=name, number=number, machines=agents, policy=SitePolicy()),
            namespace="",
            gateway=GatewayTable(port=port, tokens=False),
            uplink=LinkEnd(site=name, url=self.up[name].url, token_file=write_secret(self.folder, f"{name}-to-grid")),
            accepts_file=write_secret(self.folder, f"grid-to-{name}"),
        )

    def _grid_service(self) -> GridService:
        sites = tuple(
            FarSite(
                end=LinkEnd(site=name, url=self.down[name].url, token_file=str(self.folder / f"grid-to-{name}")),
                accepts_file=str(self.folder / f"{name}-to-grid"),
                machines=("m0",),
            )
            for name, _ in LINKED_SITES
        )
        return GridService(
            folder=str(self.folder / "grid"),
            settings=self.settings,
            sites=sites,
            gateway=GatewayTable(port=self.port, tokens=False),
            journal=str(self.folder / "grid.journal"),
            probes=self.probes,
        )

    async def start_grid(self) -> None:
        """Start the meta-scheduler and its gateway."""
        service = self._grid_service()
        self.grid = GridSide(service)
        await self.grid.gateway.start()
        await self.grid.meta.ready()

    async def stop_grid(self) -> None:
        """Stop the meta-scheduler and its gateway."""
        await self.grid.gateway.stop()
        await self.grid.stop()

    async def restart_site(self, name: str) -> None:
        """Stop a site and start it again; its jobs keep running."""
        await self.sites[name].stop(end_jobs=False)
        await self.sites[name].start()

    def cut(self, name: str, how: Any, *, down: bool = True, up: bool = True) -> None:
        """Cut the link of a site, or repair it with ``""``, in one or both directions."""
        for wires, is_meant in ((self.down, down), (self.up, up)):
            if is_meant:
                wires[name].set(how)


@contextlib.asynccontextmanager
async def linked_grid(folder: Path, **options: Any) -> AsyncIterator[LinkedGrid]:
    """Yield a running linked grid; stop it afterwards, and raise the first error that ended a background task."""
    grid = LinkedGrid(folder, **options)

    def ended(_name: str, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            grid.errors.append(task.exception() or AssertionError())

    async with contextlib.AsyncExitStack() as stack:
        # In production an error of a background task ends its process, which would be the test's here.
        stack.enter_context(mock.patch.object(ray_names, "_ended", ended))
        ports = {name: unused_port() for name, _ in LINKED_SITES}
        for name, port in ports.items():
            grid.down[name] = await stack.enter_async_context(Wire(port))
            grid.up[name] = await stack.enter_async_context(Wire(grid.port))
        for number, (name, _) in enumerate(LINKED_SITES):
            site = grid.sites[name] = LinkedSite(grid._site_service(number, ports[name]))
            await site.start()
            stack.push_async_callback(site.stop)
        await grid.start_grid()
        stack.push_async_callback(grid.stop_grid)
        yield grid
    if grid.errors:
        raise grid.errors[0]


# -- behind a gateway -------------------------------------------------------------------------------------------------

T = TypeVar("T")


class GridBehindGateway:
    """A `LocalGrid` with a gateway on a port of this machine, as a context manager for synchronous tests.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of journals and jobs.
    sites
        As for `LocalGrid`.
    **options
        Fields of `GridSettings`.

    Attributes
    ----------
    url : str
    """

    def __init__(self, folder: Path, sites: tuple[tuple[str, tuple[int, ...]], ...] = SITES, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="grid")
        self._folder, self._sites, self._options = folder, sites, options

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the grid's event loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=PATIENCE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.do(self._start())
        except BaseException:
            self._stop_loop()
            raise
        return self

    async def _start(self) -> None:
        self.grid = await LocalGrid(self._folder, self._sites, **self._options).__aenter__()
        unlimited = {"requests_per_s": 1e6, "burst": 1e6}
        self.gateway = Gateway(self.grid.backend, GatewaySettings(port=0, **unlimited))
        await self.gateway.start()
        self.url = self.gateway.url

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.do(self._end())
        finally:
            self._stop_loop()

    async def _end(self) -> None:
        await self.gateway.stop()
        await self.grid.__aexit__()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


# -- started by a command ---------------------------------------------------------------------------------------------

UP_FILE = """
[[sites]]
name = "north"
nodes = 3

[[sites]]
name = "south"
nodes = 2

[gateway]
port = 0

[ray]
nodes = "machine"
"""

UP_MARK = "GRIDWEAVE_TEST_OF_UP"
"""Environment variable that marks all processes that these tests start."""


class UpWorld:
    """A folder for the state of grids, and a mark in the environment of all processes started for them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        # Paths of Ray's sockets have at most 107 bytes, and other users' grids are directly in /tmp.
        self.temp = Path("/tmp") / self.mark[:5]
        self.temp.mkdir()
        (folder / "GRID.toml").write_text(UP_FILE)
        own = {"XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(self.temp), UP_MARK: self.mark}
        self.environment = os.environ | own

    def begin(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a command and return its process."""
        return subprocess.Popen(
            [sys.executable, "-m", "gridweave.cli", *map(str, arguments)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            start_new_session=True,
        )

    def run(self, *arguments: object) -> tuple[int, str]:
        """Run a command to its end; return its exit status and its output."""
        child = self.begin(*arguments)
        printed, _ = child.communicate(timeout=PATIENCE_S)
        return child.returncode, printed

    def left(self) -> list[Any]:
        """Return the processes of this world that are still alive."""
        return strays(self.mark, (), variable=UP_MARK)

    def folders_left(self) -> list[Path]:
        """Return Ray's folders that still exist."""
        return sorted(self.temp.glob("gridweave-*"))

    def close(self) -> None:
        """Kill the remaining processes and remove Ray's folders."""
        kill(self.left())
        shutil.rmtree(self.temp, ignore_errors=True)
