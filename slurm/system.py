"""The interface between a site and the batch system that lends it nodes (docs/batch-systems.md).

A batch system lends nodes for a limited time. An *allocation* is a set of nodes that are lent together: one job of the
batch system, under a name that the site chooses and never uses again.

`BatchPlan` says which batch system a site uses, and how often the site queries it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from gridweave.errors import OptionError, UnavailableError
from gridweave.site.launch import ANY_JOBS, MachineRules

AllocationState = Literal["waiting", "running", "ended"]

AllocationEnd = Literal["", "given back", "cancelled", "limit", "memory", "failed", "lost"]
"""How an allocation ended.

``given back``: its script succeeded. ``cancelled``: somebody cancelled it in the batch system. ``limit``: it reached
its time limit. ``memory``: it used more memory than it was allowed. ``failed``: its script failed for any other reason.
``lost``: a node failed, or the batch system preempted it.
"""


class RequestRejectedError(UnavailableError):
    """The batch system rejected a request as too large, or because the account has too many; it does not say which."""


class LimitError(UnavailableError):
    """The batch system accepts no more requests for now from the same account with the same options."""


class BatchUser(msgspec.Struct, frozen=True, kw_only=True):
    """The account that pays for a user's jobs, and the Unix account that runs them; empty: the site's own."""

    account: str = ""
    runs_as: str = ""


class AllocationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for whole nodes: no other job of the batch system may use them.

    Attributes
    ----------
    name : str
        Never used twice: by its name the site finds the allocation again, even if the answer to the request was lost.
    nodes : int
        Number of nodes, >= 1.
    length_ms : int
        Time limit, >= 1; the batch system takes the nodes back after this time.
    script : str
        Runs on the first node; the nodes are given back when it ends.
    folder : str
        Working folder of the script; the account that runs it must be able to write there.
    output : str
        File for the output of the script.
    comment : str
        Shown in the queue of the batch system, for people: the job and its user.
    account : str
        Account that pays, as the batch system names it; empty: the site's.
    runs_as : str
        Unix account that submits and runs the script; empty: the site's.
    options : tuple of str
        Options of the batch system itself, written as on its command line.
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


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation, as the batch system reports it.

    Attributes
    ----------
    name : str
        As in the request.
    number : str
        Its job number in the batch system.
    state : {"waiting", "running", "ended"}
    start_ms : int, optional
        The expected start of a waiting allocation, or the actual start. None if unknown.
    reason : str
        Why it waits or how it ended, in plain words; empty while it runs.
    end : AllocationEnd
        How it ended; empty before that.
    runs_as : str
        The Unix account that owns it; empty: the site's.
    is_put_off : bool
        Whether the batch system has considered the request and decided that it has to wait; False if just submitted.
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
        Nodes that run jobs or are able to.
    idle : int
        Nodes that no job of any user has.
    longest_ms : int, optional
        The longest time limit that a request may have; None: any.
    allocations : tuple of Allocation
        The allocations whose names start with the requested prefix, sorted by name. A name occurs twice if it was
        requested twice. Allocations that ended some minutes ago may be missing.
    busy : tuple of (int, int, int)
        Start, latest end [ms] and number of nodes of every running job, and of every waiting job with an expected
        start, of any user. Running jobs without a known end are missing: nodes that are neither idle nor listed here
        count as taken for the longest time limit.
    """

    nodes: int
    idle: int
    longest_ms: int | None = None
    allocations: tuple[Allocation, ...] = ()
    busy: tuple[tuple[int, int, int], ...] = ()


class BatchSystem(Protocol):
    """A batch system, as the driver of a site calls it.

    Every call may raise `gridweave.errors.UnavailableError`: the batch system does not answer, and whether it has done
    what was asked is unknown.
    """

    async def check(self, users: Iterable[BatchUser] = ()) -> tuple[str, ...]:
        """Return notes for the operator, one line each.

        InputError, in one line: the batch system can never give nodes to the site, or to one of these users.
        """

    async def view(self, prefix: str) -> BatchView:
        """Return a snapshot with the allocations whose names start with `prefix`, in as few queries as possible."""

    async def submit(self, request: AllocationRequest) -> str:
        """Request nodes; return the number of the allocation.

        InputError: the batch system will never accept the request. `LimitError`: it accepts neither this one now nor
        others of the same account with the same options. `RequestRejectedError`: either of the two.
        """

    def script(self, command: tuple[str, ...], stdin: str = "") -> str:
        """Return a script that runs a command once on each node of an allocation, and ends when all of them have ended.

        The command finds the number of its node, counted from 0, in ``GRIDWEAVE_NODE``, the number of the allocation in
        ``GRIDWEAVE_ALLOCATION``, and ``stdin``, a line that nobody else may read, on its standard input.
        """

    async def ended(self, names: Collection[str]) -> Sequence[Allocation]:
        """Return how allocations ended, from the batch system's records, once views no longer show them.

        UnavailableError: it keeps no such records, or does not answer.
        """

    def end_from_output(self, printed: str) -> tuple[AllocationEnd, str] | None:
        """Return how an allocation with a failed script ended, by the script's output; None if that is unclear."""

    async def cancel(self, allocations: Sequence[Allocation]) -> None:
        """Cancel allocations, running or waiting; skip those that have ended."""


def size_problem(nodes: int, view: BatchView) -> str | None:
    """Return a one-line warning if a site counts more nodes than its batch system has up; None otherwise.

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
    """Return what is wrong with the name of an allocation, in one line; None if it is valid.

    Examples
    --------
    >>> allocation_name_problem("a|b")
    "the name 'a|b' of an allocation must be letters, digits, hyphens, underscores and dots"
    """
    if name and all(letter.isascii() and (letter.isalnum() or letter in "-_.") for letter in name):
        return None
    return f"the name {name!r} of an allocation must be letters, digits, hyphens, underscores and dots"


def check_request(request: AllocationRequest) -> None:
    """Raise OptionError if the name, the number of nodes or the time limit of a request is invalid."""
    problem = allocation_name_problem(request.name)
    if problem is not None:
        raise OptionError("name", problem)
    if request.nodes < 1:
        raise OptionError("nodes", f"is {request.nodes} of allocation {request.name}; at least 1")
    if request.length_ms < 1:
        raise OptionError("length_ms", f"is {request.length_ms} of allocation {request.name}; at least 1")


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The batch system of a site, and how often the site queries it.

    Attributes
    ----------
    settings
        Settings of the batch system's own type, such as `SlurmSettings`: the cluster, and the options of all requests.
    system : str
        The name of the batch system, in `gridweave.slurm.service.dictionary.SYSTEMS`.
    folder : str
        The folder that the site shares with the nodes.
    host : str
        The name by which nodes reach the site; empty: its host name.
    python : str
        The Python on every node that has gridweave installed; empty: the path of the site's Python.
    poll_s : float
        Time between two queries of the batch system while a change is expected.
    lease_s : float
        A node that runs nothing gives itself back when it has not heard from the site for this long. The site cancels
        an allocation when one of its nodes has been silent for this long.
    rules : MachineRules
        Which jobs the nodes start.
    users : dict of str to BatchUser
        The accounts for each user's jobs; empty: all jobs are submitted as the site's own.
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
