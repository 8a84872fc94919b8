"""Typed structs for the tables of GRID.toml and ``gridweave serve`` files; scenarios share the site and grid tables.

`GridFile`, `ServedGrid` and `ServedSite` determine which keys each kind of file may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from gridweave.errors import OptionError
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
from gridweave.site.policy import BACKFILLS as SITE_BACKFILLS
from gridweave.site.policy import PLACEMENTS
from gridweave.site.quotas import NO_QUOTAS, Quotas

SITES_OF_SPLITS = ("fewest", "earliest-end")
FRAGMENT_TABLES = ("limited", "unlimited")
MAX_INT = 2**63 - 1
_MAX_SITES = 1_000


def one_of(names: tuple[str, ...], description: str) -> Meta:
    """Return metadata that only lists the allowed names in the JSON schema; values are checked elsewhere."""
    return Meta(description=description, extra_json_schema={"enum": list(names)})


def at_least(least: int, description: str) -> Meta:
    """Return metadata that sets the minimum in the JSON schema; it does not check values."""
    return Meta(description=description, extra_json_schema={"minimum": least})


SiteName = Annotated[str, Meta(description="Letters, digits, hyphens and underscores.", pattern=NAME_PATTERN)]
Nodes = Annotated[int, Meta(ge=1, le=MAX_WIDTH, description="Number of nodes.")]
Order = Annotated[str, one_of(tuple(ORDERS), "Order of the queue.")]
Backfill = Annotated[str, one_of(SITE_BACKFILLS["queue"], "Backfilling of the site under mode local.")]
Placement = Annotated[str, one_of(PLACEMENTS, "Which nodes a job gets first, at a site with kinds.")]
_PROFILE = Meta(description=f"A profile ({', '.join(PROFILES)}), or fraction=0.2,pattern=ring,message=1MB.")
USUAL_PROFILE = "light"
"""The communication assumed for a live job if neither the job nor the grid specifies any; traffic is never free."""

_Ms = Annotated[int, Meta(ge=1, le=86_400_000)]
_Days = Annotated[int, Meta(ge=1, le=36_500)]
_Seconds = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1, le=2**40)]
_Port = Annotated[int, Meta(ge=0, le=65_535)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of all tables; rejects unknown keys."""


class KindTable(Table, frozen=True, kw_only=True):
    """An entry of ``kinds`` in an element of ``[[sites]]``: nodes that are alike (docs/resources.md).

    `gridweave.site.resources.problems.kind_problems` checks the values.

    Attributes
    ----------
    name : str
        Name of the kind; jobs can ask for it like for a label.
    count : int
        Number of nodes. The nodes of a site are numbered from 0, in the order of its kinds.
    cores : int
        Cores of each node.
    memory : str, optional
        Memory of each node, e.g. ``256GB``; None: not counted.
    gpus : int or str
        GPUs of each node, e.g. ``4`` or ``a100:4``; all GPUs of a node are of one type.
    gres : dict of str to int
        Other countable resources of each node.
    labels : list of str
        Names that a job can ask for.
    speed : float
        Speed, for disciplines that use speeds.
    """

    name: SiteName
    count: Annotated[int, at_least(1, "Number of nodes.")]
    cores: Annotated[int, at_least(1, "Cores of each node.")] = 1
    memory: Annotated[str, Meta(description="Memory of each node, e.g. 256GB.")] | None = None
    gpus: Annotated[int, at_least(0, "GPUs of each node.")] | Annotated[str, Meta(description="E.g. a100:4.")] = 0
    gres: dict[str, Annotated[int, at_least(1, "Amount on each node.")]] = {}
    labels: list[str] = []
    speed: float = 1.0


FOUND = "found"
"""Stands for the kinds of a live site whose only node is the machine on which `gridweave up` starts the grid."""

Kinds = list[KindTable] | str


def _check_nodes(nodes: int | None, kinds: Kinds | None) -> None:
    """Raise OptionError unless exactly one of ``nodes`` and ``kinds`` is given."""
    if nodes is not None and kinds is not None:
        raise OptionError("nodes", "is given together with kinds, which have counts; leave one of them out")
    if nodes is None and kinds is None:
        raise OptionError("nodes", "is missing; give the number of nodes, or kinds")
    if isinstance(kinds, str) and kinds != FOUND:
        raise OptionError("kinds", f"is {kinds!r}; expected a list of kinds, or {FOUND!r}")
    if kinds is not None and not kinds:
        raise OptionError("kinds", "is empty; expected at least one kind, or nodes instead")


