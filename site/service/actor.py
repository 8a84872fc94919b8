"""The base class of actors with a journal, and the site actor."""

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
from gridweave.site.quotas import NO_QUOTAS, Quotas
from gridweave.site.service.calls import (
    GRID_ACTOR,
    Calls,
    Door,
    LiveActor,
    agent_actor,
    encode,
    journal_place,
    run_forever,
    site_actor,
)
from gridweave.site.service.clock import HISTORY_DAYS, Clock

if TYPE_CHECKING:
    from gridweave.site.query_messages import LinkStatus
    from gridweave.site.run.runs import SiteSettings
    from gridweave.site.service.link import Link, LinkEnd
    from gridweave.site.service.queries import Queries, SiteQueries
    from gridweave.site.service.site_driver import SiteDriver


logger = logging.getLogger("gridweave.live")

SUBMISSIONS: msgspec.msgpack.Decoder[list[tuple[str, JobRequest]]] = msgspec.msgpack.Decoder(
    list[tuple[str, JobRequest]]
)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0

K = TypeVar("K", bound="Queries[Any]")


class DrivenActor(LiveActor, ABC, Generic[K]):
    """Base class of actors that run a driver.

    Ray does not restart an actor whose constructor has failed. The journal is therefore opened after construction,
    and opening is retried while another process holds the journal's lock or the database server is unreachable.

    Any process that looks up an actor in Ray imports the module of the actor's class. Actor modules therefore import
    cores and journals only in `make_queries`, which saves every other process a second and 100 MB.
    """

    def __init__(self, name: str, **own: str) -> None:
        super().__init__(name, **own)
        self._queries: K | None = None
        self._opened = asyncio.Event()
        self._problem: GridweaveError | None = None
        self._tasks = run_forever(name, self._open())

    @abstractmethod
    def make_queries(self) -> K:
        """Create the queries and their driver; called in a separate thread, because a replay may take a long time."""

    def works(self, queries: K) -> list[Coroutine[Any, Any, Any]]:
        """Return the coroutines that run for the actor's lifetime."""
        return [queries.driver.run()]

    async def _open(self) -> None:
        pause_s = _FIRST_PAUSE_S
        queries: K | None = None
        while queries is None:
            try:
                queries = await asyncio.to_thread(self.make_queries)
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
        # The objects loaded so far are permanent, and scanning them in each garbage collection would double the work.
        gc.collect()
        gc.freeze()
        self._queries, self._door = queries, Door(queries, queries.methods)
        self._tasks += run_forever(self._name, *self.works(queries))
        self._opened.set()

    async def queries(self) -> K:
        """Return the queries once the journal is open, or raise the error that prevents it from opening."""
        await self._opened.wait()
        if self._queries is None:
            assert self._problem is not None, "neither queries nor a problem"
            raise self._problem
        return self._queries

    def queries_now(self) -> K:
        """Return the queries; raise UnavailableError if the actor is still starting."""
        if self._queries is None:
            raise UnavailableError(f"{self._name} is starting")
        return self._queries

    @property
    def problem(self) -> GridweaveError | None:
        """Why the journal is not open or the driver accepts no jobs; None if there is no problem."""
        if self._queries is not None and self._queries.driver.problem:
            return UnavailableError(self._queries.driver.problem)
        return self._problem

    async def ready(self) -> str:
        """Wait until the journal is open; return the actor's name."""
        await self.queries()
        return self._name

    async def ask(self, method: str, data: bytes) -> bytes:
        """Call a method of `Queries` with encoded arguments; return its encoded answer."""
        await self.queries()
        return await self._door.ask(method, data)

    async def ask_all(self, method: str, questions: list[bytes]) -> list[bytes]:
        """Call a method once per question; return the answers in the same order."""
        await self.queries()
        return await self._door.ask_all(method, questions)

    async def submit(self, data: bytes) -> bytes:
        """Submit jobs, encoded as (idempotency key, request) pairs; return the answers once they are durable."""
        return encode(await (await self.queries()).driver.submit(SUBMISSIONS.decode(data)))

    async def records(self, job_ids: list[int]) -> bytes:
        """Return the encoded job records; unknown job ids are omitted."""
        return encode(await (await self.queries()).records(job_ids))

    async def check(self) -> None:
        """Raise AssertionError if the core's state is inconsistent."""
        (await self.queries()).core.check_invariants()

    async def stop(self) -> None:
        """Close the journal; running jobs continue."""
        for task in self._tasks:
            task.cancel()
        if self._queries is not None:
            with contextlib.suppress(GridweaveError):
                await self._queries.driver.close()


