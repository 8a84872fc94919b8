"""Jobs submitted and cancelled over slurmrestd, which takes JSON: of each user by the user's own token, or of the site.

The shape of a job differs between the versions of the interface; it is made here alone.
"""

from __future__ import annotations

import re
from typing import Any

from gridweave.errors import InputError, UnavailableError
from gridweave.site.batch.slurm.answers import Answer, NumberAnswer
from gridweave.site.batch.slurm.asking import Commands, account_named, environment_of, refusal
from gridweave.site.batch.slurm.settings import OVER_REST, SlurmSettings, whole_minutes
from gridweave.site.batch.slurm.slurmrestd import Slurmrestd
from gridweave.site.batch.system import AllocationRequest, BatchUser

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
        "tasks_per_node": 1,
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
