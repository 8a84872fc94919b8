"""The gang matrix at a time, the slices of a period, and their display."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gridweave import simulate
from gridweave.errors import GridweaveError
from gridweave.scenarios.batch.slices import matrix_at, slices_between
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.gang.matrix import matrix_rows
from gridweave.site.disciplines.gang.policy import GangPolicy

POLICY = GangPolicy(mpl=2, slice_ms=10, switch_ms=2)


@pytest.fixture
def workload() -> Workload:
    """Return two jobs that take turns on all nodes, and a later third one that fits beside neither."""
    return Workload(
        job_id=[1, 2, 3], submit_ms=[0, 0, 25], width=[4, 3, 1], estimate_ms=[30, 30, 20], run_ms=[30, 20, 20]
    )


def test_the_matrix_reflects_decisions_at_its_time(workload: Workload) -> None:
    assert matrix_at(workload, 4, POLICY, 0) == ([[1] * 4, [2, 2, 2, None]], 0)
    assert matrix_at(workload, 4, POLICY, 15) == ([[1] * 4, [2, 2, 2, None]], 1)
    assert matrix_at(workload, 4, POLICY, 25) == ([[1] * 4, [2, 2, 2, 3]], 1)
    assert matrix_at(workload, 4, POLICY, 10_000) == ([[None] * 4] * 2, None)


def test_slices_of_a_job_sum_to_its_run_time_and_switches(workload: Workload) -> None:
    """On a node they do not overlap."""
    end_ms = int(simulate(workload, 4, POLICY).end_ms.max())
    slices = slices_between(workload, 4, POLICY, 0, end_ms)
    assert [one.job_id for one in slices[:3]] == [1, 2, 1]
    for job_id, run_ms in ((1, 30), (2, 20), (3, 20)):
        spans = [(one.start_ms, one.end_ms) for one in slices if one.job_id == job_id]
        resumed = sum(start > end for (_, end), (start, _) in itertools.pairwise(spans))
        assert sum(end - start for start, end in spans) == run_ms + 2 * resumed
    for node in range(4):
        spans = [(s.start_ms, s.end_ms) for s in slices if any(low <= node < high for low, high in s.nodes)]
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    with pytest.raises(GridweaveError, match="more than 3 slices"):
        slices_between(workload, 4, POLICY, 0, end_ms, at_most=3)


def test_wide_matrices_are_printed_with_nodes_as_rows() -> None:
    headings, rows = matrix_rows([list(range(20)), [7] * 20], None)
    assert headings == ["", "time-slice 0", "time-slice 1"]
    assert rows[3] == ["P3", "J3", "J7"]


def test_slices_are_plotted_for_gang_scheduling_only(workload: Workload) -> None:
    result = simulate(workload, 4, POLICY)
    figure = result.plot("slices", start_ms=0, end_ms=40)
    assert {text.get_text() for text in figure.axes[0].texts} >= {"1", "2"}
    with pytest.raises(GridweaveError, match="the window is empty"):
        result.plot("slices", start_ms=5, end_ms=5)
    with pytest.raises(GridweaveError, match="'slices' needs a site with the discipline gang"):
        simulate(workload, nodes=4).plot("slices")


def test_without_fitting_jobs_the_matrix_is_empty() -> None:
    wide = Workload(job_id=[1], submit_ms=[0], width=[9], estimate_ms=[5], run_ms=[5])
    assert matrix_at(wide, 4, POLICY, 0) == ([[None] * 4] * 2, None)
    assert slices_between(wide, 4, POLICY, 0, 100) == []
    assert np.array_equal(simulate(wide, 4, POLICY).start_ms, [-1])
