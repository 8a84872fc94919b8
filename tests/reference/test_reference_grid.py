"""Schedules of the slow reference of the grid queue that were worked out by hand.

In the narratives a site with its free nodes is written as in the code: ``free (2, 0)`` is two nodes of site 0.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from reference.grid import MODES, Fragments, GridMoment, GridOutcome, simulate_grid
from reference.grid_validation import validate_grid
from reference.model import Job

GRID_MODES = MODES[1:]


def job(job_id: int, width: int, estimate: int, *, at: int = 0, run: int | None = None) -> Job:
    """Return a job; it runs for its estimate unless told otherwise."""
    return Job(job_id, at, width, estimate, estimate if run is None else run)


def run(jobs: list[Job], *nodes: int, **options: Any) -> GridOutcome:
    """Simulate, check what must always hold, and return the outcome."""
    outcome = simulate_grid(jobs, nodes, **options)
    assert validate_grid(outcome, jobs, nodes, **options) == []
    return outcome


def places(jobs: list[Job], *nodes: int, **options: Any) -> dict[int, Fragments]:
    """Return the fragments of each job."""
    return run(jobs, *nodes, **options).fragments


def shown(moment: GridMoment) -> tuple[int | None, int | None, Fragments | None, tuple[int, ...] | None]:
    """Return what a pass promised to its head."""
    return moment.head, moment.shadow, moment.reserved, moment.extra


# One site is selected


def test_best_fit_takes_the_site_with_the_fewest_nodes_that_suffice() -> None:
    """Of 5, 3 and 4 free nodes a job of 3 takes the 3, and of two such sites the first."""
    assert places([job(1, 3, 5)], 5, 3, 4) == {1: ((1, 3),)}
    assert places([job(1, 3, 5)], 4, 3, 3) == {1: ((1, 3),)}


def test_biggest_free_takes_the_site_with_the_most_nodes() -> None:
    """Of 3, 5 and 5 free nodes a job of 2 takes the first 5."""
    assert places([job(1, 2, 5)], 3, 5, 5, selection="biggest-free") == {1: ((1, 2),)}


def test_equal_util_takes_the_site_with_the_smallest_share_in_use() -> None:
    """One node of 4 is as much as two and a half of 10: after one job on site 0 three go to site 1."""
    jobs = [job(number, 1, 5) for number in range(1, 6)]
    sites = [fragments[0][0] for _, fragments in sorted(places(jobs, 4, 10, selection="equal-util").items())]
    assert sites == [0, 1, 1, 1, 0]


def test_equal_util_takes_the_first_of_equal_shares() -> None:
    """One of 3 nodes in use is the same share as two of 6."""
    jobs = [job(1, 1, 5), job(2, 2, 5), job(3, 1, 5)]
    assert places(jobs, 3, 6, selection="equal-util") == {1: ((0, 1),), 2: ((1, 2),), 3: ((0, 1),)}


def test_earliest_end_takes_the_first_site_on_which_a_job_can_start() -> None:
    """All nodes are alike: a job that starts now ends at one instant wherever it starts."""
    assert places([job(1, 3, 10), job(2, 2, 5)], 2, 8, 3, selection="earliest-end") == {1: ((1, 3),), 2: ((0, 2),)}


@pytest.mark.parametrize(("drawn", "site"), [(0.0, 1), (0.33, 1), (0.34, 3), (0.67, 4), (0.999, 4)])
def test_random_counts_only_the_sites_that_fit(drawn: float, site: int) -> None:
    """Of five sites three are large enough; the draw picks one of these three, in site order."""
    assert places([job(1, 3, 5)], 2, 4, 2, 4, 4, selection="random", draws={1: drawn}) == {1: ((site, 3),)}


# A job is split


def test_a_split_takes_the_fewest_fragments_and_of_the_last_site_only_the_rest() -> None:
    """Eight nodes are all 5 of site 1 and 3 of the 4 of site 2; site 0, with 3, is not needed."""
    assert places([job(1, 8, 5)], 3, 5, 4, mode="multi-site") == {1: ((1, 5), (2, 3))}


def test_a_split_takes_sites_of_equal_size_in_site_order() -> None:
    """Five nodes of three sites with 3 each."""
    assert places([job(1, 5, 5)], 3, 3, 3, mode="multi-site") == {1: ((0, 3), (1, 2))}


def test_a_job_that_fits_on_one_site_is_not_split() -> None:
    """Site 1 has the 3 nodes; the 2 of site 0 are left alone."""
    for mode in GRID_MODES:
        assert places([job(1, 3, 5)], 2, 4, mode=mode) == {1: ((1, 3),)}


def test_without_splitting_a_job_waits_for_a_single_site() -> None:
    """Two jobs leave free (2, 2): a job of 3 waits for the end of one under sharing and starts at once as two parts."""
    jobs = [job(1, 2, 10), job(2, 2, 12), job(3, 3, 5)]
    assert run(jobs, 4, 4, selection="biggest-free").start == {1: 0, 2: 0, 3: 10}
    outcome = run(jobs, 4, 4, mode="multi-site", selection="biggest-free")
    assert (outcome.start[3], outcome.fragments[3]) == (0, ((0, 2), (1, 1)))


def test_the_fragment_limit_makes_a_job_wait() -> None:
    """Free (2, 2, 2) gives a job of 5 in three fragments; two are allowed, which free (4, 2, 2) at 5 can give."""
    jobs = [job(1, 2, 10, run=5), job(2, 2, 10), job(3, 2, 10), job(4, 5, 10)]
    options = {"mode": "multi-site", "selection": "biggest-free"}
    free = run(jobs, 4, 4, 4, **options)
    assert (free.start[4], free.fragments[4]) == (0, ((0, 2), (1, 2), (2, 1)))
    limited = run(jobs, 4, 4, 4, **options, max_fragments=[(8, 2)])
    assert (limited.start[4], limited.fragments[4]) == (5, ((0, 4), (1, 1)))


@pytest.mark.parametrize(("width", "refused"), [(2, False), (3, True), (4, True), (5, False), (6, False), (7, False)])
def test_the_first_row_that_is_wide_enough_counts_and_beyond_the_last_there_is_no_limit(
    width: int, refused: bool
) -> None:
    """On four sites of 2, jobs of up to 4 are kept whole, those of 5 and 6 may have 3 fragments, 7 needs and has 4."""
    outcome = run([job(1, width, 5)], 2, 2, 2, 2, mode="multi-site", max_fragments=[(4, 1), (6, 3)])
    assert (1 in outcome.refused) == refused


def test_a_job_of_the_lower_bound_is_not_split_and_a_wider_one_is() -> None:
    """A job of 3 on free (2, 2) waits with the lower bound 3, and starts with 2."""
    jobs = [job(1, 2, 10), job(2, 2, 10), job(3, 3, 5)]
    options = {"mode": "multi-site", "selection": "biggest-free"}
    assert run(jobs, 4, 4, **options, lower_bound=3).start[3] == 10
    assert run(jobs, 4, 4, **options, lower_bound=2).start[3] == 0


# Refused jobs


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"mode": "local", "home": {1: 0, 2: 0, 3: 0, 4: 1}}, {1, 2, 3}),
        ({"mode": "sharing"}, {1, 2}),
        ({"mode": "multi-site"}, {1}),
        ({"mode": "multi-site", "lower_bound": 6}, {1}),
        ({"mode": "multi-site", "max_fragments": [(6, 1)]}, {1, 2}),
        ({"mode": "adaptive", "overhead": 3.0}, {1}),
        ({"mode": "adaptive", "lower_bound": 6}, {1}),
    ],
)
def test_a_job_that_never_fits_is_refused_and_holds_up_nobody(options: dict[str, Any], refused: set[int]) -> None:
    """Of jobs of 7, 6, 3 and 1 on sites of 2 and 4 those that fit on the idle grid start, the others are refused."""
    jobs = [job(1, 7, 5), job(2, 6, 5, at=100), job(3, 3, 5, at=200), job(4, 1, 5, at=300)]
    outcome = run(jobs, 2, 4, **options)
    assert set(outcome.refused) == refused
    assert outcome.start == {one.id: one.submit for one in jobs if one.id not in refused}


# Overhead


def test_a_split_job_takes_longer_rounded_down_to_whole_milliseconds() -> None:
    """100 x 0.29 is 28.999999999999996 in doubles: 28; 7 x 0.29 is 2.03: 2; one that is killed runs 128."""
    options = {"mode": "multi-site", "overhead": 0.29}
    assert run([job(1, 4, 100)], 2, 2, **options).end == {1: 128}
    assert run([job(1, 4, 100, run=7)], 2, 2, **options).end == {1: 9}
    assert run([job(1, 4, 100, run=200)], 2, 2, **options).end == {1: 128}
    assert run([job(1, 2, 100)], 2, 2, **options).end == {1: 100}


def test_the_grid_reckons_with_the_stretched_estimate_of_a_split_job() -> None:
    """Job 1 is split and holds both sites for 15 by estimate; its parts end together, after 6 + 3."""
    outcome = run([job(1, 4, 10, run=6), job(2, 2, 5)], 2, 2, mode="multi-site", overhead=0.5)
    assert shown(outcome.log[0]) == (2, 15, ((0, 2),), (0, 2))
    assert outcome.start == {1: 0, 2: 9}


# Adaptive: split or wait


@pytest.mark.parametrize(
    ("overhead", "start", "end", "parts"),
    [(0.9, 0, 19, 2), (1.0, 10, 20, 1), (1.1, 10, 20, 1)],
    ids=["a split pays", "equal ends wait", "waiting pays"],
)
def test_adaptive_splits_only_if_that_ends_earlier(overhead: float, start: int, end: int, parts: int) -> None:
    """Free (2, 2) until 10: a job of 3 with an estimate of 10 would end at 20 on one site, split at 10 x (1 + p)."""
    jobs = [job(1, 2, 10), job(2, 2, 10), job(3, 3, 10)]
    outcome = run(jobs, 4, 4, mode="adaptive", selection="biggest-free", overhead=overhead)
    assert (outcome.start[3], outcome.end[3], len(outcome.fragments[3])) == (start, end, parts)


def test_adaptive_waits_by_estimates_and_starts_when_a_site_is_free_before() -> None:
    """Job 3 waits for 10, and job 1 ends at 2 already."""
    jobs = [job(1, 2, 10, run=2), job(2, 2, 10), job(3, 3, 10)]
    outcome = run(jobs, 4, 4, mode="adaptive", selection="biggest-free", overhead=1.0)
    assert [shown(moment)[:2] for moment in outcome.log[:2]] == [(3, 10), (None, None)]
    assert (outcome.start[3], outcome.fragments[3]) == (2, ((0, 3),))


def test_adaptive_splits_a_job_wider_than_every_site_whatever_it_costs() -> None:
    """A job of 5 on two sites of 4 has no single site to wait for."""
    outcome = run([job(1, 5, 10)], 4, 4, mode="adaptive", overhead=3.0)
    assert (outcome.end, outcome.fragments) == ({1: 40}, {1: ((0, 4), (1, 1))})


def test_adaptive_without_overhead_splits_whenever_no_single_site_is_free() -> None:
    """Any wait is longer than none."""
    jobs = [job(1, 2, 1), job(2, 2, 1), job(3, 3, 10)]
    assert run(jobs, 4, 4, mode="adaptive", selection="biggest-free").start[3] == 0


def test_an_adaptive_candidate_may_wait_for_a_site_that_the_head_has_reserved() -> None:
    """Job 3 could be split, to end at 20, but by the running jobs it could have site 0 from 8 to 18.

    At 8 the head takes site 0 for 100, and job 3 is split after all.
    """
    jobs = [job(1, 4, 8), job(2, 4, 100), job(3, 3, 10)]
    outcome = run(jobs, 4, 2, 2, mode="adaptive", overhead=1.0)
    assert shown(outcome.log[0]) == (2, 8, ((0, 4),), (0, 2, 2))
    assert outcome.start == {1: 0, 2: 8, 3: 8}
    assert outcome.end[3] == 28


def test_an_adaptive_candidate_waits_for_a_site_whose_free_nodes_are_kept_for_the_head() -> None:
    """Two nodes are free on site 0, one of them reserved; by the running jobs job 3 fits there, so no split pays."""
    jobs = [job(1, 3, 10), job(2, 4, 5), job(3, 2, 20)]
    split = run(jobs, 5, 1, mode="multi-site")
    assert shown(split.log[0]) == (2, 10, ((0, 4),), (1, 1))
    assert (split.start[3], split.fragments[3]) == (0, ((0, 1), (1, 1)))
    assert run(jobs, 5, 1, mode="adaptive").start == {1: 0, 2: 10, 3: 10}


def test_an_adaptive_head_may_start_after_its_shadow_time_to_end_before_what_it_was_promised() -> None:
    """Promised a split from 5 to 20, it sees at 2 that site 0 will be free for it from 9 to 19."""
    jobs = [job(1, 2, 30, run=2), job(2, 2, 9), job(3, 2, 5), job(4, 2, 5), job(5, 4, 10)]
    outcome = run(jobs, 4, 2, 2, mode="adaptive", selection="biggest-free", overhead=0.5)
    assert shown(outcome.log[0]) == (5, 5, ((1, 2), (2, 2)), (0, 0, 0))
    assert shown(outcome.log[1]) == (5, 9, ((0, 4),), (0, 2, 2))
    assert (outcome.start[5], outcome.end[5]) == (9, 19)


# The head's reservation, and backfilling around it


def test_the_reservation_of_a_head_on_two_sites_protects_both() -> None:
    """Job 3 is promised both sites at 10: a job of one node may use the last free one until 10 and no longer."""
    jobs = [job(1, 3, 10), job(2, 3, 10), job(3, 8, 5), job(4, 1, 11), job(5, 1, 10), job(6, 1, 11)]
    outcome = run(jobs, 4, 4, mode="multi-site")
    assert shown(outcome.log[0]) == (3, 10, ((0, 4), (1, 4)), (0, 0))
    assert outcome.start == {1: 0, 2: 0, 3: 10, 4: 15, 5: 0, 6: 15}


def test_the_extra_nodes_of_a_site_are_used_up() -> None:
    """Site 0 has one node beyond the head's 5: job 4 takes it for 20, job 5 finds none, job 6 ends in time."""
    jobs = [job(1, 4, 10), job(2, 4, 10), job(3, 5, 5), job(4, 1, 20), job(5, 1, 20), job(6, 1, 10)]
    outcome = run(jobs, 6, 4)
    assert shown(outcome.log[0]) == (3, 10, ((0, 5),), (1, 4))
    assert outcome.start == {1: 0, 2: 0, 3: 10, 4: 0, 5: 10, 6: 0}
    assert outcome.fragments[5] == ((1, 1),)


