"""A site that requests allocations for chunks, on a fake batch system with two kinds of nodes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gridweave.errors import OptionError
from gridweave.site.job import Job, JobRequest, Program
from gridweave.site.messages import BatchSnapshot, JobSubmitted, RequestStatus, StartJob
from gridweave.site.resources.chunks import Chunk, NodeKind
from gridweave.site.resources.groups import NodeGroup
from gridweave.site.scheduler.core import SiteCore
from gridweave.slurm.cluster.entry import SlurmTable, read_policy
from gridweave.slurm.policy import BatchPolicy, PilotRules
from gridweave.slurm.service.chunk_ranks import chunk_cores, place_in
from gridweave.slurm.system import AllocationRequest, check_request
from support.slurm import NODES, FakeBatch, KeptSite, kept_site

KINDS = (
    NodeKind(name="", count=4, cores=16, memory_mb=4000),
    NodeKind(name="", count=2, cores=8, memory_mb=8000, gpus=4, gpu_type="a100"),
)
GROUPS = (NodeGroup(0, 4, (16, 4000, 0), 0), NodeGroup(1, 2, (8, 8000, 4), 0))
SNAPSHOT = BatchSnapshot(6, None, ((0, 6),), kinds=KINDS, groups=GROUPS)


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[KeptSite]:
    """Yield a site of four nodes whose batch system has six."""
    batch = FakeBatch()
    batch.kinds, batch.groups = KINDS, GROUPS
    async with kept_site(tmp_path, batch=batch) as found:
        yield found


@pytest.mark.asyncio
async def test_a_job_starts_once_the_nodes_of_all_chunks_have_reported(site: KeptSite) -> None:
    """One rank for each chunk, numbered node by node; the node's number is that of its first chunk."""
    job = await site.submit(nodes=5, chunk=Chunk(cores=5))
    await site.round()
    (request,) = site.batch.requests
    assert (request.nodes, request.width, request.chunk) == (4, 5, Chunk(cores=5))
    name = request.name
    site.batch.change("1", state="running", reason="")
    for first, chunks in ((0, 3), (4, 1)):
        await site.hub.hello(site.shared.key(name), name, first, "1", "host", "", chunks)
    await site.round()
    assert site.record(job).state == "waiting"
    assert await site.hub.hello(site.shared.key(name), name, 3, "1", "host", "", 3) is None, "more chunks than the job"
    await site.hub.hello(site.shared.key(name), name, 3, "1", "host", "", 1)
    await site.round()
    assert site.record(job).state == "starting"
    tasks = site.driver.site.runs._runs[job].node_tasks
    assert {machine: [rank.rank for rank in task.launch.ranks] for machine, task in tasks.items()} == {
        "n0": [0, 1, 2],
        "n1": [3],
        "n2": [4],
    }
    assert site.driver.site.runs.unfinished(job) == [("n0", 1, 0), ("n1", 1, 3), ("n2", 1, 4)]


@pytest.mark.asyncio
async def test_jobs_that_share_a_machine_get_their_own_orders(site: KeptSite) -> None:
    """More jobs than the site has nodes run at a time; each node hears only of its own job."""
    jobs = []
    for _ in range(NODES + 2):
        jobs.append(await site.submit(chunk=Chunk()))
        await site.round()
        await site.starts(jobs[-1])
    assert [site.record(job).state for job in jobs] == ["running"] * len(jobs)
    site.driver.site.core.check_invariants()
    assert site.driver.site.core.site.free == NODES - 1
    names = [request.name for request in site.batch.requests]
    acting = site.hub._acting
    assert len(acting) == len(names) > len({machine for machine, _ in acting})
    assert set(acting.values()) == {(name, 0) for name in names}


@pytest.mark.asyncio
async def test_jobs_count_as_the_part_of_a_node_that_they_need(site: KeptSite) -> None:
    """The site may have four nodes' worth of the six: three whole nodes and two halves of nodes leave nothing."""
    jobs = [
        await site.submit(nodes=3),
        await site.submit(chunk=Chunk(cores=8)),
        await site.submit(chunk=Chunk(cores=8)),
    ]
    late = await site.submit(chunk=Chunk())
    await site.round()
    assert len(site.batch.requests) == len(jobs)
    assert site.why(late) == "nodes are requested for the jobs ahead of it, and for no more jobs at one time"


