"""The slowdown model of section 4.1, on nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.site.disciplines.sharing.kernels.nodes import has_capacity, put, take_off
from gridweave.site.disciplines.sharing.kernels.slowdown import node_slowdown
from gridweave.site.disciplines.sharing.kernels.state import SharedSite, empty_site
from gridweave.site.disciplines.sharing.policy import kind_array
from gridweave.site.disciplines.sharing.slowdown_tables import TABLE_3, SlowdownModel
from gridweave.site.resources.chunks import NodeKind

Parts = tuple[float, float, float]


def together(
    parts: Sequence[Parts],
    *,
    kinds: Sequence[int] = (),
    memory: Sequence[float] = (),
    cores: Sequence[int] = (),
    node: NodeKind | None = None,
    model: SlowdownModel | None = None,
    rows: Sequence[int] = (),
) -> list[float]:
    """Return the slowdown of each of several jobs on one node."""
    node = node or NodeKind(count=1, threads=max(2, len(parts)))
    state = site_of(parts, node, kinds=kinds, memory=memory, cores=cores, rows=rows)
    for slot in range(len(parts)):
        put(state, np.int64(0), np.int64(slot))
    arrays = (model or SlowdownModel()).arrays()
    return [float(node_slowdown(state, arrays, np.int64(0), np.int64(slot))) for slot in range(len(parts))]


def site_of(
    parts: Sequence[Parts],
    node: NodeKind,
    *,
    kinds: Sequence[int] = (),
    memory: Sequence[float] = (),
    cores: Sequence[int] = (),
    rows: Sequence[int] = (),
) -> SharedSite:
    """Return a site of one kind with jobs that sit nowhere yet."""
    state = empty_site(kind_array([node]), [node.count], slots=len(parts))
    state.jobs["cpu"], state.jobs["network"], state.jobs["disk"] = np.array(parts).T
    state.jobs["memory"] = memory or [0.1] * len(parts)
    state.jobs["cpu_kind"] = kinds or [1] * len(parts)
    state.jobs["cores"] = cores or [1] * len(parts)
    state.jobs["row"] = rows or [0] * len(parts)
    return state


def _communicates(fraction: float) -> Parts:
    return 1 - fraction, fraction, 0.0


@pytest.mark.parametrize(
    ("a", "b", "estimate", "without_cpu"),
    [(0.4, 0.4, 2.0, 1.4), (0.4, 0.6, 1.8, 1.4), (0.6, 0.4, 1.8, 1.4), (0.6, 0.6, 2.0, 1.6)],
)
def test_the_estimates_of_table_2(a: float, b: float, estimate: float, without_cpu: float) -> None:
    """The published estimates come out, with and without a conflict on the CPU."""
    jobs = [_communicates(a), _communicates(b)]
    assert together(jobs) == pytest.approx([estimate] * 2)
    free = SlowdownModel(cpu_factors=type(SlowdownModel().cpu_factors)("none", ("0", "1"), np.ones((2, 2))))
    assert together(jobs, model=free) == pytest.approx([without_cpu] * 2)


def test_the_printed_formula_leaves_out_the_unshared_time() -> None:
    """As printed the estimate for 0.4 beside 0.6 is 1.6, and two without a common resource have 1, not 0."""
    printed = SlowdownModel(formula="printed")
    assert together([_communicates(0.4), _communicates(0.6)], model=printed) == pytest.approx([1.6, 1.6])
    assert together([(1, 0, 0), (0, 1, 0)], model=printed) == [1.0, 1.0]


@st.composite
def parts_of_one(draw: st.DrawFn) -> Parts:
    """Draw fractions that sum to 1."""
    first, second = sorted((draw(st.integers(0, 20)), draw(st.integers(0, 20))))
    return first / 20, (second - first) / 20, (20 - second) / 20


@given(a=parts_of_one(), b=parts_of_one(), kinds=st.tuples(st.integers(0, 1), st.integers(0, 1)))
def test_a_pair_is_slowed_alike_and_at_most_twice(a: Parts, b: Parts, kinds: tuple[int, int]) -> None:
    """Without a memory conflict both have one slowdown, from 1 to 2 (section 4.1)."""
    first, second = together([a, b], kinds=kinds)
    assert first == second
    assert 1 <= first <= 2 + 1e-12


def test_paging_is_added_where_memory_does_not_suffice() -> None:
    """Two jobs of half the memory fit; a little more costs 2.5."""
    jobs = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0)]
    assert together(jobs, memory=[0.5, 0.5]) == [1.0, 1.0]
    assert together(jobs, memory=[0.5, 0.51]) == [3.5, 3.5]
    assert together(jobs, memory=[0.9, 0.9], model=SlowdownModel(paging=1.2)) == [2.2, 2.2]


def test_a_standard_cpu_is_serial() -> None:
    """Whatever the kinds, what both do on the CPU takes twice as long."""
    jobs = [(0.7, 0.3, 0.0), (0.5, 0.0, 0.5)]
    assert together(jobs, kinds=[0, 0]) == pytest.approx([1.2, 1.2])
    assert together(jobs, kinds=[0, 0], node=NodeKind(count=1, cpu="standard")) == pytest.approx([1.5, 1.5])


def test_what_several_add_is_summed() -> None:
    """Three CPU-bound jobs that go poorly together take three times as long; each pays for what it shares."""
    assert together([(1.0, 0.0, 0.0)] * 3) == pytest.approx([3.0] * 3)
    assert together([(1, 0, 0), (0.5, 0.5, 0), (0, 0.5, 0.5)]) == pytest.approx([1.5, 2.0, 1.5])


def test_other_cores_share_network_and_disk_alone() -> None:
    """Two jobs on cores of their own do not meet on the CPU; four on two cores go at the pace of the slowest core."""
    two = NodeKind(count=1, cores=2)
    assert together([(0.8, 0.2, 0.0), (0.7, 0.3, 0.0)], node=two) == pytest.approx([1.2, 1.2])
    # A job on both cores, with a CPU-bound one on the first and a disk-bound one on the second.
    jobs = [(0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)]
    assert together(jobs, node=two, cores=[2, 1, 1]) == pytest.approx([1.8 + 0.1, 1.8, 1.1])


def test_a_measured_slowdown_is_that_of_the_cell() -> None:
    """The job of the row has the slowdown of its row, the other that of its own."""
    model = SlowdownModel(formula="measured", table=TABLE_3)
    assert together([(0, 1, 0), (0, 0, 1)], rows=[0, 3], model=model) == pytest.approx([1.0, 1.3])
    assert together([(0, 1, 0)] * 2, rows=[0, 1], model=model) == pytest.approx([1.7, 1.1])


def test_a_job_takes_the_emptiest_cores() -> None:
    """Cores with the fewest jobs, ties by number, and the first free thread there."""
    state = site_of([(1, 0, 0)] * 4, NodeKind(count=1, cores=3), cores=[1, 2, 3, 1])
    for slot in range(3):
        put(state, np.int64(0), np.int64(slot))
    assert state.occupant[0].tolist() == [0, 2, 1, 2, 1, 2]
    assert state.counters[0]["idle"] == 0
    take_off(state, np.int64(0), np.int64(2))
    put(state, np.int64(0), np.int64(3))
    assert state.occupant[0].tolist() == [0, 3, 1, -1, 1, -1]
    for slot in (0, 1, 3):
        take_off(state, np.int64(0), np.int64(slot))
    assert state.counters[0]["idle"] == 1
    assert (state.occupant == -1).all()


def test_room_is_threads_memory_cores_and_partners() -> None:
    """Each of the four can be what is missing."""
    state = site_of([(1, 0, 0)] * 3, NodeKind(count=1), memory=[0.6, 0.4, 0.41], cores=[1, 1, 1])
    put(state, np.int64(0), np.int64(0))
    node, two = np.int64(0), np.int64(2)
    assert has_capacity(state, node, state.jobs[1], two, True)
    assert not has_capacity(state, node, state.jobs[2], two, True)
    assert has_capacity(state, node, state.jobs[2], two, False)
    state.jobs["n_partners"][0] = 2
    assert not has_capacity(state, node, state.jobs[1], two, True)
    state.jobs["n_partners"][0] = 0
    state.jobs["cores"][1] = 2
    assert not has_capacity(state, node, state.jobs[1], two, True)
    state.jobs["cores"][1] = 1
    put(state, node, np.int64(1))
    state.jobs["memory"] = 0.1
    assert not has_capacity(state, node, state.jobs[2], two, True)


def test_kinds_with_fewer_threads_have_fewer_cells() -> None:
    """Cells that a kind lacks are never taken."""
    kinds = [NodeKind(count=1, threads=1), NodeKind(count=1, threads=3, cores=2)]
    state = empty_site(kind_array(kinds), [1, 1], slots=1)
    assert state.occupant.tolist() == [[-1, -2, -2, -2, -2, -2], [-1] * 6]
