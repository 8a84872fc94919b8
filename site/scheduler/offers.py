"""Offer shared nodes to the grid, and check whether an offer still holds."""

from __future__ import annotations

import msgspec

from gridweave.site.disciplines.base import SharedOffer
from gridweave.site.job import Job, why_impossible
from gridweave.site.messages import Quoted, RequestQuote, RunsLate, ToGrid
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.users.owner import GridJob


def offered(site: SiteCore, now_ms: int, job: Job, capacity: int) -> SharedOffer | None:
    """Return an offer of shared nodes for a job; None if the job's needs are unknown or no running job can share."""
    is_known = job.resources is not None or job.assumed is not None
    if not is_known or job.width > capacity or why_impossible(job) is not None:
        return None
    return site.sharing_offered(now_ms, job)


def untold_job(request: RequestQuote) -> Job:
    """Return a placeholder job with only the fields of a quote request."""
    needs = {"resources": request.resources, "assumed": request.assumed}
    untold = Job(job_id=0, width=request.width, estimate_ms=request.length_ms, user_name=request.user)
    return msgspec.structs.replace(untold, **needs)


def with_offer(quoted: Quoted, site: SiteCore, now_ms: int, job: Job, capacity: int) -> Quoted:
    """Return the quote, with an offer of shared nodes added if the site can make one."""
    offer = offered(site, now_ms, job, capacity)
    if offer is None:
        return quoted
    fields = {"slowdown": offer.slowdown, "beside": offer.beside, "shared_ms": offer.start_ms}
    return msgspec.structs.replace(quoted, **fields)


def new_rate(site: SiteCore, now_ms: int, job_id: int, part: GridJob) -> list[ToGrid]:
    """Return the message that reports a job's new rate on shared nodes to the grid.

    Only a grid that placed the job itself needs the message, because it plans with the job's new end. The list is
    empty for delegated jobs, and at sites that do not assign hardware threads.
    """
    is_placed = part.lease_until_ms == 0 and not part.shared
    if not is_placed or not site.traits.assigns_threads:
        return []
    left = site.limit_left_ms(now_ms, job_id) * part.rate
    return [ToGrid(RunsLate(job_id, part.attempt, left, part.rate, now_ms))]


def why_not_placed(site: SiteCore, now_ms: int, job: Job, beside: float | None) -> str | None:
    """Return why a job cannot start on the kind of nodes that the grid chose, i.e. free or shared nodes, or None.

    Even if the other kind of nodes is available, the site does not use it, as the grid has not considered its cost.
    `beside` is the largest accepted slowdown on shared nodes, or None if the grid wants free nodes.
    """
    if beside is None:
        left = site.startable(now_ms, job.estimate_ms)
        return f"it needs {job.width} unshared nodes now; it can get only {left}" if left < job.width else None
    offer = offered(site, now_ms, job, job.width)
    if offer is None:
        return "no running job matches it now"
    dear = f"on shared nodes it would now take {offer.slowdown:.2f} times as long, not {beside:.2f}"
    return dear if offer.slowdown > beside * (1 + 1e-9) else None
