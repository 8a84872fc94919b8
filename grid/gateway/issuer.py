"""Tokens of an institute's issuer: JSON Web Tokens (RFC 7519), with keys found by OpenID Connect discovery.

A token is valid if one of the issuer's keys has signed it with an accepted algorithm, if its issuer and audience are
the configured ones, and if it has begun and not expired. Keys are fetched again when they are old, and when a token
names an unknown key.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import aiohttp
import jwt
import msgspec

from gridweave.errors import OptionError
from gridweave.grid.api import SCOPES, Scope, TokenInfo, TokenLimits
from gridweave.grid.config.gateway import IssuerSettings, check_issuer_url
from gridweave.grid.gateway.problems import RefusalError

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Accepted signature algorithms; ``none`` and algorithms with a shared secret are excluded."""

_LEEWAY_S = 30.0
_FETCH_S = 5.0
_FRESH_S, _KEPT_S, _PAUSE_S = 300.0, 86_400.0, 10.0
"""Age at which keys are fetched again, age at which they are no longer used, and minimum time between fetches."""

_MOST_BYTES = 1 << 20
_MOST_LENGTH = 8_000
_MOST_OPEN = 10_000

_UnixS = Annotated[float, msgspec.Meta(ge=0, lt=2**40)]

logger = logging.getLogger("gridweave.gateway")


def looks_like_jwt(token: str) -> bool:
    """Whether a text has the form of a JSON Web Token.

    Examples
    --------
    >>> looks_like_jwt("eyJhbGciOiJub25lIn0.e30."), looks_like_jwt("gw_0123456789ab_x")
    (True, False)
    """
    return token.startswith("eyJ") and token.count(".") == 2 and len(token) <= _MOST_LENGTH


