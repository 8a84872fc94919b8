"""Shared code of the workload models: trace statistics, generator options, and the assembly of a workload."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.traces.convert import check_nodes
from gridweave.scenarios.workload.table import MAX_TIME_MS, MAX_WIDTH, MS_PER_S, BoolArray, IntArray, Workload

FloatArray = npt.NDArray[np.float64]

Width = Annotated[int, msgspec.Meta(ge=1, le=MAX_WIDTH)]

# A table of this many jobs takes gigabytes; a larger number is most likely a typo.
MAX_JOBS = 10**8

# The name of a model in its file: one line of text.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+\Z")]


class Moments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statistics of a workload, for comparison with generated workloads.

    Parameters
    ----------
    mean_interarrival_ms : float
        Time between the first and the last submission, divided by the number of gaps.
    mean_area_node_ms : float
        Mean of width x run time, in node ms.
    offered_load : float
        Total area divided by nodes x time between the first and the last submission.
    at_limit : float
        Fraction of jobs that run exactly as long as their estimate, including jobs that overran it.
    overran : float
        Fraction of jobs that were killed when they reached their estimate.
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
    """Compute the statistics of a workload; raise InputError if all jobs are submitted at the same time."""
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
    """Return ``nodes``, by default the workload's machine size; raise OptionError if unknown or too small."""
    nodes = workload.nodes if nodes is None else nodes
    if nodes is None:
        raise OptionError("nodes", f"{workload.name} does not state the number of nodes of its machine; give it")
    check_nodes(nodes)
    if len(workload) and int(workload.width.max()) > nodes:
        raise OptionError(
            "nodes", f"{workload.name} has a job of {workload.width.max()} nodes, but the machine has {nodes}"
        )
    return nodes


def check_positive(option: str, value: float) -> None:
    """Raise OptionError unless the value is finite and positive."""
    if not (math.isfinite(value) and value > 0):
        raise OptionError(option, f"{value} is not a finite number > 0")


def submission_span_ms(workload: Workload) -> int:
    """Return the time between the first and the last submission; raise InputError if it is zero."""
    if len(workload) < 2:
        raise InputError(f"{workload.name} has {len(workload)} jobs; learning an arrival process takes at least two")
    span_ms = int(workload.submit_ms[-1] - workload.submit_ms[0])
    if span_ms == 0:
        raise InputError(
            f"{workload.name}: all jobs are submitted at the same time; there is no arrival process to learn"
        )
    return span_ms


def resolution_ms(workload: Workload) -> int:
    """Return the resolution of a workload's times: 1000 ms if all are whole seconds, else 1 ms."""
    times = (workload.submit_ms, workload.estimate_ms, workload.run_ms)
    return MS_PER_S if all(not np.any(time % MS_PER_S) for time in times) else 1


def plain_name(name: str) -> str:
    """Convert a name to one that is valid in a model file: one line of 1 to 200 characters."""
    line = "".join(letter if letter.isprintable() else " " for letter in name)
    return " ".join(line.split())[:200] or "workload"


class Scaling(TypedDict, total=False):
    """Options that scale a generated workload; all are optional.

    Attributes
    ----------
    nodes : int or None
        Size of the machine; defaults to the model's. Wider jobs are not generated.
    load : float or None
        Offered load of the generated jobs, > 0, before the two factors are applied: total area divided by nodes x
        time between the first and the last submission. To reach this load, all gaps between submissions are
        multiplied by the same number.
    run_factor : float
        Factor > 0 that scales run times and estimates (Streit, section 3.7: run time extension).
    interarrival_factor : float
        Factor > 0 that scales the gaps between submissions (Streit, section 3.7: shrinking factor).
    """

    nodes: int | None
    load: float | None
    run_factor: float
    interarrival_factor: float


