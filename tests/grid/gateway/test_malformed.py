"""Whatever is sent, the gateway stays healthy: no answer is an error of its own, and it holds on to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import logging
import random
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from gridweave.grid.api import Problem
from gridweave.grid.gateway import server
from gridweave.grid.gateway.routes import ROUTES
from support.gateway import SLEEP, FakeBackend, Served, a_job, serving

pytestmark = pytest.mark.asyncio

JSON = {"Content-Type": "application/json"}
MSGPACK = {"Content-Type": "application/msgpack"}
POSTS = ("/v1/jobs", "/v1/jobs/cancel", "/v1/jobs/hold", "/v1/quote", "/v1/tokens", "/v1/jobs/1/cancel")


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the gateway wait only briefly for the rest of what it has refused; nobody sends more here."""
    monkeypatch.setattr(server, "_LINGER_S", 0.1)


async def send(grid: Served, method: str, path: str, data: Any = None, **headers: Any) -> tuple[int, Problem | None]:
    """Make a request; return its status and the problem, which every refusal has."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with grid.session.request(method, grid.url + path, data=data, headers=named) as response:
        body = await response.read()
        assert response.status < 500, (method, path, data, body)
        if response.status < 400:
            return response.status, None
        assert response.content_type == "application/problem+json", (method, path, response.status)
        problem = msgspec.json.decode(body, type=Problem)
        assert (problem.status, bool(problem.detail), bool(problem.instance)) == (response.status, True, True)
        return response.status, problem


async def is_healthy(grid: Served) -> bool:
    """Return whether the gateway takes in a job and shows it."""
    [job_id] = await grid.submit(a_job())
    return (await grid.ask("GET", f"/v1/jobs/{job_id}"))[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        (b"", 400, ""),
        (b"{", 400, ""),
        (b"\xff\xfe", 400, ""),
        (b'"\\ud800"', 400, ""),
        (b"[" * 100_000, 422, ""),
        (b'{"jobs": ' + b"[" * 100_000, 422, "jobs[0]"),
        (b'{"jobs": [{"request": ' + b"[" * 100_000, 400, ""),
        (b'{"jobs": 1}', 422, "jobs"),
        (b'{"jobs": [1]}', 422, "jobs[0]"),
        (b'{"jobs": [{}]}', 422, "jobs[0]"),
        (b'{"jobs": [], "site": 5}', 422, "site"),
        (b'{"jobs": [{"request": 1}]}', 422, "jobs[0].request"),
        (b'{"jobs": [{"request": {"program": {}, "limit_ms": 1, "nodes": "4"}}]}', 422, "jobs[0].request.nodes"),
        (b'{"jobs": [{"request": {"program": {}, "limit_ms": 1e999}}]}', 422, "jobs[0].request.limit_ms"),
        (b'{"jobs": [{"request": {"program": {"environment": {"a": 1}}, "limit_ms": 1}}]}', 422, "environment"),
        (b'{"jobs": [{"request": {"program": {}, "limit_ms": 1}, "key": ""}]}', 422, "jobs[0].key"),
        (b'{"jobs": [{"request": {"program": {"call": {"function": "a:b", "args": ' + b"[" * 5000, 400, ""),
    ],
)
async def test_a_body_that_cannot_be_used_is_told_where(body: bytes, status: int, where: str) -> None:
    """A broken body is 400; one with a wrong part is 422, and names the part."""
    async with serving(FakeBackend()) as grid:
        answered, problem = await send(grid, "POST", "/v1/jobs", body, **JSON)
        assert problem is not None
        assert answered == status, problem
        assert where in (problem.errors[0].where if problem.errors else "")
        assert await is_healthy(grid)


async def test_all_jobs_of_wrong_types_are_named_at_once() -> None:
    """Of a batch in which several jobs are wrong each is named, and none is taken in."""
    backend = FakeBackend()
    async with serving(backend) as grid:
        jobs = [a_job(), a_job(nodes="x"), a_job(), a_job(limit_ms=None)]
        status, problem, _ = await grid.ask("POST", "/v1/jobs", {"jobs": jobs})
        assert status == 422
        assert [wrong["where"] for wrong in problem["errors"]] == ["jobs[1].request.nodes", "jobs[3].request.limit_ms"]
        assert not backend.records_by_id


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"limit_ms": 10**30}, "limit_ms is a number that is too large"),
        ({"nodes": -(10**400)}, "nodes is a number that is too large"),
        ({"name": "x" * 201}, "name is"),
        ({"user": "an\x1b[31mna"}, "user is"),
        ({"program": {"call": {"function": "a:b", "args": [[[10**30]]]}}}, "a number of more than 64 bits"),
        ({"program": {"call": {"function": "a:b", "args": [msgspec.json.decode(b"[" * 99 + b"]" * 99)]}}}, "32 deep"),
        ({"nodes": 0}, "nodes is 0"),
    ],
)
async def test_a_job_that_no_grid_could_keep_is_declined(change: dict[str, Any], reason: str) -> None:
    """A job of the right types that cannot be passed on gets no number but a reason; the others are taken in."""
    async with serving(FakeBackend()) as grid:
        body = msgspec.json.encode({"jobs": [a_job(**change), a_job()]})
        async with grid.session.post(f"{grid.url}/v1/jobs", data=body, headers=JSON) as response:
            answers = msgspec.json.decode(await response.read())["answers"]
        assert answers[0]["job_id"] is None
        assert reason in answers[0]["reason"]
        assert answers[1]["job_id"] == 1


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), b"bytes", msgspec.msgpack.Ext(5, b"x"), {1: 2}, {None: 1}],
)
async def test_what_json_cannot_say_is_declined_in_messagepack(value: Any) -> None:
    """Arguments that MessagePack knows and JSON does not are declined; so are numbers that are not finite."""
    async with serving(FakeBackend()) as grid:
        program = {"call": {"function": "a:b", "args": [value]}}
        jobs = [a_job(program=program), a_job(program=program)]
        if isinstance(value, float):
            jobs += [a_job(priority=value), a_job(resources={"cpu": value}), a_job(traffic={"fraction": value})]
        body = msgspec.msgpack.encode({"jobs": jobs})
        async with grid.session.post(f"{grid.url}/v1/jobs", data=body, headers=MSGPACK) as response:
            answers = msgspec.json.decode(await response.read())["answers"]
        assert [one["job_id"] for one in answers] == [None] * len(jobs)
        assert all(one["reason"] for one in answers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=latin-1"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "application/json", "Accept": "text/html"}, 406),
        ({"Content-Type": "application/json", "Accept": "*/*;q=0"}, 406),
        ({"Content-Type": "application/json", "Expect": "a miracle"}, 417),
        ({"Content-Type": "application/json", "Idempotency-Key": "x" * 191}, 422),
        ({"Content-Type": "application/json; charset=utf-8", "Accept": "text/html, */*;q=0.1"}, 200),
    ],
)
async def test_headers_are_heard(headers: dict[str, str], status: int) -> None:
    """Bodies and answers of other forms, compressed bodies and unknown expectations are refused for what they are."""
    async with serving(FakeBackend()) as grid:
        body = msgspec.json.encode({"jobs": []})
        found, _ = await send(grid, "POST", "/v1/jobs", body, **({"Content-Type": ""} | headers))
        assert found == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/web/", 404),
        ("GET", "/v2/jobs", 404),
        ("GET", "/v1/jobs/", 404),
        ("GET", "/v1/jobs/x", 404),
        ("GET", "/v1/jobs/0", 404),
        ("GET", "/v1/jobs/-1", 404),
        ("GET", "/v1/jobs/" + "9" * 500, 404),
        ("GET", "/v1/jobs/1%2fhistory", 404),
        ("GET", "/v1/jobs/%ff%00", 404),
        ("PUT", "/v1/jobs", 405),
        ("DELETE", "/v1/jobs/1", 405),
        ("GET", "/v1/jobs/cancel", 405),
        ("DELETE", "/v1/tokens/short", 405),
        ("HEAD", "/v1/jobs", 200),
        ("HEAD", "/v1/events", 405),
        ("OPTIONS", "/v1/jobs", 405),
        ("BREW", "/v1/sites", 400),
        ("GET", "/v1/jobs?limit=0", 422),
        ("GET", "/v1/jobs?limit=1&limit=2", 422),
        ("GET", "/v1/jobs?limit=" + "9" * 5000, 422),
        ("GET", "/v1/jobs?state=asleep", 422),
        ("GET", "/v1/jobs?colour=red", 422),
        ("GET", "/v1/jobs?below=null", 422),
        ("GET", "/v1/jobs?user=null", 200),
        ("GET", "/v1/jobs?user=%ff%fe", 200),
        ("GET", "/v1/jobs?%ff=1", 422),
        ("GET", "/v1/jobs?user=%00", 200),
        ("GET", "/v1/jobs?own=nowhere", 422),
        ("GET", "/v1/queue?limit=1001", 422),
        ("DELETE", "/v1/tokens/%00", 404),
    ],
)
async def test_paths_methods_and_parameters(method: str, path: str, status: int) -> None:
    """What is not there is 404, a wrong method 405 with the right ones, a parameter that is none 422."""
    import yarl

    async with serving(FakeBackend()) as grid:
        url = yarl.URL(grid.url + path, encoded=True)
        async with grid.session.request(method, url) as response:
            assert response.status == status, await response.read()
            if status == 405:
                assert response.headers["Allow"]
            if status >= 400 and method != "HEAD":
                msgspec.json.decode(await response.read(), type=Problem)


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_body_that_is_too_large_is_refused(is_chunked: bool) -> None:
    """A body above the limit is refused, whether its size is said before or not; one below it is taken."""

    async def parts() -> Any:
        for _ in range(20):
            yield b" " * 1000

    async with serving(FakeBackend(), max_body_bytes=10_000) as grid:
        status, problem = await send(grid, "POST", "/v1/jobs", parts() if is_chunked else b" " * 20_000, **JSON)
        assert (status, problem and problem.type) == (413, "urn:gridweave:problem:body-too-large")
        body = b'{"jobs": []}'.ljust(10_000)
        assert (await send(grid, "POST", "/v1/jobs", body, **JSON))[0] == 200


async def test_too_many_jobs_are_refused_before_they_cost_memory() -> None:
    """More jobs than a request may have, and jobs that are too large, or have too many parts, are refused."""
    backend = FakeBackend()
    async with serving(backend, max_jobs=10, max_job_bytes=10_000) as grid:
        many = b'{"jobs": [' + b'{"request":1},' * 1_000_000 + b"1]}"
        tracemalloc.start()
        status, problem = await send(grid, "POST", "/v1/jobs", io.BytesIO(many), **JSON)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (status, problem and problem.type) == (413, "urn:gridweave:problem:too-many-jobs")
        assert peak_bytes < 5 * len(many)
        assert (await grid.ask("POST", "/v1/jobs", {"jobs": [a_job()] * 11}))[0] == 413
        assert (await grid.ask("POST", "/v1/jobs", {"jobs": [a_job(name="x" * 10_000)]}))[0] == 413
        assert (await grid.ask("POST", "/v1/jobs/cancel", {"job_ids": list(range(1, 12))}))[0] == 413
        assert not backend.records_by_id
        assert await is_healthy(grid)


async def test_a_body_that_comes_too_slowly_is_given_up() -> None:
    """Who sends half a body and then nothing is told so, and the connection is closed."""
    async with serving(FakeBackend(), body_timeout_s=0.05) as grid:
        reader, writer = await asyncio.open_connection("127.0.0.1", grid.gateway.port)
        writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        writer.write(b'Content-Length: 100\r\n\r\n{"jobs":')
        answer = await reader.read()  # to the end: it is closed
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"urn:gridweave:problem:slow-body" in answer
        writer.close()


async def test_a_request_that_never_comes_is_given_up() -> None:
    """Who connects, and sends half a header and then nothing, is disconnected."""
    async with serving(FakeBackend(), idle_s=0.05) as grid:
        reader, writer = await asyncio.open_connection("127.0.0.1", grid.gateway.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: loc")
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\0: x\r\n\r\n",
        b"\r\n\r\n\r\n\r\nhello\r\n",
    ],
)
async def test_what_is_no_http_gets_a_problem_document(request_bytes: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are no request are answered with 400 and a problem document, and nothing is logged as an error."""
    async with serving(FakeBackend()) as grid:
        reader, writer = await asyncio.open_connection("127.0.0.1", grid.gateway.port)
        writer.write(request_bytes)
        answer = await reader.read()
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), answer
        assert b"application/problem+json" in answer
        assert b"urn:gridweave:problem:bad-http" in answer
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
        writer.close()
        assert await is_healthy(grid)


