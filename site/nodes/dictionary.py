"""Create the nodes of a site and its discipline from the site's policy."""

from __future__ import annotations

from gridweave.site.disciplines.dictionary import entry_of
from gridweave.site.disciplines.entry import Policy
from gridweave.site.kernels.limits import WeekClock
from gridweave.site.nodes.source import NodeSource, OwnNodes


def nodes_for(nodes: int, policy: Policy, week: WeekClock) -> NodeSource:
    """Return the idle nodes of a site, with their discipline.

    Parameters
    ----------
    nodes : int
        Nodes of the site, >= 1; if a batch system lends them, the most at one time.
    policy : Policy
    week : WeekClock
        Local time of the week.
    """
    entry = entry_of(policy)
    if entry.lender is not None:
        source: NodeSource = entry.lender.make(nodes, policy, week)
        return source
    return OwnNodes(nodes, entry.make(nodes, policy, week), entry.traits_of(policy))
