"""Limits on open connections and failed logins per address, so that one client cannot lock out others."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import socket
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from gridweave.grid.gateway.limits import Rates
from gridweave.grid.gateway.problems import RefusalError

C = TypeVar("C")
T = TypeVar("T")

_MINUTE_S = 60.0
_MOST_KNOWN = 10_000

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ALL_STATES = _NO_COOKIE = 0xFFFFFFFF

_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_QUESTION = struct.Struct("=BBBBI")  # inet_diag_req_v2, before the socket
_SOCKET = struct.Struct(">HH16s16s")  # inet_diag_sockid: ports and addresses
_REST = struct.Struct("=III")  # ... interface and cookie
_UID = struct.Struct("=I")
_UID_AT = _HEADER.size + 4 + _SOCKET.size + _REST.size + 12  # after inet_diag_msg's state, socket, timer and queues

_WAIT_S = 0.5


def address_key(address: object) -> str:
    """Return the key of an address: for IPv6 its /64 network, because one machine may own every address in it.

    Examples
    --------
    >>> [address_key(address) for address in ("192.0.2.7", "2001:db8:0:1:2:3:4:5", "::ffff:192.0.2.7", None)]
    ['192.0.2.7', '2001:db8:0:1::/64', '192.0.2.7', '']
    """
    try:
        ip = ipaddress.ip_address(str(address).partition("%")[0])
    except ValueError:
        return ""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is None:
            return str(ipaddress.ip_network((ip, 64), strict=False))
        ip = ip.ipv4_mapped
    return str(ip)


def uid_of(connection: asyncio.BaseTransport | None) -> int | None:
    """Return the uid of the user at the other end of a local connection; None if the connection is not local.

    The kernel reports the uid (sock_diag(7)); also None if the kernel module ``tcp_diag`` is missing.
    """
    peer, own = (connection and connection.get_extra_info(name) for name in ("peername", "sockname"))
    if not peer or not own:
        return None
    try:
        return _uid_of(peer[:2], own[:2])
    except (OSError, struct.error):
        return None


def _uid_of(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Return the uid of the owner of this machine's socket from `local` to `remote`, or None."""
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    addresses = (socket.inet_pton(family, address.partition("%")[0]).ljust(16, b"\0") for address, _ in (local, remote))
    socket_id = _SOCKET.pack(local[1], remote[1], *addresses) + _REST.pack(0, _NO_COOKIE, _NO_COOKIE)
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + socket_id
    header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_WAIT_S)
        kernel.sendto(header + question, (0, 0))
        answer = kernel.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    return int(_UID.unpack_from(answer, _UID_AT)[0])


class OpenConnections(Generic[C]):
    """All open connections, limited in total and by address.

    A new connection beyond a limit replaces the connection that has been idle longest, or is itself closed if none is
    idle. A connection is idle until its request has arrived completely, and again once the request is answered.

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
        self._keys: dict[C, str] = {}
        self._counts: Counter[str] = Counter()
        # Idle connections, longest idle first: all of them, and by address.
        self._idle: OrderedDict[C, None] = OrderedDict()
        self._idle_from: dict[str, OrderedDict[C, None]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def opened(self, connection: C, address: object) -> C | None:
        """Add a connection; return the connection to close in exchange, which has already been removed, or None."""
        key = address_key(address)
        self._keys[connection] = key
        self._counts[key] += 1
        over: C | None = None
        if self._counts[key] > self._most_of_one:
            over = next(iter(self._idle_from.get(key, ())), connection)
        elif len(self._keys) > self._most:
            over = next(iter(self._idle), connection)
        self.idle(connection)
        if over is not None:
            self.closed(over)
        return over

    def busy(self, connection: C) -> None:
        """Mark a connection as busy with a request."""
        self._idle.pop(connection, None)
        key = self._keys.get(connection, "")
        if (idle := self._idle_from.get(key)) is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle_from[key]

    def idle(self, connection: C) -> None:
        """Mark a connection as idle."""
        key = self._keys.get(connection)
        if key is not None:
            self._idle[connection] = None
            self._idle_from.setdefault(key, OrderedDict())[connection] = None

    def closed(self, connection: C) -> None:
        """Remove a connection."""
        self.busy(connection)
        key = self._keys.pop(connection, None)
        if key is not None:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]


class Logins:
    """Failed logins by address, and on this machine by user. A token that was valid at its last use is never refused.

    This machine's users are counted separately, so that a job cannot lock out other users. An invalid token that is
    sent repeatedly, e.g. by a script, counts once a minute; too many repetitions block only that token.

    Examples
    --------
    >>> logins = Logins(2, lambda: 0.0)
    >>> for wrong in ("x", "y"):
    ...     logins.check("192.0.2.1", wrong)
    ...     logins.failed("192.0.2.1", wrong)
    >>> logins.good("right")
    >>> logins.check("192.0.2.1", "right")
    >>> logins.check("192.0.2.1", "z", uid=1000)
    >>> logins.check("192.0.2.1", "z")
    Traceback (most recent call last):
    gridweave.grid.gateway.problems.RefusalError: 2 logins from 192.0.2.1 failed; wait, and use a valid token
    """

    def __init__(self, per_minute: float, now_s: Callable[[], float]) -> None:
        self._most, self._now_s = per_minute, now_s
        self._rates = Rates(per_minute / _MINUTE_S, per_minute, now_s)
        self._rates_of_tokens = Rates(per_minute / _MINUTE_S, per_minute, now_s)
        # Digests of valid tokens, the last used at the end, and of invalid tokens with the time they were last counted.
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, float] = OrderedDict()

    def is_good(self, token: str) -> bool:
        """Whether a token was valid at its last use."""
        return token_digest(token) in self._good

    def check(self, address: object, token: str, uid: int | None = None) -> None:
        """Raise RefusalError if this token was tried too often, or if the client has sent too many invalid tokens."""
        if self.is_good(token):
            return
        wait_s = self._rates_of_tokens.needed_s(token_digest(token).hex())
        if wait_s > 0:
            problem = "this token was tried too often and is not valid; ask an operator for another"
            raise RefusalError("too-many-failed-logins", problem, retry_after_s=wait_s)
        wait_s = self._rates.needed_s(_client(address, uid))
        if wait_s > 0:
            problem = f"{self._most:g} logins from {_client(address, uid)} failed; wait, and use a valid token"
            raise RefusalError("too-many-failed-logins", problem, retry_after_s=wait_s)

    def failed(self, address: object, token: str, uid: int | None = None) -> None:
        """Count an invalid token."""
        digest, now_s = token_digest(token), self._now_s()
        self._good.pop(digest, None)
        self._rates_of_tokens.wait_s(digest.hex())
        counted_s = self._wrong.get(digest)
        if counted_s is not None and now_s - counted_s < _MINUTE_S:
            return
        _remember(self._wrong, digest, now_s)
        self._rates.wait_s(_client(address, uid))

    def good(self, token: str) -> None:
        """Remember a valid token."""
        _remember(self._good, token_digest(token), None)


def _client(address: object, uid: int | None) -> str:
    key = address_key(address) or "there"
    return key if uid is None else f"{key} (uid {uid})"


def _remember(cache: OrderedDict[bytes, T], digest: bytes, value: T) -> None:
    cache[digest] = value
    cache.move_to_end(digest)
    if len(cache) > _MOST_KNOWN:
        cache.popitem(last=False)


def token_digest(token: str) -> bytes:
    """Return the hash of a token or secret; only the hash is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
