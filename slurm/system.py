"""The interface between a site and the batch system that lends it nodes (docs/batch-systems.md).

A batch system lends nodes for a limited time. An *allocation* is a set of nodes that are lent together. In the batch
system it is one job, under a name that the site chooses and never reuses.

`BatchPlan` says which batch system a site uses, and how often the site queries it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from gridweave.errors import OptionError, UnavailableError
from gridweave.site.launch import ANY_JOBS, MachineRules
from gridweave.site.resources.chunks import Chunk, NodeKind
from gridweave.site.resources.groups import NodeGroup

AllocationState = Literal["waiting", "running", "ended"]

AllocationEnd = Literal["", "given back", "cancelled", "limit", "memory", "failed", "lost"]
"""How an allocation ended.

``given back``: its script succeeded. ``cancelled``: it was cancelled in the batch system. ``limit``: it reached its
time limit. ``memory``: it exceeded its memory limit. ``failed``: its script failed for another reason. ``lost``: a node
failed, or the batch system preempted it. Empty: it has not ended.
"""


class RequestRejectedError(UnavailableError):
    """The batch system rejected a request: it is too large, or one too many; the system does not say which."""


class LimitError(UnavailableError):
    """For now, the batch system accepts no more requests from this account with these options."""


class BatchUser(msgspec.Struct, frozen=True, kw_only=True):
    """The account charged for a user's jobs, and the Unix account that runs them; empty: the site's own."""

    account: str = ""
    runs_as: str = ""


class AllocationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for whole nodes, which no other job of the batch system may use, or for chunks of nodes.

    Attributes
    ----------
    name : str
        Never reused, so that the site can find the allocation even if the answer to the request was lost.
    nodes : int
        Number of nodes, >= 1; for chunks, the largest number of nodes on which they may be.
    length_ms : int
        Time limit, >= 1, after which the batch system takes the nodes back.
    script : str
        Script to run on the first node; the nodes are given back when it ends.
    folder : str
        Working folder of the script; the account that runs it must be able to write there.
    output : str
        File for the output of the script.
    comment : str
        The job and its user, for people who look at the batch system's queue.
    account : str
        Name of the batch system account to charge; empty: the site's account.
    runs_as : str
        Unix account that submits and runs the script; empty: the site's account.
    options : tuple of str
        Options for the batch system itself, written as on its command line.
    chunk : Chunk, optional
        What the job asks for; None: whole nodes of any kind.
    width : int
        Number of chunks; only with a chunk that is not a whole node.
    """

    name: str
    nodes: int
    length_ms: int
    script: str
    folder: str = "/"
    output: str = "/dev/null"
    comment: str = ""
    account: str = ""
    runs_as: str = ""
    options: tuple[str, ...] = ()
    chunk: Chunk | None = None
    width: int = 0

    @property
    def parts(self) -> Chunk | None:
        """The job's chunk if it asks for parts of nodes; None if it asks for whole nodes."""
        return None if self.chunk is None or self.chunk.is_whole else self.chunk


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation, as the batch system reports it.

    Attributes
    ----------
    name : str
        Name from the request.
    number : str
        Job number in the batch system.
    state : {"waiting", "running", "ended"}
    start_ms : int, optional
        Expected start of a waiting allocation, otherwise the actual start; None if unknown.
    reason : str
        Why the allocation is waiting or how it ended, for people to read; empty while it is running.
    end : AllocationEnd
        How it ended; empty before that.
    runs_as : str
        Unix account that owns it; empty: the site's account.
    is_put_off : bool
        Whether the batch system has considered the request and made it wait; False if it was just submitted.
    """

    name: str
    number: str
    state: AllocationState
    end: AllocationEnd = ""
    start_ms: int | None = None
    reason: str = ""
    runs_as: str = ""
    is_put_off: bool = False


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the batch system.

    Attributes
    ----------
    nodes : int
        Number of nodes that are running jobs or could run jobs.
    idle : int
        Number of nodes that no user's job has.
    longest_ms : int, optional
        Maximum time limit of a request; None: no maximum.
    allocations : tuple of Allocation
        The allocations whose names start with the requested prefix, sorted by name. A name that was requested twice
        occurs twice. Allocations that ended some minutes ago may be missing.
    busy : tuple of (int, int, int)
        Start, latest end [ms] and number of nodes for each running job of any user, and for each waiting job with an
        expected start. Running jobs without a known end are missing, so nodes that are neither idle nor listed here
        count as taken for the maximum time limit.
    kinds : tuple of NodeKind
        The kinds of all nodes, including those that are down; empty if the batch system does not report them, or jobs
        get whole nodes only.
    groups : tuple of NodeGroup
        What is free on the nodes that are up.
    """

    nodes: int
    idle: int
    longest_ms: int | None = None
    allocations: tuple[Allocation, ...] = ()
    busy: tuple[tuple[int, int, int], ...] = ()
    kinds: tuple[NodeKind, ...] = ()
    groups: tuple[NodeGroup, ...] = ()


