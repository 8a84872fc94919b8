"""Limited control of jobs that ask for chunks: the sites' quotes say how many fit."""

from __future__ import annotations

import pytest

from gridweave.grid.messages import FromSite, GridCommand, GridJobSubmitted, ReportRefused, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Job
from gridweave.site.messages import Answer, EnqueueJob, RequestQuote, ReserveNodes, ToGrid
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind
from gridweave.site.scheduler.contract import ContractCore

CPU = NodeKind(name="cpu", count=4, cores=16)
GPU = NodeKind(name="gpu", count=1, cores=8, gpus=4)
ONE_GPU = Chunk(cores=1, gpus=1)


class SmallGrid:
    """A meta-scheduler and its two sites, of 4 nodes with 16 cores and of 1 node with 4 GPUs, without delays."""

    def __init__(self, mode: str = "sharing", **policy: object) -> None:
        nodes = [CPU.count, GPU.count]
        self.core = MetaCore(nodes, GridPolicy(mode=mode, control="limited", **policy), names=["cpus", "gpus"])  # type: ignore[arg-type]
        self.sites = [ContractCore(kind.count, SitePolicy(kinds=(kind,))) for kind in (CPU, GPU)]

    def submit(self, now_ms: int, *jobs: Job) -> list[GridCommand]:
        """Submit jobs, and carry messages until none is left; return all commands except questions."""
        commands = self.core.handle(now_ms, *map(GridJobSubmitted, jobs))
        seen: list[GridCommand] = []
        while commands:
            seen += commands
            answers = [FromSite(c.site, a) for c in commands if isinstance(c, ToSite) for a in self._answers(now_ms, c)]
            commands = self.core.handle(now_ms, *answers) if answers else []
            self.core.check_invariants()
        return [c for c in seen if not (isinstance(c, ToSite) and isinstance(c.request, RequestQuote))]

    def _answers(self, now_ms: int, command: ToSite) -> list[Answer]:
        sent = self.sites[command.site].handle(now_ms, command.request)  # type: ignore[arg-type]
        return [out.answer for out in sent if isinstance(out, ToGrid)]

    def reason(self, now_ms: int, job_id: int) -> str:
        """Return everything that the grid says about a waiting job."""
        forecast = self.core.forecast(now_ms, job_id)
        assert forecast is not None
        return " | ".join([forecast.reason, *(f"{row.site}: {row.reason}" for row in forecast.sites)])


def job(job_id: int, width: int, chunk: Chunk, estimate_ms: int = 1000) -> Job:
    return Job(job_id=job_id, width=width, estimate_ms=estimate_ms, chunk=chunk)


def enqueued(commands: list[GridCommand]) -> list[tuple[int, int]]:
    """Return (job, site) of each delegation."""
    return [
        (command.request.job.job_id, command.site)
        for command in commands
        if isinstance(command, ToSite) and isinstance(command.request, EnqueueJob)
    ]


def fragments(commands: list[GridCommand]) -> list[tuple[int, int]]:
    """Return (site, chunks) of each fragment requested."""
    requests = [(c.site, c.request) for c in commands if isinstance(c, ToSite)]
    return [(site, request.width) for site, request in requests if isinstance(request, ReserveNodes)]


@pytest.mark.parametrize(
    ("width", "chunk", "site"), [(32, Chunk(cores=2), 0), (4, ONE_GPU, 1), (2, Chunk(labels=("gpu",)), 1)]
)
def test_a_job_with_more_chunks_than_nodes_goes_where_they_fit(width: int, chunk: Chunk, site: int) -> None:
    assert enqueued(SmallGrid().submit(0, job(1, width, chunk))) == [(1, site)]


@pytest.mark.parametrize(
    ("mode", "width", "reason"),
    [
        ("sharing", 5, "it needs 5 chunks, the largest site has room for 4, and mode sharing splits no job"),
        ("multi-site", 5, "it needs 5 chunks and all sites together have room for 4"),
    ],
)
def test_a_job_that_no_site_can_run_is_refused_in_chunks(mode: str, width: int, reason: str) -> None:
    commands = SmallGrid(mode).submit(0, job(1, width, ONE_GPU))
    refusals = [command.reason for command in commands if isinstance(command, ReportRefused)]
    assert len(refusals) == 1
    assert reason in refusals[0]
    assert " nodes" not in refusals[0]


@pytest.mark.parametrize("mode", ["multi-site", "adaptive"])
def test_a_job_is_split_in_chunks(mode: str) -> None:
    grid = SmallGrid(mode)
    assert fragments(grid.submit(0, job(1, 70, Chunk(cores=1)))) == [(0, 64), (1, 6)]
    assert all(site.part_state(1) is not None for site in grid.sites)


def test_parts_of_a_job_have_whole_units() -> None:
    pairs = Chunk(cores=4, per_node=2)
    assert fragments(SmallGrid("multi-site").submit(0, job(1, 10, pairs))) == [(0, 8), (1, 2)]


def test_a_burst_of_small_jobs_runs_side_by_side() -> None:
    """16 jobs with a quarter of a node each start at once, although the site has only 4 nodes."""
    grid = SmallGrid()
    jobs = [job(number, 1, Chunk(cores=4, labels=("cpu",))) for number in range(1, 17)]
    assert enqueued(grid.submit(0, *jobs)) == [(number, 0) for number in range(1, 17)]
    assert all(grid.sites[0].part_state(job.job_id) == "running" for job in jobs)


def test_a_burst_counts_chunks_that_were_promised_to_other_jobs() -> None:
    """Each job fills half of either site, so two go to each, whatever their chunks are."""
    grid = SmallGrid()
    sizes = [(4, 1), (1, 4), (2, 2), (4, 1)]
    halves = [job(number, width, Chunk(cores=cores)) for number, (width, cores) in enumerate(sizes, 1)]
    sites = [site for _, site in enqueued(grid.submit(0, *halves))]
    assert sites.count(1) == 2


def test_explain_names_the_resource_that_is_short_at_each_site() -> None:
    grid = SmallGrid()
    grid.submit(0, job(1, 3, ONE_GPU))
    grid.submit(0, job(2, 2, ONE_GPU))
    assert grid.reason(0, 2) == (
        "it waits in the queue of gpus | cpus: can never run it: a chunk needs 1 GPU and the largest node that suits "
        "has 0 | gpus: says: a start in 1 s, 1 of its 2 chunks fit now: it needs 2 GPUs, and on the nodes that "
        "suit it 1 of 4 is free; 3 more when job 1 ends, in 1 s"
    )
