"""Attacks with JSON Web Tokens: forged, of another issuer or audience, too old; and an issuer that is away.

The issuer is a real one on a port of this machine: it tells where its keys are, and signs with them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gridweave.errors import OptionError
from gridweave.grid.config.gateway import IssuerSettings
from gridweave.grid.gateway.issuer import Issuer
from support.gateway import FakeBackend, Served, a_job, serving

pytestmark = pytest.mark.asyncio


class RealIssuer:
    """An issuer of OpenID Connect with one key of RSA and one of an elliptic curve.

    Attributes
    ----------
    url : str
    asked : int
        How often it was asked for its keys.
    """

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.url, self.asked, self.is_away = "", 0, False
        self.jwks_url: str | None = None

    def jwks(self) -> dict[str, Any]:
        """Return the public keys."""
        first = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.rsa.public_key()))
        second = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.ec.public_key()))
        return {"keys": [first | {"kid": "r", "alg": "RS256", "use": "sig"}, second | {"kid": "e", "use": "sig"}]}

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer a question."""
        if self.is_away:
            return web.Response(status=503)
        if request.path == "/.well-known/openid-configuration":
            return web.json_response({"issuer": self.url, "jwks_uri": self.jwks_url or f"{self.url}/keys"})
        self.asked += 1
        return web.json_response(self.jwks())

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return what a good token says; None takes a claim out."""
        now_s = int(time.time())
        usual = {"iss": self.url, "aud": "gridweave", "sub": "anna", "iat": now_s, "exp": now_s + 600}
        return {name: value for name, value in (usual | changes).items() if value is not None}

    def token(self, **changes: Any) -> str:
        """Return a token with the issuer's signature."""
        return jwt.encode(self.claims(**changes), self.rsa, algorithm="RS256", headers={"kid": "r"})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[RealIssuer]:
        """Serve on a port of this machine until the end of the block."""
        runner = web.ServerRunner(web.Server(self.handle))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


@contextlib.asynccontextmanager
async def guarded(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[RealIssuer, Served]]:
    """Yield an issuer and a gateway that takes its tokens."""
    async with RealIssuer().running() as issuer:
        said = IssuerSettings(url=issuer.url, audience="gridweave", **settings)
        async with serving(FakeBackend(), tokens=str(tmp_path / "t"), issuer=said) as grid:
            yield issuer, grid


async def test_a_token_of_the_issuer_stands_for_its_user(tmp_path: Path) -> None:
    """A good token is taken, be its key RSA or an elliptic curve; jobs are its user's, and it is no operator."""
    async with guarded(tmp_path) as (issuer, grid):
        other = jwt.encode(issuer.claims(sub="bob"), issuer.ec, algorithm="ES256", headers={"kid": "e"})
        for token, user in ((issuer.token(), "anna"), (other, "bob")):
            _, who, _ = await grid.ask("GET", "/v1/whoami", token=token)
            assert (who["user"], who["scopes"]) == (user, ["read", "submit", "cancel"])
            assert (await grid.ask("POST", "/v1/jobs", {"jobs": [a_job(user="root")]}, token=token))[0] == 403
            await grid.submit(a_job(), token=token)
            _, page, _ = await grid.ask("GET", "/v1/jobs", token=token)
            assert [job["request"]["user"] for job in page["jobs"]] == [user]
            assert (await grid.ask("GET", "/v1/tokens", token=token))[0] == 403
        assert issuer.asked == 1


async def test_scopes_come_from_the_claim_that_is_named(tmp_path: Path) -> None:
    """With a scope claim a token is for what that names, and for nothing where it names nothing of ours."""
    async with guarded(tmp_path, scope_claim="scope", user_claim="preferred_username") as (issuer, grid):
        named = issuer.token(scope="openid gridweave:read", preferred_username="anna.b")
        _, who, _ = await grid.ask("GET", "/v1/whoami", token=named)
        assert (who["user"], who["scopes"]) == ("anna.b", ["read"])
        operator = issuer.token(scope=["gridweave:operate"], preferred_username="olga")
        assert (await grid.ask("GET", "/v1/tokens", token=operator))[0] == 200
        for claims in ({"scope": "openid"}, {"scope": {"operate": 1}}, {}, {"scope": "operate", "sub": "x"}):
            named = issuer.token(**{"preferred_username": "anna" if "sub" not in claims else None, **claims})
            assert (await grid.ask("GET", "/v1/whoami", token=named))[0] == 401


