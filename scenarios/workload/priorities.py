"""Priorities of the jobs of a workload that has none: by queue, user, group or partition, or drawn by shares.

Traces in SWF have no priorities, but the queue of each job (field 15, the column ``job_class``), by which most sites
gave them. Collins and George (2001), sections 5.3 and 5.4, draw them in mixes.
"""

from __future__ import annotations

import numpy as np

from gridweave.errors import OptionError
from gridweave.scenarios.workload.columns import places_by_share, shares_of
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.site.job import MOST_PRIORITY

COLUMNS = ("job_class", "user", "group", "partition")
"""The columns of a workload that may say what priority a job has."""

SHARES = "shares"

FORMS = (
    "keep, COLUMN:VALUE=PRIORITY,... (COLUMN is job_class, the queue of an SWF trace, or user, group or partition; "
    "all other jobs have priority 0), or shares:PRIORITY=SHARE,..."
)


def with_priorities(workload: Workload, model: str, rng: np.random.Generator) -> Workload:
    """Return a workload whose jobs have the priorities that a text says.

    Parameters
    ----------
    workload : Workload
    model : str
        ``keep``: those of the workload, if it has any. ``job_class:3=2,1=1``: jobs of class 3 have priority 2, those of
        class 1 priority 1, and all others 0; in the same way by ``user``, ``group`` or ``partition``.
        ``shares:2=0.2,1=0.3,0=0.5``: a fifth of the jobs have priority 2, and so on; shares need not sum to 1.
    rng : numpy.random.Generator
        For shares: one draw a job.

    Returns
    -------
    Workload
        With the column ``priority``, unless the model is ``keep``.

    Raises
    ------
    OptionError
        If the text is none of these, the workload does not have the column, or no job has one of the values.

    Examples
    --------
    >>> each = np.arange(1, 4)
    >>> jobs = Workload(each, each, each, each, each, columns={"job_class": np.array([1, 3, 7])})
    >>> with_priorities(jobs, "job_class:3=2,1=1", np.random.default_rng(0)).columns["priority"].tolist()
    [1, 2, 0]
    """
    if model == "keep":
        return workload
    by, _, rest = model.partition(":")
    if by not in (*COLUMNS, SHARES):
        raise OptionError("priorities", f"{model!r} is not known; one of {FORMS}")
    pairs = _pairs(model, rest)
    priority = _drawn(pairs, len(workload), rng) if by == SHARES else _by_column(workload, by, pairs)
    return workload.replace(columns={**workload.columns, "priority": priority})


def column_of(model: str) -> str | None:
    """Return the column of a trace that a model goes by, or None."""
    by = model.partition(":")[0]
    return by if by in COLUMNS else None


def _pairs(model: str, text: str) -> list[tuple[str, str]]:
    pairs = [(key.strip(), value.strip()) for key, _, value in (one.partition("=") for one in text.split(","))]
    if not all(key and value for key, value in pairs):
        raise OptionError("priorities", f"{model!r} is not written as VALUE=PRIORITY,...; one of {FORMS}")
    keys = [key for key, _ in pairs]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise OptionError("priorities", f"{model!r} has {twice} twice")
    return pairs


def _drawn(pairs: list[tuple[str, str]], jobs: int, rng: np.random.Generator) -> IntArray:
    levels = np.array([_priority(level) for level, _ in pairs], np.int64)
    shares = shares_of("priorities", {level: _share(share) for level, share in pairs})
    return levels[places_by_share(shares, rng.random(jobs))]


def _by_column(workload: Workload, column: str, pairs: list[tuple[str, str]]) -> IntArray:
    priority = np.zeros(len(workload), np.int64)
    known = workload.columns.get(column)
    if known is None and len(workload):
        raise OptionError("priorities", f"{workload.name} does not say the {column} of its jobs")
    is_told = np.zeros(len(workload), np.bool_)
    for value, level in pairs:
        number, given = _whole(value, f"a {column}"), _priority(level)
        rows = np.zeros(0, np.bool_) if known is None else known == number
        priority[rows] = given
        is_told |= rows
    if len(workload) and not is_told.any():
        there = ", ".join(map(str, np.unique(known if known is not None else [])[:8].tolist()))
        raise OptionError(
            "priorities", f"no job of {workload.name} has one of these as its {column}; there are {there}"
        )
    return priority


def _whole(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError("priorities", f"{text!r} is not {what}; a whole number") from None


def _priority(text: str) -> int:
    priority = _whole(text, "a priority")
    if abs(priority) > MOST_PRIORITY:
        raise OptionError("priorities", f"{text} is not a priority; from -{MOST_PRIORITY} to {MOST_PRIORITY}")
    return priority


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError("priorities", f"{text!r} is not a share; a number from 0 up") from None
