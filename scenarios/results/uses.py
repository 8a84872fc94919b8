"""Further results of a run: the use of sites and network, the simulated world, shared nodes, switches of policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec

from gridweave.scenarios.workload.table import IntArray


@runtime_checkable
class SharesNodes(Protocol):
    """The part of a discipline's own results that describes how jobs shared nodes.

    Attributes
    ----------
    beside : numpy.ndarray of int64, shape (n,)
        With how many jobs each job shared nodes when it started.
    busy_node_ms : int
        Node time in which at least one job was on a node.
    """

    beside: IntArray
    busy_node_ms: int


@runtime_checkable
class Switches(Protocol):
    """The part of a discipline's own results that describes its switches between policies.

    Attributes
    ----------
    policies : tuple of str
        The first was in force at the beginning.
    switched_ms, switched_to : numpy.ndarray of int64, shape (switches,)
        The instant of each switch, and the index of the new policy.
    """

    policies: tuple[str, ...]
    switched_ms: IntArray
    switched_to: IntArray


@runtime_checkable
class HasTexts(Protocol):
    """A discipline's own results that include text files."""

    def texts(self) -> dict[str, str]:
        """Return the files by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteUse:
    """The use of one site.

    Attributes
    ----------
    name : str
    nodes : int
    submitted : int
        Jobs of its own users.
    jobs : int
        Jobs that ran there, alone or with a fragment.
    multi_site_jobs : int
        Jobs that ran there and on other sites.
    from_elsewhere : int
        Jobs that ran there and were submitted by users of other sites.
    util : float
        Part of its node time in use, from the first submission in the grid to the last end; NaN if no job ran.
    """

    name: str
    nodes: int
    submitted: int
    jobs: int
    multi_site_jobs: int
    from_elsewhere: int
    util: float


class NetworkUse(msgspec.Struct, frozen=True, kw_only=True):
    """A network and its effect on the jobs.

    Attributes
    ----------
    name : str
        The topology file, or the scenario that contains the topology.
    nodes, cables : int
    changes : int
        Instants at which links change.
    split, contention, data : str
        As in `gridweave.scenarios.batch.grid_network.GridNet`.
    mean_factor : float or None
        Mean factor by which multi-site jobs are longer on idle links than on one site; None without such jobs.
    mean_factor_by_area : float or None
        The same, weighted by width x run time on one site.
    mean_slowdown : float or None
        Mean further factor due to other traffic, over multi-site jobs and jobs with data.
    jobs_with_transfers : int
        Jobs that held nodes while their data moved.
    transfer_ms : int
        Total time for which they did.
    transfer_share : float or None
        This time's part of the node time of all jobs; None if no job ran.
    """

    name: str
    nodes: int
    cables: int
    changes: int
    split: str
    contention: str
    data: str
    mean_factor: float | None
    mean_factor_by_area: float | None
    mean_slowdown: float | None
    jobs_with_transfers: int
    transfer_ms: int
    transfer_share: float | None


class WorldUse(msgspec.Struct, frozen=True, kw_only=True):
    """Messages and faults of a run in the simulated world.

    Attributes
    ----------
    messages : int
        Messages sent between the sites and the meta-scheduler.
    lost : int
        Messages that did not arrive.
    crashes, cuts : int
        Crashes of sites, and cuts of their connections.
    restarts : int
        How often a running job was lost with a site and began again.
    link_changes : int
        Instants at which links of the network slowed, failed or came back.
    """

    messages: int
    lost: int
    crashes: int
    cuts: int
    restarts: int
    link_changes: int = 0
