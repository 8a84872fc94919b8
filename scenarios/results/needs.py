"""What a schedule amounts to by the CPU needs of its jobs, under any discipline (docs/fractional.md, "Metrics")."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gridweave.scenarios.results.bound import STRETCH_BOUND_MS
from gridweave.scenarios.workload.needs import cpu_needs
from gridweave.scenarios.workload.table import BoolArray, IntArray, Workload

FloatArray = npt.NDArray[np.float64]


def need_metrics(workload: Workload, nodes: int, start_ms: IntArray, end_ms: IntArray) -> Mapping[str, float]:
    """Return the metrics of dynamic fractional resource scheduling.

    ``need_max_stretch`` is the largest of max(turn-around, 10 s) / max(run time alone, 10 s);
    ``need_underutilization_node_ms`` comes with ``..._normalized``, the same as a part of the work. The run times of
    the workload are those on a machine of its own; where it has no column ``cpu_need``, tasks need whole nodes. Starts
    and ends are -1 for jobs that did not run; at least one did.

    Notes
    -----
    Source: Stillwell, sections 2 and 5.3.1. What was allocated over all time is the work of the jobs, whatever was
    paused or slowed in between; so the underutilization, integral of min(nodes, demand) - allocated, takes no more than
    when jobs came and ended. While a job pays for a pause or a move, its CPU counts as idle.
    """
    ran = start_ms >= 0
    flow_ms, run_ms = (end_ms - workload.submit_ms)[ran], workload.run_ms[ran]
    stretch = np.maximum(flow_ms, STRETCH_BOUND_MS) / np.maximum(run_ms, STRETCH_BOUND_MS)
    need = cpu_needs(workload)[ran]
    work = float(need @ run_ms)
    idle = _demand(workload, ran, end_ms, need, nodes) - work
    return {
        "need_max_stretch": float(stretch.max()),
        "need_underutilization_node_ms": idle,
        "need_underutilization_normalized": idle / work,
    }


def _demand(workload: Workload, ran: BoolArray, end_ms: IntArray, need: FloatArray, nodes: int) -> float:
    """Return the integral of what unfinished jobs need, as far as there are nodes."""
    instants = np.concatenate([workload.submit_ms[ran], end_ms[ran]])
    changes = np.concatenate([need, -need])
    order = np.argsort(instants, kind="stable")
    demand = np.minimum(np.cumsum(changes[order])[:-1], nodes)
    return float(demand @ np.diff(instants[order]))
