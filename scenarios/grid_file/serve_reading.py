"""A file of ``gridweave serve``, read and checked as a whole, and made into the service that is to run."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from gridweave.grid.service.local_gateway import GatewayPlan
from gridweave.scenarios.grid_file.reading import ReadGrid, checked_grid, file_text, plan_of
from gridweave.scenarios.grid_file.serve_structs import EndTable, FarSite, GridSide, OwnSite, ServedGateway, SiteSide
from gridweave.scenarios.grid_file.structs import GridFile, LiveGridTable, LiveSite, MetaTable
from gridweave.scenarios.grid_file.wanted import placed
from gridweave.scenarios.scenario.problems import ProblemReport
from gridweave.scenarios.scenario.read import BROKEN, convert_table, parse_toml
from gridweave.site.service.calls import NAMESPACE
from gridweave.site.service.link import LinkEnd

if TYPE_CHECKING:
    from gridweave.grid.service.serve import GridService, SiteService

KINDS = ("site", "grid")

FIRST_PORT, PORTS_OF_A_SITE = 20_000, 1_000
"""From which port on the ranks of jobs meet, and how many ports are kept for each site."""

_MOST_PLACES = 44


@dataclass(frozen=True, slots=True)
class ReadService:
    """A file of serve that has been read and found good.

    Attributes
    ----------
    file : GridSide or SiteSide
    grid : ReadGrid
        What a GRID.toml would say of the same; of a site, it alone.
    source, base : str
        The file, and the folder from which paths in it count.
    """

    file: GridSide | SiteSide
    grid: ReadGrid
    source: str
    base: str

    @property
    def folder(self) -> str:
        """Of its state."""
        return placed(self.file.folder, self.base)


class _OfOneSite(ProblemReport):
    """A report of a file with one site: what is said of the first of ``[[sites]]`` is of ``[site]``."""

    def add(self, path: Any, text: str) -> None:
        """Note a problem with the key at a path."""
        super().add(("site", *path[2:]) if path[:1] == ("sites",) else path, text)


def example_text(kind: str) -> str:
    """Return a file to begin with.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    """
    return (importlib.resources.files("gridweave.scenarios") / "grid_file" / f"serve_{kind}.toml").read_text("utf-8")


def read_service(path: str | Path) -> ReadService:
    """Read a file of serve, and check all of it.

    Raises
    ------
    ScenarioError
        With all that is wrong, each with file, line and field.
    InputError
        If there is no such file.
    """
    return service_of_text(*file_text(path, "`gridweave serve --example site` prints one"))


def service_of_text(text: str, source: str, base: str) -> ReadService:
    """Read a file of serve from its text.

    Parameters
    ----------
    source : str
        What errors call it.
    base : str
        The folder from which paths in it count.

    Raises
    ------
    ScenarioError
        With all that is wrong.

    Examples
    --------
    >>> service_of_text(example_text("site"), "alpha.toml", "").file.site.name
    'alpha'
    """
    raw, report = parse_toml(source, text)
    if ("site" in raw) == ("sites" in raw):
        said = "has both [site] and [[sites]]" if "site" in raw else "has neither [site] nor [[sites]]"
        report.add((), f"{said}; a site has the first, the grid's side the second")
        report.raise_if_any()
    if "sites" in raw:
        return _grid_side(raw, report, text, source, base)
    return _site_side(raw, _OfOneSite(report.source, report.lines), text, source, base)


def _converted(raw: dict[str, Any], kind: type[Any], report: ProblemReport, lost: dict[str, Any]) -> Any:
    """Return what a file says; what could not be read is as if it were not there, and has been told."""
    file = convert_table(raw, kind, (), report)
    if file is not BROKEN:
        return file
    left = {name: value for name, value in raw.items() if not report.stands_at((name,))}
    found = convert_table({"folder": "/"} | lost | left, kind, (), report)
    if found is BROKEN:
        report.raise_if_any()
    return found


def _grid_side(raw: dict[str, Any], report: ProblemReport, text: str, source: str, base: str) -> ReadService:
    file: GridSide = _converted(raw, GridSide, report, {"sites": []})
    found: list[Any] = list(file.sites)
    sites = [_as_live(site) if isinstance(site, FarSite) else site for site in found]
    for number, site in enumerate(found):
        if isinstance(site, FarSite):
            _check_end(site, ("sites", number), report)
    _check_gateway(file.gateway, report)
    table = LiveGridTable(**{name: getattr(file.grid, name) for name in MetaTable.__struct_fields__})
    whole = GridFile(sites=sites, name=file.name, folder=file.folder, grid=table, net=file.net, gateway=file.gateway)
    return ReadService(file, checked_grid(whole, report, text, source, base), source, base)


def _as_live(site: FarSite) -> LiveSite:
    return LiveSite(name=site.name, nodes=site.nodes, machines=site.machines, grid_share=site.grid_share, at=site.at)


def _site_side(raw: dict[str, Any], report: ProblemReport, text: str, source: str, base: str) -> ReadService:
    file: SiteSide = _converted(raw, SiteSide, report, {})
    own = file.site
    if file.uplink is not None:
        _check_end(file.uplink, ("uplink",), report)
    _check_gateway(file.gateway, report)
    if own.host is not None and own.machines > 1:
        report.add(("site", "host"), "names one machine, and the site has several; leave it out")
    if own.at is not None:
        report.add(("site", "at"), "counts at the grid's side; leave it out")
    if file.ray.address is not None and not file.ray.address.strip():
        report.add(("ray", "address"), "is empty; write auto, HOST:PORT, or leave it out for a Ray of its own")
    names = LiveSite.__struct_fields__
    site = LiveSite(**{name: getattr(own, name) for name in names if name != "at"})
    table = LiveGridTable(rendezvous_ms=own.rendezvous_ms)
    whole = GridFile(sites=[site], name=file.name, folder=file.folder, grid=table, gateway=file.gateway)
    return ReadService(file, checked_grid(whole, report, text, source, base), source, base)


def _check_end(end: EndTable, place: tuple[Any, ...], report: ProblemReport) -> None:
    """Check how the other end of a link is reached."""
    try:
        parts = urlsplit(end.url)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        is_fine = is_fine and not (parts.query or parts.fragment or parts.username or parts.path.strip("/"))
    except ValueError:
        is_fine = False
    if not is_fine:
        report.add((*place, "url"), f"{end.url!r} is no address of a gateway; write for example https://host:8765")
    elif end.url.startswith("http:"):
        for key in ("ca", "cert", "key"):
            if getattr(end, key) is not None:
                report.add((*place, key), "is for TLS, and the url says http; write https")
    if (end.cert is None) != (end.key is None):
        given, missing = ("cert", "key") if end.key is None else ("key", "cert")
        report.add((*place, given), f"is given without {missing}; a certificate needs its key")
    for key in ("token_file", "accepts_file"):
        if not getattr(end, key).strip():
            report.add((*place, key), "is empty; name a file with a secret of 32 characters or more")


def _check_gateway(gateway: ServedGateway, report: ProblemReport) -> None:
    from gridweave.errors import OptionError
    from gridweave.grid.gateway.settings import GatewaySettings

    if gateway.client_ca is not None and gateway.cert is None:
        report.add(("gateway", "client_ca"), "is given without cert and key; without TLS nobody shows a certificate")
    if gateway.operator_token_file is not None and not gateway.tokens:
        report.add(("gateway", "operator_token_file"), "stands beside tokens = false; leave one of them out")
    try:
        GatewaySettings(host=gateway.host, tokens="tokens.db" if gateway.tokens else None)
    except OptionError as error:
        report.add(("gateway", error.option), error.problem)


# -- what is to run


def _gateway_plan(gateway: ServedGateway, base: str) -> GatewayPlan:
    files = ("cert", "key", "client_ca", "operator_token_file")
    named = {name: getattr(gateway, name) for name in files}
    return GatewayPlan(
        host=gateway.host,
        port=gateway.port,
        tokens=gateway.tokens,
        limits=gateway.limits(),
        **{name: None if value is None else placed(value, base) for name, value in named.items()},
    )


def _end(end: EndTable, site: str, base: str) -> LinkEnd:
    files = {name: getattr(end, name) for name in ("ca", "cert", "key")}
    return LinkEnd(
        site=site,
        url=end.url.rstrip("/"),
        token_file=placed(end.token_file, base),
        **{name: None if value is None else placed(value, base) for name, value in files.items()},
    )


def grid_service(read: ReadService) -> GridService:
    """Return the grid's side that is to run.

    Parameters
    ----------
    read : ReadService
        Of the grid's side.
    """
    from gridweave.grid.service.cluster import agents_of
    from gridweave.grid.service.serve import FarSitePlan, GridService

    file, base = read.file, read.base
    assert isinstance(file, GridSide), "a site is no grid"
    plan = plan_of(read.grid, folder=read.folder, namespace="", labelled=False, first_port=FIRST_PORT, secret=b"")
    password = file.grid.journal_password_file
    return GridService(
        folder=read.folder,
        settings=plan.settings(),
        sites=tuple(
            FarSitePlan(
                end=_end(site, site.name, base),
                accepts_file=placed(site.accepts_file, base),
                machines=tuple(agent.name for agent in agents_of(each, FIRST_PORT)),
            )
            for site, each in zip(file.sites, plan.sites, strict=True)
        ),
        gateway=_gateway_plan(file.gateway, base),
        journal=plan.journal or str(Path(read.folder) / "grid.journal"),
        password_file="" if password is None else placed(password, base),
    )


def site_service(read: ReadService) -> SiteService:
    """Return the site that is to run.

    Parameters
    ----------
    read : ReadService
        Of a site.
    """
    from gridweave.grid.service.serve import SiteService

    file, base = read.file, read.base
    assert isinstance(file, SiteSide), "the grid's side is no site"
    own: OwnSite = file.site
    first_port = file.ray.first_port or FIRST_PORT + own.number % _MOST_PLACES * PORTS_OF_A_SITE
    plan = plan_of(read.grid, folder=read.folder, namespace="", labelled=False, first_port=first_port, secret=b"")
    password = own.journal_password_file
    return SiteService(
        folder=read.folder,
        plan=plan.sites[0],
        settings=msgspec.structs.replace(plan.site_settings(0), number=own.number),
        namespace=f"{NAMESPACE}-{own.name}",
        gateway=_gateway_plan(file.gateway, base),
        uplink=None if file.uplink is None else _end(file.uplink, own.name, base),
        accepts_file="" if file.uplink is None else placed(file.uplink.accepts_file, base),
        host=own.host or "",
        password_file="" if password is None else placed(password, base),
        address=file.ray.address,
        ray_port=file.ray.port,
        store_bytes=file.ray.object_store_mb << 20,
    )
