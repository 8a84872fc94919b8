"""Which nodes of a site are free."""

from __future__ import annotations

from collections.abc import Iterable

from gridweave.errors import InputError

Interval = tuple[int, int]

_FREE, _USED = 0, 1
_ONE_FREE, _ONE_USED = bytes([_FREE]), bytes([_USED])


class NodePool:
    """The nodes of one site, numbered from 0, and which of them are free.

    The rule of allocation is lowest first: a request of width w gets the w free nodes with the lowest numbers, in one
    piece or in several. It depends on nothing but the sequence of calls, so a schedule that is replayed gives every job
    the same nodes again.

    Parameters
    ----------
    nodes : int
        Nodes of the site, >= 1. All are free at first.

    Attributes
    ----------
    nodes : int
        Of the site.
    free : int
        Number of free nodes.

    Raises
    ------
    InputError
        If the site has no node.

    Notes
    -----
    The nodes are the bytes of an array, so that the next free one, and the next in use, are found by the machine's own
    search: a nanosecond for dozens of nodes. All nodes before `_first` are in use. Beside that search `allocate` and
    `release` cost time in proportion to the pieces that they hand out and take back. Asking for more than there is, or
    giving back what is free already, is a fault of the caller and raises AssertionError, also under ``python -O``; the
    pool is unchanged then.

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

    __slots__ = ("_first", "_used", "free", "nodes")

    def __init__(self, nodes: int) -> None:
        if nodes < 1:
            raise InputError(f"nodes is {nodes}; a site has at least 1")
        self.nodes = nodes
        self._used = bytearray(nodes)
        self.free = nodes
        self._first = 0

    def __repr__(self) -> str:
        return f"NodePool({self.free} of {self.nodes} nodes free)"

    @property
    def free_intervals(self) -> tuple[Interval, ...]:
        """The free nodes as maximal half-open intervals, in ascending order."""
        found: list[Interval] = []
        start = self._used.find(_FREE)
        while start >= 0:
            stop = self._used.find(_USED, start)
            found.append((start, stop if stop >= 0 else self.nodes))
            start = self._used.find(_FREE, found[-1][1])
        return tuple(found)

    def allocate(self, width: int) -> tuple[Interval, ...]:
        """Take the lowest-numbered free nodes.

        Parameters
        ----------
        width : int
            How many, from 1 to `free`.

        Returns
        -------
        tuple of (int, int)
            The nodes as half-open intervals in ascending order, no two of them touching.

        Raises
        ------
        AssertionError
            If the width is below 1 or more than the free nodes.
        """
        if not 1 <= width <= self.free:
            raise AssertionError(f"{width} nodes asked of a pool with {self.free} of {self.nodes} free")
        used = self._used
        find = used.find
        taken: list[Interval] = []
        left, stop = width, self._first
        while left:
            start = find(_FREE, stop)
            stop = find(_USED, start, start + left)
            if stop < 0:
                stop = start + left
            length = stop - start
            used[start:stop] = _ONE_USED * length
            taken.append((start, stop))
            left -= length
        self._first = stop
        self.free -= width
        return tuple(taken)

    def release(self, intervals: Iterable[Interval]) -> None:
        """Give nodes back.

        Parameters
        ----------
        intervals : iterable of (int, int)
            Half-open intervals of nodes that are in use; of one allocation or of several, or parts of them.

        Raises
        ------
        AssertionError
            If an interval is empty or leaves the site, or if one of its nodes is free already or named twice.
        """
        used = self._used
        given = sorted(intervals)
        before = count = 0
        for start, stop in given:
            if not before <= start < stop or used.find(_FREE, start, stop) >= 0:
                raise AssertionError(self._why_not_released(start, stop))
            before = stop
            count += stop - start
        if before > self.nodes:
            raise AssertionError(self._why_not_released(*given[-1]))
        for start, stop in given:
            used[start:stop] = _ONE_FREE * (stop - start)
        self.free += count
        if given and given[0][0] < self._first:
            self._first = given[0][0]

    def _why_not_released(self, start: int, stop: int) -> str:
        if not 0 <= start < stop <= self.nodes:
            return f"nodes {start} to {stop} released; the site has 0 to {self.nodes}"
        return f"nodes {start} to {stop} released, but some of them are free already"

    def check_invariants(self) -> None:
        """Check that the bytes are what `Notes` of the class promises.

        Raises
        ------
        AssertionError
            If there is not one for each node, one is neither free nor in use, a free node stands before `_first`, or
            `free` is not their number.
        """
        used = self._used
        total = used.count(_FREE)
        if len(used) != self.nodes or total + used.count(_USED) != self.nodes:
            raise AssertionError(f"{len(used)} nodes are free or in use on a site of {self.nodes}")
        if used.find(_FREE, 0, self._first) >= 0:
            raise AssertionError(f"a free node before {self._first}, where all are said to be in use")
        if total != self.free:
            raise AssertionError(f"{total} nodes are free, {self.free} counted")
