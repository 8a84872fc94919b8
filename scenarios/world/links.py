"""The links of a network in the simulated world: messages cross them, jobs send over them, and they change.

Links that change in the simulated world: who feels it, who is told, and which jobs are without hope then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.kernels.links_placement import find_splittable
from gridweave.grid.kernels.state import empty_grid
from gridweave.grid.messages import GridEvent, GridJobHopeless, LinksChanged
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.changes import Timetable
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.routing import Paths, find_paths
from gridweave.netmodel.topology import FloatArray, Topology
from gridweave.scenarios.batch.grid_network import WHY_HOPELESS, GridNet, hopeless_from, links_of, network_of
from gridweave.scenarios.workload.table import Workload, fill_jobs
from gridweave.scenarios.world.connections import Network
from gridweave.scenarios.world.traffic import TrueTraffic
from gridweave.site.kernels.state import NEVER_MS

MESSAGE_BYTES = 500
"""Of a message between a site and the grid, with all that wraps it."""


class _Way(NamedTuple):
    """The path between the meta-scheduler and a site in one direction."""

    exists: bool
    latency_ms: float
    jitter_ms: FloatArray
    loss: float
    ms_per_bit: float


def node_of_grid(net: GridNet, name: str | None) -> int:
    """Return the node at which the meta-scheduler is.

    Parameters
    ----------
    name : str or None
        Of a node, or of a site, which stands for its node. If left out, the node of the site that has the least sum of
        latencies to all others and back; of several the first.

    Raises
    ------
    InputError
        If there is neither a node nor a site of that name.
    """
    topology = net.model.topology
    if name is None:
        latency_ms = net.model.paths.latency_ms
        return int(topology.node_of_site[int(np.argmin((latency_ms + latency_ms.T).sum(axis=1)))])
    if name in topology.nodes or name not in topology.sites:
        return topology.node_number(name)
    return int(topology.node_of_site[topology.site_number(name)])


def check_reach(net: GridNet, node: int) -> None:
    """Refuse a network that cuts a site off from the meta-scheduler for ever: what is there would never be heard of.

    Parameters
    ----------
    node : int
        Of the meta-scheduler.

    Raises
    ------
    InputError
        With the name of the site.
    """
    if net.timetable is None or not len(net.timetable.instants_ms):
        return
    model = list(net.periods())[-1][1]
    for site, ways in enumerate(_star(model, node)):
        if not all(way.exists for way in ways):
            name, at = model.topology.sites[site], model.topology.nodes[node]
            raise InputError(
                f"site {name} has no path to the grid, which is at {at}, and back, from "
                f"{net.timetable.instants_ms[-1]} ms on, for ever; let the links come back"
            )


def merged(one: Timetable, other: Timetable) -> Timetable:
    """Return the timetable of two causes of change: of each cable the worse of both counts.

    Parameters
    ----------
    one, other : Timetable
        Of the same topology.
    """
    instants_ms = np.union1d(one.instants_ms, other.instants_ms)
    starts_ms = [-1, *instants_ms.tolist()]
    factors = [np.minimum(*(each.factors[each.period_of(at_ms)] for each in (one, other))) for at_ms in starts_ms]
    return Timetable(one.topology, instants_ms, np.array(factors))


class LinkRoutes:
    """The paths between the meta-scheduler and the sites.

    What `Network` says is beside the links: its times are added to theirs, and so are its losses.

    Parameters
    ----------
    node : int
        Of the meta-scheduler.
    rng : numpy.random.Generator
        For delays and losses.
    """

    def __init__(self, net: GridNet, node: int, network: Network, rng: np.random.Generator) -> None:
        self._node = node
        self._network = network
        self._rng = rng
        # Models of one state of the links share their paths.
        self._stars: dict[int, tuple[Paths, list[tuple[_Way, _Way]]]] = {}
        states = [self._star_of(model) for _, model in net.periods()]
        self._now = states[0]
        ways = [way for state in states for pair in state for way in pair]
        self._draws = bool(network.jitter_ms or any(len(way.jitter_ms) for way in ways))
        loses = bool(network.loss) or any(way.loss > 0 for way in ways)
        changes = any(state is not states[0] for state in states)
        self.keeps_order = network.keeps_order and not (self._draws or loses or changes)
        self.is_instant = False
        self._one_way_ms = [
            max(self._longest_ms(way) for state in states for way in state[site]) for site in range(len(self._now))
        ]
        most_ms = max(self._one_way_ms)
        self.margin_ms = 4 * most_ms + (2 * (2 * most_ms + 1000) if loses else 0)
        self._last_ms: dict[tuple[int, int], int] = {}

    def _star_of(self, model: NetworkModel) -> list[tuple[_Way, _Way]]:
        key = id(model.paths)
        if key not in self._stars:
            self._stars[key] = model.paths, _star(model, self._node)
        return self._stars[key][1]

    def _longest_ms(self, way: _Way) -> int:
        if not way.exists:
            return 0
        on_links_ms = way.latency_ms + float(way.jitter_ms.sum()) + 8 * MESSAGE_BYTES * way.ms_per_bit
        return _whole_ms(on_links_ms) + self._network.latency_ms + self._network.jitter_ms

    def change(self, model: NetworkModel) -> list[int]:
        """Send messages over the links as they are now; return the sites that were cut off by that."""
        before, self._now = self._now, self._star_of(model)
        return [
            site
            for site, (old, new) in enumerate(zip(before, self._now, strict=True))
            if all(way.exists for way in old) and not all(way.exists for way in new)
        ]

    def resend_ms(self, site: int) -> int:
        """Return after how long a message is sent again: the longest round trip and some more."""
        return 2 * self._one_way_ms[site] + 1000

    def joins(self, site: int, end: int) -> bool:
        """Return whether there is a path now from this end of a site's connection to the other."""
        return self._now[site][end].exists

    def arrivals_ms(self, now_ms: int, site: int, end: int, messages: int) -> list[int]:
        """Return when each copy arrives: they overtake each other only if latencies vary."""
        way = self._now[site][end]
        if not way.exists:
            return []
        network, rng = self._network, self._rng
        copies = 1
        loss = 1 - (1 - way.loss) * (1 - network.loss)
        if loss > 0:
            copies -= int(rng.random() < loss)
        if network.duplicate > 0:
            copies += int(rng.random() < network.duplicate)
        return [self._arrival_ms(now_ms, (site, end), way, messages) for _ in range(copies)]

    def _arrival_ms(self, now_ms: int, key: tuple[int, int], way: _Way, messages: int) -> int:
        on_links_ms = way.latency_ms + 8 * MESSAGE_BYTES * messages * way.ms_per_bit
        if len(way.jitter_ms):
            on_links_ms += float(way.jitter_ms @ self._rng.random(len(way.jitter_ms)))
        when_ms = now_ms + _whole_ms(on_links_ms) + self._network.latency_ms
        if self._network.jitter_ms:
            when_ms += int(self._rng.integers(self._network.jitter_ms + 1))
        if not self._draws:
            when_ms = self._last_ms[key] = max(when_ms, self._last_ms.get(key, 0))
        return when_ms


