"""A site whose batch system decides when jobs start: what it asks for, and what follows from what it sees."""

from __future__ import annotations

import msgspec

from gridweave.site.job import Job
from gridweave.site.messages import (
    BatchSnapshot,
    DrainSite,
    Enqueued,
    EnqueueJob,
    JobFinished,
    JobSubmitted,
    Quoted,
    Refused,
    RefuseJob,
    RequestQuote,
    RequestStatus,
    ReserveNodes,
    ResumeSite,
    SiteChanged,
    Started,
    StartJob,
    ToGrid,
    WithdrawJob,
    Withdrawn,
)
from gridweave.site.scheduler.contract import ContractCore
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.times import LONGEST_PAUSE_MS
from gridweave.site.users.owner import OwnerPolicy
from gridweave.slurm.per_job import FIRST_PAUSE_MS, MOST_LOST
from gridweave.slurm.policy import BatchPolicy

FREE = ((0, 1), (1_000, 4))


def seen(*asks: RequestStatus, nodes: int = 4, problem: str = "") -> BatchSnapshot:
    """Return what is seen of a cluster of four nodes, of which one is free now."""
    return BatchSnapshot(nodes, 60_000, FREE, asks, problem)


def changed(others: int, free: int, closed: str = "") -> SiteChanged:
    """Return what a site on that cluster tells the grid."""
    return SiteChanged(others, free, closed, 60_000)


def asked(core: SiteCore, now_ms: int = 0) -> list[tuple[int, int, bool]]:
    """Return for which jobs nodes should have been asked for, each with its number."""
    core.check_invariants()
    return [(each.job.job_id, each.ask, each.has_started) for each in core.source.requests(now_ms)]


def site_with(*widths: int, most_asked: int = 100) -> SiteCore:
    """Return a site of four nodes with jobs of these widths, numbered from 1."""
    core = SiteCore(4, BatchPolicy(most_asked=most_asked))
    for number, width in enumerate(widths):
        core.handle(0, JobSubmitted(Job(job_id=number + 1, width=width, estimate_ms=10_000)))
    return core


def starts(core: SiteCore, now_ms: int, width: int = 1) -> int | None:
    """Return when a job of ten seconds would start."""
    return core.earliest_start_ms(now_ms, width, 10_000)


def test_a_quote_counts_what_was_promised_since_the_last_look() -> None:
    """Of five jobs for one free node, and four in a second, not all start at once."""
    core = site_with()
    core.handle(0, seen())
    found = []
    for number in range(1, 6):
        found.append(starts(core, 0))
        core.handle(0, JobSubmitted(Job(job_id=number, width=1, estimate_ms=10_000)))
    assert found == [0, 1_000, 1_000, 1_000, 10_000]
    core.handle(5, seen(RequestStatus(1, 1, "ready")))
    assert core.startable(5, 10_000) == 0
    assert starts(core, 5) == 11_000, "the first has started, and the look does not show it yet"


def test_what_a_look_shows_is_counted_once() -> None:
    """A job that waits there with an expected start, or runs, is in the look; one that ran since before it, too."""
    core = site_with(4)
    shown = BatchSnapshot(
        4, 60_000, ((0, 4), (2_000, 0), (12_000, 4)), (RequestStatus(1, 1, "waiting", 2_000, "", True),)
    )
    core.handle(0, shown)
    assert starts(core, 0) == 12_000
    core.handle(2_000, BatchSnapshot(4, 60_000, shown.free_from, (RequestStatus(1, 1, "ready", 2_000),)))
    assert starts(core, 2_000) == 12_000
    core = site_with(4)
    core.handle(0, seen(RequestStatus(1, 1, "ready")))
    core.handle(3_000, BatchSnapshot(4, 60_000, ((3_000, 1), (9_000, 4))))
    assert (starts(core, 3_000), starts(core, 3_000, 4)) == (3_000, 9_000)


def test_free_nodes_are_those_that_the_batch_system_would_give() -> None:
    """In quotes and reasons, whatever the site itself has started."""
    core = site_with()
    core.handle(0, seen())
    said, run = core.quote(0, Job(job_id=9, width=2, estimate_ms=10_000))
    assert run is not None
    assert (said.free, said.start_ms) == (1, 1_000)
    assert said.reason == "it needs 2 nodes, 1 of 4 nodes is free, and no job of this site waits"


