"""Maxima of users and accounts on a live grid: what is refused, what waits, what `explain` says, and what survives."""

from __future__ import annotations

from typing import Any

import pytest

from gridweave.grid.messages import FromLiveSite, SendToSite
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Accepted, Declined, FragmentReport, JobRequest, Program, RecordUsage
from gridweave.site.launch import Used
from gridweave.site.messages import Ended, JobAction, ReserveNodes, Started, UserSubmitted
from gridweave.site.quotas import Quota, Quotas, QuotasChanged
from gridweave.site.state import dump_state, read_state
from support.stepping import do

HOUR_MS = 3_600_000


def grid(quotas: Quotas) -> LiveGrid:
    """Return a grid of one site with eight nodes, under these maxima."""
    found = LiveGrid(GridSettings(sites=(("north", 8),), policy=GridPolicy(mode="sharing")))
    do(found, 0, QuotasChanged(quotas))
    return found


def job(key: str, nodes: int = 1, **more: Any) -> UserSubmitted:
    """Return the submission of a job of anna's that may take an hour."""
    options: dict[str, Any] = {"limit_ms": HOUR_MS, "user": "anna"} | more
    return UserSubmitted(key, JobRequest(program=Program(argv=("true",)), nodes=nodes, **options), "anna")


def placed(commands: list[Any]) -> list[int]:
    """Return the jobs for which nodes are asked."""
    return [c.message.job_id for c in commands if isinstance(c, SendToSite) and isinstance(c.message, ReserveNodes)]


def says(*answers: Any) -> list[FromLiveSite]:
    """Return that the site has said something."""
    return [FromLiveSite(0, answer) for answer in answers]


@pytest.mark.parametrize(
    ("maximum", "asked", "reason"),
    [
        ({"nodes": 4}, {"nodes": 6}, "nodes is 6, 2 more than the quota of user 'anna'; request at most 4"),
        (
            {"limit_hours": 2},
            {"limit_ms": 3 * HOUR_MS},
            "the time limit is 3 h, 1 h more than the quota of user 'anna'; request at most 2h",
        ),
        (
            {"priority": 5},
            {"priority": 7.0},
            "priority is 7, 2 more than the quota of user 'anna'; request at most 5",
        ),
        (
            {"running_nodes": 4},
            {"nodes": 6},
            "nodes is 6, 2 more than the quota of all jobs of user 'anna' together; request at most 4",
        ),
        (
            {"node_hours": 10, "window_hours": 24},
            {"nodes": 8, "limit_ms": 2 * HOUR_MS},
            (
                "it could use 16 node-hours, 6 more than user 'anna' may use in 1 d; "
                "request at most 10, with fewer nodes or a shorter time limit"
            ),
        ),
    ],
)
def test_what_goes_beyond_a_hard_maximum_is_refused_at_once(
    maximum: dict[str, Any], asked: dict[str, Any], reason: str
) -> None:
    """One line says what, by how much, and what would be right; a quote says the same, and others are not concerned."""
    core = grid(Quotas(users={"anna": Quota(**maximum)}))
    assert do(core, 1, job("a", **asked)) == [Declined("a", reason)]
    quote = core.quote(1, job("a", **asked).request)
    assert (quote.state, quote.reason) == ("refused", reason)
    assert Accepted in [type(command) for command in do(core, 2, job("b", **asked, user="bert"))]


def test_one_job_too_many_that_waits_is_refused() -> None:
    """Jobs that have not started count, wherever they wait; one that starts makes room."""
    core = grid(Quotas(each_user=Quota(waiting_jobs=2)))
    do(core, 1, job("a", 8), job("b", hold=True))
    refused = do(core, 2, job("c"))
    assert refused == [
        Declined(
            "c",
            "user 'anna' has 2 jobs that have not started, with this job 1 more than the quota; wait until one starts, "
            "or cancel one",
        )
    ]
    do(core, 3, *says(Started(1, 1, 3)))
    assert Accepted in [type(command) for command in do(core, 4, job("c"))]
    do(core, 5, JobAction("cancel", (2, 3)))
    assert Accepted in [type(command) for command in do(core, 6, job("d"))]


def test_more_jobs_than_may_run_wait_in_the_order_of_their_numbers() -> None:
    """`explain` says which maximum binds, by how much, and until when; the end of one lets the next in."""
    core = grid(Quotas(each_user=Quota(running_jobs=2), each_account=Quota(running_jobs=1)))
    assert placed(do(core, 0, *(job(key) for key in "abcd"), job("e", user="bert"))) == [1, 2, 5]
    do(core, 1_000, *says(Started(1, 1, 1_000), Started(2, 1, 1_000)))
    found = core.forecast(1_000, 3)
    assert found is not None
    said = "user 'anna' has 2 jobs queued or running and may have 2: 1 too many, until one ends, in 1 h at the latest"
    assert (found.state, found.reason) == ("held", said)
    found = core.forecast(1_000, 4)
    assert found is not None
    assert found.reason == said
    quote = core.quote(1_000, job("x").request)
    assert (quote.state, quote.reason) == ("held", f"it would wait: {said}")
    assert placed(do(core, 2_000, *says(Ended(2, 1, 2_000, "finished")))) == [3]


