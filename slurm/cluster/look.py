"""Query a Slurm cluster by commands or over slurmrestd, with the same results."""

from __future__ import annotations

import logging
import re
import secrets
from typing import Literal, Protocol

import msgspec
from typing_extensions import override

from gridweave.errors import InputError, UnavailableError
from gridweave.slurm.cluster.answers import (
    JobsAnswer,
    NodesAnswer,
    details_of,
    has_hidden_jobs,
    partition_named,
    queue_from,
)
from gridweave.slurm.cluster.asking import Commands
from gridweave.slurm.cluster.nodes import NODES_FORMAT, read_nodes
from gridweave.slurm.cluster.parse import (
    OLDEST,
    SINFO_FORMAT,
    SQUEUE_FORMAT,
    Partition,
    QueuedInSlurm,
    read_sinfo,
    read_squeue,
    read_version,
)
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.cluster.slurmrestd import Slurmrestd

logger = logging.getLogger("gridweave.live")

Sight = Literal["all", "own", "unsure"]
"""The jobs that an account can see: all jobs (``all``), only its own (``own``), or unknown (``unsure``)."""


class Look(Protocol):
    """Queries a cluster as the site's account."""

    async def check(self) -> None:
        """Raise InputError with a one-line message if queries can never work."""

    async def look(self) -> tuple[Partition, list[QueuedInSlurm]]:
        """Return the partition and all jobs in the cluster, in as few queries as possible."""

    async def sight(self) -> Sight:
        """Return which jobs the site's account can see, as far as that can be determined."""

    async def counts_gpus_per_task(self) -> bool:
        """Whether the cluster accepts requests for GPUs per task; otherwise, only per node."""


class LookByCommands(Look):
    """Queries a cluster with one ``squeue`` and one ``sinfo`` command, or two ``sinfo`` if jobs may ask for chunks."""

    def __init__(self, settings: SlurmSettings, commands: Commands, own: str) -> None:
        self._settings, self._commands, self._own = settings, commands, own
        self._strange: set[str] = set()

    @override
    async def check(self) -> None:
        check_version(await self._commands.run("sinfo", "--version"))

    @override
    async def look(self) -> tuple[Partition, list[QueuedInSlurm]]:
        """Return the partition and all jobs in the cluster; warn once about each line that cannot be parsed."""
        partition, run, mark = self._settings.partition, self._commands.run, secrets.token_hex(8)
        # Include other partitions, whose jobs may use the same nodes; slurmctld sends all jobs anyway.
        queue = await run("squeue", "--noheader", "--all", "--states=all", f"--format={mark}{SQUEUE_FORMAT}")
        nodes = await run("sinfo", "--noheader", f"--partition={partition}", f"--format={SINFO_FORMAT}")
        jobs, strange = read_squeue(queue, mark)
        for line in sorted(set(strange) - self._strange):
            logger.warning("a line of squeue cannot be parsed and is ignored: %.100r", line)
        self._strange = set(strange)
        seen = read_sinfo(nodes, partition)
        if self._settings.chunks:
            lines = await run("sinfo", "--noheader", "--Node", f"--partition={partition}", f"--Format={NODES_FORMAT}")
            seen = msgspec.structs.replace(seen, details=read_nodes(lines))
        return seen, jobs

    @override
    async def counts_gpus_per_task(self) -> bool:
        return reads_gpus_per_task(await self._commands.run("scontrol", "show", "config"))

    @override
    async def sight(self) -> Sight:
        """Return which jobs are visible, from Slurm's configuration and the account's rights in Slurm's accounting."""
        try:
            config = await self._commands.run("scontrol", "show", "config")
        except UnavailableError:
            return "all"
        if not hides_jobs(config, self._own):
            return "all"
        sacctmgr = self._commands.find("sacctmgr")
        if sacctmgr is None:
            return "unsure"
        asked = (sacctmgr, "--noheader", "--parsable2", "show", "user", self._own, "withcoord", "format=admin,coord")
        status, out, _ = await self._commands.ask(asked)
        # Without slurmdbd, sacctmgr fails and nobody is an operator.
        return sight_of(out if status == 0 else "")


