"""A planning site: plans, advance reservations and limits (docs/disciplines.md, "Planning")."""

from __future__ import annotations

from collections.abc import Sequence

from reference.availability import Occupation, earliest_start, fits
from reference.limits import allows, applies, openings
from reference.model import NEVER, WEEK, Answer, Job, Limit, Moment, Reservation, State
from reference.ordering import in_order


class Planning:
    """The plan is thrown away and made again whenever something happens."""

    def __init__(self, backfill: str, limits: Sequence[Limit], week_offset: int) -> None:
        self.backfill = backfill
        self.limits = limits
        self.week_offset = week_offset
        self.accepted: list[Reservation] = []
        self.plan: dict[int, int] = {}
        self.stands = False

    def freed(self, state: State, *, early: bool) -> None:
        """Take note that something ended."""
        self.stands = False

    def nodes_changed(self, state: State) -> None:
        """Take note that nodes are out, or back."""
        self.stands = False

    def submitted(self, state: State, job: Job) -> None:
        """Take note of a new job."""
        self.stands = False
        state.waiting.append(job)

    def requested(self, state: State, request: Reservation) -> Answer:
        """Accept or refuse a reservation by the plan of this instant, as far as its submissions have come."""
        self.stands = False
        if request.width > state.nodes:
            return Answer(accepted=False, start=None)
        occupations = self._fixed(state)
        self._place_waiting(state, occupations)
        earliest = earliest_start(
            max(request.start, state.now),
            occupations,
            lambda start: fits(start, request.length, request.width, state.nodes, occupations),
        )
        if earliest != request.start:
            return Answer(accepted=False, start=earliest)
        self.accepted.append(request)
        return Answer(accepted=True, start=earliest)

    def timers(self, state: State) -> list[int]:
        """Return the planned starts."""
        return [start for start in self.plan.values() if start < NEVER]

    def run_pass(self, state: State) -> tuple[list[Job], Moment]:
        """Return the jobs that are planned for now, and the plan; at a mere timer the plan stands."""
        if not self.stands:
            self.plan = self._place_waiting(state, self._fixed(state))
            self.stands = True
        plan = dict(self.plan)
        started = [job for job in in_order(state) if plan[job.id] == state.now]
        for job in started:
            del self.plan[job.id]
        return started, Moment(state.now, tuple(job.id for job in started), plan=plan)

    def _fixed(self, state: State) -> list[Occupation]:
        """Return what no plan can move: running jobs and accepted reservations."""
        running = [Occupation(one.start, one.end_by_estimate, one.width, one.job) for one in state.running]
        return running + [Occupation(one.start, one.start + one.length, one.width) for one in self.accepted]

    def _place_waiting(self, state: State, occupations: list[Occupation]) -> dict[int, int]:
        """Place the waiting jobs in order, add them to the occupations, and return their starts."""
        plan: dict[int, int] = {}
        not_before = state.now
        for job in in_order(state):
            start = self._earliest(state, job, not_before, occupations)
            occupations.append(Occupation(start, start + job.estimate, job.width, job))
            plan[job.id] = start
            if self.backfill == "none":
                not_before = start
        return plan

    def _earliest(self, state: State, job: Job, not_before: int, occupations: list[Occupation]) -> int:
        def may_start(start: int) -> bool:
            return fits(start, job.estimate, job.width, state.nodes, occupations) and all(
                allows(limit, job, start, occupations, self.week_offset) for limit in self.limits
            )

        # A week after the last end, every opening has come by once with nothing else in the way.
        until = max([not_before, *(other.end for other in occupations)]) + WEEK
        windows = [limit.window for limit in self.limits if limit.window is not None and applies(limit, job)]
        return earliest_start(
            not_before,
            occupations,
            may_start,
            [instant for window in windows for instant in openings(window, not_before, until, self.week_offset)],
        )
