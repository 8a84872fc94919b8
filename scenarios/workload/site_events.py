"""What happens at a simulated site besides its jobs: reservations asked for in advance, and nodes that fail.

Nodes fail, drain and come back as docs/disciplines.md has it, "Nodes that fail".
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gridweave.errors import InputError, OptionError, TraceError, not_known
from gridweave.site.job import MAX_TIME_MS, MAX_WIDTH
from gridweave.site.messages import ReservationRequested

Request = tuple[int, ReservationRequested]
"""The instant in ms at which a reservation is requested, and the request."""


class ReservationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a site said to a request for a reservation.

    Attributes
    ----------
    reservation_id : int
    requested_ms : int
        The instant at which it was requested.
    start_ms, length_ms, width : int
        As they were asked for, and what was reserved if the site accepted.
    accepted : bool
    earliest_ms : int or None
        If it was refused: the earliest start, not before the one asked for, at which it would have been accepted then;
        None if there is none.
    reason : str or None
        If it was refused.
    """

    reservation_id: int
    requested_ms: int
    start_ms: int
    length_ms: int
    width: int
    accepted: bool
    earliest_ms: int | None = None
    reason: str | None = None


def check_requests(requests: Sequence[Request]) -> None:
    """Refuse reservations that could not be told apart, or that are requested before time zero.

    Raises
    ------
    OptionError
        With the id of the first that is wrong.
    """
    known: set[int] = set()
    for when_ms, request in requests:
        if request.reservation_id in known:
            raise OptionError("reservations", f"id {request.reservation_id} appears twice; ids are unique")
        if when_ms < 0:
            problem = f"{request.reservation_id} is requested at {when_ms} ms; time begins at 0"
            raise OptionError("reservations", problem)
        known.add(request.reservation_id)


KINDS = ("up", "drain", "down")
"""What happens to nodes, by the numbers that compiled code has for it."""

HEADER = ("at_ms", "kind", "first_node", "nodes")


class NodeEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to some nodes of a site.

    Attributes
    ----------
    at_ms : int
    kind : {"down", "drain", "up"}
        They fail, and what runs on them is lost; they leave when their jobs have ended; they come back.
    first_node, nodes : int
        The first of them, from 0, and how many they are.

    Raises
    ------
    InputError
        If a value is impossible.

    Examples
    --------
    >>> NodeEvent(at_ms=60_000, kind="down", first_node=0, nodes=4).kind
    'down'
    """

    at_ms: int
    kind: str
    first_node: int
    nodes: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind {not_known(self.kind, KINDS)}")
        for name, low, high in (("at_ms", 0, MAX_TIME_MS), ("first_node", 0, MAX_WIDTH), ("nodes", 1, MAX_WIDTH)):
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name} is {getattr(self, name)}; from {low} to {high}")


def check_node_events(events: Sequence[NodeEvent], nodes: int) -> None:
    """Raise InputError if an event is about nodes that a site of so many does not have."""
    for event in events:
        if event.first_node + event.nodes > nodes:
            last = event.first_node + event.nodes - 1
            raise InputError(f"node {last} goes {event.kind} at {event.at_ms} ms, and the site has 0 to {nodes - 1}")


def read_node_events(path: str | Path) -> list[NodeEvent]:
    """Read what happens to nodes from a CSV file with the columns `HEADER`.

    TraceError if the file cannot be read, or a line is no event; with the line and what is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text in UTF-8"
        raise TraceError(path, f"cannot be read: {reason}") from None
    rows = csv.reader(text.splitlines())
    header = next(rows, [])
    if tuple(header) != HEADER:
        raise TraceError(path, f"begins with {','.join(header)!r}; it begins with {','.join(HEADER)}")
    events = []
    for line, row in enumerate(rows, start=2):
        try:
            if len(row) != len(HEADER):
                raise InputError(f"has {len(row)} values; it needs {len(HEADER)}: {', '.join(HEADER)}")
            events.append(msgspec.convert(dict(zip(HEADER, row, strict=True)), NodeEvent, strict=False))
        except (InputError, msgspec.ValidationError) as error:
            raise TraceError(path, f"line {line}: {error}") from None
    return events
