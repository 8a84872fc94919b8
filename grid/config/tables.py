"""What GRID.toml and the files of serve say, as typed structs; the tables of sites and grids are those of scenarios.

Which keys count where is told by `GridFile`, `ServedGrid` and `ServedSite`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from gridweave.grid.config.gateway import GatewaySettings, IssuerSettings
from gridweave.grid.config.toml import NAME_PATTERN
from gridweave.grid.kernels.links import MAX_SPLIT_FACTOR
from gridweave.grid.policy import (
    ALL_SELECTIONS,
    BACKFILLS,
    CONTROLS,
    HEAD_RESERVATIONS,
    MAX_RESERVE_AFTER_S,
    MODES,
    RESERVE_AFTER_S,
)
from gridweave.netmodel.communication import PROFILES
from gridweave.netmodel.tables import EXACT_UP_TO, NetTable
from gridweave.site.disciplines.dictionary import DISCIPLINES
from gridweave.site.job import MAX_WIDTH
from gridweave.site.kernels.order import ORDERS
from gridweave.site.launch import KEEP_OUTPUT, Limits, OutputLimits
from gridweave.site.maxima import NO_MAXIMA, Maxima
from gridweave.site.policy import BACKFILLS as SITE_BACKFILLS

SITES_OF_SPLITS = ("fewest", "earliest-end")
FRAGMENT_TABLES = ("limited", "unlimited")
MAX_INT = 2**63 - 1
_MAX_SITES = 1_000


def one_of(names: tuple[str, ...], description: str) -> Meta:
    """Return what tells an editor the names; the reader refuses others with a message of its own."""
    return Meta(description=description, extra_json_schema={"enum": list(names)})


SiteName = Annotated[str, Meta(description="Letters, digits, hyphens and underscores.", pattern=NAME_PATTERN)]
Nodes = Annotated[int, Meta(ge=1, le=MAX_WIDTH, description="Number of nodes.")]
Order = Annotated[str, one_of(tuple(ORDERS), "Order of the queue.")]
Backfill = Annotated[str, one_of(SITE_BACKFILLS["queue"], "Backfilling of the site under mode local.")]
_PROFILE = Meta(description=f"A profile ({', '.join(PROFILES)}), or fraction=0.2,pattern=ring,message=1MB.")
USUAL_PROFILE = "light"
"""What jobs of a live grid are taken to send if neither they nor the grid say anything: traffic is not free."""

_Ms = Annotated[int, Meta(ge=1, le=86_400_000)]
_Days = Annotated[int, Meta(ge=1, le=36_500)]
_Seconds = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1, le=2**40)]
_Port = Annotated[int, Meta(ge=0, le=65_535)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all tables: unknown keys are refused."""


# The tables in which disciplines have further options of a site: a field each, called as the dictionary says.
if TYPE_CHECKING:
    _DisciplineTables = Table
else:
    _DisciplineTables = msgspec.defstruct(
        "_DisciplineTables",
        [(entry.table_key, entry.table | None, None) for entry in DISCIPLINES.values() if entry.table is not None],
        bases=(Table,),
        frozen=True,
        kw_only=True,
    )


