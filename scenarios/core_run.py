"""A workload told to a `SiteCore` event by event: the driver for what the compiled loop does not take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gridweave.scenarios.job_messages import job_messages
from gridweave.scenarios.reservations import Request, ReservationAnswer
from gridweave.scenarios.results import NEVER
from gridweave.scenarios.running_work import RunningWork
from gridweave.scenarios.workload import IntArray, Workload
from gridweave.site.core import SiteCore
from gridweave.site.disciplines.dictionary import Policy
from gridweave.site.messages import (
    AcceptReservation,
    ChangeRate,
    Event,
    JobFinished,
    JobSubmitted,
    RefuseReservation,
    ReservationRequested,
    StartJob,
)

# Jobs that are played before progress is reported: about a tenth of a second.
_SLICE = 1_000


def run_core(
    workload: Workload,
    rows: IntArray,
    nodes: int,
    policy: Policy,
    offset_ms: int,
    reservations: Sequence[Request],
    report: Callable[[int, int], None],
    *,
    check: bool,
) -> tuple[IntArray, IntArray, tuple[ReservationAnswer, ...]]:
    """Run a `SiteCore` to which every event is told as it happens.

    Parameters
    ----------
    workload : Workload
    rows : numpy.ndarray of int64, shape (k,)
        The jobs to submit; none is refused by the site.
    nodes : int
        Nodes of the site.
    policy : SitePolicy or SharedNodes
    offset_ms : int
        Local time of instant zero, from Monday 00:00.
    reservations : sequence of (int, ReservationRequested)
    report : callable
        Called now and then with the number of jobs submitted so far, and of all.
    check : bool
        Whether the core's invariants are checked after every step.

    Returns
    -------
    start_ms, end_ms : numpy.ndarray of int64, shape (k,)
    answers : tuple of ReservationAnswer
        In the order of the requests.
    """
    core = SiteCore(nodes, policy, week_offset_ms=offset_ms)
    arrivals = _arrivals(workload, rows, reservations)
    row_of = {int(workload.job_id[row]): place for place, row in enumerate(rows)}
    run_ms = workload.run_ms[rows].tolist()
    start_ms, end_ms = np.full((2, len(rows)), NEVER, np.int64)
    asked = {request.reservation_id: (when_ms, request) for when_ms, request in reservations}
    answers: dict[int, ReservationAnswer] = {}
    running = RunningWork()
    next_arrival = submitted = reported = 0
    while True:
        instants = [when for when, _ in arrivals[next_arrival : next_arrival + 1]]
        instants += [when for when in (running.next_end_ms(), core.next_wakeup_ms()) if when is not None]
        if not instants:
            return start_ms, end_ms, tuple(answers[reservation_id] for reservation_id in asked)
        now_ms = min(instants)
        events: list[Event] = []
        for job_id in running.ended(now_ms):
            end_ms[row_of[job_id]] = now_ms
            events.append(JobFinished(job_id))
        while next_arrival < len(arrivals) and arrivals[next_arrival][0] == now_ms:
            events.append(arrivals[next_arrival][1])
            submitted += isinstance(events[-1], JobSubmitted)
            next_arrival += 1
        for command in core.handle(now_ms, *events):
            if isinstance(command, StartJob):
                row = row_of[command.job_id]
                start_ms[row] = now_ms
                running.begin(now_ms, command.job_id, run_ms[row])
            elif isinstance(command, ChangeRate):
                running.change_rate(now_ms, command.job_id, command.rate)
            elif isinstance(command, AcceptReservation | RefuseReservation):
                answers[command.reservation_id] = _answer(*asked[command.reservation_id], command)
        if check:
            core.check_invariants()
        if submitted >= reported + _SLICE:
            reported = submitted
            report(submitted, len(rows))


def _answer(
    when_ms: int, request: ReservationRequested, command: AcceptReservation | RefuseReservation
) -> ReservationAnswer:
    refused = command if isinstance(command, RefuseReservation) else None
    return ReservationAnswer(
        reservation_id=request.reservation_id,
        requested_ms=when_ms,
        start_ms=request.start_ms,
        length_ms=request.length_ms,
        width=request.width,
        accepted=refused is None,
        earliest_ms=refused.earliest_start_ms if refused else None,
        reason=refused.reason if refused else None,
    )


def _arrivals(workload: Workload, rows: IntArray, reservations: Sequence[Request]) -> list[tuple[int, Event]]:
    """Return submissions and requests by their instant; at one instant requests come after the jobs."""
    jobs = job_messages(workload, rows)
    arrivals: list[tuple[int, Event]] = [
        (when_ms, JobSubmitted(job)) for when_ms, job in zip(workload.submit_ms[rows].tolist(), jobs, strict=True)
    ]
    arrivals.extend(reservations)
    return sorted(arrivals, key=lambda arrival: arrival[0])
