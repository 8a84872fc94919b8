"""What a live run plays of a scenario: the programs of its jobs, at which speed, and on which grid."""

from __future__ import annotations

import ast
import functools
import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gridweave.errors import OptionError, ScenarioError
from gridweave.grid.api import Scheduling, SiteInfo
from gridweave.grid.control.limited import LEASE_MS
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.cluster import GridPlan, SitePlan
from gridweave.scenarios.batch.stepped import job_messages
from gridweave.scenarios.live import worker
from gridweave.scenarios.scenario.build import Built
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Network
from gridweave.site.contract import ALONE_MS, RENDEZVOUS_MS
from gridweave.site.disciplines.dictionary import asks_week, entry_of
from gridweave.site.disciplines.protocol import Policy
from gridweave.site.job import ArrayPlace, JobRecord, JobRequest, Program, Traffic
from gridweave.site.owner import policy_label
from gridweave.site.service.clock import HISTORY_DAYS, Clock

REAL_TIME = Clock()

MARGIN_MS, RETRY_MS = 250, 1_000
"""How long the actors may take to agree on a start, and until one that is silent is asked again."""

SPEEDS = 0.001, 1_000_000.0
"""The lowest and the highest."""

_OVERSLEEP_MS = 60_000

START_REAL_MS = 100
"""What it takes a job, roughly, to start its processes when it has its nodes, and to have their end heard."""

SHARE_OF_STARTS = 0.01
"""The chosen speed leaves jobs so long that this is no more than such a part of their work."""

LIMIT_SLACK_REAL_MS = 1_000
"""A limit that leaves less than this beyond the run time may end its job, if the machine is busy."""

