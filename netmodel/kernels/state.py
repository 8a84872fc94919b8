"""The arrays that the network's kernels work on.

Amounts of data are in bits and times in milliseconds, so a rate is in bits per millisecond, which is kbit/s.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

NO_COMMUNICATION, ALL_TO_ALL, NEIGHBOURS, MASTER_WORKERS = 0, 1, 2, 3
"""What compiled code tells apart: a ring and grids of two or three dimensions are neighbours."""

PART = np.dtype([("site", np.int64), ("width", np.int64)], align=True)
"""So many nodes of one site; the ranks of a job stand part after part."""

COMMUNICATION = np.dtype(
    [
        ("fraction", np.float64),
        ("bits", np.float64),
        ("pattern", np.int64),
        ("width", np.int64),
        ("messages", np.int64),
        ("planes", np.int64),
        ("rows", np.int64),
        ("columns", np.int64),
    ],
    align=True,
)
"""How a job communicates: for which ``fraction`` of its run time on one site, in messages of so many ``bits``.

``messages`` are those that its busiest rank sends in one exchange. Neighbours stand in ``planes`` of ``rows`` of
``columns``, whose product is the width; a ring is one row.
"""


LinkRows = npt.NDArray[np.uint32]
"""Numbers of links."""


class NetArrays(NamedTuple):
    """The paths between all sites, as kernels read them, and room for counting.

    Attributes
    ----------
    lag_ms : numpy.ndarray of float64, shape (sites, sites)
        What a message from one site to another takes but for its size; infinite where there is no path.
    stream_ms_per_bit : numpy.ndarray of float64, shape (sites, sites)
        What one stream takes for a bit at best, because packets are lost on the way.
    narrowest_ms_per_bit : numpy.ndarray of float64, shape (sites, sites)
        Of the narrowest link of each path; 0 where there is none.
    apart : numpy.ndarray of bool, shape (sites, sites)
        Whether the path there and the path back have no link in common.
    first : numpy.ndarray of int64, shape (sites x sites + 1,)
        Where the links of each path begin in ``links``; path number = from x sites + to.
    links : numpy.ndarray of uint32, shape (links of all paths,)
        In the order in which a message crosses them; unsigned, so that compiled code need not look for negative places.
    mirrored : bool
        Whether every path back is the path there in a mirror, link for link, each as fast as the one there.
    both : numpy.ndarray of uint32, shape (links of all paths,)
        If so: in place of each of ``links`` the first of it and its mirror.
    ms_per_bit : numpy.ndarray of float64, shape (links,)
        Infinite for a link that is down.
    capacity : numpy.ndarray of float64, shape (links,)
        In bits per millisecond.
    outgoing : numpy.ndarray of float64, shape (sites,)
        What the first links of the paths from each site carry together, in bits per millisecond; infinite if one of the
        paths has no link.
    local_latency_ms, local_ms_per_bit : float
        Of the network within a site.
    overlapped : bool
        Whether ranks do not wait for the slowest message of an exchange.
    load : numpy.ndarray of float64, shape (links,)
        Room: messages on each link; zero between calls.
    messages : numpy.ndarray of float64, shape (sites x sites,)
        Room: messages between the parts of a job.
    busy_ms : numpy.ndarray of float64, shape (sites x sites,)
        Room: what each bit takes on the busiest link between the parts of a job.
    """

    lag_ms: FloatArray
    stream_ms_per_bit: FloatArray
    narrowest_ms_per_bit: FloatArray
    apart: npt.NDArray[np.bool_]
    first: IntArray
    links: LinkRows
    mirrored: bool
    both: LinkRows
    ms_per_bit: FloatArray
    capacity: FloatArray
    outgoing: FloatArray
    local_latency_ms: float
    local_ms_per_bit: float
    overlapped: bool
    load: FloatArray
    messages: FloatArray
    busy_ms: FloatArray


class Flows(NamedTuple):
    """What moves over the links now: the traffic of split jobs, and transfers.

    Attributes
    ----------
    n_flows : numpy.ndarray of int64, shape (1,)
        How many flows there are; they stand at the beginning of the arrays, the oldest first.
    owner : numpy.ndarray of int64, shape (room,)
        The job or transfer that each belongs to.
    path : numpy.ndarray of int64, shape (room,)
        From x sites + to.
    demand : numpy.ndarray of float64, shape (room,)
        Bits per millisecond that it can use; infinite for a transfer.
    rate : numpy.ndarray of float64, shape (room,)
        Bits per millisecond that it has, as of the last sharing.
    """

    n_flows: IntArray
    owner: IntArray
    path: IntArray
    demand: FloatArray
    rate: FloatArray


class Filling(NamedTuple):
    """Room for the sharing of links.

    Attributes
    ----------
    left : numpy.ndarray of float64, shape (links,)
        Capacity of each link that nobody has yet.
    wanted : numpy.ndarray of float64, shape (links,)
        What the flows on each link can use, all together.
    crossing : numpy.ndarray of int64, shape (links,)
        Flows on each link whose rates may still rise; zero between calls.
    used : numpy.ndarray of int64, shape (links,)
        The links that any flow crosses.
    rising : numpy.ndarray of int64, shape (room,)
        The flows whose rates may still rise.
    """

    left: FloatArray
    wanted: FloatArray
    crossing: IntArray
    used: IntArray
    rising: IntArray


def with_own_room(net: NetArrays) -> NetArrays:
    """Return the same paths, which may be large, with other room to count in: two may then be asked at one time."""
    return net._replace(load=net.load.copy(), messages=net.messages.copy(), busy_ms=net.busy_ms.copy())


def new_flows(room: int) -> Flows:
    """Return room for so many flows, with none in it.

    Parameters
    ----------
    room : int
        A job split over *k* sites has up to *k* (*k* - 1) flows.
    """
    return Flows(
        n_flows=np.zeros(1, np.int64),
        owner=np.zeros(room, np.int64),
        path=np.zeros(room, np.int64),
        demand=np.zeros(room, np.float64),
        rate=np.zeros(room, np.float64),
    )


def more_flows(flows: Flows, room: int) -> Flows:
    """Return the same flows with room for more.

    Parameters
    ----------
    flows : Flows
    room : int
        For all of them.
    """
    larger = new_flows(room)
    for new, old in zip(larger, flows, strict=True):
        new[: len(old)] = old
    return larger


def new_filling(links: int, room: int) -> Filling:
    """Return room for sharing so many links among so many flows."""
    return Filling(
        left=np.zeros(links, np.float64),
        wanted=np.zeros(links, np.float64),
        crossing=np.zeros(links, np.int64),
        used=np.zeros(links, np.int64),
        rising=np.zeros(room, np.int64),
    )
