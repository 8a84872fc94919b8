"""Check any schedule against the promises of EASY and conservative backfilling (docs/check.md, "Promises").

The module also finds the first job that only one of two schedules starts, and reports whether each policy would start
that job (docs/check.md, "Where two schedules differ").
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from gridweave.errors import check_known
from gridweave.scenarios.check.faults import Matched
from gridweave.scenarios.check.kernels.replay import ReplayedSchedule, chance_under_easy, replay, start_replay, take_in
from gridweave.scenarios.check.reading import NEVER
from gridweave.scenarios.traces.text import seconds_text
from gridweave.scenarios.workload.table import IntArray
from gridweave.site.disciplines.compiled import fill_jobs
from gridweave.site.kernels.state import NEVER_MS, Plan, SiteState, empty_plan, empty_state
from gridweave.site.times import span_text

PROMISES = ("easy", "conservative")


class PromiseUse(msgspec.Struct, frozen=True):
    """How well a schedule kept one policy's promises.

    Attributes
    ----------
    kind : str
        One of `PROMISES`.
    promised : int
        Jobs that were promised a start.
    broken : int
        Jobs that started later than promised.
    first_job : int or None
        Of the jobs with a broken promise, the job with the earliest promised start.
    promised_ms, late_ms : int or None
        The earliest start promised to this job, and the job's delay after that start.
    worst_ms : int
        The longest delay of any job after its promised start.
    """

    kind: str
    promised: int
    broken: int
    first_job: int | None = None
    promised_ms: int | None = None
    late_ms: int | None = None
    worst_ms: int = 0

    def __str__(self) -> str:
        of = f"{self.promised:,} promised starts"
        if not self.broken:
            return f"{self.kind}: kept, {of}"
        return (
            f"{self.kind}: broken for {self.broken:,} of {of}; first job {self.first_job}, promised "
            f"{seconds_text(self.promised_ms or 0)} s, started {span_text(self.late_ms or 0)} later "
            f"(at most {span_text(self.worst_ms)})"
        )


class Replay(NamedTuple):
    """A schedule without faults that is being replayed.

    Attributes
    ----------
    state : SiteState
    plan : Plan or None
        The plan with which conservative backfilling makes promises.
        schedule : ReplayedSchedule
    rows : numpy.ndarray of int64, shape (m,)
        The workload's rows of the jobs that ran; other jobs are left out.
    """

    state: SiteState
    plan: Plan | None
    schedule: ReplayedSchedule
    rows: IntArray

    def replay_until(self, until_ms: int) -> None:
        """Replay all instants before ``until_ms``."""
        replay(self.state, self.plan, self.schedule, np.int64(until_ms))

    def take_in(self, now_ms: int) -> None:
        """Replay the job ends and submissions at ``now_ms``, but no starts."""
        take_in(self.state, self.plan, self.schedule, np.int64(now_ms))


def new_replay(matched: Matched, nodes: int, kind: str) -> Replay:
    """Prepare a schedule for replay, with promises of one kind.

    Parameters
    ----------
    matched : Matched
        A schedule without faults: no job starts before its submission, and no more nodes are in use than exist.
    nodes : int
        Nodes of the machine.
    kind : {"easy", "conservative"}

    Raises
    ------
    OptionError
        If the kind is unknown.
    """
    check_known("promise", kind, PROMISES)
    rows = np.flatnonzero(matched.start_ms != NEVER)
    state = empty_state(nodes, slots=len(rows))
    fill_jobs(state.jobs, matched.workload, rows, "fcfs")
    plan = empty_plan(state, np.array([nodes], np.int64)) if kind == "conservative" else None
    return Replay(state, plan, start_replay(matched.start_ms[rows], matched.end_ms[rows]), rows)


def promise_use(matched: Matched, nodes: int, kind: str, *, tolerance_ms: int = 0) -> PromiseUse:
    """Return how well a schedule kept a policy's promises; see `new_replay` for the other parameters.

    Parameters
    ----------
    tolerance_ms : int, optional
        A job that starts at most this much later than promised still counts as on time.
    """
    replayed = new_replay(matched, nodes, kind)
    replayed.replay_until(int(NEVER_MS))
    shown_ms, start_ms = replayed.schedule.shown_ms, replayed.schedule.start_ms
    promised = shown_ms < NEVER_MS
    late_ms = np.where(promised, start_ms - shown_ms, 0)
    broken = late_ms > tolerance_ms
    count = int(broken.sum())
    if not count:
        return PromiseUse(kind, int(promised.sum()), 0)
    first = int(np.argmin(np.where(broken, shown_ms, NEVER_MS)))
    job_id = int(matched.workload.job_id[replayed.rows[first]])
    figures = job_id, int(shown_ms[first]), int(late_ms[first]), int(late_ms.max())
    return PromiseUse(kind, int(promised.sum()), count, *figures)


class Parting(msgspec.Struct, frozen=True):
    """The first difference between two schedules.

    Attributes
    ----------
    at_ms : int
        The first time at which only one of the schedules starts some job.
    jobs : int
        Number of jobs that start at different times, or in only one of the schedules.
    job_id : int
        The first job in the queue that only one of the schedules starts at that time.
    path : str
        The file of the schedule that starts the job.
    other_ms : int or None
        Time at which the other schedule starts the job; None if never.
    why : str
        Text that says whether EASY and conservative backfilling would start the job.
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
            f"the same until {_s(self.at_ms)}, when {self.path} starts job {self.job_id}; the other {other}\n"
            f"{self.why}\n{self.jobs:,} jobs start at different times"
        )


