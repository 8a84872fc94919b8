"""The gateway before a real grid in this process: real cores, journals and processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.gateway import Served, a_job, make_tokens, serving
from support.live_grids import LocalGrid
from support.machine import PATIENCE_S

pytestmark = pytest.mark.asyncio


def script(text: str, **changes: Any) -> dict[str, Any]:
    """Return a job that runs a shell script."""
    return a_job(program={"argv": ["sh", "-c", text]}, **changes)


async def wait_for_end(grid: Served, job_id: int, token: str | None = None) -> None:
    """Watch a job until it has ended, from its first event on."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    path = f"{grid.url}/v1/events?after=0&job={job_id}&kind=ended"
    async with grid.session.get(path, headers=headers) as response:
        while not (await response.content.readline()).startswith(b"data: "):
            pass


async def test_from_submission_to_output(tmp_path: Path) -> None:
    """A job that is handed in over HTTP runs; its events, its output and its story are what really happened."""
    async with LocalGrid(tmp_path) as live, serving(live.backend) as grid:
        [job_id] = await grid.submit(
            # It runs until it was looked at once.
            script(
                "echo $GRIDWEAVE_RANK; echo wrong >&2; while [ ! -e ../usage.json ]; do sleep 0.05; done",
                nodes=2,
                name="ranks",
            ),
            X_Request_Id="r1",
        )
        await asyncio.wait_for(wait_for_end(grid, job_id), PATIENCE_S)
        _, record, _ = await grid.ask("GET", f"/v1/jobs/{job_id}")
        assert (record["state"], record["outcome"], record["exit_codes"]) == ("ended", "finished", [])
        for rank in (0, 1):
            _, data, headers = await grid.ask("GET", f"/v1/jobs/{job_id}/output?rank={rank}")
            assert (data, headers["Gridweave-Last"]) == (f"{rank}\n".encode(), "1")
        assert (await grid.ask("GET", f"/v1/jobs/{job_id}/output?stream=err"))[1] == b"wrong\n"
        assert (await grid.ask("GET", f"/v1/jobs/{job_id}/output?rank=2"))[0] == 422
        _, usage, _ = await grid.ask("GET", f"/v1/jobs/{job_id}/usage")
        assert usage["is_whole"]
        ranks = [range(piece["first_rank"], piece["last_rank"] + 1) for piece in usage["pieces"]]
        assert [rank for each in ranks for rank in each] == [0, 1]
        total_s = sum(piece["points"][-1][1] for piece in usage["pieces"])
        assert total_s == pytest.approx(record["used"]["cpu_s"])
        _, history, _ = await grid.ask("GET", f"/v1/jobs/{job_id}/history")
        kinds = [entry["kind"] for entry in history["entries"]]
        assert kinds.index("submitted") < kinds.index("runs") < kinds.index("ended")
        assert any("request r1" in entry["detail"] for entry in history["entries"])


async def test_waiting_jobs_are_explained_held_and_cancelled(tmp_path: Path) -> None:
    """What waits behind a wide job says why, can be held, released and cancelled; drained sites say so."""
    async with LocalGrid(tmp_path) as live, serving(live.backend) as grid:
        [wide] = await grid.submit(script("sleep 100000", nodes=6, limit_ms=3_600_000))
        [narrow] = await grid.submit(script("true", nodes=6))
        _, why, _ = await grid.ask("GET", f"/v1/jobs/{narrow}/forecast")
        assert (why["state"], bool(why["reason"])) == ("waiting", True)
        assert (await grid.ask("POST", f"/v1/jobs/{narrow}/hold"))[1] == {"job_ids": [narrow]}
        _, queue, _ = await grid.ask("GET", "/v1/queue")
        assert (queue["waiting"], queue["held"]) == (0, 1)
        assert (await grid.ask("POST", f"/v1/jobs/{narrow}/release"))[1] == {"job_ids": [narrow]}
        both = {"job_ids": [wide, narrow, 999]}
        assert (await grid.ask("POST", "/v1/jobs/cancel", both))[1] == {"job_ids": [wide, narrow]}
        await asyncio.wait_for(wait_for_end(grid, wide), PATIENCE_S)
        assert (await grid.ask("POST", "/v1/sites/south/drain"))[0] == 200
        _, sites, _ = await grid.ask("GET", "/v1/sites")
        assert [(site["name"], site["draining"]) for site in sites["sites"]] == [("north", False), ("south", True)]
        assert (await grid.ask("POST", "/v1/sites/west/drain"))[0] == 404
        status, when, _ = await grid.ask("POST", "/v1/quote", script("true", nodes=2))
        assert (status, when["job_id"]) == (200, None)


async def test_a_batch_is_repeated_before_another_gateway_and_after_the_grid(tmp_path: Path) -> None:
    """The same keys get the same answers from another gateway, and from the grid's next life; nothing is doubled."""
    batch = {"jobs": [script("true", hold=True, user="anna") for _ in range(50)] + [script("true", nodes=99)]}
    async with LocalGrid(tmp_path) as live:
        async with serving(live.backend) as grid:
            _, first, _ = await grid.ask("POST", "/v1/jobs", batch, Idempotency_Key="k")
        async with serving(live.backend) as grid:
            assert (await grid.ask("POST", "/v1/jobs", batch, Idempotency_Key="k"))[1] == first
    async with LocalGrid(tmp_path) as live, serving(live.backend) as grid:
        assert (await grid.ask("POST", "/v1/jobs", batch, Idempotency_Key="k"))[1] == first
        _, page, _ = await grid.ask("GET", "/v1/jobs?limit=1000")
        assert len(page["jobs"]) == 50
        assert first["answers"][50]["job_id"] is None


async def test_users_of_a_real_grid(tmp_path: Path) -> None:
    """A user sees own jobs and events alone, and a site's own jobs are there as well; the grid being away is 503."""
    (tmp_path / "grid").mkdir()
    tokens = make_tokens(tmp_path / "t", anna="submit", bob="submit")
    async with LocalGrid(tmp_path / "grid") as live, serving(live.backend, tokens=str(tmp_path / "t")) as grid:
        [of_anna] = await grid.submit(script("echo secret"), token=tokens["anna"])
        body = {"jobs": [script("true")], "site": "south"}
        _, own, _ = await grid.ask("POST", "/v1/jobs", body, token=tokens["bob"])
        of_bob = own["answers"][0]["job_id"]
        await asyncio.wait_for(wait_for_end(grid, of_anna, tokens["anna"]), PATIENCE_S)
        assert (await grid.ask("GET", f"/v1/jobs/{of_anna}/output", token=tokens["bob"]))[0] == 404
        assert (await grid.ask("GET", f"/v1/jobs/{of_bob}", token=tokens["bob"]))[0] == 200
        assert (await grid.ask("GET", f"/v1/jobs/{of_bob}", token=tokens["anna"]))[0] == 404
        _, page, _ = await grid.ask("GET", "/v1/jobs?own=south", token=tokens["bob"])
        assert [job["job_id"] for job in page["jobs"]] == [of_bob]
        live.away.add("grid")
        status, problem, _ = await grid.ask("GET", f"/v1/jobs/{of_anna}", token=tokens["anna"])
        assert (status, problem["type"]) == (503, "urn:gridweave:problem:unavailable")
        assert (await grid.ask("GET", "/readyz"))[0] == 503
