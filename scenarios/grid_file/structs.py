"""What GRID.toml says, as typed structs: the tables of a scenario, and what only a live grid has."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gridweave.netmodel.tables import NetTable
from gridweave.scenarios.scenario.tables import GridTable, Nodes, Site, SiteName

Ms = Annotated[int, Meta(ge=1, le=86_400_000)]
_Seconds = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1, le=2**40)]
_Port = Annotated[int, Meta(ge=0, le=65_535)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all tables: unknown keys are refused."""


class LiveSite(Site, frozen=True, kw_only=True):
    """One of ``[[sites]]``: as in a scenario, and what only a live one has.

    Attributes
    ----------
    machines : int
        On how many Ray nodes it is; its nodes are divided among them.
    virtual : bool
        Whether its nodes are only counted; otherwise each has cores of its machine for itself.
    journal : str
        URL of its journal; a file in the folder, if left out.
    """

    machines: Nodes = 1
    virtual: bool = True
    journal: str = ""


class MetaTable(GridTable, frozen=True, kw_only=True):
    """The table ``[grid]``: as in a scenario, and what a live meta-scheduler has.

    Attributes
    ----------
    margin_ms, retry_ms, lease_ms
        As for `gridweave.grid.service.cluster.GridPlan`.
    seed : int
        Of the selection ``random``.
    journal : str
        URL of the meta-scheduler's journal; a file in the folder, if left out.
    """

    margin_ms: Ms = 500
    retry_ms: Ms = 10_000
    lease_ms: Ms = 3_600_000
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    journal: str = ""


class LiveGridTable(MetaTable, frozen=True, kw_only=True):
    """The table ``[grid]`` of a whole grid: also what its sites have in common.

    Attributes
    ----------
    rendezvous_ms : int
        As for `gridweave.grid.service.cluster.GridPlan`.
    """

    rendezvous_ms: Ms = 30_000


class ProbesTable(Table, frozen=True, kw_only=True):
    """The table ``[probes]``: without it the ways between sites are not measured.

    Attributes
    ----------
    every_s, bandwidth_every_s : float
        As for `gridweave.site.service.probes.probing.ProbePlan`.
    """

    every_s: _Seconds = 60.0
    bandwidth_every_s: _Seconds = 3_600.0


class GatewayTable(Table, frozen=True, kw_only=True):
    """The table ``[gateway]``: where it listens, who may ask, and how much.

    Attributes
    ----------
    host : str
        Of the address that it listens at.
    port : int, optional
        0: any that is free. Left out: the usual one, or any other if that is taken.
    tokens : bool
        Whether who asks must have a token.
    cert, key : str, optional
        Files for TLS; relative to the file that names them.
    max_body_bytes, max_jobs, requests_per_s, burst, max_open_jobs
        Limits; those of the gateway if left out (docs/gateway.md).
    """

    host: str = "127.0.0.1"
    port: _Port | None = None
    tokens: bool = True
    cert: str | None = None
    key: str | None = None
    max_body_bytes: _Count | None = None
    max_jobs: _Count | None = None
    requests_per_s: _Seconds | None = None
    burst: _Seconds | None = None
    max_open_jobs: _Count | None = None

    def limits(self) -> dict[str, Any]:
        """Return the limits that are given, by their names."""
        names = ("max_body_bytes", "max_jobs", "requests_per_s", "burst", "max_open_jobs")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class RayTable(Table, frozen=True, kw_only=True):
    """The table ``[ray]``: the local Ray.

    Attributes
    ----------
    port : int
        Of its head; 0: any that is free.
    first_port : int, optional
        From which on ports are kept for the ranks of jobs to meet at, 200 for each machine.
    object_store_mb : int
        Memory of each of its nodes for objects; the grid itself puts none there.
    """

    port: _Port = 0
    first_port: Annotated[int, Meta(ge=1024, le=65_535)] | None = None
    object_store_mb: Annotated[int, Meta(ge=76, le=2**20)] = 80


class GridFile(Table, frozen=True, kw_only=True):
    """A whole GRID.toml.

    Attributes
    ----------
    sites : list of LiveSite
    name : str, optional
        Of the grid; ``--name`` goes before it.
    folder : str, optional
        Of journals, jobs and their output; one in the user's state folder if left out.
    grid : LiveGridTable
    net : NetTable, optional
        The links between the sites, from which the overhead of a split follows.
    probes : ProbesTable, optional
    gateway : GatewayTable
    ray : RayTable
    """

    sites: list[LiveSite]
    name: SiteName | None = None
    folder: str | None = None
    grid: LiveGridTable = msgspec.field(default_factory=LiveGridTable)
    net: NetTable | None = None
    probes: ProbesTable | None = None
    gateway: GatewayTable = msgspec.field(default_factory=GatewayTable)
    ray: RayTable = msgspec.field(default_factory=RayTable)
