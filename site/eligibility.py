"""Which jobs may go into the queue, and which are kept from it: by their users, by other jobs, an array, or a maximum.

No clock, no I/O. `LiveGrid` and `LiveSite` tell it what happens to jobs, and ask it what follows: docs/live.md, "Held".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gridweave.ranges import ranges_text
from gridweave.site.job import After, JobRecord, JobRequest
from gridweave.site.lines import Ask, Bound, Lane, Lines, LinesState, lane_of
from gridweave.site.maxima import Maxima

_MOST_NAMED = 3


class Past(msgspec.Struct, frozen=True):
    """What counts of a job for those that wait for it."""

    job_id: int
    user: str
    has_started: bool
    outcome: str  # as in `JobRecord`, or ``refused``; empty: it has not ended


def past_of(record: JobRecord) -> Past:
    """Return what counts of a job for those that wait for it."""
    outcome = record.state if record.state == "refused" else record.outcome
    return Past(record.job_id, record.request.user, record.start_ms is not None, outcome)


def pasts_of(request: JobRequest, records: Mapping[int, JobRecord], told: Iterable[Past] = ()) -> dict[int, Past]:
    """Return what counts of the jobs that a job waits for, as the records or else the journal (``told``) have them."""
    past = {each.job_id: each for each in told}
    known = (records[after.job_id] for after in request.after if after.job_id in records)
    return past | {record.job_id: past_of(record) for record in known}


def has_come(after: After, past: Past) -> bool | None:
    """Return whether what a job waits for has come true; None: not yet.

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
    """Return each condition in words; those of a group are one.

    Examples
    --------
    >>> after_texts([After(job_id=1), After(job_id=2, has="failed", group=1), After(job_id=3, has="failed", group=1)])
    ['job 1 has finished', 'all of jobs 2-3 have ended and one of them has failed']
    """
    groups: dict[object, list[After]] = {}
    for one in after:
        groups.setdefault(("group", one.group) if one.group else one, []).append(one)
    return [_after_text(group) for group in groups.values()]


def _after_text(group: list[After]) -> str:
    first, numbers = group[0], ranges_text((one.job_id for one in group), ", ")
    if len(group) > 1:
        return f"all of jobs {numbers} have ended and one of them has failed"
    return f"job {numbers} has {first.has}"


def _left_after_end(waits: list[After], past: Past) -> tuple[list[After], After | None]:
    """Return what a job still waits for once another has ended, and the first condition that can come true no more.

    Once a job of a group has failed, the others have to end; until then each that ends leaves it to the others to fail.
    """
    left = [after for after in waits if after.job_id != past.job_id]
    hopeless = None
    for after in waits:
        if after.job_id != past.job_id:
            continue
        others = [other for other in left if after.group and other.group == after.group]
        if not has_come(after, past):
            hopeless = hopeless if others else hopeless or after
        elif others and after.has == "failed":
            left = [msgspec.structs.replace(one, has="ended") if one in others else one for one in left]
    return left, hopeless


class _Kept(msgspec.Struct):
    """A job that is kept from the queue."""

    after: list[After]  # what has not come true yet
    # Its groups, which may have no room for it, and what it asks them for.
    lane: Lane
    ask: Ask
    attempt: int = 0  # the number of its last attempt, if it was in the queue before


class Settled(msgspec.Struct, frozen=True):
    """What follows from all that has happened."""

    let_in: list[tuple[int, int]]  # jobs that go into the queue, and the numbers of their last attempts
    # Jobs that wait for what can happen no more, and why. They are to be ended.
    hopeless: list[tuple[int, str]]
    kept: list[tuple[int, str]]  # jobs that stay where they are, and why