def test_an_expected_start_is_never_in_the_past() -> None:
    """What was to start a moment ago is expected now."""
    core = site_with(1)
    core.handle(0, seen(RequestStatus(1, 1, "waiting", 50, "others go first", True)))
    assert core.explain(80, 1).start_ms == 80


def test_a_job_starts_when_its_nodes_are_there() -> None:
    """Whichever the batch system gives first; until then nothing starts, and all that wait are asked for."""
    core = site_with(3, 2)
    assert asked(core) == [(1, 1, False), (2, 2, False)]
    assert core.handle(5, seen(RequestStatus(1, 1, "waiting", 900, "others go first"))) == []
    assert core.explain(5, 1).reason == "others go first"
    assert core.explain(5, 1).start_ms == 900
    assert core.handle(6, seen(RequestStatus(2, 2, "ready"))) == [StartJob(2, ((0, 2),))]
    assert asked(core) == [(2, 2, True), (1, 1, False)]
    # A ready job has to wait for room among the places of the site, as when a part of an older one ends late.
    assert core.handle(7, seen(RequestStatus(1, 1, "ready"))) == []
    assert core.handle(8, JobFinished(2)) == [StartJob(1, ((0, 3),))]


def test_lost_nodes_are_asked_for_again_later_under_another_number() -> None:
    """The pause doubles; what is said of an old number counts no more."""
    core = site_with(1)
    core.handle(0, seen(RequestStatus(1, 1, "over", None, "a node failed")))
    assert asked(core, 9_999) == []
    assert core.explain(5_000, 1).reason.startswith(
        "its nodes were lost before it began: a node failed; they are requested"
    )
    assert asked(core, 10_000) == [(1, 2, False)]
    assert core.handle(10_000, seen(RequestStatus(1, 1, "ready"))) == []
    core.handle(10_001, seen(RequestStatus(1, 2, "over", None, "a node failed")))
    assert asked(core, 30_000) == []
    assert asked(core, 30_001) == [(1, 3, False)]


def test_nodes_that_are_lost_again_and_again_are_not_asked_for_for_ever() -> None:
    """It is told how often, why, and when next; in the end the job is refused with that."""
    core, now_ms, last_ms = site_with(1), 0, 0
    for ask in range(1, MOST_LOST):
        assert asked(core, now_ms) == [(1, ask, False)]
        assert core.handle(now_ms, seen(RequestStatus(1, ask, "over", None, "its nodes did not boot"))) == []
        said = core.explain(now_ms, 1).reason
        assert ask == 1 or f"lost {ask} times before it began, the last time: its nodes did not boot; they are" in said
        last_ms, now_ms = now_ms, now_ms + min(FIRST_PAUSE_MS * 2 ** (ask - 1), LONGEST_PAUSE_MS)
        assert asked(core, now_ms - 1) == []
        assert core.explain(now_ms, 1).reason.startswith(
            "its nodes are being requested from the batch system; its nodes were"
        )
    assert now_ms - last_ms == LONGEST_PAUSE_MS
    (refused,) = core.handle(now_ms, seen(RequestStatus(1, MOST_LOST, "over", None, "a node failed")))
    assert refused == RefuseJob(1, "its nodes were lost 10 times before it began, the last time: a node failed")
    assert asked(core, now_ms + LONGEST_PAUSE_MS) == []


def test_what_the_batch_system_refuses_or_somebody_cancels_there_is_refused() -> None:
    """With its reason; and a job that it could never take is refused at once."""
    core = site_with(1, 1)
    said = seen(
        RequestStatus(1, 1, "refused", None, "no such account"),
        RequestStatus(2, 2, "cancelled", None, "cancelled there"),
    )
    assert core.handle(1, said) == [RefuseJob(1, "no such account"), RefuseJob(2, "cancelled there")]
    (refused,) = core.handle(2, JobSubmitted(Job(job_id=3, width=1, estimate_ms=70_000)))
    assert isinstance(refused, RefuseJob)
    assert "its batch system lends nodes for at most 1 min" in refused.reason
    (refused,) = core.handle(2, JobSubmitted(Job(job_id=4, width=5, estimate_ms=1)))
    assert refused == RefuseJob(4, "the site has 4 nodes", is_final=True)


