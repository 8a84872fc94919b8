"""Limits: requests in a time and at once, open jobs, memory, connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gridweave.errors import OptionError
from gridweave.grid.api import Forecast
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.gateway.call import FEW_IDS
from gridweave.grid.gateway.limits import Memory, Rates
from gridweave.grid.gateway.problems import RefusalError
from gridweave.site.job import ActionKind, SignalName
from support.gateway import FakeBackend, a_job, make_tokens, serving


def test_a_bucket_lets_through_as_much_as_it_holds_and_then_as_fast_as_it_is_filled() -> None:
    """A client has its burst at once and then its rate; another one has its own."""
    now_s = 0.0
    rates = Rates(10.0, 3.0, lambda: now_s)
    assert [rates.wait_s("anna") for _ in range(4)] == [0, 0, 0, pytest.approx(0.1)]
    assert rates.wait_s("bob") == 0
    now_s = 0.1
    assert rates.wait_s("anna") == 0
    assert rates.wait_s("anna") > 0
    now_s = 1000.0
    assert [rates.wait_s("anna") > 0 for _ in range(4)] == [False, False, False, True]


def test_full_buckets_are_forgotten() -> None:
    """However many clients there were, no more are known than have been busy of late."""
    now_s = 0.0
    rates = Rates(1.0, 1.0, lambda: now_s)
    for number in range(50_000):
        now_s = number * 0.01
        rates.wait_s(str(number))
    assert len(rates._buckets) <= 10_001


def test_memory_is_given_back() -> None:
    """What requests hold together is limited, and is given back when they are over."""
    memory = Memory(100)
    with memory.holding() as one:
        one(60)
        with memory.holding() as other:
            other(30)
            with pytest.raises(RefusalError):
                other(30)
        assert memory.held == 60
    assert memory.held == 0


class BusyBackend(FakeBackend):
    """A grid that answers forecasts when a gate is open, and tells which have come."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked: list[int] = []
        self.has_come = asyncio.Condition()

    async def forecast(self, job_id: int) -> Forecast | None:
        """Return when a job starts, once the gate is open."""
        async with self.has_come:
            self.asked.append(job_id)
            self.has_come.notify_all()
        await self.gate.wait()
        return await super().forecast(job_id)

    async def until_asked(self, job_id: int) -> None:
        """Wait until a forecast of a job was asked for."""
        async with self.has_come:
            await self.has_come.wait_for(lambda: job_id in self.asked)


@pytest.mark.asyncio
async def test_one_question_of_each_user_is_worked_on(tmp_path: Path) -> None:
    """However many forecasts a user asks for at once, the grid works on one; others' are not behind these."""
    tokens = make_tokens(tmp_path / "t", anna="submit", bob="submit")
    backend = BusyBackend()
    async with serving(backend, tokens=str(tmp_path / "t")) as grid:
        of_anna = await grid.submit(*[a_job()] * 20, token=tokens["anna"])
        (of_bob,) = await grid.submit(a_job(), token=tokens["bob"])

        async def explain(job_id: int, user: str) -> int:
            return (await grid.ask("GET", f"/v1/jobs/{job_id}/forecast", token=tokens[user]))[0]

        first = asyncio.create_task(explain(of_anna[0], "anna"))
        await backend.until_asked(of_anna[0])
        waiting = [asyncio.create_task(explain(job_id, "anna")) for job_id in of_anna[1:]]
        behind = asyncio.create_task(explain(of_bob, "bob"))
        await backend.until_asked(of_bob)
        while len(grid.gateway._parts.at_once._taken) < 2 or grid.gateway._parts.at_once.total() < 21:
            await asyncio.sleep(0)
        assert backend.asked == [of_anna[0], of_bob]
        # Clients that go lose their turn; the grid still works on the first one's question, so it keeps the turn.
        for task in (first, *waiting[:-1]):
            task.cancel()
        while grid.gateway._parts.at_once.total() > 2:
            await asyncio.sleep(0)
        assert backend.asked == [of_anna[0], of_bob]
        backend.gate.set()
        assert await asyncio.gather(waiting[-1], behind) == [200, 200]
    assert backend.asked == [of_anna[0], of_bob, of_anna[-1]]