@pytest.mark.asyncio
async def test_a_quote_counts_what_is_free_now(site: KeptSite) -> None:
    """A chunk that fits now could start now; one that needs more waits for the ends of other jobs, at the latest."""
    now_ms = site.driver.clock.now_ms()
    site.batch.groups = (
        NodeGroup(0, 4, (2, 4000, 0), now_ms + 600_000),
        NodeGroup(1, 2, (8, 8000, 1), now_ms + 60_000),
    )
    await site.round()

    def quoted(width: int, chunk: Chunk) -> tuple[int | None, str]:
        program = Program(argv=("true",))
        request = JobRequest(program=program, nodes=width, limit_ms=60_000, user="anna", chunk=chunk)
        forecast = site.driver.site.quote(now_ms := site.driver.clock.now_ms(), request)
        start_ms = forecast.start_ms
        return None if start_ms is None else round((start_ms - now_ms) / 60_000), forecast.reason

    assert quoted(2, Chunk(gpus=1)) == (
        0,
        "2 such chunks fit now, and it could start at once if the batch system agrees",
    )
    in_a_minute, reason = quoted(3, Chunk(gpus=1))
    assert in_a_minute == 1
    assert reason == "2 of its 3 chunks fit now; the batch system decides when the others do, and promises nothing"
    assert quoted(6, Chunk(cores=16))[1] == "it needs 6 chunks, and the 4 largest nodes that the site may have hold 4"


def test_jobs_accepted_before_the_nodes_were_known_are_refused() -> None:
    """The first report of the batch system says that a chunk fits nowhere."""
    core = SiteCore(4, BatchPolicy())
    assert core.handle(0, JobSubmitted(Job(job_id=1, width=1, estimate_ms=1000, chunk=Chunk(cores=64)))) == []
    (refused,) = core.handle(1, SNAPSHOT)
    assert refused.reason == "a chunk needs 64 cores and the largest node that suits has 16"


def test_whole_nodes_are_numbered_as_without_chunks() -> None:
    """A site may go on with a journal in which no job has chunks."""
    states = []
    for policy in (BatchPolicy(), BatchPolicy(chunks=False)):
        core, commands = SiteCore(4, policy), []
        for job_id in (1, 2, 3):
            job = Job(job_id=job_id, width=1 + job_id % 2, estimate_ms=1000)
            core.handle(job_id, JobSubmitted(job))
            ready = (RequestStatus(job_id, job_id, "ready"),)
            commands += core.handle(job_id, BatchSnapshot(6, None, ((0, 6),), ready))
            core.check_invariants()
        states.append(commands)
    assert states[0] == states[1]
    assert [type(command) for command in states[0]] == [StartJob, StartJob]


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (BatchPolicy(chunks=False), "the site gives out whole nodes, and the job asks for parts of nodes"),
        (
            BatchPolicy(pilots=PilotRules()),
            "the site requests whole nodes in pilots, and the job asks for parts of nodes or for labels",
        ),
    ],
)
def test_a_site_without_chunks_refuses_them(policy: BatchPolicy, reason: str) -> None:
    core = SiteCore(4, policy)
    assert core.why_never(Job(job_id=1, width=1, estimate_ms=1000, chunk=Chunk())) == reason


def test_chunks_are_on_by_default() -> None:
    table = SlurmTable(partition="main", folder="/x")
    assert table.settings.chunks
    assert read_policy(4, {"slurm": table}, {}).chunks
    off = SlurmTable(partition="main", folder="/x", chunks=False)
    assert not off.settings.chunks
    assert not read_policy(4, {"slurm": off}, {}).chunks


def test_a_request_needs_chunks() -> None:
    request = AllocationRequest(name="x", nodes=1, length_ms=1, script="", chunk=Chunk())
    with pytest.raises(OptionError, match="width: is 0 of allocation x; at least 1 chunk"):
        check_request(request)


@pytest.mark.parametrize("layout", ["", "2(x0)", "a", "2(x3", "0"])
def test_a_layout_of_another_form_is_an_error(layout: str) -> None:
    with pytest.raises(ValueError, match="is not a number of chunks for each node"):
        place_in(layout, 0)


def test_ranks_are_bound_only_to_cores_that_the_job_has(tmp_path: Path) -> None:
    """If the job may use more hardware threads than Slurm has given it, these may belong to other jobs."""
    allowed = sorted(os.sched_getaffinity(0))
    for number in allowed:
        (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
    bound = {"SLURM_CPUS_ON_NODE": str(len(allowed))}
    cores = chunk_cores(len(allowed), bound, tmp_path)
    assert cores == (*(((number,),) for number in allowed), tuple((number,) for number in allowed))
    assert chunk_cores(1, {"SLURM_CPUS_ON_NODE": str(len(allowed) + 1)}, tmp_path) == ()
    assert chunk_cores(1, {}, tmp_path) == ()
