"""When a job would end at the sites that have quoted it a start, under limited control (docs/control.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.control.common import Delegation
from gridweave.grid.kernels.sharing import shared_end_ms
from gridweave.site.messages import Quoted


class PlaceChoice(NamedTuple):
    """Where a job goes by the quotes of the sites.

    Attributes
    ----------
    site : int, optional
        The site in whose queue it is put. None: it is split, or stays with the grid.
    end_ms : int, optional
        When it is expected to end there; None: the site starts it at once.
    is_hurried : bool
        Whether it waits only because others were sent there since the site quoted a start at once.
    split : Fragments, optional
        How it is split, over sites that have the nodes free, or reserve them ahead if `is_ahead`.
    length_ms : int
        How long it takes split.
    """

    site: int | None = None
    end_ms: int | None = None
    is_hurried: bool = False
    split: Fragments | None = None
    length_ms: int = 0
    is_ahead: bool = False


def length_at(delegation: Delegation, site: int) -> int:
    """Return how long a site expects a job to take; its estimate, if the site does not report that."""
    quote = delegation.quotes.get(site)
    return delegation.job.estimate_ms if quote is None or quote.length_ms is None else quote.length_ms


def end_at(delegation: Delegation, site: int, start_ms: int, delay_ms: int) -> int:
    """Return when a job ends that starts at a site then; a length quoted by the site includes the delay of its data."""
    quote = delegation.quotes.get(site)
    if quote is None or quote.length_ms is None:
        return start_ms + delay_ms + delegation.job.estimate_ms
    return start_ms + quote.length_ms


def earliest_end(
    now_ms: int, delegation: Delegation, quotes: Mapping[int, Quoted], delay_ms: Mapping[int, int]
) -> tuple[int, int] | tuple[None, None]:
    """Return when a job would end first on one site, and the site; None twice if no site offers it a start.

    Ties: a site where it runs alone, then the earliest start, the fewest free nodes, the first site.
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
