"""Reports: published numbers and ours side by side, and whether each published conclusion holds.

A report is plain data, written as text tables, JSON or CSV.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

import msgspec

Record = dict[str, float | int | str | None]

SHARED = "shared"
"""Section layout with one published number and several of our numbers per row."""

EACH = "each"
"""Section layout with a published number in every column."""

OURS = "ours"
"""Section layout without published numbers."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A published number and ours, the decimals to print, and the largest difference that counts as reproduced."""

    published: float | None = None
    ours: float | None = None
    decimals: int = 0
    tolerance_pct: float | None = None

    @classmethod
    def of(cls, printed: str, ours: float | None, tolerance_pct: float | None = None) -> Value:
        """Return a value from a number as printed in the paper, keeping its decimals."""
        decimals = len(printed.partition(".")[2])
        return cls(published=float(printed), ours=ours, decimals=decimals, tolerance_pct=tolerance_pct)

    @property
    def difference_pct(self) -> float | None:
        """Difference between our and the published number, in per cent of the published number; None if undefined."""
        if self.published is None or self.ours is None:
            return None
        if self.published == self.ours:
            return 0.0
        return 100 * (self.ours - self.published) / abs(self.published) if self.published else None

    @property
    def within(self) -> bool | None:
        """Whether the difference is within the tolerance; None without a tolerance or without our number."""
        difference = self.difference_pct
        if self.tolerance_pct is None or difference is None:
            return None
        return abs(difference) <= self.tolerance_pct


class Row(msgspec.Struct, frozen=True):
    """One row of a section.

    Parameters
    ----------
    labels : tuple of str
        One text per heading of the section.
    values : tuple of Value
        One per column of the section.
    """

    labels: tuple[str, ...]
    values: tuple[Value, ...]


class Section(msgspec.Struct, frozen=True):
    """One table of a report.

    Parameters
    ----------
    columns : tuple of str
        Names of the columns of values.
    layout : str
        `SHARED`, `EACH` or `OURS`.
    """

    title: str
    headings: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    layout: str = SHARED


class Verdict(msgspec.Struct, frozen=True):
    """Whether a conclusion holds for our numbers, and the numbers that decide it."""

    holds: bool
    figures: str


class Conclusion(msgspec.Struct, frozen=True):
    """A claim, its source in the paper, and a verdict for each reading of the points that the paper leaves open."""

    source: str
    claim: str
    verdicts: dict[str, Verdict]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The result of recomputing a published table or figure.

    ``data`` holds tables that are too long to print, as records with equal keys. If all required traces are missing,
    only ``missing`` is set.
    """

    sections: tuple[Section, ...] = ()
    conclusions: tuple[Conclusion, ...] = ()
    data: dict[str, list[Record]] = msgspec.field(default_factory=dict)
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing could be computed."""
        return not self.sections and not self.conclusions


class Report(Findings, frozen=True, kw_only=True):
    """Findings with the id, title and source of their table.

    Parameters
    ----------
    id : str
        Id of the table, as on the command line.
    title, source : str
        Content of the table, and where it was published.
    """

    id: str
    title: str
    source: str

    @classmethod
    def of(cls, name: str, title: str, source: str, findings: Findings) -> Report:
        """Combine findings with the id, title and source of their table."""
        return cls(id=name, title=title, source=source, **msgspec.structs.asdict(findings))

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON values, with None for undefined numbers."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        sections = [
            {
                "title": section.title,
                "headings": list(section.headings),
                "rows": [{"labels": list(row.labels), "values": _plain_values(section, row)} for row in section.rows],
            }
            for section in self.sections
        ]
        return plain | {"sections": sections}


