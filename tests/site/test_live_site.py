"""A live site: own jobs and the grid's, several machines, what they tell, what is lost, and what is wanted no more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError
from gridweave.site.job import (
    Accepted,
    After,
    ArrayPlace,
    Declined,
    DescribeJob,
    FragmentReport,
    Job,
    JobRequest,
    Noted,
    Program,
    RecordUsage,
)
from gridweave.site.journal.records import Codec, digest
from gridweave.site.launch import RankReport, Used
from gridweave.site.messages import (
    CancelJob,
    CheckCapacity,
    CommitNodes,
    ConfirmRun,
    Ended,
    EndRun,
    EnqueueJob,
    FragmentEnding,
    FragmentOpened,
    FragmentReady,
    FragmentsMet,
    JobAction,
    KillFragment,
    LeaseEnded,
    LiveSiteEvent,
    Machine,
    MachineForgotten,
    MachineJoined,
    MachineReady,
    OpenGate,
    OpenRun,
    Refused,
    ReleaseNodes,
    Reserved,
    ReserveNodes,
    RunDelayed,
    RunEnded,
    RunReady,
    RunStarted,
    SendToGrid,
    SiteChanged,
    Started,
    StartRun,
    UserSubmitted,
    WithdrawJob,
    Withdrawn,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from gridweave.site.state import dump_state, read_state
from support.stepping import do

OWN = 1_000_000_000_001
TWO = (Machine(name="a", nodes=2, ports=(2000, 2002)), Machine(name="b", nodes=2, ports=(3000, 3001)))


def site(*agents: Machine, **more: Any) -> LiveSite:
    """Return a site of two machines with two nodes each, or of these."""
    return LiveSite(SiteSettings(name="north", number=0, machines=agents or TWO, policy=SitePolicy(), **more))


def request(nodes: int = 1, *, limit_ms: int = 1000, **program: Any) -> JobRequest:
    """Return a request for a job."""
    return JobRequest(program=Program(argv=("true",), **program), nodes=nodes, limit_ms=limit_ms)


def own(nodes: int = 1, *, key: str = "key", **more: Any) -> UserSubmitted:
    """Return the submission of a job of the site's own users."""
    return UserSubmitted(key, request(nodes, **more))


def described(job_id: int, width: int, *, attempt: int = 1, first: int = 0, others: int = 0) -> DescribeJob:
    """Return what the grid says of a job, with so many ranks on other sites."""
    sites = ("north", "south") if first == 0 else ("south", "north")
    return DescribeJob(
        job_id, attempt, request(width + others), 1000, first, width + others, sites if others else ("north",)
    )


def of(commands: list[Any], *kinds: type) -> list[Any]:
    """Return the commands, or the messages to the grid, of some kinds."""
    flat = [command.message if isinstance(command, SendToGrid) else command for command in commands]
    return [command for command in flat if isinstance(command, kinds)]


def ended(agent: str, job_id: int, outcome: str = "finished", *, attempt: int = 1, **more: Any) -> RunEnded:
    """Return that a machine runs nothing of a job any more."""
    return RunEnded(agent, job_id, attempt, outcome, **more)  # type: ignore[arg-type]


def state(core: LiveSite, job_id: int = OWN) -> tuple[str, str, int]:
    """Return how it stands with a job of the site's own users."""
    record = core.registry.records[job_id]
    return record.state, record.outcome, record.attempt


# -- jobs of the site's own users -------------------------------------------------------------------------------------


def test_a_job_over_two_machines_is_told_to_both_and_ends_with_the_last() -> None:
    """Ranks go up over the machines; the job runs when both say so, and has ended when both have said that."""
    core = site()
    starts = of(do(core, 0, own(3)), StartRun)
    assert [(start.machine, start.slots, [rank.rank for rank in start.launch.ranks]) for start in starts] == [
        ("a", (0, 1), [0, 1]),
        ("b", (0,), [2]),
    ]
    assert {start.launch.rendezvous for start in starts} == {"127.0.0.1:2000"}
    assert {(start.launch.size, start.launch.limit_ms, start.launch.attempt) for start in starts} == {(3, 1000, 1)}
    do(core, 1, RunStarted("a", OWN, 1))
    assert state(core) == ("starting", "", 1)
    do(core, 2, RunStarted("b", OWN, 1))
    assert state(core) == ("running", "", 1)
    do(core, 3, ended("a", OWN, used=Used(cpu_s=1.0)))
    assert state(core) == ("running", "", 1)
    commands = do(core, 10, ended("b", OWN, used=Used(cpu_s=2.0)))
    assert state(core) == ("ended", "finished", 1)
    (usage,) = of(commands, RecordUsage)
    assert (usage.width, usage.run_ms, usage.used.cpu_s) == (3, 10, 3.0)
    assert core.registry.records[OWN].machines == ("a", "b")


def test_a_batch_script_has_one_rank_on_its_first_node() -> None:
    """With ranks on the first node alone the job has all its nodes, and one process."""
    core = site()
    (start,) = of(do(core, 0, own(4, ranks="first-node")), StartRun)
    assert (start.machine, start.slots, start.launch.size) == ("a", (0,), 1)
    assert core.core.site.free == 0
    do(core, 1, ended("a", OWN))
    assert core.core.site.free == 4


