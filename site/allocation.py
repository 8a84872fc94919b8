"""Allocate a site's nodes and its machines' ports."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import msgspec

from gridweave.errors import InputError
from gridweave.site.array_tasks import indexes_of
from gridweave.site.launch import Meeting
from gridweave.site.messages import LOCAL, Machine

Interval = tuple[int, int]


class NodePool:
    """The free and allocated nodes of one site, numbered from 0.

    A request for w nodes gets the w free nodes with the lowest numbers, in one or more intervals. The result depends
    only on the sequence of calls, so replaying a schedule gives every job the same nodes again.

    The free nodes are the bits of one integer, so all nodes of a job are allocated, freed or compared in one operation.
    `take` and `give_back` work on these bits directly. The time of a call grows with the number of intervals and the
    number of nodes: about 2 µs for 128 nodes, 30 µs for 100,000. Allocating more nodes than are free, or freeing a free
    node, is a bug in the caller; it raises AssertionError, even under ``python -O``, and leaves the pool unchanged.

    Examples
    --------
    >>> pool = NodePool(8)
    >>> first, second = pool.allocate(3), pool.allocate(2)
    >>> first, second, pool.free
    (((0, 3),), ((3, 5),), 3)
    >>> pool.release(first)
    >>> pool.allocate(5)
    ((0, 3), (5, 7))
    """

    __slots__ = ("_all", "_free", "free", "nodes")

    def __init__(self, nodes: int) -> None:
        if nodes < 1:
            raise InputError(f"nodes is {nodes}; expected at least 1")
        self.nodes = nodes
        self.free = nodes
        self._free = self._all = (1 << nodes) - 1

    def __repr__(self) -> str:
        return f"NodePool({self.free} of {self.nodes} nodes free)"

    def allocate(self, width: int) -> tuple[Interval, ...]:
        """Allocate the ``width`` lowest free nodes; return them as maximal half-open intervals, ascending."""
        return self.take(width)[0]

    def take(self, width: int) -> tuple[tuple[Interval, ...], int]:
        """Allocate nodes like `allocate`; also return them as a bit mask, for `give_back`."""
        if not 1 <= width <= self.free:
            raise AssertionError(f"{width} nodes requested; {self.free} of {self.nodes} are free")
        free = self._free
        start = (free & -free).bit_length() - 1
        taken = ((1 << width) - 1) << start
        if free & taken == taken:
            node_tasks: tuple[Interval, ...] = ((start, start + width),)
        else:
            node_tasks, taken = _lowest(free, width)
        self._free = free ^ taken
        self.free -= width
        return node_tasks, taken

    def release(self, intervals: Iterable[Interval]) -> None:
        """Free nodes, which may be all or some of the nodes of one or more allocations."""
        mask = count = 0
        for start, stop in intervals:
            if not 0 <= start < stop <= self.nodes:
                raise AssertionError(f"nodes {start} to {stop} released; the site has 0 to {self.nodes}")
            mask |= (1 << stop) - (1 << start)
            count += stop - start
        if mask.bit_count() != count:
            raise AssertionError(f"{count} nodes released, but some of them are listed twice")
        self.give_back(mask)

    def give_back(self, taken: int) -> None:
        """Free nodes like `release`, given as a bit mask."""
        if taken & self._free or taken > self._all:
            raise AssertionError("nodes released, but some of them are already free, or not at this site")
        self._free |= taken
        self.free += taken.bit_count()

    def occupy(self, taken: int) -> None:
        """Allocate specific free nodes, given as a bit mask."""
        if taken & ~self._free:
            raise AssertionError("nodes allocated, but some of them are not free, or not at this site")
        self._free ^= taken
        self.free -= taken.bit_count()

    def check_invariants(self) -> None:
        """Raise AssertionError if a free node does not exist, or `free` is not the number of free nodes."""
        if self._free | self._all != self._all:
            raise AssertionError(f"a free node is not one of the site's {self.nodes} nodes")
        if self._free.bit_count() != self.free:
            raise AssertionError(f"{self._free.bit_count()} nodes are free, {self.free} counted")


def bits_of(intervals: Iterable[Interval]) -> int:
    """Convert node intervals to a bit mask."""
    bits = 0
    for start, stop in intervals:
        bits |= (1 << stop) - (1 << start)
    return bits


def nodes_of_groups(intervals: Iterable[Interval], counts: Iterable[int]) -> list[list[int]]:
    """Return the nodes of each group's tasks, ascending; the intervals list the tasks group by group.

    Examples
    --------
    >>> nodes_of_groups([(0, 1), (0, 3), (1, 2)], [1, 4])
    [[0], [0, 1, 1, 2]]
    """
    numbers = indexes_of(intervals)
    return [sorted(islice(numbers, count)) for count in counts]


def intervals_of_sorted(numbers: Iterable[int]) -> tuple[Interval, ...]:
    """Convert ascending numbers, which may be repeated, to intervals that list them in this order.

    Examples
    --------
    >>> intervals_of_sorted([3, 3, 4, 4, 5])
    ((3, 4), (3, 5), (4, 6))
    """
    intervals: list[Interval] = []
    for number in numbers:
        if intervals and intervals[-1][1] == number:
            intervals[-1] = intervals[-1][0], number + 1
        else:
            intervals.append((number, number + 1))
    return tuple(intervals)


def intervals_of(bits: int) -> tuple[Interval, ...]:
    """Convert a bit mask of nodes to maximal intervals, ascending."""
    return _lowest(bits, bits.bit_count())[0] if bits else ()


def _lowest(free: int, width: int) -> tuple[tuple[Interval, ...], int]:
    """Return the ``width`` (>= 1) lowest set bits of a bit mask, as maximal intervals and as a bit mask."""
    node_tasks: list[Interval] = []
    every = free
    while True:
        # Adding the lowest set bit carries through the run of set bits above it, up to the first 0.
        lowest = free & -free
        carried = free + lowest
        start, stop = lowest.bit_length() - 1, (free ^ carried).bit_length() - 1
        if stop - start >= width:
            stop = start + width
            return (*node_tasks, (start, stop)), every & ((1 << stop) - 1)
        node_tasks.append((start, stop))
        width -= stop - start
        free &= carried


class Port(msgspec.Struct, frozen=True):
    """A port allocated to a job; number 0 means that no port was free."""

    machine: str = ""
    number: int = 0
    meeting: str = ""


NO_PORT = Port()


def _key_of(secret: str, job_id: int, attempt: int) -> str:
    """Return the key of a job's attempt; nobody can guess the key without knowing the secret."""
    if not secret:
        return ""
    return hashlib.blake2b(f"{job_id}.{attempt}".encode(), key=secret.encode(), digest_size=16).hexdigest()


