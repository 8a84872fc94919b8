"""Held jobs of the grid: wishes at every stage and under every control, others that are waited for, and arrays."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gridweave.grid.messages import (
    FromLiveSite,
    LiveGridEvent,
    SendToSite,
)
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.site.eligibility import Past
from gridweave.site.job import Accepted, After, ArrayPlace, Declined, JobRequest, Noted, Program, RecordEnded
from gridweave.site.journal.records import Codec, digest
from gridweave.site.messages import (
    Ended,
    Enqueued,
    EnqueueJob,
    JobAction,
    LeaseEnded,
    Quoted,
    Refused,
    RequestQuote,
    Reserved,
    ReserveNodes,
    Started,
    UserSubmitted,
    WithdrawJob,
    Withdrawn,
)
from gridweave.site.state import dump_state, read_state
from support.stepping import do

NORTH, SOUTH = 0, 1


def grid(control: str = "full") -> LiveGrid:
    """Return a grid of two sites with four nodes each."""
    mode = "sharing" if control == "none" else "multi-site"
    policy = GridPolicy(mode=mode, control=control)
    return LiveGrid(GridSettings(sites=(("north", 4), ("south", 4)), policy=policy))


def job(nodes: int = 1, *, key: str = "key", past: tuple[Past, ...] = (), **more: Any) -> UserSubmitted:
    """Return the submission of a job of anna's."""
    options: dict[str, Any] = {"limit_ms": 1000, "user": "anna"} | more
    return UserSubmitted(key, JobRequest(program=Program(argv=("true",)), nodes=nodes, **options), "anna", past)


def told(commands: list[Any], *kinds: type) -> list[tuple[int, Any]]:
    """Return what sites are told, of some kinds."""
    return [(c.site, c.message) for c in commands if isinstance(c, SendToSite) and isinstance(c.message, kinds)]


def said(site: int, *messages: Any) -> list[FromLiveSite]:
    """Return that a site has said something."""
    return [FromLiveSite(site, message) for message in messages]


def states(core: LiveGrid) -> list[str]:
    """Return the states of all jobs."""
    return [record.state for record in core.registry.records.values()]


def notes(commands: list[Any], *kinds: str) -> list[tuple[int, str, str]]:
    """Return what is told in the stories."""
    return [(c.job_id, c.kind, c.detail) for c in commands if isinstance(c, Noted) and c.kind in kinds]


def quoted(core: LiveGrid, now_ms: int, commands: list[Any], free: dict[int, int]) -> list[Any]:
    """Have all sites answer a request for quotes: those with free nodes could start the job now, the others later."""
    answers = [
        FromLiveSite(site, Quoted(asked.quote_id, free[site], now_ms if free[site] >= asked.width else now_ms + 500))
        for site, asked in told(commands, RequestQuote)
    ]
    return do(core, now_ms, *answers)


def test_a_held_job_goes_into_the_queue_when_it_is_released() -> None:
    """It is taken in, says why it does not start, and no site hears of it before."""
    core = grid()
    commands = do(core, 0, job(2, hold=True))
    assert told(commands, ReserveNodes) == []
    assert [type(command) for command in commands if isinstance(command, (Accepted, Declined))] == [Accepted]
    assert notes(commands, "submitted", "kept", "waits") == [
        (1, "submitted", "2 nodes, by anna"),
        (1, "kept", "is held by its user"),
    ]
    assert (states(core), core.registry.records[1].reason, core.registry.n_open) == (["held"], "is held by its user", 1)
    commands = do(core, 5, JobAction("release", (1, 77), "anna"))
    assert [message.width for _, message in told(commands, ReserveNodes)] == [2]
    assert notes(commands, "release", "queued") == [(1, "release", "on request, by anna"), (1, "queued", "")]
    assert (states(core), core.registry.records[1].reason) == (["starting"], "")


def test_what_can_never_run_is_declined_also_if_it_is_held() -> None:
    """A held job wider than the grid does not wait for what can never be."""
    for control in ("full", "limited", "none"):
        core = grid(control)
        (answer,) = [each for each in do(core, 0, job(9, hold=True)) if isinstance(each, (Accepted, Declined))]
        assert isinstance(answer, Declined)
        assert core.registry.records == {}


