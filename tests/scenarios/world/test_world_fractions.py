"""Sites that give jobs parts of nodes in the simulated world, and the checker for parts of nodes."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from gridweave.errors import InputError
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.lublin import generate_lublin, lublin_model
from gridweave.scenarios.workload.needs import with_needs
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.fractional.discipline import Fractional
from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.job import Resources, TaskGroup, needs_of_groups
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.policy import SitePolicy
from support.checks import play_troubled

NODES = 16
GREEDY = FractionalPolicy(algorithm="GreedyPM*/per/OPT=MIN/MINVT=600", period_ms=3_000_000)
PACKED = FractionalPolicy(algorithm="MCB8*/per/OPT=AVG", period_ms=600_000)


def drawn(seed: int, jobs: int = 100) -> Workload:
    """Return jobs of the Lublin model under high load, with needs; some have different tasks."""
    rng = np.random.default_rng(seed)
    return with_needs(generate_lublin(lublin_model(), jobs, rng, nodes=NODES, load=1.4), "lublin-root", rng)


@pytest.mark.parametrize("policy", [GREEDY, PACKED], ids=["GreedyPM", "MCB8"])
def test_sites_without_grid_jobs_follow_their_own_schedule(policy: FractionalPolicy) -> None:
    workload = drawn(5)
    alone = simulate(workload, NODES, policy)
    world = simulate_world(workload, [NODES], GridPolicy(mode="local"), site_policies=[policy], check=True)
    assert world.start_ms.tolist() == alone.start_ms.tolist()
    assert world.end_ms.tolist() == alone.end_ms.tolist()
    assert alone.columns["preemptions"].any(), "jobs are paused, so that the world has to follow"
    assert alone.columns["migrations"].any(), "jobs are moved, so that the world has to follow"


@pytest.mark.parametrize("control", ["full", "limited", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_no_invariant_is_violated_with_parts_of_nodes_and_faults(seed: int, control: str) -> None:
    play_troubled(drawn(seed, jobs=60), [NODES, 8, NODES], [GREEDY, SitePolicy(), PACKED], seed, control)


def starts_at(policies: list[FractionalPolicy | SitePolicy], need: float, memory: float) -> list[int]:
    """Return the starts of three jobs on two sites: two that fill a site each, then one as wide."""
    workload = Workload(
        job_id=[1, 2, 3],
        submit_ms=[0, 1, 1_000],
        width=[2, 2, 2],
        estimate_ms=[100_000, 30_000, 50_000],
        run_ms=[100_000, 30_000, 50_000],
        columns={"cpu_need": [1.0, 1.0, need], "memory_fraction": [memory, memory, memory]},
    )
    policy = GridPolicy(mode="sharing", control="limited")
    result = simulate_world(workload, [2, 2], policy, site_policies=policies, check=True)
    return result.start_ms.tolist()


def test_the_grid_weighs_a_slow_start_against_a_wait() -> None:
    """A job starts at once at two thirds of its speed only if it ends earlier than after a wait."""
    sites = [FractionalPolicy(algorithm="Greedy*/OPT=MIN"), SitePolicy()]
    assert starts_at(sites, need=0.5, memory=0.5) == [0, 1, 1_000], "75 s slowly, or 50 s after a wait of 29 s"
    assert starts_at(sites, need=1.0, memory=0.5) == [0, 1, 30_001], "100 s slowly"
    assert starts_at(sites, need=0.5, memory=0.6) == [0, 1, 30_001], "there is no memory for it beside the other"


@pytest.mark.parametrize(("overhead", "fragments"), [(0.2, [(1, 2), (2, 2)]), (1.5, [(0, 4)])])
def test_the_grid_weighs_a_slow_start_against_a_split(overhead: float, fragments: list[tuple[int, int]]) -> None:
    """A job that would take twice as long on shared nodes is split if that costs less."""
    workload = Workload(
        job_id=[1, 2],
        submit_ms=[0, 1_000],
        width=[4, 4],
        estimate_ms=[100_000, 50_000],
        run_ms=[100_000, 50_000],
        columns={"cpu_need": [1.0, 1.0], "memory_fraction": [0.5, 0.5]},
    )
    policy = GridPolicy(mode="adaptive", control="limited", overhead=overhead)
    sites = [FractionalPolicy(algorithm="Greedy*/OPT=MIN"), SitePolicy(), SitePolicy()]
    result = simulate_world(workload, [4, 2, 2], policy, site_policies=sites, check=True)
    assert result.start_ms.tolist() == [0, 1_000]
    assert result.fragments_of(1) == fragments


def test_fractional_sites_require_needs() -> None:
    """A workload without the needs of tasks is refused."""
    with pytest.raises(InputError, match="has no column cpu_need"):
        simulate_world(drawn(1).replace(columns={}), [NODES], GridPolicy(control="limited"), site_policies=[GREEDY])


def test_a_paused_job_that_keeps_working_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that does not slow its jobs gives more than it has."""
    decided = Fractional.run_pass
    monkeypatch.setattr(Fractional, "run_pass", lambda self, now_ms: replace(decided(self, now_ms), rates=()))
    with pytest.raises(ViolationError, match=r"site 0 gives \d+\.\d+% of its CPU|works on site 0 without a node"):
        simulate_world(drawn(5), [NODES], GridPolicy(mode="local"), site_policies=[GREEDY])


def test_the_history_counts_every_task_on_a_node() -> None:
    """Two tasks of a job on one node use its memory and its CPU twice; a paused job uses nothing."""
    history = History([4], fractions=[True])
    half = Resources(cpu_need=0.5, memory=0.5)
    history.occupied(0, 0, 1, 1, ((0, 2), (0, 1)), 3, needs=half)
    history.check_shares(0)
    with pytest.raises(ViolationError, match="it requested 3"):
        history.occupied(0, 0, 9, 1, ((0, 2),), 3, needs=half)
    history.occupied(5, 0, 2, 1, ((0, 1),), 1, needs=half)
    with pytest.raises(ViolationError, match=r"5 ms: node 0 of site 0 gives 150\.00% of its memory"):
        history.check_shares(5)
    history.moved(5, 0, 2, ((1, 2),))
    history.check_shares(5)
    history.moved(9, 0, 1, ())
    with pytest.raises(ViolationError, match="9 ms: job 1 works on site 0 without a node"):
        history.check_shares(9)
    history.paced(0, 1, 0)
    history.occupied(9, 0, 3, 1, ((1, 2),), 1, needs=Resources(cpu_need=1.0, memory=0.5))
    with pytest.raises(ViolationError, match=r"node 1 of site 0 gives 150\.00% of its CPU"):
        history.check_shares(9)
    history.paced(0, 3, RATE_ONE // 2)
    history.check_shares(9)


def test_the_history_knows_which_task_is_on_which_node() -> None:
    """Nodes are listed group by group: two small tasks fit next to a root task, another root task does not."""
    history = History([2], fractions=[True])
    rooted = needs_of_groups(
        [TaskGroup(tasks=1, cpu_need=0.5, memory=0.7), TaskGroup(tasks=2, cpu_need=0.25, memory=0.1)]
    )
    history.occupied(0, 0, 1, 1, ((0, 1), (1, 2), (1, 2)), 3, needs=rooted)
    history.occupied(0, 0, 2, 1, ((1, 2), (0, 1), (0, 1)), 3, needs=rooted)
    history.check_shares(0)
    history.moved(1, 0, 2, ((0, 1), (1, 2), (1, 2)))
    with pytest.raises(ViolationError, match=r"node 0 of site 0 gives 140\.00% of its memory"):
        history.check_shares(1)
