"""The gateway answers what it is asked, over HTTP, from a grid in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from gridweave.grid.api import Problem, Submitted
from gridweave.site.launch import UsageCurve, UsagePoint
from gridweave.site.resources.chunks import NodeKind
from support.gateway import SLEEP, FakeBackend, a_job, make_tokens, serving

pytestmark = pytest.mark.asyncio


async def test_jobs_are_handed_in_listed_shown_and_cancelled() -> None:
    """What is handed in is there, newest first, page by page, and can be cancelled once."""
    async with serving(FakeBackend()) as grid:
        ids = await grid.submit(*(a_job(name=f"n{number}", user="anna") for number in range(5)))
        assert ids == [1, 2, 3, 4, 5]
        status, page, _ = await grid.ask("GET", "/v1/jobs?limit=3")
        assert (status, [job["job_id"] for job in page["jobs"]], page["below"]) == (200, [5, 4, 3], 3)
        _, page, _ = await grid.ask("GET", f"/v1/jobs?limit=3&below={page['below']}")
        assert ([job["job_id"] for job in page["jobs"]], page["below"]) == ([2, 1], None)
        _, record, _ = await grid.ask("GET", "/v1/jobs/2")
        assert (record["state"], record["request"]["name"]) == ("waiting", "n1")
        assert (await grid.ask("POST", "/v1/jobs/2/cancel"))[:2] == (200, {"job_ids": [2]})
        assert (await grid.ask("POST", "/v1/jobs/2/cancel"))[:2] == (200, {"job_ids": []})
        _, page, _ = await grid.ask("GET", "/v1/jobs?state=ended&state=held&outcome=cancelled")
        assert [job["job_id"] for job in page["jobs"]] == [2]


async def test_several_jobs_are_listed_by_their_numbers() -> None:
    """Named jobs come newest first, whatever site they are of; other conditions and pages count for them too."""
    async with serving(FakeBackend()) as grid:
        await grid.submit(*(a_job(name=f"n{number % 2}") for number in range(4)))
        _, answer, _ = await grid.ask("POST", "/v1/jobs", {"jobs": [a_job()], "site": "north"})
        own = answer["answers"][0]["job_id"]

        async def listed(query: str) -> tuple[list[int], int | None]:
            status, page, _ = await grid.ask("GET", f"/v1/jobs?{query}")
            assert status == 200
            return [job["job_id"] for job in page["jobs"]], page["below"]

        assert await listed(f"job=1&job=4&job=99&job={own}") == ([own, 4, 1], None)
        assert await listed("job=1&job=2&job=4&name=n1") == ([4, 2], None)
        assert await listed("job=1&job=2&job=4&limit=2") == ([4, 2], 2)
        assert await listed("job=1&job=2&job=4&limit=2&below=2") == ([1], None)
        assert (await grid.ask("GET", "/v1/jobs?job=0"))[0] == 422


async def test_what_a_job_uses_over_time_is_told_machine_by_machine() -> None:
    """All machines from rank to rank; where nothing is kept, or a job has written something else there, it ends."""
    backend = FakeBackend()
    async with serving(backend) as grid:
        [job_id] = await grid.submit(a_job())
        assert (await grid.ask("GET", f"/v1/jobs/{job_id}/usage"))[1] == {
            "job_id": job_id,
            "pieces": [],
            "is_whole": False,
        }
        for first, last in ((0, 3), (4, 5)):
            curve = UsageCurve(site="", host="n1", first_rank=first, last_rank=last, size=7, start_ms=1, points=())
            backend.write(job_id, msgspec.json.encode(curve), rank=first, stream="usage")
        wrong = UsageCurve(site="", host="n1", first_rank=6, last_rank=6, size=7, start_ms=10**17, points=())
        for written in (b'{"points": 1}', b"{" * 100_000, msgspec.json.encode(wrong)):
            backend.written[job_id, 6, "usage"] = written
            _, usage, _ = await grid.ask("GET", f"/v1/jobs/{job_id}/usage")
            assert [(piece["first_rank"], piece["last_rank"]) for piece in usage["pieces"]] == [(0, 3), (4, 5)]
            assert not usage["is_whole"]
        curve = UsageCurve(
            site="", host="n1", first_rank=6, last_rank=6, size=7, start_ms=1, points=(UsagePoint(2, 0.5, 3),)
        )
        backend.written[job_id, 6, "usage"] = msgspec.json.encode(curve)
        _, usage, _ = await grid.ask("GET", f"/v1/jobs/{job_id}/usage")
        assert (usage["is_whole"], usage["pieces"][2]["points"]) == (True, [[2, 0.5, 3]])


async def test_the_same_over_messagepack() -> None:
    """A request in MessagePack gets what it gets in JSON, in the form that is asked for, problems too."""
    headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
    async with serving(FakeBackend()) as grid:
        body = msgspec.msgpack.encode({"jobs": [a_job(), a_job(nodes=1000)]})
        async with grid.session.post(f"{grid.url}/v1/jobs", data=body, headers=headers) as response:
            assert response.headers["Content-Type"] == "application/msgpack"
            answers = msgspec.msgpack.decode(await response.read(), type=Submitted).answers
        assert [(answer.job_id, answer.reason) for answer in answers] == [
            (1, ""),
            (None, "1000 nodes; the grid has 12"),
        ]
        async with grid.session.get(f"{grid.url}/v1/jobs/77", headers=headers) as response:
            assert response.headers["Content-Type"] == "application/problem+msgpack"
            problem = msgspec.msgpack.decode(await response.read(), type=Problem)
        assert (problem.status, problem.type) == (404, "urn:gridweave:problem:unknown-job")


async def test_many_jobs_are_changed_at_once() -> None:
    """A request with numbers of jobs tells to which it was done; unknown ones are passed over."""
    async with serving(FakeBackend()) as grid:
        await grid.submit(a_job(), a_job(hold=True), a_job())
        assert (await grid.ask("POST", "/v1/jobs/hold", {"job_ids": [3, 1, 2, 99, 3]}))[1] == {"job_ids": [1, 3]}
        assert (await grid.ask("POST", "/v1/jobs/release", {"job_ids": [1, 2]}))[1] == {"job_ids": [1, 2]}
        assert (await grid.ask("POST", "/v1/jobs/3/release"))[1] == {"job_ids": [3]}
        assert (await grid.ask("POST", "/v1/jobs/3/hold"))[1] == {"job_ids": [3]}
        assert (await grid.ask("POST", "/v1/jobs/cancel", {"job_ids": []}))[1] == {"job_ids": []}
        assert (await grid.ask("POST", "/v1/jobs/cancel", {"job_ids": [1, 2, 3]}))[1] == {"job_ids": [1, 2, 3]}


async def test_story_forecast_quote_queue_sites() -> None:
    """What the grid says of a job, of its queue and its sites comes through, and the story tells by which request."""
    async with serving(FakeBackend()) as grid:
        await grid.submit(a_job(user="anna"), X_Request_Id="batch-7")
        _, history, _ = await grid.ask("GET", "/v1/jobs/1/history")
        assert "request batch-7" in history["entries"][0]["detail"]
        _, why, _ = await grid.ask("GET", "/v1/jobs/1/forecast")
        assert (why["job_id"], len(why["sites"])) == (1, 2)
        _, when, _ = await grid.ask("POST", "/v1/quote", {"request": SLEEP})
        assert when["places"] == [["north", 1]]
        status, wrong, _ = await grid.ask("POST", "/v1/quote", {"request": SLEEP | {"nodes": 0}})
        assert (status, wrong["detail"]) == (422, "nodes is 0; expected a whole number from 1 to 10000000")
        _, queue, _ = await grid.ask("GET", "/v1/queue?limit=10")
        assert (queue["waiting"], queue["jobs"][0]["user"]) == (1, "anna")
        _, scheduling, _ = await grid.ask("GET", "/v1/scheduling")
        assert (scheduling["mode"], scheduling["overhead"], scheduling["links"]) == ("multi-site", [0.0], False)
        assert (await grid.ask("POST", "/v1/sites/north/drain"))[0] == 200
        _, sites, _ = await grid.ask("GET", "/v1/sites")
        assert [(site["name"], site["draining"]) for site in sites["sites"]] == [("north", True), ("south", False)]
        assert (await grid.ask("POST", "/v1/sites/north/resume"))[0] == 200
        status, wrong, _ = await grid.ask("POST", "/v1/sites/west/drain")
        assert (status, wrong["type"]) == (404, "urn:gridweave:problem:unknown-site")


async def test_a_machine_that_is_away_is_given_up() -> None:
    """One that is away is; a machine or site that there is not, and a machine that is not away, are refused as such."""
    backend = FakeBackend()
    async with serving(backend) as grid:
        for where, expected in (
            ("north/machines/m1", (200, None)),
            ("north/machines/m0", (409, "machine-answers")),
            ("north/machines/m7", (404, "unknown-machine")),
            ("west/machines/m1", (404, "unknown-site")),
            ("north/machine/m1", (404, "unknown-route")),
        ):
            status, answer, _ = await grid.ask("POST", f"/v1/sites/{where}/give-up")
            assert (status, answer.get("type", "").rpartition(":")[2] or None) == expected
        assert (await grid.ask("GET", "/v1/sites/north/machines/m1/give-up"))[0] == 405
    assert backend.given_up == [("north", "m1")]


async def test_a_key_gets_its_first_answer_again() -> None:
    """The same keys, or Idempotency-Key, are the same jobs, also for another gateway; of another user, others."""
    backend = FakeBackend()
    batch = {"jobs": [a_job(user="anna"), a_job(user="anna"), a_job(user="anna", nodes=99)]}
    async with serving(backend) as grid:
        _, first, _ = await grid.ask("POST", "/v1/jobs", batch, Idempotency_Key="monday")
        _, again, _ = await grid.ask("POST", "/v1/jobs", batch, Idempotency_Key="monday")
        assert first == again
        assert [one["key"] for one in first["answers"]] == ["monday 0", "monday 1", "monday 2"]
    async with serving(backend) as grid:
        _, again, _ = await grid.ask("POST", "/v1/jobs", batch, Idempotency_Key="monday")
        assert first == again
        assert await grid.submit(a_job(user="anna") | {"key": "monday 1"}) == [2]
        assert await grid.submit(a_job(user="bob") | {"key": "monday 1"}) == [3]
        assert await grid.submit(a_job(user="anna"), a_job(user="anna")) == [4, 5]
    assert len(backend.records_by_id) == 5


async def test_a_single_job_that_is_declined_is_a_problem_of_its_own() -> None:
    """One job that is not taken in is refused with the reason, again by its key; among others it is one answer."""
    async with serving(FakeBackend()) as grid:
        for _ in range(2):
            status, wrong, _ = await grid.ask("POST", "/v1/jobs", {"jobs": [a_job(nodes=99) | {"key": "k"}]})
            assert (status, wrong["type"].rpartition(":")[2]) == (422, "declined")
            assert wrong["detail"] == "99 nodes; the grid has 12"
        status, answer, _ = await grid.ask("POST", "/v1/jobs", {"jobs": [a_job(nodes=99), a_job()]})
        assert (status, [one["job_id"] for one in answer["answers"]]) == (200, [None, 1])


@pytest.mark.parametrize("form", ["application/json", "application/msgpack"])
async def test_fields_that_nobody_knows_are_refused_by_name(form: str) -> None:
    """All of them are named at once, at any depth, with the known one that looks most like it; nothing is taken in."""
    encode = msgspec.json.encode if form.endswith("json") else msgspec.msgpack.encode
    backend = FakeBackend()
    async with serving(backend) as grid:
        jobs = [a_job(), a_job(node=2, after=[{"job_id": 1, "state": "ended"}]), a_job(program={"argv": ["a"], "x": 1})]
        for body, places in (
            ({"jobs": jobs[:1], "sites": "north"}, ["sites"]),
            ({"jobs": [{**jobs[0], "keys": "a"}]}, ["jobs[0].keys"]),
            ({"jobs": jobs}, ["jobs[1].request.node", "jobs[1].request.after[0].state", "jobs[2].request.program.x"]),
        ):
            headers = {"Content-Type": form, "Accept": "application/json"}
            async with grid.session.post(f"{grid.url}/v1/jobs", data=encode(body), headers=headers) as response:
                wrong = msgspec.json.decode(await response.read())
            assert (response.status, [one["where"] for one in wrong["errors"]]) == (422, places)
        assert wrong["errors"][0]["detail"] == "is not known; did you mean 'nodes'?"
        assert not backend.records_by_id
        status, wrong, _ = await grid.ask("POST", "/v1/jobs/cancel", {"job_ids": [1], "signals": 3})
        assert (status, wrong["errors"][0]["where"]) == (422, "signals")


async def test_parameters_and_values_that_nobody_knows_are_refused_by_name() -> None:
    """Of the part behind ``?`` each unknown name, and each unknown value, is told with what there is."""
    async with serving(FakeBackend()) as grid:
        for path, told in (
            ("/v1/jobs?sate=held&limt=3", "sate: is not known; did you mean 'state'?; limt: is not known"),
            ("/v1/jobs?state=hold", "Invalid enum value 'hold'"),
            ("/v1/jobs?outcome=good", "Invalid enum value 'good'"),
            ("/v1/jobs?site=west", "site is 'west'; north or south"),
            ("/v1/events?kind=endet", "Invalid enum value 'endet'"),
            ("/v1/sites?limit=3", "limit: is not known; there are none"),
        ):
            status, wrong, _ = await grid.ask("GET", path)
            assert status == 422
            assert told in wrong["detail"]


async def test_users_and_keys_cannot_be_mistaken_for_others() -> None:
    """A user whose name holds a space has other keys than one whose key does."""
    async with serving(FakeBackend()) as grid:
        ids = await grid.submit(a_job(user="a b") | {"key": "c"}, a_job(user="a") | {"key": "b c"})
        assert ids == [1, 2]


async def test_a_client_cut_off_in_a_batch_repeats_it_and_nothing_is_doubled() -> None:
    """A batch whose answer never came is handed in again, and each job is there once."""
    backend = FakeBackend()
    batch = {"jobs": [a_job() for _ in range(500)]}
    async with serving(backend) as grid:
        backend.open_gate.clear()
        first = asyncio.create_task(grid.ask("POST", "/v1/jobs", batch, Idempotency_Key="k"))
        while not backend.submits:
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        backend.open_gate.set()
        _, answer, _ = await grid.ask("POST", "/v1/jobs", batch, Idempotency_Key="k")
        assert [one["job_id"] for one in answer["answers"]] == list(range(1, 501))
    assert len(backend.records_by_id) == 500


async def test_health_readiness_metrics_and_description() -> None:
    """The gateway says that it lives, whether the grid does, what it counted, and how to speak to it."""
    backend = FakeBackend()
    backend.kinds["north"] = (NodeKind(name="gpu", count=4, cores=16, gpus=2),)
    async with serving(backend) as grid:
        await grid.submit(a_job(), a_job())
        assert (await grid.ask("GET", "/readyz"))[0] == 200
        _, text, headers = await grid.ask("GET", "/metrics")
        assert headers["Content-Type"].startswith("text/plain")
        assert 'gridweave_jobs{state="waiting"} 2.0' in text.decode()
        assert 'gridweave_site_nodes{site="south"} 8.0' in text.decode()
        assert 'gridweave_site_resource_total{resource="gpus",site="north"} 8.0' in text.decode()
        assert 'gridweave_site_resource_used{resource="cores",site="north"} 0.0' in text.decode()
        assert 'gridweave_http_requests_total{method="POST",route="submit",status="200"} 1.0' in text.decode()
        _, described, _ = await grid.ask("GET", "/openapi.json")
        assert described["paths"]["/v1/jobs"]["post"]["operationId"] == "submit"
        backend.is_away = True
        assert (await grid.ask("GET", "/healthz"))[0] == 200
        assert (await grid.ask("GET", "/readyz"))[:2][0] == 503
        status, problem, headers = await grid.ask("GET", "/v1/sites")
        assert (status, problem["type"], headers["Retry-After"]) == (503, "urn:gridweave:problem:unavailable", "1")
        _, text, _ = await grid.ask("GET", "/metrics")
        assert "gridweave_up 0.0" in text.decode()


async def test_who_one_is_without_tokens() -> None:
    """Without tokens everybody on this machine is an operator of no name."""
    async with serving(FakeBackend()) as grid:
        _, who, _ = await grid.ask("GET", "/v1/whoami")
        assert (who["user"], who["scopes"]) == ("", ["operate"])
        assert (await grid.ask("GET", "/v1/tokens"))[1] == {"tokens": []}
        assert (await grid.ask("POST", "/v1/tokens", {"user": "anna"}))[0] == 404


async def test_a_waiting_client_is_told_to_send_its_body() -> None:
    """`Expect: 100-continue`, as curl sends it with large bodies, is answered."""
    async with serving(FakeBackend()) as grid:
        body = {"jobs": [a_job()]}
        async with grid.session.post(f"{grid.url}/v1/jobs", json=body, expect100=True) as response:
            assert response.status == 200


@pytest.mark.parametrize(("user", "length", "status"), [("nobody", 10, b"401"), ("anna", 100 << 20, b"413")])
async def test_a_body_is_not_invited_before_its_request_is_allowed(
    tmp_path: Path, user: str, length: int, status: bytes
) -> None:
    """A client that expects 100 Continue without a valid token, or with too large a body, is refused at once."""
    tokens = make_tokens(tmp_path / "tokens.db", anna="submit") | {"nobody": "gw_0123456789ab_wrong"}
    async with serving(FakeBackend(), tokens=str(tmp_path / "tokens.db")) as grid:
        reader, writer = await asyncio.open_connection("127.0.0.1", grid.gateway.port)
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {tokens[user]}\r\n"
        head += "Content-Type: application/json\r\nExpect: 100-continue\r\n"
        writer.write(f"{head}Content-Length: {length}\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == status
        writer.close()
