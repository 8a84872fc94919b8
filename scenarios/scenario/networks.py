"""The network of a scenario: where its file is found, and what a simulation takes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gridweave.errors import InputError
from gridweave.netmodel.problems import Path as Keys
from gridweave.netmodel.tables import AttachTable, NetTable
from gridweave.scenarios.scenario.network_checks import contention_of
from gridweave.scenarios.scenario.problems import Report
from gridweave.scenarios.scenario.reader import Draft
from gridweave.scenarios.scenario.structs import Scenario, Site
from gridweave.scenarios.scenario.topology_files import TOML, find_topology, text_of, with_source_of

if TYPE_CHECKING:
    from gridweave.netmodel.topology import Topology
    from gridweave.scenarios.grid_net import GridNet


@dataclass(frozen=True, slots=True)
class Network:
    """A network that has been read.

    Attributes
    ----------
    table : NetTable
        With the sites attached.
    topology : Topology
        Its sites are those of the scenario, in the same order.
    """

    table: NetTable
    topology: Topology

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the file left open and what was taken instead, for people."""
        return tuple(f"{Path(self.topology.name).name}: {remark}" for remark in self.topology.remarks)


def read_network(draft: Draft) -> Network | None:
    """Read the network of a scenario.

    Parameters
    ----------
    draft : Draft
        Its report is told of all that is wrong.

    Returns
    -------
    Network or None
        None if the scenario has none, or there is no telling what was meant.
    """
    from gridweave.netmodel.reading import build_topology

    scenario, report = draft.scenario, draft.report
    if scenario.net is None or not all(isinstance(site, Site) for site in scenario.sites):
        return None
    if not report.is_clean(("net", "nodes")):
        return None  # links and sites would seem to lead nowhere
    sites = [site for site in scenario.sites if isinstance(site, Site)]
    own: dict[str, str | AttachTable] = {site.name: site.at for site in sites if site.at is not None}
    table = msgspec.structs.replace(scenario.net, attach=own | scenario.net.attach)
    name = scenario.header.name or "net"
    places = {site.name: number for number, site in enumerate(sites) if site.at is not None}
    listener = _Listener(report, name, places)
    if table.file is not None and table.file.lower().endswith(TOML) and not (table.nodes or table.links):
        listener.file = table.file
        try:
            table = with_source_of(table, text_of(find_topology(table.file, draft.folder)))
        except InputError as error:
            report.add(("net", "file"), f"{listener.file}: {str(error).removeprefix(f'{listener.file}: ')}")
            return None
    names = list(dict.fromkeys(site.name for site in sites))
    topology = build_topology(table, name, lambda file: text_of(find_topology(file, draft.folder)), listener, names)
    return None if topology is None or not report.is_clean(("net",)) else Network(table, topology)


def grid_net(scenario: Scenario, network: Network, *, until_ms: int, rng: np.random.Generator) -> GridNet:
    """Return a network as the batch driver uses it.

    Parameters
    ----------
    scenario : Scenario
    network : Network
    until_ms : int
        No link fails by chance later.
    rng : numpy.random.Generator
        For the failures by chance.

    Returns
    -------
    GridNet
    """
    from gridweave.netmodel.changes import Timetable, all_changes
    from gridweave.netmodel.model import NetworkModel
    from gridweave.netmodel.problems import Problems
    from gridweave.scenarios.grid_net import GridNet

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


class _Listener:
    """Hears what is wrong with a network, and reports it where the scenario says it."""

    def __init__(self, report: Report, name: str, places: Mapping[str, int]) -> None:
        self.report, self.name, self.places = report, name, places
        self.file = ""
        self.is_whole = report.is_clean(("net", "links"))

    def add(self, path: Keys, text: str) -> None:
        """Note a problem with the key at a path within ``[net]``."""
        text = text.removeprefix(f"{self.name}: ")
        if not path and not self.is_whole:
            return  # it is in pieces since links are missing that could not be read
        if self.file and path[:1] in (("nodes",), ("links",), ("generator",)):
            self.report.add(("net", "file"), f"{self.file}: {text}")
        elif path[:1] == ("attach",) and len(path) > 1 and path[1] in self.places:
            self.report.add(("sites", self.places[str(path[1])], "at"), text)
        else:
            self.report.add(("net", *path), text)
