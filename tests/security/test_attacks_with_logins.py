"""Attacks with the login of a browser: with a half of it, as a bearer token, to get more, and after its end."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gridweave.errors import OptionError
from gridweave.grid.api import LoginCode, MadeToken
from gridweave.grid.gateway.access import TokenStore
from gridweave.grid.gateway.routes import ROUTES
from support.gateway import Browser, FakeBackend, Served, browsing_at, make_tokens, serving

HOUR_MS = 3_600_000


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """Return a token of a user and of an operator."""
    return make_tokens(tmp_path / "t", anna="submit", olga="operate")


@pytest_asyncio.fixture()
async def served(tmp_path: Path, tokens: dict[str, str]) -> AsyncIterator[Served]:
    """Yield a gateway with tokens."""
    async with serving(FakeBackend(), tokens=str(tmp_path / "t"), failed_logins_per_minute=1000) as found:
        yield found


@pytest_asyncio.fixture()
async def browser(served: Served, tokens: dict[str, str]) -> AsyncIterator[Browser]:
    """Yield a browser in which the operator is logged in."""
    async with browsing_at(served) as found:
        assert (await found.ask("POST", "/v1/login", {"token": tokens["olga"]}))[0] == 200
        yield found


@pytest.mark.asyncio
async def test_a_login_is_no_bearer_token(served: Served, browser: Browser) -> None:
    """No part of a login lets anybody in as a bearer token: not the cookie, not the key, not both joined."""
    cookie, key = browser.cookie, browser.key
    login_id, _, half = cookie.partition("_")
    joined = [f"{half}{glue}{key}" for glue in ("", ".", "_")]
    for token in (cookie, key, half, *(f"gw_{login_id}_{secret}" for secret in (half, key, *joined)), *joined):
        assert (await served.ask("GET", "/v1/whoami", token=token))[0] == 401, token
    assert (await browser.ask("GET", "/v1/whoami"))[0] == 200


@pytest.mark.asyncio
async def test_half_a_login_is_of_no_use(served: Served, browser: Browser, tokens: dict[str, str]) -> None:
    """A job that listens on another port of the host gets the cookie alone, and a script the key alone."""
    key = browser.key
    assert (await browser.ask("GET", "/v1/jobs", Gridweave_Login=""))[0] == 401
    for wrong in ("x", browser.cookie, browser.cookie.partition("_")[2], key[:-1], "." + key):
        assert (await browser.ask("GET", "/v1/jobs", Gridweave_Login=wrong))[0] == 401
    async with browsing_at(served) as thief:
        assert (await thief.ask("GET", "/v1/jobs", Gridweave_Login=key))[0] == 401
        # Nor do the halves of two logins go together.
        await thief.ask("POST", "/v1/login", {"token": tokens["anna"]})
        assert (await thief.ask("GET", "/v1/jobs", Gridweave_Login=key))[0] == 401
        assert (await thief.ask("GET", "/v1/whoami"))[1]["user"] == "anna"


@pytest.mark.asyncio
async def test_the_halves_of_a_login_have_nothing_in_common(browser: Browser, tokens: dict[str, str]) -> None:
    """Neither half contains the other, or the token: whoever has one still guesses 256 random bits."""
    half = browser.cookie.partition("_")[2]
    assert len(half) == len(browser.key) == 43
    assert len({half, browser.key, tokens["olga"].rpartition("_")[2]}) == 3
    assert browser.key not in browser.cookie


@pytest.mark.asyncio
async def test_a_login_makes_no_tokens(browser: Browser) -> None:
    """Not even an operator's login makes anything by which somebody could come in later."""
    asked: dict[str, Any] = {
        "/v1/tokens": {"user": "olga", "scopes": ["operate"]},
        "/v1/tokens/short": {"scopes": ["read"]},
        "/v1/login/code": None,
    }
    assert set(asked) == {route.path for route in ROUTES if route.answer in (MadeToken, LoginCode)}
    for path, body in asked.items():
        status, problem = await browser.ask("POST", path, body)
        assert (status, problem["type"]) == (403, "urn:gridweave:problem:forbidden")
        assert "send the request with a token" in problem["detail"]
    assert (await browser.ask("POST", "/v1/sites/north/drain"))[0] == 200


@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["token", "short token", "login"])
async def test_no_login_survives_a_revocation(
    served: Served, tokens: dict[str, str], what: str, tmp_path: Path
) -> None:
    """A login ends with itself, with the short token that it was made by, and with the token that made that one."""
    short = (await served.ask("POST", "/v1/tokens/short", {"scopes": ["read"]}, token=tokens["anna"]))[1]
    async with browsing_at(served) as browser:
        status, login = await browser.ask("POST", "/v1/login", {"token": short["token"]})
        assert (status, login["info"]["parent"]) == (200, short["info"]["token_id"])
        assert login["info"]["until_ms"] <= short["info"]["until_ms"]
        assert (await browser.ask("GET", "/v1/whoami"))[0] == 200
        ids = {
            "token": tokens["anna"].split("_")[1],
            "short token": short["info"]["token_id"],
            "login": login["info"]["token_id"],
        }
        assert (await served.ask("DELETE", f"/v1/tokens/{ids[what]}", token=tokens["olga"]))[0] == 200
        assert (await browser.ask("GET", "/v1/whoami"))[0] == 401
    store = TokenStore(tmp_path / "t")
    assert ids["login"] not in store.usable()
    store.close()


def test_a_login_ends_after_its_hours_and_makes_nothing(tmp_path: Path) -> None:
    """A login ends by the clock, is listed as one until then, and no other is made by it."""
    now_ms = 1_000_000
    store = TokenStore(tmp_path / "t", now_ms=lambda: now_ms)
    parent = store.create("anna", days=1)
    login = store.create_login(parent.info, 2)
    assert store.find_login(login.cookie, login.key) == login.info
    assert {info.token_id: info.is_login for info in store.list()} == {
        parent.info.token_id: False,
        login.info.token_id: True,
    }
    for make in (lambda: store.create_login(login.info, 1), lambda: store.create_short(login.info, ("read",), 1)):
        with pytest.raises(OptionError, match="token"):
            make()
    now_ms += 2 * HOUR_MS
    assert store.find_login(login.cookie, login.key) is None
    assert store.usable() == {parent.info.token_id}
    store.close()


def test_a_login_by_a_token_that_was_just_revoked_is_not_made(tmp_path: Path) -> None:
    """Whoever asks with a token that is revoked at this moment gets no login, even if its row is gone already."""
    store = TokenStore(tmp_path / "t")
    parent = store.create("anna")
    short = store.create_short(parent.info, ("read",), 1)
    store.revoke(short.info.token_id)
    store.create_short(parent.info, ("read",), 1)  # drops the rows that are over
    with pytest.raises(OptionError, match="no longer valid"):
        store.create_login(short.info, 1)
    assert len(store.list()) == 2
    store.close()


def test_short_tokens_that_are_over_take_no_room(tmp_path: Path) -> None:
    """However many short tokens and logins a user has made and let end, the store holds no more than are valid."""
    now_ms = 1_000_000
    store = TokenStore(tmp_path / "t", now_ms=lambda: now_ms)
    parent = store.create("anna", days=1)
    for _ in range(5):
        store.create_short(parent.info, ("read",), 0.001)
        store.create_login(parent.info, 0.001)
        now_ms += HOUR_MS // 1000
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "t")) as database:
        counts = [
            database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("gridweave_access_token", "gridweave_login")
        ]
    assert max(counts) <= 2
