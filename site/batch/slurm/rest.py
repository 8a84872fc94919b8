"""Jobs of each user by the user's own token: submitted and cancelled over slurmrestd, which takes JSON.

The shape of a job differs between the versions of the interface; it is made here alone.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.site.batch.slurm.asking import (
    COMMAND_S,
    Commands,
    account_named,
    environment_of,
    refusal,
    what_was_said,
)
from gridweave.site.batch.slurm.settings import OVER_REST, SlurmSettings
from gridweave.site.batch.system import AllocationRequest, BatchUser

if TYPE_CHECKING:
    import aiohttp

VERSIONS = ("v0.0.38", "v0.0.37", "v0.0.42", "v0.0.41", "v0.0.40", "v0.0.39")
"""Versions of the interface that can be asked; the first of them that slurmrestd offers is."""

_FLAT = ("v0.0.37", "v0.0.38")
"""Versions whose jobs have the options of ``sbatch`` as plain values; those of the others are as Slurm keeps them."""

_OVER = (2017, 2021)
"""The numbers of errors of a job that is not known any more, or has ended."""

_JWT = re.compile(r"[\w-]+\.([\w-]+)\.[\w-]+")


class _Problem(msgspec.Struct):
    error: str = ""
    description: str = ""
    error_number: int = 0
    error_code: int = 0


class _Answer(msgspec.Struct):
    """What is read of an answer of slurmrestd, whichever was asked for."""

    job_id: int = 0
    errors: list[_Problem] = []
    paths: dict[str, Any] = {}


class _Claims(msgspec.Struct):
    exp: float | None = None
    sun: str | None = None


class ByRest:
    """Each user's own token at slurmrestd, which hands it to slurmctld: that knows by it whose the job is."""

    def __init__(self, settings: SlurmSettings, commands: Commands) -> None:
        self._settings, self._commands = settings, commands
        self._version = ""

    async def check(self, user: BatchUser) -> None:
        """Raise InputError if there is no good token for a user, or slurmrestd does not answer or take it."""
        token = await self._token(user.runs_as)
        try:
            await self._find_version(user.runs_as, token)
            said = await self._call("GET", f"/slurm/{self._version}/ping", user.runs_as, token)
        except UnavailableError as error:
            raise InputError(f"rest: {error}") from None
        if said.errors:
            # Slurm's commands have reached slurmctld just before: so it is the token that is wrong.
            right = "make another by scontrol token; AuthAltTypes in slurm.conf must have auth/jwt"
            raise InputError(f"slurmrestd does not take the token of {user.runs_as}: {_said(said)}; {right}")

    async def submit(self, request: AllocationRequest) -> str:
        """Submit a job as its account; return its number."""
        token = await self._token(request.runs_as)
        await self._find_version(request.runs_as, token)
        environment = environment_of(account_named(request.runs_as), self._commands.environment)
        body = job_of(request, self._settings, self._version, environment)
        said = await self._call("POST", f"/slurm/{self._version}/job/submit", request.runs_as, token, body)
        if said.errors or not said.job_id:
            raise refusal(_said(said), _said(said))
        return str(said.job_id)

    async def cancel(self, runs_as: str, numbers: tuple[str, ...]) -> None:
        """Cancel jobs of one account; those of the site's own, as it had before, by ``scancel``."""
        if not runs_as:
            await self._commands.run("scancel", "--quiet", *numbers)
            return
        try:
            token = await self._token(runs_as)
        except InputError as error:
            raise UnavailableError(str(error)) from None
        await self._find_version(runs_as, token)
        for number in numbers:
            said = await self._call("DELETE", f"/slurm/{self._version}/job/{number}", runs_as, token)
            left = [each for each in said.errors if (each.error_number or each.error_code) not in _OVER]
            if left:
                raise UnavailableError(f"job {number} of {runs_as} is not cancelled: {_said(said)}")

    async def _token(self, runs_as: str) -> str:
        """Return the token of an account, as good as can be seen here."""
        token = await self._printed(runs_as) if self._settings.token_command else self._kept(runs_as)
        token = token.strip().removeprefix("SLURM_JWT=")
        problem = token_problem(token, runs_as, time.time())
        if problem is not None:
            raise InputError(problem)
        return token

    def _kept(self, runs_as: str) -> str:
        path = Path(self._settings.tokens) / f"{runs_as}.jwt"
        try:
            status = path.stat()
            if status.st_mode & 0o077:
                raise InputError(f"{path} can be read by others than the site; chmod 600")
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            right = f"scontrol token username={runs_as} prints one"
            raise InputError(f"there is no token for {runs_as}: {path}: {error.strerror}; {right}") from None

    async def _printed(self, runs_as: str) -> str:
        command = [each.replace("{account}", runs_as) for each in self._settings.token_command]
        try:
            status, out, err = await self._commands.ask(command)
        except OSError as error:
            raise InputError(f"token_command: {command[0]}: {os.strerror(error.errno or 0)}") from None
        if status != 0:
            raise InputError(f"token_command gives no token for {runs_as}: {what_was_said(err)}")
        return out

    async def _find_version(self, runs_as: str, token: str) -> None:
        """Find out once which version of the interface is asked."""
        if self._version:
            return
        said = await self._call("GET", "/openapi/v3", runs_as, token)
        offered = {path.split("/")[2] for path in said.paths if path.startswith("/slurm/")}
        found = next((version for version in VERSIONS if version in offered), None)
        if found is None:
            known = f"one of {', '.join(sorted(VERSIONS))} is needed; start it with -s openapi/{VERSIONS[0]} or a newer"
            raise UnavailableError(f"slurmrestd offers {', '.join(sorted(offered)) or 'no version'}; {known}")
        self._version = found

    async def _call(self, method: str, path: str, runs_as: str, token: str, body: Any = None) -> _Answer:
        """Ask slurmrestd one thing; UnavailableError if it does not answer, so that nothing is known."""
        import aiohttp

        where = self._settings.rest
        headers = {"X-SLURM-USER-NAME": runs_as, "X-SLURM-USER-TOKEN": token, "Content-Type": "application/json"}
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session(where) as session:
                base = "http://localhost" if where.startswith("unix:") else where
                async with session.request(
                    method, base + path, data=data, headers=headers, allow_redirects=False
                ) as response:
                    text = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnavailableError(f"slurmrestd at {where} does not answer: {_why(error)}") from None
        if response.status == 401:
            raise UnavailableError(f"slurmrestd at {where} takes no tokens; start it with -a rest_auth/jwt")
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(text, type=_Answer)
        said = text.decode(errors="replace")
        raise UnavailableError(f"slurmrestd at {where} answers with {response.status}: {said!r:.100}")

    @staticmethod
    def _session(where: str) -> aiohttp.ClientSession:
        import aiohttp

        connector = aiohttp.UnixConnector(where.removeprefix("unix:")) if where.startswith("unix:") else None
        timeout = aiohttp.ClientTimeout(total=COMMAND_S)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())


