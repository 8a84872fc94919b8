"""What a site whose nodes jobs share by hardware threads offers the grid, and whether that still holds."""

from __future__ import annotations

import msgspec

from gridweave.site.disciplines.base import SharedOffer
from gridweave.site.job import Job, why_impossible
from gridweave.site.messages import Quoted, RequestQuote, RunsLate, ToGrid
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.users.owner import GridJob


def offered(site: SiteCore, now_ms: int, job: Job, room: int) -> SharedOffer | None:
    """Return how a job could share nodes now, if it is known what it needs, and the site shares any."""
    is_known = job.resources is not None or job.assumed is not None
    if not is_known or job.width > room or why_impossible(job) is not None:
        return None
    return site.sharing_offered(now_ms, job)


def untold_job(request: RequestQuote) -> Job:
    """Return a job of which a site is told no more than a request for a quote says."""
    needs = {"resources": request.resources, "assumed": request.assumed}
    untold = Job(job_id=0, width=request.width, estimate_ms=request.length_ms, user_name=request.user)
    return msgspec.structs.replace(untold, **needs)


def with_offer(quoted: Quoted, site: SiteCore, now_ms: int, job: Job, room: int) -> Quoted:
    """Return a quote with how a job could share nodes now, if it could."""
    offer = offered(site, now_ms, job, room)
    return quoted if offer is None else msgspec.structs.replace(quoted, slowdown=offer.slowdown, beside=offer.beside)


def new_rate(site: SiteCore, now_ms: int, job_id: int, part: GridJob) -> list[ToGrid]:
    """Return what a grid that has placed a job itself is told when others on its nodes slow it, or do so no more.

    Such a grid counts on the end of the job. One that has delegated it leaves that to the site.
    """
    is_placed = part.lease_until_ms == 0 and not part.shared
    if not is_placed or not site.traits.assigns_threads:
        return []
    left = site.limit_left_ms(now_ms, job_id) * part.rate
    return [ToGrid(RunsLate(job_id, part.attempt, left, part.rate, now_ms))]


def why_not_placed(site: SiteCore, now_ms: int, job: Job, beside: float | None) -> str | None:
    """Return why a job cannot start as the grid has placed it, on its own nodes or beside others, or None.

    The site would start it either way. What the other way costs the grid has not weighed. `beside` is how many times as
    long as alone the job may take beside others; None: it is to have its nodes alone.
    """
    if beside is None:
        left = site.startable(now_ms, job.estimate_ms)
        return f"it needs {job.width} nodes of its own now; {left} are left for it" if left < job.width else None
    offer = offered(site, now_ms, job, job.width)
    if offer is None:
        return "no running job matches it now"
    dear = f"beside others it would take {offer.slowdown:.2f} times as long now, and not {beside:.2f}"
    return dear if offer.slowdown > beside * (1 + 1e-9) else None
