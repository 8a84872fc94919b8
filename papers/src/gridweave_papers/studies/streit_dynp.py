"""Streit's thesis, section 5.1: the self-tuning scheduler on the original traces, Tables 5.2 to 5.9 and A.9 to A.12.

Beyond the thesis: whether the decider or the candidates matter more, and the gain from perfect hindsight.

Each number is compared with two readings of the points that the thesis leaves open (docs/dynp.md, "The two readings").
The numbers are transcribed as printed. Two misprints are kept: compared with Table 5.2, the rows half and full
of KTH, LANL and SDSC are swapped in Table 5.5; FCFS and SJF are swapped in Table 5.9 (the columns ``fcfs`` and ``sjf``
of CTC in ``streit-5.4.csv``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from gridweave.scenarios.results.metrics import compute_by_class
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.estimates import perfect
from gridweave.site.disciplines.dynp.figures import TuningUse
from gridweave.site.disciplines.dynp.policy import METRICS, READINGS, THREE, DynPPolicy
from gridweave_papers.studies.report import OURS, Findings, Row, Section, Value, Verdict, our_values
from gridweave_papers.studies.streit import LEFT_OUT, TRACES, ThesisRuns
from gridweave_papers.studies.study import MS_PER_WEEK, Study, judge, printed

SLACKNESS = (0, 2, 4, 6, 8, 10)
TUNINGS = ("half", "full")
_FULL_CASES = 3


class TunedSetting(msgspec.Struct, frozen=True):
    """A simulation: the trace, how the site tunes itself, and whether estimates are perfect."""

    trace: str
    policy: DynPPolicy
    perfect: bool = False


class TuningRuns:
    """The simulations of chapter 5, each run once.

    Parameters
    ----------
    runs : ThesisRuns
        The available traces.
    """

    def __init__(self, runs: ThesisRuns) -> None:
        self.runs = runs
        self._results: Study[TunedSetting, SimulationResult] = Study(self._simulate, title="Streit, chapter 5")

    def sldwa(self, trace: str, policy: DynPPolicy) -> float | None:
        """Return the overall SLDwA of a trace; None if the trace is missing."""
        result = self.result(trace, policy)
        return None if result is None else result.metrics().sldwa

    def result(self, trace: str, policy: DynPPolicy) -> SimulationResult | None:
        """Return the simulation of a trace; None if the trace is missing."""
        return None if self.runs.jobs(trace) is None else self._results[TunedSetting(trace, policy)]

    def results(self, settings: Iterable[TunedSetting]) -> dict[TunedSetting, SimulationResult]:
        """Run the simulations of available traces in parallel, and return their results."""
        return self._results.results(setting for setting in settings if self.runs.jobs(setting.trace) is not None)

    def _simulate(self, setting: TunedSetting) -> SimulationResult:
        from gridweave.scenarios.batch.simulate import simulate

        jobs = self.runs.at_hand(setting.trace)
        workload = perfect(jobs.scheduled) if setting.perfect else jobs.scheduled
        return simulate(workload, jobs.trace.nodes, setting.policy)


def policy_of(
    decider: str, reading: str, *, tuning: str = "full", metric: str = "artww", slackness: float = 0
) -> DynPPolicy:
    """Return the policy of a decider as named in the tables: simple, advanced, sjf-preferred or fcfs-preferred."""
    preferred = decider.removesuffix("-preferred") if decider.endswith("-preferred") else None
    return DynPPolicy(
        decider="preferred" if preferred else decider,
        preferred=preferred,
        reading=reading,
        tuning=tuning,
        metric=metric,
        slackness_pct=float(slackness),
    )


def report(table: str, study: TuningRuns) -> Findings:
    """Recompute a table of `TABLES`, or the evaluation beyond the thesis (``self-tuning``)."""
    runs = study.runs
    if table == "self-tuning":
        return Findings(sections=(_beyond(study),) if runs.present() else (), missing=runs.missing())
    sections, numbers = TABLES[table](study)
    note = "The archive's cleaned logs lack 2,080 jobs of CTC, 11,535 of LANL and 13,622 of SDSC."
    return Findings(
        sections=tuple(section for section in sections if section.rows) if runs.present() else (),
        conclusions=judge(table, CHECKS[table], numbers)
        if table in CHECKS and len(runs.present()) == len(TRACES)
        else (),
        missing=runs.missing(),
        notes=(note, f"Records without an estimate: {LEFT_OUT}."),
    )


Numbers = dict[str, dict[tuple[str, ...], float]]
"""Our numbers by reading, then by labels."""

Made = tuple[list[Section], Numbers]

PrintedNumber = tuple[tuple[str, ...], str, dict[str, float | None]]
"""Labels, the published number, and our number by reading."""

Rows = list[PrintedNumber]


def both_readings(title: str, headings: tuple[str, ...], rows: Rows) -> Made:
    """Return a section that compares the published numbers with both readings, and our numbers as a dictionary."""
    numbers: Numbers = {
        reading: {labels: value for labels, _, ours in rows if (value := ours[reading]) is not None}
        for reading in READINGS
    }
    lines = (Row(labels, tuple(Value.of(text, ours[reading]) for reading in READINGS)) for labels, text, ours in rows)
    return [Section(title=title, headings=headings, columns=READINGS, rows=tuple(lines))], numbers


def by_line(
    lines: Iterable[dict[str, str]],
    names: Sequence[str],
    columns: Iterable[str],
    ours: Callable[[dict[str, str], str, str], float | None],
    *,
    suffix: str = "",
) -> Rows:
    """Return the numbers of a published table, row by row, with our numbers by row, column and reading.

    Each number is labelled by the row's entries ``names`` and the column. In the file, column names end in ``suffix``.
    """
    return [
        (
            (*(line[name] for name in names), column),
            line[f"{column}{suffix}"],
            {reading: ours(line, column, reading) for reading in READINGS},
        )
        for line in lines
        for column in columns
    ]


class _Table(NamedTuple):
    """A table with a number for each row and column; the last heading describes the columns.

    ``policy`` returns the site's policy for a row, a column and a reading.
    """

    headings: tuple[str, ...]
    columns: tuple[str, ...]
    policy: Callable[[dict[str, str], str, str], DynPPolicy]
    title: str = "SLDwA"
    number: Callable[[SimulationResult], float] = lambda result: result.metrics().sldwa


def _tuned_by(line: dict[str, str], metric: str, reading: str) -> DynPPolicy:
    return policy_of("advanced", reading, tuning=line["tuning"], metric=metric)


_BY_LINE = {
    "streit-5.2": _Table(
        ("trace", "decider", "tuning"),
        TUNINGS,
        lambda line, tuning, reading: policy_of(line["decider"], reading, tuning=tuning),
    ),
    "streit-5.5": _Table(("trace", "tuning", "metric"), tuple(METRICS), _tuned_by),
    "streit-5.6": _Table(
        ("trace", "tuning", "metric"),
        tuple(METRICS),
        _tuned_by,
        "Utilisation [%]",
        lambda result: 100 * result.metrics().util,
    ),
    "streit-5.7": _Table(
        ("trace", "estimates", "decider"),
        ("advanced", "sjf-preferred", "fcfs-preferred"),
        lambda line, decider, reading: policy_of(decider, reading),
    ),
    "streit-5.8": _Table(
        ("trace", "decider", "slackness"),
        tuple(map(str, SLACKNESS)),
        lambda line, slackness, reading: policy_of(line["decider"], reading, slackness=float(slackness)),
    ),
}


def _recomputed(table: str, study: TuningRuns) -> Made:
    """Recompute a table of `_BY_LINE`."""
    headings, columns, policy, title, number = _BY_LINE[table]
    lines = printed(table)

    def setting(line: dict[str, str], column: str, reading: str) -> TunedSetting:
        return TunedSetting(line["trace"], policy(line, column, reading), line.get("estimates") == "perfect")

    results = study.results(
        setting(line, column_name, way) for line in lines for column_name in columns for way in READINGS
    )

    def ours(line: dict[str, str], column: str, reading: str) -> float | None:
        result = results.get(setting(line, column, reading))
        return None if result is None else number(result)

    return both_readings(title, headings, by_line(lines, headings[:-1], columns, ours))


def table_5_3(study: TuningRuns) -> Made:
    """Recompute Table 5.3: how often each case of Table 4.3 occurs on SDSC, in per cent of all decisions."""
    lines = printed("streit-5.3")
    rows: Rows = []
    for decider in ("simple", "advanced"):
        total = sum(int(line[decider]) for line in lines)
        ours = {}
        for reading in READINGS:
            result = study.result("SDSC", policy_of(decider, reading))
            use = None if result is None else result.own
            ours[reading] = (
                {case: 100 * count / use.decisions for case, count in use.cases.items()}
                if isinstance(use, TuningUse)
                else {}
            )
        for line in lines:
            share = f"{100 * int(line[decider]) / total:.2f}"
            own = {way: ours[way].get(line["case"], 0.0) if ours[way] else None for way in READINGS}
            rows.append(((decider, line["case"]), share, own))
    return both_readings("Cases of Table 4.3 on SDSC, in % of all decisions", ("decider", "case"), rows)


def table_5_4(study: TuningRuns) -> Made:
    """Recompute Tables 5.4 and 5.9: switches to each policy, and jobs started under each policy, in per cent."""
    rows: Rows = []
    for line in printed("streit-5.4"):
        decisions = sum(int(line[name]) for name in ("fcfs switches", "sjf switches", "ljf switches", "no switch"))
        jobs = sum(int(line[f"{key} jobs"]) for key in ("fcfs", "sjf", "ljf"))
        own = {key: _usage(study, line["trace"], line["decider"], float(line["slackness"]), key) for key in READINGS}
        for name in ("fcfs switches", "sjf switches", "ljf switches", "fcfs jobs", "sjf jobs", "ljf jobs"):
            share = 100 * int(line[name]) / (jobs if name.endswith("jobs") else decisions)
            labels = (line["trace"], line["decider"], line["slackness"], name)
            rows.append((labels, f"{share:.2f}", {key: own[key].get(name) for key in READINGS}))
    return both_readings(
        "Use of policies, in % of all decisions or jobs", ("trace", "decider", "slackness", "of"), rows
    )


def _usage(study: TuningRuns, trace: str, decider: str, slackness: float, reading: str) -> dict[str, float]:
    result = study.result(trace, policy_of(decider, reading, slackness=slackness))
    if result is None or not isinstance(result.own, TuningUse):
        return {}
    uses = result.own.uses(0, int(result.end_ms.max()))
    jobs = sum(use.jobs for use in uses)
    shares_pct = {f"{use.policy} switches": 100 * use.switches / result.own.decisions for use in uses}
    return shares_pct | {f"{use.policy} jobs": 100 * use.jobs / jobs for use in uses}


def tables_a_9(study: TuningRuns) -> Made:
    """Recompute Tables A.9 to A.12: the SLDwA of Table 5.2 by month."""
    ours = {
        (trace, decider, tuning, reading): _monthly(study, trace, policy_of(decider, reading, tuning=tuning))
        for trace in TRACES
        for decider in ("simple", "advanced")
        for tuning in TUNINGS
        for reading in READINGS
    }
    rows: Rows = []
    for line in printed("streit-A.9"):
        for decider in ("simple", "advanced"):
            for tuning in TUNINGS:
                own = {way: ours[line["trace"], decider, tuning, way].get(line["month"]) for way in READINGS}
                rows.append(((line["trace"], line["month"], decider, tuning), line[f"{decider} {tuning}"], own))
    return both_readings("SLDwA by month", ("trace", "month", "decider", "tuning"), rows)


def _monthly(study: TuningRuns, trace: str, policy: DynPPolicy) -> dict[str, float]:
    result = study.result(trace, policy)
    if result is None:
        return {}
    jobs, schedule = study.runs.at_hand(trace), result.schedule()
    months = jobs.trace.month_clock.months(schedule[0], jobs.start_unix_s)
    return {month: metrics.sldwa for month, metrics in compute_by_class(*schedule, jobs.trace.nodes, months).items()}


CANDIDATES = (("fcfs", "sjf"), THREE, (*THREE, "saf"), (*THREE, "saf", "laf", "bfit", "wfit"))
"""Orders that differ on these traces; the other three orders do not, because the traces lack weights and priorities."""


def _beyond(study: TuningRuns) -> Section:
    """Return SLDwA by trace, for fewer and more candidates, and for the best single policy of the three.

    Also return SLDwA if the best of the three is chosen for each month or week. Each period's jobs are taken from its
    best policy's full run, so this is not a schedule, but it shows the possible gain from choosing by month or week.
    """
    rows = [Row((key,), our_values(*_sldwa_of(study, key), decimals=3)) for key in study.runs.present()]
    columns = (
        *("best of the three", *(f"dynP of {len(names)}" for names in CANDIDATES)),
        *("best by month", "best by week"),
    )
    return Section("SLDwA", ("trace",), columns, tuple(rows), OURS)


def _sldwa_of(study: TuningRuns, key: str) -> Iterator[float]:
    jobs = study.runs.at_hand(key)
    workload = jobs.scheduled
    basic = [study.runs.result(key, "planning", order) for order in THREE]
    yield min(result.metrics().sldwa for result in basic)
    tuned = (study.sldwa(key, DynPPolicy(policies=names)) for names in CANDIDATES)
    yield from (sldwa for sldwa in tuned if sldwa is not None)
    # width x response time of each job under each policy
    weighted = [workload.width * (result.end_ms - workload.submit_ms).astype(np.float64) for result in basic]
    area = float(np.sum(workload.width * workload.run_ms.astype(np.float64)))
    months = jobs.trace.month_clock.months(workload.submit_ms, jobs.start_unix_s).of_job
    for classes in (months, workload.submit_ms // MS_PER_WEEK):
        sums = [np.bincount(classes - classes.min(), weights=response_areas) for response_areas in weighted]
        yield float(np.min(sums, axis=0).sum()) / area


_Ours = dict[tuple[str, ...], float]


def _advanced_beats_simple(ours: _Ours) -> Verdict:
    gains = {key: 100 * (1 - ours[key, "advanced", "full"] / ours[key, "simple", "full"]) for key in TRACES}
    figures = ", ".join(f"{gain:+.1f}% on {key}" for key, gain in gains.items())
    return Verdict(all(gain > 1 for gain in gains.values()), f"{figures}, full tuning; at least 1% is required")


def _full_beats_half(ours: _Ours) -> Verdict:
    gains = {key: 100 * (1 - ours[key, "advanced", "full"] / ours[key, "advanced", "half"]) for key in TRACES}
    return Verdict(
        sum(gain > 0 for gain in gains.values()) >= _FULL_CASES,
        ", ".join(f"{gain:+.1f}% on {key}" for key, gain in gains.items()),
    )


def _artww_is_best(ours: _Ours) -> Verdict:
    best = {key: min(METRICS, key=lambda metric: ours[key, "full", metric]) for key in TRACES}
    return Verdict(set(best.values()) == {"artww"}, ", ".join(f"{metric} on {key}" for key, metric in best.items()))


def _makespan_fills(ours: _Ours) -> Verdict:
    best = {tuning: max(METRICS, key=lambda metric: ours["SDSC", tuning, metric]) for tuning in TUNINGS}
    figures = (f"{name}, {ours['SDSC', tuning, name]:.2f}%, with {tuning} tuning" for tuning, name in best.items())
    return Verdict(set(best.values()) == {"makespan"}, ", ".join(figures))


def _only_sdsc_differs(ours: _Ours) -> Verdict:
    spans = {}
    for key in TRACES:
        values = [value for labels, value in ours.items() if labels[0] == key]
        spans[key] = max(values) - min(values)
    figures = ", ".join(f"{span:.3f} points on {key}" for key, span in spans.items())
    return Verdict(spans["SDSC"] > 0 and all(spans[key] == 0 for key in TRACES if key != "SDSC"), figures)


def _sjf_preferred(ours: _Ours) -> Verdict:
    figures = ", ".join(
        f"{ours[key, 'keep', 'sjf-preferred']:.3f} against {ours[key, 'keep', 'fcfs-preferred']:.3f} on {key}"
        for key in TRACES
    )
    better = all(ours[key, "keep", "sjf-preferred"] < ours[key, "keep", "fcfs-preferred"] for key in TRACES)
    return Verdict(better, figures)


def _slackness_has_no_rule(ours: _Ours) -> Verdict:
    best = {key: min(SLACKNESS, key=lambda slack: ours[key, "advanced", str(slack)]) for key in TRACES}
    return Verdict(len(set(best.values())) > 1, ", ".join(f"best at {slack}% on {key}" for key, slack in best.items()))


TABLES: dict[str, Callable[[TuningRuns], Made]] = {
    **{table: partial(_recomputed, table) for table in _BY_LINE},
    "streit-5.3": table_5_3,
    "streit-5.4": table_5_4,
    "streit-A.9": tables_a_9,
}
"""Function that recomputes each table."""

CHECKS: dict[str, tuple[Callable[[_Ours], Verdict], ...]] = {
    "streit-5.2": (_advanced_beats_simple, _full_beats_half),
    "streit-5.5": (_artww_is_best,),
    "streit-5.6": (_makespan_fills, _only_sdsc_differs),
    "streit-5.7": (_sjf_preferred,),
    "streit-5.8": (_slackness_has_no_rule,),
}
"""Checks of the conclusions from each table, in the order of the rows of ``data/claims.csv``."""