class EligibilityState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The jobs that are kept from the queue, when all is settled."""

    kept: dict[int, _Kept]
    wishes: list[int]
    followers: dict[int, list[int]]
    lines: LinesState


class Eligibility:
    """The jobs that are kept from the queue.

    It is told of every job that comes (`add`), starts, is taken out of the queue, and is over. After each instant, and
    after whatever follows from that, `settle` says what is to be done; what comes of that is told as well. `lines` are
    those in which jobs stand that nothing else keeps.

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
        # Jobs that their users want held: kept, or still to be taken out of the queue.
        self._wishes: set[int] = set()
        # Of jobs that are not over: those that wait for them.
        self._followers: dict[int, list[int]] = {}
        self.lines = Lines()
        # Of what something has changed since it was settled.
        self._doubtful: set[int] = set()
        self._hopeless: dict[int, str] = {}
        self._now_ms = 0

    def __contains__(self, job_id: int) -> bool:
        """Return whether a job is kept from the queue."""
        return job_id in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, now_ms: int) -> None:
        """Begin an instant."""
        self._now_ms = now_ms

    def next_wakeup_ms(self) -> int | None:
        """Return when a job may be let in though nothing happens."""
        return self.lines.next_wakeup_ms()

    def set_maxima(self, maxima: Maxima) -> None:
        """Have other maxima count from now on; who is in the queue stays there."""
        self.lines.change(maxima)
        self._doubtful.update(job_id for job_id in self._kept if job_id in self.lines)

    def is_wished(self, job_id: int) -> bool:
        """Return whether the user of a job wants it held: it is, or will be if it does not start before."""
        return job_id in self._wishes

    def add(self, job_id: int, request: JobRequest, past: dict[int, Past]) -> bool:
        """Take in a job that was handed in; return whether it goes into the queue at once.

        If not, `settle` says what becomes of it. ``past`` is of the jobs that it waits for.
        """
        lane, ask = lane_of(request)
        self.lines.came(lane)
        if not (request.hold or request.after or self.lines.has_to_stand(lane, ask)):
            self.lines.enter(lane, ask)
            return True
        waits = [after for after in request.after if not (after.has == "started" and past[after.job_id].has_started)]
        for one in dict.fromkeys(after.job_id for after in waits):
            if past[one].outcome:
                waits = self._after_end(job_id, waits, past[one])
        for after in waits:
            self._followers.setdefault(after.job_id, []).append(job_id)
        self._kept[job_id] = _Kept(waits, lane, ask)
        self._doubtful.add(job_id)
        if request.hold:
            self._wishes.add(job_id)
        return False

    def _after_end(self, job_id: int, waits: list[After], past: Past) -> list[After]:
        """Return what a job still waits for after the end of another; it may be without hope now."""
        left, hopeless = _left_after_end(waits, past)
        if hopeless is not None:
            self._hopeless.setdefault(job_id, _why_hopeless(hopeless, past))
        return left

    def hold(self, job_id: int) -> None:
        """Keep a job from the queue; one that is there is to be taken out (`taken_out`), unless it starts before."""
        self._wishes.add(job_id)
        if job_id in self._kept:
            self.lines.step_out(job_id)
            self._doubtful.add(job_id)

    def release(self, job_id: int) -> None:
        """Keep a job from the queue no more, as far as its user is concerned."""
        self._wishes.discard(job_id)
        if job_id in self._kept:
            self._doubtful.add(job_id)

    def taken_out(self, job_id: int, request: JobRequest, attempt: int) -> None:
        """Take in a job that has left the queue after this attempt, because its user wants it held."""
        lane, ask = lane_of(request)
        self.lines.leave(lane, ask, self._now_ms)
        self._kept[job_id] = _Kept([], lane, ask, attempt)
        self._doubtful.add(job_id)

    def started(self, job_id: int, request: JobRequest) -> bool:
        """Take note that a job runs; return whether its user wanted it held: that is over."""
        self.lines.started(job_id, lane_of(request)[0])
        for follower in self._followers.get(job_id, ()):
            kept = self._kept.get(follower)
            if kept is not None:
                kept.after = [after for after in kept.after if (after.job_id, after.has) != (job_id, "started")]
                self._doubtful.add(follower)
        wished = job_id in self._wishes
        self._wishes.discard(job_id)
        return wished

    def used(self, request: JobRequest, used_s: int) -> None:
        """Take note that an attempt of a job that is not over has used so many node-seconds."""
        self.lines.used(lane_of(request)[0], self._now_ms, used_s)

    def over(self, past: Past, request: JobRequest, used_s: int = 0) -> None:
        """Take note that a job has ended, was refused, or cancelled while it was kept; its last attempt used this."""
        job_id = past.job_id
        self._wishes.discard(job_id)
        self._hopeless.pop(job_id, None)
        lane, ask = lane_of(request)
        if self._kept.pop(job_id, None) is None:
            self.lines.leave(lane, ask, self._now_ms, used_s)
        self.lines.step_out(job_id)
        self.lines.over(job_id, lane)
        for follower in self._followers.pop(job_id, ()):
            kept = self._kept.get(follower)
            if kept is None:
                continue
            kept.after = self._after_end(follower, kept.after, past)
            self._doubtful.add(follower)

    def settle(self) -> Settled:
        """Return what follows from what was told since the last call."""
        hopeless, self._hopeless = sorted(self._hopeless.items()), {}
        doubtful, self._doubtful = self._doubtful, set()
        gone = {job_id for job_id, _ in hopeless}
        let_in: list[int] = []
        for job_id in gone:
            self.lines.step_out(job_id)
        for job_id in sorted(doubtful - gone):
            kept = self._kept.get(job_id)
            if kept is None or kept.after or job_id in self._wishes or job_id in self.lines:
                continue
            if self.lines.has_to_stand(kept.lane, kept.ask):
                self.lines.stand(job_id, kept.lane, kept.ask)
            else:
                self.lines.enter(kept.lane, kept.ask)
                let_in.append(job_id)
        let_in += self.lines.move(self._now_ms)
        numbers = [(job_id, self._kept.pop(job_id).attempt) for job_id in sorted(let_in)]
        still = sorted(job_id for job_id in doubtful - gone if job_id in self._kept)
        return Settled(numbers, hopeless, [(job_id, self.reason(job_id)) for job_id in still])

    def reason(self, job_id: int) -> str:
        """Return why a job is kept from the queue, in one line; empty if it is not."""
        kept = self._kept.get(job_id)
        if kept is None:
            return ""
        reasons = ["is held by its user"] if job_id in self._wishes else []
        if kept.after:
            named = after_texts(kept.after)
            more = len(named) - _MOST_NAMED
            reasons.append(f"waits until {', '.join(named[:_MOST_NAMED])}" + (f" and {more} more" if more > 0 else ""))
        if not reasons and (bounds := self.bounds(job_id)):
            reasons = [bound.words for bound in bounds]
        elif not reasons and (ahead := self.lines.ahead(job_id)):
            reasons = [f"job {ahead[0]} stands in line before it, for the same maximum"]
        return "; ".join(reasons)

    def bounds(self, job_id: int) -> list[Bound]:
        """Return what has no room for a job that nothing else keeps; none if it is not in line, or others are first."""
        if job_id not in self.lines:
            return []
        kept = self._kept[job_id]
        return self.lines.bound(self._now_ms, kept.lane, kept.ask)

    def state(self) -> EligibilityState:
        """Return which jobs are kept, when all is settled."""
        return EligibilityState(self._kept, sorted(self._wishes), self._followers, self.lines.state())

    def restore(self, state: EligibilityState) -> None:
        """Take in which jobs were kept."""
        self._kept, self._wishes, self._followers = state.kept, set(state.wishes), state.followers
        self.lines.restore(state.lines)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself: a job that is kept for nothing."""
        assert not self._doubtful, "something has changed and is not settled"
        assert not self._hopeless, "something is hopeless and not ended"
        for job_id, kept in self._kept.items():
            waits = job_id in self.lines
            assert kept.after or job_id in self._wishes or waits, f"job {job_id} is kept for nothing"
        self.lines.check_invariants(self._now_ms)


def after_problem(request: JobRequest, past: dict[int, Past]) -> str | None:
    """Return what is wrong with what a job is to wait for, in one line, or None."""
    for after in request.after:
        found = past.get(after.job_id)
        if found is None:
            return f"after: job {after.job_id} is not known here; name one that was taken in, and not forgotten"
        if found.user != request.user:
            return f"after: job {after.job_id} is another user's; a job can wait for those of its own user"
    return None


def _why_hopeless(after: After, past: Past) -> str:
    if after.group:
        return "it waited until one of several jobs has failed, and all of them have finished"
    how = "was refused" if past.outcome == "refused" else f"has ended: {past.outcome}"
    return f"it waited until job {after.job_id} has {after.has}, and that {how}"
