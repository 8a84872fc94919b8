"""What was played live, by the records of its jobs, as a schedule beside the simulated one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gridweave.grid.kernels.state import FRAGMENT
from gridweave.scenarios.grid_results import GridRun
from gridweave.scenarios.grid_simulator import GridResult
from gridweave.scenarios.live_comparison import MAKESPAN_TOLERANCE, LiveRun
from gridweave.scenarios.results import NEVER
from gridweave.scenarios.scenario.build import Built
from gridweave.site.job import JobRecord


def live_run_of(
    built: Built,
    simulated: GridRun,
    records: Sequence[JobRecord],
    *,
    origin_ms: int,
    speed: float,
    remarks: Sequence[str] = (),
    where: str = "Ray",
    tolerance: float = MAKESPAN_TOLERANCE,
) -> LiveRun:
    """Return what became of the jobs of a scenario beside its simulation.

    Parameters
    ----------
    built : Built
        What was to be played.
    simulated : GridRun
    records : sequence of JobRecord
        What became of each job, in the order of the workload; times run as in the scenario.
    origin_ms : int
        What the clock of the records showed at time 0 of the scenario.
    speed : float
        How many ms of the scenario passed in one.
    remarks : sequence of str
    where : str
    tolerance : float
        As of `LiveRun`.

    Returns
    -------
    LiveRun
    """
    return LiveRun(
        simulated=simulated,
        # The grid hears of ends late, when a site's own queue may have used the nodes again: as if jobs shared them.
        live=replace(simulated, result=_schedule_of(built, records, origin_ms), shared=True),
        speed=speed,
        submitted_ms=np.array([record.submit_ms for record in records], np.int64) - origin_ms,
        outcomes=tuple(record.outcome or record.state for record in records),
        attempts=np.array([record.attempt for record in records], np.int64),
        remarks=tuple(remarks),
        where=where,
        tolerance=tolerance,
    )


def _schedule_of(built: Built, records: Sequence[JobRecord], origin_ms: int) -> GridResult:
    """Return what was played as the schedule that it is, in the time of the scenario."""
    numbers = {name: number for number, name in enumerate(built.site_names)}
    spans = [_played_span_ms(record, origin_ms) for record in records]
    places = [record.places if span[0] != NEVER else () for record, span in zip(records, spans, strict=True)]
    counts = np.array([len(parts) for parts in places], np.int64)
    fragments = [(numbers[site], nodes) for parts in places for site, nodes in parts]
    start_ms, end_ms = np.array(spans, np.int64).reshape(-1, 2).T
    ids = built.workload.job_id.tolist()
    return GridResult(
        workload=built.workload,
        nodes=built.nodes,
        policy=built.policy,
        start_ms=start_ms.copy(),
        end_ms=end_ms.copy(),
        fragments=np.array(fragments, FRAGMENT),
        first_fragment=np.where(counts > 0, np.cumsum(counts) - counts, 0),
        n_fragments=counts,
        refused=tuple((ids[row], r.reason) for row, r in enumerate(records) if r.state == "refused"),
    )


def _played_span_ms(record: JobRecord, origin_ms: int) -> tuple[int, int]:
    if record.start_ms is None or record.end_ms is None:
        return NEVER, NEVER
    return record.start_ms - origin_ms, record.end_ms - origin_ms
