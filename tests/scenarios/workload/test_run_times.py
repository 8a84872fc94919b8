"""Drawn run times: their distribution, their limits, and how sites learn their spread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from gridweave.errors import OptionError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.workload.run_times import with_run_times
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.resources.chunks import NodeKind

JOBS = 20_000


def workload_of(jobs: int, run_ms: int, estimate_ms: int) -> Workload:
    """Return jobs of a single class, one per hour."""
    return Workload(
        job_id=np.arange(jobs),
        submit_ms=np.arange(jobs) * 3_600_000,
        width=np.ones(jobs),
        estimate_ms=np.full(jobs, estimate_ms),
        run_ms=np.full(jobs, run_ms),
        columns={"job_class": np.full(jobs, 3)},
    )


@pytest.mark.parametrize("spread", [0.1, 0.8])
def test_drawn_run_times_are_lognormal_with_the_given_mean(spread: float) -> None:
    """The same seed gives the same run times."""
    jobs = workload_of(JOBS, 10**8, 10**11)
    one, again = (with_run_times(jobs, f"lognormal:{spread}", np.random.default_rng(4)) for _ in range(2))
    assert one.run_ms.tolist() == again.run_ms.tolist()
    assert one.run_ms.mean() == pytest.approx(10**8, rel=0.02)
    assert one.run_ms.std() == pytest.approx(spread * 10**8, rel=0.05)
    logs = np.log(one.run_ms)
    assert stats.kstest((logs - logs.mean()) / logs.std(), stats.norm.cdf).pvalue > 0.01
    assert one.estimate_ms.tolist() == jobs.estimate_ms.tolist()


def test_a_longer_run_time_is_cut_at_the_estimate() -> None:
    """Such a job counts as overrun, and no other job does."""
    drawn = with_run_times(workload_of(JOBS, 1_000, 1_200), "lognormal:0.5", np.random.default_rng(1))
    assert drawn.run_ms.max() == 1_200
    assert drawn.run_ms.min() >= 1
    assert 0.2 < drawn.overran.mean() < 0.4
    assert (drawn.run_ms[drawn.overran] == 1_200).all()


def test_a_site_learns_the_mean_and_deviation_of_drawn_run_times() -> None:
    drawn = with_run_times(workload_of(600, 100_000, 10**7), "lognormal:0.4", np.random.default_rng(2))
    policy = HeterogeneousPolicy(nodes=1, classes=(NodeKind(name="only", count=1, speed=2.0),))
    (learned,) = [one for one in simulate(drawn, 1, policy).own.times if one.resource == "only"]
    assert learned.runs == 600
    assert learned.mean_ms == pytest.approx(50_000, rel=0.1)
    assert learned.deviation_ms == pytest.approx(20_000, rel=0.15)


@pytest.mark.parametrize(
    "model", ["normal:1", "lognormal", "lognormal:x", "lognormal:0", "lognormal:11", "keep:1", "experience"]
)
def test_invalid_models_are_refused_in_one_line(model: str) -> None:
    with pytest.raises(OptionError, match=r"run_times: .*keep, lognormal:X"):
        with_run_times(workload_of(2, 5, 5), model, np.random.default_rng(0))


def write_experience(folder: Path, text: str) -> Path:
    """Write a file of experience."""
    path = folder / "known.toml"
    path.write_text(text)
    return path


KNOWN = """
[[experience]]
job_class = 3
runs = 9
mean_ms = 50_000
deviation_ms = 20_000

[[experience]]
job_class = 3
resource = "fast"
runs = 9
mean_ms = 1

[[experience]]
user = 7
runs = 4
mean_ms = 9_000
"""


def test_each_class_has_its_own_distribution(tmp_path: Path) -> None:
    """Jobs of other classes use the table of their user, and all others keep their run times."""
    jobs = workload_of(3 * JOBS, 10**6, 10**9)
    kinds, users = np.repeat([3, 4, 5], JOBS), np.repeat([7, 7, 8], JOBS)
    jobs = jobs.replace(columns={"job_class": kinds, "user": users})
    drawn = with_run_times(jobs, f"experience:{write_experience(tmp_path, KNOWN)}", np.random.default_rng(4)).run_ms
    assert drawn[:JOBS].mean() == pytest.approx(50_000, rel=0.02)
    assert drawn[:JOBS].std() == pytest.approx(20_000, rel=0.05)
    logs = np.log(drawn[:JOBS])
    assert stats.kstest((logs - logs.mean()) / logs.std(), stats.norm.cdf).pvalue > 0.01
    assert set(drawn[JOBS : 2 * JOBS]) == {9_000}
    assert set(drawn[2 * JOBS :]) == {10**6}


def test_learnt_statistics_can_be_drawn_from(tmp_path: Path) -> None:
    drawn = with_run_times(workload_of(600, 100_000, 10**7), "lognormal:0.4", np.random.default_rng(2))
    policy = HeterogeneousPolicy(nodes=1, classes=(NodeKind(name="only", count=1, speed=2.0),))
    file = write_experience(tmp_path, simulate(drawn, 1, policy).own.texts()["experience.toml"])
    again = with_run_times(workload_of(JOBS, 1, 10**7), f"experience:{file}", np.random.default_rng(3)).run_ms
    assert again.mean() == pytest.approx(drawn.run_ms.mean(), rel=0.02)
    assert again.std() == pytest.approx(drawn.run_ms.std(), rel=0.05)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no table"),
        ("[[experience]]\njob_class = 4\nruns = 1\nmean_ms = 5\n", "has no table for any class or user of these jobs"),
        (
            "[[experience]]\njob_class = 3\nresource = 'fast'\nruns = 1\nmean_ms = 5\n",
            "has tables of job class 3 for resources only; add one without resource",
        ),
        ("[[experience]]\njob_class = 3\nruns = 1\nmean_ms = 0\n", "mean_ms above 0"),
        ("[[experience]]\njob_class = 3\nruns = 1\nmean_ms = 5\ndeviation_ms = 51\n", "more than 10 times the mean_ms"),
    ],
)
def test_unusable_files_of_experience_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        with_run_times(workload_of(2, 5, 5), f"experience:{write_experience(tmp_path, text)}", np.random.default_rng(0))
