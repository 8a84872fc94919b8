"""Additional results of a run: use of sites and network, the simulated world, shared nodes, and policy switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec

from gridweave.scenarios.workload.table import IntArray


@runtime_checkable
class SharesNodes(Protocol):
    """A discipline's additional results that describe how jobs shared nodes.

    Attributes
    ----------
    beside : numpy.ndarray of int64, shape (n,)
        Number of jobs with which each job shared nodes when it started.
    busy_node_ms : int
        Node time during which at least one job used the node.
    """

    beside: IntArray
    busy_node_ms: int


@runtime_checkable
class Switches(Protocol):
    """A discipline's additional results that describe its switches between policies.

    Attributes
    ----------
    policies : tuple of str
        The policies; the first policy is in force at the beginning.
    switched_ms, switched_to : numpy.ndarray of int64, shape (switches,)
        The time of each switch, and the index of the new policy.
    """

    policies: tuple[str, ...]
    switched_ms: IntArray
    switched_to: IntArray


@runtime_checkable
class HasTexts(Protocol):
    """A discipline's additional results that include text files."""

    def texts(self) -> dict[str, str]:
        """Return the contents of the files, by file name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteUse:
    """How one site of a grid was used.

    Attributes
    ----------
    name : str
    nodes : int
    submitted : int
        Jobs submitted by the site's own users.
    jobs : int
        Jobs that ran at the site, as a whole or with a fragment.
    multi_site_jobs : int
        Jobs that ran at this site and at other sites.
    from_elsewhere : int
        Jobs that ran at the site but were submitted by users of other sites.
    util : float
        Share of the site's node time in use, from the grid's first submission to the last end; NaN if no job ran.
    """

    name: str
    nodes: int
    submitted: int
    jobs: int
    multi_site_jobs: int
    from_elsewhere: int
    util: float


class NetworkUse(msgspec.Struct, frozen=True, kw_only=True):
    """A network, and its effect on the jobs.

    Attributes
    ----------
    name : str
        Name of the topology file, or of the scenario that contains the topology.
    nodes, cables : int
    changes : int
        Number of times at which links change.
    split, contention, data : str
        As in `gridweave.scenarios.batch.grid_network.GridNet`.
    mean_factor : float or None
        Mean factor by which multi-site jobs take longer on idle links than on one site; None without multi-site jobs.
    mean_factor_by_area : float or None
        The same mean, weighted by width x run time on one site.
    mean_slowdown : float or None
        Mean additional factor due to other traffic, over multi-site jobs and jobs with data transfers.
    jobs_with_transfers : int
        Number of jobs that held nodes while their data was in transfer.
    transfer_ms : int
        Total time during which jobs held nodes while their data was in transfer.
    transfer_share : float or None
        The transfer time, weighted by width, as a share of all jobs' node time; None if no job ran.
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
    """Numbers of messages and faults in a run in the simulated world.

    Attributes
    ----------
    messages : int
        Messages sent between the sites and the meta-scheduler.
    lost : int
        Messages that did not arrive.
    crashes, cuts : int
        Crashes of sites, and cuts of their connections.
    restarts : int
        Number of times that a running job was lost in a crash and started again.
    link_changes : int
        Number of times at which network links slowed down, failed or recovered.
    """

    messages: int
    lost: int
    crashes: int
    cuts: int
    restarts: int
    link_changes: int = 0
