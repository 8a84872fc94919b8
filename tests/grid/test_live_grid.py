"""The live grid: what it tells sites of the programs of its jobs, and what it knows of them until they have ended."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError
from gridweave.grid.api import NetworkLink
from gridweave.grid.messages import FromLiveSite, LiveGridEvent, SendToSite
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import (
    Accepted,
    Declined,
    DescribeJob,
    FragmentReport,
    JobRecord,
    JobRequest,
    Noted,
    Program,
    RecordUsage,
)
from gridweave.site.journal.records import Codec, digest
from gridweave.site.launch import Used
from gridweave.site.messages import (
    CancelJob,
    CommitNodes,
    Ended,
    Enqueued,
    FragmentEnding,
    FragmentOpened,
    FragmentReady,
    FragmentsMet,
    JobAction,
    KillFragment,
    LeaseEnded,
    OpenGate,
    Quoted,
    Refused,
    ReleaseNodes,
    RequeueFragment,
    Reserved,
    ReserveNodes,
    SignalFragment,
    SiteChanged,
    Started,
    UserSubmitted,
    Withdrawn,
)
from gridweave.site.scheduler.contract import ALONE_MS
from gridweave.site.state import dump_state, read_state
from support.stepping import do

NORTH, SOUTH = 0, 1


def grid(control: str = "full", mode: str = "multi-site", **more: Any) -> LiveGrid:
    """Return a grid of two sites with four nodes each."""
    policy = GridPolicy(mode=mode, control=control)
    return LiveGrid(GridSettings(sites=(("north", 4), ("south", 4)), policy=policy, **more))


def job(nodes: int, *, key: str = "key", ranks: str = "each-node", **more: Any) -> UserSubmitted:
    """Return the submission of a job."""
    options = {"limit_ms": 1000, **more}
    return UserSubmitted(key, JobRequest(program=Program(argv=("true",), ranks=ranks), nodes=nodes, **options))  # type: ignore[arg-type]


def told(commands: list[Any], *kinds: type) -> list[tuple[int, Any]]:
    """Return what sites are told, of some kinds."""
    return [(c.site, c.message) for c in commands if isinstance(c, SendToSite) and isinstance(c.message, kinds)]


def north(message: Any) -> FromLiveSite:
    """Return that the first site has said something."""
    return FromLiveSite(NORTH, message)


def south(message: Any) -> FromLiveSite:
    """Return that the second site has said something."""
    return FromLiveSite(SOUTH, message)


def split() -> LiveGrid:
    """Return a grid in which a job of six nodes is held on both sites, and committed."""
    core = grid()
    do(core, 0, job(6))
    do(core, 10, north(Reserved(1, 1, "n1:2000")))
    do(core, 20, south(Reserved(1, 1)))
    return core


def running() -> LiveGrid:
    """Return a grid in which that job runs."""
    core = split()
    for site in (north, south):
        do(core, 500, site(Started(1, 1, 500)), site(FragmentReady(1, 1)))
    do(core, 501, north(FragmentOpened(1, 1)), south(FragmentOpened(1, 1)))
    return core


def state(core: LiveGrid, job_id: int = 1) -> tuple[str, str, int]:
    """Return how it stands with a job."""
    record = core.registry.records[job_id]
    return record.state, record.outcome, record.attempt


def test_ranks_are_numbered_over_the_sites() -> None:
    """Each site hears what it runs ahead of the request: its first rank, how many there are, and all sites."""
    commands = do(grid(), 0, job(6))
    words = [message for _, message in told(commands, DescribeJob)]
    assert [(word.first_rank, word.size, word.sites) for word in words] == [
        (0, 6, ("north", "south")),
        (4, 6, ("north", "south")),
    ]
    assert [type(message) for _, message in told(commands, DescribeJob, ReserveNodes)] == [
        DescribeJob,
        ReserveNodes,
    ] * 2
    scripts = [message for _, message in told(do(grid(), 0, job(6, ranks="first-node")), DescribeJob)]
    assert [(word.first_rank, word.size) for word in scripts] == [(0, 2), (1, 2)]


def test_the_network_tells_how_many_jobs_are_on_a_link() -> None:
    """A job that runs on two sites is on the link between them; one that is only placed is on none."""
    assert split().network().links == []
    assert running().network().links == [NetworkLink(one="north", other="south", jobs=1)]


def test_the_commitment_carries_where_the_ranks_meet() -> None:
    """What the first site has said is told to all; the order of the answers does not matter."""
    for answers in (
        (north(Reserved(1, 1, "n1:2000")), south(Reserved(1, 1))),
        (south(Reserved(1, 1)), north(Reserved(1, 1, "n1:2000"))),
    ):
        core = grid()
        do(core, 0, job(6))
        do(core, 10, answers[0])
        assert told(do(core, 20, answers[1]), CommitNodes) == [
            (site, CommitNodes(1, 1, "n1:2000")) for site in (NORTH, SOUTH)
        ]


def test_ranks_begin_when_all_are_ready_and_the_job_runs_when_all_have_begun() -> None:
    """The gate is opened for all at once, and once; then each hears, once, that all are there."""
    core = split()
    do(core, 500, south(Started(1, 1, 500)), north(Started(1, 1, 500)))
    assert told(do(core, 505, south(FragmentReady(1, 1))), OpenGate) == []
    go = told(do(core, 510, north(FragmentReady(1, 1))), OpenGate)
    assert go == [(site, OpenGate(1, 1, 510 + ALONE_MS)) for site in (NORTH, SOUTH)]
    assert told(do(core, 511, north(FragmentReady(1, 1))), OpenGate) == []
    assert told(do(core, 515, south(FragmentOpened(1, 1))), FragmentsMet) == []
    assert state(core) == ("starting", "", 1)
    met = told(do(core, 520, north(FragmentOpened(1, 1))), FragmentsMet)
    assert met == [(site, FragmentsMet(1, 1)) for site in (NORTH, SOUTH)]
    assert state(core) == ("running", "", 1)
    assert core.registry.records[1].start_ms == 500


def test_a_part_that_was_cancelled_is_met_by_none_that_begins_later() -> None:
    """The job has never had all its nodes, and neither its story nor what waits for its start is told that it had."""
    core = split()
    do(core, 500, south(Started(1, 1, 500)), north(Started(1, 1, 500)))
    do(core, 505, south(FragmentReady(1, 1)), north(FragmentReady(1, 1)), south(FragmentOpened(1, 1)))
    do(core, 510, JobAction("cancel", (1,)))
    do(core, 520, south(Ended(1, 1, 515, "cancelled")))
    commands = do(core, 900, north(FragmentOpened(1, 1)))
    assert told(commands, FragmentsMet) == []
    assert not [note for note in commands if isinstance(note, Noted) and note.kind == "runs"]
    do(core, 950, north(Ended(1, 1, 940, "cancelled")))
    assert state(core) == ("ended", "cancelled", 1)
    assert core.registry.records[1].start_ms is None


@pytest.mark.parametrize("alone", ["finished", "failed"])
def test_what_a_part_did_alone_is_no_run_of_the_job(alone: str) -> None:
    """Its gate was opened, that of the other part never was: the whole job is tried again, however it ended."""
    core = split()
    do(core, 500, south(FragmentReady(1, 1)), north(FragmentReady(1, 1)), south(FragmentOpened(1, 1)))
    do(core, 600, south(Ended(1, 1, 590, alone)))
    do(core, 700, north(Ended(1, 1, 690, "unmet")))
    assert state(core) == ("starting", "", 2)


def test_a_part_that_cannot_begin_fails_the_job_whose_gate_stays_closed() -> None:
    """The command of a part is missing: the other part ends at its gate, and the job has failed and is not repeated."""
    core = split()
    do(core, 500, south(FragmentReady(1, 1)))
    assert told(do(core, 510, north(Ended(1, 1, 505, "failed"))), CancelJob) == [(SOUTH, CancelJob(1, 1))]
    assert told(do(core, 511, north(FragmentReady(1, 1))), OpenGate) == [], "a part is over"
    do(core, 520, south(Ended(1, 1, 515, "unmet")))
    assert state(core) == ("ended", "failed", 1)


def test_what_sites_report_is_added_up() -> None:
    """The job has ended with its last fragment; what all of them used, and where its output is, is known."""
    core = running()
    for site, agent, ran_ms in ((north, "a", (500, 700)), (south, "b", (520, 680))):
        report = FragmentReport(1, 1, "", (), Used(cpu_s=2.0), (agent,), ran_ms=ran_ms)
        commands = do(core, 900, site(report), site(Ended(1, 1, 890, "finished")))
    assert state(core) == ("ended", "finished", 1)
    record = core.registry.records[1]
    assert (record.used.cpu_s, record.machines) == (4.0, ("north/a", "south/b"))
    assert record.ran_ms == (520, 700)
    assert [(usage.width, usage.run_ms) for usage in commands if isinstance(usage, RecordUsage)] == [(6, 200)]


@pytest.mark.parametrize("how", ["lost", "unmet"])
def test_what_was_lost_or_alone_ends_the_rest_and_begins_anew(how: str) -> None:
    """The other site is told to end its part, though it may think that all are there; then comes the next attempt."""
    core = running()
    assert told(do(core, 600, south(Ended(1, 1, 590, how))), CancelJob) == [(NORTH, CancelJob(1, 1))]
    assert state(core) == ("waiting", "", 1)
    report = FragmentReport(1, 1, "ended", ((0, None, 15),), Used(cpu_s=1.0), ("a",))
    commands = do(core, 700, north(report), north(Ended(1, 1, 690, "cancelled")))
    assert {message.attempt for _, message in told(commands, DescribeJob, ReserveNodes)} == {2}
    assert state(core) == ("starting", "", 2)
    record = core.registry.records[1]
    assert (record.exit_codes, record.used, record.reason) == ((), Used(), "")


def test_a_hold_that_is_refused_releases_the_others() -> None:
    """The job waits again, and the story says who refused, and why."""
    core = grid()
    do(core, 0, job(6))
    commands = do(core, 10, south(Refused(1, 1, "its users were faster")))
    assert (NORTH, ReleaseNodes(1, 1)) in told(commands, ReleaseNodes)
    notes = [(note.kind, note.detail) for note in commands if isinstance(note, Noted)]
    assert ("refused", "at south: its users were faster") in notes


def test_a_wish_to_end_is_heard_at_every_stage() -> None:
    """Waiting, held, and running; what is said afterwards brings no job back."""
    core = grid()
    do(core, 0, job(8), job(8, key="waits"))
    do(core, 1, JobAction("cancel", (2,)))
    assert state(core, 2) == ("ended", "cancelled", 0)
    do(core, 2, north(Reserved(1, 1, "n1:2000")))
    assert [site for site, _ in told(do(core, 3, JobAction("cancel", (1, 1))), CancelJob)] == [NORTH, SOUTH]
    do(core, 4, north(LeaseEnded(1, 1)))
    do(core, 5, south(LeaseEnded(1, 1)))
    assert state(core) == ("ended", "cancelled", 1)
    core = running()
    do(core, 600, JobAction("cancel", (1,)))
    for site in (north, south):
        do(core, 700, site(Ended(1, 1, 690, "cancelled")))
    assert state(core) == ("ended", "cancelled", 1)
    do(core, 800, JobAction("cancel", (1,)), JobAction("cancel", (77,)))
    assert state(core) == ("ended", "cancelled", 1)


def test_a_job_on_two_sites_is_ending_until_all_of_it_is_over_and_both_are_told_to_hurry() -> None:
    """Cancelled it is ending, and killed both sites are told so; only a job that runs is sent a signal, by both."""
    core = running()
    assert (state(core)[0], core.registry.records[1].starts) == ("running", 1)
    sent = told(do(core, 510, JobAction("signal", (1,), signal="USR1")), SignalFragment)
    assert [(site, message.signal) for site, message in sent] == [(0, "USR1"), (1, "USR1")]
    sent = told(do(core, 515, JobAction("requeue", (1,), "anna")), RequeueFragment)
    why = "requeued on request, by anna"
    assert [(site, message.reason) for site, message in sent] == [(0, why), (1, why)]
    do(core, 520, JobAction("cancel", (1,)))
    assert state(core)[0] == "ending"
    assert not told(do(core, 530, JobAction("signal", (1,), signal="USR1")), SignalFragment)
    assert [site for site, _ in told(do(core, 540, JobAction("kill", (1,))), KillFragment)] == [0, 1]
    do(core, 550, north(Ended(1, 1, 550, "cancelled")))
    assert state(core)[0] == "ending"
    do(core, 560, south(Ended(1, 1, 560, "cancelled")))
    assert state(core)[:2] == ("ended", "cancelled")


def test_a_job_at_its_limit_is_ending_and_waits_again_if_it_was_lost() -> None:
    """Its site says so. A part that is lost then has not reached the limit, unless its user wants it no more."""
    core = running()
    do(core, 1501, north(FragmentEnding(1, 1)))
    assert state(core)[0] == "ending"
    do(core, 1502, south(FragmentEnding(1, 1)))
    do(core, 1510, north(Ended(1, 1, 1510, "limit")), south(Ended(1, 1, 1510, "limit")))
    assert state(core) == ("ended", "limit", 1)
    for is_wanted, expected in ((True, ("waiting", "", 1)), (False, ("ended", "cancelled", 1))):
        core = grid(mode="sharing")
        do(core, 0, job(4))
        do(core, 1, north(Started(1, 1, 0)))
        do(core, 1000, north(FragmentEnding(1, 1)), south(SiteChanged(4, 0)))
        assert state(core)[0] == "ending"
        do(core, 1001, *([] if is_wanted else [JobAction("cancel", (1,))]))
        do(core, 1002, north(SiteChanged(4, 0)), north(Ended(1, 1, 1002, "lost")))
        assert state(core) == expected


def test_a_start_that_was_refused_is_no_attempt() -> None:
    """A job that sites refused twice before it ran has started once, by its record and by what its ranks are told."""
    core = split()
    do(core, 30, north(Refused(1, 1, "late")), south(Withdrawn(1, 1)))
    assert core.registry.records[1].starts == 0
    core = running()
    do(core, 600, north(Ended(1, 1, 600, "lost")))
    described = told(do(core, 610, south(Ended(1, 1, 610, "cancelled"))), DescribeJob)
    assert {(message.attempt, message.starts) for _, message in described} == {(2, 1)}


def test_what_is_said_of_a_job_that_has_ended_does_not_bring_it_back() -> None:
    """A site that refuses after the job was given up, at another's refusal, changes nothing any more."""
    core = grid()
    do(core, 0, job(6))
    do(core, 1, JobAction("cancel", (1,)))
    do(core, 2, north(Refused(1, 1, "busy")))
    assert state(core) == ("ended", "cancelled", 1)
    do(core, 3, south(Refused(1, 1, "busy")), south(FragmentReport(1, 1, "late", (), Used(cpu_s=9.0), ("b",))))
    assert state(core) == ("ended", "cancelled", 1)
    assert core.registry.records[1].used == Used()


