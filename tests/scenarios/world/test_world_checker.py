"""The checker can fail: it finds every kind of violation, caused by a deliberately broken core.

Each test breaks one rule in one core and simulates worlds until the history reports it; the same worlds pass with sound
cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gridweave.grid.control import coallocation
from gridweave.grid.control.coallocation import CoAllocator
from gridweave.grid.control.full import FullControl
from gridweave.grid.control.queue import GridQueue
from gridweave.grid.lifecycle import COMMITTED
from gridweave.grid.messages import ReportDone, ToSite
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Faults, Network
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.scenarios.world.world import LOOK_EVERY, PATIENCE_INSTANTS, PATIENCE_MS, Watchdog
from gridweave.site.allocation import NodePool
from gridweave.site.messages import CommitNodes, Ended, LeaseEnded, ToGrid
from gridweave.site.scheduler.contract import ContractCore
from gridweave.site.users.owner import GridShare

GOOD = Network(latency_ms=20)
BAD = Network(latency_ms=500, jitter_ms=800, loss=0.3, duplicate=0.2)
CRASHES = Faults(crash_every_ms=80_000, crash_lasts_ms=10_000)
LONG_CUTS = Faults(cut_every_ms=40_000, cut_lasts_ms=60_000)
CUTS = Faults(cut_every_ms=80_000, cut_lasts_ms=30_000)


def play(
    seed: int, network: Network, faults: Faults | None = None, *, check: bool = False, long: bool = False
) -> SimulationResult:
    """Simulate a busy grid of two sites with mostly split jobs and some jobs of the sites' own users."""
    rng = np.random.default_rng(seed)
    count = 60
    estimate_ms = rng.integers(2_000, 20_000, count) + 60_000 * long
    workload = Workload(
        job_id=np.arange(count) + 1,
        submit_ms=np.sort(rng.integers(0, 400_000, count)),
        width=rng.integers(1, 9, count),
        estimate_ms=estimate_ms,
        run_ms=np.minimum(estimate_ms, rng.integers(1_000, 20_000, count)),
    )
    return simulate_world(
        workload,
        [5, 4],
        GridPolicy(mode="multi-site"),
        to_grid=(rng.random(count) < 0.8) | (workload.width > 4),
        network=network,
        faults=faults,
        rng=rng,
        check=check,
    )


def assert_found(
    message: str | None, network: Network, faults: Faults | None = None, *, check: bool = False, long: bool = False
) -> None:
    """Expect one of a few worlds to show the violation with this message."""

    def some_worlds() -> None:
        for seed in range(20):
            play(seed, network, faults, check=check, long=long)

    with pytest.raises(ViolationError, match=message):
        some_worlds()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("network", "faults"), [(GOOD, None), (BAD, None), (BAD, CRASHES), (BAD, CUTS)])
def test_sound_cores_show_no_violation(seed: int, network: Network, faults: Faults | None) -> None:
    """Sound cores show no violation in the worlds in which broken cores do."""
    result = play(seed, network, faults, check=True)
    assert (result.end_ms > result.start_ms).all()


def test_a_commitment_without_all_reservations_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid commits when the first site has reserved nodes."""

    def held(self: CoAllocator, now_ms: int, site: int, attempt: coallocation.Attempt) -> list[ToSite]:
        if attempt.state == COMMITTED:
            return []
        attempt.state = COMMITTED
        self.asking.pop(attempt.job.job_id)
        return [ToSite(s, CommitNodes(attempt.job.job_id, attempt.number)) for s, _ in attempt.fragments]

    monkeypatch.setattr(CoAllocator, "_held", held)
    assert_found("is committed but site", GOOD)


def test_a_start_without_commitment_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site starts reserved fragments without a commitment."""

    def commit_all(self: ContractCore) -> Any:
        for part in self._parts.values():
            if part.state == "reserved" and part.shared and part.grant and part.start_ms <= self._now_ms:
                part.state = "committed"
        return end_leases(self)

    def due_ms(self: ContractCore, part: Any) -> Any:
        return part.start_ms if part.state == "reserved" else due_of(self, part)

    end_leases, due_of = ContractCore._end_leases, ContractCore._due_ms
    monkeypatch.setattr(ContractCore, "_end_leases", commit_all)
    monkeypatch.setattr(ContractCore, "_due_ms", due_ms)
    assert_found("without a commitment", BAD, CUTS)


