"""The tables of Streit's thesis, recomputed: 3.4, 3.6, 5.1 and A.1 to A.4.

Each function takes the traces that are at hand and returns a report. What needs a trace that is not there is left out,
and the report names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gridweave.scenarios.published.report import EACH, OURS, Conclusion, Report, Row, Section, Value, Verdict
from gridweave.scenarios.published.streit_data import (
    POLICIES,
    TABLE_3_4,
    TABLE_3_6,
    TABLE_5_1,
    TABLES_A,
    TRACES,
    Month,
    Printed,
)
from gridweave.scenarios.published.thesis_runs import (
    FILLED,
    LEFT_OUT,
    THESIS_TRACES,
    Clock,
    ThesisJobs,
    ThesisRuns,
)
from gridweave.scenarios.results.metrics import Metrics, compute_by_class
from gridweave.scenarios.workload.table import MS_PER_S, BoolArray, IntArray

PLANNED, EASY = "planned FCFS", "FCFS queue, EASY"

_KINDS = {PLANNED: ("planning", "fcfs"), EASY: ("queue", "fcfs")}
_ORDERS = [("planning", policy.lower()) for policy in POLICIES]


def table_3_4(runs: ThesisRuns) -> Report:
    """Recompute Table 3.4, basic properties of the traces."""
    keys = runs.present(TRACES)
    return Report(
        id="streit-3.4",
        title="Basic properties of the traces",
        source="Streit, section 3.6, Table 3.4",
        sections=tuple(_section(key, TABLE_3_4[key], {"ours": _properties(_jobs(runs, key))}) for key in keys),
        missing=runs.missing(TRACES),
        notes=(*_conversion_notes(runs, keys), "All jobs that were submitted, also those without a run time."),
    )


def table_3_6(runs: ThesisRuns) -> Report:
    """Recompute Table 3.6, performance under FCFS, in two readings: planned, and as a queue with EASY backfilling."""
    keys = runs.present(TRACES)
    runs.run_all(keys, list(_KINDS.values()), [LEFT_OUT])
    ours = {key: {name: _performance(runs, key, *kind) for name, kind in _KINDS.items()} for key in keys}
    return Report(
        id="streit-3.6",
        title='Performance "scheduled by FCFS + EASY backfill"',
        source="Streit, section 3.6, Table 3.6",
        sections=tuple(_section(key, TABLE_3_6[key], ours[key]) for key in keys),
        conclusions=_which_reading(ours) if keys else (),
        missing=runs.missing(TRACES),
        notes=_conversion_notes(runs, keys),
    )


def table_5_1(runs: ThesisRuns) -> Report:
    """Recompute Table 5.1, the overall SLDwA of planned FCFS, SJF and LJF, in two readings of the conversion."""
    keys = runs.present(TRACES)
    conversions = (LEFT_OUT, FILLED)
    runs.run_all(keys, _ORDERS, conversions)
    rows = []
    for key in keys:
        for policy in POLICIES:
            printed = TABLE_5_1[key][policy]
            sldwa = [runs.result(key, "planning", policy.lower(), one).metrics().sldwa for one in conversions]
            tolerance = THESIS_TRACES[key].tolerance_pct
            rows.append(Row((key, policy), tuple(_value(printed, ours, tolerance) for ours in sldwa)))
    section = Section(title="SLDwA under planning", headings=("trace", "policy"), columns=conversions, rows=tuple(rows))
    return Report(
        id="streit-5.1",
        title="Overall SLDwA of the three basic policies",
        source="Streit, section 5.1, Table 5.1",
        sections=(section,) if keys else (),
        conclusions=_best_policies(runs, keys) if keys else (),
        missing=runs.missing(TRACES),
        notes=_conversion_notes(runs, keys),
    )


def tables_a(runs: ThesisRuns) -> Report:
    """Recompute Tables A.1 to A.4, submitted jobs and SLDwA of the three basic policies by month of submission."""
    keys = runs.present(TRACES)
    runs.run_all(keys, _ORDERS, [LEFT_OUT])
    sections = [_dates_section(runs, keys)] if keys else []
    conclusions = []
    for key in keys:
        sldwa = monthly_sldwa(runs, key)
        sections += [_jobs_section(key, _jobs(runs, key)), _sldwa_section(key, sldwa)]
        conclusions.append(_best_months(key, sldwa))
    return Report(
        id="streit-A",
        title="Monthly analysis: submitted jobs and SLDwA of the three basic policies",
        source="Streit, appendix A.1.1, Tables A.1 to A.4",
        sections=tuple(sections),
        conclusions=tuple(conclusions),
        missing=runs.missing(TRACES),
        notes=_conversion_notes(runs, keys),
    )


def monthly_sldwa(runs: ThesisRuns, key: str) -> dict[str, tuple[float, ...]]:
    """Return the SLDwA of the three policies by month of submission, as our simulations give it.

    Parameters
    ----------
    key : str
        A trace that is at hand.

    Returns
    -------
    dict from str to tuple of float
        Month, such as "1996-09", to the SLDwA under each of `POLICIES`.
    """
    jobs = _jobs(runs, key)
    of_policy: list[dict[str, Metrics]] = []
    for kind in _ORDERS:
        schedule = runs.result(key, *kind).schedule()
        months = jobs.trace.month_clock.months(schedule[0], jobs.start_unix_s)
        of_policy.append(compute_by_class(*schedule, jobs.trace.nodes, months))
    return {month: tuple(one[month].sldwa for one in of_policy) for month in of_policy[0]}


def _jobs(runs: ThesisRuns, key: str) -> ThesisJobs:
    jobs = runs.jobs(key)
    assert jobs is not None, "tables are made of the traces that are present"
    return jobs


def _value(printed: Printed, ours: float | None, tolerance_pct: float | None = None) -> Value:
    return Value(published=printed.value, ours=ours, decimals=printed.decimals, tolerance_pct=tolerance_pct)


def _section(key: str, printed: Mapping[str, Printed], readings: Mapping[str, Mapping[str, float]]) -> Section:
    """Return a table of one trace with quantities down and our readings across."""
    rows = tuple(
        Row((name,), tuple(_value(number, ours.get(name)) for ours in readings.values()))
        for name, number in printed.items()
    )
    return Section(title=key, headings=("",), columns=tuple(readings), rows=rows)


def _conversion_notes(runs: ThesisRuns, keys: Sequence[str]) -> tuple[str, ...]:
    """Say for each trace how many jobs the thesis has, and how many we have."""
    notes = []
    for key in keys:
        jobs = _jobs(runs, key)
        total, scheduled = (TABLE_3_6[key][name].value for name in ("total jobs", "scheduled jobs"))
        notes.append(
            f"{key}: {jobs.trace.name} has {len(jobs.submitted['submit_ms']):,} of the {total:,.0f} jobs of the "
            f"thesis, {len(jobs.scheduled):,} of the {scheduled:,.0f} that it schedules"
        )
    return tuple(notes)


def _properties(jobs: ThesisJobs) -> dict[str, float]:
    """Return what Table 3.4 tells of a trace."""
    figures: dict[str, float] = {"machine [nodes]": jobs.trace.nodes}
    submitted = jobs.submitted
    for name, unit, values, scale in (
        ("width", "nodes", submitted["width"], 1),
        ("estimate", "s", submitted["estimate_ms"], MS_PER_S),
        ("run time", "s", submitted["run_ms"], MS_PER_S),
        ("interarrival", "s", np.diff(submitted["submit_ms"]), MS_PER_S),
    ):
        for short, value in (("min", values.min()), ("avg", values.mean()), ("max", values.max())):
            figures[f"{name} {short} [{unit}]"] = float(value) / scale
    figures["avg over-estimation factor"] = figures["estimate avg [s]"] / figures["run time avg [s]"]
    return figures


def _performance(runs: ThesisRuns, key: str, discipline: str, order: str) -> dict[str, float]:
    """Return what Table 3.6 tells of a schedule; instants count from the first submission of the thesis."""
    jobs = _jobs(runs, key)
    metrics = runs.result(key, discipline, order).metrics()
    zero_ms = (jobs.trace.first_submit_unix_s - jobs.start_unix_s) * MS_PER_S
    return {
        "total jobs": len(jobs.submitted["submit_ms"]),
        "scheduled jobs": metrics.jobs,
        "makespan [s]": (metrics.makespan_ms - zero_ms) / MS_PER_S,
        "virtual end [s]": (metrics.virtual_end_ms - zero_ms) / MS_PER_S,
        "avg queue length": metrics.queue_length_seen,
        "waiting jobs > 1": metrics.queued_submissions,
        "AWT [s]": metrics.awt_ms / MS_PER_S,
        "ARTwW [s]": metrics.artww_ms / MS_PER_S,
        "avg job length [s]": metrics.mean_run_ms / MS_PER_S,
        "SLDwA": metrics.sldwa,
        "UTIL [%]": metrics.util * 100,
    }


def _which_reading(ours: Mapping[str, Mapping[str, Mapping[str, float]]]) -> tuple[Conclusion, ...]:
    """Say which of the two disciplines gives the published numbers."""
    judged = ("AWT [s]", "ARTwW [s]", "SLDwA")
    mean_pct = {}
    for name in _KINDS:
        apart = [
            abs(_value(TABLE_3_6[key][quantity], ours[key][name][quantity]).difference_pct or 0.0)
            for key in ours
            for quantity in judged
        ]
        mean_pct[name] = float(np.mean(apart))
    nearest = min(mean_pct, key=lambda name: mean_pct[name])
    figures = ", ".join(f"{value:.1f}% with {name}" for name, value in mean_pct.items())
    return (
        Conclusion(
            source="Table 3.6",
            claim="The table is made with planned FCFS, not with a FCFS queue and EASY backfilling",
            verdicts={
                "numbers": Verdict(
                    nearest == PLANNED,
                    f"AWT, ARTwW and SLDwA of {', '.join(ours)} differ from the published by {figures}, on average",
                )
            },
        ),
    )


def _best_policies(runs: ThesisRuns, keys: Sequence[str]) -> tuple[Conclusion, ...]:
    """Check which policy is best and worst for each trace."""
    ours, theirs = {}, {}
    for key in keys:
        theirs[key] = [TABLE_5_1[key][policy].value for policy in POLICIES]
        ours[key] = [runs.result(key, "planning", policy.lower()).metrics().sldwa for policy in POLICIES]
    conclusions = []
    for place, claim in ((0, "the best"), (-1, "the worst")):
        found, named = (
            {key: POLICIES[int(np.argsort(sldwa)[place])] for key, sldwa in table.items()} for table in (ours, theirs)
        )
        conclusions.append(
            Conclusion(
                source="section 5.1.1",
                claim=f"Of the three policies {claim} is {_listed(named)}",
                verdicts={"numbers": Verdict(found == named, _listed(found))},
            )
        )
    return tuple(conclusions)


def _listed(policies: Mapping[str, str]) -> str:
    return ", ".join(f"{policy} for {key}" for key, policy in policies.items())


def _dates_section(runs: ThesisRuns, keys: Sequence[str]) -> Section:
    """Show how many jobs fall into another month than published, by the clock that tells the months."""
    rows = []
    for key in keys:
        jobs = _jobs(runs, key)
        trace = jobs.trace
        header = Clock(jobs.scheduled.timezone or "UTC")
        moved = [_moved(jobs, TABLES_A[key], clock) for clock in (header, trace.table_clock, trace.month_clock)]
        rows.append(Row((key,), tuple(Value(ours=count) for count in moved)))
    return Section(
        title="How the dates are read: sum over the months of | our jobs - published jobs |",
        headings=("trace",),
        columns=("time zone of the file", "clock of Table 3.5", "an hour behind that (used)"),
        rows=tuple(rows),
        layout=OURS,
    )


def _moved(jobs: ThesisJobs, published: Sequence[Month], clock: Clock) -> int:
    classes = clock.months(jobs.submitted["submit_ms"], jobs.start_unix_s)
    counts = dict(zip(classes.names, np.bincount(classes.of_job, minlength=len(classes.names)).tolist(), strict=True))
    wanted = {line.month: line.jobs for line in published}
    return sum(abs(counts.get(month, 0) - wanted.get(month, 0)) for month in sorted({*counts, *wanted}))


def _jobs_section(key: str, jobs: ThesisJobs) -> Section:
    """Return the submitted jobs of a trace by month."""
    submitted = jobs.submitted
    classes = jobs.trace.month_clock.months(submitted["submit_ms"], jobs.start_unix_s)
    place = {month: number for number, month in enumerate(classes.names)}
    rows = [
        Row((line.month,), _job_values(line, submitted, classes.of_job == place.get(line.month, -1)))
        for line in TABLES_A[key]
    ]
    columns = ("jobs", "width", "run time [s]", "estimate [s]", "factor")
    return Section(title=f"{key}: submitted jobs", headings=("month",), columns=columns, rows=tuple(rows), layout=EACH)


def _job_values(line: Month, submitted: Mapping[str, IntArray], rows: BoolArray) -> tuple[Value, ...]:
    count = int(np.count_nonzero(rows))

    def mean(name: str, unit: int) -> float | None:
        return float(submitted[name][rows].mean()) / unit if count else None

    width, run_s, estimate_s = mean("width", 1), mean("run_ms", MS_PER_S), mean("estimate_ms", MS_PER_S)
    return (
        Value(published=line.jobs, ours=count),
        Value(published=line.width, ours=width, decimals=1),
        Value(published=line.run_s, ours=run_s),
        Value(published=line.estimate_s, ours=estimate_s),
        Value(published=line.over_estimation, ours=estimate_s / run_s if estimate_s and run_s else None, decimals=2),
    )


def _sldwa_section(key: str, ours: Mapping[str, Sequence[float]]) -> Section:
    """Return the SLDwA of a trace by month."""
    rows = []
    for line in TABLES_A[key]:
        found = ours.get(line.month, (None,) * len(POLICIES))
        values = (Value(published=theirs, ours=own, decimals=4) for theirs, own in zip(line.sldwa, found, strict=True))
        rows.append(Row((line.month,), tuple(values)))
    return Section(title=f"{key}: SLDwA", headings=("month",), columns=POLICIES, rows=tuple(rows), layout=EACH)


def _best_months(key: str, ours: Mapping[str, Sequence[float]]) -> Conclusion:
    """Count the months in which the best policy is the published one."""
    judged = [line for line in TABLES_A[key] if line.best != "-" and line.month in ours]
    other = [line for line in judged if POLICIES[int(np.argmin(ours[line.month]))] != line.best]
    figures = f"{len(judged) - len(other)} of {len(judged)} months"
    if other:
        figures += "; not " + ", ".join(f"{line.month} ({line.best})" for line in other)
    return Conclusion(
        source=f"Table A.{TRACES.index(key) + 1}",
        claim=f"{key}: the best policy of each month is the published one",
        verdicts={"numbers": Verdict(not other, figures)},
    )


TABLES: Mapping[str, Callable[[ThesisRuns], Report]] = {
    "streit-3.4": table_3_4,
    "streit-3.6": table_3_6,
    "streit-5.1": table_5_1,
    "streit-A": tables_a,
}