def legible_kinds(kinds: Sequence[object] | None) -> list[tuple[int, KindTable]]:
    """Return the kinds that could be read, with their indices in the file."""
    return [(number, kind) for number, kind in enumerate(kinds or ()) if isinstance(kind, KindTable)]


class NodesTable(Table, frozen=True, kw_only=True):
    """The nodes of a site: their number or, if they differ or the site counts cores, memory and GPUs, their kinds.

    Attributes
    ----------
    name : str
        Name of the site.
    nodes : int, optional
        Number of nodes; exactly one of ``nodes`` and ``kinds`` is given.
    kinds : list of KindTable or str
        Kinds of nodes, where an element is UNSET if it could not be read; or `FOUND`.
    placement : str, optional
        Which nodes a job gets first, if the site counts resources; None: ``best-fit``.
    """

    name: SiteName
    nodes: Nodes | None = None
    kinds: Kinds | None = None
    placement: Placement | None = None

    def __post_init__(self) -> None:
        _check_nodes(self.nodes, self.kinds)

    @property
    def node_count(self) -> int:
        """The number of nodes, without kinds that could not be read."""
        if self.kinds == FOUND:
            return 1
        return self.nodes or sum(kind.count for _, kind in legible_kinds(self.kinds))


# A base struct with one field per discipline that has its own table of options; `DISCIPLINES` has the field names.
if TYPE_CHECKING:
    _DisciplineTables = NodesTable
else:
    _DisciplineTables = msgspec.defstruct(
        "_DisciplineTables",
        [(entry.table_key, entry.table | None, None) for entry in DISCIPLINES.values() if entry.table is not None],
        bases=(NodesTable,),
        frozen=True,
        kw_only=True,
    )


class Site(_DisciplineTables, frozen=True, kw_only=True):
    """An element of ``[[sites]]``: the keys below, and the tables of the disciplines.

    Attributes
    ----------
    name, nodes, kinds, placement
        As in `NodesTable`.
    discipline, order, backfill : str, optional
        The site's own scheduling policy (in mode ``local``, under limited or no control, for its own users), as in
        `gridweave.site.policy.SitePolicy`. Order and backfilling default to the values in ``[grid]``. Under full
        control, a site only starts the jobs that the grid has placed.
    grid_share : float
        The largest fraction of the site's nodes that the grid's jobs may use at any time.
    own_users_first : bool
        Whether jobs of the site's own users precede delegated jobs in the site's queue.
    at : str, optional
        The network node to which the site is attached; equivalent to an entry of ``[net.attach]``.
    timezone : str, optional
        IANA name of the site's time zone, for weekly windows. The default is the time zone of the trace (simulated), or
        of the machine that starts the site (live).
    """

    discipline: Annotated[str, one_of(tuple(DISCIPLINES), "Scheduling policy of the site itself.")] = "queue"
    order: Order | None = None
    backfill: Backfill | None = None
    grid_share: Annotated[float, Meta(description="Largest fraction of the nodes that the grid may use, 0 to 1.")] = 1.0
    own_users_first: Annotated[bool, Meta(description="Whether the site's own users are ahead of delegated jobs.")] = (
        False
    )
    at: Annotated[str, Meta(description="Network node to which the site is attached.")] | None = None
    timezone: Annotated[str, Meta(description="IANA name of the time zone, e.g. Europe/Berlin.")] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The scheduling options of the site: order, backfilling, and the tables of disciplines; None if not set."""
        tables = (entry.table_key for entry in DISCIPLINES.values() if entry.table is not None)
        return {name: getattr(self, name) for name in ("order", "backfill", "placement", *tables)}

    @property
    def shares_nodes(self) -> bool:
        """Whether several jobs may share a node of the site."""
        return self.discipline in DISCIPLINES and DISCIPLINES[self.discipline].traits.shares_nodes

    @property
    def varies_rates(self) -> bool:
        """Whether the site's jobs may run at different rates (see `Traits.varies_rates`)."""
        return self.discipline in DISCIPLINES and DISCIPLINES[self.discipline].traits.varies_rates


LAUNCHERS = ("self", "user")
TRUST = ("owner", "all")


