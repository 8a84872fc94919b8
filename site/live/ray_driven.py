"""What the actors with a journal have in common: they open it when it is to be had, and are driven from then on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.site.live.door import Door
from gridweave.site.live.handles import NearActor
from gridweave.site.live.ray_names import encode, endure
from gridweave.site.program import JobRequest

if TYPE_CHECKING:
    from gridweave.site.live.driver import Driver

logger = logging.getLogger("gridweave.live")

SUBMISSIONS: msgspec.msgpack.Decoder[list[tuple[str, JobRequest]]] = msgspec.msgpack.Decoder(
    list[tuple[str, JobRequest]]
)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0

D = TypeVar("D", bound="Driver[Any]")


class DrivenActor(NearActor, ABC, Generic[D]):
    """An actor around a driver.

    Parameters
    ----------
    name : str
        Of the actor.

    Notes
    -----
    Ray does not start an actor anew whose constructor has failed. So the journal is opened behind it: one that another
    process still has, or whose server is away, is tried again until it is to be had.

    Whoever looks up an actor on Ray loads the module of its class. So these modules load their cores and journals in
    `make_driver`: a machine, or a gateway, would spend a second and a hundred megabytes on each.
    """

    near_methods = ("ask", "submit", "packet", "report", "probed", "process")

    def __init__(self, name: str) -> None:
        self._name = name
        self._driver: D | None = None
        # Of its desk; whoever makes the driver makes it as well.
        self.door: Door | None = None
        self._opened = asyncio.Event()
        self._problem: GridweaveError | None = None
        self._tasks = endure(name, self._open())

    @abstractmethod
    def make_driver(self) -> D:
        """Return the driver; called in a thread of its own, as it may replay for long."""

    def works(self, driver: D) -> list[Coroutine[Any, Any, Any]]:
        """Return what is to go on as long as the actor lives."""
        return [driver.run()]

    async def _open(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while self._driver is None:
            try:
                self._driver = await asyncio.to_thread(self.make_driver)
            except UnavailableError as error:
                logger.warning("%s: %s; trying again", self._name, error)
                self._problem = error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            except GridweaveError as error:
                logger.error("%s: %s", self._name, error)
                self._problem = error
                self._opened.set()
                return
        self._problem = None
        # What was loaded until here stays: to look through it for garbage again and again would be half of the work.
        gc.collect()
        gc.freeze()
        self._tasks += endure(self._name, *self.works(self._driver))
        self._opened.set()

    async def driver(self) -> D:
        """Return the driver, once its journal is open.

        Raises
        ------
        GridweaveError
            If the journal cannot be used.
        """
        await self._opened.wait()
        if self._driver is None:
            assert self._problem is not None, "neither a driver nor a problem"
            raise self._problem
        return self._driver

    def driver_now(self) -> D:
        """Return the driver, for what may be lost.

        Raises
        ------
        UnavailableError
            If there is none yet.
        """
        if self._driver is None:
            raise UnavailableError(f"{self._name} is starting")
        return self._driver

    @property
    def problem(self) -> GridweaveError | None:
        """What keeps the journal from being open; None: nothing is known to."""
        return self._problem

    async def process(self) -> int:
        """Return the number of the process that it is."""
        return os.getpid()

    async def ready(self) -> str:
        """Return the name of the actor, once it works."""
        await self.driver()
        return self._name

    async def ask(self, method: str, data: bytes) -> bytes:
        """Answer what the gateway asks at the desk."""
        await self.driver()
        assert self.door is not None, "a driver without a desk"
        return await self.door.ask(method, data)

    async def submit(self, data: bytes) -> bytes:
        """Take in jobs: keys and requests; return an answer to each when it is durable."""
        return encode(await (await self.driver()).submit(SUBMISSIONS.decode(data)))

    async def stop(self) -> None:
        """Let go of the journal; what runs goes on."""
        await self.stop_near()
        for task in self._tasks:
            task.cancel()
        if self._driver is not None:
            with contextlib.suppress(GridweaveError):
                await self._driver.close()
