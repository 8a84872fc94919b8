"""Sites that share their nodes in time in the simulated world, and the checker for slices."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.lublin import generate_lublin, lublin_model
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.gang.discipline import GangDiscipline
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.policy import SitePolicy
from support.checks import play_troubled

NODES = 16
BGS = GangPolicy(mpl=3, slice_ms=60_000, switch_ms=1_000)
MBGS = msgspec.structs.replace(BGS, migration="all", migration_ms=5_000)


def drawn(seed: int, jobs: int = 100) -> Workload:
    """Return jobs of the Lublin model under high load."""
    return generate_lublin(lublin_model(), jobs, np.random.default_rng(seed), nodes=NODES, load=1.4)


@pytest.mark.parametrize("policy", [BGS, MBGS], ids=["BGS", "MBGS"])
def test_sites_without_grid_jobs_follow_their_own_schedule(policy: GangPolicy) -> None:
    workload = drawn(5)
    alone = simulate(workload, NODES, policy)
    world = simulate_world(workload, [NODES], GridPolicy(mode="local"), site_policies=[policy], check=True)
    assert world.start_ms.tolist() == alone.start_ms.tolist()
    assert world.end_ms.tolist() == alone.end_ms.tolist()
    if policy is MBGS:
        assert alone.own_metrics["migrations"] > 0, "the workload moves jobs, so that the world has to follow"


@pytest.mark.parametrize("control", ["full", "limited", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_no_invariant_is_violated_with_time_slices_and_faults(seed: int, control: str) -> None:
    play_troubled(drawn(seed, jobs=60), [NODES, 8, NODES], [BGS, SitePolicy(), MBGS], seed, control)


def test_a_job_that_works_in_the_slice_of_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that does not pause its jobs has two jobs work on one node."""
    decided = GangDiscipline.run_pass
    monkeypatch.setattr(GangDiscipline, "run_pass", lambda self, now_ms: replace(decided(self, now_ms), rates=()))
    with pytest.raises(ViolationError, match=r"works on nodes of site 0 where another job works"):
        simulate_world(drawn(5), [NODES], GridPolicy(mode="local"), site_policies=[BGS])


def test_the_history_follows_pauses_and_moves() -> None:
    """Two jobs may have the same node only if one of them is paused or moved away."""
    history = History([4], slices_time=[True])
    for job_id in (1, 2):
        history.occupied(0, 0, job_id, 1, ((0, 3),), 3)
        history.paced(0, job_id, RATE_ONE if job_id == 1 else 0)
    history.check_shares(0)
    history.paced(0, 2, RATE_ONE)
    history.paced(0, 1, 0)
    history.check_shares(10)
    history.paced(0, 1, RATE_ONE)
    with pytest.raises(ViolationError, match="10 ms: job 2 works on nodes of site 0 where another job works"):
        history.check_shares(10)
    with pytest.raises(ViolationError, match="it requested 3"):
        history.moved(20, 0, 1, ((2, 4),))
    history.left(20, 0, 1)
    history.check_shares(20)


def test_moving_a_job_is_a_violation_without_time_sharing() -> None:
    history = History([4])
    history.occupied(0, 0, 1, 1, ((0, 2),), 2)
    with pytest.raises(ViolationError, match="is moved on site 0, where it does not run or may not be moved"):
        history.moved(5, 0, 1, ((2, 4),))
