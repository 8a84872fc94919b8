"""Co-allocation: all fragments are committed, or none; and what becomes of an attempt is told once."""

from __future__ import annotations

import pytest

from gridweave.grid.control.coallocation import ENDED, FAILED, MOVED, PART_ENDED, REFUSED, AttemptChange, CoAllocator
from gridweave.grid.messages import ToSite
from gridweave.site.job import Job
from gridweave.site.messages import (
    Answer,
    CancelJob,
    CommitNodes,
    Ended,
    Enqueued,
    LeaseEnded,
    Refused,
    ReleaseNodes,
    Reserved,
    ReserveNodes,
    Started,
)

MARGIN_MS = 40
JOB = Job(job_id=7, width=6, estimate_ms=100)
PARTS = ((0, 3), (2, 2), (1, 1))


def begun(fragments: tuple[tuple[int, int], ...] = PARTS) -> CoAllocator:
    """Return a co-allocator that has asked for the fragments of job 7 at 10 ms, for 120 ms."""
    allocator = CoAllocator(MARGIN_MS)
    allocator.begin(10, JOB, 1, fragments, 120)
    return allocator


def to_all(request: object, sites: tuple[int, ...] = (0, 2, 1)) -> list[object]:
    """Return the same request to several sites."""
    return [ToSite(site, request) for site in sites]  # type: ignore[arg-type]


def kind_of(change: AttemptChange | None) -> tuple[str, tuple[int, ...]] | None:
    """Return what has changed and the sites that are named."""
    return None if change is None else (change.kind, change.sites)


def committed() -> CoAllocator:
    """Return a co-allocator all of whose fragments are committed."""
    allocator = begun()
    for site in (0, 1):
        assert allocator.answered(20, site, Reserved(7, 1)) == ([], None)
    assert allocator.answered(21, 2, Reserved(7, 1)) == (to_all(CommitNodes(7, 1)), None)
    return allocator


def test_a_single_fragment_is_asked_to_start() -> None:
    """One fragment needs no agreement: its hold has no start, and it is not given up while its site is silent."""
    allocator = CoAllocator(MARGIN_MS)
    assert allocator.begin(10, JOB, 3, ((1, 6),), 100) == [ToSite(1, ReserveNodes(7, 3, 6, 100))]
    assert allocator.next_wakeup_ms() is None
    assert allocator.expire(10**9) == ([], [])
    requests, change = allocator.answered(55, 1, Started(7, 3, 50))
    assert (requests, kind_of(change)) == ([], (MOVED, ()))
    assert allocator.attempts[7].start_ms == 50
    requests, change = allocator.answered(90, 1, Ended(7, 3, 90, "finished"))
    assert (requests, kind_of(change)) == ([], (ENDED, ()))
    assert change is not None
    assert change.attempt.outcome == "finished"
    assert allocator.attempts == {}


def test_several_fragments_agree_on_a_start() -> None:
    """All sites are asked to hold until one instant, and none is committed before all have granted."""
    allocator = CoAllocator(MARGIN_MS)
    assert allocator.begin(10, JOB, 1, PARTS, 120) == [
        ToSite(site, ReserveNodes(7, 1, width, 120, 10 + MARGIN_MS)) for site, width in PARTS
    ]
    assert allocator.answered(20, 0, Reserved(7, 1)) == ([], None)
    assert allocator.answered(20, 0, Reserved(7, 1)) == ([], None), "a repeated answer is one answer"
    assert allocator.answered(21, 2, Reserved(7, 1)) == ([], None)
    assert allocator.answered(22, 1, Reserved(7, 1)) == (to_all(CommitNodes(7, 1)), None)
    assert allocator.next_wakeup_ms() is None


def test_one_refusal_releases_all() -> None:
    """When a site refuses, the others are released, granted or not, and the one that refused is named."""
    allocator = begun()
    allocator.answered(20, 0, Reserved(7, 1))
    requests, change = allocator.answered(21, 1, Refused(7, 1, "no"))
    assert (requests, kind_of(change)) == (to_all(ReleaseNodes(7, 1), (0, 2)), (REFUSED, (1,)))
    assert allocator.answered(22, 2, Reserved(7, 1)) == ([], None), "it is over"
    assert allocator.attempts == {}


