"""Which nodes a site has: its own, or nodes that a batch system lends it."""

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
from gridweave.site.messages import BatchSeen

PILOT = 0
"""The job number of a request for a pilot: nodes that a batch system is asked for ahead of any job."""


class NodeRequest(NamedTuple):
    """Nodes that a batch system is asked for, or has given: for a job, or for a pilot."""

    job: Job  # of a pilot: its nodes, its length, and the number `PILOT`
    ask: int  # a number that the site never uses again
    has_started: bool
    places: tuple[int, ...] = ()  # of a pilot: the nodes of the site that it provides
    was_seen: bool = False  # whether the batch system has reported it


class NodeSource(ABC):
    """The nodes of a site, the jobs that have them, and the discipline that decides on them.

    All nodes of a job are the bits of one number (`gridweave.site.allocation`). At one instant the calls come in this
    order: ``end`` of jobs, ``seen``, ``before_pass``, then ``start``, ``move`` and ``end`` as the pass decides, and
    ``after_pass``.

    Attributes
    ----------
    nodes : int
        The most nodes that the site has at one time.
    discipline : Discipline
        Decides which job gets the nodes that are there.
    traits : Traits
        What that discipline can do.
    nodes_of : dict of int to int
        The nodes of each running job.
    can_hold_nodes : bool
        Whether free nodes can be held for a part of a job on several sites.
    is_own : bool
        Whether all nodes are always there: no batch system is asked for any, and they can be reserved in advance.
    """

    can_hold_nodes = True
    is_own = True

    def __init__(self, nodes: int, discipline: Discipline, traits: Traits) -> None:
        self.nodes, self.discipline, self.traits = nodes, discipline, traits
        self.pool, self._is_counted = NodePool(nodes), not traits.chooses_nodes
        self.nodes_of: dict[int, int] = {}

    def copy(self) -> Self:
        """Return a copy with a copy of its discipline; what is done to one never changes the other."""
        twin = copy.copy(self)
        twin.discipline, twin.pool, twin.nodes_of = self.discipline.copy(), copy.copy(self.pool), self.nodes_of.copy()
        return twin

    # Jobs on nodes.

    def start(self, start: Start) -> NodeIntervals:
        """Give a job its nodes and return them: those that it names, or the free ones with the lowest numbers."""
        job, nodes = start.job, start.nodes
        if self._is_counted:
            assert nodes is None, "a discipline names nodes, and its traits do not say so"
            nodes, self.nodes_of[job.job_id] = self.pool.take(job.width)
        else:
            assert nodes is not None, "a discipline that chooses nodes has named none"
            self.nodes_of[job.job_id] = bits_of(nodes)
        return nodes

    def move(self, job_id: int, nodes: NodeIntervals) -> None:
        """Record that a running job has other nodes."""
        self.nodes_of[job_id] = bits_of(nodes)

    def end(self, job_id: int) -> None:
        """Take the nodes of a job back."""
        nodes = self.nodes_of.pop(job_id)
        if self._is_counted:
            self.pool.give_back(nodes)

    def held(self) -> int:
        """Return the nodes of all running jobs."""
        return functools.reduce(operator.or_, self.nodes_of.values(), 0)

    @property
    def free(self) -> int:
        """Nodes that are there and that no job and no open reservation has."""
        return self.pool.free if self._is_counted else self.discipline.free

    # Before and after a pass.

    def before_pass(self, now_ms: int) -> None:  # noqa: B027
        """Bring the nodes up to date before the discipline decides."""

    def after_pass(self, now_ms: int) -> None:  # noqa: B027
        """Settle which nodes should be there, now that the discipline has decided."""

    # The batch system that lends the nodes, if one does.

    @property
    @abstractmethod
    def absent(self) -> int:
        """Nodes of the site that no job can have now because the batch system has not given them."""

    @abstractmethod
    def requests(self, now_ms: int) -> list[NodeRequest]:
        """Return all requests that should be made by now, and those that have been met and are in use."""

    @abstractmethod
    def seen(self, now_ms: int, view: BatchSeen) -> list[tuple[int, str]]:
        """Apply what the batch system reports; return the waiting jobs that it rejects, and why."""

    def overdue(self, now_ms: int) -> list[int]:
        """Return the running jobs that have to leave their nodes, as the batch system takes these back."""
        return []

    def delays(self, now_ms: int) -> list[tuple[int, int | None]]:
        """Return the jobs that the batch system starts later than was reported, with the new start if known.

        Each delay is returned once.
        """
        return []

    def wanted(self, now_ms: int, width: int) -> None:  # noqa: B027
        """Record that the grid looks for nodes for a job that is wider than the site."""

    def coming(self, now_ms: int, length_ms: int) -> tuple[int, int | None]:
        """Return how many spare nodes there will be for a job of this length once all requests are met, and when.

        None if that is unknown, or nothing is on its way.
        """
        return 0, None

    def note(self, now_ms: int) -> str:
        """Return what a grid should know that cannot place a job: half a sentence, or nothing."""
        return ""

    @property
    def idle(self) -> int:
        """Nodes that are free for jobs of the site: no job has them, nor has another user of the batch system."""
        return self.free

    @property
    def longest_job_ms(self) -> int | None:
        """The longest estimate that a job may have here; None: any, as far as is known."""
        return None

    # What the discipline answers, for the nodes that are there.

    def why_never(self, job: Job) -> str | None:
        """Return why a job could never start here, or None."""
        return self.discipline.why_never(job)

    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return how many nodes a job of this length could have at once."""
        return self.discipline.startable(now_ms, length_ms)

    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job would start if it were submitted now; None: never, or that is unknown."""
        return self.discipline.earliest_start_ms(now_ms, width, length_ms)

    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        """Return how a job would run if it were submitted now; None if it never would."""
        return self.discipline.expected_run(now_ms, job)

    def sharing_offered(self, now_ms: int, job: Job) -> SharedOffer | None:
        """Return how a job could start now on nodes of running jobs; None if it could not."""
        return self.discipline.sharing_offered(now_ms, job)

    def next_wakeup_ms(self) -> int | None:
        """Return the next instant at which a pass is due though nothing happens; None: none is."""
        return self.discipline.next_wakeup_ms()

    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start, and why not earlier."""
        return self.discipline.explain(now_ms, job_id)

    # State.

    @property
    def state_type(self) -> Any:
        """The type of the state."""
        return self.discipline.state_type

    def state(self) -> Any:
        """Return the state of the discipline, with what else is known of its nodes."""
        return self.discipline.state()

    def restore(self, state: Any) -> None:
        """Continue from a state; this source is fresh, but knows already which job has which nodes (`nodes_of`)."""
        self.discipline.restore(state)
        if self._is_counted:
            for nodes in self.nodes_of.values():
                self.pool.occupy(nodes)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        self.pool.check_invariants()
        self.discipline.check_invariants()


class OwnNodes(NodeSource):
    """Nodes of the site's own: all of them are always there, and no batch system is asked."""

    @property
    @override
    def absent(self) -> int:
        return 0

    @override
    def requests(self, now_ms: int) -> list[NodeRequest]:
        return []

    @override
    def seen(self, now_ms: int, view: BatchSeen) -> list[tuple[int, str]]:
        return []
