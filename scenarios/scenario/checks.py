"""What a scenario must fulfil beyond the types of its keys, as far as no workload is needed to tell.

What a scenario must fulfil to have a network between its sites, as far as its text alone tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from gridweave.errors import InputError, OptionError
from gridweave.grid.config.checks import (
    IDLE_NET,
    WITHOUT_NET,
    check_fragments,
    check_links,
    check_sites,
    checked,
    grid_decides_all,
    grid_policy,
)
from gridweave.grid.config.tables import Site
from gridweave.grid.config.toml import FileReport
from gridweave.netmodel.tables import CONTENTIONS, KeyPath
from gridweave.scenarios.results.metrics import Metrics
from gridweave.scenarios.scenario.tables import (
    DATA,
    HOMES,
    NET_KEYS,
    SPLITS,
    DataTable,
    FaultsTable,
    GridTable,
    NetworkTable,
    Scenario,
    Transformation,
    WorkloadTable,
)
from gridweave.scenarios.traces.resources import read_resources
from gridweave.scenarios.workload.columns import (
    AT_HOME,
    assign_resources,
    check_bytes,
    check_fraction,
    check_pattern,
    check_site,
)
from gridweave.scenarios.workload.estimates import with_estimates
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Faults, Network

IDLE = "the network is left out: no job is split and no data is moved under mode {}"


def contention_of(scenario: Scenario) -> str:
    """Return what jobs on the same links do to each other: what ``[grid]`` says, or else ``[net]``."""
    if scenario.grid.contention is not None:
        return scenario.grid.contention
    return "none" if scenario.net is None else scenario.net.contention


def without_idle_network(scenario: Scenario, report: FileReport) -> Scenario:
    """Leave out a network that nothing would use since the mode was changed from outside: one file compares modes.

    Parameters
    ----------
    report : FileReport
        Knows which keys were changed from outside.

    Returns
    -------
    Scenario
        Under a mode that splits no job and moves no data without ``[net]`` and all that is for it.
    """
    if scenario.net is None or ("grid", "mode") not in report.typed or not _is_idle(scenario):
        return scenario
    if not report.is_clean(("net",), ("workload", "communication"), ("workload", "data")):
        return scenario
    default = GridTable()
    grid = msgspec.structs.replace(scenario.grid, **{key: getattr(default, key) for key in NET_KEYS})
    sites = [msgspec.structs.replace(site, at=None) if isinstance(site, Site) else site for site in scenario.sites]
    workload = msgspec.structs.replace(scenario.workload, communication=None, data=None)
    return msgspec.structs.replace(scenario, net=None, grid=grid, sites=sites, workload=workload)


def check_network(scenario: Scenario, report: FileReport) -> None:
    """Check what a scenario says of its network, and whether the rest goes together with it.

    Parameters
    ----------
    report : FileReport
        Is told of every problem. The links themselves are looked at where they are read.
    """
    grid = scenario.grid
    for key, known in (("contention", CONTENTIONS), ("data", DATA)):
        value = getattr(grid, key)
        if value is not None and value not in known:
            report.add(("grid", key), f"{value!r} is not known; one of {', '.join(known)}")
    check_links(scenario.sites, grid, scenario.net, report)
    _check_communication(scenario, report)
    _check_data(scenario, report)
    if not report.is_clean(("net",)):
        return
    if scenario.net is None:
        for path, text in _without_net(scenario):
            report.add(path, text)
        return
    for path, text in _against_net(scenario):
        report.add(path, text)


def _is_idle(scenario: Scenario) -> bool:
    """Whether nothing would cross the network."""
    grid = scenario.grid
    if grid.mode == "local":
        data = scenario.workload.data or DataTable()
        return grid.data == "none" or (data.input_site == AT_HOME and data.output_site == AT_HOME)
    return grid.mode == "sharing" and grid.data == "none" and not is_in_world(scenario)


def _without_net(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Yield what a scenario without a network cannot have."""
    for key in ("contention", "data", "at"):
        value = getattr(scenario.grid, key)
        if value not in (None, "none"):
            yield ("grid", key), WITHOUT_NET.format(value)
    for key in ("communication", "data"):
        if getattr(scenario.workload, key) is not None:
            yield ("workload", key), "is of no use without a network; add the table [net], or leave this out"


