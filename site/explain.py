"""The answer to "when will this job start, and why not earlier?"."""

from __future__ import annotations

import msgspec


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What a site says about a job that waits.

    Attributes
    ----------
    job_id : int
    place : int
        Its place in the queue; 0 is the head.
    start_ms : int or None
        When it will start: the planned or reserved start, or the shadow time of the head. None where the discipline
        promises nothing (a queue, to the jobs behind the head).
    is_bound : bool
        Whether ``start_ms`` is guaranteed: it can only become earlier, as long as no estimate is exceeded and (in a
        queue) no job goes ahead of this one. Never on a planning site, whose plan is made anew, nor with slack.
    width, free : int
        The nodes that it needs, and those that are free now.
    waits_for : tuple of int
        Ids of the running jobs that end by then, by their estimates; empty where no start is promised.
    reason : str
        One sentence for a person.
    """

    job_id: int
    place: int
    start_ms: int | None
    is_bound: bool
    width: int
    free: int
    waits_for: tuple[int, ...]
    reason: str
