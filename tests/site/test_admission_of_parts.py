"""Quotas of cores, memory and GPUs, and how jobs that ask for parts of nodes count in quotas of nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gridweave.errors import OptionError
from gridweave.site.admission import AdmissionQueue, group_set_of
from gridweave.site.job import JobRequest, Program
from gridweave.site.quotas import Quota, Quotas
from gridweave.site.resources.chunks import Chunk


def request_of(nodes: int, chunk: Chunk | msgspec.UnsetType = msgspec.UNSET) -> JobRequest:
    return JobRequest(program=Program(argv=("true",)), user="anna", nodes=nodes, limit_ms=3_600_000, chunk=chunk)


def test_cores_gpus_and_memory_of_admitted_jobs_are_limited_together() -> None:
    queue = AdmissionQueue()
    queue.quotas = Quotas(each_user=Quota(max_cores=16, max_gpus=2, max_memory="64GB"))
    small = group_set_of(request_of(2, Chunk(cores=4, memory_mb=16_000)))
    for job_id in (1, 2, 3):
        queue.stand(job_id, *small)
    assert queue.move(0) == [1, 2]
    assert [bound.words for bound in queue.bound(0, *small)] == [
        "user 'anna' uses 16 cores and may use 16 cores: 8 cores too many with this job"
    ]
    only_gpus = group_set_of(request_of(1, Chunk(cores=0, gpus=1)))
    assert queue.bound(0, *only_gpus) == []
    restored = AdmissionQueue()
    restored.restore(queue.state())
    restored.leave(*small, 0)
    assert restored.move(0) == [3]
    restored.check_invariants(0)


def test_memory_of_admitted_jobs_is_limited() -> None:
    queue = AdmissionQueue()
    queue.quotas = Quotas(users={"anna": Quota(max_memory="10GB")})
    asks = group_set_of(request_of(1, Chunk(memory_mb=6_000)))
    queue.stand(1, *asks)
    assert queue.move(0) == [1]
    (bound,) = queue.bound(0, *asks)
    assert bound.words == (
        "user 'anna' uses 6 GB of memory and may use 10 GB of memory: 2 GB of memory too many with this job"
    )


def test_a_job_of_whole_nodes_asks_for_no_parts() -> None:
    queue = AdmissionQueue()
    queue.quotas = Quotas(each_user=Quota(max_cores=0))
    asks = group_set_of(request_of(4))
    queue.stand(1, *asks)
    assert (queue.move(0), queue.refusal(request_of(4))) == ([1], None)
    assert msgspec.to_builtins(asks[1]) == {"nodes": 4, "node_s": 14_400, "at_once": 0}


@pytest.mark.parametrize(
    ("quota", "chunk", "problem"),
    [
        (Quota(max_cores=16), Chunk(cores=3), "it asks for 24 cores, 8 cores more than the quota of all jobs of user"),
        (Quota(max_gpus=7), Chunk(gpus=1), "it asks for 8 GPUs, 1 GPU more than"),
        (Quota(max_memory="8GB"), Chunk(memory_mb=2000), "it asks for 16 GB of memory, 8 GB of memory more than"),
        (Quota(nodes=4), Chunk(), "nodes is 8, 4 more than"),
        (Quota(nodes=4), Chunk(per_node=2), None),
        (Quota(running_nodes=3), Chunk(per_node=2), "nodes is 4, 1 more than"),
        (Quota(node_hours=4), Chunk(per_node=2), None),
        (Quota(node_hours=4), Chunk(), "it could use 8 node-hours"),
    ],
)
def test_a_job_that_alone_exceeds_a_quota_is_refused(quota: Quota, chunk: Chunk, problem: str | None) -> None:
    """In quotas of nodes, several chunks that share a node for certain count as one node."""
    queue = AdmissionQueue()
    queue.quotas = Quotas(each_user=quota)
    reason = queue.refusal(request_of(8, chunk))
    assert (reason is None) if problem is None else (reason or "").startswith(problem)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"max_cores": -1}, "max_cores: is -1; expected a whole number from 0"),
        ({"max_gpus": 10**13}, "max_gpus: is 10000000000000"),
        ({"max_memory": "12"}, "max_memory: '12' has no unit"),
        ({"max_memory": "-1GB"}, "max_memory: '-1GB' is not an amount of data"),
    ],
)
def test_impossible_quotas_of_parts_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError) as refused:
        Quota(**values)
    assert str(refused.value).startswith(problem)
