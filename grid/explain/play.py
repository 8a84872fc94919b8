"""When a job of the grid queue starts: a copy of the meta-scheduler is played forward, and decides as it would.

In that play every running job ends at its expected end, of which the grid hears ``end_ms`` later, the sites grant what
they are asked for at once, and nobody else comes (docs/explain.md). Whatever decides is what decides in earnest:
nothing of it is written a second time here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol, Self

from gridweave.grid.control.coallocation import ASKED, Attempt, Fragments
from gridweave.grid.control.past import LeftAlone
from gridweave.grid.control.queue import GridQueue
from gridweave.grid.explain.cost import named
from gridweave.grid.explain.queue import Standing
from gridweave.grid.messages import GridCommand, GridJobSubmitted, ReportRefused, ToSite
from gridweave.grid.policy import GridPolicy
from gridweave.site.explain import Forecast, Places, listed, places_text
from gridweave.site.kernels.planning import OVERDUE_MS
from gridweave.site.messages import Answer, Ended, Reserved, ReserveNodes

MOST_STEPS = 20_000
"""So many instants are played at most."""

MOST_RESERVED = 50_000
"""Where starts are reserved: so many jobs, over all instants together, as a pass may have to reserve them all anew."""


class Copy(Protocol):
    """A copy of `gridweave.grid.control.full.FullControl`, to be played with."""

    @property
    def queue(self) -> GridQueue:
        """Its queue."""

    @property
    def policy(self) -> GridPolicy:
        """How it schedules."""

    @property
    def margin_ms(self) -> int:
        """How far ahead the start of a job on several sites is agreed."""

    @property
    def attempts(self) -> dict[int, Attempt]:
        """The attempts that are under way, by job."""

    @property
    def closed(self) -> dict[int, LeftAlone]:
        """The sites that are not asked for now, and why."""

    @property
    def shut(self) -> dict[int, str]:
        """The sites that take in nothing new, and why."""

    def copy(self) -> Self:
        """Return the same state; neither sees what is done to the other."""

    def submit(self, now_ms: int, asked: GridJobSubmitted) -> list[GridCommand]:
        """Take in a job."""

    def answered(self, now_ms: int, site: int, answer: Answer) -> list[GridCommand]:
        """Take in what a site says."""

    def run(self, now_ms: int) -> list[GridCommand]:
        """Decide, after all that happened at an instant has been taken in."""

    def next_wakeup_ms(self) -> int | None:
        """Return when `run` is to be called though nothing is heard."""


def attempt_forecast(now_ms: int, attempt: Attempt, names: Sequence[str]) -> Forecast:
    """Return how it stands with a job that has been placed."""
    places = named(attempt.fragments, names)
    missing = attempt.missing if attempt.state == ASKED else ()
    asked = [names[site] for site, _ in attempt.fragments if site in missing]
    reserved = places_text(named(tuple(part for part in attempt.fragments if part[0] not in missing), names))
    if attempt.ahead and attempt.state == ASKED:
        return _ahead_forecast(now_ms, attempt, places, asked, reserved)
    if len(places) == 1:
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
        places=places,
        length_ms=attempt.length_ms,
        reason=reason,
    )


def _ahead_forecast(now_ms: int, attempt: Attempt, places: Places, asked: Sequence[str], reserved: str) -> Forecast:
    """Return how it stands with a job for which sites reserve nodes ahead; when the last has them nobody knows."""
    reason = f"reserved ahead on {reserved}; " if reserved else ""
    reason += f"it is next in the queue of {listed(asked)}, which {'keeps' if len(asked) == 1 else 'keep'} for it what "
    reason += "comes free; it starts when all sites have their nodes"
    return Forecast(job_id=attempt.job.job_id, now_ms=now_ms, places=places, length_ms=attempt.length_ms, reason=reason)


class QueueForecasts:
    """When the jobs of one state of the grid start: one play, carried on as far as it is asked about.

    Whoever asks second, or about a second job, is answered as if nobody had asked before.

    Parameters
    ----------
    control : Copy
        As it is now; it is used up.
    now_ms : int
    names : sequence of str
        Of the sites.
    end_ms : int
        So long after its end the grid hears of a job's end.
    most_steps : int
        So many decisions are played at most.
    """

    def __init__(
        self, control: Copy, now_ms: int, names: Sequence[str], end_ms: int = 0, *, most_steps: int = MOST_STEPS
    ) -> None:
        self._now_ms, self._names, self._end_ms, self._most_steps = now_ms, names, end_ms, most_steps
        expect_ends(control.queue, now_ms, end_ms)
        self._control = control  # as it is now; another copy is played
        self._placed: dict[int, tuple[int, Fragments, int]] = {}
        self._has_ended = False  # whether the play came to where nothing is known to happen
        self._steps = self._play()

    def forecast(self, job_id: int) -> Forecast:
        """Return when a waiting job starts, and why not sooner."""
        control, now_ms = self._control, self._now_ms
        standing = Standing(control.queue, control.policy, control.closed, control.shut, now_ms, job_id, self._names)
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
        """Return the first starts of the jobs that wait, in their order; what is not reached is left out."""
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

    def _play(self) -> Iterator[bool]:
        """Play from decision to decision, and note who is placed; yield whether it goes on."""
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
    """Return when a job would start that were submitted now; the control is used up by that."""
    job = asked.job
    for command in control.submit(now_ms, asked):
        if isinstance(command, ReportRefused):
            return Forecast(now_ms=now_ms, state="refused", reason=command.reason)
    expect_ends(control.queue, now_ms, end_ms)
    told = control.queue, control.policy, control.closed, control.shut
    standing = Standing(*told, now_ms, job.job_id, names, is_quote=True)
    _carry_out(control, now_ms, end_ms, control.run(now_ms))
    placed = control.attempts.get(job.job_id)
    if placed is not None:
        return standing.placed_at_once(placed.start_ms, placed.fragments, placed.length_ms)
    return _play(control, standing, now_ms, end_ms, MOST_STEPS) or standing.unplaced(is_too_far=True)


def expect_ends(queue: GridQueue, now_ms: int, end_ms: int) -> None:
    """Expect to hear of ends when they are heard of; of jobs that are past that soon, as the plan of the grid does."""
    queue.expect_late(now_ms)
    if end_ms:
        for job_id, ends_ms in [(running.job.job_id, running.end_ms) for running in queue.running]:
            queue.expect_end(now_ms, job_id, ends_ms + end_ms)
    overdue = [running.job.job_id for running in queue.running if running.end_ms <= now_ms]
    for job_id in overdue:
        queue.expect_end(now_ms, job_id, now_ms + OVERDUE_MS)


def _firmly_reserved(control: Copy, now_ms: int, job_id: int) -> tuple[int, Fragments, int] | None:
    """Return what is reserved for a job (its start, places and length), if nothing can move that in the play."""
    wakeup_ms = control.next_wakeup_ms()
    if control.closed or (wakeup_ms is not None and wakeup_ms <= now_ms):
        return None
    reserved = control.queue.firmly_reserved(job_id, moves_splits=control.margin_ms > 0)
    if reserved is None:
        return None
    start_ms, placement = reserved
    agreed_ms = start_ms + (control.margin_ms if len(placement.fragments) > 1 else 0)
    return agreed_ms, placement.fragments, placement.length_ms


def _play(control: Copy, standing: Standing, now_ms: int, end_ms: int, most_steps: int) -> Forecast | None:
    """Play a copy forward until a job is placed; return None if that is not reached within the steps allowed."""
    _grant_all(control, now_ms, end_ms)
    for next_ms in _instants(control, now_ms, end_ms, most_steps):
        placed = control.attempts.get(standing.job_id)
        if placed is not None:
            return standing.placed(placed.start_ms, placed.fragments, placed.length_ms)
        if next_ms is None:
            return standing.unplaced()
    return None


def _instants(control: Copy, now_ms: int, end_ms: int, most_steps: int) -> Iterator[int | None]:
    """Play a copy forward, from decision to decision; yield at each when the next one is, None if there is none."""
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
    """Have the sites grant at once what they have been asked for."""
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
    """Have the sites grant at once what they are asked for on several of them."""
    for command in commands:
        if isinstance(command, ToSite) and isinstance(command.request, ReserveNodes):
            request = command.request
            if end_ms:
                attempt = control.attempts[request.job_id]
                control.queue.expect_end(now_ms, request.job_id, attempt.start_ms + attempt.length_ms + end_ms)
            if request.start_ms is not None:
                control.answered(now_ms, command.site, Reserved(request.job_id, request.attempt))
