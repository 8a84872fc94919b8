"""Inject a scenario's faults into the actors of a live run, at the scenario's times."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from gridweave.errors import UnavailableError
from gridweave.scenarios.live.failing import FailingAgent, FailingSite, Unsteady
from gridweave.scenarios.scenario.build import STREAM_FAULTS, Built, rng_of
from gridweave.scenarios.world.connections import Faults, PlannedFault
from gridweave.site.service.calls import agent_actor, site_actor
from gridweave.site.times import span_text

if TYPE_CHECKING:
    from gridweave.grid.service.cluster import Kinds, RunningGrid

_LATE_S = 1.0
"""Add a remark if a site comes back later than planned by more than this time."""

_ANSWER_TIMEOUT_S, _RETRY_S = 2.0, 0.2


def with_planned_faults(built: Built) -> Built:
    """Draw a scenario's random faults in advance, so that the simulation and the live run have the same faults."""
    if not built.faults.any or built.policy.mode == "local":
        return replace(built, faults=Faults())
    until_ms = int(built.workload.submit_ms[-1])
    faults = built.faults.drawn(len(built.site_names), until_ms, rng_of(built.scenario, STREAM_FAULTS))
    return replace(built, faults=Faults(planned=faults))


def fails(built: Built) -> bool:
    """Whether sites, connections or messages fail in a scenario."""
    network = built.network
    unsteady = network.loss or network.duplicate or network.latency_ms or network.jitter_ms
    return built.policy.mode != "local" and bool(unsteady or built.faults.any)


def failing_kinds() -> Kinds:
    """Return the classes of actors that support faults."""
    from gridweave.grid.service.cluster import Kinds

    return Kinds(site=FailingSite, machine=FailingAgent)


class FaultPlayer:
    """Injects the planned faults into a running grid's sites; ``remarks`` lists deviations from the plan."""

    def __init__(self, grid: RunningGrid, built: Built, speed: float) -> None:
        self._grid, self._built, self._speed = grid, built, speed
        self.remarks: list[str] = []
        self._is_over = False  # tells waiting threads to stop

    @property
    def longest_s(self) -> float:
        """Duration of the longest fault in real seconds."""
        return max((fault.lasts_ms for fault in self._built.faults.planned), default=0) / self._speed / 1000

    def make_unsteady(self) -> None:
        """From now on, delay, lose and duplicate messages as the scenario's network does."""
        network, speed = self._built.network, self._speed
        seed = self._built.scenario.header.seed
        for number, name in enumerate(self._built.site_names):
            how = Unsteady(
                latency_s=network.latency_ms / speed / 1000,
                jitter_s=network.jitter_ms / speed / 1000,
                loss=network.loss,
                duplicate=network.duplicate,
                seed=seed * len(self._built.site_names) + number,
            )
            self._grid.call(site_actor(name), "be_unsteady", msgspec.json.encode(how))

    async def run(self, began_ms: int) -> None:
        """Inject all planned faults; ``began_ms`` is the scenario's time 0 as Unix time in ms."""
        try:
            await asyncio.gather(*(self._inject(fault, began_ms) for fault in self._built.faults.planned))
        finally:
            self._is_over = True

    async def _inject(self, fault: PlannedFault, began_ms: int) -> None:
        await asyncio.sleep(max(0.0, (began_ms + fault.at_ms / self._speed) / 1000 - time.time()))
        until_s = time.time() + fault.lasts_ms / self._speed / 1000
        name = self._built.site_names[fault.site]
        actors = [site_actor(name)] if fault.action == "cut" else [agent_actor(name, "m0"), site_actor(name)]
        for actor in actors:
            getattr(self._grid.actors[actor], fault.action).remote(until_s)
        if fault.action == "crash":
            await asyncio.sleep(max(0.0, until_s - time.time()))
            await asyncio.to_thread(self._wait_for, name, until_s)

    def _wait_for(self, site: str, until_s: float) -> None:
        """Wait until a site is back; add a remark if it comes back much later than planned."""
        waiting = [agent_actor(site, "m0"), site_actor(site)]
        while waiting and not self._is_over:
            try:
                self._grid.call(waiting[0], "ready", timeout_s=_ANSWER_TIMEOUT_S)
                del waiting[0]
            except (UnavailableError, TimeoutError):
                time.sleep(_RETRY_S)
        if (late_s := time.time() - until_s) > _LATE_S:
            what = f"site {site} was back {span_text(late_s * 1000)} of real time later than planned"
            self.remarks.append(f"{what}, because its actors start slowly; give a lower --speed")
