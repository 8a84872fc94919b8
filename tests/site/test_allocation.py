"""The node pool against a plain set of node numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gridweave.errors import InputError
from gridweave.site.allocation import Interval, NodePool, bits_of


def nodes_of(intervals: tuple[Interval, ...]) -> list[int]:
    """Return the node numbers of half-open intervals, one by one."""
    return [node for start, stop in intervals for node in range(start, stop)]


def free_of(pool: NodePool) -> tuple[Interval, ...]:
    """Return the free nodes of a pool as intervals: those that it gives to who wants all."""
    if not pool.free:
        return ()
    intervals, taken = pool.take(pool.free)
    pool.give_back(taken)
    return intervals


class PoolAgainstSet(RuleBasedStateMachine):
    """Every sequence of allocations and releases gives what a sorted set of free nodes gives."""

    @initialize(nodes=st.integers(1, 40))
    def start(self, nodes: int) -> None:
        """Begin with an idle site."""
        self.pool = NodePool(nodes)
        self.model = set(range(nodes))
        self.held: list[tuple[Interval, ...]] = []

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        """Take the lowest free nodes, in maximal intervals."""
        width = data.draw(st.integers(1, len(self.model)))
        taken = self.pool.allocate(width)
        lowest = sorted(self.model)[:width]
        assert nodes_of(taken) == lowest
        assert all(left[1] < right[0] for left, right in pairwise(taken))
        self.model -= set(lowest)
        self.held.append(taken)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def take_and_give_back(self, data: st.DataObject) -> None:
        """Take nodes as the bits of a number: those that `allocate` would give, and all are free when they are back."""
        width = data.draw(st.integers(1, len(self.model)))
        intervals, taken = self.pool.take(width)
        assert nodes_of(intervals) == sorted(self.model)[:width]
        assert bits_of(intervals) == taken
        assert self.pool.free == len(self.model) - width
        self.pool.give_back(taken)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Give one allocation back, its pieces in any order."""
        taken = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.release(data.draw(st.permutations(taken)))
        self.model |= set(nodes_of(taken))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_a_part(self, data: st.DataObject) -> None:
        """Give the lowest nodes of an allocation back alone."""
        taken = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        nodes = nodes_of(taken)
        part = nodes[: data.draw(st.integers(1, len(nodes)))]
        self.pool.release((node, node + 1) for node in part)
        self.model |= set(part)
        if len(part) < len(nodes):
            self.held.append(tuple((node, node + 1) for node in nodes[len(part) :]))

    @rule(more=st.integers(1, 5))
    def asking_too_much_changes_nothing(self, more: int) -> None:
        """Refuse more than is free, and leave the pool as it is."""
        with pytest.raises(AssertionError, match="nodes requested"):
            self.pool.allocate(len(self.model) + more)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def double_release_changes_nothing(self, data: st.DataObject) -> None:
        """Refuse a free node, and take nothing back in the same call."""
        node = data.draw(st.sampled_from(sorted(self.model)))
        in_use = sorted(set(range(self.pool.nodes)) - self.model)
        good = [(other, other + 1) for other in data.draw(st.sets(st.sampled_from(in_use)) if in_use else st.just([]))]
        with pytest.raises(AssertionError, match="already free"):
            self.pool.release([*good, (node, node + 1)])
        with pytest.raises(AssertionError, match="already free"):
            self.pool.give_back(bits_of([*good, (node, node + 1)]))

    @precondition(lambda self: len(self.model) < self.pool.nodes)
    @rule(data=st.data())
    def naming_a_node_twice_changes_nothing(self, data: st.DataObject) -> None:
        """Refuse a node that is named twice in one call."""
        node = data.draw(st.sampled_from(sorted(set(range(self.pool.nodes)) - self.model)))
        with pytest.raises(AssertionError, match="listed twice"):
            self.pool.release([(node, node + 1), (node, node + 1)])

    @invariant()
    def same_nodes_free(self) -> None:
        """Compare pool and set after every step."""
        if hasattr(self, "pool"):
            self.pool.check_invariants()
            assert self.pool.free == len(self.model)
            assert nodes_of(free_of(self.pool)) == sorted(self.model)


TestPoolAgainstSet = PoolAgainstSet.TestCase
TestPoolAgainstSet.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_gaps_are_filled_from_the_front() -> None:
    """A request that no single gap holds takes the lowest gaps, in ascending order."""
    pool = NodePool(10)
    held = [pool.allocate(2) for _ in range(5)]
    pool.release(held[3])
    pool.release(held[1])
    assert free_of(pool) == ((2, 4), (6, 8))
    assert pool.allocate(3) == ((2, 4), (6, 7))
    assert pool.free == 1


def test_neighbours_are_joined() -> None:
    """A released interval is joined with both free neighbours."""
    pool = NodePool(6)
    held = [pool.allocate(2) for _ in range(3)]
    pool.release(held[0])
    pool.release(held[2])
    pool.release(held[1])
    assert free_of(pool) == ((0, 6),)
    assert repr(pool) == "NodePool(6 of 6 nodes free)"


@pytest.mark.parametrize("interval", [(3, 3), (4, 2), (-1, 2), (0, 6)])
def test_impossible_intervals_are_refused(interval: Interval) -> None:
    """An interval that is empty, reversed or outside of the site is a fault of the caller."""
    pool = NodePool(5)
    pool.allocate(5)
    with pytest.raises(AssertionError, match="the site has 0 to 5"):
        pool.release([interval])
    assert pool.free == 0


@pytest.mark.parametrize("width", [0, -1])
def test_width_below_one_is_refused(width: int) -> None:
    """Nobody gets no nodes."""
    with pytest.raises(AssertionError, match="nodes requested"):
        NodePool(5).allocate(width)


def test_site_without_nodes_is_refused() -> None:
    """A site has at least one node."""
    with pytest.raises(InputError, match="at least 1"):
        NodePool(0)


@pytest.mark.parametrize(("bits", "free"), [(0b011100, 4), (0b1111111, 7), (-1, 6)])
def test_invariants_are_checked(bits: int, free: int) -> None:
    """A wrong count, and nodes that the site has not, are found."""
    pool = NodePool(6)
    pool._free, pool.free = bits, free
    with pytest.raises(AssertionError):
        pool.check_invariants()
