"""A machine for measurements whose jobs end as soon as they have started."""

from __future__ import annotations

import asyncio

from gridweave.errors import UnavailableError
from gridweave.site.messages import ORDERS, Machine, MachineJoined, RunEnded, RunStarted, StartRun
from gridweave.site.service.calls import Calls, LiveActor, agent_actor, encode, run_forever, site_actor


class InstantMachine(LiveActor):
    """A machine whose jobs end as soon as they have started."""

    def __init__(
        self, site: str, machine: Machine, folder: str, virtual: bool, *_: object, calls: Calls, **own: str
    ) -> None:
        super().__init__(agent_actor(site, machine.name), **own)
        self._calls, self._site, self._machine = calls, site, machine.name
        self._reports: list[object] = [MachineJoined(machine.name, "127.0.0.1")]
        self._news = asyncio.Event()
        self._news.set()
        self._seen: set[tuple[int, int]] = set()
        self._tasks = run_forever(self._name, self._tell())

    async def ready(self) -> str:
        """Return the name of the machine."""
        return self._name

    async def order(self, data: bytes) -> None:
        """Report the start and the end of every job that is ordered."""
        for order in ORDERS.decode(data):
            if isinstance(order, StartRun) and (order.launch.job_id, order.launch.attempt) not in self._seen:
                key = order.launch.job_id, order.launch.attempt
                self._seen.add(key)
                self._reports += [RunStarted(self._machine, *key), RunEnded(self._machine, *key, "finished")]
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
        """Do nothing."""
        for task in self._tasks:
            task.cancel()
