"""`Client.map`: results in order, so many jobs at once, and errors of jobs as errors of the call."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import statistics
from collections.abc import Iterator

import numpy as np
import pytest

from gridweave.errors import InputError, JobFailedError, OptionError, RefusedError
from gridweave.grid.client.client import Client
from gridweave.grid.client.requests import callable_name
from gridweave.site.job import Accepted, Declined, JobRecord, JobRequest
from support.gateway import GatewayBehindProxy, GridInMemory, Naps, patient
from support.web import FlakyProxy


class Workers:
    """Calls what jobs ask for, in an order of its own.

    Parameters
    ----------
    world : GridInMemory
    """

    def __init__(self, world: GridInMemory) -> None:
        self.world, self.under_way, self.most = world, [], 0  # type: ignore[var-annotated]
        self.rng = np.random.default_rng(11)
        world.runs = self

    def __call__(self, record: JobRecord) -> None:
        """Take in a job."""
        record.state = "running"
        self.under_way.append(record)
        self.most = max(self.most, len(self.under_way))

    async def __aenter__(self) -> Workers:
        self._task = asyncio.ensure_future(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.under_way = [record for record in self.under_way if record.state == "running"]
            ready = [record for record in self.under_way if self._item(record) != "slow"]
            if ready:
                self._end(ready[int(self.rng.integers(len(ready)))])

    def _item(self, record: JobRecord) -> object:
        call = record.request.program.call
        assert call is not None
        return call.args[0]

    def _end(self, record: JobRecord) -> None:
        call, item = record.request.program.call, self._item(record)
        assert call is not None
        if item == "bad":
            self.world.write(record.job_id, b"ValueError: bad\n", stream="err")
            record.exit_codes = ((0, 1, None),)
            record.reason, record.start_ms = "rank 0 ended with exit code 1", 1
            self.world.end(record.job_id, "failed")
        else:
            lines = [
                self._line(call.function, item) for item in itertools.takewhile(lambda item: item != "hang", call.args)
            ]
            data = "\n".join(lines) if call.per_item else json.dumps([call.function, item])
            self.world.write(record.job_id, data.encode(), stream="result")
            record.start_ms = 1
            is_whole = len(lines) == len(call.args) and "raises" not in call.args
            self.world.end(record.job_id, "finished" if is_whole else "limit" if "hang" in call.args else "failed")

    def _line(self, function: str, item: object) -> str:
        raises = item == "raises"
        return json.dumps([None, "KeyError: 7", "the traceback"] if raises else [[function, item], "", ""])


@pytest.mark.asyncio
async def test_results_come_in_order(world: GridInMemory, grid: Client) -> None:
    """Results are in the order of the items, whatever the order of the ends; all jobs are one array."""
    async with Workers(world):
        results = await grid.map(statistics.fmean, [[number] for number in range(57)], at_once=10, limit="5m", nodes=2)
    assert results == [["statistics:fmean", [number]] for number in range(57)]
    requests = [record.request for record in world.records_by_id.values()]
    assert {(request.nodes, request.limit_ms, request.name) for request in requests} == {(2, 300_000, "fmean")}
    arrays = [request.array for request in requests if request.array is not None]
    assert [array.index for array in arrays] == list(range(57))
    assert len({array.name for array in arrays}) == 1


@pytest.mark.asyncio
async def test_many_items_in_a_job(world: GridInMemory, grid: Client) -> None:
    """With `pack` a job has so many items, the last one the rest; the results are those of the items, in order."""
    async with Workers(world):
        results = await grid.map("m:f", range(23), pack=5, at_once=3)
    assert results == [["m:f", number] for number in range(23)]
    calls = [record.request.program.call for record in world.records_by_id.values()]
    assert [len(call.args) for call in calls if call is not None] == [5, 5, 5, 5, 3]
    arrays = [record.request.array for record in world.records_by_id.values()]
    assert [array.index for array in arrays if array is not None] == [0, 5, 10, 15, 20]


@pytest.mark.asyncio
async def test_an_item_that_raises_loses_no_other(world: GridInMemory, grid: Client) -> None:
    """Its error stands in its place, or is raised after all results before it; the others of its job have theirs."""
    items = [0, "raises", 2, 3, "hang", 5, 6, "raises"]
    async with Workers(world):
        found = await grid.map("m:f", items, pack=3, return_exceptions=True)
        errors = {number: one for number, one in enumerate(found) if isinstance(one, JobFailedError)}
        assert [one[1] for number, one in enumerate(found) if number not in errors] == [0, 2, 3, 6]
        assert {number: error.outcome for number, error in errors.items()} == {
            1: "failed",
            4: "limit",
            5: "limit",
            7: "failed",
        }
        assert str(errors[7]) == "job 3 has failed: item 7: KeyError: 7"
        assert errors[1].stderr_tail == "the traceback"
        results = aiter(grid.map("m:f", items, pack=3))
        assert (await anext(results))[1] == 0
        with pytest.raises(JobFailedError, match="item 1: KeyError: 7"):
            await anext(results)
        one_each = await grid.map("m:f", [0, "bad", 2], return_exceptions=True)
        assert [isinstance(one, JobFailedError) for one in one_each] == [False, True, False]


@pytest.mark.asyncio
async def test_so_many_jobs_are_under_way(world: GridInMemory, grid: Client) -> None:
    """No more jobs than wished are under way, of items without end; who stops reading cancels the rest."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    async with Workers(world) as workers:
        results = aiter(grid.map("m:f", items(), at_once=8))
        assert [(await anext(results))[1] for _ in range(100)] == list(range(100))
        await results.aclose()
    assert workers.most <= 8
    assert len(taken) <= 100 + 4 * 8
    assert len(world.records_by_id) == len(taken)
    assert all(record.state == "ended" for record in world.records_by_id.values())