def test_a_candidate_that_ends_by_the_shadow_time_uses_up_no_extra_node() -> None:
    """Job 4 ends at 10 itself and takes a free node; the extra one is left to job 5."""
    jobs = [job(1, 4, 10), job(2, 4, 10), job(3, 5, 5), job(4, 1, 10), job(5, 1, 20)]
    assert run(jobs, 6, 4).start == {1: 0, 2: 0, 3: 10, 4: 0, 5: 0}


def test_a_candidate_goes_around_the_reserved_site() -> None:
    """Best fit is the one free node of site 0, kept for the head: a long job goes to site 1, a short one takes it."""
    jobs = [job(1, 2, 10), job(2, 5, 10), job(3, 6, 5), job(4, 1, 20), job(5, 1, 10)]
    outcome = run(jobs, 6, 4)
    assert shown(outcome.log[0]) == (3, 10, ((0, 6),), (0, 4))
    assert outcome.start == {1: 0, 2: 0, 3: 10, 4: 0, 5: 0}
    assert (outcome.fragments[4], outcome.fragments[5]) == (((1, 1),), ((0, 1),))


def test_best_fit_counts_all_free_nodes_of_the_sites_that_a_candidate_may_have() -> None:
    """Of free (4, 3) a long job may have (1, 3), so it fits on both; the fewest nodes are left free on site 1."""
    jobs = [job(1, 3, 10), job(2, 4, 10), job(3, 7, 5), job(4, 1, 20)]
    outcome = run(jobs, 8, 6)
    assert shown(outcome.log[0]) == (3, 10, ((0, 7),), (1, 6))
    assert (outcome.start[4], outcome.fragments[4]) == (0, ((1, 1),))


