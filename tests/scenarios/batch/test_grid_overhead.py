"""The overhead of split jobs in the grid simulator's arguments and results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridweave.errors import InputError, OptionError
from gridweave.grid.config.checks import grid_policy
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.scenario.tables import GridTable
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.table import MAX_TIME_MS, Workload


def jobs(*widths: int, estimate_ms: int = 1000, run_ms: int = 600) -> Workload:
    """Return jobs of these widths, each submitted when the one before has ended."""
    return Workload(
        job_id=np.arange(1, len(widths) + 1),
        submit_ms=np.arange(len(widths)) * 100 * estimate_ms,
        width=widths,
        estimate_ms=[estimate_ms] * len(widths),
        run_ms=[run_ms] * len(widths),
    )


def test_the_overhead_depends_on_fragments_times_sensitivity() -> None:
    """The last overhead of the list applies to more fragments."""
    policy = GridPolicy(mode="multi-site", overhead=(0.1, 0.25))
    workload = jobs(1, 2, 3, 4, 4)
    result = simulate(workload, [1] * 4, policy, sensitivity=[9, 1, 1, 1, 0.5])
    assert (result.end_ms - result.start_ms).tolist() == [600, 660, 750, 750, 675]
    plain = simulate(workload, [1] * 4, policy)
    assert (plain.end_ms - plain.start_ms).tolist() == [600, 660, 750, 750, 750]


def test_the_grid_decides_by_the_stretched_estimate() -> None:
    """A site is free at 1600 by estimate, but actually at 960: a split that ends at 2590 pays, one at 2600 does not."""
    workload = Workload(job_id=[1, 2], submit_ms=[0, 10], width=[3, 4], estimate_ms=[1600, 1000], run_ms=[960, 100])
    for overhead, fragments in (((1.58, 0.0), 2), ((1.59, 0.0), 1)):
        policy = GridPolicy(mode="adaptive", overhead=overhead, selection="biggest-free")
        assert simulate(workload, [4, 3], policy).n_fragments.tolist() == [1, fragments]


@pytest.mark.parametrize(
    "sensitivity",
    [[1.0], [1.0, -0.1], [1.0, np.nan], [1.0, np.inf], [[1.0, 1.0]], "much", [1.0, "much"], [[1.0], [1.0, 2.0]]],
)
def test_an_invalid_sensitivity_is_refused_in_every_mode(sensitivity: Any) -> None:
    for mode in ("local", "sharing", "adaptive"):
        with pytest.raises(OptionError, match="sensitivity: must be a number >= 0 for each of the 2 jobs"):
            simulate(jobs(1, 2), [2, 2], GridPolicy(mode=mode), sensitivity=sensitivity)


@pytest.mark.parametrize("nodes", [None, 4, [], [0, 4], [2.5, 4], "44", [10**7, 1], [10**30]])
def test_invalid_nodes_of_sites_are_refused(nodes: Any) -> None:
    with pytest.raises(
        OptionError, match=r"nodes: is .*; expected one number per site, each at least 1, with a sum of"
    ):
        simulate(jobs(1, 2), nodes, GridPolicy())


@pytest.mark.parametrize("home", [[0], [0, 2], [0, -1], [0, "north"], ["a", None], 10**30])
def test_invalid_homes_are_refused(home: Any) -> None:
    with pytest.raises(OptionError, match="home: must be a site from 0 to 1 for each of the 2 jobs"):
        simulate(jobs(1, 2), [2, 2], GridPolicy(mode="local"), home=home)


@pytest.mark.parametrize("overhead", [(), -0.1, (0.1, -0.1), float("nan"), (0.1, float("inf")), 10_001])
def test_an_invalid_overhead_is_refused(overhead: Any) -> None:
    with pytest.raises(OptionError, match=r"overhead: is .*a number"):
        GridPolicy(overhead=overhead)


def test_a_split_beyond_the_maximum_time_is_refused() -> None:
    """The error names the job. Only possible splits count, and the maximum itself is allowed."""
    longest = jobs(1, 3, estimate_ms=MAX_TIME_MS // 101, run_ms=5)
    policy = GridPolicy(mode="adaptive", overhead=(100, 0.0))
    simulate(longest, [2, 2], policy)
    for sensitivity in ([1.0, 1.1], [1.0, 1e300], [1.0, np.finfo(np.float64).max]):
        with pytest.raises(InputError, match=r"^job 2 could take .* ms if it is split; at most 1e\+14 ms$"):
            simulate(longest, [2, 2], policy, sensitivity=sensitivity)
        assert simulate(longest, [4, 2], GridPolicy(mode="sharing", overhead=100), sensitivity=sensitivity)
    # Two fragments at most, which cost nothing.
    cheap = GridPolicy(mode="adaptive", overhead=(0.0, 10_000))
    assert simulate(longest, [2, 2], cheap, sensitivity=[1, 1e300]).n_fragments.tolist() == [1, 2]


def test_jobs_that_could_exceed_int64_together_are_refused() -> None:
    many = jobs(*[2] * 50_000, estimate_ms=10**6).take(np.arange(50_000))
    policy = GridPolicy(mode="multi-site", overhead=10_000)
    with pytest.raises(InputError, match="the jobs could take until"):
        simulate(many, [1, 1], policy, sensitivity=np.full(50_000, 9_999.0))


def test_a_scenario_can_list_overheads_by_fragments() -> None:
    """The label names all of them."""
    assert grid_policy(GridTable(overhead=0.3)) == GridPolicy(overhead=0.3)
    assert grid_policy(GridTable(overhead=[0.1, 0.25])) == GridPolicy(overhead=(0.1, 0.25))
    assert GridPolicy(overhead=(0.1, 0.25)).label == "adaptive p=10%, 25%"
    assert GridPolicy(mode="sharing", overhead=0.1).label == "sharing"


def test_an_overhead_above_the_maximum_is_reported_with_it() -> None:
    with pytest.raises(OptionError, match=r"overhead: is 100000; a number from 0 to 10,000, 0\.3 for 30%"):
        GridPolicy(overhead=100_000)


def test_a_loaded_grid_is_sensitive_to_a_millisecond(trace_path: Callable[[str], Path]) -> None:
    """Under multi-site, one more millisecond of run time moves a large part of the starts (docs/grid.md)."""
    workload, _ = load_workload(trace_path("KTH-SP2-1996-2"), nodes=100)
    longer = {name: getattr(workload, name) + 1 for name in ("run_ms", "estimate_ms")}
    denser_ms = workload.submit_ms * 4 // 5
    moved = []
    for jobs in (workload, workload.replace(submit_ms=denser_ms)):
        policy = GridPolicy(mode="multi-site", overhead=0.25)
        starts = [simulate(one, [30, 30, 40], policy).start_ms for one in (jobs, jobs.replace(**longer))]
        moved.append(float((np.abs(starts[0] - starts[1]) > 1000).mean()))
    assert moved[0] == pytest.approx(0.11, abs=0.02)
    assert moved[1] == pytest.approx(0.77, abs=0.05)
