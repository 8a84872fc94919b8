"""The order of the waiting jobs (docs/disciplines.md, "Order of the waiting jobs")."""

from __future__ import annotations

import math
from collections.abc import Callable

from reference.model import Job, State

KEYS: dict[str, Callable[[Job], float]] = {
    "fcfs": lambda job: float(job.submit),
    "sjf": lambda job: float(job.estimate),
    "ljf": lambda job: -float(job.estimate),
    "saf": lambda job: float(job.width) * float(job.estimate),
    "laf": lambda job: -float(job.width) * float(job.estimate),
    "bfit": lambda job: -float(job.width),
    "wfit": lambda job: float(job.width),
    "smith": lambda job: _quotient(float(job.width) * float(job.estimate), job.weight),
    "weight": lambda job: -float(job.weight),
}
ORDERS = (*KEYS, "priority")


def _quotient(area: float, weight: float) -> float:
    """Divide as IEEE doubles do: a job of no weight has an infinite key and comes last."""
    return area / weight if weight else math.inf


def key_of(job: Job, order: str, aging: float) -> float:
    """Return the first part of what a job is sorted by."""
    if order != "priority":
        return KEYS[order](job)
    if math.isinf(aging):
        return -float(job.priority)
    return float(job.submit) - float(job.priority) * float(aging)


def in_order(state: State) -> list[Job]:
    """Return the waiting jobs from the head on."""
    return sorted(state.waiting, key=lambda job: place_of(state, job))


def place_of(state: State, job: Job) -> tuple[object, ...]:
    """Return what a job is sorted by; one that was shortened by what it has done stands where it stood."""
    first = state.whole.get(job.id, job)
    return (*state.rank(job), key_of(first, state.order, state.aging), job.submit, job.id)
