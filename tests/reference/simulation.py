"""The event loop of the slow reference (docs/disciplines.md, "Time and jobs"): `simulate`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from reference.conservative import Conservative
from reference.dynp import SelfTuning, Tuning
from reference.levels import Levels
from reference.limits import never_starts
from reference.model import DAY, Job, Limit, NodeEvent, Outcome, Reservation, Running, State
from reference.ordering import ORDERS
from reference.planning import Planning
from reference.queueing import Queue

TOO_WIDE = "wider than the machine"
NEVER_ALLOWED = "a limit never lets it start"


def simulate(
    jobs: Iterable[Job],
    nodes: int,
    *,
    discipline: str = "queue",
    order: str = "fcfs",
    backfill: str = "easy",
    choice: str = "first-fit",
    slack: float | Fraction = 0.5,
    aging_ms: float = math.inf,
    reservations: Iterable[Reservation] = (),
    limits: Iterable[Limit] = (),
    week_offset_ms: int = 0,
    cancellations: Iterable[tuple[int, int]] = (),
    tuning: Tuning | None = None,
    node_events: Iterable[NodeEvent] = (),
    levels: Levels | None = None,
    cancels_running: bool = True,
) -> Outcome:
    """Run jobs on one site and return the whole story.

    Parameters
    ----------
    jobs : iterable of Job
        In any order. Jobs of one instant are submitted in ascending order of their id.
    nodes : int
        Nodes of the site. Wider jobs are refused.
    discipline : {"queue", "planning"}
    order : str
        One of `reference.ordering.ORDERS`.
    backfill : {"easy", "none", "conservative", "slack"}
        A planning site takes the first two only.
    choice : {"first-fit", "best-fit"}
        Among the backfill candidates of ``easy`` and ``slack``.
    slack : float or fractions.Fraction
        The product with an estimate is rounded down to whole milliseconds.
    aging_ms : float
        For the order ``priority``.
    reservations : iterable of Reservation
        Requests, for a planning site only.
    limits : iterable of Limit
        For a planning site only.
    week_offset_ms : int
        Local time of instant zero, in milliseconds since Monday 00:00.
    cancellations : iterable of (int, int)
        Instant and job id. One that meets its job neither waiting nor running has no effect.
    tuning : reference.dynp.Tuning, optional
        For a planning site that tunes itself; the order is then not used.
    node_events : iterable of NodeEvent
        Those of one instant come in the order given.
    levels : reference.levels.Levels, optional
        Of priority, with who may evict whom.
    cancels_running : bool
        Whether a cancellation also ends a job that runs.

    Returns
    -------
    Outcome

    Raises
    ------
    ValueError
        If the arguments make no sense, or ask of a discipline what it does not have.
    """
    jobs, reservations, limits = list(jobs), list(reservations), list(limits)
    cancellations = list(cancellations)
    _check_options(discipline, order, backfill, choice, slack, aging_ms, nodes)
    _check_jobs(jobs)
    _check_planning(discipline, reservations, limits)
    site: Queue | Conservative | Planning
    if tuning is not None:
        site = SelfTuning(tuning, limits, week_offset_ms)
    elif discipline == "planning":
        site = Planning(backfill, limits, week_offset_ms)
    elif backfill == "conservative":
        site = Conservative()
    else:
        site = Queue(backfill, choice, slack)

    machine = Machine(nodes, list(node_events))
    state = State(nodes, order, aging_ms)
    if levels is not None:
        state.rank = lambda job: (levels.level_of(job),)
    outcome = Outcome()
    calendar = (
        {job.submit for job in jobs} | {one.request for one in reservations} | {when for when, _ in cancellations}
    ) | {event.at for event in machine.events}
    while upcoming := [
        instant
        for instant in [*calendar, *(one.end for one in state.running), *site.timers(state)]
        if instant > state.now
    ]:
        state.now = min(upcoming)
        _end_and_cancel(state, site, cancellations, outcome, cancels_running=cancels_running)
        lost = machine.change(state, site, outcome)
        jobs += lost
        for item in _submissions(jobs, reservations, state.now):
            if isinstance(item, Reservation):
                assert isinstance(site, Planning)
                outcome.reservations[item.id] = (item, site.requested(state, item))
            elif item.width > nodes:
                outcome.refused[item.id] = TOO_WIDE
            elif never_starts(item, limits, week_offset_ms):
                outcome.refused[item.id] = NEVER_ALLOWED
            else:
                site.submitted(state, item)
        if levels is not None:
            levels.evict(state, outcome, site.submitted)
        started, moment = site.run_pass(state)
        for job in started:
            state.waiting.remove(job)
            state.running.append(Running(job, state.now, machine.take(state, job)))
            outcome.start[job.id] = state.now
        outcome.log.append(moment)
    assert not state.waiting or machine.out, "the simulation stopped with jobs that wait"
    assert not state.running, "the simulation stopped with jobs that run"
    return outcome


class Machine:
    """The nodes by number, which count where some fail: a job has the free ones with the lowest numbers."""

    def __init__(self, nodes: int, events: list[NodeEvent]) -> None:
        self.nodes = nodes
        self.events = events
        self.out: set[int] = set()
        self.held: dict[int, frozenset[int]] = {}

    def take(self, state: State, job: Job) -> frozenset[int] | None:
        """Return the nodes of a job that starts; None where none ever fails."""
        if not self.events:
            return None
        taken = set().union(*(self.held[one.job.id] for one in state.running))
        free = [node for node in range(self.nodes) if node not in taken | self.out]
        self.held[job.id] = frozenset(free[: job.width])
        return self.held[job.id]

    def change(self, state: State, site: Queue | Conservative | Planning, outcome: Outcome) -> list[Job]:
        """Let nodes fail, drain and come back that do so now; return the jobs that are lost, as submitted now."""
        lost = []
        events = [event for event in self.events if event.at == state.now]
        for event in events:
            for one in state.running[:] if event.kind == "down" else []:
                if self.held[one.job.id] & event.nodes:
                    state.running.remove(one)
                    del outcome.start[one.job.id]
                    outcome.restarts[one.job.id] = outcome.restarts.get(one.job.id, 0) + 1
                    lost.append(replace(one.job, submit=state.now))
            self.out = self.out - event.nodes if event.kind == "up" else self.out | event.nodes
        if events:
            state.nodes = self.nodes - len(self.out)
            state.running[:] = [replace(one, nodes=self.held[one.job.id] - self.out) for one in state.running]
            site.nodes_changed(state)
        return lost


def _end_and_cancel(
    state: State,
    site: Queue | Conservative | Planning,
    cancellations: Sequence[tuple[int, int]],
    outcome: Outcome,
    *,
    cancels_running: bool,
) -> None:
    """Take away the jobs that end now, then those that are cancelled now, and tell the site once."""
    something = early = False
    for one in sorted(state.running, key=lambda one: one.job.id):
        if one.end == state.now:
            state.running.remove(one)
            outcome.end[one.job.id] = state.now
            something = True
            early = early or one.end < one.end_by_estimate
    for job_id in [job_id for when, job_id in cancellations if when == state.now]:
        for waiting in [job for job in state.waiting if job.id == job_id]:
            state.waiting.remove(waiting)
            outcome.cancelled[job_id] = state.now
            something = early = True
        for one in [one for one in state.running if one.job.id == job_id and cancels_running]:
            state.running.remove(one)
            outcome.end[job_id] = outcome.cancelled[job_id] = state.now
            something = early = True
    if something:
        site.freed(state, early=early)


def _submissions(jobs: Sequence[Job], reservations: Sequence[Reservation], now: int) -> list[Job | Reservation]:
    """Return what is submitted at an instant: the jobs by id, each request at its place among them."""
    arriving = sorted((job for job in jobs if job.submit == now), key=lambda job: job.id)
    requests = [one for one in reservations if one.request == now]
    sequence: list[Job | Reservation] = []
    for place in range(len(arriving) + 1):
        last = place == len(arriving)
        sequence += [
            one for one in requests if one.place == place or (last and (one.place is None or one.place > place))
        ]
        sequence += arriving[place : place + 1]
    return sequence


def _refuse_if(wrong: bool, problem: str) -> None:
    if wrong:
        raise ValueError(problem)


def _check_options(
    discipline: str, order: str, backfill: str, choice: str, slack: float | Fraction, aging_ms: float, nodes: int
) -> None:
    _refuse_if(nodes < 1, "a site has at least one node")
    _refuse_if(discipline not in ("queue", "planning"), f"unknown discipline {discipline!r}")
    _refuse_if(order not in ORDERS, f"unknown order {order!r}")
    _refuse_if(backfill not in ("easy", "none", "conservative", "slack"), f"unknown backfilling {backfill!r}")
    _refuse_if(
        discipline == "planning" and backfill not in ("easy", "none"), f"planning has no backfilling {backfill!r}"
    )
    _refuse_if(choice not in ("first-fit", "best-fit"), f"unknown choice {choice!r}")
    _refuse_if(not 0 <= slack < math.inf, "slack is zero or more, and finite")
    _refuse_if(not aging_ms >= 0, "aging_ms is zero or more")


def _check_jobs(jobs: Sequence[Job]) -> None:
    _refuse_if(len({job.id for job in jobs}) != len(jobs), "a job id stands twice")
    for job in jobs:
        _refuse_if(job.submit < 0 or min(job.width, job.estimate, job.run) < 1, f"{job} is not a job")
        _refuse_if(not 0 <= job.weight < math.inf, f"{job} has a weight below zero, or none that can be compared")


def _check_planning(discipline: str, reservations: Sequence[Reservation], limits: Sequence[Limit]) -> None:
    _refuse_if(
        discipline != "planning" and bool(reservations or limits), "reservations and limits are for planning sites"
    )
    _refuse_if(len({one.id for one in reservations}) != len(reservations), "a reservation id stands twice")
    for one in reservations:
        _refuse_if(one.request < 0 or min(one.length, one.width) < 1, f"{one} is not a request")
    for limit in limits:
        capped = limit.max_nodes is not None or limit.max_jobs is not None
        _refuse_if(capped == (limit.window is not None), f"{limit} has not exactly one of its two effects")
        if limit.window is not None:
            times = limit.window.from_ms_of_day, limit.window.to_ms_of_day
            _refuse_if(not (0 <= times[0] < DAY and 0 <= times[1] <= DAY), f"{limit} has a time outside the day")
            _refuse_if(not limit.window.days <= set(range(7)), f"{limit} has a day that is none")
