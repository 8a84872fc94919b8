"""Submit jobs to a Slurm cluster and cancel them, as the site's account or as each user's own account.

`ByCommands` uses Slurm's commands, and `ByRest` uses slurmrestd with each account's own token; `SlurmSettings` selects
one of them. Only this module builds slurmrestd's JSON for a job, which differs between interface versions.
"""

from __future__ import annotations

import os
import re
from typing import Any, Protocol

from typing_extensions import override

from gridweave.errors import InputError, UnavailableError
from gridweave.slurm.cluster.answers import Answer, NumberAnswer
from gridweave.slurm.cluster.asking import Commands, account_named, environment_of, error_text, refusal
from gridweave.slurm.cluster.parse import read_number
from gridweave.slurm.cluster.settings import OVER_REST, SlurmSettings, whole_minutes
from gridweave.slurm.cluster.size import FLAT, JobSize, features, rest_fields, sbatch_options
from gridweave.slurm.cluster.slurmrestd import Slurmrestd
from gridweave.slurm.system import AllocationRequest, BatchUser


class Submitter(Protocol):
    """Submits and cancels jobs as a given account."""

    async def check(self, user: BatchUser) -> None:
        """Raise InputError with a one-line message if jobs can never be submitted as this user."""

    async def submit(self, request: AllocationRequest, size: JobSize) -> str:
        """Submit a job of this size; return its job number."""

    async def cancel(self, runs_as: str, numbers: tuple[str, ...]) -> None:
        """Cancel jobs as the account that owns them."""


class ByCommands(Submitter):
    """Runs ``sbatch`` and ``scancel`` as the site, as another account by ``sudo``, or as root with ``--uid``."""

    def __init__(self, settings: SlurmSettings, commands: Commands) -> None:
        self._settings, self._commands = settings, commands

    @override
    async def check(self, user: BatchUser) -> None:
        """Raise InputError if Slurm would reject this user's jobs; ``sbatch --test-only`` submits no job."""
        settings = self._settings
        whose = f"account {user.account}: " if user.account else ""
        if settings.submit == "uid" and os.geteuid() != 0:
            raise InputError(
                "submit: is 'uid', but only root may use sbatch --uid; run the site as root, or set submit = 'sudo'"
            )
        if settings.submit == "sudo" and self._commands.find_other("sudo") is None:
            raise InputError("submit: is 'sudo', but sudo is not on the path; install it (docs/slurm.md)")
        if user.runs_as:
            whose = f"runs_as {user.runs_as}: {whose}"
        further = (f"--{option.removeprefix('--')}" for option in settings.options)
        options = ("--test-only", "--nodes=1", "--time=1", "--chdir=/", *self._accounts(user.account), *further)
        try:
            await self._submit(options, "#!/bin/sh\ntrue\n", user.runs_as)
        except InputError as error:
            right = "; sacctmgr show associations lists the valid ones" if "account" in str(error) else ""
            raise InputError(f"{whose}{error}{right}") from None

    @override
    async def submit(self, request: AllocationRequest, size: JobSize) -> str:
        output = await self._submit(
            (
                "--parsable",
                f"--job-name={request.name}",
                "--no-requeue",
                f"--time={whole_minutes(request.length_ms)}",
                f"--chdir={request.folder}",
                f"--output={request.output}",
                *([f"--comment={request.comment}"] if request.comment else []),
                *self._accounts(request.account),
                *sbatch_options(size, (*self._settings.options, *request.options)),
            ),
            request.script,
            request.runs_as,
        )
        return read_number(output)

    @override
    async def cancel(self, runs_as: str, numbers: tuple[str, ...]) -> None:
        status, _, err = await self._as("scancel", ("--quiet", *numbers), runs_as)
        if status != 0:
            raise UnavailableError(f"scancel fails: {error_text(err)}")

    def _accounts(self, account: str) -> list[str]:
        """Return the options for the partition, the account and the QOS."""
        return [f"--{name}={value}" for name, value in self._settings.named(account).items()]

    async def _submit(self, options: tuple[str, ...], script: str, runs_as: str) -> str:
        status, out, err = await self._as("sbatch", options, runs_as, script)
        # If only some lines are from sudo, sudo has run sbatch; it warns about a host name that it cannot resolve.
        if status != 0 and err and all(line.startswith("sudo: ") for line in err.splitlines()):
            right = "add the line of docs/slurm.md to /etc/sudoers.d"
            raise InputError(f"sudo does not allow the site to run sbatch as {runs_as}: {error_text(err)}; {right}")
        if status != 0:
            raise refusal(err)
        return out

    async def _as(
        self, command: str, arguments: tuple[str, ...], runs_as: str, stdin: str = ""
    ) -> tuple[int, str, str]:
        """Run a command as an account; return its exit code, standard output and standard error."""
        program = self._commands.find(command)
        if program is None:
            raise UnavailableError(f"{command} is not on the path")
        if not runs_as:
            return await self._commands.ask((program, *arguments), stdin)
        if self._settings.submit == "sudo":
            as_account = (self._commands.find_other("sudo") or "sudo", "-n", "-u", runs_as, "--")
            return await self._commands.ask((*as_account, program, *arguments), stdin, runs_as=runs_as)
        account = account_named(runs_as)
        if command == "sbatch":
            # Without --gid a job would run with root's group.
            arguments = (f"--uid={account.pw_uid}", f"--gid={account.pw_gid}", *arguments)
        return await self._commands.ask(
            (program, *arguments), stdin, environment_of(account, self._commands.environment)
        )


