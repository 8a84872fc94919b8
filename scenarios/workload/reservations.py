"""Advance reservations of a simulated site: what is asked for, and what the site says to it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gridweave.errors import OptionError
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
