"""Run a scenario in the batch driver, or in the simulated world if it needs features that the batch driver lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.scenarios.batch.grid import at_home, grid_result
from gridweave.scenarios.batch.grid_network import network_use
from gridweave.scenarios.batch.simulate import simulate_grid, simulate_site
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.scenarios.scenario.build import STREAM_SELECTION, STREAM_WORLD, Built, build_scenario, rng_of
from gridweave.scenarios.scenario.read import Overrides
from gridweave.scenarios.scenario.tables import Scenario
from gridweave.scenarios.workload.columns import RESOURCE_COLUMNS
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.dictionary import counted_kinds
from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.policy import SitePolicy

Progress = Callable[[int, int, str], None]
"""Called with the amount done, the total amount, and the current phase."""


def run_scenario(
    source: str | Path | Scenario, *, overrides: Overrides = (), progress: Progress | None = None
) -> SimulationResult:
    """Run a scenario.

    Parameters
    ----------
    source : str, pathlib.Path or Scenario
        A file, the name of a scenario in the catalogue, or a scenario object.
    overrides : mapping or sequence of str
        Changes: values by dotted key, or texts ``key=value``.
    progress : callable, optional
        Called with the progress at intervals.

    Raises
    ------
    ScenarioError
        If the scenario is invalid; the error lists all problems.
    InputError
        If there is no such scenario.

    Examples
    --------
    >>> run = run_scenario("two-sites", overrides={"workload.jobs": 200, "workload.transform": []})
    >>> len(run.workload), run.site_names, run.label
    (200, ('north', 'south'), 'adaptive p=25%')
    """
    built = build_scenario(source, overrides)
    if progress is not None:
        progress(0, len(built.workload), "Compiling and simulating")
    run = run_built(built)
    if progress is not None:
        progress(len(built.workload), len(built.workload), "Simulated")
    return run


def run_built(built: Built) -> SimulationResult:
    """Run a scenario that has been built."""
    if built.policy.mode == "local":
        result = _run_local(built)
    elif built.needs_world:
        result = run_world(built)
    else:
        rng = rng_of(built.scenario, STREAM_SELECTION)
        result = simulate_grid(built.workload, _grid_sites(built), built.policy, rng=rng, net=built.net)
    return with_names(result, built, network=None if built.net is None else network_use(result, built.net))


def with_names(result: SimulationResult, built: Built, **more: Any) -> SimulationResult:
    """Add to a result the names of the scenario, its sites and its policy, and the fields in ``more``."""
    names: dict[str, Any] = {
        "site_names": built.site_names,
        "home": built.home,
        "name": built.scenario.header.name or "scenario",
        "label": built.label,
        "options": msgspec.to_builtins(built.scenario),
        "shown": tuple(built.scenario.output.metrics),
        "remarks": built.remarks,
        "shared": built.overlaps,
        "site_kinds": kinds if any(kinds := [counted_kinds(policy) for policy in built.site_policies]) else (),
    }
    return replace(result, **(names | more))


def _grid_sites(built: Built) -> list[Any]:
    """Return each site for the batch driver: its policy or kinds if it counts resources, else its number of nodes."""
    sites = zip(built.nodes.tolist(), built.site_policies, strict=True)
    return [
        policy if isinstance(policy, SitePolicy) and policy.kinds else [*counted_kinds(policy)] or nodes
        for nodes, policy in sites
    ]


def run_world(built: Built, *, check: bool = False) -> SimulationResult:
    """Run a scenario in the simulated world.

    Parameters
    ----------
    check : bool
        See `gridweave.scenarios.world.simulate.simulate_world`.
    """
    return simulate_world(
        built.workload,
        built.nodes.tolist(),
        built.policy,
        site_policies=built.site_policies,
        owners=built.owners,
        timezones=built.timezones,
        home=built.home,
        to_grid=built.to_grid,
        network=built.network,
        faults=built.faults,
        live=built.live,
        rng=rng_of(built.scenario, STREAM_WORLD),
        net=built.net,
        grid_node=built.grid_node,
        check=check,
    )


def _run_local(built: Built) -> SimulationResult:
    """Run each site separately, with its own users' jobs and its own discipline."""
    workload = built.workload
    held = _held(workload, built.live.around_ms)
    start_ms, end_ms = np.full((2, len(workload)), NEVER, np.int64)
    cancelled = np.zeros(len(workload), np.bool_)
    columns: dict[str, npt.NDArray[np.float64]] = {}
    own_metrics: dict[str, float] = {}
    refused: dict[int, str] = {}
    labels: list[Mapping[str, Sequence[str]]] = []
    for site, policy in enumerate(built.site_policies):
        rows = np.flatnonzero(built.home == site)
        if len(rows):
            done = _run_alone(held.take(rows), int(built.nodes[site]), policy, built.timezones[site])
            start_ms[rows], end_ms[rows], cancelled[rows] = done.start_ms, done.end_ms, done.cancelled
            refused |= dict(done.refused)
            labels.append(done.labels)
            for name, values in done.columns.items():
                columns.setdefault(name, np.zeros(len(workload)))[rows] = values
            own_metrics |= {f"{built.site_names[site]}.{name}": value for name, value in done.own_metrics.items()}
    placement = at_home(workload, built.home, start_ms != NEVER)
    more: dict[str, Any] = {"cancelled": cancelled, "columns": columns, "own_metrics": own_metrics}
    more["labels"] = labels[0] if labels and all(others == labels[0] for others in labels) else {}
    in_order = dict(sorted(refused.items()))
    return grid_result(workload, built.nodes, built.policy, start_ms, end_ms, placement, in_order, **more)


def _held(workload: Workload, around_ms: int) -> Workload:
    """Extend run times by the time for which jobs hold nodes before and after their work on a live grid."""
    if not around_ms:
        return workload
    return workload.replace(run_ms=np.minimum(workload.run_ms + around_ms, workload.estimate_ms))


def _run_alone(workload: Workload, nodes: int, policy: Policy, timezone: str | None) -> SimulationResult:
    """Run one site, in the site's own time zone if one is given."""
    workload = workload if timezone is None else workload.replace(timezone=timezone)
    if isinstance(policy, SharedNodes) and not all(name in workload.columns for name in RESOURCE_COLUMNS[:4]):
        # Jobs with unknown needs do not share nodes.
        policy = msgspec.structs.replace(policy, sharing=msgspec.structs.replace(policy.sharing, coscheduling="none"))
        unknown = np.ones(len(workload)), *np.zeros((2, len(workload))), np.ones(len(workload))
        columns = dict(zip(RESOURCE_COLUMNS[:4], unknown, strict=True))
        workload = workload.replace(columns={**workload.columns, **columns})
    return simulate_site(workload, nodes, policy)