class Issuer:
    """Looks up one issuer's tokens and caches the issuer's keys."""

    def __init__(self, settings: IssuerSettings, *, now_s: Callable[[], float] = time.time) -> None:
        self._settings, self._now_s = settings, now_s
        self._tls: ssl.SSLContext | bool = True
        if settings.ca is not None:
            try:
                self._tls = ssl.create_default_context(cafile=settings.ca)
            except OSError as error:
                problem = f"{settings.ca}: {error.strerror or error}; name a file with certificates (PEM)"
                raise OptionError("issuer.ca", problem) from None
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_s = self._tried_s = -_KEPT_S
        self._problem = ""
        self._lock = asyncio.Lock()
        # The expiry time of each valid token, by token id.
        self._open: dict[str, float] = {}

    async def find(self, token: str) -> TokenInfo | None:
        """Look up a token; if it is invalid, log the reason and return None.

        Raise RefusalError if the issuer does not answer and its keys are unknown or too old.
        """
        try:
            key = await self._key(str(jwt.get_unverified_header(token).get("kid", "")))
            claims = self._claims(token, key)
            times = msgspec.convert(claims, _Times)
        except (jwt.PyJWTError, msgspec.ValidationError) as error:
            logger.info("a token of the issuer was refused: %s", str(error)[:200])
            return None
        return self._info(token, claims, times)

    def usable(self) -> frozenset[str]:
        """Return the ids of the valid tokens seen so far."""
        now_s = self._now_s()
        self._open = {token_id: until_s for token_id, until_s in self._open.items() if now_s < until_s}
        return frozenset(self._open)

    async def look(self) -> None:
        """Fetch the keys; called at startup so that the log reports a wrong configuration early."""
        async with self._lock:
            await self._fetch()

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        settings = self._settings
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=ALGORITHMS,
            audience=settings.audience,
            issuer=settings.url,
            leeway=_LEEWAY_S,
            options={"require": ["exp", "iss", "aud", settings.user_claim]},
        )
        return claims

    def _info(self, token: str, claims: Mapping[str, Any], times: _Times) -> TokenInfo | None:
        settings = self._settings
        user = claims[settings.user_claim]
        if not isinstance(user, str) or not (1 <= len(user) <= 100 and user.isprintable()):
            logger.info("a token of the issuer was refused: %s is not a name", settings.user_claim)
            return None
        scopes = settings.scopes if settings.scope_claim is None else scopes_of(claims.get(settings.scope_claim))
        if not scopes:
            logger.info("a token of the issuer was refused: %s names no scope", settings.scope_claim)
            return None
        try:
            limits = _limits_of({} if settings.limits_claim is None else claims.get(settings.limits_claim, {}))
        except msgspec.ValidationError as error:
            logger.info("a token of the issuer was refused: %s: %s", settings.limits_claim, error)
            return None
        token_id = f"jwt-{hashlib.sha256(token.encode()).hexdigest()[:24]}"
        until_s = times.exp + _LEEWAY_S
        if len(self._open) >= _MOST_OPEN:
            self.usable()
        self._open[token_id] = until_s
        return TokenInfo(
            token_id=token_id,
            user=user,
            scopes=scopes,
            limits=limits,
            made_ms=round(times.iat * 1000),
            until_ms=round(until_s * 1000),
        )

    # -- keys ---------------------------------------------------------------------------------------------------------

    async def _key(self, name: str) -> jwt.PyJWK:
        async with self._lock:
            age_s = self._now_s() - self._fetched_s
            is_known = name in self._keys
            # Tokens with invented key names cause at most one fetch per pause.
            if (not is_known or age_s > _FRESH_S) and self._now_s() - self._tried_s > _PAUSE_S:
                await self._fetch()
            if self._now_s() - self._fetched_s > _KEPT_S:
                raise RefusalError("issuer-unavailable", f"{self._problem}; try again", retry_after_s=_PAUSE_S)
            if name not in self._keys:
                raise jwt.InvalidKeyError(f"there is no key {name!r:.60}")
            return self._keys[name]

    async def _fetch(self) -> None:
        """Fetch the keys; if that fails, log the reason and keep the old keys."""
        self._tried_s = self._now_s()
        try:
            timeout = aiohttp.ClientTimeout(total=_FETCH_S)
            async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
                where = self._settings.url.rstrip("/") + "/.well-known/openid-configuration"
                configuration = await self._document(session, where)
                if configuration.get("issuer") != self._settings.url:
                    raise ValueError(f"it is the issuer {configuration.get('issuer')!r:.200}")
                keys_url = str(configuration.get("jwks_uri", ""))
                check_issuer_url("jwks_uri", keys_url)
                keys = await self._document(session, keys_url)
            self._keys = _read_keys(keys)
        except (aiohttp.ClientError, OSError, ValueError, OptionError, jwt.PyJWTError) as error:
            reason = str(error) or type(error).__name__
            problem = f"the issuer {self._settings.url} gives no keys: {reason[:300]}"
            if problem != self._problem:
                logger.error("%s; see url and ca in [gateway.issuer]", problem)
            self._problem = problem
        else:
            self._fetched_s, self._problem = self._now_s(), ""

    async def _document(self, session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
        headers = {"Accept-Encoding": "identity"}
        async with session.get(url, ssl=self._tls, allow_redirects=False, headers=headers) as response:
            if response.status != 200:
                raise ValueError(f"{url} answers with {response.status}")
            data = await response.content.read(_MOST_BYTES + 1)
            while len(data) <= _MOST_BYTES and (more := await response.content.read(_MOST_BYTES)):
                data += more
            if len(data) > _MOST_BYTES:
                raise ValueError(f"{url} answers with more than {_MOST_BYTES} bytes")
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.MsgspecError:
            raise ValueError(f"{url} does not answer with JSON") from None


def _read_keys(document: Mapping[str, Any]) -> dict[str, jwt.PyJWK]:
    """Return the usable keys by name; raise ValueError if there are none."""
    keys = {}
    for entry in document.get("keys", []):
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
            continue
        try:
            key = jwt.PyJWK(entry)
        except jwt.PyJWTError:
            continue
        if key.algorithm_name in ALGORITHMS:
            keys[str(entry.get("kid", ""))] = key
    if not keys:
        raise ValueError("none of its keys can be used")
    return keys


class _Times(msgspec.Struct, frozen=True):
    """A token's times in Unix seconds. PyJWT compares them with the clock, but also accepts "7" and 1e300."""

    exp: _UnixS
    iat: _UnixS = 0.0
    nbf: _UnixS = 0.0


class _ClaimedLimits(TokenLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits in a claim; unknown fields are refused, because they may be limits that this version does not know."""


def _limits_of(claim: object) -> TokenLimits:
    """Read the limits in a claim; raise ValidationError if they are malformed."""
    limits = msgspec.convert(claim, _ClaimedLimits)
    for value in (limits.max_priority, limits.max_weight):
        if value is not None and not math.isfinite(value):  # Python reads NaN in JSON
            raise msgspec.ValidationError(f"max_priority or max_weight is {value}; a number that is finite")
    return TokenLimits(**msgspec.structs.asdict(limits))


def scopes_of(claim: object) -> tuple[Scope, ...]:
    """Return the scopes in a claim, written as ``gridweave:submit`` or ``submit``; other words are ignored.

    Examples
    --------
    >>> scopes_of("openid gridweave:read gridweave:submit"), scopes_of(["operate"]), scopes_of(7)
    (('read', 'submit'), ('operate',), ())
    """
    words = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    named = {word.removeprefix("gridweave:") for word in words if isinstance(word, str)}
    return tuple(scope for scope in SCOPES if scope in named)
