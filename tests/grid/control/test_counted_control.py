"""Full control over sites that count cores, memory and GPUs."""

from __future__ import annotations

from typing import Any

from gridweave.grid.kernels.resources import counted_grid
from gridweave.grid.messages import FromSite, GridJobSubmitted, ReportRefused, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Job
from gridweave.site.messages import Ended, ReserveNodes, SiteChanged, Started
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk, NodeKind

KINDS = ((NodeKind(name="gpu", count=2, cores=4, gpus=2),), ())


def test_a_queue_that_counts_whole_nodes_refuses_jobs_that_ask_for_parts_of_nodes() -> None:
    core = MetaCore([4, 4], GridPolicy(mode="sharing"))
    job = Job(job_id=1, width=2, estimate_ms=100, chunk=Chunk(cores=2))
    (refused,) = core.handle(0, GridJobSubmitted(job))
    assert isinstance(refused, ReportRefused)
    assert 'write control = "limited"' in refused.reason
    assert core.quote(0, job).reason == refused.reason


def test_a_queue_that_counts_whole_nodes_takes_jobs_that_ask_for_whole_nodes() -> None:
    core = MetaCore([4, 4], GridPolicy(mode="sharing"))
    (asked,) = core.handle(0, GridJobSubmitted(Job(job_id=1, width=2, estimate_ms=100, chunk=WHOLE_NODE)))
    assert not isinstance(asked, ReportRefused)


def counting_core(**policy: Any) -> MetaCore:
    """Return the core of a grid with a site of 2 nodes with 4 cores each, and a site of 1 whole node."""
    counted = counted_grid([2, 1], KINDS, ["best-fit", "best-fit"])
    return MetaCore([2, 1], GridPolicy(**{"mode": "sharing"} | policy), counted=counted)


def job_of(job_id: int, width: int, chunk: Chunk) -> GridJobSubmitted:
    return GridJobSubmitted(Job(job_id=job_id, width=width, estimate_ms=100, chunk=chunk))


def requests(commands: list[Any]) -> list[tuple[int, int, int]]:
    """Return the site, job and width of each request for nodes."""
    asked = [c for c in commands if isinstance(c, ToSite) and isinstance(c.request, ReserveNodes)]
    return [(c.site, c.request.job_id, c.request.width) for c in asked]


def test_jobs_wait_until_the_own_users_leave_what_they_need() -> None:
    core = counting_core()
    core.handle(0, FromSite(0, SiteChanged(1, 1, held=((1, (3, 0, 1)),))))
    assert requests(core.handle(1, job_of(1, 6, Chunk(cores=1)))) == []
    forecast = core.forecast(1, 1)
    assert forecast is not None
    assert (forecast.start_ms, forecast.sites[0].free, forecast.sites[0].nodes) == (None, 5, 8)
    assert requests(core.handle(2, FromSite(0, SiteChanged(0, 2, held=())))) == [(0, 1, 6)]


def test_the_queue_follows_the_nodes_that_a_site_has_chosen() -> None:
    core = counting_core()
    core.handle(0, job_of(1, 3, Chunk(cores=1)))
    core.handle(1, FromSite(0, Started(1, 1, 0, ((1, 2), (1, 2), (1, 2)))))
    core.handle(2, job_of(2, 1, Chunk(cores=4)))
    core.handle(3, FromSite(0, Started(2, 1, 2, ((0, 1),))))
    core.handle(4, job_of(3, 1, Chunk(cores=4)))
    assert core.forecast(4, 3).start_ms == 100
    commands = core.handle(5, FromSite(0, Ended(1, 1, 5, "finished")))
    assert requests(commands) == [(0, 3, 1)]


def test_a_job_that_fits_no_site_is_refused_with_the_number_of_chunks_that_fit() -> None:
    (refused,) = counting_core().handle(0, job_of(1, 5, Chunk(cores=1, gpus=1)))
    assert isinstance(refused, ReportRefused)
    assert "the largest site has room for 4" in refused.reason


def test_a_queue_that_reserves_starts_says_why_it_counts_whole_nodes() -> None:
    (refused,) = counting_core(backfill="conservative").handle(0, job_of(1, 1, Chunk(cores=1)))
    assert isinstance(refused, ReportRefused)
    assert "it reserves starts (backfill conservative)" in refused.reason
