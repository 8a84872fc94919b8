"""A queue with backfilling `none`, `easy` or `slack` (docs/disciplines.md, "Queue")."""

from __future__ import annotations

import math
from fractions import Fraction

from reference.model import NEVER, Job, Moment, State
from reference.ordering import in_order


class Queue:
    """One pass after another, with nothing kept between them but the promises."""

    def __init__(self, backfill: str, choice: str, slack: float | Fraction) -> None:
        self.backfill = backfill
        self.choice = choice
        self.slack = slack
        self.promises: dict[int, int] = {}

    def freed(self, state: State, *, early: bool) -> None:
        """Take note of ends and cancellations; a queue needs no note."""

    def nodes_changed(self, state: State) -> None:
        """Take note that nodes are out, or back; a queue needs no note."""

    def submitted(self, state: State, job: Job) -> None:
        """Let a job join the queue; one that was lost with its nodes has no promise any more."""
        self.promises.pop(job.id, None)
        state.waiting.append(job)

    def timers(self, state: State) -> list[int]:
        """Return the instants at which a pass is wanted whatever happens: none."""
        return []

    def run_pass(self, state: State) -> tuple[list[Job], Moment]:
        """Return the jobs that start now, in the order in which they are chosen, and what was promised to the head."""
        queue = in_order(state)
        taken = [(one.end_by_estimate, one.width) for one in state.running]
        started: list[Job] = []

        def free_at(instant: float) -> int:
            return state.nodes - sum(width for end, width in taken if end > instant)

        def start(job: Job) -> None:
            taken.append((state.now + job.estimate, job.width))
            started.append(job)
            queue.remove(job)

        while queue and queue[0].width <= free_at(state.now):
            start(queue[0])
        if not queue or self.backfill == "none":
            return started, Moment(state.now, tuple(job.id for job in started))

        head = queue[0]
        shadow = next((end for end, _ in sorted(taken) if head.width <= free_at(end)), NEVER)
        promise = min(shadow, self.promises.get(head.id, shadow))
        self.promises[head.id] = promise
        limit = shadow
        if self.backfill == "slack":
            limit = max(shadow, promise + math.floor(self.slack * head.estimate))
        extra = free_at(limit) - head.width
        shown = (head.id, shadow, promise, limit, extra)

        def may_start(job: Job) -> bool:
            return job.width <= free_at(state.now) and (state.now + job.estimate <= limit or job.width <= extra)

        def backfill(job: Job) -> None:
            nonlocal extra
            if state.now + job.estimate > limit:
                extra -= job.width
            start(job)

        if self.choice == "first-fit":
            for job in queue[1:]:
                if may_start(job):
                    backfill(job)
        else:
            while able := [job for job in queue[1:] if may_start(job)]:
                widest = max(job.width for job in able)
                backfill(next(job for job in able if job.width == widest))
        return started, Moment(state.now, tuple(job.id for job in started), *shown)
