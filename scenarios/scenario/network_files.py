"""A network by itself: out of a graph, a table ``[net]``, or a scenario, read as a simulation would read it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridweave.errors import InputError
from gridweave.netmodel.reading import read_table
from gridweave.netmodel.tables import NetTable, Problems
from gridweave.scenarios.scenario.catalogue import scenario_names
from gridweave.scenarios.scenario.networks import TOML, find_topology, read_network, text_of, with_source_of
from gridweave.scenarios.scenario.read import read_draft

if TYPE_CHECKING:
    from gridweave.netmodel.topology import Topology


def network_of_file(name: str) -> tuple[NetTable, Topology]:
    """Read a network.

    Parameters
    ----------
    name : str
        A file in GML or GraphML, or in TOML with a table ``[net]``; it, and the file that its table names, are looked
        for as `gridweave.scenarios.scenario.networks.find_topology` does. TOML with more tables is a scenario:
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
    network = read_network(draft)
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
