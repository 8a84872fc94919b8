"""What a live run plays of a scenario: a grid to start, jobs that sleep, and when each is handed in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gridweave.errors import OptionError, ScenarioError
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.cluster import GridPlan, SitePlan
from gridweave.scenarios.batch.stepped import job_messages
from gridweave.scenarios.scenario.build import Built
from gridweave.scenarios.world.connections import Network
from gridweave.site.disciplines.dictionary import entry_of
from gridweave.site.job import JobRequest, Program
from gridweave.site.service.clock import Clock

MARGIN_REAL_MS = 250
RETRY_REAL_MS = 1_000
RENDEZVOUS_REAL_MS = 30_000
"""How long the actors may take for what takes them no longer when time is compressed: to agree on a start, to be asked
again, and for the parts of a job to be there."""

SPEEDS = 0.001, 1_000_000.0
"""The lowest and the highest."""

_OVERSLEEP_MS = 60_000


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job as it is handed in.

    Attributes
    ----------
    row : int
        Of the workload.
    submit_ms : int
    site : str or None
        Whose own user hands it in there; None: it is handed to the grid.
    request : JobRequest
    """

    row: int
    submit_ms: int
    site: str | None
    request: JobRequest

    @property
    def key(self) -> str:
        """The idempotency key."""
        return f"row-{self.row}"


def check_speed(speed: float) -> None:
    """Raise `OptionError` if no scenario can be played at this speed.

    Parameters
    ----------
    speed : float
        How many ms of the scenario pass in one.

    Raises
    ------
    OptionError
        If it is out of bounds.
    """
    if not SPEEDS[0] <= speed <= SPEEDS[1]:
        raise OptionError("speed", f"is {speed:g}; a number from {SPEEDS[0]:g} to {SPEEDS[1]:,.0f}, 1 for real time")


def first_jobs(built: Built, jobs: int | None) -> Built:
    """Return a scenario with its first jobs alone.

    Parameters
    ----------
    jobs : int or None
        How many, at least 1; None: all.

    Raises
    ------
    OptionError
        If they are none.
    """
    if jobs is None:
        return built
    if jobs < 1:
        raise OptionError("jobs", f"is {jobs}; at least 1 is needed")
    rows = np.arange(min(jobs, len(built.workload)))
    return replace(
        built, workload=built.workload.take(rows), home=built.home[rows].copy(), to_grid=built.to_grid[rows].copy()
    )


def check_playable(built: Built, on: str = "ray") -> list[str]:
    """Check that a live run can play a scenario; return what it plays otherwise than the simulation.

    Parameters
    ----------
    on : str
        What it is to be played on, as the user says it.

    Returns
    -------
    list of str
        Remarks for people.

    Raises
    ------
    ScenarioError
        With all that a live run cannot play.
    """
    problems = []
    if built.net is not None:
        problems.append("net: jobs that sleep send nothing over links; leave [net] out and give grid.overhead")
    for name, policy in zip(built.site_names, built.site_policies, strict=True):
        if entry_of(policy).shares_nodes:
            why = f"jobs that sleep do not slow each other; {policy.discipline} is simulated only"
            problems.append(f"sites.{name}.discipline: {why}")
    network = built.network
    if network.loss or network.duplicate:
        problems.append("network: messages are lost and doubled in the simulation only; leave loss and duplicate out")
    if built.faults.any:
        problems.append("faults: sites and connections fail in the simulation only; leave [faults] out")
    if problems:
        name = built.scenario.header.name or "scenario"
        raise ScenarioError([f"{name}: --on {on}: {problem}" for problem in problems])
    remarks = []
    if network != Network():
        remarks.append("messages take live what they take: [network] counts in the simulation alone")
    if built.policy.mode != "local" and built.policy.selection == "random":
        remarks.append("selection random: the live grid draws other numbers than the simulation")
    return remarks


def grid_plan(built: Built, speed: float, *, folder: str, namespace: str, labelled: bool, epoch_ms: int) -> GridPlan:
    """Return the grid that plays a scenario: one virtual machine for each site.

    Parameters
    ----------
    speed : float
        How many ms of the scenario pass in one.
    folder, namespace, labelled
        As for `GridPlan`.
    epoch_ms : int
        Unix time at which its clock shows 0.

    Raises
    ------
    OptionError
        If the speed is out of bounds.
    """
    check_speed(speed)
    clock = Clock(epoch_ms, speed)
    sites = tuple(
        SitePlan(name=name, nodes=nodes, policy=policy, owner=owner)
        for name, nodes, policy, owner in zip(
            built.site_names, built.nodes.tolist(), built.site_policies, built.owners, strict=True
        )
    )
    # Under mode local the grid has nothing to do, and needs a policy all the same.
    policy = built.policy if built.policy.mode != "local" else GridPolicy(mode="sharing")
    return GridPlan(
        folder=folder,
        sites=sites,
        policy=policy,
        clock=clock,
        namespace=namespace,
        labelled=labelled,
        seed=built.scenario.header.seed,
        margin_ms=_passing(MARGIN_REAL_MS, speed),
        retry_ms=_passing(RETRY_REAL_MS, speed),
        rendezvous_ms=_passing(RENDEZVOUS_REAL_MS, speed),
    )


