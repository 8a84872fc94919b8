"""MetaCore under no control: it knows the sizes of the sites and what it has sent them, and nothing else."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from gridweave.grid.messages import GridJobCancelled, ReportDone, ReportRefused, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.world.connections import Network
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.explain import Forecast
from gridweave.site.job import Job
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.messages import (
    Answer,
    CancelJob,
    Ended,
    Enqueued,
    EnqueueJob,
    Quoted,
    Refused,
    SiteChanged,
    Started,
    Withdrawn,
)
from gridweave.site.state import dump_state
from gridweave.site.users.owner import OwnerPolicy
from reference.model import Job as PlainJob
from support.builders import GridCase, grid_cases, to_workload
from support.stepping import RETRY_MS, do, meta, said, submitted


def grid(*nodes: int, **policy: Any) -> MetaCore:
    """Return a meta-scheduler without control."""
    return meta(*nodes, **{"mode": "sharing", "control": "none", **policy})


def sent(site: int, job_id: int, width: int, attempt: int = 1, estimate_ms: int = 100) -> ToSite:
    """Return the delegation of a plain job, without a lease that could end."""
    return ToSite(site, EnqueueJob(Job(job_id=job_id, width=width, estimate_ms=estimate_ms), attempt, int(NEVER_MS)))


def test_jobs_go_where_the_grid_has_sent_least() -> None:
    """Each job goes to the site with the least work of the grid for its size, and to the first of those alike."""
    core = grid(4, 8)
    assert do(core, 0, submitted(1, 2)) == [sent(0, 1, 2)], "neither has any: 0 against 0"
    assert do(core, 1, submitted(2, 4)) == [sent(1, 2, 4)], "50 against 0 a node"
    assert do(core, 2, submitted(3, 1)) == [sent(0, 3, 1)], "50 a node on both"
    assert do(core, 3, submitted(4, 1)) == [sent(1, 4, 1)], "75 against 50"


def test_a_job_goes_only_where_it_fits() -> None:
    """A job wider than a site is not sent there, however little the site has."""
    core = grid(2, 8)
    for job_id in (1, 2, 3):
        assert do(core, job_id, submitted(job_id, 3)) == [sent(1, job_id, 3)]


def quoted(core: MetaCore, width: int, **offers: Quoted) -> Forecast:
    """Return the quote for a job when the sites have answered the grid's questions: `site_0=Quoted(...)`."""
    before = dump_state(core)
    by_site = {int(name[-1]): offer for name, offer in offers.items()}
    quote = core.quoter(0, submitted(99, width), offers=by_site)()
    assert dump_state(core) == before, "a quote has changed the grid"
    return quote


def test_a_quote_names_the_site_that_would_get_the_job_and_its_start_there() -> None:
    """The grid looks at its own work only, so the quote also names a site that could start the job sooner."""
    core = grid(4, 8)
    do(core, 0, submitted(1, 2))
    questions = core.questions(0, submitted(99, 2))
    assert {site: (each.width, each.length_ms) for site, each in questions.items()} == {0: (2, 100), 1: (2, 100)}
    why = "it would be sent to site 1, which has the least work of the grid per node"
    quote = quoted(core, 2, site_0=Quoted(0, 2, 0), site_1=Quoted(0, 0, 5_000))
    later = f"{why}, and would start there in 5 s; site 0 could start it at once (--site site 0)"
    assert (quote.start_ms, quote.places, quote.reason) == (5_000, (("site 1", 2),), later)
    quote = quoted(core, 2, site_0=Quoted(0, 2, 0), site_1=Quoted(0, 2, 0))
    assert (quote.start_ms, quote.reason) == (0, f"{why}, and would start there at once")
    quote = quoted(core, 2, site_0=Quoted(0, 2, 3_000))
    silent = f"{why}; site 0 could start it in 3 s (--site site 0)"
    assert (quote.start_ms, quote.places, quote.reason) == (None, (("site 1", 2),), silent)
    assert do(core, 0, submitted(99, 2)) == [sent(1, 99, 2)]


