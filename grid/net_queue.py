"""The grid queue between whose sites links lie: what jobs send, links that change, ends that are late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from gridweave.grid.array_queue import GridQueue, Placement, copied
from gridweave.grid.kernels.links import data_delay_ms
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.messages import LinksChanged, PathsMeasured
from gridweave.grid.net_links import GridNetwork, LinkSlots, LinksNow, more_slots, new_links, with_paths
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import Sends
from gridweave.netmodel.kernels.state import with_own_room
from gridweave.site.kernels.rates import late_end_ms, work_left
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.messages import RunsLate


class NetQueue(GridQueue):
    """The arrays of a grid queue, with those of its links.

    Parameters
    ----------
    nodes : sequence of int
        Nodes of each site.
    policy : GridPolicy
    network : GridNetwork
    """

    def __init__(self, nodes: Sequence[int], policy: GridPolicy, network: GridNetwork) -> None:
        self._network = network
        self._widest = max(1, sum(nodes))
        self._links = LinksNow(network)
        self._late: dict[int, RunsLate] = {}
        super().__init__(nodes, policy)
        assert self._codes.net is not None, "a network without links"
        self._slots = LinkSlots(self._codes.net)

    def _codes_of(self, policy: GridPolicy) -> GridCodes:
        return policy.codes()._replace(net=new_links(self._network, slots=1, widest=self._widest))

    def copy(self) -> Self:
        """Return a queue of the same state, with what its kernels write down of the links."""
        twin = super().copy()
        links = self._codes.net
        assert links is not None, "a network without links"
        apart = copied(links._replace(paths=None))._replace(paths=with_own_room(links.paths))  # type: ignore[arg-type]
        twin._codes = self._codes._replace(net=apart)
        twin._late = self._late.copy()
        return twin

    def delay_ms(self, job_id: int, site: int, when_ms: int) -> int | None:
        """Return how long the data of a job keeps a site that it starts on at an instant; None if there is no path."""
        slot = self._slot[job_id]
        times = self._state.jobs["submit_ms"][slot], np.int64(site), np.int64(when_ms)
        delay_ms = int(data_delay_ms(self._codes.net, np.int64(slot), *times))
        return None if delay_ms == NEVER_MS else delay_ms

    def send(self, job_id: int, sends: Sends) -> None:
        """Take note of what a job sends that has just been submitted."""
        links = self._codes.net
        assert links is not None, "a network without links"
        slots = len(self._state.jobs)
        if len(links.communication) < slots:
            links = more_slots(links, slots)
            self._codes = self._codes._replace(net=links)
        slot = self._slot[job_id]
        self._slots.enter(links, slot, self._jobs[slot].width, sends)

    def links_changed(self, news: LinksChanged | PathsMeasured) -> None:
        """Place jobs from now on by the links as they are now."""
        paths = self._links.after(news)
        assert self._codes.net is not None, "a network without links"
        self._slots.paths_changed(paths)
        self._codes = self._codes._replace(net=with_paths(self._codes.net, paths))
        self._replan()

    def runs_late(self, answer: RunsLate) -> None:
        """Take note of what is left of a job that has not ended by its end by estimate."""
        self._late[answer.job_id] = answer

    def run_pass(self, now_ms: int) -> list[Placement]:
        """Expect later ends of the jobs that are late; then place what can start now."""
        self.expect_late(now_ms)
        return super().run_pass(now_ms)

    def expect_late(self, now_ms: int) -> None:
        """Expect later ends of the jobs that are late."""
        for job_id, late in self._late.items():
            if int(self._state.end_ms[self._slot[job_id]]) <= now_ms:
                left = work_left(late.left, late.rate, late.since_ms, now_ms)
                self.expect_end(now_ms, job_id, max(now_ms + 1, int(late_end_ms(left, late.rate, now_ms))))

    def _leave(self, now_ms: int, job_id: int) -> int:
        self._late.pop(job_id, None)
        return super()._leave(now_ms, job_id)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        super().check_invariants()
        assert set(self._late) <= set(self._slot), "a job is late that is not here"
