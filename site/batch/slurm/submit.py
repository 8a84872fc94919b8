"""Who submits jobs to a Slurm cluster, and cancels them: the site for all, or each user's own account.

By Slurm's commands, or over slurmrestd by each account's own token. A variant is an option of `SlurmSettings`; each of
them is asked the same three things. The shape of a job at slurmrestd, which takes JSON, differs between the versions of
the interface; it is made here alone.
"""

from __future__ import annotations

import os
import re
from typing import Any, Protocol

from gridweave.errors import InputError, UnavailableError
from gridweave.site.batch.slurm.answers import Answer, NumberAnswer
from gridweave.site.batch.slurm.asking import Commands, account_named, environment_of, refusal, what_was_said
from gridweave.site.batch.slurm.parse import read_number
from gridweave.site.batch.slurm.settings import OVER_REST, SlurmSettings, whole_minutes
from gridweave.site.batch.slurm.slurmrestd import Slurmrestd
from gridweave.site.batch.system import AllocationRequest, BatchUser


class Submitter(Protocol):
    """Submits jobs as somebody, and cancels what was submitted as the same."""

    async def check(self, user: BatchUser) -> None:
        """Raise InputError, in one line, if nothing can ever be submitted as this user."""

    async def submit(self, request: AllocationRequest) -> str:
        """Submit a job; return its number."""

    async def cancel(self, runs_as: str, numbers: tuple[str, ...]) -> None:
        """Cancel jobs of one account."""


class ByCommands:
    """``sbatch`` and ``scancel``: of the site itself, by ``sudo`` of an account, or of root with ``--uid``."""

    def __init__(self, settings: SlurmSettings, commands: Commands) -> None:
        self._settings, self._commands = settings, commands

    async def check(self, user: BatchUser) -> None:
        """See `Submitter`: whether Slurm would take a job, which it is not given."""
        settings = self._settings
        whose = f"account {user.account}: " if user.account else ""
        if settings.submit == "uid" and os.geteuid() != 0:
            raise InputError(
                "submit: is 'uid', and sbatch takes --uid from root alone; run the site as root, or 'sudo'"
            )
        if settings.submit == "sudo" and self._commands.find_other("sudo") is None:
            raise InputError("submit: is 'sudo', and there is no sudo on the path; install it (docs/slurm.md)")
        if user.runs_as:
            whose = f"runs_as {user.runs_as}: {whose}"
        options = ("--test-only", "--nodes=1", "--time=1", "--chdir=/", *self._common(user.account))
        try:
            await self._submit(options, "#!/bin/sh\ntrue\n", user.runs_as)
        except InputError as error:
            right = "; sacctmgr show associations tells which may submit" if "account" in str(error) else ""
            raise InputError(f"{whose}{error}{right}") from None

    async def submit(self, request: AllocationRequest) -> str:
        """See `Submitter`."""
        said = await self._submit(
            (
                "--parsable",
                f"--job-name={request.name}",
                f"--nodes={request.nodes}",
                "--exclusive",
                "--no-requeue",
                f"--time={whole_minutes(request.length_ms)}",
                f"--chdir={request.folder}",
                f"--output={request.output}",
                *([f"--comment={request.comment}"] if request.comment else []),
                *self._common(request.account),
                *(f"--{option.removeprefix('--')}" for option in request.options),
            ),
            request.script,
            request.runs_as,
        )
        return read_number(said)

    async def cancel(self, runs_as: str, numbers: tuple[str, ...]) -> None:
        """See `Submitter`."""
        status, _, err = await self._as("scancel", ("--quiet", *numbers), runs_as)
        if status != 0:
            raise UnavailableError(f"scancel fails: {what_was_said(err)}")

    def _common(self, account: str = "") -> list[str]:
        own = [f"--{name}={value}" for name, value in self._settings.named(account).items()]
        return [*own, *(f"--{option.removeprefix('--')}" for option in self._settings.options)]

    async def _submit(self, options: tuple[str, ...], script: str, runs_as: str) -> str:
        status, out, err = await self._as("sbatch", options, runs_as, script)
        # Of a host whose name it cannot resolve sudo says so, and goes on.
        if status != 0 and err and all(line.startswith("sudo: ") for line in err.splitlines()):
            right = "the line of docs/slurm.md in /etc/sudoers.d allows it"
            raise InputError(f"sudo does not let the site run sbatch as {runs_as}: {what_was_said(err)}; {right}")
        if status != 0:
            raise refusal(err)
        return out

    async def _as(
        self, command: str, arguments: tuple[str, ...], runs_as: str, given: str = ""
    ) -> tuple[int, str, str]:
        """Run a command as an account; return its exit code and what it has printed."""
        program = self._commands.find(command)
        if program is None:
            raise UnavailableError(f"there is no {command} on the path")
        if not runs_as:
            return await self._commands.ask((program, *arguments), given)
        if self._settings.submit == "sudo":
            as_account = (self._commands.find_other("sudo") or "sudo", "-n", "-u", runs_as, "--")
            return await self._commands.ask((*as_account, program, *arguments), given, runs_as=runs_as)
        account = account_named(runs_as)
        if command == "sbatch":
            # Without its group a job would have root's.
            arguments = (f"--uid={account.pw_uid}", f"--gid={account.pw_gid}", *arguments)
        return await self._commands.ask(
            (program, *arguments), given, environment_of(account, self._commands.environment)
        )


