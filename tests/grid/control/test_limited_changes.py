"""MetaCore under limited control when something changes: sites with room again, leases, silence, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from gridweave.grid.control.limited import LEASE_MS, LOOKS
from gridweave.grid.control.past import MOST_REFUSALS
from gridweave.grid.messages import FromSite, ReportDone, SiteCutOff, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.site.messages import (
    Ended,
    Enqueued,
    EnqueueJob,
    Quoted,
    Refused,
    RenewLeases,
    RequestQuote,
    SiteChanged,
    Started,
    WithdrawJob,
    Withdrawn,
)
from support.stepping import LATER, RETRY_MS, delegated, do, enqueue, limited_meta, offered, said, submitted


def test_a_waiting_job_moves_to_a_site_that_would_start_it() -> None:
    """When a site has got room it is asked for what waits elsewhere; the job is withdrawn, and then delegated again."""
    core = limited_meta(4, 4, 2)
    delegated(core, 1, 3)
    assert do(core, 9, *said(2, SiteChanged(0, 2))) == [], "too small a site is not asked"
    asked = do(core, 10, *said(1, SiteChanged(0, 4)))
    assert [(c.site, c.request.width) for c in asked] == [(1, 3)]
    assert do(core, 12, *offered(asked, None, (4, 12))) == [ToSite(0, WithdrawJob(1, 2))]
    assert do(core, 14, *said(0, Withdrawn(1, 2))) == [ToSite(1, enqueue(1, 3, 3, 14))]
    assert do(core, 15, *said(1, Started(1, 3, 15))) == []
    assert do(core, 16, *said(0, Ended(1, 2, 16, "lost"))) == [], "of the first attempt nothing counts any more"
    assert do(core, 99, *said(1, Ended(1, 3, 99, "finished"))) == [ReportDone(1, "finished")]


def test_a_job_that_does_not_start_as_quoted_looks_elsewhere() -> None:
    """A job that was sent where it would start at once, and waits there after all, is offered to the others, once."""
    core = limited_meta(4, 4, 2)
    asked = do(core, 0, submitted(1, 3))
    assert do(core, 0, *offered(asked, (4, 0), (4, 0), (2, None))) == [ToSite(0, enqueue(1, 3, 2, 0))]
    asked = do(core, 1, *said(0, Enqueued(1, 2)))
    assert [c.site for c in asked] == [1], "the third is too small"
    assert do(core, 2, *offered(asked, None, (4, 2))) == [ToSite(0, WithdrawJob(1, 2))]
    assert do(core, 3, *said(0, Withdrawn(1, 2))) == [ToSite(1, enqueue(1, 3, 3, 3))]
    assert do(core, 4, *said(1, Enqueued(1, 3))) == [], "or jobs would chase each other"


@pytest.mark.parametrize("offer", [(4, 11), (2, 10), (4, None)])
def test_a_waiting_job_stays_where_moving_gains_no_start(offer: tuple[int, int | None]) -> None:
    """A site that would start the job later, has not the nodes, or offers nothing does not get it."""
    core = limited_meta(4, 4)
    delegated(core, 1, 3)
    asked = do(core, 10, *said(1, SiteChanged(0, 4)))
    assert do(core, 10, *offered(asked, None, offer)) == []
    assert do(core, 20, *said(0, Started(1, 2, 20))) == []


def test_no_more_jobs_move_than_there_is_room() -> None:
    """Of the jobs that a site would each start now only so many are withdrawn as its free nodes can hold together."""
    core = limited_meta(4, 8)
    for job_id in (1, 2, 3):
        delegated(core, job_id, 3)
    asked = do(core, 10, *said(1, SiteChanged(0, 7)))
    assert len(asked) == 3
    assert do(core, 10, *offered(asked, None, (7, 10))) == [
        ToSite(0, WithdrawJob(1, 2)),
        ToSite(0, WithdrawJob(2, 2)),
    ]
    assert len(do(core, 11, *said(1, SiteChanged(1, 6)))) == 1, "job 3 is thought of again, the others are moving"


def test_a_start_that_crosses_the_withdrawal_counts() -> None:
    """A site that has started a job while its withdrawal was under way keeps it, and no other site gets it."""
    core = limited_meta(4, 4)
    delegated(core, 1, 3)
    asked = do(core, 10, *said(1, SiteChanged(0, 4)))
    assert do(core, 10, *offered(asked, None, (4, 10))) == [ToSite(0, WithdrawJob(1, 2))]
    assert do(core, 12, *said(0, Started(1, 2, 11))) == []
    assert do(core, 90, *said(1, SiteChanged(2, 2))) == []
    assert do(core, 111, *said(0, Ended(1, 2, 111, "finished"))) == [ReportDone(1, "finished")]


def test_a_site_that_ends_a_job_of_the_grid_has_room() -> None:
    """The end of a job of the grid is news of its site, as is a change by the site's own users."""
    core = limited_meta(4, 4)
    delegated(core, 1, 3)
    delegated(core, 2, 3, to=1)
    do(core, 5, *said(1, Started(2, 2, 5)))
    done, asked = do(core, 50, *said(1, Ended(2, 2, 50, "finished")))
    assert done == ReportDone(2, "finished")
    assert (asked.site, asked.request.width) == (1, 3)