@dataclass(frozen=True, slots=True)
class Request:
    """A generator's validated options: `Scaling` with defaults filled in."""

    nodes: int
    load: float | None = None
    run_factor: float = 1.0
    interarrival_factor: float = 1.0

    @classmethod
    def of(cls, jobs: int, model_nodes: int, scaling: Scaling) -> Request:
        """Fill in defaults and check the options; raise OptionError if a value is out of range."""
        nodes = scaling.get("nodes")
        request = cls(
            model_nodes if nodes is None else nodes,
            scaling.get("load"),
            scaling.get("run_factor", 1.0),
            scaling.get("interarrival_factor", 1.0),
        )
        if not 1 <= jobs <= MAX_JOBS:
            raise OptionError("jobs", f"{jobs} is not within 1 to {MAX_JOBS}")
        check_nodes(request.nodes)
        check_positive("run_factor", request.run_factor)
        check_positive("interarrival_factor", request.interarrival_factor)
        if request.load is not None:
            check_positive("load", request.load)
            if jobs < 2:
                raise OptionError("load", "needs at least two jobs; a single job has no offered load")
        return request


def assemble(
    name: str,
    request: Request,
    *,
    submit_ms: FloatArray,
    width: IntArray,
    estimate_ms: FloatArray,
    run_ms: FloatArray,
    overran: BoolArray | None = None,
    resolution_ms: int,
) -> Workload:
    """Build a workload from drawn jobs: scale them, round their times to the resolution, and number them from 1.

    The first submission is moved to time zero. Run times and estimates are at least one tick. By default, no job
    overran its estimate.
    """
    run, estimate = _rounded(run_ms, resolution_ms), _rounded(estimate_ms, resolution_ms)
    longest_ms = int(estimate.max())
    if longest_ms * request.run_factor > MAX_TIME_MS:
        raise OptionError(
            "run_factor", f"{request.run_factor} makes an estimate of {longest_ms} ms longer than {MAX_TIME_MS} ms"
        )
    submit = _submissions(
        submit_ms - submit_ms[0], float(np.dot(width.astype(np.float64), run)), resolution_ms, request
    )
    run = _rounded(run * request.run_factor, resolution_ms)
    return Workload(
        job_id=np.arange(1, len(submit_ms) + 1),
        submit_ms=submit,
        width=width,
        estimate_ms=np.maximum(_rounded(estimate * request.run_factor, resolution_ms), run),
        run_ms=run,
        overran=np.zeros(len(submit_ms), np.bool_) if overran is None else overran,
        nodes=request.nodes,
        name=f"generated from {name}",
    )


def _submissions(submit_ms: FloatArray, area_node_ms: float, resolution_ms: int, request: Request) -> IntArray:
    """Return submit times in whole ticks, starting at zero and scaled to the requested load and factor."""
    load, factor, span_ms = request.load, request.interarrival_factor, float(submit_ms[-1])
    if load is not None and span_ms > 0:
        factor *= area_node_ms / (request.nodes * span_ms) / load
    check_last("interarrival_factor" if load is None else "load", span_ms * factor)
    submit: IntArray = (np.rint(submit_ms * factor / resolution_ms) * resolution_ms).astype(np.int64)
    check_apart(load, submit)
    return submit


def check_last(option: str, last_ms: float) -> None:
    """Raise OptionError if an option makes the last submit time exceed a workload's maximum time."""
    if not last_ms <= MAX_TIME_MS:
        raise OptionError(option, f"the last job would be submitted later than {MAX_TIME_MS} ms")


def check_apart(load: float | None, submit_ms: npt.NDArray[np.number]) -> None:
    """Raise OptionError if a requested load would put all submissions at the same time; submit times must be sorted."""
    if load is not None and submit_ms[0] == submit_ms[-1]:
        raise OptionError("load", f"{load} is too high: all jobs would be submitted at the same time")


def _rounded(times_ms: npt.NDArray[np.floating], resolution_ms: int) -> IntArray:
    """Round times to whole ticks, from one tick up to a workload's maximum time."""
    ticks = np.clip(np.rint(times_ms / resolution_ms), 1, MAX_TIME_MS // resolution_ms)
    return ticks.astype(np.int64) * resolution_ms