_OVER = (2017, 2021)
"""Error numbers for a job that Slurm has forgotten, or that has ended."""


class ByRest(Submitter):
    """Uses slurmrestd with each account's own token, from which slurmctld knows who owns a job.

    Parameters
    ----------
    settings : SlurmSettings
    commands : Commands
    restd : Slurmrestd
    own : str
        Name of the site's Unix account.
    """

    def __init__(self, settings: SlurmSettings, commands: Commands, restd: Slurmrestd, own: str) -> None:
        self._settings, self._commands, self._restd, self._own = settings, commands, restd, own

    @override
    async def check(self, user: BatchUser) -> None:
        """Raise InputError if the user's token is missing, invalid or rejected, or slurmrestd does not answer."""
        whose = user.runs_as or self._own
        self._restd.check()
        try:
            # A ping would not be enough, because Slurm does not check the token of a ping.
            await self._restd.partition(self._settings.partition, whose)
        except UnavailableError as error:
            raise InputError(f"rest: {error}") from None

    @override
    async def submit(self, request: AllocationRequest, size: JobSize) -> str:
        """Submit a job as the request's account; return the job number.

        Raise UnavailableError if there is no valid token or no answer. For rejected jobs, see `refusal`.
        """
        whose = request.runs_as or self._own
        try:
            version = await self._restd.version(whose)
            environment = environment_of(account_named(whose), self._commands.environment)
            body = job_of(request, self._settings, version, environment, size)
            answer = await self._restd.ask("POST", "/job/submit", whose, NumberAnswer, body)
        except InputError as error:
            # The error may be temporary, because tokens are replaced from time to time.
            raise UnavailableError(str(error)) from None
        # Slurm accepts some jobs that cannot start now, and reports an error along with the number.
        if not answer.job_id:
            raise refusal(answer.error_text, answer.error_text)
        return str(answer.job_id)

    @override
    async def cancel(self, runs_as: str, numbers: tuple[str, ...]) -> None:
        """Cancel jobs as their owner; if `access` is ``commands``, cancel the site's own jobs with ``scancel``."""
        if not runs_as and self._settings.access == "commands":
            await self._commands.run("scancel", "--quiet", *numbers)
            return
        whose = runs_as or self._own
        for number in numbers:
            try:
                answer = await self._restd.ask("DELETE", f"/job/{number}", whose, Answer)
            except InputError as error:
                raise UnavailableError(str(error)) from None
            if any(problem.number not in _OVER for problem in answer.errors):
                raise UnavailableError(f"job {number} of {whose} was not cancelled: {answer.error_text}")


def job_of(
    request: AllocationRequest, settings: SlurmSettings, version: str, environment: dict[str, str], size: JobSize
) -> dict[str, Any]:
    """Return the request body for a submission, in the form of the given interface version."""
    minutes = whole_minutes(request.length_ms)
    job: dict[str, Any] = {
        "name": request.name,
        "requeue": False,
        "comment": request.comment,
        "current_working_directory": request.folder,
        "standard_output": request.output,
    }
    if version in FLAT:
        job |= {"time_limit": minutes, "environment": environment}
    else:
        limit = {"set": True, "infinite": False, "number": minutes}
        variables = [f"{name}={value}" for name, value in environment.items()]
        job |= {"time_limit": limit, "environment": variables}
    job |= rest_fields(size, version) | settings.named(request.account)
    for option in (*settings.options, *request.options):
        name, _, value = option.removeprefix("--").partition("=")
        job[OVER_REST[name]] = int(value) if name == "nice" and re.fullmatch(r"-?\d+", value) else value
    if size.labels:
        job["constraints"] = features(job.get("constraints", ""), size.labels)
    return {"script": request.script, "job": job}
