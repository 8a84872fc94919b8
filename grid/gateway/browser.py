"""What a browser is trusted with: its cookie, a code to log in by, and requests that a page of this gateway makes."""

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
    """Keep pages of other origins out where a request needs no token: a browser on this machine makes it for them.

    The request must be to this machine by a name of it, since a page may have its own name lead here.
    """
    host = request.headers.get("Host", "")
    if not is_loopback(_name(host)):
        problem = f"without tokens the gateway is spoken to as localhost, not as {host!r:.100}"
        raise RefusalError("foreign-origin", problem)
    check_origin(request)


def check_own_page(request: web.BaseRequest) -> None:
    """Refuse a request with a login unless a page of this gateway made it; a change must name its origin."""
    check_origin(request)
    is_named = "Origin" in request.headers or "Sec-Fetch-Site" in request.headers
    if request.method not in _SAFE and not is_named:
        problem = "a login by cookie is for the pages of this gateway; send Authorization: Bearer TOKEN instead"
        raise RefusalError("foreign-origin", problem)


def check_origin(request: web.BaseRequest) -> None:
    """Refuse what a page of another origin has asked for."""
    host = request.headers.get("Host", "")
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise RefusalError("foreign-origin", f"{origin!r:.100} is not this gateway; no page of another may use it")
    if request.headers.get("Sec-Fetch-Site", "none").lower() not in ("none", "same-origin"):
        raise RefusalError("foreign-origin", "a page of another origin may not use this gateway")


def _name(host: str) -> str:
    """Return a host without its port; empty if it cannot be read."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


KEY_HEADER = "Gridweave-Login"
"""The header in which pages send their half of a login's secret.

A cookie also goes to every other port of the host, where a job may listen; what a page keeps goes nowhere by itself.
"""


def login_of(request: web.BaseRequest) -> tuple[str, str] | None:
    """Return the halves of a login's secret, from the cookie and from the page; None unless both are there."""
    cookie = request.cookies.get(_cookie_name(request, is_safe=True)) or request.cookies.get(
        _cookie_name(request, is_safe=False)
    )
    key = request.headers.get(KEY_HEADER)
    return (cookie, key) if cookie and key else None


def set_cookie(request: web.BaseRequest, response: web.Response, cookie: str, seconds: float) -> None:
    """Have a browser send half of a login's secret with each request to this host, for some time; no page can read it.

    Whether the browser speaks TLS is told by the origin of the page: something in front of the gateway may speak it.
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
    """Have a browser forget its login."""
    for is_safe in (True, False):
        response.del_cookie(
            _cookie_name(request, is_safe=is_safe), path="/", secure=is_safe, httponly=True, samesite="Strict"
        )


def _cookie_name(request: web.BaseRequest, *, is_safe: bool) -> str:
    """Return the name of the cookie: cookies know no ports, and another grid may be behind another port of a host."""
    try:
        port = urlsplit(f"//{request.headers.get('Host', '')}").port or 0
    except ValueError:
        port = 0
    # By the prefix the browser itself takes care that it came over TLS, and from this very host.
    return f"{'__Host-' if is_safe else ''}gridweave-{port}"


CODE_S = 60.0
"""So long a code for a login is good."""

_MOST_CODES = 100


class LoginCodes:
    """The codes by which somebody may log in, each once, within a minute; they are in the memory of this gateway.

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
        """Return a new code for who has a token."""
        now_s = self._now_s()
        self._codes = {code: kept for code, kept in self._codes.items() if kept[0] > now_s}
        if len(self._codes) >= _MOST_CODES:
            problem = f"{_MOST_CODES} codes were made within {span_text(CODE_S * 1000)}; wait, and ask again"
            raise RefusalError("too-many-requests", problem, retry_after_s=CODE_S)
        code = secrets.token_urlsafe(32)
        self._codes[code] = now_s + CODE_S, info
        return code

    def take(self, code: str) -> TokenInfo | None:
        """Return whose code it is, which is good no more; None if it never was, or is too old."""
        until_s, info = self._codes.pop(code, (0.0, None))
        return info if until_s > self._now_s() else None
