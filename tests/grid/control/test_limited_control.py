"""MetaCore under limited control: it asks for quotes, delegates to the sites' queues, and splits."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.grid.control.limited import LEASE_MS
from gridweave.grid.messages import (
    FromSite,
    GridJobCancelled,
    GridJobSubmitted,
    ReportDone,
    ReportRefused,
    SiteCutOff,
    ToSite,
)
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.world.connections import Network
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.job import Job, JobForm
from gridweave.site.messages import (
    Answer,
    CancelJob,
    CommitNodes,
    Ended,
    Enqueued,
    EnqueueJob,
    LeaseEnded,
    Quoted,
    Refused,
    ReleaseNodes,
    RenewLeases,
    RequestQuote,
    Reserved,
    ReserveNodes,
    SiteChanged,
    Started,
    WithdrawJob,
    Withdrawn,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.users.owner import OwnerPolicy
from reference.model import Job as PlainJob
from support.builders import GridCase, grid_cases, to_workload
from support.stepping import RETRY_MS, delegated, do, enqueue, limited_meta, offered, said, submitted


def test_all_sites_are_asked_and_waited_for() -> None:
    """A job is offered to every site, even one that is too small, and goes nowhere before all have answered."""
    core = limited_meta(8, 2)
    asked = do(core, 0, submitted(1, 3))
    assert asked == [ToSite(s, RequestQuote(s + 1, 3, 100, job_id=1)) for s in (0, 1)]
    assert do(core, 5, *said(0, Quoted(1, 8, 5))) == []
    assert do(core, 7, *said(1, Quoted(2, 2, None, "2 nodes"))) == [ToSite(0, enqueue(1, 3, 2, 7))]
    assert do(core, 9, *said(0, Enqueued(1, 2), Started(1, 2, 9))) == []
    assert do(core, 60, *said(0, Ended(1, 2, 60, "limit"))) == [ReportDone(1, "limit")]


def test_a_burst_is_spread_over_the_sites() -> None:
    """Quotes of one instant promise the same nodes to all jobs; what was sent since then counts."""
    core = limited_meta(4, 3)
    asked = do(core, 0, *(submitted(job_id, 1) for job_id in range(1, 43)))
    commands = do(core, 0, *offered(asked, (4, 0), (3, 0)))
    sent = [command.site for command in commands if isinstance(command.request, EnqueueJob)]
    assert sorted(sent[:7]) == [0] * 4 + [1] * 3, "the free nodes first"
    assert (sent.count(0), sent.count(1)) == (24, 18)
    twin = limited_meta(4, 3)
    twin.restore(core.state())
    assert do(twin, 1, submitted(99, 1)) == do(core, 1, submitted(99, 1))


def wide(**options: Any) -> tuple[MetaCore, list[Any]]:
    """Return a grid of 8 and 4 nodes that a job of 12 has waited in for long, and what the sites are asked then."""
    core = limited_meta(8, 4, mode="adaptive", reserve_after_s=5.0, **options)
    asked = do(core, 0, submitted(1, 12))
    assert do(core, 0, *offered(asked, (7, None), (4, None))) == []
    for now_ms in range(1_000, 5_000, 1_000):
        assert do(core, now_ms, *offered(do(core, now_ms), (7, None), (4, None))) == []
    return core, do(core, 5_000, *offered(do(core, 5_000), (7, None), (4, None)))


def retried(core: MetaCore, now_ms: int) -> list[Any]:
    """Return what is commanded when the sites are asked again, and have no free nodes."""
    return do(core, now_ms, *offered(do(core, now_ms), (0, None), (0, None)))


def test_sites_reserve_ahead_for_a_job_that_is_wider_than_any() -> None:
    """After a bounded wait each keeps for it what it gets; when all have their nodes the start is agreed on."""
    core, asked = wide(margin_ms=50)
    number = asked[0].request.attempt
    until_ms = 5_000 + LEASE_MS
    parts = [ReserveNodes(1, number, width, 100, until_ms, ahead=True) for width in (8, 4)]
    assert asked == [ToSite(0, parts[0]), ToSite(1, parts[1])]
    assert do(core, 6_000, *said(1, Reserved(1, number))) == []
    forecast = core.forecast(6_000, 1)
    assert forecast is not None
    assert (forecast.state, forecast.start_ms) == ("waiting", None)
    assert forecast.reason.startswith("reserved ahead on site 1 (4); it is next in the queue of site 0, which keeps")
    assert do(core, 5_000 + LEASE_MS // 3) == [ToSite(s, RenewLeases(until_ms + LEASE_MS // 3)) for s in (0, 1)]
    now_ms = 5_000 + LEASE_MS // 3
    agreed = CommitNodes(1, number, start_ms=now_ms + 50)
    assert do(core, now_ms, *said(0, Reserved(1, number))) == [ToSite(0, agreed), ToSite(1, agreed)]


def test_the_bound_of_a_wide_job_is_named() -> None:
    """And when it is reached."""
    core = limited_meta(8, 4, mode="adaptive", reserve_after_s=5.0)
    do(core, 0, *offered(do(core, 0, submitted(1, 12)), (7, None), (4, None)))
    forecast = core.forecast(1_000, 1)
    assert forecast is not None
    assert forecast.reason == (
        "it is wider than every site, and several do not have its nodes free at one time; they are asked again now; "
        "when it has waited for 5 s, in 4 s, they reserve nodes ahead for it"
    )


@pytest.mark.parametrize(
    ("offers", "places", "start_ms", "reason"),
    [
        ([(0, 500), (0, 400)], (("site 1", 4),), 400, "it would wait in the queue of site 1"),
        ([(4, 10), (0, 400)], (("site 0", 4),), 10, "it would start at once on site 0"),
        ([(3, 500), (1, 400)], (("site 0", 3), ("site 1", 1)), 10, "it would be split over site 0 (3) and site 1 (1)"),
        ([(0, None), (0, None)], (), None, "the sites would be asked for quotes"),
    ],
)
def test_a_quote_names_the_place_that_the_grid_would_choose(
    offers: list[tuple[int, int | None]], places: tuple[tuple[str, int], ...], start_ms: int | None, reason: str
) -> None:
    """A start at once, a split, or the queue in which it would wait; and nothing changes by that."""
    core = limited_meta(8, 4, mode="adaptive")
    before = core.state()
    quoted = {site: Quoted(0, *offer) for site, offer in enumerate(offers)}
    found = core.quoter(10, submitted(1, 4), offers=quoted)()
    assert (found.places, found.start_ms) == (places, start_ms)
    assert found.reason.startswith(reason)
    assert core.state() == before


def test_a_quote_names_the_job_beside_which_the_grid_would_start_it() -> None:
    """Where that ends first the quote says how much longer it takes there."""
    quoted = Quoted(0, 0, 900, slowdown=1.5, beside=(7,))
    found = limited_meta(8).quoter(0, submitted(1, 4), offers={0: quoted})()
    assert (found.start_ms, found.length_ms) == (0, 150)
    assert found.reason == "on site 0 it would start now on nodes shared with job 7, and take 1.50 times as long"


def test_nodes_are_reserved_ahead_for_one_job_at_a_time() -> None:
    """Of two each could have what the other waits for; the next has its turn when the first has started."""
    core, asked = wide()
    number = asked[0].request.attempt
    do(core, 5_000, *offered(do(core, 5_000, submitted(2, 12)), (0, None), (0, None)))
    quotes = offered(do(core, 11_000), (0, None), (0, None))
    assert do(core, 11_000, *quotes) == []
    commits = do(core, 12_000, *said(0, Reserved(1, number)), *said(1, Reserved(1, number)))
    assert sum(isinstance(command.request, CommitNodes) for command in commits) == 2
    parts = [c.request for c in do(core, 12_000, *offered(commits, (0, None), (0, None)))]
    assert [(part.job_id, part.ahead) for part in parts if isinstance(part, ReserveNodes)] == [(2, True), (2, True)]


@pytest.mark.parametrize("answer", [Refused(1, 3, "the site is being drained"), LeaseEnded(1, 3)])
def test_what_was_reserved_ahead_is_released_when_a_site_gives_up(answer: Refused | LeaseEnded) -> None:
    """No node stays reserved; the job waits, and is thought of again."""
    core, asked = wide()
    number = asked[0].request.attempt
    lost = msgspec.structs.replace(answer, attempt=number)
    assert do(core, 6_000, *said(1, Reserved(1, number)), *said(0, lost)) == [ToSite(1, ReleaseNodes(1, number))]
    assert [type(command.request) for command in do(core, 7_000)] == [RequestQuote, RequestQuote]


def test_a_quote_counts_for_what_is_asked_later() -> None:
    """A job that comes when the others have been sent is told of them by the sites themselves."""
    core = limited_meta(4, 3)
    for now_ms in (0, 10):
        asked = do(core, now_ms, submitted(now_ms + 1, 3))
        assert [command.site for command in do(core, now_ms, *offered(asked, (4, now_ms), (0, 99)))] == [0]


@pytest.mark.parametrize(
    ("selection", "site"), [("best-fit", 1), ("biggest-free", 2), ("equal-util", 0), ("earliest-end", 0)]
)
def test_the_selection_decides_among_starts_now(selection: str, site: int) -> None:
    """Of the sites that would start a job now, the selection takes one by the nodes that they have quoted."""
    core = limited_meta(8, 8, 16, 32, selection=selection)
    asked = do(core, 0, submitted(1, 3))
    commands = do(core, 0, *offered(asked, (6, 0), (3, 0), (9, 0), (32, 1)))
    assert commands == [ToSite(site, enqueue(1, 3, 2, 0))]


def test_random_is_drawn_once_for_a_job() -> None:
    """The selection random takes number floor(u k) of the k sites that would start the job now."""
    core = limited_meta(*[4] * 5, selection="random")
    draws = np.random.default_rng(1).random(8)
    for job_id, draw in enumerate(draws.tolist(), start=1):
        asked = do(core, job_id, submitted(job_id, 2))
        (command,) = do(core, job_id, *offered(asked, (4, job_id), (4, job_id), (0, 99), (4, job_id), (4, job_id)))
        assert command.site == [0, 1, 3, 4][int(draw * 4)]


@pytest.mark.parametrize(
    ("offers", "site"),
    [
        (((2, 90), (3, 50), (3, 70)), 1),
        (((3, 50), (1, 50), (2, 50)), 1),
        (((2, 50), (2, 50), (2, 50)), 0),
        (((3, None), (0, 10**9), (3, None)), 1),
    ],
)
def test_without_a_start_now_the_earliest_counts(offers: tuple[tuple[int, int | None], ...], site: int) -> None:
    """A job that must wait does so where it starts first; then where the fewest nodes are free; then in site order."""
    core = limited_meta(4, 4, 4)
    asked = do(core, 0, submitted(1, 4))
    assert do(core, 0, *offered(asked, *offers)) == [ToSite(site, enqueue(1, 4, 2, 0))]


@pytest.mark.parametrize("before", [0, 1])
def test_questions_for_a_job_that_has_left_are_forgotten(before: int) -> None:
    """A site may never answer: it is cut off. An answer that does arrive later has no effect."""
    core = limited_meta(4, 4)
    asked = do(core, 0, submitted(1, 2))
    answers = offered(asked, (0, 90), (0, 95))
    do(core, 0, *answers[:before])
    assert do(core, 1, GridJobCancelled(1)) == [ReportDone(1, "cancelled")]
    assert core.state().control.asked == {}
    do(core, 2, SiteCutOff(1, "no contact"))
    assert do(core, 3, *answers[before:]) == []


def test_a_quote_of_a_site_that_was_not_asked_has_no_effect() -> None:
    core = limited_meta(4, 4)
    first, second = offered(do(core, 0, submitted(1, 2)), (0, 90), (0, 95))
    assert do(core, 0, FromSite(1, first.answer)) == []
    core.check_invariants()
    do(core, 0, first)
    assert do(core, 0, second) == [ToSite(0, enqueue(1, 2, 2, 0))]


def test_a_job_that_can_never_run_is_refused() -> None:
    """A job that the idle grid could not place is refused at once, with the reason, and no site is asked."""
    (refusal,) = do(limited_meta(4, 4), 0, submitted(1, 5))
    assert isinstance(refusal, ReportRefused)
    assert "mode sharing splits no job" in refusal.reason


def test_a_job_is_taken_in_once() -> None:
    """A submission that comes twice is one job."""
    core = limited_meta(4)
    assert len(do(core, 0, submitted(1, 4), submitted(1, 4))) == 1
    assert do(core, 1, submitted(1, 4)) == []


def test_a_split_takes_the_quoted_nodes() -> None:
    """A job that no site can take alone is split over the quoted nodes, held everywhere, and committed."""
    core = limited_meta(4, 4, 4, margin_ms=40, mode="multi-site", overhead=0.5)
    asked = do(core, 0, submitted(1, 6))
    assert do(core, 10, *offered(asked, (2, None), (4, None), (3, None))) == [
        ToSite(1, ReserveNodes(1, 2, 4, 150, 50)),
        ToSite(2, ReserveNodes(1, 2, 2, 150, 50)),
    ]
    assert do(core, 20, *said(1, Reserved(1, 2))) == []
    assert do(core, 21, *said(2, Reserved(1, 2))) == [ToSite(1, CommitNodes(1, 2)), ToSite(2, CommitNodes(1, 2))]
    assert do(core, 60, *said(1, Started(1, 2, 50)), *said(2, Started(1, 2, 50))) == []
    assert do(core, 201, *said(1, Ended(1, 2, 200, "finished"))) == []
    assert do(core, 202, *said(2, Ended(1, 2, 200, "finished"))) == [ReportDone(1, "finished")]


@pytest.mark.parametrize(
    ("mode", "overhead", "splits"),
    [("adaptive", 0.9, True), ("adaptive", 1.0, False), ("multi-site", 1.0, True), ("sharing", 0.0, False)],
)
def test_adaptive_splits_only_if_that_ends_sooner(mode: str, overhead: float, splits: bool) -> None:
    """A wait of 100 and a run of 100 ends at 200: under adaptive a split must end before that, others never ask."""
    core = limited_meta(4, 4, mode=mode, overhead=overhead)
    asked = do(core, 0, submitted(1, 4))
    commands = do(core, 0, *offered(asked, (2, 300), (2, 100)))
    if splits:
        assert [(c.site, c.request.width) for c in commands] == [(0, 2), (1, 2)]
    else:
        assert commands == [ToSite(1, enqueue(1, 4, 2, 0))]


def with_pilots(commands: list[Any], *offers: tuple[int, int | None, int, int | None]) -> list[FromSite]:
    """Answer requests for quotes: of each site free nodes, earliest start, nodes to come, and when."""
    sites = [(c.site, c.request.quote_id) for c in commands if isinstance(c.request, RequestQuote)]
    return [
        answer
        for site, quote_id in sites
        for free, start_ms, coming, coming_ms in [offers[site]]
        for answer in said(site, Quoted(quote_id, free, start_ms, coming=coming, coming_ms=coming_ms))
    ]


@pytest.mark.parametrize(("alone_ms", "waits"), [(440, False), (441, True)])
def test_waiting_for_the_last_pilot_is_weighed_against_one_site(alone_ms: int, waits: bool) -> None:
    """What the job gains on all its nodes must be more than what the first nodes stand idle for it."""
    core = limited_meta(8, 4, mode="adaptive")
    asked = do(core, 0, submitted(1, 6, 100))
    # On both sites five nodes are there and the sixth comes at 240, so it ends at 340: 5 x 240 node-ms for 6 x 200.
    told = do(core, 0, *with_pilots(asked, (3, alone_ms, 0, None), (2, None, 1, 240)))
    assert bool(told) != waits
    forecaster = core.forecaster(0, 1)
    assert forecaster is not None
    reason = forecaster().reason
    if not waits:
        assert told == [ToSite(0, enqueue(1, 6, 2, 0))]
        assert "pilot" not in reason
        return
    cost = "split over site 0 (3) and site 1 (3): 100 ms instead of 100 ms (factor 1.00)"
    assert reason.startswith(f"it waits to be {cost}; the last nodes are expected in")
    assert "idle for 1 node-seconds, and it ends 201 ms sooner than on one site" in reason
    # What they have cost already counts as well, so that a pilot which is put off again and again is given up: 5 x 1240
    # node-ms for 6 x 460, where 5 x 240 would be less.
    (sent,) = do(core, RETRY_MS, *with_pilots(do(core, RETRY_MS), (3, 1700, 0, None), (2, None, 1, 1240)))
    assert sent.site == 0
    assert isinstance(sent.request, EnqueueJob)


def test_a_start_now_on_one_site_goes_before_a_split() -> None:
    """A job that one site would start at once is not split, whatever the mode."""
    core = limited_meta(4, 8, mode="multi-site")
    asked = do(core, 0, submitted(1, 4))
    assert do(core, 0, *offered(asked, (4, 0), (3, 50))) == [ToSite(0, enqueue(1, 4, 2, 0))]


def test_a_refused_split_is_released_and_thought_of_again() -> None:
    """When one site refuses its part the others are released, and all are asked again when one has changed."""
    core = limited_meta(4, 4, mode="multi-site")
    asked = do(core, 0, submitted(1, 6))
    do(core, 0, *offered(asked, (4, None), (4, None)))
    assert do(core, 1, *said(1, Refused(1, 2, "own users were first"))) == [ToSite(0, ReleaseNodes(1, 2))]
    assert do(core, 2, *said(0, LeaseEnded(1, 2))) == [], "what the grid gave back itself is no news"
    again = do(core, 3, *said(1, SiteChanged(0, 4)))
    assert [(c.site, c.request.width) for c in again] == [(0, 6), (1, 6)]
    assert [c.request.attempt for c in do(core, 3, *offered(again, (4, None), (4, None)))] == [4, 4]


def bring_to(core: MetaCore, state: str) -> list[ToSite]:
    """Bring job 1, on sites of 4, 4, 6 and 6 nodes, into a state; return what is to be sent when it is cancelled."""
    asked = do(core, 0, submitted(1, 6))
    if state == "asking":
        return []
    alone: list[tuple[int, int | None]] = [(0, None), (0, None), (0, 500), (0, 900)]
    offers = {"backlog": [(0, None)] * 4, "split": [(4, None), (4, None), (0, None), (0, None)]}.get(state, alone)
    commands = do(core, 0, *offered(asked, *offers))
    if state == "withdrawing":
        asked = do(core, 1, *said(3, SiteChanged(0, 6)))
        assert do(core, 1, *offered(asked, None, None, None, (6, 1))) == [ToSite(2, WithdrawJob(1, 2))]
    if state == "running":
        do(core, 1, *said(2, Started(1, 2, 1)))
    return [ToSite(command.site, CancelJob(1, 2)) for command in commands]


@pytest.mark.parametrize("state", ["asking", "backlog", "waiting", "withdrawing", "running", "split"])
def test_a_cancelled_job_ends_wherever_it_stands(state: str) -> None:
    """A job that is cancelled while it is asked for, waits, moves, is held or runs ends there, and is reported once."""
    core = limited_meta(4, 4, 6, 6, mode="multi-site")
    ends = bring_to(core, state)
    commands = do(core, 5, GridJobCancelled(1), GridJobCancelled(1))
    if not ends:
        assert commands == [ReportDone(1, "cancelled")]
    else:
        assert commands == ends
        over: Answer = Ended(1, 2, 6, "cancelled") if state == "running" else Withdrawn(1, 2)
        answers = [FromSite(c.site, LeaseEnded(1, 2) if state == "split" else over) for c in ends]
        assert do(core, 6, *answers) == [ReportDone(1, "cancelled")]
    assert do(core, 7, GridJobCancelled(1)) == []


@pytest.mark.parametrize("answer", [Ended(1, 2, 2, "lost"), Refused(1, 2, "full"), Withdrawn(1, 2)])
def test_a_cancelled_job_is_not_begun_anew(answer: Answer) -> None:
    """A job that its user has cancelled is not delegated again though it was lost, refused or given back."""
    core = limited_meta(4, 4)
    delegated(core, 1, 3)
    assert do(core, 1, GridJobCancelled(1)) == [ToSite(0, CancelJob(1, 2))]
    assert do(core, 2, *said(0, answer)) == [ReportDone(1, "cancelled")]


def test_a_cancelled_job_that_ends_by_itself_has_finished() -> None:
    """When the end of a job crosses its cancellation the end is what is reported."""
    core = limited_meta(4)
    delegated(core, 1, 3)
    do(core, 1, *said(0, Started(1, 2, 1)))
    assert do(core, 50, GridJobCancelled(1)) == [ToSite(0, CancelJob(1, 2))]
    assert do(core, 51, *said(0, Ended(1, 2, 50, "finished"))) == [ReportDone(1, "finished")]


@pytest.mark.parametrize("split", [False, True])
def test_a_lost_job_is_delegated_anew(split: bool) -> None:
    """A job whose site failed is asked for everywhere under new numbers, and the old ones count no more."""
    core = limited_meta(4, 4, mode="multi-site")
    asked = do(core, 0, submitted(1, 6 if split else 3))
    do(core, 0, *offered(asked, *([(4, None)] * 2 if split else [(4, 0), (4, 0)])))
    if split:
        do(core, 0, *said(0, Reserved(1, 2)), *said(1, Reserved(1, 2)))
        assert do(core, 9, *said(0, Ended(1, 2, 9, "lost"))) == [ToSite(1, CancelJob(1, 2))]
        asked = do(core, 10, *said(1, Ended(1, 2, 10, "cancelled")))
    else:
        do(core, 1, *said(0, Started(1, 2, 0)))
        asked = do(core, 10, *said(0, Ended(1, 2, 10, "lost")))
    assert [c.site for c in asked] == [0, 1]
    assert do(core, 11, *said(0, Ended(1, 2, 11, "finished"))) == []
    anew = do(core, 12, *offered(asked, *([(4, None)] * 2 if split else [(0, 99), (4, 12)])))
    numbers = [c.request.attempt for c in anew]
    assert numbers == ([4, 4] if split else [4])


@settings(max_examples=60, deadline=None)
@given(grid_cases(max_sites=1, for_one_site=True))
def test_one_site_is_its_own_queue(case: GridCase) -> None:
    """With one site, no own users and no latency, limited control is FCFS with EASY backfilling, job by job."""
    jobs = to_workload(case.jobs)
    policy = GridPolicy(mode="sharing", control="limited")
    result = simulate_world(jobs, case.nodes, policy, check=True)
    assert result.start_ms.tolist() == simulate(jobs, case.nodes[0]).start_ms.tolist()


@settings(max_examples=60, deadline=None)
@given(grid_cases(max_jobs=12))
def test_every_job_runs_whatever_the_network(case: GridCase) -> None:
    """With slow, lossy and repeating messages, and splits, every job that can run does so once, and no lease lapses."""
    jobs = to_workload(case.jobs)
    network = Network(latency_ms=3, jitter_ms=4, loss=0.2, duplicate=0.1)
    policy = GridPolicy(mode="adaptive", control="limited", overhead=0.3)
    result = simulate_world(jobs, case.nodes, policy, network=network, rng=np.random.default_rng(1), check=True)
    assert [job_id for job_id, _ in result.refused] == []
    assert (result.end_ms > result.start_ms).all()
    assert (result.start_ms >= jobs.submit_ms).all()


@settings(max_examples=40, deadline=None)
@given(grid_cases(for_one_site=True))
def test_without_jobs_of_the_grid_the_sites_are_alone(case: GridCase) -> None:
    """Jobs that users hand to their own sites run as if there were no grid, job by job."""
    jobs = to_workload([job for job in case.jobs if job.width <= case.nodes[case.home[job.id]]])
    home = np.array([case.home[job_id] for job_id in jobs.job_id.tolist()], np.int64)
    policy = GridPolicy(mode="sharing", control="limited")
    result = simulate_world(jobs, case.nodes, policy, home=home, to_grid=np.zeros(len(jobs), np.bool_), check=True)
    for site, nodes in enumerate(case.nodes):
        rows = np.flatnonzero(home == site)
        alone = simulate(jobs.take(rows), nodes)
        assert result.start_ms[rows].tolist() == alone.start_ms.tolist()


def test_a_moved_job_starts_where_room_is() -> None:
    """Job 3 waits for the end of job 1, the first by estimate, until job 2 ends early; then it moves to that site."""
    jobs = to_workload([PlainJob(1, 0, 4, 100, 100), PlainJob(2, 1, 4, 200, 49), PlainJob(3, 2, 4, 10, 10)])
    result = simulate_world(jobs, [4, 4], GridPolicy(mode="sharing", control="limited"), check=True)
    assert result.start_ms.tolist() == [0, 1, 50]
    assert result.fragments_of(2) == [(1, 4)]


def test_jobs_that_come_together_do_not_all_wait_at_one_site() -> None:
    """Both jobs are quoted the same nodes of site 0; the one that is left waiting there moves on at once."""
    jobs = to_workload([PlainJob(1, 0, 4, 100, 100), PlainJob(2, 0, 4, 100, 100)])
    result = simulate_world(jobs, [4, 4], GridPolicy(mode="sharing", control="limited"), check=True)
    assert result.start_ms.tolist() == [0, 0]
    assert [result.fragments_of(row) for row in (0, 1)] == [[(0, 4)], [(1, 4)]]


@pytest.mark.parametrize("first", [False, True])
def test_own_users_first(first: bool) -> None:
    """Own job 3 comes after the grid's job 2, and starts ahead of it only if the owner has said so."""
    jobs = to_workload([PlainJob(1, 0, 4, 100, 100), PlainJob(2, 1, 4, 50, 50), PlainJob(3, 2, 4, 30, 30)])
    result = simulate_world(
        jobs,
        [4],
        GridPolicy(mode="sharing", control="limited"),
        owners=[OwnerPolicy(own_users_first=first)],
        to_grid=[False, True, False],
        check=True,
    )
    assert result.start_ms.tolist() == ([0, 130, 100] if first else [0, 100, 150])