async def test_limits_come_from_the_claim_that_is_named(tmp_path: Path) -> None:
    """A token has the limits that it claims; one whose claim is none, or names what is not known, is not taken."""
    async with guarded(tmp_path, limits_claim="gridweave_limits") as (issuer, grid):
        small = issuer.token(gridweave_limits={"max_nodes": 2, "max_limit_ms": 10**9})
        status, problem, _ = await grid.ask("POST", "/v1/jobs", {"jobs": [a_job(nodes=3)]}, token=small)
        assert (status, problem["errors"][0]["where"]) == (403, "jobs[0].request.nodes")
        assert (await grid.ask("GET", "/v1/whoami", token=issuer.token()))[0] == 200
        no_numbers = {"max_priority": math.nan}, {"max_weight": math.nan}
        for claim in ({"max_nodes": 0}, {"max_nods": 2}, *no_numbers, [2], "2"):
            token = issuer.token(gridweave_limits=claim)
            assert (await grid.ask("GET", "/v1/whoami", token=token))[0] == 401


def _unsigned(issuer: RealIssuer) -> str:
    return jwt.encode(issuer.claims(), None, algorithm="none", headers={"kid": "r"})


def _signed_with_the_public_key(issuer: RealIssuer) -> str:
    """Return a token whose secret is the public key, which everybody has (algorithm confusion)."""
    form, kind = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    pem = issuer.rsa.public_key().public_bytes(form, kind)
    import base64
    import hashlib
    import hmac

    def part(value: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    body = part({"alg": "HS256", "typ": "JWT", "kid": "r"}) + b"." + part(issuer.claims())
    signature = base64.urlsafe_b64encode(hmac.new(pem, body, hashlib.sha256).digest()).rstrip(b"=")
    return (body + b"." + signature).decode()


def _of_another_key(issuer: RealIssuer) -> str:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    return jwt.encode(issuer.claims(), key, algorithm="RS256", headers={"kid": "r"})


def _with_its_own_key(issuer: RealIssuer) -> str:
    """Return a token that brings the key along by which it is to be checked."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    mine = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    headers = {"kid": "mine", "jwk": mine, "jku": "http://evil.example.org/keys"}
    return jwt.encode(issuer.claims(), key, algorithm="RS256", headers=headers)


def _changed(issuer: RealIssuer) -> str:
    head, _, signature = issuer.token().split(".")
    return f"{head}.{issuer.token(sub='olga').split('.')[1]}.{signature}"


def _claims(**changes: Any) -> Any:
    return lambda issuer: issuer.token(**changes)


_LONG_AGO = 1_000_000_000
FORGED: dict[str, Any] = {
    "alg none": _unsigned,
    "signed with the public key": _signed_with_the_public_key,
    "of another key": _of_another_key,
    "with a key of its own": _with_its_own_key,
    "changed": _changed,
    "of another audience": _claims(aud="mail"),
    "of no audience": _claims(aud=None),
    "of another issuer": _claims(iss="https://login.example.org"),
    "of no issuer": _claims(iss=None),
    "too old": _claims(exp=_LONG_AGO),
    "without an end": _claims(exp=None),
    "with an end that is no number": _claims(exp="never"),
    "with an end far beyond": _claims(exp=1e300),
    "with an end in a text": _claims(exp=str(2**33)),
    "with an end that is true": _claims(exp=True),
    "with an end that is infinite": _claims(exp=float("inf")),
    "made tomorrow": _claims(iat=int(time.time()) + 86_400),
    "made at no time": _claims(iat=float("nan")),
    "made in a text": _claims(iat="7"),
    "not yet": _claims(nbf=int(time.time()) + 10_000),
    "without a user": _claims(sub=None),
    "of a user who is no text": _claims(sub="\n"),
    "of a user with a very long name": _claims(sub="a" * 200),
    "nonsense": lambda _: "eyJhbGciOiJSUzI1NiJ9.e30.AAAA",
    "a broken head": lambda _: "eyJ.e30.AAAA",
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
async def test_forged_tokens_are_refused(tmp_path: Path, forge: Any) -> None:
    """A token that the issuer has not made so, for us and for now, is 401, and nothing is handed in with it."""
    async with guarded(tmp_path) as (issuer, grid):
        status, problem, _ = await grid.ask("POST", "/v1/jobs", {"jobs": [a_job()]}, token=forge(issuer))
        assert (status, problem["type"]) == (401, "urn:gridweave:problem:unauthenticated")


async def test_names_of_keys_that_are_not_there_ask_the_issuer_for_nothing(tmp_path: Path) -> None:
    """A thousand unknown keys are one or two requests to the issuer, not a thousand."""
    async with guarded(tmp_path, user_claim="sub") as (issuer, grid):
        assert (await grid.ask("GET", "/v1/whoami", token=issuer.token()))[0] == 200
        for number in range(50):
            token = jwt.encode(issuer.claims(), issuer.rsa, algorithm="RS256", headers={"kid": f"k{number}"})
            assert (await grid.ask("GET", "/v1/whoami", token=token))[0] in (401, 429)
        assert issuer.asked <= 2


async def test_a_key_that_the_issuer_has_taken_back_is_used_no_more() -> None:
    """Keys are asked for again when they are old; what an old one has signed is refused then."""
    now_s = time.time()
    async with RealIssuer().running() as issuer:
        known = Issuer(IssuerSettings(url=issuer.url, audience="gridweave"), now_s=lambda: now_s)
        token = issuer.token(exp=int(now_s) + 10_000)
        assert await known.find(token) is not None
        issuer.rsa = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
        now_s += 301
        assert await known.find(token) is None
        assert await known.find(issuer.token(exp=int(now_s) + 600)) is not None


async def test_an_issuer_that_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without keys the answer is 503 and one line says what is wrong; with known keys it goes on for a day."""
    caplog.set_level(logging.INFO, "gridweave.gateway")
    now_s = time.time()
    async with RealIssuer().running() as issuer:
        known = Issuer(IssuerSettings(url=issuer.url, audience="gridweave"), now_s=lambda: now_s)
        token = issuer.token(exp=int(now_s) + 200_000)
        assert await known.find(token) is not None
        issuer.is_away = True
        now_s += 3_600
        assert await known.find(token) is not None
    said = IssuerSettings(url="http://127.0.0.1:9", audience="gridweave")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t"), issuer=said) as grid:
        status, problem, _ = await grid.ask("GET", "/v1/whoami", token=token)
        assert (status, problem["type"]) == (503, "urn:gridweave:problem:issuer-unavailable")
        assert "127.0.0.1:9" in problem["detail"]
    lines = [one.getMessage() for one in caplog.records if "gives no keys" in one.getMessage()]
    assert ["127.0.0.1:9" in line and "see url and ca in [gateway.issuer]" in line for line in lines[-1:]] == [True]
    assert len(lines) == 2


async def test_keys_are_not_fetched_where_others_could_change_them() -> None:
    """An issuer that names a place for its keys that is not encrypted gives no keys."""
    async with RealIssuer().running() as issuer:
        issuer.jwks_url = "http://keys.example.org/keys"
        known = Issuer(IssuerSettings(url=issuer.url, audience="gridweave"))
        await known.look()
        assert "http://keys.example.org/keys" in known._problem


async def test_an_end_of_a_token_ends_its_streams(tmp_path: Path) -> None:
    """A token of the issuer is usable until it ends, for those who look after streams as well."""
    now_s = time.time()
    async with RealIssuer().running() as issuer:
        known = Issuer(IssuerSettings(url=issuer.url, audience="gridweave"), now_s=lambda: now_s)
        info = await known.find(issuer.token())
        assert info is not None
        assert known.usable() == {info.token_id}
        now_s += 700
        assert known.usable() == frozenset()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"url": "http://login.example.org"}, "url: 'http://login.example.org' is not the address of an issuer; write"),
        ({"url": "login"}, "is not the address of an issuer"),
        ({"url": "https://user:pass@login.example.org"}, "is not the address of an issuer"),
        ({"audience": ""}, "audience: is empty"),
        ({"scopes": ("king",)}, "scopes: 'king' is not known; one or several of read, submit, cancel, operate"),
        ({"scopes": ("operate",)}, "would make every user of the issuer an operator"),
    ],
)
async def test_settings_of_an_issuer_that_make_no_sense(wrong: dict[str, Any], message: str) -> None:
    """Each mistake is one line that says what would be right."""
    with pytest.raises(OptionError) as error:
        IssuerSettings(**{"url": "https://login.example.org", "audience": "gridweave", **wrong})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
