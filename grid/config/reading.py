"""Read GRID.toml and the files of ``gridweave serve``, and check each file as a whole."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from gridweave.errors import InputError, OptionError
from gridweave.grid.config.checks import (
    IDLE_NET,
    check_fragments,
    check_links,
    check_live_only,
    check_site,
    check_sites,
    grid_decides_all,
    grid_policy,
    usual_communication,
    usual_needs,
)
from gridweave.grid.config.networks import ReadNetwork, read_network
from gridweave.grid.config.tables import (
    FOUND,
    LAUNCHERS,
    TRUST,
    EndTable,
    FarSiteTable,
    GatewayTable,
    GridFile,
    LauncherTable,
    LiveGridTable,
    LiveSiteTable,
    LiveTimesTable,
    ServedGrid,
    ServedSite,
)
from gridweave.grid.config.toml import FileReport, convert_whole, parse_toml, text_of_file
from gridweave.netmodel.tables import KeyPath
from gridweave.site.disciplines.dictionary import DISCIPLINES

DEFAULT = "gridweave/default.toml"
"""The name of the shipped GRID.toml in messages."""

KINDS = ("site", "grid")
"""The kinds of ``gridweave serve`` files."""

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class ReadGrid:
    """A valid GRID.toml or ``gridweave serve`` file."""

    file: GridFile | ServedGrid | ServedSite
    network: ReadNetwork | None  # the links between the sites
    text: str  # the text of the file
    source: str  # the name of the file in messages
    base: str  # the folder to which paths in the file are relative; empty for the working directory

    @property
    def sites(self) -> list[LiveSiteTable]:
        """The sites, in the form of GRID.toml."""
        return list(_sites_of(self.file))

    @property
    def grid(self) -> LiveGridTable:
        """The table ``[grid]``; for a site's own file, only the keys that are allowed in a site's file are set."""
        return _grid_of(self.file)

    @property
    def live(self) -> LiveTimesTable:
        """The table ``[live]``; the default for a site's own file."""
        return LiveTimesTable() if isinstance(self.file, ServedSite) else self.file.live

    @property
    def folder(self) -> str:
        """The absolute path of the folder that the file names; empty if the file names no folder."""
        return "" if self.file.folder is None else self.placed(self.file.folder)

    @property
    def gateway(self) -> GatewayTable:
        """The table ``[gateway]``, with absolute paths."""
        return self.with_places(self.file.gateway)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Messages to the user about values that are missing in the network, and the defaults used instead."""
        return () if self.network is None else self.network.remarks

    def placed(self, path: str) -> str:
        """Return a path from the file as an absolute path."""
        try:
            return str((Path(self.base) / Path(path).expanduser()).absolute())
        except RuntimeError:
            raise InputError(f"{self.source}: {path}: this machine has no such user; write the absolute path") from None

    def with_places(self, table: T) -> T:
        """Return a table with its file paths made absolute."""
        named = {name: getattr(table, name) for name in table.__struct_fields__ if name in _FILES}
        return msgspec.structs.replace(
            table, **{name: self.placed(path) for name, path in named.items() if path is not None}
        )


_FILES = (
    "cert",
    "key",
    "ca",
    "client_ca",
    "operator_token_file",
    "scraper_token_file",
    "audit",
    "token_file",
    "accepts_file",
)


def default_text() -> str:
    """Return the text of the shipped GRID.toml, which is the default of ``gridweave up``."""
    return _shipped("default.toml")


def example_text(kind: str) -> str:
    """Return an example of a ``gridweave serve`` file; `kind` is one of `KINDS`."""
    return _shipped(f"serve_{kind}.toml")


def _shipped(name: str) -> str:
    return (importlib.resources.files("gridweave.grid.config") / name).read_text("utf-8")


def read_grid(path: str | Path | None) -> ReadGrid:
    """Read and check a GRID.toml; without a path, the one shipped with gridweave.

    Raise ScenarioError with all problems, each with file, line and field.

    Examples
    --------
    >>> grid = read_grid(None)
    >>> [(site.name, site.nodes) for site in grid.sites]
    [('alpha', 8), ('beta', 6), ('gamma', 4)]
    """
    if path is None:
        return grid_of_text(default_text(), DEFAULT, "")
    return grid_of_text(*_file_text(path, "`gridweave up --example` prints one"))


def grid_of_text(text: str, source: str, base: str) -> ReadGrid:
    """Read a GRID.toml from its text; errors call the file `source`, and paths in it are relative to `base`."""
    raw, report = parse_toml(source, text)
    return _read(raw, GridFile, report, text, base)


def read_service(path: str | Path) -> ReadGrid:
    """Read and check a ``gridweave serve`` file, with the same errors as `read_grid`."""
    return service_of_text(*_file_text(path, "`gridweave serve --example site` prints one"))


def service_of_text(text: str, source: str, base: str) -> ReadGrid:
    """Read a ``gridweave serve`` file from its text; parameters as for `grid_of_text`.

    Examples
    --------
    >>> service_of_text(example_text("site"), "alpha.toml", "").file.site.name
    'alpha'
    """
    raw, report = parse_toml(source, text)
    if ("site" in raw) == ("sites" in raw):
        problem = "has both [site] and [[sites]]" if "site" in raw else "has neither [site] nor [[sites]]"
        report.add((), f"{problem}; a site's file has the first, the grid's file the second")
        report.raise_if_any()
    if "sites" in raw:
        return _read(raw, ServedGrid, report, text, base)
    return _read(raw, ServedSite, report, text, base)


def _file_text(path: str | Path, right: str) -> tuple[str, str, str]:
    """Return a file's text, name and folder; the error for a missing file ends with the hint ``right``."""
    file = Path(path)
    try:
        there = file.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise InputError(f"{path}: {'is not a file' if file.exists() else 'there is no such file'}; {right}")
    return text_of_file(file), str(path), str(file.absolute().parent)