def token_problem(token: str, runs_as: str, now_s: float) -> str | None:
    """Return what is wrong with the token of an account, as far as it says itself; None if nothing is.

    Examples
    --------
    >>> token_problem("x", "anna", 0.0)
    'the token of anna is none: it must be a JWT, as scontrol token prints it'
    """
    found = _JWT.fullmatch(token)
    try:
        part = found[1] if found else ""
        claims = msgspec.json.decode(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)), type=_Claims)
    except (ValueError, msgspec.MsgspecError):
        return f"the token of {runs_as} is none: it must be a JWT, as scontrol token prints it"
    if claims.sun not in (None, runs_as):
        return (
            f"the token of {runs_as} is one of {claims.sun!r}; scontrol token username={runs_as} prints the right one"
        )
    if claims.exp is not None and claims.exp <= now_s:
        ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(claims.exp))
        right = f"scontrol token username={runs_as} lifespan=SECONDS prints another"
        return f"the token of {runs_as} ended at {ended}; {right}"
    return None


def job_of(
    request: AllocationRequest, settings: SlurmSettings, version: str, environment: dict[str, str]
) -> dict[str, Any]:
    """Return the body by which a job is submitted, in the shape of a version of the interface."""
    minutes = -(-request.length_ms // 60_000)
    job: dict[str, Any] = {
        "name": request.name,
        "partition": settings.partition,
        "tasks_per_node": 1,
        "requeue": False,
        "comment": request.comment,
        "current_working_directory": request.folder,
        "standard_output": f"{request.folder}/{request.name}.log",
    }
    if version in _FLAT:
        job |= {"nodes": request.nodes, "exclusive": "exclusive", "time_limit": minutes, "environment": environment}
    else:
        limit = {"set": True, "infinite": False, "number": minutes}
        variables = [f"{name}={value}" for name, value in environment.items()]
        job |= {"minimum_nodes": request.nodes, "maximum_nodes": request.nodes, "shared": ["none"]}
        job |= {"time_limit": limit, "environment": variables}
    named = {"account": request.account or settings.account, "qos": settings.qos}
    job |= {name: value for name, value in named.items() if value}
    for option in (*settings.options, *request.options):
        name, _, value = option.removeprefix("--").partition("=")
        job[OVER_REST[name]] = int(value) if name == "nice" and re.fullmatch(r"-?\d+", value) else value
    return {"script": request.script, "job": job}


def _said(answer: _Answer) -> str:
    """Return what slurmrestd says is wrong, in one line."""
    words = [each.error or each.description for each in answer.errors]
    return "; ".join(dict.fromkeys(" ".join(each.split()) for each in words if each)) or "it says nothing"


def _why(error: BaseException) -> str:
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or f"nothing for {COMMAND_S:.0f} s"
