"""The client of a gateway: what it hands in, what it asks, and what it makes of answers and refusals."""

from __future__ import annotations

import asyncio
import datetime
import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer

from gridweave.errors import (
    GridweaveError,
    InputError,
    JobFailedError,
    NotAllowedError,
    NotFoundError,
    OptionError,
    RefusedError,
    UnavailableError,
)
from gridweave.grid import api
from gridweave.grid.client import configuration
from gridweave.grid.client.client import Client
from gridweave.grid.client.requests import chunks
from gridweave.grid.client.streams import EndWatch
from gridweave.grid.client.transport import Patience
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.config.local_state import GATEWAY, LocalGridState, LocalProcess
from gridweave.grid.gateway.server import Gateway
from gridweave.site.job import OWN_IDS, After, ArrayPlace, JobForm, JobRequest, Program, Resources, Traffic
from gridweave.site.launch import Call
from support.gateway import GatewayBehindProxy, GridInMemory, make_tokens, served
from support.machine import PATIENCE_S

pytestmark = pytest.mark.asyncio


def request(nodes: int = 1, **changes: Any) -> JobRequest:
    """Return what is asked for."""
    return JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=60_000, user="anna", **changes)


# -- handing in


async def test_a_job_is_handed_in_as_it_was_said(gateway: GatewayBehindProxy, grid: Client) -> None:
    """All that is said of a job reaches the gateway, with a key and the name of the user."""
    job = await grid.submit(
        ["./solver", "input"],
        nodes=4,
        limit="10m",
        name="solve",
        environment={"A": "B"},
        working_directory="/data",
        ranks="first-node",
        if_lost="fail",
        hold=True,
        after=[7, After(job_id=8, has="ended")],
        array=ArrayPlace(name="many", index=3, at_once=2),
        priority=2.5,
        job_class="big",
        user="anna",
    )
    program = Program(
        argv=("./solver", "input"),
        environment={"A": "B"},
        working_directory="/data",
        ranks="first-node",
        if_lost="fail",
    )
    assert (await job.record()).request == JobRequest(
        program=program,
        nodes=4,
        limit_ms=600_000,
        name="solve",
        user="anna",
        job_class="big",
        priority=2.5,
        hold=True,
        after=(After(job_id=7), After(job_id=8, has="ended")),
        array=ArrayPlace(name="many", index=3, at_once=2),
    )
    assert (job.id, job.state) == (1, "held")
    (body,) = gateway.heard("/v1/jobs")
    assert [one["key"] for one in body["jobs"]] == [job.key]


async def test_forms_reach_the_gateway(grid: Client) -> None:
    """The job asks for as many nodes as its widest form has, if it says no more."""
    forms = [JobForm(width=4, on=("x86",), speed=3.0), JobForm()]
    request = (await (await grid.submit(["true"], forms=forms)).record()).request
    assert (request.nodes, request.forms) == (4, tuple(forms))


async def test_what_a_job_sends_reaches_the_gateway(grid: Client) -> None:
    """What it communicates, reads and writes is in its request; of a job that says nothing there is nothing."""
    job = await grid.submit(["true"], communication="ring", input_data="north:2GB")
    assert (await job.record()).request.traffic == Traffic(
        communication="ring", input_bytes=2_000_000_000, input_site="north"
    )
    assert (await (await grid.submit(["true"])).record()).request.traffic is None
    with pytest.raises(OptionError, match="output_data: 'north' is not a site and a size"):
        await grid.submit(["true"], output_data="north")


async def test_what_a_job_needs_reaches_the_gateway(grid: Client) -> None:
    """It is said as text or in full; of a job that says nothing there is nothing."""
    job = await grid.submit(["true"], resources="cpu=0.6,network=0.3,disk=0.1,memory=0.25")
    needs = Resources(cpu=0.6, network=0.3, disk=0.1, memory=0.25)
    assert (await job.record()).request.resources == needs
    assert (await (await grid.submit(["true"], resources=needs)).record()).request.resources == needs
    assert (await (await grid.submit(["true"])).record()).request.resources is None
    with pytest.raises(OptionError, match=r"resources: 'cpu=2': cpu, network and disk are \(2.0, 0.0, 0.0\)"):
        await grid.submit(["true"], resources="cpu=2")
    with pytest.raises(InputError, match=r"resources: cpu, network and disk are \(0.5, 0.0, 0.0\)"):
        await grid.submit(["true"], resources=Resources(cpu=0.5))


