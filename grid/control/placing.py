"""One job placed by the kernels of the grid queue, on nodes that are known otherwise than from its own running jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.control.links import GridNetwork, KnownLinks, LinksState
from gridweave.grid.kernels.links import NO_DATA
from gridweave.grid.kernels.links_placement import take_parts
from gridweave.grid.kernels.overhead import split_length_ms
from gridweave.grid.kernels.placement import choose_site, may_split
from gridweave.grid.kernels.state import empty_grid
from gridweave.grid.messages import LinksChanged, PathsMeasured
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import Sends
from gridweave.site.job import Job
from gridweave.site.kernels.state import NO_PLACE

SLOT = np.int64(0)
"""The only one."""


class OneJob:
    """Arrays with a single slot, in which one job after the other is placed; nothing is kept in them.

    `moves_data`: what jobs read and write keeps the sites that they run on.
    """

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, network: GridNetwork | None = None) -> None:
        self._state = empty_grid(np.array(nodes, np.int64), slots=1)
        self._codes = policy.codes()
        self.moves_data = network is not None and network.staging != NO_DATA
        self._links: KnownLinks | None = None
        if network is not None:
            self._links = KnownLinks(network, slots=1, widest=max(1, sum(nodes)))
            self._codes = self._codes._replace(net=self._links.arrays)

    def choose_site(self, job: Job, draw: float, fitting: Sequence[int], free: Mapping[int, int]) -> int | None:
        """Return the site that the selection takes, among those on which the job fits; None if there are none.

        `free` has the nodes by which the sites are compared; `draw` is the job's chance in [0, 1), for the selection
        ``random``.
        """
        self._enter(job)
        self._state.draw[SLOT] = draw
        available = np.zeros(len(self._state.nodes), np.int64)
        available[list(fitting)] = job.width
        site = int(choose_site(self._state, self._codes, SLOT, available, self._vector(free)))
        return None if site == NO_PLACE else site

    def links_changed(self, news: LinksChanged | PathsMeasured) -> None:
        """Place jobs from now on by the links as they are now."""
        if self._links is not None:
            self._links.change(news)
            self._codes = self._codes._replace(net=self._links.arrays)

    def state(self) -> LinksState | None:
        """Return how the links are now, without a job; None if none are known."""
        return None if self._links is None else self._links.state()

    def restore(self, state: LinksState | None) -> None:
        """Take in how the links were."""
        if self._links is not None and state is not None:
            self._links.restore(state)
            self._codes = self._codes._replace(net=self._links.arrays)

    def delay_ms(self, job: Job, sends: Sends, submit_ms: int, site: int, when_ms: int) -> int | None:
        """Return how long the data of a job keeps a site that it starts on at an instant; None if there is no path."""
        if self._links is None or not self.moves_data:
            return 0
        self._links.enter(0, job.width, sends)
        return self._links.data_delay_ms(0, submit_ms, site, when_ms)

    def may_split(self, job: Job) -> bool:
        """Return whether a job may be split, by the mode and the lower bound."""
        self._enter(job)
        return bool(may_split(self._state, self._codes, SLOT))

    def split(
        self, job: Job, sensitivity: float, free: Mapping[int, int], sends: Sends, submit_ms: int, now_ms: int
    ) -> tuple[Fragments, int] | None:
        """Return the fragments of a split over free nodes, and how long the job takes then; None if there is none."""
        if not self.may_split(job):
            return None
        self._state.sensitivity[SLOT] = sensitivity
        self._state.jobs["submit_ms"][SLOT] = submit_ms
        if self._links is not None:
            self._links.enter(0, job.width, sends)
        if not take_parts(self._state, self._codes, self._codes.net, SLOT, self._vector(free), np.int64(now_ms)):
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
