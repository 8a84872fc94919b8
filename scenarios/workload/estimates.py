"""Models of run time estimates, i.e. of how much users overestimate the run times of their jobs.

Source: Zhang, Franke, Moreira and Sivasubramaniam, *A Comparative Analysis of Space- and Time-Sharing Techniques for
Parallel Job Scheduling in Large Scale Parallel Systems* (below: *Zhang*), section 2.1 and Figure 1. Each model
multiplies a job's run time by an overestimation factor >= 1 that does not depend on the job.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.scenarios.workload.table import MAX_TIME_MS, IntArray, Workload

FORMS = "keep, perfect, omega:X (X >= 0) or phi:X (0 <= X <= 1)"


def perfect(workload: Workload) -> Workload:
    """Set every estimate to the job's run time, so that no job overruns its estimate."""
    return _with_estimates(workload, workload.run_ms)


def omega(workload: Workload, omega: float, rng: np.random.Generator) -> Workload:
    """Draw estimates from the Omega model, with factors uniformly distributed between 1 and 1 + omega.

    Parameters
    ----------
    omega : float
        Upper limit of the overestimation, >= 0. With 0, every estimate is perfect.
    rng : numpy.random.Generator
        Draws one factor per job.

    Returns
    -------
    Workload
        The same jobs with new estimates in whole milliseconds, between the run time and `MAX_TIME_MS`. No job overruns
        its estimate any more.

    Raises
    ------
    OptionError
        If omega is negative or not a finite number.

    Notes
    -----
    Zhang, section 2.1 and Figure 1(a).
    """
    if not (math.isfinite(omega) and omega >= 0):
        raise OptionError("omega", f"{omega} is not a finite number >= 0")
    return _multiplied(workload, 1.0 + omega * rng.random(len(workload)))


def phi(workload: Workload, phi: float, rng: np.random.Generator) -> Workload:
    """Draw estimates from the Phi model: a fraction phi of the jobs finish exactly at their estimate.

    For the other jobs, run time / estimate is uniform on (0, 1].

    Parameters
    ----------
    phi : float
        Fraction of jobs with a perfect estimate, 0 <= phi <= 1. With 1, every estimate is perfect.
    rng : numpy.random.Generator
        Draws one factor per job.

    Returns
    -------
    Workload
        As returned by `omega`.

    Raises
    ------
    OptionError
        If phi is not between 0 and 1.

    Notes
    -----
    Zhang, section 2.1 and Figure 1(b): with y uniform on [0, 1), the factor is 1 if y < phi, else (1 - phi) / (1 - y).
    For phi < 1, this factor has no upper bound and no mean, so the longest estimate grows with the number of jobs.
    Estimates are limited to `MAX_TIME_MS`, more than three thousand years, which a one-day job reaches with a
    probability below 1e-6.
    """
    if not 0 <= phi <= 1:
        raise OptionError("phi", f"{phi} is not within 0 to 1")
    y = rng.random(len(workload))
    return _multiplied(workload, np.where(y < phi, 1.0, (1.0 - phi) / (1.0 - y)))


def with_estimates(workload: Workload, model: str, rng: np.random.Generator) -> Workload:
    """Apply an estimate model that is given as text.

    Parameters
    ----------
    model : str
        ``keep`` (leave the estimates as they are), ``perfect``, ``omega:X`` or ``phi:X``.
    rng : numpy.random.Generator
        Source of random numbers for the models ``omega`` and ``phi``.

    Raises
    ------
    OptionError
        If the model is unknown, or its number is missing or out of range.
    """
    name, colon, _ = model.partition(":")
    if name in {"keep", "perfect"} and not colon:
        return workload if name == "keep" else perfect(workload)
    if name not in {"omega", "phi"}:
        raise OptionError("estimates", f"{model!r} is not known; one of {FORMS}")
    parameter = number_of("estimates", model, FORMS)
    return omega(workload, parameter, rng) if name == "omega" else phi(workload, parameter, rng)


def number_of(option: str, model: str, expected: str) -> float:
    """Return the number in a model text such as ``omega:2``; ``expected`` describes valid texts in the error."""
    try:
        return float(model.partition(":")[2])
    except ValueError:
        raise OptionError(option, f"{model!r} has no number after the colon; write {expected}") from None


def _multiplied(workload: Workload, factor: npt.NDArray[np.float64]) -> Workload:
    factor = np.minimum(factor, MAX_TIME_MS)  # no run time is below 1 ms; the product stays finite
    product = np.minimum(np.rint(workload.run_ms * factor), MAX_TIME_MS).astype(np.int64)
    return _with_estimates(workload, np.maximum(product, workload.run_ms))


def _with_estimates(workload: Workload, estimate_ms: IntArray) -> Workload:
    return workload.replace(estimate_ms=estimate_ms, overran=np.zeros(len(workload), np.bool_))
