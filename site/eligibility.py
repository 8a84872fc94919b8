"""Decide which jobs may enter the queue, considering user holds, dependencies, array limits and quotas.

It uses no clock and no I/O. `LiveGrid` and `LiveSite` report job events and apply the results (docs/live.md, "Held").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gridweave.ranges import ranges_text
from gridweave.site.admission import AdmissionQueue, AdmissionState, Ask, Bound, GroupSet, group_set_of
from gridweave.site.job import After, JobRecord, JobRequest
from gridweave.site.quotas import Quotas

_MOST_NAMED = 3


class Past(msgspec.Struct, frozen=True):
    """The part of a job's state on which dependent jobs rely."""

    job_id: int
    user: str
    has_started: bool
    outcome: str  # as in `JobRecord`, or ``refused``; empty: the job has not ended


def past_of(record: JobRecord) -> Past:
    """Return the part of a record on which dependent jobs rely."""
    outcome = record.state if record.state == "refused" else record.outcome
    return Past(record.job_id, record.request.user, record.start_ms is not None, outcome)


def pasts_of(
    request: JobRequest, records: Mapping[int, JobRecord], journal_pasts: Iterable[Past] = ()
) -> dict[int, Past]:
    """Return the states of the jobs that a request depends on, from the records or else from the journal."""
    past = {entry.job_id: entry for entry in journal_pasts}
    live_records = (records[after.job_id] for after in request.after if after.job_id in records)
    return past | {record.job_id: past_of(record) for record in live_records}


def has_come(after: After, past: Past) -> bool | None:
    """Return True if a dependency is met, None if it is not met yet, and False if it can never be met.

    Examples
    --------
    >>> has_come(After(job_id=1, has="finished"), Past(1, "anna", True, "failed"))
    False
    """
    if after.has == "started":
        return True if past.has_started else None if not past.outcome else False
    if not past.outcome:
        return None
    return after.has == "ended" or (past.outcome == "finished") == (after.has == "finished")


def after_texts(after: Iterable[After]) -> list[str]:
    """Describe each dependency in words; a group of dependencies is described together.

    Examples
    --------
    >>> after_texts([After(job_id=1), After(job_id=2, has="failed", group=1), After(job_id=3, has="failed", group=1)])
    ['job 1 has finished', 'all of jobs 2-3 have ended and one of them has failed']
    """
    groups: dict[object, list[After]] = {}
    for dependency in after:
        groups.setdefault(("group", dependency.group) if dependency.group else dependency, []).append(dependency)
    return [_after_text(group) for group in groups.values()]


def _after_text(group: list[After]) -> str:
    first, numbers = group[0], ranges_text((dependency.job_id for dependency in group), ", ")
    if len(group) > 1:
        return f"all of jobs {numbers} have ended and one of them has failed"
    return f"job {numbers} has {first.has}"


def _left_after_end(waits: list[After], past: Past) -> tuple[list[After], After | None]:
    """Return the dependencies that remain after a job has ended, and the first one that can never be met.

    Once a job of a group has failed, the other jobs of the group only have to end. A job that ends without failing
    before that leaves the group, so that one of the other jobs has to fail.
    """
    left = [after for after in waits if after.job_id != past.job_id]
    unplaceable = None
    for after in waits:
        if after.job_id != past.job_id:
            continue
        others = [other for other in left if after.group and other.group == after.group]
        if not has_come(after, past):
            unplaceable = unplaceable if others else unplaceable or after
        elif others and after.has == "failed":
            left = [
                msgspec.structs.replace(dependency, has="ended") if dependency in others else dependency
                for dependency in left
            ]
    return left, unplaceable


class _Kept(msgspec.Struct):
    """A job that may not enter the queue yet."""

    after: list[After]  # dependencies that are not met yet
    # The job's groups, which may be full, and how much of their quotas the job needs.
    group_set: GroupSet = msgspec.field(name="lane")
    ask: Ask
    attempt: int = 0  # number of the job's last attempt, if it has been queued before


class Settled(msgspec.Struct, frozen=True):
    """The consequences of all events since the previous call of `Eligibility.settle`."""

    let_in: list[tuple[int, int]]  # jobs that may now enter the queue, with the numbers of their last attempts
    # Jobs with a dependency that can never be met, with the reason; the caller must end these jobs.
    unplaceable: list[tuple[int, str]]
    kept: list[tuple[int, str]]  # jobs that may still not enter the queue, with the reason