# -- thousands of them -------------------------------------------------------------------------------------------------

_ODD = (None, True, False, 0, -1, 2**63, 2**64, -(2**70), 10**400, 1e308, float("nan"), "", "gw_x_y", "\x00", [], {})
_FIELDS = (*SLEEP, "nodes", "name", "user", "after", "array", "resources", "traffic", "priority", "hold", "call", "key")


def _value(rng: random.Random, depth: int = 3) -> Any:
    """Draw what JSON can say, or nearly: odd things, numbers of any size, texts, and lists and tables of such."""
    kind = rng.randrange(8 if depth else 5)
    if kind < 2:
        return rng.choice(_ODD)
    if kind == 2:
        return rng.randint(-(2 ** (bits := rng.randrange(1, 71))), 2**bits)
    if kind == 3:
        return struct.unpack("d", rng.randbytes(8))[0]
    if kind == 4:
        return "".join(chr(rng.randrange(rng.choice((128, 0xD800)))) for _ in range(rng.randrange(9)))
    count = rng.randrange(5)
    if kind == 5:
        return [_value(rng, depth - 1) for _ in range(count)]
    return {rng.choice((*_FIELDS, "", "\x7f")): _value(rng, depth - 1) for _ in range(count)}


def _request(rng: random.Random) -> dict[str, Any]:
    return SLEEP | {rng.choice(_FIELDS): _value(rng) for _ in range(rng.randrange(7))}


