"""Create a site's nodes and discipline from its policy."""

from __future__ import annotations

from gridweave.site.disciplines.dictionary import entry_of
from gridweave.site.disciplines.entry import Policy
from gridweave.site.kernels.limits import WeekClock
from gridweave.site.nodes.source import NodeSource, OwnNodes


def nodes_for(nodes: int, policy: Policy, week: WeekClock) -> NodeSource:
    """Return a new site's idle nodes with their discipline.

    Parameters
    ----------
    nodes : int
        Number of nodes, >= 1; if a batch system provides them, the largest number at one time.
    policy : Policy
    week : WeekClock
        Local time of the week.
    """
    entry = entry_of(policy)
    if entry.lender is not None:
        source: NodeSource = entry.lender.make(nodes, policy, week)
        return source
    return OwnNodes(nodes, entry.make(nodes, policy, week), entry.traits_of(policy))
