"""Forecast the start of a job in the grid queue by simulating a copy of the meta-scheduler.

The simulation assumes that every running job ends at its expected end, that the grid is notified ``end_ms`` later, that
sites grant every request at once, and that no new jobs arrive (docs/explain.md). The copy makes its decisions with the
same code as the meta-scheduler itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol, Self

from gridweave.grid.control.coallocation import Attempt, Fragments
from gridweave.grid.control.cost import named
from gridweave.grid.control.past import LeftAlone
from gridweave.grid.control.queue import GridQueue
from gridweave.grid.control.queue_forecasts import CountedStanding, Standing
from gridweave.grid.lifecycle import ASKED
from gridweave.grid.messages import GridCommand, GridJobSubmitted, ReportRefused, ToSite
from gridweave.grid.policy import GridPolicy
from gridweave.site.explain import Forecast, Places, listed, places_text
from gridweave.site.kernels.planning import OVERDUE_MS
from gridweave.site.messages import Answer, Ended, Reserved, ReserveNodes

MOST_STEPS = 20_000
"""Largest number of simulated time steps."""

MOST_RESERVED = 50_000
"""Largest number of reservations in a simulation with reserved starts; each pass may recompute all reservations."""


class Copy(Protocol):
    """A copy of `gridweave.grid.control.full.FullControl` for simulation."""

    @property
    def queue(self) -> GridQueue:
        """The grid queue."""

    @property
    def policy(self) -> GridPolicy:
        """The scheduling policy."""

    @property
    def margin_ms(self) -> int:
        """How far in advance sites agree on the start of a split job."""

    @property
    def attempts(self) -> dict[int, Attempt]:
        """The current attempts by job id."""

    @property
    def closed(self) -> dict[int, LeftAlone]:
        """The sites that the grid does not ask for nodes at present, and why."""

    @property
    def shut(self) -> dict[int, str]:
        """Sites that accept no new jobs, and why."""

    def copy(self) -> Self:
        """Return an independent copy."""

    def submit(self, now_ms: int, asked: GridJobSubmitted) -> list[GridCommand]:
        """Submit a job."""

    def answered(self, now_ms: int, site: int, answer: Answer) -> list[GridCommand]:
        """Apply an answer from a site."""

    def run(self, now_ms: int) -> list[GridCommand]:
        """Make scheduling decisions; call after all events at `now_ms` have been applied."""

    def next_wakeup_ms(self) -> int | None:
        """Return when `run` must be called even without an event, or None."""


def attempt_forecast(now_ms: int, attempt: Attempt, names: Sequence[str]) -> Forecast:
    """Return the forecast for a job that has been placed and is about to start."""
    placement = named(attempt.fragments, names)
    missing = attempt.missing if attempt.state == ASKED else ()
    asked = [names[site] for site, _ in attempt.fragments if site in missing]
    reserved = places_text(named(tuple(part for part in attempt.fragments if part[0] not in missing), names))
    if attempt.ahead and attempt.state == ASKED:
        return _ahead_forecast(now_ms, attempt, placement, asked, reserved)
    if len(placement) == 1:
        reason = "it was placed"
    elif not asked:
        reason = f"reserved on {reserved}: the start is agreed"
    else:
        reason = f"reserved on {reserved}" if reserved else "it was placed"
        reason += f"; {listed(asked)} {'has' if len(asked) == 1 else 'have'} been asked"
    return Forecast(
        job_id=attempt.job.job_id,
        now_ms=now_ms,
        state="starting",
        start_ms=attempt.start_ms,
        places=placement,
        length_ms=attempt.length_ms,
        reason=reason,
    )


def _ahead_forecast(now_ms: int, attempt: Attempt, placement: Places, asked: Sequence[str], reserved: str) -> Forecast:
    """Return the forecast, without a start, for a job for which sites reserve nodes as they come free."""
    reason = f"reserved ahead on {reserved}; " if reserved else ""
    reason += f"it is next in the queue of {listed(asked)}, which {'keeps' if len(asked) == 1 else 'keep'} free nodes "
    reason += "for it; it starts when all sites have their nodes"
    return Forecast(
        job_id=attempt.job.job_id, now_ms=now_ms, places=placement, length_ms=attempt.length_ms, reason=reason
    )


class QueueForecasts:
    """Forecasts for all jobs in one state of the grid, from one simulation that advances only as far as needed.

    The result for a job does not depend on earlier calls.

    Parameters
    ----------
    control : Copy
        The current state; the caller must not use it afterwards.
    now_ms : int
    names : sequence of str
        Names of the sites.
    end_ms : int
        Delay until the grid is notified of a job's end.
    most_steps : int
        Largest number of simulated time steps.
    """

    def __init__(
        self, control: Copy, now_ms: int, names: Sequence[str], end_ms: int = 0, *, most_steps: int = MOST_STEPS
    ) -> None:
        self._now_ms, self._names, self._end_ms, self._most_steps = now_ms, names, end_ms, most_steps
        expect_ends(control.queue, now_ms, end_ms)
        self._control = control  # keeps the current state; `_simulate` simulates a copy
        self._placed: dict[int, tuple[int, Fragments, int]] = {}
        self._has_ended = False  # whether the simulation has run out of events
        self._steps = self._simulate()

    def forecast(self, job_id: int) -> Forecast:
        """Return when a waiting job will start, and why not earlier."""
        control, now_ms = self._control, self._now_ms
        standing = _standing(control, now_ms, job_id, self._names)
        firm = _firmly_reserved(control, now_ms, job_id)
        if firm is not None:
            return standing.placed(*firm)
        while job_id not in self._placed and next(self._steps, False):
            pass
        if job_id in self._placed:
            return standing.placed(*self._placed[job_id])
        if self._has_ended:
            return standing.unplaced()
        reserved = control.queue.reserved(job_id)
        if reserved is not None:
            start_ms, placement = reserved
            return standing.placed(start_ms, placement.fragments, placement.length_ms, is_reserved_only=True)
        return standing.unplaced(is_too_far=True)

    def starts(self, most_jobs: int) -> list[Forecast]:
        """Return the first ``most_jobs`` starts of waiting jobs, in order of start, as far as the simulation goes."""
        while len(self._placed) < min(most_jobs, self._control.queue.n_waiting) and next(self._steps, False):
            pass
        return [
            Forecast(
                job_id=job_id,
                now_ms=self._now_ms,
                start_ms=start_ms,
                places=named(fragments, self._names),
                length_ms=length_ms,
            )
            for job_id, (start_ms, fragments, length_ms) in islice(self._placed.items(), most_jobs)
        ]

    def _simulate(self) -> Iterator[bool]:
        """Simulate step by step and record placements; after each step, yield whether more events follow."""
        control = self._control.copy()
        _grant_all(control, self._now_ms, self._end_ms)
        seen = set(control.attempts)
        for next_ms in _instants(control, self._now_ms, self._end_ms, self._most_steps):
            for job_id in sorted(control.attempts.keys() - seen):
                placed = control.attempts[job_id]
                self._placed[job_id] = placed.start_ms, placed.fragments, placed.length_ms
            seen |= control.attempts.keys()
            self._has_ended = next_ms is None
            yield not self._has_ended


def quoted_forecast(
    control: Copy, now_ms: int, asked: GridJobSubmitted, names: Sequence[str], end_ms: int = 0
) -> Forecast:
    """Return when a job would start if it were submitted now; this call changes ``control``."""
    job = asked.job
    for command in control.submit(now_ms, asked):
        if isinstance(command, ReportRefused):
            return Forecast(now_ms=now_ms, state="refused", reason=command.reason)
    expect_ends(control.queue, now_ms, end_ms)
    standing = _standing(control, now_ms, job.job_id, names, is_quote=True)
    _carry_out(control, now_ms, end_ms, control.run(now_ms))
    placed = control.attempts.get(job.job_id)
    if placed is not None:
        return standing.placed_at_once(placed.start_ms, placed.fragments, placed.length_ms)
    return _simulate(control, standing, now_ms, end_ms, MOST_STEPS) or standing.unplaced(is_too_far=True)


def _standing(
    control: Copy, now_ms: int, job_id: int, names: Sequence[str], *, is_quote: bool = False
) -> Standing | CountedStanding:
    """Return the reasons why a job in the queue is waiting."""
    queue, closed, shut = control.queue, control.closed, control.shut
    if queue.holdings is not None:
        return CountedStanding(queue, closed, shut, now_ms, (job_id, is_quote), names)
    return Standing(queue, control.policy, closed, shut, now_ms, job_id, names, is_quote=is_quote)


def expect_ends(queue: GridQueue, now_ms: int, end_ms: int) -> None:
    """Delay all expected ends by ``end_ms``, and assume that overdue jobs end soon, as the grid's plan does."""
    queue.expect_late(now_ms)
    if end_ms:
        for job_id, ends_ms in [(running.job.job_id, running.end_ms) for running in queue.running]:
            queue.expect_end(now_ms, job_id, ends_ms + end_ms)
    overdue = [running.job.job_id for running in queue.running if running.end_ms <= now_ms]
    for job_id in overdue:
        queue.expect_end(now_ms, job_id, now_ms + OVERDUE_MS)


