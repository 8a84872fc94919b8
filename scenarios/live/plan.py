"""Plan a live run: check whether a scenario can run live, choose the speed, and lay out the grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from gridweave.errors import OptionError, ScenarioError
from gridweave.grid.api import Scheduling, SiteInfo
from gridweave.grid.control.limited import LEASE_MS
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.cluster import GridPlan, SitePlan
from gridweave.scenarios.batch.grid_network import network_of
from gridweave.scenarios.live.submissions import REAL_TIME
from gridweave.scenarios.scenario.build import Built
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Network
from gridweave.site.disciplines.dictionary import deciding, traits_of
from gridweave.site.job import JobRecord
from gridweave.site.launch import MachineRules
from gridweave.site.scheduler.contract import ALONE_MS, RENDEZVOUS_MS
from gridweave.site.service.clock import HISTORY_DAYS, Clock
from gridweave.site.users.owner import policy_label

MARGIN_MS, RETRY_MS = 250, 1_000
"""Real time limit for actors to agree on a start, and real time after which an unanswered request is repeated."""

SPEEDS = 0.001, 1_000_000.0
"""The lowest and the highest speed."""

START_REAL_MS = 100
"""Approximate real time needed to start a job's processes and to learn that they have ended."""

SHARE_OF_STARTS = 0.01
"""The default speed keeps `START_REAL_MS` below this fraction of the jobs' mean work."""

LIMIT_SLACK_REAL_MS = 1_000
"""On a busy machine, a job whose run time is closer than this to its limit may be killed at the limit."""

_STEPS = 5, 2, 1


def check_speed(speed: float) -> None:
    """Raise OptionError unless the speed, in ms of the scenario per real ms, is within `SPEEDS`."""
    if not SPEEDS[0] <= speed <= SPEEDS[1]:
        raise OptionError(
            "speed", f"is {speed:g}; expected a number from {SPEEDS[0]:g} to {SPEEDS[1]:,.0f}, 1 for real time"
        )


def first_jobs(built: Built, jobs: int | None) -> Built:
    """Return a scenario with only its first ``jobs`` jobs; None keeps all jobs."""
    if jobs is None:
        return built
    if jobs < 1:
        raise OptionError("jobs", f"is {jobs}; expected at least 1")
    rows = np.arange(min(jobs, len(built.workload)))
    return replace(
        built, workload=built.workload.take(rows), home=built.home[rows].copy(), to_grid=built.to_grid[rows].copy()
    )


def check_playable(built: Built, on: str = "ray", speed: float = 1.0) -> list[str]:
    """Raise ScenarioError with all reasons why a scenario cannot run live; return remarks on how the run will differ.

    ``on`` is ``ray`` for a grid that is started for the run; the clock of any other grid shows real time.
    """
    problems = [*_network_problems(built), *_site_problems(built)]
    if on != "ray":
        problems += _running_grid_problems(built, speed)
    if problems:
        name = built.scenario.header.name or "scenario"
        raise ScenarioError([f"{name}: --on {on}: {problem}" for problem in problems])
    return _remarks(built, on)


def _running_grid_problems(built: Built, speed: float) -> Iterator[str]:
    """Yield the reasons why a scenario cannot run on a grid that was not started for the run."""
    if built.network.loss or built.network.duplicate:
        yield "network: a running grid cannot lose or duplicate messages; leave out loss and duplicate, or use --on ray"
    if built.faults.any:
        yield "faults: the sites of a running grid cannot be made to fail; leave out [faults], or use --on ray"
    for site in sorted(built.sites_with_rates) if speed != 1 else ():
        why = "its discipline has fixed times, which a running grid does not divide by the speed"
        yield f"sites.{site}.discipline: {why}; give --speed 1, or use --on ray"


def _network_problems(built: Built) -> Iterator[str]:
    """Yield the link features in the scenario that a live run does not support, because workers send no data."""
    net = built.net
    if net is None:
        return
    if net.contention != "none":
        yield f"grid.contention: is {net.contention!r}; workers send nothing that slows other jobs: set it to 'none'"
    if net.data != "none":
        yield f"grid.data: is {net.data!r}; workers read and write no data: set it to 'none'"
    if net.timetable is not None:
        yield "net.changes, net.failures: links change and fail in the simulation only; leave them out"


def _site_problems(built: Built) -> Iterator[str]:
    """Yield the site features in the scenario that a live run does not support."""
    is_asked = built.policy.control != "full" and bool(built.to_grid.any())
    for name, policy in zip(built.site_names, built.site_policies, strict=True):
        traits = traits_of(policy)
        if is_asked and traits.slices_time and traits.saves_work:
            why = "a moved job of the grid returns to the grid, which does not know its progress"
            yield f"sites.{name}.{policy.discipline}: {why}: set migration to 'none', or grid.control to 'full'"
        if deciding(policy)[1].week:
            why = "windows follow the time of day, but a live run is faster: sites with windows can only be simulated"
            yield f"sites.{name}.discipline: {why}"


def _remarks(built: Built, on: str) -> list[str]:
    """Return remarks on how a live run will differ from the simulation."""
    remarks, network = [], built.network
    if on != "ray" and network != Network():
        remarks.append("live messages take real time: [network] applies only to the simulation")
    elif network.look_ms:
        remarks.append("live sites report at once: network.look_ms applies only to the simulation")
    if network.loss:
        remarks.append("a lost message is sent again after 1 s of real time: give a low --speed")
    if built.policy.mode != "local" and built.policy.selection == "random":
        remarks.append("selection random: the live grid draws other numbers than the simulation")
    return remarks


