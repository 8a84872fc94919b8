"""A Slurm cluster: the plug for Slurm, called by whoever drives a site."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from gridweave.errors import InputError
from gridweave.site.batch.slurm.asking import Commands
from gridweave.site.batch.slurm.look import Look, LookByCommands, LookOverRest
from gridweave.site.batch.slurm.parse import SACCT, SINCE, read_sacct, view_of
from gridweave.site.batch.slurm.reasons import end_told
from gridweave.site.batch.slurm.settings import SlurmSettings
from gridweave.site.batch.slurm.slurmrestd import Slurmrestd
from gridweave.site.batch.slurm.submit import ByCommands, ByRest, Submitter
from gridweave.site.batch.system import (
    Allocation,
    AllocationEnd,
    AllocationRequest,
    BatchUser,
    BatchView,
    check_request,
)

END_OF_GIVEN = "END-OF-WHAT-IS-GIVEN"

_ON_NODE = (
    "GRIDWEAVE_NODE=$SLURM_PROCID; GRIDWEAVE_ALLOCATION=$SLURM_JOB_ID; export GRIDWEAVE_NODE GRIDWEAVE_ALLOCATION; "
    "SLURM_TASKS_PER_NODE=$TASKS_OF_ALLOCATION; unset TASKS_OF_ALLOCATION; "
    'unset $(env | sed -nE "s/^((SLURM_(STEP|SRUN_COMM|CPU_BIND|LAUNCH_NODE|UMASK|KILL_BAD|NTASKS|NPROCS)|PMI)'
    '[A-Za-z0-9_]*)=.*/\\1/p"); exec "$@"'
)
"""How the agent is started on a node: with the variables of the batch script, without those of its own step.

``srun`` and MPI libraries in a job would take the options, the tasks and the ranks of the agents' step for theirs.
"""


class Slurm:
    """A Slurm cluster: looked at as `SlurmSettings.access` says; jobs are submitted and cancelled as ``submit`` says.

    Parameters
    ----------
    settings : SlurmSettings
    environment : mapping from str to str, optional
        As for `Commands`.
    """

    def __init__(self, settings: SlurmSettings, environment: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        self._commands = commands = Commands(settings, environment)
        self._own = own = _own_name()
        restd, over_rest = Slurmrestd(settings, commands), settings.access == "rest"
        self._look: Look = LookOverRest(settings, restd, own) if over_rest else LookByCommands(settings, commands, own)
        self._submitter: Submitter = ByCommands(settings, commands)
        if settings.submits_over_rest:
            self._submitter = ByRest(settings, commands, restd, own)

    async def check(self, users: Iterable[BatchUser] = ()) -> tuple[str, ...]:
        """Return what is worth knowing before jobs come, in a line each.

        Raises
        ------
        InputError
            If this cluster can never give nodes as it is set up, or not to one of these users.
        UnavailableError
            If it does not answer, so that nothing is known.
        """
        for command in self._needed:
            if self._commands.find(command) is None:
                right = "install Slurm's commands here, name their folder (bin), or give access = 'rest'"
                raise InputError(f"there is no {command} on the path; {right}")
        await self._look.check()
        await self.view("")
        own = BatchUser()
        as_whom = {each for each in users if each.runs_as or self.settings.submit == "self"}
        if self.settings.submit == "self":
            as_whom.add(own)
        for user in sorted(as_whom, key=lambda each: (each.runs_as, each.account)):
            await self._submitter.check(user)
        return await self._check_sight()

    @property
    def _needed(self) -> tuple[str, ...]:
        """The commands that must be there."""
        submits = () if self.settings.submits_over_rest else ("sbatch", "scancel")
        return submits if self.settings.access == "rest" else ("sbatch", "squeue", "sinfo", "scancel")

    async def _check_sight(self) -> tuple[str, ...]:
        """Return what it means that the site does not see the jobs of others; InputError if it must see them."""
        sight = await self._look.sight()
        if sight == "all":
            return ()
        hidden = f"PrivateData=jobs in slurm.conf hides the jobs of others from {self._own}"
        right = f"have it made an operator of Slurm: sacctmgr modify user {self._own} set adminlevel=operator"
        if self.settings.submit != "self":
            if sight == "own":
                raise InputError(f"{hidden}, and so those of its users, which it would take for lost; {right}")
            return (f"{hidden}, it seems; if it does not see those of its users it takes them for lost; {right}",)
        seems = "" if sight == "own" else ", it seems"
        return (f"{hidden}{seems}: what it says of when nodes will be free goes by its own jobs alone; {right}",)

    async def view(self, prefix: str) -> BatchView:
        """Return what is seen now, in one look for all."""
        return view_of(*await self._look.look(), self.settings.partition, prefix, self._own)

    async def submit(self, request: AllocationRequest) -> str:
        """Ask for whole nodes; return the number of the job in Slurm.

        Slurm never runs it a second time by itself: who asked for it decides that.
        """
        check_request(request)
        return await self._submitter.submit(request)

    def script(self, command: tuple[str, ...], given: str = "") -> str:
        """Return the script that runs a command once on each node of an allocation, and ends when all have ended."""
        # Slurm may run it again though it was told not to: over slurmrestd it does not hear that.
        once = 'test -z "$SLURM_RESTART_COUNT" || exit 1'
        # Ranks are pinned by the agent, to any of the hardware threads of a node that is all its own. The agents'
        # step takes nothing of the allocation: srun and mpirun in a job start steps of their own on the same nodes.
        step = "srun --ntasks-per-node=1 --overlap --mem=0 --kill-on-bad-exit=0 --cpu-bind=none"
        tasks = "export TASKS_OF_ALLOCATION=$SLURM_TASKS_PER_NODE"
        run = f"exec {step} sh -c '{_ON_NODE}' node {shlex.join(command)}"
        return f"#!/bin/sh\n{once}\n{tasks}\n{run} <<'{END_OF_GIVEN}'\n{given}\n{END_OF_GIVEN}\n"

    def end_told(self, printed: str) -> tuple[AllocationEnd, str] | None:
        """Return how a job that failed in Slurm ended, by what its script has printed; None: that does not tell."""
        return end_told(printed)

    async def ended(self, names: Collection[str]) -> list[Allocation]:
        """Return how jobs ended that a view shows no more, as Slurm's accounting says."""
        return read_sacct(await self._commands.run("sacct", *SACCT, SINCE, f"--name={','.join(names)}"), self._own)

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
