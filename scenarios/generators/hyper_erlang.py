"""The workload model of Jann et al. and Zhang et al.: hyper-Erlang arrivals and run times, per class of widths.

Zhang, Franke, Moreira and Sivasubramaniam, *A Comparative Analysis of Space- and Time-Sharing Techniques for Parallel
Job Scheduling in Large Scale Parallel Systems* (below: *Zhang*), section 2.1. Jobs are grouped by width in classes
whose upper bounds are powers of two. Each class is a renewal process of its own; its interarrival times and its run
times have a hyper-Erlang distribution of common order each, fitted to the first three moments.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.conversion import check_nodes
from gridweave.scenarios.generators.assemble import assemble, check_request
from gridweave.scenarios.generators.hyper_erlang_law import HyperErlang, fit_sample
from gridweave.scenarios.generators.moments import (
    Moments,
    Name,
    check_positive,
    machine_nodes,
    measure,
    plain_name,
    resolution_ms,
    submission_span_ms,
)
from gridweave.scenarios.generators.size_class import SizeClass, Stream, Width
from gridweave.scenarios.workload import MS_PER_S, IntArray, Workload


class HyperErlangModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload as one renewal process per class of widths.

    Parameters
    ----------
    name : str
        What the model was learnt from.
    nodes : int
        Nodes of the machine.
    resolution_ms : int
        Tick of its clock.
    classes : list of SizeClass
        In ascending order of their widths.
    moments : Moments
        Figures of the workload it was learnt from.

    Raises
    ------
    InputError
        If there is no class, or a job is wider than the machine.
    """

    name: Name
    nodes: Width
    resolution_ms: Annotated[int, msgspec.Meta(ge=1, le=MS_PER_S)]
    classes: list[SizeClass]
    moments: Moments

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("a hyper-Erlang model has at least one class of widths")
        widest = max(max(group.widths) for group in self.classes)
        if widest > self.nodes:
            raise InputError(f"a width of {widest} stands in the model of a machine of {self.nodes} nodes")

    def offered_load(self, nodes: int | None = None) -> float:
        """Return the offered load that the means of the model give.

        Parameters
        ----------
        nodes : int, optional
            Size of the machine; that of the model if left out. Jobs that are wider do not count.

        Returns
        -------
        float
            Busy nodes over nodes. A generated workload comes near to it, the longer it is.
        """
        nodes = self.nodes if nodes is None else nodes
        check_nodes(nodes)
        return math.fsum(group.nodes_in_use(nodes) for group in self.classes) / nodes


def learn_hyper_erlang(workload: Workload, *, nodes: int | None = None) -> HyperErlangModel:
    """Learn the model from a workload.

    Parameters
    ----------
    workload : Workload
        At least two jobs, not all submitted at one instant.
    nodes : int, optional
        Size of the machine; that of the workload if left out.

    Returns
    -------
    HyperErlangModel

    Raises
    ------
    InputError
        If the workload has too few jobs.
    OptionError
        If the machine size is unknown or too small.

    Notes
    -----
    The classes are 1, 2, 3-4, 5-8, ... nodes. Zhang leaves open how a width is drawn within a class: here by its
    frequency, independent of the run time.

    A class of k jobs has k interarrival times: the k - 1 between its jobs, and the time from its last job to the end of
    the trace and from the start of the trace to its first job together, as if the trace were closed to a ring. (The
    length of the ring is the span of the trace and one mean interarrival time of all jobs.) So the rate of each class,
    and the offered load, is exactly that of the trace even for a class whose few jobs came close together. A class with
    one or two jobs is taken as a Poisson process of that rate: three moments of one or two values mean nothing.
    """
    nodes = machine_nodes(workload, nodes)
    moments = measure(workload, nodes)
    ring_ms = submission_span_ms(workload) * len(workload) / (len(workload) - 1)
    bounds = _upper_bound(workload.width)
    classes = []
    for bound in np.unique(bounds).tolist():
        rows = bounds == bound
        submit_ms = workload.submit_ms[rows]
        widths, counts = np.unique(workload.width[rows], return_counts=True)
        classes.append(
            SizeClass(
                max_width=min(bound, nodes),
                widths=widths.tolist(),
                counts=counts.tolist(),
                interarrival=_fit_arrivals(submit_ms, ring_ms),
                run=fit_sample(workload.run_ms[rows]),
            )
        )
    return HyperErlangModel(plain_name(workload.name), nodes, resolution_ms(workload), classes, moments)


def _upper_bound(width: IntArray) -> IntArray:
    """Return the least power of two that is no less than each width."""
    return np.left_shift(np.int64(1), np.frexp(width - 1)[1].astype(np.int64))


def _fit_arrivals(submit_ms: IntArray, ring_ms: float) -> HyperErlang:
    """Fit to the interarrival times of a class on the ring."""
    if len(submit_ms) < 3:
        return HyperErlang(order=1, probabilities=(1.0,), means_ms=(ring_ms / len(submit_ms),))
    around = ring_ms - float(submit_ms[-1] - submit_ms[0])
    return fit_sample(np.append(np.diff(submit_ms), around))


