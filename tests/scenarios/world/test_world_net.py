"""The simulated world with a network between sites: equal to the batch driver, and correct when links fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.fuzz import WorldInputs, draw_conditions, run_world
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.policy import SitePolicy
from support.builders import as_in_thesis, drawn_model, drawn_timetable, random_jobs, to_workload, with_columns

MODES = ("multi-site", "adaptive")

CASES: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    *(
        ({"mode": mode}, {"contention": contention, "split": split}, change)
        for mode in MODES
        for contention in ("none", "static", "dynamic")
        for split in ("fewest", "earliest-end")
        for change in (False, True)
    ),
    *(({"mode": mode, "backfill": "conservative"}, {"contention": "dynamic"}, True) for mode in MODES),
    ({"mode": "multi-site", "backfill": "none", "order": "sjf"}, {"contention": "static"}, True),
    ({"mode": "adaptive", "selection": "random", "lower_bound": 3, "max_fragments": ((6, 2), (12, 3))}, {}, True),
    *(({"mode": mode}, {"data": data}, True) for mode in ("sharing", *MODES) for data in ("blocking", "prefetch")),
    *(
        ({"mode": mode}, {"data": data, "contention": contention}, change)
        for mode in ("sharing", *MODES)
        for data in ("blocking", "prefetch")
        for contention in ("static", "dynamic")
        for change in (False, True)
    ),
    ({"mode": "adaptive"}, {"data": "prefetch", "split": "earliest-end", "contention": "dynamic"}, True),
    *(
        ({"mode": mode}, {"split": "earliest-end", "max_split_factor": 1.3}, True)
        for mode in ("multi-site", "adaptive")
    ),
]


def drawn(rng: np.random.Generator, options: dict[str, Any], change: bool) -> tuple[Workload, list[int], GridNet]:
    """Draw sites, links between them, and jobs that send."""
    nodes = rng.integers(1, 7, int(rng.choice((1, 3, 5)))).tolist()
    jobs = random_jobs(rng, int(rng.integers(2, 40)), sum(nodes) // 2 + 1, load=2.5, tick=1000)
    model = drawn_model(rng, len(nodes))
    timetable = drawn_timetable(rng, model, 1 + max(job.submit for job in jobs)) if change and len(nodes) > 1 else None
    return with_columns(rng, to_workload(jobs), len(nodes)), nodes, as_in_thesis(model, timetable, **options)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(case) for case in CASES])
def test_without_delays_and_faults_the_world_equals_the_batch_driver(number: int) -> None:
    policy_options, net_options, change = CASES[number]
    slowest, split = 1.0, 0
    for seed in range(10):
        rng = np.random.default_rng([5, number, seed])
        workload, nodes, net = drawn(rng, net_options, change)
        policy = GridPolicy(**policy_options)
        batch = simulate(workload, nodes, policy, rng=np.random.default_rng(seed).spawn(1)[0], net=net)
        world = simulate_world(
            workload,
            nodes,
            policy,
            rng=np.random.default_rng(seed),
            net=net,
            check=seed % 3 == 0,
            channels=seed % 4 == 0,
        )
        what = f"seed {seed}, {nodes}"
        assert world.start_ms.tolist() == batch.start_ms.tolist(), what
        assert world.end_ms.tolist() == batch.end_ms.tolist(), what
        assert [world.fragments_of(row) for row in range(len(workload))] == [
            batch.fragments_of(row) for row in range(len(workload))
        ], what
        assert [job_id for job_id, _ in world.refused] == [job_id for job_id, _ in batch.refused], what
        # Of a split that costs too much the meta-scheduler, which refuses it itself, says more.
        assert world.refused == batch.refused or "max_split_factor" in net_options, what
        for name in ("factor", "slowdown", "transfer_ms"):
            assert world.columns[name].tolist() == batch.columns[name].tolist(), (what, name)
        slowest, split = max(slowest, batch.columns["slowdown"].max(initial=1.0)), split + int(batch.multi_site.sum())
    assert split > 0 or policy_options["mode"] == "sharing"
    assert slowest == 1.0 or net_options.get("contention", "none") != "none"
    assert slowest > 1.0 or net_options != {"contention": "dynamic", "split": "fewest"} or not change


def play_badly(seed: int, control: str) -> SimulationResult:
    """Simulate a random grid on a random network with all kinds of faults and all checks."""
    rng = np.random.default_rng([seed, 78])
    data = str(rng.choice(("none", "none", "blocking", "prefetch"))) if control != "none" else "none"
    options = {"contention": str(rng.choice(("none", "static", "dynamic", "dynamic"))), "data": data}
    workload, nodes, net = drawn(rng, options, bool(rng.random() < 0.5))
    if seed % 2:
        heavy = {
            "communication_fraction": np.full(len(workload), 0.9),
            "message_bytes": np.full(len(workload), 5 * 10**6),
        }
        patterns = {"pattern": rng.choice((1, 2, 5), len(workload))}
        workload = workload.replace(columns=dict(workload.columns) | heavy | patterns)
    backfills = ("easy", "none") if data != "none" else ("easy", "none", "conservative")
    inputs = WorldInputs(
        workload=workload,
        home=np.asarray(rng.integers(0, len(nodes), len(workload))),
        nodes=tuple(nodes),
        policy=GridPolicy(
            mode=str(rng.choice(("sharing", "multi-site", "multi-site", "adaptive"))),
            control=control,
            backfill=str(rng.choice(backfills)),
        ),
        site_policies=tuple(SitePolicy(backfill=str(rng.choice(("easy", "none", "conservative")))) for _ in nodes),
        net=net,
        grid_node=int(rng.integers(len(nodes))),
    )
    return run_world(inputs, draw_conditions(inputs, rng), rng)


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_no_invariant_is_violated_on_a_network_with_faults(control: str) -> None:
    """Links, sites and messages fail at random, and split jobs are slowed."""
    results = [play_badly(seed, control) for seed in range(60)]
    faults = ("lost", "cuts", "crashes", "link_changes")
    assert min(sum(getattr(result.world, fault) for result in results) for fault in faults) > 20
    split = sum(int(r.multi_site.sum()) for r in results)
    assert (split > 20) == (control != "none")
    slowed = sum(int((r.columns["slowdown"] > 1.001).sum()) for r in results if "slowdown" in r.columns)
    assert (slowed > 10) == (control != "none")


def test_the_same_seed_gives_the_same_world() -> None:
    first, again, other = play_badly(3, "full"), play_badly(3, "full"), play_badly(4, "full")
    assert first.start_ms.tolist() == again.start_ms.tolist()
    assert (first.world.messages, first.world.lost, first.world.cuts) == (
        again.world.messages,
        again.world.lost,
        again.world.cuts,
    )
    assert first.world.messages != other.world.messages
