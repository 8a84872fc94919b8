"""Beyond the thesis: whether it is the decider or the candidates, and what perfect hindsight would gain.

dynP with the advanced decider over more and fewer candidates, beside the best single policy of its three, and beside
the best of the three for each month and for each week: the jobs submitted then count as the best policy's whole run
has them, so that it is no schedule, but shows what a choice by months or weeks could gain at best.
"""

from __future__ import annotations

import numpy as np

from gridweave.scenarios.published.report import OURS, Findings, Row, Section, our_values
from gridweave.scenarios.published.streit import ThesisJobs
from gridweave.scenarios.published.streit_dynp import TuningRuns
from gridweave.scenarios.workload.table import IntArray
from gridweave.site.disciplines.dynp.policy import THREE, DynPPolicy

CANDIDATES = (("fcfs", "sjf"), THREE, (*THREE, "saf"), (*THREE, "saf", "laf", "bfit", "wfit"))
"""The traces give no weights and no priorities, so that the other three orders are no others there."""

_WEEK_MS = 7 * 24 * 3600 * 1000


def report(table: str, study: TuningRuns) -> Findings:
    """Return SLDwA by trace."""
    rows = [_row(study, key, jobs) for key, jobs in study.runs.present().items()]
    section = Section(
        title="SLDwA",
        headings=("trace",),
        columns=(
            "best of the three",
            *(f"dynP of {len(names)}" for names in CANDIDATES),
            "best by month",
            "best by week",
        ),
        rows=tuple(rows),
        layout=OURS,
    )
    return Findings(sections=(section,) if rows else (), missing=study.runs.missing())


def _row(study: TuningRuns, key: str, jobs: ThesisJobs) -> Row:
    workload = jobs.scheduled
    basic = [study.runs.result(key, "planning", order) for order in THREE]
    tuned = [study.sldwa(key, DynPPolicy(policies=names)) for names in CANDIDATES]
    months = jobs.trace.month_clock.months(workload.submit_ms, jobs.start_unix_s).of_job
    numbers = [
        min(result.metrics().sldwa for result in basic),
        *(sldwa for sldwa in tuned if sldwa is not None),
        *(_best_by(classes, study, key) for classes in (months, workload.submit_ms // _WEEK_MS)),
    ]
    return Row((key,), our_values(*numbers, decimals=3))


def _best_by(classes: IntArray, study: TuningRuns, key: str) -> float:
    """Return the SLDwA if in each class of jobs the best of the three policies counted."""
    workload = study.runs.at_hand(key).scheduled
    sums = []
    for order in THREE:
        response_ms = (study.runs.result(key, "planning", order).end_ms - workload.submit_ms).astype(np.float64)
        sums.append(np.bincount(classes - classes.min(), weights=workload.width * response_ms))
    area = float(np.sum(workload.width * workload.run_ms.astype(np.float64)))
    return float(np.min(sums, axis=0).sum()) / area
