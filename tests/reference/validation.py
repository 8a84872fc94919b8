"""What must hold of every outcome, whatever the discipline, checked by brute force: `validate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reference.limits import applies, is_closed
from reference.model import Job, Limit, Outcome


def validate(
    outcome: Outcome, jobs: Iterable[Job], nodes: int, *, limits: Iterable[Limit] = (), week_offset_ms: int = 0
) -> list[str]:
    """Return what is wrong with an outcome, one line each; an empty list if nothing is.

    Parameters
    ----------
    outcome : Outcome
        Only ``start``, ``end``, ``refused``, ``cancelled`` and ``reservations`` are looked at, so that the answers of
        any simulator can be put in.
    jobs : iterable of Job
        All that were submitted.
    nodes : int
        Nodes of the site.
    limits : iterable of Limit
        Those that were in force.
    week_offset_ms : int
        Local time of instant zero, in milliseconds since Monday 00:00.

    Returns
    -------
    list of str
    """
    jobs = list(jobs)
    problems = [problem for job in jobs for problem in _problems_of(job, outcome)]
    known = {job.id for job in jobs}
    for name in ("start", "end", "refused", "cancelled"):
        problems += [
            f"{name} speaks of job {one}, which nobody submitted" for one in getattr(outcome, name) if one not in known
        ]
    if not problems:
        problems += _problems_of_nodes(outcome, jobs, nodes)
        for limit in limits:
            problems += _problems_of_limit(limit, outcome, jobs, week_offset_ms)
    return problems


def _problems_of(job: Job, outcome: Outcome) -> Iterator[str]:
    start, end, cancelled = (getattr(outcome, name).get(job.id) for name in ("start", "end", "cancelled"))
    if job.id in outcome.refused:
        if (start, end, cancelled) != (None, None, None):
            yield f"job {job.id} was refused and yet has a start, an end or a cancellation"
    elif start is None:
        if cancelled is None:
            yield f"job {job.id} was neither started, nor refused, nor cancelled"
        elif cancelled < job.submit or end is not None:
            yield f"job {job.id} was cancelled at {cancelled}: before it was there, or it ended without a start"
    elif start < job.submit:
        yield f"job {job.id} started at {start}, before its submission at {job.submit}"
    elif cancelled is None and end != start + min(job.run, job.estimate):
        yield f"job {job.id} started at {start} and ended at {end}; it runs {min(job.run, job.estimate)}"
    elif cancelled is not None and not (end == cancelled and start < end < start + min(job.run, job.estimate)):
        yield f"job {job.id} started at {start}, was cancelled at {cancelled} and ended at {end}"


def _problems_of_nodes(outcome: Outcome, jobs: list[Job], nodes: int) -> Iterator[str]:
    spans = [(outcome.start[job.id], outcome.end[job.id], job.width) for job in jobs if job.id in outcome.start]
    for request, answer in outcome.reservations.values():
        if answer.accepted:
            if answer.start != request.start or request.start < request.request:
                yield f"reservation {request.id} was accepted, but not as asked for, or in the past"
            spans.append((request.start, request.start + request.length, request.width))
    for instant in sorted({start for start, _, _ in spans}):
        used = sum(width for start, end, width in spans if start <= instant < end)
        if used > nodes:
            yield f"{used} of {nodes} nodes are in use at {instant}"


def _problems_of_limit(limit: Limit, outcome: Outcome, jobs: list[Job], week_offset_ms: int) -> Iterator[str]:
    alike = [job for job in jobs if job.id in outcome.start and applies(limit, job)]
    for job in alike:
        start = outcome.start[job.id]
        if limit.window is not None and is_closed(limit.window, start, week_offset_ms):
            yield f"job {job.id} started at {start}, within {limit}"
        together = [one for one in alike if outcome.start[one.id] <= start < outcome.end[one.id]]
        if limit.max_nodes is not None and sum(one.width for one in together) > limit.max_nodes:
            yield f"at {start} more nodes are in use than {limit}"
        if limit.max_jobs is not None and len(together) > limit.max_jobs:
            yield f"at {start} more jobs run than {limit}"
