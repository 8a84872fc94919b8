"""The discipline ``optimal``, run event by event (docs/optimum.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec
import numpy as np
from typing_extensions import override

from gridweave.site.disciplines.base import Decisions
from gridweave.site.disciplines.optimal.instance import Instance, IntArray
from gridweave.site.disciplines.optimal.intervals import cp_model_of, solve_intervals
from gridweave.site.disciplines.optimal.policy import OptimalPolicy
from gridweave.site.disciplines.queue import SiteQueue, SiteQueueState
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.planning import rebuild
from gridweave.site.kernels.state import HEAD, REPLAN, empty_plan


class OptimalState(SiteQueueState, frozen=True, kw_only=True, tag="Optimal 1"):
    """The saved state of a site with the discipline ``optimal``: its queue, and statistics of its plans."""

    totals: dict[str, float]


class Optimal(SiteQueue):
    """Plans the waiting jobs in the order in which a solver's plan starts them.

    The planning kernels place the jobs again, in order of the solver's start times. No job then starts later than
    in the solver's plan: the jobs ahead of it can only have moved to earlier starts, so its nodes are still free.

    Parameters
    ----------
    nodes : int
        Nodes of the site.
    policy : OptimalPolicy
    week : WeekClock
        The site's local time of the week.

    Raises
    ------
    UnavailableError
        If OR-Tools is not installed.
    """

    state_type: Any = OptimalState

    def __init__(self, nodes: int, policy: OptimalPolicy, week: WeekClock = FROM_MONDAY) -> None:
        cp_model_of()
        self._requested = policy
        self._totals = {"plans": 0.0, "proven": 0.0, "gain": 0.0}
        super().__init__(nodes, policy.planning, week)

    @override
    def copy(self) -> Self:
        new = super().copy()
        new._totals = self._totals.copy()
        return new

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        """Find a plan, and start the jobs whose planned start is now.

        Every pass finds a new plan, even if the only event was a planned start: once some jobs have started, a policy
        may have a better plan for the remaining jobs than the previous plan.
        """
        self._order_anew(now_ms)
        return super().run_pass(now_ms)

    def instance(self, now_ms: int) -> tuple[Instance, IntArray]:
        """Return the current planning problem and its jobs' slots; jobs that always stay last are omitted."""
        assert self._plan is not None, "a planning site without a plan"
        slots = np.array(self._waiting_slots(), np.int64)
        slots = slots[np.isfinite(self._state.jobs["key"][slots])]
        jobs = self._state.jobs[slots]
        order = np.lexsort((jobs["job_id"], jobs["submit_ms"]))
        slots, jobs = slots[order], jobs[order]
        taken = empty_plan(self._state, np.array([self.nodes], np.int64), reservations=len(self._plan.reservations))
        taken = taken._replace(reservations=self._plan.reservations)
        rebuild(self._state, taken, None, None, np.int64(now_ms), HEAD)
        steps = int(taken.n_steps[0])
        columns = {name: jobs[name].astype(np.int64) for name in ("job_id", "submit_ms", "width", "estimate_ms")}
        profile = {"step_ms": taken.step_ms[0, :steps].copy(), "step_free": taken.step_free[0, :steps].copy()}
        return Instance(now_ms=now_ms, **columns, **profile), slots

    def _order_anew(self, now_ms: int) -> None:
        """Sort the queue by the start times in the best plan found; jobs that always stay last are not moved."""
        if not self._state.counters[0]["n_waiting"]:
            return
        instance, slots = self.instance(now_ms)
        start_ms = self._found(instance) if len(instance) > 1 else np.zeros(len(instance), np.int64)
        slots = slots[np.argsort(start_ms, kind="stable")]
        waiting = self._state.waiting[: self._state.counters[0]["n_waiting"]]
        behind = waiting[~np.isin(waiting, slots)]
        self._state.jobs["key"][slots] = np.arange(len(slots))
        waiting[:] = np.concatenate([slots, behind])
        self._state.counters["stale"] = REPLAN

    def _found(self, instance: Instance) -> IntArray:
        """Return the solver's start times, or the best policy's if too many jobs are waiting or all can start now."""
        policy = self._requested
        _, plan = instance.best_policy(policy.policies, policy.metric)
        if len(instance) > policy.most_jobs or (plan == instance.now_ms).all():
            return plan
        solution = solve_intervals(
            instance,
            metric=policy.metric,
            policies=policy.policies,
            limit_s=np.inf,
            effort_s=policy.effort_s,
            workers=1,
        )
        self._totals["plans"] += 1
        self._totals["proven"] += solution.gap_pct == 0
        self._totals["gain"] += solution.loss_pct
        return solution.start_ms

    @override
    def totals(self) -> Mapping[str, float]:
        return self._totals.copy()

    @override
    def rule_in_force(self) -> str:
        metric = self._requested.metric
        rule = f"a solver finds the plan with the best {metric} again whenever a job is submitted, ends or starts"
        return f"{rule}, and the start may move"

    @override
    def state(self) -> OptimalState:
        return OptimalState(**msgspec.structs.asdict(super().state()), totals=self._totals.copy())

    @override
    def _reorder(self) -> None:
        """Do nothing: only the solver sets the order."""

    @override
    def restore(self, state: OptimalState) -> None:  # type: ignore[override]
        super().restore(state)
        self._totals = dict(state.totals)