_STEPS = 5, 2, 1


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to be submitted ``submit_ms`` of real time after time 0 of the scenario; to the grid if it has no site."""

    row: int
    submit_ms: int
    site: str | None
    request: JobRequest


def check_speed(speed: float) -> None:
    """Refuse a speed, in ms of the scenario that pass in one, at which none can be played."""
    if not SPEEDS[0] <= speed <= SPEEDS[1]:
        raise OptionError("speed", f"is {speed:g}; a number from {SPEEDS[0]:g} to {SPEEDS[1]:,.0f}, 1 for real time")


def first_jobs(built: Built, jobs: int | None) -> Built:
    """Return a scenario with its first jobs alone; with all, if their number is None."""
    if jobs is None:
        return built
    if jobs < 1:
        raise OptionError("jobs", f"is {jobs}; at least 1 is needed")
    rows = np.arange(min(jobs, len(built.workload)))
    return replace(
        built, workload=built.workload.take(rows), home=built.home[rows].copy(), to_grid=built.to_grid[rows].copy()
    )


def check_playable(built: Built, on: str = "ray") -> list[str]:
    """Refuse what a live run cannot play; return remarks on what it plays otherwise than the simulation."""
    problems = []
    if built.net is not None:
        problems.append("net: jobs that sleep send nothing over links; leave [net] out and give grid.overhead")
    for name, policy in zip(built.site_names, built.site_policies, strict=True):
        problems += [f"sites.{name}.discipline: {why}" for why in _why_simulated_only(policy)]
    if "cancel_ms" in built.workload.columns:
        problems.append("workload.cancelled: users cancel jobs in the simulation only; leave it out")
    network = built.network
    if network.loss or network.duplicate:
        problems.append("network: messages are lost and doubled in the simulation only; leave loss and duplicate out")
    if built.faults.any:
        problems.append("faults: sites and connections fail in the simulation only; leave [faults] out")
    if problems:
        name = built.scenario.header.name or "scenario"
        raise ScenarioError([f"{name}: --on {on}: {problem}" for problem in problems])
    return _remarks(built)


def _why_simulated_only(policy: Policy) -> Iterator[str]:
    """Yield why sleeping jobs cannot show what a site would do with real ones."""
    if entry_of(policy).shares_nodes:
        yield f"jobs that sleep do not slow each other; {policy.discipline} is simulated only"
    if entry_of(policy).has_forms:
        yield f"jobs that sleep are no faster on fast machines; {policy.discipline} is simulated only"
    if asks_week(policy):
        yield "its windows follow the time of day, and a live run is faster; a site with windows is simulated only"


def _remarks(built: Built) -> list[str]:
    """Say what a live run plays otherwise than the simulation."""
    remarks = []
    if built.network != Network():
        remarks.append("live messages take the time they take: [network] counts only in the simulation")
    if built.policy.mode != "local" and built.policy.selection == "random":
        remarks.append("selection random: the live grid draws other numbers than the simulation")
    return remarks


def grid_plan(built: Built, *, folder: str, namespace: str, labelled: bool, clock: Clock = REAL_TIME) -> GridPlan:
    """Return the grid of a scenario, whose actors go by a clock: one virtual machine for each site."""
    from gridweave.grid.service.local import first_port_of

    sites = tuple(
        SitePlan(name=name, nodes=nodes, policy=policy, owner=owner)
        for name, nodes, policy, owner in zip(
            built.site_names, built.nodes.tolist(), built.site_policies, built.owners, strict=True
        )
    )
    return GridPlan(
        folder=folder,
        sites=sites,
        # Under mode local the grid has nothing to do, and needs a policy all the same.
        policy=built.policy if built.policy.mode != "local" else GridPolicy(mode="sharing"),
        namespace=namespace,
        labelled=labelled,
        seed=built.scenario.header.seed,
        # What messages and processes take does not shrink when the clock is fast.
        margin_ms=clock.shown_ms(MARGIN_MS),
        retry_ms=clock.shown_ms(RETRY_MS),
        lease_ms=clock.shown_ms(LEASE_MS),
        rendezvous_ms=clock.shown_ms(RENDEZVOUS_MS),
        alone_ms=clock.shown_ms(ALONE_MS),
        history_days=math.ceil(HISTORY_DAYS * max(1.0, clock.speed)),
        first_port=first_port_of(namespace),  # a grid that runs here keeps the ports of its own ranks
        clock=clock,
    )


def compressed(built: Built, speed: float, name: str, clock: Clock = REAL_TIME) -> list[PlannedJob]:
    """Return the jobs of a scenario in the order of submission, as an array of this name, for a grid with a clock."""
    workload = built.workload
    found = []
    columns = zip(
        job_messages(workload),
        workload.submit_ms.tolist(),
        workload.run_ms.tolist(),
        workload.overran.tolist(),
        built.home.tolist(),
        built.to_grid.tolist(),
        strict=True,
    )
    for row, (job, submit_ms, run_ms, overran, home, to_grid) in enumerate(columns):
        # One that overran is ended at its limit, as it would be live, rather than by itself at that instant.
        work_ms = run_ms + overran * max(run_ms, round(_OVERSLEEP_MS * speed))
        request = JobRequest(
            program=working(work_ms / speed),
            nodes=job.width,
            limit_ms=clock.shown_ms(job.estimate_ms / speed),
            name=f"job {job.job_id}",
            user="" if job.user is None else str(job.user),
            priority=job.priority,
            weight=job.weight,
            # Workers send nothing, whatever the grid takes other jobs to send.
            traffic=Traffic(communication="none"),
            array=ArrayPlace(name=name, index=row),
        )
        found.append(PlannedJob(row, round(submit_ms / speed), None if to_grid else built.site_names[home], request))
    return found


def working(work_ms: float) -> Program:
    """Return the program of a job: one process on each of its sites, which does so much work at its present rate.

    Parameters
    ----------
    work_ms : float
        Work in ms of real time at rate 1.
    """
    argv = ("python3", "-I", "-S", "-c", _worker_text(), f"{work_ms:.3f}")
    # Workers have nothing to write, and nothing to do when they are told to end.
    return Program(argv=argv, ranks="first-node", output_limit_bytes=1 << 10, grace_ms=1_000)


@functools.cache
def _worker_text() -> str:
    """Return the text of the worker without its comments."""
    tree = ast.parse(inspect.getsource(worker))
    for node in [tree, *tree.body]:
        if isinstance(node, ast.Module | ast.FunctionDef):
            node.body = [each for each in node.body if not _is_text(each)]
    return ast.unparse(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def suitable_speed(workload: Workload) -> float:
    """Return a speed at which starts of processes take little beside the work of jobs: 1, 2 or 5 times a power of ten.

    Examples
    --------
    >>> times = {"run_ms": [7_200_000, 3_600_000], "estimate_ms": [9_000_000, 9_000_000]}
    >>> suitable_speed(Workload(job_id=[1, 2], submit_ms=[0, 0], width=[1, 3], **times))
    200.0
    """
    work = float((workload.width * workload.run_ms).sum()) / float(workload.width.sum())
    most = SHARE_OF_STARTS * work / START_REAL_MS
    if most < 1:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(most))
    return next(step * unit for step in _STEPS if step * unit <= most)


def check_grid(built: Built, sites: Sequence[SiteInfo], scheduling: Scheduling) -> list[str]:
    """Refuse a grid that is not that of a scenario, with all that differs; return remarks for people."""
    there = [(site.name, site.nodes) for site in sites]
    wanted = list(zip(built.site_names, built.nodes.tolist(), strict=True))
    problems = []
    if there != wanted:
        problems.append(f"its sites are {_sites_text(there)}; the scenario has {_sites_text(wanted)}")
    else:
        problems += _site_differences(built, sites)
    if built.policy.mode != "local":
        problems += _policy_differences(built, scheduling)
    problems += [f"its site {site.name} does not answer" for site in sites if not site.answers]
    problems += [
        f"its site {site.name} is drained; run: gridweave resume {site.name}" for site in sites if site.draining
    ]
    if problems:
        name = built.scenario.header.name or "scenario"
        raise ScenarioError([f"{name}: this grid is another: {problem}" for problem in problems])
    if scheduling.links and built.policy.splits:
        return ["the grid goes by the links between its sites: jobs that sleep send nothing, so a split costs nothing"]
    return []


def _sites_text(sites: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {nodes}" for name, nodes in sites) or "none"


def _site_differences(built: Built, sites: Sequence[SiteInfo]) -> list[str]:
    """Return what the sites would do otherwise than in the scenario, as far as it matters there."""
    problems = []
    own_queues = built.policy.control != "full" or not built.to_grid.all()
    for site, policy, owner in zip(sites, built.site_policies, built.owners, strict=True):
        for_grid = owner.nodes_for_grid(site.nodes)
        if site.for_grid != for_grid and built.to_grid.any():
            problems.append(f"its site {site.name} leaves the grid {site.for_grid} nodes, the scenario {for_grid}")
        label = policy_label(policy, owner)
        if own_queues and site.policy and site.policy != label:
            problems.append(f"its site {site.name} schedules by {site.policy!r}, the scenario by {label!r}")
    return problems


def _policy_differences(built: Built, scheduling: Scheduling) -> list[str]:
    policy = built.policy
    names = ["mode", "control", "order", "backfill", "head_reservation", "selection"]
    names += ["overhead", "lower_bound", "max_fragments"] if policy.splits else []
    wanted = {name: policy.overheads if name == "overhead" else getattr(policy, name) for name in names}
    found = {name: getattr(scheduling, name) for name in wanted}
    found["max_fragments"] = tuple((limit.width, limit.fragments) for limit in scheduling.max_fragments)
    return [
        f"its grid.{name} is {_value_text(found[name])}, the scenario has {_value_text(value)}"
        for name, value in wanted.items()
        if found[name] != value
    ]


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{part:g}" if isinstance(part, float) else f"{part}" for part in value) or "unlimited"
    return str(value)


def short_limits(workload: Workload, speed: float) -> int:
    """Return how many jobs have so little time between their work and their limit that a busy machine may end them."""
    slack_ms = (workload.estimate_ms - workload.run_ms) / speed
    return int(np.count_nonzero((slack_ms < LIMIT_SLACK_REAL_MS) & ~workload.overran))


def expanded(record: JobRecord, origin_ms: int, speed: float) -> JobRecord:
    """Return the record of a job in the time of the scenario, which passes so many times as fast as the grid's clock.

    At time 0 of the scenario that clock showed ``origin_ms``.
    """

    def at(time_ms: int | None) -> int | None:
        return None if time_ms is None else round((time_ms - origin_ms) * speed)

    return msgspec.structs.replace(
        record,
        ran_ms=None if record.ran_ms is None else tuple(map(at, record.ran_ms)),
        submit_ms=round((record.submit_ms - origin_ms) * speed),
        placed_ms=at(record.placed_ms),
        start_ms=at(record.start_ms),
        end_ms=at(record.end_ms),
    )
