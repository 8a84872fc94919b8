"""A site that runs its jobs in pilots: what it asks for, what starts in them, and when they go back."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.disciplines.optimal.policy import OptimalPolicy
from gridweave.site.job import Job
from gridweave.site.messages import (
    BatchSnapshot,
    ChangeRate,
    CommitNodes,
    Event,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    Quoted,
    Refused,
    RefuseJob,
    ReleaseNodes,
    RequestQuote,
    RequestStatus,
    RequeueJob,
    Reserved,
    ReserveNodes,
    SiteChanged,
    Started,
    StartJob,
    ToGrid,
)
from gridweave.site.nodes.source import PILOT
from gridweave.site.policy import SitePolicy
from gridweave.site.scheduler.contract import ContractCore
from gridweave.site.scheduler.core import SiteCore
from gridweave.slurm.policy import BatchPolicy, PilotRules

MINUTE = 60_000
RULES = PilotRules(length_ms=60 * MINUTE, job_ms=10 * MINUTE, idle_ms=2 * MINUTE)


def job(number: int, width: int = 1, estimate_ms: int = MINUTE) -> JobSubmitted:
    """Return that a job is submitted."""
    return JobSubmitted(Job(job_id=number, width=width, estimate_ms=estimate_ms))


def seen(*pilots: int, state: str = "ready", longest_ms: int | None = None, reason: str = "") -> BatchSnapshot:
    """Return that this has become of pilots, at a cluster of which all is free."""
    asks = tuple(RequestStatus(PILOT, number, state, None, reason) for number in pilots)  # type: ignore[arg-type]
    return BatchSnapshot(8, longest_ms, ((0, 8),), asks)


def asked(core: SiteCore, now_ms: int = 0) -> list[tuple[int, int, bool]]:
    """Return which pilots should have been asked for: the number, the nodes, and whether they are there."""
    core.check_invariants()
    return [(each.ask, each.job.width, each.has_started) for each in core.source.requests(now_ms)]


def site(**rules: object) -> SiteCore:
    """Return a site of at most four nodes in pilots."""
    return SiteCore(4, BatchPolicy(pilots=msgspec.structs.replace(RULES, **rules)))


def test_pilots_come_for_what_waits_and_go_when_they_are_idle() -> None:
    """As many nodes as the waiting jobs need, and no more than the site may have; idle ones go back."""
    core = site()
    assert asked(core) == []
    core.handle(0, *(job(number) for number in range(1, 7)))
    assert asked(core) == [(number, 1, False) for number in (1, 2, 3, 4)]
    assert core.handle(10, seen(2)) == [StartJob(1, ((1, 2),))]
    assert core.handle(20, seen(1, 3)) == [StartJob(2, ((0, 1),)), StartJob(3, ((2, 3),))]
    # Two jobs more wait than the pilot that is still to come has nodes; one withdrawn, and another, make it needless.
    assert core.handle(30, JobFinished(1)) == [StartJob(4, ((1, 2),))]
    core.handle(40, JobCancelled(5), JobCancelled(6))
    assert asked(core) == [(1, 1, True), (2, 1, True), (3, 1, True)]
    core.handle(50, JobFinished(2), JobFinished(3), JobFinished(4))
    assert core.next_wakeup_ms() == 50 + 2 * MINUTE
    core.handle(50 + 2 * MINUTE)
    assert asked(core) == []
    assert core.free == 0


def test_some_nodes_are_kept_though_nothing_waits() -> None:
    """As many as the operator has said; a new pilot comes before the old one has ended."""
    core = site(keep=2, size=2)
    core.handle(0)
    assert asked(core) == [(1, 2, False)]
    core.handle(5, seen(1))
    core.handle(5 + 10 * MINUTE)
    assert asked(core) == [(1, 2, True)]
    # Asked for twice the longest job: then it has taken jobs for as long as one may take, and there is none.
    core.handle(6 + 10 * MINUTE)
    assert asked(core) == [(2, 2, False)]


def test_a_pilot_takes_no_job_that_could_outlive_it() -> None:
    """It stops taking jobs in time for the longest, and goes when the last has ended."""
    core = site()
    core.handle(0, job(1), job(2, estimate_ms=10 * MINUTE))
    core.handle(0, seen(1))
    assert asked(core) == [(1, 1, True), (2, 1, False)]
    last_ms = 10 * MINUTE
    core.handle(last_ms, JobFinished(1))
    assert [running.job.job_id for running in core.running()] == [2]
    core.handle(last_ms + 1, job(3))
    core.handle(last_ms + 5, JobFinished(2))
    assert asked(core) == [(3, 1, False)], "the old pilot is given back, and another asked for"
    (refused,) = core.handle(last_ms + 6, job(4, estimate_ms=12 * MINUTE))
    assert isinstance(refused, RefuseJob)
    assert (
        refused.reason == "its pilots accept jobs of up to 10 min, but the job may take 12 min; give it a lower limit"
    )


def test_what_still_runs_when_the_time_of_a_pilot_is_up_runs_again() -> None:
    """The site saw its nodes late, so a job could not end in time: it is told once to save what it has done."""
    core = site()
    core.handle(0, job(1, estimate_ms=10 * MINUTE))
    late = msgspec.structs.replace(seen(), asks=(RequestStatus(PILOT, 1, "ready", -15 * MINUTE),))
    assert core.handle(0, late) == [StartJob(1, ((0, 1),))]
    # It was asked for 20 minutes, and Slurm gives two more, of which one is left then.
    assert core.next_wakeup_ms() == 1
    assert core.handle(1) == []
    assert core.next_wakeup_ms() == 6 * MINUTE
    assert core.handle(6 * MINUTE) == [RequeueJob(1, "the time of its pilot is up")]
    assert core.handle(6 * MINUTE + 1) == []
    assert core.handle(6 * MINUTE + 2, JobFinished(1), job(1)) == []
    assert asked(core) == [(2, 1, False)]


def test_jobs_that_take_turns_have_pilots_for_longer() -> None:
    """A job that may work in every third slice alone needs its nodes for three times its limit, in whole slices."""
    policy = GangPolicy(mpl=3, slice_ms=7 * MINUTE)
    rules = msgspec.structs.replace(RULES, policy=policy, length_ms=84 * MINUTE)
    assert rules.stay_ms == 42 * MINUTE
    core = SiteCore(4, BatchPolicy(pilots=rules))
    core.handle(0, job(1, 4, 10 * MINUTE), job(2, 4, 10 * MINUTE))
    said = core.handle(0, seen(1, 2, 3, 4))
    assert said == [StartJob(1, ((0, 4),))]
    assert [each.job.estimate_ms for each in core.source.requests(0)] == [84 * MINUTE] * 4
    assert core.handle(7 * MINUTE) == [StartJob(2, ((0, 4),)), ChangeRate(1, 0)]
    with pytest.raises(OptionError, match=r"hours: is too small; expected at least 1\.4, because jobs of 'BGS-3"):
        msgspec.structs.replace(rules, length_ms=83 * MINUTE)


def test_how_long_a_pilot_is_asked_for() -> None:
    """The work that waits over all nodes and one job behind it, up to what the operator and the partition give."""
    core = site()
    core.handle(0, *(job(number, estimate_ms=10 * MINUTE) for number in range(1, 9)))
    lengths = [each.job.estimate_ms for each in core.source.requests(0)]
    assert lengths == [30 * MINUTE] * 4
    core = site()
    core.handle(0, seen(longest_ms=18 * MINUTE))
    (refused,) = core.handle(0, job(1, estimate_ms=10 * MINUTE))
    assert isinstance(refused, RefuseJob)
    assert "of up to 8 min" in refused.reason


def test_a_wide_job_waits_for_its_last_node_and_says_what_that_costs() -> None:
    """Those that are there stay; `explain` counts them and their idle time, and says why the last is not there."""
    core = site()
    core.handle(0, job(1, width=3))
    core.handle(0, seen(1, 2))
    core.handle(1_000, seen(3, state="waiting", reason="as 17 there: no nodes are free (Resources)"))
    assert asked(core, 5 * MINUTE) == [(1, 1, True), (2, 1, True), (3, 1, False)]
    said = core.explain(30_000, 1).reason
    assert said == (
        "it needs 3 nodes in pilots; 2 of the 4 nodes of the site are in service, 1 is requested; 2 of them free, "
        "which has cost 60 node-seconds; the last: as 17 there: no nodes are free (Resources)"
    )
    core.handle(5 * MINUTE)
    assert core.handle(5 * MINUTE, seen(3)) == [StartJob(1, ((0, 3),))]


def test_a_pilot_that_is_lost_is_asked_for_again_after_a_pause() -> None:
    """The pause doubles; what ran there is told as lost at the same instant, and starts on nothing that is gone."""
    core = site()
    core.handle(0, job(1), job(2))
    core.handle(0, seen(1))
    assert core.handle(10, JobFinished(1), seen(1, state="over", reason="a node failed"), job(1)) == []
    assert asked(core) == [(2, 1, False)]
    core.handle(20, seen(2, state="refused", reason="no such account"))
    assert asked(core) == []
    assert core.explain(20, 2).reason.endswith("a pilot failed: no such account; another is requested in 20 s")
    assert core.next_wakeup_ms() == 20_020
    core.handle(20_020)
    assert asked(core) == [(3, 1, False), (4, 1, False)]


def test_a_quote_tells_what_is_to_come() -> None:
    """How many nodes were asked for that nothing which waits needs, and when the last is expected."""
    core = ContractCore(4, BatchPolicy(pilots=RULES))

    def quoted(now_ms: int, width: int, *others: Event, length_ms: int = MINUTE) -> tuple[int, int, int | None]:
        (told,) = [
            each.answer
            for each in core.handle(now_ms, *others, RequestQuote(now_ms, width, length_ms))
            if isinstance(each, ToGrid) and isinstance(each.answer, Quoted)
        ]
        return told.free, told.coming, told.coming_ms

    assert quoted(0, 6) == (0, 0, None), "nothing is seen yet"
    full = msgspec.structs.replace(seen(), free_from=((0, 1), (9_000, 8)))
    assert quoted(1, 6, full) == (0, 4, 9_000)
    assert quoted(2, 6, seen(1), full) == (1, 3, 9_000)
    said = tuple(RequestStatus(PILOT, number, "waiting", 5_000 * number) for number in (2, 3, 4))
    assert quoted(3, 6, msgspec.structs.replace(full, asks=said)) == (1, 3, 20_000)
    assert quoted(4, 6, job(1, width=2)) == (1, 1, 20_000), "two of the four are for that job"
    assert quoted(5, 6, length_ms=11 * MINUTE) == (0, 0, None), "pilots take no job of that length"
    assert quoted(6, 6, msgspec.structs.replace(full, problem="squeue fails")) == (1, 0, None)


def test_pilots_that_are_cancelled_as_soon_as_they_start() -> None:
    """The pauses double though each pilot was there for a moment, and those of one instant count once."""
    core = site()
    core.handle(0, job(1, width=2))
    now_ms, number = 0, 1
    for pause_ms in (10_000, 20_000, 40_000):
        core.handle(now_ms, seen(number, number + 1))
        said = seen(number, number + 1, state="over", reason="it was cancelled in Slurm")
        core.handle(now_ms + 2, JobFinished(1), said)
        core.handle(now_ms + 2, job(1, width=2))
        assert asked(core, now_ms + 2) == []
        assert core.next_wakeup_ms() == now_ms + 2 + pause_ms
        now_ms += 2 + pause_ms
        core.handle(now_ms)
        number += 2
    core.handle(now_ms, seen(number, state="over", reason="it was cancelled in Slurm"))
    told = "4 times in a row a pilot failed: it was cancelled in Slurm; another is requested in 1 min 20 s"
    assert told in core.explain(now_ms, 1).reason
    # One that lasts, or is given back as any other, ends the row.
    core.handle(now_ms, seen(number + 1))
    core.handle(now_ms + 80_000)
    core.handle(now_ms + 80_001, seen(number + 2))
    core.handle(now_ms + 10 * MINUTE, JobFinished(1), seen(number + 1, state="over", reason="a node failed"))
    assert core.next_wakeup_ms() == now_ms + 10 * MINUTE + 10_000


def test_a_part_of_a_job_is_held_by_pilots_that_are_there() -> None:
    """The grid's look for nodes brings them; reserved, committed and started, or released and given back."""
    core = ContractCore(4, BatchPolicy(pilots=RULES))
    core.handle(0, seen())
    (told,) = (each.answer for each in core.handle(0, RequestQuote(1, 6, MINUTE)) if isinstance(each, ToGrid))
    assert isinstance(told, Quoted)
    assert (told.free, told.takes_parts) == (0, True)
    said = core.handle(0, seen(1, 2, 3, 4))
    assert ToGrid(SiteChanged(0, 4, longest_ms=660_000)) in said
    said = core.handle(1_000, RequestQuote(2, 6, MINUTE))
    (told,) = (each.answer for each in said if isinstance(each, ToGrid))
    assert isinstance(told, Quoted)
    assert told.free == 4
    assert told.reason.endswith(
        "4 of the 4 nodes of the site are in service; 4 of them free, which has cost 4 node-seconds"
    )
    assert ToGrid(Reserved(7, 1)) in core.handle(1_000, ReserveNodes(7, 1, 3, MINUTE, 3_000))
    assert ToGrid(Reserved(8, 1)) in core.handle(1_000, ReserveNodes(8, 1, 1, MINUTE, 3_000))
    core.handle(1_100, CommitNodes(7, 1), ReleaseNodes(8, 1))
    said = core.handle(3_000)
    assert said == [StartJob(7, ((0, 3),)), ToGrid(Started(7, 1, 3_000))]
    core.check_invariants()
    (refused,) = (
        each.answer for each in core.handle(3_100, ReserveNodes(9, 1, 2, MINUTE, 4_000)) if isinstance(each, ToGrid)
    )
    assert isinstance(refused, Refused)
    core.handle(4 * MINUTE)
    assert [each.node_indices for each in core.site.source.requests(0)] == [(0,), (1,), (2,)]