_FLAT = ("v0.0.37", "v0.0.38")
"""Versions whose jobs have the options of ``sbatch`` as plain values; those of the others are as Slurm keeps them."""

_OVER = (2017, 2021)
"""The numbers of errors of a job that is not known any more, or has ended."""


class ByRest:
    """An account's own token at slurmrestd, which hands it to slurmctld: that knows by it whose the job is.

    Parameters
    ----------
    settings : SlurmSettings
    commands : Commands
    restd : Slurmrestd
    own : str
        The account of the site.
    """

    def __init__(self, settings: SlurmSettings, commands: Commands, restd: Slurmrestd, own: str) -> None:
        self._settings, self._commands, self._restd, self._own = settings, commands, restd, own

    async def check(self, user: BatchUser) -> None:
        """Raise InputError if there is no good token for a user, or slurmrestd does not answer or take it."""
        whose = user.runs_as or self._own
        self._restd.check()
        try:
            # Slurm does not look at the token of whoever just asks whether it is there (ping).
            await self._restd.partition(self._settings.partition, whose)
        except UnavailableError as error:
            raise InputError(f"rest: {error}") from None

    async def submit(self, request: AllocationRequest) -> str:
        """Submit a job as its account; return its number."""
        whose = request.runs_as or self._own
        try:
            version = await self._restd.version(whose)
            environment = environment_of(account_named(whose), self._commands.environment)
            body = job_of(request, self._settings, version, environment)
            said = await self._restd.ask("POST", "/job/submit", whose, NumberAnswer, body)
        except InputError as error:
            # A token may be made anew, or be written just now: what is asked for as that account waits for it.
            raise UnavailableError(str(error)) from None
        # Slurm takes some jobs that cannot start as things are, and says with the number why they have to wait.
        if not said.job_id:
            raise refusal(said.said, said.said)
        return str(said.job_id)

    async def cancel(self, runs_as: str, numbers: tuple[str, ...]) -> None:
        """Cancel jobs of one account; where the site looks by commands, those of its own by ``scancel``."""
        if not runs_as and self._settings.access == "commands":
            await self._commands.run("scancel", "--quiet", *numbers)
            return
        whose = runs_as or self._own
        for number in numbers:
            try:
                said = await self._restd.ask("DELETE", f"/job/{number}", whose, Answer)
            except InputError as error:
                raise UnavailableError(str(error)) from None
            if any(each.number not in _OVER for each in said.errors):
                raise UnavailableError(f"job {number} of {whose} is not cancelled: {said.said}")


def job_of(
    request: AllocationRequest, settings: SlurmSettings, version: str, environment: dict[str, str]
) -> dict[str, Any]:
    """Return the body by which a job is submitted, in the shape of a version of the interface."""
    minutes = whole_minutes(request.length_ms)
    job: dict[str, Any] = {
        "name": request.name,
        "requeue": False,
        "comment": request.comment,
        "current_working_directory": request.folder,
        "standard_output": request.output,
    }
    if version in _FLAT:
        job |= {"nodes": request.nodes, "exclusive": "exclusive", "time_limit": minutes, "environment": environment}
    else:
        limit = {"set": True, "infinite": False, "number": minutes}
        variables = [f"{name}={value}" for name, value in environment.items()]
        job |= {"minimum_nodes": request.nodes, "maximum_nodes": request.nodes, "shared": ["none"]}
        job |= {"time_limit": limit, "environment": variables}
    job |= settings.named(request.account)
    for option in (*settings.options, *request.options):
        name, _, value = option.removeprefix("--").partition("=")
        job[OVER_REST[name]] = int(value) if name == "nice" and re.fullmatch(r"-?\d+", value) else value
    return {"script": request.script, "job": job}
