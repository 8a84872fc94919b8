"""Create, look up and revoke users' bearer tokens and logins; only hashes of their secrets are stored."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import os
import re
import secrets
import sqlite3
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import msgspec
from aiohttp import web
from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import DBAPIError, DisconnectionError

from gridweave.errors import GridweaveError, InputError, OptionError
from gridweave.grid.api import MOST_HOURS, SCOPES, USUAL_DAYS, USUAL_SCOPES, MadeToken, Scope, TokenInfo, TokenLimits
from gridweave.grid.gateway.browser import check_own_page, login_of
from gridweave.grid.gateway.connections import Logins, token_digest, uid_of
from gridweave.grid.gateway.issuer import Issuer, looks_like_jwt
from gridweave.grid.gateway.problems import RefusalError
from gridweave.shared_calls import SharedCalls
from gridweave.site.job import JobRequest
from gridweave.site.journal.store import checked_url, explained
from gridweave.site.resources.chunks import most_nodes
from gridweave.site.times import span_text

PREFIX = "gw"
FROM_FILE, SCRAPER = "0" * 12, "0" * 11 + "1"
"""Ids of the two tokens that are read from files: the operator's and the metrics scraper's."""

ADOPTED = (FROM_FILE, SCRAPER)

NO_LIMITS = TokenLimits()

LEAST_LENGTH = 32

_ID_BYTES = 6
_SECRET_BYTES = 32
_ID = re.compile(r"[0-9a-f]{12}", re.ASCII)
_MOST_LENGTH = 200
_WAIT_S = 5.0
_USED_MS = 60_000
"""Minimum time between updates of a token's last use, so that not every request writes to the database."""

_MOST_SHORT = 100
"""Maximum number of short-lived tokens per user, and also of logins per user."""

_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000

_metadata = MetaData()


def _table(name: str) -> Table:
    return Table(
        name,
        _metadata,
        Column("token_id", String(40), primary_key=True),
        Column("secret_sha256", LargeBinary(32), nullable=False),
        Column("user_name", String(100), nullable=False),
        Column("scopes", String(100), nullable=False),
        Column("limits", LargeBinary, nullable=False),
        Column("parent", String(100), nullable=False),
        Column("made_ms", BigInteger, nullable=False),
        Column("until_ms", BigInteger),
        Column("revoked_ms", BigInteger),
        Column("used_ms", BigInteger),
    )


_tokens = _table("gridweave_access_token")
_logins = _table("gridweave_login")
"""Logins have a separate table, so that a login is never accepted as a bearer token."""


class MadeLogin(NamedTuple):
    """A new login: the two halves of its secret (for the cookie and for the page), and its rights."""

    cookie: str
    key: str
    info: TokenInfo


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


