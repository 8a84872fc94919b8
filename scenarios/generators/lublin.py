"""The workload model of Lublin and Feitelson: rigid jobs on a machine of any size, with a cycle of the day.

U. Lublin and D. G. Feitelson, *The Workload on Parallel Supercomputers: Modeling the Characteristics of Rigid Jobs*,
Journal of Parallel and Distributed Computing 63(11), 2003. Sizes are two-stage log-uniform with extra serial jobs and
powers of two, run times hyper-gamma in their logarithm and longer for wider jobs, gaps gamma in their logarithm on a
clock that goes at the pace of the day. All jobs may be of one type, or interactive and batch jobs may be two types with
parameters and arrivals of their own. The parameters are those published; docs/generators.md lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.generators.assemble import assemble, check_request
from gridweave.scenarios.generators.lublin_arrivals import (
    DailyCycle,
    FloatArray,
    daily_cycle,
    draw_gaps,
    factor_for_span,
)
from gridweave.scenarios.generators.lublin_jobs import LublinJobs, draw_jobs
from gridweave.scenarios.generators.moments import Name
from gridweave.scenarios.generators.size_class import Width
from gridweave.scenarios.workload import MAX_TIME_MS, MS_PER_S, IntArray, Workload

PUBLISHED_NODES = 128
"""The machine that the published values of med and hi are for."""

INTERACTIVE, BATCH = 0, 1
"""What the column ``job_class`` of the two types says: the queues that the authors' program writes."""

WHOLE_SAMPLE = LublinJobs(
    serial=0.244, pow2=0.576, low=0.8, med_offset=2.5, hi_offset=0.0, prob=0.86,
    a1=4.2, b1=0.94, a2=312.0, b2=0.03, pa=-0.0054, pb=0.78,
    aarr=10.2303, barr=0.4871, anum=8.1737, bnum=3.9631, arar=1.0225,
)  # fmt: skip
"""Parameters of all jobs together."""

BATCH_JOBS = LublinJobs(
    serial=0.2927, pow2=0.6686, low=1.2, med_offset=2.0, hi_offset=0.0, prob=0.875,
    a1=6.57, b1=0.823, a2=639.1, b2=0.0156, pa=-0.003, pb=0.6986,
    aarr=6.0415, barr=0.8531, anum=6.1271, bnum=5.2740, arar=1.0519, job_class=BATCH,
)  # fmt: skip
"""Parameters of batch jobs."""

INTERACTIVE_JOBS = LublinJobs(
    serial=0.1541, pow2=0.625, low=1.0, med_offset=2.5, hi_offset=1.5, prob=0.705,
    a1=3.8351, b1=0.6605, a2=7.073, b2=0.6856, pa=-0.0118, pb=0.9156,
    aarr=6.5510, barr=0.6621, anum=8.9186, bnum=3.6680, arar=0.9797, job_class=INTERACTIVE,
)  # fmt: skip
"""Parameters of interactive jobs; at 128 nodes the widest has 45."""


class LublinModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload as one type of jobs, or several that arrive independently.

    Parameters
    ----------
    name : str
        What the workload is called after.
    nodes : int
        Nodes of the machine.
    types : tuple of LublinJobs
        At least one. Of jobs that come at one instant, those of the earlier type stand first.

    Raises
    ------
    InputError
        If there is no type of jobs.
    """

    name: Name
    nodes: Width
    types: Annotated[tuple[LublinJobs, ...], msgspec.Meta(max_length=16)]

    def __post_init__(self) -> None:
        if not self.types:
            raise InputError("a Lublin model has at least one type of jobs")


def lublin_model(kind: str = "whole", *, nodes: int = PUBLISHED_NODES) -> LublinModel:
    """Return the published model.

    Parameters
    ----------
    kind : str
        ``whole`` for all jobs as one type, ``batch`` or ``interactive`` for one of the two types, ``types`` for both,
        which arrive independently and are merged.
    nodes : int
        Nodes of the machine.

    Returns
    -------
    LublinModel

    Raises
    ------
    OptionError
        If there is no such kind.

    Examples
    --------
    >>> lublin_model("types").types[1].serial
    0.2927
    """
    if kind not in _KINDS:
        raise OptionError("kind", f"{kind!r} is not known; known are {', '.join(_KINDS)}")
    name, types = _KINDS[kind]
    return LublinModel(name, nodes, types)


_KINDS = {
    "whole": ("lublin", (WHOLE_SAMPLE,)),
    "batch": ("lublin-batch", (BATCH_JOBS,)),
    "interactive": ("lublin-interactive", (INTERACTIVE_JOBS,)),
    "types": ("lublin-types", (INTERACTIVE_JOBS, BATCH_JOBS)),
}


def with_alpha(model: LublinModel, alpha: float) -> LublinModel:
    """Return the model with other gaps between its jobs: less alpha, more load, and the same cycle of the day.

    Parameters
    ----------
    model : LublinModel
        With one type of jobs.
    alpha : float
        The new aarr, > 0. LOMARC, Table 4, has 10.23, 9.83 and 8.83.

    Returns
    -------
    LublinModel

    Raises
    ------
    OptionError
        If alpha is out of its bounds, or the model has several types of jobs, each of which has an aarr.
    """
    if len(model.types) != 1:
        raise OptionError("alpha", f"{model.name} has {len(model.types)} types of jobs, each with an aarr of its own")
    try:
        jobs = msgspec.structs.replace(model.types[0], aarr=alpha)
    except InputError as error:
        raise OptionError("alpha", f"{alpha} cannot be aarr: {error}") from None
    return LublinModel(model.name, model.nodes, (jobs,))


def generate_lublin(
    model: LublinModel,
    jobs: int,
    rng: np.random.Generator,
    *,
    nodes: int | None = None,
    load: float | None = None,
    run_factor: float = 1.0,
    interarrival_factor: float = 1.0,
) -> Workload:
    """Generate a workload: the first jobs to arrive after a midnight, with perfect estimates.

    Parameters
    ----------
    model : LublinModel
    jobs : int
        Number of jobs, >= 1.
    rng : numpy.random.Generator
        Sizes, run times and gaps of each type have streams of their own, spawned from it.
    nodes : int, optional
        Size of the machine; that of the model if left out. The sizes of the jobs go with it.
    load : float, optional
        Offered load of these very jobs, > 0, before the two factors: all gaps are multiplied by one number.
    run_factor : float
        Run times are multiplied by it, > 0.
    interarrival_factor : float
        Gaps are multiplied by it, > 0; with `load`, the time from the first submission to the last.

    Returns
    -------
    Workload
        Time zero is midnight; ids count from 1; times are whole seconds. There is a column ``job_class`` if every type
        of the model has one.

    Raises
    ------
    OptionError
        If an argument is out of its bounds.

    Notes
    -----
    Gaps are multiplied in points, before the cycle of the day is laid over them, so the day keeps its 24 hours.
    Which jobs of each type belong to the workload is decided before the gaps are multiplied.
    """
    nodes = model.nodes if nodes is None else nodes
    check_request(jobs, nodes, load, run_factor, interarrival_factor)
    cycles = [daily_cycle(kind.anum, kind.bnum) for kind in model.types]
    streams = [source.spawn(2) for source in rng.spawn(len(model.types))]
    points = _first_arrivals(model, cycles, jobs, [for_gaps for _, for_gaps in streams])
    drawn = [
        draw_jobs(kind, nodes, len(own), for_jobs)
        for kind, own, (for_jobs, _) in zip(model.types, points, streams, strict=True)
    ]
    width, run_s = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    area_node_s = float(np.dot(width.astype(np.float64), run_s))
    span_s = None if load is None else area_node_s / nodes / load * interarrival_factor
    time_s = _submit_s(cycles, points, interarrival_factor, span_s)
    order = np.argsort(time_s, kind="stable")
    submit_ms = np.floor(time_s[order]) * MS_PER_S
    if load is not None and submit_ms[0] == submit_ms[-1]:
        raise OptionError("load", f"{load} is too much: all jobs would be submitted at one instant")
    workload = assemble(
        model.name,
        submit_ms=submit_ms,
        width=width[order],
        estimate_ms=run_s[order] * MS_PER_S,
        run_ms=run_s[order] * MS_PER_S,
        overran=np.zeros(jobs, np.bool_),
        nodes=nodes,
        resolution_ms=MS_PER_S,
        load=None,
        run_factor=run_factor,
        interarrival_factor=1.0,
    )
    # Not from the first job on, as `assemble` counts: the time of day would be lost.
    since_midnight_ms = workload.submit_ms + np.int64(submit_ms[0])
    return workload.replace(submit_ms=since_midnight_ms, columns=_columns(model, [len(own) for own in points], order))


def _first_arrivals(
    model: LublinModel, cycles: Sequence[DailyCycle], jobs: int, rngs: Sequence[np.random.Generator]
) -> list[FloatArray]:
    """Return the points at which the jobs of each type arrive, of those that are among the first of all."""
    points = [
        np.cumsum(draw_gaps(kind.aarr * kind.arar, kind.barr, jobs, for_gaps))
        for kind, for_gaps in zip(model.types, rngs, strict=True)
    ]
    if len(points) == 1:
        return points
    time_s = np.concatenate([cycle.time_s(own) for cycle, own in zip(cycles, points, strict=True)])
    first = np.argsort(time_s, kind="stable")[:jobs]
    counts = np.bincount(first // jobs, minlength=len(points)).tolist()
    return [own[:count] for own, count in zip(points, counts, strict=True)]


def _submit_s(
    cycles: Sequence[DailyCycle], points: Sequence[FloatArray], factor: float, span_s: float | None
) -> FloatArray:
    """Return when the jobs come, type by type, if their gaps are multiplied by a factor, or to fill a span."""
    option = "interarrival_factor"
    if span_s is not None:
        option = "load"
        _check_time(option, span_s)
        factor = factor_for_span(cycles, points, span_s)
    time_s = np.concatenate([cycle.time_s(own * factor) for cycle, own in zip(cycles, points, strict=True)])
    _check_time(option, float(time_s.max()))
    return time_s


def _columns(model: LublinModel, counts: list[int], order: npt.NDArray[np.intp]) -> dict[str, IntArray]:
    """Return the job class of each job, if every type has one."""
    classes = [kind.job_class for kind in model.types if kind.job_class is not None]
    if len(classes) < len(model.types):
        return {}
    return {"job_class": np.repeat(np.array(classes, np.int64), counts)[order]}


def _check_time(option: str, time_s: float) -> None:
    """Refuse a time that no workload holds."""
    if not time_s * MS_PER_S <= MAX_TIME_MS:
        raise OptionError(option, f"the last job would be submitted later than {MAX_TIME_MS} ms")