def test_a_hold_that_ends_before_all_are_granted_releases_all() -> None:
    """When a site fails while the others are still asked, the attempt is given up."""
    allocator = begun()
    allocator.answered(20, 0, Reserved(7, 1))
    requests, change = allocator.answered(21, 0, LeaseEnded(7, 1))
    assert (requests, kind_of(change)) == (to_all(ReleaseNodes(7, 1), (2, 1)), (FAILED, ()))


def test_silence_releases_all() -> None:
    """What not all have granted by the agreed start is released, and the silent sites are named; no sooner."""
    allocator = begun()
    allocator.answered(20, 2, Reserved(7, 1))
    assert allocator.next_wakeup_ms() == 51
    assert allocator.expire(50) == ([], [])
    requests, changes = allocator.expire(51)
    assert requests == to_all(ReleaseNodes(7, 1))
    assert [kind_of(change) for change in changes] == [(FAILED, (0, 1))]
    assert allocator.next_wakeup_ms() is None


def test_a_lease_that_ends_is_no_fault_of_its_site() -> None:
    """When a granted hold ends because others were silent until the agreed start, it is they who are named."""
    allocator = begun()
    allocator.answered(20, 2, Reserved(7, 1))
    requests, change = allocator.answered(51, 2, LeaseEnded(7, 1))
    assert (requests, kind_of(change)) == (to_all(ReleaseNodes(7, 1), (0, 1)), (FAILED, (0, 1)))


def test_the_last_grant_may_come_too_late() -> None:
    """A grant that arrives after the agreed start commits nothing; one at that very instant does."""
    allocator = begun(((0, 3), (1, 3)))
    allocator.answered(50, 0, Reserved(7, 1))
    assert allocator.answered(51, 1, Reserved(7, 1)) == ([], None)
    assert len(allocator.expire(51)[0]) == 2
    allocator = begun(((0, 3), (1, 3)))
    allocator.answered(50, 0, Reserved(7, 1))
    assert allocator.answered(50, 1, Reserved(7, 1)) == (to_all(CommitNodes(7, 1), (0, 1)), None)


def test_a_start_as_it_was_thought_changes_nothing() -> None:
    """A single fragment that starts at the instant at which it was asked for is no news."""
    allocator = CoAllocator(MARGIN_MS)
    allocator.begin(10, JOB, 3, ((1, 6),), 100)
    assert allocator.answered(12, 1, Started(7, 3, 10)) == ([], None)


def test_an_attempt_ends_when_all_of_it_has() -> None:
    """The end of a job is told when the last fragment has left its nodes; before that, which parts have."""
    allocator = committed()
    for site in (0, 1):
        assert allocator.answered(60, site, Started(7, 1, 50)) == ([], None)
        _, change = allocator.answered(150, site, Ended(7, 1, 140, "finished"))
        assert kind_of(change) == (PART_ENDED, (site,))
        assert allocator.answered(151, site, Ended(7, 1, 140, "finished")) == ([], None), "it is told once"
    _, change = allocator.answered(160, 2, Ended(7, 1, 140, "finished"))
    assert change is not None
    assert (change.kind, change.attempt.outcome, change.attempt.cancelled) == (ENDED, "finished", False)


@pytest.mark.parametrize("how", ["lost", "unmet", "lease-ended"])
def test_an_attempt_that_lost_a_part_is_tried_again(how: str) -> None:
    """If a fragment was lost, or did not start in time, the whole job has not run, whatever the others say."""
    allocator = committed()
    answer: Answer = LeaseEnded(7, 1) if how == "lease-ended" else Ended(7, 1, 70, how)
    requests, change = allocator.answered(80, 1, answer)
    assert kind_of(change) == (PART_ENDED, (1,))
    # A failed site takes the others with it, and so does one that has given up: others may think that all are there.
    # Where a start was missed none can think so, and they find out by themselves.
    assert requests == ([] if how == "lease-ended" else to_all(CancelJob(7, 1), (0, 2)))
    allocator.answered(81, 0, Ended(7, 1, 81, "unmet" if how == "lease-ended" else "cancelled"))
    _, change = allocator.answered(82, 2, Ended(7, 1, 81, "finished" if how == "lost" else "unmet"))
    assert change is not None
    assert change.kind == ENDED
    assert change.attempt.outcome is None
    assert not change.attempt.cancelled, "no user has asked for its end"