def _firmly_reserved(control: Copy, now_ms: int, job_id: int) -> tuple[int, Fragments, int] | None:
    """Return a job's reservation (start, fragments, length) if nothing can change it in the simulation."""
    wakeup_ms = control.next_wakeup_ms()
    if control.closed or (wakeup_ms is not None and wakeup_ms <= now_ms):
        return None
    reserved = control.queue.firmly_reserved(job_id, moves_splits=control.margin_ms > 0)
    if reserved is None:
        return None
    start_ms, placement = reserved
    agreed_ms = start_ms + (control.margin_ms if len(placement.fragments) > 1 else 0)
    return agreed_ms, placement.fragments, placement.length_ms


def _simulate(
    control: Copy, standing: Standing | CountedStanding, now_ms: int, end_ms: int, most_steps: int
) -> Forecast | None:
    """Simulate until a job is placed, and return its forecast; None if the placement takes more steps than allowed."""
    _grant_all(control, now_ms, end_ms)
    for next_ms in _instants(control, now_ms, end_ms, most_steps):
        placed = control.attempts.get(standing.job_id)
        if placed is not None:
            return standing.placed(placed.start_ms, placed.fragments, placed.length_ms)
        if next_ms is None:
            return standing.unplaced()
    return None


def _instants(control: Copy, now_ms: int, end_ms: int, most_steps: int) -> Iterator[int | None]:
    """Simulate from decision to decision; before each decision yield its time, and after the last decision None."""
    reserved = 0
    for _ in range(most_steps):
        instants = [control.next_wakeup_ms(), control.queue.next_end_ms()]
        next_ms = min((instant for instant in instants if instant is not None), default=None)
        yield next_ms
        if next_ms is None:
            return
        if control.policy.backfill == "conservative":
            reserved += control.queue.n_waiting
            if reserved > MOST_RESERVED:
                return
        now_ms = max(next_ms, now_ms + 1)
        _end_jobs(control, now_ms)
        _carry_out(control, now_ms, end_ms, control.run(now_ms))


