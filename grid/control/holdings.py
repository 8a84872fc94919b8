"""What the jobs of the grid queue hold, and what they cannot use, on the nodes of sites that count resources.

The queue chooses nodes by the rule that the sites follow, too (docs/resources.md, rule 4). While messages are under
way, a site can choose other nodes; the queue then follows the site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec
import numpy as np

from gridweave.grid.kernels.grid_queue import change_free
from gridweave.grid.kernels.resource_placement import let_go_of_site
from gridweave.grid.kernels.resources import CountedSite, GridNodes
from gridweave.grid.kernels.state import GridState
from gridweave.site.array_tasks import indexes_of
from gridweave.site.disciplines.queue_nodes import ABSENT
from gridweave.site.job import NodeIntervals
from gridweave.site.kernels.chunks import CORES, Amounts, held_nodes, hold_chosen
from gridweave.site.messages import NodeAmounts
from gridweave.site.resources.chunks import Chunk, capacity_of, columns_of, request_of

OWN_JOBS = -1
"""Stands for the jobs of a site's own users."""

PAUSE = -2
"""Stands for what is left alone because the site has just refused a job or has not answered."""


class HoldingsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of `Holdings`: (site, cause, amounts by node), and (job, site, nodes)."""

    unavailable: list[tuple[int, int, NodeAmounts]]
    moves: list[tuple[int, int, NodeIntervals]]


class Holdings:
    """What is unavailable to the grid queue, by site and cause: `OWN_JOBS`, `PAUSE`, or the id of another grid job.

    Every method with a parameter ``state`` changes the free amounts in the queue's arrays. Nodes are numbered from 0 at
    each site, and the columns of amounts are the resources of all sites.
    """

    def __init__(self, sites: Sequence[CountedSite]) -> None:
        self._sites = tuple(sites)
        self._columns = columns_of(kind for site in sites for kind in site.kinds)
        self._unavailable: dict[tuple[int, int], Amounts] = {}
        # Nodes that a site has given to a job, by (job, site), while jobs that have not ended here still hold them.
        self._moves: dict[tuple[int, int], NodeIntervals] = {}

    def copy(self) -> Self:
        """Return an independent copy."""
        new = type(self)(self._sites)
        new._unavailable, new._moves = self._unavailable.copy(), self._moves.copy()
        return new

    def state(self) -> HoldingsState:
        """Return the state as plain data."""
        unavailable = [(*key, _listed(amounts)) for key, amounts in self._unavailable.items()]
        return HoldingsState(unavailable, [(*key, nodes) for key, nodes in self._moves.items()])

    def restore(self, state: HoldingsState) -> None:
        """Restore the state of a grid with the same sites, whose arrays are restored separately."""
        for site, cause, listed in state.unavailable:
            self._unavailable[site, cause] = self._spread(site, listed, self._columns)
        self._moves = {(job_id, site): nodes for job_id, site, nodes in state.moves}

    def counts(self, site: int) -> bool:
        """Whether a site counts resources."""
        return self._sites[site].counts

    def on(self, site: int) -> Amounts:
        """Return what is unavailable on each node of a site."""
        total = np.zeros((self._sites[site].nodes, len(self._columns)), np.int64)
        for (of_site, _), amounts in self._unavailable.items():
            if of_site == site:
                total += amounts
        return total

    def on_all(self) -> Amounts:
        """Return what is unavailable on the nodes of all sites."""
        return np.concatenate([self.on(site) for site in range(len(self._sites))])

    def set_own_jobs(self, state: GridState, site: int, listed: NodeAmounts) -> None:
        """Set what a site's own users hold; the columns are the site's own resources."""
        self._set(state, site, OWN_JOBS, self._spread(site, listed, columns_of(self._sites[site].kinds)))

    def spread(self, state: GridState, others: Sequence[int]) -> None:
        """Set how many nodes others have on each site of whole nodes; idle nodes are chosen first, as all are alike."""
        for site, count in enumerate(others):
            if not self._sites[site].counts:
                self._choose_others(state, site, count)

    def _choose_others(self, state: GridState, site: int, count: int) -> None:
        total = _of_site(_resources(state), site)[0]
        is_idle = (self._not_held(state, site) == total)[:, CORES]
        order = np.argsort(~is_idle, kind="stable")[: max(0, count)]
        amounts = np.zeros_like(total)
        amounts[order] = total[order]
        self._set(state, site, OWN_JOBS, amounts)

    def set_job(
        self, state: GridState, site: int, job_id: int, nodes: NodeIntervals, chunk: Chunk | msgspec.UnsetType
    ) -> None:
        """Set the nodes of a grid job that is not in this queue, each listed once for each chunk on it."""
        self._set(state, site, job_id, self._asked_on(site, tuple(indexes_of(nodes)), chunk))

    def pause(self, state: GridState, site: int) -> None:
        """Make what is free on a site unavailable."""
        self._set(state, site, PAUSE, np.maximum(0, _of_site(_resources(state), site)[1]))

    def resume(self, state: GridState, site: int) -> None:
        """Undo `pause`."""
        self._set(state, site, PAUSE, None)

    def set_shut(self, state: GridState, site: int, *, is_shut: bool) -> None:
        """Set whether no node of a site suits any job."""
        kinds = self._sites[site].kinds
        kind = np.repeat(np.arange(len(kinds)), [kind.count for kind in kinds])
        _of_site(_resources(state), site)[2][:] = ABSENT if is_shut else kind

    def job_left(self, state: GridState, job_id: int, slots: Mapping[int, int], others: Sequence[int]) -> None:
        """After a job has left nodes, move other jobs to the nodes that their sites have given them; then `spread`."""
        self._moves = {key: nodes for key, nodes in self._moves.items() if key[0] != job_id}
        for (other, site), nodes in list(self._moves.items()):
            self.move(state, other, slots[other], site, nodes)
        self.spread(state, others)

    def move(self, state: GridState, job_id: int, slot: int, site: int, nodes: NodeIntervals) -> bool:
        """Let a running job hold the nodes that a site has given it; return whether the queue had chosen others.

        If jobs that have not ended here still hold these nodes, the job moves when they do.
        """
        self._moves.pop((job_id, site), None)
        resources = _resources(state)
        first, end = resources.first_node[site], resources.first_node[site + 1]
        chunks = sorted(Counter(indexes_of(nodes)).items())
        held = [(node - first, count) for node, count in held_nodes(resources.nodes, slot) if first <= node < end]
        if chunks == held or sum(count for _, count in chunks) != sum(count for _, count in held):
            return False
        capacity = self._not_held(state, site) + _amounts(resources, slot, site, held)
        amounts = _amounts(resources, slot, site, chunks)
        if (amounts > capacity).any():
            self._moves[job_id, site] = nodes
            return False
        let_go_of_site(state, resources, np.int64(slot), np.int64(site))
        per_unit = resources.nodes.chunks[slot]
        resources.nodes.n_chosen[0] = len(chunks)
        resources.nodes.chosen[: len(chunks)] = [(first + node, count // per_unit) for node, count in chunks]
        hold_chosen(resources.nodes, np.int64(slot))
        _change(state, site, -amounts)
        return True

    def _not_held(self, state: GridState, site: int) -> Amounts:
        """Return what no job of the queue holds on each node, whether or not others hold it."""
        return _of_site(_resources(state), site)[1] + self.on(site)

    def _set(self, state: GridState, site: int, cause: int, amounts: Amounts | None) -> None:
        before = self._unavailable.pop((site, cause), None)
        change = np.zeros((self._sites[site].nodes, len(self._columns)), np.int64) if before is None else before
        if amounts is not None and amounts.any():
            self._unavailable[site, cause] = amounts
            change = change - amounts
        if change.any():
            _change(state, site, change)

    def _asked_on(self, site: int, nodes: Sequence[int], chunk: Chunk | msgspec.UnsetType) -> Amounts:
        kinds = [kind for kind in self._sites[site].kinds for _ in range(kind.count)]
        amounts = np.zeros((len(kinds), len(self._columns)), np.int64)
        for node in nodes:
            if not chunk or chunk.exclusive:
                amounts[node] = capacity_of(kinds[node], self._columns)
            else:
                amounts[node] += request_of(chunk, self._columns)
        return amounts

    def _spread(self, site: int, listed: NodeAmounts, names: Sequence[str]) -> Amounts:
        amounts = np.zeros((self._sites[site].nodes, len(self._columns)), np.int64)
        columns = [self._columns.index(name) for name in names]
        for node, row in listed:
            amounts[node, columns] = row
        return amounts


def _resources(state: GridState) -> GridNodes:
    assert state.resources is not None, "no site counts resources"
    return state.resources


def _of_site(resources: GridNodes, site: int) -> tuple[Amounts, Amounts, Amounts]:
    """Return the capacity, the free amounts and the kinds of a site's nodes, as views."""
    nodes = slice(resources.first_node[site], resources.first_node[site + 1])
    return resources.nodes.total[nodes], resources.nodes.free[nodes], resources.nodes.kind[nodes]


def _amounts(resources: GridNodes, slot: int, site: int, chunks: Sequence[tuple[int, int]]) -> Amounts:
    """Return what a job with these (node, chunks) on a site holds on each node of the site."""
    total = _of_site(resources, site)[0]
    amounts = np.zeros_like(total)
    for node, count in chunks:
        units = count // resources.nodes.chunks[slot]
        amounts[node] = total[node] if resources.nodes.exclusive[slot] else units * resources.nodes.request[slot]
    return amounts


def _change(state: GridState, site: int, amounts: Amounts) -> None:
    """Add amounts to what is free on a site, and discard results that depend on it."""
    _of_site(_resources(state), site)[1][:] += amounts
    change_free(state, np.int64(site), np.int64(amounts[:, CORES].sum()))


def _listed(amounts: Amounts) -> NodeAmounts:
    """Return the nodes with amounts other than 0."""
    return tuple((node, tuple(amounts[node].tolist())) for node in np.flatnonzero(amounts.any(axis=1)).tolist())