class TokenStore:
    """A grid's tokens in SQLite (`place` is a path) or PostgreSQL (a URL); several processes may share them.

    A secret has 256 random bits and cannot be guessed, so a plain hash of it is as safe as a slow one.
    """

    def __init__(
        self,
        place: str | Path,
        *,
        create: bool = True,
        now_ms: Callable[[], int] = _unix_ms,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        url = checked_url("tokens", place)
        self.place = str(place)
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._is_sqlite = url.get_backend_name() == "sqlite"
        self.where = str(url.database) if self._is_sqlite else url.render_as_string(hide_password=True)
        if self._is_sqlite:
            self._make_file(create)
        # There is one connection, which one thread uses at a time.
        self._lock = threading.Lock()
        self._engine = _engine_of(url, is_sqlite=self._is_sqlite)
        with self._transaction() as connection:
            _metadata.create_all(connection)

    def _make_file(self, create: bool) -> None:
        path = Path(self.where)
        if not create and not path.is_file():
            raise InputError(f"{path}: there are no tokens there; create one with gridweave token create")
        if not path.parent.is_dir():
            raise OptionError("tokens", f"{path.parent} is not a folder; name a file in a folder that exists")
        # The database holds only hashes, but other users need not know who has tokens.
        with contextlib.suppress(OSError):  # an error is reported when the database is opened
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._lock, self._engine.begin() as connection:
                yield connection
        except (DBAPIError, DisconnectionError, sqlite3.Error) as error:
            raise explained(error, self.where) from error

    def create(
        self,
        user: str,
        scopes: Sequence[Scope] = USUAL_SCOPES,
        *,
        days: float | None = USUAL_DAYS,
        limits: TokenLimits = NO_LIMITS,
    ) -> MadeToken:
        """Create a token that is valid for `days` (None: until revoked); only the returned token has its secret."""
        if days is not None and not 0 < days <= 36_500:
            raise OptionError("days", f"is {days:g} days; more than 0, and at most 36500")
        now_ms = self._now_ms()
        until_ms = None if days is None else now_ms + max(1, round(days * _DAY_MS))
        _check_token(user, scopes, limits)
        with self._transaction() as connection:
            return self._insert(connection, user, scopes, (now_ms, until_ms), limits)

    def create_short(self, by: TokenInfo, scopes: Sequence[Scope], hours: float) -> MadeToken:
        """Create a token with the user and limits of `by`; it expires no later than `by` and is revoked with it."""
        if by.parent:
            raise OptionError("token", "is short-lived itself; use the token that created it")
        with self._transaction() as connection:
            return self._insert_short(connection, by, scopes, hours)

    def create_login(self, by: TokenInfo, hours: float) -> MadeLogin:
        """Create a browser login with the rights of `by`; it expires no later than `by` and is revoked with it.

        The login's secret has two halves; the browser sends one in a cookie and the other in a header. Neither half is
        valid without the other, and the two together are not a bearer token.
        """
        if by.is_login:
            raise OptionError("token", "is a login; use the token that created it")
        key = self._secret()
        with self._transaction() as connection:
            created = self._insert_short(connection, by, by.scopes, hours, key)
        return MadeLogin(created.token.removeprefix(f"{PREFIX}_"), key, created.info)

    def _insert_short(
        self, connection: Connection, by: TokenInfo, scopes: Sequence[Scope], hours: float, key: str = ""
    ) -> MadeToken:
        """Insert a short-lived token, or a login if `key` (the page's half of the secret) is given."""
        if not 0 < hours <= MOST_HOURS:
            raise OptionError("hours", f"is {hours:g} hours; more than 0, and at most {MOST_HOURS:g}")
        now_ms = self._now_ms()
        until_ms = now_ms + max(1, round(hours * _HOUR_MS))
        if by.until_ms is not None:
            until_ms = min(until_ms, by.until_ms)
        _check_token(by.user, scopes, by.limits)
        table, what = (_logins, "logins") if key else (_tokens, "tokens for a short time")
        # Limit the number of rows per user.
        connection.execute(delete(table).where(table.c.parent != "", ~self._is_usable(table)))
        mine = select(func.count()).where(table.c.user_name == by.user, table.c.parent != "")
        if connection.execute(mine).scalar_one() >= _MOST_SHORT:
            right = "wait until some expire, or have the token that created them revoked"
            raise OptionError("token", f"{by.user} has {_MOST_SHORT} {what}; {right}")
        created = self._insert(connection, by.user, scopes, (now_ms, until_ms), by.limits, by.token_id, key)
        # If the parent is being revoked, the revocation either waits and finds the new row, or is seen here.
        parent = select(self._is_usable(_tokens)).where(_tokens.c.token_id == by.token_id).with_for_update()
        is_ours = _ID.fullmatch(by.token_id) is not None  # the parent is not a token of the issuer
        if not connection.execute(parent).scalar_one_or_none() and is_ours:
            raise OptionError("token", "is no longer valid; use another one")
        return created

    def _secret(self) -> str:
        return urlsafe_b64encode(self._random_bytes(_SECRET_BYTES)).decode().rstrip("=")

    def _insert(
        self,
        connection: Connection,
        user: str,
        scopes: Sequence[Scope],
        span_ms: tuple[int, int | None],
        limits: TokenLimits,
        parent: str = "",
        key: str = "",
    ) -> MadeToken:
        """Insert a token, or a login if `key` is given, that is valid within `span_ms` (end None: until revoked)."""
        made_ms, until_ms = span_ms
        token_id = self._random_bytes(_ID_BYTES).hex()
        secret = self._secret()
        info = TokenInfo(
            token_id=token_id,
            user=user,
            scopes=tuple(scope for scope in SCOPES if scope in scopes),
            limits=limits,
            made_ms=made_ms,
            until_ms=until_ms,
            parent=parent,
            is_login=bool(key),
        )
        table, whole = (_logins, _join_halves(secret, key)) if key else (_tokens, secret)
        connection.execute(insert(table).values(**_row(info, whole)))
        return MadeToken(token=f"{PREFIX}_{token_id}_{secret}", info=info)

    def adopt(self, token: str, user: str, scopes: Sequence[Scope], *, token_id: str = FROM_FILE) -> TokenInfo:
        """Store a token that was created elsewhere, replacing any token with the same id."""
        if not LEAST_LENGTH <= len(token) <= _MOST_LENGTH or not all("!" <= letter <= "~" for letter in token):
            right = f"{LEAST_LENGTH} to {_MOST_LENGTH} characters of ASCII without blanks: openssl rand -hex 32"
            raise OptionError("token", f"is not a valid token; {right}")
        _check_token(user, scopes, NO_LIMITS)
        info = TokenInfo(token_id=token_id, user=user, scopes=tuple(scopes), made_ms=self._now_ms())
        with self._transaction() as connection:
            connection.execute(delete(_tokens).where(_tokens.c.token_id == token_id))
            connection.execute(insert(_tokens).values(**_row(info, token)))
        return info

    def find(self, token: str) -> TokenInfo | None:
        """Look up a bearer token; None if it is unknown or no longer valid."""
        if not LEAST_LENGTH <= len(token) <= _MOST_LENGTH:
            return None
        parts = token.split("_", 2)
        is_ours = len(parts) == 3 and parts[0] == PREFIX and _ID.fullmatch(parts[1])
        ours = self._find(_tokens, parts[1], parts[2]) if is_ours else None
        return ours or next(
            (info for token_id in ADOPTED if (info := self._find(_tokens, token_id, token)) is not None), None
        )

    def find_login(self, cookie: str, key: str) -> TokenInfo | None:
        """Look up a login by the two halves of its secret; None if it is unknown or no longer valid."""
        login_id, _, secret = cookie.partition("_")
        if max(len(cookie), len(key)) > _MOST_LENGTH or not secret or not key or not _ID.fullmatch(login_id):
            return None
        return self._find(_logins, login_id, _join_halves(secret, key))

    def _find(self, table: Table, token_id: str, secret: str) -> TokenInfo | None:
        with self._transaction() as connection:
            row = connection.execute(select(table).where(table.c.token_id == token_id, self._is_usable(table)))
            kept = row.one_or_none()
        # Checking an unknown id takes as long as checking a wrong secret.
        digest = b"\0" * 32 if kept is None else bytes(kept.secret_sha256)
        if not hmac.compare_digest(digest, token_digest(secret)) or kept is None:
            return None
        self._record_use(table, kept)
        return _info(table, kept)

    def _record_use(self, table: Table, row: Row[Any]) -> None:
        """Record that a token was used, at most once a minute."""
        now_ms = self._now_ms()
        if row.used_ms is None or now_ms - row.used_ms >= _USED_MS:
            with self._transaction() as connection:
                connection.execute(update(table).where(table.c.token_id == row.token_id).values(used_ms=now_ms))

    def list(self) -> list[TokenInfo]:
        """Return all valid tokens and logins, oldest first."""
        with self._transaction() as connection:
            infos = [
                _info(table, row)
                for table in (_tokens, _logins)
                for row in connection.execute(select(table).where(self._is_usable(table)))
            ]
        return sorted(infos, key=lambda info: (info.made_ms, info.token_id))

    def usable(self) -> frozenset[str]:
        """Return the ids of all valid tokens and logins."""
        ids = union_all(*(select(table.c.token_id).where(self._is_usable(table)) for table in (_tokens, _logins)))
        with self._transaction() as connection:
            return frozenset(connection.execute(ids).scalars())

    def revoke(self, token_id: str) -> bool:
        """Revoke a token or login and everything created with it; return whether it was valid."""
        if not _ID.fullmatch(token_id):
            return False
        with self._transaction() as connection:
            ids = (select(table.c.token_id).where(self._is_named(table, token_id)) for table in (_tokens, _logins))
            if connection.execute(union_all(*ids)).first() is None:
                return False
            # Each statement waits for transactions that insert a child of a row that the previous statement revoked
            # (`_insert_short`).
            short = select(_tokens.c.token_id).where(_tokens.c.parent == token_id)
            for table, these in (
                (_tokens, _tokens.c.token_id == token_id),
                (_tokens, _tokens.c.parent == token_id),
                (_logins, (_logins.c.token_id == token_id) | (_logins.c.parent == token_id)),
                (_logins, _logins.c.parent.in_(short)),
            ):
                connection.execute(update(table).where(these).values(revoked_ms=self._now_ms()))
        return True

    def _is_named(self, table: Table, token_id: str) -> ColumnElement[bool]:
        return (table.c.token_id == token_id) & self._is_usable(table)

    def _is_usable(self, table: Table) -> ColumnElement[bool]:
        until_ms = table.c.until_ms
        return table.c.revoked_ms.is_(None) & (until_ms.is_(None) | (until_ms > self._now_ms()))

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()


def _engine_of(url: URL, *, is_sqlite: bool) -> Engine:
    arguments: dict[str, Any] = (
        {"check_same_thread": False, "timeout": _WAIT_S} if is_sqlite else {"connect_timeout": int(_WAIT_S)}
    )
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True, connect_args=arguments)
    if is_sqlite:
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _check_token(user: str, scopes: Sequence[Scope], limits: TokenLimits) -> None:
    """Raise OptionError if a field of the token is invalid."""
    for option, names in (("user", (user,)), ("sites", limits.sites), ("accounts", limits.accounts)):
        for name in names:
            if not 1 <= len(name) <= 100 or not name.isprintable():
                raise OptionError(option, f"{name!r:.120} is not a name; give 1 to 100 printable characters")
    if not scopes:
        raise OptionError("scopes", f"is empty; one or several of {', '.join(SCOPES)}")
    for scope in scopes:
        if scope not in SCOPES:
            raise OptionError("scopes", f"{scope!r:.100} is not known; one or several of {', '.join(SCOPES)}")
    for name in ("max_nodes", "max_array", "max_limit_ms"):
        value = getattr(limits, name)
        if value is not None and value < 1:
            raise OptionError(name, f"is {value}; a whole number from 1 up")
    for name in ("max_priority", "max_weight"):
        value = getattr(limits, name)
        if value is not None and not math.isfinite(value):
            # JSON would store it as null, which means no limit.
            raise OptionError(name, f"is {value}; a number that is finite")