def test_leases_are_renewed_while_jobs_wait() -> None:
    """A third of a lease after the first delegation the sites where jobs wait are told to keep them, and so on."""
    core = limited_meta(4, 4)
    delegated(core, 1, 3)
    third_ms = LEASE_MS // 3
    assert core.next_wakeup_ms() == third_ms
    assert do(core, third_ms) == [ToSite(0, RenewLeases(third_ms + LEASE_MS))]
    assert core.next_wakeup_ms() == 2 * third_ms
    do(core, third_ms + 5, *said(0, Started(1, 2, third_ms + 5)))
    assert do(core, 2 * third_ms) == []
    assert core.next_wakeup_ms() is None, "what runs needs no lease"


def test_a_job_whose_lease_has_ended_is_delegated_anew() -> None:
    """A site that has withdrawn a job by itself is believed, and all sites are asked again."""
    core = limited_meta(4, 4)
    delegated(core, 1, 3)
    asked = do(core, 10, *said(0, Withdrawn(1, 2)))
    assert [c.site for c in asked] == [0, 1]
    assert do(core, 10, *offered(asked, (4, 90), (4, 80))) == [ToSite(1, enqueue(1, 3, 4, 10))]


def test_a_silent_site_is_not_waited_for() -> None:
    """After a while the job goes where an answer came from, and a quote that comes late changes nothing."""
    core = limited_meta(4, 4)
    asked = do(core, 0, submitted(1, 3))
    late = offered(asked, None, (4, 0))
    assert do(core, 5, *offered(asked, (4, 300), None)) == []
    assert core.next_wakeup_ms() == RETRY_MS
    assert do(core, RETRY_MS) == [ToSite(0, enqueue(1, 3, 2, RETRY_MS))]
    assert do(core, RETRY_MS + 1, *late) == []


def test_what_changes_at_a_site_while_another_is_asked_counts() -> None:
    """A site that has got room since it quoted is asked again when the last quote is there, and has the job then."""
    core = limited_meta(4, 4)
    first, second = do(core, 0, submitted(1, 4))
    do(core, 1, *offered([first], (0, 500)))
    assert do(core, 2, *said(0, SiteChanged(0, 4))) == []
    commands = do(core, 3, *offered([second], (0, 0), (0, 400)))
    again = ToSite(0, RequestQuote(3, 4, 100, job_id=1))
    assert commands == [ToSite(1, enqueue(1, 4, 2, 3)), again]
    assert do(core, 4, *offered([again], (4, 4))) == [ToSite(1, WithdrawJob(1, 2))]


def test_what_changes_amid_quotes_counts_however_many_jobs_wait_before() -> None:
    """Those that are asked for came last, behind all that a change has the grid think of."""
    core = limited_meta(4, 4)
    for job_id in range(1, LOOKS + 1):
        do(core, 0, *offered(do(core, 0, submitted(job_id, 3)), (0, None), (0, None)))
    first, second = do(core, 1, submitted(99, 4))
    do(core, 1, *offered([first], (0, 500)))
    looked_at = do(core, 2, *said(0, SiteChanged(0, 4)))
    assert len(looked_at) == 2 * LOOKS
    commands = do(core, 3, *offered([second], (0, 0), (0, 400)))
    assert [(c.site, c.request.job_id) for c in commands if isinstance(c.request, RequestQuote)] == [(0, 99)]


def test_what_changes_before_a_site_quotes_is_in_its_quote() -> None:
    """A site that changes before its quote comes is not asked again, nor is one where the job starts at once."""
    core = limited_meta(4, 4)
    first, second = do(core, 0, submitted(1, 4))
    do(core, 1, *said(1, SiteChanged(0, 4)))
    assert do(core, 1, *offered([first], (0, 500))) == []
    assert do(core, 3, *offered([second], (0, 0), (0, 400))) == [ToSite(1, enqueue(1, 4, 2, 3))]


