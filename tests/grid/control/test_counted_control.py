"""Full control over sites that count cores, memory and GPUs."""

from __future__ import annotations

from gridweave.grid.messages import GridJobSubmitted, ReportRefused
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Job
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk


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
