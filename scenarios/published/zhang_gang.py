"""Figures 11 to 25 and Table 1 of Zhang et al., recomputed: what is printed of the curves, and beside them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gridweave.scenarios.published.report import EACH, OURS, Findings, Record, Row, Section, Value, our_values
from gridweave.scenarios.published.study import judge, printed
from gridweave.scenarios.published.zhang import LARGE_SHARE, NODES, RUN_FACTORS
from gridweave.scenarios.published.zhang_gang_checks import ACCEPTABLE, CHECKS, check_24, gains_pct
from gridweave.scenarios.published.zhang_gang_curves import (
    GRID,
    LINES,
    MOVE_COSTS_S,
    QUANTITIES,
    READINGS,
    SHOWN,
    TASKS,
    GangCurves,
    GangRuns,
    curves_of,
    seven,
    with_moves,
)
from gridweave.scenarios.sweep.tables import mean_interval


def report(table: str, runs: GangRuns) -> Findings:
    """Recompute a figure, or Table 1."""
    if table == "zhang-24":
        return _report_24(runs, _notes(runs))
    curves = curves_of(table, runs)
    sections = [_section(table, quantity, curves) for quantity in SHOWN[table]]
    return Findings(
        sections=(*_published_sections(table, curves), *sections),
        conclusions=judge(table, CHECKS[table], curves),
        data={"curves": [record for reading, one in curves.items() for record in _records(table, reading, one)]},
        notes=_notes(runs),
    )


def _notes(runs: GangRuns) -> tuple[str, ...]:
    """Say what the workloads are."""
    count = len(runs.seeds)
    return (
        f"{NODES} nodes, {runs.jobs:,} jobs of a model fitted to CTC-SP2 with {LARGE_SHARE:.0%} large jobs",
        f"Mean of {count} baseline workload{'s' if count > 1 else ''}",
        "Curves are read at equal utilisation; a dash: not reached",
    )


def _section(table: str, quantity: str, curves: Mapping[str, GangCurves]) -> Section:
    """Return a quantity as a table: lines down, utilisations across."""
    name, decimals = QUANTITIES[quantity]
    rows = []
    for reading, found in curves.items():
        for label, line in LINES[table].items():
            if line.policy.backfill != "none" or reading == next(iter(READINGS)):
                cells = our_values(*(found[line].at(quantity, rho) for rho in GRID), decimals=decimals)
                rows.append(Row((reading, label), (*cells, *our_values(100 * found[line].highest, decimals=1))))
    columns = (*(f"{rho:.0%}" for rho in GRID), "highest [%]")
    return Section(f"{name} at a utilisation", ("reading", ""), columns, tuple(rows), OURS)


def _records(table: str, reading: str, curves: GangCurves) -> list[Record]:
    """Return all points of all curves, with the half widths of their 95% intervals, for a file."""
    records: list[Record] = []
    for label, line in LINES[table].items():
        for place, factor in enumerate(RUN_FACTORS):
            point: Record = {"reading": reading, "line": label, "run_factor": factor}
            for name, values in curves[line].values.items():
                mean, low, _ = mean_interval(values[place].tolist())
                point[name] = mean
                point[f"{name}_half_width"] = None if np.isnan(low) else mean - low
            records.append(point)
    return records


def _published_sections(table: str, curves: Mapping[str, GangCurves]) -> tuple[Section, ...]:
    """Return the numbers that stand in the text or in Table 1, beside ours."""
    if table == "zhang-table1":
        return tuple(_table_1(reading, one) for reading, one in curves.items())
    if table == "zhang-15":
        return (_acceptable(curves),)
    return ()


def _table_1(reading: str, curves: GangCurves) -> Section:
    rows = []
    for place, row in enumerate(printed("zhang-table1")):
        values = []
        for name, line in LINES["zhang-table1"].items():
            key = name.lower()
            rho, slowdown = (curves[line].mean(what)[place] for what in ("rho", "slowdown"))
            values += [Value(published=float(row[f"{key}_rho"]), ours=float(rho), decimals=2)]
            values += [Value(published=float(row[f"{key}_slowdown"]), ours=float(slowdown), decimals=1)]
        for before, after in (("BGS", "MBGS"), ("GS", "MGS")):
            gain = gains_pct(curves, before, after)[place]
            values.append(Value(published=float(row[f"{after.lower()}_better_pct"]), ours=gain, decimals=1))
        rows.append(Row((row["workload"],), tuple(values)))
    columns = [f"{name} {what}" for name in LINES["zhang-table1"] for what in ("ρ", "s")] + [
        "MBGS better [%]",
        "MGS better [%]",
    ]
    return Section(f"Table 1, {reading}", ("workload",), tuple(columns), tuple(rows), EACH)


def _acceptable(curves: Mapping[str, GangCurves]) -> Section:
    """Return up to which utilisation a slowdown of 20 is kept (section 6.3)."""
    rows = []
    for reading, found in curves.items():
        for row in printed("zhang-slowdown-20"):
            ours = found[seven()[row["line"]]].reached("slowdown", ACCEPTABLE)
            value = Value(published=float(row["utilisation"]), ours=ours, decimals=2)
            rows.append(Row((reading, row["line"]), (value,)))
    title = f"Highest utilisation with an average slowdown of at most {ACCEPTABLE:.0f}, no cost of switches"
    return Section(title, ("reading", ""), ("utilisation",), tuple(rows), EACH)


def _report_24(runs: GangRuns, notes: tuple[str, ...]) -> Findings:
    """Recompute Figure 24: slowdown and wait by the tasks that may be moved, at workloads 2 and 5."""
    factors = RUN_FACTORS[2], RUN_FACTORS[5]
    lines = {
        (backfill, cost, tasks): with_moves(5, backfill, tasks=tasks, cost_s=cost)
        for backfill in ("none", "easy")
        for cost in MOVE_COSTS_S
        for tasks in TASKS
    }
    curves = {reading: runs.curves(reading, dict.fromkeys(lines.values()), factors) for reading in READINGS}
    sections = []
    for quantity, decimals in (("slowdown", 1), ("wait_s", 0)):
        for place, number in enumerate((2, 5)):
            rows = []
            for reading, found in curves.items():
                for backfill in ("none", "easy") if reading == next(iter(READINGS)) else ("easy",):
                    for cost in MOVE_COSTS_S:
                        numbers = [found[lines[backfill, cost, tasks]].mean(quantity)[place] for tasks in TASKS]
                        name = "MGS" if backfill == "none" else "MBGS"
                        rows.append(Row((reading, name, f"{cost} s"), our_values(*numbers, decimals=decimals)))
            columns = tuple("all" if tasks is None else f"Q = {tasks}" for tasks in TASKS)
            title = f"{quantity} at workload {number}, by the tasks that may be moved"
            sections.append(Section(title, ("reading", "", "cost"), columns, tuple(rows), OURS))
    checks = tuple(check_24(lines, what) for what in ("64", "monotonic", "30 s", "most"))
    return Findings(sections=tuple(sections), conclusions=judge("zhang-24", checks, curves), notes=notes)