class Ports:
    """The ports of a site's machines, each allocated to at most one job.

    Examples
    --------
    >>> from gridweave.site.messages import Machine
    >>> ports = Ports([Machine(name="n0", nodes=1, ports=(2000, 2001))])
    >>> first = ports.take("n0", 7, 1)
    >>> first.meeting, ports.take("n0", 8, 1).meeting
    ('127.0.0.1:2000', '')
    >>> ports.give(first)
    >>> ports.take("n0", 8, 1).number
    2000
    """

    def __init__(self, machines: Collection[Machine]) -> None:
        self._ranges = {machine.name: range(*machine.ports) for machine in machines}
        self._taken: dict[str, set[int]] = {machine.name: set() for machine in machines}
        self._hosts: dict[str, str] = {}
        self._secrets: dict[str, str] = {}

    def state(self) -> tuple[dict[str, list[int]], dict[str, str], dict[str, str]]:
        """Return the allocated ports, and the addresses and secrets of the machines."""
        return {machine: sorted(numbers) for machine, numbers in self._taken.items()}, self._hosts, self._secrets

    def restore(self, taken: dict[str, list[int]], hosts: dict[str, str], secrets: dict[str, str]) -> None:
        """Restore a state returned by `state`; the machines must be the same."""
        self._taken = {machine: set(numbers) for machine, numbers in taken.items()}
        self._hosts, self._secrets = hosts, secrets

    def reached_by(self, machine: str, host: str, secret: str = "") -> None:
        """Set a machine's address and the secret from which keys are derived, both for jobs that start from now on."""
        self._hosts[machine], self._secrets[machine] = host, secret

    def host_of(self, machine: str) -> str:
        """Return a machine's address; "" if the machine has never connected."""
        return self._hosts.get(machine, "")

    def take(self, machine: str, job_id: int, attempt: int) -> Port:
        """Allocate a machine's lowest free port to a job's attempt; return `NO_PORT` if no port is free."""
        taken = self._taken[machine]
        number = next((port for port in self._ranges[machine] if port not in taken), 0)
        if not number:
            return NO_PORT
        taken.add(number)
        meeting = Meeting(
            _key_of(self._secrets.get(machine, ""), job_id, attempt), self._hosts.get(machine, LOCAL), number
        )
        return Port(machine, number, meeting.text)

    def give(self, port: Port) -> None:
        """Free a port."""
        if port.number:
            self._taken[port.machine].discard(port.number)

    def taken(self) -> Iterator[tuple[str, int]]:
        """Yield the machine and number of each allocated port."""
        for machine, numbers in self._taken.items():
            for number in numbers:
                yield machine, number
