"""Serve the web pages to browsers, and log browsers in and out.

A browser logs in with a token, or with a one-time code that `gridweave open` requests. The login has the token's
rights, except that it cannot create tokens, and expires no later than the token. One half of the login's secret is in a
cookie; the page keeps the other half.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import time
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from gridweave.errors import OptionError
from gridweave.grid.api import Done, Login, LoginCode, NewLogin
from gridweave.grid.gateway.access import AsyncTokens, MadeLogin, TokenStore, find_token
from gridweave.grid.gateway.browser import CODE_S, check_origin, drop_cookies, set_cookie
from gridweave.grid.gateway.call import GatewayCall
from gridweave.grid.gateway.connections import uid_of
from gridweave.grid.gateway.problems import RefusalError, wrong_method
from gridweave.grid.gateway.wire import encode
from gridweave.site.times import span_text

FOLDER = Path(__file__).parent / "web"

LOGIN_HOURS = 12.0
"""Maximum lifetime of a login, in hours; a login never outlives its token."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Pages may load files and data only from this gateway; browsers never run scripts contained in a job's texts."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Browsers must revalidate each file, so that pages never mix files of two versions.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}

_FORMS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class WebFile(NamedTuple):
    """A file of the web pages."""

    data: bytes
    packed: bytes  # with gzip
    form: str
    mark: str  # its ETag


@functools.cache
def web_files() -> dict[str, WebFile]:
    """Return all files by URL path; only the first call reads the disk."""
    files = {f"/web/{path.relative_to(FOLDER).as_posix()}": _read(path) for path in FOLDER.rglob("*") if path.is_file()}
    served = {path: file for path, file in files.items() if Path(path).suffix in _FORMS}
    return served | {"/": served["/web/index.html"], "/favicon.ico": served["/web/icon.svg"]}


def _read(path: Path) -> WebFile:
    data = path.read_bytes()
    mark = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
    return WebFile(data, gzip.compress(data, mtime=0), _FORMS.get(path.suffix, ""), mark)


def is_of_web(path: str) -> bool:
    """Whether a path belongs to the web pages."""
    return path in ("/", "/favicon.ico") or path.startswith("/web/")


def send_file(call: GatewayCall) -> web.Response:
    """Return a file of the web pages, or status 304 if the browser's copy is current."""
    request = call.request
    file = web_files().get(request.path)
    if file is None:
        raise RefusalError("unknown-route", f"there is no page {request.path!r:.200}; start at /")
    if request.method not in ("GET", "HEAD"):
        raise wrong_method(request.path, request.method, ["GET", "HEAD"])
    headers = {**call.headers, **_HEADERS, "ETag": file.mark}
    if request.headers.get("If-None-Match") == file.mark:
        return web.Response(status=304, headers=headers)
    headers["Content-Type"] = file.form
    data = file.data
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        data, headers["Content-Encoding"] = file.packed, "gzip"
    call.bytes_out += len(data)
    return web.Response(body=data, headers=headers)


def _tokens(call: GatewayCall) -> AsyncTokens:
    if call.parts.tokens is None:
        raise RefusalError("unknown-token", "this gateway has no tokens, so no login is needed")
    return call.parts.tokens


async def make_code(call: GatewayCall) -> LoginCode:
    """Create a one-time code with which a browser can log in as the caller within a minute."""
    _tokens(call)
    return LoginCode(code=call.parts.codes.make(call.identity.info), seconds=CODE_S)


async def log_in(call: GatewayCall, body: NewLogin) -> web.Response:
    """Log a browser in with a token or a one-time code."""
    tokens = _tokens(call)
    check_origin(call.request)
    try:
        created = await _login_of(call, tokens, body)
    except RefusalError as error:
        call.login_failed = error.kind == "unauthenticated"
        raise
    login = Login(info=created.info, key=created.key)
    response = web.Response(body=encode(login, call.answer_form), content_type=call.answer_form)
    seconds = LOGIN_HOURS * 3600
    if created.info.until_ms is not None:
        seconds = min(seconds, created.info.until_ms / 1000 - time.time())
    set_cookie(call.request, response, created.cookie, seconds)
    return response


async def _login_of(call: GatewayCall, tokens: AsyncTokens, body: NewLogin) -> MadeLogin:
    """Create a login from a one-time code or a token."""
    logins = call.parts.logins
    if body.code:
        peer = call.request.remote, body.code, uid_of(call.request.transport)
        logins.check(*peer)
        token_info = call.parts.codes.take(body.code)
        if token_info is None or token_info.token_id not in await tokens.usable():
            logins.failed(*peer)
            problem = (
                f"the link was already used, is over {span_text(CODE_S * 1000)} old, or its token is no longer valid"
            )
            raise RefusalError("unauthenticated", f"{problem}; run gridweave open for a new one")
    else:
        token_info = await find_token(call.request, body.token.strip(), tokens, logins)
    try:
        return await tokens.do(TokenStore.create_login, token_info, LOGIN_HOURS)
    except OptionError as error:
        raise RefusalError("forbidden", str(error)) from None


async def log_out(call: GatewayCall) -> web.Response:
    """Log a browser out and revoke its login."""
    if call.parts.tokens is not None and call.identity.info.is_login:
        await call.parts.tokens.do(TokenStore.revoke, call.identity.token_id)
        call.parts.hub.revoked(call.identity.token_id)
    response = web.Response(body=encode(Done(), call.answer_form), content_type=call.answer_form)
    drop_cookies(call.request, response)
    return response
