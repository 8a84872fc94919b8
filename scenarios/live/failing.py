"""Actors for live runs with faults: sites that crash, and connections that are cut or lose messages."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gridweave.errors import UnavailableError
from gridweave.site.service.actor import SiteActor
from gridweave.site.service.agent_actor import AgentActor

if TYPE_CHECKING:
    from gridweave.site.service.queries import SiteQueries


class Unsteady(msgspec.Struct, frozen=True, kw_only=True):
    """Delays and faults of the packets between a site and the grid, in real time.

    See `gridweave.scenarios.world.connections.Network` for the fields.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    seed: int = 0


class Downtime:
    """The time until which a site stays down, kept in a file for the actors that Ray restarts."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "down-until"

    def crash(self, until_s: float) -> None:
        """Kill this process at once; Ray restarts its actor, which waits until ``until_s`` (Unix time)."""
        self._file.write_text(str(until_s), encoding="ascii")
        os.kill(os.getpid(), signal.SIGKILL)

    def wait(self) -> None:
        """Wait until the crash is over."""
        if self._file.exists():
            time.sleep(max(0.0, float(self._file.read_text(encoding="ascii")) - time.time()))


class FailingAgent(AgentActor):
    """The agent of a machine that can crash."""

    def __init__(self, site: str, machine: Any, folder: str, *arguments: Any, **own: Any) -> None:
        self._outage = Downtime(Path(folder))
        super().__init__(site, machine, folder, *arguments, **own)

    async def _run(self) -> None:
        await asyncio.to_thread(self._outage.wait)
        await super()._run()

    async def crash(self, until_s: float) -> None:
        """Kill the processes of all jobs, then this process."""
        runner = self._driver.runner
        states = (runner.state(*key) for key in runner.task_keys())
        for pid in [state.shim_pid for state in states if state is not None and state.outcome is None]:
            os.kill(pid, signal.SIGKILL)  # the kernel then kills the job's ranks
        self._outage.crash(until_s)


class FailingSite(SiteActor):
    """A site that can crash, or be cut off from the grid."""

    def __init__(self, settings: Any, journal: str, *arguments: Any, **own: Any) -> None:
        folder = Path(journal).parent
        self._outage, self._unsteady_file = Downtime(folder), folder / "unsteady.json"
        self._cut_until_s = 0.0
        self._unsteady, self._random = Unsteady(), random.Random(settings.name)
        if self._unsteady_file.exists():
            self._unsteady = msgspec.json.decode(self._unsteady_file.read_bytes(), type=Unsteady)
        super().__init__(settings, journal, *arguments, **own)

    def make_queries(self) -> SiteQueries:
        """Return the site's `SiteQueries` after waiting until the crash is over."""
        self._outage.wait()
        return super().make_queries()

    async def crash(self, until_s: float) -> None:
        """Kill this process."""
        self._outage.crash(until_s)

    async def cut(self, until_s: float) -> None:
        """Drop all packets until ``until_s`` (Unix time)."""
        self._cut_until_s = until_s

    async def be_unsteady(self, how: bytes) -> None:
        """Apply an `Unsteady`, encoded as JSON, to all packets from now on, even after a restart of this actor."""
        self._unsteady = msgspec.json.decode(how, type=Unsteady)
        self._random = random.Random(self._unsteady.seed)
        self._unsteady_file.write_bytes(how)

    async def _to_grid(self, peer: str, data: bytes) -> str | None:
        send = super()._to_grid
        return await self._carried(lambda: send(peer, data))

    async def packet(self, data: bytes) -> str | None:
        """Receive a packet from the grid, unless a fault drops it."""
        take = super().packet
        return await self._carried(lambda: take(data))

    async def _carried(self, carry: Callable[[], Awaitable[str | None]]) -> str | None:
        """Deliver a packet, possibly late or twice; if it is lost, raise UnavailableError so the sender resends it."""
        how, rng = self._unsteady, self._random
        if time.time() < self._cut_until_s or rng.random() < how.loss:
            raise UnavailableError("the packet was lost")
        if how.latency_s or how.jitter_s:
            await asyncio.sleep(how.latency_s + how.jitter_s * rng.random())
        if rng.random() < how.duplicate:
            await carry()
        return await carry()
