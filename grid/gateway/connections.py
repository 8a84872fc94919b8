"""Who is connected from where, and who has failed to log in from there: one address alone cannot shut others out."""

from __future__ import annotations

import hashlib
import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from gridweave.grid.gateway.limits import Rates
from gridweave.grid.gateway.problems import RefusalError

C = TypeVar("C")

_MINUTE_S = 60.0
_MOST_GOOD = 10_000


def place_of(address: object) -> str:
    """Return what counts as one address: of IPv6 the first 64 bits, since one machine has all that begin so.

    Examples
    --------
    >>> place_of("192.0.2.7"), place_of("2001:db8:0:1:2:3:4:5"), place_of("::ffff:192.0.2.7"), place_of(None)
    ('192.0.2.7', '2001:db8:0:1::/64', '192.0.2.7', '')
    """
    try:
        found = ipaddress.ip_address(str(address).partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return str(found)


class OpenConnections(Generic[C]):
    """All connections: so many at most, in all and from one address.

    A new one beyond that takes the place of the one that has been idle for longest; if none is idle it is closed
    itself. Idle is a connection whose request has been answered, or has not come whole.

    Examples
    --------
    >>> connections = OpenConnections[str](3, 2)
    >>> [connections.opened(name, "192.0.2.1") for name in ("a", "b")]
    [None, None]
    >>> connections.busy("a")
    >>> connections.opened("c", "192.0.2.1")
    'b'
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._places: dict[C, str] = {}
        self._counts: Counter[str] = Counter()
        # The one that has been idle for longest first: all of them, and those from each address.
        self._idle: OrderedDict[C, None] = OrderedDict()
        self._idle_from: dict[str, OrderedDict[C, None]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def opened(self, connection: C, address: object) -> C | None:
        """Take in a new connection; return which one is to be closed for it, if one is: it is counted no more."""
        place = place_of(address)
        self._places[connection] = place
        self._counts[place] += 1
        over: C | None = None
        if self._counts[place] > self._most_of_one:
            over = next(iter(self._idle_from.get(place, ())), connection)
        elif len(self._places) > self._most:
            over = next(iter(self._idle), connection)
        self.idle(connection)
        if over is not None:
            self.closed(over)
        return over

    def busy(self, connection: C) -> None:
        """Take note that a connection has made a request."""
        self._idle.pop(connection, None)
        place = self._places.get(connection, "")
        if (idle := self._idle_from.get(place)) is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle_from[place]

    def idle(self, connection: C) -> None:
        """Take note that a connection waits for its next request."""
        place = self._places.get(connection)
        if place is not None:
            self._idle[connection] = None
            self._idle_from.setdefault(place, OrderedDict())[connection] = None

    def closed(self, connection: C) -> None:
        """Take note that a connection is gone."""
        self.busy(connection)
        place = self._places.pop(connection, None)
        if place is not None:
            self._counts[place] -= 1
            if not self._counts[place]:
                del self._counts[place]


class Logins:
    """How often a token may be wrong, by address; who was let in before is let in still.

    Examples
    --------
    >>> logins = Logins(2, lambda: 0.0)
    >>> for _ in range(2):
    ...     logins.check("192.0.2.1", "wrong")
    ...     logins.failed("192.0.2.1")
    >>> logins.good("right")
    >>> logins.check("192.0.2.1", "right")
    >>> logins.check("192.0.2.1", "wrong")
    Traceback (most recent call last):
    gridweave.grid.gateway.problems.RefusalError: 2 logins from 192.0.2.1 failed; wait, and use a valid token
    """

    def __init__(self, per_minute: float, now_s: Callable[[], float]) -> None:
        self._most = per_minute
        self._rates = Rates(per_minute / _MINUTE_S, per_minute, now_s)
        # Hashes of tokens that were good, the one seen last at the end.
        self._good: OrderedDict[bytes, None] = OrderedDict()

    def check(self, address: object, token: str) -> None:
        """Refuse a login from an address from which too many have failed, before the token is looked up."""
        place = place_of(address)
        wait_s = self._rates.needed_s(place)
        if wait_s > 0 and token_digest(token) not in self._good:
            problem = f"{self._most:g} logins from {place or 'there'} failed; wait, and use a valid token"
            raise RefusalError("too-many-failed-logins", problem, retry_after_s=wait_s)

    def failed(self, address: object) -> None:
        """Count a token that was wrong."""
        self._rates.wait_s(place_of(address))

    def good(self, token: str) -> None:
        """Remember a token that was right."""
        digest = token_digest(token)
        self._good[digest] = None
        self._good.move_to_end(digest)
        if len(self._good) > _MOST_GOOD:
            self._good.popitem(last=False)


def token_digest(token: str) -> bytes:
    """Return the hash of a token, or of its secret: all that is kept of it."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
