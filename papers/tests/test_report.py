"""Reports of published tables: differences, tolerances, and how a report goes to text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave_papers.studies.report import (
    EACH,
    OURS,
    SHARED,
    Conclusion,
    Report,
    Row,
    Section,
    Value,
    Verdict,
    conclusion_lines,
    csv_files,
    tally,
    text_table,
)


@pytest.mark.parametrize(
    ("ours", "tolerance", "within"), [(101.0, 1.0, True), (99.0, 1.0, True), (101.01, 1.0, False), (98.9, 1.0, False)]
)
def test_tolerance_is_judged_against_the_published_number(ours: float, tolerance: float, within: bool) -> None:
    """A cell is within its tolerance up to that many per cent of the published number, in both directions."""
    assert Value(published=100.0, ours=ours, tolerance_pct=tolerance).within is within


@given(st.floats(0.01, 1e9), st.floats(0.0, 1e9), st.floats(0.1, 50.0))
def test_difference_leads_back_to_our_number(published: float, ours: float, tolerance: float) -> None:
    """The published number changed by the difference is ours, and within says whether the difference keeps to it."""
    value = Value(published=published, ours=ours, tolerance_pct=tolerance)
    assert value.difference_pct is not None
    assert published * (1 + value.difference_pct / 100) == pytest.approx(ours, rel=1e-9, abs=1e-6 * published)
    assert value.within is (abs(value.difference_pct) <= tolerance)


def test_a_missing_number_has_no_difference() -> None:
    """Where one of the two numbers is not there, or the published one is 0, there is no difference and no verdict."""
    for value in (Value(published=1.0, tolerance_pct=1.0), Value(ours=1.0), Value(published=0.0, ours=1.0)):
        assert value.difference_pct is None
        assert value.within is None
    assert Value(published=0.0, ours=0.0, tolerance_pct=1.0).within is True


def _section(layout: str) -> Section:
    return Section(
        title="t",
        headings=("trace",),
        columns=("a", "b"),
        rows=(
            Row(
                ("KTH",),
                (
                    Value(published=1000.0, ours=1001.0, tolerance_pct=1.0),
                    Value(published=1000.0, ours=float("nan"), tolerance_pct=1.0),
                ),
            ),
        ),
        layout=layout,
    )


@pytest.mark.parametrize(
    ("layout", "headings", "row"),
    [
        (
            SHARED,
            ["trace", "published", "a", "diff [%]", "tolerance", "b", "diff [%]", "tolerance"],
            ["KTH", "1,000", "1,001", "+0.10", "within 1%", "–", "–", "beyond 1%"],
        ),
        (
            EACH,
            ["trace", "a", "ours", "diff [%]", "tolerance", "b", "ours", "diff [%]", "tolerance"],
            ["KTH", "1,000", "1,001", "+0.10", "within 1%", "1,000", "–", "–", "beyond 1%"],
        ),
        (OURS, ["trace", "a", "b"], ["KTH", "1,001", "–"]),
    ],
)
def test_layouts_of_a_section(layout: str, headings: list[str], row: list[str]) -> None:
    """Each layout shows the published number once, per column, or not; a number that is not defined is a dash."""
    assert text_table(_section(layout)) == (headings, [row])


def test_report_goes_to_json_and_csv() -> None:
    """JSON has None for what is not defined; CSV has one line per number, and a file for conclusions and for data."""
    report = Report(
        id="x-1",
        title="t",
        source="s",
        sections=(_section(SHARED),),
        conclusions=(Conclusion(source="s", claim="c, d", verdicts={"one": Verdict(True, "1 < 2")}),),
        data={"curves": [{"rho": 0.5, "wait_s": None}]},
    )
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["sections"][0]["rows"][0]["values"][0]["within"] is True
    assert plain["sections"][0]["rows"][0]["values"][1]["ours"] is None
    assert plain["conclusions"][0]["verdicts"]["one"]["holds"] is True
    files = csv_files(report)
    assert sorted(files) == ["x-1-conclusions.csv", "x-1-curves.csv", "x-1.csv"]
    lines = list(csv.DictReader(io.StringIO(files["x-1.csv"])))
    assert [line["column"] for line in lines] == ["a", "b"]
    assert float(lines[0]["difference_pct"]) == pytest.approx(0.1)
    assert lines[1]["ours"] == ""
    assert files["x-1-curves.csv"] == "rho,wait_s\n0.5,\n"
    assert next(csv.DictReader(io.StringIO(files["x-1-conclusions.csv"])))["claim"] == "c, d"


def test_conclusions_are_printed_and_counted() -> None:
    """A conclusion says for each reading whether it holds; only those with several readings are counted."""
    two = Conclusion(source="s", claim="c", verdicts={"EASY": Verdict(True, "1"), "planning": Verdict(False, "2")})
    one = Conclusion(source="s", claim="c", verdicts={"numbers": Verdict(True, "1")})
    assert conclusion_lines(two) == ["c (s)", "  EASY      holds: 1", "  planning  does not hold: 2"]
    report = Report(id="x", title="t", source="s", conclusions=(two, one, two))
    assert tally([report]) == {"EASY": (2, 2), "planning": (0, 2)}
