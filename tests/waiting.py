"""Wait for conditions in other processes, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gridweave.site.job import JobRecord

PATIENCE_S = 300.0
"""Longest wait for a condition; more than the busiest machine needs, as speed is not tested."""

_LOOK_AGAIN_S = 0.05


def until(happened: Callable[[], Any], patience_s: float = PATIENCE_S, *, every_s: float = _LOOK_AGAIN_S) -> Any:
    """Wait until `happened` returns a true value, and return it; raise `every_s` if a check is expensive."""
    until_s = time.monotonic() + patience_s
    while not (found := happened()):
        assert time.monotonic() < until_s, f"it does not happen within {patience_s:g} s"
        time.sleep(every_s)
    return found


def the_end(grid: Any, job_id: int) -> JobRecord:
    """Wait until a job of a grid on Ray has ended, and return its record."""
    return until(lambda: next((record for record in grid.records([job_id]) if record.state == "ended"), None))