@pytest.mark.parametrize(("selection", "site"), [("equal-util", 0), ("biggest-free", 0)])
def test_the_other_selections_count_all_free_nodes_too(selection: str, site: int) -> None:
    """Both sites are half in use, free (4, 3); a long job may have (1, 3): the tie goes to site 0, which has most."""
    jobs = [job(1, 4, 10), job(2, 3, 10), job(3, 7, 5), job(4, 1, 20)]
    outcome = run(jobs, 8, 6, selection=selection)
    assert shown(outcome.log[0]) == (3, 10, ((0, 7),), (1, 6))
    assert (outcome.start[4], outcome.fragments[4]) == (0, ((site, 1),))


@pytest.mark.parametrize(("overhead", "start"), [(0.6, 0), (0.8, 9)])
def test_a_split_candidate_must_end_by_the_shadow_time_stretched(overhead: float, start: int) -> None:
    """An estimate of 5 becomes 8, which is in time for the head at 8, or 9, which is not."""
    jobs = [job(1, 2, 8), job(2, 2, 8), job(3, 8, 1), job(4, 3, 5)]
    outcome = run(jobs, 4, 4, mode="multi-site", selection="biggest-free", overhead=overhead)
    assert shown(outcome.log[0]) == (3, 8, ((0, 4), (1, 4)), (0, 0))
    assert (outcome.start[4], outcome.fragments[4]) == (start, ((0, 2), (1, 1)) if start == 0 else ((0, 3),))


