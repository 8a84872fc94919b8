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
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.results.uses import NetworkUse

if TYPE_CHECKING:
    from gridweave.scenarios.batch.grid_network import GridNet


COLUMNS = ("factor", "slowdown", "transfer_ms")
"""Of ``jobs.csv``, where there is a network."""


def network_use(result: SimulationResult, net: GridNet) -> NetworkUse:
    """Return what a network did to the jobs of a run; InputError if that was a simulation without a network."""
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


def network_columns(result: SimulationResult) -> dict[str, npt.NDArray[Any]]:
    """Return what a network did to each job, under the names `COLUMNS`.

    Returns
    -------
    dict from str to numpy.ndarray, shape (n,)

    Raises
    ------
    InputError
        If there was no network.
    """
    if not all(name in result.columns for name in COLUMNS):
        raise InputError("the grid was simulated without a network")
    return {name: result.columns[name] for name in COLUMNS}


def policy_label(policy: GridPolicy, net: GridNet | None) -> str:
    """Return what tables and plots call a policy: with a network there is no p."""
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
