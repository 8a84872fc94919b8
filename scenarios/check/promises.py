"""Whether a schedule kept what EASY or conservative backfilling promises (docs/check.md, "Promises")."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from gridweave.errors import check_known
from gridweave.scenarios.check.faults import Matched
from gridweave.scenarios.check.kernels.replay import PlayedSchedule, new_played, replay, take_in
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
