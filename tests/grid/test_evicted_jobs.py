"""Jobs of the grid that sites evict: how often is remembered, told to the next site, and explained."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gridweave.grid.messages import FromLiveSite, GridJobCancelled, GridJobHeld, GridJobSubmitted, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.site.explain import Forecast, with_site_answer
from gridweave.site.job import Job, JobRequest, Program
from gridweave.site.messages import (
    Ended,
    EnqueueJob,
    JobAction,
    LeaseEnded,
    Quoted,
    RequestQuote,
    Reserved,
    ReserveNodes,
    SiteChanged,
    Started,
    UserSubmitted,
)
from support.stepping import do, meta, said, submitted

WHY = "job 7 of level 'high' takes nodes of level 'low'"
CONTROLS = ["full", "limited", "none"]


def grid(control: str, *nodes: int, **options: Any) -> MetaCore:
    """Return a meta-scheduler that splits nothing, unless said otherwise."""
    return meta(*nodes, **{"mode": "sharing", "control": control, **options})


def asked(core: MetaCore, now_ms: int, *events: Any) -> list[tuple[int, ReserveNodes | EnqueueJob]]:
    """Return what sites are asked to run after events; they offer what they are asked about at once."""
    found = []
    commands = do(core, now_ms, *events)
    while commands:
        requests = [(c.site, c.request) for c in commands if isinstance(c, ToSite)]
        found += [(site, r) for site, r in requests if isinstance(r, ReserveNodes | EnqueueJob)]
        quotes = [
            (site, Quoted(r.quote_id, 4, now_ms if r.width <= 4 else None))
            for site, r in requests
            if isinstance(r, RequestQuote)
        ]
        commands = do(core, now_ms, *(each for site, quote in quotes for each in said(site, quote))) if quotes else []
    return found


def evictions_of(request: ReserveNodes | EnqueueJob) -> int:
    """Return how often the site is told that the job has been evicted."""
    return request.evictions if isinstance(request, ReserveNodes) else request.job.evictions


def evicted(core: MetaCore, now_ms: int, site: int, attempt: int) -> list[tuple[int, ReserveNodes | EnqueueJob]]:
    """Return what sites are asked for after one has started job 1 and evicted it."""
    asked(core, now_ms, *said(site, Started(1, attempt, now_ms)))
    return asked(core, now_ms + 5, *said(site, Ended(1, attempt, now_ms + 5, "lost", WHY)))


def attempt_of(request: ReserveNodes | EnqueueJob) -> int:
    """Return the number of the attempt."""
    return request.attempt


@pytest.mark.parametrize("control", CONTROLS)
def test_each_site_is_told_how_often_a_job_was_evicted_at_all(control: str) -> None:
    """The count goes on from site to site, also over a restart of the grid; a site that fails counts for nothing."""
    core = grid(control, 4, 4)
    ((site, request),) = asked(core, 0, submitted(1, 3))
    for times in (1, 2):
        ((site, request),) = evicted(core, 10 * times, site, attempt_of(request))
        assert evictions_of(request) == times
        state = msgspec.json.decode(msgspec.json.encode(core.state()), type=core.state_type)
        core = grid(control, 4, 4)
        core.restore(state)
    asked(core, 40, *said(site, Started(1, attempt_of(request), 40)))
    ((site, request),) = asked(core, 45, *said(site, Ended(1, attempt_of(request), 45, "lost")))
    assert evictions_of(request) == 2


@pytest.mark.parametrize("control", CONTROLS)
def test_a_job_that_was_held_meanwhile_brings_its_evictions_back(control: str) -> None:
    """Who holds an evicted job and releases it later does not have it begin again at no eviction."""
    core = grid(control, 4)
    ((site, request),) = asked(core, 0, submitted(1, 3))
    asked(core, 10, *said(site, Started(1, attempt_of(request), 10)))
    asked(core, 11, GridJobHeld(1))
    assert asked(core, 15, *said(site, Ended(1, attempt_of(request), 15, "lost", WHY))) == []
    again = GridJobSubmitted(Job(job_id=1, width=3, estimate_ms=100), attempt=attempt_of(request))
    ((site, request),) = asked(core, 20, again)
    assert evictions_of(request) == 1


@pytest.mark.parametrize("control", ["full", "limited"])
def test_a_job_on_several_sites_is_evicted_once_an_attempt(control: str) -> None:
    """Whether one of its sites or both give its nodes to others, that is one eviction, also before it has started."""
    core = grid(control, 4, 4, mode="multi-site", margin_ms=50)
    both = asked(core, 0, submitted(1, 6))
    assert [site for site, _ in both] == [0, 1]
    number = attempt_of(both[0][1])
    asked(core, 5, *said(0, Reserved(1, number)))
    given = [*said(0, LeaseEnded(1, number, WHY)), *said(1, LeaseEnded(1, number, WHY))]
    again = asked(core, 6, *given) or asked(core, 2_000)
    assert [evictions_of(request) for _, request in again] == [1, 1]


@pytest.mark.parametrize("control", CONTROLS)
def test_what_is_over_is_forgotten(control: str) -> None:
    """Of a job that has ended, or is cancelled, no evictions are kept."""
    core = grid(control, 4)
    ((site, request),) = asked(core, 0, submitted(1, 3))
    ((site, request),) = evicted(core, 10, site, attempt_of(request))
    assert list(core.state().evicted) == [1]
    asked(core, 20, *said(site, Started(1, attempt_of(request), 20)), GridJobCancelled(1))
    asked(core, 25, *said(site, Ended(1, attempt_of(request), 25, "cancelled", WHY)))
    assert core.state().evicted == {}


@pytest.mark.parametrize("control", CONTROLS)
def test_a_job_that_waits_again_tells_of_its_evictions(control: str) -> None:
    """How often, when last, where, and for which job of which level."""
    core = grid(control, 4)
    ((site, request),) = asked(core, 0, submitted(1, 3))
    for now_ms in (10, 20_015):
        ((site, request),) = evicted(core, now_ms, site, attempt_of(request))
    told = core.forecast(30_020, 1)
    assert told is not None
    assert told.evicted == f"it was evicted 2 times, last 10 s ago, at site 0: {WHY}"
    assert told.reason.endswith(f"; {told.evicted}")


def test_the_site_at_which_it_waits_says_when_it_starts_and_the_grid_that_it_was_evicted() -> None:
    """What the site says takes the place of what the grid knows of its queue, and of nothing else."""
    grid = LiveGrid(GridSettings(sites=(("north", 4),), policy=GridPolicy(mode="sharing", control="none")))
    request = JobRequest(program=Program(argv=("true",)), nodes=3, limit_ms=1000)
    grid.handle(0, UserSubmitted("key", request))
    for now_ms, answer in ((5, Started(1, 1, 5)), (10, Ended(1, 1, 10, "lost", WHY))):
        grid.handle(now_ms, FromLiveSite(0, answer))
    known = grid.forecast(10_010, 1)
    assert known is not None
    reason = "it needs 3 nodes, and none is free"
    told = with_site_answer(known, "north", Forecast(job_id=1, now_ms=10_010, start_ms=60_000, reason=reason))
    assert told.start_ms == 60_000
    assert told.reason == f"it waits in the queue of north: {reason}; it was evicted 10 s ago at north: {WHY}"
    grid.handle(20_000, FromLiveSite(0, Started(1, 2, 20_000)))
    runs = grid.forecast(20_010, 1)
    assert runs is not None
    assert runs.evicted == ""


def test_of_a_job_that_is_cancelled_while_it_is_held_nothing_is_kept() -> None:
    """An evicted job that its user holds keeps its count, until he wants it no more."""
    grid = LiveGrid(GridSettings(sites=(("north", 4),), policy=GridPolicy(mode="sharing")))
    request = JobRequest(program=Program(argv=("true",)), nodes=3, limit_ms=1000)
    grid.handle(0, UserSubmitted("key", request))
    grid.handle(5, FromLiveSite(0, Started(1, 1, 5)))
    grid.handle(6, FromLiveSite(0, SiteChanged(4, 0)))
    grid.handle(10, FromLiveSite(0, Ended(1, 1, 10, "lost", WHY)))
    grid.handle(20, JobAction("hold", (1,)))
    assert grid.registry.records[1].state == "held"
    assert list(grid.core.state().evicted) == [1]
    grid.handle(30, JobAction("cancel", (1,)))
    assert grid.core.state().evicted == {}
