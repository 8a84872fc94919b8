"""The decisions of dynP: every case of Table 4.3, the deciders, what is refused, and what a site says of its policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.site.disciplines.dictionary import read_policy
from gridweave.site.disciplines.dynp.kernels.deciding import CASES, case_of, decide
from gridweave.site.disciplines.dynp.policy import THREE, CalendarEntry, DynPPolicy
from gridweave.site.job import Job
from gridweave.site.messages import JobFinished, JobSubmitted, StartJob
from gridweave.site.policy import Window
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state, read_state

HOUR_MS = 3_600_000

TABLE_4_3 = [
    # case, performance of FCFS, SJF, LJF, old policy, simple decider, correct decision
    ("1", (1, 1, 1), "fcfs", "fcfs", "fcfs"),
    ("1", (1, 1, 1), "sjf", "fcfs", "sjf"),
    ("1", (1, 1, 1), "ljf", "fcfs", "ljf"),
    ("2", (2, 1, 3), "ljf", "sjf", "sjf"),
    ("3", (1, 2, 3), "ljf", "fcfs", "fcfs"),
    ("4a", (2, 3, 1), "fcfs", "ljf", "ljf"),
    ("4b", (2, 2, 1), "sjf", "ljf", "ljf"),
    ("4c", (3, 2, 1), "fcfs", "ljf", "ljf"),
    ("6a", (1, 1, 2), "fcfs", "fcfs", "fcfs"),
    ("6b", (1, 1, 2), "sjf", "fcfs", "sjf"),
    ("6c", (1, 1, 2), "ljf", "fcfs", "fcfs"),
    ("8a", (1, 2, 1), "fcfs", "fcfs", "fcfs"),
    ("8b", (1, 2, 1), "sjf", "fcfs", "fcfs"),
    ("8c", (1, 2, 1), "ljf", "fcfs", "ljf"),
    ("10a", (2, 1, 1), "fcfs", "sjf", "sjf"),
    ("10b", (2, 1, 1), "sjf", "sjf", "sjf"),
    ("10c", (2, 1, 1), "ljf", "sjf", "ljf"),
    # 5, 7 and 9 are special cases of 4b, 2 and 3, which stand before them.
    ("4b", (2, 2, 1), "ljf", "ljf", "ljf"),
    ("2", (2, 1, 2), "fcfs", "sjf", "sjf"),
    ("3", (1, 2, 2), "sjf", "fcfs", "fcfs"),
]


@pytest.mark.parametrize(("case", "values", "old", "simple", "correct"), TABLE_4_3)
def test_case_of_table_4_3(case: str, values: tuple[int, ...], old: str, simple: str, correct: str) -> None:
    """In every case of Table 4.3 the simple decider chooses what Example 4.1 does, the advanced what is correct."""
    performance, active = np.array(values, np.float64), np.int64(THREE.index(old))
    assert CASES[case_of(performance, active)] == case
    assert THREE[decide(performance, active, DynPPolicy(decider="simple").codes())] == simple
    assert THREE[decide(performance, active, DynPPolicy(decider="advanced").codes())] == correct


@pytest.mark.parametrize("preferred", THREE)
def test_the_preferred_policy_needs_only_be_as_good(preferred: str) -> None:
    """The preferred policy is taken wherever it is among the best; elsewhere the preferred decider is the advanced."""
    codes = DynPPolicy(decider="preferred", preferred=preferred).codes()
    for case, values, old, _, correct in TABLE_4_3:
        chosen = THREE[decide(np.array(values, np.float64), np.int64(THREE.index(old)), codes)]
        is_best = values[THREE.index(preferred)] == min(values)
        assert chosen == (preferred if is_best else correct), case


def test_values_that_differ_by_rounding_are_equal() -> None:
    """A sum of doubles that is rounded in another order makes no policy better than another."""
    values = np.array([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 1.0])
    assert values[0] != values[1]
    codes = DynPPolicy().codes()
    assert [decide(values, np.int64(old), codes) for old in (0, 1, 2)] == [0, 1, 0]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"lower_ms": 2, "upper_ms": 1}, "lower_ms: is 2 ms, and the upper is 1 ms; expected a lower bound"),
    ({"decider": "preferred", "preferred": "saf"}, "preferred: 'saf' is not a candidate; one of fcfs, sjf, ljf"),
    ({"decider": "preferred"}, "preferred: goes with the decider 'preferred', which needs one of the candidates"),
    ({"preferred": "sjf"}, "preferred: goes with the decider 'preferred'"),
    ({"slackness_pct": -1}, "slackness_pct: is -1; expected 0 to 100 per cent"),
    ({"decider": "best"}, "decider: 'best' is not known; one of simple, advanced, preferred, bounds, calendar"),
    ({"metric": "awt"}, "metric: 'awt' is not known; one of art, artwa, artww, makespan, sld, sldww, ppsld60"),
    ({"policies": ("fcfs", "fcfs")}, "policies: are fcfs, fcfs; expected at least one policy, without repetition"),
    ({"policies": ("fcfs", "gang")}, "policies: 'gang' is not known"),
    ({"policies": ()}, "policies: are none"),
    ({"policies": ("fcfs", "saf"), "reading": "thesis"}, "reading: 'thesis' requires the policies fcfs, sjf, ljf"),
    (
        {"policies": ("fcfs", "saf"), "decider": "bounds"},
        "policies: are fcfs, saf; the decider 'bounds' requires fcfs, sjf, ljf",
    ),
    ({"decider": "calendar"}, "calendar: goes with the decider 'calendar', which needs at least one entry"),
    ({"first_jobs": 0}, "first_jobs: is 0; expected 1 to"),
    ({"within_ms": -1}, "within_ms: is -1; expected 0 to"),
    ({"tuning": "never"}, "tuning: 'never' is not known; one of full, half, starts"),
]


@pytest.mark.parametrize(("options", "problem"), WRONG)
def test_impossible_options_are_refused(options: dict[str, Any], problem: str) -> None:
    """What makes no sense is refused with what would."""
    with pytest.raises(OptionError) as raised:
        DynPPolicy(**options)
    assert problem in str(raised.value)


def test_labels_tell_policies_apart() -> None:
    """Policies that schedule differently have labels of their own."""
    night = Window(from_ms=18 * HOUR_MS, to_ms=8 * HOUR_MS)
    policies = [
        DynPPolicy(),
        DynPPolicy(decider="simple"),
        *(DynPPolicy(decider="preferred", preferred=name) for name in THREE),
        *(DynPPolicy(metric=name) for name in ("art", "makespan")),
        *(DynPPolicy(tuning=name) for name in ("half", "starts")),
        DynPPolicy(slackness_pct=2),
        DynPPolicy(first_jobs=10),
        DynPPolicy(within_ms=HOUR_MS),
        DynPPolicy(policies=("fcfs", "saf")),
        DynPPolicy(decider="bounds"),
        DynPPolicy(decider="bounds", upper_ms=float("inf")),
        DynPPolicy(decider="calendar", calendar=(CalendarEntry(window=night, policy="sjf"),)),
        DynPPolicy(decider="calendar", calendar=(CalendarEntry(window=night, policy="ljf"),)),
        DynPPolicy(reading="thesis"),
    ]
    assert len({policy.label for policy in policies}) == len(policies)


def waiting_site(policy: DynPPolicy) -> SiteCore:
    """Return a site of 4 nodes on which one job runs, and for which a long job and then a short one wait."""
    core = SiteCore(4, policy)
    core.handle(0, JobSubmitted(Job(job_id=1, width=4, estimate_ms=1_000)))
    core.handle(10, JobSubmitted(Job(job_id=2, width=4, estimate_ms=1_000)))
    core.handle(20, JobSubmitted(Job(job_id=3, width=4, estimate_ms=100)))
    return core


def test_a_site_chooses_the_best_plan() -> None:
    """A short job behind a long one makes SJF the better policy, and the site goes over to it at once."""
    core = waiting_site(DynPPolicy())
    assert [job.job_id for job, _ in core.waiting()] == [3, 2]
    assert core.handle(1_000, JobFinished(1)) == [StartJob(3, ((0, 4),))]
    core.check_invariants()


def test_slackness_keeps_the_policy() -> None:
    """With slackness the policy in force stays until another is better by more than that."""
    # FCFS: responses 990 + 1000 and 980 + 1000 + 100; SJF: 980 + 100 and 990 + 100 + 1000: 22% less.
    fcfs, sjf = 1_990 + 2_080, 1_080 + 2_090
    gain_pct = 100 * (1 - sjf / fcfs)
    order = {}
    for slackness in (gain_pct - 0.5, gain_pct + 0.5):
        core = waiting_site(DynPPolicy(slackness_pct=slackness))
        order[slackness] = [job.job_id for job, _ in core.waiting()]
    assert list(order.values()) == [[3, 2], [2, 3]]


def test_explain_and_quote_name_the_policy_in_force() -> None:
    """A waiting job is told which policy is in force, by which rule, and that its start may move."""
    said = waiting_site(DynPPolicy()).explain(20, 2)
    assert said.start_ms == 1_100
    assert not said.is_bound
    rule = "the plan with the best artww decides again at each submission and end, and the start may move"
    assert said.reason.endswith(f"; the policy sjf is in force, {rule}")
    half = waiting_site(DynPPolicy(decider="bounds", tuning="half"))
    assert "the average estimate of the waiting jobs decides again at each submission" in half.explain(20, 2).reason
    quoted, _ = waiting_site(DynPPolicy()).quote(20, Job(job_id=9, width=4, estimate_ms=50))
    assert "the policy sjf is in force" in quoted.reason


def test_a_site_in_the_reading_of_the_thesis_continues_from_its_state() -> None:
    """Restored, it still knows how its list of jobs was last sorted."""
    policy = DynPPolicy(decider="simple", reading="thesis")
    core = waiting_site(policy)
    data = dump_state(core)
    fresh = SiteCore(4, policy)
    fresh.restore(read_state(fresh, data))
    assert dump_state(fresh) == data
    for site in (core, fresh):
        site.handle(30, JobSubmitted(Job(job_id=4, width=2, estimate_ms=500)))
    assert list(fresh.waiting()) == list(core.waiting())
    assert fresh.handle(500, JobFinished(1)) == core.handle(500, JobFinished(1))
    fresh.check_invariants()


def test_candidates_grow_with_the_site() -> None:
    """More jobs than the first arrays have room for wait in order under every candidate."""
    core = SiteCore(2, DynPPolicy())
    for number in range(200):
        core.handle(number, JobSubmitted(Job(job_id=number, width=1 + number % 2, estimate_ms=1 + (37 * number) % 97)))
    core.check_invariants()
    assert len(list(core.waiting())) > 64


def test_a_file_says_how_a_site_tunes_itself() -> None:
    """The table ``dynp`` of a site becomes its policy, and what is for a queue is refused."""
    assert read_policy("dynp", 8, {}, {"order": "sjf", "backfill": "none"}) == DynPPolicy()
    with pytest.raises(
        OptionError, match="order: 'sjf' is not for a dynp site, which plans and chooses the order itself"
    ):
        read_policy("dynp", 8, {"order": "sjf"}, {})
