"""Figures 11 to 25 and Table 1 of Zhang et al.: the curves, and the checks of the conclusions."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gridweave.scenarios.generators.common import Moments
from gridweave.scenarios.generators.hyper_erlang import HyperErlang, HyperErlangModel, SizeClass
from gridweave_papers.figures import draw_gang
from gridweave_papers.registry import GROUPS, TABLES
from gridweave_papers.studies.report import Report
from gridweave_papers.studies.zhang import NODES
from gridweave_papers.studies.zhang_gang import below, crosses, report, saturates
from gridweave_papers.studies.zhang_gang_curves import BF, LINES, GangCurve, GangRuns, gang, gs


def _law(mean_ms: float) -> HyperErlang:
    return HyperErlang(order=1, probabilities=(1.0,), means_ms=(mean_ms,))


@pytest.fixture(scope="module")
def runs() -> GangRuns:
    """Run small workloads of two classes: many narrow and short jobs, few wide and long ones."""
    classes = [
        SizeClass(32, [1, 8, 32], [5, 3, 2], interarrival=_law(60_000.0), run=_law(600_000.0)),
        SizeClass(256, [64, 256], [3, 1], interarrival=_law(600_000.0), run=_law(3_600_000.0)),
    ]
    moments = Moments(100, 55_000.0, 20.0, 900_000.0, 900_000.0, 2e7, 0.5, 1.0, 0.0)
    return GangRuns(HyperErlangModel("by hand", NODES, 1000, classes, moments), seeds=2, jobs=60)


@pytest.mark.parametrize("table", GROUPS["gang"])
def test_every_figure_is_made_and_every_claim_judged(table: str, runs: GangRuns) -> None:
    """Each table has rows of numbers, each claim a verdict for each reading, and all of it goes to JSON."""
    findings = report(table, runs)
    json.dumps(Report.of(table, TABLES[table].title, TABLES[table].source, findings).to_dict())
    assert all(row.values for section in findings.sections for row in section.rows)
    assert findings.conclusions
    assert all(set(one.verdicts) == {"EASY", "conservative"} for one in findings.conclusions)


def test_figures_are_drawn(runs: GangRuns) -> None:
    """A panel for each cost of switches, for each scheduling, and for each quantity."""
    for table, panels in (("zhang-15", 4), ("zhang-21", 2), ("zhang-25", 3)):
        figures = draw_gang(table, TABLES[table].title, runs)
        assert [len(figure.axes) for figure in figures.values()] == [panels, panels]


def test_space_sharing_is_the_same_in_every_figure() -> None:
    """BF is one line, with one row; GS has no backfilling, whatever the reading."""
    assert LINES["zhang-15"]["BF"] == LINES["zhang-21"]["BF"] == BF
    assert BF.policy.mpl == 1
    assert gs(5).policy.backfill == "none"
    assert gang(2, "easy", 0.05).policy.switch_ms == 10_000


def test_64_tasks_are_a_choice_for_the_figures_after_it() -> None:
    """Figure 23 moves any number of tasks, since Q is varied in Figure 24 and chosen for Figure 25; both at 10 s."""
    moving = [line.policy for line in LINES["zhang-23"].values() if line.policy.migration != "none"]
    assert [(one.migration, one.max_tasks, one.migration_ms) for one in moving] == [
        ("fill", None, 10_000),
        ("all", None, 10_000),
    ]
    assert {LINES["zhang-25"][name].policy.max_tasks for name in ("MGS", "MBGS")} == {64}


def _curve(slowdowns: list[float], highest: float = 0.95) -> GangCurve:
    rho = np.linspace(0.55, highest, len(slowdowns))
    return GangCurve({"rho": np.stack([rho, rho], axis=1), "slowdown": np.array([slowdowns, slowdowns], float).T})


def test_checks_decide_by_the_curves() -> None:
    """What is better, where two lines cross, where one saturates, and up to where a slowdown is kept."""
    lines = {"a": gang(2), "b": gang(3)}
    low, high = _curve([1, 2, 3, 4, 5]), _curve([2, 3, 4, 5, 6])
    curves = {lines["a"]: low, lines["b"]: high}
    assert below([("a", "b")], lines, "slowdown")(curves).holds
    assert not below([("b", "a")], lines, "slowdown")(curves).holds
    crossed = {lines["a"]: _curve([1, 2, 3, 6, 9]), lines["b"]: _curve([3, 3, 3, 3, 3])}
    assert crosses("a", "b", lines, 0.75)(crossed).holds
    assert not crosses("a", "b", lines, 0.85)(crossed).holds
    assert saturates("a", lines, 95)(curves).holds
    assert not saturates("a", lines, 90)(curves).holds
    assert low.reached("slowdown", 3.0) == pytest.approx(0.75)
    assert np.isnan(high.reached("slowdown", 1.0))
    assert low.reached("slowdown", 20.0) == pytest.approx(0.95)
    # A curve that ends earlier is the worse one where the other goes on.
    short = {lines["a"]: low, lines["b"]: _curve([0.5, 0.6], 0.6)}
    assert not below([("b", "a")], lines, "slowdown")(short).holds
    assert below([("a", "b")], lines, "slowdown", low=0.7)(short).holds
