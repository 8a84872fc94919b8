"""Structs for slurmrestd's answers, and their conversion to the structs of `parse.py`. Pure.

Versions of the interface differ: a number may be plain or an object that says whether it is set, and a state may be one
string or a list. Only this module parses these forms, and it does so without checking the version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gridweave.errors import InputError
from gridweave.slurm.cluster.nodes import NodeDetails, read_features
from gridweave.slurm.cluster.parse import Partition, QueuedInSlurm, partition_of

NO_PARTITION = (2000, 9000)
"""Error numbers for a missing partition, up to v0.0.38 and in Slurm 24.11; later versions report no error."""

REFUSED = 1007
"""Error number for a token that slurmctld rejects."""

UNCLEAR = -1
"""Slurm 22.05's error number both for a rejected token and for a slurmctld that does not answer."""

_FIRST = (
    "COMPLETING", "CONFIGURING", "POWER_UP_NODE", "REQUEUE_FED", "REQUEUE_HOLD", "REQUEUED", "RESIZING",
    "RESV_DEL_HOLD", "REVOKED", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED",
)  # fmt: skip
"""States that ``squeue`` shows instead of a job's other states."""


class _Number(msgspec.Struct):
    """A number as encoded since v0.0.40."""

    set: bool = False
    infinite: bool = False
    number: float = 0


_SlurmNumber = int | float | _Number | None


class RestProblem(msgspec.Struct):
    """An error reported by slurmrestd."""

    error: str = ""
    description: str = ""
    error_number: int = 0
    error_code: int = 0
    errno: int = 0

    @property
    def number(self) -> int:
        """Slurm's error number; the field that has it depends on the version."""
        return self.error_number or self.error_code or self.errno

    @property
    def words(self) -> str:
        """The description and the error message, joined in one line."""
        texts = dict.fromkeys(" ".join(text.split()) for text in (self.description, self.error) if text)
        return ": ".join(texts)


class _Release(msgspec.Struct):
    release: str = ""


class _Meta(msgspec.Struct):
    old: _Release | None = msgspec.field(default=None, name="Slurm")
    slurm: _Release | None = None


class Answer(msgspec.Struct):
    """The fields that every answer has."""

    errors: list[RestProblem] = []
    meta: _Meta | None = None

    @property
    def release(self) -> str:
        """Slurm's version; empty if not reported."""
        version = self.meta and (self.meta.slurm or self.meta.old)
        return version.release if version else ""

    @property
    def error_text(self) -> str:
        """All reported errors in one line."""
        return "; ".join(dict.fromkeys(error.words for error in self.errors if error.words)) or "no error message"


class NumberAnswer(Answer):
    """The answer to a job submission; `job_id` is 0 if the job was rejected."""

    job_id: int = 0


class InterfaceAnswer(Answer):
    """The OpenAPI document of slurmrestd, of which only the paths are used."""

    paths: dict[str, msgspec.Raw] = {}


class _Job(msgspec.Struct):
    job_id: int
    job_state: str | list[str] = ""
    name: str = ""
    partition: str = ""
    nodes: str | None = None
    user_name: str = ""
    user_id: _SlurmNumber = None
    node_count: _SlurmNumber = None
    start_time: _SlurmNumber = None
    end_time: _SlurmNumber = None
    state_reason: str = ""
    state_description: str = ""


class JobsAnswer(Answer):
    """All jobs in the cluster that the account may see."""

    jobs: list[_Job] = []


class _Node(msgspec.Struct):
    name: str = ""
    state: str | list[str] = ""
    state_flags: list[str] = []
    partitions: list[str] = []
    cpus: _SlurmNumber = None
    alloc_cpus: _SlurmNumber = None
    real_memory: _SlurmNumber = None
    alloc_memory: _SlurmNumber = None
    gres: str | None = None
    gres_used: str | None = None
    features: str | list[str] | None = None

    @property
    def words(self) -> list[str]:
        """The node's state, in one or more words, followed by its flags."""
        return [*_words(self.state), *self.state_flags]


class NodesAnswer(Answer):
    """All nodes in the cluster."""

    nodes: list[_Node] = []


class _Maximums(msgspec.Struct):
    time: _SlurmNumber = None


class _Partition(msgspec.Struct):
    name: str = ""
    max_time_limit: _SlurmNumber = None  # up to v0.0.38
    maximums: _Maximums | None = None  # since v0.0.39


class PartitionsAnswer(Answer):
    """The partitions with the requested name."""

    partitions: list[_Partition] = []


def partition_named(partitions: Sequence[_Partition], nodes: Iterable[_Node], name: str) -> Partition:
    """Return the partition with this name; raise InputError if it does not exist."""
    partition = next((candidate for candidate in partitions if candidate.name == name), None)
    if partition is None:
        raise InputError(f"partition {name!r} does not exist on this cluster")
    minutes = _number(partition.max_time_limit if partition.maximums is None else partition.maximums.time)
    its = [(1, node.words, node.name) for node in nodes if name in node.partitions]
    return partition_of(its, None if minutes is None else minutes * 60_000)


def details_of(nodes: Iterable[_Node], name: str) -> tuple[NodeDetails, ...]:
    """Convert the nodes of a partition to the form in which ``sinfo --Node`` would print them."""
    return tuple(
        NodeDetails(
            name=node.name,
            words=tuple(node.words or ["unknown"]),
            cpus=_number(node.cpus) or 0,
            used_cpus=_number(node.alloc_cpus) or 0,
            memory_mib=_number(node.real_memory) or 0,
            used_memory_mib=_number(node.alloc_memory) or 0,
            gres=node.gres or "",
            used_gres=node.gres_used or "",
            features=read_features(",".join(_words(node.features or ""))),
        )
        for node in nodes
        if name in node.partitions
    )


def queue_from(jobs: Iterable[_Job]) -> list[QueuedInSlurm]:
    """Convert jobs to the form in which ``squeue`` would print them."""
    return [
        QueuedInSlurm(
            partition=job.partition,
            names=job.nodes or "",
            number=str(job.job_id),
            state=_state_shown(_words(job.job_state)),
            start_ms=_instant_ms(job.start_time),
            end_ms=_instant_ms(job.end_time),
            nodes=_number(job.node_count) or 1,
            user=job.user_name or str(_number(job.user_id) or 0),
            reason=job.state_description or job.state_reason,
            name=job.name,
        )
        for job in jobs
    ]


def has_hidden_jobs(queue: Iterable[QueuedInSlurm], nodes: Iterable[_Node]) -> bool:
    """Whether jobs are hidden from the account: more nodes are allocated than the visible running jobs have."""
    seen = sum(job.nodes for job in queue if job.is_running)
    return sum(node.words[0].lower() in ("allocated", "mixed") for node in nodes if node.words) > seen


def _state_shown(words: Sequence[str]) -> str:
    return next((word for word in words if word in _FIRST), words[0] if words else "")


def _words(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value] if value else []


def _number(value: _SlurmNumber) -> int | None:
    """Convert a number from any version's form; None if it is unset, infinite or negative."""
    if isinstance(value, _Number):
        value = value.number if value.set and not value.infinite else None
    return int(value) if value is not None and value >= 0 else None


def _instant_ms(value: _SlurmNumber) -> int | None:
    seconds = _number(value)
    return seconds * 1000 if seconds else None
