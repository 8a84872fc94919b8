"""How a browser logs in: with a token, or with a code that is good once, as `gridweave open` has it made.

A login may do what the token may that it was made by, but makes no tokens, and ends no later. The browser keeps half of
its secret in a cookie, and the page the other half.
"""

from __future__ import annotations

import time

from aiohttp import web

from gridweave.errors import OptionError
from gridweave.grid.api import Done, Login, LoginCode, NewLogin
from gridweave.grid.gateway.access import AsyncTokens, MadeLogin, TokenStore, find_token
from gridweave.grid.gateway.call import GatewayCall
from gridweave.grid.gateway.connections import uid_of
from gridweave.grid.gateway.problems import RefusalError
from gridweave.grid.gateway.wire import encode
from gridweave.grid.web.browser import CODE_S, check_origin, drop_cookies, set_cookie

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
        made = await _login_of(call, tokens, body)
    except RefusalError as error:
        call.login_failed = error.kind == "unauthenticated"
        raise
    login = Login(info=made.info, key=made.key)
    response = web.Response(body=encode(login, call.answer_form), content_type=call.answer_form)
    seconds = LOGIN_HOURS * 3600
    if made.info.until_ms is not None:
        seconds = min(seconds, made.info.until_ms / 1000 - time.time())
    set_cookie(call.request, response, made.cookie, seconds)
    return response


async def _login_of(call: GatewayCall, tokens: AsyncTokens, body: NewLogin) -> MadeLogin:
    """Create a login from a one-time code or a token."""
    logins = call.parts.logins
    if body.code:
        peer = call.request.remote, body.code, uid_of(call.request.transport)
        logins.check(*peer)
        found = call.parts.codes.take(body.code)
        if found is None or found.token_id not in await tokens.usable():
            logins.failed(*peer)
            problem = f"the link was used already, is over {CODE_S:g} s old, or its token is no longer valid"
            raise RefusalError("unauthenticated", f"{problem}; gridweave open makes another")
    else:
        found = await find_token(call.request, body.token.strip(), tokens, logins)
    try:
        return await tokens.do(TokenStore.create_login, found, LOGIN_HOURS)
    except OptionError as error:
        raise RefusalError("forbidden", str(error)) from None


async def log_out(call: GatewayCall) -> web.Response:
    """Log a browser out: its login is good no more."""
    if call.parts.tokens is not None and call.identity.info.is_login:
        await call.parts.tokens.do(TokenStore.revoke, call.identity.token_id)
        call.parts.hub.revoked(call.identity.token_id)
    response = web.Response(body=encode(Done(), call.answer_form), content_type=call.answer_form)
    drop_cookies(call.request, response)
    return response
