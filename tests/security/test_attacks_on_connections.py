"""Attacks on a gateway by who has no token: connections, bodies and headers that never end, logins that fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gridweave.grid.gateway.connections import Logins, OpenConnections
from gridweave.grid.gateway.problems import RefusalError
from support.gateway import FakeBackend, Served, a_job, make_tokens, serving
from support.machine import PATIENCE_S

pytestmark = pytest.mark.asyncio

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def connected(grid: Served, count: int = 1, source: str = "127.0.0.1") -> AsyncIterator[list[Pair]]:
    """Yield connections to a gateway that say nothing by themselves."""
    pairs: list[Pair] = []
    try:
        while len(pairs) < count:
            pairs += [await asyncio.open_connection("127.0.0.1", grid.gateway.port, local_addr=(source, 0))]
        yield pairs
    finally:
        for _, writer in pairs:
            writer.close()


async def raw(grid: Served, data: bytes) -> bytes:
    """Return all that is answered to bytes, until the gateway closes the connection; empty if it is cut off."""
    async with connected(grid) as [(reader, writer)]:
        writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""


def get(path: str, token: str) -> bytes:
    """Return a request as it goes over the wire, with its path as it is written."""
    lines = (f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Authorization: Bearer {token}", "", "")
    return "\r\n".join(lines).encode()


async def test_idle_connections_shut_nobody_out(tmp_path: Path) -> None:
    """Whoever fills all connections without a token has the oldest of them closed for each user who comes."""
    tokens = make_tokens(tmp_path / "t", anna="read")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t"), max_connections=40) as grid:
        async with connected(grid, 60, "127.0.0.2") as pairs:
            for _ in range(5):
                assert (await grid.ask("GET", "/v1/whoami", token=tokens["anna"]))[0] == 200
            assert await pairs[0][0].read() == b""
        assert len(grid.gateway.connections) <= 40


async def test_one_address_takes_no_more_than_its_connections(tmp_path: Path) -> None:
    """Connections beyond those of one address cost that address its own oldest, and no other address anything."""
    options: dict[str, Any] = {"max_connections": 100, "max_connections_per_address": 5}
    async with (
        serving(FakeBackend(), **options) as grid,
        connected(grid, 1, "127.0.0.3") as [other],
        connected(grid, 30, "127.0.0.2") as pairs,
    ):
        while len(grid.gateway.connections) > 6:
            await asyncio.sleep(0)
        for reader, _ in pairs[:25]:
            assert await reader.read() == b""
        other[1].write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await other[0].read()).startswith(b"HTTP/1.1 200")


async def test_a_connection_that_works_is_not_closed_for_an_idle_one(tmp_path: Path) -> None:
    """A request that is being answered keeps its connection, whoever comes."""
    backend = FakeBackend()
    backend.open_gate.clear()
    async with serving(backend, max_connections=3) as grid:
        working = asyncio.create_task(grid.submit(a_job()))
        while backend.submits < 1:
            await asyncio.sleep(0)
        async with connected(grid, 10, "127.0.0.2"):
            backend.open_gate.set()
            assert await working == [1]


async def test_where_all_connections_work_the_new_one_is_closed() -> None:
    """If no connection is idle, the one that comes last is the one that is closed."""
    connections = OpenConnections[str](2, 2)
    for name in ("a", "b"):
        assert connections.opened(name, "192.0.2.1") is None
        connections.busy(name)
    assert connections.opened("c", "192.0.2.9") == "c"
    connections.idle("b")
    assert connections.opened("d", "192.0.2.9") == "b"
    assert len(connections) == 2


async def test_addresses_of_one_machine_count_as_one() -> None:
    """All IPv6 addresses of one network of 64 bits share their connections, and their failed logins."""
    connections = OpenConnections[int](100, 2)
    over = [connections.opened(number, f"2001:db8::{number:x}") for number in range(1, 5)]
    assert over == [None, None, 1, 2]
    logins = Logins(2, lambda: 0.0)
    for number in (1, 2):
        logins.failed(f"2001:db8::{number}", f"gw_{number}")
    with pytest.raises(RefusalError, match="failed; wait"):
        logins.check("2001:db8::3", "gw_x")


async def test_a_header_that_never_ends_is_cut_off() -> None:
    """A connection on which a request never comes whole is closed when it has been idle for so long."""
    async with serving(FakeBackend(), idle_s=0.1) as grid, connected(grid) as [(reader, writer)]:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: local")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""


async def test_a_body_that_comes_too_slowly_is_cut_off(tmp_path: Path) -> None:
    """A body of which too little comes is answered with 408, and the connection is closed."""
    tokens = make_tokens(tmp_path / "t", anna="submit")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t"), body_timeout_s=0.1) as grid:
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {tokens['anna']}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
        answer = await raw(grid, head.encode())
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"slow-body" in answer


async def test_a_body_without_a_token_is_not_read(tmp_path: Path) -> None:
    """Who has no token is refused before a byte of a body of gigabytes is taken."""
    make_tokens(tmp_path / "t", anna="submit")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t")) as grid:
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
        answer = await raw(grid, head)
        assert answer.startswith(b"HTTP/1.1 401")
        assert grid.gateway._parts.memory.held == 0


@pytest.mark.parametrize("length", ["99999999999", "-1", "1e9", "0x10", "18446744073709551617"])
async def test_a_huge_or_false_length_is_refused(tmp_path: Path, length: str) -> None:
    """A length that is too large, or is none, is refused at once, with a token as well."""
    tokens = make_tokens(tmp_path / "t", anna="submit")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t")) as grid:
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {tokens['anna']}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        answer = await raw(grid, head.encode())
        assert answer.split()[1] in (b"400", b"413"), answer


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X-Many: a\r\n" * 50_000 + b"\r\n",
    ],
    ids=["path", "header", "headers"],
)
async def test_huge_heads_are_refused(head: bytes) -> None:
    """A path, a header or a number of headers beyond measure ends with 400 or at once, and the connection is closed."""
    async with serving(FakeBackend()) as grid:
        answer = await raw(grid, head)
        assert answer.split()[1:2] in ([b"400"], []), answer[:200]
        assert (await grid.ask("GET", "/healthz"))[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n",
    ],
    ids=["two-lengths-of-two-kinds", "two-lengths", "nul", "blank-before-colon"],
)
async def test_requests_that_two_programs_read_differently_are_refused(head: bytes) -> None:
    """What a proxy could take for another request than the gateway does (request smuggling) is refused."""
    async with serving(FakeBackend()) as grid:
        assert (await raw(grid, head)).split()[1] == b"400"


async def test_after_many_failed_logins_an_address_has_to_wait(tmp_path: Path) -> None:
    """Tokens that are tried out are no longer looked up; who was let in before, and other addresses, notice nothing."""
    tokens = make_tokens(tmp_path / "t", anna="read", bob="read")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t"), failed_logins_per_minute=3) as grid:
        assert (await grid.ask("GET", "/v1/whoami", token=tokens["anna"]))[0] == 200
        tried = [await grid.ask("GET", "/v1/whoami", token=f"gw_{number:012}_{'x' * 43}") for number in range(5)]
        assert [status for status, _, _ in tried] == [401, 401, 401, 429, 429]
        assert tried[-1][1]["type"] == "urn:gridweave:problem:too-many-failed-logins"
        assert int(tried[-1][2]["Retry-After"]) <= 20
        assert (await grid.ask("GET", "/v1/whoami", token=tokens["anna"]))[0] == 200
        # Of the right token of somebody new it is not found out either that it is right.
        assert (await grid.ask("GET", "/v1/whoami", token=tokens["bob"]))[0] == 429
        async with connected(grid, 1, "127.0.0.2") as [(reader, writer)]:
            writer.write(get("/v1/whoami", tokens["bob"]))
            assert (await reader.read()).startswith(b"HTTP/1.1 200")


TRY = """
for number in $(seq {count}); do
    exec 3<>/dev/tcp/127.0.0.1/{port}
    printf 'GET /v1/whoami HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n' >&3
    printf 'Authorization: Bearer gw_%012d_{secret}\\r\\n\\r\\n' $number >&3
    head -n 1 <&3