def test_a_start_at_another_time_than_agreed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site starts a committed fragment before the agreed instant."""

    def start_all(self: ContractCore) -> None:
        for part in self._parts.values():
            if part.state == "committed":
                part.start_ms = self._now_ms
        start_due(self)

    start_due = ContractCore._start_due
    monkeypatch.setattr(ContractCore, "_start_due", start_all)
    assert_found("the agreed start is", GOOD)


@pytest.mark.parametrize("check", [False, True])
def test_a_lease_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch, check: bool) -> None:
    """A site keeps nodes reserved past their lease; with checks this is found at once."""
    monkeypatch.setattr(ContractCore, "_end_leases", lambda self: [])
    monkeypatch.setattr(CoAllocator, "_give_up", keep_holds)
    assert_found("lease ended" if check else None, BAD, CUTS, check=check)


def keep_holds(self: CoAllocator, attempt: coallocation.Attempt, but: int | None) -> list[ToSite]:
    """Give up an attempt without releasing its nodes."""
    attempt.state = "over"
    del self.attempts[attempt.job.job_id]
    self.asking.pop(attempt.job.job_id, None)
    return []


def test_a_lease_that_ends_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site keeps a lease for ten seconds too long, without checks of leases."""

    def due_ms(self: ContractCore, part: Any) -> int:
        due: int = due_of(self, part)
        return due + 10_000 if part.state == "reserved" else due

    due_of = ContractCore._due_ms
    monkeypatch.setattr(ContractCore, "_due_ms", due_ms)
    monkeypatch.setattr(CoAllocator, "_give_up", keep_holds)
    assert_found("whose lease ended|where it does not run", BAD, CUTS)