def test_starts_that_are_promised_in_pilots() -> None:
    """With conservative backfilling nothing delays a promised start, which is made again when a pilot is lost."""
    core = site(policy=SitePolicy(backfill="conservative"), keep=4)
    core.handle(0)
    core.handle(0, seen(1, 2, 3, 4))
    first, wide, third, late = job(1, 3, 2 * MINUTE), job(2, 4, MINUTE), job(3, 3, MINUTE), job(4, 1, 3 * MINUTE)
    assert core.handle(1, first, wide, third, late) == [StartJob(1, ((0, 3),))], "the last one would delay the second"
    begin_ms = 1 + 2 * MINUTE
    assert [(each.job_id, start_ms) for each, start_ms in core.waiting()] == [
        (2, begin_ms), (3, begin_ms + MINUTE), (4, begin_ms + MINUTE),
    ]  # fmt: skip
    said = core.explain(1, 2)
    assert (said.start_ms, said.is_bound) == (begin_ms, False)
    core.handle(2, seen(4, state="over", reason="a node failed"))
    assert [start_ms for _, start_ms in core.waiting()] == [None, begin_ms, begin_ms + MINUTE]
    assert core.explain(2, 2).reason.startswith(
        "it needs 4 nodes in pilots; 3 of the 4 nodes of the site are in service"
    )


