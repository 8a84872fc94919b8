"""The tables of a scenario file as typed structs, from which the JSON schema for editors is generated."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gridweave.grid.config.tables import MAX_INT, Nodes, PolicyTable, Site, Table, one_of
from gridweave.netmodel.communication import PATTERNS
from gridweave.netmodel.tables import CONTENTIONS, NetTable
from gridweave.scenarios.results.metrics import Metrics
from gridweave.scenarios.workload.columns import AT_HOME
from gridweave.scenarios.workload.needs import ANNOTATIONS
from gridweave.site.job import MAX_WIDTH

HOMES = ("round-robin", "partition")
SPLITS = ("site", "largest")
DATA = ("none", "blocking", "prefetch")
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

NET_KEYS = ("split", "exact_up_to", "max_split_factor", "contention", "data", "at")
"""Keys of ``[grid]`` that apply only with a network."""

_ESTIMATES = "^(keep|perfect|omega:.+|phi:.+)$"
Factor = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0)]
Metric = Annotated[str, one_of(Metrics.__struct_fields__, "A metric of docs/metrics.md.")]


class Header(Table, frozen=True, kw_only=True):
    """The table ``[scenario]``.

    Attributes
    ----------
    name : str
        Name in tables and plots; defaults to the file name.
    description : str
        One sentence for the reader.
    seed : int
        Seed for all random numbers, at least 0.
    """

    name: str = ""
    description: str = ""
    seed: Annotated[int, Meta(ge=0, le=MAX_INT, description="Seed of everything random.")] = 1


class Cut(Table, frozen=True, kw_only=True):
    """A range of jobs by position in submission order, counted from 1; both ends are included."""

    first: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None
    last: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None


class Transformation(Table, frozen=True, kw_only=True):
    """One step of ``workload.transform``: exactly one of these keys.

    Attributes
    ----------
    cut : Cut, optional
    shrink, stretch : float, optional
        Factor for all submit times; factor for all run times and estimates.
    split : int or str, optional
        Split wide jobs into parts of at most this many nodes, or of at most the size of their home ("site"; Streit,
        section 7.2, modification 1) or of the largest site ("largest", modification 2).
    """

    cut: Cut | None = None
    shrink: Factor | None = None
    stretch: Factor | None = None
    split: Annotated[int, Meta(ge=1, le=MAX_WIDTH)] | Annotated[str, one_of(SPLITS, "Width of a part.")] | None = None

    @property
    def named(self) -> list[str]:
        """The keys that are set; there must be exactly one."""
        return [name for name in self.__struct_fields__ if getattr(self, name) is not None]


Range = tuple[Share, Share]


class CommunicationTable(Table, frozen=True, kw_only=True):
    """The table ``[workload.communication]``: the messages between a job's nodes.

    Attributes
    ----------
    pattern : str or dict from str to float
        The pattern of all jobs, or the share of jobs with each pattern, from which each job's pattern is drawn.
    fraction : float or (float, float)
        Fraction of the run time on one site's network that is spent on communication; from a range, it is drawn
        uniformly for each job.
    message_bytes : float or (float, float)
        Size of a message; from a range, it is drawn for each job, uniformly in the logarithm.
    """

    pattern: Annotated[str, one_of(tuple(PATTERNS), "Which nodes exchange messages.")] | dict[str, Share]
    fraction: (
        Annotated[float, Meta(description="Part of the run time that goes into communication, 0 to 1.")]
        | Annotated[Range, Meta(description="Drawn uniformly from this range.")]
    )
    message_bytes: (
        Annotated[float, Meta(description="Size of a message.")]
        | Annotated[Range, Meta(description="Drawn from this range, uniformly in the logarithm.")]
    )


class DataTable(Table, frozen=True, kw_only=True):
    """The table ``[workload.data]``: the data that jobs read before they start and write when they end, and its sites.

    Attributes
    ----------
    input_bytes, output_bytes : float or (float, float)
        Sizes; from a range, they are drawn for each job, uniformly in the logarithm.
    input_site, output_site : str or dict from str to float
        ``home`` (the site of the job's user), the name of a site, or the share of jobs for each site.
    """

    input_bytes: float | Range = 0.0
    output_bytes: float | Range = 0.0
    input_site: str | dict[str, Share] = AT_HOME
    output_site: str | dict[str, Share] = AT_HOME


class ChunkTable(Table, frozen=True, kw_only=True):
    """An entry of ``workload.chunks``: what some of the jobs ask for on each node, drawn for each job.

    Attributes
    ----------
    share : float
        Share of the jobs, relative to the shares of the other entries.
    cores, gpus : int or (int, int)
        Number for each chunk; from a range, it is drawn uniformly.
    memory : str or (str, str), optional
        Memory of each chunk, e.g. ``8GB``; from a range, it is drawn uniformly in the logarithm. None: not counted.
    gpu_type : str
        Required type of the GPUs; empty: any type.
    max_chunks : int, optional
        Largest number of chunks; wider jobs get this many.
    homes : list of str, optional
        Home sites of these jobs; None: all sites.
    """

    share: Annotated[float, Meta(description="Share of the jobs.")] = 1.0
    cores: Annotated[int, Meta(description="Cores of each chunk.")] | tuple[int, int] = 1
    memory: Annotated[str, Meta(description="Memory of each chunk, e.g. 8GB.")] | tuple[str, str] | None = None
    gpus: Annotated[int, Meta(description="GPUs of each chunk.")] | tuple[int, int] = 0
    gpu_type: str = ""
    max_chunks: Annotated[int, Meta(description="Wider jobs get this many chunks.")] | None = None
    homes: Annotated[list[str], Meta(min_length=1, description="Home sites of these jobs.")] | None = None


class WorkloadTable(Table, frozen=True, kw_only=True):
    """The table ``[workload]``: a trace or a generator, its transformations, and the jobs' homes.

    Attributes
    ----------
    trace : str, optional
        A file, relative to the scenario file, or the name of a trace.
    traces : dict of str to str, optional
        For each site, the trace of its own users, whose jobs have their home at the site. Excludes ``trace``.
    cancelled : bool
        Whether to keep a trace's jobs that were cancelled before they started; in the simulation, a job that is still
        waiting at its cancel time leaves the queue.
    generator : str, optional
        The name of a workload model, or a model file. Excludes ``trace`` and ``traces``.
    jobs : int, optional
        Number of jobs to generate; required with a generator.
    load : float, optional
        Offered load of generated jobs on ``nodes``.
    nodes : int, optional
        Size of the machine for which a trace is converted (default: the trace's machine), or for which jobs are
        generated (default: all sites together).
    estimates : str
        ``keep``, ``perfect``, ``omega:X`` or ``phi:X``; applied before the transformations.
    run_times : str
        ``keep``; ``lognormal:X`` to draw run times around the trace's run times; or ``experience:FILE.toml`` to draw
        them for each class of jobs from a file of experience. Applied before the estimates.
    priorities : str
        ``keep``, ``COLUMN:VALUE=PRIORITY,...`` or ``shares:PRIORITY=SHARE,...``
        (`gridweave.scenarios.workload.priorities`); applied before the transformations.
    transform : list of Transformation
        Transformations, applied in this order.
    home : str or dict from str to float
        How to choose the site where each job is submitted: ``round-robin``, ``partition``, or the share of each site.
    to_grid : float
        Fraction of jobs that users submit to the grid, drawn job by job; other jobs are submitted to their homes.
    drop_wide : bool
        Whether to leave out jobs that can never run; if false, such jobs make the scenario invalid.
    communication : CommunicationTable, optional
        The messages between a job's nodes, for ``[net]``.
    data : DataTable, optional
        The data that jobs read and write, for ``[net]``.
    resources : str, optional
        CPU, network, disk and memory that jobs need, for sites where jobs share nodes: a mix to draw from (M1, M2, M3
        or percentages), or a file written by ``gridweave trace resources``.
    needs : str, optional
        Fractions of a node's CPU and memory that tasks need, for sites that allocate fractions of nodes: one of
        `gridweave.scenarios.workload.needs.ANNOTATIONS`, or a file for `gridweave.scenarios.traces.resources`.
    chunks : str, list of ChunkTable or dict of str to str, optional
        What jobs ask for on each node, for sites with kinds of nodes: a file, ``cores`` (a chunk for each processor of
        the trace), ranges to draw from, or with ``traces``, a file or ``cores`` for each site. Widths then count
        chunks. None: whole nodes.
    """

    trace: str | None = None
    traces: Annotated[dict[str, str], Meta(min_length=1, description="The trace of each site's own users.")] | None = (
        None
    )
    cancelled: Annotated[bool, Meta(description="Whether to keep jobs that were cancelled while they waited.")] = False
    generator: str | None = None
    jobs: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None
    load: Factor | None = None
    nodes: Nodes | None = None
    estimates: Annotated[str, Meta(extra_json_schema={"pattern": _ESTIMATES})] = "keep"
    run_times: Annotated[str, Meta(extra_json_schema={"pattern": "^(keep|lognormal:.+|experience:.+)$"})] = "keep"
    priorities: Annotated[str, Meta(extra_json_schema={"pattern": "^(keep|[a-z_]+:.+)$"})] = "keep"
    transform: list[Annotated[Transformation, Meta(extra_json_schema={"minProperties": 1, "maxProperties": 1})]] = (
        msgspec.field(default_factory=list)
    )
    home: Annotated[str, one_of(HOMES, "At which site each job is submitted.")] | dict[str, Share] = "round-robin"
    to_grid: Annotated[float, Meta(description="Part of the jobs submitted to the grid, 0 to 1.")] = 1.0
    drop_wide: bool = False
    communication: CommunicationTable | None = None
    data: DataTable | None = None
    resources: Annotated[str, Meta(description="M1, M2, M3, per cent, or a file.")] | None = None
    needs: (
        Annotated[str, Meta(description=f"CPU and memory that tasks need: {', '.join(ANNOTATIONS)}, or a file.")] | None
    ) = None
    chunks: (
        Annotated[str, Meta(description="What jobs ask for on each node: cores, or a file.")]
        | Annotated[list[ChunkTable], Meta(min_length=1, description="What jobs ask for, drawn.")]
        | Annotated[dict[str, str], Meta(min_length=1, description="What the jobs of each trace ask for.")]
        | None
    ) = None


class GridTable(PolicyTable, frozen=True, kw_only=True):
    """The table ``[grid]``: the keys of a live grid and, with ``[net]``, keys for simulations only (docs/netmodel.md).

    Attributes
    ----------
    contention : str, optional
        How jobs and transfers on the same links slow each other down; defaults to the value in ``[net]``.
    data : str
        Whether data is moved and, if so, whether before a job starts or while it is holding its nodes.
    at : str, optional
        The grid's node in the network, or its site; if set, messages between the grid and the sites cross the links.
    """

    contention: Annotated[str, one_of(CONTENTIONS, "How jobs on the same links slow each other.")] | None = None
    data: Annotated[str, one_of(DATA, "Whether and when the data of jobs is moved, with [net].")] = "none"
    at: Annotated[str, Meta(description="Node or site at which the grid is, with [net].")] | None = None


class NetworkTable(Table, frozen=True, kw_only=True):
    """The table ``[network]``: see `gridweave.scenarios.world.connections.Network`."""

    latency_ms: Annotated[int, Meta(description="Latency of a message between a site and the grid, one way.")] = 0
    jitter_ms: Annotated[int, Meta(description="Highest extra latency, drawn uniformly from 0.")] = 0
    loss: Annotated[float, Meta(description="Probability that a message is lost.")] = 0.0
    duplicate: Annotated[float, Meta(description="Probability that a message arrives twice.")] = 0.0
    look_ms: Annotated[int, Meta(description="Interval at which sites send to the grid; 0: at once.")] = 0


FAULTS = ("crash", "cut")
"""Kinds of faults: a site crashes, or its connection to the grid is cut."""


class FaultTable(Table, frozen=True, kw_only=True):
    """An entry of ``[[faults.planned]]``: a crash of a site, or a cut of its connection to the grid."""

    at_ms: Annotated[int, Meta(ge=0, description="When the fault begins.")]
    action: Annotated[str, Meta(description="crash: the site fails; cut: its connection to the grid.")]
    site: str
    lasts_ms: Annotated[int, Meta(ge=1, description="How long the fault lasts.")]


class FaultsTable(Table, frozen=True, kw_only=True):
    """The table ``[faults]``: see `gridweave.scenarios.world.connections.Faults`."""

    planned: Annotated[list[FaultTable], Meta(description="Faults at given instants.")] = msgspec.field(
        default_factory=list
    )

    crash_every_ms: Annotated[float, Meta(description="Mean time between two failures of a site; 0: none.")] = 0.0
    crash_lasts_ms: Annotated[float, Meta(description="Mean length of a failure.")] = 600_000.0
    cut_every_ms: Annotated[float, Meta(description="Mean time between two cuts of a connection; 0: none.")] = 0.0
    cut_lasts_ms: Annotated[float, Meta(description="Mean length of a cut.")] = 600_000.0


class LiveTable(Table, frozen=True, kw_only=True):
    """The table ``[live]``: see `gridweave.scenarios.world.connections.LiveTimes`."""

    start_ms: Annotated[int, Meta(description="From when a job is placed until its processes run.")] = 0
    end_ms: Annotated[int, Meta(description="From the end of its processes until the grid learns of it.")] = 0
    margin_ms: Annotated[int, Meta(description="How far ahead a start on several sites is agreed.")] = 0


class Output(Table, frozen=True, kw_only=True):
    """The table ``[output]``.

    Attributes
    ----------
    metrics : list of str
        Metrics to print, by their names in docs/metrics.md; files contain all metrics.
    """

    metrics: list[Metric] = msgspec.field(default_factory=lambda: list(DEFAULT_METRICS))


class Scenario(Table, frozen=True, kw_only=True):
    """A scenario file.

    Attributes
    ----------
    sites : list of Site or str
        The sites, or the name of a machine configuration (`gridweave.scenarios.scenario.read`).
    workload : WorkloadTable
    header : Header
        The table ``[scenario]``.
    grid : GridTable
    network : NetworkTable
    faults : FaultsTable
    live : LiveTable
    output : Output
    net : NetTable, optional
        The links between the sites, which determine the overhead of a split.
    """

    sites: list[Site] | str
    workload: WorkloadTable
    header: Header = msgspec.field(default_factory=Header, name="scenario")
    grid: GridTable = msgspec.field(default_factory=GridTable)
    network: NetworkTable = msgspec.field(default_factory=NetworkTable)
    faults: FaultsTable = msgspec.field(default_factory=FaultsTable)
    live: LiveTable = msgspec.field(default_factory=LiveTable)
    output: Output = msgspec.field(default_factory=Output)
    net: NetTable | None = None


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of scenario files, for editors that check TOML."""
    schema = msgspec.json.schema(Scenario)
    for table in schema["$defs"].values():
        # Editors show descriptions; the docstring's summary is enough for them.
        table["description"] = " ".join(table["description"].partition("\n\n")[0].split())
    schema["$defs"]["Site"]["oneOf"] = [{"required": ["nodes"]}, {"required": ["kinds"]}]
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A gridweave scenario", **schema}
    return dict(msgspec.json.decode(msgspec.json.encode(whole)))  # turns tuples in defaults into arrays
