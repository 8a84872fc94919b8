"""A Slurm cluster by its commands: the plug for Slurm, called by whoever drives a site."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
from asyncio import StreamReader
from asyncio.subprocess import Process
from collections.abc import Iterable, Mapping
from pathlib import Path

from gridweave.errors import InputError, UnavailableError
from gridweave.site.batch.slurm.parse import (
    OLDEST,
    SINFO_FORMAT,
    SQUEUE_FORMAT,
    read_sinfo,
    read_squeue,
    read_version,
    view_of,
)
from gridweave.site.batch.slurm.settings import SlurmSettings
from gridweave.site.batch.system import AllocationRequest, BatchView, check_request

COMMAND_S = 30.0
"""So long a command of Slurm may take; afterwards it is not known what it has done."""

_NEEDED = ("sbatch", "squeue", "sinfo", "scancel")

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
"""What a command says that did not reach the controller, or has heard no answer, in small letters."""

_LIMIT = ("violates accounting/qos policy", "job submit limit", "queue is full", "maxsubmit")
"""What ``sbatch`` says of a limit that others' ends may lift."""

_OTHERS = re.compile(r"SLURM_(?!CONF$)|SBATCH_|SQUEUE_|SINFO_|SCANCEL_|SALLOC_|SRUN_")


class Slurm:
    """A Slurm cluster, asked by its commands.

    Parameters
    ----------
    settings : SlurmSettings
    folder : pathlib.Path
        Where allocations work and what their scripts print is kept; every node of the cluster sees it.
    environment : mapping from str to str, optional
        Of the commands, and so of what they submit; None: that of this process. What Slurm has put into it, as this may
        itself run in a job, is left out.
    """

    def __init__(self, settings: SlurmSettings, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.settings, self._folder = settings, folder
        given = os.environ if environment is None else environment
        self._environment = {name: value for name, value in given.items() if not _OTHERS.match(name)}
        self._environment |= {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}
        if settings.conf:
            self._environment["SLURM_CONF"] = settings.conf
        self._path = settings.bin or self._environment.get("PATH", os.defpath)

    async def check(self, accounts: Iterable[str] = ()) -> None:
        """Raise InputError if this cluster can never give nodes as it is set up, or not to one of these accounts.

        UnavailableError if it does not answer, so that nothing is known.
        """
        for command in _NEEDED:
            if shutil.which(command, path=self._path) is None:
                right = "install Slurm's commands here, or name their folder (bin)"
                raise InputError(f"there is no {command} on the path; {right}")
        version = read_version(await self._run("sinfo", "--version"))
        if version < OLDEST:
            found, oldest = (".".join(f"{part:02}" for part in each) for each in (version, OLDEST))
            raise InputError(f"this Slurm is {found}, which is too old; {oldest} is the oldest that is known to work")
        await self.view("")
        for account in sorted({"", *accounts}):
            options = ("--test-only", "--nodes=1", "--time=1", *self._common(account))
            try:
                await self._submit(options, "#!/bin/sh\ntrue\n")
            except InputError as error:
                right = "; sacctmgr show associations tells which may submit" if "account" in str(error) else ""
                raise InputError(f"{f'account {account}: ' if account else ''}{error}{right}") from None

    async def view(self, prefix: str) -> BatchView:
        """Return what is seen now: one ``squeue`` and one ``sinfo`` for all."""
        partition = f"--partition={self.settings.partition}"
        queue = await self._run("squeue", "--noheader", "--all", "--states=all", partition, f"--format={SQUEUE_FORMAT}")
        nodes = await self._run("sinfo", "--noheader", partition, f"--format={SINFO_FORMAT}")
        return view_of(read_sinfo(nodes, self.settings.partition), read_squeue(queue), prefix)

    async def submit(self, request: AllocationRequest) -> str:
        """Ask for whole nodes; return the number of the job in Slurm.

        Slurm never runs it a second time by itself: who asked for it decides that.
        """
        check_request(request)
        said = await self._submit(
            (
                "--parsable",
                f"--job-name={request.name}",
                f"--nodes={request.nodes}",
                "--ntasks-per-node=1",
                "--exclusive",
                "--no-requeue",
                f"--time={-(-request.length_ms // 60_000)}",
                f"--chdir={self._folder}",
                f"--output={self._folder}/{request.name}.log",
                *([f"--comment={request.comment}"] if request.comment else []),
                *self._common(request.account),
                *(f"--{option.removeprefix('--')}" for option in request.options),
            ),
            request.script,
        )
        return said.strip().partition(";")[0]

    def script(self, command: tuple[str, ...]) -> str:
        """Return the script that runs a command once on each node of an allocation, and ends when all have ended."""
        on_node = 'GRIDWEAVE_NODE=$SLURM_PROCID GRIDWEAVE_ALLOCATION=$SLURM_JOB_ID exec "$@"'
        return f"#!/bin/sh\nexec srun --kill-on-bad-exit=0 sh -c '{on_node}' node {shlex.join(command)}\n"

    async def cancel(self, numbers: tuple[str, ...]) -> None:
        """Cancel jobs of Slurm by their numbers; those that are over are passed over."""
        if numbers:
            await self._run("scancel", "--quiet", *numbers)

    def _common(self, account: str = "") -> list[str]:
        settings = self.settings
        named = {"partition": settings.partition, "account": account or settings.account, "qos": settings.qos}
        own = [f"--{name}={value}" for name, value in named.items() if value]
        return [*own, *(f"--{option.removeprefix('--')}" for option in settings.options)]

    async def _submit(self, options: tuple[str, ...], script: str) -> str:
        status, out, err = await self._ask("sbatch", options, script)
        if status == 0:
            return out
        said = _said(err)
        if any(word in err.lower() for word in (*_AWAY, *_LIMIT)):
            raise UnavailableError(f"Slurm takes no job now: {said}")
        raise InputError(f"Slurm refuses the job: {said}")

    async def _run(self, command: str, *arguments: str) -> str:
        status, out, err = await self._ask(command, arguments)
        if status != 0:
            raise UnavailableError(f"{command} fails: {_said(err)}")
        return out

    async def _ask(self, command: str, arguments: tuple[str, ...], given: str = "") -> tuple[int, str, str]:
        """Run a command; return its exit code and what it has printed."""
        program = shutil.which(command, path=self._path)
        if program is None:
            raise UnavailableError(f"there is no {command} on the path")
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            cwd="/",
        )
        try:
            async with asyncio.timeout(COMMAND_S):
                out, err = await _read(process, given.encode())
        except TimeoutError:
            raise UnavailableError(f"{command} has not answered for {COMMAND_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


async def _read(process: Process, given: bytes) -> tuple[bytes, bytes]:
    """Return what a command prints; one that says that it will ask Slurm again and again is ended at once."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None

    async def errors(stream: StreamReader) -> bytes:
        lines = []
        async for line in stream:
            lines.append(line)
            if b"retrying" in line and process.returncode is None:
                process.kill()
        return b"".join(lines)

    # One that has ended before it has read all says why.
    with contextlib.suppress(ConnectionError):
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()
    out, err = await asyncio.gather(process.stdout.read(), errors(process.stderr))
    await process.wait()
    return out, err


def _said(err: str) -> str:
    """Return what a command of Slurm has said, in one line."""
    lines = [re.sub(r"^(\w+: (error: )?|allocation failure: )", "", line).strip() for line in err.splitlines()]
    lines = [line for line in dict.fromkeys(lines) if line and not line.startswith("Try ")]
    return "; ".join(lines) or "it says nothing"