def test_a_quote_passes_over_the_sites_that_would_refuse_the_job() -> None:
    """A site that is shut, and one that can never run the job; if that is all of them, the job would be refused."""
    core = grid(4, 4, 4)
    do(core, 0, *said(0, SiteChanged(0, 4, "the site is being drained")))
    never = Quoted(0, 0, None, "the partition is too short", cause="never")
    assert quoted(core, 2, site_1=never, site_2=Quoted(0, 4, 0)).places == (("site 2", 2),)
    assert (
        quoted(core, 2, site_1=never, site_2=never).reason
        == "all sites would refuse it now; it would be sent again later"
    )
    quote = quoted(core, 2, site_0=never, site_1=never, site_2=never)
    assert (quote.state, quote.places) == ("refused", ())
    assert quote.reason.startswith("no site can run it: site 0: the partition is too short; ")


def test_a_quote_has_the_draw_of_the_next_submission() -> None:
    """However often somebody asks."""
    core = grid(4, 4, 4, selection="random")
    for job_id in range(1, 20):
        (place,) = {quoted(core, 1).places for _ in range(3)}
        (delegated,) = do(core, 0, submitted(job_id, 1))
        assert place == ((f"site {delegated.site}", 1),)


def test_what_has_ended_counts_no_more() -> None:
    """The end of a job takes its work off its site, and is reported with its outcome."""
    core = grid(4, 4)
    do(core, 0, submitted(1, 2), submitted(2, 3))
    assert do(core, 5, *said(0, Enqueued(1, 1), Started(1, 1, 5))) == []
    assert do(core, 9, *said(0, Ended(1, 1, 9, "finished"))) == [ReportDone(1, "finished")]
    assert do(core, 9, submitted(3, 4)) == [sent(0, 3, 4)]
    assert do(core, 10, *said(1, Ended(2, 1, 10, "limit"))) == [ReportDone(2, "limit")]


def test_what_a_site_says_of_itself_is_not_known() -> None:
    """News of a site changes nothing: at this level the grid does not know what others have there."""
    core = grid(4, 4)
    assert do(core, 0, *said(0, SiteChanged(4, 0))) == []
    assert do(core, 0, submitted(1, 2)) == [sent(0, 1, 2)]
    assert do(core, 10**9, *said(1, SiteChanged(0, 4))) == [], "and a job stays where it was sent"
    assert core.next_wakeup_ms() is None


def test_random_is_drawn_once_for_a_job() -> None:
    """The selection random takes number floor(u k) of the k sites that the job fits on."""
    core = grid(4, 1, 4, 4, selection="random")
    for job_id, draw in enumerate(np.random.default_rng(1).random(8).tolist(), start=1):
        (command,) = do(core, job_id, submitted(job_id, 2))
        assert command.site == [0, 2, 3][int(draw * 3)]


@pytest.mark.parametrize("mode", ["sharing", "multi-site", "adaptive"])
def test_nothing_is_split(mode: str) -> None:
    """A job wider than the largest site is refused in every mode, with the reason: nobody could hold the nodes."""
    (refusal,) = do(grid(4, 4, mode=mode), 0, submitted(1, 5))
    assert isinstance(refusal, ReportRefused)
    assert refusal.reason == "it needs 5 nodes, the largest site has 4, and control none splits no job"


def test_a_job_is_taken_in_once() -> None:
    """A submission that comes twice is one job."""
    core = grid(4)
    assert len(do(core, 0, submitted(1, 4), submitted(1, 4))) == 1
    assert do(core, 1, submitted(1, 4)) == []


