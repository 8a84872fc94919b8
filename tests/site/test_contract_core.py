"""The site contract as the grid sees it: each request, its answer, and what ends by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError
from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.heterogeneous.machines import Cluster
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import Job, JobForm
from gridweave.site.messages import (
    Answer,
    CancelJob,
    CommitNodes,
    DrainSite,
    Ended,
    Enqueued,
    EnqueueJob,
    FragmentsMet,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    KillJob,
    LeaseEnded,
    Quoted,
    Refused,
    ReleaseNodes,
    RenewLeases,
    RequestQuote,
    ReservationRequested,
    Reserved,
    ReserveNodes,
    ResumeSite,
    SiteChanged,
    SiteOpened,
    SiteRestarted,
    SiteShut,
    Started,
    StartJob,
    ToGrid,
    WithdrawJob,
    Withdrawn,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.scheduler.contract import OWN, ContractCore
from gridweave.site.users.owner import OwnerPolicy

RENDEZVOUS_MS = 500


def site(nodes: int = 4, *, share: float = 1.0, first: bool = False, **policy: Any) -> ContractCore:
    """Return a site that lets the grid have a share of its nodes."""
    owner = OwnerPolicy(grid_share=share, own_users_first=first)
    return ContractCore(nodes, SitePolicy(**policy), owner=owner, rendezvous_ms=RENDEZVOUS_MS)


def job(job_id: int, width: int, estimate_ms: int = 100) -> Job:
    """Return a plain job."""
    return Job(job_id=job_id, width=width, estimate_ms=estimate_ms)


def own(job_id: int, width: int, estimate_ms: int = 100) -> JobSubmitted:
    """Return the submission of a job of the site's own users."""
    return JobSubmitted(job(job_id, width, estimate_ms))


def told(core: ContractCore, now_ms: int, *events: Any) -> tuple[list[Answer], list[object]]:
    """Return what a site answers the grid, and what it commands its nodes; its state must hold."""
    out = core.handle(now_ms, *events)
    core.check_invariants()
    return [c.answer for c in out if isinstance(c, ToGrid)], [c for c in out if not isinstance(c, ToGrid)]


def answers(core: ContractCore, now_ms: int, *events: Any) -> list[Answer]:
    """Return what a site answers the grid."""
    return told(core, now_ms, *events)[0]


def commands(core: ContractCore, now_ms: int, *events: Any) -> list[object]:
    """Return what a site commands its nodes."""
    return told(core, now_ms, *events)[1]


def test_a_single_fragment_starts_when_it_is_granted() -> None:
    """A hold without an agreed start is a start, and its end is told with its outcome."""
    core = site()
    assert told(core, 5, ReserveNodes(1, 1, 3, 100)) == ([Started(1, 1, 5)], [StartJob(1, ((0, 3),))])
    assert core.part_state(1) == "running"
    assert core.attempt_of(1) == 1
    assert told(core, 50, JobFinished(1)) == ([Ended(1, 1, 50, "finished")], [])
    assert core.part_state(1) is None


def test_what_is_kept_for_others_is_told() -> None:
    """Reservations, and nodes under a lease until their job starts, are told with their spans."""
    core = site(discipline="planning")
    told(core, 0, ReservationRequested(7, 1000, 500, 2), ReserveNodes(1, 1, 3, 100, start_ms=200))
    assert list(core.kept_nodes()) == [("reservation", 7, 2, 1000, 1500), ("lease", 1, 3, 200, 300)]
    told(core, 150, CommitNodes(1, 1))
    assert len(list(core.kept_nodes())) == 2
    told(core, 200)
    assert [kept[0] for kept in core.kept_nodes()] == ["reservation"]


def test_what_does_not_fit_now_is_refused() -> None:
    """A hold is granted at once or refused with a reason; it never waits, and never overtakes a promise."""
    core = site()
    told(core, 0, own(1, 3, 100), own(2, 4, 100))
    refused = answers(core, 1, ReserveNodes(7, 1, 2, 10))
    assert refused == [Refused(7, 1, "it needs 2 nodes now; 1 are free, and others may go first")]
    assert answers(core, 2, ReserveNodes(8, 1, 1, 1000))[0] == Refused(
        8, 1, "it needs 1 node now; 1 are free, and others may go first"
    ), "it would delay the head of the queue"
    assert answers(core, 3, ReserveNodes(9, 1, 1, 90)) == [Started(9, 1, 3)]
    assert commands(core, 100, JobFinished(1), JobFinished(9)) == [StartJob(2, ((0, 4),))]


def test_a_committed_hold_starts_at_the_agreed_instant() -> None:
    """Between the commitment and the agreed start nothing runs, and nobody else gets the nodes."""
    core = site()
    assert told(core, 0, ReserveNodes(1, 1, 3, 100, 20)) == ([Reserved(1, 1)], [])
    assert told(core, 10, CommitNodes(1, 1)) == ([], [])
    assert told(core, 11, own(2, 2)) == ([], [])
    assert core.next_wakeup_ms() == 20
    assert told(core, 20) == ([Started(1, 1, 20)], [StartJob(1, ((0, 3),))])
    assert told(core, 20, FragmentsMet(1, 1)) == ([], [])
    assert core.next_wakeup_ms() == 120, "the limit counts from the agreed start"


