"""What a scenario file says, as typed structs; the JSON schema for editors is made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from gridweave.grid.policy import BACKFILLS, CONTROLS, MODES, SELECTIONS
from gridweave.netmodel.communication import PATTERNS
from gridweave.netmodel.tables import CONTENTIONS, EXACT_UP_TO, NetTable
from gridweave.scenarios.results.metrics import Metrics
from gridweave.scenarios.workload.columns import AT_HOME
from gridweave.scenarios.workload.table import MAX_WIDTH
from gridweave.site.disciplines.dictionary import DISCIPLINES
from gridweave.site.kernels.order import ORDERS

HOMES = ("round-robin", "partition")
SPLITS = ("site", "largest")
SITES_OF_SPLITS = ("fewest", "earliest-end")
DATA = ("none", "blocking", "prefetch")
FRAGMENT_TABLES = ("limited", "unlimited")
DEFAULT_METRICS = (
    "awrt_area_ms",
    "awwt_area_ms",
    "awrt_width_ms",
    "awwt_width_ms",
    "awt_ms",
    "art_ms",
    "sldwa",
    "bounded_slowdown_10s",
    "util",
    "loss_of_capacity",
    "makespan_ms",
)

NET_KEYS = ("split", "exact_up_to", "contention", "data", "at")
"""Keys of ``[grid]`` that are for a network."""

_MAX_INT = 2**63 - 1


def _one_of(names: tuple[str, ...], description: str) -> Meta:
    """Return what tells an editor the names; the reader refuses others with a message of its own."""
    return Meta(description=description, extra_json_schema={"enum": list(names)})


SITE_NAME = "^[A-Za-z0-9_-]+$"
_ESTIMATES = "^(keep|perfect|omega:.+|phi:.+)$"
SiteName = Annotated[
    str,
    Meta(description="Letters, digits, hyphens and underscores.", pattern=SITE_NAME),
]
Nodes = Annotated[int, Meta(ge=1, le=MAX_WIDTH, description="Number of nodes.")]
Factor = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0)]
Order = Annotated[str, _one_of(tuple(ORDERS), "Order of the queue.")]
Backfill = Annotated[str, _one_of(DISCIPLINES["queue"].backfills, "Backfilling of the site under mode local.")]
Metric = Annotated[str, _one_of(Metrics.__struct_fields__, "A metric of docs/metrics.md.")]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all tables: unknown keys are refused."""


class Header(_Table, frozen=True, kw_only=True):
    """The table ``[scenario]``.

    Attributes
    ----------
    name : str
        What tables and plots call it; the name of the file if left out.
    description : str
        One sentence for the reader.
    seed : int
        From which all that is drawn is drawn, >= 0.
    """

    name: str = ""
    description: str = ""
    seed: Annotated[int, Meta(ge=0, le=_MAX_INT, description="Of all that is drawn.")] = 1


# The tables in which disciplines have further options of a site: a field each, called as the dictionary says.
if TYPE_CHECKING:
    _DisciplineTables = _Table