def test_what_is_said_of_an_earlier_attempt_is_passed_over() -> None:
    """Late starts, ends and reports are not taken for those of the present attempt."""
    core = running()
    do(core, 600, south(Ended(1, 1, 590, "lost")))
    do(core, 700, north(Ended(1, 1, 690, "cancelled")))
    do(core, 710, north(Started(1, 1, 500)), south(FragmentReport(1, 1, "old", (), Used(cpu_s=9.0), ("b",))))
    assert state(core) == ("starting", "", 2)
    assert core.registry.records[1].used == Used()


def test_a_job_that_cannot_be_is_declined() -> None:
    """Wider than the grid, longer than time, or no program: a reason, and nothing is kept."""
    core = grid()
    commands = do(core, 0, job(9), job(0, key="b"), job(1, key="c", limit_ms=10**15), job(1, key="d", sensitivity=-1.0))
    answers = [command for command in commands if isinstance(command, (Accepted, Declined))]
    assert sorted(answer.key for answer in answers) == ["b", "c", "d", "key"]
    assert all(isinstance(answer, Declined) and answer.reason for answer in answers)
    assert core.registry.records == {}


def test_a_job_that_is_delegated_is_described_for_each_site_that_has_it() -> None:
    """Under limited control a job that one site withdraws is described to the next under its next attempt."""
    core = grid("limited")
    asked = [message for _, message in [(c.site, c.message) for c in do(core, 0, job(2)) if isinstance(c, SendToSite)]]
    commands = do(core, 1, north(Quoted(asked[0].quote_id, 0, 500)), south(Quoted(asked[1].quote_id, 0, 400)))
    ((site, word),) = told(commands, DescribeJob)
    assert (site, word.sites) == (SOUTH, ("south",))
    do(core, 2, south(Withdrawn(1, word.attempt)))
    assert state(core) == ("waiting", "", word.attempt)
    assert core.registry.records[1].places == (("south", 2),)