def test_a_commitment_at_the_last_instant_counts() -> None:
    """A commitment that arrives at the agreed start itself is in time; one that arrives later finds no hold."""
    core = site()
    answers(core, 0, ReserveNodes(1, 1, 2, 100, 20), ReserveNodes(2, 1, 2, 100, 20))
    assert told(core, 20, CommitNodes(1, 1)) == ([Started(1, 1, 20)], [StartJob(1, ((0, 2),))])
    assert core.next_wakeup_ms() == 21
    assert told(core, 21) == ([LeaseEnded(2, 1)], [])
    assert told(core, 22, CommitNodes(2, 1)) == ([], [])
    assert core.part_state(2) is None


def test_a_commitment_that_comes_as_the_lease_ends_is_late() -> None:
    """A commitment that arrives with the end of the lease, after the agreed start, starts nothing."""
    core = site()
    answers(core, 0, ReserveNodes(1, 1, 2, 100, 20))
    assert told(core, 21, CommitNodes(1, 1)) == ([LeaseEnded(1, 1)], [])


def test_a_hold_ends_by_itself() -> None:
    """The lease of a hold ends with the agreed start, and the nodes go to whoever is next."""
    core = site()
    answers(core, 0, ReserveNodes(1, 1, 4, 100, 20))
    assert told(core, 5, own(2, 4)) == ([], [])
    assert told(core, 21) == ([LeaseEnded(1, 1), SiteChanged(4, 0)][::-1], [StartJob(2, ((0, 4),))])


def test_a_released_hold_frees_its_nodes() -> None:
    """A release ends a hold, committed or not, and says so; of an attempt that is not here it is passed over."""
    core = site()
    answers(core, 0, ReserveNodes(1, 2, 2, 100, 20), ReserveNodes(2, 1, 2, 100, 20))
    assert answers(core, 1, ReleaseNodes(1, 1)) == []
    assert answers(core, 1, ReleaseNodes(1, 2)) == [LeaseEnded(1, 2)]
    assert answers(core, 2, CommitNodes(2, 1)) == []
    assert answers(core, 2, ReleaseNodes(2, 1)) == [LeaseEnded(2, 1)]
    assert answers(core, 2, ReleaseNodes(2, 1), ReleaseNodes(9, 1)) == []
    assert told(core, 3, own(3, 4))[1] == [StartJob(3, ((0, 4),))]


def test_a_start_that_has_passed_is_refused() -> None:
    """A request that comes after the agreed start is refused: the others have given up, or will."""
    assert answers(site(), 30, ReserveNodes(1, 1, 2, 100, 20)) == [
        Refused(1, 1, "the agreed start has passed, 10 ms ago"),
    ]


def test_fragments_that_do_not_meet_end() -> None:
    """A started fragment waits for its partners no longer than the rendezvous lasts."""
    core = site()
    answers(core, 0, ReserveNodes(1, 1, 2, 9000, 20))
    answers(core, 1, CommitNodes(1, 1))
    answers(core, 20, FragmentsMet(1, 7))
    assert core.next_wakeup_ms() == 20 + RENDEZVOUS_MS, "those of another attempt have met"
    assert told(core, 20 + RENDEZVOUS_MS) == ([], [KillJob(1, "its other fragments did not start in time", True)])
    assert answers(core, 600, JobFinished(1)) == [Ended(1, 1, 600, "unmet")]


def test_fragments_that_met_are_left_alone() -> None:
    """A fragment whose partners have come runs to its end or its limit."""
    core = site()
    answers(core, 0, ReserveNodes(1, 1, 2, 9000, 20))
    answers(core, 1, CommitNodes(1, 1))
    answers(core, 20)
    answers(core, 21, FragmentsMet(1, 1))
    assert core.next_wakeup_ms() == 9020
    assert told(core, 9020) == ([], [KillJob(1, "reached its limit")])
    assert answers(core, 9021, JobFinished(1)) == [Ended(1, 1, 9021, "limit")]


def test_a_delegated_job_waits_starts_and_ends() -> None:
    """A delegated job goes through the site's own queue, and each step of it is told."""
    core = site()
    commands(core, 0, own(1, 3))
    assert told(core, 1, EnqueueJob(job(2, 2), 1, 10_000)) == ([Enqueued(2, 1)], [])
    assert core.part_state(2) == "waiting"
    assert told(core, 60, JobFinished(1)) == ([SiteChanged(0, 2), Started(2, 1, 60)], [StartJob(2, ((0, 2),))])
    assert answers(core, 90, JobFinished(2)) == [Ended(2, 1, 90, "finished")]