class Site(_DisciplineTables, frozen=True, kw_only=True):
    """One of ``[[sites]]``: these keys, and the tables of the disciplines.

    Attributes
    ----------
    name : str
    nodes : int
    discipline, order, backfill : str, optional
        How the site schedules by itself (mode ``local``, limited or no control, its own users), as in
        `gridweave.site.policy.SitePolicy`; order and backfilling are those of ``[grid]`` if left out. Under full
        control a site only starts what the grid decides.
    grid_share : float
        Part of the nodes that jobs of the grid may hold at one time.
    own_users_first : bool
        Whether the owner's users stand ahead of delegated jobs in the site's queue.
    at : str, optional
        The node of the network at which it is attached; as an entry of ``[net.attach]``.
    timezone : str, optional
        IANA name of the site's time zone, for windows of the week; that of the trace (simulated) or UTC (live) if left
        out.
    """

    name: SiteName
    nodes: Nodes
    discipline: Annotated[str, one_of(tuple(DISCIPLINES), "How the site schedules by itself.")] = "queue"
    order: Order | None = None
    backfill: Backfill | None = None
    grid_share: Annotated[float, Meta(description="Part of the nodes that the grid may have, 0 to 1.")] = 1.0
    own_users_first: Annotated[bool, Meta(description="Whether the site's own users go ahead of delegated jobs.")] = (
        False
    )
    at: Annotated[str, Meta(description="Node of the network at which the site is attached.")] | None = None
    timezone: Annotated[str, Meta(description="IANA name of its time zone, e.g. Europe/Berlin.")] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What was given of how the site schedules: order, backfilling, and the tables of disciplines."""
        tables = (entry.table_key for entry in DISCIPLINES.values() if entry.table is not None)
        return {name: getattr(self, name) for name in ("order", "backfill", *tables)}

    @property
    def shares_nodes(self) -> bool:
        """Whether several jobs may be on one of its nodes."""
        return self.discipline in DISCIPLINES and DISCIPLINES[self.discipline].traits.shares_nodes

    @property
    def has_forms(self) -> bool:
        """Whether its machines differ, and jobs may have forms there."""
        return self.discipline in DISCIPLINES and DISCIPLINES[self.discipline].traits.forms


LAUNCHERS = ("self", "user")
TRUST = ("owner", "all")


class LauncherTable(Table, frozen=True, kw_only=True):
    """The table ``launcher`` of a live site: as whom its machines run jobs, whose, and within which limits.

    Attributes
    ----------
    kind : str
        ``self``: as the service itself; ``user``: as the Unix users that the launcher of the machine says.
    trust : str
        Whose jobs are taken under ``self``: those of the ``owner``, who starts the site, or of ``all``.
    socket : str
        Where the launcher listens on each machine; for ``user``.
    memory_mb, processes : int, optional
        What a job may use for each node: MiB of memory; processes and threads.
    cpus : float, optional
        Processors for each node.
    """

    kind: Annotated[str, one_of(LAUNCHERS, "As whom jobs run.")] = "self"
    trust: Annotated[str, one_of(TRUST, "Whose jobs are run as the service itself.")] = "owner"
    socket: str = ""
    memory_mb: _Count | None = None
    cpus: _Seconds | None = None
    processes: _Count | None = None

    @property
    def limits(self) -> Limits:
        """What a job may use on each node."""
        memory_bytes = None if self.memory_mb is None else self.memory_mb << 20
        return Limits(memory_bytes=memory_bytes, cpus=self.cpus, processes=self.processes)

    @property
    def words(self) -> str:
        """What `status` says of it; nothing of a site that runs jobs of its owner alone."""
        if self.kind == "user":
            return "jobs run as their own users"
        return "trust = all: jobs of all users run as the owner" if self.trust == "all" else ""


class LiveSiteTable(Site, frozen=True, kw_only=True):
    """One of ``[[sites]]`` of GRID.toml: as in a scenario, and what only a live one has."""

    machines: Nodes = 1  # on how many Ray nodes it is; its nodes are divided among them
    virtual: bool = True  # whether its nodes are only counted; otherwise each has cores of its machine for itself
    journal: str = ""  # URL of its journal; a file in the folder, if left out
    launcher: LauncherTable = LauncherTable()


class OwnSiteTable(LiveSiteTable, frozen=True, kw_only=True):
    """The table ``[site]`` of a site that is served alone: as in GRID.toml, and what only such a one has."""

    # Its place among the sites of the grid, from 0; the numbers of its own users' jobs follow from it.
    number: Annotated[int, Meta(ge=0, lt=_MAX_SITES)]
    # As ``grid.rendezvous_ms``, ``grid.alone_ms`` and ``grid.history_days`` of GRID.toml.
    rendezvous_ms: _Ms = 30_000
    alone_ms: _Ms = 1_500
    history_days: _Days = 90
    # As ``grid.output_days`` and ``grid.output_bytes`` of GRID.toml.
    output_days: _Days = KEEP_OUTPUT.days
    output_bytes: _Count = KEEP_OUTPUT.bytes_per_user
    # By which name or address other sites reach its machine; if left out, the address by which it reaches the grid, or
    # that which Ray has on a cluster that it joins.
    host: str | None = None
    journal_password_file: str | None = None  # of the password of the journal's database


class EndTable(Table, frozen=True, kw_only=True):
    """The other end of a link: the table ``[uplink]``, and what an entry of ``[[sites]]`` has of it."""

    url: str  # of the other end's gateway
    # Files of the secret that is sent there, and of those that are expected from there; relative to the file that names
    # them, as all of these.
    token_file: str
    accepts_file: str
    ca: str | None = None  # certificates that are trusted in place of those of the system
    # The certificate that is shown there, and its key.
    cert: str | None = None
    key: str | None = None


class FarSiteTable(EndTable, frozen=True, kw_only=True):
    """One of ``[[sites]]`` of the grid's side: what the meta-scheduler knows of a site that is elsewhere."""

    name: SiteName
    # As in the site's own file.
    nodes: Nodes
    machines: Nodes = 1
    grid_share: float = 1.0
    at: str | None = None  # the node of the network at which it is attached

    def as_live(self) -> LiveSiteTable:
        """Return what GRID.toml would say of this site."""
        return LiveSiteTable(
            name=self.name, nodes=self.nodes, machines=self.machines, grid_share=self.grid_share, at=self.at
        )


