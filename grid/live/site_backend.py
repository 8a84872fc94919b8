"""A site alone as its own gateway sees it: the grid behind it may be away, or there may be none."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gridweave.errors import InputError
from gridweave.grid.api import Forecast, JobPage, JobQuery, Scheduling
from gridweave.grid.forecast_words import of_site
from gridweave.grid.live.live_backend import LiveBackend
from gridweave.site.forecast import SiteForecast
from gridweave.site.job import Accepted, Declined, JobRequest
from gridweave.site.service.calls import Calls, site_actor


class SiteBackend(LiveBackend):
    """One site, by its desk and those of its machines: the jobs of its own users.

    Parameters
    ----------
    calls : Calls
    site : str
    """

    def __init__(self, calls: Calls, site: str) -> None:
        super().__init__(calls)
        self.site = site
        self.home = site_actor(site)

    async def _desk_of(self, job_id: int) -> str | None:
        return self.home

    async def _owner(self, job_id: int) -> str:
        return self.site

    async def _site(self, name: str) -> str:
        if name != self.site:
            raise InputError(f"there is no site {name!r:.100} here; this gateway is that of {self.site} alone")
        return self.home

    async def submit(
        self, jobs: Sequence[tuple[str, JobRequest]], *, site: str | None, origin: str
    ) -> list[Accepted | Declined]:
        """Hand in jobs to the site, as those of its own users."""
        return await super().submit(jobs, site=self.site if site is None else site, origin=origin)

    async def jobs(self, query: JobQuery) -> JobPage:
        """Return the jobs that are asked for, the newest first."""
        return await super().jobs(msgspec.structs.replace(query, own=query.own or self.site))

    async def forecast(self, job_id: int) -> Forecast | None:
        """Return when a job starts, and why it waits; None if it is unknown."""
        return await self._own_forecast(job_id)

    async def quote(self, request: JobRequest) -> Forecast:
        """Return when such a job of an own user would start."""
        return of_site(self.site, await self._ask(self.home, "quote", SiteForecast, request, False))

    async def scheduling(self) -> Scheduling:
        """Refuse: how the grid schedules is known there.

        Raises
        ------
        InputError
        """
        raise InputError(f"this gateway is that of the site {self.site} alone; ask the grid's how the grid schedules")