def test_a_split_candidate_uses_up_the_extra_nodes_of_each_of_its_sites() -> None:
    """Beyond the head's 4 on site 0 there are extra (0, 2, 2); job 3 takes 2 and 1 of them for 20, job 4 finds one."""
    jobs = [job(1, 4, 10), job(2, 4, 5), job(3, 3, 20), job(4, 2, 20), job(5, 1, 20)]
    outcome = run(jobs, 4, 2, 2, mode="multi-site", max_fragments=[(2, 1), (3, 2), (4, 1)])
    assert shown(outcome.log[0]) == (2, 10, ((0, 4),), (0, 2, 2))
    assert outcome.fragments[3] == ((1, 2), (2, 1))
    assert (outcome.start[3], outcome.start[5], outcome.fragments[5]) == (0, 0, ((2, 1),))
    assert outcome.start[4] == 15


def test_without_backfilling_nobody_passes_the_head() -> None:
    """Job 3 would fit beside job 1 at once."""
    jobs = [job(1, 3, 10), job(2, 4, 5), job(3, 1, 1)]
    assert run(jobs, 4, backfill="none").start == {1: 0, 2: 10, 3: 15}
    assert run(jobs, 4).start == {1: 0, 2: 10, 3: 0}


def test_a_pass_at_which_nothing_came_free_may_move_the_reservation_and_start_a_job() -> None:
    """The head is promised site 1; job 4 makes site 0 the better fit; the next pass, at 5, sees it and starts job 5.

    What happens at 5 is only that a job is submitted that does not fit: every instant with an event has its pass.
    """
    jobs = [job(1, 3, 10), job(2, 4, 10), job(3, 4, 5), job(4, 3, 20), job(5, 2, 20)]
    outcome = run(jobs, 7, 5)
    assert shown(outcome.log[0]) == (3, 10, ((1, 4),), (7, 1))
    assert outcome.start == {1: 0, 2: 0, 3: 10, 4: 0, 5: 10}
    outcome = run([*jobs, job(6, 7, 1, at=5)], 7, 5)
    assert shown(outcome.log[1]) == (3, 10, ((0, 4),), (0, 5))
    assert outcome.start == {1: 0, 2: 0, 3: 10, 4: 0, 5: 5, 6: 20}


