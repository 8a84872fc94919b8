"""Chapter 5 of Streit's thesis: what is transcribed agrees with itself, and the reading of the thesis comes near it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import TracePath
from gridweave.site.disciplines.dynp.policy import THREE
from gridweave_papers.figures import draw_load, draw_switches
from gridweave_papers.registry import TABLES, resolve
from gridweave_papers.studies import streit_dynp, streit_load
from gridweave_papers.studies.streit import THESIS_TRACES, ThesisRuns
from gridweave_papers.studies.streit_dynp import TuningRuns, policy_of
from gridweave_papers.studies.streit_load import DECIDERS, LoadRuns, Way
from gridweave_papers.studies.study import printed


def test_transcribed_tables_agree() -> None:
    """Cases add up to the decisions, full tuning of Table 5.2 is no slackness of 5.8, and all months are there."""
    cases = printed("streit-5.3")
    use = {(line["trace"], line["decider"], line["slackness"]): line for line in printed("streit-5.4")}
    for decider in ("simple", "advanced"):
        line = use["SDSC", decider, "0"]
        decisions = sum(int(line[name]) for name in ("fcfs switches", "sjf switches", "ljf switches", "no switch"))
        # The printed cases are one and two more than the printed totals.
        assert sum(int(case[decider]) for case in cases) - decisions == {"simple": 1, "advanced": 2}[decider]
    slack = {(line["trace"], line["decider"]): line["0"] for line in printed("streit-5.8")}
    for line in printed("streit-5.2"):
        if (line["trace"], line["decider"]) != ("KTH", "advanced"):  # printed once for half, once for full
            assert float(slack[line["trace"], line["decider"]]) == float(line["full"])
    months = [(line["trace"], line["month"]) for line in printed("streit-A.9")]
    assert months == [(line["trace"], line["month"]) for line in printed("streit-A")]


def test_every_table_is_listed_with_its_claims() -> None:
    """The tables are known to the command, each check has its claim, and each claim its table."""
    claims = [line["table"] for line in printed("claims")]
    for module in (streit_dynp, streit_load):
        assert resolve(list(module.TABLES)) == list(module.TABLES)
        checks = {table: len(checks) for table, checks in module.CHECKS.items()}
        assert {table: claims.count(table) for table in module.CHECKS} == checks
    assert set(claims) <= set(TABLES)


@pytest.mark.parametrize(
    ("decider", "tuning", "published", "tolerance_pct"),
    [
        ("advanced", "half", 2.5812, 0.5),
        ("advanced", "full", 2.5885, 1.0),
        ("simple", "half", 4.7256, 6.0),
        ("simple", "full", 5.6562, 3.0),
    ],
)
def test_the_reading_of_the_thesis_on_kth(
    decider: str, tuning: str, published: float, tolerance_pct: float, trace_path: TracePath
) -> None:
    """Table 5.2 for KTH comes out as the thesis's list was kept; read plainly the deciders hardly differ."""
    trace_path(THESIS_TRACES["KTH"].name)
    runs = TuningRuns(ThesisRuns())
    sldwa = runs.sldwa("KTH", policy_of(decider, "thesis", tuning=tuning))
    assert sldwa == pytest.approx(published, rel=tolerance_pct / 100)
    plain = [runs.sldwa("KTH", policy_of(one, "true", tuning=tuning)) for one in ("simple", "advanced")]
    assert plain[0] == pytest.approx(plain[1], rel=0.005)


def test_the_tables_under_load_agree() -> None:
    """The gains of Tables 5.12 and 5.13 are the means of those of A.15 to A.20, to two decimals."""
    lines = printed("streit-A.17")
    means = {(line["set"], line["decider"]): line for line in printed("streit-5.13")}
    for (name, decider), mean in means.items():
        if (name, decider) == ("KTH", "advanced"):  # printed there is the line of CTC under the other decider
            continue
        for slackness in ("0", "2", "4", "6", "8", "10"):
            pairs = [
                (float(line["sjf"]), float(line[slackness]))
                for line in lines
                if (line["set"], line["decider"]) == (name, decider)
            ]
            gain = sum(100 * (1 - ours / sjf) for sjf, ours in pairs) / len(pairs)
            rounding = 2 * sum(100 * 0.005 / sjf for sjf, _ in pairs) / len(pairs)
            assert gain == pytest.approx(float(mean[slackness]), abs=rounding + 0.01), (name, decider, slackness)
    basic = {(line["set"], line["factor"]): line["sjf"] for line in printed("streit-A.13")}
    assert {(line["set"], line["factor"]): line["sjf"] for line in lines} == basic
    for line in printed("streit-A.15"):
        for decider in DECIDERS:
            (same,) = (
                one["0"] for one in lines if (one["set"], one["factor"], one["decider"]) == (
                    line["set"], line["factor"], decider)
            )  # fmt: skip
            assert same == line[decider]
    for line in printed("streit-5.12"):
        for decider in DECIDERS:
            if (line["set"], decider) != ("KTH", "advanced"):
                assert line[decider] == means[line["set"], decider]["0"]


