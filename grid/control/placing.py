"""One job placed by the kernels of the grid queue, on nodes that are known otherwise than from its own running jobs.

One job placed between whose sites links lie, on nodes that are known from quotes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.control.links import GridNetwork, LinkSlots, LinksNow, new_links, with_paths
from gridweave.grid.kernels.links import NO_DATA, data_delay_ms
from gridweave.grid.kernels.links_placement import take_parts
from gridweave.grid.kernels.overhead import split_length_ms
from gridweave.grid.kernels.placement import choose_site, may_split, take_split
from gridweave.grid.kernels.state import empty_grid
from gridweave.grid.messages import LinksChanged, PathsMeasured
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import Sends
from gridweave.site.job import Job
from gridweave.site.kernels.state import NEVER_MS, NO_PLACE

SLOT = np.int64(0)
"""The only one."""


class OneJob:
    """Arrays with a single slot, in which one job after the other is placed; nothing is kept in them.

    Parameters
    ----------
    nodes : sequence of int
        Nodes of each site.
    """

    def __init__(self, nodes: Sequence[int], policy: GridPolicy) -> None:
        self._codes = policy.codes()
        self.moves_data = False
        self._state = empty_grid(np.array(nodes, np.int64), slots=1)

    def choose_site(self, job: Job, draw: float, fitting: Sequence[int], free: Mapping[int, int]) -> int | None:
        """Return the site that the selection takes, among those on which the job fits; None if there are none.

        Parameters
        ----------
        draw : float
            What chance the job has, in [0, 1), for the selection ``random``.
        fitting : sequence of int
            Sites that have the nodes.
        free : mapping of int to int
            Free nodes by site, by which the sites are compared; none where a site is not named.
        """
        self._enter(job)
        self._state.draw[SLOT] = draw
        available = np.zeros(len(self._state.nodes), np.int64)
        available[list(fitting)] = job.width
        site = int(choose_site(self._state, self._codes, SLOT, available, self._vector(free)))
        return None if site == NO_PLACE else site

    def links_changed(self, news: LinksChanged | PathsMeasured) -> None:
        """Take no note: no links are known."""

    def delay_ms(self, job: Job, sends: Sends, submit_ms: int, site: int, when_ms: int) -> int | None:
        """Return how long the data of a job keeps a site: no data is moved without a network."""
        return 0

    def split(
        self,
        job: Job,
        sensitivity: float,
        free: Mapping[int, int],
        sends: Sends | None = None,
        submit_ms: int = 0,
        now_ms: int = 0,
    ) -> tuple[Fragments, int] | None:
        """Return the fragments of a split over free nodes, and how long the job takes then; None if there is none.

        Parameters
        ----------
        sensitivity : float
            By which its overhead is multiplied.
        sends, submit_ms, now_ms
            With a network: what the job sends, when it was submitted, and when it is to start.
        """
        self._enter(job)
        self._state.sensitivity[SLOT] = sensitivity
        if not may_split(self._state, self._codes, SLOT):
            return None
        if not take_split(self._state, self._codes, SLOT, self._vector(free)):
            return None
        taken = self._state.taken[: self._state.counters[0]["n_taken"]]
        length_ms = split_length_ms(self._state, self._codes, SLOT, np.int64(job.estimate_ms))
        return tuple(taken.tolist()), int(length_ms)

    def _enter(self, job: Job) -> None:
        self._state.jobs["width"][SLOT] = job.width
        self._state.jobs["estimate_ms"][SLOT] = job.estimate_ms

    def _vector(self, free: Mapping[int, int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        vector = np.zeros(len(self._state.nodes), np.int64)
        for site, nodes in free.items():
            vector[site] = nodes
        return vector


class NetOneJob(OneJob):
    """Arrays with a single slot, and those of the links.

    Parameters
    ----------
    nodes : sequence of int
        Nodes of each site.
    """

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, network: GridNetwork) -> None:
        super().__init__(nodes, policy)
        self._links = LinksNow(network)
        links = new_links(network, slots=1, widest=max(1, sum(nodes)))
        self._codes = self._codes._replace(net=links)
        self._slots = LinkSlots(links)
        self.moves_data = network.staging != NO_DATA

    def links_changed(self, news: LinksChanged | PathsMeasured) -> None:
        """Place jobs from now on by the links as they are now."""
        paths = self._links.after(news)
        assert self._codes.net is not None, "a network without links"
        self._codes = self._codes._replace(net=with_paths(self._codes.net, paths))
        self._slots.paths_changed(paths)

    def delay_ms(self, job: Job, sends: Sends, submit_ms: int, site: int, when_ms: int) -> int | None:
        """Return how long the data of a job keeps a site that it starts on at an instant; None if there is no path."""
        if not self.moves_data:
            return 0
        self._enter_sends(job, sends)
        times = np.int64(submit_ms), np.int64(site), np.int64(when_ms)
        delay_ms = int(data_delay_ms(self._codes.net, SLOT, *times))
        return None if delay_ms == NEVER_MS else delay_ms

    def split(
        self,
        job: Job,
        sensitivity: float,
        free: Mapping[int, int],
        sends: Sends | None = None,
        submit_ms: int = 0,
        now_ms: int = 0,
    ) -> tuple[Fragments, int] | None:
        """Return the fragments of a split over free nodes, and how long the job takes then; None if there is none."""
        self._enter(job)
        self._enter_sends(job, sends or Sends())
        self._state.jobs["submit_ms"][SLOT] = submit_ms
        if not may_split(self._state, self._codes, SLOT):
            return None
        if not take_parts(self._state, self._codes, self._codes.net, SLOT, self._vector(free), np.int64(now_ms)):
            return None
        taken = self._state.taken[: self._state.counters[0]["n_taken"]]
        length_ms = split_length_ms(self._state, self._codes, SLOT, np.int64(job.estimate_ms))
        return tuple(taken.tolist()), int(length_ms)

    def _enter_sends(self, job: Job, sends: Sends) -> None:
        assert self._codes.net is not None, "a network without links"
        self._slots.enter(self._codes.net, 0, job.width, sends)
