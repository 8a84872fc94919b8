"""Plain explanations of Slurm's reasons for waiting and of the states in which jobs end."""

from __future__ import annotations

import re

from gridweave.slurm.system import AllocationEnd

WAITING = {
    "None": "Slurm has not considered it yet",
    "Priority": "other jobs in Slurm's queue have a higher priority",
    "Resources": "Slurm has no nodes free for it now",
    "Dependency": "Slurm holds it back until jobs that it depends on have ended",
    "DependencyNeverSatisfied": "jobs that it depends on in Slurm did not end as required",
    "BeginTime": "its begin time in Slurm has not come",
    "JobHeldUser": "it is held in Slurm by the account that submitted it; scontrol release releases it",
    "JobHeldAdmin": "it is held by an administrator of Slurm",
    "JobLaunchFailure": "Slurm could not start it on its nodes, and holds it",
    "Reservation": "it waits for a reservation in Slurm to begin",
    "ReservationDeleted": "its reservation in Slurm was removed",
    "PartitionDown": "the partition is down: an administrator of Slurm has to open it",
    "PartitionInactive": "the partition is inactive: an administrator of Slurm has to open it",
    "PartitionNodeLimit": "it needs more nodes than the partition allows for a job, or than are up",
    "PartitionTimeLimit": "its time limit is above that of the partition",
    "PartitionConfig": "the partition is configured to reject such jobs",
    "NodeDown": "a node that it needs is down",
    "ReqNodeNotAvail,_Reserved_for_maintenance": "nodes that it needs are reserved for maintenance",
    "ReqNodeNotAvail,_May_be_reserved_for_other_job": "nodes that it needs may be reserved for another job",
    "Nodes_required_for_job_are_DOWN": "nodes that it needs are down, drained or reserved for jobs that go first",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "BadConstraints": "no node of the cluster matches its request",
    "Licenses": "licenses that it needs are taken",
    "Cleaning": "Slurm still cleans up after its last run",
    "Prolog": "the prolog of its nodes still runs",
    "NodesFailed": "nodes failed while Slurm started it",
    "FrontEndDown": "no front end of the cluster is up",
    "InvalidAccount": "its account in Slurm is not valid",
    "InvalidQOS": "its quality of service (QOS) in Slurm is not valid",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its quality of service (QOS) may not be used in the partition",
    "AssociationJobLimit": "its account has reached its limit of running jobs",
    "AssocMaxJobsLimit": "its account has reached its limit of running jobs",
    "AssociationResourceLimit": "its account has reached its limit of resources",
    "AssociationTimeLimit": "its account has used up its time",
    "QOSJobLimit": "its quality of service (QOS) has reached its limit of running jobs",
    "QOSResourceLimit": "its quality of service (QOS) has reached its limit of resources",
    "QOSTimeLimit": "its quality of service (QOS) has used up its time",
    "JobArrayTaskLimit": "its array has reached its limit of running tasks",
    "TimeLimit": "its time limit in Slurm is reached",
    "SystemFailure": "Slurm itself, its files or its network failed",
    "RaisedSignal:53(Real-time_signal_19)": "Slurm could not start it: the folder for its output cannot be written",
    "RaisedSignal": "its last run in Slurm was ended by a signal",
    "NonZeroExitCode": "its last run in Slurm ended with an exit code other than 0",
    "OutOfMemory": "its last run in Slurm used more memory than it was given",
    "InactiveLimit": "it reached Slurm's limit for inactive jobs",
    "DeadLine": "its deadline in Slurm cannot be met any more",
    "SchedDefer": "Slurm starts no job at once, and considers it in its next round",
    "JobHoldMaxRequeue": "Slurm has requeued it too often, and holds it",
    "BurstBufferResources": "the burst buffer has no space for it now",
    "BurstBufferStageIn": "its data is being copied into the burst buffer",
    "BurstBufferOperation": "its burst buffer operation has failed",
    "ReservationInvalid": "it may not use its reservation in Slurm",
    "AccountingPolicy": "a limit of Slurm's accounting keeps it from starting now",
    "FedJobLock": "another cluster of Slurm's federation is deciding about it",
    "MaxMemPerLimit": "it asks for more memory per node or processor than is allowed",
    "Constraints": "no node that is up now matches its request",
    "MaxPoweredUpNodes": "the maximum number of nodes is already powered up",
    "MpiPortsBusy": "the ports that Slurm keeps for MPI are in use",
    "NvidiaImexChannels": "the channels that it needs between the GPUs of several nodes (IMEX) are taken",
    "launch_failed_requeued_held": "Slurm could not start it on its nodes, requeued it, and holds it",
    "job_requeued_in_held_state": "it was requeued in Slurm, and is held there",
    "job_requeued_in_special_exit_state": "Slurm requeued and holds it because of its exit code",
}
"""Explanations of the reasons that ``squeue`` prints for waiting jobs.

The words of a reason are joined by underscores, as printed by ``scontrol``; ``squeue`` prints spaces.
"""

