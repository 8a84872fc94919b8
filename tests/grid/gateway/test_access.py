"""Who may do what: roles, own jobs, revoked tokens, browsers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gridweave.errors import OptionError
from gridweave.grid.api import SCOPES
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.gateway.access import TokenStore
from gridweave.grid.gateway.routes import ROUTES
from support.gateway import FakeBackend, Served, a_job, make_tokens, serving

BODIES: dict[str, Any] = {
    "/v1/jobs": {"jobs": []},
    "/v1/jobs/cancel": {"job_ids": []},
    "/v1/jobs/hold": {"job_ids": []},
    "/v1/jobs/release": {"job_ids": []},
    "/v1/jobs/kill": {"job_ids": []},
    "/v1/jobs/requeue": {"job_ids": []},
    "/v1/jobs/signal": {"job_ids": [], "signal": "USR1"},
    "/v1/login": {"token": "nobody's"},
    "/v1/quote": a_job(),
    "/v1/tokens": {"user": "carl", "scopes": ["read"]},
    "/v1/tokens/short": {"scopes": ["submit"]},
    "/v1/what-if": {"drain": ["north"]},
    "/v1/sites/{name}/experience": {"times": [{"user": "anna", "runs": 1, "mean_ms": 1000}]},
}


@pytest.mark.asyncio
@pytest.mark.parametrize("scope", [None, *SCOPES])
async def test_each_scope_is_for_what_the_table_says(tmp_path: Path, scope: Any) -> None:
    """Without a token every route but the open ones is 401; with one for something else 403; else it is answered."""
    store = TokenStore(tmp_path / "t")
    token = None if scope is None else store.create("anna", (scope,)).token
    store.close()
    async with serving(FakeBackend(), tokens=str(tmp_path / "t")) as grid:
        for route in ROUTES:
            if route.is_stream and route.name != "output":
                continue
            path = route.path.replace("{id}", "7").replace("{name}", "north").replace("{machine}", "m1")
            status, answer, _ = await grid.ask(route.method, path, BODIES.get(route.path), token=token)
            if route.scope is None:
                expected = {401} if route.name == "log_in" else {200}
            elif scope is None:
                expected = {401}
            elif scope not in (route.scope, "operate"):
                expected = {403}
            else:
                expected = {200, 404}
            assert status in expected, (route.name, answer)


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """Return tokens of two users, an operator and a reader who is called as a user."""
    return make_tokens(tmp_path / "t", anna="submit", bob="submit", olga="operate")


@pytest.mark.asyncio
async def test_a_user_sees_and_changes_own_jobs_alone(tmp_path: Path, tokens: dict[str, str]) -> None:
    """Others' jobs look like jobs that are not there: not shown, listed, told of, read, cancelled, held or released."""
    backend = FakeBackend()
    async with serving(backend, tokens=str(tmp_path / "t")) as grid:
        [of_anna] = await grid.submit(a_job(name="secret"), token=tokens["anna"])
        [of_bob] = await grid.submit(a_job(), token=tokens["bob"])
        assert backend.records_by_id[of_bob].request.user == "bob"
        backend.write(of_anna, b"secret")
        for method, path in (
            ("GET", ""),
            ("GET", "/history"),
            ("GET", "/forecast"),
            ("GET", "/usage"),
            ("GET", "/output"),
            ("GET", "/output?follow=1"),
            ("POST", "/cancel"),
            ("POST", "/hold"),
            ("POST", "/release"),
        ):
            status, answer, _ = await grid.ask(method, f"/v1/jobs/{of_anna}{path}", token=tokens["bob"])
            unknown = await grid.ask(method, f"/v1/jobs/999{path}", token=tokens["bob"])
            assert (status, answer["type"]) == (404, "urn:gridweave:problem:unknown-job")
            assert answer["detail"].replace(str(of_anna), "999") == unknown[1]["detail"]
        for change in ("cancel", "hold", "release"):
            body = {"job_ids": [of_anna]}
            assert (await grid.ask("POST", f"/v1/jobs/{change}", body, token=tokens["bob"]))[1] == {"job_ids": []}
        assert backend.records_by_id[of_anna].state == "waiting"
        for query, seen in (("", [of_bob]), ("?user=anna", []), (f"?job={of_anna}&job={of_bob}", [of_bob])):
            _, page, _ = await grid.ask("GET", f"/v1/jobs{query}", token=tokens["bob"])
            assert [job["job_id"] for job in page["jobs"]] == seen
        assert (await grid.ask("GET", "/v1/events?user=anna", token=tokens["bob"]))[0] == 403
        assert (await grid.ask("GET", f"/v1/events?job={of_anna}", token=tokens["bob"]))[0] == 404
        assert (await grid.ask("GET", f"/v1/events/ws?job={of_anna}", token=tokens["bob"]))[0] in (404, 422)


