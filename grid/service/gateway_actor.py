"""A gateway as an actor: Ray restarts it where it was, and it listens again at the same address."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gridweave.errors import GridweaveError
from gridweave.grid.service.state import GatewayMark
from gridweave.site.machine.folders import write_whole
from gridweave.site.machine.processes import process_stat
from gridweave.site.service.calls import GATEWAY_ACTOR, Calls, LiveActor, endure

if TYPE_CHECKING:
    from gridweave.grid.gateway.settings import GatewaySettings
    from gridweave.grid.service.doors import GatewayDoor, ServedGateway

logger = logging.getLogger("gridweave.gateway")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0


class GatewayActor(LiveActor):
    """A gateway in front of the actors of its Ray cluster.

    Parameters
    ----------
    settings, door
        How it listens, and what it serves.
    mark
        File for the process that listens: commands on its host read it to see that no other program does.
    """

    def __init__(
        self, settings: GatewaySettings, door: GatewayDoor, *, calls: Calls, mark: str = "", **own: str
    ) -> None:
        super().__init__(GATEWAY_ACTOR, **own)
        self._settings, self._door, self._mark, self._calls = settings, door, mark, calls
        self._served: ServedGateway | None = None
        self._problem: GridweaveError | None = None
        self._tried = asyncio.Event()
        self._tasks = endure(self._name, self._serve())

    @property
    def problem(self) -> GridweaveError | None:
        """Why it does not listen, or None."""
        return self._problem

    async def _serve(self) -> None:
        """Start the gateway, again and again until it listens."""
        from gridweave.grid.service.doors import serve_door
        from gridweave.grid.service.gateway_process import log_requests

        log_requests(self._settings.log)
        pause_s = _FIRST_PAUSE_S
        while self._served is None:
            try:
                served = serve_door(self._door, self._settings, self._calls)
                await served.gateway.start()
            except GridweaveError as error:
                logger.error("the gateway cannot listen, trying again: %s", error)
                self._problem = error
                self._tried.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                self._served, self._problem = served, None
        self._write_mark()
        self._tried.set()
        self._tasks += endure(self._name, *self._served.works())

    def _write_mark(self) -> None:
        stat = process_stat(os.getpid())
        if self._mark and stat is not None:
            with contextlib.suppress(OSError):
                write_whole(Path(self._mark), msgspec.json.encode(GatewayMark(stat.pid, stat.start_ticks)))

    async def ready(self) -> str:
        """Return the URL at which it listens; GridweaveError if it could not."""
        await self._tried.wait()
        if self._served is None:
            assert self._problem is not None, "tried without a result"
            raise self._problem
        return self._served.gateway.url

    async def carry(self, site: str, data: bytes) -> None:
        """Carry a packet of the meta-scheduler to a site that is elsewhere."""
        from gridweave.grid.service.doors import carry

        await self._tried.wait()
        await carry({} if self._served is None else self._served.links, site, data)

    async def stop(self) -> None:
        """Take no more requests, answer what is under way, and stop."""
        for task in self._tasks:
            task.cancel()
        if self._served is not None:
            from gridweave.grid.service.doors import close_links

            await self._served.gateway.stop()
            await close_links(self._served.links)