class TuningTable(Table, frozen=True, kw_only=True):
    """How the grid tunes the order of its queue: as `gridweave.grid.policy.GridTuning`.

    Attributes
    ----------
    policies : list of str, or str
        The orders; as one text with a plus between them.
    decider, preferred, tuning : str
    slackness_pct : float
    """

    policies: list[str] | str = "fcfs+sjf+ljf"
    decider: Annotated[str, one_of(("advanced", "simple", "preferred"), "Who chooses the order.")] = "advanced"
    preferred: str | None = None
    tuning: Annotated[str, one_of(("full", "half"), "After what the order is decided anew.")] = "full"
    slackness_pct: Annotated[float, Meta(description="By how much another order must be better.")] = 0.0


class PolicyTable(Table, frozen=True, kw_only=True):
    """What ``[grid]`` says everywhere: as `gridweave.grid.policy.GridPolicy`, with names for the tables of fragments.

    With ``[net]`` there are beside (docs/netmodel.md)

    Attributes
    ----------
    split : str
        Which sites a split job goes to: the fewest, or those where it ends earliest.
    exact_up_to : int
        For the earliest end: if a job can be placed in no more ways than this, all are looked at.
    max_split_factor : float
        A split that makes a job longer by a larger factor is not made.
    """

    mode: Annotated[str, one_of(MODES, "How jobs come to sites.")] = "adaptive"
    control: Annotated[str, one_of(CONTROLS, "How much the grid has to say.")] = "full"
    order: Order = "fcfs"
    backfill: Annotated[str, one_of(BACKFILLS, "Backfilling.")] = "easy"
    head_reservation: Annotated[
        str, one_of(tuple(HEAD_RESERVATIONS), "What the first in the queue reserves under easy.")
    ] = "anywhere"
    selection: Annotated[str, one_of(ALL_SELECTIONS, "Of a single site, or of the sites of all jobs that wait.")] = (
        "best-fit"
    )
    overhead: (
        Annotated[float, Meta(description="0.3: a split job takes 30% longer.")]
        | Annotated[
            list[float],
            Meta(description="In 2, 3, ... fragments; the last one holds for more.", extra_json_schema={"minItems": 1}),
        ]
    ) = 0.0
    lower_bound: Annotated[int, Meta(description="Jobs that are split are wider than this.", le=MAX_WIDTH)] = 0
    max_fragments: (
        Annotated[str, one_of(FRAGMENT_TABLES, "Streit, Table 7.5.")]
        | list[tuple[Annotated[int, Meta(ge=1, le=MAX_INT)], Annotated[int, Meta(ge=1, le=MAX_INT)]]]
    ) = "unlimited"
    tuning: TuningTable | None = None
    reserve_after_s: Annotated[
        float,
        Meta(
            description="Limited control: sites reserve ahead for a job wider than any after so long a wait.",
            ge=0,
            le=MAX_RESERVE_AFTER_S,
        ),
    ] = RESERVE_AFTER_S
    split: Annotated[str, one_of(SITES_OF_SPLITS, "Which sites a split job goes to, with [net].")] = "earliest-end"
    exact_up_to: Annotated[
        int, Meta(description="More placements of a job than this are not all looked at.", ge=0, le=MAX_INT)
    ] = EXACT_UP_TO
    max_split_factor: Annotated[
        float, Meta(description="No split makes a job take more times as long, with [net].")
    ] = MAX_SPLIT_FACTOR


class UsualCommunicationTable(Table, frozen=True, kw_only=True):
    """The table ``[grid.communication]``: what jobs are taken to send that say nothing of it, by class and by user.

    Each is the name of a profile, or a text such as ``fraction=0.2,pattern=ring,message=1MB`` (docs/netmodel.md).
    """

    default: Annotated[str, _PROFILE] = USUAL_PROFILE
    by_class: dict[str, Annotated[str, _PROFILE]] = {}
    by_user: dict[str, Annotated[str, _PROFILE]] = {}