def _star(model: NetworkModel, node: int) -> list[tuple[_Way, _Way]]:
    """Return for each site the way to the meta-scheduler at a node, and the way back: by the end that sends."""
    topology, paths = model.topology, model.paths
    sites = len(topology.sites)
    here = np.flatnonzero(topology.node_of_site == node)
    grid = int(here[0]) if len(here) else sites
    if not len(here):
        places = np.append(topology.node_of_site, node)
        topology = replace(topology, sites=(*topology.sites, "the grid"), node_of_site=places)
        paths = find_paths(topology, paths.routes, k=paths.k, segment_bytes=paths.segment_bytes)
    return [(_way(topology, paths, site, grid), _way(topology, paths, grid, site)) for site in range(sites)]


def _way(topology: Topology, paths: Paths, origin: int, target: int) -> _Way:
    links = paths.between(origin, target)
    jitter_ms = topology.jitter_ms[links]
    return _Way(
        exists=bool(np.isfinite(paths.latency_ms[origin, target])),
        latency_ms=float(topology.latency_ms[links].sum()),
        jitter_ms=jitter_ms[jitter_ms > 0],
        loss=float(paths.loss[origin, target]),
        ms_per_bit=1000.0 / float(topology.bandwidth_bps[links].min()) if links else 0.0,
    )


def _whole_ms(time_ms: float) -> int:
    """Return a time in whole milliseconds, rounded up, but for what additions of doubles leave."""
    return math.ceil(time_ms - 1e-9)


def changes_of(net: GridNet) -> Iterator[tuple[int, tuple[float, ...], NetworkModel]]:
    """Yield each instant at which links change, each cable's part of its bandwidth from then on, and the network."""
    if net.timetable is not None:
        for period, (at_ms, model) in enumerate(net.periods()):
            if period:
                yield at_ms, tuple(net.timetable.factors[period].tolist()), model


