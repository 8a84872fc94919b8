"""How it stands with a job that waits in the queue of a site: what the grid knows of that without asking.

When it starts there, the site knows; what it says is put beside this by `gridweave.grid.explain.words`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gridweave.grid.control.common import ASKING, BACKLOG, RUNNING, WITHDRAWING, Delegation
from gridweave.grid.explain.facts import GridForecast, SiteFacts, SiteWhy, Why
from gridweave.site.job import Job


def delegated_forecast(now_ms: int, delegation: Delegation, nodes: Sequence[int], retry_ms: int) -> GridForecast:
    """Return how it stands with a job under limited control.

    Parameters
    ----------
    nodes : sequence of int
        Of each site.
    retry_ms : int
        When the sites are asked again for jobs that found no place.
    """
    job, site = delegation.job, delegation.site
    why: Why = "delegated"
    if delegation.state in (ASKING, BACKLOG):
        why, site = ("asking" if delegation.state == ASKING else "backlog"), -1
    elif delegation.state in (WITHDRAWING, RUNNING):
        why = "moving" if delegation.state == WITHDRAWING else "running"
    quote = delegation.quotes.get(site)
    length_ms = job.estimate_ms
    return GridForecast(
        job_id=job.job_id,
        now_ms=now_ms,
        width=job.width,
        estimate_ms=job.estimate_ms,
        why=why,
        start_ms=None if quote is None else quote.start_ms,
        fragments=() if site < 0 else ((site, job.width),),
        length_ms=0 if site < 0 else length_ms,
        held=tuple(sorted(delegation.quotes)) if why == "asking" else (),
        retry_ms=retry_ms,
        sites=tuple(_quoted(delegation, site, size) for site, size in enumerate(nodes)),
    )


def _quoted(delegation: Delegation, site: int, nodes: int) -> SiteFacts:
    """Return what a site has said last of a job."""
    quote = delegation.quotes.get(site)
    if quote is None:
        why: SiteWhy = "small" if nodes < delegation.job.width else "silent"
        return SiteFacts(site=site, nodes=nodes, free=0, why=why)
    return SiteFacts(
        site=site,
        nodes=nodes,
        free=quote.free,
        why="quoted",
        start_ms=quote.start_ms,
        since_ms=delegation.quoted_ms[site],
        detail=quote.reason,
    )


def sent_forecast(
    now_ms: int, job: Job, place: int | None, nodes: Sequence[int], loads: Sequence[int | None], retry_ms: int
) -> GridForecast:
    """Return how it stands with a job without control.

    Parameters
    ----------
    place : int or None
        The site that it was sent to; None if all have refused it.
    nodes : sequence of int
        Of each site.
    loads : sequence of int or None
        For how long each site is busy with what it was sent; None for one that has refused.
    retry_ms : int
        When it is sent again, if all have refused it.
    """
    return GridForecast(
        job_id=job.job_id,
        now_ms=now_ms,
        width=job.width,
        estimate_ms=job.estimate_ms,
        why="turned-away" if place is None else "sent",
        fragments=() if place is None else ((place, job.width),),
        length_ms=0 if place is None else job.estimate_ms,
        retry_ms=retry_ms,
        sites=_loaded(job, nodes, loads),
    )


def unasked_forecast(
    now_ms: int, job: Job, nodes: Sequence[int], refusal: str, loads: Sequence[int | None] | None = None
) -> GridForecast:
    """Return what can be said of a job that nobody has been asked about.

    Parameters
    ----------
    nodes : sequence of int
        Of each site.
    refusal : str
        Why it would be refused; empty if not.
    loads : sequence of int or None, optional
        As for `sent_forecast`.
    """
    silent = tuple(
        SiteFacts(site=site, nodes=size, free=0, why="small" if size < job.width else "silent")
        for site, size in enumerate(nodes)
    )
    return GridForecast(
        job_id=job.job_id,
        now_ms=now_ms,
        width=job.width,
        estimate_ms=job.estimate_ms,
        why="refused" if refusal else "unasked" if loads is None else "unsent",
        detail=refusal,
        sites=() if refusal else silent if loads is None else _loaded(job, nodes, loads),
    )


def _loaded(job: Job, nodes: Sequence[int], loads: Sequence[int | None]) -> tuple[SiteFacts, ...]:
    found = []
    for site, (size, load_ms) in enumerate(zip(nodes, loads, strict=True)):
        why: SiteWhy = "small" if size < job.width else "refused" if load_ms is None else "load"
        found.append(SiteFacts(site=site, nodes=size, free=0, why=why, load_ms=load_ms or 0))
    return tuple(found)
