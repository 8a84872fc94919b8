"""Orders of a queue: the key by which its jobs are sorted (docs/disciplines.md, "Order of the waiting jobs")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError

Floats = npt.NDArray[np.float64]

# Columns come as they are, whole numbers or not: a million jobs would need 40 MB to have all as doubles. An area can
# leave the range of whole numbers, so it is made of doubles from the start.
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
"""Name of an order to the function that gives the keys; smaller comes first, ties go by submit time and job id."""


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
    """Return the keys of jobs under an order.

    Parameters
    ----------
    order : str
        A name in `ORDERS`.
    submit_ms, width, estimate_ms, weight, priority : array_like, shape (n,)
        Of the jobs.
    aging_ms : float
        What one level of priority is worth in waiting time, for ``priority``; infinite for no aging.

    Returns
    -------
    numpy.ndarray of float64, shape (n,)

    Raises
    ------
    InputError
        If a key is NaN.

    Notes
    -----
    Every order here has keys that stay as they are while a job waits. Priority with aging has, because all jobs age at
    one rate: ``priority + waited / aging_ms`` orders jobs as ``priority - submit / aging_ms`` does.

    Examples
    --------
    >>> order_keys("saf", submit_ms=[0, 5], width=[4, 1], estimate_ms=[100, 250]).tolist()
    [400.0, 250.0]
    """
    columns = [np.asarray(column) for column in (submit_ms, width, estimate_ms, weight, priority)]
    keys = ORDERS[order](*columns, aging_ms)
    found = np.array(np.broadcast_to(keys, np.broadcast_shapes(*(column.shape for column in columns))), np.float64)
    return check_keys(order, found)


def check_keys(order: str, keys: Floats) -> Floats:
    """Return the keys of an order; InputError if one is NaN, by which no job can be sorted."""
    if np.isnan(keys).any():
        raise InputError(f"order {order!r}: the key of a job is NaN (not a number); return a number for every job")
    return keys
