"""A client for slurmrestd, which chooses the interface version and looks up each account's token."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.site.times import span_text
from gridweave.slurm.cluster.answers import NO_PARTITION, REFUSED, UNCLEAR, Answer, InterfaceAnswer, PartitionsAnswer
from gridweave.slurm.cluster.asking import COMMAND_S, Commands, error_text
from gridweave.slurm.cluster.settings import SlurmSettings

if TYPE_CHECKING:
    import aiohttp

VERSIONS = (
    "v0.0.38", "v0.0.37", "v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41", "v0.0.40", "v0.0.39",
)  # fmt: skip
"""The supported interface versions, in order of preference; the first version that slurmrestd offers is used."""

PRINTED_S = 300.0
"""How long a token from ``token_command`` is reused if it has no expiry time [s]."""

_UNKNOWN_ISSUER = (18, 19, 20, 21)
"""OpenSSL's error numbers for certificates from an unknown authority."""

_JWT = re.compile(r"[\w-]+\.([\w-]+)\.[\w-]+")

A = TypeVar("A", bound=Answer)


class _Claims(msgspec.Struct):
    exp: float | None = None
    sun: str | None = None


class Slurmrestd:
    """A client for slurmrestd, which makes each request as one of the cluster's accounts, with that account's token.

    Parameters
    ----------
    settings : SlurmSettings
        Must have ``rest``, and ``tokens`` or ``token_command``.
    commands : Commands
        Runs ``token_command``.
    """

    def __init__(self, settings: SlurmSettings, commands: Commands) -> None:
        self._settings, self._commands = settings, commands
        self._version = ""
        self._printed: dict[str, tuple[str, float]] = {}
        self._tls: ssl.SSLContext | None = None

    async def ask(self, method: str, what: str, runs_as: str, kind: type[A], body: Any = None) -> A:
        """Send a request; return the answer, which may report errors.

        Raise UnavailableError if there is no answer, InputError if the account has no valid token.
        """
        version = await self.version(runs_as)
        answer = await self._call(method, f"/slurm/{version}{what}", runs_as, kind, body)
        if answer.errors:
            # The cause may be a rejected token, so get a new token for the next request.
            self._printed.pop(runs_as, None)
        return answer

    async def get(self, what: str, runs_as: str, kind: type[A], passed_over: tuple[int, ...] = ()) -> A:
        """Get an answer; raise UnavailableError if the answer reports errors with numbers not in `passed_over`."""
        answer = await self.ask("GET", what, runs_as, kind)
        numbers = {error.number for error in answer.errors} - set(passed_over)
        if not numbers:
            return answer
        where = f"slurmrestd at {self._settings.rest}"
        if not numbers & {REFUSED, UNCLEAR}:
            raise UnavailableError(f"{where} cannot answer {what}: {answer.error_text}")
        refused = f"rejects the token of {runs_as}" + ("" if REFUSED in numbers else ", or slurmctld is down")
        right = "create a token with scontrol token; AuthAltTypes in slurm.conf must include auth/jwt"
        raise UnavailableError(f"{where} {refused}: {answer.error_text}; {right}")

    async def partition(self, name: str, runs_as: str) -> PartitionsAnswer:
        """Return the partitions with this name, if any; raise UnavailableError if slurmctld rejects the token."""
        return await self.get(f"/partition/{name}", runs_as, PartitionsAnswer, NO_PARTITION)

    async def version(self, runs_as: str) -> str:
        """Return the interface version in use, which is chosen once, and again if slurmrestd no longer offers it."""
        if not self._version:
            answer = await self._call("GET", "/openapi/v3", runs_as, InterfaceAnswer)
            offered = {path.split("/")[2] for path in answer.paths if path.startswith("/slurm/")}
            chosen = next((version for version in VERSIONS if version in offered), None)
            if chosen is None:
                names = ", ".join(sorted(offered)) or "no version"
                right = f"expected one of {', '.join(sorted(VERSIONS))}; start it with one of them (-s, -d)"
                raise UnavailableError(
                    f"slurmrestd at {self._settings.rest} offers interface versions {names}; {right}"
                )
            self._version = chosen
        return self._version

    def check(self) -> None:
        """Raise InputError if the file ``ca`` cannot be read, or the program of ``token_command`` is not found."""
        command = self._settings.token_command
        if command and self._commands.find_other(command[0]) is None:
            raise InputError(f"token_command: {command[0]} is missing or not executable; expected its full path")
        if self._settings.rest.startswith("https:"):
            self._context()

    async def _call(self, method: str, path: str, runs_as: str, kind: type[A], body: Any = None) -> A:
        """Send a request; raise UnavailableError if there is no answer, or if the answer is not the expected JSON."""
        import aiohttp

        token = await self._token(runs_as)
        where = self._settings.rest
        headers = {"X-SLURM-USER-NAME": runs_as, "X-SLURM-USER-TOKEN": token, "Content-Type": "application/json"}
        data = None if body is None else msgspec.json.encode(body)
        base = "http://localhost" if where.startswith("unix:") else where.rstrip("/")
        try:
            async with (
                self._session(where) as session,
                session.request(method, base + path, data=data, headers=headers, allow_redirects=False) as response,
            ):
                text = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnavailableError(f"slurmrestd at {where} does not answer: {_why(error)}") from None
        if response.status == 401:
            raise UnavailableError(f"slurmrestd at {where} accepts no tokens; start it with -a rest_auth/jwt")
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(text, type=kind)
        if response.status == 404 and self._version:
            gone, self._version = self._version, ""
            raise UnavailableError(f"slurmrestd at {where} no longer offers interface version {gone}")
        answer = text.decode(errors="replace")
        raise UnavailableError(f"slurmrestd at {where} answers with status {response.status}: {answer!r:.100}")

    def _session(self, where: str) -> aiohttp.ClientSession:
        import aiohttp

        connector: aiohttp.BaseConnector | None = None
        if where.startswith("unix:"):
            connector = aiohttp.UnixConnector(where.removeprefix("unix:"))
        elif where.startswith("https:"):
            connector = aiohttp.TCPConnector(ssl=self._context())
        timeout = aiohttp.ClientTimeout(total=COMMAND_S)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())

    def _context(self) -> ssl.SSLContext:
        """Return TLS settings that trust the certificate authority in ``ca``, by default the system's authorities."""
        if self._tls is None:
            ca = self._settings.ca
            try:
                self._tls = ssl.create_default_context(cafile=ca or None)
            except OSError as error:
                what = "contains no PEM certificate" if isinstance(error, ssl.SSLError) else error.strerror
                raise InputError(f"ca: {ca}: {what}") from None
        return self._tls

    async def _token(self, runs_as: str) -> str:
        """Return an account's token; raise InputError if the token is missing or visibly invalid."""
        now_s = time.time()
        token, until_s = self._printed.get(runs_as, ("", 0.0))
        if now_s < until_s:
            return token
        token = await self._print(runs_as) if self._settings.token_command else self._read(runs_as)
        token = token.strip().removeprefix("SLURM_JWT=")
        problem = token_problem(token, runs_as, now_s)
        if problem is not None:
            raise InputError(problem)
        if self._settings.token_command:
            ends_s = _claims(token).exp
            self._printed[runs_as] = token, now_s + (PRINTED_S if ends_s is None else (ends_s - now_s) / 2)
        return token

    def _read(self, runs_as: str) -> str:
        path = Path(self._settings.tokens) / f"{runs_as}.jwt"
        try:
            status = path.stat()
            if status.st_mode & 0o077:
                raise InputError(f"{path} can be read by other users; chmod 600")
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            right = f"scontrol token username={runs_as} prints one"
            raise InputError(f"the token of {runs_as} cannot be read: {path}: {error.strerror}; {right}") from None

    async def _print(self, runs_as: str) -> str:
        command = [argument.replace("{account}", runs_as) for argument in self._settings.token_command]
        try:
            status, out, err = await self._commands.ask(command)
        except UnavailableError as error:
            raise InputError(f"token_command: {error}") from None
        if status != 0:
            raise InputError(f"token_command printed no token for {runs_as}: {error_text(err)}")
        return out


