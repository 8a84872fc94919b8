"""Whether a job waits for nodes of several sites that are on their way, or goes to one site: one rule. Pure.

Sites with pilots ask their batch systems for nodes ahead of work. Those that come first stand idle until the last is
there, which is worth it if the job gains more by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gridweave.grid.control.coallocation import Fragments
from gridweave.site.messages import Quoted


class Awaited(msgspec.Struct, frozen=True):
    """A split that can begin when the last of its nodes has come.

    Attributes
    ----------
    fragments : tuple of (int, int)
        Sites, and nodes of each.
    since_ms : int
        When the job began to wait for nodes that are to come.
    start_ms, end_ms : int
        When the last is expected, and when the job would end then.
    idle_node_ms : int
        What the nodes cost that are there first: their number times how long they wait, from ``since_ms`` on.
    alone_ms : int, optional
        When it would end on one site; None: on none.
    """

    fragments: Fragments
    since_ms: int
    start_ms: int
    end_ms: int
    idle_node_ms: int
    alone_ms: int | None

    @property
    def is_worth_it(self) -> bool:
        """Return whether the job gains more, on all its nodes, than nodes stand idle for it."""
        width = sum(nodes for _, nodes in self.fragments)
        return self.alone_ms is None or width * (self.alone_ms - self.end_ms) > self.idle_node_ms


def awaited(
    now_ms: int,
    since_ms: int,
    quotes: Mapping[int, Quoted],
    split: Callable[[Mapping[int, int]], tuple[Fragments, int] | None],
    alone_ms: int | None,
) -> Awaited | None:
    """Return the first split of a job over nodes that are there and nodes that are to come; None: there is none.

    Parameters
    ----------
    now_ms, since_ms : int
        The instant, and when the job began to wait for such nodes.
    quotes : dict from int to Quoted
        By site.
    split : callable
        Returns the fragments of the job on so many nodes of each site, and how long it takes then, or None.
    alone_ms : int, optional
        As in `Awaited`.
    """
    comes_ms = {
        site: max(now_ms, quote.coming_ms)
        for site, quote in quotes.items()
        if quote.takes_parts and quote.coming and quote.coming_ms is not None
    }
    for start_ms in sorted(set(comes_ms.values())):
        there = {site: quote.free if quote.takes_parts else 0 for site, quote in quotes.items()}
        for site, come_ms in comes_ms.items():
            there[site] += quotes[site].coming if come_ms <= start_ms else 0
        found = split(there)
        if found is not None:
            fragments, length_ms = found
            idle_node_ms = 0
            for site, nodes in fragments:
                first = min(nodes, quotes[site].free)
                idle_node_ms += first * (start_ms - since_ms)
                idle_node_ms += (nodes - first) * (start_ms - comes_ms.get(site, start_ms))
            return Awaited(fragments, since_ms, start_ms, start_ms + length_ms, idle_node_ms, alone_ms)
    return None