def without(answer: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sites drop every fifth answer of a kind."""
    count = 0

    def forgetful(self: ContractCore, now_ms: int, events: Sequence[Any]) -> list[Any]:
        nonlocal count
        kept = []
        for command in take_in(self, now_ms, events):
            if isinstance(command, ToGrid) and isinstance(command.answer, answer):
                count += 1
                if count % 5 == 0:
                    continue
            kept.append(command)
        return kept

    take_in = ContractCore.take_in
    monkeypatch.setattr(ContractCore, "take_in", forgetful)


def test_a_lost_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site does not report the end of a job, which stays unreported forever."""
    without(Ended, monkeypatch)
    assert_found("accepted jobs are lost", GOOD)


def test_an_unreported_end_of_a_reservation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site does not report that a reservation has ended."""
    without(LeaseEnded, monkeypatch)
    assert_found(None, BAD, CUTS)


def test_a_job_that_is_requeued_while_it_runs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid treats a start as a failure and runs the job a second time."""

    def impatient(self: FullControl, now_ms: int, change: coallocation.AttemptChange) -> list[Any]:
        job_id = change.attempt.job.job_id
        if change.kind == coallocation.MOVED and job_id % 7 == 0 and job_id in self._attempts.attempts:
            del self._attempts.attempts[job_id]
            self._queue.requeue(now_ms, job_id)
            self._changed = True
            return []
        return take_note(self, now_ms, change)

    take_note = FullControl._take_note
    monkeypatch.setattr(FullControl, "_take_note", impatient)
    assert_found("works", GOOD)


def test_nodes_allocated_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site always allocates its first nodes."""
    monkeypatch.setattr(NodePool, "take", lambda self, width: (((0, width),), 0))
    monkeypatch.setattr(NodePool, "give_back", lambda self, taken: None)
    assert_found("that another job occupies", GOOD)


def test_fewer_nodes_than_requested_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site allocates one node too few to a wide job."""

    def stingy(self: NodePool, width: int) -> Any:
        intervals, taken = take(self, width)
        return intervals if width < 4 else ((intervals[0][0] + 1, intervals[0][1]), *intervals[1:]), taken

    take = NodePool.take
    monkeypatch.setattr(NodePool, "take", stingy)
    assert_found("; it requested ", GOOD)


def test_a_cancellation_without_request_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid reports a lost job as cancelled."""

    def resigned(self: FullControl, now_ms: int, change: coallocation.AttemptChange) -> list[Any]:
        change.attempt.cancelled = change.attempt.cancelled or "lost" in change.attempt.ended.values()
        return take_note(self, now_ms, change)

    take_note = FullControl._take_note
    monkeypatch.setattr(FullControl, "_take_note", resigned)
    assert_found("nobody cancelled it", BAD, CRASHES)


def test_an_early_report_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid reports a job as finished when it starts late."""

    def hasty(self: FullControl, now_ms: int, change: coallocation.AttemptChange) -> list[Any]:
        said = take_note(self, now_ms, change)
        return [*said, ReportDone(change.attempt.job.job_id, "finished")] if change.kind == coallocation.MOVED else said

    take_note = FullControl._take_note
    monkeypatch.setattr(FullControl, "_take_note", hasty)
    assert_found("has not finished", GOOD)


def test_a_forgotten_job_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid forgets a job that a site has lost."""

    def forget(self: GridQueue, now_ms: int, job_id: int) -> None:
        self._leave(now_ms, job_id)

    monkeypatch.setattr(GridQueue, "requeue", forget)
    assert_found("accepted jobs are lost", BAD, CRASHES)


def test_fragments_that_wait_forever_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site never ends a fragment whose partners did not start."""

    def kill(self: ContractCore, job_id: int, part: Any, outcome: str) -> None:
        self._timed.discard(job_id)

    monkeypatch.setattr(ContractCore, "_kill", kill)
    assert_found("has been alone on site", BAD, LONG_CUTS, long=True)


def test_a_run_without_progress_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site always refuses the grid, so that the world would never end."""
    monkeypatch.setattr(GridShare, "why_not", lambda self, width: "not today")
    assert_found("the run never ends", GOOD)


def test_an_instant_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid answers every refusal with the same request, and messages take no time."""
    monkeypatch.setattr(GridShare, "why_not", lambda self, width: "not today")
    monkeypatch.setattr(FullControl, "_close", lambda self, now_ms, site, refusal: None)
    assert_found("keep answering each other", Network())


def started(history: History, job_id: int = 1, site: int = 0, nodes: tuple[int, int] = (0, 2)) -> None:
    """Start a job of one fragment and let it work."""
    history.accepted(job_id)
    history.occupied(0, site, job_id, 1, (nodes,), nodes[1] - nodes[0])
    history.began(0, job_id, 1, ((site, nodes[1] - nodes[0]),))


def finished(history: History, job_id: int = 1, site: int = 0) -> None:
    """Finish and report a job."""
    history.stopped(5, job_id, completed=True)
    history.left(5, site, job_id)
    history.reported(6, job_id, "finished")


def test_a_sound_history_is_complete() -> None:
    history = History([4, 4])
    started(history)
    finished(history)
    history.accepted(2)
    history.refused(2)
    history.accepted(3)
    history.cancelled(3)
    history.reported(7, 3, "cancelled")
    history.reserved(1, 4, 1, 50)
    history.check_leases(50)
    history.unreserved(51, 1, 4, 1)
    history.check_complete(60)
    assert history.restarts == 0


def test_a_failed_site_frees_its_nodes_and_leases() -> None:
    history = History([4])
    started(history)
    history.reserved(0, 7, 1, 50)
    assert history.running_on(0) == [(1, 1)]
    history.stopped(3, 1, completed=False)
    history.site_failed(3, 0)
    history.check_leases(100)
    assert history.restarts == 1
    history.occupied(9, 0, 1, 2, ((0, 4),), 4)
    history.began(9, 1, 2, ((0, 4),))
    finished(history)
    history.check_complete(10)


def after(*steps: Callable[[History], None]) -> History:
    """Return a history of two sites of four nodes after the given steps."""
    history = History([4, 4])
    for step in steps:
        step(history)
    return history


@pytest.mark.parametrize(
    ("history", "wrong", "message"),
    [
        (after(started), lambda h: h.occupied(1, 0, 2, 1, ((1, 3),), 2), "that another job occupies"),
        (after(started), lambda h: h.occupied(1, 0, 1, 2, ((2, 4),), 2), "runs twice on site 0"),
        (after(), lambda h: h.occupied(1, 0, 2, 1, ((0, 3),), 2), "it requested 2"),
        (after(), lambda h: h.left(1, 0, 2), "where it does not run"),
        (after(started), lambda h: h.began(1, 1, 2, ((0, 2),)), "works twice at the same time"),
        (after(started, finished), lambda h: h.began(9, 1, 2, ((0, 2),)), "after it was finished"),
        (after(), lambda h: h.began(1, 1, 1, ((0, 2),)), "without its fragment on site 0"),
        (
            after(lambda h: h.occupied(0, 0, 1, 1, ((0, 2),), 2)),
            lambda h: h.began(1, 1, 1, ((0, 3),)),
            "it requested 3",
        ),
        (
            after(lambda h: h.occupied(0, 0, 1, 1, ((0, 2),), 2)),
            lambda h: h.began(1, 1, 2, ((0, 2),)),
            "without its fragment on site 0",
        ),
        (
            after(lambda h: h.occupied(5, 0, 1, 1, ((0, 2),), 2)),
            lambda h: h.gave_up(36, 0, 1, 30),
            "has been alone on site 0 since 5 ms",
        ),
        (after(), lambda h: h.gave_up(9, 0, 1, 30), "where it does not run"),
        (after(), lambda h: h.stopped(1, 1, completed=True), "did not work"),
        (after(lambda h: h.reserved(0, 1, 1, 20)), lambda h: h.unreserved(22, 0, 1, 1), "lease ended at 20 ms"),
        (after(lambda h: h.reserved(0, 1, 1, 20)), lambda h: h.check_leases(21), "lease ended at 20 ms"),
        (
            after(lambda h: h.reserved(0, 1, 1, 20)),
            lambda h: h.committed(9, 1, 1, ((0, 2), (1, 2))),
            "site 1 has reserved nothing",
        ),
        (after(), lambda h: h.joined(9, 0, 1, 1, 9), "without a commitment"),
        (
            after(lambda h: h.reserved(0, 1, 1, 20), lambda h: h.committed(9, 1, 1, ((0, 2),))),
            lambda h: h.joined(21, 0, 1, 1, 20),
            "the agreed start is 20 ms",
        ),
        (after(started), lambda h: h.reported(1, 1, "finished"), "has not finished"),
        (after(started), lambda h: h.reported(1, 1, "cancelled"), "nobody cancelled it"),
        (after(started, finished), lambda h: h.reported(9, 1, "finished"), "done twice"),
        (after(started), lambda h: h.check_complete(9), "accepted jobs are lost, job 1 first"),
        (after(started, finished, lambda h: h.refused(1)), lambda h: h.check_complete(9), "was refused but has run"),
        (
            after(lambda h: h.occupied(0, 1, 5, 1, ((0, 2),), 2)),
            lambda h: h.check_complete(9),
            "job 5 is left on site 1",
        ),
        (after(lambda h: h.reserved(0, 1, 1, 20)), lambda h: h.check_complete(9), "still has nodes reserved for job 1"),
    ],
)
def test_each_violation_has_its_own_message(history: History, wrong: Callable[[History], None], message: str) -> None:
    with pytest.raises(ViolationError, match=message):
        wrong(history)


def test_the_watchdog_waits_for_long_jobs() -> None:
    """A run without progress is an error only after the longest job must have ended."""
    dog = Watchdog(lambda: 10**12)
    for now_ms in (0, PATIENCE_MS + 1, 10**12):
        dog.look(now_ms, 1, open_jobs=1, works=True)
    with pytest.raises(ViolationError, match="no progress since 0 ms, and 1 jobs are open"):
        dog.look(10**12 + PATIENCE_MS + 1, 1, open_jobs=1, works=True)


def test_the_watchdog_limits_messages_without_progress() -> None:
    """Too many messages while no job works are an error; progress resets the count."""
    dog = Watchdog(lambda: 10**12)
    looks = PATIENCE_INSTANTS // LOOK_EVERY
    for look in range(looks):
        dog.look(look, "a", open_jobs=1, works=False)
    for look in range(looks + 1):
        dog.look(looks + look, "b", open_jobs=1, works=False)
    with pytest.raises(ViolationError, match="the run never ends"):
        dog.look(2 * looks + 1, "b", open_jobs=1, works=False)


def test_lost_releases_violate_no_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases expire: without any release no node stays reserved past its lease."""
    monkeypatch.setattr(CoAllocator, "_give_up", keep_holds)
    for seed in range(3):
        play(seed, BAD, CUTS, check=True)