def test_a_waiting_job_is_taken_out_of_the_queue_and_counts_its_attempts_on() -> None:
    """Under full control: at once; and what comes back has the next number, as sites know the last one."""
    core = grid()
    do(core, 0, job(6))
    do(core, 1, *said(NORTH, Refused(1, 1, "busy")))
    do(core, 2, *said(SOUTH, Refused(1, 1, "busy")))
    assert core.registry.records[1].state == "waiting"
    commands = do(core, 3, JobAction("hold", (1,), "anna"))
    assert notes(commands, "hold", "kept") == [(1, "hold", "on request, by anna"), (1, "kept", "is held by its user")]
    assert states(core) == ["held"]
    assert told(do(core, 70_000), ReserveNodes) == []
    commands = do(core, 70_001, JobAction("release", (1,)))
    assert {message.attempt for _, message in told(commands, ReserveNodes)} == {2}


def test_what_sites_say_late_of_a_held_job_does_not_let_it_go() -> None:
    """A hold that was given up may be granted, and end, after the job was taken out."""
    core = grid()
    do(core, 0, job(6))
    do(core, 1, *said(NORTH, Refused(1, 1, "busy")))
    do(core, 2, JobAction("hold", (1,)))
    do(core, 3, *said(SOUTH, Reserved(1, 1)), *said(SOUTH, LeaseEnded(1, 1)))
    assert states(core) == ["held"]


def test_a_placed_job_is_held_when_it_comes_back_and_runs_if_it_starts() -> None:
    """A wish for a job whose sites have been asked counts if they refuse, and is over when it runs."""
    core = grid()
    do(core, 0, job(6), job(2, key="other"))
    do(core, 1, JobAction("hold", (1, 2)))
    do(core, 2, *said(NORTH, Refused(1, 1, "busy")))
    do(core, 3, *said(SOUTH, Started(2, 1, 3)))
    assert states(core) == ["held", "running"]
    assert [core.registry.eligibility.is_wished(job_id) for job_id in (1, 2)] == [True, False]
    do(core, 4, *said(SOUTH, Ended(2, 1, 4, "lost")))
    assert core.registry.records[2].state in ("waiting", "starting")
    do(core, 5, JobAction("hold", (2,)), JobAction("release", (2,)))
    assert core.registry.records[2].state in ("waiting", "starting")


def test_a_running_job_is_not_held() -> None:
    """Nor one that is over, unknown, or handed in at that very instant."""
    core = grid()
    do(core, 0, job(2))
    do(core, 1, *said(NORTH, Started(1, 1, 1)))
    do(core, 2, JobAction("hold", (1, 2, 77)), job(8, key="guessed"))
    assert states(core) == ["running", "waiting"]
    assert not core.registry.eligibility.is_wished(1)


def test_a_delegated_job_is_asked_back_before_it_is_held() -> None:
    """Under limited control: it is held when its site has given it back, and is asked for again when it is released."""
    core = grid("limited")
    commands = quoted(core, 1, do(core, 0, job(2)), {NORTH: 1, SOUTH: 0})
    ((site, enqueued),) = told(commands, EnqueueJob)
    do(core, 2, *said(site, Enqueued(1, enqueued.attempt)))
    assert states(core) == ["waiting"]
    asked = told(do(core, 3, JobAction("hold", (1,))), WithdrawJob)
    assert asked == [(site, WithdrawJob(1, enqueued.attempt))]
    assert states(core) == ["waiting"]
    do(core, 4, *said(site, Withdrawn(1, enqueued.attempt)))
    assert states(core) == ["held"]
    again = told(quoted(core, 6, do(core, 5, JobAction("release", (1,))), {NORTH: 4, SOUTH: 4}), EnqueueJob)
    assert again[0][1].attempt > enqueued.attempt


def test_a_delegated_job_that_starts_first_runs() -> None:
    """Under limited control: the wish is over, and the job is not asked back when it is lost later."""
    core = grid("limited")
    commands = quoted(core, 1, do(core, 0, job(2)), {NORTH: 1, SOUTH: 0})
    ((site, enqueued),) = told(commands, EnqueueJob)
    do(core, 2, JobAction("hold", (1,)))
    do(core, 3, *said(site, Started(1, enqueued.attempt, 3)))
    assert states(core) == ["running"]
    commands = do(core, 4, *said(site, Ended(1, enqueued.attempt, 4, "lost")))
    assert len(told(commands, RequestQuote)) == 2