def _sites_of(file: GridFile | ServedGrid | ServedSite) -> list[Any]:
    """Return the sites, in the form of GRID.toml; UNSET for a site that could not be read."""
    if isinstance(file, ServedSite):
        return [file.site]
    return [site.as_live() if isinstance(site, FarSiteTable) else site for site in file.sites]


def _grid_of(file: GridFile | ServedGrid | ServedSite) -> LiveGridTable:
    if isinstance(file, ServedSite):
        same = ("rendezvous_ms", "alone_ms", "history_days", "output_days", "output_bytes")
        return LiveGridTable(**{name: getattr(file.site, name) for name in same})
    return file.grid


def _read(
    raw: dict[str, Any],
    kind: type[GridFile] | type[ServedGrid] | type[ServedSite],
    report: FileReport,
    text: str,
    base: str,
) -> ReadGrid:
    for (table, key), message in kind.refused.items():
        # `data = "none"` is what a live grid does anyway, so accept it.
        if key in (there := _table(raw, table)) and (key, there.pop(key)) != ("data", "none"):
            report.add((table, key) if table else (key,), message)
    file = convert_whole(raw, kind, report, kind.replaced)
    sites, grid = _sites_of(file), _grid_of(file)
    _check_grid(grid, report)
    _check_gateway(file.gateway, report)
    net = None
    if isinstance(file, ServedSite):
        _check_own_site(file, report)
    else:
        net = file.net
        check_sites(sites, report)
        for number, site in enumerate(sites):
            if isinstance(site, LiveSiteTable):
                _check_live_site(site, ("sites", number), report)
        check_live_only(sites, grid.control, report)
        _check_net(file, sites, report)
        for number, site in enumerate(file.sites):
            if isinstance(site, FarSiteTable):
                _check_end(site, ("sites", number), report)
    if file.folder is not None and not file.folder.strip():
        report.add(("folder",), "is empty; name a folder" + ", or leave it out" * (kind is GridFile))
    network = read_network(sites, net, file.name or "grid", Path(base) if base else None, report)
    report.raise_if_any()
    return ReadGrid(file, network, text, report.source, base)


def _table(raw: dict[str, Any], name: str) -> dict[str, Any]:
    table = raw.get(name) if name else raw
    return table if isinstance(table, dict) else {}


def _check_grid(grid: LiveGridTable, report: FileReport) -> None:
    check_fragments(grid, report)
    policy = grid_policy(grid, report)
    usual_communication(grid, report)
    usual_needs(grid, report)
    if policy.mode == "local":
        report.add(("grid", "mode"), "is 'local', where there is no grid; give sharing, multi-site or adaptive")


def _check_live_site(site: LiveSiteTable, key: KeyPath, report: FileReport) -> None:
    if site.machines > site.node_count and report.is_clean((*key, "kinds")):
        report.add((*key, "machines"), f"is {site.machines}; from 1 to its {site.node_count} nodes")
    _check_launcher(site.launcher, (*key, "launcher"), report)
    entry, launcher = DISCIPLINES.get(site.discipline), site.launcher
    if entry is not None and entry.lender is not None:
        table = site.options.get(entry.table_key)
        for name, problem in entry.lender.launcher_problems(table, launcher.kind, launcher.trust):
            report.add((*key, "launcher", name), problem)


