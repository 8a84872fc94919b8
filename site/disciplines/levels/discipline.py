"""The discipline of a queue with priority levels, run event by event (docs/levels.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from typing_extensions import override

from gridweave.site.disciplines.base import Decisions, Eviction, ExpectedRun
from gridweave.site.disciplines.levels.kernels.levels import STAYS, LevelRules, LevelTable
from gridweave.site.disciplines.levels.policy import WAYS, LevelsPolicy
from gridweave.site.disciplines.levels.rights import level_of, why_not_allowed
from gridweave.site.disciplines.queue import SiteQueue, SiteQueueState
from gridweave.site.disciplines.slots import copy_into
from gridweave.site.explain import SiteReason
from gridweave.site.job import ASKED_ID, Job
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.state import NEVER_MS, UNPLACED_MS
from gridweave.site.state import Arrays, arrays_state, restored_arrays


class LevelsState(SiteQueueState, frozen=True, kw_only=True, tag="Levels 1"):
    """A site's jobs in arrays, and the arrays of its `LevelTable`."""

    levels: Arrays


class Levels(SiteQueue):
    """Runs a queue or a planning site with priority levels, some of which may evict jobs of lower levels.

    Parameters
    ----------
    nodes : int
        Nodes of the site.
    policy : LevelsPolicy
    week : WeekClock
        The site's local time of the week.
    """

    state_type: Any = LevelsState

    def __init__(self, nodes: int, policy: LevelsPolicy, week: WeekClock = FROM_MONDAY) -> None:
        self._by = policy
        self._table: LevelTable | None = None
        super().__init__(nodes, policy.under, week)

    @override
    def _made_rules(self) -> LevelRules:
        table = self._by.table(len(self._state.jobs), len(self._state.running))
        if self._table is not None:
            copy_into(_copied_arrays(table), _copied_arrays(self._table))
        self._table = table
        return LevelRules(super()._made_rules(), table, self._node_arrays)

    @property
    def table(self) -> LevelTable:
        """The levels and evictions of the site's jobs."""
        assert self._table is not None, "a site without a table of levels"
        return self._table

    @override
    def why_never(self, job: Job) -> str | None:
        return super().why_never(job) or why_not_allowed(self._by.levels, job.priority, job.user_name or job.user)

    @override
    def submit(self, now_ms: int, job: Job) -> None:
        slot = self._next_slot()
        self.table.base[slot] = level_of(self._by.levels, job.priority)
        self.table.times[slot], self.table.by[slot] = job.evictions, 0
        self.table.way[slot] = WAYS[job.if_evicted or self._by.evicted]
        super().submit(now_ms, job)

    @override
    def reserve(self, now_ms: int, reservation_id: int, start_ms: int, length_ms: int, width: int) -> int | None:
        """Reserve nodes as a planning site does; if any level may evict jobs, reserve nothing and return None."""
        return None if self._by.evicts else super().reserve(now_ms, reservation_id, start_ms, length_ms, width)

    @override
    def protect(self, job_id: int) -> None:
        self.table.way[self._slots.of[job_id]] = STAYS

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        """Evict running jobs for the jobs at the head of the queue, then start jobs."""
        evictions = self.table.evictions
        evictions.counts[0] = 0
        decided = super().run_pass(now_ms)
        started = {start.job.job_id for start in decided.starts}
        evicted = []
        for slot, keeps_work in zip(
            evictions.slots[: evictions.counts[0]].tolist(), evictions.keeps_work, strict=False
        ):
            left_ms = int(self._state.jobs[slot]["estimate_ms"])
            job = self._slots.jobs[slot] = msgspec.structs.replace(self._slots.jobs[slot], estimate_ms=left_ms)
            evicted.append(Eviction(job.job_id, bool(keeps_work), *self._why_evicted(slot)))
            if job.job_id in started:  # the evicted job restarts at once, on nodes that the evictions left free
                self._end_ms[job.job_id] = now_ms + left_ms
            else:
                del self._end_ms[job.job_id]
        return msgspec.structs.replace(decided, evictions=evicted) if evicted else decided

    def _why_evicted(self, slot: int) -> tuple[int, str]:
        """Return the id of the job for which a slot's job was evicted in this pass, and the reason."""
        names, by = [level.name for level in self._by.levels], int(self.table.by[slot])
        of, its = self._level(self._slots.of[by]), self._level(slot, evictions=int(self.table.times[slot]) - 1)
        return by, f"job {by} of level {names[of]!r} takes nodes of level {names[its]!r}"

    @override
    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return a waiting job's start, why it is not earlier, its level, and the reason for its last eviction."""
        site_reason = super().explain(now_ms, job_id)
        slot = self._slots.of[job_id]
        level = self._by.levels[self._level(slot)].name
        count = int(self.table.times[slot]) - self._slots.jobs[slot].evictions
        reason = f"{site_reason.reason}; its level is {level!r}"
        if count:
            times = "once" if count == 1 else f"{count} times"
            by = f"job {self.table.by[slot]}, of a level that may take its nodes"
            reason += f", and it was evicted {times}, last for {by}"
        return msgspec.structs.replace(site_reason, reason=reason)

    @override
    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        """Return how a job submitted now would run, found by submitting it to a copy of the site."""
        if self.why_never(job) is not None or (self._counted is None and job.width > self._in_service):
            return None
        trial = self.copy()
        trial.submit(now_ms, msgspec.structs.replace(job, job_id=ASKED_ID))
        ahead = trial._place(ASKED_ID)
        decided = trial.run_pass(now_ms)
        if any(start.job.job_id == ASKED_ID for start in decided.starts):
            return ExpectedRun(now_ms, job.width, job.estimate_ms, ahead, evicts=bool(decided.evictions))
        if self._counted is not None:
            run = super().expected_run(now_ms, job)
            return None if run is None else run._replace(ahead=ahead)
        start_ms = trial._asked_start_ms(now_ms)
        return None if start_ms is None else ExpectedRun(max(start_ms, now_ms), job.width, job.estimate_ms, ahead)

    def _asked_start_ms(self, now_ms: int) -> int | None:
        """Return when the job `ASKED_ID` would start. Call this on a copy: the discipline is unusable afterwards."""
        if self._plan is not None:
            start_ms = int(self._state.jobs[self._slots.of[ASKED_ID]]["promised_ms"])
            return None if start_ms in (NEVER_MS, UNPLACED_MS) else start_ms
        job = self._slots.job(ASKED_ID)
        self._state.counters["n_waiting"] = self._place(ASKED_ID)
        return self.earliest_start_ms(now_ms, job.width, job.estimate_ms)

    def _level(self, slot: int, *, evictions: int | None = None) -> int:
        """Return a job's level, raised by its evictions, or by this number of `evictions` if given."""
        base, after = int(self.table.base[slot]), self._by.raise_after
        times = int(self.table.times[slot]) if evictions is None else evictions
        return base if after is None else max(0, base - times // after)

    @override
    def figures(self, now_ms: int, job_id: int) -> tuple[float, ...]:
        """Return the level that a job's priority gives it, and the job's number of evictions."""
        slot = self._slots.of[job_id]
        return float(self.table.base[slot]), float(self.table.times[slot])

    @override
    def totals(self) -> Mapping[str, float]:
        return totals_of(self.table)

    @override
    def state(self) -> LevelsState:
        return LevelsState(**msgspec.structs.asdict(super().state()), levels=arrays_state(self.table))

    @override
    def restore(self, state: LevelsState) -> None:  # type: ignore[override]
        self._table = None
        super().restore(state)
        self._table = restored_arrays(self.table, state.levels)
        self._rules = LevelRules(SiteQueue._made_rules(self), self._table, self._node_arrays)

    @override
    def _check_order(self, waiting: list[int]) -> None:
        jobs = self._state.jobs
        ranks = [(self._level(slot), *jobs[slot][["key", "submit_ms", "job_id"]].tolist()) for slot in waiting]
        assert ranks == sorted(ranks), "the queue is out of order"


def totals_of(table: LevelTable) -> dict[str, float]:
    """Return the number of evictions, and the node time (ms) of the work lost when jobs restarted."""
    evictions = table.evictions
    return {"evictions": float(evictions.counts[1]), "lost_node_ms": float(evictions.lost_node_ms[0])}


def _copied_arrays(table: LevelTable) -> tuple[np.ndarray[Any, Any], ...]:
    """Return the arrays that must be copied when the table grows."""
    return table.base, table.times, table.by, table.way, table.evictions.counts, table.evictions.lost_node_ms
