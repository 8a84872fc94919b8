"""Who asks, and what they may do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from gridweave.errors import GridweaveError
from gridweave.grid.api import MadeToken, NewToken, Role, TokenInfo
from gridweave.grid.gateway.problems import RefusalError
from gridweave.grid.gateway.settings import is_loopback
from gridweave.grid.gateway.tokens import ROLES, TokenStore

T = TypeVar("T")


class Identity(msgspec.Struct, frozen=True):
    """Who makes a request.

    Attributes
    ----------
    info : TokenInfo
        Their token. Where there are none its id and user are empty, and the role is ``operate``.
    """

    info: TokenInfo

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


class Tokens:
    """The store of tokens, used beside the event loop.

    Parameters
    ----------
    store : TokenStore
    """

    def __init__(self, store: TokenStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokens")

    async def _do(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def find(self, token: str) -> TokenInfo | None:
        """Return what a token stands for; None if it cannot be used."""
        return await self._do(self._store.find, token)

    async def usable(self) -> frozenset[str]:
        """Return the ids of all that can be used."""
        return await self._do(self._store.usable)

    async def list(self) -> list[TokenInfo]:
        """Return all that can be used."""
        return await self._do(self._store.list)

    async def create(self, new: NewToken) -> MadeToken:
        """Make one."""
        return await self._do(lambda: self._store.create(new.user, new.role, days=new.days))

    async def revoke(self, token_id: str) -> bool:
        """Have one be usable no more; return whether it was."""
        return await self._do(self._store.revoke, token_id)

    def close(self) -> None:
        """Let go of the store."""
        self._thread.shutdown()
        self._store.close()


async def identify(request: web.BaseRequest, tokens: Tokens | None) -> Identity:
    """Return who makes a request.

    Parameters
    ----------
    request : aiohttp.web.BaseRequest
    tokens : Tokens or None
        None: everybody on this machine is an operator.

    Raises
    ------
    RefusalError
        If the token is missing, or cannot be used.
    """
    if tokens is None:
        return EVERYBODY
    header = request.headers.get("Authorization", "")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _unauthenticated("send Authorization: Bearer TOKEN; an operator makes one: gridweave token create")
    try:
        info = await tokens.find(token.strip())
    except GridweaveError:
        raise RefusalError("tokens-unavailable", "try again; the gateway's log says more", retry_after_s=2.0) from None
    if info is None:
        raise _unauthenticated("the token is not known, was revoked, or is too old; ask an operator for another")
    return Identity(info)


def _unauthenticated(detail: str) -> RefusalError:
    return RefusalError("unauthenticated", detail, headers={"WWW-Authenticate": 'Bearer realm="gridweave"'})


def check_browser(request: web.BaseRequest) -> None:
    """Keep pages of other origins out where a request needs no token: a browser on this machine makes it for them.

    Parameters
    ----------
    request : aiohttp.web.BaseRequest

    Raises
    ------
    RefusalError
        If the request is not to this machine by a name of it (a page may have its own name lead here), or a browser
        makes it for a page of another origin.
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