@pytest.mark.asyncio
async def test_a_job_of_another_user_is_refused_and_not_made_ones_own(tmp_path: Path, tokens: dict[str, str]) -> None:
    """Whoever names another user hears so, in a submission and in a quote; own names, and none, are fine."""
    backend = FakeBackend()
    async with serving(backend, tokens=str(tmp_path / "t")) as grid:
        request = a_job(user="anna")["request"]
        for path, body, where in (
            ("/v1/jobs", {"jobs": [a_job(), {"request": request}]}, "jobs[1].request.user"),
            ("/v1/quote", {"request": request}, "request.user"),
        ):
            status, problem, _ = await grid.ask("POST", path, body, token=tokens["bob"])
            assert (status, problem["type"]) == (403, "urn:gridweave:problem:forbidden")
            assert problem["detail"] == f"{where} is 'anna', and the token is bob's; leave it out"
            assert (await grid.ask("POST", path, body, token=tokens["olga"]))[0] == 200
        job_ids = await grid.submit(a_job(user="bob"), a_job(), token=tokens["bob"])
        job_ids += await grid.submit(a_job(), token=tokens["olga"])
        assert [backend.records_by_id[job_id].request.user for job_id in job_ids] == ["bob", "bob", "olga"]


@pytest.mark.asyncio
async def test_an_operator_sees_and_changes_all(tmp_path: Path, tokens: dict[str, str]) -> None:
    """An operator sees everybody's jobs, hands in for others, and ends what others have handed in."""
    async with serving(FakeBackend(), tokens=str(tmp_path / "t")) as grid:
        [of_anna] = await grid.submit(a_job(), token=tokens["anna"])
        [for_bob] = await grid.submit(a_job(user="bob"), token=tokens["olga"])
        _, page, _ = await grid.ask("GET", "/v1/jobs", token=tokens["olga"])
        assert [job["request"]["user"] for job in page["jobs"]] == ["bob", "anna"]
        assert (await grid.ask("GET", f"/v1/jobs/{for_bob}", token=tokens["bob"]))[0] == 200
        both = {"job_ids": [of_anna, for_bob]}
        assert (await grid.ask("POST", "/v1/jobs/cancel", both, token=tokens["olga"]))[1] == both


@pytest.mark.asyncio
async def test_a_key_of_a_user_says_nothing_of_anothers(tmp_path: Path, tokens: dict[str, str]) -> None:
    """Whoever guesses another user's key gets a job of their own."""
    async with serving(FakeBackend(), tokens=str(tmp_path / "t")) as grid:
        [of_anna] = await grid.submit(a_job() | {"key": "k"}, token=tokens["anna"])
        [of_bob] = await grid.submit(a_job() | {"key": "k"}, token=tokens["bob"])
        assert of_anna != of_bob


@pytest.mark.asyncio
async def test_tokens_are_made_and_revoked_by_operators(tmp_path: Path, tokens: dict[str, str]) -> None:
    """A token that was made over HTTP works at once, is listed without its secret, and is gone when it was revoked."""
    async with serving(FakeBackend(), tokens=str(tmp_path / "t")) as grid:
        new = {"user": "carl", "scopes": ["read"], "days": 2}
        _, made, _ = await grid.ask("POST", "/v1/tokens", new, token=tokens["olga"])
        _, who, _ = await grid.ask("GET", "/v1/whoami", token=made["token"])
        assert (who["user"], who["scopes"]) == ("carl", ["read"])
        _, listed, _ = await grid.ask("GET", "/v1/tokens", token=tokens["olga"])
        [carls] = [one for one in listed["tokens"] if one["user"] == "carl"]
        assert (carls | {"used_ms": None}, carls["used_ms"] > 0) == (made["info"], True)
        assert made["token"].split("_", 2)[2] not in str(listed)
        gone = f"/v1/tokens/{made['info']['token_id']}"
        assert (await grid.ask("DELETE", gone, token=tokens["olga"]))[0] == 200
        assert (await grid.ask("DELETE", gone, token=tokens["olga"]))[0] == 404
        status, _, headers = await grid.ask("GET", "/v1/whoami", token=made["token"])
        assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="gridweave"')


