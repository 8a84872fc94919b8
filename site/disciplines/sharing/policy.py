"""The policy of a site with shared nodes, as its operator configures it (docs/sharing.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError, check_known
from gridweave.site.disciplines.sharing.kernels.nodes import MEMORY_SLACK
from gridweave.site.disciplines.sharing.kernels.pairing import (
    ADJACENT,
    ALONE,
    ALWAYS,
    CONSERVATIVE,
    EASY,
    FIRST,
    MATCHING,
    NO_BACKFILL,
    RESPONSE,
    U1,
    U2,
    SharingCodes,
)
from gridweave.site.disciplines.sharing.kernels.state import KIND, LONG, MEDIUM, SHORT
from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownModel
from gridweave.site.job import MAX_TIME_MS, MAX_WIDTH
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.resources.chunks import NodeKind, fields_set

NAME = "lomarc"
"""Name of the discipline."""

HEURISTICS = {"u1": U1, "u2": U2, "response": RESPONSE, "first": FIRST}
COSCHEDULING = {"none": ALONE, "lomarc": MATCHING, "always": ALWAYS, "adjacent": ADJACENT}
BACKFILLS = {"easy": EASY, "none": NO_BACKFILL, "conservative": CONSERVATIVE}
CPUS = ("hyperthreaded", "standard")

KIND_FIELDS = ("count", "cores", "threads", "memory", "cpu")
"""The fields of `NodeKind` that matter on shared nodes; nodes that are shared need no name."""

TURNS = 2.0
"""Slowdown of two jobs that always need the same resource: the expected worst case if any two jobs may share nodes."""

MAX_LANES = 64
"""Maximum number of hardware threads per node."""


def _check_number(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise OptionError(option, f"is {value:g}; expected a number from {low:,.6g} to {high:,.15g}")


def check_kind(kind: NodeKind) -> None:
    """Raise OptionError if nodes of this kind cannot be shared."""
    _check_number("count", kind.count, 1, MAX_WIDTH)
    _check_number("cores", kind.cores, 1, MAX_LANES)
    _check_number("threads", kind.threads, 1, MAX_LANES)
    _check_number("cores x threads", kind.cores * kind.threads, 1, MAX_LANES)
    _check_number("memory", kind.memory, 1e-6, 1e6)
    check_known("cpu", kind.cpu, CPUS)
    if unread := fields_set(kind, ignore=("name", *KIND_FIELDS)):
        raise OptionError(unread[0], f"is not for shared nodes; expected only {', '.join(KIND_FIELDS)}")


def is_usable(kind: NodeKind, cores: npt.ArrayLike, memory: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return, for each job, whether it can use a node of this kind, given the cores and memory that it needs."""
    return np.asarray((np.asarray(cores) <= kind.cores) & (np.asarray(memory) <= kind.memory + MEMORY_SLACK))


class SharingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs share a site's nodes.

    Raises
    ------
    OptionError
        If a name is unknown or a number is out of range.

    Examples
    --------
    >>> SharingPolicy(heuristic="response").label
    'L-R'
    >>> SharingPolicy(max_slowdown=0.9)
    Traceback (most recent call last):
    gridweave.errors.OptionError: max_slowdown: is 0.9; expected a number from 1 to 1,000,000
    """

    # Which jobs share nodes: "lomarc": jobs that match; "none" (PSS): no jobs; "always" (AC): any two jobs;
    # "adjacent" (AM): a job and the next job in the queue, if they match.
    coscheduling: str = "lomarc"
    # How the best match is chosen: L-U1, L-U2, L-R, L-FM. Only used with "lomarc".
    heuristic: str = "u1"
    cpu: str = "hyperthreaded"  # CPU of the nodes if only the number of nodes is given
    max_slowdown: float = 1.6  # MAX_SLOWDOWN, at least 1
    # The longest estimate of a short job and of a medium job.
    short_up_to_ms: int = 60_000
    medium_up_to_ms: int = 3_600_000
    aging_ms: float | None = None  # T_age; None: the average wait so far; infinity: no aging
    # The site is weakly loaded if the widths of the waiting jobs add up to at most a fraction 1 - load_threshold of
    # the idle nodes.
    load_threshold: float = 0.2
    partners: int | None = None  # maximum number of partners per job; None: threads of the largest node minus 1
    backfill: str = "easy"
    joins_behind: bool = True  # whether a job behind the head may join a running job instead of only using idle nodes

    def __post_init__(self) -> None:
        check_known("coscheduling", self.coscheduling, COSCHEDULING)
        check_known("heuristic", self.heuristic, HEURISTICS)
        check_known("backfill", self.backfill, BACKFILLS)
        check_known("cpu", self.cpu, CPUS)
        _check_number("max_slowdown", self.max_slowdown, 1, 1e6)
        _check_number("short_up_to_ms", self.short_up_to_ms, 0, MAX_TIME_MS)
        _check_number("medium_up_to_ms", self.medium_up_to_ms, self.short_up_to_ms, MAX_TIME_MS)
        _check_number("load_threshold", self.load_threshold, 0, 1)
        if self.aging_ms is not None:
            _check_number("aging_ms", self.aging_ms, 1, float("inf"))
        if self.partners is not None:
            _check_number("partners", self.partners, 1, MAX_LANES)

    @property
    def label(self) -> str:
        """The paper's name for this variant, followed by the options that differ from the paper."""
        name = {"none": "PSS", "always": "AC", "adjacent": "AM"}.get(self.coscheduling)
        if name is None:
            name = {"u1": "L-U1", "u2": "L-U2", "response": "L-R", "first": "L-FM"}[self.heuristic]
            if self.cpu == "standard":
                name = "L-N" if self.heuristic == "u1" else f"{name} standard"
        plain = SharingPolicy(coscheduling=self.coscheduling, heuristic=self.heuristic, cpu=self.cpu)
        fields = (*self.__struct_fields__[3:],)
        changed = [
            f"{option}={getattr(self, option)}" for option in fields if getattr(self, option) != getattr(plain, option)
        ]
        return " ".join([name, *changed])

    def on(self, nodes: int | Sequence[NodeKind] | None) -> tuple[int | None, SharedNodes]:
        """Return the number of nodes and the policy of a site with these nodes; a number stands for identical nodes."""
        return SharedNodes(sharing=self).on(nodes)

    def codes(self, kinds: Sequence[NodeKind]) -> SharingCodes:
        """Return the policy in the form that the kernels read."""
        age_ms = 0 if self.aging_ms is None else int(min(self.aging_ms, float(NEVER_MS)))
        most = max(kind.cores * kind.threads for kind in kinds) - 1
        return SharingCodes(
            coscheduling=COSCHEDULING[self.coscheduling],
            heuristic=HEURISTICS[self.heuristic] if self.coscheduling == "lomarc" else FIRST,
            backfill=BACKFILLS[self.backfill],
            max_slowdown=float(self.max_slowdown),
            age_ms=age_ms,
            load_part=1.0 - self.load_threshold,
            partners=most if self.partners is None else self.partners,
            joins_behind=self.joins_behind,
        )

    def classes(self, estimate_ms: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return each job's class according to its estimate: 0 short, 1 medium, 2 long.

        Examples
        --------
        >>> SharingPolicy().classes([60_000, 60_001, 3_600_001]).tolist()
        [0, 1, 2]
        """
        estimate = np.asarray(estimate_ms, np.int64)
        longer = np.where(estimate <= self.medium_up_to_ms, MEDIUM, LONG)
        return np.where(estimate <= self.short_up_to_ms, SHORT, longer).astype(np.int64)


VARIANTS: dict[str, SharingPolicy] = {
    "PSS": SharingPolicy(coscheduling="none"),
    "AC": SharingPolicy(coscheduling="always"),
    "AM": SharingPolicy(coscheduling="adjacent"),
    "L-U1": SharingPolicy(heuristic="u1"),
    "L-U2": SharingPolicy(heuristic="u2"),
    "L-R": SharingPolicy(heuristic="response"),
    "L-FM": SharingPolicy(heuristic="first"),
    "L-N": SharingPolicy(heuristic="u1", cpu="standard"),
}
"""The paper's variants, by name."""


def kind_array(kinds: Sequence[NodeKind]) -> npt.NDArray[np.void]:
    """Return kinds of nodes as an array for the kernels."""
    rows = [(kind.cores, kind.threads, kind.cpu == "hyperthreaded", kind.memory) for kind in kinds]
    return np.array(rows, KIND)


def threads_of(kinds: Sequence[NodeKind]) -> tuple[int, int]:
    """Return the largest number of cores in any node, and of hardware threads in any core."""
    return max(kind.cores for kind in kinds), max(kind.threads for kind in kinds)


class SharedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a site with the discipline ``lomarc``.

    Raises
    ------
    OptionError
        If the formula is unknown, or a kind of nodes has an invalid value.
    """

    sharing: SharingPolicy = SharingPolicy()
    # All the site's nodes, by kind; empty: identical nodes with one core, two threads, and the policy's CPU.
    kinds: tuple[NodeKind, ...] = ()
    formula: str = "whole"  # slowdown formula, a name in `gridweave.site.disciplines.sharing.slowdown_tables.FORMULAS`

    def __post_init__(self) -> None:
        SlowdownModel(self.formula)
        for kind in self.kinds:
            check_kind(kind)

    @property
    def discipline(self) -> str:
        """The name of the discipline."""
        return NAME

    @property
    def label(self) -> str:
        """The name of the policy in tables and plots."""
        return self.sharing.label

    def kinds_of(self, nodes: int) -> tuple[NodeKind, ...]:
        """Return the site's kinds of nodes; raise OptionError if they do not add up to `nodes`."""
        kinds = self.kinds or (NodeKind(count=nodes, cpu=self.sharing.cpu),)
        check_kind(kinds[0])
        count = sum(kind.count for kind in kinds)
        if count != nodes:
            raise OptionError("kinds", f"have {count} nodes together, but the site has {nodes}")
        return kinds

    @property
    def threads(self) -> tuple[int, int]:
        """The largest number of cores in any node, and of hardware threads in any core."""
        return threads_of(self.kinds or (NodeKind(count=1, cpu=self.sharing.cpu),))

    def longest_stay_ms(self, estimate_ms: int) -> int:
        """Return how long a job with this estimate may occupy its nodes: the estimate times the largest slowdown."""
        slowest = {"none": 1.0, "always": max(TURNS, self.sharing.max_slowdown)}
        return math.ceil(estimate_ms * slowest.get(self.sharing.coscheduling, self.sharing.max_slowdown))

    def on(self, nodes: int | Sequence[NodeKind] | None) -> tuple[int | None, SharedNodes]:
        """Return the number of nodes and the policy of a site with these nodes; a number leaves `kinds` unchanged."""
        if not isinstance(nodes, Sequence):
            return nodes, self
        if not nodes:
            raise InputError("a site has at least one kind of nodes")
        return sum(kind.count for kind in nodes), msgspec.structs.replace(self, kinds=tuple(nodes))