def test_a_job_that_ends_leaves_its_sites_to_one_submitted_at_that_instant() -> None:
    """Completions come before submissions, on all sites."""
    assert run([job(1, 4, 10), job(2, 4, 5, at=10)], 2, 2, mode="multi-site").start == {1: 0, 2: 10}


def test_the_queue_stands_in_the_order_asked_for() -> None:
    """Under SJF the short job 3 starts before job 2."""
    jobs = [job(1, 4, 10), job(2, 4, 8, at=1), job(3, 4, 2, at=2)]
    assert run(jobs, 4, order="sjf").start == {1: 0, 3: 10, 2: 12}


def test_locally_every_job_stays_at_home() -> None:
    """Two jobs of one home run one after the other, though the other site is idle."""
    jobs = [job(1, 4, 10), job(2, 4, 5)]
    outcome = run(jobs, 4, 4, mode="local", home={1: 1, 2: 1})
    assert (outcome.start, outcome.fragments) == ({1: 0, 2: 10}, {1: ((1, 4),), 2: ((1, 4),)})
    assert outcome.log[0] == GridMoment(0, (1,), 2, 10, ((1, 4),), (0,), site=1)


@pytest.mark.parametrize(
    ("nodes", "options"),
    [
        ((), {}),
        ((4, 0), {}),
        ((4,), {"mode": "global"}),
        ((4,), {"order": "lifo"}),
        ((4,), {"backfill": "conservative"}),
        ((4,), {"selection": "worst-fit"}),
        ((4,), {"overhead": -0.1}),
        ((4,), {"overhead": ()}),
        ((4,), {"overhead": (0.1, math.inf)}),
        ((4,), {"sensitivity": {1: -1.0}}),
        ((4,), {"lower_bound": -1}),
        ((4,), {"max_fragments": [(4, 0)]}),
        ((4,), {"mode": "local"}),
        ((4,), {"mode": "local", "home": {1: 1}}),
        ((4,), {"selection": "random"}),
        ((4,), {"selection": "random", "draws": {1: 1.0}}),
    ],
)
def test_arguments_that_make_no_sense_are_refused(nodes: tuple[int, ...], options: dict[str, Any]) -> None:
    """A reference that went on would hide a mistake of its caller."""
    with pytest.raises(ValueError):
        simulate_grid([job(1, 1, 1)], nodes, **options)
