"""The jobs of a scenario as a live run submits them: when, to whom, and which program they run."""

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
"""Real time for which a job would work on past its limit that overran it."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to be submitted ``submit_ms`` of real time after time 0 of the scenario; to the grid if it has no site."""

    row: int
    submit_ms: int
    site: str | None
    request: JobRequest
    cancel_ms: int | None = None  # when its user takes it back if it still waits


def compressed(built: Built, speed: float, name: str, clock: Clock = REAL_TIME) -> list[PlannedJob]:
    """Return the jobs of a scenario in the order of submission, as an array of this name, for a grid with a clock."""
    workload, found = built.workload, []
    # One that overran is ended at its limit, as it would be live, rather than by itself at that instant.
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
            traffic=_traffic(sends if built.net is not None else NOTHING),
            array=ArrayPlace(name=name, index=row),
        )
        cancelled_ms = None if cancel_ms < 0 else round(cancel_ms)
        found.append(PlannedJob(row, round(submit_ms), site, request, cancelled_ms))
    return found


def _traffic(sends: Sends) -> Traffic:
    """Return what a job says that it sends: nothing, if that is so, whatever the grid takes other jobs to send."""
    said = sends.communication
    if said.pattern == "none" or not said.fraction:
        return Traffic(communication="none")
    return Traffic(pattern=said.pattern, fraction=said.fraction, message_bytes=said.message_bytes)


def working(work_ms: float, *, goes_on: bool = False) -> Program:
    """Return the program of a job: one process on each of its sites, which does so much work at its present rate.

    Parameters
    ----------
    work_ms : float
        Work in ms of real time at rate 1.
    goes_on : bool
        Whether it saves what it has done when it has to leave its nodes, and goes on from there when it starts again.
    """
    argv = ("python3", "-I", "-S", "-c", _worker_text(), f"{work_ms:.3f}", *[worker.GOES_ON] * goes_on)
    # Workers have nothing to write, and nothing to do when they are told to end.
    return Program(
        argv=argv,
        ranks="first-node",
        output_limit_bytes=1 << 10,
        grace_ms=1_000,
        checkpoint_signal="USR1" if goes_on else None,
    )


@functools.cache
def _worker_text() -> str:
    """Return the text of the worker without its comments."""
    tree = ast.parse(inspect.getsource(worker))
    for node in [tree, *tree.body]:
        if isinstance(node, ast.Module | ast.FunctionDef):
            node.body = [each for each in node.body if not _is_text(each)]
    return ast.unparse(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
