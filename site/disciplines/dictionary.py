"""Disciplines as plugs: a plain dictionary from name to factory, and what every discipline can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self, runtime_checkable

from gridweave.site.disciplines.arrays import ArrayDiscipline
from gridweave.site.disciplines.lomarc import SharedDiscipline
from gridweave.site.explain import SiteReason
from gridweave.site.job import Job, NodeIntervals, Running


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

    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        """Expect a running job that shares its nodes with none to end at another instant, after now."""

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

    def aside(self) -> Self:
        """Return what can be asked anything, and leaves no trace of that here; nothing may happen to it."""

    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start, and why not earlier; nodes of the site and free ones are filled in."""

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""


@runtime_checkable
class SharingDiscipline(Discipline, Protocol):
    """What `SiteCore` asks besides of a discipline that chooses the nodes of its jobs, which may share them."""

    @property
    def threads_per_node(self) -> int:
        """Hardware threads of the largest node: what ``place_of`` counts on with from node to node."""

    @property
    def free(self) -> int:
        """Nodes on which no job is."""

    def place_of(self, job_id: int) -> tuple[NodeIntervals, NodeIntervals]:
        """Return the nodes and the hardware threads of a running job."""

    def take_rates(self) -> list[tuple[int, int]]:
        """Return (job id, rate) of the running jobs whose rate is another than was told, by job id."""

    def slowdown_offered(self, now_ms: int, job: Job) -> float | None:
        """Return at which slowdown a job could start now on nodes that others use; None if there are none for it."""


@runtime_checkable
class PlainDiscipline(Discipline, Protocol):
    """What `SiteCore` asks besides of a discipline under which a job for which there is room starts where nobody waits.

    Nothing happens there by itself but the ends of jobs.
    """

    @property
    def is_plain(self) -> bool:
        """Whether that is so under its policy."""

    @property
    def first_end_ms(self) -> int:
        """The first end by estimate of a running job; ``NEVER_MS`` if none runs."""

    def start_alone(self, now_ms: int, job: Job) -> None:
        """Start a job for which there is room, where nobody waits: what ``submit`` and ``run_pass`` would do."""


class Policy(Protocol):
    """How a site schedules: of any discipline, a frozen struct."""

    @property
    def discipline(self) -> str:
        """The name of the discipline, in `DISCIPLINES`."""


Factory = Callable[[int, Any, int], Discipline]

DISCIPLINES: dict[str, Factory] = {
    "queue": ArrayDiscipline,
    "planning": ArrayDiscipline,
    "lomarc": SharedDiscipline,
}
"""Name to factory; a factory takes the nodes, the policy and the local time of instant zero in the week."""
