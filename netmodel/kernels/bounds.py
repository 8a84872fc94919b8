"""What no placement of a job can take less than, found without a look at any (docs/netmodel.md, "Where to split").

Bulk-synchronous and all to all, nearly all time goes to the links on which most messages lie. A part of n of w ranks
sends n (w - n) messages to the others, and all of them leave its site by the first links of its paths.
"""

from __future__ import annotations

import numpy as np

from gridweave.jit import Ints, Record, Records, kernel, kernel_part
from gridweave.netmodel.kernels.overhead import local_exchange_ms
from gridweave.netmodel.kernels.state import ALL_TO_ALL, NetArrays

SLACK = 1.0 + 1e-9
"""For the roundings on the way."""


@kernel_part
def waits_for_all(net: NetArrays, communication: Record) -> bool:
    """Whether each rank of a job waits in each exchange for the slowest of the messages of all to all."""
    return not net.overlapped and communication.pattern == ALL_TO_ALL and communication.fraction > 0.0


@kernel_part
def first_parts_factor(net: NetArrays, communication: Record, parts: Records) -> float:
    """Return by which factor a job for which `waits_for_all` grows if its first two parts alone send messages.

    It is no more than that of `split_factor` for these parts and any others.
    """
    one, other = parts[0], parts[1]
    own_ms = communication.messages * communication.bits * net.local_ms_per_bit
    count = float(one.width * other.width)
    ms_per_bit = max(
        net.stream_ms_per_bit[one.site, other.site], count * net.narrowest_ms_per_bit[one.site, other.site]
    )
    more_ms = net.lag_ms[one.site, other.site] + max(0.0, communication.bits * ms_per_bit - own_ms)
    return (1.0 + communication.fraction * more_ms / local_exchange_ms(net, communication)) / SLACK


@kernel
def may_grow_by(net: NetArrays, communication: Record, free: Ints, factor: float) -> bool:
    """Whether a job for which `waits_for_all` may be split over free nodes so that it grows by no more than a factor.

    Parameters
    ----------
    net : NetArrays
    communication : COMMUNICATION
        With the width of the job.
    free : numpy.ndarray of int64, shape (sites,)
    factor : float

    Returns
    -------
    bool
        False only if no placement does.

    Notes
    -----
    By the factor it is known how many messages may leave each site, and so which numbers of nodes n it may give: if all
    may not leave it, up to some number below w / 2, or from w less that number on. At most one site gives so many.
    """
    width = float(communication.width)
    over_ms = (factor * SLACK - 1.0) / communication.fraction * local_exchange_ms(net, communication)
    if over_ms < 0.0:
        return False
    if communication.bits <= 0.0:
        return True
    ms_per_bit = over_ms / communication.bits + communication.messages * net.local_ms_per_bit
    total = most = 0.0
    for site in range(len(free)):
        nodes = min(float(free[site]), width)
        square = width * width - 4.0 * ms_per_bit * net.outgoing[site]
        few = 0.5 * (width - np.sqrt(square)) * SLACK if square > 0.0 else width
        given = min(nodes, few)
        total += given
        if nodes >= width - few:
            most = max(most, nodes - given)
    return total + most >= width / SLACK