def test_a_delegated_job_that_starts_at_once_is_not_said_to_wait() -> None:
    """The answer to a delegation that starts at once is the start alone."""
    assert answers(site(), 0, EnqueueJob(job(1, 4), 3, 10_000)) == [Started(1, 3, 0)]


def test_an_impossible_delegation_is_refused() -> None:
    """A delegated job that can never run here is refused with the site's reason."""
    core = site(2)
    (refused,) = answers(core, 0, EnqueueJob(job(1, 3), 1, 10_000))
    assert isinstance(refused, Refused)
    assert (refused.job_id, refused.attempt) == (1, 1)
    assert "2 nodes" in refused.reason
    assert core.part_state(1) is None


def test_an_impossible_own_job_loses_nothing() -> None:
    """A job that can be none is refused before anything that came with it, or before it, has changed."""
    core = site(4)
    answers(core, 0, ReserveNodes(1, 1, 2, 100))
    for bad in (own(2, 0), own(2, 10**9), own(2, 1, 0)):
        with pytest.raises(InputError, match="job 2"):
            core.handle(5, ReserveNodes(3, 1, 1, 100), JobFinished(1), bad)
    core.check_invariants()
    assert (core.part_state(1), core.part_state(3)) == ("running", None)
    assert isinstance(answers(core, 6, JobFinished(1))[-1], Ended)


@pytest.mark.parametrize(
    "request_of_grid", [ReserveNodes(1, 1, 0, 100), ReserveNodes(1, 1, 1, 0), ReserveNodes(1, 1, -3, 100)]
)
def test_an_impossible_request_is_refused(request_of_grid: ReserveNodes) -> None:
    """A request with numbers that no job has is the grid's fault: it is answered, and what came with it is done."""
    core = site(4)
    refused, granted = answers(core, 0, request_of_grid, ReserveNodes(2, 1, 4, 100))
    assert isinstance(refused, Refused)
    assert "not within" in refused.reason
    assert granted == Started(2, 1, 0)
    delegated = EnqueueJob(job(3, 1, -5), 1, 10_000)
    assert isinstance(answers(core, 1, delegated)[0], Refused)
    core.check_invariants()


def test_a_waiting_job_can_be_taken_back() -> None:
    """A withdrawal takes back what waits; what has started goes on, and the site has said so."""
    core = site()
    answers(core, 0, EnqueueJob(job(1, 1), 1, 10_000))
    commands(core, 0, own(3, 2))
    answers(core, 0, EnqueueJob(job(2, 2), 1, 10_000))
    assert answers(core, 1, WithdrawJob(2, 7)) == []
    assert answers(core, 1, WithdrawJob(2, 1)) == [Withdrawn(2, 1)]
    assert answers(core, 1, WithdrawJob(1, 1)) == []
    assert core.part_state(1) == "running"
    assert commands(core, 50, JobFinished(3), JobFinished(1)) == [], "nothing waits any more"


def test_a_delegation_ends_with_its_lease() -> None:
    """A job that waits past its lease is withdrawn by the site itself, unless the lease was renewed."""
    core = site()
    commands(core, 0, own(1, 4, 10_000))
    answers(core, 0, EnqueueJob(job(2, 1), 1, 100), EnqueueJob(job(3, 1), 1, 900))
    assert core.next_wakeup_ms() == 101
    answers(core, 50, RenewLeases(400))
    assert answers(core, 400) == []
    assert answers(core, 401) == [Withdrawn(2, 1)]
    assert answers(core, 901) == [Withdrawn(3, 1)], "a renewal makes no lease shorter"


def test_a_lease_that_is_over_when_it_comes_leaves_nothing() -> None:
    """A delegation that was under way for longer than its lease is taken in and given back at one instant."""
    core = site()
    assert answers(core, 500, EnqueueJob(job(1, 1), 1, 100)) == [Withdrawn(1, 1)]
    assert core.part_state(1) is None


def test_a_started_job_needs_no_lease() -> None:
    """The lease of a delegated job concerns its wait alone."""
    core = site()
    answers(core, 0, EnqueueJob(job(1, 1, 5000), 1, 100))
    assert core.next_wakeup_ms() == 5000
    assert answers(core, 200) == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_cancellation_ends_whatever_there_is(waits: bool) -> None:
    """A cancellation ends a wait, a hold or a run, and the answer says which it was."""
    core = site()
    if waits:
        commands(core, 0, own(9, 4))
        answers(core, 0, EnqueueJob(job(1, 2), 4, 10_000))
        assert told(core, 1, CancelJob(1, 4)) == ([Withdrawn(1, 4)], [])
        return
    answers(core, 0, ReserveNodes(1, 1, 2, 100), ReserveNodes(2, 1, 2, 100, 50))
    assert told(core, 1, CancelJob(2, 1)) == ([LeaseEnded(2, 1)], [])
    assert told(core, 2, CancelJob(1, 1), CancelJob(1, 1)) == ([], [KillJob(1, "cancelled")])
    assert told(core, 3, CancelJob(1, 1)) == ([], [])
    assert answers(core, 4, JobFinished(1)) == [Ended(1, 1, 4, "cancelled")]


