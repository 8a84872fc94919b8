"""The network between sites: nodes, links in each direction, and the nodes at which sites are attached.

Latency from positions: light in a fibre that does not quite go straight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Topology:
    """A network, and the sites on it.

    `gridweave.netmodel.reading` makes it from a table, a file, a generator or a graph of networkx, and checks it.

    Attributes
    ----------
    positions : numpy.ndarray of float64, shape (nodes, 2)
        Latitude and longitude in degrees; NaN where they are not known.
    source, target : numpy.ndarray of int64, shape (links,)
        The nodes that each link leads from and to. A cable that is used both ways is two links.
    latency_ms, bandwidth_bps, loss, jitter_ms : numpy.ndarray of float64, shape (links,)
        A message takes the latency and up to the jitter more; a packet is lost with a probability of ``loss``.
    cable : numpy.ndarray of int64, shape (links,)
        Links of the same number fail together.
    link_names : tuple of str
        What tells parallel cables apart; often empty.
    up : numpy.ndarray of bool, shape (links,)
        Whether each link works.
    node_of_site : numpy.ndarray of int64, shape (sites,)
    remarks : tuple of str
        What the file left open, and what was taken instead.
    """

    name: str
    nodes: tuple[str, ...]
    positions: FloatArray
    source: IntArray
    target: IntArray
    latency_ms: FloatArray
    bandwidth_bps: FloatArray
    loss: FloatArray
    jitter_ms: FloatArray
    cable: IntArray
    link_names: tuple[str, ...]
    up: npt.NDArray[np.bool_]
    sites: tuple[str, ...]
    node_of_site: IntArray
    remarks: tuple[str, ...] = ()

    @property
    def has_map(self) -> bool:
        """Whether at least two nodes, and half of all, have positions."""
        known = int(np.isfinite(self.positions).all(axis=1).sum())
        return known >= 2 and 2 * known >= len(self.nodes)

    def link_label(self, link: int) -> str:
        """Return what messages call a link."""
        name = self.link_names[link]
        ends = f"{self.nodes[self.source[link]]} - {self.nodes[self.target[link]]}"
        return f"{ends} ({name})" if name else ends

    def node_number(self, name: str) -> int:
        """Return the number of a node; an InputError if there is none of that name."""
        return self._place(self.nodes, name, "node")

    def site_number(self, name: str) -> int:
        """Return the number of a site; an InputError if there is none of that name."""
        return self._place(self.sites, name, "site")

    def _place(self, names: tuple[str, ...], name: str, what: str) -> int:
        if name not in names:
            raise InputError(f"{self.name}: there is no {what} {name!r}; there are {named(names)}")
        return names.index(name)

    def cables_between(self, one: str, other: str, name: str | None = None) -> list[int]:
        """Return the cables, ascending, that two nodes are joined by; those of a name, if one is given."""
        ends = {self.node_number(one), self.node_number(other)}
        found = {
            int(self.cable[link])
            for link in range(len(self.source))
            if {int(self.source[link]), int(self.target[link])} == ends and name in (None, self.link_names[link])
        }
        if not found:
            called = f" named {name!r}" if name is not None else ""
            raise InputError(f"{self.name}: there is no link between {one} and {other}{called}")
        return sorted(found)


def named(names: Sequence[str], most: int = 8) -> str:
    """Return names in a row, the first of them if they are many.

    Examples
    --------
    >>> named(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    if len(names) <= most:
        return ", ".join(names) if names else "none"
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


def check_number(option: str, value: float, low: float, what: str, *, above: bool = False) -> None:
    """Refuse a number that is not finite or too low; ``what`` says what would be right."""
    if not np.isfinite(value) or value < low or (above and value == low):
        raise OptionError(option, f"is {value:g}; {what}")


EARTH_RADIUS_KM = 6371.0088
"""Mean radius (IUGG)."""

FIBRE_KM_PER_MS = 299_792.458 / 1000 * 2 / 3
"""Two thirds of the speed of light in vacuum."""


def great_circle_km(latitude: float, longitude: float, other_latitude: float, other_longitude: float) -> float:
    """Return the distance between two places on a sphere, by the haversine formula, from degrees.

    Examples
    --------
    >>> round(great_circle_km(52.37403, 4.88969, 50.85045, 4.34878), 1)  # Amsterdam to Brussels
    173.5
    """
    one, other = math.radians(latitude), math.radians(other_latitude)
    half_up = (other - one) / 2
    half_along = math.radians(other_longitude - longitude) / 2
    chord = math.sin(half_up) ** 2 + math.cos(one) * math.cos(other) * math.sin(half_along) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, chord)))


def fibre_latency_ms(distance_km: float, detour: float) -> float:
    """Return how long a signal takes over a distance as the crow flies, by a fibre that is a detour as long."""
    return distance_km * detour / FIBRE_KM_PER_MS
