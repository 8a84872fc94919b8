"""Queue orders: the keys by which jobs are sorted (docs/disciplines.md, "Order of the waiting jobs")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError

Floats = npt.NDArray[np.float64]

# Columns keep their types, because a million jobs as doubles would take 40 MB. Areas may exceed the range of
# integers, so they are computed as doubles from the start.
ORDERS: dict[str, Callable[..., Floats]] = {
    "fcfs": lambda submit, width, estimate, weight, priority, aging: submit,
    "sjf": lambda submit, width, estimate, weight, priority, aging: estimate,
    "ljf": lambda submit, width, estimate, weight, priority, aging: -estimate,
    "saf": lambda submit, width, estimate, weight, priority, aging: 1.0 * width * estimate,
    "laf": lambda submit, width, estimate, weight, priority, aging: -1.0 * width * estimate,
    "bfit": lambda submit, width, estimate, weight, priority, aging: -width,
    "wfit": lambda submit, width, estimate, weight, priority, aging: width,
    "smith": lambda submit, width, estimate, weight, priority, aging: 1.0 * width * estimate / weight,
    "weight": lambda submit, width, estimate, weight, priority, aging: -weight,
    "priority": lambda submit, width, estimate, weight, priority, aging: (
        -priority if np.isinf(aging) else submit - priority * aging
    ),
}
"""For each order, the function that computes the keys: smallest first, ties by submit time, then job id."""


def order_keys(
    order: str,
    *,
    submit_ms: npt.ArrayLike,
    width: npt.ArrayLike,
    estimate_ms: npt.ArrayLike,
    weight: npt.ArrayLike = 1.0,
    priority: npt.ArrayLike = 0.0,
    aging_ms: float = np.inf,
) -> Floats:
    """Return the jobs' keys in an order.

    Parameters
    ----------
    order : str
        A name in `ORDERS`.
    submit_ms, width, estimate_ms, weight, priority : array_like, shape (n,)
        Attributes of the jobs.
    aging_ms : float
        For the order ``priority``: the waiting time equivalent to one priority level; infinite: no aging.

    Returns
    -------
    numpy.ndarray of float64, shape (n,)

    Raises
    ------
    InputError
        If a key is NaN.

    Notes
    -----
    In all these orders, a job's key is constant while the job waits. This includes priority with aging: all jobs age at
    the same rate, so ``priority + waited / aging_ms`` sorts jobs exactly like ``priority - submit / aging_ms``.

    Examples
    --------
    >>> order_keys("saf", submit_ms=[0, 5], width=[4, 1], estimate_ms=[100, 250]).tolist()
    [400.0, 250.0]
    """
    columns = [np.asarray(column) for column in (submit_ms, width, estimate_ms, weight, priority)]
    keys = ORDERS[order](*columns, aging_ms)
    shape = np.broadcast_shapes(*(column.shape for column in columns))
    return check_keys(order, np.array(np.broadcast_to(keys, shape), np.float64))


def check_keys(order: str, keys: Floats) -> Floats:
    """Return the keys unchanged; raise InputError if any key is NaN, which cannot be sorted."""
    if np.isnan(keys).any():
        raise InputError(f"order {order!r}: the key of a job is NaN (not a number); return a number for every job")
    return keys