def test_jobs_like_those_of_kth_under_load(trace_path: TracePath) -> None:
    """Under four thirds of the load all get slower, LJF is the slowest and SJF the quickest, and dynP is near SJF."""
    trace_path(THESIS_TRACES["KTH"].name)
    study = LoadRuns(ThesisRuns(), seeds=1, jobs=3_000)
    order_of = {factor: [study.figures("KTH", factor, Way(one)).sldwa for one in THREE] for factor in (1.0, 0.7)}
    assert all(more > less for more, less in zip(order_of[0.7], order_of[1.0], strict=True))
    for sldwa in order_of.values():
        assert max(sldwa) == sldwa[2]
        assert min(sldwa) == sldwa[1]
    tuned = study.figures("KTH", 0.7, Way("advanced"))
    assert tuned.sldwa == pytest.approx(order_of[0.7][1], rel=0.1)
    fullest = study.figures("KTH", 0.7, Way("ljf")).util_pct
    assert study.figures("KTH", 0.7, Way("sjf")).util_pct < fullest <= 100


@pytest.fixture
def few(trace_path: TracePath, monkeypatch: pytest.MonkeyPatch) -> LoadRuns:
    """Make sets of few jobs like those of KTH."""
    trace_path(THESIS_TRACES["KTH"].name)
    monkeypatch.setattr(streit_load, "TRACES", ("KTH",))
    return LoadRuns(ThesisRuns(), seeds=1, jobs=200)


def test_figures_under_load_show_ours_beside_what_is_printed(few: LoadRuns) -> None:
    """Figures 5.1 to 5.4 have each line twice, as simulated and as printed, by the factors of Table 5.10."""
    figures = draw_load("streit-A.13", "", few) | draw_load("streit-5.12", "", few)
    readings = [f"streit-5.12-{reading}-{what}" for reading in ("true", "thesis") for what in ("sldwa", "util")]
    assert list(figures) == ["streit-A.13-sldwa", "streit-A.13-util", *readings]
    factors = [1.0, 0.9, 0.8, 0.7, 0.6]
    lines = {line.get_label(): line for line in figures["streit-5.12-thesis-util"].axes[0].lines}
    assert list(lines["advanced"].get_xdata()) == factors
    ways = [few.figures("KTH", factor, Way("advanced", "thesis")) for factor in factors]
    assert list(lines["advanced"].get_ydata()) == [way.util_pct for way in ways]
    printed_util = [float(row["advanced util"]) for row in few.at_hand("streit-A.15")]
    assert list(lines["advanced, printed"].get_ydata()) == printed_util


def test_the_use_of_policies_under_bounds(few: LoadRuns) -> None:
    """Figure 4.2: the parts of the time make up the whole, and the figure has one area for each policy."""
    several = LoadRuns(few.runs, seeds=3, jobs=200)
    (section,), _ = streit_load.figure_4_2(several)
    for row in section.rows:
        assert sum(value.ours or 0 for value in row.values) == pytest.approx(100)
    (figure,) = draw_load("streit-4.2", "", several).values()
    assert [area.get_label() for area in figure.axes[0].collections] == ["sjf", "fcfs", "ljf"]


def test_what_was_simulated_under_load_is_kept(few: LoadRuns, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run that was interrupted goes on from what it has; another number of jobs is another simulation."""
    monkeypatch.setattr(streit_load, "kept_file", lambda name: tmp_path / f"{name}.jsonl")
    first = LoadRuns(few.runs, seeds=1, jobs=200, kept=True).figures("KTH", 1.0, Way("sjf"))
    again = LoadRuns(few.runs, seeds=1, jobs=200, kept=True)
    monkeypatch.setattr(again._results, "_run", None)
    assert again.figures("KTH", 1.0, Way("sjf")) == first
    assert LoadRuns(few.runs, seeds=1, jobs=300, kept=True).figures("KTH", 1.0, Way("sjf")) != first


def test_tables_of_switches_are_drawn_with_both_readings(
    trace_path: TracePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each column of Table 5.4 has a panel with three bars for a row: what is printed, and ours in both readings."""
    trace_path(THESIS_TRACES["KTH"].name)
    line = printed("streit-5.4")[0] | {"trace": "KTH", "slackness": "2"}
    monkeypatch.setattr(streit_dynp, "printed", lambda table: [line])
    runs = TuningRuns(ThesisRuns())
    (section,), _ = streit_dynp.table_5_4(runs)
    (figure,) = draw_switches("streit-5.4", "", runs).values()
    for axes, row in zip(figure.axes, section.rows, strict=True):
        assert [bars.get_label() for bars in axes.containers] == ["printed", "true", "thesis"]
        heights = [bars[0].get_height() for bars in axes.containers]
        assert heights == [row.values[0].published, row.values[0].ours, row.values[1].ours]
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["KTH\nsimple\nslackness 2%"]
