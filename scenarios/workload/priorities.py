"""Job priorities for workloads that have none: derived from queue, user, group or partition, or drawn by shares.

SWF traces do not record priorities, but they record each job's queue (field 15, column ``job_class``), from which most
sites derived the priority. Collins and George (2001), sections 5.3 and 5.4, draw priorities from mixes.
"""

from __future__ import annotations

import numpy as np

from gridweave.errors import OptionError
from gridweave.scenarios.workload.columns import places_by_share, shares_of
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.site.job import MOST_PRIORITY

COLUMNS = ("job_class", "user", "group", "partition")
"""Workload columns from which a priority can be derived."""

SHARES = "shares"

FORMS = (
    "keep, COLUMN:VALUE=PRIORITY,... (COLUMN is job_class, the queue of an SWF trace, or user, group or partition; "
    "all other jobs have priority 0), or shares:PRIORITY=SHARE,..."
)


def with_priorities(workload: Workload, model: str, rng: np.random.Generator) -> Workload:
    """Set the priorities of a workload's jobs, according to a model given as text.

    Parameters
    ----------
    workload : Workload
    model : str
        ``keep``: leave the workload as it is. ``job_class:3=2,1=1``: jobs of class 3 get priority 2, jobs of class 1
        get priority 1, and all other jobs priority 0; ``user``, ``group`` and ``partition`` work the same way.
        ``shares:2=0.2,1=0.3,0=0.5``: draw priority 2 with probability 0.2, and so on; shares need not sum to 1.
    rng : numpy.random.Generator
        Draws one number per job if the model is ``shares``.

    Returns
    -------
    Workload
        With the column ``priority``, unless the model is ``keep``.

    Raises
    ------
    OptionError
        If the text is invalid, the workload does not have the column, or no job has one of the listed values.

    Examples
    --------
    >>> each = np.arange(1, 4)
    >>> jobs = Workload(each, each, each, each, each, columns={"job_class": np.array([1, 3, 7])})
    >>> with_priorities(jobs, "job_class:3=2,1=1", np.random.default_rng(0)).columns["priority"].tolist()
    [1, 2, 0]
    """
    if model == "keep":
        return workload
    source, _, rest = model.partition(":")
    if source not in (*COLUMNS, SHARES):
        raise OptionError("priorities", f"{model!r} is not known; one of {FORMS}")
    pairs = _pairs(model, rest)
    priority = _drawn(pairs, len(workload), rng) if source == SHARES else _by_column(workload, source, pairs)
    return workload.replace(columns={**workload.columns, "priority": priority})


def column_of(model: str) -> str | None:
    """Return the trace column that a model uses, or None."""
    source = model.partition(":")[0]
    return source if source in COLUMNS else None


def _pairs(model: str, text: str) -> list[tuple[str, str]]:
    pairs = [(key.strip(), value.strip()) for key, _, value in (pair.partition("=") for pair in text.split(","))]
    if not all(key and value for key, value in pairs):
        raise OptionError("priorities", f"{model!r} is not written as VALUE=PRIORITY,...; one of {FORMS}")
    keys = [key for key, _ in pairs]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise OptionError("priorities", f"{model!r} lists {twice} twice")
    return pairs


def _drawn(pairs: list[tuple[str, str]], jobs: int, rng: np.random.Generator) -> IntArray:
    levels = np.array([_priority(level) for level, _ in pairs], np.int64)
    shares = shares_of("priorities", {level: _share(share) for level, share in pairs})
    return levels[places_by_share(shares, rng.random(jobs))]


def _by_column(workload: Workload, column: str, pairs: list[tuple[str, str]]) -> IntArray:
    priority = np.zeros(len(workload), np.int64)
    values = workload.columns.get(column)
    if values is None and len(workload):
        raise OptionError("priorities", f"{workload.name} has no column {column}")
    is_covered = np.zeros(len(workload), np.bool_)
    for value, level in pairs:
        number, priority_level = _whole(value, f"a {column}"), _priority(level)
        rows = np.zeros(0, np.bool_) if values is None else values == number
        priority[rows] = priority_level
        is_covered |= rows
    if len(workload) and not is_covered.any():
        present = ", ".join(map(str, np.unique(values if values is not None else [])[:8].tolist()))
        raise OptionError(
            "priorities",
            f"no job of {workload.name} has one of the listed values of {column}; its values are {present}",
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
