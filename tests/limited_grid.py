"""A meta-scheduler under limited control and its sites' answers, for step-by-step tests."""

from __future__ import annotations

from typing import Any

from gridweave.grid.control.limited import LEASE_MS
from gridweave.grid.messages import FromSite, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.site.job import Job
from gridweave.site.messages import (
    Enqueued,
    EnqueueJob,
    Quoted,
    RequestQuote,
)
from meta_steps import meta, said, step, submitted

LATER = 10**6


def grid(*nodes: int, **options: Any) -> MetaCore:
    """Return a meta-scheduler with limited control; the default mode is sharing."""
    return meta(*nodes, **{"mode": "sharing", "control": "limited", **options})


def enqueue(job_id: int, width: int, attempt: int, now_ms: int, estimate_ms: int = 100) -> EnqueueJob:
    """Return the delegation of a plain job."""
    return EnqueueJob(Job(job_id=job_id, width=width, estimate_ms=estimate_ms), attempt, now_ms + LEASE_MS)


def offered(commands: list[Any], *offers: tuple[int, int | None] | None) -> list[FromSite]:
    """Return answers to requests for quotes: (free nodes, earliest start) per site, or None for a silent site."""
    asked = [c for c in commands if isinstance(c, ToSite) and isinstance(c.request, RequestQuote)]
    answers = []
    for command in asked:
        offer = offers[command.site]
        if offer is not None:
            answers += said(command.site, Quoted(command.request.quote_id, *offer))
    return answers


def delegated(core: MetaCore, job_id: int, width: int, now_ms: int = 0, *, to: int = 0, wait_ms: int = LATER) -> None:
    """Let a job be delegated to a site, where it waits."""
    asked = step(core, now_ms, submitted(job_id, width))
    sites = sum(isinstance(command.request, RequestQuote) for command in asked)
    starts: list[tuple[int, int | None]] = [(0, now_ms + wait_ms + (site != to)) for site in range(sites)]
    (command,) = step(core, now_ms, *offered(asked, *starts))
    assert command == ToSite(to, enqueue(job_id, width, 2, now_ms))
    assert step(core, now_ms, *said(to, Enqueued(job_id, 2))) == []
