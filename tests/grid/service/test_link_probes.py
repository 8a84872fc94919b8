"""A grid whose sites are linked over HTTP measures the ways between them, and corrects its links by that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import networkx as nx
import pytest

from gridweave.grid.api import NetworkLink
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.kernels.links import NO_DATA
from gridweave.grid.service.link_probes import LinkProbing
from gridweave.netmodel.model import NetworkModel
from gridweave.site.service.clock import Clock
from gridweave.site.service.prober import ProbePlan
from support.live_grids import LinkedGrid, linked_grid
from support.machine import PATIENCE_S

PLAN = ProbePlan(every_s=0.1, bandwidth_every_s=0.1)
MODELLED_MS, MODELLED_BPS = 10_000.0, 1e3  # worse than the loopback interface of any busy machine


def modelled() -> GridNetwork:
    """Return the two sites with a link that is modelled far longer than the loopback interface."""
    graph = nx.Graph()
    graph.add_edge("alpha", "beta", latency_ms=MODELLED_MS, bandwidth_bps=MODELLED_BPS)
    return GridNetwork(NetworkModel.of_graph(graph), True, int(NO_DATA), 0)


async def link_now(grid: LinkedGrid) -> NetworkLink:
    """Return the link between the sites, as decisions go by it."""
    (link,) = (await grid.backend.network()).links
    return link


async def corrected_link(grid: LinkedGrid) -> NetworkLink:
    """Wait until measurements have corrected the link, its bandwidth too."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            link = await link_now(grid)
            if link.measured and link.bandwidth_bps != MODELLED_BPS:
                return link
            await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_what_probes_measure_over_links_corrects_the_model(tmp_path: Path) -> None:
    """The grid's side has one site measure the way to the other, and counts with that from then on."""
    async with linked_grid(tmp_path, probes=PLAN, network=modelled()) as grid:
        link = await corrected_link(grid)
        assert link.latency_ms is not None
        assert link.bandwidth_bps is not None
        assert link.latency_ms < MODELLED_MS / 2
        assert link.bandwidth_bps > MODELLED_BPS


@pytest.mark.asyncio
async def test_without_the_table_nothing_is_measured(tmp_path: Path) -> None:
    """Without [probes] the only background work is the beats of the links."""
    async with linked_grid(tmp_path, network=modelled()) as grid:
        assert grid.grid.served.probing is None
        assert len(grid.grid._works) == len(grid.grid.links)


@pytest.mark.asyncio
async def test_a_site_that_is_cut_off_is_measured_when_it_is_back(tmp_path: Path) -> None:
    """What cannot be measured is left, and measured in a later round."""
    async with linked_grid(tmp_path, probes=None, network=modelled()) as grid:
        probing = LinkProbing(grid.grid.links, grid.grid, PLAN, Clock())
        grid.cut("alpha", "refused")
        (rounds,) = probing.rounds
        assert await rounds.round() == 0
        assert not (await link_now(grid)).measured
        grid.cut("alpha", "")
        assert [await rounds.round() for _ in range(2)] == [1, 1]
        await corrected_link(grid)


@pytest.mark.asyncio
async def test_a_probe_that_fails_is_no_fault_of_the_link_that_carried_the_order(tmp_path: Path) -> None:
    """A site that does not reach another one says so, and is not taken to be cut off from the grid itself."""
    async with linked_grid(tmp_path, probes=None, network=modelled()) as grid:
        probing = LinkProbing(grid.grid.links, grid.grid, PLAN, Clock())
        grid.cut("beta", "refused")
        (rounds,) = probing.rounds
        assert await rounds.round() == 0
        assert grid.grid.links["alpha"].problem == ""
