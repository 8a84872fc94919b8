"""Streit's thesis, section 5.1: the self-tuning scheduler on the original traces, Tables 5.2 to 5.9 and A.9 to A.12.

Each figure stands beside two readings of what the thesis leaves open (docs/dynp.md, "The two readings"). The numbers
are transcribed as they are printed. Two slips of print are not mended there: in Table 5.5 the lines half and full of
KTH, LANL and SDSC are exchanged against Table 5.2, and in Table 5.9 FCFS and SJF (the columns ``fcfs`` and ``sjf`` of
CTC in ``streit-5.4.csv``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from gridweave.scenarios.published.report import Findings, Row, Section, Value, Verdict
from gridweave.scenarios.published.streit import LEFT_OUT, TRACES, ThesisRuns
from gridweave.scenarios.published.study import Study, judge, printed
from gridweave.scenarios.results.metrics import compute_by_class
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.estimates import perfect
from gridweave.site.disciplines.dynp.figures import TuningUse
from gridweave.site.disciplines.dynp.policy import METRICS, READINGS, DynPPolicy

SLACKNESS = (0, 2, 4, 6, 8, 10)
TUNINGS = ("half", "full")
_FULL_CASES = 3


class TunedSetting(msgspec.Struct, frozen=True):
    """A simulation: the trace, how the site tunes itself, and whether estimates are perfect."""

    trace: str
    policy: DynPPolicy
    perfect: bool = False


class TuningRuns:
    """The simulations of chapter 5, each made once.

    Parameters
    ----------
    runs : ThesisRuns
        The traces that are at hand.
    """

    def __init__(self, runs: ThesisRuns) -> None:
        self.runs = runs
        self._results: Study[TunedSetting, SimulationResult] = Study(self._simulate, title="Streit, chapter 5")

    def sldwa(self, trace: str, policy: DynPPolicy, *, perfect: bool = False) -> float | None:
        """Return the overall SLDwA; None if the trace is not at hand."""
        result = self.result(trace, policy, perfect=perfect)
        return None if result is None else result.metrics().sldwa

    def result(self, trace: str, policy: DynPPolicy, *, perfect: bool = False) -> SimulationResult | None:
        """Return a simulation; None if the trace is not at hand."""
        return None if self.runs.jobs(trace) is None else self._results[TunedSetting(trace, policy, perfect)]

    def prepare(self, settings: Iterable[TunedSetting]) -> None:
        """Make the simulations of the traces at hand, many at a time."""
        self._results.results(one for one in settings if self.runs.jobs(one.trace) is not None)

    def _simulate(self, setting: TunedSetting) -> SimulationResult:
        from gridweave.scenarios.batch.simulate import simulate

        jobs = self.runs.at_hand(setting.trace)
        workload = perfect(jobs.scheduled) if setting.perfect else jobs.scheduled
        return simulate(workload, jobs.trace.nodes, setting.policy)


def policy_of(
    decider: str, reading: str, *, tuning: str = "full", metric: str = "artww", slackness: float = 0
) -> DynPPolicy:
    """Return a policy by what the tables call its decider: simple, advanced, sjf-preferred, fcfs-preferred."""
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
    """Recompute a table of `TABLES`."""
    runs = study.runs
    sections, found = TABLES[table](study)
    note = "The archive's cleaned logs lack 2,080 jobs of CTC, 11,535 of LANL and 13,622 of SDSC."
    return Findings(
        sections=tuple(section for section in sections if section.rows) if runs.present() else (),
        conclusions=judge(table, CHECKS[table], found)
        if table in CHECKS and len(runs.present()) == len(TRACES)
        else (),
        missing=runs.missing(),
        notes=(note, f"Records without an estimate: {LEFT_OUT}."),
    )


Numbers = dict[str, dict[tuple[str, ...], float]]
"""Reading, then what a number is of, to ours."""

Made = tuple[list[Section], Numbers]

PrintedNumber = tuple[tuple[str, ...], str, dict[str, float | None]]
"""Labels, the number as it is printed, and ours by reading."""

Rows = list[PrintedNumber]


def both_readings(title: str, headings: tuple[str, ...], rows: Rows) -> Made:
    """Return a section with both readings beside what is printed, and our numbers."""
    found: Numbers = {reading: {} for reading in READINGS}
    lines = []
    for labels, text, ours in rows:
        decimals = len(text.partition(".")[2])
        lines.append(
            Row(labels, tuple(Value(published=float(text), ours=ours[one], decimals=decimals) for one in READINGS))
        )
        for reading in READINGS:
            value = ours[reading]
            if value is not None:
                found[reading][labels] = value
    return [Section(title=title, headings=headings, columns=READINGS, rows=tuple(lines))], found


def table_5_2(study: TuningRuns) -> Made:
    """Recompute Table 5.2: simple and advanced decider, half and full tuning."""
    rows: Rows = []
    for line in printed("streit-5.2"):
        for tuning in TUNINGS:
            ours = {one: study.sldwa(line["trace"], policy_of(line["decider"], one, tuning=tuning)) for one in READINGS}
            rows.append(((line["trace"], line["decider"], tuning), line[tuning], ours))
    return both_readings("SLDwA", ("trace", "decider", "tuning"), rows)


def table_5_3(study: TuningRuns) -> Made:
    """Recompute Table 5.3: how often each case of Table 4.3 is met on SDSC, in per cent of the decisions."""
    lines = printed("streit-5.3")
    rows: Rows = []
    for decider in ("simple", "advanced"):
        total = sum(int(line[decider]) for line in lines)
        ours = {}
        for reading in READINGS:
            result = study.result("SDSC", policy_of(decider, reading))
            ours[reading] = {} if result is None or not isinstance(result.own, TuningUse) else shares_of_cases(result)
        for line in lines:
            share = f"{100 * int(line[decider]) / total:.2f}"
            own = {one: ours[one].get(line["case"], 0.0) if ours[one] else None for one in READINGS}
            rows.append(((decider, line["case"]), share, own))
    return both_readings("Cases of Table 4.3 on SDSC, in % of all decisions", ("decider", "case"), rows)


def shares_of_cases(result: SimulationResult) -> dict[str, float]:
    """Return how often each case was met, in per cent of the decisions."""
    assert isinstance(result.own, TuningUse), "a site that does not tune itself"
    return {case: 100 * count / result.own.decisions for case, count in result.own.cases.items()}


def table_5_4(study: TuningRuns) -> Made:
    """Recompute Tables 5.4 and 5.9: switches to each policy, and jobs started with it, in per cent."""
    rows: Rows = []
    for line in printed("streit-5.4"):
        decisions = sum(int(line[name]) for name in ("fcfs switches", "sjf switches", "ljf switches", "no switch"))
        jobs = sum(int(line[f"{one} jobs"]) for one in ("fcfs", "sjf", "ljf"))
        own = {one: _usage(study, line["trace"], line["decider"], float(line["slackness"]), one) for one in READINGS}
        for name in ("fcfs switches", "sjf switches", "ljf switches", "fcfs jobs", "sjf jobs", "ljf jobs"):
            share = 100 * int(line[name]) / (jobs if name.endswith("jobs") else decisions)
            labels = (line["trace"], line["decider"], line["slackness"], name)
            rows.append((labels, f"{share:.2f}", {one: own[one].get(name) for one in READINGS}))
    return both_readings(
        "Use of policies, in % of all decisions or jobs", ("trace", "decider", "slackness", "of"), rows
    )


def _usage(study: TuningRuns, trace: str, decider: str, slackness: float, reading: str) -> dict[str, float]:
    result = study.result(trace, policy_of(decider, reading, slackness=slackness))
    if result is None or not isinstance(result.own, TuningUse):
        return {}
    uses = result.own.uses(0, int(result.end_ms.max()))
    jobs = sum(use.jobs for use in uses)
    found = {f"{use.policy} switches": 100 * use.switches / result.own.decisions for use in uses}
    return found | {f"{use.policy} jobs": 100 * use.jobs / jobs for use in uses}


def table_5_5(study: TuningRuns) -> Made:
    """Recompute Table 5.5: self-tuning metrics under the advanced decider."""
    _make_metrics(study)
    rows: Rows = []
    for line in printed("streit-5.5"):
        for metric in METRICS:
            ours = {
                one: study.sldwa(line["trace"], policy_of("advanced", one, tuning=line["tuning"], metric=metric))
                for one in READINGS
            }
            rows.append(((line["trace"], line["tuning"], metric), line[metric], ours))
    return both_readings("SLDwA", ("trace", "tuning", "metric"), rows)


def _make_metrics(study: TuningRuns) -> None:
    """Make the simulations of Tables 5.5 and 5.6, many at a time."""
    study.prepare(
        TunedSetting(trace, policy_of("advanced", reading, tuning=tuning, metric=metric))
        for trace in TRACES
        for tuning in TUNINGS
        for metric in METRICS
        for reading in READINGS
    )


def table_5_6(study: TuningRuns) -> Made:
    """Recompute Table 5.6: utilisation by self-tuning metric under the advanced decider."""
    _make_metrics(study)
    rows: Rows = []
    for line in printed("streit-5.6"):
        for metric in METRICS:
            ours = {}
            for one in READINGS:
                policy = policy_of("advanced", one, tuning=line["tuning"], metric=metric)
                result = study.result(line["trace"], policy)
                ours[one] = None if result is None else 100 * result.metrics().util
            rows.append(((line["trace"], line["tuning"], metric), line[metric], ours))
    return both_readings("Utilisation [%]", ("trace", "tuning", "metric"), rows)


def table_5_7(study: TuningRuns) -> Made:
    """Recompute Table 5.7: the preferred deciders, also with perfect estimates."""
    rows: Rows = []
    for line in printed("streit-5.7"):
        for decider in ("advanced", "sjf-preferred", "fcfs-preferred"):
            is_perfect = line["estimates"] == "perfect"
            ours = {one: study.sldwa(line["trace"], policy_of(decider, one), perfect=is_perfect) for one in READINGS}
            rows.append(((line["trace"], line["estimates"], decider), line[decider], ours))
    return both_readings("SLDwA", ("trace", "estimates", "decider"), rows)


def table_5_8(study: TuningRuns) -> Made:
    """Recompute Table 5.8: slackness."""
    rows: Rows = []
    for line in printed("streit-5.8"):
        for slackness in SLACKNESS:
            ours = {
                one: study.sldwa(line["trace"], policy_of(line["decider"], one, slackness=slackness))
                for one in READINGS
            }
            rows.append(((line["trace"], line["decider"], str(slackness)), line[str(slackness)], ours))
    return both_readings("SLDwA", ("trace", "decider", "slackness"), rows)


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
                own = {one: ours[line["trace"], decider, tuning, one].get(line["month"]) for one in READINGS}
                rows.append(((line["trace"], line["month"], decider, tuning), line[f"{decider} {tuning}"], own))
    return both_readings("SLDwA by month", ("trace", "month", "decider", "tuning"), rows)


def _monthly(study: TuningRuns, trace: str, policy: DynPPolicy) -> dict[str, float]:
    result = study.result(trace, policy)
    if result is None:
        return {}
    jobs, schedule = study.runs.at_hand(trace), result.schedule()
    months = jobs.trace.month_clock.months(schedule[0], jobs.start_unix_s)
    return {month: one.sldwa for month, one in compute_by_class(*schedule, jobs.trace.nodes, months).items()}


_Check = Callable[[dict[tuple[str, ...], float]], Verdict]


def _advanced_beats_simple(ours: dict[tuple[str, ...], float]) -> Verdict:
    gains = {key: 100 * (1 - ours[key, "advanced", "full"] / ours[key, "simple", "full"]) for key in TRACES}
    figures = ", ".join(f"{gain:+.1f}% on {key}" for key, gain in gains.items())
    return Verdict(all(gain > 1 for gain in gains.values()), f"{figures}, full tuning; at least 1% is asked for")


def _full_beats_half(ours: dict[tuple[str, ...], float]) -> Verdict:
    gains = {key: 100 * (1 - ours[key, "advanced", "full"] / ours[key, "advanced", "half"]) for key in TRACES}
    return Verdict(
        sum(gain > 0 for gain in gains.values()) >= _FULL_CASES,
        ", ".join(f"{gain:+.1f}% on {key}" for key, gain in gains.items()),
    )


def _artww_is_best(ours: dict[tuple[str, ...], float]) -> Verdict:
    best = {key: min(METRICS, key=lambda metric: ours[key, "full", metric]) for key in TRACES}
    return Verdict(set(best.values()) == {"artww"}, ", ".join(f"{metric} on {key}" for key, metric in best.items()))


def _makespan_fills(ours: dict[tuple[str, ...], float]) -> Verdict:
    best = {tuning: max(METRICS, key=lambda metric: ours["SDSC", tuning, metric]) for tuning in TUNINGS}
    figures = (f"{one}, {ours['SDSC', tuning, one]:.2f}%, with {tuning} tuning" for tuning, one in best.items())
    return Verdict(set(best.values()) == {"makespan"}, ", ".join(figures))


def _only_sdsc_differs(ours: dict[tuple[str, ...], float]) -> Verdict:
    spans = {}
    for key in TRACES:
        found = [value for labels, value in ours.items() if labels[0] == key]
        spans[key] = max(found) - min(found)
    figures = ", ".join(f"{span:.3f} points on {key}" for key, span in spans.items())
    return Verdict(spans["SDSC"] > 0 and all(spans[key] == 0 for key in TRACES if key != "SDSC"), figures)


def _sjf_preferred(ours: dict[tuple[str, ...], float]) -> Verdict:
    figures = ", ".join(
        f"{ours[key, 'keep', 'sjf-preferred']:.3f} against {ours[key, 'keep', 'fcfs-preferred']:.3f} on {key}"
        for key in TRACES
    )
    better = all(ours[key, "keep", "sjf-preferred"] < ours[key, "keep", "fcfs-preferred"] for key in TRACES)
    return Verdict(better, figures)


def _slackness_has_no_rule(ours: dict[tuple[str, ...], float]) -> Verdict:
    best = {key: min(SLACKNESS, key=lambda slack: ours[key, "advanced", str(slack)]) for key in TRACES}
    return Verdict(len(set(best.values())) > 1, ", ".join(f"best at {slack}% on {key}" for key, slack in best.items()))


TABLES: dict[str, Callable[[TuningRuns], Made]] = {
    "streit-5.2": table_5_2,
    "streit-5.3": table_5_3,
    "streit-5.4": table_5_4,
    "streit-5.5": table_5_5,
    "streit-5.6": table_5_6,
    "streit-5.7": table_5_7,
    "streit-5.8": table_5_8,
    "streit-A.9": tables_a_9,
}
"""Id to the function that makes the table."""

CHECKS: dict[str, tuple[_Check, ...]] = {
    "streit-5.2": (_advanced_beats_simple, _full_beats_half),
    "streit-5.5": (_artww_is_best,),
    "streit-5.6": (_makespan_fills, _only_sdsc_differs),
    "streit-5.7": (_sjf_preferred,),
    "streit-5.8": (_slackness_has_no_rule,),
}
"""Id to what is concluded from it, in the order of ``data/claims.csv``."""
