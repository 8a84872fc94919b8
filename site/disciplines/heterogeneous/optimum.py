"""Optimal mapping of a few jobs to different machines, by CP-SAT, as a reference for the mapping algorithms."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.site.disciplines.heterogeneous.kernels.greedy import MachineArrays
from gridweave.site.disciplines.optimal.intervals import cp_model_of
from gridweave.site.kernels.state import NEVER_MS


class BestMapping(NamedTuple):
    """The best mapping found, and a lower bound on its total time.

    Attributes
    ----------
    total_ms : int
        Sum of the expected execution and delay times in the best mapping found, measured from time 0.
    bound_ms : int
        Lower bound on the sum for any mapping; equal to `total_ms` if the mapping is proven optimal.
    start_ms : tuple of int
        Start of each job; `NEVER_MS` if the job cannot run on any machine.
    """

    total_ms: int
    bound_ms: int
    start_ms: tuple[int, ...]


class _Way(NamedTuple):
    """One way to run a job: for `length_ms`, on any `width` of these machines."""

    length_ms: int
    width: int
    machines: list[int]


def best_mapping(
    machines: MachineArrays,
    ready_ms: npt.ArrayLike,
    kind: npt.ArrayLike,
    alone_ms: npt.ArrayLike,
    team_ms: npt.ArrayLike,
    *,
    limit_s: float = 10.0,
) -> BestMapping:
    """Return the optimal mapping of some jobs, or the best mapping found within a time limit.

    Parameters
    ----------
    machines, ready_ms, kind, alone_ms, team_ms
        As for `gridweave.site.disciplines.heterogeneous.mapping.map_to`.
    limit_s : float
        Limit in seconds of the solver's deterministic time, which does not depend on the computer's speed.

    Raises
    ------
    UnavailableError
        If OR-Tools is not installed.
    """
    cp_model = cp_model_of()
    ready, kinds = np.asarray(ready_ms, np.int64).tolist(), np.asarray(kind, np.int64).tolist()
    ways = [_ways(machines, np.asarray(alone_ms)[number], np.asarray(team_ms)[number]) for number in kinds]
    # All jobs have ended by this time even if they run one after another, each on its slowest resource.
    last_ms = max(ready, default=0) + sum(max((way.length_ms for way in of_job), default=0) for of_job in ways)
    model = cp_model.CpModel()
    on_machine: dict[int, list[Any]] = defaultdict(list)
    starts = [model.new_int_var(0, last_ms, "") if of_job else None for of_job in ways]
    placed = [(start, of_job) for start, of_job in zip(starts, ways, strict=True) if of_job]
    model.minimize(sum(_end(model, start, of_job, ready, on_machine) for start, of_job in placed))
    for intervals in on_machine.values():
        model.add_no_overlap(intervals)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_deterministic_time = 1, limit_s
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE), "one job after the other is a mapping"
    start_ms = tuple(int(NEVER_MS) if start is None else solver.value(start) for start in starts)
    return BestMapping(round(solver.objective_value), round(solver.best_objective_bound), start_ms)


def _end(model: Any, start: Any, ways: list[_Way], ready_ms: list[int], on_machine: dict[int, list[Any]]) -> Any:
    """Constrain a job to run in exactly one way, on enough of that way's machines; return the job's end."""
    chosen = [model.new_bool_var("") for _ in ways]
    model.add_exactly_one(chosen)
    for way, is_chosen in zip(ways, chosen, strict=True):
        used = [model.new_bool_var("") for _ in way.machines]
        model.add(sum(used) == way.width * is_chosen)
        for machine, uses in zip(way.machines, used, strict=True):
            model.add(start >= ready_ms[machine]).only_enforce_if(uses)
            interval = model.new_optional_fixed_size_interval_var(start, way.length_ms, uses, "")
            on_machine[machine].append(interval)
    return start + sum(way.length_ms * choice for way, choice in zip(ways, chosen, strict=True))


def _ways(machines: MachineArrays, alone_ms: npt.NDArray[Any], team_ms: npt.NDArray[Any]) -> list[_Way]:
    """Return all ways to run jobs of a kind; a team may consist of any machines in its cluster."""
    ways = [
        _Way(int(length_ms), 1, machines.by_class[machines.first[number] : machines.first[number + 1]].tolist())
        for number, length_ms in enumerate(alone_ms.tolist())
        if length_ms != NEVER_MS
    ]
    for number, length_ms in enumerate(team_ms.tolist()):
        cluster, width = int(machines.team_cluster[number]), int(machines.team_width[number])
        members = machines.members[machines.cluster_first[cluster] : machines.cluster_first[cluster + 1]].tolist()
        if length_ms != NEVER_MS:
            ways.append(_Way(int(length_ms), width, members))
    return [way for way in ways if len(way.machines) >= way.width]