def grid_plan(built: Built, *, folder: str, namespace: str, labelled: bool, clock: Clock = REAL_TIME) -> GridPlan:
    """Return the plan of a scenario's grid, with one virtual machine per site and actors that use ``clock``."""
    from gridweave.grid.service.local import first_port_of

    sites = tuple(
        SitePlan(name=name, nodes=nodes, policy=policy, owner=owner, rules=MachineRules(counts_parts=True))
        for name, nodes, policy, owner in zip(
            built.site_names, built.nodes.tolist(), built.site_policies, built.owners, strict=True
        )
    )
    return GridPlan(
        folder=folder,
        sites=sites,
        # In mode local, the grid has nothing to do, but still needs a policy.
        policy=built.policy if built.policy.mode != "local" else GridPolicy(mode="sharing"),
        namespace=namespace,
        labelled=labelled,
        seed=built.scenario.header.seed,
        network=None if built.net is None else network_of(built.net),
        # Messages and processes take the same real time at any clock speed.
        margin_ms=clock.shown_ms(MARGIN_MS),
        retry_ms=clock.shown_ms(RETRY_MS),
        lease_ms=clock.shown_ms(LEASE_MS),
        rendezvous_ms=clock.shown_ms(RENDEZVOUS_MS),
        alone_ms=clock.shown_ms(ALONE_MS),
        history_days=math.ceil(HISTORY_DAYS * max(1.0, clock.speed)),
        first_port=first_port_of(namespace),  # avoids the rank ports of a grid that is already running here
        clock=clock,
    )


def suitable_speed(workload: Workload) -> float:
    """Return a speed at which process starts are short compared with the jobs: 1, 2 or 5 times a power of ten.

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
    """Raise ScenarioError with all differences between a grid and the scenario's grid; return remarks for the user."""
    actual = [(site.name, site.nodes) for site in sites]
    expected = list(zip(built.site_names, built.nodes.tolist(), strict=True))
    problems = []
    if actual != expected:
        problems.append(f"its sites are {_sites_text(actual)}; the scenario has {_sites_text(expected)}")
    else:
        problems += _site_differences(built, sites)
    if built.policy.mode != "local":
        problems += _policy_differences(built, scheduling)
    problems += [f"its site {site.name} does not answer" for site in sites if not site.answers]
    problems += [
        f"its site {site.name} is drained; run: gridweave resume {site.name}" for site in sites if site.draining
    ]
    if built.net is not None and built.policy.splits and not scheduling.links:
        problems.append("it does not model the links between its sites; the scenario has [net]")
    if problems:
        name = built.scenario.header.name or "scenario"
        raise ScenarioError([f"{name}: the grid differs from the scenario: {problem}" for problem in problems])
    if scheduling.links and built.net is None and built.policy.splits:
        return ["the grid models the links between its sites, but workers send nothing, so a split costs nothing"]
    return []


def _sites_text(sites: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {nodes}" for name, nodes in sites) or "none"


def _site_differences(built: Built, sites: Sequence[SiteInfo]) -> list[str]:
    """Return the differences between the sites' and the scenario's scheduling that would affect the scenario's jobs."""
    problems = []
    own_queues = built.policy.control != "full" or not built.to_grid.all()
    for site, policy, owner in zip(sites, built.site_policies, built.owners, strict=True):
        for_grid = owner.nodes_for_grid(site.nodes)
        if site.for_grid != for_grid and built.to_grid.any():
            problems.append(f"its site {site.name} grants the grid {site.for_grid} nodes; in the scenario {for_grid}")
        label = policy_label(policy, owner)
        if own_queues and site.policy and site.policy != label:
            problems.append(f"its site {site.name} schedules by {site.policy!r}; in the scenario by {label!r}")
    return problems


def _policy_differences(built: Built, scheduling: Scheduling) -> list[str]:
    policy = built.policy
    names = ["mode", "control", "order", "backfill", "head_reservation", "selection"]
    names += ["overhead", "lower_bound", "max_fragments"] if policy.splits else []
    expected = {name: policy.overheads if name == "overhead" else getattr(policy, name) for name in names}
    actual = {name: getattr(scheduling, name) for name in expected}
    actual["max_fragments"] = tuple((limit.width, limit.fragments) for limit in scheduling.max_fragments)
    return [
        f"its grid.{name} is {_value_text(actual[name])}; in the scenario {_value_text(value)}"
        for name, value in expected.items()
        if actual[name] != value
    ]


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{part:g}" if isinstance(part, float) else f"{part}" for part in value) or "unlimited"
    return str(value)


def short_limits(workload: Workload, speed: float) -> int:
    """Return the number of jobs that a busy machine may kill because their limits are too close to their run times."""
    slack_ms = (workload.estimate_ms - workload.run_ms) / speed
    return int(np.count_nonzero((slack_ms < LIMIT_SLACK_REAL_MS) & ~workload.overran))


def expanded(record: JobRecord, origin_ms: int, speed: float) -> JobRecord:
    """Return a job's record with its times converted from the grid's clock to scenario time.

    Scenario time runs `speed` times as fast as the grid's clock, and was 0 when the grid's clock showed `origin_ms`.
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