def token_problem(token: str, runs_as: str, now_s: float) -> str | None:
    """Return what is wrong with an account's token, judging by the token's claims; None if the token seems valid.

    Examples
    --------
    >>> token_problem("x", "anna", 0.0)
    'the token of anna is not a JWT; scontrol token prints one'
    """
    try:
        claims = _claims(token)
    except (ValueError, msgspec.MsgspecError):
        return f"the token of {runs_as} is not a JWT; scontrol token prints one"
    if claims.sun not in (None, runs_as):
        return (
            f"the token of {runs_as} belongs to {claims.sun!r}; scontrol token username={runs_as} prints the right one"
        )
    if claims.exp is not None and claims.exp <= now_s:
        ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(claims.exp))
        right = f"scontrol token username={runs_as} lifespan=SECONDS prints another"
        return f"the token of {runs_as} expired at {ended}; {right}"
    return None


def _claims(token: str) -> _Claims:
    """Return a token's claims; raise ValueError or MsgspecError if it is not a JWT."""
    match = _JWT.fullmatch(token)
    part = match[1] if match else ""
    return msgspec.json.decode(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)), type=_Claims)


def _why(error: BaseException) -> str:
    """Return the one-line reason why slurmrestd does not answer."""
    cause: BaseException = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        right = "; name the file of the certificate authority (ca)"
        unknown = cause.verify_code in _UNKNOWN_ISSUER
        return f"its certificate is not trusted: {cause.verify_message.rstrip('.')}{right if unknown else ''}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS fails ({cause.reason or cause})"
    number = getattr(cause, "errno", None) or 0
    return os.strerror(number) if number > 0 else getattr(cause, "strerror", None) or str(error) or _NOTHING


_NOTHING = f"nothing for {span_text(COMMAND_S * 1000)}"
