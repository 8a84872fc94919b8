"""What a scenario file says, as typed structs; the JSON schema for editors is made from them."""

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
"""Keys of ``[grid]`` that are for a network."""

_ESTIMATES = "^(keep|perfect|omega:.+|phi:.+)$"
Factor = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0)]
Metric = Annotated[str, one_of(Metrics.__struct_fields__, "A metric of docs/metrics.md.")]


class Header(Table, frozen=True, kw_only=True):
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
    seed: Annotated[int, Meta(ge=0, le=MAX_INT, description="Of all that is drawn.")] = 1


class Cut(Table, frozen=True, kw_only=True):
    """A piece of the workload by job number: positions in the order of submission, both included, the first is 1."""

    first: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None
    last: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None


class Transformation(Table, frozen=True, kw_only=True):
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
    split: Annotated[int, Meta(ge=1, le=MAX_WIDTH)] | Annotated[str, one_of(SPLITS, "Width of a part.")] | None = None

    @property
    def named(self) -> list[str]:
        """The transformations that are given, of which there is to be one."""
        return [name for name in self.__struct_fields__ if getattr(self, name) is not None]


Range = tuple[Share, Share]


class CommunicationTable(Table, frozen=True, kw_only=True):
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

    pattern: Annotated[str, one_of(tuple(PATTERNS), "Who sends to whom.")] | dict[str, Share]
    fraction: (
        Annotated[float, Meta(description="Part of the run time that goes into communication, 0 to 1.")]
        | Annotated[Range, Meta(description="Evenly drawn from this range.")]
    )
    message_bytes: (
        Annotated[float, Meta(description="Size of a message.")]
        | Annotated[Range, Meta(description="Drawn from this range, evenly in the logarithm.")]
    )


class DataTable(Table, frozen=True, kw_only=True):
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


class WorkloadTable(Table, frozen=True, kw_only=True):
    """The table ``[workload]``: a trace or a generator, what is done to it, and whose jobs they are.

    Attributes
    ----------
    trace : str, optional
        A file, relative to the scenario's, or the name of a trace.
    traces : dict of str to str, optional
        Such a file for each site: the jobs of its own users, who are at home there. Excludes ``trace``.
    cancelled : bool
        Whether jobs of a trace that were cancelled before they started are kept: one that still waits at that instant
        leaves the queue.
    generator : str, optional
        The name of a workload model, or a model file. Excludes ``trace`` and ``traces``.
    jobs : int, optional
        Of the generator, which needs it.
    load : float, optional
        Of the generator: offered load on ``nodes``.
    nodes : int, optional
        Size of the machine that a trace is converted for (what the trace says, if left out), or that a generator makes
        jobs for (all sites together, if left out).
    estimates : str
        ``keep``, ``perfect``, ``omega:X`` or ``phi:X``; applied before the transformations.
    run_times : str
        ``keep``, ``lognormal:X``: drawn around those of the trace, or ``experience:FILE.toml``: for each class of
        jobs as a file of experience has it. They are drawn before the estimates.
    priorities : str
        ``keep``, ``COLUMN:VALUE=PRIORITY,...`` or ``shares:PRIORITY=SHARE,...``
        (`gridweave.scenarios.workload.priorities`); before the transformations.
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
        What jobs need of CPU, network, disk and memory, for sites whose jobs share nodes: a mix to draw from
        (M1, M2, M3 or per cent), or a file as ``gridweave trace resources`` writes one.
    needs : str, optional
        What the tasks of jobs need of a node's CPU and memory, for sites that give fractions of them: one of
        `gridweave.scenarios.workload.needs.ANNOTATIONS`, or a file as `gridweave.scenarios.traces.resources` reads it.
    """

    trace: str | None = None
    traces: Annotated[dict[str, str], Meta(min_length=1, description="The trace of each site's own users.")] | None = (
        None
    )
    cancelled: Annotated[bool, Meta(description="Whether jobs are kept that were cancelled while they waited.")] = False
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
    to_grid: Annotated[float, Meta(description="Part of the jobs that come to the grid, 0 to 1.")] = 1.0
    drop_wide: bool = False
    communication: CommunicationTable | None = None
    data: DataTable | None = None
    resources: Annotated[str, Meta(description="M1, M2, M3, per cent, or a file.")] | None = None
    needs: Annotated[str, Meta(description=f"What tasks need: {', '.join(ANNOTATIONS)}, or a file.")] | None = None


