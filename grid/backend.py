"""The interface between the gateway and a live grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gridweave.grid.api import (
    Forecast,
    GivenUp,
    GridExperience,
    Health,
    HistoryEntry,
    JobEvents,
    JobPage,
    JobQuery,
    KnownNetwork,
    OutputPart,
    PlannedStarts,
    Queue,
    Scheduling,
    SiteInfo,
    WhatIf,
    WhatIfAnswer,
)
from gridweave.site.job import Accepted, ActionKind, Declined, JobRecord, JobRequest, SignalName


class Backend(Protocol):
    """A live grid. It does no access control: the gateway has checked tokens and limits before each call.

    Notes
    -----
    All methods raise UnavailableError if there is no answer. The action may or may not have been carried out; it is
    safe to repeat the call. Unless stated otherwise, an unknown site or job raises InputError. A job's number shows
    whether it belongs to the grid or to a site's own users.
    """

    async def submit(
        self, jobs: Sequence[tuple[str, JobRequest]], *, site: str | None, origin: str
    ) -> list[Accepted | Declined]:
        """Submit jobs with their idempotency keys to the grid or a site; return once the answers are durable.

        Parameters
        ----------
        origin : str
            User and request id, recorded in each job's history.
        """

    async def apply_action(
        self, kind: ActionKind, job_ids: Sequence[int], *, origin: str, signal: SignalName | None = None
    ) -> list[int]:
        """Apply an action to jobs; return the jobs to which it applied. Unknown jobs are ignored.

        ``cancel`` and ``kill`` apply to jobs that have not ended, ``signal`` to running jobs, ``hold`` to jobs that
        have not started, and ``release`` to jobs that their users hold.
        """

    async def records(self, job_ids: Sequence[int]) -> list[JobRecord]:
        """Return the records of jobs in the given order, including jobs that ended long ago; skip unknown jobs."""

    async def jobs(self, query: JobQuery) -> JobPage:
        """Return the jobs that match a query, newest first."""

    async def history(self, job_id: int) -> list[HistoryEntry]:
        """Return a job's history at the grid and its sites, oldest event first; empty if the job is unknown."""

    async def events(self, after: int, timeout_s: float) -> JobEvents:
        """Return the job events after event number `after`; if there are none, wait up to `timeout_s` for one.

        With ``after=-1``, return no events, only the number of the last event, without waiting.
        """

    async def forecast(self, job_id: int) -> Forecast | None:
        """Forecast when a job will start and explain why it is waiting; None if the job is unknown."""

    async def quote(self, request: JobRequest, *, instead_of: int | None = None) -> Forecast:
        """Forecast when a job would start if it were submitted now, optionally in place of a waiting job."""

    async def plan(self, limit: int) -> PlannedStarts:
        """Return the start and sites of waiting jobs whose start is known; at most `limit` jobs."""

    async def what_if(self, asked: WhatIf) -> WhatIfAnswer:
        """Simulate the grid with other settings; return waiting times and utilisation. The grid does not change."""

    async def output(
        self, job_id: int, rank: int, stream: str, offset: int, limit: int, *, attempt: int | None = None
    ) -> OutputPart | None:
        """Return a part of a rank's output in an attempt, by default the last; None if the job is unknown.

        The stream ``usage`` is the resource use of the rank's node task over time, a `UsageCurve` as JSON.
        """

    async def sites(self) -> list[SiteInfo]:
        """Return the state of all sites, including sites that are not responding."""

    async def drain(self, site: str, draining: bool) -> None:
        """Stop a site from accepting jobs of the grid, or let it accept them again."""

    async def give_up(self, site: str, machine: str) -> GivenUp:
        """Declare a machine lost and run its jobs again; refused if the machine is unknown or is responding."""

    async def ask_discipline(self, site: str, question: str, changes: Any = None) -> Any:
        """Apply `changes`, if any, to a site's discipline; then return what it has learned about `question`.

        Questions, answers and changes are plain data that only the discipline understands. Return None if the
        discipline does not know the question.
        """

    async def queue(self, limit: int, *, explain: bool = False) -> Queue:
        """Return the first waiting jobs; with `explain`, also when each job will start and why not sooner."""

    async def learnt(self) -> GridExperience:
        """Return the statistics that the grid has learned from ended jobs."""

    async def network(self) -> KnownNetwork:
        """Return the network between the sites, with the number of running jobs on each link."""

    async def scheduling(self) -> Scheduling:
        """Return the scheduling settings of the grid."""

    async def health(self) -> Health:
        """Return whether the grid is working; never raises."""
