"""Browser security: login cookies, one-time login codes, and checks of a request's origin."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from aiohttp import web

from gridweave.grid.api import TokenInfo
from gridweave.grid.config.gateway import is_loopback
from gridweave.grid.gateway.problems import RefusalError
from gridweave.site.times import span_text

_SAFE = ("GET", "HEAD")


def check_browser(request: web.BaseRequest) -> None:
    """Refuse a request without a token if another origin's page sent it from a browser on this machine.

    The request must name this machine as localhost, because an attacker's DNS name may also resolve to 127.0.0.1.
    """
    host = request.headers.get("Host", "")
    if not is_loopback(_name(host)):
        problem = f"Host is {host!r:.100}; a gateway without tokens answers only as localhost"
        raise RefusalError("foreign-origin", problem)
    check_origin(request)


def check_own_page(request: web.BaseRequest) -> None:
    """Refuse a logged-in request from another origin's page; a request that changes data must name its origin."""
    check_origin(request)
    is_named = "Origin" in request.headers or "Sec-Fetch-Site" in request.headers
    if request.method not in _SAFE and not is_named:
        problem = "the login cookie works only on the gateway's own pages; send Authorization: Bearer TOKEN instead"
        raise RefusalError("foreign-origin", problem)


def check_origin(request: web.BaseRequest) -> None:
    """Refuse a request sent by another origin's page."""
    host = request.headers.get("Host", "")
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise RefusalError("foreign-origin", f"Origin is {origin!r:.100}; only pages of this gateway may use it")
    if request.headers.get("Sec-Fetch-Site", "none").lower() not in ("none", "same-origin"):
        raise RefusalError("foreign-origin", "the request comes from a page of another origin")


def _name(host: str) -> str:
    """Return the name in a ``host:port`` text; empty if the text is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


KEY_HEADER = "Gridweave-Login"
"""The header in which pages send their half of a login's secret.

A browser sends the cookie to every port of the host, where a job may be listening, but never sends this header.
"""


def login_of(request: web.BaseRequest) -> tuple[str, str] | None:
    """Return the halves of a login's secret from the cookie and the header; None unless both are present."""
    cookie = request.cookies.get(_cookie_name(request, is_safe=True)) or request.cookies.get(
        _cookie_name(request, is_safe=False)
    )
    key = request.headers.get(KEY_HEADER)
    return (cookie, key) if cookie and key else None


def set_cookie(request: web.BaseRequest, response: web.Response, cookie: str, seconds: float) -> None:
    """Store half of a login's secret in a cookie that expires and that scripts cannot read.

    Whether the browser uses TLS is read from the page's origin, because a proxy may terminate TLS.
    """
    is_safe = request.headers.get("Origin", "").lower().startswith("https:")
    response.set_cookie(
        _cookie_name(request, is_safe=is_safe),
        cookie,
        max_age=int(seconds),
        path="/",
        secure=is_safe,
        httponly=True,
        samesite="Strict",
    )


def drop_cookies(request: web.BaseRequest, response: web.Response) -> None:
    """Delete a login's cookies."""
    for is_safe in (True, False):
        response.del_cookie(
            _cookie_name(request, is_safe=is_safe), path="/", secure=is_safe, httponly=True, samesite="Strict"
        )


def _cookie_name(request: web.BaseRequest, *, is_safe: bool) -> str:
    """Return the cookie's name; it contains the port because browsers share cookies between a host's ports."""
    try:
        port = urlsplit(f"//{request.headers.get('Host', '')}").port or 0
    except ValueError:
        port = 0
    # With this prefix, browsers accept the cookie only over TLS and only from this host.
    return f"{'__Host-' if is_safe else ''}gridweave-{port}"


CODE_S = 60.0
"""Lifetime of a login code, in seconds."""

_MOST_CODES = 100


class LoginCodes:
    """One-time login codes, valid for a minute and kept only in memory.

    Examples
    --------
    >>> codes = LoginCodes(lambda: 0.0)
    >>> info = TokenInfo(token_id="1f0c9a77d2e4", user="anna", scopes=("read",), made_ms=0)
    >>> code = codes.make(info)
    >>> codes.take(code).user, codes.take(code)
    ('anna', None)
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._codes: dict[str, tuple[float, TokenInfo]] = {}

    def make(self, info: TokenInfo) -> str:
        """Create a login code for the owner of a token."""
        now_s = self._now_s()
        self._codes = {code: kept for code, kept in self._codes.items() if kept[0] > now_s}
        if len(self._codes) >= _MOST_CODES:
            problem = f"{_MOST_CODES} codes were made within {span_text(CODE_S * 1000)}; wait, and ask again"
            raise RefusalError("too-many-requests", problem, retry_after_s=CODE_S)
        code = secrets.token_urlsafe(32)
        self._codes[code] = now_s + CODE_S, info
        return code

    def take(self, code: str) -> TokenInfo | None:
        """Invalidate a code and return its token; None if the code is unknown, already used or expired."""
        until_s, info = self._codes.pop(code, (0.0, None))
        return info if until_s > self._now_s() else None
