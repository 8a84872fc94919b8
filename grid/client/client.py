"""`Client`, the asynchronous Python client of a grid, and handles of the jobs submitted with it."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

import msgspec

from gridweave.errors import InputError, JobFailedError, OptionError, RefusedError
from gridweave.grid import api
from gridweave.grid.client import arguments, records, streams
from gridweave.grid.client.arguments import AnyJob, AnyJobs
from gridweave.grid.client.configuration import Connection, configured, gateway_of
from gridweave.grid.client.job_options import JobOptions
from gridweave.grid.client.mapping import TAIL_BYTES, Results, called, outcomes_of
from gridweave.grid.client.network import graph_of
from gridweave.grid.client.requests import (
    EncodedJobs,
    Runnable,
    callable_name,
    checked,
    chunks,
    job_request,
)
from gridweave.grid.client.streams import Connected, EndWatch, Stream, text_lines
from gridweave.grid.client.transport import Patience, Pauses, Sleep, Transport
from gridweave.site.job import ActionKind, JobRecord, JobRequest, SignalName
from gridweave.site.launch import Call
from gridweave.site.lifecycle import OVER, JobState

if TYPE_CHECKING:
    import networkx as nx
    import numpy as np

T = TypeVar("T")


class JobHandle:
    """A submitted job; returned by `Client.submit` and `Client.job`.

    Attributes
    ----------
    id : int
        The job's number.
    key : str
        The idempotency key of the submission; empty if unknown.
    state : str or None
        The state in the most recently fetched record; None if no record has been fetched.
    """

    def __init__(self, client: Client, job_id: int, *, key: str = "") -> None:
        self.id, self.key = arguments.job_number("job_id", job_id), key
        self.state: JobState | None = None
        self._client = client

    def __repr__(self) -> str:
        return f"<job {self.id}, {self.state or 'unknown'}>"

    async def record(self) -> JobRecord:
        """Fetch the job's current record."""
        record = await self._client.record(self.id)
        self.state = record.state
        return record

    async def done(self, timeout_s: float | None = None) -> JobRecord:
        """Wait until the job has ended, successfully or not, and return its record.

        Parameters
        ----------
        timeout_s : float, optional
            Maximum time to wait.

        Raises
        ------
        TimeoutError
            If the job has not ended in time; the job keeps running.
        """
        import asyncio  # imported here because commands that make one request do without it (`BriefTransport`)

        async with asyncio.timeout(None if timeout_s is None else arguments.real("timeout_s", timeout_s)):
            record = await self._client.ended(self.id)
        self.state = record.state
        return record

    async def check(self, timeout_s: float | None = None) -> JobRecord:
        """Wait until the job has finished successfully, and return its record.

        Raises
        ------
        JobFailedError
            If the job ended otherwise; the error has the failed rank's exit code and the end of its standard error.
        TimeoutError
            If the job has not ended in time.
        """
        record = await self.done(timeout_s)
        if record.outcome != "finished":
            raise await self._failure(record)
        return record

    async def result(self, timeout_s: float | None = None, *, rank: int = 0) -> Any:
        """Wait until the job has finished successfully, and return the result of its Python callable.

        Parameters
        ----------
        rank : int
            The rank whose result is returned.

        Returns
        -------
        object
            The result after a round trip through JSON, so a tuple has become a list. For a job of `Client.map` with
            several items, the list of the items' results.

        Raises
        ------
        JobFailedError, TimeoutError
            As for `check`.
        InputError
            If the job runs a command instead of a callable.
        """
        record = await self.check(timeout_s)
        outcomes = await self._outcomes(record, rank)
        return outcomes if called(record).per_item else outcomes[0]

    async def outcomes(self) -> list[Any]:
        """Wait until a job of `Client.map` has ended, and return the outcome of each of its items.

        Returns
        -------
        list
            For each item, the function's result, or a JobFailedError with the exception that the function raised. For
            items that the job did not reach, the job's own JobFailedError.

        Raises
        ------
        InputError
            If the job runs a command, or its results are lost.
        """
        return await self._outcomes(await self.done(), 0)

    async def _outcomes(self, record: JobRecord, rank: int) -> list[Any]:
        is_whole, data = record.outcome == "finished", b""
        if is_whole or (called(record).per_item and record.start_ms is not None):
            data = await self.output(rank=rank, stream="result")
        outcomes = outcomes_of(record, data)
        missing = len(called(record).args) - len(outcomes) if called(record).per_item else 1 - len(outcomes)
        if missing and is_whole:
            why = "there is no such rank, or its machine lost the result"
            raise InputError(f"job {self.id}: rank {rank} has no result: {why}")
        return outcomes + [await self._failure(record)] * missing if missing else outcomes

    async def cancel(self, *, at_once: bool = False) -> bool:
        """Cancel the job and return whether it was still unfinished; with `at_once`, kill it without a grace period."""
        return self.id in await self._client.cancel([self.id], at_once=at_once)

    async def signal(self, name: SignalName | Signals) -> bool:
        """Send a signal, such as ``USR1``, to the job's processes; return whether the job was running."""
        return self.id in await self._client.signal([self.id], name)

    async def requeue(self) -> bool:
        """Checkpoint, stop and requeue the job; return whether it was running and may be restarted."""
        return self.id in await self._client.requeue([self.id])

    async def hold(self) -> bool:
        """Keep the job from starting; return whether it was waiting."""
        return self.id in await self._client.hold([self.id])

    async def release(self) -> bool:
        """Put the job back into the queue; return whether it was held."""
        return self.id in await self._client.release([self.id])

    async def explain(self) -> api.Forecast:
        """Return when and where the job will start, and why not sooner."""
        return await self._client.explain(self.id)

    async def history(self) -> api.JobHistory:
        """Return the job's history."""
        return await self._client.history(self.id)

    async def output(self, *, rank: int = 0, stream: Stream = "out", attempt: int | None = None) -> bytes:
        """Return a rank's output so far.

        Parameters
        ----------
        stream : str
            ``out``, ``err`` or ``result``.
        attempt : int, optional
            The attempt whose output is returned; by default the last one.
        """
        parts = streams.output(self._client.transport, self.id, rank=rank, stream=stream, attempt=attempt)
        return b"".join([data async for data in parts])

    async def logs(self, *, follow: bool = False, rank: int = 0, stream: Stream = "out") -> AsyncGenerator[str, None]:
        """Yield the lines of a rank's output; with `follow`, keep yielding new lines until the job has ended.

        Parameters
        ----------
        stream : str
            ``out`` or ``err``.
        """
        parts = streams.output(self._client.transport, self.id, rank=rank, stream=stream, follow=follow)
        async with aclosing(text_lines(parts)) as lines:
            async for line in lines:
                yield line

    async def _failure(self, record: JobRecord) -> JobFailedError:
        rank, code, signal = record.exit_codes[0] if record.exit_codes else (0, None, None)
        tail = b""
        if record.start_ms is not None:
            try:
                async for data in streams.output(self._client.transport, self.id, rank=rank, stream="err"):
                    tail = (tail + data)[-TAIL_BYTES:]
            except RefusedError as error:
                if error.status != HTTPStatus.GONE:  # output that was removed must not hide the failure
                    raise
        return JobFailedError(
            self.id,
            record.outcome or record.state,
            record.reason,
            exit_code=128 + signal if signal is not None else code,
            stderr_tail=tail.decode(errors="replace"),
        )


