"""The structures that spare the grid queue a look at every site and every running job, against plain sorting."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.grid.kernels.running import (
    FIRST_PLACE,
    end_place,
    join_blocks,
    leave_blocks,
    next_place,
    place_of,
    row_at,
    running_slots,
)
from gridweave.grid.kernels.state import (
    BLOCK,
    SITE_BITS,
    GridState,
    blocks_for,
    empty_grid,
    first_with,
    move_site,
    nodes_of,
    site_of,
)
from gridweave.site.kernels.state import NO_PLACE


def walked(state: GridState) -> list[int]:
    """Return the slots of the running jobs as kernels come by them."""
    slots, place = [], FIRST_PLACE
    while place < end_place(state):
        slots.append(int(state.running[row_at(state, np.int64(place))]["slot"]))
        place = next_place(state, np.int64(place))
    return slots


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8), st.sampled_from((3, 50, 10**6)))
def test_running_jobs_stay_in_order(seed: int, waves: int, instants: int) -> None:
    """As jobs come and go in waves they are found, walked and listed by (end, job id), in few blocks."""
    rng = np.random.default_rng(seed)
    slots = 6 * BLOCK
    state = empty_grid(np.array([slots]), slots=slots)
    state.jobs["job_id"] = rng.permutation(slots)
    runs: set[int] = set()
    for _ in range(waves):
        target = int(rng.integers(0, slots + 1))
        while len(runs) != target:
            if len(runs) < target:
                slot = int(rng.choice([one for one in range(slots) if one not in runs]))
                state.end_ms[slot] = rng.integers(0, instants)
                join_blocks(state, np.int64(slot), state.end_ms[slot])
                runs.add(slot)
            else:
                slot = int(rng.choice(sorted(runs)))
                assert leave_blocks(state, np.int64(place_of(state, np.int64(slot)))) == slot
                runs.remove(slot)
        ordered = sorted(runs, key=lambda one: (state.end_ms[one], state.jobs["job_id"][one]))
        assert running_slots(state).tolist() == walked(state) == ordered
        assert all(place_of(state, np.int64(one)) == NO_PLACE for one in range(slots) if one not in runs)
        used = int(state.counters[0]["n_blocks"])
        assert used <= blocks_for(len(runs))
        assert sorted(state.block_order.tolist()) == list(range(len(state.block_order)))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(0, 6))
def test_sites_stay_in_the_order_of_their_free_nodes(seed: int, sites: int, most: int) -> None:
    """After every change the order is that of sorting again, and the first site with so many nodes is found in it."""
    rng = np.random.default_rng(seed)
    free = rng.integers(0, most + 1, sites)
    order = np.sort((free << SITE_BITS) | np.arange(sites))
    for _ in range(20):
        site, after = int(rng.integers(0, sites)), int(rng.integers(0, most + 1))
        move_site(order, np.int64(site), free[site], np.int64(after))
        free[site] = after
        assert [int(site_of(entry)) for entry in order] == sorted(range(sites), key=lambda one: (free[one], one))
        assert [int(nodes_of(entry)) for entry in order] == sorted(free.tolist())
        for nodes in range(most + 2):
            assert first_with(order, np.int64(nodes)) == np.count_nonzero(free < nodes)