class LauncherTable(Table, frozen=True, kw_only=True):
    """The table ``launcher`` of a live site: the Unix users that run jobs, the accepted users, and resource limits.

    Attributes
    ----------
    kind : str
        ``self`` to run jobs as the user of the service; ``user`` to run them as the Unix users that the machine's
        launcher permits.
    trust : str
        The accepted users under ``self``: only the ``owner``, who starts the site, or ``all``.
    socket : str
        The path of the launcher's socket on each machine; only for ``user``.
    memory_mb, processes : int, optional
        A job's limits per node: memory in MiB; number of processes and threads.
    cpus : float, optional
        A job's limit per node: number of processors.
    """

    kind: Annotated[str, one_of(LAUNCHERS, "Unix users that run jobs: that of the service, or those of the jobs.")] = (
        "self"
    )
    trust: Annotated[str, one_of(TRUST, "Users whose jobs run as the user of the service.")] = "owner"
    socket: str = ""
    memory_mb: _Count | None = None
    cpus: _Seconds | None = None
    processes: _Count | None = None

    @property
    def limits(self) -> Limits:
        """The limits of a job on each node."""
        memory_bytes = None if self.memory_mb is None else self.memory_mb << 20
        return Limits(memory_bytes=memory_bytes, cpus=self.cpus, processes=self.processes)

    @property
    def words(self) -> str:
        """The text shown in `status`; empty for a site that runs only its owner's jobs."""
        if self.kind == "user":
            return "jobs run as their own users"
        return "trust = all: jobs of all users run as the owner" if self.trust == "all" else ""


class LiveSiteTable(Site, frozen=True, kw_only=True):
    """An element of ``[[sites]]`` in GRID.toml: the keys of a scenario's sites, and keys only for live sites."""

    machines: Nodes = 1  # number of the site's Ray nodes, among which its nodes are divided
    # Whether nodes are only counted; otherwise each node has its own cores and GPUs of the machine. None: only counted
    # unless the site has kinds.
    virtual: bool | None = None
    journal: str = ""  # URL of the site's journal; by default a file in the folder
    launcher: LauncherTable = LauncherTable()


class OwnSiteTable(LiveSiteTable, frozen=True, kw_only=True):
    """The table ``[site]`` in a site's own file: the keys of a site in GRID.toml, and some additional keys."""

    # The index of the site in the grid, from 0; it determines the numbers of its own users' jobs.
    number: Annotated[int, Meta(ge=0, lt=_MAX_SITES)]
    # The same as ``grid.rendezvous_ms``, ``grid.alone_ms`` and ``grid.history_days`` in GRID.toml.
    rendezvous_ms: _Ms = 30_000
    alone_ms: _Ms = 1_500
    history_days: _Days = 90
    # The same as ``grid.output_days`` and ``grid.output_bytes`` in GRID.toml.
    output_days: _Days = KEEP_OUTPUT.days
    output_bytes: _Count = KEEP_OUTPUT.bytes_per_user
    # The name or address at which other sites reach the machine. The default is the address from which it reaches the
    # grid, or its address in the Ray cluster that it joins.
    host: str | None = None
    journal_password_file: str | None = None  # file with the password of the journal's database


class EndTable(Table, frozen=True, kw_only=True):
    """The other end of a grid-site connection: the table ``[uplink]``, and the same keys in ``[[sites]]``."""

    url: str  # URL of the other end's gateway
    # Files with the secret to send and with the secrets to accept. All paths are relative to the configuration file.
    token_file: str
    accepts_file: str
    ca: str | None = None  # certificate authorities to trust instead of the system's
    # The client certificate and its key.
    cert: str | None = None
    key: str | None = None


class FarSiteTable(EndTable, frozen=True, kw_only=True):
    """An element of ``[[sites]]`` in the grid's own file: a remote site as the meta-scheduler sees it."""

    name: SiteName
    # The same values as in the site's own file.
    nodes: Nodes | None = None
    kinds: list[KindTable] | None = None
    placement: Placement | None = None
    machines: Nodes = 1
    grid_share: float = 1.0
    at: str | None = None  # the network node to which it is attached

    def __post_init__(self) -> None:
        _check_nodes(self.nodes, self.kinds)

    def as_live(self) -> LiveSiteTable:
        """Return the table of this site in the form of GRID.toml."""
        return LiveSiteTable(
            name=self.name,
            nodes=self.nodes,
            kinds=self.kinds,
            placement=self.placement,
            machines=self.machines,
            grid_share=self.grid_share,
            at=self.at,
        )