def test_a_cancelled_job_is_killed_once() -> None:
    """A cancelled job that reaches its limit before it has left is told to end once, and ends as cancelled."""
    core = site()
    answers(core, 0, ReserveNodes(1, 1, 2, 100))
    assert commands(core, 90, CancelJob(1, 1)) == [KillJob(1, "cancelled")]
    assert commands(core, 100) == []
    assert answers(core, 110, JobFinished(1)) == [Ended(1, 1, 110, "cancelled")]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (ReserveNodes(1, 1, 2, 100, 50), ReleaseNodes(1, 1), [LeaseEnded(1, 1)]),
        (ReserveNodes(1, 1, 2, 100, 50), CancelJob(1, 1), [LeaseEnded(1, 1)]),
        (ReserveNodes(1, 1, 2, 100), CancelJob(1, 1), [LeaseEnded(1, 1)]),
        (EnqueueJob(job(1, 2), 1, 10_000), WithdrawJob(1, 1), [Withdrawn(1, 1)]),
        (EnqueueJob(job(1, 2), 1, 10_000), CancelJob(1, 1), [Withdrawn(1, 1)]),
    ],
)
def test_what_comes_with_its_withdrawal_leaves_nothing(first: Any, last: Any, expected: list[Answer]) -> None:
    """After a loss a request and its withdrawal come in one packet: nothing starts, nothing is left."""
    core = site()
    assert told(core, 5, first, last) == (expected, [])
    assert core.part_state(1) is None
    assert commands(core, 6, own(2, 4)) == [StartJob(2, ((0, 4),))]


def test_a_new_attempt_may_come_with_the_end_of_the_old() -> None:
    """In one packet an attempt can come, go, and come again; what is answered carries the number that it is about."""
    core = site()
    requests = (EnqueueJob(job(1, 2), 1, 10_000), WithdrawJob(1, 1), EnqueueJob(job(1, 2), 2, 10_000))
    assert answers(core, 0, *requests) == [Withdrawn(1, 1), Started(1, 2, 0)]
    core = site()
    commands(core, 0, own(9, 4))
    assert answers(core, 0, *requests) == [Withdrawn(1, 1), Enqueued(1, 2)]


def test_two_attempts_of_a_job_are_never_here_at_once() -> None:
    """While a site has one attempt of a job it refuses any other, so that no job runs twice on it."""
    core = site()
    answers(core, 0, ReserveNodes(1, 1, 1, 100))
    taken = "the site has another attempt of this job"
    assert answers(core, 1, ReserveNodes(1, 2, 1, 100)) == [Refused(1, 2, taken)]
    assert answers(core, 1, EnqueueJob(job(1, 1), 3, 10_000)) == [Refused(1, 3, taken)]
    assert core.attempt_of(1) == 1


def test_the_owners_share_is_a_cap() -> None:
    """Jobs of the grid hold no more nodes at one time than the owner's share, rounded down."""
    core = site(5, share=0.5)
    assert answers(core, 0, ReserveNodes(1, 1, 3, 100)) == [
        Refused(1, 1, "the grid's share is 2 nodes, and its jobs use or wait for 0")
    ]
    assert answers(core, 1, ReserveNodes(2, 1, 1, 100)) == [Started(2, 1, 1)]
    assert answers(core, 2, ReserveNodes(3, 1, 2, 100)) == [
        Refused(3, 1, "the grid's share is 2 nodes, and its jobs use or wait for 1")
    ]
    assert answers(core, 3, ReserveNodes(4, 1, 1, 100, 3), CommitNodes(4, 1))[0] == Reserved(4, 1)
    assert commands(core, 4, own(5, 3)) == [StartJob(5, ((2, 5),))], "the rest is for the owner's users"


def test_delegated_jobs_wait_for_the_owners_share() -> None:
    """A delegated job that the share would allow by itself waits until other jobs of the grid have left."""
    core = site(5, share=0.5)
    assert answers(core, 0, EnqueueJob(job(1, 3), 1, 10_000)) == [
        Refused(1, 1, "the grid's share is 2 nodes, and its jobs use or wait for 0")
    ]
    assert answers(core, 1, EnqueueJob(job(2, 1), 1, 10_000)) == [Started(2, 1, 1)]
    assert answers(core, 2, EnqueueJob(job(3, 2), 1, 10_000)) == [Enqueued(3, 1)]
    assert answers(core, 9, JobFinished(2)) == [Ended(2, 1, 9, "finished"), Started(3, 1, 9)]


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_a_part(share: float) -> None:
    """A share outside 0 to 1 is refused by its name."""
    with pytest.raises(OptionError, match="grid_share"):
        OwnerPolicy(grid_share=share)


def test_own_users_stand_ahead() -> None:
    """Where the owner wants it, the site's users overtake delegated jobs in the queue, whatever came first."""
    for first, started in ((False, 2), (True, 3)):
        core = site(first=first)
        commands(core, 0, own(1, 4))
        answers(core, 1, EnqueueJob(job(2, 4), 1, 10_000))
        commands(core, 2, own(3, 4))
        assert [c.job_id for c in commands(core, 50, JobFinished(1)) if isinstance(c, StartJob)] == [started]


