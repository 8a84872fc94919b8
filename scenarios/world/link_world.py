"""Links that change in the simulated world: who feels it, who is told, and which jobs are without hope then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.kernels.links_placement import find_splittable
from gridweave.grid.kernels.state import empty_grid
from gridweave.grid.messages import GridEvent, GridJobHopeless, LinksChanged
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.grid_net import GridNet, links_of, network_of
from gridweave.scenarios.grid_net_run import WHY_HOPELESS, hopeless_from
from gridweave.scenarios.job_table import fill_jobs
from gridweave.scenarios.workload import Workload
from gridweave.scenarios.world.links import LinkRoutes, changes_of, check_reach
from gridweave.scenarios.world.network import Network
from gridweave.scenarios.world.traffic import Traffic
from gridweave.site.kernels.state import NEVER_MS


class LinkWorld:
    """The timetable of the links, carried out.

    Parameters
    ----------
    net : GridNet
    traffic : Traffic
        What jobs send.
    routes : LinkRoutes, optional
        What messages go through, if they cross the links.
    hopeless_ms : dict from int to int
        From when on each job can be placed no more.
    """

    def __init__(self, net: GridNet, traffic: Traffic, routes: LinkRoutes | None, hopeless_ms: dict[int, int]) -> None:
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
    traffic : Traffic
    routes : LinkRoutes or None
        If messages cross the links.
    links : LinkWorld
    """

    network: GridNetwork
    traffic: Traffic
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
    workload : Workload
    nodes : sequence of int
        Of each site, as far as the grid may have them.
    policy : GridPolicy
    net : GridNet
    grid_node : int or None
        The node of the meta-scheduler, if messages cross the links.
    network : Network
        What messages go through beside the links.
    rng : numpy.random.Generator
        For the delays and losses of messages.

    Returns
    -------
    Played

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
    traffic = Traffic(workload, known, net.contention, nodes, splittable_jobs(workload, nodes, policy))
    routes = None
    if grid_node is not None:
        check_reach(net, grid_node)
        routes = LinkRoutes(net, grid_node, network, rng)
    return Played(known, traffic, routes, LinkWorld(net, traffic, routes, hopeless_jobs(workload, nodes, policy, net)))


def splittable_jobs(workload: Workload, nodes: Sequence[int], policy: GridPolicy) -> npt.NDArray[np.bool_]:
    """Return for each job whether it might be split.

    Parameters
    ----------
    workload : Workload
    nodes : sequence of int
        Of each site, as far as the grid may have them.
    policy : GridPolicy

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
    workload : Workload
    nodes : sequence of int
        Of each site, as far as the grid may have them.
    policy : GridPolicy
    net : GridNet

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