def _join_halves(secret: str, key: str) -> str:
    """Join the halves of a login's secret; neither contains a dot."""
    return f"{secret}.{key}"


def _row(info: TokenInfo, secret: str) -> dict[str, Any]:
    return {
        "token_id": info.token_id,
        "secret_sha256": token_digest(secret),
        "user_name": info.user,
        "scopes": " ".join(info.scopes),
        "limits": msgspec.json.encode(info.limits),
        "made_ms": info.made_ms,
        "until_ms": info.until_ms,
        "parent": info.parent,
    }


def _info(table: Table, row: Row[Any]) -> TokenInfo:
    return TokenInfo(
        token_id=row.token_id,
        user=row.user_name,
        scopes=tuple(row.scopes.split()),
        limits=msgspec.json.decode(bytes(row.limits), type=TokenLimits),
        made_ms=row.made_ms,
        until_ms=row.until_ms,
        used_ms=row.used_ms,
        parent=row.parent,
        is_login=table is _logins,
    )


T = TypeVar("T")
P = ParamSpec("P")


class Identity(msgspec.Struct, frozen=True):
    """The user who makes a request."""

    info: TokenInfo  # the user's token; if the gateway has no tokens, id and user are empty and the scope is operate

    @property
    def user(self) -> str:
        """Name of the user."""
        return self.info.user

    @property
    def token_id(self) -> str:
        """Id of the user's token."""
        return self.info.token_id

    @property
    def is_operator(self) -> bool:
        """Whether the user is an operator, who may see and change other users' jobs."""
        return "operate" in self.info.scopes

    def may(self, scope: Scope) -> bool:
        """Whether the user's token has a scope; an operator's token has every scope."""
        return scope in self.info.scopes or self.is_operator

    def sees(self, user: str) -> bool:
        """Whether the user may see the jobs of `user`."""
        return self.is_operator or user == self.user