class BatchSystem(Protocol):
    """The interface through which a site uses a batch system.

    Every call can raise `gridweave.errors.UnavailableError` if the batch system does not answer; it is then unknown
    whether the call has taken effect.
    """

    async def check(self, users: Iterable[BatchUser] = ()) -> tuple[str, ...]:
        """Check that these users can get nodes; return notes for the operator, one line each.

        Raise InputError with a one-line message if the site or one of the users can never get nodes.
        """

    async def view(self, prefix: str) -> BatchView:
        """Return a snapshot with the allocations whose names start with `prefix`, in as few queries as possible."""

    async def submit(self, request: AllocationRequest) -> str:
        """Request nodes; return the number of the allocation.

        Raise InputError if the batch system will never accept the request, `LimitError` if for now it accepts no
        requests from this account with these options, and `RequestRejectedError` if it is unknown which applies.
        """

    def script(self, command: tuple[str, ...], stdin: str = "", chunk: Chunk | None = None, width: int = 0) -> str:
        """Return a script that runs a command once on each node of an allocation, and waits for all commands to end.

        The command gets its node number, counted from 0, in ``GRIDWEAVE_NODE``, and the allocation's number in
        ``GRIDWEAVE_ALLOCATION``. In an allocation for ``width`` chunks, it also gets the number of chunks on each node
        of the allocation in ``GRIDWEAVE_CHUNKS``, in the order of the nodes, e.g. ``2(x3),1``. On standard input it
        gets ``stdin``, a line that nobody else may read.
        """

    async def ended(self, names: Collection[str]) -> Sequence[Allocation]:
        """Return how allocations that `view` no longer shows have ended, from the batch system's records.

        Raise UnavailableError if the batch system keeps no such records or does not answer.
        """

    def end_from_output(self, printed: str) -> tuple[AllocationEnd, str] | None:
        """Return how an allocation whose script failed has ended, judging by the script's output; None if unclear."""

    async def cancel(self, allocations: Sequence[Allocation]) -> None:
        """Cancel running or waiting allocations; allocations that have ended are skipped."""


def size_problem(nodes: int, view: BatchView) -> str | None:
    """Return a one-line warning if a site is configured with more nodes than are up in its batch system, or None.

    Examples
    --------
    >>> size_problem(16, BatchView(nodes=4, idle=2))
    'nodes is 16, and the batch system has 4 nodes for it that are up; a job of more waits until there are as many'
    >>> size_problem(4, BatchView(nodes=4, idle=2))
    """
    if nodes <= view.nodes:
        return None
    up = f"{view.nodes} node for it that is up" if view.nodes == 1 else f"{view.nodes} nodes for it that are up"
    return f"nodes is {nodes}, and the batch system has {up}; a job of more waits until there are as many"


def allocation_name_problem(name: str) -> str | None:
    """Return what is wrong with an allocation name, in one line; None if the name is valid.

    Examples
    --------
    >>> allocation_name_problem("a|b")
    "the name 'a|b' of an allocation must be letters, digits, hyphens, underscores and dots"
    """
    if name and all(letter.isascii() and (letter.isalnum() or letter in "-_.") for letter in name):
        return None
    return f"the name {name!r} of an allocation must be letters, digits, hyphens, underscores and dots"


def check_request(request: AllocationRequest) -> None:
    """Raise OptionError if a request's name, number of nodes or time limit is invalid."""
    problem = allocation_name_problem(request.name)
    if problem is not None:
        raise OptionError("name", problem)
    if request.nodes < 1:
        raise OptionError("nodes", f"is {request.nodes} of allocation {request.name}; at least 1")
    if request.parts is not None and request.width < 1:
        raise OptionError("width", f"is {request.width} of allocation {request.name}; at least 1 chunk")
    if request.length_ms < 1:
        raise OptionError("length_ms", f"is {request.length_ms} of allocation {request.name}; at least 1")


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The batch system of a site, and how often the site queries it.

    Attributes
    ----------
    settings
        The cluster and the options of all requests, in the batch system's own type, e.g. `SlurmSettings`.
    system : str
        Name of the batch system in `gridweave.slurm.service.dictionary.SYSTEMS`.
    folder : str
        Folder that the site shares with the nodes.
    host : str
        Host name at which nodes reach the site; empty: the site's own host name.
    python : str
        Path on every node of a Python with gridweave installed; empty: the path of the site's Python.
    poll_s : float
        Time between two queries of the batch system while a change is expected.
    lease_s : float
        Time without contact with the site after which an idle node gives itself back, and time without contact with one
        of its nodes after which the site cancels an allocation.
    rules : MachineRules
        Rules for which jobs the nodes start.
    users : dict of str to BatchUser
        The accounts for jobs, by user; if empty, all jobs are submitted as the site's account.
    """

    settings: Any
    folder: str
    system: str = "slurm"
    host: str = ""
    python: str = ""
    poll_s: float = 3.0
    lease_s: float = 600.0
    rules: MachineRules = ANY_JOBS
    users: dict[str, BatchUser] = {}
