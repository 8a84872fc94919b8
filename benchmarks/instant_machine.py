"""A machine for measurements whose jobs end as soon as they have started."""

from __future__ import annotations

import asyncio
import os

from gridweave.errors import UnavailableError
from gridweave.site.messages import ORDERS, Machine, MachineJoined, RunEnded, RunStarted, StartRun
from gridweave.site.service.calls import HostLines, NearActor, encode, endure, site_actor


class InstantMachine(NearActor):
    """A machine whose jobs end as soon as they have started."""

    near_methods = ("order", "process", "ready", "stop")

    def __init__(self, site: str, machine: Machine, folder: str, virtual: bool, *_: object, calls: HostLines) -> None:
        self._calls, self._site, self._name = calls, site, machine.name
        self._reports: list[object] = [MachineJoined(machine.name, "127.0.0.1")]
        self._news = asyncio.Event()
        self._news.set()
        self._seen: set[tuple[int, int]] = set()
        self._tasks = endure(f"{site}/{machine.name}", self._tell())

    async def ready(self) -> str:
        """Return its name."""
        return self._name

    async def process(self) -> int:
        """Return the number of the process that it is."""
        return os.getpid()

    async def order(self, data: bytes) -> None:
        """Have what is ordered start and end."""
        for order in ORDERS.decode(data):
            if isinstance(order, StartRun) and (order.launch.job_id, order.launch.attempt) not in self._seen:
                key = order.launch.job_id, order.launch.attempt
                self._seen.add(key)
                self._reports += [RunStarted(self._name, *key), RunEnded(self._name, *key, "finished")]
                self._news.set()

    async def _tell(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._reports:
                part = list(self._reports)
                try:
                    await self._calls.call(site_actor(self._site), "report", encode(part))
                except UnavailableError:
                    await asyncio.sleep(0.2)
                    continue
                del self._reports[: len(part)]

    async def stop(self, end_jobs: bool) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
