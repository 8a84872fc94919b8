"""Convert a scenario's jobs to the submissions of a live run: submit time, site or grid, and program."""

from __future__ import annotations

import ast
import functools
import inspect
from dataclasses import dataclass

import numpy as np

from gridweave.grid.sends import NOTHING, Sends
from gridweave.scenarios.batch.stepped import job_messages, sends_of
from gridweave.scenarios.live import worker
from gridweave.scenarios.scenario.build import Built
from gridweave.site.job import ArrayPlace, JobRequest, Program, Traffic
from gridweave.site.service.clock import Clock

REAL_TIME = Clock()

_OVERRUN_MS = 60_000
"""Real time by which a job that overran would exceed its limit."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to submit to ``site``, or to the grid if None, ``submit_ms`` of real time after the scenario's time 0."""

    row: int
    submit_ms: int
    site: str | None
    request: JobRequest
    cancel_ms: int | None = None  # when to cancel the job if it is still waiting


def compressed(built: Built, speed: float, name: str, clock: Clock = REAL_TIME) -> list[PlannedJob]:
    """Return a scenario's jobs in submit order, for a grid with this clock.

    The jobs form an array called ``name``.
    """
    workload, planned_jobs = built.workload, []
    # A job that overran must still be running at its limit, so that the site kills it.
    overrun_ms = workload.overran * np.maximum(workload.run_ms, round(_OVERRUN_MS * speed))
    columns = zip(
        job_messages(workload),
        sends_of(workload),
        (workload.submit_ms / speed).tolist(),
        ((workload.run_ms + overrun_ms) / speed).tolist(),
        (workload.columns.get("cancel_ms", np.full(len(workload), -1)) / speed).tolist(),
        built.home.tolist(),
        built.to_grid.tolist(),
        strict=True,
    )
    for row, (job, sends, submit_ms, work_ms, cancel_ms, home, to_grid) in enumerate(columns):
        site = None if to_grid else built.site_names[home]
        request = JobRequest(
            program=working(work_ms, goes_on=site in built.sites_that_save),
            nodes=job.width,
            limit_ms=clock.shown_ms(job.estimate_ms / speed),
            name=f"job {job.job_id}",
            user="" if job.user is None else str(job.user),
            job_class="" if job.job_class is None else str(job.job_class),
            priority=job.priority,
            weight=job.weight,
            resources=job.resources,
            chunk=job.chunk,
            traffic=_traffic(sends if built.net is not None else NOTHING),
            array=ArrayPlace(name=name, index=row),
        )
        cancelled_ms = None if cancel_ms < 0 else round(cancel_ms)
        planned_jobs.append(PlannedJob(row, round(submit_ms), site, request, cancelled_ms))
    return planned_jobs


def _traffic(sends: Sends) -> Traffic:
    """Return the traffic that a job declares; always declare it, because a grid may assume other traffic by default."""
    communication = sends.communication
    if communication.pattern == "none" or not communication.fraction:
        return Traffic(communication="none")
    return Traffic(
        pattern=communication.pattern, fraction=communication.fraction, message_bytes=communication.message_bytes
    )


def working(work_ms: float, *, goes_on: bool = False) -> Program:
    """Return a job's program: on each site, one process that works at the job's current rate.

    Parameters
    ----------
    work_ms : float
        Work in ms of real time at rate 1.
    goes_on : bool
        Whether the job saves its remaining work when it leaves its nodes, and resumes with that work at its next start.
    """
    argv = ("python3", "-I", "-S", "-c", _worker_text(), f"{work_ms:.3f}", *[worker.GOES_ON] * goes_on)
    # Workers write no output and exit at once.
    return Program(
        argv=argv,
        ranks="first-node",
        output_limit_bytes=1 << 10,
        grace_ms=1_000,
        checkpoint_signal="USR1" if goes_on else None,
    )


@functools.cache
def _worker_text() -> str:
    """Return the source of the worker without docstrings and comments."""
    tree = ast.parse(inspect.getsource(worker))
    for node in [tree, *tree.body]:
        if isinstance(node, ast.Module | ast.FunctionDef):
            node.body = [statement for statement in node.body if not _is_docstring(statement)]
    return ast.unparse(tree)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
