"""Settings of a gateway: address, limits, tokens, and a certificate that can be renewed while the gateway runs."""

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
    """An issuer whose tokens are accepted in addition to our own (docs/gateway.md, "Tokens of an issuer").

    Attributes
    ----------
    url : str
        URL in the claim ``iss``, at which OpenID Connect discovery finds the issuer's keys.
    audience : str
        Required audience (claim ``aud``).
    user_claim : str
        Claim with the user's name.
    scopes : tuple of str
        Scopes of all tokens; ignored if there is a `scope_claim`.
    scope_claim : str, optional
        Claim with the scopes, such as ``gridweave:submit`` or ``submit``.
    limits_claim : str, optional
        Claim with the token's limits, an object like `gridweave.grid.api.TokenLimits`.
    ca : str, optional
        File of certificate authorities to trust instead of the system's.

    Raises
    ------
    OptionError
        If the URL is not HTTPS, a name is empty, or a scope is unknown.
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
                raise OptionError(name, "is empty; give the name that the issuer uses")
        for scope in self.scopes:
            if scope not in SCOPES:
                raise OptionError("scopes", f"{scope!r:.100} is not known; one or several of {', '.join(SCOPES)}")
        if "operate" in self.scopes:
            right = "name a scope_claim with which the issuer grants it"
            raise OptionError("scopes", f"has operate, which would make every user of the issuer an operator; {right}")


def check_issuer_url(option: str, url: str) -> None:
    """Raise OptionError unless keys can be fetched safely from an issuer's URL: by HTTPS, or from this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = urlsplit(""), ""
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    if not is_safe or not host or parts.username is not None:
        raise OptionError(option, f"{url!r:.200} is not the address of an issuer; write for example https://HOST/realm")


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a gateway."""

    host: str = "127.0.0.1"  # address to listen on
    port: int = DEFAULT_PORT  # 0: any free port
    # Path or URL of the token database. Without one, every client is an operator, and the gateway listens on loopback
    # only.
    tokens: str | None = None
    # Files of the certificate chain and its key, for TLS.
    cert: str | None = None
    key: str | None = None
    # File of certificate authorities for client certificates. Links must then present one; users need not.
    client_ca: str | None = None
    # Whether clients may send tokens without TLS from other machines: behind a TLS proxy, or on a private network.
    plain_http: bool = False
    issuer: IssuerSettings | None = None  # an issuer whose tokens are accepted in addition to the gateway's own
    # Rotated files: the audit log, and the log of requests. By default the audit log is in the folder of the tokens if
    # they are in a file, and requests are logged to standard error.
    audit: str | None = None
    log: str | None = None
    # Limits of a submission: bytes and jobs.
    max_body_bytes: int = 32 << 20
    max_jobs: int = 10_000
    max_job_bytes: int = 1 << 20  # of one job
    # Requests per second of each user, in the long run and in a burst.
    requests_per_s: float = 500.0
    burst: float = 1_000.0
    max_open_jobs: int = 100_000  # open jobs of a user
    # Concurrent requests of a user, and open streams.
    max_at_once: int = 100
    max_streams: int = 500
    # Connections in total and from one address. A further connection replaces the one that has been idle longest.
    max_connections: int = 4_000
    max_connections_per_address: int = 1_000
    failed_logins_per_minute: float = 20.0  # from one address; above that, its tokens are not checked for a while
    max_held_bytes: int = 256 << 20  # bytes of all bodies that are being read or handled
    body_timeout_s: float = 30.0  # time within which a request's body must arrive
    idle_s: float = 75.0  # time after which an idle connection is closed
    comment_s: float = 15.0  # interval of keep-alive messages on a silent stream
    backlog: int = 10_000  # events that may wait for a watcher before it is dropped
    # Interval at which the tokens of open streams are checked, in addition to each event.
    check_tokens_s: float = 1.0
    stop_s: float = 10.0  # time that requests in progress have to finish when the gateway stops

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise OptionError("port", f"is {self.port}; a number from 0 (any that is free) to 65535")
        for name in self.__struct_fields__[self.__struct_fields__.index("max_body_bytes") :]:
            value = getattr(self, name)
            if not value > 0:
                raise OptionError(name, f"is {value}; a number above 0")
        self._check_together()

    def _check_together(self) -> None:
        """Raise OptionError if settings contradict each other or would give everybody access."""
        if (self.cert is None) != (self.key is None):
            present, missing = ("cert", "key") if self.key is None else ("key", "cert")
            raise OptionError(present, f"is given without {missing}; TLS needs a certificate and its key")
        if self.client_ca is not None and self.cert is None:
            raise OptionError("client_ca", "is given without cert and key; client certificates need TLS")
        if self.issuer is not None and self.tokens is None:
            raise OptionError("issuer", "is given, but there are no tokens; give their location, or leave it out")
        if self.tokens is None and not is_loopback(self.host):
            raise OptionError(
                "host",
                f"{self.host!r} is reachable from other machines, and without tokens everybody would be an operator; "
                "give 127.0.0.1, or the location of tokens (gridweave token create)",
            )
        if self.cert is None and not self.plain_http and not is_loopback(self.host):
            raise OptionError(
                "host",
                f"{self.host!r} is reachable from other machines, and without TLS others could read the tokens; give "
                "cert and key, or 127.0.0.1, or set plain_http = true (--plain-http) if a proxy terminates TLS",
            )


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address.

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
    """A TLS certificate with its key, reloaded when its files change; optionally verifies client certificates."""

    def __init__(self, cert: str, key: str, client_ca: str | None = None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self.context = self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._last_state = self._state()

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
            # Users authenticate with tokens and present no certificate.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _state(self) -> tuple[object, ...]:
        """Return the times, inodes and sizes of the files, which show whether they have changed."""
        file_states: list[object] = []
        for path in (self._cert, self._key):
            try:
                seen = os.stat(path)
                file_states.append((seen.st_mtime_ns, seen.st_ino, seen.st_size))
            except OSError:
                file_states.append(None)
        return tuple(file_states)

    def has_changed(self) -> bool:
        """Whether the files have changed since they were last read."""
        return self._state() != self._last_state

    def reload(self) -> None:
        """Read the files again for new connections; if that fails, keep the old certificate."""
        self._last_state = self._state()  # a faulty file is reported once
        self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._loaded(self.context)
