"""Playing a small site through, so that what decides is loaded, or compiled, before the first job comes."""

from __future__ import annotations

from gridweave.site.job import DescribeJob, JobRequest, Program
from gridweave.site.live import LiveSite
from gridweave.site.messages import (
    CommitHold,
    HoldNodes,
    LiveSiteEvent,
    RequestQuote,
    RunEnded,
    RunStarted,
    StartRun,
    UserSubmitted,
)
from gridweave.site.runs import SiteSettings

_MOST_ROUNDS = 50


def warm_up(settings: SiteSettings) -> LiveSite:
    """Play some jobs on a site of its own: of its users, one that fills it and some that wait; and of a grid.

    Returns
    -------
    LiveSite
        That site. Nothing is known of it to the one that will work.
    """
    site = LiveSite(settings)
    widths = [settings.nodes, settings.nodes, 1, 1]
    requests = [
        JobRequest(program=Program(argv=("true",)), nodes=width, limit_ms=1_000 * (number + 1))
        for number, width in enumerate(widths)
    ]
    events: list[LiveSiteEvent] = [UserSubmitted(str(number), request) for number, request in enumerate(requests)]
    events += [RequestQuote(1, 1, 1_000)]
    rest = _of_the_grid(requests[-1])
    now_ms = 0
    for _ in range(_MOST_ROUNDS):
        commands = site.handle(now_ms, *events)
        for job_id in site.book.records if now_ms == 0 else ():
            site.forecast(now_ms, job_id)
            site.quote(now_ms, requests[0])
        now_ms += 1
        events = []
        for command in commands:
            if isinstance(command, StartRun):
                key = command.agent, command.launch.job_id, command.launch.attempt
                events += [RunStarted(*key), RunEnded(*key, "finished")]
        if not events and not rest:
            break
        if not events:
            events = [rest.pop(0)]
            if isinstance(events[0], DescribeJob):
                events.append(rest.pop(0))
            if isinstance(events[-1], HoldNodes) and events[-1].start_ms is not None:
                now_ms = events[-1].start_ms - 10
    site.handle(100_000)
    return site


def _of_the_grid(request: JobRequest) -> list[LiveSiteEvent]:
    """Return a hold that starts at once, and one that is committed."""
    found: list[LiveSiteEvent] = []
    for job_id, start_ms in ((1, None), (2, 10_000)):
        found.append(DescribeJob(job_id, 1, request, 1_000, 0, 1, ("here",)))
        found.append(HoldNodes(job_id, 1, 1, 1_000, start_ms))
    return [*found, CommitHold(2, 1)]
