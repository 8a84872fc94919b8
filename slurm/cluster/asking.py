"""Run Slurm's commands as processes, and interpret their error messages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import re
import shutil
import signal
from asyncio import StreamReader
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence

from gridweave.errors import InputError, UnavailableError
from gridweave.site.times import span_text
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.system import LimitError, RequestRejectedError

COMMAND_S = 30.0
"""Time limit for a Slurm command [s]. A command that exceeds the limit may or may not have taken effect."""

_AWAY = (
    "unable to contact slurm controller",
    "socket timed out",
    "zero bytes",
    "connection refused",
    "connection reset",
    "communication",
    "temporarily",
    "protocol authentication error",
    "slurm backup controller",
    "munge",
)
"""Parts of the error messages, in lower case, of commands that did not reach slurmctld or got no answer."""

_PASSING = (
    "required partition not available",
    "i/o error writing script",
    "unable to create job record",
    "invalid user id",
)
"""Parts of temporary errors' messages, in lower case: a drained partition, a full disk, an LDAP server that is down."""

_FULL = ("queue is full", "queue full")
"""Parts of the error message of ``sbatch`` 26.05 for a full queue; other versions report a failure in `_AWAY`."""

_MANY = "submitjob"
"""Part of the names of limits on the number of jobs, e.g. QOSMaxSubmitJobPerUserLimit; these errors are temporary."""

_POLICY = "violates accounting/qos policy"

_LIMIT = re.compile(r"\b(QOS|Assoc|Max)\w+")
"""Matches the name of a limit; all limits except those on the number of jobs concern the job's own size or time."""

_OTHERS = re.compile(r"SLURM_(?!CONF$)|SBATCH_|SQUEUE_|SINFO_|SCANCEL_|SALLOC_|SRUN_")

_AS_READ = {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}

_PATH_OF_JOBS = "/usr/local/bin:/usr/bin:/bin"


class Commands:
    """Runs the commands of a Slurm cluster.

    Parameters
    ----------
    settings : SlurmSettings
    environment : mapping from str to str, optional
        Environment of the commands and of the jobs that they submit; by default this process's environment. Variables
        set by Slurm are removed, since the site may itself be running in a Slurm job.
    """

    def __init__(self, settings: SlurmSettings, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        self.environment = {name: value for name, value in variables.items() if not _OTHERS.match(name)}
        if settings.conf:
            self.environment["SLURM_CONF"] = settings.conf
        self._path = settings.bin or self.environment.get("PATH", os.defpath)
        # Commands that may still be running after a timeout, by the account that they run as.
        self._left: dict[str, Process] = {}

    def find(self, command: str) -> str | None:
        """Return the path of a Slurm command; None if it is not installed."""
        return shutil.which(command, path=self._path)

    def find_other(self, command: str) -> str | None:
        """Return the path of a command that is not part of Slurm; None if it is not on the path."""
        return shutil.which(command, path=self.environment.get("PATH", os.defpath))

    async def run(self, command: str, *arguments: str) -> str:
        """Run a Slurm command; return its output, with times in Unix seconds, or raise UnavailableError."""
        program = self.find(command)
        if program is None:
            raise UnavailableError(f"{command} is not on the path")
        # Not part of `self.environment`, which submitted jobs inherit from `sbatch`.
        status, out, err = await self.ask((program, *arguments), environment=self.environment | _AS_READ)
        if status != 0:
            raise UnavailableError(f"{command} fails: {error_text(err)}")
        return out

    async def ask(
        self, command: Sequence[str], stdin: str = "", environment: Mapping[str, str] | None = None, runs_as: str = ""
    ) -> tuple[int, str, str]:
        """Run a command; return its exit code, standard output and standard error.

        A command that exceeds `COMMAND_S` is stopped. If it runs as another account, this process can signal only
        ``sudo``, which may not pass the signal on. Until that command ends, no other command is run as that account.
        """
        left, name = self._left.get(runs_as), os.path.basename(command[0])
        if left is not None and left.returncode is None:
            raise UnavailableError(f"the previous command of {runs_as}, run by {name}, has not ended yet")
        process = await self._begin(command, environment)
        out = err = b""
        try:
            async with asyncio.timeout(COMMAND_S):
                out, err = await _read(process, stdin.encode())
        except TimeoutError:
            raise UnavailableError(f"{name} has not answered for {span_text(COMMAND_S * 1000)}") from None
        finally:
            if process.returncode is None:
                await self._give_up(process, runs_as)
        status = -signal.SIGKILL if process.returncode is None else process.returncode
        return status, out.decode(errors="replace"), err.decode(errors="replace")

    async def _give_up(self, process: Process, runs_as: str) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # SIGKILL would end sudo but leave its command running.
            process.send_signal(signal.SIGTERM if runs_as else signal.SIGKILL)
        if runs_as:
            self._left[runs_as] = process
        else:
            await process.wait()

    async def _begin(self, command: Sequence[str], environment: Mapping[str, str] | None) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self.environment if environment is None else environment,
                cwd="/",
            )
        except OSError as error:
            raise UnavailableError(f"{command[0]} cannot be run: {error.strerror}") from error


