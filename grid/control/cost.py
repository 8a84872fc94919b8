"""The cost of a split, as numbers and as a sentence for forecasts, records and histories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import msgspec

from gridweave.netmodel.communication import Communication
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.tables import show_bandwidth
from gridweave.site.explain import Places, places_text
from gridweave.site.launch import SplitCost
from gridweave.site.times import span_text


def split_cost(
    placement: Places,
    whole_ms: int,
    length_ms: int,
    model: NetworkModel | None = None,
    communication: Communication | None = None,
    *,
    names: Sequence[str] = (),
    traffic: str = "",
) -> SplitCost:
    """Return the cost of splitting a job over these sites.

    Parameters
    ----------
    placement : tuple of (str, int)
        At least two sites, with the number of nodes on each.
    whole_ms, length_ms : int
        The job's limit on one site, and its limit in this split.
    model : NetworkModel, optional
        The links between the sites. Without it the factor is the ratio of the two limits.
    communication : Communication, optional
        The job's traffic; required with a model.
    names : sequence of str
        Names of all sites of the grid, in the order of the model's sites.
    traffic : str
        The job's traffic in words, and where it was specified.

    Examples
    --------
    >>> split_cost((("north", 3), ("south", 1)), 600_000, 750_000).text
    'split over north (3) and south (1): 12 min 30 s instead of 10 min (factor 1.25)'
    """
    if model is None or communication is None:
        cost = SplitCost(whole_ms=whole_ms, length_ms=length_ms, factor=length_ms / max(1, whole_ms))
    else:
        latency_ms, bandwidth_bps = _between(model, [names.index(site) for site, _ in placement])
        cost = SplitCost(
            whole_ms=whole_ms,
            length_ms=length_ms,
            factor=factor_on_links(model, communication, placement, names),
            latency_ms=latency_ms,
            bandwidth_bps=bandwidth_bps,
            communication=traffic,
        )
    return msgspec.structs.replace(cost, text=_text(placement, cost))


def named(fragments: Iterable[tuple[int, int]], names: Sequence[str]) -> Places:
    """Replace the site numbers of fragments with site names."""
    return tuple((names[site], nodes) for site, nodes in fragments)


def bound_text(max_split_factor: float) -> str:
    """Return a clause that states the largest allowed split factor."""
    return f"grid.max_split_factor allows {max_split_factor:g}"


def factor_on_links(
    model: NetworkModel, communication: Communication, placement: Places, names: Sequence[str]
) -> float:
    """Return the factor by which a job takes longer on these sites; `names` lists all sites in the model's order."""
    nodes = {model.topology.sites[names.index(site)]: width for site, width in placement}
    return model.split_factor(communication, nodes)


def _between(model: NetworkModel, numbers: Sequence[int]) -> tuple[float, float]:
    """Return the largest one-way latency and the smallest bandwidth between any two of these sites."""
    pairs = [pair for site, other in combinations(numbers, 2) for pair in ((site, other), (other, site))]
    latency_ms = max(float(model.paths.latency_ms[pair]) for pair in pairs)
    return latency_ms, min(float(min(model.paths.bandwidth_bps[pair], model.paths.stream_bps[pair])) for pair in pairs)


def _text(placement: Places, cost: SplitCost) -> str:
    lengths = f"{span_text(cost.length_ms)} instead of {span_text(cost.whole_ms)}"
    text = f"split over {places_text(placement)}: {lengths} (factor {cost.factor:.2f}"
    if cost.latency_ms is None or cost.bandwidth_bps is None:
        return text + ")"
    latency, bandwidth = f"{cost.latency_ms:.3g} ms", show_bandwidth(cost.bandwidth_bps)
    links = f"{latency}, {bandwidth}" if len(placement) == 2 else f"up to {latency}, at least {bandwidth}"
    return f"{text}: {links} between them)"
