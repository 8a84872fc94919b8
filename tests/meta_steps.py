"""Drive a meta-scheduler event by event, in place of its sites and users."""

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
    """Return a meta-scheduler for sites with these numbers of nodes."""
    rng = np.random.default_rng(1)
    return MetaCore(nodes, GridPolicy(**policy), rng=rng, margin_ms=margin_ms, retry_ms=RETRY_MS)


def submitted(job_id: int, width: int, estimate_ms: int = 100) -> GridJobSubmitted:
    """Return the submission of a plain job."""
    return GridJobSubmitted(Job(job_id=job_id, width=width, estimate_ms=estimate_ms))


def step(core: MetaCore, now_ms: int, *events: Any) -> list[Any]:
    """Handle events at an instant, check the invariants, and return the commands."""
    commands = core.handle(now_ms, *events)
    core.check_invariants()
    return commands


def said(site: int, *answers: Answer) -> list[FromSite]:
    """Return a site's answers as events of the grid."""
    return [FromSite(site, answer) for answer in answers]
