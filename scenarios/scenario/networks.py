"""The network of a scenario, what a simulation takes of it, and a network by itself, read as a simulation would."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gridweave.errors import InputError
from gridweave.grid.config.networks import TOML, ReadNetwork, find_topology, read_network, text_of, with_source_of
from gridweave.netmodel.reading import read_table
from gridweave.netmodel.tables import NetTable, Problems
from gridweave.scenarios.scenario.catalogue import scenario_names
from gridweave.scenarios.scenario.checks import contention_of
from gridweave.scenarios.scenario.read import Draft, read_draft
from gridweave.scenarios.scenario.tables import Scenario

if TYPE_CHECKING:
    from gridweave.netmodel.topology import Topology
    from gridweave.scenarios.batch.grid_network import GridNet


def network_of(draft: Draft) -> ReadNetwork | None:
    """Read the network of a scenario; its report is told of all that is wrong."""
    scenario = draft.scenario
    name = scenario.header.name or "net"
    return read_network(scenario.sites, scenario.net, name, draft.folder, draft.report)


def grid_net(scenario: Scenario, network: ReadNetwork, *, until_ms: int, rng: np.random.Generator) -> GridNet:
    """Return a network as the batch driver uses it.

    Parameters
    ----------
    until_ms : int
        No link fails by chance later.
    rng : numpy.random.Generator
        For the failures by chance.
    """
    from gridweave.netmodel.changes import Timetable, all_changes
    from gridweave.netmodel.model import NetworkModel
    from gridweave.netmodel.tables import Problems
    from gridweave.scenarios.batch.grid_network import GridNet

    problems = Problems(network.topology.name)
    changes = all_changes(network.table, network.topology, until_ms=until_ms, rng=rng, report=problems)
    problems.raise_if_any()
    return GridNet(
        model=NetworkModel.of_table(network.table, network.topology),
        timetable=Timetable.of(network.topology, changes) if changes else None,
        contention=contention_of(scenario),
        split=scenario.grid.split,
        data=scenario.grid.data,
        exact_up_to=scenario.grid.exact_up_to,
    )


def network_of_file(name: str) -> tuple[NetTable, Topology]:
    """Read a network.

    Parameters
    ----------
    name : str
        A file in GML or GraphML, or in TOML with a table ``[net]``; it, and the file that its table names, are looked
        for as `gridweave.grid.config.networks.find_topology` does. TOML with more tables is a scenario:
        its sites are at the nodes that their ``at`` says. Or the name of a scenario in the catalogue.

    Raises
    ------
    ScenarioError
        With all that is wrong.
    InputError
        If there is no such file, or no network in it.
    """
    from gridweave.netmodel.reading import parse_network

    if name in scenario_names() and not Path(name).exists():
        return _of_scenario(name)
    path = find_topology(name)
    text = text_of(path)
    if path.suffix.lower() != TOML:
        return parse_network(text, name if Path(name).suffix else str(path), str)
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: is no TOML: {' '.join(str(error).split())}") from None
    if not isinstance(raw.get("net"), dict):
        raise InputError(f"{name}: has no table [net]")
    return _of_table(raw["net"], name, path.parent) if set(raw) == {"net"} else _of_scenario(path)


def _of_scenario(source: str | Path) -> tuple[NetTable, Topology]:
    draft = read_draft(source)
    network = network_of(draft)
    draft.report.raise_if_any()
    if network is None:
        raise InputError(": ".join((str(source), *(draft.remarks or ("has no table [net]",)))))
    return network.table, network.topology


def _of_table(raw: dict[str, Any], name: str, folder: Path) -> tuple[NetTable, Topology]:
    from gridweave.netmodel.reading import build_topology

    problems = Problems(name)
    table = read_table(raw, problems)
    if table.file is not None and table.file.lower().endswith(TOML) and not (table.nodes or table.links):
        try:
            table = with_source_of(table, text_of(find_topology(table.file, folder)))
        except InputError as error:
            raise InputError(f"{name}: file: {table.file}: {str(error).removeprefix(f'{table.file}: ')}") from None
    topology = build_topology(table, name, lambda file: text_of(find_topology(file, folder)), problems)
    problems.raise_if_any()
    assert topology is not None
    return table, topology
