"""A Slurm cluster: the plug for Slurm, called by whoever drives a site."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Iterable, Mapping, Sequence

from gridweave.errors import InputError
from gridweave.site.batch.slurm.asking import Commands
from gridweave.site.batch.slurm.parse import (
    OLDEST,
    SINFO_FORMAT,
    SQUEUE_FORMAT,
    read_sinfo,
    read_squeue,
    read_version,
    view_of,
)
from gridweave.site.batch.slurm.rest import ByRest
from gridweave.site.batch.slurm.settings import SlurmSettings
from gridweave.site.batch.slurm.submit import ByCommands, Submitter
from gridweave.site.batch.system import Allocation, AllocationRequest, BatchUser, BatchView, check_request

_NEEDED = ("sbatch", "squeue", "sinfo", "scancel")

END_OF_GIVEN = "END-OF-WHAT-IS-GIVEN"


class Slurm:
    """A Slurm cluster, seen by its commands; jobs are submitted and cancelled as `SlurmSettings.submit` says.

    Parameters
    ----------
    settings : SlurmSettings
    environment : mapping from str to str, optional
        As for `Commands`.
    """

    def __init__(self, settings: SlurmSettings, environment: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        self._commands = Commands(settings, environment)
        made = ByRest if settings.submit == "rest" else ByCommands
        self._submitter: Submitter = made(settings, self._commands)
        self._own = _own_name()

    async def check(self, users: Iterable[BatchUser] = ()) -> None:
        """Raise InputError if this cluster can never give nodes as it is set up, or not to one of these users.

        UnavailableError if it does not answer, so that nothing is known.
        """
        for command in _NEEDED:
            if self._commands.find(command) is None:
                right = "install Slurm's commands here, or name their folder (bin)"
                raise InputError(f"there is no {command} on the path; {right}")
        version = read_version(await self._commands.run("sinfo", "--version"))
        if version < OLDEST:
            found, oldest = (".".join(f"{part:02}" for part in each) for each in (version, OLDEST))
            raise InputError(f"this Slurm is {found}, which is too old; {oldest} is the oldest that is known to work")
        await self.view("")
        own = BatchUser()
        as_whom = {each for each in users if each.runs_as or self.settings.submit == "self"}
        if self.settings.submit == "self":
            as_whom.add(own)
        for user in sorted(as_whom, key=lambda each: (each.runs_as, each.account)):
            await self._submitter.check(user)

    async def view(self, prefix: str) -> BatchView:
        """Return what is seen now: one ``squeue`` and one ``sinfo`` for all."""
        partition, run = f"--partition={self.settings.partition}", self._commands.run
        queue = await run("squeue", "--noheader", "--all", "--states=all", partition, f"--format={SQUEUE_FORMAT}")
        nodes = await run("sinfo", "--noheader", partition, f"--format={SINFO_FORMAT}")
        return view_of(read_sinfo(nodes, self.settings.partition), read_squeue(queue), prefix, self._own)

    async def submit(self, request: AllocationRequest) -> str:
        """Ask for whole nodes; return the number of the job in Slurm.

        Slurm never runs it a second time by itself: who asked for it decides that.
        """
        check_request(request)
        return await self._submitter.submit(request)

    def script(self, command: tuple[str, ...], given: str = "") -> str:
        """Return the script that runs a command once on each node of an allocation, and ends when all have ended."""
        on_node = 'GRIDWEAVE_NODE=$SLURM_PROCID GRIDWEAVE_ALLOCATION=$SLURM_JOB_ID exec "$@"'
        # Slurm may run it again though it was told not to: over slurmrestd it does not hear that.
        once = 'test -z "$SLURM_RESTART_COUNT" || exit 1'
        # Ranks are pinned by the agent, to any of the hardware threads of a node that is all its own.
        run = f"exec srun --kill-on-bad-exit=0 --cpu-bind=none sh -c '{on_node}' node {shlex.join(command)}"
        return f"#!/bin/sh\n{once}\n{run} <<'{END_OF_GIVEN}'\n{given}\n{END_OF_GIVEN}\n"

    async def cancel(self, allocations: Sequence[Allocation]) -> None:
        """Cancel jobs of Slurm; those that are over are passed over."""
        for runs_as in sorted({each.runs_as for each in allocations}):
            await self._submitter.cancel(runs_as, tuple(each.number for each in allocations if each.runs_as == runs_as))


def _own_name() -> str:
    """Return the account of this process, as Slurm's commands print it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
