"""What the gateway asks of a live grid, whatever carries it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gridweave.grid.api import (
    Forecast,
    GivenUp,
    GridExperience,
    Health,
    JobEvents,
    JobPage,
    JobQuery,
    KnownNetwork,
    KnownTimes,
    OutputPart,
    PlannedStarts,
    Queue,
    Scheduling,
    SiteExperience,
    SiteInfo,
    StoryEntry,
    WhatIf,
    WhatIfAnswer,
)
from gridweave.site.job import Accepted, Declined, JobRecord, JobRequest, SignalName, WishKind


class Backend(Protocol):
    """A live grid, as the gateway sees it. It knows no tokens: who may do what has been decided before it is asked.

    Notes
    -----
    Everything raises UnavailableError if there is no answer; then it is not known whether what was asked for was done,
    and the same may be asked for again. What is named and does not exist (a site, a job) raises InputError where
    nothing else is said. A job's number tells whose it is: the grid's, or that of a site's own users.
    """

    async def submit(
        self, jobs: Sequence[tuple[str, JobRequest]], *, site: str | None, origin: str
    ) -> list[Accepted | Declined]:
        """Hand in jobs with their idempotency keys, to the grid or to a site; return when the answers are durable.

        Parameters
        ----------
        origin : str
            Who asked, and with which request: it is kept in the story of each job.
        """

    async def wish(
        self, kind: WishKind, job_ids: Sequence[int], *, origin: str, signal: SignalName | None = None
    ) -> list[int]:
        """Do what a user wants of jobs; return those that it was done to, unknown ones and others left out.

        To cancel, at once or not: those that had not ended. To get a signal: those that ran. To hold: those that are
        held now, or will be if they do not start before.
        To release: those that were held by their users.
        """

    async def records(self, job_ids: Sequence[int]) -> list[JobRecord]:
        """Return what is known of jobs, of those that ended long ago as well; unknown ones are left out."""

    async def jobs(self, query: JobQuery) -> JobPage:
        """Return the jobs that are asked for, the newest first."""

    async def story(self, job_id: int) -> list[StoryEntry]:
        """Return what happened to a job at the grid and at its sites, by time; empty if it is unknown."""

    async def events(self, after: int, timeout_s: float) -> JobEvents:
        """Return what happened to jobs of the grid after an event; wait that long for something to happen.

        ``after=-1`` asks for none but the number of the last one, at once.
        """

    async def forecast(self, job_id: int) -> Forecast | None:
        """Return when a job starts, and why it waits; None if it is unknown."""

    async def quote(self, request: JobRequest, *, instead_of: int | None = None) -> Forecast:
        """Return when such a job would start; it may be instead of one that waits."""

    async def plan(self, limit: int) -> PlannedStarts:
        """Return when and where what waits starts, as far as that is known: so many jobs at most."""

    async def what_if(self, asked: WhatIf) -> WhatIfAnswer:
        """Return what would become of waits and of the use of nodes if the grid were another; nothing changes."""

    async def output(
        self, job_id: int, rank: int, stream: str, offset: int, limit: int, *, attempt: int | None = None
    ) -> OutputPart | None:
        """Return a part of what a rank of an attempt of a job, else of its last, has written; None: unknown job.

        The stream ``usage`` is what the piece of the rank used over time: a `UsageCurve` as JSON.
        """

    async def sites(self) -> list[SiteInfo]:
        """Return how the sites are, also of one that does not answer."""

    async def drain(self, site: str, draining: bool) -> None:
        """Have a site take nothing new of the grid, or take it again."""

    async def give_up(self, site: str, machine: str) -> GivenUp:
        """Have what a machine ran that never comes back run again, unless the machine is unknown, or not away."""

    async def experience(self, site: str, changes: tuple[KnownTimes, ...] = ()) -> SiteExperience:
        """Return how long jobs take, as far as a site knows, after some changes of that."""

    async def queue(self, limit: int, *, explain: bool = False) -> Queue:
        """Return the first of the jobs that wait; with `explain` when they start, and why not sooner."""

    async def learnt(self) -> GridExperience:
        """Return what the grid has learnt from jobs that are over."""

    async def network(self) -> KnownNetwork:
        """Return the network between the sites as it is known, and how many running jobs are on each link."""

    async def scheduling(self) -> Scheduling:
        """Return how the grid schedules."""

    async def health(self) -> Health:
        """Return whether the grid works; raises nothing."""
