"""Streit's thesis: its traces, and Tables 3.4, 3.6, 5.1 and A.1 to A.4 recomputed.

The thesis (section 3.6) converts traces as `gridweave.scenarios.traces.convert` does, with one exception: it drops
records with a negative estimate, whereas gridweave uses the run time as the estimate. Both readings are computed here.
The dates are those on which the thesis bases its monthly tables (docs/reproduction.md, "The dates").

Rows that need a missing trace are left out, and the table names the trace. ``data`` holds the published numbers of the
four publicly available traces, transcribed without thousands separators and otherwise unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gridweave.errors import TraceError
from gridweave.scenarios.results.metrics import Metrics, compute_by_class
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.traces.convert import ConversionReport
from gridweave.scenarios.traces.swf import read_records, read_swf
from gridweave.scenarios.workload.columns import JobClasses, classes_by_month
from gridweave.scenarios.workload.table import MS_PER_S, BoolArray, IntArray, Workload
from gridweave_papers.studies.report import (
    EACH,
    OURS,
    Conclusion,
    Findings,
    Row,
    Section,
    Value,
    Verdict,
    our_values,
)
from gridweave_papers.studies.study import Study, path_of, printed

if TYPE_CHECKING:
    from gridweave.scenarios.results.schedule import SimulationResult

TRACES = ("CTC", "KTH", "LANL", "SDSC")
POLICIES = ("FCFS", "SJF", "LJF")

LEFT_OUT = "records without an estimate left out"
"""The conversion of traces in the thesis."""

FILLED = "run time taken as the estimate"
"""The conversion of traces in `gridweave.scenarios.traces.convert`."""

PLANNED, EASY = "planned FCFS", "FCFS queue, EASY"

_KINDS = {PLANNED: ("planning", "fcfs"), EASY: ("queue", "fcfs")}
_ORDERS = [("planning", policy.lower()) for policy in POLICIES]

_S_PER_H = 3600
_FIELDS = ("job_id", "submit_s", "run_s", "processors", "requested_processors", "requested_s")


class Month(msgspec.Struct, frozen=True):
    """A row of Tables A.1 to A.4: averages over the submitted jobs, and SLDwA under each of `POLICIES`.

    ``over_estimation`` is the average estimate divided by the average run time; ``best`` is "-" if all are equal.
    """

    trace: str
    month: str
    jobs: int
    width: float
    run_s: float
    estimate_s: float
    over_estimation: float
    FCFS: float
    SJF: float
    LJF: float
    best: str

    @property
    def sldwa(self) -> tuple[float, ...]:
        """SLDwA under each of `POLICIES`."""
        return tuple(getattr(self, policy) for policy in POLICIES)


_MONTHS = msgspec.convert(printed("streit-A"), list[Month], strict=False)

TABLE_3_4, TABLE_3_6, TABLE_5_1 = (
    {row.pop("trace"): row for row in printed(table)} for table in ("streit-3.4", "streit-3.6", "streit-5.1")
)
"""Published numbers of each trace by quantity, or by policy in Table 5.1."""

TABLES_A = {trace: [line for line in _MONTHS if line.trace == trace] for trace in TRACES}
"""Months of each trace in the monthly analysis, Tables A.1 to A.4."""


@dataclass(frozen=True, slots=True)
class TraceClock:
    """A clock: an IANA time zone and an offset in hours."""

    zone: str
    ahead_h: int = 0

    def months(self, submit_ms: IntArray, start_unix_s: int) -> JobClasses:
        """Group jobs by month of submission on this clock; ``start_unix_s`` is the Unix time of time 0."""
        return classes_by_month(submit_ms, start_unix_s + self.ahead_h * _S_PER_H, self.zone)


class ThesisTrace(msgspec.Struct, frozen=True):
    """How the thesis uses a trace.

    Parameters
    ----------
    name : str
        Name of the trace in the archive.
    nodes : int
        Nodes of the machine (Table 3.4).
    zone, ahead_h : str, int
        The clock on which Table 3.5 states the first submission.
    first_submit_unix_s : int
        Unix time of the first submission in Table 3.5, which is time 0 in the thesis.
    unknown_estimate_is_zero : bool
        Whether estimates of -1 in the archive's file were 0 in the thesis's file. Such a job was submitted but not
        scheduled, because truncating it at its estimate leaves no run time.
    tolerance_pct : float or None
        Largest accepted difference from the published SLDwA; None if none was set.
    """

    name: str
    nodes: int
    zone: str
    ahead_h: int
    first_submit_unix_s: int
    unknown_estimate_is_zero: bool
    tolerance_pct: float | None

    @property
    def table_clock(self) -> TraceClock:
        """The clock of Table 3.5."""
        return TraceClock(self.zone, self.ahead_h)

    @property
    def month_clock(self) -> TraceClock:
        """The clock for the months of Tables A.1 to A.4, an hour behind the clock of Table 3.5."""
        return TraceClock(self.zone, self.ahead_h - 1)


THESIS_TRACES = {row["key"]: msgspec.convert(row, ThesisTrace, strict=False) for row in printed("thesis-traces")}


@dataclass(frozen=True, eq=False, slots=True)
class ThesisJobs:
    """The jobs of a trace: as scheduled in the thesis, with missing estimates filled in, and all submitted jobs.

    ``submitted`` has the columns ``submit_ms``, ``width``, ``run_ms`` and ``estimate_ms``, and includes jobs without
    a run time, which the thesis does not schedule.
    """

    trace: ThesisTrace
    scheduled: Workload
    filled: Workload
    submitted: dict[str, IntArray]
    start_unix_s: int
    report: ConversionReport


def read_thesis_jobs(trace: ThesisTrace, path: str | Path) -> ThesisJobs:
    """Read the SWF file of a trace as the thesis does; its header must give the start time."""
    workload, report = read_swf(path, nodes=trace.nodes)
    if workload.start_unix_s is None:
        raise TraceError(path, "has no date of time zero (; UnixStartTime), which the months require")
    raw, _ = read_records(path, _FIELDS)
    without = np.asarray(raw["job_id"])[np.asarray(raw["requested_s"]) <= 0]
    rows = ~np.isin(workload.job_id, without)
    columns = {name: np.asarray(values, np.float64) for name, values in raw.items()}
    return ThesisJobs(
        trace=trace,
        scheduled=workload if rows.all() else workload.take(rows),
        filled=workload,
        submitted=_submitted(columns, trace),
        start_unix_s=workload.start_unix_s,
        report=report,
    )


def _submitted(raw: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]], trace: ThesisTrace) -> dict[str, IntArray]:
    """Return the jobs that the thesis counts as submitted, in submit order."""
    estimate_s = raw["requested_s"]
    if trace.unknown_estimate_is_zero:
        estimate_s = np.maximum(estimate_s, 0)
    width = np.where(raw["processors"] == -1, raw["requested_processors"], raw["processors"])
    keep = (width > 0) & (width <= trace.nodes) & (raw["run_s"] >= 0) & (estimate_s >= 0) & (raw["submit_s"] >= 0)
    columns = {
        "submit_ms": raw["submit_s"] * MS_PER_S,
        "width": width,
        "run_ms": np.minimum(raw["run_s"], estimate_s) * MS_PER_S,
        "estimate_ms": estimate_s * MS_PER_S,
    }
    rows = np.flatnonzero(keep)
    rows = rows[np.argsort(raw["submit_s"][rows], kind="stable")]
    return {name: np.rint(values[rows]).astype(np.int64) for name, values in columns.items()}


class ThesisRuns:
    """The available traces and their simulations."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._jobs: Study[str, ThesisJobs | None] = Study(self._read)
        self._results = Study(self._simulate, title="Streit", progress=progress, same=self._shared)
        self._progress = progress or (lambda done, total, what: None)

    def jobs(self, key: str) -> ThesisJobs | None:
        """Return the jobs of a trace, given by its key in `THESIS_TRACES`; None if the trace is not on this machine."""
        return self._jobs[key]

    def missing(self) -> tuple[str, ...]:
        """Return the names of the missing traces."""
        return tuple(THESIS_TRACES[key].name for key in TRACES if self.jobs(key) is None)

    def present(self) -> dict[str, ThesisJobs]:
        """Return the jobs of the available traces."""
        return {key: jobs for key in TRACES if (jobs := self.jobs(key)) is not None}

    def run_all(self, kinds: Sequence[tuple[str, str]], conversions: Sequence[str] = (LEFT_OUT,)) -> None:
        """Run the simulations of all available traces under these (discipline, order) pairs and conversions."""
        self._results.results(
            (key, *kind, conversion) for key in self.present() for kind in kinds for conversion in conversions
        )

    def result(self, key: str, discipline: str, order: str, conversion: str = LEFT_OUT) -> SimulationResult:
        """Return the simulation of an available trace; ``conversion`` is `LEFT_OUT` or `FILLED`."""
        return self._results[key, discipline, order, conversion]

    def _read(self, key: str) -> ThesisJobs | None:
        trace = THESIS_TRACES[key]
        path = path_of(trace.name)
        if path is None:
            return None
        self._progress(0, 1, f"Reading {key}")
        return read_thesis_jobs(trace, path)

    def at_hand(self, key: str) -> ThesisJobs:
        """Return the jobs of a trace; TraceError if the trace is not on this machine."""
        jobs = self.jobs(key)
        if jobs is None:
            raise TraceError(THESIS_TRACES[key].name, "this trace is not on this machine")
        return jobs

    def _shared(self, run: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
        """Return an equivalent run: if no estimates are missing, both conversions are the same."""
        jobs = self.at_hand(run[0])
        return (*run[:3], LEFT_OUT) if jobs.filled is jobs.scheduled else run

    def _simulate(self, run: tuple[str, str, str, str]) -> SimulationResult:
        from gridweave.scenarios.batch.simulate import simulate
        from gridweave.site.policy import SitePolicy

        key, discipline, order, conversion = run
        jobs = self.at_hand(key)
        workload = jobs.filled if conversion == FILLED else jobs.scheduled
        return simulate(workload, jobs.trace.nodes, SitePolicy(discipline=discipline, order=order))


def table_3_4(runs: ThesisRuns) -> Findings:
    """Recompute Table 3.4, the basic properties of the traces."""
    sections = (_section(key, TABLE_3_4[key], {"ours": _properties(jobs)}) for key, jobs in runs.present().items())
    return Findings(
        sections=tuple(sections),
        missing=runs.missing(),
        notes=(*_conversion_notes(runs), "All submitted jobs, including those without a run time."),
    )


def table_3_6(runs: ThesisRuns) -> Findings:
    """Recompute Table 3.6, the performance under FCFS, in two readings: planning, and a queue with EASY backfilling."""
    runs.run_all(list(_KINDS.values()))
    own = {key: {name: _performance(runs, key, *kind) for name, kind in _KINDS.items()} for key in runs.present()}
    return Findings(
        sections=tuple(_section(key, TABLE_3_6[key], figures) for key, figures in own.items()),
        conclusions=_which_reading(own) if own else (),
        missing=runs.missing(),
        notes=_conversion_notes(runs),
    )


def table_5_1(runs: ThesisRuns) -> Findings:
    """Recompute Table 5.1, the overall SLDwA of planned FCFS, SJF and LJF, under two conversions of the traces."""
    conversions = (LEFT_OUT, FILLED)
    runs.run_all(_ORDERS, conversions)
    rows = []
    for key in runs.present():
        for policy in POLICIES:
            published = TABLE_5_1[key][policy]
            sldwa = [runs.result(key, "planning", policy.lower(), reading).metrics().sldwa for reading in conversions]
            tolerance = THESIS_TRACES[key].tolerance_pct
            rows.append(Row((key, policy), tuple(Value.of(published, reading, tolerance) for reading in sldwa)))
    section = Section("SLDwA under planning", ("trace", "policy"), conversions, tuple(rows))
    return Findings(
        sections=(section,) if rows else (),
        conclusions=_best_policies(runs) if rows else (),
        missing=runs.missing(),
        notes=_conversion_notes(runs),
    )


def tables_a(runs: ThesisRuns) -> Findings:
    """Recompute Tables A.1 to A.4, the submitted jobs and the SLDwA of the three basic policies by month."""
    runs.run_all(_ORDERS)
    jobs_of = runs.present()
    sections = [_dates_section(jobs_of)] if jobs_of else []
    conclusions = []
    for key, jobs in jobs_of.items():
        sldwa = monthly_sldwa(runs, key)
        sections += [_jobs_section(key, jobs), _sldwa_section(key, sldwa)]
        conclusions.append(_best_months(key, sldwa))
    return Findings(
        sections=tuple(sections),
        conclusions=tuple(conclusions),
        missing=runs.missing(),
        notes=_conversion_notes(runs),
    )


TABLES: Mapping[str, Callable[[ThesisRuns], Findings]] = {
    "streit-3.4": table_3_4,
    "streit-3.6": table_3_6,
    "streit-5.1": table_5_1,
    "streit-A": tables_a,
}


def report(table: str, runs: ThesisRuns) -> Findings:
    """Recompute a table of `TABLES`."""
    return TABLES[table](runs)


def monthly_sldwa(runs: ThesisRuns, key: str) -> dict[str, tuple[float, ...]]:
    """Return our SLDwA of an available trace under each of `POLICIES`, by month of submission, e.g. "1996-09"."""
    jobs = runs.at_hand(key)
    of_policy: list[dict[str, Metrics]] = []
    for kind in _ORDERS:
        schedule = runs.result(key, *kind).schedule()
        months = jobs.trace.month_clock.months(schedule[0], jobs.start_unix_s)
        of_policy.append(compute_by_class(*schedule, jobs.trace.nodes, months))
    return {month: tuple(by_month[month].sldwa for by_month in of_policy) for month in of_policy[0]}


def _section(key: str, published: Mapping[str, str], readings: Mapping[str, Mapping[str, float]]) -> Section:
    """Return a table of one trace with a row per quantity and a column per reading."""
    rows = tuple(
        Row((name,), tuple(Value.of(number, ours.get(name)) for ours in readings.values()))
        for name, number in published.items()
    )
    return Section(key, ("",), tuple(readings), rows)


def _conversion_notes(runs: ThesisRuns) -> tuple[str, ...]:
    """Compare the number of jobs in the thesis with ours, for each trace."""
    notes = []
    for key, jobs in runs.present().items():
        total, scheduled = (int(TABLE_3_6[key][name]) for name in ("total jobs", "scheduled jobs"))
        notes.append(
            f"{key}: {jobs.trace.name} has {len(jobs.submitted['submit_ms']):,} of the {total:,} jobs of the "
            f"thesis, {len(jobs.scheduled):,} of the {scheduled:,} that it schedules"
        )
    return tuple(notes)


def _properties(jobs: ThesisJobs) -> dict[str, float]:
    """Return the quantities of Table 3.4 for a trace."""
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
    """Return the quantities of Table 3.6 for a schedule; times are relative to the first submission in the thesis."""
    jobs = runs.at_hand(key)
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


def _which_reading(own: Mapping[str, Mapping[str, Mapping[str, float]]]) -> tuple[Conclusion, ...]:
    """Check which of the two disciplines reproduces the published numbers better."""
    judged = ("AWT [s]", "ARTwW [s]", "SLDwA")
    mean_pct = {}
    for name in _KINDS:
        apart = [
            abs(Value.of(TABLE_3_6[key][quantity], own[key][name][quantity]).difference_pct or 0.0)
            for key in own
            for quantity in judged
        ]
        mean_pct[name] = float(np.mean(apart))
    nearest = min(mean_pct, key=lambda name: mean_pct[name])
    figures = ", ".join(f"{value:.1f}% with {name}" for name, value in mean_pct.items())
    return (
        Conclusion(
            "Table 3.6",
            "The table was computed with planned FCFS, not with a FCFS queue and EASY backfilling",
            {
                "numbers": Verdict(
                    nearest == PLANNED,
                    f"AWT, ARTwW and SLDwA of {', '.join(own)} differ from the published numbers by {figures}, "
                    "on average",
                )
            },
        ),
    )


def _best_policies(runs: ThesisRuns) -> tuple[Conclusion, ...]:
    """Check whether the best and the worst policy of each trace are the published ones."""
    theirs = {key: [float(TABLE_5_1[key][policy]) for policy in POLICIES] for key in runs.present()}
    own = {key: [runs.result(key, *kind).metrics().sldwa for kind in _ORDERS] for key in runs.present()}
    conclusions = []
    for place, claim in ((0, "the best"), (-1, "the worst")):
        ours, named = (
            {key: POLICIES[int(np.argsort(sldwa)[place])] for key, sldwa in table.items()} for table in (own, theirs)
        )
        conclusions.append(
            Conclusion(
                "section 5.1.1",
                f"Of the three policies {claim} is {_listed(named)}",
                {"numbers": Verdict(ours == named, _listed(ours))},
            )
        )
    return tuple(conclusions)


def _listed(policies: Mapping[str, str]) -> str:
    return ", ".join(f"{policy} for {key}" for key, policy in policies.items())


def _dates_section(jobs_of: Mapping[str, ThesisJobs]) -> Section:
    """Count the jobs that fall into a different month than published, for each clock."""
    rows = []
    for key, jobs in jobs_of.items():
        trace = jobs.trace
        header = TraceClock(jobs.scheduled.timezone or "UTC")
        moved = [_moved(jobs, TABLES_A[key], clock) for clock in (header, trace.table_clock, trace.month_clock)]
        rows.append(Row((key,), our_values(*moved)))
    return Section(
        "Readings of the dates: sum over the months of | our jobs - published jobs |",
        ("trace",),
        ("time zone of the file", "clock of Table 3.5", "an hour behind that (used)"),
        tuple(rows),
        OURS,
    )


def _moved(jobs: ThesisJobs, published: Sequence[Month], clock: TraceClock) -> int:
    classes = clock.months(jobs.submitted["submit_ms"], jobs.start_unix_s)
    counts = dict(zip(classes.names, np.bincount(classes.of_job, minlength=len(classes.names)).tolist(), strict=True))
    published_counts = {line.month: line.jobs for line in published}
    return sum(
        abs(counts.get(month, 0) - published_counts.get(month, 0)) for month in sorted({*counts, *published_counts})
    )


def _jobs_section(key: str, jobs: ThesisJobs) -> Section:
    """Compare the submitted jobs of a trace by month."""
    submitted = jobs.submitted
    classes = jobs.trace.month_clock.months(submitted["submit_ms"], jobs.start_unix_s)
    place = {month: number for number, month in enumerate(classes.names)}
    rows = [
        Row((line.month,), _job_values(line, submitted, classes.of_job == place.get(line.month, -1)))
        for line in TABLES_A[key]
    ]
    columns = ("jobs", "width", "run time [s]", "estimate [s]", "factor")
    return Section(f"{key}: submitted jobs", ("month",), columns, tuple(rows), EACH)


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


def _sldwa_section(key: str, own: Mapping[str, Sequence[float]]) -> Section:
    """Compare the SLDwA of a trace by month."""
    rows = []
    for line in TABLES_A[key]:
        pairs = zip(line.sldwa, own.get(line.month, (None,) * len(POLICIES)), strict=True)
        values = (Value(published=theirs, ours=sldwa, decimals=4) for theirs, sldwa in pairs)
        rows.append(Row((line.month,), tuple(values)))
    return Section(f"{key}: SLDwA", ("month",), POLICIES, tuple(rows), EACH)


def _best_months(key: str, ours: Mapping[str, Sequence[float]]) -> Conclusion:
    """Check in which months the best policy is the published one."""
    judged = [line for line in TABLES_A[key] if line.best != "-" and line.month in ours]
    other = [line for line in judged if POLICIES[int(np.argmin(ours[line.month]))] != line.best]
    figures = f"{len(judged) - len(other)} of {len(judged)} months"
    if other:
        figures += "; not " + ", ".join(f"{line.month} ({line.best})" for line in other)
    return Conclusion(
        f"Table A.{TRACES.index(key) + 1}",
        f"{key}: the best policy of each month is the published one",
        {"numbers": Verdict(not other, figures)},
    )
