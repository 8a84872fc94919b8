"""Speeds with their units, read and written."""

from __future__ import annotations

import re

from gridweave.errors import InputError

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SPEED = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([kKMGT]?)\s*(bps|bit/s|b/s|bits/s)\s*")


def parse_bandwidth(text: str) -> float:
    """Read a speed with its unit (bps or bit/s, with prefixes that are powers of 1000) as bits per second.

    Examples
    --------
    >>> parse_bandwidth("2.5 Gbps"), parse_bandwidth("155Mbit/s")
    (2500000000.0, 155000000.0)
    """
    found = _SPEED.fullmatch(text)
    if not found:
        raise InputError(
            f"{text!r} is not a speed; write a number and bps, kbps, Mbps, Gbps or Tbps, such as '10 Gbps'"
        )
    prefix = "k" if found.group(2) == "K" else found.group(2)
    return float(found.group(1)) * PREFIXES[prefix]


def show_bandwidth(bandwidth_bps: float) -> str:
    """Write a speed in the unit that suits it.

    Examples
    --------
    >>> show_bandwidth(2.5e9), show_bandwidth(155e6), show_bandwidth(float("inf"))
    ('2.5 Gbps', '155 Mbps', 'unlimited')
    """
    if bandwidth_bps == float("inf"):
        return "unlimited"
    for prefix in ("T", "G", "M", "k"):
        if bandwidth_bps >= PREFIXES[prefix]:
            return f"{bandwidth_bps / PREFIXES[prefix]:.4g} {prefix}bps"
    return f"{bandwidth_bps:.4g} bps"
