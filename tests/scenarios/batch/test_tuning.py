"""dynP in the compiled loop, the slow reference and `SiteCore`: the same decisions, job by job."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.plots.results import shares
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.dynp import discipline
from gridweave.site.disciplines.dynp.figures import TuningUse
from gridweave.site.disciplines.dynp.policy import METRICS, CalendarEntry, DynPPolicy
from gridweave.site.messages import ReservationRequested
from gridweave.site.policy import Limit, SitePolicy, Window
from reference import dynp as reference_dynp
from reference import model
from reference.simulation import simulate as simulate_reference
from support.builders import HOUR, cancelling, random_jobs, to_workload

TEN = ("fcfs", "sjf", "ljf", "saf", "laf", "bfit", "wfit", "smith", "weight", "priority")

NIGHT = Window(days=(0, 1, 2, 3), from_ms=18 * HOUR, to_ms=8 * HOUR)
WEEKEND = Window(days=(5, 6))

OPTIONS: list[dict[str, Any]] = [
    *({"decider": decider, "tuning": tuning} for decider in ("simple", "advanced") for tuning in ("full", "half")),
    {"decider": "advanced", "tuning": "starts"},
    *({"decider": "preferred", "preferred": name} for name in ("fcfs", "sjf", "ljf")),
    *({"metric": metric} for metric in METRICS if metric != "artww"),
    {"slackness_pct": 4},
    {"decider": "preferred", "preferred": "sjf", "slackness_pct": 10},
    {"first_jobs": 3},
    {"within_ms": 20},
    {"policies": TEN},
    {"policies": ("saf", "fcfs")},
    {"decider": "bounds", "lower_ms": 10, "upper_ms": 20},
    {
        "decider": "calendar",
        "calendar": (CalendarEntry(window=NIGHT, policy="sjf"), CalendarEntry(window=WEEKEND, policy="ljf")),
    },
    *(
        {"decider": decider, "tuning": tuning, "reading": "thesis"}
        for decider in ("simple", "advanced")
        for tuning in ("full", "half", "starts")
    ),
    {"decider": "preferred", "preferred": "sjf", "reading": "thesis"},
]


def plain_window(window: Window) -> model.Window:
    """Convert a window for the reference."""
    return model.Window(frozenset(window.days), window.from_ms, window.to_ms)


def plain(policy: DynPPolicy) -> reference_dynp.Tuning:
    """Convert a policy for the reference."""
    return reference_dynp.Tuning(
        policies=policy.policies,
        decider=policy.decider,
        preferred=policy.preferred,
        metric=policy.metric,
        tuning=policy.tuning,
        slackness=Fraction(policy.slackness_pct),
        first_jobs=policy.first_jobs,
        within=policy.within_ms,
        lower=int(policy.lower_ms),
        upper=int(policy.upper_ms),
        calendar=tuple((plain_window(entry.window), entry.policy) for entry in policy.calendar),
        reading=policy.reading,
    )


def starts(result: Any) -> dict[int, int]:
    """Return the start of every job that started, by its id."""
    ids, started = result.workload.job_id[result.ran].tolist(), result.start_ms[result.ran].tolist()
    return dict(zip(ids, started, strict=True))


def label_of(options: dict[str, Any]) -> str:
    """Return the name of a test case."""
    return DynPPolicy(**options).label


@pytest.mark.parametrize("options", OPTIONS, ids=label_of)
def test_loop_core_and_reference_agree(options: dict[str, Any]) -> None:
    """The workloads are random and have cancellations."""
    rng = np.random.default_rng([OPTIONS.index(options), 18])
    policy = DynPPolicy(**options)
    tick = HOUR // 2 if policy.calendar else 60_000 if policy.metric == "ppsld60" else 1
    chosen = 0
    for _ in range(4):
        nodes = int(rng.integers(2, 16))
        jobs = random_jobs(rng, 25, nodes, load=float(rng.uniform(0.9, 1.6)), tick=tick)
        workload = to_workload(jobs)
        if rng.random() < 0.5:
            workload = cancelling(rng, workload)
        result = simulate(workload, nodes, policy)
        cancels = np.asarray(workload.columns.get("cancel_ms", np.full(len(workload), -1)))
        met = [(int(cancels[row]), int(workload.job_id[row])) for row in np.flatnonzero(result.cancelled)]
        want = simulate_reference(jobs, nodes, discipline="planning", cancellations=met, tuning=plain(policy))
        assert starts(result) == want.start
        stepped = simulate(workload, nodes, policy, driver="core", check=True)
        assert starts(stepped) == want.start
        assert stepped.own_metrics == result.own_metrics
        assert stepped.columns["policy"].tolist() == result.columns["policy"].tolist()
        assert isinstance(result.own, TuningUse)
        for told in ("switched_ms", "switched_to", "started_by"):
            assert getattr(stepped.own, told).tolist() == getattr(result.own, told).tolist()
        chosen += len(result.own.switched_ms)
    assert chosen > 3


def test_limits_hold_under_every_policy() -> None:
    rng = np.random.default_rng(4)
    window = Window(days=(0, 1, 2, 3, 4), from_ms=8 * HOUR, to_ms=18 * HOUR)
    limits = (Limit(wider_than=3, window=window), Limit(longer_than_ms=5 * HOUR, max_nodes=6))
    plain_limits = [
        model.Limit(wider_than=3, window=plain_window(window)),
        model.Limit(longer_than_ms=5 * HOUR, max_nodes=6),
    ]
    policy = DynPPolicy(limits=limits)
    for _ in range(3):
        jobs = random_jobs(rng, 25, 6, load=1.2, tick=HOUR)
        result = simulate(to_workload(jobs), 6, policy)
        want = simulate_reference(jobs, 6, discipline="planning", limits=plain_limits, tuning=plain(policy))
        assert starts(result) == want.start


def test_dynp_with_one_policy_equals_planning() -> None:
    jobs = to_workload(random_jobs(np.random.default_rng(2), 200, 12, load=1.2))
    for order in TEN:
        tuned = simulate(jobs, 12, DynPPolicy(policies=(order,)))
        assert starts(tuned) == starts(simulate(jobs, 12, SitePolicy(discipline="planning", order=order)))


def test_the_result_has_the_usage_of_each_policy() -> None:
    """Times in force sum to the length of the schedule, and jobs to all that ran."""
    jobs: Workload = to_workload(random_jobs(np.random.default_rng(3), 300, 12, load=1.3))
    result = simulate(jobs, 12, DynPPolicy(decider="simple"))
    assert isinstance(result.own, TuningUse)
    from_ms, to_ms = int(jobs.submit_ms.min()), int(result.end_ms.max())
    uses = result.own.uses(from_ms, to_ms)
    assert [use.policy for use in uses] == ["fcfs", "sjf", "ljf"]
    assert sum(use.active_ms for use in uses) == to_ms - from_ms
    assert sum(use.jobs for use in uses) == len(jobs)
    assert sum(use.switches for use in uses) == len(result.own.switched_ms) > 20
    assert sum(result.own.cases.values()) == result.own.decisions
    assert (np.diff(result.own.switched_to) != 0).all()


def test_result_files_list_and_plot_the_switches(tmp_path: Path) -> None:
    jobs = to_workload(random_jobs(np.random.default_rng(3), 100, 12, load=1.3, tick=1000))
    result = simulate(jobs, 12, DynPPolicy())
    result.write(tmp_path)
    assert isinstance(result.own, TuningUse)
    lines = (tmp_path / "switches.csv").read_text().splitlines()
    assert lines[0] == "when_ms,policy"
    assert [int(line.split(",")[0]) for line in lines[1:]] == result.own.switched_ms.tolist() != []
    assert (tmp_path / "policies.png").stat().st_size > 5_000


def test_shares_of_each_time_bin_sum_to_one() -> None:
    jobs = to_workload(random_jobs(np.random.default_rng(5), 200, 12, load=1.3))
    result = simulate(jobs, 12, DynPPolicy(decider="simple"))
    assert isinstance(result.own, TuningUse)
    edges_ms = np.linspace(0, int(result.end_ms.max()), 21)
    parts = shares(result.own, edges_ms)
    assert parts.sum(axis=0) == pytest.approx(1.0)
    lasted = {use.policy: use.active_ms for use in result.own.uses(0, int(result.end_ms.max()))}
    assert parts.mean(axis=1) * result.end_ms.max() == pytest.approx(list(lasted.values()))


def test_all_switches_are_reported_with_reservations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There are more of them than the site remembers at a time."""
    jobs = to_workload(random_jobs(np.random.default_rng(3), 400, 12, load=1.3))
    monkeypatch.setattr(discipline, "KEPT_SWITCHES", 4)
    ask = ReservationRequested(reservation_id=1, start_ms=10 * HOUR, length_ms=HOUR, width=3)
    result = simulate(jobs, 12, DynPPolicy(decider="simple"), reservations=[(0, ask)])
    assert [answer.accepted for answer in result.reservations] == [True]
    assert isinstance(result.own, TuningUse)
    assert len(result.own.switched_ms) > 20
    switches = sum(result.own_metrics[f"{policy}_switches"] for policy in result.own.policies)
    assert switches == len(result.own.switched_ms)
    result.write(tmp_path, plots=False)
    assert len((tmp_path / "switches.csv").read_text().splitlines()) == 1 + switches


def test_the_policy_of_a_job_is_written_by_name(tmp_path: Path) -> None:
    """A job that never ran has none."""
    jobs = Workload([1, 2, 3], [0, 0, 0], [4, 4, 9], [10, 20, 10], [10, 20, 10])
    for driver in ("batch", "core"):
        result = simulate(jobs, 4, DynPPolicy(policies=("sjf", "fcfs")), driver=driver)
        result.write(tmp_path, plots=False)
        with (tmp_path / "jobs.csv").open() as file:
            rows = [row["policy"] for row in csv.DictReader(file)]
        places = result.columns["policy"].astype(int).tolist()
        assert rows == [("sjf", "fcfs")[place] for place in places[:2]] + [""]
        assert result.to_pandas()["policy"].tolist() == rows