def test_a_job_without_a_place_is_offered_anew_where_all_was_changing() -> None:
    """A site that drains, and takes jobs again before the other has answered, is asked again at once."""
    core = limited_meta(4, 4)
    first, second = do(core, 0, submitted(1, 4))
    do(core, 1, *offered([first], (0, None)))
    do(core, 2, *said(0, SiteChanged(0, 4)))
    asked = do(core, 3, *offered([second], (0, None), (0, None)))
    assert asked == [ToSite(site, RequestQuote(3 + site, 4, 100, job_id=1)) for site in (0, 1)]
    assert do(core, 4, *offered(asked, (4, 4), (0, None))) == [ToSite(0, enqueue(1, 4, 3, 4))]


def test_a_site_that_has_yet_to_answer_is_not_asked_again() -> None:
    """Its answer counts when it comes, also in the next round: it is as new as one to a second question would be."""
    core = limited_meta(4, 4)
    first = do(core, 0, submitted(1, 3))
    assert do(core, RETRY_MS) == [], "nobody has answered"
    assert do(core, RETRY_MS + 1, *said(0, SiteChanged(0, 4))) == []
    late = offered(first, (0, 9000), (0, 8000))
    assert do(core, RETRY_MS + 2, *late) == [ToSite(1, enqueue(1, 3, 3, RETRY_MS + 2))]


def test_an_answer_that_comes_after_the_round_places_the_job() -> None:
    """A job that has found no place goes to the first site that answers late."""
    core = limited_meta(4, 4)
    asked = do(core, 0, submitted(1, 3))
    assert do(core, RETRY_MS) == [], "nobody has answered"
    late = offered(asked, None, (4, 0))
    assert do(core, RETRY_MS + 1, *late) == [ToSite(1, enqueue(1, 3, 2, RETRY_MS + 1))]


def test_a_site_is_asked_again_after_its_questions_were_lost() -> None:
    """A site that was cut off answers none of the earlier questions: it gets new ones once messages flow again."""
    core = limited_meta(4)
    (first,) = do(core, 0, submitted(1, 3))
    do(core, 1, SiteCutOff(0, "its journal is new"))
    assert do(core, RETRY_MS) == []
    (second,) = do(core, RETRY_MS + 1, SiteCutOff(0, ""))
    assert second.request.quote_id > first.request.quote_id
    assert do(core, RETRY_MS + 2, *offered([second], (4, 0))) == [ToSite(0, enqueue(1, 3, 3, RETRY_MS + 2))]


class SlowSites:
    """A meta-scheduler over sites that offer a place in their queues, and whose answers take a round trip."""

    def __init__(self, core: MetaCore, round_trip_ms: int) -> None:
        self.core, self.round_trip_ms = core, round_trip_ms
        self.placed: set[int] = set()
        self._under_way: list[tuple[int, ToSite]] = []  # when each answer comes, and to what

    def handle(self, now_ms: int, *events: Any) -> None:
        """Have the meta-scheduler hear of events, and send its questions."""
        for command in do(self.core, now_ms, *events):
            if isinstance(command.request, EnqueueJob):
                self.placed.add(command.request.job.job_id)
                continue
            question = command.site, command.request.job_id
            assert question not in [(c.site, c.request.job_id) for _, c in self._under_way], "a question is repeated"
            self._under_way.append((now_ms + self.round_trip_ms, command))

    def next(self) -> int:
        """Have the next answers arrive, or the next timer of the meta-scheduler run out; return when that was."""
        now_ms = min(self._under_way[0][0], self.core.next_wakeup_ms() or LATER)
        due = [command for at_ms, command in self._under_way if at_ms <= now_ms]
        self._under_way = self._under_way[len(due) :]
        quoted = (FromSite(c.site, Quoted(c.request.quote_id, 0, now_ms + LATER, queued=1)) for c in due)
        self.handle(now_ms, *quoted)
        return now_ms


