"""The 116 names of algorithms, and what is said of a wrong one."""

from __future__ import annotations

import math

import pytest

from gridweave.errors import OptionError
from gridweave.site.disciplines.dictionary import read_policy
from gridweave.site.disciplines.fractional.entry import FractionalTable
from gridweave.site.disciplines.fractional.policy import ALGORITHMS, FractionalPolicy, algorithm_named


def test_there_are_as_many_algorithms_as_the_paper_counts() -> None:
    """Section 5.1: 3 x 2 without MCB8 and 11 x 2 x 5 with it."""
    without = [one for one in ALGORITHMS.values() if not one.uses_mcb8]
    assert (len(without), len(ALGORITHMS)) == (6, 116)
    assert sum(one.periodic == "stretch-per" for one in ALGORITHMS.values()) == 10


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_name_is_read_as_it_is_written(name: str) -> None:
    """What a name means is called by that name, and a policy takes it."""
    assert algorithm_named(name).name == name
    assert FractionalPolicy(algorithm=name).label == name


def test_the_parts_of_a_name() -> None:
    """The name of the best algorithm, taken apart as section 4.5 says."""
    best = algorithm_named("GreedyPM*/per/OPT=MIN/MINVT=600")
    assert (best.on_submit, best.on_end, best.periodic, best.optimise) == ("GreedyPM", True, "per", "MIN")
    assert (best.min_flow_s, best.min_virtual_s) == (0, 600)


def test_other_bounds_than_the_papers_are_taken() -> None:
    """MINFT and MINVT may be any number of seconds, and both may be set."""
    both = algorithm_named("MCB8*/OPT=AVG/MINFT=30/MINVT=1200")
    assert (both.min_flow_s, both.min_virtual_s) == (30, 1200)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("GreedyPN*/per/OPT=MIN/MINVT=600", "GreedyPM*/per/OPT=MIN/MINVT=600"),
        ("Greedy*/OPT=MAX", "Greedy*/OPT=MIN"),
        ("/stretch-per/OPT=MIN", "/stretch-per/OPT=MAX"),
        ("Greedy/OPT=MIN", "Greedy*/OPT=MIN"),
        ("GreedyP*/OPT=MIN/MINVT=600", "GreedyP*/per/OPT=MIN/MINVT=600"),
        ("GreedyPM*/per", "GreedyPM*/per/OPT=MIN"),
        ("mcb8*/OPT=MIN", "MCB8*/OPT=MIN"),
    ],
)
def test_a_wrong_name_is_answered_with_near_ones(wrong: str, near: str) -> None:
    """One line says which names are near: what the algorithm cannot be, or a letter that is wrong."""
    with pytest.raises(OptionError) as caught:
        FractionalPolicy(algorithm=wrong)
    assert near in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("option", "value"), [("period_ms", 0), ("penalty_ms", -1)])
def test_impossible_times_are_refused(option: str, value: int) -> None:
    """The message says what would be right."""
    with pytest.raises(OptionError, match=r"expected [01] to"):
        FractionalPolicy(**{option: value})


@pytest.mark.parametrize("value", [math.inf, 1e308])
@pytest.mark.parametrize(
    ("option", "most"), [("period_s", "100,000,000,000"), ("penalty_s", "100,000,000,000"), ("long_s", "1,000,000,000")]
)
def test_endless_times_are_refused(option: str, most: str, value: float) -> None:
    """TOML knows infinity, and no time of this discipline may be that."""
    with pytest.raises(OptionError) as caught:
        read_policy("fractional", 8, {"fractional": FractionalTable(**{option: value})}, {})
    assert str(caught.value) == f"{option}: is {value:g}; expected at most {most} seconds"


def test_an_order_is_none_of_its_options() -> None:
    """Who orders the queue of a fractional site is told that it has none."""
    with pytest.raises(OptionError, match="virtual time"):
        read_policy("fractional", 8, {"order": "sjf"}, {})
