"""What the rules of the grid queue imply, checked on random workloads; and `validate_grid`, which must not be blind."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.grid import MODES, GridMoment, GridOutcome, simulate_grid
from reference.grid_validation import validate_grid
from reference.model import Job
from reference.ordering import ORDERS
from reference.simulation import simulate
from support.builders import GridCase, grid_cases, grid_options, random_grid_jobs

GRID_MODES = MODES[1:]
NOWHERE = 10**6  # wider than any grid here, and an overhead that no wait is worth
unhurried = settings(deadline=None, max_examples=150)


def history(case: GridCase, **options: Any) -> GridOutcome:
    """Simulate a case."""
    return simulate_grid(
        case.jobs, case.nodes, home=case.home, draws=case.draws, **{"sensitivity": case.sensitivity} | options
    )


def schedule(outcome: GridOutcome) -> tuple[dict[int, int], dict[int, int], dict[int, Any]]:
    """Return all that was done, without the log."""
    return outcome.start, outcome.end, outcome.fragments


def stretched(time: int, parts: int, overhead: float | tuple[float, ...], sensitivity: float) -> int:
    """Return how long it takes in so many parts."""
    table = overhead if isinstance(overhead, tuple) else (overhead,)
    return time + int(time * (table[min(parts, len(table) + 1) - 2] * sensitivity)) if parts > 1 else time


def heads(outcome: GridOutcome) -> list[tuple[int, int, int]]:
    """Return head, shadow time and number of reserved fragments of each pass that left a head waiting."""
    return [
        (one.head, one.shadow, len(one.reserved))
        for one in outcome.log
        if one.head is not None and one.shadow is not None and one.reserved is not None
    ]


def free_before(moment: GridMoment, job_id: int, case: GridCase, outcome: GridOutcome) -> list[int]:
    """Return the nodes that a job finds free on each site when it starts in a pass."""
    free = list(case.nodes)
    first = moment.started[: moment.started.index(job_id)]
    for other, start in outcome.start.items():
        if other in first or start < moment.now < outcome.end[other]:
            for site, width in outcome.fragments[other]:
                free[site] -= width
    return free


# Every mode


@unhurried
@given(st.data())
def test_every_outcome_is_valid(data: st.DataObject) -> None:
    """Nodes suffice on every site, everybody starts once where it may or is refused, and runs as long as it has to."""
    case = data.draw(grid_cases(too_wide=1))
    options = data.draw(grid_options(orders=ORDERS))
    outcome = history(case, **options)
    options |= {"home": case.home, "sensitivity": case.sensitivity}
    assert validate_grid(outcome, case.jobs, case.nodes, **options) == []


@unhurried
@given(st.data())
def test_the_order_in_which_jobs_are_handed_over_means_nothing(data: st.DataObject) -> None:
    """Submit time and id settle every tie."""
    case = data.draw(grid_cases())
    options = data.draw(grid_options(orders=ORDERS))
    shuffled = case._replace(jobs=data.draw(st.permutations(case.jobs)))
    assert history(shuffled, **options) == history(case, **options)


@unhurried
@given(st.data())
def test_one_site_is_the_queue_of_that_site(data: st.DataObject) -> None:
    """In every mode and with every selection a grid of one site does what the site would do by itself."""
    case = data.draw(grid_cases(max_sites=1))
    options = data.draw(grid_options(orders=ORDERS))
    alone = simulate(case.jobs, case.nodes[0], order=options["order"], backfill=options["backfill"])
    outcome = history(case, **options)
    assert (outcome.start, outcome.end, set(outcome.refused)) == (alone.start, alone.end, set(alone.refused))
    assert [one.shadow for one in outcome.log] == [one.shadow for one in alone.log]
    assert [one.extra for one in outcome.log] == [None if one.extra is None else (one.extra,) for one in alone.log]


@unhurried
@given(st.data())
def test_without_backfilling_jobs_start_in_the_order_of_their_submission(data: st.DataObject) -> None:
    """First come, first served."""
    case = data.draw(grid_cases())
    outcome = history(case, **data.draw(grid_options(GRID_MODES, backfills=["none"])))
    ordered = [
        outcome.start[one.id]
        for one in sorted(case.jobs, key=lambda one: (one.submit, one.id))
        if one.id in outcome.start
    ]
    assert ordered == sorted(ordered)


@unhurried
@given(st.data())
def test_without_backfilling_a_pass_at_which_nothing_came_free_starts_nobody(data: st.DataObject) -> None:
    """As time goes on by itself a split only pays less; jobs that are refused bring about the passes."""
    case = data.draw(grid_cases())
    options = data.draw(grid_options(GRID_MODES, backfills=["none"], orders=ORDERS))
    instants = data.draw(st.lists(st.integers(0, 40), max_size=10))
    refused = [Job(NOWHERE + number, instant, NOWHERE, 1, 1) for number, instant in enumerate(instants)]
    more = case._replace(jobs=[*case.jobs, *refused], draws=case.draws | {one.id: 0.0 for one in refused})
    assert schedule(history(more, **options)) == schedule(history(case, **options))


# What splitting comes to at its ends


@unhurried
@given(st.data())
def test_splitting_for_nothing_makes_the_grid_one_machine(data: st.DataObject) -> None:
    """Without overhead, limits and backfilling a job waits only if all free nodes together are too few.

    With backfilling this is no theorem: the nodes reserved for the head are those of certain sites.
    """
    case = data.draw(grid_cases())
    options = data.draw(grid_options(("multi-site", "adaptive"), backfills=["none"], orders=ORDERS, limited=False))
    outcome = history(case, **options | {"overhead": 0.0})
    machine = simulate(case.jobs, sum(case.nodes), order=options["order"], backfill="none")
    assert (outcome.start, outcome.end) == (machine.start, machine.end)


@unhurried
@given(st.data())
def test_a_head_waits_only_if_it_cannot_be_placed(data: st.DataObject) -> None:
    """Before candidates are looked for, too few nodes are free: on each site, or on all together with splits."""
    case = data.draw(grid_cases())
    options = data.draw(grid_options(("sharing", "multi-site"), limited=False))
    outcome = history(case, **options)
    jobs = {one.id: one for one in case.jobs}
    for moment in outcome.log:
        if moment.head is not None:
            head = jobs[moment.head]
            ahead = [one for one in moment.started if (jobs[one].submit, one) < (head.submit, head.id)]
            free = free_before(dataclasses.replace(moment, started=(*ahead, head.id)), head.id, case, outcome)
            assert head.width > (max(free) if options["mode"] == "sharing" else sum(free))


@unhurried
@given(st.data())
def test_a_grid_that_may_split_nobody_shares(data: st.DataObject) -> None:
    """A lower bound, a limit of one fragment, or under adaptive an overhead beyond all waits: all are job sharing."""
    case = data.draw(grid_cases(for_one_site=True))
    options = data.draw(grid_options(("sharing",), orders=ORDERS, limited=False))
    shared = history(case, **options)
    never: list[dict[str, Any]] = [
        {"mode": "multi-site", "lower_bound": max(case.nodes)},
        {"mode": "multi-site", "max_fragments": [(NOWHERE, 1)]},
        {"mode": "adaptive", "overhead": float(NOWHERE), "sensitivity": {}},
    ]
    assert all(history(case, **options | changes) == shared for changes in never)


@unhurried
@given(st.data())
def test_without_backfilling_no_job_is_in_more_parts_than_it_need_be(data: st.DataObject) -> None:
    """No smaller number of sites had the nodes, by trying all sets of sites."""
    case = data.draw(grid_cases())
    options = data.draw(grid_options(GRID_MODES, backfills=["none"]))
    outcome = history(case, **options)
    for moment in outcome.log:
        for job_id in moment.started:
            fragments = outcome.fragments[job_id]
            free = free_before(moment, job_id, case, outcome)
            fewer = itertools.combinations(free, len(fragments) - 1)
            assert all(sum(some) < sum(width for _, width in fragments) for some in fewer)
            assert all(width == free[site] for site, width in fragments[:-1])


# Heads


@unhurried
@given(st.data())
def test_a_head_starts_no_later_than_any_shadow_time_it_was_shown(data: st.DataObject) -> None:
    """Under first come, first served nobody goes ahead of a head; so under sharing and multi-site."""
    case = data.draw(grid_cases())
    outcome = history(case, **data.draw(grid_options(("sharing", "multi-site"), backfills=["easy"])))
    assert all(outcome.start[head] <= shadow for head, shadow, _ in heads(outcome))


@unhurried
@given(st.data())
def test_a_head_ends_by_estimate_no_later_than_it_was_ever_promised(data: st.DataObject) -> None:
    """Under adaptive too, where it may start later, on one site instead of several; multi-site may split it early.

    The overhead is no less in more fragments: as it waits, the head may come to need fewer.
    """
    case = data.draw(grid_cases())
    options = data.draw(grid_options(("sharing", "adaptive"), backfills=["easy"]))
    if isinstance(options["overhead"], tuple):
        options["overhead"] = tuple(sorted(options["overhead"]))
    outcome = history(case, **options)
    estimates = {one.id: one.estimate for one in case.jobs}
    for head, shadow, parts in heads(outcome):
        extra = options["overhead"], case.sensitivity[head]
        promised = shadow + stretched(estimates[head], parts, *extra)
        actual = len(outcome.fragments[head])
        assert outcome.start[head] + stretched(estimates[head], actual, *extra) <= promised


@unhurried
@given(st.data())
def test_with_perfect_estimates_a_head_starts_at_its_shadow_time(data: st.DataObject) -> None:
    """Nothing comes free before it should, and nothing that was reserved is taken: the promise never changes."""
    case = data.draw(grid_cases(perfect=True))
    outcome = history(case, **data.draw(grid_options(GRID_MODES, backfills=["easy"])))
    assert all(outcome.start[head] == shadow for head, shadow, _ in heads(outcome))


# The builder, and the check


def test_random_grid_jobs_are_the_same_for_the_same_seed() -> None:
    """The generator passed in is the only source of randomness; every job has a home and a draw."""
    one, again, other = (random_grid_jobs(np.random.default_rng(seed), 40, (8, 4), widest=8) for seed in (1, 1, 2))
    assert one == again != other
    assert max(job.width for job in one.jobs) == 8
    assert set(one.home) == set(one.draws) == {job.id for job in one.jobs}
    assert (set(one.home.values()), all(0 <= drawn < 1 for drawn in one.draws.values())) == ({0, 1}, True)


JOBS = [Job(1, 0, 6, 10, 10), Job(2, 0, 2, 5, 4), Job(3, 5, 9, 5, 5)]


def _start_at(job_id: int, start: int, end: int) -> Callable[[GridOutcome], None]:
    def spoil(outcome: GridOutcome) -> None:
        outcome.start[job_id], outcome.end[job_id] = start, end

    return spoil


def _cut(job_id: int, *fragments: tuple[int, int]) -> Callable[[GridOutcome], None]:
    return lambda outcome: outcome.fragments.update({job_id: fragments})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda outcome: outcome.start.pop(2),
        lambda outcome: outcome.end.pop(2),
        lambda outcome: outcome.fragments.pop(2),
        lambda outcome: outcome.refused.pop(3),
        lambda outcome: outcome.refused.update({2: "for no reason"}),
        lambda outcome: outcome.start.update({9: 0}),
        _start_at(1, 0, 10),
        _start_at(2, 0, 5),
        _start_at(2, -1, 3),
        _start_at(3, 20, 27),
        _cut(1, (0, 4), (0, 2)),
        _cut(1, (0, 4), (2, 2)),
        _cut(1, (0, 4), (1, 1)),
        _cut(1, (0, 4), (1, 2), (2, 0)),
        _cut(1, (0, 5), (1, 1)),
        _cut(1),
        _cut(2, (0, 2)),
        _cut(2, (0, 1), (1, 1)),
    ],
)
def test_validate_grid_sees_a_spoilt_outcome(spoil: Callable[[GridOutcome], object]) -> None:
    """A right outcome has no problem; after each of these changes it has one."""
    options: dict[str, Any] = {"mode": "multi-site", "overhead": 0.5, "lower_bound": 2}
    outcome = simulate_grid(JOBS, (4, 4), **options)
    assert outcome.fragments == {1: ((0, 4), (1, 2)), 2: ((1, 2),)}
    assert validate_grid(outcome, JOBS, (4, 4), **options) == []
    spoil(outcome)
    assert validate_grid(outcome, JOBS, (4, 4), **options) != []


def test_validate_grid_sees_what_another_mode_or_limit_forbids() -> None:
    """The same outcome is wrong where splits, so many fragments, or the site are not allowed."""
    outcome = simulate_grid(JOBS, (4, 4), mode="multi-site")
    assert validate_grid(outcome, JOBS, (4, 4), mode="multi-site", max_fragments=[(6, 2)]) == []
    for options in (
        {"mode": "sharing"},
        {"mode": "multi-site", "max_fragments": [(6, 1)]},
        {"mode": "local", "home": {1: 0, 2: 0, 3: 0}},
    ):
        assert validate_grid(outcome, JOBS, (4, 4), **options) != []
