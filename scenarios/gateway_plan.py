"""What a run against a grid that is up plays of a scenario: whether that grid is the scenario's, and at which speed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from gridweave.errors import ScenarioError
from gridweave.grid.api import Scheduling, SiteInfo
from gridweave.scenarios.live_plan import Submission, submissions
from gridweave.scenarios.scenario.build import Built
from gridweave.scenarios.workload import Workload
from gridweave.site.job import ArrayPlace, JobRecord
from gridweave.site.owner import policy_label

START_REAL_MS = 100
"""What it takes a job, roughly, to start its processes when it has its nodes, and to have their end heard."""

SHARE_OF_STARTS = 0.01
"""The chosen speed leaves jobs so long that this is no more than such a part of their work."""

LIMIT_SLACK_REAL_MS = 1_000
"""A limit that leaves less than this beyond the run time may end its job, if the machine is busy."""

_STEPS = 5, 2, 1


def suitable_speed(workload: Workload) -> float:
    """Return a speed at which starts of processes take little beside the work of jobs.

    Parameters
    ----------
    workload : Workload

    Returns
    -------
    float
        1, 2 or 5 times a power of ten; never below 1.

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
    """Check that a grid is that of a scenario; return what is to be said of it.

    Parameters
    ----------
    built : Built
    sites : sequence of SiteInfo
    scheduling : Scheduling
        As its gateway says them.

    Returns
    -------
    list of str
        Remarks for people.

    Raises
    ------
    ScenarioError
        With all that differs.
    """
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
    wanted: dict[str, object] = {
        "mode": policy.mode,
        "control": policy.control,
        "order": policy.order,
        "backfill": policy.backfill,
        "selection": policy.selection,
    }
    if policy.splits:
        wanted |= {
            "overhead": policy.overheads,
            "lower_bound": policy.lower_bound,
            "max_fragments": policy.max_fragments,
        }
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


def compressed(built: Built, speed: float, name: str) -> list[Submission]:
    """Return the jobs of a scenario as they are handed in to a grid whose clock shows real time.

    Parameters
    ----------
    built : Built
    speed : float
        How many ms of the scenario pass in one.
    name : str
        Of this run: the jobs are an array of that name.

    Returns
    -------
    list of Submission
        In the order of submission, whose times are real: ms from the time 0 of the scenario.
    """
    found = []
    for job in submissions(built, speed):
        request = msgspec.structs.replace(
            job.request,
            limit_ms=max(1, round(job.request.limit_ms / speed)),
            array=ArrayPlace(name=name, index=job.row),
        )
        found.append(Submission(job.row, round(job.submit_ms / speed), job.site, request))
    return found


def short_limits(workload: Workload, speed: float) -> int:
    """Return how many jobs have so little time between their work and their limit that a busy machine may end them.

    Parameters
    ----------
    workload : Workload
    speed : float
    """
    slack_ms = (workload.estimate_ms - workload.run_ms) / speed
    return int(np.count_nonzero((slack_ms < LIMIT_SLACK_REAL_MS) & ~workload.overran))


def expanded(record: JobRecord, origin_ms: int, speed: float) -> JobRecord:
    """Return the record of a job with its times as those of the scenario.

    Parameters
    ----------
    record : JobRecord
    origin_ms : int
        What the grid's clock showed at time 0 of the scenario.
    speed : float
    """

    def at(time_ms: int | None) -> int | None:
        return None if time_ms is None else round((time_ms - origin_ms) * speed)

    return msgspec.structs.replace(
        record,
        submit_ms=round((record.submit_ms - origin_ms) * speed),
        start_ms=at(record.start_ms),
        end_ms=at(record.end_ms),
    )