class TuningTable(Table, frozen=True, kw_only=True):
    """The table ``[grid.tuning]``, with the options of `gridweave.grid.policy.GridTuning`.

    Attributes
    ----------
    policies : list of str, or str
        The orders, as a list or as one text with plus signs between them.
    decider, preferred, tuning : str
    slackness_pct : float
    """

    policies: list[str] | str = "fcfs+sjf+ljf"
    decider: Annotated[str, one_of(("advanced", "simple", "preferred"), "Rule that chooses the order.")] = "advanced"
    preferred: str | None = None
    tuning: Annotated[
        str, one_of(("full", "half"), "Events that cause a decision: submissions and ends, or only submissions.")
    ] = "full"
    slackness_pct: Annotated[float, Meta(description="How much better another order must be, in per cent.")] = 0.0


class PolicyTable(Table, frozen=True, kw_only=True):
    """The keys of ``[grid]`` in all files: the options of `gridweave.grid.policy.GridPolicy`, and those for ``[net]``.

    `max_fragments` may also be a name in `FRAGMENT_TABLES`. The options for ``[net]`` are (docs/netmodel.md):

    Attributes
    ----------
    split : str
        How to choose the sites for a split job: as few sites as possible, or the sites where the job ends earliest.
    exact_up_to : int
        When choosing by the earliest end, the largest number of placements to compare exhaustively.
    max_split_factor : float
        The largest factor by which a split may lengthen a job.
    """

    mode: Annotated[str, one_of(MODES, "Whether jobs use one site, any site, or several.")] = "adaptive"
    control: Annotated[str, one_of(CONTROLS, "Level of control of the grid over the sites.")] = "full"
    order: Order = "fcfs"
    backfill: Annotated[str, one_of(BACKFILLS, "Backfilling.")] = "easy"
    head_reservation: Annotated[
        str, one_of(tuple(HEAD_RESERVATIONS), "Nodes that the head of the queue reserves under easy.")
    ] = "anywhere"
    selection: Annotated[
        str, one_of(ALL_SELECTIONS, "How to select a site for a job, or the sites of all waiting jobs.")
    ] = "best-fit"
    overhead: (
        Annotated[float, Meta(description="Overhead of a split, e.g. 0.3 for 30% longer.")]
        | Annotated[
            list[float],
            Meta(
                description="Overhead in 2, 3, ... fragments; the last value is for more.",
                extra_json_schema={"minItems": 1},
            ),
        ]
    ) = 0.0
    lower_bound: Annotated[int, Meta(description="Only jobs wider than this are split [nodes].", le=MAX_WIDTH)] = 0
    max_fragments: (
        Annotated[str, one_of(FRAGMENT_TABLES, "Name of a table of fragments (Streit, Table 7.5).")]
        | list[tuple[Annotated[int, Meta(ge=1, le=MAX_INT)], Annotated[int, Meta(ge=1, le=MAX_INT)]]]
    ) = "unlimited"
    tuning: TuningTable | None = None
    reserve_after_s: Annotated[
        float,
        Meta(
            description="Wait after which sites reserve ahead for a job wider than any site [s]; limited control only.",
            ge=0,
            le=MAX_RESERVE_AFTER_S,
        ),
    ] = RESERVE_AFTER_S
    split: Annotated[str, one_of(SITES_OF_SPLITS, "Which sites a split job uses, with [net].")] = "earliest-end"
    exact_up_to: Annotated[
        int, Meta(description="Largest number of placements that are all compared.", ge=0, le=MAX_INT)
    ] = EXACT_UP_TO
    max_split_factor: Annotated[
        float, Meta(description="Largest factor by which a split may lengthen a job, with [net].")
    ] = MAX_SPLIT_FACTOR


class UsualCommunicationTable(Table, frozen=True, kw_only=True):
    """The table ``[grid.communication]``: the communication assumed for jobs that declare none, by class and by user.

    Each value is the name of a profile, or a text such as ``fraction=0.2,pattern=ring,message=1MB`` (docs/netmodel.md).
    """

    default: Annotated[str, _PROFILE] = USUAL_PROFILE
    by_class: dict[str, Annotated[str, _PROFILE]] = {}
    by_user: dict[str, Annotated[str, _PROFILE]] = {}


class UsualNeedsTable(Table, frozen=True, kw_only=True):
    """The table ``[grid.resources]``: the needs assumed for jobs that declare none, by class and by user.

    Each value is a text such as ``cpu=0.6,network=0.3,disk=0.1,memory=0.5`` (docs/sharing.md); empty means unknown.
    """

    default: str = ""
    by_class: dict[str, str] = {}
    by_user: dict[str, str] = {}
    disk: str = "200 MB/s"  # throughput of a node's disk, used to learn the disk needs of each class of jobs


