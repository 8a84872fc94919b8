"""Run times as distributions: drawn around those of a trace, or from what is known of a job's class.

Source: Collins and George (2001), section 6, name "modeling job execution time as a statistical distribution instead of
a known quantity" as future work. That it is a lognormal one is a guess: run times are above 0 and have long tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gridweave.errors import GridweaveError, OptionError
from gridweave.scenarios.workload.estimates import number_of
from gridweave.scenarios.workload.table import MAX_TIME_MS, Workload
from gridweave.site.disciplines.known_times import KnownTimes

FORMS = "keep, lognormal:X (0 < X <= 10: the standard deviation by the mean) or experience:FILE.toml"

EXPERIENCE = "experience"

_MOST = 10.0

FloatArray = npt.NDArray[np.float64]


def with_run_times(workload: Workload, model: str, rng: np.random.Generator, *, folder: Path | None = None) -> Workload:
    """Draw the run times of jobs as a text says, with one number per job; they are whole milliseconds from 1 up.

    The text is ``keep`` (those of the workload), ``lognormal:X``: drawn from a lognormal distribution, of which the
    run time in the workload is the mean and X the standard deviation in parts of that, or ``experience:FILE``: each
    from one with the mean and the standard deviation that the tables ``[[experience]]`` of the file have of work at
    speed 1, for the job's class or else for its user; what they do not know keeps its run time. A file is looked for in
    ``folder`` first. Estimates stay: a job that would run for longer is ended there, and counts as one that overran.
    OptionError if the text names no model, its number is missing or out of bounds, or the file cannot be used.
    """
    if model == "keep":
        return workload
    kind, _, rest = model.partition(":")
    if kind == EXPERIENCE and rest:
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


def _spread(model: str) -> float:
    spread = number_of("run_times", model, FORMS)
    if not 0 < spread <= _MOST:
        raise OptionError("run_times", f"{model!r} has a number out of its range; write {FORMS}")
    return spread


def _known(workload: Workload, path: str, folder: Path | None) -> tuple[FloatArray, FloatArray]:
    """Return the mean run time of each job, and its standard deviation in parts of that, as a file knows them."""
    # What reads the files of grids loads every discipline.
    from gridweave.grid.config.known_times import read_known_times
    from gridweave.grid.config.networks import beside

    file = beside(folder, path) or Path(path)
    try:
        known, _ = read_known_times(file)
    except GridweaveError as error:
        raise OptionError("run_times", str(error)) from error
    if problem := _why_unusable(known, file):
        raise OptionError("run_times", problem)
    mean_ms, spread = workload.run_ms.astype(np.float64), np.zeros(len(workload))
    is_known = np.zeros(len(workload), np.bool_)
    # The class goes before the user.
    for column, of_class in (("user", False), ("job_class", True)):
        names = workload.columns.get(column)
        for one in known if names is not None else ():
            name = one.job_class if of_class else one.user
            if name is None or one.resource or not str(name).isdecimal():
                continue
            rows = names == int(name)
            mean_ms[rows], spread[rows] = one.mean_ms, one.deviation_ms / one.mean_ms
            is_known |= rows
    if len(workload) and not is_known.any():
        raise OptionError("run_times", f"{file} knows none of the classes and users of these jobs")
    return mean_ms, spread


def _why_unusable(known: Sequence[KnownTimes], file: Path) -> str | None:
    """Return why no run times can be drawn from what is known, or None."""
    if not known:
        return f"{file} has no table [[experience]]; gridweave simulate --out writes one (experience.toml)"
    plain = {one.key[0] for one in known if not one.resource}
    bare = sorted({str(one.job_class) for one in known if one.resource and one.key[0] not in plain})
    if bare:
        return f"{file} knows job class {bare[0]} on resources only; add a table without resource: work at speed 1"
    wild = next((one for one in known if one.deviation_ms > _MOST * one.mean_ms), None)
    return f"{file} has a deviation_ms of more than {_MOST:g} times the mean_ms" if wild is not None else None