done
"""
"""A job that tries tokens out."""

NOBODY = 65534


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
async def test_a_job_keeps_no_other_user_of_its_host_from_logging_in(tmp_path: Path) -> None:
    """Of a user of the gateway's host who tries tokens out no more are looked up; others there notice nothing."""
    tokens = make_tokens(tmp_path / "t", anna="read")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t"), failed_logins_per_minute=3) as grid:
        script = TRY.format(count=5, port=grid.gateway.port, secret="x" * 43)
        job = await asyncio.create_subprocess_exec("bash", "-c", script, user=NOBODY, stdout=asyncio.subprocess.PIPE)
        said, _ = await job.communicate()
        assert [line.split()[1] for line in said.splitlines()] == [b"401"] * 3 + [b"429"] * 2
        assert (await grid.ask("GET", "/v1/whoami", token="gw_000000000009_" + "x" * 43))[0] == 401
        assert (await grid.ask("GET", "/v1/whoami", token=tokens["anna"]))[0] == 200


async def test_a_script_with_an_old_token_locks_nobody_out(tmp_path: Path) -> None:
    """A token that is tried again and again counts once a minute where it comes from, and is refused itself."""
    tokens = make_tokens(tmp_path / "t", anna="read")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t"), failed_logins_per_minute=3) as grid:
        old = "gw_000000000001_" + "x" * 43
        assert [(await grid.ask("GET", "/v1/whoami", token=old))[0] for _ in range(5)] == [401] * 3 + [429] * 2
        assert (await grid.ask("GET", "/v1/whoami", token=tokens["anna"]))[0] == 200