else:
    _DisciplineTables = msgspec.defstruct(
        "_DisciplineTables",
        [(entry.table_key, entry.table | None, None) for entry in DISCIPLINES.values() if entry.table is not None],
        bases=(_Table,),
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
    """

    name: SiteName
    nodes: Nodes
    discipline: Annotated[str, _one_of(tuple(DISCIPLINES), "How the site schedules by itself.")] = "queue"
    order: Order | None = None
    backfill: (
        Annotated[str, _one_of(DISCIPLINES["queue"].backfills, "Backfilling of the site under mode local.")] | None
    ) = None
    grid_share: Annotated[float, Meta(description="Part of the nodes that the grid may have, 0 to 1.")] = 1.0
    own_users_first: Annotated[bool, Meta(description="Whether own users stand ahead of delegated jobs.")] = False
    at: Annotated[str, Meta(description="Node of the network at which the site is attached.")] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What was given of how the site schedules: order, backfilling, and the tables of disciplines."""
        tables = (entry.table_key for entry in DISCIPLINES.values() if entry.table is not None)
        return {name: getattr(self, name) for name in ("order", "backfill", *tables)}


class Cut(_Table, frozen=True, kw_only=True):
    """A piece of the workload by job number: positions in the order of submission, both included, the first is 1."""

    first: Annotated[int, Meta(ge=1, le=_MAX_INT)] | None = None
    last: Annotated[int, Meta(ge=1, le=_MAX_INT)] | None = None


class Transformation(_Table, frozen=True, kw_only=True):
    """One step of ``workload.transform``: exactly one of these.

    Attributes
    ----------
    cut : Cut, optional
    shrink, stretch : float, optional
        Factor of all submit times; factor of all run times and estimates.
    split : int or str, optional
        Wide jobs become parts: of at most this many nodes, of at most the size of their home ("site"; Streit,
        section 7.2, modification 1) or of the largest site ("largest", modification 2).
    """

    cut: Cut | None = None
    shrink: Factor | None = None
    stretch: Factor | None = None
    split: Annotated[int, Meta(ge=1, le=MAX_WIDTH)] | Annotated[str, _one_of(SPLITS, "Width of a part.")] | None = None

    @property
    def named(self) -> list[str]:
        """The transformations that are given, of which there is to be one."""
        return [name for name in self.__struct_fields__ if getattr(self, name) is not None]


Range = tuple[Share, Share]


class CommunicationTable(_Table, frozen=True, kw_only=True):
    """The table ``[workload.communication]``: what jobs send between their nodes.

    Attributes
    ----------
    pattern : str or dict from str to float
        Of all jobs, or shares of the jobs by pattern: each job draws its own.
    fraction : float or (float, float)
        Part of the run time on one site's own network that goes into communication; of a range each job draws its own,
        evenly.
    message_bytes : float or (float, float)
        Size of a message; of a range each job draws its own, evenly in the logarithm.
    """

    pattern: Annotated[str, _one_of(tuple(PATTERNS), "Who sends to whom.")] | dict[str, Share]
    fraction: (
        Annotated[float, Meta(description="Part of the run time that goes into communication, 0 to 1.")]
        | Annotated[Range, Meta(description="Evenly drawn from this range.")]
    )
    message_bytes: (
        Annotated[float, Meta(description="Size of a message.")]
        | Annotated[Range, Meta(description="Drawn from this range, evenly in the logarithm.")]
    )


class DataTable(_Table, frozen=True, kw_only=True):
    """The table ``[workload.data]``: what jobs read before they start and write when they end, and where that lies.

    Attributes
    ----------
    input_bytes, output_bytes : float or (float, float)
        Sizes; of a range each job draws its own, evenly in the logarithm.
    input_site, output_site : str or dict from str to float
        ``home``: the site of the job's user. Otherwise a site, or shares of the jobs by site.
    """

    input_bytes: float | Range = 0.0
    output_bytes: float | Range = 0.0
    input_site: str | dict[str, Share] = AT_HOME
    output_site: str | dict[str, Share] = AT_HOME


class WorkloadTable(_Table, frozen=True, kw_only=True):
    """The table ``[workload]``: a trace or a generator, what is done to it, and whose jobs they are.

    Attributes
    ----------
    trace : str, optional
        A file, relative to the scenario's, or the name of a trace.
    generator : str, optional
        The name of a workload model, or a model file. Excludes ``trace``.
    jobs : int, optional
        Of the generator, which needs it.
    load : float, optional
        Of the generator: offered load on ``nodes``.
    nodes : int, optional
        Size of the machine that a trace is converted for (what the trace says, if left out), or that a generator makes
        jobs for (all sites together, if left out).
    estimates : str
        ``keep``, ``perfect``, ``omega:X`` or ``phi:X``; applied before the transformations.
    transform : list of Transformation
        Applied in this order.
    home : str or dict from str to float
        At which site each job is submitted: ``round-robin``, ``partition``, or shares of the jobs by site.
    to_grid : float
        Part of the jobs that their users hand to the grid, drawn job by job; the others go to their homes' queues.
    drop_wide : bool
        Whether jobs that can never run are left out; otherwise they make the scenario invalid.
    communication : CommunicationTable, optional
        What jobs send between their nodes, for ``[net]``.
    data : DataTable, optional
        What jobs read and write, for ``[net]``.
    resources : str, optional
        What jobs need of CPU, network, disk and memory, for sites whose nodes are shared: a mix to draw from
        (M1, M2, M3 or per cent), or a file as ``gridweave trace resources`` writes one.
    """

    trace: str | None = None
    generator: str | None = None
    jobs: Annotated[int, Meta(ge=1, le=_MAX_INT)] | None = None
    load: Factor | None = None
    nodes: Nodes | None = None
    estimates: Annotated[str, Meta(extra_json_schema={"pattern": _ESTIMATES})] = "keep"
    transform: list[Annotated[Transformation, Meta(extra_json_schema={"minProperties": 1, "maxProperties": 1})]] = (
        msgspec.field(default_factory=list)
    )
    home: Annotated[str, _one_of(HOMES, "At which site each job is submitted.")] | dict[str, Share] = "round-robin"
    to_grid: Annotated[float, Meta(description="Part of the jobs that come to the grid, 0 to 1.")] = 1.0
    drop_wide: bool = False
    communication: CommunicationTable | None = None
    data: DataTable | None = None
    resources: Annotated[str, Meta(description="M1, M2, M3, per cent, or a file.")] | None = None


class GridTable(_Table, frozen=True, kw_only=True):
    """The table ``[grid]``: as `gridweave.grid.policy.GridPolicy`, with names for the tables of fragments.

    With ``[net]`` there are beside (docs/netmodel.md)

    Attributes
    ----------
    split : str
        Which sites a split job goes to: the fewest, or those where it ends earliest.
    exact_up_to : int
        For the earliest end: if a job can be placed in no more ways than this, all are looked at.
    contention : str, optional
        What jobs and transfers on the same links do to each other; that of ``[net]`` if left out.
    data : str
        Whether data is moved, and if so, while the nodes are held or before they are taken.
    at : str, optional
        The node of the network, or the site, at which the grid is: messages between it and the sites cross the links.
    """

    mode: Annotated[str, _one_of(MODES, "How jobs come to sites.")] = "adaptive"
    control: Annotated[str, _one_of(CONTROLS, "How much the grid has to say.")] = "full"
    order: Order = "fcfs"
    backfill: Annotated[str, _one_of(BACKFILLS, "Backfilling.")] = "easy"
    selection: Annotated[str, _one_of(tuple(SELECTIONS), "Of a single site.")] = "best-fit"
    overhead: (
        Annotated[float, Meta(description="0.3: a split job takes 30% longer.")]
        | Annotated[
            list[float],
            Meta(description="In 2, 3, ... fragments; the last one holds for more.", extra_json_schema={"minItems": 1}),
        ]
    ) = 0.0
    lower_bound: Annotated[int, Meta(description="Jobs that are split are wider than this.", le=MAX_WIDTH)] = 0
    max_fragments: (
        Annotated[str, _one_of(FRAGMENT_TABLES, "Streit, Table 7.5.")]
        | list[tuple[Annotated[int, Meta(ge=1, le=_MAX_INT)], Annotated[int, Meta(ge=1, le=_MAX_INT)]]]
    ) = "unlimited"
    split: Annotated[str, _one_of(SITES_OF_SPLITS, "Which sites a split job goes to, with [net].")] = "fewest"
    exact_up_to: Annotated[
        int, Meta(description="More placements of a job than this are not all looked at.", ge=0, le=_MAX_INT)
    ] = EXACT_UP_TO
    contention: Annotated[str, _one_of(CONTENTIONS, "What jobs on the same links do to each other.")] | None = None
    data: Annotated[str, _one_of(DATA, "Whether and when the data of jobs is moved, with [net].")] = "none"
    at: Annotated[str, Meta(description="Node or site at which the grid is, with [net].")] | None = None


class NetworkTable(_Table, frozen=True, kw_only=True):
    """The table ``[network]``: as `gridweave.scenarios.world.connections.Network`."""

    latency_ms: Annotated[int, Meta(description="Of a message between a site and the grid, one way.")] = 0
    jitter_ms: Annotated[int, Meta(description="Up to so much more, evenly distributed.")] = 0
    loss: Annotated[float, Meta(description="Probability that a message is lost.")] = 0.0
    duplicate: Annotated[float, Meta(description="Probability that a message comes twice.")] = 0.0


class FaultsTable(_Table, frozen=True, kw_only=True):
    """The table ``[faults]``: as `gridweave.scenarios.world.connections.Faults`."""

    crash_every_ms: Annotated[float, Meta(description="Mean time between two failures of a site; 0: none.")] = 0.0
    crash_lasts_ms: Annotated[float, Meta(description="Mean time until it is back.")] = 600_000.0
    cut_every_ms: Annotated[float, Meta(description="Mean time between two cuts of a connection; 0: none.")] = 0.0
    cut_lasts_ms: Annotated[float, Meta(description="Mean time until it is mended.")] = 600_000.0


class Output(_Table, frozen=True, kw_only=True):
    """The table ``[output]``.

    Attributes
    ----------
    metrics : list of str
        What the printed table shows, by the names of docs/metrics.md; files have all.
    """

    metrics: list[Metric] = msgspec.field(default_factory=lambda: list(DEFAULT_METRICS))


class Scenario(_Table, frozen=True, kw_only=True):
    """A whole scenario file.

    Attributes
    ----------
    sites : list of Site or str
        The sites, or the name of a machine configuration out of `gridweave.scenarios.scenario.catalogue`.
    workload : WorkloadTable
    header : Header
        The table ``[scenario]``.
    grid : GridTable
    network : NetworkTable
    faults : FaultsTable
    output : Output
    net : NetTable, optional
        The links between the sites, from which the overhead of a split follows.
    """

    sites: list[Site] | str
    workload: WorkloadTable
    header: Header = msgspec.field(default_factory=Header, name="scenario")
    grid: GridTable = msgspec.field(default_factory=GridTable)
    network: NetworkTable = msgspec.field(default_factory=NetworkTable)
    faults: FaultsTable = msgspec.field(default_factory=FaultsTable)
    output: Output = msgspec.field(default_factory=Output)
    net: NetTable | None = None


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of scenario files, for editors that check TOML."""
    schema = msgspec.json.schema(Scenario)
    for table in schema["$defs"].values():
        # An editor shows the first sentence; the rest of a docstring is for readers of the code.
        table["description"] = " ".join(table["description"].partition("\n\n")[0].split())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A gridweave scenario", **schema}
