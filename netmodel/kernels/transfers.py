"""How long data takes from site to site (docs/netmodel.md, "Transfers")."""

from __future__ import annotations

import math

import numpy as np

from gridweave.jit import Int, kernel, kernel_part
from gridweave.netmodel.kernels.state import NetArrays

NEVER_MS = np.int64(2**62)
"""Later than everything; the same instant as for the sites."""


@kernel_part
def whole_ms(time_ms: float) -> Int:
    """Return a length of time in whole milliseconds, rounded up; NEVER_MS if it is infinite or longer than that."""
    return NEVER_MS if time_ms >= float(NEVER_MS) else np.int64(math.ceil(time_ms))


@kernel
def transfer_ms(net: NetArrays, origin: Int, target: Int, n_bytes: float) -> Int:
    """Return how long data takes from one site to another on links that nobody else uses, in whole milliseconds.

    Parameters
    ----------
    net : NetArrays
    origin, target : int
        Sites; within one site no time passes.
    n_bytes : int or float

    Returns
    -------
    int
        NEVER_MS if there is no path.
    """
    if origin == target or n_bytes <= 0:
        return np.int64(0)
    sites = len(net.lag_ms)
    path = origin * sites + target
    ms_per_bit = max(net.stream_ms_per_bit[origin, target], net.local_ms_per_bit)
    for place in range(net.first[path], net.first[path + 1]):
        ms_per_bit = max(ms_per_bit, net.ms_per_bit[net.links[place]])
    return whole_ms(net.lag_ms[origin, target] + 8.0 * n_bytes * ms_per_bit)


@kernel
def lone_rate(net: NetArrays, origin: Int, target: Int) -> float:
    """Return the bits per millisecond of one transfer on links that nobody else uses."""
    return 1.0 / max(
        net.stream_ms_per_bit[origin, target], net.local_ms_per_bit, net.narrowest_ms_per_bit[origin, target]
    )
