"""The arrays that the network kernels work on.

Data is in bits and time in milliseconds, so rates are in bits per millisecond (kbit/s).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

NO_COMMUNICATION, ALL_TO_ALL, NEIGHBOURS, MASTER_WORKERS = 0, 1, 2, 3
"""Pattern numbers in compiled code; rings and grids of two or three dimensions all count as neighbours."""

PART = np.dtype([("site", np.int64), ("width", np.int64)], align=True)
"""A job's nodes on one site. Ranks are numbered part by part."""

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
"""A job's communication: it takes ``fraction`` of the run time on one site, in messages of ``bits`` each.

``messages`` is the number that the busiest rank sends per exchange. Neighbours form ``planes`` x ``rows`` x ``columns``
ranks, whose product is the width; a ring is a single row.
"""


LinkRows = npt.NDArray[np.uint32]
"""Link numbers."""


class NetArrays(NamedTuple):
    """The paths between all sites as arrays, with scratch space for kernels.

    Attributes
    ----------
    lag_ms : numpy.ndarray of float64, shape (sites, sites)
        Time of a message from one site to another, excluding transmission time; infinite if there is no path.
    stream_ms_per_bit : numpy.ndarray of float64, shape (sites, sites)
        Minimum time per bit of a single stream, as limited by packet loss.
    narrowest_ms_per_bit : numpy.ndarray of float64, shape (sites, sites)
        Time per bit on the narrowest link of each path; 0 if the path has no link.
    apart : numpy.ndarray of bool, shape (sites, sites)
        Whether the paths in the two directions share no link.
    first : numpy.ndarray of int64, shape (sites x sites + 1,)
        Index in ``links`` at which the links of each path begin; path number = from x sites + to.
    links : numpy.ndarray of uint32, shape (links of all paths,)
        Link numbers in travel order; unsigned, so that compiled code does not check for negative indices.
    mirrored : bool
        Whether every reverse path mirrors the forward path, link for link, with the same speed.
    both : numpy.ndarray of uint32, shape (links of all paths,)
        If ``mirrored``: for each entry of ``links``, the lower number of the link and its mirror.
    ms_per_bit : numpy.ndarray of float64, shape (links,)
        Infinite for a link that is down.
    capacity : numpy.ndarray of float64, shape (links,)
        In bits per millisecond.
    outgoing : numpy.ndarray of float64, shape (sites,)
        Total capacity of the first links of the paths from each site, in bits per millisecond; infinite if one of the
        paths has no link.
    local_latency_ms, local_ms_per_bit : float
        Latency and time per bit of the network within a site.
    overlapped : bool
        Whether ranks continue without waiting for the slowest message of an exchange.
    load : numpy.ndarray of float64, shape (links,)
        Scratch space: messages on each link; zero between calls.
    messages : numpy.ndarray of float64, shape (sites x sites,)
        Scratch space: messages between the parts of a job.
    busy_ms : numpy.ndarray of float64, shape (sites x sites,)
        Scratch space: time per bit on the busiest link between two parts of a job.
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
    """The current data flows on the links: traffic of split jobs, and transfers.

    Attributes
    ----------
    n_flows : numpy.ndarray of int64, shape (1,)
        Number of flows; they are at the beginning of the arrays, oldest first.
    owner : numpy.ndarray of int64, shape (capacity,)
        Job or transfer that each flow belongs to.
    path : numpy.ndarray of int64, shape (capacity,)
        Path number, from x sites + to.
    demand : numpy.ndarray of float64, shape (capacity,)
        Maximum useful rate in bits per millisecond; infinite for a transfer.
    rate : numpy.ndarray of float64, shape (capacity,)
        Rate in bits per millisecond, as of the last time that the links were shared.
    """

    n_flows: IntArray
    owner: IntArray
    path: IntArray
    demand: FloatArray
    rate: FloatArray


class Filling(NamedTuple):
    """Scratch space for sharing links.

    Attributes
    ----------
    left : numpy.ndarray of float64, shape (links,)
        Capacity of each link that is not yet assigned.
    demand : numpy.ndarray of float64, shape (links,)
        Total demand of the flows on each link.
    crossing : numpy.ndarray of int64, shape (links,)
        Number of flows on each link whose rates can still rise; zero between calls.
    used : numpy.ndarray of int64, shape (links,)
        Links with at least one flow.
    rising : numpy.ndarray of int64, shape (capacity,)
        Flows whose rates can still rise.
    """

    left: FloatArray
    demand: FloatArray
    crossing: IntArray
    used: IntArray
    rising: IntArray


def with_own_scratch(net: NetArrays) -> NetArrays:
    """Return the same paths with separate scratch space, so that two callers can run concurrently."""
    return net._replace(load=net.load.copy(), messages=net.messages.copy(), busy_ms=net.busy_ms.copy())


def new_flows(capacity: int) -> Flows:
    """Allocate an empty set of flows.

    Parameters
    ----------
    capacity : int
        Maximum number of flows. A job split over *k* sites has up to *k* (*k* - 1) flows.
    """
    return Flows(
        n_flows=np.zeros(1, np.int64),
        owner=np.zeros(capacity, np.int64),
        path=np.zeros(capacity, np.int64),
        demand=np.zeros(capacity, np.float64),
        rate=np.zeros(capacity, np.float64),
    )


def more_flows(flows: Flows, capacity: int) -> Flows:
    """Copy the flows to a larger set.

    Parameters
    ----------
    flows : Flows
    capacity : int
        New maximum number of flows.
    """
    larger = new_flows(capacity)
    for new, old in zip(larger, flows, strict=True):
        new[: len(old)] = old
    return larger


def new_filling(links: int, capacity: int) -> Filling:
    """Allocate the scratch space for sharing ``links`` links among ``capacity`` flows."""
    return Filling(
        left=np.zeros(links, np.float64),
        demand=np.zeros(links, np.float64),
        crossing=np.zeros(links, np.int64),
        used=np.zeros(links, np.int64),
        rising=np.zeros(capacity, np.int64),
    )