def test_a_job_that_no_site_can_run_is_declined() -> None:
    """What is too wide, or no program, gets a reason and no number."""
    core = site()
    nothing = UserSubmitted("nothing", JobRequest(program=Program(), limit_ms=1))
    answers = of(do(core, 0, own(5, key="wide"), own(1, key="short", limit_ms=0), nothing, own()), Declined, Accepted)
    assert sorted(answer.key for answer in answers if isinstance(answer, Declined)) == ["nothing", "short", "wide"]
    assert [record.state for record in core.registry.records.values()] == ["starting"]


def test_a_rank_that_fails_ends_the_others() -> None:
    """When one part fails the other machines are told to end theirs; the exit codes are kept, by rank."""
    core = site()
    do(core, 0, own(4), RunStarted("a", OWN, 1))
    failed = ended("b", OWN, "failed", reason="rank 2 exited with 3", ranks=(RankReport(2, 1, 1, exit_code=3),))
    commands = do(core, 5, failed)
    assert of(commands, EndRun) == [EndRun("a", OWN, 1, "its part on b has ended: failed")]
    assert state(core)[0] == "starting"
    do(core, 6, ended("a", OWN, "cancelled", ranks=(RankReport(0, 1, 1, signal=15), RankReport(1, 1, 1, exit_code=0))))
    assert state(core) == ("ended", "failed", 1)
    assert core.registry.records[OWN].exit_codes == ((0, None, 15), (2, 3, None))
    assert core.registry.records[OWN].reason == "rank 2 exited with 3"


def test_a_rank_that_fails_may_leave_the_others_alone() -> None:
    """If the job wants it so the other parts run to their end."""
    core = site()
    do(core, 0, own(4, end_on_failure=False))
    assert of(do(core, 5, ended("b", OWN, "failed")), EndRun) == []
    do(core, 9, ended("a", OWN))
    assert state(core) == ("ended", "failed", 1)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_part_that_is_lost_has_all_of_it_run_again(goes_on: bool) -> None:
    """The other parts are ended, whatever the job says of failures, and the job begins again as its next attempt."""
    core = site()
    do(core, 0, own(4, end_on_failure=not goes_on))
    assert len(of(do(core, 5, ended("b", OWN, "lost", reason="killed")), EndRun)) == 1
    commands = do(core, 6, ended("a", OWN, "cancelled"))
    assert state(core) == ("starting", "", 2)
    assert {start.launch.attempt for start in of(commands, StartRun)} == {2}
    assert [note.kind for note in of(commands, Noted)] == ["retried", "starting"]


def test_a_job_may_choose_to_fail_rather_than_to_run_again() -> None:
    """A job that must not begin twice has failed when it was lost, and says why."""
    core = site()
    do(core, 0, own(1, if_lost="fail"), ended("a", OWN, "lost", reason="killed"))
    do(core, 1, ended("a", OWN, "lost", reason="killed"))
    assert state(core) == ("ended", "failed", 1)
    assert core.registry.records[OWN].reason == "lost: killed"


def test_a_job_that_is_at_its_limit_is_ended() -> None:
    """Machines are told at the limit; how the job ended is `limit`, whatever they make of it."""
    core = site()
    do(core, 0, own(3, limit_ms=50))
    assert core.next_wakeup_ms() == 50
    assert of(do(core, 50), EndRun) == [EndRun(agent, OWN, 1, "reached its limit") for agent in "ab"]
    do(core, 51, ended("a", OWN, "cancelled"))
    do(core, 52, ended("b", OWN, "limit"))
    assert state(core) == ("ended", "limit", 1)


def test_what_ended_by_itself_is_not_called_killed() -> None:
    """A job that had finished when it was to be ended has finished; one that was lost meanwhile runs again."""
    core = site()
    do(core, 0, own(1, limit_ms=50), own(1, key="lost", limit_ms=50))
    do(core, 50)
    do(core, 60, ended("a", OWN), ended("a", OWN + 1, "lost"))
    assert state(core) == ("ended", "finished", 1)
    assert state(core, OWN + 1) == ("starting", "", 2)


def test_a_wish_to_end_is_heard_at_every_stage() -> None:
    """Waiting, starting, running, and at the very instant at which the job is lost: it does not run again."""
    core = site()
    do(core, 0, own(4), own(4, key="waits"))
    assert state(core, OWN + 1) == ("waiting", "", 0)
    do(core, 1, JobAction("cancel", (OWN + 1,)))
    assert state(core, OWN + 1) == ("ended", "cancelled", 0)
    assert len(of(do(core, 2, JobAction("cancel", (OWN,))), EndRun)) == 2
    assert of(do(core, 3, JobAction("cancel", (OWN,))), EndRun) == []
    do(core, 4, ended("a", OWN, "cancelled"), ended("b", OWN, "lost"))
    assert state(core) == ("ended", "cancelled", 1)
    for wish_first in (True, False):
        core = site()
        do(core, 0, own(1), RunStarted("a", OWN, 1))
        events = [JobAction("cancel", (OWN,)), ended("a", OWN, "lost")]
        do(core, 1, *(events if wish_first else events[::-1]))
        assert state(core) == ("ended", "cancelled", 1)