def test_a_quote_says_what_could_be_had() -> None:
    """A quote names the nodes for now, the earliest start behind all that waits, or why there is none."""
    core = site()
    assert answers(core, 0, RequestQuote(1, 3, 50)) == [Quoted(1, 4, 0)]
    commands(core, 0, own(1, 3, 100), own(2, 4, 100))
    assert answers(core, 10, RequestQuote(2, 1, 90), RequestQuote(3, 1, 91), RequestQuote(4, 5, 1)) == [
        Quoted(2, 1, 10),
        Quoted(3, 0, 200),
        Quoted(4, 1, None, "the grid's share is 4 nodes, and its jobs use or wait for 0"),
    ]
    assert answers(core, 11, ReserveNodes(5, 1, 1, 80)) == [Started(5, 1, 11)]


ON_GPU = (JobForm(on=("gpu",), width=2),)
NO_CLUSTER = HeterogeneousPolicy(nodes=4, classes=(NodeKind(name="plain", count=4),))
FOR_SOME = LevelsPolicy(levels=(Level(name="staff", priority=0, users=(7, "ann")), Level(name="all", priority=-1)))


@pytest.mark.parametrize(
    ("policy", "asked", "cause", "takes_parts"),
    [
        (NO_CLUSTER, RequestQuote(1, 2, 50), "never", True),
        (NO_CLUSTER, RequestQuote(1, 2, 50, job=Job(job_id=1, width=2, estimate_ms=50, job_class=3)), "never", True),
        (NO_CLUSTER, RequestQuote(1, 2, 50, job=Job(job_id=1, width=2, estimate_ms=50, forms=ON_GPU)), "never", False),
        (NO_CLUSTER, RequestQuote(1, 1, 50), "", True),
        (NO_CLUSTER, RequestQuote(1, 5, 50), "", True),
        (FOR_SOME, RequestQuote(1, 2, 50, job=Job(job_id=1, width=2, estimate_ms=50, user=8)), "never", False),
        (FOR_SOME, RequestQuote(1, 2, 50, job=Job(job_id=1, width=2, estimate_ms=50, user=7)), "", True),
        (FOR_SOME, RequestQuote(1, 2, 50), "", True),
        (FOR_SOME, RequestQuote(1, 5, 50), "", True),
        (SitePolicy(), RequestQuote(1, 5, 50), "", True),
    ],
)
def test_a_quote_says_whether_the_site_can_never_run_the_job(
    policy: Policy, asked: RequestQuote, cause: str, takes_parts: bool
) -> None:
    """As a whole, for another reason than that it is wider than the site; and whether it could run a part of it."""
    core = ContractCore(4, policy)
    (quoted,) = (each for each in answers(core, 0, asked) if isinstance(each, Quoted))
    assert (quoted.cause, quoted.takes_parts) == (cause, takes_parts)
    assert (quoted.start_ms is None) == bool(quoted.reason) == (cause == "never" or asked.width > 4)


def test_a_part_that_a_site_can_never_run_does_not_bar_the_whole() -> None:
    """A part works at speed 1, which slow machines do not; a whole job starts there, or is refused for good."""
    slow, whole = NodeKind(name="slow", count=4, speed=0.5), Cluster(name="whole", nodes="0-3")
    core = ContractCore(4, HeterogeneousPolicy(nodes=4, classes=(slow,), clusters=(whole,)))
    (refused,) = (
        each for each in answers(core, 0, ReserveNodes(1, 1, 2, 50, start_ms=500)) if isinstance(each, Refused)
    )
    assert refused.cause == ""
    assert Started(2, 1, 0) in answers(core, 0, ReserveNodes(2, 1, 3, 50))
    core = ContractCore(4, NO_CLUSTER)
    (refused,) = (each for each in answers(core, 0, ReserveNodes(1, 1, 2, 50)) if isinstance(each, Refused))
    assert refused.cause == "never"


def test_a_quote_is_of_the_state_after_the_instant() -> None:
    """A quote that is asked for as nodes come free counts them; one asked with a request counts what that took."""
    core = site()
    commands(core, 0, own(1, 4))
    assert answers(core, 10, RequestQuote(1, 4, 10), JobFinished(1))[-1] == Quoted(1, 4, 10)
    assert answers(core, 11, RequestQuote(2, 1, 10), ReserveNodes(2, 1, 3, 50))[-1] == Quoted(2, 1, 11)


def test_a_planning_site_quotes_its_plan() -> None:
    """A planning site quotes the first gap of its plan that is long enough, also between reservations."""
    core = site(discipline="planning")
    commands(core, 0, ReservationRequested(1, start_ms=100, length_ms=100, width=4))
    assert answers(core, 0, RequestQuote(1, 2, 100), RequestQuote(2, 2, 101)) == [Quoted(1, 4, 0), Quoted(2, 0, 200)]