def test_a_delegated_job_that_is_released_while_it_is_asked_back_waits_on() -> None:
    """Under limited control: it is asked for again, and is never held."""
    core = grid("limited")
    commands = quoted(core, 1, do(core, 0, job(2)), {NORTH: 1, SOUTH: 0})
    ((site, enqueued),) = told(commands, EnqueueJob)
    do(core, 2, JobAction("hold", (1,)))
    do(core, 3, JobAction("release", (1,)))
    commands = do(core, 4, *said(site, Withdrawn(1, enqueued.attempt)))
    assert states(core) == ["waiting"]
    assert len(told(commands, RequestQuote)) == 2


def test_a_job_that_was_sent_away_is_asked_back_without_control_too() -> None:
    """Its site gives it back, or has started it; one that all sites refused is held at once."""
    core = grid("none")
    ((site, sent),) = told(do(core, 0, job(2)), EnqueueJob)
    assert told(do(core, 1, JobAction("hold", (1,))), WithdrawJob) == [(site, WithdrawJob(1, sent.attempt))]
    do(core, 2, *said(site, Withdrawn(1, sent.attempt)))
    assert states(core) == ["held"]
    ((site, again),) = told(do(core, 3, JobAction("release", (1,))), EnqueueJob)
    assert again.attempt == sent.attempt + 1
    ((site, last),) = told(do(core, 4, *said(site, Refused(1, again.attempt, "busy"))), EnqueueJob)
    do(core, 5, *said(site, Refused(1, last.attempt, "busy")))
    do(core, 6, JobAction("hold", (1,)))
    assert states(core) == ["held"]
    ((_, more),) = told(do(core, 7, JobAction("release", (1,))), EnqueueJob)
    assert more.attempt == last.attempt + 1


def test_a_held_job_is_cancelled_at_once() -> None:
    """It has ended, and is kept as such; one that is released at that very instant as well."""
    core = grid()
    do(core, 0, job(2, hold=True), job(2, key="b", hold=True))
    commands = do(core, 1, JobAction("cancel", (1,), "anna"), JobAction("release", (2,)), JobAction("cancel", (2,)))
    assert [(each.record.job_id, each.record.outcome) for each in commands if isinstance(each, RecordEnded)] == [
        (1, "cancelled"),
        (2, "cancelled"),
    ]
    assert told(commands, ReserveNodes) == []
    assert states(core) == ["ended", "ended"]


def test_a_job_waits_for_others_and_is_cancelled_if_there_is_no_hope() -> None:
    """When one has started or ended others go; what waits in vain is ended, and so is what waits for that."""
    core = grid()
    do(core, 0, job(1))
    waits = [
        job(1, key=has, after=(After(job_id=1, has=has),))  # type: ignore[arg-type]
        for has in ("started", "finished", "failed", "ended")
    ]
    do(core, 1, *waits, job(1, key="vain", after=(After(job_id=3),)))
    assert states(core)[1:] == ["held"] * 5
    do(core, 2, *said(NORTH, Started(1, 1, 2)))
    assert states(core)[1:] == ["starting", "held", "held", "held", "held"]
    commands = do(core, 3, *said(NORTH, Ended(1, 1, 3, "failed")))
    assert states(core) == ["ended", "starting", "ended", "starting", "starting", "ended"]
    assert [core.registry.records[job_id].outcome for job_id in (3, 6)] == ["cancelled", "cancelled"]
    assert notes(commands, "ended")[1:] == [
        (3, "ended", "cancelled: it waited until job 1 has finished, but that job has ended: failed"),
        (6, "ended", "cancelled: it waited until job 3 has finished, but that job has ended: cancelled"),
    ]


def test_only_jobs_of_ones_own_that_are_known_can_be_waited_for() -> None:
    """Another user's, one that there is not, and one that was forgotten are declined; what the journal knows counts."""
    core = grid()
    do(core, 0, job(1))
    wrong = [
        job(1, key="foreign", user="bert", after=(After(job_id=1),)),
        job(1, key="unknown", after=(After(job_id=9),)),
    ]
    reasons = [each.reason for each in do(core, 1, *wrong) if isinstance(each, Declined)]
    assert ["another user" in reasons[0], "is unknown" in reasons[1]] == [True, True]
    old = Past(9, "anna", True, "finished")
    do(core, 2, job(1, key="old", after=(After(job_id=9),), past=(old,)))
    assert states(core) == ["starting", "starting"]


