"""A site's nodes: its own nodes, or nodes that a batch system provides."""

from __future__ import annotations

import copy
import functools
import operator
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

from typing_extensions import override

from gridweave.site.allocation import NodePool, bits_of
from gridweave.site.disciplines.base import Discipline, ExpectedRun, SharedOffer, Start, Traits
from gridweave.site.explain import SiteReason
from gridweave.site.job import Job, NodeIntervals
from gridweave.site.messages import BatchSnapshot

PILOT = 0
"""Job id in a batch system request for a pilot, i.e. for nodes that no job needs yet."""


class NodeRequest(NamedTuple):
    """An open or granted request to a batch system for the nodes of a job or a pilot."""

    job: Job  # for a pilot: a job with the pilot's number of nodes and length, and the id `PILOT`
    ask: int  # a unique number that is never reused
    has_started: bool
    node_indices: tuple[int, ...] = ()  # for a pilot: indexes of the site's nodes that the pilot provides
    was_reported: bool = False  # whether the batch system has reported the request


class NodeSource(ABC):
    """A site's nodes, the jobs on them, and the discipline that schedules the jobs.

    A job's nodes are bits of an integer (`gridweave.site.allocation`). At each point in time, the methods are
    called in this order: ``end`` of ended jobs, ``seen``, ``before_pass``, then ``start``, ``move`` and ``end``
    according to the decisions of the pass, and ``after_pass``.

    Attributes
    ----------
    nodes : int
        Largest number of nodes that the site has at one time.
    discipline : Discipline
        Decides which jobs get the nodes that are present.
    traits : Traits
        Properties of the discipline.
    nodes_of : dict of int to int
        The nodes of each running job, as a bit mask.
    can_hold_nodes : bool
        Whether free nodes can be held for a fragment of a multi-site job.
    is_own : bool
        Whether all nodes are always present, without requests to a batch system; they can then be reserved in advance.
    """

    can_hold_nodes = True
    is_own = True

    def __init__(self, nodes: int, discipline: Discipline, traits: Traits) -> None:
        self.nodes, self.discipline, self.traits = nodes, discipline, traits
        self.pool, self._is_counted = NodePool(nodes), not traits.chooses_nodes
        self.nodes_of: dict[int, int] = {}

    def copy(self) -> Self:
        """Return an independent copy, with a copy of the discipline."""
        new = copy.copy(self)
        new.discipline, new.pool, new.nodes_of = self.discipline.copy(), copy.copy(self.pool), self.nodes_of.copy()
        return new

    # Jobs and their nodes.

    def start(self, start: Start) -> NodeIntervals:
        """Give a job its nodes and return them: the nodes named by `start`, or the free nodes with the lowest index."""
        job, nodes = start.job, start.nodes
        if self._is_counted:
            assert nodes is None, "a discipline names nodes, although its traits rule that out"
            nodes, self.nodes_of[job.job_id] = self.pool.take(job.width)
        else:
            assert nodes is not None, "a discipline that chooses nodes named none"
            self.nodes_of[job.job_id] = bits_of(nodes)
        return nodes

    def move(self, job_id: int, nodes: NodeIntervals) -> None:
        """Record a running job's new nodes."""
        self.nodes_of[job_id] = bits_of(nodes)

    def end(self, job_id: int) -> None:
        """Free a job's nodes."""
        nodes = self.nodes_of.pop(job_id)
        if self._is_counted:
            self.pool.give_back(nodes)

    def held(self) -> int:
        """Return the nodes of all running jobs, as a bit mask."""
        return functools.reduce(operator.or_, self.nodes_of.values(), 0)

    @property
    def free(self) -> int:
        """The number of nodes that are present and have neither a job nor an open reservation."""
        return self.pool.free if self._is_counted else self.discipline.free

    # Before and after a pass.

    def before_pass(self, now_ms: int) -> None:  # noqa: B027
        """Update the nodes before the discipline makes its decisions."""

    def after_pass(self, now_ms: int) -> None:  # noqa: B027
        """Update the requests for nodes after the discipline has made its decisions."""

    # The batch system that provides the nodes, if there is one.

    @property
    def absent(self) -> int:
        """The number of nodes that no job can get now because the batch system has not provided them."""
        return 0

    @abstractmethod
    def requests(self, now_ms: int) -> list[NodeRequest]:
        """Return the requests that should be open now, and the granted requests whose nodes are in use."""

    @abstractmethod
    def seen(self, now_ms: int, view: BatchSnapshot) -> list[tuple[int, str]]:
        """Apply the batch system's report; return the waiting jobs that the batch system rejects, with reasons."""

    def overdue(self, now_ms: int) -> list[int]:
        """Return the running jobs that must leave their nodes because the batch system is taking the nodes back."""
        return []

    def delays(self, now_ms: int) -> list[tuple[int, int | None]]:
        """Return the jobs whose start has been delayed by the batch system, with the new start if known.

        Each delay is returned once.
        """
        return []

    def request_nodes(self, now_ms: int, width: int) -> None:  # noqa: B027
        """Record that the grid needs this many nodes for a job that is wider than the site."""

    def coming(self, now_ms: int, length_ms: int) -> tuple[int, int | None]:
        """Return how many nodes will be free for a job of this length once all requests are granted, and when.

        The time is None if it is unknown, or if there are no requests.
        """
        return 0, None

    def note(self, now_ms: int) -> str:
        """Return advice for a grid that cannot place a job at this site, as part of a sentence, or ""."""
        return ""

    @property
    def idle(self) -> int:
        """The number of nodes that the site's jobs can get because neither jobs nor other batch users occupy them."""
        return self.free

    @property
    def longest_job_ms(self) -> int | None:
        """The longest estimate that a job at this site may have; None: no known limit."""
        return None

    # The discipline's answers for the nodes that are present.

    def why_never(self, job: Job) -> str | None:
        """Return why a job could never start at this site, or None."""
        return self.discipline.why_never(job)

    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return how many nodes a job of this length could get now."""
        return self.discipline.startable(now_ms, length_ms)

    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job submitted now would start; None if never or unknown."""
        return self.discipline.earliest_start_ms(now_ms, width, length_ms)

    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        """Return when and how a job submitted now would run; None if it would never run."""
        return self.discipline.expected_run(now_ms, job)

    def outlook(self, now_ms: int, job: Job, run: ExpectedRun) -> str:
        """Return why a new job would start at the time in `run`; "" if its number of nodes explains that."""
        return self.discipline.outlook(now_ms, job, run)

    def share_of(self, job: Job) -> int:
        """Return the share of the site that a job counts as, in millionths of a node."""
        return self.discipline.share_of(job)

    def most_chunks(self, job: Job) -> int | None:
        """Return how many chunks of a job the idle site could hold; None if that is unknown."""
        return self.discipline.most_chunks(job)

    def chunks_now(self, now_ms: int, job: Job) -> int:
        """Return how many chunks of a job could start now."""
        return self.discipline.chunks_now(now_ms, job)

    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        """Return how a job could start now on running jobs' nodes; None if it could not."""
        return self.discipline.sharing_offered(now_ms, job)

    def next_wakeup_ms(self) -> int | None:
        """Return when the next pass is due even without an event, or None."""
        return self.discipline.next_wakeup_ms()

    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start, and why not earlier."""
        return self.discipline.explain(now_ms, job_id)

    # State.

    @property
    def state_type(self) -> Any:
        """The type of the value that `state` returns."""
        return self.discipline.state_type

    def state(self) -> Any:
        """Return the discipline's state; subclasses add the state of the nodes."""
        return self.discipline.state()

    def restore(self, state: Any) -> None:
        """Restore the state of a new instance whose `nodes_of` is already set."""
        self.discipline.restore(state)
        if self._is_counted:
            for nodes in self.nodes_of.values():
                self.pool.occupy(nodes)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent."""
        self.pool.check_invariants()
        self.discipline.check_invariants()


class OwnNodes(NodeSource):
    """The site's own nodes, which are always present and need no batch system."""

    @override
    def requests(self, now_ms: int) -> list[NodeRequest]:
        return []

    @override
    def seen(self, now_ms: int, view: BatchSnapshot) -> list[tuple[int, str]]:
        return []
