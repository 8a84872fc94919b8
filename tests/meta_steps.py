"""A meta-scheduler spoken to event by event, as the sites and the users speak to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gridweave.grid.messages import FromSite, GridJobSubmitted
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Job
from gridweave.site.messages import Answer

RETRY_MS = 1000


def meta(*nodes: int, margin_ms: int = 0, **policy: Any) -> MetaCore:
    """Return a meta-scheduler over sites of so many nodes."""
    rng = np.random.default_rng(1)
    return MetaCore(nodes, GridPolicy(**policy), rng=rng, margin_ms=margin_ms, retry_ms=RETRY_MS)


def submitted(job_id: int, width: int, estimate_ms: int = 100) -> GridJobSubmitted:
    """Return the submission of a plain job."""
    return GridJobSubmitted(Job(job_id=job_id, width=width, estimate_ms=estimate_ms))


def step(core: MetaCore, now_ms: int, *events: Any) -> list[Any]:
    """Return what a meta-scheduler commands; its state must hold."""
    commands = core.handle(now_ms, *events)
    core.check_invariants()
    return commands


def said(site: int, *answers: Answer) -> list[FromSite]:
    """Return what a site says."""
    return [FromSite(site, answer) for answer in answers]
