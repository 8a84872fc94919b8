"""`Client`: a grid from asynchronous Python."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from gridweave.errors import InputError, RefusedError
from gridweave.grid import api
from gridweave.grid.client import streams
from gridweave.grid.client.configuration import Connection, configured, gateway_of
from gridweave.grid.client.job import Job
from gridweave.grid.client.mapping import Results
from gridweave.grid.client.requests import Afters, Limit, Runnable, checked, chunks, job_request
from gridweave.grid.client.streams import ENDS, Connected, EndWatch
from gridweave.grid.client.transport import Patience, Pauses, Sleep, Transport
from gridweave.site.job import ArrayPlace, JobRecord, JobRequest, State, Where, WishKind

if TYPE_CHECKING:
    import numpy as np

HOUR = "1h"


class Client:
    """A grid, reached through its gateway; an asynchronous context manager.

    Parameters
    ----------
    url, token : str, optional
        Of the gateway. Left out: what the environment (``GRIDWEAVE_URL``, ``GRIDWEAVE_TOKEN``) or the configuration
        says, or the grid that `gridweave up` has started here (docs/client.md).
    ca : str, optional
        A file of certificates to trust in place of those of the system.
    site : str, optional
        Where jobs are handed in, as those of this site's own user, if nothing else is said.
    plain_http : bool, optional
        Whether the token may be sent unencrypted to another machine; it is refused otherwise.
    profile : str, optional
        A table of the configuration.
    grid : str, optional
        The name of a grid that `gridweave up` has started here, in place of a URL.
    patience : Patience, optional
        How long it tries.
    rng : numpy.random.Generator, optional
        By which the pauses between tries vary.
    sleep : callable, optional
        What waits between tries.
    connection : Connection, optional
        In place of all that says how the gateway is reached.

    Raises
    ------
    InputError
        If what is said or configured cannot be used.
    UnavailableError
        If no grid is named, and none runs here.

    Notes
    -----
    Every call may raise UnavailableError (no answer in time), NotAllowedError (the token does not do) and RefusedError
    (what was asked for cannot be done), all of `gridweave.errors`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        ca: str | None = None,
        site: str | None = None,
        plain_http: bool | None = None,
        profile: str | None = None,
        grid: str | None = None,
        patience: Patience | None = None,
        rng: np.random.Generator | None = None,
        sleep: Sleep = asyncio.sleep,
        connection: Connection | None = None,
    ) -> None:
        self.connection = connection or configured(
            url, token, ca=ca, site=site, plain_http=plain_http, profile=profile, grid=grid
        )
        self._made_with: dict[str, Any] = {"patience": patience, "rng": rng, "sleep": sleep}
        self._at_sites: dict[str, Client] = {}
        self._pauses = Pauses(patience or Patience(), rng, sleep)
        self._transport: Transport | None = None
        self._ends = EndWatch(self._follow, self.record)

    async def __aenter__(self) -> Self:
        self._transport = Transport(self.connection, self._pauses)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._at_sites.values():
            await client.__aexit__(None, None, None)
        self._at_sites = {}
        await self._ends.close()
        await self.transport.close()
        self._transport = None

    @property
    def transport(self) -> Transport:
        """The way to the gateway; there is one within ``async with`` alone."""
        if self._transport is None:
            raise InputError("the client is not open; write: async with gridweave.Client() as grid")
        return self._transport

    async def _at_site(self, site: str) -> Client | None:
        """Return a client of the site's own gateway; None if that is not known."""
        found = gateway_of(self.connection, site)
        if found is None:
            return None
        if site not in self._at_sites:
            self._at_sites[site] = await Client(connection=found, **self._made_with).__aenter__()
        return self._at_sites[site]

    # -- handing in

    async def submit(
        self,
        what: Runnable,
        *,
        nodes: int = 1,
        limit: Limit = HOUR,
        name: str = "",
        site: str | None = None,
        environment: Mapping[str, str] | None = None,
        working_directory: str | None = None,
        ranks: Where = "each-node",
        if_lost: Literal["requeue", "fail"] = "requeue",
        hold: bool = False,
        after: Afters = (),
        array: ArrayPlace | None = None,
        priority: float = 0.0,
        job_class: str = "",
        user: str = "",
        key: str | None = None,
    ) -> Job:
        """Hand in a job; when this returns, it is durable.

        Parameters
        ----------
        what : list of str, Program, Call or JobRequest
            A command and its arguments, a program, a callable of Python, or a whole request; of this last all that
            follows is ignored, but for `site` and `key`.
        limit : str or datetime.timedelta
            How long it may run, such as ``"10m"``; it is planned by this.
        site : str, optional
            Hand it in to this site, as a job of its own user.
        working_directory : str, optional
            An absolute path on the machines.
        ranks, if_lost : str
            As for `Program`.
        hold : bool
            Whether it is kept from the queue until it is released.
        after : sequence of int or After
            Jobs that must have finished first.
        user : str
            For whom; an operator may say another name.
        key : str, optional
            The same key gives the same job, however often it is handed in. Left out: a new one, which makes the tries
            of this one call safe.

        Raises
        ------
        InputError
            If no site could run it.
        """
        request = job_request(
            what,
            nodes=nodes,
            limit=limit,
            name=name,
            user=user,
            job_class=job_class,
            priority=priority,
            environment=environment,
            working_directory=working_directory,
            ranks=ranks,
            if_lost=if_lost,
            hold=hold,
            after=after,
            array=array,
        )
        (job,) = await self.submit_many([request], site=site, keys=None if key is None else [key])
        return job

    async def submit_many(
        self, requests: Iterable[JobRequest], *, site: str | None = None, keys: Sequence[str] | None = None
    ) -> list[Job]:
        """Hand in jobs, 500 in each request; when this returns, all are durable.

        Parameters
        ----------
        keys : sequence of str, optional
            One for each; see `submit`.

        Returns
        -------
        list of Job
            In the order of the requests.

        Raises
        ------
        RefusedError
            If one was not taken in: the first such, with its place. All others have been handed in; the same keys find
            them again.
        """
        site = site or self.connection.site
        if site is not None and (own := await self._at_site(site)) is not None:
            return await own.submit_many(requests, site=site, keys=keys)
        asked = [checked(request) for request in requests]
        if keys is None:
            stem = uuid.uuid4().hex
            keys = [f"{stem}-{number}" for number in range(len(asked))]
        if len(keys) != len(asked):
            raise InputError(f"keys: there are {len(keys)} for {len(asked)} jobs; one for each")
        new = [api.NewJob(request=request, key=key) for request, key in zip(asked, keys, strict=True)]
        answers: list[api.SubmitAnswer] = []
        for part in chunks(new):
            body = api.SubmitJobs(jobs=part, site=site)
            answers += (await self.transport.call("POST", "/v1/jobs", api.Submitted, body=body)).answers
        for number, answer in enumerate(answers):
            if answer.job_id is None:
                which = f"job {number + 1} of {len(answers)}: " if len(answers) > 1 else ""
                raise RefusedError(which + answer.reason)
        return [Job(self, answer.job_id, key=answer.key) for answer in answers if answer.job_id is not None]

    def map(
        self,
        function: Callable[..., Any] | str,
        items: Iterable[Any],
        *,
        nodes: int = 1,
        limit: Limit = HOUR,
        at_once: int = 100,
        name: str = "",
        environment: Mapping[str, str] | None = None,
        working_directory: str | None = None,
    ) -> Results:
        """Call a function with each of many items, a job for each.

        Parameters
        ----------
        function : callable or str
            One that the machines can import (``module:function``), of one argument.
        items : iterable
            Each is whatever JSON can say; it may be without end.
        nodes : int
            For each call; the function is called on each of them, and the result is that of rank 0.
        limit : str or datetime.timedelta
            For each call.
        at_once : int
            So many jobs are under way at most.
        name : str
            Of the jobs, which are an array; that of the function if left out.
        environment, working_directory
            As for `submit`; the machines look for the module in the working directory, and on PYTHONPATH.

        Returns
        -------
        Results
            ``async for`` yields the results in the order of the items, as they come; ``await`` returns all, as a list.
            When a job fails, its JobFailedError is raised in its place, and the jobs under way are cancelled.
        """
        return Results(
            self,
            function,
            items,
            nodes=nodes,
            limit=limit,
            at_once=at_once,
            name=name,
            environment=environment,
            working_directory=working_directory,
        )

    # -- jobs

    def job(self, job_id: int) -> Job:
        """Return a handle of a job by its number; nothing is asked yet."""
        return Job(self, job_id)

    async def jobs(
        self,
        *,
        own: str = "",
        user: str | None = None,
        name: str | None = None,
        array: str | None = None,
        site: str | None = None,
        state: Sequence[State] = (),
        outcome: Sequence[str] = (),
        below: int | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[JobRecord, None]:
        """Yield jobs, the newest first, asking for page after page.

        Parameters
        ----------
        own, user, name, array, site, state, outcome, below
            As for `gridweave.grid.api.JobQuery`.
        limit : int, optional
            How many at most; all, if left out.
        """
        left = limit
        while left is None or left > 0:
            page_limit = api.MOST_LISTED if left is None else min(left, api.MOST_LISTED)
            single = {"own": own, "user": user, "name": name, "array": array, "site": site, "below": below}
            query = [(key, str(value)) for key, value in single.items() if value not in (None, "")]
            query += [("state", one) for one in state] + [("outcome", one) for one in outcome]
            query.append(("limit", str(page_limit)))
            page = await self.transport.call("GET", "/v1/jobs", api.JobPage, query=query)
            for record in page.jobs:
                yield record
            below = page.below
            if below is None:
                return
            left = None if left is None else left - len(page.jobs)

    async def record(self, job_id: int) -> JobRecord:
        """Return what is known of a job now."""
        return await self.transport.call("GET", f"/v1/jobs/{job_id}", JobRecord)

    async def ended(self, job_id: int) -> JobRecord:
        """Return the record of a job once it has ended; one stream of events serves all who wait."""
        return await self._ends.ended(job_id)

    async def wish(self, kind: WishKind, job_ids: Iterable[int]) -> list[int]:
        """Say what is wanted of jobs; return those that it was done to.

        Parameters
        ----------
        kind : str
            ``cancel``, ``hold`` or ``release``: as the methods of these names.
        """
        wanted = list(job_ids)
        done: list[int] = []
        for start in range(0, len(wanted), api.MOST_LISTED):
            body = api.JobIds(job_ids=wanted[start : start + api.MOST_LISTED])
            done += (await self.transport.call("POST", f"/v1/jobs/{kind}", api.Done, body=body)).job_ids
        return done

    async def cancel(self, job_ids: Iterable[int]) -> list[int]:
        """End jobs; return those that had not ended already."""
        return await self.wish("cancel", job_ids)

    async def hold(self, job_ids: Iterable[int]) -> list[int]:
        """Keep jobs from starting; return those that waited, and now do not start."""
        return await self.wish("hold", job_ids)

    async def release(self, job_ids: Iterable[int]) -> list[int]:
        """Let held jobs go into the queue again; return those that were held."""
        return await self.wish("release", job_ids)

    async def explain(self, job_id: int) -> api.Forecast:
        """Return when a job starts, where, and why not sooner."""
        return await self.transport.call("GET", f"/v1/jobs/{job_id}/forecast", api.Forecast)

    async def story(self, job_id: int) -> api.Story:
        """Return all that has happened to a job."""
        return await self.transport.call("GET", f"/v1/jobs/{job_id}/story", api.Story)

    async def events(
        self,
        *,
        after: int | None = None,
        jobs: Sequence[int] = (),
        kinds: Sequence[str] = (),
        user: str | None = None,
    ) -> AsyncGenerator[api.JobEvent, None]:
        """Yield what happens to jobs, each event once and in order, also when the connection is cut; without end.

        Parameters
        ----------
        after : int, optional
            The number of the last event that is known; left out: only what happens from now on.
        jobs, kinds : sequence
            Only events of these jobs, of these kinds (docs/live.md).
        user : str, optional
            Only events of this user's jobs.
        """
        found = streams.events(self.transport, after=after, jobs=tuple(jobs), kinds=tuple(kinds), user=user)
        async with aclosing(found):
            async for event in found:
                yield event

    # -- the grid

    async def sites(self) -> list[api.SiteInfo]:
        """Return how the sites are."""
        return (await self.transport.call("GET", "/v1/sites", api.Sites)).sites

    async def queue(self, limit: int = 100) -> api.Queue:
        """Return the first of the jobs that wait, and how many there are in each state."""
        return await self.transport.call("GET", "/v1/queue", api.Queue, query={"limit": str(limit)})

    async def scheduling(self) -> api.Scheduling:
        """Return how the grid schedules, and what its clock shows."""
        return await self.transport.call("GET", "/v1/scheduling", api.Scheduling)

    async def quote(self, what: Runnable = ("true",), *, nodes: int = 1, limit: Limit = HOUR) -> api.Forecast:
        """Return when such a job would start, and where; nothing is handed in.

        Parameters
        ----------
        what
            As for `submit`; what it runs makes no difference, but a whole request says more than nodes and limit.
        """
        body = api.QuoteJob(request=job_request(what, nodes=nodes, limit=limit))
        return await self.transport.call("POST", "/v1/quote", api.Forecast, body=body)

    async def drain(self, site: str) -> None:
        """Have a site take nothing new of the grid."""
        await self.transport.call("POST", f"/v1/sites/{_in_path(site)}/drain", api.Done)

    async def resume(self, site: str) -> None:
        """Have a drained site take jobs of the grid again."""
        await self.transport.call("POST", f"/v1/sites/{_in_path(site)}/resume", api.Done)

    async def whoami(self) -> api.TokenInfo:
        """Return who the gateway takes this client for, and what it may do."""
        return await self.transport.call("GET", "/v1/whoami", api.TokenInfo)

    async def health(self) -> api.Health:
        """Return whether the grid works; UnavailableError if it does not."""
        return await self.transport.call("GET", "/readyz", api.Health)

    def _follow(self, connected: Connected) -> AsyncIterator[api.JobEvent]:
        return streams.events(self.transport, after=None, kinds=ENDS, connected=connected)


def _in_path(name: str) -> str:
    """Return a name as a part of a path."""
    return quote(name, safe="")
