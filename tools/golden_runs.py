"""The runs of the golden schedules, and the text of each run that is hashed.

Only this file of the golden tests names entry points of the project. If an entry point is renamed or merged, its
adapter here changes, and the hashes stay the same. The hashed text has a line for each job in the order of ids, with
its start, its end and its nodes, and no names of classes, fields or modules. So two versions can be compared by eye::

    python tools/golden_runs.py                 # print the names of all runs
    python tools/golden_runs.py grid/adaptive   # print the text of one run
    python tools/golden_runs.py --write         # rewrite tests/golden.json
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import heapq
import itertools
import json
import math
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from typer.testing import CliRunner

from gridweave.cli.main import app
from gridweave.grid.messages import FromLiveSite, SendToSite
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.grid_network import COLUMNS, GridNet
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.batch.stepped import RunningWork, job_messages
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.scenarios.scenario.run import run_scenario
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.scenarios.world.connections import Faults, Network
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.sharing.entry import SharedUse
from gridweave.site.disciplines.sharing.policy import VARIANTS, SharedNodes
from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownModel
from gridweave.site.job import Accepted, ActionKind, JobRequest, Program
from gridweave.site.messages import (
    AcceptReservation,
    ChangeRate,
    EndRun,
    JobAction,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    KillJob,
    Machine,
    RefuseReservation,
    ReservationRequested,
    RunEnded,
    RunStarted,
    SendToGrid,
    StartJob,
    StartRun,
    UserSubmitted,
)
from gridweave.site.policy import Limit, SitePolicy, Window
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.scheduler.live import LiveSite
from gridweave.site.users.owner import OwnerPolicy

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support import live_world
from support.builders import (
    DAY,
    HOUR,
    as_in_thesis,
    drawn_model,
    drawn_timetable,
    random_grid_jobs,
    random_jobs,
    to_workload,
    with_columns,
)
from support.stepping import VirtualLoop

GOLDEN = Path(__file__).parents[1] / "tests" / "golden.json"
MINUTE = 60_000
SITE_NODES = 32
GRID_NODES = (16, 12, 8, 8, 4)

Runs = dict[str, Callable[[], str]]


# -- hashed texts -----------------------------------------------------------------------------------------------------


def _lines(rows: Iterable[Iterable[object]]) -> str:
    return "".join(" ".join(map(str, row)) + "\n" for row in rows)


def _schedule(job_id: Any, start_ms: Any, end_ms: Any, *more: Any) -> str:
    """Return a line per job in the order of ids: start, end and further columns, or ``never``."""
    columns = [np.asarray(column).tolist() for column in (job_id, start_ms, end_ms)]
    more_columns = [column.tolist() if isinstance(column, np.ndarray) else column for column in more]
    rows = sorted(zip(*columns, *more_columns, strict=True))
    return _lines((row[0], "never") if row[1] == NEVER else row for row in rows)


def _grid_schedule(result: SimulationResult) -> str:
    """Return the schedule of a grid with each job's nodes per site and, with links, its slowdowns in millionths."""
    more: list[Any] = [_nodes_by_site(result.fragments_of(row)) for row in range(len(result.workload))]
    columns: list[Any] = [more]
    if "factor" in result.columns:
        factor, slowdown, transfer_ms = (result.columns[name] for name in COLUMNS)
        columns += [np.rint(parts * 1e6).astype(np.int64) for parts in (factor, slowdown)]
        columns.append(transfer_ms)
    return _schedule(result.workload.job_id, result.start_ms, result.end_ms, *columns)


def _nodes_by_site(fragments: Iterable[tuple[int, int]]) -> str:
    return ",".join(f"{site}:{width}" for site, width in sorted(fragments))


# -- workloads --------------------------------------------------------------------------------------------------------


def _site_jobs(seed: int, *, count: int = 400, load: float = 1.0, tick: int = 1000) -> Workload:
    return to_workload(random_jobs(np.random.default_rng(seed), count, SITE_NODES, load=load, tick=tick))


