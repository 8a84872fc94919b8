"""Playing a small grid through, so that what decides is loaded, or compiled, before the first job comes."""

from __future__ import annotations

from gridweave.grid.live import GridSettings, LiveGrid
from gridweave.grid.messages import FromLiveSite, GridMessage, LiveGridEvent, TellSite
from gridweave.site.job import JobRequest, Program
from gridweave.site.messages import (
    Answer,
    CommitHold,
    Ended,
    Enqueued,
    EnqueueJob,
    Held,
    HoldNodes,
    Quoted,
    RequestQuote,
    Started,
    UserSubmitted,
)

_MOST_ROUNDS = 50


def warm_up(settings: GridSettings) -> LiveGrid:
    """Play some jobs on a grid of its own: some that fill a site, one that waits, one on all sites; and forecast them.

    Returns
    -------
    LiveGrid
        That grid. Nothing is known of it to the one that will work.
    """
    grid = LiveGrid(settings)
    sizes = [nodes for _, nodes in settings.sites]
    widths = [max(sizes), max(sizes), sum(sizes), 1, 1]
    requests = [
        JobRequest(program=Program(argv=("true",)), nodes=max(1, width), limit_ms=1_000 * (number + 1))
        for number, width in enumerate(widths)
    ]
    events: list[LiveGridEvent] = [UserSubmitted(str(number), request) for number, request in enumerate(requests)]
    for now_ms in range(_MOST_ROUNDS):
        commands = grid.handle(now_ms, *events)
        for job_id in grid.book.records if now_ms == 0 else ():
            grid.forecast(now_ms, job_id)
        told = [command for command in commands if isinstance(command, TellSite)]
        events = [
            FromLiveSite(command.site, answer)
            for command in told
            for answer in _answers(command.message, now_ms + 1, sizes[command.site])
        ]
        if not events:
            break
    grid.quote(_MOST_ROUNDS, requests[-1])
    return grid


def _answers(message: GridMessage, now_ms: int, nodes: int) -> list[Answer]:
    """Return what a site says on which everything ends as soon as it has started."""
    match message:
        case HoldNodes(job_id=job_id, attempt=attempt, start_ms=start_ms) if start_ms is not None:
            return [Held(job_id, attempt)]
        case HoldNodes(job_id=job_id, attempt=attempt) | CommitHold(job_id=job_id, attempt=attempt):
            return [Started(job_id, attempt, now_ms), Ended(job_id, attempt, now_ms, "finished")]
        case EnqueueJob(job=job, attempt=attempt):
            begun = Started(job.job_id, attempt, now_ms)
            return [Enqueued(job.job_id, attempt), begun, Ended(job.job_id, attempt, now_ms, "finished")]
        case RequestQuote(quote_id=quote_id, width=width):
            return [Quoted(quote_id, nodes, now_ms if width <= nodes else None)]
        case _:
            return []
