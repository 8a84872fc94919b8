"""Measure the gateway: durable acknowledgement, single submissions, and watchers.

    python benchmarks/gateway.py            # with a grid on Ray, whose machines end jobs at once
    python benchmarks/gateway.py --fake     # the gateway alone, with a grid in memory
    python benchmarks/gateway.py --flood    # only the client with 100 submissions in flight, on the grid of `up`

The gateway runs in a process of its own, as with `gridweave gateway`; the clients are in this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from gridweave.grid.api import JobEvent, NewJob, Queue, SubmitJobs, Submitted
from gridweave.grid.client.client import Client
from gridweave.site.job import JobRequest, Program
from gridweave.site.lifecycle import OPEN
from gridweave.site.service.calls import NAMESPACE

ROOT = Path(__file__).parent.parent
BATCH, BATCHES, CLIENTS = 500, 40, 2
SINGLES, SINGLE_RATE, WINDOWS = 500, 50.0, 5
IN_FLIGHT, FLOOD = 100, 3_000
WATCHERS, WATCHED = 200, 50
ROOMY = {"max_streams": 5_000, "max_connections_per_address": 3_900}
HEADERS = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}


# -- the gateway, in its own process ----------------------------------------------------------------------------------


def serve_gateway(address: str, namespace: str, parent: Connection) -> None:
    """Send the URL of a gateway, and serve until the other end sends anything."""
    from gridweave.grid.config.gateway import GatewaySettings
    from gridweave.grid.gateway.server import Gateway

    async def serve() -> None:
        if address:
            import ray

            from gridweave.grid.service.backend import RayBackend

            ray.init(address=address, namespace=namespace, log_to_driver=False)
            backend = RayBackend(namespace)
        else:
            sys.path.insert(0, str(ROOT / "tests"))
            from support.gateway import FakeBackend

            backend = FakeBackend()
        gateway = Gateway(backend, GatewaySettings(port=0, max_open_jobs=10**7, **ROOMY))
        await gateway.start()
        parent.send(gateway.url)
        await asyncio.to_thread(parent.recv)
        await gateway.stop()

    asyncio.run(serve())


@contextlib.contextmanager
def gateway_process(address: str, namespace: str = NAMESPACE) -> Iterator[str]:
    """Yield the URL of a gateway for the grid at an address; with no address, for a grid in memory."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=serve_gateway, args=(address, namespace, theirs))
    process.start()
    try:
        yield ours.recv()
        ours.send("end")
        process.join(30)
    finally:
        process.kill()


@contextlib.contextmanager
def served(is_fake: bool) -> Iterator[str]:
    """Yield the URL of a gateway with a grid behind it, both started for this context."""
    if is_fake:
        with gateway_process("") as url:
            yield url
        return
    import ray
    from instant_machine import InstantMachine
    from live import grid_of

    with grid_of(3, 64, InstantMachine), gateway_process(ray.get_runtime_context().gcs_address) as url:
        yield url


# -- clients ----------------------------------------------------------------------------------------------------------


def batch_of(count: int) -> bytes:
    """Return the body of a request that submits `count` jobs."""
    request = JobRequest(program=Program(argv=("true",)), limit_ms=60_000, user="benchmark")
    return msgspec.msgpack.encode(SubmitJobs(jobs=[NewJob(request=request)] * count))


async def submit_batch(session: aiohttp.ClientSession, url: str, body: bytes) -> Submitted:
    """Submit jobs; all must be accepted."""
    async with session.post(f"{url}/v1/jobs", data=body, headers=HEADERS) as response:
        data = await response.read()
        assert response.status == 200, data
    answers = msgspec.msgpack.decode(data, type=Submitted)
    assert all(answer.job_id is not None for answer in answers.answers), answers.answers[0].reason
    return answers


async def batches(session: aiohttp.ClientSession, url: str) -> float:
    """Return the rate at which jobs are acknowledged in batches [jobs/s]."""
    body = batch_of(BATCH)
    await submit_batch(session, url, body)
    left = iter(range(BATCHES))

    async def client() -> None:
        for _ in left:
            await submit_batch(session, url, body)

    begin_s = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return BATCH * BATCHES / (time.perf_counter() - begin_s)


async def singles(session: aiohttp.ClientSession, url: str) -> np.ndarray:
    """Return the times of single submissions at a steady rate [s], each counted from when it was due."""
    body = batch_of(1)
    begin_s = time.perf_counter() + 0.1

    async def one(number: int) -> float:
        due_s = begin_s + number / SINGLE_RATE
        await asyncio.sleep(due_s - time.perf_counter())
        await submit_batch(session, url, body)
        return time.perf_counter() - due_s

    return np.array(await asyncio.gather(*(one(number) for number in range(SINGLES))))


async def flood(grid: Client) -> tuple[float, np.ndarray]:
    """Return the rate of a client with `IN_FLIGHT` open submissions [jobs/s], and the time of each."""
    request = JobRequest(program=Program(argv=("true",)), limit_ms=60_000)
    left = iter(range(FLOOD))
    taken_s: list[float] = []

    async def worker() -> None:
        for _ in left:
            began_s = time.perf_counter()
            await grid.submit(request)
            taken_s.append(time.perf_counter() - began_s)

    begin_s = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return FLOOD / (time.perf_counter() - begin_s), np.array(taken_s)


