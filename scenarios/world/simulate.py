"""Simulate a workload on a grid in the simulated world, given its sites, policy, network and faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.grid.control.tuning import QueueTuning
from gridweave.grid.kernels.resources import counted_grid
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.grid import checked_home, checked_sensitivity, checked_sites, grid_result, placement_of
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.batch.one_site import cancellations, cancelled_in, week_for
from gridweave.scenarios.batch.stepped import job_messages, sends_of
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.scenarios.results.uses import WorldUse
from gridweave.scenarios.workload.needs import check_needs
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Faults, LiveTimes, Network, Routes
from gridweave.scenarios.world.traffic import LinkTraffic, WorldLinks
from gridweave.scenarios.world.works import Ran, WorldJob, WorldLengths
from gridweave.scenarios.world.world import World
from gridweave.site.disciplines.dictionary import counted_kinds, counted_placement, traits_of
from gridweave.site.disciplines.dynp.figures import TuningUse
from gridweave.site.disciplines.entry import Policy
from gridweave.site.kernels.limits import WeekClock
from gridweave.site.policy import SitePolicy
from gridweave.site.scheduler.contract import ContractCore
from gridweave.site.users.owner import OwnerPolicy


def simulate_world(
    workload: Workload,
    nodes: Sequence[int],
    policy: GridPolicy,
    *,
    site_policies: Sequence[Policy] | None = None,
    owners: Sequence[OwnerPolicy] | None = None,
    timezones: Sequence[str | None] | None = None,
    home: npt.ArrayLike | None = None,
    to_grid: npt.ArrayLike | None = None,
    network: Network | None = None,
    faults: Faults | None = None,
    live: LiveTimes | None = None,
    rng: np.random.Generator | None = None,
    sensitivity: npt.ArrayLike | None = None,
    net: GridNet | None = None,
    grid_node: int | None = None,
    check: bool = False,
    channels: bool = False,
) -> SimulationResult:
    """Simulate a grid with real site cores, a real meta-scheduler, and messages between them.

    Parameters
    ----------
    nodes : sequence of int
        Number of nodes of each site.
    site_policies : sequence of Policy, optional
        How each site schedules its jobs; FCFS with EASY backfilling by default.
    owners : sequence of OwnerPolicy, optional
        The share of each site that its owner grants the grid; everything by default.
    timezones : sequence of str or None, optional
        IANA name of each site's time zone, used for weekly windows; None means the workload's time zone.
    home : array_like of int, shape (n,), optional
        Index of each job's home site; by default, jobs are assigned round robin in submit order.
    to_grid : array_like of bool, shape (n,), optional
        Whether each job is submitted to the grid, not to its home site; default: False in mode ``local``, else True.
    network : Network, optional
        The network that carries messages; by default, messages take no time and none are lost.
    faults : Faults, optional
        Crashes and cuts; none by default.
    live : LiveTimes, optional
        Times that a live grid adds to run times and agreed starts; zero by default.
    rng : numpy.random.Generator, optional
        Used for the selection ``random``, delays, losses and faults; seeded with 0 by default.
    sensitivity : array_like of float, shape (n,), optional
        As in `gridweave.scenarios.batch.simulate.simulate_grid`.
    net : GridNet, optional
        The links between the sites, as in `gridweave.scenarios.batch.simulate.simulate_grid`.
    grid_node : int, optional
        The meta-scheduler's node. If given, messages cross the links, with delays and losses in addition to those of
        ``network``.
    check : bool
        Whether to check the invariants of all cores after every step, which is slow. The history is always checked.
    channels : bool
        Whether messages travel through channels (`gridweave.site.channel`) even if the network keeps their order.

    Raises
    ------
    OptionError
        If an array does not have one entry per job or site as required, or the policy does not support ``net``.
    InputError
        If a job is cancelled before it is submitted, or a site that assigns fractions of nodes requires needs that the
        workload does not have. With ``net``, also if a column of the workload is invalid, a job runs over links that
        fail forever, or a site is cut off from the meta-scheduler forever.
    ViolationError
        If an invariant is violated, which means a bug in gridweave.

    Examples
    --------
    >>> jobs = Workload(job_id=[1, 2], submit_ms=[0, 1], width=[3, 6], estimate_ms=[100, 50], run_ms=[100, 50])
    >>> policy = GridPolicy(mode="multi-site", overhead=0.2, lower_bound=4)
    >>> result = simulate_world(jobs, [4, 4], policy, network=Network(latency_ms=5))
    >>> result.start_ms.tolist(), result.fragments_of(1)
    ([5, 130], [(0, 4), (1, 2)])
    """
    _check_workload(workload, site_policies or ())
    nodes = checked_sites(nodes).tolist()
    rng = rng or np.random.default_rng(0)
    policies = [SitePolicy()] * len(nodes) if site_policies is None else site_policies
    sites, for_grid = _sites(nodes, policies, owners, _weeks(workload, policies, timezones))
    # The selection has its own random stream, so that the network does not change its choices.
    selection = rng.spawn(1)[0]
    links = None if net is None else WorldLinks(workload, for_grid, policy, net)
    routes = Routes(network or Network(), rng, net, grid_node)
    network_model = None if links is None else links.network
    live, faults = live or LiveTimes(), faults or Faults()
    margin_ms = max(routes.margin_ms, live.margin_ms)
    options: dict[str, Any] = {"rng": selection, "margin_ms": margin_ms, "network": network_model}
    meta = MetaCore(for_grid, policy, **options, **_site_options(sites, nodes, policies))
    lengths = WorldLengths(policy.split_length_ms, live.around_ms)
    world = World(sites, meta, lengths, routes, faults, rng, check=check, channels=channels, links=links)
    world.history.count_resources(counted_kinds(policy) for policy in policies)
    world.run(_world_jobs(workload, len(nodes), policy, home, to_grid, sensitivity, net))
    result = _result(workload, nodes, policy, world, None if links is None else links.traffic)
    return result if meta.tuning is None else _with_orders(result, meta.tuning, world.switches)


def _check_workload(workload: Workload, site_policies: Sequence[Policy]) -> None:
    """Raise InputError if a job is cancelled before its submission, or lacks the needs that a site requires."""
    cancellations(workload, np.arange(len(workload)))
    for policy in site_policies:
        check_needs(workload, traits_of(policy).needs)


def _sites(
    nodes: Sequence[int],
    policies: Sequence[Policy],
    owners: Sequence[OwnerPolicy] | None,
    weeks: Sequence[WeekClock],
) -> tuple[list[ContractCore], list[int]]:
    """Return the cores of the sites, and the number of nodes that the grid may use at each site."""
    owner_policies = list(owners) if owners is not None else [OwnerPolicy()] * len(nodes)
    if not len(nodes) == len(policies) == len(owner_policies):
        problem = f"names {len(nodes)} sites, with {len(policies)} policies, {len(owner_policies)} owners"
        raise OptionError("nodes", problem)
    sites = [
        ContractCore(count, policy, owner=owner, week=week)
        for count, policy, owner, week in zip(nodes, policies, owner_policies, weeks, strict=True)
    ]
    return sites, [owner.nodes_for_grid(count) for count, owner in zip(nodes, owner_policies, strict=True)]


def _site_options(sites: Sequence[ContractCore], nodes: Sequence[int], policies: Sequence[Policy]) -> dict[str, Any]:
    """Return the meta-scheduler's options that follow from what the sites can share and count."""
    kinds = [counted_kinds(policy) for policy in policies]
    return {
        "shared": [number for number, site in enumerate(sites) if site.site.traits.assigns_threads],
        "counted": counted_grid(nodes, kinds, [counted_placement(policy) for policy in policies]),
    }


