"""What keeps jobs from the queue: a wish, other jobs, room in an array; and what lets them go."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.site.eligibility import Eligibility, Past, after_problem, has_come, past_of, pasts_of
from gridweave.site.job import MOST_AFTER, After, ArrayPlace, JobRecord, JobRequest, Program, request_problem


def request(*after: tuple[int, str], hold: bool = False, array: tuple[str, int] | None = None) -> JobRequest:
    """Return a job that waits for others, is held, or is in an array of which so many may be under way."""
    return JobRequest(
        program=Program(argv=("true",)),
        limit_ms=1000,
        user="anna",
        hold=hold,
        after=tuple(After(job_id=job_id, has=has) for job_id, has in after),  # type: ignore[arg-type]
        array=None if array is None else ArrayPlace(name=array[0], index=0, at_once=array[1]),
    )


def past(job_id: int, outcome: str = "", *, started: bool = False) -> Past:
    """Return what has become of a job."""
    return Past(job_id, "anna", started, outcome)


class Keeper:
    """Jobs, and what is known of them, as a core would have it."""

    def __init__(self) -> None:
        self.keeping = Eligibility()
        self.requests: dict[int, JobRequest] = {}
        self.pasts: dict[int, Past] = {}
        self.inside: set[int] = set()
        self.ended: dict[int, str] = {}

    def add(self, request: JobRequest) -> int:
        """Take in a job."""
        job_id = len(self.requests) + 1
        self.requests[job_id], self.pasts[job_id] = request, past(job_id)
        if self.keeping.add(job_id, request, {after.job_id: self.pasts[after.job_id] for after in request.after}):
            self.inside.add(job_id)
        self.settle()
        return job_id

    def end(self, job_id: int, outcome: str) -> None:
        """Have a job be over."""
        self.inside.discard(job_id)
        self.ended[job_id] = outcome
        self.pasts[job_id] = past(job_id, outcome, started=self.pasts[job_id].has_started)
        self.keeping.over(self.pasts[job_id], self.requests[job_id])

    def start(self, job_id: int) -> bool:
        """Have a job run."""
        self.pasts[job_id] = past(job_id, started=True)
        wished = self.keeping.started(job_id, self.requests[job_id])
        self.settle()
        return wished

    def settle(self) -> None:
        """Do what follows, as long as anything does."""
        while True:
            settled = self.keeping.settle()
            self.inside |= {job_id for job_id, _ in settled.let_in}
            for job_id, _ in settled.unplaceable:
                self.end(job_id, "cancelled")
            if not settled.unplaceable:
                break
        self.keeping.check_invariants()


@pytest.mark.parametrize(
    ("has", "came"),
    [
        ("started", (None, True, False, True, True)),
        ("ended", (None, None, True, True, True)),
        ("finished", (None, None, False, True, False)),
        ("failed", (None, None, True, False, True)),
    ],
)
def test_what_a_job_waits_for_comes_true_or_never(has: str, came: tuple[bool | None, ...]) -> None:
    """Of jobs that wait, run, were cancelled before they ran, have finished, and have failed."""
    pasts = [past(1), past(1, started=True), past(1, "cancelled")]
    pasts += [past(1, outcome, started=True) for outcome in ("finished", "failed")]
    assert tuple(has_come(After(job_id=1, has=has), each) for each in pasts) == came  # type: ignore[arg-type]


def test_a_job_goes_when_all_it_waits_for_has_come_true() -> None:
    """Each of them counts, and until the last one the reason says which are missing."""
    watchdog = Keeper()
    first, second = watchdog.add(request()), watchdog.add(request())
    third = watchdog.add(request((first, "finished"), (second, "started"), (first, "ended")))
    assert third in watchdog.keeping
    watchdog.start(second)
    assert watchdog.keeping.reason(third) == "waits until job 1 has finished, job 1 has ended"
    watchdog.end(first, "finished")
    watchdog.settle()
    assert third in watchdog.inside
    assert watchdog.keeping.reason(third) == ""


def test_a_chain_without_hope_is_cancelled_to_its_end() -> None:
    """A job that waits for what can happen no more is ended, and so is what waits for it; what wants that, goes."""
    watchdog = Keeper()
    first = watchdog.add(request())
    chain = [watchdog.add(request((first, "finished")))]
    for _ in range(2_000):
        chain.append(watchdog.add(request((chain[-1], "finished"))))
    glad = watchdog.add(request((chain[-1], "failed")))
    watchdog.end(first, "failed")
    watchdog.settle()
    assert {watchdog.ended[job_id] for job_id in chain} == {"cancelled"}
    assert watchdog.inside == {glad}


def test_a_job_that_comes_too_late_is_without_hope_at_once() -> None:
    """What it waits for is judged by what is known; the reason says so."""
    keeping = Eligibility()
    assert not keeping.add(2, request((1, "finished")), {1: past(1, "limit")})
    assert keeping.settle().unplaceable == [(2, "it waited until job 1 has finished, but that job has ended: limit")]


def _after_array(numbers: list[int], has: str = "failed") -> JobRequest:
    """Return a job that waits for an array."""
    after = tuple(After(job_id=number, has=has, group=1) for number in numbers)  # type: ignore[arg-type]
    return msgspec.structs.replace(request(), after=after)


@pytest.mark.parametrize("comes_late", [False, True])
@given(outcomes=st.lists(st.sampled_from(["finished", "failed", "limit", "cancelled"]), min_size=1, max_size=5))
def test_an_array_has_failed_once_all_have_ended_and_one_did_not_finish(comes_late: bool, outcomes: list[str]) -> None:
    """As afternotok of an array in Slurm: in whatever order they end, and if the job comes when some have ended."""
    watchdog = Keeper()
    numbers = [watchdog.add(request()) for _ in outcomes]
    cleanup = 0 if comes_late else watchdog.add(_after_array(numbers))
    for number, outcome in zip(numbers[:-1], outcomes, strict=False):
        watchdog.end(number, outcome)
        watchdog.settle()
    cleanup = cleanup or watchdog.add(_after_array(numbers))
    assert cleanup in watchdog.keeping, "one has not ended"
    watchdog.end(numbers[-1], outcomes[-1])
    watchdog.settle()
    one_failed = any(outcome != "finished" for outcome in outcomes)
    assert (cleanup in watchdog.inside) == one_failed
    assert (watchdog.ended.get(cleanup) == "cancelled") == (not one_failed)
    late = watchdog.add(_after_array(numbers))
    assert (late in watchdog.inside) == one_failed


def test_a_condition_on_an_array_is_said_once() -> None:
    """The reason names its jobs as a range, and why it can come true no more."""
    keeping = Eligibility()
    array = _after_array([1, 2, 3])
    keeping.add(4, array, {number: past(number) for number in (1, 2, 3)})
    assert keeping.reason(4) == "waits until all of jobs 1-3 have ended and one of them has failed"
    for number in (1, 2, 3):
        keeping.over(past(number, "finished", started=True), request())
    why = "it waited until one of several jobs has failed, but all of them have finished"
    assert keeping.settle().unplaceable == [(4, why)]


def test_a_wish_keeps_a_job_until_it_is_released() -> None:
    """Beside whatever else keeps it; a job that was taken out of the queue keeps the number of its attempt."""
    watchdog = Keeper()
    first = watchdog.add(request(hold=True))
    second = watchdog.add(request((first, "ended"), hold=True))
    assert watchdog.keeping.reason(second) == "is held by its user; waits until job 1 has ended"
    watchdog.keeping.release(second)
    watchdog.settle()
    assert watchdog.keeping.reason(second) == "waits until job 1 has ended"
    watchdog.keeping.release(first)
    watchdog.settle()
    assert watchdog.inside == {first}
    watchdog.keeping.hold(first)
    watchdog.settle()
    assert watchdog.keeping.is_wished(first)
    watchdog.keeping.left_queue(first, watchdog.requests[first], 4)
    watchdog.keeping.release(first)
    assert watchdog.keeping.settle().let_in == [(first, 4)]


def test_a_wish_that_comes_too_late_is_over() -> None:
    """A job that runs before it could be taken out is held no more."""
    watchdog = Keeper()
    first = watchdog.add(request())
    watchdog.keeping.hold(first)
    assert watchdog.start(first)
    assert not watchdog.keeping.is_wished(first)
    assert not watchdog.start(first)


def test_so_many_of_an_array_are_under_way_as_may_be() -> None:
    """The lowest number goes next, one that is held gives its place to another, and gets one again when it may."""
    watchdog = Keeper()
    jobs = [watchdog.add(request(array=("sweep", 2))) for _ in range(6)]
    other = watchdog.add(request(array=("other", 1)))
    assert watchdog.inside == {jobs[0], jobs[1], other}
    assert watchdog.keeping.reason(jobs[2]) == "2 jobs of its array sweep are queued or running, the most at one time"
    watchdog.end(jobs[1], "finished")
    watchdog.settle()
    assert watchdog.inside == {jobs[0], jobs[2], other}
    watchdog.keeping.hold(jobs[3])
    watchdog.keeping.hold(jobs[0])
    watchdog.keeping.left_queue(jobs[0], watchdog.requests[jobs[0]], 1)
    watchdog.inside.discard(jobs[0])
    watchdog.settle()
    assert watchdog.inside == {jobs[2], jobs[4], other}
    for job_id in (jobs[0], jobs[3]):
        watchdog.keeping.release(job_id)
    watchdog.settle()
    watchdog.end(jobs[5], "cancelled")
    watchdog.end(jobs[4], "finished")
    watchdog.settle()
    assert watchdog.inside == {jobs[0], jobs[2], other}


def test_only_known_jobs_of_the_same_user_can_be_waited_for() -> None:
    """What is told of others, and what is known here, is looked at; the reason names the job."""
    mine = JobRecord(job_id=1, request=request(), submit_ms=0, state="ended", outcome="failed", start_ms=4)
    wanted = request((1, "ended"), (2, "ended"))
    assert past_of(mine) == Past(1, "anna", True, "failed")
    both = pasts_of(wanted, {1: mine, 3: mine}, [past(2, "finished")])
    assert (sorted(both), after_problem(wanted, both)) == ([1, 2], None)
    assert "job 2 is unknown" in str(after_problem(wanted, pasts_of(wanted, {1: mine})))
    theirs = pasts_of(wanted, {1: mine}, [Past(2, "bert", False, "")])
    assert "job 2 belongs to another user" in str(after_problem(wanted, theirs))


@pytest.mark.parametrize(
    "wrong",
    [
        {"after": (After(job_id=0),)},
        {"after": tuple(After(job_id=number + 1) for number in range(MOST_AFTER + 1))},
        {"array": ArrayPlace(name="", index=0)},
        {"array": ArrayPlace(name="two\nlines", index=0)},
        {"array": ArrayPlace(name="x" * 300, index=0)},
        {"array": ArrayPlace(name="a", index=-1)},
        {"array": ArrayPlace(name="a", index=2**31)},
        {"array": ArrayPlace(name="a", index=0, at_once=-1)},
        {"after": (After(job_id=1, has="finished", group=1),)},
        {"after": (After(job_id=1, has="failed", group=-1),)},
    ],
)
def test_what_cannot_be_waited_for_is_named(wrong: dict[str, Any]) -> None:
    """A request with numbers and names that make no sense has a problem, in one line."""
    good: dict[str, Any] = {"program": Program(argv=("true",)), "limit_ms": 1000}
    assert request_problem(JobRequest(**good)) is None
    problem = request_problem(JobRequest(**good, **wrong))
    assert problem is not None
    assert len(problem.splitlines()) == 1
    assert problem.startswith(("after", "array"))


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "end", "end", "start", "hold", "release", "out"]),
        st.integers(0, 30),
        st.sampled_from(["started", "ended", "finished", "failed"]),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(steps)
def test_nobody_is_kept_for_nothing_and_nobody_goes_too_early(wanted: list[tuple[str, int, str, int]]) -> None:
    """Whatever happens: what is inside may be there, what is kept has a reason, and what has none is let in."""
    watchdog = Keeper()
    for what, number, has, at_once in wanted:
        job_id = number % max(1, len(watchdog.requests)) + 1
        known = job_id in watchdog.requests
        if what == "add":
            after = ((job_id, has),) if known and number % 2 else ()
            watchdog.add(request(*after, hold=number % 5 == 0, array=(f"a{at_once}", at_once) if number % 3 else None))
        elif not known or job_id in watchdog.ended:
            continue
        elif what == "end":
            watchdog.end(
                job_id, "finished" if has == "finished" else "failed" if job_id in watchdog.inside else "cancelled"
            )
        elif what == "start" and job_id in watchdog.inside:
            watchdog.start(job_id)
        elif what == "hold":
            watchdog.keeping.hold(job_id)
        elif what == "release":
            watchdog.keeping.release(job_id)
        elif what == "out" and job_id in watchdog.inside and watchdog.keeping.is_wished(job_id):
            watchdog.inside.discard(job_id)
            watchdog.keeping.left_queue(job_id, watchdog.requests[job_id], 1)
        watchdog.settle()
        kept = {job_id for job_id in watchdog.requests if job_id in watchdog.keeping}
        assert kept | watchdog.inside | set(watchdog.ended) == set(watchdog.requests)
        assert not kept & watchdog.inside
        assert all(watchdog.keeping.reason(job_id) for job_id in kept)
        for most in (1, 2):
            mine = request(array=(f"a{most}", most)).array
            assert sum(watchdog.requests[each].array == mine for each in watchdog.inside) <= most


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"grace_ms": 300_001}, "grace_ms is 300001; expected at most 300000"),
        ({"output_limit_bytes": (1 << 30) + 1}, "output_limit_bytes is 1073741825; expected at most 1073741824"),
        ({"environment": {"A": "x" * (128 << 10)}}, "environment: A has 131074 bytes; Linux accepts at most"),
        ({"argv": ("true", "\u00e9" * (64 << 10))}, "argument 1 of the command has 131072 bytes"),
        ({"environment": {f"A{n}": "x" * 130_000 for n in range(9)}}, "command and environment have 11700"),
    ],
)
def test_nothing_of_a_program_is_without_a_bound(wrong: dict[str, Any], why: str) -> None:
    """What no machine could start, or would keep its nodes or fill its disk, is refused at once."""
    program = Program(**{"argv": ("true",), **wrong})
    assert (request_problem(JobRequest(program=program, limit_ms=1000)) or "").startswith(why)


def test_a_priority_has_a_bound_and_what_is_within_all_bounds_is_taken() -> None:
    """A number that swallows all others cannot be given."""
    program = Program(argv=("true",), grace_ms=300_000, output_limit_bytes=1 << 30, environment={"A": "x" * 131_069})
    assert request_problem(JobRequest(program=program, limit_ms=1000, priority=1e9)) is None
    problem = request_problem(JobRequest(program=program, limit_ms=1000, priority=-1.1e9)) or ""
    assert problem.startswith("priority is -1100000000.0; expected a number from -1000000000")