class LookOverRest(Look):
    """Queries a cluster's jobs, nodes and partition over slurmrestd, with the token of the site's account."""

    def __init__(self, settings: SlurmSettings, restd: Slurmrestd, own: str) -> None:
        self._settings, self._restd, self._own = settings, restd, own
        self._is_blind = False

    @override
    async def check(self) -> None:
        self._restd.check()
        answer = await self._restd.partition(self._settings.partition, self._own)
        if answer.release:
            check_version(answer.release)

    @override
    async def look(self) -> tuple[Partition, list[QueuedInSlurm]]:
        """Return the partition and all jobs in the cluster that are visible with the token."""
        name = self._settings.partition
        jobs = (await self._restd.get("/jobs", self._own, JobsAnswer)).jobs
        nodes = (await self._restd.get("/nodes", self._own, NodesAnswer)).nodes
        queue = queue_from(jobs)
        self._is_blind = has_hidden_jobs(queue, nodes)
        partitions = (await self._restd.partition(name, self._own)).partitions
        seen = partition_named(partitions, nodes, name)
        if self._settings.chunks:
            seen = msgspec.structs.replace(seen, details=details_of(nodes, name))
        return seen, queue

    @override
    async def counts_gpus_per_task(self) -> bool:
        """Return True: slurmrestd does not show the configuration, and nearly all clusters have ``cons_tres``."""
        return True

    @override
    async def sight(self) -> Sight:
        """Return ``unsure`` if jobs seem to be hidden, else ``all``; slurmrestd does not show the configuration."""
        for _ in range(2):
            # At the first attempt, a job may have started between the query for jobs and the query for nodes.
            await self.look()
            if not self._is_blind:
                return "all"
        return "unsure"


def check_version(text: str) -> None:
    """Raise InputError if the Slurm version is older than `OLDEST`."""
    version = read_version(text)
    if version < OLDEST:
        installed, oldest = (".".join(f"{part:02}" for part in numbers) for numbers in (version, OLDEST))
        raise InputError(f"this Slurm is {installed}; expected at least {oldest}, the oldest tested version")


def hides_jobs(config: str, own: str) -> bool:
    r"""Whether an account that is not an operator sees only its own jobs, by the output of ``scontrol show config``.

    Examples
    --------
    >>> hides_jobs("PrivateData = jobs,usage\nSlurmUser = slurm(64030)", "anna")
    True
    """
    settings = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in config.splitlines())}
    above = ("root", re.sub(r"\(\d+\)$", "", settings.get("SlurmUser", "")))
    return "jobs" in settings.get("PrivateData", "").split(",") and own not in above


def reads_gpus_per_task(config: str) -> bool:
    """Whether a cluster accepts ``--gpus-per-task``, by the output of ``scontrol show config``.

    Only the plugin ``cons_tres`` accepts it; the others accept ``--gres``, which counts per node.

    Examples
    --------
    >>> reads_gpus_per_task("SelectType              = select/cons_tres")
    True
    """
    return re.search(r"^SelectType\s*=\s*select/cons_tres\s*$", config, re.MULTILINE) is not None


def sight_of(user: str) -> Sight:
    """Return which jobs an account sees under PrivateData=jobs, given its rights as printed by ``sacctmgr``.

    Examples
    --------
    >>> sight_of("Operator|"), sight_of("None|physics"), sight_of("None|"), sight_of("")
    ('all', 'unsure', 'own', 'own')
    """
    rights, _, coordinated = user.strip().partition("|")
    if rights in ("Operator", "Administrator"):
        return "all"
    # A coordinator also sees the jobs of the accounts that it coordinates.
    return "unsure" if coordinated else "own"
