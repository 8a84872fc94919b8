"""The meta-scheduler as an actor on Ray."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING

import msgspec

from gridweave.site.job import JobRecord
from gridweave.site.messages import Probed
from gridweave.site.service.actor import DrivenActor
from gridweave.site.service.calls import GRID_ACTOR, Calls, Door, Handles, encode, journal_place, site_actor
from gridweave.site.service.clock import Clock

if TYPE_CHECKING:
    from gridweave.grid.live import GridSettings
    from gridweave.grid.service.driver import GridDriver


class Page(msgspec.Struct, frozen=True):
    """Some of the jobs that are known.

    Attributes
    ----------
    jobs : list of JobRecord
        By id.
    changes : int
        How many turns the grid had taken: `MetaActor.changed` tells when there are more.
    """

    jobs: list[JobRecord]
    changes: int


class MetaActor(DrivenActor["GridDriver"]):
    """The meta-scheduler as an actor: a thin shell around its `GridDriver`.

    Parameters
    ----------
    journal : str
        Path or URL of its journal.
    namespace : str
        Of the actors of the grid.
    machines : tuple of tuple of str
        The machines of each site, in site order.
    calls : Calls, optional
        By which it reaches its sites; those of actors on Ray, if left out.
    password_file : str
        Of the file with the password of the journal's database; empty: there is none.
    """

    def __init__(
        self,
        settings: GridSettings,
        journal: str,
        clock: Clock,
        namespace: str,
        machines: tuple[tuple[str, ...], ...] = (),
        *,
        calls: Calls | None = None,
        password_file: str = "",
    ) -> None:
        self._calls: Calls = Handles(namespace) if calls is None else calls
        self._password_file = password_file
        # Ray hands over arrays that cannot be written to, which to compiled code are of other types.
        self._settings, self._machines = copy.deepcopy(settings), machines
        self._journal, self._clock = journal, clock
        super().__init__(GRID_ACTOR)

    def make_driver(self) -> GridDriver:
        """Return the driver of the meta-scheduler."""
        from gridweave.grid.service.desk import GRID_METHODS, GridDesk
        from gridweave.grid.service.driver import GridDriver

        place = journal_place(self._journal, self._password_file)
        driver = GridDriver(self._settings, place, self._clock, to_site=self._to_site)
        self.door = Door(GridDesk(driver, self._machines), GRID_METHODS)
        return driver

    async def _to_site(self, site: str, data: bytes) -> None:
        await self._calls.call(site_actor(site), "packet", data)

    async def packet(self, site: str, data: bytes) -> str | None:
        """Take in a packet from a site; return why it was dropped, if it was."""
        return self.driver_now().packet(site, data)

    async def probed(self, data: bytes) -> None:
        """Take in what a site has measured of the way to another."""
        await self.driver_now().probed(msgspec.msgpack.decode(data, type=Probed))

    async def measured(self) -> bytes:
        """Return what is known of the ways between the sites by probes."""
        driver = await self.driver()
        return encode(driver.grid.measured.pairs(driver.clock.now_ms()))

    async def records(self, job_ids: list[int]) -> bytes:
        """Return what is known of jobs, as a `Page`; an unknown one is left out."""
        driver = await self.driver()
        await driver.durable()
        known = driver.grid.book.records
        return encode(Page([known[job_id] for job_id in sorted(job_ids) if job_id in known], driver.turns))

    async def changed(self, seen: int, timeout_s: float) -> int:
        """Return how many turns the grid has taken, as soon as there are more than were seen, or after a time."""
        driver = await self.driver()
        await driver.wait_for_turn(seen, timeout_s)
        return driver.turns

    async def ended_count(self) -> int:
        """Return how many jobs have ended or were refused since the grid began."""
        driver = await self.driver()
        await driver.durable()
        return driver.grid.book.n_ended

    async def story(self, job_id: int) -> bytes:
        """Return what happened to a job."""
        return encode(await asyncio.to_thread((await self.driver()).journal.story, job_id))

    async def check(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        (await self.driver()).grid.check_invariants()
