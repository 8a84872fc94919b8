"""What else a run tells: what became of its sites, what the network and the simulated world did, what was shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec

from gridweave.scenarios.workload.table import IntArray


@runtime_checkable
class SharesNodes(Protocol):
    """What a discipline tells of a run whose nodes jobs shared.

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
    """What a discipline tells of a run in which it switched from one of its policies to another.

    Attributes
    ----------
    policies : tuple of str
        The first was in force at the beginning.
    switched_ms, switched_to : numpy.ndarray of int64, shape (switches,)
        When it was switched, and to which of them.
    """

    policies: tuple[str, ...]
    switched_ms: IntArray
    switched_to: IntArray


@runtime_checkable
class HasTexts(Protocol):
    """What a discipline tells of a run that makes files of its own."""

    def texts(self) -> dict[str, str]:
        """Return the files by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteUse:
    """What became of one site.

    Attributes
    ----------
    name : str
    nodes : int
    submitted : int
        Jobs of its own users.
    jobs : int
        Jobs that ran there, alone or with a fragment.
    multi_site_jobs : int
        Those of them that ran on other sites too.
    from_elsewhere : int
        Those of them that users of other sites submitted.
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
    """A network, and what became of the jobs that used it.

    Attributes
    ----------
    name : str
        The file, or the scenario that it is written in.
    nodes, cables : int
    changes : int
        Instants at which links change.
    split, contention, data : str
        As in `gridweave.scenarios.batch.grid_network.GridNet`.
    mean_factor : float or None
        By which multi-site jobs grew on idle links; None if there are none.
    mean_factor_by_area : float or None
        The same, weighted by width x run time on one site.
    mean_slowdown : float or None
        By which multi-site jobs, and those with data, took longer than that, for what else was on the links.
    jobs_with_transfers : int
        Jobs that held nodes while their data was on the way.
    transfer_ms : int
        How long they did, all together.
    transfer_share : float or None
        Part of the node time of all jobs that went into this; None if no job ran.
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
    """What a run in the simulated world took.

    Attributes
    ----------
    messages : int
        Sent between the sites and the meta-scheduler.
    lost : int
        Of these, those that did not arrive.
    crashes, cuts : int
        Failures of sites, and of their connections.
    restarts : int
        How often a job that worked was lost with a site and begun anew.
    link_changes : int
        Instants at which links of the network slowed, failed or came back.
    """

    messages: int
    lost: int
    crashes: int
    cuts: int
    restarts: int
    link_changes: int = 0
