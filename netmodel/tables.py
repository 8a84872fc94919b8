"""The tables by which a network is written down, as typed structs that a scenario embeds as ``[net]``.

Speeds are written with their units. What is wrong with a table is collected, so that it can be told all at once.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from gridweave.errors import InputError, ScenarioError

KeyPath = tuple[str | int, ...]
"""Where something stands in a document: keys from its root, and numbers of the elements of lists, from 0."""

ROUTES = ("latency", "bandwidth", "k-shortest")
EXCHANGES = ("synchronous", "overlapped")
CONTENTIONS = ("none", "static", "dynamic")
ACTIONS = ("slow", "fail", "restore", "partition", "heal")

EXACT_UP_TO = 2_000
"""If a job can be placed in no more ways than this, all are looked at, if nothing else is said."""

LATEST_MS = 10**14
"""No change comes later: instants are whole numbers of 64 bits."""

LOCAL_LATENCY_MS, LOCAL_BANDWIDTH_BPS = 0.01, 1e10
"""Of a message between two nodes of one site, if nothing else is said."""

SEGMENT_BYTES = 1460
"""Of a TCP packet in an Ethernet frame."""

DETOUR = 1.5
"""How much longer than the great circle a fibre is, if nothing else is said."""


def _one_of(names: tuple[str, ...], description: str) -> Meta:
    """Return what tells an editor the names; the checks refuse others with a message of their own."""
    return Meta(description=description, extra_json_schema={"enum": list(names)})


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all tables: unknown keys are refused."""


class NodeTable(_Table, frozen=True, kw_only=True):
    """One of ``[[net.nodes]]``: a router, or the place of a site.

    Attributes
    ----------
    latitude, longitude : float, optional
        In degrees; both or none.
    """

    name: str
    latitude: float | None = None
    longitude: float | None = None


class BackTable(_Table, frozen=True, kw_only=True):
    """The table ``back`` of a link: what differs in the other direction."""

    latency_ms: float | None = None
    bandwidth_bps: float | None = None
    bandwidth: str | None = None
    loss: float | None = None
    jitter_ms: float | None = None


class LinkTable(_Table, frozen=True, kw_only=True):
    """One of ``[[net.links]]``: a cable, with a link in each direction.

    Attributes
    ----------
    origin, target : str
        Nodes; in TOML ``from`` and ``to``.
    name : str
        Tells parallel cables apart.
    latency_ms : float, optional
        One way; from the positions of the nodes if left out.
    bandwidth : str, optional
        The same with its unit, such as "10 Gbps".
    loss : float
        Probability that a packet is lost.
    jitter_ms : float
        A message takes up to so much more, evenly distributed.
    one_way : bool
        Whether there is no link back.
    back : BackTable, optional
        What differs in the direction back.
    """

    origin: Annotated[str, Meta(description="Node at which the cable begins.")] = msgspec.field(name="from")
    target: Annotated[str, Meta(description="Node at which it ends.")] = msgspec.field(name="to")
    name: str = ""
    latency_ms: float | None = None
    bandwidth_bps: float | None = None
    bandwidth: str | None = None
    loss: float = 0.0
    jitter_ms: float = 0.0
    one_way: bool = False
    back: BackTable | None = None


class AttachTable(_Table, frozen=True, kw_only=True):
    """Where a site is attached, if by a line of its own.

    Attributes
    ----------
    latency_ms, loss, jitter_ms : float
        Of the line, in each direction.
    bandwidth_bps, bandwidth : float or str, optional
        Of the line, which needs one of them.
    """

    node: str
    latency_ms: float = 0.0
    bandwidth_bps: float | None = None
    bandwidth: str | None = None
    loss: float = 0.0
    jitter_ms: float = 0.0


class GeneratorTable(_Table, frozen=True, kw_only=True):
    """The table ``[net.generator]``: a graph made by a function of networkx.

    Attributes
    ----------
    name : str
        Of the function, such as "cycle_graph".
    arguments : dict
        Of the function, by name.
    seed : int
        Of functions that draw.
    latency_ms : float, optional
        Of every link.
    side_km : float, optional
        Where the function gives its nodes positions on a square: the length of its side, from which latencies follow.
    bandwidth_bps, bandwidth : float or str, optional
        Of every link.
    loss, jitter_ms : float
        Of every link.
    """

    name: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    seed: int = 1
    latency_ms: float | None = None
    side_km: float | None = None
    bandwidth_bps: float | None = None
    bandwidth: str | None = None
    loss: float = 0.0
    jitter_ms: float = 0.0


class ChangeTable(_Table, frozen=True, kw_only=True):
    """One of ``[[net.changes]]``: what happens to cables at an instant.

    Attributes
    ----------
    action : str
        ``slow`` (by ``factor``), ``fail`` or ``restore`` a cable; ``partition``: all cables between ``nodes`` and the
        others fail; ``heal``: they are restored.
    link : list of str
        The two ends of the cable, for the first three; and its name, if several have these ends.
    nodes : list of str
        For the last two.
    factor : float
        Which part of its bandwidth a slow cable has left, in (0, 1].
    """

    at_ms: int
    action: Annotated[str, _one_of(ACTIONS, "What happens.")]
    link: list[str] = msgspec.field(default_factory=list)
    nodes: list[str] = msgspec.field(default_factory=list)
    factor: float = 1.0