def test_a_draining_site_takes_in_nothing_new() -> None:
    """A drained site refuses the grid, quotes nothing, and goes on with what it has."""
    core = site()
    answers(core, 0, ReserveNodes(1, 1, 2, 100, 10))
    assert answers(core, 1, DrainSite()) == [SiteChanged(2, 0, "the site is being drained")]
    assert answers(core, 2, ReserveNodes(2, 1, 1, 10)) == [Refused(2, 1, "the site is being drained")]
    assert answers(core, 2, RequestQuote(1, 1, 10)) == [Quoted(1, 0, None, "the site is being drained")]
    assert answers(core, 10, CommitNodes(1, 1)) == [Started(1, 1, 10)]
    assert commands(core, 11, own(3, 2)) == [StartJob(3, ((2, 4),))], "the owner's users are not concerned"
    assert answers(core, 20, JobFinished(1), JobFinished(3))[-1] == Ended(1, 1, 20, "finished")
    assert answers(core, 30, ResumeSite()) == [SiteChanged(0, 4)]
    assert answers(core, 31, ReserveNodes(4, 1, 4, 10)) == [Started(4, 1, 31)]


def test_nodes_reserved_ahead_are_kept_as_they_come() -> None:
    """The fragment waits in the queue, is not delayed by backfilled jobs, and holds its nodes until it is committed."""
    core = site()
    commands(core, 0, own(1, 3, estimate_ms=100))
    assert answers(core, 1, ReserveNodes(2, 1, 4, 50, 1_000, ahead=True)) == []
    assert commands(core, 2, own(3, 1, estimate_ms=500)) == [], "it would delay the fragment"
    assert answers(core, 100, JobFinished(1))[-1] == Reserved(2, 1)
    assert answers(core, 900, RenewLeases(2_000)) == []
    assert answers(core, 1_500, RequestQuote(1, 1, 10)) == [Quoted(1, 0, 2_050)]
    assert answers(core, 1_600, CommitNodes(2, 1, start_ms=1_700)) == []
    assert core.part_state(2) == "committed"
    assert answers(core, 1_700) == [Started(2, 1, 1_700)]
    assert core.next_wakeup_ms() == 1_750, "its limit counts from the start"


def test_a_lease_ahead_that_is_not_renewed_ends() -> None:
    """The lease ends whether or not its nodes are reserved yet; it also ends when it is released."""
    core = site()
    assert answers(core, 0, ReserveNodes(1, 1, 3, 50, 100, ahead=True)) == [Reserved(1, 1)]
    assert answers(core, 1, ReserveNodes(2, 1, 3, 50, 80, ahead=True)) == []
    assert answers(core, 81) == [LeaseEnded(2, 1)]
    assert answers(core, 101) == [LeaseEnded(1, 1)]
    assert answers(core, 102, ReserveNodes(1, 2, 3, 50, 200, ahead=True)) == [Reserved(1, 2)]
    assert answers(core, 110, CommitNodes(1, 2, start_ms=105)) == [LeaseEnded(1, 2)]
    answers(core, 120, ReserveNodes(1, 3, 3, 50, 200, ahead=True))
    assert answers(core, 121, ReleaseNodes(1, 3)) == [LeaseEnded(1, 3)]
    assert commands(core, 122, own(9, 4)) == [StartJob(9, ((0, 4),))]


def test_a_site_that_drains_while_others_have_all_of_it_says_so() -> None:
    """Though the grid could have no node before either: it must not take the site for one that others use."""
    core = site()
    commands(core, 0, own(1, 4))
    assert answers(core, 1, DrainSite()) == [SiteChanged(4, 0, "the site is being drained")]
    assert answers(core, 2, ResumeSite()) == [SiteChanged(4, 0)]


def test_a_site_that_can_start_nothing_is_shut_to_the_grid() -> None:
    """While it is shut the grid is told so, and refused with the reason; then all is as before."""
    core = site()
    answers(core, 0, ReserveNodes(1, 1, 2, 100, 10))
    assert answers(core, 1, SiteShut("full")) == [SiteChanged(2, 0, "full")]
    assert answers(core, 2, ReserveNodes(2, 1, 1, 10), EnqueueJob(job(3, 1), 1, 99)) == [
        Refused(2, 1, "full"),
        Refused(3, 1, "full"),
    ]
    assert answers(core, 2, RequestQuote(1, 1, 10)) == [Quoted(1, 0, None, "full")]
    assert core.shut == "full"
    assert not core.draining
    answers(core, 3, DrainSite())
    assert answers(core, 3, ReserveNodes(2, 2, 1, 10)) == [Refused(2, 2, "the site is being drained")]
    assert answers(core, 4, SiteOpened()) == [], "it drains still"
    assert answers(core, 5, ResumeSite()) == [SiteChanged(0, 2)]
    assert answers(core, 6, ReserveNodes(2, 3, 1, 10)) == [Started(2, 3, 6)]


