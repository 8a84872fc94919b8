"""The discipline dynP, stepped event by event (docs/dynp.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from typing_extensions import override

from gridweave.site.disciplines.dynp.figures import COLUMNS, TuningUse, switches_after, totals_of, tuning_use
from gridweave.site.disciplines.dynp.kernels.state import (
    NO_CANDIDATE,
    Candidates,
    Tuning,
    make_stale,
)
from gridweave.site.disciplines.dynp.kernels.tuning import TuningRules
from gridweave.site.disciplines.dynp.policy import DynPPolicy, candidate_keys
from gridweave.site.disciplines.queue import SiteQueue, SiteQueueState
from gridweave.site.disciplines.slots import copy_into
from gridweave.site.job import Job
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.state import Arrays, arrays_state, restored_arrays

KEPT_SWITCHES = 64
"""Number of recent policy switches that a stepped site keeps."""


class DynPState(SiteQueueState, frozen=True, kw_only=True, tag="DynP 1"):
    """The saved state of a dynP site: its queue, its candidate policies, and the record of its decisions."""

    candidates: Arrays
    memory: Arrays


class DynP(SiteQueue):
    """A planning site that switches its policy while it is running.

    Parameters
    ----------
    nodes : int
        Number of nodes of the site.
    policy : DynPPolicy
    week : WeekClock
        The site's clock for the local time of the week.
    """

    state_type: Any = DynPState

    def __init__(self, nodes: int, policy: DynPPolicy, week: WeekClock = FROM_MONDAY) -> None:
        self._tuned_by = policy
        self._memory: Tuning | None = None
        super().__init__(nodes, policy.planning, week)

    @override
    def _made_rules(self) -> TuningRules:
        assert self._plan is not None, "a planning site without a plan"
        assert self._limits is not None, "a planning site without limits"
        rules = self._tuned_by.rules(self._state, self._plan, self._limits, log=KEPT_SWITCHES)
        if self._memory is not None:
            copy_into(rules.tuning.candidates, self._memory.candidates)
            copy_into(rules.tuning.memory, self._memory.memory)
        self._memory = rules.tuning
        return rules

    @property
    def tuning(self) -> Tuning:
        """The options, the candidate policies and the record of decisions, as arrays for the kernels."""
        assert self._memory is not None, "a dynP site without tuning"
        return self._memory

    @property
    def active(self) -> str:
        """The name of the active policy."""
        return self._tuned_by.policies[int(self.tuning.memory.now["active"][0])]

    @override
    def submit(self, now_ms: int, job: Job) -> None:
        slot = self._next_slot()
        memory = self.tuning.memory
        columns = {
            "submit_ms": now_ms,
            "width": job.width,
            "estimate_ms": job.estimate_ms,
            "weight": job.weight,
            "priority": job.priority,
        }
        keys = candidate_keys(
            self._tuned_by, memory.now["arrivals"], **{name: np.array([value]) for name, value in columns.items()}
        )
        rows = self.tuning.candidates.jobs[:, slot]
        rows["key"] = np.inf if job.behind else keys[:, 0]
        for name in ("submit_ms", "width", "estimate_ms"):
            rows[name] = columns[name]
        rows["job_id"], rows["limits"] = job.job_id, self._mask(job)
        super().submit(now_ms, job)

    @override
    def figures(self, now_ms: int, job_id: int) -> tuple[float, ...]:
        """Return the index of the policy that was active when a job started."""
        return (float(self.tuning.memory.started_by[self._slots.of[job_id]]),)

    @override
    def totals(self) -> Mapping[str, float]:
        return totals_of(self._tuned_by.policies, self.tuning.memory)

    @override
    def switches_after(self, count: int) -> list[tuple[int, int]]:
        """Return (time in ms, candidate) for each switch after the first ``count``; only the last 64 are kept."""
        return switches_after(self.tuning.memory, count)

    @override
    def report(
        self,
        switches: Sequence[tuple[int, int]],
        columns: Mapping[str, npt.NDArray[np.float64]],
        has_started: npt.NDArray[np.bool_],
    ) -> TuningUse:
        """Return the decisions of a simulation, including the policy that was active when each job started."""
        started_by = np.where(has_started, columns[COLUMNS[0]], NO_CANDIDATE).astype(np.int64)
        return tuning_use(self._tuned_by.policies, self.tuning.memory, switches, started_by)

    @override
    def reserve(self, now_ms: int, reservation_id: int, start_ms: int, length_ms: int, width: int) -> int | None:
        fits_ms = super().reserve(now_ms, reservation_id, start_ms, length_ms, width)
        # The call above rebuilt the active plan; the candidates know neither the new plan nor the reservation.
        make_stale(self.tuning)
        return fits_ms

    @override
    def rule_in_force(self) -> str:
        """Return the active policy and the rule by which the site switches policies, as part of a sentence."""
        policy = self._tuned_by
        if len(policy.policies) == 1:
            return f"the policy {self.active} is in force"
        when = {"full": "each submission and end", "half": "each submission"}.get(
            policy.tuning, "each submission, end and start"
        )
        by = {
            "bounds": "the average estimate of the waiting jobs",
            "calendar": "the time of the week",
        }.get(policy.decider, f"the plan with the best {policy.metric}")
        return f"the policy {self.active} is in force, {by} decides again at {when}, and the start may move"

    @override
    def state(self) -> DynPState:
        candidates, memory = arrays_state(self.tuning.candidates), arrays_state(self.tuning.memory)
        return DynPState(**msgspec.structs.asdict(super().state()), candidates=candidates, memory=memory)

    @override
    def restore(self, state: DynPState) -> None:  # type: ignore[override]
        self._memory = None
        super().restore(state)
        tuning = self.tuning
        candidates: Candidates = restored_arrays(tuning.candidates, state.candidates)
        self._memory = tuning._replace(candidates=candidates, memory=restored_arrays(tuning.memory, state.memory))
        self._rules = TuningRules(self._memory)
        self._name_numbers()

    @override
    def _reorder(self) -> None:
        """Do nothing, because the active policy determines the order."""

    @override
    def _check_order(self, waiting: list[int]) -> None:
        if self._tuned_by.reading == "true":
            super()._check_order(waiting)

    @override
    def check_invariants(self) -> None:
        super().check_invariants()
        waiting = sorted(self._waiting_slots())
        candidates, memory = self.tuning.candidates, self.tuning.memory
        count = len(waiting)
        assert memory.now["n_waiting"][0] == count, "the candidates plan other jobs than those that wait"
        for slots in (*candidates.waiting, memory.arrived, memory.listed):
            assert sorted(slots[:count].tolist()) == waiting, "a candidate has lost or doubled a job"
        assert (candidates.counters["n_waiting"] == count).all(), "a candidate has lost or doubled a job"
