"""A simulated world with lost messages, crashing sites and cut links, checked at every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Faults, Network
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.entry import Policy


def play_troubled(
    workload: Workload,
    nodes: Sequence[int],
    policies: Sequence[Policy],
    seed: int,
    control: str,
    selection: str = "best-fit",
) -> None:
    """Simulate jobs of the grid and of sites' own users, and check the world's invariants.

    Assert that no job is refused and that all jobs end.
    """
    rng = np.random.default_rng(seed)
    result = simulate_world(
        workload,
        nodes,
        GridPolicy(
            mode="sharing" if control == "none" else "adaptive", control=control, selection=selection, overhead=0.2
        ),
        site_policies=policies,
        to_grid=rng.random(len(workload)) < 0.7,
        home=np.where(workload.width > min(nodes), 0, np.arange(len(workload)) % len(nodes)),
        network=Network(latency_ms=50, jitter_ms=100, loss=0.1, duplicate=0.1),
        faults=Faults(crash_every_ms=9_000_000, crash_lasts_ms=60_000, cut_every_ms=9_000_000, cut_lasts_ms=30_000),
        rng=rng,
        check=True,
    )
    assert not result.refused
    assert (result.end_ms >= result.start_ms).all()
