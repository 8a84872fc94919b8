"""What probes have measured between sites (docs/netmodel.md, "Measured")."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gridweave.errors import InputError, OptionError

WINDOW = 16
"""So many of the newest measurements of a pair count, if nothing else is said."""

ROUND_TRIP_AGE_MS, BANDWIDTH_AGE_MS = 3_600_000, 86_400_000
"""Older measurements do not count, if nothing else is said: an hour, and a day, as bandwidth is measured seldom."""

HIGH = 0.9
"""Quantile of the measured bandwidths that is taken."""


class PairMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the way from one site to another.

    Attributes
    ----------
    origin, target : str
    round_trip_ms : float or None
        What a message and its answer usually take.
    least_ms : float or None
        What they take without waiting.
    bandwidth_bps : float or None
        Of the data from origin to target.
    round_trips, bandwidths : int
        Of how many measurements.
    newest_ms : int
        Instant of the newest.
    """

    origin: str
    target: str
    round_trip_ms: float | None
    least_ms: float | None
    bandwidth_bps: float | None
    round_trips: int
    bandwidths: int
    newest_ms: int


class _Row(NamedTuple):
    """One probe: a time or a speed as it usually was, and the least."""

    at_ms: int
    usual: float
    least: float


class Measurements:
    """The newest measurements of each pair of sites.

    Parameters
    ----------
    window : int
        So many of the newest of a pair count.
    round_trip_age_ms, bandwidth_age_ms : int
        Older ones do not count.

    Raises
    ------
    OptionError
        If a number makes no sense.

    Examples
    --------
    >>> seen = Measurements()
    >>> seen.add_round_trip("ams", "fra", 1000, [9.0, 8.1, 8.3])
    >>> seen.add_bandwidth("ams", "fra", 1000, 9.4e8)
    >>> found = seen.pair("fra", "ams", 2000)
    >>> found.round_trip_ms, found.least_ms, found.bandwidth_bps
    (8.3, 8.1, None)
    """

    def __init__(
        self,
        *,
        window: int = WINDOW,
        round_trip_age_ms: int = ROUND_TRIP_AGE_MS,
        bandwidth_age_ms: int = BANDWIDTH_AGE_MS,
    ) -> None:
        if window < 1:
            raise OptionError("window", f"is {window}; measurements, from 1 up")
        for option, age_ms in (("round_trip_age_ms", round_trip_age_ms), ("bandwidth_age_ms", bandwidth_age_ms)):
            if age_ms < 1:
                raise OptionError(option, f"is {age_ms}; milliseconds, from 1 up")
        self._window = window
        self._age_ms = round_trip_age_ms, bandwidth_age_ms
        # A round trip belongs to both directions: these are kept by the two sites in order.
        self._round_trips: dict[tuple[str, str], list[_Row]] = {}
        self._bandwidths: dict[tuple[str, str], list[_Row]] = {}

    def add_round_trip(self, origin: str, target: str, at_ms: int, samples_ms: Sequence[float]) -> None:
        """Take in the round trips of one probe.

        Parameters
        ----------
        origin, target : str
            Sites; the probe counts for both directions.
        at_ms : int
            When it was made. A second probe of the same instant is taken for the first one, repeated.
        samples_ms : sequence of float

        Raises
        ------
        InputError
            If the sites are the same, or a sample is no time.
        """
        if not samples_ms or not all(0 <= sample < np.inf for sample in samples_ms):
            raise InputError(
                f"round trips from {origin} to {target}: {list(samples_ms)!r:.100}; milliseconds, from 0 up"
            )
        _check_ends(origin, target)
        pair = (origin, target) if origin < target else (target, origin)
        row = _Row(at_ms, float(np.median(samples_ms)), float(min(samples_ms)))
        _insert(self._round_trips.setdefault(pair, []), row, self._window)

    def add_bandwidth(self, origin: str, target: str, at_ms: int, bandwidth_bps: float) -> None:
        """Take in what data came through from one site to another.

        Parameters
        ----------
        origin, target : str
        at_ms : int
            When it was measured; as of `add_round_trip`.
        bandwidth_bps : float

        Raises
        ------
        InputError
            If the sites are the same, or it is no bandwidth.
        """
        if not 0 < bandwidth_bps < np.inf:
            raise InputError(f"bandwidth from {origin} to {target}: {bandwidth_bps!r}; bits per second, above 0")
        _check_ends(origin, target)
        rows = self._bandwidths.setdefault((origin, target), [])
        _insert(rows, _Row(at_ms, float(bandwidth_bps), float(bandwidth_bps)), self._window)

    def pair(self, origin: str, target: str, now_ms: int) -> PairMeasured | None:
        """Return what is known now of the way from one site to another; None if nothing is.

        Parameters
        ----------
        origin, target : str
        now_ms : int
        """
        ends = (origin, target) if origin < target else (target, origin)
        trips = [row for row in self._round_trips.get(ends, ()) if row.at_ms > now_ms - self._age_ms[0]]
        speeds = [row for row in self._bandwidths.get((origin, target), ()) if row.at_ms > now_ms - self._age_ms[1]]
        if not trips and not speeds:
            return None
        return PairMeasured(
            origin=origin,
            target=target,
            round_trip_ms=float(np.median([row.usual for row in trips])) if trips else None,
            least_ms=float(np.median([row.least for row in trips])) if trips else None,
            bandwidth_bps=float(np.quantile([row.usual for row in speeds], HIGH)) if speeds else None,
            round_trips=len(trips),
            bandwidths=len(speeds),
            newest_ms=max(row.at_ms for row in (*trips, *speeds)),
        )

    def pairs(self, now_ms: int, sites: Sequence[str] | None = None) -> list[PairMeasured]:
        """Return what is known now of all pairs.

        Parameters
        ----------
        now_ms : int
        sites : sequence of str, optional
            Only between these, in their order; all, by name, if left out.

        Returns
        -------
        list of PairMeasured
        """
        known = {pair for one, other in self._round_trips for pair in ((one, other), (other, one))}
        known |= self._bandwidths.keys()
        names = sorted({site for pair in known for site in pair}) if sites is None else sites
        place = {site: number for number, site in enumerate(names)}
        wanted = sorted((place[one], place[other], one, other) for one, other in known if {one, other} <= place.keys())
        found = (self.pair(one, other, now_ms) for _, _, one, other in wanted)
        return [pair for pair in found if pair is not None]


def _check_ends(origin: str, target: str) -> None:
    if origin == target:
        raise InputError(f"a probe from {origin} to itself measures no network; name two sites")


def _insert(rows: list[_Row], row: _Row, window: int) -> None:
    """Add a row in the order of time, unless there is one of its instant, and keep the newest."""
    place = bisect_left(rows, row.at_ms, key=lambda other: other.at_ms)
    if place == len(rows) or rows[place].at_ms != row.at_ms:
        rows.insert(place, row)
    del rows[:-window]
