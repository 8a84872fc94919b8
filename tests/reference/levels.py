"""Levels of priority, and who is evicted for whom (docs/levels.md), written the slow and obvious way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate

from reference.model import Job, Outcome, Running, State
from reference.ordering import in_order, key_of


@dataclass
class Levels:
    """The priorities of the levels from the highest down, and the pairs of levels of which one may evict the other."""

    priorities: list[float]
    evicts: set[tuple[int, int]]
    keeps_work: bool = False
    raise_after: int | None = None
    least_gain: int = 0
    times: Counter[int] = field(default_factory=Counter)

    def level_of(self, job: Job, *, more: int = 0) -> int:
        """Return the level of a job, if it was evicted so many times more."""
        reached = [level for level, priority in enumerate(self.priorities) if job.priority >= priority]
        base = min(reached, default=len(self.priorities) - 1)
        return base if self.raise_after is None else max(0, base - (self.times[job.id] + more) // self.raise_after)

    def evict(self, state: State, outcome: Outcome, wait_again: Callable[[State, Job], None]) -> None:
        """Take jobs off their nodes for those from the head on, and let them wait again."""
        place = ahead = 0
        while place < len(state.waiting):
            job = in_order(state)[place]
            free = state.nodes - sum(one.width for one in state.running) - ahead
            if job.width > free:
                victims = self.victims(state, job, job.width - free)
                if not victims:
                    return
                for one in victims:
                    state.running.remove(one)
                    del outcome.start[one.job.id]
                    outcome.evictions.append((state.now, one.job.id, job.id))
                    self.times[one.job.id] += 1
                    wait_again(state, self._as_it_waits(state, one))
            ahead += job.width
            place += 1

    def victims(self, state: State, head: Job, lacking: int) -> list[Running]:
        """Return who is evicted for the nodes that a job lacks; nobody if that cannot be, or is not worth it."""
        able = [one for one in state.running if self.may_evict(state, head, one.job)]
        if sum(one.width for one in able) < lacking:
            return []
        ends = sorted(one.end_by_estimate for one in state.running)
        freed = {end: sum(one.width for one in state.running if one.end_by_estimate <= end) for end in ends}
        if min(end for end in ends if freed[end] >= lacking) - state.now < self.least_gain:
            return []
        able.sort(key=lambda one: (-self.level_of(one.job), -one.start, -one.job.id))
        sums = list(accumulate(one.width for one in able))
        picked = able[: 1 + next(number for number, total in enumerate(sums) if total >= lacking)]
        for one in picked[:]:
            if sum(other.width for other in picked) - one.width >= lacking:
                picked.remove(one)
        return picked

    def may_evict(self, state: State, head: Job, job: Job) -> bool:
        """Whether one may evict the other, which then stands behind it."""
        if (self.level_of(head), self.level_of(job)) not in self.evicts:
            return False

        def place(one: Job, more: int) -> tuple[float, ...]:
            key = key_of(state.whole.get(one.id, one), state.order, state.aging)
            return (self.level_of(one, more=more), key, one.submit, one.id)

        return place(head, 0) < place(job, 1)

    def _as_it_waits(self, state: State, one: Running) -> Job:
        if not self.keeps_work:
            return one.job
        state.whole.setdefault(one.job.id, one.job)
        done = state.now - one.start
        return replace(one.job, estimate=one.job.estimate - done, run=one.job.run - done)