async def test_a_token_that_was_good_is_counted_when_it_is_revoked(tmp_path: Path) -> None:
    """Having been let in once does not let a token be looked up forever."""
    tokens = make_tokens(tmp_path / "t", anna="read", olga="operate")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t"), failed_logins_per_minute=3) as grid:
        assert (await grid.ask("GET", "/v1/whoami", token=tokens["anna"]))[0] == 200
        await grid.ask("DELETE", f"/v1/tokens/{tokens['anna'].split('_')[1]}", token=tokens["olga"])
        tried = [(await grid.ask("GET", "/v1/whoami", token=tokens["anna"]))[0] for _ in range(5)]
        assert tried == [401] * 3 + [429] * 2


async def test_the_limits_of_logins_are_by_user_token_and_minute() -> None:
    """A uid has its own limit; the same token counts for it again after a minute, not before."""
    now_s = 0.0
    logins = Logins(2, lambda: now_s)
    for _ in range(2):
        logins.failed("127.0.0.1", "same", 1000)
    logins.check("127.0.0.1", "other", 1000)
    logins.failed("127.0.0.1", "other", 1000)
    with pytest.raises(RefusalError, match=r"2 logins from 127.0.0.1 \(uid 1000\) failed"):
        logins.check("127.0.0.1", "third", 1000)
    logins.check("127.0.0.1", "third", 1001)
    now_s = 60.0
    logins.check("127.0.0.1", "third", 1000)
    for token in ("same", "other"):
        logins.failed("127.0.0.1", token, 1000)
    with pytest.raises(RefusalError):
        logins.check("127.0.0.1", "third", 1000)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../v1/tokens",
        "/v1/%2e%2e/v1/tokens",
        "//v1/tokens",
        "/v1/tokens/",
        "/v1//tokens",
        "/V1/tokens",
        "/v1/jobs/..%2f..%2fetc%2fpasswd/output",
        "/v1/jobs/1%00/output",
        "/v1/jobs/1/output/../../../tokens",
        "/etc/passwd",
        "http://elsewhere/v1/tokens",
    ],
)
async def test_tricks_with_paths_lead_nowhere(tmp_path: Path, path: str) -> None:
    """A path that is written otherwise leads to no route that needs an operator, and to no file."""
    tokens = make_tokens(tmp_path / "t", anna="submit")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t")) as grid:
        answer = await raw(grid, get(path, tokens["anna"]))
        assert answer.split()[1] in (b"400", b"403", b"404", b"405"), answer
        assert b"root:" not in answer
