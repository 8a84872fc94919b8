"""The evaluation of DFRS: what is simulated, and that conclusions are judged by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.scenarios.generators.lublin import BATCH, INTERACTIVE
from gridweave_papers.figures import draw_dfrs
from gridweave_papers.registry import GROUPS, TABLES
from gridweave_papers.studies import dfrs
from gridweave_papers.studies.dfrs import BEST, EASY, DfrsRuns, DfrsSetting, synthetic_seeds
from gridweave_papers.studies.study import printed


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> DfrsRuns:
    """Return runs of a few jobs at two loads."""
    monkeypatch.setattr(dfrs, "JOBS", 60)
    monkeypatch.setattr(dfrs, "DAYS", (0, 100))
    monkeypatch.setattr(dfrs, "LOADS", (0.1, 0.9))
    return DfrsRuns(seeds=1)


def test_every_table_has_a_check_for_each_claim() -> None:
    """All tables of the group are known, and as many claims are printed as there are checks."""
    assert set(dfrs.CHECKS) == set(GROUPS["dfrs"]) <= set(TABLES)
    for table, checks in dfrs.CHECKS.items():
        assert len([row for row in printed("claims") if row["table"] == table]) == len(checks)


def test_synthetic_traces_are_those_of_the_paper() -> None:
    """1,000 jobs, interactive and batch, over 4 to 6 days; ten traces if nothing is said, none of a seed left out."""
    runs = DfrsRuns()
    assert len(runs.seeds) >= 10
    for seed in range(1, runs.seeds[-1] + 1):
        jobs = runs.workload("unscaled", seed, 0.0)
        days = float(jobs.submit_ms[-1] - jobs.submit_ms[0]) / 86_400_000
        assert len(jobs) == 1_000
        assert set(jobs.columns["job_class"].tolist()) == {INTERACTIVE, BATCH}
        assert (4 <= days <= 6) == (seed in runs.seeds)


def test_a_trace_is_chosen_by_its_days_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bound on the days the seeds are the first ones; fewer than one is refused."""
    monkeypatch.setattr(dfrs, "DAYS", (0, 100))
    assert synthetic_seeds(3) == (1, 2, 3)
    with pytest.raises(OptionError, match="seeds"):
        synthetic_seeds(0)


def test_traces_have_the_load_that_is_asked_for(small: DfrsRuns) -> None:
    """The same jobs at another load, and with needs."""
    low, high = (small.workload("scaled", 1, load) for load in (0.1, 0.9))
    assert low.run_ms.tolist() == high.run_ms.tolist()
    for load, jobs in ((0.1, low), (0.9, high)):
        offered = float(jobs.width @ jobs.run_ms) / (dfrs.NODES * float(jobs.submit_ms[-1]))
        assert offered == pytest.approx(load, rel=1e-3)
        assert (jobs.columns["cpu_need"][jobs.width == 1] == 0.25).all()


def test_figure_1_is_judged_by_what_is_simulated(small: DfrsRuns) -> None:
    """Numbers stand for every algorithm and load, none below the bound; every claim is judged at the printed period."""
    found = dfrs.report("dfrs-1", small)
    (section,) = found.sections
    assert len(section.rows) == len(dfrs.SHOWN)
    assert all((value.ours or 0) >= 1 for row in section.rows for value in row.values)
    assert [set(one.verdicts) for one in found.conclusions] == [{"period 600 s"}] * 5
    assert "lublin-types" in found.notes[0]


def test_one_simulation_serves_all_periods_of_what_has_none(small: DfrsRuns) -> None:
    """EASY is simulated once, whatever period is asked for; the best algorithm for each."""
    points = small.points(
        [DfrsSetting("scaled", 1, 0.9, name, period) for name in (EASY, BEST) for period in (600, 6000)]
    )
    values = np.array(list(points.values()))
    assert (values[0] == values[1]).all()
    assert (values[2] != values[3]).any()


@pytest.mark.parametrize("table", ["dfrs-1", "dfrs-2", "dfrs-3"])
def test_figures_show_what_the_tables_say(table: str, small: DfrsRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 2 has a panel for each set of traces, and all lines are the numbers of the tables."""
    monkeypatch.setattr(dfrs, "PERIODS_S", (600, 6_000))
    (figure,) = draw_dfrs(table, "", small).values()
    names = [axes.get_title(loc="left") for axes in figure.axes]
    assert names == {"dfrs-1": [""], "dfrs-2": ["unscaled", "scaled"], "dfrs-3": [""]}[table]
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    if table == "dfrs-1":
        assert list(lines) == list(dfrs.SHOWN)
        assert lines[BEST] == [dfrs.degradation_at(small, BEST, load) for load in dfrs.LOADS]
    elif table == "dfrs-2":
        assert list(lines) == [BEST, EASY]
        assert lines[BEST] == [dfrs.underutilization_of(small, "unscaled", BEST, one) for one in dfrs.PERIODS_S]
    else:
        assert list(lines) == ["unscaled", "scaled"]
        assert lines["scaled"] == [dfrs.degradation_of(small, "scaled", BEST, one) for one in dfrs.PERIODS_S]


def test_what_is_done_of_all_traces_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another run simulates only what was not done, also where the last line was cut off; small runs keep nothing."""
    monkeypatch.setattr(dfrs, "kept_file", lambda name: tmp_path / "kept" / f"{name}.jsonl")
    monkeypatch.setattr(dfrs, "JOBS", 40)
    monkeypatch.setattr(dfrs, "DAYS", (0, 100))
    one, other = (DfrsSetting("unscaled", number, 0.0, EASY) for number in (1, 2))
    DfrsRuns(seeds=1).points([one])
    assert not (tmp_path / "kept").exists()
    first = DfrsRuns(full=True).points([one, other])
    file = tmp_path / "kept" / "dfrs.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    made: list[DfrsSetting] = []
    again = DfrsRuns(full=True)
    monkeypatch.setattr(again._points, "_run", lambda setting: made.append(setting) or first[setting])
    assert again.points([one, other]) == first
    assert len(made) == 1, "the line that was cut off"
    assert DfrsRuns(full=True)._points._results == first, "what came behind the cut is kept"