def _check_launcher(table: LauncherTable, key: KeyPath, report: FileReport) -> None:
    for name, values in (("kind", LAUNCHERS), ("trust", TRUST)):
        if getattr(table, name) not in values:
            report.add((*key, name), f"is {getattr(table, name)!r}; one of {', '.join(values)}")
    if table.kind == "user" and not table.socket.startswith("/"):
        report.add(
            (*key, "socket"), "must be the path at which the launcher listens, as '/run/gridweave/launcher.sock'"
        )
    if table.kind == "user" and table.trust == "all":
        report.add((*key, "trust"), "is for kind = 'self'; under 'user' the launcher's own file lists the users")
    if table.kind == "self" and table.socket:
        report.add((*key, "socket"), "is for kind = 'user'; give that, or no socket")


def _check_net(file: GridFile | ServedGrid, sites: list[Any], report: FileReport) -> None:
    if not report.is_clean(("sites",)):
        return
    check_links(sites, file.grid, file.net, report)
    if file.net is None:
        return
    # Input and output data matter even on a single site, except with conservative backfilling.
    no_data = file.grid.backfill == "conservative"
    if file.grid.mode == "sharing" and no_data and grid_decides_all(sites, file.grid):
        report.add(("net",), IDLE_NET.format(file.grid.mode))
    if file.net.changes or file.net.contention != "none":
        key = "changes" if file.net.changes else "contention"
        report.add(
            ("net", key), "has an effect only in simulations; leave it out (on live grids [probes] measures the links)"
        )


def _check_own_site(file: ServedSite, report: FileReport) -> None:
    if isinstance(file.site, LiveSiteTable):  # UNSET if it could not be read
        check_site(file.site, ("site",), report)
        if file.site.kinds == FOUND:
            right = "list the kinds; `gridweave up --show-machine` prints those of a machine"
            report.add(("site", "kinds"), f"is {FOUND!r}, which is only for GRID.toml; {right}")
        _check_live_site(file.site, ("site",), report)
    if file.uplink is not None:
        _check_end(file.uplink, ("uplink",), report)
    if file.site.host is not None and file.site.machines > 1:
        report.add(("site", "host"), "names one machine, but the site has several; leave it out")
    if file.ray.address is not None and not file.ray.address.strip():
        report.add(("ray", "address"), "is empty; write auto, HOST:PORT, or leave it out for a Ray of its own")


def _check_end(end: EndTable, place: KeyPath, report: FileReport) -> None:
    try:
        parts = urlsplit(end.url)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        is_fine = is_fine and not (parts.query or parts.fragment or parts.username or parts.path.strip("/"))
    except ValueError:
        is_fine = False
    if not is_fine:
        report.add((*place, "url"), f"{end.url!r} is not the address of a gateway; write for example https://host:8765")
    elif end.url.startswith("http:"):
        for key in ("ca", "cert", "key"):
            if getattr(end, key) is not None:
                report.add((*place, key), "is for TLS, but the url says http; write https")
    _check_pair(end, place, "a certificate needs its key", report)
    for key in ("token_file", "accepts_file"):
        if not getattr(end, key).strip():
            report.add((*place, key), "is empty; name a file with a secret of 32 characters or more")


def _check_gateway(gateway: GatewayTable, report: FileReport) -> None:
    place = ("gateway",)
    _check_pair(gateway, place, "TLS needs a certificate and its key", report)
    if gateway.client_ca is not None and gateway.cert is None:
        report.add((*place, "client_ca"), "is given without cert and key; client certificates need TLS")
    for key in ("operator_token_file", "scraper_token_file"):
        if getattr(gateway, key) is not None and not gateway.tokens:
            report.add((*place, key), "is given, but tokens = false; leave one of them out")
    try:
        # The gateway checks the TLS files when it starts.
        plain = gateway.plain_http or gateway.cert is not None
        GatewayTable(host=gateway.host, tokens=gateway.tokens, plain_http=plain).settings("tokens.db")
    except OptionError as error:
        report.add((*place, error.option), error.problem)


def _check_pair(table: EndTable | GatewayTable, place: KeyPath, why: str, report: FileReport) -> None:
    if (table.cert is None) != (table.key is None):
        present, missing = ("cert", "key") if table.key is None else ("key", "cert")
        report.add((*place, present), f"is given without {missing}; {why}")