def test_an_account_binds_all_its_users() -> None:
    """Who has room of their own waits for the account; another account does not wait."""
    core = grid(Quotas(accounts={"physics": Quota(running_nodes=4)}))
    first = job("a", 3, account="physics")
    assert placed(do(core, 0, first, job("b", 2, user="bert", account="physics"))) == [1]
    found = core.forecast(0, 2)
    assert found is not None
    assert found.reason == (
        "account 'physics' uses 3 nodes and may use 4: 1 too many with this job, until one ends; none of them "
        "runs yet, so the time is unknown"
    )
    # It would fit, but not ahead of job 2.
    assert placed(do(core, 1, job("c", 1, user="carl", account="physics"), job("d", 1, account="chemistry"))) == [4]
    found = core.forecast(1, 3)
    assert found is not None
    assert found.reason == "waits behind job 2, for the same quota or array"
    assert placed(do(core, 2, JobAction("cancel", (2,)))) == [3]


def test_node_hours_come_back_when_they_have_left_the_window() -> None:
    """What was used counts for the window, to a hundredth of it; the grid wakes up by itself, also after a restart."""
    core = grid(Quotas(each_user=Quota(node_hours=10, window_hours=100)))
    assert placed(do(core, 0, job("a", 8), job("b", 8))) == [1]
    do(core, 10, *says(Started(1, 1, 10)))
    found = core.forecast(10, 2)
    assert found is not None
    assert found.reason == (
        "user 'anna' has used or requested 8 node-hours in 4 d 4 h and may use 10: 6 too many, until "
        "queued or running jobs have ended early, or their use has left the window"
    )
    do(core, HOUR_MS, *says(Ended(1, 1, HOUR_MS, "finished")))
    found = core.forecast(HOUR_MS, 2)
    assert found is not None
    assert found.reason.endswith("6 too many, until older use leaves the window, in 4 d 4 h at the latest")
    again = LiveGrid(core.settings)
    again.restore(read_state(again, dump_state(core)))
    assert again.next_wakeup_ms() == core.next_wakeup_ms() == 101 * HOUR_MS
    assert placed(do(again, 101 * HOUR_MS)) == [2]


def test_an_outage_uses_no_node_hours() -> None:
    """What ran for half an hour has used that, though its site was silent for nine; so has what the journal keeps."""
    core = grid(Quotas(each_user=Quota(node_hours=20, window_hours=100)))
    do(core, 0, job("a", 8))
    do(core, 10, *says(Started(1, 1, 10)))
    report = FragmentReport(1, 1, "", (), Used(), ("n0",), ran_ms=(20, HOUR_MS // 2 + 10))
    done = do(core, 9 * HOUR_MS, *says(report, Ended(1, 1, 9 * HOUR_MS, "finished")), job("b", 8))
    assert placed(done) == [2]
    assert [each.run_ms for each in done if isinstance(each, RecordUsage)] == [HOUR_MS // 2]


def test_what_is_lost_in_an_outage_has_used_its_limit_at_most() -> None:
    """Nobody knows when it ended: it used 8 node-hours of its 9 hours, and may use as many once more."""
    core = grid(Quotas(each_user=Quota(node_hours=20, window_hours=100)))
    do(core, 0, job("a", 8))
    do(core, 10, *says(Started(1, 1, 10)))
    assert placed(do(core, 9 * HOUR_MS, *says(Ended(1, 1, 9 * HOUR_MS, "lost")), job("b", 8))) == [1]
    found = core.forecast(9 * HOUR_MS, 2)
    assert found is not None
    assert found.reason.startswith("user 'anna' has used or requested 16 node-hours")


def test_node_hours_of_every_attempt_count() -> None:
    """A job that is run again has used what its first attempt did, and may use its whole limit once more."""
    core = grid(Quotas(each_user=Quota(node_hours=20, window_hours=100)))
    assert placed(do(core, 0, job("a", 8))) == [1]
    do(core, 10, *says(Started(1, 1, 10)))
    assert placed(do(core, HOUR_MS + 10, *says(Ended(1, 1, HOUR_MS + 10, "lost")))) == [1]
    do(core, HOUR_MS + 10, job("b", 8))
    found = core.forecast(HOUR_MS + 10, 2)
    assert found is not None
    assert found.reason.startswith(
        "user 'anna' has used or requested 16 node-hours in 4 d 4 h and may use 20: 4 too many"
    )


def test_other_maxima_count_for_those_who_wait() -> None:
    """A higher maximum lets in at once; a lower one takes nobody out, and keeps nobody forever."""
    core = grid(Quotas(each_user=Quota(running_nodes=2)))
    assert placed(do(core, 0, job("a", 2), job("b", 2))) == [1]
    assert placed(do(core, 1, QuotasChanged(Quotas(each_user=Quota(running_nodes=4))))) == [2]
    do(core, 2, job("c", 4), QuotasChanged(Quotas(each_user=Quota(running_nodes=1))))
    do(core, 3, *says(Started(1, 1, 3), Started(2, 1, 3)))
    assert placed(do(core, 4, *says(Ended(1, 1, 4, "finished")))) == []
    assert placed(do(core, 5, *says(Ended(2, 1, 5, "finished")))) == [3]
