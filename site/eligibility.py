"""Which jobs may go into the queue, and which are kept from it: by their users, by other jobs, or by their array.

No clock, no I/O. `LiveGrid` and `LiveSite` tell it what happens to jobs, and ask it what follows: docs/live.md, "Held".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

import msgspec

from gridweave.site.job import After, JobRecord, JobRequest

ArrayKey = tuple[str, str]
"""The user of an array, and its name."""

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


class _Kept(msgspec.Struct):
    """A job that is kept from the queue."""

    after: list[After]  # what has not come true yet
    array: ArrayKey | None  # if only so many of its array may be in the queue, and not over
    at_once: int
    attempt: int = 0  # the number of its last attempt, if it was in the queue before
    stands: bool = False  # whether it stands in the line of its array, as nothing else keeps it


class _Array(msgspec.Struct):
    """Jobs of an array that are let in and not over, and those that stand in line, the lowest number first."""

    inside: int = 0
    line: list[int] = []


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
    arrays: list[tuple[ArrayKey, _Array]]


class Eligibility:
    """The jobs that are kept from the queue.

    It is told of every job that comes (`add`), starts, is taken out of the queue, and is over. After each instant, and
    after whatever follows from that, `settle` says what is to be done; what comes of that is told as well.

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
        self._arrays: dict[ArrayKey, _Array] = {}
        # Of what something has changed since it was settled.
        self._doubtful: set[int] = set()
        self._moved: set[ArrayKey] = set()
        self._hopeless: dict[int, str] = {}

    def __contains__(self, job_id: int) -> bool:
        """Return whether a job is kept from the queue."""
        return job_id in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def is_wished(self, job_id: int) -> bool:
        """Return whether the user of a job wants it held: it is, or will be if it does not start before."""
        return job_id in self._wishes

    def add(self, job_id: int, request: JobRequest, past: dict[int, Past]) -> bool:
        """Take in a job that was handed in; return whether it goes into the queue at once.

        If not, `settle` says what becomes of it. ``past`` is of the jobs that it waits for.
        """
        key, at_once = _array_of(request)
        if not (request.hold or request.after or at_once):
            if key is not None:
                self._enter(key)
            return True
        waits: list[After] = []
        for after in request.after:
            come = has_come(after, past[after.job_id])
            if come is None:
                waits.append(after)
                self._followers.setdefault(after.job_id, []).append(job_id)
            elif not come:
                self._hopeless.setdefault(job_id, _why_hopeless(after, past[after.job_id]))
        self._kept[job_id] = _Kept(waits, key, at_once)
        self._doubtful.add(job_id)
        if request.hold:
            self._wishes.add(job_id)
        return False

    def hold(self, job_id: int) -> None:
        """Keep a job from the queue; one that is there is to be taken out (`taken_out`), unless it starts before."""
        self._wishes.add(job_id)
        kept = self._kept.get(job_id)
        if kept is not None:
            kept.stands = False
            self._doubtful.add(job_id)

    def release(self, job_id: int) -> None:
        """Keep a job from the queue no more, as far as its user is concerned."""
        self._wishes.discard(job_id)
        if job_id in self._kept:
            self._doubtful.add(job_id)

    def taken_out(self, job_id: int, request: JobRequest, attempt: int) -> None:
        """Take in a job that has left the queue after this attempt, because its user wants it held."""
        key, at_once = _array_of(request)
        self._leave(key)
        self._kept[job_id] = _Kept([], key, at_once, attempt)
        self._doubtful.add(job_id)

    def started(self, job_id: int) -> bool:
        """Take note that a job runs; return whether its user wanted it held: that is over."""
        for follower in self._followers.get(job_id, ()):
            kept = self._kept.get(follower)
            if kept is not None:
                kept.after = [after for after in kept.after if (after.job_id, after.has) != (job_id, "started")]
                self._doubtful.add(follower)
        wished = job_id in self._wishes
        self._wishes.discard(job_id)
        return wished

    def over(self, past: Past, request: JobRequest) -> None:
        """Take note that a job has ended, was refused, or cancelled while it was kept."""
        job_id = past.job_id
        self._wishes.discard(job_id)
        self._hopeless.pop(job_id, None)
        if self._kept.pop(job_id, None) is None:
            self._leave(_array_of(request)[0])
        for follower in self._followers.pop(job_id, ()):
            kept = self._kept.get(follower)
            if kept is None:
                continue
            mine = [after for after in kept.after if after.job_id == job_id]
            kept.after = [after for after in kept.after if after.job_id != job_id]
            self._doubtful.add(follower)
            for after in mine:
                if not has_come(after, past):
                    self._hopeless.setdefault(follower, _why_hopeless(after, past))

    def settle(self) -> Settled:
        """Return what follows from what was told since the last call."""
        if not (self._hopeless or self._doubtful or self._moved):
            return Settled([], [], [])
        hopeless, self._hopeless = sorted(self._hopeless.items()), {}
        doubtful, self._doubtful = sorted(self._doubtful), set()
        gone = {job_id for job_id, _ in hopeless}
        let_in: list[int] = []
        for job_id in doubtful:
            kept = self._kept.get(job_id)
            if kept is None or job_id in gone or kept.after or job_id in self._wishes or kept.stands:
                continue
            if kept.array is None or not kept.at_once:
                let_in.append(job_id)
            else:
                kept.stands = True
                heapq.heappush(self._arrays.setdefault(kept.array, _Array()).line, job_id)
                self._moved.add(kept.array)
        numbers = {job_id: self._let_in(job_id) for job_id in let_in}
        moved, self._moved = sorted(self._moved), set()
        for key in moved:
            numbers |= self._move(key, gone)
        still = [job_id for job_id in doubtful if job_id in self._kept and job_id not in gone]
        return Settled(sorted(numbers.items()), hopeless, [(job_id, self.reason(job_id)) for job_id in still])

    def reason(self, job_id: int) -> str:
        """Return why a job is kept from the queue, in one line; empty if it is not."""
        kept = self._kept.get(job_id)
        if kept is None:
            return ""
        reasons = ["is held by its user"] if job_id in self._wishes else []
        if kept.after:
            named = ", ".join(f"job {after.job_id} has {after.has}" for after in kept.after[:_MOST_NAMED])
            more = len(kept.after) - _MOST_NAMED
            reasons.append(f"waits until {named}" + (f" and {more} more" if more > 0 else ""))
        if not reasons and kept.array is not None:
            reasons.append(f"{kept.at_once} jobs of its array {kept.array[1]} are under way, as many as may be")
        return "; ".join(reasons)

    def state(self) -> EligibilityState:
        """Return which jobs are kept, when all is settled."""
        return EligibilityState(self._kept, sorted(self._wishes), self._followers, list(self._arrays.items()))

    def restore(self, state: EligibilityState) -> None:
        """Take in which jobs were kept."""
        self._kept, self._wishes, self._followers = state.kept, set(state.wishes), state.followers
        self._arrays = dict(state.arrays)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself: a job that is kept for nothing."""
        assert not self._doubtful, "something has changed and is not settled"
        assert not self._hopeless, "something is hopeless and not ended"
        for job_id, kept in self._kept.items():
            waits = kept.stands and kept.array in self._arrays
            assert kept.after or job_id in self._wishes or waits, f"job {job_id} is kept for nothing"
        for key, array in self._arrays.items():
            line = [job_id for job_id in set(array.line) if job_id in self._kept and self._kept[job_id].stands]
            assert array.inside >= 0, f"array {key} has fewer than no jobs under way"
            assert not line or array.inside >= self._kept[min(line)].at_once, f"array {key} has room"

    def _let_in(self, job_id: int) -> int:
        """Let a job into the queue; return the number of its last attempt."""
        kept = self._kept.pop(job_id)
        if kept.array is not None:
            self._enter(kept.array)
        return kept.attempt

    def _move(self, key: ArrayKey, gone: set[int]) -> dict[int, int]:
        """Let in as many of those in the line of an array as may be."""
        numbers: dict[int, int] = {}
        array = self._arrays.get(key)
        while array is not None and array.line:
            first = array.line[0]
            kept = self._kept.get(first)
            if kept is not None and kept.stands and first not in gone:
                if array.inside >= kept.at_once:
                    break
                numbers[first] = self._let_in(first)
            heapq.heappop(array.line)
        if array is not None and not array.line and not array.inside:
            del self._arrays[key]
        return numbers

    def _enter(self, key: ArrayKey) -> None:
        self._arrays.setdefault(key, _Array()).inside += 1

    def _leave(self, key: ArrayKey | None) -> None:
        """Take note that one of the jobs of an array is under way no more."""
        if key is not None:
            self._arrays[key].inside -= 1
            self._moved.add(key)


def after_problem(request: JobRequest, past: dict[int, Past]) -> str | None:
    """Return what is wrong with what a job is to wait for, in one line, or None."""
    for after in request.after:
        found = past.get(after.job_id)
        if found is None:
            return f"after: job {after.job_id} is not known here; name one that was taken in, and not forgotten"
        if found.user != request.user:
            return f"after: job {after.job_id} is another user's; a job can wait for those of its own user"
    return None


def _array_of(request: JobRequest) -> tuple[ArrayKey | None, int]:
    """Return the array of a job, and how many of it may be under way."""
    array = request.array
    return (None, 0) if array is None else ((request.user, array.name), array.at_once)


def _why_hopeless(after: After, past: Past) -> str:
    how = "was refused" if past.outcome == "refused" else f"has ended: {past.outcome}"
    return f"it waited until job {after.job_id} has {after.has}, and that {how}"
