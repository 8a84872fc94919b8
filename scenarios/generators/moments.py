"""What a learnt model remembers of the workload it was learnt from, and what both learners need to know of one."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.traces.convert import check_nodes
from gridweave.scenarios.workload.table import MS_PER_S, Workload

# What stands in a model file as its name: one line for people.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Moments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of a workload that a generated one can be held against.

    Parameters
    ----------
    jobs : int
        Number of jobs.
    mean_interarrival_ms : float
        Time from the first submission to the last over the number of gaps between them.
    mean_width, mean_estimate_ms, mean_run_ms : float
        Means over the jobs.
    mean_area_node_ms : float
        Mean of width x run time.
    offered_load : float
        Total area over nodes x time from the first submission to the last.
    at_limit : float
        Fraction of the jobs that run exactly as long as their estimate (those that overran it included).
    overran : float
        Fraction of the jobs that were killed at their estimate.
    """

    jobs: Annotated[int, msgspec.Meta(ge=2, le=2**53)]
    mean_interarrival_ms: float
    mean_width: float
    mean_estimate_ms: float
    mean_run_ms: float
    mean_area_node_ms: float
    offered_load: float
    at_limit: float
    overran: float


def measure(workload: Workload, nodes: int | None = None) -> Moments:
    """Return the figures of a workload.

    Parameters
    ----------
    workload : Workload
        At least two jobs, not all submitted at one instant.
    nodes : int, optional
        Size of the machine; that of the workload if left out.

    Raises
    ------
    InputError
        If there are fewer than two jobs, or no time passes between them.
    OptionError
        If the size of the machine is not known, or less than the width of a job.
    """
    nodes = machine_nodes(workload, nodes)
    span_ms = submission_span_ms(workload)
    area = workload.width.astype(np.float64) * workload.run_ms
    return Moments(
        jobs=len(workload),
        mean_interarrival_ms=span_ms / (len(workload) - 1),
        mean_width=float(workload.width.mean()),
        mean_estimate_ms=float(workload.estimate_ms.mean(dtype=np.float64)),
        mean_run_ms=float(workload.run_ms.mean(dtype=np.float64)),
        mean_area_node_ms=float(area.mean()),
        offered_load=float(area.sum()) / (nodes * span_ms),
        at_limit=float(np.mean(workload.run_ms == workload.estimate_ms)),
        overran=float(workload.overran.mean()),
    )


def machine_nodes(workload: Workload, nodes: int | None) -> int:
    """Return the size of the machine: what was given, else what the workload says."""
    nodes = workload.nodes if nodes is None else nodes
    if nodes is None:
        raise OptionError("nodes", f"{workload.name} does not say how many nodes the machine has; give it")
    check_nodes(nodes)
    if len(workload) and int(workload.width.max()) > nodes:
        raise OptionError(
            "nodes", f"{workload.name} has a job of {workload.width.max()} nodes, the machine has {nodes}"
        )
    return nodes


def check_positive(option: str, value: float) -> None:
    """Refuse a number that is not finite and above zero; ``option`` is what the user knows it as."""
    if not (math.isfinite(value) and value > 0):
        raise OptionError(option, f"{value} is not a finite number > 0")


def submission_span_ms(workload: Workload) -> int:
    """Return the time from the first submission to the last, > 0: there must be two, at different instants."""
    if len(workload) < 2:
        raise InputError(f"{workload.name} has {len(workload)} jobs; an arrival process is learnt from two at least")
    span_ms = int(workload.submit_ms[-1] - workload.submit_ms[0])
    if span_ms == 0:
        raise InputError(
            f"{workload.name}: all jobs are submitted at one instant; there is no arrival process to learn"
        )
    return span_ms


def resolution_ms(workload: Workload) -> int:
    """Return the tick of the clock of a workload: a second where all its times are whole seconds, else 1 ms."""
    times = (workload.submit_ms, workload.estimate_ms, workload.run_ms)
    return MS_PER_S if all(not np.any(time % MS_PER_S) for time in times) else 1


def plain_name(name: str) -> str:
    """Return a name as a model file can hold it: one line, not too long, not empty."""
    line = "".join(letter if letter.isprintable() else " " for letter in name)
    return " ".join(line.split())[:200] or "workload"
