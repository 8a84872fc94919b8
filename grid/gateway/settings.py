"""How a gateway is set up: where it listens, its limits, and its certificate, which may be renewed while it runs."""

from __future__ import annotations

import ipaddress
import os
import ssl
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec

from gridweave.errors import OptionError
from gridweave.grid.api import SCOPES, USUAL_SCOPES, Scope

DEFAULT_PORT = 8765


class IssuerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whose tokens are taken beside our own: the table ``[gateway.issuer]`` (docs/gateway.md, "Tokens of an issuer").

    Attributes
    ----------
    url : str
        Of the issuer, as in the claim ``iss``; it tells by OpenID Connect discovery where its keys are.
    audience : str
        What the claim ``aud`` must name.
    user_claim : str
        The claim with the name of the user.
    scopes : tuple of str
        What each good token is for, unless there is a `scope_claim`.
    scope_claim : str, optional
        The claim that names the scopes, as ``gridweave:submit`` or ``submit``.
    limits_claim : str, optional
        The claim that names the limits of the token: an object as `gridweave.grid.api.TokenLimits`.
    ca : str, optional
        A file of certificates that are trusted in place of those of the system.

    Raises
    ------
    OptionError
        If the URL is not encrypted, a name is empty, or there is no such scope.
    """

    url: str
    audience: str
    user_claim: str = "sub"
    scopes: tuple[Scope, ...] = USUAL_SCOPES
    scope_claim: str | None = None
    limits_claim: str | None = None
    ca: str | None = None

    def __post_init__(self) -> None:
        check_issuer_url("url", self.url)
        for name in ("audience", "user_claim", "scope_claim", "limits_claim"):
            if getattr(self, name) == "":
                raise OptionError(name, "is empty; name it as the issuer does")
        for scope in self.scopes:
            if scope not in SCOPES:
                raise OptionError("scopes", f"{scope!r:.100} is not known; one or several of {', '.join(SCOPES)}")
        if "operate" in self.scopes:
            right = "name a scope_claim, by which the issuer says who operates"
            raise OptionError("scopes", f"has operate, and everybody at the institute would be an operator; {right}")


def check_issuer_url(option: str, url: str) -> None:
    """Raise OptionError if keys cannot be asked for at a URL, or not so that they can be trusted."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = urlsplit(""), ""
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    if not is_safe or not host or parts.username is not None:
        raise OptionError(option, f"{url!r:.200} is not the address of an issuer; write for example https://HOST/realm")


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a gateway is set up."""

    host: str = "127.0.0.1"  # the address to listen at
    port: int = DEFAULT_PORT  # 0: any that is free
    # Where the tokens are kept: a path, or a URL. None: there are none; everybody who reaches the gateway is an
    # operator, so that it listens on loopback alone.
    tokens: str | None = None
    # Files with the certificate (and those that it is signed with) and its key, for TLS.
    cert: str | None = None
    key: str | None = None
    # A file of certificates: who shows one that is signed by one of them is known by it. The other ends of links must
    # then, users need not.
    client_ca: str | None = None
    # Whether tokens may be sent here without TLS from other machines: where something in front of the gateway speaks
    # TLS, or nobody else is on the network.
    plain_http: bool = False
    issuer: IssuerSettings | None = None  # whose tokens are taken beside our own
    # Files, which are rotated: what tokens and operators did, and a line for each request. None: beside the tokens if
    # they are in a file, or else nowhere; and standard error.
    audit: str | None = None
    log: str | None = None
    # Of a request that hands in jobs.
    max_body_bytes: int = 32 << 20
    max_jobs: int = 10_000
    max_job_bytes: int = 1 << 20  # of one job in it
    # How many requests each user may make, in the long run and at once.
    requests_per_s: float = 500.0
    burst: float = 1_000.0
    max_open_jobs: int = 100_000  # how many jobs of a user may be handed in and not over
    # Requests of a user that are being answered, and streams of events and output that are open.
    max_at_once: int = 100
    max_streams: int = 500
    # Of everybody together, and from one address. One more takes the place of the one that has been idle for longest.
    max_connections: int = 4_000
    max_connections_per_address: int = 1_000
    failed_logins_per_minute: float = 20.0  # from one address; then its tokens are not looked up for a while
    max_held_bytes: int = 256 << 20  # of all bodies together that are being read and worked on
    body_timeout_s: float = 30.0  # in which the body of a request must have come
    idle_s: float = 75.0  # after which a connection without a request is closed
    comment_s: float = 15.0  # how often a stream of events that has nothing to say says so
    backlog: int = 10_000  # so many events may wait for a watcher that does not take them; then it is dropped
    # How often it is looked whether the tokens of open streams can be used still. (At each event as well.)
    check_tokens_s: float = 1.0
    stop_s: float = 10.0  # so long requests may take to come to an end when the gateway stops

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise OptionError("port", f"is {self.port}; a number from 0 (any that is free) to 65535")
        for name in self.__struct_fields__[self.__struct_fields__.index("max_body_bytes") :]:
            value = getattr(self, name)
            if not value > 0:
                raise OptionError(name, f"is {value}; a number above 0")
        self._check_together()

    def _check_together(self) -> None:
        """Refuse what does not go with the rest, and what would be open to everybody."""
        if (self.cert is None) != (self.key is None):
            given, missing = ("cert", "key") if self.key is None else ("key", "cert")
            raise OptionError(given, f"is given without {missing}; TLS needs a certificate and its key")
        if self.client_ca is not None and self.cert is None:
            raise OptionError("client_ca", "is given without cert and key; client certificates need TLS")
        if self.issuer is not None and self.tokens is None:
            raise OptionError("issuer", "is given, but there are no tokens; name a place for them, or leave it out")
        if self.tokens is None and not is_loopback(self.host):
            raise OptionError(
                "host",
                f"{self.host!r} can be reached from elsewhere, and without tokens everybody would be an operator; "
                "name 127.0.0.1, or a place of tokens (gridweave token create)",
            )
        if self.cert is None and not self.plain_http and not is_loopback(self.host):
            raise OptionError(
                "host",
                f"{self.host!r} can be reached from elsewhere, and without TLS anyone in between can read the tokens; "
                "give cert and key, name 127.0.0.1, or write plain_http = true (--plain-http) if TLS ends before it",
            )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, seen from itself.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("localhost.evil.org")
    (True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


class Certificate:
    """A certificate and its key in files; whoever connects may show one that is signed by one of `client_ca`."""

    def __init__(self, cert: str, key: str, client_ca: str | None = None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self.context = self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._seen = self._state()

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for option, path in (("cert", self._cert), ("key", self._key)):
            try:
                text = Path(path).read_bytes()
            except OSError as error:
                raise OptionError(option, f"{path}: {error.strerror}; name a file that you can read") from None
            if b"-----BEGIN" not in text:
                raise OptionError(option, f"{path} is not a PEM file, which begins with -----BEGIN")

        def ask() -> NoReturn:
            raise OptionError("key", f"{self._key} is encrypted; decrypt it, and let nobody else read it")

        try:
            context.load_cert_chain(self._cert, self._key, password=ask)
        except ssl.SSLError as error:
            if "KEY_VALUES_MISMATCH" in str(error):
                raise OptionError("key", f"{self._key} is not the key of {self._cert}") from None
            problem = f"{self._cert} or {self._key} cannot be used: {error.reason or error}; PEM files of a certificate"
            raise OptionError("cert", f"{problem} and its key are asked for") from None
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                problem = f"{self._client_ca}: {getattr(error, 'reason', None) or error.strerror}"
                raise OptionError("client_ca", f"{problem}; name a file with certificates (PEM)") from None
            # Users have tokens, and show none.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _state(self) -> tuple[object, ...]:
        """Return by what a change of the files is seen."""
        found: list[object] = []
        for path in (self._cert, self._key):
            try:
                seen = os.stat(path)
                found.append((seen.st_mtime_ns, seen.st_ino, seen.st_size))
            except OSError:
                found.append(None)
        return tuple(found)

    def has_changed(self) -> bool:
        """Return whether the files are others than those that were read last."""
        return self._state() != self._seen

    def reload(self) -> None:
        """Read the files again, for connections that come from now on; the old ones go on if that fails."""
        self._seen = self._state()  # what is wrong with them is told once
        self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._loaded(self.context)
