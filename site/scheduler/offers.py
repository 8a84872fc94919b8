"""Offer shared nodes and chunks to the grid, and check whether an offer still holds."""

from __future__ import annotations

import msgspec

from gridweave.site.disciplines.base import ExpectedRun, SharedOffer
from gridweave.site.job import Job, why_impossible
from gridweave.site.messages import Quoted, RequestQuote, RunsLate, ToGrid
from gridweave.site.resources.shares import NODE, chunks_in_share
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.users.owner import GridJob, GridShare, OwnerPolicy


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


def share_at(site: SiteCore, owner: OwnerPolicy) -> GridShare:
    """Return the unused share that the owner of a site gives to the grid."""
    return GridShare(
        site.nodes,
        owner.nodes_for_grid(site.nodes),
        overlaps=site.traits.overlaps,
        share_of=site.source.share_of,
        counts_resources=site.traits.counts_resources,
    )


def with_chunks(
    quoted: Quoted, site: SiteCore, share: GridShare, now_ms: int, job: Job, expected: ExpectedRun | None
) -> Quoted:
    """Return the quote for a job that asks for chunks, with numbers of chunks, and why the job would start later."""

    def share_of(width: int) -> int:
        return site.source.share_of(msgspec.structs.replace(job, width=width))

    per_unit = (job.chunk.per_node if job.chunk else 0) or 1
    free, most = site.source.chunks_now(now_ms, job), site.source.most_chunks(job)
    if share.closed:
        free = 0
    elif not share.is_whole:
        free = chunks_in_share(share.left, free, per_unit, share_of)
        most = None if most is None else chunks_in_share(share.cap * NODE, most, per_unit, share_of)
    is_later = expected is not None and expected.start_ms > now_ms
    reason = site.source.outlook(now_ms, job, expected) if expected is not None and is_later else quoted.reason
    return msgspec.structs.replace(quoted, free=free, most=most, reason=reason)


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