def parting(matched: Matched, other: Matched, nodes: int) -> Parting | None:
    """Return the first difference between two faultless schedules of one workload, or None if they are equal."""
    differing = np.flatnonzero(matched.start_ms != other.start_ms)
    if not len(differing):
        return None
    starts = np.stack([matched.start_ms[differing], other.start_ms[differing]])
    first_ms = np.where(starts == NEVER, NEVER_MS, starts).min(axis=0)
    row = int(differing[np.argmin(first_ms)])  # ties: the first job in the queue
    at_ms = int(first_ms.min())
    starter, later = (matched, other) if matched.start_ms[row] == at_ms else (other, matched)
    elsewhere_ms = int(later.start_ms[row])
    return Parting(
        at_ms=at_ms,
        jobs=len(differing),
        job_id=int(matched.workload.job_id[row]),
        path=starter.schedule.path,
        other_ms=None if elsewhere_ms == NEVER else elsewhere_ms,
        why=_why(starter, row, at_ms, nodes),
    )


def _why(starter: Matched, row: int, at_ms: int, nodes: int) -> str:
    """Describe whether EASY and conservative backfilling would start the job that only one schedule starts."""
    easy, conservative = (new_replay(starter, nodes, kind) for kind in ("easy", "conservative"))
    for replayed in (easy, conservative):
        replayed.replay_until(at_ms)
        replayed.take_in(at_ms)
    slot = int(np.searchsorted(easy.rows, row))
    promised_ms = int(conservative.state.jobs[slot]["promised_ms"])
    verdict = "starts it now" if promised_ms == at_ms else f"has it start at {_s(promised_ms)}"
    return f"{_of_easy(easy, slot, at_ms)}\nconservative: {verdict}"


def _of_easy(replayed: Replay, slot: int, at_ms: int) -> str:
    """Describe whether EASY would start a job at ``at_ms``, once the jobs ahead of it in the queue have started."""
    state = replayed.state
    head, shadow_ms, extra, starts = chance_under_easy(state, replayed.schedule, np.int64(slot), np.int64(at_ms))
    job, first, counters = state.jobs[slot], state.jobs[head], state.counters[0]
    verdict = "starts it" if starts else "does not start it"
    text = f"easy: {verdict}; {counters['free']} of {counters['nodes']} nodes are free, and it needs {job['width']}"
    if head == slot:
        return f"{text}; it is first in the queue"
    name = f"job {first['job_id']} ({first['width']} nodes)"
    if shadow_ms == at_ms:
        return f"{text}; {name} is first in the queue, and fits"
    return (
        f"{text}; by its estimate it ends at {_s(at_ms + int(job['estimate_ms']))}; {name}, first in the queue, can "
        f"start at {_s(int(shadow_ms))}, with {extra} nodes to spare"
    )


def _s(ms: int) -> str:
    return f"{seconds_text(ms)} s"
