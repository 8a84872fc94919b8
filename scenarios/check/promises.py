"""What EASY and conservative backfilling say of a schedule, whoever made it (docs/check.md).

Whether it kept what they promise ("Promises"); and where two schedules of one workload first differ, whether they would
have the job start ("Where two schedules differ").
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from gridweave.errors import check_known
from gridweave.scenarios.check.faults import Matched
from gridweave.scenarios.check.kernels.replay import PlayedSchedule, chance_under_easy, new_played, replay, take_in
from gridweave.scenarios.check.reading import NEVER
from gridweave.scenarios.traces.text import seconds_text
from gridweave.scenarios.workload.table import IntArray
from gridweave.site.disciplines.compiled import fill_jobs
from gridweave.site.kernels.state import NEVER_MS, Plan, SiteState, empty_plan, empty_state

PROMISES = ("easy", "conservative")


class PromiseUse(msgspec.Struct, frozen=True):
    """Whether promises of a kind were kept.

    Attributes
    ----------
    kind : str
        One of `PROMISES`.
    made : int
        Jobs that were promised a start.
    broken : int
        Of these, those that started later.
    first_job : int or None
        The job whose promised start passed first.
    promised_ms, late_ms : int or None
        The earliest start that it was promised, and how much later it started.
    worst_ms : int
        How much later than promised any job started, at most.
    """

    kind: str
    made: int
    broken: int
    first_job: int | None = None
    promised_ms: int | None = None
    late_ms: int | None = None
    worst_ms: int = 0

    def __str__(self) -> str:
        of = f"{self.made:,} promised starts"
        if not self.broken:
            return f"{self.kind}: kept, {of}"
        return (
            f"{self.kind}: broken for {self.broken:,} of {of}; first job {self.first_job}, promised "
            f"{seconds_text(self.promised_ms or 0)} s, started {seconds_text(self.late_ms or 0)} s later "
            f"(at most {seconds_text(self.worst_ms)} s)"
        )


class Replay(NamedTuple):
    """A schedule without faults as it is played.

    Attributes
    ----------
    state : SiteState
    plan : Plan or None
        For the promises of conservative backfilling.
    played : PlayedSchedule
    rows : numpy.ndarray of int64, shape (m,)
        The jobs of the workload that ran; they alone are played.
    """

    state: SiteState
    plan: Plan | None
    played: PlayedSchedule
    rows: IntArray

    def play(self, until_ms: int) -> None:
        """Play all instants before one."""
        replay(self.state, self.plan, self.played, np.int64(until_ms))

    def take_in(self, now_ms: int) -> None:
        """Play the ends and submissions of an instant, and no start."""
        take_in(self.state, self.plan, self.played, np.int64(now_ms))


def new_replay(matched: Matched, nodes: int, kind: str) -> Replay:
    """Return a schedule at its beginning, to be played with promises of a kind.

    Parameters
    ----------
    matched : Matched
        Without faults: no job starts before its submission, and no more nodes are in use than there are.
    nodes : int
        Of the machine.
    kind : {"easy", "conservative"}

    Raises
    ------
    OptionError
        If there is no such promise.
    """
    check_known("promise", kind, PROMISES)
    rows = np.flatnonzero(matched.start_ms != NEVER)
    state = empty_state(nodes, slots=len(rows))
    fill_jobs(state.jobs, matched.workload, rows, "fcfs")
    plan = empty_plan(state, np.array([nodes], np.int64)) if kind == "conservative" else None
    return Replay(state, plan, new_played(matched.start_ms[rows], matched.end_ms[rows]), rows)


def promise_use(matched: Matched, nodes: int, kind: str, *, tolerance_ms: int = 0) -> PromiseUse:
    """Return whether a schedule kept what a policy promises; the arguments are as for `new_replay`.

    Parameters
    ----------
    tolerance_ms : int, optional
        How much later than promised a job may start.
    """
    played = new_replay(matched, nodes, kind)
    played.play(int(NEVER_MS))
    shown_ms, start_ms = played.played.shown_ms, played.played.start_ms
    made = shown_ms < NEVER_MS
    late_ms = np.where(made, start_ms - shown_ms, 0)
    broken = late_ms > tolerance_ms
    count = int(broken.sum())
    if not count:
        return PromiseUse(kind, int(made.sum()), 0)
    first = int(np.argmin(np.where(broken, shown_ms, NEVER_MS)))
    job_id = int(matched.workload.job_id[played.rows[first]])
    figures = job_id, int(shown_ms[first]), int(late_ms[first]), int(late_ms.max())
    return PromiseUse(kind, int(made.sum()), count, *figures)


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