_LIMITS = {
    r"Assoc\w+": "its account",
    r"QOS\w+": "its quality of service (QOS)",
    r"Max\w+PerAccount": "its account",
    r"Max\w+PerUser": "its user",
}
"""Maps patterns for the names of limits to what such a limit applies to."""

ENDED: dict[str, tuple[AllocationEnd, str]] = {
    "COMPLETED": ("given back", "its nodes were given back"),
    "CANCELLED": ("cancelled", "it was cancelled in Slurm"),
    "FAILED": ("failed", "its script in Slurm failed"),
    "TIMEOUT": ("limit", "it reached its time limit in Slurm"),
    "NODE_FAIL": ("lost", "a node failed under it"),
    "PREEMPTED": ("lost", "Slurm took its nodes for a job that goes first"),
    "OUT_OF_MEMORY": ("memory", "it used more memory than Slurm gave it"),
    "BOOT_FAIL": ("lost", "its nodes did not boot"),
    "DEADLINE": ("limit", "it could not end by its deadline in Slurm"),
    "REVOKED": ("lost", "another cluster of Slurm's federation has it"),
    "REQUEUED": ("lost", "Slurm requeued it"),
}
"""Maps a job's final state in Slurm to how its allocation ended, and an explanation."""

UNDECIDED = ("", "None", "SchedDefer")
"""Reasons of jobs that Slurm has not considered yet, so that they may start at any moment."""


def word_of(text: str) -> str:
    """Return Slurm's own word at the start of a reason or a state, which people can look up.

    Examples
    --------
    >>> word_of("ReqNodeNotAvail, UnavailableNodes:n[3-4]"), word_of("job requeued in held state")
    ('ReqNodeNotAvail', 'job_requeued_in_held_state')
    """
    return _joined(text).partition(",")[0]


def _joined(text: str) -> str:
    return re.sub(r"\s+", "_", text.strip().strip("()"))


def why_waiting(reason: str) -> str:
    """Explain why a job is waiting in Slurm, given the reason that ``squeue`` prints.

    Examples
    --------
    >>> why_waiting("Priority")
    "other jobs in Slurm's queue have a higher priority"
    >>> why_waiting("QOSMaxNodePerUserLimit")
    'its quality of service (QOS) has reached a limit (QOSMaxNodePerUserLimit)'
    >>> why_waiting("ReqNodeNotAvail, UnavailableNodes:n[3-4]")
    'nodes that it needs are down, drained or reserved (n[3-4])'
    >>> why_waiting("SomethingNew")
    'Slurm gives the reason SomethingNew'
    """
    word = word_of(reason)
    explanation = WAITING.get(_joined(reason)) or WAITING.get(word) or WAITING.get(word.partition(":")[0])
    if explanation is not None:
        nodes = reason.partition("UnavailableNodes:")[2].strip().rstrip(")")
        return f"{explanation} ({nodes})" if nodes else explanation
    for form, whose in _LIMITS.items():
        if re.fullmatch(form, word):
            return f"{whose} has reached a limit ({word})"
    return f"Slurm gives the reason {word}" if word else WAITING["None"]


def how_ended(state: str) -> tuple[AllocationEnd, str] | None:
    """Return how a job ended in Slurm, and an explanation; None if its state is not final.

    Examples
    --------
    >>> how_ended("CANCELLED by 0")
    ('cancelled', 'it was cancelled in Slurm')
    >>> how_ended("RUNNING") is None
    True
    """
    return ENDED.get(state.split(" ", maxsplit=1)[0].rstrip("+"))


_MEMORY = re.compile(r"oom[-_]kill event|: Out Of Memory$|exceeded memory limit", re.MULTILINE | re.IGNORECASE)


def end_from_output(printed: str) -> tuple[AllocationEnd, str] | None:
    """Return how a job in state FAILED really ended, judging by its script's output; None if that is unclear.

    Slurm sets the state OUT_OF_MEMORY only if the script itself ran out of memory, not a process started by srun.

    Examples
    --------
    >>> end_from_output("srun: error: n1: task 0: Out Of Memory")
    ('memory', 'it used more memory than Slurm gave it')
    """
    return ENDED["OUT_OF_MEMORY"] if _MEMORY.search(printed) else None
