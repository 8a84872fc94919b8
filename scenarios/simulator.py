"""One site in simulation: a workload and a policy in, a schedule out."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.kernels.batch import run_batch
from gridweave.scenarios.load import columns_of, load_workload
from gridweave.scenarios.results import NEVER, SimulationResult
from gridweave.scenarios.workload import MAX_WIDTH, IntArray, Workload
from gridweave.site.core import SiteCore
from gridweave.site.kernels.order import order_keys
from gridweave.site.kernels.state import SiteState, empty_plan, empty_state
from gridweave.site.messages import (
    Command,
    Event,
    Job,
    JobFinished,
    JobSubmitted,
    ReservationRequested,
    StartJob,
)
from gridweave.site.policy import Limit, SitePolicy

DRIVERS = ("batch", "core")

Progress = Callable[[int, int], None]

# Jobs that the compiled loop plays before it reports progress: about a hundredth of a second of EASY.
_SLICE = 20_000


def simulate(
    workload: Workload | str | Path,
    nodes: int | None = None,
    *,
    discipline: str = "queue",
    order: str = "fcfs",
    backfill: str = "easy",
    choice: str = "first-fit",
    slack: float = 0.5,
    aging_ms: float = float("inf"),
    limits: Sequence[Limit] = (),
    reservations: Sequence[tuple[int, ReservationRequested]] = (),
    driver: str = "batch",
) -> SimulationResult:
    """Simulate one site.

    Parameters
    ----------
    workload : Workload, str or pathlib.Path
        Jobs, or the file or name of a trace.
    nodes : int, optional
        Nodes of the site; those of the machine that the workload was recorded on if left out.
    discipline, order, backfill, choice, slack, aging_ms, limits
        As in `gridweave.site.policy.SitePolicy`.
    reservations : sequence of (int, ReservationRequested)
        Advance reservations, each with the instant in ms at which it is requested; for planning.
    driver : {"batch", "core"}
        The compiled loop, or a `SiteCore` stepped event by event. They give the same schedule, the second a hundred
        times slower. Reservations need the second, and take it by themselves.

    Returns
    -------
    SimulationResult
        A job that can never run on this site is refused, with a reason, and does not start.

    Raises
    ------
    InputError
        If the trace cannot be read, an option is unknown, or the number of nodes is not known.

    Examples
    --------
    >>> import gridweave
    >>> jobs = Workload(job_id=[1, 2, 3], submit_ms=[0, 1, 2], width=[3, 4, 1], estimate_ms=[100, 50, 90],
    ...                 run_ms=[100, 50, 90])
    >>> gridweave.simulate(jobs, nodes=4).start_ms.tolist()
    [0, 100, 2]
    >>> gridweave.simulate(jobs, nodes=4, backfill="none").start_ms.tolist()
    [0, 100, 150]
    """
    policy = SitePolicy(
        discipline=discipline,
        order=order,
        backfill=backfill,
        choice=choice,
        slack=slack,
        aging_ms=aging_ms,
        limits=tuple(limits),
    )
    if driver not in DRIVERS:
        raise OptionError("driver", f"{driver!r} is not known; one of {', '.join(DRIVERS)}")
    if not isinstance(workload, Workload):
        workload, _ = load_workload(workload, nodes=nodes, columns=columns_of(workload))
    return simulate_policy(workload, nodes, policy, reservations=reservations, driver=driver)


def simulate_policy(
    workload: Workload,
    nodes: int | None,
    policy: SitePolicy,
    *,
    reservations: Sequence[tuple[int, ReservationRequested]] = (),
    driver: str = "batch",
    check: bool = False,
    progress: Progress | None = None,
) -> SimulationResult:
    """Simulate one site under a policy that stands already; see `simulate`.

    Parameters
    ----------
    workload : Workload
    nodes : int or None
    policy : SitePolicy
    reservations : sequence of (int, ReservationRequested)
    driver : {"batch", "core"}
    check : bool
        Whether the core's invariants are checked after every step (slow).
    progress : callable, optional
        Called now and then with the number of jobs submitted so far and the number of all.

    Returns
    -------
    SimulationResult
    """
    nodes = _checked_nodes(workload, nodes)
    refused = _refusals(workload, nodes, policy)
    start_ms = np.full(len(workload), NEVER, np.int64)
    rows = np.flatnonzero(~np.isin(workload.job_id, list(refused)))
    offset_ms = week_offset_ms(workload)
    if rows.size and (driver == "core" or reservations):
        start_ms[rows] = _run_core(workload, rows, nodes, policy, offset_ms, reservations, check=check)
    elif rows.size:
        run = BatchRun(workload, rows, nodes, policy, week_offset_ms=offset_ms)
        for until in [*range(_SLICE, len(rows), _SLICE), len(rows)]:
            run.play(until)
            if progress is not None:
                progress(until, len(rows))
        start_ms[rows] = run.start_ms
        assert (run.start_ms != NEVER).all(), "the batch loop ended with jobs that wait"
    return SimulationResult(
        workload=workload,
        nodes=nodes,
        start_ms=start_ms,
        end_ms=np.where(start_ms == NEVER, NEVER, start_ms + workload.run_ms),
        killed=workload.overran & (start_ms != NEVER),
        refused=tuple(sorted(refused.items())),
        label=policy.label,
        options={
            "trace": workload.name,
            "nodes": nodes,
            "discipline": policy.discipline,
            "order": policy.order,
            "backfill": policy.backfill,
            "choice": policy.choice,
            "slack": policy.slack if policy.backfill == "slack" else None,
            "aging_ms": policy.aging_ms if np.isfinite(policy.aging_ms) else None,
            "limits": len(policy.limits),
        },
    )


def week_offset_ms(workload: Workload) -> int:
    """Return the local time of a workload's instant zero, as ms since Monday 00:00; 0 if its date is not known.

    Raises
    ------
    InputError
        If the workload's time zone is not known.

    Notes
    -----
    Daylight saving time that begins or ends later in the workload is not followed: a week has 168 hours.
    """
    if workload.start_unix_s is None:
        return 0
    try:
        zone = ZoneInfo(workload.timezone or "UTC")
    except (KeyError, ValueError, OSError) as error:
        raise InputError(f"{workload.name}: time zone {workload.timezone!r} is not known; an IANA name is") from error
    start = datetime.fromtimestamp(workload.start_unix_s, zone)
    return (((start.weekday() * 24 + start.hour) * 60 + start.minute) * 60 + start.second) * 1000


def _checked_nodes(workload: Workload, nodes: int | None) -> int:
    nodes = workload.nodes if nodes is None else nodes
    if nodes is None:
        raise OptionError("nodes", f"{workload.name} does not say how many its machine had; give a number")
    if not 1 <= nodes <= MAX_WIDTH:
        raise OptionError("nodes", f"is {nodes}; a site has from 1 to {MAX_WIDTH} nodes")
    return int(nodes)


def _limit_masks(workload: Workload, policy: SitePolicy) -> IntArray:
    """Return which limits apply to each job, as bit masks."""
    return policy.limit_masks(width=workload.width, estimate_ms=workload.estimate_ms, user=workload.columns.get("user"))


def _refusals(workload: Workload, nodes: int, policy: SitePolicy) -> dict[int, str]:
    """Return the jobs that can never start on the site, each with the reason."""
    masks = _limit_masks(workload, policy)
    doubtful = np.flatnonzero((workload.width > nodes) | (masks != 0))
    reasons: dict[tuple[int, int], str | None] = {}
    refused = {}
    for row in doubtful:
        kind = int(workload.width[row]), int(masks[row])
        if kind not in reasons:
            reasons[kind] = policy.why_never(nodes, width=kind[0], limits=kind[1])
        reason = reasons[kind]
        if reason is not None:
            refused[int(workload.job_id[row])] = reason
    return refused


class BatchRun:
    """A workload in the compiled loop, played in as many pieces as one likes.

    Parameters
    ----------
    workload : Workload
    rows : numpy.ndarray of int64
        The rows of the jobs to play; none is refused by the site.
    nodes : int
        Nodes of the site.
    policy : SitePolicy
    week_offset_ms : int
        Local time of instant zero, from Monday 00:00.

    Attributes
    ----------
    start_ms : numpy.ndarray of int64, shape (rows,)
        The starts so far; `NEVER` for jobs that have not started.
    """

    def __init__(
        self, workload: Workload, rows: IntArray, nodes: int, policy: SitePolicy, *, week_offset_ms: int = 0
    ) -> None:
        self.start_ms = np.full(len(rows), NEVER, np.int64)
        self._state = empty_state(nodes, slots=len(rows))
        _fill_jobs(self._state, workload, rows, policy)
        self._plan = empty_plan(self._state, policy.profile_totals(nodes)) if policy.makes_plan else None
        self._codes = policy.codes()
        self._limits = policy.limit_arrays(week_offset_ms=week_offset_ms)
        self._run_ms = np.ascontiguousarray(workload.run_ms[rows])
        room = len(self._state.running)
        self._ends, self._ends_row = np.zeros(room, np.int64), np.zeros(room, np.int64)
        self._clock = np.zeros(2, np.int64)

    def play(self, until: int) -> None:
        """Play on until this many jobs have been submitted; if that is all of them, until nothing is left."""
        run_batch(
            self._state,
            self._plan,
            self._codes,
            self._limits,
            self._run_ms,
            self.start_ms,
            self._ends,
            self._ends_row,
            self._clock,
            np.int64(until),
        )


def _fill_jobs(state: SiteState, workload: Workload, rows: IntArray, policy: SitePolicy) -> None:
    """Enter jobs into a site's table, one slot each, in the order of submission."""
    for name in ("submit_ms", "job_id", "width", "estimate_ms"):
        state.jobs[name] = getattr(workload, name)[rows]
    columns = workload.columns
    state.jobs["limits"] = _limit_masks(workload, policy)[rows]
    state.jobs["key"] = order_keys(
        policy.order,
        submit_ms=workload.submit_ms[rows],
        width=workload.width[rows],
        estimate_ms=workload.estimate_ms[rows],
        weight=columns["weight"][rows] if "weight" in columns else 1.0,
        priority=columns["priority"][rows] if "priority" in columns else 0.0,
        aging_ms=policy.aging_ms,
    )


