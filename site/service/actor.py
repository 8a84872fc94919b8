"""Actors with a journal, which is opened when it is to be had; and a site as such an actor."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.site.job import JobRequest
from gridweave.site.maxima import NO_MAXIMA, Maxima
from gridweave.site.service.calls import (
    GRID_ACTOR,
    Calls,
    Door,
    LiveActor,
    agent_actor,
    encode,
    endure,
    journal_place,
    site_actor,
)
from gridweave.site.service.clock import HISTORY_DAYS, Clock

if TYPE_CHECKING:
    from gridweave.site.desk_messages import LinkStatus
    from gridweave.site.runs import SiteSettings
    from gridweave.site.service.desk import Desk, SiteDesk
    from gridweave.site.service.link import Link, LinkEnd
    from gridweave.site.service.site_driver import SiteDriver


logger = logging.getLogger("gridweave.live")

SUBMISSIONS: msgspec.msgpack.Decoder[list[tuple[str, JobRequest]]] = msgspec.msgpack.Decoder(
    list[tuple[str, JobRequest]]
)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0

K = TypeVar("K", bound="Desk[Any]")


class DrivenActor(LiveActor, ABC, Generic[K]):
    """An actor around a driver.

    Ray does not restart an actor whose constructor has failed. So the journal is opened afterwards: one that another
    process still holds, or whose server is away, is tried again until it opens.

    Whoever looks an actor up on Ray loads the module of its class. So these modules load their cores and journals in
    `make_desk`: others would spend a second and a hundred megabytes on each.
    """

    def __init__(self, name: str, **own: str) -> None:
        super().__init__(name, **own)
        self._desk: K | None = None
        self._opened = asyncio.Event()
        self._problem: GridweaveError | None = None
        self._tasks = endure(name, self._open())

    @abstractmethod
    def make_desk(self) -> K:
        """Return the desk, with its driver; called in a thread of its own, as it may replay for long."""

    def works(self, desk: K) -> list[Coroutine[Any, Any, Any]]:
        """Return what is to go on as long as the actor lives."""
        return [desk.driver.run()]

    async def _open(self) -> None:
        pause_s = _FIRST_PAUSE_S
        desk: K | None = None
        while desk is None:
            try:
                desk = await asyncio.to_thread(self.make_desk)
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
        self._desk, self._door = desk, Door(desk, desk.methods)
        self._tasks += endure(self._name, *self.works(desk))
        self._opened.set()

    async def desk(self) -> K:
        """Return the desk, once the journal is open, or raise what keeps that from being used."""
        await self._opened.wait()
        if self._desk is None:
            assert self._problem is not None, "neither a desk nor a problem"
            raise self._problem
        return self._desk

    def desk_now(self) -> K:
        """Return the desk, for what may be lost if there is none yet."""
        if self._desk is None:
            raise UnavailableError(f"{self._name} is starting")
        return self._desk

    @property
    def problem(self) -> GridweaveError | None:
        """Why the journal is not open, or why the driver takes no jobs; None if it works."""
        if self._desk is not None and self._desk.driver.problem:
            return UnavailableError(self._desk.driver.problem)
        return self._problem

    async def ready(self) -> str:
        """Return the name of the actor, once it works."""
        await self.desk()
        return self._name

    async def ask(self, method: str, data: bytes) -> bytes:
        """Answer a question at the desk."""
        await self.desk()
        return await self._door.ask(method, data)

    async def ask_all(self, method: str, questions: list[bytes]) -> list[bytes]:
        """Answer questions that share a call, in their order."""
        await self.desk()
        return await self._door.ask_all(method, questions)

    async def submit(self, data: bytes) -> bytes:
        """Take in jobs: keys and requests; return an answer to each when it is durable."""
        return encode(await (await self.desk()).driver.submit(SUBMISSIONS.decode(data)))

    async def records(self, job_ids: list[int]) -> bytes:
        """Return what is known of jobs; an unknown one is left out."""
        return encode(await (await self.desk()).records(job_ids))

    async def check(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        (await self.desk()).core.check_invariants()

    async def stop(self) -> None:
        """Let go of the journal; what runs goes on."""
        for task in self._tasks:
            task.cancel()
        if self._desk is not None:
            with contextlib.suppress(GridweaveError):
                await self._desk.driver.close()


LOOK_S = 5.0
"""So often it is seen which machines answer, and so long they may take for it."""


class SiteActor(DrivenActor["SiteDesk"]):
    """A site as an actor: a thin shell around its `SiteDriver`.

    Its machines are called by ``calls``, and so is the grid, unless there is an ``uplink``.
    """

    def __init__(
        self,
        settings: SiteSettings,
        journal: str,
        clock: Clock,
        uplink: LinkEnd | None = None,
        *,
        calls: Calls,
        password_file: str = "",
        maxima: Maxima = NO_MAXIMA,
        history_days: int = HISTORY_DAYS,
        **own: str,
    ) -> None:
        self._calls = calls
        self._settings, self._journal, self._clock = settings, journal, clock
        self._password_file, self._maxima, self._history_days = password_file, maxima, history_days
        self._uplink_end = uplink
        self._uplink: Link | None = None
        super().__init__(site_actor(settings.name), **own)

    def make_desk(self) -> SiteDesk:
        """Return the desk of the site."""
        from gridweave.site.service.desk import SiteDesk
        from gridweave.site.service.site_driver import SiteDriver

        return SiteDesk(self.make_driver(SiteDriver), uplink=self.uplink_status)

    def make_driver(self, kind: type[SiteDriver]) -> SiteDriver:
        """Return the driver of the site, with its connection to the grid."""
        if self._uplink_end is not None:
            from gridweave.site.service.link import Link

            self._uplink = Link(self._uplink_end)
        place = journal_place(self._journal, self._password_file)
        doors: dict[str, Any] = {"to_grid": self._to_grid, "to_machine": self._to_machine}
        own: dict[str, Any] = {"maxima": self._maxima, "history_days": self._history_days}
        # Ray hands arrays over read-only, and kernels may write into some of these.
        return kind(copy.deepcopy(self._settings), place, self._clock, **doors, **own)

    @property
    def uplink_status(self) -> Callable[[], LinkStatus] | None:
        """What tells how the way to the grid is; None if the grid is beside it."""
        uplink = self._uplink
        return None if uplink is None else lambda: uplink.status

    def works(self, desk: SiteDesk) -> list[Coroutine[Any, Any, Any]]:
        """Return the turns, the orders that are repeated, and the look after the machines."""
        works = [desk.driver.run(), desk.driver.repeat_orders(), self.look_after_machines(desk)]
        return works if self._uplink is None else [*works, self._uplink.beat()]

    async def _to_grid(self, peer: str, data: bytes) -> str | None:
        if self._uplink is not None:
            return await self._uplink.packet(data)
        refusal: str | None = await self._calls.call(GRID_ACTOR, "packet", self._settings.name, data)
        return refusal

    async def _to_machine(self, machine: str, data: bytes) -> None:
        await self._calls.call(agent_actor(self._settings.name, machine), "order", data)

    async def packet(self, data: bytes) -> str | None:
        """Take in a packet from the grid; return why it was dropped, if it was."""
        from gridweave.site.service.site_driver import GRID

        return self.desk_now().driver.packet(GRID, data)

    async def report(self, data: bytes) -> None:
        """Take in what a machine tells; return when it is durable."""
        await self.desk_now().driver.report(data)

    async def look_after_machines(self, desk: SiteDesk) -> None:
        """See again and again which machines answer, so that nobody who asks has to wait for one that does not."""
        machines = [machine.name for machine in self._settings.machines]
        while True:
            answers = await asyncio.gather(*(self._answers(machine) for machine in machines))
            away = {machine for machine, answer in zip(machines, answers, strict=True) if not answer}
            desk.away = away
            await asyncio.sleep(LOOK_S)

    async def _answers(self, machine: str) -> bool:
        try:
            await self._calls.call(agent_actor(self._settings.name, machine), "process", timeout_s=LOOK_S)
        except UnavailableError:
            return False
        return True

    async def stop(self) -> None:
        """Let go of the journal, and of the connections to the grid; what runs goes on."""
        await super().stop()
        if self._uplink is not None:
            await self._uplink.close()
