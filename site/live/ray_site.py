"""A site as an actor on Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from gridweave.errors import UnavailableError
from gridweave.site.live.clock import Clock
from gridweave.site.live.door import Door
from gridweave.site.live.handles import Handles
from gridweave.site.live.ray_driven import DrivenActor
from gridweave.site.live.ray_names import GRID_ACTOR, Calls, agent_actor, encode, journal_place, site_actor

if TYPE_CHECKING:
    from gridweave.site.live.desk import SiteDesk
    from gridweave.site.live.link import Link, LinkEnd
    from gridweave.site.live.site_driver import SiteDriver
    from gridweave.site.live_settings import SiteSettings

LOOK_S = 5.0
"""So often it is seen which machines answer, and so long they may take for it."""


class SiteActor(DrivenActor["SiteDriver"]):
    """A site as an actor: a thin shell around its `SiteDriver`.

    Parameters
    ----------
    settings : SiteSettings
    journal : str
        Path or URL of its journal.
    clock : Clock
    namespace : str
        Of the actors of its grid.
    uplink : LinkEnd, optional
        How the grid is reached if it is elsewhere; if left out, it is an actor beside this one.
    password_file : str
        Of the file with the password of the journal's database; empty: there is none.
    calls : Calls, optional
        By which it reaches its machines; those of actors on Ray, if left out.
    """

    def __init__(
        self,
        settings: SiteSettings,
        journal: str,
        clock: Clock,
        namespace: str,
        uplink: LinkEnd | None = None,
        *,
        password_file: str = "",
        calls: Calls | None = None,
    ) -> None:
        self._calls: Calls = Handles(namespace) if calls is None else calls
        self._settings, self._journal, self._clock = settings, journal, clock
        self._password_file = password_file
        self._at_desk: SiteDesk | None = None
        self._uplink_end = uplink
        self._uplink: Link | None = None
        super().__init__(site_actor(settings.name))

    def make_driver(self) -> SiteDriver:
        """Return the driver of the site."""
        from gridweave.site.live.desk import SITE_METHODS, SiteDesk
        from gridweave.site.live.site_driver import SiteDriver

        if self._uplink_end is not None:
            from gridweave.site.live.link import Link

            self._uplink = Link(self._uplink_end)
        place = journal_place(self._journal, self._password_file)
        driver = SiteDriver(self._settings, place, self._clock, to_grid=self._to_grid, to_agent=self._to_agent)
        uplink = self._uplink
        self._at_desk = SiteDesk(driver, uplink=None if uplink is None else lambda: uplink.status)
        self.door = Door(self._at_desk, SITE_METHODS)
        return driver

    def works(self, driver: SiteDriver) -> list[Coroutine[Any, Any, Any]]:
        """Return the turns, the orders that are repeated, and the look after the machines."""
        return [driver.run(), driver.repeat_orders(), self._look_after_machines()]

    async def _to_grid(self, peer: str, data: bytes) -> None:
        if self._uplink is not None:
            await self._uplink.packet(data)
        else:
            await self._calls.call(GRID_ACTOR, "packet", self._settings.name, data)

    async def _to_agent(self, agent: str, data: bytes) -> None:
        await self._calls.call(agent_actor(self._settings.name, agent), "order", data)

    async def packet(self, data: bytes) -> str | None:
        """Take in a packet from the grid; return why it was dropped, if it was."""
        from gridweave.site.live.site_driver import GRID

        return self.driver_now().packet(GRID, data)

    async def report(self, data: bytes) -> None:
        """Take in what a machine tells; return when it is durable."""
        await self.driver_now().report(data)

    async def cancel(self, job_ids: list[int]) -> None:
        """End jobs of the site's own users."""
        await (await self.driver()).cancel(job_ids)

    async def forget_machine(self, agent: str) -> None:
        """Give up what a machine ran: the operator knows that it will not come back."""
        await (await self.driver()).forget_machine(agent)

    async def drain(self, draining: bool) -> None:
        """Take in nothing new for the grid, or take it in again."""
        await (await self.driver()).drain(draining)

    async def records(self, job_ids: list[int]) -> bytes:
        """Return what is known of jobs of the site's own users; an unknown one is left out."""
        return encode(await (await self._desk()).records(job_ids))

    async def story(self, job_id: int) -> bytes:
        """Return what happened to a job here."""
        return encode(await (await self._desk()).story(job_id))

    async def _desk(self) -> SiteDesk:
        await self.driver()
        assert self._at_desk is not None, "a driver without a desk"
        return self._at_desk

    async def _look_after_machines(self) -> None:
        """See again and again which machines answer, so that nobody who asks has to wait for one that does not."""
        machines = [agent.name for agent in self._settings.agents]
        while True:
            answers = await asyncio.gather(*(self._answers(machine) for machine in machines))
            away = {machine for machine, answer in zip(machines, answers, strict=True) if not answer}
            (await self._desk()).away = away
            await asyncio.sleep(LOOK_S)

    async def _answers(self, machine: str) -> bool:
        try:
            await self._calls.call(agent_actor(self._settings.name, machine), "process", timeout_s=LOOK_S)
        except UnavailableError:
            return False
        return True

    async def stop(self) -> None:
        """Let go of the journal, and of the connections to the grid; what runs goes on."""
        await super().stop()
        if self._uplink is not None:
            await self._uplink.close()

    async def check(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        (await self.driver()).site.check_invariants()