def _body(rng: random.Random) -> Any:
    """Draw a body for any of the routes: of its shape with wrong values, or of none."""
    shapes: tuple[Callable[[], Any], ...] = (
        lambda: _value(rng),
        lambda: {"jobs": [{"request": _request(rng)} for _ in range(rng.randrange(4))]},
        lambda: {"request": _request(rng)},
        lambda: {"job_ids": _value(rng)},
        lambda: {name: _value(rng) for name in ("user", "scopes", "limits", "days")},
    )
    return rng.choice(shapes)()


def _encoded(value: Any, form: dict[str, str]) -> bytes:
    try:
        return msgspec.json.encode(value) if form is JSON else msgspec.msgpack.encode(value)
    except OverflowError:
        return msgspec.json.encode(value)


def _spoilt(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with something wrong in them."""
    how = rng.randrange(4)
    if how == 0:
        return data[: rng.randrange(len(data) + 1)]
    if how == 1:
        place = rng.randrange(len(data) + 1)
        return data[:place] + rng.randbytes(rng.randrange(1, 9)) + data[place:]
    if how == 2:
        return rng.randbytes(rng.randrange(200))
    return data * rng.randrange(2, 4)


def malformed(count: int, seed: int) -> list[tuple[str, bytes, dict[str, str]]]:
    """Return so many requests, most of which are malformed: path, body, headers."""
    rng = random.Random(seed)
    found: list[tuple[str, bytes, dict[str, str]]] = []
    for _ in range(count):
        form = rng.choice((JSON, MSGPACK, MSGPACK, {"Content-Type": "text/plain"}))
        data = _encoded(_body(rng), form)
        found.append((rng.choice(POSTS), _spoilt(data, rng) if rng.randrange(2) else data, form))
    return found


@pytest.mark.slow
async def test_thousands_of_malformed_requests_leave_it_healthy(caplog: pytest.LogCaptureFixture) -> None:
    """None of thousands of malformed requests gets an error of the gateway, and nothing of them stays."""
    requests = malformed(4_000, seed=6)
    backend = FakeBackend()
    statuses: dict[int, int] = {}
    async with serving(backend, requests_per_s=1e6, burst=1e6) as grid:

        async def play(some: Sequence[tuple[str, bytes, dict[str, str]]]) -> None:
            for path, body, headers in some:
                status, _ = await send(grid, "POST", path, body, **headers)
                statuses[status] = statuses.get(status, 0) + 1

        async def things() -> int:
            """Return how many things there are, when the grid has forgotten what was handed in."""
            await grid.ask("POST", "/v1/jobs/cancel", {"job_ids": sorted(backend.records_by_id)[:10_000]})
            caplog.clear()
            for kept in (backend.records_by_id, backend.stories, backend.apply, backend._answers):
                kept.clear()
            gc.collect()
            return len(gc.get_objects())

        await play(requests)
        before = await things()
        # Once more, to see whether what was done before leaves anything: some of each kind are enough.
        again = requests[::8]
        await play(again)
        grown = await things() - before
        assert await is_healthy(grid)
    assert sum(statuses.values()) == len(requests) + len(again)
    assert {400, 415, 422} <= set(statuses)
    assert grown < len(again) / 3


@pytest.mark.slow
async def test_garbage_on_the_socket_leaves_it_healthy(caplog: pytest.LogCaptureFixture) -> None:
    """Random bytes, and requests with random bytes in them, are answered by no error of the gateway's."""
    rng = random.Random(66)
    good = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"
    async with serving(FakeBackend(), idle_s=0.2, body_timeout_s=0.1) as grid:

        async def speak(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", grid.gateway.port)
            writer.write(data)
            answer = b""
            # A busy machine may send the last of it only when the gateway waits for no more.
            with contextlib.suppress(ConnectionResetError):
                answer = await reader.read(100)
                await reader.read()
            writer.close()
            return answer

        for _ in range(10):
            answers = await asyncio.gather(*(speak(_spoilt(good + b'{"jobs": []}', rng)) for _ in range(100)))
            assert not [answer for answer in answers if answer.startswith((b"HTTP/1.1 5", b"HTTP/1.0 5"))]
        assert await is_healthy(grid)
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_every_route_answers_a_wrong_body_and_a_right_one() -> None:
    """Each route with a body refuses nothing at all, and there is none that this test does not know."""
    async with serving(FakeBackend()) as grid:
        paths = {route.path for route in ROUTES if route.body is not None}
        wishes = {f"/v1/jobs/{action}" for action in ("cancel", "kill", "signal", "requeue", "hold", "release")}
        others = {"/v1/jobs", "/v1/login", "/v1/quote", "/v1/tokens", "/v1/tokens/short", "/v1/what-if"}
        assert paths == wishes | others | {"/v1/sites/{name}/experience"}
        for path in sorted(paths):
            assert (await send(grid, "POST", path.format(name="north"), b"null", **JSON))[0] == 422