class GridTable(PolicyTable, frozen=True, kw_only=True):
    """The table ``[grid]``: as of a live grid, and with ``[net]`` what a simulation has beside (docs/netmodel.md).

    Attributes
    ----------
    contention : str, optional
        What jobs and transfers on the same links do to each other; that of ``[net]`` if left out.
    data : str
        Whether data is moved, and if so, while the nodes are held or before they are taken.
    at : str, optional
        The node of the network, or the site, at which the grid is: messages between it and the sites cross the links.
    """

    contention: Annotated[str, one_of(CONTENTIONS, "What jobs on the same links do to each other.")] | None = None
    data: Annotated[str, one_of(DATA, "Whether and when the data of jobs is moved, with [net].")] = "none"
    at: Annotated[str, Meta(description="Node or site at which the grid is, with [net].")] | None = None


class NetworkTable(Table, frozen=True, kw_only=True):
    """The table ``[network]``: as `gridweave.scenarios.world.connections.Network`."""

    latency_ms: Annotated[int, Meta(description="Of a message between a site and the grid, one way.")] = 0
    jitter_ms: Annotated[int, Meta(description="Up to so much more, evenly distributed.")] = 0
    loss: Annotated[float, Meta(description="Probability that a message is lost.")] = 0.0
    duplicate: Annotated[float, Meta(description="Probability that a message comes twice.")] = 0.0
    look_ms: Annotated[int, Meta(description="What a site tells leaves at whole multiples of so much; 0: at once.")] = 0


FAULTS = ("crash", "cut")
"""What may fail: a site, or its connection to the grid."""


class FaultTable(Table, frozen=True, kw_only=True):
    """One of ``[[faults.planned]]``: a site, or its connection to the grid, that fails at an instant."""

    at_ms: Annotated[int, Meta(ge=0, description="When it fails.")]
    action: Annotated[str, Meta(description="crash: the site fails; cut: its connection to the grid.")]
    site: str
    lasts_ms: Annotated[int, Meta(ge=1, description="How long it takes until it is back.")]


class FaultsTable(Table, frozen=True, kw_only=True):
    """The table ``[faults]``: as `gridweave.scenarios.world.connections.Faults`."""

    planned: Annotated[list[FaultTable], Meta(description="Faults at given instants.")] = msgspec.field(
        default_factory=list
    )

    crash_every_ms: Annotated[float, Meta(description="Mean time between two failures of a site; 0: none.")] = 0.0
    crash_lasts_ms: Annotated[float, Meta(description="Mean time until it is back.")] = 600_000.0
    cut_every_ms: Annotated[float, Meta(description="Mean time between two cuts of a connection; 0: none.")] = 0.0
    cut_lasts_ms: Annotated[float, Meta(description="Mean time until it is mended.")] = 600_000.0


class LiveTable(Table, frozen=True, kw_only=True):
    """The table ``[live]``: as `gridweave.scenarios.world.connections.LiveTimes`."""

    start_ms: Annotated[int, Meta(description="From when a job is placed until its processes run.")] = 0
    end_ms: Annotated[int, Meta(description="From the end of its processes until the grid hears of it.")] = 0
    margin_ms: Annotated[int, Meta(description="How far ahead a start on several sites is agreed.")] = 0


class Output(Table, frozen=True, kw_only=True):
    """The table ``[output]``.

    Attributes
    ----------
    metrics : list of str
        What the printed table shows, by the names of docs/metrics.md; files have all.
    """

    metrics: list[Metric] = msgspec.field(default_factory=lambda: list(DEFAULT_METRICS))


class Scenario(Table, frozen=True, kw_only=True):
    """A whole scenario file.

    Attributes
    ----------
    sites : list of Site or str
        The sites, or the name of a machine configuration out of `gridweave.scenarios.scenario.read`.
    workload : WorkloadTable
    header : Header
        The table ``[scenario]``.
    grid : GridTable
    network : NetworkTable
    faults : FaultsTable
    live : LiveTable
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
    live: LiveTable = msgspec.field(default_factory=LiveTable)
    output: Output = msgspec.field(default_factory=Output)
    net: NetTable | None = None


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of scenario files, for editors that check TOML."""
    schema = msgspec.json.schema(Scenario)
    for table in schema["$defs"].values():
        # An editor shows the first sentence; the rest of a docstring is for readers of the code.
        table["description"] = " ".join(table["description"].partition("\n\n")[0].split())
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A gridweave scenario", **schema}
    return dict(msgspec.json.decode(msgspec.json.encode(whole)))  # a default that is a tuple becomes an array
