"""Events at a simulated site other than job events: requests for advance reservations, and node failures and drains.

docs/disciplines.md, "Nodes that fail", describes how nodes fail, drain and recover.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gridweave.errors import InputError, OptionError, not_known
from gridweave.site.job import MAX_TIME_MS, MAX_WIDTH
from gridweave.site.messages import ReservationRequested

Request = tuple[int, ReservationRequested]
"""The time of a reservation request in ms, and the request."""


class ReservationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A site's answer to a reservation request.

    Attributes
    ----------
    reservation_id : int
    requested_ms : int
        Time of the request.
    start_ms, length_ms, width : int
        The requested reservation.
    accepted : bool
    earliest_ms : int or None
        If refused: the earliest start, at or after the requested start, that would have been accepted, if any.
    reason : str or None
        Why the request was refused.
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
    """Reject duplicate reservation ids and requests before time zero.

    Raises
    ------
    OptionError
        If a request has a repeated id or comes before time zero; the message names the first such reservation.
    """
    seen: set[int] = set()
    for when_ms, request in requests:
        if request.reservation_id in seen:
            raise OptionError("reservations", f"id {request.reservation_id} appears twice; ids are unique")
        if when_ms < 0:
            problem = f"{request.reservation_id} is requested at {when_ms} ms; time begins at 0"
            raise OptionError("reservations", problem)
        seen.add(request.reservation_id)


KINDS = ("up", "drain", "down")
"""Kinds of node events; compiled code identifies a kind by its index."""


class NodeEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A state change of consecutive nodes of a site.

    Attributes
    ----------
    at_ms : int
    kind : {"down", "drain", "up"}
        ``down``: the nodes fail and their jobs are lost. ``drain``: the nodes leave service as soon as their jobs have
        ended. ``up``: the nodes return to service.
    first_node, nodes : int
        Index of the first node, from 0, and the number of nodes.

    Raises
    ------
    InputError
        If a value is out of range.

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
                raise InputError(f"{name} is {getattr(self, name)}; expected {low} to {high}")


def check_node_events(events: Sequence[NodeEvent], nodes: int) -> None:
    """Raise InputError if an event refers to a node that a site with ``nodes`` nodes does not have."""
    for event in events:
        if event.first_node + event.nodes > nodes:
            last = event.first_node + event.nodes - 1
            raise InputError(
                f"node {last} goes {event.kind} at {event.at_ms} ms, but the site has nodes 0 to {nodes - 1}"
            )
