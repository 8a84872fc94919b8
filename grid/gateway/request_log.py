"""One line of JSON for each request, without secrets."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime

import msgspec

logger = logging.getLogger("gridweave.gateway.requests")

_GOOD_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


class Line(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What is known of a request in the end.

    Attributes
    ----------
    time : str
    id : str
        The id of the request, as in the story of the jobs that it handed in.
    user, token : str
        The token by its id.
    method, route, target : str
        The route by its name; the target is the job, site or token in its path.
    status : int
        499: the client went away before the answer.
    duration_ms : float
    bytes_in, bytes_out : int
    jobs : int
        How many it was about.
    problem : str
        The kind of refusal.
    """

    time: str
    id: str
    user: str = ""
    token: str = ""
    method: str
    route: str = ""
    target: str = ""
    status: int
    duration_ms: float
    bytes_in: int = 0
    bytes_out: int = 0
    jobs: int = 0
    problem: str = ""


def time_text(now_ms: int) -> str:
    """Return an instant as logs have it.

    Examples
    --------
    >>> time_text(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def good_id(given: str) -> bool:
    """Return whether the id that a client gave its request can be used.

    Examples
    --------
    >>> good_id("batch-7.3"), good_id("two words"), good_id("")
    (True, False, False)
    """
    return _GOOD_ID.fullmatch(given) is not None


def write(line: Line) -> None:
    """Write a line."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", msgspec.json.encode(line).decode())