class FailureTable(_Table, frozen=True, kw_only=True):
    """The table ``[net.failures]``: cables that fail by chance, each on its own.

    Attributes
    ----------
    mean_up_ms, mean_down_ms : float
        Of the exponential times between failures and until repair.
    factor : float
        Which part of its bandwidth a cable has left meanwhile, in [0, 1); 0 if it fails.
    """

    mean_up_ms: float
    mean_down_ms: float
    factor: float = 0.0


class NetTable(_Table, frozen=True, kw_only=True):
    """The table ``[net]``: a network from one source, where the sites are, and how it is used.

    Attributes
    ----------
    file : str, optional
        GML or GraphML, by its suffix; relative to the scenario.
    attach : dict from str to str or AttachTable
        Site to node. A site that is not named is at the node of its own name.
    detour : float
        How many times as long as the great circle a fibre is, where latency comes from positions.
    bandwidth_bps, bandwidth : float or str, optional
        Of links that have none.
    routes : str
        ``latency``, ``bandwidth`` or ``k-shortest``.
    k : int
        Of the k shortest routes by latency the one with the most bandwidth is taken, under ``k-shortest``.
    exchange : str
        ``synchronous`` or ``overlapped``.
    contention : str
        ``none``, ``static`` or ``dynamic``.
    local_latency_ms, local_bandwidth_bps : float
        Of a message between two nodes of one site.
    segment_bytes : int
        Of the packets that can be lost.
    """

    file: str | None = None
    generator: GeneratorTable | None = None
    nodes: list[NodeTable] = msgspec.field(default_factory=list)
    links: list[LinkTable] = msgspec.field(default_factory=list)
    attach: dict[str, str | AttachTable] = msgspec.field(default_factory=dict)
    detour: Annotated[float, Meta(description="Length of a fibre over the great circle.")] = DETOUR
    bandwidth_bps: float | None = None
    bandwidth: str | None = None
    routes: Annotated[str, _one_of(ROUTES, "Which route is taken.")] = "latency"
    k: int = 4
    exchange: Annotated[str, _one_of(EXCHANGES, "Whether ranks wait for the slowest message.")] = "synchronous"
    contention: Annotated[str, _one_of(CONTENTIONS, "What jobs on the same links do to each other.")] = "none"
    local_latency_ms: float = LOCAL_LATENCY_MS
    local_bandwidth_bps: float = LOCAL_BANDWIDTH_BPS
    segment_bytes: int = SEGMENT_BYTES
    changes: list[ChangeTable] = msgspec.field(default_factory=list)
    failures: FailureTable | None = None


class Reporter(Protocol):
    """Whoever is told of problems; the report of a scenario is one."""

    def add(self, path: KeyPath, text: str) -> None:
        """Note what is wrong with the key at a path, and what would be right."""


class Problems:
    """The problems of one network, by the keys where they stand."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: list[tuple[KeyPath, str]] = []

    def add(self, path: KeyPath, text: str) -> None:
        """Note what is wrong, and what would be right, unless it is known."""
        problem = (path, " ".join(text.split()))
        if problem not in self.found:
            self.found.append(problem)

    def raise_if_any(self) -> None:
        """End here with a ScenarioError of all problems, if anything is wrong."""
        if self.found:
            raise ScenarioError([self._line(path, text) for path, text in self.found])

    def _line(self, path: KeyPath, text: str) -> str:
        name = ".".join(str(key) for key in path if not isinstance(key, int))
        return f"{self.source}: {name}: {text}" if name else f"{self.source}: {text}"


def speed_of(bps: float | None, text: str | None, path: KeyPath, report: Reporter, label: str = "") -> float | None:
    """Return a speed in bits per second, given as a number or as text with its unit; None if neither is given.

    What could not be read is told, and is 1 bit per second.
    """
    if bps is not None and text is not None:
        report.add((*path, "bandwidth"), f"{label}is given together with bandwidth_bps; leave one of them out")
    if bps is not None or text is None:
        return bps
    try:
        return parse_bandwidth(text)
    except InputError as error:
        report.add((*path, "bandwidth"), f"{label}{error}")
        return 1.0


PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SPEED = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([kKMGT]?)\s*(bps|bit/s|b/s|bits/s)\s*")


def parse_bandwidth(text: str) -> float:
    """Read a speed with its unit (bps or bit/s, with prefixes that are powers of 1000) as bits per second.

    Examples
    --------
    >>> parse_bandwidth("2.5 Gbps"), parse_bandwidth("155Mbit/s")
    (2500000000.0, 155000000.0)
    """
    found = _SPEED.fullmatch(text)
    if not found:
        raise InputError(
            f"{text!r} is not a speed; write a number and bps, kbps, Mbps, Gbps or Tbps, such as '10 Gbps'"
        )
    prefix = "k" if found.group(2) == "K" else found.group(2)
    return float(found.group(1)) * PREFIXES[prefix]


def show_bandwidth(bandwidth_bps: float) -> str:
    """Write a speed in the unit that suits it.

    Examples
    --------
    >>> show_bandwidth(2.5e9), show_bandwidth(155e6), show_bandwidth(float("inf"))
    ('2.5 Gbps', '155 Mbps', 'unlimited')
    """
    if bandwidth_bps == float("inf"):
        return "unlimited"
    for prefix in ("T", "G", "M", "k"):
        if bandwidth_bps >= PREFIXES[prefix]:
            return f"{bandwidth_bps / PREFIXES[prefix]:.4g} {prefix}bps"
    return f"{bandwidth_bps:.4g} bps"
