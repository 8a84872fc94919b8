"""A network between the sites of a simulated grid: what it is, and what the jobs of a workload send over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.grid.control.links import GridNetwork, new_links, with_paths
from gridweave.grid.kernels.links import (
    BLOCKING,
    JOB_DATA,
    NO_DATA,
    PREFETCH,
    GridLinks,
)
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import MAX_BYTES
from gridweave.netmodel.changes import Timetable
from gridweave.netmodel.communication import PATTERNS, Communication
from gridweave.netmodel.kernels.state import COMMUNICATION
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.tables import CONTENTIONS, EXACT_UP_TO
from gridweave.scenarios.workload import IntArray, Workload

SPLITS = ("fewest", "earliest-end")
STAGINGS = {"none": NO_DATA, "blocking": BLOCKING, "prefetch": PREFETCH}


@dataclass(frozen=True, eq=False, slots=True)
class GridNet:
    """A network between the sites of a grid (docs/grid.md, "With a network").

    Parameters
    ----------
    model : NetworkModel
        Its sites are those of the grid, in their order.
    timetable : Timetable, optional
        How its links change in time; its first period is the topology of the model.
    contention : str
        What jobs do to each other on the same links: ``none``, ``static`` or ``dynamic``.
    split : str
        Where a job is split: over the ``fewest`` sites, as in the thesis, or for the ``earliest-end``.
    data : str
        Whether jobs have data to move, and when: ``none``, ``blocking`` or ``prefetch``.
    exact_up_to : int
        For ``earliest-end``: if a job can be placed in no more ways than this, all are looked at.

    Raises
    ------
    OptionError
        If a name is unknown, a number makes no sense, or the timetable is of another topology.
    """

    model: NetworkModel
    timetable: Timetable | None = None
    contention: str = "none"
    split: str = "fewest"
    data: str = "none"
    exact_up_to: int = EXACT_UP_TO

    def __post_init__(self) -> None:
        for option, known in (("contention", CONTENTIONS), ("split", SPLITS), ("data", tuple(STAGINGS))):
            if getattr(self, option) not in known:
                raise OptionError(option, f"{getattr(self, option)!r} is not known; one of {', '.join(known)}")
        if self.exact_up_to < 0:
            raise OptionError("exact_up_to", f"is {self.exact_up_to}; placements, from 0 up")
        if self.timetable is not None and self.timetable.topology is not self.model.topology:
            raise OptionError("timetable", "is of another topology than the model")

    def periods(self) -> Iterator[tuple[int, NetworkModel]]:
        """Yield the instants at which links change, and the network from then on; first that of the beginning, at 0."""
        if self.timetable is None:
            yield 0, self.model
            return
        for period, at_ms in enumerate([0, *self.timetable.instants_ms.tolist()]):
            yield int(at_ms), self._model_in(period)

    def _model_in(self, period: int) -> NetworkModel:
        timetable = self.timetable
        assert timetable is not None
        if (timetable.factors[period] == 1).all():
            return self.model
        found = self.model.paths
        paths = timetable.paths_in(period, found.routes, k=found.k, segment_bytes=found.segment_bytes)
        return replace(self.model, topology=timetable.topology_in(period), paths=paths)

    def check(self, nodes: IntArray, policy: GridPolicy) -> None:
        """Check that the network goes with a grid and its policy.

        Parameters
        ----------
        nodes : numpy.ndarray of int64, shape (sites,)
        policy : GridPolicy

        Raises
        ------
        OptionError
            If it is of other sites, or the policy cannot have what it asks for.
        """
        sites = self.model.topology.sites
        if len(sites) != len(nodes):
            raise OptionError("net", f"has {len(sites)} sites and the grid has {len(nodes)}")
        if self.data != "none" and policy.backfill == "conservative":
            raise OptionError("data", "is not moved for reserved starts; backfill 'easy' or 'none', or data 'none'")
        if self.data != "none" and policy.mode == "local":
            raise OptionError("data", "is not moved in mode local, where each site is by itself")


def communication_of(workload: Workload) -> npt.NDArray[np.void]:
    """Return how the jobs of a workload communicate, as kernels read it.

    Parameters
    ----------
    workload : Workload
        Its columns ``pattern`` (places in `gridweave.netmodel.communication.PATTERNS`), ``communication_fraction`` and
        ``message_bytes``; where one is missing, no job communicates.

    Returns
    -------
    numpy.ndarray of COMMUNICATION, shape (n,)

    Raises
    ------
    InputError
        If there is no such pattern, or the size of a message makes no sense.
    """
    records = np.zeros(len(workload), COMMUNICATION)
    records["width"] = records["columns"] = workload.width
    records["planes"] = records["rows"] = 1
    columns = workload.columns
    if not {"pattern", "communication_fraction", "message_bytes"} <= set(columns):
        return records
    pattern = np.asarray(columns["pattern"], np.int64)
    n_bytes = np.asarray(columns["message_bytes"], np.int64)
    _refuse(workload, "pattern", (pattern < 0) | (pattern >= len(PATTERNS)), f"is none of {', '.join(PATTERNS)}")
    _refuse(workload, "message_bytes", (n_bytes < 0) | (n_bytes > MAX_BYTES), f"is not within 0 to {MAX_BYTES}")
    for code, name in enumerate(PATTERNS):
        rows = np.flatnonzero(pattern == code)
        if len(rows):
            widths, place = np.unique(workload.width[rows], return_inverse=True)
            records[rows] = Communication(pattern=name).records(widths)[place]
    records["fraction"] = columns["communication_fraction"]
    records["bits"] = 8.0 * n_bytes
    return records


def data_of(workload: Workload, sites: int) -> npt.NDArray[np.void]:
    """Return what the jobs of a workload read and write, as kernels read it.

    Parameters
    ----------
    workload : Workload
        Its columns ``input_bytes`` and ``input_site``, ``output_bytes`` and ``output_site``; where one is missing,
        there is no input, or no output.
    sites : int

    Returns
    -------
    numpy.ndarray of JOB_DATA, shape (n,)

    Raises
    ------
    InputError
        If there is no such site, or a size makes no sense.
    """
    records = np.zeros(len(workload), JOB_DATA)
    for what in ("input", "output"):
        if f"{what}_bytes" not in workload.columns or f"{what}_site" not in workload.columns:
            continue
        n_bytes = np.asarray(workload.columns[f"{what}_bytes"], np.int64)
        site = np.asarray(workload.columns[f"{what}_site"], np.int64)
        _refuse(workload, f"{what}_bytes", (n_bytes < 0) | (n_bytes > MAX_BYTES), f"is not within 0 to {MAX_BYTES}")
        _refuse(workload, f"{what}_site", (site < 0) | (site >= sites), f"is none of the sites 0 to {sites - 1}")
        records[f"{what}_bytes"], records[f"{what}_site"] = n_bytes, site
    return records


def _refuse(workload: Workload, name: str, wrong: npt.NDArray[np.bool_], problem: str) -> None:
    """Refuse a workload in which a column makes no sense, by the first such job."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{workload.name}: job {workload.job_id[row]}: {name} {workload.columns[name][row]} {problem}")


def network_of(net: GridNet) -> GridNetwork:
    """Return the network as a grid queue knows it.

    Parameters
    ----------
    net : GridNet

    Returns
    -------
    GridNetwork
    """
    return GridNetwork(net.model, net.split == "earliest-end", STAGINGS[net.data], net.exact_up_to)


def links_of(net: GridNet, workload: Workload, rows: IntArray) -> GridLinks:
    """Return what the grid queue knows of a network, at the beginning.

    Parameters
    ----------
    net : GridNet
    workload : Workload
    rows : numpy.ndarray of int64
        The jobs that have a slot, one after the other.

    Returns
    -------
    GridLinks
    """
    widest = int(workload.width[rows].max(initial=1))
    links = new_links(network_of(net), slots=len(rows), widest=widest)._replace(
        communication=communication_of(workload)[rows],
        data=data_of(workload, len(net.model.topology.sites))[rows],
    )
    return with_paths(links, net.model.arrays)