class EligibilityState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of an `Eligibility` right after `settle`."""

    kept: dict[int, _Kept]
    to_hold: list[int] = msgspec.field(name="wishes")
    followers: dict[int, list[int]]
    admission: AdmissionState = msgspec.field(name="lines")


class Eligibility:
    """The jobs that may not enter the queue yet.

    The caller reports every job that is submitted (`add`), starts, leaves the queue, or ends. After the events of each
    instant it calls `settle`, applies the result, and reports the resulting events too. ``admission`` is the queue of
    jobs that are only waiting for capacity in their groups.

    Examples
    --------
    >>> from gridweave.site.job import Program
    >>> keeping = Eligibility()
    >>> plain = JobRequest(program=Program(argv=("true",)), limit_ms=1000)
    >>> keeping.add(1, plain, {})
    True
    >>> second = msgspec.structs.replace(plain, after=(After(job_id=1),))
    >>> keeping.add(2, second, {1: Past(1, "", False, "")})
    False
    >>> keeping.settle().kept
    [(2, 'waits until job 1 has finished')]
    >>> keeping.over(Past(1, "", True, "finished"), plain)
    >>> keeping.settle().let_in
    [(2, 0)]
    """

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        # Jobs held by their users: already kept out of the queue, or still to be removed from it.
        self._to_hold: set[int] = set()
        # The dependent jobs of each job that has not ended.
        self._followers: dict[int, list[int]] = {}
        self.admission = AdmissionQueue()
        # Jobs affected by events since the last `settle`.
        self._doubtful: set[int] = set()
        self._unplaceable: dict[int, str] = {}
        self._now_ms = 0

    def __contains__(self, job_id: int) -> bool:
        """Whether a job is currently kept out of the queue."""
        return job_id in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, now_ms: int) -> None:
        """Set the current time."""
        self._now_ms = now_ms

    def next_wakeup_ms(self) -> int | None:
        """Return the next time at which a job may be admitted without any other event, or None."""
        return self.admission.next_wakeup_ms()

    def set_quotas(self, quotas: Quotas) -> None:
        """Replace the quotas; jobs that are already in the queue stay in it."""
        self.admission.change(quotas)
        self._doubtful.update(job_id for job_id in self._kept if job_id in self.admission)

    def is_wished(self, job_id: int) -> bool:
        """Whether the user has held a job; the hold takes effect unless the job starts first."""
        return job_id in self._to_hold

    def add(self, job_id: int, request: JobRequest, past: dict[int, Past]) -> bool:
        """Add a submitted job; return whether it may enter the queue immediately.

        If not, `settle` will report its state. ``past`` holds the states of the jobs it depends on.
        """
        group_set, ask = group_set_of(request)
        self.admission.came(group_set)
        if not (request.hold or request.after or self.admission.has_to_stand(group_set, ask)):
            self.admission.enter(group_set, ask)
            return True
        waits = [after for after in request.after if not (after.has == "started" and past[after.job_id].has_started)]
        for other_id in dict.fromkeys(after.job_id for after in waits):
            if past[other_id].outcome:
                waits = self._after_end(job_id, waits, past[other_id])
        for after in waits:
            self._followers.setdefault(after.job_id, []).append(job_id)
        self._kept[job_id] = _Kept(waits, group_set, ask)
        self._doubtful.add(job_id)
        if request.hold:
            self._to_hold.add(job_id)
        return False

    def _after_end(self, job_id: int, waits: list[After], past: Past) -> list[After]:
        """Return a job's remaining dependencies after another job has ended, and record one that can never be met."""
        left, unplaceable = _left_after_end(waits, past)
        if unplaceable is not None:
            self._unplaceable.setdefault(job_id, _why_unplaceable(unplaceable, past))
        return left

    def hold(self, job_id: int) -> None:
        """Hold a job; the caller must then remove a queued job from the queue (`left_queue`) unless it starts first."""
        self._to_hold.add(job_id)
        if job_id in self._kept:
            self.admission.step_out(job_id)
            self._doubtful.add(job_id)

    def release(self, job_id: int) -> None:
        """Lift the user's hold; the job may still have to wait for other reasons."""
        self._to_hold.discard(job_id)
        if job_id in self._kept:
            self._doubtful.add(job_id)

    def left_queue(self, job_id: int, request: JobRequest, attempt: int) -> None:
        """Record that a job whose last attempt was `attempt` has left the queue because of a hold."""
        group_set, ask = group_set_of(request)
        self.admission.leave(group_set, ask, self._now_ms)
        self._kept[job_id] = _Kept([], group_set, ask, attempt)
        self._doubtful.add(job_id)

    def started(self, job_id: int, request: JobRequest) -> bool:
        """Record that a job has started; return whether it was held. Starting lifts the hold."""
        self.admission.started(job_id, group_set_of(request)[0])
        for follower in self._followers.get(job_id, ()):
            kept = self._kept.get(follower)
            if kept is not None:
                kept.after = [after for after in kept.after if (after.job_id, after.has) != (job_id, "started")]
                self._doubtful.add(follower)
        wished = job_id in self._to_hold
        self._to_hold.discard(job_id)
        return wished

    def used(self, request: JobRequest, used_s: int) -> None:
        """Record the node-seconds used by an attempt of a job that has not ended."""
        self.admission.used(group_set_of(request)[0], self._now_ms, used_s)

    def over(self, past: Past, request: JobRequest, used_s: int = 0) -> None:
        """Record that a job has ended or was refused or cancelled; ``used_s`` are its last attempt's node-seconds."""
        job_id = past.job_id
        self._to_hold.discard(job_id)
        self._unplaceable.pop(job_id, None)
        group_set, ask = group_set_of(request)
        if self._kept.pop(job_id, None) is None:
            self.admission.leave(group_set, ask, self._now_ms, used_s)
        self.admission.step_out(job_id)
        self.admission.over(job_id, group_set)
        for follower in self._followers.pop(job_id, ()):
            kept = self._kept.get(follower)
            if kept is None:
                continue
            kept.after = self._after_end(follower, kept.after, past)
            self._doubtful.add(follower)

    def settle(self) -> Settled:
        """Return the consequences of all events since the previous call."""
        unplaceable, self._unplaceable = sorted(self._unplaceable.items()), {}
        doubtful, self._doubtful = self._doubtful, set()
        gone = {job_id for job_id, _ in unplaceable}
        let_in: list[int] = []
        for job_id in gone:
            self.admission.step_out(job_id)
        for job_id in sorted(doubtful - gone):
            kept = self._kept.get(job_id)
            if kept is None or kept.after or job_id in self._to_hold or job_id in self.admission:
                continue
            if self.admission.has_to_stand(kept.group_set, kept.ask):
                self.admission.stand(job_id, kept.group_set, kept.ask)
            else:
                self.admission.enter(kept.group_set, kept.ask)
                let_in.append(job_id)
        let_in += self.admission.move(self._now_ms)
        numbers = [(job_id, self._kept.pop(job_id).attempt) for job_id in sorted(let_in)]
        still = sorted(job_id for job_id in doubtful - gone if job_id in self._kept)
        return Settled(numbers, unplaceable, [(job_id, self.reason(job_id)) for job_id in still])

    def reason(self, job_id: int) -> str:
        """Return why a job is kept out of the queue, in one line; empty if it is not kept out."""
        kept = self._kept.get(job_id)
        if kept is None:
            return ""
        reasons = ["is held by its user"] if job_id in self._to_hold else []
        if kept.after:
            named = after_texts(kept.after)
            more = len(named) - _MOST_NAMED
            reasons.append(f"waits until {', '.join(named[:_MOST_NAMED])}" + (f" and {more} more" if more > 0 else ""))
        if not reasons and (bounds := self.bounds(job_id)):
            reasons = [bound.words for bound in bounds]
        elif not reasons and (ahead := self.admission.ahead(job_id)):
            reasons = [f"waits behind job {ahead[0]}, for the same quota or array"]
        return "; ".join(reasons)

    def bounds(self, job_id: int) -> list[Bound]:
        """Return the full quotas and arrays that keep a job in the admission queue; empty if jobs ahead block it."""
        if job_id not in self.admission:
            return []
        kept = self._kept[job_id]
        return self.admission.bound(self._now_ms, kept.group_set, kept.ask)

    def state(self) -> EligibilityState:
        """Return the state; call this only right after `settle`."""
        return EligibilityState(self._kept, sorted(self._to_hold), self._followers, self.admission.state())

    def restore(self, state: EligibilityState) -> None:
        """Restore a state returned by `state`."""
        self._kept, self._to_hold, self._followers = state.kept, set(state.to_hold), state.followers
        self.admission.restore(state.admission)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent, e.g. if a job is kept out of the queue for no reason."""
        assert not self._doubtful, "a change was not settled"
        assert not self._unplaceable, "an unplaceable job has not ended"
        for job_id, kept in self._kept.items():
            waits = job_id in self.admission
            assert kept.after or job_id in self._to_hold or waits, f"job {job_id} is kept without a reason"
        self.admission.check_invariants(self._now_ms)


def after_problem(request: JobRequest, past: dict[int, Past]) -> str | None:
    """Return the problem with a job's dependencies, in one line, or None."""
    for after in request.after:
        dependency = past.get(after.job_id)
        if dependency is None:
            return f"after: job {after.job_id} is unknown; expected a submitted job whose record still exists"
        if dependency.user != request.user:
            return f"after: job {after.job_id} belongs to another user; expected a job of the same user"
    return None


def _why_unplaceable(after: After, past: Past) -> str:
    if after.group:
        return "it waited until one of several jobs has failed, but all of them have finished"
    how = "was refused" if past.outcome == "refused" else f"has ended: {past.outcome}"
    return f"it waited until job {after.job_id} has {after.has}, but that job {how}"
