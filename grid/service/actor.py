"""The meta-scheduler and the gateway as actors."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gridweave.errors import GridweaveError
from gridweave.grid.config.local_state import GatewayMark
from gridweave.site.machine.folders import write_whole
from gridweave.site.machine.processes import process_stat
from gridweave.site.messages import Probed
from gridweave.site.quotas import NO_QUOTAS, Quotas
from gridweave.site.service.actor import DrivenActor
from gridweave.site.service.calls import (
    GATEWAY_ACTOR,
    GRID_ACTOR,
    Calls,
    LiveActor,
    encode,
    journal_place,
    run_forever,
    site_actor,
)
from gridweave.site.service.clock import HISTORY_DAYS, Clock

if TYPE_CHECKING:
    from gridweave.grid.config.gateway import GatewaySettings
    from gridweave.grid.meta.settings import GridSettings
    from gridweave.grid.service.doors import GatewayDoor, ServedGateway
    from gridweave.grid.service.queries import GridQueries


logger = logging.getLogger("gridweave.gateway")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0


class MetaActor(DrivenActor["GridQueries"]):
    """The meta-scheduler as an actor, a thin wrapper around its `GridDriver`.

    The actor calls its sites through `calls`: as actors of its Ray cluster or, if the sites are `far`, over the
    gateway's links. `machines` lists the machines of each site, in site order.
    """

    def __init__(
        self,
        settings: GridSettings,
        journal: str,
        clock: Clock,
        machines: tuple[tuple[str, ...], ...] = (),
        *,
        calls: Calls,
        far: bool = False,
        password_file: str = "",
        quotas: Quotas = NO_QUOTAS,
        history_days: int = HISTORY_DAYS,
        **own: str,
    ) -> None:
        self._calls, self._far = calls, far
        self._password_file, self._quotas, self._history_days = password_file, quotas, history_days
        self._settings, self._machines = settings, machines
        self._journal, self._clock = journal, clock
        super().__init__(GRID_ACTOR, **own)

    def make_queries(self) -> GridQueries:
        """Create the meta-scheduler's queries with its driver."""
        from gridweave.grid.service.driver import GridDriver
        from gridweave.grid.service.queries import GridQueries

        place = journal_place(self._journal, self._password_file)
        own: dict[str, Any] = {"quotas": self._quotas, "history_days": self._history_days}
        # Ray returns arrays read-only, and the kernels write into some of these.
        settings = copy.deepcopy(self._settings)
        driver = GridDriver(settings, place, self._clock, to_site=self._to_site, **own)
        return GridQueries(driver, self._machines)

    async def _to_site(self, site: str, data: bytes) -> str | None:
        refusal: str | None
        if self._far:
            refusal = await self._calls.call(GATEWAY_ACTOR, "carry", site, data)
        else:
            refusal = await self._calls.call(site_actor(site), "packet", data)
        return refusal

    async def packet(self, site: str, data: bytes) -> str | None:
        """Apply a packet from a site; return why the packet was dropped, or None."""
        return self.queries_now().driver.packet(site, data)

    async def probed(self, data: bytes) -> None:
        """Record a site's measurement of its path to another site."""
        await self.queries_now().driver.probed(msgspec.msgpack.decode(data, type=Probed))

    async def measured(self) -> bytes:
        """Return the paths between sites that probes have measured."""
        driver = (await self.queries()).driver
        return encode(driver.grid.measured.pairs(driver.clock.now_ms()))

    async def ended_count(self) -> int:
        """Return how many jobs have ended or were refused since the grid began."""
        driver = (await self.queries()).driver
        await driver.durable()
        return driver.grid.registry.n_ended


class GatewayActor(LiveActor):
    """A gateway in front of the actors of its Ray cluster; after a restart it listens at the same address.

    Parameters
    ----------
    settings, door
        The gateway's settings, and the grid or site that it serves.
    mark
        File that identifies the listening process to commands on the same host.
    """

    def __init__(
        self, settings: GatewaySettings, door: GatewayDoor, *, calls: Calls, mark: str = "", **own: str
    ) -> None:
        super().__init__(GATEWAY_ACTOR, **own)
        self._settings, self._door, self._mark, self._calls = settings, door, mark, calls
        self._served: ServedGateway | None = None
        self._problem: GridweaveError | None = None
        self._tried = asyncio.Event()
        self._tasks = run_forever(self._name, self._serve())

    @property
    def problem(self) -> GridweaveError | None:
        """Why the gateway is not listening, or None."""
        return self._problem

    async def _serve(self) -> None:
        """Try to start the gateway until it is listening."""
        from gridweave.grid.service.doors import serve_door
        from gridweave.grid.service.gateway_process import log_requests

        log_requests(self._settings.log)
        pause_s = _FIRST_PAUSE_S
        while self._served is None:
            try:
                served = serve_door(self._door, self._settings, self._calls)
                await served.gateway.start()
            except GridweaveError as error:
                logger.error("the gateway cannot listen; retrying: %s", error)
                self._problem = error
                self._tried.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                self._served, self._problem = served, None
        self._write_mark()
        self._tried.set()
        self._tasks += run_forever(self._name, *self._served.works())

    def _write_mark(self) -> None:
        stat = process_stat(os.getpid())
        if self._mark and stat is not None:
            with contextlib.suppress(OSError):
                write_whole(Path(self._mark), msgspec.json.encode(GatewayMark(stat.pid, stat.start_ticks)))

    async def ready(self) -> str:
        """Return the gateway's URL; raise GridweaveError if the gateway is not listening."""
        await self._tried.wait()
        if self._served is None:
            assert self._problem is not None, "its start did not end"
            raise self._problem
        return self._served.gateway.url

    async def carry(self, site: str, data: bytes) -> str | None:
        """Send a packet from the meta-scheduler to a remote site; return why the site refused the packet, or None."""
        from gridweave.grid.service.doors import carry

        await self._tried.wait()
        return await carry({} if self._served is None else self._served.links, site, data)

    async def stop(self) -> None:
        """Stop the gateway: accept no more requests, and answer the requests in progress."""
        for task in self._tasks:
            task.cancel()
        if self._served is not None:
            from gridweave.grid.service.doors import close_links

            await self._served.gateway.stop()
            await close_links(self._served.links)
