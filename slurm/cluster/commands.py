"""The Slurm batch system: query a cluster, and submit and cancel jobs there."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from typing_extensions import override

from gridweave.errors import InputError
from gridweave.slurm.cluster.asking import Commands
from gridweave.slurm.cluster.look import Look, LookByCommands, LookOverRest
from gridweave.slurm.cluster.parse import SACCT, SINCE, read_sacct, view_of
from gridweave.slurm.cluster.reasons import end_from_output
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.cluster.slurmrestd import Slurmrestd
from gridweave.slurm.cluster.submit import ByCommands, ByRest, Submitter
from gridweave.slurm.system import (
    Allocation,
    AllocationEnd,
    AllocationRequest,
    BatchSystem,
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
"""Shell code that starts the agent on a node, without the variables of the job step in which the agents run.

With these variables, ``srun`` and MPI libraries in a job would use the options, tasks and ranks of that step.
"""


class Slurm(BatchSystem):
    """A Slurm cluster. `SlurmSettings` says how to query it (``access``) and how to submit jobs (``submit``).

    Parameters
    ----------
    settings : SlurmSettings
    environment : mapping from str to str, optional
        See `Commands`.
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

    @override
    async def check(self, users: Iterable[BatchUser] = ()) -> tuple[str, ...]:
        for command in self._needed:
            if self._commands.find(command) is None:
                right = "install Slurm's commands here, name their folder (bin), or set access = 'rest'"
                raise InputError(f"{command} is not on the path; {right}")
        await self._look.check()
        await self.view("")
        own = BatchUser()
        as_whom = {batch_user for batch_user in users if batch_user.runs_as or self.settings.submit == "self"}
        if self.settings.submit == "self":
            as_whom.add(own)
        for user in sorted(as_whom, key=lambda batch_user: (batch_user.runs_as, batch_user.account)):
            await self._submitter.check(user)
        return await self._check_sight()

    @property
    def _needed(self) -> tuple[str, ...]:
        """The Slurm commands that these settings require."""
        submits = () if self.settings.submits_over_rest else ("sbatch", "scancel")
        return submits if self.settings.access == "rest" else ("sbatch", "squeue", "sinfo", "scancel")

    async def _check_sight(self) -> tuple[str, ...]:
        """Return a note if Slurm hides other users' jobs from the site; raise InputError if it must see them."""
        sight = await self._look.sight()
        if sight == "all":
            return ()
        hidden = f"PrivateData=jobs in slurm.conf hides the jobs of other users from {self._own}"
        right = f"make {self._own} an operator of Slurm: sacctmgr modify user {self._own} set adminlevel=operator"
        if self.settings.submit != "self":
            if sight == "own":
                raise InputError(f"{hidden}, so it would treat the jobs of its users as lost; {right}")
            return (f"apparently {hidden}; jobs of its users that it does not see count as lost; {right}",)
        seems = "" if sight == "own" else "apparently "
        return (f"{seems}{hidden}: its forecasts of free nodes only consider its own jobs; {right}",)

    @override
    async def view(self, prefix: str) -> BatchView:
        return view_of(*await self._look.look(), self.settings.partition, prefix, self._own)

    @override
    async def submit(self, request: AllocationRequest) -> str:
        """Submit a Slurm job for whole nodes; return its job number.

        Slurm must not requeue the job by itself, because the site decides whether to run it again.
        """
        check_request(request)
        return await self._submitter.submit(request)

    @override
    def script(self, command: tuple[str, ...], stdin: str = "") -> str:
        # Slurm may requeue the job after all, because it ignores ``requeue: false`` from slurmrestd.
        once = 'test -z "$SLURM_RESTART_COUNT" || exit 1'
        # No CPU binding: the agent has the whole node and pins the ranks itself. The agents' step takes no resources
        # from the allocation, since srun and mpirun in a job start their own steps on the same nodes.
        step = "srun --ntasks-per-node=1 --overlap --mem=0 --kill-on-bad-exit=0 --cpu-bind=none"
        tasks = "export TASKS_OF_ALLOCATION=$SLURM_TASKS_PER_NODE"
        run = f"exec {step} sh -c '{_ON_NODE}' node {shlex.join(command)}"
        return f"#!/bin/sh\n{once}\n{tasks}\n{run} <<'{END_OF_GIVEN}'\n{stdin}\n{END_OF_GIVEN}\n"

    @override
    def end_from_output(self, printed: str) -> tuple[AllocationEnd, str] | None:
        return end_from_output(printed)

    @override
    async def ended(self, names: Collection[str]) -> list[Allocation]:
        """Return how jobs that the queue no longer shows have ended, from Slurm's accounting database."""
        return read_sacct(await self._commands.run("sacct", *SACCT, SINCE, f"--name={','.join(names)}"), self._own)

    @override
    async def cancel(self, allocations: Sequence[Allocation]) -> None:
        """Cancel jobs, account by account; jobs that have ended are skipped."""
        for runs_as in sorted({allocation.runs_as for allocation in allocations}):
            await self._submitter.cancel(
                runs_as, tuple(allocation.number for allocation in allocations if allocation.runs_as == runs_as)
            )


def _own_name() -> str:
    """Return the name of this process's Unix account, as Slurm's commands print it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