def test_killed_at_the_limit_is_an_outcome() -> None:
    """Of different outcomes the job has the one that is not that it finished."""
    allocator = committed()
    allocator.answered(180, 0, Ended(7, 1, 170, "limit"))
    allocator.answered(180, 1, Ended(7, 1, 170, "finished"))
    _, change = allocator.answered(180, 2, Ended(7, 1, 170, "finished"))
    assert change is not None
    assert change.attempt.outcome == "limit"


def test_a_cancelled_attempt_is_not_committed() -> None:
    """After its user has cancelled it an attempt is not committed though all sites grant it."""
    allocator = begun()
    allocator.answered(20, 0, Reserved(7, 1))
    assert allocator.cancel(7) == to_all(CancelJob(7, 1))
    assert allocator.cancel(7) == [], "it is said once"
    assert allocator.answered(21, 1, Reserved(7, 1)) == ([], None)
    assert allocator.answered(21, 2, Reserved(7, 1)) == ([], None)
    assert allocator.expire(60) == ([], [])
    for site in (0, 1):
        requests, change = allocator.answered(30, site, LeaseEnded(7, 1))
        assert (requests, kind_of(change)) == ([], (PART_ENDED, (site,)))
    _, change = allocator.answered(30, 2, LeaseEnded(7, 1))
    assert change is not None
    assert (change.kind, change.attempt.outcome, change.attempt.cancelled) == (ENDED, None, True)


def test_what_is_said_of_another_attempt_is_passed_over() -> None:
    """An answer about an attempt that is over, or a job that is not known, changes nothing."""
    allocator = begun()
    for answer in (Reserved(7, 2), Reserved(8, 1), Ended(7, 9, 5, "finished"), Started(9, 1, 5)):
        assert allocator.answered(20, 0, answer) == ([], None)
    assert allocator.answered(20, 0, Enqueued(7, 1)) == ([], None)
    assert allocator.attempts[7].missing == {0, 1, 2}


def test_the_margin_grows_when_a_start_comes_too_soon_and_shrinks_again() -> None:
    """Refused after the start, or not granted by it: twice as long, to a bound; granted by all: a quarter less."""
    allocator = CoAllocator(100)
    job, now_ms = Job(job_id=1, width=4, estimate_ms=50), 0
    for number, margin_ms in enumerate((100, 200, 400, 800, 1600, 1600), start=1):
        allocator.begin(now_ms, job, number, ((0, 2), (1, 2)), 50)
        assert allocator.attempts[1].start_ms == now_ms + margin_ms
        now_ms += margin_ms + 1
        if number % 2:
            allocator.answered(now_ms, 0, Refused(1, number, "too late"))
        else:
            allocator.expire(now_ms)
    again = CoAllocator(100)
    again.restore(allocator.state())
    for number, margin_ms in enumerate((1600, 1200, 900, 675, 506, 379, 284, 213, 159, 119, 100, 100), start=7):
        assert again.margin_ms == margin_ms
        again.begin(now_ms, job, number, ((0, 2), (1, 2)), 50)
        for site in (0, 1):
            again.answered(now_ms, site, Reserved(1, number))
        again.answered(now_ms, 0, Ended(1, number, now_ms, "lost"))
        again.answered(now_ms, 1, Ended(1, number, now_ms, "cancelled"))


def test_a_refusal_in_time_leaves_the_margin_as_it_is() -> None:
    """That a site has no nodes says nothing of how long messages take."""
    allocator = CoAllocator(100)
    allocator.begin(0, Job(job_id=1, width=4, estimate_ms=50), 1, ((0, 2), (1, 2)), 50)
    allocator.answered(20, 0, Refused(1, 1, "busy"))
    assert allocator.margin_ms == 100
