"""The evaluation of reserved starts: what it counts, and what it finds on the extract of CTC."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave_papers.studies.report import Findings
from gridweave_papers.studies.reserved_starts import lateness_ms
from gridweave_papers.studies.reserved_starts import report as reserved_starts
from gridweave_papers.studies.streit_grid import GridRuns
from reference.model import Job
from support.builders import to_workload


def test_lateness_is_counted_from_the_end_by_the_running_jobs_alone() -> None:
    """Job 3 could end at 15 by the running jobs, job 2 goes first; job 4 is wider than a site and reckons with none."""
    jobs = [Job(1, 0, 4, 10, 10), Job(2, 1, 4, 30, 30), Job(3, 2, 4, 5, 5), Job(4, 3, 6, 5, 5)]
    result = simulate(to_workload(jobs), [4, 3], GridPolicy(mode="multi-site", lower_bound=4))
    assert result.start_ms.tolist() == [0, 10, 40, 45]
    assert lateness_ms(result).tolist() == [0, 30]


def test_lateness_counts_the_stretch_of_a_split() -> None:
    """Job 4 reckons with site 0 from 30 to 35; when job 3 ends at 6 it is split, and takes 10 instead of 5."""
    jobs = [Job(1, 0, 3, 30, 30), Job(2, 0, 3, 30, 30), Job(3, 0, 2, 40, 6), Job(4, 1, 4, 5, 5)]
    result = simulate(to_workload(jobs), [4, 4, 2], GridPolicy(mode="multi-site", overhead=1.0))
    assert result.fragments_of(3) == [(2, 2), (0, 1), (1, 1)]
    assert (result.start_ms[3], lateness_ms(result).tolist()) == (6, [16 - 35])


@pytest.fixture(scope="module")
def report(trace_path: Callable[[str], Path]) -> Findings:
    """Return the report on the extract."""
    return reserved_starts("reserved-starts", GridRuns(trace_path("CTC-SP2-1996-3.1-cln")))


@pytest.mark.trace
def test_which_conclusions_hold(report: Findings) -> None:
    """Reserved starts cost all jobs and help wide ones; so it is on one machine; nothing else promises an end."""
    held = [{verdict.holds for verdict in conclusion.verdicts.values()} for conclusion in report.conclusions]
    assert held == [{False}, {False}, {True}, {True}, {False}, {True}]


@pytest.mark.trace
def test_awrt_changes_by_less_than_two_per_cent(report: Findings) -> None:
    """For every overhead, both configurations and both kinds of estimates."""
    for section in report.sections:
        for row in section.rows:
            easy, reserved = (value.ours for value in row.values[:2])
            assert easy is not None
            assert reserved is not None
            assert abs(reserved / easy - 1) < 0.02
