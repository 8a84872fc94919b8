"""Place a single job on free nodes given by the caller, with the kernels of the grid queue. Pure.

Sites with pilots request nodes from their batch systems before there is work for them, so a job may wait for a split
over nodes that have not arrived yet. The nodes that arrive first are then idle until the last one arrives. The wait is
worth it if the job gains more node time than the nodes are idle (`Awaited.is_worth_it`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.control.cost import bound_text, named, split_cost
from gridweave.grid.control.links import GridNetwork, KnownLinks, LinksState, unbounded
from gridweave.grid.kernels.links import NO_DATA
from gridweave.grid.kernels.links_placement import take_parts
from gridweave.grid.kernels.overhead import split_length_ms
from gridweave.grid.kernels.placement import GridCodes, choose_site, may_split
from gridweave.grid.kernels.state import GridState, SiteNodes, Slot, empty_grid
from gridweave.grid.messages import LinksChanged, PathsMeasured
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import Sends
from gridweave.netmodel.communication import communication_text
from gridweave.netmodel.model import NetworkModel
from gridweave.site.explain import SplitReason
from gridweave.site.job import Job
from gridweave.site.kernels.state import NO_PLACE
from gridweave.site.messages import Quoted

SLOT = np.int64(0)
"""The only slot of the arrays of `OneJob`."""


def split_over(
    state: GridState, codes: GridCodes, slot: Slot, free: SiteNodes, when_ms: int
) -> tuple[Fragments, int] | None:
    """Return the fragments of a split over free nodes at `when_ms`, and the split job's length; None if impossible.

    The call can change `free`.
    """
    if not take_parts(state, codes, codes.net, slot, free, np.int64(when_ms)):
        return None
    taken = state.taken[: state.counters[0]["n_taken"]]
    return tuple(taken.tolist()), int(split_length_ms(state, codes, slot, state.jobs["estimate_ms"][slot]))


class OneJob:
    """Arrays with a single slot, in which jobs are placed one after the other; no job stays in the slot.

    `moves_data` is true if jobs occupy their sites while their data is transferred.
    """

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, network: GridNetwork | None = None) -> None:
        self._nodes = list(nodes)
        self._state = empty_grid(np.array(nodes, np.int64), slots=1)
        self._codes = policy.codes()
        self.moves_data = network is not None and network.staging != NO_DATA
        self._links: KnownLinks | None = None
        if network is not None:
            self._links = KnownLinks(network, slots=1, widest=max(1, sum(nodes)))
            self._codes = self._codes._replace(net=self._links.arrays)

    @property
    def model(self) -> NetworkModel | None:
        """The current model of the links, or None."""
        return None if self._links is None else self._links.model

    def choose_site(self, job: Job, draw: float, fitting: Sequence[int], free: Mapping[int, int]) -> int | None:
        """Return the site that the policy selects among the `fitting` sites; None if there are none.

        `free` has the numbers of free nodes by which the policy compares sites. `draw` is the job's random number in
        [0, 1), for the selection ``random``.
        """
        self._enter(job)
        self._state.draw[SLOT] = draw
        available = np.zeros(len(self._state.nodes), np.int64)
        available[list(fitting)] = job.width
        state = self._state
        site = int(choose_site(state, self._codes, SLOT, available, self._vector(free), state.nodes))
        return None if site == NO_PLACE else site

    def links_changed(self, news: LinksChanged | PathsMeasured) -> None:
        """Use the changed links for all later placements."""
        if self._links is not None:
            self._links.change(news)
            self._codes = self._codes._replace(net=self._links.arrays)

    def state(self) -> LinksState | None:
        """Return the state of the links, or None without links."""
        return None if self._links is None else self._links.state()

    def restore(self, state: LinksState | None) -> None:
        """Restore the state of the links."""
        if self._links is not None and state is not None:
            self._links.restore(state)
            self._codes = self._codes._replace(net=self._links.arrays)

    def delay_ms(self, job: Job, sends: Sends, submit_ms: int, site: int, when_ms: int) -> int | None:
        """Return how long a job that starts at `when_ms` waits at a site for its data; None if the data has no path."""
        if self._links is None or not self.moves_data:
            return 0
        self._links.enter(0, job.width, sends)
        return self._links.data_delay_ms(0, submit_ms, site, when_ms)

    def may_split(self, job: Job, largest: int | None = None) -> bool:
        """Whether the policy's mode and lower bound permit splitting a job.

        `largest` is the widest such job that fits on one idle site; by default, the largest number of nodes.
        """
        self._enter(job)
        self._state.counters["largest"] = max(self._nodes) if largest is None else largest
        return bool(may_split(self._state, self._codes, SLOT))

    @property
    def news(self) -> list[LinksChanged | PathsMeasured]:
        """The messages that bring the links of a new `OneJob` to the state of this one."""
        return [] if self._links is None else self._links.news

    def split(
        self,
        job: Job,
        sensitivity: float,
        free: Mapping[int, int],
        sends: Sends,
        submit_ms: int,
        now_ms: int,
        *,
        at_any_cost: bool = False,
        largest: int | None = None,
    ) -> tuple[Fragments, int] | None:
        """Return the fragments of a split over free nodes, and the split job's length; None if impossible.

        With `at_any_cost`, the links may lengthen the job by any factor. For a job that asks for chunks, `free` counts
        chunks; for `largest` see `may_split`.
        """
        if not self.may_split(job, largest) or (self._links is not None and job.width > sum(self._nodes)):
            return None
        per_unit = (job.chunk.per_node if job.chunk else 0) or 1
        free = {site: count - count % per_unit for site, count in free.items()}
        codes = self._codes
        if at_any_cost and self._links is not None:
            codes = codes._replace(net=unbounded(self._links.arrays))
        self._state.sensitivity[SLOT] = sensitivity
        self._state.jobs["submit_ms"][SLOT] = submit_ms
        if self._links is not None:
            self._links.enter(0, job.width, sends)
        split = split_over(self._state, codes, SLOT, self._vector(free), now_ms)
        # With links, the sizes of the parts follow from the links alone.
        return None if split is None or any(width % per_unit for _, width in split[0]) else split

    def split_reason(
        self, job: Job, sends: Sends, fragments: Fragments, length_ms: int, names: Sequence[str]
    ) -> SplitReason:
        """Return the fragments and the cost of a split, as numbers and as text; `names` are the names of all sites."""
        placement, communication = named(fragments, names), sends.communication
        traffic = communication_text(communication)
        cost = split_cost(
            placement, job.estimate_ms, length_ms, self.model, communication, names=names, traffic=traffic
        )
        reason = f"it is {cost.text}"
        return SplitReason(places=placement, length_ms=length_ms, whole_ms=job.estimate_ms, reason=reason, cost=cost)

    def _enter(self, job: Job) -> None:
        # The job id matters: a search for a split may start from the cached result of the same job.
        self._state.jobs["job_id"][SLOT] = job.job_id
        self._state.jobs["width"][SLOT] = job.width
        self._state.jobs["estimate_ms"][SLOT] = job.estimate_ms

    def _vector(self, free: Mapping[int, int]) -> SiteNodes:
        vector = np.zeros(len(self._state.nodes), np.int64)
        for site, nodes in free.items():
            vector[site] = nodes
        return vector


def why_too_dear(
    nodes: Sequence[int],
    policy: GridPolicy,
    network: GridNetwork,
    news: Sequence[LinksChanged | PathsMeasured],
    asked: tuple[Job, Sends],
    names: Sequence[str],
) -> str | None:
    """Return why every split of a job over these nodes exceeds the allowed cost; None if some split does not.

    Return None if a split is affordable over the links either as configured or as they are now. Also return None if
    no split has a path between its parts, because links can recover.
    """
    job, sends = asked
    free = dict(enumerate(nodes))
    for changes in ((), news):
        one_job = OneJob(nodes, policy, network)
        for change in changes:
            one_job.links_changed(change)
        if one_job.split(job, 1.0, free, sends, 0, 0) is not None:
            return None
    split = one_job.split(job, 1.0, free, sends, 0, 0, at_any_cost=True)
    if split is None:
        return None
    fragments, length_ms = split
    placement = tuple((names[site], width) for site, width in fragments)
    cost = split_cost(placement, job.estimate_ms, length_ms, one_job.model, sends.communication, names=names)
    largest = f"it needs {job.width} nodes and the largest site has {max(nodes)}"
    bound = bound_text(network.max_split_factor)
    return f"{largest}; {cost.text}, and {bound}: if it communicates less, declare that with --communication"


class Awaited(msgspec.Struct, frozen=True):
    """A split that can start when the last of its nodes has arrived.

    Attributes
    ----------
    fragments : tuple of (int, int)
        Each site with its number of nodes.
    since_ms : int
        When the job began to wait for nodes that have not arrived.
    start_ms, end_ms : int
        When the last node is expected, and when the job would end.
    idle_node_ms : int
        The total idle time, from ``since_ms`` on, of the nodes that arrive before the last node, in node-milliseconds.
    alone_ms : int, optional
        The earliest end on a single site; None if no single site offers a start.
    """

    fragments: Fragments
    since_ms: int
    start_ms: int
    end_ms: int
    idle_node_ms: int
    alone_ms: int | None

    @property
    def is_worth_it(self) -> bool:
        """Whether the time gained by the split, times the job's width, exceeds the idle time of its nodes.

        Always true if no single site offers a start.
        """
        width = sum(nodes for _, nodes in self.fragments)
        return self.alone_ms is None or width * (self.alone_ms - self.end_ms) > self.idle_node_ms


def awaited(
    now_ms: int,
    since_ms: int,
    quotes: Mapping[int, Quoted],
    split: Callable[[Mapping[int, int]], tuple[Fragments, int] | None],
    alone_ms: int | None,
) -> Awaited | None:
    """Return the earliest split of a job over free nodes and nodes that have not arrived yet; None if impossible.

    Parameters
    ----------
    now_ms, since_ms : int
        The current time, and when the job began to wait for nodes that have not arrived.
    quotes : dict from int to Quoted
        The sites' quotes for the job.
    split : callable
        Given the nodes of each site, returns the fragments of the job and its length, or None.
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
        placement = split(there)
        if placement is not None:
            fragments, length_ms = placement
            idle_node_ms = 0
            for site, nodes in fragments:
                first = min(nodes, quotes[site].free)
                idle_node_ms += first * (start_ms - since_ms)
                idle_node_ms += (nodes - first) * (start_ms - comes_ms.get(site, start_ms))
            return Awaited(fragments, since_ms, start_ms, start_ms + length_ms, idle_node_ms, alone_ms)
    return None
