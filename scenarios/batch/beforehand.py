"""What is known of a workload before it is played: its week, and which jobs are cancelled when."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime

import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.batch.kernels.loop import Cancellations
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.workload.columns import load_zone
from gridweave.scenarios.workload.table import MS_PER_S, BoolArray, IntArray, Workload


def week_offset_ms(workload: Workload) -> int:
    """Return the local time of a workload's instant zero, as ms since Monday 00:00; 0 if its date is not known.

    Raises
    ------
    InputError
        If the workload's time zone is not known, or its date is beyond the calendar.

    Notes
    -----
    Daylight saving time that begins or ends later in the workload is not followed: a week has 168 hours.
    """
    if workload.start_unix_s is None:
        return 0
    try:
        start = datetime.fromtimestamp(workload.start_unix_s, load_zone(workload.timezone))
    except InputError as error:
        raise InputError(f"{workload.name}: {error}") from None
    except (OverflowError, ValueError, OSError):
        problem = f"{workload.start_unix_s} s since 1970 is beyond the calendar (years 1 to 9999)"
        raise InputError(f"{workload.name}: {problem}") from None
    return (((start.weekday() * 24 + start.hour) * 60 + start.minute) * 60 + start.second) * MS_PER_S


def cancellations(workload: Workload, rows: IntArray) -> Cancellations | None:
    """Return when the jobs of these rows are cancelled if they still wait; None if none is.

    The column ``cancel_ms`` tells; it is -1 for jobs that nobody cancels. InputError if a job is cancelled before it is
    submitted, or at that instant.
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
