"""The history of a simulated world, checked for violations as it is recorded.

The world records the actions that it carries out rather than the cores' view of them, to reveal faults in the cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from gridweave.scenarios.world.held_resources import HeldResources
from gridweave.site.allocation import bits_of, nodes_of_groups
from gridweave.site.job import NodeIntervals, Resources, task_groups
from gridweave.site.kernels.parts import UNIT, parts_of_node
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.resources.chunks import Chunk, NodeKind


class ViolationError(AssertionError):
    """An invariant was violated."""


class _Run(msgspec.Struct, gc=False):
    """A fragment that is running on a site; ``held`` is the bit set of its nodes or threads.

    On sites that time-share nodes, a fragment with rate 0 is paused, and other jobs may use its nodes. On sites that
    assign fractions of nodes, ``tasks`` lists the node of every task, by group, so a node with several tasks appears
    several times, and ``needs`` contains the needs of the tasks.
    """

    attempt: int
    start_ms: int
    held: int
    width: int
    rate: int = RATE_ONE
    tasks: NodeIntervals = ()
    needs: Resources = Resources()


class History:
    """The history of one simulation run, checked as it is recorded.

    ``lanes`` is the number of hardware threads per node of each site. ``slices_time`` says which sites time-share their
    nodes, and ``fractions`` which sites assign fractions of nodes to jobs. ``leases`` maps (site, job, attempt) to the
    time until which nodes may stay reserved.

    Its methods raise ViolationError if a node is double-booked or over-allocated, if a job runs twice, if a fragment
    starts or works without the job's other fragments, if nodes stay reserved past their lease, or if an accepted job
    is lost or is cancelled without a request.
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
        self._resources: dict[int, HeldResources] = {}
        # Sites that time-share nodes or assign fractions of them, and have changed since the last check.
        self._changed: set[int] = set()
        self._busy = [0] * len(nodes)
        self._runs: list[dict[int, _Run]] = [{} for _ in nodes]
        self._accepted: set[int] = set()
        self._refused: set[int] = set()
        self._done: dict[int, str] = {}
        self._working: dict[int, int] = {}
        self._completed: set[int] = set()
        self.leases: dict[tuple[int, int, int], int] = {}
        # For jobs with several fragments: the sites that have reserved nodes, and the attempts that may start.
        self._granted: dict[tuple[int, int], set[int]] = {}
        self._committed: set[tuple[int, int]] = set()
        self._cancelled: set[int] = set()
        self.restarts = 0

    def count_resources(self, kinds: Iterable[Sequence[NodeKind]]) -> None:
        """Check cores, memory and GPUs from now on; ``kinds`` is empty for each site that does not count resources."""
        self._resources = {site: HeldResources(of_site) for site, of_site in enumerate(kinds) if of_site}

    @property
    def is_working(self) -> bool:
        """Whether any job is working now."""
        return bool(self._working)

    @property
    def n_open(self) -> int:
        """Number of accepted jobs that are neither done nor refused."""
        return len(self._accepted) - len(self._done) - len(self._refused)

    def is_committed(self, job_id: int, attempt: int) -> bool:
        """Whether the grid has committed an attempt."""
        return (job_id, attempt) in self._committed

    def accepted(self, job_id: int) -> None:
        """Record that a job was submitted."""
        self._accepted.add(job_id)

    def waits(self, job_id: int) -> bool:
        """Whether a job is waiting, i.e. is not working and has not been finished, reported or refused."""
        is_over = job_id in self._completed or job_id in self._done or job_id in self._refused
        return not is_over and job_id not in self._working

    def cancelled(self, job_id: int) -> None:
        """Record that the user has cancelled a job."""
        self._cancelled.add(job_id)

    def refused(self, job_id: int) -> None:
        """Record that the user was notified that the job can never run."""
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
        chunk: Chunk | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        """Record that a fragment started on these nodes; on shared nodes, also record its threads, needs or chunk."""
        if site in self._resources:
            self._check_chunks(now_ms, site, job_id, nodes, width, chunk)
            self._runs[site][job_id] = _Run(attempt, now_ms, 0, width)
            return
        held = taken = bits_of(nodes)
        if self._is_shared and self._lanes[site] > 1:
            held = bits_of(threads)
            self._check_threads(now_ms, site, job_id, nodes, threads)
        busy = self._busy[site]
        if busy & held:
            raise ViolationError(f"{now_ms} ms: job {job_id} starts on nodes of site {site} that another job occupies")
        count = _tasks_on(nodes) if self._fractions[site] else taken.bit_count()
        self._check_width(now_ms, site, job_id, count, width)
        runs = self._runs[site]
        if job_id in runs:
            raise ViolationError(f"{now_ms} ms: job {job_id} runs twice on site {site}")
        runs[job_id] = _Run(attempt, now_ms, held, width)
        if self._fractions[site]:
            runs[job_id].tasks, runs[job_id].needs = nodes, needs or Resources()
        if self._slices_time[site] or self._fractions[site]:
            self._changed.add(site)
        else:
            self._busy[site] = busy | held

    def _check_chunks(
        self, now_ms: int, site: int, job_id: int, nodes: NodeIntervals, width: int, chunk: Chunk | msgspec.UnsetType
    ) -> None:
        """Check that a fragment has a node for each of its chunks, and that the nodes have enough resources."""
        self._check_width(now_ms, site, job_id, _tasks_on(nodes), width)
        if job_id in self._runs[site]:
            raise ViolationError(f"{now_ms} ms: job {job_id} runs twice on site {site}")
        problem = self._resources[site].take(job_id, nodes, chunk)
        if problem is not None:
            raise ViolationError(f"{now_ms} ms: job {job_id} starts on site {site}, but {problem}")

    def _check_width(self, now_ms: int, site: int, job_id: int, count: int, width: int) -> None:
        if count != width:
            raise ViolationError(f"{now_ms} ms: job {job_id} has {count} nodes of site {site}; it requested {width}")

    def _check_threads(self, now_ms: int, site: int, job_id: int, nodes: NodeIntervals, threads: NodeIntervals) -> None:
        """Check that the threads belong to the nodes, and that each node has at least one of the threads."""
        lanes = self._lanes[site]
        used = {thread // lanes for start, stop in threads for thread in range(start, stop)}
        if used != {node for start, stop in nodes for node in range(start, stop)}:
            raise ViolationError(f"{now_ms} ms: job {job_id} has threads of site {site} that are not on its nodes")

    def paced(self, site: int, job_id: int, rate: int) -> None:
        """Record a fragment's new rate; rate 0 means paused."""
        run = self._runs[site].get(job_id)
        if run is not None and (self._slices_time[site] or self._fractions[site]):
            run.rate = rate
            self._changed.add(site)

    def moved(self, now_ms: int, site: int, job_id: int, nodes: NodeIntervals) -> None:
        """Record that a fragment moved to other nodes; valid only on sites that time-share nodes or assign fractions.

        A paused fragment has no nodes on a site that assigns fractions of nodes.
        """
        run = self._runs[site].get(job_id)
        if run is None or not (self._slices_time[site] or self._fractions[site]):
            raise ViolationError(
                f"{now_ms} ms: job {job_id} is moved on site {site}, where it does not run or may not be moved"
            )
        if self._fractions[site]:
            run.tasks = nodes
            if nodes:
                self._check_width(now_ms, site, job_id, _tasks_on(nodes), run.width)
        else:
            run.held = bits_of(nodes)
            self._check_width(now_ms, site, job_id, run.held.bit_count(), run.width)
        self._changed.add(site)

    def check_shares(self, now_ms: int) -> None:
        """Check, at the end of an instant, that no two unpaused jobs hold the same node.

        On sites that assign fractions of nodes, check instead that no node's memory or CPU is over-allocated.
        """
        for site in self._changed:
            if self._fractions[site]:
                self._check_fractions(now_ms, site)
                continue
            busy = 0
            for job_id, run in self._runs[site].items():
                if run.rate and busy & run.held:
                    raise ViolationError(
                        f"{now_ms} ms: job {job_id} works on nodes of site {site} where another job works"
                    )
                busy |= run.held if run.rate else 0
        self._changed.clear()

    def _check_fractions(self, now_ms: int, site: int) -> None:
        memory, cpu = np.zeros((2, self._nodes[site]), np.int64)
        for job_id, run in self._runs[site].items():
            if run.rate and not run.tasks:
                raise ViolationError(f"{now_ms} ms: job {job_id} works on site {site} without a node")
            groups = task_groups(run.needs, run.width)
            placed = nodes_of_groups(run.tasks, [group.tasks for group in groups])
            for group, nodes in zip(groups, placed, strict=True):
                need, held = parts_of_node([group.cpu_need, group.memory])
                np.add.at(memory, nodes, held)
                np.add.at(cpu, nodes, need * run.rate)
        for what, used, has in (("memory", memory, UNIT), ("CPU", cpu, UNIT * RATE_ONE)):
            if (used > has).any():
                node, part = int(used.argmax()), used.max() / has
                raise ViolationError(f"{now_ms} ms: node {node} of site {site} gives {part:.2%} of its {what}")

    def left(self, now_ms: int, site: int, job_id: int) -> None:
        """Record that a fragment left its nodes."""
        run = self._runs[site].pop(job_id, None)
        if run is None:
            raise ViolationError(f"{now_ms} ms: job {job_id} leaves site {site}, where it does not run")
        if site in self._resources:
            self._resources[site].give_back(job_id)
        elif not (self._slices_time[site] or self._fractions[site]):
            self._busy[site] ^= run.held

    def gave_up(self, now_ms: int, site: int, job_id: int, rendezvous_ms: int) -> None:
        """Record that a fragment left its nodes after waiting ``rendezvous_ms`` for the other fragments to start."""
        run = self._runs[site].get(job_id)
        if run is not None and now_ms > run.start_ms + rendezvous_ms:
            raise ViolationError(
                f"{now_ms} ms: a fragment of job {job_id} has been alone on site {site} since {run.start_ms} ms"
            )
        self.left(now_ms, site, job_id)

    def began(self, now_ms: int, job_id: int, attempt: int, fragments: tuple[tuple[int, int], ...]) -> None:
        """Record that a job has begun to work, because all of its fragments have started."""
        if job_id in self._working:
            raise ViolationError(f"{now_ms} ms: job {job_id} works twice at the same time")
        if job_id in self._completed:
            raise ViolationError(f"{now_ms} ms: job {job_id} works again after it was finished")
        for site, width in fragments:
            run = self._runs[site].get(job_id)
            if run is None or run.attempt != attempt:
                raise ViolationError(f"{now_ms} ms: job {job_id} works without its fragment on site {site}")
            if run.width != width:
                raise ViolationError(
                    f"{now_ms} ms: job {job_id} has {run.width} nodes on site {site}; it requested {width}"
                )
        self._working[job_id] = attempt

    def stopped(self, now_ms: int, job_id: int, *, completed: bool) -> None:
        """Record that a job has stopped working: it finished or was killed (``completed``), or a site lost it."""
        if self._working.pop(job_id, None) is None:
            raise ViolationError(f"{now_ms} ms: job {job_id} stops but did not work")
        if completed:
            self._completed.add(job_id)
        else:
            self.restarts += 1

    def committed(self, now_ms: int, job_id: int, attempt: int, fragments: tuple[tuple[int, int], ...]) -> None:
        """Record that the grid has committed an attempt; all sites of the attempt must have reserved nodes."""
        granted = self._granted.pop((job_id, attempt), set())
        for site, _ in fragments:
            if site not in granted:
                raise ViolationError(f"{now_ms} ms: job {job_id} is committed but site {site} has reserved nothing")
        self._committed.add((job_id, attempt))

    def joined(self, now_ms: int, site: int, job_id: int, attempt: int, start_ms: int | None) -> None:
        """Record that a fragment of a multi-site job started; ``start_ms`` is the agreed start."""
        if (job_id, attempt) not in self._committed:
            raise ViolationError(f"{now_ms} ms: a fragment of job {job_id} starts on site {site} without a commitment")
        if now_ms != start_ms:
            raise ViolationError(
                f"{now_ms} ms: a fragment of job {job_id} starts on site {site}; the agreed start is {start_ms} ms"
            )

    def reserved(self, site: int, job_id: int, attempt: int, until_ms: int) -> None:
        """Record that a site has reserved nodes until ``until_ms``."""
        self.leases[site, job_id, attempt] = until_ms
        self._granted.setdefault((job_id, attempt), set()).add(site)

    def extended(self, site: int, job_id: int, attempt: int, until_ms: int) -> None:
        """Record that a lease was extended to ``until_ms``; ignore a time before the current end of the lease."""
        key = site, job_id, attempt
        if key in self.leases:
            self.leases[key] = max(self.leases[key], until_ms)

    def unreserved(self, now_ms: int, site: int, job_id: int, attempt: int) -> None:
        """Record that a lease is over, because it expired or its fragment started; do nothing if there is no lease."""
        until_ms = self.leases.pop((site, job_id, attempt), None)
        if until_ms is not None and now_ms > until_ms + 1:
            raise ViolationError(
                f"{now_ms} ms: site {site} had reserved nodes for job {job_id}, whose lease ended at {until_ms} ms"
            )

    def check_leases(self, now_ms: int) -> None:
        """Check, at the end of an instant, that no nodes are reserved past their lease."""
        for (site, job_id, _), until_ms in self.leases.items():
            if now_ms > until_ms:
                raise ViolationError(
                    f"{now_ms} ms: site {site} has reserved nodes for job {job_id}, whose lease ended at {until_ms} ms"
                )

    def running_on(self, site: int) -> list[tuple[int, int]]:
        """Return the (job id, attempt) pairs of the fragments on a site, sorted by job id."""
        return [(job_id, run.attempt) for job_id, run in sorted(self._runs[site].items())]

    def site_failed(self, now_ms: int, site: int) -> None:
        """Record that a site has lost its running fragments and its reservations."""
        for job_id in sorted(self._runs[site]):
            self.left(now_ms, site, job_id)
        for key in [key for key in self.leases if key[0] == site]:
            del self.leases[key]

    def reported(self, now_ms: int, job_id: int, outcome: str) -> None:
        """Record that the user was notified that the job is done, and with which outcome."""
        if job_id in self._done:
            raise ViolationError(f"{now_ms} ms: job {job_id} is reported as done twice")
        if outcome == "cancelled":
            if job_id not in self._cancelled:
                raise ViolationError(f"{now_ms} ms: job {job_id} is reported as cancelled but nobody cancelled it")
        elif job_id not in self._completed:
            raise ViolationError(f"{now_ms} ms: job {job_id} is reported as {outcome} but has not finished")
        self._done[job_id] = outcome

    def check_complete(self, now_ms: int) -> None:
        """Check, at the end of the run, that each accepted job is done or refused, and no site has a job or lease."""
        lost = sorted(self._accepted - set(self._done) - self._refused)
        if lost:
            raise ViolationError(f"{now_ms} ms: {len(lost)} accepted jobs are lost, job {lost[0]} first")
        both = sorted(self._refused & (set(self._done) | self._completed))
        if both:
            raise ViolationError(f"{now_ms} ms: job {both[0]} was refused but has run or is reported as done")
        for site, runs in enumerate(self._runs):
            if runs:
                raise ViolationError(f"{now_ms} ms: job {min(runs)} is left on site {site}")
        if self.leases:
            site, job_id, _ = min(self.leases)
            raise ViolationError(f"{now_ms} ms: site {site} still has nodes reserved for job {job_id}")


def _tasks_on(nodes: NodeIntervals) -> int:
    """Return the number of tasks on these nodes; a node with several tasks is listed once per task."""
    return sum(stop - start for start, stop in nodes)
