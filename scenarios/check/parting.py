"""Where two schedules of one workload first differ, and what the rules of backfilling say of it."""

from __future__ import annotations

import msgspec
import numpy as np

from gridweave.scenarios.check.faults import Matched
from gridweave.scenarios.check.kernels.replay import chance_under_easy
from gridweave.scenarios.check.promises import Replay, new_replay
from gridweave.scenarios.check.reading import NEVER
from gridweave.scenarios.traces.text import seconds_text
from gridweave.site.kernels.state import NEVER_MS


class Parting(msgspec.Struct, frozen=True):
    """Where two schedules first differ.

    Attributes
    ----------
    at_ms : int
        The first instant at which one starts a job that the other does not.
    jobs : int
        How many jobs start at different times, or in one of the two alone.
    job_id : int
        Of those that one starts at that instant and the other does not, the first in the queue.
    path : str
        The schedule that starts it.
    other_ms : int or None
        When the other starts it; None if never.
    why : str
        What EASY and conservative backfilling say of that start.
    """

    at_ms: int
    jobs: int
    job_id: int
    path: str
    other_ms: int | None
    why: str

    def __str__(self) -> str:
        other = "never starts it" if self.other_ms is None else f"starts it at {_s(self.other_ms)}"
        return (
            f"alike until {_s(self.at_ms)}, when {self.path} starts job {self.job_id}; the other {other}\n"
            f"{self.why}\n{self.jobs:,} jobs start at different times"
        )


def parting(one: Matched, other: Matched, nodes: int) -> Parting | None:
    """Return where two schedules of one workload, both without faults, first differ; None if they are alike."""
    differing = np.flatnonzero(one.start_ms != other.start_ms)
    if not len(differing):
        return None
    starts = np.stack([one.start_ms[differing], other.start_ms[differing]])
    first_ms = np.where(starts == NEVER, NEVER_MS, starts).min(axis=0)
    row = int(differing[np.argmin(first_ms)])  # the first in the queue, of those of one instant
    at_ms = int(first_ms.min())
    starter, later = (one, other) if one.start_ms[row] == at_ms else (other, one)
    elsewhere_ms = int(later.start_ms[row])
    return Parting(
        at_ms=at_ms,
        jobs=len(differing),
        job_id=int(one.workload.job_id[row]),
        path=starter.schedule.path,
        other_ms=None if elsewhere_ms == NEVER else elsewhere_ms,
        why=_why(starter, row, at_ms, nodes),
    )


def _why(starter: Matched, row: int, at_ms: int, nodes: int) -> str:
    """Return what EASY and conservative backfilling say of the start of a job by one schedule."""
    easy, conservative = (new_replay(starter, nodes, kind) for kind in ("easy", "conservative"))
    for played in (easy, conservative):
        played.play(at_ms)
        played.take_in(at_ms)
    slot = int(np.searchsorted(easy.rows, row))
    promised_ms = int(conservative.state.jobs[slot]["promised_ms"])
    said = "starts it now" if promised_ms == at_ms else f"has it start at {_s(promised_ms)}"
    return f"{_of_easy(easy, slot, at_ms)}\nconservative: {said}"


def _of_easy(played: Replay, slot: int, at_ms: int) -> str:
    """Return what EASY says of a job at an instant, once all have started that stand before it and do start then."""
    state = played.state
    head, shadow_ms, extra, starts = chance_under_easy(state, played.played, np.int64(slot), np.int64(at_ms))
    job, first, counters = state.jobs[slot], state.jobs[head], state.counters[0]
    verdict = "starts it" if starts else "does not start it"
    said = f"easy: {verdict}; {counters['free']} of {counters['nodes']} nodes are free, and it takes {job['width']}"
    if head == slot:
        return f"{said}; it is first in the queue"
    name = f"job {first['job_id']} ({first['width']} nodes)"
    if shadow_ms == at_ms:
        return f"{said}; {name} is first in the queue, and fits"
    return (
        f"{said}; by its estimate it ends at {_s(at_ms + int(job['estimate_ms']))}; {name}, first in the queue, can "
        f"start at {_s(int(shadow_ms))}, with {extra} nodes to spare"
    )


def _s(ms: int) -> str:
    return f"{seconds_text(ms)} s"
