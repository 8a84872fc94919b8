"""What people give the client in Python: everyday types are accepted, and anything else names the argument."""

from __future__ import annotations

import asyncio
import datetime
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridweave.errors import InputError, OptionError
from gridweave.grid.client.client import Client
from gridweave.grid.client.configuration import Connection
from gridweave.site.job import After, JobForm, JobRequest, Program
from gridweave.site.launch import Call, json_problem
from support.gateway import GatewayBehindProxy
from support.machine import PATIENCE_S

pytestmark = pytest.mark.asyncio

PLAIN = JobRequest(program=Program(argv=("true",)), nodes=1, limit_ms=3_600_000)


def address_free(value: object) -> str:
    """Return the text of a value without its address in memory, so that all workers give a test one name."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@pytest.mark.parametrize(
    ("given", "nodes", "program"),
    [
        ({"nodes": "2"}, 2, {}),
        ({"nodes": np.int64(2)}, 2, {}),
        ({"working_directory": Path("/data")}, 1, {"working_directory": "/data"}),
        ({"what": [Path("/bin/true"), "x"]}, 1, {"argv": ("/bin/true", "x")}),
        ({"what": (text for text in ["true", "x"])}, 1, {"argv": ("true", "x")}),
        (
            {"environment": {"A": 4, "B": 1.5, "C": Path("/x"), "D": np.float32(0.5), "E": "e"}},
            1,
            {"environment": {"A": "4", "B": "1.5", "C": "/x", "D": "0.5", "E": "e"}},
        ),
        ({"forms": JobForm(width=4)}, 4, {}),
    ],
    ids=address_free,
)
async def test_everyday_types_are_accepted(grid: Client, given: Any, nodes: int, program: dict[str, Any]) -> None:
    """Numbers of numpy, paths, numbers as variables, and one where several may be given."""
    request = (await (await grid.submit(**({"what": ["true"]} | given))).record()).request
    assert request.nodes == nodes
    assert request.program == Program(**({"argv": ("true",)} | program))


async def test_numbers_of_numpy_stand_in_every_field(grid: Client) -> None:
    """Also in a whole request, and in the arguments of a callable."""
    job = await grid.submit(["true"], priority=np.float32(2.5), hold=np.bool_(True), after=np.array([1, 2]))  # type: ignore[arg-type]
    request = (await job.record()).request
    assert (request.priority, request.hold) == (2.5, True)
    assert request.after == (After(job_id=1), After(job_id=2))
    whole = JobRequest(program=Program(call=Call("m:f", (np.int64(3),))), limit_ms=np.int64(1000))  # type: ignore[arg-type]
    kept = (await (await grid.submit(whole)).record()).request
    assert (kept.limit_ms, kept.program.call) == (1000, Call("m:f", (3,)))


async def test_a_job_is_named_by_its_number_or_its_handle(grid: Client) -> None:
    """One or several, wherever jobs are named."""
    first = await grid.submit(["true"])
    for after in (1, "1", np.int64(1), first, [first], After(job_id=1)):
        later = await grid.submit(["true"], after=after)  # type: ignore[arg-type]
        assert (await later.record()).request.after == (After(job_id=1),)
    for job in (1, first, np.int64(1), await first.record()):
        assert (await grid.record(job)).job_id == 1  # type: ignore[arg-type]
        assert (await grid.explain(job)).job_id == 1  # type: ignore[arg-type]
        assert grid.job(job).id == 1  # type: ignore[arg-type]
    assert await grid.hold(1) == [1]
    assert await grid.release([first]) == [1]
    assert await grid.cancel(first) == [1]
    assert await grid.cancel(np.array([2, 3])) == [2, 3]


async def test_a_signal_may_be_one_of_python(gateway: GatewayBehindProxy, grid: Client) -> None:
    """It is sent by its name."""
    for given in (signal.SIGUSR1, "USR1", "usr1"):
        await grid.signal(1, given)  # type: ignore[arg-type]
    assert [body["signal"] for body in gateway.heard("/v1/jobs/signal")] == ["USR1"] * 3


async def test_one_filter_may_stand_alone(gateway: GatewayBehindProxy, grid: Client) -> None:
    """A single state is not taken for its letters."""
    assert [one async for one in grid.jobs(state="running", limit=np.int64(3))] == []  # type: ignore[arg-type]
    assert gateway.heard("/v1/jobs") == ["state=running&limit=3"]


Ask = Callable[[Client], Awaitable[Any]]


async def _listed(found: Any) -> list[Any]:
    return [one async for one in found]


WRONG: list[tuple[str, Ask]] = [
    ("nodes", lambda grid: grid.submit(["true"], nodes="two")),  # type: ignore[arg-type]
    ("nodes", lambda grid: grid.submit(["true"], nodes=2.5)),  # type: ignore[arg-type]
    ("nodes", lambda grid: grid.submit(["true"], nodes=None)),  # type: ignore[arg-type]
    ("nodes", lambda grid: grid.quote(["true"], nodes=True)),
    ("environment", lambda grid: grid.submit(["true"], environment=["A=1"])),  # type: ignore[arg-type]
    (r"environment\['A'\]", lambda grid: grid.submit(["true"], environment={"A": None})),
    ("working_directory", lambda grid: grid.submit(["true"], working_directory=3)),  # type: ignore[arg-type]
    ("after", lambda grid: grid.submit(["true"], after=object())),  # type: ignore[arg-type]
    ("limit", lambda grid: grid.submit(["true"], limit=None)),  # type: ignore[arg-type]
    ("name", lambda grid: grid.submit(["true"], name=3)),  # type: ignore[arg-type]
    ("priority", lambda grid: grid.submit(["true"], priority="high")),  # type: ignore[arg-type]
    ("hold", lambda grid: grid.submit(["true"], hold="yes")),  # type: ignore[arg-type]
    ("ranks", lambda grid: grid.submit(["true"], ranks="all")),  # type: ignore[arg-type]
    ("array", lambda grid: grid.submit(["true"], array=3)),  # type: ignore[arg-type]
    ("forms", lambda grid: grid.submit(["true"], forms=[2])),  # type: ignore[list-item]
    ("site", lambda grid: grid.submit(["true"], site=3)),  # type: ignore[arg-type]
    ("requests", lambda grid: grid.submit_many([["true"]])),  # type: ignore[list-item]
    ("job_ids", lambda grid: grid.cancel([1.0])),  # type: ignore[list-item]
    ("job_ids", lambda grid: grid.hold(None)),  # type: ignore[arg-type]
    ("job_id", lambda grid: grid.record("seven")),  # type: ignore[arg-type]
    ("timeout_s", lambda grid: grid.job(1).done(datetime.timedelta(seconds=1))),  # type: ignore[arg-type]
    ("limit", lambda grid: grid.queue(None)),  # type: ignore[arg-type]
    ("limit", lambda grid: _listed(grid.jobs(limit="many"))),  # type: ignore[arg-type]
    ("state", lambda grid: _listed(grid.jobs(state=3))),  # type: ignore[arg-type]
    ("site", lambda grid: grid.drain(None)),  # type: ignore[arg-type]
    ("hours", lambda grid: grid.short_token(hours="3")),  # type: ignore[arg-type]
    ("scopes", lambda grid: grid.short_token(3)),  # type: ignore[arg-type]
    ("pack", lambda grid: _listed(grid.map("m:f", [1], pack=None))),  # type: ignore[arg-type]
    ("at_once", lambda grid: _listed(grid.map("m:f", [1], at_once="x"))),  # type: ignore[arg-type]
    ("items", lambda grid: _listed(grid.map("m:f", 3))),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("name", "ask"), WRONG)
async def test_a_value_of_no_use_names_its_argument(
    gateway: GatewayBehindProxy, grid: Client, name: str, ask: Ask
) -> None:
    """In one line, before anything goes over the network."""
    with pytest.raises(OptionError, match=rf"^{name}: ") as caught:
        async with asyncio.timeout(PATIENCE_S):
            await ask(grid)
    assert "\n" not in str(caught.value)
    assert gateway.proxy.heard == []


@pytest.mark.parametrize("given", [{"url": 3}, {"token": 3, "url": "http://127.0.0.1:1"}, {"profile": 3}, {"grid": 3}])
async def test_a_client_names_the_argument_too(given: dict[str, Any]) -> None:
    """What is no text is refused when the client is made."""
    with pytest.raises(OptionError, match=rf"^{next(iter(given))}: 3 is not text"):
        Client(**given)


@pytest.mark.parametrize(
    "item", [{1: 2}, {3}, [{"a": {1}}], b"bytes", Path("x"), float("nan"), np.array([1]), object()], ids=address_free
)
async def test_an_item_that_would_come_as_another_is_refused(
    gateway: GatewayBehindProxy, grid: Client, item: Any
) -> None:
    """A function would get ``{"1": 2}`` for ``{1: 2}``, and a list for a set."""
    with pytest.raises(InputError, match="item 0: cannot be sent as it is: it holds"):
        await grid.map("m:f", [item])
    with pytest.raises(InputError, match="the arguments of the callable hold"):
        await grid.submit(Call("m:f", (item,)))
    assert gateway.proxy.heard == []


async def test_numbers_of_numpy_are_items() -> None:
    """They are sent as the numbers that they equal."""
    assert json_problem([np.int64(3), np.float32(0.5), (1, {"a": np.bool_(True)})]) is None


@pytest.mark.parametrize("shares", [True, False])
async def test_jobs_work_in_the_folder_here_where_the_machines_know_it(
    gateway: GatewayBehindProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    """As with the command: a module beside a script is found. Elsewhere a folder is only used if it is named."""
    monkeypatch.chdir(tmp_path)
    there = str(tmp_path) if shares else None
    async with Client(connection=Connection(url=gateway.url, shares_folders=shares)) as grid:
        asked = [await grid.submit(["true"]), await grid.submit(Call("work:f")), await grid.submit(PLAIN)]
        asked.append(await grid.submit(["true"], working_directory="/data"))
        found = [(await job.record()).request.program.working_directory for job in asked]
        assert found == [there, there, None, "/data"]
        mapped = asyncio.ensure_future(grid.map("work:f", [1]))
        while len(gateway.grid.records_by_id) < 5:
            await asyncio.sleep(0)
        mapped.cancel()
        await asyncio.gather(mapped, return_exceptions=True)
    (*_, last) = gateway.grid.records_by_id.values()
    assert last.request.program.working_directory == there
