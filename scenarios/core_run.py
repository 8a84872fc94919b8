"""A workload told to a `SiteCore` event by event: the driver for what the compiled loop does not take."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from gridweave.scenarios.reservations import Request, ReservationAnswer
from gridweave.scenarios.results import NEVER
from gridweave.scenarios.workload import IntArray, Workload
from gridweave.site.core import SiteCore
from gridweave.site.messages import (
    AcceptReservation,
    Event,
    Job,
    JobFinished,
    JobSubmitted,
    RefuseReservation,
    ReservationRequested,
    StartJob,
)
from gridweave.site.policy import SitePolicy

# Jobs that are played before progress is reported: about a tenth of a second.
_SLICE = 1_000


def run_core(
    workload: Workload,
    rows: IntArray,
    nodes: int,
    policy: SitePolicy,
    offset_ms: int,
    reservations: Sequence[Request],
    report: Callable[[int, int], None],
    *,
    check: bool,
) -> tuple[IntArray, tuple[ReservationAnswer, ...]]:
    """Run a `SiteCore` to which every event is told as it happens.

    Parameters
    ----------
    workload : Workload
    rows : numpy.ndarray of int64, shape (k,)
        The jobs to submit; none is refused by the site.
    nodes : int
        Nodes of the site.
    policy : SitePolicy
    offset_ms : int
        Local time of instant zero, from Monday 00:00.
    reservations : sequence of (int, ReservationRequested)
    report : callable
        Called now and then with the number of jobs submitted so far, and of all.
    check : bool
        Whether the core's invariants are checked after every step.

    Returns
    -------
    start_ms : numpy.ndarray of int64, shape (k,)
    answers : tuple of ReservationAnswer
        In the order of the requests.
    """
    core = SiteCore(nodes, policy, week_offset_ms=offset_ms)
    arrivals = _arrivals(workload, rows, reservations)
    row_of = {int(workload.job_id[row]): place for place, row in enumerate(rows)}
    run_ms = workload.run_ms[rows].tolist()
    start_ms = np.full(len(rows), NEVER, np.int64)
    asked = {request.reservation_id: (when_ms, request) for when_ms, request in reservations}
    answers: dict[int, ReservationAnswer] = {}
    ends: list[tuple[int, int]] = []
    next_arrival = submitted = reported = 0
    while True:
        instants = [when for when, _ in (*arrivals[next_arrival : next_arrival + 1], *ends[:1])]
        wakeup_ms = core.next_wakeup_ms()
        if not instants and wakeup_ms is None:
            return start_ms, tuple(answers[reservation_id] for reservation_id in asked)
        now_ms = min(instants if wakeup_ms is None else [*instants, wakeup_ms])
        events: list[Event] = []
        while ends and ends[0][0] == now_ms:
            events.append(JobFinished(heapq.heappop(ends)[1]))
        while next_arrival < len(arrivals) and arrivals[next_arrival][0] == now_ms:
            events.append(arrivals[next_arrival][1])
            submitted += isinstance(events[-1], JobSubmitted)
            next_arrival += 1
        for command in core.handle(now_ms, *events):
            if isinstance(command, StartJob):
                row = row_of[command.job_id]
                start_ms[row] = now_ms
                heapq.heappush(ends, (now_ms + run_ms[row], command.job_id))
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
    columns = workload.columns
    arrivals: list[tuple[int, Event]] = [
        (
            int(workload.submit_ms[row]),
            JobSubmitted(
                Job(
                    job_id=int(workload.job_id[row]),
                    width=int(workload.width[row]),
                    estimate_ms=int(workload.estimate_ms[row]),
                    user=int(columns["user"][row]) if "user" in columns else None,
                    priority=float(columns["priority"][row]) if "priority" in columns else 0.0,
                    weight=float(columns["weight"][row]) if "weight" in columns else 1.0,
                )
            ),
        )
        for row in rows
    ]
    arrivals.extend(reservations)
    return sorted(arrivals, key=lambda arrival: arrival[0])
