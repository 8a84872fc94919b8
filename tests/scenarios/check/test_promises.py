"""Promises of EASY and conservative backfilling, and where two schedules differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import OptionError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.check.faults import Matched, faults, match
from gridweave.scenarios.check.promises import PROMISES, new_replay, parting, promise_use
from gridweave.scenarios.check.reading import Schedule
from gridweave.scenarios.workload.table import Workload
from gridweave.site.kernels.state import NEVER_MS
from reference.availability import Occupation, earliest_start, fits
from reference.promises import promises
from support.builders import Case, cases, random_jobs, to_workload


def schedule_of(workload: Workload, start_ms: object, name: str = "one") -> Matched:
    """Build a schedule from starts, with the matching ends."""
    starts = np.asarray(start_ms, np.int64)
    columns = (workload.job_id, workload.submit_ms, workload.width, starts, starts + workload.run_ms)
    return match(Schedule(name, "test", *columns), workload)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Case, dict[int, int]]:
    """Draw jobs, and random starts: in any order, each as early as it fits or later."""
    case = draw(cases(max_jobs=10, max_nodes=5))
    taken: list[Occupation] = []
    start = {}
    for job in draw(st.permutations(case.jobs)):
        earliest = job.submit + draw(st.sampled_from((0, 0, 0, 1, 5)))
        start[job.id] = earliest_start(
            earliest, taken, lambda at, job=job: fits(at, job.length, job.width, case.nodes, taken)
        )
        taken.append(Occupation(start[job.id], start[job.id] + job.length, job.width))
    return case, start


@pytest.mark.parametrize("kind", PROMISES)
@given(drawn=schedules())
@settings(max_examples=300)
def test_promises_equal_the_reference(drawn: tuple[Case, dict[int, int]], kind: str) -> None:
    """For random schedules, promises equal those of the slow reference."""
    case, start = drawn
    workload = to_workload(case.jobs)
    matched = schedule_of(workload, [start[job_id] for job_id in workload.job_id.tolist()])
    assert faults(matched, case.nodes) == []
    played = new_replay(matched, case.nodes, kind)
    played.replay_until(int(NEVER_MS))
    told = dict(zip(workload.job_id.tolist(), played.schedule.shown_ms.tolist(), strict=True))
    assert {job_id: when for job_id, when in told.items() if when < NEVER_MS} == promises(
        case.jobs, start, case.nodes, kind
    )


@pytest.mark.parametrize("backfill", PROMISES)
def test_simulations_keep_their_promises(backfill: str) -> None:
    """EASY and conservative schedules keep their own promises and break the other's."""
    broken = 0
    for seed in range(5):
        workload = to_workload(random_jobs(np.random.default_rng(seed), 400, nodes=16, load=0.95))
        matched = schedule_of(workload, simulate(workload, 16, backfill=backfill).start_ms)
        use = promise_use(matched, 16, backfill)
        assert (use.broken, use.first_job, use.promised > 100) == (0, None, True)
        other = next(kind for kind in PROMISES if kind != backfill)
        broken += promise_use(matched, 16, other).broken
    assert broken > 0


def test_a_broken_promise_is_reported() -> None:
    """A job that starts ahead of the head and delays it breaks EASY's promise; the report has the delay."""
    jobs = Workload(
        job_id=[1, 2, 3],
        submit_ms=[0, 1_000, 2_000],
        width=[3, 4, 1],
        estimate_ms=[60_000, 50_000, 90_000],
        run_ms=[60_000, 50_000, 90_000],
    )
    use = promise_use(schedule_of(jobs, [0, 92_000, 2_000]), 4, "easy")
    assert (use.broken, use.first_job, use.promised_ms, use.late_ms, use.worst_ms) == (1, 2, 60_000, 32_000, 32_000)
    assert str(use) == (
        "easy: broken for 1 of 1 promised starts; first job 2, promised 60 s, started 32 s later (at most 32 s)"
    )
    assert promise_use(schedule_of(jobs, [0, 92_000, 2_000]), 4, "easy", tolerance_ms=32_000).broken == 0
    assert str(promise_use(schedule_of(jobs, [0, 60_000, 110_000]), 4, "easy")) == "easy: kept, 2 promised starts"
    with pytest.raises(OptionError, match="one of easy, conservative"):
        promise_use(schedule_of(jobs, [0, 60_000, 110_000]), 4, "slack")


def test_the_first_difference_of_two_schedules() -> None:
    """The report names the job that only one schedule starts, and whether the policies would start it."""
    jobs = Workload(
        job_id=[1, 2, 3, 4],
        submit_ms=[0, 1_000, 2_000, 3_000],
        width=[3, 4, 1, 1],
        estimate_ms=[60_000, 50_000, 90_000, 40_000],
        run_ms=[60_000, 50_000, 90_000, 40_000],
    )
    right = schedule_of(jobs, [0, 60_000, 110_000, 3_000], "right")
    wrong = schedule_of(jobs, [0, 92_000, 2_000, 60_000], "wrong")
    assert parting(right, right, 4) is None
    parted = parting(right, wrong, 4)
    assert parted is not None
    assert (parted.at_ms, parted.job_id, parted.path, parted.other_ms, parted.jobs) == (2_000, 3, "wrong", 110_000, 3)
    assert parted.why == (
        "easy: does not start it; 1 of 4 nodes are free, and it takes 1; by its estimate it ends at 92 s; job 2 "
        "(4 nodes), first in the queue, can start at 60 s, with 0 nodes to spare\n"
        "conservative: has it start at 110 s"
    )
    late = schedule_of(jobs, [0, 60_000, 110_000, 110_000], "late")
    parted = parting(right, late, 4)
    assert parted is not None
    assert (parted.job_id, parted.path, parted.why.split("; ")[0]) == (4, "right", "easy: starts it")
