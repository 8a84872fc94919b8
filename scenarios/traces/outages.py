"""Read node events for a simulation, from our own file format or from a machine's log (docs/traces.md).

The header shows which of two kinds of log a file is: the output of Slurm's ``sacctmgr --parsable2 show event``, or the
Los Alamos failure data (LA-UR-05-7318, 1996 to 2005), with one line per node failure.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gridweave.errors import InputError, TraceError
from gridweave.scenarios.traces.text import csv_rows, open_trace, read_text, short
from gridweave.scenarios.workload.site_events import NodeEvent
from gridweave.scenarios.workload.table import MS_PER_S

SLURM = ("NodeName", "TimeStart", "TimeEnd", "State")
"""Columns of Slurm's node events, separated by ``|``."""

LOS_ALAMOS = ("System", "nodenumz", "Prob Started", "Prob Fixed")
"""Columns of the Los Alamos failure data; ``nodenumz`` is a node's number within its system, from 0."""

_LOS_ALAMOS_DATE = "%m/%d/%Y %H:%M"
_NO_DATE = ("", "Unknown", "None")
_NODE = re.compile(r"\d{1,9}", re.ASCII)

HEADER = NodeEvent.__struct_fields__
"""Columns of our CSV files of node events."""

_Rows = Iterable[tuple[int, Mapping[str, str]]]
"""The lines of a log, as pairs of the line number and the values by column name."""


class Outage(NamedTuple):
    """A period in which a node was unavailable; times are in seconds since 1970 on the clock of the log."""

    node: int
    kind: str  # ``down``: the node's jobs were lost; ``drain``: they could finish
    start_s: float
    end_s: float  # infinite if the log has no end time


def read_outages(path: str | Path, *, system: str | None = None) -> list[Outage]:
    """Read the times at which nodes were down or drained from a log (plain, gzip or xz), sorted by start.

    Slurm nodes are numbered from 0 in the order of their names, counting only nodes in the log. `system` selects a
    system of the Los Alamos data and is optional if there is only one. Raises TraceError, with the line number, if the
    file cannot be read, its format is unknown, `system` is missing or unknown, or a line is invalid.
    """
    with open_trace(path) as stream:
        lines = stream.read().decode("utf-8-sig", "replace").splitlines()
    table = csv_rows(path, lines, delimiter="|" if lines and "|" in lines[0] else ",")
    names = [name.strip() for name in next(table, (1, []))[1]]
    rows = _rows(path, names, table)
    if set(names) >= set(SLURM):
        outages = _of_slurm(path, rows)
    elif set(names) >= set(LOS_ALAMOS):
        outages = _of_los_alamos(path, rows, system)
    else:
        kinds = "sacctmgr --parsable2 show event (NodeName|TimeStart|...) and the failure data of Los Alamos"
        raise TraceError(path, f"has an unknown header; supported logs: {kinds}", line=1)
    return sorted(outages, key=lambda outage: (outage.start_s, outage.node))


def _rows(path: str | Path, names: list[str], table: Iterable[tuple[int, list[str]]]) -> _Rows:
    for line, values in table:
        if values and len(values) < len(names):  # the missing value may be the end
            raise TraceError(path, f"has {len(values)} values; the header has {len(names)}", line=line)
        if values:
            yield line, dict(zip(names, values, strict=False))


