"""Attacks by who has a token: used for more than it is for, longer than it lasts, read where it should not be."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from gridweave.errors import OptionError
from gridweave.grid.api import TokenLimits
from gridweave.grid.gateway.access import TokenStore
from support.gateway import TAKES, FakeBackend, a_job, make_tokens, serving

DAY_MS, HOUR_MS = 86_400_000, 3_600_000


def limited(place: Path, **limits: Any) -> str:
    """Make a token of anna with limits, and return it."""
    store = TokenStore(place)
    made = store.create("anna", limits=TokenLimits(**limits))
    store.close()
    return made.token


BEYOND = {
    "nodes": ({"max_nodes": 4}, {"nodes": 5}, None, "nodes"),
    "time": ({"max_limit_ms": 10**9}, {"limit_ms": 10**9 + 1}, None, "limit_ms"),
    "priority": ({"max_priority": 5.0}, {"priority": 6.0}, None, "priority"),
    "weight": ({"max_weight": 5.0}, {"weight": 6.0}, None, "weight"),
    "another site": ({"sites": ("north",)}, {}, "south", "site"),
    "the grid": ({"sites": ("north",)}, {}, None, "site"),
    "another account": ({"accounts": ("climate", "ocean")}, {"account": "fusion"}, None, "account"),
    "no account of several": ({"accounts": ("climate", "ocean")}, {}, None, "account"),
    "a long packed array": (
        {"max_array": 3},
        {"array": {"name": "a", "index": 0, "at_once": 0, "elements": [[0, 4]]}},
        None,
        "array.index",
    ),
    "a long array": ({"max_array": 3}, {"array": {"name": "a", "index": 3, "at_once": 0}}, None, "array.index"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize(("limits", "changes", "site", "where"), BEYOND.values(), ids=BEYOND)
async def test_a_job_beyond_the_limits_of_a_token_is_refused(
    tmp_path: Path, limits: dict[str, Any], changes: dict[str, Any], site: str | None, where: str
) -> None:
    """No job of a request is taken in if one goes beyond what the token is for, and the answer says which and how."""
    token = limited(tmp_path / "t", **limits)
    backend = FakeBackend()
    fine = a_job(account="climate") if "accounts" in limits else a_job()
    async with serving(backend, tokens=str(tmp_path / "t")) as grid:
        body = {"jobs": [fine, a_job(**changes)], "site": site}
        status, problem, _ = await grid.ask("POST", "/v1/jobs", body, token=token)
    assert (status, problem["type"]) == (403, "urn:gridweave:problem:forbidden")
    assert problem["errors"][-1]["where"].endswith(where)
    assert "the token is for" in problem["detail"]
    assert not backend.records_by_id


@pytest.mark.asyncio
@pytest.mark.parametrize("value", [1e300, 2e9, -2e9])
@pytest.mark.parametrize(("name", "least"), [("weight", "0"), ("priority", "-1e+09")])
async def test_no_job_outweighs_all_others(name: str, least: str, value: float) -> None:
    """A weight or priority outside the range of queue orders is declined, whatever the token allows."""
    async with serving(FakeBackend()) as grid:
        status, problem, _ = await grid.ask("POST", "/v1/jobs", {"jobs": [a_job(**{name: value})]})
        assert (status, problem["detail"]) == (422, f"{name} is {value:g}; expected {least} to 1e+09")
        assert (await grid.ask("POST", "/v1/jobs", {"jobs": [a_job(**{name: 1e9})]}))[0] == 200


@pytest.mark.asyncio
async def test_whose_jobs_a_site_takes_is_told_to_operators_alone(tmp_path: Path) -> None:
    """A user sees how full the sites are, and not who else may use them."""
    tokens = make_tokens(tmp_path / "t", anna="read", olga="operate")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t")) as grid:
        told = [(await grid.ask("GET", "/v1/sites", token=tokens[user]))[1]["sites"] for user in ("anna", "olga")]
    assert [[site["users"] for site in sites] for sites in told] == [["", ""], [TAKES, TAKES]]
    assert [site["free"] for site in told[0]] == [4, 8]


@pytest.mark.asyncio
async def test_a_job_within_the_limits_is_taken_in(tmp_path: Path) -> None:
    """What a token is for it can be used for, to the last node; its only account is that of jobs that name none."""
    token = limited(tmp_path / "t", sites=("north",), accounts=("climate",), max_nodes=4, max_array=3)
    backend = FakeBackend()
    async with serving(backend, tokens=str(tmp_path / "t")) as grid:
        job = a_job(nodes=4, array={"name": "a", "index": 2, "at_once": 0})
        packed = a_job(array={"name": "b", "index": 0, "at_once": 0, "elements": [[0, 3]]})
        body = {"jobs": [job, packed], "site": "north"}
        status, answer, _ = await grid.ask("POST", "/v1/jobs", body, token=token)
    assert status == 200
    assert backend.records_by_id[answer["answers"][0]["job_id"]].request.account == "climate"


@pytest.mark.asyncio
async def test_a_token_gets_no_more_by_making_tokens(tmp_path: Path) -> None:
    """A token for a short time has no scope, limit, user or day more than the one that it was made by."""
    store = TokenStore(tmp_path / "t")
    submitter = store.create("anna", ("submit",), days=0.5, limits=TokenLimits(max_nodes=2))
    reader = store.create("anna", ("read",))
    store.close()
    async with serving(FakeBackend(), tokens=str(tmp_path / "t")) as grid:

        async def short(token: str, **body: Any) -> tuple[int, Any, Any]:
            return await grid.ask("POST", "/v1/tokens/short", body, token=token)

        assert (await short(reader.token, scopes=["read"]))[0] == 403
        assert (await short(submitter.token, scopes=["submit", "cancel"]))[0] == 403
        assert (await short(submitter.token, scopes=["operate"]))[0] == 422
        assert (await short(submitter.token, scopes=["submit"], hours=25))[0] == 422
        assert (await short(submitter.token, scopes=["submit"], user="olga"))[0] == 422
        status, made, _ = await short(submitter.token, scopes=["submit"])
        assert (status, made["info"]["user"], made["info"]["limits"]) == (200, "anna", {"max_nodes": 2})
        assert made["info"]["until_ms"] == submitter.info.until_ms
        assert (await short(made["token"], scopes=["submit"]))[0] == 422
        assert (await grid.ask("POST", "/v1/jobs", {"jobs": [a_job(nodes=3)]}, token=made["token"]))[0] == 403


def test_a_short_token_is_revoked_with_the_one_that_it_was_made_by(tmp_path: Path) -> None:
    """Whoever loses a token revokes with it all that were made by it; each ends by itself after its hours."""
    now_ms = 1_000_000
    store = TokenStore(tmp_path / "t", now_ms=lambda: now_ms)
    parent = store.create("anna")
    first, second = (store.create_short(parent.info, ("submit",), hours) for hours in (1, 24))
    now_ms += HOUR_MS
    assert store.find(first.token) is None
    assert store.find(second.token) is not None
    assert store.revoke(parent.info.token_id)
    assert store.find(second.token) is None
    with pytest.raises(OptionError, match="is no longer valid"):
        store.create_short(parent.info, ("submit",), 1)
    assert store.list() == []
    store.close()


def test_short_tokens_do_not_fill_the_store(tmp_path: Path) -> None:
    """A user has a hundred tokens for a short time at most; when some have ended there may be new ones."""
    now_ms = 1_000_000
    store = TokenStore(tmp_path / "t", now_ms=lambda: now_ms)
    parent = store.create("anna").info
    for _ in range(100):
        store.create_short(parent, ("read",), 1)
    with pytest.raises(OptionError, match="wait until some expire"):
        store.create_short(parent, ("read",), 1)
    now_ms += HOUR_MS
    assert store.create_short(parent, ("read",), 1).info.user == "anna"
    store.close()


def test_a_token_ends_after_ninety_days(tmp_path: Path) -> None:
    """A token of which nothing is said works for 90 days, and not a millisecond longer."""
    now_ms = 1_000_000
    store = TokenStore(tmp_path / "t", now_ms=lambda: now_ms)
    made = store.create("anna")
    now_ms += 90 * DAY_MS - 1
    assert store.find(made.token) is not None
    now_ms += 1
    assert store.find(made.token) is None
    store.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("scope", ["read", "submit", "cancel"])
async def test_no_scope_but_operate_reaches_others_or_the_grid(tmp_path: Path, scope: Any) -> None:
    """No other scope drains sites, gives up machines, lists, makes or revokes tokens, or touches others' jobs."""
    store = TokenStore(tmp_path / "t")
    token = store.create("mallory", (scope,)).token
    store.close()
    others = make_tokens(tmp_path / "t", anna="submit")
    backend = FakeBackend()
    async with serving(backend, tokens=str(tmp_path / "t")) as grid:
        [job_id] = await grid.submit(a_job(), token=others["anna"])
        for method, path, body in (
            ("POST", "/v1/sites/north/drain", None),
            ("POST", "/v1/sites/north/resume", None),
            ("POST", "/v1/sites/north/machines/m1/give-up", None),
            ("GET", "/v1/tokens", None),
            ("POST", "/v1/tokens", {"user": "mallory", "scopes": ["operate"]}),
            ("DELETE", f"/v1/tokens/{others['anna'].split('_')[1]}", None),
            ("POST", f"/v1/jobs/{job_id}/cancel", None),
            ("GET", f"/v1/jobs/{job_id}/output", None),
        ):
            assert (await grid.ask(method, path, body, token=token))[0] in (403, 404), path
        if scope == "cancel":
            done = await grid.ask("POST", "/v1/jobs/cancel", {"job_ids": [job_id]}, token=token)
            assert done[1] == {"job_ids": []}
    assert backend.records_by_id[job_id].state == "waiting"
    assert backend.draining == {"north": False, "south": False}
    assert backend.given_up == []


