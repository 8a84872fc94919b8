"""Convert the reference's records to those of the package, and drive a core through them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gridweave.site.job import Job
from gridweave.site.messages import (
    AcceptReservation,
    Command,
    Event,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    RefuseReservation,
    ReservationRequested,
    StartJob,
)
from gridweave.site.policy import Limit, SitePolicy, Window
from gridweave.site.scheduler.core import SiteCore
from reference.model import Job as PlainJob
from reference.model import Limit as PlainLimit
from reference.model import Reservation


@dataclass
class Stepped:
    """The output of a core: starts by job id, answers to requests, and all commands with their instants."""

    start: dict[int, int] = field(default_factory=dict)
    answers: dict[int, tuple[bool, int | None]] = field(default_factory=dict)
    commands: list[tuple[int, Command]] = field(default_factory=list)


def site_job(job: PlainJob) -> Job:
    """Convert a job of the reference to a job of a site."""
    assert not isinstance(job.user, str)
    return Job(
        job_id=job.id,
        width=job.width,
        estimate_ms=job.estimate,
        user=job.user,
        priority=float(job.priority),
        weight=job.weight,
    )


def site_policy(options: dict[str, Any]) -> SitePolicy:
    """Convert options of the reference to a policy; leave out `choice` where it has no meaning."""
    wanted = dict(options)
    if wanted.get("backfill") not in ("easy", "slack") or wanted["discipline"] == "planning":
        wanted.pop("choice", None)
    return SitePolicy(**wanted)


def site_limit(limit: PlainLimit) -> Limit:
    """Convert a limit of the reference to a limit of the package."""
    window = limit.window and Window(
        days=tuple(sorted(limit.window.days)), from_ms=limit.window.from_ms_of_day, to_ms=limit.window.to_ms_of_day
    )
    assert not isinstance(limit.user, str)
    return Limit(
        wider_than=limit.wider_than,
        longer_than_ms=limit.longer_than_ms,
        user=limit.user,
        window=window,
        max_nodes=limit.max_nodes,
        max_jobs=limit.max_jobs,
    )


def is_expressible(limit: PlainLimit) -> bool:
    """Whether the package accepts a limit: it refuses limits under which no job could ever start."""
    return limit.max_nodes != 0 and limit.max_jobs != 0 and (limit.window is None or bool(limit.window.days))


def step(
    core: SiteCore,
    jobs: Iterable[PlainJob],
    *,
    cancellations: Iterable[tuple[int, int]] = (),
    reservations: Iterable[Reservation] = (),
) -> Stepped:
    """Drive a core through jobs, cancellations and requests, and check its invariants after every step.

    A running job that is cancelled ends at the same instant, as in the reference.
    """
    jobs, cancellations, requests = list(jobs), list(cancellations), list(reservations)
    length = {job.id: job.length for job in jobs}
    ends: dict[int, int] = {}
    stepped = Stepped()
    calendar = {job.submit for job in jobs} | {when for when, _ in cancellations} | {r.request for r in requests}
    now = -1
    while True:
        wakeup = core.next_wakeup_ms()
        instants = [*calendar, *ends.values(), *([] if wakeup is None else [wakeup])]
        instants = [instant for instant in instants if instant > now]
        if not instants:
            return stepped
        now = min(instants)
        done = [job_id for job_id, end in ends.items() if end == now]
        gone = [job_id for when, job_id in cancellations if when == now]
        done += [job_id for job_id in gone if ends.get(job_id, now) > now]
        events: list[Event] = [JobFinished(job_id) for job_id in done]
        events += [JobCancelled(job_id) for job_id in gone]
        events += _submissions(jobs, requests, now)
        for job_id in done:
            ends.pop(job_id, None)
        for command in core.handle(now, *events):
            stepped.commands.append((now, command))
            if isinstance(command, StartJob):
                assert command.job_id not in stepped.start, "a job was started twice"
                stepped.start[command.job_id] = now
                ends[command.job_id] = now + length[command.job_id]
            elif isinstance(command, AcceptReservation):
                stepped.answers[command.reservation_id] = (True, None)
            elif isinstance(command, RefuseReservation):
                stepped.answers[command.reservation_id] = (False, command.earliest_start_ms)
        core.check_invariants()


def do(core: Any, now_ms: int, *events: Any) -> list[Any]:
    """Handle events at an instant, check the invariants, and return the commands."""
    commands = list(core.handle(now_ms, *events))
    core.check_invariants()
    return commands


def _submissions(jobs: list[PlainJob], requests: list[Reservation], now: int) -> list[Event]:
    """Return the submissions at an instant: jobs by id, and each request after `request.place` of the jobs."""
    arriving = sorted((job for job in jobs if job.submit == now), key=lambda job: job.id)
    asked = [request for request in requests if request.request == now]
    events: list[Event] = []
    for place in range(len(arriving) + 1):
        for request in asked:
            own = len(arriving) if request.place is None else min(request.place, len(arriving))
            if own == place:
                assert isinstance(request.id, int)
                events.append(ReservationRequested(request.id, request.start, request.length, request.width))
        events += [JobSubmitted(site_job(job)) for job in arriving[place : place + 1]]
    return events
