"""A site as an actor on Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from gridweave.site.live.clock import Clock
from gridweave.site.live.ray_driven import DrivenActor
from gridweave.site.live.ray_names import GRID_ACTOR, Handles, agent_actor, encode, journal_place, site_actor
from gridweave.site.live.site_driver import GRID, SiteDriver
from gridweave.site.live_settings import SiteSettings


class SiteActor(DrivenActor[SiteDriver]):
    """A site as an actor: a thin shell around its `SiteDriver`.

    Parameters
    ----------
    settings : SiteSettings
    journal : str
        Path or URL of its journal.
    clock : Clock
    namespace : str
        Of the actors of its grid.
    """

    def __init__(self, settings: SiteSettings, journal: str, clock: Clock, namespace: str) -> None:
        self._handles = Handles(namespace)
        self._settings, self._journal, self._clock = settings, journal, clock
        super().__init__(site_actor(settings.name))

    def make_driver(self) -> SiteDriver:
        """Return the driver of the site."""
        place = journal_place(self._journal)
        return SiteDriver(self._settings, place, self._clock, to_grid=self._to_grid, to_agent=self._to_agent)

    def works(self, driver: SiteDriver) -> list[Coroutine[Any, Any, Any]]:
        """Return the turns, and the orders that are repeated."""
        return [driver.run(), driver.repeat_orders()]

    async def _to_grid(self, peer: str, data: bytes) -> None:
        await self._handles.call(GRID_ACTOR, "packet", self._settings.name, data)

    async def _to_agent(self, agent: str, data: bytes) -> None:
        await self._handles.call(agent_actor(self._settings.name, agent), "order", data)

    async def packet(self, data: bytes) -> None:
        """Take in a packet from the grid."""
        self.driver_now().packet(GRID, data)

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
        driver = await self.driver()
        await driver.durable()
        known = driver.site.records
        return encode([known[job_id] for job_id in job_ids if job_id in known])

    async def story(self, job_id: int) -> bytes:
        """Return what happened to a job here."""
        return encode(await asyncio.to_thread((await self.driver()).journal.story, job_id))

    async def status(self) -> bytes:
        """Return how the site is."""
        return encode((await self.driver()).status())

    async def check(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        (await self.driver()).site.check_invariants()
