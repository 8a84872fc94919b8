"""Jobs mapped to machines that differ, written the slow and obvious way, from docs/heterogeneous.md alone.

Times are ``alone[job][machine]`` and ``on_team[job][team]``, None where a job cannot run; a team is (machines, width).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

Times = list[list[int | None]]
Teams = list[tuple[list[int], int]]


@dataclass
class Plan:
    """When each machine is ready, how its taking troubles others, and where and when each job runs."""

    ready: list[int]
    trouble: list[int]
    places: dict[int, tuple[int, ...]] = field(default_factory=dict)
    teams: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Plan:
        """Return one of which nothing is shared."""
        known = (dict(each) for each in (self.places, self.teams, self.starts, self.ends))
        return Plan(list(self.ready), self.trouble, *known)

    def give(self, job: int, machines: list[int], length: int) -> None:
        """Let a job run on machines as soon as all are ready."""
        start = max(self.ready[machine] for machine in machines)
        for machine in machines:
            self.ready[machine] = start + length
        self.places[job], self.starts[job], self.ends[job] = tuple(sorted(machines)), start, start + length

    @property
    def total(self) -> int:
        """The sum of all ends."""
        return sum(self.ends.values())


def mapped(
    algorithm: str,
    ready: list[int],
    alone: Times,
    on_team: Times,
    teams: Teams,
    profit: str = "end",
    trouble: list[int] | None = None,
) -> Plan:
    """Map jobs by one of the algorithms; `trouble` is 1 where jobs stand still, 2 where one would be evicted."""
    base = Plan(list(ready), trouble or [0] * len(ready))
    for job, times in enumerate(alone):
        can = [team for team in range(len(teams)) if on_team[job][team] is not None]
        if all(time is None for time in times) and can:
            first = min(can, key=lambda team: (end_on(base, job, team, on_team, teams), trouble_on(base, teams[team])))
            give_team(base, job, first, on_team, teams)
    if algorithm not in ("sjs", "pjs"):
        return alone_mapped(algorithm, base, alone)
    best = better_of_two(base, alone)
    while algorithm == "pjs":
        found = most_profitable(base, alone, on_team, teams, profit)
        if found is None:
            return best
        give_team(base, *found, on_team, teams)
        trial = better_of_two(base, alone)
        if trial.total >= best.total:
            return best
        best = trial
    return best


def better_of_two(base: Plan, alone: Times) -> Plan:
    """Return the better of min-min and min-max; min-min if they are alike."""
    return min((alone_mapped(name, base, alone) for name in ("min-min", "min-max")), key=lambda plan: plan.total)


def alone_mapped(algorithm: str, base: Plan, alone: Times) -> Plan:
    """Return the plan in which each job that is left has a single machine, if it runs on one."""
    plan = base.copy()
    left = [job for job in range(len(alone)) if job not in plan.places and any(t is not None for t in alone[job])]
    while left:
        job, machine = next_of(algorithm, plan, left, alone)
        plan.give(job, [machine], alone[job][machine] or 0)
        left.remove(job)
    return plan


def next_of(algorithm: str, plan: Plan, left: list[int], alone: Times) -> tuple[int, int]:
    """Return the next job and its machine."""

    def machines(job: int) -> list[int]:
        return [machine for machine, time in enumerate(alone[job]) if time is not None]

    def end(job: int, machine: int) -> int:
        return plan.ready[machine] + (alone[job][machine] or 0)

    if algorithm == "olb":
        return left[0], min(machines(left[0]), key=lambda machine: (plan.ready[machine], plan.trouble[machine]))
    if algorithm == "best-assignment":
        job = left[0]
        length = alone[job]
        return job, min(machines(job), key=lambda one: (length[one], plan.ready[one], plan.trouble[one]))
    best = {job: min(machines(job), key=lambda one: (end(job, one), plan.trouble[one])) for job in left}
    sign = 1 if algorithm == "min-min" else -1
    job = min(left, key=lambda job: sign * end(job, best[job]))
    return job, best[job]


def chosen(plan: Plan, team: tuple[list[int], int]) -> list[int]:
    """Return the machines of a team: those of its cluster that are ready first, and trouble others least."""
    machines, width = team
    return sorted(machines, key=lambda machine: (plan.ready[machine], plan.trouble[machine], machine))[:width]


def trouble_on(plan: Plan, team: tuple[list[int], int]) -> int:
    """Return the trouble of the worst machine of a team."""
    return max(plan.trouble[machine] for machine in chosen(plan, team))


def end_on(plan: Plan, job: int, team: int, on_team: Times, teams: Teams) -> int:
    """Return when a job would end on a team."""
    return max(plan.ready[machine] for machine in chosen(plan, teams[team])) + (on_team[job][team] or 0)


def give_team(plan: Plan, job: int, team: int, on_team: Times, teams: Teams) -> None:
    """Let a job run on a team."""
    plan.give(job, chosen(plan, teams[team]), on_team[job][team] or 0)
    plan.teams[job] = team


def most_profitable(base: Plan, alone: Times, on_team: Times, teams: Teams, profit: str) -> tuple[int, int] | None:
    """Return the job and the team with the largest reduction, if there is any.

    Of several the first job, then the team that troubles others least, then the first.
    """
    found = []
    for job, team in itertools.product(range(len(alone)), range(len(teams))):
        if job in base.places or on_team[job][team] is None:
            continue
        runs = [(machine, time) for machine, time in enumerate(alone[job]) if time is not None]
        if profit == "end":
            gain = min(base.ready[machine] + time for machine, time in runs) - end_on(base, job, team, on_team, teams)
        else:
            gain = min(time for _, time in runs) - (on_team[job][team] or 0)
        if gain > 0:
            found.append((-gain, job, trouble_on(base, teams[team]), team))
    return min(found)[1::2] if found else None


def optimum(ready: list[int], alone: Times, on_team: Times, teams: Teams) -> int:
    """Return the least sum of ends of any mapping in which each machine works through its jobs in some order.

    Every order of the jobs and every place of each is tried, so it is for a handful of jobs.
    """
    subsets = [[list(some) for some in itertools.combinations(machines, width)] for machines, width in teams]

    def search(plan: Plan, left: tuple[int, ...]) -> int:
        if not left:
            return plan.total
        found = []
        for job in left:
            ways = [([machine], time) for machine, time in enumerate(alone[job]) if time is not None]
            ways += [
                (some, time) for team, time in enumerate(on_team[job]) if time is not None for some in subsets[team]
            ]
            for machines, time in ways:
                twin = plan.copy()
                twin.give(job, machines, time)
                found.append(search(twin, tuple(other for other in left if other != job)))
        return min(found)

    return search(Plan(list(ready), [0] * len(ready)), tuple(range(len(alone))))