def test_a_job_saves_what_it_has_done_and_runs_again() -> None:
    """Requeued, its machines are told to let it save, once; it runs again when all of it is over, and it is counted."""
    core = site()
    do(core, 0, own(4, checkpoint_signal="USR1"))
    assert of(do(core, 1, JobAction("requeue", (OWN,))), EndRun) == [], "it does not run yet"
    do(core, 2, RunStarted("a", OWN, 1), RunStarted("b", OWN, 1))
    commands = do(core, 3, JobAction("requeue", (OWN,), "anna"))
    why = "requeued by wish, by anna"
    assert of(commands, EndRun) == [EndRun(agent, OWN, 1, why, saves=True) for agent in "ab"]
    assert [(note.kind, note.detail) for note in of(commands, Noted)] == [("requeue", "by wish, by anna")]
    assert of(do(core, 4, JobAction("requeue", (OWN,))), EndRun) == []
    assert [each.saves for each in core.runs.orders("b") if isinstance(each, EndRun)] == [True]
    assert of(do(core, 5, ended("a", OWN, "cancelled")), StartRun) == [], "a part of it still runs"
    starts = of(do(core, 6, ended("b", OWN, "cancelled")), StartRun)
    assert [(each.launch.attempt, each.launch.starts, each.launch.checkpoint_signal) for each in starts] == [
        (2, 1, "USR1"),
        (2, 1, "USR1"),
    ]


def test_a_job_that_is_to_be_requeued_and_ends_otherwise_does_not_run_again() -> None:
    """What had finished by itself has finished, what is cancelled meanwhile is, and what must not begin twice stays."""
    core = site()
    do(core, 0, own(1), own(1, key="cancelled"), own(1, key="once", if_lost="fail"))
    do(core, 1, *(RunStarted(agent, OWN + number, 1) for number, agent in enumerate("aab")))
    commands = do(core, 2, JobAction("requeue", (OWN, OWN + 1, OWN + 2)), JobAction("cancel", (OWN + 1,)))
    assert {each.job_id for each in of(commands, EndRun)} == {OWN, OWN + 1}
    do(core, 3, ended("a", OWN), ended("a", OWN + 1, "cancelled"))
    assert [state(core, OWN + number) for number in range(3)] == [
        ("ended", "finished", 1),
        ("ended", "cancelled", 1),
        ("running", "", 1),
    ]


def test_a_number_that_was_guessed_ends_nothing() -> None:
    """Of a job that was handed in at this instant nobody can know the number."""
    core = site()
    do(core, 0, own(1), JobAction("cancel", (OWN,)), JobAction("cancel", (77,)))
    assert state(core) == ("starting", "", 1)


def test_only_so_many_ended_jobs_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest leave; those that wait or run stay."""
    monkeypatch.setattr("gridweave.site.users.registry.KEEP_ENDED", 20)
    core = site()
    do(core, 0, own(2, key="stays"))
    for number in range(1, 50):
        do(core, number, own(1, key=str(number)), ended("b", OWN + number))
        do(core, number, ended("b", OWN + number))
    assert OWN in core.registry.records
    assert len(core.registry.records) <= 22


# -- machines ---------------------------------------------------------------------------------------------------------


def test_what_machines_say_late_twice_or_of_others_changes_nothing() -> None:
    """Only what the present attempt's own machines say counts, and only once."""
    core = site()
    do(core, 0, own(3))
    for stray in (
        ended("b", OWN, attempt=7),
        ended("c", OWN),
        ended("a", 99),
        RunStarted("a", OWN, 2),
        RunStarted("nobody", 5, 5),
    ):
        assert do(core, 1, stray) == []
    do(core, 2, ended("b", OWN, "failed"))
    assert do(core, 3, ended("b", OWN), RunStarted("b", OWN, 1)) == []
    do(core, 4, ended("a", OWN, "cancelled"), ended("a", OWN, "finished"))
    assert state(core) == ("ended", "failed", 1)


def test_a_machine_that_is_back_is_asked_and_told() -> None:
    """What it had begun is asked about, until it has answered; what it had not is ordered again, as are ends."""
    core = site(Machine(name="a", nodes=4))
    do(core, 0, own(1), own(1, key="2"), own(1, key="3"), RunStarted("a", OWN, 1))
    do(core, 1, RunStarted("a", OWN, 1), RunStarted("a", OWN + 1, 1))
    assert [type(order) for order in core.runs.orders("a")] == [StartRun]
    do(core, 2, MachineJoined("a", "here"), JobAction("cancel", (OWN + 1,)))
    kinds = [(type(order), getattr(order, "job_id", OWN + 2)) for order in core.runs.orders("a", "b")]
    assert kinds == [(ConfirmRun, OWN), (ConfirmRun, OWN + 1), (EndRun, OWN + 1), (StartRun, OWN + 2)]
    do(core, 3, RunStarted("a", OWN, 1), ended("a", OWN + 1, "lost"), RunStarted("a", OWN + 2, 1))
    assert list(core.runs.orders("a")) == []
    assert [core.registry.records[OWN + number].state for number in range(3)] == ["running", "ended", "running"]