LOOK_S = 5.0
"""Interval between checks of whether each machine responds, and the time limit for a response [s]."""


class SiteActor(DrivenActor["SiteQueries"]):
    """The site actor, a thin shell around a `SiteDriver`.

    The site reaches its machines through ``calls``, and the grid through ``uplink`` or, without it, ``calls``.
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
        quotas: Quotas = NO_QUOTAS,
        history_days: int = HISTORY_DAYS,
        **own: str,
    ) -> None:
        self._calls = calls
        self._settings, self._journal, self._clock = settings, journal, clock
        self._password_file, self._quotas, self._history_days = password_file, quotas, history_days
        self._uplink_end = uplink
        self._uplink: Link | None = None
        super().__init__(site_actor(settings.name), **own)

    def make_queries(self) -> SiteQueries:
        """Create the site's queries and driver."""
        from gridweave.site.service.queries import SiteQueries
        from gridweave.site.service.site_driver import SiteDriver

        return SiteQueries(self.make_driver(SiteDriver), uplink=self.uplink_status)

    def make_driver(self, kind: type[SiteDriver]) -> SiteDriver:
        """Create the site's driver, and its link to the grid if the grid is elsewhere."""
        if self._uplink_end is not None:
            from gridweave.site.service.link import Link

            self._uplink = Link(self._uplink_end)
        place = journal_place(self._journal, self._password_file)
        doors: dict[str, Any] = {"to_grid": self._to_grid, "to_machine": self._to_machine}
        own: dict[str, Any] = {"quotas": self._quotas, "history_days": self._history_days}
        # Ray passes arrays read-only, but kernels write into some of them.
        return kind(copy.deepcopy(self._settings), place, self._clock, **doors, **own)

    @property
    def uplink_status(self) -> Callable[[], LinkStatus] | None:
        """A function that returns the uplink's status, or None if the grid is in the same Ray cluster."""
        uplink = self._uplink
        return None if uplink is None else lambda: uplink.status

    def works(self, queries: SiteQueries) -> list[Coroutine[Any, Any, Any]]:
        """Return the coroutines that run the driver, resend orders, check the machines, and monitor the uplink."""
        works = [queries.driver.run(), queries.driver.repeat_orders(), self.look_after_machines(queries)]
        return works if self._uplink is None else [*works, self._uplink.beat()]

    async def _to_grid(self, peer: str, data: bytes) -> str | None:
        if self._uplink is not None:
            return await self._uplink.packet(data)
        refusal: str | None = await self._calls.call(GRID_ACTOR, "packet", self._settings.name, data)
        return refusal

    async def _to_machine(self, machine: str, data: bytes) -> None:
        await self._calls.call(agent_actor(self._settings.name, machine), "order", data)

    async def packet(self, data: bytes) -> str | None:
        """Receive a packet from the grid; return why it was dropped, or None."""
        from gridweave.site.service.site_driver import GRID

        return self.queries_now().driver.packet(GRID, data)

    async def report(self, data: bytes) -> None:
        """Apply reports from a machine; return once they are durable."""
        await self.queries_now().driver.report(data)

    async def look_after_machines(self, queries: SiteQueries) -> None:
        """Check periodically which machines respond, so that queries do not wait for the unresponsive ones."""
        machines = [machine.name for machine in self._settings.machines]
        while True:
            answers = await asyncio.gather(*(self._answers(machine) for machine in machines))
            away = {machine for machine, answer in zip(machines, answers, strict=True) if not answer}
            queries.away = away
            await asyncio.sleep(LOOK_S)

    async def _answers(self, machine: str) -> bool:
        try:
            await self._calls.call(agent_actor(self._settings.name, machine), "process", timeout_s=LOOK_S)
        except UnavailableError:
            return False
        return True

    async def stop(self) -> None:
        """Close the journal and the uplink; running jobs continue."""
        await super().stop()
        if self._uplink is not None:
            await self._uplink.close()
