"""A queue with levels of priority, stepped event by event (docs/levels.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec
import numpy as np

from gridweave.site.disciplines.levels.kernels.levels import STAYS, LevelRules, LevelTable
from gridweave.site.disciplines.levels.policy import WAYS, LevelsPolicy
from gridweave.site.disciplines.levels.rights import level_of, why_not_allowed
from gridweave.site.disciplines.protocol import Eviction, ExpectedRun
from gridweave.site.disciplines.queue import ArrayDiscipline, ArrayDisciplineState
from gridweave.site.disciplines.slots import copied, copy_into
from gridweave.site.explain import SiteReason
from gridweave.site.job import ASKED_ID, Job
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.state import NEVER_MS, UNPLACED_MS
from gridweave.site.state import Arrays, arrays_state, restored_arrays


class LevelsState(ArrayDisciplineState, frozen=True, kw_only=True, tag="Levels 1"):
    """The jobs of a site in arrays, their levels, and what has been evicted."""

    levels: Arrays


class Levels(ArrayDiscipline):
    """A queue or a planning site with levels of priority.

    Parameters
    ----------
    nodes : int
        Nodes of the site.
    policy : LevelsPolicy
    week : WeekClock
        The local time of the week.
    """

    state_type: Any = LevelsState

    def __init__(self, nodes: int, policy: LevelsPolicy, week: WeekClock = FROM_MONDAY) -> None:
        self._by = policy
        self._table: LevelTable | None = None
        self._evicted: list[Eviction] = []
        super().__init__(nodes, policy.under, week)

    def _made_rules(self) -> LevelRules:
        made = self._by.table(len(self._state.jobs), len(self._state.running))
        if self._table is not None:
            copy_into(_told(made), _told(self._table))
        self._table = made
        return LevelRules(super()._made_rules(), made)

    @property
    def table(self) -> LevelTable:
        """The levels of the jobs, and who was evicted."""
        assert self._table is not None, "a site with levels that has none"
        return self._table

    def why_never(self, job: Job) -> str | None:
        """Return why a job could never start here, or None."""
        return super().why_never(job) or why_not_allowed(self._by.levels, job.priority, job.user_name or job.user)

    def submit(self, now_ms: int, job: Job) -> None:
        """Take in a job."""
        if self._slots.is_full:
            self._grow()
        slot = self._slots.next_free
        self.table.base[slot] = level_of(self._by.levels, job.priority)
        self.table.times[slot], self.table.by[slot] = job.evictions, 0
        self.table.way[slot] = WAYS[job.if_evicted or self._by.evicted]
        super().submit(now_ms, job)

    def reserve(self, now_ms: int, reservation_id: int, start_ms: int, length_ms: int, width: int) -> int | None:
        """Reserve nodes as a planning site does, where nobody is evicted: else there is no reservation."""
        return None if self._by.evicts else super().reserve(now_ms, reservation_id, start_ms, length_ms, width)

    def spare(self, job_id: int) -> None:
        """Never evict a running job from now on: nobody can have all of its nodes."""
        self.table.way[self._slots.of[job_id]] = STAYS

    def run_pass(self, now_ms: int) -> list[Job]:
        """Evict whose nodes the jobs at the head may take, and return the jobs that start."""
        evictions = self.table.evictions
        evictions.counts[0] = 0
        started = super().run_pass(now_ms)
        starts = {job.job_id for job in started}
        for slot, keeps_work in zip(
            evictions.slots[: evictions.counts[0]].tolist(), evictions.keeps_work, strict=False
        ):
            left_ms = int(self._state.jobs[slot]["estimate_ms"])
            job = self._slots.jobs[slot] = msgspec.structs.replace(self._slots.jobs[slot], estimate_ms=left_ms)
            self._evicted.append(Eviction(job.job_id, bool(keeps_work), *self._why_evicted(slot)))
            if job.job_id in starts:  # on other nodes, which several evictions have left over
                self._end_ms[job.job_id] = now_ms + left_ms
            else:
                del self._end_ms[job.job_id]
        return started

    def _why_evicted(self, slot: int) -> tuple[int, str]:
        """Return for which job one was evicted just now, and why."""
        names, by = [level.name for level in self._by.levels], int(self.table.by[slot])
        of, its = self._level(self._slots.of[by]), self._level(slot, evictions=int(self.table.times[slot]) - 1)
        return by, f"job {by} of level {names[of]!r} takes nodes of level {names[its]!r}"

    def is_paused(self, job_id: int) -> bool:
        """Return False: an evicted job leaves its nodes."""
        return False

    def why_paused(self, now_ms: int, job_id: int) -> str:
        """Return nothing: no job stands still."""
        return ""

    def take_evictions(self) -> list[Eviction]:
        """Return the jobs that the last pass has evicted, in that order."""
        told, self._evicted = self._evicted, []
        return told

    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start, why not earlier, and by whom it was evicted."""
        said = super().explain(now_ms, job_id)
        slot = self._slots.of[job_id]
        level = self._by.levels[self._level(slot)].name
        count = int(self.table.times[slot]) - self._slots.jobs[slot].evictions
        reason = f"{said.reason}; it is of level {level!r}"
        if count:
            times = "once" if count == 1 else f"{count} times"
            by = f"job {self.table.by[slot]}, of a level that may take its nodes"
            reason += f", and was evicted {times}, last for {by}"
        return msgspec.structs.replace(said, reason=reason)

    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        """Return how a job would run that were submitted now, by a twin in which it is: with whom it would evict."""
        if self.why_never(job) is not None or job.width > self._in_service:
            return None
        twin = self._twin()
        twin.submit(now_ms, msgspec.structs.replace(job, job_id=ASKED_ID))
        ahead = twin._place(ASKED_ID)
        if any(started.job_id == ASKED_ID for started in twin.run_pass(now_ms)):
            return ExpectedRun(now_ms, job.width, job.estimate_ms, ahead, evicts=bool(twin._evicted))
        start_ms = twin._asked_start_ms(now_ms)
        return None if start_ms is None else ExpectedRun(max(start_ms, now_ms), job.width, job.estimate_ms, ahead)

    def _twin(self) -> Self:
        """Return a site of the same state, to which anything may happen."""
        twin = self.aside()
        twin._state, twin._slots, twin._end_ms = copied(self._state), self._slots.copy(), self._end_ms.copy()
        twin._plan = None if self._plan is None else copied(self._plan)
        twin._rules, twin._evicted = twin._made_rules(), []
        twin._name_numbers()
        return twin

    def _asked_start_ms(self, now_ms: int) -> int | None:
        """Return when the job in question starts behind those before it; nothing may happen here after that."""
        if self._plan is not None:
            start_ms = int(self._state.jobs[self._slots.of[ASKED_ID]]["promised_ms"])
            return None if start_ms in (NEVER_MS, UNPLACED_MS) else start_ms
        job = self._slots.job(ASKED_ID)
        self._state.counters["n_waiting"] = self._place(ASKED_ID)
        return self.earliest_start_ms(now_ms, job.width, job.estimate_ms)

    def _level(self, slot: int, *, evictions: int | None = None) -> int:
        """Return the level of a job, with its evictions, or so many, that have raised it."""
        base, after = int(self.table.base[slot]), self._by.raise_after
        times = int(self.table.times[slot]) if evictions is None else evictions
        return base if after is None else max(0, base - times // after)

    def figures_of(self, now_ms: int, job_id: int) -> tuple[float, ...]:
        """Return the level of a job by its priority, and how often it was evicted."""
        slot = self._slots.of[job_id]
        return float(self.table.base[slot]), float(self.table.times[slot])

    def totals(self) -> Mapping[str, float]:
        """Return what has been counted so far, by name."""
        return totals_of(self.table)

    def state(self) -> LevelsState:
        """Return what is known of the jobs and their levels."""
        return LevelsState(**msgspec.structs.asdict(super().state()), levels=arrays_state(self.table))

    def restore(self, state: LevelsState) -> None:  # type: ignore[override]
        """Take in what was known."""
        self._table = None
        super().restore(state)
        self._table = restored_arrays(self.table, state.levels)
        self._rules = LevelRules(ArrayDiscipline._made_rules(self), self._table)

    def _check_order(self, waiting: list[int]) -> None:
        jobs = self._state.jobs
        ranks = [(self._level(slot), *jobs[slot][["key", "submit_ms", "job_id"]].tolist()) for slot in waiting]
        assert ranks == sorted(ranks), "the queue is out of order"


def totals_of(table: LevelTable) -> dict[str, float]:
    """Return how many evictions there were, and what nodes had worked on jobs that began again."""
    evictions = table.evictions
    return {"evictions": float(evictions.counts[1]), "lost_node_ms": float(evictions.lost_node_ms[0])}


def _told(table: LevelTable) -> tuple[np.ndarray[Any, Any], ...]:
    """Return what is kept when there is room for more jobs."""
    return table.base, table.times, table.by, table.way, table.evictions.counts, table.evictions.lost_node_ms