def test_only_so_many_ended_jobs_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest leave, those that wait or run stay, and all are counted."""
    monkeypatch.setattr("gridweave.site.users.registry.KEEP_ENDED", 20)
    core = grid()
    do(core, 0, job(8, key="stays"))
    for number in range(2, 52):
        do(core, number, job(1, key=str(number)))
        do(core, number, JobAction("cancel", (number,)))
    assert 1 in core.registry.records
    assert len(core.registry.records) <= 22
    assert core.registry.n_ended == 50


def test_time_only_goes_on_and_sites_are_those_of_the_grid() -> None:
    """What cannot be is refused, and nothing has changed."""
    core = grid()
    do(core, 5, job(1))
    for now_ms, event in ((4, job(1, key="2")), (6, FromLiveSite(2, SiteChanged(0, 4)))):
        with pytest.raises(InputError):
            core.handle(now_ms, event)
    assert list(core.registry.records) == [1]


jobs, attempts = st.integers(1, 4), st.integers(1, 3)
answers = st.one_of(
    st.builds(Reserved, jobs, attempts, st.sampled_from(["", "n1:2000"])),
    st.builds(Started, jobs, attempts, st.integers(0, 100)),
    st.builds(FragmentReady, jobs, attempts),
    st.builds(FragmentOpened, jobs, attempts),
    st.builds(FragmentEnding, jobs, attempts),
    st.builds(Refused, jobs, attempts, st.just("busy")),
    st.builds(LeaseEnded, jobs, attempts),
    st.builds(Enqueued, jobs, attempts),
    st.builds(Withdrawn, jobs, attempts),
    st.builds(Quoted, st.integers(1, 9), st.integers(0, 4), st.none() | st.integers(0, 100)),
    st.builds(SiteChanged, st.integers(0, 4), st.integers(0, 4)),
    st.builds(FragmentReport, jobs, attempts, st.just(""), st.just(()), st.builds(Used), st.just(("a",))),
    st.builds(
        Ended,
        jobs,
        attempts,
        st.integers(0, 99),
        st.sampled_from(["finished", "failed", "limit", "cancelled", "lost", "unmet"]),
    ),
)
submissions = st.builds(lambda key, nodes: job(nodes, key=key), st.text(min_size=1, max_size=3), st.integers(1, 9))
anything = st.one_of(
    submissions,
    st.builds(JobAction, st.just("cancel"), st.tuples(jobs)),
    st.builds(JobAction, st.just("requeue"), st.tuples(jobs)),
    st.builds(FromLiveSite, st.integers(0, 1), answers),
)


def is_over(record: JobRecord) -> bool:
    """Return whether nothing can become of a job any more."""
    return record.state in ("ended", "refused")


@given(
    st.sampled_from(["full", "limited"]),
    st.lists(st.tuples(st.integers(0, 400), st.lists(anything, max_size=4)), max_size=25),
    st.integers(0, 25),
)
def test_whatever_sites_say_the_state_holds_and_can_be_replayed(
    control: str, steps: list[tuple[int, list[Any]]], kept: int
) -> None:
    """What has ended stays so; what was recorded gives the same commands again, from a snapshot too."""
    core, codec = grid(control), Codec(LiveGridEvent, "event")
    now_ms, recorded, snapshot = 0, [], b""
    for number, (later_ms, given_events) in enumerate(steps):
        if number == kept:
            snapshot, recorded = dump_state(core), []
        now_ms += later_ms
        encoded, events = codec.keep_all(tuple(given_events))
        over = {job_id for job_id, record in core.registry.records.items() if is_over(record)}
        recorded.append((now_ms, encoded, digest(core.handle(now_ms, *events))))
        assert all(is_over(core.registry.records[job_id]) for job_id in over)
        assert all(
            core.registry.records[job_id].state != "running"
            for job_id, gate in core._gates.items()
            if gate.begun != {NORTH, SOUTH}
        )
    again = grid(control)
    if snapshot:
        again.restore(read_state(again, snapshot))
    for instant_ms, encoded, decided in recorded:
        assert digest(again.handle(instant_ms, *codec.decode_all(encoded, "here"))) == decided
    assert again.registry.records == core.registry.records
    assert again.next_wakeup_ms() == core.next_wakeup_ms()
