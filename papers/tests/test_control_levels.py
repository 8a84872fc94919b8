"""The evaluation of the levels of control: what it counts, and that all of its runs are of the same jobs."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from gridweave.errors import InputError
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.generators.registry import generate, load_model
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.simulate import simulate_world
from gridweave_papers.studies.control_levels import LEVELS, OWNERS, OWNERS_RUNS, parties
from gridweave_papers.studies.control_levels import report as control_levels
from gridweave_papers.studies.report import Findings
from gridweave_papers.studies.streit_grid import GridRuns
from reference.model import Job
from support.builders import to_workload


class FewJobs:
    """In the place of the extracts of CTC: a few jobs of its model."""

    def extract(self, name: str) -> Workload:
        """Return jobs on 512 nodes, some of them wider than a site."""
        return generate(load_model("ctc-sp2"), 150, np.random.default_rng(3), nodes=512, load=1.2)


def test_own_users_and_the_grid_are_counted_apart() -> None:
    """Response times are weighted by width, waits are not, and each party has its own jobs alone."""
    jobs = to_workload([Job(1, 0, 4, 100_000, 100_000), Job(2, 0, 2, 50_000, 50_000), Job(3, 0, 2, 30_000, 30_000)])
    result = simulate_world(jobs, [4], GridPolicy(mode="local"))
    assert result.start_ms.tolist() == [0, 100_000, 100_000]
    everybody, own, grid = (4 * 100 + 2 * 150 + 2 * 130) / 8, 100.0, (150 + 130) / 2
    figures = parties(result, np.array([False, True, True]))
    assert figures == pytest.approx((everybody, 200 / 3, own, 0.0, grid, 100.0))
    assert figures[:2] == pytest.approx((result.metrics().awrt_width_ms / 1000, result.metrics().awt_ms / 1000))


def test_a_run_that_left_jobs_out_is_not_compared() -> None:
    """Numbers of different jobs cannot be compared, so a refused job ends the study."""
    jobs = to_workload([Job(1, 0, 4, 10, 10), Job(2, 0, 9, 10, 10)])
    result = simulate_world(jobs, [4], GridPolicy(mode="local"))
    with pytest.raises(InputError, match="1 jobs did not run"):
        parties(result, np.array([False, True]))


@pytest.fixture(scope="module")
def report() -> Findings:
    """Return the report on a few jobs."""
    return control_levels("control-levels", cast("GridRuns", FewJobs()))


def test_every_level_and_every_rule_has_a_row(report: Findings) -> None:
    """The tables have all levels, with all jobs and with half of them handed to the grid, and all owners' rules."""
    everything, half, owners = report.sections
    labels = [("no grid" if mode == "local" else control, mode) for mode, control in LEVELS]
    assert [row.labels for row in everything.rows] == labels
    assert [row.labels for row in half.rows] == labels
    assert [row.labels for row in owners.rows] == list(OWNERS_RUNS)
    for section in report.sections:
        assert all(len(row.values) == len(section.columns) for row in section.rows)
        assert all(value.ours is not None and value.ours >= 0 for row in section.rows for value in row.values)


def test_without_a_grid_it_does_not_matter_who_would_have_it(report: Findings) -> None:
    """Local runs are the same in both tables, and send no message; only limited control asks and asks again."""
    everything, half, _ = report.sections
    assert [value.ours for value in everything.rows[0].values[:2]] == [value.ours for value in half.rows[0].values[:2]]
    messages = {row.labels: row.values[3].ours or 0.0 for row in everything.rows}
    assert messages["no grid", "local"] == 0
    assert 0 < messages["none", "sharing"] < messages["limited", "sharing"]
    assert 0 < messages["full", "sharing"] < messages["limited", "sharing"]


def test_conclusions_are_judged_by_the_tables(report: Findings) -> None:
    """Whether full control is best under sharing is what the AWRT of the two rows of the table says."""
    everything, half, owners = report.sections
    full_is_best = report.conclusions[0].verdicts
    for section, reading in ((everything, "all jobs"), (half, "half of the jobs")):
        awrt_s = {row.labels: row.values[0].ours or 0.0 for row in section.rows}
        for mode in ("sharing", "adaptive"):
            assert full_is_best[f"{mode}, {reading}"].holds == (awrt_s["full", mode] < awrt_s["limited", mode])
    waits_s = {row.labels: (row.values[3].ours or 0.0, row.values[5].ours or 0.0) for row in owners.rows}
    for name, conclusion in zip(list(OWNERS)[1:], report.conclusions[3:], strict=True):
        for control, verdict in conclusion.verdicts.items():
            (own_s, grid_s), (own_before_s, grid_before_s) = waits_s[control, name], waits_s[control, "all nodes"]
            assert verdict.holds == (own_s < own_before_s and grid_s > grid_before_s)