@settings(max_examples=40, deadline=None)
@given(grid_cases(for_one_site=True))
def test_the_grid_keeps_to_its_share(case: GridCase) -> None:
    """At no instant do jobs of the grid hold more of a site than its owner lets them have, and all of them run."""
    owners = [OwnerPolicy(grid_share=0.5)] * len(case.nodes)
    share = [nodes // 2 for nodes in case.nodes]
    to_grid = {job.id: job.width <= max(share) and number % 3 < 2 for number, job in enumerate(case.jobs)}
    kept = [job for job in case.jobs if to_grid[job.id] or job.width <= case.nodes[case.home[job.id]]]
    if not max(share):
        return
    jobs = to_workload(kept)
    home = [case.home[job_id] for job_id in jobs.job_id.tolist()]
    given_to_grid = np.array([to_grid[job_id] for job_id in jobs.job_id.tolist()], np.bool_)
    policy = GridPolicy(mode="sharing", control="limited")
    result = simulate_world(jobs, case.nodes, policy, owners=owners, home=home, to_grid=given_to_grid, check=True)
    assert result.refused == ()
    for instant_ms in result.start_ms.tolist():
        held = [0] * len(share)
        for row in np.flatnonzero(given_to_grid & (result.start_ms <= instant_ms) & (instant_ms < result.end_ms)):
            for site, width in result.fragments_of(int(row)):
                held[site] += width
        assert all(nodes <= most for nodes, most in zip(held, share, strict=True))


@settings(max_examples=60, deadline=None)
@given(grid_cases(max_sites=1, max_jobs=24, max_nodes=8), st.booleans())
def test_own_users_wait_no_longer_than_on_what_the_grid_leaves_them(case: GridCase, first: bool) -> None:
    """Beside a grid that may have k of n nodes no own job starts later than on n - k alone; no backfilling."""
    nodes = case.nodes[0] + 1
    most, left = nodes // 2, nodes - nodes // 2
    to_grid = {job.id: number % 2 == 1 for number, job in enumerate(case.jobs)}
    jobs = to_workload([job for job in case.jobs if job.width <= (most if to_grid[job.id] else left)])
    given_to_grid = np.array([to_grid[job_id] for job_id in jobs.job_id.tolist()], np.bool_)
    policy = SitePolicy(backfill="none")
    beside = simulate_world(
        jobs,
        [nodes],
        GridPolicy(mode="sharing", control="limited"),
        site_policies=[policy],
        owners=[OwnerPolicy(grid_share=most / nodes, own_users_first=first)],
        to_grid=given_to_grid,
        check=True,
    )
    alone = simulate(jobs.take(np.flatnonzero(~given_to_grid)), left, policy)
    assert (beside.start_ms[~given_to_grid] <= alone.start_ms).all()


@pytest.mark.parametrize("first", [False, True])
def test_with_backfilling_own_users_wait_on_average_no_longer_than_that(first: bool) -> None:
    """A backfilled job may delay another, so with EASY it holds for the mean of many: between n nodes and n - k."""
    nodes, most, rng = 16, 8, np.random.default_rng(1)
    waits = np.zeros(3)
    for _ in range(20):
        submit_ms = np.cumsum(rng.exponential(20, 80)).astype(int).tolist()
        run_ms = rng.integers(10, 200, 80).tolist()
        every = [
            PlainJob(number, submit_ms[number], int(rng.integers(1, most + 1)), run_ms[number] * 2, run_ms[number])
            for number in range(80)
        ]
        own, jobs = to_workload(every[::2]), to_workload(every)
        beside = simulate_world(
            jobs,
            [nodes],
            GridPolicy(mode="sharing", control="limited"),
            owners=[OwnerPolicy(grid_share=most / nodes, own_users_first=first)],
            to_grid=np.arange(80) % 2 == 1,
        )
        starts = (simulate(own, nodes).start_ms, beside.start_ms[::2], simulate(own, nodes - most).start_ms)
        waits += [(start_ms - own.submit_ms).mean() for start_ms in starts]
    assert waits[0] < waits[1] <= waits[2]


def ask_for(core: MetaCore, now_ms: int, job: Job) -> list[RequestQuote]:
    """Return the requests for quotes that go out for a job."""
    requests = [command.request for command in do(core, now_ms, GridJobSubmitted(job))]
    return [request for request in requests if isinstance(request, RequestQuote)]


def quoted(requests: list[RequestQuote], *quotes: dict[str, Any]) -> list[FromSite]:
    """Return what the sites say, each its own, to requests in their order."""
    offers = enumerate(zip(requests, quotes, strict=True))
    return [FromSite(site, Quoted(request.quote_id, **quote)) for site, (request, quote) in offers]


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        ({}, False),
        ({"user": 3, "weight": 2.0}, False),
        ({"priority": 1.0}, True),
        ({"priority": -1.0}, True),
        ({"job_class": 0}, True),
        ({"class_name": "cfd"}, True),
        ({"forms": (JobForm(),)}, True),
        ({"evictions": 1}, True),
    ],
)
def test_the_job_goes_with_the_request_where_width_and_limit_do_not_tell_all(
    options: dict[str, Any], is_told: bool
) -> None:
    """Sites are sent a job that has forms, a class, an unusual priority or evictions, and of others nothing more."""
    job = Job(job_id=1, width=3, estimate_ms=100, **options)
    requests = ask_for(limited_meta(4, 4), 0, job)
    assert [request.job for request in requests] == [job if is_told else None] * 2
    assert not is_told or not any(request.wants_ready for request in requests), "what only a mapping needs"