EVERYBODY = Identity(TokenInfo(token_id="", user="", scopes=("operate",), made_ms=0))
"""Identity of every client if the gateway has no tokens."""


class AsyncTokens:
    """The token store for use in the event loop; its blocking work runs in a separate thread."""

    def __init__(self, store: TokenStore, issuer: Issuer | None = None) -> None:
        self._store, self.issuer = store, issuer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        # Many requests look up the same few tokens at the same time.
        self._found = SharedCalls[str, TokenInfo | None](self._find_all)

    async def do(self, method: Callable[Concatenate[TokenStore, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the store in the store's thread."""
        work = partial(method, self._store, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def find(self, token: str) -> TokenInfo | None:
        """Look up a token, ours or the issuer's; None if it is unknown or invalid."""
        if self.issuer is not None and looks_like_jwt(token):
            return await self.issuer.find(token)
        return await self._found.ask(token)

    async def _find_all(self, tokens: list[str]) -> list[TokenInfo | None]:
        info_by_token = await self.do(lambda store: {token: store.find(token) for token in set(tokens)})
        return [info_by_token[token] for token in tokens]

    async def usable(self) -> frozenset[str]:
        """Return the ids of all valid tokens, ours and the issuer's."""
        ours = await self.do(TokenStore.usable)
        return ours if self.issuer is None else ours | self.issuer.usable()

    def close(self) -> None:
        """Close the store."""
        self._thread.shutdown()
        self._store.close()


async def identify(request: web.BaseRequest, tokens: AsyncTokens | None, logins: Logins) -> Identity:
    """Identify a request's client; if the gateway has no tokens, every client on this machine is an operator."""
    if tokens is None:
        return EVERYBODY
    header = request.headers.get("Authorization", "")
    if not header and (halves := login_of(request)) is not None:
        check_own_page(request)
        secret, find = ".".join(halves), partial(tokens.do, TokenStore.find_login, *halves)
        return Identity(await _counted(request, secret, find, logins))
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _unauthenticated("send Authorization: Bearer TOKEN; an operator creates it: gridweave token create")
    return Identity(await find_token(request, token.strip(), tokens, logins))


async def find_token(request: web.BaseRequest, token: str, tokens: AsyncTokens, logins: Logins) -> TokenInfo:
    """Look up a request's token, or raise RefusalError; invalid tokens are counted by address."""
    return await _counted(request, token, partial(tokens.find, token), logins)


async def _counted(
    request: web.BaseRequest, secret: str, find: Callable[[], Awaitable[TokenInfo | None]], logins: Logins
) -> TokenInfo:
    """Look up a secret; count invalid secrets, and refuse a client that has sent too many of them."""
    peer = request.remote, secret, None if logins.is_good(secret) else uid_of(request.transport)
    logins.check(*peer)
    try:
        info = await find()
    except RefusalError:
        raise
    except GridweaveError:
        raise RefusalError("tokens-unavailable", "try again; the gateway's log says more", retry_after_s=2.0) from None
    if info is None:
        logins.failed(*peer)
        raise _unauthenticated("the token is not known, was revoked, or is too old; ask an operator for another")
    logins.good(secret)
    return info


def limit_problem(limits: TokenLimits, site: str | None, request: JobRequest) -> tuple[str, str] | None:
    """Return the first field of a job that violates a token's limits, and the problem; None if no field does.

    Examples
    --------
    >>> from gridweave.site.job import Program
    >>> job = JobRequest(program=Program(argv=("true",)), nodes=8, limit_ms=1000)
    >>> limit_problem(TokenLimits(max_nodes=4), None, job)
    ('nodes', 'is 8, and the token is for jobs of at most 4 nodes')
    >>> from gridweave.site.resources.chunks import Chunk
    >>> pairs = JobRequest(program=job.program, nodes=8, limit_ms=1000, chunk=Chunk(cores=2, per_node=2))
    >>> limit_problem(TokenLimits(max_nodes=4), None, pairs) is None
    True
    """
    if limits.sites and site not in limits.sites:
        problem = "is not given" if site is None else f"is {site!r:.100}"
        return "site", f"{problem}, and the token is for {', '.join(limits.sites)}"
    if limits.accounts and request.account not in limits.accounts:
        problem = f"is {request.account!r:.100}" if request.account else "is not given"
        return "account", f"{problem}, and the token is for {', '.join(limits.accounts)}"
    nodes = most_nodes(request.nodes, request.chunk)
    if limits.max_nodes is not None and nodes > limits.max_nodes:
        return "nodes", f"is {nodes}, and the token is for jobs of at most {limits.max_nodes} nodes"
    if limits.max_limit_ms is not None and request.limit_ms > limits.max_limit_ms:
        most = span_text(limits.max_limit_ms)
        return "limit_ms", f"is {span_text(request.limit_ms)}, and the token is for jobs of at most {most}"
    if limits.max_priority is not None and request.priority > limits.max_priority:
        return "priority", f"is {request.priority:g}, and the token is for at most {limits.max_priority:g}"
    if limits.max_weight is not None and request.weight > limits.max_weight:
        return "weight", f"is {request.weight:g}, and the token is for at most {limits.max_weight:g}"
    array = request.array
    if limits.max_array is not None and array is not None:
        # A packed array is one job with many tasks.
        last = max((array.index, *(end - 1 for _, end in array.array_tasks)))
        if last >= limits.max_array:
            return "array.index", f"reaches {last}, and the token is for arrays of at most {limits.max_array} jobs"
    return None


def _unauthenticated(detail: str) -> RefusalError:
    return RefusalError("unauthenticated", detail, headers={"WWW-Authenticate": 'Bearer realm="gridweave"'})
