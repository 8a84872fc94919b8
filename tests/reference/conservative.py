"""A queue with conservative backfilling (docs/disciplines.md, "Conservative backfilling")."""

from __future__ import annotations

from reference.availability import Occupation, earliest_start, fits
from reference.model import NEVER, Job, Moment, State
from reference.ordering import in_order


class Conservative:
    """Every waiting job holds a reserved start."""

    def __init__(self) -> None:
        self.reserved: dict[int, int] = {}

    def freed(self, state: State, *, early: bool) -> None:
        """Compress the schedule if anything ended before it had to."""
        waiting = {job.id for job in state.waiting}
        self.reserved = {job_id: start for job_id, start in self.reserved.items() if job_id in waiting}
        moved = early
        while moved:
            moved = False
            for job in in_order(state):
                old = self.reserved.pop(job.id)
                self.reserved[job.id] = self._earliest(state, job)
                assert self.reserved[job.id] <= old, "a reservation moved later"
                moved = moved or self.reserved[job.id] < old

    def nodes_changed(self, state: State) -> None:
        """Reserve all starts again, in the order of the queue: some can be kept no more."""
        kept = [job for job in in_order(state) if job.id in self.reserved]
        self.reserved = {}
        for job in kept:
            self.reserved[job.id] = self._earliest(state, job)

    def submitted(self, state: State, job: Job) -> None:
        """Reserve the earliest start that leaves all reservations in place."""
        self.reserved[job.id] = self._earliest(state, job)
        state.waiting.append(job)

    def timers(self, state: State) -> list[int]:
        """Return the reserved starts."""
        return [start for start in self.reserved.values() if start < NEVER]

    def run_pass(self, state: State) -> tuple[list[Job], Moment]:
        """Return the jobs whose reserved start is now, in the order of the queue, and all reserved starts."""
        plan = dict(self.reserved)
        started = [job for job in in_order(state) if plan[job.id] == state.now]
        for job in started:
            del self.reserved[job.id]
        return started, Moment(state.now, tuple(job.id for job in started), plan=plan)

    def _earliest(self, state: State, job: Job) -> int:
        occupations = [Occupation(one.start, one.end_by_estimate, one.width, one.job) for one in state.running]
        for other in state.waiting:
            if other.id in self.reserved:
                start = self.reserved[other.id]
                occupations.append(Occupation(start, start + other.estimate, other.width, other))
        return earliest_start(
            state.now, occupations, lambda start: fits(start, job.estimate, job.width, state.nodes, occupations)
        )