def _passing(real_ms: int, speed: float) -> int:
    """Return how much time of the scenario passes in a real time span."""
    return max(1, round(real_ms * speed))


def submissions(built: Built, speed: float) -> list[PlannedJob]:
    """Return the jobs of a scenario as they are handed in.

    Returns
    -------
    list of PlannedJob
        In the order of submission.
    """
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
        sleep_ms = run_ms + overran * max(run_ms, round(_OVERSLEEP_MS * speed))
        most = min(job.width, len(built.site_names)) if to_grid and built.policy.splits else 1
        request = JobRequest(
            program=sleeping(sleep_ms, most, built.policy, speed),
            nodes=job.width,
            limit_ms=job.estimate_ms,
            name=f"job {job.job_id}",
            user="" if job.user is None else str(job.user),
            priority=job.priority,
            weight=job.weight,
        )
        found.append(PlannedJob(row, submit_ms, None if to_grid else built.site_names[home], request))
    return found


def sleeping(run_ms: int, most: int, policy: GridPolicy, speed: float) -> Program:
    """Return the program of a job: one process on each of its sites, which sleeps as long as it would have worked.

    Parameters
    ----------
    run_ms : int
        How long it runs on one site, in the scenario's time.
    most : int
        On how many sites it may be.
    policy : GridPolicy
        Its overhead is by how much longer the job takes on several.

    Examples
    --------
    >>> policy = GridPolicy(mode="multi-site", overhead=0.5)
    >>> sleeping(60_000, 1, policy, 1000.0).argv
    ('sleep', '0.06')
    >>> sleeping(60_000, 2, policy, 1000.0).argv
    ('sh', '-c', 'case $GRIDWEAVE_SITES in *,*) exec sleep 0.09;; *) exec sleep 0.06;; esac')
    """
    most = min(most, len(policy.overheads) + 1)  # the last overhead holds for more fragments as well
    naps = [_seconds(policy.split_length_ms(run_ms, fragments), speed) for fragments in range(1, most + 1)]
    argv: tuple[str, ...] = ("sleep", naps[0])
    if len(set(naps)) > 1:
        cases = [f"{'*,' * commas}*) exec sleep {naps[commas]};;" for commas in range(most - 1, -1, -1)]
        argv = ("sh", "-c", f"case $GRIDWEAVE_SITES in {' '.join(cases)} esac")
    # Sleeping processes have nothing to write, and nothing to do when they are told to end.
    return Program(argv=argv, ranks="first-node", output_limit_bytes=1 << 10, grace_ms=1_000)


def _seconds(span_ms: int, speed: float) -> str:
    """Return a time of the scenario as `sleep` reads it."""
    return f"{span_ms / speed / 1000:.6f}".rstrip("0").rstrip(".")


def warming(plan: GridPlan, targets: set[str | None]) -> list[tuple[str | None, JobRequest]]:
    """Return jobs that have the cores load, or compile, all that they will use: one that fills, one that waits, others.

    Parameters
    ----------
    targets : set of str or None
        Sites whose own users hand in jobs, and None if the grid gets any.

    Returns
    -------
    list of (str or None, JobRequest)
        To whom, and what.
    """
    largest = max(site.owner.nodes_for_grid(site.nodes) for site in plan.sites)
    total = sum(site.owner.nodes_for_grid(site.nodes) for site in plan.sites)
    wanted: list[tuple[str | None, int]] = []
    if None in targets and largest:
        split = [largest + 1] if plan.policy.splits and total > largest else []
        wanted += [(None, nodes) for nodes in (largest, largest, *split, 1, 1)]
    for site in plan.sites:
        if site.name in targets:
            wanted += [(site.name, nodes) for nodes in (site.nodes, site.nodes, 1)]
    program = Program(argv=("sleep", "0.1"), ranks="first-node")
    limit_ms = _passing(600_000, plan.clock.speed)
    request = JobRequest(program=program, limit_ms=limit_ms, name="warming up")
    return [(site, msgspec.structs.replace(request, nodes=nodes)) for site, nodes in wanted]