def test_a_greeting_that_comes_late_or_twice_loses_nothing() -> None:
    """A machine that joined long ago and is heard of again only now is asked, and not believed to know nothing."""
    core = site()
    do(core, 0, MachineJoined("a", "here"))
    do(core, 1, own(1))
    do(core, 2, RunStarted("a", OWN, 1))
    do(core, 3, MachineJoined("a", "here"))
    assert state(core) == ("running", "", 1)


def test_what_nobody_here_wanted_to_end_was_lost() -> None:
    """A machine that was shut down ends its jobs: they run again, and are not called cancelled."""
    core = site()
    do(core, 0, own(1))
    do(core, 1, ended("a", OWN, "cancelled", reason="ended by a signal"))
    assert state(core) == ("starting", "", 2)


def test_a_machine_that_is_given_up_loses_all_that_it_ran() -> None:
    """What is begun there and what is not begins again; jobs elsewhere go on."""
    core = site()
    do(core, 0, own(2), own(2, key="2"), RunStarted("a", OWN, 1))
    do(core, 1, MachineForgotten("a"))
    assert (state(core), state(core, OWN + 1)) == (("starting", "", 2), ("starting", "", 1))


def test_machines_are_told_apart() -> None:
    """A site has at least one machine, and no two of the same name."""
    for agents in ((), (Machine(name="a", nodes=1), Machine(name="a", nodes=2))):
        with pytest.raises(OptionError, match="machines"):
            SiteSettings(name="north", number=0, machines=agents, policy=SitePolicy())


# -- ports ------------------------------------------------------------------------------------------------------------


def meetings(commands: list[Any]) -> list[str]:
    """Return where the ranks of the jobs that start are to meet."""
    return [start.launch.rendezvous for start in of(commands, StartRun)]


def test_ports_are_given_to_one_job_at_a_time() -> None:
    """Each job on a machine has a port of its own while there are any; one that ended leaves it to the next."""
    core = site(Machine(name="a", nodes=4, ports=(2000, 2002)))
    starts = [meetings(do(core, 0, own(1, key=str(number)))) for number in range(3)]
    assert starts == [["127.0.0.1:2000"], ["127.0.0.1:2001"], [""]]
    do(core, 1, ended("a", OWN), MachineJoined("a", "north7"))
    assert meetings(do(core, 2, own(1, key="next"))) == ["north7:2000"]


def test_the_first_site_of_a_job_says_where_its_ranks_meet() -> None:
    """The port is taken with the hold, told with its answer, kept through the start, and given back at the end."""
    core = site()
    held = of(do(core, 0, described(7, 2, others=2), ReserveNodes(7, 1, 2, 1000, 50)), Reserved)
    assert held == [Reserved(7, 1, "127.0.0.1:2000")]
    do(core, 10, CommitNodes(7, 1, "127.0.0.1:2000"))
    assert meetings(do(core, 50)) == ["127.0.0.1:2000"]
    do(core, 60, ended("a", 7))
    assert list(core.runs.ports.taken()) == []


def test_ranks_on_other_sites_meet_where_the_grid_says() -> None:
    """A site that is not the first has no port for the job; if the first has none either there is none at all."""
    for meeting in ("south1:9000", ""):
        core = site()
        (held,) = of(do(core, 0, described(7, 2, first=3, others=3), ReserveNodes(7, 1, 2, 1000, 50)), Reserved)
        assert held.rendezvous == ""
        do(core, 10, CommitNodes(7, 1, meeting))
        (start,) = of(do(core, 50), StartRun)
        assert (start.launch.rendezvous, [rank.rank for rank in start.launch.ranks]) == (meeting, [3, 4])
        assert (start.launch.size, start.launch.sites) == (5, ("south", "north"))


def test_ranks_wait_at_their_gate_until_their_site_has_given_up_for_sure() -> None:
    """A machine gives up a gate only after its site; ranks without partners on other sites have no gate."""
    core = site(rendezvous_ms=700)
    do(core, 0, described(7, 1, first=1, others=1), ReserveNodes(7, 1, 1, 1000, 50), own(1))
    do(core, 10, CommitNodes(7, 1, "south1:9000"))
    (start,) = of(do(core, 50), StartRun)
    assert start.launch.gate_ms == 1_400
    (given_up,) = of(do(core, 750), EndRun)
    assert given_up.job_id == 7
    (alone,) = of(do(site(), 0, own(1)), StartRun)
    assert alone.launch.gate_ms is None


def test_a_hold_that_is_followed_by_the_next_at_once_leaves_no_port_behind() -> None:
    """After a cut a release and the next attempt come together; the port of the first goes back."""
    core = site()
    do(core, 0, described(7, 2, others=2), ReserveNodes(7, 1, 2, 1000, 50))
    commands = do(core, 5, ReleaseNodes(7, 1), described(7, 2, attempt=2, others=2), ReserveNodes(7, 2, 2, 1000, 90))
    assert of(commands, LeaseEnded, Reserved) == [LeaseEnded(7, 1), Reserved(7, 2, "127.0.0.1:2000")]
    assert list(core.runs.ports.taken()) == [("a", 2000)]


def test_a_meeting_of_an_attempt_that_is_over_is_not_that_of_the_next() -> None:
    """A commitment that came too late says nothing of a later attempt on this site alone."""
    core = site()
    do(core, 0, described(7, 2, first=1, others=1), ReserveNodes(7, 1, 2, 1000, 50))
    do(core, 51)
    do(core, 60, CommitNodes(7, 1, "south1:9000"))
    assert meetings(do(core, 70, described(7, 2, attempt=2), ReserveNodes(7, 2, 2, 1000))) == ["127.0.0.1:2000"]