def rescale(model: HyperErlangModel, *, nodes: int, max_width: int | None = None) -> HyperErlangModel:
    """Return the model for a machine of another size.

    Parameters
    ----------
    model : HyperErlangModel
    nodes : int
        Nodes of the other machine.
    max_width : int, optional
        Widest job there; the whole machine if left out. Wider jobs get this width, with their arrivals and run times as
        they were.

    Returns
    -------
    HyperErlangModel

    Raises
    ------
    OptionError
        If `nodes` or `max_width` is out of its bounds.

    Examples
    --------
    Zhang, section 2.2, has 320 nodes and jobs of up to 256: ``rescale(model, nodes=320, max_width=256)``.
    """
    check_nodes(nodes)
    max_width = nodes if max_width is None else max_width
    if not 1 <= max_width <= nodes:
        raise OptionError("max_width", f"{max_width} is not within 1 to the {nodes} nodes of the machine")
    classes = []
    for group in model.classes:
        capped = np.minimum(group.widths, max_width)
        widths = np.unique(capped)
        counts = [sum(n for w, n in zip(capped, group.counts, strict=True) if w == width) for width in widths]
        classes.append(
            SizeClass(min(group.max_width, max_width), widths.tolist(), counts, group.interarrival, group.run)
        )
    return HyperErlangModel(model.name, nodes, model.resolution_ms, classes, model.moments)


def interarrival_factor_for(model: HyperErlangModel, load: float, *, nodes: int | None = None) -> float:
    """Return the factor by which interarrival times must be multiplied for the model to offer a load.

    Parameters
    ----------
    model : HyperErlangModel
    load : float
        Wanted offered load, > 0; Zhang's baseline workload has 0.55.
    nodes : int, optional
        Size of the machine; that of the model if left out.

    Returns
    -------
    float

    Raises
    ------
    OptionError
        If `load` or `nodes` is out of its bounds, or no job of the model fits on the machine.
    """
    check_positive("load", load)
    offered = model.offered_load(nodes)
    if offered == 0:
        raise OptionError("nodes", f"no job of {model.name} fits on {nodes}")
    return offered / load


def generate_hyper_erlang(
    model: HyperErlangModel,
    jobs: int,
    rng: np.random.Generator,
    *,
    nodes: int | None = None,
    load: float | None = None,
    run_factor: float = 1.0,
    interarrival_factor: float = 1.0,
) -> Workload:
    """Generate a workload: the first jobs of the merged arrival processes of all classes, with perfect estimates.

    Each class starts as a process that has been running for ever, so that its rate is the same from the first job on.
    Apart from the two factors, the drawn numbers do not depend on them: the workloads of one seed differ in nothing
    else (Zhang, section 2.2: run times times 1.0 to 1.8 at the same arrivals).

    Parameters
    ----------
    model : HyperErlangModel
    jobs : int
        Number of jobs, >= 1.
    rng : numpy.random.Generator
        Each class draws from streams of its own, spawned from it.
    nodes : int, optional
        Size of the machine; that of the model if left out. Jobs that are wider are left out.
    load : float, optional
        Offered load of these very jobs, > 0, before the two factors. `interarrival_factor_for` gives the factor for the
        load on the average instead.
    run_factor : float
        Run times are multiplied by it, > 0.
    interarrival_factor : float
        Interarrival times are multiplied by it, > 0.

    Returns
    -------
    Workload
        The first job is submitted at time zero; ids count from 1; times are whole ticks of the model.

    Raises
    ------
    OptionError
        If an argument is out of its bounds, or no job of the model fits on the machine.
    """
    nodes = model.nodes if nodes is None else nodes
    check_request(jobs, nodes, load, run_factor, interarrival_factor)
    rate = math.fsum(group.jobs_per_ms(nodes) for group in model.classes)
    if rate == 0:
        raise OptionError("nodes", f"no job of {model.name} fits on {nodes}")
    sources = rng.spawn(len(model.classes))
    streams = [Stream(group, nodes, source) for group, source in zip(model.classes, sources, strict=True)]
    horizon_ms = jobs / rate
    while sum(stream.jobs_until(horizon_ms) for stream in streams) < jobs:
        horizon_ms *= 1.25
    columns = [stream.columns_until(horizon_ms) for stream in streams]
    submit_ms, width, run_ms = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    first = np.argsort(submit_ms, kind="stable")[:jobs]
    return assemble(
        model.name,
        submit_ms=submit_ms[first],
        width=width[first].astype(np.int64),
        estimate_ms=run_ms[first],
        run_ms=run_ms[first],
        overran=np.zeros(jobs, np.bool_),
        nodes=nodes,
        resolution_ms=model.resolution_ms,
        load=load,
        run_factor=run_factor,
        interarrival_factor=interarrival_factor,
    )
