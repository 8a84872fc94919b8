"""Sites with shared nodes in the simulated world, and a grid that uses them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.batch.stepped import run_core
from gridweave.scenarios.generators.lublin import generate_lublin, lublin_model
from gridweave.scenarios.workload.columns import assign_resources
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Faults, Network
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.sharing.policy import VARIANTS, SharedNodes
from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownModel
from gridweave.site.resources.chunks import NodeKind
from support.builders import cancelling

NODES = 16


def drawn(seed: int, jobs: int = 100) -> Workload:
    """Return jobs of the Lublin model under high load, with resources."""
    rng = np.random.default_rng(seed)
    workload = generate_lublin(lublin_model(), jobs, rng, nodes=NODES, load=1.4)
    return assign_resources(workload, "M1", rng)


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_stepped_core_equals_the_batch_loop(name: str, backfill: str) -> None:
    """A `SiteCore` that receives every event gives the schedule of the compiled loop, including rates and ends."""
    policy = msgspec.structs.replace(VARIANTS[name], backfill=backfill)
    workload = cancelling(np.random.default_rng(7), drawn(7))
    batch = simulate(workload, NODES, policy)
    assert 0 < batch.cancelled.sum() < np.count_nonzero(np.asarray(workload.columns["cancel_ms"]) >= 0)
    core = run_core(workload, NODES, SharedNodes(sharing=policy), check=True)
    assert core.start_ms.tolist() == batch.start_ms.tolist()
    assert core.end_ms.tolist() == batch.end_ms.tolist()


@pytest.mark.parametrize("formula", ["printed", "measured"])
def test_a_core_has_the_slowdowns_of_the_batch_loop(formula: str) -> None:
    workload = drawn(3)
    kinds = (NodeKind(count=10), NodeKind(count=6, cores=2))
    batch = simulate(workload, kinds, "L-U1", model=SlowdownModel(formula))
    policy = SharedNodes(sharing=VARIANTS["L-U1"], kinds=kinds, formula=formula)
    core = run_core(workload, NODES, policy, check=True)
    assert core.start_ms.tolist() == batch.start_ms.tolist()
    assert core.end_ms.tolist() == batch.end_ms.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_sites_without_grid_jobs_follow_their_own_schedule(seed: int) -> None:
    workload = drawn(seed)
    alone = simulate(workload, NODES, "L-U1")
    sites = [SharedNodes(sharing=VARIANTS["L-U1"])]
    world = simulate_world(
        workload, [NODES], GridPolicy(), site_policies=sites, to_grid=np.zeros(len(workload), bool), check=True
    )
    assert world.start_ms.tolist() == alone.start_ms.tolist()
    assert world.end_ms.tolist() == alone.end_ms.tolist()


@pytest.mark.parametrize("control", ["full", "limited", "none"])
@pytest.mark.parametrize("seed", range(4))
def test_no_invariant_is_violated_with_shared_nodes_and_faults(seed: int, control: str) -> None:
    workload = drawn(seed, jobs=60)
    rng = np.random.default_rng(seed)
    simulate_world(
        workload,
        [NODES, 8, NODES],
        GridPolicy(mode="adaptive", control=control, overhead=0.2),
        site_policies=[SharedNodes(), SharedNodes(sharing=VARIANTS["L-R"]), SharedNodes(sharing=VARIANTS["AC"])],
        to_grid=rng.random(len(workload)) < 0.7,
        home=np.where(workload.width > 8, 0, np.arange(len(workload)) % 3),
        network=Network(latency_ms=50, jitter_ms=100, loss=0.1, duplicate=0.1),
        faults=Faults(crash_every_ms=4e7, cut_every_ms=2e7),
        rng=rng,
        check=True,
    )


def pair(offer: str) -> tuple[Workload, list[SharedNodes]]:
    """Return a job that fills the only site, a job that can share its nodes, and the site's policy."""
    resources = {
        "cpu_fraction": [0.9, 0.1], "network_fraction": [0.1, 0.0], "disk_fraction": [0.0, 0.9],
        "memory_fraction": [0.4, 0.4], "cpu_kind": [0, 0],
    }  # fmt: skip
    hour_ms = 3_600_000
    jobs = Workload(
        job_id=[1, 2], submit_ms=[0, 10], width=[8, 8], estimate_ms=[hour_ms] * 2, run_ms=[hour_ms] * 2,
        columns=resources,
    )  # fmt: skip
    return jobs, [SharedNodes(sharing=VARIANTS[offer]), SharedNodes(sharing=VARIANTS["PSS"])]


def test_the_grid_sends_a_job_where_it_can_share() -> None:
    """Under limited control a job starts at once on shared nodes if that ends before any wait."""
    jobs, sites = pair("L-U1")
    policy = GridPolicy(mode="sharing", control="limited")
    shared = simulate_world(jobs, [8, 4], policy, site_policies=sites, check=True)
    assert shared.start_ms.tolist() == [0, 10]
    assert shared.fragments_of(1) == [(0, 8)]
    jobs, sites = pair("PSS")
    waited = simulate_world(jobs, [8, 4], policy, site_policies=sites, check=True)
    assert waited.start_ms.tolist() == [0, 3_600_000]


def test_a_split_that_ends_earlier_is_preferred_to_a_shared_node() -> None:
    jobs, sites = pair("L-U1")
    for overhead, want in ((0.02, 2), (0.05, 1)):
        policy = GridPolicy(mode="adaptive", control="limited", overhead=overhead)
        world = simulate_world(jobs, [8, 4, 4], policy, site_policies=[*sites, SharedNodes()], check=True)
        assert len(world.fragments_of(1)) == want, overhead