def _requests(seed: int, count: int, until_ms: int) -> list[tuple[int, ReservationRequested]]:
    """Draw advance reservations, each with the instant at which it is requested."""
    rng = np.random.default_rng(seed)
    requests = []
    for number, when_ms in enumerate(sorted(rng.integers(0, until_ms, count).tolist())):
        start_ms = when_ms + int(rng.integers(0, 120)) * 1000
        length_ms, width = int(rng.integers(1, 40)) * 1000, int(rng.integers(1, SITE_NODES // 2))
        requests.append((when_ms, ReservationRequested(number, start_ms, length_ms, width)))
    return requests


def _sharing_jobs(seed: int, nodes: int, count: int = 300) -> Workload:
    """Draw jobs with resources, a tenth of them short, at a load of 1.4 without sharing."""
    rng = np.random.default_rng(seed)
    jobs = random_jobs(rng, count, nodes, load=1.4, tick=4 * MINUTE)
    short = rng.random(count) < 0.1
    jobs = [
        dataclasses.replace(job, estimate=MINUTE, run=45_000) if is_short else job
        for job, is_short in zip(jobs, short, strict=True)
    ]
    workload = to_workload(jobs)
    cpu, network = (rng.dirichlet([1, 1, 1], count) * 64).astype(np.int64)[:, :2].T
    columns = {
        "cpu_fraction": cpu / 64,
        "network_fraction": network / 64,
        "disk_fraction": (64 - cpu - network) / 64,
        "memory_fraction": np.round(rng.uniform(0.05, 1, count), 2),
        "cpu_kind": rng.integers(0, 2, count),
    }
    return workload.replace(columns=dict(workload.columns) | columns)


def _grid_jobs(seed: int, mode: str, *, count: int = 400) -> tuple[Workload, IntArray, npt.NDArray[np.float64]]:
    """Draw jobs with their home sites and their sensitivities to a split.

    If `mode` splits jobs, the widest need three quarters of the grid; otherwise three jobs are too wide for any site.
    """
    splits = mode in ("multi-site", "adaptive")
    widest = 36 if splits else GRID_NODES[0]
    case = random_grid_jobs(np.random.default_rng(seed), count, GRID_NODES, load=1.1, tick=1000, widest=widest)
    too_wide = () if splits else (5, 50, 51)
    jobs = [
        dataclasses.replace(job, width=GRID_NODES[0] + 1) if place in too_wide else job
        for place, job in enumerate(case.jobs)
    ]
    workload = to_workload(jobs)
    homes = np.array([case.home[job_id] for job_id in workload.job_id.tolist()])
    homes = np.where(workload.width > np.array(GRID_NODES)[homes], 0, homes)
    return workload, homes, np.array([case.sensitivity[job_id] for job_id in workload.job_id.tolist()])


def _net_jobs(seed: int, change: bool, options: dict[str, Any], count: int = 300) -> tuple[Workload, GridNet]:
    """Draw jobs that communicate, and links between the sites; with `change`, the links change over time."""
    rng = np.random.default_rng(seed)
    jobs = random_jobs(rng, count, sum(GRID_NODES) // 2, load=1.6, tick=1000)
    model = drawn_model(rng, len(GRID_NODES))
    timetable = drawn_timetable(rng, model, max(job.submit for job in jobs)) if change else None
    return with_columns(rng, to_workload(jobs), len(GRID_NODES)), as_in_thesis(model, timetable, **options)


# -- adapters: the compiled loops -------------------------------------------------------------------------------------


def _site(seed: int, *, reservations: int = 0, tick: int = 1000, **options: Any) -> str:
    workload = _site_jobs(seed, tick=tick)
    requests = _requests(seed, reservations, int(workload.submit_ms[-1])) if reservations else []
    result = simulate(workload, SITE_NODES, reservations=requests, **options)
    answers = [(each.reservation_id, int(each.accepted), each.earliest_ms) for each in result.reservations]
    return _schedule(workload.job_id, result.start_ms, result.end_ms) + _lines(answers)


def _shared(seed: int, variant: str, *, formula: str = "whole", kinds: Sequence[NodeKind] = (), **changes: Any) -> str:
    policy = msgspec.structs.replace(VARIANTS[variant], **changes)
    nodes = list(kinds) or [NodeKind(count=16, cpu=policy.cpu)]
    workload = _sharing_jobs(seed, sum(kind.count for kind in nodes))
    cores = np.random.default_rng(seed).integers(1, max(kind.cores for kind in nodes) + 1, len(workload))
    result = simulate(workload, nodes, policy, model=SlowdownModel(formula), cores=cores)
    assert isinstance(result.own, SharedUse)
    text = _schedule(workload.job_id, result.start_ms, result.end_ms, result.own.beside)
    return text + f"busy {result.own.busy_node_ms}\n"


def _grid(seed: int, *, sensitive: bool = False, **options: Any) -> str:
    policy = GridPolicy(**options)
    workload, homes, sensitivity = _grid_jobs(seed, policy.mode)
    result = simulate(
        workload,
        GRID_NODES,
        policy,
        home=homes,
        rng=np.random.default_rng(seed),
        sensitivity=sensitivity if sensitive else None,
    )
    return _grid_schedule(result)


def _grid_net(seed: int, policy: dict[str, Any], change: bool = False, **options: Any) -> str:
    workload, net = _net_jobs(seed, change, options)
    rng = np.random.default_rng(seed)
    return _grid_schedule(simulate(workload, GRID_NODES, GridPolicy(**policy), rng=rng, net=net))


# -- adapters: one core, event by event -------------------------------------------------------------------------------


def _core(seed: int, policy: Any, *, reservations: int = 0) -> str:
    """Send jobs, random cancellations and reservation requests to a site's core; return its commands."""
    is_shared = isinstance(policy, SharedNodes)
    workload = _sharing_jobs(seed, SITE_NODES) if is_shared else _site_jobs(seed)
    rng = np.random.default_rng([seed, 1])
    last_ms = int(workload.submit_ms[-1])
    told: list[tuple[int, Any]] = [
        (when_ms, JobSubmitted(job))
        for when_ms, job in zip(workload.submit_ms.tolist(), job_messages(workload), strict=True)
    ]
    for row in np.flatnonzero(rng.random(len(workload)) < 0.2).tolist():
        after_ms = int(rng.exponential(last_ms / 40))
        told.append((int(workload.submit_ms[row]) + after_ms, JobCancelled(int(workload.job_id[row]))))
    told += _requests(seed, reservations, last_ms)
    told.sort(key=lambda event: event[0])
    length_ms = dict(zip(workload.job_id.tolist(), workload.run_ms.tolist(), strict=True))
    core, running, log = SiteCore(SITE_NODES, policy), RunningWork(), list[tuple[object, ...]]()
    arrivals, now_ms = deque(told), 0
    while True:
        instants = [running.next_end_ms(), core.next_wakeup_ms(), arrivals[0][0] if arrivals else None]
        if all(instant is None for instant in instants):
            return _lines(sorted(log))
        now_ms = min(instant for instant in instants if instant is not None)
        ended = running.ended(now_ms)
        log += [(now_ms, "end", job_id) for job_id in ended]
        events: list[Any] = [JobFinished(job_id) for job_id in ended]
        while arrivals and arrivals[0][0] == now_ms:
            events.append(arrivals.popleft()[1])
        commands = deque(core.handle(now_ms, *events))
        while commands:
            command = commands.popleft()
            if isinstance(command, StartJob):
                running.begin(now_ms, command.job_id, length_ms[command.job_id])
                log.append((now_ms, "start", command.job_id, command.nodes, command.threads))
            elif isinstance(command, ChangeRate):
                running.change_rate(now_ms, command.job_id, command.rate)
                log.append((now_ms, "rate", command.job_id, command.rate))
            elif isinstance(command, KillJob):
                running.leave(command.job_id)
                log.append((now_ms, "kill", command.job_id))
                commands += core.handle(now_ms, JobFinished(command.job_id))
            elif isinstance(command, AcceptReservation):
                log.append((now_ms, "accept", command.reservation_id))
            elif isinstance(command, RefuseReservation):
                log.append((now_ms, "refuse", command.reservation_id, command.earliest_start_ms))


# -- adapters: the simulated world ------------------------------------------------------------------------------------


def _world(
    seed: int,
    *,
    jobs: int = 250,
    owners: Sequence[OwnerPolicy] | None = None,
    sites: Sequence[Any] | None = None,
    to_grid: float = 1.0,
    network: Network | None = None,
    faults: Faults | None = None,
    **policy: Any,
) -> str:
    grid_policy = GridPolicy(**policy)
    workload, homes, sensitivity = _grid_jobs(seed, grid_policy.mode, count=jobs)
    rng = np.random.default_rng([seed, 2])
    result = simulate_world(
        workload,
        GRID_NODES,
        grid_policy,
        site_policies=sites,
        owners=owners,
        home=homes,
        to_grid=(rng.random(jobs) < to_grid) | (workload.width > GRID_NODES[0]),
        network=network,
        faults=faults,
        rng=rng,
        sensitivity=sensitivity,
    )
    return _grid_schedule(result)


def _shared_world(seed: int, control: str, network: Network | None = None, faults: Faults | None = None) -> str:
    workload = _sharing_jobs(seed, 16, count=150)
    rng = np.random.default_rng([seed, 3])
    result = simulate_world(
        workload,
        [16, 8, 16],
        GridPolicy(mode="adaptive", control=control, overhead=0.2),
        site_policies=[SharedNodes(), SharedNodes(sharing=VARIANTS["L-R"]), SitePolicy(backfill="conservative")],
        to_grid=rng.random(len(workload)) < 0.7,
        home=np.where(workload.width > 8, 0, np.arange(len(workload)) % 3),
        network=network,
        faults=faults,
        rng=rng,
    )
    return _grid_schedule(result)


def _net_world(
    seed: int,
    policy: dict[str, Any],
    *,
    change: bool = False,
    messages_cross_links: bool = False,
    network: Network | None = None,
    **options: Any,
) -> str:
    workload, net = _net_jobs(seed, change, options, count=200)
    result = simulate_world(
        workload,
        GRID_NODES,
        GridPolicy(**policy),
        network=network,
        rng=np.random.default_rng([seed, 4]),
        net=net,
        grid_node=1 if messages_cross_links else None,
    )
    return _grid_schedule(result)


# -- adapters: the cores of the live grid -----------------------------------------------------------------------------


class LiveCores:
    """The cores of a live grid and its sites, with machines and messages that take no time.

    Parameters
    ----------
    seed : int
        Seed of the jobs and of their users' later actions.
    control : str
        The grid's control, as in `GridPolicy`.
    """

    _SITES = ((4, 4, 8), (6, 2), (4,))

    def __init__(self, seed: int, control: str) -> None:
        self._rng = np.random.default_rng([seed, 5])
        backfills = ("easy", "conservative", "none")
        self._sites = [
            LiveSite(
                SiteSettings(
                    name=f"s{number}",
                    number=number,
                    machines=tuple(Machine(name=f"m{place}", nodes=count) for place, count in enumerate(shape)),
                    policy=SitePolicy(backfill=backfills[number]),
                    owner=OwnerPolicy(grid_share=(1.0, 0.75, 1.0)[number], own_users_first=number == 1),
                )
            )
            for number, shape in enumerate(self._SITES)
        ]
        for_grid = tuple(
            (site.settings.name, site.settings.owner.nodes_for_grid(site.settings.nodes)) for site in self._sites
        )
        mode = "sharing" if control == "none" else "adaptive"
        policy = GridPolicy(mode=mode, control=control, overhead=0.25, selection="biggest-free")
        self._grid = LiveGrid(GridSettings(sites=for_grid, policy=policy))
        self._cores: list[Any] = [*self._sites, self._grid]
        self._numbers = itertools.count()
        self._calendar: list[tuple[int, int, Callable[[int], None]]] = []
        self._told: deque[tuple[int, Any]] = deque()
        self._job_ids: dict[str, int] = {}
        self._begun: dict[tuple[int, str, int, int], int] = {}
        self._log: list[tuple[object, ...]] = []

    def play(self, jobs: int) -> str:
        """Run a number of random jobs; return all starts and ends on machines, and the final state of each job."""
        when_ms = 0
        for number in range(jobs):
            when_ms += int(self._rng.exponential(1500))
            self._be_user(number, when_ms)
        now_ms = 0
        while True:
            instants = [core.next_wakeup_ms() for core in self._cores]
            instants += [each[0] for each in self._calendar[:1]]
            if all(instant is None for instant in instants):
                break
            now_ms = max(now_ms, min(instant for instant in instants if instant is not None))
            self._told.extend((place, None) for place, due in enumerate(instants[: len(self._cores)]) if due == now_ms)
            while self._calendar and self._calendar[0][0] == now_ms:
                heapq.heappop(self._calendar)[2](now_ms)
            while self._told:
                place, event = self._told.popleft()
                for command in self._cores[place].handle(now_ms, *([] if event is None else [event])):
                    self._carry_out(now_ms, place, command)
        records = [record for core in self._cores for record in core.registry.records.values()]
        ends = sorted((each.job_id, each.state, each.outcome, each.attempt, each.places) for each in records)
        return _lines(sorted(self._log)) + _lines(ends)

    def _at(self, when_ms: int, do: Callable[[int], None]) -> None:
        heapq.heappush(self._calendar, (when_ms, next(self._numbers), do))

    def _be_user(self, number: int, when_ms: int) -> None:
        """Schedule the submission of a random job to the grid or to a site, and its user's later actions."""
        rng, grid = self._rng, len(self._sites)
        is_own = bool(rng.random() < 0.25)
        place = int(rng.integers(grid)) if is_own else grid
        widest = sum(self._SITES[place]) if is_own else 20
        limit_ms = int(rng.integers(1, 30)) * 1000
        run_ms = int(limit_ms * rng.choice((0.3, 0.7, 1.0, 1.5))) + 1
        width = int(np.ceil(widest ** rng.random()))
        is_held = bool(rng.random() < 0.1)
        program = Program(argv=("work",), environment={"RUN_MS": str(run_ms)})
        request = JobRequest(program=program, nodes=width, limit_ms=limit_ms, user="anna", hold=is_held)
        key = f"key {number}"
        self._at(when_ms, lambda _: self._told.append((place, UserSubmitted(key, request))))

        def want(after_ms: int, kind: ActionKind) -> None:
            self._at(when_ms + after_ms, lambda _: self._apply_action(place, key, kind))

        if is_held or rng.random() < 0.2:
            want(int(rng.integers(1, 3000)), "hold")
            want(int(rng.integers(3000, 20_000)), "release")
        if rng.random() < 0.15:
            want(int(rng.integers(1, 40_000)), "cancel")

    def _apply_action(self, place: int, key: str, kind: ActionKind) -> None:
        if key in self._job_ids:
            self._told.append((place, JobAction(kind, (self._job_ids[key],))))

    def _carry_out(self, now_ms: int, place: int, command: Any) -> None:
        if isinstance(command, SendToSite):
            self._told.append((command.site, command.message))
        elif isinstance(command, SendToGrid):
            self._told.append((len(self._sites), FromLiveSite(place, command.message)))
        elif isinstance(command, Accepted):
            self._job_ids[command.key] = command.job_id
        elif isinstance(command, StartRun):
            self._start(now_ms, place, command)
        elif isinstance(command, EndRun):
            self._end(now_ms, place, command.machine, command.job_id, command.attempt, "cancelled")

    def _start(self, now_ms: int, place: int, command: StartRun) -> None:
        launch = command.launch
        name = place, command.machine, launch.job_id, launch.attempt
        self._begun[name] = now_ms
        self._log.append((now_ms, "start", *name, command.slots, [rank.rank for rank in launch.ranks], launch.size))
        self._told.append((place, RunStarted(command.machine, launch.job_id, launch.attempt)))
        run_ms, limit_ms = int(launch.environment["RUN_MS"]), launch.limit_ms or 0
        outcome = "finished" if run_ms <= limit_ms else "limit"
        self._at(now_ms + min(run_ms, limit_ms), lambda when_ms: self._end(when_ms, *name, outcome))

    def _end(self, now_ms: int, place: int, agent: str, job_id: int, attempt: int, outcome: Any) -> None:
        if self._begun.pop((place, agent, job_id, attempt), None) is not None:
            self._log.append((now_ms, outcome, place, agent, job_id, attempt))
            self._told.append((place, RunEnded(agent, job_id, attempt, outcome)))


def _live_cores(seed: int, control: str) -> str:
    return LiveCores(seed, control).play(250)


def _live_world(seed: int) -> str:
    """Run a live grid on a bad network.

    Only seeds with large packets are valid: with small ones, the size of messages would change which are lost.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    VirtualLoop(rng).close()
    rng.choice([15, 60, 10_000])
    assert rng.choice([300, 1 << 20]) > 300, f"seed {seed} is of small packets"
    world = live_world.play(seed)
    drivers = [world.grid.driver.grid, *(site.driver.site for site in world.sites)]
    records = [record for core in drivers for record in core.registry.records.values()]
    return _lines(
        sorted((each.job_id, each.state, each.outcome, each.attempt, each.start_ms, each.end_ms) for each in records)
    )


# -- adapters: scenarios that ship, and what commands print -----------------------------------------------------------


def _catalogue(name: str, jobs: int, **changes: Any) -> str:
    run = run_scenario(
        name, overrides={"workload.jobs": jobs} | {key.replace("__", "."): changes[key] for key in changes}
    )
    return _grid_schedule(run)


def _printed(*arguments: str) -> str:
    """Return the output of a command in a folder with a small trace, ``jobs.swf``, and a trace with resources."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        _write_trace(Path("jobs.swf"))
        runner = CliRunner(env={"COLUMNS": "120", "LINES": "50", "NO_COLOR": "1", "TERM": "dumb"})
        result = runner.invoke(app, arguments)
    assert result.exit_code == 0, f"{' '.join(arguments)}: {result.output}"
    return result.output


def _write_trace(path: Path) -> None:
    workload = _site_jobs(99, count=120, tick=60_000)
    lines = [f"; MaxNodes: {SITE_NODES}", "; UnixStartTime: 843480031", "; TimeZoneString: Europe/Stockholm"]
    columns = (workload.submit_ms // 1000, workload.run_ms // 1000, workload.width, workload.estimate_ms // 1000)
    for number, row in enumerate(zip(*(column.tolist() for column in columns), strict=True), 1):
        submit_s, run_s, width, estimate_s = row
        lines.append(f"{number} {submit_s} -1 {run_s} {width} -1 -1 {width} {estimate_s} -1 1 5 -1 -1 -1 -1 -1 -1")
    path.write_text("\n".join(lines) + "\n")


# -- the runs ---------------------------------------------------------------------------------------------------------

_LIMITS = (
    Limit(wider_than=20, window=Window(days=(0, 1, 2, 3, 4), from_ms=8 * HOUR, to_ms=18 * HOUR)),
    Limit(longer_than_ms=20 * 30 * MINUTE, window=Window(days=(5, 6), from_ms=0, to_ms=DAY)),
    Limit(wider_than=8, max_nodes=28),
    Limit(user=1, max_jobs=3),
)
_MIXED = (NodeKind(count=10, cpu="standard", memory=0.6), NodeKind(count=6, cores=2, threads=3))
_CORES = (NodeKind(count=12, cores=3, threads=2),)
_TABLE = ((8, 1), (20, 2), (30, 3))
_BAD = Network(latency_ms=50, jitter_ms=100, loss=0.1, duplicate=0.1)
_TROUBLE = Faults(crash_every_ms=4e5, crash_lasts_ms=2e4, cut_every_ms=2e5, cut_lasts_ms=3e4)
_OWNERS = tuple(
    OwnerPolicy(grid_share=share, own_users_first=first)
    for share, first in ((1.0, True), (0.75, False), (0.5, True), (1.0, False), (1.0, True))
)
_BACKFILLS = tuple(SitePolicy(backfill=name) for name in ("easy", "conservative", "none", "easy", "slack"))
_MULTI, _ADAPTIVE = {"mode": "multi-site"}, {"mode": "adaptive"}


def _with(name: str, run: Callable[..., str], cases: dict[str, dict[str, Any]], seed: int) -> Runs:
    """Return runs with a seed each, counted from the first."""
    return {
        f"{name}/{case}": functools.partial(run, seed + place, **options)
        for place, (case, options) in enumerate(cases.items())
    }


_SITE = {
    "queue-fcfs-none": {"backfill": "none"},
    "queue-fcfs-easy": {},
    "queue-fcfs-conservative": {"backfill": "conservative"},
    "queue-fcfs-slack": {"backfill": "slack", "slack": 0.8},
    "queue-sjf-easy-best-fit": {"order": "sjf", "choice": "best-fit"},
    "queue-ljf-conservative": {"order": "ljf", "backfill": "conservative"},
    "queue-saf-easy": {"order": "saf"},
    "queue-laf-none": {"order": "laf", "backfill": "none"},
    "queue-wfit-easy": {"order": "wfit"},
    "queue-smith-conservative": {"order": "smith", "backfill": "conservative"},
    "queue-priority-aging": {"order": "priority", "aging_ms": 60_000.0},
    "planning-fcfs": {"discipline": "planning"},
    "planning-sjf": {"discipline": "planning", "order": "sjf"},
    "planning-ljf-none": {"discipline": "planning", "order": "ljf", "backfill": "none"},
    "planning-limits": {"discipline": "planning", "limits": _LIMITS, "tick": 30 * MINUTE},
    "planning-reservations": {"discipline": "planning", "order": "sjf", "reservations": 40},
    "planning-limits-reservations": {"discipline": "planning", "limits": _LIMITS[2:], "reservations": 30},
}
_SHARING = {
    "alone-easy": {"variant": "PSS"},
    "always": {"variant": "AC"},
    "adjacent": {"variant": "AM", "formula": "printed"},
    "u1": {"variant": "L-U1"},
    "u2-conservative": {"variant": "L-U2", "backfill": "conservative"},
    "response-mixed-nodes": {"variant": "L-R", "kinds": _MIXED, "backfill": "none"},
    "first-cores-measured": {"variant": "L-FM", "kinds": _CORES, "formula": "measured"},
    "standard-aging": {"variant": "L-N", "aging_ms": 30.0 * MINUTE, "max_slowdown": 2.5},
}
_GRID = {
    "local": {"mode": "local"},
    "sharing-best-fit": {"mode": "sharing"},
    "sharing-equal-util-none": {"mode": "sharing", "selection": "equal-util", "backfill": "none"},
    "sharing-conservative": {"mode": "sharing", "backfill": "conservative", "order": "sjf"},
    "multi-site-biggest-free": _MULTI | {"selection": "biggest-free", "overhead": 0.25},
    "multi-site-random": _MULTI | {"selection": "random", "overhead": (0.1, 0.5), "sensitive": True},
    "multi-site-limited": _MULTI | {"overhead": 0.3, "max_fragments": _TABLE, "lower_bound": 6},
    "multi-site-conservative": _MULTI | {"backfill": "conservative", "overhead": 0.2, "order": "saf"},
    "adaptive": _ADAPTIVE | {"overhead": 0.25},
    "adaptive-earliest-end": _ADAPTIVE | {"selection": "earliest-end", "overhead": (0.1, 0.4), "order": "sjf"},
    "adaptive-conservative": _ADAPTIVE | {"backfill": "conservative", "overhead": 0.3, "sensitive": True},
}
_NET = {
    "alone": {"policy": _MULTI},
    "static": {"policy": _ADAPTIVE, "contention": "static"},
    "dynamic": {"policy": _MULTI, "contention": "dynamic"},
    "earliest-end": {"policy": _ADAPTIVE, "contention": "dynamic", "split": "earliest-end"},
    "earliest-end-searched": {"policy": _MULTI, "split": "earliest-end", "exact_up_to": 4},
    "changes": {"policy": _MULTI | {"order": "sjf", "backfill": "none"}, "change": True},
    "dynamic-changes": {"policy": _ADAPTIVE, "change": True, "contention": "dynamic"},
    "conservative-changes": {"policy": _MULTI | {"backfill": "conservative"}, "change": True, "contention": "dynamic"},
    "blocking": {"policy": _ADAPTIVE, "data": "blocking"},
    "blocking-static": {"policy": {"mode": "sharing"}, "data": "blocking", "contention": "static"},
    "prefetch-dynamic-changes": {"policy": _MULTI, "change": True, "data": "prefetch", "contention": "dynamic"},
    "bounded": {"policy": _ADAPTIVE, "split": "earliest-end", "max_split_factor": 1.3},
}
_CORE = {
    "queue": {"policy": SitePolicy()},
    "queue-slack": {"policy": SitePolicy(backfill="slack", order="priority", aging_ms=math.inf)},
    "queue-conservative": {"policy": SitePolicy(backfill="conservative", order="smith")},
    "planning": {"policy": SitePolicy(discipline="planning", order="sjf"), "reservations": 40},
    "sharing": {"policy": SharedNodes()},
    "sharing-conservative": {
        "policy": SharedNodes(sharing=msgspec.structs.replace(VARIANTS["L-R"], backfill="conservative"))
    },
}
_WORLD = {
    "full": _ADAPTIVE | {"overhead": 0.25},
    "full-own-users": _MULTI | {"to_grid": 0.7, "owners": _OWNERS, "sites": _BACKFILLS},
    "full-delay": _ADAPTIVE | {"overhead": 0.1, "network": Network(latency_ms=250), "to_grid": 0.8},
    "full-trouble": _MULTI | {"overhead": 0.2, "network": _BAD, "faults": _TROUBLE, "to_grid": 0.9},
    "limited": _ADAPTIVE | {"control": "limited", "overhead": 0.2, "sites": _BACKFILLS},
    "limited-trouble": _MULTI | {"control": "limited", "network": _BAD, "faults": _TROUBLE, "owners": _OWNERS},
    "none": {"mode": "sharing", "control": "none", "selection": "earliest-end"},
    "none-own-users-delay": {
        "mode": "sharing", "control": "none", "to_grid": 0.6, "owners": _OWNERS, "network": Network(latency_ms=40),
    },
    "none-trouble": {"mode": "sharing", "control": "none", "network": _BAD, "faults": _TROUBLE},
}  # fmt: skip
_SHARED_WORLD = {
    "limited": {"control": "limited"},
    "full-trouble": {
        "control": "full", "network": _BAD, "faults": Faults(crash_every_ms=4e7, cut_every_ms=2e7),
    },
    "none-delay": {"control": "none", "network": Network(latency_ms=5000)},
}  # fmt: skip
_LIMITED = {"mode": "adaptive", "control": "limited"}
_NET_WORLD = {
    "full-dynamic-changes": {"policy": _ADAPTIVE, "change": True, "contention": "dynamic"},
    "full-prefetch": {"policy": _MULTI, "data": "prefetch", "contention": "dynamic"},
    "limited-messages-on-links": {"policy": _LIMITED, "messages_cross_links": True, "contention": "static"},
    "limited-changes": {"policy": _LIMITED, "change": True, "messages_cross_links": True, "contention": "dynamic"},
    "none-lossy": {"policy": {"mode": "sharing", "control": "none"}, "messages_cross_links": True, "network": _BAD},
}
_CATALOGUE = {
    "two-sites": {"jobs": 300},
    "three-sites": {"jobs": 300},
    "control-levels": {"jobs": 600},
    "flaky-network": {"jobs": 600},
    "link-cut": {"jobs": 600},
    "data-grid": {"jobs": 600},
    "hyperthreaded-site": {"jobs": 600},
    "national-grid": {"jobs": 300, "grid__mode": "local"},
}

SCHEDULES: Runs = {
    **_with("site", _site, _SITE, 100),
    **_with("sharing", _shared, _SHARING, 200),
    **_with("grid", _grid, _GRID, 300),
    **_with("net", _grid_net, _NET, 400),
    **_with("core", _core, _CORE, 500),
    **_with("world", _world, _WORLD, 600),
    **_with("world-sharing", _shared_world, _SHARED_WORLD, 700),
    **_with("world-net", _net_world, _NET_WORLD, 800),
    **_with("live-cores", _live_cores, {name: {"control": name} for name in ("full", "limited", "none")}, 900),
    **{f"live-world/{seed}": functools.partial(_live_world, seed) for seed in (4, 27, 45, 51)},
    **{f"catalogue/{name}": functools.partial(_catalogue, name, **changes) for name, changes in _CATALOGUE.items()},
}
"""Maps the name of a run to the function that returns its hashed text."""

PRINTED: Runs = {
    " ".join(arguments): functools.partial(_printed, *arguments)
    for arguments in (
        ("simulate", "jobs.swf"),
        ("simulate", "jobs.swf", "--order", "sjf,ljf", "--backfill", "easy,conservative"),
        ("simulate", "jobs.swf", "--discipline", "planning", "--json"),
        ("simulate", "jobs.swf", "--discipline", "lomarc", "--resources", "M1", "--variants", "PSS,AC,L-U1"),
        ("run", "three-sites", "--set", "workload.jobs=40"),
        ("run", "two-sites", "--set", "workload.jobs=200", "--json"),
    )
}
"""Maps a command to the function that returns its output; outputs may change on purpose."""

SECTIONS = {"schedules": SCHEDULES, "printed": PRINTED}


def digest(text: str) -> str:
    """Return the hash of a run's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_golden() -> dict[str, dict[str, str]]:
    """Return the expected hashes by section and name."""
    golden: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return golden


def main() -> None:
    """Rewrite all hashes, print the texts of some runs, or print the names of all runs."""
    runs = SCHEDULES | PRINTED
    names = sys.argv[1:]
    if names == ["--write"]:
        hashes = {section: {name: digest(run()) for name, run in found.items()} for section, found in SECTIONS.items()}
        GOLDEN.write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
    elif names:
        for name in names:
            print(runs[name](), end="")
    else:
        print("\n".join(runs))


if __name__ == "__main__":
    main()
