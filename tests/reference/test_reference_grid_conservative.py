"""Schedules of the slow reference with reserved starts, worked out by hand, and what its rules imply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.grid_conservative import Reserved, ReservedOutcome, free, simulate_reserved
from reference.grid_validation import validate_grid
from reference.model import Job
from reference.ordering import ORDERS
from reference.simulation import simulate
from support.builders import cancellation_lists, grid_cases, grid_options, random_grid_jobs

MODES = ("sharing", "multi-site", "adaptive")
unhurried = settings(deadline=None, max_examples=150)


def job(job_id: int, width: int, estimate: int, *, at: int = 0, run: int | None = None) -> Job:
    """Return a job; it runs for its estimate unless told otherwise."""
    return Job(job_id, at, width, estimate, estimate if run is None else run)


def run(jobs: list[Job], *nodes: int, **options: Any) -> ReservedOutcome:
    """Simulate, check what must always hold, and return the outcome."""
    outcome = simulate_reserved(jobs, nodes, **options)
    assert validate_grid(outcome, jobs, nodes, **options) == []
    return outcome


def plans(outcome: ReservedOutcome) -> list[dict[int, tuple[int, int]]]:
    """Return the reserved start and end of each job, pass by pass."""
    return [{job_id: (held.start, held.end) for job_id, held in one.plan.items()} for one in outcome.moments]


# On one site


def test_a_job_is_reserved_the_site_where_it_starts_first() -> None:
    """Sites of 4 are taken until 10 and until 6: job 3 goes to site 1, and job 4 behind it rather than to site 0."""
    outcome = run([job(1, 4, 10), job(2, 4, 6), job(3, 4, 3), job(4, 4, 5)], 4, 4)
    assert plans(outcome)[0] == {1: (0, 10), 2: (0, 6), 3: (6, 9), 4: (9, 14)}
    assert [fragments[0][0] for _, fragments in sorted(outcome.fragments.items())] == [0, 1, 1, 1]


@pytest.mark.parametrize(("selection", "site"), [("best-fit", 1), ("biggest-free", 0), ("earliest-end", 0)])
def test_of_equal_starts_the_selection_takes_its_choice(selection: str, site: int) -> None:
    """At 10 both sites come free; a job of 3 fits 4 nodes better than 6."""
    jobs = [job(1, 6, 10), job(2, 4, 10), job(3, 3, 5)]
    outcome = run(jobs, 6, 4, selection=selection)
    assert (outcome.start[3], outcome.fragments[3]) == (10, ((site, 3),))


def test_a_later_job_takes_no_nodes_that_are_reserved() -> None:
    """Job 4 fits before job 3, job 5 does not: it would need one of the nodes reserved for job 3 from 30 on."""
    jobs = [job(1, 3, 10), job(2, 1, 30), job(3, 4, 5), job(4, 2, 10), job(5, 3, 20)]
    assert plans(run(jobs, 4))[0] == {1: (0, 10), 2: (0, 30), 3: (30, 35), 4: (10, 20), 5: (35, 55)}


# Split


def test_multi_site_reserves_a_split_for_later() -> None:
    """At 5 site 1 is free, and with the 2 nodes of site 0 that is enough for 6: both halves wait for that instant."""
    jobs = [job(1, 2, 20), job(2, 4, 5), job(3, 6, 10)]
    outcome = run(jobs, 4, 4, mode="multi-site", overhead=0.5)
    assert outcome.moments[0].plan[3] == Reserved(5, 20, ((1, 4), (0, 2)))
    assert outcome.start[3] == 5


def test_a_split_needs_its_nodes_for_the_whole_stretched_length() -> None:
    """Job 3 is reserved 4 nodes from 10 to 15: a split of 10 fits before it, one that is stretched to 11 does not."""
    jobs = [job(1, 2, 10), job(2, 2, 30), job(3, 4, 5), job(4, 3, 10)]
    free_of_charge = run(jobs, 4, 3, mode="multi-site", max_fragments=[(4, 2)])
    assert free_of_charge.fragments[4] == ((0, 2), (1, 1))
    assert free_of_charge.start[4] == 0
    assert run(jobs, 4, 3, mode="multi-site", overhead=0.1).start[4] == 15


def test_adaptive_compares_with_the_start_it_reserves() -> None:
    """Alone on site 0 job 3 ends at 10 + 10, split at 10 + its stretch. Only an earlier end is worth a split."""
    jobs = [job(1, 2, 10), job(2, 3, 10), job(3, 4, 10)]
    assert run(jobs, 4, 5, mode="adaptive", overhead=0.9).moments[0].plan[3] == Reserved(0, 19, ((0, 2), (1, 2)))
    assert run(jobs, 4, 5, mode="adaptive", overhead=1.0).moments[0].plan[3] == Reserved(10, 20, ((0, 4),))
    assert run(jobs, 4, 5, mode="multi-site", overhead=1.0).moments[0].plan[3] == Reserved(0, 20, ((0, 2), (1, 2)))


def test_adaptive_reckons_with_the_reservations_ahead() -> None:
    """By the running jobs job 3 would end at 15 on site 0, as early as split; job 2 is before it, so it would be 25."""
    jobs = [job(1, 4, 10), job(2, 4, 10), job(3, 4, 5)]
    options: dict[str, Any] = {"mode": "adaptive", "overhead": 2.0}
    without = run([jobs[0], jobs[2]], 4, 2, 2, **options)
    assert without.moments[0].plan[3] == Reserved(10, 15, ((0, 4),))
    outcome = run(jobs, 4, 2, 2, **options)
    assert outcome.moments[0].plan[2] == Reserved(10, 20, ((0, 4),))
    assert outcome.moments[0].plan[3] == Reserved(0, 15, ((1, 2), (2, 2)))


def test_a_length_by_fragments_is_found_with_the_fragments() -> None:
    """In 2 fragments job 4 takes 20, but from 12 on it needs 3 for want of nodes; and in these it takes 15."""
    jobs = [job(1, 2, 12), job(2, 3, 40), job(3, 3, 9), job(4, 4, 10)]
    options: dict[str, Any] = {"mode": "multi-site", "selection": "biggest-free", "lower_bound": 3}
    outcome = run(jobs, 4, 4, 2, overhead=(1.0, 0.5), **options)
    assert outcome.moments[0].plan[3] == Reserved(12, 21, ((0, 3),))
    assert outcome.moments[0].plan[4] == Reserved(0, 15, ((2, 2), (0, 1), (1, 1)))


# What ends early


def test_an_early_end_moves_reservations_up_in_the_order_of_the_queue() -> None:
    """Job 1 ends at 4: job 2 moves from 10 to 4, and job 3 from 15 to 9."""
    outcome = run([job(1, 4, 10, run=4), job(2, 4, 5), job(3, 4, 5)], 4)
    assert plans(outcome)[:2] == [{1: (0, 10), 2: (10, 15), 3: (15, 20)}, {2: (4, 9), 3: (9, 14)}]


def test_an_early_end_makes_a_split_whole() -> None:
    """Job 3 is reserved a split, from 5 to 20; when job 1 ends at 3 it can have site 0 alone, from 3 to 13."""
    jobs = [job(1, 2, 20, run=3), job(2, 3, 5), job(3, 4, 10)]
    outcome = run(jobs, 4, 3, mode="multi-site", overhead=0.5, selection="biggest-free")
    assert outcome.moments[0].plan[3] == Reserved(5, 20, ((1, 3), (0, 1)))
    assert outcome.moments[1].plan[3] == Reserved(3, 13, ((0, 4),))


def test_adaptive_may_start_later_to_end_earlier() -> None:
    """Job 4 is reserved a split, from 5 to 25; when job 1 ends at 3, site 0 is free of job 3 at 8: from 8 to 18."""
    jobs = [job(1, 2, 40, run=3), job(2, 3, 5), job(3, 1, 8), job(4, 4, 10)]
    outcome = run(jobs, 4, 3, mode="adaptive", overhead=1.0, selection="biggest-free")
    assert outcome.moments[0].plan[4] == Reserved(5, 25, ((1, 3), (0, 1)))
    assert outcome.moments[1].plan[4] == Reserved(8, 18, ((0, 4),))


def test_multi_site_does_not_end_later_to_start_earlier() -> None:
    """Job 3 is reserved site 0 from 10 to 20; when job 2 ends at 3 it could be split, but only to end at 23."""
    jobs = [job(1, 2, 10), job(2, 3, 10, run=3), job(3, 4, 10)]
    outcome = run(jobs, 4, 3, mode="multi-site", overhead=1.0, selection="biggest-free")
    assert [one.get(3) for one in plans(outcome)[:3]] == [(10, 20), (10, 20), (10, 20)]


def test_a_cancellation_gives_back_what_was_reserved() -> None:
    """Job 2 waits for 10 and is cancelled at 1; job 3, behind it, moves from 15 to 10."""
    outcome = simulate_reserved([job(1, 4, 10), job(2, 4, 5), job(3, 4, 5)], [4], cancellations=[(1, 2)])
    assert (outcome.cancelled, outcome.start) == ({2: 1}, {1: 0, 3: 10})


# Always


def options_of(data: st.DataObject, **wanted: Any) -> dict[str, Any]:
    """Draw keyword arguments of `simulate_reserved`."""
    options = data.draw(grid_options(MODES, backfills=["easy"], orders=ORDERS, **wanted))
    del options["backfill"]
    return options


@unhurried
@given(st.data())
def test_every_outcome_is_valid(data: st.DataObject) -> None:
    """Nodes suffice on every site, everybody starts once where it may or is refused, and runs as long as it has to."""
    case = data.draw(grid_cases(too_wide=1))
    options = options_of(data) | {"draws": case.draws, "sensitivity": case.sensitivity}
    assert validate_grid(simulate_reserved(case.jobs, case.nodes, **options), case.jobs, case.nodes, **options) == []


@unhurried
@given(st.data())
def test_one_site_is_the_conservative_queue_of_that_site(data: st.DataObject) -> None:
    """In every mode a grid of one site keeps the very reservations that the site would keep by itself."""
    case = data.draw(grid_cases(max_sites=1))
    options = options_of(data)
    cancellations = data.draw(cancellation_lists(case.jobs))
    alone = simulate(
        case.jobs, case.nodes[0], order=options["order"], backfill="conservative", cancellations=cancellations
    )
    outcome = simulate_reserved(case.jobs, case.nodes, draws=case.draws, cancellations=cancellations, **options)
    assert (outcome.start, outcome.end, set(outcome.refused)) == (alone.start, alone.end, set(alone.refused))
    starts = [{job_id: held.start for job_id, held in one.plan.items()} for one in outcome.moments]
    assert starts == [one.plan for one in alone.log]


@unhurried
@given(st.data())
def test_a_reserved_end_is_never_moved_later(data: st.DataObject) -> None:
    """From pass to pass; nor is a start, under sharing and multi-site, if the overhead is constant."""
    case = data.draw(grid_cases())
    options = options_of(data) | {"draws": case.draws, "sensitivity": case.sensitivity}
    cancellations = data.draw(cancellation_lists(case.jobs))
    outcome = simulate_reserved(case.jobs, case.nodes, cancellations=cancellations, **options)
    last: dict[int, Reserved] = {}
    for moment in outcome.moments:
        for job_id, held in moment.plan.items():
            assert held.end <= last.get(job_id, held).end
            if options["mode"] != "adaptive" and not isinstance(options["overhead"], tuple):
                assert held.start <= last.get(job_id, held).start
            if job_id in moment.started:
                assert (held.start, held.fragments) == (outcome.start[job_id], outcome.fragments[job_id])
        last |= moment.plan


@unhurried
@given(st.data())
def test_no_site_is_promised_more_than_it_has(data: st.DataObject) -> None:
    """At no instant of any plan are more nodes reserved on a site than it has beside the jobs that run."""
    case = data.draw(grid_cases())
    options = options_of(data) | {"draws": case.draws}
    outcome = simulate_reserved(case.jobs, case.nodes, **options)
    rules = outcome.rules
    for moment in outcome.moments:
        begun = [one for one, start in outcome.start.items() if start < moment.now < outcome.end[one]]
        held = [Reserved(moment.now, outcome.held_until[one], outcome.fragments[one]) for one in begun]
        held += moment.plan.values()
        assert all(min(free(rules, held, one.start)) >= 0 for one in held)


@unhurried
@given(st.data())
def test_nothing_could_start_sooner_by_sharing(data: st.DataObject) -> None:
    """Under sharing no waiting job fits on a site from now on, for its estimate, beside all that is held."""
    case = data.draw(grid_cases(for_one_site=True))
    options = options_of(data) | {"mode": "sharing", "draws": case.draws}
    outcome = simulate_reserved(case.jobs, case.nodes, **options)
    jobs = {one.id: one for one in case.jobs}
    for moment in outcome.moments:
        begun = [one for one, start in outcome.start.items() if start <= moment.now < outcome.end[one]]
        held = [Reserved(moment.now, outcome.held_until[one], outcome.fragments[one]) for one in begun]
        waiting = {one: kept for one, kept in moment.plan.items() if one not in moment.started}
        for job_id in waiting:
            others = held + [kept for one, kept in waiting.items() if one != job_id]
            span = range(moment.now, moment.now + jobs[job_id].estimate)
            least = np.min([free(outcome.rules, others, instant) for instant in span], axis=0)
            assert least.max() < jobs[job_id].width


def test_long_runs_are_valid_and_do_split_and_wait() -> None:
    """On 30 jobs of random workloads both kinds of places are reserved for later, and all of it is valid."""
    later: dict[bool, int] = {True: 0, False: 0}
    for seed in range(10):
        case = random_grid_jobs(np.random.default_rng(seed), 30, (8, 4, 4), load=1.2)
        options: dict[str, Any] = {"mode": "adaptive", "overhead": 0.2}
        outcome = run(case.jobs, *case.nodes, **options)
        for moment in outcome.moments:
            for job_id, held in moment.plan.items():
                later[len(held.fragments) > 1] += job_id not in moment.started
    assert min(later.values()) > 50