@pytest.mark.parametrize("backfill", ["easy", "conservative", "slack"])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_whatever_comes(seed: int, backfill: str) -> None:
    """Random jobs, pilots that come, fail and end, and a state that is written down and read again in between."""
    rng = np.random.default_rng(seed)
    rules = {"size": int(rng.integers(1, 4)), "keep": seed % 2, "policy": SitePolicy(backfill=backfill)}
    policy = BatchPolicy(pilots=msgspec.structs.replace(RULES, **rules))
    core, now_ms, number = SiteCore(6, policy), 0, 0
    running: dict[int, tuple[int, int]] = {}
    waiting: set[int] = set()
    for _ in range(400):
        now_ms += int(rng.integers(0, MINUTE))
        events: list[Event] = [JobFinished(job_id) for job_id in running if rng.random() < 0.3]
        coming = [each.ask for each in core.source.requests(now_ms) if not each.has_started and rng.random() < 0.5]
        gone = [each.ask for each in core.source.requests(now_ms) if rng.random() < 0.03]
        events += [seen(*coming), seen(*gone, state="over", reason="gone")]
        if rng.random() < 0.6:
            number += 1
            waiting.add(number)
            events.append(job(number, int(rng.integers(1, 7)), int(rng.integers(1, 10 * MINUTE))))
        for event in events:
            if isinstance(event, JobFinished):
                del running[event.job_id]
        for command in core.handle(now_ms, *events):
            if isinstance(command, StartJob):
                waiting.remove(command.job_id)
                running[command.job_id] = command.nodes[0]
        core.check_invariants()
        if rng.random() < 0.1:
            kept = msgspec.msgpack.decode(msgspec.msgpack.encode(core.state()), type=core.state_type)
            core = SiteCore(6, policy)
            core.restore(kept)
            core.check_invariants()
        wakeup_ms = core.next_wakeup_ms()
        assert wakeup_ms is None or wakeup_ms > now_ms
    assert waiting == {each.job_id for each, _ in core.waiting()}
    assert number - len(waiting) - len(running) > 100


