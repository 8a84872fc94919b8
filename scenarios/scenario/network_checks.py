"""What a scenario must fulfil to have a network between its sites, as far as its text alone tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from gridweave.errors import OptionError
from gridweave.netmodel.tables import CONTENTIONS
from gridweave.scenarios.communication_columns import (
    AT_HOME,
    check_bytes,
    check_fraction,
    check_pattern,
    check_site,
)
from gridweave.scenarios.scenario.problems import Report
from gridweave.scenarios.scenario.structs import (
    DATA,
    NET_KEYS,
    SITES_OF_SPLITS,
    DataTable,
    FaultsTable,
    GridTable,
    NetworkTable,
    Scenario,
    Site,
)
from gridweave.scenarios.scenario.toml_lines import KeyPath

IDLE = "the network is left out: no job is split and no data is moved under mode {}"


def contention_of(scenario: Scenario) -> str:
    """Return what jobs on the same links do to each other: what ``[grid]`` says, or else ``[net]``."""
    if scenario.grid.contention is not None:
        return scenario.grid.contention
    return "none" if scenario.net is None else scenario.net.contention


def without_idle_network(scenario: Scenario, report: Report) -> Scenario:
    """Leave out a network that nothing would use since the mode was changed from outside: one file compares modes.

    Parameters
    ----------
    scenario : Scenario
    report : Report
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


def check_network(scenario: Scenario, report: Report) -> None:
    """Check what a scenario says of its network, and whether the rest goes together with it.

    Parameters
    ----------
    scenario : Scenario
    report : Report
        Is told of every problem. The links themselves are looked at where they are read.
    """
    grid = scenario.grid
    for key, known in (("split", SITES_OF_SPLITS), ("contention", CONTENTIONS), ("data", DATA)):
        value = getattr(grid, key)
        if value is not None and value not in known:
            report.add(("grid", key), f"{value!r} is not known; one of {', '.join(known)}")
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
    default = GridTable()
    for key in NET_KEYS:
        value = getattr(scenario.grid, key)
        if value not in (getattr(default, key), "none"):
            yield ("grid", key), f"is {value!r}, and there is no network; add the table [net], or leave this out"
    for key in ("communication", "data"):
        if getattr(scenario.workload, key) is not None:
            yield ("workload", key), "is of no use without a network; add the table [net], or leave this out"
    for number, site in enumerate(scenario.sites):
        if isinstance(site, Site) and site.at is not None:
            yield ("sites", number, "at"), "is a node of no network; add the table [net], or leave this out"


def _against_net(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Yield what contradicts a network."""
    grid, net = scenario.grid, scenario.net
    assert net is not None
    if grid.mode == "local" and grid.data != "none":
        yield ("grid", "data"), f"is {grid.data!r}, and mode local moves no data: each site is by itself; say 'none'"
    elif _is_idle(scenario):
        right = "leave it out, or choose the mode multi-site or adaptive"
        yield ("net",), f"is of no use under mode {grid.mode}, which splits no job, with no data to move; {right}"
    if grid.mode == "local" and grid.at is not None:
        yield ("grid", "at"), f"is {grid.at!r}, and under mode local there is no grid to be there; leave it out"
    if grid.overhead != GridTable().overhead:
        yield (
            ("grid", "overhead"),
            "stands beside [net], from which the overhead of each split follows; leave out one of them",
        )
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
    for number, site in enumerate(scenario.sites):
        if isinstance(site, Site) and site.at is not None and site.name in net.attach:
            yield ("sites", number, "at"), f"stands beside net.attach.{site.name}; leave out one of them"


def is_in_world(scenario: Scenario) -> bool:
    """Whether messages are sent between the grid and its sites when a scenario is run, and so cross its network.

    Parameters
    ----------
    scenario : Scenario

    Returns
    -------
    bool
        What `gridweave.scenarios.scenario.build.Built.needs_world` comes to, as far as the text alone tells.
    """
    if scenario.grid.mode == "local":
        return False
    sites = [site for site in scenario.sites if isinstance(site, Site)]
    tables: tuple[tuple[msgspec.Struct, msgspec.Struct], ...] = (
        (scenario.network, NetworkTable()),
        (scenario.faults, FaultsTable()),
    )
    return (
        scenario.grid.control != "full"
        or scenario.grid.at is not None
        or scenario.workload.to_grid != 1
        or any(site.grid_share != 1 or site.own_users_first or site.discipline == "lomarc" for site in sites)
        or any(
            # What lasts how long is of no account where nothing fails.
            getattr(table, key) != getattr(default, key) and not key.endswith("_lasts_ms")
            for table, default in tables
            for key in table.__struct_fields__
        )
    )


def _check_communication(scenario: Scenario, report: Report) -> None:
    table = scenario.workload.communication
    if table is None:
        return
    place = ("workload", "communication")
    _tell(report, place, partial(check_pattern, table.pattern))
    _tell(report, place, partial(check_fraction, table.fraction))
    _tell(report, place, partial(check_bytes, "message_bytes", table.message_bytes))


def _check_data(scenario: Scenario, report: Report) -> None:
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


def _tell(report: Report, place: KeyPath, check: Callable[[], object]) -> None:
    """Report what a check refuses."""
    try:
        check()
    except OptionError as error:
        report.add((*place, error.option), error.problem)