class LiveGridTable(PolicyTable, frozen=True, kw_only=True):
    """The table ``[grid]`` of a live grid: the keys of a scenario, and the keys of a live meta-scheduler."""

    # The communication of jobs that declare none, with [net].
    communication: UsualCommunicationTable | Annotated[str, _PROFILE] = USUAL_PROFILE

    resources: UsualNeedsTable | str = ""  # the needs per shared node of jobs that declare none; empty if unknown

    # The same as in `gridweave.grid.service.cluster.GridPlan`.
    margin_ms: _Ms = 500
    retry_ms: _Ms = 10_000
    lease_ms: _Ms = 3_600_000
    rendezvous_ms: _Ms = 30_000
    alone_ms: _Ms = 1_500
    history_days: _Days = 90
    # How long machines keep the output of ended jobs, and how many bytes per user and machine.
    output_days: _Days = KEEP_OUTPUT.days
    output_bytes: _Count = KEEP_OUTPUT.bytes_per_user
    seed: Annotated[int, Meta(ge=0, le=MAX_INT)] = 0  # seed of the selection ``random``
    journal: str = ""  # URL of the meta-scheduler's journal; by default a file in the folder
    journal_password_file: str | None = None  # file with the password of the journal's database

    @property
    def output(self) -> OutputLimits:
        """The limits for the output of ended jobs."""
        return OutputLimits(days=self.output_days, bytes_per_user=self.output_bytes)


class LiveTimesTable(Table, frozen=True, kw_only=True):
    """The table ``[live]``: the delays of starts and ends, for forecasts; by default measured on recent jobs."""

    # The same as in `gridweave.grid.meta.settings.GridSettings`.
    start_ms: Annotated[int, Meta(ge=0, le=86_400_000)] | None = None
    end_ms: Annotated[int, Meta(ge=0, le=86_400_000)] | None = None


class ProbesTable(Table, frozen=True, kw_only=True):
    """The table ``[probes]``; without it, the paths between sites are not measured."""

    # The same as in `gridweave.site.service.prober.ProbePlan`.
    every_s: _Seconds = 60.0
    bandwidth_every_s: _Seconds = 3_600.0


class GatewayTable(Table, frozen=True, kw_only=True):
    """The table ``[gateway]``: the address, access and limits of the gateway."""

    host: str = "127.0.0.1"  # the address on which the gateway listens
    # 0 for any free port. The default is the usual port; a grid on one machine uses a free port if that is in use.
    port: _Port | None = None
    tokens: bool = True  # whether clients need a token
    # Files for TLS, relative to the configuration file.
    cert: str | None = None
    key: str | None = None
    plain_http: bool = False  # whether clients on other machines may send tokens without TLS
    client_ca: str | None = None  # certificate authorities for the client certificates of links
    # Files with tokens that were created elsewhere: one with the scope ``operate``, and one that may only read.
    operator_token_file: str | None = None
    scraper_token_file: str | None = None
    issuer: IssuerSettings | None = None  # an issuer whose tokens are accepted in addition to the gateway's own
    audit: str | None = None  # file of the audit log; by default in the folder of the tokens
    # Limits; the defaults are in docs/gateway.md.
    max_body_bytes: _Count | None = None
    max_jobs: _Count | None = None
    requests_per_s: _Seconds | None = None
    burst: _Seconds | None = None
    max_open_jobs: _Count | None = None
    max_connections: _Count | None = None
    max_connections_per_address: _Count | None = None
    failed_logins_per_minute: _Seconds | None = None

    def settings(self, tokens: str) -> GatewaySettings:
        """Return the settings of the gateway; `tokens` is the location of the token database."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name in _SETTINGS}
        values = {name: value for name, value in values.items() if value is not None}
        return GatewaySettings(tokens=tokens if self.tokens else None, **values)


_SETTINGS = set(GatewaySettings.__struct_fields__) - {"tokens"}


class RayTable(Table, frozen=True, kw_only=True):
    """The table ``[ray]``: the local Ray, or the address of a cluster that a site joins."""

    port: _Port = 0  # port of the Ray head; 0 for any free port
    # The first of the ports reserved for the rendezvous of ranks, 200 for each machine.
    first_port: Annotated[int, Meta(ge=1024, le=65_535)] | None = None
    # ``machine`` if each machine of a site has its own Ray node, which can fail alone; ``one`` if all share the head.
    nodes: Literal["one", "machine"] = "one"
    # Memory of each Ray node for objects; the grid itself stores none.
    object_store_mb: Annotated[int, Meta(ge=76, le=2**20)] = 80
    address: str | None = None  # ``auto`` or HOST:PORT of a cluster; by default a new Ray is started

    @property
    def store_bytes(self) -> int:
        """The size of the object store of each Ray node, in bytes."""
        return self.object_store_mb << 20


Refused = dict[tuple[str, str], str]
"""Error messages for keys that are valid only in other files or have been renamed, by (table, key).