class UsualNeedsTable(Table, frozen=True, kw_only=True):
    """The table ``[grid.resources]``: the needs assumed of jobs that do not state any, by class and by user.

    Each value is a text such as ``cpu=0.6,network=0.3,disk=0.1,memory=0.5`` (docs/sharing.md); empty means unknown.
    """

    default: str = ""
    by_class: dict[str, str] = {}
    by_user: dict[str, str] = {}
    disk: str = "200 MB/s"  # what the disk of a node reads or writes; by that it is learnt what jobs of a class need


class LiveGridTable(PolicyTable, frozen=True, kw_only=True):
    """The table ``[grid]`` of a live grid: as in a scenario, and what a live meta-scheduler has."""

    # What jobs are taken to send between their nodes that say nothing of it, with [net].
    communication: UsualCommunicationTable | Annotated[str, _PROFILE] = USUAL_PROFILE

    resources: UsualNeedsTable | str = ""  # what jobs need of shared nodes that do not say it; empty: nothing is known

    # As for `gridweave.grid.service.cluster.GridPlan`.
    margin_ms: _Ms = 500
    retry_ms: _Ms = 10_000
    lease_ms: _Ms = 3_600_000
    rendezvous_ms: _Ms = 30_000
    alone_ms: _Ms = 1_500
    history_days: _Days = 90
    # How long machines keep the output of ended jobs, and how much of each user on each machine.
    output_days: _Days = KEEP_OUTPUT.days
    output_bytes: _Count = KEEP_OUTPUT.bytes_per_user
    seed: Annotated[int, Meta(ge=0, le=MAX_INT)] = 0  # of the selection ``random``
    journal: str = ""  # URL of the meta-scheduler's journal; a file in the folder, if left out
    journal_password_file: str | None = None  # of the password of the journal's database

    @property
    def output(self) -> OutputLimits:
        """How long machines keep the output of ended jobs."""
        return OutputLimits(days=self.output_days, bytes_per_user=self.output_bytes)


class LiveTimesTable(Table, frozen=True, kw_only=True):
    """The table ``[live]``: what processes take, for forecasts; what is left out, the last jobs tell."""

    # As for `gridweave.grid.meta.settings.GridSettings`.
    start_ms: Annotated[int, Meta(ge=0, le=86_400_000)] | None = None
    end_ms: Annotated[int, Meta(ge=0, le=86_400_000)] | None = None


class ProbesTable(Table, frozen=True, kw_only=True):
    """The table ``[probes]``: without it the ways between sites are not measured."""

    # As for `gridweave.site.service.prober.ProbePlan`.
    every_s: _Seconds = 60.0
    bandwidth_every_s: _Seconds = 3_600.0


class GatewayTable(Table, frozen=True, kw_only=True):
    """The table ``[gateway]``: where it listens, who may ask, and how much."""

    host: str = "127.0.0.1"  # of the address that it listens at
    # 0: any that is free. Left out: the usual one, or, of a grid on one machine, any other if that is taken.
    port: _Port | None = None
    tokens: bool = True  # whether who asks must have a token
    # Files for TLS; relative to the file that names them.
    cert: str | None = None
    key: str | None = None
    plain_http: bool = False  # whether tokens may come without TLS from other machines
    client_ca: str | None = None  # certificates by which the other ends of links are known, beside their secrets
    # Of tokens that were made elsewhere: one that may do everything, and one that may only read.
    operator_token_file: str | None = None
    scraper_token_file: str | None = None
    issuer: IssuerSettings | None = None  # whose tokens are taken beside the gateway's own
    audit: str | None = None  # a file for what tokens and operators did; left out: beside the tokens
    # Limits; those of the gateway if left out (docs/gateway.md).
    max_body_bytes: _Count | None = None
    max_jobs: _Count | None = None
    requests_per_s: _Seconds | None = None
    burst: _Seconds | None = None
    max_open_jobs: _Count | None = None
    max_connections: _Count | None = None
    max_connections_per_address: _Count | None = None
    failed_logins_per_minute: _Seconds | None = None

    def settings(self, tokens: str) -> GatewaySettings:
        """Return how the gateway is set up; tokens are kept at that place, if there are any."""
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name in _SETTINGS}
        given = {name: value for name, value in given.items() if value is not None}
        return GatewaySettings(tokens=tokens if self.tokens else None, **given)


_SETTINGS = set(GatewaySettings.__struct_fields__) - {"tokens"}