def add_flood(table: Table, rate: float, taken_s: np.ndarray) -> None:
    """Add the results with many submissions in flight."""
    table.add_row(f"single submissions, {IN_FLIGHT} in flight", f"{rate:,.0f} jobs/s", "")
    for quantile in (50, 99, 100):
        table.add_row(f"... each, {quantile}%", f"{1000 * np.percentile(taken_s, quantile):.0f} ms", "")


async def flood_drained() -> tuple[float, np.ndarray]:
    """Return the results of `flood` on the grid of `gridweave up`; the sites are drained, and no job remains."""
    async with Client() as grid:
        names = [site.name for site in await grid.sites()]
        for name in names:
            await grid.drain(name)
        try:
            return await flood(grid)
        finally:
            await grid.cancel([record.job_id async for record in grid.jobs(state=OPEN)])
            for name in names:
                await grid.resume(name)


async def add_singles(session: aiohttp.ClientSession, url: str, table: Table, what: str, *, target: str = "") -> None:
    """Add the times of single submissions: the median over several windows, and the smallest and the largest."""
    await singles(session, url)  # not measured: the first run loads modules
    windows_ms = [1000 * await singles(session, url) for _ in range(WINDOWS)]
    for quantile in (50, 99):
        values_ms = np.percentile(windows_ms, quantile, axis=1)
        figure = f"{np.median(values_ms):.1f} ms ({values_ms.min():.1f} to {values_ms.max():.1f})"
        table.add_row(
            f"single submission at {SINGLE_RATE:.0f}/s, {what}, {quantile}%", figure, target if quantile == 99 else ""
        )


@contextlib.asynccontextmanager
async def drained(url: str) -> AsyncIterator[None]:
    """In this context, keep all sites drained, so that jobs wait as on a full grid."""
    async with Client(url) as grid:
        names = [site.name for site in await grid.sites()]
        for name in names:
            await grid.drain(name)
        yield
        for name in names:
            await grid.resume(name)


@contextlib.asynccontextmanager
async def watching(url: str, seen: list[float], watchers: int, what: str = "kind=submitted") -> AsyncIterator[None]:
    """In this context, run watchers; each records the time from the submission of a job to its event."""
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        tasks = []
        for _ in range(watchers):
            response = await stack.enter_async_context(session.get(f"{url}/v1/events?{what}"))
            await response.content.readline()
            tasks.append(asyncio.create_task(_hear(response, seen)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _hear(response: aiohttp.ClientResponse, seen: list[float]) -> None:
    async for line in response.content:
        if line.startswith(b"data: "):
            heard_s = time.time()
            event = msgspec.json.decode(line[6:], type=JobEvent)
            seen.append(heard_s - float(event.name))


async def watched(session: aiohttp.ClientSession, url: str) -> np.ndarray:
    """Return the time from each submission (not its acknowledgement) until each watcher sees the job [s]."""
    seen: list[float] = []
    async with watching(url, seen, WATCHERS):
        for number in range(WATCHED):
            job = JobRequest(program=Program(argv=("true",)), limit_ms=60_000, name=repr(time.time()), user="benchmark")
            await submit_batch(session, url, msgspec.msgpack.encode(SubmitJobs(jobs=[NewJob(request=job)])))
            until_s = time.perf_counter() + 10
            while len(seen) < WATCHERS * (number + 1) and time.perf_counter() < until_s:
                await asyncio.sleep(0.01)
    assert len(seen) == WATCHERS * WATCHED, f"{len(seen)} of {WATCHERS * WATCHED} events were seen"
    return np.array(seen)


async def settle(session: aiohttp.ClientSession, url: str) -> None:
    """Wait until the grid has nothing to do, or makes no more progress (the one in memory)."""
    before = None
    while True:
        async with session.get(f"{url}/v1/queue?limit=0", headers=HEADERS) as response:
            queue = msgspec.msgpack.decode(await response.read(), type=Queue)
        if queue == before or not queue.waiting + queue.starting + queue.running:
            return
        before = queue
        await asyncio.sleep(2)


async def measure(url: str, table: Table) -> None:
    """Run all measurements, and add them to a table."""
    async with aiohttp.ClientSession() as session:
        rate = await batches(session, url)
        table.add_row(f"acknowledged, in batches of {BATCH} over MessagePack", f"{rate:,.0f} jobs/s", "5,000")
    async with aiohttp.ClientSession() as session:
        await settle(session, url)
        await add_singles(session, url, table, "all start and end at once")
    async with Client(url) as grid:
        add_flood(table, *await flood(grid))
    async with aiohttp.ClientSession() as session:
        await settle(session, url)
        async with drained(url):
            await add_singles(session, url, table, "all wait", target="20 ms")
    async with aiohttp.ClientSession() as session:
        await settle(session, url)
        seen_ms = 1000 * await watched(session, url)
        for quantile, target in ((50, ""), (99, ""), (100, "200 ms")):
            value = np.percentile(seen_ms, quantile)
            table.add_row(f"{WATCHERS} watchers are notified of a job, {quantile}%", f"{value:.1f} ms", target)


def main(arguments: list[str]) -> None:
    """Run the measurements, and print the table."""
    is_fake = "--fake" in arguments
    what = "before a grid in memory" if is_fake else "before a grid on Ray, 3 sites of 64 nodes"
    table = Table("what", "figure", "target", title=f"The gateway {what}, {os.cpu_count()} cores")
    if "--flood" in arguments:
        table.title = "The gateway of the grid that runs here, its sites drained"
        add_flood(table, *asyncio.run(flood_drained()))
    else:
        with served(is_fake) as url:
            asyncio.run(measure(url, table))
    Console().print(table)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(sys.argv[1:])
