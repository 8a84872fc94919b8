"""Which nodes of a site are free, and which ports of its machines."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import msgspec

from gridweave.errors import InputError
from gridweave.site.elements import indexes_of
from gridweave.site.launch import Meeting
from gridweave.site.messages import LOCAL, Machine

Interval = tuple[int, int]


class NodePool:
    """The nodes of one site, numbered from 0, and which of them are free.

    The rule of allocation is lowest first: a request of width w gets the w free nodes with the lowest numbers, in one
    piece or in several. It depends on nothing but the sequence of calls, so a schedule that is replayed gives every job
    the same nodes again.

    The free nodes are the bits of one whole number, so that all nodes of a job are taken, given back and compared in
    one step; who gives back all that it took keeps them as that (`take`, `give_back`). The time of a call grows with
    the pieces and with the nodes of the site: some 2 µs where that has 128, 30 where it has 100,000. Asking for more
    than there is, or giving back what is free already, is a fault of the caller and raises AssertionError, also under
    ``python -O``; the pool is unchanged then.

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
            raise InputError(f"nodes is {nodes}; a site has at least 1")
        self.nodes = nodes
        self.free = nodes
        self._free = self._all = (1 << nodes) - 1

    def __repr__(self) -> str:
        return f"NodePool({self.free} of {self.nodes} nodes free)"

    def allocate(self, width: int) -> tuple[Interval, ...]:
        """Take so many of the free nodes, the lowest; return them as maximal half-open intervals, ascending."""
        return self.take(width)[0]

    def take(self, width: int) -> tuple[tuple[Interval, ...], int]:
        """Do as `allocate`; return the nodes also as the bits of a number, for `give_back`."""
        if not 1 <= width <= self.free:
            raise AssertionError(f"{width} nodes asked of a pool with {self.free} of {self.nodes} free")
        free = self._free
        start = (free & -free).bit_length() - 1
        taken = ((1 << width) - 1) << start
        if free & taken == taken:
            pieces: tuple[Interval, ...] = ((start, start + width),)
        else:
            pieces, taken = _lowest(free, width)
        self._free = free ^ taken
        self.free -= width
        return pieces, taken

    def release(self, intervals: Iterable[Interval]) -> None:
        """Give nodes back that are in use: of one allocation or of several, or parts of them."""
        given = count = 0
        for start, stop in intervals:
            if not 0 <= start < stop <= self.nodes:
                raise AssertionError(f"nodes {start} to {stop} released; the site has 0 to {self.nodes}")
            given |= (1 << stop) - (1 << start)
            count += stop - start
        if given.bit_count() != count:
            raise AssertionError(f"{count} nodes released, but some of them are named twice")
        self.give_back(given)

    def give_back(self, taken: int) -> None:
        """Do as `release`, of nodes that are the bits of a number."""
        if taken & self._free or taken > self._all:
            raise AssertionError("nodes released, but some of them are free already, or not of this site")
        self._free |= taken
        self.free += taken.bit_count()

    def occupy(self, taken: int) -> None:
        """Take nodes that are free, the bits of a number."""
        if taken & ~self._free:
            raise AssertionError("nodes taken, but some of them are not free, or not of this site")
        self._free ^= taken
        self.free -= taken.bit_count()

    def check_invariants(self) -> None:
        """Raise AssertionError if a node is free that the site has not, or `free` is not their number."""
        if self._free | self._all != self._all:
            raise AssertionError(f"a node is free that a site of {self.nodes} nodes does not have")
        if self._free.bit_count() != self.free:
            raise AssertionError(f"{self._free.bit_count()} nodes are free, {self.free} counted")


def bits_of(intervals: Iterable[Interval]) -> int:
    """Return nodes as the bits of one whole number."""
    bits = 0
    for start, stop in intervals:
        bits |= (1 << stop) - (1 << start)
    return bits


def nodes_of_groups(intervals: Iterable[Interval], counts: Iterable[int]) -> list[list[int]]:
    """Return on which nodes the tasks of each group are, ascending, of nodes that are told group by group.

    Examples
    --------
    >>> nodes_of_groups([(0, 1), (0, 3), (1, 2)], [1, 4])
    [[0], [0, 1, 1, 2]]
    """
    numbers = indexes_of(intervals)
    return [sorted(islice(numbers, count)) for count in counts]


def intervals_of(bits: int) -> tuple[Interval, ...]:
    """Return nodes that are the bits of one whole number as maximal intervals in ascending order."""
    return _lowest(bits, bits.bit_count())[0] if bits else ()


def _lowest(free: int, width: int) -> tuple[tuple[Interval, ...], int]:
    """Return so many of the lowest bits that are set, at least one: in maximal intervals, and as they are."""
    pieces: list[Interval] = []
    every = free
    while True:
        # Added to, the lowest bit carries through all that are set behind it, up to the first that is not.
        lowest = free & -free
        carried = free + lowest
        start, stop = lowest.bit_length() - 1, (free ^ carried).bit_length() - 1
        if stop - start >= width:
            stop = start + width
            return (*pieces, (start, stop)), every & ((1 << stop) - 1)
        pieces.append((start, stop))
        width -= stop - start
        free &= carried


class Port(msgspec.Struct, frozen=True):
    """A port that was given to a job; number 0: none was free."""

    machine: str = ""
    number: int = 0
    meeting: str = ""


NO_PORT = Port()


def _key_of(secret: str, job_id: int, attempt: int) -> str:
    """Return the key of an attempt of a job, which nobody can guess who does not know the secret."""
    if not secret:
        return ""
    return hashlib.blake2b(f"{job_id}.{attempt}".encode(), key=secret.encode(), digest_size=16).hexdigest()


class Ports:
    """The ports of a site's machines, each given to one job at a time.

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
        """Return the ports that jobs have, and the names by which machines are reached, and their secrets."""
        return {machine: sorted(numbers) for machine, numbers in self._taken.items()}, self._hosts, self._secrets

    def restore(self, taken: dict[str, list[int]], hosts: dict[str, str], secrets: dict[str, str]) -> None:
        """Take in what `state` has returned of the same machines."""
        self._taken = {machine: set(numbers) for machine, numbers in taken.items()}
        self._hosts, self._secrets = hosts, secrets

    def reached_by(self, machine: str, host: str, secret: str = "") -> None:
        """Have the ranks of later jobs reach a machine by this name, with keys that follow from its secret."""
        self._hosts[machine], self._secrets[machine] = host, secret

    def host_of(self, machine: str) -> str:
        """Return by which name a machine is reached; empty if it was never there."""
        return self._hosts.get(machine, "")

    def take(self, machine: str, job_id: int, attempt: int) -> Port:
        """Return the lowest port of a machine that no job has, for an attempt of a job; there may be none."""
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
        """Take a port back."""
        if port.number:
            self._taken[port.machine].discard(port.number)

    def taken(self) -> Iterator[tuple[str, int]]:
        """Yield machine and number of the ports that jobs have."""
        for machine, numbers in self._taken.items():
            for number in numbers:
                yield machine, number
