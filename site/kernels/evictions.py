"""Running jobs that a pass has put back into the queue: what rules of any discipline tell whoever plays them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, kernel_part
from gridweave.site.kernels.state import REPLAN, SiteState, leave_running


class Evictions(NamedTuple):
    """What the last pass has evicted, and what was evicted in all.

    Attributes
    ----------
    slots : numpy.ndarray of int64, shape (capacity,)
        Whom the last pass has evicted, in that order.
    counts : numpy.ndarray of int64, shape (2,)
        How many those are, and how many evictions there were in all.
    lost_node_ms : numpy.ndarray of float64, shape (1,)
        What nodes had worked on jobs that begin again.
    keeps_work : bool
        Whether an evicted job goes on from where it was.
    """

    slots: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    lost_node_ms: npt.NDArray[np.float64]
    keeps_work: bool


def no_evictions(room: int, *, keeps_work: bool) -> Evictions:
    """Return that nobody was evicted, with room for so many at once."""
    return Evictions(np.zeros(room, np.int64), np.zeros(2, np.int64), np.zeros(1), keeps_work)


@kernel_part
def evict(state: SiteState, evictions: Evictions, place: Int, now_ms: Int) -> Int:
    """Take the running job at this place off its nodes and return its slot; it is in no queue then.

    If it keeps its work, its estimate is what is left of it.
    """
    counters = state.counters[0]
    end_ms = state.running[place].end_ms
    slot = leave_running(state, place)
    job = state.jobs[slot]
    counters.free += job.width
    counters.stale = REPLAN
    done_ms = now_ms - (end_ms - job.estimate_ms)
    if evictions.keeps_work:
        job.estimate_ms -= done_ms
    else:
        evictions.lost_node_ms[0] += done_ms * job.width
    evictions.slots[evictions.counts[0]] = slot
    evictions.counts[0] += 1
    evictions.counts[1] += 1
    return slot
