"""Jobs that some site can never run, in the simulated world: they go elsewhere or are refused, and block no job."""

from __future__ import annotations

import numpy as np
import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import NodeKind

HOUR_MS = 3_600_000

# Without a cluster each job has one machine.
SINGLE = HeterogeneousPolicy(nodes=4, classes=(NodeKind(name="plain", count=4),), predict="estimate")


def jobs(*rows: tuple[int, int, int]) -> Workload:
    """Build jobs from (submitted, width, length)."""
    submit_ms, width, run_ms = np.array(rows).T
    return Workload(
        job_id=np.arange(1, len(rows) + 1), submit_ms=submit_ms, width=width, estimate_ms=run_ms, run_ms=run_ms
    )


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_a_job_that_a_site_can_never_run_blocks_no_other_job(control: str) -> None:
    """It waits an hour for the other site, while later jobs start at once on single machines."""
    workload = jobs((0, 2, HOUR_MS), (10, 2, 1_000), *[(20 + number, 1, 90_000) for number in range(4)])
    result = simulate_world(
        workload,
        [4, 2],
        GridPolicy(mode="sharing", control=control),
        site_policies=[SINGLE, SitePolicy()],
        home=[1, 0, 0, 0, 0, 0],
        to_grid=[False, True, True, True, True, True],
        check=True,
    )
    assert result.start_ms.tolist()[1] == HOUR_MS
    if control != "none":  # where it is not known that the other site is busy
        assert result.start_ms.tolist()[2:] == [20, 21, 22, 23]


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_a_job_that_no_site_can_ever_run_is_refused_at_once(control: str) -> None:
    """The refusal has the reason of each site."""
    policy = GridPolicy(mode="sharing", control=control)
    result = simulate_world(jobs((0, 2, 1_000), (5, 1, 1_000)), [4, 4], policy, site_policies=[SINGLE, SINGLE])
    ((job_id, reason),) = result.refused
    assert job_id == 1
    assert reason.startswith("no site can run it: site 0: ")
    assert reason.count("; site 1: ") == 1
    assert result.end_ms.tolist()[1] == 1_005


@pytest.mark.parametrize("control", ["full", "limited"])
def test_a_job_that_needs_fragments_on_time_sharing_sites_is_refused_at_once(control: str) -> None:
    """A site that shares its nodes in time accepts no fragments, so that the job would wait for nothing."""
    workload = jobs((0, 6, 1_000), (5, 3, 1_000), (5, 4, 1_000))
    policy = GridPolicy(mode="multi-site", control=control)
    result = simulate_world(workload, [4, 4], policy, site_policies=[GangPolicy(), SitePolicy()], check=True)
    ((job_id, reason),) = result.refused
    assert job_id == 1
    assert "it needs 6 nodes and all sites together have 4" in reason
    assert result.start_ms.tolist()[1:] == [5, 5]
