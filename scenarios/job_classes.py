"""Classes of jobs whose metrics are given apart: narrow and wide, short and long, and by month of submission."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError
from gridweave.scenarios.workload import MS_PER_S, IntArray

NARROW_UP_TO = 32
"""The widest narrow job, in nodes (Zhang, section 2.2: small jobs use 32 or fewer nodes)."""


@dataclass(frozen=True, eq=False, slots=True)
class JobClasses:
    """Jobs parted into classes: each job is in exactly one.

    Attributes
    ----------
    names : tuple of str
        The classes; a class may be empty.
    of_job : numpy.ndarray of int64, shape (n,)
        For each job the place of its class in ``names``.
    """

    names: tuple[str, ...]
    of_job: IntArray


def classes_by_width(width: npt.ArrayLike, narrow_up_to: float = NARROW_UP_TO) -> JobClasses:
    """Part jobs into narrow and wide ones.

    Parameters
    ----------
    width : array_like of int, shape (n,)
        Nodes of each job.
    narrow_up_to : float, optional
        The widest narrow job, in nodes; 32 as in Zhang, section 2.2.

    Returns
    -------
    JobClasses
        "narrow" and "wide".
    """
    return JobClasses(("narrow", "wide"), (np.asarray(width) > narrow_up_to).astype(np.int64))


def classes_by_length(run_ms: npt.ArrayLike, short_up_to_ms: float | None = None) -> JobClasses:
    """Part jobs into short and long ones.

    Parameters
    ----------
    run_ms : array_like of int, shape (n,)
        How long each job ran.
    short_up_to_ms : float, optional
        The longest short job; the median of the run times if left out.

    Returns
    -------
    JobClasses
        "short" and "long".
    """
    run = np.asarray(run_ms)
    if short_up_to_ms is None:
        short_up_to_ms = float(np.median(run)) if len(run) else 0.0
    return JobClasses(("short", "long"), (run > short_up_to_ms).astype(np.int64))


def classes_by_month(submit_ms: npt.ArrayLike, start_unix_s: int | None, timezone: str | None = None) -> JobClasses:
    """Part jobs by the calendar month in which they were submitted.

    Parameters
    ----------
    submit_ms : array_like of int, shape (n,)
        Submit times.
    start_unix_s : int or None
        The instant of time zero, in seconds since 1970 (UTC).
    timezone : str, optional
        IANA name of the zone whose calendar counts; UTC if left out.

    Returns
    -------
    JobClasses
        "1996-09" and so on, ascending; months without a job are left out.

    Raises
    ------
    InputError
        If there is no date to begin with, if the zone is not known, or if a date leaves the calendar.
    """
    submit = np.asarray(submit_ms, np.int64)
    if start_unix_s is None:
        raise InputError(
            "months need a date for time zero, and the workload has none (SWF: ; UnixStartTime: 843480031)"
        )
    zone = load_zone(timezone)
    if not len(submit):
        return JobClasses((), submit)
    try:
        names, edges_ms = _month_edges(int(submit.min()), int(submit.max()), start_unix_s, zone)
    except (OverflowError, ValueError, OSError):
        raise InputError(
            f"months from {start_unix_s} s since 1970 on are beyond the calendar (years 1 to 9999)"
        ) from None
    month = np.searchsorted(edges_ms, submit, side="right") - 1
    present, of_job = np.unique(month, return_inverse=True)
    return JobClasses(tuple(names[number] for number in present.tolist()), of_job.astype(np.int64))


def load_zone(timezone: str | None) -> ZoneInfo:
    """Return the time zone of this IANA name.

    Parameters
    ----------
    timezone : str or None
        The name; UTC if None.

    Returns
    -------
    zoneinfo.ZoneInfo

    Raises
    ------
    InputError
        If the system knows no such zone.
    """
    try:
        return ZoneInfo(timezone or "UTC")
    except (LookupError, ValueError, OSError):
        raise InputError(f"time zone {timezone!r} is not known; give an IANA name like Europe/Stockholm") from None


def _month_edges(first_ms: int, last_ms: int, start_unix_s: int, zone: ZoneInfo) -> tuple[list[str], IntArray]:
    """Return the names of all months from first to last, and the instant at which each begins."""
    first, last = (
        datetime.datetime.fromtimestamp(start_unix_s + instant_ms // MS_PER_S, zone)
        for instant_ms in (first_ms, last_ms)
    )
    names = []
    edges_ms = []
    for number in range(first.year * 12 + first.month - 1, last.year * 12 + last.month):
        begin = datetime.datetime(number // 12, number % 12 + 1, 1, tzinfo=zone)
        names.append(f"{begin:%Y-%m}")
        edges_ms.append((round(begin.timestamp()) - start_unix_s) * MS_PER_S)
    return names, np.array(edges_ms, np.int64)