def _plain_values(section: Section, row: Row) -> list[dict[str, object]]:
    return [
        {
            "column": column,
            "published": _finite(value.published),
            "ours": _finite(value.ours),
            "difference_pct": _finite(value.difference_pct),
            "tolerance_pct": value.tolerance_pct,
            "within": value.within,
        }
        for column, value in zip(section.columns, row.values, strict=True)
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def our_values(*numbers: float, decimals: int = 0) -> tuple[Value, ...]:
    """Return our numbers as values without a published counterpart."""
    return tuple(Value(ours=number, decimals=decimals) for number in numbers)


def change_pct(ours: float, other: float) -> float:
    """Return the change from `other` to `ours`, in per cent of `other`."""
    return 100 * (ours / other - 1)


def against(ours_s: float, other_s: float) -> str:
    """Format two times and their difference in per cent."""
    return f"{ours_s:,.0f} s against {other_s:,.0f} s ({change_pct(ours_s, other_s):+.1f}%)"


def lower(ours_s: float, other_s: float) -> Verdict:
    """Judge whether `ours_s` is below `other_s`, quoting the difference."""
    return Verdict(ours_s < other_s, against(ours_s, other_s))


def gained(ours_s: float, other_s: float) -> Verdict:
    """Judge whether `ours_s` is below `other_s`, quoting the gain."""
    gain_pct = 100 * (1 - ours_s / other_s)
    return Verdict(ours_s < other_s, f"{ours_s:,.0f} s against {other_s:,.0f} s, a gain of {gain_pct:.1f}%")


def all_hold(parts: Iterable[tuple[bool, str]], after: str = "", *, before: str = "", between: str = "; ") -> Verdict:
    """Judge a claim that holds if all of its parts hold; the texts of the parts are joined by `between`."""
    held, texts = zip(*parts, strict=True)
    return Verdict(all(held), before + between.join(texts) + after)


def text_table(section: Section) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of a section as text."""
    headings = list(section.headings)
    judged = any(value.tolerance_pct is not None for row in section.rows for value in row.values)
    if section.layout == SHARED:
        headings.append("published")
    for column in section.columns:
        if section.layout == OURS:
            headings.append(column)
        else:
            first = [column, "ours"] if section.layout == EACH else [column]
            headings += [*first, "diff [%]", *(["tolerance"] if judged else [])]
    return headings, [_text_row(section, row, judged=judged) for row in section.rows]


def _text_row(section: Section, row: Row, *, judged: bool) -> list[str]:
    cells = list(row.labels)
    if section.layout == SHARED:
        cells.append(_number(row.values[0].published, row.values[0].decimals))
    for value in row.values:
        if section.layout == EACH:
            cells.append(_number(value.published, value.decimals))
        cells.append(_number(value.ours, value.decimals))
        if section.layout != OURS:
            cells.append(_percent(value.difference_pct))
            cells += [_mark(value)] if judged else []
    return cells


def _number(value: float | None, decimals: int) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{decimals}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:+,.2f}"


def _mark(value: Value) -> str:
    if value.within is None:
        return "–"
    return f"{'within' if value.within else 'beyond'} {value.tolerance_pct:g}%"


def conclusion_lines(conclusion: Conclusion) -> list[str]:
    """Return the claim, followed by one line for each reading."""
    width = max((len(reading) for reading in conclusion.verdicts), default=0)
    lines = [f"{conclusion.claim} ({conclusion.source})"]
    for reading, verdict in conclusion.verdicts.items():
        word = "holds" if verdict.holds else "does not hold"
        lines.append(f"  {reading:<{width}}  {word}: {verdict.figures}")
    return lines


def tally(reports: Iterable[Report]) -> dict[str, tuple[int, int]]:
    """Count the conclusions that hold, and all conclusions, per reading; skip conclusions with a single reading."""
    counts: dict[str, tuple[int, int]] = {}
    for report in reports:
        for conclusion in report.conclusions:
            if len(conclusion.verdicts) < 2:
                continue
            for reading, verdict in conclusion.verdicts.items():
                held, judged = counts.get(reading, (0, 0))
                counts[reading] = held + verdict.holds, judged + 1
    return counts


_VALUES_HEADER = ("section", "row", "column", "published", "ours", "difference_pct", "tolerance_pct", "within")


def csv_files(report: Report) -> dict[str, str]:
    """Return the CSV files of a report by name: numbers, conclusions, and each table in ``data``."""
    values = [
        (section.title, " ".join(row.labels), *plain.values())
        for section in report.sections
        for row in section.rows
        for plain in _plain_values(section, row)
    ]
    verdicts = [
        (conclusion.source, conclusion.claim, reading, verdict.holds, verdict.figures)
        for conclusion in report.conclusions
        for reading, verdict in conclusion.verdicts.items()
    ]
    tables: dict[str, tuple[Sequence[str], Sequence[Iterable[object]]]] = {
        f"{report.id}.csv": (_VALUES_HEADER, values),
        f"{report.id}-conclusions.csv": (("source", "claim", "reading", "holds", "figures"), verdicts),
    }
    for name, records in report.data.items():
        tables[f"{report.id}-{name}.csv"] = (
            list(records[0]) if records else (),
            [record.values() for record in records],
        )
    return {name: _csv(header, rows) for name, (header, rows) in tables.items() if rows}


def _csv(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return text.getvalue()