class LinkWorld:
    """The timetable of the links, carried out.

    Parameters
    ----------
    traffic : TrueTraffic
        What jobs send.
    routes : LinkRoutes, optional
        What messages go through, if they cross the links.
    hopeless_ms : dict from int to int
        From when on each job can be placed no more.
    """

    def __init__(
        self, net: GridNet, traffic: TrueTraffic, routes: LinkRoutes | None, hopeless_ms: dict[int, int]
    ) -> None:
        self._traffic = traffic
        self._routes = routes
        self._changes = list(changes_of(net))
        self._hopeless_ms = hopeless_ms
        self._by_time = sorted((at_ms, job_id) for job_id, at_ms in hopeless_ms.items() if 0 < at_ms < NEVER_MS)
        self._by_time.reverse()
        self._period = -1

    @property
    def instants_ms(self) -> list[int]:
        """When links change."""
        return [at_ms for at_ms, *_ in self._changes]

    @property
    def is_failing(self) -> bool:
        """Whether some link is slow or down now, and links are still to change."""
        return 0 <= self._period < len(self._changes) - 1 and min(self._changes[self._period][1]) < 1

    def change(self, period: int) -> tuple[list[GridEvent], int]:
        """Let the links be as from this change on.

        Parameters
        ----------
        period : int
            Number of the change, from 0.

        Returns
        -------
        list of GridEvent
            What the grid is told.
        int
            How many sites were cut off from it.
        """
        self._period = period
        at_ms, factors, model = self._changes[period]
        self._traffic.links_changed(model)
        cut_off = [] if self._routes is None else self._routes.change(model)
        events: list[GridEvent] = [LinksChanged(factors)]
        while self._by_time and self._by_time[-1][0] <= at_ms:
            # The grid passes over those that it does not have.
            events.append(GridJobHopeless(self._by_time.pop()[1], WHY_HOPELESS))
        return events, len(cut_off)

    def hopeless(self, now_ms: int, job_id: int) -> list[GridEvent]:
        """Return what the grid is told of a job that is submitted now: nothing, if there is hope."""
        if self._hopeless_ms.get(job_id, int(NEVER_MS)) > now_ms:
            return []
        return [GridJobHopeless(job_id, WHY_HOPELESS)]

    def check_all_move(self, now_ms: int) -> None:
        """Refuse a run in which a job stands still for ever."""
        if self._period == len(self._changes) - 1:
            self._traffic.check_all_move(now_ms)


class Played(NamedTuple):
    """A network, and who in the simulated world has to do with it.

    Attributes
    ----------
    network : GridNetwork
        What the grid knows.
    traffic : TrueTraffic
    routes : LinkRoutes or None
        If messages cross the links.
    links : LinkWorld
    """

    network: GridNetwork
    traffic: TrueTraffic
    routes: LinkRoutes | None
    links: LinkWorld


def play_links(
    workload: Workload,
    nodes: Sequence[int],
    policy: GridPolicy,
    net: GridNet,
    grid_node: int | None,
    network: Network,
    rng: np.random.Generator,
) -> Played:
    """Return what plays a network in the simulated world.

    Parameters
    ----------
    nodes : sequence of int
        Of each site, as far as the grid may have them.
    grid_node : int or None
        The node of the meta-scheduler, if messages cross the links.
    network : Network
        What messages go through beside the links.
    rng : numpy.random.Generator
        For the delays and losses of messages.

    Raises
    ------
    OptionError
        If the network does not go with the grid and its policy.
    InputError
        If a column of the workload makes no sense, or a site is cut off from the meta-scheduler for ever.
    """
    net.check(np.array(nodes, np.int64), policy)
    if net.data != "none" and policy.control == "none":
        raise OptionError("data", "is not moved under control 'none', which knows no links")
    known = network_of(net)
    traffic = TrueTraffic(workload, known, net.contention, nodes, splittable_jobs(workload, nodes, policy))
    routes = None
    if grid_node is not None:
        check_reach(net, grid_node)
        routes = LinkRoutes(net, grid_node, network, rng)
    return Played(known, traffic, routes, LinkWorld(net, traffic, routes, hopeless_jobs(workload, nodes, policy, net)))


def splittable_jobs(workload: Workload, nodes: Sequence[int], policy: GridPolicy) -> npt.NDArray[np.bool_]:
    """Return for each job whether it might be split.

    Parameters
    ----------
    nodes : sequence of int
        Of each site, as far as the grid may have them.

    Returns
    -------
    numpy.ndarray of bool, shape (n,)
    """
    found = np.zeros(len(workload), np.bool_)
    if len(workload):
        state = empty_grid(np.array(nodes, np.int64), slots=len(workload))
        fill_jobs(state.jobs, workload, np.arange(len(workload)), policy.order)
        find_splittable(state, policy.codes(), found)
    return found


def hopeless_jobs(workload: Workload, nodes: Sequence[int], policy: GridPolicy, net: GridNet) -> dict[int, int]:
    """Return for each job from when on it can be placed no more on the idle grid, whatever the links become.

    Parameters
    ----------
    nodes : sequence of int
        Of each site, as far as the grid may have them.

    Returns
    -------
    dict from int to int
        Without jobs that are too wide for any links, which the grid refuses by itself.
    """
    if policy.control == "none":
        return {}
    sites = np.array(nodes, np.int64)
    fits = {int(width): policy.why_never(sites, int(width)) is None for width in np.unique(workload.width)}
    rows = np.flatnonzero([fits[width] for width in workload.width.tolist()])
    if not len(rows):
        return {}
    state = empty_grid(sites, slots=len(rows))
    fill_jobs(state.jobs, workload, rows, policy.order)
    found_ms = hopeless_from(state, policy.codes()._replace(net=links_of(net, workload, rows)), net)
    return dict(zip(workload.job_id[rows].tolist(), found_ms.tolist(), strict=True))