def test_a_job_that_was_taken_before_its_limit_was_known_to_be_too_high() -> None:
    """Before the first look, or when nodes were given for longer: it is refused when that is seen; others are not."""
    core = site_with(1, 1)
    core.handle(0, JobSubmitted(Job(job_id=3, width=1, estimate_ms=70_000)))
    (refused,) = core.handle(1, seen(RequestStatus(3, 3, "waiting", None, "others go first")))
    reason = "its batch system lends nodes for at most 1 min, but the job may take 1 min 10 s; give it a lower limit"
    assert refused == RefuseJob(3, reason)
    both = RequestStatus(1, 1, "ready"), RequestStatus(2, 2, "refused", None, "never")
    assert core.handle(2, seen(*both)) == [RefuseJob(2, "never"), StartJob(1, ((0, 1),))]
    core.handle(3, JobSubmitted(Job(job_id=4, width=1, estimate_ms=60_000)))
    (refused,) = core.handle(4, msgspec.structs.replace(seen(), longest_ms=59_999))
    assert isinstance(refused, RefuseJob)
    assert refused.job_id == 4
    assert asked(core) == [(1, 1, True)]


def test_no_more_is_asked_for_than_may_be() -> None:
    """The caps: so many jobs; and on a larger cluster no more nodes than the site may have."""
    core = site_with(1, 1, 1, most_asked=2)
    assert asked(core) == [(1, 1, False), (2, 2, False)]
    core = site_with(3, 2, 1)
    core.handle(0, seen(nodes=100))
    assert asked(core) == [(1, 1, False)]
    assert core.explain(0, 2).reason.startswith("nodes are requested for the jobs ahead of it")


def test_the_contract_with_the_grid() -> None:
    """A delegated job can be taken back until it starts; what comes for it later starts nothing."""
    core = ContractCore(4, BatchPolicy())
    core.handle(0, seen())
    quotes = core.handle(1, RequestQuote(quote_id=1, width=1, length_ms=500), RequestQuote(2, 3, 500))
    answers = [told.answer for told in quotes if isinstance(told, ToGrid)]
    assert [(each.free, each.start_ms) for each in answers if isinstance(each, Quoted)] == [(1, 1), (1, 1_000)]
    assert not any(each.takes_parts for each in answers if isinstance(each, Quoted))
    (told,) = core.handle(1, ReserveNodes(9, 1, 1, 500, 1_000))
    assert isinstance(told, ToGrid)
    assert isinstance(told.answer, Refused)
    assert told.answer.reason.endswith("nodes cannot be held there without pilots")
    for job_id in (7, 8):
        assert core.handle(2, EnqueueJob(Job(job_id=job_id, width=2, estimate_ms=1_000), 1, 10_000)) == []
    assert core.handle(3, WithdrawJob(7, 1)) == [ToGrid(Withdrawn(7, 1))]
    said = core.handle(4, seen(RequestStatus(7, 1, "ready"), RequestStatus(8, 2, "ready")))
    assert said == [ToGrid(changed(1, 1)), StartJob(8, ((0, 2),)), ToGrid(Started(8, 1, 4))]
    core.handle(5, EnqueueJob(Job(job_id=9, width=1, estimate_ms=1_000), 1, 10_000))
    said = core.handle(6, seen(RequestStatus(9, 3, "cancelled", None, "it was cancelled in Slurm")))
    assert said == [ToGrid(Refused(9, 1, "it was cancelled in Slurm", "job"))]
    core.check_invariants()


