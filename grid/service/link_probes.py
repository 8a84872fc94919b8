"""Probes between sites that are linked over HTTP: the grid orders a probe, and a site runs it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.site.messages import Probed
from gridweave.site.service.calls import GRID_ACTOR, Calls, encode
from gridweave.site.service.clock import Clock
from gridweave.site.service.link import Link
from gridweave.site.service.probe_link import (
    PROBE_METHOD,
    PROBE_S,
    VALID_S,
    LinkProbe,
    LinkProber,
    ProbeOrder,
    probe_key,
)
from gridweave.site.service.prober import ProbePlan, ProbeRounds


class LinkProbing:
    """Orders measurements between all pairs of sites and reports the results to the meta-scheduler.

    Bandwidth is measured between one pair of sites at a time.
    """

    def __init__(self, links: dict[str, Link], calls: Calls, plan: ProbePlan, clock: Clock) -> None:
        self._links, self._calls, self._clock = links, calls, clock
        self._turn = asyncio.Lock()
        names = list(links)
        self.rounds = [self._rounds_of(name, names[place + 1 :], plan) for place, name in enumerate(names[:-1])]

    def _rounds_of(self, origin: str, peers: Sequence[str], plan: ProbePlan) -> ProbeRounds:
        async def measure(target: str, with_bandwidth: bool) -> Probed:
            async with self._turn if with_bandwidth else contextlib.nullcontext():
                return await self._measure(origin, target, with_bandwidth)

        return ProbeRounds(origin, peers, plan, measure, self._report)

    async def _measure(self, origin: str, target: str, with_bandwidth: bool) -> Probed:
        other, until_s = self._links[target], int(time.time()) + VALID_S
        order = ProbeOrder(
            target=target,
            url=other.end.url,
            until_s=until_s,
            key=probe_key(other.secret(), origin, target, until_s),
            ca=_certificates(other.end.ca),
            with_bandwidth=with_bandwidth,
        )
        data = await self._links[origin].ask("", PROBE_METHOD, encode(order), PROBE_S)
        try:
            probe = msgspec.msgpack.decode(data, type=LinkProbe)
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"{origin} answers a probe with invalid data: {error}") from None
        if probe.problem:
            raise UnavailableError(f"{origin}: {probe.problem}")
        return Probed(origin, target, self._clock.now_ms(), probe.round_trips_ms, probe.there_bps, probe.back_bps)

    async def _report(self, probe: Probed) -> None:
        await self._calls.call(GRID_ACTOR, "probed", encode(probe))


def _certificates(path: str | None) -> str:
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise UnavailableError(f"{path}: cannot be read: {error}") from None


async def make_probe(site: str, data: bytes, turn: asyncio.Lock) -> bytes:
    """Run a probe from this site that the grid has ordered; raise InputError if `data` is not a valid order.

    If this site cannot reach the other site, return the reason as an answer. Raised as an error, it would count as a
    fault of the link between this site and the grid, although that link has just carried the order.
    """
    try:
        order = msgspec.msgpack.decode(data, type=ProbeOrder)
    except msgspec.MsgspecError as error:
        raise InputError(f"this is not a valid order to measure: {error}") from None
    try:
        probe = await LinkProber(site, order, turn=turn).run()
    except UnavailableError as error:
        probe = LinkProbe(round_trips_ms=(), problem=str(error))
    return encode(probe)
