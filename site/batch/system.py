"""What a site asks of the batch system that its nodes belong to: the plug (docs/batch-systems.md).

A batch system gives out nodes for a time. What a site gets of it at one time is an *allocation*: a job of the batch
system under a name that the site has chosen, and that no other allocation ever has.

Which batch system that is, and how it is kept asked, is a `BatchPlan`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from gridweave.errors import OptionError, UnavailableError
from gridweave.site.launch import ANY_JOBS, MachineRules

AllocationState = Literal["waiting", "running", "ended"]

AllocationEnd = Literal["", "given back", "cancelled", "limit", "memory", "failed", "lost"]
"""How an allocation ended: its script did, well; somebody cancelled it in the batch system; its time was up; it used
more memory than it was given; its script failed, for whatever reason; or by a fault, or for another's sake."""


class NotTakenError(UnavailableError):
    """The batch system has heard what it was asked, and does not take it: there are too many, or it is too large."""


class LimitError(UnavailableError):
    """The batch system has heard what it was asked, and takes no more now of the same account with the same options."""


class BatchUser(msgspec.Struct, frozen=True, kw_only=True):
    """As what a user's jobs are submitted: who pays, and as which Unix account they run; empty: as for the site."""

    account: str = ""
    runs_as: str = ""


class AllocationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that a site asks the batch system for, each for itself alone.

    Attributes
    ----------
    name : str
        Unique for ever: by it the allocation is found again, whatever became of the call that asked for it.
    nodes : int
        How many, >= 1.
    length_ms : int
        After so long the batch system takes them back.
    script : str
        What runs on the first of them; the nodes are given back when it ends.
    folder : str
        Where it works; its account may write there.
    output : str
        The file in which what it prints is kept.
    comment : str
        For people who look at the queue of the batch system: whose job it is for.
    account : str
        Who pays, as the batch system knows them; empty: who pays for all of the site.
    runs_as : str
        The Unix account that submits it and as which it runs; empty: that of the site.
    options : tuple of str
        Options of the batch system's own, as they stand on its command line.
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
    """What the batch system says of an allocation.

    Attributes
    ----------
    name : str
        As it was asked for.
    number : str
        What the batch system calls it; under it people find it there.
    state : {"waiting", "running", "ended"}
    start_ms : int, optional
        When it starts, as the batch system expects now; when it has started. None: not known.
    reason : str
        Why it waits, or how it ended, in plain words; empty while it runs.
    end : str
        As `AllocationEnd`, once it has ended.
    runs_as : str
        The Unix account whose it is; empty: that of the site.
    is_put_off : bool
        Whether the batch system has looked at it, and has it wait; false of one that has just been submitted.
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
    """What is seen of the batch system at one time.

    Attributes
    ----------
    nodes : int
        Nodes that run jobs, or could.
    idle : int
        Those that nobody has.
    longest_ms : int, optional
        The longest time for which nodes are given; None: any.
    allocations : tuple of Allocation
        Those whose names begin as was asked, by name; one name twice, if somebody asked twice. One that ended some
        minutes ago may be left out.
    busy : tuple of (int, int, int)
        Of all that runs, and of all that waits and has an expected start, whoever it belongs to: from when to when at
        the latest it has how many nodes. What runs and has no known end is left out: nodes that are neither idle nor in
        here count as taken for the longest time.
    """

    nodes: int
    idle: int
    longest_ms: int | None = None
    allocations: tuple[Allocation, ...] = ()
    busy: tuple[tuple[int, int, int], ...] = ()


class BatchSystem(Protocol):
    """A batch system, as whoever drives a site calls it.

    Every call may fail with `gridweave.errors.UnavailableError`: the batch system does not answer, and it is not known
    whether it has done what was asked.
    """

    async def check(self, users: Iterable[BatchUser] = ()) -> tuple[str, ...]:
        """Return what an operator should know; InputError if nothing can ever be had here. Everything in one line.

        Or not by one of these users, as whom jobs are to be submitted.
        """

    async def view(self, prefix: str) -> BatchView:
        """Return what is seen now, with the allocations whose names begin so; as few questions as there can be."""

    async def submit(self, request: AllocationRequest) -> str:
        """Ask for nodes; return the number of the allocation.

        InputError: the batch system will not have it, now or ever. `LimitError`: not now, nor others of that account
        with these options. `NotTakenError`: one or the other.
        """

    def script(self, command: tuple[str, ...], given: str = "") -> str:
        """Return the script that runs a command once on each node of an allocation, and ends when all have ended.

        Each finds the number of its node, from 0, in ``GRIDWEAVE_NODE``, that of the allocation in
        ``GRIDWEAVE_ALLOCATION``, and what is ``given``, one line that nobody else may see, on its standard input.
        """

    async def ended(self, names: Collection[str]) -> Sequence[Allocation]:
        """Return how allocations of these names ended that a view shows no more, as far as the batch system keeps that.

        UnavailableError: it keeps nothing of the kind, or does not answer.
        """

    def end_told(self, printed: str) -> tuple[AllocationEnd, str] | None:
        """Return how an allocation whose script failed ended, by what that has printed; None: that does not tell."""

    async def cancel(self, allocations: Sequence[Allocation]) -> None:
        """Give allocations back, or take what waits out of the queue; those that have ended are passed over."""


def size_problem(nodes: int, view: BatchView) -> str | None:
    """Return what it means that a site counts more nodes than its batch system has for it, in one line, or None.

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
    """Return what is wrong with the name of an allocation, in one line, or None.

    Examples
    --------
    >>> allocation_name_problem("a|b")
    "the name 'a|b' of an allocation must be letters, digits, hyphens, underscores and dots"
    """
    if name and all(letter.isascii() and (letter.isalnum() or letter in "-_.") for letter in name):
        return None
    return f"the name {name!r} of an allocation must be letters, digits, hyphens, underscores and dots"


def check_request(request: AllocationRequest) -> None:
    """Raise OptionError if a request makes no sense to any batch system."""
    problem = allocation_name_problem(request.name)
    if problem is not None:
        raise OptionError("name", problem)
    if request.nodes < 1:
        raise OptionError("nodes", f"is {request.nodes} of allocation {request.name}; at least 1")
    if request.length_ms < 1:
        raise OptionError("length_ms", f"is {request.length_ms} of allocation {request.name}; at least 1")


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which batch system a site has, and how it is kept asked.

    Attributes
    ----------
    settings
        Which cluster it is, and as what jobs are submitted there: as the plug of the batch system takes it.
    system : str
        The name of the batch system, in `gridweave.site.batch.service.dictionary.SYSTEMS`.
    folder : str
        That the site shares with the nodes.
    host : str
        By which name the nodes reach the machine of the site; empty: its own.
    python : str
        The Python that has gridweave, on every node; empty: that of the site.
    poll_s : float
        How often it is looked at, while anything is expected of it.
    lease_s : float
        So long nodes stay that do not hear of the site, and jobs on a node that the site does not hear.
    rules : MachineRules
        Whose jobs the nodes start.
    users : dict of str to BatchUser
        As what a user's jobs are submitted; nobody named: all as the site's own.
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
