"""Chapter 5 of Streit's thesis: what is transcribed agrees with itself, and the reading of the thesis comes near it."""

from __future__ import annotations

import pytest

from conftest import TracePath
from gridweave.scenarios.published.registry import resolve
from gridweave.scenarios.published.streit import THESIS_TRACES, ThesisRuns
from gridweave.scenarios.published.streit_dynp import CHECKS, TABLES, TuningRuns, policy_of
from gridweave.scenarios.published.study import printed


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
    """The tables are known to the command, and each check has its claim."""
    assert resolve(list(TABLES)) == list(TABLES)
    claims = [line["table"] for line in printed("claims")]
    assert {table: claims.count(table) for table in CHECKS} == {table: len(checks) for table, checks in CHECKS.items()}


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