def _grant_all(control: Copy, now_ms: int, end_ms: int) -> None:
    """Answer all open requests to sites with a grant."""
    for attempt in list(control.attempts.values()):
        for site in sorted(attempt.missing):
            granted = control.answered(now_ms, site, Reserved(attempt.job.job_id, attempt.number))
            _carry_out(control, now_ms, end_ms, granted)


def _end_jobs(control: Copy, now_ms: int) -> None:
    for job_id in control.queue.ending(now_ms):
        attempt = control.attempts[job_id]
        for site, _ in attempt.fragments:
            if site not in attempt.ended:
                control.answered(now_ms, site, Ended(job_id, attempt.number, now_ms, "finished"))


def _carry_out(control: Copy, now_ms: int, end_ms: int, commands: Sequence[GridCommand]) -> None:
    """Answer the requests among these commands with a grant, and delay the expected ends by ``end_ms``."""
    for command in commands:
        if isinstance(command, ToSite) and isinstance(command.request, ReserveNodes):
            request = command.request
            if end_ms:
                attempt = control.attempts[request.job_id]
                control.queue.expect_end(now_ms, request.job_id, attempt.start_ms + attempt.length_ms + end_ms)
            if request.start_ms is not None:
                control.answered(now_ms, command.site, Reserved(request.job_id, request.attempt))
