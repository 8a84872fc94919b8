"""What a network did to the jobs of a run: how splits stretched them, and how long their data was on the way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError
from gridweave.grid.policy import GridPolicy

if TYPE_CHECKING:
    from gridweave.scenarios.grid_net import GridNet
    from gridweave.scenarios.grid_simulator import GridResult

COLUMNS = ("factor", "slowdown", "transfer_ms")
"""Of ``jobs.csv``, where there is a network."""


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
        As in `gridweave.scenarios.grid_net.GridNet`.
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


def network_use(result: GridResult, net: GridNet) -> NetworkUse:
    """Return what a network did to the jobs of a run.

    Parameters
    ----------
    result : GridResult
        Of a simulation with this network.
    net : GridNet

    Returns
    -------
    NetworkUse

    Raises
    ------
    InputError
        If the result is of a simulation without a network.
    """
    columns = network_columns(result)
    topology, several = net.model.topology, result.multi_site
    factor, slowdown, transfer_ms = (columns[name] for name in COLUMNS)
    width = result.workload.width.astype(np.float64)
    took = width * (result.end_ms - result.start_ms)
    return NetworkUse(
        name=Path(topology.name).name,
        nodes=len(topology.nodes),
        cables=len(np.unique(topology.cable)),
        changes=0 if net.timetable is None else len(net.timetable.instants_ms),
        split=net.split,
        contention=net.contention,
        data=net.data,
        mean_factor=_mean(factor[several]),
        mean_factor_by_area=_mean(factor[several], (width * result.workload.run_ms)[several]),
        mean_slowdown=_mean(slowdown[several | (transfer_ms > 0)]),
        jobs_with_transfers=int(np.count_nonzero(transfer_ms)),
        transfer_ms=int(transfer_ms.sum()),
        transfer_share=_mean(transfer_ms / np.maximum(result.end_ms - result.start_ms, 1), took),
    )


def network_columns(result: GridResult) -> dict[str, npt.NDArray[Any]]:
    """Return what a network did to each job, under the names `COLUMNS`.

    Parameters
    ----------
    result : GridResult

    Returns
    -------
    dict from str to numpy.ndarray, shape (n,)

    Raises
    ------
    InputError
        If there was no network.
    """
    if result.factor is None or result.slowdown is None or result.transfer_ms is None:
        raise InputError("the grid was simulated without a network")
    return dict(zip(COLUMNS, (result.factor, result.slowdown, result.transfer_ms), strict=True))


def policy_label(policy: GridPolicy, net: GridNet | None) -> str:
    """Return what tables and plots call a policy: with a network there is no p.

    Parameters
    ----------
    policy : GridPolicy
    net : GridNet, optional

    Returns
    -------
    str
    """
    if net is None:
        return policy.label
    parts = [msgspec.structs.replace(policy, overhead=0.0).label.replace(" p=0%", " over the network")]
    parts += ["to the earliest end"] * (net.split == "earliest-end" and policy.splits)
    parts += [f"{net.contention} contention"] * (net.contention != "none")
    parts += [f"{net.data} data"] * (net.data != "none")
    return " ".join(parts)


def _mean(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64] | None = None) -> float | None:
    """Return a mean; None if there is nothing to take it of."""
    if not len(values) or (weights is not None and not weights.sum() > 0):
        return None
    mean = float(np.average(values, weights=weights))
    return mean if math.isfinite(mean) else None
