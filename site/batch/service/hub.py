"""Where a site hears the processes on the nodes of its allocations, and hands them its orders."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.site.batch.service.folder import SharedFolder, SiteAddress
from gridweave.site.batch.service.node_http import NodeServer
from gridweave.site.launch import MachineRules, meeting_of
from gridweave.site.messages import (
    ENCODER,
    ORDERS,
    REPORTS,
    LookForRoom,
    MachineJoined,
    MachineReady,
    MachineTakes,
    Order,
    Report,
    StartRun,
)
from gridweave.site.nodes.source import PILOT

WAIT_S = 20.0
"""So long a node that asks for orders waits for some; it asks again then."""

SILENT_S = 60.0
"""A node that has not asked for so long is not counted as there."""

Place = tuple[str, int]
"""A node: the name of its allocation, and its number there."""


class Orders(msgspec.Struct, frozen=True):
    """What a node is to do: as which machine, what, and whether to give itself back."""

    machine: str = ""
    orders: tuple[bytes, ...] = ()
    leaves: bool = False


class Welcome(msgspec.Struct, frozen=True):
    """What a node hears that may stay: whose jobs it starts, and which folders of its account it is to remove."""

    rules: MachineRules
    gone: tuple[str, ...] = ()


class NodeOfSite:
    """A node of an allocation, as the site knows it."""

    def __init__(self, host: str, now_s: float) -> None:
        self.host, self.machine = host, ""
        self.orders: list[bytes] = []
        self.news = asyncio.Event()
        self.heard_s = now_s


class Hub:
    """Hears nodes, and knows which of them is which machine of the site.

    A machine of such a site is no host: it is the place of one node, which a node of an allocation takes when it is
    given the first part of a job, until the allocation ends; a node of a pilot has its place from the beginning.
    ``report`` takes in what a machine tells; ``rules`` say whose jobs machines start.

    A node may run as a user whom nobody trusts. By its key it is heard as its own allocation alone, is told nothing but
    what that is to do, and tells of nothing but that job.
    """

    def __init__(self, folder: SharedFolder, report: Callable[[bytes], Awaitable[None]], rules: MachineRules) -> None:
        self._folder, self._report, self._rules = folder, report, rules
        self.clock: Callable[[], float] = time.monotonic
        self._nodes: dict[Place, NodeOfSite] = {}
        self._machines: dict[str, Place] = {}
        # The allocation in the batch system that has a name; another that has the same name is a mistake.
        self._numbers: dict[str, str] = {}
        self._wanted: dict[int, str] | None = None  # by job; None: the site has not said it yet
        self._pilots: Mapping[str, Place] = {}
        self._places: Mapping[str, Place] = {}  # of the machines that run something, or are of pilots
        self._kept: Mapping[str, int] = {}  # how many nodes the allocations have that may stay
        self._server: NodeServer | None = None
        self.gone: Mapping[str, tuple[str, ...]] = {}  # what a node of an account is to remove, below its folder
        self.news = asyncio.Event()

    async def open(self, host: str) -> None:
        """Listen, and tell the nodes where."""
        self._server = NodeServer(self, ("hello", "ask", "report"), self._folder.door)
        self._folder.set_address(SiteAddress(host, await self._server.open("0.0.0.0")))

    async def close(self) -> None:
        """Hear nobody any more."""
        if self._server is not None:
            await self._server.close()

    # -- what the site wants ------------------------------------------------------------------------------------------

    def want(
        self,
        nodes: Mapping[str, int],
        pilots: Mapping[str, Place],
        runs: Mapping[str, Place],
        known: Collection[str] = (),
    ) -> None:
        """Have allocations of so many nodes, by their names, and pilots by the machines that their nodes are.

        Nodes of all others are to give themselves back. ``runs`` are the nodes of the machines that run jobs which have
        their own allocations. The numbers of ``known`` allocations, which the batch system may still have, are kept.
        """
        jobs = {self._folder.job_of(name): name for name in nodes}
        self._wanted = {job_id: name for job_id, name in jobs.items() if job_id != PILOT}
        self._kept, self._pilots, self._places = nodes, pilots, {**pilots, **runs}
        self._numbers = {name: number for name, number in self._numbers.items() if name in {*nodes, *known}}
        gone = [place for place in self._nodes if place[0] not in self._kept]
        for place in gone:
            node = self._nodes.pop(place)
            node.news.set()
            if self._machines.get(node.machine) == place:
                del self._machines[node.machine]

    def is_ready(self, name: str, nodes: int) -> bool:
        """Return whether all nodes of an allocation are there."""
        heard = self._heard()
        return all((name, number) in heard for number in range(nodes))

    def number_of(self, name: str) -> str | None:
        """Return what the batch system calls the allocation whose nodes were heard; None: none has this name yet."""
        return self._numbers.get(name)

    def silent_node(self, name: str, nodes: int) -> int | None:
        """Return the first node of an allocation that is not heard though others of the site are; None if all are.

        Of an allocation whose nodes were never heard nothing is expected; if nobody is heard, the site is cut off.
        """
        heard = self._heard()
        if not heard or all((name, number) not in self._nodes for number in range(nodes)):
            return None
        return next((number for number in range(nodes) if (name, number) not in heard), None)

    def _heard(self) -> set[Place]:
        """Return the nodes that have asked for orders a short time ago."""
        now_s = self.clock()
        return {place for place, node in self._nodes.items() if now_s - node.heard_s < SILENT_S}

    def hosts(self, name: str, nodes: int) -> list[str]:
        """Return the hosts of the nodes of an allocation; all are there."""
        return [self._nodes[name, number].host for number in range(nodes)]

    def order(self, machine: str, data: bytes) -> None:
        """Hand orders to a machine; UnavailableError if no node is it."""
        for order in ORDERS.decode(data):
            place = self._place_for(machine, order)
            node = self._nodes.get(place) if place is not None else None
            if place is None or node is None:
                raise UnavailableError(f"no node is machine {machine} now")
            node.machine, self._machines[machine] = machine, place
            node.orders.append(ENCODER.encode([self._meeting_here(order, place[0])]))
            node.news.set()

    def _place_for(self, machine: str, order: Order) -> Place | None:
        """Return which node is to hear an order: that of the part of the job, or, of an end before the start, any."""
        if machine in self._pilots:
            return self._pilots[machine]
        if isinstance(order, LookForRoom):
            return self._machines.get(machine)
        wanted = self._wanted or {}
        if isinstance(order, StartRun):
            name = wanted.get(order.launch.job_id)
            return None if name is None else (name, order.launch.ranks[0].node)
        name = wanted.get(order.job_id)
        known = self._machines.get(machine)
        if known is not None and known[0] == name:
            return known
        return next((place for place, node in self._nodes.items() if place[0] == name and not node.machine), None)

    def _meeting_here(self, order: Order, name: str) -> Order:
        """Return an order by which the ranks of a job on this site alone meet on the first node of its allocation."""
        first = self._nodes.get((name, 0))
        if not isinstance(order, StartRun) or first is None or len(order.launch.sites) > 1:
            return order
        if order.machine in self._pilots:
            return order  # it was known where they meet when the job started
        if (meeting := meeting_of(order.launch.rendezvous)) is None:
            return order
        there = meeting._replace(host=first.host).text
        return msgspec.structs.replace(order, launch=msgspec.structs.replace(order.launch, rendezvous=there))

    # -- what nodes call ----------------------------------------------------------------------------------------------

    def _knows(self, key: bytes, name: str) -> bool:
        """Return whether an allocation is wanted, and this is its key; InputError if it is another's."""
        if self._wanted is None:
            raise UnavailableError("the site is starting")
        if name not in self._kept:
            return False
        if not hmac.compare_digest(key, self._folder.key(name)):
            raise InputError("this is not the key of that allocation")
        return True

    async def hello(
        self, key: bytes, name: str, number: int, allocation: str, host: str, machine: str
    ) -> Welcome | None:
        """Take note that a node is there, which may be a machine already; None: it may not stay.

        It says so itself; it is that machine only if the site has that there, and has given it to no other node since.
        """
        if not (self._knows(key, name) and 0 <= number < self._kept[name]):
            return None
        if self._numbers.setdefault(name, allocation) != allocation:
            return None
        place = name, number
        node = self._nodes[place] = self._nodes.get(place) or NodeOfSite(host, self.clock())
        is_there = self._places.get(machine) == place and not node.machine
        if is_there and self._machines.setdefault(machine, place) == place:
            node.machine = machine
        self.news.set()
        return self._welcome(name)

    def _welcome(self, name: str) -> Welcome:
        """Return what a node hears; that of a user is told of no others."""
        owner, rules = self._folder.owner(name), self._rules
        if not owner.runs_as:
            return Welcome(rules)
        mapped = tuple(user for user in rules.mapped or () if user == owner.user)
        return Welcome(msgspec.structs.replace(rules, mapped=mapped), self.gone.get(owner.runs_as, ()))

    async def ask(self, key: bytes, name: str, number: int) -> Orders:
        """Return what a node is to do, as soon as there is anything."""
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
        """Take in what a machine tells; return when it is durable. Of an allocation that is over nothing counts."""
        if self._knows(key, name):
            await self._report(ENCODER.encode([self._checked(each, name) for each in REPORTS.decode(data)]))

    def _checked(self, report: Report, name: str) -> Report:
        """Return what a node tells, if it may; whose jobs are taken says the site."""
        job_id = self._folder.job_of(name)
        place = self._machines.get(report.machine)
        if place is None or place[0] != name:
            raise InputError(f"a node of job {job_id} tells of machine {report.machine:.100}, which it is not")
        if isinstance(report, MachineJoined):
            return msgspec.structs.replace(report, users=self._rules.users)
        if isinstance(report, MachineTakes):
            raise InputError("a node does not say whose jobs are taken")
        if not isinstance(report, MachineReady) and job_id not in (PILOT, report.job_id):
            raise InputError(f"a node of job {job_id} tells of job {report.job_id}")
        return report
