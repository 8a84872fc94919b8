"""Draw random run times, either around the recorded run times or from statistics measured per job class or user.

Collins and George (2001), section 6, name "modeling job execution time as a statistical distribution instead of a known
quantity" as future work. We chose the lognormal distribution because run times are positive and have long tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gridweave.errors import GridweaveError, OptionError
from gridweave.scenarios.workload.estimates import number_of
from gridweave.scenarios.workload.table import MAX_TIME_MS, Workload
from gridweave.site.known_times import KnownTimes

FORMS = "keep, lognormal:X (0 < X <= 10: standard deviation / mean) or experience:FILE.toml"

_EXPERIENCE = "experience"

_MOST = 10.0

FloatArray = npt.NDArray[np.float64]


def with_run_times(workload: Workload, model: str, rng: np.random.Generator, *, folder: Path | None = None) -> Workload:
    """Draw run times in whole milliseconds, at least 1, from a model given as text; uses one random number per job.

    - ``keep`` leaves the workload as it is.
    - ``lognormal:X`` draws from a lognormal distribution whose mean is the recorded run time and whose standard
      deviation is X times the mean.
    - ``experience:FILE`` draws from a lognormal distribution with the mean and standard deviation (at speed 1) that the
      file's ``[[experience]]`` tables contain for the job's class, or else for its user. Jobs without a table keep
      their run times. The file is looked up in ``folder`` first.

    Estimates do not change: a run time above the estimate is truncated to it, and the job counts as overrun. Raises
    OptionError if the model is unknown, its number is missing or out of range, or the file cannot be used.
    """
    if model == "keep":
        return workload
    kind, _, rest = model.partition(":")
    if kind == _EXPERIENCE and rest:
        mean_ms, spread = _known(workload, rest, folder)
    elif kind == "lognormal":
        mean_ms, spread = workload.run_ms.astype(np.float64), np.full(len(workload), _spread(model))
    else:
        raise OptionError("run_times", f"{model!r} is not known; one of {FORMS}")
    variance = np.log1p(spread * spread)
    factor = np.exp(np.sqrt(variance) * rng.standard_normal(len(workload)) - variance / 2)
    drawn_ms = np.clip(np.rint(mean_ms * factor), 1, MAX_TIME_MS).astype(np.int64)
    overran = (drawn_ms > workload.estimate_ms) | (workload.overran & (drawn_ms == workload.estimate_ms))
    return workload.replace(run_ms=np.minimum(drawn_ms, workload.estimate_ms), overran=overran)


def is_from_file(model: str) -> bool:
    """Whether a model reads run times from a file; the workload then needs the columns of job class and user."""
    return model.startswith(f"{_EXPERIENCE}:")


def _spread(model: str) -> float:
    spread = number_of("run_times", model, FORMS)
    if not 0 < spread <= _MOST:
        raise OptionError("run_times", f"{model!r} has a number out of range; write {FORMS}")
    return spread


def _known(workload: Workload, path: str, folder: Path | None) -> tuple[FloatArray, FloatArray]:
    """Return each job's mean run time and the standard deviation divided by the mean, read from a statistics file."""
    # Import here, because the configuration reader loads every discipline.
    from gridweave.grid.config.known_times import read_known_times
    from gridweave.grid.config.networks import beside

    file = beside(folder, path) or Path(path)
    try:
        tables, _ = read_known_times(file)
    except GridweaveError as error:
        raise OptionError("run_times", str(error)) from error
    if problem := _why_unusable(tables, file):
        raise OptionError("run_times", problem)
    mean_ms, spread = workload.run_ms.astype(np.float64), np.zeros(len(workload))
    has_table = np.zeros(len(workload), np.bool_)
    # Process class tables last, because they override user tables.
    for column, of_class in (("user", False), ("job_class", True)):
        names = workload.columns.get(column)
        for table in tables if names is not None else ():
            name = table.job_class if of_class else table.user
            if name is None or table.resource or not str(name).isdecimal():
                continue
            rows = names == int(name)
            mean_ms[rows], spread[rows] = table.mean_ms, table.deviation_ms / table.mean_ms
            has_table |= rows
    if len(workload) and not has_table.any():
        raise OptionError("run_times", f"{file} has no table for any class or user of these jobs")
    return mean_ms, spread


def _why_unusable(tables: Sequence[KnownTimes], file: Path) -> str | None:
    """Return the reason why run times cannot be drawn from the tables, or None."""
    if not tables:
        return f"{file} has no table [[experience]]; gridweave simulate --out writes one (experience.toml)"
    plain = {table.key[0] for table in tables if not table.resource}
    bare = sorted({str(table.job_class) for table in tables if table.resource and table.key[0] not in plain})
    if bare:
        return f"{file} has tables of job class {bare[0]} for resources only; add one without resource, for speed 1"
    wild = next((table for table in tables if table.deviation_ms > _MOST * table.mean_ms), None)
    return f"{file} has a deviation_ms of more than {_MOST:g} times the mean_ms" if wild is not None else None
