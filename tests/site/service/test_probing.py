"""Measuring the ways from a site to others now and then."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gridweave.errors import OptionError, UnavailableError
from gridweave.site.messages import Probed
from gridweave.site.service.clock import Clock
from gridweave.site.service.probe_server import ProbeServer
from gridweave.site.service.prober import Address, ProbePlan, Prober, Probing

SECRET = b"the same everywhere"


class Ways:
    """Sites that answer probes, or do not; and what was told of the ways to them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.away: set[str] = set()
        self.apply: list[Probed] = []

    async def address_of(self, peer: str) -> Address:
        """Return where a site answers, unless it is away."""
        if peer in self.away:
            raise UnavailableError(f"{peer} is away")
        return "127.0.0.1", self.port

    async def tell(self, probed: Probed) -> None:
        """Keep what was measured."""
        self.apply.append(probed)

    def probing(self, **plan: float) -> Probing:
        """Return what measures them from the north."""
        return Probing(
            "north",
            ("east", "south"),
            ProbePlan(secret=SECRET, **plan),
            Prober(SECRET),
            address_of=self.address_of,
            report=self.tell,
            clock=Clock(),
        )


async def rounds(away: list[set[str]], **plan: float) -> tuple[list[int], list[Probed]]:
    """Return how many ways each round has measured, and what was told."""
    async with ProbeServer(SECRET) as server:
        ways = Ways(await server.start())
        probing = ways.probing(**plan)
        counts = []
        for gone in away:
            ways.away = gone
            counts.append(await probing.round())
        return counts, ways.apply


def test_every_round_measures_round_trips_and_some_measure_bandwidth() -> None:
    """Round trips are measured in every round, bandwidth in the first and then as seldom as the plan says."""
    counts, told = asyncio.run(rounds([set()] * 4, every_s=10.0, bandwidth_every_s=30.0))
    assert counts == [2, 2, 2, 2]
    assert [(probe.target, probe.there_bps > 0, probe.back_bps > 0) for probe in told[::2]] == [
        ("east", True, True),
        ("east", False, False),
        ("east", False, False),
        ("east", True, True),
    ]
    assert all(probe.origin == "north" and len(probe.round_trips_ms) == 10 for probe in told)


def test_a_site_that_is_away_keeps_nobody_from_being_measured() -> None:
    """What cannot be measured is passed over, and its bandwidth is measured when it is back."""
    counts, told = asyncio.run(rounds([{"east"}, set()], every_s=10.0, bandwidth_every_s=100.0))
    assert counts == [1, 2]
    assert [(probe.target, probe.there_bps > 0) for probe in told] == [
        ("south", True),
        ("east", True),
        ("south", False),
    ]


@pytest.mark.parametrize("name", ["every_s", "bandwidth_every_s"])
def test_a_time_that_is_none_is_refused(name: str) -> None:
    """A plan whose times are not above 0 is refused by name."""
    with pytest.raises(OptionError, match=name):
        ProbePlan(secret=SECRET, **{name: 0.0})


def test_why_a_way_is_not_measured_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The same reason is a warning in the first round alone, and again after the way was measured meanwhile."""
    with caplog.at_level(logging.WARNING, "gridweave.live"):
        asyncio.run(rounds([{"east"}, {"east"}, set(), {"east"}]))
    assert [record.getMessage() for record in caplog.records] == [
        "the path from north to east was not measured: east is away"
    ] * 2