class RayTable(Table, frozen=True, kw_only=True):
    """The table ``[ray]``: the local Ray, or where a cluster runs that a site joins."""

    port: _Port = 0  # of its head; 0: any that is free
    # From which on ports are kept for the ranks of jobs to meet at, 200 for each machine.
    first_port: Annotated[int, Meta(ge=1024, le=65_535)] | None = None
    # Whether each machine of a site has a Ray node of its own, which may go without the others, or all share the head.
    nodes: Literal["one", "machine"] = "one"
    # Memory of each of its nodes for objects; the grid itself puts none there.
    object_store_mb: Annotated[int, Meta(ge=76, le=2**20)] = 80
    address: str | None = None  # ``auto`` or HOST:PORT; a Ray of its own is started if it is left out

    @property
    def store_bytes(self) -> int:
        """Memory of each of its nodes for objects."""
        return self.object_store_mb << 20


Refused = dict[tuple[str, str], str]
"""Keys that count elsewhere, and what to say of them."""

_SIMULATED = "counts only in simulation; leave it out"
_MARGIN = "is not known here, but as grid.margin_ms"
_SERVED = "is not known in GRID.toml, but in the files of gridweave serve; leave it out"
_OF_SITES = "is not a key of the grid's side; it belongs in the file of each site"
_NOT_SIMULATED: Refused = {("grid", key): _SIMULATED for key in ("data", "contention", "at")}


class GridFile(Table, frozen=True, kw_only=True):
    """A whole GRID.toml."""

    refused: ClassVar[Refused] = _NOT_SIMULATED | {
        ("grid", "journal_password_file"): _SERVED,
        ("gateway", "client_ca"): _SERVED,
        ("gateway", "operator_token_file"): _SERVED,
        ("gateway", "scraper_token_file"): _SERVED,
        ("ray", "address"): "is not known in GRID.toml; give --address to gridweave up",
        ("live", "margin_ms"): _MARGIN,
    }
    replaced: ClassVar[dict[str, Any]] = {"sites": []}

    sites: list[LiveSiteTable]
    name: SiteName | None = None  # of the grid; ``--name`` goes before it
    folder: str | None = None  # of journals, jobs and their output; one in the user's state folder if left out
    grid: LiveGridTable = msgspec.field(default_factory=LiveGridTable)
    net: NetTable | None = None  # the links between the sites, from which the overhead of a split follows
    probes: ProbesTable | None = None
    live: LiveTimesTable = msgspec.field(default_factory=LiveTimesTable)
    gateway: GatewayTable = msgspec.field(default_factory=GatewayTable)
    maxima: Maxima = NO_MAXIMA  # of users and accounts, at the grid and at each site for its own users
    ray: RayTable = msgspec.field(default_factory=RayTable)


class ServedGrid(Table, frozen=True, kw_only=True):
    """A whole file of the grid's side."""

    refused: ClassVar[Refused] = _NOT_SIMULATED | {
        ("grid", "rendezvous_ms"): _OF_SITES,
        ("grid", "output_days"): _OF_SITES,
        ("grid", "output_bytes"): _OF_SITES,
        ("live", "margin_ms"): _MARGIN,
        ("ray", "nodes"): "is not known here, but in GRID.toml; leave it out",
        ("ray", "first_port"): "is not known here, but in the file of each site; leave it out",
    }
    replaced: ClassVar[dict[str, Any]] = {"sites": [], "folder": "/"}

    sites: list[FarSiteTable]
    folder: str  # of the journal and of the tokens
    name: SiteName = "default"
    grid: LiveGridTable = msgspec.field(default_factory=LiveGridTable)
    net: NetTable | None = None
    probes: ProbesTable | None = None
    live: LiveTimesTable = msgspec.field(default_factory=LiveTimesTable)
    gateway: GatewayTable = msgspec.field(default_factory=GatewayTable)
    maxima: Maxima = NO_MAXIMA  # of users and accounts, for the jobs of the grid
    ray: RayTable = msgspec.field(default_factory=RayTable)


class ServedSite(Table, frozen=True, kw_only=True):
    """A whole file of a site."""

    refused: ClassVar[Refused] = {
        ("site", "at"): "counts at the grid's side; leave it out",
        ("ray", "nodes"): "is not known here, but in GRID.toml: several machines have a node each; leave it out",
    }
    replaced: ClassVar[dict[str, Any]] = {"folder": "/"}

    site: OwnSiteTable
    folder: str  # of the journal, jobs and their output, and of the tokens
    name: SiteName = "default"  # of the grid
    uplink: EndTable | None = None  # the grid's side; a site without one serves its own users alone
    gateway: GatewayTable = msgspec.field(default_factory=GatewayTable)
    maxima: Maxima = NO_MAXIMA  # of users and accounts, for the jobs of its own users
    ray: RayTable = msgspec.field(default_factory=RayTable)
