"""Each request is one line of JSON, with an id that is also in the answer and in the story, and without secrets."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

from support.gateway import FakeBackend, a_job, make_tokens, serving

pytestmark = pytest.mark.asyncio


async def test_each_request_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who asked what, and what came of it, is in one line; the token is there by its id alone."""
    caplog.set_level(logging.INFO, "gridweave.gateway.requests")
    tokens = make_tokens(tmp_path / "t", anna="submit", olga="operate")
    backend = FakeBackend()
    async with serving(backend, tokens=str(tmp_path / "t")) as grid:
        await grid.submit(a_job(), a_job(), token=tokens["anna"], X_Request_Id="mine:1")
        _, _, made = await grid.ask("GET", "/v1/jobs/99", token=tokens["anna"], X_Request_Id="not mine")
        _, new, _ = await grid.ask("POST", "/v1/tokens", {"user": "bob"}, token=tokens["olga"])
        await grid.ask("GET", "/v1/jobs?user=hidden", token="gw_wrong")
        lines: list[str] = []
        while len(lines) < 4:
            await asyncio.sleep(0)  # a line is written behind the answer
            lines = [one.getMessage() for one in caplog.records if one.name == "gridweave.gateway.requests"]
    first, second, third, fourth = (msgspec.json.decode(line) for line in lines)
    token_id = tokens["anna"].split("_")[1]
    assert (first["id"], first["user"], first["token"], first["method"]) == ("mine:1", "anna", token_id, "POST")
    assert (first["route"], first["status"], first["jobs"]) == ("submit", 200, 2)
    assert min(first["bytes_in"], first["bytes_out"], first["duration_ms"]) > 0
    assert first["time"].endswith("Z")
    assert (second["route"], second["target"], second["status"]) == ("show_job", "99", 404)
    assert second["problem"] == "unknown-job"
    assert second["id"] == made["X-Request-Id"] != "not mine"
    assert (third["user"], third["status"]) == ("olga", 200)
    assert (fourth["status"], fourth.get("user", "")) == (401, "")
    assert backend.stories[1][0].detail == "1 node, by anna, request mine:1"
    for secret in (*tokens.values(), new["token"], "gw_wrong"):
        assert secret.split("_", 2)[-1] not in "".join(lines)


async def test_that_all_is_well_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Health checks ask every few seconds, forever: they are lines only when the answer is no."""
    caplog.set_level(logging.INFO, "gridweave.gateway.requests")
    backend = FakeBackend()
    async with serving(backend) as grid:
        assert (await grid.ask("GET", "/readyz"))[0] == 200
        backend.is_away = True
        assert (await grid.ask("GET", "/readyz"))[0] == 503
        while not caplog.records:
            await asyncio.sleep(0)
    lines = [msgspec.json.decode(record.getMessage()) for record in caplog.records]
    assert [(line["route"], line["status"]) for line in lines] == [("readyz", 503)]


async def test_a_client_that_goes_away_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A request whose client has gone before the answer is a line with status 499."""
    caplog.set_level(logging.INFO, "gridweave.gateway.requests")
    backend = FakeBackend()
    backend.open_gate.clear()
    async with serving(backend) as grid:
        asking = asyncio.create_task(grid.submit(a_job()))
        while not backend.submits:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while not caplog.records:
            await asyncio.sleep(0)
    assert msgspec.json.decode(caplog.records[0].getMessage())["status"] == 499


async def test_an_error_of_ours_is_told_as_one(caplog: pytest.LogCaptureFixture) -> None:
    """What the gateway fails at is a problem document without a traceback, which is in the log under the same id."""
    backend = FakeBackend()

    async def fail(limit: int) -> None:
        raise ZeroDivisionError("a secret of the inside")

    backend.queue = fail  # type: ignore[assignment, method-assign]
    async with serving(backend) as grid:
        status, problem, _ = await grid.ask("GET", "/v1/queue")
        assert (status, problem["type"]) == (500, "urn:gridweave:problem:internal")
        assert "secret" not in str(problem)
        assert any(problem["instance"] in record.getMessage() and record.exc_info for record in caplog.records)
        assert (await grid.ask("GET", "/v1/sites"))[0] == 200
