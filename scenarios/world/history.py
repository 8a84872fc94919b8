"""What happened in a simulated world, and whether any of it must never happen.

The history is kept by the world from what it carries out, not by the cores, so that a fault of theirs shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gridweave.site.allocation import bits_of, nodes_of_groups
from gridweave.site.job import NodeIntervals, Resources, task_groups
from gridweave.site.kernels.parts import UNIT, parts_of_node
from gridweave.site.kernels.work import RATE_ONE


class ViolationError(AssertionError):
    """Something happened that must never happen."""


class _Run(msgspec.Struct, gc=False):
    """A fragment on the nodes of a site; what it holds is the bits of a number: all are compared in one step.

    Where time is shared it may stand still, so that others work on its nodes. Where it has parts of nodes, ``tasks``
    are the nodes of its tasks, one in so many intervals as there are tasks on it, group by group, and ``needs`` what
    these need.
    """

    attempt: int
    start_ms: int
    held: int
    width: int
    rate: int = RATE_ONE
    tasks: NodeIntervals = ()
    needs: Resources = Resources()


class History:
    """The record of one run, checked as it is written.

    ``lanes`` are the hardware threads of a node of each site, ``slices_time`` says which sites share their nodes in
    time, and ``fractions`` which give jobs parts of nodes. ``leases`` has until when nodes may be reserved, by site,
    job and attempt. Every method raises ViolationError: a node is double-booked or gives more than it has, a job runs
    twice, a part of a job starts or works without the others, nodes are reserved past their lease, or an accepted job
    is lost or given up unasked.
    """

    def __init__(
        self,
        nodes: list[int],
        lanes: list[int] | None = None,
        slices_time: Sequence[bool] | None = None,
        fractions: Sequence[bool] | None = None,
    ) -> None:
        self._nodes = nodes
        self._lanes = lanes or [1] * len(nodes)
        self._is_shared = max(self._lanes) > 1
        self._slices_time = slices_time or [False] * len(nodes)
        self._fractions = fractions or [False] * len(nodes)
        # Sites whose nodes are shared in time or in parts, where anything has changed since the last check.
        self._turned: set[int] = set()
        self._busy = [0] * len(nodes)
        self._runs: list[dict[int, _Run]] = [{} for _ in nodes]
        self._accepted: set[int] = set()
        self._refused: set[int] = set()
        self._done: dict[int, str] = {}
        self._working: dict[int, int] = {}
        self._completed: set[int] = set()
        self.leases: dict[tuple[int, int, int], int] = {}
        # Of jobs in several fragments: the sites that have granted their part, and the attempts that may start.
        self._granted: dict[tuple[int, int], set[int]] = {}
        self._committed: set[tuple[int, int]] = set()
        self._cancelled: set[int] = set()
        self.restarts = 0

    @property
    def is_working(self) -> bool:
        """Whether any job works now."""
        return bool(self._working)

    @property
    def n_open(self) -> int:
        """How many accepted jobs are neither done nor refused."""
        return len(self._accepted) - len(self._done) - len(self._refused)

    def is_committed(self, job_id: int, attempt: int) -> bool:
        """Return whether the grid has committed an attempt."""
        return (job_id, attempt) in self._committed

    def accepted(self, job_id: int) -> None:
        """Note that a job was handed in."""
        self._accepted.add(job_id)

    def waits(self, job_id: int) -> bool:
        """Return whether an accepted job neither works nor is over."""
        is_over = job_id in self._completed or job_id in self._done or job_id in self._refused
        return not is_over and job_id not in self._working

    def cancelled(self, job_id: int) -> None:
        """Note that the user wants a job no more."""
        self._cancelled.add(job_id)

    def refused(self, job_id: int) -> None:
        """Note that the user was told that a job can never run."""
        self._refused.add(job_id)

    def occupied(
        self,
        now_ms: int,
        site: int,
        job_id: int,
        attempt: int,
        nodes: NodeIntervals,
        width: int,
        threads: NodeIntervals = (),
        needs: Resources | None = None,
    ) -> None:
        """Note that a fragment started on these nodes, or, where they are shared, on these threads or parts of them."""
        held = taken = bits_of(nodes)
        if self._is_shared and self._lanes[site] > 1:
            held = bits_of(threads)
            self._check_threads(now_ms, site, job_id, nodes, threads)
        busy = self._busy[site]
        if busy & held:
            raise ViolationError(f"{now_ms} ms: job {job_id} starts on nodes of site {site} that another job has")
        count = _tasks_on(nodes) if self._fractions[site] else taken.bit_count()
        self._check_width(now_ms, site, job_id, count, width)
        runs = self._runs[site]
        if job_id in runs:
            raise ViolationError(f"{now_ms} ms: job {job_id} runs twice on site {site}")
        runs[job_id] = _Run(attempt, now_ms, held, width)
        if self._fractions[site]:
            runs[job_id].tasks, runs[job_id].needs = nodes, needs or Resources()
        if self._slices_time[site] or self._fractions[site]:
            self._turned.add(site)
        else:
            self._busy[site] = busy | held

    def _check_width(self, now_ms: int, site: int, job_id: int, count: int, width: int) -> None:
        """Check that a fragment has as many nodes as it asked for."""
        if count != width:
            raise ViolationError(
                f"{now_ms} ms: job {job_id} does not have the {width} nodes of site {site} that it asked for"
            )

    def _check_threads(self, now_ms: int, site: int, job_id: int, nodes: NodeIntervals, threads: NodeIntervals) -> None:
        """Check that the threads are on the nodes, some on each."""
        lanes = self._lanes[site]
        used = {thread // lanes for start, stop in threads for thread in range(start, stop)}
        if used != {node for start, stop in nodes for node in range(start, stop)}:
            raise ViolationError(f"{now_ms} ms: job {job_id} has threads of site {site} that are not on its nodes")

    def paced(self, site: int, job_id: int, rate: int) -> None:
        """Note that a fragment works at another rate from now on, or stands still."""
        run = self._runs[site].get(job_id)
        if run is not None and (self._slices_time[site] or self._fractions[site]):
            run.rate = rate
            self._turned.add(site)

    def moved(self, now_ms: int, site: int, job_id: int, nodes: NodeIntervals) -> None:
        """Note that a fragment is on other nodes from now on, where nodes are shared in time or in parts.

        One that is paused where it has parts of nodes is on none.
        """
        run = self._runs[site].get(job_id)
        if run is None or not (self._slices_time[site] or self._fractions[site]):
            raise ViolationError(f"{now_ms} ms: job {job_id} is moved on site {site}, where it cannot be")
        if self._fractions[site]:
            run.tasks = nodes
            if nodes:
                self._check_width(now_ms, site, job_id, _tasks_on(nodes), run.width)
        else:
            run.held = bits_of(nodes)
            self._check_width(now_ms, site, job_id, run.held.bit_count(), run.width)
        self._turned.add(site)

    def check_shares(self, now_ms: int) -> None:
        """Check, when all that happens at an instant has happened, how nodes are shared in time, and in parts.

        No two jobs work on one node in a slice, and no node gives more memory, or CPU, than it has.
        """
        for site in self._turned:
            if self._fractions[site]:
                self._check_fractions(now_ms, site)
                continue
            busy = 0
            for job_id, run in self._runs[site].items():
                if run.rate and busy & run.held:
                    raise ViolationError(f"{now_ms} ms: job {job_id} works on nodes of site {site} where another does")
                busy |= run.held if run.rate else 0
        self._turned.clear()

    def _check_fractions(self, now_ms: int, site: int) -> None:
        memory, cpu = np.zeros((2, self._nodes[site]), np.int64)
        for job_id, run in self._runs[site].items():
            if run.rate and not run.tasks:
                raise ViolationError(f"{now_ms} ms: job {job_id} works on site {site}, and is on no node")
            groups = task_groups(run.needs, run.width)
            placed = nodes_of_groups(run.tasks, [group.tasks for group in groups])
            for group, nodes in zip(groups, placed, strict=True):
                need, held = parts_of_node([group.cpu_need, group.memory])
                np.add.at(memory, nodes, held)
                np.add.at(cpu, nodes, need * run.rate)
        for what, given, has in (("memory", memory, UNIT), ("CPU", cpu, UNIT * RATE_ONE)):
            if (given > has).any():
                node, part = int(given.argmax()), given.max() / has
                raise ViolationError(f"{now_ms} ms: node {node} of site {site} gives {part:.2%} of its {what}")

    def left(self, now_ms: int, site: int, job_id: int) -> None:
        """Note that a fragment left its nodes."""
        run = self._runs[site].pop(job_id, None)
        if run is None:
            raise ViolationError(f"{now_ms} ms: job {job_id} leaves site {site}, where it does not run")
        if not (self._slices_time[site] or self._fractions[site]):
            self._busy[site] ^= run.held

    def gave_up(self, now_ms: int, site: int, job_id: int, rendezvous_ms: int) -> None:
        """Note that a fragment left its nodes because the others had not come within the time of a rendezvous."""
        run = self._runs[site].get(job_id)
        if run is not None and now_ms > run.start_ms + rendezvous_ms:
            raise ViolationError(f"{now_ms} ms: a part of job {job_id} is alone on site {site} since {run.start_ms} ms")
        self.left(now_ms, site, job_id)

    def began(self, now_ms: int, job_id: int, attempt: int, fragments: tuple[tuple[int, int], ...]) -> None:
        """Note that all fragments of a job found each other: now it works."""
        if job_id in self._working:
            raise ViolationError(f"{now_ms} ms: job {job_id} works twice at one time")
        if job_id in self._completed:
            raise ViolationError(f"{now_ms} ms: job {job_id} works again after it was finished")
        for site, width in fragments:
            run = self._runs[site].get(job_id)
            if run is None or run.attempt != attempt:
                raise ViolationError(f"{now_ms} ms: job {job_id} works without its fragment on site {site}")
            if run.width != width:
                raise ViolationError(f"{now_ms} ms: job {job_id} does not have its {width} nodes on site {site}")
        self._working[job_id] = attempt

    def stopped(self, now_ms: int, job_id: int, *, completed: bool) -> None:
        """Note that a job works no longer: finished, ended, or lost with a site."""
        if self._working.pop(job_id, None) is None:
            raise ViolationError(f"{now_ms} ms: job {job_id} stops and did not work")
        if completed:
            self._completed.add(job_id)
        else:
            self.restarts += 1

    def committed(self, now_ms: int, job_id: int, attempt: int, fragments: tuple[tuple[int, int], ...]) -> None:
        """Note that the grid wants all fragments to start."""
        granted = self._granted.pop((job_id, attempt), set())
        for site, _ in fragments:
            if site not in granted:
                raise ViolationError(f"{now_ms} ms: job {job_id} is committed, and site {site} has granted nothing")
        self._committed.add((job_id, attempt))

    def joined(self, now_ms: int, site: int, job_id: int, attempt: int, start_ms: int | None) -> None:
        """Note that one of several fragments of a job started, and at which instant it was agreed to."""
        if (job_id, attempt) not in self._committed:
            raise ViolationError(f"{now_ms} ms: a part of job {job_id} starts on site {site}, and is not committed")
        if now_ms != start_ms:
            raise ViolationError(
                f"{now_ms} ms: a part of job {job_id} starts on site {site}, and was to start at {start_ms} ms"
            )

    def reserved(self, site: int, job_id: int, attempt: int, until_ms: int) -> None:
        """Note that a site reserves nodes until an instant."""
        self.leases[site, job_id, attempt] = until_ms
        self._granted.setdefault((job_id, attempt), set()).add(site)

    def extended(self, site: int, job_id: int, attempt: int, until_ms: int) -> None:
        """Note that what a site has reserved may be reserved until a later instant."""
        key = site, job_id, attempt
        if key in self.leases:
            self.leases[key] = max(self.leases[key], until_ms)

    def unreserved(self, now_ms: int, site: int, job_id: int, attempt: int) -> None:
        """Note that a lease has ended, or has become a start; a job that was not to wait for others had none."""
        until_ms = self.leases.pop((site, job_id, attempt), None)
        if until_ms is not None and now_ms > until_ms + 1:
            raise ViolationError(
                f"{now_ms} ms: site {site} had reserved nodes for job {job_id}, whose lease ended at {until_ms} ms"
            )

    def check_leases(self, now_ms: int) -> None:
        """Check, when all that happens at an instant has happened, that no site has nodes reserved past a lease."""
        for (site, job_id, _), until_ms in self.leases.items():
            if now_ms > until_ms:
                raise ViolationError(
                    f"{now_ms} ms: site {site} has reserved nodes for job {job_id}, whose lease ended at {until_ms} ms"
                )

    def running_on(self, site: int) -> list[tuple[int, int]]:
        """Return (job id, attempt) of the fragments on a site."""
        return [(job_id, run.attempt) for job_id, run in sorted(self._runs[site].items())]

    def site_failed(self, now_ms: int, site: int) -> None:
        """Note that all that a site ran or had reserved is gone."""
        for job_id in sorted(self._runs[site]):
            self.left(now_ms, site, job_id)
        for key in [key for key in self.leases if key[0] == site]:
            del self.leases[key]

    def reported(self, now_ms: int, job_id: int, outcome: str) -> None:
        """Note that the user was told that a job is done."""
        if job_id in self._done:
            raise ViolationError(f"{now_ms} ms: job {job_id} is reported as done twice")
        if outcome == "cancelled":
            if job_id not in self._cancelled:
                raise ViolationError(f"{now_ms} ms: job {job_id} is reported as cancelled, and nobody asked for it")
        elif job_id not in self._completed:
            raise ViolationError(f"{now_ms} ms: job {job_id} is reported as {outcome}, and has not finished")
        self._done[job_id] = outcome

    def check_complete(self, now_ms: int) -> None:
        """Check, at the end, that every accepted job is done or refused and that nothing is left on any node."""
        lost = sorted(self._accepted - set(self._done) - self._refused)
        if lost:
            raise ViolationError(f"{now_ms} ms: {len(lost)} accepted jobs are lost, job {lost[0]} first")
        both = sorted(self._refused & (set(self._done) | self._completed))
        if both:
            raise ViolationError(f"{now_ms} ms: job {both[0]} was refused, and has run or is reported as done")
        for site, runs in enumerate(self._runs):
            if runs:
                raise ViolationError(f"{now_ms} ms: job {min(runs)} is left on site {site}")
        if self.leases:
            site, job_id, _ = min(self.leases)
            raise ViolationError(f"{now_ms} ms: site {site} still has nodes reserved for job {job_id}")


def _tasks_on(nodes: NodeIntervals) -> int:
    """Return how many tasks are on nodes of which each stands there once for each of them."""
    return sum(stop - start for start, stop in nodes)