def test_nobody_is_evicted_while_another_site_has_free_nodes() -> None:
    """Of the sites that could start a job at once those that would evict for it come last, whatever the selection."""
    high = Job(job_id=1, width=3, estimate_ms=100, priority=2)
    evicting = {"free": 0, "start_ms": 0, "nodes": 3, "length_ms": 100, "evicts": True}
    free = {"free": 4, "start_ms": 0, "nodes": 3, "length_ms": 100}
    later = {"free": 0, "start_ms": 50, "nodes": 3, "length_ms": 100}
    for quotes, chosen in (((evicting, free), 1), ((free, evicting), 0), ((later, evicting), 1)):
        core = limited_meta(4, 4)
        commands = do(core, 0, *quoted(ask_for(core, 0, high), *quotes))
        assert [command.site for command in commands] == [chosen]


def test_a_job_of_forms_goes_where_it_ends_first() -> None:
    """The lengths that sites quote count, for starts at once and for waits, and not the limit."""
    job = Job(job_id=1, width=1, estimate_ms=1_000, forms=(JobForm(), JobForm(width=2, speed=1.9)))
    slow, fast = {"nodes": 1, "length_ms": 1_000}, {"nodes": 2, "length_ms": 500}
    for slow_ms, fast_ms, chosen in ((0, 0, 1), (0, 400, 0), (100, 500, 1), (100, 700, 0)):
        core = limited_meta(4, 4)
        offers = {"free": 4, "start_ms": slow_ms, **slow}, {"free": 4, "start_ms": fast_ms, **fast}
        commands = do(core, 0, *quoted(ask_for(core, 0, job), *offers))
        assert [command.site for command in commands] == [chosen]


