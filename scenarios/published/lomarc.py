"""Tables 4 and 5 and Figures 6 to 9 of the evaluation of LOMARC, recomputed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gridweave.scenarios.published.lomarc_claims import HYPERTHREADED, View, judge
from gridweave.scenarios.published.lomarc_data import (
    EFFICIENCY_GAIN,
    LOADS,
    M2_CUTS,
    MAKESPAN_CUT,
    RELATIVE_CUT,
    RESPONSE_CUT,
    TABLE_5,
    TABLE_5_HEADINGS,
)
from gridweave.scenarios.published.lomarc_runs import (
    ALPHAS,
    COLUMNS,
    NODES,
    READINGS,
    WORKLOADS,
    LomarcRuns,
    Setting,
    load_of,
)
from gridweave.scenarios.published.report import EACH, OURS, Record, Report, Row, Section, Value
from gridweave.scenarios.sweep.tables import mean_interval
from gridweave.site.disciplines.lomarc import VARIANTS

FloatArray = npt.NDArray[np.float64]

TITLES = {
    "lomarc-4": ("The workloads and their load", "LOMARC, section 6.1, Table 4"),
    "lomarc-5": ("Candidates left by each test of a match", "LOMARC, section 6.2, Table 5"),
    "lomarc-6": ("Response times by approach and workload", "LOMARC, section 6.2, Figure 6"),
    "lomarc-7": ("Relative bounded response times by approach and workload", "LOMARC, section 6.2, Figure 7"),
    "lomarc-8": ("Utilisation and utilisation efficiency", "LOMARC, section 6.2, Figure 8"),
    "lomarc-9": ("Response times with the mixes M2 and M3", "LOMARC, section 6.2, Figure 9"),
}
"""Id to title and source."""

QUANTITIES = {
    "response_s": ("Average response time [s]", 0),
    "relative": ("Average relative bounded response time", 1),
    "util": ("Utilisation", 3),
    "efficiency": ("Utilisation efficiency", 3),
    "makespan_s": ("Makespan [s]", 0),
}
"""What a figure shows: its name and the digits behind the point."""

SHOWN = {
    "lomarc-6": ("response_s", "makespan_s"),
    "lomarc-7": ("relative",),
    "lomarc-8": ("util", "efficiency"),
    "lomarc-9": ("response_s", "relative"),
}
"""Figure to its quantities."""


def settings_of(entry: str) -> list[Setting]:
    """Return what a table or figure is made of.

    Parameters
    ----------
    entry : str
        A key of `TITLES`.

    Returns
    -------
    list of Setting
    """
    if entry == "lomarc-4":
        return []
    if entry == "lomarc-5":
        bars = [(workload, "M1", variant) for variant in HYPERTHREADED for workload in WORKLOADS]
    elif entry == "lomarc-9":
        bars = [("W1", mix, variant) for mix in ("M1", "M2", "M3") for variant in VARIANTS]
    else:
        bars = [(workload, "M1", variant) for workload in WORKLOADS for variant in VARIANTS]
    return [Setting(reading, *bar) for reading in READINGS for bar in bars]


def report_lomarc(entry: str, runs: LomarcRuns) -> Report:
    """Return a table or figure, ours beside what is published of it, with its conclusions.

    Parameters
    ----------
    entry : str
        A key of `TITLES`.
    runs : LomarcRuns

    Returns
    -------
    Report
    """
    title, source = TITLES[entry]
    points = runs.points(settings_of(entry))
    views = {reading: View(points, reading) for reading in READINGS}
    make: dict[str, Callable[[], Sequence[Section]]] = {
        "lomarc-4": lambda: _loads(runs),
        "lomarc-5": lambda: [_table_5(reading, view) for reading, view in views.items()],
    }
    sections = make[entry]() if entry in make else _bars(entry, views)
    notes = [f"{runs.jobs:,} jobs on {NODES} nodes; means over the seeds 1 to {len(runs.seeds)}"]
    if entry in SHOWN:
        notes.append("the published figures are bars without numbers; the cuts against PSS are those of the text")
        notes.append('readings of the slowdown formula: docs/lomarc.md, "Slowdown"')
    if entry == "lomarc-4":
        notes += _about_loads()
    return Report(
        id=entry,
        title=title,
        source=source,
        sections=tuple(sections),
        conclusions=judge(entry, points, tuple(READINGS)),
        data={"runs": _records(runs, entry)} if entry in SHOWN else {},
        notes=tuple(notes),
    )


def _loads(runs: LomarcRuns) -> list[Section]:
    """Return Table 4: the published load beside readings of its formula, and all as multiples of workload 1."""
    headings, columns = ("workload", "α"), ("r n / (P a)", "all work offered", "with the geometric mean gap")
    sections = []
    for weeks in dict.fromkeys(reading.weeks for reading in READINGS.values()):
        loads = {name: _mean_load(runs, name, weeks) for name in WORKLOADS}
        kind = "as the model has it" if weeks is None else f"W1 in {weeks:g} weeks"
        for title, base in (("Load", None), ("Load as a multiple of that of W1", "W1")):
            unit, own = (LOADS[base], loads[base]) if base else (1.0, np.ones(len(columns)))
            rows = [
                Row(
                    (name, f"{ALPHAS[name]:g}"),
                    tuple(
                        Value(published=LOADS[name] / unit, ours=float(one), decimals=2) for one in loads[name] / own
                    ),
                )
                for name in WORKLOADS
            ]
            sections.append(Section(title=f"{title}, {kind}", headings=headings, columns=columns, rows=tuple(rows)))
    return sections


def _mean_load(runs: LomarcRuns, name: str, weeks: float | None) -> FloatArray:
    loads = [load_of(runs.workload(seed, name, "M1", weeks), NODES) for seed in runs.seeds]
    return np.asarray(np.mean(loads, axis=0), np.float64)


def _about_loads() -> list[str]:
    growth = (
        "the published loads grow as exp(b Δα), b = 0.4871 of the model (1 : 1.22 : 1.98): a is the mean of the "
        "logarithm of the gaps, taken back, and the alphas say all there is to say of the three workloads"
    )
    size = (
        "no reading of r, n and P gives 10.6 itself; with arithmetic means the load of W1 and W2 is below 1, as the "
        "published makespans ask for (under W1 L-R shortens it by 5% only)"
    )
    return [growth, size]


def _table_5(reading: str, view: View) -> Section:
    rows = []
    for (variant, workload), published in TABLE_5.items():
        own = [*view.candidates(variant, workload).tolist(), view.selected(variant, workload)]
        values = tuple(Value(published=a, ours=b, decimals=1) for a, b in zip(published, own, strict=True))
        rows.append(Row((variant, workload), values))
    assert len(COLUMNS) + 1 == len(TABLE_5_HEADINGS)
    return Section(
        title=f"Averages over the searches among the waiting jobs: {reading}",
        headings=("variant", "workload"),
        columns=TABLE_5_HEADINGS,
        rows=tuple(rows),
        layout=EACH,
    )


def _bars(entry: str, views: dict[str, View]) -> list[Section]:
    """Return the bars of a figure with their intervals, and the published cuts beside ours."""
    places = [("W1", "M2"), ("W1", "M3")] if entry == "lomarc-9" else [(workload, "M1") for workload in WORKLOADS]
    sections = []
    for quantity in SHOWN[entry]:
        name, decimals = QUANTITIES[quantity]
        for reading, view in views.items():
            rows = [_bar(view, quantity, decimals, place, variant) for place in places for variant in VARIANTS]
            columns = ("mean", "low", "high", "against PSS [%]")
            sections.append(
                Section(
                    title=f"{name}, {reading}; 95% interval of the mean",
                    headings=("workload", "variant"),
                    columns=columns,
                    rows=tuple(rows),
                    layout=OURS,
                )
            )
            published = _published(entry, quantity, view)
            if published:
                headings = ("workload", "variant")
                title = f"{name}, change against PSS in per cent, {reading}"
                sections.append(Section(title=title, headings=headings, columns=("ours",), rows=tuple(published)))
    return sections


def _bar(view: View, quantity: str, decimals: int, place: tuple[str, str], variant: str) -> Row:
    workload, mix = place
    ends = mean_interval(view.values(quantity, variant, workload, mix))
    change = -view.cut(quantity, variant, workload, mix)
    values = [*(Value(ours=end, decimals=decimals) for end in ends), Value(ours=change, decimals=1)]
    return Row((workload if mix == "M1" else f"{workload} {mix}", variant), tuple(values))


def _published(entry: str, quantity: str, view: View) -> list[Row]:
    """Return the changes against PSS that the text gives, beside ours."""
    if entry == "lomarc-9":
        own = -view.cut(quantity, "L-N", "W1", "M2")
        return [Row(("W1 M2", "L-N"), (Value(published=-M2_CUTS[quantity], ours=own, decimals=1),))]
    tables = {"response_s": RESPONSE_CUT, "relative": RELATIVE_CUT, "makespan_s": MAKESPAN_CUT}
    changes = {key: -cut for key, cut in tables.get(quantity, {}).items()}
    if quantity == "efficiency":
        changes = dict(EFFICIENCY_GAIN)
    return [
        Row((workload, variant), (Value(published=change, ours=-view.cut(quantity, variant, workload), decimals=1),))
        for (variant, workload), change in changes.items()
    ]


def _records(runs: LomarcRuns, entry: str) -> list[Record]:
    """Return every simulation of a figure as a line."""
    return [
        {**setting._asdict(), "seed": seed, **{name: getattr(point, name) for name in QUANTITIES}}
        for setting, points in runs.points(settings_of(entry)).items()
        for seed, point in zip(runs.seeds, points, strict=True)
    ]