def _of_slurm(path: str | Path, rows: _Rows) -> list[Outage]:
    """Return the outages in a Slurm log; ignore events that concern the whole cluster or only reserve nodes."""
    events = []
    for line, row in rows:
        kind = _kind_of(row["State"])
        if not row["NodeName"] or not kind:
            continue
        start_s, end_s = _instants(path, line, row, SLURM[1], SLURM[2], dt.datetime.fromisoformat)
        events.append((row["NodeName"], kind, start_s, end_s))
    numbers = {name: number for number, name in enumerate(sorted({event[0] for event in events}, key=natural_order))}
    return [Outage(numbers[name], kind, start_s, end_s) for name, kind, start_s, end_s in events]


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers within names by value; leading zeros only break ties.

    Examples
    --------
    >>> sorted(["n10", "n9", "m1", "n09"], key=natural_order)
    ['m1', 'n09', 'n9', 'n10']
    """
    parts = re.split(r"(\d+)", name)
    # Once leading zeros are stripped, the longer number is larger.
    numbered = [(len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (-1, part) for part in parts]
    return [*numbered, (-1, name)]


def _kind_of(state: str) -> str:
    """Return the kind of outage for a Slurm node state; "" if the node was available."""
    state = state.upper()
    if any(word in state for word in ("DOWN", "FAIL", "NO_RESPOND", "NOT_RESPONDING")):
        return "down"
    return "drain" if "DRAIN" in state else ""


def _of_los_alamos(path: str | Path, rows: _Rows, system: str | None) -> list[Outage]:
    lines = [(line, row) for line, row in rows if row["System"]]
    systems = sorted({row["System"] for _, row in lines}, key=natural_order)
    if system is None and len(systems) > 1:
        raise TraceError(path, f"has the systems {', '.join(systems)}; choose one")
    if system is not None and system not in systems:
        raise TraceError(path, f"has no system {system!r:.40}; expected one of {', '.join(systems)}")

    def instant(text: str) -> dt.datetime:
        return dt.datetime.strptime(text, _LOS_ALAMOS_DATE)  # noqa: DTZ007 - the clock of the log

    outages = []
    for line, row in lines:
        if row["System"] != (system or systems[0]):
            continue
        start_s, end_s = _instants(path, line, row, LOS_ALAMOS[2], LOS_ALAMOS[3], instant)
        if not _NODE.fullmatch(row["nodenumz"]):
            raise TraceError(path, f"{short(row['nodenumz'])!r} is not the number of a node", line=line)
        outages.append(Outage(int(row["nodenumz"]), "down", start_s, end_s))
    return outages


def _instants(
    path: str | Path, line: int, row: Mapping[str, str], start: str, end: str, read: Callable[[str], dt.datetime]
) -> tuple[float, float]:
    """Return the start and end of an outage; the end is infinite if missing."""

    def instant(name: str) -> float:
        try:
            return math.inf if row[name] in _NO_DATE else read(row[name]).replace(tzinfo=dt.UTC).timestamp()
        except (ValueError, OverflowError):
            raise TraceError(path, f"{short(row[name])!r} is not a date and time", line=line, field=name) from None

    first, last = instant(start), instant(end)
    if not first <= last or first == math.inf:
        raise TraceError(path, f"is not an outage: it ends at {row[end]} and starts at {row[start]}", line=line)
    return first, last


def node_events(outages: Sequence[Outage], *, start_unix_s: int) -> list[NodeEvent]:
    """Convert outages to a simulation's node events; ``start_unix_s`` is time 0 of the simulation on the log's clock.

    If a node's outages overlap or follow each other immediately, the node recovers after the last of them. A draining
    node may also go down. Outages that ended before time 0 are ignored; an outage in progress at time 0 starts at
    time 0.

    Examples
    --------
    >>> outages = [Outage(0, "drain", 10, 40), Outage(0, "down", 20, 30), Outage(1, "down", -5, 15)]
    >>> [(event.at_ms, event.kind, event.first_node) for event in node_events(outages, start_unix_s=0)]
    [(0, 'down', 1), (10000, 'drain', 0), (15000, 'up', 1), (20000, 'down', 0), (40000, 'up', 0)]
    """
    of_node: dict[int, list[Outage]] = {}
    for outage in outages:
        if outage.end_s > max(start_unix_s, outage.start_s):
            of_node.setdefault(outage.node, []).append(outage)
    events = [
        NodeEvent(at_ms=round((max(at_s, start_unix_s) - start_unix_s) * MS_PER_S), kind=kind, first_node=node)
        for node, spans in of_node.items()
        for at_s, kind in _changes(spans)
    ]
    return sorted(events, key=lambda event: (event.at_ms, event.first_node))


def _changes(spans: list[Outage]) -> Iterator[tuple[float, str]]:
    """Yield the times and kinds of one node's events."""
    until_s, is_down = -math.inf, False
    for outage in sorted(spans, key=lambda span: (span.start_s, span.kind != "down")):
        if outage.start_s > until_s:
            if until_s > -math.inf:
                yield until_s, "up"
            is_down = False
            yield outage.start_s, outage.kind
        elif outage.kind == "down" and not is_down:
            yield outage.start_s, "down"
        is_down = is_down or outage.kind == "down"
        until_s = max(until_s, outage.end_s)
    if until_s < math.inf:
        yield until_s, "up"


def read_node_events(path: str | Path) -> list[NodeEvent]:
    """Read node events from a CSV file with the columns `HEADER`.

    Raises TraceError, with the line number and the problem, if the file cannot be read or a line is invalid.
    """
    rows = csv_rows(path, read_text(path).splitlines())
    _, header = next(rows, (1, []))
    if tuple(header) != HEADER:
        raise TraceError(path, f"begins with {','.join(header)!r}; expected {','.join(HEADER)}")
    events = []
    for line, row in rows:
        try:
            if len(row) != len(HEADER):
                raise InputError(f"has {len(row)} values; it needs {len(HEADER)}: {', '.join(HEADER)}")
            events.append(msgspec.convert(dict(zip(HEADER, row, strict=True)), NodeEvent, strict=False))
        except (InputError, msgspec.ValidationError) as error:
            raise TraceError(path, f"line {line}: {error}") from None
    return events


def node_events_text(events: Sequence[NodeEvent]) -> str:
    """Format node events as the text of a file that `read_node_events` can read."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows((event.at_ms, event.kind, event.first_node, event.nodes) for event in events)
    return text.getvalue()
