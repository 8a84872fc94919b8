"""The case studies of Collins and George: the site as the paper has it, and conclusions that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gridweave.site.disciplines.heterogeneous.machines import Inventory
from gridweave.site.job import Job
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RATE_ONE
from gridweave_papers.registry import GROUPS, TABLES
from gridweave_papers.studies.collins import (
    CLUSTER_SIZES,
    PRIORITY_JOBS,
    CollinsRuns,
    mapped_at_once,
    priority_total,
    report,
    site_policy,
    times_ms,
)


def test_the_site_of_the_discipline_is_that_of_the_mappings() -> None:
    """142 machines in 18 clusters; at the rates of the forms each program takes what the table of times says."""
    policy = site_policy(True)
    assert (policy.nodes, len(policy.clusters)) == (sum(CLUSTER_SIZES), len(CLUSTER_SIZES)) == (142, 18)
    site = Inventory(policy.classes, policy.clusters, policy.forms, "")
    alone, team = times_ms()
    for kind in range(len(alone)):
        speeds = site.speeds_of(Job(job_id=0, width=1, estimate_ms=1, job_class=kind))
        reference_ms = alone[kind, 2] / (
            1.1 if kind == 2 else 1.0
        )  # the sort runs 1.1 times as long on the third class
        took = [reference_ms * RATE_ONE / rate for rate in speeds.alone[:-1]]
        assert took == pytest.approx(alone[kind].tolist(), rel=1e-3)
        on_teams = {cluster: reference_ms * RATE_ONE / rate for (cluster, _), rate in speeds.teams.items()}
        known = np.flatnonzero(team[kind] != NEVER_MS)
        assert sorted(on_teams) == known.tolist()
        assert [on_teams[cluster] for cluster in known] == pytest.approx(team[kind, known].tolist(), rel=1e-3)


def test_levels_are_mapped_one_behind_the_other() -> None:
    """High-priority jobs have what they would have alone, and all of one level is what there is without levels."""
    high, medium, low = priority_total(100, "10/10/80", "pjs")
    assert high == mapped_at_once(10, "pjs").total_ms(0) / 1000
    assert medium > high > 0
    assert low > mapped_at_once(80, "pjs").total_ms(0) / 1000
    assert priority_total(50, "no priority", "sjs") == (0, 0, mapped_at_once(50, "sjs").total_ms(0) / 1000)


def test_figure_6_has_every_total_of_the_conclusions() -> None:
    """From 5 to 500 jobs in all, for each of the three distributions."""
    figure_6 = report("collins-3", CollinsRuns(seeds=1, jobs=60)).sections[0]
    assert [row.labels[1] for row in figure_6.rows] == [str(n_jobs) for n_jobs in PRIORITY_JOBS] * 3


@pytest.mark.parametrize("table", GROUPS["collins"])
def test_each_case_study_is_reported(table: str) -> None:
    """With few arrivals: sections with numbers everywhere, and a verdict for each claim."""
    found = report(table, CollinsRuns(seeds=1, jobs=60))
    assert TABLES[table].traces == ()
    assert all(value.ours is not None for section in found.sections for row in section.rows for value in row.values)
    verdicts = {conclusion.claim: conclusion.verdicts["as set"].holds for conclusion in found.conclusions}
    assert verdicts.get("PJS is in all cases at least as good as SJS", True)
    assert verdicts.get("SJS takes less than 0.2 s for 100 jobs on 100 machines", True)
    assert len(verdicts) >= 2