@pytest.mark.parametrize(("there_ms", "here_ms", "moves"), [(500, 500, True), (500, 900, False), (900, 500, True)])
def test_a_waiting_job_moves_only_to_where_it_ends_sooner(there_ms: int, here_ms: int, moves: bool) -> None:
    """A site that starts it at once may still take longer than the wait where it is, which cannot be over by then."""
    job = Job(job_id=1, width=1, estimate_ms=1_000, job_class=2)
    core = limited_meta(4, 4)
    told = (
        {"free": 0, "start_ms": 200, "nodes": 1, "length_ms": there_ms},
        {"free": 0, "start_ms": None, "reason": "no"},
    )
    ((site, request),) = [(c.site, c.request) for c in do(core, 0, *quoted(ask_for(core, 0, job), *told))]
    assert (site, type(request)) == (0, EnqueueJob)
    do(core, 1, *said(0, Enqueued(1, request.attempt)))
    (asked,) = (c.request for c in do(core, 250, *said(1, SiteChanged(0, 4))))
    commands = do(core, 250, *said(1, Quoted(asked.quote_id, 4, 250, nodes=1, length_ms=here_ms)))
    assert [type(command.request) for command in commands] == [WithdrawJob] * moves


def test_a_waiting_job_moves_to_a_site_that_needs_fewer_nodes_for_it() -> None:
    """It counts what the site says that it would have there, and so many jobs as that leaves room for come."""
    core = limited_meta(4, 4)
    for job_id in (1, 2, 3):
        job = Job(job_id=job_id, width=4, estimate_ms=1_000, forms=(JobForm(width=4), JobForm()))
        told = {"free": 0, "start_ms": 900, "nodes": 4, "length_ms": 1_000}, {"free": 0, "start_ms": None}
        (sent,) = do(core, 0, *quoted(ask_for(core, 0, job), *told))
        do(core, 0, *said(0, Enqueued(job_id, sent.request.attempt)))
    asked = [c.request for c in do(core, 1, *said(1, SiteChanged(0, 4)))]
    here = [Quoted(each.quote_id, 2, 1, nodes=1, length_ms=1_000) for each in asked]
    commands = do(core, 1, *said(1, *here))
    assert [(c.site, c.request.job_id) for c in commands if isinstance(c.request, WithdrawJob)] == [(0, 1), (0, 2)]
