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
    keeps_work : numpy.ndarray of bool, shape (capacity,)
        Whether each of them goes on from where it was.
    counts : numpy.ndarray of int64, shape (2,)
        How many those are, and how many evictions there were in all.
    lost_node_ms : numpy.ndarray of float64, shape (1,)
        What nodes had worked on jobs that begin again.
    """

    slots: npt.NDArray[np.int64]
    keeps_work: npt.NDArray[np.bool_]
    counts: npt.NDArray[np.int64]
    lost_node_ms: npt.NDArray[np.float64]


def no_evictions(room: int) -> Evictions:
    """Return that nobody was evicted, with room for so many at once."""
    return Evictions(np.zeros(room, np.int64), np.zeros(room, np.bool_), np.zeros(2, np.int64), np.zeros(1))


@kernel_part
def evict(state: SiteState, evictions: Evictions, place: Int, keeps_work: bool, now_ms: Int) -> None:
    """Take the running job at this place off its nodes; it is in no queue then.

    If it keeps its work, its estimate is what is left of it.
    """
    counters = state.counters[0]
    end_ms = state.running[place].end_ms
    slot = leave_running(state, place)
    job = state.jobs[slot]
    counters.free += job.width
    counters.stale = REPLAN
    done_ms = now_ms - (end_ms - job.estimate_ms)
    if keeps_work:
        job.estimate_ms -= done_ms
    else:
        evictions.lost_node_ms[0] += done_ms * job.width
    evictions.slots[evictions.counts[0]] = slot
    evictions.keeps_work[evictions.counts[0]] = keeps_work
    evictions.counts[0] += 1
    evictions.counts[1] += 1
