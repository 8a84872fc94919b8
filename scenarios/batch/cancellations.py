"""Jobs that are cancelled while they wait: when, as the compiled loop has it, and which, as a result has it."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.batch.kernels.loop import Cancellations
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.workload.table import BoolArray, IntArray, Workload


def cancellations(workload: Workload, rows: IntArray) -> Cancellations | None:
    """Return when jobs are cancelled if they still wait; None if none is.

    Parameters
    ----------
    workload : Workload
        Its column ``cancel_ms``; -1 for jobs that nobody cancels.
    rows : numpy.ndarray of int64
        The jobs that are played, one after the other.

    Raises
    ------
    InputError
        If a job is cancelled before it is submitted, or at that instant.
    """
    if "cancel_ms" not in workload.columns:
        return None
    cancel_ms = np.asarray(workload.columns["cancel_ms"], np.int64)
    wrong = (cancel_ms >= 0) & (cancel_ms <= workload.submit_ms)
    if wrong.any():
        row = int(np.argmax(wrong))
        times = f"cancel_ms {cancel_ms[row]} is not after its submission at {workload.submit_ms[row]} ms"
        raise InputError(f"{workload.name}: job {workload.job_id[row]}: {times}")
    places = np.flatnonzero(cancel_ms[rows] >= 0)
    places = places[np.lexsort((workload.job_id[rows][places], cancel_ms[rows][places]))]
    return Cancellations(cancel_ms[rows][places], places) if len(places) else None


def cancelled_in(workload: Workload, start_ms: IntArray, refused: Container[int]) -> BoolArray:
    """Return which jobs were cancelled while they waited, bool, shape (n,).

    Parameters
    ----------
    start_ms : numpy.ndarray of int64, shape (n,)
        `NEVER` for jobs that were not started.
    refused : container of int
        Ids of those that could never be.
    """
    waited: BoolArray = start_ms == NEVER
    if waited.any():
        waited &= [job_id not in refused for job_id in workload.job_id.tolist()]
    cancel_ms = np.asarray(workload.columns.get("cancel_ms", np.full(len(workload), NEVER)), np.int64)
    assert (cancel_ms[waited] >= 0).all(), "the loop ended with jobs that wait"
    return waited
