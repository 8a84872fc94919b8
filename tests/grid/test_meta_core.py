"""MetaCore under full control, spoken to as the sites and the users speak to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gridweave.errors import InputError, OptionError
from gridweave.grid.messages import (
    FromSite,
    GridJobCancelled,
    GridJobHeld,
    GridJobSubmitted,
    ReportDone,
    ReportHeld,
    ReportRefused,
    ToSite,
)
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Job
from gridweave.site.messages import (
    Answer,
    CancelJob,
    CommitNodes,
    Ended,
    LeaseEnded,
    Quoted,
    Refused,
    ReleaseNodes,
    Reserved,
    ReserveNodes,
    SiteChanged,
    Started,
)
from support.stepping import RETRY_MS, do, meta, said, submitted


def grid(*nodes: int, **options: Any) -> MetaCore:
    """Return a meta-scheduler in mode multi-site, unless said otherwise."""
    return meta(*nodes, **{"mode": "multi-site", **options})


def test_a_job_goes_where_it_fits_best() -> None:
    """A job is asked for at the site where it leaves the fewest nodes free, and reported when it has ended."""
    core = grid(8, 4)
    assert do(core, 0, submitted(1, 3)) == [ToSite(1, ReserveNodes(1, 1, 3, 100))]
    assert do(core, 5, *said(1, Started(1, 1, 5))) == []
    assert do(core, 60, *said(1, Ended(1, 1, 60, "finished"))) == [ReportDone(1, "finished")]


def test_a_split_job_is_held_then_committed() -> None:
    """A job on two sites is held on both for one start, then committed on both, and done when both have ended."""
    core = grid(4, 4, margin_ms=40, overhead=0.5)
    assert do(core, 0, submitted(1, 6)) == [
        ToSite(0, ReserveNodes(1, 1, 4, 150, 40)),
        ToSite(1, ReserveNodes(1, 1, 2, 150, 40)),
    ]
    assert do(core, 10, *said(1, Reserved(1, 1))) == []
    assert do(core, 11, *said(0, Reserved(1, 1))) == [ToSite(0, CommitNodes(1, 1)), ToSite(1, CommitNodes(1, 1))]
    assert do(core, 50, *said(0, Started(1, 1, 40)), *said(1, Started(1, 1, 40))) == []
    assert do(core, 200, *said(0, Ended(1, 1, 190, "finished"))) == []
    assert do(core, 201, *said(1, Ended(1, 1, 190, "finished"))) == [ReportDone(1, "finished")]


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_nodes_of_a_part_that_is_over_are_given_to_others(backfill: str) -> None:
    """The other site may be silent: what waits starts where the part has ended, and nothing is counted twice."""
    core = grid(4, 4, backfill=backfill)
    do(core, 0, submitted(1, 6, 1_000))
    do(core, 0, *said(0, Reserved(1, 1)), *said(1, Reserved(1, 1)))
    assert do(core, 1, submitted(2, 4), submitted(3, 3), submitted(4, 4)) == []
    assert do(core, 60, *said(0, Ended(1, 1, 60, "finished"))) == [ToSite(0, ReserveNodes(2, 1, 4, 100))]
    assert do(core, 61, *said(0, Ended(1, 1, 60, "finished"))) == []
    done = do(core, 70, *said(1, Ended(1, 1, 60, "finished")))
    assert done == [ReportDone(1, "finished"), ToSite(1, ReserveNodes(3, 1, 3, 100))]
    done = do(core, 80, *said(0, Ended(2, 1, 80, "finished")))
    assert done == [ReportDone(2, "finished"), ToSite(0, ReserveNodes(4, 1, 4, 100))]


def test_a_job_that_lost_a_part_is_begun_anew_with_all_its_nodes() -> None:
    """One part had ended already, and its nodes are free: the job waits again, and is placed as a whole."""
    core = grid(4, 4)
    do(core, 0, submitted(1, 6, 1_000))
    do(core, 0, *said(0, Reserved(1, 1)), *said(1, Reserved(1, 1)))
    assert do(core, 60, *said(0, Ended(1, 1, 60, "finished"))) == []
    again = do(core, 70, *said(1, Ended(1, 1, 70, "lost")))
    assert [(request.site, request.request.width) for request in again] == [(0, 4), (1, 2)]


def test_nodes_that_are_asked_for_are_not_given_twice() -> None:
    """While a site has not answered, the nodes that were asked of it count as taken."""
    core = grid(4)
    assert len(do(core, 0, submitted(1, 3))) == 1
    assert do(core, 1, submitted(2, 2)) == []
    assert do(core, 9, *said(0, Started(1, 1, 9))) == []
    assert do(core, 20, *said(0, Ended(1, 1, 20, "finished"))) == [
        ReportDone(1, "finished"),
        ToSite(0, ReserveNodes(2, 1, 2, 100)),
    ]


def test_a_job_that_can_never_run_is_refused() -> None:
    """A job that the idle grid could not place is refused at once, with the reason."""
    core = grid(4, 4)
    (refusal,) = do(core, 0, submitted(1, 9))
    assert isinstance(refusal, ReportRefused)
    assert "all sites together have 8" in refusal.reason


def test_a_refused_job_is_tried_elsewhere() -> None:
    """A site that refuses without a reason that is known is left alone for a while, and the job goes elsewhere."""
    core = grid(4, 8)
    assert do(core, 0, submitted(1, 3)) == [ToSite(0, ReserveNodes(1, 1, 3, 100))]
    assert do(core, 5, *said(0, Refused(1, 1, "drained"))) == [ToSite(1, ReserveNodes(1, 2, 3, 100))]
    assert do(core, 6, submitted(2, 4)) == [ToSite(1, ReserveNodes(2, 1, 4, 100))]
    assert do(core, 7, submitted(3, 2)) == []
    assert core.next_wakeup_ms() == 5 + RETRY_MS
    assert do(core, 5 + RETRY_MS) == [ToSite(0, ReserveNodes(3, 1, 2, 100))], "now it is asked again"


def test_a_refused_job_keeps_its_place() -> None:
    """A job that comes back into the queue stands where it stood by its submission."""
    core = grid(4)
    assert len(do(core, 0, submitted(1, 4))) == 1
    assert do(core, 1, submitted(2, 4)) == []
    assert do(core, 2, *said(0, SiteChanged(1, 3), Refused(1, 1, "others have them"))) == []
    assert do(core, 3, *said(0, SiteChanged(0, 4))) == [ToSite(0, ReserveNodes(1, 2, 4, 100))]


def test_a_site_that_says_why_is_asked_again_when_that_has_changed() -> None:
    """The grid leaves the nodes that others have out of its plans, and uses them when it hears that they are free."""
    core = grid(4, 2)
    assert do(core, 0, *said(0, SiteChanged(3, 1))) == []
    assert do(core, 1, submitted(1, 2)) == [ToSite(1, ReserveNodes(1, 1, 2, 100))]
    assert do(core, 2, submitted(2, 4)) == []
    assert do(core, 3, *said(0, SiteChanged(0, 4))) == [ToSite(0, ReserveNodes(2, 1, 4, 100))]


def test_a_lost_job_is_begun_anew() -> None:
    """A job whose site failed is placed again under a new number, and what is said of the old one is passed over."""
    core = grid(4, 2)
    do(core, 0, submitted(1, 2))
    do(core, 1, *said(1, Started(1, 1, 1)))
    assert do(core, 30, *said(1, Ended(1, 1, 30, "lost"))) == [ToSite(1, ReserveNodes(1, 2, 2, 100))]
    assert do(core, 31, *said(1, Ended(1, 1, 30, "finished"))) == []
    assert do(core, 32, *said(1, Started(1, 2, 32))) == []


def test_one_lost_fragment_takes_the_others_with_it() -> None:
    """When one site of a running job has failed the others are told to end it, and it is placed again, not given up."""
    core = grid(4, 4)
    do(core, 0, submitted(1, 6))
    do(core, 0, *said(0, Reserved(1, 1)), *said(1, Reserved(1, 1)))
    do(core, 1, *said(0, Started(1, 1, 0)), *said(1, Started(1, 1, 0)))
    assert do(core, 30, *said(0, Ended(1, 1, 30, "lost"))) == [ToSite(1, CancelJob(1, 1))]
    assert do(core, 40, *said(1, Ended(1, 1, 40, "cancelled"))) == [
        ToSite(0, ReserveNodes(1, 2, 4, 100, 40)),
        ToSite(1, ReserveNodes(1, 2, 2, 100, 40)),
    ]


def test_a_silent_site_keeps_its_job() -> None:
    """A job that was sent to one site is not sent elsewhere while nothing is heard of it: it may run there."""
    core = grid(4, 4)
    assert do(core, 0, submitted(1, 2)) == [ToSite(0, ReserveNodes(1, 1, 2, 100))]
    assert core.next_wakeup_ms() is None
    assert do(core, 10**9) == []


def test_a_start_that_not_all_grant_is_given_up() -> None:
    """At the agreed start what is not granted by all is released, and tried without those that were silent; later."""
    core = grid(4, 4, 4, margin_ms=40)
    do(core, 0, submitted(1, 6))
    do(core, 10, *said(0, Reserved(1, 1)))
    assert core.next_wakeup_ms() == 41
    assert do(core, 41) == [
        ToSite(0, ReleaseNodes(1, 1)),
        ToSite(1, ReleaseNodes(1, 1)),
        ToSite(0, ReserveNodes(1, 2, 4, 100, 121)),
        ToSite(2, ReserveNodes(1, 2, 2, 100, 121)),
    ]


@pytest.mark.parametrize("state", ["waiting", "asked", "started"])
def test_a_cancelled_job_ends_wherever_it_is(state: str) -> None:
    """A job is cancelled in the queue, while its nodes are asked for, and while it runs; it is reported once."""
    core = grid(4, 4)
    if state == "waiting":
        do(core, 0, *said(0, SiteChanged(4, 0)))
    do(core, 0, submitted(1, 6))
    if state == "waiting":
        assert do(core, 1, GridJobCancelled(1)) == [ReportDone(1, "cancelled")]
    else:
        if state == "started":
            do(core, 0, *said(0, Reserved(1, 1)), *said(1, Reserved(1, 1)))
        ends = [ToSite(0, CancelJob(1, 1)), ToSite(1, CancelJob(1, 1))]
        assert do(core, 1, GridJobCancelled(1), GridJobCancelled(1)) == ends
        over: Answer = Ended(1, 1, 2, "cancelled") if state == "started" else LeaseEnded(1, 1)
        assert do(core, 2, *said(0, over)) == []
        assert do(core, 3, *said(1, over)) == [ReportDone(1, "cancelled")]
    assert do(core, 4, GridJobCancelled(1)) == []


@pytest.mark.parametrize("answer", [Ended(1, 1, 2, "lost"), Refused(1, 1, "full")])
def test_a_cancelled_job_is_not_begun_anew(answer: Answer) -> None:
    """A job that its user has cancelled is not placed again though it was lost or refused."""
    core = grid(4, 4)
    do(core, 0, submitted(1, 2))
    assert do(core, 1, GridJobCancelled(1)) == [ToSite(0, CancelJob(1, 1))]
    assert do(core, 2, *said(0, answer)) == [ReportDone(1, "cancelled")]


def test_a_job_is_taken_in_once() -> None:
    """A submission that comes twice is one job."""
    core = grid(4)
    assert len(do(core, 0, submitted(1, 4), submitted(1, 4))) == 1
    assert do(core, 1, submitted(1, 4)) == []


def test_events_of_one_instant_have_one_order() -> None:
    """Ends come first, by job id, then what else sites say, then cancellations, then submissions as given."""
    core = grid(4)
    do(core, 0, submitted(1, 2), submitted(2, 2))
    commands = do(
        core,
        50,
        submitted(4, 1),
        GridJobCancelled(3),
        submitted(3, 4),
        *said(0, Ended(2, 1, 50, "finished"), Ended(1, 1, 50, "finished")),
    )
    assert commands[:2] == [ReportDone(1, "finished"), ReportDone(2, "finished")]
    assert commands[2:] == [ToSite(0, ReserveNodes(3, 1, 4, 100))], "it was not there yet when it was cancelled"


class Sites:
    """Sites that say anything, in any order and several things at an instant, of what they were asked for."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._asked: list[tuple[int, int, ReserveNodes]] = []
        self._committed: set[tuple[int, int]] = set()
        self._n_jobs = 0

    def asked(self, now_ms: int, commands: list[Any]) -> None:
        """Take note of requests for nodes, and of what may start."""
        for command in commands:
            request = command.request if isinstance(command, ToSite) else None
            if isinstance(request, ReserveNodes):
                self._asked.append((now_ms, command.site, request))
            elif isinstance(request, CommitNodes):
                self._committed.add((request.job_id, request.attempt))

    def events(self, now_ms: int) -> list[Any]:
        """Return what happens next."""
        return [self._event(now_ms) for _ in range(int(self._rng.integers(1, 5)))]

    def _event(self, now_ms: int) -> Any:
        rng = self._rng
        kind = rng.choice(["submit", "start", "held", "end", "refuse", "lost", "cancel"], p=WHAT_HAPPENS)
        if kind == "submit" or not self._asked:
            self._n_jobs += 1
            return submitted(self._n_jobs, int(rng.integers(1, 8)), int(rng.integers(1, 60)))
        asked_ms, site, request = self._asked[-1 - int(rng.integers(min(4, len(self._asked))))]
        job_id, attempt = request.job_id, request.attempt - int(rng.random() < 0.1)
        start_ms = asked_ms if request.start_ms is None else request.start_ms
        if (
            request.start_ms is not None
            and (job_id, request.attempt) not in self._committed
            and kind in ("end", "lost")
        ):
            kind = "held"
        said_by_kind: dict[str, Answer] = {
            # It starts once, at an instant of its own.
            "start": Started(job_id, attempt, start_ms + (job_id + request.attempt) % 3 // 2),
            "held": Reserved(job_id, attempt),
            "end": Ended(job_id, attempt, now_ms, "finished"),
            "refuse": Refused(job_id, attempt, "no"),
            "lost": Ended(job_id, attempt, now_ms, "lost"),
        }
        return GridJobCancelled(job_id) if kind == "cancel" else FromSite(site, said_by_kind[kind])


WHAT_HAPPENS = (0.2, 0.35, 0.15, 0.2, 0.04, 0.04, 0.02)


@pytest.mark.parametrize("margin_ms", [0, 40])
@pytest.mark.parametrize("policy", [{}, {"mode": "adaptive", "overhead": 0.3}, {"backfill": "conservative"}], ids=str)
def test_whatever_sites_say_no_job_is_lost(policy: dict[str, Any], margin_ms: int) -> None:
    """Of answers in any order none leads to a state that contradicts itself, and a job leaves the grid once."""
    for seed in range(15):
        core, sites, now_ms = grid(5, 3, margin_ms=margin_ms, **policy), Sites(seed), 0
        gone: set[int] = set()
        for _ in range(60):
            now_ms += int(np.random.default_rng([seed, now_ms]).integers(0, 12))
            commands = do(core, now_ms, *sites.events(now_ms))
            left = [command.job_id for command in commands if isinstance(command, (ReportDone, ReportRefused))]
            assert len(set(left)) == len(left)
            assert gone.isdisjoint(left)
            gone.update(left)
            assert gone.isdisjoint(core.waiting())
            for job_id in list(core.waiting())[:1]:
                assert core.forecast(now_ms, job_id) is not None
            sites.asked(now_ms, commands)
        assert gone


@pytest.mark.parametrize("nodes", [[], [0, 0], [-1, 3]])
def test_a_grid_has_nodes(nodes: list[int]) -> None:
    """A grid without a node is refused."""
    with pytest.raises(OptionError, match="nodes"):
        MetaCore(nodes, GridPolicy())


def test_nodes_of_a_job_that_is_apart_and_held_are_free_again() -> None:
    """It is taken out while one of its sites has reserved nodes; when these are released, others have them."""
    core = grid(4, 4, 4, margin_ms=50)
    quotes = do(core, 0, GridJobSubmitted(Job(job_id=1, width=6, estimate_ms=100), excluded=(2,)))
    asked_for = do(core, 1, *(FromSite(c.site, Quoted(c.request.quote_id, 4, None)) for c in quotes))
    assert [(c.site, c.request.width) for c in asked_for] == [(0, 4), (1, 2)]
    attempt = asked_for[0].request.attempt
    do(core, 2, *said(0, Reserved(1, attempt)), GridJobHeld(1))
    assert do(core, 3, *said(1, Refused(1, attempt, "full"))) == [
        ToSite(0, ReleaseNodes(1, attempt)),
        ReportHeld(1, attempt),
    ]
    do(core, 4, *said(0, LeaseEnded(1, attempt)))
    assert [command.site for command in do(core, 5, submitted(2, 4))] == [0]


def test_a_part_apart_whose_start_and_end_are_heard_at_once_has_no_nodes() -> None:
    """Ends are heard first; while the other part goes on, the nodes of this one are free."""
    core = grid(4, 4, 4, margin_ms=50)
    quotes = do(core, 0, GridJobSubmitted(Job(job_id=1, width=6, estimate_ms=100), excluded=(2,)))
    asked_for = do(core, 1, *(FromSite(c.site, Quoted(c.request.quote_id, 4, None)) for c in quotes))
    attempt = asked_for[0].request.attempt
    do(core, 2, *said(0, Reserved(1, attempt)), *said(1, Reserved(1, attempt)))
    do(core, 60, *said(1, Started(1, attempt, 51)))
    do(core, 70, *said(0, Started(1, attempt, 51), Ended(1, attempt, 52, "finished")))
    assert [command.site for command in do(core, 71, submitted(2, 4))] == [0]


def test_random_needs_a_generator() -> None:
    """The selection random is refused without a seeded generator."""
    with pytest.raises(OptionError, match="rng"):
        MetaCore([2], GridPolicy(selection="random"))


def test_wrong_events_change_nothing() -> None:
    """Time that goes backwards and a site that there is not are refused before anything is taken in."""
    core = grid(4)
    do(core, 10, submitted(1, 4))
    with pytest.raises(InputError, match="time never goes back"):
        core.handle(9, submitted(2, 1))
    with pytest.raises(InputError, match="not one of the 1 sites"):
        core.handle(20, submitted(2, 1), FromSite(3, SiteChanged(0, 0)))
    for bad in (submitted(3, 0), submitted(3, 1, 0), GridJobSubmitted(Job(job_id=3, width=1, estimate_ms=5), -1.0)):
        with pytest.raises(InputError, match="job 3"):
            core.handle(20, submitted(2, 1), bad)
    core.check_invariants()
    assert do(core, 20, *said(0, Ended(1, 1, 20, "finished"))) == [ReportDone(1, "finished")]


def asked(core: MetaCore, now_ms: int, *events: Any) -> list[tuple[int, int]]:
    """Return (site, job) of the nodes that a meta-scheduler asks for."""
    commands = do(core, now_ms, *events)
    requests = [(c.site, c.request) for c in commands if isinstance(c, ToSite)]
    return [(site, request.job_id) for site, request in requests if isinstance(request, ReserveNodes)]


def reserving(*nodes: int, **policy: Any) -> MetaCore:
    """Return a meta-scheduler that reserves starts, on which job 1 has 6 nodes of site 0 until 100 ms."""
    core = grid(*nodes, **{"mode": "sharing", "backfill": "conservative"} | policy)
    assert asked(core, 0, submitted(1, 6)) == [(0, 1)]
    assert asked(core, 0, *said(0, Started(1, 1, 0))) == []
    return core


def test_a_reserved_start_is_a_timer() -> None:
    """A job that waits starts at its reserved start, though nothing is heard then."""
    core = reserving(8, margin_ms=0)
    assert asked(core, 10, submitted(2, 8), submitted(3, 2, 200)) == []
    assert core.next_wakeup_ms() == 100
    assert asked(core, 100, *said(0, Ended(1, 1, 100, "finished"))) == [(0, 2)]
    assert core.next_wakeup_ms() == 200
    asked(core, 150, *said(0, Ended(2, 1, 150, "finished")))
    assert core.next_wakeup_ms() is None


def test_no_job_takes_what_is_reserved_for_another() -> None:
    """A newcomer that would run into a reservation waits, though its nodes are free; one that ends before starts."""
    core = reserving(8)
    assert asked(core, 10, submitted(2, 8)) == []
    assert asked(core, 20, submitted(3, 2, 90)) == []
    assert asked(core, 30, submitted(4, 2, 70)) == [(0, 4)]


def test_a_job_past_its_end_is_waited_for() -> None:
    """While the end of a job is late in coming nothing is asked for on its nodes; then what was reserved starts."""
    core = reserving(8)
    asked(core, 10, submitted(2, 8))
    assert asked(core, 100) == []
    assert core.next_wakeup_ms() == 1100
    assert asked(core, 130, *said(0, Ended(1, 1, 120, "finished"))) == [(0, 2)]


def test_a_refused_start_is_reserved_anew_at_its_place() -> None:
    """A job whose reserved start a site refuses goes before the jobs behind it when all are placed again."""
    core = reserving(8, 8)
    asked(core, 10, submitted(2, 8))
    asked(core, 20, submitted(3, 8), submitted(4, 8))
    assert asked(core, 60, *said(1, Refused(2, 1, "own users"), SiteChanged(8, 0))) == []
    assert core.next_wakeup_ms() == 100
    assert asked(core, 100, *said(0, Ended(1, 1, 100, "finished"))) == [(0, 2)]
    assert asked(core, 110, *said(1, SiteChanged(0, 8))) == [(1, 3)]


def test_a_job_that_fits_nowhere_now_waits_without_a_start() -> None:
    """Where own users have the nodes that a job needs it has no start, until they give them back."""
    core = reserving(8)
    asked(core, 5, *said(0, SiteChanged(2, 0)))
    assert asked(core, 10, submitted(2, 7)) == []
    assert core.next_wakeup_ms() is None
    assert asked(core, 100, *said(0, Ended(1, 1, 100, "finished"))) == []
    assert asked(core, 120, *said(0, SiteChanged(0, 8))) == [(0, 2)]


def test_what_is_withdrawn_lets_others_move_up() -> None:
    """A waiting job that is cancelled gives its reservation to those behind it."""
    core = reserving(8)
    asked(core, 10, submitted(2, 8), submitted(3, 8, 50))
    assert do(core, 20, GridJobCancelled(2)) == [ReportDone(2, "cancelled")]
    assert asked(core, 100, *said(0, Ended(1, 1, 100, "finished"))) == [(0, 3)]


def test_what_is_withdrawn_wakes_nobody() -> None:
    """The start that was reserved for the last job that waited is no timer any more."""
    core = reserving(8)
    asked(core, 10, submitted(2, 8))
    do(core, 20, GridJobCancelled(2))
    assert core.next_wakeup_ms() is None


def test_a_plan_that_nobody_waits_for_may_be_old() -> None:
    """Others had more of a site than was free, and its job ends: no pass has brought the plan up to that yet."""
    core = reserving(8)
    asked(core, 50, *said(0, SiteChanged(4, 0)), submitted(2, 1, 10))
    do(core, 60, GridJobCancelled(2))
    assert asked(core, 100, *said(0, Ended(1, 1, 100, "finished"))) == []


def test_a_split_that_starts_later_than_now_keeps_its_reservations_true() -> None:
    """The agreed start of a split lies ahead, so its end is moved, and what was reserved behind it moves along."""
    core = grid(4, 4, mode="multi-site", backfill="conservative", margin_ms=30)
    assert len(asked(core, 0, submitted(1, 8))) == 2
    assert asked(core, 10, submitted(2, 4)) == []
    assert core.next_wakeup_ms() == 31
    asked(core, 20, *said(0, Reserved(1, 1)))
    asked(core, 20, *said(1, Reserved(1, 1)))
    assert core.next_wakeup_ms() == 130
