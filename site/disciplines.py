"""Disciplines as plugs: a plain dictionary from name to factory, and what every discipline can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from gridweave.site.array_discipline import ArrayDiscipline
from gridweave.site.explain import Explanation
from gridweave.site.messages import Job, Running
from gridweave.site.policy import SitePolicy


class Discipline(Protocol):
    """Which job starts when, on a number of nodes: what `SiteCore` asks of a discipline.

    Time never goes backwards from call to call. Of one instant the calls come in this order: ``ended`` and
    ``withdraw``, then ``submit`` and ``reserve``, then one ``run_pass``.
    """

    def why_never(self, job: Job) -> str | None:
        """Return why a job could never start here, or None."""

    def submit(self, now_ms: int, job: Job) -> None:
        """Take in a job."""

    def ended(self, now_ms: int, job_id: int) -> None:
        """Take out a running job."""

    def withdraw(self, now_ms: int, job_id: int) -> None:
        """Take out a waiting job."""

    def reserve(self, now_ms: int, reservation_id: int, start_ms: int, length_ms: int, width: int) -> int | None:
        """Reserve nodes; return the earliest start at which they could be had: ``start_ms`` if they now are.

        None if this discipline makes no reservations, or these never fit.
        """

    def unreserve(self, now_ms: int, reservation_id: int) -> None:
        """Give back a reservation, or what is left of it."""

    def run_pass(self, now_ms: int) -> list[Job]:
        """Start what may start now; return these jobs, in the order in which they were started."""

    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return how many nodes a job of this length, submitted now, could have at once."""

    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job submitted now would start, if estimates held and nothing else came; None: never."""

    def next_wakeup_ms(self) -> int | None:
        """Return the next instant at which a job may start though nothing else happens."""

    def next_end_ms(self) -> int | None:
        """Return the first end by estimate of a running job."""

    def running(self) -> Iterator[Running]:
        """Yield the running jobs, by their end by estimate."""

    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in the order of the queue, with the start that each has been promised, if any."""

    def explain(self, now_ms: int, job_id: int) -> Explanation:
        """Return when a waiting job will start, and why not earlier."""

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""


Factory = Callable[[int, SitePolicy, int], Discipline]

DISCIPLINES: dict[str, Factory] = {
    "queue": ArrayDiscipline,
    "planning": ArrayDiscipline,
}
"""Name to factory; a factory takes the nodes, the policy and the local time of instant zero in the week."""