def _weeks(workload: Workload, policies: Sequence[Policy], timezones: Sequence[str | None] | None) -> list[WeekClock]:
    """Return each site's clock for the local day and time of the week; see `week_for`."""
    zones = [None] * len(policies) if timezones is None else timezones
    if len(zones) != len(policies):
        raise OptionError("timezones", f"names {len(zones)} time zones for {len(policies)} sites")
    return [week_for(workload, policy, zone) for policy, zone in zip(policies, zones, strict=True)]


def _world_jobs(
    workload: Workload,
    sites: int,
    policy: GridPolicy,
    home: npt.ArrayLike | None,
    to_grid: npt.ArrayLike | None,
    sensitivity: npt.ArrayLike | None,
    net: GridNet | None,
) -> list[WorldJob]:
    """Return the jobs as the world submits them, in submit order."""
    count = len(workload)
    homes = checked_home(home, count, sites)
    grid = np.full(count, policy.mode != "local") if to_grid is None else np.asarray(to_grid, np.bool_)
    if grid.shape != (count,):
        raise OptionError("to_grid", f"has shape {grid.shape}; expected ({count},), one entry per job")
    sends = [None] * count if net is None else sends_of(workload)
    cancel_ms = np.asarray(workload.columns.get("cancel_ms", np.full(count, -1)), np.int64)
    return [
        WorldJob(*fields)
        for fields in zip(
            workload.submit_ms.tolist(),
            job_messages(workload),
            np.minimum(workload.run_ms, workload.estimate_ms).tolist(),
            homes.tolist(),
            grid.tolist(),
            checked_sensitivity(sensitivity, count).tolist(),
            sends,
            cancel_ms.tolist(),
            strict=True,
        )
    ]