def test_a_site_that_is_drained() -> None:
    """It takes nothing new of the grid, and tells it of no free nodes; what it had taken is asked for, and runs."""
    core = ContractCore(4, BatchPolicy())
    core.handle(0, seen())
    assert core.handle(1, EnqueueJob(Job(job_id=1, width=1, estimate_ms=1_000), 1, 10**9)) == []
    assert core.handle(2, DrainSite()) == [ToGrid(changed(4, 0, "the site is being drained"))]
    said = core.handle(3, EnqueueJob(Job(job_id=2, width=1, estimate_ms=1_000), 1, 10**9), RequestQuote(1, 1, 500))
    answers = [each.answer for each in said if isinstance(each, ToGrid)]
    assert [each.reason for each in answers if isinstance(each, Refused)] == ["the site is being drained"]
    assert [(each.free, each.start_ms) for each in answers if isinstance(each, Quoted)] == [(0, None)]
    assert asked(core.site, 3) == [(1, 1, False)]
    started = core.handle(4, seen(RequestStatus(1, 1, "ready")))
    assert StartJob(1, ((0, 1),)) in started
    core.handle(5, JobFinished(1))
    assert asked(core.site, 5) == []
    assert core.handle(6, ResumeSite()) == [ToGrid(changed(3, 1))]


def test_the_grid_hears_when_a_job_is_put_off() -> None:
    """When the batch system has it wait, once; then when it is to start a minute later than was told, or more."""
    core = ContractCore(4, BatchPolicy())
    core.handle(0, seen())
    core.handle(1, EnqueueJob(Job(job_id=7, width=2, estimate_ms=1_000), 1, 10**9))
    said = []
    for now_ms, start_ms, is_put_off in (
        (2, None, False), (3, None, True), (4, None, True), (5, 70_000, True), (6, 130_000, True), (7, 130_001, True),
        (8, 80_000, True),
    ):  # fmt: skip
        said.append(core.handle(now_ms, seen(RequestStatus(7, 1, "waiting", start_ms, "others go first", is_put_off))))
    told: list[list[ToGrid]] = [[ToGrid(Enqueued(7, 1, start_ms))] for start_ms in (None, 70_000, 130_001)]
    assert said == [[], told[0], [], told[1], [], told[2], []]


def test_the_grid_hears_at_once_of_a_job_that_no_nodes_are_asked_for() -> None:
    """Neither for one that the owner's share keeps out, nor for those behind the most that are asked for at a time."""
    core = ContractCore(4, BatchPolicy(most_asked=1), owner=OwnerPolicy(grid_share=0.5))
    core.handle(0, seen())
    jobs = [EnqueueJob(Job(job_id=number, width=1, estimate_ms=1_000), 1, 10**9) for number in (1, 2, 3)]
    assert core.handle(1, *jobs) == [ToGrid(Enqueued(3, 1)), ToGrid(Enqueued(2, 1))]


def test_the_grid_hears_what_other_users_leave_of_the_nodes() -> None:
    """As the batch system was seen last; what a job of the grid has just been given is not told as theirs."""
    core = ContractCore(4, BatchPolicy())
    assert core.handle(0, seen()) == [ToGrid(changed(3, 1))]
    assert core.handle(1, BatchSnapshot(4, None, ((1, 4),))) == [ToGrid(SiteChanged(0, 4))]
    core.handle(2, EnqueueJob(Job(job_id=1, width=3, estimate_ms=1_000), 1, 10**9))
    said = core.handle(3, BatchSnapshot(4, None, ((1, 4),), (RequestStatus(1, 1, "ready"),)))
    assert said == [StartJob(1, ((0, 3),)), ToGrid(Started(1, 1, 3))]
    assert core.handle(4, BatchSnapshot(4, None, ((4, 1),))) == []
    assert core.handle(5, BatchSnapshot(0, None, (), problem="nobody answers")) == [ToGrid(SiteChanged(1, 0))]


def test_its_state_is_kept() -> None:
    """Written down and read again it goes on where it stood, and no number is used twice."""
    core = site_with(3, 2)
    core.handle(6, seen(RequestStatus(2, 2, "ready"), RequestStatus(1, 1, "over", None, "lost")))
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(core.state()), type=core.state_type)
    other = SiteCore(4, BatchPolicy())
    other.restore(kept)
    for each in (core, other):
        each.handle(7, JobSubmitted(Job(job_id=9, width=1, estimate_ms=10)))
        assert asked(each, 20_000) == [(2, 2, True), (1, 3, False), (9, 4, False)]
        assert each.explain(7, 9).reason == "its nodes are being requested from the batch system"
    core.handle(8, seen(problem="squeue fails: nobody answers"))
    assert core.explain(8, 9).reason == "squeue fails: nobody answers"
