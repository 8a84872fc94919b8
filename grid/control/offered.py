"""Choose among the sites' quotes for a job by the job's expected end, under limited control (docs/control.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.control.common import Delegation
from gridweave.grid.kernels.sharing import shared_end_ms
from gridweave.site.messages import Quoted


class PlaceChoice(NamedTuple):
    """The placement of a job that the grid chooses from the sites' quotes.

    Attributes
    ----------
    site : int, optional
        The site that gets the whole job; None if the job is split or stays with the grid.
    end_ms : int, optional
        The expected end at that site; None if the site starts the job immediately.
    is_hurried : bool
        Whether the site quoted an immediate start but has since received other jobs.
    split : Fragments, optional
        The fragments of a split.
    length_ms : int
        The length of the split job.
    is_ahead : bool
        Whether the sites of the split reserve nodes as they come free, instead of using nodes that are free now.
    """

    site: int | None = None
    end_ms: int | None = None
    is_hurried: bool = False
    split: Fragments | None = None
    length_ms: int = 0
    is_ahead: bool = False


def length_at(delegation: Delegation, site: int) -> int:
    """Return a job's length as quoted by a site, or the job's estimate if the site quoted none."""
    quote = delegation.quotes.get(site)
    return delegation.job.estimate_ms if quote is None or quote.length_ms is None else quote.length_ms


def end_at(delegation: Delegation, site: int, start_ms: int, delay_ms: int) -> int:
    """Return the end of a job that starts on a site at `start_ms`; a quoted length already includes the data delay."""
    quote = delegation.quotes.get(site)
    if quote is None or quote.length_ms is None:
        return start_ms + delay_ms + delegation.job.estimate_ms
    return start_ms + quote.length_ms


def last_quoted(jobs: Iterable[Delegation]) -> dict[int, Delegation]:
    """Return, by site, the job for which the site sent its latest quote."""
    last: dict[int, Delegation] = {}
    for job in jobs:
        for site, quote in job.quotes.items():
            if site not in last or quote.quote_id > last[site].quotes[site].quote_id:
                last[site] = job
    return last


def earliest_end(
    now_ms: int, delegation: Delegation, quotes: Mapping[int, Quoted], delay_ms: Mapping[int, int]
) -> tuple[int, int] | tuple[None, None]:
    """Return the earliest end of a job on one site, and that site; (None, None) if no site offers a start.

    Ties are broken by exclusive nodes before shared nodes, then earliest start, fewest free nodes, first site.
    """
    estimate_ms = delegation.job.estimate_ms
    ends: list[tuple[int, int, int, int, int]] = []
    for site, delay in delay_ms.items():
        start_ms, slowdown = quotes[site].start_ms, quotes[site].slowdown
        if start_ms is not None:
            ends.append((end_at(delegation, site, start_ms, delay), 0, start_ms, quotes[site].free, site))
        if slowdown is not None:
            end_ms = int(shared_end_ms(slowdown, np.int64(delay + estimate_ms), np.int64(now_ms)))
            ends.append((end_ms, 1, now_ms, 0, site))
    if not ends:
        return None, None
    end_ms, *_, site = min(ends)
    return end_ms, site
