"""When jobs that take turns worked and were paused, by the rates that their supervisors write down."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

Spans = list[tuple[float, float]]


class Turns(NamedTuple):
    """From when to when a job worked on a machine, and from when to when it was paused there [Unix ms]."""

    works: Spans
    pauses: Spans


def read_turns(rates: Path) -> Turns:
    """Return the turns of a job on a machine up to the last change of its rate; it goes on after each pause."""
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
