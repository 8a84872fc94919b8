"""What is forecast under full control is what happens, if every job takes as long as it may and no other comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import GridCase, grid_cases, grid_options
from faithful_sites import FaithfulSites
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.messages import GridJobSubmitted
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import JobData, Sends
from gridweave.netmodel.communication import PATTERNS, Communication
from gridweave.site.explain import Forecast
from gridweave.site.job import Job
from gridweave.site.state import dump_state
from net_builders import drawn_model

LATER_MS = 10**9


def policy_of(options: dict[str, Any]) -> GridPolicy:
    """Return the policy that options of the reference mean."""
    return GridPolicy(**options | {"max_fragments": tuple(options["max_fragments"] or ())})


def forecasts(sites: FaithfulSites, now_ms: int) -> dict[int, Forecast]:
    """Return the forecasts of all jobs that wait; nothing may have changed by them."""
    before = dump_state(sites.core)
    found = {
        job_id: sites.core.forecast(now_ms, job_id)
        for job_id in range(1, 20)
        if job_id not in sites.starts and sites.core.forecast(now_ms, job_id) is not None
    }
    plan = {forecast.job_id: said_start(forecast) for forecast in sites.core.planner(now_ms, 100)()}
    assert dump_state(sites.core) == before, "a forecast has changed the core"
    placed = {job_id for job_id, forecast in found.items() if forecast is not None and forecast.state == "waiting"}
    known = {job_id: said_start(found[job_id]) for job_id in placed if found[job_id].start_ms is not None}
    assert plan == known, "one play for all jobs says the same as one for each"
    return {job_id: forecast for job_id, forecast in found.items() if forecast is not None}


def check(sites: FaithfulSites, case: GridCase, data: st.DataObject, sends: dict[int, Sends]) -> None:
    """Hand all jobs in but the last, quote that, hand it in, and see whether all comes as it was said."""
    jobs = sorted(case.jobs, key=lambda job: (job.submit, job.id))
    for job in jobs[:-1]:
        for _ in sites.go_on(job.submit):
            pass
        sites.tell(max(job.submit, sites.now_ms), submission(job, case, sends))
    last = jobs[-1]
    for _ in sites.go_on(last.submit):
        pass
    now_ms = max(last.submit, sites.now_ms)
    sites.refusals = set()
    before = dump_state(sites.core)
    submitted = submission(last, case, sends)
    quoted = sites.core.quote(now_ms, submitted.job, submitted.sensitivity, submitted.sends)
    assert dump_state(sites.core) == before, "a quote has changed the core"
    sites.tell(now_ms, submitted)
    said = [(now_ms, forecasts(sites, now_ms))]
    said += [
        (instant_ms, forecasts(sites, instant_ms)) for instant_ms in sites.go_on(LATER_MS) if data.draw(st.booleans())
    ]
    if quoted.state != "refused":
        assert said_start(quoted) == sites.starts[last.id]
    for now_ms, found in said:
        for job_id, forecast in found.items():
            assert said_start(forecast) == sites.starts[job_id], (now_ms, job_id)


def said_start(forecast: Forecast) -> tuple[int | None, tuple[tuple[int, int], ...], int]:
    """Return a start as the faithful sites note it; a core without names calls its sites by their numbers."""
    fragments = tuple((int(name.removeprefix("site ")), nodes) for name, nodes in forecast.places)
    return forecast.start_ms, fragments, forecast.length_ms


def submission(job: Any, case: GridCase, sends: dict[int, Sends]) -> GridJobSubmitted:
    """Return the submission of a job of the reference."""
    inner = Job(job_id=job.id, width=job.width, estimate_ms=job.estimate, weight=job.weight, priority=job.priority)
    return GridJobSubmitted(inner, case.sensitivity[job.id], sends.get(job.id))


@pytest.mark.parametrize("backfill", ["easy", "none", "conservative"])
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_forecasts_come_true(backfill: str, data: st.DataObject) -> None:
    """In every mode, order and selection each job that waits starts when and where it was forecast, and quoted."""
    options = data.draw(
        grid_options(("sharing", "multi-site", "adaptive"), backfills=(backfill,), orders=("fcfs", "sjf", "wfit"))
    )
    case = data.draw(grid_cases(max_jobs=12))
    margin_ms = data.draw(st.sampled_from((0, 0, 3)))
    refusals = data.draw(st.lists(st.integers(0, 8), max_size=3))
    core = MetaCore(case.nodes, policy_of(options), rng=np.random.default_rng(7), margin_ms=margin_ms, retry_ms=5)
    check(FaithfulSites(core, refusals), case, data, {})


@pytest.mark.parametrize("backfill", ["easy", "none", "conservative"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_forecasts_come_true_over_links(backfill: str, data: st.DataObject) -> None:
    """So it is between links, by the length that these give each split, and with data that moves."""
    mode = data.draw(st.sampled_from(("multi-site", "adaptive")))
    staging = 0 if backfill == "conservative" else data.draw(st.integers(0, 2))
    case = data.draw(grid_cases(max_jobs=10, tick=1000))
    seed = data.draw(st.integers(0, 1000))
    model = drawn_model(np.random.default_rng(seed), len(case.nodes))
    network = GridNetwork(model, data.draw(st.booleans()), staging, 50)
    sends = {
        job.id: Sends(
            Communication(
                pattern=data.draw(st.sampled_from(tuple(PATTERNS))),
                fraction=data.draw(st.sampled_from((0.0, 0.3, 0.8))),
                message_bytes=200_000.0,
            ),
            JobData(input_bytes=data.draw(st.sampled_from((0, 10**6, 10**8))), input_site=len(case.nodes) - 1),
        )
        for job in case.jobs
    }
    policy = GridPolicy(mode=mode, backfill=backfill)
    core = MetaCore(case.nodes, policy, margin_ms=data.draw(st.sampled_from((0, 3))), retry_ms=5000, network=network)
    check(FaithfulSites(core), case, data, sends)