def test_a_refused_job_is_sent_to_the_others_then_again() -> None:
    """Each site is tried once; when all have refused, the round begins again after a while."""
    core = grid(4, 4, 2)
    assert do(core, 0, submitted(1, 3)) == [sent(0, 1, 3)]
    assert do(core, 1, *said(0, Refused(1, 1, "drained"))) == [sent(1, 1, 3, 2)]
    assert do(core, 2, *said(0, Refused(1, 1, "drained"))) == [], "said twice, of an attempt that is over"
    assert do(core, 3, *said(1, Refused(1, 2, "drained"))) == [], "the third is too small"
    assert do(core, 3, *said(1, Refused(1, 2, "drained"))) == [], "said twice, of a job that is nowhere"
    assert core.next_wakeup_ms() == 3 + RETRY_MS
    assert do(core, 3 + RETRY_MS) == [sent(0, 1, 3, 3)]
    assert core.next_wakeup_ms() is None


def test_a_job_that_sites_take_and_then_refuse_is_not_sent_for_ever() -> None:
    """The pauses double for each site, and a job that all of them refuse again and again is refused with that."""
    core = grid(4, 4)
    sends: list[tuple[int, int]] = []
    commands, now_ms = do(core, 0, submitted(1, 3)), 0
    while commands:
        command = commands[-1]
        if isinstance(command, ReportRefused):
            said_by = (f"site {s}: it accepted the job 6 times and then refused it: no" for s in (0, 1))
            assert command.reason == f"no site can run it: {'; '.join(said_by)}"
            break
        sends.append((now_ms, command.site))
        attempt = command.request.attempt
        commands = do(core, now_ms, *said(command.site, Refused(1, attempt, "no", "job")))
        while not any(isinstance(c, (ToSite, ReportRefused)) for c in commands):
            now_ms = core.next_wakeup_ms() or 0
            commands = do(core, now_ms)
    for site in (0, 1):
        at_ms = [sent_ms for sent_ms, to in sends if to == site]
        assert [late - early for early, late in pairwise(at_ms)] == [RETRY_MS * 2**number for number in range(5)]


def test_all_that_was_refused_is_sent_again_together() -> None:
    """The wait for another round is counted from the first job that all have refused; the others join it."""
    core = grid(4)
    do(core, 0, submitted(1, 3), submitted(2, 2))
    do(core, 10, *said(0, Refused(1, 1, "drained")))
    do(core, 500, *said(0, Refused(2, 1, "drained")))
    assert do(core, 10 + RETRY_MS) == [sent(0, 1, 3, 2), sent(0, 2, 2, 2)]


def test_a_lost_or_returned_job_is_sent_anew() -> None:
    """A job that was lost with its site, or given back by it, is sent under a new number; the old one is dead."""
    core = grid(4, 4)
    do(core, 0, submitted(1, 3))
    assert do(core, 9, *said(0, Ended(1, 1, 9, "lost"))) == [sent(0, 1, 3, 2)]
    assert do(core, 10, *said(0, Ended(1, 1, 9, "finished"))) == []
    assert do(core, 11, *said(0, Withdrawn(1, 2))) == [sent(0, 1, 3, 3)]
    assert do(core, 50, *said(0, Ended(1, 3, 50, "finished"))) == [ReportDone(1, "finished")]


@pytest.mark.parametrize(
    "answer", [Withdrawn(1, 1), Ended(1, 1, 6, "cancelled"), Ended(1, 1, 6, "lost"), Refused(1, 1, "drained")]
)
def test_a_cancelled_job_ends_where_it_is(answer: Answer) -> None:
    """A job is cancelled at its site, reported once as cancelled, and never sent again, whatever became of it there."""
    core = grid(4, 4)
    do(core, 0, submitted(1, 3))
    assert do(core, 5, GridJobCancelled(1), GridJobCancelled(1)) == [ToSite(0, CancelJob(1, 1))]
    assert do(core, 6, *said(0, answer)) == [ReportDone(1, "cancelled")]
    assert do(core, 7, GridJobCancelled(1)) == []
    assert do(core, 8, submitted(2, 3)) == [sent(0, 2, 3)], "its work is off the site's account"


