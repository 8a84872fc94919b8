"""What workload models share: what they remember of a trace, what is asked of them, and how they make a workload."""

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

# A table of this many jobs takes gigabytes; more is a slip of the hand.
MAX_JOBS = 10**8

# What stands in a model file as its name: one line for people.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+\Z")]


class Moments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of a workload that a generated one can be held against.

    Parameters
    ----------
    mean_interarrival_ms : float
        Time from the first submission to the last over the number of gaps between them.
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
    """Return the figures of a workload of at least two jobs, not all submitted at one instant."""
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


class Scaling(TypedDict, total=False):
    """How a generated workload shall differ from what its model gives; each may be left out.

    Attributes
    ----------
    nodes : int or None
        Size of the machine; that of the model if left out. Jobs that are wider do not occur.
    load : float or None
        Offered load of the generated jobs, > 0, before the two factors: total area over nodes x time from the first
        submission to the last. All gaps between submissions are multiplied by one number to reach it.
    run_factor : float
        Run times and estimates are multiplied by it, > 0 (Streit, section 3.7: run time extension).
    interarrival_factor : float
        Gaps between submissions are multiplied by it, > 0 (Streit, section 3.7: shrinking factor).
    """

    nodes: int | None
    load: float | None
    run_factor: float
    interarrival_factor: float


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a generator, checked: `Scaling`, with what was left out filled in."""

    nodes: int
    load: float | None = None
    run_factor: float = 1.0
    interarrival_factor: float = 1.0

    @classmethod
    def of(cls, jobs: int, model_nodes: int, scaling: Scaling) -> Request:
        """Return the request; what no generator can do is an `OptionError`."""
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
                raise OptionError("load", "a single job offers no load; ask for two jobs at least")
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
    """Scale drawn jobs, round their times to the clock's tick and number them from 1.

    The first submission becomes time zero. Run times and estimates are at least one tick. No job overran if that is
    left out.
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
    """Return submit times, from zero on, with the gaps that the load and the factor ask for, in whole ticks."""
    load, factor, span_ms = request.load, request.interarrival_factor, float(submit_ms[-1])
    if load is not None and span_ms > 0:
        factor *= area_node_ms / (request.nodes * span_ms) / load
    check_last("interarrival_factor" if load is None else "load", span_ms * factor)
    submit: IntArray = (np.rint(submit_ms * factor / resolution_ms) * resolution_ms).astype(np.int64)
    check_apart(load, submit)
    return submit


def check_last(option: str, last_ms: float) -> None:
    """Refuse an option by which the last job is submitted at an instant that no workload holds."""
    if not last_ms <= MAX_TIME_MS:
        raise OptionError(option, f"the last job would be submitted later than {MAX_TIME_MS} ms")


def check_apart(load: float | None, submit_ms: npt.NDArray[np.number]) -> None:
    """Refuse a load, if one is asked for, under which jobs in order of submission all come at once."""
    if load is not None and submit_ms[0] == submit_ms[-1]:
        raise OptionError("load", f"{load} is too much: all jobs would be submitted at one instant")


def _rounded(times_ms: npt.NDArray[np.floating], resolution_ms: int) -> IntArray:
    """Round to whole ticks, at least one, at most the greatest time that a workload holds."""
    ticks = np.clip(np.rint(times_ms / resolution_ms), 1, MAX_TIME_MS // resolution_ms)
    return ticks.astype(np.int64) * resolution_ms