def test_an_array_has_so_many_jobs_under_way_as_may_be() -> None:
    """The next goes when one has ended, whatever became of it; the machine is told which one it runs."""
    core = grid()
    sweep = [job(1, key=str(index), array=ArrayPlace(name="sweep", index=index, at_once=2)) for index in range(4)]
    do(core, 0, *sweep)
    assert states(core) == ["starting", "starting", "held", "held"]
    assert core.registry.records[3].reason == "2 jobs of its array sweep are queued or running, the most at one time"
    do(core, 1, *said(NORTH, Started(1, 1, 1)), *said(NORTH, Ended(1, 1, 1, "failed")))
    assert states(core) == ["ended", "starting", "starting", "held"]
    do(core, 2, JobAction("cancel", (4,)))
    assert states(core) == ["ended", "starting", "starting", "ended"]


jobs, attempts = st.integers(1, 6), st.integers(1, 4)
answers = st.one_of(
    st.builds(Reserved, jobs, attempts, st.just("")),
    st.builds(Started, jobs, attempts, st.integers(0, 100)),
    st.builds(Refused, jobs, attempts, st.just("busy")),
    st.builds(LeaseEnded, jobs, attempts),
    st.builds(Enqueued, jobs, attempts),
    st.builds(Withdrawn, jobs, attempts),
    st.builds(Quoted, st.integers(1, 20), st.integers(0, 4), st.none() | st.integers(0, 1000)),
    st.builds(Ended, jobs, attempts, st.integers(0, 99), st.sampled_from(["finished", "failed", "lost", "unmet"])),
)
afters = st.lists(
    st.builds(After, job_id=jobs, has=st.sampled_from(["started", "ended", "finished", "failed"])), max_size=2
)
places = st.none() | st.builds(ArrayPlace, name=st.just("a"), index=st.integers(0, 9), at_once=st.integers(0, 2))
submissions = st.builds(
    lambda key, nodes, hold, after, array: job(nodes, key=key, hold=hold, after=tuple(after), array=array),
    st.text(min_size=1, max_size=3),
    st.integers(1, 8),
    st.booleans(),
    afters,
    places,
)
wishes = st.one_of(
    st.builds(JobAction, st.just("cancel"), st.tuples(jobs)),
    st.builds(JobAction, st.just("hold"), st.tuples(jobs)),
    st.builds(JobAction, st.just("release"), st.tuples(jobs)),
)
anything = st.one_of(submissions, wishes, st.builds(FromLiveSite, st.integers(0, 1), answers))


@given(
    st.sampled_from(["full", "limited", "none"]),
    st.lists(st.tuples(st.integers(0, 400), st.lists(anything, max_size=4)), max_size=25),
    st.integers(0, 25),
)
def test_whatever_is_wished_the_state_holds_and_can_be_replayed(
    control: str, steps: list[tuple[int, list[Any]]], kept: int
) -> None:
    """No attempt is used twice, what is held is placed nowhere, and a replay gives the same, from a snapshot too."""
    core, codec = grid(control), Codec(LiveGridEvent, "event")
    now_ms, recorded, snapshot = 0, [], b""
    used: set[tuple[int, int, int]] = set()
    for number, (later_ms, given_events) in enumerate(steps):
        if number == kept:
            snapshot, recorded = dump_state(core), []
        now_ms += later_ms
        encoded, events = codec.keep_all(tuple(given_events))
        commands = core.handle(now_ms, *events)
        recorded.append((now_ms, encoded, digest(commands)))
        core.check_invariants()
        for site, message in told(commands, ReserveNodes, EnqueueJob):
            job_id = message.job_id if isinstance(message, ReserveNodes) else message.job.job_id
            assert (site, job_id, message.attempt) not in used
            used.add((site, job_id, message.attempt))
            assert core.registry.records[job_id].attempt >= message.attempt
    again = grid(control)
    if snapshot:
        again.restore(read_state(again, snapshot))
    for instant_ms, encoded, decided in recorded:
        assert digest(again.handle(instant_ms, *codec.decode_all(encoded, "here"))) == decided
    assert again.registry.records == core.registry.records
    assert again.next_wakeup_ms() == core.next_wakeup_ms()