async def _lines_to_the_end(grid: Served, path: str, token: str, open_now: asyncio.Event) -> list[bytes]:
    """Return all that comes from a stream until it is ended by the gateway."""
    headers = {"Authorization": f"Bearer {token}"}
    parts = []
    async with grid.session.get(grid.url + path, headers=headers) as response:
        assert response.status == 200
        async for part in response.content.iter_any():
            parts.append(part)
            open_now.set()
    return b"".join(parts).splitlines()


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["over HTTP", "by another process"])
@pytest.mark.parametrize("is_busy", [True, False])
async def test_a_revoked_token_ends_its_streams_at_once(
    tmp_path: Path, tokens: dict[str, str], how: str, is_busy: bool
) -> None:
    """Once a token is revoked its streams tell nothing that happens later, and end also if nothing happens."""
    backend = FakeBackend()
    # With events it is found out by them alone, else by looking.
    check_s = 1000.0 if is_busy else 0.02
    async with serving(backend, tokens=str(tmp_path / "t"), check_tokens_s=check_s) as grid:
        open_now = asyncio.Event()
        watching = asyncio.create_task(_lines_to_the_end(grid, "/v1/events", tokens["anna"], open_now))
        await open_now.wait()
        token_id = tokens["anna"].split("_")[1]
        if how == "over HTTP":
            assert (await grid.ask("DELETE", f"/v1/tokens/{token_id}", token=tokens["olga"]))[0] == 200
        else:
            other = TokenStore(tmp_path / "t")
            assert other.revoke(token_id)
            other.close()
        if is_busy:
            await grid.submit(a_job(user="anna"), token=tokens["olga"])
        lines = await watching
        assert lines[-3:-1] == [b"event: end", b'data: {"reason":"revoked","after":0}']
        assert not any(line.startswith(b'data: {"number"') for line in lines)


@pytest.mark.asyncio
async def test_a_revoked_token_follows_no_output(tmp_path: Path, tokens: dict[str, str]) -> None:
    """Output that is written after the token was revoked does not reach whoever followed it, who is cut off."""
    import aiohttp

    backend = FakeBackend()
    async with serving(backend, tokens=str(tmp_path / "t")) as grid:
        [job_id] = await grid.submit(a_job(), token=tokens["anna"])
        backend.write(job_id, b"before")
        headers = {"Authorization": f"Bearer {tokens['anna']}"}
        path = f"{grid.url}/v1/jobs/{job_id}/output?follow=1"
        async with grid.session.get(path, headers=headers) as response:
            assert await response.content.readany() == b"before"
            token_id = tokens["anna"].split("_")[1]
            assert (await grid.ask("DELETE", f"/v1/tokens/{token_id}", token=tokens["olga"]))[0] == 200
            backend.write(job_id, b"after")
            backend.end(job_id)
            with pytest.raises(aiohttp.ClientError):
                await response.content.readany()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example.org"},
        {"Host": "localhost.evil.example.org:80"},
        {"Host": "["},
        {"Host": ""},
        {"Origin": "http://evil.example.org"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_pages_of_other_origins_are_kept_out(headers: dict[str, str]) -> None:
    """Without tokens a request that a browser makes for another's page, or by another's name, is refused."""
    backend = FakeBackend()
    async with serving(backend) as grid:
        async with grid.session.post(f"{grid.url}/v1/jobs", json={"jobs": [a_job()]}, headers=headers) as response:
            assert response.status in (400, 403)
            assert response.content_type == "application/problem+json"
        assert not backend.records_by_id
        own = {"Origin": grid.url, "Sec-Fetch-Site": "same-origin"}
        async with grid.session.get(f"{grid.url}/v1/jobs", headers=own) as response:
            assert response.status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "grid.example.org"])
def test_without_tokens_it_listens_on_loopback_alone(host: str) -> None:
    """A place that can be reached from elsewhere is refused, with what to do."""
    with pytest.raises(OptionError, match="gridweave token create"):
        GatewaySettings(host=host)
    with pytest.raises(OptionError, match="without TLS others could read the tokens"):
        GatewaySettings(host=host, tokens="tokens.db")
    assert GatewaySettings(host=host, tokens="tokens.db", plain_http=True).host == host
    assert GatewaySettings(host=host, tokens="tokens.db", cert="grid.pem", key="grid.key").host == host