def refusal(message: str, words: str | None = None) -> InputError | UnavailableError:
    """Return the error for a job that Slurm rejected: InputError if permanent, UnavailableError if possibly temporary.

    slurmrestd does not name the accounting or QOS limit that a job violates, so such a violation may be temporary.

    Examples
    --------
    >>> refusal("QOSMaxNodePerJobLimit; Job violates accounting/QOS policy")
    InputError('Slurm rejects the job: QOSMaxNodePerJobLimit; Job violates accounting/QOS policy')
    """
    why = error_text(message) if words is None else words
    small = message.lower()
    if any(word in small for word in (*_AWAY, *_PASSING, *_FULL)):
        return UnavailableError(f"Slurm accepts no jobs now: {why}")
    if _MANY in small:
        return LimitError(f"Slurm accepts no jobs now: {why}")
    if _POLICY in small and not _LIMIT.search(message):
        return RequestRejectedError(f"Slurm rejects the job: {why}")
    return InputError(f"Slurm rejects the job: {why}")


def error_text(err: str) -> str:
    """Return a Slurm command's error messages, joined in one line."""
    lines = [re.sub(r"^(\w+: (error: )?|allocation failure: )", "", line).strip() for line in err.splitlines()]
    lines = [line for line in dict.fromkeys(lines) if line and not line.startswith("Try ")]
    return "; ".join(lines) or "no error message"


async def _read(process: Process, data: bytes) -> tuple[bytes, bytes]:
    """Return a command's standard output and error, or only the errors once they say that the command is retrying."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    # A command that ends before reading all its input prints the reason.
    with contextlib.suppress(ConnectionError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()
    reading = asyncio.ensure_future(process.stdout.read())
    try:
        err = await _errors(process.stderr)
        if b"retrying" in err:
            return b"", err
        out = await reading
    finally:
        reading.cancel()
    await process.wait()
    return out, err


async def _errors(stream: StreamReader) -> bytes:
    """Return a command's error messages, up to its end or up to a message that the command is retrying."""
    lines = []
    async for line in stream:
        lines.append(line)
        if b"retrying" in line:
            break
    return b"".join(lines)


def account_named(runs_as: str) -> pwd.struct_passwd:
    """Return the Unix account with this name on this machine; raise InputError if it does not exist."""
    try:
        return pwd.getpwnam(runs_as)
    except KeyError:
        raise InputError(f"this machine has no Unix account {runs_as!r}; create it, or change runs_as") from None


def environment_of(account: pwd.struct_passwd, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for an account's jobs, with the locale, time zone and ``slurm.conf`` from `own`."""
    kept = {name: own[name] for name in ("LANG", "LC_ALL", "TZ", "SLURM_CONF") if name in own}
    named = {"USER": account.pw_name, "LOGNAME": account.pw_name, "HOME": account.pw_dir, "SHELL": account.pw_shell}
    return {"PATH": _PATH_OF_JOBS, **kept, **named}
