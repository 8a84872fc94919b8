"""What a live site says of the jobs in its queue, its own users' and the grid's, and of those that might come."""

from __future__ import annotations

from typing import Any

import pytest

from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.explain import Forecast
from gridweave.site.job import DescribeJob, Job, JobRequest, Program
from gridweave.site.messages import EnqueueJob, JobAction, Machine, ReserveNodes, UserSubmitted
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import OWN_IDS, LiveSite
from gridweave.site.state import dump_state
from gridweave.site.users.owner import OwnerPolicy

FIRST, SECOND, THIRD = OWN_IDS + 1, OWN_IDS + 2, OWN_IDS + 3
MINUTE_MS = 60_000
POLICIES = (SitePolicy(), SitePolicy(backfill="conservative"), SitePolicy(discipline="planning"), SharedNodes())


def request(nodes: int, minutes: int) -> JobRequest:
    """Return what a user asks for."""
    return JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=minutes * MINUTE_MS)


def site(*jobs: tuple[int, int], policy: Any = None, **more: Any) -> LiveSite:
    """Return a site of four nodes to which own users have handed in jobs, given as nodes and minutes."""
    agents = (Machine(name="m0", nodes=4),)
    core = LiveSite(SiteSettings(name="north", number=0, policy=policy or SitePolicy(), machines=agents, **more))
    for number, (nodes, minutes) in enumerate(jobs):
        core.handle(0, UserSubmitted(f"key {number}", request(nodes, minutes)))
    return core


def told(core: LiveSite, job_id: int, now_ms: int = 0) -> Forecast:
    """Return the forecast of a job; nothing may have changed by it."""
    before = dump_state(core)
    forecast = core.forecast(now_ms, job_id)
    assert dump_state(core) == before, "a forecast has changed the site"
    assert forecast is not None
    return forecast


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.label)
def test_the_head_hears_its_start_and_nothing_changes(policy: Any) -> None:
    """Under every discipline: when it starts, and for which jobs; a quote stands behind it; neither leaves a trace."""
    core = site((3, 10), (4, 20), policy=policy)
    forecast = told(core, SECOND, MINUTE_MS)
    assert (forecast.state, forecast.start_ms, forecast.ahead) == ("waiting", 10 * MINUTE_MS, 0)
    assert (forecast.places, forecast.length_ms) == ((("north", 4),), 20 * MINUTE_MS)
    (there,) = forecast.sites
    assert (there.site, there.nodes, there.free, there.start_ms) == ("north", 4, 1, 10 * MINUTE_MS)
    assert (there.ahead, there.waits_for, there.reason) == (0, (FIRST,), forecast.reason)
    before = dump_state(core)
    quote = core.quote(MINUTE_MS, request(2, 30))
    assert (quote.job_id, quote.start_ms, quote.ahead) == (None, 30 * MINUTE_MS, 1)
    assert quote.reason == "it needs 2 nodes, 1 of 4 nodes is free, and 1 job waits"
    assert core.quote(MINUTE_MS, request(5, 1)).state == "refused"
    assert core.quote(MINUTE_MS, request(0, 1)).reason == "nodes is 0; expected a whole number from 1 to 10000000"
    assert dump_state(core) == before, "a quote has changed the site"


def test_jobs_that_do_not_wait() -> None:
    """What is being started, is held by its user, or is not known is said so."""
    core = site((3, 10), (4, 20))
    core.handle(1, JobAction("hold", (SECOND,)))
    assert (told(core, FIRST, 1).state, told(core, FIRST, 1).start_ms) == ("starting", 0)
    assert (told(core, SECOND, 1).state, told(core, SECOND, 1).reason) == ("held", "is held by its user")
    assert core.forecast(1, 77) is None


def test_a_job_behind_the_head_hears_what_it_would_delay() -> None:
    """It says for how long it would run, and when the head is to start, as people write times."""
    forecast = told(site((3, 10), (4, 20), (1, 30)), THIRD)
    assert (forecast.start_ms, forecast.ahead) == (None, 1)
    assert forecast.reason == (
        f"it would run for 30 min, and job {SECOND} at the head is to start in 10 min; it needs 1 node "
        "and only 0 can be spared after that"
    )


def test_jobs_of_the_grid() -> None:
    """One that waits in the queue, one that the owner's share keeps out of it, and one whose nodes are held."""
    core = site((3, 10), owner=OwnerPolicy(grid_share=0.5))
    for job_id, width in ((1, 2), (2, 2)):
        described = DescribeJob(job_id, 1, request(width, 5), 5 * MINUTE_MS, 0, width, ("north",))
        core.handle(1, described, EnqueueJob(Job(job_id=job_id, width=width, estimate_ms=5 * MINUTE_MS), 1, 10**9))
    inside, outside = told(core, 1, 1), told(core, 2, 1)
    assert (inside.state, inside.start_ms, inside.length_ms) == ("waiting", 10 * MINUTE_MS, 5 * MINUTE_MS)
    assert (outside.start_ms, outside.ahead) == (None, 0)
    assert outside.reason == "the grid's share is 2 nodes, and its jobs use or wait for 4"
    assert core.quote(1, request(1, 1), for_grid=True).start_ms is None
    assert core.quote(1, request(1, 1)).start_ms == 1
    core = site()
    described = DescribeJob(1, 1, request(2, 5), 5 * MINUTE_MS, 0, 2, ("north", "south"))
    core.handle(0, described, ReserveNodes(1, 1, 2, 5 * MINUTE_MS, 500))
    held = told(core, 1)
    assert (held.state, held.start_ms) == ("starting", 500)
    assert held.reason == "its nodes are reserved until the agreed start"
