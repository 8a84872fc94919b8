"""A workload played in pieces in the compiled loop, so that progress can be told, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.workload.table import IntArray

Progress = Callable[[int, int], None]


def in_pieces(jobs: int, piece: int, progress: Progress | None) -> Iterator[int]:
    """Yield up to how many jobs to play next, and tell after each piece how many of all have been submitted.

    Without jobs nothing is played, and that is told too.
    """
    for until in [*range(piece, jobs, piece), jobs]:
        if jobs:
            yield until
        if progress is not None:
            progress(until, jobs)


def times_of(start_ms: IntArray, end_ms: IntArray, rows: IntArray, jobs: int) -> tuple[IntArray, IntArray]:
    """Return starts and ends of all jobs of a workload, of those that were played in some of its rows."""
    starts, ends = np.full((2, jobs), NEVER, np.int64)
    starts[rows], ends[rows] = start_ms, end_ms
    return starts, ends
