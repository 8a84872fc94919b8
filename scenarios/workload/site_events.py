"""What happens at a simulated site besides its jobs: reservations asked for in advance, and nodes that fail.

Nodes fail, drain and come back as docs/disciplines.md has it, "Nodes that fail".
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gridweave.errors import InputError, OptionError, not_known
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