The table name of a top-level key is empty.
"""

_SIMULATED = "has an effect only in simulations; leave it out"
_MARGIN = "is called grid.margin_ms here"
_SERVED = "is only for files of gridweave serve; leave it out of GRID.toml"
_OF_SITES = "is not for the grid's file; set it in the file of each site"
_RENAMED: Refused = {("", "maxima"): "is called quotas now; rename the table to [quotas]"}
_NOT_SIMULATED: Refused = {("grid", key): _SIMULATED for key in ("data", "contention", "at")}


class GridFile(Table, frozen=True, kw_only=True):
    """The content of a GRID.toml."""

    refused: ClassVar[Refused] = (
        _RENAMED
        | _NOT_SIMULATED
        | {
            ("grid", "journal_password_file"): _SERVED,
            ("gateway", "client_ca"): _SERVED,
            ("gateway", "operator_token_file"): _SERVED,
            ("gateway", "scraper_token_file"): _SERVED,
            ("ray", "address"): "is not for GRID.toml; give --address to gridweave up",
            ("live", "margin_ms"): _MARGIN,
        }
    )
    replaced: ClassVar[dict[str, Any]] = {"sites": []}

    sites: list[LiveSiteTable]
    name: SiteName | None = None  # name of the grid; ``--name`` overrides it
    folder: str | None = None  # folder of journals, jobs and their output; by default in the user's state folder
    grid: LiveGridTable = msgspec.field(default_factory=LiveGridTable)
    net: NetTable | None = None  # the links between the sites, which determine the overhead of a split
    probes: ProbesTable | None = None
    live: LiveTimesTable = msgspec.field(default_factory=LiveTimesTable)
    gateway: GatewayTable = msgspec.field(default_factory=GatewayTable)
    quotas: Quotas = NO_QUOTAS  # quotas of users and accounts, at the grid and at each site for its own users
    ray: RayTable = msgspec.field(default_factory=RayTable)


class ServedGrid(Table, frozen=True, kw_only=True):
    """The content of the grid's ``gridweave serve`` file."""

    refused: ClassVar[Refused] = (
        _RENAMED
        | _NOT_SIMULATED
        | {
            ("grid", "rendezvous_ms"): _OF_SITES,
            ("grid", "output_days"): _OF_SITES,
            ("grid", "output_bytes"): _OF_SITES,
            ("live", "margin_ms"): _MARGIN,
            ("ray", "nodes"): "is only for GRID.toml; leave it out",
            ("ray", "first_port"): "is only for the file of each site; leave it out",
        }
    )
    replaced: ClassVar[dict[str, Any]] = {"sites": [], "folder": "/"}

    sites: list[FarSiteTable]
    folder: str  # folder of the journal and the tokens
    name: SiteName = "default"
    grid: LiveGridTable = msgspec.field(default_factory=LiveGridTable)
    net: NetTable | None = None
    probes: ProbesTable | None = None
    live: LiveTimesTable = msgspec.field(default_factory=LiveTimesTable)
    gateway: GatewayTable = msgspec.field(default_factory=GatewayTable)
    quotas: Quotas = NO_QUOTAS  # quotas of users and accounts, for the jobs of the grid
    ray: RayTable = msgspec.field(default_factory=RayTable)


class ServedSite(Table, frozen=True, kw_only=True):
    """The content of a site's ``gridweave serve`` file."""

    refused: ClassVar[Refused] = _RENAMED | {
        ("site", "at"): "is only for the grid's file; leave it out",
        ("ray", "nodes"): "is only for GRID.toml; leave it out, as each machine of a site gets a node",
    }
    replaced: ClassVar[dict[str, Any]] = {"folder": "/"}

    site: OwnSiteTable
    folder: str  # folder of the journal, jobs and their output, and the tokens
    name: SiteName = "default"  # name of the grid
    uplink: EndTable | None = None  # the link to the grid; a site without one serves only its own users
    gateway: GatewayTable = msgspec.field(default_factory=GatewayTable)
    quotas: Quotas = NO_QUOTAS  # quotas of users and accounts, for the jobs of its own users
    ray: RayTable = msgspec.field(default_factory=RayTable)
