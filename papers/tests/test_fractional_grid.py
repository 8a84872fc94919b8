"""What fractions of nodes do to the grids of the catalogue: that the table compares what it says."""

from __future__ import annotations

import pytest

from gridweave.scenarios.scenario.run import run_scenario
from gridweave_papers.studies.fractional_grid import EASY, FRACTIONAL, LEVELS, LINES, FractionalGridRuns, report
from gridweave_papers.studies.report import Findings


@pytest.fixture(scope="module")
def few() -> Findings:
    """Return the evaluation with few jobs of one grid."""
    return report("fractional-grid", FractionalGridRuns(jobs=120, grids=("control-levels",)))


def test_every_level_stands_with_and_without_fractions(few: Findings) -> None:
    """Each level has a row for each kind of sites; without a grid, sites with EASY are those of the catalogue."""
    (section,) = few.sections
    assert len(section.rows) == len(LEVELS) * len(LINES)
    found = {row.labels: row.values for row in section.rows}
    for mode in ("no grid", "sharing"):
        assert len({found["control-levels", mode, line][0].ours for line in LINES}) == len(LINES), mode
    alone = run_scenario("control-levels", overrides={"workload.jobs": 120, "grid.mode": "local"})
    assert found["control-levels", "no grid", EASY][0].ours == pytest.approx(alone.metrics().awrt_width_ms / 1000)


def test_sites_with_fractions_take_no_parts(few: Findings) -> None:
    """Jobs are split over sites with EASY alone."""
    split_jobs = {row.labels: row.values[3].ours for row in few.sections[0].rows}
    assert split_jobs["control-levels", "adaptive", FRACTIONAL] == 0


def test_conclusions_are_judged_by_the_rows(few: Findings) -> None:
    """The first compares the sites by themselves."""
    awrt_s = {row.labels: row.values[0].ours or 0 for row in few.sections[0].rows}
    ours, other = (awrt_s["control-levels", "no grid", line] for line in (FRACTIONAL, EASY))
    assert few.conclusions[0].verdicts["control-levels"].holds is (ours < other)
