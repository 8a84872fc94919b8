"""Latency from positions: light in a fibre that does not quite go straight."""

from __future__ import annotations

import math

EARTH_RADIUS_KM = 6371.0088
"""Mean radius (IUGG)."""

FIBRE_KM_PER_MS = 299_792.458 / 1000 * 2 / 3
"""Two thirds of the speed of light in vacuum."""


def great_circle_km(latitude: float, longitude: float, other_latitude: float, other_longitude: float) -> float:
    """Return the distance between two places on a sphere, by the haversine formula.

    Parameters
    ----------
    latitude, longitude, other_latitude, other_longitude : float
        In degrees.

    Returns
    -------
    float

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
    """Return how long a signal takes over a distance.

    Parameters
    ----------
    distance_km : float
        As the crow flies.
    detour : float
        How many times as long the fibre is.

    Returns
    -------
    float
    """
    return distance_km * detour / FIBRE_KM_PER_MS
