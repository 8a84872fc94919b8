"""When a job of a site's own users starts, and why not sooner: what a live site says of that."""

from __future__ import annotations

import msgspec

from gridweave.site.explain import Explanation
from gridweave.site.job import JobRecord, State


class SiteForecast(msgspec.Struct, frozen=True, kw_only=True):
    """When a job starts at a site.

    Attributes
    ----------
    job_id : int, optional
        None for a quote.
    now_ms : int
    state : str
    nodes, free : int
        Of the site: how many it has, and how many are free.
    width : int
        Of the job.
    length_ms : int
        How long it may run.
    start_ms : int, optional
        When it starts, or has started; None: not known, or never.
    is_bound : bool
        Whether that can only become earlier.
    ahead : int
        How many jobs stand before it in the queue.
    waits_for : tuple of int
        The running jobs that end by then.
    reason : str
        Why it does not start now, in one line.
    """

    job_id: int | None
    now_ms: int
    state: State
    nodes: int
    free: int
    width: int
    length_ms: int
    start_ms: int | None = None
    is_bound: bool = False
    ahead: int = 0
    waits_for: tuple[int, ...] = ()
    reason: str = ""


def explained(
    answer: Explanation, now_ms: int, nodes: int, length_ms: int, *, is_quote: bool = False, state: State = "waiting"
) -> SiteForecast:
    """Return what a core says of a job that waits, or would.

    Parameters
    ----------
    nodes : int
        Of the site.
    length_ms : int
        How long the job may run.
    is_quote : bool
        Whether it was not handed in.
    """
    return SiteForecast(
        job_id=None if is_quote else answer.job_id,
        now_ms=now_ms,
        state=state,
        nodes=nodes,
        free=answer.free,
        width=answer.width,
        length_ms=length_ms,
        start_ms=answer.start_ms,
        is_bound=answer.is_bound,
        ahead=answer.place,
        waits_for=answer.waits_for,
        reason=answer.reason,
    )


def recorded(record: JobRecord, now_ms: int, nodes: int, free: int) -> SiteForecast:
    """Return what is known of a job that does not wait in the queue.

    Parameters
    ----------
    nodes, free : int
        Of the site.
    """
    told = {
        "held": record.reason or "it is kept from the queue",
        "starting": "it has its nodes, and is being started",
        "running": "it runs",
        "ended": f"it has ended: {record.outcome}" + (f": {record.reason}" if record.reason else ""),
    }
    return SiteForecast(
        job_id=record.job_id,
        now_ms=now_ms,
        state=record.state,
        nodes=nodes,
        free=free,
        width=record.request.nodes,
        length_ms=record.request.limit_ms,
        start_ms=record.start_ms,
        reason=told.get(record.state, record.reason),
    )
