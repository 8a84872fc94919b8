"""The site whose plan of each instant is a solver's, stepped event by event (docs/optimum.md)."""

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
    """The jobs of a site in arrays, and what has been counted of its plans."""

    totals: dict[str, float]


class Optimal(SiteQueue):
    """A planning site whose queue stands in the order of a solver's plan.

    The solver's plan is made again by the kernels of planning, in the order of its starts. So placed, each job starts
    no later than the solver has it: those before it have moved forward at most, and leave it its nodes.

    Parameters
    ----------
    nodes : int
        Nodes of the site.
    policy : OptimalPolicy
    week : WeekClock
        The local time of the week.

    Raises
    ------
    UnavailableError
        If OR-Tools is not installed.
    """

    state_type: Any = OptimalState

    def __init__(self, nodes: int, policy: OptimalPolicy, week: WeekClock = FROM_MONDAY) -> None:
        cp_model_of()
        self._wanted = policy
        self._totals = {"plans": 0.0, "proven": 0.0, "gain": 0.0}
        super().__init__(nodes, policy.planning, week)

    @override
    def copy(self) -> Self:
        twin = super().copy()
        twin._totals = self._totals.copy()
        return twin

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        """Find the plan, and start what it has start now.

        It is found at every pass, also where nothing happened but a planned start: once some of its jobs have started,
        a policy may have a better plan for the others than the one that was kept.
        """
        self._order_anew(now_ms)
        return super().run_pass(now_ms)

    def instance(self, now_ms: int) -> tuple[Instance, IntArray]:
        """Return what there is to plan now, and the slots of its jobs, without those that stand behind all others."""
        assert self._plan is not None, "a planning site without a plan"
        slots = np.array(self._waiting_slots(), np.int64)
        slots = slots[np.isfinite(self._state.jobs["key"][slots])]
        jobs = self._state.jobs[slots]
        order = np.lexsort((jobs["job_id"], jobs["submit_ms"]))
        slots, jobs = slots[order], jobs[order]
        taken = empty_plan(self._state, np.array([self.nodes], np.int64), reservations=len(self._plan.reservations))
        taken = taken._replace(reservations=self._plan.reservations)
        rebuild(self._state, taken, None, np.int64(now_ms), HEAD)
        steps = int(taken.n_steps[0])
        columns = {name: jobs[name].astype(np.int64) for name in ("job_id", "submit_ms", "width", "estimate_ms")}
        profile = {"step_ms": taken.step_ms[0, :steps].copy(), "step_free": taken.step_free[0, :steps].copy()}
        return Instance(now_ms=now_ms, **columns, **profile), slots

    def _order_anew(self, now_ms: int) -> None:
        """Have the queue stand in the order of the plan of what waits."""
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
        """Return the starts of the plan: the solver's; the best policy's if too many jobs wait, or all can start."""
        policy = self._wanted
        _, plan = instance.best_policy(policy.policies, policy.metric)
        if len(instance) > policy.most_jobs or (plan == instance.now_ms).all():
            return plan
        found = solve_intervals(
            instance,
            metric=policy.metric,
            policies=policy.policies,
            limit_s=np.inf,
            effort_s=policy.effort_s,
            workers=1,
        )
        self._totals["plans"] += 1
        self._totals["proven"] += found.gap_pct == 0
        self._totals["gain"] += found.loss_pct
        return found.start_ms

    @override
    def totals(self) -> Mapping[str, float]:
        return self._totals.copy()

    @override
    def rule_in_force(self) -> str:
        metric = self._wanted.metric
        rule = f"a solver finds the plan with the best {metric} anew whenever a job comes, ends or starts"
        return f"{rule}, and the start may move"

    @override
    def state(self) -> OptimalState:
        return OptimalState(**msgspec.structs.asdict(super().state()), totals=self._totals.copy())

    @override
    def _reorder(self) -> None:
        """Keep the order that the solver has found: no policy can change it."""

    @override
    def restore(self, state: OptimalState) -> None:  # type: ignore[override]
        super().restore(state)
        self._totals = dict(state.totals)