# -- jobs of the grid -------------------------------------------------------------------------------------------------


def test_a_job_of_the_grid_starts_as_it_was_described_and_its_end_is_told() -> None:
    """The site tells that it started; at the end first how, then that it has ended; nothing of it is left."""
    core = site()
    commands = do(core, 0, described(7, 2), ReserveNodes(7, 1, 2, 1000))
    assert of(commands, Started) == [Started(7, 1, 0)]
    assert len(of(commands, StartRun)) == 1
    commands = do(core, 9, ended("a", 7, "failed", reason="it broke", ranks=(RankReport(1, 1, 1, exit_code=2),)))
    assert of(commands, FragmentReport, Ended) == [
        FragmentReport(7, 1, "it broke", ((1, 2, None),), Used(), ("a",)),
        Ended(7, 1, 9, "failed"),
    ]
    assert (core._expected, core.runs._runs, core.registry.records) == ({}, {}, {})


def test_the_grid_hears_that_a_job_is_ending_when_only_the_site_knows() -> None:
    """It is told once, at the limit; not of what the grid has cancelled, nor of jobs of the site's own users."""
    core = site()
    do(core, 0, described(7, 1), ReserveNodes(7, 1, 1, 50), described(8, 1), ReserveNodes(8, 1, 1, 60))
    do(core, 1, own(1, limit_ms=49), CancelJob(8, 1))
    assert of(do(core, 50), FragmentEnding) == [FragmentEnding(7, 1)]
    assert state(core)[0] == "ending"
    assert of(do(core, 70, KillFragment(7, 1)), FragmentEnding) == []


@pytest.mark.parametrize(("outcome", "told"), [("finished", "finished"), ("limit", "limit"), ("lost", "lost")])
def test_how_a_job_of_the_grid_ended_is_told_as_it_was(outcome: str, told: str) -> None:
    """What the machines say is what the grid hears."""
    core = site()
    do(core, 0, described(7, 1), ReserveNodes(7, 1, 1, 1000))
    assert of(do(core, 9, ended("a", 7, outcome)), Ended) == [Ended(7, 1, 9, told)]


def test_what_the_grid_wants_no_more_is_ended_at_every_stage() -> None:
    """A wait is withdrawn, a hold released, a run ended; one that had finished by itself has finished."""
    core = site()
    do(core, 0, described(1, 4), ReserveNodes(1, 1, 4, 1000))
    do(core, 1, described(2, 4), EnqueueJob(Job(job_id=2, width=4, estimate_ms=9), 1, 10**6))
    assert of(do(core, 2, WithdrawJob(2, 1)), Withdrawn) == [Withdrawn(2, 1)]
    assert of(do(core, 3, CancelJob(1, 1)), EndRun) == [EndRun(agent, 1, 1, "cancelled") for agent in "ab"]
    do(core, 4, ended("a", 1, "cancelled"))
    assert of(do(core, 5, ended("b", 1, "cancelled")), Ended) == [Ended(1, 1, 5, "cancelled")]
    do(core, 6, described(3, 4), ReserveNodes(3, 1, 4, 1000))
    do(core, 7, CancelJob(3, 1))
    assert of(do(core, 8, ended("a", 3), ended("b", 3)), Ended) == [Ended(3, 1, 8, "finished")]
    do(core, 9, described(4, 4, others=1), ReserveNodes(4, 1, 4, 1000, 50))
    assert of(do(core, 10, CancelJob(4, 1)), LeaseEnded) == [LeaseEnded(4, 1)]
    assert core._expected == {}


def test_a_part_that_stays_alone_is_ended_as_unmet() -> None:
    """Without word that all have met, the part is ended after the time of the rendezvous; with it, it runs on."""
    for met in (False, True):
        core = site(rendezvous_ms=30)
        do(core, 0, described(7, 2, others=2), ReserveNodes(7, 1, 2, 1000, 50))
        do(core, 10, CommitNodes(7, 1))
        do(core, 50)
        do(core, 60, *([FragmentsMet(7, 1)] if met else []))
        assert len(of(do(core, 80), EndRun)) == (0 if met else 1)
        outcome = of(do(core, 90, ended("a", 7, "finished" if met else "cancelled")), Ended)[0].outcome
        assert outcome == ("finished" if met else "unmet")


def at_gate(**more: Any) -> LiveSite:
    """Return a site at which the ranks of a part of a job, on both machines, are ready at 60 ms."""
    core = site(**more)
    do(core, 0, described(7, 4, others=2), ReserveNodes(7, 1, 4, 1000, 50))
    do(core, 10, CommitNodes(7, 1))
    assert {order.launch.alone_ms for order in of(do(core, 50), StartRun)} == {core.settings.alone_ms}
    assert of(do(core, 55, RunReady("a", 7, 1)), FragmentReady) == []
    assert of(do(core, 60, RunReady("b", 7, 1), RunReady("a", 7, 1)), FragmentReady) == [FragmentReady(7, 1)]
    return core


