"""The gang scheduling discipline, stepped event by event (docs/gang.md).

The discipline owns the arrays and assigns each job a slot; the kernels make the decisions. A job in the matrix starts
when its first slice begins. Until then, the site counts it as waiting.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from gridweave.ranges import ranges_of
from gridweave.site.disciplines.arrays import PacedDiscipline
from gridweave.site.disciplines.base import Decisions, Move, Rate, Start
from gridweave.site.disciplines.entry import must_end_by
from gridweave.site.disciplines.gang.kernels.columns import WORD_BITS
from gridweave.site.disciplines.gang.kernels.gang_pass import gang_pass, rates_at
from gridweave.site.disciplines.gang.kernels.state import (
    CONSERVATIVE,
    NO_ROW,
    GangCodes,
    GangSite,
    close_columns,
    cycle_of,
    empty_matrix,
    gang_job_ended,
    gang_job_submitted,
    gang_job_withdrawn,
)
from gridweave.site.disciplines.gang.matrix import (
    check_matrix,
    columns_of,
    gang_totals,
    matrix_of,
)
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.disciplines.slots import SlotsState, copy_into
from gridweave.site.explain import SiteReason, ahead_text, nodes_text
from gridweave.site.job import ASKED_ID, Job, NodeIntervals, Running
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.order import ORDERS
from gridweave.site.kernels.parts import UNIT, parts_of_node
from gridweave.site.kernels.state import NEVER_MS, UNPLACED_MS
from gridweave.site.kernels.turns import walk_turns
from gridweave.site.kernels.work import NOT_RUNNING, RATE_ONE
from gridweave.site.state import Arrays, CoreState, arrays_state
from gridweave.site.times import when_text

_NEVER = int(NEVER_MS)


class GangDisciplineState(CoreState, frozen=True, kw_only=True, tag="GangDiscipline 1"):
    """The saved state of a gang site: its arrays, and the last reported rate of each running job."""

    slots: SlotsState
    arrays: Arrays
    rates: dict[int, int]
    next_change_ms: int


class GangDiscipline(PacedDiscipline[GangSite]):
    """A discipline that stores its jobs and its matrix in arrays and leaves the decisions to kernels.

    Parameters
    ----------
    nodes : int
        Number of nodes of the site.
    policy : GangPolicy
    week : WeekClock
        Ignored.
    """

    state_type = GangDisciplineState

    def __init__(self, nodes: int, policy: GangPolicy, week: WeekClock = FROM_MONDAY) -> None:
        self._policy, self._codes = policy, policy.codes()
        super().__init__(nodes)
        # The next time at which a rate changes or a job starts.
        self._next_change_ms = _NEVER

    @override
    def _empty(self, slots: int) -> GangSite:
        return empty_matrix(self.nodes, self._policy.mpl, slots=slots)

    @property
    @override
    def free(self) -> int:
        """The number of nodes that no running job uses in any slice."""
        taken = 0
        for job_id in self._rate:
            taken |= self._bits_of(job_id)
        return self.nodes - taken.bit_count()

    @property
    @override
    def in_use(self) -> int:
        """Bit mask of the nodes used by placed jobs in at least one slice."""
        columns = (self._state.columns[bits] for bits in self._state.jobs["bits"][self._placed()])
        return _number(functools.reduce(np.bitwise_or, columns, np.zeros_like(self._state.closed)))

    @override
    def serve(self, now_ms: int, nodes: int) -> None:
        """Set the nodes in service, given as a bit mask; jobs on nodes taken out of service stay in their rows."""
        closed, words = (1 << self.nodes) - 1 & ~nodes, range(len(self._state.closed))
        columns = np.array([closed >> number * WORD_BITS & (1 << WORD_BITS) - 1 for number in words])
        close_columns(self._state, self._codes, columns, np.int64(now_ms))

    def _bits_of(self, job_id: int) -> int:
        """Return the nodes of a placed job as a bit mask."""
        return _number(self._state.columns[self._state.jobs["bits"][self._slots.of[job_id]]])

    def nodes_of(self, job_id: int) -> NodeIntervals:
        """Return the nodes of a placed job; during its slices, the job has all hardware threads of these nodes."""
        return ranges_of(columns_of(self._state, self._slots.of[job_id]))

    @override
    def submit(self, now_ms: int, job: Job) -> None:
        slot = self._entered(job)
        row = self._state.jobs[slot]
        row["submit_ms"], row["job_id"] = now_ms, job.job_id
        row["width"], row["estimate_ms"] = job.width, job.estimate_ms
        row["memory"] = 0 if job.resources is None else parts_of_node(job.resources.memory)
        key = ORDERS[self._policy.order](now_ms, job.width, job.estimate_ms, job.weight, job.priority, math.inf)
        row["key"] = math.inf if job.behind else float(key)
        gang_job_submitted(self._state, self._codes, np.int64(slot), np.int64(now_ms))

    @override
    def ended(self, now_ms: int, job_id: int) -> None:
        gang_job_ended(self._state, self._codes, np.int64(self._slots.of[job_id]), np.int64(now_ms))
        del self._rate[job_id]
        self._slots.leave(job_id)

    @override
    def withdraw(self, now_ms: int, job_id: int) -> None:
        slot = np.int64(self._slots.of[job_id])
        if not gang_job_withdrawn(self._state, self._codes, slot, np.int64(now_ms)):
            # In the matrix, the job's first slice has begun, but no pass has run since then to start the job.
            assert job_id not in self._rate, f"job {job_id} is not waiting"
            gang_job_ended(self._state, self._codes, slot, np.int64(now_ms))
        self._slots.leave(job_id)

    @override
    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        """Increase a running job's estimate by the time by which its end is delayed, at least 1 ms."""
        row = self._state.jobs[self._slots.of[job_id]]
        row["estimate_ms"] += max(1, end_ms - int(row["end_ms"]))
        row["end_ms"] = end_ms

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        """Make a decision if one is due, and start the jobs whose first slice begins now, in order of placement."""
        decided = gang_pass(self._state, self._codes, np.int64(now_ms))
        moved = self._moved() if decided and self._policy.migration != "none" else ()
        placed = self._placed()
        rates = np.zeros(len(self._state.placed), np.int64)
        self._next_change_ms = int(rates_at(self._state, self._codes, np.int64(now_ms), rates))
        starts, changes = [], dict[int, int]()
        for slot, rate in zip(placed.tolist(), rates.tolist(), strict=False):
            job = self._slots.jobs[slot]
            if job.job_id not in self._rate:
                if rate == NOT_RUNNING:
                    continue
                self._rate[job.job_id] = RATE_ONE
                starts.append(Start(job, self.nodes_of(job.job_id)))
            # A job started by an earlier pass at this instant is paused if a later event has taken its slice.
            rate_now = max(0, rate)
            if self._rate[job.job_id] != rate_now:
                self._rate[job.job_id] = changes[job.job_id] = rate_now
        moves = [Move(job_id, self.nodes_of(job_id)) for job_id in moved]
        return Decisions(starts, moves=moves, rates=[Rate(*change) for change in sorted(changes.items())])

    def _moved(self) -> list[int]:
        """Return the ids, ascending, of the running jobs that the last decision moved."""
        placed, table = self._placed(), self._state.jobs
        ids = table["job_id"][placed[table["moved"][placed] == self._state.counters["decisions"][0]]].tolist()
        return sorted(job_id for job_id in ids if job_id in self._rate)

    @override
    def progress(self, now_ms: int, job_id: int) -> tuple[float, int]:
        job = self._state.jobs[self._slots.of[job_id]]
        worked_ms, since_ms = int(job["worked_ms"]), int(self._state.counters["since_ms"][0])
        if int(job["begin_ms"]) < now_ms > since_ms:
            cycle = cycle_of(self._state, self._codes)
            gained_ms = int(walk_turns(job, cycle, np.int64(now_ms - since_ms), NEVER_MS).gained_ms)
            worked_ms += max(0, gained_ms - int(job["owed_ms"]))
        return self._rate[job_id] / RATE_ONE, worked_ms

    def _placed(self) -> npt.NDArray[np.int64]:
        placed: npt.NDArray[np.int64] = self._state.placed[: self._state.counters["n_placed"][0]]
        return placed

    @override
    def next_wakeup_ms(self) -> int | None:
        """Return the next time when a rate changes, a job starts or a decision is due."""
        next_ms = min(self._next_change_ms, int(self._state.counters["due_ms"][0]))
        return None if next_ms == _NEVER else next_ms

    @override
    def next_end_ms(self) -> int | None:
        return min((int(self._state.jobs["end_ms"][self._slots.of[job_id]]) for job_id in self._rate), default=None)

    @override
    def running(self) -> Iterator[Running]:
        rows = [self._state.jobs[self._slots.of[job_id]] for job_id in self._rate]
        for row in sorted(rows, key=lambda row: (row["end_ms"], row["job_id"])):
            yield Running(self._slots.job(int(row["job_id"])), int(row["begin_ms"]), int(row["end_ms"]))

    @override
    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield placed jobs that have not started, with their starts, then queued jobs, with any promised starts."""
        for slot in self._placed().tolist():
            job = self._slots.jobs[slot]
            if job.job_id not in self._rate:
                yield job, int(self._state.jobs["begin_ms"][slot])
        for slot in self._state.waiting[: self._state.counters["n_waiting"][0]].tolist():
            promised_ms = int(self._state.jobs["promised_ms"][slot])
            yield self._slots.jobs[slot], None if promised_ms in (UNPLACED_MS, _NEVER) else promised_ms

    @override
    def startable(self, now_ms: int, length_ms: int) -> int:
        free: list[int] = self._free_in_rows().tolist()
        for width in sorted(set(free) - {0}, reverse=True):
            if self._start_ms(now_ms, width, length_ms, self._codes) == now_ms:
                return width
        return 0

    def _free_in_rows(self) -> npt.NDArray[np.int64]:
        """Return the number of free nodes in service in each row."""
        free: npt.NDArray[np.int64] = self._state.counters["nodes"][0] - self._state.used + self._state.shut
        return free

    @override
    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        if width > self.nodes:
            return None
        # Only conservative backfilling promises every job a start, so use it if the site's policy does not promise one.
        start_ms = self._start_ms(now_ms, width, length_ms, self._codes)
        if start_ms is None:
            start_ms = self._start_ms(now_ms, width, length_ms, self._codes._replace(backfill=CONSERVATIVE))
        return start_ms

    def _start_ms(self, now_ms: int, width: int, length_ms: int, codes: GangCodes) -> int | None:
        """Return when a job submitted now, behind all others, would start; None if it would not be promised a start."""
        trial = self.copy()
        trial._codes = codes
        trial.submit(now_ms, Job(job_id=ASKED_ID, width=width, estimate_ms=length_ms, behind=True))
        gang_pass(trial._state, codes, np.int64(now_ms))
        row = trial._state.jobs[trial._slots.of[ASKED_ID]]
        start_ms = int(row["promised_ms"] if row["home"] == NO_ROW else row["begin_ms"])
        return None if start_ms in (_NEVER, UNPLACED_MS) else start_ms

    @override
    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        row = self._state.jobs[self._slots.of[job_id]]
        if row["home"] != NO_ROW:
            begin_ms = int(row["begin_ms"])
            reason = (
                f"it has its nodes in row {int(row['home'])} of the matrix, whose turn is {when_text(begin_ms, now_ms)}"
            )
            return SiteReason(start_ms=begin_ms, ahead=0, reason=reason)
        queue = self._state.waiting[: self._state.counters["n_waiting"][0]].tolist()
        place = queue.index(self._slots.of[job_id])
        promised_ms = int(row["promised_ms"])
        start_ms = None if promised_ms in (UNPLACED_MS, _NEVER) else max(promised_ms, now_ms)
        free = int(self._free_in_rows().max())
        reason = f"it needs {nodes_text(int(row['width']))} in one row of the matrix; no row has more than {free} free"
        if row["memory"] and row["width"] <= free:
            n_fitting = int((self._state.memory + row["memory"] <= UNIT).sum())
            part = f"{row['memory'] / UNIT:.0%}"
            reason += f", and {nodes_text(n_fitting)} have {part} of their memory free"
        if self._policy.backfill == "none" and place > 0:
            reason += f", and {ahead_text(place)} must be placed before it"
        elif place > 0:
            reason += f", and the starts promised to {ahead_text(place)} are kept"
        return SiteReason(
            start_ms=start_ms, ahead=place, waits_for=must_end_by(self.running(), start_ms), reason=reason
        )

    @override
    def totals(self) -> Mapping[str, float]:
        return gang_totals(self._state)

    def matrix(self) -> list[list[int | None]]:
        """Return the matrix of job ids (rows x nodes); None where a node is free."""
        return matrix_of(self._state)

    @override
    def _grow(self) -> None:
        """Double the number of slots; the old vacant rows of ``columns`` will be used before the new rows."""
        old = self._state
        self._state = self._empty(self._slots.double())
        vacant = self._state.vacant[: len(self._state.vacant) - len(old.vacant)].copy()
        copy_into(self._state, old)
        count = int(old.counters["n_vacant"][0])
        self._state.vacant[: len(vacant)] = vacant
        self._state.vacant[len(vacant) : len(vacant) + count] = old.vacant[:count]
        self._state.counters["n_vacant"] = len(vacant) + count

    @override
    def state(self) -> GangDisciplineState:
        arrays = arrays_state(self._state)
        return GangDisciplineState(
            slots=self._slots.state(), arrays=arrays, rates=self._rate, next_change_ms=self._next_change_ms
        )

    @override
    def restore(self, state: GangDisciplineState) -> None:
        super().restore(state)
        self._next_change_ms = state.next_change_ms

    @override
    def check_invariants(self) -> None:
        check_matrix(self._state)
        placed = [int(self._state.jobs["job_id"][slot]) for slot in self._placed()]
        assert set(self._rate) <= set(placed), "a running job is not in the matrix"
        waiting = [job.job_id for job, _ in self.waiting()]
        assert sorted([*self._rate, *waiting]) == sorted(self._slots.of), "a job is lost or doubled"


def _number(columns: npt.NDArray[np.int64]) -> int:
    """Convert a set of columns, stored in words, to a single bit mask."""
    return sum(word << (number * WORD_BITS) for number, word in enumerate(columns.tolist()))