def _result(
    workload: Workload, nodes: Sequence[int], policy: GridPolicy, world: World, traffic: LinkTraffic | None
) -> SimulationResult:
    ids, works = workload.job_id.tolist(), world.works
    never = Ran(NEVER, NEVER, {})
    runs = [works.finished.get(job_id, never) for job_id in ids]
    start_ms, end_ms = (np.array([getattr(run, name) for run in runs], np.int64) for name in ("begun_ms", "end_ms"))
    columns: dict[str, npt.NDArray[Any]] = {}
    if traffic is not None:
        columns["factor"] = traffic.factor
        columns["slowdown"] = traffic.slowdowns(start_ms, end_ms)
        columns["transfer_ms"] = traffic.transfer_ms
    refused = {job_id: world.refused[job_id] for job_id in ids if job_id in world.refused}
    return grid_result(
        workload,
        np.array(nodes, np.int64),
        policy,
        start_ms,
        end_ms,
        placement_of([tuple(run.fragments.items()) for run in runs]),
        refused,
        cancelled=cancelled_in(workload, start_ms, refused),
        world=WorldUse(
            messages=world.connections.messages,
            lost=world.connections.lost,
            crashes=world.crashes,
            cuts=world.cuts,
            restarts=world.history.restarts,
            link_changes=world.link_changes,
        ),
        columns=columns,
        shared=world.overlaps,
    )


def _with_orders(
    result: SimulationResult, tuning: QueueTuning, switches: Sequence[tuple[int, int]]
) -> SimulationResult:
    """Add the results of the grid's self-tuning, with the same metrics as a self-tuning site, under the name ``grid``.

    A job is counted under the queue order that was active when the job began.
    """
    switched = np.array(switches, np.int64).reshape(-1, 2)
    since = np.searchsorted(switched[:, 0], result.start_ms, side="right")
    in_force = np.append(0, switched[:, 1])[since]
    use = TuningUse(
        policies=tuning.orders,
        decisions=tuning.decisions,
        cases={},
        switched_ms=switched[:, 0],
        switched_to=switched[:, 1],
        started_by=np.where(result.ran, in_force, -1),
    )
    return replace(result, own=use, own_metrics={**result.own_metrics, **_order_metrics(result, use)})


def _order_metrics(result: SimulationResult, use: TuningUse) -> dict[str, float]:
    metrics = {"grid.decisions": float(use.decisions)}
    if result.ran.any():
        first_ms, last_ms = int(result.workload.submit_ms[result.ran].min()), int(result.end_ms.max())
        for order in use.uses(first_ms, last_ms):
            metrics[f"grid.{order.policy}_time_pct"] = 100.0 * order.active_ms / (last_ms - first_ms)
            metrics[f"grid.{order.policy}_jobs_pct"] = 100.0 * order.jobs / int(result.ran.sum())
            metrics[f"grid.{order.policy}_switches"] = float(order.switches)
    return metrics
