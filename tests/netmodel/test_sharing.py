"""Max-min fair sharing, compared with progressive filling in fractions and with a linear program."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from gridweave.netmodel.kernels.contention import share_max_min
from gridweave.netmodel.kernels.state import new_filling


@dataclass(frozen=True)
class Case:
    """Capacities of links, and the links and demand of each flow."""

    capacity: list[int]
    routes: list[list[int]]
    demand: list[float]


def shared(case: Case) -> npt.NDArray[np.float64]:
    """Return the rates from the kernel."""
    first = np.concatenate(([0], np.cumsum([len(route) for route in case.routes]))).astype(np.int64)
    links = np.array([link for route in case.routes for link in route], np.uint32)
    flows = len(case.routes)
    filling = new_filling(len(case.capacity), flows)
    rate = np.full(flows, np.nan)
    capacity = np.array(case.capacity, np.float64)
    share_max_min(
        np.int64(flows), np.arange(flows), np.array(case.demand, np.float64), first, links, capacity, filling, rate
    )
    assert not filling.crossing.any(), "the room must be as it was"
    return rate


def filled(case: Case) -> list[Fraction]:
    """Return the rates by progressive filling: all rise together until a link is full or a demand is met."""
    rate = [Fraction(0)] * len(case.routes)
    rising = set(range(len(case.routes)))
    while rising:
        room = []
        for link, capacity in enumerate(case.capacity):
            crossing = [flow for flow in sorted(rising) if link in case.routes[flow]]
            if crossing:
                used = sum((rate[flow] for flow in range(len(rate)) if link in case.routes[flow]), Fraction(0))
                room.append((capacity - used) / len(crossing))
        room += [Fraction(case.demand[flow]) - rate[flow] for flow in sorted(rising) if case.demand[flow] < math.inf]
        step = min(room)
        for flow in rising:
            rate[flow] += step
        for flow in sorted(rising):
            full = any(
                sum((rate[other] for other in range(len(rate)) if link in case.routes[other]), Fraction(0))
                == case.capacity[link]
                for link in case.routes[flow]
            )
            if full or rate[flow] == case.demand[flow]:
                rising.remove(flow)
    return rate


def programmed(case: Case) -> npt.NDArray[np.float64]:
    """Return the max-min fair rates by linear programs: maximize the smallest rate, then the next, and so on."""
    flows = len(case.routes)
    crossing = np.array([[link in route for route in case.routes] for link in range(len(case.capacity))], float)
    fixed: dict[int, float] = {}
    while len(fixed) < flows:
        best = _highest_least(case, crossing, fixed)
        for flow in [flow for flow in range(flows) if flow not in fixed]:
            # A flow that cannot have more while no other has less than this is settled.
            bounds = [
                (fixed[one], fixed[one]) if one in fixed else (best - 1e-9, _most(case, one)) for one in range(flows)
            ]
            objective = -np.eye(flows)[flow]
            most = -linprog(objective, crossing, case.capacity, bounds=bounds, method="highs").fun
            if most <= best + 1e-6:
                fixed[flow] = best
    return np.array([fixed[flow] for flow in range(flows)])


def _highest_least(case: Case, crossing: npt.NDArray[np.float64], fixed: dict[int, float]) -> float:
    """Return the largest possible minimum rate of the flows that are not fixed."""
    flows = len(case.routes)
    free = [flow for flow in range(flows) if flow not in fixed]
    least = np.zeros((len(free), flows + 1))
    for row, flow in enumerate(free):
        least[row, flow], least[row, flows] = -1.0, 1.0
    matrix = np.vstack([np.hstack([crossing, np.zeros((len(crossing), 1))]), least])
    bounds = [(fixed[one], fixed[one]) if one in fixed else (0.0, _most(case, one)) for one in range(flows)]
    done = linprog(
        np.append(np.zeros(flows), -1.0),
        matrix,
        np.append(case.capacity, np.zeros(len(free))),
        bounds=[*bounds, (0.0, None)],
        method="highs",
    )
    return float(-done.fun)


def _most(case: Case, flow: int) -> float | None:
    return None if case.demand[flow] == math.inf else case.demand[flow]


@st.composite
def cases(draw: st.DrawFn, flows: int = 12) -> Case:
    """Draw links and flows; a flow with unlimited demand crosses at least one link."""
    capacity = draw(st.lists(st.integers(0, 50), min_size=1, max_size=6))
    route = st.lists(st.integers(0, len(capacity) - 1), min_size=1, max_size=4, unique=True)
    routes = draw(st.lists(route, min_size=1, max_size=flows))
    action = st.one_of(st.just(math.inf), st.integers(0, 40).map(float))
    return Case(capacity, routes, [draw(action) for _ in routes])


def test_three_flows_by_hand() -> None:
    """A flow over two links gets half of the narrow one; the other flow on the wide link gets the rest."""
    case = Case([10, 4], [[0, 1], [0], [1]], [math.inf] * 3)
    assert shared(case).tolist() == [2, 8, 2]


def test_a_small_demand_leaves_more_for_other_flows() -> None:
    assert shared(Case([10], [[0], [0], [0]], [1.0, math.inf, math.inf])).tolist() == [1, 4.5, 4.5]


def test_a_flow_without_links_gets_its_demand() -> None:
    assert shared(Case([10], [[], []], [3.0, math.inf])).tolist() == [3, math.inf]


def test_flows_over_a_failed_link_get_nothing() -> None:
    assert shared(Case([0, 8], [[0, 1], [1], [1]], [math.inf] * 3)).tolist() == [0, 4, 4]


@settings(max_examples=300)
@given(cases())
def test_rates_equal_progressive_filling(case: Case) -> None:
    assert shared(case) == pytest.approx([float(rate) for rate in filled(case)], rel=1e-12, abs=1e-12)


@settings(max_examples=60)
@given(cases(flows=7))
def test_rates_equal_linear_programs(case: Case) -> None:
    assert shared(case) == pytest.approx(programmed(case), abs=1e-4)


@given(cases())
def test_every_flow_has_a_bottleneck(case: Case) -> None:
    """No link exceeds its capacity, and each flow has its demand or a full link on which it is among the fastest."""
    rate = shared(case)
    load = np.array(
        [
            sum(rate[flow] for flow, route in enumerate(case.routes) if link in route)
            for link in range(len(case.capacity))
        ]
    )
    assert (load <= np.array(case.capacity) * (1 + 1e-12) + 1e-12).all()
    for flow, route in enumerate(case.routes):
        has_enough = rate[flow] == case.demand[flow]
        is_stopped = any(
            load[link] >= case.capacity[link] * (1 - 1e-12) - 1e-12
            and rate[flow] >= max(rate[other] for other, way in enumerate(case.routes) if link in way) - 1e-9
            for link in route
        )
        assert has_enough or is_stopped


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_flows_does_not_matter(case: Case, random: object) -> None:
    order = list(range(len(case.routes)))
    random.shuffle(order)  # type: ignore[attr-defined]
    turned = Case(case.capacity, [case.routes[flow] for flow in order], [case.demand[flow] for flow in order])
    assert shared(turned) == pytest.approx(shared(case)[order], rel=1e-12, abs=1e-12)
