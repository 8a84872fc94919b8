"""A whole live grid in this process, without Ray: drivers, queries and agents that run real processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.backend import LiveBackend
from gridweave.grid.service.desk import GridDesk
from gridweave.grid.service.driver import GridDriver
from gridweave.site.launch import ANY_JOBS, MachineRules
from gridweave.site.machine.agent import AgentDriver
from gridweave.site.maxima import NO_MAXIMA, Maxima
from gridweave.site.messages import Machine
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service.calls import CALL_S, GRID_ACTOR, Door, agent_actor, site_actor
from gridweave.site.service.clock import Clock
from gridweave.site.service.desk import SiteDesk
from gridweave.site.service.site_driver import GRID, SiteDriver
from gridweave.site.users.owner import OwnerPolicy
from ports import meeting_ports

SITES = (("north", (2, 2)), ("south", (2,)))
"""The default sites, each with the nodes of its machines."""


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
    maxima : Maxima
        Quotas of the grid's users.
    **options
        Fields of `GridSettings`.

    Attributes
    ----------
    backend : LiveBackend
    away : set of str
        Actors that do not answer (``grid``, ``site:north``, ``agent:north/m0``); tests may change it.
    desks : dict from str to SiteDesk
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
        maxima: Maxima = NO_MAXIMA,
        **options: Any,
    ) -> None:
        self.folder, self.away = folder, set[str]()
        self._rules, self._maxima = rules or {}, maxima
        self.settings = [
            SiteSettings(
                name=name,
                number=number,
                machines=tuple(
                    Machine(name=f"m{place}", nodes=count, ports=meeting_ports(10 * number + place))
                    for place, count in enumerate(nodes)
                ),
                policy=SitePolicy(),
                owner=OwnerPolicy(),
            )
            for number, (name, nodes) in enumerate(sites)
        ]
        each = tuple((settings.name, settings.nodes) for settings in self.settings)
        options = {"policy": GridPolicy(mode="multi-site"), "margin_ms": 500, "retry_ms": 2_000} | options
        self.grid_settings = GridSettings(sites=each, **options)
        self.backend = LiveBackend(self)
        self.sites: dict[str, SiteDriver] = {}
        self.desks: dict[str, SiteDesk] = {}
        self.agents: dict[str, AgentDriver] = {}
        self._doors: dict[str, Door] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> LocalGrid:
        """Start the grid."""
        for settings in self.settings:
            for agent in settings.machines:
                await self._start_agent(settings.name, agent.name)
        for settings in self.settings:
            self._start_site(settings)
        machines = tuple(tuple(agent.name for agent in settings.machines) for settings in self.settings)
        place, doors = self.folder / "grid.journal", {"to_site": self._to_site}
        self.driver = GridDriver(self.grid_settings, place, Clock(), maxima=self._maxima, **doors)
        self.grid_desk = GridDesk(self.driver, machines)
        self._doors[GRID_ACTOR] = Door(self.grid_desk, GridDesk.methods)
        self._spawn(self.driver.run())
        return self

    async def _start_agent(self, site: str, name: str) -> None:
        async def report(data: bytes) -> None:
            await self._carried(site_actor(site), self.sites[site].report(data))

        root = self.folder / site / name
        root.mkdir(parents=True, exist_ok=True)
        driver = AgentDriver(name, root, report, rules=self._rules.get(site, ANY_JOBS))
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
        self.desks[name] = SiteDesk(driver)
        self._doors[site_actor(name)] = Door(self.desks[name], SiteDesk.methods)
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