class Client:
    """Client of a grid's gateway; an asynchronous context manager.

    Parameters
    ----------
    url, token : str, optional
        The gateway's address and the token for it. By default from the environment (``GRIDWEAVE_URL``,
        ``GRIDWEAVE_TOKEN``) or the configuration, else from the grid that `gridweave up` has started on this machine
        (docs/client.md).
    ca : str or pathlib.Path, optional
        A file with the certificates to trust instead of the system's.
    site : str, optional
        The site to submit jobs to by default, as one of its own users.
    plain_http : bool, optional
        Whether the token may be sent unencrypted to another machine, which is an error otherwise.
    profile : str, optional
        The profile of the configuration file to use.
    grid : str, optional
        The name of a grid that `gridweave up` has started on this machine, instead of a URL.
    patience : Patience, optional
        How long to retry.
    rng : numpy.random.Generator, optional
        Randomizes the pauses between retries.
    sleep : callable, optional
        Waits between retries.
    connection : Connection, optional
        How to reach the gateway; overrides the arguments above.
    transport : type, optional
        The class that sends the requests.

    Raises
    ------
    InputError
        If an argument or the configuration is invalid.
    UnavailableError
        If no grid is named and none is running on this machine.

    Notes
    -----
    Every call may raise UnavailableError (no answer in time), NotAllowedError (the token is not sufficient) and
    RefusedError (the request cannot be fulfilled), all from `gridweave.errors`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        ca: str | Path | None = None,
        site: str | None = None,
        plain_http: bool | None = None,
        profile: str | None = None,
        grid: str | None = None,
        patience: Patience | None = None,
        rng: np.random.Generator | None = None,
        sleep: Sleep | None = None,
        connection: Connection | None = None,
        transport: type[Transport] = Transport,
    ) -> None:
        options = {"url": url, "token": token, "ca": ca, "site": site, "profile": profile, "grid": grid}
        named: dict[str, Any] = {
            name: arguments.text(name, value) for name, value in options.items() if value is not None
        }
        self.connection = connection or configured(**named, plain_http=plain_http)
        self._made_with: dict[str, Any] = {"patience": patience, "rng": rng, "sleep": sleep, "transport": transport}
        self._at_sites: dict[str, Client] = {}
        self._pauses = Pauses(patience or Patience(), rng, sleep)
        self._kind = transport
        self._transport: Transport | None = None
        self._ends = EndWatch(self._follow, lambda job_ids: records.records_of(self.transport, job_ids))

    async def __aenter__(self) -> Self:
        self._transport = self._kind(self.connection, self._pauses)
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
        """The open connection to the gateway; InputError outside of ``async with``."""
        if self._transport is None:
            raise InputError("the client is not open; write: async with gridweave.Client() as grid")
        return self._transport

    async def _at_site(self, site: str) -> Client | None:
        """Return a client of the site's own gateway, or None if the gateway is unknown."""
        gateway = gateway_of(self.connection, site)
        if gateway is None:
            return None
        if site not in self._at_sites:
            self._at_sites[site] = await Client(connection=gateway, **self._made_with).__aenter__()
        return self._at_sites[site]

    def _with_folder(self, options: JobOptions) -> JobOptions:
        """Use the current folder as the working directory, like ``gridweave submit``, if the machines share it."""
        if options.get("working_directory") is not None or not self.connection.shares_folders:
            return options
        return {**options, "working_directory": os.getcwd()}

    async def submit(
        self, what: Runnable, *, site: str | None = None, key: str | None = None, **options: Unpack[JobOptions]
    ) -> JobHandle:
        """Submit a job; the job is durable once this call returns.

        Parameters
        ----------
        what : list of str, Program, Call or JobRequest
            A command and its arguments, a program, a Python callable, or a complete request; with a request, the
            options are ignored.
        site : str, optional
            Submit directly to this site, as one of its own users.
        key : str, optional
            Idempotency key: submitting again with the same key returns the same job. By default, a new key, which
            makes this call's own retries safe.
        **options : JobOptions
            The job's options, such as ``nodes=4, limit="10m", name="solve"``. docs/options.md lists all of them.

            nodes : int
                Number of nodes (1); at least the width of the widest form.
            limit : str or datetime.timedelta
                Wall time limit (1 h).
            environment : mapping
                Variables added to those of the machines' service; numbers and paths are converted to text.
            working_directory : str or pathlib.Path
                An absolute path on the machines. By default the current folder if the grid runs on this machine
                (`gridweave up`), otherwise a new folder for the job.

        Raises
        ------
        InputError
            If no site could run the job.
        """
        request = job_request(what, self._with_folder(options))
        return (await self.submit_many([request], site=site, keys=None if key is None else [key]))[0]

    async def submit_many(
        self, requests: JobRequest | Iterable[JobRequest], *, site: str | None = None, keys: Sequence[str] | None = None
    ) -> list[JobHandle]:
        """Submit many jobs, in requests of up to 500 jobs; all jobs are durable once this call returns.

        Parameters
        ----------
        keys : sequence of str, optional
            An idempotency key for each job; see `submit`.

        Returns
        -------
        list of JobHandle
            In the order of the requests.

        Raises
        ------
        RefusedError
            If the grid declined a job; the error gives the position of the first declined job. All other jobs have been
            submitted; submitting with the same keys returns them.
        """
        site = arguments.text("site", site) if site else self.connection.site
        if site is not None and (own := await self._at_site(site)) is not None:
            return await own.submit_many(requests, site=site, keys=keys)
        unchecked = arguments.many("requests", requests, JobRequest, "a JobRequest or several")
        asked = [self._checked(request) for request in unchecked]
        stem = uuid.uuid4().hex
        keys = [f"{stem}-{number}" for number in range(len(asked))] if keys is None else keys
        if len(keys) != len(asked):
            raise InputError(f"keys: there are {len(keys)} for {len(asked)} jobs; one for each")
        new = (api.NewJob(request=request, key=key) for request, key in zip(asked, keys, strict=True))
        answers: list[api.SubmitAnswer] = []
        for part in chunks(new):
            answers += await self._answered(EncodedJobs(jobs=part, site=site), keys[len(answers)])
        for number, answer in enumerate(answers):
            if answer.job_id is None:
                which = f"job {number + 1} of {len(answers)}: " if len(answers) > 1 else ""
                raise RefusedError(which + answer.reason)
        return [JobHandle(self, answer.job_id, key=answer.key) for answer in answers if answer.job_id is not None]

    def _checked(self, request: JobRequest) -> JobRequest:
        return checked(request, has_token=self.connection.token is not None)

    async def _answered(self, body: EncodedJobs, first_key: str) -> list[api.SubmitAnswer]:
        """Send one request and return each job's answer; if the gateway declines a single job, convert the error."""
        try:
            return (await self.transport.call("POST", "/v1/jobs", api.Submitted, body=body)).answers
        except RefusedError as error:
            if not error.kind.endswith(":declined"):
                raise
            return [api.SubmitAnswer(key=first_key, reason=str(error))]

    def map(
        self,
        function: Callable[..., Any] | str,
        items: Iterable[Any],
        *,
        at_once: int = 100,
        pack: int = 1,
        return_exceptions: bool = False,
        **options: Unpack[JobOptions],
    ) -> Results:
        """Call a function for each item, in one job per item or per `pack` items.

        Parameters
        ----------
        function : callable or str
            A function of one argument that the machines can import, or its name (``module:function``).
        items : iterable
            The items, which must be valid JSON values; may be infinite.
        at_once : int
            Maximum number of unfinished jobs at any time.
        pack : int
            Number of items per job. The job calls the function for one item after the other in one Python process,
            which pays off for calls that take less time than starting a job. An exception for one item does not stop
            the other items, unless the job has several nodes; either way the job counts as failed.
        return_exceptions : bool
            Whether to return an item's JobFailedError in place of its result instead of raising it.
        **options : JobOptions
            Options of each job, as for `submit`, except `array`: the jobs already form an array. With several
            ``nodes``, each node calls the function, and rank 0 provides the result. ``name`` defaults to the function's
            name. The machines look for the module in ``working_directory`` and on PYTHONPATH.

        Returns
        -------
        Results
            ``async for`` yields the results in the order of the items, as they become available; ``await`` returns them
            as a list. A failed item raises its JobFailedError after all earlier results, and cancels the unfinished
            jobs.
        """
        called = callable_name(function)
        if options.get("array") is not None:
            raise OptionError("array", "does not work with map, whose jobs are an array already; leave it out")
        options["name"] = options.get("name") or called.rpartition(":")[2]
        request = self._checked(job_request(Call(called), self._with_folder(options)))
        counts = {"at_once": arguments.whole("at_once", at_once), "pack": arguments.whole("pack", pack)}
        return Results(self, items, request, **counts, return_exceptions=return_exceptions)

    # -- jobs

    def job(self, job_id: AnyJob) -> JobHandle:
        """Return a handle for a job by its number, without a request to the grid."""
        return JobHandle(self, arguments.job_number("job_id", job_id))

    async def jobs(
        self,
        *,
        own: str = "",
        user: str | None = None,
        name: str | None = None,
        array: str | None = None,
        site: str | None = None,
        state: JobState | Sequence[JobState] = (),
        outcome: str | Sequence[str] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
        below: int | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[JobRecord, None]:
        """Yield jobs, newest first, fetching pages as needed.

        Parameters
        ----------
        own, user, name, array, site, state, outcome, since_ms, until_ms, below
            As for `gridweave.grid.api.JobQuery`.
        limit : int, optional
            Maximum number of jobs to yield; all by default.
        """
        left = None if limit is None else arguments.whole("limit", limit)
        while left is None or left > 0:
            page_limit = api.MOST_LISTED if left is None else min(left, api.MOST_LISTED)
            single = {"own": own, "user": user, "name": name, "array": array, "site": site, "below": below}
            times = {"since_ms": since_ms, "until_ms": until_ms}
            query = [(key, str(value)) for key, value in (single | times).items() if value not in (None, "")]
            query += [("state", choice) for choice in arguments.many("state", state, str, "a state or several")]
            query += [
                ("outcome", choice) for choice in arguments.many("outcome", outcome, str, "an outcome or several")
            ]
            query.append(("limit", str(page_limit)))
            page = await self.transport.call("GET", "/v1/jobs", api.JobPage, query=query)
            for record in page.jobs:
                yield record
            below = page.below
            if below is None:
                return
            left = None if left is None else left - len(page.jobs)

    async def record(self, job_id: AnyJob) -> JobRecord:
        """Fetch the current record of a job."""
        return await self.transport.call("GET", arguments.job_path(job_id), JobRecord)

    async def ended(self, job_id: AnyJob) -> JobRecord:
        """Wait until a job has ended and return its record; concurrent calls share one stream of events."""
        return await self._ends.ended(arguments.job_number("job_id", job_id))

    async def apply_action(self, kind: ActionKind, job_ids: AnyJobs) -> list[int]:
        """Apply an action to jobs; return the jobs to which it applied.

        Parameters
        ----------
        kind : str
            ``cancel``, ``requeue``, ``hold`` or ``release``, like the methods of these names; or ``kill``, like
            `cancel` with `at_once`.
        """
        return await self._apply_action(kind, job_ids, api.JobIds)

    async def cancel(self, job_ids: AnyJobs, *, at_once: bool = False) -> list[int]:
        """Cancel jobs and return those that were still unfinished; with `at_once`, kill them without a grace period."""
        return await self.apply_action("kill" if at_once else "cancel", job_ids)

    async def signal(self, job_ids: AnyJobs, name: SignalName | Signals) -> list[int]:
        """Send a signal, such as ``USR1`` or `signal.SIGUSR1`, to jobs' processes; return the jobs that were running.

        Processes on machines that are not responding do not get the signal.
        """
        return await self._apply_action("signal", job_ids, api.SignalJobs, signal=arguments.signal_name("name", name))

    async def _apply_action(
        self, kind: ActionKind, job_ids: AnyJobs, body: type[msgspec.Struct], **more: Any
    ) -> list[int]:
        numbers = arguments.job_numbers("job_ids", job_ids)
        done: list[int] = []
        for start in range(0, len(numbers), api.MOST_LISTED):
            part = body(job_ids=numbers[start : start + api.MOST_LISTED], **more)
            done += (await self.transport.call("POST", f"/v1/jobs/{kind}", api.Done, body=part)).job_ids
        return done

    async def requeue(self, job_ids: AnyJobs) -> list[int]:
        """Checkpoint, stop and requeue running jobs, on any site; return the jobs that will be requeued."""
        return await self.apply_action("requeue", job_ids)

    async def hold(self, job_ids: AnyJobs) -> list[int]:
        """Keep jobs from starting; return the jobs that were waiting."""
        return await self.apply_action("hold", job_ids)

    async def release(self, job_ids: AnyJobs) -> list[int]:
        """Put held jobs back into the queue; return the jobs that were held."""
        return await self.apply_action("release", job_ids)

    async def explain(self, job_id: AnyJob) -> api.Forecast:
        """Return when and where a job will start, and why not sooner."""
        return await self.transport.call("GET", arguments.job_path(job_id, "/forecast"), api.Forecast)

    async def history(self, job_id: AnyJob) -> api.JobHistory:
        """Return the history of a job."""
        return await self.transport.call("GET", arguments.job_path(job_id, "/history"), api.JobHistory)

    async def usage(self, job_id: AnyJob) -> api.UsageOverTime:
        """Return a job's resource use over time on each machine; it is kept as long as the job's output."""
        return await self.transport.call("GET", arguments.job_path(job_id, "/usage"), api.UsageOverTime)

    async def events(
        self,
        *,
        after: int | None = None,
        jobs: AnyJobs = (),
        kinds: str | Iterable[str] = (),
        user: str | None = None,
    ) -> AsyncGenerator[api.JobEvent, None]:
        """Yield job events indefinitely, each once and in order, even if the connection is interrupted.

        Parameters
        ----------
        after : int, optional
            The number of the last event already received; by default, only new events are yielded.
        jobs, kinds
            Yield only events of these jobs and of these kinds (docs/live.md); each may be a single value or several.
        user : str, optional
            Yield only events of this user's jobs.
        """
        named = arguments.many("kinds", kinds, str, "a kind of event or several")
        numbers = tuple(arguments.job_numbers("jobs", jobs))
        stream = streams.events(self.transport, after=after, jobs=numbers, kinds=named, user=user)
        async with aclosing(stream):
            async for event in stream:
                yield event

    # -- the grid

    async def sites(self) -> list[api.SiteInfo]:
        """Return the state of each site."""
        return (await self.transport.call("GET", "/v1/sites", api.Sites)).sites

    async def queue(self, limit: int = 100, *, explain: bool = False) -> api.Queue:
        """Return the first `limit` waiting jobs, and the number of jobs in each state.

        Parameters
        ----------
        explain : bool
            Whether to add when each job will start and why not sooner, for as many jobs as fit into one second.
        """
        query = {"limit": str(arguments.whole("limit", limit))} | ({"explain": "true"} if explain else {})
        return await self.transport.call("GET", "/v1/queue", api.Queue, query=query)

    async def scheduling(self) -> api.Scheduling:
        """Return the grid's scheduling policy and the time on its clock."""
        return await self.transport.call("GET", "/v1/scheduling", api.Scheduling)

    async def network(self) -> nx.MultiDiGraph[str]:
        """Return the current network between the sites as a networkx graph.

        Edges have the current ``latency_ms``, ``bandwidth_bps``, ``loss`` and ``jitter_ms``, measurements included, and
        ``up``, ``name``, ``cable`` (the same number on edges that fail together), ``jobs`` (the number of running jobs
        that use the edge) and ``measured``. Nodes have ``sites``, ``latitude`` and ``longitude`` if known.
        ``graph.graph["measured"]`` lists the paths between sites that measurements have corrected, each as a dictionary
        with the attributes of `NetworkPath`. The graph is a copy: changing it does not affect the grid.
        """
        return graph_of(await self.known_network())

    async def known_network(self) -> api.KnownNetwork:
        """Return the current network between the sites as plain data."""
        return await self.transport.call("GET", "/v1/network", api.KnownNetwork)

    async def quote(self, what: Runnable = ("true",), **options: Unpack[JobOptions]) -> api.Forecast:
        """Return when and where a job would start, without submitting it.

        Parameters
        ----------
        what, **options
            As for `submit`; the command makes no difference.
        """
        asked = api.QuoteJob(request=self._checked(job_request(what, options)))
        return await self.transport.call("POST", "/v1/quote", api.Forecast, body=asked)

    async def what_if(self, asked: api.WhatIf) -> api.WhatIfAnswer:
        """Return how waits and utilization would change with another configuration; the grid itself does not change."""
        return await self.transport.call("POST", "/v1/what-if", api.WhatIfAnswer, body=asked)

    async def drain(self, site: str) -> None:
        """Drain a site: it accepts no new jobs from the grid."""
        await self.transport.call("POST", f"/v1/sites/{arguments.in_path(site)}/drain", api.Done)

    async def resume(self, site: str) -> None:
        """Let a drained site accept jobs from the grid again."""
        await self.transport.call("POST", f"/v1/sites/{arguments.in_path(site)}/resume", api.Done)

    async def give_up(self, site: str, machine: str) -> None:
        """Declare a machine lost and run its jobs again; if the machine is still alive, the jobs run twice.

        Raise RefusedError if the site has no such machine, or if the machine is responding.
        """
        path = f"/v1/sites/{arguments.in_path(site)}/machines/{arguments.in_path(machine)}/give-up"
        await self.transport.call("POST", path, api.Done)

    async def ask_discipline(self, site: str, question: str, kind: type[T], changes: msgspec.Struct | None = None) -> T:
        """Apply `changes`, if any, to a site's discipline; then return what it has learned about `question`.

        Parameters
        ----------
        question : str
            The question, such as ``experience``; the gateway has a route for each.
        kind : type
            The type of the answer, such as `SiteExperience`.
        changes : Struct, optional
            The changes, such as `ExperienceChanges`.
        """
        path = f"/v1/sites/{arguments.in_path(site)}/{arguments.in_path(question)}"
        return await self.transport.call("GET" if changes is None else "POST", path, kind, body=changes)

    async def learnt_splits(self) -> list[api.LearntSplit]:
        """Return the measured cost of splitting jobs by user, class and width, and whether the grid uses it."""
        return (await self.transport.call("GET", "/v1/experience", api.GridExperience)).splits

    async def learnt_needs(self) -> list[api.NeedsExperience]:
        """Return the mean CPU, network and disk use of finished jobs, by user and class."""
        return (await self.transport.call("GET", "/v1/experience", api.GridExperience)).needs

    async def whoami(self) -> api.TokenInfo:
        """Return the user and the permissions of this client's token."""
        return await self.transport.call("GET", "/v1/whoami", api.TokenInfo)

    async def login_link(self) -> str:
        """Return a URL that opens the grid's pages in a browser, logged in as this client.

        The URL works once and expires soon. If the client has no token, it is the plain URL of the pages.
        """
        url = self.connection.url.rstrip("/")
        if not self.connection.token:
            return f"{url}/"
        login = await self.transport.call("POST", "/v1/login/code", api.LoginCode)
        return f"{url}/#login={login.code}"

    async def short_token(
        self, scopes: Sequence[api.ShortScope] = api.USUAL_SCOPES, *, hours: float = api.MOST_HOURS
    ) -> api.MadeToken:
        """Create a token for the same user, valid for a few hours, e.g. for a job that submits jobs.

        Raise OptionError if a scope is unknown, or if `hours` is not above 0 and at most 24.
        """
        asked = arguments.many("scopes", scopes, str, "a scope or several")
        hours = arguments.real("hours", hours)
        for scope in asked:
            if scope not in api.USUAL_SCOPES:
                valid_scopes = ", ".join(api.USUAL_SCOPES)
                raise OptionError(
                    "scopes", f"{scope!r:.100} cannot be requested; give one or several of {valid_scopes}"
                )
        if not 0 < hours <= api.MOST_HOURS:
            raise OptionError("hours", f"is {hours:g} hours; more than 0, and at most {api.MOST_HOURS:g}")
        body = api.ShortToken(scopes=cast("tuple[api.ShortScope, ...]", asked), hours=hours)
        return await self.transport.call("POST", "/v1/tokens/short", api.MadeToken, body=body)

    async def health(self) -> api.Health:
        """Return the health of the grid; raise UnavailableError if the grid is not working."""
        return await self.transport.call("GET", "/readyz", api.Health)

    def _follow(self, connected: Connected) -> AsyncIterator[api.JobEvent]:
        return streams.events(self.transport, after=None, kinds=OVER, connected=connected)
