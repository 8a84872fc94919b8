"""A browser logs in by a cookie that pages of other origins cannot use, and gets pages that run nothing of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from support.gateway import Browser, FakeBackend, Served, browsing_at, make_tokens, serving

TOKENS = {"anna": "submit", "bob": "submit", "root": "operate"}


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """Return a token of each user."""
    return make_tokens(tmp_path / "tokens", **TOKENS)


@pytest_asyncio.fixture()
async def served(tmp_path: Path, tokens: dict[str, str]) -> AsyncIterator[Served]:
    """Yield a gateway with tokens."""
    async with serving(FakeBackend(), tokens=str(tmp_path / "tokens")) as found:
        yield found


@pytest_asyncio.fixture()
async def browser(served: Served) -> AsyncIterator[Browser]:
    """Yield a browser that has no cookie yet."""
    async with browsing_at(served) as found:
        yield found


@pytest.mark.asyncio
async def test_a_login_lasts_until_it_is_given_up(served: Served, browser: Browser, tokens: dict[str, str]) -> None:
    """A browser that has logged in is its user, with the rights of the token, until it logs out."""
    assert (await browser.ask("GET", "/v1/whoami"))[0] == 401
    status, login = await browser.ask("POST", "/v1/login", {"token": tokens["anna"]})
    info = login["info"]
    assert (status, info["user"], info["scopes"]) == (200, "anna", ["read", "submit", "cancel"])
    status, who = await browser.ask("GET", "/v1/whoami")
    assert (status, who["user"], who["token_id"]) == (200, "anna", info["token_id"])
    (job_id,) = await served.submit({"request": {"program": {"argv": ["x"]}, "limit_ms": 9}}, token=tokens["anna"])
    assert (await browser.ask("POST", f"/v1/jobs/{job_id}/cancel"))[1] == {"job_ids": [job_id]}
    assert (await browser.ask("POST", "/v1/logout"))[0] == 200
    assert (await browser.ask("GET", "/v1/whoami"))[0] == 401
    usable = await served.ask("GET", "/v1/tokens", token=tokens["root"])
    assert info["token_id"] not in {one["token_id"] for one in usable[1]["tokens"]}


@pytest.mark.asyncio
async def test_the_cookie_is_for_the_browser_alone(served: Served, tokens: dict[str, str]) -> None:
    """No script reads the cookie, no other site has it sent, and over TLS it goes nowhere else; it is not the token."""
    body = {"token": tokens["anna"]}
    for origin, name, is_safe in ((served.url, "gridweave-", False), ("https://{}", "__Host-gridweave-", True)):
        told = origin.format(served.url.removeprefix("http://"))
        status, _, headers = await served.ask("POST", "/v1/login", body, Origin=told)
        cookie = headers["Set-Cookie"]
        assert status == 200
        assert cookie.startswith(name)
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert ("Secure" in cookie.split("; ")) is is_safe
        assert tokens["anna"] not in cookie


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("origin", "site"),
    [("http://evil.example", "cross-site"), ("http://127.0.0.1:1", "same-site"), ("null", ""), ("", "")],
)
async def test_no_other_page_acts_for_who_is_logged_in(
    browser: Browser, tokens: dict[str, str], origin: str, site: str
) -> None:
    """With the cookie alone nothing is changed for a page of another site or port, nor for what is no browser."""
    await browser.ask("POST", "/v1/login", {"token": tokens["anna"]})
    from_elsewhere = {"Origin": origin, "Sec_Fetch_Site": site}
    job = {"jobs": [{"request": {"program": {"argv": ["x"]}, "limit_ms": 9}}]}
    asked: list[tuple[str, object]] = [("/v1/jobs", job), ("/v1/jobs/cancel", {"job_ids": [1]})]
    if origin:
        asked.append(("/v1/login", {"token": tokens["bob"]}))
    for path, body in asked:
        status, problem = await browser.ask("POST", path, body, **from_elsewhere)
        assert (status, problem["type"]) == (403, "urn:gridweave:problem:foreign-origin")
    if origin:
        assert (await browser.ask("GET", "/v1/jobs", **from_elsewhere))[0] == 403


@pytest.mark.asyncio
async def test_a_link_logs_in_once(served: Served, browser: Browser, tokens: dict[str, str]) -> None:
    """A code is good for one login, as who had it made; one that was used, or is none, is refused and counted."""
    status, made, _ = await served.ask("POST", "/v1/login/code", token=tokens["bob"])
    assert (status, made["seconds"]) == (200, 60.0)
    assert (await browser.ask("POST", "/v1/login", {"code": made["code"]}))[1]["info"]["user"] == "bob"
    for code in (made["code"], "x"):
        status, problem = await browser.ask("POST", "/v1/login", {"code": code})
        assert status == 401
        assert "run gridweave open for a new one" in str(problem["detail"])
    assert (await served.ask("POST", "/v1/login/code"))[0] == 401


@pytest.mark.asyncio
async def test_a_code_ends_with_its_token(served: Served, browser: Browser, tokens: dict[str, str]) -> None:
    """Who had a code made, and then lost the token, is not let in by it."""
    made = (await served.ask("POST", "/v1/login/code", token=tokens["bob"]))[1]
    await served.ask("DELETE", f"/v1/tokens/{tokens['bob'].split('_')[1]}", token=tokens["root"])
    assert (await browser.ask("POST", "/v1/login", {"code": made["code"]}))[0] == 401


@pytest.mark.asyncio
@pytest.mark.parametrize("wrong", [{"code": "x"}, {"token": "gw_000000000000_" + "x" * 40}])
async def test_logins_that_fail_are_counted(tmp_path: Path, tokens: dict[str, str], wrong: dict[str, str]) -> None:
    """After some that were wrong an address has to wait, whether they were tokens or codes."""
    async with serving(FakeBackend(), tokens=str(tmp_path / "tokens"), failed_logins_per_minute=2) as served:
        asked = [(await served.ask("POST", "/v1/login", wrong))[0] for _ in range(3)]
    assert asked == [401, 401, 429]


@pytest.mark.asyncio
async def test_nobody_keeps_others_from_logging_in(tmp_path: Path, tokens: dict[str, str]) -> None:
    """A login is short, and those that never end take the room of their address alone."""
    async with serving(FakeBackend(), tokens=str(tmp_path / "tokens"), max_at_once=1) as served:
        status, problem, _ = await served.ask("POST", "/v1/login", {"token": "x" * 20_000})
        assert (status, problem["type"]) == (413, "urn:gridweave:problem:body-too-large")
        _, writer = await asyncio.open_connection("127.0.0.1", served.gateway.port)
        head = (
            "POST /v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        )
        writer.write(head.encode() + b'{"t')
        await writer.drain()
        while (await served.ask("POST", "/v1/login", {"token": tokens["anna"]}))[0] != 429:
            await asyncio.sleep(0)
        elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        body = {"token": tokens["anna"]}
        async with (
            aiohttp.ClientSession(connector=elsewhere) as session,
            session.post(f"{served.url}/v1/login", json=body) as answer,
        ):
            assert answer.status == 200
        writer.close()


@pytest.mark.asyncio
async def test_a_login_ends_with_its_token(served: Served, browser: Browser, tokens: dict[str, str]) -> None:
    """Revoking the token by which somebody logged in ends the login; a wrong token is none, in one line."""
    await browser.ask("POST", "/v1/login", {"token": tokens["anna"]})
    token_id = tokens["anna"].split("_")[1]
    assert (await served.ask("DELETE", f"/v1/tokens/{token_id}", token=tokens["root"]))[0] == 200
    assert (await browser.ask("GET", "/v1/whoami"))[0] == 401
    status, problem = await browser.ask("POST", "/v1/login", {"token": tokens["anna"]})
    assert status == 401
    assert "ask an operator for another" in str(problem["detail"])


@pytest.mark.asyncio
async def test_pages_run_nothing_but_their_own_files(served: Served) -> None:
    """Each file of the pages comes with a policy that lets a browser load and ask from this gateway alone."""
    for path in ("/", "/favicon.ico", "/web/app.js", "/web/style.css", "/web/vendor/preact.js"):
        status, _, headers = await served.ask("GET", path)
        policy = headers["Content-Security-Policy"]
        assert (status, "default-src 'none'" in policy, "unsafe" in policy) == (200, True, False)
        again = await served.ask("GET", path, If_None_Match=headers["ETag"])
        assert (again[0], again[1]) == (304, b"")
    for path in ("/web/", "/web/../files.py", "/web/%2e%2e/files.py", "/web/files.py", "/web//etc/passwd"):
        assert (await served.ask("GET", path))[0] == 404
    assert (await served.ask("POST", "/"))[0] == 405


@pytest.mark.asyncio
async def test_who_may_not_know_of_a_job_sees_nodes_that_are_busy(served: Served, tokens: dict[str, str]) -> None:
    """The nodes of others' jobs are told without the jobs; an operator sees all."""
    backend = served.gateway._parts.backend
    assert isinstance(backend, FakeBackend)
    job = {"request": {"program": {"argv": ["x"]}, "limit_ms": 9}}
    (of_anna,), (of_bob,) = [await served.submit(job, token=tokens[user]) for user in ("anna", "bob")]
    for job_id, place in ((of_anna, "north"), (of_bob, "south")):
        backend.start(job_id, ((place, 1),))
    seen = {}
    for user in TOKENS:
        _, answer, _ = await served.ask("GET", "/v1/sites", token=tokens[user])
        seen[user] = [busy["job_id"] for site in answer["sites"] for busy in site["busy"]]
    assert seen == {"anna": [of_anna, 0], "bob": [0, of_bob], "root": [of_anna, of_bob]}
