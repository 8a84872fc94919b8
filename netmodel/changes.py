"""Links that slow down, fail and recover, at given times or at random (docs/netmodel.md, "Faults and change")."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from gridweave.errors import InputError, OptionError, check_known
from gridweave.netmodel.tables import ACTIONS, LATEST_MS, ChangeTable, NetTable, Reporter
from gridweave.netmodel.topology import FloatArray, IntArray, Topology, check_number

CHANCE = "chance"
"""The `CableChange.cause` of random failures."""


@dataclass(frozen=True, slots=True)
class CableChange:
    """A change to some cables at a given time.

    Attributes
    ----------
    cause : str
        A later change with the same cause replaces this one. If several causes affect a cable, the lowest factor
        applies.
    factor : float
        Fraction of their bandwidth that the cables keep: 0 if they fail, 1 once this cause is over.
    """

    at_ms: int
    cause: str
    cables: tuple[int, ...]
    factor: float


def written_changes(tables: Sequence[ChangeTable], topology: Topology, report: Reporter) -> list[CableChange]:
    """Return the changes listed in tables, sorted by time; changes at the same time keep their order."""
    changes: list[CableChange] = []
    for number, table in enumerate(tables):
        try:
            changes.append(_change(table, topology))
        except InputError as error:
            option = error.option if isinstance(error, OptionError) else ""
            text = error.problem if isinstance(error, OptionError) else str(error)
            report.add(("changes", number, *([option] if option else [])), text)
    changes.sort(key=lambda change: change.at_ms)
    partitions: set[str] = set()
    for change in changes:
        if change.cause != "link" and change.factor == 0:
            partitions.add(change.cause)
        elif change.cause != "link" and change.cause not in partitions:
            report.add(("changes",), f"at {change.at_ms} ms heals the {change.cause}, but there is none at that time")
    return changes


def _change(table: ChangeTable, topology: Topology) -> CableChange:
    """Convert one listed change; raise InputError if the change is invalid."""
    check_known("action", table.action, ACTIONS)
    if not 0 <= table.at_ms <= LATEST_MS:
        right = "at least 0" if table.at_ms < 0 else f"at most {LATEST_MS:,}"
        raise OptionError("at_ms", f"is {table.at_ms}; expected {right} ms")
    if table.action in ("partition", "heal"):
        if not table.nodes or table.link:
            raise OptionError("nodes", f"must name the nodes to {table.action}, and link must be empty")
        cables = _cables_around(topology, table.nodes)
        if not cables:
            raise OptionError("nodes", f"{', '.join(table.nodes)} have no link to any other node")
        cause = f"partition of {', '.join(sorted(set(table.nodes)))}"
        return CableChange(table.at_ms, cause, cables, 0.0 if table.action == "partition" else 1.0)
    if table.nodes or len(table.link) not in (2, 3):
        right = f"must name the link to {table.action}: its two ends, and its name if it has one; nodes must be empty"
        raise OptionError("link", right)
    if table.action == "slow" and not 0 < table.factor < 1:
        raise OptionError(
            "factor", f"is {table.factor:g}; expected the fraction of its bandwidth that a link keeps, between 0 and 1"
        )
    name = table.link[2] if len(table.link) == 3 else None
    cables = tuple(topology.cables_between(table.link[0], table.link[1], name))
    return CableChange(table.at_ms, "link", cables, {"slow": table.factor, "fail": 0.0, "restore": 1.0}[table.action])


def _cables_around(topology: Topology, nodes: Sequence[str]) -> tuple[int, ...]:
    """Return the cables that join ``nodes`` to the other nodes."""
    inside = np.zeros(len(topology.nodes), np.bool_)
    inside[[topology.node_number(node) for node in nodes]] = True
    crossing = inside[topology.source] != inside[topology.target]
    return tuple(int(cable) for cable in np.unique(topology.cable[crossing]))


def random_changes(
    topology: Topology,
    *,
    mean_up_ms: float,
    mean_down_ms: float,
    until_ms: int,
    rng: Generator,
    factor: float = 0.0,
    cables: Iterable[int] | None = None,
) -> list[CableChange]:
    """Draw random failures: each cable independently alternates between exponentially distributed up and down times.

    Parameters
    ----------
    until_ms : int
        Every failure begins before this time. Repairs may come later.
    rng : numpy.random.Generator
        Drawn from cable by cable, in ascending order.
    factor : float
        Fraction of its bandwidth that a cable keeps during a failure.
    cables : iterable of int, optional
        Cables that can fail; defaults to all.

    Returns
    -------
    list of CableChange
        Sorted by time, then by cable.

    Raises
    ------
    OptionError
        If ``mean_up_ms`` or ``mean_down_ms`` is not above 0, or ``factor`` is not in [0, 1).
    """
    check_number("mean_up_ms", mean_up_ms, 0.0, "more than 0 ms", above=True)
    check_number("mean_down_ms", mean_down_ms, 0.0, "more than 0 ms", above=True)
    if not 0 <= factor < 1:
        raise OptionError("factor", f"is {factor:g}; expected a fraction of the bandwidth from 0 to below 1")
    changes: list[CableChange] = []
    for cable in sorted({int(cable) for cable in topology.cable} if cables is None else set(cables)):
        now_ms = math.ceil(rng.exponential(mean_up_ms))
        while now_ms < until_ms:
            changes.append(CableChange(now_ms, CHANCE, (cable,), factor))
            now_ms += max(1, math.ceil(rng.exponential(mean_down_ms)))
            changes.append(CableChange(now_ms, CHANCE, (cable,), 1.0))
            now_ms += max(1, math.ceil(rng.exponential(mean_up_ms)))
    return sorted(changes, key=lambda change: (change.at_ms, change.cables))


def all_changes(
    table: NetTable, topology: Topology, *, until_ms: int, rng: Generator, report: Reporter
) -> list[CableChange]:
    """Return a table's listed changes and its random failures before ``until_ms``, sorted by time."""
    changes = written_changes(table.changes, topology, report)
    if table.failures is not None:
        changes += random_changes(
            topology,
            mean_up_ms=table.failures.mean_up_ms,
            mean_down_ms=table.failures.mean_down_ms,
            until_ms=until_ms,
            rng=rng,
            factor=table.failures.factor,
        )
    return sorted(changes, key=lambda change: change.at_ms)


