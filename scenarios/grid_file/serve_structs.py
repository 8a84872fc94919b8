"""What a file of ``gridweave serve`` says, as typed structs: the grid's side, or one site (docs/serve.md)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gridweave.netmodel.tables import NetTable
from gridweave.scenarios.grid_file.structs import GatewayTable, LiveSite, MetaTable, Ms, RayTable, Table
from gridweave.scenarios.scenario.tables import Nodes, SiteName

_MOST_SITES = 1_000


class EndTable(Table, frozen=True, kw_only=True):
    """The other end of a link: the table ``[uplink]``, and what an entry of ``[[sites]]`` has of it.

    Attributes
    ----------
    url : str
        Of the other end's gateway.
    token_file, accepts_file : str
        Files of the secret that is sent there, and of those that are expected from there; relative to the file that
        names them, as all of these.
    ca : str, optional
        Certificates that are trusted in place of those of the system.
    cert, key : str, optional
        The certificate that is shown there, and its key.
    """

    url: str
    token_file: str
    accepts_file: str
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class FarSite(EndTable, frozen=True, kw_only=True):
    """One of ``[[sites]]`` of the grid's side: what the meta-scheduler knows of a site that is elsewhere.

    Attributes
    ----------
    name : str
    nodes, machines : int
        As in the site's own file.
    grid_share : float
        As in the site's own file.
    at : str, optional
        The node of the network at which it is attached.
    """

    name: SiteName
    nodes: Nodes
    machines: Nodes = 1
    grid_share: float = 1.0
    at: str | None = None


class ServedGridTable(MetaTable, frozen=True, kw_only=True):
    """The table ``[grid]`` of the grid's side.

    Attributes
    ----------
    journal_password_file : str, optional
        Of the password of the journal's database.
    """

    journal_password_file: str | None = None


class ServedGateway(GatewayTable, frozen=True, kw_only=True):
    """The table ``[gateway]``: as in GRID.toml, and what one has that runs as a service.

    Attributes
    ----------
    operator_token_file : str, optional
        Of a token that was made elsewhere, and may do everything.
    client_ca : str, optional
        Certificates by which the other ends of links are known, beside their secrets.
    """

    operator_token_file: str | None = None
    client_ca: str | None = None


class GridSide(Table, frozen=True, kw_only=True):
    """A whole file of the grid's side.

    Attributes
    ----------
    sites : list of FarSite
    folder : str
        Of the journal and of the tokens.
    name : str
    grid : ServedGridTable
    net : NetTable, optional
    gateway : ServedGateway
    """

    sites: list[FarSite]
    folder: str
    name: SiteName = "default"
    grid: ServedGridTable = msgspec.field(default_factory=ServedGridTable)
    net: NetTable | None = None
    gateway: ServedGateway = msgspec.field(default_factory=ServedGateway)


class OwnSite(LiveSite, frozen=True, kw_only=True):
    """The table ``[site]``: as an entry of ``[[sites]]`` in GRID.toml, and what a site has that is started alone.

    Attributes
    ----------
    number : int
        Its place among the sites of the grid, from 0; the numbers of its own users' jobs follow from it.
    rendezvous_ms : int
        As ``grid.rendezvous_ms`` of GRID.toml.
    host : str, optional
        By which name or address other sites reach its machine; if left out, the address by which it reaches the grid,
        or that which Ray has on a cluster that it joins.
    journal_password_file : str, optional
        Of the password of the journal's database.
    """

    number: Annotated[int, Meta(ge=0, lt=_MOST_SITES)]
    rendezvous_ms: Ms = 30_000
    host: str | None = None
    journal_password_file: str | None = None


class ServedRay(RayTable, frozen=True, kw_only=True):
    """The table ``[ray]``: as in GRID.toml, or where a cluster runs that is joined.

    Attributes
    ----------
    address : str, optional
        ``auto`` or HOST:PORT; a Ray of its own is started if it is left out.
    """

    address: str | None = None


class SiteSide(Table, frozen=True, kw_only=True):
    """A whole file of a site.

    Attributes
    ----------
    site : OwnSite
    folder : str
        Of the journal, jobs and their output, and of the tokens.
    name : str
        Of the grid.
    uplink : EndTable, optional
        The grid's side; a site without one serves its own users alone.
    gateway : ServedGateway
    ray : ServedRay
    """

    site: OwnSite
    folder: str
    name: SiteName = "default"
    uplink: EndTable | None = None
    gateway: ServedGateway = msgspec.field(default_factory=ServedGateway)
    ray: ServedRay = msgspec.field(default_factory=ServedRay)
