"""A workload told to a `SiteCore` event by event: the driver for what the compiled loop does not take.

The jobs of a workload as messages to cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gridweave.grid.sends import QUIET, JobData, Sends
from gridweave.netmodel.communication import PATTERNS, Communication
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.workload.columns import RESOURCE_COLUMNS
from gridweave.scenarios.workload.reservations import Request, ReservationAnswer
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.scenarios.world.running_work import RunningWork
from gridweave.site.core import SiteCore
from gridweave.site.disciplines.protocol import Policy
from gridweave.site.job import Job, Resources
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


def job_messages(workload: Workload, rows: IntArray | None = None) -> list[Job]:
    """Return what a user says of each job when it is submitted.

    Parameters
    ----------
    rows : numpy.ndarray of int64, shape (k,), optional
        The jobs; all if left out.

    Returns
    -------
    list of Job
        With `Resources` if the workload has the columns of `gridweave.scenarios.workload.columns.assign_resources`.
    """
    workload = workload if rows is None else workload.take(rows)
    columns = {name: values.tolist() for name, values in workload.columns.items()}
    count = len(workload)
    users = columns.get("user", [None] * count)
    priorities = columns.get("priority", [0.0] * count)
    weights = columns.get("weight", [1.0] * count)
    ids, widths, estimates = workload.job_id.tolist(), workload.width.tolist(), workload.estimate_ms.tolist()
    return [
        Job(
            job_id=job_id,
            width=width,
            estimate_ms=estimate_ms,
            user=user,
            priority=float(priority),
            weight=weight,
            resources=resources,
        )
        for job_id, width, estimate_ms, user, priority, weight, resources in zip(
            ids, widths, estimates, users, priorities, weights, _resources(columns, count), strict=True
        )
    ]


def sends_of(workload: Workload) -> list[Sends]:
    """Return what the user says of each job that it sends over the links between sites.

    Parameters
    ----------
    workload : Workload
        With the columns of `communication_of` and `data_of` (`gridweave.scenarios.batch.grid_network`); where one of
        them is missing, there is no communication, no input, or no output.

    Raises
    ------
    OptionError
        If a part of the run time is none.
    """
    count = len(workload)
    talks = [QUIET] * count
    if {"pattern", "communication_fraction", "message_bytes"} <= set(workload.columns):
        names = list(PATTERNS)
        talks = [
            Communication(fraction=fraction, message_bytes=float(n_bytes), pattern=names[pattern])
            for fraction, n_bytes, pattern in zip(
                *(workload.columns[name].tolist() for name in ("communication_fraction", "message_bytes", "pattern")),
                strict=True,
            )
        ]
    moved: list[list[int]] = []
    for what in ("input", "output"):
        names = [f"{what}_bytes", f"{what}_site"]
        known = all(name in workload.columns for name in names)
        moved += [workload.columns[name].tolist() if known else [0] * count for name in names]
    return [
        Sends(talk, JobData(input_bytes=size, input_site=at, output_bytes=out, output_site=to))
        for talk, size, at, out, to in zip(talks, *moved, strict=True)
    ]


def _resources(columns: dict[str, list[Any]], count: int) -> list[Resources] | list[None]:
    if not all(name in columns for name in RESOURCE_COLUMNS[:4]):
        return [None] * count
    parts = [columns[name] for name in RESOURCE_COLUMNS[:4]]
    kinds, caches = (columns.get(name, [0] * count) for name in RESOURCE_COLUMNS[4:])
    messages = columns.get("message_bytes", [None] * count)
    return [
        Resources(
            cpu=cpu,
            network=network,
            disk=disk,
            memory=memory,
            cpu_kind=kind,
            cache_bytes=cache,
            message_bytes=message,
        )
        for cpu, network, disk, memory, kind, cache, message in zip(*parts, kinds, caches, messages, strict=True)
    ]


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
    rows : numpy.ndarray of int64, shape (k,)
        The jobs to submit; none is refused by the site.
    nodes : int
        Nodes of the site.
    offset_ms : int
        Local time of instant zero, from Monday 00:00.
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