@pytest.mark.parametrize("selection", ["best-fit", "min-min"])
@pytest.mark.parametrize("round_trip_ms", [RETRY_MS // 2, RETRY_MS, RETRY_MS + 1, 5 * RETRY_MS, 20 * RETRY_MS])
def test_jobs_are_placed_over_links_slower_than_their_patience(round_trip_ms: int, selection: str) -> None:
    """Answers place the jobs however long they take, and no question is repeated meanwhile."""
    sites = SlowSites(limited_meta(4, 4, selection=selection), round_trip_ms)
    sites.handle(0, *(submitted(job_id, 3) for job_id in range(1, 9)))
    now_ms = 0
    while now_ms < round_trip_ms:
        now_ms = sites.next()
    assert sites.placed == set(range(1, 9))


def test_what_no_site_takes_is_tried_again_by_itself() -> None:
    """A job that no site offers anything is asked for again after a while, and again, until one does."""
    core = limited_meta(4, 4)
    asked = do(core, 0, submitted(1, 3))
    assert do(core, 0, *offered(asked, (0, None), (0, None))) == []
    for now_ms in (RETRY_MS, 2 * RETRY_MS):
        assert core.next_wakeup_ms() == now_ms
        asked = do(core, now_ms)
        assert [c.site for c in asked] == [0, 1]
        assert do(core, now_ms, *offered(asked, (0, None), (0, None))) == []
    asked = do(core, 3 * RETRY_MS)
    assert len(do(core, 3 * RETRY_MS, *offered(asked, (4, 3 * RETRY_MS), (0, None)))) == 1


def test_a_refused_delegation_is_tried_again() -> None:
    """A site that refuses what it had quoted for, as one that is drained meanwhile, is asked again when it changes."""
    core = limited_meta(4)
    asked = do(core, 0, submitted(1, 3))
    do(core, 0, *offered(asked, (4, 0)))
    assert do(core, 1, *said(0, Refused(1, 2, "the site is being drained"))) == []
    asked = do(core, 2, *said(0, SiteChanged(0, 4)))
    assert do(core, 3, *offered(asked, (4, 3))) == [ToSite(0, enqueue(1, 3, 4, 3))]


def test_a_job_that_sites_take_and_then_refuse_is_not_asked_for_for_ever() -> None:
    """The pauses double, news or not; it is told how often, why and when next; in the end the job is refused."""
    core = limited_meta(4, 2)
    now_ms, pause_ms, why = 0, RETRY_MS, "it was cancelled in Slurm (CANCELLED)"
    asked = do(core, 0, submitted(1, 3))
    for times in range(1, MOST_REFUSALS):
        (sent,) = do(core, now_ms, *offered(asked, (0, now_ms + LATER), (0, None)))
        attempt = sent.request.attempt
        (told,) = do(core, now_ms, *said(0, Refused(1, attempt, why, "job")))
        assert told.reason.startswith(f"{why}; ")
        forecaster = core.forecaster(now_ms, 1)
        assert forecaster is not None
        row = forecaster().sites[0]
        assert row.reason == f"accepted it and then refused it: {told.reason}"
        assert times == 1 or f"that was refusal {times} of 6, and the site is asked again in " in row.reason
        early = do(core, now_ms + pause_ms - 1, *said(0, SiteChanged(0, 4)))
        assert [c.site for c in early] == [1]
        do(core, now_ms + pause_ms - 1, *offered(early, None, (0, None)))
        now_ms, pause_ms = now_ms + pause_ms, 2 * pause_ms
        asked = do(core, now_ms, *said(0, SiteChanged(0, 4)))
    (sent,) = do(core, now_ms, *offered(asked, (4, now_ms), (0, None)))
    told, refused = do(core, now_ms, *said(0, Refused(1, sent.request.attempt, why, "job")))
    assert told.reason == f"{why}; that was refusal 6, and the site is not asked again"
    assert refused.reason.startswith(
        f"no site can run it: site 0: it accepted the job 6 times and then refused it: {why}; it needs"
    )


def test_a_job_that_one_site_will_not_have_runs_at_another() -> None:
    """At once, if the other has room; and what ran has been refused by nobody."""
    core = limited_meta(4, 4)
    delegated(core, 1, 3)
    do(core, 1, *said(0, Refused(1, 2, "it was cancelled in Slurm", "job")))
    asked = do(core, 2, *said(1, SiteChanged(0, 4)))
    assert [c.site for c in asked] == [1]
    (sent,) = do(core, 3, *offered(asked, None, (4, 3)))
    assert sent == ToSite(1, enqueue(1, 3, sent.request.attempt, 3))
    do(core, 4, *said(1, Started(1, sent.request.attempt, 4)))
    asked = do(core, 5, *said(1, Ended(1, sent.request.attempt, 5, "lost")))
    assert [c.site for c in asked] == [0, 1]


def test_one_change_does_not_set_off_more_looks_than_the_bound() -> None:
    """However many jobs wait, a change has the first of them thought of, no more than the bound."""
    core = limited_meta(4)
    for job_id in range(1, LOOKS + 6):
        asked = do(core, 0, submitted(job_id, 3))
        do(core, 0, *offered(asked, (0, None)))
    asked = do(core, 1, *said(0, SiteChanged(0, 4)))
    assert len(asked) == LOOKS
    (command, *_) = do(core, 1, *offered(asked, (4, 1)))
    assert command.request.job.job_id == 1