def test_ranks_begin_when_the_grid_opens_their_gate() -> None:
    """Until then no machine is told to, however often orders are repeated; the limit counts from then on."""
    core = at_gate()
    assert list(core.runs.orders("a", "b")) == []
    assert of(do(core, 70, OpenGate(7, 1, 1570)), OpenRun) == [OpenRun(machine, 7, 1) for machine in "ab"]
    assert of(do(core, 75, RunStarted("a", 7, 1)), FragmentOpened) == []
    assert list(core.runs.orders("a", "b")) == [OpenRun("b", 7, 1)]
    assert of(do(core, 80, RunStarted("b", 7, 1)), FragmentOpened) == [FragmentOpened(7, 1)]
    do(core, 90, FragmentsMet(7, 1))
    assert of(do(core, 1069), EndRun) == []
    commands = do(core, 1070)
    assert of(commands, EndRun) == [EndRun(machine, 7, 1, "reached its limit") for machine in "ab"]
    assert of(commands, FragmentEnding) == [FragmentEnding(7, 1)]


def test_a_part_whose_gate_was_opened_and_that_stays_alone_is_ended_at_once() -> None:
    """Its ranks get no time: what they do is no run of the job, even if they say that it was."""
    core = at_gate(alone_ms=500)
    do(core, 70, OpenGate(7, 1, 570))
    do(core, 80, RunStarted("a", 7, 1), RunStarted("b", 7, 1))
    assert core.next_wakeup_ms() == 570
    commands = of(do(core, 570), EndRun)
    assert commands == [EndRun(machine, 7, 1, "its other fragments did not come", True) for machine in "ab"]
    assert list(core.runs.orders("a")) == commands[:1]
    do(core, 580, ended("a", 7, "cancelled"))
    assert of(do(core, 590, ended("b", 7, "cancelled")), Ended) == [Ended(7, 1, 590, "unmet")]


def test_a_gate_stays_closed_that_was_to_be_opened_long_ago() -> None:
    """The others have given up by then: the part ends as one that has met none, and so does one that is cancelled."""
    for word in (OpenGate(7, 1, 100), CancelJob(7, 1)):
        core = at_gate()
        commands = do(core, 101, word)
        assert of(commands, OpenRun) == []
        assert [order.at_once for order in of(commands, EndRun)] == [True, True]
        do(core, 110, ended("a", 7, "cancelled", has_run=False))
        assert of(do(core, 120, ended("b", 7, "cancelled", has_run=False)), Ended) == [Ended(7, 1, 120, "unmet")]


def test_what_waits_at_its_gate_does_not_reach_its_limit() -> None:
    """It ends with the time of the rendezvous, however short its limit is."""
    core = at_gate(rendezvous_ms=5000)
    assert of(do(core, 1050), EndRun) == []
    assert of(do(core, 5050), EndRun) == [
        EndRun(machine, 7, 1, "its other fragments did not come", True) for machine in "ab"
    ]


def test_what_was_not_described_is_refused() -> None:
    """A request for an attempt of which the site does not know what it runs cannot be granted; an old word is none."""
    core = site()
    reason = "the site was not told what it runs"
    assert of(do(core, 0, ReserveNodes(7, 1, 1, 1000)), Refused) == [Refused(7, 1, reason)]
    stale = do(core, 1, described(7, 1), EnqueueJob(Job(job_id=7, width=1, estimate_ms=9), 2, 10**6))
    assert of(stale, Refused) == [Refused(7, 2, reason)]


def test_a_refusal_forgets_what_was_described() -> None:
    """What the site has no nodes for leaves nothing behind."""
    core = site()
    commands = do(core, 0, described(7, 9), ReserveNodes(7, 1, 9, 1000))
    assert [refusal.attempt for refusal in of(commands, Refused)] == [1]
    assert core._expected == {}


def test_own_jobs_are_what_the_grid_is_told_of_as_taken() -> None:
    """The grid hears how many nodes are not its to have, before anything else."""
    core = site()
    assert of(do(core, 0, own(3)), SiteChanged) == [SiteChanged(3, 1)]


def test_time_only_goes_on() -> None:
    """An instant before the last is refused, and nothing has changed."""
    core = site()
    do(core, 5, own(1))
    with pytest.raises(InputError, match="time never goes back"):
        core.handle(4, own(1, key="2"))
    core.check_invariants()
    assert len(core.registry.records) == 1


# -- anything in any order --------------------------------------------------------------------------------------------

JOBS = (1, 2, 3, OWN, OWN + 1, OWN + 2)
numbers = st.integers(0, 3)
outcomes = st.sampled_from(["finished", "failed", "limit", "cancelled", "lost"])
agents = st.sampled_from(["a", "b", "c"])
programs = st.builds(
    request,
    st.integers(1, 5),
    limit_ms=st.sampled_from([1, 5, 40]),
    ranks=st.sampled_from(["each-node", "first-node"]),
    if_lost=st.sampled_from(["requeue", "fail"]),
    end_on_failure=st.booleans(),
)
jobs = st.sampled_from(JOBS)
grid_jobs = st.sampled_from(JOBS[:3])
attempts = st.integers(1, 3)
kinds = st.sampled_from(["hold", "queue"])