@pytest.mark.parametrize(("wrong", "said"), [
    ({"size": 0}, "size: is 0; expected at least 1 node"),
    ({"length_ms": 15 * MINUTE}, "hours: is too small; expected at least twice job_hours"),
    ({"policy": OptimalPolicy()}, "discipline: 'optimal' does not work with pilots; expected one of dynp, gang"),
    ({"keep": -1}, "keep: is below 0"),
])  # fmt: skip
def test_rules_that_make_no_sense(wrong: dict[str, object], said: str) -> None:
    """One line each."""
    with pytest.raises(OptionError, match=said):
        msgspec.structs.replace(RULES, **wrong)


def test_a_job_that_waits_and_is_too_long_for_what_the_partition_gives_now() -> None:
    """It is refused when that is seen, and runs in no pilot that would end before it."""
    core = SiteCore(2, BatchPolicy(pilots=RULES))
    core.handle(0, job(1, estimate_ms=10 * MINUTE), job(2, estimate_ms=4 * MINUTE))
    assert core.handle(1, seen()) == []
    (refused,) = core.handle(2, seen(longest_ms=12 * MINUTE))
    said = "its pilots accept jobs of up to 5 min, but the job may take 10 min; give it a lower limit"
    assert refused == RefuseJob(1, said)
    assert core.handle(3, seen(longest_ms=12 * MINUTE)) == []
