"""Recompute Figures 11 to 25 and Table 1 of Zhang et al., and check the claims about them.

Constants define what words in the paper mean here, and why. Curves are compared at equal utilisation, at the points of
`GRID`; where only one of two curves reaches a utilisation, that curve counts as better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from gridweave.scenarios.sweep.tables import mean_interval
from gridweave.scenarios.traces.text import FloatArray
from gridweave_papers.studies.report import (
    EACH,
    OURS,
    Findings,
    Record,
    Row,
    Section,
    Value,
    Verdict,
    all_hold,
    our_values,
)
from gridweave_papers.studies.study import judge, printed
from gridweave_papers.studies.zhang import GRID, LARGE_SHARE, NODES, RUN_FACTORS
from gridweave_papers.studies.zhang_gang_curves import (
    LEVELS,
    LINES,
    MOVE_COSTS_S,
    QUANTITIES,
    READINGS,
    SHOWN,
    SWITCHES,
    TASKS,
    GangCurve,
    GangCurves,
    GangRuns,
    Line,
    curves_of,
    seven,
    with_moves,
)

Check = Callable[[GangCurves], Verdict]

INSIGNIFICANT_PCT = 10.0
"""Largest change that counts as "insignificant" or "minimal"; same as for "negligible" in Figures 5 to 8."""

ALIKE_PCT = 1.0
"""Excess allowed for a curve that should never be above another: at low load all jobs start at once, and remaining
differences are due to chance."""

SATURATION_PCT = 2.75
"""Tolerance for a highest utilisation: half the distance between two workloads, as for Figure 5."""

DOUBLE = (1.5, 2.5)
"""Ratios that count as "roughly double": nearer to 2 than to 1 or 3."""

ACCEPTABLE = 20.0
"""Highest slowdown that the paper considers acceptable."""

MOST = 0.5
"""Share above which a number counts as "most of" the total."""


def _compared(
    better: GangCurve, worse: GangCurve, quantity: str, low: float, high: float
) -> tuple[int, int, list[float]]:
    """Count the utilisations at which `better` is lower, and those compared; also return the ratios of the curves."""
    held = judged = 0
    ratios = []
    for rho in (rho for rho in GRID if low <= rho <= high):
        ours, other = better.at(quantity, rho), worse.at(quantity, rho)
        if np.isnan(ours) and np.isnan(other):
            continue
        judged += 1
        held += bool(np.isnan(other) or ours <= other * (1 + ALIKE_PCT / 100))
        if not np.isnan(ours + other) and other > 0:
            ratios.append(ours / other)
    return held, judged, ratios


def below(
    pairs: Iterable[tuple[str, str]], lines: Mapping[str, Line], quantity: str, low: float = 0.0, high: float = 1.0
) -> Check:
    """Return the check that the first line of each pair is below the second at utilisations from `low` to `high`."""
    chosen = list(pairs)

    def check(curves: GangCurves) -> Verdict:
        parts = []
        for better, worse in chosen:
            held, judged, ratios = _compared(curves[lines[better]], curves[lines[worse]], quantity, low, high)
            span = f", {min(ratios):.2f} to {max(ratios):.2f} times" if ratios else ""
            parts.append((held == judged > 0, f"{better} against {worse} at {held} of {judged}{span}"))
        return all_hold(parts)

    return check


def mostly(check_pairs: Sequence[tuple[str, str]], lines: Mapping[str, Line], quantity: str) -> Check:
    """Return the check that the first line of each pair is below the second at most of the utilisations."""

    def check(curves: GangCurves) -> Verdict:
        comparisons = [_compared(curves[lines[a]], curves[lines[b]], quantity, 0, 1)[:2] for a, b in check_pairs]
        held, judged = (sum(column) for column in zip(*comparisons, strict=True))
        return Verdict(held > MOST * judged, f"at {held} of {judged}")

    return check


def alike(first: str, others: Sequence[str], lines: Mapping[str, Line], quantity: str, high: float = 1.0) -> Check:
    """Return the check that other lines hardly differ from the first line, at utilisations up to `high`."""

    def check(curves: GangCurves) -> Verdict:
        changes = _changes(curves, first, others, lines, quantity, 0.0, high)
        if not changes:
            return Verdict(False, "no utilisation is reached by all")
        worst = max(map(abs, changes))
        return Verdict(
            worst <= INSIGNIFICANT_PCT,
            f"{quantity} {min(changes):+.0f}% to {max(changes):+.0f}%; insignificant is {INSIGNIFICANT_PCT:.0f}%",
        )

    return check


def _changes(
    curves: GangCurves,
    first: str,
    others: Sequence[str],
    lines: Mapping[str, Line],
    quantity: str,
    low: float,
    high: float,
) -> list[float]:
    """Return the differences of other lines from the first line in per cent, at utilisations that both lines reach."""
    reference = curves[lines[first]]
    return [
        100 * (curves[lines[other]].at(quantity, rho) / reference.at(quantity, rho) - 1)
        for other in others
        for rho in GRID
        if low <= rho <= high and rho <= min(reference.highest, curves[lines[other]].highest)
    ]


def saturates(line: str, lines: Mapping[str, Line], published_pct: float) -> Check:
    """Return the check that the highest utilisation of a line is about the published utilisation."""

    def check(curves: GangCurves) -> Verdict:
        curve = curves[lines[line]]
        mean, low, high = mean_interval((100 * curve.values["rho"].max(axis=0)).tolist())
        interval = "" if np.isnan(low) else f" [{low:.1f}, {high:.1f}]"
        holds = abs(mean - published_pct) <= SATURATION_PCT
        return Verdict(holds, f"{line} {mean:.1f}%{interval}, published {published_pct:.0f}%")

    return check


def both(*checks: Check) -> Check:
    """Return the check that all of `checks` hold."""

    def check(curves: GangCurves) -> Verdict:
        return all_hold(
            (verdict.holds, verdict.figures) for verdict in (single_check(curves) for single_check in checks)
        )

    return check


def varies_above(lines: Mapping[str, Line]) -> Check:
    """Return the check that the slowdown varies more with the estimates from 85% utilisation on than up to 75%."""
    first, *others = lines

    def check(curves: GangCurves) -> Verdict:
        up_to = _changes(curves, first, others, lines, "slowdown", 0.0, 0.75)
        beyond = _changes(curves, first, others, lines, "slowdown", 0.85, 1.0)
        most = [max(map(abs, changes), default=float("nan")) for changes in (up_to, beyond)]
        return Verdict(most[1] > most[0], f"largest difference {most[0]:.0f}% up to 75%, {most[1]:.0f}% from 85% on")

    return check


def crosses(line: str, other: str, lines: Mapping[str, Line], published: float) -> Check:
    """Return the check that a line has a lower slowdown than another up to about the published utilisation."""

    def check(curves: GangCurves) -> Verdict:
        at = crossing(curves[lines[line]], curves[lines[other]])
        return Verdict(
            abs(100 * (at - published)) <= SATURATION_PCT,
            f"{line} is better than {other} up to {at:.1%}, published {published:.0%}",
        )

    return check


def crossing(line: GangCurve, other: GangCurve) -> float:
    """Return the lowest utilisation at which the first line has the higher slowdown or, if none, where it ends."""
    for rho in np.arange(GRID[0], 1.0, 0.001):
        ours, theirs = line.at("slowdown", rho), other.at("slowdown", rho)
        if np.isnan(ours) or ours > theirs:
            return float(rho)
    return 1.0


def _ratio(
    lines: Mapping[str, Line], pair: tuple[str, str], quantity: str, range_: tuple[float, float], high: float = 1.0
) -> Check:
    """Return the check that the mean ratio of two lines is within a range, at utilisations up to `high`."""
    line, other = pair

    def check(curves: GangCurves) -> Verdict:
        ratios = _compared(curves[lines[line]], curves[lines[other]], quantity, 0.0, high)[2]
        mean = float(np.mean(ratios)) if ratios else float("nan")
        text = f"{line} has {mean:.2f} times the {quantity} of {other} on average"
        return Verdict(range_[0] <= mean <= range_[1], f"{text}; {range_[0]:g} to {range_[1]:g} was expected")

    return check


def _large_gain_more(curves: GangCurves) -> Verdict:
    """Check that BGS shortens the waits of large jobs more than the waits of small jobs (Figure 19)."""
    lines = LINES["zhang-19"]
    gains = {
        kind: [
            curves[lines["BF"]].at(f"{kind}_wait_s", rho) - curves[lines["BGS-5"]].at(f"{kind}_wait_s", rho)
            for rho in GRID
        ]
        for kind in ("small", "large")
    }
    more = [large > small for small, large in zip(gains["small"], gains["large"], strict=True)]
    return Verdict(all(more), f"at {sum(more)} of {len(more)}: {np.nanmin(gains['large']):,.0f} s and more shorter")


def _small_before_large(name: str, less: str, more: str) -> Check:
    """Return the check that, under a policy, one class of jobs has a lower slowdown than another (Figure 19)."""

    def check(curves: GangCurves) -> Verdict:
        curve = curves[LINES["zhang-19"][name]]
        held = [curve.at(f"{less}_slowdown", rho) < curve.at(f"{more}_slowdown", rho) for rho in GRID]
        reached = sum(rho <= curve.highest for rho in GRID)
        return Verdict(sum(held) == reached, f"{name}: {less} below {more} at {sum(held)} of {reached}")

    return check


def _loss_of_bf_falls(curves: GangCurves) -> Verdict:
    """Check that the loss of capacity of BF decreases beyond about 83% (Figure 20)."""
    curve = curves[seven()["BF"]]
    peak = float(curve.rho[int(curve.mean("loss").argmax())])
    return Verdict(abs(100 * (peak - 0.83)) <= 2 * SATURATION_PCT, f"it is highest at {peak:.0%}, published 83%")


def _accepts(scheduling: str, published: float) -> Check:
    """Return the check that BGS-5 sustains the highest utilisation at a slowdown of at most 20 (Figure 21)."""

    def check(curves: GangCurves) -> Verdict:
        lines = {name: line for name, line in seven(0, scheduling).items() if name != "BF"}
        reached = {name: curves[line].reached("slowdown", ACCEPTABLE) for name, line in lines.items()}
        best = max(reached, key=lambda name: np.nan_to_num(reached[name], nan=-1.0))
        at = reached[best]
        near = abs(100 * (at - published)) <= SATURATION_PCT
        return Verdict(best == "BGS-5" and near, f"{best} goes farthest, to {at:.1%}; published BGS-5, {published:.0%}")

    return check


def _fill_has_most(curves: GangCurves) -> Verdict:
    """Check that FillMatrix-2 contributes more than the subsequent CollapseMatrix-2 (Figure 23)."""
    first, second, third = (curves[line] for line in LINES["zhang-23"].values())
    rhos = [rho for rho in GRID if rho <= first.highest]
    slowdowns = [[curve.at("slowdown", rho) for rho in rhos] for curve in (first, second, third)]
    share = [(a - b) / (a - c) for a, b, c in zip(*slowdowns, strict=True) if a > c]
    mean = float(np.mean(share)) if share else float("nan")
    return Verdict(mean > MOST, f"FillMatrix-2 contributes {mean:.0%} on average")


_MIGRATIONS = (("BGS", "MBGS"), ("GS", "MGS"))
"""The pairs of policies in Table 1, without and with migration."""


def gains_pct(curves: GangCurves, before: str, after: str) -> list[float]:
    """Return the reduction in slowdown due to migration, in per cent, at each of the nine workloads (Table 1)."""
    lines = LINES["zhang-table1"]
    old, new = curves[lines[before]].mean("slowdown"), curves[lines[after]].mean("slowdown")
    gains: list[float] = (100 * (1 - new / old)).tolist()
    return gains


def _gains_throughout(curves: GangCurves) -> Verdict:
    gains = {after: gains_pct(curves, before, after) for before, after in _MIGRATIONS}
    words = "; ".join(f"{name} {min(series):.0f}% to {max(series):.0f}% lower" for name, series in gains.items())
    return Verdict(all(gain > 0 for series in gains.values() for gain in series), words)


def _gains_peak_between(curves: GangCurves) -> Verdict:
    lines, parts = LINES["zhang-table1"], []
    for before, after in _MIGRATIONS:
        gains, rho = np.array(gains_pct(curves, before, after)), curves[lines[before]].rho
        inside = (rho >= 0.70) & (rho <= 0.90)
        if inside.all() or not inside.any():
            return Verdict(False, f"{before} is not both between 70 and 90% and outside")
        most, rest = float(gains[inside].mean()), float(gains[~inside].mean())
        parts.append((most > rest, f"{after} {most:.0f}% between 70 and 90%, {rest:.0f}% outside"))
    return all_hold(parts)


def _gains_of_backfilling_less(curves: GangCurves) -> Verdict:
    less = [a < b for a, b in zip(gains_pct(curves, "BGS", "MBGS"), gains_pct(curves, "GS", "MGS"), strict=True)]
    return Verdict(all(less), f"at {sum(less)} of {len(less)} workloads")


def _short_jobs_win(curves: GangCurves) -> Verdict:
    """Check that BGS is far better than MGS for short jobs, and only a little worse for long jobs, at workload 5."""
    lines = LINES["zhang-25"]
    place = RUN_FACTORS.index(1.5)
    values = {
        name: [float(curves[lines[name]].mean(f"{kind}_slowdown")[place]) for kind in ("short", "long")]
        for name in ("BGS", "MGS")
    }
    short, long = (values["MGS"][k] / values["BGS"][k] for k in (0, 1))
    bgs, mgs = values["BGS"], values["MGS"]
    words = f"short jobs {bgs[0]:.1f} against {mgs[0]:.1f}, long ones {bgs[1]:.1f} against {mgs[1]:.1f}"
    return Verdict(short > 2 and 0.5 < long < 1.0, f"{words}; published 18.9 and 104.8, 4.8 and 4.1")


_SEVEN = {switch: seven(switch) for switch in SWITCHES}
_ALL_SEVEN = {
    (f"{name} at {switch:.0%}" if name != "BF" else name): line
    for switch, lines in _SEVEN.items()
    for name, line in lines.items()
}
_COMPONENTS = [(f"BGS-{mpl}", other) for mpl in LEVELS for other in ("BF", f"GS-{mpl}")]
_LEVELS_UP = [("BGS-3", "BGS-2"), ("BGS-5", "BGS-3")]
_BGS_GS = [(f"BGS-{mpl} at {one:.0%}", f"GS-{mpl} at {one:.0%}") for one in SWITCHES for mpl in LEVELS]
_CHEAP = [(f"BGS-{mpl} at {one:.0%}", "BF") for one in SWITCHES[:2] for mpl in LEVELS]
_L0, _L11, _L12, _L21 = _SEVEN[0.0], LINES["zhang-11"], LINES["zhang-12"], LINES["zhang-21"]
_ONE, _TWO, _THREE = _L11
_L25, _L1 = LINES["zhang-25"], LINES["zhang-table1"]
_DISCRETE = [("BF", f"{kind}-{mpl}, discrete") for kind in ("GS", "BGS") for mpl in LEVELS[:2]]
_DISCRETE.append(("BF", "GS-5, discrete"))
_BEST, _WORST = ([("MBGS", one) for one in ("GS", "BGS", "MGS")], [(one, "GS") for one in ("BGS", "MGS", "MBGS")])
_ALL_THREE = ("loss", "slowdown", "wait_s")
_ESTIMATES = {table: list(LINES[table]) for table in ("zhang-13", "zhang-14")}


def _about_estimates(table: str) -> tuple[Check, ...]:
    lines, (first, *others) = LINES[table], _ESTIMATES[table]
    return (
        alike(first, others, lines, "wait_s"),
        alike(first, others, lines, "slowdown", 0.75),
        varies_above(lines),
    )


CHECKS: Mapping[str, Sequence[Check]] = {
    "zhang-11": (
        both(below([(_TWO, _ONE)], _L11, "slowdown"), below([(_TWO, _ONE)], _L11, "wait_s")),
        alike(_TWO, [_THREE], _L11, "slowdown"),
    ),
    "zhang-12": (alike(_ONE, [_TWO, _THREE], _L12, "slowdown"),),
    "zhang-13": _about_estimates("zhang-13"),
    "zhang-14": _about_estimates("zhang-14"),
    "zhang-15": (
        below([("BF", "GS-2"), ("BF", "GS-3")], _L0, "slowdown"),
        below([("BF", "GS-5")], _L0, "slowdown", 0.65),
        below(_COMPONENTS, _L0, "slowdown"),
        below(_LEVELS_UP, _L0, "slowdown"),
        below(_BGS_GS, _ALL_SEVEN, "slowdown"),
        below(_CHEAP, _ALL_SEVEN, "slowdown"),
        both(saturates("BGS-5 at 2%", _ALL_SEVEN, 93), saturates("BF", _ALL_SEVEN, 95)),
        crosses("BGS-5 at 2%", "BF", _ALL_SEVEN, 0.92),
        crosses("BGS-5 at 5%", "BF", _ALL_SEVEN, 0.83),
    ),
    "zhang-16": (
        below([("BF", f"GS-{mpl}") for mpl in LEVELS], _L0, "slowdown_sd"),
        mostly(_LEVELS_UP, _L0, "slowdown_sd"),
    ),
    "zhang-17": (
        both(saturates("GS-5", _L0, 84), saturates("GS-3", _L0, 79)),
        both(saturates("GS-3 at 5%", _ALL_SEVEN, 73), saturates("GS-5 at 5%", _ALL_SEVEN, 75)),
        below([("BF", f"GS-{mpl}") for mpl in LEVELS], _L0, "wait_s", 0.72),
        below(_COMPONENTS, _L0, "wait_s"),
        below(_LEVELS_UP, _L0, "wait_s"),
    ),
    "zhang-18": (
        below([("BF", f"GS-{mpl}") for mpl in LEVELS], _L0, "wait_sd_s", 0.68),
        mostly(_LEVELS_UP, _L0, "wait_sd_s"),
    ),
    "zhang-19": (
        both(*(below([("BGS-5", "BF")], LINES["zhang-19"], f"{kind}_slowdown") for kind in ("large", "small"))),
        both(_small_before_large("BGS-5", "small", "large"), _small_before_large("BF", "large", "small")),
        _large_gain_more,
    ),
    "zhang-20": (
        both(saturates("GS-2", _L0, 82), saturates("GS-5", _L0, 87)),
        both(*(saturates(name, _L0, 95) for name in ("BF", "BGS-2", "BGS-3", "BGS-5"))),
        below(_COMPONENTS, _L0, "loss"),
        below(_LEVELS_UP, _L0, "loss"),
        _loss_of_bf_falls,
    ),
    "zhang-21": (
        below(_DISCRETE, _L21, "slowdown", high=0.82),
        below([("BGS-5, discrete", "BF")], _L21, "slowdown", high=0.82),
        _ratio(_L21, ("BGS-1, discrete", "BF"), "slowdown", DOUBLE, 0.80),
        both(_accepts("discrete", 0.79), _accepts("continuous", 0.88)),
    ),
    "zhang-23": (_fill_has_most,),
    "zhang-25": (
        both(*(below(_BEST, _L25, what) for what in _ALL_THREE)),
        both(*(below(_WORST, _L25, what) for what in _ALL_THREE)),
        below([("MGS", "BGS")], _L25, "loss"),
        both(saturates("MGS", _L25, 98), saturates("BGS", _L25, 96)),
        below([("BGS", "MGS")], _L25, "wait_s"),
        _ratio(_L25, ("MGS", "BGS"), "wait_s", (1.5, 2.0)),
        below([("BGS", "MGS")], _L25, "slowdown"),
        _short_jobs_win,
        _ratio(_L25, ("BGS", "MBGS"), "wait_s", (2.0, 3.0)),
        _ratio(_L25, ("BGS", "MBGS"), "slowdown", (1.5, 2.0)),
    ),
    "zhang-table1": (
        _gains_throughout,
        _gains_peak_between,
        _gains_of_backfilling_less,
        both(saturates("GS", _L1, 85), saturates("MGS", _L1, 94)),
        both(saturates("BGS", _L1, 95), saturates("MBGS", _L1, 97)),
    ),
}
"""Checks of the claims about each figure, in the order of ``data/claims.csv``."""


def check_24(lines: Mapping[tuple[str, int, int | None], Line], what: str) -> Check:
    """Return a check of Figure 24 for both workloads, GS and BGS, and all costs (or only a cost of 30 s)."""

    def check(curves: GangCurves) -> Verdict:
        judgements = []
        for backfill in ("none", "easy"):
            for cost in MOVE_COSTS_S if what != "30 s" else (30,):
                table = np.array([curves[lines[backfill, cost, tasks]].mean("slowdown") for tasks in TASKS])
                judgements += [_judged_24(by_tasks, what) for by_tasks in table.T]
        held = [holds for holds, _ in judgements]
        worst = max((pct for _, pct in judgements), default=0)
        words = {
            "64": f"with 64 tasks the slowdown changes by {worst:+.0f}% at the least",
            "monotonic": f"the worst step is {worst:+.0f}%",
            "30 s": f"with 30 s the slowdown changes by {worst:+.0f}% at the least",
            "most": f"64 tasks have {-worst:.0f}% of the benefit of all at the least",
        }
        return Verdict(all(held), f"in {sum(held)} of {len(held)} cases; {words[what]}")

    return check


def _judged_24(by_tasks: FloatArray, what: str) -> tuple[bool, float]:
    """Return whether a claim holds for the slowdowns at one load, by `TASKS`, and the margin in per cent."""
    none, at_64, everything = by_tasks[0], by_tasks[TASKS.index(64)], by_tasks[-1]
    if what == "monotonic":
        steps = np.diff(by_tasks) / by_tasks[:-1] * 100
        return bool((steps <= ALIKE_PCT).all()), float(steps.max())
    if what == "most":
        gain = (none - at_64) / (none - everything)
        return bool(gain > MOST), -100 * float(gain)
    change = 100 * float((at_64 if what == "64" else everything) / none - 1)
    return change < (-INSIGNIFICANT_PCT if what == "64" else 0), change


def report(table: str, runs: GangRuns) -> Findings:
    """Recompute a figure or Table 1, and check the published claims."""
    if table == "zhang-24":
        return _report_24(runs, _notes(runs))
    curves = curves_of(table, runs)
    sections = [_section(table, quantity, curves) for quantity in SHOWN[table]]
    return Findings(
        sections=(*_published_sections(table, curves), *sections),
        conclusions=judge(table, CHECKS[table], curves),
        data={
            "curves": [record for reading, by_line in curves.items() for record in _records(table, reading, by_line)]
        },
        notes=_notes(runs),
    )


def _notes(runs: GangRuns) -> tuple[str, ...]:
    """Return notes on the workloads."""
    count = len(runs.seeds)
    return (
        f"{NODES} nodes, {runs.jobs:,} jobs of a model fitted to CTC-SP2 with {LARGE_SHARE:.0%} large jobs",
        f"Mean of {count} baseline workload{'s' if count > 1 else ''}",
        "Curves are read at equal utilisation; a dash: not reached",
    )


def _section(table: str, quantity: str, curves: Mapping[str, GangCurves]) -> Section:
    """Format a quantity as a table with a row per line and a column per utilisation."""
    name, decimals = QUANTITIES[quantity]
    rows = []
    for reading, by_line in curves.items():
        for label, line in LINES[table].items():
            if line.policy.backfill != "none" or reading == next(iter(READINGS)):
                cells = our_values(*(by_line[line].at(quantity, rho) for rho in GRID), decimals=decimals)
                rows.append(Row((reading, label), (*cells, *our_values(100 * by_line[line].highest, decimals=1))))
    columns = (*(f"{rho:.0%}" for rho in GRID), "highest [%]")
    return Section(f"{name} at a utilisation", ("reading", ""), columns, tuple(rows), OURS)


def _records(table: str, reading: str, curves: GangCurves) -> list[Record]:
    """Return one record per point of every curve, with the half width of its 95% interval."""
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
    """Compare the published numbers in the text or in Table 1 with ours."""
    if table == "zhang-table1":
        return tuple(_table_1(reading, by_line) for reading, by_line in curves.items())
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
            values += [Value.of(row[f"{key}_rho"], float(rho)), Value.of(row[f"{key}_slowdown"], float(slowdown))]
        for before, after in _MIGRATIONS:
            gain = gains_pct(curves, before, after)[place]
            values.append(Value.of(row[f"{after.lower()}_better_pct"], gain))
        rows.append(Row((row["workload"],), tuple(values)))
    columns = [f"{name} {what}" for name in LINES["zhang-table1"] for what in ("ρ", "s")] + [
        "MBGS better [%]",
        "MGS better [%]",
    ]
    return Section(f"Table 1, {reading}", ("workload",), tuple(columns), tuple(rows), EACH)


def _acceptable(curves: Mapping[str, GangCurves]) -> Section:
    """Return the highest utilisation with a slowdown of at most 20 (section 6.3)."""
    rows = []
    for reading, by_line in curves.items():
        for row in printed("zhang-slowdown-20"):
            ours = by_line[seven()[row["line"]]].reached("slowdown", ACCEPTABLE)
            rows.append(Row((reading, row["line"]), (Value.of(row["utilisation"], ours),)))
    title = f"Highest utilisation with an average slowdown of at most {ACCEPTABLE:.0f}, no cost of switches"
    return Section(title, ("reading", ""), ("utilisation",), tuple(rows), EACH)


def _report_24(runs: GangRuns, notes: tuple[str, ...]) -> Findings:
    """Recompute Figure 24: slowdown and wait by the number of tasks that can migrate, at workloads 2 and 5."""
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
            for reading, by_line in curves.items():
                for backfill in ("none", "easy") if reading == next(iter(READINGS)) else ("easy",):
                    for cost in MOVE_COSTS_S:
                        own = [float(by_line[lines[backfill, cost, count]].mean(quantity)[place]) for count in TASKS]
                        name = "MGS" if backfill == "none" else "MBGS"
                        rows.append(Row((reading, name, f"{cost} s"), our_values(*own, decimals=decimals)))
            columns = tuple("all" if tasks is None else f"Q = {tasks}" for tasks in TASKS)
            title = f"{quantity} at workload {number}, by the tasks that may be moved"
            sections.append(Section(title, ("reading", "", "cost"), columns, tuple(rows), OURS))
    checks = tuple(check_24(lines, what) for what in ("64", "monotonic", "30 s", "most"))
    return Findings(sections=tuple(sections), conclusions=judge("zhang-24", checks, curves), notes=notes)