def asked(
    job_id: int, attempt: int, wanted: JobRequest, others: int, start_ms: int | None, kind: str
) -> tuple[DescribeJob, EnqueueJob | ReserveNodes]:
    """Return a description and the request that follows it."""
    width = wanted.nodes
    sites = ("north",) if start_ms is None or not others else ("north", "south")
    word = DescribeJob(job_id, attempt, wanted, wanted.limit_ms, 0, width + (others if len(sites) > 1 else 0), sites)
    if kind == "queue":
        return word, EnqueueJob(Job(job_id=job_id, width=width, estimate_ms=wanted.limit_ms), attempt, 30)
    return word, ReserveNodes(job_id, attempt, width, wanted.limit_ms, start_ms)


def wishing(wanted: JobRequest, after: list[After], array: ArrayPlace | None) -> JobRequest:
    """Return a request that waits for others, or stands in an array; or is to be held, if neither."""
    return msgspec.structs.replace(wanted, after=tuple(after), array=array, hold=not after and array is None)


waits = st.lists(
    st.builds(After, job_id=st.sampled_from(JOBS[3:]), has=st.sampled_from(["started", "ended", "finished", "failed"])),
    max_size=2,
)
places = st.none() | st.builds(ArrayPlace, name=st.just("a"), index=st.just(1), at_once=st.integers(0, 2))
anything = st.one_of(
    st.tuples(st.builds(UserSubmitted, st.text(min_size=1, max_size=3), programs)),
    st.tuples(st.builds(UserSubmitted, st.text(min_size=1, max_size=3), st.builds(wishing, programs, waits, places))),
    st.builds(
        asked,
        grid_jobs,
        attempts,
        programs,
        numbers,
        st.none() | st.integers(0, 60),
        kinds,
    ),
    st.tuples(
        st.one_of(
            st.builds(JobAction, st.just("cancel"), st.tuples(jobs)),
            st.builds(JobAction, st.just("requeue"), st.tuples(jobs)),
            st.builds(JobAction, st.just("hold"), st.tuples(jobs)),
            st.builds(JobAction, st.just("release"), st.tuples(jobs)),
            st.builds(RunStarted, agents, jobs, attempts),
            st.builds(RunEnded, agents, jobs, attempts, outcomes),
            st.builds(RunDelayed, agents.filter(lambda name: name != "c"), jobs, attempts, st.just("full")),
            st.builds(MachineReady, agents),
            st.builds(MachineJoined, agents.filter(lambda name: name != "c"), st.just("here")),
            st.builds(MachineForgotten, agents),
            st.builds(CommitNodes, grid_jobs, attempts, st.sampled_from(["", "south1:9000"])),
            st.builds(ReleaseNodes, grid_jobs, attempts),
            st.builds(CancelJob, grid_jobs, attempts),
            st.builds(WithdrawJob, grid_jobs, attempts),
            st.builds(FragmentsMet, grid_jobs, attempts),
            st.builds(OpenGate, grid_jobs, attempts, st.integers(0, 100)),
            st.builds(RunReady, st.sampled_from(["a", "b"]), grid_jobs, attempts),
        )
    ),
)
steps = st.lists(st.tuples(st.integers(0, 20), st.lists(anything, max_size=4)), max_size=25)


@given(steps, st.integers(0, 25))
def test_whatever_happens_the_state_holds_and_can_be_replayed(told: list[tuple[int, list[Any]]], kept: int) -> None:
    """After any events the invariants hold; what was recorded gives the same commands again, from a snapshot too."""
    core, codec = site(rendezvous_ms=15), Codec(LiveSiteEvent, "event")
    now_ms, recorded, snapshot = 0, [], b""
    for number, (later_ms, groups) in enumerate(told):
        if number == kept:
            snapshot = dump_state(core)
            recorded = []
        now_ms += later_ms
        encoded, events = codec.keep_all(tuple(event for group in groups for event in group))
        recorded.append((now_ms, encoded, digest(core.handle(now_ms, *events))))
        core.check_invariants()
        assert core.next_wakeup_ms() is None or core.next_wakeup_ms() > now_ms  # type: ignore[operator]
    again = site(rendezvous_ms=15)
    if snapshot:
        again.restore(read_state(again, snapshot))
    for instant_ms, encoded, decided in recorded:
        assert digest(again.handle(instant_ms, *codec.decode_all(encoded, "here"))) == decided
    assert list(again.registry.records.values()) == list(core.registry.records.values())
    assert list(again.runs.orders("a", "b")) == list(core.runs.orders("a", "b"))


@given(steps)
def test_what_is_run_comes_to_its_end(told: list[tuple[int, list[Any]]]) -> None:
    """When every machine says that its parts have ended, and no more comes, nothing is left on any node."""
    core = site(rendezvous_ms=15)
    now_ms = 0
    for later_ms, groups in told:
        now_ms += later_ms
        core.handle(now_ms, *(event for group in groups for event in group))
    do(core, now_ms, JobAction("release", tuple(core.registry.records)))
    for _ in range(200):
        orders = list(core.runs.orders("a", "b"))
        now_ms = max(now_ms, core.next_wakeup_ms() or 0)
        ends = {
            (order.machine, order.launch.job_id, order.launch.attempt)
            if isinstance(order, StartRun)
            else (order.machine, order.job_id, order.attempt)
            for order in orders
            if not isinstance(order, CheckCapacity)
        } | {(agent, run.job_id, run.attempt) for run in core.runs._runs.values() for agent in run.node_tasks}
        if not ends and core.next_wakeup_ms() is None:
            break
        do(core, now_ms, *(RunEnded(*end, "finished") for end in sorted(ends)))
    assert core.core.site.free == 4
    assert list(core.runs.ports.taken()) == []
    assert core._expected == {}
    assert {record.state for record in core.registry.records.values()} <= {"ended"}


