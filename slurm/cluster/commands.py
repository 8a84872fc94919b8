"""The Slurm batch system: query a cluster, and submit and cancel jobs there."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from typing_extensions import override

from gridweave.errors import InputError
from gridweave.site.resources.chunks import Chunk
from gridweave.slurm.cluster.asking import Commands
from gridweave.slurm.cluster.look import Look, LookByCommands, LookOverRest
from gridweave.slurm.cluster.parse import SACCT, SINCE, read_sacct, view_of
from gridweave.slurm.cluster.reasons import end_from_output
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.cluster.size import size_of
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

_WITHOUT_STEP = (
    'unset $(env | sed -nE "s/^((SLURM_(STEP|SRUN_COMM|CPU_BIND|LAUNCH_NODE|UMASK|KILL_BAD|NTASKS|NPROCS)|PMI)'
    '[A-Za-z0-9_]*)=.*/\\1/p"); '
)
"""Shell code that removes the variables of the job step in which the agents run.

With these variables, ``srun`` and MPI libraries in a job would use the options, tasks and ranks of that step.
"""

_ON_NODE = (
    "GRIDWEAVE_NODE=$SLURM_PROCID; GRIDWEAVE_ALLOCATION=$SLURM_JOB_ID; export GRIDWEAVE_NODE GRIDWEAVE_ALLOCATION; "
    "SLURM_TASKS_PER_NODE=$TASKS_OF_ALLOCATION; unset TASKS_OF_ALLOCATION; "
    f'{_WITHOUT_STEP}exec "$@"'
)
"""Shell code that starts the agent on a whole node."""

_OF_JOB = (
    "for name in TASKS_PER_NODE NNODES JOB_NUM_NODES NODELIST JOB_NODELIST JOB_CPUS_PER_NODE NTASKS NPROCS "
    "CPUS_PER_TASK GPUS_PER_TASK TRES_PER_TASK NTASKS_PER_NODE; do "
)
"""Shell code that loops over Slurm's variables for the job that a job step changes."""

_SAVED = (
    f'{_OF_JOB}eval "test -z \\"\\${{SLURM_$name+x}}\\" || export OF_JOB_$name=\\"\\$SLURM_$name\\""; done\n'
    "unset SLURM_NTASKS SLURM_NPROCS SLURM_CPUS_PER_TASK SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_NTASKS_PER_NODE"
)
"""Shell code that saves the job's variables, and removes those from which ``srun`` would take the size of its step."""

_CHUNKS_ON_NODE = (
    "GRIDWEAVE_NODE=${NODE_OF_JOB:-$SLURM_NODEID}; SLURM_NODEID=$GRIDWEAVE_NODE; GRIDWEAVE_ALLOCATION=$SLURM_JOB_ID; "
    "GRIDWEAVE_CHUNKS=$OF_JOB_TASKS_PER_NODE; export GRIDWEAVE_NODE SLURM_NODEID GRIDWEAVE_ALLOCATION "
    f"GRIDWEAVE_CHUNKS; unset NODE_OF_JOB; {_WITHOUT_STEP}"
    f'{_OF_JOB}unset SLURM_$name; eval "test -z \\"\\${{OF_JOB_$name+x}}\\" || '
    'export SLURM_$name=\\"\\$OF_JOB_$name\\""; unset OF_JOB_$name; done; exec "$@"'
)
"""Shell code that starts the agent on a node of which the job has chunks, with the variables of a batch script."""

_ON_EACH_NODE = """\
IFS= read -r stdin <<'{end}'
{stdin}
{end}
node=0 processes=
for run in $(echo "$OF_JOB_TASKS_PER_NODE" | tr , ' '); do
  chunks=${{run%(*}} last=$node
  case $run in *x*) last=${{run#*x}} last=$((node + ${{last%)}} - 1));; esac
  while [ "$node" -le "$last" ]; do
    export NODE_OF_JOB=$node
    printf '%s\\n' "$stdin" | {step} &
    processes="$processes $!"
    node=$((node + 1))
  done
done
status=0
for process in $processes; do wait "$process" || status=$?; done
exit "$status"
"""
"""Shell code that starts a job step on each node, with the GPUs of the job's chunks there.

A step on several nodes would get the GPUs of one chunk on each of them.
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
        # Whether Slurm counts GPUs per task; None until a job asks for GPUs.
        self._gpus_per_task: bool | None = None
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
        """Submit a Slurm job; return its job number.

        Slurm must not requeue the job by itself, because the site decides whether to run it again.
        """
        check_request(request)
        if request.parts is not None and request.parts.gpus and self._gpus_per_task is None:
            self._gpus_per_task = await self._look.counts_gpus_per_task()
        return await self._submitter.submit(request, size_of(request, gpus_per_task=self._gpus_per_task is not False))

    @override
    def script(self, command: tuple[str, ...], stdin: str = "", chunk: Chunk | None = None, width: int = 0) -> str:
        # Slurm may requeue the job after all, because it ignores ``requeue: false`` from slurmrestd.
        once = '#!/bin/sh\ntest -z "$SLURM_RESTART_COUNT" || exit 1'
        # No CPU binding: the agent has all that the job has on the node, and pins the ranks itself. The agents' step
        # takes no resources from the allocation, since srun and mpirun in a job start their own steps there.
        step = "srun --ntasks-per-node=1 --overlap --mem=0 --kill-on-bad-exit=0 --cpu-bind=none"
        heredoc = f"<<'{END_OF_GIVEN}'\n{stdin}\n{END_OF_GIVEN}\n"
        if chunk is None or chunk.is_whole:
            tasks = "export TASKS_OF_ALLOCATION=$SLURM_TASKS_PER_NODE"
            return f"{once}\n{tasks}\nexec {step} sh -c '{_ON_NODE}' node {shlex.join(command)} {heredoc}"
        run = f"sh -c '{_CHUNKS_ON_NODE}' node {shlex.join(command)}"
        if not chunk.gpus:
            return f"{once}\n{_SAVED}\nexec {step} {run} {heredoc}"
        gpus = f"--relative=$node --nodes=1 --ntasks=1 --gpus=$((chunks * {chunk.gpus}))"
        others = ",".join(f"{name}:$((chunks * {amount}))" for name, amount in chunk.others)
        step = f"{step} {gpus} {f'--gres={others} ' if others else ''}{run}"
        return f"{once}\n{_SAVED}\n{_ON_EACH_NODE.format(end=END_OF_GIVEN, stdin=stdin, step=step)}"

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