async def test_the_login_name_is_filled_in(grid: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names no user is who is logged in; where nobody is, the name stays empty."""
    monkeypatch.setenv("LOGNAME", "berta")
    job = await grid.submit(["true"])
    assert (await job.record()).request.user == "berta"
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987_654)
    assert (await (await grid.submit(["true"])).record()).request.user == ""


async def test_a_key_gives_the_same_job(grid: Client) -> None:
    """The same key is the same job; without one, each call is another."""
    first, again = [await grid.submit(["true"], key="mine") for _ in range(2)]
    assert (first.id, first.key) == (again.id, again.key) == (1, "mine")
    assert (await grid.submit(["true"])).id == 2
    assert (await grid.submit(["true"])).id == 3


async def test_many_jobs_go_in_requests_of_500(gateway: GatewayBehindProxy, grid: Client) -> None:
    """Jobs are handed in 500 at a time, and come back in their order."""
    jobs = await grid.submit_many(request(nodes=1 + number % 7) for number in range(1_201))
    assert [job.id for job in jobs] == list(range(1, 1_202))
    assert [len(body["jobs"]) for body in gateway.heard("/v1/jobs")] == [500, 500, 201]
    records = gateway.grid.records_by_id
    assert all(records[job.id].request.nodes == 1 + number % 7 for number, job in enumerate(jobs))


def new_job(size: int) -> api.NewJob:
    """Return a job of about so many bytes."""
    return api.NewJob(request=request(job_class="x" * size), key="k")


async def test_large_jobs_go_in_smaller_requests() -> None:
    """No request is much larger than a gateway takes, and no job is left out for its size."""
    sizes = [3 << 20, 3 << 20, 1, 5 << 20, 1, 1]
    parts = chunks([new_job(size) for size in sizes])
    jobs = [[msgspec.msgpack.decode(job, type=api.NewJob) for job in part] for part in parts]
    assert [[len(job.request.job_class) for job in part] for part in jobs] == [
        [3 << 20],
        [3 << 20, 1],
        [5 << 20],
        [1, 1],
    ]


async def test_jobs_that_are_not_taken_in(gateway: GatewayBehindProxy, grid: Client) -> None:
    """The first job that the grid declines is named, and the others have been handed in."""
    with pytest.raises(RefusedError, match=r"^200 nodes; the grid has 12$"):
        await grid.submit(["true"], nodes=200)
    with pytest.raises(RefusedError, match="job 2 of 3: 200 nodes; the grid has 12"):
        await grid.submit_many([request(), request(nodes=200), request()])
    assert sorted(gateway.grid.records_by_id) == [1, 2]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"what": "./solver input"}, "is not a command; give a list"),
        ({"what": ["./solver", 3]}, "is not a command; give a list"),
        ({"what": []}, "the command is empty"),
        ({"what": ["a\0b"]}, "contains a NUL character"),
        ({"what": ["true"], "nodes": 0}, "nodes is 0; expected a whole number from 1"),
        ({"what": ["true"], "limit": "soon"}, "limit: 'soon' is not a time"),
        ({"what": ["true"], "limit": 600}, "limit: 600 has no unit"),
        ({"what": ["true"], "limit": datetime.timedelta()}, "limit_ms is 0"),
        ({"what": ["true"], "working_directory": "data"}, "expected an absolute path"),
        ({"what": Call("nonsense")}, "expected module:function"),
    ],
    ids=str,
)
async def test_what_no_site_could_run_is_refused_here(
    gateway: GatewayBehindProxy, grid: Client, what: Any, says: str
) -> None:
    """A mistake is told in one line before anything goes over the network."""
    with pytest.raises(InputError, match=says):
        await grid.submit(**what)
    assert gateway.proxy.heard == []


async def test_a_site_whose_own_gateway_is_known(gateway: GatewayBehindProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs for such a site go to its own gateway, also while that of the grid is away, and are asked for there."""
    async with served() as site:
        monkeypatch.setenv("GRIDWEAVE_SITE_NORTH_URL", site.url)
        monkeypatch.setenv("GRIDWEAVE_URL", gateway.url)
        async with Client() as grid:
            (there,) = await grid.submit_many([request()], site="north")
            assert (await there.record()).job_id == there.id
            assert gateway.proxy.heard == []
            (here,) = await grid.submit_many([request()])
            assert [len(one.heard("/v1/jobs")) for one in (site, gateway)] == [1, 1]
        monkeypatch.setenv("GRIDWEAVE_URL", "http://127.0.0.1:1")
        async with Client(site="north") as grid:
            assert (await grid.submit(["true"])).id != there.id
        assert here.id > 0


async def test_a_site_of_ones_own(gateway: GatewayBehindProxy) -> None:
    """Jobs are handed in to the site that the call names, else to that of the client."""
    async with Client(gateway.url, site="north") as grid:
        assert (await grid.submit(["true"])).id > OWN_IDS
        await grid.submit(["true"], site="south")
    assert [body["site"] for body in gateway.heard("/v1/jobs")] == ["north", "south"]


# -- asking


async def test_jobs_come_page_after_page(
    gateway: GatewayBehindProxy, grid: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list has all jobs, the newest first, whatever a page holds; or as many as were asked for."""
    monkeypatch.setattr(api, "MOST_LISTED", 50)
    await grid.submit_many([request(name=f"job-{number % 2}") for number in range(120)])
    gateway.proxy.heard.clear()
    assert [record.job_id async for record in grid.jobs()] == list(range(120, 0, -1))
    assert gateway.heard("/v1/jobs") == ["limit=50", "below=71&limit=50", "below=21&limit=50"]
    assert [record.job_id async for record in grid.jobs(limit=60)] == list(range(120, 60, -1))
    assert [record.job_id async for record in grid.jobs(limit=0)] == []
    assert [record.job_id async for record in grid.jobs(name="job-1", below=5)] == [4, 2]
    assert [record.job_id async for record in grid.jobs(state=["running", "held"])] == []


async def test_jobs_are_changed(gateway: GatewayBehindProxy, grid: Client) -> None:
    """Cancel, hold and release say whether something was done, one by one and many at once."""
    jobs = await grid.submit_many([request() for _ in range(2_500)])
    assert await jobs[0].hold()
    assert not await jobs[0].hold()
    assert await jobs[0].release()
    assert await jobs[0].cancel()
    assert not await jobs[0].cancel()
    assert await grid.cancel(job.id for job in jobs) == [job.id for job in jobs[1:]]
    assert [len(body["job_ids"]) for body in gateway.heard("/v1/jobs/cancel")][-3:] == [1000, 1000, 500]


async def test_a_job_tells_of_itself(grid: Client) -> None:
    """A job can be explained, has a story and a handle that shows its state."""
    job = await grid.submit(["true"], nodes=12)
    assert repr(job) == "<job 1, unknown>"
    assert (await job.explain()).split is not None
    assert [entry.kind for entry in (await job.history()).entries] == ["submitted"]
    await job.record()
    assert repr(grid.job(1)) == "<job 1, unknown>"
    assert repr(job) == "<job 1, waiting>"


async def test_the_grid_tells_of_itself(gateway: GatewayBehindProxy, grid: Client) -> None:
    """Sites, queue, quote, health and who asks are as the gateway says them."""
    assert [site.name for site in await grid.sites()] == ["north", "south"]
    await grid.drain("north")
    assert [site.draining for site in await grid.sites()] == [True, False]
    await grid.resume("north")
    assert [site.draining for site in await grid.sites()] == [False, False]
    with pytest.raises(RefusedError, match="site 'b c\\?' is none of north"):
        await grid.drain("b c?")
    await grid.give_up("north", "m1")
    with pytest.raises(RefusedError, match="site north has no machine 'b c\\?'; it has m0, m1"):
        await grid.give_up("north", "b c?")
    await grid.submit_many([request(), request()])
    with pytest.raises(RefusedError, match=r"^limit: Expected `int` <= 1000; parameters: limit, explain$"):
        await grid.queue(limit=5000)
    queue = await grid.queue(limit=1)
    assert (queue.waiting, [job.job_id for job in queue.jobs]) == (2, [1])
    quoted = await grid.quote(nodes=3, limit="30m")
    assert (quoted.job_id, quoted.places, quoted.length_ms) == (None, (("north", 3),), 1_800_000)
    assert (await grid.quote(request(nodes=5))).places == (("north", 5),)
    assert len(gateway.grid.records_by_id) == 2, "a quote hands nothing in"
    assert (await grid.whoami()).scopes == ("operate",)
    assert (await grid.health()).status == "ok"


# -- waiting


async def test_an_end_is_heard_by_the_stream(gateway: GatewayBehindProxy, grid: Client) -> None:
    """Who waits hears of the end at once, and asks twice alone: at first, and then; all with one stream."""
    jobs = await grid.submit_many([request() for _ in range(20)])
    tasks = [asyncio.create_task(job.done()) for job in jobs]
    while not gateway.proxy.passed:
        await asyncio.sleep(0)
    for job in jobs:
        gateway.grid.end(job.id)
    records = await asyncio.gather(*tasks)
    assert [(record.job_id, record.outcome) for record in records] == [(job.id, "finished") for job in jobs]
    assert all(job.state == "ended" for job in jobs)
    assert len(gateway.heard("/v1/events")) == 1


async def test_who_waits_too_long_is_told(gateway: GatewayBehindProxy, grid: Client) -> None:
    """A wait may have an end of its own; the job goes on, and can be waited for again."""
    job = await grid.submit(["true"])
    with pytest.raises(TimeoutError):
        await job.done(timeout_s=0.02)
    gateway.grid.end(job.id)
    assert (await job.done(timeout_s=PATIENCE_S)).outcome == "finished"


async def test_an_end_is_found_without_a_stream(gateway: GatewayBehindProxy) -> None:
    """Where there is no stream of events, the client asks now and then."""

    async def fetch(job_ids: list[int]) -> Any:
        asked.extend(job_ids)
        if len(asked) == 4:
            gateway.grid.end(job_ids[0])
        return [gateway.grid.records_by_id[job_id] for job_id in job_ids]

    async def no_stream(connected: Any) -> Any:
        raise UnavailableError("no stream")
        yield

    asked: list[int] = []
    async with Client(gateway.url) as grid:
        job = await grid.submit(["true"])
        watch = EndWatch(no_stream, fetch, first_poll_s=0.001, longest_poll_s=0.002)
        assert (await watch.ended(job.id)).state == "ended"
        await watch.close()
    assert len(asked) == 4


async def test_many_who_wait_share_requests(gateway: GatewayBehindProxy, grid: Client) -> None:
    """Waiting for a hundred jobs takes a few requests, not some for each; one that is not there fails alone."""
    jobs = [await grid.submit(["true"]) for _ in range(100)]
    waiting = [asyncio.create_task(job.done(timeout_s=PATIENCE_S)) for job in jobs]
    missing = asyncio.create_task(grid.ended(999))
    with pytest.raises(RefusedError, match="there is no job 999"):
        await missing
    before = len(gateway.proxy.heard)
    for job in jobs:
        gateway.grid.end(job.id)
    assert [record.outcome for record in await asyncio.gather(*waiting)] == ["finished"] * 100
    assert len(gateway.proxy.heard) - before < 20


# -- ends


async def test_a_job_that_failed(gateway: GatewayBehindProxy, grid: Client) -> None:
    """The error of a job has its exit code, the reason, and the end of what it wrote to standard error."""
    job = await grid.submit(["false"], nodes=3)
    record = gateway.grid.records_by_id[job.id]
    gateway.grid.start(job.id)
    gateway.grid.write(job.id, b"x" * 9_000 + b"\nout of memory\n", rank=2, stream="err")
    gateway.grid.end(job.id, "failed")
    record.reason = "rank 2 ended with exit code 3"
    record.exit_codes = ((2, 3, None), (1, None, 15))
    with pytest.raises(JobFailedError, match=r"^job 1 has failed: rank 2 ended with exit code 3$") as caught:
        await job.check()
    error = caught.value
    assert (error.job_id, error.outcome, error.exit_code, error.exit_status) == (1, "failed", 3, 4)
    assert error.stderr_tail.endswith("x\nout of memory\n")
    assert len(error.stderr_tail) == 4_000
    record.exit_codes = ((2, None, 9),)
    with pytest.raises(JobFailedError) as caught:
        await job.result()
    assert caught.value.exit_code == 137


@pytest.mark.parametrize(
    ("outcome", "says"),
    [("limit", "job 1 ran to its limit"), ("cancelled", "job 1 was cancelled: on request")],
)
async def test_other_bad_ends(gateway: GatewayBehindProxy, grid: Client, outcome: str, says: str) -> None:
    """A job that was ended is an error as well, and says how."""
    job = await grid.submit(["true"])
    gateway.grid.end(job.id, outcome)
    gateway.grid.records_by_id[job.id].reason = "on request" if outcome == "cancelled" else ""
    with pytest.raises(JobFailedError, match=says):
        await job.check()


async def test_results(gateway: GatewayBehindProxy, grid: Client) -> None:
    """What a callable returned is had from its rank; a command has no result."""
    job = await grid.submit(Call("math:sqrt", (2.0,)), nodes=2)
    gateway.grid.write(job.id, json.dumps(math.sqrt(2.0)).encode(), stream="result")
    gateway.grid.end(job.id)
    assert await job.result() == math.sqrt(2.0)
    with pytest.raises(InputError, match="job 1: rank 1 has no result"):
        await job.result(rank=1)
    other = await grid.submit(["true"])
    gateway.grid.end(other.id)
    with pytest.raises(InputError, match="job 2 runs a command"):
        await other.result()


# -- refusals


async def test_errors_are_typed(grid: Client, tmp_path: Path) -> None:
    """A job that is not there, and a token that is missing, or does not do, are errors that say so."""
    with pytest.raises(NotFoundError, match="there is no job 9") as caught:
        await grid.job(9).record()
    assert (caught.value.status, caught.value.exit_status) == (404, 2)
    place = tmp_path / "tokens.db"
    tokens = make_tokens(place, anna="submit", berta="read")
    async with served(tokens=str(place)) as strict:
        async with Client(strict.url) as nobody:
            with pytest.raises(NotAllowedError) as refused:
                await nobody.sites()
        assert (refused.value.status, refused.value.exit_status) == (401, 5)
        async with Client(strict.url, token=tokens["anna"]) as anna, Client(strict.url, token=tokens["berta"]) as berta:
            with pytest.raises(NotAllowedError, match="is 'carla', and the token is anna's"):
                await anna.submit(["true"], user="carla")
            job = await anna.submit(["true"])
            assert (await job.record()).request.user == (await anna.whoami()).user == "anna"
            with pytest.raises(NotFoundError):
                await berta.record(job.id)
            with pytest.raises(NotAllowedError) as refused:
                await berta.submit(["true"])
        assert refused.value.status == 403


async def answered(status: int, headers: dict[str, str] | None = None, **said: Any) -> tuple[Exception, int]:
    """Return what a client raises at an answer, and how often it asked."""
    asked = 0

    async def handler(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=status, headers=headers, **said)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handler)
    async with TestServer(app) as server, Client(str(server.make_url("")), patience=Patience(total_s=0.05)) as grid:
        with pytest.raises(GridweaveError) as caught:
            await grid.sites()
    return caught.value, asked


PROBLEM = api.Problem(
    type="urn:gridweave:problem:invalid-request",
    title="bad",
    status=422,
    detail="2 fields are wrong",
    instance="r-17",
    errors=[api.FieldProblem(where="jobs[3].nodes", detail="is 0"), api.FieldProblem(where="site", detail="is 3")],
)


@pytest.mark.parametrize("form", ["json", "msgpack"])
async def test_problem_documents(form: str) -> None:
    """A problem says its parts in one line, and keeps its type and the id of the request."""
    data = getattr(msgspec, form).encode(PROBLEM)
    error, asked = await answered(422, body=data, content_type=f"application/problem+{form}")
    assert isinstance(error, RefusedError)
    assert str(error) == "2 fields are wrong; jobs[3].nodes: is 0; site: is 3"
    assert (error.kind, error.status, error.instance) == ("urn:gridweave:problem:invalid-request", 422, "r-17")
    assert asked == 1


async def test_fields_with_the_same_fault_are_all_told() -> None:
    """What is said of the whole is not told again for its field, and is for the others."""
    errors = [api.FieldProblem(where=f"jobs[{number}].nodes", detail="is 0") for number in (0, 3)]
    problem = msgspec.structs.replace(PROBLEM, detail="jobs[0].nodes: is 0", errors=errors)
    error, _ = await answered(422, body=msgspec.json.encode(problem), content_type="application/problem+json")
    assert str(error) == "jobs[0].nodes: is 0; jobs[3].nodes: is 0"


@pytest.mark.parametrize(
    ("status", "headers", "kind", "says"),
    [
        (200, {}, UnavailableError, "answers with text/plain, so it is not a gateway"),
        (301, {"Location": "https://other/"}, RefusedError, r"sends elsewhere with 301 \(Moved .*, to https://other/"),
        (400, {}, RefusedError, r"answers with 400 \(Bad Request\); is that the address of a gateway"),
        (403, {}, NotAllowedError, "answers with 403"),
        (500, {}, UnavailableError, "the gateway failed: .* 500"),
    ],
)
async def test_answers_of_something_else(status: int, headers: dict[str, str], kind: type, says: str) -> None:
    """What is no gateway, or a proxy before one, is told with its status, and asked once."""
    error, asked = await answered(status, headers, text="<html>")
    assert type(error) is kind
    assert asked == 1
    with pytest.raises(kind, match=says):
        raise error


async def test_an_answer_of_another_version() -> None:
    """An answer that does not hold what it must is told, with the field."""
    data = msgspec.msgpack.encode({"sites": [{"nome": "north"}]})
    error, _ = await answered(200, body=data, content_type="application/msgpack")
    assert "its answer cannot be read (Object missing required field `name`" in str(error)


async def test_nothing_listens() -> None:
    """Where nothing listens the client says so, after it has tried for as long as it may."""
    async with Client("http://127.0.0.1:9", patience=Patience(connect_s=0.02)) as grid:
        with pytest.raises(UnavailableError, match=r"no gateway answers at http://127\.0\.0\.1:9: "):
            await grid.sites()


async def test_a_client_that_is_not_open(gateway: GatewayBehindProxy) -> None:
    """A client that was not entered, or was left, says what to write."""
    grid = Client(gateway.url)
    with pytest.raises(InputError, match="async with gridweave"):
        await grid.sites()
    async with grid:
        await grid.sites()
    with pytest.raises(InputError, match="is not open"):
        await grid.sites()


# -- TLS


async def test_certificates(tmp_path: Path) -> None:
    """A gateway with a certificate of its own is trusted with its file, and not without."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own = authority.issue_cert("127.0.0.1", "localhost")
    own.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for blob in own.cert_chain_pems:
        blob.write_to_path(str(tmp_path / "cert.pem"), append=True)
    gateway = Gateway(
        GridInMemory(), GatewaySettings(port=0, cert=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem"))
    )
    await gateway.start()
    try:
        async with Client(gateway.url, ca=str(tmp_path / "ca.pem")) as grid:
            assert await grid.sites()
        async with Client(gateway.url) as grid:
            with pytest.raises(UnavailableError, match=r"its certificate is not trusted .* GRIDWEAVE_CA"):
                await grid.sites()
    finally:
        await gateway.stop()


async def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    """A file that is missing, or contains no certificates, is told by its name."""
    (tmp_path / "empty.pem").write_text("hello")
    for name, says in (("empty.pem", "contains no certificates"), ("missing.pem", "there is no such file")):
        with pytest.raises(InputError, match=says):
            async with Client("https://localhost:1", ca=str(tmp_path / name)):
                pass


async def test_a_client_goes_where_the_gateway_of_a_grid_here_went(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the gateway of a grid of this machine was started again elsewhere, the same client asks it there."""
    here = LocalProcess.of_pid(GATEWAY, os.getpid())
    assert here is not None
    monkeypatch.setattr(LocalGridState, "has_gateway", True)
    async with served() as first, served() as second:
        told = {"name": "campus", "marker": "", "boot": "", "since_ms": 0, "folder": "", "namespace": "", "sites": ()}
        state = LocalGridState(**told, url=first.url, tokens=False, processes=(here,))
        monkeypatch.setattr(configuration, "running_grid", lambda name: state)
        async with Client(grid="campus") as grid:
            await grid.submit(["true"])
            gone = LocalProcess(GATEWAY, os.getpid(), 1)  # a number that is another process's now
            grid.transport._gateway = gone
            state = LocalGridState(**told, url=second.url, tokens=False, processes=(here,))
            await grid.submit(["true"])
        assert (len(first.grid.records_by_id), len(second.grid.records_by_id)) == (1, 1)


async def test_requests_have_connections_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many requests over few connections none is overtaken by more than there are others under way."""
    monkeypatch.setattr("gridweave.grid.client.transport._CONNECTIONS", 2)
    ends, overtaken = 0, []

    async def ask(grid: Client) -> None:
        nonlocal ends
        for _ in range(20):
            begun = ends
            await grid.queue(0)
            overtaken.append(ends - begun)
            ends += 1

    async with served() as gateway, Client(gateway.url) as grid:
        await asyncio.gather(*(ask(grid) for _ in range(10)))
    assert len(overtaken) == 200
    assert max(overtaken) <= 12
