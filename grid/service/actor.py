"""The meta-scheduler as an actor."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import msgspec

from gridweave.site.maxima import NO_MAXIMA, Maxima
from gridweave.site.messages import Probed
from gridweave.site.service.actor import DrivenActor
from gridweave.site.service.calls import GATEWAY_ACTOR, GRID_ACTOR, Calls, encode, journal_place, site_actor
from gridweave.site.service.clock import HISTORY_DAYS, Clock

if TYPE_CHECKING:
    from gridweave.grid.live import GridSettings
    from gridweave.grid.service.desk import GridDesk


class MetaActor(DrivenActor["GridDesk"]):
    """The meta-scheduler as an actor: a thin shell around its `GridDriver`.

    It reaches its sites by `calls`: as actors of its Ray cluster or, if they are `far`, over the links of the gateway.
    `machines` are those of each site, in site order.
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
        maxima: Maxima = NO_MAXIMA,
        history_days: int = HISTORY_DAYS,
        **own: str,
    ) -> None:
        self._calls, self._far = calls, far
        self._password_file, self._maxima, self._history_days = password_file, maxima, history_days
        self._settings, self._machines = settings, machines
        self._journal, self._clock = journal, clock
        super().__init__(GRID_ACTOR, **own)

    def make_desk(self) -> GridDesk:
        """Return the desk of the meta-scheduler."""
        from gridweave.grid.service.desk import GridDesk
        from gridweave.grid.service.driver import GridDriver

        place = journal_place(self._journal, self._password_file)
        own: dict[str, Any] = {"maxima": self._maxima, "history_days": self._history_days}
        # Ray hands arrays over read-only, and the kernels write into some of these.
        settings = copy.deepcopy(self._settings)
        driver = GridDriver(settings, place, self._clock, to_site=self._to_site, **own)
        return GridDesk(driver, self._machines)

    async def _to_site(self, site: str, data: bytes) -> None:
        if self._far:
            await self._calls.call(GATEWAY_ACTOR, "carry", site, data)
        else:
            await self._calls.call(site_actor(site), "packet", data)

    async def packet(self, site: str, data: bytes) -> str | None:
        """Take in a packet from a site; return why it was dropped, if it was."""
        return self.desk_now().driver.packet(site, data)

    async def probed(self, data: bytes) -> None:
        """Take in what a site has measured of the way to another."""
        await self.desk_now().driver.probed(msgspec.msgpack.decode(data, type=Probed))

    async def measured(self) -> bytes:
        """Return what is known of the ways between the sites by probes."""
        driver = (await self.desk()).driver
        return encode(driver.grid.measured.pairs(driver.clock.now_ms()))

    async def ended_count(self) -> int:
        """Return how many jobs have ended or were refused since the grid began."""
        driver = (await self.desk()).driver
        await driver.durable()
        return driver.grid.book.n_ended
