"""Who asks, and what they may do: bearer tokens, made, found and revoked; of their secrets only a hash is kept."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import os
import re
import secrets
import sqlite3
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    create_engine,
    delete,
    event,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, DisconnectionError

from gridweave.errors import GridweaveError, InputError, OptionError
from gridweave.grid.api import MadeToken, Role, TokenInfo
from gridweave.grid.gateway.connections import Logins
from gridweave.grid.gateway.problems import RefusalError
from gridweave.grid.gateway.settings import is_loopback
from gridweave.site.journal.store import checked_url, explained

PREFIX = "gw"
ROLES: tuple[Role, ...] = ("read", "submit", "operate")
"""Each may do what those before it may, and more."""

FROM_FILE = "0" * 12
"""The id of the token that was made elsewhere, and given in a file."""

LEAST_LENGTH = 32

_ID_BYTES = 6
_SECRET_BYTES = 32
_ID = re.compile(r"[0-9a-f]{12}", re.ASCII)
_MOST_LENGTH = 200
_WAIT_S = 5.0

_metadata = MetaData()
_tokens = Table(
    "gridweave_token",
    _metadata,
    Column("token_id", String(40), primary_key=True),
    Column("secret_sha256", LargeBinary(32), nullable=False),
    Column("user_name", String(100), nullable=False),
    Column("role", String(20), nullable=False),
    Column("made_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger),
    Column("revoked_ms", BigInteger),
)


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


class TokenStore:
    """The tokens of a grid, in SQLite or PostgreSQL, by a path or a URL; several processes may use the same place.

    A secret has 256 random bits: nobody finds it by trying, so that a plain hash of it is as good as a slow one.
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
        # One thread at a time uses the one connection there is.
        self._lock = threading.Lock()
        arguments: dict[str, Any] = (
            {"check_same_thread": False, "timeout": _WAIT_S} if self._is_sqlite else {"connect_timeout": int(_WAIT_S)}
        )
        self._engine = create_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True, connect_args=arguments)
        if self._is_sqlite:
            event.listen(self._engine, "connect", _prepare_sqlite)
        with self._transaction() as connection:
            _metadata.create_all(connection)

    def _make_file(self, create: bool) -> None:
        path = Path(self.where)
        if not create and not path.is_file():
            raise InputError(f"{path}: there are no tokens there; create one with gridweave token create")
        if not path.parent.is_dir():
            raise OptionError("tokens", f"{path.parent} is not a folder; name a file in a folder that exists")
        # Hashes alone are in it, but who has tokens is nobody's business.
        with contextlib.suppress(OSError):  # what is wrong is told when it is opened as a database
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._lock, self._engine.begin() as connection:
                yield connection
        except (DBAPIError, DisconnectionError, sqlite3.Error) as error:
            raise explained(error, self.where) from error

    def create(self, user: str, role: Role, *, days: float | None = None) -> MadeToken:
        """Make a token that can be used for some days, or until it is revoked; its secret is seen only here."""
        if not 1 <= len(user) <= 100 or not user.isprintable():
            raise OptionError("user", f"{user!r:.120} is not a name; give 1 to 100 printable characters")
        if role not in ROLES:
            raise OptionError("role", f"{role!r} is not known; one of {', '.join(ROLES)}")
        if days is not None and not 0 < days <= 36_500:
            raise OptionError("days", f"is {days:g}; a number above 0, at most 36500")
        now_ms = self._now_ms()
        until_ms = None if days is None else now_ms + max(1, round(days * 86_400_000))
        token_id = self._random_bytes(_ID_BYTES).hex()
        secret = urlsafe_b64encode(self._random_bytes(_SECRET_BYTES)).decode().rstrip("=")
        info = TokenInfo(token_id=token_id, user=user, role=role, made_ms=now_ms, until_ms=until_ms)
        row = {"token_id": token_id, "secret_sha256": _hash(secret), "user_name": user, "role": role}
        with self._transaction() as connection:
            connection.execute(insert(_tokens).values(**row, made_ms=now_ms, until_ms=until_ms))
        return MadeToken(token=f"{PREFIX}_{token_id}_{secret}", info=info)

    def adopt(self, token: str, user: str, role: Role) -> TokenInfo:
        """Take in a token that was made elsewhere; it takes the place of the one that was taken in before."""
        if not LEAST_LENGTH <= len(token) <= _MOST_LENGTH or not all("!" <= letter <= "~" for letter in token):
            right = f"{LEAST_LENGTH} to {_MOST_LENGTH} characters of ASCII without blanks: openssl rand -hex 32"
            raise OptionError("token", f"can be none; {right}")
        info = TokenInfo(token_id=FROM_FILE, user=user, role=role, made_ms=self._now_ms())
        row = {"secret_sha256": _hash(token), "user_name": user, "role": role, "made_ms": info.made_ms}
        with self._transaction() as connection:
            connection.execute(delete(_tokens).where(_tokens.c.token_id == FROM_FILE))
            connection.execute(insert(_tokens).values(token_id=FROM_FILE, **row))
        return info

    def find(self, token: str) -> TokenInfo | None:
        """Return what a token stands for; None if it is none, or can be used no more."""
        if not LEAST_LENGTH <= len(token) <= _MOST_LENGTH:
            return None
        parts = token.split("_", 2)
        is_ours = len(parts) == 3 and parts[0] == PREFIX and _ID.fullmatch(parts[1])
        return (self._find(parts[1], parts[2]) if is_ours else None) or self._find(FROM_FILE, token)

    def _find(self, token_id: str, secret: str) -> TokenInfo | None:
        with self._transaction() as connection:
            row = connection.execute(select(_tokens).where(_tokens.c.token_id == token_id)).one_or_none()
        # A token that is not there takes as long as one with another secret.
        kept = b"\0" * 32 if row is None else bytes(row.secret_sha256)
        if not hmac.compare_digest(kept, _hash(secret)) or row is None or not self._is_usable(row):
            return None
        return _info(row)

    def list(self) -> list[TokenInfo]:
        """Return all tokens that can be used, the oldest first."""
        with self._transaction() as connection:
            rows = connection.execute(select(_tokens).order_by(_tokens.c.made_ms, _tokens.c.token_id)).all()
        return [_info(row) for row in rows if self._is_usable(row)]

    def usable(self) -> frozenset[str]:
        """Return the ids of all tokens that can be used."""
        return frozenset(info.token_id for info in self.list())

    def revoke(self, token_id: str) -> bool:
        """Have a token be usable no more; return whether it was before."""
        if not _ID.fullmatch(token_id):
            return False
        with self._transaction() as connection:
            row = connection.execute(select(_tokens).where(_tokens.c.token_id == token_id)).one_or_none()
            if row is None or not self._is_usable(row):
                return False
            revoked = update(_tokens).where(_tokens.c.token_id == token_id).values(revoked_ms=self._now_ms())
            connection.execute(revoked)
        return True

    def _is_usable(self, row: Row[Any]) -> bool:
        return row.revoked_ms is None and (row.until_ms is None or self._now_ms() < row.until_ms)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _info(row: Row[Any]) -> TokenInfo:
    return TokenInfo(
        token_id=row.token_id, user=row.user_name, role=row.role, made_ms=row.made_ms, until_ms=row.until_ms
    )


