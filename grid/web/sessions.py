"""How a browser logs in: with a token, or with a code that is good once, as `gridweave open` has it made.

A login is a token for a short time that the browser keeps in a cookie: it may do what the token may that it was made
by, and ends no later.
"""

from __future__ import annotations

import time

from aiohttp import web

from gridweave.errors import OptionError
from gridweave.grid.api import Done, LoginCode, NewLogin, TokenInfo
from gridweave.grid.gateway.access import AsyncTokens, TokenStore, find_token
from gridweave.grid.gateway.call import GatewayCall
from gridweave.grid.gateway.problems import RefusalError
from gridweave.grid.gateway.wire import encode
from gridweave.grid.web.browser import CODE_S, check_origin, cookie_of, drop_cookies, set_cookie

LOGIN_HOURS = 12.0
"""So long a login lasts, if the token does."""


def _tokens(call: GatewayCall) -> AsyncTokens:
    if call.parts.tokens is None:
        raise RefusalError("unknown-token", "this gateway has no tokens, so nobody needs to log in")
    return call.parts.tokens


async def make_code(call: GatewayCall) -> LoginCode:
    """Make a code with which a browser can log in once, as whoever asks, within a minute."""
    _tokens(call)
    return LoginCode(code=call.parts.codes.make(call.identity.info), seconds=CODE_S)


async def log_in(call: GatewayCall, body: NewLogin) -> web.Response:
    """Log a browser in: with a token, or with a code that is good once."""
    tokens = _tokens(call)
    check_origin(call.request)
    try:
        token, info = await _login_of(call, tokens, body)
    except RefusalError as error:
        call.login_failed = error.kind == "unauthenticated"
        raise
    response = web.Response(body=encode(info, call.answer_form), content_type=call.answer_form)
    seconds = LOGIN_HOURS * 3600
    if info.until_ms is not None:
        seconds = min(seconds, info.until_ms / 1000 - time.time())
    set_cookie(call.request, response, token, seconds)
    return response


async def _login_of(call: GatewayCall, tokens: AsyncTokens, body: NewLogin) -> tuple[str, TokenInfo]:
    """Return the token of a new login, and what it stands for."""
    logins, address = call.parts.logins, call.request.remote
    if body.code:
        logins.check(address, body.code)
        found = call.parts.codes.take(body.code)
        if found is None or found.token_id not in await tokens.usable():
            logins.failed(address)
            problem = f"the link was used already, is over {CODE_S:g} s old, or its token is no longer valid"
            raise RefusalError("unauthenticated", f"{problem}; gridweave open makes another")
    else:
        found = await find_token(call.request, body.token.strip(), tokens, logins)
    if found.parent and body.token:
        return body.token.strip(), found  # it is for a short time already
    try:
        made = await tokens.do(TokenStore.create_short, found, found.scopes, LOGIN_HOURS)
    except OptionError as error:
        raise RefusalError("forbidden", str(error)) from None
    return made.token, made.info


async def log_out(call: GatewayCall) -> web.Response:
    """Log a browser out: its login is good no more."""
    if call.parts.tokens is not None and cookie_of(call.request) and call.identity.info.parent:
        await call.parts.tokens.do(TokenStore.revoke, call.identity.token_id)
        call.parts.hub.revoked(call.identity.token_id)
    response = web.Response(body=encode(Done(), call.answer_form), content_type=call.answer_form)
    drop_cookies(call.request, response)
    return response
