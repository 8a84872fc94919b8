"""Free nodes over time, by adding up everything that occupies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from reference.model import NEVER, Job


class Occupation(NamedTuple):
    """Nodes that are taken from ``start`` up to, not including, ``end``; ``job`` is None for a reservation."""

    start: int
    end: int
    width: int
    job: Job | None = None


def used_at(instant: int, occupations: Iterable[Occupation]) -> int:
    """Return the nodes that are taken at one instant."""
    used = 0
    for start, end, width, _ in occupations:
        if start <= instant < end:
            used += width
    return used


def fits(start: int, length: int, width: int, nodes: int, occupations: Sequence[Occupation]) -> bool:
    """Return whether ``width`` of ``nodes`` are free from ``start`` on for the whole ``length``.

    More nodes are taken at no instant than at the start itself or at one where an occupation begins, so these are all
    that need a look.
    """
    instants = [start] + [other.start for other in occupations if start < other.start < start + length]
    return all(used_at(instant, occupations) + width <= nodes for instant in instants)


def earliest_start(
    not_before: int,
    occupations: Sequence[Occupation],
    may_start: Callable[[int], bool],
    openings: Iterable[int] = (),
) -> int:
    """Return the first instant of all that come into question at which ``may_start`` holds.

    They are ``not_before`` itself, every start and end of an occupation, and the openings given: nowhere else does
    anything change.
    """
    instants = {not_before, *openings}
    for other in occupations:
        instants |= {other.start, other.end}
    for instant in sorted(instants):
        if not_before <= instant < NEVER and may_start(instant):
            return instant
    return NEVER  # nodes are out
