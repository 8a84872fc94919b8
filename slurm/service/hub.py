"""A site's hub, which answers the processes on the nodes of its allocations, and passes orders to them."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.site.launch import MachineRules, meeting_of
from gridweave.site.messages import (
    ENCODER,
    ORDERS,
    REPORTS,
    CheckCapacity,
    MachineJoined,
    MachineReady,
    MachineTakes,
    Order,
    Report,
    StartRun,
)
from gridweave.site.nodes.source import PILOT
from gridweave.slurm.service.folder import SharedFolder, SiteAddress
from gridweave.slurm.service.node_http import NodeServer

WAIT_S = 20.0
"""How long a node's call waits for orders [s]; afterwards the node calls again."""

SILENT_S = 60.0
"""A node counts as silent if it has not asked for orders for this long [s]."""

Place = tuple[str, int]
"""A node, as the name of its allocation and its number in the allocation.

In an allocation for chunks, a node's number is that of its first chunk.
"""


class Orders(msgspec.Struct, frozen=True):
    """The answer to a node that asks for orders: its machine, its orders, and whether it must give itself back."""

    machine: str = ""
    orders: tuple[bytes, ...] = ()
    leaves: bool = False


class Welcome(msgspec.Struct, frozen=True):
    """The answer to a node that may stay: the rules for the jobs it starts, and the account's folders to remove."""

    rules: MachineRules
    gone: tuple[str, ...] = ()


class NodeOfSite:
    """What the hub knows about a node of an allocation."""

    def __init__(self, host: str, now_s: float, chunks: int = 1) -> None:
        self.host, self.machine, self.chunks = host, "", chunks
        self.orders: list[bytes] = []
        self.news = asyncio.Event()
        self.heard_s = now_s