T = TypeVar("T")
P = ParamSpec("P")


class Identity(msgspec.Struct, frozen=True):
    """Who makes a request."""

    info: TokenInfo  # their token. Where there are none its id and user are empty, and the role is ``operate``.

    @property
    def user(self) -> str:
        """Their name."""
        return self.info.user

    @property
    def token_id(self) -> str:
        """The id of their token."""
        return self.info.token_id

    @property
    def is_operator(self) -> bool:
        """Whether they see and change what is others'."""
        return self.info.role == "operate"

    def may(self, role: Role) -> bool:
        """Return whether they may do what a role may."""
        return ROLES.index(self.info.role) >= ROLES.index(role)

    def sees(self, user: str) -> bool:
        """Return whether they see the jobs of a user."""
        return self.is_operator or user == self.user


EVERYBODY = Identity(TokenInfo(token_id="", user="", role="operate", made_ms=0))
"""Who asks where there are no tokens."""


class AsyncTokens:
    """The store of tokens, used beside the event loop."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokens")

    async def do(self, method: Callable[Concatenate[TokenStore, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a method of the store does."""
        work = functools.partial(method, self._store, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def usable(self) -> frozenset[str]:
        """Return the ids of all that can be used."""
        return await self.do(TokenStore.usable)

    def close(self) -> None:
        """Let go of the store."""
        self._thread.shutdown()
        self._store.close()


async def identify(request: web.BaseRequest, tokens: AsyncTokens | None, logins: Logins) -> Identity:
    """Return who makes a request; where there are no tokens everybody on this machine is an operator."""
    if tokens is None:
        return EVERYBODY
    header = request.headers.get("Authorization", "")
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise _unauthenticated("send Authorization: Bearer TOKEN; an operator makes one: gridweave token create")
    logins.check(request.remote, token)
    try:
        info = await tokens.do(TokenStore.find, token)
    except GridweaveError:
        raise RefusalError("tokens-unavailable", "try again; the gateway's log says more", retry_after_s=2.0) from None
    if info is None:
        logins.failed(request.remote)
        raise _unauthenticated("the token is not known, was revoked, or is too old; ask an operator for another")
    logins.good(token)
    return Identity(info)


def _unauthenticated(detail: str) -> RefusalError:
    return RefusalError("unauthenticated", detail, headers={"WWW-Authenticate": 'Bearer realm="gridweave"'})


def check_browser(request: web.BaseRequest) -> None:
    """Keep pages of other origins out where a request needs no token: a browser on this machine makes it for them.

    The request must be to this machine by a name of it, since a page may have its own name lead here.
    """
    host = request.headers.get("Host", "")
    if not is_loopback(_name(host)):
        problem = f"without tokens the gateway is spoken to as localhost, not as {host!r:.100}"
        raise RefusalError("foreign-origin", problem)
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise RefusalError("foreign-origin", f"{origin!r:.100} is not this gateway; without tokens no page may use it")
    if request.headers.get("Sec-Fetch-Site", "none").lower() not in ("none", "same-origin"):
        raise RefusalError("foreign-origin", "a page of another origin may not use a gateway without tokens")


def _name(host: str) -> str:
    """Return a host without its port; empty if it cannot be read."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