@pytest.mark.asyncio
async def test_results_that_came_early_wait(world: GridInMemory, grid: Client) -> None:
    """While the first job takes its time so many others are worked on, and no more."""
    async with Workers(world) as workers:
        results = aiter(grid.map("m:f", itertools.chain(["slow"], itertools.count()), at_once=5))
        first = asyncio.ensure_future(anext(results))
        while len(world.records_by_id) < 20 or len(workers.under_way) > 1:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(world.records_by_id) == 20
        world.write(1, b'"at last"', stream="result")
        world.end(1)
        assert await first == "at last"
        await results.aclose()


@pytest.mark.asyncio
async def test_a_job_that_fails(world: GridInMemory, grid: Client) -> None:
    """The error of the first item whose job failed is raised in its place, and what is under way is cancelled."""
    async with Workers(world):
        results = aiter(grid.map("m:f", [0, 1, "bad", "slow", "bad"]))
        assert [(await anext(results))[1] for _ in range(2)] == [0, 1]
        with pytest.raises(JobFailedError, match="job 3 has failed: rank 0 ended with exit code 1") as caught:
            await anext(results)
    assert (caught.value.exit_code, caught.value.stderr_tail) == (1, "ValueError: bad\n")
    assert world.records_by_id[4].outcome == "cancelled"


@pytest.mark.asyncio
async def test_one_that_is_declined_leaves_no_other(
    world: GridInMemory, grid: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one of several jobs is not taken in the others are cancelled, as when one fails."""
    take_in = world._take_in

    def some(key: str, request: JobRequest, site: str | None, origin: str) -> Accepted | Declined:
        return Declined(key, "no more") if len(world.records_by_id) == 3 else take_in(key, request, site, origin)

    monkeypatch.setattr(world, "_take_in", some)
    with pytest.raises(RefusedError, match="job 4 of 10: no more"):
        await grid.map("m:f", range(10), at_once=10)
    assert [record.outcome for record in world.records_by_id.values()] == ["cancelled"] * 3


@pytest.mark.asyncio
async def test_over_a_bad_network(
    gateway: GatewayBehindProxy, world: GridInMemory, flaky: FlakyProxy, naps: Naps
) -> None:
    """However connections fail, each item is worked on once, and the results are right."""
    flaky.rng, flaky.chance, flaky.cut_after = np.random.default_rng(5), 0.3, 4.0
    async with patient(gateway.url, naps, total_s=1e9, connect_s=1e9) as grid, Workers(world):
        assert [pair[1] for pair in await grid.map("m:f", range(40), at_once=7)] == list(range(40))
    assert len(world.records_by_id) == 40
    assert sum(flaky.faults.values()) > 20


@pytest.mark.asyncio
async def test_no_items(grid: Client) -> None:
    """Nothing to do is done at once."""
    assert await grid.map("m:f", []) == []


@pytest.mark.asyncio
async def test_items_that_cannot_be_sent(world: GridInMemory, grid: Client) -> None:
    """An item that JSON has nothing like is named by its place, before its jobs are handed in."""
    with pytest.raises(InputError, match="item 1: cannot be sent"):
        await grid.map("m:f", [1, object()])
    assert world.records_by_id == {}


@pytest.mark.asyncio
async def test_results_are_asked_for_once(world: GridInMemory, grid: Client) -> None:
    """Who asks a second time is told so, and nothing is worked on twice."""
    results = grid.map("m:f", [1])
    async with Workers(world):
        await results
    with pytest.raises(InputError, match="call map again"):
        await results
    with pytest.raises(OptionError, match="at_once: is 0"):
        grid.map("m:f", [1], at_once=0)
    with pytest.raises(OptionError, match="pack: is 0"):
        grid.map("m:f", [1], pack=0)


def test_names_of_functions() -> None:
    """A function of a module has a name, also one in a class; nothing else has."""
    assert callable_name(json.loads) == "json:loads"
    assert callable_name(json.JSONDecoder.decode) == "json.decoder:JSONDecoder.decode"
    assert callable_name("package.module:function") == "package.module:function"

    def inner() -> None:
        """Do nothing."""

    script = type(inner)(inner.__code__, {}, "script")
    script.__module__, script.__qualname__ = "__main__", "script"
    stale = type(inner)(inner.__code__, {}, "loads")
    stale.__module__, stale.__qualname__ = "json", "loads"
    for function, says in (
        (lambda item: item, "a lambda cannot be imported on a machine; move it to a module"),
        (inner, "a function within a function cannot be imported"),
        (script, "script: what a script or notebook defines cannot be imported"),
        (stale, "json:loads is a different object now"),
        (functools.partial(json.loads), "has no name that a machine could import"),
    ):
        with pytest.raises(InputError, match=says):
            callable_name(function)  # type: ignore[arg-type]
