"""`SyncClient` is `Client` without awaiting: the same names, the same arguments, the same answers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import threading
from typing import Any

import pytest

from gridweave.errors import InputError, JobFailedError, NotFoundError
from gridweave.grid.client.client import Client, JobHandle
from gridweave.grid.client.sync import SyncClient, SyncJobHandle
from gridweave.site.job import JobRecord
from support.gateway import Elsewhere
from support.machine import PATIENCE_S


def public(kind: type) -> dict[str, Any]:
    """Return the public names of a class, with what they are."""
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("twin", "original", "left_out"), [(SyncClient, Client, {"transport"}), (SyncJobHandle, JobHandle, set())]
)
def test_both_have_the_same_names_and_arguments(twin: type, original: type, left_out: set[str]) -> None:
    """Each public method is in both, with the same parameters and defaults."""
    attributes = {"id", "key", "state"} if original is JobHandle else set()
    assert set(public(twin)) == set(public(original)) - left_out | attributes
    for name, method in public(original).items():
        if name in left_out:
            continue
        own = getattr(twin, name)
        assert inspect.signature(own).parameters == inspect.signature(method).parameters, name
        assert not inspect.iscoroutinefunction(own)
        assert not inspect.isasyncgenfunction(own)
        assert own.__doc__ == method.__doc__, name
        assert own.__doc__
    if original is Client:
        assert inspect.signature(twin).parameters == inspect.signature(original).parameters


def test_a_script(elsewhere: Elsewhere) -> None:
    """A script hands in, lists, explains, changes and reads jobs line by line."""
    world = elsewhere.gateway.grid
    with SyncClient(elsewhere.gateway.url) as grid:
        job = grid.submit(["./solver"], nodes=2, limit="5m", name="solve")
        more = grid.submit_many([job.record().request] * 3)
        assert [record.job_id for record in grid.jobs(name="solve")] == [4, 3, 2, 1]
        assert (job.id, job.state, bool(job.key), repr(job)) == (1, "waiting", True, "<job 1, waiting>")
        assert grid.job(2).explain().split is not None
        assert [more[0].hold(), more[0].release(), more[0].cancel(), more[0].cancel()] == [True, True, True, False]
        assert grid.hold([3, 4]) == grid.release([3, 4]) == grid.cancel([3, 4]) == [3, 4]
        assert grid.history(1).entries[0].kind == job.history().entries[0].kind == "submitted"
        assert grid.explain(1) == job.explain()
        elsewhere.call(world.start, 1)
        elsewhere.call(world.write, 1, b"one\ntwo\n")
        lines = job.logs(follow=True)
        assert next(lines) == "one"
        elsewhere.call(world.end, 1)
        assert [*lines] == ["two"]
        assert job.output() == b"one\ntwo\n"
        assert job.done(timeout_s=PATIENCE_S).outcome == job.check().outcome == grid.record(1).outcome == "finished"
        assert grid.ended(1).state == "ended"
        with contextlib.closing(grid.events(after=0, jobs=[1])) as events:
            assert [next(events).kind for _ in range(3)] == ["submitted", "runs", "ended"]
        assert grid.quote(nodes=2).places == (("north", 2),)
        assert grid.queue().waiting == 0
        assert grid.scheduling().mode == "multi-site"
        assert grid.network().edges["north", "south", 0]["latency_ms"] == grid.known_network().links[0].latency_ms
        grid.give_up("north", "m1")
        grid.drain("north")
        assert [site.draining for site in grid.sites()] == [True, False]
        grid.resume("north")
        assert (grid.whoami().scopes, grid.health().status) == (("operate",), "ok")
        with pytest.raises(NotFoundError):
            grid.record(99)


def test_map(elsewhere: Elsewhere) -> None:
    """Results come in order, one by one, and the error of a job is raised in its place."""
    world = elsewhere.gateway.grid

    def work(record: JobRecord) -> None:
        call = record.request.program.call
        assert call is not None
        if call.args == (3,):
            world.end(record.job_id, "failed")
        else:
            world.write(record.job_id, json.dumps(call.args[0] ** 2).encode(), stream="result")
            world.end(record.job_id)

    world.runs = work
    with SyncClient(elsewhere.gateway.url) as grid:
        results = grid.map("m:square", range(10), at_once=2)
        assert [next(results) for _ in range(3)] == [0, 1, 4]
        with pytest.raises(JobFailedError):
            next(results)
        job = grid.submit_many([world.records_by_id[1].request])[0]
        assert job.result() == 0


def test_a_client_that_is_not_open(elsewhere: Elsewhere) -> None:
    """Before and after `with` the client says what to write; what was begun to be read can be dropped."""
    grid = SyncClient(elsewhere.gateway.url)
    with pytest.raises(InputError, match=r"write: with gridweave\.SyncClient"):
        grid.sites()
    with grid:
        job = grid.submit(["true"])
        lines = job.logs(follow=True)
        elsewhere.call(elsewhere.gateway.grid.write, 1, b"one\n")
        assert next(lines) == "one"
    with pytest.raises(InputError, match="the client was closed"):
        job.record()
    with pytest.raises((InputError, StopIteration)):
        next(lines)
    with pytest.raises(InputError, match="is not open"):
        grid.jobs()


def test_within_a_loop_that_runs(elsewhere: Elsewhere) -> None:
    """In a notebook, where an event loop runs already, it works as well."""

    async def cell() -> int:
        with SyncClient(elsewhere.gateway.url) as grid:
            return len(grid.sites())

    assert asyncio.run(cell()) == 2


def test_files_that_are_wrong_leave_no_thread(elsewhere: Elsewhere) -> None:
    """A client that cannot be opened leaves nothing behind."""
    before = threading.active_count()
    with pytest.raises(InputError, match="there is no such file"), SyncClient("https://localhost", ca="/missing.pem"):
        pass
    assert threading.active_count() == before