@dataclass(frozen=True, eq=False)
class Timetable:
    """The bandwidth of a topology's cables over time.

    Attributes
    ----------
    topology : Topology
        The network before the first change.
    instants_ms : numpy.ndarray of int64, shape (instants,)
        Times of the changes, ascending.
    factors : numpy.ndarray of float64, shape (instants + 1, cables)
        Fraction of its bandwidth that each cable has before the first change and after each change.
    """

    topology: Topology
    instants_ms: IntArray
    factors: FloatArray

    @classmethod
    def of(cls, topology: Topology, changes: Iterable[CableChange]) -> Timetable:
        """Build the timetable of changes; changes at the same time apply in the given order."""
        causes: list[dict[str, float]] = [{} for _ in range(topology.n_cables)]
        current = np.ones(topology.n_cables)
        instants: list[int] = []
        rows = [current.copy()]
        for change in sorted(changes, key=lambda change: change.at_ms):
            for cable in change.cables:
                causes[cable][change.cause] = change.factor
                current[cable] = min(causes[cable].values())
            if instants and instants[-1] == change.at_ms:
                rows[-1] = current.copy()
            else:
                instants.append(change.at_ms)
                rows.append(current.copy())
        return cls(topology, np.array(instants, np.int64), np.array(rows))

    def period_of(self, now_ms: int) -> int:
        """Return the index of the period that contains a time; 0 before the first change."""
        return int(np.searchsorted(self.instants_ms, now_ms, side="right"))