def _run_core(
    workload: Workload,
    rows: IntArray,
    nodes: int,
    policy: SitePolicy,
    offset_ms: int,
    reservations: Sequence[tuple[int, ReservationRequested]],
    *,
    check: bool,
) -> IntArray:
    """Return the starts of these jobs, from a `SiteCore` to which every event is told as it happens."""
    core = SiteCore(nodes, policy, week_offset_ms=offset_ms)
    arrivals = _arrivals(workload, rows, reservations)
    row_of = {int(workload.job_id[row]): place for place, row in enumerate(rows)}
    run_ms = {job_id: int(workload.run_ms[rows[place]]) for job_id, place in row_of.items()}
    start_ms = np.full(len(rows), NEVER, np.int64)
    ends: list[tuple[int, int]] = []
    next_arrival = 0
    while True:
        instants = [arrivals[next_arrival][0]] if next_arrival < len(arrivals) else []
        instants += [ends[0][0]] if ends else []
        wakeup_ms = core.next_wakeup_ms()
        instants += [wakeup_ms] if wakeup_ms is not None else []
        if not instants:
            return start_ms
        now_ms = min(instants)
        events: list[Event] = []
        while ends and ends[0][0] == now_ms:
            events.append(JobFinished(heapq.heappop(ends)[1]))
        while next_arrival < len(arrivals) and arrivals[next_arrival][0] == now_ms:
            events.append(arrivals[next_arrival][1])
            next_arrival += 1
        for job_id in _started(core.handle(now_ms, *events)):
            start_ms[row_of[job_id]] = now_ms
            heapq.heappush(ends, (now_ms + run_ms[job_id], job_id))
        if check:
            core.check_invariants()


def _arrivals(
    workload: Workload, rows: IntArray, reservations: Sequence[tuple[int, ReservationRequested]]
) -> list[tuple[int, Event]]:
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


def _started(commands: Sequence[Command]) -> list[int]:
    return [command.job_id for command in commands if isinstance(command, StartJob)]
