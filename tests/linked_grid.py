"""A grid whose sites are linked over HTTP, in one event loop: the real services of `gridweave serve`, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

from gridweave.errors import UnavailableError
from gridweave.grid.config.tables import GatewayTable
from gridweave.grid.gateway.server import Gateway
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.actor import MetaActor
from gridweave.grid.service.backend import LiveBackend, SiteBackend
from gridweave.grid.service.cluster import SitePlan
from gridweave.grid.service.doors import CallsOverLinks, FarSite, LinksDoor, SiteDoor, carry, close_links, serve_door
from gridweave.grid.service.serve import GridService, SiteService
from gridweave.site.machine.agent import AgentDriver
from gridweave.site.messages import Machine
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service import calls as ray_names
from gridweave.site.service.actor import SiteActor
from gridweave.site.service.calls import CALL_S, GRID_ACTOR, Door
from gridweave.site.service.clock import Clock
from gridweave.site.service.link import LinkEnd
from gridweave.site.service.prober import ProbePlan
from ports import unused_port
from wire import Wire

SITES = (("alpha", 4), ("beta", 2))


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
        self.settings = GridSettings(sites=SITES, **options)
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
        name, nodes = SITES[number]
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
            for name, _ in SITES
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
        ports = {name: unused_port() for name, _ in SITES}
        for name, port in ports.items():
            grid.down[name] = await stack.enter_async_context(Wire(port))
            grid.up[name] = await stack.enter_async_context(Wire(grid.port))
        for number, (name, _) in enumerate(SITES):
            site = grid.sites[name] = LinkedSite(grid._site_service(number, ports[name]))
            await site.start()
            stack.push_async_callback(site.stop)
        await grid.start_grid()
        stack.push_async_callback(grid.stop_grid)
        yield grid
    if grid.errors:
        raise grid.errors[0]
