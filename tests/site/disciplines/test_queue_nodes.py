"""A queue that counts resources refuses impossible jobs, and says which resource is short and until when."""

from __future__ import annotations

import msgspec
import pytest

from gridweave.errors import OptionError
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import Job
from gridweave.site.messages import Command, JobFinished, JobSubmitted, RefuseJob, StartJob
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk, NodeKind
from gridweave.site.scheduler.core import SiteCore

KINDS = (
    NodeKind(name="cpu", count=2, cores=8, memory_mb=64_000, labels=("disk",)),
    NodeKind(name="gpu", count=2, cores=16, memory_mb=128_000, gpus=4, gpu_type="a100"),
)
MINUTE_MS = 60_000


def site(**options: object) -> SiteCore:
    return SiteCore(4, SitePolicy(kinds=KINDS, **options))  # type: ignore[arg-type]


def job(job_id: int, width: int = 1, minutes: int = 10, **chunk: object) -> Job:
    asked = Chunk(**chunk) if chunk else msgspec.UNSET  # type: ignore[arg-type]
    return Job(job_id=job_id, width=width, estimate_ms=minutes * MINUTE_MS, chunk=asked)


def submit(core: SiteCore, *jobs: Job, now_ms: int = 0) -> list[Command]:
    return core.handle(now_ms, *map(JobSubmitted, jobs))


def test_a_start_lists_a_node_once_for_each_chunk() -> None:
    assert submit(site(), job(1, width=5, cores=3)) == [StartJob(1, ((0, 1), (0, 2), (1, 3)))]


def test_jobs_share_a_node_and_give_back_what_they_held() -> None:
    core = site()
    submit(core, job(1, cores=1, gpus=3), job(2, cores=1, gpus=1), job(3, cores=4))
    assert core.free == 2
    core.handle(1, JobFinished(1))
    assert submit(core, job(4, cores=1, gpus=3), now_ms=2) == [StartJob(4, ((2, 3),))]
    core.check_invariants()


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (job(1, gpus=8), "a chunk needs 8 GPUs and the largest node that suits has 4"),
        (
            job(1, gpus=8, cores=32),
            "a chunk needs 32 cores and the largest node that suits has 16; a chunk needs 8 GPUs",
        ),
        (job(1, gpus=1, gpu_type="h100"), "no node has GPUs of type 'h100'; one of a100"),
        (job(1, labels=("ssd",)), "no node has the label 'ssd'; one of cpu, disk, gpu"),
        (job(1, gpus=1, gpu_type="a100", labels=("disk",)), "no node has all of disk, GPUs of type a100"),
        (job(1, others=(("fpga", 1),)), "no node has 'fpga'"),
        (job(1, width=20, cores=8, gpus=1), "it needs 20 chunks and 4 fit on the idle site"),
        (
            job(1, width=4, cores=8, per_node=4),
            "4 chunks on one node need 32 cores and the largest node that suits has 16",
        ),
        (job(1, width=5), "it needs 5 nodes and the site has 4"),
    ],
)
def test_an_impossible_job_is_refused_with_the_resource_and_the_largest_node(asked: Job, reason: str) -> None:
    (refused,) = submit(site(), asked)
    assert isinstance(refused, RefuseJob)
    assert refused.reason.startswith(reason)


def test_a_site_with_a_number_of_nodes_refuses_parts_of_nodes() -> None:
    core = SiteCore(4, SitePolicy())
    (refused,) = submit(core, job(1, cores=2))
    assert isinstance(refused, RefuseJob)
    assert "gives out whole nodes" in refused.reason
    whole = Job(job_id=2, width=2, estimate_ms=1, chunk=WHOLE_NODE)
    assert submit(core, whole) == [StartJob(2, ((0, 2),))]


def test_impossible_kinds_are_refused_all_at_once() -> None:
    kinds = (NodeKind(name="a", count=0), NodeKind(name="b", count=1, cores=0, memory_mb=0))
    with pytest.raises(OptionError, match=r"kinds: 'a': count is 0;.*'b': cores is 0;.*'b': memory_mb is 0;"):
        SitePolicy(kinds=kinds)


def test_explain_names_the_short_resource_and_the_job_that_gives_enough() -> None:
    core = site()
    submit(core, job(17, width=6, cores=1, gpus=1), job(18, minutes=30, cores=1, gpus=1), job(19, width=4, gpus=1))
    reason = core.explain(0, 19)
    assert reason.reason == (
        "it is first in the queue; it needs 4 GPUs, and on the nodes that suit it 1 of 8 is free; "
        "6 more when job 17 ends, in 10 min"
    )
    assert reason.start_ms == 10 * MINUTE_MS
    submit(core, job(20, width=2, minutes=5, gpus=1), now_ms=1)
    assert core.explain(1, 20).reason.startswith(
        "it needs 2 GPUs, and on the nodes that suit it 1 of 8 is free; 6 more"
    )


def test_explain_names_missing_room_if_no_resource_is_short_in_total() -> None:
    core = site(placement="worst-fit")
    submit(core, job(1, width=2, cores=9), job(2, cores=8, labels=("gpu",)))
    assert (
        "it needs 1 chunk of 8 cores, and on the nodes that suit it 0 of 4 are free; 4 more when"
        in core.explain(0, 2).reason
    )


def test_explain_counts_nodes_without_other_jobs_for_whole_nodes() -> None:
    core = site()
    submit(core, job(1, width=3, cores=1), job(2, width=4))
    assert "it needs 4 nodes, and on the nodes that suit it 3 of 4 are free; 1 more when job 1 ends" in (
        core.explain(0, 2).reason
    )


def test_quotes_for_chunks_and_whole_nodes() -> None:
    core = site()
    submit(core, job(1, width=2, minutes=20, cores=1, gpus=4), job(2, width=4, minutes=60))
    quoted = core.copy()
    run = quoted.expected_run(0, job(3, width=2, minutes=5, cores=8))
    assert run is not None
    assert run.start_ms == 0
    assert [quoted.startable(0, minutes * MINUTE_MS) for minutes in (20, 21)] == [2, 0]
    assert quoted.earliest_start_ms(0, 1, 21 * MINUTE_MS) == 80 * MINUTE_MS
    assert quoted.nodes_ready(0) == [(0, 2), (20 * MINUTE_MS, 2)]


def test_levels_evict_only_the_jobs_whose_resources_are_needed() -> None:
    levels = (Level(name="high", priority=1, evicts=("low",)), Level(name="low", priority=0))
    core = SiteCore(4, LevelsPolicy(levels=levels, under=SitePolicy(kinds=KINDS)))
    submit(core, job(1, width=8, gpus=1), job(2, width=8, cores=1))
    urgent = msgspec.structs.replace(job(3, gpus=1), priority=1.0)
    commands = submit(core, urgent, now_ms=1)
    assert [(type(command).__name__, command.job_id) for command in commands] == [("EvictJob", 1), ("StartJob", 3)]  # type: ignore[union-attr]
    core.check_invariants()
