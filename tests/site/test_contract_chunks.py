"""The site contract at a site that counts cores, memory and GPUs: shares, quotes and fragments in chunks."""

from __future__ import annotations

import msgspec
import pytest

from gridweave.site.job import Job
from gridweave.site.messages import (
    Answer,
    CommitNodes,
    EnqueueJob,
    JobFinished,
    JobSubmitted,
    Quoted,
    Refused,
    RequestQuote,
    Reserved,
    ReserveNodes,
    Started,
    StartJob,
    ToGrid,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind
from gridweave.site.scheduler.contract import ContractCore, ContractEvent
from gridweave.site.users.owner import OwnerPolicy

GPU = NodeKind(name="gpu", count=2, cores=8, gpus=4)
ONE_GPU = Chunk(cores=1, gpus=1)
ONE_CORE = Chunk(cores=1)


def site(grid_share: float = 1.0, **policy: object) -> ContractCore:
    return ContractCore(2, SitePolicy(kinds=(GPU,), **policy), owner=OwnerPolicy(grid_share=grid_share))  # type: ignore[arg-type]


def job(job_id: int, width: int, chunk: Chunk = ONE_GPU, estimate_ms: int = 100) -> Job:
    return Job(job_id=job_id, width=width, estimate_ms=estimate_ms, chunk=chunk)


def answers(core: ContractCore, now_ms: int, *events: ContractEvent) -> list[Answer]:
    """Return the answers to the grid, without the nodes in them."""
    commands = core.handle(now_ms, *events)
    core.check_invariants()
    sent = [command.answer for command in commands if isinstance(command, ToGrid)]
    return [
        msgspec.structs.replace(answer, nodes=msgspec.UNSET) if isinstance(answer, Reserved | Started) else answer
        for answer in sent
    ]


def enqueued(core: ContractCore, now_ms: int, asked: Job) -> list[Answer]:
    return answers(core, now_ms, EnqueueJob(asked, 1, 10**9))


def quote(core: ContractCore, now_ms: int, asked: Job) -> Quoted:
    request = RequestQuote(1, asked.width, asked.estimate_ms, job=asked)
    quotes = [answer for answer in answers(core, now_ms, request) if isinstance(answer, Quoted)]
    assert len(quotes) == 1
    return quotes[0]


def test_a_delegated_job_may_have_more_chunks_than_the_site_has_nodes() -> None:
    core = site()
    assert Started(1, 1, 0) in enqueued(core, 0, job(1, 8))


def test_the_share_limits_the_grid_by_the_scarcest_resource() -> None:
    core = site(grid_share=0.5)
    assert Started(1, 1, 0) in enqueued(core, 0, job(1, 3))
    # 2 more GPUs would be 5 of 8, so the job waits although they are free; a job with 5 is refused.
    assert not any(isinstance(answer, Started) for answer in enqueued(core, 1, job(2, 2)))
    refusals = [answer for answer in enqueued(core, 2, job(3, 5)) if isinstance(answer, Refused)]
    assert refusals[0].reason == ("the grid's share is 1 nodes, and its jobs use or wait for 2; this job counts as 2")
    assert Started(2, 1, 3) in answers(core, 3, JobFinished(1))


def test_small_jobs_count_together_and_not_as_a_node_each() -> None:
    core = site(grid_share=0.5)
    for number in range(1, 9):
        assert Started(number, 1, 0) in enqueued(core, 0, job(number, 1, ONE_CORE)), number
    assert not any(isinstance(answer, Started) for answer in enqueued(core, 0, job(9, 1, ONE_CORE)))


def test_jobs_that_need_different_resources_can_use_a_whole_share_together() -> None:
    core = site()
    assert Started(1, 1, 0) in enqueued(core, 0, job(1, 8))
    assert Started(2, 1, 0) in enqueued(core, 0, job(2, 8, ONE_CORE))


def test_a_whole_share_with_a_restored_state_counts_the_same() -> None:
    core = site(grid_share=0.5)
    enqueued(core, 0, job(1, 3))
    enqueued(core, 1, job(2, 2))
    again = site(grid_share=0.5)
    again.restore(core.state())
    again.check_invariants()
    assert Started(2, 1, 3) in answers(again, 3, JobFinished(1))


@pytest.mark.parametrize("discipline", ["queue", "planning"])
def test_a_quote_counts_the_chunks_that_fit_now_and_on_the_idle_site(discipline: str) -> None:
    core = site(discipline=discipline)
    enqueued(core, 0, job(1, 6))
    now = quote(core, 0, job(2, 2))
    assert (now.free, now.start_ms, now.nodes, now.most) == (2, 0, 2, 8)
    later = quote(core, 0, job(2, 4))
    assert (later.free, later.start_ms, later.most) == (2, 100, 8)
    if discipline == "queue":
        assert later.reason == (
            "it needs 4 GPUs, and on the nodes that suit it 2 of 8 are free; 6 more when job 1 ends, in 100 ms"
        )
    assert quote(core, 0, job(2, 12)).cause == "never"
    assert quote(core, 0, job(2, 12)).takes_parts


def test_a_quote_respects_the_share() -> None:
    core = site(grid_share=0.5)
    answers(core, 0, JobSubmitted(job(7, 1)))
    assert quote(core, 0, job(2, 2)).most == quote(core, 0, job(2, 2)).free == 4
    enqueued(core, 0, job(1, 1))
    assert quote(core, 0, job(2, 2)).free == 3
    paired = Chunk(cores=1, gpus=1, per_node=2)
    assert quote(core, 0, job(2, 2, paired)).free == 2


def test_a_fragment_reserves_chunks_until_the_agreed_start() -> None:
    core = site()
    asked = ReserveNodes(1, 1, 6, 100, 50, job(1, 14))
    assert answers(core, 0, asked) == [Reserved(1, 1)]
    assert quote(core, 0, job(2, 2)).free == 2
    assert answers(core, 10, CommitNodes(1, 1)) == []
    starts = [command for command in core.handle(50) if isinstance(command, StartJob)]
    assert starts == [StartJob(1, ((0, 1), (0, 1), (0, 1), (0, 2), (1, 2)))]
    refused = answers(core, 50, ReserveNodes(2, 1, 3, 100, 60, job(2, 14)))
    assert refused == [Refused(2, 1, "it needs 3 chunks now; 2 fit, and others may go first")]
