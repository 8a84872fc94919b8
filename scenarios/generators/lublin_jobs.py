"""One type of jobs of the Lublin and Feitelson model: its parameters, and how sizes and run times are drawn."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.generators.lublin_arrivals import CHUNK, MAX_LOG_GAP, FloatArray, daily_cycle
from gridweave.scenarios.workload import IntArray

MAX_LOG_RUN = 12.0
"""Run times above e^12 s, about two days, are drawn again."""

# The published values lie well within; a shape far above has no spread left, and is a slip in a model file.
_MAX_SHAPE = 1e6


class LublinJobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of one type of jobs, under their published names; gamma(a, b) has the mean a * b.

    Parameters
    ----------
    serial : float
        Probability of a job of one node.
    pow2 : float
        Probability, of all jobs, of one whose size is made a power of two; serial + pow2 <= 1.
    low : float
        Least log2 of the size of a parallel job, before it is rounded.
    med_offset : float
        How far the break of the two-stage distribution lies below its top: med = hi - med_offset.
    hi_offset : float
        How far the top lies below the machine: hi = log2(nodes) - hi_offset.
    prob : float
        Probability of a size between low and med.
    a1, b1, a2, b2 : float
        The two gamma distributions of ln(run time in seconds), > 0, with means of at most 12.
    pa, pb : float
        A job of n nodes has the first of the two with the probability pa * n + pb, cut to 0 and 1.
    aarr, barr : float
        Gamma distribution of ln(gap in points) in the rush hours, > 0. LOMARC's alpha is aarr.
    arar : float
        Ratio of all hours to the rush hours, > 0: the shape used is aarr * arar, and its mean with barr at most 13.
    anum, bnum : float
        Gamma distribution of the arrivals over the half hours of the day, > 0.
    job_class : int, optional
        What stands in the column ``job_class`` of these jobs: SWF's queue, 0 for interactive and 1 for batch jobs.

    Raises
    ------
    InputError
        If a parameter is out of its bounds.
    """

    serial: float
    pow2: float
    low: float
    med_offset: float
    hi_offset: float
    prob: float
    a1: float
    b1: float
    a2: float
    b2: float
    pa: float
    pb: float
    aarr: float
    barr: float
    anum: float
    bnum: float
    arar: float
    job_class: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None

    def __post_init__(self) -> None:
        for names, low, high in (
            (("serial", "pow2", "prob"), 0.0, 1.0),
            (("low", "med_offset", "hi_offset"), 0.0, 24.0),
            (("pa", "pb"), -1e6, 1e6),
        ):
            for name in names:
                if not low <= getattr(self, name) <= high:
                    raise InputError(f"{name} {getattr(self, name)} is not within {low:g} to {high:g}")
        for name in ("a1", "b1", "a2", "b2", "aarr", "barr", "arar", "anum", "bnum"):
            if not 0 < getattr(self, name) <= _MAX_SHAPE:
                raise InputError(f"{name} {getattr(self, name)} is not above 0 and up to {_MAX_SHAPE:g}")
        if self.serial + self.pow2 > 1:
            raise InputError(f"serial {self.serial} and pow2 {self.pow2} are more than 1 together")
        # At least half of the draws are below the mean, so drawing again comes to an end.
        for names_of, mean, limit in (
            ("a1 * b1", self.a1 * self.b1, MAX_LOG_RUN),
            ("a2 * b2", self.a2 * self.b2, MAX_LOG_RUN),
            ("aarr * arar * barr", self.aarr * self.arar * self.barr, MAX_LOG_GAP),
        ):
            if mean > limit:
                raise InputError(f"{names_of} is {mean:.6g}; above {limit:g} most values would be drawn again")
        daily_cycle(self.anum, self.bnum)

    def size_range(self, nodes: int) -> tuple[float, float, float]:
        """Return low, med and hi for a machine.

        Parameters
        ----------
        nodes : int
            Size of the machine, >= 2.

        Returns
        -------
        low, med, hi : float
            In log2 of nodes, ascending. On a small machine med is no less than hi / 2.
        """
        hi = max(math.log2(nodes) - self.hi_offset, self.low)
        return self.low, min(max(hi - self.med_offset, hi / 2, self.low), hi), hi


def draw_widths(jobs: LublinJobs, nodes: int, size: int, rng: np.random.Generator) -> IntArray:
    """Draw sizes of jobs: serial, a power of two, or any.

    Parameters
    ----------
    jobs : LublinJobs
    nodes : int
        Size of the machine, >= 1.
    size : int
        How many.
    rng : numpy.random.Generator

    Returns
    -------
    numpy.ndarray of int64, shape (size,)
        Within 1 to `nodes`.
    """
    kind, stage, place = rng.random((3, size))
    if nodes == 1:
        return np.ones(size, np.int64)
    low, med, hi = jobs.size_range(nodes)
    exponent = np.where(stage < jobs.prob, low + place * (med - low), med + place * (hi - med))
    # Rounding up must not lead beyond a machine whose size is no power of two.
    power = np.minimum(np.floor(exponent + 0.5), nodes.bit_length() - 1)
    exponent = np.where(kind < jobs.serial + jobs.pow2, power, exponent)
    width: IntArray = np.minimum(np.floor(np.exp2(exponent) + 0.5).astype(np.int64), nodes)
    width[kind < jobs.serial] = 1
    return width


def draw_run_s(jobs: LublinJobs, width: IntArray, rng: np.random.Generator) -> FloatArray:
    """Draw run times, which depend on the sizes.

    Parameters
    ----------
    jobs : LublinJobs
    width : numpy.ndarray of int64, shape (n,)
        Nodes of each job.
    rng : numpy.random.Generator

    Returns
    -------
    numpy.ndarray of float64, shape (n,)
        Whole seconds, 1 to 162754 (e^12, rounded down).

    Notes
    -----
    A value above e^12 is drawn again with the choice between the two distributions.
    """
    first = np.clip(jobs.pa * width + jobs.pb, 0.0, 1.0)
    log_run = np.empty(len(width))
    rows = np.arange(len(width))
    while len(rows):
        is_first = rng.random(len(rows)) < first[rows]
        shape = np.where(is_first, jobs.a1, jobs.a2)
        log_run[rows] = rng.standard_gamma(shape) * np.where(is_first, jobs.b1, jobs.b2)
        rows = rows[log_run[rows] > MAX_LOG_RUN]
    return np.floor(np.exp(log_run))


def draw_jobs(jobs: LublinJobs, nodes: int, size: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
    """Draw sizes and run times; those of fewer jobs are the first of those of more.

    Parameters
    ----------
    jobs : LublinJobs
    nodes : int
        Size of the machine, >= 1.
    size : int
        How many.
    rng : numpy.random.Generator
        Two streams are spawned from it.

    Returns
    -------
    width : numpy.ndarray of int64, shape (size,)
        As of `draw_widths`.
    run_s : numpy.ndarray of float64, shape (size,)
        As of `draw_run_s`.
    """
    for_widths, for_runs = rng.spawn(2)
    chunks = -(-size // CHUNK)
    width = np.empty(chunks * CHUNK, np.int64)
    run_s = np.empty(chunks * CHUNK)
    for start in range(0, chunks * CHUNK, CHUNK):
        rows = slice(start, start + CHUNK)
        width[rows] = draw_widths(jobs, nodes, CHUNK, for_widths)
        run_s[rows] = draw_run_s(jobs, width[rows], for_runs)
    return width[:size], run_s[:size]