def test_the_grid_is_told_what_others_have() -> None:
    """The grid hears of nodes that the site's own users take or leave, and not of what it has done itself."""
    core = site(8, share=0.5)
    assert answers(core, 0, own(1, 4)) == [], "the owner's half is not the grid's"
    assert answers(core, 1, own(2, 3)) == [SiteChanged(3, 1)]
    assert answers(core, 2, ReserveNodes(3, 1, 1, 10)) == [Started(3, 1, 2)]
    assert answers(core, 3, JobFinished(3)) == [Ended(3, 1, 3, "finished")]
    assert answers(core, 4, JobFinished(1)) == [SiteChanged(0, 4)]


def test_a_restart_loses_what_ran_and_keeps_what_waits() -> None:
    """After a failure the grid hears what is lost, delegated jobs still wait, and own users' jobs are run again."""
    core = site(8)
    commands(core, 0, own(1, 2))
    answers(core, 0, ReserveNodes(2, 1, 2, 100), ReserveNodes(3, 1, 2, 100, 90), ReserveNodes(4, 1, 2, 100, 90))
    answers(core, 0, CommitNodes(4, 1))
    answers(core, 1, EnqueueJob(job(5, 2), 1, 10_000))
    assert core.part_state(5) == "waiting"
    commands(core, 2, own(6, 7))
    said, done = told(core, 50, SiteRestarted())
    assert said == [Ended(2, 1, 50, "lost"), LeaseEnded(3, 1), LeaseEnded(4, 1), Started(5, 1, 50)]
    assert done == [StartJob(5, ((0, 2),)), StartJob(1, ((2, 4),))], "the own job stands behind what waited"
    assert commands(core, 55, JobFinished(1), JobFinished(5)) == [StartJob(6, ((0, 7),))]
    assert told(core, 60, CommitNodes(4, 1), JobFinished(2)) == ([], []), "what is said of the past changes nothing"


def test_an_own_job_that_was_cancelled_is_not_run_again() -> None:
    """A job that its user cancels as the site comes back is not run again."""
    core = site()
    commands(core, 0, own(1, 2))
    assert commands(core, 50, SiteRestarted(), JobCancelled(1)) == []
    assert commands(core, 51, own(2, 4)) == [StartJob(2, ((0, 4),))]


def test_own_users_need_no_grid() -> None:
    """Jobs of the site's own users are started, cancelled and ended, and the grid hears of room alone."""
    core = site()
    assert commands(core, 0, own(1, 4)) == [StartJob(1, ((0, 4),))]
    assert core.attempt_of(1) == OWN
    assert told(core, 1, own(2, 1), own(2, 1)) == ([], [])
    assert told(core, 2, JobCancelled(2)) == ([], [])
    assert told(core, 3, own(1, 4)) == ([], []), "it runs already"
    assert commands(core, 4, JobCancelled(1)) == [KillJob(1, "cancelled")]
    assert told(core, 5, JobFinished(1)) == ([SiteChanged(0, 4)], [])


def test_users_and_the_grid_do_not_touch_each_others_jobs() -> None:
    """A user cannot cancel a job of the grid at the site, nor submit one under its id."""
    core = site()
    answers(core, 0, ReserveNodes(1, 1, 2, 100))
    assert told(core, 1, JobCancelled(1), own(1, 2)) == ([], [])
    assert core.part_state(1) == "running"


def test_a_request_that_is_repeated_changes_nothing() -> None:
    """Commitments, releases, withdrawals and cancellations can be repeated at will."""
    core = site()
    answers(core, 0, ReserveNodes(1, 1, 2, 100, 10))
    assert answers(core, 1, CommitNodes(1, 1), CommitNodes(1, 1)) == []
    assert answers(core, 10, CommitNodes(1, 1)) == [Started(1, 1, 10)]
    assert answers(core, 11, CommitNodes(1, 1), WithdrawJob(1, 1)) == []
    answers(core, 12, CancelJob(1, 1))
    answers(core, 13, JobFinished(1))
    assert told(core, 14, CommitNodes(1, 1), ReleaseNodes(1, 1), CancelJob(1, 1), JobFinished(1)) == ([], [])