class Hub:
    """Answers a site's nodes, and records the machine that each node acts as.

    A machine of such a site is not a host, but one of the nodes that the site may have. A pilot's node has its machine
    from the beginning; a node of a job's own allocation gets a machine with its first node task, until the allocation
    ends. If jobs ask for chunks, nodes of several allocations can act as the same machine, each for its own job.
    ``report`` receives the machines' reports; ``rules`` say which jobs machines start.

    A node may run as an untrusted user. The node's key is valid only for its own allocation, so the node gets orders
    only for that allocation and cannot report on other jobs.
    """

    def __init__(self, folder: SharedFolder, report: Callable[[bytes], Awaitable[None]], rules: MachineRules) -> None:
        self._folder, self._report, self._rules = folder, report, rules
        self.clock: Callable[[], float] = time.monotonic
        self._nodes: dict[Place, NodeOfSite] = {}
        self._acting: dict[tuple[str, str], Place] = {}  # the node that acts as a machine, by machine and allocation
        # The batch system's number for each allocation, by name; a second allocation with the same name is an error.
        self._numbers: dict[str, str] = {}
        self._needed: dict[int, str] | None = None  # needed allocations' names by job; None until the site has set them
        self._pilots: Mapping[str, Place] = {}
        # The machines that run jobs or belong to pilots, each with its node.
        self._places: Collection[tuple[str, Place]] = ()
        self._kept: Mapping[str, int] = {}  # number of nodes, or of chunks, by needed allocation
        self._server: NodeServer | None = None
        self.gone: Mapping[str, tuple[str, ...]] = {}  # folders to remove, by account
        self.news = asyncio.Event()

    async def open(self, host: str) -> None:
        """Start listening, and publish the address in the shared folder."""
        self._server = NodeServer(self, ("hello", "ask", "report"), self._folder.door)
        self._folder.set_address(SiteAddress(host, await self._server.open("0.0.0.0")))

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.close()

    # -- calls of the site --------------------------------------------------------------------------------------------

    def want(
        self,
        nodes: Mapping[str, int],
        pilots: Mapping[str, Place],
        runs: Collection[tuple[str, Place]],
        present: Collection[str] = (),
    ) -> None:
        """Set the needed allocations with the number of nodes or chunks in each, and the nodes of pilots by machine.

        Nodes of all other allocations must give themselves back. ``runs`` has the machines of jobs with their own
        allocations, each with its node. The hub keeps the numbers of ``present`` allocations, which the batch system
        may still have.
        """
        jobs = {self._folder.job_of(name): name for name in nodes}
        self._needed = {job_id: name for job_id, name in jobs.items() if job_id != PILOT}
        self._kept, self._pilots, self._places = nodes, pilots, {*pilots.items(), *runs}
        self._numbers = {name: number for name, number in self._numbers.items() if name in {*nodes, *present}}
        gone = [place for place in self._nodes if place[0] not in self._kept]
        for place in gone:
            node = self._nodes.pop(place)
            node.news.set()
            if self._acting.get((node.machine, place[0])) == place:
                del self._acting[node.machine, place[0]]

    def is_ready(self, name: str, nodes: int) -> bool:
        """Whether all nodes of an allocation are connected."""
        return self.layout(name, nodes) is not None

    def layout(self, name: str, width: int) -> tuple[int, ...] | None:
        """Return the number of chunks on each node of an allocation; None unless all of its nodes are connected.

        An allocation for whole nodes has one chunk on each of them. ``width`` is the number of all chunks.
        """
        heard, chunks, number = self._heard(), [], 0
        while number < width:
            if (name, number) not in heard:
                return None
            chunks.append(self._nodes[name, number].chunks)
            number += chunks[-1]
        return tuple(chunks) if number == width else None

    def number_of(self, name: str) -> str | None:
        """Return the batch system's number for an allocation, as reported by its nodes; None if no node has called."""
        return self._numbers.get(name)

    def silent_node(self, name: str, width: int) -> int | None:
        """Return the number of the first silent node in an allocation of this many chunks, or None.

        Also return None if no node of the allocation has ever called. The same applies if all of the site's nodes are
        silent, because the site itself is then probably cut off.
        """
        heard = self._heard()
        if not heard or all(place[0] != name for place in self._nodes):
            return None
        number = 0
        while number < width and (name, number) in heard:
            number += self._nodes[name, number].chunks
        return number if number < width else None

    def _heard(self) -> set[Place]:
        """Return the nodes that have asked for orders within the past `SILENT_S` seconds."""
        now_s = self.clock()
        return {place for place, node in self._nodes.items() if now_s - node.heard_s < SILENT_S}

    def hosts(self, name: str, nodes: int) -> list[str]:
        """Return the hosts of an allocation's nodes, all of which must have called."""
        return [self._nodes[name, number].host for number in range(nodes)]

    def order(self, machine: str, data: bytes) -> None:
        """Queue orders for a machine; raise UnavailableError if no node acts as that machine."""
        for order in ORDERS.decode(data):
            place = self._place_for(machine, order)
            node = self._nodes.get(place) if place is not None else None
            if place is None or node is None:
                raise UnavailableError(f"no node is machine {machine} now")
            node.machine, self._acting[machine, place[0]] = machine, place
            node.orders.append(ENCODER.encode([self._meeting_here(order, place[0])]))
            node.news.set()

    def _place_for(self, machine: str, order: Order) -> Place | None:
        """Return the node for an order: the task's node, or any unused node of the job if the task never started."""
        if machine in self._pilots:
            return self._pilots[machine]
        if isinstance(order, CheckCapacity):
            return next((place for (acting, _), place in self._acting.items() if acting == machine), None)
        needed = self._needed or {}
        if isinstance(order, StartRun):
            name = needed.get(order.launch.job_id)
            return None if name is None else (name, order.launch.ranks[0].node)
        name = needed.get(order.job_id, "")
        if (machine, name) in self._acting:
            return self._acting[machine, name]
        return next((place for place, node in self._nodes.items() if place[0] == name and not node.machine), None)

    def _meeting_here(self, order: Order, name: str) -> Order:
        """Return an order; if it starts a one-site job, move the rendezvous to the allocation's first node."""
        first = self._nodes.get((name, 0))
        if not isinstance(order, StartRun) or first is None or len(order.launch.sites) > 1:
            return order
        if order.machine in self._pilots:
            return order  # its rendezvous was known when the job started
        if (meeting := meeting_of(order.launch.rendezvous)) is None:
            return order
        there = meeting._replace(host=first.host).text
        return msgspec.structs.replace(order, launch=msgspec.structs.replace(order.launch, rendezvous=there))

    # -- calls of nodes -----------------------------------------------------------------------------------------------

    def _knows(self, key: bytes, name: str) -> bool:
        """Whether an allocation is needed; raise InputError for a wrong key, UnavailableError during start-up."""
        if self._needed is None:
            raise UnavailableError("the site is starting")
        if name not in self._kept:
            return False
        if not hmac.compare_digest(key, self._folder.key(name)):
            raise InputError("this is not the key of the allocation")
        return True

    async def hello(
        self, key: bytes, name: str, number: int, allocation: str, host: str, machine: str, chunks: int = 1
    ) -> Welcome | None:
        """Register a node; return None if the node must give itself back.

        ``machine`` is the machine that the node claims to be, or empty. The claim is accepted only if the site expects
        that machine on this node, and no other node has become that machine since. ``number`` is the number of the
        node's first chunk, and ``chunks`` the number of its chunks.
        """
        if not (self._knows(key, name) and 0 <= number < number + chunks <= self._kept[name]):
            return None
        if self._numbers.setdefault(name, allocation) != allocation:
            return None
        place = name, number
        node = self._nodes[place] = self._nodes.get(place) or NodeOfSite(host, self.clock(), chunks)
        is_there = (machine, place) in self._places and not node.machine
        if is_there and self._acting.setdefault((machine, name), place) == place:
            node.machine = machine
        self.news.set()
        return self._welcome(name)

    def _welcome(self, name: str) -> Welcome:
        """Return the answer to a node; if the node runs as a user, the answer reveals nothing about other users."""
        owner, rules = self._folder.owner(name), self._rules
        if not owner.runs_as:
            return Welcome(rules)
        mapped = tuple(user for user in rules.mapped or () if user == owner.user)
        return Welcome(msgspec.structs.replace(rules, mapped=mapped), self.gone.get(owner.runs_as, ()))

    async def ask(self, key: bytes, name: str, number: int) -> Orders:
        """Return a node's orders as soon as there are any; after `WAIT_S`, return no orders."""
        node = self._nodes.get((name, number)) if self._knows(key, name) else None
        if node is None:
            return Orders(leaves=name not in self._kept)
        node.heard_s = self.clock()
        if not node.orders:
            node.news.clear()
            try:
                async with asyncio.timeout(WAIT_S):
                    await node.news.wait()
            except TimeoutError:
                pass
        orders, node.orders = tuple(node.orders), []
        return Orders(node.machine, orders, leaves=name not in self._kept)

    async def report(self, key: bytes, name: str, data: bytes) -> None:
        """Pass on a node's reports, and return once they are durable; ignore them if its allocation is not needed."""
        if self._knows(key, name):
            await self._report(ENCODER.encode([self._checked(report, name) for report in REPORTS.decode(data)]))

    def _checked(self, report: Report, name: str) -> Report:
        """Return a report, with the site's accepted users filled in; raise InputError if the node must not send it."""
        job_id = self._folder.job_of(name)
        if (report.machine, name) not in self._acting:
            raise InputError(f"a node of job {job_id} reports as machine {report.machine:.100}, which it is not")
        if isinstance(report, MachineJoined):
            # A machine may also be a node of other users' jobs, whose keys must not depend on this user's secret.
            return msgspec.structs.replace(report, users=self._rules.users, secret="")
        if isinstance(report, MachineTakes):
            raise InputError("a node cannot set the accepted users")
        if not isinstance(report, MachineReady) and job_id not in (PILOT, report.job_id):
            raise InputError(f"a node of job {job_id} reports about job {report.job_id}")
        return report
