"""The jobs of one simulation as the compiled loop has them: when they start and end, and what is still to come."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import Ends, no_ends

NOT_YET = np.int64(-1)
"""The start or end of a job that has not started, or ended."""

_CLOCK = np.dtype(
    [(name, np.int64) for name in ("submitted", "cancelled", "changed", "woken_ms", "stirred")], align=True
)


class RunArrays(NamedTuple):
    """The jobs of one simulation, in the order of submission.

    Attributes
    ----------
    clock : numpy.ndarray of records, shape (1,)
        How many jobs have been ``submitted``, how many entries of the cancellations are dealt with, and how many of the
        changes of nodes (``changed``); at which instant something else has changed that a pass is to see (`NEVER_MS` if
        nothing has), and whether flows have begun or ended since links were shared last.
    run_ms : numpy.ndarray of int64, shape (n,)
        Run times on one site, which sites and grid do not know.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        Filled in; `NOT_YET` at first.
    ends : Ends
    """

    clock: npt.NDArray[np.void]
    run_ms: npt.NDArray[np.int64]
    start_ms: npt.NDArray[np.int64]
    end_ms: npt.NDArray[np.int64]
    ends: Ends


def new_run(run_ms: npt.NDArray[np.int64], room: int) -> RunArrays:
    """Return a simulation at its beginning, with room for the ends of so many jobs."""
    start_ms, end_ms = np.full((2, len(run_ms)), NOT_YET)
    clock = np.zeros(1, _CLOCK)
    clock["woken_ms"] = NEVER_MS
    return RunArrays(clock, np.ascontiguousarray(run_ms), start_ms, end_ms, no_ends(room))
