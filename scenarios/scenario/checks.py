"""What a scenario must fulfil beyond the types of its keys, as far as no workload is needed to tell."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np

from gridweave.errors import OptionError
from gridweave.grid.policy import LIMITED_FRAGMENTS, GridPolicy
from gridweave.scenarios.estimates import with_estimates
from gridweave.scenarios.metrics import Metrics
from gridweave.scenarios.scenario.network_checks import check_network
from gridweave.scenarios.scenario.problems import Report
from gridweave.scenarios.scenario.sharing import shared_nodes
from gridweave.scenarios.scenario.structs import (
    FRAGMENT_TABLES,
    HOMES,
    SPLITS,
    GridTable,
    Scenario,
    SharingTable,
    Site,
    Transformation,
    WorkloadTable,
)
from gridweave.scenarios.workload import MAX_WIDTH, Workload
from gridweave.scenarios.world.network import Faults, Network
from gridweave.site.disciplines.lomarc import SharedNodes
from gridweave.site.owner import OwnerPolicy
from gridweave.site.policy import SitePolicy

T = TypeVar("T", Network, Faults)
S = TypeVar("S", GridPolicy, Network, Faults)


def check_scenario(scenario: Scenario, report: Report) -> None:
    """Check a scenario without its workload.

    Parameters
    ----------
    scenario : Scenario
        Sites and transformations that could not be read are UNSET.
    report : Report
        Is told of every problem.
    """
    check_sites(scenario, report)
    _check_source(scenario.workload, report)
    _check_workload(scenario.workload, report)
    _check_home(scenario, report)
    check_fragments(scenario.grid, report)
    grid_policy(scenario.grid, report)
    checked(Network, scenario.network, ("network",), report)
    checked(Faults, scenario.faults, ("faults",), report)
    check_network(scenario, report)
    if not 0 <= scenario.workload.to_grid <= 1:
        report.add(("workload", "to_grid"), f"is {scenario.workload.to_grid}; a part of the jobs, from 0 to 1")
    for number, metric in enumerate(scenario.output.metrics):
        if metric not in Metrics.__struct_fields__:
            report.add(("output", "metrics", number), f"{metric!r} is no metric; docs/metrics.md names them")


def sites_of(scenario: Scenario) -> list[Site]:
    """Return the sites that could be read.

    Parameters
    ----------
    scenario : Scenario

    Returns
    -------
    list of Site
    """
    return [site for site in scenario.sites if isinstance(site, Site)]


def grid_policy(table: GridTable, report: Report | None = None) -> GridPolicy:
    """Return the policy of a grid.

    Parameters
    ----------
    table : GridTable
    report : Report, optional
        Is told of each value that is refused, which then has its default; without it the first one is an error.

    Returns
    -------
    GridPolicy

    Raises
    ------
    OptionError
        If a value is refused, and there is no report.
    """
    values: dict[str, Any] = {name: getattr(table, name) for name in GridPolicy.__struct_fields__}
    rows = table.max_fragments
    if isinstance(rows, str):
        rows = list(LIMITED_FRAGMENTS) if rows == "limited" else []
    values["max_fragments"] = tuple(rows)
    if isinstance(table.overhead, list):
        values["overhead"] = tuple(table.overhead)
    return _made(GridPolicy, values, ("grid",), report)


def checked(kind: type[T], table: msgspec.Struct, place: tuple[str, ...], report: Report | None = None) -> T:
    """Return what a table says as the struct that is used, which checks its values itself.

    Parameters
    ----------
    kind : type
        The struct, with the fields of the table.
    table : Struct
    place : tuple of str
        Where the table stands.
    report : Report, optional
        Is told of each value that is refused, which then has its default; without it the first one is an error.

    Raises
    ------
    OptionError
        If a value is refused, and there is no report.
    """
    return _made(kind, {name: getattr(table, name) for name in kind.__struct_fields__}, place, report)


def _made(kind: type[S], values: dict[str, Any], place: tuple[str, ...], report: Report | None) -> S:
    """Return a struct of these values; where there is a report, of those that it takes, one by one."""
    if report is None:
        return kind(**values)
    kept = {}
    for name, value in values.items():
        try:
            kind(**{name: value})
            kept[name] = value
        except OptionError as error:
            report.add((*place, name), error.problem)
    return kind(**kept)


def site_policy(site: Site, grid: GridTable) -> SitePolicy | SharedNodes:
    """Return how a site schedules by itself.

    Parameters
    ----------
    site : Site
    grid : GridTable
        For what the site leaves open.

    Returns
    -------
    SitePolicy or SharedNodes

    Raises
    ------
    OptionError
        If its options are not known, or do not go together.
    """
    if site.discipline == "lomarc":
        if site.order is not None:
            raise OptionError("order", f"{site.order!r} is not for a lomarc site: jobs stand there by class and age")
        return shared_nodes(site.sharing or SharingTable(), site.nodes, site.backfill or grid.backfill)
    if site.sharing is not None:
        raise OptionError("sharing", f"is for the discipline lomarc, and this site has {site.discipline!r}")
    return SitePolicy(
        discipline=site.discipline, order=site.order or grid.order, backfill=site.backfill or grid.backfill
    )


def check_sites(scenario: Scenario, report: Report) -> None:
    """Check the sites of a scenario, as far as they could be read.

    Parameters
    ----------
    scenario : Scenario
    report : Report
        Is told of every problem.
    """
    if not scenario.sites and not report.stands_at(("sites",)):
        report.add(("sites",), "is empty; a grid has at least one site")
    seen: set[str] = set()
    for number, site in enumerate(scenario.sites):
        if not isinstance(site, Site):
            continue
        if site.name in seen:
            report.add(("sites", number, "name"), f"{site.name!r} is the name of another site too; each has its own")
        seen.add(site.name)
        try:
            OwnerPolicy(grid_share=site.grid_share)
        except OptionError as error:
            report.add(("sites", number, "grid_share"), error.problem)
        # One by one, since the first that is wrong hides the others.
        alone = Site(name=site.name, nodes=site.nodes)
        changes: list[dict[str, Any]] = [{"order": site.order}]
        if site.discipline == "lomarc":
            changes = [{"order": site.order, "discipline": "lomarc"}]
        changes.append({"discipline": site.discipline, "backfill": site.backfill, "sharing": site.sharing})
        for changed in changes:
            try:
                site_policy(msgspec.structs.replace(alone, **changed), GridTable())
            except OptionError as error:
                table = ("sharing",) if error.option in SharingTable.__struct_fields__ else ()
                report.add(("sites", number, *table, error.option), error.problem)
    if sum(site.nodes for site in sites_of(scenario)) > MAX_WIDTH:
        report.add(("sites",), f"have more than {MAX_WIDTH} nodes together")


def _check_source(table: WorkloadTable, report: Report) -> None:
    at = ("workload",)
    if report.stands_at(at) or not report.is_clean((*at, "trace"), (*at, "generator")):
        return
    if table.trace is None and table.generator is None:
        report.add(at, "has no source; give trace or generator")
    elif table.trace is not None and table.generator is not None:
        report.add((*at, "generator"), "stands beside a trace; give one of them")
    elif table.generator is not None:
        if table.jobs is None and report.is_clean((*at, "jobs")):
            report.add((*at, "jobs"), "is missing; say how many jobs the generator is to make")
    else:
        for name in ("jobs", "load"):
            if getattr(table, name) is not None:
                report.add((*at, name), "is for a generator, and this workload is a trace; cut, shrink or stretch it")


def _check_workload(table: WorkloadTable, report: Report) -> None:
    none = np.zeros(0, np.int64)
    try:
        with_estimates(Workload(none, none, none, none, none), table.estimates, np.random.default_rng(0))
    except OptionError as error:
        report.add(("workload", "estimates"), error.problem)
    steps: list[object] = list(table.transform)
    for number, step in enumerate(steps):
        if not isinstance(step, Transformation):
            continue
        place = ("workload", "transform", number)
        if len(step.named) != 1 and report.is_clean(place):
            wrong = f"has {' and '.join(step.named)}" if step.named else "is empty"
            report.add(place, f"{wrong}; a transformation is one of cut, shrink, stretch and split")
        if isinstance(step.split, str) and step.split not in SPLITS:
            report.add((*place, "split"), f"{step.split!r} is no width; give a number of nodes, {' or '.join(SPLITS)}")


def _check_home(scenario: Scenario, report: Report) -> None:
    home, place = scenario.workload.home, ("workload", "home")
    if isinstance(home, str):
        if home not in HOMES:
            report.add(place, f"{home!r} is not known; give {' or '.join(HOMES)}, or shares such as {{alpha = 0.6}}")
        return
    names = list(dict.fromkeys(site.name for site in sites_of(scenario)))
    sites_are_known = bool(names) and len(sites_of(scenario)) == len(scenario.sites)
    for name, share in home.items():
        if name not in names and sites_are_known:
            report.add((*place, name), f"there is no site {name!r}; there are {', '.join(names)}")
        if not np.isfinite(share):
            report.add((*place, name), f"is {share}; a share is a number from 0 up")
    if not sum(home.values()) > 0:
        report.add(place, "gives no site a share above 0")


def check_fragments(table: GridTable, report: Report) -> None:
    """Check how the table of fragments is named.

    Parameters
    ----------
    table : GridTable
    report : Report
        Is told of every problem.
    """
    rows = table.max_fragments
    if isinstance(rows, str) and rows not in FRAGMENT_TABLES:
        report.add(
            ("grid", "max_fragments"),
            f"{rows!r} is not known; give {' or '.join(FRAGMENT_TABLES)}, or pairs of (width up to, fragments)",
        )
