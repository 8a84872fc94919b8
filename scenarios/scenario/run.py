"""A scenario, run in the batch driver, or in the simulated world where it is more than that driver knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from gridweave.grid.kernels.state import FRAGMENT
from gridweave.scenarios.batch.grid import GridResult, simulate_grid
from gridweave.scenarios.batch.shared import simulate_shared
from gridweave.scenarios.batch.simulate import simulate_policy
from gridweave.scenarios.results.grid import GridRun
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.scenarios.scenario.build import STREAM_SELECTION, STREAM_WORLD, Built, build_scenario, rng_of
from gridweave.scenarios.scenario.read import Overrides
from gridweave.scenarios.scenario.tables import Scenario
from gridweave.scenarios.workload.columns import RESOURCE_COLUMNS
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.simulate import WorldResult, simulate_world
from gridweave.site.disciplines.protocol import Policy
from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownModel
from gridweave.site.policy import SitePolicy

Progress = Callable[[int, int, str], None]
"""How much is done, how much there is, and what is going on."""


def run_scenario(
    source: str | Path | Scenario, *, overrides: Overrides = (), progress: Progress | None = None
) -> GridRun:
    """Run a scenario.

    Parameters
    ----------
    source : str, pathlib.Path or Scenario
        A file, the name of a scenario in the catalogue, or a scenario that stands already.
    overrides : mapping or sequence of str
        Changes: values by dotted key, or texts ``key=value``.
    progress : callable, optional
        Told now and then how far it is.

    Raises
    ------
    ScenarioError
        With all that is wrong with the scenario.
    InputError
        If there is no such scenario.

    Examples
    --------
    >>> run = run_scenario("two-sites", overrides={"workload.jobs": 200, "workload.transform": []})
    >>> len(run.result.workload), run.site_names, run.result.policy.label
    (200, ('north', 'south'), 'adaptive p=25%')
    """
    built = build_scenario(source, overrides)
    if progress is not None:
        progress(0, len(built.workload), "Compiling and simulating")
    run = run_built(built)
    if progress is not None:
        progress(len(built.workload), len(built.workload), "Simulated")
    return run


def run_built(built: Built) -> GridRun:
    """Run a scenario that has been built."""
    if built.policy.mode == "local":
        result = _run_local(built)
    elif built.needs_world:
        result = run_world(built)
    else:
        rng = rng_of(built.scenario, STREAM_SELECTION)
        result = simulate_grid(built.workload, built.nodes.tolist(), built.policy, rng=rng, net=built.net)
    return GridRun(
        result=result,
        site_names=built.site_names,
        home=built.home,
        name=built.scenario.header.name or "scenario",
        options=msgspec.to_builtins(built.scenario),
        shown=tuple(built.scenario.output.metrics),
        remarks=built.remarks,
        shared=built.shares_nodes,
        net=built.net,
    )


def run_world(built: Built, *, check: bool = False) -> WorldResult:
    """Run a scenario in the simulated world.

    Parameters
    ----------
    check : bool
        As for `gridweave.scenarios.world.simulate.simulate_world`.
    """
    return simulate_world(
        built.workload,
        built.nodes.tolist(),
        built.policy,
        site_policies=built.site_policies,
        owners=built.owners,
        home=built.home,
        to_grid=built.to_grid,
        network=built.network,
        faults=built.faults,
        rng=rng_of(built.scenario, STREAM_WORLD),
        net=built.net,
        grid_node=built.grid_node,
        check=check,
    )


def _run_local(built: Built) -> GridResult:
    """Run each site by itself, with the jobs of its own users and its own discipline."""
    workload = built.workload
    start_ms, end_ms = np.full((2, len(workload)), NEVER, np.int64)
    for site, policy in enumerate(built.site_policies):
        rows = np.flatnonzero(built.home == site)
        if len(rows):
            schedule = _run_alone(workload.take(rows), int(built.nodes[site]), policy)
            start_ms[rows], end_ms[rows] = schedule.start_ms, schedule.end_ms
    fragments = np.zeros(len(workload), FRAGMENT)
    fragments["site"], fragments["width"] = built.home, workload.width
    return GridResult(
        workload=workload,
        nodes=built.nodes,
        policy=built.policy,
        start_ms=start_ms,
        end_ms=end_ms,
        fragments=fragments,
        first_fragment=np.arange(len(workload)),
        n_fragments=np.ones(len(workload), np.int64),
        refused=(),
    )


def _run_alone(workload: Workload, nodes: int, policy: Policy) -> SimulationResult:
    """Run one site by itself."""
    if isinstance(policy, SharedNodes):
        if not all(name in workload.columns for name in RESOURCE_COLUMNS[:4]):
            # Of jobs of which nothing is known each has its nodes alone.
            policy = msgspec.structs.replace(
                policy, sharing=msgspec.structs.replace(policy.sharing, coscheduling="none")
            )
            unknown = np.ones(len(workload)), *np.zeros((2, len(workload))), np.ones(len(workload))
            columns = dict(zip(RESOURCE_COLUMNS[:4], unknown, strict=True))
            workload = workload.replace(columns={**workload.columns, **columns})
        model = SlowdownModel(policy.formula)
        return simulate_shared(workload, policy.kinds_of(nodes), policy.sharing, model=model).schedule
    assert isinstance(policy, SitePolicy), f"the discipline {policy.discipline} has no batch loop"
    return simulate_policy(workload, nodes, policy)