def test_a_job_that_all_have_refused_is_cancelled_at_once() -> None:
    """A job that is at no site ends in the grid, and is not sent in the next round."""
    core = grid(4)
    do(core, 0, submitted(1, 3))
    do(core, 1, *said(0, Refused(1, 1, "drained")))
    assert do(core, 2, GridJobCancelled(1)) == [ReportDone(1, "cancelled")]
    assert do(core, 1 + RETRY_MS) == []


def test_a_cancelled_job_that_ends_by_itself_has_finished() -> None:
    """When the end of a job crosses its cancellation the end is what is reported."""
    core = grid(4)
    do(core, 0, submitted(1, 3))
    do(core, 5, GridJobCancelled(1))
    assert do(core, 6, *said(0, Ended(1, 1, 5, "finished"))) == [ReportDone(1, "finished")]


# -- whole runs


@settings(max_examples=60, deadline=None)
@given(grid_cases(max_sites=1, for_one_site=True))
def test_one_site_is_its_own_queue(case: GridCase) -> None:
    """With one site and no latency, no control is FCFS with EASY backfilling, job by job."""
    jobs = to_workload(case.jobs)
    result = simulate_world(jobs, case.nodes, GridPolicy(mode="sharing", control="none"), check=True)
    assert result.start_ms.tolist() == simulate(jobs, case.nodes[0]).start_ms.tolist()


@settings(max_examples=40, deadline=None)
@given(grid_cases(max_jobs=12, for_one_site=True))
def test_every_job_runs_whatever_the_network(case: GridCase) -> None:
    """With slow, lossy and repeating messages every job runs once, on one site."""
    jobs = to_workload(case.jobs)
    network = Network(latency_ms=3, jitter_ms=4, loss=0.2, duplicate=0.1)
    policy = GridPolicy(mode="sharing", control="none")
    result = simulate_world(jobs, case.nodes, policy, network=network, rng=np.random.default_rng(1), check=True)
    assert result.refused == ()
    assert (result.end_ms > result.start_ms).all()
    assert result.n_fragments.tolist() == [1] * len(jobs)


def test_the_grid_does_not_see_own_users() -> None:
    """Job 2 of the grid waits at site 0 behind an own user's job, though site 1 is idle."""
    jobs = to_workload([PlainJob(1, 0, 4, 100, 100), PlainJob(2, 1, 4, 10, 10)])
    policies = {control: GridPolicy(mode="sharing", control=control) for control in ("none", "limited")}
    starts = {
        control: simulate_world(jobs, [4, 4], policy, home=[0, 0], to_grid=[False, True], check=True).start_ms.tolist()
        for control, policy in policies.items()
    }
    assert starts == {"none": [0, 100], "limited": [0, 1]}


@pytest.mark.parametrize("first", [False, True])
def test_own_users_first(first: bool) -> None:
    """Own job 3 comes after the grid's job 2, and starts ahead of it only if the owner has said so."""
    jobs = to_workload([PlainJob(1, 0, 4, 100, 100), PlainJob(2, 1, 4, 50, 50), PlainJob(3, 2, 4, 30, 30)])
    policy = GridPolicy(mode="sharing", control="none")
    owners = [OwnerPolicy(own_users_first=first)]
    result = simulate_world(jobs, [4], policy, owners=owners, to_grid=[False, True, False], check=True)
    assert result.start_ms.tolist() == ([0, 130, 100] if first else [0, 100, 150])


def test_the_share_of_the_grid_is_kept() -> None:
    """Jobs 1 and 2 of the grid, of 2 nodes each, run one after the other on the 2 nodes of 4 that they may have."""
    jobs = to_workload([PlainJob(1, 0, 2, 100, 100), PlainJob(2, 1, 2, 50, 50), PlainJob(3, 2, 2, 30, 30)])
    policy = GridPolicy(mode="sharing", control="none")
    owners = [OwnerPolicy(grid_share=0.5)]
    result = simulate_world(jobs, [4], policy, owners=owners, to_grid=[True, True, False], check=True)
    assert result.start_ms.tolist() == [0, 100, 2]
