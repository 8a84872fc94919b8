"""Run times that are drawn: their law, their bounds, and that sites learn their spread."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gridweave.errors import OptionError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.workload.run_times import with_run_times
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.heterogeneous.machines import MachineClass
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy

JOBS = 20_000


def workload_of(jobs: int, run_ms: int, estimate_ms: int) -> Workload:
    """Return jobs of one class, one an hour."""
    return Workload(
        job_id=np.arange(jobs),
        submit_ms=np.arange(jobs) * 3_600_000,
        width=np.ones(jobs),
        estimate_ms=np.full(jobs, estimate_ms),
        run_ms=np.full(jobs, run_ms),
        columns={"job_class": np.full(jobs, 3)},
    )


@pytest.mark.parametrize("spread", [0.1, 0.8])
def test_the_drawn_times_are_lognormal_around_the_mean(spread: float) -> None:
    """Mean and standard deviation are those asked for, and the logarithms are normal; a seed draws the same again."""
    jobs = workload_of(JOBS, 10**8, 10**11)
    one, again = (with_run_times(jobs, f"lognormal:{spread}", np.random.default_rng(4)) for _ in range(2))
    assert one.run_ms.tolist() == again.run_ms.tolist()
    assert one.run_ms.mean() == pytest.approx(10**8, rel=0.02)
    assert one.run_ms.std() == pytest.approx(spread * 10**8, rel=0.05)
    logs = np.log(one.run_ms)
    assert stats.kstest((logs - logs.mean()) / logs.std(), stats.norm.cdf).pvalue > 0.01
    assert one.estimate_ms.tolist() == jobs.estimate_ms.tolist()


def test_a_job_that_would_run_for_longer_is_ended_at_its_estimate() -> None:
    """It counts as one that overran, and no other does."""
    drawn = with_run_times(workload_of(JOBS, 1_000, 1_200), "lognormal:0.5", np.random.default_rng(1))
    assert drawn.run_ms.max() == 1_200
    assert drawn.run_ms.min() >= 1
    assert 0.2 < drawn.overran.mean() < 0.4
    assert (drawn.run_ms[drawn.overran] == 1_200).all()


def test_a_site_learns_the_spread_of_what_is_drawn() -> None:
    """Mean and standard deviation in its experience are those of the distribution."""
    drawn = with_run_times(workload_of(600, 100_000, 10**7), "lognormal:0.4", np.random.default_rng(2))
    policy = HeterogeneousPolicy(nodes=1, classes=(MachineClass(name="only", count=1, speed=2.0),))
    (learned,) = [one for one in simulate(drawn, 1, policy).own.known if one.resource == "only"]
    assert learned.runs == 600
    assert learned.mean_ms == pytest.approx(50_000, rel=0.1)
    assert learned.deviation_ms == pytest.approx(20_000, rel=0.15)


@pytest.mark.parametrize("model", ["normal:1", "lognormal", "lognormal:x", "lognormal:0", "lognormal:11", "keep:1"])
def test_what_is_no_model_is_refused_in_one_line(model: str) -> None:
    """With what would be right."""
    with pytest.raises(OptionError, match=r"run_times: .*keep or lognormal:X"):
        with_run_times(workload_of(2, 5, 5), model, np.random.default_rng(0))
