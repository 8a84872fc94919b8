"""GRID.toml, read and checked as a whole, and made into the grid that is to be started."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridweave.errors import InputError
from gridweave.scenarios.grid_file.structs import GridFile, LiveSite
from gridweave.scenarios.scenario.checks import check_fragments, check_network, check_sites, grid_policy, site_policy
from gridweave.scenarios.scenario.problems import ProblemReport
from gridweave.scenarios.scenario.read import BROKEN, Draft, convert_table, parse_toml, text_of_file
from gridweave.scenarios.scenario.tables import Header, Scenario, WorkloadTable

if TYPE_CHECKING:
    from gridweave.grid.service.cluster import GridPlan
    from gridweave.scenarios.scenario.networks import ScenarioNetwork

DEFAULT = "gridweave/default.toml"
"""What the file is called that ships."""

_SIMULATED = {"data": "none", "contention": None, "at": None}
"""Keys of ``[grid]`` that count in simulation alone, and what they are without it."""


@dataclass(frozen=True, slots=True)
class ReadGrid:
    """A GRID.toml that has been read and found good.

    Attributes
    ----------
    file : GridFile
    network : ScenarioNetwork or None
        The links between the sites.
    text : str
        What the file says.
    source : str
        Where it is; for people.
    base : str
        The folder from which paths in it count; empty: none.
    """

    file: GridFile
    network: ScenarioNetwork | None
    text: str
    source: str
    base: str

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the file left open and what was taken instead, for people."""
        return () if self.network is None else self.network.remarks


def default_text() -> str:
    """Return the GRID.toml that ships, which is started where none is named."""
    return (importlib.resources.files("gridweave.scenarios") / "grid_file" / "default.toml").read_text("utf-8")


def read_grid(path: str | Path | None) -> ReadGrid:
    """Read a GRID.toml, and check all of it.

    Parameters
    ----------
    path : str, pathlib.Path or None
        None: the one that ships.

    Raises
    ------
    ScenarioError
        With all that is wrong, each with file, line and field.
    InputError
        If there is no such file.

    Examples
    --------
    >>> grid = read_grid(None)
    >>> [(site.name, site.nodes) for site in grid.file.sites]
    [('alpha', 8), ('beta', 6), ('gamma', 4)]
    """
    if path is None:
        return grid_of_text(default_text(), DEFAULT, "")
    return grid_of_text(*file_text(path, "`gridweave up --example` prints one"))


def file_text(path: str | Path, right: str) -> tuple[str, str, str]:
    """Return the text of a file, what it is called, and its folder.

    Parameters
    ----------
    right : str
        Where there is a file to begin with.

    Raises
    ------
    InputError
        If there is no such file.
    """
    file = Path(path)
    try:
        there = file.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise InputError(f"{path}: {'is not a file' if file.exists() else 'there is no such file'}; {right}")
    return text_of_file(file), str(path), str(file.absolute().parent)


def grid_of_text(text: str, source: str, base: str) -> ReadGrid:
    """Read a GRID.toml from its text.

    Parameters
    ----------
    source : str
        What errors call it.
    base : str
        The folder from which paths in it count; empty: none.

    Raises
    ------
    ScenarioError
        With all that is wrong.
    """
    raw, report = parse_toml(source, text)
    file = convert_table(raw, GridFile, (), report)
    if file is BROKEN:
        left = {name: value for name, value in raw.items() if not report.stands_at((name,))}
        file = convert_table({"sites": []} | left, GridFile, (), report)
    return checked_grid(file, report, text, source, base)


def checked_grid(file: GridFile, report: ProblemReport, text: str, source: str, base: str) -> ReadGrid:
    """Check what has been read of a grid, as far as it could be.

    Parameters
    ----------
    report : ProblemReport
        With what is wrong so far.
    text, source, base : str
        As for `grid_of_text`.

    Raises
    ------
    ScenarioError
        With all that is wrong.
    """
    from gridweave.scenarios.scenario.networks import read_network

    sites: list[Any] = list(file.sites)
    whole = [site for site in sites if isinstance(site, LiveSite)]
    draft = Draft(_as_scenario(file), report, Path(base) if base else None)
    _check(file, whole, draft.scenario, report)
    network = read_network(draft) if len(whole) == len(file.sites) else None
    report.raise_if_any()
    return ReadGrid(file, network, text, source, base)