REQUESTS = st.one_of(
    st.builds(ReserveNodes, st.integers(1, 6), st.integers(1, 3), st.integers(1, 5), st.integers(1, 40), st.none()),
    st.builds(
        ReserveNodes, st.integers(1, 6), st.integers(1, 3), st.integers(1, 5), st.integers(1, 40), st.integers(0, 90)
    ),
    st.builds(CommitNodes, st.integers(1, 6), st.integers(1, 3)),
    st.builds(ReleaseNodes, st.integers(1, 6), st.integers(1, 3)),
    st.builds(CancelJob, st.integers(1, 6), st.integers(1, 3)),
    st.builds(WithdrawJob, st.integers(1, 6), st.integers(1, 3)),
    st.builds(
        EnqueueJob,
        st.builds(job, st.integers(1, 6), st.integers(1, 5), st.integers(1, 40)),
        st.integers(1, 3),
        st.integers(0, 120),
    ),
    st.builds(RenewLeases, st.integers(0, 150)),
    st.builds(RequestQuote, st.integers(1, 9), st.integers(1, 5), st.integers(1, 40)),
    st.builds(own, st.integers(11, 16), st.integers(1, 5), st.integers(1, 40)),
    st.builds(JobCancelled, st.integers(11, 16)),
    st.builds(FragmentsMet, st.integers(1, 6), st.integers(1, 3)),
    st.sampled_from((DrainSite(), ResumeSite(), SiteRestarted(), SiteShut("full"), SiteOpened())),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.lists(REQUESTS, max_size=4), st.booleans()), max_size=25),
    st.sampled_from((1.0, 0.5)),
    st.booleans(),
    st.sampled_from((("queue", "easy"), ("queue", "none"), ("queue", "conservative"), ("planning", "none"))),
)
def test_no_requests_bring_a_site_out_of_order(
    steps: Sequence[tuple[int, list[Any], bool]], share: float, first: bool, kind: tuple[str, str]
) -> None:
    """Whatever is asked in whatever order, the state holds, no node is given twice, and every lease ends in time."""
    core = site(share=share, first=first, discipline=kind[0], backfill=kind[1])
    now_ms = 0
    running: dict[int, set[int]] = {}
    dying: list[int] = []
    for wait_ms, events, finish in steps:
        wake_ms = core.next_wakeup_ms()
        now_ms = now_ms + wait_ms if wake_ms is None else min(now_ms + wait_ms, max(wake_ms, now_ms))
        leaving = [JobFinished(job_id) for job_id in (*dying, *sorted(running)[: int(finish)])]
        if any(isinstance(event, SiteRestarted) for event in events):
            running = {}
            leaving = []
        for event in leaving:
            running.pop(event.job_id, None)
        dying = []
        for command in commands(core, now_ms, *leaving, *events):
            if isinstance(command, StartJob):
                nodes = {node for start, stop in command.nodes for node in range(start, stop)}
                assert command.job_id not in running
                assert all(nodes.isdisjoint(others) for others in running.values())
                running[command.job_id] = nodes
            elif isinstance(command, KillJob):
                dying.append(command.job_id)
    assert {job_id for job_id in running if core.attempt_of(job_id) != OWN} == {
        job_id for job_id in range(1, 7) if core.part_state(job_id) == "running"
    }


THREE = (
    Level(name="high", priority=2, evicts=("low",)),
    Level(name="medium", priority=1),
    Level(name="low", priority=0),
)
ONE_MACHINE = (NodeKind(name="plain", count=1),)
EVICTING = [
    LevelsPolicy(levels=THREE, raise_after=2),
    HeterogeneousPolicy(nodes=1, classes=ONE_MACHINE, levels=THREE, raise_after=2),
]


@pytest.mark.parametrize("policy", EVICTING, ids=lambda policy: policy.discipline)
@pytest.mark.parametrize("is_delegated", [False, True])
def test_what_has_been_evicted_elsewhere_counts_here(policy: Policy, is_delegated: bool) -> None:
    """A job of the grid is evicted until its evictions anywhere raise its level; the grid hears for whom and why."""
    core = ContractCore(1, policy)

    def asked(attempt: int, evictions: int) -> ReserveNodes | EnqueueJob:
        low = Job(job_id=1, width=1, estimate_ms=100, evictions=evictions)
        return (
            EnqueueJob(low, attempt, 10**6) if is_delegated else ReserveNodes(1, attempt, 1, 100, evictions=evictions)
        )

    told(core, 0, asked(1, 1))
    told(core, 10, JobSubmitted(Job(job_id=7, width=1, estimate_ms=100, priority=2)))
    (ended,) = (each for each in answers(core, 20, JobFinished(1)) if isinstance(each, Ended))
    assert ended.outcome == "lost"
    assert ended.evicted.replace("machines", "nodes") == "job 7 of level 'high' takes nodes of level 'low'"
    told(core, 50, JobFinished(7))
    told(core, 60, asked(2, 2))
    assert commands(core, 70, JobSubmitted(Job(job_id=8, width=1, estimate_ms=100, priority=2))) == []
    assert core.site.figures(70, 1)[-1] == 2


def test_when_nodes_come_free_is_told_where_that_is_wanted() -> None:
    """A quote for a job that was told has its length, and what a mapping needs besides if it is asked for."""
    core, asked = site(4), Job(job_id=7, width=2, estimate_ms=100, priority=1)
    told(core, 0, own(1, 3, 50))
    for wanted, ready in ((True, ((10, 1), (50, 3))), (False, ())):
        request = RequestQuote(1, 2, 100, job=asked, wants_ready=wanted)
        (quote,) = (each for each in answers(core, 10, request) if isinstance(each, Quoted))
        assert (quote.start_ms, quote.length_ms, quote.nodes, quote.ready) == (50, 100, 2, ready)