class WishBackend(FakeBackend):
    """A grid that carries wishes out when a gate is open, and counts how many are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.under_way: list[int] = []
        self.most_large = 0

    async def apply_action(
        self, kind: ActionKind, job_ids: Sequence[int], *, origin: str, signal: SignalName | None = None
    ) -> list[int]:
        """Do what a user wants, once the gate is open."""
        self.under_way.append(len(job_ids))
        self.most_large = max(self.most_large, sum(size > FEW_IDS for size in self.under_way))
        await self.gate.wait()
        self.under_way.remove(len(job_ids))
        return await super().apply_action(kind, job_ids, origin=origin, signal=signal)


@pytest.mark.asyncio
async def test_one_request_of_each_user_about_many_jobs_is_carried_out(tmp_path: Path) -> None:
    """Of a user's requests about many jobs one is under way; those about few jobs, and other users', wait for none."""
    tokens = make_tokens(tmp_path / "t", olga="operate", otto="operate")
    backend = WishBackend()
    async with serving(backend, tokens=str(tmp_path / "t")) as grid:

        def cancel(user: str, count: int) -> asyncio.Task[tuple[int, Any, Any]]:
            body = {"job_ids": list(range(1, count + 1))}
            return asyncio.create_task(grid.ask("POST", "/v1/jobs/cancel", body, token=tokens[user]))

        tasks = [cancel("olga", FEW_IDS + 1) for _ in range(10)]
        tasks += [cancel("olga", 5), cancel("olga", FEW_IDS), cancel("otto", FEW_IDS + 2)]
        while len(backend.under_way) < 4:
            await asyncio.sleep(0)
        assert sorted(backend.under_way) == [5, FEW_IDS, FEW_IDS + 1, FEW_IDS + 2]
        backend.gate.set()
        assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200] * 13
    assert backend.most_large == 2


@pytest.mark.asyncio
async def test_too_many_requests_in_a_time(tmp_path: Path) -> None:
    """A token that asks too often is told when to ask again; another token is not held up."""
    tokens = make_tokens(tmp_path / "t", anna="read", bob="read")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t"), requests_per_s=1e-4, burst=2) as grid:
        for _ in range(2):
            assert (await grid.ask("GET", "/v1/queue", token=tokens["anna"]))[0] == 200
        status, problem, headers = await grid.ask("GET", "/v1/queue", token=tokens["anna"])
        assert (status, problem["type"]) == (429, "urn:gridweave:problem:too-many-requests")
        assert 9_000 < int(headers["Retry-After"]) <= 10_000
        assert 9_000 < problem["retry_after_s"] <= 10_000
        assert (await grid.ask("GET", "/v1/queue", token=tokens["bob"]))[0] == 200
        assert (await grid.ask("GET", "/healthz"))[0] == 200


@pytest.mark.asyncio
async def test_an_operator_at_the_machine_of_the_gateway_has_no_rate(tmp_path: Path) -> None:
    """Of the same requests over loopback those of a user are refused, and those of an operator are not."""
    tokens = make_tokens(tmp_path / "tokens.db", anna="read", olga="operate")
    async with serving(FakeBackend(), tokens=str(tmp_path / "tokens.db"), requests_per_s=0.001, burst=2) as grid:
        for user, statuses in (("anna", [200, 200, 429, 429]), ("olga", [200] * 4)):
            assert [(await grid.ask("GET", "/v1/whoami", token=tokens[user]))[0] for _ in range(4)] == statuses


@pytest.mark.asyncio
async def test_too_many_requests_at_once(tmp_path: Path) -> None:
    """Who has as many requests under way as there may be waits for one to be over."""
    tokens = make_tokens(tmp_path / "t", anna="submit", bob="submit")
    backend = FakeBackend()
    backend.open_gate.clear()
    async with serving(backend, tokens=str(tmp_path / "t"), max_at_once=2) as grid:
        slow = [asyncio.create_task(grid.submit(a_job(), token=tokens["anna"])) for _ in range(2)]
        while backend.submits < 2:
            await asyncio.sleep(0)
        assert (await grid.ask("GET", "/v1/queue", token=tokens["anna"]))[0] == 429
        assert (await grid.ask("GET", "/v1/queue", token=tokens["bob"]))[0] == 200
        backend.open_gate.set()
        await asyncio.gather(*slow)
        assert (await grid.ask("GET", "/v1/queue", token=tokens["anna"]))[0] == 200


@pytest.mark.asyncio
async def test_a_user_has_so_many_open_jobs_also_after_a_restart() -> None:
    """What is open counts however it came and whoever counts; what has ended, or was refused for good, does not."""
    backend = FakeBackend()

    async with serving(backend, max_open_jobs=5) as grid:
        ids = await grid.submit(*(a_job(user="anna") for _ in range(5)))
        assert (await grid.ask("POST", "/v1/jobs", {"jobs": [a_job(user="anna")]}))[0] == 409
        assert await grid.submit(a_job(user="bob"))
        backend.refuse(ids[0], for_good=False)
        backend.end(ids[1])
        backend.refuse(ids[2], for_good=True)
        while grid.gateway._parts.open_jobs.count("anna") > 3:
            await asyncio.sleep(0)
        assert (await grid.ask("POST", "/v1/jobs", {"jobs": [a_job(user="anna")] * 3}))[0] == 409
        await grid.submit(a_job(user="anna"))
    backend.end(ids[4])
    async with serving(backend, max_open_jobs=5) as grid:
        assert (await grid.ask("POST", "/v1/jobs", {"jobs": [a_job(user="anna")] * 3}))[0] == 409
        await grid.submit(a_job(user="anna"), a_job(user="anna"))


@pytest.mark.asyncio
async def test_handing_in_again_at_the_limit_is_no_new_job() -> None:
    """A batch that fills the limit, and whose answer was lost, gets its answer when it is handed in again."""
    batch = {"jobs": [a_job(user="anna") for _ in range(5)]}
    async with serving(FakeBackend(), max_open_jobs=5) as grid:
        _, first, _ = await grid.ask("POST", "/v1/jobs", batch, Idempotency_Key="k")
        _, again, _ = await grid.ask("POST", "/v1/jobs", batch, Idempotency_Key="k")
        assert first == again


@pytest.mark.asyncio
async def test_an_old_key_opens_no_job_that_is_over() -> None:
    """After a restart a key whose job has ended gets its answer, and takes no place among those that are open."""
    backend = FakeBackend()
    async with serving(backend) as grid:
        await grid.submit(a_job(user="anna") | {"key": "k"})
        backend.end(1)
    async with serving(backend, max_open_jobs=1) as grid:
        assert await grid.submit(a_job(user="anna") | {"key": "k"}) == [1]
        assert grid.gateway._parts.open_jobs.count("anna") == 0


@pytest.mark.asyncio
async def test_jobs_of_a_site_are_counted_too() -> None:
    """A user may have so many jobs at a site as well; the grid's are not among them."""
    backend = FakeBackend()
    async with serving(backend, max_open_jobs=2) as grid:
        await grid.submit(a_job(user="anna"), a_job(user="anna"))
        body = {"jobs": [a_job(user="anna"), a_job(user="anna")], "site": "north"}
        assert (await grid.ask("POST", "/v1/jobs", body))[0] == 200
        assert (await grid.ask("POST", "/v1/jobs", body))[0] == 409
        _, page, _ = await grid.ask("GET", "/v1/jobs?own=north")
        assert len(page["jobs"]) == 2
        assert (await grid.ask("POST", "/v1/jobs", body | {"site": "west"}))[0] == 422


@pytest.mark.asyncio
async def test_of_too_many_connections_the_oldest_idle_one_is_closed() -> None:
    """One connection more than there may be takes the place of the one that has been idle for longest."""
    async with serving(FakeBackend(), max_connections=2) as grid:
        old_reader, old_writer = await asyncio.open_connection("127.0.0.1", grid.gateway.port)
        assert (await grid.ask("GET", "/healthz"))[0] == 200  # a second one, which stays open
        reader, writer = await asyncio.open_connection("127.0.0.1", grid.gateway.port)
        assert await old_reader.read() == b""
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        old_writer.close()


@pytest.mark.parametrize("wrong", [{"port": -1}, {"port": 70_000}, {"burst": 0}, {"cert": "x"}, {"max_jobs": -1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    """A setting that cannot be meant is named."""
    with pytest.raises(OptionError, match=next(iter(wrong))):
        GatewaySettings(**wrong)  # type: ignore[arg-type]
