"""The traces of the thesis as the thesis reads them, and their simulations, each run once.

The conversion of the thesis (section 3.6) differs from that of `gridweave.scenarios.traces.convert` in one point: a
record with a negative estimate is not converted, where gridweave takes the run time as the estimate. Both readings are
kept here. The dates are those that the monthly tables of the thesis are made with (docs/reproduction.md, "The dates").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gridweave.errors import TraceError
from gridweave.scenarios.traces.convert import ConversionReport
from gridweave.scenarios.traces.load import find_trace
from gridweave.scenarios.traces.swf import read_records, read_swf
from gridweave.scenarios.workload.columns import JobClasses, classes_by_month
from gridweave.scenarios.workload.table import MS_PER_S, IntArray, Workload

if TYPE_CHECKING:
    from gridweave.scenarios.results.schedule import SimulationResult

Progress = Callable[[int, int, str], None]

LEFT_OUT = "records without an estimate left out"
"""The reading of the thesis."""

FILLED = "run time taken as the estimate"
"""The reading of `gridweave.scenarios.traces.convert`."""

_S_PER_H = 3600
_FIELDS = ("job_id", "submit_s", "run_s", "processors", "requested_processors", "requested_s")


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock: that of a time zone, some hours ahead of it.

    Parameters
    ----------
    zone : str
        IANA name.
    ahead_h : int
        Hours ahead; negative if the clock is behind.
    """

    zone: str
    ahead_h: int = 0

    def months(self, submit_ms: IntArray, start_unix_s: int) -> JobClasses:
        """Part jobs by the month that this clock showed at their submission.

        Parameters
        ----------
        submit_ms : numpy.ndarray of int64, shape (n,)
        start_unix_s : int
            The true instant of time zero.

        Returns
        -------
        JobClasses
            Months such as "1996-09"; those without a job are left out.
        """
        return classes_by_month(submit_ms, start_unix_s + self.ahead_h * _S_PER_H, self.zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThesisTrace:
    """How the thesis uses a trace.

    Parameters
    ----------
    name : str
        Name of the archive's trace.
    nodes : int
        Nodes of the machine (Table 3.4).
    table_clock : Clock
        The clock by which Table 3.5 gives the first submission.
    first_submit_unix_s : int
        The instant of the first submission in Table 3.5, from which the thesis counts.
    unknown_estimate_is_zero : bool
        Whether the estimates that the archive's file gives as -1 were 0 in that of the thesis. Such a job was
        submitted; cut at its estimate it has no run time, and it was not scheduled.
    tolerance_pct : float or None
        How near to the published SLDwA ours must come; None if nothing was set.
    """

    name: str
    nodes: int
    table_clock: Clock
    first_submit_unix_s: int
    unknown_estimate_is_zero: bool = False
    tolerance_pct: float | None = None

    @property
    def month_clock(self) -> Clock:
        """The clock by which the months of Tables A.1 to A.4 begin: an hour behind that of Table 3.5."""
        return Clock(self.table_clock.zone, self.table_clock.ahead_h - 1)


THESIS_TRACES = {
    "CTC": ThesisTrace(
        name="CTC-SP2-1996-3.1-cln",
        nodes=430,
        table_clock=Clock("UTC", -5),
        first_submit_unix_s=835823160,
        unknown_estimate_is_zero=True,
        tolerance_pct=1.0,
    ),
    "KTH": ThesisTrace(
        name="KTH-SP2-1996-2",
        nodes=100,
        table_clock=Clock("Europe/Stockholm", -2),
        first_submit_unix_s=843480031,
        tolerance_pct=1.0,
    ),
    "LANL": ThesisTrace(
        name="LANL-CM5-1994-4.1-cln",
        nodes=1024,
        table_clock=Clock("America/Denver", 0),
        first_submit_unix_s=781275672,
    ),
    "SDSC": ThesisTrace(
        name="SDSC-SP2-1998-4.2-cln",
        nodes=128,
        table_clock=Clock("UTC", 0),
        first_submit_unix_s=893865928,
        tolerance_pct=5.0,
    ),
}


@dataclass(frozen=True, eq=False, slots=True)
class ThesisJobs:
    """The jobs of a trace.

    Parameters
    ----------
    scheduled : Workload
        The jobs that the thesis schedules.
    filled : Workload
        With the records that have no estimate, whose run time is taken for it; the same as `scheduled` if there are
        none.
    submitted : dict from str to numpy.ndarray of int64, shape (n,)
        ``submit_ms``, ``width``, ``run_ms`` and ``estimate_ms`` of all jobs that the thesis counts: also of those with
        no run time, which it does not schedule.
    start_unix_s : int
        The instant of time zero.
    report : ConversionReport
        What gridweave's own conversion dropped.
    """

    trace: ThesisTrace
    scheduled: Workload
    filled: Workload
    submitted: dict[str, IntArray]
    start_unix_s: int
    report: ConversionReport


def read_thesis_jobs(trace: ThesisTrace, path: str | Path) -> ThesisJobs:
    """Read a trace as the thesis does.

    Parameters
    ----------
    path : str or pathlib.Path
        Its SWF file.

    Raises
    ------
    TraceError
        If the file cannot be used, or does not tell when it begins.
    """
    workload, report = read_swf(path, nodes=trace.nodes)
    if workload.start_unix_s is None:
        raise TraceError(path, "does not tell the instant of time zero (; UnixStartTime), which months need")
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
    """Return the jobs that the thesis counts, in submit order."""
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
    """The traces that are at hand, and their simulations.

    Parameters
    ----------
    progress : callable, optional
        Called with the number of simulations done, the number of all, and what is going on.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress or (lambda done, total, what: None)
        self._jobs: dict[str, ThesisJobs | None] = {}
        self._results: dict[tuple[str, str, str, str], SimulationResult] = {}

    def jobs(self, key: str) -> ThesisJobs | None:
        """Return the jobs of a trace.

        Parameters
        ----------
        key : str
            A key of `THESIS_TRACES`.

        Returns
        -------
        ThesisJobs or None
            None if the trace is not at hand.

        Raises
        ------
        TraceError
            If it is at hand and cannot be used.
        """
        if key not in self._jobs:
            trace = THESIS_TRACES[key]
            path = path_of(trace.name)
            if path is not None:
                self._progress(0, 1, f"Reading {key}")
            self._jobs[key] = None if path is None else read_thesis_jobs(trace, path)
        return self._jobs[key]

    def missing(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the names of those of the traces that are not at hand."""
        return tuple(THESIS_TRACES[key].name for key in keys if self.jobs(key) is None)

    def present(self, keys: Iterable[str]) -> list[str]:
        """Return those of the traces that are at hand."""
        return [key for key in keys if self.jobs(key) is not None]

    def run_all(self, keys: Sequence[str], kinds: Sequence[tuple[str, str]], conversions: Sequence[str]) -> None:
        """Run what has not been run yet of all these simulations.

        Parameters
        ----------
        keys : sequence of str
            Traces that are at hand.
        kinds : sequence of (str, str)
            Discipline and order.
        conversions : sequence of str
            `LEFT_OUT` or `FILLED`.
        """
        wanted = [(key, *kind, conversion) for key in keys for kind in kinds for conversion in conversions]
        wanted = [run for run in wanted if run not in self._results]
        for done, (key, discipline, order, conversion) in enumerate(wanted):
            self._progress(done, len(wanted), f"Simulating {key}: {discipline} {order}")
            self.result(key, discipline, order, conversion)

    def result(self, key: str, discipline: str, order: str, conversion: str = LEFT_OUT) -> SimulationResult:
        """Return the simulation of a trace, run at the first call.

        Parameters
        ----------
        key : str
            A trace that is at hand.
        discipline, order : str
            As in `gridweave.site.policy.SitePolicy`.
        conversion : str
            `LEFT_OUT` or `FILLED`.
        """
        from gridweave.scenarios.batch.simulate import simulate_policy
        from gridweave.site.policy import SitePolicy

        jobs = self.jobs(key)
        if jobs is None:
            raise TraceError(THESIS_TRACES[key].name, "this trace is not at hand")
        run = key, discipline, order, conversion
        if run not in self._results and jobs.filled is jobs.scheduled and conversion == FILLED:
            self._results[run] = self.result(key, discipline, order)
        if run not in self._results:
            workload = jobs.filled if conversion == FILLED else jobs.scheduled
            policy = SitePolicy(discipline=discipline, order=order)
            self._results[run] = simulate_policy(workload, jobs.trace.nodes, policy)
        return self._results[run]


def path_of(name: str) -> Path | None:
    """Return the file of a trace; None if it is not at hand.

    Parameters
    ----------
    name : str
        Full name of the trace.
    """
    try:
        return find_trace(name)
    except TraceError:
        return None
