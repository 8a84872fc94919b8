"""Which nodes of a site are free: sorted, disjoint, half-open intervals of node numbers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from gridweave.errors import InputError

Interval = tuple[int, int]


class NodePool:
    """The nodes of one site, numbered from 0, and which of them are free.

    The rule of allocation is lowest first: a request of width w gets the w free nodes with the lowest numbers, in one
    piece or in several. It depends on nothing but the sequence of calls, so a schedule that is replayed gives every job
    the same nodes again.

    Parameters
    ----------
    nodes : int
        Nodes of the site, >= 1. All are free at first.

    Raises
    ------
    InputError
        If the site has no node.

    Notes
    -----
    The free nodes are kept as the starts and the stops of maximal intervals ``[start, stop)``: sorted, not empty, and
    with at least one node in use between any two. `allocate` takes from the front and so costs time in proportion to
    the pieces that it hands out; `release` costs one binary search (and one list insertion) per piece. Asking for more
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

    __slots__ = ("_free", "_starts", "_stops", "nodes")

    def __init__(self, nodes: int) -> None:
        if nodes < 1:
            raise InputError(f"nodes is {nodes}; a site has at least 1")
        self.nodes = nodes
        self._starts = [0]
        self._stops = [nodes]
        self._free = nodes

    def __repr__(self) -> str:
        return f"NodePool({self._free} of {self.nodes} nodes free)"

    @property
    def free(self) -> int:
        """Number of free nodes."""
        return self._free

    @property
    def free_intervals(self) -> tuple[Interval, ...]:
        """The free nodes as maximal half-open intervals, in ascending order."""
        return tuple(zip(self._starts, self._stops, strict=True))

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
        if not 1 <= width <= self._free:
            raise AssertionError(f"{width} nodes asked of a pool with {self._free} of {self.nodes} free")
        first = self._starts[0]
        if self._stops[0] - first > width:  # as most requests find it
            self._starts[0] = first + width
            self._free -= width
            return ((first, first + width),)
        taken: list[Interval] = []
        left = width
        whole = 0  # free intervals that are used up
        for start, stop in zip(self._starts, self._stops, strict=True):
            if stop - start > left:
                self._starts[whole] = start + left
                taken.append((start, start + left))
                break
            taken.append((start, stop))
            whole += 1
            left -= stop - start
            if not left:
                break
        del self._starts[:whole], self._stops[:whole]
        self._free -= width
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
        given = sorted(intervals)
        before = 0
        for start, stop in given:
            if not 0 <= start < stop <= self.nodes:
                raise AssertionError(f"nodes {start} to {stop} released; the site has 0 to {self.nodes}")
            at = bisect_right(self._stops, start)  # the first free interval that ends after the first node
            if start < before or (at < len(self._starts) and self._starts[at] < stop):
                raise AssertionError(f"nodes {start} to {stop} released, but some of them are free already")
            before = stop
        for start, stop in given:
            self._insert(start, stop)

    def _insert(self, start: int, stop: int) -> None:
        """Add a free interval, joined with the neighbours that it touches."""
        starts, stops = self._starts, self._stops
        at = bisect_left(starts, start)
        joins_right = at < len(starts) and starts[at] == stop
        if at > 0 and stops[at - 1] == start:
            stops[at - 1] = stops[at] if joins_right else stop
            if joins_right:
                del starts[at], stops[at]
        elif joins_right:
            starts[at] = start
        else:
            starts.insert(at, start)
            stops.insert(at, stop)
        self._free += stop - start

    def check_invariants(self) -> None:
        """Check that the intervals are what `Notes` of the class promises.

        Raises
        ------
        AssertionError
            If an interval is empty, touches or overlaps its neighbour, leaves the site, or if `free` is not their sum.
        """
        before = -1
        for start, stop in zip(self._starts, self._stops, strict=True):
            if not before < start < stop <= self.nodes:
                raise AssertionError(f"free nodes {start} to {stop} after {before} on a site of {self.nodes}")
            before = stop
        total = sum(self._stops) - sum(self._starts)
        if total != self._free:
            raise AssertionError(f"{total} nodes in the free intervals, {self._free} counted")
