"""What is free on each node over time, by adding up everything that occupies it (docs/resources.md, rule 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from reference import availability
from reference.counted import Site, Units
from reference.model import NEVER, Job

Step = tuple[int, dict[str, int]]
"""A time, and the amounts that are free on a node from then until the next step."""


class Occupation(NamedTuple):
    """A job's units on nodes from ``start`` up to, not including, ``end``.

    While the plan counts nodes, ``units`` is None for jobs that have not started, and only their widths are known.
    """

    start: int
    end: int
    job: Job
    units: Units | None


def steps_of(site: Site, number: int, occupations: Iterable[Occupation]) -> list[Step]:
    """Return the plan of a node as a step function."""
    here = [one for one in occupations if one.units and number in one.units]
    steps = []
    for when in sorted({0, *(one.start for one in here), *(one.end for one in here)}):
        free = site.idle()
        for one in here:
            if one.start <= when < one.end and one.units:
                free = site.take(free, one.job, {number: one.units[number]})
        steps.append((when, free[number]))
    return steps


def least(steps: Sequence[Step], start: int, end: int) -> dict[str, int]:
    """Return the least of each resource that is free on a node from ``start`` up to ``end``."""
    until = [when for when, _ in steps[1:]] + [NEVER]
    inside = [free for (when, free), ends in zip(steps, until, strict=True) if when < end and ends > start]
    return {name: min(free[name] for free in inside) for name in inside[0]}


def colour(site: Site, occupations: Sequence[Occupation]) -> list[Occupation]:
    """Give nodes to the occupations without, in the order of their starts: the lowest that are free throughout.

    All jobs must take whole nodes.
    """
    placed = [one for one in occupations if one.units is not None]
    for one in sorted((one for one in occupations if one.units is None), key=lambda one: (one.start, one.job.id)):
        beside = [other for other in placed if other.start < one.end and other.end > one.start]
        busy = {number for other in beside for number in other.units or ()}
        free = [node.number for node in site.nodes if node.number not in busy]
        assert len(free) >= one.job.width, "a promised start cannot be kept"
        placed.append(one._replace(units=dict.fromkeys(free[: one.job.width], 1)))
    return placed


def idle_nodes(site: Site, occupations: Iterable[Occupation], now: int) -> list[int]:
    """Return the nodes without any units now, ascending."""
    busy = {number for one in occupations if one.start <= now < one.end for number in one.units or ()}
    return [node.number for node in site.nodes if node.number not in busy]


def earliest(
    site: Site,
    occupations: Sequence[Occupation],
    job: Job,
    not_before: int,
    *,
    per_node: bool,
    allowed: Callable[[int], bool] = lambda start: True,
    openings: Iterable[int] = (),
) -> tuple[int, Units | None]:
    """Return a job's earliest start from ``not_before`` on, and its nodes if the plan is kept for each node.

    ``allowed`` and ``openings`` are for limits: whether they allow a start, and the instants at which windows end.
    """
    plans = {node.number: steps_of(site, node.number, occupations) for node in site.nodes} if per_node else {}
    counted = [availability.Occupation(one.start, one.end, one.job.width) for one in occupations]

    def nodes_at(start: int) -> Units | None:
        return site.place({number: least(plan, start, start + job.estimate) for number, plan in plans.items()}, job)

    def may_start(start: int) -> bool:
        if per_node:
            return nodes_at(start) is not None and allowed(start)
        return availability.fits(start, job.estimate, job.width, len(site.nodes), counted) and allowed(start)

    start = availability.earliest_start(not_before, counted, may_start, openings)
    return start, nodes_at(start) if per_node and start < NEVER else None