def test_a_job_on_one_site_whose_start_was_agreed_on_has_one_port() -> None:
    """A hold with a start gets its port at once, also if the job is on no other site; it is given back in the end."""
    core = site()
    (held,) = of(do(core, 0, described(7, 1), ReserveNodes(7, 1, 1, 1000, 5)), Reserved)
    assert held.rendezvous == "127.0.0.1:2000"
    (start,) = of(do(core, 5, CommitNodes(7, 1)), StartRun)
    assert start.launch.rendezvous == "127.0.0.1:2000"
    do(core, 6, ended("a", 7))
    assert of(do(core, 7, own(1)), StartRun)[0].launch.rendezvous == "127.0.0.1:2000"


# -- machines without room --------------------------------------------------------------------------------------------


def test_a_full_machine_keeps_what_was_given_to_it_waiting() -> None:
    """While another machine has room the site goes on; the job that waits is ordered again, and starts at last."""
    core = site()
    do(core, 0, own(2), own(2, key="other"))
    commands = do(core, 1, RunDelayed("a", OWN, 1, "full"))
    assert of(commands, Noted) == [Noted(OWN, "delayed", "full")]
    assert of(commands, SiteChanged, EndRun) == []
    assert (core.runs.problem_of("a"), core.runs.problem_of("b"), core.core.shut) == ("full", "", "")
    assert [type(order) for order in core.runs.orders("a")] == [StartRun, CheckCapacity]
    assert list(core.runs.orders("b")) == [order for order in core.runs.orders("a", "b") if order.machine == "b"]
    do(core, 5, RunStarted("a", OWN, 1), MachineReady("a"))
    assert (state(core), core.runs.problem_of("a")) == (("running", "", 1), "")


def test_a_job_that_no_machine_started_within_its_limit_is_begun_anew() -> None:
    """A job of the site's own users whose machine was full until its limit has not reached it: it waits again."""
    core = site()
    do(core, 0, own(2, limit_ms=100, if_lost="fail"))
    do(core, 1, RunDelayed("a", OWN, 1, "full"))
    assert of(do(core, 100), EndRun) == [EndRun("a", OWN, 1, "reached its limit")]
    commands = do(core, 101, ended("a", OWN, "cancelled", has_run=False))
    assert of(commands, Noted)[0] == Noted(OWN, "retried", "full")
    assert state(core) == ("starting", "", 2)


def test_a_site_without_a_machine_that_can_start_anything_hands_the_jobs_of_the_grid_back() -> None:
    """Its own users' jobs wait; those of the grid end as lost, and it takes in no more until a machine is ready."""
    core = site()
    do(core, 0, described(7, 1), ReserveNodes(7, 1, 1, 1000), own(2), described(8, 1), ReserveNodes(8, 1, 1, 1000))
    do(core, 1, RunStarted("b", 8, 1))
    assert of(do(core, 2, RunDelayed("a", 7, 1, "a is full")), EndRun) == []
    commands = do(core, 3, RunDelayed("b", OWN, 1, "b is full"))
    assert of(commands, EndRun) == [EndRun("a", 7, 1, "a is full")], "what runs, and what is the site's own, goes on"
    commands = do(core, 4, ended("a", 7, "cancelled", has_run=False))
    (told,) = of(commands, Ended)
    assert (told.outcome, told.attempt) == ("lost", 1)
    assert of(commands, SiteChanged) == [SiteChanged(3, 0, "b is full")], "one node has the other job of the grid"
    commands = do(core, 5, described(7, 1, attempt=2), ReserveNodes(7, 2, 1, 1000))
    assert of(commands, Refused) == [Refused(7, 2, "b is full")]
    assert state(core)[0] == "starting"
    commands = do(core, 6, MachineReady("a"))
    assert (core.core.shut, of(commands, SiteChanged)) == ("", [SiteChanged(2, 1)])
    assert of(do(core, 7, described(7, 1, attempt=3), ReserveNodes(7, 3, 1, 1000)), Started) == [Started(7, 3, 7)]
    commands = do(core, 8, RunDelayed("a", 7, 3, "full again"))
    assert of(commands, EndRun) == [EndRun("a", 7, 3, "full again")], "b has not said that it is ready"


def test_a_machine_that_is_there_again_may_have_room() -> None:
    """A new agent finds out again whether there is room; ready and full at one instant, the last word counts."""
    core = site(TWO[0])
    do(core, 0, own(2), RunDelayed("a", OWN, 1, "full"))
    assert core.core.shut == "full"
    do(core, 1, MachineJoined("a", "here"))
    assert core.core.shut == ""
    do(core, 2, RunDelayed("a", OWN, 1, "full"), MachineReady("a"), RunDelayed("a", OWN, 1, "still"))
    assert core.core.shut == "still"
