"""Run times as distributions: what a trace says of a job is the mean of what its run time is drawn from.

Source: Collins and George (2001), section 6, name "modeling job execution time as a statistical distribution instead of
a known quantity" as future work. That it is a lognormal one is a guess: run times are above 0 and have long tails.
"""

from __future__ import annotations

import math

import numpy as np

from gridweave.errors import OptionError
from gridweave.scenarios.workload.estimates import number_of
from gridweave.scenarios.workload.table import MAX_TIME_MS, Workload

FORMS = "keep or lognormal:X (0 < X <= 10: the standard deviation by the mean)"

_MOST = 10.0


def with_run_times(workload: Workload, model: str, rng: np.random.Generator) -> Workload:
    """Draw the run times of jobs as a text says, with one number per job; they are whole milliseconds from 1 up.

    The text is ``keep`` (those of the workload), or ``lognormal:X``: drawn from a lognormal distribution, of which the
    run time in the workload is the mean and X the standard deviation in parts of that. Estimates stay: a job that would
    run for longer is ended there, and counts as one that overran. OptionError if the text names no model, or its number
    is missing or out of bounds.
    """
    if model == "keep":
        return workload
    if model.partition(":")[0] != "lognormal":
        raise OptionError("run_times", f"{model!r} is not known; one of {FORMS}")
    spread = number_of("run_times", model, FORMS)
    if not 0 < spread <= _MOST:
        raise OptionError("run_times", f"{model!r} has a number out of its range; write {FORMS}")
    variance = math.log1p(spread * spread)
    factor = np.exp(math.sqrt(variance) * rng.standard_normal(len(workload)) - variance / 2)
    drawn_ms = np.clip(np.rint(workload.run_ms * factor), 1, MAX_TIME_MS).astype(np.int64)
    overran = (drawn_ms > workload.estimate_ms) | (workload.overran & (drawn_ms == workload.estimate_ms))
    return workload.replace(run_ms=np.minimum(drawn_ms, workload.estimate_ms), overran=overran)
