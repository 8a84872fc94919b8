"""Speeds with their units, read and written."""

from __future__ import annotations

import re

from gridweave.errors import InputError
from gridweave.netmodel.problems import Path, Reporter

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SPEED = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([kKMGT]?)\s*(bps|bit/s|b/s|bits/s)\s*")


def parse_bandwidth(text: str) -> float:
    """Read a speed with its unit.

    Parameters
    ----------
    text : str
        A number and one of bps, kbps, Mbps, Gbps and Tbps, or the same with bit/s; prefixes are powers of 1000.

    Returns
    -------
    float
        Bits per second.

    Raises
    ------
    InputError
        If it is none.

    Examples
    --------
    >>> parse_bandwidth("2.5 Gbps"), parse_bandwidth("155Mbit/s")
    (2500000000.0, 155000000.0)
    """
    found = _SPEED.fullmatch(text)
    if not found:
        raise InputError(f"{text!r} is no speed; write a number and bps, kbps, Mbps, Gbps or Tbps, such as '10 Gbps'")
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


def speed_of(bps: float | None, text: str | None, path: Path, report: Reporter, label: str = "") -> float | None:
    """Return a speed that is given as a number, or as text with its unit.

    Parameters
    ----------
    path : tuple
        Where they stand.
    report : Reporter
        Is told if both are given, or the text is no speed.
    label : str
        Of what.

    Returns
    -------
    float or None
        Bits per second; None if neither is given. What could not be read is told, and is 1 bit per second.
    """
    if bps is not None and text is not None:
        report.add((*path, "bandwidth"), f"{label}stands beside bandwidth_bps; give one of them")
    if bps is not None or text is None:
        return bps
    try:
        return parse_bandwidth(text)
    except InputError as error:
        report.add((*path, "bandwidth"), f"{label}{error}")
        return 1.0
