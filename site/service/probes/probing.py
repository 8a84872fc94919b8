"""Measuring the ways from a site to others now and then, for the grid to correct its network by."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from gridweave.errors import OptionError, UnavailableError
from gridweave.site.messages import Probed
from gridweave.site.service.clock import Clock
from gridweave.site.service.probes.prober import Prober

logger = logging.getLogger("gridweave.live")

Address = tuple[str, int]


class ProbePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How often the ways between sites are measured."""

    secret: bytes  # by which the sites of a grid know each other
    every_s: float = 60.0  # between the round trips to each other site
    # Between measurements of bandwidth, which cost more; at most once with every round trip.
    bandwidth_every_s: float = 3_600.0

    def __post_init__(self) -> None:
        for name in ("every_s", "bandwidth_every_s"):
            if not getattr(self, name) > 0:
                raise OptionError(name, f"is {getattr(self, name)}; seconds, above 0")


class Probing:
    """Measures the ways to other sites, one after the other, and tells what was measured.

    A round trip counts for both directions, so it suffices that one of two sites measures it.
    """

    def __init__(
        self,
        site: str,
        peers: Sequence[str],
        plan: ProbePlan,
        prober: Prober,
        *,
        address_of: Callable[[str], Awaitable[Address]],
        tell: Callable[[Probed], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._site, self._peers, self._plan, self._prober = site, tuple(peers), plan, prober
        self._address_of, self._tell, self._clock = address_of, tell, clock
        # After how many rounds the bandwidth to each is to be measured again.
        self._rounds_left: dict[str, int] = {}

    async def run(self) -> None:
        """Measure, without end."""
        while True:
            await self.round()
            await asyncio.sleep(self._plan.every_s)

    async def round(self) -> int:
        """Measure the way to each other site once; return how many could be measured."""
        measured = 0
        for peer in self._peers:
            with_bandwidth = self._rounds_left.get(peer, 0) <= 0
            try:
                await self._tell(await self._probe(peer, with_bandwidth=with_bandwidth))
                measured += 1
                often = max(1, round(self._plan.bandwidth_every_s / self._plan.every_s))
                self._rounds_left[peer] = often if with_bandwidth else self._rounds_left[peer]
                self._rounds_left[peer] -= 1
            except UnavailableError as error:
                # What cannot be measured keeps what is known of it, until that is too old.
                logger.info("the way from %s to %s was not measured: %s", self._site, peer, error)
        return measured

    async def _probe(self, peer: str, *, with_bandwidth: bool) -> Probed:
        host, port = await self._address_of(peer)
        round_trips_ms = await self._prober.round_trips(host, port)
        there_bps = back_bps = 0.0
        if with_bandwidth:
            there_bps = await self._prober.bandwidth(host, port)
            back_bps = await self._prober.bandwidth(host, port, back=True)
        return Probed(self._site, peer, self._clock.now_ms(), round_trips_ms, there_bps, back_bps)
