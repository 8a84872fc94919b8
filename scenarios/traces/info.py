"""Statistics of a workload before scheduling, as in Tables 3.4, 3.5 and 3.6 of Streit's thesis."""

from __future__ import annotations

import datetime as dt

import msgspec
import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.traces.convert import known_zone, local_datetime
from gridweave.scenarios.workload.table import MS_PER_S, IntArray, Workload
from gridweave.site.times import span_text


class MinAvgMax(msgspec.Struct, frozen=True):
    """Minimum, average and maximum of some values, in the values' unit."""

    min: float
    avg: float
    max: float


class TraceInfo(msgspec.Struct, frozen=True):
    """The statistics of a workload.

    Parameters
    ----------
    width : MinAvgMax
        Nodes per job (Table 3.4, requested resources).
    estimate_s, run_s : MinAvgMax
        Estimates and run times in seconds (Table 3.4). Run times are truncated to the estimate.
    over_estimation : float
        Average estimate divided by average run time. Table 3.4 calls this ratio the average over-estimation factor
        (CTC: 24,324 / 10,958 = 2.220). The average of the single jobs' ratios is far larger (KTH: 299), because it is
        dominated by jobs that failed within seconds.
    interarrival_s : MinAvgMax or None
        Times between consecutive submissions in seconds (Table 3.4); None for a single job.
    area_node_s : float
        Sum of width x run time, in node seconds.
    offered_load : float or None
        The same area divided by the machine's capacity between the first and the last submission; 1 means that the jobs
        need the full capacity. None if the machine size is unknown, or all jobs are submitted at the same time.
    overran : int
        Number of jobs that are killed at their estimate.
    first_submit_s, last_submit_s : float
        First and last submission, in seconds from time zero (Table 3.5).
    virtual_end_s : float
        Time at which the last submitted job would end if it started immediately (Table 3.6).
    first_submit, last_submit : datetime.datetime or None
        Local dates of the first and last submission (Table 3.5); None if the date of time zero is unknown.
    timezone : str or None
        Time zone of these dates; None for UTC, or if the zone is unknown.
    """

    name: str
    jobs: int
    nodes: int | None
    width: MinAvgMax
    estimate_s: MinAvgMax
    run_s: MinAvgMax
    over_estimation: float
    interarrival_s: MinAvgMax | None
    area_node_s: float
    offered_load: float | None
    overran: int
    first_submit_s: float
    last_submit_s: float
    virtual_end_s: float
    first_submit: dt.datetime | None
    last_submit: dt.datetime | None
    timezone: str | None

    def to_dict(self) -> dict[str, object]:
        """Return the statistics as plain values for JSON, with dates in ISO 8601."""
        values: dict[str, object] = msgspec.to_builtins(self)
        return values

    def spread_rows(self) -> list[tuple[str, str, str, str]]:
        """Return table rows of the statistics that have three values: name with unit, minimum, average, maximum."""
        spreads = (
            ("width [nodes]", self.width, 2),
            ("estimate [s]", self.estimate_s, 0),
            ("run time [s]", self.run_s, 0),
            ("interarrival time [s]", self.interarrival_s, 0),
        )
        return [
            (name, _number(spread.min), _number(spread.avg, decimals), _number(spread.max))
            for name, spread, decimals in spreads
            if spread is not None
        ]

    def figure_rows(self) -> list[tuple[str, str]]:
        """Return table rows of the statistics that have one value: name with unit, and value."""
        return [
            ("jobs", f"{self.jobs:,}"),
            ("machine [nodes]", f"{self.nodes:,}" if self.nodes is not None else "not known"),
            ("average over-estimation factor", f"{self.over_estimation:.3f}"),
            ("killed at the estimate", f"{self.overran:,}"),
            ("offered load", f"{self.offered_load:.1%}" if self.offered_load is not None else "not known"),
            ("first submission", _moment(self.first_submit, self.first_submit_s)),
            ("last submission", _moment(self.last_submit, self.last_submit_s)),
            ("last submission [s]", _number(self.last_submit_s)),
            ("virtual end [s]", _number(self.virtual_end_s)),
        ]


def _number(value: float, decimals: int = 0) -> str:
    """Format a number with thousands separators, or with three significant digits if it is below 1."""
    return f"{value:,.{decimals}f}" if value >= 1 or value == 0 else f"{value:.3g}"


def _moment(date: dt.datetime | None, at_s: float) -> str:
    return f"{date:%Y-%m-%d %H:%M:%S %Z}" if date is not None else f"{span_text(at_s * 1000)} after time zero"


def describe(workload: Workload) -> TraceInfo:
    """Compute the statistics of a workload; raise InputError if the workload has no jobs."""
    if not len(workload):
        raise InputError(f"{workload.name}: there are no jobs to describe")
    first_ms, last_ms = int(workload.submit_ms[0]), int(workload.submit_ms[-1])
    area_node_ms = float(np.dot(workload.width.astype(np.float64), workload.run_ms.astype(np.float64)))
    capacity_node_ms = (workload.nodes or 0) * (last_ms - first_ms)
    return TraceInfo(
        name=workload.name,
        jobs=len(workload),
        nodes=workload.nodes,
        width=_min_avg_max(workload.width, 1),
        estimate_s=_min_avg_max(workload.estimate_ms, MS_PER_S),
        run_s=_min_avg_max(workload.run_ms, MS_PER_S),
        over_estimation=float(workload.estimate_ms.mean() / workload.run_ms.mean()),
        interarrival_s=_min_avg_max(np.diff(workload.submit_ms), MS_PER_S) if len(workload) > 1 else None,
        area_node_s=area_node_ms / MS_PER_S,
        offered_load=area_node_ms / capacity_node_ms if capacity_node_ms else None,
        overran=int(workload.overran.sum()),
        first_submit_s=first_ms / MS_PER_S,
        last_submit_s=last_ms / MS_PER_S,
        virtual_end_s=(last_ms + int(workload.run_ms[-1])) / MS_PER_S,
        first_submit=_date(workload, first_ms),
        last_submit=_date(workload, last_ms),
        timezone=known_zone(workload.timezone),
    )


def _min_avg_max(values: IntArray, unit: int) -> MinAvgMax:
    return MinAvgMax(float(values.min()) / unit, float(values.mean()) / unit, float(values.max()) / unit)


def _date(workload: Workload, at_ms: int) -> dt.datetime | None:
    if workload.start_unix_s is None:
        return None
    return local_datetime(workload.start_unix_s + at_ms // MS_PER_S, workload.timezone)