@pytest.mark.asyncio
async def test_no_answer_and_no_log_shows_a_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Good or bad, in the header or in places where it does not belong, a secret comes back in no answer and no log."""
    caplog.set_level(logging.DEBUG)
    tokens = make_tokens(tmp_path / "t", anna="submit")
    secret = tokens["anna"].split("_", 2)[2]
    bad = "gw_0123456789ab_" + "verysecret" * 5
    seen: list[str] = []
    async with serving(FakeBackend(), tokens=str(tmp_path / "t")) as grid:
        for token in (tokens["anna"], bad):
            for method, path, body in (
                ("GET", "/v1/whoami", None),
                ("GET", "/v1/jobs/nonsense", None),
                ("POST", "/v1/jobs", {"jobs": 7}),
                ("DELETE", "/v1/tokens/x", None),
                ("GET", "/nowhere", None),
                ("PATCH", "/v1/jobs", None),
            ):
                status, answer, headers = await grid.ask(method, path, body, token=token)
                seen.append(f"{status} {answer} {dict(headers)}")
        for header in ("Basic", "bearer\t", "Token", "Bearer Bearer"):
            async with grid.session.get(f"{grid.url}/v1/whoami", headers={"Authorization": f"{header} {bad}"}) as found:
                seen.append(await found.text())
    seen += [record.getMessage() for record in caplog.records if record.name.startswith("gridweave")]
    seen += [path.read_bytes().decode("latin-1") for path in tmp_path.iterdir()]
    assert not [text for text in seen if secret in text or "verysecret" in text]