def _as_scenario(file: GridFile) -> Scenario:
    """Return the scenario of the same grid, for the checks that both need; a site that could not be read is UNSET."""
    header = Header(name=file.name or "grid")
    return Scenario(sites=list(file.sites), workload=WorkloadTable(), header=header, grid=file.grid, net=file.net)


def _check(file: GridFile, sites: list[LiveSite], scenario: Scenario, report: ProblemReport) -> None:
    check_sites(scenario, report)
    check_fragments(file.grid, report)
    policy = grid_policy(file.grid, report)
    if report.is_clean(("sites",)):
        check_network(scenario, report)
    if policy.mode == "local":
        report.add(("grid", "mode"), "is 'local', and then there is no grid; sharing, multi-site or adaptive")
    for key, without in _SIMULATED.items():
        if getattr(file.grid, key) != without:
            report.add(("grid", key), "counts in simulation alone; leave it out")
    if file.net is not None and (file.net.changes or file.net.contention != "none"):
        key = "changes" if file.net.changes else "contention"
        report.add(("net", key), "counts in simulation alone; leave it out ([probes] measures what links are like)")
    for number, site in enumerate(file.sites):
        if site in sites and site.machines > site.nodes:
            report.add(("sites", number, "machines"), f"is {site.machines}; from 1 to its {site.nodes} nodes")
    if (file.gateway.cert is None) != (file.gateway.key is None):
        given, missing = ("cert", "key") if file.gateway.key is None else ("key", "cert")
        report.add(("gateway", given), f"is given without {missing}; TLS needs a certificate and its key")
    if file.folder is not None and not file.folder.strip():
        report.add(("folder",), "is empty; name a folder, or leave it out")


def plan_of(grid: ReadGrid, *, folder: str, namespace: str, labelled: bool, first_port: int, secret: bytes) -> GridPlan:
    """Return the grid that is to be started.

    Parameters
    ----------
    folder, namespace, labelled, first_port
        As for `GridPlan`.
    secret : bytes
        By which the sites know each other when they probe.
    """
    from gridweave.grid.control.links import GridNetwork
    from gridweave.grid.service.cluster import GridPlan, SitePlan
    from gridweave.netmodel.model import NetworkModel
    from gridweave.scenarios.batch.grid_network import STAGINGS
    from gridweave.scenarios.scenario.build import owner_policy
    from gridweave.site.service.probes.probing import ProbePlan

    file, table = grid.file, grid.file.grid
    network = None
    if grid.network is not None:
        model = NetworkModel.of_table(grid.network.table, grid.network.topology)
        network = GridNetwork(model, table.split == "earliest-end", STAGINGS[table.data], table.exact_up_to)
    sites = tuple(
        SitePlan(
            name=site.name,
            nodes=site.nodes,
            machines=site.machines,
            virtual=site.virtual,
            policy=site_policy(site, table),
            owner=owner_policy(site),
            journal=site.journal,
        )
        for site in file.sites
    )
    return GridPlan(
        folder=folder,
        sites=sites,
        policy=grid_policy(table),
        namespace=namespace,
        labelled=labelled,
        journal=table.journal,
        seed=table.seed,
        margin_ms=table.margin_ms,
        retry_ms=table.retry_ms,
        lease_ms=table.lease_ms,
        rendezvous_ms=table.rendezvous_ms,
        network=network,
        probes=None
        if file.probes is None
        else ProbePlan(secret=secret, every_s=file.probes.every_s, bandwidth_every_s=file.probes.bandwidth_every_s),
        first_port=first_port,
    )
