"""The turns of time-sliced jobs: when each worked and was paused, from the rates that its supervisor logs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

Spans = list[tuple[float, float]]


class Turns(NamedTuple):
    """The time spans in which a job worked on a machine and was paused there, in ms since 1970."""

    works: Spans
    pauses: Spans


def read_turns(rates: Path) -> Turns:
    """Read the turns of a job on a machine from its log; the last span of work is open-ended.

    Assert that the rates alternate between 1 and 0.
    """
    lines = [line.split() for line in rates.read_text(encoding="ascii").splitlines()]
    changes = [(float(at_ms), float(rate)) for at_ms, rate in lines]
    assert [rate for _, rate in changes] == [float(number % 2 == 0) for number in range(len(changes))]
    spans = list(pairwise(at_ms for at_ms, _ in changes))
    return Turns([*spans[::2], (changes[-1][0], float("inf"))], spans[1::2])


def one_works_while_the_other_is_paused(one: Turns, other: Turns) -> bool:
    """Whether each of two jobs works at some instant of every pause of the other."""
    return all(
        any(begin < end_ms and begin_ms < end for begin, end in works)
        for works, pauses in ((one.works, other.pauses), (other.works, one.pauses))
        for begin_ms, end_ms in pauses
    )
