"""Plain explanations of Slurm's words: why a job waits, and how a job ended."""

from __future__ import annotations

import re

from gridweave.slurm.system import AllocationEnd

WAITING = {
    "None": "Slurm has not looked at it yet",
    "Priority": "other jobs in Slurm's queue have a higher priority",
    "Resources": "Slurm has no nodes free for it now",
    "Dependency": "Slurm holds it back until jobs that it depends on have ended",
    "DependencyNeverSatisfied": "jobs that it depends on in Slurm did not end as required",
    "BeginTime": "its begin time in Slurm has not come",
    "JobHeldUser": "it is held in Slurm by the account that it was submitted as; scontrol release lets it go",
    "JobHeldAdmin": "it is held by an administrator of Slurm",
    "JobLaunchFailure": "Slurm could not start it on its nodes, and holds it",
    "Reservation": "it waits for a reservation in Slurm to begin",
    "ReservationDeleted": "its reservation in Slurm was removed",
    "PartitionDown": "the partition is down: an administrator of Slurm has to open it",
    "PartitionInactive": "the partition is inactive: an administrator of Slurm has to open it",
    "PartitionNodeLimit": "it needs more nodes than the partition gives to a job, or than are up there",
    "PartitionTimeLimit": "its time limit is above that of the partition",
    "PartitionConfig": "the partition does not take such jobs as it is set up",
    "NodeDown": "a node that it needs is down",
    "ReqNodeNotAvail,_Reserved_for_maintenance": "nodes that it needs are reserved for maintenance",
    "ReqNodeNotAvail,_May_be_reserved_for_other_job": "nodes that it needs may be reserved for another job",
    "Nodes_required_for_job_are_DOWN": "nodes that it needs are down, drained or reserved for jobs that go first",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "BadConstraints": "no node of the cluster is what it asks for",
    "Licenses": "licenses that it needs are taken",
    "Cleaning": "Slurm still cleans up after its last run",
    "Prolog": "the prolog of its nodes still runs",
    "NodesFailed": "nodes failed while Slurm started it",
    "FrontEndDown": "no front end of the cluster is up",
    "InvalidAccount": "its account in Slurm is not valid",
    "InvalidQOS": "its quality of service (QOS) in Slurm is not valid",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its quality of service (QOS) may not be used in the partition",
    "AssociationJobLimit": "its account runs as many jobs as it may",
    "AssocMaxJobsLimit": "its account runs as many jobs as it may",
    "AssociationResourceLimit": "its account uses as much of the cluster as it may",
    "AssociationTimeLimit": "its account has used up its time",
    "QOSJobLimit": "its quality of service (QOS) runs as many jobs as it may",
    "QOSResourceLimit": "its quality of service (QOS) uses as much of the cluster as it may",
    "QOSTimeLimit": "its quality of service (QOS) has used up its time",
    "JobArrayTaskLimit": "as many tasks of its array run as may",
    "TimeLimit": "its time limit in Slurm is reached",
    "SystemFailure": "Slurm itself, its files or its network failed",
    "RaisedSignal:53(Real-time_signal_19)": "Slurm could not start it: the folder for its output cannot be written",
    "RaisedSignal": "its last run in Slurm was ended by a signal",
    "NonZeroExitCode": "its last run in Slurm ended with an exit code other than 0",
    "OutOfMemory": "its last run in Slurm used more memory than it was given",
    "InactiveLimit": "it reached Slurm's limit for jobs that do nothing",
    "DeadLine": "its deadline in Slurm cannot be met any more",
    "SchedDefer": "Slurm starts nothing at once, and looks at it in its next round",
    "JobHoldMaxRequeue": "Slurm has put it back too often, and holds it",
    "BurstBufferResources": "the burst buffer has no room for it now",
    "BurstBufferStageIn": "its data is being brought into the burst buffer",
    "BurstBufferOperation": "what the burst buffer was to do for it has failed",
    "ReservationInvalid": "its reservation in Slurm is not one that it may use",
    "AccountingPolicy": "what Slurm's accounting allows does not let it start now",
    "FedJobLock": "another cluster of Slurm's federation is deciding about it",
    "MaxMemPerLimit": "it asks for more memory on a node or processor than may be had",
    "Constraints": "no nodes that are up now are what it asks for",
    "MaxPoweredUpNodes": "as many nodes are powered up as may be",
    "MpiPortsBusy": "the ports that Slurm keeps for MPI are taken",
    "NvidiaImexChannels": "the channels that it needs between the GPUs of several nodes (IMEX) are taken",
    "launch_failed_requeued_held": "Slurm could not start it on its nodes, put it back, and holds it",
    "job_requeued_in_held_state": "it was put back into Slurm's queue, and is held there",
    "job_requeued_in_special_exit_state": "it was put back and held by Slurm, as its exit code says",
}
"""Explanations of the reasons that ``squeue`` prints for waiting jobs.

Reasons of several words have underscores between them, as ``scontrol`` prints them; ``squeue`` prints blanks.
"""

_LIMITS = {
    r"Assoc\w+": "its account",
    r"QOS\w+": "its quality of service (QOS)",
    r"Max\w+PerAccount": "its account",
    r"Max\w+PerUser": "its user",
}
"""Patterns of the names of limits, with the owner of such a limit."""

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
    "REQUEUED": ("lost", "Slurm put it back into its queue"),
}
"""The final states of a job in Slurm: how its allocation has ended, and an explanation."""

UNDECIDED = ("", "None", "SchedDefer")
"""The reasons of jobs that Slurm has not considered yet: they may start at any moment."""


def word_of(text: str) -> str:
    """Return Slurm's own word at the start of a reason or a state, for people to look up.

    Examples
    --------
    >>> word_of("ReqNodeNotAvail, UnavailableNodes:n[3-4]"), word_of("job requeued in held state")
    ('ReqNodeNotAvail', 'job_requeued_in_held_state')
    """
    return _joined(text).partition(",")[0]


def _joined(text: str) -> str:
    return re.sub(r"\s+", "_", text.strip().strip("()"))


def why_waiting(reason: str) -> str:
    """Return an explanation of why a job waits in Slurm.

    Parameters
    ----------
    reason : str
        As ``squeue`` prints it.

    Examples
    --------
    >>> why_waiting("Priority")
    "other jobs in Slurm's queue have a higher priority"
    >>> why_waiting("QOSMaxNodePerUserLimit")
    'its quality of service (QOS) has a limit that is reached (QOSMaxNodePerUserLimit)'
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
            return f"{whose} has a limit that is reached ({word})"
    return f"Slurm gives the reason {word}" if word else WAITING["None"]


def how_ended(state: str) -> tuple[AllocationEnd, str] | None:
    """Return how a job ended in Slurm, with an explanation; None if its state is not final.

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
    """Return how a job in state FAILED ended, by the output of its script; None if that is unclear.

    A job has the state OUT_OF_MEMORY only if the script itself used too much, not if a process started by srun did.

    Examples
    --------
    >>> end_from_output("srun: error: n1: task 0: Out Of Memory")
    ('memory', 'it used more memory than Slurm gave it')
    """
    return ENDED["OUT_OF_MEMORY"] if _MEMORY.search(printed) else None