def _against_net(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Yield what contradicts a network."""
    grid, net = scenario.grid, scenario.net
    assert net is not None
    if grid.mode == "local" and grid.data != "none":
        yield ("grid", "data"), f"is {grid.data!r}, and mode local moves no data: each site is by itself; say 'none'"
    elif _is_idle(scenario):
        yield ("net",), IDLE_NET.format(grid.mode)
    if grid.mode == "local" and grid.at is not None:
        yield ("grid", "at"), f"is {grid.at!r}, and under mode local there is no grid to be there; leave it out"
    if grid.contention is not None and net.contention not in ("none", grid.contention):
        yield (
            ("grid", "contention"),
            f"is {grid.contention!r}, and that of [net] is {net.contention!r}; leave out one of them",
        )
    if grid.data in ("blocking", "prefetch") and grid.backfill == "conservative":
        yield (
            ("grid", "data"),
            f"is {grid.data!r}, which does not go with reserved starts; backfill is easy or none",
        )
    if grid.data in ("blocking", "prefetch") and grid.control == "none" and grid.mode != "local":
        yield ("grid", "data"), f"is {grid.data!r}, and control 'none' knows of no links; say 'none' here too"
    if grid.data in ("blocking", "prefetch") and scenario.workload.data is None:
        yield ("grid", "data"), f"is {grid.data!r}, and jobs have no data; add [workload.data], or say 'none'"


def is_in_world(scenario: Scenario) -> bool:
    """Whether messages are sent between the grid and its sites when a scenario is run, and so cross its network.

    Returns
    -------
    bool
        What `gridweave.scenarios.scenario.build.Built.needs_world` comes to, as far as the text alone tells.
    """
    if scenario.grid.mode == "local":
        return False
    tables: tuple[tuple[msgspec.Struct, msgspec.Struct], ...] = (
        (scenario.network, NetworkTable()),
        (scenario.faults, FaultsTable()),
    )
    return (
        not grid_decides_all(scenario.sites, scenario.grid)
        or scenario.grid.at is not None
        or scenario.workload.to_grid != 1
        or any(
            # What lasts how long is of no account where nothing fails.
            getattr(table, key) != getattr(default, key) and not key.endswith("_lasts_ms")
            for table, default in tables
            for key in table.__struct_fields__
        )
    )


def _check_communication(scenario: Scenario, report: FileReport) -> None:
    table = scenario.workload.communication
    if table is None:
        return
    place = ("workload", "communication")
    _tell(report, place, partial(check_pattern, table.pattern))
    _tell(report, place, partial(check_fraction, table.fraction))
    _tell(report, place, partial(check_bytes, "message_bytes", table.message_bytes))


def _check_data(scenario: Scenario, report: FileReport) -> None:
    table = scenario.workload.data
    if table is None:
        return
    place = ("workload", "data")
    names = [site.name for site in scenario.sites if isinstance(site, Site)]
    sites_are_known = bool(names) and len(names) == len(scenario.sites)
    for key in ("input", "output"):
        size, site = getattr(table, f"{key}_bytes"), getattr(table, f"{key}_site")
        _tell(report, place, partial(check_bytes, f"{key}_bytes", size))
        if sites_are_known:
            _tell(report, place, partial(check_site, f"{key}_site", site, names))


def _tell(report: FileReport, place: KeyPath, check: Callable[[], object]) -> None:
    """FileReport what a check refuses."""
    try:
        check()
    except OptionError as error:
        report.add((*place, error.option), error.problem)


def with_resources(
    workload: Workload, resources: str, file: Path | None, rng: np.random.Generator, report: FileReport
) -> Workload:
    """Return a workload whose jobs say what they need beside nodes.

    Parameters
    ----------
    resources : str
        A mix, or a file as ``gridweave trace resources`` writes one.
    file : pathlib.Path or None
        The file that is meant, if it lies beside the scenario.
    report : FileReport
        Takes what is wrong, at ``workload.resources``; the workload is unchanged then.
    """
    try:
        if Path(resources).suffix:
            return read_resources(file or resources, workload)
        return assign_resources(workload, resources, rng)
    except OptionError as error:
        report.add(("workload", "resources"), error.problem)
    except InputError as error:
        report.add(("workload", "resources"), str(error))
    return workload


def check_scenario(scenario: Scenario, report: FileReport) -> None:
    """Check a scenario without its workload.

    Parameters
    ----------
    scenario : Scenario
        Sites and transformations that could not be read are UNSET.
    report : FileReport
        Is told of every problem.
    """
    check_sites(scenario.sites, report)
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
    """Return the sites that could be read."""
    return [site for site in scenario.sites if isinstance(site, Site)]


def _check_source(table: WorkloadTable, report: FileReport) -> None:
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


def _check_workload(table: WorkloadTable, report: FileReport) -> None:
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


def _check_home(scenario: Scenario, report: FileReport) -> None:
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
